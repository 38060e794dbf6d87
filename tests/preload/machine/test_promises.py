"""What a process was promised and has not touched: the kernel's figure for it, whatever state its owner is in."""

import os
import signal

import pytest
from lib.machine import GIB, LEFT, MIB

UNWATCHED = {"SPARKGUARD_WATCHDOG": "off"}

PREPARED = """
libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.syscall.restype = ctypes.c_void_p
SYS_MMAP = {"x86_64": 9, "aarch64": 222}[os.uname().machine]
def unseen(size):
    return libc.syscall(SYS_MMAP, None, ctypes.c_size_t(size), 3, 0x22, -1, ctypes.c_long(0))
def pages(size):
    return libc.mmap(None, size, 3, 0x22, -1, 0)
"""


def owner(place, text):
    tenant = place.player(PREPARED + text + "\nready()", UNWATCHED)
    tenant.ready()
    return tenant


def test_memory_that_nobody_was_granted_dissolves_no_promise_when_it_is_touched(place):
    """As .bss, stacks and copied pages of files are."""
    owner(place, "more = unseen(512 * MIB)\nmalloc(GIB)\nmalloc(1 << 45)\nctypes.memset(more, 1, 512 * MIB)")
    place.assert_left(LEFT - GIB)


@pytest.mark.parametrize("is_stopped", [False, True], ids=["idle", "stopped"])
def test_what_was_touched_is_promised_no_more_without_the_owner(place, is_stopped):
    tenant = owner(place, "block = malloc(2 * GIB)\nctypes.memset(block, 1, GIB)")
    if is_stopped:
        os.kill(tenant.pid, signal.SIGSTOP)
    place.assert_left(LEFT - GIB)


def test_what_was_given_back_is_promised_again_and_what_is_beside_it_is_not(place):
    owner(
        place,
        "block = pages(512 * MIB)\nctypes.memset(block, 1, 512 * MIB)\n"
        "for i in range(2600): ctypes.memset(malloc(100 << 10), 1, 100 << 10)\n"
        "malloc(1 << 45)\nassert libc.madvise(block, 256 * MIB, 4) == 0",
    )
    place.assert_left(LEFT - 256 * MIB)


def test_what_was_given_back_and_touched_again_is_promised_no_more(place):
    owner(
        place,
        "block = pages(512 * MIB)\nctypes.memset(block, 1, 512 * MIB)\nmalloc(1 << 45)\n"
        "assert libc.madvise(block, 512 * MIB, 4) == 0\nctypes.memset(block, 1, 512 * MIB)",
    )
    place.assert_left(LEFT)


def test_memory_that_is_made_unwritable_hides_no_promise(place):
    """Its pages stay, and the kernel counts its size no longer."""
    owner(
        place,
        "block = pages(512 * MIB)\nctypes.memset(block, 1, 512 * MIB)\nmalloc(GIB)\nmalloc(1 << 45)\n"
        "assert libc.mprotect(block, 512 * MIB, 1) == 0",
    )
    place.assert_left(LEFT - GIB)
