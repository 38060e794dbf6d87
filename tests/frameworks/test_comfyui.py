"""A workflow of an image model, as ComfyUI runs them: a refused decoder falls back to tiles."""

import pytest


@pytest.mark.timeout_seconds(400)
@pytest.mark.parametrize("limit, how, refused", [("4G", "whole", False), ("1G", "in tiles", True)])
def test_a_decoder_that_is_refused_works_in_tiles(client, limit, how, refused):
    done = client.example("comfyui/workflow.py", SPARKGUARD_LIMIT=limit)
    assert done.stdout == f"1280x1280 pixels, decoded {how}\n"
    assert (done.process()["refused_count"] > 0) == refused
