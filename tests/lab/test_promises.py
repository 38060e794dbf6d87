"""What one process has been given and has filled is seen by the kernel: nobody else may be refused for it."""

import contextlib
import subprocess

from jail import MIB

LIMIT = 512 * MIB


@contextlib.contextmanager
def holding(jail, guard, *words):
    """admit_take in the jail: it has done what it was told, and waits without a call."""
    command = [guard.build / "tests/programs/admit_take", *words, "wait"]
    process = jail.popen(command, guard.environment())
    try:
        while (line := process.stdout.readline()) not in ("ready\n", ""):
            assert line == "ok\n"
        assert line == "ready\n", process.stderr.read()
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
