"""make sanitize, whole: CI runs of it what a change touched (tests/touched)."""

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.long
@pytest.mark.timeout_seconds(3600)
def test_core_and_tools_run_clean_under_sanitizers(record_property):
    env = {key: value for key, value in os.environ.items() if key not in ("BUILD", "QUALIFY", "MAKEFLAGS", "MAKELEVEL", "WERROR", "TOUCHED")}
    done = subprocess.run(["make", "sanitize"], cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, done.stdout[-20000:]
    runs = re.findall(r"^(\d+) passed, 0 failed, \d+ skipped$", done.stdout, re.MULTILINE)
    assert len(runs) == 3, "the unit tests under each, and the tools' tests"
    record_property("cases", sum(map(int, runs)))
