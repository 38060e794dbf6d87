"""Stream-ordered memory of the simulated driver: a prelude for programs that use pools, and the figures of a report."""

from .machine import MIB

SEGMENT = 32 * MIB  # what a pool of the simulator reserves at once

POOLS = """
def stream():
    s = c_void_p()
    ok(cuda.cuStreamCreate(byref(s), 0))
    return s
def new_pool(device=0):
    pool = c_void_p()
    ok(cuda.cuMemPoolCreate(byref(pool), byref(PoolProps(1, 0, Location(1, device)))))
    return pool
def from_pool(size, pool, s=None):
    p = c_uint64(77)
    return cuda.cuMemAllocFromPoolAsync(byref(p), c_size_t(size), pool, s), p.value
def free(p, s=None):
    ok(cuda.cuMemFreeAsync(c_uint64(p), s))
def own_pool(device=0):
    pool = c_void_p()
    ok(cuda.cuDeviceGetDefaultMemPool(byref(pool), device))
    return pool
def keep(pool, size):
    ok(cuda.cuMemPoolSetAttribute(pool, 4, byref(c_uint64(size))))
"""


def live(entry, domain="device"):
    return entry["domains"][domain]["live_bytes"]
