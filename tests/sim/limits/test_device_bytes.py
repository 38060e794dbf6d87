"""Device memory of unguarded processes in the report: what the simulated driver's own books say, asked of NVML in a child."""

import contextlib
import json
import os
import re
import secrets
import subprocess
import time
from pathlib import Path

import pytest
from conftest import GIB, MIB
from lib.waiting import wait_until

SPARK = 1217 * GIB // 10 // 4096 * 4096
TAKE = "start({device}); [ok(take('cuMemAlloc_v2', size)[0]) for size in ({sizes},)]; quiet(live=live('device') + live('context'))"
LIMIT = 2  # seconds that NVML has


def take(*sizes, device=0):
    return TAKE.format(device=device, sizes=", ".join(map(str, sizes)))


class Asker:
    """Runs the report beside tenants of one simulated machine."""

    def __init__(self, sim, total_bytes=SPARK):
        self.sim = sim
        self.folder = sim.scratch / "processes"
        self.folder.mkdir()
        sim.guard.directory.mkdir(mode=0o700)
        self.variables = sim.machine(total_bytes) | {"SGSIM_PROCESSES": self.folder, "SGSIM_CONTEXT": 100 * MIB}

    def tenant(self, text, is_guarded=False, **variables):
        """An unguarded one has no record; the report knows it by NVML alone."""
        preload = {} if is_guarded else {"LD_PRELOAD": None}
        return self.sim.tenant(text, **self.variables, **preload, **variables)

    def run(self, *arguments, **variables):
        env = self.sim.guard.environment({"LD_PRELOAD": None, "NO_COLOR": "1"} | self.sim.env | self.variables | variables)
        command = [self.sim.build / "sparkguard-report", "--dir", self.sim.guard.directory, *arguments]
        return subprocess.run([str(c) for c in command], env=env, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)

    def unguarded(self, **variables):
        done = self.run("--json", "--all", **variables)
        assert (done.returncode, done.stderr) == (0, "")
        return json.loads(done.stdout)["unguarded"]


@pytest.fixture
def asker(sim):
    return Asker(sim)


def test_the_device_memory_of_an_unguarded_process_is_the_drivers_own_figure(asker):
    """Little of it is resident: only NVML shows that the process holds more than any other."""
    with asker.tenant(take(30 * GIB, 2 * GIB)) as tenant:
        truth = tenant.quiet().live
        first, *others = asker.unguarded()
        assert (first["pid"], first["device_bytes"]) == (tenant.pid, truth)
        assert truth == 32 * GIB + 100 * MIB and first["resident_bytes"] < GIB
        assert all(entry["device_bytes"] == 0 for entry in others)
        text = asker.run().stdout
        assert re.search(r"^ *PID UNGUARDED PROCESS .*RESIDENT +DEVICE WHY$", text, re.MULTILINE), text
        assert re.search(rf"^ *{tenant.pid} .* 32\.1 GiB no LD_PRELOAD$", text, re.MULTILINE), text
        assert f'pid="{tenant.pid}"' in re.search(r"^sparkguard_unguarded_device_bytes{.*", asker.run("--prometheus").stdout, re.MULTILINE)[0]


@pytest.mark.parametrize("is_guarded", [True, False])
def test_memory_of_a_living_program_is_not_what_the_driver_keeps(asker, is_guarded):
    """The doctor warns of a full pool, and not of a server that runs."""
    asker.sim.keeps_freed_pages()
    version = asker.sim.root / "proc" / "driver" / "nvidia" / "version"
    version.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  610.43.02  Release Build\n")

    def finding():
        env = asker.sim.guard.environment({"LD_PRELOAD": None} | asker.sim.env | asker.variables)
        command = [asker.sim.build / "sparkguard-doctor", "--json"]
        done = subprocess.run([str(c) for c in command], env=env, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
        return next(found for found in json.loads(done.stdout)["findings"] if found["id"] == "driver-pools")

    with asker.tenant(take(40 * GIB), is_guarded) as tenant:
        tenant.quiet()
        alone = finding()
        asker.sim.machine_move("kept", 20 * GIB)
        with_pool = finding()
    assert alone["figures"]["unexplained_bytes"] > 40 * GIB and (alone["state"], alone["mend"]) == ("fine", None)
    assert with_pool["state"] == "warning"


def test_a_guarded_process_is_not_listed_again(asker):
    with asker.tenant(take(10 * GIB), is_guarded=True) as guarded, asker.tenant(take(5 * GIB)) as plain:
        guarded.quiet(), plain.quiet()
        assert [entry["pid"] for entry in asker.unguarded() if entry["device_bytes"]] == [plain.pid]


def test_the_list_is_by_the_machines_memory(asker):
    """Resident and device memory together where both are the machine's, on any device."""
    with asker.tenant(take(40 * GIB)) as one, asker.tenant(take(60 * GIB)) as two:  # others run here, too, and hold less
        one.quiet(), two.quiet()
        assert [entry["pid"] for entry in asker.unguarded()][:2] == [two.pid, one.pid]


def test_all_devices_are_added_up(asker):
    asker.variables |= {"SGSIM_DEVICES": 3, "SGSIM_KIND": "discrete"}
    text = "start(0); ok(take('cuMemAlloc_v2', 3 * GIB)[0]); start(2); ok(take('cuMemAlloc_v2', 2 * GIB)[0]); quiet()"
    with asker.tenant(text) as tenant:
        tenant.quiet()
        found = {entry["pid"]: entry["device_bytes"] for entry in asker.unguarded()}
        assert found.get(tenant.pid) == 5 * GIB + 200 * MIB


@pytest.mark.parametrize("variables", [{"SGSIM_NVML_FAIL": "init"}, {"SGSIM_NVML_FAIL": "list"}, {"LD_LIBRARY_PATH": "/nonexistent"}])
def test_without_an_answer_it_is_unknown(asker, variables):
    with asker.tenant(take(30 * GIB)) as tenant:
        tenant.quiet()
        assert all(entry["device_bytes"] is None for entry in asker.unguarded(**variables))
        assert " DEVICE" not in asker.run(**variables).stdout


@pytest.mark.parametrize("call", ["list", pytest.param("init", marks=pytest.mark.long)])
def test_a_hanging_nvml_does_not_hold_up_the_report(asker, call):
    """The child that asked is gone afterwards; nobody who reads the output waits for it either."""
    begin = time.monotonic()
    entries = asker.unguarded(SGSIM_NVML_HANG=call)
    assert time.monotonic() - begin >= LIMIT, "the child was not waited for: the test means nothing"
    assert all(entry["device_bytes"] is None for entry in entries)
    wait_until(lambda: children_of(asker) == [])  # it is killed before the report ends, and gone a moment later


def children_of(asker):
    """Those that ask NVML for a report of this test: others may run beside it."""
    found = []
    for path in Path("/proc").glob("[0-9]*/comm"):
        with contextlib.suppress(OSError):
            is_asking = path.read_text() == "sparkguard-nvml\n"
            if is_asking and os.fsencode(asker.sim.guard.directory) in path.with_name("environ").read_bytes():
                found.append(int(path.parent.name))
    return found


@pytest.fixture
def freezer():
    """A cgroup whose processes no signal ends: a freezer of version 1. Later kernels end frozen processes of version 2."""
    folder = Path("/sys/fs/cgroup/freezer") / f"sparkguard-test-{secrets.token_hex(4)}"
    try:
        folder.mkdir()
    except OSError:
        pytest.skip("no freezer of cgroup version 1")
    yield folder
    (folder / "freezer.state").write_text("THAWED")
    wait_until(lambda: not (folder / "cgroup.procs").read_text())
    folder.rmdir()


def test_a_child_that_cannot_be_killed_is_left_behind_and_stays_the_only_one(asker, freezer):
    """As a process in the driver of a wedged machine. The output ends all the same, for whoever reads it to its end."""
    hanging = {"SGSIM_NVML_HANG": "list", "SGSIM_NVML_FREEZER": freezer}
    assert all(entry["device_bytes"] is None for entry in asker.unguarded(**hanging))
    (stuck,) = children_of(asker)
    assert os.readlink(f"/proc/{stuck}/fd/1") == "/dev/null"
    wait_until(lambda: age(stuck) >= 2 * LIMIT + 1)
    assert all(entry["device_bytes"] is None for entry in asker.unguarded()), "asked again while the first one hangs"
    assert children_of(asker) == [stuck]


def age(pid):
    ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


OLD = """
#include <string.h>
struct info { unsigned pid; unsigned long long bytes; };
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 1; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { *device = device; return (int)index; }
int nvmlDeviceGetComputeRunningProcesses(void *device, unsigned *count, struct info *infos)
{
    (void)device;
    infos[0] = (struct info){PID, 7ull << 30};
    infos[1] = (struct info){PID, ~0ull};
    *count = COUNT;
    return 0;
}
"""


@pytest.mark.parametrize("count, bytes_", [(1, 7 * GIB), (2, None), (4000000000, None)])
def test_an_old_nvml_and_one_that_says_nonsense(sim, count, bytes_):
    """The list without a version has no instances; "not available" makes the sum unknown; the count may be anything."""
    asker = Asker(sim, 8 * GIB)
    with asker.tenant("page = bytearray(b'x') * (100 * MIB); quiet()") as tenant:  # listed is who holds a hundredth of the machine
        tenant.quiet()
        asker.sim.compile("libnvidia-ml.so.1", OLD, "-shared", "-fPIC", f"-DPID={tenant.pid}", f"-DCOUNT={count}u", "-w")
        found = {entry["pid"]: entry["device_bytes"] for entry in asker.unguarded(LD_LIBRARY_PATH=asker.sim.scratch)}
        assert found[tenant.pid] == bytes_
