"""What the lab's tests share: its programs, one jail at a time, and the canary that tells what others feel."""

import os
import signal
import subprocess
from pathlib import Path

import pytest
from canary import Canary
from jail import Lab, Unfit

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


@pytest.fixture
def start_canary(programs):
    """start_canary(jail or None, env=..., mib=20): a Canary, unguarded unless env says otherwise."""
    canaries = []

    def start(jail, env=None, mib=20):
        env = env or {k: v for k, v in os.environ.items() if k != "LD_PRELOAD" and not k.startswith("SPARKGUARD_")}
        canaries.append(Canary(programs / "canary", jail, env, mib))
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
