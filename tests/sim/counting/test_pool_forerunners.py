"""Forerunners by chance, guarded and not, ended and killed, before requests of any size: each decision against the simulator's own books.

The books say what the pool has and what is available. A request that they have room for is granted; one that is granted takes the machine
below its reserve by no more than lists of processors could hide, a 64th of it.
"""

import random

import pytest
from conftest import MIB, OUT_OF_MEMORY
from lib import storm
from lib.forerunners import CONTEXT, RESERVE, TOTAL, UNGUARDED, WAYS, forerun, living, machine_with_pools

ERROR = TOTAL // 64 + 8 * MIB  # what is not counted of the pool, and what small programs hold and are promised besides
STEPS = 6



def decide(sim, variables, size):
    """One decision, and what the books say: what would be left of the machine above its reserve, and what is."""
    with sim.tenant("start()\nquiet()\nsay(result=take('cuMemAlloc_v2', " + str(size) + ")[0])\nquiet()", **variables) as program:
        program.quiet()
        missing = max(0, size * 161 // 160 - sim.machine_bytes("kept"))
        left = sim.available_bytes() - RESERVE - missing
        program.go()
        result = program.quiet().result
        sim.settle()
        is_short = missing != 0 and sim.available_bytes() < RESERVE - ERROR
        program.finish()
    sim.settle()
    return result, left if missing != 0 else ERROR + 1, is_short


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(None, id=f"storm {number}", marks=pytest.mark.long) for number in storm.ROUNDS)])
def test_each_decision_is_the_one_that_the_books_make(sim, seed):
    chance = storm.seeded() if seed is None else random.Random(seed)
    variables = machine_with_pools(sim)
    said = []
    with living(sim, variables, chance.randrange(1, 40) * MIB, **chance.choice([UNGUARDED, {}])):
        for _ in range(STEPS):
            how, before = chance.choice([way for way in WAYS if way != "records removed"]), chance.randrange(4, 100) * MIB
            if before + CONTEXT <= sim.machine_bytes("kept") or before + 2 * CONTEXT < sim.available_bytes() - RESERVE:
                forerun(sim, variables, before, how)
            size = chance.randrange(2, (TOTAL - CONTEXT) // MIB) * MIB
            result, left, is_short = decide(sim, variables, size)
            said.append((how, before // MIB, size // MIB, result, left // MIB))
            assert result in (0, OUT_OF_MEMORY), said
            assert left <= ERROR or result == 0, f"seed {seed}: refused what fits: {said}"
            assert not is_short, f"seed {seed}: the machine is short: {said}"
            assert left >= -ERROR or result == OUT_OF_MEMORY, f"seed {seed}: granted what does not fit: {said}"
