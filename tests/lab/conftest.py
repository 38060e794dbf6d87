"""What the lab's tests share: its programs, one jail at a time, and the canary that measures what others feel."""

import math
import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest
from jail import Lab, Unfit, until

PROGRAMS = Path(__file__).resolve().parent / "programs"
FLAGS = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-pthread"]


@pytest.fixture(scope="session")
def programs(build):
    """The folder with the lab's programs, built if they are older than their source."""
    folder = build / "tests/lab"
    folder.mkdir(parents=True, exist_ok=True)
    for source in PROGRAMS.glob("*.c"):
        program = folder / source.stem
        if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
            new = program.with_suffix(f".{os.getpid()}")
            subprocess.run([os.environ.get("CC", "cc"), *FLAGS, "-o", new, source], check=True)
            new.replace(program)
    return folder


@pytest.fixture(scope="session")
def lab():
    def stop(number, _frame):
        raise KeyboardInterrupt(f"signal {number}")

    # Told to end, pytest must still take the jail away.
    previous = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        try:
            place = Lab().__enter__()
        except Unfit as why:
            pytest.skip(str(why))
        try:
            yield place
        finally:
            place.__exit__()
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@pytest.fixture
def make_jail(lab):
    """make_jail(limit_bytes, swap_bytes=0): a Jail that is gone, with all that runs in it, when the test ends."""
    made = []

    def make(limit_bytes, swap_bytes=0):
        context = lab.jail(limit_bytes, swap_bytes)
        try:
            jail = context.__enter__()
        except Unfit as why:
            pytest.skip(str(why))
        made.append(context)
        return jail

    yield make
    for context in reversed(made):
        context.__exit__(None, None, None)


class Canary:
    """The program canary in a jail, or in none; what it said is read as it comes."""

    def __init__(self, jail, programs, env, mib=20, seconds=100):
        command = [str(word) for word in (programs / "canary", mib, seconds)]
        if jail is not None:
            self.process = jail.popen(command, env, stdin=subprocess.DEVNULL)
        else:
            pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
            self.process = subprocess.Popen(command, env=env, text=True, bufsize=1, **pipes)
        self.rounds = []  # (when it was due, how late it was), in seconds
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()
        until(lambda: len(self.rounds) >= 5 or not self.is_alive(), 30, "the canary's first rounds")
        assert self.is_alive(), f"the canary ended: {self.process.returncode}, {self.process.stderr.read()}"

    def read(self):
        for line in self.process.stdout:
            due, late = line.split()
            self.rounds.append((int(due) / 1e9, int(late) / 1e9))

    def is_alive(self):
        return self.process.poll() is None

    def late_since(self, begin):
        """How late each round due since then was; those that it still owes are as late as it is now."""
        rounds = list(self.rounds)
        now, due = time.monotonic(), rounds[-1][0] + 0.05
        late = [late for due_then, late in rounds if due_then >= begin]
        while due < now:
            late.append(now - due)
            due += 0.05
        return late

    def p99_since(self, begin):
        late = sorted(self.late_since(begin))
        return late[math.ceil(len(late) * 0.99) - 1] if late else 0.0

    def stop(self):
        self.process.kill()
        self.process.wait()


@pytest.fixture
def start_canary(programs):
    """start_canary(jail or None, env=..., mib=20): a Canary, unguarded unless env says otherwise."""
    canaries = []

    def start(jail, env=None, mib=20):
        env = env or {k: v for k, v in os.environ.items() if k != "LD_PRELOAD" and not k.startswith("SPARKGUARD_")}
        canaries.append(Canary(jail, programs, env, mib))
        return canaries[-1]

    yield start
    for canary in canaries:
        canary.stop()


@pytest.fixture
def figures(record_property, request):
    """figures(name=value, ...): what was seen, for the JUnit report, and on stdout with -rP."""

    def note(**values):
        for name, value in values.items():
            record_property(name, value)
        print(request.node.name, *(f"{name}={value}" for name, value in values.items()))

    return note
