"""The models of the protocol between processes with their larger configurations: tests/model/run, whose small ones are part of make test."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.long
@pytest.mark.timeout_seconds(1800)
def test_larger_models_hold_and_each_mutation_is_found(record_property):
    done = subprocess.run(["tests/model/run"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, "".join(line for line in done.stdout.splitlines(keepends=True) if not line.startswith("pass"))
    passed = int(re.search(r"^(\d+) passed, 0 failed, 0 skipped$", done.stdout, re.MULTILINE)[1])
    states = sum(map(int, re.findall(r"(\d+) states", done.stdout)))
    record_property("cases", passed)
    record_property("note", f"{states} states")
