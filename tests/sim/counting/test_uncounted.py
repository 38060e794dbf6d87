"""Device memory that the library has no memory left to remember is at least reported, as an internal fault in the report.

build/fault/libsparkguard.so fails one of the library's own mmap calls in each run. The simulator's ledger says what is held.
"""

import struct
import sys

from conftest import MIB, PRELUDE
from lib.target import MACHINE

MMAP = {"x86_64": 9, "aarch64": 222}[MACHINE]
SIZE = 64 * MIB
CREATE = f"""
start()
handle = c_uint64()
ok(cuda.cuMemCreate(byref(handle), c_size_t({SIZE}), byref(ON_DEVICE), c_ulonglong(0)))
assert live("device") == {SIZE}
"""



# Each memory is held by a mapping alone. More of them than fit what is taken at once.
COUNT, PART = 3000, 2 * MIB
HELD = f"""
start()
space = c_uint64()
ok(cuda.cuMemAddressReserve(byref(space), c_size_t({COUNT * PART}), c_size_t(0), c_uint64(0), c_uint64(0)))
for i in range({COUNT}):
    handle = c_uint64()
    ok(cuda.cuMemCreate(byref(handle), c_size_t({PART}), byref(ON_DEVICE), c_ulonglong(0)))
    ok(cuda.cuMemMap(c_uint64(space.value + i * {PART}), c_size_t({PART}), c_size_t(0), handle, c_ulonglong(0)))
    ok(cuda.cuMemRelease(handle))
assert live("device") == {COUNT * PART}
"""


def run(sim, text=CREATE, **variables):
    done = sim.run([sys.executable, "-S", "-c", PRELUDE + text], **variables)
    assert done.returncode == 0, done.stderr
    return done


def faults_of_uncounted(sim, size, text=CREATE):
    """Fails each mmap call in a run of its own: the faults that the report tells where it lacks a part of the memory."""
    sim.guard.library = sim.guard.build / "fault" / "libsparkguard.so"
    log, nth, reported = sim.scratch / "log", 0, []
    while nth == 0 or struct.unpack_from("=QQ", log.read_bytes())[1] == 1:  # until there is no such call
        nth += 1
        log.unlink(missing_ok=True)
        done = run(sim, text, SG_FAULT=f"{MMAP}@{nth}", SG_FAULT_LOG=log)
        for process in sim.guard.processes(done.pid):
            if process["domains"]["device"]["live_bytes"] < size:
                reported.append(process["internal_faults"])
    return reported


def test_memory_of_a_handle_that_cannot_be_remembered_is_told_as_a_fault(sim):
    reported = faults_of_uncounted(sim, SIZE)
    assert reported and min(reported) > 0


def test_memory_whose_last_use_cannot_be_remembered_is_told_as_a_fault(sim):
    """It is held all the same: whatever the report lacks of it, a fault is counted."""
    reported = faults_of_uncounted(sim, COUNT * PART, HELD)
    assert reported and min(reported) > 0
