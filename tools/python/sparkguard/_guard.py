"""The C API of the guard (sparkguard.h) through ctypes."""

from __future__ import annotations

import ctypes
import os
from typing import Optional, TypedDict

_UNKNOWN = 2**64 - 1
_DOMAINS = ("heap", "mapped", "pinned", "managed", "device")
_guard = ctypes.CDLL(None)


class DomainStats(TypedDict):
    """Memory of one kind: heap, mapped, pinned, managed or device."""

    live_bytes: int
    peak_bytes: int


class Stats(TypedDict):
    """What stats() returns. Sizes are bytes; None is an unknown figure."""

    live_bytes: int
    peak_bytes: int
    refused_count: int
    refused_bytes: int
    usable_bytes: Optional[int]
    reserve_bytes: Optional[int]
    unified: Optional[bool]
    domains: dict[str, DomainStats]


class _Domain(ctypes.Structure):
    _fields_ = [("live_bytes", ctypes.c_uint64), ("peak_bytes", ctypes.c_uint64)]


class _Stats(ctypes.Structure):  # struct sparkguard_stats of include/sparkguard.h
    _fields_ = [
        ("size", ctypes.c_uint64),
        ("live_bytes", ctypes.c_uint64),
        ("peak_bytes", ctypes.c_uint64),
        ("refused_count", ctypes.c_uint64),
        ("refused_bytes", ctypes.c_uint64),
        ("usable_bytes", ctypes.c_uint64),
        ("reserve_bytes", ctypes.c_uint64),
        ("unified", ctypes.c_int64),
        *((name, _Domain) for name in _DOMAINS),
        ("thread_refused_count", ctypes.c_uint64),
    ]


def _call(name: str, *arguments: object) -> int:
    """Returns the function's result, or -1 without the guard."""
    function = getattr(_guard, name, None)
    return int(function(*arguments)) if function else -1


def _known(figure: int) -> Optional[int]:
    return None if figure == _UNKNOWN else figure


def active() -> bool:
    """Returns whether the program runs under the guard."""
    return _call("sparkguard_active") == 1


def mark(name: object) -> bool:
    """Ends the present phase of the process and begins another. Returns False without the guard."""
    return _call("sparkguard_mark", str(name).encode("utf-8", "replace")) == 0


def _raw_stats() -> Optional[Stats]:
    """Returns the figures as the guard has them: peaks since the last reset, whoever made it."""
    raw = _Stats(size=ctypes.sizeof(_Stats))
    if _call("sparkguard_stats", ctypes.byref(raw)) != 0:
        return None
    domains: dict[str, DomainStats] = {}
    for name in _DOMAINS:
        domain: _Domain = getattr(raw, name)
        domains[name] = {"live_bytes": domain.live_bytes, "peak_bytes": domain.peak_bytes}
    return {
        "live_bytes": raw.live_bytes,
        "peak_bytes": raw.peak_bytes,
        "refused_count": raw.refused_count,
        "refused_bytes": raw.refused_bytes,
        "usable_bytes": _known(raw.usable_bytes),
        "reserve_bytes": _known(raw.reserve_bytes),
        "unified": None if raw.unified < 0 else raw.unified == 1,
        "domains": domains,
    }


def refused_counts() -> tuple[int, int]:
    """Returns how many requests of this thread, and of all threads, were refused. Observed ones are none; 0 without the guard."""
    raw = _Stats(size=ctypes.sizeof(_Stats))
    if os.environ.get("SPARKGUARD_MODE") == "observe" or _call("sparkguard_stats", ctypes.byref(raw)) != 0:
        return 0, 0
    return raw.thread_refused_count, raw.refused_count


# Peaks by domain, "" for the sum, from before the resets that the phases of _phases.py made; reset_peak() clears them.
_folded: dict[str, int] = {}


def fold_peaks() -> Optional[Stats]:
    """Returns the figures, with the peaks since the last call, and begins these anew; stats() still shows the higher ones."""
    now = _raw_stats()
    if now and _call("sparkguard_reset_peak") == 0:
        _folded[""] = max(_folded.get("", 0), now["peak_bytes"])
        for name, domain in now["domains"].items():
            _folded[name] = max(_folded.get(name, 0), domain["peak_bytes"])
    return now


def stats() -> Optional[Stats]:
    """Returns this process's figures by name; None without the guard.

    "domains" has live_bytes and peak_bytes of each kind of memory. "unified" says whether device memory is the machine's
    memory, and is None until the program uses CUDA.
    """
    now = _raw_stats()
    if now:
        now["peak_bytes"] = max(now["peak_bytes"], _folded.get("", 0))
        for name, domain in now["domains"].items():
            domain["peak_bytes"] = max(domain["peak_bytes"], _folded.get(name, 0))
    return now


def reset_peak() -> bool:
    """Resets the peaks of stats() and of the report's present phase. Open blocks of _phases.py must have noted theirs."""
    _folded.clear()
    return _call("sparkguard_reset_peak") == 0
