"""What containers have promised that share nothing with the host: its programs count it, never beyond what the container's cgroup
still allows, and nothing that a container puts there ends, holds up or misleads them further."""

import contextlib
import fcntl
import os
import random
import signal
import subprocess
import threading

import pytest
from lib.ledger import BEGIN, ENTRY_BYTES, FILE_BYTES, Ledger
from lib.machine import GIB, LEFT, MIB, Machine, needs_root
from lib.target import IS_EMULATED
from lib.waiting import wait_until

LEDGER = "machine.ledger"


class Container:
    """As sparkguard-runtime leaves it on the host: a directory, and what root says of it."""

    def __init__(self, place, name="box"):
        self.place, self.name = place, name
        self.folder = place.machine.root / "run/sparkguard/containers"
        self.own, self.bounds = self.folder / name, self.folder / f"{name}.bounds"
        self.own.mkdir(parents=True)
        self.own.chmod(0o711)
        self.bounds.write_text(f"cgroup /docker/{name}\n")
        self.inside = Machine(place.machine.root.parent / f"inside-{name}")  # what its processes see

    def bound(self, maximum="max", current=0):
        self.place.machine.v2(f"/docker/{self.name}", maximum=maximum, current=current)
        return self

    def holder(self, commands):
        env = {"SPARKGUARD_DIR": self.own, "SPARKGUARD_SYSTEM_ROOT": self.inside.root, "SPARKGUARD_JOB": "inside"}
        holder = self.place.holder(commands, env)
        assert set(holder.answers) == {"ok"}
        return holder

    @contextlib.contextmanager
    def lying(self, promised=1 << 60, entries=1):
        """Entries that promise anything, with owners that live."""
        path = self.own / LEDGER
        path.write_bytes(Ledger.header().ljust(FILE_BYTES, b"\0"))
        with Ledger(self.own) as ledger, contextlib.ExitStack() as held:
            for number in range(entries):
                held.enter_context(ledger.entry(number, promised_bytes=promised, granted_bytes=(1 << 64) - 1))
            yield path


@pytest.fixture
def container(place):
    return Container(place)


def test_what_its_processes_have_promised_is_nobody_elses(place, container):
    container.bound(6 * GIB, GIB).holder("malloc 1G")
    assert (container.own / LEDGER).stat().st_mode & 0o777 == 0o644
    assert {path.stat().st_mode & 0o777 for path in container.own.iterdir() if path.name != LEDGER} == {0o600}
    place.assert_left(LEFT - GIB)
    container.holder("malloc 2G")
    place.assert_left(LEFT - 3 * GIB)


def test_it_counts_while_its_owner_is_stopped_and_until_it_has_ended(place, container):
    holder = container.bound(6 * GIB).holder("malloc 1G")
    os.kill(holder.pid, 19)
    place.assert_left(LEFT - GIB)
    holder.kill()
    place.assert_left(LEFT)


def test_no_more_counts_than_the_cgroup_allows(place, container):
    container.bound(3 * GIB, GIB).holder("malloc 4G")
    place.assert_left(LEFT - 2 * GIB)
    container.bound(3 * GIB, 4 * GIB)
    place.assert_left(LEFT)


@pytest.mark.parametrize("maximum", ["max", 1 << 50], ids=["none", "beyond the machine"])
def test_without_a_limit_all_such_containers_have_half_of_what_is_left(place, container, maximum):
    container.bound(maximum).holder("malloc 3G")
    place.assert_left(LEFT - 3 * GIB)
    Container(place, "other").bound(maximum).holder("malloc 3G")
    place.assert_left(LEFT // 2)
    Container(place, "bounded").bound(6 * GIB, 4 * GIB).holder("malloc 3G")
    place.assert_left((LEFT - 2 * GIB) // 2)


@pytest.mark.parametrize("cgroup", ["cgroup ?\n", "cgroup /docker/../box\n", "cgroup /" + "x" * 2000 + "\n", "", "x", "cgroup /nowhere\n"])
def test_where_root_names_no_cgroup_it_has_no_limit_or_does_not_count(place, container, cgroup):
    container.bound(3 * GIB).holder("malloc 6G")
    container.bounds.write_text(cgroup)
    place.assert_left(LEFT // 2 if cgroup else LEFT)


def test_cgroups_of_the_first_version(place, container):
    container.holder("malloc 3G")
    place.machine.v1("/docker/box", limit=3 * GIB, usage=GIB)
    place.assert_left(LEFT - 2 * GIB)


def test_a_refusal_is_decided_by_what_is_promised_then(place, container):
    """A program that goes on asking gets what the container has given up, once that is read again."""
    first = container.bound(6 * GIB).holder("malloc 5G")
    player = place.player("\nfor i in range(1000):\n    malloc(4 * GIB - i * MIB)\n    ready()\n")
    assert player.ready() == ["ENOMEM"]
    first.kill()
    wait_until(lambda: player.go().ready() == ["ok"])


@needs_root
def test_only_roots_folder_and_roots_words_are_read(place, container):
    with container.bound(6 * GIB).lying():
        place.assert_left(LEFT - 6 * GIB)
        os.chown(container.bounds, 51002, -1)
        place.assert_left(LEFT)
        os.chown(container.bounds, 0, -1)
        container.folder.chmod(0o775)
        place.assert_left(LEFT)
        container.folder.chmod(0o755)
        os.chown(container.folder, 51002, -1)
        place.assert_left(LEFT)


@needs_root
def test_another_user_reads_the_sums_and_nothing_else(place, container):
    container.holder("malloc 1G")
    for folder in (container.own, *container.own.parents):
        if folder != folder.parent and str(folder).startswith("/tmp/") and folder != container.own:
            folder.chmod(folder.stat().st_mode | 0o055)
    (segment,) = container.own.glob("*.segment")
    tries = {"head -c 8 machine.ledger": True, "ls": False, f"head -c 8 {segment.name}": False, ": >>machine.ledger": False,
             "rm -f machine.ledger": False, "mkdir x": False, "mv machine.ledger x": False}
    for script, may in tries.items():
        done = subprocess.run(["setpriv", "--reuid=51002", "--regid=51002", "--clear-groups", "sh", "-c", f"cd {container.own} && {script}"], capture_output=True)
        assert (done.returncode == 0) == may, script
    place.assert_left(LEFT - GIB)


# ---- what a container may put there ----


def test_a_lie_is_cut(place, container):
    with container.bound(6 * GIB, 4 * GIB).lying(entries=200):
        place.assert_left(LEFT - 2 * GIB)
        container.bound("max")
        place.assert_left(LEFT // 2)


def replace(path, kind):
    content = path.read_bytes()
    other = path.with_name("other")
    path.rename(other)
    if kind == "a link":
        path.symlink_to("other")
    elif kind == "two names":
        path.hardlink_to(other)
    elif kind == "a pipe":
        os.mkfifo(path)
    elif kind == "a folder":
        path.mkdir()
    elif kind == "a device":
        os.mknod(path, 0o666 | 0o020000, os.makedev(1, 5))
    elif kind != "nothing":
        path.write_bytes(content)
        length = {"a page": 4096, "a part": BEGIN + ENTRY_BYTES - 1, "no byte": 0, "one byte less": FILE_BYTES - 1}[kind]
        os.truncate(path, length)


KINDS = ["a link", "two names", "a pipe", "a folder", "a device", "nothing", "a page", "a part", "no byte", "one byte less"]


@needs_root
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_registry_counts_nothing(place, container, kind):
    with container.bound(6 * GIB).lying() as path:
        place.assert_left(LEFT - 6 * GIB)
        replace(path, kind)
        place.assert_left(LEFT)


def test_an_enormous_file_is_read_in_part(place, container):
    """A tebibyte, of which the part counts that a registry has."""
    with container.bound(6 * GIB).lying() as path:
        os.truncate(path, 1 << 40)
        place.assert_left(LEFT - 6 * GIB)


@pytest.mark.parametrize("seed", range(8))
def test_any_bytes_take_no_more_than_the_cgroup_allows(place, container, seed):
    draw = random.Random(seed)
    with container.bound(3 * GIB, GIB).lying(entries=4) as path:
        with open(path, "r+b") as file:
            file.seek(BEGIN if seed % 2 else 16)
            file.write(draw.randbytes(64 * ENTRY_BYTES) if seed > 1 else b"\xff" * 64 * ENTRY_BYTES)
        (largest,) = place.take("largest")
        assert LEFT - 2 * GIB - 8 * MIB <= largest <= LEFT


def test_a_file_that_changes_meanwhile_harms_nobody(place, container):
    """It grows, shrinks, goes away and comes back while the host's program decides."""
    over = threading.Event()

    def change(path, content):
        while not over.is_set():
            os.truncate(path, 100)
            path.write_bytes(content)
            path.rename(path.with_name("away"))
            path.with_name("away").rename(path)

    with container.bound(3 * GIB, GIB).lying(entries=64) as path:
        changer = threading.Thread(target=change, args=(path, path.read_bytes()))
        changer.start()
        try:
            answers = place.take("malloc 7G " * 40 + "malloc 5G free 0")
        finally:
            over.set()
            changer.join()
    assert set(answers[:-1]) <= {"ENOMEM", "ok"} and answers.count("ok") <= 2


@pytest.mark.skipif(IS_EMULATED, reason="a lease is the kernel's own")
def test_a_lease_on_the_registry_is_not_waited_for(place, container):
    """Who opens a file that has one waits 45 s, without O_NONBLOCK."""
    path = container.own / LEDGER
    path.write_bytes(Ledger.header().ljust(FILE_BYTES, b"\0"))
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)
    lease = os.open(path, os.O_WRONLY)
    try:
        fcntl.fcntl(lease, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        place.assert_left(LEFT)
        assert fcntl.fcntl(lease, fcntl.F_GETLEASE) != fcntl.F_WRLCK, "it was asked for"
    finally:
        os.close(lease)
        signal.signal(signal.SIGIO, before)


def test_more_containers_than_count_and_more_names_than_are_read(place, container):
    for i in range(100):
        (container.folder / f"box-{i}.bounds").write_text("cgroup ?\n")
        (container.folder / f"x{i}").write_text("")
    place.assert_left(LEFT)
