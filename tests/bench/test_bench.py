"""scripts/bench: each program that it measures does its work."""

import shutil
import subprocess
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "scripts/bench"


@pytest.mark.parametrize("case", ["gcc -O2", "python3", "perl", "tree churner"])
def test_a_program_that_is_measured_ends_well(build, case):
    if shutil.which(case.split()[0]) is None and case != "tree churner":
        pytest.skip(f"no {case}")
    done = subprocess.run([BENCH, "--rounds", "1", "--only", case], env={"BUILD": str(build), "PATH": "/usr/bin:/bin"}, capture_output=True, text=True)
    assert done.returncode == 0 and f"\n{case}" in done.stdout, done.stdout + done.stderr
