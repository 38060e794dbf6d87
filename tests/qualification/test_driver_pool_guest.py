"""The guard beside a driver that keeps freed pages, in a whole machine whose kernel does what a Spark's does with them.

A kernel module of ours stands in for the pool of NVIDIA's driver since 590 (tests/qualification/driver_pool, and RESULTS.md there).
Each scenario is played without the guard and with it. With it, nobody is killed, nothing of others is swapped out, and what the
driver can serve is granted as fast as without. The guest's clock counts instructions, so that "as fast" does not depend on how busy
this machine is.
"""

import pytest
from lib import driver_pool

# What must come with the guard. either: neighbours may have all that is left at that moment, and the program gets what is said of it.
SMALL = {
    "own_watermarks": "granted",
    "own_watermarks_classic": "granted",
    "swap": "granted",
    "swap_classic": "granted",
    "forerunner_unguarded": "granted",
    "records_elsewhere": "granted",
    "neighbours": "either",
    "neighbours_classic": "either",
    "partly_served": "refused",
    "living_unguarded": "refused",
    "fails_midway": "refused, granted",
    "no_pools": ", ".join(["granted"] * 6),
}
LARGE = {"twice": "granted", "twice_classic": "granted", "small_blocks": "granted"}
MEASURED = {"cache", "cache_reclaim", "cache_drop", "cache_populate"}  # for RESULTS.md only
BESIDE_NEIGHBOURS = {"neighbours", "neighbours_classic", "small_blocks"}
REFUSED_BY_GUARD = {"partly_served", "living_unguarded"}  # alone: what the driver does with them is not the point
SWAPPED_MOST_MIB = 1
SLOWER_MOST = 1.1
GUARDS_OWN_MIB = 16  # records, page tables, the library itself


def test_each_scenario_is_played_or_measured():
    assert set(driver_pool.scenarios()) == SMALL.keys() | LARGE.keys() | MEASURED


@pytest.fixture(scope="module")
def cases(build, tmp_path_factory):
    """{(scenario, is guarded): case}"""
    if (reason := driver_pool.missing()) is not None:
        pytest.skip(reason)
    scratch = tmp_path_factory.mktemp("guest")
    image = driver_pool.build_image(build / "libsparkguard.so", scratch)
    controls = [name for name in SMALL if name not in REFUSED_BY_GUARD]
    played = driver_pool.play(image, scratch, driver_pool.SMALL_MIB, controls, ("no",))
    played += driver_pool.play(image, scratch, driver_pool.SMALL_MIB, SMALL, ("yes",))
    played += driver_pool.play(image, scratch, driver_pool.LARGE_MIB, LARGE)
    return {(case.name, case.is_guarded): case for case in played}


@pytest.mark.long
@pytest.mark.parametrize("name", [*SMALL, *LARGE])
def test_nobody_is_harmed_and_the_pool_serves(cases, name, record_property):
    case, must = cases[name, True], {**SMALL, **LARGE}[name]
    record_property("note", f"{name}: {case.killed} killed, {case.swapped_mib:.0f} MiB swapped out, {case.result} after {case.seconds:.2f} s")
    assert case.killed == 0 and not case.is_idle_gone, case.text
    assert case.swapped_mib < SWAPPED_MOST_MIB, case.text
    assert case.result in (("granted", "refused") if must == "either" else (must,)), case.text


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in (*SMALL, *LARGE) if name not in REFUSED_BY_GUARD])
def test_a_grant_takes_as_long_as_without_the_guard(cases, name, record_property):
    control, case = cases[name, False], cases[name, True]
    assert control.killed == 0 and control.swapped_mib < SWAPPED_MOST_MIB and control.result == case.result or name in BESIDE_NEIGHBOURS, control.text
    record_property("note", f"{name} without the guard: {control.result} after {control.seconds:.2f} s")
    if name not in BESIDE_NEIGHBOURS:  # who of them has the processor, and when, is chance
        assert case.seconds <= SLOWER_MOST * control.seconds, f"{control.text}\n{case.text}"
        assert case.allocated_mib < control.allocated_mib + GUARDS_OWN_MIB, f"somebody has populated memory: {case.text}"


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(REFUSED_BY_GUARD))
def test_a_refusal_populates_nothing(cases, name):
    case = cases[name, True]
    assert case.allocated_mib < driver_pool.CONTEXT_MIB + GUARDS_OWN_MIB, case.text
