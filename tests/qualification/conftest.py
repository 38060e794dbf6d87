"""What the qualification tests share: two forms of each. The short one is part of `make test`, the long one is `make qualify`.

    def test_fork_stress(guard, amount): rounds = amount(short=10, long=1000)
    @pytest.mark.long                   is no part of the short form (tests/conftest.py)
"""

import pytest
from lib.target import IS_LONG


@pytest.fixture
def amount():
    """How much of a thing: amount(short=, long=)."""
    return lambda *, short, long: long if IS_LONG else short


@pytest.fixture
def abuse(guard, record_property):
    """Runs a case of a program some times over; it must end well, and silently but for what was refused."""

    def run(program, case, times, **options):
        record_property("cases", times)
        done = guard.run([guard.build / "tests/programs" / program, case, times], timeout=550, **options)
        assert done.returncode == 0, f"{done.returncode}: {done.stdout}{done.stderr}"
        assert all(line.startswith(("sparkguard: refused malloc of ", "try: ", "sparkguard: and ")) for line in done.stderr.splitlines()), done.stderr
        return done

    return run
