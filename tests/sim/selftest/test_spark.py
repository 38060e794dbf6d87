"""What the driver of a machine with one memory does beside other processes, by the simulator alone: nothing here is guarded but the
forerunners that say so."""

import threading

import pytest
from conftest import GIB, KHO_PART, MIB, OUT_OF_MEMORY, SPARK, lists
from lib.forerunners import CONTEXT, TOTAL, UNGUARDED, WAYS, forerun, living, machine_with_pools

NVML = """
import time
nvml = ctypes.CDLL("libnvidia-ml.so.1")
class Process(ctypes.Structure):
    _fields_ = [("pid", c_uint), ("bytes", c_ulonglong), ("instance", c_uint), ("compute", c_uint)]
def listed():
    device, count, found = c_void_p(), c_uint(16), (Process * 16)()
    ok(nvml.nvmlInit_v2())
    ok(nvml.nvmlDeviceGetHandleByIndex_v2(0, byref(device)))
    ok(nvml.nvmlDeviceGetComputeRunningProcesses_v3(device, byref(count), found))
    return {entry.pid: entry.bytes for entry in found[:count.value]}
"""
LISTED = NVML + "begin = time.monotonic()\nfor pid, bytes in listed().items():\n    say(**{f'pid_{pid}': bytes})\nsay(ms=int((time.monotonic() - begin) * 1000))"
SECOND = 120 * MIB + CONTEXT
EVERY_KIND = """
start()
ok(take("cuMemAlloc_v2", 30 * MIB)[0])
ok(take("cuMemHostAlloc", 10 * MIB, c_uint(0))[0])
result, managed = take("cuMemAllocManaged", 20 * MIB, c_uint(1))
ok(cuda.sgsim_touch(managed, 20 * MIB))
quiet()
"""


def pools(sim):
    """With the blocks and lists of a GB10's driver, which tests of the guard leave out."""
    return machine_with_pools(sim) | dict.fromkeys(sim.EXACT)


def listed(sim, variables, **more):
    done = sim.script(LISTED, **variables | UNGUARDED | more)
    return {int(name[4:]): size for name, size in vars(done).items() if name.startswith("pid_")}, done.ms


def test_nvml_lists_the_living_with_their_device_bytes(sim):
    """The context and blocks; not what is pinned or managed."""
    variables = pools(sim)
    with sim.tenant(EVERY_KIND, **variables | UNGUARDED) as one, living(sim, variables, 50 * MIB, **UNGUARDED) as two:
        one.quiet()
        assert listed(sim, variables)[0] == {one.pid: 30 * MIB + CONTEXT, two.pid: 50 * MIB + CONTEXT}
        two.kill()
        assert listed(sim, variables)[0] == {one.pid: 30 * MIB + CONTEXT}
        assert listed(sim, variables, SGSIM_NVML_LIST="none")[0] == {}
        one.finish()
    assert listed(sim, variables)[0] == {}


def test_nvml_may_take_its_time(sim):
    variables = pools(sim)
    found, ms = listed(sim, variables, SGSIM_NVML_LATE=300)
    assert found == {} and ms >= 300


@pytest.mark.parametrize("how", WAYS)
def test_pool_has_what_forerunners_held_whoever_guarded_them(sim, how):
    variables = pools(sim)
    forerun(sim, variables, 90 * MIB, how)
    assert (sim.machine_bytes("kept"), sim.machine_bytes("available")) == (90 * MIB + CONTEXT, TOTAL - 90 * MIB - CONTEXT)
    with living(sim, variables, 120 * MIB, **UNGUARDED):
        assert (sim.machine_bytes("kept"), sim.machine_bytes("available")) == (0, TOTAL - SECOND - lists(SECOND))


def test_pools_that_are_listed_may_keep_nothing(sim):
    """A patched driver."""
    variables = pools(sim) | {"SGSIM_POOL": "none"}
    forerun(sim, variables, 90 * MIB)
    assert (sim.machine_bytes("kept"), sim.machine_bytes("available")) == (0, TOTAL)


def test_request_takes_its_time_and_free_memory_falls_meanwhile(sim):
    """Steps of 128 MiB, here of 200 ms; others' questions wait until it has all. A busy machine may hide steps from who looks."""
    variables = sim.machine(4 * GIB) | UNGUARDED | {"SGSIM_RATE": 1600, "SGSIM_LEDGER": None}
    is_over, seen = threading.Event(), set()

    def look():
        while not is_over.wait(0.001):  # poll: what is available
            seen.add(sim.available_bytes())

    with sim.tenant("start()\nquiet()\nsay(free=info()[0])", **variables) as other:
        other.quiet()
        watcher = threading.Thread(target=look)
        watcher.start()
        with sim.tenant(f"start()\nquiet()\nok(take('cuMemAlloc_v2', {GIB})[0])\nquiet()", **variables) as program:
            program.quiet()
            program.go()
            while sim.available_bytes() == 4 * GIB:
                pass
            free = other.finish().free
            program.quiet()
        is_over.set()
        watcher.join()
    assert free == 3 * GIB - lists(GIB)
    steps = {4 * GIB - size - lists(size) for size in range(0, GIB + 1, 128 * MIB)}
    assert seen <= steps and len(seen) > 2, seen


def test_request_that_fails_midway_leaves_what_it_took(sim):
    variables = pools(sim) | UNGUARDED | {"SGSIM_RATE": 80, "SGSIM_FRAGMENTED": 150 * MIB}
    done = sim.script(f"start()\nsay(result=take('cuMemAlloc_v2', {200 * MIB})[0])", **variables)
    assert done.result == OUT_OF_MEMORY
    assert sim.machine_bytes("kept") == 150 * MIB + CONTEXT  # the context's when the program had ended


def test_kernel_with_handover_shows_memory_that_drivers_do_not_get(sim):
    cma = round(SPARK * KHO_PART) // 4096 * 4096
    variables = sim.machine(cma_free_bytes=cma) | UNGUARDED
    text = f"start()\nsay(beyond=take('cuMemAlloc_v2', {SPARK - cma + MIB})[0], result=take('cuMemAlloc_v2', {SPARK - cma - GIB})[0])"
    done = sim.script(text, **variables)
    assert (done.beyond, done.result) == (OUT_OF_MEMORY, 0)
    lines = dict(line.split(":") for line in sim.meminfo.read_text().splitlines())
    assert (lines["CmaTotal"].split()[0], lines["CmaFree"].split()[0]) == ("0", str(cma // 1024))


@pytest.mark.parametrize("variables, taken", [({}, 2 * MIB + 12 * 1024), ({"SGSIM_CHUNK": 0}, 4096), ({"SGSIM_KIND": "discrete"}, 0)])
def test_small_block_takes_two_mebibytes_and_their_list(sim, variables, taken):
    machine = sim.machine(GIB) | UNGUARDED | {"SGSIM_LEDGER": None}
    with sim.tenant("start()\nok(take('cuMemAlloc_v2', 4096)[0])\nquiet()", **machine | variables) as program:
        program.quiet()
        assert GIB - sim.available_bytes() == taken
        program.finish()
    assert sim.available_bytes() == GIB


def test_what_was_touched_of_managed_memory_is_mapped(sim):
    """As on a GB10; on a discrete card it is not."""
    text = """
def mapped():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("RssAnon")) // 1024
start()
result, p = take("cuMemAllocManaged", 40 * MIB, c_uint(1))
before = mapped()
ok(cuda.sgsim_touch(p, 40 * MIB))
say(mib=mapped() - before)
"""
    variables = sim.machine(GIB) | UNGUARDED
    assert sim.script(text, **variables).mib >= 39
    assert sim.script(text, **variables | {"SGSIM_MANAGED": "unmapped"}).mib <= 1
    assert sim.script(text, **variables | {"SGSIM_KIND": "discrete"}).mib <= 1
