"""A driver that takes linear device memory in chunks of 2 MiB: what is counted against what it takes.

The guard counts what was asked for. A block of up to 1 MiB shares a chunk, in steps of 512 bytes; a larger one is rounded
up. docs/assumptions.md names the bounds that follow.
"""

import pytest
from conftest import GIB, MIB, OUT_OF_MEMORY, lists

CHUNK, STEP = 2 * MIB, 512
CHUNKS = {"SGSIM_CHUNK": "2M"}

TAKE = """
blocks, result = [], 0
while result == 0 and len(blocks) < %d:
    result, address = take("cuMemAlloc_v2", %d)
    blocks += [address] if result == 0 else []
say(granted=len(blocks), result=result, asked=live("device"), pages=live("pages"))
"""


@pytest.mark.parametrize(
    "count, size, chunks",
    [(10000, 256, 3), (10000, 1, 3), (1000, MIB + 1, 1000), (1000, MIB, 500), (100, 20 * MIB, 1000)],
)
def test_sum_of_requests_is_too_low_by_less_than_a_chunk_and_the_rest_of_each_step(sim, count, size, chunks):
    done = sim.script("start()" + TAKE % (count, size), **CHUNKS, **sim.machine())
    counted = done.process["domains"]["device"]["peak_bytes"]
    assert (done.granted, done.asked, done.pages) == (count, count * size, chunks * CHUNK)
    assert counted == count * size
    assert counted <= done.pages < counted + count * ((STEP if size <= MIB else CHUNK) - 1) + CHUNK


@pytest.mark.parametrize("size", [MIB + 1, 2 * MIB - 1, 3 * MIB + 1])
def test_limit_is_passed_by_less_than_a_chunk_for_each_block(sim, size):
    """LIMIT bounds what was asked for: of blocks just above 1 MiB the driver holds twice as much."""
    done = sim.script("start()" + TAKE % (1000, size), SPARKGUARD_LIMIT="256M", **CHUNKS, **sim.machine())
    [refusal] = done.process["refusals"]
    assert (done.result, refusal["reason"]) == (OUT_OF_MEMORY, "limit")
    assert done.asked <= 256 * MIB and refusal["usable_bytes"] < size
    assert done.asked < done.pages < done.asked + done.granted * CHUNK


@pytest.mark.parametrize("size", [1, 256, MIB, MIB + 1, 3 * MIB + 1])
@pytest.mark.parametrize("kind", ["gb10", "discrete"])
def test_reserve_is_passed_by_less_than_a_chunk(sim, kind, size):
    """It is kept of what is there, not of a sum. With a limit each request is judged by a snapshot of its own."""
    room, fill = 16 * CHUNK, 2 * GIB
    variables = {"SPARKGUARD_LIMIT": "1T", "SGSIM_KIND": kind} | CHUNKS
    if kind == "gb10":
        variables |= sim.machine(4 * GIB) | {"SPARKGUARD_RESERVE": 4 * GIB - fill - room - lists(fill + room)}
    else:
        variables |= sim.machine() | {"SGSIM_MEMORY": "4G", "SPARKGUARD_DEVICE_RESERVE": 4 * GIB - fill - room}
    begin = f"start()\nok(take('cuMemAlloc_v2', {fill})[0])\nok(take('cuMemAlloc_v2', {room - 2 * CHUNK})[0])\n"
    done = sim.script(begin + TAKE % (20000, size), **variables)
    assert done.result == OUT_OF_MEMORY
    untouched = 8 * MIB if kind == "gb10" else 0  # what an interpreter maps and never touches is promised
    assert fill + room - CHUNK - untouched <= done.pages < fill + room + CHUNK


def test_freed_blocks_go_back_by_the_chunk_and_are_counted_at_once(sim):
    """One block of each chunk stays: the driver keeps all of them, and what is counted is what the program holds."""
    points = sim.script_points(
        """
start()
blocks = [take("cuMemAlloc_v2", 1024)[1] for _ in range(8 * 2048)]
quiet(asked=live("device"), pages=live("pages"))
for i, address in enumerate(blocks):
    if i % 2048:
        give(address)
quiet(asked=live("device"), pages=live("pages"))
for address in blocks[::2048]:
    give(address)
quiet(asked=live("device"), pages=live("pages"))
""",
        **CHUNKS,
        **sim.machine(),
    )
    figures = [(said.asked, entry["domains"]["device"]["live_bytes"], said.pages) for said, entry in points]
    assert figures == [(8 * CHUNK, 8 * CHUNK, 8 * CHUNK), (8192, 8192, 8 * CHUNK), (0, 0, 0)]
