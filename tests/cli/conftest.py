"""What the tests of the tools share: the layout of a segment, a directory of them, a machine made of files."""

import json
import os
import subprocess
import tempfile
from pathlib import Path

import launching
import members
import pytest
import segment as segments
from lib.units import GIB, KIB, MIB


@pytest.fixture(scope="session")
def tools(open_build):
    """The build folder with the tools; other than `build`, it needs no library."""
    return open_build


@pytest.fixture
def guarded_tools(tools):
    """The build folder of tools that can run under the library. Skips where they are built with AddressSanitizer, whose allocator
    and the guard's cannot both replace malloc."""
    if launching.replaces_malloc(tools):
        pytest.skip("the tools are built with AddressSanitizer, whose allocator and the guard's cannot both replace malloc")
    return tools


@pytest.fixture(scope="session")
def layout(tmp_path_factory):
    return segments.read_layout(tmp_path_factory.mktemp("layout"))


@pytest.fixture
def make(layout):
    """make(pid=..., ...) is a Segment."""
    return lambda **fields: segments.Segment(layout, **fields)


class Reporter:
    """sparkguard-report over a directory of the test's own and a machine of 128 GiB of which 100 GiB are available."""

    def __init__(self, tools, scratch):
        self.program = tools / "sparkguard-report"
        self.directory = scratch / "live"
        self.history = scratch / "history"
        self.root = scratch / "root"
        self.directory.mkdir(exist_ok=True)
        (self.root / "proc/self").mkdir(parents=True)
        self.machine(MemTotal=128 * GIB, MemAvailable=100 * GIB, SwapTotal=8 * GIB, SwapFree=7 * GIB)

    def machine(self, **figures):
        text = "".join(f"{name}:{value // KIB:>16} kB\n" for name, value in figures.items())
        (self.root / "proc/meminfo").write_text(text)

    def environment(self, **extra):
        env = {k: v for k, v in os.environ.items() if not k.startswith("SPARKGUARD_") and k != "LD_PRELOAD"}
        env["PATH"] = f"{self.program.parent}:{env['PATH']}"  # messages name the tools by name alone
        env.update(SPARKGUARD_DIR=str(self.directory), SPARKGUARD_HISTORY=str(self.history))
        env.update(SPARKGUARD_SYSTEM_ROOT=str(self.root), TZ="UTC", LC_ALL="C.UTF-8")
        env.update(extra)
        return env

    def run(self, *arguments, **extra):
        command = [str(self.program), *map(str, arguments)]
        return subprocess.run(command, env=self.environment(**extra), capture_output=True, text=True, timeout=60)

    def json(self, *arguments, status=0):
        done = self.run("--json", *arguments)
        assert done.returncode == status, done.stderr
        return json.loads(done.stdout)


@pytest.fixture
def report(tools, tmp_path):
    return Reporter(tools, tmp_path)


@pytest.fixture
def in_memory(report):
    """The records of the test are in a file system in memory, as those of users are: thousands of files take a second less per thousand."""
    with tempfile.TemporaryDirectory(prefix="test-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        report.directory, report.history = Path(folder) / "live", Path(folder) / "history"
        report.directory.mkdir()
        yield


@pytest.fixture
def shared(tmp_path):
    """A folder of several users."""
    if os.geteuid() != 0:
        pytest.skip("makes files of two users: needs root")
    return members.make_shared(tmp_path)


@pytest.fixture
def launcher(tools, tmp_path):
    return launching.Launcher(tools, tmp_path)
