"""Makes the headers of model files by hand: safetensors, GGUF, an index, config.json. No weights, unless a test wants some."""

import json
import struct

SIZES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "I64": 8, "U8": 1, "BOOL": 1}
LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 4,
    "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 1000, "max_position_embeddings": 2048, "torch_dtype": "bfloat16",
    "hidden_act": "silu",
}  # fmt: skip


def safetensors_header(tensors):
    """tensors: {name: (dtype, shape)}."""
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, (dtype, shape) in tensors.items():
        size = SIZES[dtype]
        for dimension in shape:
            size *= dimension
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    return header, at


def packed(header):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text


def put_safetensors(path, tensors, data=False):
    header, size = safetensors_header(tensors)
    start = packed(header)
    with path.open("wb") as file:
        file.write(start)
        file.truncate(len(start) + (size if data else 0))
    return size


def put_config(folder, **changes):
    (folder / "config.json").write_text(json.dumps({k: v for k, v in (LLAMA | changes).items() if v is not None}))


def put_index(folder, files, total=None):
    """files: {name: tensors}; only the index is written."""
    names = {tensor: name for name, tensors in files.items() for tensor in tensors}
    text = {"metadata": {} if total is None else {"total_size": total}, "weight_map": names}
    (folder / "model.safetensors.index.json").write_text(json.dumps(text))


# ---- GGUF ----------------------------------------------------------------------------------------------------------------

KINDS = {"u8": (0, "<B"), "i8": (1, "<b"), "u16": (2, "<H"), "i16": (3, "<h"), "u32": (4, "<I"), "i32": (5, "<i"), "f32": (6, "<f"),
         "bool": (7, "<?"), "string": (8, None), "array": (9, None), "u64": (10, "<Q"), "i64": (11, "<q"), "f64": (12, "<d")}


def string(text):
    text = text.encode()
    return struct.pack("<Q", len(text)) + text


def value(kind, content):
    if kind == "string":
        return string(content)
    if kind == "array":
        of, items = content
        return struct.pack("<IQ", KINDS[of][0], len(items)) + b"".join(value(of, item) for item in items)
    return struct.pack(KINDS[kind][1], content)


def gguf(metadata, tensors, version=3):
    """metadata: [(key, kind, content)]; tensors: [(name, shape, number of the type)]."""
    out = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    for key, kind, content in metadata:
        out += string(key) + struct.pack("<I", KINDS[kind][0]) + value(kind, content)
    for name, shape, type in tensors:
        out += string(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape) + struct.pack("<IQ", type, 0)
    return out


GGUF_LLAMA = [
    ("general.architecture", "string", "llama"), ("llama.block_count", "u32", 4), ("llama.embedding_length", "u32", 64),
    ("llama.context_length", "u32", 8192), ("llama.attention.head_count", "u32", 8), ("llama.attention.head_count_kv", "u32", 2),
]  # fmt: skip
