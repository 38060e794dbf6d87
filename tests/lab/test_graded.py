"""Below the floor, on the real kernel: who comes to help can work, and a refused program can say so."""

import os
import subprocess

import pytest
from jail import MIB
from lib.waiting import wait_until

LIMIT = 512 * MIB
FLOOR = 64 * MIB
LEFT = 48 * MIB  # below the floor, and enough for two small programs
LINES = {"SPARKGUARD_RESERVE": f"{96 * MIB}", "SPARKGUARD_FLOOR": f"{FLOOR}"}


@pytest.fixture
def below_the_floor(make_jail, programs):
    """A jail that something unguarded has filled; without swap, and what fills it cannot be reclaimed."""
    jail = make_jail(LIMIT)
    mib = (jail.headroom_bytes() - LEFT) // MIB
    env = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD" and not k.startswith("SPARKGUARD_")}
    hog = jail.popen([programs / "hog", 1, mib, 100], env, stdin=subprocess.DEVNULL)
    try:
        assert hog.stdout.readline() == "full\n"
        wait_until(lambda: jail.headroom_bytes() < FLOOR, "less than the floor")
        yield jail
        assert hog.poll() is None and jail.oom_kills() == 0
        assert jail.headroom_bytes() < FLOOR
    finally:
        hog.kill()
        hog.communicate()


def run(guard, jail, command, env=None):
    process = jail.popen(command, guard.environment({**LINES, **(env or {})}), stdin=subprocess.DEVNULL)
    stdout, stderr = process.communicate(timeout=60)
    run.pid = process.pid
    return process.returncode, stdout, stderr


def test_shell_works_below_the_floor(guard, below_the_floor):
    status, stdout, stderr = run(guard, below_the_floor, ["sh", "-c", "ls /proc/self | wc -l"])
    assert (status, stderr) == (0, "") and int(stdout) > 10


@pytest.mark.parametrize("heap", [None, "malloc"], ids=["own_heap", "malloc"])
def test_refused_python_prints_its_traceback_below_the_floor(guard, below_the_floor, heap):
    command = ["/usr/bin/python3", "-S", "-c", "block = bytearray(32 << 20)"]
    status, stdout, stderr = run(guard, below_the_floor, command, {"PYTHONMALLOC": heap})
    assert (status, stdout) == (1, "")
    assert "sparkguard: refused " in stderr
    assert "Traceback (most recent call last):" in stderr and "MemoryError" in stderr.splitlines()
    # What the interpreter maps for its own small objects may have been refused too.
    assert guard.process(run.pid)["domains"]["heap"]["refused_count"] == 1


def test_refused_python_can_go_on_below_the_floor(guard, below_the_floor):
    code = """
import json
try:
    block = bytearray(32 << 20)
except MemoryError:
    print(json.dumps([str(n) for n in range(1000)])[-6:])
"""
    status, stdout, _ = run(guard, below_the_floor, ["/usr/bin/python3", "-S", "-c", code])
    assert (status, stdout) == (0, '"999"]\n')
