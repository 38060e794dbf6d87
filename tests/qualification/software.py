"""Real software twice, without the guard and with it, and what must be the same."""

import os
import re
import shutil
import signal
import subprocess
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

from lib.waiting import wait_until

SECONDS = 1200  # for one suite; the machine may be slow


def unseen(guard, least_mib):
    """What tells that the library was not at work. Who ends by itself and never held 16 MiB takes its record along; that it had a
    entry among the others then tells of it: 0."""
    if least_mib == 0:
        return [] if (guard.directory / "machine.ledger").exists() else ["nobody took an entry"]
    entries = guard.processes()
    peak = max((entry["peak_bytes"] >> 20 for entry in entries), default=0)
    return [] if peak >= least_mib else [f"{len(entries)} processes were seen, of {peak} MiB at most; one must hold {least_mib}"]


def complaints(guard, least_mib):
    """What the report says of the guarded processes that it should not, and if it does not say that one of them held so much."""
    bad, entries = unseen(guard, least_mib), guard.processes()
    for entry in entries:
        whose = f"{entry['command'][:60]} ({entry['pid']})"
        bad += [f"{whose}: {entry['unmatched_frees']} unmatched frees"] if entry["unmatched_frees"] else []
        bad += [f"{whose}: {entry['refused_count']} refused"] if entry["refused_count"] else []
    page = guard.directory.parent / "page.html"
    if entries:
        guard.report_command("--all", "--html", page)
        bad += re.findall(r"[0-9]+ internal faults", page.read_text())
    return bad


def run_twice(guard, command, least_mib, **options):
    """(without, with the guard): how they ended; nothing of ours may be on stderr, nor anything bad in the report."""
    plain = guard.run(command, preload=[], timeout=SECONDS, **options)
    guarded = guard.run(command, timeout=SECONDS, **options)
    assert "sparkguard" not in guarded.stderr + guarded.stdout, guarded.stderr
    assert complaints(guard, least_mib) == []
    return plain, guarded


def assert_same(guard, command, least_mib, **options):
    """A program that says the same each time does so under the guard: status, stdout and stderr. Returns what it said."""
    plain, guarded = run_twice(guard, command, least_mib, **options)
    assert plain.returncode == 0, plain.stderr
    assert (guarded.returncode, guarded.stdout, guarded.stderr) == (0, plain.stdout, plain.stderr)
    return plain.stdout


class Result(str):
    """passed, skipped, failure or error; of what was skipped the reason beside it."""

    reason = ""


def results(junit):
    """What each test of a suite came to, by its name; where it is there several times, as a part of it failed, the worst."""
    said, order = {}, ("passed", "skipped", "failure", "error")
    for case in ElementTree.parse(junit).getroot().iter("testcase"):
        result = Result(next((word for word in order[:0:-1] if case.find(word) is not None), "passed"))
        if result == "skipped":
            result.reason = case.find("skipped").text or case.find("skipped").get("message") or "no reason given"
        said[case.get("name")] = max(said.get(case.get("name"), result), result, key=order.index)
    return said


def named(names, most=5):
    """Some of them."""
    names = sorted(names)
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


# What of CPython's reasons to skip a test is one to a reader.
REASONS = {
    "not on this platform": r"Windows|WinDLL|WINFUNCTYPE|oledll|OSX|OS X|macOS|Solaris|BSD",
    "more memory than tests are allowed": r"not enough memory",
    "a resource that was not asked for": r"resource '\w+' is not enabled",
}


def reason_of(result):
    return next((known for known, pattern in REASONS.items() if re.search(pattern, result.reason)), " ".join(result.reason.split())[:60])


def summary(results, most=6):
    """How many tests came to what, why some were skipped, by reasons, and which failed."""
    words, reasons = Counter(results.values()), Counter(reason_of(r) for r in results.values() if r == "skipped")
    counts = ", ".join(f"{words[word]} {word}" for word in ("passed", "skipped", "failure", "error") if words[word])
    said = [f"{count} {reason}" for reason, count in reasons.most_common(most)]
    if rest := sum(reasons.values()) - sum(count for _, count in reasons.most_common(most)):
        said.append(f"{rest} for {len(reasons) - most} other reasons")
    failed = [name for name, result in results.items() if result in ("failure", "error")]
    return counts + (f" (skipped: {', '.join(said)})" if said else "") + (f" (failed: {named(failed)})" if failed else "")


# Those that are about what a server holds, how it forks to save, and what it loads again. Of what is corrupt it asks for exabytes
# and is refused them, which is no complaint: corrupt-dump is left out.
REDIS_UNITS = [f"unit/type/{name}" for name in ("string", "incr", "list", "list-2", "hash", "set", "zset", "stream")]
REDIS_UNITS += [f"unit/{name}" for name in ("keyspace", "expire", "dump", "scan", "sort", "multi", "scripting", "functions", "aofrw")]
REDIS_UNITS += [f"unit/{name}" for name in ("maxmemory", "memefficiency", "lazyfree", "oom-score-adj", "other", "shutdown")]
REDIS_UNITS += [f"integration/{name}" for name in ("rdb", "aof", "replication-buffer")]


def redis_results(text):
    """How often each (test, what it came to) was said: many tests have the same name."""
    said = re.findall(r"^\[(ok|err|exception|skip|ignore)\]: (.*?)(?: \(\d+ ms\)| in tests/.*)?$", text, re.MULTILINE)
    return Counter((name, word) for word, name in said)


def redis_failed(results):
    return Counter({name: count for (name, word), count in results.items() if word in ("err", "exception")})


def redis_suite(guard, folder, preload, tests, programs, env):
    """The results of redis' own tests, which are copied to the folder: its servers work below it."""
    shutil.copytree(tests, folder, dirs_exist_ok=True)
    (folder / "src").mkdir(exist_ok=True)
    for program in programs:
        (folder / "src" / program.name).unlink(missing_ok=True)
        (folder / "src" / program.name).symlink_to(program)
    words = [word for unit in REDIS_UNITS for word in ("--single", unit)]
    command = ["./runtest", "--clients", os.cpu_count(), *words]
    done = guard.run(command, env=env, preload=preload, timeout=2500, cwd=folder)
    text = re.sub(r"\x1b\[[\d;]*m", "", done.stdout)
    assert "The End" in text, text[-4000:] + done.stderr
    return redis_results(text)


class Server:
    """A guarded or plain daemon in the foreground, ended by its pid."""

    def __init__(self, guard, command, is_guarded, **options):
        self.guard = guard
        options = {"stdout": subprocess.DEVNULL, "start_new_session": True} | options
        self.process = guard.popen(command, preload=None if is_guarded else [], **options)

    def wait_until(self, answers):
        wait_until(lambda: self.process.poll() is not None or answers(), "an answer", step=0.1)
        assert self.process.poll() is None, self.process.stderr.read()

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
