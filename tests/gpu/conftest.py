"""What the tests on a real GPU share. Without one all of them are skipped; tests/gpu/run collects what they say."""

import json
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
from gpu import BUILD, Gpu, find_gpu, python_with  # noqa: E402


def pytest_collection_modifyitems(items):
    if why := find_gpu().why:
        for item in items:
            item.add_marker(pytest.mark.skip(reason=why))


def pytest_runtest_logreport(report):
    """One line of JSON per test into GPU_OUTCOMES: its name, outcome and figures, and the reason if it did not pass."""
    path = os.environ.get("GPU_OUTCOMES")
    if not path or (report.when != "call" and report.outcome == "passed"):
        return
    reason = ""
    if report.outcome == "skipped":
        reason = report.longrepr[2].removeprefix("Skipped: ")
    elif report.outcome == "failed":
        crash = getattr(report.longrepr, "reprcrash", None)
        reason = (crash.message if crash else str(report.longrepr)).splitlines()[0]
    outcome = {"test": report.nodeid, "outcome": report.outcome, "figures": dict(report.user_properties), "reason": reason}
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(outcome) + "\n")


@pytest.fixture
def gpu(guard):
    return Gpu(guard, BUILD / "gpu", {}, find_gpu().is_unified)


@pytest.fixture
def card(gpu):
    """A GPU with memory of its own."""
    if gpu.is_unified:
        pytest.skip("this GPU shares the machine's memory")
    return gpu


@pytest.fixture(params=["shared", "static"])
def runtime(request, gpu):
    if not gpu.has_program("gpu_take", request.param):
        pytest.skip(f"no {request.param} CUDA 13 runtime here")
    return request.param


@pytest.fixture
def note(record_property):
    """note(name=figure): shown beside the outcome in RESULTS.md."""

    def record(**figures):
        for name, value in figures.items():
            record_property(name, value)

    return record


@pytest.fixture
def pairs():
    """How many allocations are timed."""
    return 10_000


@pytest.fixture
def available_bytes():
    """MemAvailable: where the card plays a Spark, this is the memory that it shares."""
    lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))


@pytest.fixture
def torch():
    if not python_with("torch")[0]:
        pytest.skip("no Python here has PyTorch")


@pytest.fixture
def cupy():
    if not python_with("cupy")[0]:
        pytest.skip("no Python here has CuPy")
