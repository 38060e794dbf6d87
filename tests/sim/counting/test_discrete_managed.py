"""Managed memory beside a discrete card draws on the machine's memory, device memory on the card's own.

Its pages may lie on either side: the card may evict each of them to the machine. So the whole of it is promised by the machine.
"""

from conftest import MIB, OUT_OF_MEMORY

TOTAL, RESERVE = 800 * MIB, 200 * MIB  # of the machine; a quarter of so small a one is kept in reserve
NEAR = 16 * MIB  # what small programs hold and are promised besides


def card(sim):
    """A card with far more memory than the machine has."""
    return sim.machine(TOTAL) | {"SGSIM_KIND": "discrete", "SGSIM_MEMORY": "4G"}


def test_managed_memory_that_fits_the_card_and_not_the_machine_is_refused(sim):
    text = f"""
start()
say(managed=take("cuMemAllocManaged", {TOTAL}, c_uint(1))[0], managed_calls=calls("cuMemAllocManaged"))
say(device=take("cuMemAlloc_v2", {TOTAL})[0])
"""
    done = sim.script(text, **card(sim))
    assert (done.managed, done.managed_calls, done.device) == (OUT_OF_MEMORY, 0, 0)


def test_managed_memory_takes_the_room_of_pinned_memory_and_none_of_the_card(sim):
    text = f"""
start()
ok(take("cuMemAllocManaged", {400 * MIB}, c_uint(1))[0])
say(pinned_beyond=take("cuMemHostAlloc", {TOTAL - RESERVE - 400 * MIB + MIB}, c_uint(0))[0])
say(pinned=take("cuMemHostAlloc", {TOTAL - RESERVE - 400 * MIB - NEAR}, c_uint(0))[0])
say(device=take("cuMemAlloc_v2", {3500 * MIB})[0])
"""
    done = sim.script(text, **card(sim))
    assert (done.pinned_beyond, done.pinned, done.device) == (OUT_OF_MEMORY, 0, 0)
    assert sim.machine_bytes("least_available") >= RESERVE


def test_touched_managed_memory_takes_the_machine_and_keeps_its_reserve(sim):
    text = f"""
start()
taken = 0
while True:
    result, address = take("cuMemAllocManaged", {50 * MIB}, c_uint(1))
    if result != 0:
        break
    ok(cuda.sgsim_touch(address, {50 * MIB}))
    taken += {50 * MIB}
say(result=result, taken=taken)
"""
    done = sim.script(text, **card(sim))
    most = (TOTAL - RESERVE - NEAR) // (50 * MIB) * 50 * MIB
    assert done.result == OUT_OF_MEMORY
    assert most - 50 * MIB <= done.taken <= most  # less what the interpreter has mapped and never touched
    assert sim.machine_bytes("least_available") >= RESERVE
