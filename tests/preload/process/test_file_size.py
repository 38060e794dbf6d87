"""A limit on the size of files (RLIMIT_FSIZE) ends nobody who writes to no file: what the guard writes raises no signal.

Sandboxes and systemd's LimitFSIZE set one, often 0. Standard error may be a file, and be full.
"""

import resource
import signal

import pytest
from lib.machine import set_available
from lib.target import PYTHON

MIB = 1 << 20
MODES = {
    "enforce": {},
    "observe": {"SPARKGUARD_MODE": "observe"},
    "warn": {"SPARKGUARD_WATCHDOG": "warn"},
    "no watchdog": {"SPARKGUARD_WATCHDOG": "off"},
    "report at the end": {"SPARKGUARD_REPORT": "exit"},
    "no history": {"SPARKGUARD_HISTORY": "off"},
    "score": {"SPARKGUARD_OOM_SCORE_ADJ": "500"},
    "bad variable": {"SPARKGUARD_LIMITS": "1G", "SPARKGUARD_WAIT": "soon"},
    "disabled": {"SPARKGUARD_DISABLE": "1"},
}


def take(guard, tmp_path, limit, *arguments, env=None):
    """What the program printed that ran under `limit`, set before its start if it is a number; stderr is a file."""

    def set_limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # as a shell starts programs, not Python

    with open(tmp_path / "stderr", "w") as stderr:
        program = [guard.build / "tests/programs/host_file_size", *arguments]
        done = guard.run(program, env=env, stderr=stderr, preexec_fn=None if limit is None else set_limit)
    assert done.returncode == 0, (done.returncode, (tmp_path / "stderr").read_text())
    return done.stdout


@pytest.mark.parametrize("limit", [0, 10, 5000])
@pytest.mark.parametrize("mode", MODES)
def test_a_program_under_a_limit_of_file_sizes_ends_by_itself(guard, tmp_path, mode, limit):
    env = {"SPARKGUARD_LIMIT": "100M", **MODES[mode]}
    got = "4\n" if mode in ("observe", "disabled") else "1\n"
    assert take(guard, tmp_path, limit, "-", 60 * MIB, 4, env=env) == got
    assert take(guard, tmp_path, None, limit, 60 * MIB, 4, env=env) == got


def test_a_limit_that_begins_later_ends_nobody(guard, tmp_path):
    assert take(guard, tmp_path, None, 0, 2 * MIB, 60) == "60\n"


WATCHED = """
import resource, signal, sys
x = b"1" * (300 << 20)
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))
print("ready", flush=True)
signal.pause()
"""


def test_the_watchdog_writes_its_line_without_a_signal(place, tmp_path):
    with open(tmp_path / "stderr", "w") as stderr:
        env = place.env | {"SPARKGUARD_RESERVE": "1G", "SPARKGUARD_FLOOR": "1023M"}
        process = place.guard.popen([PYTHON, "-S", "-c", WATCHED], env=env, stderr=stderr)
    try:
        assert process.stdout.readline() == "ready\n"
        set_available(place, 1000 * MIB)  # what is missing, the process holds
        assert process.wait(60) == -signal.SIGTERM
    finally:
        process.kill()
        process.communicate()
    assert (tmp_path / "stderr").read_text() == "sparkguard"
