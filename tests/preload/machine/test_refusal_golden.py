"""The words of each kind of line about a refusal, in golden/refusals.txt. Sizes, processes and times stand as SIZE, PID, NAME and
TIME; what they must be, test_refusal_line.py and tests/sim/limits/test_refusal.py say."""

import os
import re
import sys
from pathlib import Path

from lib.units import GIB, MIB
from holding import Holder, machine

GOLDEN = Path(__file__).resolve().parent / "golden/refusals.txt"
CALLS = """
import ctypes, mmap, sys, time
libc = ctypes.CDLL(None)
libc.malloc.restype = libc.realloc.restype = ctypes.c_void_p
libc.malloc.argtypes, libc.realloc.argtypes = [ctypes.c_size_t], [ctypes.c_void_p, ctypes.c_size_t]
MIB, GIB = 1 << 20, 1 << 30
"""
LIMIT = {"SPARKGUARD_LIMIT": "64M"}


def cgroup(tmp_path):
    """A machine of 8 GiB, in whose cgroup of 1 GiB 900 MiB are in use."""
    env = machine(tmp_path, 8 * GIB, 7 * GIB)
    group = tmp_path / "root/sys/fs/cgroup/job"
    group.mkdir(parents=True)
    (tmp_path / "root/proc/self").mkdir()
    (tmp_path / "root/proc/self/cgroup").write_text("0::/job\n")
    for name, text in {"memory.max": GIB, "memory.high": "max", "memory.current": 900 * MIB, "memory.stat": "file 0"}.items():
        (group / name).write_text(f"{text}\n")
    (group.parent / "cgroup.controllers").write_text("memory\n")
    return env


def cases(tmp_path):
    """Name, environment, code."""
    small = machine(tmp_path / "small", GIB, 300 * MIB)
    yield "limit", LIMIT, "libc.malloc(200 * MIB)"
    yield "limit, a mapping", LIMIT, "libc.mmap(None, ctypes.c_size_t(200 * MIB), 3, 0x22, -1, ctypes.c_long(0))"
    yield "limit, a block that grows", LIMIT, "p = libc.malloc(40 * MIB); libc.realloc(p, 200 * MIB)"
    yield "limit, beyond the machine", LIMIT, "libc.malloc(1 << 44)"
    yield "limit, observed", {**LIMIT, "SPARKGUARD_MODE": "observe"}, "libc.malloc(200 * MIB)"
    yield "limit, repeated", LIMIT, (
        "end = time.monotonic() + 1.2\n"
        "while time.monotonic() < end: libc.malloc(200 * MIB)\n"
        "for _ in range(2000): libc.malloc(200 * MIB)"
    )
    yield "reserve", small, "libc.malloc(600 * MIB)"
    yield "reserve, beyond the machine", small, "libc.malloc(2 * GIB)"
    yield "reserve of a cgroup", cgroup(tmp_path / "cgroup"), "libc.malloc(500 * MIB)"


def normal(text, is_alone):
    largest = r"; largest other: .+? \d+, ([\d.]+ \w+)(, unguarded|, another user's)?;"
    if is_alone:
        text = re.sub(f"end or shrink another program{largest}", "a smaller request;", text)
    text = re.sub(largest, ";" if is_alone else r"; largest other: NAME PID, \1\2;", text)
    text = re.sub(r"[\d.]+ (?:[KMGT]i)?B\b", "SIZE", text)
    text = re.sub(r"LIMIT=[\d.]+[KMGT]", "LIMIT=SIZE", text)
    text = re.sub(r"sparkguard-report \d+", "sparkguard-report PID", text)
    text = re.sub(r"([\d,]+) more (that would have been )?refused in (?:\d+ ms|[\d.]+ s)", r"N more \2refused in TIME", text)
    return "".join(dict.fromkeys(text.splitlines(keepends=True)))  # a slow machine says a line once more


def test_the_words_of_each_line_are_golden(guard, tmp_path):
    """For the reserve, what else runs on this machine decides whether a process holds much: that piece has a case of its own."""
    told = []
    for name, env, code in cases(tmp_path):
        done = guard.run([sys.executable, "-S", "-c", CALLS + code], env=env)
        assert done.returncode == 0, done.stderr
        told.append(f"== {name}\n{normal(done.stderr, is_alone=True)}")
    env = {"SPARKGUARD_LIMIT": "200M", "SPARKGUARD_JOB": "two"}
    with Holder(guard, 120 * MIB, env):
        done = guard.run([sys.executable, "-S", "-c", CALLS + "libc.malloc(100 * MIB)"], env=env)
    told.append(f"== limit, another process of the job holds most\n{normal(done.stderr, is_alone=False)}")
    env = machine(tmp_path / "large", 4 * GIB, 7 * GIB // 2)
    with Holder(guard, 3 * GIB, env):
        done = guard.run([sys.executable, "-S", "-c", CALLS + "libc.malloc(GIB)"], env=env)
    told.append(f"== reserve, another guarded process holds most\n{normal(done.stderr, is_alone=False)}")
    text = "\n".join(told)
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()
