"""Readers of what others may have written believe nothing: stored inputs of each fuzz target, and in the long form its fuzzer.

An input that a fuzzer finds goes into tests/fuzz/corpus/TARGET, named for what it shows. What it made on its way is in
build/fuzzers/corpus/TARGET; of that, what reaches code that no stored input does is added by
`build/fuzzers/fuzz/TARGET -use_counters=0 -merge=1 tests/fuzz/corpus/TARGET build/fuzzers/corpus/TARGET`.
"""

import contextlib
import os
import re
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

FUZZ = Path(__file__).resolve().parents[1] / "fuzz"
TARGETS = sorted(source.stem.removeprefix("fuzz_") for source in FUZZ.glob("fuzz_*.c"))
SECONDS = int(os.environ.get("FUZZ_SECONDS", "600"))


@contextlib.contextmanager
def unguarded():
    """An environment without what would guard the target itself, and with a folder for it in memory."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="sparkguard-fuzz-") as scratch:
        kept = {k: v for k, v in os.environ.items() if not k.startswith("SPARKGUARD_")}
        yield {**kept, "TMPDIR": scratch}


@pytest.mark.parametrize("target", TARGETS)
def test_stored_inputs_are_read_to_the_end(build, record_property, target):
    inputs = sorted((FUZZ / "corpus" / target).iterdir())
    with unguarded() as environment:
        done = subprocess.run([build / "fuzz" / target, *inputs], env=environment, capture_output=True, text=True, errors="replace")
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout == f"{len(inputs)} inputs\n" and inputs
    record_property("cases", len(inputs))


@pytest.fixture(scope="module")
def fuzzers(build, request):
    """Each fuzzer's run, begun before its test asks for it: as many at a time as there are processors."""
    wanted = [t for t in TARGETS if any(item.name == f"test_fuzzer_finds_nothing[{t}]" for item in request.session.items)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        yield {target: pool.submit(fuzz, build / "fuzzers", target) for target in wanted}
        pool.shutdown(cancel_futures=True)


def fuzz(folder, target):
    """(exit status, what it said). New inputs stay in build/fuzzers/corpus: the next run goes on from them."""
    found, fresh = folder / "found", folder / "corpus" / target
    for made in (found, fresh):
        made.mkdir(parents=True, exist_ok=True)
    limits = [f"-max_total_time={SECONDS}", "-timeout=60", "-max_len=4096", "-len_control=0", "-rss_limit_mb=2048"]
    command = [folder / "fuzz" / target, *limits, "-print_final_stats=1", f"-artifact_prefix={found}/{target}-"]
    log = found / f"{target}.log"
    with unguarded() as environment, log.open("w") as said:
        status = subprocess.run([*command, fresh, FUZZ / "corpus" / target], env=environment, stdout=said, stderr=said).returncode
    return status, log.read_text(errors="replace")


@pytest.mark.long
@pytest.mark.timeout_seconds(2 * SECONDS + 300)
@pytest.mark.parametrize("target", TARGETS)
def test_fuzzer_finds_nothing(fuzzers, record_property, target):
    status, text = fuzzers[target].result()
    assert status == 0, text[-4000:]
    record_property("cases", int(re.search(r"stat::number_of_executed_units: (\d+)", text)[1]))
    record_property("note", f"{len(TARGETS)} fuzzers, {SECONDS} s each, {os.cpu_count()} at a time; cases are inputs tried")
