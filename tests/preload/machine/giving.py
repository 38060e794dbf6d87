"""Programs that have a callback for memory pressure, and requests that ask them."""

import resource
import time

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
# Holds 4 GiB until SIGUSR1; its number is in PID_FILE.
HOLD = """
import ctypes, os, signal, time
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
held = [libc.malloc(1 << 30) for _ in range(4)]
open(os.environ.get("PID_FILE", os.devnull), "w").write(str(os.getpid()))
signal.signal(signal.SIGUSR1, lambda *_: [libc.free(held.pop()) for _ in range(len(held))])
print("ready", flush=True)
while True:
    time.sleep(600)  # holds: the memory, until a signal
"""
GIVES = 1 << 8  # SG_SLOT_GIVES
# A request that waits looks after 1, 2, 4, 8, 16 and 32 ms, and then every 50 ms (preload/core/admit/wait.c): 45 times in the two seconds of
# an answer, 9 times in the 0.2 s after the last answer, and 11 times in 0.3 s. A program that asks once sleeps 4 times besides, and each
# change of another process's entry wakes it for one look more. AT_ONCE is half way from 4 + 9 sleeps to those of the two seconds.
DEADLINE = 45
AT_ONCE = 29
PATIENT = {"SPARKGUARD_WAIT": "50"}  # as long as a busy machine may need for an answer
TURN = 0.5  # seconds: if nobody has answered for so long, one more is asked (shared/givers.c)
SERVED = 500  # sleeps: half of the looks until the deadline of who is PATIENT


def giver(place, size, callback="give", job="server", rest="", env=None):
    """A program that holds `size` bytes in four blocks and has a callback."""
    code = f"held += [malloc({size // 4}) for _ in range(4)]\nassert register({callback}) == 0\nready()\n{rest}\nsay(len(asked))\nready()\n"
    tenant = place.player(GIVER + code, env={"SPARKGUARD_JOB": job, **(env or {})})
    assert tenant.ready() == ["ok"] * 4
    return tenant


def ask(place, commands, env=None):
    """The answers, and how often the program that asked has slept: a busy machine makes that no more."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_nvcsw
    answers = place.take(commands, env=env)
    return answers, resource.getrusage(resource.RUSAGE_CHILDREN).ru_nvcsw - before


def given(place, commands):
    """The answers to who waits for what others give back."""
    answers, sleeps = ask(place, commands, env=PATIENT)
    assert sleeps < SERVED, "it was served at its deadline only"
    return answers


def given_and_turns(place, commands):
    """The answers, and how many may have been asked besides the first one while a busy machine let the request wait."""
    begin = time.monotonic()
    answers = given(place, commands)
    return answers, int((time.monotonic() - begin) / TURN)


def entry_flags(place):
    return [place.ledger.get("flags", number) for number in place.ledger.taken()]
