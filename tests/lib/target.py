"""The compiler and interpreter of the tested architecture, which tests/emulate sets to another than the machine's."""

import mmap
import os
import subprocess
import sys
from pathlib import Path

CC = os.environ.get("CC", "cc")
MACHINE = subprocess.run([*CC.split(), "-dumpmachine"], capture_output=True, text=True, check=True).stdout.split("-")[0]
PYTHON = os.environ.get("GUARDED_PYTHON", "/usr/bin/python3")
ROOT = Path(__file__).resolve().parents[2]
# The build for the machine that the tests themselves run on: another one if the library's architecture is emulated.
NATIVE = ROOT / ("build" if "GUARDED_PYTHON" in os.environ else os.environ.get("BUILD", "build"))
NATIVE_PYTHON = "/usr/bin/python3" if "GUARDED_PYTHON" in os.environ else sys.executable  # loads the libraries of NATIVE
IS_EMULATED = "GUARDED_PYTHON" in os.environ
IS_SLOW = IS_EMULATED or "IN_GUEST" in os.environ  # a whole machine in software, too (tests/guest64k)
SLOWER = 5 if IS_SLOW else 1


def patience(seconds):
    """How long to wait, on a machine that others use, for what takes a quiet one far fewer seconds: only what hangs is ended by it.

    Eight times at most: a test that hangs (240 s) ends before its step of .ci/run does (2700 s), so that it is named.
    """
    return seconds * min(8.0, SLOWER * max(1.0, os.getloadavg()[0] / os.cpu_count()))


EMULATORS_THREADS = 1 if IS_EMULATED else 0  # qemu has one in every process
# No threads of the library's. A child that is forked while another thread is inside qemu's clone() finds clone_lock of qemu's locked,
# and each thread that it creates itself waits for that lock.
THREADLESS = {"SPARKGUARD_WATCHDOG": "off", "SPARKGUARD_HISTORY": "off"}
IS_LONG = os.environ.get("QUALIFY") == "long"  # make qualify, which repeats with more seeds, steps or instants what make test shows once
IS_SHORT = IS_EMULATED and not IS_LONG  # make cross; make qualify runs all of it
STRESS_DIVISOR = 8 if IS_SHORT else 1  # runs one of so many rounds of a stress test or cases of a long list
FEWER_ROUNDS = 20 if IS_SLOW else 1  # what takes seconds of a machine takes minutes of it
# What a thread has touched and the kernel not counted as resident yet: up to 64 pages of each (TASK_RSS_EVENTS_THRESH, Linux 6.1).
UNCOUNTED_BYTES = 64 * mmap.PAGESIZE
# What the processors have charged to a memory cgroup and nobody uses yet: up to 64 pages each (MEMCG_CHARGE_BATCH, Linux 6.1).
CHARGED_AHEAD_BYTES = 64 * mmap.PAGESIZE * os.cpu_count()
