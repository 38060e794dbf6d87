"""Two users in one group-shared SPARKGUARD_DIR: they count each other, and what one of them can do to the other, and what not.

The programs run from a folder of their own that any user may read: where the sources lie need not be.
"""

import contextlib
import mmap
import os
import random
import resource
import shutil
import signal
import stat
import struct
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
from lib.ledger import Ledger
from lib.target import IS_LONG

MIB, GIB = 1 << 20, 1 << 30
GROUP, ONE, OTHER, STRANGER = 4711, 4712, 4713, 4714
# Of a request: 65 looks in the 3 s for which others may hold it up, 11 in the 0.3 s for their scans (preload/core/admit/wait.c), and what a
# program sleeps besides. A busy machine makes it no more.
SLEEPS = 65 + 11 + 20
MISLED_SLEEPS = SLEEPS + 10_000 // 50  # false words may say that somebody makes pressure, for which a request waits for 10 s more
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="other users' programs need root to be started")


class Place:
    """A group-shared SPARKGUARD_DIR of root's on a machine of 10 GiB that stands still."""

    def __init__(self, build, folder):
        self.folder = folder
        self.directory = folder / "live"
        for name in ("libsparkguard.so", "sparkguard-report", "tests/programs/admit_take", "tests/programs/tenant_churn"):
            shutil.copy(build / name, folder)
        (folder / "root/proc").mkdir(parents=True)
        self.say_available(10 * GIB)
        self.directory.mkdir()
        os.chown(self.directory, 0, GROUP)
        self.directory.chmod(0o2770)

    def say_available(self, available_bytes):
        """Written over in one go: it is read at any time."""
        available = f"{available_bytes // 1024:12} kB"
        text = f"MemTotal: {10 * GIB // 1024} kB\nMemFree:{available}\nMemAvailable:{available}\n"
        file = os.open(self.folder / "root/proc/meminfo", os.O_WRONLY | os.O_CREAT, 0o644)
        os.write(file, text.encode())
        os.close(file)

    def answers(self, user, commands):
        """Of a program that does what it is told, and ends."""
        with self.holder(user, commands) as process:
            return process.answers

    def environment(self, user, **extra):
        mine = {"SPARKGUARD_DIR": self.directory, "SPARKGUARD_SYSTEM_ROOT": self.folder / "root", "SPARKGUARD_RESERVE": "2G"}
        mine |= {"SPARKGUARD_HISTORY": "off", "SPARKGUARD_JOB": f"job-{user}", "LD_PRELOAD": self.folder / "libsparkguard.so"}
        return {"PATH": os.environ["PATH"]} | {name: str(value) for name, value in (mine | extra).items() if value is not None}

    def start(self, user, program, *arguments, groups=(GROUP,), **extra):
        command = [self.folder / program, *arguments]
        ids = {"user": user, "group": groups[0] if groups else user, "extra_groups": list(groups[1:])}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(command, env=self.environment(user, **extra), cwd="/", start_new_session=True, **ids, **pipes)

    @contextlib.contextmanager
    def holder(self, user, commands, **options):
        """A program that has done what it was told, and waits; yields what it answered."""
        with self.start(user, "admit_take", *commands.split(), "wait", **options) as process:
            try:
                said = []
                for line in iter(process.stdout.readline, "ready\n"):
                    assert line, process.stderr.read()
                    said.append(line.strip())
                process.answers = said
                yield process
            finally:
                process.kill()

    def report(self, user, groups=(GROUP,)):
        command = [self.folder / "sparkguard-report", "--dir", self.directory, "--all"]
        ids = {"user": user, "group": groups[0] if groups else user, "extra_groups": list(groups[1:])}
        return subprocess.run(command, env=self.environment(user, LD_PRELOAD=None), capture_output=True, text=True, cwd="/", **ids)


@pytest.fixture
def place(build):
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="sparkguard-test-") as folder:
        Path(folder).chmod(0o755)
        yield Place(build, Path(folder))


def test_two_users_count_each_other(place):
    with place.holder(ONE, "malloc 3G") as one, place.holder(OTHER, "malloc 6G malloc 2G largest") as other:
        assert one.answers == ["ok"]
        assert other.answers[:2] == ["ENOMEM", "ok"]
        assert 2 * GIB < int(other.answers[2]) <= 3 * GIB
        with place.holder(ONE, "malloc 4G") as third:
            assert third.answers == ["ENOMEM"]
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in place.directory.iterdir()}
        assert modes.pop("machine.ledger") == 0o660 and set(modes.values()) == {0o640} and {file.stat().st_gid for file in place.directory.iterdir()} == {GROUP}
        assert {file.stat().st_uid for file in place.directory.glob("*.segment")} == {ONE, OTHER}
        shown = place.report(OTHER)
        assert (shown.returncode, shown.stderr) == (0, "") and f"job-{ONE}" in shown.stdout


def test_who_is_not_of_the_group_neither_counts_nor_reads(place):
    with place.holder(ONE, "malloc 3G"), place.holder(STRANGER, "malloc 7G", groups=()) as stranger:
        assert stranger.answers == ["ok"]
        assert {file.stat().st_uid for file in place.directory.glob("*.segment")} == {ONE}
        shown = place.report(STRANGER, groups=())
        assert shown.returncode == 3 and "Permission denied" in shown.stderr
        stranger.stdin.close()
        said = stranger.stderr.read()
        assert said.count("\n") == 1 and "cannot keep statistics" in said and "permission denied" in said


# ---- what one of the group can do to another's numbers, word by word of sparkguard(1), and what not --------------------------


@contextlib.contextmanager
def as_user(user):
    """With the rights of a member of the group, whatever this process may."""
    os.setgroups([])
    os.setegid(GROUP)
    os.seteuid(user)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


@contextlib.contextmanager
def false_entry(place, **fields):
    """One of the ledger, of a process that holds and asks what OTHER says."""
    with Ledger(place.directory) as ledger, contextlib.ExitStack() as stack:
        with as_user(OTHER):
            stack.enter_context(ledger.entry(7, **fields))
        yield ledger


def test_false_figures_can_have_requests_refused_for_as_long_as_they_are_there(place):
    with place.holder(ONE, "malloc 1M") as one:
        with false_entry(place, promised_bytes=20 * GIB):
            assert place.answers(ONE, "malloc 1G small 1000 1000000") == ["ENOMEM", "1000000"]
        assert place.answers(ONE, "malloc 1G") == ["ok"]
        assert one.poll() is None


def test_a_place_in_the_queue_that_is_never_left_makes_others_wait_and_no_more(place):
    with place.holder(ONE, "malloc 1M"), false_entry(place, ticket=2, queued_bytes=1 * GIB):
        assert place.answers(ONE, "malloc 2G") == ["ok"]
        begin, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN).ru_nvcsw
        assert place.answers(ONE, "malloc 7500M") == ["ENOMEM"]
        assert time.monotonic() - begin > 1, "it would fit without the other's: it waits for 3 s"
        sleeps = resource.getrusage(resource.RUSAGE_CHILDREN).ru_nvcsw - before
        assert sleeps <= SLEEPS, "and no more"


def test_figures_taken_from_another_let_requests_through_as_far_as_the_kernel_shows_room(place):
    """The owner is stopped: its watchdog would lower the figure by what it finds, below the 0 that is written there."""
    with place.holder(ONE, "malloc 6G") as one:
        assert place.answers(ONE, "malloc 5G") == ["ENOMEM"]
        one.send_signal(signal.SIGSTOP)
        with as_user(OTHER), Ledger(place.directory) as ledger:
            number = ledger.of(one.pid)
            ledger.put("promised_bytes", 0, number)
        assert place.answers(ONE, "malloc 5G") == ["ok"]
        assert place.answers(ONE, "malloc 9G") == ["ENOMEM"]
        one.send_signal(signal.SIGCONT)


def test_falsified_report_is_shown_and_draws_nothing_on_the_terminal(place):
    with place.holder(ONE, "malloc 3G") as one:
        (file,) = place.directory.glob(f"{one.pid}-*.segment")
        text = file.read_bytes()
        at = text.index(f"job-{ONE}".encode())
        with as_user(OTHER), pytest.raises(PermissionError):
            file.open("r+b")
        with as_user(ONE), file.open("r+b") as opened:  # its own user's
            opened.seek(at)
            opened.write(b"\x1b[2Jnothing\0")
        shown = place.report(ONE)
        assert shown.returncode in (0, 3) and "nothing" in shown.stdout and "\x1b" not in shown.stdout + shown.stderr
        assert one.poll() is None


@pytest.mark.parametrize("pattern", ["machine.ledger", "*.segment"])
def test_who_shortens_a_file_ends_nobody(place, pattern):
    """The ledger's file is no memory of anybody's, and a record is its owner's."""
    with place.start(ONE, "tenant_churn") as process:
        go_on(process)
        (file,) = place.directory.glob(pattern)
        refused = pytest.raises(PermissionError) if "segment" in pattern else contextlib.nullcontext()
        with as_user(OTHER), refused:
            os.truncate(file, 0)
        process.communicate("\n\n")
        assert process.returncode == 0


# Of a reserve of 256 MiB the floor is 64; what is left below is not yet so little that there is no time for a SIGTERM.
RESERVE = {"SPARKGUARD_RESERVE": "256M", "SPARKGUARD_WATCHDOG": "term"}
HOLDS_MUCH = "small 16M 400M"
LOOKS = 30 if IS_LONG else 12  # without the false figures a watchdog acts at the first one below the floor


def wait_for_looks(ledger, pid, count, between=lambda: None):
    """Of a process's watchdog at the machine."""
    entry, seen = ledger.of(pid), set()
    while len(seen) < count:
        seen.add(ledger.get("watched_ns", entry))
        between()
        time.sleep(0.005)  # poll: the next look


def test_false_figures_end_nobody_while_the_kernel_shows_room(place):
    with place.holder(ONE, HOLDS_MUCH, **RESERVE) as one:
        with false_entry(place, in_flight_bytes=1 << 60, promised_bytes=1 << 60, inherited_promise_bytes=1 << 60) as ledger:
            ledger.put("holds_bounded_bytes", 1 << 60, ledger.of(one.pid))
            wait_for_looks(ledger, one.pid, LOOKS)
            assert one.poll() is None
        assert one.communicate("\n") == ("", "") and one.returncode == 0


def test_false_figures_can_keep_the_watchdog_from_acting_for_as_long_as_they_are_renewed(place):
    with place.holder(ONE, HOLDS_MUCH, **RESERVE) as one:
        with false_entry(place, holds_bounded_bytes=1 << 50) as ledger:

            def renew():
                ledger.put("watched_ns", time.clock_gettime_ns(time.CLOCK_MONOTONIC) + 5 * 10**9, 7)

            renew()
            place.say_available(50 * MIB)
            wait_for_looks(ledger, one.pid, LOOKS, renew)
            assert one.poll() is None
            ledger.put("watched_ns", time.clock_gettime_ns(time.CLOCK_MONOTONIC) - 2 * 10**9, 7)  # as if it had not been renewed
        assert one.wait() == -signal.SIGTERM


def test_time_that_is_none_keeps_no_watchdog_from_acting(place):
    with place.holder(ONE, HOLDS_MUCH, **RESERVE) as one:
        with false_entry(place, holds_bounded_bytes=1 << 50, watched_ns=1 << 62):
            place.say_available(50 * MIB)
            assert one.wait() == -signal.SIGTERM


@pytest.mark.parametrize("name", ["machine.ledger", "machine-1.ledger"])
@pytest.mark.parametrize("make", [os.symlink, os.link], ids=["symbolic", "hard"])
def test_link_to_a_file_of_another_leaves_it_as_it_is(place, make, name):
    """Hard ones where the kernel lets the other make them: here root does."""
    private = place.folder / "private"
    with private.open("wb") as file:
        file.truncate(4 * MIB)  # larger than a ledger, and all of it a hole
    os.chown(private, ONE, GROUP)
    before = private.stat()
    make(private, place.directory / name)
    assert place.answers(ONE, "malloc 3G malloc 9G") == ["ok", "ENOMEM"]
    after = private.stat()
    assert (after.st_mode, after.st_size, after.st_blocks, after.st_mtime_ns) == (
        before.st_mode,
        before.st_size,
        before.st_blocks,
        before.st_mtime_ns,
    )


@pytest.mark.parametrize("make", [os.symlink, os.link], ids=["symbolic", "hard"])
def test_link_at_the_name_of_a_time_line_leaves_what_it_leads_to(place, make):
    """The segment tells the name, and the time line is begun later: with the first refusal, here."""
    private = place.folder / "private"
    private.write_bytes(b"mine")
    private.chmod(0o600)
    os.chown(private, ONE, GROUP)
    with place.holder(ONE, "malloc 2M wait malloc 9G") as one:
        (segment,) = place.directory.glob(f"{one.pid}-*.segment")
        line = segment.with_suffix(".timeline")
        assert not line.exists()
        make(private, line)
        one.stdin.write("\n")
        one.stdin.flush()
        assert (one.stdout.readline(), one.stdout.readline()) == ("ENOMEM\n", "ready\n")
        assert (private.read_bytes(), stat.S_IMODE(private.stat().st_mode)) == (b"mine", 0o600)
        assert b"no time line: its file could not be made" in segment.read_bytes()


@pytest.mark.parametrize("name", ["machine.ledger", "machine-1.ledger"])
def test_symbolic_link_to_a_good_ledger_is_not_followed(place, name):
    """That of another directory of the same user's: with what is promised there, 3 of the 8 GiB could not be had."""
    elsewhere = place.folder / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    os.chown(elsewhere, ONE, GROUP)
    with place.holder(ONE, "malloc 6G", SPARKGUARD_DIR=elsewhere):
        if name != "machine.ledger":  # that of processes of another version: ours give way to it
            shutil.copy(elsewhere / "machine.ledger", place.directory)
            os.chown(place.directory / "machine.ledger", ONE, GROUP)
            with Ledger(place.directory) as ledger:
                ledger.put("version", 99)
        (place.directory / name).symlink_to(elsewhere / "machine.ledger")
        assert place.answers(ONE, "malloc 3G malloc 9G") == ["ok", "ENOMEM"]
        with Ledger(elsewhere) as ledger:
            assert ledger.get("entry_used") == 1, "nobody else sat down there"


# ---- random words ------------------------------------------------------------------------------------------------------------


def hurt(files, seed, until):
    """Random words at random places of the files, as fast as can be, until the time has come."""
    chance = random.Random(seed)
    maps = []
    for file in files:
        with file.open("r+b") as opened:
            maps.append(mmap.mmap(opened.fileno(), 0))
    while time.monotonic() < until:
        for mapped in maps:
            for _ in range(50):
                at = chance.randrange(len(mapped) // 8) * 8
                word = chance.choice((0, 1, 3, 5, (1 << 32) - 1, (1 << 63), (1 << 64) - 1, chance.getrandbits(64)))
                mapped[at : at + 8] = word.to_bytes(8, "little")
    for mapped in maps:
        mapped.close()


def go_on(process):
    """One more round."""
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline() == "round\n", f"{process.wait()}: {process.stderr.read()}"


def disturb(place, pattern, seed, seconds):
    """A child of another user that hurts what the busy program shares; what the program came to."""
    with place.start(ONE, "tenant_churn") as process:
        try:
            go_on(process)
            files = list(place.directory.glob(pattern))
            assert files
            child = os.fork()
            if child == 0:
                try:
                    os.setgroups([])
                    os.setgid(GROUP)
                    os.setuid(OTHER)
                    hurt(files, seed, time.monotonic() + seconds)
                    os._exit(0)
                finally:
                    os._exit(1)
            while os.waitpid(child, os.WNOHANG) == (0, 0):
                go_on(process)
            go_on(process)
            process.stdin.close()
            most_sleeps = int(process.stdout.readline())
            assert process.wait() == 0
            assert most_sleeps <= MISLED_SLEEPS, "in one call"
        finally:
            process.kill()


@pytest.mark.timeout_seconds(300)
@pytest.mark.parametrize("pattern", ["machine.ledger", "*.segment", "*.timeline", "*"])
def test_random_words_of_another_tenant_end_and_hang_nobody(place, amount, record_property, pattern):
    seeds = amount(short=1, long=5)
    for seed in range(seeds):
        disturb(place, pattern, seed, amount(short=0.5, long=3))
    record_property("cases", seeds)
    shown = place.report(ONE)
    assert shown.returncode in (0, 3), shown.stderr


@pytest.mark.parametrize("capacity, used", [(1, 0), (0, (1 << 32) - 1), ((1 << 32) - 1, (1 << 32) - 1)])
def test_room_that_a_segment_says_it_has_is_not_believed_by_its_owner(place, capacity, used):
    with place.start(ONE, "tenant_churn") as process:
        try:
            go_on(process)
            (file,) = place.directory.glob(f"{process.pid}-*.segment")
            with file.open("r+b") as opened:
                opened.seek(128)  # segment_bytes, record_capacity, record_used
                opened.write(struct.pack("<QII", (1 << 64) - 1, capacity, used))
            for _ in range(3):
                go_on(process)
            process.stdin.close()
            assert process.wait() == 0
        finally:
            process.kill()
