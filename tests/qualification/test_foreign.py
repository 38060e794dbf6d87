"""Foreign test suites and programs come to the same with and without the guard: tests/qualification/ab, a row for each suite."""

import importlib.machinery
import importlib.util
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
from foreign import SUITES, Place, Unavailable
from lib.waiting import wait_until



def script(name):
    loader = importlib.machinery.SourceFileLoader(name, str(Path(__file__).resolve().parent / name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    loader.exec_module(module)
    return module


ab = script("ab")


@pytest.mark.long
@pytest.mark.timeout_seconds(6 * 3600)
@pytest.mark.parametrize("name", SUITES)
def test_every_result_is_the_same(name, record_property):
    try:
        comparison = ab.Comparison(name)
    except Unavailable as error:
        pytest.skip(str(error))
    record_property("cases", len(comparison.names()))
    record_property("note", f"{f'{name} {SUITES[name].version()}'.strip()}: {comparison.summary()}")
    assert list(comparison.lines()) == []


class Scripted:
    """A suite that says one thing after the other."""

    def __init__(self, *runs):
        self.runs = list(runs)

    def run(self, place):
        name = "guarded" if "LD_PRELOAD" in place.environment else "plain"
        side = [run for run in self.runs if name in run]
        run = side[0]
        if len(side) > 1:
            self.runs.remove(run)
        if name == "guarded":
            place.run(["true"])
        return run[name]


@pytest.mark.parametrize(
    "plain, guarded, differing, unsteady",
    [
        ([{"a": "passed"}], [{"a": "passed"}], [], []),
        ([{"a": "passed"}], [{"a": "failure"}], ["a"], []),
        ([{"a": "passed"}], [{}], ["a"], []),
        ([{"a": "passed"}, {"a": "failure"}], [{"a": "failure"}, {"a": "passed"}], [], ["a"]),
        ([{"a": "passed"}], [{"a": "failure"}, {"a": "passed"}], [], ["a"]),
    ],
)
def test_the_comparison_tells_what_differs_from_what_is_unsteady(monkeypatch, build, plain, guarded, differing, unsteady):
    suite = Scripted(*({"plain": run} for run in plain), *({"guarded": run} for run in guarded))
    monkeypatch.setitem(SUITES, "scripted", suite)
    comparison = ab.Comparison("scripted")
    assert comparison.suspects() == differing and comparison.unsteady() == unsteady
    assert len([line for line in comparison.lines() if "without" in line]) == len(differing)


def test_a_suite_that_runs_unguarded_is_found_out(monkeypatch, build):
    """A harness that does not guard would find no differences at all."""

    class Cleared:
        def run(self, place):
            return {"a": "passed"}

    monkeypatch.setitem(SUITES, "cleared", Cleared())
    assert "no guarded process took part" in list(ab.Comparison("cleared").lines())


def test_only_what_differs_runs_again(monkeypatch, build):
    asked = []

    class Recorded:
        def run(self, place):
            asked.append(place.only)
            is_guarded = "LD_PRELOAD" in place.environment
            if is_guarded:
                place.run(["true"])
            said = {"a": "passed", "b": "failure" if is_guarded else "passed"}
            return {name: word for name, word in said.items() if place.wants(name)}

    monkeypatch.setitem(SUITES, "recorded", Recorded())
    comparison = ab.Comparison("recorded")
    assert asked == [()] * 2 + [("b",)] * 4 and comparison.names() == ["a", "b"] and comparison.suspects() == ["b"]


def test_make_qualify_runs_each_suite_once():
    names = [re.search(r"\[(.*)\]", file)[1] for part in script("run").PARTS if part.point in (9, 10) for file in part.files if "[" in file]
    assert sorted(names) == sorted(SUITES)


def test_nothing_outlives_a_run_that_is_ended(tmp_path, monkeypatch):
    """Some tests make process groups of their own. The time is up as soon as there is one."""
    pid = tmp_path / "pid"

    def communicate(process, timeout):
        wait_until(lambda: pid.exists() and pid.read_text())
        raise subprocess.TimeoutExpired(process.args, timeout)

    monkeypatch.setattr(subprocess.Popen, "communicate", communicate)
    code = "import os, signal; os.fork() or (os.setpgid(0, 0), open('pid', 'w').write(str(os.getpid()))); signal.pause()"
    done = Place(tmp_path, dict(os.environ)).run(["/usr/bin/python3", "-c", code], 3)
    assert done.returncode == -signal.SIGALRM
    wait_until(lambda: has_ended(pid.read_text()))


def has_ended(pid):
    try:
        return (Path("/proc") / pid / "stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True
