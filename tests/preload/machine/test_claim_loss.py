"""A claim that ends or shrinks though its launcher did not ask for it: one event in one process of the job, and one line."""

import os
import signal
import subprocess

import pytest
from lib.ledger import LIVE
from lib.machine import GIB, PLAYER

SHRUNK = "the claim of this job has shrunk from 4.0 GiB to 1.0 GiB; its launcher did not ask for that"
ENDED = "the claim of this job has ended; it was 4.0 GiB; its launcher did not ask for that"
# Smaller ones each time: a larger one would be refused at once, by the refusal before it.
ASK = "\nfor i in range(3):\n    malloc((36 - i) * GIB // 4)\n    ready()\n"


@pytest.fixture
def claimed(place):
    """A process of a job with a claim of 4 GiB, which asks for too much whenever it is told to go on."""
    launcher = [place.guard.build / "sparkguard", "--quiet", "--job=claimer", "--claim=4G"]
    tenant = place.tenant([*launcher, "/usr/bin/python3", "-S", "-c", PLAYER + ASK], preload=())
    assert tenant.ready() == ["ENOMEM"]
    return tenant


def claim_of(place):
    used = place.ledger.get("entry_used")
    (number,) = [i for i in range(used) if place.ledger.get("claimed_bytes", i) and place.ledger.get("claim", i) & 3 == LIVE]
    return number


def losses(place):
    jobs = place.guard.report("--all")["jobs"]
    events = [event["what"] for job in jobs for process in job["processes"] for event in process["events"]]
    return [event for event in events if event.startswith("the claim of this job")]


def said(tenant):
    _, stderr = tenant.process.communicate("\n\n", timeout=60)
    return [line for line in stderr.splitlines() if "the claim of this job" in line]


def test_shrunk_by_somebody_else(place, claimed):
    place.ledger.put("claimed_bytes", GIB, claim_of(place))
    assert claimed.go().ready() == ["ENOMEM"] and claimed.go().ready() == ["ENOMEM"]
    assert losses(place) == [SHRUNK]
    claimed.go()
    assert said(claimed) == [f"sparkguard: {SHRUNK}"]


def test_ended_with_its_launcher(place, claimed):
    """The launcher is killed, and the program goes on without the claim."""
    launcher = claimed.pid
    os.kill(launcher, signal.SIGKILL)
    claimed.process.wait()
    assert claimed.go().ready() == ["ENOMEM"] and claimed.go().ready() == ["ENOMEM"]
    assert losses(place) == [ENDED]


def test_told_by_one_process_of_the_job(place, claimed):
    other = place.player(ASK, {"SPARKGUARD_JOB": "claimer"})
    assert other.ready() == ["ENOMEM"]
    place.ledger.put("claimed_bytes", GIB, claim_of(place))
    for tenant in (claimed, other, claimed, other):
        assert tenant.go().ready() == ["ENOMEM"]
    assert losses(place) == [SHRUNK]


@pytest.mark.parametrize("how", ["by --set", "raised by --set", "given up by --set", "at its end"])
def test_change_on_purpose_is_no_loss(place, claimed, how):
    env = place.guard.environment(place.env, preload=())
    other = place.player(ASK, {"SPARKGUARD_JOB": "claimer"})
    assert other.ready() == ["ENOMEM"]
    if how == "at its end":
        for _ in range(3):
            claimed.go()
        claimed.process.communicate("\n", timeout=60)
    else:
        size = {"by --set": "2G", "raised by --set": "5G", "given up by --set": "none"}[how]
        subprocess.run([place.guard.build / "sparkguard", "--set", "claimer", f"claim={size}"], env=env, check=True, timeout=60)
    assert other.go().ready() == ["ENOMEM"] and other.go().ready() == ["ENOMEM"]
    assert losses(place) == []
