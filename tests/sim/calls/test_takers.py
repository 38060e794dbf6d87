"""The rarer takers of memory: each is counted to the byte, refused as out of memory, and gives all back."""

import re
from pathlib import Path

import pytest
from conftest import MIB, OUT_OF_MEMORY
from lib.cuda_header import header


def live(entry, domain="device"):
    return entry["domains"][domain]["live_bytes"]


# ---- mipmapped arrays ---------------------------------------------------------------------------------------------

MIPMAPPED = """
start()
def mipmapped(levels, *shape):
    array = c_uint64(77)
    result = cuda.cuMipmappedArrayCreate(byref(array), byref(Array3D(*shape)), c_uint(levels))
    return result, array.value
def destroy(array):
    return cuda.cuMipmappedArrayDestroy(c_uint64(array))
"""
LAYERED, SPARSE, DEFERRED = 0x01, 0x40, 0x80


@pytest.mark.parametrize(
    "levels, shape, size",
    [
        (1, (1024, 1024, 0, 0x20, 4, 0), 16 * MIB),
        (3, (1024, 1024, 0, 0x20, 4, 0), 21 * MIB),
        (3, (64, 64, 64, 0x20, 1, 0), 4 * (64**3 + 32**3 + 16**3)),
        (99, (1024, 4, 0, 1, 1, 0), 4096 + 1024 + 256 + 128 + 64 + 32 + 16 + 8 + 4 + 2 + 1),
        (2, (512, 512, 6, 1, 1, LAYERED), 6 * (512**2 + 256**2)),
        (2, (512, 512, 0, 1, 1, SPARSE), 0),
        (2, (512, 512, 0, 1, 1, DEFERRED), 0),
    ],
)
def test_mipmapped_array_counts_all_its_levels(sim, levels, shape, size):
    levels = min(levels, 32)
    points = sim.script_points(
        MIPMAPPED
        + f"""
result, array = mipmapped({levels}, {", ".join(map(str, shape))})
ok(result)
quiet(array=live("array"))
ok(destroy(array))
quiet(array=live("array"))
"""
    )
    assert [(said.array, live(entry)) for said, entry in points] == [(size, size), (0, 0)]


def test_refused_mipmapped_array_answers_as_out_of_memory(sim):
    """128 MiB at its first level alone; 42 MiB fit, and those below the limit are counted once."""
    done = sim.script(
        MIPMAPPED
        + """
say(large=mipmapped(1, 4096, 4096, 0, 1, 8, 0)[0], bad=mipmapped(0, 4096, 4096, 0, 1, 4, 0)[0])
result, array = mipmapped(2, 4096, 4096, 0, 1, 4, 0)
say(refused=result, out=array, reached=calls("cuMipmappedArrayCreate"))
result, array = mipmapped(2, 4096, 2048, 0, 1, 4, 0)
say(small=result, held=live("array"))
fail("cuMipmappedArrayDestroy", 1, 700)
say(failed=destroy(array), still=live("array"))
""",
        SPARKGUARD_LIMIT="64M",
    )
    assert (done.large, done.bad) == (1, 1), "bad arguments are the driver's to judge"
    assert (done.refused, done.out, done.reached) == (OUT_OF_MEMORY, 77, 2)
    assert (done.small, done.held, done.failed, done.still) == (0, 40 * MIB, 700, 40 * MIB)
    [refusal] = done.process["refusals"]
    assert (refusal["call"], refusal["domain"], refusal["size_bytes"]) == ("cuMipmappedArrayCreate", "device", 80 * MIB)
    device = done.process["domains"]["device"]
    assert (device["live_bytes"], device["allocations"], device["frees"]) == (40 * MIB, 1, 0)
    assert done.process["unmatched_frees"] == 0


@pytest.mark.parametrize(
    "format, channels, size",
    [("UNORM_INT16X1", 1, 2 * MIB), ("SNORM_INT16X4", 4, 8 * MIB), ("BC1_UNORM", 4, MIB // 2), ("BC7_UNORM", 4, MIB), ("NV12", 1, 3 * MIB // 2)],
)
def test_array_counts_by_its_format(sim, format, channels, size):
    number = re.search(rf"CU_AD_FORMAT_{format}\s*=\s*(\w+)", header())[1]
    done = sim.script(
        f"""
start()
array = c_uint64()
ok(cuda.cuArrayCreate_v2(byref(array), byref(Array(1024, 1024, {number}, {channels}))))
say(held=live("array"))
"""
    )
    assert (done.held, live(done.process)) == (size, size)


def test_every_format_of_the_installed_header_has_a_size():
    known = (Path(__file__).resolve().parents[3] / "preload" / "guard" / "hooks" / "cuda" / "array_format.c").read_text()
    formats = set(re.findall(r"\b(CU_AD_FORMAT_\w+)\s*=", header()))
    assert len(formats) > 20 and formats - {"CU_AD_FORMAT_MAX"} - set(re.findall(r"case (CU_AD_FORMAT_\w+):", known)) == set()


# ---- registered memory --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["cuMemHostRegister", "cuMemHostRegister_v2"])
def test_registered_memory_is_shown_and_not_counted_again(sim, call):
    points = sim.script_points(
        f"""
import mmap
start()
memory = mmap.mmap(-1, 8 * MIB)
address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
def register(offset, size):
    return cuda.{call}(c_void_p(address + offset), c_size_t(size), c_uint(0))
def unregister(offset):
    return cuda.cuMemHostUnregister(c_void_p(address + offset))
def point(**pairs):
    quiet(registered=live("registered"), **pairs)
point()
ok(register(0, 2 * MIB)); ok(register(4 * MIB, 3 * MIB))
point(again=register(0, MIB))
fail("cuMemHostUnregister", 1, 700)
point(failed=unregister(0), unknown=unregister(MIB))
ok(unregister(0))
point()
ok(unregister(4 * MIB))
point()
""",
        SPARKGUARD_LIMIT="64M",
    )
    points = list(points)
    figures = [(said.registered, entry["registered_bytes"]) for said, entry in points]
    assert figures == [(0, 0), (5 * MIB, 5 * MIB), (5 * MIB, 5 * MIB), (3 * MIB, 3 * MIB), (0, 0)]
    assert (points[1][0].again, points[2][0].failed) == (712, 700)
    assert {entry["domains"]["pinned"]["live_bytes"] for _, entry in points} == {0}
    assert points[-1][1]["unmatched_frees"] == 0


# ---- several devices ----------------------------------------------------------------------------------------------


def test_handle_is_judged_on_the_device_it_is_on(sim):
    """Not on the current one: full, it refuses nothing elsewhere; empty, it grants nothing of another's reserve."""
    done = sim.script(
        """
def create(size):
    h = c_uint64(77)
    result = cuda.cuMemCreate(byref(h), c_size_t(size), byref(AllocationProp(1, 0, Location(1, 1))), c_ulonglong(0))
    return result, h
start(1)
start(0)
say(first=take("cuMemAlloc_v2", 6 * GIB)[0])
result, h = create(2 * GIB)
say(beside=result, reserve=create(5 * GIB + 512 * MIB)[0], rest=create(4 * GIB)[0], reached=calls("cuMemCreate"))
device = c_int(-1)
ok(cuda.cuCtxGetDevice(byref(device)))
ok(cuda.cuDevicePrimaryCtxRelease_v2(1))
say(current=device.value, ended=cuda.cuDevicePrimaryCtxRelease_v2(1))
""",
        SGSIM_KIND="discrete",
        SGSIM_DEVICES="2",
        SGSIM_MEMORY="8G",
        SPARKGUARD_DEVICE_RESERVE="1G",
    )
    assert (done.first, done.beside, done.reserve, done.rest, done.reached) == (0, 0, OUT_OF_MEMORY, 0, 2)
    assert (done.current, done.ended != 0) == (0, True), "neither the current device nor a retention stays changed"


def test_ninth_device_is_not_judged_by_the_eighth(sim):
    """They share a number, and the current one is asked."""
    done = sim.script(
        """
for device in range(8):
    start(device)
say(eighth=take("cuMemAlloc_v2", 6 * GIB)[0], full=take("cuMemAlloc_v2", 3 * GIB)[0])
start(8)
say(ninth=take("cuMemAlloc_v2", 6 * GIB)[0], rest=take("cuMemAlloc_v2", 2 * GIB)[0], reached=calls("cuMemAlloc_v2"))
""",
        SGSIM_KIND="discrete",
        SGSIM_DEVICES="9",
        SGSIM_MEMORY="8G",
        SPARKGUARD_DEVICE_RESERVE="1G",
    )
    assert (done.eighth, done.full, done.ninth, done.rest, done.reached) == (0, OUT_OF_MEMORY, 0, OUT_OF_MEMORY, 2)


# ---- graphs -------------------------------------------------------------------------------------------------------

GRAPH = """
start()
class Alloc(ctypes.Structure):
    _fields_ = [("props", PoolProps), ("access", c_void_p), ("count", c_size_t), ("size", c_size_t), ("dptr", c_uint64)]
class Params(ctypes.Structure):
    _fields_ = [("flags", c_uint64), ("stream", c_void_p), ("node", c_void_p), ("result", c_int)]
node = c_void_p()
def graph(*sizes, freed=True, child=None, chain=False):
    g = c_void_p()
    ok(cuda.cuGraphCreate(byref(g), c_uint(0)))
    ok(cuda.cuGraphAddEmptyNode(byref(node), g, None, c_size_t(0)))
    addresses = []
    for size in sizes:
        params = Alloc(PoolProps(1, 0, Location(1, 0)), None, 0, size, 0)
        ok(cuda.cuGraphAddMemAllocNode(byref(node), g, byref(node), c_size_t(chain), byref(params)))
        addresses.append(params.dptr)
        if freed:
            ok(cuda.cuGraphAddMemFreeNode(byref(node), g, byref(node), c_size_t(1), c_uint64(params.dptr)))
    if child is not None:
        ok(cuda.cuGraphAddChildGraphNode(byref(node), g, None, c_size_t(0), child))
    return g, addresses
def instantiate(g, call="cuGraphInstantiateWithFlags"):
    e = c_void_p(77)
    if "Params" in call:
        return getattr(cuda, call)(byref(e), g, byref(Params(2))), e
    if call.endswith("Flags"):
        return getattr(cuda, call)(byref(e), g, c_ulonglong(0)), e
    return getattr(cuda, call)(byref(e), g, None, None, c_size_t(0)), e
def executable(*sizes, **more):
    g, addresses = graph(*sizes, **more)
    result, e = instantiate(g)
    ok(result)
    return e
def launch(e, call="cuGraphLaunch"):
    return getattr(cuda, call)(e, None)
"""


@pytest.mark.parametrize("call", ["cuGraphUpload", "cuGraphUpload_ptsz", "cuGraphLaunch", "cuGraphLaunch_ptsz"])
def test_graph_memory_counts_by_what_the_device_holds_for_graphs(sim, call):
    points = sim.script_points(
        GRAPH
        + f"""
e = executable(8 * MIB, 3 * MIB)
quiet(held=live("device"))
for _ in range(3):
    ok(launch(e, "{call}"))
quiet(held=live("device"))
ok(launch(executable(20 * MIB), "{call}"))
quiet(held=live("device"))
fail("cuGraphExecDestroy", 1, 700)
cuda.cuGraphExecDestroy(e)
ok(cuda.cuGraphExecDestroy(e))
quiet(held=live("device"))
ok(cuda.cuDeviceGraphMemTrim(0))
quiet(held=live("device"))
"""
    )
    figures = [(said.held, live(entry), entry["internal_faults"]) for said, entry in points]
    assert figures == [(n * MIB, n * MIB, 0) for n in (0, 12, 20, 20, 0)]


def test_launch_leaves_the_thread_as_cancellable_as_it_was(sim):
    """It is not while the launch has claimed what the device holds for graphs."""
    done = sim.script(
        GRAPH
        + """
import threading
end = threading.Event()
threading.Thread(target=end.wait).start()
ok(launch(executable(8 * MIB, 3 * MIB), "cuGraphLaunch"))
ok(launch(executable(20 * MIB), "cuGraphLaunch"))
was_disabled = c_int(77)
ctypes.CDLL(None).pthread_setcancelstate(0, byref(was_disabled))
end.set()
say(was_disabled=was_disabled.value)
"""
    )
    assert done.was_disabled == 0


@pytest.mark.parametrize(
    "call", ["cuGraphInstantiate", "cuGraphInstantiate_v2", "cuGraphInstantiateWithFlags", "cuGraphInstantiateWithParams", "cuGraphInstantiateWithParams_ptsz"]
)
def test_graph_is_refused_before_it_takes_its_memory(sim, call):
    """By the sum of its allocation nodes, those of child graphs too, however it was instantiated."""
    done = sim.script(
        GRAPH
        + f"""
inner, _ = graph(40 * MIB)
outer, _ = graph(40 * MIB, child=inner)
result, e = instantiate(outer, "{call}")
say(instantiated=result)
if result == 0:
    say(uploaded=cuda.cuGraphUpload(e, None), launched=launch(e), reached=calls("cuGraphLaunch") + calls("cuGraphUpload"))
small, _ = graph(30 * MIB)
result, e = instantiate(small, "{call}")
ok(result)
say(small=launch(e), held=live("device"))
""",
        SPARKGUARD_LIMIT="64M",
    )
    words = [refusal["call"] for refusal in done.process["refusals"]]
    if "Params" in call:
        assert done.instantiated == OUT_OF_MEMORY and words == ["cuGraphInstantiateWithParams"]
    else:
        assert (done.instantiated, done.uploaded, done.launched, done.reached) == (0, OUT_OF_MEMORY, OUT_OF_MEMORY, 0)
        assert words == ["cuGraphUpload", "cuGraphLaunch"]
    assert (done.small, done.held) == (0, 30 * MIB)
    assert live(done.process) == 30 * MIB
    assert {refusal["size_bytes"] for refusal in done.process["refusals"]} == {80 * MIB}


def test_what_the_device_holds_for_graphs_is_not_asked_for_again(sim):
    """A second graph lives from what the first has left; but not while that is in use, until it is freed."""
    done = sim.script(
        GRAPH
        + """
g, [p] = graph(40 * MIB, freed=False)
_, first = instantiate(g)
ok(launch(executable(40 * MIB)))
say(shared=launch(executable(30 * MIB)), kept=launch(first), held=live("device"))
second = executable(30 * MIB)
say(beside=launch(second), relaunched=launch(first))
ok(cuda.cuMemFree_v2(c_uint64(p)))
say(after=launch(second), again=launch(second), still=live("device"))
""",
        SPARKGUARD_LIMIT="64M",
    )
    assert (done.shared, done.kept, done.held) == (0, 0, 40 * MIB)
    assert (done.beside, done.relaunched, done.after, done.again, done.still) == (OUT_OF_MEMORY, 0, 0, 0, 40 * MIB)
    assert live(done.process) == 40 * MIB and done.process["unmatched_frees"] == 0


def test_nodes_that_use_the_same_memory_one_after_the_other_are_judged_once(sim):
    """Where a node comes behind the free of another, CUDA gives it the same address (CUDA C++ Programming Guide, graph memory)."""
    done = sim.script(
        GRAPH
        + """
inner, _ = graph(10 * MIB)
one, _ = graph(40 * MIB, 20 * MIB, 30 * MIB, chain=True, child=inner)
apart, _ = graph(40 * MIB, 20 * MIB, 30 * MIB)
say(chained=launch(instantiate(one)[1]), held=live("device"))
stream, g = c_void_p(), c_void_p()
ok(cuda.cuStreamCreate(byref(stream), c_uint(1)))
ok(cuda.cuStreamBeginCapture_v2(stream, 2))
for _ in range(10):
    result, p = take("cuMemAllocAsync", 50 * MIB, stream)
    ok(result)
    ok(cuda.cuMemFreeAsync(c_uint64(p), stream))
ok(cuda.cuStreamEndCapture(stream, byref(g)))
say(captured=launch(instantiate(g)[1]), still=live("device"))
ok(cuda.cuDeviceGraphMemTrim(0))
say(apart=launch(instantiate(apart)[1]))
""",
        SPARKGUARD_LIMIT="64M",
    )
    assert (done.chained, done.held, done.captured, done.still, done.apart) == (0, 50 * MIB, 0, 50 * MIB, OUT_OF_MEMORY)
    assert [refusal["size_bytes"] for refusal in done.process["refusals"]] == [90 * MIB]


def test_graph_on_two_devices_counts_on_both_and_is_judged_as_a_whole(sim):
    done = sim.script(
        GRAPH
        + """
start(1)
start(0)
def on_both(size):
    g, _ = graph()
    for device in 1, 0:
        ok(cuda.cuGraphAddMemAllocNode(byref(node), g, None, c_size_t(0), byref(Alloc(PoolProps(1, 0, Location(1, device)), None, 0, size, 0))))
    return instantiate(g)[1]
say(large=launch(on_both(40 * MIB)), small=launch(on_both(20 * MIB)), held=live("device"))
""",
        SGSIM_DEVICES="2",
        SPARKGUARD_LIMIT="64M",
    )
    assert (done.large, done.small, done.held, live(done.process)) == (OUT_OF_MEMORY, 0, 40 * MIB, 40 * MIB)


# One graph of ten nodes of 10 MiB each, which all use the same 10 MiB one after the other, as CUDA's may.
REUSING_DRIVER = """
#include <string.h>
static unsigned long long reserved, launches;
int cuCtxGetDevice(int *d) { *d = 0; return 0; }
int cuMemAlloc_v2(unsigned long long *p, unsigned long n) { *p = 0x1000; return 0; }
int cuGraphGetNodes(void *g, void **nodes, unsigned long *n)
{
    for (unsigned long i = 0; nodes && i < 10; i++) nodes[i] = (void *)(i + 1);
    *n = 10;
    return 0;
}
int cuGraphNodeGetType(void *node, int *type) { *type = 10; return 0; }
int cuGraphMemAllocNodeGetParams(void *node, void *params)
{
    memset(params, 0, 120);
    *(unsigned long *)((char *)params + 104) = 10 << 20; /* bytesize */
    return 0;
}
int cuGraphInstantiateWithFlags(void **e, void *g, unsigned long long flags) { *e = (void *)8; return 0; }
int cuGraphLaunch(void *e, void *stream) { reserved = 10 << 20; launches++; return 0; }
int cuDeviceGetGraphMemAttribute(int device, int what, unsigned long long *value) { *value = what == 2 ? reserved : 0; return 0; }
int cuDeviceGraphMemTrim(int device) { reserved = 0; return 0; }
int launches_of(void) { return launches; }
void sgsim_live_bytes(void) {}
void sgsim_calls(void) {}
void sgsim_touch(void) {}
"""


def test_graph_launched_again_asks_for_what_its_device_has_lost_only(sim):
    """However much its nodes ask for together: a first launch has shown what they take."""
    driver = sim.compile("libcuda.so.1", REUSING_DRIVER, "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-Wl,-Bsymbolic")
    done = sim.script(
        """
e = c_void_p()
ok(cuda.cuGraphInstantiateWithFlags(byref(e), c_void_p(4), c_ulonglong(0)))
say(first=cuda.cuGraphLaunch(e, None), other=take("cuMemAlloc_v2", 80 * MIB)[0])
say(second=cuda.cuGraphLaunch(e, None), third=cuda.cuGraphLaunch(e, None))
ok(cuda.cuDeviceGraphMemTrim(0))
say(trimmed=cuda.cuGraphLaunch(e, None), launches=cuda.launches_of(), full=take("cuMemAlloc_v2", 31 * MIB)[0])
""",
        SPARKGUARD_LIMIT="120M",
        LD_LIBRARY_PATH=driver.parent,
    )
    assert (done.first, done.other, done.second, done.third, done.trimmed, done.launches) == (0, 0, 0, 0, 0, 4)
    assert (done.full, live(done.process)) == (OUT_OF_MEMORY, 90 * MIB)


@pytest.mark.parametrize("variant", ["", "_ptsz"])
def test_captured_allocation_counts_when_its_graph_is_launched(sim, variant):
    done = sim.script(
        GRAPH
        + f"""
stream, g = c_void_p(), c_void_p()
ok(cuda.cuStreamCreate(byref(stream), c_uint(1)))
def capture(size):
    ok(cuda.cuStreamBeginCapture_v2(stream, 2))
    result, p = take("cuMemAllocAsync{variant}", size, stream)
    ok(result)
    ok(cuda.cuMemFreeAsync{variant}(c_uint64(p), stream))
    ok(cuda.cuStreamEndCapture(stream, byref(g)))
    return instantiate(g)[1]
large, small = capture(100 * MIB), capture(30 * MIB)
say(refused=launch(large), launched=launch(small), held=live())
""",
        SPARKGUARD_LIMIT="64M",
    )
    assert (done.refused, done.launched, done.held) == (OUT_OF_MEMORY, 0, 30 * MIB)
    device = done.process["domains"]["device"]
    assert (device["live_bytes"], device["allocations"], device["frees"]) == (30 * MIB, 0, 0)
    assert [refusal["call"] for refusal in done.process["refusals"]] == ["cuGraphLaunch"]


def test_launch_of_a_graph_without_memory_asks_the_driver_nothing(sim):
    done = sim.script(
        GRAPH
        + """
def asked():
    names = "cuCtxGetDevice", "cuDeviceGetGraphMemAttribute", "cuMemPoolGetAttribute", "cuGraphGetNodes", "cuMemGetInfo_v2"
    return sum(calls(name) for name in names)
plain = executable()
before = asked()
ok(launch(plain))
say(alone=asked() - before)
ok(launch(executable(MIB)))
before = asked()
ok(launch(plain))
say(beside=asked() - before)
"""
    )
    assert (done.alone, done.beside) == (0, 0)


def test_name_that_stands_for_another_function_gets_the_hook_of_that(sim):
    """Where a driver answers cuGraphInstantiate with cuGraphInstantiateWithFlags, whose arguments are others."""
    driver = sim.compile(
        "libcuda.so.1",
        """
#include <string.h>
int cuGraphInstantiate(void **e, void *g, void **n, char *l, unsigned long s) { return 1000; }
int cuGraphInstantiate_v2(void **e, void *g, void **n, char *l, unsigned long s) { return 2000; }
int cuGraphInstantiateWithFlags(void **e, void *g, unsigned long long flags) { return (int)flags; }
int cuGetProcAddress_v2(const char *name, void **pfn, int version, unsigned long long flags, void *status)
{
    *pfn = strcmp(name, "cuGraphInstantiate") == 0 ? (void *)cuGraphInstantiateWithFlags : NULL;
    return 0;
}
""",
        "-shared",
        "-fPIC",
        "-Wl,-Bsymbolic",
    )
    done = sim.run(
        [
            "python3",
            "-S",
            "-c",
            "import ctypes; d = ctypes.CDLL('libcuda.so.1'); p = ctypes.c_void_p()\n"
            "d.cuGetProcAddress_v2(b'cuGraphInstantiate', ctypes.byref(p), 13000, ctypes.c_uint64(0), None)\n"
            "print(p.value == ctypes.cast(d.cuGraphInstantiateWithFlags, ctypes.c_void_p).value)",
        ],
        LD_LIBRARY_PATH=driver.parent,
    )
    assert done.stdout == "True\n", done.stderr


def test_reset_device_gives_back_what_it_held_for_graphs(sim):
    points = sim.script_points(
        GRAPH
        + """
g, _ = graph(10 * MIB, freed=False)
_, e = instantiate(g)
ok(launch(e))
quiet(held=live())
ok(cuda.cuDevicePrimaryCtxReset_v2(0))
quiet(held=live())
"""
    )
    assert [(said.held, live(entry)) for said, entry in points] == [(10 * MIB, 10 * MIB), (0, 0)]


# ---- pools that are not a device's own ----------------------------------------------------------------------------


@pytest.mark.parametrize("place, kind, domain", [("Location(2, 0)", 1, "pinned"), ("Location(0, 0)", 2, "managed"), ("Location(1, 0)", 1, "device")])
@pytest.mark.parametrize("how", ["cuMemGetDefaultMemPool", "cuMemGetMemPool", "set"])
def test_default_and_current_pool_of_a_place_count_there(sim, place, kind, domain, how):
    get = (
        f"ok(cuda.cuMemPoolCreate(byref(pool), byref(PoolProps({kind}, 0, {place})))); ok(cuda.cuMemSetMemPool(byref({place}), {kind}, pool)); pool = c_void_p();"
        f"ok(cuda.cuMemGetMemPool(byref(pool), byref({place}), {kind}))"
        if how == "set"
        else f"ok(cuda.{how}(byref(pool), byref({place}), {kind}))"
    )
    points = sim.script_points(
        f"""
start()
pool, p = c_void_p(), c_uint64()
{get}
ok(cuda.cuMemAllocFromPoolAsync(byref(p), c_size_t(MIB), pool, None))
quiet(held=live("{domain}"))
ok(cuda.cuMemFreeAsync(p, None))
ok(cuda.cuMemPoolTrimTo(pool, c_size_t(0)))
quiet(held=live("{domain}"))
"""
    )
    points = list(points)
    assert [(said.held, live(entry, domain)) for said, entry in points] == [(32 * MIB, 32 * MIB), (0, 0)]
    assert {live(points[0][1], other) for other in {"device", "pinned", "managed"} - {domain}} == {0}


def test_pool_is_charged_to_its_own_device(sim):
    points = sim.script_points(
        """
start(1)
take("cuMemAlloc_v2", MIB)
start(0)
pool, p = c_void_p(), c_uint64()
ok(cuda.cuMemPoolCreate(byref(pool), byref(PoolProps(1, 0, Location(1, 1)))))
ok(cuda.cuMemAllocFromPoolAsync(byref(p), c_size_t(MIB), pool, None))
quiet()
""",
        SGSIM_DEVICES="2",
        SGSIM_KIND="discrete",
    )
    for _, entry in points:
        devices = {d["index"]: d["live_bytes"] for d in sim.guard.report()["machine"]["devices"]}
        assert (live(entry), devices[1], devices[0]) == (33 * MIB, 33 * MIB, 0)


def test_what_a_pool_gave_back_shows_when_its_threshold_is_set(sim):
    points = sim.script_points(
        """
start()
pool, p, threshold = c_void_p(), c_uint64(), c_uint64(16 * MIB)
ok(cuda.cuDeviceGetDefaultMemPool(byref(pool), 0))
p = take("cuMemAllocAsync", 40 * MIB, None)[1]
ok(cuda.cuMemFreeAsync(c_uint64(p), None))
quiet(held=live())
ok(cuda.cuCtxSynchronize())
ok(cuda.cuMemPoolSetAttribute(pool, 4, byref(threshold)))
quiet(held=live())
"""
    )
    assert [(said.held, live(entry)) for said, entry in points] == [(40 * MIB, 40 * MIB), (0, 0)]
