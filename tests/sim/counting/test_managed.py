"""Managed memory that the GPU touches first counts once, whether the driver maps its pages for the CPU or not.

Managed memory is lazy: it is promised when it is granted, and takes the machine's memory when something touches it. Where the
driver maps pages that the GPU touched into the CPU's page tables, the guard sees them there (SGSIM_MANAGED=mapped). Where it does
not, only the machine's figures tell (SGSIM_MANAGED=unmapped).
"""

import pytest
from conftest import MIB, OUT_OF_MEMORY

# 200 MiB are kept in reserve: a quarter of so small a machine.
TOTAL, RESERVE, CONTEXT = 800 * MIB, 200 * MIB, 16 * MIB
ROOM = TOTAL - RESERVE - CONTEXT
NEAR = 16 * MIB  # what small programs hold and are promised besides
BLOCK = 50 * MIB

WAYS = ["mapped", "unmapped"]
HELPERS = """
def managed(size):
    result, p = take("cuMemAllocManaged", size, c_uint(1))
    return result, p
def touch(p, size):
    ok(cuda.sgsim_touch(p, size))
"""


def machine(sim, way, **more):
    variables = sim.machine(TOTAL) | {"SGSIM_CONTEXT": CONTEXT, "SGSIM_LEDGER": None, "SGSIM_BACKING": None}
    sim.script("start()", **variables)  # measures a context
    sim.settle()
    return variables | {"SGSIM_MANAGED": way} | more


@pytest.mark.parametrize("way", WAYS)
def test_what_is_touched_piece_by_piece_fills_the_machine(sim, way):
    text = f"""
start()
result, loaded = 0, 0
while result == 0:
    result, p = managed({BLOCK})
    if result == 0:
        touch(p, {BLOCK})
        loaded += 1
say(result=result, loaded=loaded)
"""
    done = sim.script(HELPERS + text, **machine(sim, way))
    assert (done.result, done.loaded) == (OUT_OF_MEMORY, (ROOM - NEAR) // BLOCK)


@pytest.mark.parametrize("way", WAYS)
def test_what_is_not_touched_stays_promised(sim, way):
    text = f"""
start()
ok(managed({6 * BLOCK})[0])
say(too_much=take("cuMemAlloc_v2", {ROOM - 6 * BLOCK + MIB})[0], fits=take("cuMemAlloc_v2", {ROOM - 6 * BLOCK - NEAR})[0])
"""
    done = sim.script(HELPERS + text, **machine(sim, way))
    assert (done.too_much, done.fits) == (OUT_OF_MEMORY, 0)


@pytest.mark.parametrize("way", WAYS)
def test_half_of_it_touched_is_once_there_and_once_promised(sim, way):
    text = f"""
start()
result, p = managed({6 * BLOCK})
ok(result)
touch(p, {3 * BLOCK})
say(too_much=take("cuMemAlloc_v2", {ROOM - 6 * BLOCK + MIB})[0], fits=take("cuMemAlloc_v2", {ROOM - 6 * BLOCK - NEAR})[0])
give(p)
say(after=take("cuMemAlloc_v2", {5 * BLOCK})[0])
"""
    done = sim.script(HELPERS + text, **machine(sim, way))
    assert (done.too_much, done.fits, done.after) == (OUT_OF_MEMORY, 0, 0)


@pytest.mark.parametrize("way", WAYS)
def test_another_program_is_told_and_granted_the_rest(sim, way):
    variables = machine(sim, way)
    with sim.tenant(f"{HELPERS}start()\nresult, p = managed({6 * BLOCK})\nok(result)\ntouch(p, {6 * BLOCK})\nquiet()", **variables) as other:
        other.quiet()
        rest = ROOM - 6 * BLOCK - CONTEXT
        text = f"""
start()
free, total = info()
say(free=free, too_much=take("cuMemAlloc_v2", {rest + MIB})[0], fits=take("cuMemAlloc_v2", {rest - 2 * NEAR})[0])
"""
        done = sim.script(text, **variables)
        other.finish()
    assert rest - 2 * NEAR <= done.free <= rest
    assert (done.too_much, done.fits) == (OUT_OF_MEMORY, 0)


@pytest.mark.parametrize("way", WAYS)
def test_device_memory_of_others_is_not_taken_for_touched_pages(sim, way):
    """Taken before and after it, in this process and another, and given back: the promise stays."""
    variables = machine(sim, way)
    tenant = f"{HELPERS}start()\nquiet()\nok(take('cuMemAlloc_v2', {2 * BLOCK})[0])\nquiet()"
    text = f"""
start()
first = take("cuMemAlloc_v2", {BLOCK})[1]
ok(managed({4 * BLOCK})[0])
second = take("cuMemAlloc_v2", {BLOCK})[1]
quiet()
left = {ROOM - CONTEXT - 8 * BLOCK}
say(too_much=take("cuMemAlloc_v2", left + MIB)[0])
give(first); give(second)
say(still=take("cuMemAlloc_v2", left + {2 * BLOCK} + MIB)[0], fits=take("cuMemAlloc_v2", left + {2 * BLOCK} - 2 * {NEAR})[0])
"""
    with sim.tenant(tenant, **variables) as other, sim.tenant(HELPERS + text, **variables) as program:
        other.quiet()
        program.quiet()
        other.go()
        other.quiet()
        done = program.finish()
        other.finish()
    assert (done.too_much, done.still, done.fits) == (OUT_OF_MEMORY, OUT_OF_MEMORY, 0)


@pytest.mark.parametrize("way", WAYS)
def test_cgroup_counts_touched_pages_once(sim, way):
    """They are charged to it as memory of the kernel."""
    variables = machine(sim, way)
    sim.cgroup(400 * MIB)
    group = sim.root / "sys" / "fs" / "cgroup" / "job"
    with sim.tenant(f"{HELPERS}start()\nresult, p = managed({4 * BLOCK})\nok(result)\ntouch(p, {4 * BLOCK})\nquiet()\n"
                    f"say(fits=managed({2 * BLOCK})[0], too_much=managed({2 * BLOCK})[0])", **variables) as program:
        program.quiet()
        (group / "memory.current").write_text(f"{4 * BLOCK + MIB}\n")
        (group / "memory.stat").write_text(f"anon 0\nfile 0\nkernel {4 * BLOCK + MIB}\nslab {MIB}\nactive_file 0\n")
        done = program.finish()
    assert (done.fits, done.too_much) == (0, OUT_OF_MEMORY)
