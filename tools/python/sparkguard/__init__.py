"""Memory of a Python program under the guard: figures, phases, refusals, and training that goes on with a smaller batch.

    import sparkguard
    with sparkguard.phase("epoch 3") as epoch:
        train()
    print(epoch.peak_bytes)
    print(sparkguard.stats()["peak_bytes"])

Without the guard no function fails: active() is False, the others return None or do nothing. docs/python.md describes all of
them. `python -m sparkguard run train.py` runs a script under the guard, and `python -m sparkguard` tells what else there is.
In a notebook `%load_ext sparkguard` brings %%memory.
"""

import importlib
from typing import Any

from ._guard import DomainStats, Stats, active, mark, stats
from ._memory import (
    MemoryConfig,
    MemoryStats,
    check_buffer_cache,
    clear_buffer_cache,
    clear_memory,
    configure_accelerator_for_unified_memory,
    get_memory_config,
    get_memory_stats,
    is_unified_memory_system,
    log_memory_usage,
    print_memory_stats,
    reset_peak_memory_stats,
    setup_unified_memory_env,
)
from ._phases import Phase, phase, reset_peak
from ._pressure import empty_torch_cache, on_pressure
from ._refusals import Refusal, explain, is_refusal, refusals
from ._retry import Retry, retry
from ._version import __version__

__all__ = [
    "DomainStats",
    "MemoryConfig",
    "MemoryStats",
    "Phase",
    "Refusal",
    "Retry",
    "Stats",
    "__version__",
    "active",
    "check_buffer_cache",
    "clear_buffer_cache",
    "clear_memory",
    "configure_accelerator_for_unified_memory",
    "empty_torch_cache",
    "explain",
    "get_memory_config",
    "get_memory_stats",
    "is_refusal",
    "is_unified_memory_system",
    "log_memory_usage",
    "mark",
    "on_pressure",
    "phase",
    "print_memory_stats",
    "refusals",
    "reset_peak",
    "reset_peak_memory_stats",
    "retry",
    "setup_unified_memory_env",
    "stats",
]

_INTEGRATIONS = ("accelerate", "lightning", "transformers", "trl")


def __getattr__(name: str) -> Any:
    """Imports an integration when it is first named, as sparkguard.transformers; the framework itself when it is used."""
    if name in _INTEGRATIONS:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def load_ipython_extension(ipython: Any) -> None:
    """Is called by `%load_ext sparkguard`: brings the cell magic %%memory."""
    from ._magic import load

    load(ipython)
