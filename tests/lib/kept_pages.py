"""A small machine of files whose simulated driver keeps freed pages, and who plays its kernel (tests/sim/play_kernel.py)."""

import contextlib
import subprocess
from types import SimpleNamespace

from .machine import MIB
from .target import NATIVE, NATIVE_PYTHON, ROOT

# 60 MiB are kept in reserve: a quarter of so small a machine.
TOTAL, RESERVE = 240 * MIB, 60 * MIB
CONTEXT = 16 * MIB


def machine(sim, keeps=True, **sizes):
    variables = sim.machine(TOTAL, **sizes) | {"SGSIM_CONTEXT": CONTEXT, "SGSIM_LEDGER": None}
    variables |= {"SGSIM_LISTS": 0}  # figures of messages are compared to the tenth of a MiB
    sim.script("start()", SPARKGUARD_MODE="observe", **variables)  # measures a context: the first guess would not fit here
    sim.settle()
    return variables | (sim.keeps_freed_pages() if keeps else {})


@contextlib.contextmanager
def kernel(sim, pid):
    """Takes from the fake machine what a process has resident beyond what it had; `.populated` says how much at most."""
    command = [NATIVE_PYTHON, ROOT / "tests/sim/play_kernel.py", NATIVE / "sim/libcuda.so.1", sim.meminfo, str(pid)]
    player = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert player.stdout.readline() == "ready\n"
    said = SimpleNamespace(populated=None)
    try:
        yield said
    finally:
        said.populated = int(player.communicate()[0])
