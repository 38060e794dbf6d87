"""sparkguard-sweep --estimate of full fine-tuning, LoRA, QLoRA and inference: terms, sums and verdicts computed by hand."""

import json
from pathlib import Path

import pytest
from sweeping import GIB, RESERVE, sweep  # noqa: F401 - and a fixture

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
GB = 10**9
LLAMA = "layers=32,kv_heads=8,head_dim=128"  # of 8 thousand million parameters
CACHE_TOKEN = 2 * 32 * 8 * 128  # numbers of a token of such a model


def estimate(sweep, text):
    """The one estimate of a run without a program, with its terms by name."""
    done = sweep.run("--json", f"--estimate={text}")
    assert (done.returncode, done.stderr) == (0, "")
    (found,) = json.loads(done.stdout)["runs"][0]["estimates"]
    found["by_name"] = {term["name"]: term["bytes"] for term in found["terms"]}
    assert sum(found["by_name"].values()) == found["needed_bytes"]
    assert abs(found["estimated_bytes"] - found["needed_bytes"]) <= 1
    return found


@pytest.mark.parametrize(
    ("dtype", "weights", "scales"),
    [
        ("fp32", 28, 0), ("fp16", 14, 0), ("bf16", 14, 0), ("fp8", 7, 7 * 4 / 16384), ("int8", 7, 7 * 2 / 128),
        ("nvfp4", 3.5, 7 / 16), ("mxfp4", 3.5, 7 / 32), ("int4", 3.5, 7 * 2.5 / 128), ("nf4", 3.5, 7 / 64 + 7 * 4 / (64 * 256)),
        ("FLOAT16", 14, 0), ("torch.bfloat16", 14, 0),
    ],
)  # fmt: skip
def test_weights_and_scales_of_7b_by_dtype(sweep, dtype, weights, scales):
    found = estimate(sweep, f"7B,infer,dtype={dtype}")
    assert found["formula"] == "inference"
    assert found["by_name"]["weights"] == weights * GB
    assert abs(found["by_name"].get("scales", 0) - scales * GB) <= 1


@pytest.mark.parametrize(("kv", "bits"), [("fp32", 32), ("fp16", 16), ("bf16", 16), ("fp8", 8), ("int8", 8), ("nvfp4", 4.5)])
def test_kv_cache_is_two_numbers_for_each_layer_head_and_token(sweep, kv, bits):
    found = estimate(sweep, f"8B,infer,{LLAMA},context=8192,batch=4,kv={kv}")
    assert found["by_name"]["KV cache"] == CACHE_TOKEN * 8192 * 4 * bits / 8


def test_defaults_of_the_cache_are_said(sweep):
    found = estimate(sweep, f"8B,infer,{LLAMA}")
    assert found["by_name"]["KV cache"] == CACHE_TOKEN * 4096 * 2
    assert any("4096 tokens of context, 1 sequence" in note for note in found["notes"])
    found = estimate(sweep, "8B,infer,layers=32,hidden=4096,context=1000,batch=1")
    assert found["by_name"]["KV cache"] == 2 * 32 * 4096 * 1000 * 2
    assert any("as many key and value heads as heads" in note for note in found["notes"])
    found = estimate(sweep, "8B,infer")
    assert list(found["by_name"]) == ["weights"] and any("without KV cache" in note for note in found["notes"])


def test_embeddings_of_a_quantised_model_stay_in_16_bits(sweep):
    found = estimate(sweep, "8B,infer,dtype=int8,vocab=128256,hidden=4096")
    embeddings = 2 * 128256 * 4096
    assert found["by_name"]["embeddings"] == 2 * embeddings
    assert found["by_name"]["weights"] == 8 * GB - embeddings


def test_full_fine_tuning_takes_8_bytes_a_parameter(sweep):
    """12 to 16 thousand million parameters in about 100 to 128 GB, as DGX Spark courses teach."""
    found = estimate(sweep, "12B,full")
    assert found["by_name"] == {"weights": 24 * GB, "gradients": 24 * GB, "optimizer": 48 * GB}
    assert estimate(sweep, "16B,full")["needed_bytes"] == 128 * GB
    for optimizer, moments in (("adamw32", 8), ("adamw16", 4), ("adamw8", 2), ("sgd", 0)):
        assert estimate(sweep, f"1B,full,optimizer={optimizer}")["by_name"]["optimizer"] == moments * GB


def test_activations_and_logits_of_training(sweep):
    found = estimate(sweep, "0.6B,full,hidden=1024,seq=1024,batch=8,vocab=151936,layers=28")
    assert found["by_name"]["activations"] == 8 * 1024 * 1024 * 28 * 2
    assert found["by_name"]["logits"] == 8 * 1024 * 151936 * 12
    assert estimate(sweep, "0.6B,full,hidden=1024,seq=1024,batch=8")["by_name"]["activations"] == 8 * 1024 * 1024 * 4


def test_qlora_of_100_to_120b_takes_50_to_70_gb(sweep):
    for size in (100, 120):
        found = estimate(sweep, f"{size}B,qlora,hidden=8192,layers=80")
        adapters = 16 * 2 * 8192 * 4 * 80
        assert found["by_name"]["adapters"] == adapters * 16
        assert 50 * GB <= found["needed_bytes"] <= 70 * GB


def test_lora_keeps_the_weights_and_trains_adapters(sweep):
    found = estimate(sweep, "8B,lora,hidden=4096,layers=32,rank=64")
    assert found["by_name"] == {"weights": 16 * GB, "adapters": 64 * 2 * 4096 * 4 * 32 * 16}
    found = estimate(sweep, "8B,lora")
    assert found["by_name"]["adapters"] == 0.08 * GB * 16 and any("1 % of the parameters" in note for note in found["notes"])


def test_verdict_against_what_may_be_taken_now(sweep):
    sweep.machine(14 * GB - 4096, total=128 * GIB)
    assert estimate(sweep, "7B,infer")["fits"] is False
    sweep.machine(14 * GB + 4096, total=128 * GIB)
    found = estimate(sweep, "7B,infer")
    assert found["fits"] is True and found["reserve_bytes"] == RESERVE
    assert found["room_bytes"] == found["usable_bytes"] - RESERVE


def test_a_limit_of_the_job_counts(sweep):
    sweep.machine(100 * GIB)
    done = sweep.run("--estimate=7B,infer", SPARKGUARD_LIMIT="10G")
    assert "does not fit: 10.0 GiB may be taken now" in done.stdout


def test_batches_of_a_parameter_have_an_estimate_each(sweep):
    done = sweep.run("--json", f"--estimate=8B,infer,{LLAMA},context=1024", "-p", "batch=1,2")
    needs = [run["estimates"][0]["terms"][1]["bytes"] for run in json.loads(done.stdout)["runs"]]
    assert needs == [CACHE_TOKEN * 1024 * 2, 2 * CACHE_TOKEN * 1024 * 2]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("7B,infer,dtype=fp7", "dtype is one of"), ("7B,infer,kv=", "kv is one of"), ("7B,full,optimizer=adam", "optimizer is one of"),
        ("7B,dtype=fp16", "say full, lora, qlora or infer"), ("7B,sft,lora", "one kind at a time"), ("infer", "how large is the model?"),
        ("7B,infer,layers=-1", "not a model size"), ("7B,infer,layers=1e999", "not a model size"), ("7B,infer,rank", "not a model size"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_told_in_a_line(sweep, text, why):
    done = sweep.run(f"--estimate={text}")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1) and why in done.stderr


def test_enormous_numbers_saturate(sweep):
    done = sweep.run("--estimate=1000000B,infer,layers=1e300,kv_heads=1e300,head_dim=1e300,context=1e9,batch=1")
    assert done.returncode == 0 and "does not fit" in done.stdout


@pytest.mark.parametrize("kind", ["infer", "full", "lora", "qlora"])
def test_golden_terms(sweep, kind):
    sweep.machine(100 * GIB)
    given = f"8B,{kind},{LLAMA},hidden=4096,vocab=128256,seq=1024,batch=4"
    given += ",context=8192,dtype=nvfp4,kv=fp8" if kind == "infer" else ""
    done = sweep.run(f"--estimate={given}")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (GOLDEN / f"estimate_{kind}.txt").read_text()
