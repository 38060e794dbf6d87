"""A CUDA request that fits MemAvailable but not MemFree: the driver takes page cache by itself. Nothing is populated or reclaimed for it.

The machine is fake and small. A pipe stands for the cgroup's memory.reclaim.
"""

import contextlib
import ctypes
import mmap
import os
import subprocess
import tempfile

import pytest
from conftest import MIB
from lib.target import IS_EMULATED

# Of 1 GiB a quarter is kept; 100 MiB are free, 700 MiB are page cache.
TOTAL, FREE, CACHED = 1024 * MIB, 100 * MIB, 700 * MIB
REQUEST = 300 * MIB
AT_ONCE = 20  # sleeps: a wait for others sleeps 65 times (admit/wait.c), and a look at the figures not at all
ON_DISK = ["ext2/ext3", "xfs", "btrfs", "f2fs", "overlayfs", "zfs"]  # as stat names them

TAKE = f"""
start()
quiet()
result, p = take("cuMemAlloc_v2", {REQUEST})
say(result=result)
quiet()
"""


def machine(sim):
    return sim.machine(TOTAL, FREE + CACHED, CACHED) | {"SGSIM_LEDGER": sim.ledger}


def resident_most(pid):
    """The most that was resident at any time, in bytes."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError), open(f"/proc/{pid}/status") as status:
        for line in status:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


def take(sim, text=TAKE, prefix=(), **variables):
    """The program's answers, and what it had resident for the call at most."""
    with sim.tenant(text, prefix, **variables) as program:
        program.quiet()
        before = resident_most(program.pid)
        program.go()
        done = program.quiet()
        done.populated = resident_most(program.pid) - before
        vars(done).update(vars(program.finish()))
    return done


def test_driver_is_asked_in_any_case(sim):
    sleeps = "resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw"
    text = f"import resource\n{TAKE}".replace("result, p", f"before = {sleeps}\nresult, p").replace("say(", f"say(sleeps={sleeps} - before, ")
    done = take(sim, text, **machine(sim))
    assert (done.result, done.populated < 20 * MIB) == (0, True)
    assert done.sleeps < AT_ONCE or IS_EMULATED, "it waits for nothing"  # an emulator's own locks count there
    assert sim.machine_bytes("cached") < CACHED


def test_program_in_its_own_sandbox_is_not_ended_for_it(sim):
    """Its filter ends whoever makes a call that ordinary programs do not make."""
    if subprocess.run([sim.program("host_strict"), "/bin/true"]).returncode == 77:
        pytest.skip("no seccomp here")
    done = take(sim, TAKE, [sim.program("host_strict")], **machine(sim))
    assert done.result == 0 and done.populated < 20 * MIB


def test_what_is_free_takes_no_page_cache(sim):
    done = take(sim, TAKE.replace(str(REQUEST), str(FREE // 2)), **machine(sim))
    assert done.result == 0
    assert done.populated < FREE // 4
    assert sim.machine_bytes("cached") == CACHED


def test_what_does_not_fit_is_refused_without_reclaiming(sim):
    done = take(sim, TAKE.replace(str(REQUEST), str(FREE + CACHED - 200 * MIB)), **machine(sim))
    assert done.result == 2
    assert done.populated < FREE // 4


def cached_bytes(path):
    """How much of a file is in the page cache."""
    size = os.path.getsize(path)
    pages = (size + mmap.PAGESIZE - 1) // mmap.PAGESIZE
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), size) as view:
        resident = (ctypes.c_ubyte * pages)()
        start = ctypes.addressof(ctypes.c_char.from_buffer(view))
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.mincore(ctypes.c_void_p(start), ctypes.c_size_t(size), resident) == 0
        del start
    return sum(page & 1 for page in resident) * mmap.PAGESIZE


@pytest.fixture
def weights():
    """The path of a file of 32 MiB that lies on a disk."""
    with tempfile.NamedTemporaryFile(dir="/var/tmp", prefix="sparkguard-test-") as file:  # /tmp may be a tmpfs
        file.write(os.urandom(MIB) * 32)
        file.flush()
        os.fsync(file.fileno())
        kind = subprocess.run(["stat", "-f", "-c", "%T", file.name], check=True, capture_output=True, text=True).stdout.strip()
        if kind not in ON_DISK:
            pytest.skip(f"a file on {kind} is in no page cache")
        yield file.name


def test_nothing_is_asked_of_the_kernel_for_it(sim, weights):
    """A checkpoint that is being loaded is clean and open: its next reader wants the cache."""
    variables = machine(sim)
    sim.cgroup(TOTAL, 300 * MIB)
    wishes = sim.root / "sys" / "fs" / "cgroup" / "job" / "memory.reclaim"
    os.mkfifo(wishes)
    pipe = os.open(wishes, os.O_RDWR | os.O_NONBLOCK)
    size = os.path.getsize(weights)
    text = f"weights = open({weights!r}, 'rb', buffering=0)\nwhile weights.read(1 << 20): pass\n" + TAKE
    assert cached_bytes(weights) == size
    done = take(sim, text, **variables)
    assert done.result == 0 and cached_bytes(weights) > size // 2
    with pytest.raises(BlockingIOError):
        os.read(pipe, mmap.PAGESIZE)
    os.close(pipe)
