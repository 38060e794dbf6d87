"""Arrays, heap blocks of 256 KiB to 32 MiB: taken and freed without a decision, and yet counted to the byte.

The programs compare with malloc_usable_size, in place; tests/model/arrays.pml has the promises.
"""

import pytest

CASES = """
    pairs_use_credit
    every_function_is_counted
    threads_are_counted_to_the_byte
    peak_counts_no_credit
    credit_of_ended_threads_is_given_back
    forked_child_has_no_credit
""".split()


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


@pytest.mark.parametrize("case", ["headroom_that_falls_leaves_credit_at_most", "arrays_older_than_a_scan_give_no_credit"])
def test_case_on_a_machine_of_its_own(guard, tmp_path, case):
    """The bound of what credit may overshoot; from the next scan on there is none."""
    meminfo = tmp_path / "root/proc/meminfo"
    meminfo.parent.mkdir(parents=True)
    meminfo.write_text("MemTotal: 67108864 kB\nMemFree: 33554432 kB\nMemAvailable: 33554432 kB\n")
    env = {"SPARKGUARD_SYSTEM_ROOT": tmp_path / "root", "TEST_MEMINFO": meminfo, "SPARKGUARD_RESERVE": "4G"}
    run(guard, case, env=env)


@pytest.mark.parametrize("size", [300_000, 1 << 20])
def test_handler_that_forks_inside_malloc_and_free(guard, size):
    """The child has no credit, and nothing that the interrupted call has begun."""
    done = guard.run([guard.build / "tests/programs/array_handler_fork", size], timeout=100)
    assert (done.returncode, done.stdout) == (0, "0\n")


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
