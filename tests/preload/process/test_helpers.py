"""The library's own threads in the program's process: the watchdog and the one that keeps the history."""

import os
import re
from pathlib import Path

import pytest
from lib.machine import needs_root, set_available
from lib.target import EMULATORS_THREADS
from lib.waiting import wait_until

MIB = 1 << 20


def blocked(pid):
    """The signals that each of our threads has blocked, as a number."""
    masks = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        status = (task / "status").read_text()
        if "Name:\tsparkguard\n" in status:
            masks.append(int(re.search(r"SigBlk:\t(\w+)", status)[1], 16))
    return masks


@needs_root
@pytest.mark.parametrize("call", ["setuid(0)", "setgid(0)", "setgroups([])"])
def test_who_changes_its_user_waits_for_no_thread_of_ours(place, call):
    """glibc sends every thread a signal then, and waits until each has answered: it was blocked in ours."""
    text = f"""
import signal, threading
signal.alarm(60)
thread = threading.Thread(target=int)  # only a process's first one begins with that signal open
thread.start()
thread.join()
malloc(300 * MIB)
ready()
os.{call}
ready()
"""
    tenant = place.player(text, {"SPARKGUARD_HISTORY": place.guard.history})
    assert tenant.ready() == ["ok"]
    wait_until(lambda: len(blocked(tenant.pid)) == 2)  # both helpers run
    assert tenant.go().ready() == []
    tenant.end()


def test_what_handlers_take_while_helpers_begin_is_counted(guard):
    for _ in range(5):
        done = guard.run([guard.build / "tests/programs/helper_handler"])
        taken, grown = map(int, done.stdout.split())
        assert taken == grown


def test_helpers_take_no_signal_of_the_program(place):
    tenant = place.player("malloc(300 * MIB)\nready()", {"SPARKGUARD_HISTORY": place.guard.history})
    assert tenant.ready() == ["ok"]
    wait_until(lambda: len(blocked(tenant.pid)) == 2)
    kernels = 1 << 8 | 1 << 18  # SIGKILL and SIGSTOP cannot be blocked
    glibcs, sandboxes = 3 << 31, 1 << 30  # SIGSYS
    assert all(mask | kernels | glibcs | sandboxes == (1 << 64) - 1 for mask in blocked(tenant.pid))
    tenant.end()


def policies(pid):
    """The scheduling classes of our threads."""
    tasks = [task for task in Path(f"/proc/{pid}/task").iterdir() if (task / "comm").read_text() == "sparkguard\n"]
    return [os.sched_getscheduler(int(task.name)) for task in tasks]


def test_helpers_of_a_real_time_program_are_none(place):
    text = """
try:
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
except PermissionError:
    pass
malloc(300 * MIB)
ready()
"""
    tenant = place.player(text, {"SPARKGUARD_HISTORY": place.guard.history})
    assert tenant.ready() == ["ok"]
    if os.sched_getscheduler(tenant.pid) != os.SCHED_FIFO:
        pytest.skip("no program may run in real time here")
    wait_until(lambda: policies(tenant.pid) == [os.SCHED_OTHER] * 2)
    tenant.end()


def waits(pid):
    """How often those of our threads that slept least did so: the watchdog sleeps many times a second."""
    counts = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        status = (task / "status").read_text()
        if "Name:\tsparkguard\n" in status:
            counts.append(sum(map(int, re.findall(r"ctxt_switches:\t(\d+)", status))))
    return min(counts)


def test_history_pauses_while_memory_is_short(place):
    """A thread that waits for the disk keeps all memory of a process that is killed."""
    set_available(place, 1 << 30)
    place.env |= {"SPARKGUARD_MODE": "observe", "SPARKGUARD_HISTORY": place.guard.history}
    tenant = place.player("malloc(300 * MIB)\nready()")
    assert tenant.ready() == ["ok"]
    wait_until(lambda: place.guard.process(tenant.pid)["watched"])
    entry = place.ledger.of(tenant.pid)
    for _ in range(20):  # at most ten a second: twice the time to the first copy
        before = place.ledger.get("published_ns", entry)
        wait_until(lambda: place.ledger.get("published_ns", entry) != before)  # noqa: B023
    assert not list(place.guard.history.glob("*.segment"))
    assert waits(tenant.pid) < 100
    set_available(place, 10 << 30)
    wait_until(lambda: list(place.guard.history.glob(f"{tenant.pid}-*.segment")))
    tenant.end()


def test_program_of_one_thread_stays_one_for_the_c_library(guard):
    done = guard.run([guard.build / "tests/programs/helper_alone", "shows"])
    assert done.stdout == "1 thread, 1024 keys\n"


def test_program_of_one_thread_may_fork_in_a_handler_that_interrupts_malloc(guard):
    """The C library would take the lock of the heap for a fork in a program of several threads: the interrupted malloc has it."""
    done = guard.run([guard.build / "tests/programs/helper_alone", "forks"], timeout=60)
    assert (done.returncode, done.stdout) == (0, "done\n")


def test_heap_inside_the_program_may_map_under_its_own_lock(guard):
    """A thread that the C library makes asks the heap for its storage."""
    done = guard.run([guard.build / "tests/programs/helper_heap"], timeout=60)
    assert (done.returncode, done.stdout) == (0, "taken\n")


@needs_root
@pytest.mark.parametrize(
    "call", ["os.setuid", "os.seteuid", "os.setgid", "os.setegid", "lambda n: os.setresuid(n, n, n)", "lambda n: os.setresgid(n, n, n)",
             "lambda n: os.setreuid(n, n)", "lambda n: os.setregid(n, n)", "lambda n: os.setgroups([n])",
             "lambda n: os.initgroups('nobody', n)", "capset"]
)  # fmt: skip
def test_no_thread_of_ours_keeps_what_the_program_gives_up(place, call):
    """The C library tells only the threads that it knows of what is to change; whoever takes over the program finds no other."""
    text = f"""
import ctypes, signal, threading
from pathlib import Path
signal.alarm(60)
def identities():
    lines, tasks = set(), sorted(Path("/proc/self/task").iterdir(), key=lambda task: int(task.name))
    for task in tasks[:1] + tasks[1 + {EMULATORS_THREADS} :]:
        try:
            status = (task / "status").read_text()
        except OSError:
            continue  # has ended meanwhile
        lines.add(" ".join(l for l in status.splitlines() if l.startswith(("Uid", "Gid", "Groups", "CapPrm", "CapEff"))))
    return lines
def capset(_):
    ctypes.CDLL(None).capset((ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)())
malloc(300 * MIB)
while sum((task / "comm").read_text() == "sparkguard\\n" for task in Path("/proc/self/task").iterdir()) < 2:
    pass
before = identities()
({call})(65534)
after = identities()
print("changed", len(before) == 1 and len(after) == 1 and before != after, flush=True)
ready()
"""
    tenant = place.player(text, {"SPARKGUARD_HISTORY": place.guard.history})
    assert tenant.ready() == ["ok", "changed True"]
    tenant.end()


@needs_root
def test_rights_that_a_program_gives_up_are_not_kept_by_whoever_waits_for_a_disk(guard):
    env = {"SPARKGUARD_HISTORY": guard.history}
    done = guard.run([guard.build / "tests/programs/identity_stuck"], env=env, timeout=60)
    if done.stdout == "no filter\n":
        pytest.skip("no filters of system calls that ask another process")
    assert (done.returncode, done.stdout) == (0, "0 with root's rights\n")


@pytest.mark.parametrize("call", ["unshare(0x40)", "setns(os.open('/dev/null', os.O_RDONLY), 0)"])
def test_namespace_that_is_refused_anyway_is_refused_at_once(place, call):
    text = f"""
import ctypes, time
libc = ctypes.CDLL(None, use_errno=True)
malloc(300 * MIB)
ready()
took = 1
while took >= 0.1:  # whoever waited for our threads each time would never end here; a busy machine is quick at last
    begun = time.monotonic()
    answer = libc.{call}
    took = time.monotonic() - begun
say(answer)
ready()
"""
    tenant = place.player(text, {"SPARKGUARD_HISTORY": place.guard.history})
    assert tenant.ready() == ["ok"]
    wait_until(lambda: place.guard.process(tenant.pid)["watched"])
    assert tenant.go().ready() == ["-1"]
    tenant.end()
