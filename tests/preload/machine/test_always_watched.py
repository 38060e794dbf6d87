"""A process that holds much is watched at all times, whatever it does and though it asks for nothing."""

import os
import shutil
import subprocess
import sys

import pytest
from lib.machine import GIB, MIB, needs_root, set_available
from lib.target import CC
from lib.waiting import wait_until

# Holds 308 MiB and 8 for each argument, forks with each line that it reads, and then only computes: no call that the guard hooks.
COMPUTES = """
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
int main(int count)
{
    const size_t bytes = (size_t)(300 + 8 * count) << 20;
    char byte, *block = malloc(bytes);
    if (count > 1) /* deaf */
        signal(SIGTERM, SIG_IGN);
    if (block == NULL)
        return 1;
    memset(block, 1, bytes);
    for (;;) {
        if (write(1, "ready\\n", 6) != 6 || read(0, &byte, 1) != 1 || byte == 'e')
            return 0;
        pid_t child = fork();
        if (child == 0)
            _exit(0);
        waitpid(child, NULL, 0);
    }
}
"""


@pytest.fixture
def computes(tmp_path):
    (tmp_path / "computes.c").write_text(COMPUTES)
    subprocess.run([CC, "-fno-builtin", "-o", tmp_path / "computes", tmp_path / "computes.c"], check=True)
    return tmp_path / "computes"


def wait_for_a_look(place, pid):
    entry = place.ledger.of(pid)
    looked = place.ledger.get("watched_ns", entry)
    wait_until(lambda: place.ledger.get("watched_ns", entry) > looked)


def test_parent_is_watched_after_each_fork_without_a_request(place, computes):
    tenant = place.tenant([computes])
    tenant.ready()
    wait_for_a_look(place, tenant.pid)
    for _ in range(3):
        tenant.go("f").ready()
        wait_for_a_look(place, tenant.pid)
    tenant.go("e")
    assert tenant.process.wait() == 0


def test_parent_that_forked_is_ended_at_the_floor(place, computes):
    place.env |= {"SPARKGUARD_RESERVE": "96M", "SPARKGUARD_FLOOR": "64M"}
    tenant = place.tenant([computes])
    tenant.ready()
    wait_for_a_look(place, tenant.pid)
    tenant.go("f").ready()
    set_available(place, 48 * MIB)
    assert tenant.process.wait() < 0


def test_forks_call_no_scans_of_others(place, computes):
    """`call` in the head of the registry makes each watchdog of the machine scan what its process was promised."""
    tenant = place.tenant([computes])
    tenant.ready()
    wait_for_a_look(place, tenant.pid)
    called = place.ledger.get("call")
    for _ in range(3):
        tenant.go("f").ready()
    assert place.ledger.get("call") == called
    tenant.go("e")
    assert tenant.process.wait() == 0


# Forks twice, then computes in the interpreter alone. Warnings are errors: 3.12 and later warn where a process of several threads forks.
PYTHON = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
block = libc.malloc(ctypes.c_size_t(300 << 20))
ctypes.memset(ctypes.c_void_p(block), 1, 300 << 20)
def ready():
    os.write(1, b"ready\\n")
    return os.read(0, 1)
while ready() == b"f":
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
"""


def python_that_counts_threads():
    for name in (sys.executable, "python3.12", "python3.13", "python3.14"):
        if path := shutil.which(name):
            command = [path, "-c", "import sys; print(sys.executable if sys.version_info >= (3, 12) else '')"]
            if found := subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip():
                return found
    return pytest.skip("no Python that warns about threads (3.12)")


def test_python_forks_without_a_warning_and_is_watched_again(place):
    tenant = place.tenant([python_that_counts_threads(), "-W", "error", "-S", "-c", PYTHON])
    tenant.ready()
    for _ in range(3):
        wait_for_a_look(place, tenant.pid)
        tenant.go("f").ready()
    wait_for_a_look(place, tenant.pid)
    tenant.go("e")
    assert tenant.process.wait() == 0
    assert tenant.process.stderr.read() == ""


def test_old_python_is_watched_after_a_fork(place):
    tenant = place.tenant([sys.executable, "-S", "-c", PYTHON])
    tenant.ready()
    wait_for_a_look(place, tenant.pid)
    tenant.go("f").ready()
    wait_for_a_look(place, tenant.pid)
    tenant.go("e")
    assert tenant.process.wait() == 0


# ---- when it is ended ----


def looks_on(place, pid, times=5):
    """Its watchdog looks several times more, and lets it live."""
    for _ in range(times):
        wait_for_a_look(place, pid)


@pytest.fixture
def holder(place, computes):
    place.env["SPARKGUARD_RESERVE"] = "200M"
    tenant = place.tenant([computes])
    tenant.ready()
    wait_for_a_look(place, tenant.pid)
    return tenant


def test_reserve_that_is_set_for_a_job_ends_nobody(place, holder):
    command = [place.guard.build / "sparkguard", "--set", "job", "reserve=12G"]
    subprocess.run(command, env=place.guard.environment(place.env, preload=()), check=True, capture_output=True)
    set_available(place, GIB)
    looks_on(place, holder.pid)
    assert [what for what in place.events(holder.pid) if "watchdog" in what] == []
    set_available(place, 40 * MIB)
    assert holder.process.wait() == -15


def test_reserve_that_bounds_a_user_ends_nobody(place, computes):
    place.machine.write("etc/sparkguard.conf", f"{os.getuid()} reserve=12G")
    place.env["SPARKGUARD_RESERVE"] = "200M"
    tenant = place.tenant([computes])
    set_available(place, GIB)
    assert tenant.process.wait() == 1  # refused: below the bound
    set_available(place, 15 * GIB)
    tenant = place.tenant([computes])
    tenant.ready()
    wait_for_a_look(place, tenant.pid)
    set_available(place, GIB)
    looks_on(place, tenant.pid)
    assert [what for what in place.events(tenant.pid) if "watchdog" in what] == []
    tenant.go("e")
    assert tenant.process.wait() == 0


def ends_of(place, pids):
    return [[what.split(":")[1] for what in place.events(pid) if "watchdog" in what] for pid in pids]


@needs_root
def test_of_two_processes_in_different_time_namespaces_one_is_ended(place, computes):
    """A time namespace shifts CLOCK_MONOTONIC, by which each sees whether the other one is watched."""
    text = f"""
if libc.unshare(0x80) != 0:
    say("unable")
    ready()
with open("/proc/self/timens_offsets", "w") as offsets:
    offsets.write("monotonic 100000 0")
child = os.fork()
if child == 0:
    os.execv({str(computes)!r}, ["computes", "deaf", "larger"])
say(child)
os.wait()
"""
    place.env |= {"SPARKGUARD_RESERVE": "96M", "SPARKGUARD_FLOOR": "64M"}
    shifted = place.player(text)
    said = shifted.ready()
    if "unable" in said:
        pytest.skip("no time namespaces here")
    tenant = place.tenant([computes, "deaf"])
    tenant.ready()
    pids = [tenant.pid, *said]
    for pid in pids:
        wait_for_a_look(place, pid)
    set_available(place, 48 * MIB)
    wait_until(lambda: any(ends_of(place, pids)))
    for pid in pids:
        looks_on(place, pid)
    set_available(place, 10 * GIB)
    wait_until(lambda: [" sent SIGTERM", " let live"] in ends_of(place, pids))
    assert sorted(ends_of(place, pids)) == [[], [" sent SIGTERM", " let live"]]


WORKERS = """
block = {take}
ctypes.memset(block, 1, {mib} * MIB)
for _ in range(3):
    child = os.fork()
    if child == 0:
        os.read(0, 1)
        os._exit(0)
    say(child)
ready()
"""


@pytest.mark.parametrize("take", ["malloc({mib} * MIB)", "libc.mmap(None, {mib} * MIB, 3, 0x4022, -1, 0)"], ids=["heap", "sparse"])
@pytest.mark.parametrize(("mib", "watched"), [(100, [1, 2]), (150, [0, 1, 2]), (20, [])])
def test_workers_are_watched_whose_family_may_hold_much(place, mib, watched, take):
    """Each may copy all that it shares with the parent, and asks for nothing: from the first on that makes it 256 MiB."""
    tenant = place.player(WORKERS.format(mib=mib, take=take.format(mib=mib)))
    workers = [pid for pid in tenant.ready() if pid != "ok"]
    for number in watched:
        wait_until(lambda number=number: workers[number] in [place.ledger.get("pid", i) for i in place.ledger.taken()])
        wait_for_a_look(place, workers[number])
    pids = [place.ledger.get("pid", i) for i in place.ledger.taken()]
    assert [pid in pids for pid in workers] == [number in watched for number in range(3)]
