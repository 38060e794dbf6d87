"""A machine that is a tree of files (SPARKGUARD_SYSTEM_ROOT), guarded programs on it, and a memory cgroup of the real one."""

import contextlib
import ctypes
import errno
import os
import signal
import subprocess
import sys

import pytest

from .ledger import SHARING, Ledger
from .target import IS_EMULATED

MIB = 1 << 20
GIB = 1 << 30
NEAR = 8 * MIB  # what a small program holds and is promised besides, what it maps and never touches, and the credit of one thread
LEFT = 8 * GIB  # of 10 GiB when 2 are kept
KEEP = {"SPARKGUARD_RESERVE": "2G"}
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

# What comes before a program of Python whose children say that they are ready, for which their parent waits.
CHILDREN = """
ready_pipe = os.pipe()
def tell():
    os.write(ready_pipe[1], b".")
def wait_for(children):
    os.close(ready_pipe[1])  # nothing is read when all have ended
    for _ in range(children):
        os.read(ready_pipe[0], 1)
"""


def has_cachestat():
    """Whether the kernel (Linux 6.5) tells where a file is allocated."""
    ctypes.CDLL(None, use_errno=True).syscall(451, -1, None, None, 0)
    return ctypes.get_errno() not in (errno.ENOSYS, errno.EPERM)


class Machine:
    """A tree for SPARKGUARD_SYSTEM_ROOT."""

    def __init__(self, root, total=16 * GIB, available=10 * GIB, cgroup=None):
        self.root = root
        self.write("proc/meminfo", meminfo(total, available))
        if cgroup is not None:
            self.write("proc/self/cgroup", cgroup)

    def write(self, path, text):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(str(text) + ("" if str(text).endswith("\n") else "\n"))
        return self

    def v2(self, path, maximum="max", high="max", current=0, **stat):
        folder = "sys/fs/cgroup" + path
        self.write(f"{folder}/memory.max", maximum).write(f"{folder}/memory.high", high)
        self.write(f"{folder}/memory.current", current)
        return self.stat(folder, stat)

    def v1(self, path, limit=9223372036854771712, usage=0, **stat):
        folder = "sys/fs/cgroup/memory" + path
        self.write(f"{folder}/memory.limit_in_bytes", limit).write(f"{folder}/memory.usage_in_bytes", usage)
        return self.stat(folder, stat)

    def stat(self, folder, fields):
        lines = [f"{key} {value}\n" for key, value in fields.items()]
        return self.write(f"{folder}/memory.stat", "".join(lines) or "pgfault 0")


def meminfo(total, available):
    return (
        f"MemTotal:       {total // 1024:15d} kB\nMemFree:        {available // 1024:15d} kB\n"
        f"MemAvailable:{available // 1024:15d} kB\nBuffers:        {0:15d} kB\nSwapTotal:      {8 << 20:15d} kB\n"
        f"SwapFree:       {8 << 20:15d} kB\n"
    )


def take(guard, machine, *commands, env=None):
    """The answers of admit_take; numbers as int."""
    variables = {**({"SPARKGUARD_SYSTEM_ROOT": machine.root} if machine else {}), **(env or {})}
    words = " ".join(commands).split()
    done = guard.run([guard.build / "tests/programs/admit_take", *words], env=variables)
    assert done.returncode == 0, f"{done.returncode}: {done.stdout}{done.stderr}"
    take.done = done
    return [int(word) if word.isdigit() else word for word in done.stdout.splitlines()]


def in_jail(guard, jail, *commands, env=None):
    """The shell goes in first, unguarded, and becomes the program."""
    environment = guard.environment(env)
    library = environment.pop("LD_PRELOAD")
    script = f'echo $$ > {jail}/cgroup.procs && LD_PRELOAD={library} exec "$@"'
    command = ["/bin/sh", "-c", script, "sh", str(guard.build / "tests/programs/admit_take"), *commands]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)


def slept(pid):
    """How often the main thread of a process has slept: exact at any instant, and no more of it on a busy machine."""
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("voluntary_ctxt_switches"))


class Tenant:
    """A guarded program that says "ready", and goes on when it gets a line."""

    def __init__(self, guard, command, env, **options):
        options = {"stdin": subprocess.PIPE, "start_new_session": True, **options}
        self.process = guard.popen(command, env=env, **options)
        self.pid = self.process.pid

    def ready(self):
        """What it has said since it was last ready; numbers as int."""
        said = []
        for line in self.process.stdout:
            if line == "ready\n":
                return said
            said.append(int(line) if line.strip().isdigit() else line.strip())
        raise AssertionError(f"it has ended: {said}, {self.process.wait()}, {self.process.stderr.read()}")

    def go(self, line="\n"):
        self.process.stdin.write(line)
        self.process.stdin.flush()
        return self

    def end(self):
        """What it has said up to its end, which was for example."""
        stdout, stderr = self.process.communicate("\n", timeout=60)
        assert self.process.returncode == 0, f"{self.process.returncode}: {stdout}{stderr}"
        return [int(word) if word.isdigit() else word for word in stdout.splitlines() if word != "ready"]

    def kill(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.communicate()


# The first lines of a Python program that does the same as admit_take, and what that cannot.
PLAYER = """
import ctypes, os, subprocess, sys, time
MIB, GIB = 1 << 20, 1 << 30
libc = ctypes.CDLL(None, use_errno=True)
libc.malloc.restype = libc.mmap.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
def say(word):
    os.write(1, f"{word}\\n".encode())
def ready():
    say("ready")
    os.read(0, 1)
def malloc(size):
    address = libc.malloc(size)
    say("ok" if address else "ENOMEM")
    return address
"""


class Place:
    """A fake machine and who runs there."""

    def __init__(self, guard, scratch, stack):
        self.guard, self.stack = guard, stack
        self.machine = Machine(scratch / "machine")
        self.env = {"SPARKGUARD_SYSTEM_ROOT": self.machine.root, "SPARKGUARD_JOB": "job", **KEEP}
        self.admit_take = guard.build / "tests/programs/admit_take"
        self.ledger = stack.enter_context(Ledger(guard.directory))
        self.hidden = {}  # starts of processes, by their numbers

    def hide_growth(self):
        """Of a quiet owner the kernel tells what its emulator has taken, too: there its promises count as its entry shows them."""
        if not IS_EMULATED:
            return
        with contextlib.suppress(OSError, ValueError), Ledger(self.guard.directory) as ledger:  # or there is none
            for entry in ledger.taken():
                start = ledger.get("start_ticks", entry)
                if start != 0:
                    self.hidden[ledger.get("pid", entry)] = start
                ledger.put("start_ticks", 0, entry)

    def report(self, *arguments):
        """The report, which finds the entry of a record by the start of its process."""
        for entry in self.ledger.taken() if self.hidden else ():
            pid = self.ledger.get("pid", entry)
            if pid in self.hidden:
                self.ledger.put("start_ticks", self.hidden[pid], entry)
        return self.guard.report(*arguments)

    def tenant(self, command, env=None, **options):
        self.hide_growth()
        tenant = Tenant(self.guard, command, {**self.env, **(env or {})}, **options)
        self.stack.callback(tenant.process.communicate)
        self.stack.callback(tenant.kill)
        return tenant

    def holder(self, commands, env=None, prefix=(), **options):
        """It has done what it was told, and waits."""
        tenant = self.tenant([*prefix, self.admit_take, *commands.split(), "wait"], env, **options)
        tenant.answers = tenant.ready()
        return tenant

    def player(self, text, env=None, **options):
        return self.tenant([sys.executable, "-S", "-c", PLAYER + text], env, **options)

    def take(self, commands, env=None):
        self.hide_growth()
        return take(self.guard, None, commands, env={**self.env, **(env or {})})

    def assert_left(self, expected, env=None, above=0):
        """Never more than expected and `above`, and hardly less."""
        (largest,) = self.take("largest", env)
        assert expected - NEAR <= largest <= expected + above, f"{largest / MIB:.2f} MiB, expected {expected / MIB:.2f}"

    def flags(self, pid):
        (segment,) = self.guard.directory.glob(f"{pid}-*.segment")
        return int.from_bytes(segment.read_bytes()[84:88], "little")

    def events(self, pid):
        return [event["what"] for event in self.guard.process(pid)["events"]]

    def assert_alone(self, pid, why=""):
        assert any(what.startswith("not sharing: ") and why in what for what in self.events(pid)), self.events(pid)
        assert self.flags(pid) & SHARING == 0


def set_available(place, bytes):
    """One write of constant length into the same file, as a fake /proc must be changed."""
    file = os.open(place.machine.root / "proc/meminfo", os.O_WRONLY)
    os.pwrite(file, meminfo(16 * GIB, bytes).encode(), 0)
    os.close(file)


def group(place, scratch, name, lines):
    """What a process of the same machine sees that is in another cgroup: variables for it."""
    root = scratch / f"seen-{name}"
    root.mkdir()
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(meminfo(16 * GIB, 10 * GIB))
    (root / "proc/self/cgroup").write_text(lines)
    (root / "sys").symlink_to(place.machine.root / "sys")
    return {"SPARKGUARD_SYSTEM_ROOT": root, "SPARKGUARD_RESERVE": "none"}
