"""Programs that have a callback for memory pressure, and requests that ask them."""

import time

from lib.target import SLOWER

GIVER = """
libc.free.argtypes = [ctypes.c_void_p]
KIND = ctypes.CFUNCTYPE(None, ctypes.c_uint64, ctypes.c_void_p)
asked = []
held = []
def give(wanted, data):
    asked.append(wanted)
    while held:
        libc.free(held.pop())
def register(function):
    global kept
    kept = KIND(function) if function else None
    return libc.sparkguard_on_pressure(kept, None)
"""
GIVES = 1 << 8  # SG_SLOT_GIVES
AT_ONCE = 1.5 * SLOWER  # seconds: less than the two that an answer is waited for
DEADLINE = 2


def giver(place, size, callback="give", job="server", rest="", env=None):
    """A program that holds `size` bytes in four blocks and has a callback."""
    code = f"held += [malloc({size // 4}) for _ in range(4)]\nassert register({callback}) == 0\nready()\n{rest}\nsay(len(asked))\nready()\n"
    tenant = place.player(GIVER + code, env={"SPARKGUARD_JOB": job, **(env or {})})
    assert tenant.ready() == ["ok"] * 4
    return tenant


def ask(place, commands, env=None):
    begin = time.monotonic()
    answers = place.take(commands, env=env)
    return answers, time.monotonic() - begin


def entry_flags(place):
    return [place.ledger.get("flags", number) for number in place.ledger.taken()]
