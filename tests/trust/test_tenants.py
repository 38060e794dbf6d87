"""Two users in one group-shared SPARKGUARD_DIR: they count each other, and what one of them can do to the other, and what not.

The programs run from a folder of their own that any user may read: where the sources lie need not be.
"""

import contextlib
import mmap
import os
import random
import shutil
import stat
import struct
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

MIB, GIB = 1 << 20, 1 << 30
GROUP, ONE, OTHER, STRANGER = 4711, 4712, 4713, 4714
LONGEST_CALL_MS = 20_000  # a request waits for others 3 s at most; the rest is for a slow machine
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="other users' programs need root to be started")


class Place:
    """A group-shared SPARKGUARD_DIR of root's on a machine of 10 GiB that stands still."""

    def __init__(self, build, folder):
        self.folder = folder
        self.directory = folder / "live"
        for name in ("libsparkguard.so", "sparkguard-report", "tests/programs/admit_take", "tests/programs/tenant_churn"):
            shutil.copy(build / name, folder)
        (folder / "root/proc").mkdir(parents=True)
        kib = 10 * GIB // 1024
        (folder / "root/proc/meminfo").write_text(f"MemTotal: {kib} kB\nMemFree: {kib} kB\nMemAvailable: {kib} kB\n")
        self.directory.mkdir()
        os.chown(self.directory, 0, GROUP)
        self.directory.chmod(0o2770)

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
        assert set(modes.values()) == {0o660} and {file.stat().st_gid for file in place.directory.iterdir()} == {GROUP}
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
            slowest_ms = process.stdout.readline()
            assert process.wait() == 0 and float(slowest_ms) < LONGEST_CALL_MS, slowest_ms
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
