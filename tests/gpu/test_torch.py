"""PyTorch on a GPU under the guard: it is refused as by a card that is full, and everything else is as it was."""

import statistics

import pytest
from gpu import GIB, MIB, find_gpu

pytestmark = [pytest.mark.timeout_seconds(600), pytest.mark.usefixtures("torch")]

LIMIT = {"SPARKGUARD_LIMIT": "12G"}
LARGE, STEP = 16 * GIB, 512 * MIB
SETTINGS = {"plain": None, "expandable": "expandable_segments:True", "async": "backend:cudaMallocAsync"}
DETERMINISTIC = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}


@pytest.fixture(params=SETTINGS)
def allocator(request):
    """The variables of one of PyTorch's allocators; newer versions read the second name."""
    setting = SETTINGS[request.param]
    return {"PYTORCH_CUDA_ALLOC_CONF": setting, "PYTORCH_ALLOC_CONF": setting}


def script(gpu, name, *arguments):
    return gpu.script(name, *arguments, module="torch")


def test_import_and_first_tensor_are_as_without_the_guard(gpu):
    said, _ = gpu.same(script(gpu, "torch_import.py"))
    assert "torch" in said.splitlines()


def test_out_of_memory_is_caught_and_it_goes_on(gpu, allocator, note):
    if find_gpu().total_bytes < 20 * GIB:
        pytest.skip("needs a card of 20 GiB")
    done = gpu.values(script(gpu, "torch_refused.py", LARGE, STEP), **LIMIT, **allocator)
    device = done.process["domains"]["device"]
    note(blocks_of_512_mib=done.blocks, refused=done.process["refused_count"], device_peak_mib=device["peak_bytes"] // MIB)
    assert (done.large, done.smaller, done.kept) == ("OutOfMemoryError", "True", "True")
    assert (done.many, done.all_right, done.again) == ("OutOfMemoryError", "True", "True")
    assert 8 * GIB <= (done.blocks + 1) * STEP <= device["peak_bytes"] <= 12 * GIB
    assert {r["reason"] for r in done.process["refusals"]} == {"limit"} and done.process["unmatched_frees"] == 0


def test_reported_peak_is_what_pytorch_had_reserved(gpu, allocator, note):
    done = gpu.values(script(gpu, "torch_peak.py"), **allocator)
    device = done.process["domains"]["device"]
    note(max_memory_reserved_mib=done.max_reserved / MIB, device_peak_mib=round(device["peak_bytes"] / MIB, 2))
    assert done.max_reserved <= device["peak_bytes"] <= done.max_reserved + 64 * MIB
    assert (done.process["refused_count"], done.process["unmatched_frees"]) == (0, 0)


def test_training_gives_the_same_losses_to_the_bit(gpu, allocator, note):
    said, _ = gpu.same(script(gpu, "torch_train.py"), **allocator, **DETERMINISTIC)
    losses = [float.fromhex(line) for line in said.splitlines()]
    note(losses=len(losses), first=round(losses[0], 4), last=round(losses[-1], 4))
    assert len(losses) == 30 and losses[-1] < losses[0]


def test_graph_gives_the_same_bits(gpu, allocator):
    said, _ = gpu.same(script(gpu, "torch_graph.py"), **allocator, **DETERMINISTIC)
    assert said.count("True") == 8


def test_workers_of_a_data_loader_bring_everything(gpu, note):
    said, process = gpu.same(script(gpu, "torch_loader.py"))
    pinned = process["domains"]["pinned"]["peak_bytes"]
    note(pinned_peak_mib=round(pinned / MIB, 2))
    assert said == "batches 16\npinned True\nright True\n" and pinned >= 2 * MIB


def test_numbers_of_a_card_are_its_own(card, note):
    plain, done = card.plain(script(card, "torch_room.py")), card.values(script(card, "torch_room.py"))
    note(total_mib=done.total // MIB, free_mib=done.free // MIB, free_without_mib=plain.free // MIB)
    assert (done.total, done.properties_total) == (plain.total, plain.properties_total)
    assert abs(done.free - plain.free) <= 64 * MIB


def test_limit_bounds_what_a_spark_says_is_free(gpu, note):
    done = gpu.values(script(gpu, "torch_room.py"), SPARKGUARD_UNIFIED="on", **LIMIT)
    note(total_mib=done.total // MIB, free_mib=done.free // MIB)
    assert GIB <= done.free <= done.total <= 12 * GIB


def test_time_of_allocations(gpu, note, pairs):
    """Written down; judged is only that all of them succeed."""
    command, variables = script(gpu, "torch_time.py", pairs), {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    rounds = [[f(command, **variables).nanoseconds for f in (gpu.plain, gpu.values, gpu.plain)] for _ in range(3)]
    added, noise = (statistics.median(r[i] - r[0] for r in rounds) for i in (1, 2))
    note(allocations=pairs, plain_ns=statistics.median(r[0] for r in rounds), added_ns=added, noise_ns=noise)
