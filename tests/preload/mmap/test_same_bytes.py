"""Same bytes, several names: random mixes of fork, shared mappings, parts of them unmapped, moved, grown and viewed twice, in several
processes of a job. The guard's figures are compared with the kernel's: each process's list of mappings, and the sums of
Pss, in which each page counts once however many map it.
"""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import tempfile

import pytest
from lib import storm
from lib.target import IS_EMULATED, PYTHON

MIB = 1 << 20
SIZE = 8 * MIB  # of each object
STEP = 256 << 10  # offsets and lengths
OPERATIONS = 60

WORKER = """
import ctypes, json, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
for name, arguments in (("mmap", "pziiil"), ("mremap", "pzzip"), ("munmap", "pz"), ("shmat", "ipi"), ("memset", "piz")):
    kinds = {"p": ctypes.c_void_p, "z": ctypes.c_size_t, "i": ctypes.c_int, "l": ctypes.c_long}
    getattr(libc, name).argtypes = [kinds[letter] for letter in arguments]
    getattr(libc, name).restype = ctypes.c_int if name == "munmap" else ctypes.c_void_p
NONE = ctypes.c_void_p(-1).value
descriptors = [os.open(path, os.O_RDWR) for path in sys.argv[2:4]] + [os.memfd_create("sparkguard-test")]
segment = int(sys.argv[4])
for descriptor in descriptors:
    os.ftruncate(descriptor, int(sys.argv[5]))
anonymous = libc.mmap(None, int(sys.argv[5]), 3, 0x21, -1, 0)
def touched(address, size):
    assert address not in (None, NONE), ctypes.get_errno()
    libc.memset(address, 1, size)
    return address
touched(anonymous, int(sys.argv[5]))
def do(call, *rest):
    if call == "map":
        file, offset, size = rest
        return touched(libc.mmap(None, size, 3, 1, descriptors[file], offset), size)
    if call == "attach":
        return touched(libc.shmat(segment, None, 0), rest[0])
    if call == "anonymous":
        return anonymous
    if call == "unmap":
        return libc.munmap(*rest)
    if call == "remap":
        address, old, new = rest
        return touched(libc.mremap(address, old, new, 1, None), new)
    if call == "fork":
        pid = os.fork()
        if pid == 0:
            bytearray(2 << 20)  # from here on it has a record
            connect()
        return pid or None
    if call == "touch":
        return [touched(int(address), size) for address, size in rest[0].items()]
    os._exit(0)
def connect():
    global stream
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(sys.argv[1])
    stream = connection.makefile("rw")
    stream.write(f"{os.getpid()}\\n")
    stream.flush()
connect()
while line := stream.readline():
    answer = do(*json.loads(line))
    if answer is not None:  # a child has nobody yet who waits for one
        stream.write(f"{answer}\\n")
        stream.flush()
"""


class Worker:
    """A process, and what it has mapped: address -> size. It ends when nobody tells it what to do any more."""

    def __init__(self, connection, pieces):
        self.stream = connection.makefile("rw")
        self.pid = int(self.stream.readline())
        self.pieces = dict(pieces)

    def kill(self):
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def do(self, *call):
        self.stream.write(json.dumps(call) + "\n")
        self.stream.flush()
        return self.stream.readline().strip()


def shared_ranges(pid):
    """Of the kernel's list: (device and file, first byte, last byte) of every mapping that is shared, writable and in memory."""
    with open(f"/proc/{pid}/maps") as lines:
        for line in lines:
            begin, end, rights, offset, device, inode = re.match(r"(\w+)-(\w+) (\S+) (\w+) (\S+) (\d+)", line).groups()
            name = line.split(None, 5)[-1]
            if rights[1] == "w" and rights[3] == "s" and re.match(r"/dev/shm/sparkguard-test|/memfd:|/SYSV|/dev/zero", name):
                first = int(offset, 16)
                yield (device, inode), first, first + int(end, 16) - int(begin, 16)


def union(ranges):
    """How many bytes they are together."""
    total, last, end = 0, None, 0
    for file, first, behind in sorted(ranges):
        if file != last:
            last, end = file, 0
        total += max(0, behind - max(first, end))
        end = max(end, behind)
    return total


def pss_of(pid):
    with open(f"/proc/{pid}/smaps_rollup") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss_Shmem:"))


class Job:
    """Its processes, each of which does what it is told over a socket."""

    def __init__(self, guard, scratch, draw, stack):
        self.guard, self.stack, self.random, self.workers = guard, stack, draw, []
        self.server = stack.enter_context(contextlib.closing(socket.socket(socket.AF_UNIX)))
        self.path = f"{scratch}/socket"
        self.server.bind(self.path)
        self.server.listen()
        self.server.settimeout(60)
        self.files = [stack.enter_context(tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="sparkguard-test-")).name for _ in range(2)]
        made = subprocess.run(["ipcmk", "-M", str(SIZE)], check=True, capture_output=True, text=True)
        self.segment = made.stdout.split()[-1]
        stack.callback(subprocess.run, ["ipcrm", "-m", self.segment], check=True)
        for _ in range(2):
            self.start()
        besides = {self.mapped_of(worker) - union(shared_ranges(worker.pid)) for worker in self.workers}
        (self.private,) = besides  # what each process has mapped besides, before the first operation
        assert self.private <= 64 << 10

    def start(self):
        arguments = [self.path, *self.files, self.segment, SIZE]
        env = {"PYTHONMALLOC": "malloc", "SPARKGUARD_JOB": "job", "SPARKGUARD_WATCHDOG": "off"}
        process = self.guard.popen([PYTHON, "-S", "-c", WORKER, *arguments], env, stdout=subprocess.DEVNULL)
        self.stack.callback(process.communicate)
        self.accept({})

    def accept(self, pieces):
        worker = Worker(self.server.accept()[0], pieces)
        if not pieces:
            worker.pieces[int(worker.do("anonymous"))] = SIZE
        self.workers.append(worker)
        self.stack.callback(worker.kill)

    def mapped_of(self, worker):
        return self.guard.process(worker.pid)["domains"]["mapped"]["live_bytes"]

    def span(self):
        offset = self.random.randrange(SIZE // STEP) * STEP
        return offset, self.random.randrange(STEP, SIZE - offset + 1, STEP)

    def step(self):
        worker, choice = self.random.choice(self.workers), self.random.random()
        address = self.random.choice(sorted(worker.pieces)) if worker.pieces else None
        if choice < 0.3 or address is None:
            offset, size = self.span()
            worker.pieces[int(worker.do("map", self.random.randrange(3), offset, size))] = size
        elif choice < 0.4:
            worker.pieces[int(worker.do("attach", SIZE))] = SIZE
        elif choice < 0.5 and not IS_EMULATED:  # a second view, which qemu's mremap refuses (ENOMEM)
            size = worker.pieces[address]
            worker.pieces[int(worker.do("remap", address, 0, size))] = size
        elif choice < 0.55:  # where nothing else is in the way, or elsewhere
            size = worker.pieces.pop(address)
            worker.pieces[int(worker.do("remap", address, size, size - STEP or STEP))] = size - STEP or STEP
        elif choice < 0.6 and len(self.workers) < 6:
            worker.do("fork")
            self.accept(worker.pieces)
        elif choice < 0.64 and len(self.workers) > 2:
            self.workers.remove(worker)
            worker.do("end")
        else:
            self.unmap(worker, address)

    def unmap(self, worker, address):
        size = worker.pieces.pop(address)
        begin = self.random.randrange(size // STEP) * STEP
        end = self.random.randrange(begin + STEP, size + 1, STEP)
        assert worker.do("unmap", address + begin, end - begin) == "0"
        for piece, length in ((address, begin), (address + end, size - end)):
            if length:
                worker.pieces[piece] = length

    def check(self, where):
        report = self.guard.report()
        (job,) = report["jobs"]
        processes = {p["pid"]: p for p in job["processes"] if p["state"] == "running"}
        everything, pss, heaps = [], 0, []
        for worker in self.workers:
            worker.do("touch", worker.pieces)  # Pss is of pages that somebody has in his page tables, and a fork copies none
        for worker in self.workers:
            mine = list(shared_ranges(worker.pid))
            everything += mine
            pss += pss_of(worker.pid)
            process = processes[worker.pid]
            assert process["domains"]["mapped"]["live_bytes"] == union(mine) + self.private, f"{where}: process {worker.pid}"
            heaps.append(process["domains"]["heap"]["live_bytes"] + self.private)
        together = union(everything)
        assert abs(pss - together) <= 3 * MIB, f"{where}: the kernel's own figures"  # the library's files may be in memory, too
        private = job["live_bytes"] - together  # of the two that were started, and the little that forked ones have of their own
        assert 0 <= private <= 2 * max(heaps) + len(heaps) * MIB, f"{where}: {private / MIB:.2f} MiB"


@pytest.mark.parametrize("round_", storm.ROUNDS)
def test_shared_memory_counts_as_the_kernel_has_it(guard, tmp_path, round_):
    with contextlib.ExitStack() as stack:
        job = Job(guard, tmp_path, storm.seeded(), stack)
        for number in range(OPERATIONS):
            job.step()
            if number % 6 == 5:
                job.check(f"operation {number}")
        job.check("the end")
