"""Stream-ordered memory: whose pool a request goes to, how many pools there may be, what queries that fail and streams that are
busy change (nothing), and what it costs."""

import pytest
from conftest import GIB, MIB, OUT_OF_MEMORY
from contexts import BESIDE
from lib.simulated_pools import POOLS, SEGMENT, live



def devices(sim):
    return {d["index"]: d["live_bytes"] for d in sim.guard.report()["machine"]["devices"]}


# ---- whose pool -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hidden", [[], ["cuStreamGetDevice"], ["cuStreamGetDevice", "cuStreamGetCtx"]])
def test_allocation_without_a_current_context_is_judged_and_counted(sim, hidden):
    """cuda.h asks for a context only with a default stream. Drivers before CUDA 12.8 do not tell a stream's device."""
    done = sim.script(
        POOLS
        + f"""
start()
s, pool = stream(), new_pool()
ok(cuda.cuCtxSetCurrent(None))
for name in {hidden}:
    fail(name, -1, 801)
say(large=take("cuMemAllocAsync", 512 * MIB, s)[0], small=take("cuMemAllocAsync", MIB, s)[0], device=live("device"))
say(large_from=from_pool(512 * MIB, pool, s)[0], small_from=from_pool(MIB, pool, s)[0], both=live("device"))
say(default=take("cuMemAllocAsync", MIB, None)[0], default_from=from_pool(512 * MIB, pool)[0])
""",
        SPARKGUARD_LIMIT="70M",
    )
    assert (done.large, done.small, done.large_from, done.small_from) == (OUT_OF_MEMORY, 0, OUT_OF_MEMORY, 0)
    assert (done.default, done.default_from) == (201, 201)  # CUDA_ERROR_INVALID_CONTEXT
    assert live(done.process) == done.both == 2 * SEGMENT
    assert done.process["refused_count"] == 2


@pytest.mark.parametrize("hidden", [[], ["cuStreamGetDevice"]])
def test_allocation_counts_on_the_device_of_its_stream(sim, hidden):
    points = sim.script_points(
        POOLS
        + f"""
start(1)
s = stream()
start(0)
for name in {hidden}:
    fail(name, -1, 801)
ok(take("cuMemAllocAsync", 512 * MIB, s)[0])
quiet(device=live("device"))
""",
        SGSIM_KIND="discrete",
        SGSIM_DEVICES=2,
        SGSIM_MEMORY="8G",
    )
    for said, entry in points:
        assert live(entry) == said.device == 512 * MIB
        assert devices(sim).get(1) == 512 * MIB and devices(sim).get(0, 0) == 0


def test_another_devices_own_pool_counts_there(sim):
    points = sim.script_points(
        POOLS + "start(0)\nok(from_pool(96 * MIB, own_pool(1))[0])\nquiet()\n",
        SGSIM_KIND="discrete",
        SGSIM_DEVICES=2,
        SGSIM_MEMORY="8G",
    )
    for _, entry in points:
        assert live(entry) == 96 * MIB and devices(sim).get(1) == 96 * MIB


# ---- how many -------------------------------------------------------------------------------------------------------


def test_every_one_of_very_many_pools_counts_what_it_has_reserved(sim):
    points = sim.script_points(
        POOLS
        + """
start()
pools = [new_pool() for _ in range(300)]
blocks = [from_pool(MIB, pool)[1] for pool in pools]
quiet(device=live("device"))
for pool in pools:
    ok(cuda.cuMemPoolDestroy(pool))
quiet(device=live("device"))
for block in blocks[:299]:
    free(block)
quiet(device=live("device"))
free(blocks[299])
quiet(device=live("device"))
"""
    )
    figures = [(said.device, live(entry)) for said, entry in points]
    assert figures == [(n * SEGMENT, n * SEGMENT) for n in (300, 300, 1, 0)]


def test_pools_made_and_destroyed_without_end_take_no_room(sim):
    points = sim.script_points(
        POOLS
        + """
start()
for _ in range(3000):
    pool = new_pool()
    ok(cuda.cuMemPoolDestroy(pool))
pool = new_pool()
before = calls("cuMemPoolGetAttribute")
ok(from_pool(MIB, pool)[0])
quiet(device=live("device"), queries=calls("cuMemPoolGetAttribute") - before)
"""
    )
    [(said, entry)] = points
    assert live(entry) == said.device == SEGMENT and said.queries <= 3


# ---- refused growth ---------------------------------------------------------------------------------------------------

RETRY = (
    POOLS
    + """
start()
%s
ok(take("cuMemAlloc_v2", 40 * MIB)[0])
results = [take("cuMemAllocAsync", 20 * MIB, None)[0] for _ in range(3)]
say(results="-".join(map(str, results)), held=live("device"))
"""
)


def test_growth_by_a_step_that_does_not_fit_is_refused_before_it_happens(sim):
    """20 MiB come from a step of 32: beside 40 that is more than 64."""
    done = sim.script(RETRY % "keep(own_pool(), GIB)", SPARKGUARD_LIMIT="64M", SGSIM_STREAMS="busy")
    assert done.results == "2-2-2"
    assert done.held == live(done.process) == sim.books()["peak_bytes"]["device"] == 40 * MIB


LARGE_STEP = {"SPARKGUARD_LIMIT": "100M", "SGSIM_POOL_STEP": "80M"}


@pytest.mark.parametrize("streams, held", [("idle", 40), ("busy", 120)])
def test_refused_growth_goes_back_without_waiting_for_a_stream(sim, streams, held):
    """A pool's step is larger than known. The stream's work may wait for this very thread."""
    done = sim.script(
        RETRY % 'keep(own_pool(), GIB)\nfor name in ["cuStreamSynchronize", "cuStreamSynchronize_ptsz", "cuCtxSynchronize"]:\n    fail(name, -1, 999)\n'
        + """
waits = sum(calls(name) for name in ["cuStreamSynchronize", "cuStreamSynchronize_ptsz", "cuCtxSynchronize"])
say(waits=waits)
""",
        SGSIM_STREAMS=streams,
        **LARGE_STEP,
    )
    assert (done.results, done.waits) == ("2-2-2", 0)
    assert done.held == live(done.process) == held * MIB
    assert sim.books()["peak_bytes"]["device"] == 120 * MIB, "more than one step too much"


def test_refused_growth_that_stays_is_not_granted_to_a_retry(sim):
    script = RETRY % 'keep(own_pool(), GIB)\nfail("cuMemPoolTrimTo", -1, 700)\n'
    script += """
device = live("device")
p = take("cuMemAllocAsync", 20 * MIB, None)[0]
say(again=p)
"""
    done = sim.script(script, **LARGE_STEP)
    assert (done.results, done.again) == ("2-2-2", OUT_OF_MEMORY)
    assert done.held == live(done.process) == 120 * MIB
    assert done.process["refused_count"] == 4
    assert all(r["size_bytes"] == 20 * MIB for r in done.process["refusals"])


def test_refused_growth_that_stayed_may_be_had_when_there_is_room(sim):
    done = sim.script(
        POOLS
        + """
start()
keep(own_pool(), GIB)
fail("cuMemPoolTrimTo", -1, 700)
p = take("cuMemAlloc_v2", 40 * MIB)[1]
first = take("cuMemAllocAsync", 20 * MIB, None)[0]
give(p)
say(first=first, then=take("cuMemAllocAsync", 20 * MIB, None)[0], last=take("cuMemAllocAsync", 10 * MIB, None)[0], held=live("device"))
""",
        **LARGE_STEP,
    )
    assert (done.first, done.then, done.last) == (OUT_OF_MEMORY, 0, 0)
    assert done.held == live(done.process) == 80 * MIB


def test_growth_beyond_what_was_judged_that_fits_is_the_pools_own(sim):
    """A pool's step is larger than known. What was granted of it serves later requests, though the machine is at its reserve by then."""
    done = sim.script(
        POOLS
        + """
start()
keep(own_pool(), GIB)
ok(take("cuMemAllocAsync", 20 * MIB, None)[0])
while take("cuMemAlloc_v2", 4 * MIB)[0] == 0:
    pass
before = live("device")
say(then=take("cuMemAllocAsync", 20 * MIB, None)[0], grown=live("device") - before)
""",
        SGSIM_POOL_STEP="80M",
        **sim.machine(4 * GIB, 2 * GIB),
    )
    assert (done.then, done.grown) == (0, 0)


# ---- queries that fail --------------------------------------------------------------------------------------------------

QUERIES = "cuCtxGetDevice", "cuStreamGetDevice", "cuDeviceGetMemPool", "cuMemPoolGetAttribute", "cuStreamIsCapturing"


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_that_fails_neither_loses_nor_invents_bytes(sim, query):
    points = sim.script_points(
        POOLS
        + f"""
start()
s, pool = stream(), new_pool()
kept = [from_pool(MIB, pool)[1], take("cuMemAllocAsync", MIB, None)[1]]
for nth in range(1, 6):
    for one in lambda: take("cuMemAllocAsync", 40 * MIB, None), lambda: take("cuMemAllocAsync", 40 * MIB, s), lambda: from_pool(40 * MIB, pool, s):
        fail("{query}", nth, 999)
        result, p = one()
        fail("{query}", 0)
        ok(result)
        give(take("cuMemAlloc_v2", 512)[1])
        quiet(device=live("device"))
        fail("{query}", nth, 999)
        free(p)
        fail("{query}", 0)
        ok(cuda.cuCtxSynchronize())
        quiet(device=live("device"))
"""
    )
    figures = [(said.device, live(entry)) for said, entry in points]
    assert len(figures) == 30 and [f for f in figures if f[0] != f[1]] == []


def test_pool_that_cannot_tell_counts_block_by_block(sim):
    points = sim.script_points(
        POOLS
        + """
start()
fail("cuMemPoolGetAttribute", -1, 1)  # as drivers before CUDA 11.3
p = take("cuMemAllocAsync", 40 * MIB, None)[1]
quiet()
fail("cuMemPoolGetAttribute", 0)
q = take("cuMemAllocAsync", 20 * MIB, None)[1]
quiet()
free(p)
free(q)
quiet()
"""
    )
    assert [live(entry) for _, entry in points] == [40 * MIB, 60 * MIB, 0]


@pytest.mark.parametrize("call", ["cuMemAllocAsync", "cuMemAllocAsync_ptsz"])
def test_pool_whose_counter_stands_still_counts_block_by_block_and_is_limited(sim, call):
    """Some drivers answer 0 for RESERVED_MEM_CURRENT, whatever a pool holds."""
    points = sim.script_points(
        POOLS
        + f"""
start()
keep(own_pool(), 4 * GIB)
blocks = [take("{call}", 300 * MIB, None) for _ in range(5)]
quiet(results="-".join(str(result) for result, _ in blocks), used=sum(300 for result, _ in blocks if result == 0))
free(blocks[0][1])
quiet(again=take("{call}", 300 * MIB, None)[0], more=take("{call}", 300 * MIB, None)[0])
for p in [p for result, p in blocks[1:] if result == 0]:
    free(p)
quiet()
""",
        SGSIM_POOL_COUNTER="zero",
        SPARKGUARD_LIMIT="1000M",
    )
    (said, first), (then, second), (_, third) = points
    assert said.results == "0-0-0-2-2" and (then.again, then.more) == (0, OUT_OF_MEMORY)
    assert (live(first), live(second), live(third)) == (900 * MIB, 900 * MIB, 300 * MIB)


# ---- synchronisations -----------------------------------------------------------------------------------------------

SYNCHRONISE = {
    "stream": "ok(cuda.cuStreamSynchronize(None))",
    "stream_ptsz": "ok(cuda.cuStreamSynchronize_ptsz(None))",
    "event": "e = c_void_p(); ok(cuda.cuEventCreate(byref(e), 0)); ok(cuda.cuEventRecord(e, None)); ok(cuda.cuEventSynchronize(e))",
    "context": "ok(cuda.cuCtxSynchronize())",
    "context_v2": "ok(cuda.cuCtxSynchronize_v2(None))",
}


@pytest.mark.parametrize("how", SYNCHRONISE)
def test_what_a_synchronisation_gave_back_is_there_for_others_at_once(sim, how):
    variables = {"SPARKGUARD_LIMIT": "1G", "SPARKGUARD_JOB": "j"}
    text = f"""
start()
p = take("cuMemAllocAsync", 800 * MIB, None)[1]
ok(cuda.cuMemFreeAsync(c_uint64(p), None))
{SYNCHRONISE[how]}
quiet(device=live("device"))
"""
    with sim.tenant(text, **variables) as tenant:
        assert tenant.quiet().device == 0
        assert live(sim.guard.process(tenant.pid)) == 0
        assert sim.script('start()\nsay(second=take("cuMemAlloc_v2", 800 * MIB)[0])', **variables).second == 0


def test_meminfo_knows_what_a_pool_gave_back_unseen(sim):
    done = sim.script(
        """
start()
before = info()[0]
p = take("cuMemAllocAsync", 800 * MIB, None)[1]
ok(cuda.cuMemFreeAsync(c_uint64(p), None))
taken = info()[0]
cuda.sgsim_synchronize()
say(before=before // MIB, taken=taken // MIB, after=info()[0] // MIB)
""",
        SPARKGUARD_LIMIT="1G",
    )
    assert done.before - done.taken >= 790
    assert done.before - done.after <= 4


def test_nothing_is_refused_for_what_a_pool_gave_back_unseen(sim):
    done = sim.script(
        """
start()
p = take("cuMemAllocAsync", 40 * MIB, None)[1]
ok(cuda.cuMemFreeAsync(c_uint64(p), None))
cuda.sgsim_synchronize()
say(fits=take("cuMemAlloc_v2", 40 * MIB)[0], device=live("device"))
""",
        SPARKGUARD_LIMIT="64M",
    )
    assert done.fits == 0
    assert live(done.process) == done.device == 40 * MIB


# ---- beside other threads -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["inside", "behind"])
@pytest.mark.parametrize("nth, call", [(1, "from_pool(MIB, pool)"), (2, "from_pool(MIB, pool)"), (1, "free(p)"), (1, "ok(cuda.cuCtxSynchronize())")])
def test_nobody_waits_while_a_pool_is_asked(sim, when, nth, call):
    """Who asks may wait in the driver for a thread that waits for us."""
    [(said, entry)] = sim.script_points(
        POOLS
        + BESIDE
        + f"""
start()
pool, other = new_pool(), new_pool()
_, p = from_pool(MIB, pool)
def work():
    start()
    h = c_uint64()
    ok(cuda.cuMemCreate(byref(h), c_size_t(2 * MIB), byref(ON_DEVICE), c_ulonglong(0)))
    ok(cuda.cuMemRelease(h))
    from_pool(MIB, other)
    free(from_pool(64 * MIB, pool)[1])
beside("{when}", "cuMemPoolGetAttribute", work, {nth})
{call}
quiet(waited=has_waited(), begun=len(waiting), device=live("device"))
"""
    )
    assert (said.begun, said.waited) == (1, "False")
    assert live(entry) == said.device
    assert entry["unmatched_frees"] == 0


@pytest.mark.parametrize("call", ["from_pool(40 * MIB, pool)", "free(q)"])
def test_answer_that_another_thread_has_overtaken_is_not_charged(sim, call):
    [(said, entry)] = sim.script_points(
        POOLS
        + BESIDE
        + f"""
start()
pool = new_pool()
_, q = from_pool(40 * MIB, pool)
def work():
    start()
    {call}
    ok(cuda.cuCtxSynchronize())
beside("behind", "cuMemPoolGetAttribute", work)
ok(cuda.cuCtxSynchronize())
quiet(waited=has_waited(), device=live("device"))
"""
    )
    assert said.waited == "False"
    assert live(entry) == said.device


def test_pool_is_not_destroyed_while_it_is_asked(sim):
    """Another thread's synchronisation asks all pools; the driver may not be asked about one that is gone."""
    [(said, entry)] = sim.script_points(
        POOLS
        + """
import threading, time
start()
pool, order, begun = new_pool(), [], threading.Event()
free(from_pool(MIB, pool)[1])
def destroy():
    start()
    begun.set()
    ok(cuda.cuMemPoolDestroy(pool))
    order.append("destroyed")
def ask():
    other.start()
    begun.wait()
    other.join(0.3)  # as long as a destruction needs that waits for nobody
    order.append("answered")
other, inside = threading.Thread(target=destroy), ctypes.CFUNCTYPE(None)(ask)
cuda.sgsim_inside(b"cuMemPoolGetAttribute", 1, inside)
ok(cuda.cuCtxSynchronize())
other.join()
quiet(order=",".join(order), device=live("device"))
"""
    )
    assert said.order == "answered,destroyed"
    assert live(entry) == said.device == 0


# ---- cost -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pools", [1, 40])
def test_queries_per_call_do_not_grow_with_the_number_of_pools(sim, pools):
    done = sim.script(
        POOLS
        + f"""
QUERIES = "cuCtxGetDevice", "cuCtxGetCurrent", "cuStreamGetDevice", "cuStreamGetCtx", "cuDeviceGetMemPool", "cuMemPoolGetAttribute", "cuStreamIsCapturing"
def count():
    return sum(calls(q) for q in QUERIES)
def cost(what):
    before = count()
    out = what()
    return count() - before, out
start()
s = stream()
for _ in range({pools} - 1):
    from_pool(MIB, new_pool())
take("cuMemAllocAsync", MIB, None)
take("cuMemAllocAsync", MIB, s)
a, (_, p) = cost(lambda: take("cuMemAllocAsync", MIB, None))
b, (_, q) = cost(lambda: take("cuMemAllocAsync", MIB, s))
c, _ = cost(lambda: free(p))
d, (_, r) = cost(lambda: take("cuMemAlloc_v2", MIB))
e, _ = cost(lambda: give(r))
say(take=a, take_on_stream=b, free=c, memalloc=d, memfree=e)
"""
    )
    assert (done.take, done.take_on_stream, done.free, done.memalloc, done.memfree) == (5, 5, 1, 1, 0)


@pytest.mark.parametrize("mode, who", [(0, "another"), (2, "another"), (0, "itself"), (1, "itself")])
def test_growth_given_back_breaks_no_capture(sim, mode, who):
    """Potentially unsafe calls break a capture of their own thread, and a global one of any other (cuda.h)."""
    done = sim.script(
        POOLS
        + f"""
import threading
start()
context, graph = c_void_p(), c_void_p()
ok(cuda.cuCtxGetCurrent(byref(context)))
capturing, other = stream(), stream()
ok(cuda.cuStreamBeginCapture_v2(capturing, {mode}))
def ask():
    ok(cuda.cuCtxSetCurrent(context))
    say(result=take("cuMemAllocAsync", MIB, other)[0])
if "{who}" == "itself":
    ask()
else:
    thread = threading.Thread(target=ask)
    thread.start(); thread.join()
say(held=live("device"), captured=cuda.cuStreamEndCapture(capturing, byref(graph)))
ok(cuda.cuStreamBeginCapture_v2(capturing, 1))
say(mode_stays=cuda.cuStreamSynchronize(other))
""",
        SPARKGUARD_LIMIT="24M",
        SGSIM_STREAMS="busy",
    )
    assert (done.result, done.held, done.captured) == (OUT_OF_MEMORY, 0, 0)
    assert done.mode_stays == 900  # CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED: the thread's mode is as it was
