"""Readers of what others may have written believe nothing: stored inputs of each fuzz target, and in the long form its fuzzer.

An input that a fuzzer finds goes into tests/fuzz/corpus/TARGET, named for what it shows.
"""

import os
import re
import subprocess
import tempfile
from pathlib import Path

import pytest

FUZZ = Path(__file__).resolve().parents[1] / "fuzz"
TARGETS = sorted(source.stem.removeprefix("fuzz_") for source in FUZZ.glob("fuzz_*.c"))
SECONDS = int(os.environ.get("FUZZ_SECONDS", "600"))


@pytest.fixture
def environment():
    """Without what would guard the target itself, and with a folder for it in memory."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="sparkguard-fuzz-") as scratch:
        kept = {k: v for k, v in os.environ.items() if not k.startswith("SPARKGUARD_")}
        yield {**kept, "TMPDIR": scratch}


@pytest.mark.parametrize("target", TARGETS)
def test_stored_inputs_are_read_to_the_end(build, environment, record_property, target):
    inputs = sorted((FUZZ / "corpus" / target).iterdir())
    done = subprocess.run([build / "fuzz" / target, *inputs], env=environment, capture_output=True, text=True, errors="replace")
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout == f"{len(inputs)} inputs\n" and inputs
    record_property("cases", len(inputs))


@pytest.mark.long
@pytest.mark.timeout_seconds(SECONDS + 300)
@pytest.mark.parametrize("target", TARGETS)
def test_fuzzer_finds_nothing(build, environment, record_property, target):
    found = build / "fuzzers/found"
    found.mkdir(parents=True, exist_ok=True)
    fresh = Path(environment["TMPDIR"], "corpus")
    fresh.mkdir()
    limits = [f"-max_total_time={SECONDS}", "-timeout=30", "-max_len=4096", "-rss_limit_mb=2048"]
    command = [build / "fuzzers/fuzz" / target, *limits, "-print_final_stats=1", f"-artifact_prefix={found}/{target}-"]
    log = found / f"{target}.log"
    with log.open("w") as said:
        status = subprocess.run([*command, fresh, FUZZ / "corpus" / target], env=environment, stdout=said, stderr=said).returncode
    text = log.read_text(errors="replace")
    assert status == 0, text[-4000:]
    record_property("cases", int(re.search(r"stat::number_of_executed_units: (\d+)", text)[1]))
    record_property("note", f"{len(TARGETS)} fuzzers, {SECONDS} s each; cases are inputs tried")
