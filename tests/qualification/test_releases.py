"""Other releases, in root file systems of their own: the library under the C libraries of Debian 13 and its next one (tests/release), and
what `make release` left in dist/, made twice and installed on fresh ones (tests/dist)."""

import re
import subprocess

import pytest
from lib.target import ROOT

SUITES = ["--unit", "tests/preload/heap", "tests/preload/mmap", "tests/preload/process", "tests/sim/calls"]
COUNT = re.compile(r"(\d+) (passed|failed|error|skipped)")
PUBLISHED = ["bytes", "bookworm-amd64", "trixie-amd64", "bullseye-amd64", "bookworm-arm64"]
UNAVAILABLE = 77


@pytest.mark.long
@pytest.mark.timeout_seconds(3600)
@pytest.mark.parametrize("suite", SUITES)
@pytest.mark.parametrize("release", ["trixie", "sid"])
def test_it_passes_there(release, suite, record_property):
    done = subprocess.run(["tests/release", release, suite], cwd=ROOT, capture_output=True, text=True)
    if done.returncode == UNAVAILABLE:
        pytest.skip(done.stderr.strip())
    counts = {word: int(number) for number, word in COUNT.findall((done.stdout.strip().splitlines() or [""])[-1])}
    record_property("cases", counts.get("passed", 1))
    record_property("note", f"{release} {suite.removeprefix('tests/').removeprefix('--')}: {counts.get('passed', 0)} passed, {counts.get('skipped', 0)} skipped")
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


@pytest.mark.long
@pytest.mark.timeout_seconds(3600)
@pytest.mark.parametrize("what", PUBLISHED)
def test_what_is_published_works(what, record_property):
    done = subprocess.run(["tests/dist", what], cwd=ROOT, capture_output=True, text=True)
    if done.returncode == UNAVAILABLE:
        pytest.skip(done.stderr.strip())
    said = done.stdout + done.stderr + (ROOT / f"build/dist/{what}.log").read_text()[-3000:]
    assert (done.returncode, done.stdout) == (0, f"{what}: passed\n"), said
    count = len((ROOT / "dist/SHA256SUMS").read_text().splitlines())
    record_property("note", f"{count} files of the same bytes" if what == "bytes" else what)
