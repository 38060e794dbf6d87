"""What the tests of real client libraries share: the simulated machine of tests/sim, and the Python that has the library."""

import importlib.util
import os
from pathlib import Path

import pytest

# By its path: both files are called conftest.
_place = Path(__file__).resolve().parents[1] / "sim" / "conftest.py"
_spec = importlib.util.spec_from_file_location("sim_conftest", _place)
sim_conftest = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(sim_conftest)

sim = sim_conftest.sim


@pytest.fixture
def framework(sim):
    """Runs a script under the guard with the library that tests/frameworks/run has installed: what it said, as values."""

    def run(text, **variables):
        return sim.values([os.environ["FRAMEWORK_PYTHON"], "-c", text], **variables)

    run.sim = sim
    return run
