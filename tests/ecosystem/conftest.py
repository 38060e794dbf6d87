"""What the tests of packages, clusters and dashboards share."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def make(build):
    """Makes a target out of what is built, without building it again."""

    def run(*arguments):
        folder = os.path.relpath(build, ROOT)
        return subprocess.run(["make", "-s", "-o", "all", f"BUILD={folder}", *arguments], cwd=ROOT, check=True)

    return run
