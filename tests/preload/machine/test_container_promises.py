"""What containers have promised that share nothing with the host: its programs count it up to what the cgroups above the container
allow, and nothing that a container writes ends, holds up or misleads them further. Beside that, what its processes write."""

import fcntl
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest
from lib.machine import GIB, LEFT, MIB, NEAR, PLAYER, needs_root
from lib.target import IS_EMULATED
from lib.waiting import wait_until

HEADER = (Path(__file__).resolve().parents[3] / "include/sparkguard_figures.h").read_text()
MAGIC = int(re.search(r"SG_FIGURES_MAGIC UINT64_C\((\w+)\)", HEADER)[1], 16)
FIGURES = struct.Struct("<QIIQQQQ16x")
SECOND = 10**9
PATH = "/docker/box"


def figures(promised, age=0, magic=MAGIC, version=1, live=0, limit=0):
    return FIGURES.pack(magic, version, 0, time.clock_gettime_ns(time.CLOCK_MONOTONIC) - age, limit, live, promised & (1 << 64) - 1)


class Container:
    """As the host sees one: its file in root's folder, which anything may have been written into, and what root says of it."""

    def __init__(self, place, name="box", path=PATH):
        self.place, self.name, self.path = place, name, path
        self.folder = place.machine.root / "run/sparkguard/promises"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o755)
        self.file, self.words = self.folder / name, self.folder / f".{name}"
        self.words.write_text(f"{path}\n{name}\n")

    def bound(self, maximum="max", current=0, path=None, **stat):
        self.place.machine.v2(path or self.path, maximum=maximum, current=current, **stat)
        return self

    def says(self, promised, **other):
        self.file.write_bytes(figures(promised, **other))
        return self

    def assert_counts(self, bytes, promised=None, others=()):
        """With figures that are young when they are read, of other containers too: on a busy machine it is tried again."""
        for _ in range(20):
            begin = time.monotonic()
            for one in (self, *others) if promised is not None else ():
                one.says(promised)
            (largest,) = self.place.take("largest")
            if promised is None or time.monotonic() - begin < 4:
                break
        assert LEFT - bytes - NEAR <= largest <= LEFT - bytes, f"{(LEFT - largest) / MIB:.2f} MiB, expected {bytes / MIB:.2f}"


@pytest.fixture
def container(place):
    return Container(place)


# ---- what counts ----


def test_what_a_container_has_promised_is_nobody_elses(container):
    container.bound(6 * GIB, GIB).assert_counts(3 * GIB, 3 * GIB)


def test_a_refusal_names_the_container(place, container):
    container.bound(7 * GIB)

    def refusal():
        container.says(6 * GIB)
        stdout, stderr = place.tenant([place.admit_take, "malloc", "3G"]).process.communicate(timeout=60)
        return stderr if stdout.split() == ["ENOMEM"] else None

    assert "; largest other: container box, 6.0 GiB promised" in wait_until(refusal)


@pytest.mark.parametrize("age", [6 * SECOND, 3600 * SECOND, -3600 * SECOND], ids=["old", "an hour", "to come"])
def test_only_figures_of_the_last_seconds_count(container, age):
    container.bound(6 * GIB).says(3 * GIB, age=age).assert_counts(0)


def test_nothing_counts_of_a_container_whose_cgroup_is_gone(container):
    container.assert_counts(0, 3 * GIB)


@pytest.mark.parametrize("promised", [1 << 63, (1 << 64) - 1, -5, 7 * GIB], ids=hex)
def test_a_lie_is_cut_to_what_the_limit_leaves(container, promised):
    container.bound(3 * GIB, GIB).assert_counts(2 * GIB, promised)
    container.bound(3 * GIB, 4 * GIB).assert_counts(0, promised)


def test_cache_that_the_kernel_gives_back_is_left(container):
    container.bound(3 * GIB, 2 * GIB, active_file=GIB).assert_counts(2 * GIB, 1 << 60)


def test_every_level_above_bounds_all_containers_below_it(place, container):
    container.bound(6 * GIB).bound(3 * GIB, GIB, path="/docker").assert_counts(2 * GIB, 1 << 60)
    other = Container(place, "other", "/docker/other").bound(5 * GIB)
    container.assert_counts(2 * GIB, 1 << 60, others=(other,))
    apart = Container(place, "apart", "/apart").bound(GIB)
    container.assert_counts(3 * GIB, 1 << 60, others=(other, apart))


@pytest.mark.parametrize("maximum", ["max", 1 << 50], ids=["none", "beyond the machine"])
def test_without_a_limit_it_is_believed_up_to_what_it_uses(container, maximum):
    container.bound(maximum, 2 * GIB, inactive_file=GIB).assert_counts(GIB, 1 << 60)


def test_cgroups_of_the_first_version(place, container):
    place.machine.v1(PATH, limit=3 * GIB, usage=GIB)
    container.assert_counts(2 * GIB, 1 << 60)


@pytest.mark.parametrize("words", ["/docker/../docker/box\nbox\n", "/\nbox\n", "docker/box\nbox\n", "/docker/box\n", "/docker/box", "", "/" + "x" * 3000 + "\nbox\n"])
def test_where_root_names_no_cgroup_nothing_counts(place, container, words):
    container.bound(6 * GIB)
    place.machine.v2("", maximum=6 * GIB)
    container.words.write_text(words)
    container.assert_counts(0, 3 * GIB)


@needs_root
def test_only_roots_folder_is_read(container):
    container.bound(6 * GIB)
    container.folder.chmod(0o775)
    container.assert_counts(0, 3 * GIB)
    container.folder.chmod(0o755)
    os.chown(container.folder, 51002, -1)
    container.assert_counts(0, 3 * GIB)
    os.chown(container.folder, 0, -1)
    container.assert_counts(3 * GIB, 3 * GIB)


def test_what_is_promised_when_a_request_is_refused_decides(place, container):
    """A program that goes on asking gets what the container has given up, once that is read again."""
    container.bound(6 * GIB)
    player = place.player("\nwhile True:\n    ready()\n    libc.free(ctypes.c_void_p(malloc(4 * GIB)))\n")
    player.ready()
    wait_until(lambda: container.says(5 * GIB) and player.go().ready() == ["ENOMEM"])
    container.says(0)
    wait_until(lambda: player.go().ready() == ["ok"])


def report(place, *options):
    command = [place.guard.build / "sparkguard-report", "--dir", place.guard.directory, *options]
    env = {**place.guard.environment(place.env), "LD_PRELOAD": ""}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60).stdout


def test_the_tools_say_what_the_library_counts(place, container):
    """Of one reading: figures may become too old between two."""
    container.bound(6 * GIB)

    def promised():
        container.says(3 * GIB)
        return json.loads(report(place, "--json"))["machine"]["promised_bytes"]

    wait_until(lambda: promised() == 3 * GIB)


def test_the_report_shows_what_each_container_says_within_bounds(place, container):
    """Not a figure that the machine cannot have, no promise beyond its bound, and no name as it is on the terminal."""
    liar = Container(place, "liar", "/docker/liar").bound(2 * GIB, GIB)
    container.bound(6 * GIB)
    liar.words.write_text("/docker/liar\nli\x1b[2Jar\n")
    wanted = [{"name": "box", "limit_bytes": 4 * GIB, "live_bytes": GIB, "promised_bytes": 3 * GIB},
              {"name": "li\x1b[2Jar", "limit_bytes": None, "live_bytes": None, "promised_bytes": GIB}]

    def told(*options):
        container.says(3 * GIB, live=GIB, limit=4 * GIB)
        liar.says(1 << 60, live=1 << 62, limit=1 << 63)
        return report(place, *options)

    wait_until(lambda: sorted(json.loads(told("--json"))["machine"]["containers"], key=lambda one: one["name"]) == wanted)
    text = wait_until(lambda: (text := told()).count("\ncontainer ") == 2 and text)
    assert "\ncontainer box: 3.0 GiB promised, holds 1.0 GiB, limit 4.0 GiB\n" in text
    assert "ar: 1.0 GiB promised, holds -\n" in text and "\x1b" not in text


STRACE = shutil.which("strace")


@pytest.mark.skipif(IS_EMULATED or STRACE is None or subprocess.run([STRACE, "true"], capture_output=True).returncode != 0, reason="no strace here")
def test_where_there_are_no_containers_one_open_fails_four_times_a_second(place, tmp_path):
    log = tmp_path / "calls"
    command = [STRACE, "-f", "-ttt", "-o", log, "-e", "trace=openat"]
    text = "\nfor i in range(100):\n    libc.free(ctypes.c_void_p(malloc(GIB)))\n"
    done = place.tenant([*command, sys.executable, "-S", "-c", PLAYER + text], {"SPARKGUARD_WATCHDOG": "off"})
    assert done.end() == ["ok"] * 100
    lines = log.read_text().splitlines()
    (calls, decisions) = ([line for line in lines if name in line] for name in ("sparkguard/promises", "/proc/meminfo"))
    seconds = float(lines[-1].split()[1]) - float(lines[0].split()[1])
    assert all("ENOENT" in line for line in calls)
    assert 1 <= len(calls) <= 2 + 4 * seconds and len(decisions) >= 100
    assert not [line for line in lines if "/promises" in line and line not in calls and "ENOENT" not in line]


# ---- what may be in its place ----

KINDS = ["a link", "two names", "a pipe", "a folder", "a device", "nothing", "too short", "too long", "enormous", "another magic", "another version"]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_file_of_figures_counts_nothing(container, kind):
    container.bound(6 * GIB).says(3 * GIB)
    path, other = container.file, container.folder.parent / "other"
    content = path.read_bytes()
    path.rename(other)
    if kind == "a link":
        path.symlink_to(other)
    elif kind == "two names":
        path.hardlink_to(other)
    elif kind == "a pipe":
        os.mkfifo(path)
    elif kind == "a folder":
        path.mkdir()
    elif kind == "a device" and os.geteuid() == 0:
        os.mknod(path, 0o666 | 0o020000, os.makedev(1, 5))
    elif kind in ("too short", "too long", "enormous"):
        path.write_bytes(content)
        os.truncate(path, {"too short": 63, "too long": 65, "enormous": 1 << 40}[kind])
    elif kind.startswith("another"):
        path.write_bytes(figures(3 * GIB, **{"magic": 7} if "magic" in kind else {"version": 2}))
    container.assert_counts(0)


@pytest.mark.skipif(IS_EMULATED, reason="a lease is the kernel's own")
def test_neither_a_lock_nor_a_lease_is_waited_for(container):
    """Who opens a file that has a lease waits 45 s, without O_NONBLOCK."""
    container.bound(6 * GIB).says(3 * GIB)
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)
    with open(container.file, "r+b", buffering=0) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0))
        container.assert_counts(3 * GIB, 3 * GIB)
    lease = os.open(container.file, os.O_WRONLY)
    try:
        fcntl.fcntl(lease, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        container.assert_counts(0)
        assert fcntl.fcntl(lease, fcntl.F_GETLEASE) != fcntl.F_WRLCK, "it was asked for"
    finally:
        os.close(lease)
        signal.signal(signal.SIGIO, before)


def test_a_thousand_containers_count_no_more_than_is_above_them(place, container):
    container.bound(2 * GIB, path="/docker")
    for i in range(1000):
        Container(place, f"box-{i}", f"/docker/box-{i}").says(1 << 60, age=0)
    place.machine.v2("/docker/box-7", current=GIB)
    (largest,) = place.take("largest")
    assert LEFT - 2 * GIB - NEAR <= largest <= LEFT


@pytest.mark.skipif(IS_EMULATED, reason="an emulator does not read that many in the time that a reading may take")
def test_ninety_containers_with_limits_of_their_own_all_count(place):
    """One reading decides, which is made again where it took too long."""
    boxes = [Container(place, f"box-{i}", f"/docker/box-{i}").bound(64 * MIB) for i in range(90)]

    def all_count():
        for box in boxes:
            box.says(1 << 60)
        return place.take(f"malloc {LEFT // MIB - 89 * 64}M") == ["ENOMEM"]

    wait_until(all_count)


# ---- what its processes write ----


class Inside:
    """A container's own directory, seen from inside."""

    def __init__(self, place, own):
        self.place, self.own = place, own
        own.mkdir(mode=0o700)
        self.file = own / "promises"
        self.file.write_bytes(bytes(64))

    def holder(self, commands, **env):
        return self.place.holder(commands, {"SPARKGUARD_DIR": self.own, "SPARKGUARD_JOB": "inside", **env})

    def read(self):
        content = self.file.read_bytes()
        assert len(content) == 64
        return FIGURES.unpack(content)

    def has(self, promised):
        """Whether it says so, at a time that is this machine's."""
        magic, version, _, when, _, live, said = self.read()
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        return magic == MAGIC and version == 1 and 0 <= now - when and promised <= said <= promised + 3 * NEAR


@pytest.fixture
def inside(place, tmp_path):
    return Inside(place, tmp_path / "own")


def test_its_processes_tell_what_they_have_promised_together(inside):
    inside.holder("malloc 1G")
    wait_until(lambda: inside.has(GIB))
    second = inside.holder("malloc 2G", SPARKGUARD_LIMIT="6G")
    wait_until(lambda: inside.has(3 * GIB))
    second.kill()
    wait_until(lambda: inside.has(GIB))


@pytest.mark.skipif(IS_EMULATED, reason="what an emulator takes in another directory counts here, too")
def test_who_sees_the_hosts_folder_counts_its_own_promises_once(place):
    """A container with the host's /run among its mounts."""
    container = Container(place, "promises").bound(6 * GIB)
    container.file.write_bytes(bytes(64))
    env = {"SPARKGUARD_DIR": container.folder}
    place.holder("malloc 2G", env)
    wait_until(lambda: FIGURES.unpack(container.file.read_bytes())[6] >= 2 * GIB)
    place.assert_left(LEFT - 2 * GIB, env)


def test_what_is_told_is_told_again_while_nothing_changes(inside):
    holder = inside.holder("malloc 1G")
    wait_until(lambda: inside.has(GIB))
    first = inside.read()[3]
    wait_until(lambda: inside.read()[3] > first and inside.has(GIB))
    holder.kill()


@pytest.mark.skipif(IS_EMULATED, reason="a lease is the kernel's own")
def test_who_holds_the_file_holds_up_no_program(inside):
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)
    with open(inside.file, "rb", buffering=0) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        holder = inside.holder("malloc 1G free 0 malloc 1G")
        assert set(holder.answers) == {"ok"}
        assert fcntl.fcntl(file, fcntl.F_GETLEASE) != fcntl.F_RDLCK, "it was asked for"
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        wait_until(lambda: inside.has(GIB))
    signal.signal(signal.SIGIO, before)


@pytest.mark.parametrize("kind", ["nothing", "a link", "two names", "another size", "a pipe", "a folder", "a limit on files"])
def test_a_program_runs_on_and_changes_nothing_else_whatever_is_there(inside, tmp_path, kind):
    prefix, other = (), tmp_path / "other"
    if kind == "a limit on files":
        prefix = ("sh", "-c", 'ulimit -f 0; exec "$@"', "sh")
    else:
        inside.file.unlink()
    other.write_bytes(bytes(65 if kind == "another size" else 64))
    if kind == "a link":
        inside.file.symlink_to(other)
    elif kind == "two names":
        inside.file.hardlink_to(other)
    elif kind == "another size":
        other.rename(inside.file)
        other = inside.file
    elif kind == "a pipe":
        os.mkfifo(inside.file)
    elif kind == "a folder":
        inside.file.mkdir()
    holder = inside.place.holder("malloc 1G free 0 malloc 2G", {"SPARKGUARD_DIR": inside.own}, prefix=prefix)
    assert set(holder.answers) == {"ok"}
    assert not any(other.read_bytes()) and (kind != "nothing" or not inside.file.exists())
