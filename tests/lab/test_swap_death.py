"""Swap death without a GPU, and its prevention.

A jail of 512 MiB with a slow swap file; in it a hog whose memory cannot be swapped, as CUDA's cannot, and a canary whose
pages are what everybody else needs. How late the canary is, is written down; what is asserted is how many of its pages had gone.
"""

import contextlib
import os
import re
import subprocess
import time

import pytest
from jail import GIB, MIB, READS_PER_SECOND
from lib.waiting import wait_until

LIMIT = 512 * MIB
RESERVE = LIMIT * 8 // 100
GREEDY = 100_000  # MiB: more than there is
# Twenty rounds of the canary. They are enough, for the pages that had to come back are counted, and not how late it was: each round touches
# all of its pages, and one that had gone would be read again.
HOG_SECONDS = 1
ENOUGH_SECONDS = 60  # without the guard it may go on for minutes
FELT_PAGES = READS_PER_SECOND // 2  # for as many a disk that busy needs half a second: what a person who types calls dead


@pytest.fixture
def jail(make_jail):
    return make_jail(LIMIT, swap_bytes=GIB)


@contextlib.contextmanager
def running(hogs):
    try:
        yield
    finally:
        for hog in hogs:
            if hog.poll() is None:
                hog.kill()
            hog.wait()


def outcome(hog):
    """Bytes taken, how often it was refused, and what it said on stderr."""
    stdout, stderr = hog.communicate(timeout=60)
    assert hog.returncode == 0, f"{hog.returncode}: {stdout}{stderr}"
    taken, refused = re.search(r"^taken (\d+) refused (\d+)$", stdout, re.MULTILINE).groups()
    return int(taken), int(refused), stderr


@pytest.mark.parametrize(
    "hogs, threads",
    [pytest.param(1, 1, id="one_hog"), pytest.param(2, 2, id="two_processes_of_two_threads"), pytest.param(1, 4, id="four_threads", marks=pytest.mark.long)],
)
def test_guarded_hog_is_refused_and_nobody_else_feels_it(guard, jail, programs, start_canary, figures, hogs, threads):
    """Nobody: no page of a canary in the same jail has to come back from the disk."""
    canary = start_canary(jail)
    begin, pages = time.monotonic(), canary.pages_read()
    command = [programs / "hog", threads, GREEDY, HOG_SECONDS]
    running_hogs = [jail.popen(command, guard.environment()) for _ in range(hogs)]
    with running(running_hogs):
        outcomes = [outcome(hog) for hog in running_hogs]
        p99, worst, read = canary.p99_since(begin), max(canary.late_since(begin)), canary.pages_read() - pages
    taken = sum(taken for taken, *_ in outcomes)
    figures(canary_p99_ms=round(p99 * 1000, 1), canary_worst_ms=round(worst * 1000, 1), taken_mib=taken // MIB)
    figures(least_headroom_mib=round(jail.least_headroom_bytes() / MIB, 2))
    for *_, stderr in outcomes:
        assert "sparkguard: cannot" not in stderr
        assert "in a cgroup of 512.0 MiB" in stderr
    assert all(refused > 0 for _, refused, _ in outcomes)
    assert taken > LIMIT // 2, "refused far too early"
    # What a small request takes does not keep the reserve: a thread has up to 1 MiB of credit for them. One hog may end before the other,
    # which takes its memory then, so that the sum of both says nothing.
    assert jail.least_headroom_bytes() >= RESERVE - hogs * threads * MIB
    assert jail.oom_kills() == 0
    assert jail.limit_hits() == 0
    assert canary.is_alive()
    assert read == 0
    for hog in running_hogs:
        entry = guard.process(hog.pid)
        assert entry["state"] == "exited" and entry["refused_count"] > 0
        assert entry["refusals"][-1]["reason"] == "reserve"


def unguarded():
    return {k: v for k, v in os.environ.items() if k != "LD_PRELOAD" and not k.startswith("SPARKGUARD_")}


@pytest.mark.parametrize("mib", [pytest.param(GREEDY, id="takes_all", marks=pytest.mark.long), pytest.param(496, id="leaves_too_little")])
def test_without_the_guard_the_hog_is_killed_or_everybody_feels_it(jail, programs, start_canary, figures, mib):
    """The control: it is the guard that makes the difference, not the jail."""
    canary = start_canary(jail)
    begin, pages = time.monotonic(), canary.pages_read()
    hog = jail.popen([programs / "hog", 1, mib, 100], unguarded(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with running([hog]):
        wait_until(lambda: jail.oom_kills() > 0 or canary.pages_read() - pages > FELT_PAGES, "the kernel's killer, or a swap death", ENOUGH_SECONDS)
        kills, p99, worst = jail.oom_kills(), canary.p99_since(begin), max(canary.late_since(begin))
        figures(canary_pages_read=canary.pages_read() - pages)
    figures(canary_p99_s=round(p99, 2), canary_worst_s=round(worst, 2), oom_kills=kills, throttled=jail.is_throttled)
