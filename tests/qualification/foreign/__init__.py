"""Foreign test suites and programs, each run as it is told to: what every test of it came to, by name.

    SUITES["numpy"].run(Place(scratch, environment))  ->  {"numpy.core.tests.test_numeric::test_x": "passed", ...}

A suite does not know whether it is guarded: the environment decides. `scripts/install-deps foreign` brings what the suites need: programs
of the distribution, and the rest into .deps/foreign (scripts/fetch-foreign).
"""

from .place import Place, Unavailable
from .suites import SUITES

__all__ = ["SUITES", "Place", "Unavailable"]
