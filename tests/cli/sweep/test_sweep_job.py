"""A sweep is one job in the report: each configuration is a run of it, measured for itself."""

import json
import subprocess

import pytest
from sweeping import GIB, MIB, PIECE, PYTHON, outcomes, recorded, sweep  # noqa: F401 - the fixture


def report(tools, sweep, *options):
    env = sweep.environment(LD_PRELOAD="", SPARKGUARD_HISTORY="off")  # the history is of other tests as well
    return subprocess.run([tools / "sparkguard-report", *options], env=env, capture_output=True, text=True, check=True).stdout


def jobs_of(tools, sweep):
    return json.loads(report(tools, sweep, "--json", "--all"))["jobs"]


def test_all_runs_are_of_one_job(tools, sweep):
    assert sweep.grow("2,3,4").returncode == 0
    (job,) = jobs_of(tools, sweep)
    assert job["job"].startswith("sweep-") and len(job["processes"]) == 3
    assert "run 3 of 3" in report(tools, sweep, "--job", job["job"])


def test_each_run_is_measured_for_itself(sweep):
    """The second value of x begins with a small batch again, after a large one has run in the same job."""
    done = sweep.run("--json", "--param=batch=2,6", "--param=x=a,b", "--", PYTHON, "grow.py", "{batch}", "{x}")
    runs = json.loads(done.stdout)["runs"]
    assert [run["values"]["batch"] for run in runs] == [2, 6, 2, 6]
    assert all(run["values"]["batch"] ** 2 * PIECE <= run["peak_bytes"] < run["values"]["batch"] ** 2 * PIECE + 20 * MIB for run in runs)


TAKE = """
import mmap, sys
size = {"much": 4 << 30, "little": 32 << 20}[sys.argv[1]]
try:
    held = mmap.mmap(-1, size, mmap.MAP_PRIVATE)
except OSError:
    pass
"""


def test_a_refusal_of_one_run_is_none_of_the_next(sweep):
    (sweep.folder / "take.py").write_text(TAKE)
    done = sweep.run("--json", "--param=size=much,little", "--", PYTHON, "take.py", "{size}")
    runs = {run["values"]["size"]: run for run in json.loads(done.stdout)["runs"]}
    assert (runs["much"]["status"], runs["much"]["refused_count"]) == ("refused", 1)
    assert (runs["little"]["status"], runs["little"]["refused_count"]) == ("ok", 0)


def test_a_sweep_that_goes_on_is_the_same_job(tools, sweep):
    """The record says when it began: 2026-11-21 13:07:35."""
    command = f"{PYTHON} grow.py {{batch}}"
    sweep.record("batch=2,3", command, [recorded(0, "ok", 0.1 * GIB)], complete=False)
    done = sweep.grow("2,3", "--json")
    assert outcomes(json.loads(done.stdout)) == {2: "ok", 3: "ok"} and sweep.starts() == [3], done.stderr
    (job,) = jobs_of(tools, sweep)
    assert job["job"].startswith("sweep-20261121T130735-")


@pytest.mark.parametrize("option", ["--fresh", None])
def test_a_sweep_from_the_start_is_another_job(tools, sweep, option):
    sweep.grow("2", "--fresh")
    (first,) = jobs_of(tools, sweep)
    sweep.clock.move(1)  # the name has the second in which it began
    sweep.grow("2", *filter(None, [option]))
    assert len({first["job"]} | {job["job"] for job in jobs_of(tools, sweep)}) == 2
