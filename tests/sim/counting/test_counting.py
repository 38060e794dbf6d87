"""Each CUDA allocation is counted exactly once: our live bytes against the simulator's own books, to the byte."""

import pytest
from conftest import MIB, OUT_OF_MEMORY
from lib import storm
from lib.target import IS_LONG, STRESS_DIVISOR

SEGMENT = 32 * MIB  # what a pool of the simulator reserves at once
STEPS = (2500 if IS_LONG else 1000) // STRESS_DIVISOR  # of a thread from one quiet point to the next


def live(entry, domain="device"):
    return entry["domains"][domain]["live_bytes"]


MACHINES = [{"SGSIM_DEVICES": 2}, {"SGSIM_MEMORY": "96M"}, {"SPARKGUARD_LIMIT": "150M"}, {"SGSIM_KIND": "discrete"}, {"SGSIM_DEVICES": 2, "SGSIM_DAWDLE": 64}]


def check_stress(sim, seed, variables):
    command = [sim.program("cuda_stress"), seed, 8, STEPS, 5]
    points = list(sim.quiet_points(command, **variables))
    assert len(points) == 6
    for said, entry in points:
        assert {domain: live(entry, domain) for domain in ("device", "pinned", "managed")} == {
            "device": said.device,
            "pinned": said.pinned,
            "managed": said.managed,
        }
        assert entry["registered_bytes"] == said.registered
        domains = [entry["domains"][domain] for domain in ("device", "pinned", "managed")]
        assert sum(d["allocations"] for d in domains) == said.taken
        assert sum(d["frees"] for d in domains) == said.given
        assert entry["unmatched_frees"] == 0
        assert said.blocked == 0  # the driver is never called with a lock of ours held
    said, entry = points[-1]
    assert (said.device, said.pinned, said.managed, said.pools, said.registered) == (0, 0, 0, 0, 0)
    assert said.taken == said.given > 2 * STEPS
    assert [b for b in entry["blocks"] if b["domain"] not in ("heap", "mapped")] == []  # no call site holds any of it
    for kind in ("device", "pinned", "managed", "registered"):  # at one point all contexts may just have ended
        assert max(getattr(said, kind) for said, _ in points) > 0
    if "SPARKGUARD_LIMIT" in variables:
        assert entry["refused_count"] > 0
        # Each of the four pools may have reserved a segment that the guard gave back at once; a peak has what threads took in advance.
        assert max(p["peak_bytes"] for _, p in points) <= 150 * MIB + 4 * SEGMENT + 9 * MIB


@pytest.mark.parametrize("seed, variables", enumerate(MACHINES, 1))
def test_stress_of_all_calls_agrees_with_the_simulator_at_every_quiet_point(sim, seed, variables):
    """40000 calls of all kinds (100000 in the long form) from 8 threads, contexts that end with what is in them, or beside what is taken
    in them, frees across threads, imports, planned failures of calls and of our own questions, a driver or a limit that is soon
    exhausted, or one whose calls begin and return late."""
    check_stress(sim, seed, variables)


@pytest.mark.long
@pytest.mark.parametrize("round_", storm.ROUNDS)
def test_storm_of_all_calls_agrees_with_the_simulator(sim, round_):
    """The same by any seed."""
    draw = storm.seeded()
    check_stress(sim, draw.randrange(10**9), draw.choice(MACHINES))


def test_managed_bytes_of_freed_and_grown_runtime_allocations_agree(sim):
    """The same through the runtime, where one call goes through two of our hooks."""
    for program in "cuda_calls", "cuda_calls_static":
        for call in "cudaMalloc", "cudaMallocManaged", "cudaMallocHost", "cudaMallocArray", "cudaMalloc3D":
            done = sim.values([sim.program(program), "fill", "linked", call, MIB, 50])
            total = [done.process["domains"][d] for d in ("device", "pinned", "managed")]
            assert sum(d["peak_bytes"] for d in total) == done.held
            assert sum(d["allocations"] for d in total) == sum(d["frees"] for d in total) == 51
            assert sum(d["live_bytes"] for d in total) == 0


# ---- pools --------------------------------------------------------------------------------------------------------

POOL = """
start()
pool = c_void_p()
ok(cuda.cuMemPoolCreate(byref(pool), byref(PoolProps(1, 0, Location(1, 0)))))
def from_pool(size):
    p = c_uint64(77)
    result = cuda.cuMemAllocFromPoolAsync(byref(p), c_size_t(size), pool, None)
    return result, p.value
"""


def test_freed_block_stays_counted_until_the_pool_is_trimmed(sim):
    points = sim.script_points(
        POOL
        + """
_, p = from_pool(MIB)
_, q = from_pool(40 * MIB)
quiet(reserved=live())
ok(cuda.cuMemFreeAsync(c_uint64(q), None))
quiet(reserved=live())
ok(cuda.cuMemPoolTrimTo(pool, c_size_t(0)))
quiet(reserved=live())
ok(cuda.cuMemFreeAsync(c_uint64(p), None))
ok(cuda.cuMemPoolDestroy(pool))
quiet(reserved=live())
"""
    )
    figures = [(said.reserved, live(entry)) for said, entry in points]
    assert figures == [(72 * MIB, 72 * MIB), (72 * MIB, 72 * MIB), (SEGMENT, SEGMENT), (0, 0)]


def test_trim_keeps_what_it_is_told_to_keep(sim):
    points = sim.script_points(
        POOL
        + """
blocks = [from_pool(40 * MIB)[1] for _ in range(3)]
for p in blocks:
    ok(cuda.cuMemFreeAsync(c_uint64(p), None))
ok(cuda.cuMemPoolTrimTo(pool, c_size_t(70 * MIB)))
quiet(reserved=live())
"""
    )
    [(said, entry)] = points
    assert said.reserved == live(entry) == 80 * MIB


def test_what_a_synchronisation_gave_back_may_be_had_again(sim):
    """cuCtxSynchronize empties the pool beyond its threshold without any call that we see."""
    done = sim.script(
        """
start()
p = take("cuMemAllocAsync", 40 * MIB, None)[1]
ok(cuda.cuMemFreeAsync(c_uint64(p), None))
say(held=live(), over=take("cuMemAlloc_v2", 40 * MIB)[0])
ok(cuda.cuCtxSynchronize())
say(after=live(), fits=take("cuMemAlloc_v2", 40 * MIB)[0])
""",
        SPARKGUARD_LIMIT="64M",
    )
    assert (done.held, done.over, done.after, done.fits) == (40 * MIB, OUT_OF_MEMORY, 0, 0)
    assert live(done.process) == 40 * MIB


def test_block_that_fits_what_the_pool_has_free_is_granted_at_the_limit(sim):
    done = sim.script(
        """
start()
p = take("cuMemAllocAsync", 60 * MIB, None)[1]
ok(cuda.cuMemFreeAsync(c_uint64(p), None))
say(again=take("cuMemAllocAsync", 50 * MIB, None)[0], more=take("cuMemAllocAsync", 20 * MIB, None)[0])
""",
        SPARKGUARD_LIMIT="64M",
    )
    assert (done.again, done.more) == (0, OUT_OF_MEMORY)
    assert live(done.process) == 60 * MIB


def test_growth_of_a_pool_beyond_its_request_is_judged_too(sim):
    """A pool with room in pieces reserves a segment more, and takes it back out of the program's hands where it is too much."""
    done = sim.script(
        """
start()
results = [take("cuMemAllocAsync", 20 * MIB, None) for _ in range(4)]
say(results="-".join(str(r) for r, _ in results), out=results[-1][1], reserved=live())
""",
        SPARKGUARD_LIMIT="70M",
    )
    assert done.results == "0-0-2-2" and done.out == 77
    assert done.reserved == live(done.process) == 2 * SEGMENT
    device = done.process["domains"]["device"]
    assert (device["allocations"], device["frees"], device["refused_count"]) == (2, 0, 2)


def test_refusal_of_growth_leaves_other_pools_as_they_are(sim):
    """A synchronisation would empty what another pool has free beyond its threshold."""
    [(said, entry)] = sim.script_points(
        POOL
        + """
_, p = from_pool(20 * MIB)
ok(cuda.cuMemFreeAsync(c_uint64(p), None))
results = [take("cuMemAllocAsync", 20 * MIB, None)[0] for _ in range(3)]
quiet(results="-".join(map(str, results)), reserved=live())
""",
        SPARKGUARD_LIMIT="100M",
    )
    assert said.results == "0-0-2"
    assert said.reserved == live(entry) == 3 * SEGMENT


@pytest.mark.parametrize("failing, results", [("cuMemFreeAsync", "0-0"), ("cuMemPoolTrimTo", "0-2")])
def test_growth_that_the_driver_does_not_take_back_is_counted(sim, failing, results):
    done = sim.script(
        f"""
start()
pool, keep = c_void_p(), c_uint64(GIB)
ok(cuda.cuDeviceGetDefaultMemPool(byref(pool), 0))
ok(cuda.cuMemPoolSetAttribute(pool, 4, byref(keep)))  # or the synchronisation gives it back
taken = [take("cuMemAlloc_v2", 40 * MIB)[0]]
fail("{failing}", 1, 700)
result, p = take("cuMemAllocAsync", 20 * MIB, None)
say(results=f"{{taken[0]}}-{{result}}", held=live())
""",
        SPARKGUARD_LIMIT="100M",
        SGSIM_POOL_STEP="80M",  # more than pools are known to take at once
    )
    assert done.results == results
    assert done.held == live(done.process) == 120 * MIB


def test_pool_block_may_be_freed_by_memfree(sim):
    done = sim.script(
        """
start()
p = take("cuMemAllocAsync", MIB, None)[1]
ok(cuda.cuMemFree_v2(c_uint64(p)))
say(reserved=live())
"""
    )
    device = done.process["domains"]["device"]
    assert device["live_bytes"] == done.reserved == SEGMENT
    assert (device["allocations"], device["frees"]) == (1, 1)


def test_pool_that_could_not_be_destroyed_is_still_counted(sim):
    points = sim.script_points(
        POOL
        + """
from_pool(MIB)
fail("cuMemPoolDestroy", 1, 700)
say(result=cuda.cuMemPoolDestroy(pool))
quiet(reserved=live())
"""
    )
    [(said, entry)] = points
    assert said.result == 700 and said.reserved == live(entry) == SEGMENT


def test_destroyed_pool_stays_counted_while_a_block_lives(sim):
    """cuda.h: the resources are released once there are no more outstanding allocations."""
    points = sim.script_points(
        POOL
        + """
_, p = from_pool(MIB)
ok(cuda.cuMemPoolDestroy(pool))
quiet(reserved=live())
ok(cuda.cuMemFreeAsync(c_uint64(p), None))
quiet(reserved=live())
"""
    )
    figures = [(said.reserved, live(entry)) for said, entry in points]
    assert figures == [(SEGMENT, SEGMENT), (0, 0)]


@pytest.mark.parametrize("props, domain", [("PoolProps(1, 0, Location(2, 0))", "pinned"), ("PoolProps(2, 0, Location(1, 0))", "managed")])
def test_pool_that_is_not_on_the_device_counts_where_it_is(sim, props, domain):
    points = sim.script_points(
        f"""
start()
pool, p = c_void_p(), c_uint64()
ok(cuda.cuMemPoolCreate(byref(pool), byref({props})))
ok(cuda.cuMemAllocFromPoolAsync(byref(p), c_size_t(MIB), pool, None))
quiet(taken=live("{domain}"))
"""
    )
    [(said, entry)] = points
    assert said.taken == SEGMENT
    assert (live(entry, domain), live(entry)) == (SEGMENT, 0)


# ---- virtual memory management --------------------------------------------------------------------------------------

VMM = """
start()
SIZE = 4 * MIB
def create(prop=ON_DEVICE):
    h = c_uint64()
    ok(cuda.cuMemCreate(byref(h), c_size_t(SIZE), byref(prop), c_ulonglong(0)))
    return h
def reserve(count=1):
    a = c_uint64()
    ok(cuda.cuMemAddressReserve(byref(a), c_size_t(count * SIZE), c_size_t(0), c_uint64(0), c_ulonglong(0)))
    return a.value
def map(address, h):
    ok(cuda.cuMemMap(c_uint64(address), c_size_t(SIZE), c_size_t(0), h, c_ulonglong(0)))
def unmap(address, count=1):
    ok(cuda.cuMemUnmap(c_uint64(address), c_size_t(count * SIZE)))
def release(h):
    ok(cuda.cuMemRelease(h))
def share(h, kind=8):
    s = (ctypes.c_char * 64)() if kind == 8 else c_int()
    ok(cuda.cuMemExportToShareableHandle(byref(s), h, kind, c_ulonglong(0)))
    return s
def imported(s, kind=8):
    h = c_uint64()
    ok(cuda.cuMemImportFromShareableHandle(byref(h), s if kind == 8 else c_void_p(s.value if isinstance(s, c_int) else s), kind))
    return h
def point():
    quiet(device=live("device"), pinned=live("pinned"))
"""

SIZE = 4 * MIB
VMM_CASES = {
    "released_while_mapped_stays_until_unmapped": ("h = create(); a = reserve(); map(a, h); release(h); point(); unmap(a); point()", [1, 0]),
    "unmapped_while_referenced_stays_until_released": ("h = create(); a = reserve(); map(a, h); unmap(a); point(); release(h); point()", [1, 0]),
    "never_mapped_goes_with_its_release": ("h = create(); point(); release(h); point()", [1, 0]),
    "several_mappings_of_one_handle_count_once": (
        "h = create(); a = reserve(3); [map(a + i * SIZE, h) for i in range(3)]; release(h); point(); unmap(a + SIZE); point(); unmap(a); point(); unmap(a + 2 * SIZE); point()",
        [1, 1, 1, 0],
    ),
    "one_unmap_over_several_mappings": (
        "hs = [create() for _ in range(3)]; a = reserve(3); [map(a + i * SIZE, h) for i, h in enumerate(hs)]; release(hs[0]); release(hs[1]); point(); unmap(a, 3); point(); release(hs[2]); point()",
        [3, 1, 0],
    ),
    "retained_handle_needs_one_more_release": (
        "h = create(); a = reserve(); map(a, h); r = c_uint64(); ok(cuda.cuMemRetainAllocationHandle(byref(r), c_uint64(a))); release(h); unmap(a); point(); release(r); point()",
        [1, 0],
    ),
    "retained_after_the_last_release": (
        "h = create(); a = reserve(); map(a, h); release(h); r = c_uint64(); ok(cuda.cuMemRetainAllocationHandle(byref(r), c_uint64(a))); unmap(a); point(); release(r); point()",
        [1, 0],
    ),
    "retained_by_an_address_inside": (
        "h = create(); a = reserve(); map(a, h); release(h); r = c_uint64(); ok(cuda.cuMemRetainAllocationHandle(byref(r), c_uint64(a + 2 * MIB))); unmap(a); point(); release(r); point()",
        [1, 0],
    ),
    "imported_again_needs_one_more_release": (
        "h = create(); r = imported(share(h)); release(h); point(); a = reserve(); map(a, r); release(r); point(); unmap(a); point()",
        [1, 1, 0],
    ),
    "exporter_outlives_what_is_imported_under_another_number": (
        "h = create(); r = imported(share(h, 1), 1); a = reserve(); map(a, r); release(r); unmap(a); point(); release(h); point()",
        [1, 0],
    ),
    "failed_import_keeps_nothing": (
        "h = create(); s = share(h, 1); fail('cuMemImportFromShareableHandle', 1, 700); q = c_uint64(); assert cuda.cuMemImportFromShareableHandle(byref(q), c_void_p(s.value), 1) == 700; point(); release(h); point()",
        [1, 0],
    ),
    "mapped_anew_after_unmap": ("h = create(); a = reserve(); map(a, h); unmap(a); map(a, h); release(h); point(); unmap(a); point()", [1, 0]),
}


@pytest.mark.parametrize("case", VMM_CASES)
@pytest.mark.parametrize("domain, prop", [("device", "ON_DEVICE"), ("pinned", "ON_HOST")])
def test_handle(sim, case, domain, prop):
    text, expected = VMM_CASES[case]
    points = list(sim.script_points(VMM + text.replace("create()", f"create({prop})")))
    assert [live(entry, domain) for _, entry in points] == [n * SIZE for n in expected]
    assert [getattr(said, domain) for said, _ in points] == [n * SIZE for n in expected]
    other = "pinned" if domain == "device" else "device"
    assert {live(entry, other) for _, entry in points} == {0}
    last = points[-1][1]["domains"][domain]
    assert last["allocations"] == last["frees"] == max(expected)
    assert points[-1][1]["unmatched_frees"] == 0


def test_what_is_given_back_while_the_driver_shuts_down_is_gone(sim):
    """CUDA_ERROR_DEINITIALIZED: so destructors find it that run behind the driver's own."""
    done = sim.script(
        VMM
        + """
h = create(); a = reserve(); map(a, h)
for symbol, given in ("cuMemUnmap", (c_uint64(a), c_size_t(SIZE))), ("cuMemRelease", (h,)), ("cuMemFree_v2", (c_uint64(take("cuMemAlloc_v2", MIB)[1]),)):
    fail(symbol, 1, 4)
    assert call(symbol, *given) == 4
"""
    )
    assert done.process["domains"]["device"]["live_bytes"] == 0


def test_handle_and_address_of_what_went_unseen_are_those_of_new_memory(sim):
    """The driver gives both again; here it calls its own exports in between, as inside of another call."""
    points = list(
        sim.script_points(
            VMM
            + """
def unseen(work):
    kept = ctypes.CFUNCTYPE(None)(work)
    cuda.sgsim_inside(b"cuMemHostRegister_v2", 1, kept)
    cuda.cuMemHostRegister_v2(None, c_size_t(0), c_uint(0))
h = create()
unseen(lambda: release(h))
again = create()
assert again.value == h.value
point()
a = reserve()
map(a, again)
unseen(lambda: unmap(a))
map(a, again)
release(again)
point()
unmap(a)
point()
"""
        )
    )
    assert [live(entry) for _, entry in points] == [said.device for said, _ in points] == [SIZE, SIZE, 0]
    assert points[-1][1]["unmatched_frees"] == 2


@pytest.mark.parametrize("kind", [1, 8])
def test_what_another_process_exported_is_counted_there_only(sim, kind):
    """And a descriptor received under the number of an own one that was closed is no import of one's own."""
    points = sim.script_points(
        VMM.replace("start()\n", "")
        + f"""
import os, socket
here, there = socket.socketpair()
pid = os.fork()
if pid == 0:
    start()
    h = create()
    s = share(h, {kind})
    socket.send_fds(there, [b"-"], [s.value]) if {kind} == 1 else there.send(bytes(s))
    there.recv(1)
    os._exit(0)
start()
own = create()
mine = share(own, {kind})
if {kind} == 1:
    os.close(mine.value)
    _, [theirs], *_ = socket.recv_fds(here, 1, 1)
    assert theirs == mine.value, "not the same number"
else:
    theirs = (ctypes.c_char * 64).from_buffer_copy(here.recv(64))
r = imported(theirs, {kind})
a = reserve(); map(a, r); release(r)
point()
release(own)
point()
unmap(a)
point()
here.send(b"-")
os.waitpid(pid, 0)
""",
    )
    assert [(said.device, live(entry)) for said, entry in points] == [(SIZE, SIZE), (0, 0), (0, 0)]


def test_import_of_an_own_export_counts_with_the_handle_that_was_exported(sim):
    """Under another number it is like an import of another process's memory (docs/assumptions.md)."""
    points = sim.script_points(
        VMM + "h = create(); r = imported(share(h, 1), 1); assert r.value != h.value; a = reserve(); map(a, r); point(); release(h); point(); unmap(a); release(r); point()"
    )
    assert [(said.device, live(entry)) for said, entry in points] == [(SIZE, SIZE), (SIZE, 0), (0, 0)]


def test_handle_number_used_again_is_a_new_handle(sim):
    points = sim.script_points(
        VMM
        + """
first = create(); release(first)
second = create()
a = reserve(); map(a, second); release(second)
print("same", int(first.value == second.value))
point()
unmap(a)
point()
"""
    )
    figures = [live(entry) for _, entry in points]
    assert figures == [SIZE, 0]


def test_nothing_waits_for_an_unmap_that_waits_for_the_device(sim):
    """cuda.h: cuMemUnmap may synchronise. Meanwhile other threads allocate, and fork."""
    done = sim.script(
        f"""
import os, threading, time
until = {str(sim.scratch / "until")!r}
start()
h, a = c_uint64(), c_uint64()
ok(cuda.cuMemCreate(byref(h), c_size_t(2 * MIB), byref(ON_DEVICE), c_ulonglong(0)))
ok(cuda.cuMemAddressReserve(byref(a), c_size_t(2 * MIB), c_size_t(0), c_uint64(0), c_ulonglong(0)))
ok(cuda.cuMemMap(a, c_size_t(2 * MIB), c_size_t(0), h, c_ulonglong(0)))
ok(cuda.cuMemRelease(h))
cuda.sgsim_hold(b"cuMemUnmap", 1, until.encode())
results = []
thread = threading.Thread(target=lambda: results.append(cuda.cuMemUnmap(a, c_size_t(2 * MIB))))
thread.start()
while not os.path.exists(until + ".held"):
    time.sleep(0.001)  # poll: the thread is in the driver
taken = cuda.cuMemCreate(byref(h), c_size_t(4 * MIB), byref(ON_DEVICE), c_ulonglong(0))
child = os.fork()
if child == 0:
    os._exit(0)
os.waitpid(child, 0)
open(until, "w").close()  # who waits for the unmapping never comes here
thread.join()
say(taken=taken, unmapped=results[0], held=live("device"))
"""
    )
    assert (done.taken, done.unmapped, done.held) == (0, 0, 4 * MIB)
    assert done.process["domains"]["device"]["live_bytes"] == 4 * MIB


# A driver of a few functions, whose imported handles are new numbers and whose cuMemUnmap
# calls the exported cuMemRelease for handle 7; what is at 9 MiB it does not unmap.
SMALL_DRIVER = """
#include <stddef.h>
static unsigned long long next = 6;
static int releases;
int cuCtxGetDevice(int *d) { *d = 0; return 0; }
int cuMemCreate(unsigned long long *h, size_t n, const void *p, unsigned long long f) { *h = ++next; return 0; }
int cuMemImportFromShareableHandle(unsigned long long *h, void *o, int t) { *h = ++next; return 0; }
int cuMemMap(unsigned long long p, size_t n, size_t o, unsigned long long h, unsigned long long f) { return 0; }
int cuMemRelease(unsigned long long h) { releases++; return 0; }
int cuMemUnmap(unsigned long long p, size_t n) { return p == 0x900000 ? 700 : cuMemRelease(7); }
int releases_of(void) { return releases; }
void sgsim_live_bytes(void) {}
void sgsim_calls(void) {}
void sgsim_touch(void) {}
"""


def test_unmap_finds_all_it_counts_and_counts_a_drivers_own_calls_not_at_all(sim):
    sim.compile("libcuda.so.1", SMALL_DRIVER, "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1")
    points = sim.script_points(
        """
def create(size):
    h = c_uint64()
    ok(cuda.cuMemCreate(byref(h), c_size_t(size), byref(ON_DEVICE), c_ulonglong(0)))
    return h
def place(at, h, size):
    ok(cuda.cuMemMap(c_uint64(at), c_size_t(size), c_size_t(0), h, c_ulonglong(0)))
first, second, third = create(2 * MIB), create(4 * MIB), create(8 * MIB)
imported = c_uint64()
ok(cuda.cuMemImportFromShareableHandle(byref(imported), None, 8))
place(16 * MIB, imported, 2 * MIB); place(18 * MIB, second, 4 * MIB); place(22 * MIB, imported, 2 * MIB)
place(24 * MIB, third, 8 * MIB)
place(0x900000, first, 2 * MIB)
for h in second, third, imported:
    ok(cuda.cuMemRelease(h))
quiet()
say(failed=cuda.cuMemUnmap(c_uint64(0x900000), c_size_t(2 * MIB)))
ok(cuda.cuMemUnmap(c_uint64(16 * MIB), c_size_t(16 * MIB)))
quiet(releases=cuda.releases_of())
ok(cuda.cuMemRelease(first))
quiet()
""",
        LD_LIBRARY_PATH=sim.scratch,
    )
    figures = [(vars(said), entry["domains"]["device"]["live_bytes"] // MIB) for said, entry in points]
    assert figures == [({}, 14), ({"failed": 700, "releases": 4}, 2), ({}, 2)], "the first one is still mapped"
