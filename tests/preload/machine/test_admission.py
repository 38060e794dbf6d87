"""Admission over a fake /proc and fake cgroups, and in a real memory cgroup: what is given, what is refused, and why. What the
figures of each kernel mean, tests/unit/admit shows to the byte.

The program admit_take does what it is told, one answer a line. "largest" is the most one malloc would be given: what is
usable less what is kept, to 64 KiB, and less the few hundred KiB that the program itself holds.
"""

import re
from pathlib import Path

import pytest
from lib.machine import GIB, MIB, Machine, in_jail, meminfo, take
from lib.target import PYTHON, STRESS_DIVISOR

NEAR = 6 * MIB  # what a small program holds and is promised besides, and what it maps and never touches


def room(guard, machine, **env):
    (largest,) = take(guard, machine, "largest", env={f"SPARKGUARD_{k}": v for k, v in env.items()})
    return largest


def assert_room(guard, machine, expected, **env):
    """Never more than expected, and hardly less."""
    largest = room(guard, machine, **env)
    assert expected - NEAR <= largest <= expected, f"{largest / MIB:.2f} MiB, expected {expected / MIB:.2f}"


# ---- the machine's reserve ----

HUGE_PAGES = 116 * GIB  # of 128


def with_huge_pages(scratch, available):
    """A machine that has set aside most of its memory as huge pages."""
    machine = Machine(scratch, 128 * GIB, available)
    return machine.write("proc/meminfo", f"{meminfo(128 * GIB, available)}Hugetlb: {HUGE_PAGES >> 10} kB")


@pytest.mark.parametrize(
    "left, options",
    [
        (8 * GIB - 12 * GIB * 8 // 100, {}),
        (5 * GIB, {"RESERVE": "25%"}),
        (8 * GIB - 12 * GIB * 8 // 100, {"FLOOR": "1%"}),
        (5 * GIB, {"RESERVE": "2G", "LIMIT": "50%"}),
    ],
    ids=["default", "reserve", "floor", "limit"],
)
def test_percentages_are_of_what_is_no_huge_page(guard, tmp_path, left, options):
    assert_room(guard, with_huge_pages(tmp_path, 8 * GIB), left, **options)


def test_large_in_percent_is_of_what_is_no_huge_page(guard, tmp_path):
    """Between reserve and floor only what is not large is given."""
    machine = with_huge_pages(tmp_path, 8 * GIB)
    large = 12 * GIB // 100
    assert large - NEAR <= room(guard, machine, RESERVE="9G", FLOOR="1G", LARGE="1%") <= large


def test_nothing_large_below_the_reserve(guard, tmp_path):
    machine = Machine(tmp_path, available=1 * GIB)
    assert take(guard, machine, "malloc 3M mmap 3M malloc 2M mmap 2M small 1K 1M") == ["ENOMEM", "ENOMEM", "ok", "ok", 1 * MIB]


# ---- cgroups ----


def test_tightest_of_several_levels_binds(guard, tmp_path):
    machine = Machine(tmp_path, cgroup="0::/slice/service/job")
    machine.v2("/slice/service/job", 6 * GIB).v2("/slice/service", "max").v2("/slice", 3 * GIB, current=1 * GIB)
    assert_room(guard, machine, 2 * GIB - 3 * GIB // 10, RESERVE="10%")


def test_message_names_the_group_that_bound_it(guard, tmp_path):
    machine = Machine(tmp_path, cgroup="0::/job").v2("/job", 1 * GIB)
    assert take(guard, machine, "malloc 2G") == ["ENOMEM"]
    assert re.search(
        r"refused malloc of 2\.0 GiB: (1\.0 GiB|\d+\.\d MiB) usable in a cgroup of 1\.0 GiB, "
        r"81\.9 MiB kept in reserve \(SPARKGUARD_RESERVE\)",
        take.done.stderr,
    ), take.done.stderr
    (refusal,) = take.done.process()["refusals"]
    assert refusal["reason"] == "reserve" and 1020 * MIB <= refusal["usable_bytes"] <= GIB


# ---- LIMIT, LARGE, MODE, DISABLE ----


def test_limit_counts_heap_and_mappings_together(guard, tmp_path):
    env = {"SPARKGUARD_LIMIT": "100M"}
    commands = "malloc 40M mmap 40M malloc 30M mmap 30M free 0 mmap 50M"
    assert take(guard, Machine(tmp_path), commands, env=env) == ["ok", "ok", "ENOMEM", "ENOMEM", "ok", "ok"]


def test_sparse_mappings_do_not_count_against_the_limit(guard, tmp_path):
    env = {"SPARKGUARD_LIMIT": "100M"}
    assert take(guard, Machine(tmp_path), "sparse 10G malloc 90M", env=env) == ["ok", "ok"]


def test_small_requests_may_pass_the_limit_by_32_mib(guard, tmp_path):
    answers = take(guard, Machine(tmp_path), "malloc 90M small 64K 200M", env={"SPARKGUARD_LIMIT": "100M"})
    assert answers[0] == "ok" and 40 * MIB <= answers[1] <= 44 * MIB


def test_large_is_where_the_reserve_begins_to_bind(guard, tmp_path):
    machine = Machine(tmp_path, available=1 * GIB)  # above the floor, below the reserve
    for large, above in (("1M", "1025K"), ("10M", "10241K")):
        answers = take(guard, machine, f"malloc {large} malloc {above}", env={"SPARKGUARD_LARGE": large})
        assert answers == ["ok", "ENOMEM"]


def test_observe_lets_through_and_records(guard, tmp_path):
    machine = Machine(tmp_path, available=1 * GIB)
    assert take(guard, machine, "malloc 64M mmap 64M", env={"SPARKGUARD_MODE": "observe"}) == ["ok", "ok"]
    assert "sparkguard: would have refused malloc of 64.0 MiB: " in take.done.stderr
    entry = take.done.process()
    assert entry["mode"] == "observe" and entry["refused_count"] == 2 and entry["live_bytes"] >= 128 * MIB
    assert [r["call"] for r in entry["refusals"]] == ["malloc", "mmap"]


TERABYTES = """
import mmap, os
file = os.memfd_create("sparse")
os.ftruncate(file, 1 << 45)
mapping = mmap.mmap(file, 1 << 45)
try:
    mmap.mmap(-1, 1 << 45)
except OSError:  # the kernel's word; before it, the guard has looked at what is there
    pass
mapping.close()
"""


def test_what_is_more_than_any_machine_has_is_observed_without_a_look_at_its_pages(guard):
    """32 TiB of a memory file, never touched: a walk over their pages takes many minutes, in which no signal ends the process."""
    env = {"SPARKGUARD_MODE": "observe", "SPARKGUARD_RESERVE": "95%"}
    done = guard.run([PYTHON, "-c", TERABYTES], env=env)
    assert done.returncode == 0, done.stderr
    assert {32 << 40} <= {refusal["size_bytes"] for refusal in done.process()["refusals"]}


def test_disabled_passes_everything_through(guard, tmp_path):
    machine = Machine(tmp_path, available=0)
    env = {"SPARKGUARD_DISABLE": "1", "SPARKGUARD_LIMIT": "1M"}
    assert take(guard, machine, "malloc 2G mmap 2G small 64K 100M", env=env) == ["ok", "ok", 100 * MIB]
    assert take.done.stderr == "" and guard.processes() == []


# ---- the floor ----


def test_small_requests_pass_between_reserve_and_floor(guard, tmp_path):
    machine = Machine(tmp_path, available=1 * GIB)  # the reserve is 1.28 GiB, the floor 0.32
    assert take(guard, machine, "small 64K 300M malloc 1M")[0] == 300 * MIB


def test_below_the_floor_a_small_process_may_grow_to_64_mib(guard, tmp_path):
    (taken,) = take(guard, Machine(tmp_path, available=1 * MIB), "small 64K 300M")
    assert 62 * MIB <= taken <= 66 * MIB
    entry = take.done.process()
    assert entry["refusals"][0]["reason"] == "floor" and entry["refusals"][0]["call"] == "malloc"
    assert take.done.stderr == ""


def test_below_the_floor_a_large_process_may_take_32_mib_more(guard, tmp_path):
    answers = take(guard, Machine(tmp_path), "malloc 300M touch 0 available 1M small 64K 300M small 64K 1M")
    assert answers[:3] == ["ok"] * 3
    assert 30 * MIB <= answers[3] <= 34 * MIB and answers[4] < MIB


def test_what_is_given_back_below_the_floor_may_be_taken_again(guard, tmp_path):
    commands = "malloc 300M touch 0 malloc 50M available 1M small 64K 300M free 1 small 64K 300M"
    answers = take(guard, Machine(tmp_path), commands)
    assert 30 * MIB <= answers[4] <= 34 * MIB and 48 * MIB <= answers[6] <= 52 * MIB


def test_floor_option(guard, tmp_path):
    machine = Machine(tmp_path, available=1 * GIB)
    (taken,) = take(guard, machine, "small 64K 300M", env={"SPARKGUARD_FLOOR": "1100M"})
    assert 62 * MIB <= taken <= 66 * MIB
    assert take(guard, machine, "small 64K 300M", env={"SPARKGUARD_FLOOR": "500M"}) == [300 * MIB]


def test_small_mappings_are_graded_too(guard, tmp_path):
    machine = Machine(tmp_path, available=1 * MIB)
    assert take(guard, machine, "mmap 512K malloc 600K") == ["ok", "ok"]
    assert take(guard, machine, "small 64K 300M mmap 512K")[1] == "ENOMEM"


# ---- promises ----


@pytest.mark.parametrize("call", ["malloc", "mmap"])
def test_untouched_memory_is_promised(guard, tmp_path, call):
    env = {"SPARKGUARD_RESERVE": "2G"}
    machine = Machine(tmp_path)
    assert take(guard, machine, f"{call} 5G {call} 5G", env=env) == ["ok", "ENOMEM"]
    assert take(guard, machine, f"{call} 5G free 0 {call} 5G", env=env) == ["ok", "ok", "ok"]
    assert take(guard, machine, f"{call} 5G dontneed 0 {call} 5G", env=env) == ["ok", "ok", "ENOMEM"]


@pytest.mark.parametrize("call", ["malloc", "mmap"])
def test_touched_memory_is_no_promise_any_more(guard, tmp_path, call):
    env = {"SPARKGUARD_RESERVE": "2G"}
    before, _, after = take(guard, Machine(tmp_path), f"{call} 256M largest touch 0 largest", env=env)[1:]
    assert 8 * GIB - 256 * MIB - NEAR <= before <= 8 * GIB - 256 * MIB
    assert 8 * GIB - NEAR <= after <= 8 * GIB


def test_sparse_mapping_is_no_promise(guard, tmp_path):
    _, largest = take(guard, Machine(tmp_path), "sparse 9G largest", env={"SPARKGUARD_RESERVE": "2G"})
    assert 8 * GIB - NEAR <= largest <= 8 * GIB


def test_small_blocks_not_yet_touched_are_promised(guard, tmp_path):
    """Below 1 MiB each: what exceeds the anonymous memory that is there."""
    commands = " ".join(["malloc 900K"] * 200) + " largest"
    largest = take(guard, Machine(tmp_path), commands, env={"SPARKGUARD_RESERVE": "2G"})[-1]
    held = 200 * 900 * 1024
    assert 8 * GIB - held - NEAR <= largest <= 8 * GIB - held + 4 * MIB


def test_fork_doubles_nothing(guard, tmp_path):
    env = {"SPARKGUARD_RESERVE": "2G"}
    here = take(guard, Machine(tmp_path), "malloc 5G largest", env=env)[1]
    # The parent looks once more, and so knows what an emulator needs itself for 5 GiB.
    child = take(guard, Machine(tmp_path), "malloc 5G malloc 64G fork largest", env=env)[2]
    assert here - NEAR <= child <= here + NEAR


def test_inherited_memory_counts_once_against_the_limit_of_the_job(guard, tmp_path):
    env = {"SPARKGUARD_LIMIT": "250M"}
    assert take(guard, Machine(tmp_path), "malloc 150M fork malloc 80M malloc 30M", env=env) == ["ok", "ok", "ENOMEM"]
    entries = {e["pid"] == take.done.pid: e for e in guard.processes()}
    parent, child = entries[True], entries[False]
    assert parent["inherited_bytes"] == 0 and parent["live_bytes"] >= 150 * MIB
    assert child["inherited_bytes"] >= 150 * MIB
    assert 230 * MIB <= child["live_bytes"] < 232 * MIB


def test_without_proc_the_kernel_is_asked(guard, tmp_path):
    """sysinfo(2) tells the real machine: far more than nothing, and what it has not is refused."""
    (tmp_path / "empty").mkdir()
    machine = Machine(tmp_path / "other")
    machine.root = tmp_path / "empty"
    assert take(guard, machine, "malloc 64M touch 0 malloc 1024G") == ["ok", "ok", "ENOMEM"]
    entry = take.done.process()
    assert entry["guarding"] and entry["refused_count"] == 1
    assert entry["refusals"][0]["reason"] == "reserve"
    largest = room(guard, machine)
    fields = dict(re.findall(r"^(\w+): +(\d+)", Path("/proc/meminfo").read_text(), re.MULTILINE))
    reserve = max(int(fields["MemTotal"]) * 1024 * 8 // 100, 512 * MIB)
    expected = (int(fields["MemFree"]) + int(fields["Buffers"])) * 1024 - reserve
    assert abs(largest - expected) < 512 * MIB


# ---- a real memory cgroup ----


def oom_kills(jail):
    for name in ("memory.oom_control", "memory.events"):
        if (jail / name).exists():
            return int(re.search(r"^oom_kill (\d+)", (jail / name).read_text(), re.MULTILINE)[1])
    return 0


def test_real_cgroup_refuses_before_the_kernel_kills(guard, jail):
    done = in_jail(guard, jail, "fill")
    assert done.returncode == 0, f"{done.returncode}: {done.stdout}{done.stderr}"
    taken = int(done.stdout)
    assert 400 * MIB <= taken <= 512 * MIB - 512 * MIB * 8 // 100
    assert oom_kills(jail) == 0
    if (jail / "memory.failcnt").exists():
        assert int((jail / "memory.failcnt").read_text()) == 0
    assert "in a cgroup of 512.0 MiB" in done.stderr


def test_real_cgroup_gives_largest_what_is_there(guard, jail):
    done = in_jail(guard, jail, "largest", env={"SPARKGUARD_RESERVE": "25%"})
    assert 370 * MIB <= int(done.stdout) <= 384 * MIB


# ---- several at once ----


def race(guard, machine, rounds, *arguments, env=None):
    program = guard.build / "tests/programs/admit_race"
    env = {"SPARKGUARD_SYSTEM_ROOT": machine.root, **(env or {})}
    done = guard.run([program, rounds // STRESS_DIVISOR, *arguments], env=env)
    assert done.returncode == 0, f"{done.returncode}: {done.stdout}{done.stderr}"
    return done


def test_if_many_ask_at_once_exactly_those_that_fit_get_it(guard, tmp_path):
    race(guard, Machine(tmp_path), 100, "room", 4, 3000, 2, env={"SPARKGUARD_RESERVE": "2G"})


def test_if_many_ask_at_once_exactly_those_within_the_limit_get_it(guard, tmp_path):
    race(guard, Machine(tmp_path), 100, "room", 4, 300, 2, env={"SPARKGUARD_LIMIT": "800M"})


def test_requests_that_fit_the_limit_together_are_never_refused(guard, tmp_path):
    done = race(guard, Machine(tmp_path), 3000, "limit", 200, 50, env={"SPARKGUARD_LIMIT": "260M"})
    assert done.stderr == ""
