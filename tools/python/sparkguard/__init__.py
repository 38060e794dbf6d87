"""Phases, statistics and peaks of a Python program under the guard. See sparkguard(3).

    import sparkguard
    sparkguard.mark("epoch 3")
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
from ._version import __version__

__all__ = [
    "DomainStats",
    "MemoryStats",
    "Stats",
    "__version__",
    "active",
    "get_memory_stats",
    "is_unified_memory_system",
    "log_memory_usage",
    "mark",
    "reset_peak",
    "reset_peak_memory_stats",
    "stats",
]
