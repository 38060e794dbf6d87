"""Waiting for a condition. The bound only ends a test that hangs: it is far beyond what any busy machine needs."""

import time

from .target import SLOWER

LONGEST_SECONDS = 60 * SLOWER


def wait_until(condition, what="", seconds=LONGEST_SECONDS):
    """What condition() comes to as soon as that is true; `what` names it when it never is."""
    end = time.monotonic() + seconds
    while not (answer := condition()):
        assert time.monotonic() < end, f"not within {seconds} s: {what or condition}"
        time.sleep(0.005)  # poll: the condition
    return answer
