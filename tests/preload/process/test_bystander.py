"""Programs that have no part in it when the machine is down to its reserve: they go on as fast as before, or get their own error at once.

What a program costs is counted in system calls of the library (build/fault/libsparkguard.so counts them): a decision takes some ten of
them, and a runtime that is refused what it takes small objects from asks again with each object.
"""

import shutil
import struct
import time

import pytest
from lib.machine import GIB, MIB, Machine
from lib.target import PYTHON

OBJECTS = {
    "python": ([PYTHON, "-S", "-c"], "import json, decimal, argparse\nprint(len([(i, str(i)) for i in range(20000)]))"),
    "node": (["node", "-e"], "const a = []; for (let i = 0; i < 20000; i++) a.push({i, s: String(i)}); console.log(a.length)"),
    "perl": (["perl", "-e"], 'my @a = map { {i => $_, s => "x$_"} } 1 .. 20000; print scalar(@a), "\\n"'),
}
SLOW = 4000  # calls more than with much memory; before, one run of Python made a million
QUIET = {"SPARKGUARD_HISTORY": "off", "SPARKGUARD_WATCHDOG": "off", "SPARKGUARD_RESERVE": "2G"}


def run(guard, tmp_path, available, command, **env):
    """The run, and how many system calls the library made in it, on a machine of 16 GiB that keeps 2 of them."""
    machine = Machine(tmp_path / f"machine-{available}", available=available)
    log = tmp_path / f"log-{available}"
    guard.library = guard.build / "fault" / "libsparkguard.so"
    done = guard.run(command, env={"SPARKGUARD_SYSTEM_ROOT": machine.root, "SG_FAULT_LOG": log, **QUIET, **env}, cwd=tmp_path)
    calls, _ = struct.unpack_from("=QQ", log.read_bytes())
    return done, calls


@pytest.mark.parametrize("runtime", OBJECTS)
def test_a_program_of_small_objects_goes_on_at_the_reserve(guard, tmp_path, runtime):
    command, text = OBJECTS[runtime]
    if shutil.which(command[0]) is None:
        pytest.skip(f"no {runtime} here")
    ample, calls = run(guard, tmp_path, 10 * GIB, [*command, text])
    at_reserve, more_calls = run(guard, tmp_path, 2 * GIB, [*command, text])
    assert (ample.returncode, ample.stdout) == (0, "20000\n"), ample.stderr
    assert (at_reserve.returncode, at_reserve.stdout) == (0, "20000\n"), at_reserve.stderr
    assert more_calls <= calls + SLOW


def test_arenas_that_are_refused_again_and_again_cost_two_readings_of_the_clock(guard, tmp_path):
    """SPARKGUARD_LARGE makes the arenas of Python's objects large, and Python asks for one with each object."""
    command, text = OBJECTS["python"]
    begin = time.monotonic()
    done, calls = run(guard, tmp_path, 2 * GIB, [*command, text], SPARKGUARD_LARGE="512K")
    seconds = time.monotonic() - begin
    refused = done.process()["refused_count"]
    assert (done.returncode, done.stdout) == (0, "20000\n"), done.stderr
    assert refused > 20000 and calls <= 4 * refused + SLOW
    assert done.stderr.count("sparkguard: refused") <= 1 + seconds  # one a second, and the first


def test_a_jvm_goes_on_at_the_reserve_or_says_that_it_cannot(guard, tmp_path):
    if shutil.which("java") is None:
        pytest.skip("no JVM here")
    done, calls = run(guard, tmp_path, 2 * GIB, ["java", "-Xmx64m", "-XX:+UseSerialGC", "-version"])
    assert done.returncode in (0, 1), done.stderr  # 1: "Could not reserve enough space for object heap"
    assert done.returncode == 0 or "Error" in done.stdout + done.stderr
    assert calls <= 3 * SLOW


def test_what_is_large_is_refused_there_at_once(guard, tmp_path):
    text = "import mmap\ndef take(size):\n    try: return len(mmap.mmap(-1, size))\n    except OSError: return 0\n"
    text += "print(take(1 << 20), take(2 << 20), take((2 << 20) + 1), take(64 << 20))"
    done, calls = run(guard, tmp_path, 2 * GIB, [PYTHON, "-S", "-c", text])
    assert done.stdout == f"{MIB} {2 * MIB} 0 0\n", done.stderr
    assert calls <= SLOW


def test_who_takes_more_and_more_below_the_floor_gets_its_own_error(guard, tmp_path):
    text = "l = []\ntry:\n    while True: l.append(bytes(100000))\nexcept MemoryError: print(len(l))"
    done, calls = run(guard, tmp_path, 256 * MIB, [PYTHON, "-S", "-c", text])
    assert done.returncode == 0 and 300 < int(done.stdout) < 1000, done.stderr
    assert calls <= 30 * SLOW


@pytest.mark.parametrize("what", ["malloc", "calloc", "realloc", "mmap", "small"])
def test_a_refusal_that_repeats_itself_makes_no_system_call(guard, tmp_path, what):
    program = [guard.build / "tests/programs/refused_again", what, tmp_path / f"log-{2 * GIB}"]
    done, _ = run(guard, tmp_path, 2 * GIB, program, SPARKGUARD_LIMIT="40M")
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
