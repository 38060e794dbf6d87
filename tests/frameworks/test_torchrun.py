"""The example of torchrun as its guide says (scripts/examples/README.md): ranks are one job and share one limit."""

import os
import re

TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]


def run(client, examples, arguments, **variables):
    command = [os.environ["FRAMEWORK_PYTHON"], *arguments, examples / "pytorch/train.py"]
    env = {"PYTHONPATH": client.package, "PATH": f"{client.guard.build}:{os.environ['PATH']}"}
    done = client.guard.run(command, env=env | variables, timeout=110)
    assert done.returncode == 0, done.stderr
    (job,) = done.report("--all")["jobs"]
    return sorted(done.stdout.splitlines()), job


def test_two_ranks_and_their_workers_are_one_job_under_one_limit(client, examples):
    said, job = run(client, examples, TORCHRUN, SPARKGUARD_JOB="demo", SPARKGUARD_LIMIT="1500M")
    found = [re.fullmatch(r"rank (\d): 4 steps of 16384, (\d+) at a time, (\d) steps repeated", line).groups() for line in said]
    assert [rank for rank, *_ in found] == ["0", "1"] and found[0][1:] == found[1][1:], "both ranks changed alike"
    assert int(found[0][1]) < 16384 and 1 <= int(found[0][2]) <= 2
    assert (job["job"], job["limit_bytes"]) == ("demo", 1500 << 20)
    processes = [p for p in job["processes"] if "train.py" in p["command"] and "--standalone" not in p["command"]]
    assert len(processes) == 6, "two ranks with two workers each"
    assert all((p["state"], p["exit_code"]) == ("exited", 0) for p in processes)
    refusals = [r for p in processes for r in p["refusals"]]
    assert refusals and all((r["call"], r["reason"]) == ("posix_memalign", "limit") for r in refusals)


def test_alone_and_without_a_limit_nothing_is_refused(client, examples):
    said, job = run(client, examples, [])
    assert said == ["rank 0: 4 steps of 16384, 16384 at a time, 0 steps repeated"]
    assert len(job["processes"]) == 3 and all(p["refused_count"] == 0 for p in job["processes"])
