"""What the tests of packages, wheels, clusters and dashboards share."""

import os
import platform
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MANYLINUX = ROOT / ".deps/manylinux"


def pytest_collection_modifyitems(items):
    """What is built for aarch64 in the folder of `make cross` comes last: CI makes that beside, and has made it by then."""
    items.sort(key=lambda item: item.path.name in ("test_release.py", "test_wheel.py"))


@pytest.fixture
def make(build):
    """Makes a target out of what is built, without building it again."""

    def run(*arguments):
        folder = os.path.relpath(build, ROOT)
        return subprocess.run(["make", "-s", "-o", "all", f"BUILD={folder}", *arguments], cwd=ROOT, check=True)

    return run


def need(group):
    done = subprocess.run(["scripts/install-deps", group], cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(done.stderr.strip())


@pytest.fixture(scope="session")
def make_wheel(build):
    """Makes the wheel of a machine; a release's, which needs an older C library, is of the kind "manylinux"."""

    def run(kind, machine, **variables):
        arguments = [f"BUILD={build}"]
        if machine != platform.machine():
            if platform.machine() == "aarch64":
                pytest.skip("cross builds are made on x86-64")
            need("cross")
            arguments = [f"BUILD={build}/{machine}", f"CROSS={machine}"]
        if kind == "manylinux":
            need("release")
            arguments.append(f"SYSROOT={MANYLINUX / machine}")
        done = subprocess.run(["make", "-s", "wheel", *arguments], cwd=ROOT, capture_output=True, text=True, env=os.environ | variables)
        assert done.returncode == 0, done.stderr
        return Path(done.stdout.splitlines()[-1])

    return run


@pytest.fixture(scope="session")
def wheels(make_wheel):
    """The wheel of a kind and a machine, which is made once."""
    made = {}

    def wheel(kind, machine):
        if (kind, machine) not in made:
            made[kind, machine] = make_wheel(kind, machine)
        return made[kind, machine]

    return wheel
