"""What the tests against the simulated driver share: programs that find it, its own books, a fake machine."""

import contextlib
import ctypes
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from lib.output import values
from lib.target import NATIVE, ROOT
from lib.waiting import wait_until

MIB, GIB = 1 << 20, 1 << 30
SPARK = 1217 * GIB // 10 // 4096 * 4096  # MemTotal
KHO_PART = 9.7 / 121.7  # of a Spark's memory that a kernel with KHO shows as CmaFree
LIST_BYTES = 24  # that the driver of a GB10 keeps for each 4 KiB of device memory (nv.c, mem_desc.c)
OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY and cudaErrorMemoryAllocation alike

# A line of functions.def that says how the function allocates: symbol, base name, version, stream, domain.
ALLOCATES = re.compile(r"^SGSIM_ALLOCATES\((\w+), (\w+), \d+, \w+, (\w+),", re.MULTILINE)


def allocating():
    """(symbol, base name, domain) of each driver function whose tests grow from functions.def."""
    return ALLOCATES.findall((ROOT / "tests/sim/driver/functions.def").read_text())


# The driver's calls whose refusal test_refusal.py shows: the word in the report (no version suffix), the domain.
REFUSED_CALLS = {symbol: (base, domain) for symbol, base, domain in allocating()} | {"cuMemCreate_host": ("cuMemCreate", "pinned")}

# A script's first lines: the driver by ctypes (so through dlsym on a handle of its own), as exact names.
PRELUDE = """
import ctypes, sys
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_ulonglong, c_void_p
MIB, GIB = 1 << 20, 1 << 30
cuda = ctypes.CDLL("libcuda.so.1")
class Location(ctypes.Structure):
    _fields_ = [("type", c_int), ("id", c_int)]
class AllocationProp(ctypes.Structure):
    _fields_ = [("type", c_int), ("handles", c_int), ("location", Location), ("security", c_void_p), ("flags", c_uint64 * 4)]
class PoolProps(ctypes.Structure):
    _fields_ = [("type", c_int), ("handles", c_int), ("location", Location), ("security", c_void_p), ("max", c_size_t), ("usage", ctypes.c_ushort), ("reserved", ctypes.c_char * 54)]
class Array(ctypes.Structure):
    _fields_ = [("width", c_size_t), ("height", c_size_t), ("format", c_int), ("channels", c_uint)]
class Array3D(ctypes.Structure):
    _fields_ = [("width", c_size_t), ("height", c_size_t), ("depth", c_size_t), ("format", c_int), ("channels", c_uint), ("flags", c_uint)]
ON_DEVICE, ON_HOST = AllocationProp(1, 0, Location(1, 0)), AllocationProp(1, 0, Location(2, 0))
cuda.sgsim_live_bytes.restype = cuda.sgsim_live_bytes.restype = c_size_t
cuda.sgsim_calls.restype = ctypes.c_ulong
cuda.sgsim_touch.argtypes = [c_ulonglong, c_size_t]
def ok(result):
    assert result == 0, f"CUDA error {result}"
def call(name, *arguments):
    return getattr(cuda, name)(*arguments)
def live(kind="total"):
    return cuda.sgsim_live_bytes(kind.encode())
def calls(symbol):
    return cuda.sgsim_calls(symbol.encode())
def fail(symbol, nth=1, code=0):
    cuda.sgsim_fail(symbol.encode(), nth, code)
def start(device=0):
    context = c_void_p()
    ok(cuda.cuInit(0))
    ok(cuda.cuDevicePrimaryCtxRetain(byref(context), device))
    ok(cuda.cuCtxSetCurrent(context))
def take(name, size, *more):
    out = c_uint64(77)
    result = call(name, byref(out), c_size_t(size), *more)
    return result, out.value
def give(address):
    ok(cuda.cuMemFree_v2(c_uint64(address)))
def info():
    free, total = c_size_t(0), c_size_t(0)
    ok(cuda.cuMemGetInfo_v2(byref(free), byref(total)))
    return free.value, total.value
def say(**pairs):
    for key, value in pairs.items():
        print(key, value, flush=True)
def quiet(**pairs):
    '''Prints, and waits until whoever reads has looked at us.'''
    say(**pairs)
    print("quiet", flush=True)
    sys.stdin.readline()
"""


def lists(size):
    """What a GB10's driver takes of the machine beside so much device memory."""
    return size // 4096 * LIST_BYTES // 1024 * 1024


class Tenant:
    """A guarded script that runs beside the test, from one quiet() to the next."""

    def __init__(self, sim, text, variables, prefix=()):
        env = sim.env | {"SGSIM_LEDGER": None} | variables
        command = [*prefix, sys.executable, "-S", "-c", PRELUDE + text]
        self.process = sim.guard.popen(command, env=env, stdin=subprocess.PIPE, start_new_session=True)
        self.pid = self.process.pid

    def quiet(self):
        """What it has said up to its next quiet point. It sleeps there: who is halted in the midst of a request is not quiet."""
        said = ""
        for line in self.process.stdout:
            if line == "quiet\n":
                wait_until(lambda: Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] == "S", "it waits for its next line")
                return values(said)
            said += line
        raise AssertionError(f"ended with {self.process.wait(60)} instead: {self.process.stderr.read()}")

    def go(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def finish(self, timeout=60):
        """Lets it run to its end, which must be for example what it has said since."""
        stdout, stderr = self.process.communicate("\n", timeout=timeout)
        assert self.process.returncode == 0, stderr
        answer = values(stdout)
        answer.stderr = stderr
        return answer

    def kill(self):
        self.process.kill()
        self.process.wait()


class Watch(threading.Thread):
    """Plays the kernel while guarded programs wait: pays back what is due, and notes the least MemAvailable."""

    def __init__(self, sim):
        super().__init__(daemon=True)
        self.sim = sim
        self.least_available = sim.available_bytes()
        self.is_over = threading.Event()

    def run(self):
        while not self.is_over.wait(0.001):  # poll: what is available
            self.sim.settle()
            self.least_available = min(self.least_available, self.sim.available_bytes())


class Simulated:
    """Programs under the guard that find the simulated driver; `root` is a fake machine once `machine` made it."""

    # Sizes to the byte, where a driver has pools: the guard's bound of them would count the lists of pages, which no pool keeps.
    EXACT = {"SGSIM_CHUNK": 0, "SGSIM_LISTS": 0}

    def __init__(self, guard, scratch):
        self.guard = guard
        self.build = guard.build
        self.scratch = scratch
        self.ledger = scratch / "ledger.json"
        self.env = {"SGSIM_BACKING": "none", "LD_LIBRARY_PATH": self.build / "sim", "SGSIM_LEDGER": self.ledger}

    def program(self, name):
        path = self.build / "tests" / "programs" / name
        assert path.exists(), f"{path} is missing; run make programs"
        return path

    def run(self, command, **variables):
        return self.guard.run(command, env=self.env | variables)

    def unguarded(self, command, **variables):
        env = {"LD_PRELOAD": None} | self.env | variables
        return self.guard.run(command, env=env)

    def values(self, command, **variables):
        """Runs a program that must succeed: what it printed; `.process` is its entry in the report, or None."""
        done = self.run(command, **variables)
        assert done.returncode == 0, done.stderr
        answer = values(done.stdout)
        answer.stderr = done.stderr
        answer.process = next(iter(self.guard.processes(done.pid)), None)
        return answer

    def script(self, text, **variables):
        return self.values([sys.executable, "-S", "-c", PRELUDE + text], **variables)

    def quiet_points(self, command, **variables):
        return self.guard.quiet_points(command, self.env | variables)

    def script_points(self, text, **variables):
        return self.quiet_points([sys.executable, "-S", "-c", PRELUDE + text], **variables)

    def books(self):
        """The simulator's own ledger of a program that has ended."""
        return json.loads(self.ledger.read_text())

    def machine(self, total_bytes=SPARK, available_bytes=None, cached_bytes=0, swap_bytes=0, cma_free_bytes=0):
        """Variables for a fake machine whose /proc/meminfo the simulator keeps in step; the cached part is not free, what is not
        available is others' anonymous memory, but for a little that no line explains. A kernel with KHO shows CmaFree (KHO_PART of MemTotal) and no CmaTotal."""
        available = total_bytes if available_bytes is None else available_bytes
        root = self.scratch / "root"
        (root / "proc" / "self").mkdir(parents=True)
        (root / "sys" / "fs" / "cgroup").mkdir(parents=True)
        meminfo = root / "proc" / "meminfo"
        lines = {"MemTotal": total_bytes, "MemFree": available - cached_bytes, "MemAvailable": available}
        lines |= {"Buffers": 0, "Cached": cached_bytes, "Mlocked": 0, "SwapTotal": swap_bytes, "SwapFree": swap_bytes}
        lines |= {"AnonPages": (total_bytes - available) * 63 // 64, "Shmem": 0, "CmaTotal": 0, "CmaFree": cma_free_bytes}
        meminfo.write_text("".join(f"{name + ':':16}{size // 1024:>12} kB\n" for name, size in lines.items()))
        (root / "proc" / "self" / "cgroup").write_text("0::/\n")
        self.root, self.meminfo = root, meminfo
        self.driver_parameters("RmMsg: \"\"")
        return {"SPARKGUARD_SYSTEM_ROOT": root, "SGSIM_MEMINFO": meminfo}

    def driver_parameters(self, *lines):
        """What the kernel module of the fake machine says about its options."""
        parameters = self.root / "proc" / "driver" / "nvidia" / "params"
        parameters.parent.mkdir(parents=True, exist_ok=True)
        parameters.write_text("".join(f"{line}\n" for line in ("ModifyDeviceFiles: 1", *lines)))

    def keeps_freed_pages(self):
        """Makes the fake machine's driver one of 590 or later, which keeps what is freed: the simulator reads it there, too. The variables
        for that."""
        self.driver_parameters("EnableSystemMemoryPools: 529", "RmMsg: \"\"")
        return self.EXACT

    def cgroup(self, limit_bytes, current_bytes=0):
        """Puts the process of a fake machine into a memory cgroup."""
        group = self.root / "sys" / "fs" / "cgroup" / "job"
        group.mkdir()
        (group / "memory.max").write_text(f"{limit_bytes}\n")
        (group / "memory.high").write_text("max\n")
        (group / "memory.current").write_text(f"{current_bytes}\n")
        (group / "memory.stat").write_text("active_file 0\ninactive_file 0\nslab_reclaimable 0\n")
        (self.root / "proc" / "self" / "cgroup").write_text("0::/job\n")

    def available_bytes(self):
        for line in (self.root / "proc" / "meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("no MemAvailable")

    @property
    def driver(self):
        """The simulated driver in this process, for what it says about fake machines; makes no driver call."""
        library = ctypes.CDLL(str(NATIVE / "sim" / "libcuda.so.1"))
        library.sgsim_machine_bytes.restype = ctypes.c_longlong
        library.sgsim_machine_bytes.argtypes = [ctypes.c_char_p, ctypes.c_char_p]
        library.sgsim_machine_move.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_longlong]
        library.sgsim_settle.restype = ctypes.c_long
        library.sgsim_settle.argtypes = [ctypes.c_char_p]
        return library

    def settle(self):
        """Gives the fake machine back what is due; answers how many of the living hold something."""
        return self.driver.sgsim_settle(os.fsencode(self.meminfo))

    def drop_caches(self):
        """The file of the fake machine by which root empties the driver's pool: it is there, and nothing is written yet."""
        path = self.root / "proc/sys/vm/drop_caches"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
        return path

    def machine_bytes(self, what):
        return self.driver.sgsim_machine_bytes(os.fsencode(self.meminfo), what.encode())

    def machine_move(self, what, size):
        """Of the fake machine: "other" bytes are taken, "cached" bytes become page cache; negative: the way back."""
        self.driver.sgsim_machine_move(os.fsencode(self.meminfo), what.encode(), size)

    @contextlib.contextmanager
    def tenant(self, text, prefix=(), **variables):
        tenant = Tenant(self, text, variables, prefix)
        try:
            yield tenant
        finally:
            tenant.kill()
            tenant.process.communicate()

    @contextlib.contextmanager
    def watch(self):
        """Watches the fake machine; afterwards `least_available` is also what no sampling would have seen."""
        watch = Watch(self)
        watch.start()
        try:
            yield watch
        finally:
            watch.is_over.set()
            watch.join()
            watch.least_available = min(watch.least_available, self.machine_bytes("least_available"))

    def compile(self, name, source, *flags):
        """A C program or library made from `source` for one test."""
        path = self.scratch / name
        compiler = os.environ.get("CC", "cc").split()
        command = [*compiler, "-D_GNU_SOURCE", "-o", path, "-x", "c", "-", "-x", "none", *flags]
        done = subprocess.run(command, input=source, text=True, capture_output=True)
        assert done.returncode == 0, done.stderr[:2000]
        return path


@pytest.fixture
def sim(guard, tmp_path):
    return Simulated(guard, tmp_path)
