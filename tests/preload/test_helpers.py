"""The library's own threads in the program's process: the watchdog and the one that keeps the history."""

import re
from pathlib import Path

import pytest
from test_fork import wait_until
from test_machine import needs_root, place  # noqa: F401
from test_watched import set_available

MIB = 1 << 20


@needs_root
@pytest.mark.parametrize("call", ["setuid(0)", "setgid(0)", "setgroups([])"])
def test_who_changes_its_user_waits_for_no_thread_of_ours(place, call):  # noqa: F811
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
    wait_until(lambda: place.guard.process(tenant.pid)["watched"])
    wait_until(lambda: list(place.guard.history.glob(f"{tenant.pid}-*.segment")))
    assert tenant.go().ready() == []
    tenant.end()


def test_what_handlers_take_while_helpers_begin_is_counted(guard):
    for _ in range(5):
        done = guard.run([guard.build / "tests/programs/helper_handler"])
        taken, grown = map(int, done.stdout.split())
        assert taken == grown


def blocked(pid):
    """The signals that each of our threads has blocked, as a number."""
    masks = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        status = (task / "status").read_text()
        if "Name:\tsparkguard\n" in status:
            masks.append(int(re.search(r"SigBlk:\t(\w+)", status)[1], 16))
    return masks


def test_helpers_take_no_signal_of_the_program(place):  # noqa: F811
    tenant = place.player("malloc(300 * MIB)\nready()", {"SPARKGUARD_HISTORY": place.guard.history})
    assert tenant.ready() == ["ok"]
    wait_until(lambda: len(blocked(tenant.pid)) == 2)
    kernels = 1 << 8 | 1 << 18  # SIGKILL and SIGSTOP cannot be blocked
    glibcs, sandboxes = 3 << 31, 1 << 30  # SIGSYS
    assert all(mask | kernels | glibcs | sandboxes == (1 << 64) - 1 for mask in blocked(tenant.pid))
    tenant.end()


def waits(pid):
    """How often those of our threads that slept least did so: the watchdog sleeps many times a second."""
    counts = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        status = (task / "status").read_text()
        if "Name:\tsparkguard\n" in status:
            counts.append(sum(map(int, re.findall(r"ctxt_switches:\t(\d+)", status))))
    return min(counts)


def test_history_pauses_while_memory_is_short(place):  # noqa: F811
    """A thread that waits for the disk keeps all memory of a process that is killed."""
    set_available(place, 1 << 30)
    place.env |= {"SPARKGUARD_MODE": "observe", "SPARKGUARD_HISTORY": place.guard.history}
    tenant = place.player("malloc(300 * MIB)\nready()")
    assert tenant.ready() == ["ok"]
    wait_until(lambda: place.guard.process(tenant.pid)["watched"])
    seat = place.ledger.of(tenant.pid)
    for _ in range(20):  # at most ten a second: twice the time to the first copy
        before = place.ledger.get("published_ns", seat)
        wait_until(lambda: place.ledger.get("published_ns", seat) != before)  # noqa: B023
    assert not list(place.guard.history.glob("*.segment"))
    assert waits(tenant.pid) < 100
    set_available(place, 10 << 30)
    wait_until(lambda: list(place.guard.history.glob(f"{tenant.pid}-*.segment")))
    tenant.end()
