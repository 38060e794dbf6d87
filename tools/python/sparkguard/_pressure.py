"""Giving memory back before a request of another program is refused: sparkguard_on_pressure() of sparkguard.h."""

from __future__ import annotations

import atexit
import ctypes
import gc
import os
import sys
import threading
import traceback
from typing import Any, Callable, Optional

from ._guard import _call

_KIND = ctypes.CFUNCTYPE(None, ctypes.c_uint64, ctypes.c_void_p)
_callbacks: list[Any] = []  # every one that was registered: the guard's thread may still be inside an older one
_is_running = threading.Lock()  # held while a function runs
_END_SECONDS = 2.0


def on_pressure(function: Optional[Callable[[int], object]]) -> bool:
    """Has function(wanted_bytes) called when a request of another program cannot be met. Returns False without the guard.

    The function frees what the program can do without. It runs on a thread of its own; the other program waits at most
    SPARKGUARD_WAIT, or 2 s, for it. An exception is printed and goes no further. A second call replaces the function, and
    None ends it. A forked child has none. The end of the program waits up to 2 s for a function that runs.
    """
    if function is None:
        return _call("sparkguard_on_pressure", None, None) == 0
    if not callable(function):
        raise TypeError(f"on_pressure() takes a function, not {type(function).__name__}")
    chosen = function

    def call(wanted_bytes: int, _data: object) -> None:
        with _is_running:
            try:
                chosen(wanted_bytes)
            except BaseException:  # nobody on this thread would catch it
                traceback.print_exc()

    callback = _KIND(call)
    if not _callbacks:
        atexit.register(_end)
    _callbacks.append(callback)
    return _call("sparkguard_on_pressure", callback, None) == 0


def _forget_parent() -> None:
    global _is_running
    _is_running = threading.Lock()  # no thread of a forked child runs a function


os.register_at_fork(after_in_child=_forget_parent)


def _end() -> None:
    """Waits for a function that runs.

    The interpreter would end the thread inside it, and C++ code such as PyTorch's aborts then.
    """
    _call("sparkguard_on_pressure", None, None)
    _is_running.acquire(timeout=_END_SECONDS)  # and keeps it: no function begins from now on


def empty_torch_cache(wanted_bytes: int = 0) -> None:
    """For on_pressure(): collects garbage, and gives PyTorch's cached blocks back to CUDA if the program has imported it."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
