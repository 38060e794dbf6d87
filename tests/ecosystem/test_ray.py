"""scripts/examples/ray on a real Ray: a node that has claimed its memory, and tasks that ask for parts of it."""

import contextlib
import json
import os
import re
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
from lib.machine import GIB, MIB
from lib.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "scripts/examples/ray"
RAY = ROOT / ".deps/ray/bin"
STORE = "0.08"  # GiB
LEFT = 5 * GIB
TASK = ["--tasks", "5", "--gib", "0.75", "--seconds", "1.5"]


def available_bytes():
    return int(re.search(r"^MemAvailable: +(\d+)", Path("/proc/meminfo").read_text(), re.MULTILINE)[1]) << 10


def processes_of(folder):
    """All processes that were started for a session in that folder: its path is in their arguments."""
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if str(folder).encode() in (path / "cmdline").read_bytes():
                yield int(path.name)


class Node:
    """A node of claimed-node on this machine, where 5 GiB can be claimed besides what is in use."""

    def __init__(self, guard, build, folder):
        assert RAY.is_dir(), "no .deps/ray: run scripts/install-deps ecosystem"
        self.guard, self.build, self.folder = guard, build, folder
        self.env = guard.environment(
            {
                "SPARKGUARD_RESERVE": str(available_bytes() - LEFT),
                "PATH": f"{build}:{RAY}:{os.environ['PATH']}",
                "RAY_TMPDIR": folder,
                "HOME": folder,
                "RAY_GIB": "1",
                "RAY_AUTH_MODE": "disabled",
                "RAY_USAGE_STATS_ENABLED": "0",
                "RAY_memory_monitor_refresh_ms": "0",  # it looks at the whole machine
            },
            preload=(),
        )

    def start(self, gib, port):
        arguments = ["--head", f"--port={port}", "--num-cpus=8", "--include-dashboard=false", f"--temp-dir={self.folder}"]
        log = open(Path(self.folder) / "node.log", "w")  # noqa: SIM115
        command = [EXAMPLES / "claimed-node", str(gib), STORE, *arguments]
        self.process = subprocess.Popen(command, env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        self.address = f"127.0.0.1:{port}"
        wait_until(lambda: self.said("Ray runtime started") or self.process.poll() is not None, "node", step=0.1)
        assert self.process.poll() is None, self.log()

    def log(self):
        return (Path(self.folder) / "node.log").read_text()

    def said(self, text):
        return text in self.log()

    def run(self, *arguments):
        command = [RAY / "python", EXAMPLES / "claimed_tasks.py", *arguments]
        env = self.env | {"RAY_ADDRESS": self.address}
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=150, check=False)

    def job(self):
        command = [self.build / "sparkguard-report", "--json", "--all"]
        done = subprocess.run(command, env=self.env, capture_output=True, check=True)
        (job,) = [job for job in json.loads(done.stdout)["jobs"] if job["job"] == f"ray-{self.process.pid}"]
        return job

    def end(self):
        with contextlib.suppress(ProcessLookupError, AttributeError):
            os.killpg(self.process.pid, signal.SIGTERM)
            self.process.wait(60)
        end = time.monotonic() + 10
        while (left := list(processes_of(self.folder))) and time.monotonic() < end:
            time.sleep(0.1)  # poll: Ray's processes have ended
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def node(guard, build):
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as folder:  # sockets: 107 characters
        node = Node(guard, build, folder)
        yield node
        node.end()


def claim(node, size, *options):
    """What sparkguard says to another job that claims so much."""
    command = [node.build / "sparkguard", "--job=other", f"--claim={size}", *options, "true"]
    return subprocess.run(command, env=node.env, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.timeout_seconds(300)
def test_tasks_run_within_the_nodes_claim(node):
    node.start(3, 6391)
    job = node.job()
    assert (job["claim_state"], job["claimed_bytes"]) == ("held", 3 * GIB)
    refused = claim(node, "4G")
    assert refused.returncode == 124, refused.stderr
    done = node.run(*TASK)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "5 tasks of 0.75 GiB, at most 2 at once, in 1.9 GiB claimed for tasks\n"
    job = node.job()
    assert sum(process["refused_count"] for process in job["processes"]) == 0
    assert 2 * 768 * MIB <= job["peak_bytes"] <= 3 * GIB
    node.end()
    assert claim(node, "4G", "--claim-wait=30").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "which sizes?"),
        (["3G", "1"], "3G is not a number of GiB"),
        (["3", ""], " is not a number of GiB"),
        (["3", "2"], "of 3 GiB nothing is left for tasks: the store takes 2 GiB and Ray 1 GiB"),
        (["8", "1", '--resources={"gpu": 1}'], "--resources follows from GIB and STORE_GIB"),
        (["8", "1", "--object-store-memory=80000000"], "--object-store-memory follows from GIB and STORE_GIB"),
    ],
)
def test_arguments_that_would_make_the_offer_wrong(arguments, said):
    done = subprocess.run([EXAMPLES / "claimed-node", *arguments], env=os.environ | {"RAY_GIB": "1"}, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and said in done.stderr and "usage: claimed-node" in done.stderr


def test_node_without_its_claim_does_not_start(node):
    """At last: nothing of Ray runs."""
    with pytest.raises(AssertionError):
        node.start(9000, 6392)
    assert node.process.wait(60) == 124
    assert "9000.0 GiB can never be claimed here" in node.log() or "8.8 TiB can never be claimed here" in node.log()
    assert not node.said("Ray runtime started")
