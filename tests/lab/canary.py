"""What others feel: a program that needs its memory every 50 ms, how late it gets it, and how often a page of it was not there.

Used by the tests of this folder, which count pages, and by scripts/demo, which shows how late it was.
"""

import math
import subprocess
import threading
import time
from pathlib import Path

from lib.waiting import wait_until

PERIOD_SECONDS = 0.05


class Lateness:
    """Rounds that were due every 50 ms, as (when it was due, how late it was), in seconds of time.monotonic()."""

    def __init__(self):
        self.rounds = []

    def late_since(self, begin):
        """How late each round due since then was; those that it still owes are as late as it is now."""
        rounds = list(self.rounds)
        now, due = time.monotonic(), rounds[-1][0] + PERIOD_SECONDS
        late = [late for due_then, late in rounds if due_then >= begin]
        while due < now:
            late.append(now - due)
            due += PERIOD_SECONDS
        return late

    def silent_seconds(self):
        """For how long it has not answered by now."""
        due, late = self.rounds[-1]
        return time.monotonic() - due - late

    def p99_since(self, begin):
        late = sorted(self.late_since(begin))
        return late[math.ceil(len(late) * 0.99) - 1] if late else 0.0


class Canary(Lateness):
    """The program canary in a jail, or in none; what it said is read as it comes."""

    def __init__(self, program, jail, env, mib=20, seconds=100):
        command = [str(word) for word in (program, mib, seconds)]
        if jail is not None:
            self.process = jail.popen(command, env, stdin=subprocess.DEVNULL)
        else:
            pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
            self.process = subprocess.Popen(command, env=env, text=True, bufsize=1, **pipes)
        super().__init__()
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()
        wait_until(lambda: len(self.rounds) >= 5 or not self.is_alive(), "the canary's first rounds")
        assert self.is_alive(), f"the canary ended: {self.process.returncode}, {self.process.stderr.read()}"

    def read(self):
        for line in self.process.stdout:
            due, late = line.split()
            self.rounds.append((int(due) / 1e9, int(late) / 1e9))

    def is_alive(self):
        return self.process.poll() is None

    def pages_read(self):
        """How many of its pages have come from a disk so far, as the kernel counts them. For the reader, a busy processor looks the same as
        a page that is late; for this count it does not."""
        return int(Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[9])

    def stop(self):
        self.process.kill()
        self.process.wait()
