"""sparkguard --pressure-socket: programs that speak systemd's memory pressure protocol."""

import contextlib
import errno
import os
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
from giving import AT_ONCE, DEADLINE, GIVES, ask, entry_flags, given
from lib.machine import slept
from lib.waiting import wait_until

SPEAKER = """
import ctypes, os, select, socket, sys
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
held = [libc.malloc(1 << 30) for _ in range(4)]
assert "MEMORY_PRESSURE_WRITE" not in os.environ
def connect():
    watch = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    watch.connect(os.environ["MEMORY_PRESSURE_WATCH"])
    return watch
SPEAK
print("ready", flush=True)
while True:
    ready, _, _ = select.select([sys.stdin] + watches, [], [])
    if sys.stdin in ready:
        break
    for watch in ready:
        assert watch.recv(64)
        heard.add(watch)
    if len(heard) == len(watches):
        heard = set()
        for _ in range(min(blocks, len(held))):
            libc.free(held.pop())
"""
ONE = "blocks, heard, watches = 4, set(), [connect()]"
MANY = "gone = [connect() for _ in range(300)]; del gone; blocks, heard, watches = 4, set(), [connect() for _ in range(300)]"
NOBODY = "blocks, heard, watches = 0, set(), []"


@pytest.fixture
def place(place):
    """With a folder for sockets, whose paths must be short."""
    with tempfile.TemporaryDirectory(prefix="pressure-", dir="/tmp") as folder:
        place.sockets = Path(folder)
        yield place


def speaker(place, speak, *options):
    """A program at the socket that holds 4 GiB, and frees `blocks` GiB when each of its connections has been told."""
    command = [place.guard.build / "sparkguard", "--job=speaker", "--pressure-socket", *options]
    program = SPEAKER.replace("SPEAK", speak)
    env = {"MEMORY_PRESSURE_WATCH": "/dev/null", "MEMORY_PRESSURE_WRITE": "c29tZQ==", "TMPDIR": place.sockets}
    tenant = place.tenant([*command, "/usr/bin/python3", "-c", program], env, preload=())
    assert tenant.ready() == []
    wait_until(lambda: any(flags & GIVES for flags in entry_flags(place)))
    connections = 0 if speak == NOBODY else 300 if speak == MANY else 1
    wait_until(lambda: has_accepted(helper_of(tenant), connections))
    return tenant


def helper_of(tenant):
    command = ["pgrep", "-f", "-P", str(tenant.pid), "--", "--in-pressure"]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def has_accepted(helper, connections):
    """Whether a helper has so many connections beside its socket, and sleeps until there are more."""
    files = []
    with contextlib.suppress(FileNotFoundError):  # it closes one
        files = [os.readlink(file) for file in Path(f"/proc/{helper}/fd").iterdir()]
    is_asleep = Path(f"/proc/{helper}/stat").read_text().rpartition(") ")[2].startswith("S")
    return sum(file.startswith("socket:") for file in files) == 1 + connections and is_asleep


def sockets(place):
    """Of all folders; one may be removed meanwhile."""
    return [name for _, folders, files in os.walk(place.sockets) for name in folders + files]


def socket_of(place):
    (path,) = place.sockets.glob("sparkguard-*/memory.pressure")
    return path


@pytest.mark.parametrize("speak", [ONE, MANY], ids=["one connection", "hundreds"])
def test_program_at_the_socket_is_told(place, speak):
    speaker(place, speak)
    assert given(place, "malloc 6G") == ["ok"]


def test_it_is_told_again(place):
    speaker(place, ONE.replace("4", "1"))
    for size in ("4500M", "5500M", "6500M"):
        assert given(place, f"malloc {size}") == ["ok"]


def test_without_a_program_at_the_socket_the_request_is_refused_at_once(place):
    speaker(place, NOBODY)
    answers, sleeps = ask(place, "malloc 6G")
    assert answers == ["ENOMEM"] and sleeps < AT_ONCE


def test_program_at_the_socket_has_a_second(place):
    speaker(place, ONE.replace("4", "0"))
    begin = time.monotonic()
    answers, sleeps = ask(place, "malloc 6G")
    assert answers == ["ENOMEM"] and time.monotonic() - begin >= 1
    assert sleeps < DEADLINE + AT_ONCE


def test_request_that_comes_while_another_waits_is_told_at_once(place):
    """The first one needs 3.5 GiB back and is waiting still; the second one needs 1.5 and waits 0.5 s at most."""
    speaker(place, ONE.replace("4", "1"))
    first = place.tenant([place.admit_take, "malloc", "7500M", "wait"])
    wait_until(lambda: slept(first.pid) > 20)  # more than who is refused at once, and less than half of the deadline's
    assert place.take("malloc 5500M", env={"SPARKGUARD_WAIT": "0.5"}) == ["ok"]
    assert first.ready() == ["ENOMEM"]


def test_socket_and_command_go_together(place, tmp_path):
    speaker(place, ONE, f"--on-pressure=echo told > {tmp_path}/told")
    assert given(place, "malloc 6G") == ["ok"]
    wait_until((tmp_path / "told").exists)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_socket_goes_with_the_launcher(place, number):
    tenant = speaker(place, ONE)
    assert socket_of(place).is_socket()
    os.kill(tenant.pid, number)
    wait_until(lambda: not sockets(place))


def test_program_that_does_not_start_leaves_no_socket(place):
    env = {**place.env, "TMPDIR": place.sockets}
    done = place.guard.run([place.guard.build / "sparkguard", "--pressure-socket", "no-such-program"], env=env, preload=())
    assert done.returncode == 127 and not sockets(place)


def test_without_its_helper_a_program_does_not_wait_at_the_socket(place):
    """A connection is refused, not left in a queue that nobody serves."""
    tenant = speaker(place, NOBODY)
    os.kill(helper_of(tenant), signal.SIGKILL)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        wait_until(lambda: connection.connect_ex(str(socket_of(place))) == errno.ECONNREFUSED)


def test_next_launcher_removes_what_a_killed_one_has_left(place):
    """All are killed together, as with their cgroup; the socket of one that lives stays."""
    first = speaker(place, NOBODY)
    left = socket_of(place)
    for pid in (helper_of(first), first.pid):
        os.kill(pid, signal.SIGSTOP)
    for pid in (helper_of(first), first.pid):
        os.kill(pid, signal.SIGKILL)
    first.kill()
    assert left.is_socket()
    speaker(place, NOBODY)
    second = socket_of(place)
    assert second != left
    speaker(place, NOBODY)
    assert second.is_socket() and len(sockets(place)) == 4


@pytest.mark.parametrize("option", ["--pressure-socket", "--on-pressure=true"])
def test_without_the_guard_it_is_said_that_nobody_can_be_asked(place, option):
    env = {**place.env, "TMPDIR": place.sockets}
    done = place.guard.run([place.guard.build / "sparkguard", "--disable", option, "true"], env=env, preload=())
    assert f"sparkguard: {option.split('=')[0]} has no effect: the program is not guarded\n" in done.stderr
    assert done.returncode == 0 and not sockets(place)


def test_launcher_ends_although_the_program_ends_before_its_helper_begins(place):
    """On one processor the program is often faster."""
    env = place.guard.environment(place.env, preload=())
    command = ["taskset", "-c", str(min(os.sched_getaffinity(0))), place.guard.build / "sparkguard", "--quiet", "--on-pressure=true", "true"]
    for _ in range(40):
        assert subprocess.run(command, env=env, timeout=60, check=False).returncode == 0


def test_folder_of_a_launcher_that_was_killed_early_is_removed_after_a_minute(place):
    folders = [place.sockets / name for name in ("sparkguard-aaaaaa", "sparkguard-bbbbbb", "sparkguard-other-tool")]
    for folder in folders:
        folder.mkdir()
    (folders[0] / "memory.pressur").touch()
    for folder in folders[0], folders[2]:
        os.utime(folder, (0, 0))
    speaker(place, NOBODY)
    assert [folder.exists() for folder in folders] == [False, True, True]


def test_temporary_folder_that_does_not_exist(place):
    env = {**place.env, "TMPDIR": place.sockets / "gone"}
    done = place.guard.run([place.guard.build / "sparkguard", "--quiet", "--pressure-socket", "printenv", "MEMORY_PRESSURE_WATCH"], env=env, preload=())
    assert done.stdout.startswith("/tmp/sparkguard-") and done.stderr == ""
