"""sparkguard --claim on the real kernel: sixteen jobs at once in a jail of 10 GiB that need five times as much."""

import json
import random
import subprocess

import pytest
from jail import GIB, MIB

LIMIT = 10 * GIB
JOBS = 16
# Takes its memory piece by piece, writes all of it, and holds it for a moment. The interpreter needs some, too.
PROGRAM = """
import sys, time
blocks = []
for _ in range(int(sys.argv[1])):
    blocks.append(b"x" * (64 << 20))
    time.sleep(0.005)  # pace: it takes its memory piece by piece
time.sleep(0.3)  # pace: it holds it for a moment
"""


def start_all(guard, build, jail, sizes, *options):
    """All of them at once; options with {} for the size in GiB."""
    env = guard.environment({"SPARKGUARD_RESERVE": f"{512 * MIB}"}, preload=())
    jobs = []
    for i, size in enumerate(sizes):
        command = [build / "sparkguard", "--quiet", f"--job=job-{i}", *(option.format(size) for option in options)]
        command += ["/usr/bin/python3", "-S", "-c", PROGRAM, size * 16 - 4]
        jobs.append(jail.popen(command, env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL))
    return jobs


def tenants(guard, build):
    """The waiting jobs in their expected order, and how many have their claim, as the report says."""
    command = [build / "sparkguard-report", "--json", "--all"]
    done = subprocess.run(command, env=guard.environment(preload=()), capture_output=True, check=False)
    jobs = json.loads(done.stdout)["jobs"]
    waiting = sorted((job["queue_position"], job["job"]) for job in jobs if job["queue_position"])
    return [name for _, name in waiting], sum(job["claim_state"] == "held" for job in jobs)


def end(jobs):
    """Exit statuses, and what was refused, by job."""
    said = [job.communicate(timeout=300)[1] for job in jobs]
    return [job.returncode for job in jobs], [i for i, text in enumerate(said) if "refused" in text]


@pytest.fixture
def sizes():
    rng = random.Random(22)
    return [rng.randint(1, 6) for _ in range(JOBS)]


@pytest.mark.long  # a minute
@pytest.mark.timeout_seconds(400)
def test_with_claims_none_is_refused_and_the_order_is_kept(guard, build, make_jail, figures, sizes):
    jail = make_jail(LIMIT)
    jobs = start_all(guard, build, jail, sizes, "--claim={}G", "--claim-wait=300")
    before, seen, most_used, most_held = [], 0, 0, 0
    while any(job.poll() is None for job in jobs):
        (now, held), most_used = tenants(guard, build), max(most_used, jail.used_bytes())
        most_held = max(most_held, held)
        stayed = [name for name in before if name in now]
        # Only jobs at the head of the queue leave it, and no later job comes before the others.
        assert before[len(before) - len(stayed) :] == stayed == now[: len(stayed)], (before, now)
        seen += len(now) > 1
        before = now
    statuses, refused = end(jobs)
    figures(sizes=sizes, looked_at_queue=seen, most_used_mib=most_used // MIB, most_at_once=most_held, limit_hits=jail.limit_hits())
    assert (statuses, refused) == ([0] * JOBS, [])
    assert seen > 10 and most_held >= 2 and jail.oom_kills() == 0
    assert jail.limit_hits() == 0  # no charge ever met the limit


@pytest.mark.long
@pytest.mark.timeout_seconds(400)
def test_without_claims_some_are_refused_in_the_middle(guard, build, make_jail, figures, sizes):
    jail = make_jail(LIMIT)
    statuses, refused = end(start_all(guard, build, jail, sizes))
    figures(refused=refused, limit_hits=jail.limit_hits())
    assert refused and all(statuses[i] == 1 for i in refused)
    assert jail.oom_kills() == 0
