"""CUDA programs in C under the guard, with the shared and the static runtime. Nothing here asks for more managed memory
than a card has, and a card that plays a Spark (SPARKGUARD_UNIFIED=on) is asked for plain memory only."""

import json
import re
import statistics

import pytest
from gpu import BUILD, GIB, MIB, OUT_OF_MEMORY

pytestmark = pytest.mark.timeout_seconds(600)

LIMIT = {"SPARKGUARD_LIMIT": "4G"}
LARGE, SMALL = 6 * GIB, 64 * MIB
GRANULE = 2 * MIB

# name: domain, what the refused call is named where the runtime is shared, and where it is static
KINDS = {
    "malloc": ("device", "cudaMalloc", "cuMemAlloc"),
    "pitch": ("device", "cudaMallocPitch", "cuMemAllocPitch"),
    "3d": ("device", "cudaMalloc3D", "cuMemAllocPitch"),
    "managed": ("managed", "cudaMallocManaged", "cuMemAllocManaged"),
    "host": ("pinned", "cudaMallocHost", "cuMemHostAlloc"),
    "host_alloc": ("pinned", "cudaHostAlloc", "cuMemHostAlloc"),
    "async": ("device", "cudaMallocAsync", "cuMemAllocAsync"),
    "pool": ("device", "cudaMallocFromPoolAsync", "cuMemAllocFromPoolAsync"),
    "array": ("device", "cudaMallocArray", "cuArray3DCreate"),
    "mipmapped": ("device", "cudaMallocMipmappedArray", "cuMipmappedArrayCreate"),
    "mapped": ("device", "cuMemCreate", "cuMemCreate"),
    "graph": ("device", "cuGraphLaunch", "cuGraphLaunch"),
}
DRIVER_CALLS = ("mapped", "graph")  # the runtime does not see them fail


def live(process, domain):
    return process["domains"][domain]["live_bytes"]


@pytest.mark.parametrize("kind", KINDS)
def test_too_much_is_refused_and_what_fits_is_counted(gpu, runtime, note, kind):
    domain, *words = KINDS[kind]
    command = gpu.program("gpu_take", runtime, kind, LARGE, SMALL)
    (_, before), (said, held), (_, after) = gpu.quiet_points(command, SPARKGUARD_MEMINFO="raw", **LIMIT)
    counted = live(held, domain) - live(before, domain)
    note(counted_mib=round(counted / MIB, 2), driver_took_mib=round(said.took / MIB, 2))

    last_error = 0 if kind in DRIVER_CALLS else OUT_OF_MEMORY
    assert (said.large, said.get, said.again, said.small) == (OUT_OF_MEMORY, last_error, 0, 0)
    assert said.works != 0
    assert [r["call"] for r in held["refusals"]] == [words[runtime == "static"]]
    assert SMALL <= counted <= SMALL + 34 * MIB
    if domain == "device" and not gpu.is_unified:
        assert abs(counted - said.took) <= GRANULE
    assert (live(after, domain), after["unmatched_frees"]) == (live(before, domain), 0)


@pytest.mark.parametrize("kind", ["malloc", "managed", "async", "array"])
def test_device_reset_gives_everything_back(gpu, runtime, kind):
    command = gpu.program("gpu_take", runtime, kind, LARGE, SMALL, "reset")
    *_, (_, after) = gpu.quiet_points(command, **LIMIT)
    assert (live(after, "device"), live(after, "managed"), after["unmatched_frees"]) == (0, 0, 0)


@pytest.mark.parametrize("entry", ["dlsym", "address4", "address5", "entry_point"])
def test_each_entry_point_of_the_driver_is_guarded(gpu, runtime, entry):
    done = gpu.values(gpu.program("gpu_entry_points", runtime, entry, LARGE, SMALL), **LIMIT)
    assert (done.large, done.untouched, done.small) == (OUT_OF_MEMORY, 1, 0)
    assert [r["call"] for r in done.process["refusals"]] == ["cuMemAlloc"]


def test_python_with_ctypes_is_guarded(gpu):
    done = gpu.values(gpu.script("ctypes_entry_point.py", LARGE, SMALL), **LIMIT)
    assert (done.large, done.untouched, done.small) == (OUT_OF_MEMORY, 1, 0)
    assert [r["call"] for r in done.process["refusals"]] == ["cuMemAlloc"]


def test_observing_refuses_nothing(gpu, runtime):
    done = gpu.values(gpu.program("gpu_room", runtime, GIB), SPARKGUARD_LIMIT="512M", SPARKGUARD_MODE="observe")
    assert (done.exact, done.more) == (0, 0) and done.process["refused_count"] >= 2


def test_numbers_of_a_card_are_its_own_and_its_reserve_is_kept(card, runtime, note):
    plain = card.plain(card.program("gpu_room", runtime, SMALL))
    done = card.values(card.program("gpu_room", runtime))
    note(total_mib=done.total // MIB, free_mib=done.free // MIB, free_without_mib=plain.free // MIB)
    assert done.total == plain.total and abs(done.free - plain.free) <= 64 * MIB
    assert (done.exact, done.more) == (OUT_OF_MEMORY, OUT_OF_MEMORY)
    assert [r["reason"] for r in done.process["refusals"]] == ["device", "device"]
    assert card.values(card.program("gpu_room", runtime, done.free * 9 // 10)).exact == 0


def test_limit_bounds_what_a_spark_says_is_free(gpu, runtime, note):
    done = gpu.values(gpu.program("gpu_room", runtime), SPARKGUARD_UNIFIED="on", **LIMIT)
    note(total_mib=done.total // MIB, free_mib=done.free // MIB)
    assert GIB <= done.free <= done.total <= 4 * GIB
    assert (done.exact, done.more) == (0, OUT_OF_MEMORY)
    assert [r["reason"] for r in done.process["refusals"]] == ["limit"]


def test_what_does_not_fit_beside_the_reserve_of_a_spark_is_refused(gpu, runtime, available_bytes):
    """Of all that is available only 4 GiB are not reserved. The pools of a driver may have more, but not all of it."""
    variables = {"SPARKGUARD_UNIFIED": "on", "SPARKGUARD_RESERVE": available_bytes - 4 * GIB}
    assert gpu.values(gpu.program("gpu_room", runtime, GIB), **variables).exact == 0
    size = available_bytes if gpu.has_pools else LARGE
    done = gpu.values(gpu.program("gpu_room", runtime, size), **variables)
    assert done.exact == OUT_OF_MEMORY and {r["reason"] for r in done.process["refusals"]} == {"reserve"}


def test_nvml_says_what_the_card_says(card, note):
    plain, done = card.plain(card.script("nvml_info.py")), card.values(card.script("nvml_info.py"))
    note(total_mib=done.total // MIB, used_mib=done.used // MIB)
    assert (done.result, done.total, done.total2) == (0, plain.total, plain.total2)


@pytest.mark.parametrize("size", [64 << 10, 64 * MIB], ids=["64 KiB", "64 MiB"])
def test_time_of_allocations(gpu, runtime, note, pairs, size):
    """Written down; judged is only that all of them succeed. A real driver takes its time for large ones: fewer of these."""
    pairs = pairs if size < MIB else pairs // 10
    command = gpu.program("gpu_time", runtime, size, pairs)
    rounds = [[f(command).nanoseconds for f in (gpu.plain, gpu.values, gpu.plain)] for _ in range(3)]
    added, noise = (statistics.median(r[i] - r[0] for r in rounds) for i in (1, 2))
    note(allocations=pairs, plain_ns=statistics.median(r[0] for r in rounds), added_ns=added, noise_ns=noise)


def test_what_is_assumed_of_the_driver_is_measured(gpu, runtime, note):
    """Figures for docs/assumptions.md, without the guard. Judged is only what the guard cannot do without."""
    done = gpu.plain(gpu.program("gpu_measure", runtime))
    mapped = done.managed_seen_bytes >= 128 * MIB
    note(
        integrated=done.integrated,
        pointers_are_exports=done.same_pointers,
        context_mib=done.context_bytes // MIB,
        pooled_mib=done.pooled_bytes // MIB,
        fall_mib=done.fall_bytes // MIB,
        pages_back_ms=done.back_ms,
        managed_in_cpu_tables="yes" if mapped else "no",
        managed_fall_mib=done.managed_fall_bytes // MIB,
        memory_info_ns=done.info_ns,
    )
    assert done.integrated == int(gpu.is_unified)
    if gpu.is_unified:
        assert done.fall_bytes >= 128 * MIB, "MemAvailable must be lower when the call returns and no pool has served it"


def test_what_the_guard_assumes_is_not_disproved(gpu, note):
    """The facts that a guarded program would find out, by sparkguard --check --cuda."""
    done = gpu.run([BUILD / "sparkguard", "--check", "--cuda", "--json"], LD_PRELOAD=None)
    said = json.loads(done.stdout)
    note(**{name: found for name, found in said["driver_facts"].items() if found != "unknown"})
    assert done.returncode != 1, said["lines"]
    assert gpu.is_unified or done.returncode == 3


# Of docs/assumptions.md, by number: variables for those that are measured under the guard.
WAITING = {"SPARKGUARD_LIMIT": "512M", "SPARKGUARD_WAIT": "30"}
ASSUMED = {3: None, 9: {}, 10: WAITING, 12: None, 13: None, 18: None, 19: None}
RESERVED = 3 * GIB // 2  # usable above the reserve: room for a context, which fills it soon


def assume(gpu, runtime, number, variables=ASSUMED, **more):
    """What gpu_assume says: (verdict, figures)."""
    command, guarded = gpu.program("gpu_assume", runtime, number), variables[number]
    done = gpu.run(command, **({"LD_PRELOAD": None} if guarded is None else guarded) | more)
    assert done.returncode == 0, done.stderr
    [line] = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    found = re.fullmatch(rf"RESULT {number} (holds|fails|unknown): (.*)", line)
    assert found, line
    return found.groups()


@pytest.mark.parametrize("number", ASSUMED)
def test_assumption_is_measured(gpu, runtime, note, number, available_bytes):
    """RESULT lines for docs/assumptions.md, written down: what follows where one does not hold, that page says."""
    unified = {"SPARKGUARD_UNIFIED": "on", "SPARKGUARD_RESERVE": available_bytes - RESERVED}
    verdict, figures = assume(gpu, runtime, number, **unified if number == 9 else {})
    note(verdict=verdict, measured=figures)
