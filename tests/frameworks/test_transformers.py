import re

import pytest


@pytest.mark.timeout_seconds(500)
@pytest.mark.parametrize("options, batch", [((), 192), (("--trl",), 32)], ids=["trainer", "trl"])
def test_a_refused_batch_goes_on_in_parts_that_fit(client, options, batch):
    done = client.example("transformers/finetune.py", *options, "--batch", batch, SPARKGUARD_LIMIT="900M")
    steps, asked, part, repeated = map(int, re.search(r"(\d+) steps of (\d+), (\d+) at a time, (\d) repeated", done.stdout).groups())
    assert (steps, asked) == (2, batch) and 1 <= part < batch and 1 <= repeated <= 2
    process = done.process()
    assert process["refused_count"] >= 1 and process["exit_code"] == 0
