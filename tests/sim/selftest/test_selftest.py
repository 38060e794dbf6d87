"""The simulated driver and runtime pass their own test, with and without the guard in front of them."""

import pytest


@pytest.mark.parametrize("program", ["selftest", "selftest_static"])
def test_selftest_passes_without_the_guard(sim, program):
    done = sim.unguarded([sim.build / "sim" / program], SGSIM_BACKING=None)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[0]) > 1000


@pytest.mark.parametrize("program", ["selftest", "selftest_static"])
def test_selftest_sees_no_difference_under_the_guard(sim, program):
    unguarded = sim.unguarded([sim.build / "sim" / program], SGSIM_BACKING=None)
    guarded = sim.run([sim.build / "sim" / program], SGSIM_BACKING=None, SPARKGUARD_MODE="observe")
    assert guarded.returncode == 0, guarded.stderr
    assert guarded.stdout == unguarded.stdout
