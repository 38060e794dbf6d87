#!/usr/bin/env python3
"""Writes a model of random weights for llama.cpp, half a megabyte, to try a context with: tiny_model.py tiny.gguf

Its key-value cache takes 1 KiB for each token of the context. Needs gguf and numpy of PyPI.
"""

import sys

import gguf
import numpy

LAYERS, WIDTH, HEADS, FEED, CONTEXT = 2, 64, 4, 128, 1 << 20
SPECIAL = ["<unk>", "<s>", "</s>"]
WORDS = len(SPECIAL) + 256  # and a word for each byte


def weights(*shape):
    return (numpy.random.default_rng(0).standard_normal(shape) * 0.02).astype(numpy.float32)


def write(path):
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_vocab_size(WORDS)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    words = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256))]
    kinds = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL, *[gguf.TokenType.BYTE] * 256]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(words)
    writer.add_token_scores([0.0] * WORDS)
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_tensor("token_embd.weight", weights(WORDS, WIDTH))
    writer.add_tensor("output_norm.weight", numpy.ones(WIDTH, numpy.float32))
    writer.add_tensor("output.weight", weights(WORDS, WIDTH))
    for layer in range(LAYERS):
        part = f"blk.{layer}."
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"{part}{name}.weight", numpy.ones(WIDTH, numpy.float32))
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            writer.add_tensor(f"{part}{name}.weight", weights(WIDTH, WIDTH))
        for name, shape in (("ffn_gate", (FEED, WIDTH)), ("ffn_up", (FEED, WIDTH)), ("ffn_down", (WIDTH, FEED))):
            writer.add_tensor(f"{part}{name}.weight", weights(*shape))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    write(sys.argv[1])
