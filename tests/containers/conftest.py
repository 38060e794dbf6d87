"""What the tests of sparkguard-runtime with podman, dockerd and containerd share. `make test-containers` writes RESULTS.md by it."""

import os
import re
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "ecosystem"))  # bundles
VERSIONS = ("podman", "dockerd", "containerd", "runc", "crun")
outcomes = {}  # (behaviour, case): {engine: outcome}


def pytest_runtest_logreport(report):
    match = re.search(r"::test_(\w+)\[(\w+\+\w+)-?(.*)\]$", report.nodeid)
    if match is None or (report.when != "call" and report.outcome == "passed"):
        return
    behaviour, engine, case = match.groups()
    word = "yes" if report.outcome == "passed" else "**no**"
    if report.outcome == "skipped":
        word = "skipped: " + str(report.longrepr[2]).removeprefix("Skipped: ").replace("|", "/").replace("\n", " ")[:160]
    outcomes.setdefault((behaviour.replace("_", " "), case), {})[engine] = word


def version_of(program):
    try:
        return subprocess.run([program, "--version"], capture_output=True, text=True).stdout.splitlines()[0]
    except (OSError, IndexError):
        return f"{program}: none"


def pytest_sessionfinish():
    path = os.environ.get("RESULTS")
    if not path or not outcomes:
        return
    engines = sorted({engine for row in outcomes.values() for engine in row})
    notes = []

    def cell(word):
        if not word.startswith("skipped: "):
            return word
        reason = word.removeprefix("skipped: ")
        if reason not in notes:
            notes.append(reason)
        return f"skipped ({notes.index(reason) + 1})"

    rows = [f"| {behaviour}{': ' if case else ''}{case} | " + " | ".join(cell(row.get(engine, "-")) for engine in engines) + " |"
            for (behaviour, case), row in outcomes.items()]
    text = ["# sparkguard-runtime with container engines", "", "Written by `make test-containers`. Each row is a behaviour of",
            "`test_engines.py`: *yes* where it holds with that engine and that next runtime.", "", *(f"- {version_of(name)}" for name in VERSIONS), "",
            "| behaviour | " + " | ".join(engines) + " |", "|---|" + "---|" * len(engines), *rows, "",
            *(f"{number}. {note}" for number, note in enumerate(notes, 1))]
    Path(path).write_text("\n".join(text).rstrip() + "\n")
