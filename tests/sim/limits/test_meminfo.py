"""SPARKGUARD_MEMINFO: what cudaMemGetInfo and its relatives say is what a guarded program may really take.

Where a test says "exactly", a C program asks for just the answer, and then for 2 MiB more than the answer.
"""

import pytest
from conftest import GIB, MIB, OUT_OF_MEMORY, lists

SPARK = 1217 * GIB // 10 // 4096 * 4096
RESERVE = SPARK * 8 // 100
NEAR = 16 * MIB  # what small programs hold and are promised besides

ASK = """
start()
asked = calls("cuMemGetInfo_v2")
"""

SAY_INFO = """
free, total = info()
say(free=free, total=total, asked=calls("cuMemGetInfo_v2") - asked)
"""


def listed(room):
    """The most device memory that fits into so much room: the driver's lists of its pages come on top."""
    return room * 160 // 161


def exactly(sim, kind="device", entry="linked", program="cuda_meminfo", more=OUT_OF_MEMORY, **variables):
    """The program's answers, of which the exact request must have been granted, and more than that refused."""
    done = sim.values([sim.program(program), entry, kind], **variables)
    assert (done.result, done.again) == (0, 0)
    assert 0 <= done.free <= done.total
    assert done.total == done.total_again == done.device_total, "fixed at the first question"
    assert (done.exact, done.more) == (0, more)
    assert abs(done.free_again - done.free) <= MIB
    return done


@pytest.mark.parametrize("kind", ["device", "pinned", "managed"])
def test_what_is_said_to_be_free_is_granted_and_no_more(sim, kind):
    """What is not device memory has no lists, and could have a little more."""
    done = exactly(sim, kind, more=OUT_OF_MEMORY if kind == "device" else 0, **sim.machine(SPARK, SPARK - 4 * GIB))
    assert listed(SPARK - 4 * GIB - RESERVE) - NEAR <= done.free <= listed(SPARK - 4 * GIB - RESERVE)
    assert done.free <= done.total <= SPARK - 4 * GIB - RESERVE


@pytest.mark.parametrize("program", ["cuda_meminfo", "cuda_meminfo_static"])
@pytest.mark.parametrize("entry", ["linked", "dlsym", "address4", "address5", "runtime"])
def test_every_entry_point_says_the_same(sim, program, entry):
    done = exactly(sim, "device", entry, program, **sim.machine(SPARK, SPARK - 4 * GIB))
    assert listed(SPARK - 4 * GIB - RESERVE) - NEAR <= done.free <= listed(SPARK - 4 * GIB - RESERVE)


def test_page_cache_counts_as_free(sim):
    """60 GiB of it: the driver says 56 GiB are free, and 106 may be had."""
    done = sim.script(ASK + SAY_INFO, **sim.machine(SPARK, SPARK - 5 * GIB, 60 * GIB))
    assert listed(SPARK - 5 * GIB - RESERVE) - NEAR <= done.free <= listed(SPARK - 5 * GIB - RESERVE)


@pytest.mark.parametrize("kind", ["device", "pinned", "managed"])
def test_limit_bounds_what_is_said(sim, kind):
    done = exactly(sim, kind, SPARKGUARD_LIMIT="30G", **sim.machine(SPARK))
    assert 30 * GIB - NEAR <= done.free <= 30 * GIB
    assert done.total <= 30 * GIB


def test_limit_is_the_jobs(sim):
    """Another process of the job holds 10 GiB of it."""
    machine = sim.machine(SPARK) | {"SPARKGUARD_LIMIT": "30G", "SPARKGUARD_JOB": "pair"}
    with sim.tenant("start(); ok(take('cuMemAlloc_v2', 10 * GIB)[0]); quiet()", **machine) as other:
        other.quiet()
        done = exactly(sim, **machine)
        assert 20 * GIB - NEAR <= done.free <= 20 * GIB
        other.finish()


def test_cgroup_bounds_what_is_said_to_who_uses_managed_memory(sim):
    """2 GiB, of which 0.5 are used and 8 % kept."""
    machine = sim.machine(SPARK)
    sim.cgroup(2 * GIB, GIB // 2)
    done = exactly(sim, "managed", **machine)
    room = 2 * GIB - GIB // 2 - 2 * GIB * 8 // 100
    assert room - NEAR <= done.free <= room


@pytest.mark.parametrize("call", ["cuMemAlloc_v2", "cuMemAllocManaged", "cuMemHostAlloc"])
def test_second_tenant_is_told_what_the_first_left(sim, call):
    """The total is as if the other's memory were there: 0.45 of it for each of two is a fair share."""
    machine = sim.machine(SPARK)
    flags = {"cuMemAllocManaged": ", c_uint(1)", "cuMemHostAlloc": ", c_uint(0)"}.get(call, "")
    with sim.tenant(f"start(); ok(take('{call}', 40 * GIB{flags})[0]); quiet()", **machine) as other:
        other.quiet()
        done = exactly(sim, **machine)
        room = SPARK - RESERVE - (lists(40 * GIB) if call == "cuMemAlloc_v2" else 0)
        assert listed(room - 40 * GIB) - NEAR <= done.free <= listed(room - 40 * GIB)
        assert room - NEAR <= done.total <= room
        other.finish()


def test_own_memory_is_part_of_the_total(sim):
    done = sim.script(ASK + "ok(take('cuMemAlloc_v2', 30 * GIB)[0])" + SAY_INFO, **sim.machine(SPARK))
    room = SPARK - RESERVE - lists(30 * GIB)
    assert room - NEAR <= done.total <= room
    most = listed(done.total - 30 * GIB) + MIB  # the total was fixed before the program had touched its own small memory
    assert most - NEAR <= done.free <= most


def test_total_is_what_the_driver_has_where_that_is_less(sim):
    done = sim.script(ASK + SAY_INFO, SGSIM_MEMORY="20G", **sim.machine(SPARK))
    assert 20 * GIB - RESERVE - NEAR <= done.total <= 20 * GIB - RESERVE
    assert done.free <= done.total


def test_total_stays_and_free_follows_the_machine(sim):
    with sim.tenant(ASK + SAY_INFO + "quiet()" + SAY_INFO + "quiet()" + SAY_INFO, **sim.machine(SPARK)) as program:
        first = program.quiet()
        sim.machine_move("other", 30 * GIB)
        program.go()
        second = program.quiet()
        sim.machine_move("other", -30 * GIB)
        third = program.finish()
    assert first.total == second.total == third.total
    assert abs(first.free - second.free - listed(30 * GIB)) <= NEAR
    assert abs(first.free - third.free) <= NEAR


def test_never_more_free_than_total(sim):
    """The first question came when others held 60 GiB; then they went."""
    with sim.tenant(ASK + SAY_INFO + "quiet()" + SAY_INFO, **sim.machine(SPARK, SPARK - 60 * GIB)) as program:
        first = program.quiet()
        sim.machine_move("other", -60 * GIB)
        second = program.finish()
    assert first.total == second.total == second.free


def test_never_less_than_nothing(sim):
    with sim.tenant(ASK + "quiet()" + SAY_INFO, **sim.machine(SPARK)) as program:
        program.quiet()
        sim.machine_move("other", SPARK - RESERVE // 2)
        done = program.finish()
    assert done.free == 0
    assert SPARK - RESERVE - NEAR <= done.total <= SPARK - RESERVE, "programs divide by it: that of an empty machine"


@pytest.mark.parametrize("entry", ["linked", "runtime"])
@pytest.mark.parametrize("device", [2 * GIB, RESERVE + MIB], ids=["smaller than the reserve", "a little larger"])
def test_small_device_of_a_large_machine_says_what_it_would_grant(sim, entry, device):
    """The reserve is the machine's, which has room for all of the device."""
    done = sim.values([sim.program("cuda_meminfo"), entry, "device"], SGSIM_MEMORY=device, **sim.machine(SPARK))
    assert (done.result, done.again, done.exact) == (0, 0, 0)
    assert min(device, RESERVE) - NEAR <= done.free <= done.total <= device


def test_near_the_wall_the_driver_is_not_asked(sim):
    """Where it can hang: here it would for ever."""
    text = ASK + "quiet()\ncuda.sgsim_hold(b'cuMemGetInfo_v2', -1, b'/no/such/file')" + SAY_INFO
    with sim.tenant(text, **sim.machine(SPARK)) as program:
        program.quiet()
        sim.machine_move("other", SPARK - GIB)
        done = program.finish()
    assert (done.free, done.asked) == (0, 0)


def test_drivers_own_out_of_memory_is_replaced(sim):
    done = sim.script(ASK + SAY_INFO, SGSIM_FAIL="cuMemGetInfo_v2:*:2", **sim.machine(SPARK))
    assert listed(SPARK - RESERVE) - NEAR <= done.free <= listed(SPARK - RESERVE)
    assert done.free <= done.total


ERRORS = """
def ask(free, total):
    before = [v.value for v in (free, total) if v is not None]
    result = cuda.cuMemGetInfo_v2(*(byref(v) if v is not None else None for v in (free, total)))
    assert result == 0 or [v.value for v in (free, total) if v is not None] == before, "outputs were touched"
    return result
one, two = c_size_t(11), c_size_t(22)
"""


def test_every_other_error_stays(sim):
    done = sim.script(
        ERRORS
        + """
say(uninitialised=ask(one, two))
ok(cuda.cuInit(0))
say(contextless=ask(one, two))
start()
say(no_free=ask(None, two), no_total=ask(one, None))
fail("cuMemGetInfo_v2", 1, 700)
say(fault=ask(one, two))
fail("cuDeviceTotalMem_v2", 1, 700)
say(total_fault=cuda.cuDeviceTotalMem_v2(byref(one), 0), no_device=cuda.cuDeviceTotalMem_v2(byref(one), 7))
say(total_pointer=cuda.cuDeviceTotalMem_v2(None, 0), after=ask(one, two))
""",
        **sim.machine(SPARK),
    )
    assert (done.uninitialised, done.contextless, done.no_free, done.no_total, done.fault) == (3, 201, 1, 1, 700)
    assert (done.total_fault, done.no_device, done.total_pointer, done.after) == (700, 101, 1, 0)


def test_runtimes_error_stays_as_it_is(sim):
    """cudaMemGetInfo must not fail where PyTorch asks it for its message about an out of memory."""
    done = sim.script(
        """
runtime = ctypes.CDLL("libcudart.so.13")
free, total, p = c_size_t(0), c_size_t(0), c_void_p()
say(refused=runtime.cudaMalloc(byref(p), c_size_t(500 * GIB)), cleared=runtime.cudaGetLastError())
say(asked=runtime.cudaMemGetInfo(byref(free), byref(total)), last=runtime.cudaGetLastError(), free=free.value)
""",
        **sim.machine(SPARK),
    )
    assert (done.refused, done.cleared, done.asked, done.last) == (2, 2, 0, 0)
    assert listed(SPARK - RESERVE) - NEAR <= done.free <= listed(SPARK - RESERVE)


def test_narrow_questions_say_the_same_as_far_as_they_can(sim):
    done = sim.script(
        ASK
        + """
ok(take("cuMemAlloc_v2", 13 * GIB)[0])
free, total, device = c_uint(0), c_uint(0), c_uint(0)
ok(cuda.cuMemGetInfo(byref(free), byref(total)))
ok(cuda.cuDeviceTotalMem(byref(device), 0))
say(narrow_free=free.value, narrow_total=total.value, narrow_device=device.value)
"""
        + SAY_INFO,
        **sim.machine(16 * GIB),
    )
    assert 0 < done.free < 4 * GIB < done.total
    assert abs(done.narrow_free - done.free) <= NEAR
    assert done.narrow_total == done.narrow_device == 4 * GIB - 1


@pytest.mark.parametrize("variables", [{"SPARKGUARD_MEMINFO": "raw"}, {"SPARKGUARD_DISABLE": "1"}])
def test_raw_leaves_the_drivers_numbers(sim, variables):
    """MemFree, and all that the device has."""
    done = sim.script(ASK + SAY_INFO, **variables, **sim.machine(SPARK, SPARK - 5 * GIB, 60 * GIB))
    assert (done.free, done.total, done.asked) == (SPARK - 65 * GIB, SPARK, 1)


def test_discrete_card_says_its_own(sim):
    text = ASK + "ok(take('cuMemAlloc_v2', GIB)[0])" + SAY_INFO
    done = sim.script(text, SGSIM_KIND="discrete", **sim.machine(4 * GIB))
    assert (done.free, done.total) == (23 * GIB, 24 * GIB)


def test_vllm_finds_its_share_on_an_idle_machine(sim):
    """It starts only where free is at least 0.92 of the total."""
    done = sim.script(ASK + SAY_INFO, SGSIM_CONTEXT="2662M", **sim.machine(SPARK, SPARK - 4 * GIB))
    assert done.free >= done.total * 92 // 100
