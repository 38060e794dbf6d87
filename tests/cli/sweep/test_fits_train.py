"""sparkguard-sweep --fits --train: terms and sums computed by hand, against what was measured on a Spark; no verdict while a term is missing."""

import json

import fits_files as files
import pytest
from sweeping import GIB, Sweeper

FITS, FITS_NOT, USAGE, CANNOT_TELL = 0, 1, 2, 3
GB = 10**9
QWEN = {  # Qwen3-0.6B
    "hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
    "intermediate_size": 3072, "vocab_size": 151936, "tie_word_embeddings": True, "torch_dtype": "bfloat16", "hidden_act": "silu",
}  # fmt: skip
QWEN_PARAMETERS = 28 * (1024 * 128 * 48 + 1024 * 3072 * 3) + 151936 * 1024
# The peaks of the whole machine in GB, by batch: seq 1024, checkpointing.
MEASURED = {"sft": {2: 21.1, 4: 29.0, 8: 46.8, 16: 80.9}, "dpo": {2: 23.8, 4: 27.2, 8: 62.2}}
LLAMA = "8B,hidden=4096,layers=32,vocab=128256"
PROGRAM = round(2.6 * GIB)


@pytest.fixture
def sweep(tools, tmp_path):
    sweep = Sweeper(tools, tmp_path)
    sweep.machine(100 * GIB, total=120 * GIB)
    return sweep


@pytest.fixture
def qwen(tmp_path):
    folder = tmp_path / "Qwen3-0.6B"
    folder.mkdir()
    files.put_config(folder, **QWEN)
    return folder


def tell(sweep, model, kind, *options, status=FITS):
    done = sweep.run("--json", f"--fits={model}", f"--train={kind}", *options)
    assert (done.returncode, done.stderr) == (status, ""), done.stderr
    found = json.loads(done.stdout)
    found["term"] = {term["name"]: term["bytes"] for term in found["terms"]}
    assert found["needed_bytes"] == min(sum(found["term"].values()), 1 << 62) and found["train"] == kind
    return found


@pytest.mark.parametrize("kind, batch", [(kind, batch) for kind, rows in MEASURED.items() for batch in rows])
def test_the_sum_is_near_each_peak_that_was_measured_on_a_spark(sweep, qwen, kind, batch):
    needed = tell(sweep, qwen, kind, f"--batch={batch}", "--seq=1024")["needed_bytes"]
    assert abs(needed / GB - MEASURED[kind][batch]) <= 0.35 * MEASURED[kind][batch], needed / GB


def test_terms_of_full_fine_tuning(sweep, qwen):
    term = tell(sweep, qwen, "sft", "--batch=8", "--seq=1024")["term"]
    tokens = 8 * 1024
    layer = 2 * (8 * 1024 + 2 * 2048 + 2 * 1024 + 4 * 3072)
    assert term == {
        "weights": 2 * QWEN_PARAMETERS, "gradients": 2 * QWEN_PARAMETERS, "optimizer": 8 * QWEN_PARAMETERS,
        "activations": tokens * (28 * 1024 * 2 + layer), "logits": tokens * 151936 * 24, "program": PROGRAM,
    }  # fmt: skip
    whole = tell(sweep, qwen, "sft", "--batch=8", "--seq=1024", "--no-checkpointing")["term"]
    assert whole.pop("activations") == tokens * 28 * layer
    assert whole == {name: size for name, size in term.items() if name != "activations"}
    for optimizer, each in (("adamw16", 4), ("adamw8", 2), ("sgd", 0)):
        assert tell(sweep, qwen, "sft", "--batch=8", "--seq=1024", f"--optimizer={optimizer}")["term"]["optimizer"] == each * QWEN_PARAMETERS


def test_dpo_has_a_reference_and_two_answers(sweep, qwen):
    sft, dpo = (tell(sweep, qwen, kind, "--batch=2", "--seq=1024")["term"] for kind in ("sft", "dpo"))
    assert dpo["reference"] == dpo["weights"] and dpo["activations"] == 2 * sft["activations"]
    assert dpo["logits"] == 2 * 2 * 1024 * 151936 * 16


def test_grpo_needs_the_part_of_its_engine(sweep, qwen):
    found = tell(sweep, qwen, "grpo", "--batch=2", "--seq=1024", status=CANNOT_TELL)
    assert found["missing"] == ["generation"] and found["fits"] is None
    term = tell(sweep, qwen, "grpo", "--batch=2", "--seq=1024", "--generation=0.25")["term"]
    assert term["generation"] == 30 * GIB and term["reference"] == term["weights"]
    assert tell(sweep, qwen, "grpo", "--batch=2", "--seq=1024", "--generation=1", status=FITS_NOT)["fits"] is False


@pytest.mark.parametrize("rank", [16, 64])
def test_lora_keeps_the_weights_and_trains_adapters(sweep, rank):
    term = tell(sweep, LLAMA + ",heads=32,kv_heads=8", "lora", "--batch=4", "--seq=2048", f"--rank={rank}")["term"]
    assert term["weights"] == 16 * GB and "gradients" not in term and "optimizer" not in term
    assert term["adapters"] == rank * (4 * 4096 + 2 * 4096 + 2 * 1024) * 32 * 16


def test_qlora_has_weights_in_nf4_and_embeddings_in_16_bits(sweep):
    term = tell(sweep, LLAMA, "qlora", "--batch=1", "--seq=1024")["term"]
    embeddings = 2 * 128256 * 4096
    assert term["embeddings"] == 2 * embeddings and term["weights"] == (8 * GB - embeddings) / 2
    for size in (100, 120):  # 50 to 70 GB, as DGX Spark courses teach
        found = tell(sweep, f"{size}B,hidden=8192,layers=80,vocab=128256", "qlora", "--batch=1", "--seq=256")
        assert 50 * GB <= found["needed_bytes"] <= 78 * GB


MISSING = [
    (LLAMA, [], ["activations", "logits"]), (LLAMA, ["--batch=4"], ["activations", "logits"]),
    ("8B,layers=32,vocab=128256", ["--batch=4", "--seq=1024"], ["activations"]),
    ("8B,hidden=4096,layers=32", ["--batch=4", "--seq=1024"], ["logits"]),
    ("8B", ["--batch=4", "--seq=1024"], ["activations", "logits"]),
]  # fmt: skip


@pytest.mark.parametrize("model, options, missing", MISSING)
def test_nothing_is_said_to_fit_while_a_term_is_missing(sweep, model, options, missing):
    found = tell(sweep, model, "sft", "--optimizer=adamw8", *options, status=CANNOT_TELL)
    assert (found["fits"], found["missing"]) == (None, missing)
    done = sweep.run(f"--fits={model}", "--train=sft", "--optimizer=adamw8", *options)
    assert done.returncode == CANNOT_TELL and f"\ncannot tell: {missing[0]} " in done.stdout and "fits:" not in done.stdout
    sweep.machine(10 * GIB)  # what is known is more already
    assert tell(sweep, model, "sft", "--optimizer=adamw8", *options, status=FITS_NOT)["fits"] is False


def test_weights_without_a_config_miss_what_it_would_tell(sweep, tmp_path):
    files.put_safetensors(tmp_path / "model.safetensors", {"t": ("BF16", (1 << 20, 64))})
    assert tell(sweep, tmp_path, "lora", "--batch=1", "--seq=8", status=CANNOT_TELL)["missing"] == ["adapters", "activations", "logits"]


def test_the_rule_of_thumb_stands_beside_it_with_what_was_measured(sweep, qwen):
    done = sweep.run(f"--fits={qwen}", "--train=sft", "--batch=8", "--seq=1024")
    said = " ".join(done.stdout.split())
    rule = 6 * QWEN_PARAMETERS + 8 * 1024 * 1024 * 4
    assert f"rule of thumb: 6 x 0.596B + batch x seq x hidden x 4 bytes = {rule / GIB:.1f} GiB" in said
    assert "where it says 3.6 GB, 21.1 to 80.9 GB were measured on a Spark" in said


def test_a_description_is_a_model_for_inference_as_well(sweep):
    done = sweep.run("--json", "--fits=0.5B,hidden=896,layers=24,heads=14,kv_heads=2,head_dim=64,dtype=nvfp4", "--context=4096", "--batch=2")
    found = json.loads(done.stdout)
    term = {term["name"]: term["bytes"] for term in found["terms"]}
    assert (done.returncode, found["format"], found["basis"]) == (FITS, "description", "description")
    assert term["weights"] == GB // 2 * 4.5 / 8 and term["KV cache"] == 2 * 24 * 2 * 64 * 4096 * 2 * 2
    done = sweep.run("--fits=0.5B")
    assert done.returncode == CANNOT_TELL and "cannot tell: KV cache is not in the sum" in done.stdout


def test_a_folder_of_such_a_name_is_a_folder(sweep, tmp_path, monkeypatch):
    (tmp_path / "8B").mkdir()
    files.put_config(tmp_path / "8B", **QWEN)
    done = sweep.run("--json", f"--fits={tmp_path / '8B'}")
    assert json.loads(done.stdout)["format"] == "config.json"


@pytest.mark.parametrize("text", ["8B,hidden=0", "8B,hidden=-1", "8B,hidden=1e999", "8B,hidden=nan", "8B,x=1", "8B,dtype=fp7", "8B,hidden", "8B,,", "8B,\x1b[31m=1"])
def test_a_description_that_cannot_be_read_is_told_in_a_line(sweep, text):
    done = sweep.run(f"--fits={text}")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (CANNOT_TELL, "", 1) and "\x1b" not in done.stderr


@pytest.mark.parametrize(
    "piece, fault",
    [
        ("hiden=4096", "hiden=4096: no such name; did you mean hidden?"), ("layers=4x", "layers=4x: not a number from 1 on; for example layers=4096"),
        ("speed=1", "speed=1: no such name; use one of hidden|layers|vocab|inner|heads|kv_heads|head_dim|context|dtype"), ("dtype=fp7", "dtype=fp7: no such dtype; for example dtype=bf16"),
    ],
)  # fmt: skip
def test_the_part_of_a_description_that_is_wrong_is_named(sweep, piece, fault):
    text = f"8B,hidden=4096,{piece},vocab=128256"
    assert sweep.run(f"--fits={text}").stderr == f"sparkguard-sweep: {text}: {fault}\n"


def test_a_description_names_the_context(sweep):
    shape = "0.5B,hidden=896,layers=24,heads=14,kv_heads=2"
    for options, context in (([f"--fits={shape},context=32K"], 32768), ([f"--fits={shape},context=32K", "--context=8K"], 8192)):
        assert json.loads(sweep.run("--json", *options).stdout)["context"] == context
    assert "assumed: 32768" not in sweep.run(f"--fits={shape},context=32K", "--batch=1").stdout


def test_enormous_numbers_saturate(sweep):
    big = 10**12
    text = f"999999B,hidden={big},layers=4096,vocab={big},inner={big},heads={big},kv_heads={big},head_dim={big}"
    assert tell(sweep, text, "sft", f"--batch={1 << 40}", f"--seq={1 << 40}", status=FITS_NOT)["fits"] is False


@pytest.mark.parametrize(
    "options",
    [
        ["--train=full"], ["--train=sft", "--batch=0"], ["--train=sft", "--seq=x"], ["--train=grpo", "--generation=2"], ["--train=sft", "--optimizer=adam"],
        ["--seq=5"], ["--rank=4"], ["--no-checkpointing"], ["--optimizer=sgd"], ["--generation=0.1"],
    ],
)  # fmt: skip
def test_bad_usage_is_one_line(sweep, options):
    done = sweep.run("--fits=8B", *options)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (USAGE, "", 1), done.stderr
    done = sweep.run(*options)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (USAGE, "", 1), done.stderr
