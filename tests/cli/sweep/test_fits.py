"""sparkguard-sweep --fits: what headers of models say, what that comes to, and that no header can harm it."""

import json
import os
import resource
import struct
import subprocess

import fits_files as files
import pytest
from sweeping import GIB, MIB, RESERVE, Sweeper

FITS, FITS_NOT, USAGE, CANNOT_TELL = 0, 1, 2, 3


@pytest.fixture
def sweep(tools, tmp_path):
    sweep = Sweeper(tools, tmp_path)
    sweep.machine(10 * GIB)
    return sweep


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "some-model"
    folder.mkdir()
    return folder


def tell(sweep, path, *options, status=FITS):
    """What is told; without a config.json the KV cache is missing, and then nothing is said to fit."""
    done = sweep.run("--json", f"--fits={path}", *options)
    found = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (CANNOT_TELL if found["missing"] and status == FITS else status, "")
    assert found["missing"] in ([], ["KV cache"]) and (found["fits"] is None) == (done.returncode == CANNOT_TELL)
    found["term"] = {term["name"]: term["bytes"] for term in found["terms"]}
    return found


def cannot(sweep, path, why):
    done = sweep.run(f"--fits={path}")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (CANNOT_TELL, "", 1), done.stderr
    assert why in done.stderr, done.stderr


# ---- safetensors -----------------------------------------------------------------------------------------------------------


def test_one_file_before_its_weights_are_there(sweep, model):
    size = files.put_safetensors(model / "model.safetensors", {"a": ("BF16", (1000, 500)), "b": ("F32", (7,)), "c": ("U8", (3, 3))})
    files.put_config(model)
    found = tell(sweep, model)
    assert (found["format"], found["family"], found["dtype"], found["basis"]) == ("safetensors", "llama", "BF16", "headers")
    assert found["weight_bytes"] == size == 1000 * 500 * 2 + 28 + 9 == found["missing_bytes"]
    assert (found["tensor_count"], found["parameter_count"]) == (3, 500_016)
    assert found["term"]["KV cache"] == 4 * 2 * 8 * 2 * 2048 * 2  # layers, heads, of 64 / 8, keys and values, tokens, bytes
    assert found["needed_bytes"] == size + found["term"]["KV cache"]


def test_the_file_alone_has_its_config_beside_it(sweep, model):
    files.put_safetensors(model / "model.safetensors", {"a": ("F16", (10, 10))}, data=True)
    assert tell(sweep, model / "model.safetensors")["missing"] == ["KV cache"]
    done = sweep.run(f"--fits={model / 'model.safetensors'}")
    assert "\ncannot tell: KV cache is not in the sum: give a config.json with" in done.stdout
    files.put_config(model)
    found = tell(sweep, model / "model.safetensors")
    assert found["missing_bytes"] == 0 and found["term"]["KV cache"] > 0


def test_shards_by_their_index_and_an_index_alone(sweep, model):
    parts = {f"model-0000{i}-of-00002.safetensors": {f"t{i}": ("F32", (i * 1000,))} for i in (1, 2)}
    files.put_index(model, parts, total=12000)
    files.put_config(model)
    found = tell(sweep, model)
    assert (found["basis"], found["weight_bytes"], found["file_count"], found["missing_count"]) == ("index", 12000, 2, 2)
    for name, tensors in parts.items():
        files.put_safetensors(model / name, tensors)
    for path in (model, model / "model.safetensors.index.json"):
        found = tell(sweep, path)
        assert (found["basis"], found["weight_bytes"], found["file_count"], found["missing_count"]) == ("headers", 12000, 2, 0)
        assert found["dtype"] == "F32"


def test_shards_without_an_index_count_all_and_a_whole_model_beside_parts_counts_alone(sweep, model):
    for i in (1, 2):
        files.put_safetensors(model / f"model-0000{i}-of-00002.safetensors", {f"t{i}": ("F32", (100,))})
    assert tell(sweep, model)["weight_bytes"] == 800
    cannot(sweep, model / "model-00001-of-00002.safetensors", "it is one of 2 parts; name the folder, or model.safetensors.index.json")
    (model / "model-00001-of-00002.safetensors").rename(model / "elsewhere")
    cannot(sweep, model, "the folder has 1 of 2 parts, and no index")
    (model / "elsewhere").rename(model / "model-00001-of-00002.safetensors")
    files.put_safetensors(model / "model.safetensors", {"t": ("F32", (300,))})
    assert tell(sweep, model)["weight_bytes"] == 1200


@pytest.mark.parametrize(
    ("dtype", "options", "weights", "private", "resident"),
    [
        ("F32", [], 4, 0, 4), ("F16", ["--dtype=fp16"], 2, 0, 2), ("F16", ["--dtype=bf16"], 2, 2, 4), ("BF16", ["--dtype=fp32"], 4, 4, 6),
        ("F32", ["--dtype=bf16"], 2, 2, 6), ("F32", ["--load=copy"], 4, 4, 8), ("F32", ["--load=read"], 4, 8, 8),
        ("F8_E4M3", ["--dtype=bf16"], 1, 0, 1), ("U8", ["--load=copy"], 1, 1, 2),
    ],
)  # fmt: skip
def test_what_loading_takes(sweep, model, dtype, options, weights, private, resident):
    """In millions of bytes; an encoder, so that there is no cache."""
    files.put_safetensors(model / "model.safetensors", {"t": (dtype, (1000, 1000))})
    files.put_config(model, model_type="bert", architectures=["BertForMaskedLM"])
    found = tell(sweep, model, *options)
    assert found["term"]["KV cache"] == 0 and found["term"]["weights"] == weights * 10**6
    assert (found["peak_private_bytes"], found["peak_resident_bytes"]) == (private * 10**6, resident * 10**6)


def test_experts_of_a_tensor_each_are_merged(sweep, model):
    tensors = {f"model.layers.0.mlp.experts.{i}.w1.weight": ("BF16", (100, 100)) for i in range(4)}
    files.put_safetensors(model / "model.safetensors", tensors | {"model.experts.gate": ("BF16", (100, 100))})
    found = tell(sweep, model)
    assert (found["peak_private_bytes"], found["peak_resident_bytes"]) == (80_000, 180_000)


def test_what_is_freed_while_experts_are_merged_stays_resident(sweep, model):
    """Twice the experts of a layer: 8 of these in 4 layers, 20,000 bytes each."""
    tensors = {f"model.layers.{k}.mlp.experts.{i}.w1.weight": ("BF16", (100, 100)) for k in range(4) for i in range(8)}
    files.put_safetensors(model / "model.safetensors", tensors)
    files.put_config(model, model_type="mixtral", num_hidden_layers=4, num_attention_heads=2, num_key_value_heads=2, hidden_size=8)
    found = tell(sweep, model, "--context=1")
    cache = found["term"]["KV cache"]
    assert found["peak_private_bytes"] == 640_000 + cache
    assert found["peak_resident_bytes"] == 640_000 + 640_000 + 2 * 160_000 + cache


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "too short"), (b"\0" * 7, "too short"), (struct.pack("<Q", 1 << 62), "its header would be of 4611686018427387904 bytes"),
        (struct.pack("<Q", (1 << 64) - 1), "its header would be of"), (struct.pack("<Q", 100) + b"{}", "only 10 bytes of it are there"),
        (files.packed(b"[]"), "not an object"), (files.packed(b"{,}"), "its JSON cannot be read"), (files.packed(b"[" * 5000), "its JSON cannot be read"),
        (files.packed({"t": 5}), "no dtype, shape or place"), (files.packed({"t": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}}), "no dtype, shape or place"),
        (files.packed({"t": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}), "no dtype, shape or place"),
        (files.packed({"t": {"dtype": "F32", "shape": [1 << 40, 1 << 40], "data_offsets": [0, 4]}}), "no dtype, shape or place"),
        (files.packed({"t": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}), "the shape and the bytes of a tensor differ"),
        (files.packed({"t": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}), "overlap or leave gaps"),
        (files.packed({n: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]} for n in "ab"}), "overlap or leave gaps"),
        (files.packed(b'{"t":{"dtype":"F32","shape":[1e99],"data_offsets":[0,4]}}'), "no dtype, shape or place"),
        (files.packed(b'{"\xff":1}'), "its JSON cannot be read"),
    ],
)  # fmt: skip
def test_headers_that_lie_are_told_in_a_line(sweep, model, content, why):
    (model / "model.safetensors").write_bytes(content)
    cannot(sweep, model, why)
    cannot(sweep, model / "model.safetensors", why)


# ---- GGUF ----------------------------------------------------------------------------------------------------------------

GGUF_BITS = {0: 32, 1: 16, 2: 4.5, 3: 5, 6: 5.5, 7: 6, 8: 8.5, 10: 2.625, 11: 3.4375, 12: 4.5, 13: 5.5, 14: 6.5625, 16: 2.0625, 20: 4.5, 23: 4.25, 30: 16, 39: 4.25}


@pytest.mark.parametrize(("type", "bits"), GGUF_BITS.items())
def test_gguf_types_have_their_bits(sweep, model, type, bits):
    (model / "m.gguf").write_bytes(files.gguf(files.GGUF_LLAMA, [("t", (256, 64), type)]))
    found = tell(sweep, model / "m.gguf")
    assert found["weight_bytes"] == 256 * 64 * bits / 8 and found["parameter_count"] == 256 * 64
    assert (found["format"], found["family"]) == ("GGUF", "llama")
    assert found["term"]["KV cache"] == 4 * 2 * 8 * 2 * 4096 * 2


def test_gguf_metadata_of_every_type_is_skipped(sweep, model):
    more = [(f"x.{kind}", kind, 1) for kind in ("u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "u64", "i64", "f64")]
    more += [("x.words", "array", ("string", ["a" * i for i in range(300)])), ("x.numbers", "array", ("f64", [0.5] * 100_000)),
             ("x.nested", "array", ("array", [("u8", [1, 2]), ("string", ["x"])])), ("x.empty", "array", ("u32", []))]
    (model / "m.gguf").write_bytes(files.gguf(more + files.GGUF_LLAMA, [("t", (256, 4), 12)], version=2))
    assert tell(sweep, model)["term"]["KV cache"] == 4 * 2 * 8 * 2 * 4096 * 2


def test_gguf_heads_of_each_layer_and_own_lengths(sweep, model):
    facts = [fact for fact in files.GGUF_LLAMA if not fact[0].endswith("head_count_kv")]
    heads = [("llama.attention.head_count_kv", "array", ("u32", [1, 2, 0, 4]))]
    lengths = [("llama.attention.key_length", "u32", 100), ("llama.attention.value_length", "u32", 50)]
    (model / "m.gguf").write_bytes(files.gguf(facts + heads + lengths, [("t", (4, 4), 0)]))
    assert tell(sweep, model, "--context=1000")["term"]["KV cache"] == 7 * 150 * 1000 * 2
    (model / "m.gguf").write_bytes(files.gguf(facts, [("t", (4, 4), 0)]))  # as many as heads
    assert tell(sweep, model, "--context=1000")["term"]["KV cache"] == 4 * 8 * 16 * 1000 * 2


def test_a_split_gguf_is_read_to_the_last_part(sweep, model):
    for i in (1, 2, 3):
        facts = [*files.GGUF_LLAMA, ("split.count", "u16", 3)] if i == 1 else [("split.count", "u16", 3)]
        (model / f"m-0000{i}-of-00003.gguf").write_bytes(files.gguf(facts, [(f"t{i}", (100 * i,), 0)]))
    for path in (model, model / "m-00002-of-00003.gguf"):
        found = tell(sweep, path)
        assert (found["weight_bytes"], found["file_count"]) == (2400, 3) and found["term"]["KV cache"] > 0
    (model / "m-00003-of-00003.gguf").unlink()
    cannot(sweep, model, "part 3 of 3: No such file")
    (model / "m-00001-of-00003.gguf").rename(model / "blob")
    cannot(sweep, model / "blob", "a part of a split model")


def test_several_quantisations_in_a_folder_are_not_added_up(sweep, model):
    for name in ("m-q4.gguf", "m-q8.gguf"):
        (model / name).write_bytes(files.gguf(files.GGUF_LLAMA, [("t", (4, 4), 0)]))
    cannot(sweep, model, "several GGUF models")
    assert tell(sweep, model / "m-q4.gguf")["weight_bytes"] == 64


def gguf_with(at, length, number):
    whole = bytearray(files.gguf(files.GGUF_LLAMA, [("t", (256, 4), 12)]))
    whole[at : at + length] = number.to_bytes(length, "little")
    return bytes(whole)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"GGUF", "no GGUF file"), (gguf_with(4, 4, 1), "version 1"), (gguf_with(4, 4, 3 << 24), "version 50331648"),
        (gguf_with(8, 8, (1 << 64) - 1), "cut off or damaged"), (gguf_with(16, 8, (1 << 64) - 1), "cut off or damaged"),
        (gguf_with(24, 8, (1 << 64) - 1), "cut off or damaged"), (files.gguf([], [("t", (4,), 99)]), "type 99"),
        (files.gguf([], [("t", (4,), 4)]), "type 4"), (files.gguf([], [("t", (100,), 12)]), "does not go with its type Q4_K"),
        (files.gguf([], [("t", (1 << 40, 1 << 40), 0)]), "does not go with its type F32"),
        (files.gguf([], [("t", (1,) * 9, 0)]), "cut off or damaged"), (files.gguf([], [])[:20], "cut off or damaged"),
        (files.gguf([("a", "array", ("array", [("array", [("array", [("array", [("u8", [])])])])]))], []), "cut off or damaged"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + files.string("k") + struct.pack("<IIQ", 9, 4, 1 << 62), "cut off or damaged"),
    ],
)  # fmt: skip
def test_gguf_headers_that_lie_are_told_in_a_line(sweep, model, content, why):
    (model / "m.gguf").write_bytes(content)
    cannot(sweep, model / "m.gguf", why)


def test_a_gguf_header_cut_anywhere_never_fits(sweep, model):
    whole = files.gguf(files.GGUF_LLAMA, [("t", (256, 4), 12)])
    for length in range(4, len(whole), 7):
        (model / "m.gguf").write_bytes(whole[:length])
        assert sweep.run(f"--fits={model / 'm.gguf'}").returncode == CANNOT_TELL


# ---- config.json -----------------------------------------------------------------------------------------------------------


def cache_of(sweep, model, *options, **changes):
    files.put_config(model, **changes)
    return tell(sweep, model, "--context=100", *options)["term"].get("KV cache")


@pytest.mark.parametrize(
    ("changes", "numbers"),
    [
        ({}, 4 * 2 * 16), ({"num_key_value_heads": None}, 4 * 8 * 16), ({"head_dim": 32}, 4 * 2 * 64),
        ({"model_type": "gpt2", "num_hidden_layers": None, "n_layer": 3, "hidden_size": None, "n_embd": 64, "num_attention_heads": None,
          "n_head": 4, "num_key_value_heads": None}, 3 * 4 * 32),
        ({"model_type": "falcon", "multi_query": True, "num_key_value_heads": None}, 4 * 1 * 16),
        ({"model_type": "t5", "is_encoder_decoder": True, "num_decoder_layers": 2, "num_key_value_heads": None, "d_kv": 16}, 2 * 2 * 8 * 32),
        ({"kv_lora_rank": 512, "qk_rope_head_dim": 64}, 4 * 576),
        ({"architectures": ["BertForMaskedLM"], "model_type": "bert"}, 0), ({"architectures": None, "model_type": "bert"}, 0),
        ({"layer_types": ["full_attention", "linear_attention"] * 2}, 2 * 2 * 16),
    ],
)  # fmt: skip
def test_cache_of_families(sweep, model, changes, numbers):
    assert cache_of(sweep, model, **changes) == numbers * 100 * 2


def test_layers_with_a_window_keep_no_more(sweep, model):
    assert cache_of(sweep, model, sliding_window=30, model_type="mistral") == 4 * 32 * 30 * 2
    assert cache_of(sweep, model, sliding_window=30, model_type="mistral", use_sliding_window=False) == 4 * 32 * 100 * 2
    assert cache_of(sweep, model, sliding_window=30, model_type="qwen2", use_sliding_window=True) == 4 * 32 * 30 * 2
    assert cache_of(sweep, model, sliding_window=30, model_type="gemma2") == 4 * 32 * 100 * 2, "half of its layers are full"
    kinds = ["sliding_attention", "full_attention"] * 2
    assert cache_of(sweep, model, sliding_window=30, layer_types=kinds) == 2 * 32 * 30 * 2 + 2 * 32 * 100 * 2


def test_batch_and_dtype_of_the_cache(sweep, model):
    assert cache_of(sweep, model, "--batch=3", "--kv-dtype=fp8") == 4 * 32 * 100 * 3
    assert cache_of(sweep, model, "--kv-dtype=fp32") == 4 * 32 * 100 * 4
    assert cache_of(sweep, model, torch_dtype="float32") == 4 * 32 * 100 * 4
    files.put_config(model)
    assert tell(sweep, model, "--context=2K")["context"] == 2048


def test_a_language_model_inside_another_config(sweep, model):
    (model / "config.json").write_text(json.dumps({"model_type": "llava", "text_config": files.LLAMA, "vision_config": {"num_hidden_layers": 99}}))
    found = tell(sweep, model, "--context=100")
    assert found["term"]["KV cache"] == 4 * 32 * 100 * 2 and found["family"] == "llava"


def test_parameters_by_config_alone(sweep, model):
    files.put_config(model)
    parameters = 2 * 1000 * 64 + 4 * (64 * 8 * (8 * 2 + 2 * 2) + 3 * 64 * 256)
    for path in (model, model / "config.json"):
        found = tell(sweep, path)
        assert (found["basis"], found["parameter_count"], found["weight_bytes"]) == ("config", parameters, 2 * parameters)
    files.put_config(model, quantization_config={"quant_method": "gptq", "bits": 4})
    found = tell(sweep, model)
    assert (found["quantization"], found["weight_bytes"]) == ("gptq", parameters // 2)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "its JSON cannot be read"), ("{}", "does not tell the size"), ("[1]", "not an object"), ('{"hidden_size": 1e400}', "its JSON cannot be read"),
        (json.dumps(files.LLAMA | {"num_hidden_layers": 10**9}), "does not tell the size"), (json.dumps(files.LLAMA | {"hidden_size": -5}), "does not tell the size"),
        ("\0" * 100, "its JSON cannot be read"), ('{"a":' * 3000, "its JSON cannot be read"),
    ],
)  # fmt: skip
def test_configs_that_lie_are_told_in_a_line(sweep, model, content, why):
    (model / "config.json").write_text(content)
    cannot(sweep, model, why)


def test_enormous_configs_saturate(sweep, model):
    most = (1 << 40) - 1
    files.put_config(model, hidden_size=most, intermediate_size=most, vocab_size=most, num_key_value_heads=most, head_dim=most)
    found = tell(sweep, model, f"--context={1 << 40}", f"--batch={1 << 40}", status=FITS_NOT)
    assert found["needed_bytes"] == 1 << 62 and found["fits"] is False


# ---- places that are none, and places that lead elsewhere -----------------------------------------------------------------


def test_what_is_no_model_is_told(sweep, model):
    cannot(sweep, model, "neither safetensors nor GGUF nor config.json")
    cannot(sweep, model / "nothing", "No such file")
    os.mkfifo(model / "fifo")
    cannot(sweep, model / "fifo", "not a regular file")
    cannot(sweep, "/dev/null", "not a regular file")
    (model / "model.safetensors").symlink_to("model.safetensors")
    cannot(sweep, model / "model.safetensors", "symbolic links")
    (model / "model.safetensors").unlink()
    os.mkfifo(model / "model.safetensors")
    cannot(sweep, model, "not a regular file")


def test_an_index_names_only_files_of_its_folder(sweep, model):
    for name in ("../secret.safetensors", "/etc/passwd", "..", ".hidden", ""):
        files.put_index(model, {name: {"t": 1}}, total=5)
        cannot(sweep, model, "names a file that is not in its folder")
    files.put_index(model, {"a.safetensors": {"t": 1}})
    cannot(sweep, model, "names no total_size")


def test_names_cannot_write_to_the_terminal(sweep, model):
    files.put_config(model, model_type="\x1b]0;evil\x07", torch_dtype="\x1b[2J")
    strange = model / "bad\x1b[31m\nname"
    strange.mkdir()
    (strange / "config.json").write_text((model / "config.json").read_text())
    done = sweep.run(f"--fits={strange}")
    assert done.returncode == FITS and "\x1b" not in done.stdout and "\\x1b[31m" in done.stdout
    cannot(sweep, model / "\x1b[31m", "\\x1b[31m")


def test_a_header_of_the_most_bytes_takes_bounded_memory(sweep, model):
    """The worst: small values, each of which takes many times its text."""
    path = model / "model.safetensors"
    path.write_bytes(files.packed(b'{"t":[' + b"0," * ((16 << 20) - 10) + b"0]}"))

    def bound():
        resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))

    if "address" in str(sweep.program):
        bound = None  # the sanitizer reserves terabytes
    done = subprocess.run(sweep.command(f"--fits={path}"), env=sweep.environment(), capture_output=True, text=True, preexec_fn=bound, timeout=100)
    assert done.returncode == CANNOT_TELL and "no dtype, shape or place" in done.stderr


# ---- the verdict -----------------------------------------------------------------------------------------------------------


def test_exit_status_and_verdict_at_the_edge(sweep, model):
    files.put_safetensors(model / "model.safetensors", {"t": ("F32", (1 << 20, 64))})
    files.put_config(model)
    size = tell(sweep, model)["needed_bytes"]
    sweep.machine(size)
    assert tell(sweep, model)["fits"] is True
    sweep.machine(size - 4096)
    found = tell(sweep, model, status=FITS_NOT)
    assert found["fits"] is False and found["room_bytes"] == size - 4096 and found["reserve_bytes"] == RESERVE
    done = sweep.run(f"--fits={model}")
    assert done.returncode == FITS_NOT and f"does not fit: room {size / MIB:.1f} MiB now (above the reserve of 1.0 GiB), 4.0 KiB are missing" in done.stdout
    done = sweep.run(f"--fits={model}", SPARKGUARD_LIMIT="1M")
    assert done.returncode == FITS_NOT and "room 1.0 MiB now" in done.stdout


def test_an_unknown_machine_is_no_fit(sweep, model):
    files.put_config(model)
    (sweep.root / "proc/meminfo").unlink()
    done = sweep.run(f"--fits={model}")
    assert done.returncode == CANNOT_TELL and "cannot tell whether it fits" in done.stdout


def test_what_this_machine_measured_stands_beside_it(sweep, tools, model):
    files.put_config(model)
    env = sweep.environment(LD_PRELOAD=str(tools / "libsparkguard.so"), SPARKGUARD_HISTORY="off")
    code = "import sys; held = bytearray(96 << 20)"
    for path in (model, model.parent / "some-model-2"):
        subprocess.run(["/usr/bin/python3", "-c", code, str(path)], env=env, check=True)
    (run,) = tell(sweep, model)["measured"]
    assert 96 * MIB <= run["peak_bytes"] < 128 * MIB and str(model) in run["command"]
    done = sweep.run(f"--fits={model / 'config.json'}")
    assert "peak 9" in done.stdout and "measured 20" in done.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["--fits=/tmp", "--context=0"], ["--fits=/tmp", "--context=-1"], ["--fits=/tmp", "--batch=x"], ["--fits=/tmp", "--context=4KB"],
        ["--fits=/tmp", "--context=99999999999999999999"], ["--fits=/tmp", "--kv-dtype=fp7"], ["--fits=/tmp", "--dtype=int8"],
        ["--fits=/tmp", "--load=lazily"], ["--context=5"], ["--fits=/tmp", "--", "true"], ["--fits"],
        ["--fits=/tmp", "-p", "batch=1,2"],
    ],
)  # fmt: skip
def test_bad_usage_is_one_line(sweep, arguments):
    done = sweep.run(*arguments)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (USAGE, "", 1), done.stderr
