"""The helpers that training scripts for unified memory write by hand, under the names that they give them.

Sizes are GiB, as the names in _gb have it; stats() has the same figures as bytes. Without the guard the functions that ask
the guard return None and those that tell or set something do nothing, except where one says otherwise.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any, Optional, TypedDict

from . import _guard, _phases

_GIB = 1024**3
_BAR = 40  # characters
_logger = logging.getLogger("sparkguard")

# Run by a process of its own: a process that has called cuInit cannot use CUDA in the children that it forks.
_ASK_DRIVER = """
import ctypes
cuda, device, answer = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_int()
assert cuda.cuInit(0) == 0 and cuda.cuDeviceGet(ctypes.byref(device), 0) == 0
assert cuda.cuDeviceGetAttribute(ctypes.byref(answer), 18, device) == 0  # CU_DEVICE_ATTRIBUTE_INTEGRATED
print(answer.value)
"""


class MemoryStats(TypedDict):
    """What get_memory_stats() returns. Sizes are GiB; None is an unknown figure."""

    allocated_gb: float
    reserved_gb: float
    max_allocated_gb: float
    max_reserved_gb: float
    total_gb: Optional[float]
    free_gb: Optional[float]
    num_alloc_retries: int


class MemoryConfig(TypedDict):
    """What get_memory_config() returns."""

    pin_memory: bool
    disable_cpu_offload: bool
    prefetch_factor: int
    num_workers: int
    memory_pool: str
    expandable_segments: bool


def get_memory_stats() -> Optional[MemoryStats]:
    """Returns this process's figures in GiB; None without the guard.

    allocated_gb, reserved_gb          what the process holds. The guard counts what is taken from the system, which a
                                       caching allocator calls reserved, so both are the same, and so are their peaks
    max_allocated_gb, max_reserved_gb  the most that it held, since the start or reset_peak_memory_stats()
    free_gb                            what the machine has left above the reserve; page cache counts as free, as the kernel
                                       gives it back. A limit of the job is not in it
    total_gb                           held and free
    num_alloc_retries                  refused requests
    """
    now = _guard.stats()
    if now is None:
        return None
    live, peak, usable = now["live_bytes"] / _GIB, now["peak_bytes"] / _GIB, now["usable_bytes"]
    free = None if usable is None else max(0, usable - (now["reserve_bytes"] or 0)) / _GIB
    return {
        "allocated_gb": live,
        "reserved_gb": live,
        "max_allocated_gb": peak,
        "max_reserved_gb": peak,
        "total_gb": None if free is None else live + free,
        "free_gb": free,
        "num_alloc_retries": now["refused_count"],
    }


def print_memory_stats(label: object = "Current") -> None:
    """Prints get_memory_stats() with a bar of what is held of the total. Without the guard prints one line that says so."""
    now = get_memory_stats()
    if now is None:
        print(f"{label} memory: not under sparkguard")
        return
    print(f"{label} memory:")
    print(f"   Allocated: {now['allocated_gb']:.2f} GiB, peak {now['max_allocated_gb']:.2f} GiB")
    if now["free_gb"] is not None and now["total_gb"]:
        share = now["allocated_gb"] / now["total_gb"]
        filled = int(_BAR * share)
        print(f"   Free:      {now['free_gb']:.2f} GiB")
        print(f"   Total:     {now['total_gb']:.1f} GiB")
        full, empty = "█░" if (getattr(sys.stdout, "encoding", None) or "").lower().startswith("utf") else "#."
        print(f"   [{full * filled}{empty * (_BAR - filled)}] {share:.1%}")


def log_memory_usage(name: object = "") -> None:
    """Logs one line at level INFO to the logger "sparkguard", also without the guard."""
    now = _guard.stats()
    if now is None:
        _logger.info("[%s] not under sparkguard", name)
        return
    usable = "unknown" if now["usable_bytes"] is None else f"{now['usable_bytes'] / _GIB:.2f} GiB"
    live, peak = now["live_bytes"] / _GIB, now["peak_bytes"] / _GIB
    _logger.info("[%s] memory: live %.2f GiB, peak %.2f GiB, usable %s", name, live, peak, usable)


def reset_peak_memory_stats() -> None:
    """Is reset_peak() under PyTorch's name."""
    _phases.reset_peak()


def clear_memory() -> None:
    """Frees what Python and PyTorch keep unused, and resets the peaks. Works without the guard, too.

    Collects garbage, empties PyTorch's cache of CUDA memory if the program uses it, and lets the C library give back free
    memory of its heap. Tensors that a variable still names stay.
    """
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(0))
    _phases.reset_peak()


# ---- unified memory -------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=None)
def _driver_says() -> Optional[bool]:
    """Asks the driver in a process of its own; None if there is no driver or no device."""
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    command = [sys.executable, "-I", "-S", "-c", _ASK_DRIVER]
    try:
        done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
    except (OSError, subprocess.SubprocessError, MemoryError):
        return None
    return done.stdout.strip() == b"1" if done.returncode == 0 else None


def is_unified_memory_system() -> Optional[bool]:
    """Returns whether the memory of device 0 is the machine's memory; None without the guard or without a CUDA device.

    The driver's attribute "integrated" says so, or SPARKGUARD_UNIFIED if it is set. A compute capability of 9 or more, by
    which many scripts judge, is a wrong test: an H100 has it, and memory of its own. The first call of a program that does
    not use CUDA yet asks the driver in another process, which takes tenths of a second.
    """
    now = _guard.stats()
    if now is None or now["unified"] is not None:
        return now["unified"] if now else None
    return _driver_says()


def get_memory_config(unified_memory: Optional[bool] = None) -> MemoryConfig:
    """Returns settings for a data loader and PyTorch's allocator, for unified memory or for a card with its own.

    unified_memory is what is_unified_memory_system() says if it is None. On unified memory a pinned buffer saves no copy over
    a bus and takes memory from everybody that cannot be swapped, moving weights to the CPU frees nothing, and each worker
    and each batch prefetched is memory that the model lacks. An unknown machine, as without the guard, counts as one with a card.
    """
    if unified_memory if unified_memory is not None else is_unified_memory_system():
        return {
            "pin_memory": False,
            "disable_cpu_offload": True,
            "prefetch_factor": 2,
            "num_workers": 4,
            "memory_pool": "unified",
            "expandable_segments": True,
        }
    return {
        "pin_memory": True,
        "disable_cpu_offload": False,
        "prefetch_factor": 4,
        "num_workers": 8,
        "memory_pool": "standard",
        "expandable_segments": False,
    }


def setup_unified_memory_env() -> None:
    """Sets what PyTorch's allocators read. Call it before the import of PyTorch; it never raises.

    MIMALLOC_ARENA_EAGER_COMMIT=0, unless it has a value: PyTorch for aarch64 then takes memory for CPU tensors piece by piece, and
    the guard can refuse each. On unified memory also lets PyTorch's allocator grow its segments.

    Sets PYTORCH_CUDA_ALLOC_CONF to expandable_segments:True, unless that variable or its newer name PYTORCH_ALLOC_CONF has a
    value. Two settings that scripts often add are left out. CUDA_MANAGED_FORCE_DEVICE_ALLOC concerns machines with several
    cards. A fraction of the device's total memory takes no account of what other programs hold; the guard's reserve does.
    """
    os.environ.setdefault("MIMALLOC_ARENA_EAGER_COMMIT", "0")
    if is_unified_memory_system() and "PYTORCH_ALLOC_CONF" not in os.environ:
        os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")


def configure_accelerator_for_unified_memory(accelerator_kwargs: dict[str, Any]) -> dict[str, Any]:
    """Returns a copy of the arguments for accelerate.Accelerator that places tensors on the device, also on unified memory.

    Scripts often set device_placement=False there. That leaves model and batches on the CPU, and the CPU then trains:
    CPU and GPU share the memory, but a tensor still belongs to one of them. A value that the caller has given stays.
    """
    return {"device_placement": True} | accelerator_kwargs


# ---- page cache -----------------------------------------------------------------------------------------------------------


def _kernel_file(path: str) -> Path:
    return Path(os.environ.get("SPARKGUARD_SYSTEM_ROOT") or "/") / path


def check_buffer_cache() -> Optional[float]:
    """Returns the GiB that the kernel holds as buffers and cache, as free(1) counts them; None if it cannot be read.

    Needs no guard. Most of it is given back when a program wants memory. cudaMemGetInfo counts it as used on unified memory;
    under the guard it does not, so no cache need be cleared for a program to see what it may have.
    """
    try:
        lines = _kernel_file("proc/meminfo").read_text().splitlines()
        kib = {name: int(rest.split()[0]) for name, rest in (line.split(":", 1) for line in lines)}
        return (kib["Buffers"] + kib["Cached"] + kib.get("SReclaimable", 0)) / 1024**2
    except (OSError, ValueError, KeyError, IndexError):
        return None


def clear_buffer_cache() -> bool:
    """Writes dirty pages to the disks and drops the page cache of the whole machine. Returns whether that was possible.

    Needs no guard, but root's right to write /proc/sys/vm/drop_caches, outside a container. Without it, prints the command
    for an administrator and returns False; it never asks for a password. Every program then reads its files from the disk
    again, model weights too. It is for measurements, not for each run.
    """
    before = check_buffer_cache()
    try:
        os.sync()
        _kernel_file("proc/sys/vm/drop_caches").write_text("3\n")
    except OSError as error:
        print(f"The page cache was not cleared ({error.strerror}): this needs root, outside a container.")
        print("   Run: sudo sh -c 'sync; echo 3 > /proc/sys/vm/drop_caches'")
        return False
    after = check_buffer_cache()
    if before is not None and after is not None:
        print(f"Page cache cleared: {before:.1f} GiB before, {after:.1f} GiB after")
    return True
