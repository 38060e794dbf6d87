"""Ends of contexts beside other threads' calls: no byte is lost, and none is invented."""

import pytest
from contexts import BESIDE, FILL, figures

SCRIPT = FILL + BESIDE + """
def retain():
    context = c_void_p()
    ok(cuda.cuDevicePrimaryCtxRetain(byref(context), 0))
    return context
memory = mmap.mmap(-1, MIB)
page = c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(memory)))
out = c_uint64()
TAKE = {
    "cuMemAlloc_v2": lambda: cuda.cuMemAlloc_v2(byref(out), c_size_t(MIB)),
    "cuMemHostAlloc": lambda: cuda.cuMemHostAlloc(byref(out), c_size_t(MIB), c_uint(0)),
    "cuArrayCreate_v2": lambda: cuda.cuArrayCreate_v2(byref(out), byref(Array(1 << 20, 1, 1, 1))),
    "cuMemHostRegister_v2": lambda: cuda.cuMemHostRegister_v2(page, c_size_t(MIB), c_uint(0)),
}
"""
KINDS = ["cuMemAlloc_v2", "cuMemHostAlloc", "cuArrayCreate_v2", "cuMemHostRegister_v2"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("end", ["destroy", "reset", "release"])
def test_allocation_whose_context_ends_before_it_returns_is_gone(sim, kind, end):
    [(said, entry)] = sim.script_points(
        SCRIPT
        + f"""
home = make() if "{end}" == "destroy" else retain()
current(home)
ends = {{"destroy": lambda: cuda.cuCtxDestroy_v2(home), "reset": lambda: cuda.cuDevicePrimaryCtxReset_v2(0), "release": lambda: cuda.cuDevicePrimaryCtxRelease_v2(0)}}
beside("behind", "{kind}", lambda: ok(ends["{end}"]()))
ok(TAKE["{kind}"]())
assert not has_waited()
point()
"""
    )
    assert figures(said, entry) == [0, 0, 0, 0]


@pytest.mark.parametrize("call", ["cuMemAllocAsync", "cuMemFreeAsync"])
def test_block_whose_device_is_reset_and_used_anew_before_it_is_known_is_gone(sim, call):
    """Its pool has other blocks by then, and cannot say of this one that it went."""
    [(said, entry)] = sim.script_points(
        SCRIPT
        + f"""
current(retain())
def allocate():
    result, block = take("cuMemAllocAsync", MIB, None)
    ok(result)
    return block
def work():
    ok(cuda.cuDevicePrimaryCtxReset_v2(0))
    current(retain())
    allocate()
first, second = allocate(), allocate()
beside("behind" if "Alloc" in "{call}" else "inside", "{call}", work)
assert (allocate() if "Alloc" in "{call}" else cuda.cuMemFreeAsync(c_uint64(second), None)) != 0
assert not has_waited()
point(taken=4 if "Alloc" in "{call}" else 3)
"""
    )
    device = entry["domains"]["device"]
    assert (device["allocations"], device["frees"]) == (said.taken, said.taken - 1)
    assert figures(said, entry) == [32, 0, 0, 0] and entry["unmatched_frees"] == 0
    assert [b["count"] for b in entry["blocks"] if b["domain"] == "device"] == [1]


@pytest.mark.parametrize("end", ["reset", "release"])
@pytest.mark.parametrize("used", [0, 1])
def test_pool_that_is_emptied_before_its_new_block_is_known_is_counted_on(sim, end, used):
    """The pool answers that it holds less than the new block, which is gone: that is no driver whose counter stands still."""
    points = sim.script_points(
        SCRIPT
        + f"""
current(retain())
keep = [take("cuMemAllocAsync", MIB, None) for _ in range({used})]
ends = {{"reset": lambda: cuda.cuDevicePrimaryCtxReset_v2(0), "release": lambda: cuda.cuDevicePrimaryCtxRelease_v2(0)}}
beside("behind", "cuMemAllocAsync", lambda: ok(ends["{end}"]()))
take("cuMemAllocAsync", MIB, None)
assert not has_waited()
point()
current(retain())
result, block = take("cuMemAllocAsync", MIB, None)
ok(result)
point()
ok(cuda.cuMemFreeAsync(c_uint64(block), None))
point()
"""
    )
    assert [figures(said, entry) for said, entry in points] == [[0, 0, 0, 0], [32, 0, 0, 0], [32, 0, 0, 0]]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("end", ["destroy", "reset"])
@pytest.mark.parametrize("when", ["inside", "behind"])
def test_allocation_in_a_context_that_is_ending_goes_with_it(sim, kind, end, when):
    """It was not there yet when what was in the context was looked for; behind the end it is refused by the driver."""
    [(said, entry)] = sim.script_points(
        SCRIPT
        + f"""
home = make() if "{end}" == "destroy" else retain()
results = []
def work():
    if cuda.cuCtxSetCurrent(home) == 0:
        results.append(TAKE["{kind}"]())
symbol = "cuCtxDestroy_v2" if "{end}" == "destroy" else "cuDevicePrimaryCtxReset_v2"
beside("{when}", symbol, work)
ok(cuda.cuCtxDestroy_v2(home) if "{end}" == "destroy" else cuda.cuDevicePrimaryCtxReset_v2(0))
assert not has_waited()
point(taken=results.count(0))
"""
    )
    assert figures(said, entry) == [0, 0, 0, 0]
    assert said.taken == (when == "inside")


@pytest.mark.parametrize("symbol", ["cuDevicePrimaryCtxRelease_v2", "cuDevicePrimaryCtxGetState"])
def test_primary_context_that_is_made_anew_beside_its_last_release_keeps_what_is_in_it(sim, symbol):
    """The old one's memory is gone and the new one's is not, wherever in the release the other thread comes."""
    [(said, entry)] = sim.script_points(
        SCRIPT
        + f"""
current(retain())
fill()
def work():
    current(retain())
    fill()
    fill()
beside("behind", "{symbol}", work)
ok(cuda.cuDevicePrimaryCtxRelease_v2(0))
assert not has_waited()
point()
"""
    )
    assert figures(said, entry) == [6, 2, 2, 2]


def test_primary_context_that_ends_beside_a_retain_is_known_to_have(sim):
    """The retain began when it was active, and made a new one."""
    [(said, entry)] = sim.script_points(
        SCRIPT
        + """
current(retain())
fill()
beside("inside", "cuDevicePrimaryCtxRetain", lambda: ok(cuda.cuDevicePrimaryCtxRelease_v2(0)))
current(retain())
fill()
assert not has_waited()
point()
"""
    )
    assert figures(said, entry) == [3, 1, 1, 1]


@pytest.mark.parametrize("is_retained_again", [False, True])
def test_primary_context_that_ends_before_its_retain_returns_is_known_to_have(sim, is_retained_again):
    """Another thread uses it, and lets go of it, while the one that made it is on its way back from the driver."""
    [(said, entry)] = sim.script_points(
        SCRIPT
        + f"""
home = retain()
current(home)
ok(cuda.cuDevicePrimaryCtxRelease_v2(0))
def work():
    current(home)
    fill()
    ok(cuda.cuDevicePrimaryCtxRelease_v2(0))
    if {is_retained_again}:
        current(retain())
        fill()
        fill()
beside("behind", "cuDevicePrimaryCtxRetain", work)
retain()
assert not has_waited()
point()
"""
    )
    assert figures(said, entry) == ([6, 2, 2, 2] if is_retained_again else [0, 0, 0, 0])


def test_pool_of_a_primary_context_that_ends_before_its_retain_returns_is_empty(sim):
    [(said, entry)] = sim.script_points(
        SCRIPT
        + """
home = retain()
current(home)
ok(cuda.cuDevicePrimaryCtxRelease_v2(0))
def work():
    current(home)
    result, block = take("cuMemAllocAsync", MIB, None)
    ok(result)
    ok(cuda.cuDevicePrimaryCtxRelease_v2(0))
beside("behind", "cuDevicePrimaryCtxRetain", work)
retain()
assert not has_waited()
point()
"""
    )
    assert figures(said, entry) == [0, 0, 0, 0]
    assert entry["domains"]["device"]["frees"] == 1


@pytest.mark.parametrize("kind", ["cuMemAlloc_v2", "cuMemHostAlloc"])
def test_allocation_that_finds_a_new_primary_context_is_counted(sim, kind):
    """The one it was asked for in ended, and another thread made a new one, before the driver came to it."""
    points = sim.script_points(
        SCRIPT
        + f"""
current(retain())
fill()
def work():
    ok(cuda.cuDevicePrimaryCtxReset_v2(0))
    retain()
beside("inside", "{kind}", work)
ok(TAKE["{kind}"]())
assert not has_waited()
point()
ok(cuda.cuDevicePrimaryCtxReset_v2(0))
point()
"""
    )
    first, last = [figures(said, entry) for said, entry in points]
    assert first == ([1, 0, 0, 0] if kind == "cuMemAlloc_v2" else [0, 1, 0, 0])
    assert last == [0, 0, 0, 0]


@pytest.mark.parametrize("kind", [*KINDS, "cuMemAllocAsync"])
def test_allocation_that_begins_without_a_context_and_finds_one_lies_in_it(sim, kind):
    """The primary context of its device had ended, and another thread made a new one before the driver came to the call."""
    points = list(sim.script_points(
        SCRIPT
        + f"""
TAKE["cuMemAllocAsync"] = lambda: cuda.cuMemAllocAsync(byref(out), c_size_t(MIB), None)
home = c_void_p()
def retain_second():
    ok(cuda.cuDevicePrimaryCtxRetain(byref(home), 1))
retain_second()
ok(cuda.cuCtxSetCurrent(home))
ok(cuda.cuDevicePrimaryCtxRelease_v2(1))
beside("inside", "{kind}", retain_second)
ok(TAKE["{kind}"]())
assert not has_waited()
point()
ok(cuda.cuDevicePrimaryCtxReset_v2(1))
point()
""",
        SGSIM_DEVICES=2,
    ))
    first, last = [figures(*pair) for pair in points]
    entry = points[-1][1]
    pool = [32, 0, 0, 0]  # what it reserves
    assert first == dict(zip([*KINDS, "cuMemAllocAsync"], [[1, 0, 0, 0], [0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1], pool]))[kind]
    assert last == [0, 0, 0, 0]
    total = [entry["domains"][d] for d in ("device", "pinned")]
    assert sum(d["allocations"] for d in total) == sum(d["frees"] for d in total) == (kind != "cuMemHostRegister_v2")


def test_release_that_is_not_the_last_gives_nothing_back_where_the_driver_does_not_say(sim):
    [(said, entry)] = sim.script_points(
        SCRIPT
        + """
current(retain())
retain()
fill()
fail("cuDevicePrimaryCtxGetState", 1, 999)
ok(cuda.cuDevicePrimaryCtxRelease_v2(0))
point()
"""
    )
    assert figures(said, entry) == [3, 1, 1, 1]


def test_child_forked_while_a_context_ends_knows_of_no_end_under_way(sim):
    """The thread that ends it is not in the child, and its stack may be anything there."""
    said = sim.script(
        FILL
        + """
import os, threading, time
hold, out = os.environ["HOLD"], c_uint64()
context = make()
cuda.sgsim_hold(b"cuCtxDestroy_v2", 1, hold.encode())
def end():
    cuda.cuCtxDestroy_v2(context)
threading.stack_size(256 * MIB)
ending = threading.Thread(target=end)
ending.start()
threading.stack_size(MIB)
while not os.path.exists(hold + ".held"):
    time.sleep(0.001)  # poll: the thread is in the driver
child = os.fork()
if child == 0:
    for i in range(4):  # more than the libc keeps: it unmaps the other's stack
        other = threading.Thread(target=int)
        other.start()
        other.join()
    cuda.cuMemFree_v2(c_uint64(MIB))
    os._exit(0)
status = os.waitpid(child, 0)[1]
open(hold, "w").close()
ending.join()
say(status=status)
""",
        HOLD=sim.scratch / "hold",
    )
    assert said.status == 0
