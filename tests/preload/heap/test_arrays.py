"""Arrays, heap blocks of 256 KiB to 32 MiB: taken and freed without a decision, and yet counted to the byte.

The programs compare with malloc_usable_size, in place; tests/model/promise.pml has the promises.
"""

import contextlib
import subprocess

import pytest
from lib.ledger import Ledger
from lib.target import IS_LONG, SLOWER

SUMS = """
    granted_bytes promised_bytes in_flight_bytes sparse_bytes device_bytes bounded_flight_bytes unbounded_flight_bytes
    device_flight_bytes pinned_bytes managed_bytes
""".split()

CASES = """
    pairs_use_credit
    every_function_is_counted
    threads_are_counted_to_the_byte
    peak_counts_no_credit
    credit_of_ended_threads_is_given_back
    forked_child_has_no_credit
    another_process_of_the_job_ends_credit
""".split()


def machine(folder, gib):
    """A machine of so much memory, half of which is free."""
    meminfo = folder / "root/proc/meminfo"
    meminfo.parent.mkdir(parents=True)
    total, free = gib << 20, gib << 19
    meminfo.write_text(f"MemTotal: {total} kB\nMemFree: {free} kB\nMemAvailable: {free} kB\n")
    return {"SPARKGUARD_SYSTEM_ROOT": folder / "root"}


def run(guard, case, **options):
    done = guard.run([guard.build / "tests/programs/array_cases", case], **options)
    assert done.returncode == 0, f"{case}: {done.returncode}: {done.stdout}{done.stderr}"
    return done


@pytest.mark.parametrize("case", CASES)
def test_case(guard, case):
    run(guard, case)


@pytest.mark.parametrize("large", ["300K", "1G"])
def test_where_large_begins_elsewhere(guard, large):
    run(guard, "pairs_use_credit", env={"SPARKGUARD_LARGE": large})


@pytest.mark.parametrize("allocator", ["libjemalloc.so.2", "libtcmalloc_minimal.so.4"])
@pytest.mark.parametrize("case", ["every_function_is_counted", "threads_are_counted_to_the_byte"])
def test_behind_another_allocator(guard, case, allocator):
    run(guard, case, preload=[guard.library, allocator])


@pytest.mark.parametrize("case", ["headroom_that_falls_leaves_credit_at_most", "arrays_that_a_decision_has_seen_give_credit"])
def test_case_on_a_machine_of_its_own(guard, tmp_path, case):
    """The bound of what credit may overshoot; from the next scan on there is none."""
    env = machine(tmp_path, 64) | {"TEST_MEMINFO": tmp_path / "root/proc/meminfo", "SPARKGUARD_RESERVE": "4G"}
    run(guard, case, env=env)


def with_limit(tmp_path, mib):
    """A machine of 64 GiB, and no grace, which requests of up to LARGE have."""
    return machine(tmp_path, 64) | {"SPARKGUARD_LARGE": "256K", "SPARKGUARD_LIMIT": f"{mib}M", "TEST_LIMIT_MIB": mib}


@pytest.mark.parametrize("case, mib", [("pairs_use_credit_under_a_limit", 16384), ("threads_stay_within_the_limit", 460),
                                       ("threads_stay_within_the_limit", 430), ("credit_refuses_nothing", 8192)])
def test_case_under_a_limit(guard, tmp_path, case, mib):
    run(guard, case, env=with_limit(tmp_path, mib))


@pytest.mark.parametrize("size", [300_000, 1 << 20])
def test_handler_that_forks_inside_malloc_and_free(guard, size):
    """The child has no credit, and nothing that the interrupted call has begun."""
    done = guard.run([guard.build / "tests/programs/array_handler_fork", size], timeout=100)
    assert (done.returncode, done.stdout) == (0, "0\n")


def test_idle_processes_have_no_promises_of_what_they_freed(guard, tmp_path):
    """They hold too little for a watchdog, so nobody can make them scan."""
    env = machine(tmp_path, 16) | {"SPARKGUARD_RESERVE": "1G", "SPARKGUARD_JOB": "one", "TEST_TAKE_MIB": 7000}
    with contextlib.ExitStack() as stack:
        for _ in range(10):
            idle = guard.popen([guard.build / "tests/programs/array_cases", "idle"], env=env, stdin=subprocess.PIPE)
            stack.callback(idle.communicate, "", timeout=60 * SLOWER)
            assert idle.stdout.read(1) == "h"
        run(guard, "take_what_is_left", env=env)


@pytest.mark.parametrize("size", [300_000, 1 << 20])
def test_child_of_a_handler_leaves_the_entry_of_its_parent_alone(guard, size):
    """Beside another process of the job each pair changes the sums of the registry entry, which is shared memory. The handler forks in
    the middle of a change, and the child, which goes on there, must not make it a second time."""
    env = {"SPARKGUARD_JOB": "one", "SPARKGUARD_DIR": guard.directory}
    forks = 100 if SLOWER != 1 else 2500 if IS_LONG else 300  # an emulated child takes longer than the time between two forks
    with guard.popen([guard.build / "tests/programs/array_cases", "hold"], env=env, stdin=subprocess.PIPE) as holder:
        assert holder.stdout.read(1) == "h"
        done = guard.run([guard.build / "tests/programs/array_handler_fork", size, forks], env=env, timeout=100)
        assert (done.returncode, done.stdout) == (0, "0\n")
        with Ledger(guard.directory) as ledger:
            sums = {(name, number): ledger.get(name, number) for number in range(ledger.get("entry_used")) for name in SUMS}
        assert sums and not {key: value - (1 << 64) for key, value in sums.items() if value >= 1 << 40}, "none has fallen below zero"
        holder.communicate("", timeout=60 * SLOWER)


def test_what_was_freed_is_not_at_fault_for_a_refusal(guard):
    done = guard.run([guard.build / "tests/programs/array_cases", "refused_after_pairs"], env={"SPARKGUARD_LIMIT": "2G"})
    assert done.returncode == 0, done.stdout
    assert done.process()["refused_count"] == 1
    assert done.process().get("blocks_at_refusal", []) == []


def test_blocks_at_exit_are_the_programs(guard):
    """The report subtracts credit from call sites and domains alike."""
    done = run(guard, "pairs_use_credit")
    process = done.process()
    assert process["live_bytes"] < 1 << 20
    assert sum(block["bytes"] for block in process["blocks"]) == 0
