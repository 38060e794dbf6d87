"""Ray under the guard: two workers under one limit as the guide says (scripts/examples/README.md), and a whole node guarded."""

import contextlib
import os
import signal
import tempfile
import time
from pathlib import Path

import pytest

MIB = 1 << 20
STORE = 80 * MIB


def processes_of(folder):
    """Whoever was started for a session in that folder: its path is in their arguments."""
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if str(folder).encode() in (path / "cmdline").read_bytes():
                yield int(path.name)


@pytest.fixture
def session():
    """The variables of a session of its own, which must leave nobody behind."""
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as folder:  # sockets: 107 characters
        yield {"RAY_TMPDIR": folder, "HOME": folder, "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
        deadline = time.monotonic() + 60
        while (left := list(processes_of(folder))) and time.monotonic() < deadline:
            time.sleep(0.1)  # poll: Ray's processes have ended
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        assert not left, "processes of Ray that outlived it"


def of_workers(processes):
    return [p for p in processes if "default_worker.py" in p["command"] or p["command"].startswith("ray::")]


def test_of_two_workers_under_one_limit_one_is_refused_and_the_other_finishes(client, examples, session):
    command = [os.environ["FRAMEWORK_PYTHON"], examples / "ray/two_workers.py", "--library", client.guard.library]
    done = client.guard.run(command, env={**session, "LD_PRELOAD": None}, timeout=110)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "first holds 600 MiB",
        "second refused: RayTaskError(MemoryError)",
        "second holds 60 MiB",
        f"both see [{32 * MIB}, {32 * MIB}] bytes",
        "first holds 660 MiB",
    ]
    (job,) = done.report("--all")["jobs"]
    assert (job["job"], job["limit_bytes"]) == ("two-workers", 1536 * MIB)
    second, first = sorted(of_workers(job["processes"]), key=lambda p: p["peak_bytes"])
    assert (first["refused_count"], second["refused_count"]) == (0, 1)
    (refusal,) = second["refusals"]
    assert refusal["reason"] == "limit" and refusal["size_bytes"] >= 1200 * MIB
    for worker in (first, second):  # the store is one file in /dev/shm, which a worker maps whole
        assert STORE <= worker["domains"]["mapped"]["peak_bytes"] <= STORE + 64 * MIB


NODE = f"""
import numpy, ray
ray.init(num_cpus=1, object_store_memory={STORE}, include_dashboard=False, log_to_driver=False)
@ray.remote
def total(array):
    return int(array.sum())
array = ray.put(numpy.ones({32 * MIB}, dtype="u1"))
print(ray.get([total.remote(array) for _ in range(8)]))
@ray.remote
def large():
    return numpy.ones({2048 * MIB}, dtype="u1").size
try:
    ray.get(large.remote())
except MemoryError as error:
    print(type(error).__name__)
ray.shutdown()
"""


def test_a_whole_node_runs_guarded_and_its_store_counts(client, session):
    done = client.run(NODE, SPARKGUARD_JOB="node", SPARKGUARD_LIMIT="2G", **session)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [str([32 * MIB] * 8), "RayTaskError(MemoryError)"], done.stderr
    (job,) = done.report("--all")["jobs"]
    (raylet,) = [p for p in job["processes"] if p["command"].split()[0].endswith("/raylet")]
    assert raylet["domains"]["mapped"]["peak_bytes"] >= STORE
    assert sum(p["refused_count"] for p in of_workers(job["processes"])) == 1


# A task that is killed and not to be run again ends with OutOfMemoryError; it waits for that, or for a time in which a monitor
# of four looks a second would have killed it.
MONITORED = """
import sys, time, numpy, ray
ray.init(num_cpus=1, object_store_memory=80 << 20, include_dashboard=False, log_to_driver=False)
@ray.remote(max_retries=0)
def hold(seconds):
    block = numpy.ones(64 << 20, dtype="u1")
    time.sleep(seconds)  # pace: the time that a task takes
    return block.size
try:
    print("held", ray.get(hold.remote(float(sys.argv[1]))))
except ray.exceptions.OutOfMemoryError as error:
    print("killed by Ray")
ray.shutdown()
"""


@pytest.mark.timeout_seconds(300)
@pytest.mark.parametrize(
    "variables, seconds, said",
    [
        ({"RAY_memory_usage_threshold": "0.001"}, 60, "killed by Ray"),
        ({"RAY_memory_usage_threshold": "0.001", "RAY_memory_monitor_refresh_ms": "0"}, 4, f"held {64 * MIB}"),
    ],
    ids=["monitor", "no monitor"],
)
def test_rays_own_monitor_kills_by_its_variables(client, session, variables, seconds, said):
    """What the recipe and the doctor say of it. Nothing of this is the guard's doing: it refuses nothing here."""
    command = [os.environ["FRAMEWORK_PYTHON"], "-c", MONITORED, str(seconds)]
    done = client.guard.run(command, env=session | variables, timeout=250)
    assert (done.returncode, done.stdout.strip()) == (0, said), done.stderr
    assert "sparkguard: refused" not in done.stderr
