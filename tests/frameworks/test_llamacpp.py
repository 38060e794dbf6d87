"""llama.cpp (xllamacpp) with a tiny model of random weights: a context that does not fit is refused, and a smaller one is used."""

import os
import re
import subprocess

import pytest


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    subprocess.run([os.environ["FRAMEWORK_PYTHON"], "scripts/examples/llamacpp/tiny_model.py", path], check=True)
    return path


@pytest.mark.timeout_seconds(400)
def test_the_largest_context_is_found(client, model):
    done = client.example("llamacpp/generate.py", model, 1000000, SPARKGUARD_LIMIT="600M")
    assert re.findall(r"a context of (\d+) tokens: (\w+)", done.stdout) == [("1000000", "refused"), ("500000", "refused"), ("250000", "fits")]
    assert "completion tokens:" in done.stdout
    process = done.process()
    assert process["refused_count"] >= 2 and {refusal["reason"] for refusal in process["refusals"]} == {"limit"}


@pytest.mark.timeout_seconds(400)
def test_without_a_limit_nothing_is_refused(client, model):
    done = client.example("llamacpp/generate.py", model, 4096)
    assert "a context of 4096 tokens: fits" in done.stdout and done.process()["refused_count"] == 0
