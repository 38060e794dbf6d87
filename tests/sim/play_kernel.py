"""Plays the kernel of a fake machine, in a process of its own that is run before others: so its figures are never late by much.

    play_kernel.py LIBCUDA MEMINFO PID     until its standard input ends

What the process has resident of its own (RssAnon) beyond what it had at the start is taken from the fake machine, and given back when
it goes; what is shared the simulator takes itself. What is due (late frees, a pool that shrinks, drop_caches) is settled meanwhile. Prints
"ready", and at the end the most that this was, in bytes.
"""

import contextlib
import ctypes
import mmap
import os
import select
import sys
import time

library, meminfo, pid = sys.argv[1], os.fsencode(sys.argv[2]), sys.argv[3]
driver = ctypes.CDLL(library)
driver.sgsim_machine_move.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_longlong]


def resident():
    with contextlib.suppress(FileNotFoundError, ProcessLookupError, ValueError), open(f"/proc/{pid}/statm") as statm:
        size, resident, shared = map(int, statm.read().split()[:3])
        return (resident - shared) * mmap.PAGESIZE
    return 0


with contextlib.suppress(OSError):
    os.setpriority(os.PRIO_PROCESS, 0, -20)
before, taken, most = resident(), 0, 0
print("ready", flush=True)
while not select.select([sys.stdin], [], [], 0)[0]:
    now = max(0, resident() - before)
    if now != taken:
        driver.sgsim_machine_move(meminfo, b"other", now - taken)
        taken, most = now, max(most, now)
    else:
        driver.sgsim_settle(meminfo)
    time.sleep(0.0005)  # pace: between two looks
driver.sgsim_machine_move(meminfo, b"other", -taken)
print(most)
