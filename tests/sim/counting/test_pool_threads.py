"""Memory pools near LIMIT and RESERVE: growth is judged before it happens, by one thread and by many, against the simulator's ledger."""

import pytest
from conftest import GIB, MIB, OUT_OF_MEMORY, lists
from lib.simulated_pools import POOLS, SEGMENT, live
from lib.target import STRESS_DIVISOR

THREADS = (
    POOLS
    + """
import threading
def together(count, work):
    '''What `work(number)` answers in `count` threads that begin at once.'''
    begin, answers = threading.Barrier(count), [None] * count
    def run(number):
        start()
        begin.wait()
        answers[number] = work(number)
    threads = [threading.Thread(target=run, args=[number]) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers
def words(numbers):
    return "-".join(map(str, numbers))
"""
)

# An executable graph that allocates and does not free, and the address it allocates.
GRAPHS = """
class NodeParams(ctypes.Structure):
    _fields_ = [("props", PoolProps), ("access", c_void_p), ("count", c_size_t), ("bytes", c_size_t), ("at", c_uint64)]
def graph(size):
    made, node, executable = c_void_p(), c_void_p(), c_void_p()
    params = NodeParams(PoolProps(1, 0, Location(1, 0)), None, 0, size, 0)
    ok(cuda.cuGraphCreate(byref(made), 0))
    ok(cuda.cuGraphAddMemAllocNode(byref(node), made, None, c_size_t(0), byref(params)))
    ok(cuda.cuGraphInstantiateWithFlags(byref(executable), made, c_ulonglong(0)))
    return executable, params.at
"""


def reserve(sim, room, pool=0):
    """Variables of a machine on which `room` bytes are left above RESERVE, and what the driver takes beside them."""
    return {"SPARKGUARD_RESERVE": "4G", **sim.machine(64 * GIB, 4 * GIB + room + lists(room))}


def limit(sim, room, pool=0):
    return {"SPARKGUARD_LIMIT": str(pool + room)}


# ---- threads ----------------------------------------------------------------------------------------------------------

ALL_ASK_FOR_THE_SAME_ROOM = (
    THREADS
    + """
start()
keep(own_pool(), 64 * GIB)
free(take("cuMemAllocAsync", 2000 * MIB, None)[1])
answers = together(8, lambda number: take("cuMemAllocAsync", 1900 * MIB, None)[0])
say(answers=words(sorted(answers)), held=live("device"))
"""
)


@pytest.mark.parametrize("streams", ["idle", "busy"])
def test_room_in_a_pool_goes_to_one_of_the_threads_that_ask_for_it_under_limit(sim, streams):
    for _ in range(3):
        done = sim.script(ALL_ASK_FOR_THE_SAME_ROOM, SPARKGUARD_LIMIT="3G", SGSIM_STREAMS=streams, SGSIM_HOLD="cuMemAllocAsync:*:60")
        assert done.answers == "0-2-2-2-2-2-2-2"
        assert sim.books()["peak_bytes"]["device"] <= 3 * GIB + SEGMENT
        assert done.held == live(done.process) <= 2000 * MIB


@pytest.mark.parametrize("streams", ["idle", "busy"])
def test_room_in_a_pool_goes_to_one_of_the_threads_that_ask_for_it_under_reserve(sim, streams):
    machine = reserve(sim, 3 * GIB)
    done = sim.script(ALL_ASK_FOR_THE_SAME_ROOM, SGSIM_STREAMS=streams, SGSIM_HOLD="cuMemAllocAsync:*:60", **machine)
    assert done.answers == "0-2-2-2-2-2-2-2"
    assert sim.books()["least_available_bytes"] >= 4 * GIB - SEGMENT - lists(SEGMENT)
    assert done.held == live(done.process) <= 2000 * MIB


@pytest.mark.parametrize("bound", [limit, reserve])
def test_threads_that_fit_together_are_all_granted(sim, bound):
    script = THREADS + 'start()\nsay(answers=words(together(4, lambda number: take("cuMemAllocAsync", 500 * MIB, None)[0])))\n'
    for number in range(4):
        if (sim.scratch / "root").exists():
            sim.scratch = sim.scratch / str(number)
        done = sim.script(script, SGSIM_DAWDLE=2, **bound(sim, 2164 * MIB))
        assert done.answers == "0-0-0-0"
        assert done.process["refused_count"] == 0 and done.stderr == ""


@pytest.mark.parametrize("streams", ["idle", "busy"])
@pytest.mark.parametrize("bound", [limit, reserve])
def test_threads_that_ask_again_for_what_they_have_freed_are_never_refused(sim, bound, streams):
    """Eight threads take 100 MiB each from one pool, each in a stream of its own, again and again; there is room for no ninth."""
    done = sim.script(
        THREADS
        + f"""
start()
keep(own_pool(), 64 * GIB)
def work(number):
    s, refused = stream(), 0
    for i in range({80 // STRESS_DIVISOR}):
        result, p = take("cuMemAllocAsync", 100 * MIB, s)
        refused += result != 0
        if result == 0:
            free(p, s)
        if i % 8 == number and "{streams}" == "idle":
            ok(cuda.cuStreamSynchronize(s))
    return refused
say(refused=sum(together(8, work)), held=live("device"))
""",
        SGSIM_STREAMS=streams,
        SGSIM_DAWDLE=10,
        **bound(sim, 8 * 100 * MIB + 20 * MIB),
    )
    assert (done.refused, done.held) == (0, live(done.process))
    assert done.held <= 800 * MIB


def test_free_under_way_is_not_seen_done_by_a_synchronisation_beside_it(sim):
    """The thread that frees is inside the driver, which has not begun, while another one synchronises the stream."""
    done = sim.script(
        THREADS
        + """
start()
keep(own_pool(), 64 * GIB)
s, other, begun, synchronised, freed = stream(), stream(), *(threading.Event() for _ in range(3))
def await_synchronisation():
    begun.set()
    synchronised.wait()
def await_free():
    synchronised.set()
    freed.wait()
works = [ctypes.CFUNCTYPE(None)(work) for work in (await_synchronisation, await_free)]
cuda.sgsim_inside(b"cuMemFreeAsync", 1, works[0])
cuda.sgsim_behind(b"cuStreamSynchronize", 1, works[1])
p = take("cuMemAllocAsync", 300 * MIB, s)[1]
def work(number):
    if number == 0:
        free(p, s)
        freed.set()
    else:
        begun.wait()
        ok(cuda.cuStreamSynchronize(s))
together(2, work)
say(other=take("cuMemAllocAsync", 300 * MIB, other)[0], same=take("cuMemAllocAsync", 300 * MIB, s)[0])
""",
        SGSIM_STREAMS="busy",
        SPARKGUARD_LIMIT="400M",
    )
    assert (done.other, done.same) == (OUT_OF_MEMORY, 0)
    assert sim.books()["peak_bytes"]["device"] == 300 * MIB


def test_pieces_are_known_again_after_a_trim_beside_another_threads_call(sim):
    """One thread stays inside the driver while another has its pool trimmed. What the pool has afterwards serves each later request."""
    done = sim.script(
        THREADS
        + """
start()
keep(own_pool(), 64 * GIB)
begun, granted = threading.Event(), threading.Event()
def await_the_other():
    begun.set()
    granted.wait()
free(take("cuMemAllocAsync", 400 * MIB, None)[1])
work_inside = ctypes.CFUNCTYPE(None)(await_the_other)
cuda.sgsim_inside(b"cuMemAllocAsync", 1, work_inside)
def work(number):
    if number == 0:
        return take("cuMemAllocAsync", 10 * MIB, None)[0]
    begun.wait()
    result, p = take("cuMemAllocAsync", 1600 * MIB, None)
    large.append(p)
    granted.set()
    return result
large = []
say(first=words(together(2, work)), trims=calls("cuMemPoolTrimTo"))
free(large[0])
free(take("cuMemAllocAsync", 1600 * MIB, None)[1])
say(then=words(take("cuMemAllocAsync", 100 * MIB, None)[0] for _ in range(16)))
""",
        SPARKGUARD_LIMIT="1650M",
    )
    assert (done.first, done.trims) == ("0-0", 1)
    assert done.then == "-".join(["0"] * 16)


# ---- one thread -------------------------------------------------------------------------------------------------------

IN_PIECES = (
    POOLS
    + """
start()
keep(own_pool(), 64 * GIB)
free(take("cuMemAllocAsync", 1600 * MIB, None)[1])
blocks = [take("cuMemAllocAsync", 100 * MIB, None)[1] for _ in range(16)]
"""
)


@pytest.mark.parametrize("streams", ["idle", "busy"])
@pytest.mark.parametrize("bound", [limit, reserve])
def test_room_in_pieces_is_no_room_for_one_large_block(sim, bound, streams):
    """800 of 1600 MiB are free, in pieces of 100: for 800 MiB at once the pool would have to grow."""
    done = sim.script(
        IN_PIECES
        + """
for block in blocks[::2]:
    free(block)
say(result=take("cuMemAllocAsync", 800 * MIB, None)[0], piece=take("cuMemAllocAsync", 100 * MIB, None)[0], held=live("device"))
""",
        SGSIM_STREAMS=streams,
        **bound(sim, 400 * MIB + 1600 * MIB),
    )
    assert (done.result, done.piece) == (OUT_OF_MEMORY, 0)
    assert done.held == live(done.process) == 1600 * MIB
    assert sim.books()["peak_bytes"]["device"] == 1600 * MIB
    assert [refusal["size_bytes"] for refusal in done.process["refusals"]] == [800 * MIB]


@pytest.mark.parametrize("streams", ["idle", "busy"])
@pytest.mark.parametrize("bound", [limit, reserve])
def test_pieces_that_lie_side_by_side_are_room_for_one_large_block(sim, bound, streams):
    done = sim.script(
        IN_PIECES
        + """
for block in blocks[4:12]:
    free(block)
say(result=take("cuMemAllocAsync", 800 * MIB, None)[0], held=live("device"))
""",
        SGSIM_STREAMS=streams,
        **bound(sim, 400 * MIB + 1600 * MIB),
    )
    assert (done.result, done.held) == (0, 1600 * MIB)


@pytest.mark.parametrize("streams", ["idle", "busy"])
@pytest.mark.parametrize("bound", [limit, reserve])
def test_block_that_was_freed_may_be_had_again_in_the_same_stream(sim, bound, streams):
    done = sim.script(
        POOLS
        + """
start()
s = stream()
keep(own_pool(), 64 * GIB)
for size in [900 * MIB + 700, 900 * MIB + 700, 800 * MIB, 100 * MIB]:
    result, p = take("cuMemAllocAsync", size, s)
    ok(result)
    free(p, s)
say(held=live("device"))
""",
        SGSIM_STREAMS=streams,
        **bound(sim, 1000 * MIB),
    )
    assert done.held == live(done.process) == 902 * MIB


def test_room_that_nobody_uses_goes_back_for_a_larger_block(sim):
    done = sim.script(
        POOLS
        + """
start()
keep(own_pool(), 64 * GIB)
for size in [400 * MIB, 800 * MIB]:
    result, p = take("cuMemAllocAsync", size, None)
    ok(result)
    free(p)
say(held=live("device"))
""",
        SPARKGUARD_LIMIT="1000M",
    )
    assert done.held == live(done.process) == 800 * MIB


def test_room_that_went_back_is_no_room_though_as_much_is_left(sim):
    """Before the trim the pool holds 262 MiB. Of these, 130 MiB are known to be free, and go back; 131 MiB are free in two pieces
    that are not known."""
    done = sim.script(
        POOLS
        + """
start()
keep(own_pool(), 64 * GIB)
def spare(size):
    p = take("cuMemAllocAsync", size * MIB, None)[1]
    return lambda: free(p)
def spare_one_of(*blocks):
    for block in blocks:
        block()
    ok(cuda.cuMemPoolTrimTo(own_pool(), c_size_t(262 * MIB)))
last = spare(130)
spare_one_of(spare(132), spare(132))
first, middle = spare(65), spare(1)
spare_one_of(first, spare(132))
last()
say(large=take("cuMemAllocAsync", 300 * MIB, None)[0], held=live("device"), linear=take("cuMemAlloc_v2", 200 * MIB)[0])
say(gone=take("cuMemAllocAsync", 130 * MIB, None)[0])
""",
        SPARKGUARD_LIMIT="400M",
    )
    assert (done.large, done.held, done.linear, done.gone) == (OUT_OF_MEMORY, 132 * MIB, 0, OUT_OF_MEMORY)
    assert sim.books()["peak_bytes"]["device"] == (130 + 132 + 132) * MIB


def test_small_blocks_fill_the_last_step_of_a_pool(sim):
    done = sim.script(
        POOLS
        + """
start()
results = [take("cuMemAllocAsync", MIB, None)[0] for _ in range(40)]
say(granted=results.count(0), held=live("device"))
""",
        SPARKGUARD_LIMIT="40M",
    )
    assert (done.granted, done.held) == (32, SEGMENT)


# ---- graphs -----------------------------------------------------------------------------------------------------------


def test_room_of_the_graphs_of_a_device_goes_to_one_of_the_threads_that_launch_first(sim):
    """The store has 1000 MiB that no graph uses. Eight graphs that keep 900 MiB each are launched at one moment."""
    done = sim.script(
        THREADS
        + GRAPHS
        + """
start()
first, p = graph(1000 * MIB)
ok(cuda.cuGraphLaunch(first, None))
ok(cuda.cuMemFreeAsync(c_uint64(p), None))
graphs = [graph(900 * MIB)[0] for _ in range(8)]
say(answers=words(sorted(together(8, lambda number: cuda.cuGraphLaunch(graphs[number], None)))), held=live("device"))
""",
        SPARKGUARD_LIMIT="1500M",
        SGSIM_HOLD="cuGraphLaunch:*:60",
    )
    assert done.answers == "0-2-2-2-2-2-2-2"
    assert done.held == live(done.process) == sim.books()["peak_bytes"]["device"] == 1000 * MIB


# ---- stress tests -----------------------------------------------------------------------------------------------------


SEEDS = [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in (2, 3))]


def stress(sim, seed, room, threads=8, **variables):
    command = [sim.program("cuda_pools"), seed, threads, 400 // min(STRESS_DIVISOR, 2), 4, room]  # of 100 steps, the one that is alone has too few refused
    done = sim.values(command, SGSIM_DAWDLE=40, **variables)
    assert done.held == live(done.process) == 0
    assert done.wrong == 0, done.stderr
    assert done.granted > 100 and done.refused > 20 and done.alone > 2, "the test applied no stress"
    return done


@pytest.mark.parametrize("streams", ["idle", "busy"])
@pytest.mark.parametrize("seed", SEEDS)
def test_stress_on_shared_pools_stays_within_limit_and_is_refused_nothing_that_fits(sim, seed, streams):
    stress(sim, seed, 2 * GIB, SPARKGUARD_LIMIT="2G", SGSIM_STREAMS=streams)
    assert sim.books()["peak_bytes"]["device"] <= 2 * GIB + SEGMENT


@pytest.mark.parametrize("streams", ["idle", "busy"])
@pytest.mark.parametrize("seed", SEEDS)
def test_stress_on_shared_pools_keeps_the_reserve_and_is_refused_nothing_that_fits(sim, seed, streams):
    stress(sim, seed, 2 * GIB, SGSIM_STREAMS=streams, **reserve(sim, 2 * GIB))
    assert sim.books()["least_available_bytes"] >= 4 * GIB - SEGMENT - lists(SEGMENT)
