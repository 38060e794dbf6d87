"""A refused CUDA request: each call of CUDA, by each entry point, answers as a driver that is out of memory."""

import re

import pytest
from conftest import MIB, OUT_OF_MEMORY, REFUSED_CALLS

LARGE, SMALL = 128 * MIB, 8 * MIB
POOL_SEGMENT = 32 * MIB  # what the simulated pool reserves for a small block

# The runtime's calls: the word the static runtime's user sees, the domain.
RUNTIME = {
    "cudaMalloc": ("cuMemAlloc", "device"),
    "cudaMallocManaged": ("cuMemAllocManaged", "managed"),
    "cudaMallocHost": ("cuMemHostAlloc", "pinned"),
    "cudaHostAlloc": ("cuMemHostAlloc", "pinned"),
    "cudaMallocPitch": ("cuMemAllocPitch", "device"),
    "cudaMalloc3D": ("cuMemAllocPitch", "device"),
    "cudaMallocArray": ("cuArray3DCreate", "device"),
    "cudaMalloc3DArray": ("cuArray3DCreate", "device"),
    "cudaMallocAsync": ("cuMemAllocAsync", "device"),
    "cudaMallocAsync_ptsz": ("cuMemAllocAsync", "device"),
    "cudaMallocFromPoolAsync": ("cuMemAllocFromPoolAsync", "device"),
    "cudaMallocFromPoolAsync_ptsz": ("cuMemAllocFromPoolAsync", "device"),
}


def refuse(sim, program, entry, call):
    command = [sim.program(program), "refuse", entry, call, LARGE, SMALL]
    return sim.values(command, SPARKGUARD_LIMIT="64M")


def check_driver_side(done):
    assert done.large == OUT_OF_MEMORY
    assert done.reached == 0, "the driver was called"
    assert done.untouched == 1
    assert done.small == 0 and done.freed == 0


def check_report(done, word, domain, is_pool):
    process = done.process
    [refusal] = process["refusals"]
    assert (refusal["call"], refusal["domain"], refusal["reason"]) == (word, domain, "limit")
    assert refusal["size_bytes"] == LARGE
    assert 63 * MIB < refusal["usable_bytes"] <= 64 * MIB
    assert (process["refused_count"], process["refused_bytes"]) == (1, LARGE)
    assert done.held == (POOL_SEGMENT if is_pool else SMALL)
    assert process["domains"][domain] == {
        "live_bytes": done.left,
        "peak_bytes": done.held,
        "allocations": 1,
        "frees": 1,
        "refused_count": 1,
    }
    for other in {"device", "pinned", "managed"} - {domain}:
        assert set(process["domains"][other].values()) == {0}
    assert process["unmatched_frees"] == 0


def check_message(done, word, pid):
    line, way_out = done.stderr.splitlines()
    assert re.fullmatch(
        rf"sparkguard: refused {word} of 128\.0 MiB: (64\.0|63\.9) MiB of room in the 64\.0 MiB this job may hold "
        rf"\(SPARKGUARD_LIMIT\); this process holds [0-9.]+ (B|KiB), peak [0-9.]+ [KM]iB; see sparkguard-report {pid}",
        line,
    ), line
    assert re.fullmatch(r"try: SPARKGUARD_LIMIT=(\d+\.\d)M; a limit of \1 MiB would have been enough for this request", way_out), way_out


@pytest.mark.parametrize("program", ["cuda_calls", "cuda_calls_static"])
@pytest.mark.parametrize("call", RUNTIME)
def test_refused_runtime_call_answers_as_out_of_memory(sim, call, program):
    done = refuse(sim, program, "linked", call)
    word, domain = RUNTIME[call]
    if program == "cuda_calls":
        word = call.removesuffix("_ptsz")
    check_driver_side(done)
    assert done.peek == done.get == OUT_OF_MEMORY
    assert done.get_again == 0
    assert done.last_after_small == 0
    check_report(done, word, domain, "Async" in call)
    check_message(done, word, done.process["pid"])


@pytest.mark.parametrize("entry", ["linked", "dlsym", "address4", "address5"])
@pytest.mark.parametrize("call", REFUSED_CALLS)
def test_refused_driver_call_answers_as_out_of_memory(sim, call, entry):
    done = refuse(sim, "cuda_calls_static", entry, call)
    word, domain = REFUSED_CALLS[call]
    check_driver_side(done)
    assert done.peek == done.get == 0, "the runtime was not involved"
    check_report(done, word, domain, "Async" in call)
    check_message(done, word, done.process["pid"])


def test_every_call_is_covered(sim):
    listed = {line.split()[0] for line in sim.unguarded([sim.program("cuda_calls"), "list"]).stdout.splitlines()}
    assert listed == set(RUNTIME) | set(REFUSED_CALLS)


@pytest.mark.parametrize("call", [*RUNTIME, *REFUSED_CALLS])
def test_requests_are_granted_up_to_the_limit_and_again_after_their_frees(sim, call):
    """Three times 20 MiB fit into 65, not four times; pools grow by 32 MiB, also while they have room in pieces."""
    done = sim.values([sim.program("cuda_calls"), "fill", "linked", call, 20 * MIB, 9], SPARKGUARD_LIMIT="65M")
    assert done.result == OUT_OF_MEMORY
    assert done.granted == (2 if "Async" in call else 3)
    assert done.held <= 65 * MIB
    assert done.after == 0


@pytest.mark.parametrize(
    "call, mib, is_told",
    [("cuMemHostAlloc", 2048, True), ("cuMemHostAlloc", 3072, False), ("cuMemHostAlloc", 1024, False), ("cuMemAlloc_v2", 2048, False)],
)
def test_pinned_memory_that_was_rounded_up_is_told_to_be(sim, call, mib, is_told):
    """PyTorch and LMCache ask for the next power of two: the line says that the program may need less."""
    more = ", c_uint(0)" if call == "cuMemHostAlloc" else ""
    done = sim.script(f"start()\nsay(refused=take({call!r}, {mib} * MIB{more})[0])", SPARKGUARD_LIMIT="64M")
    assert done.refused == OUT_OF_MEMORY
    clause = f"of {mib / 1024:.1f} GiB, a power of two, to which PyTorch and LMCache round pinned memory up: "
    assert (clause in done.stderr) == is_told and " MiB of room in the 64.0 MiB this job may hold" in done.stderr


def test_small_host_memory_of_the_driver_is_not_refused(sim):
    """Else a full process could not even free: the driver says what it likes where its own heap fails."""
    done = sim.run([sim.program("cuda_full")], SPARKGUARD_LIMIT="64M", SGSIM_HOST="600K")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert done.process()["refused_count"] > 0


def test_disabled_guard_refuses_nothing_and_leaves_no_record(sim):
    command = [sim.program("cuda_calls"), "refuse", "linked", "cudaMalloc", LARGE, SMALL]
    done = sim.run(command, SPARKGUARD_LIMIT="64M", SPARKGUARD_DISABLE="1")
    assert done.returncode == 0 and done.stderr == ""
    assert "large 0\nreached 1\n" in done.stdout
    assert done.report()["jobs"] == []


def test_observing_guard_lets_through_and_records_what_it_would_have_refused(sim):
    command = [sim.program("cuda_calls"), "refuse", "linked", "cudaMalloc", LARGE, SMALL]
    done = sim.values(command, SPARKGUARD_LIMIT="64M", SPARKGUARD_MODE="observe")
    assert (done.large, done.reached, done.get) == (0, 1, 0)
    assert "sparkguard: would have refused cudaMalloc of 128.0 MiB" in done.stderr
    assert done.process["mode"] == "observe"
    assert done.process["refusals"][0]["call"] == "cudaMalloc"
    assert done.process["domains"]["device"]["peak_bytes"] == LARGE + SMALL
