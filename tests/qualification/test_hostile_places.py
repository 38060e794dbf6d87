"""SPARKGUARD_DIR and the history as nobody means them: the program runs on, in time, and at most one sentence says why nothing is
kept. What links, strangers, modes and full disks do is in tests/preload/record/test_directory.py and test_history.py."""

import os
import socket
import subprocess

import pytest


@pytest.fixture
def program(build):
    return build / "tests/programs/dir_hold"


def check(done, sentences):
    assert (done.returncode, done.stdout) == (0, "ready\n"), done.stderr
    assert done.stderr.count("\n") == sentences, done.stderr
    assert sentences == 0 or done.stderr.startswith("sparkguard: cannot keep statistics in ")


def check_seen(done):
    """The program holds 20 MiB."""
    assert done.process()["peak_bytes"] >= 20 << 20


@pytest.mark.parametrize("name", ["live-here", "./live", "../live", "x" * 4000, "/" + "x" * 100_000], ids=lambda name: name[:9])
def test_relative_and_endless_names_are_refused_with_a_sentence(guard, program, tmp_path, name):
    done = guard.run([program, 2], env={"SPARKGUARD_DIR": name}, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (0, "ready\n", 1)
    assert done.stderr.startswith("sparkguard: SPARKGUARD_DIR=") and "cannot be read; for example " in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_empty_name_is_as_good_as_none(guard, program, tmp_path):
    check(guard.run([program, 2], env={"SPARKGUARD_DIR": ""}, cwd=tmp_path), 0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["line\nbreak", "\x1b[31mred", "blank blank", "per%cent%s", "-dash", "ü" * 60])
def test_strange_names_are_names(guard, program, tmp_path, name):
    done = guard.run([program], env={"SPARKGUARD_DIR": tmp_path / name})
    check(done, 0)
    shown = subprocess.run(
        [guard.build / "sparkguard-report", "--dir", tmp_path / name, "--all"], capture_output=True, text=True, errors="replace"
    )
    assert shown.returncode == 0 and str(done.pid) in shown.stdout and "\x1b" not in shown.stdout + shown.stderr


@pytest.mark.parametrize("length", [255, 256])
def test_name_of_one_character_too_many_is_refused_with_a_sentence(guard, program, tmp_path, length):
    check(guard.run([program], env={"SPARKGUARD_DIR": tmp_path / ("x" * length)}), int(length == 256))
    assert [file.suffix for file in tmp_path.glob("x*/*.segment")] == [".segment"] * (length == 255)


@pytest.mark.parametrize("kind", ["fifo", "device", "socket"])
@pytest.mark.parametrize("place", ["directory", "history"])
def test_what_is_no_directory_hangs_nobody(guard, program, kind, place):
    path = guard.directory if place == "directory" else guard.history
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        with socket.socket(socket.AF_UNIX) as opened:
            opened.bind(str(path))
    done = guard.run([program], timeout=60)
    check(done, 1 if place == "directory" else 0)
    if place == "history":
        check_seen(done)
    else:
        assert guard.report_command("--all").returncode in (0, 1, 3)


def test_fifos_below_the_system_root_hang_nobody(guard, program, tmp_path):
    (tmp_path / "root/proc/self").mkdir(parents=True)
    for name in ("meminfo", "self/cgroup"):
        os.mkfifo(tmp_path / "root/proc" / name)
    done = guard.run([program], env={"SPARKGUARD_SYSTEM_ROOT": tmp_path / "root"}, timeout=60)
    assert (done.returncode, done.stdout) == (0, "ready\n")
    check_seen(done)


def test_home_that_cannot_be_written_costs_the_history_and_no_word(guard, program, own_mounts, tmp_path):
    script = f'mount -t tmpfs -o ro none "$0" && LD_PRELOAD={guard.library} exec "$@"'
    home = tmp_path / "home"
    home.mkdir()
    env = {"LD_PRELOAD": None, "HOME": home, "XDG_STATE_HOME": None, "SPARKGUARD_HISTORY": None}
    done = guard.run([*own_mounts, "sh", "-c", script, home, program], env=env)
    check(done, 0)
    check_seen(done)
