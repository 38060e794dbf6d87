"""Heaps that commit more address space than there is memory, and touch little of it: OpenJDK's G1 with -Xmx above the machine's memory."""

import pytest
from lib.machine import GIB, MIB, Machine
from lib.output import values

RESERVE = 2 * GIB
# What commit_steps and its libraries map writable and never touch: the kernel's figure contains it.
UNTOUCHED = 8 * MIB
# With 10 ms between them they outlast what untouched memory needs to become a record: two periods of 250 ms (preload/core/account/commits.c).
ASKS = 60


def steps(guard, scratch, commit, touch, count, available, how="fixed", **env):
    """What commit_steps says, on a machine of 16 GiB that has `available` bytes above its reserve and what nobody was promised."""
    available += UNTOUCHED
    Machine(scratch, 16 * GIB, RESERVE + available)
    variables = {
        "SPARKGUARD_SYSTEM_ROOT": scratch,
        "SPARKGUARD_RESERVE": RESERVE,
        "AVAILABLE_MIB": (RESERVE + available) // MIB,
        **env,
    }
    words = [commit // MIB, touch // MIB, count, ASKS, how]
    done = guard.run([guard.build / "tests/programs/commit_steps", *map(str, words)], env=variables)
    assert done.returncode == 0, f"{done.returncode}: {done.stdout}{done.stderr}"
    steps.done = done
    return values(done.stdout)


@pytest.mark.parametrize("how", ["fixed", "mprotect"])
def test_heap_that_leaves_most_untouched_gets_more_than_there_is(guard, tmp_path, how):
    said = steps(guard, tmp_path, GIB, 32 * MIB, 8, 3 * GIB, how)
    assert said.steps == 8, steps.done.stderr
    untouched = 8 * (GIB - 32 * MIB)
    assert untouched // 4 - 64 * MIB <= said.promised <= untouched // 4 + 64 * MIB
    assert "judged by what it touched" in steps.done.process()["events"][0]["what"]


def test_heap_is_refused_once_its_record_says_that_it_would_touch_more_than_there_is(guard, tmp_path):
    said = steps(guard, tmp_path, GIB, 32 * MIB, 8, 1200 * MIB)
    # Each piece takes 32 MiB, and of its 992 untouched ones a quarter is promised: four take 1120 MiB, and the fifth needs 256 more.
    assert said.steps == 4, steps.done.stderr
    untouched = 4 * (GIB - 32 * MIB)
    assert untouched // 4 - 64 * MIB <= said.promised <= untouched // 4 + 64 * MIB, "the refused one is not promised"


def test_heap_that_touches_what_it_commits_is_refused_before_the_reserve(guard, tmp_path):
    said = steps(guard, tmp_path, 256 * MIB, 256 * MIB, 8, 900 * MIB)
    assert said.steps == 3, "900 MiB have room for three pieces of 256"


def test_heap_that_touches_half_is_refused_where_the_rest_does_not_fit(guard, tmp_path):
    said = steps(guard, tmp_path, 512 * MIB, 300 * MIB, 8, 1400 * MIB)
    assert said.steps == 2


def test_pieces_that_are_not_used_at_all_are_no_record(guard, tmp_path):
    said = steps(guard, tmp_path, GIB, 0, 8, 3 * GIB)
    assert said.steps == 3, "3 GiB have room for three pieces of 1 GiB"


def test_mappings_outside_a_reservation_are_judged_in_full(guard, tmp_path):
    said = steps(guard, tmp_path, GIB, 32 * MIB, 8, 3 * GIB, "fresh")
    assert said.steps == 3


@pytest.mark.parametrize("option", [{"SPARKGUARD_WATCHDOG": "off"}, {"SPARKGUARD_WATCHDOG": "warn"}])
def test_without_a_watchdog_that_may_act_all_is_judged_in_full(guard, tmp_path, option):
    said = steps(guard, tmp_path, GIB, 32 * MIB, 8, 3 * GIB, **option)
    assert said.steps == 3


def test_limit_counts_what_is_committed(guard, tmp_path):
    said = steps(guard, tmp_path, GIB, 32 * MIB, 8, 3 * GIB, SPARKGUARD_LIMIT="5500M")
    assert said.steps == 5
    commits = [refusal for refusal in steps.done.process()["refusals"] if refusal["size_bytes"] == GIB]
    assert commits[-1]["reason"] == "limit"  # earlier ones were refused until there was a record
