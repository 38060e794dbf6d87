"""Storms: random operations of several guarded programs, after each of which the guard's figures are compared with somebody else's count.

    @pytest.mark.parametrize("round_", storm.ROUNDS)
    def test_...(place, round_):
        draw = storm.seeded()           # prints its seed, which pytest shows where the test fails
    STORM_SEED=1234 STORM_ROUNDS=1 QUALIFY=long tests/run FILE      the same again

A storm of `make test` takes a few seconds. `make qualify` plays 200 of each kind, which takes an hour; STORM_ROUNDS is another number.
"""

import os
import random
import time

from .machine import PLAYER
from .target import IS_LONG, IS_SLOW

ROUNDS = range(int(os.environ.get("STORM_ROUNDS", "200" if IS_LONG and not IS_SLOW else "1")))
STEPS = 30

# A program that does what each line says, and then says that it is ready.
WORKER = (
    PLAYER
    + """
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
def mapped(size, flags, file=-1, offset=0):
    address = libc.mmap(None, size, 3, flags, file, offset)
    address = None if address == ctypes.c_void_p(-1).value else address
    say(address or "ENOMEM")
def obey():
    say("ready")
    for line in sys.stdin:
        exec(line, globals())
        say("ready")
"""
)


def seed():
    number = int(os.environ.get("STORM_SEED") or time.time_ns() % 10**9)
    print(f"STORM_SEED={number}")
    return number


def seeded():
    return random.Random(seed())


def tell(tenant, line):
    """What the program says to it; numbers as int."""
    return tenant.go(line + "\n").ready()


def look(tenants):
    """Each looks at what has come of its mappings, as its watchdog would: shared memory is only known to who maps it."""
    time.sleep(0.006)  # holds: for 5 ms a request like one that was refused is refused without a look (preload/core/admit/repeat.h)
    for tenant in tenants:
        tell(tenant, "libc.malloc(1 << 45)")


def unmade_bytes(pid):
    """What the process has mapped writable and private, and the kernel has made no page of."""
    with open(f"/proc/{pid}/status") as status:
        kib = {name: int(text.split()[0]) for name, text in (line.split(":", 1) for line in status) if text.endswith("kB\n")}
    return max(0, kib["VmData"] + kib["VmStk"] - kib["RssAnon"] - kib["VmSwap"]) * 1024
