"""What the guard believes of the driver's pool may be wrong. That costs the reserve at most, never the floor, which is a quarter of it.

The machine is the one of test_pool_room.py: 240 MiB, 20 of them the reserve, and contexts of 16.
"""

import os
import subprocess

import pytest
from conftest import MIB, OUT_OF_MEMORY
from lib.forerunners import RESERVE, UNGUARDED, forerun, living, machine_with_pools, measure_context
from lib.ledger import LEDGER, Ledger
from lib.simulated_pools import POOLS
from lib.waiting import wait_until

FLOOR = RESERVE // 4
UNLISTED = {"SGSIM_NVML_LIST": "none"}  # as in a container


def take_once(size):
    return f"start()\nquiet()\nsay(result=take('cuMemAlloc_v2', {size})[0])\nquiet()"


def test_list_from_before_an_unguarded_program_took_its_memory_does_not_count(sim):
    variables = machine_with_pools(sim)
    forerun(sim, variables, 40 * MIB)
    asks = f"start()\nquiet()\ninfo()\nquiet()\nsay(result=take('cuMemAlloc_v2', {105 * MIB})[0])\nquiet()"
    with sim.tenant(take_once(100 * MIB), **variables | UNGUARDED) as other, sim.tenant(asks, **variables) as program:
        other.quiet()
        program.quiet()
        program.go()
        program.quiet()
        other.go()
        assert other.quiet().result == 0
        program.go()
        assert program.quiet().result == OUT_OF_MEMORY
    assert sim.machine_bytes("least_available") >= FLOOR


@pytest.mark.parametrize("host", ["mmap", "cuMemHostAlloc"])
def test_flight_is_the_machines_for_host_memory(sim, host):
    """The pool is believed to serve 70 MiB, and is empty: an unguarded program has them, which no list names."""
    variables = machine_with_pools(sim) | UNLISTED
    go = sim.scratch / "go"
    asks = {
        "mmap": f"try:\n    memory = mmap.mmap(-1, {40 * MIB}, mmap.MAP_PRIVATE)\n    say(result=0)\nexcept OSError as error:\n    say(result=error.errno)",
        "cuMemHostAlloc": f"say(result=take('cuMemHostAlloc', {40 * MIB}, c_uint(0))[0])",
    }[host]
    with (
        living(sim, variables, 90 * MIB, **UNGUARDED),
        sim.tenant(f"import mmap\nstart()\nquiet()\n{asks}\nquiet()", **variables) as other,
        sim.tenant(take_once(70 * MIB), SGSIM_HOLD=f"cuMemAlloc_v2:1:{go}", **variables) as program,
    ):
        other.quiet()
        program.quiet()
        program.go()
        wait_until(go.with_name("go.held").exists, "the driver has the call")
        other.go()
        assert other.quiet().result != 0
        go.touch()
        assert program.quiet().result == 0
    assert sim.machine_bytes("least_available") >= RESERVE


def test_what_was_freed_may_be_another_containers(sim):
    variables = machine_with_pools(sim) | UNLISTED
    forerun(sim, variables, 90 * MIB, "guarded")
    other = variables | {"SPARKGUARD_DIR": sim.scratch / "other"}
    measure_context(sim, other)
    with living(sim, other, 90 * MIB):
        sim.script(f"start()\ntake('cuMemAlloc_v2', {117 * MIB})", **variables)
    assert sim.machine_bytes("least_available") >= FLOOR


def test_words_of_the_registry_cost_the_reserve_at_most(sim):
    """A member of the shared group may write them."""
    variables = machine_with_pools(sim) | UNLISTED | {"SPARKGUARD_WATCHDOG": "off"}
    with living(sim, variables, 90 * MIB, **UNGUARDED), sim.tenant(take_once(116 * MIB), **variables) as program:
        program.quiet()
        path = sim.guard.directory / "machine.ledger"
        with open(path, "r+b") as file:
            for word, value in (("pool_proven_bytes", 1 << 50), ("listed_bytes", 0), ("listed_ns", (1 << 63) - 1)):
                file.seek(LEDGER[word][0])
                file.write(value.to_bytes(8, "little"))
        program.go()
        assert program.quiet().result == OUT_OF_MEMORY
    assert sim.machine_bytes("least_available") >= FLOOR


def test_wrong_guess_without_a_list_is_not_held_against_a_list(sim):
    """Once the program has ended that had what was believed to be in the pool."""
    variables = machine_with_pools(sim)
    with sim.tenant(take_once(150 * MIB), **variables) as heir:
        heir.quiet()
        with living(sim, variables, 90 * MIB, **UNGUARDED):
            wrong = sim.script(f"start()\nsay(result=take('cuMemAlloc_v2', {90 * MIB})[0])", **variables | UNLISTED)
            assert wrong.result == 0
            sim.settle()
        sim.settle()
        with Ledger(sim.guard.directory) as ledger:
            assert (ledger.get("pool_missed_ns") != 0, ledger.get("pool_disproven_bytes")) == (True, 0)
        heir.go()
        assert heir.quiet().result == 0


def test_little_that_others_took_beside_a_call_does_not_disprove_the_pool(sim):
    """10 MiB that nothing explains come and go while the pool serves 60."""
    variables = machine_with_pools(sim)
    forerun(sim, variables, 180 * MIB)
    go = sim.scratch / "go"
    with sim.tenant(take_once(60 * MIB), SGSIM_HOLD=f"cuMemAlloc_v2:1:{go}", **variables) as program:
        program.quiet()
        program.go()
        wait_until(go.with_name("go.held").exists, "the driver has the call")
        sim.machine_move("kept", 10 * MIB)
        go.touch()
        assert program.quiet().result == 0
        sim.machine_move("kept", -10 * MIB)
    sim.settle()
    assert sim.script(f"start()\nsay(result=take('cuMemAlloc_v2', {150 * MIB})[0])", **variables).result == 0


def test_nothing_is_in_flight_after_a_pools_growth_was_refused(sim):
    variables = machine_with_pools(sim)
    forerun(sim, variables, 160 * MIB, "guarded")
    text = f"{POOLS}start()\nkeep(own_pool(), {1 << 30})\nfor i in range(4):\n    take('cuMemAllocAsync', {20 * MIB}, None)\nquiet()"
    with sim.tenant(text, SPARKGUARD_LIMIT="100M", SGSIM_POOL_STEP="80M", **variables) as program:
        program.quiet()
        assert Ledger(sim.guard.directory).sum("unbounded_flight_bytes") == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_root_of_a_container_drops_no_caches(sim):
    """They are the machine's."""
    if subprocess.run(["unshare", "--pid", "--fork", "true"], capture_output=True).returncode != 0:
        pytest.skip("no PID namespaces here")
    variables = machine_with_pools(sim)
    path = sim.drop_caches()
    forerun(sim, variables, 160 * MIB, "guarded")
    text = f"start()\nsay(result=take('cuMemHostAlloc', {100 * MIB}, c_uint(0))[0])"
    with sim.tenant(text, ["unshare", "--pid", "--fork"], **variables) as program:
        assert program.finish().result == OUT_OF_MEMORY
    assert path.read_text() == "" and sim.machine_bytes("kept") >= 160 * MIB
