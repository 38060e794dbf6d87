"""What the jobs with claims hold, and what it costs to add it up."""

from pathlib import Path

from lib.machine import GIB, LEFT, MIB, slept
from lib.waiting import wait_until


def claim(place, size, commands="", job="claimer"):
    """A program that has claimed, has done what it was told, and waits."""
    prefix = [place.guard.build / "sparkguard", f"--job={job}", f"--claim={size}"]
    return place.holder(commands, prefix=prefix, preload=())


def reads_at_a_look(pid):
    """How many reads the watchdog of a process makes for each time that it sleeps, over twenty looks."""

    def counts(thread):
        reads = next(int(line.split()[1]) for line in (thread / "io").read_text().splitlines() if line.startswith("syscr"))
        return reads, slept(int(thread.name))

    def ours():
        return [thread for thread in Path(f"/proc/{pid}/task").iterdir() if (thread / "comm").read_text() == "sparkguard\n"]

    (thread,) = wait_until(ours)
    reads, sleeps = counts(thread)
    wait_until(lambda: counts(thread)[1] >= sleeps + 20)
    now_reads, now_sleeps = counts(thread)
    return (now_reads - reads) / (now_sleeps - sleeps)


def test_idle_watchdog_reads_nothing_for_claims(place):
    idle = place.holder("malloc 300M", {"SPARKGUARD_HISTORY": "off", "SPARKGUARD_JOB": "other"})
    wait_until(lambda: place.guard.process(idle.pid)["watched"])
    without = reads_at_a_look(idle.pid)
    for i in range(6):
        claim(place, "100M", "malloc 20M fork malloc 20M", job=f"claimer{i}")
    assert reads_at_a_look(idle.pid) < without + 2


def test_job_whose_processes_share_memory_fills_its_claim(place):
    """Each process has another file of 1 GiB: both count, and each once."""
    text = """
import mmap
file = os.memfd_create("shared")
os.ftruncate(file, GIB)
keep = mmap.mmap(file, GIB)
ready()
"""
    for _ in range(2):
        place.player(text, {"SPARKGUARD_JOB": "claimer"}).ready()
    claim(place, "3G")
    place.assert_left(LEFT - 3 * GIB, {"SPARKGUARD_JOB": "other"}, above=16 * MIB)  # what else an interpreter holds fills the claim, too
