"""Runs a command to its end, and then ends what it has left behind, in whatever session: python3 alone.py COMMAND...

A process that loses its parent becomes a child of this one (prctl(2), PR_SET_CHILD_SUBREAPER). At SIGTERM all of it ends at once. Exit: the command's
status, 128 and the signal where one ended it.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys

PR_SET_CHILD_SUBREAPER = 36


def end_all():
    """Who is killed leaves its children here, until there are none."""
    while True:
        with open("/proc/thread-self/children") as file:
            children = [int(number) for number in file.read().split()]
        if not children:
            return
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def stop(number, _frame):
    end_all()
    os._exit(128 + number)


def main():
    if ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        sys.exit("alone.py: what the command leaves behind could not be found")
    signal.signal(signal.SIGTERM, stop)
    status = subprocess.Popen(sys.argv[1:]).wait()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    end_all()
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main())
