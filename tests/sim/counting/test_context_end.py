"""What ends a context gives back all that was allocated in it, and nothing else; its pointers are nobody's any more."""

import pytest
from conftest import MIB
from contexts import BESIDE, FILL, figures


@pytest.mark.parametrize("create", ["cuCtxCreate", "cuCtxCreate_v2", "cuCtxCreate_v3", "cuCtxCreate_v4", "cuGLCtxCreate_v2", "cuVDPAUCtxCreate_v2"])
@pytest.mark.parametrize("destroy", ["cuCtxDestroy", "cuCtxDestroy_v2", "cuCtxDetach"])
def test_destroyed_context_gives_back_what_was_allocated_in_it(sim, create, destroy):
    points = sim.script_points(
        FILL
        + f"""
first = make("{create}")
a = fill(); outlive()
second = make()
b = fill()
point()
current(first)
fail("{destroy}", 1, 700)
call("{destroy}", first)
point()
ok(call("{destroy}", first))
point()
current(second)
for p in a:
    assert cuda.cuMemFree_v2(c_uint64(p)) != 0 and cuda.cuMemFreeHost(c_uint64(p)) != 0
point()
ok(cuda.cuCtxDestroy_v2(second))
point()
"""
    )
    both, one, none = [40, 2, 2, 2], [37, 1, 1, 1], [34, 0, 0, 0]
    points = list(points)
    assert [figures(*point) for point in points] == [both, both, one, one, none]
    domains = points[-1][1]["domains"]
    assert [domains[d]["allocations"] - domains[d]["frees"] for d in ("device", "pinned", "managed")] == [2, 0, 0]


def test_attached_context_goes_with_its_last_user(sim):
    points = sim.script_points(
        FILL
        + """
context, same = make(), c_void_p()
fill()
ok(cuda.cuCtxAttach(byref(same), 0))
ok(cuda.cuCtxDetach(context))
point()
ok(cuda.cuCtxDetach(context))
point()
"""
    )
    assert [figures(*point) for point in points] == [[3, 1, 1, 1], [0, 0, 0, 0]]


def test_context_goes_with_its_last_user_whichever_of_two_that_is(sim):
    """Both were other than the last when they began."""
    [(said, entry)] = sim.script_points(
        FILL
        + BESIDE
        + """
context, same = make(), c_void_p()
fill()
ok(cuda.cuCtxAttach(byref(same), 0))
def detach():
    current(context)
    ok(cuda.cuCtxDetach(context))
beside("inside", "cuCtxDetach", detach)
ok(cuda.cuCtxDetach(context))
assert not has_waited()
point()
"""
    )
    assert figures(said, entry) == [0, 0, 0, 0]


def test_detach_that_fails_leaves_the_context_its_users(sim):
    points = sim.script_points(
        FILL
        + """
context, same = make(), c_void_p()
fill()
ok(cuda.cuCtxAttach(byref(same), 0))
for _ in range(2):
    fail("cuCtxDetach", 1, 700)
    assert cuda.cuCtxDetach(context) == 700
    point()
    ok(cuda.cuCtxDetach(context))
    point()
"""
    )
    assert [figures(*point) for point in points] == [[3, 1, 1, 1]] * 3 + [[0, 0, 0, 0]]


def test_memory_registered_again_after_its_context_counts_once(sim):
    """Contexts from the 31st on share a slot: what was in the one that ended stays entered until the last of them ends."""
    [(said, entry)] = sim.script_points(
        FILL
        + """
contexts = []
for _ in range(32):
    contexts.append(make())
    current(None)
current(contexts[-1])
def register():
    ok(cuda.cuMemHostRegister_v2(c_void_p(base), c_size_t(MIB), c_uint(0)))
register()
ok(cuda.cuCtxDestroy_v2(contexts[-1]))
current(contexts[-2])
register()
point()
"""
    )
    assert figures(said, entry) == [0, 0, 0, 1]


@pytest.mark.parametrize("reset", ["cuDevicePrimaryCtxReset", "cuDevicePrimaryCtxReset_v2"])
def test_reset_device_gives_back_its_primary_context_its_pools_and_its_graphs(sim, reset):
    """But not what is in other contexts and on other devices; the pools may be used anew."""
    points = sim.script_points(
        FILL
        + f"""
start(1)
fill()
own = make()
fill()
pool, lost, p = c_void_p(), c_void_p(), c_uint64()
start()
fill(); block = outlive()
for which in pool, lost:
    ok(cuda.cuMemPoolCreate(byref(which), byref(PoolProps(1, 0, Location(1, 0)))))
    ok(cuda.cuMemAllocFromPoolAsync(byref(p), c_size_t(40 * MIB), which, None))
ok(cuda.cuMemPoolDestroy(lost))
point()
fail("{reset}", 1, 700)
call("{reset}", 0)
point()
ok(call("{reset}", 0))
point()
start()
ok(cuda.cuMemAllocFromPoolAsync(byref(p), c_size_t(40 * MIB), pool, None))
assert cuda.cuMemFree_v2(c_uint64(block)) != 0
point()
ok(cuda.cuMemFreeAsync(p, None))
ok(cuda.cuMemPoolDestroy(pool))
point()
""",
        SGSIM_DEVICES="2",
        SGSIM_KIND="discrete",
    )
    before = [9 + 2 + 32 + 80, 3, 3, 3]
    assert [figures(*point) for point in points] == [before, before, [8, 2, 2, 2], [48, 2, 2, 2], [8, 2, 2, 2]]


@pytest.mark.parametrize("devices, last, left", [(8, 7, 0), (9, 7, 2 * MIB), (9, 8, 2 * MIB)])
def test_eighth_device_gives_back_unless_it_stands_for_more(sim, devices, last, left):
    """The guard tells seven devices and the rest apart."""
    done = sim.script(
        f"""
for device in range({devices}):
    start(device)
    ok(take("cuMemAlloc_v2", MIB)[0])
for device in range(7):
    ok(cuda.cuDevicePrimaryCtxReset_v2(device))
ok(cuda.cuDevicePrimaryCtxReset_v2({last}))
say(held=live())
""",
        SGSIM_DEVICES=str(devices),
    )
    assert done.process["domains"]["device"]["live_bytes"] == left
    assert done.held == (devices - 8) * MIB


@pytest.mark.parametrize("release", ["cuDevicePrimaryCtxRelease", "cuDevicePrimaryCtxRelease_v2"])
def test_primary_context_gives_back_with_its_last_release(sim, release):
    points = sim.script_points(
        FILL
        + f"""
start(); start()
fill()
ok(call("{release}", 0))
point()
ok(call("{release}", 0))
point()
call("{release}", 0)
start()
fill()
call("{release}", 1)
point()
"""
    )
    assert [figures(*point) for point in points] == [[3, 1, 1, 1], [0, 0, 0, 0], [3, 1, 1, 1]]


ALL = BESIDE + """
def of(context, work):
    def run():
        ok(cuda.cuCtxSetCurrent(context))
        work()
    return run
def own():
    return make(), "cuCtxDestroy_v2"
def primary():
    start()
    context = c_void_p()
    ok(cuda.cuCtxGetCurrent(byref(context)))
    return context, "cuDevicePrimaryCtxReset_v2"
def end(context, call_):
    return call(call_, context if call_ == "cuCtxDestroy_v2" else 0)
"""


def test_many_contexts_one_after_the_other(sim):
    """Slots are used again; what is in the contexts that have to share one stays counted until the last of those ends."""
    points = sim.script_points(
        FILL
        + """
for _ in range(100):
    context = make()
    take("cuMemAlloc_v2", MIB)
    ok(cuda.cuCtxDestroy_v2(context))
quiet()
contexts = []
for _ in range(20):
    contexts.append(make())
    take("cuMemAlloc_v2", MIB)
for context in contexts:
    ok(cuda.cuCtxDestroy_v2(context))
quiet()
"""
    )
    assert [entry["domains"]["device"]["live_bytes"] for _, entry in points] == [0, 0]
    points = sim.script_points(
        FILL
        + ALL
        + """
start()
contexts = []
def work():
    for _ in range(20):
        contexts.append(make()); ok(take("cuMemAlloc_v2", MIB)[0])
    start(); ok(take("cuMemAlloc_v2", MIB)[0])
for _ in range(5):
    t = threading.Thread(target=work); t.start(); t.join()
quiet(held=live())
ok(cuda.cuDevicePrimaryCtxReset_v2(0))
quiet(held=live())
for context in contexts[25:-2]:
    fail("cuCtxDestroy_v2", 1, 700)
    assert cuda.cuCtxDestroy_v2(context) == 700
    ok(cuda.cuCtxDestroy_v2(context))
beside("inside", "cuCtxDestroy_v2", lambda: ok(cuda.cuCtxDestroy_v2(contexts[-2]))) # the last two that share a slot
ok(cuda.cuCtxDestroy_v2(contexts[-1]))
quiet(held=live())
again = make(); fill()
for context in again, *contexts[:25]:
    ok(cuda.cuCtxDestroy_v2(context))
quiet(held=live())
"""
    )
    points = list(points)
    assert [said.held // MIB for said, _ in points] == [105, 100, 25, 0]
    assert [entry["domains"]["device"]["live_bytes"] // MIB for _, entry in points] == [105, 100, 25, 0]
    assert {entry["unmatched_frees"] for _, entry in points} == {0}


@pytest.mark.parametrize("kind", ["own", "primary"])
def test_what_is_freed_while_its_context_fails_to_end_is_gone_once(sim, kind):
    points = sim.script_points(
        FILL
        + ALL
        + f"""
context, ender = {kind}()
taken = fill()
array = c_uint64()
ok(cuda.cuArrayCreate_v2(byref(array), byref(Array(1 << 20, 1, 1, 1))))
def free():
    ok(cuda.cuMemFree_v2(c_uint64(taken[0]))); ok(cuda.cuMemFree_v2(c_uint64(taken[1]))); ok(cuda.cuMemFreeHost(c_uint64(taken[2])))
    ok(cuda.cuArrayDestroy(array)); ok(cuda.cuMemHostUnregister(c_void_p(base)))
    ok(take("cuMemAlloc_v2", MIB)[0])
point()
beside("inside", ender, of(context, free))
fail(ender, 1, 700)
assert end(context, ender) == 700
point()
ok(end(context, ender))
point()
"""
    )
    assert [figures(*point) for point in points] == [[4, 1, 1, 1], [3, 0, 0, 0], [0, 0, 0, 0]]


@pytest.mark.parametrize("kind", ["own", "primary"])
def test_free_that_fails_since_its_context_ended_meanwhile_invents_nothing(sim, kind):
    points = sim.script_points(
        FILL
        + ALL
        + f"""
context, ender = {kind}()
first, second, third = fill()
point()
beside("inside", "cuMemFree_v2", lambda: ok(end(context, ender)))
assert cuda.cuMemFree_v2(c_uint64(first)) != 0
point()
context, ender = {kind}()
first, second, third = fill()
beside("inside", "cuMemFreeHost", lambda: (fail(ender, 1, 700), end(context, ender)))
fail("cuMemFreeHost", 1, 700)
assert cuda.cuMemFreeHost(c_uint64(third)) == 700
point()
ok(cuda.cuMemFreeHost(c_uint64(third)))
def failing():
    fail("cuMemFree_v2", 1, 700)
    assert cuda.cuMemFree_v2(c_uint64(first)) == 700
beside("inside", ender, of(context, failing))
ok(end(context, ender))
point()
"""
    )
    assert [figures(*point) for point in points] == [[3, 1, 1, 1], [0, 0, 0, 0], [3, 1, 1, 1], [0, 0, 0, 0]]


@pytest.mark.parametrize("kind", ["own", "primary"])
@pytest.mark.parametrize("is_ended", [False, True])
def test_failing_free_outlasts_the_end_of_its_context(sim, kind, is_ended):
    """It begins while the context is ending and answers after that has failed, or not."""
    until = str(sim.scratch / "until")
    points = sim.script_points(
        FILL
        + ALL
        + f"""
import os, time
context, ender = {kind}()
taken = fill()
cuda.sgsim_hold(b"cuMemFree_v2", 1, {until!r}.encode())
fail("cuMemFree_v2", 1, 700)
free = threading.Thread(target=of(context, lambda: cuda.cuMemFree_v2(c_uint64(taken[0]))))
def begin():
    free.start()
    while not os.path.exists({until!r} + ".held"):
        time.sleep(0.001)  # poll: the thread is in the driver
beside("inside", ender, begin)
fail(ender, {0 if is_ended else 1}, 700)
assert (end(context, ender) == 0) is {is_ended}
open({until!r}, "w").close()
free.join()
point()
if not {is_ended}:
    ok(cuda.cuMemFree_v2(c_uint64(taken[0])))
    ok(end(context, ender))
point()
"""
    )
    assert [figures(*point) for point in points] == [[0, 0, 0, 0] if is_ended else [3, 1, 1, 1], [0, 0, 0, 0]]


def test_process_without_contexts_of_its_own_is_not_asked_for_the_current_one(sim):
    done = sim.script("start()\nfor _ in range(10):\n    take('cuMemAlloc_v2', MIB)\nsay(asked=calls('cuCtxGetCurrent'))")
    assert done.asked == 0


@pytest.mark.parametrize(
    "call", ["cuDevicePrimaryCtxReset(0)", "cuDevicePrimaryCtxReset_v2(0)", "cuDevicePrimaryCtxRetain(byref(c_void_p()), 0)"]
)
def test_primary_context_that_is_not_there_does_not_end(sim, call):
    """Nobody retains the primary context; a destroyed pool lives as long as its block, in a context of the program's own."""
    points = sim.script_points(
        FILL
        + f"""
ok(cuda.cuInit(0))
context = make()
pool, p = c_void_p(), c_uint64()
ok(cuda.cuMemPoolCreate(byref(pool), byref(PoolProps(1, 0, Location(1, 0)))))
ok(cuda.cuMemAllocFromPoolAsync(byref(p), c_size_t(MIB), pool, None))
ok(cuda.cuMemPoolDestroy(pool))
quiet(held=live())
ok(cuda.{call})
quiet(held=live())
ok(cuda.cuMemFreeAsync(p, None))
ok(cuda.cuCtxSynchronize())
quiet(held=live())
"""
    )
    held = [(said.held, entry["domains"]["device"]["live_bytes"]) for said, entry in points]
    assert [ours for _, ours in held] == [theirs for theirs, _ in held], held
