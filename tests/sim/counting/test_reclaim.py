"""A CUDA request that fits MemAvailable but not MemFree: the page cache goes first, then the driver is asked. Nothing is populated for it.

The machine is fake and small. Where the guard writes to memory.reclaim, a pipe stands for the file.
"""

import contextlib
import ctypes
import mmap
import os
import re
import subprocess
import tempfile
import threading

import pytest
from conftest import MIB
from lib.waiting import wait_until

# Of 1 GiB a quarter is kept; 100 MiB are free, 700 MiB are page cache.
TOTAL, FREE, CACHED = 1024 * MIB, 100 * MIB, 700 * MIB
REQUEST = 300 * MIB
AT_ONCE = 20  # sleeps: a wait for others sleeps 65 times (admit/wait.c), and a look at the figures not at all
LOCAL = ["ext2/ext3", "xfs", "btrfs", "f2fs", "overlayfs", "zfs"]  # as stat names them

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
    """Nothing that the guard may do brings enough: it gives up in time, and the driver reclaims."""
    sleeps = "resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw"
    text = f"import resource\n{TAKE}".replace("result, p", f"before = {sleeps}\nresult, p").replace("say(", f"say(sleeps={sleeps} - before, ")
    done = take(sim, text, **machine(sim))
    assert (done.result, done.populated < 20 * MIB) == (0, True)
    assert done.sleeps < AT_ONCE, "it looks again after each step, and waits for nothing"
    assert sim.machine_bytes("cached") < CACHED


def test_program_in_its_own_sandbox_is_not_ended_for_it(sim):
    """Its filter ends whoever makes a call that ordinary programs do not make."""
    if subprocess.run([sim.program("host_strict"), "/bin/true"]).returncode == 77:
        pytest.skip("no seccomp here")
    done = take(sim, TAKE, [sim.program("host_strict")], **machine(sim))
    assert done.result == 0 and done.populated < 20 * MIB


def test_what_is_free_needs_no_reclaiming(sim):
    done = take(sim, TAKE.replace(str(REQUEST), str(FREE // 2)), **machine(sim))
    assert done.result == 0
    assert done.populated < FREE // 4
    assert sim.machine_bytes("cached") == CACHED


def test_what_does_not_fit_is_refused_without_reclaiming(sim):
    done = take(sim, TAKE.replace(str(REQUEST), str(FREE + CACHED - 200 * MIB)), **machine(sim))
    assert done.result == 2
    assert done.populated < FREE // 4


@contextlib.contextmanager
def reclaim_pipe(sim, path):
    """Stands for a cgroup's memory.reclaim: what is asked for there, of files only, is dropped from the page cache.
    Yields how much it was each time."""
    os.mkfifo(path)
    pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    wishes, is_over = [], threading.Event()

    def serve():
        while not is_over.wait(0.001):  # poll: wishes in the pipe
            with contextlib.suppress(BlockingIOError):
                for line in os.read(pipe, mmap.PAGESIZE).decode().splitlines():
                    wish = int(re.fullmatch(r"(\d+) swappiness=0", line)[1])
                    wishes.append(wish)
                    sim.machine_move("cached", -min(wish, sim.machine_bytes("cached")))

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield wishes
    finally:
        is_over.set()
        thread.join()
        os.close(pipe)


def test_memory_reclaim_of_the_cgroup_is_used_where_it_can_be(sim):
    variables = machine(sim)
    sim.cgroup(TOTAL, 300 * MIB)
    with reclaim_pipe(sim, sim.root / "sys" / "fs" / "cgroup" / "job" / "memory.reclaim") as wishes:
        done = take(sim, **variables)
        wait_until(lambda: sum(wishes) >= REQUEST - FREE)  # the kernel serves them in the call
    assert done.result == 0
    assert sum(wishes) <= REQUEST, "no more than is needed"
    assert max(wishes) <= 128 * MIB, "in steps, for it may take long"


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
        if kind not in LOCAL:
            pytest.skip(f"a file on {kind} is left alone")
        yield file.name


def test_cache_of_files_that_the_program_has_open_goes(sim, weights):
    """A checkpoint that is being loaded: clean, and open."""
    size = os.path.getsize(weights)
    text = f"weights = open({weights!r}, 'rb', buffering=0)\nwhile weights.read(1 << 20): pass\n" + TAKE
    assert cached_bytes(weights) == size
    done = take(sim, text, **machine(sim))
    assert done.result == 0
    assert cached_bytes(weights) < size // 4


def test_reader_of_a_pipe_is_not_disturbed(sim):
    """What the program has open may be anything: pipes, sockets, devices, and files that others hold positions in."""
    text = (
        """
import os
reader, writer = os.pipe()
os.write(writer, b"x" * 100)
file = os.open(sys.executable, os.O_RDONLY)
os.lseek(file, 5, 0)
"""
        + TAKE
        + "say(pipe=len(os.read(reader, 200)), position=os.lseek(file, 0, 1))"
    )
    done = take(sim, text, **machine(sim))
    assert (done.result, done.pipe, done.position) == (0, 100, 5)


# A file system of the program itself, in mounts of its own: one file, and what the program's first thread asked about it.
SERVED = """
import ctypes, os, struct, threading
libc = ctypes.CDLL(None, use_errno=True)
NEWNS, PRIVATE, RECURSIVE = 0x20000, 1 << 18, 1 << 14
LOOKUP, FORGET, GETATTR, OPEN, INIT, ENOSYS = 1, 2, 3, 14, 26, 38
SIZE = 32 << 20
asked = []
def attributes(node):
    return struct.pack("<6Q10I", node, SIZE, 0, 0, 0, 0, 0, 0, 0, 0o100644 if node == 2 else 0o40755, 1, 0, 0, 0, 4096, 0)
def answer(opcode, node):
    if opcode == INIT:
        return struct.pack("<4I2H2I2H8I", 7, 31, 0, 0, 0, 0, 4096, 1, 0, 0, *[0] * 8)
    if opcode == LOOKUP:
        return struct.pack("<4Q2I", 2, 0, 0, 0, 0, 0) + attributes(2)
    if opcode == OPEN:
        return struct.pack("<Q2I", 0, 0, 0)
    return struct.pack("<Q2I", 0, 0, 0) + attributes(node) if opcode == GETATTR else b""
def serve():
    while True:
        try:
            _, opcode, unique, node, _, _, thread = struct.unpack_from("<2I2Q3I", os.read(device, 1 << 17))
        except OSError:
            return
        if thread == os.getpid():
            asked.append(opcode)
        if opcode != FORGET:
            reply = answer(opcode, node)
            os.write(device, struct.pack("<IiQ", 16 + len(reply), 0 if reply else -ENOSYS, unique) + reply)
def mount(*arguments):
    assert libc.mount(*arguments) == 0, os.strerror(ctypes.get_errno())
device = os.open("/dev/fuse", os.O_RDWR)
assert libc.unshare(NEWNS) == 0
mount(b"none", b"/", None, PRIVATE | RECURSIVE, None)
mount(b"none", FOLDER, b"fuse", 0, f"fd={device},rootmode=40000,user_id=0,group_id=0".encode())
threading.Thread(target=serve, daemon=True).start()
weights = os.open(FOLDER + b"/weights", os.O_RDONLY)
asked.clear()
"""


def test_file_that_a_server_answers_for_is_not_asked_about(sim, own_mounts, tmp_path):
    """The answer may never come: a server that is gone, a FUSE daemon that waits for this program."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("no /dev/fuse here")
    folder = tmp_path / "served"
    folder.mkdir()
    text = f"FOLDER = {os.fsencode(folder)!r}\n" + SERVED + TAKE + "say(asked=len(asked))\nos.fstat(weights)\nsay(by_stat=len(asked))"
    done = take(sim, text, **machine(sim))
    assert (done.result, done.asked) == (0, 0)
    assert done.by_stat >= 1, "the server hears of what is asked about its file"
