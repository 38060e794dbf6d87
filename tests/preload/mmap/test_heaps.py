"""Heaps in writable MAP_NORESERVE mappings, from which blocks come without a call: mimalloc in PyTorch for aarch64, jemalloc in Polars."""

import re
import time

import pytest
from lib.machine import GIB, LEFT, MIB, Machine, set_available, take

LIMIT = {"SPARKGUARD_LIMIT": "200M"}
WATCHED = 1 << 4  # sg_slot.flags


def test_first_arena_is_granted_under_a_limit_that_it_exceeds(guard, tmp_path):
    assert take(guard, Machine(tmp_path), "sparse 512M malloc 32M", env=LIMIT) == ["ok", "ok"]


def test_address_space_that_an_allocator_keeps_does_not_count_for_the_next(guard, tmp_path):
    """jemalloc maps several times what it ever holds: of what is mapped nothing counts until it is written."""
    assert take(guard, Machine(tmp_path), "sparse 512M " * 6 + "malloc 32M", env=LIMIT) == ["ok"] * 7


def test_block_above_the_limit_is_refused(guard, tmp_path):
    """Its allocator gives it a mapping of its own, which is no power of two."""
    assert take(guard, Machine(tmp_path), "sparse 300M sparse 180M", env=LIMIT) == ["ENOMEM", "ok"]
    (refusal,) = take.done.process()["refusals"]
    assert (refusal["reason"], refusal["call"], refusal["size_bytes"]) == ("limit", "mmap", 300 * MIB)


@pytest.mark.parametrize("before", ["", "malloc 64M touch 0 "])
def test_steps_that_are_written_are_refused_at_the_limit(guard, tmp_path, before):
    steps = [f"sparse 32M touch {i + before.count('malloc')}" for i in range(4 if before else 6)]
    answers = take(guard, Machine(tmp_path), before + " ".join(steps) + " sparse 32M malloc 32M", env=LIMIT)
    assert answers[-2:] == ["ENOMEM", "ENOMEM"] and set(answers[:-2]) == {"ok"}


def test_once_the_limit_is_exceeded_all_requests_are_refused(guard, tmp_path):
    answers = take(guard, Machine(tmp_path), "sparse 512M half 0 sparse 32M mmap 4M malloc 4M small 4096 64M", env=LIMIT)
    assert answers[:5] == ["ok", "ok", "ENOMEM", "ENOMEM", "ENOMEM"]
    assert answers[5] <= 2 * MIB, "above the limit by more than small requests may exceed it"
    (event,) = [event["what"] for event in take.done.process()["events"] if "limit" in event["what"]]
    assert re.match(r"holds 2[0-6]\d\.\d MiB, above its limit of 200\.0 MiB: ", event), "the watchdog may have seen it half written"


def test_report_says_what_was_written(guard, tmp_path):
    """Of a program that made no other request."""
    assert take(guard, Machine(tmp_path), "sparse 512M half 0", env={"SPARKGUARD_JOB": "heap", **LIMIT}) == ["ok", "ok"]
    assert 256 * MIB <= take.done.process()["sparse_resident_bytes"] <= 257 * MIB
    (job,) = take.done.report()["jobs"]
    assert 256 * MIB <= job["peak_bytes"] <= 260 * MIB
    assert "above its limit of 200.0 MiB" in job["verdict"]


@pytest.mark.parametrize("env, granted", [({}, "ok"), ({"SPARKGUARD_WATCHDOG": "off"}, "ENOMEM"), ({"SPARKGUARD_WATCHDOG": "warn"}, "ENOMEM")])
def test_arena_that_does_not_fit_is_granted_by_what_the_earlier_ones_became(place, env, granted):
    tenant = place.holder("sparse 512M small 4096 1M wait available 2700M sparse 1G", env)
    while env.get("SPARKGUARD_WATCHDOG") != "off" and place.flags(tenant.pid) & WATCHED == 0:
        time.sleep(0.01)  # poll: the watchdog has begun
    assert tenant.go().ready()[-1] == granted


def test_arenas_that_were_filled_are_judged_in_full(place):
    tenant = place.holder("sparse 256M touch 0 wait available 2700M sparse 1G sparse 512M")
    while place.flags(tenant.pid) & WATCHED == 0:
        time.sleep(0.01)  # poll: the watchdog has begun
    assert tenant.go().ready()[-2:] == ["ENOMEM", "ok"]


@pytest.mark.parametrize("size, granted", [("1G", "ENOMEM"), ("512M", "ok")])
def test_first_arena_is_judged_in_full_against_the_machine(place, size, granted):
    set_available(place, 2 * GIB + 600 * MIB)
    assert place.take(f"sparse {size}") == [granted]


@pytest.mark.parametrize("size", ["17G", "1000G", "16384G", "4G", "10G"])
def test_address_space_of_a_whole_heap_is_free(place, size):
    assert place.take(f"sparse {size} malloc 64M", {"SPARKGUARD_LIMIT": "100M"}) == ["ok", "ok"]
    place.assert_left(LEFT)


def test_arena_is_no_promise(place):
    holder = place.holder("sparse 1G")
    place.assert_left(LEFT)
    assert holder.answers == ["ok"]


def test_what_replaces_writable_memory_of_a_heap_is_not_judged_again(place):
    """An allocator gives pages back by mapping anew."""
    text = """
where = libc.mmap(None, 256 << 20, 3, 0x4022, -1, 0)
ready()
say(libc.mmap(where, 256 << 20, 3, 0x4032, -1, 0) == where)
say(libc.mmap(None, 256 << 20, 3, 0x4022, -1, 0) == where)
ready()
"""
    player = place.player(text, {"SPARKGUARD_WATCHDOG": "off"})
    player.ready()
    set_available(place, 2 * GIB + 64 * MIB)
    time.sleep(0.02)  # pace: a look at the machine serves for 5 ms
    assert player.go().ready() == ["True", "False"]


def test_what_is_mapped_starts_the_watchdog(place):
    tenant = place.holder("sparse 256M")
    while place.flags(tenant.pid) & WATCHED == 0:
        time.sleep(0.01)  # poll: the watchdog begins
    small = place.holder("sparse 64M")
    time.sleep(0.3)  # holds: no watchdog comes
    assert place.flags(small.pid) & WATCHED == 0
