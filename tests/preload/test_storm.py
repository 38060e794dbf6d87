"""The ledger against an independent truth: random storms of all heap and mapping calls; see programs/storm_mixed.c."""

import re
import subprocess

import pytest
from target import STORMS


def storm(guard, seed, threads, rounds, steps, timeout=60, **options):
    program = guard.build / "tests/programs/storm_mixed"
    done = guard.run([program, seed, threads, rounds, steps], timeout=timeout, **options)
    assert done.returncode == 0, f"{done.returncode}: {done.stdout}{done.stderr}"
    assert done.stderr == ""
    heap, mapping = map(int, re.search(r"heap (\d+) mapping (\d+)", done.stdout).groups())
    assert heap + mapping == threads * rounds * steps and min(heap, mapping) > heap // 2


@pytest.mark.parametrize("seed", [1, 2, 3, 4, 5])
def test_storm_in_four_threads_counted_to_the_byte(guard, seed):
    storm(guard, seed, threads=4, rounds=30, steps=2000 // STORMS)


def test_long_storm_in_eight_threads_counted_to_the_byte(guard):
    storm(guard, seed=77, threads=8, rounds=10, steps=10000 // STORMS, timeout=110)


def test_storm_checked_at_every_step(guard):
    storm(guard, seed=6, threads=1, rounds=10000 // STORMS, steps=1)


@pytest.mark.parametrize("large", ["1B", "1G"])
def test_storm_judged_one_by_one_or_by_credit_only(guard, large):
    storm(guard, seed=7, threads=3, rounds=10, steps=2000, env={"SPARKGUARD_LARGE": large})


def test_storm_on_tcmalloc(guard):
    library = "libtcmalloc_minimal.so.4"
    if library not in subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True).stdout:
        pytest.skip(f"{library} is not installed")
    storm(guard, seed=8, threads=4, rounds=20, steps=2000, preload=[guard.library, library])
