"""Every call that can make a page resident, by one table: kind of mapping x call. Each row is judged, at the call or when the mapping
was made, or has a reason that names a program; then the kernel's figures show that nothing came that it could not take back.
"""

import ctypes
import functools
import mmap
import os
import tempfile
import time

import pytest
from lib.machine import GIB, MIB, set_available

SIZE = 128 * MIB
ROOM = 96 * MIB  # above the reserve: SIZE does not fit, what an interpreter maps does
NEAR = 8 * MIB

# How a mapping is made: what of, protection, flags.
SHARED, PRIVATE, ANONYMOUS, NORESERVE = 1, 2, 0x20, 0x4000
READ, WRITE = 1, 3
KINDS = {
    "private memory": ("-1", WRITE, PRIVATE | ANONYMOUS),
    "shared memory": ("-1", WRITE, SHARED | ANONYMOUS),
    "shared memory, only read": ("-1", READ, SHARED | ANONYMOUS),
    "memory file": ("memory_file()", WRITE, SHARED),
    "memory file, only read": ("memory_file()", READ, SHARED),
    "sparse memory": ("-1", WRITE, PRIVATE | ANONYMOUS | NORESERVE),
    "file": ("file", WRITE, SHARED),
    "file, only read": ("file", READ, SHARED),
    "private file, only read": ("file", READ, PRIVATE),
    "private file": ("file", WRITE, PRIVATE),
    "private memory file": ("memory_file(is_allocated=True)", WRITE, PRIVATE),
    "private memory file, only read": ("memory_file(is_allocated=True)", READ, PRIVATE),
}
CALLS = {
    "MAP_POPULATE": 0x8000,
    "MAP_LOCKED": 0x2000,
    "MADV_POPULATE_READ": "libc.madvise(address, SIZE, 22)",
    "MADV_POPULATE_WRITE": "libc.madvise(address, SIZE, 23)",
    "process_madvise": "advise_by_descriptor(address, 22)",
    "mlock": "libc.mlock(address, SIZE)",
    "mlock2": "libc.mlock2(address, SIZE, 0)",
    "mlock2 on fault": "libc.mlock2(address, SIZE, 1)",
    "mlockall": "libc.mlockall(1)",
    "mlockall on fault": "libc.mlockall(5)",
}
CACHE = "page cache that the kernel takes back when it is needed: `vmtouch -t` of a model"
ALLOCATED = "the file's pages are there: `torch.load(mmap=True)` of a model in /dev/shm"
ON_FAULT = "locks what is touched, and touching is not judged: a sparse heap of Redis under `mlockall`"
RESERVATION = "address space of a whole heap"  # sparse, and larger than the machine: free when it is mapped
UNWRITABLE = "EINVAL: `dd` into a mapping that it opened for reading takes nothing"


def reason_of(kind, call):
    """Why a row is not judged, or None."""
    is_file, locks = "file" in kind and kind[:6] != "memory", "lock" in call.lower()
    if is_file and "only read" in kind and call == "MADV_POPULATE_WRITE":
        return UNWRITABLE
    if kind in ("private file", "private memory file") and call in ("MAP_POPULATE", "MADV_POPULATE_WRITE"):
        return None
    if kind == "private memory file" and (not locks or "on fault" in call) or kind == "private memory file, only read":
        return ALLOCATED
    if is_file and not locks:
        return CACHE
    if "on fault" in call and kind in (RESERVATION, "shared memory, only read", "memory file, only read"):
        return ON_FAULT
    return None


ROWS = [(kind, call) for kind in KINDS for call in CALLS]
ROWS += [(RESERVATION, call) for call in CALLS if not call.startswith(("MAP_", "mlockall"))]  # those are for all of it

HEAD = f"""
SIZE = {SIZE}
for name in ("madvise", "mlock", "mlock2", "munmap", "mlockall", "munlockall"):
    getattr(libc, name).argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int] if name[-3:] != "all" else None
libc.mlock.argtypes = libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
def memory_file(is_allocated=False):
    file = os.memfd_create("rows")
    os.ftruncate(file, SIZE)
    is_allocated and os.posix_fallocate(file, 0, SIZE)
    return file
def advise_by_descriptor(address, advice):
    piece = (ctypes.c_size_t * 2)(address, SIZE)
    answer = libc.process_madvise(os.pidfd_open(os.getpid()), piece, ctypes.c_size_t(1), advice, 0)
    return answer if answer < 0 else 0
def held():
    fields = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return sum(int(fields[name].split()[0]) << 10 for name in ("RssAnon", "RssShmem", "VmLck"))
def row(fd, prot, flags, call, length=SIZE):
    before = held()
    address = libc.mmap(None, length, prot, flags | (call if isinstance(call, int) else 0), fd, 0)
    if address == ctypes.c_void_p(-1).value:
        return say(f"refused {{ctypes.get_errno()}}")
    answer = 0 if isinstance(call, int) else eval(call)
    say("granted" if answer == 0 else f"refused {{ctypes.get_errno()}}")
    say(max(0, held() - before))
    libc.munlockall()
    libc.munmap(address, length)
ready()
"""


@functools.cache
def may_lock():
    """Whether this user may lock so much. Nothing is touched."""
    block, on_fault = mmap.mmap(-1, GIB), 1
    return ctypes.CDLL(None).mlock2(ctypes.byref(ctypes.c_char.from_buffer(block)), ctypes.c_size_t(GIB), on_fault) == 0


@pytest.fixture
def file():
    """A sparse file on a disk."""
    with tempfile.NamedTemporaryFile(dir="/var/tmp", prefix="sparkguard-test-") as named:
        os.truncate(named.name, SIZE)
        yield named.name


def walk(place, file, kind, call, room):
    if "lock" in call.lower() and not may_lock():
        pytest.skip("this user may not lock a GiB (RLIMIT_MEMLOCK)")
    is_reservation = kind == RESERVATION
    fd, prot, flags = KINDS["sparse memory" if is_reservation else kind]
    text = f"import mmap\nfile = os.open({file!r}, os.O_RDWR)\n{HEAD}row({fd}, {prot}, {flags}, {CALLS[call]!r}{', 64 << 30' * is_reservation})\nready()"
    player = place.player(text, {"SPARKGUARD_WATCHDOG": "off"})
    player.ready()
    set_available(place, 2 * GIB + room)  # when the interpreter has started
    time.sleep(0.02)  # pace: a look at the machine serves for 5 ms
    return player.go().ready()


@pytest.mark.parametrize("kind, call", ROWS)
def test_is_judged_or_takes_nothing_that_stays(place, file, kind, call):
    said = walk(place, file, kind, call, ROOM)
    reason = reason_of(kind, call)
    if reason is None:
        assert said[0] == "refused 12"
    else:
        assert said[0] == ("refused 22" if reason == UNWRITABLE else "granted"), reason
        assert said[1] <= NEAR or reason in (ON_FAULT, ALLOCATED)  # VmLck shows what may become locked


@pytest.mark.parametrize("kind, call", [row for row in ROWS if reason_of(*row) is None])
def test_is_granted_where_it_fits(place, file, kind, call):
    is_writing = "only read" in kind and call == "MADV_POPULATE_WRITE"
    assert walk(place, file, kind, call, 4 * GIB)[0] == ("refused 22" if is_writing else "granted")


# ---- page cache that is locked ----


def locker(place, file, text, env=None):
    if not may_lock():
        pytest.skip("this user may not lock a GiB (RLIMIT_MEMLOCK)")
    text = f"""
libc.mlock.argtypes = libc.munlock.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
address = libc.mmap(None, {SIZE}, 1, 1, os.open({file!r}, os.O_RDWR), 0)
def lock(begin, end):
    say("granted" if libc.mlock(address + begin, end - begin) == 0 else f"refused {{ctypes.get_errno()}}")
ready()
{text}
ready()
"""
    player = place.player(text, {"SPARKGUARD_WATCHDOG": "off"} | (env or {}))
    player.ready()
    return player


def test_what_is_locked_already_needs_no_room(place, file):
    half = SIZE // 2
    player = locker(place, file, f"lock(0, {half})\nready()\nlock(0, {SIZE})\nlibc.munlock(address, {half})\nready()\nlock(0, {SIZE})")
    assert player.go().ready() == ["granted"]
    set_available(place, 2 * GIB + half + 16 * MIB)
    time.sleep(0.02)  # pace: a look at the machine serves for 5 ms
    assert player.go().ready() == ["granted"]
    set_available(place, 2 * GIB + 16 * MIB)
    time.sleep(0.02)  # pace: a look at the machine serves for 5 ms
    assert player.go().ready() == ["refused 12"]


def test_locked_step_by_step_it_ends_above_the_reserve(place, file):
    step, available = 16 * MIB, 2 * GIB + ROOM
    player = locker(place, file, f"for at in range(0, {SIZE}, {step}): lock(at, at + {step}); ready()")
    said = []
    while said[-1:] != ["refused 12"]:
        set_available(place, available - len(said) * step)
        time.sleep(0.02)  # pace: a look at the machine serves for 5 ms
        said += player.go().ready()
    assert ROOM // step - 1 <= said.count("granted") <= ROOM // step


def test_locked_page_cache_is_not_in_the_limit(place, file):
    assert locker(place, file, f"lock(0, {SIZE})", {"SPARKGUARD_LIMIT": "64M"}).go().ready() == ["granted"]
