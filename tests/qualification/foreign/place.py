"""Where a foreign suite runs, and what it comes to."""

import hashlib
import os
import signal
import subprocess
from pathlib import Path
from typing import Callable, NamedTuple

ROOT = Path(__file__).resolve().parents[3]
FOREIGN = ROOT / ".deps/foreign"
UNPACKED, PYTHON = FOREIGN / "root", FOREIGN / "venv/bin/python"
LIBRARY_PLACES = [f"{top}lib{under}" for top in ("usr/", "") for under in ("/x86_64-linux-gnu", "/aarch64-linux-gnu", "")]
SECONDS = 3000  # for one run of a suite
AT_ONCE = 3  # of tests that are programs of their own, and mostly wait


class Unavailable(Exception):
    """What the suite needs is not here."""


class Place(NamedTuple):
    scratch: Path  # of this run alone
    environment: dict
    only: tuple = ()  # names of results; a suite that can runs no others

    def wants(self, name):
        return not self.only or name in self.only

    def run(self, command, seconds=SECONDS, **options):
        """A program to its end; what it started and left running is ended too."""
        options = {"cwd": self.scratch, "stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        process = subprocess.Popen([str(c) for c in command], env=self.environment, text=True, errors="replace",
                                   start_new_session=True, **options)  # fmt: skip
        try:
            stdout, stderr = process.communicate(timeout=seconds)
            return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(command, -signal.SIGALRM, "", f"no end after {seconds} s")
        finally:
            end_session(process.pid)
            process.wait()

    def with_unpacked(self):
        """The same with the unpacked packages' programs and libraries first."""
        path = [UNPACKED / "usr/sbin", UNPACKED / "usr/bin", *self.environment.get("PATH", "/usr/bin:/bin").split(":")]
        homes = {"ERL_ROOTDIR": UNPACKED / "usr/lib/erlang"}
        places = {"PATH": ":".join(map(str, path)), "LD_LIBRARY_PATH": libraries_of(UNPACKED)}
        environment = {**self.environment, **{k: str(v) for k, v in homes.items()}, **places}
        return self._replace(environment=environment)


def end_session(leader):
    """Those also that made process groups of their own."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if int((folder / "stat").read_text().rpartition(")")[2].split()[3]) == leader:
                os.kill(int(folder.name), signal.SIGKILL)
        except (FileNotFoundError, ProcessLookupError):
            continue


class Suite(NamedTuple):
    what: str  # for people
    run: Callable
    version: Callable = str  # of what is installed, as text


def need(path, group="foreign"):
    if not Path(path).exists():
        raise Unavailable(f"{path} is missing: scripts/install-deps {group}")
    return path


def libraries_of(root):
    return ":".join(str(root / place) for place in LIBRARY_PLACES)


def outcome(done):
    """A program's end and what it said, as one word that is the same when both are."""
    return f"status {done.returncode}, output {hashlib.sha256((done.stdout or '').encode()).hexdigest()[:16]}"
