"""Whom the watchdog chooses among others, by what their entries say. The others are only written down, so nobody ends."""

import contextlib
import time

import pytest
from lib.ledger import hash_of
from lib.machine import GIB, MIB, set_available
from lib.target import UNCOUNTED_BYTES
from lib.waiting import wait_until

OURS = 64 * MIB
MISSING = 40 * MIB  # of the reserve
AHEAD_NS = 9_000_000_000  # a watchdog that has looked, whenever it is asked: what is 10 s ahead is not believed
THEIRS, SECOND, CHILD = 20, 21, 22  # numbers of entries

# What the others hold, and whether it is ours to go.
SCENES = {
    "alone": ([], True),
    "we_hold_most": ([{"holds": OURS // 2}], True),
    "another_holds_more": ([{"holds": 4 * OURS}], False),
    "who_holds_more_is_not_watched": ([{"holds": 4 * OURS, "watched_ns": 0}], True),
    "who_holds_more_shares_it_with_a_child": ([{"holds": 4 * OURS, "shared": 4 * OURS - MIB}], True),
    "who_holds_more_shares_a_little": ([{"holds": 4 * OURS, "shared": MIB}], False),
    "a_job_together": ([{"holds": OURS, "job": "pair", "number": n} for n in (THEIRS, SECOND)], False),
    "a_job_together_holds_less": ([{"holds": OURS // 8, "job": "pair", "number": n} for n in (THEIRS, SECOND)], True),
    "our_job_together": ([{"holds": OURS // 2, "number": n} for n in (THEIRS, SECOND)], True),
    "two_jobs_hold_enough_and_ours_more": (
        [{"holds": OURS - 4 * MIB}]
        + [{"holds": OURS - 8 * MIB, "job": "pair", "number": n} for n in (SECOND, SECOND + 1)],
        True,
    ),
}
# Where no process alone holds what is missing.
MISSING_MUCH = dict.fromkeys(
    ("a_job_together", "our_job_together", "two_jobs_hold_enough_and_ours_more"), OURS + 40 * MIB
)


def use_entry(place, stack, number=THEIRS, holds=0, shared=0, job="job", watched_ns=None):
    watched_ns = time.monotonic_ns() + AHEAD_NS if watched_ns is None else watched_ns
    fields = {"holds_bounded_bytes": holds, "watched_ns": watched_ns, "job_hash": hash_of(job), "pid": number}
    stack.enter_context(place.ledger.entry(number, **fields))
    if shared != 0:
        claim = place.ledger.get("claim", number)
        child = {"parent_entry": number + 1, "parent_claim": claim, "shared_bytes": shared, "job_hash": hash_of(job)}
        stack.enter_context(place.ledger.entry(CHILD, **child))


@pytest.mark.parametrize("scene", SCENES)
def test_watchdog_acts_where_it_is_its_process_that_must_go(place, scene):
    others, is_ours = SCENES[scene]
    place.env |= {"SPARKGUARD_RESERVE": "1G", "SPARKGUARD_FLOOR": "1023M", "SPARKGUARD_WATCHDOG": "warn"}
    tenant = place.holder(f"malloc 300M malloc {OURS} touch 1")
    entry = place.ledger.of(tenant.pid)
    wait_until(lambda: place.ledger.get("holds_bounded_bytes", entry) >= OURS - UNCOUNTED_BYTES)
    with contextlib.ExitStack() as stack:
        for other in others:
            use_entry(place, stack, **other)
        set_available(place, GIB - MISSING_MUCH.get(scene, MISSING))
        if is_ours:
            wait_until(lambda: any("watchdog: warned" in what for what in place.events(tenant.pid)))
        else:
            looks_again(place, entry)
            assert not any("watchdog" in what for what in place.events(tenant.pid))
    tenant.end()


def looks_again(place, entry):
    """It scans with its looks, ten times a second at most; below the floor it looks every 5 ms."""
    for _ in range(3):
        before = place.ledger.get("published_ns", entry)
        wait_until(lambda: place.ledger.get("published_ns", entry) != before)  # noqa: B023
