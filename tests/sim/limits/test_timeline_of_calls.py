"""What the time line shows while the driver takes memory: each byte once."""

import struct

from conftest import GIB

HEAD_BYTES, SAMPLE_BYTES = 64, 96  # struct sg_timeline, struct sg_sample


def test_context_is_not_short_twice(sim):
    """When the call returns, the kernel shows what the context took, and its request is in flight still."""
    variables = {"SGSIM_KIND": "gb10", "SGSIM_CONTEXT": GIB, "SPARKGUARD_RESERVE": GIB}
    sim.script("start()", **sim.machine(8 * GIB) | variables)
    [path] = sim.guard.directory.glob("*.timeline")
    data = path.read_bytes()
    count = struct.unpack_from("I", data, 12)[0]
    usable = [struct.unpack_from("qQ", data, HEAD_BYTES + SAMPLE_BYTES * i)[1] for i in range(count)]
    assert count > 0 and min(usable) > 7 * GIB - GIB // 4
