"""Terminals of one's own, as the standard module of this name makes them. Without /dev/pts there is none: the test is skipped."""

import contextlib
import os
import pty

import pytest


def or_skip(make):
    try:
        return make()
    except OSError as why:
        pytest.skip(f"no terminals here, is /dev/pts mounted? ({why})")


def openpty():
    return or_skip(pty.openpty)


def fork():
    return or_skip(pty.fork)


def read_all(terminal):
    """What programs write to a terminal until its other side is closed by all of them. Closes this side."""
    shown = b""
    with contextlib.suppress(OSError):  # the other side is closed
        while piece := os.read(terminal, 65536):
            shown += piece
    os.close(terminal)
    return shown
