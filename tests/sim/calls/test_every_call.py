"""Every hooked function of the driver in turn: called by the driver itself inside another, and made to fail."""

import re
from pathlib import Path

import pytest
from conftest import allocating

HOOKS = Path(__file__).resolve().parents[3] / "preload" / "guard" / "hooks" / "hooks.def"
ENTRY_POINTS = {"cuGetProcAddress", "cuGetProcAddress_v2"}  # take nothing: test_entry_points.py

# round() calls each hooked function at least once, takes what it is given back, and keeps nothing, whatever fails. Of what
# functions.def says to allocate it calls by its arguments there.
ALLOCATING = sorted(symbol for symbol, _, _ in allocating())
ROUND = f"""
ALLOCATING = {ALLOCATING!r}
""" + """
import mmap
memory = mmap.mmap(-1, MIB)
base = c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(memory)))
size = c_size_t(MIB)
class Alloc(ctypes.Structure):
    _fields_ = [("props", PoolProps), ("access", c_void_p), ("count", c_size_t), ("size", c_size_t), ("dptr", c_uint64)]
class Params(ctypes.Structure):
    _fields_ = [("flags", c_uint64), ("stream", c_void_p), ("node", c_void_p), ("result", c_int)]
def got(name, *arguments):
    return call(name, *arguments) == 0
def until(name, work):
    results = []
    while not results or results[-1] != 0:
        results.append(work())
        if results[-1] != 0:
            look(name)
        assert len(results) < 4, (name, results)
def must(name, *arguments):
    until(name, lambda: call(name, *arguments))
def look(name):
    quiet(group=name, device=live("device") + live("array"), pinned=live("pinned"), managed=live("managed"), registered=live("registered"))
library = ctypes.CDLL("liballocating.so")
def allocations():
    for name in ALLOCATING:
        out = (c_uint64 * 4)()
        if library.allocating_take(name.encode(), out, c_size_t(2 * MIB)) == 0:
            until(name, lambda: library.allocating_free(name.encode(), out))
def registered():
    for name in "cuMemHostRegister", "cuMemHostRegister_v2":
        if got(name, base, size, c_uint(0)):
            must("cuMemHostUnregister", base)
def arrays():
    out = c_void_p()
    if got("cuMipmappedArrayCreate", byref(out), byref(Array3D(64, 64, 0, 1, 1, 0)), c_uint(2)):
        must("cuMipmappedArrayDestroy", out)
def pools():
    pool, event, here, keep = c_void_p(), c_void_p(), Location(1, 0), c_uint64(0)
    got("cuMemGetDefaultMemPool", byref(pool), byref(here), 1)
    got("cuMemGetMemPool", byref(pool), byref(here), 1)
    is_made = got("cuMemPoolCreate", byref(pool), byref(PoolProps(1, 0, Location(1, 0))))
    for kind in "", "_ptsz":
        p = c_uint64()
        if got("cuMemAllocAsync" + kind, byref(p), size, None):
            must("cuMemFreeAsync" + kind, p, None)
        if is_made and got("cuMemAllocFromPoolAsync" + kind, byref(p), size, pool, None):
            must("cuMemFreeAsync" + kind, p, None)
        got("cuStreamSynchronize" + kind, None)
    if is_made:
        got("cuMemPoolSetAttribute", pool, 4, byref(keep))
        got("cuMemPoolTrimTo", pool, c_size_t(0))
        must("cuMemPoolDestroy", pool)
    ok(cuda.cuEventCreate(byref(event), c_uint(0)))
    got("cuEventSynchronize", event)
    ok(cuda.cuEventDestroy_v2(event))
    got("cuCtxSynchronize")
    got("cuCtxSynchronize_v2", None)
def handles():
    h, again, imported, a, shareable = c_uint64(), c_uint64(), c_uint64(), c_uint64(), (ctypes.c_char * 64)()
    two = c_size_t(2 * MIB)
    if not got("cuMemCreate", byref(h), two, byref(ON_DEVICE), c_ulonglong(0)):
        return
    if got("cuMemExportToShareableHandle", shareable, h, 8, c_ulonglong(0)) and got("cuMemImportFromShareableHandle", byref(imported), shareable, 8):
        must("cuMemRelease", imported)
    ok(cuda.cuMemAddressReserve(byref(a), two, c_size_t(0), c_uint64(0), c_ulonglong(0)))
    is_mapped = got("cuMemMap", a, two, c_size_t(0), h, c_ulonglong(0))
    must("cuMemRelease", h)
    if is_mapped and got("cuMemRetainAllocationHandle", byref(again), c_void_p(a.value)):
        must("cuMemRelease", again)
    if is_mapped:
        must("cuMemUnmap", a, two)
    ok(cuda.cuMemAddressFree(a, two))
def graphs():
    g, node, p = c_void_p(), c_void_p(), Alloc(PoolProps(1, 0, Location(1, 0)), None, 0, MIB, 0)
    ok(cuda.cuGraphCreate(byref(g), c_uint(0)))
    ok(cuda.cuGraphAddMemAllocNode(byref(node), g, None, c_size_t(0), byref(p)))
    ok(cuda.cuGraphAddMemFreeNode(byref(node), g, byref(node), c_size_t(1), c_uint64(p.dptr)))
    for name, *more in (
        ("cuGraphInstantiate", None, None, c_size_t(0)), ("cuGraphInstantiate_v2", None, None, c_size_t(0)),
        ("cuGraphInstantiateWithFlags", c_ulonglong(0)), ("cuGraphInstantiateWithParams", byref(Params(2))),
        ("cuGraphInstantiateWithParams_ptsz", byref(Params(0))),
    ):
        e = c_void_p()
        if got(name, byref(e), g, *more):
            for run in "cuGraphUpload", "cuGraphUpload_ptsz", "cuGraphLaunch", "cuGraphLaunch_ptsz":
                got(run, e, None)
            must("cuGraphExecDestroy", e)
    ok(cuda.cuGraphDestroy(g))
    must("cuDeviceGraphMemTrim", 0)
def contexts():
    makers = {"cuCtxCreate": (), "cuCtxCreate_v2": (), "cuCtxCreate_v3": (None, 0), "cuCtxCreate_v4": (None,)}
    makers |= {name: () for name in ("cuGLCtxCreate", "cuGLCtxCreate_v2", "cuVDPAUCtxCreate", "cuVDPAUCtxCreate_v2")}
    enders = ["cuCtxDestroy", "cuCtxDestroy_v2", "cuCtxDetach"] + ["cuCtxDestroy_v2"] * 5
    for (name, before), end in zip(makers.items(), enders):
        context, same = c_void_p(), c_void_p()
        if not got(name, byref(context), *before, 0, 0):
            continue
        out = c_uint64()
        got("cuMemAlloc_v2", byref(out), size)
        if end == "cuCtxDetach" and got("cuCtxAttach", byref(same), c_uint(0)):
            must("cuCtxDetach", same)
        must(end, context)
    context = c_void_p()
    resource, desc = (ctypes.c_ubyte * 512)(), c_void_p()
    ok(cuda.cuDeviceGetDevResource(0, resource, 1))
    ok(cuda.cuDevResourceGenerateDesc(byref(desc), resource, 1))
    if got("cuGreenCtxCreate", byref(context), desc, 0, 1):
        must("cuGreenCtxDestroy", context)
    for name in "cuDevicePrimaryCtxRelease", "cuDevicePrimaryCtxRelease_v2":
        if got("cuDevicePrimaryCtxRetain", byref(context), 0):
            must(name, 0)
    for name in "cuDevicePrimaryCtxReset", "cuDevicePrimaryCtxReset_v2":
        out = c_uint64()
        got("cuMemAlloc_v2", byref(out), size)
        must(name, 0)
        must("cuDevicePrimaryCtxRetain", byref(context), 0) # active again
        must("cuDevicePrimaryCtxRelease_v2", 0)
def answers():
    got("cuCtxSetLimit", 2, size)
    must("cuCtxSetLimit", 2, c_size_t(0))
    narrow, wide = (c_uint(), c_uint()), (c_size_t(), c_size_t())
    got("cuMemGetInfo", byref(narrow[0]), byref(narrow[1]))
    got("cuMemGetInfo_v2", byref(wide[0]), byref(wide[1]))
    got("cuDeviceTotalMem", byref(narrow[0]), 0)
    got("cuDeviceTotalMem_v2", byref(wide[0]), 0)
def round():
    for part in allocations, registered, arrays, pools, handles, graphs, contexts, answers:
        part()
"""


def hooked():
    return sorted(set(re.findall(r"^SG_HOOK_DRIVER\((\w+),", HOOKS.read_text(), re.MULTILINE)) - ENTRY_POINTS)


def figures(entry):
    domains = entry["domains"]
    return [domains[domain]["live_bytes"] for domain in ("device", "pinned", "managed")] + [entry["registered_bytes"]]


def counts(entry):
    return [entry["domains"][domain][what] for domain in ("device", "pinned", "managed") for what in ("allocations", "frees")]


def test_what_the_driver_calls_itself_inside_a_hooked_call_does_not_count(sim):
    """It takes memory through its own exports, makes contexts, asks and waits; what it keeps so is not the program's."""
    symbols = [*hooked(), "cuMemPoolGetAttribute"]  # the last one we ask ourselves, with a lock held
    points = sim.script_points(
        ROUND
        + f"""
start()
home, popped = c_void_p(), c_void_p()
ok(cuda.cuCtxCreate_v2(byref(home), 0, 0))
ok(cuda.cuCtxPopCurrent_v2(byref(popped)))
inside = 0
def work():
    global inside
    inside += 1
    other, host = c_void_p(), c_void_p()
    ok(cuda.cuCtxPushCurrent_v2(home))
    ok(take("cuMemAlloc_v2", MIB)[0])
    ok(cuda.cuMemHostAlloc(byref(host), size, c_uint(0)))
    ok(cuda.cuMemFreeHost(host))
    ok(cuda.cuCtxCreate_v2(byref(other), 0, 0))
    ok(cuda.cuCtxDestroy_v2(other))
    info()
    ok(cuda.cuStreamSynchronize(None))
    ok(cuda.cuCtxPopCurrent_v2(byref(popped)))
kept = ctypes.CFUNCTYPE(None)(work)
round()
quiet()
for symbol in {symbols!r}:
    cuda.sgsim_inside(symbol.encode(), 1, kept)
    round()
    quiet(symbol=symbol, inside=inside)
"""
    )
    (_, entry), *points = points
    once = counts(entry)
    for times, (said, entry) in enumerate(points, 1):
        assert said.inside == times, f"round() does not call {said.symbol}"
        assert (figures(entry), counts(entry)) == ([0, 0, 0, 0], [(times + 1) * count for count in once]), said.symbol
        assert entry["unmatched_frees"] == 0, said.symbol


# What the guard itself asks of the driver, and may be told an error: cuCtxGetCurrent knows none of its own.
QUESTIONS = """cuCtxGetDevice cuDeviceGetAttribute cuDeviceGetName cuDeviceGetUuid cuDeviceGetMemPool
cuDeviceGetDefaultMemPool cuDevicePrimaryCtxGetState cuStreamGetCtx cuStreamGetDevice cuStreamIsCapturing cuStreamIsCapturing_ptsz
cuMemPoolGetAttribute cuMemGetAllocationGranularity cuArrayGetMemoryRequirements cuMipmappedArrayGetMemoryRequirements
cuGraphGetNodes cuGraphNodeGetType cuGraphMemAllocNodeGetParams cuDeviceGetGraphMemAttribute""".split()


@pytest.mark.parametrize("variables", [{}, {"SGSIM_KIND": "discrete"}, {"SPARKGUARD_LIMIT": "24M"}, {"SGSIM_STREAMS": "busy"}])
def test_each_call_that_fails_leaves_the_figures_right(sim, variables):
    """The first and the second call of each in a round: what could not be given back still counts, and then goes once."""
    symbols = hooked() + QUESTIONS
    groups = [symbols[i : i + 8] for i in range(0, len(symbols), 8)]
    points = sim.script_points(
        ROUND
        + f"""
start()
for group in {groups!r}:
    for symbol in group:
        for nth in 1, 2:
            fail(symbol, nth, 700)
            round()
            fail(symbol, 0)
            ok(cuda.cuCtxSynchronize())
    assert live() == live("registered") == 0, group
    look("-".join(group))
""",
        **variables,
    )
    points = list(points)
    assert len(points) > len(groups) + 20, "calls that give back were to fail"
    for said, entry in points:
        assert figures(entry) == [said.device, said.pinned, said.managed, said.registered], said.group
        assert entry["unmatched_frees"] == 0, said.group
    assert counts(entry)[::2] == counts(entry)[1::2]


# Tests of their own refuse these: what they take is not a number of bytes among their arguments.
RARER = {"cuGraphInstantiateWithParams", "cuGraphLaunch", "cuGraphUpload"}


def test_what_is_refused_says_in_functions_def_how_it_allocates(sim):
    """So that the tests that grow from there, test_refusal.py among them, call it too."""
    full = "start()\nleft = 8 * MIB\nwhile left > MIB // 16:\n    if take('cuMemAlloc_v2', left)[0] != 0:\n        left //= 2\n"
    done = sim.script(ROUND + full + "round()\n", SPARKGUARD_LIMIT="16M")
    refused = {refusal["call"] for refusal in done.process["refusals"]}
    assert refused == {base for _, base, _ in allocating()} | RARER
