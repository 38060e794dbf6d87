"""What the tests of contexts and of calls beside each other share."""

from conftest import MIB

# Driver functions that create a context.
CONTEXT_CALLS = ["cuCtxCreate", "cuCtxCreate_v2", "cuCtxCreate_v3", "cuCtxCreate_v4"]
CONTEXT_CALLS += ["cuGLCtxCreate", "cuGLCtxCreate_v2", "cuVDPAUCtxCreate", "cuVDPAUCtxCreate_v2"]
CONTEXT_CALLS += ["cuDevicePrimaryCtxRetain", "cuGreenCtxCreate"]

# Some of everything in the current context, of 1 MiB where not said otherwise; and what outlives a context.
FILL = """
import mmap
memory = mmap.mmap(-1, 64 * MIB)
base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
registered = 0
def fill():
    global registered
    taken = [take("cuMemAlloc_v2", MIB)[1], take("cuMemAllocManaged", MIB, c_uint(1))[1], take("cuMemHostAlloc", MIB, c_uint(0))[1]]
    array = c_uint64()
    ok(cuda.cuArrayCreate_v2(byref(array), byref(Array(1 << 20, 1, 1, 1))))
    ok(cuda.cuMipmappedArrayCreate(byref(array), byref(Array3D(1 << 20, 0, 0, 1, 1, 0)), c_uint(1)))
    ok(cuda.cuMemHostRegister_v2(c_void_p(base + registered * MIB), c_size_t(MIB), c_uint(0)))
    registered += 1
    return taken
def outlive():
    h = c_uint64()
    ok(cuda.cuMemCreate(byref(h), c_size_t(2 * MIB), byref(ON_DEVICE), c_ulonglong(0)))
    return take("cuMemAllocAsync", MIB, None)[1]
def make(name="cuCtxCreate_v2", device=0):
    context = c_void_p()
    before = {"cuCtxCreate_v3": (None, 0), "cuCtxCreate_v4": (None,)}.get(name, ())
    ok(call(name, byref(context), *before, 0, device))
    return context
def current(context):
    ok(cuda.cuCtxSetCurrent(context))
def point(**pairs):
    quiet(device=live("device") + live("array"), pinned=live("pinned"), managed=live("managed"), registered=live("registered"), **pairs)
ok(cuda.cuInit(0))
"""


def figures(said, entry):
    theirs = (said.device, said.pinned, said.managed, said.registered)
    domains = entry["domains"]
    assert (*(domains[d]["live_bytes"] for d in ("device", "pinned", "managed")), entry["registered_bytes"]) == theirs
    assert entry["unmatched_frees"] == 0
    return [size // MIB for size in theirs]

# While the driver is in the nth call of `symbol` from here, before it or behind what it does, another thread does `work`. If that waits
# for the first, the first goes on all the same, and has_waited() tells.
BESIDE = """
import threading
others, waiting, kept = [], [], []
def beside(when, symbol, work, nth=1):
    def begin():
        others.append(threading.Thread(target=work))
        others[-1].start()
        others[-1].join(50)  # only ends who waits for the first
        waiting.append(others[-1].is_alive())
    kept.append(ctypes.CFUNCTYPE(None)(begin))
    getattr(cuda, "sgsim_" + when)(symbol.encode(), nth, kept[-1])
def has_waited():
    while others:
        others.pop().join()
    return any(waiting)
"""
