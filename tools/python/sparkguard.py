"""Phases, statistics and peaks of a Python program under the guard. See sparkguard(3).

    import sparkguard
    sparkguard.mark("epoch 3")
    print(sparkguard.stats()["peak_bytes"])

Without the guard (LD_PRELOAD=libsparkguard.so) no function fails: stats() returns None, the others False.
"""

import ctypes
import logging

_GIB = 1024**3
_UNKNOWN = 2**64 - 1
_DOMAINS = ("heap", "mapped", "pinned", "managed", "device")
_FIGURES = ("live_bytes", "peak_bytes", "refused_count", "refused_bytes", "usable_bytes", "reserve_bytes")
_guard = ctypes.CDLL(None)
_logger = logging.getLogger(__name__)


class _Domain(ctypes.Structure):
    _fields_ = [("live_bytes", ctypes.c_uint64), ("peak_bytes", ctypes.c_uint64)]


class _Stats(ctypes.Structure):  # struct sparkguard_stats of include/sparkguard.h
    _fields_ = [
        ("size", ctypes.c_uint64),
        *((name, ctypes.c_uint64) for name in _FIGURES),
        ("unified", ctypes.c_int64),
        *((name, _Domain) for name in _DOMAINS),
    ]


def _call(name, *arguments):
    """Returns the function's result, or -1 without the guard."""
    function = getattr(_guard, name, None)
    return function(*arguments) if function else -1


def active():
    """Returns whether the program runs under the guard."""
    return _call("sparkguard_active") == 1


def mark(name):
    """Ends the present phase and begins another. Returns False without the guard."""
    return _call("sparkguard_mark", str(name).encode("utf-8", "replace")) == 0


def stats():
    """Returns this process's figures by name, None for an unknown figure; None without the guard.

    "domains" has live_bytes and peak_bytes of each; "unified" is True, False or None.
    """
    raw = _Stats(size=ctypes.sizeof(_Stats))
    if _call("sparkguard_stats", ctypes.byref(raw)) != 0:
        return None
    figures = {name: None if getattr(raw, name) == _UNKNOWN else getattr(raw, name) for name in _FIGURES}
    figures["unified"] = None if raw.unified < 0 else raw.unified == 1
    figures["domains"] = {
        name: {"live_bytes": getattr(raw, name).live_bytes, "peak_bytes": getattr(raw, name).peak_bytes} for name in _DOMAINS
    }
    return figures


def reset_peak():
    """Resets the peaks of stats() and of the present phase to the live bytes. Returns False without the guard."""
    return _call("sparkguard_reset_peak") == 0


# ---- the same under the names that training scripts use -------------------------------------------------------------------


def get_memory_stats():
    """Returns figures in GiB. The guard counts memory taken from the system, which a caching allocator calls reserved, so
    allocated and reserved are equal. Without the guard all are zero; active() tells the difference."""
    now = stats() or {"live_bytes": 0, "peak_bytes": 0, "refused_count": 0}
    live = now["live_bytes"] / _GIB
    return {
        "allocated_gb": live,
        "reserved_gb": live,
        "max_allocated_gb": now["peak_bytes"] / _GIB,
        "num_alloc_retries": now["refused_count"],
    }


def log_memory_usage(name=""):
    """Logs one line at level INFO to the logger "sparkguard"."""
    now = stats()
    if now is None:
        _logger.info("[%s] not under sparkguard", name)
        return
    usable = "unknown" if now["usable_bytes"] is None else f"{now['usable_bytes'] / _GIB:.2f} GiB"
    live, peak = now["live_bytes"] / _GIB, now["peak_bytes"] / _GIB
    _logger.info("[%s] memory: live %.2f GiB, peak %.2f GiB, usable %s", name, live, peak, usable)


def reset_peak_memory_stats():
    reset_peak()


def is_unified_memory_system():
    """Returns whether device memory is the machine's memory. Until the program uses CUDA, unless SPARKGUARD_UNIFIED is set,
    and without the guard, returns None."""
    return (stats() or {}).get("unified")
