"""What one process has been given and has filled is seen by the kernel: nobody else may be refused for it."""

import contextlib
import subprocess

import pytest
from jail import GIB, MIB
from lib.waiting import wait_until

LIMIT = 512 * MIB


def assert_ready(process):
    while (line := process.stdout.readline()) not in ("ready\n", ""):
        assert line == "ok\n"
    assert line == "ready\n", process.stderr.read()


@contextlib.contextmanager
def holding(jail, guard, *words, env=None):
    """admit_take in the jail: it has done what it was told, and waits without a call."""
    command = [guard.build / "tests/programs/admit_take", *words, "wait"]
    process = jail.popen(command, guard.environment(env))
    try:
        assert_ready(process)
        yield process
    finally:
        process.kill()
        process.communicate()


def take(jail, guard, *words):
    command = [guard.build / "tests/programs/admit_take", *words]
    process = jail.popen(command, guard.environment(), stdin=subprocess.DEVNULL)
    return process.communicate(timeout=60)[0].split()


def test_what_an_idle_process_has_filled_counts_once(make_jail, guard):
    jail = make_jail(LIMIT)
    with holding(jail, guard, "malloc", "120M", "touch", "0"):
        assert take(jail, guard, "malloc", "300M", "touch", "0") == ["ok", "ok"]
    assert jail.oom_kills() == 0


def test_what_an_idle_process_has_not_filled_is_room_for_nobody(make_jail, guard):
    jail = make_jail(LIMIT)
    with holding(jail, guard, "malloc", "300M"):
        assert take(jail, guard, "malloc", "300M", "malloc", "100M") == ["ENOMEM", "ok"]


def test_what_the_parent_has_filled_counts_once_in_its_child(make_jail, guard):
    jail = make_jail(LIMIT)
    words = ("malloc", "300M", "touch", "0", "fork", "malloc", "100M", "malloc", "100M")
    assert take(jail, guard, *words) == ["ok", "ok", "ok", "ENOMEM"]


# Of shared memory nothing tells what was swapped out: all of its promise stays until the next scan.
@pytest.mark.parametrize(("kind", "left"), [("mmap", "200M"), ("shared", "120M")])
def test_what_was_swapped_out_takes_nothing_from_a_promise_when_it_goes(make_jail, guard, kind, left):
    """Half of what is unmapped had come and was swapped out since the last scan: no part of the 180 MiB."""
    jail = make_jail(LIMIT, swap_bytes=GIB)
    words = (kind, "192M", "half", "0", "mmap", "180M", "scan", "wait", "free", "0")
    with holding(jail, guard, *words, env={"SPARKGUARD_WATCHDOG": "off"}) as process:  # which scans, too
        assert jail.used_bytes() > 96 * MIB
        wait_until(lambda: jail.reclaim() or jail.used_bytes() < 16 * MIB, "what was touched is swapped out")
        print(file=process.stdin)
        assert_ready(process)
        assert take(jail, guard, "malloc", "330M", "malloc", left) == ["ENOMEM", "ok"]
