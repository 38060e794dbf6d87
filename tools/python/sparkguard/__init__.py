"""Phases, statistics and peaks of a Python program under the guard. See sparkguard(3).

    import sparkguard
    with sparkguard.phase("epoch 3") as epoch:
        train()
    print(epoch.peak_bytes)
    print(sparkguard.stats()["peak_bytes"])

Without the guard no function fails: stats() returns None, the others False. `python -m sparkguard run train.py` runs a
script under the guard, and `python -m sparkguard` tells what else there is.
"""

from ._guard import (
    DomainStats,
    MemoryStats,
    Stats,
    active,
    get_memory_stats,
    is_unified_memory_system,
    log_memory_usage,
    mark,
    reset_peak,
    reset_peak_memory_stats,
    stats,
)
from ._phases import Phase, phase
from ._refusals import Refusal, explain, is_refusal, refusals
from ._version import __version__

__all__ = [
    "DomainStats",
    "MemoryStats",
    "Phase",
    "Refusal",
    "Stats",
    "__version__",
    "active",
    "explain",
    "get_memory_stats",
    "is_refusal",
    "is_unified_memory_system",
    "log_memory_usage",
    "mark",
    "phase",
    "refusals",
    "reset_peak",
    "reset_peak_memory_stats",
    "stats",
]
