"""sparkguard.is_unified_memory_system() asks the driver before the program uses CUDA, in another process."""

import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[3] / "tools/python"

ASK = """
import sparkguard
print("unified", sparkguard.is_unified_memory_system())
print("driver", int("libcuda.so" in open("/proc/self/maps").read()))
print("pool", sparkguard.get_memory_config()["memory_pool"])
"""


@pytest.mark.parametrize("kind, expected", [("gb10", "True"), ("discrete", "False")])
def test_driver_says_whether_memory_is_unified(sim, kind, expected):
    variables = {} if kind == "gb10" else {"SGSIM_KIND": kind}
    done = sim.run([sys.executable, "-c", ASK], PYTHONPATH=PACKAGE, **variables)
    pool = "unified" if expected == "True" else "standard"
    assert done.stdout.splitlines() == [f"unified {expected}", "driver 0", f"pool {pool}"], done.stderr


def test_without_a_driver_it_is_unknown(sim):
    done = sim.run([sys.executable, "-c", ASK], PYTHONPATH=PACKAGE, LD_LIBRARY_PATH="/nowhere")
    assert done.stdout.splitlines()[0] == "unified None", done.stderr
