"""The example of torchrun as its guide says (scripts/examples/README.md): ranks are one job and share one limit."""

import os

TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]


def run(client, examples, arguments, **variables):
    command = [os.environ["FRAMEWORK_PYTHON"], *arguments, examples / "pytorch/train.py"]
    done = client.guard.run(command, env=variables, timeout=110)
    assert done.returncode == 0, done.stderr
    (job,) = done.report("--all")["jobs"]
    return sorted(done.stdout.splitlines()), job


def test_two_ranks_and_their_workers_are_one_job_under_one_limit(client, examples):
    said, job = run(client, examples, TORCHRUN, SPARKGUARD_JOB="demo", SPARKGUARD_LIMIT="1500M")
    assert said == [f"rank {rank}: largest batch 16384, 4 steps" for rank in (0, 1)]
    assert (job["job"], job["limit_bytes"]) == ("demo", 1500 << 20)
    processes = [p for p in job["processes"] if "train.py" in p["command"] and "--standalone" not in p["command"]]
    assert len(processes) == 6, "two ranks with two workers each"
    assert all((p["state"], p["exit_code"]) == ("exited", 0) for p in processes)
    refusals = [r for p in processes for r in p["refusals"]]
    assert refusals and all((r["call"], r["reason"]) == ("posix_memalign", "limit") for r in refusals)


def test_alone_and_without_a_limit_nothing_is_refused(client, examples):
    said, job = run(client, examples, [])
    assert said == ["rank 0: largest batch 32768, 4 steps"]
    assert len(job["processes"]) == 3 and all(p["refused_count"] == 0 for p in job["processes"])
