"""Real software twice, without the guard and with it, and what must be the same."""

import re
import signal
import subprocess
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

SECONDS = 1200  # for one suite; the machine may be slow


def complaints(guard):
    """What the report says of the guarded processes that it should not."""
    bad, entries = [], guard.processes()
    for entry in entries:
        whose = f"{entry['command'][:60]} ({entry['pid']})"
        bad += [f"{whose}: {entry['unmatched_frees']} unmatched frees"] if entry["unmatched_frees"] else []
        bad += [f"{whose}: {entry['refused_count']} refused"] if entry["refused_count"] else []
    page = guard.directory.parent / "page.html"
    if entries:
        guard.report_command("--all", "--html", page)
        bad += re.findall(r"[0-9]+ internal faults", page.read_text())
    return bad


def run_twice(guard, command, **options):
    """(without, with the guard): how they ended; nothing of ours may be on stderr, nor anything bad in the report."""
    plain = guard.run(command, preload=[], timeout=SECONDS, **options)
    guarded = guard.run(command, timeout=SECONDS, **options)
    assert "sparkguard" not in guarded.stderr + guarded.stdout, guarded.stderr
    assert complaints(guard) == []
    return plain, guarded


def assert_same(guard, command, **options):
    """A program that says the same each time does so under the guard: status, stdout and stderr. Returns what it said."""
    plain, guarded = run_twice(guard, command, **options)
    assert plain.returncode == 0, plain.stderr
    assert (guarded.returncode, guarded.stdout, guarded.stderr) == (0, plain.stdout, plain.stderr)
    return plain.stdout


def results(junit):
    """What each test of a suite came to, by its name."""
    said = {}
    for case in ElementTree.parse(junit).getroot().iter("testcase"):
        bad = [word for word in ("failure", "error", "skipped") if case.find(word) is not None]
        said[case.get("name")] = bad[0] if bad else "passed"
    return said


class Server:
    """A guarded or plain daemon in the foreground, ended by its pid."""

    def __init__(self, guard, command, is_guarded, **options):
        self.guard = guard
        options = {"stdout": subprocess.DEVNULL, "start_new_session": True} | options
        self.process = guard.popen(command, preload=None if is_guarded else [], **options)

    def wait_until(self, answers):
        end = time.monotonic() + 90
        while not answers():
            assert self.process.poll() is None, self.process.stderr.read()
            assert time.monotonic() < end, "no answer"
            time.sleep(0.1)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGINT)  # PostgreSQL: fast shutdown; redis: save and exit
        try:
            self.process.wait(90)
        finally:
            self.process.kill()
            self.said = self.process.communicate()[1]


def first(*patterns):
    """The first file that is there: of the machine, or of .deps."""
    for pattern in patterns:
        found = sorted(Path("/").glob(pattern.lstrip("/")))
        if found:
            return found[-1]
    return None
