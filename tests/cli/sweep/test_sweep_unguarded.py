"""A sweep whose program does not run under the guard ends at the first run, and recommends nothing."""

import re
from pathlib import Path

import pytest
from lib.target import SLOWER
from lib.waiting import wait_until
from sweeping import MIB, PYTHON, ROOM, recorded, sweep  # noqa: F401 - the fixture

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
    "assigned": f'#!/bin/sh\nLD_PRELOAD= {PYTHON} -S hold.py "$1"\n',
    "session": f'#!/bin/sh\nsetsid env -i {PYTHON} -S hold.py "$1"\n',
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


@pytest.mark.parametrize("wrapper", ["unset", "env", "child", "failing", "assigned", "session"])
def test_a_program_that_ran_unguarded_ends_the_sweep(wrapped, wrapper):
    """However small its first run was: the second one would be larger."""
    done = wrapped.run("-p", "size=20,100,200", "--", f"./{wrapper}", "{size}")
    assert done.returncode == 125
    wait_until(lambda: wrapped.starts() == [20])
    assert "recommended" not in done.stdout + done.stderr
    said = done.stderr.splitlines()[-2:]
    assert "ran unguarded: it has lost LD_PRELOAD" in said[0]
    assert "hold.py" in said[0] or f"./{wrapper}" in said[0]
    assert said[1].startswith("sparkguard-sweep: the sweep ends here, without a result: ")


@pytest.mark.parametrize("command", [["env", "-i", PYTHON, "-S", "hold.py"], ["setsid", "env", "-i", PYTHON, "-S", "hold.py"], ["env", "-u", "LD_PRELOAD", "true"]])
def test_a_program_that_held_nothing_unguarded_ends_the_sweep(wrapped, command):
    """Also without a wrapper, and where it is too small and too short to be seen."""
    done = wrapped.run("-p", "size=1,400", "--", *command, "{size}")
    assert done.returncode == 125 and "400" not in done.stdout
    assert 400 not in wrapped.starts()
    assert "recommended" not in done.stdout + done.stderr
    assert re.search(r"env .*ran unguarded: it has lost LD_PRELOAD", done.stderr)


def test_a_client_ends_the_sweep(wrapped):
    """Its work is done elsewhere, by a process that is not of the sweep."""
    client = wrapped.folder / "ssh"
    client.symlink_to("/usr/bin/true")
    done = wrapped.run("-p", "size=1,400", "--", "./ssh", "{size}")
    assert done.returncode == 125 and "recommended" not in done.stdout + done.stderr
    assert "./ssh 1 ran unguarded: its work is done by a process elsewhere" in done.stderr


def test_what_the_machine_lost_beside_a_small_program_ends_the_sweep(wrapped):
    """As by a server that the program has asked to work."""
    (wrapped.folder / "stay").touch()
    with wrapped.start("-p", "size=1,400", "--", "./guarded", "{size}") as running:
        wait_until(lambda: wrapped.starts() == [1])
        wrapped.machine(ROOM - 300 * MIB)
        wrapped.clock.look(2)
        (wrapped.folder / "stay").unlink()
        out, err = running.communicate(timeout=60 * SLOWER)
    assert running.returncode == 125 and wrapped.starts() == [1] and "recommended" not in out + err
    assert re.search(r"the machine lost 30\d\.\d MiB meanwhile", err), err


def test_a_short_guarded_program_has_a_known_peak(wrapped):
    report = wrapped.json("-p", "size=1,2", "--", "true", "{size}")
    assert [run["status"] for run in report["runs"]] == ["ok"] * 2
    assert all(run["peak_bytes"] is not None and run["peak_bytes"] < 16 * MIB for run in report["runs"])
    assert list(wrapped.live.glob("*.segment")) == []  # nothing is left of what only a sweep keeps


def test_a_peak_that_is_unknown_is_not_recommended(wrapped):
    """Also not by a record that an earlier version has made."""
    wrapped.record("size=1,400", "true {size}", [recorded(0, "ok"), recorded(1, "ok")])
    done = wrapped.run("--resume", "-p", "size=1,400", "--", "true", "{size}")
    assert done.returncode == 1 and "recommended" not in done.stdout
    assert "no maximum: the peak of what ended well is unknown" in done.stdout


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
