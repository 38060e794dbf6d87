"""What the tests of sparkguard-sweep share: a machine of files, a clock, a program that grows with the square, a record."""

import atexit
import functools
import json
import mmap
import os
import shutil
import struct
import subprocess
import tempfile
from pathlib import Path

import pytest
from lib.target import SLOWER
from lib.waiting import wait_until

GIB, MIB, KIB = 1 << 30, 1 << 20, 1 << 10
GB = 10**9
PYTHON = "/usr/bin/python3"
RESERVE, ROOM = GIB, 600 * MIB
PIECE = 4 * MIB

# Notes that it was started, holds batch squared pieces, and stands while there is a file "gate-BATCH". The pieces are
# promised and not touched: this machine's MemAvailable stands still, and only promises are taken off it.
GROW = """
import mmap, os, sys, time
batch = int(sys.argv[1])
with open("starts", "a") as starts:
    starts.write(f"{batch}\\n")
held = [mmap.mmap(-1, 4 << 20, mmap.MAP_PRIVATE) for _ in range(batch * batch)]
if os.path.exists(f"gate-{batch}"):
    with open(f"at-{batch}", "w") as at:
        at.write(str(os.getpid()))
while os.path.exists(f"gate-{batch}"):
    time.sleep(0.01)  # holds: until the test takes the file away
print("held", len(held))
"""

SECOND_NS = 10**9
NO_LIMIT = (1 << 63) - 1


@functools.cache
def clock_library():
    folder = Path(tempfile.mkdtemp(prefix="sparkguard-clock-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    source, library = Path(__file__).with_name("clock.c"), folder / "clock.so"
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", library, source], check=True)
    return library


class Clock:
    """The time of the sweep under test, which goes on as the machine's does and is moved by the test besides (clock.c)."""

    def __init__(self, path):
        path.write_bytes(struct.pack("qqqq", 0, 0, NO_LIMIT, 0))
        with open(path, "r+b") as file:
            self.shared = memoryview(mmap.mmap(file.fileno(), 0)).cast("q")

    def waits(self):
        return self.shared[1]

    def move(self, seconds):
        self.shared[0] += seconds * SECOND_NS

    def look(self, seconds=0):
        """Moves the clock on, once the sweep waits for its run: the program can begin before the sweep has read when it began. Until the sweep
        has looked at its run by the new time; the wait before that may have ended already."""
        if seconds:
            self.look()
        self.move(seconds)
        seen = self.waits() + 2
        wait_until(lambda: self.waits() >= seen)

    def hold(self):
        """Until the sweep stands still in a wait, which ends by step() or release()."""
        self.shared[2] = 0
        wait_until(lambda: self.shared[3])

    def step(self):
        """One wait ends, and all that follows it happens, up to the next wait."""
        after = self.waits()
        self.shared[2] = after
        wait_until(lambda: self.waits() > after)

    def release(self):
        self.shared[2] = NO_LIMIT


class Sweeper:
    def __init__(self, tools, scratch):
        self.program = tools / "sparkguard-sweep"
        self.folder = scratch / "work"
        self.root = scratch / "root"
        self.state = scratch / "record"
        self.live = scratch / "live"
        self.folder.mkdir()
        self.clock = Clock(scratch / "clock")
        self.variables = {"LD_PRELOAD": str(clock_library()), "SWEEP_CLOCK": str(scratch / "clock")}
        (self.root / "proc/self").mkdir(parents=True)
        (self.folder / "grow.py").write_text(GROW)
        self.machine(ROOM)

    def machine(self, room, total=128 * GIB):
        free = RESERVE + room
        figures = {"MemTotal": total, "MemFree": free, "MemAvailable": free, "SwapTotal": 0, "SwapFree": 0}
        text = "".join(f"{name}:{value // KIB:>16} kB\n" for name, value in figures.items())
        (self.root / "meminfo.new").write_text(text)
        (self.root / "meminfo.new").replace(self.root / "proc/meminfo")  # nobody reads half of it

    def environment(self, **extra):
        env = {k: v for k, v in os.environ.items() if not k.startswith("SPARKGUARD_") and k != "LD_PRELOAD"}
        env["ASAN_OPTIONS"] = "verify_asan_link_order=0"  # sanitizer builds under a preload
        env.update(SPARKGUARD_DIR=str(self.live), SPARKGUARD_SYSTEM_ROOT=str(self.root), SPARKGUARD_RESERVE="1G")
        env.update(TZ="UTC", LC_ALL="C.UTF-8")
        return env | self.variables | extra

    def command(self, *arguments):
        return [str(self.program), f"--state={self.state}", *map(str, arguments)]

    def run(self, *arguments, **extra):
        return subprocess.run(
            self.command(*arguments), env=self.environment(**extra), cwd=self.folder, capture_output=True, text=True,
            timeout=100 * SLOWER, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def start(self, *arguments, **options):
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
        return subprocess.Popen(self.command(*arguments), env=self.environment(), cwd=self.folder, **options)

    def grow(self, values, *options, **extra):
        return self.run(*options, f"--param=batch={values}", "--", PYTHON, "grow.py", "{batch}", **extra)

    def json(self, *arguments, status=0):
        done = self.run("--json", *arguments)
        assert done.returncode == status, done.stderr
        return json.loads(done.stdout)

    def starts(self):
        path = self.folder / "starts"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def wait_for(self, name):
        """The text of a file of the folder, once it is there."""
        path = self.folder / name
        wait_until(lambda: path.exists() and path.read_text())
        return path.read_text()

    def boot(self):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()

    def record(self, parameters, command, runs, complete=True, total=119 * GB, reserve=0, boot=None):
        """Writes the record of a sweep, with runs of recorded()."""
        record = {"sparkguard-sweep": 2, "identity": f"{self.folder}: SPARKGUARD_RESERVE=1G {parameters}: {command}", "boot": boot or self.boot()}
        record |= {"begun_ns": 1795266455000000000, "complete": complete, "total_bytes": total, "reserve_bytes": reserve}
        self.state.write_text(json.dumps(record | {"runs": runs}, indent=1))


def recorded(run, status, needed=None, room=119 * GB, **more):
    """A run of a record: the bytes that it needed, or None, the room at its start and what else is known."""
    needed = None if needed is None else round(needed)
    figures = {
        "run": run, "status": status, "attempts": 1, "peak_bytes": needed, "needed_bytes": needed,
        "headroom_bytes": None if needed is None else max(room - needed, 0), "room_bytes": room, "predicted_bytes": None,
        "refused_count": 0, "started_ns": 1795266456000000000, "duration_ns": 61_500_000_000, "exit_code": 0, "signal": 0, "note": "",
    }  # fmt: skip
    assert figures.keys() >= more.keys()
    return figures | more


def outcomes(report):
    return {run["values"]["batch"]: run["status"] for run in report["runs"]}


def alive(pid):
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_for_death(pid):
    wait_until(lambda: not alive(pid))


@pytest.fixture
def sweep(tools, tmp_path):
    return Sweeper(tools, tmp_path)


@pytest.fixture
def reap():
    """Kills what a failed test left running."""
    processes = []
    yield processes.append
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.communicate()
