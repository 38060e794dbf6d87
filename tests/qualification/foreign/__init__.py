"""Foreign test suites and programs, each run as it is told to: what every test of it came to, by name.

    SUITES["numpy"].run(Place(scratch, environment))  ->  {"numpy.core.tests.test_numeric::test_x": "passed", ...}

A suite does not know whether it is guarded: the environment decides. `scripts/install-deps foreign judges` brings what the suites need:
programs of the distribution, and the rest into .deps/foreign and .deps/judges (scripts/fetch-foreign, scripts/fetch-judges).
"""

from .judges import JUDGES
from .place import Place, Unavailable
from .suites import SUITES as FOREIGN

SUITES = {**FOREIGN, **JUDGES}

__all__ = ["FOREIGN", "JUDGES", "SUITES", "Place", "Unavailable"]
