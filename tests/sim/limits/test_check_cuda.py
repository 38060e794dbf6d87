"""sparkguard --check --cuda over the simulated driver: a line for each assumption, and a status for scripts."""

import json

import pytest
from conftest import GIB, MIB

MACHINE = 8 * GIB
SIZE = 256 * MIB
HOLDS, FAILS, UNKNOWN = 0, 1, 3


@pytest.fixture
def check(sim):
    """check(*arguments, **variables): the finished launcher on a machine whose driver is simulated."""
    machine = sim.machine(MACHINE) | {"SGSIM_KIND": "gb10", "SGSIM_CONTEXT": "64M", "SPARKGUARD_RESERVE": GIB, "LD_PRELOAD": None}

    def run(*arguments, **variables):
        return sim.guard.run([sim.build / "sparkguard", "--check", *arguments], env=sim.env | machine | variables)

    return run


def facts(done):
    return {name: found for name, found in json.loads(done.stdout)["driver_facts"].items() if found != "unknown"}


def test_driver_that_is_as_assumed_is_proved_line_by_line(check):
    done = check("--cuda", SGSIM_PINNED="driver")
    assert (done.returncode, done.stderr) == (HOLDS, ""), done.stdout
    *lines, empty, verdict = done.stdout.splitlines()
    assert verdict == "What the guard assumes of this driver is so."
    assert "ok       memory      device memory comes out of the machine's memory" in lines
    assert "ok       frees       what is freed is the machine's again at once" in lines
    assert not any("pool" in line for line in lines), "this driver lists none"
    assert "warning  pinned      pinned memory is not shared memory of the process" in lines


def test_measuring_takes_as_much_as_it_says_and_leaves_no_record(sim, check):
    done = check("--cuda")
    assert done.returncode == HOLDS
    books = sim.books()
    assert books["peak_bytes"]["device"] == SIZE and books["live_bytes"]["device"] == books["live_bytes"]["pinned"] == 0
    assert list(sim.guard.directory.glob("*.segment")) + list(sim.guard.directory.glob("*.timeline")) == []


def test_pools_are_proved_as_well(sim, check):
    done = check("--cuda", "--json", **sim.keeps_freed_pages())
    assert done.returncode == HOLDS
    assert facts(done)["pool_keeps_freed"] == facts(done)["pool_serves_first"] == "proved"
    assert "freed_is_back_at_once" not in facts(done)


def test_full_pool_hides_the_machine_and_the_line_says_what_empties_it(sim, check):
    pools = sim.keeps_freed_pages()
    sim.machine_move("kept", GIB)
    done = check("--cuda", **pools)
    assert done.returncode == UNKNOWN
    assert "could not be told: whether device memory comes out of the machine's memory" in done.stdout
    assert "echo 2 | sudo tee /proc/sys/vm/drop_caches" in done.stdout


WRONG = {
    "memory of its own": ({"SGSIM_MEMINFO": None}, "device_memory_is_the_machines", "only SPARKGUARD_LIMIT bounds"),
    "keeps without a pool": ({"SGSIM_POOL": "keep"}, "freed_is_back_at_once", "report this"),
    "refuses what fits": ({"SGSIM_FAIL": "cuMemAlloc_v2:*:2"}, "serves_what_fits", "report this"),
}


@pytest.mark.parametrize("case", WRONG)
def test_driver_that_is_otherwise_fails(check, case):
    variables, fact, advice = WRONG[case]
    done = check("--cuda", "--json", **variables)
    assert (done.returncode, facts(done)[fact]) == (FAILS, "disproved")
    assert json.loads(done.stdout)["verdict"] == "What the guard assumes of this driver is not so: see above."
    assert any(line["state"] == "failure" and advice in line["advice"] for line in json.loads(done.stdout)["lines"])


def test_nothing_is_measured_where_there_is_little_room(sim, check):
    sim.machine_move("other", 5 * GIB + 1 * MIB)
    done = check("--cuda")
    assert done.returncode == UNKNOWN and "it takes 2.0 GiB to measure without harm" in done.stdout
    assert not sim.ledger.exists(), "the driver was not called"


def test_card_with_memory_of_its_own_has_nothing_to_prove(check):
    done = check("--cuda", SGSIM_KIND="discrete")
    assert done.returncode == UNKNOWN and "memory of its own" in done.stdout
    assert done.stdout.endswith("The guard assumes nothing of a driver whose device has memory of its own.\n")


def test_driver_that_does_not_start_is_told(check):
    done = check("--cuda", SGSIM_FAIL="cuInit:*:999")
    assert done.returncode == UNKNOWN and "cuInit failed with error 999" in done.stdout


def test_no_driver_is_told(check):
    done = check("--cuda", LD_LIBRARY_PATH=None)
    assert done.returncode == UNKNOWN and "no driver here" in done.stdout


@pytest.mark.parametrize("arguments", [["--cuda", "true"]])
def test_a_program_has_no_place_there(check, arguments):
    done = check(*arguments)
    assert (done.returncode, done.stdout) == (2, "") and "--cuda belongs to --check, and takes no program" in done.stderr
