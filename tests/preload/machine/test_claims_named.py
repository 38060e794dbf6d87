"""How the report names claims and the queue."""

import re
import subprocess

from lib.waiting import wait_until


def claim(place, size, *options, job, program):
    place.tenant([place.guard.build / "sparkguard", f"--job={job}", f"--claim={size}", *options, *program], preload=())


def reported(place, *options):
    command = [place.guard.build / "sparkguard-report", *options]
    return subprocess.run(command, env=place.guard.environment(place.env, preload=()), capture_output=True, text=True).stdout


def test_a_claim_is_named_by_its_job_and_one_that_waits_by_its_command_too(place):
    """sleep leaves no record, and the one that waits is not the program yet."""
    claim(place, "6G", job="server", program=["sleep", "600"])  # holds: until the test ends it
    wait_until(lambda: "claims: server 6.0 GiB\n" in reported(place))
    claim(place, "7G", "--claim-wait=600", job="train", program=["echo", "--lr", "1"])
    wait_until(lambda: "queue: train" in reported(place))
    text = reported(place)
    assert "claims: server 6.0 GiB; queue: train 7.0 GiB (echo --lr 1)\n" in text
    assert "in-claim" not in text and re.search(r"^ *\d+ echo --lr 1 +running", text, re.MULTILINE), text
    assert "queue: train 7.0 GiB (echo --lr 1)" in reported(place, "--all")
