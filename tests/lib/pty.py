"""Terminals of one's own, as the standard module of this name makes them. Without /dev/pts there is none: the test is skipped."""

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
