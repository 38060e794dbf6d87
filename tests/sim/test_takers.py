"""The rarer takers of memory: each is counted to the byte, refused as out of memory, and gives all back."""

import pytest
from conftest import MIB, OUT_OF_MEMORY


def live(entry, domain="device"):
    return entry["domains"][domain]["live_bytes"]


# ---- mipmapped arrays ---------------------------------------------------------------------------------------------

MIPMAPPED = """
start()
def mipmapped(levels, *shape):
    array = c_uint64(77)
    result = cuda.cuMipmappedArrayCreate(byref(array), byref(Array3D(*shape)), c_uint(levels))
    return result, array.value
def destroy(array):
    return cuda.cuMipmappedArrayDestroy(c_uint64(array))
"""
LAYERED, SPARSE, DEFERRED = 0x01, 0x40, 0x80


@pytest.mark.parametrize(
    "levels, shape, size",
    [
        (1, (1024, 1024, 0, 0x20, 4, 0), 16 * MIB),
        (3, (1024, 1024, 0, 0x20, 4, 0), 21 * MIB),
        (3, (64, 64, 64, 0x20, 1, 0), 4 * (64**3 + 32**3 + 16**3)),
        (99, (1024, 4, 0, 1, 1, 0), 4096 + 1024 + 256 + 128 + 64 + 32 + 16 + 8 + 4 + 2 + 1),
        (2, (512, 512, 6, 1, 1, LAYERED), 6 * (512**2 + 256**2)),
        (2, (512, 512, 0, 1, 1, SPARSE), 0),
        (2, (512, 512, 0, 1, 1, DEFERRED), 0),
    ],
)
def test_mipmapped_array_counts_all_its_levels(sim, levels, shape, size):
    levels = min(levels, 32)
    points = sim.script_points(
        MIPMAPPED
        + f"""
result, array = mipmapped({levels}, {", ".join(map(str, shape))})
ok(result)
quiet(array=live("array"))
ok(destroy(array))
quiet(array=live("array"))
"""
    )
    assert [(said.array, live(entry)) for said, entry in points] == [(size, size), (0, 0)]


def test_refused_mipmapped_array_answers_as_out_of_memory(sim):
    """128 MiB at its first level alone; 42 MiB fit, and those below the limit are counted once."""
    done = sim.script(
        MIPMAPPED
        + """
say(large=mipmapped(1, 4096, 4096, 0, 1, 8, 0)[0], bad=mipmapped(0, 4096, 4096, 0, 1, 4, 0)[0])
result, array = mipmapped(2, 4096, 4096, 0, 1, 4, 0)
say(refused=result, out=array, reached=calls("cuMipmappedArrayCreate"))
result, array = mipmapped(2, 4096, 2048, 0, 1, 4, 0)
say(small=result, held=live("array"))
fail("cuMipmappedArrayDestroy", 1, 700)
say(failed=destroy(array), still=live("array"))
""",
        SPARKGUARD_LIMIT="64M",
    )
    assert (done.large, done.bad) == (1, 1), "bad arguments are the driver's to judge"
    assert (done.refused, done.out, done.reached) == (OUT_OF_MEMORY, 77, 2)
    assert (done.small, done.held, done.failed, done.still) == (0, 40 * MIB, 700, 40 * MIB)
    [refusal] = done.process["refusals"]
    assert (refusal["call"], refusal["domain"], refusal["size_bytes"]) == ("cuMipmappedArrayCreate", "device", 80 * MIB)
    device = done.process["domains"]["device"]
    assert (device["live_bytes"], device["allocations"], device["frees"]) == (40 * MIB, 1, 0)
    assert done.process["unmatched_frees"] == 0


# ---- registered memory --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["cuMemHostRegister", "cuMemHostRegister_v2"])
def test_registered_memory_is_shown_and_not_counted_again(sim, call):
    points = sim.script_points(
        f"""
import mmap
start()
memory = mmap.mmap(-1, 8 * MIB)
address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
def register(offset, size):
    return cuda.{call}(c_void_p(address + offset), c_size_t(size), c_uint(0))
def unregister(offset):
    return cuda.cuMemHostUnregister(c_void_p(address + offset))
def point(**pairs):
    quiet(registered=live("registered"), **pairs)
point()
ok(register(0, 2 * MIB)); ok(register(4 * MIB, 3 * MIB))
point(again=register(0, MIB))
fail("cuMemHostUnregister", 1, 700)
point(failed=unregister(0), unknown=unregister(MIB))
ok(unregister(0))
point()
ok(unregister(4 * MIB))
point()
""",
        SPARKGUARD_LIMIT="64M",
    )
    points = list(points)
    figures = [(said.registered, entry["registered_bytes"]) for said, entry in points]
    assert figures == [(0, 0), (5 * MIB, 5 * MIB), (5 * MIB, 5 * MIB), (3 * MIB, 3 * MIB), (0, 0)]
    assert (points[1][0].again, points[2][0].failed) == (712, 700)
    assert {entry["domains"]["pinned"]["live_bytes"] for _, entry in points} == {0}
    assert points[-1][1]["unmatched_frees"] == 0
