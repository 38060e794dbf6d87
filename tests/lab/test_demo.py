"""`make demo` in its memory cgroup: what it shows is so, and nothing of it stays."""

import contextlib
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
from jail import GIB, MIB, DISK, Lab, Unfit, is_left_over, swap_areas

DEMO = Path(__file__).resolve().parents[2] / "scripts/demo"


@pytest.fixture
def demo_build(build, tmp_path):
    """A build folder of its own, so that the records of another demo stay."""
    folder = tmp_path / "build"
    (folder / "demo").mkdir(parents=True)
    for name in ("libsparkguard.so", "sparkguard", "sparkguard-report", "sim", "demo/canary", "demo/memory_stress"):
        (folder / name).symlink_to(build / name)
    return folder


@pytest.fixture(autouse=True)
def fit_machine():
    """Skips where no jail can be made; another test's must be gone before the demo can have one."""
    try:
        with Lab() as lab, lab.jail(512 * MIB, GIB):
            pass
    except Unfit as why:
        pytest.skip(str(why))


def start(demo_build):
    env = os.environ | {"BUILD": str(demo_build)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(DEMO, env=env, start_new_session=True, **pipes)


def processes_of(session):
    """The living of a session."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == session and fields[0] != "Z":
                found.append(int(folder.name))
    return found


def assert_nothing_stays(demo):
    """Another test may have a jail at the same time: what is left over is what nobody living owns."""
    assert processes_of(demo.pid) == []
    places = [*map(Path, swap_areas()), *DISK.glob("sparkguard-lab-*"), *Path("/sys/fs/cgroup").glob("**/sparkguard-lab-*")]
    assert [place for place in places if any(is_left_over(part) for part in place.parts)] == []


@pytest.mark.long  # half a minute; make demo shows it
@pytest.mark.timeout_seconds(200)
def test_jobs_and_canary_survive_with_the_guard_only(demo_build):
    with start(demo_build) as demo:
        said, _ = demo.communicate(timeout=180)
    assert demo.returncode == 0, said
    assert "== Side by side, in a memory cgroup of 512 MiB" in said
    (kills,) = re.findall(r"^killed by the kernel +(\d+) +(\d+)$", said, re.MULTILINE)
    stalled = "does not answer any more" in said.partition("With the guard")[0]
    assert (stalled or int(kills[0]) > 0) and kills[1] == "0"
    assert "does not answer any more" not in said.partition("With the guard")[2]
    assert_nothing_stays(demo)


@pytest.mark.timeout_seconds(200)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_demo_that_is_interrupted_leaves_nothing(demo_build, number):
    with start(demo_build) as demo:
        for line in demo.stdout:
            if "batch  32" in line:
                break
        demo.send_signal(number)
        said = demo.stdout.read()
        assert demo.wait(60) == 128 + number, said
    assert said.endswith("demo: interrupted\n")
    assert_nothing_stays(demo)
