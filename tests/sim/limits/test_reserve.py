"""RESERVE and its relatives on fake machines: a Spark, a PC with a discrete card, a container."""

import pytest
from conftest import GIB, MIB, OUT_OF_MEMORY, lists
from lib.target import FEWER_ROUNDS, IS_LONG, STRESS_DIVISOR

SPARK = 1217 * GIB // 10 // 4096 * 4096


def fill(sim, call, step, most, **variables):
    return sim.values([sim.program("cuda_calls"), "fill", "linked", call, step, most], **variables)


def last_refusal(done):
    return done.process["refusals"][-1]


@pytest.mark.parametrize("call", ["cudaMalloc", "cudaHostAlloc", "cuMemCreate", "cudaMallocAsync"])
def test_spark_is_filled_to_its_reserve_and_not_beyond(sim, call):
    """1 GiB at a time; 8 % stay. What is freed may be had again."""
    done = fill(sim, call, GIB, 200, **sim.machine(SPARK))
    reserve = SPARK * 8 // 100
    assert done.result == OUT_OF_MEMORY and done.after == 0
    available = SPARK - done.held - (lists(done.held) if call != "cudaHostAlloc" else 0)
    assert reserve <= available
    assert available - GIB < reserve + 16 * MIB, "stopped too early"
    refusal = last_refusal(done)
    assert (refusal["reason"], refusal["domain"]) == ("reserve", "pinned" if call == "cudaHostAlloc" else "device")
    assert abs(refusal["usable_bytes"] - available) < 16 * MIB
    assert "kept in reserve (SPARKGUARD_RESERVE)" in done.stderr
    if call != "cudaMallocAsync":  # its pool keeps what it has
        assert sim.available_bytes() == SPARK


def test_reserve_in_bytes_is_kept_as_given(sim):
    done = fill(sim, "cudaMalloc", GIB, 200, SPARKGUARD_RESERVE="40G", **sim.machine(SPARK))
    assert 40 * GIB <= SPARK - done.held < 41 * GIB + 16 * MIB


def test_managed_memory_is_promised_though_the_kernel_does_not_see_it(sim):
    """The simulator keeps managed memory lazy: MemAvailable does not move, and still it is not given out twice."""
    done = fill(sim, "cudaMallocManaged", GIB, 200, **sim.machine(SPARK))
    assert done.result == OUT_OF_MEMORY
    assert SPARK * 8 // 100 <= SPARK - done.held < SPARK * 8 // 100 + GIB + 16 * MIB
    assert last_refusal(done)["domain"] == "managed"
    assert done.after == 0


def test_cgroup_does_not_bound_device_memory(sim):
    machine = sim.machine(SPARK)
    sim.cgroup(GIB // 2)
    done = fill(sim, "cudaMalloc", GIB, 10, **machine)
    assert (done.granted, done.result) == (10, 0)


@pytest.mark.parametrize("call, domain", [("cudaMallocHost", "pinned"), ("cudaMallocManaged", "managed"), ("cuMemCreate_host", "pinned")])
def test_cgroup_bounds_pinned_and_managed_memory(sim, call, domain):
    """A limit of 2 GiB, of which 0.5 are used: the first GiB fits above 8 %, the second does not."""
    machine = sim.machine(SPARK)
    sim.cgroup(2 * GIB, GIB // 2)
    done = sim.values([sim.program("cuda_calls"), "refuse", "linked", call, 3 * GIB // 2, GIB], **machine)
    assert (done.large, done.reached, done.small) == (OUT_OF_MEMORY, 0, 0)
    refusal = last_refusal(done)
    assert (refusal["reason"], refusal["domain"]) == ("reserve", domain)
    assert "usable in a cgroup of 2.0 GiB" in done.stderr


def test_discrete_card_keeps_a_reserve_of_its_own(sim):
    """24 GiB with 2 % kept; the machine's own memory, small here, is not asked."""
    done = fill(sim, "cudaMalloc", GIB, 50, SGSIM_KIND="discrete", **sim.machine(4 * GIB))
    assert (done.granted, done.result, done.after) == (23, OUT_OF_MEMORY, 0)
    refusal = last_refusal(done)
    assert (refusal["reason"], refusal["domain"]) == ("device", "device")
    assert refusal["usable_bytes"] == GIB
    assert "1.0 GiB free on device 0, 491.5 MiB kept in reserve (SPARKGUARD_DEVICE_RESERVE)" in done.stderr


def test_device_reserve_can_be_set(sim):
    done = fill(sim, "cudaMalloc", GIB, 50, SGSIM_KIND="discrete", SPARKGUARD_DEVICE_RESERVE="4G", **sim.machine(4 * GIB))
    assert done.granted == 20


def test_unified_off_makes_the_sparks_memory_a_pool_of_its_own(sim):
    done = fill(sim, "cudaMalloc", GIB, 50, SPARKGUARD_UNIFIED="off", SGSIM_MEMORY="24G", **sim.machine(SPARK))
    assert done.granted == 23
    assert last_refusal(done)["reason"] == "device"


def test_pinned_memory_of_a_discrete_card_draws_on_the_machine(sim):
    done = fill(sim, "cudaMallocHost", GIB, 50, SGSIM_KIND="discrete", **sim.machine(16 * GIB))
    assert done.granted == 14 and done.result == OUT_OF_MEMORY
    assert (last_refusal(done)["reason"], last_refusal(done)["domain"]) == ("reserve", "pinned")


def test_unified_on_with_a_discrete_card_subtracts_what_it_holds(sim):
    """MemAvailable never shows the card's memory, so what is live there stays subtracted."""
    done = fill(sim, "cudaMalloc", GIB, 50, SGSIM_KIND="discrete", SPARKGUARD_UNIFIED="on", **sim.machine(16 * GIB))
    assert done.granted == 14 and done.result == OUT_OF_MEMORY
    assert last_refusal(done)["reason"] == "reserve"


def test_observing_guard_grants_beyond_the_reserve_and_says_so(sim):
    done = fill(sim, "cudaMalloc", GIB, 130, SPARKGUARD_MODE="observe", **sim.machine(SPARK))
    assert (done.granted, done.result) == (SPARK // (GIB + lists(GIB)), OUT_OF_MEMORY), "only the driver refuses"
    assert done.process["refused_count"] >= 6
    assert "would have refused cudaMalloc" in done.stderr
    assert done.process["guarding"] is True


def test_report_names_the_device(sim):
    points = sim.script_points("start(); ok(take('cuMemAlloc_v2', MIB)[0])\nquiet(kind=1)", SGSIM_DEVICES=2)
    for _, entry in points:
        machine = sim.guard.report()["machine"]
        assert machine["unified"] is True
        [device] = [d for d in machine["devices"] if d["live_bytes"]]
        assert (device["index"], device["name"], device["live_bytes"]) == (0, "NVIDIA GB10 (simulated)", MIB)
        assert entry["domains"]["device"]["live_bytes"] == MIB


@pytest.mark.parametrize("variables, reserve", [({}, 492 * MIB), ({"SPARKGUARD_DEVICE_RESERVE": "1G"}, GIB)])
def test_a_device_of_its_own_shows_its_reserve(sim, variables, reserve):
    """2 % of 24 GiB are 491.5 MiB. A Spark's device keeps nothing of its own."""
    text = "start(); ok(take('cuMemAlloc_v2', MIB)[0])\nquiet(kind=1)"
    for kind, shown in (("discrete", reserve), (None, None)):
        for _ in sim.script_points(text, SGSIM_KIND=kind, **variables):
            [device] = [d for d in sim.guard.report()["machine"]["devices"] if d["live_bytes"]]
            assert device["reserve_bytes"] == shown


def test_second_device_is_counted_as_itself(sim):
    points = sim.script_points("start(1); ok(take('cuMemAlloc_v2', 3 * MIB)[0])\nquiet(kind=1)", SGSIM_DEVICES=2)
    for _, _ in points:
        devices = {d["index"]: d["live_bytes"] for d in sim.guard.report()["machine"]["devices"]}
        assert devices[1] == 3 * MIB


@pytest.mark.parametrize("call", ["cuMemAlloc_v2", "cuMemHostAlloc", "cuMemAllocManaged"])
def test_of_two_that_ask_at_once_exactly_one_gets_what_fits_once(sim, call):
    machine, rounds = sim.machine(16 * GIB), 200 // FEWER_ROUNDS
    done = sim.values([sim.program("cuda_race"), "once", call, 9 * GIB, rounds], **machine)
    assert (done.both, done.none, done.others) == (0, 0, 0)
    assert done.process["refused_count"] == rounds
    if call != "cuMemAllocManaged":
        assert sim.available_bytes() == 16 * GIB


def test_of_two_that_ask_at_once_exactly_one_gets_what_fits_the_limit_once(sim):
    done = sim.values([sim.program("cuda_race"), "once", "cuMemAlloc_v2", 40 * MIB, 200 // FEWER_ROUNDS], SPARKGUARD_LIMIT="64M")
    assert (done.both, done.none, done.others) == (0, 0, 0)


def test_of_two_that_ask_at_once_exactly_one_gets_what_fits_the_device_once(sim):
    variables = {"SGSIM_KIND": "discrete", "SGSIM_MEMORY": "12G", "SPARKGUARD_DEVICE_RESERVE": "2G"} | sim.machine(16 * GIB)
    done = sim.values([sim.program("cuda_race"), "once", "cuMemAlloc_v2", 5 * GIB + 1, (10000 if IS_LONG else 4000) // FEWER_ROUNDS // STRESS_DIVISOR], **variables)
    assert (done.both, done.none, done.others) == (0, 0, 0)


@pytest.mark.parametrize("variables", [{"SPARKGUARD_LIMIT": "100M"}, {"SPARKGUARD_LIMIT": "100M", "SGSIM_KIND": "discrete"}])
def test_two_that_both_fit_the_limit_are_never_refused(sim, variables):
    """Between the driver's answer and the end of a request its bytes must not count twice."""
    done = sim.values([sim.program("cuda_race"), "apart", "cuMemAlloc_v2", 40 * MIB, (50000 if IS_LONG else 15000) // FEWER_ROUNDS], **variables)
    assert (done.refused, done.others) == (0, 0), done.stderr


def test_two_that_both_fit_the_machine_are_never_refused(sim):
    done = sim.values([sim.program("cuda_race"), "apart", "cuMemAlloc_v2", 5 * GIB, 1000 // FEWER_ROUNDS], **sim.machine(16 * GIB))
    assert (done.refused, done.others) == (0, 0), done.stderr


@pytest.mark.parametrize("mig", ["yes", "no"])
def test_instances_of_one_card_do_not_count_against_each_other(sim, mig):
    """What is in flight on one MIG instance takes nothing of its sibling, as on two cards."""
    go = sim.scratch / "go"
    variables = {"SGSIM_KIND": "discrete", "SGSIM_DEVICES": 2, "SGSIM_MIG": mig} | sim.machine(16 * GIB)
    text = "start()\nsay(result=take('cuMemAlloc_v2', 14 * GIB)[0])\nquiet()"
    with sim.tenant(text, SGSIM_HOLD=f"cuMemAlloc_v2:1:{go}", CUDA_VISIBLE_DEVICES="0", **variables) as first:
        while not go.with_name("go.held").exists():
            assert first.process.poll() is None
        with sim.tenant(text, CUDA_VISIBLE_DEVICES="1", **variables) as second:
            assert second.quiet().result == 0
            go.touch()
            assert first.quiet().result == 0


def test_two_processes_on_one_instance_share_it(sim):
    go = sim.scratch / "go"
    variables = {"SGSIM_KIND": "discrete", "SGSIM_DEVICES": 2, "SGSIM_MIG": "yes", "CUDA_VISIBLE_DEVICES": "1"} | sim.machine(16 * GIB)
    text = "start()\nsay(result=take('cuMemAlloc_v2', 14 * GIB)[0])\nquiet()"
    with sim.tenant(text, SGSIM_HOLD=f"cuMemAlloc_v2:1:{go}", **variables) as first:
        while not go.with_name("go.held").exists():
            assert first.process.poll() is None
        with sim.tenant(text, **variables) as second:
            assert second.quiet().result == OUT_OF_MEMORY
            go.touch()
            assert first.quiet().result == 0
