"""The C programs of tests/gpu, and what is expected of them on a real card, over the simulated driver: so they do not rot
where there is no card. One simulated card has memory of its own, the other is a Spark's."""

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import GIB, MIB, OUT_OF_MEMORY
from lib.kept_pages import kernel, machine
from lib.target import NATIVE

SUITE = Path(__file__).resolve().parents[2] / "gpu"
sys.path.append(str(SUITE))
pytest.register_assert_rewrite("test_cuda")
from gpu import Gpu, build_programs  # noqa: E402
from test_cuda import *  # noqa: E402, F403

MACHINE = 64 * GIB
BACK_MS = 1  # the simulated driver gives back at once, or never


@pytest.fixture(scope="session")
def programs(build, tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpu")
    build_programs(folder, {"shared": build / "sim/libcudart.so.13", "static": build / "sim/libcudart_static.a"})
    return folder


def simulated(sim, programs, kind):
    env = sim.env | sim.machine(MACHINE) | {"SGSIM_KIND": kind, "SGSIM_BACKING": None, "GPU_BACK_MS": BACK_MS}
    return Gpu(sim.guard, programs, env, kind == "gb10")


# The kind of the card and the runtime of each test. The static runtime asks the same driver on both cards.
PAIRS = [("discrete", "shared"), ("gb10", "shared"), ("discrete", "static"), pytest.param("gb10", "static", marks=pytest.mark.long)]


def pytest_generate_tests(metafunc):
    wants_gpu, wants_runtime = (name in metafunc.fixturenames for name in ("gpu", "runtime"))
    if wants_gpu and wants_runtime:
        metafunc.parametrize("gpu, runtime", PAIRS, indirect=True)
    elif wants_gpu or wants_runtime:
        name, values = ("gpu", ["discrete", "gb10"]) if wants_gpu else ("runtime", ["shared", "static"])
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
def available_bytes():
    return MACHINE


@pytest.mark.parametrize("way, seen", [("mapped", 256 * MIB), ("unmapped", 0)])
def test_measuring_tells_both_ways_of_managed_memory_apart(sim, programs, way, seen):
    spark = simulated(sim, programs, "gb10")
    done = spark.plain(spark.program("gpu_measure", "shared"), SGSIM_MANAGED=way, SGSIM_CONTEXT="512M")
    assert (done.managed_seen_bytes, done.managed_fall_bytes) == (seen, 256 * MIB)
    assert (done.context_bytes, done.fall_bytes, done.back_ms >= 0) == (512 * MIB, 256 * MIB, True)


def test_measuring_tells_a_driver_that_keeps_freed_pages(sim, programs):
    spark = simulated(sim, programs, "gb10")
    assert spark.plain(spark.program("gpu_measure", "shared"), SGSIM_POOL="keep").back_ms == -1


@pytest.mark.parametrize("number", sorted(set(ASSUMED) - {3}))
def test_assumption_holds_of_the_simulated_driver(sim, programs, number):
    spark = simulated(sim, programs, "gb10")
    more = {"SPARKGUARD_RESERVE": MACHINE - RESERVED} if number == 9 else {}
    assert assume(spark, "shared", number, **more)[0] == "holds"


@pytest.mark.parametrize("is_pressed, verdict", [(True, "holds"), (False, "fails")])
def test_pools_that_shrink_under_pressure_are_told_from_those_that_do_not(sim, programs, is_pressed, verdict):
    """Over a small machine, for the guard populates real memory. What a kernel would find taken, play_kernel.py takes."""
    variables = machine(sim) | {"SGSIM_BACKING": "none", "GPU_BACK_MS": BACK_MS}
    spark = Gpu(sim.guard, programs, sim.env | variables, True)
    process = sim.guard.popen(["sh", "-c", 'read start && exec "$@"', "-", *spark.program("gpu_assume", "shared", 3)],
                              env=spark.env, stdin=subprocess.PIPE)
    try:
        with kernel(sim, process.pid) if is_pressed else contextlib.nullcontext():
            stdout, stderr = process.communicate("\n", timeout=100)
    finally:
        process.kill()
        process.wait()
    answer = 0 if is_pressed else OUT_OF_MEMORY
    assert stdout.startswith(f"RESULT 3 {verdict}: the driver keeps ") and stdout.endswith(f" was answered {answer}\n"), stderr


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
