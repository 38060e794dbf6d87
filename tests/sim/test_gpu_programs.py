"""The C programs of tests/gpu, and what is expected of them on a real card, over the simulated driver: so they do not rot
where there is no card. One simulated card has memory of its own, the other is a Spark's."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import GIB, NATIVE

SUITE = Path(__file__).resolve().parents[1] / "gpu"
sys.path.append(str(SUITE))
pytest.register_assert_rewrite("test_cuda")
from gpu import Gpu, build_programs  # noqa: E402
from test_cuda import *  # noqa: E402, F403

MACHINE = 64 * GIB


@pytest.fixture(scope="session")
def programs(build, tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpu")
    build_programs(folder, {"shared": build / "sim/libcudart.so.13", "static": build / "sim/libcudart_static.a"})
    return folder


def simulated(sim, programs, kind):
    env = sim.env | sim.machine(MACHINE) | {"SGSIM_KIND": kind, "SGSIM_BACKING": None}
    return Gpu(sim.guard, programs, env, kind == "gb10")


@pytest.fixture(params=["discrete", "gb10"])
def gpu(sim, programs, request):
    return simulated(sim, programs, request.param)


@pytest.fixture
def card(sim, programs):
    return simulated(sim, programs, "discrete")


@pytest.fixture(params=["shared", "static"])
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


def test_suite_that_finds_no_real_driver_says_so_and_skips_everything():
    results = (SUITE / "RESULTS.md").read_bytes()
    env = os.environ | {"LD_LIBRARY_PATH": str(NATIVE / "sim")}
    done = subprocess.run([SUITE / "run"], env=env, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    sentence, summary = done.stdout.splitlines()
    assert sentence.endswith("nothing can be tested on a GPU here: the driver found is the simulated one of tests/sim")
    assert re.fullmatch(r"0 passed, 0 failed, [1-9]\d+ skipped", summary)
    assert (SUITE / "RESULTS.md").read_bytes() == results
