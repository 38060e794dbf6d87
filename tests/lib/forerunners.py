"""A small machine whose driver keeps what is freed (590 and later), and programs that had the driver's memory before the program under
test: guarded by the same records, by others or not at all, ended by themselves or killed. What they held is in the driver's pool."""

import contextlib
import shutil

from .machine import MIB

TOTAL, RESERVE, CONTEXT = 240 * MIB, 20 * MIB, 16 * MIB

UNGUARDED = {"SPARKGUARD_DISABLE": "1"}
WAYS = ["guarded", "guarded and killed", "records removed", "other directory", "unguarded", "unguarded and killed"]


def measure_context(sim, variables):
    """Lets a guard learn what a context costs, for its first guess would not fit here. The pool has afterwards what it had."""
    kept = sim.machine_bytes("kept")
    sim.machine_move("kept", -kept)  # what it serves would not show
    sim.script("start()", **variables | {"SPARKGUARD_MODE": "observe", "SGSIM_POOL": "none"})
    sim.settle()
    sim.machine_move("kept", kept)


def machine_with_pools(sim, total=TOTAL, reserve=RESERVE, context=CONTEXT, **sizes):
    """Variables for it."""
    variables = sim.machine(total, **sizes) | {"SGSIM_CONTEXT": context, "SGSIM_LEDGER": None, "SPARKGUARD_RESERVE": reserve}
    measure_context(sim, variables | sim.EXACT)
    return variables | sim.keeps_freed_pages()


def holding(*sizes):
    return f"start(); [ok(take('cuMemAlloc_v2', size)[0]) for size in {sizes!r}]; "


@contextlib.contextmanager
def living(sim, variables, *sizes, **more):
    """A program that holds blocks of device memory meanwhile."""
    with sim.tenant(holding(*sizes) + "quiet()", **variables | more) as program:
        program.quiet()
        yield program


def forerun(sim, variables, size, how="unguarded"):
    """One of WAYS has held a block of this size, and is gone: the pool has it and the context's pages."""
    more = {}
    if how.startswith("unguarded"):
        more = UNGUARDED
    elif how == "other directory":
        more = {"SPARKGUARD_DIR": sim.scratch / "elsewhere"}
        measure_context(sim, variables | more)
    if how.endswith("killed"):
        with living(sim, variables, size, **more) as program:
            program.kill()
    else:
        sim.script(holding(size), **variables | more)
    if how == "records removed":
        shutil.rmtree(sim.guard.directory)
        measure_context(sim, variables)
    sim.settle()
