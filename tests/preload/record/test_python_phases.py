"""sparkguard.phase: blocks of a Python program with peaks of their own, nested, in threads, after fork, without the guard."""

import re
import sys
from pathlib import Path

import pytest

MIB = 1 << 20
PACKAGE = Path(__file__).resolve().parents[3] / "tools/python"

HEAD = """
import os, sys, threading, sparkguard
MIB = 1 << 20
def take(mebibytes):
    block = bytearray(mebibytes << 20)
    del block
def mib(phase):
    return phase.peak_bytes >> 20 if phase.peak_bytes is not None else None
base = sparkguard.stats()["live_bytes"] >> 20 if sparkguard.active() else 0
"""


@pytest.fixture
def python(guard):
    def run(text, **env):
        done = guard.run([sys.executable, "-c", HEAD + text], env={"PYTHONPATH": PACKAGE} | env)
        assert done.returncode == 0, done.stderr
        done.said = done.stdout.split()
        return done

    return run


def near(words, *mebibytes):
    """Interpreters take some memory of their own meanwhile."""
    return len(words) == len(mebibytes) and all(want <= int(word) <= want + 6 for word, want in zip(words, mebibytes))


def test_a_phase_has_a_peak_of_its_own(python):
    done = python(
        """
take(200)
with sparkguard.phase("load") as load:
    held = bytearray(40 << 20)
    take(60)
with sparkguard.phase("train") as train:
    take(20)
print(mib(load) - base, mib(train) - base, (load.live_bytes >> 20) - base, load.refused_count)
"""
    )
    assert near(done.said[:3], 100, 60, 40) and done.said[3] == "0"
    assert [p["name"] for p in done.process()["phases"]] == ["load", "after load", "train", "after train"]


def test_the_report_has_the_peak_of_memory_that_was_freed_within_the_phase(python):
    done = python(
        """
with sparkguard.phase("freed") as freed:
    take(90)
with sparkguard.phase("outer") as outer:
    take(70)
    with sparkguard.phase("inner") as inner:
        take(50)
print(mib(freed) - base, mib(outer) - base, mib(inner) - base, base)
"""
    )
    assert near(done.said[:3], 90, 70, 50)
    shown = [(p["name"], p["peak_bytes"] // MIB) for p in done.process()["phases"]]
    assert [name for name, _ in shown] == ["freed", "after freed", "outer", "inner", "outer", "after outer"]
    base, (freed, _, outer, inner, *_) = int(done.said[3]), [peak for _, peak in shown]
    assert near([freed - base, outer - base, inner - base], 90, 70, 50), shown


def test_an_outer_phase_has_the_peaks_of_the_inner_ones(python):
    done = python(
        """
with sparkguard.phase("outer") as outer:
    take(30)
    with sparkguard.phase("inner") as inner:
        take(90)
    take(10)
print(mib(outer) - base, mib(inner) - base)
"""
    )
    assert near(done.said, 90, 90)
    assert [p["name"] for p in done.process()["phases"]] == ["outer", "inner", "outer", "after outer"]


def test_an_inner_phase_has_not_the_peak_of_the_outer_one(python):
    done = python(
        """
with sparkguard.phase("outer") as outer:
    take(90)
    with sparkguard.phase("inner") as inner:
        take(10)
print(mib(outer) - base, mib(inner) - base)
"""
    )
    assert near(done.said, 90, 10)


def test_phases_do_not_change_the_peaks_of_stats(python):
    done = python(
        """
take(150)
with sparkguard.phase("small"):
    take(10)
before = sparkguard.stats()
sparkguard.reset_peak()
after = sparkguard.stats()
for now in (before, after):
    print((now["peak_bytes"] >> 20) - base, (sum(d["peak_bytes"] for d in now["domains"].values()) >> 20) - base >= (now["peak_bytes"] >> 20) - base - 1)
"""
    )
    assert near(done.said[0:1], 150) and near(done.said[2:3], 0) and done.said[1::2] == ["True", "True"]


def test_a_reset_of_the_peaks_leaves_open_phases_theirs(python):
    done = python(
        """
with sparkguard.phase("sizes") as sizes:
    take(90)
    sparkguard.reset_peak()
    take(10)
print(mib(sizes) - base, (sparkguard.stats()["peak_bytes"] >> 20) - base)
"""
    )
    assert near(done.said, 90, 10)


def test_phases_of_threads_overlap(python):
    done = python(
        """
inside, taken = threading.Barrier(2), threading.Barrier(2)
peaks = {}
def work(name, mebibytes):
    with sparkguard.phase(name) as phase:
        inside.wait()
        take(mebibytes)
        taken.wait()
    peaks[name] = mib(phase) - base
threads = [threading.Thread(target=work, args=pair) for pair in (("a", 70), ("b", 20))]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(peaks["a"], peaks["b"], len(sparkguard._phases._open))
"""
    )
    a, b, left = map(int, done.said)
    assert 70 <= a <= 100 and 70 <= b <= 100 and left == 0  # the peak is that of the process


def test_a_refusal_is_counted_in_the_phase_that_it_ends(python):
    done = python(
        """
try:
    with sparkguard.phase("large") as large:
        bytearray(4 << 30)
except MemoryError:
    pass
with sparkguard.phase("next") as after:
    pass
print(large.refused_count >= 1, after.refused_count)
""",
        SPARKGUARD_LIMIT="1G",
    )
    assert done.said == ["True", "0"]


def test_a_forked_child_leaves_its_parents_phase(python):
    done = python(
        """
with sparkguard.phase("parent") as phase:
    child = os.fork()
    if child == 0:
        with sparkguard.phase("child") as own:
            take(50)
        os._exit(0 if own.peak_bytes >= 50 << 20 and not sparkguard._phases._open else 1)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), phase.name)
"""
    )
    assert done.said == ["0", "parent"]


def test_without_the_guard_a_phase_does_nothing(python):
    text = "with sparkguard.phase('x') as p: take(10)\nprint(p.peak_bytes, p.live_bytes, p.refused_count, p.name)"
    assert python(text, LD_PRELOAD=None).said == ["None", "None", "None", "x"]


@pytest.mark.parametrize("env, said", [({}, r"<phase 'x': peak \d+ bytes>"), ({"LD_PRELOAD": None}, "<phase 'x': peak not measured>")])
def test_a_phase_is_shown_without_none(python, env, said):
    assert re.fullmatch(said, python("with sparkguard.phase('x') as p: take(1)\nprint(p)", **env).stdout.strip())


@pytest.mark.parametrize("name", ["", "x" * 500, "\ud800", "a\0b", 7, "\x1b[31m"])
def test_any_name_is_taken(python, name):
    done = python(f"with sparkguard.phase({name!r}) as p: take(20)\nprint(p.peak_bytes >> 20 >= 20)")
    assert done.said == ["True"]
