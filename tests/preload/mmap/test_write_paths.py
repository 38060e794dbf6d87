"""Every path to writable memory is asked: each call that makes memory writable, larger or resident, against LIMIT and RESERVE.

The program write_paths takes memory along one path, step by step, touches it, and says what the kernel's own list shows of it and what
the guard counts of it.
"""

import ctypes
import functools
import mmap
import re
from pathlib import Path

import pytest
from lib.machine import GIB, MIB, Machine
from lib.output import values

SOURCE = Path(__file__).resolve().parents[2] / "programs/mmap/write_paths.c"
PATHS = re.findall(r"^    PATH\((\w+)\)", SOURCE.read_text(), re.MULTILINE)
LIMIT = 32 * MIB
GRACE = 32 * MIB  # small requests may pass LIMIT by so much
NEAR = 3 * MIB  # what the program takes besides, and credit of the heap


@functools.cache
def may_lock(size):
    """Whether this user may lock so much. Nothing is touched."""
    block, on_fault = mmap.mmap(-1, size), 1
    return ctypes.CDLL(None).mlock2(ctypes.byref(ctypes.c_char.from_buffer(block)), ctypes.c_size_t(size), on_fault) == 0


def walk(guard, path, step, count, **env):
    if "lock" in path and not may_lock(GIB):
        pytest.skip(f"{path}: this user may not lock a GiB (RLIMIT_MEMLOCK)")
    done = guard.run([guard.build / "tests/programs/write_paths", path, str(step), str(count)], env=env)
    if done.returncode == 77:
        pytest.skip(f"{path}: the kernel or a limit of this user does not allow it")
    assert done.returncode == 0, f"{path}: {done.returncode}: {done.stdout}{done.stderr}"
    return values(done.stdout)


@pytest.mark.parametrize("path", PATHS)
def test_counts_what_the_kernel_shows(guard, path):
    said = walk(guard, path, 8, 4)
    assert said.errno == 0 and said.steps == 4
    assert said.resident >= 32 * MIB, "the path takes memory at all"
    assert abs(said.known - said.resident) <= NEAR, f"counted {said.known}, resident {said.resident}"


@pytest.mark.parametrize("path", PATHS)
def test_ends_at_the_limit(guard, path):
    said = walk(guard, path, 8, 8, SPARKGUARD_LIMIT=LIMIT)
    assert said.errno == 12, f"{said.steps} steps were granted, {said.resident} bytes are resident"
    assert said.resident <= LIMIT + NEAR


@pytest.mark.parametrize("path", PATHS)
def test_small_steps_end_at_the_limit_and_its_grace(guard, path):
    said = walk(guard, path, 2, 64, SPARKGUARD_LIMIT=LIMIT, SPARKGUARD_LARGE=f"{GIB}")
    assert said.errno == 12, f"{said.steps} steps were granted, {said.resident} bytes are resident"
    unasked = 0 if path != "malloc_after_sparse" else 32 * MIB  # a scan finds what nobody was asked about some ms later
    assert said.resident <= LIMIT + GRACE + NEAR + unasked


@pytest.mark.parametrize("path", [path for path in PATHS if path != "malloc_after_sparse"])
def test_is_refused_above_the_reserve(guard, path, tmp_path):
    machine = Machine(tmp_path, 16 * GIB, 2 * GIB + 96 * MIB)
    said = walk(guard, path, 256, 1, SPARKGUARD_SYSTEM_ROOT=machine.root, SPARKGUARD_RESERVE="2G")
    assert (said.steps, said.errno) == (0, 12)
    assert said.resident <= NEAR


@pytest.mark.parametrize("path", PATHS)
def test_is_granted_where_it_fits(guard, path, tmp_path):
    machine = Machine(tmp_path, 16 * GIB, 2 * GIB + 96 * MIB)
    said = walk(guard, path, 16, 1, SPARKGUARD_SYSTEM_ROOT=machine.root, SPARKGUARD_RESERVE="2G")
    assert (said.steps, said.errno) == (1, 0)
