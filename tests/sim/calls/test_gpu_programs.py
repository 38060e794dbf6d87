"""The C programs of tests/gpu, and what is expected of them on a real card, over the simulated driver: so they do not rot
where there is no card. One simulated card has memory of its own, the other is a Spark's."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import GIB, MIB, lists
from lib.target import NATIVE

SUITE = Path(__file__).resolve().parents[2] / "gpu"
sys.path.append(str(SUITE))
pytest.register_assert_rewrite("test_cuda")
from gpu import Gpu, build_programs  # noqa: E402
from test_cuda import *  # noqa: E402, F403

MACHINE = 64 * GIB
POOLS = " with pools"  # a driver of 590 or later,
POOLED = 5 * GIB  # which has kept this much of what ran before
BACK_MS = 1  # the simulated driver gives back at once, or never


@pytest.fixture(scope="session")
def programs(build, tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpu")
    build_programs(folder, {"shared": build / "sim/libcudart.so.13", "static": build / "sim/libcudart_static.a"})
    return folder


def simulated(sim, programs, kind):
    env = sim.env | sim.machine(MACHINE) | {"SGSIM_KIND": kind.removesuffix(POOLS), "SGSIM_BACKING": None, "GPU_BACK_MS": BACK_MS}
    if kind.endswith(POOLS):
        env |= sim.keeps_freed_pages()
        sim.machine_move("kept", POOLED)
    return Gpu(sim.guard, programs, env, kind != "discrete", sim.root)


# The kind of the card and the runtime of each test. The static runtime asks the same driver on both cards.
PAIRS = [("discrete", "shared"), ("gb10", "shared"), ("gb10 with pools", "shared"), ("discrete", "static"), pytest.param("gb10", "static", marks=pytest.mark.long)]


def pytest_generate_tests(metafunc):
    wants_gpu, wants_runtime = (name in metafunc.fixturenames for name in ("gpu", "runtime"))
    if wants_gpu and wants_runtime:
        metafunc.parametrize("gpu, runtime", PAIRS, indirect=True)
    elif wants_gpu or wants_runtime:
        name, values = ("gpu", ["discrete", "gb10", "gb10 with pools"]) if wants_gpu else ("runtime", ["shared", "static"])
        metafunc.parametrize(name, values, indirect=True)


@pytest.fixture
def gpu(sim, programs, request):
    return simulated(sim, programs, request.param)


@pytest.fixture
def card(sim, programs):
    return simulated(sim, programs, "discrete")


@pytest.fixture
def runtime(request):
    return request.param


@pytest.fixture
def note():
    return lambda **figures: None


@pytest.fixture
def pairs():
    return 100


@pytest.fixture
def available_bytes(gpu, sim):
    return sim.available_bytes()


@pytest.mark.parametrize("way, seen", [("mapped", 256 * MIB), ("unmapped", 0)])
def test_measuring_tells_both_ways_of_managed_memory_apart(sim, programs, way, seen):
    spark = simulated(sim, programs, "gb10")
    done = spark.plain(spark.program("gpu_measure", "shared"), SGSIM_MANAGED=way, SGSIM_CONTEXT="512M")
    assert (done.managed_seen_bytes, done.managed_fall_bytes) == (seen, 256 * MIB)
    assert (done.context_bytes, done.pooled_bytes, done.fall_bytes, done.back_ms >= 0) == (512 * MIB + lists(512 * MIB), 0, 256 * MIB + lists(256 * MIB), True)


def test_measuring_empties_the_pool_of_a_driver_that_keeps_freed_pages(sim, programs):
    """What the pool serves does not fall: only then does MemAvailable tell anything."""
    spark = simulated(sim, programs, "gb10" + POOLS)
    done = spark.plain(spark.program("gpu_measure", "shared"), SGSIM_CONTEXT="512M")
    assert (done.pooled_bytes, done.fall_bytes, done.back_ms) == (POOLED - 512 * MIB, 256 * MIB, -1)


@pytest.mark.parametrize("number", sorted(set(ASSUMED) - {3}))
def test_assumption_holds_of_the_simulated_driver(sim, programs, number):
    spark = simulated(sim, programs, "gb10")
    more = {"SPARKGUARD_RESERVE": MACHINE - RESERVED} if number == 9 else {}
    assert assume(spark, "shared", number, **more)[0] == "holds"


@pytest.mark.parametrize("pool, verdict, said", [("keep", "holds", "0 MiB came"), ("none", "fails", "the machine's again")])
def test_pools_that_serve_what_was_freed_are_told_from_those_that_keep_nothing(sim, programs, pool, verdict, said):
    spark = simulated(sim, programs, "gb10" + POOLS)
    sim.machine_move("kept", -POOLED)
    found = assume(spark, "shared", 3, SGSIM_POOL=pool)
    assert found[0] == verdict and said in found[1]


@pytest.mark.parametrize("chunk, expected", [("2M", ("holds", 6144, 2000)), ("128M", ("fails", 131072, 896))])
def test_what_a_driver_takes_for_small_blocks_is_measured(sim, programs, chunk, expected):
    verdict, said = assume(simulated(sim, programs, "discrete"), "shared", 19, SGSIM_CHUNK=chunk)
    found = re.fullmatch(r"10000 blocks of 256 bytes took (\d+) KiB, 1000 of 1 MiB and a byte took (\d+) MiB", said)
    assert (verdict, *map(int, found.groups())) == expected


def test_what_is_not_refused_and_does_not_wait_says_nothing_of_the_driver(sim, programs):
    spark = simulated(sim, programs, "gb10")
    assert assume(spark, "shared", 3)[0] == "unknown"
    assert assume(spark, "shared", 9)[0] == "unknown"
    assert assume(spark, "shared", 10, SPARKGUARD_LIMIT=None)[0] == "unknown"


def test_suite_that_finds_no_real_driver_says_so_and_skips_everything():
    results = (SUITE / "RESULTS.md").read_bytes()
    env = os.environ | {"LD_LIBRARY_PATH": str(NATIVE / "sim")}
    done = subprocess.run([SUITE / "run"], env=env, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    sentence, summary = done.stdout.splitlines()
    assert sentence.endswith("nothing can be tested on a GPU here: the driver found is the simulated one of tests/sim")
    assert re.fullmatch(r"0 passed, 0 failed, [1-9]\d+ skipped", summary)
    assert (SUITE / "RESULTS.md").read_bytes() == results
