"""The time line: who keeps one, and what it shows. How it is thinned is in tests/unit/account/test_timeline.c."""

import resource
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from lib.waiting import wait_until

MIB = 1 << 20
TOOLS = Path(__file__).resolve().parents[3] / "tools/python"
TAKE = "import mmap, os, sys, time; take = lambda mib: mmap.mmap(-1, mib << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n"  # untouched
HOLD = TAKE + "data = take({}); print('held', flush=True); sys.stdin.read(1)"


def lines_of(guard):
    return sorted(guard.directory.glob("*.timeline"))


def samples_of(path):
    """(seconds, usable, reserve, floor, live) of each sample, oldest first."""
    data = path.read_bytes()
    assert len(data) == 65536
    magic, version, count, interval = struct.unpack_from("<8sIIQ", data)
    assert (magic, version) == (b"SPGTIMEL", 1) and 0 < count <= 682 and interval >= 10**7
    rows = [struct.unpack_from("<q11Q", data, 64 + 96 * i) for i in range(count)]
    return [(time_ns / 1e9, usable, reserve, floor, sum(live)) for time_ns, usable, reserve, floor, *live in rows]


def wait_for(condition, process):
    def is_over():
        assert process.poll() is None
        return condition()

    wait_until(is_over)


def hold(guard, mebibytes, **env):
    process = guard.popen([sys.executable, "-c", HOLD.format(mebibytes)], env=env, stdin=-1)
    assert process.stdout.readline() == "held\n"
    return process


def test_the_watchdog_goes_on_sampling_while_nobody_asks(guard):
    with hold(guard, 300) as process:
        wait_for(lambda: lines_of(guard) and len(samples_of(lines_of(guard)[0])) > 5, process)
        process.communicate("x", timeout=60)
    (path,) = lines_of(guard)
    assert path.with_suffix(".segment").exists() and path.stat().st_mode & 0o777 == 0o600
    samples = samples_of(path)
    assert samples == sorted(samples) and samples[-1][0] > samples[0][0]
    assert 300 * MIB <= max(live for *_, live in samples) <= 400 * MIB
    for _, usable, reserve, floor, _ in samples:
        assert 0 < usable < 1 << 60 and 0 < floor < reserve < usable + reserve


def locked_kib(process):
    """Of the mapped time line what the kernel may not swap out."""
    lines = iter((Path("/proc") / str(process.pid) / "smaps").read_text().splitlines())
    if not any(line.endswith(".timeline") for line in lines):
        return 0
    return next(int(line.split()[1]) for line in lines if line.startswith("Locked:"))


def test_what_the_watchdog_writes_to_is_locked_in_memory(guard):
    if 0 <= resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] < 8 * MIB:
        pytest.skip("the watchdog locks nothing under so small a limit")
    with hold(guard, 300) as process:
        wait_for(lambda: locked_kib(process) == 64, process)
        process.communicate("x", timeout=60)


def test_the_history_keeps_it_where_nothing_else_is_left(guard, tmp_path):
    """SIGKILL and a lost live directory: what is drawn is at most a few seconds old, and whole."""
    copies = lambda: list(guard.history.glob("*.timeline"))  # noqa: E731
    with hold(guard, 300) as process:
        wait_for(copies, process)
        process.kill()
    (copy,) = copies()
    (live,) = lines_of(guard)
    count = struct.unpack_from("<I", copy.read_bytes(), 12)[0]
    assert copy.name == live.name and copy.with_suffix(".segment").exists() and copy.stat().st_mode & 0o777 == 0o600
    assert copy.stat().st_size == 64 + 96 * count and copy.read_bytes()[64:160] == live.read_bytes()[64:160]
    shutil.rmtree(guard.directory)
    env = guard.environment({"LD_PRELOAD": None})
    plot = [guard.build / "sparkguard-report", "--plot", tmp_path / "run.svg", str(process.pid)]
    done = subprocess.run(plot, env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "") and "</svg>" in (tmp_path / "run.svg").read_text()


def test_without_the_watchdog_decisions_are_samples(guard):
    code = TAKE + "for i in range(5): data = take(300 + i); data.close(); time.sleep(0.02)  # pace: a sample each 10 ms"
    done = guard.run([sys.executable, "-c", code], env={"SPARKGUARD_WATCHDOG": "off"})
    assert done.returncode == 0 and not done.process()["watched"]
    (path,) = lines_of(guard)
    assert len(samples_of(path)) >= 4


def test_what_the_last_decision_granted_is_in_its_sample(guard):
    """Nothing is asked for after it."""
    code = TAKE + "a = take(300); b = take(400); os._exit(0)"
    assert guard.run([sys.executable, "-c", code], env={"SPARKGUARD_WATCHDOG": "off"}).returncode == 0
    (path,) = lines_of(guard)
    assert max(live for *_, live in samples_of(path)) >= 700 * MIB


def test_a_refusal_is_a_sample_and_small_programs_have_no_time_line(guard):
    assert guard.run([sys.executable, "-c", "data = bytearray(20 << 20)"]).returncode == 0
    assert guard.run(["true"]).returncode == 0
    assert lines_of(guard) == []
    assert guard.run([sys.executable, "-c", "data = bytearray(1 << 46)"]).returncode == 1
    (path,) = lines_of(guard)
    assert len(samples_of(path)) >= 1


def test_marks_are_samples(guard):
    marks = "import sparkguard, time\nfor i in range(5): sparkguard.mark(f'{i}'); time.sleep(0.02)  # pace: a sample each 10 ms\n"
    code = marks + "data = bytearray(20 << 20)"
    done = guard.run([sys.executable, "-c", code], env={"PYTHONPATH": TOOLS})
    assert len(done.process()["phases"]) == 5
    (path,) = lines_of(guard)
    assert len(samples_of(path)) >= 5


def test_what_leaves_nothing_leaves_no_time_line(guard):
    done = guard.run([sys.executable, "-c", "import sparkguard; sparkguard.mark('x')"], env={"PYTHONPATH": TOOLS})
    assert done.returncode == 0 and lines_of(guard) == [] and guard.processes() == []


def test_a_forked_child_has_a_time_line_of_its_own(guard):
    code = TAKE + "data = take(300); pid = os.fork(); more = take(40); pid and os.wait()"
    assert guard.run([sys.executable, "-W", "ignore", "-c", code]).returncode == 0
    assert len(lines_of(guard)) == len(guard.processes()) == 2
    assert all(max(live for *_, live in samples_of(path)) >= 300 * MIB for path in lines_of(guard))
