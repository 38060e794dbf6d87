"""The ledger against an independent truth: random sequences of all heap and mapping calls; see tests/programs/heap/stress_mixed.c."""

import re
import subprocess

import pytest
from lib.target import IS_LONG, STRESS_DIVISOR


def stress(guard, seed, threads, rounds, steps, timeout=60, **options):
    program = guard.build / "tests/programs/stress_mixed"
    done = guard.run([program, seed, threads, rounds, steps], timeout=timeout, **options)
    assert done.returncode == 0, f"{done.returncode}: {done.stdout}{done.stderr}"
    assert done.stderr == ""
    heap, mapping = map(int, re.search(r"heap (\d+) mapping (\d+)", done.stdout).groups())
    assert heap + mapping == threads * rounds * steps and min(heap, mapping) > heap // 2


@pytest.mark.parametrize("seed", range(1, 6 if IS_LONG else 2))
def test_stress_in_four_threads_counted_to_the_byte(guard, seed):
    stress(guard, seed, threads=4, rounds=30, steps=2000 // STRESS_DIVISOR)


def test_long_stress_in_eight_threads_counted_to_the_byte(guard):
    stress(guard, seed=77, threads=8, rounds=10, steps=(10000 if IS_LONG else 1500) // STRESS_DIVISOR, timeout=110)


def test_stress_checked_at_every_step(guard):
    stress(guard, seed=6, threads=1, rounds=10000 // STRESS_DIVISOR, steps=1)


@pytest.mark.parametrize("large", ["1B", "1G"])
def test_stress_judged_one_by_one_or_by_credit_only(guard, large):
    stress(guard, seed=7, threads=3, rounds=10, steps=2000, env={"SPARKGUARD_LARGE": large})


def test_stress_on_tcmalloc(guard):
    library = "libtcmalloc_minimal.so.4"
    if library not in subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True).stdout:
        pytest.skip(f"{library} is not installed")
    stress(guard, seed=8, threads=4, rounds=20, steps=2000, preload=[guard.library, library])
