"""Shared memory in many files: it counts once in a job and once on the machine, in however many files it lies."""

import os
import tempfile

import pytest
from lib.machine import LEFT, MIB

SHARER = """
import mmap
kept = []
def share(names):
    refused = 0
    for name in names:
        with open(name, "r+b") as file:
            try:
                kept.append(mmap.mmap(file.fileno(), 0))
            except OSError:
                refused += 1
    say(refused)
"""
CAPACITY = 64  # ranges in an entry


@pytest.fixture
def folder():
    """A folder of a tmpfs."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="sparkguard-test.") as path:
        yield path


def make(folder, count, size, allocate=True):
    for i in range(count):
        with open(f"{folder}/{i:05}", "wb") as file:
            os.posix_fallocate(file.fileno(), 0, size) if allocate else file.truncate(size)


def sharer(place, folder, text="", env=None, order=""):
    names = f"[f'{folder}/' + name for name in sorted(os.listdir('{folder}')){order}]"
    player = place.player(f"{SHARER}\nshare({names})\nready()\n{text}", env)
    player.said = player.ready()
    return player


SIZES = [(CAPACITY, 4 * MIB), (CAPACITY + 1, 4 * MIB), (256, MIB), pytest.param(1000, 256 << 10, marks=pytest.mark.long)]


@pytest.mark.parametrize(("count", "size"), SIZES)
@pytest.mark.parametrize("order", ["", "[::-1]"])
def test_counts_once_in_a_job(place, folder, count, size, order):
    make(folder, count, size)
    limit = {"SPARKGUARD_LIMIT": f"{count * size // MIB + 120}M"}
    sharers = [sharer(place, folder, env=limit, order=order if i % 2 else "") for i in range(4)]
    assert [player.said for player in sharers] == [[0]] * 4
    (job,) = place.report()["jobs"]
    assert count * size <= job["live_bytes"] <= count * size + 100 * MIB


@pytest.mark.parametrize(("count", "size"), [(200, 8 * MIB), (300, 2 * MIB)], ids=["large", "small"])
def test_counts_once_on_the_machine(place, folder, count, size):
    """Nobody has touched it: it is promised, once. A mapping of 2 MiB is not decided by itself."""
    make(folder, count, size, allocate=False)
    for i in range(3):
        sharer(place, folder, env={"SPARKGUARD_JOB": f"job{i}"})
    place.assert_left(LEFT - count * size - 16 * MIB, {"SPARKGUARD_JOB": "other"}, above=16 * MIB)


def test_different_files_count_each(place, folder):
    """Two processes share half of their files."""
    make(folder, 300, MIB)
    first, second = (sharer(place, folder, order=order) for order in ("[:200]", "[100:]"))
    assert first.said == second.said == [0]
    (job,) = place.report()["jobs"]
    assert 300 * MIB <= job["live_bytes"] <= 350 * MIB


def test_what_is_unmapped_counts_no_more(place, folder):
    make(folder, 200, MIB)
    player = sharer(place, folder, "for one in kept[:150]:\n    one.close()\nready()\n")
    player.go().ready()
    assert 50 * MIB <= place.report()["jobs"][0]["live_bytes"] <= 100 * MIB
    assert place.take("malloc 100M", {"SPARKGUARD_LIMIT": "200M"}) == ["ok"]


def test_killed_process_leaves_nothing_to_the_next_in_its_entry(place, folder):
    make(folder, 200, MIB)
    player = sharer(place, folder)
    number = place.ledger.of(player.pid)
    player.kill()
    assert place.take("malloc 9G") == ["ENOMEM"]  # who is refused marks the dead first
    tenant = place.holder("malloc 64M", {"SPARKGUARD_LIMIT": "200M"})
    assert place.ledger.of(tenant.pid) == number
    place.assert_left(136 * MIB, {"SPARKGUARD_LIMIT": "200M"})
