"""SIGKILL at random instants, machine-wide: after each, the ledger says what the survivors have, and no byte more.

Several trees of processes allocate, free, fork, exec and begin threads (stress.c), beside some that quietly hold what is
known. One process of a tree is killed wherever it stands, the rest is stopped wherever it stands, and then
  - no entry of the dead counts: what is left by an independent sum over the entries of the living is granted at once;
  - the quiet ones' entries say what they hold;
  - sparkguard-report can be read.
Now and then all trees are killed; then what is left is known, and hardly more is refused.

SPARKGUARD_TEST_KILLS sets how many are killed (80, and 300 in the long form; 10000 for a long run).
"""

import contextlib
import ctypes
import json
import os
import random
import resource
import signal
import subprocess
import time

import pytest
from lib.ledger import Ledger
from lib.target import IS_LONG
from lib.waiting import wait_until

MIB, GIB = 1 << 20, 1 << 30
KILLS = int(os.environ.get("SPARKGUARD_TEST_KILLS", "300" if IS_LONG else "80"))
TREES, ROUND = 3, 10  # all trees begin anew after so many kills
AVAILABLE, RESERVE = 10 * GIB, 2 * GIB
LEFT = AVAILABLE - RESERVE
QUIET = (300 * MIB, 150 * MIB, 77 * MIB)
NEAR = 3 * MIB  # what a small program holds and is promised besides
MORE = MIB  # what a quiet process has touched since it looked: its promise may seem to be less by that
# Of a request: 65 looks in the 3 s for which somebody who stands still holds others up, 11 in the 0.3 s for their scans
# (preload/core/admit/wait.c), and what a program sleeps besides. All others stand still, so that nothing wakes it; a busy machine makes it no more.
SLEEPS = 65 + 11 + 20
PR_SET_CHILD_SUBREAPER = 36

pytestmark = pytest.mark.timeout_seconds(120 + 5 * KILLS)  # a busy machine takes many times as long as a quiet one


def stat_of(pid):
    """State and session; None if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return fields[0], int(fields[3])


def sessions(leaders):
    """{leader: [(pid, state)]} of those not dead."""
    found = {leader: [] for leader in leaders}
    for name in os.listdir("/proc"):
        stat = stat_of(name) if name.isdigit() else None
        if stat is not None and stat[1] in found and stat[0] not in "ZX":
            found[stat[1]].append((int(name), stat[0]))
    return found


class Field:
    def __init__(self, guard, scratch, stack, seed):
        self.guard, self.draw = guard, random.Random(seed)
        meminfo = scratch / "machine/proc/meminfo"
        meminfo.parent.mkdir(parents=True)
        meminfo.write_text(f"MemTotal: {16 * GIB // 1024} kB\nMemAvailable: {AVAILABLE // 1024} kB\n")
        self.env = {
            "SPARKGUARD_SYSTEM_ROOT": scratch / "machine",
            "SPARKGUARD_RESERVE": RESERVE,
            "SPARKGUARD_JOB": "stress",
            "SPARKGUARD_HISTORY": "off",
        }
        self.stress = scratch / "stress"
        source = os.path.join(os.path.dirname(__file__), "stress.c")
        subprocess.run(["cc", "-O1", "-D_GNU_SOURCE", "-pthread", "-o", self.stress, source], check=True)
        self.admit_take = str(guard.build / "tests/programs/admit_take")
        self.trees = []
        stack.callback(self.end_trees)
        self.quiet = [stack.enter_context(self.holder(size)) for size in QUIET]
        self.ledger = stack.enter_context(Ledger(guard.directory))
        self.entries = [self.ledger.of(process.pid) for process in self.quiet]
        self.held = [self.content(entry) for entry in self.entries]
        for size, held in zip(QUIET, self.held):
            assert size <= held["promised_bytes"] <= size + NEAR and held["in_flight_bytes"] == 0

    @contextlib.contextmanager
    def holder(self, size):
        quiet = self.env | {"SPARKGUARD_WATCHDOG": "off"}  # it would look at its promises now and then
        process = self.guard.popen([self.admit_take, "malloc", size, "wait"], env=quiet, stdin=subprocess.PIPE)
        try:
            assert [process.stdout.readline() for _ in range(2)] == ["ok\n", "ready\n"]
            yield process
            assert process.poll() is None
        finally:
            process.kill()
            process.communicate()

    def content(self, entry):
        fields = ("claim", "pid", "granted_bytes", "promised_bytes", "in_flight_bytes", "ticket", "job_hash")
        return {field: self.ledger.get(field, entry) for field in fields}

    # ---- trees ----

    def plant(self):
        arguments = [str(self.stress), str(self.draw.getrandbits(60))]
        null = [(os.POSIX_SPAWN_OPEN, fd, "/dev/null", os.O_RDWR, 0) for fd in range(3)]
        environment = self.guard.environment(self.env)
        self.trees.append(os.posix_spawn(arguments[0], arguments, environment, setsid=True, file_actions=null))

    def reap(self, leader):
        """Whoever of a tree became ours: its leader, and orphans. All of them are dead or dying."""
        with contextlib.suppress(ChildProcessError):
            while True:
                os.waitpid(-leader, 0)

    def end_trees(self):
        for leader in self.trees:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(leader, signal.SIGKILL)
            self.reap(leader)
        self.trees.clear()

    def send(self, number):
        for leader in self.trees:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(leader, number)

    def kill_one(self):
        leader = self.draw.choice(self.trees)
        victim = leader
        if self.draw.random() < 0.6:
            victim = self.draw.choice(sessions([leader])[leader] or [(leader, "")])[0]
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
        if victim == leader:
            self.reap(leader)  # its children die with it
            self.trees.remove(leader)
        else:
            wait_until(lambda: (stat_of(victim) or "Z")[0] in "ZX", f"the end of {victim}", step=0.0002)

    def all_stand_still(self):
        self.send(signal.SIGSTOP)
        states = sessions(self.trees)
        return all(state in "Tt" for tree in states.values() for _, state in tree)

    # ---- what must be so ----

    def ask(self, commands, **env):
        environment = {**self.env, **env}
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_nvcsw
        done = self.guard.run([self.admit_take, *commands.split()], env=environment)
        assert done.returncode == 0, f"{done.returncode}: {done.stdout}{done.stderr}"
        sleeps = resource.getrusage(resource.RUSAGE_CHILDREN).ru_nvcsw - before
        assert sleeps < SLEEPS * commands.count("malloc"), "it was held up for longer than 3 s"
        self.said = done.stderr
        return done.stdout.split()

    def all_entries(self):
        fields = ("claim", "pid", "promised_bytes", "in_flight_bytes", "bounded_flight_bytes", "ticket", "queued_bytes")
        fields += ("parent_entry", "parent_claim", "inherited_promise_bytes", "ever_promised_bytes", "published_ns")
        used = range(self.ledger.get("entry_used"))
        return [f"{i} {self.ledger.is_locked(i)} " + " ".join(f"{f}={self.ledger.get(f, i)}" for f in fields) for i in used]

    def explain(self, left, before):
        """What was refused though the entries said that it was left: the entries before, and what is different after."""
        lines = [f"{left / MIB:.3f} MiB are left by the ledger: {self.said}", *before, "after:"]
        lines += [line for line in self.all_entries() if line not in before]
        lines += [f"again: {self.ask(f'malloc {left - NEAR}')}, by steps: {self.ask(f'malloc {left - NEAR} largest')}"]
        lines += [f"left now: {(LEFT - self.ledger.gone()) / MIB:.3f}, {sessions(self.trees)}"]
        return "\n".join(lines)

    def check(self):
        before = self.all_entries()
        left = LEFT - self.ledger.gone()
        assert left >= 2 * GIB, f"{left / MIB} MiB"
        if self.ask(f"malloc {left - NEAR}") != ["ok"]:
            raise AssertionError(self.explain(left, before))
        assert [self.content(entry) for entry in self.entries] == self.held
        shown = self.guard.report_command("--json", "--all")
        assert shown.returncode == 0, f"{shown.returncode}: {shown.stderr}"
        entries = [entry for job in json.loads(shown.stdout)["jobs"] for entry in job["processes"]]
        running = {entry["pid"] for entry in entries if entry["state"] == "running"}
        assert {process.pid for process in self.quiet} <= running

    def check_quiet(self):
        """Nobody else is there."""
        self.end_trees()
        # Who reads /proc of a process, a tool of the machine's, may hold its memory, and with it the locked file, a moment longer than it lives.
        wait_until(lambda: sorted(self.ledger.taken()) == sorted(self.entries), "the locks of the dead to go")
        promised = sum(held["promised_bytes"] for held in self.held)
        granted = sum(held["granted_bytes"] for held in self.held)
        assert self.ledger.gone() == promised
        left = LEFT - promised
        assert self.ask(f"malloc {left - NEAR} malloc {left + MORE}") == ["ok", "ENOMEM"]
        assert self.ask(f"malloc {left + MORE}") == ["ENOMEM"]
        limit = {"SPARKGUARD_LIMIT": granted + 100 * MIB}
        assert self.ask(f"malloc {100 * MIB - NEAR}", **limit) == ["ok"]
        assert self.ask(f"malloc {100 * MIB + 1}", **limit) == ["ENOMEM"]


@pytest.fixture
def subreaper():
    """Orphans become ours, so that nobody is left behind."""
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
    yield
    libc.prctl(PR_SET_CHILD_SUBREAPER, 0)


def test_ledger_is_right_after_sigkill_at_any_instant(guard, tmp_path, subreaper):
    with contextlib.ExitStack() as stack:
        field = Field(guard, tmp_path, stack, seed=4711)
        for number in range(KILLS):
            while len(field.trees) < TREES:
                field.plant()
            time.sleep(field.draw.choice((0.0005, 0.004, 0.02)) * field.draw.random())  # pace: the trees get on
            field.kill_one()
            wait_until(field.all_stand_still, "all stand still", step=0.0002)
            try:
                field.check()
            except AssertionError as error:
                raise AssertionError(f"after {number + 1} kills: {error}") from error
            field.send(signal.SIGCONT)
            if number % ROUND == ROUND - 1:
                field.check_quiet()
        field.check_quiet()
        strays = [file.name for file in guard.directory.iterdir() if file.name.startswith("machine.ledger.")]
        assert strays == []
        assert field.ledger.get("entry_used") < 200


def test_what_was_killed_in_its_set_up_pushes_no_evidence_out(guard):
    """Files without a byte are swept like others, and before those that say something."""
    guard.directory.mkdir(mode=0o700)
    for number in range(140):
        (guard.directory / f"{number + 10}-{number:016x}.segment").touch()
    program = str(guard.build / "tests/programs/admit_take")
    pids = [guard.run([program, "malloc", "64M"]).pid for _ in range(3)]
    kept = [file for file in guard.directory.glob("*.segment") if file.stat().st_size > 0]
    assert sorted(int(file.name.partition("-")[0]) for file in kept) == sorted(pids)
    assert len(list(guard.directory.glob("*.segment"))) < 140


def test_ledger_half_made_by_the_killed_is_cleared_away(guard, tmp_path):
    """By the next process that comes, at the latest."""
    draw = random.Random(4711)
    program = str(guard.build / "tests/programs/admit_take")
    strays = []
    for number in range(min(KILLS, 300)):
        directory = tmp_path / str(number)
        process = guard.popen([program, "malloc", "2M", "wait"], env={"SPARKGUARD_DIR": directory})
        time.sleep(draw.uniform(0, 0.002))  # pace: the program gets on with its set-up
        process.kill()
        process.communicate()
        guard.run([program, "malloc", "2M"], env={"SPARKGUARD_DIR": directory})
        strays += [file for file in directory.iterdir() if file.name.startswith("machine.ledger.")]
    assert strays == []
