"""A context announces nothing and costs GiBs: making one is a request of the size last measured on this machine."""

import contextlib
import itertools

import pytest
from conftest import GIB, MIB, OUT_OF_MEMORY, lists
from contexts import CONTEXT_CALLS
from lib.ledger import Ledger
from lib.waiting import wait_until

SPARK = 1217 * GIB // 10 // 4096 * 4096
RESERVE = SPARK * 8 // 100
FIRST_GUESS = 512 * MIB
COST = 2662 * MIB  # what a context takes where SGSIM_CONTEXT says so: 2.6 GiB, as in the field
NEAR = 16 * MIB
NUMBERS = itertools.count()

# How each call that makes a context is made: `create(name)` answers (result, handle).
CREATE = """
def create(name, device=0):
    out = c_uint64(77)
    if name == "cuDevicePrimaryCtxRetain":
        return call(name, byref(out), device), out.value
    if name == "cuGreenCtxCreate":
        resource, desc = (ctypes.c_ubyte * 512)(), c_void_p()
        ok(cuda.cuDeviceGetDevResource(device, resource, 1))
        ok(cuda.cuDevResourceGenerateDesc(byref(desc), resource, 1))
        return call(name, byref(out), desc, device, 1), out.value
    before = {"cuCtxCreate_v3": (None, 0), "cuCtxCreate_v4": (None,)}.get(name, ())
    return call(name, byref(out), *before, 0, device), out.value
ok(cuda.cuInit(0))
"""


def room(size):
    """What a fake Spark has available where `size` is left above the reserve."""
    return RESERVE + size + NEAR


def create_one(sim, name="cuDevicePrimaryCtxRetain", **variables):
    text = CREATE + f"result, out = create('{name}')\nsay(result=result, out=out, reached=calls('{name}'))"
    return sim.script(text, **variables)


@pytest.mark.parametrize("name", CONTEXT_CALLS)
def test_context_that_does_not_fit_is_refused(sim, name):
    done = create_one(sim, name, **sim.machine(SPARK, room(FIRST_GUESS - 100 * MIB)))
    assert (done.result, done.out, done.reached) == (OUT_OF_MEMORY, 77, 0)
    assert done.process["refused_count"] == 1
    [refusal] = done.process["refusals"]
    assert (refusal["call"], refusal["reason"]) == (name.partition("_")[0], "reserve")
    assert refusal["size_bytes"] == FIRST_GUESS
    assert f"sparkguard: refused {name.partition('_')[0]} of 512.0 MiB" in done.stderr


@pytest.mark.parametrize("name", CONTEXT_CALLS)
def test_context_that_fits_is_made(sim, name):
    done = create_one(sim, name, **sim.machine(SPARK, room(FIRST_GUESS)))
    assert (done.result, done.reached) == (0, 1) and done.out != 77


def test_runtime_says_out_of_memory_and_may_try_again(sim):
    with sim.tenant(
        """
runtime = ctypes.CDLL("libcudart.so.13")
p = c_void_p()
say(first=runtime.cudaFree(None), last=runtime.cudaGetLastError())
quiet()
say(again=runtime.cudaFree(None), small=runtime.cudaMalloc(byref(p), c_size_t(MIB)))
""",
        **sim.machine(SPARK, room(100 * MIB)),
    ) as program:
        first = program.quiet()
        sim.machine_move("other", -20 * GIB)
        second = program.finish()
    assert (first.first, first.last) == (OUT_OF_MEMORY, OUT_OF_MEMORY)
    assert (second.again, second.small) == (0, 0)


@pytest.mark.parametrize("is_alive", [True, False], ids=["alive", "ended"])
def test_second_process_is_judged_by_what_the_first_ones_context_took(sim, is_alive):
    variables = sim.machine(SPARK) | {"SGSIM_CONTEXT": COST}
    with sim.tenant(CREATE + "say(result=create('cuDevicePrimaryCtxRetain')[0])\nquiet()", **variables) as first:
        assert first.quiet().result == 0
        if not is_alive:
            first.finish()
            sim.settle()
        sim.machine_move("other", sim.available_bytes() - room(COST - 200 * MIB))
        refused = create_one(sim, **variables)
        assert (refused.result, refused.reached) == (OUT_OF_MEMORY, 0)
        assert abs(refused.process["refusals"][-1]["size_bytes"] - COST) <= NEAR
        sim.machine_move("other", -200 * MIB - NEAR)
        assert create_one(sim, **variables).result == 0
    assert sim.machine_bytes("least_available") >= RESERVE


def test_cheaper_context_is_measured_too(sim):
    """The last ones count, not the largest: what was learned of another program's context does not stay for ever."""
    machine = sim.machine(SPARK)
    for cost in (COST, "300M", "300M"):
        assert create_one(sim, SGSIM_CONTEXT=cost, **machine).result == 0
    sim.machine_move("other", sim.available_bytes() - room(400 * MIB))
    assert create_one(sim, SGSIM_CONTEXT="300M", **machine).result == 0


def expected(sim):
    """What the next context is asked for."""
    return Ledger(sim.guard.directory).get("context_bytes")


@contextlib.contextmanager
def held_context(sim, text=CREATE + "say(result=create('cuDevicePrimaryCtxRetain')[0])", **variables):
    """Inside the block a program makes a context of COST, and has not taken it yet. Afterwards it has ended."""
    go = sim.scratch / f"go{next(NUMBERS)}"
    hold = {"SGSIM_HOLD": f"cuDevicePrimaryCtxRetain:1:{go}", "SGSIM_CONTEXT": COST}
    with sim.tenant(text, **variables | hold) as program:
        while not go.with_name(go.name + ".held").exists():
            assert program.process.poll() is None
        yield program
        go.touch()
        assert program.finish().result == 0


def test_what_an_unguarded_program_takes_meanwhile_does_not_count_for_long(sim):
    machine = sim.machine(SPARK)
    with held_context(sim, **machine):
        sim.machine_move("other", 40 * GIB)
    assert expected(sim) == 4 * GIB, "no context costs more"
    with held_context(sim, **machine):
        pass
    assert abs(expected(sim) - COST) <= NEAR
    with held_context(sim, **machine):
        sim.machine_move("other", 30 * GIB)
    with held_context(sim, **machine):
        sim.machine_move("other", -30 * GIB)
    assert create_one(sim, SGSIM_CONTEXT="100M", **machine).result == 0
    assert abs(expected(sim) - COST) <= NEAR, "one that cost little does not let the next slip below the reserve"


def test_on_a_small_machine_less_is_believed(sim):
    with held_context(sim, **sim.machine(32 * GIB)):
        sim.machine_move("other", 10 * GIB)
    assert expected(sim) == 2 * GIB


def test_absurd_figure_in_the_ledger_refuses_nobody(sim):
    machine = sim.machine(SPARK)
    assert create_one(sim, SGSIM_CONTEXT=COST, **machine).result == 0
    Ledger(sim.guard.directory).put("context_bytes", (1 << 64) - 1)
    assert create_one(sim, SGSIM_CONTEXT=COST, **machine).result == 0
    assert abs(expected(sim) - COST) <= NEAR


PROMISED = 400 * MIB
# A promise that is kept at the next quiet point.
TOUCH = f"""
import mmap
memory = mmap.mmap(-1, {PROMISED}, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
def touch():
    for at in range(0, {PROMISED}, mmap.PAGESIZE):
        memory[at] = 1
"""


def test_promise_that_another_tenant_touches_meanwhile_is_not_the_contexts(sim):
    machine = sim.machine(SPARK)
    with sim.tenant(TOUCH + "quiet(); touch(); quiet()", SPARKGUARD_WATCHDOG="off", **machine) as tenant:
        tenant.quiet()
        with held_context(sim, **machine):
            tenant.go()
            tenant.quiet()
            sim.machine_move("other", PROMISED)
        # What another tenant has touched is the kernel's figure of it; its interpreter takes and frees memory meanwhile, too.
        assert abs(expected(sim) - COST) <= PROMISED / 8


def test_promise_that_the_program_itself_touches_meanwhile_is_not_the_contexts(sim):
    text = (
        CREATE
        + TOUCH
        + """
import threading
def keep():
    sys.stdin.readline()
    touch()
    print("quiet", flush=True)
thread = threading.Thread(target=keep)
thread.start()
say(result=create("cuDevicePrimaryCtxRetain")[0])
thread.join()
"""
    )
    with held_context(sim, text, SPARKGUARD_WATCHDOG="off", **sim.machine(SPARK)) as program:
        program.go()
        program.quiet()
        sim.machine_move("other", PROMISED)
    # The stacks of its threads are in the kernel's figure as well.
    assert abs(expected(sim) - COST) <= PROMISED / 8


def test_promise_that_only_its_owner_can_see_is_looked_at_by_its_watchdog(sim):
    """Managed memory is in no figure of the kernel's for the process: its watchdog looks by itself, and lowers the promise."""
    promised = 64 * MIB
    text = f"""
start()
ok(cuda.cuMemAllocManaged(byref(p := c_uint64()), c_size_t({promised}), 1))
quiet()
ctypes.memset(p.value, 1, {promised})
quiet()
"""
    machine = sim.machine(SPARK)
    with sim.tenant(text, SGSIM_BACKING="lazy", **machine) as tenant:
        tenant.quiet()
        with held_context(sim, **machine):
            tenant.go()
            tenant.quiet()
            sim.machine_move("other", promised)
            ledger = Ledger(sim.guard.directory)
            wait_until(lambda: sum(ledger.get("shared_promised_bytes", number) for number in range(8)) < NEAR)
        assert abs(expected(sim) - COST) <= 2 * NEAR


def test_active_primary_context_is_no_request(sim):
    text = (
        CREATE
        + """
say(first=create("cuDevicePrimaryCtxRetain")[0])
quiet()
say(second=create("cuDevicePrimaryCtxRetain")[0], own=create("cuCtxCreate_v4")[0])
ok(cuda.cuDevicePrimaryCtxRelease_v2(0)); ok(cuda.cuDevicePrimaryCtxRelease_v2(0))
say(released=create("cuDevicePrimaryCtxRetain")[0])
"""
    )
    with sim.tenant(text, SGSIM_CONTEXT="700M", **sim.machine(SPARK)) as program:
        assert program.quiet().first == 0
        sim.machine_move("other", sim.available_bytes() - room(100 * MIB) + NEAR)
        done = program.finish()
    assert (done.second, done.own) == (0, OUT_OF_MEMORY)
    assert done.released == 0, "what the release gave back is enough for another"


def test_context_after_a_reset_is_a_request(sim):
    text = (
        CREATE
        + """
say(first=create("cuDevicePrimaryCtxRetain")[0])
ok(cuda.cuDevicePrimaryCtxReset_v2(0))
quiet()
say(again=create("cuDevicePrimaryCtxRetain")[0])
"""
    )
    with sim.tenant(text, SGSIM_CONTEXT="700M", **sim.machine(SPARK)) as program:
        assert program.quiet().first == 0
        sim.machine_move("other", sim.available_bytes() - room(600 * MIB))
        assert program.finish().again == OUT_OF_MEMORY


@pytest.mark.parametrize("name, destroy", [("cuCtxCreate_v4", "cuCtxDestroy_v2"), ("cuDevicePrimaryCtxRetain", None)])
def test_report_shows_it_as_unaccounted(sim, name, destroy):
    text = (
        CREATE
        + f"""
result, out = create("{name}")
ok(result)
quiet(unaccounted=live("context"))
ok(cuda.{destroy or "cuDevicePrimaryCtxReset_v2"}({"c_void_p(out)" if destroy else 0}))
quiet(unaccounted=live("context"))
"""
    )
    for said, entry in sim.script_points(text, SGSIM_CONTEXT=COST, **sim.machine(SPARK)):
        assert abs((entry["unaccounted_bytes"] or 0) - said.unaccounted) <= NEAR
        assert (entry["domains"]["device"]["live_bytes"], entry["internal_faults"]) == (0, 0)


@pytest.mark.parametrize("limit", range(7))
def test_of_limits_only_those_that_take_memory_are_measured(sim, limit):
    """What others take meanwhile cannot be told apart: it counts where it may be the context's, and not at a hint to a cache."""
    variables = sim.machine(SPARK)
    done = sim.script(
        f"""
import os
start()
cuda.sgsim_machine_move.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_longlong]
others = ctypes.CFUNCTYPE(None)(lambda: cuda.sgsim_machine_move(os.environb[b"SGSIM_MEMINFO"], b"other", {GIB}))
cuda.sgsim_behind(b"cuCtxSetLimit", 1, others)
ok(cuda.cuCtxSetLimit({limit}, c_size_t(MIB)))
""",
        **variables,
    )
    assert abs((done.process["unaccounted_bytes"] or 0) - (GIB if limit < 5 else 0)) <= NEAR


@pytest.mark.parametrize(
    "name, destroy, other",
    [("cuCtxCreate_v4", "cuCtxDestroy_v2", "cuDevicePrimaryCtxRetain"), ("cuDevicePrimaryCtxRetain", None, "cuCtxCreate_v4")],
)
@pytest.mark.parametrize("cost", ["0", "700M"])
def test_what_its_limits_take_is_unaccounted_until_it_ends(sim, name, destroy, other, cost):
    """A heap for kernels is no allocation: measured, like a context, but nothing that the next context is expected to take. The other
    context stays."""
    text = (
        CREATE
        + f"""
ok(create("{other}")[0])
result, out = create("{name}")
ok(result)
ok(cuda.cuCtxSetCurrent(c_void_p(out)))
quiet(unaccounted=live("context"))
for bytes in 3 * GIB, 4 * GIB, 2 * GIB:
    ok(cuda.cuCtxSetLimit(2, c_size_t(bytes)))
    quiet(unaccounted=live("context"))
say(failed=cuda.cuCtxSetLimit(99, c_size_t(GIB)), looked=calls("cuCtxSetLimit"))
ok(cuda.{destroy or "cuDevicePrimaryCtxReset_v2"}({"c_void_p(out)" if destroy else 0}))
quiet(unaccounted=live("context"))
"""
    )
    learned = []
    for said, entry in sim.script_points(text, SGSIM_CONTEXT=cost, **sim.machine(SPARK)):
        assert abs((entry["unaccounted_bytes"] or 0) - said.unaccounted - lists(said.unaccounted)) <= NEAR
        assert entry["domains"]["device"]["live_bytes"] == 0
        learned.append(expected(sim))
    assert len(learned) == 5 and len(set(learned)) == 1


def test_ninth_devices_context_takes_nothing_of_the_firsts_with_it(sim):
    """Of a device without a number of its own a context is not measured."""
    text = "start(0); start(8)\nquiet()\nok(cuda.cuDevicePrimaryCtxReset_v2(8))\nquiet()"
    for _, entry in sim.script_points(text, SGSIM_DEVICES=9, SGSIM_CONTEXT=COST, **sim.machine(SPARK)):
        assert abs(entry["unaccounted_bytes"] - COST) <= NEAR


def test_allocations_beside_it_are_not_unaccounted(sim):
    text = (
        CREATE
        + "start(); ok(take('cuMemAlloc_v2', 5 * GIB)[0]); ok(take('cuMemHostAlloc', GIB, c_uint(0))[0])\nquiet()"
    )
    for _, entry in sim.script_points(text, SGSIM_CONTEXT=COST, **sim.machine(SPARK)):
        assert abs(entry["unaccounted_bytes"] - COST) <= NEAR
        assert entry["domains"]["device"]["live_bytes"] == 5 * GIB


def test_of_two_contexts_made_at_once_one_fits(sim):
    """The first is held inside the driver, before it takes anything; then the second asks."""
    go = sim.scratch / "go"
    variables = sim.machine(SPARK, room(FIRST_GUESS + 200 * MIB)) | {"SGSIM_CONTEXT": FIRST_GUESS}
    text = CREATE + "say(result=create('cuCtxCreate_v4')[0])\nquiet()"
    with sim.tenant(text, SGSIM_HOLD=f"cuCtxCreate_v4:1:{go}", **variables) as first:
        while not go.with_name("go.held").exists():
            assert first.process.poll() is None
        with sim.tenant(text, **variables) as second:
            assert second.quiet().result == OUT_OF_MEMORY, "what is in flight is taken"
            go.touch()
            assert first.quiet().result == 0
    assert sim.machine_bytes("least_available") >= RESERVE


def test_context_is_device_memory_that_no_cgroup_bounds(sim):
    machine = sim.machine(SPARK)
    sim.cgroup(128 * MIB, 120 * MIB)
    assert create_one(sim, **machine).result == 0


def test_every_other_error_stays(sim):
    done = sim.script(
        CREATE
        + """
say(device=create("cuCtxCreate_v4", 9)[0], primary=create("cuDevicePrimaryCtxRetain", 9)[0])
say(pointer=cuda.cuCtxCreate_v2(None, 0, 0), primary_pointer=cuda.cuDevicePrimaryCtxRetain(None, 0))
fail("cuCtxCreate_v4", 1, 999)
say(unknown=create("cuCtxCreate_v4")[0], after=create("cuCtxCreate_v4")[0])
""",
        **sim.machine(SPARK),
    )
    assert (done.device, done.primary, done.pointer, done.primary_pointer) == (101, 101, 1, 1)
    assert (done.unknown, done.after) == (999, 0)
    assert done.process is None or done.process["refused_count"] == 0


def test_context_on_a_discrete_card_takes_nothing_of_the_machine(sim):
    machine = sim.machine(16 * GIB, 16 * GIB * 8 // 100 + 8 * MIB)
    done = create_one(sim, SGSIM_KIND="discrete", SGSIM_CONTEXT=COST, **machine)
    assert done.result == 0


def test_observing_guard_makes_it_and_says_so(sim):
    done = create_one(sim, SPARKGUARD_MODE="observe", **sim.machine(SPARK, room(0)))
    assert done.result == 0
    assert "would have refused cuDevicePrimaryCtxRetain" in done.stderr


@pytest.mark.parametrize("error", [700, 999])
@pytest.mark.parametrize("failing", [["cuCtxGetDevice"], ["cuCtxGetDevice", "cuCtxGetDevice_v2"]])
def test_device_that_the_driver_does_not_tell_is_asked_for_again_or_the_last_one_it_told(sim, failing, error):
    """The request is judged all the same, on the device and in the context it is made in, and goes with that."""
    points = sim.script_points(
        f"""
start()
context, elsewhere = c_void_p(), c_void_p()
ok(cuda.cuCtxCreate_v2(byref(context), 0, 1))
ok(take("cuMemAlloc_v2", MIB)[0])
[fail(symbol, 1, {error}) for symbol in {failing}]
ok(take("cuMemAlloc_v2", 4 * MIB)[0])
[fail(symbol, 1, {error}) for symbol in {failing}]
over = take("cuMemAlloc_v2", 60 * MIB)[0]
quiet(device=live("device"), over=over)
ok(cuda.cuCtxDestroy_v2(context))
quiet(device=live("device"), over=over)
""",
        SGSIM_DEVICES=2,
        SPARKGUARD_LIMIT="64M",
    )
    (first, entry), (last, behind) = points
    assert first.over == OUT_OF_MEMORY
    assert first.device == entry["domains"]["device"]["live_bytes"] == 5 * MIB
    assert last.device == behind["domains"]["device"]["live_bytes"] == 0
