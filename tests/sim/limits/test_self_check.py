"""What the guard assumes of the driver is checked beside the program's own large calls; what is wrong makes it pass, and not refuse."""

import mmap
import re

import pytest
from conftest import GIB, MIB, OUT_OF_MEMORY
from lib.waiting import wait_until

SIZE = 256 * MIB
MACHINE = 8 * GIB
ROOM = 4 * GIB  # above the reserve
VARIABLES = {"SGSIM_KIND": "gb10", "SGSIM_CONTEXT": "64M", "SPARKGUARD_RESERVE": MACHINE - ROOM}
UNGUARDED = "cudaMalloc is not guarded here"
OBSERVED = "cudaMalloc is observed here and not refused"

BEGIN = """
start()
def get(size):
    result, address = take("cuMemAlloc_v2", size)
    ok(result)
    return address
"""


def facts(done):
    return done.process["driver_facts"]


def known(done):
    return {name: found for name, found in facts(done).items() if found != "unknown"}


def events(done):
    return [event["what"] for event in done.process["events"]]


@pytest.fixture
def spark(sim):
    return sim.machine(MACHINE) | VARIABLES


def test_driver_of_the_machine_proves_what_is_assumed(sim, spark):
    done = sim.script(BEGIN + f"a = get({SIZE}); give(a); give(get({2 * SIZE}))", **spark)
    assert known(done) == {
        "device_memory_is_the_machines": "proved",
        "takes_what_is_asked": "proved",
        "serves_what_fits": "proved",
        "freed_is_back_at_once": "proved",
    }
    assert done.stderr == "" and not any("driver" in event for event in events(done))


def test_small_calls_prove_nothing(sim, spark):
    done = sim.script(BEGIN + f"give(get({SIZE - 2 * MIB}))", **spark)
    assert known(done) == {}


def test_memory_made_by_handles_is_checked_as_well(sim, spark):
    create = f"handle = c_uint64(); ok(cuda.cuMemCreate(byref(handle), c_size_t({SIZE}), byref(ON_DEVICE), c_uint64(0)))"
    assert facts(sim.script(BEGIN + create, **spark))["device_memory_is_the_machines"] == "proved"


def test_driver_with_pools_proves_that_they_keep_and_serve(sim, spark):
    done = sim.script(BEGIN + f"a = get({SIZE}); give(a); give(get({SIZE}))", **spark | sim.keeps_freed_pages())
    assert known(done) == {
        "device_memory_is_the_machines": "proved",
        "takes_what_is_asked": "proved",
        "serves_what_fits": "proved",
        "pool_keeps_freed": "proved",
        "pool_serves_first": "proved",
    }
    assert done.stderr == ""


def test_pools_that_are_listed_and_keep_nothing_are_found_out(sim, spark):
    done = sim.script(BEGIN + f"give(get({SIZE}))", **spark | sim.keeps_freed_pages() | {"SGSIM_POOL": "none"})
    assert facts(done)["pool_keeps_freed"] == "disproved" and facts(done)["freed_is_back_at_once"] == "unknown"


def test_pool_that_does_not_serve_what_it_has_is_found_out(sim, spark):
    """Somebody else empties it between the free and the next request."""
    text = BEGIN + f"give(get({SIZE})); quiet(); give(get({SIZE}))"
    with sim.tenant(text, **spark | sim.keeps_freed_pages()) as tenant:
        tenant.quiet()
        sim.machine_move("kept", -SIZE)
        tenant.go()
        tenant.finish()
        [process] = sim.guard.processes(tenant.pid)
    assert (process["driver_facts"]["pool_keeps_freed"], process["driver_facts"]["pool_serves_first"]) == ("proved", "disproved")


@pytest.mark.parametrize("pinned, finding", [("shmem", "proved"), ("driver", "disproved")])
def test_first_pinned_memory_shows_whose_it_is(sim, spark, pinned, finding):
    text = BEGIN + f"p = c_void_p(); ok(cuda.cuMemHostAlloc(byref(p), c_size_t({MIB}), 0))"
    assert facts(sim.script(text, **spark | {"SGSIM_PINNED": pinned}))["pinned_is_shared_memory"] == finding


APART = f"""
held = [get({SIZE}) for _ in range(2)]
result, address = take("cuMemAlloc_v2", {ROOM})
free, total = info()
say(result=result, free=free)
"""


def test_device_memory_that_is_not_the_machines_is_judged_by_the_driver_alone(sim, spark):
    """A device that is integrated by its own word and has memory of its own: the machine's figures never move."""
    own = {"SGSIM_MEMINFO": None, "SGSIM_MEMORY": "6G"}
    done = sim.script(BEGIN + APART, **spark | own)
    assert done.result == 0 and facts(done)["device_memory_is_the_machines"] == "disproved"
    assert done.free == 6 * GIB - 2 * SIZE - ROOM - 64 * MIB, "the driver's own figure"
    assert done.stderr.count("\n") == 1 and UNGUARDED in done.stderr
    assert [event for event in events(done) if "the driver alone judges" in event]
    assert done.process["refused_count"] == 0


def test_one_call_that_takes_nothing_proves_nothing(sim, spark):
    text = BEGIN + f"a = get({SIZE}); say(result=take('cuMemAlloc_v2', {ROOM})[0])"
    done = sim.script(text, **spark | {"SGSIM_MEMINFO": None})
    assert (done.result, facts(done)["device_memory_is_the_machines"]) == (OUT_OF_MEMORY, "unknown")


def test_what_the_pool_serves_is_no_proof_against_the_machine(sim, spark):
    pools = sim.keeps_freed_pages()
    sim.machine_move("kept", 2 * GIB)
    done = sim.script(BEGIN + f"held = [get({SIZE}) for _ in range(3)]", **spark | pools | {"SPARKGUARD_RESERVE": GIB})
    assert facts(done)["device_memory_is_the_machines"] == "unknown" and facts(done)["pool_serves_first"] == "proved"
    assert done.stderr == ""


def test_limit_holds_where_the_driver_alone_judges(sim, spark):
    text = BEGIN + f"held = [get({SIZE}) for _ in range(2)]; say(result=take('cuMemAlloc_v2', {SIZE})[0])"
    done = sim.script(text, **spark | {"SGSIM_MEMINFO": None, "SPARKGUARD_LIMIT": 2 * SIZE + 64 * MIB})
    assert done.result == OUT_OF_MEMORY and UNGUARDED in done.stderr


@pytest.mark.parametrize("surprises, result", [(2, OUT_OF_MEMORY), (3, 0)])
def test_driver_that_refuses_what_fits_is_observed_after_three_times(sim, spark, surprises, result):
    text = f"""
for _ in range({surprises}):
    fail("cuMemAlloc_v2", 1, 2)
    assert take("cuMemAlloc_v2", {SIZE})[0] == 2
say(result=take("cuMemAlloc_v2", {ROOM + GIB})[0])
"""
    done = sim.script(BEGIN + text, **spark)
    assert (done.result, facts(done)["serves_what_fits"]) == (result, "disproved")
    assert (OBSERVED in done.stderr) == (surprises == 3)
    assert len([event for event in events(done) if "observed and not refused" in event]) == (surprises == 3)
    assert done.process["refused_count"] == 1  # observed: recorded, and not refused


def test_host_memory_is_refused_as_before_where_the_driver_is_observed(sim, spark):
    text = f"""
for _ in range(3):
    fail("cuMemAlloc_v2", 1, 2)
    take("cuMemAlloc_v2", {SIZE})
p = c_void_p()
say(pinned=cuda.cuMemHostAlloc(byref(p), c_size_t({ROOM + GIB}), 0))
"""
    assert sim.script(BEGIN + text, **spark).pinned == OUT_OF_MEMORY


def test_driver_that_takes_far_more_than_asked_is_observed(sim, spark):
    """A block of 257 MiB takes three chunks of 128, and gives them back."""
    text = f"for _ in range(3): give(get({SIZE + MIB}))\nsay(result=take('cuMemAlloc_v2', {ROOM + GIB})[0])"
    done = sim.script(BEGIN + text, **spark | {"SGSIM_CHUNK": "128M"})
    assert (done.result, facts(done)["takes_what_is_asked"]) == (0, "disproved")
    assert OBSERVED in done.stderr


def holds(sim, function, count):
    """Where the simulated driver waits within its calls of a function, and the variable for it."""
    gates = [sim.scratch / f"{function}{i}" for i in range(count)]
    return gates, [f"{function}:{i + 1}:{gate}" for i, gate in enumerate(gates)]


def beside_held_calls(other, tenant, gates):
    """The neighbour goes a step on while each call is held; then the program ends. Returns what it said."""
    other.quiet()
    for gate in gates:
        wait_until(lambda: gate.with_name(f"{gate.name}.held").exists())
        other.go()
        other.quiet()
        gate.touch()
    tenant.quiet()
    return tenant.finish()


@pytest.mark.parametrize("frees", [False, True])
def test_neighbour_that_takes_memory_beside_three_calls_is_no_surprise(sim, spark, frees):
    """It is not guarded, and keeps what it took."""
    gates, hold = holds(sim, "cuMemAlloc_v2", 3)
    one = f"give(get({SIZE}))" if frees else f"get({SIZE})"
    text = BEGIN + f"for _ in range(3): {one}\nquiet()\nsay(result=take('cuMemAlloc_v2', {ROOM + GIB})[0])"
    taker = "start()\nquiet()\n" + f"ok(take('cuMemAlloc_v2', {100 * MIB})[0])\nquiet()\n" * 3
    with sim.tenant(taker, **spark | {"SPARKGUARD_DISABLE": "1"}) as other, sim.tenant(
        text, **spark | {"SGSIM_HOLD": ",".join(hold)}
    ) as tenant:
        done = beside_held_calls(other, tenant, gates)
        assert (done.result, OBSERVED in done.stderr) == (OUT_OF_MEMORY, False)


def test_neighbour_that_takes_what_is_freed_is_no_surprise(sim, spark):
    """The successor of each block is another program's, which is not guarded."""
    gates, hold = holds(sim, "cuMemFree_v2", 3)
    text = f"""
import time
for _ in range(3):
    give(get({SIZE}))
    time.sleep(3.1)  # holds: what is not back after 3 s, never comes back
give(get({SIZE}))
quiet()
say(result=take("cuMemAlloc_v2", {ROOM + GIB})[0])
"""
    taker = "start()\nquiet()\n" + f"ok(take('cuMemAlloc_v2', {SIZE})[0])\nquiet()\n" * 3
    with sim.tenant(taker, **spark | {"SPARKGUARD_DISABLE": "1"}) as other, sim.tenant(
        BEGIN + text, **spark | {"SGSIM_HOLD": ",".join(hold)}
    ) as tenant:
        done = beside_held_calls(other, tenant, gates)
        assert (done.result, OBSERVED in done.stderr) == (OUT_OF_MEMORY, False)


@pytest.mark.parametrize("what", ["device", "heap"])
def test_driver_that_refuses_because_a_neighbour_took_the_rest_is_no_surprise(sim, spark, what):
    gates, hold = holds(sim, "cuMemAlloc_v2", 3)
    text = BEGIN + f"""
for _ in range(3):
    fail("cuMemAlloc_v2", 1, 2)
    assert take("cuMemAlloc_v2", {SIZE})[0] == 2
quiet()
say(result=take("cuMemAlloc_v2", {ROOM + GIB})[0])
"""
    with sim.tenant(text, **spark | {"SGSIM_HOLD": ",".join(hold)}) as tenant:
        for gate in gates:
            wait_until(lambda: gate.with_name(f"{gate.name}.held").exists())
            sim.machine_move("kept" if what == "device" else "other", SIZE)
            gate.touch()
        tenant.quiet()
        done = tenant.finish()
        assert (done.result, OBSERVED in done.stderr) == (OUT_OF_MEMORY, False)


def test_driver_that_keeps_pages_and_lists_no_pool_is_observed(sim, spark):
    text = f"""
import time
for _ in range(3):
    give(get({SIZE}))
    time.sleep(3.1)  # holds: what is not back after 3 s, never comes back
give(get({SIZE}))
say(result=take("cuMemAlloc_v2", {ROOM + GIB})[0])
"""
    done = sim.script(BEGIN + text, **spark | {"SGSIM_POOL": "keep"})
    assert (done.result, facts(done)["freed_is_back_at_once"]) == (0, "disproved")
    assert OBSERVED in done.stderr and UNGUARDED not in done.stderr


def test_memory_that_comes_back_late_is_no_surprise(sim, spark):
    text = f"""
import time
for _ in range(4):
    give(get({SIZE}))
    time.sleep(0.3)  # holds: the driver gives back after 100 ms
say(result=take("cuMemAlloc_v2", {ROOM + GIB})[0])
"""
    done = sim.script(BEGIN + text, **spark | {"SGSIM_LATE_FREE": 100})
    assert (done.result, facts(done)["freed_is_back_at_once"]) == (OUT_OF_MEMORY, "disproved")


def test_nothing_is_found_of_a_card_with_memory_of_its_own(sim, spark):
    done = sim.script(BEGIN + f"give(get({SIZE}))", **spark | {"SGSIM_KIND": "discrete"})
    assert known(done) == {} and done.stderr == ""


ZONES = """Node 0, zone   Normal
  pages free     1000
  pagesets
    cpu: 0
              count:    {pages}
              high:     {pages}
    cpu: 1
              count:    7
"""


def test_pages_from_the_lists_of_processors_are_the_machines(sim):
    """No counter of /proc/meminfo has them: a call that they serve alone would seem to take nothing."""
    spark = sim.machine(MACHINE, MACHINE - GIB) | VARIABLES | {"SGSIM_MEMINFO": None, "SPARKGUARD_RESERVE": GIB}
    sim.meminfo.write_text(re.sub(r"AnonPages: *\d+", "AnonPages: 0", sim.meminfo.read_text()))
    go, zones = sim.scratch / "go", sim.root / "proc" / "zoneinfo"
    zones.write_text(ZONES.format(pages=SIZE // mmap.PAGESIZE))
    text = BEGIN + f"held = get({SIZE}); quiet()"
    with sim.tenant(text, SGSIM_HOLD=f"cuMemAlloc_v2:1:{go}", **spark) as tenant:
        wait_until(lambda: go.with_name("go.held").exists())
        zones.write_text(ZONES.format(pages=0))
        go.touch()
        tenant.quiet()
        [process] = sim.guard.processes(tenant.pid)
    assert process["driver_facts"]["device_memory_is_the_machines"] == "proved"
