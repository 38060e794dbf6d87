"""A sweep whose program does not run under the guard ends at the first run that held memory, and recommends nothing."""

import re
from pathlib import Path

import pytest
from lib.waiting import wait_until
from sweeping import MIB, PYTHON, sweep  # noqa: F401 - the fixture

HOLD = """
import os, sys, time
held = bytearray(int(sys.argv[1]) << 20)
with open("starts", "a") as starts:
    starts.write(sys.argv[1] + "\\n")
while os.path.exists("stay"):
    time.sleep(0.01)  # holds: until the test takes the file away
"""
WRAPPERS = {
    "unset": f'#!/bin/sh\nunset LD_PRELOAD\nexec {PYTHON} -S hold.py "$1"\n',
    "env": f'#!/bin/sh\nexec env -i {PYTHON} -S hold.py "$1"\n',
    "child": f'#!/bin/sh\nenv -i {PYTHON} -S hold.py "$1"\n',
    "failing": f'#!/bin/sh\nenv -i {PYTHON} -S hold.py "$1"\ntest "$1" = 1\n',
    "guarded": f'#!/bin/sh\nexec {PYTHON} -S hold.py "$1"\n',
    # it leaves a record of its own, and the child holds more
    "recorded": f'#!{PYTHON} -S\nimport subprocess, sys\nown = bytearray(40 << 20)\nsubprocess.run(["{PYTHON}", "-S", "hold.py", sys.argv[1]], env={{}})\n',
}


@pytest.fixture
def wrapped(sweep):  # noqa: F811 - the fixture
    (sweep.folder / "hold.py").write_text(HOLD)
    for name, text in WRAPPERS.items():
        (sweep.folder / name).write_text(text)
        (sweep.folder / name).chmod(0o755)
    return sweep


@pytest.mark.parametrize("wrapper", ["unset", "env", "child", "failing"])
def test_a_program_that_ran_unguarded_ends_the_sweep(wrapped, wrapper):
    done = wrapped.run("-p", "size=1,100,200,300", "--", f"./{wrapper}", "{size}")
    assert done.returncode == 125
    assert wrapped.starts() == [1, 100]
    assert "recommended" not in done.stdout + done.stderr
    said = done.stderr.splitlines()[-2:]
    assert "ran unguarded: it has lost LD_PRELOAD" in said[0] and ("python3" in said[0] or f"./{wrapper}, or a program that it started," in said[0])
    assert said[1].startswith("sparkguard-sweep: the sweep ends here, without a result: ")


def scans(pid):
    """How often the threads beside the first one have slept: they look for unguarded programs."""
    others = [task / "status" for task in Path(f"/proc/{pid}/task").iterdir() if task.name != str(pid)]
    return sum(int(re.search(r"^voluntary_ctxt_switches:\t(\d+)", thread.read_text(), re.MULTILINE)[1]) for thread in others)


def test_a_child_that_holds_more_than_what_is_on_record_is_named(wrapped):
    """A run that lasts is looked at while it runs."""
    stay = wrapped.folder / "stay"
    stay.touch()
    with wrapped.start("-p", "size=200,300", "--", "./recorded", "{size}") as running:
        wait_until(lambda: wrapped.starts() == [200])
        before = scans(running.pid)
        wait_until(lambda: scans(running.pid) >= before + 2)
        stay.unlink()
        out, err = running.communicate(timeout=60)
    assert running.returncode == 125 and wrapped.starts() == [200]
    assert re.search(r"python3\S* held 2\d\d\.\d MiB and ran unguarded: it has lost LD_PRELOAD", err), err
    assert "recommended" not in out + err


def test_small_guarded_programs_are_swept_as_before(wrapped):
    report = wrapped.json("-p", "size=1,2,100,200", "--", "./guarded", "{size}")
    assert [run["status"] for run in report["runs"]] == ["ok"] * 4
    assert report["recommended"] == {"values": {"size": 200}}
    assert report["runs"][2]["peak_bytes"] >= 100 * MIB
