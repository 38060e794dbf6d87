"""Waiting for what others do."""

import time

SECONDS = 90  # on the slowest of machines


def wait_for(what, condition):
    end = time.monotonic() + SECONDS
    while not (result := condition()):
        assert time.monotonic() < end, f"no {what} within {SECONDS} s"
        time.sleep(0.1)  # poll: the condition
    return result
