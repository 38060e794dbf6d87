"""Phases as blocks: with sparkguard.phase("epoch 3") as p: ...; p.peak_bytes afterwards.

The guard knows one phase and one peak for the process. So each begin and each end of a block marks the next phase, reads the
peak, notes it for all blocks that are open, and resets it. _guard.stats() adds what was noted, so its peaks do not change by
that. The mark comes first: it puts the peak of the phase that ends into the record, and a reset would take it out of there.
"""

from __future__ import annotations

import os
import threading
from types import TracebackType
from typing import Optional, Type

from . import _guard, _refusals

_lock = threading.RLock()
_open: list[Phase] = []


class Phase:
    """A phase of the process, from phase(). Figures are those of the whole process; None without the guard.

    peak_bytes     highest live bytes during the phase, those of inner phases included
    live_bytes     live bytes at its end
    refused_count  requests that were refused during the phase
    """

    def __init__(self, name: object) -> None:
        self.name = str(name)
        self.peak_bytes: Optional[int] = None
        self.live_bytes: Optional[int] = None
        self.refused_count: Optional[int] = None
        self._refused_before = 0

    def __enter__(self) -> Phase:
        with _lock:
            _guard.mark(self.name)
            now = note_peaks()
            self._refused_before = now["refused_count"] if now else 0
            self.peak_bytes = now["live_bytes"] if now else None
            _open.append(self)
            _refusals.forget()
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        with _lock:
            around = [each for each in _open if each is not self]
            if self in _open:
                # In the report the phase around this one goes on, with an entry of its own.
                _guard.mark(around[-1].name if around else f"after {self.name}")
            now = note_peaks()
            if now:
                self.live_bytes = now["live_bytes"]
                self.refused_count = now["refused_count"] - self._refused_before
            _open[:] = around

    def __repr__(self) -> str:
        peak = "not measured" if self.peak_bytes is None else f"{self.peak_bytes} bytes"
        return f"<phase {self.name!r}: peak {peak}>"


def phase(name: object) -> Phase:
    """Returns a phase for a with statement. Phases may be nested, and may overlap in several threads.

    Needs some tens of microseconds at its begin and at its end: give it to steps, not to each iteration of an inner loop.
    """
    return Phase(name)


def note_peaks() -> Optional[_guard.Stats]:
    """Notes the peak since the last call for all open phases, and begins a new one. Returns the figures up to now."""
    with _lock:
        now = _guard.fold_peaks()
        if now:
            for each in _open:
                each.peak_bytes = max(each.peak_bytes or 0, now["peak_bytes"])
        return now


def reset_peak() -> bool:
    """Resets the peaks of stats(), and of the report's present phase, to the live bytes. Returns False without the guard.

    Blocks of phase() that are open keep the peak that they have seen.
    """
    note_peaks()
    return _guard.reset_peak()


def _begin_child() -> None:
    """A forked child begins without a phase; another thread may have held the lock."""
    global _lock
    _lock = threading.RLock()
    _open.clear()


os.register_at_fork(after_in_child=_begin_child)
