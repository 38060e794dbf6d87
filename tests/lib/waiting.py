"""Waiting for a condition. The bound only ends a test that hangs: it is far beyond what any busy machine needs."""

import time

from .target import patience

LONGEST_SECONDS = 120


def wait_until(condition, what="", seconds=LONGEST_SECONDS, step=0.005):
    """What condition() comes to as soon as that is true; `what` names it when it never is. It is asked every `step` seconds."""
    end = time.monotonic() + patience(seconds)
    while not (answer := condition()):
        assert time.monotonic() < end, f"not within {seconds} s: {what or condition}"  # limit: ends a test that hangs
        time.sleep(step)  # poll: the condition
    return answer
