"""What the tests of real client libraries share: the Python that has the library, on this machine or on a simulated one."""

import importlib.util
import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# By its path: both files are called conftest.
_place = ROOT / "tests/sim/conftest.py"
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


class Client:
    """Runs scripts with the library on this machine as it is: no simulated driver is in their way."""

    package = ROOT / "tools/python"  # sparkguard, as a wheel would install it

    def __init__(self, guard):
        self.guard = guard

    def run(self, text, input=None, **variables):
        env = {"PYTHONHASHSEED": "0"} | variables
        return self.guard.run([os.environ["FRAMEWORK_PYTHON"], "-c", text], env=env, timeout=110, input=input)

    def example(self, path, *arguments, timeout=400, **variables):
        """A program of scripts/examples, guarded; it must succeed."""
        command = [os.environ["FRAMEWORK_PYTHON"], ROOT / "scripts/examples" / path, *map(str, arguments)]
        env = {"PYTHONHASHSEED": "0", "PYTHONPATH": self.package, "PATH": f"{self.guard.build}:{os.environ['PATH']}"}
        done = self.guard.run(command, env=env | variables, timeout=timeout)
        assert done.returncode == 0, done.stderr
        return done

    def plain(self, text, input=None, **variables):
        """The same without the guard."""
        return self.run(text, input, LD_PRELOAD=None, **variables)

    def values(self, text, **variables):
        """Of a guarded script that must succeed: its "key value" lines, and as `.process` its entry in the report."""
        done = self.run(text, **variables)
        assert done.returncode == 0, done.stderr
        answer = sim_conftest.values(done.stdout)
        answer.stderr, answer.process = done.stderr, done.process()
        return answer

    def same(self, text, **variables):
        """With the guard and without it a script ends alike and says the same: what it says on stdout."""
        plain, guarded = self.plain(text, **variables), self.run(text, **variables)
        assert plain.returncode == 0, plain.stderr
        assert (guarded.returncode, guarded.stdout, guarded.stderr) == (0, plain.stdout, plain.stderr)
        return guarded.stdout


@pytest.fixture
def examples():
    """The folder of what scripts/examples/README.md tells a user to run."""
    return ROOT / "scripts/examples"


@pytest.fixture
def client(guard):
    return Client(guard)
