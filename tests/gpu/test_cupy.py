"""CuPy, which carries a static runtime, on a GPU under the guard."""

import pytest
from gpu import GIB, MIB, find_gpu

pytestmark = [pytest.mark.timeout_seconds(600), pytest.mark.usefixtures("cupy")]

LIMIT = {"SPARKGUARD_LIMIT": "12G"}
LARGE, STEP = 16 * GIB, 512 * MIB


def script(gpu, name, *arguments):
    return gpu.script(name, *arguments, module="cupy")


@pytest.mark.parametrize("kind", ["pool", "async", "plain"])
def test_out_of_memory_is_caught_and_it_goes_on(gpu, note, kind):
    if find_gpu().total_bytes < 20 * GIB:
        pytest.skip("needs a card of 20 GiB")
    done = gpu.values(script(gpu, "cupy_refused.py", kind, LARGE, STEP), **LIMIT)
    device = done.process["domains"]["device"]
    note(blocks_of_512_mib=done.blocks, refused=done.process["refused_count"], device_peak_mib=device["peak_bytes"] // MIB)
    assert (done.large, done.smaller) == ("OutOfMemoryError", "True")
    assert (done.many, done.all_right, done.again) == ("OutOfMemoryError", "True", "True")
    assert 8 * GIB <= done.blocks * STEP <= device["peak_bytes"] <= 12 * GIB
    assert {r["reason"] for r in done.process["refusals"]} == {"limit"} and done.process["unmatched_frees"] == 0


def test_reported_bytes_are_what_its_pool_holds(gpu, note):
    done = gpu.values(script(gpu, "cupy_peak.py"))
    device = done.process["domains"]["device"]
    note(pool_mib=round(done.total / MIB, 2), device_peak_mib=round(device["peak_bytes"] / MIB, 2))
    assert done.kept <= done.total <= device["peak_bytes"] <= done.total + 64 * MIB


def test_computations_give_the_same_bits(gpu):
    said, _ = gpu.same(script(gpu, "cupy_bits.py"))
    assert len(said.splitlines()) == 4
