"""Hugging Face's Trainer and TRL's SFTTrainer on the CPU: Accelerate's search for a batch takes a refusal for what it is."""

import re

import pytest


@pytest.mark.timeout_seconds(500)
@pytest.mark.parametrize("options, batch", [((), 192), (("--trl",), 16)], ids=["trainer", "trl"])
def test_a_refused_batch_shrinks_until_it_fits(client, options, batch):
    done = client.example("transformers/finetune.py", *options, "--batch", batch, SPARKGUARD_LIMIT="900M")
    steps, found, asked = map(int, re.search(r"(\d+) steps with batch (\d+) of (\d+)", done.stdout).groups())
    assert (steps, asked) == (2, batch) and 1 <= found < batch
    process = done.process()
    assert process["refused_count"] >= 1 and process["exit_code"] == 0
