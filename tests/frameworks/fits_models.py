"""Makes models with random weights to try --fits on: `fits_models.py FOLDER` saves each in FOLDER/NAME, as its row of MODELS says.

Imported, it tells what there is without PyTorch.
"""

import os
import sys

SMALL = {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 8, "num_attention_heads": 12, "vocab_size": 16000}
FEW = {"num_key_value_heads": 4}
DEEP = {"num_hidden_layers": 16}
T5 = {"d_model": 768, "d_kv": 64, "d_ff": 2048, "num_layers": 6, "num_heads": 12, "vocab_size": 16000, "decoder_start_token_id": 0}
BART = {"d_model": 768, "encoder_layers": 5, "decoder_layers": 5, "encoder_attention_heads": 12, "decoder_attention_heads": 12,
        "encoder_ffn_dim": 2048, "decoder_ffn_dim": 2048, "vocab_size": 16000, "forced_eos_token_id": None}
GPT2 = {"n_embd": 768, "n_layer": 10, "n_head": 12, "vocab_size": 16000}
OPT = {"hidden_size": 768, "ffn_dim": 3072, "num_hidden_layers": 10, "num_attention_heads": 12, "vocab_size": 16000, "word_embed_proj_dim": 768}
GEMMA = SMALL | FEW | {"head_dim": 64}

# Name: family, class to load with, its configuration, dtype as stored, dtype to load in (None: as stored), how, bytes of a shard.
MODELS = {
    "llama-fp32": ("llama", "CausalLM", SMALL | FEW, "float32", None, "map", None),
    "llama-bf16-sharded": ("llama", "CausalLM", SMALL | FEW, "bfloat16", None, "map", "50MB"),
    "llama-bf16-to-fp32": ("llama", "CausalLM", SMALL | FEW, "bfloat16", "float32", "map", None),
    "llama-fp32-to-bf16-sharded": ("llama", "CausalLM", SMALL | FEW, "float32", "bfloat16", "map", "50MB"),
    "llama-bf16-read": ("llama", "CausalLM", SMALL | FEW, "bfloat16", None, "read", None),
    "mistral-fp16": ("mistral", "CausalLM", SMALL | FEW, "float16", None, "map", None),
    "mistral-window-bf16": ("mistral", "CausalLM", SMALL | FEW | {"sliding_window": 64}, "bfloat16", None, "map", None),
    "qwen2-bf16": ("qwen2", "CausalLM", SMALL | FEW | DEEP, "bfloat16", None, "map", None),
    "qwen2-fp32-read": ("qwen2", "CausalLM", SMALL | FEW, "float32", None, "read", None),
    "qwen3-fp16-to-fp32": ("qwen3", "CausalLM", SMALL | FEW | {"head_dim": 64}, "float16", "float32", "map", None),
    "gemma-fp32": ("gemma", "CausalLM", GEMMA, "float32", None, "map", None),
    "gemma2-bf16": ("gemma2", "CausalLM", GEMMA | DEEP | {"sliding_window": 64}, "bfloat16", None, "map", None),
    "phi-fp16-to-fp32": ("phi", "CausalLM", SMALL, "float16", "float32", "map", None),
    "phi3-bf16-sharded": ("phi3", "CausalLM", SMALL | FEW | {"pad_token_id": 0}, "bfloat16", None, "map", "40MB"),
    "mixtral-bf16": ("mixtral", "CausalLM", SMALL | FEW | {"intermediate_size": 768, "num_local_experts": 4}, "bfloat16", None, "map", None),
    "gpt2-fp32": ("gpt2", "CausalLM", GPT2, "float32", None, "map", None),
    "opt-fp16": ("opt", "CausalLM", OPT, "float16", None, "map", None),
    "gpt_neox-bf16": ("gpt_neox", "CausalLM", SMALL | {"intermediate_size": 3072}, "bfloat16", None, "map", None),
    "falcon-bf16-to-fp32": ("falcon", "CausalLM", SMALL, "bfloat16", "float32", "map", None),
    "t5-fp32": ("t5", "Seq2SeqLM", T5, "float32", None, "map", None),
    "bart-fp32": ("bart", "Seq2SeqLM", BART, "float32", None, "map", None),
    "bert-fp32": ("bert", "MaskedLM", SMALL | {"intermediate_size": 3072}, "float32", None, "map", None),
    "roberta-fp16-to-fp32": ("roberta", "MaskedLM", SMALL | {"intermediate_size": 3072}, "float16", "float32", "map", None),
    "gguf-f16": ("gguf", None, {"type": "F16", "layers": 12, "width": 1024}, "F16", None, "map", None),
    "gguf-q8_0": ("gguf", None, {"type": "Q8_0", "layers": 20, "width": 1024}, "Q8_0", None, "map", None),
}


def make_gguf(path, type, layers, width):
    """A llama of square matrices, with the metadata of one."""
    import gguf
    import numpy

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(layers)
    writer.add_embedding_length(width)
    writer.add_context_length(8192)
    writer.add_head_count(16)
    writer.add_head_count_kv(4)
    kind = gguf.GGMLQuantizationType[type]
    random = numpy.random.default_rng(1)
    for layer in range(layers):
        for name in ("attn_q", "attn_output", "ffn_up", "ffn_down", "ffn_gate"):
            values = gguf.quantize(random.random((width, width), dtype=numpy.float32), kind)
            writer.add_tensor(f"blk.{layer}.{name}.weight", values, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def make(name, folder):
    family, kind, config, dtype, _, _, shard = MODELS[name]
    if family == "gguf":
        return make_gguf(folder + "/model.gguf", **config)
    import torch
    import transformers

    torch.manual_seed(1)
    model = getattr(transformers, "AutoModelFor" + kind).from_config(transformers.AutoConfig.for_model(family, **config))
    return model.to(getattr(torch, dtype)).save_pretrained(folder, **({"max_shard_size": shard} if shard else {}))


if __name__ == "__main__":
    for each in MODELS:
        os.mkdir(f"{sys.argv[1]}/{each}")
        make(each, f"{sys.argv[1]}/{each}")
