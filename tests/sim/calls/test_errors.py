"""What the driver itself would refuse is the driver's to answer; what fails counts nothing; what is given back counts off."""

import re
import sys
from pathlib import Path

import pytest
from conftest import MIB, OUT_OF_MEMORY, PRELUDE

INVALID_VALUE, NOT_INITIALIZED, INVALID_CONTEXT, INVALID_HANDLE, ILLEGAL_ADDRESS = 1, 3, 201, 400, 700

# Each would be refused by LIMIT if it were judged.
BAD_CALLS = """
out, pitch = c_uint64(77), c_size_t(0)
o, p = byref(out), byref(pitch)
large = c_size_t(128 * MIB)
bad = {
    "alloc_null": lambda: cuda.cuMemAlloc_v2(None, large),
    "alloc_zero": lambda: cuda.cuMemAlloc_v2(o, c_size_t(0)),
    "pitch_null": lambda: cuda.cuMemAllocPitch_v2(o, None, c_size_t(4096), c_size_t(1 << 15), 4),
    "pitch_element": lambda: cuda.cuMemAllocPitch_v2(o, p, c_size_t(4096), c_size_t(1 << 15), 5),
    "pitch_zero": lambda: cuda.cuMemAllocPitch_v2(o, p, c_size_t(4096), c_size_t(0), 4),
    "managed_flags": lambda: cuda.cuMemAllocManaged(o, large, 0),
    "managed_flags_9": lambda: cuda.cuMemAllocManaged(o, large, 9),
    "host_null": lambda: cuda.cuMemHostAlloc(None, large, 0),
    "host_flags": lambda: cuda.cuMemHostAlloc(o, large, 0x100),
    "async_null": lambda: cuda.cuMemAllocAsync(None, large, None),
    "async_zero": lambda: cuda.cuMemAllocAsync(o, c_size_t(0), None),
    "pool_null": lambda: cuda.cuMemAllocFromPoolAsync(o, large, None, None),
    "create_null_prop": lambda: cuda.cuMemCreate(o, large, None, c_ulonglong(0)),
    "create_size": lambda: cuda.cuMemCreate(o, c_size_t(128 * MIB + 1), byref(ON_DEVICE), c_ulonglong(0)),
    "create_flags": lambda: cuda.cuMemCreate(o, large, byref(ON_DEVICE), c_ulonglong(1)),
    "create_type": lambda: cuda.cuMemCreate(o, large, byref(AllocationProp(9, 0, Location(1, 0))), c_ulonglong(0)),
    "array_null": lambda: cuda.cuArrayCreate_v2(o, None),
    "array_channels": lambda: cuda.cuArrayCreate_v2(o, byref(Array(4096, 1 << 15, 1, 3))),
    "array_width": lambda: cuda.cuArrayCreate_v2(o, byref(Array(0, 1 << 15, 1, 1))),
    "array3d_channels": lambda: cuda.cuArray3DCreate_v2(o, byref(Array3D(4096, 1 << 15, 1, 1, 3, 0))),
}
for name, f in bad.items():
    print(name, f(), out.value, pitch.value)
"""
BAD_NAMES = [line.split('"')[1] for line in BAD_CALLS.splitlines() if "lambda:" in line]


@pytest.fixture
def bad_answers(sim, answers={}):  # made once for all
    """What each bad call answers under the guard and without it."""
    if not answers:
        command = [sys.executable, "-S", "-c", PRELUDE + "start()\n" + BAD_CALLS]
        answers["guarded"], answers["plain"] = sim.run(command, SPARKGUARD_LIMIT="64M"), sim.unguarded(command)
    assert answers["guarded"].returncode == answers["plain"].returncode == 0
    return [{line.split()[0]: line for line in answers[who].stdout.splitlines()} for who in ("guarded", "plain")]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_bad_argument_answers_as_the_driver_does_even_when_it_would_be_refused(bad_answers, name):
    guarded, plain = bad_answers
    assert guarded[name] == plain[name]
    assert plain[name].split()[1] != "0"


SIX = """
def six():
    out, pitch = c_uint64(77), c_size_t(0)
    o = byref(out)
    return (cuda.cuMemAlloc_v2(o, c_size_t(128 * MIB)), cuda.cuMemHostAlloc(o, c_size_t(128 * MIB), 0),
            cuda.cuMemAllocManaged(o, c_size_t(128 * MIB), 1), cuda.cuMemAllocAsync(o, c_size_t(128 * MIB), None),
            cuda.cuArrayCreate_v2(o, byref(Array(4096, 1 << 15, 1, 1))),
            cuda.cuMemAllocPitch_v2(o, byref(pitch), c_size_t(4096), c_size_t(1 << 15), 4))
def create():
    out = c_uint64(77)
    return cuda.cuMemCreate(byref(out), c_size_t(128 * MIB), byref(ON_DEVICE), c_ulonglong(0)), out.value
"""


def test_before_init_and_without_a_context_the_driver_answers(sim):
    done = sim.script(
        SIX
        + """
say(before="-".join(map(str, six())), create_before=create()[0])
ok(cuda.cuInit(0))
say(without="-".join(map(str, six())))
"""
        + "say(taken=live())",
        SPARKGUARD_LIMIT="64M",
    )
    assert done.before == "-".join([str(NOT_INITIALIZED)] * 6) and done.create_before == NOT_INITIALIZED
    assert done.without == "-".join([str(INVALID_CONTEXT)] * 6)
    assert done.taken == 0
    assert "refused" not in done.stderr
    assert done.process is None or done.process["refused_count"] == 0


NO_CONTEXT = "ok(cuda.cuInit(0))"
# Another thread has destroyed it, and it is still this one's current one.
DEAD_CONTEXT = """
import threading
context = c_void_p()
start()
ok(cuda.cuCtxCreate_v2(byref(context), 0, 0))
ender = threading.Thread(target=cuda.cuCtxDestroy_v2, args=[context])
ender.start(); ender.join()
assert cuda.cuCtxGetDevice(byref(c_int())) == 709 # CUDA_ERROR_CONTEXT_IS_DESTROYED
"""


@pytest.mark.parametrize("context", [NO_CONTEXT, DEAD_CONTEXT], ids=["none", "dead"])
def test_memcreate_needs_no_context_and_is_judged_and_counted_without_one(sim, context):
    """cuda.h asks for no current context, and the simulated driver for none."""
    points = sim.script_points(
        SIX
        + context
        + """
h = c_uint64()
say(large=create()[0], small=cuda.cuMemCreate(byref(h), c_size_t(4 * MIB), byref(ON_DEVICE), c_ulonglong(0)))
quiet()
ok(cuda.cuMemRelease(h))
quiet()
""",
        SPARKGUARD_LIMIT="64M",
    )
    (said, held), (_, after) = points
    assert (said.large, said.small) == (OUT_OF_MEMORY, 0)
    assert held["domains"]["device"]["live_bytes"] == 4 * MIB
    assert after["domains"]["device"]["live_bytes"] == 0
    assert [r["domain"] for r in after["refusals"]] == ["device"]

def test_dead_context_makes_a_default_stream_the_drivers_to_answer(sim):
    done = sim.script(
        DEAD_CONTEXT
        + """
pool, out = c_void_p(), c_uint64()
ok(cuda.cuDeviceGetDefaultMemPool(byref(pool), 0))
say(current=take("cuMemAllocAsync", 128 * MIB, None)[0], ptsz=take("cuMemAllocAsync_ptsz", 128 * MIB, c_void_p(2))[0])
say(named=cuda.cuMemAllocFromPoolAsync(byref(out), c_size_t(128 * MIB), pool, None))
""",
        SPARKGUARD_LIMIT="64M",
    )
    assert (done.current, done.ptsz, done.named) == (709, 709, 709)
    assert done.process["refused_count"] == 0



@pytest.mark.parametrize("code", [ILLEGAL_ADDRESS, 719, 999, 4, OUT_OF_MEMORY])
def test_driver_error_passes_through_and_counts_nothing(sim, code):
    done = sim.script(
        f"""
start()
names = "cuMemAlloc_v2 cuMemAllocManaged cuMemHostAlloc cuMemAllocAsync cuMemCreate cuArrayCreate_v2 cuMemAllocPitch_v2".split()
for name in names:
    fail(name, -1, {code})
out, pitch = c_uint64(77), c_size_t(7)
o, n = byref(out), c_size_t(MIB)
answers = [cuda.cuMemAlloc_v2(o, n), cuda.cuMemAllocManaged(o, n, 1), cuda.cuMemHostAlloc(o, n, 0), cuda.cuMemAllocAsync(o, n, None),
           cuda.cuMemCreate(o, c_size_t(2 * MIB), byref(ON_DEVICE), c_ulonglong(0)), cuda.cuArrayCreate_v2(o, byref(Array(64, 64, 1, 1))),
           cuda.cuMemAllocPitch_v2(o, byref(pitch), c_size_t(4096), c_size_t(16), 4)]
say(answers="-".join(map(str, answers)), out=out.value, pitch=pitch.value)
for name in names:
    fail(name, 0)
say(after=cuda.cuMemAlloc_v2(o, n))
ok(cuda.cuMemFree_v2(out))
""",
    )
    assert done.answers == "-".join([str(code)] * 7)
    assert (done.out, done.pitch, done.after) == (77, 7, 0)
    assert done.stderr == ""
    domains = done.process["domains"]
    assert domains["device"] == {"live_bytes": 0, "peak_bytes": MIB, "allocations": 1, "frees": 1, "refused_count": 0}
    assert domains["pinned"]["allocations"] == domains["managed"]["allocations"] == 0
    assert done.process["refusals"] == []


@pytest.mark.parametrize("code", [ILLEGAL_ADDRESS, 710, 719])
def test_dead_context_is_told_so_and_not_that_memory_is_short(sim, code):
    """What a kernel left behind is what every call answers, the refused ones too; it is asked for before a refusal only."""
    done = sim.script(
        SIX
        + f"""
start()
give(take("cuMemAlloc_v2", MIB)[1])
say(unasked=calls("cuStreamIsCapturing"))
cuda.sgsim_break({code})
say(dead="-".join(map(str, six())), create=create()[0], small=take("cuMemAlloc_v2", MIB)[0], asked=calls("cuStreamIsCapturing"))
ok(cuda.cuDevicePrimaryCtxReset_v2(0))
start()
say(alive=take("cuMemAlloc_v2", 128 * MIB)[0], fits=take("cuMemAlloc_v2", MIB)[0])
cuda.sgsim_fail(b"cuStreamIsCapturing", -1, 906)
say(captured=take("cuMemAlloc_v2", 128 * MIB)[0])
""",
        SPARKGUARD_LIMIT="64M",
    )
    assert done.dead == "-".join([str(code)] * 6) and done.create == done.small == code
    assert (done.unasked, done.asked) == (0, 7), "once for each that would be refused, and once for the stream that memory is ordered in"
    assert (done.alive, done.captured, done.fits) == (OUT_OF_MEMORY, OUT_OF_MEMORY, 0)
    assert len(done.process["refusals"]) == done.process["refused_count"] == 2
    assert done.process["domains"]["device"]["live_bytes"] == MIB


def test_failure_leaves_nothing_in_flight(sim):
    """After a thousand failed requests of 40 MiB, one of 40 MiB still fits into 64."""
    done = sim.script(
        """
start()
fail("cuMemAlloc_v2", -1, 700)
for _ in range(1000):
    assert take("cuMemAlloc_v2", 40 * MIB)[0] == 700
fail("cuMemAlloc_v2", 0)
say(fits=take("cuMemAlloc_v2", 40 * MIB)[0], over=take("cuMemAlloc_v2", 40 * MIB)[0])
""",
        SPARKGUARD_LIMIT="64M",
    )
    assert (done.fits, done.over) == (0, OUT_OF_MEMORY)


FREES = {
    "cuMemFree_v2": ("device", "take('cuMemAlloc_v2', 2 * MIB)", "cuMemFree_v2"),
    "cuMemFreeHost": ("pinned", "take('cuMemHostAlloc', 2 * MIB, 0)", "cuMemFreeHost"),
    "managed": ("managed", "take('cuMemAllocManaged', 2 * MIB, 1)", "cuMemFree_v2"),
    "cuMemRelease": ("device", "take('cuMemCreate', 2 * MIB, byref(ON_DEVICE), c_ulonglong(0))", "cuMemRelease"),
    "cuArrayDestroy": ("device", "(cuda.cuArrayCreate_v2(byref(o := c_uint64()), byref(Array(1 << 20, 2, 1, 1))), o.value)", "cuArrayDestroy"),
}


@pytest.mark.parametrize("name", FREES)
def test_failing_free_puts_the_entry_back(sim, name):
    domain, take, free = FREES[name]
    points = sim.script_points(
        f"""
start()
result, p = {take}
ok(result)
fail("{free}", 1, 700)
say(failed=cuda.{free}(c_uint64(p)))
quiet()
say(freed=cuda.{free}(c_uint64(p)))
quiet()
say(again=cuda.{free}(c_uint64(p)))
quiet()
"""
    )
    (one, kept), (two, gone), (three, still) = points
    assert (one.failed, two.freed) == (700, 0) and three.again in (INVALID_VALUE, INVALID_HANDLE)
    counts = [entry["domains"][domain] for entry in (kept, gone, still)]
    assert [(c["live_bytes"], c["allocations"], c["frees"]) for c in counts] == [(2 * MIB, 1, 0), (0, 1, 1), (0, 1, 1)]
    assert still["unmatched_frees"] == 0


def test_failing_unmap_and_async_free_change_nothing(sim):
    points = sim.script_points(
        """
start()
ok(take("cuMemAllocAsync", 2 * MIB, None)[0])
p = take("cuMemAllocAsync", 2 * MIB, None)[1]
a, h = c_uint64(), c_uint64()
ok(cuda.cuMemCreate(byref(h), c_size_t(2 * MIB), byref(ON_HOST), c_ulonglong(0)))
ok(cuda.cuMemAddressReserve(byref(a), c_size_t(2 * MIB), c_size_t(0), c_uint64(0), c_ulonglong(0)))
ok(cuda.cuMemMap(a, c_size_t(2 * MIB), c_size_t(0), h, c_ulonglong(0)))
ok(cuda.cuMemRelease(h))
fail("cuMemUnmap", 1, 700)
fail("cuMemFreeAsync", 1, 700)
say(unmap=cuda.cuMemUnmap(a, c_size_t(2 * MIB)), free=cuda.cuMemFreeAsync(c_uint64(p), None))
quiet()
say(unmap=cuda.cuMemUnmap(a, c_size_t(2 * MIB)), free=cuda.cuMemFreeAsync(c_uint64(p), None))
quiet()
"""
    )
    (one, kept), (two, gone) = points
    assert (one.unmap, one.free, two.unmap, two.free) == (700, 700, 0, 0)
    assert (kept["domains"]["pinned"]["live_bytes"], gone["domains"]["pinned"]["live_bytes"]) == (2 * MIB, 0)
    assert (kept["domains"]["device"]["frees"], gone["domains"]["device"]["frees"]) == (0, 1)


def test_unknown_pointers_are_forwarded(sim):
    done = sim.script(
        """
start()
p = take("cuMemAlloc_v2", 2 * MIB)[1]
say(null=cuda.cuMemFree_v2(c_uint64(0)), wild=cuda.cuMemFree_v2(c_uint64(0x1234000)), middle=cuda.cuMemFree_v2(c_uint64(p + 512)))
say(host=cuda.cuMemFreeHost(c_uint64(0x1234000)), asynchronous=cuda.cuMemFreeAsync(c_uint64(p), None), wrong=cuda.cuMemFreeHost(c_uint64(p)))
say(array=cuda.cuArrayDestroy(c_uint64(0x1234000)), handle=cuda.cuMemRelease(c_uint64(0x1234000)))
say(unmap=cuda.cuMemUnmap(c_uint64(0x40000000), c_size_t(2 * MIB)), highest=cuda.cuMemFree_v2(c_uint64(2**64 - 1)))
say(calls=calls("cuMemFree_v2"))
"""
    )
    assert (done.null, done.wild, done.middle, done.host, done.asynchronous, done.wrong) == (INVALID_VALUE,) * 6
    assert (done.array, done.handle, done.unmap, done.highest) == (INVALID_HANDLE, INVALID_VALUE, INVALID_VALUE, INVALID_VALUE)
    assert done.calls == 4
    device = done.process["domains"]["device"]
    assert (device["live_bytes"], device["frees"]) == (2 * MIB, 0)


def test_driver_out_of_memory_is_the_drivers_own(sim):
    done = sim.script(
        """
start()
results = [take("cuMemAlloc_v2", 30 * MIB)[0] for _ in range(4)]
say(results="-".join(map(str, results)), calls=calls("cuMemAlloc_v2"))
""",
        SGSIM_MEMORY="100M",
    )
    assert (done.results, done.calls) == ("0-0-0-2", 4)
    assert done.stderr == ""
    assert done.process["refused_count"] == 0
    assert done.process["domains"]["device"]["live_bytes"] == 90 * MIB


def test_pointer_reused_after_a_context_was_reset_is_counted_as_new(sim):
    """What a reset gives back we do not see; the same address given out again must not be counted twice."""
    done = sim.script(
        """
start()
first = take("cuMemAlloc", MIB)[1] & 0xffffffff
ok(cuda.cuDevicePrimaryCtxReset_v2(0))
start()
second = take("cuMemAlloc", MIB)[1] & 0xffffffff
say(same=first == second, taken=live())
""",
    )
    assert done.same == "True" and done.taken == MIB
    assert done.process["domains"]["device"]["live_bytes"] == MIB


def test_deferred_and_sparse_arrays_take_nothing(sim):
    done = sim.script(
        """
start()
a = c_uint64()
for flags in 0x40, 0x80:
    ok(cuda.cuArray3DCreate_v2(byref(a), byref(Array3D(4096, 1 << 15, 0, 1, 1, flags))))
say(taken=live())
""",
        SPARKGUARD_LIMIT="64M",
    )
    assert done.taken == 0
    assert done.process is None or done.process["domains"]["device"]["live_bytes"] == 0


@pytest.mark.parametrize("width, height, channels, fmt, size", [(100, 7, 4, 0x20, 100 * 7 * 16), (33, 0, 2, 0x10, 33 * 4), (5, 5, 1, 1, 25)])
def test_array_is_charged_what_its_shape_takes(sim, width, height, channels, fmt, size):
    done = sim.script(
        f"""
start()
a = c_uint64()
ok(cuda.cuArrayCreate_v2(byref(a), byref(Array({width}, {height}, {fmt}, {channels}))))
say(taken=live("array"))
"""
    )
    assert done.taken == size == done.process["domains"]["device"]["live_bytes"]


def test_pitched_memory_is_charged_what_the_driver_chose(sim):
    done = sim.script(
        """
start()
p, pitch = c_uint64(), c_size_t()
ok(cuda.cuMemAllocPitch_v2(byref(p), byref(pitch), c_size_t(1025), c_size_t(1000), 4))
say(pitch=pitch.value, taken=live())
"""
    )
    assert (done.pitch, done.taken) == (1536, 1536 * 1000)
    assert done.process["domains"]["device"]["live_bytes"] == 1536 * 1000


def test_errno_and_dlerror_stay_as_they_were(sim):
    done = sim.script(
        """
libc = ctypes.CDLL(None, use_errno=True)
cuda = ctypes.CDLL("libcuda.so.1", use_errno=True)
libc.dlerror.restype = libc.dlsym.restype = ctypes.c_char_p
start()
ctypes.set_errno(33)
for size in MIB, 128 * MIB:
    take("cuMemAlloc_v2", size)
    say(**{f"errno_{size // MIB}": ctypes.get_errno()})
libc.dlsym(None, b"no_such_function_at_all")
take("cuMemAlloc_v2", MIB)
say(error=libc.dlerror().decode().count("no_such_function_at_all"))
""",
        SPARKGUARD_LIMIT="64M",
    )
    assert (done.errno_1, done.errno_128, done.error) == (33, 33, 1)


# ---- before cuInit ------------------------------------------------------------------------------------------------

WILD = """
for name in sys.argv[1].split(","):
    print(name, "is called", flush=True)
    result = getattr(cuda, name)(*[c_void_p(8)] * 6)
    print(name, result)
"""


def test_wild_pointers_before_cuinit_get_the_drivers_own_error(sim):
    """The driver looks at no argument before it is initialised, so the guard may not, either."""
    text = (Path(__file__).resolve().parents[3] / "preload" / "guard" / "hooks" / "hooks.def").read_text()
    names = [name for name in re.findall(r"^SG_HOOK_DRIVER\((\w+),", text, re.MULTILINE) if not name.startswith("cuGetProcAddress")]
    script = [sys.executable, "-S", "-c", PRELUDE + WILD, ",".join(names)]
    plain, guarded = sim.unguarded(script), sim.run(script)
    assert plain.returncode == 0 and len(names) > 70
    assert (guarded.returncode, guarded.stdout) == (0, plain.stdout), guarded.stdout[-200:]
