"""Programs in a sandbox, whose filter of system calls ends whoever makes one that it does not know: the guard makes none of those."""

import subprocess
import sys

import pytest
from lib.history import kept
from lib.waiting import wait_until

MIB = 1 << 20


def sandboxed(guard, env=None):
    """The report's entry of a program that has taken all it wants, when it has ended well."""
    process = guard.popen([guard.build / "tests/programs/host_sandbox"], env=env, stdin=-1)
    try:
        if process.stdout.readline() != "quiet\n":
            if process.wait(60) == 77:
                pytest.skip("no seccomp here")
            pytest.fail(f"ended by {process.returncode}: {process.stderr.read()}")
        entry = guard.process(process.pid)
        _, stderr = process.communicate("\n", timeout=60)
        assert process.returncode == 0, stderr
        assert stderr.startswith("sparkguard: refused malloc of 32.0 TiB") and stderr.count("\n") == 2
        return entry
    finally:
        process.kill()
        process.communicate()


def test_a_sandboxed_program_lives_and_is_counted(guard):
    entry = sandboxed(guard)
    assert entry["domains"]["mapped"]["live_bytes"] >= 32 * MIB
    assert 192 * MIB <= entry["domains"]["heap"]["live_bytes"] < 200 * MIB
    assert entry["refused_count"] == 1


def test_what_is_there_is_seen_without_mincore(guard):
    """Promised are half of the block that was touched by half, and the one that was not; not the file in memory."""
    assert 150 * MIB < sandboxed(guard)["promised_bytes"] < 170 * MIB


TOUR = """
import ctypes, mmap, os, tempfile, threading
libc = ctypes.CDLL(None, use_errno=True)
libc.malloc.restype = libc.realloc.restype = ctypes.c_void_p
def take(_=None):
    blocks = [ctypes.c_void_p(libc.malloc(ctypes.c_size_t(size << 20))) for size in (1, 40, 300)]
    for block in blocks:
        ctypes.memset(block, 1, 1 << 20)
        libc.free(ctypes.c_void_p(libc.realloc(block, ctypes.c_size_t(64 << 20))))
take()
threads = [threading.Thread(target=take) for _ in range(8)]
[thread.start() for thread in threads], [thread.join() for thread in threads]
with tempfile.TemporaryFile(dir="/dev/shm") as file:
    file.truncate(64 << 20)
    for flags in (mmap.MAP_SHARED, mmap.MAP_PRIVATE, mmap.MAP_SHARED):
        view = mmap.mmap(file.fileno(), 64 << 20, flags)
        view[: 1 << 20] = bytes(1 << 20)
        view.close()
wide = mmap.mmap(-1, 512 << 20)
wide.resize(256 << 20)
assert libc.malloc(ctypes.c_size_t(1 << 45)) is None
print("taken", flush=True)
input()
child = os.fork()
if child == 0:
    take()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print("done")
"""


def test_filter_that_knows_ordinary_calls_only_ends_nobody(guard):
    """Of all the guard's own calls: none is made that an ordinary program does not make as well."""
    command = [guard.build / "tests/programs/host_strict", sys.executable, "-S", "-c", TOUR]
    bare = guard.run(command, env={"LD_PRELOAD": None}, input="\n")
    if bare.returncode == 77:
        pytest.skip("no seccomp here")
    assert (bare.returncode, bare.stdout) == (0, "taken\ndone\n"), bare.stderr
    with guard.popen(command, stdin=subprocess.PIPE) as process:
        said = process.stdout.readline()
        if said == "taken\n":
            wait_until(lambda: process.pid in kept(guard) or process.poll() is not None)
            seen = guard.process(process.pid)["last_seen"]
            wait_until(lambda: process.poll() is not None or guard.process(process.pid)["last_seen"] > seen)  # behind the first copy
        stdout, stderr = process.communicate("\n", timeout=60)
    assert (process.returncode, said + stdout) == (0, "taken\ndone\n"), stderr


def test_a_program_that_may_not_open_files_any_more_lives(guard):
    """Its filter came before its first request: nobody has read then what the kernel says of filters, nor can."""
    done = guard.run([guard.build / "tests/programs/host_sandbox", "blind"], input="\n")
    if done.returncode == 77:
        pytest.skip("no seccomp here")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "quiet\n"
