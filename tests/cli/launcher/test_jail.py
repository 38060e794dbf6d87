"""sparkguard --jail: a scope of systemd around the program. systemd-run is a script on PATH that notes what it was asked for."""

import errno
import json
import os
import re
import signal
import subprocess

import pytest

PYTHON = "/usr/bin/python3"
GIB = 1 << 30
SENTENCE = "the guard bounds device memory (cudaMalloc)"

NOTE = """#!/bin/sh
printf '%s\\n' "$@" >"$JAIL_NOTES"
"""
ENTER = "while [ \"$1\" != -- ]; do shift; done; shift; echo noise >&2; exec \"$@\"\n"


class Jail:
    def __init__(self, launcher, scratch):
        self.launcher = launcher
        self.bin = scratch / "bin"
        self.notes = scratch / "notes"
        self.root = scratch / "root"
        self.bin.mkdir()
        self.systemd_run(ENTER)
        self.write("proc/self/cgroup", "0::/jail.scope\n")
        self.write("proc/meminfo", f"MemTotal: {128 * GIB >> 10} kB\nMemAvailable: {100 * GIB >> 10} kB\n")
        self.limit(100 * GIB)

    def write(self, path, text):
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def limit(self, value):
        self.write("sys/fs/cgroup/jail.scope/memory.max", f"{value}\n")
        self.write("sys/fs/cgroup/jail.scope/memory.current", "4096\n")

    def systemd_run(self, code):
        (self.bin / "systemd-run").write_text(NOTE + code)
        (self.bin / "systemd-run").chmod(0o755)

    def environment(self):
        path = f"{self.bin}:{os.environ['PATH']}"
        return dict(PATH=path, JAIL_NOTES=str(self.notes), SPARKGUARD_SYSTEM_ROOT=str(self.root))

    def run(self, *arguments, **extra):
        return self.launcher.run(*arguments, **{**self.environment(), **extra})

    def start(self, *arguments, **options):
        return self.launcher.start(*arguments, env=self.launcher.environment(**self.environment()), **options)

    def asked(self):
        return self.notes.read_text().splitlines()


@pytest.fixture
def jail(launcher, tmp_path):
    return Jail(launcher, tmp_path)


def test_a_scope_bounds_the_program_and_allows_no_swap(jail):
    done = jail.run("-q", "--jail", "100G", "echo", "--jail=1G", "$HOME", "a b", "")
    assert (done.returncode, done.stdout, done.stderr) == (0, "--jail=1G $HOME a b \n", "")
    asked = jail.asked()
    options = asked[: asked.index("--")]
    assert options[0] == ("--system" if os.geteuid() == 0 else "--user")
    assert "--scope" in options and "--quiet" in options
    assert [options[i + 1] for i, o in enumerate(options) if o == "-p"] == [f"MemoryMax={100 * GIB}", "MemorySwapMax=0"]


EXPAND = """exec {python} -c '
import os, sys
words = [os.path.expandvars(word).replace("%h", "HOME") for word in sys.argv[sys.argv.index("--") + 1 :]]
os.execvp(words[0], words)
' "$@"
"""


def test_systemd_expands_nothing_of_the_program(jail):
    """systemd-run is to expand variables in the commands of scopes as well (systemd-run(1), --expand-environment)."""
    jail.systemd_run(EXPAND.format(python=PYTHON))
    words = ["$HOME", "${HOME}", "$$", "%h", "a b", "", "two\nlines", "--", "-q"]
    show = [PYTHON, "-c", "import json, sys; print(json.dumps(sys.argv[1:]))", *words]
    done = jail.run("-q", "--jail=100G", *show, HOME="/nowhere")
    assert (done.returncode, done.stderr) == (0, "") and json.loads(done.stdout) == words
    assert f"sparkguard --jail: {PYTHON}" in jail.notes.read_text()  # what systemctl shows


def test_percent_is_of_the_machine(jail):
    assert jail.run("-q", "--jail=50%", "true").returncode == 125  # the scope has 100 GiB, not 64
    assert f"MemoryMax={64 * GIB}" in jail.asked()


def test_percent_is_of_what_is_no_huge_page(jail):
    meminfo = f"MemTotal: {128 * GIB >> 10} kB\nMemAvailable: {10 * GIB >> 10} kB\nHugetlb: {96 * GIB >> 10} kB\n"
    jail.write("proc/meminfo", meminfo)
    jail.run("-q", "--jail=50%", "true")
    assert f"MemoryMax={16 * GIB}" in jail.asked()


def test_one_sentence_says_what_it_bounds_and_what_not(jail):
    lines = jail.run("--jail=100G", "true").stderr.splitlines()
    assert len(lines) == 2 and SENTENCE in lines[0] and "jail of 100.0 GiB" in lines[0]
    assert "exit status 0" in lines[1]
    assert SENTENCE in re.sub(r"\s+", " ", jail.run("--help").stdout)


@pytest.mark.parametrize("status", [0, 1, 125, 255])
def test_exit_status_is_the_programs(jail, status):
    assert jail.run("--jail=100G", "sh", "-c", f"exit {status}").returncode == status


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_dies_of_the_same_signal(jail, number):
    done = jail.run("--jail=100G", "sh", "-c", f"kill -{int(number)} $$")
    assert done.returncode == -number and f"killed by {number.name}" in done.stderr


def test_signals_are_passed_on(jail):
    code = "trap 'echo caught; exit 3' TERM; echo ready; read line"
    with jail.start("-q", "--jail=100G", "sh", "-c", code, stdin=subprocess.PIPE) as process:
        assert process.stdout.readline() == "ready\n"
        process.terminate()
        assert process.stdout.readline() == "caught\n" and process.wait(60) == 3


SHOW = """
import json, os
state = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
print(json.dumps({"pid": os.getpid(), "parent": os.getppid(), "group": os.getpgid(0), "session": os.getsid(0),
                  "masks": [state[k].strip() for k in ("SigBlk", "SigIgn")], "files": sorted(os.listdir("/proc/self/fd"))[:-1],
                  "variables": {k: v for k, v in os.environ.items() if k.startswith("SPARKGUARD") or k == "LD_PRELOAD"}}))
"""


def shown(jail, *options):
    with jail.start("-q", *options, PYTHON, "-c", SHOW) as process:
        return process.pid, json.loads(process.communicate(timeout=60)[0])


def test_the_program_is_what_it_would_be_without_a_jail(jail):
    (parent, inside), (other, outside) = shown(jail, "--jail=100G"), shown(jail)
    assert (inside["parent"], outside["parent"]) == (parent, other)
    assert inside["variables"].pop("SPARKGUARD_JOB_FIRST") == str(inside["pid"])
    assert inside["variables"].pop("SPARKGUARD_JOB").endswith(f"-{inside['pid']}")
    assert inside["variables"].pop("SPARKGUARD_OOM_SCORE_ADJ") == "500"
    outside["variables"].pop("SPARKGUARD_JOB_FIRST")
    outside["variables"].pop("SPARKGUARD_JOB")
    for same in ("group", "session", "masks", "files", "variables"):
        assert inside[same] == outside[same], same


def test_an_oom_score_of_the_users_own_wins(jail):
    code = ["sh", "-c", "echo $SPARKGUARD_OOM_SCORE_ADJ"]
    assert jail.run("-q", "--jail=100G", "--oom-score-adj=7", *code).stdout == "7\n"
    assert jail.run("-q", "--jail=100G", *code, SPARKGUARD_OOM_SCORE_ADJ="8").stdout == "8\n"


def test_a_program_that_cannot_be_run(jail, tmp_path):
    done = jail.run("-q", "--jail=100G", "/no/such/program")
    assert (done.returncode, done.stderr) == (127, "sparkguard: cannot run /no/such/program: No such file or directory\n")
    (tmp_path / "data").write_text("x")
    assert jail.run("--jail=100G", tmp_path / "data").returncode == 126


@pytest.mark.parametrize(
    "code, why",
    [
        ("printf 'Failed to connect to bus: No medium\\033 found\\nmore\\n' >&2; exit 1", "No medium\\x1b found;"),
        ("exit 0", "no reason given"),
        ("kill -KILL $$", "no reason given"),
    ],
)
def test_no_scope_is_one_sentence_and_nothing_starts(jail, tmp_path, code, why):
    jail.systemd_run(code)
    done = jail.run("--jail=100G", "touch", tmp_path / "started")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (125, "", 1)
    assert why in done.stderr and "made no scope" in done.stderr and "nothing was started" in done.stderr
    assert not (tmp_path / "started").exists()


def test_without_systemd_run(jail, tmp_path):
    (jail.bin / "systemd-run").unlink()
    done = jail.run("--jail=100G", "/bin/true", PATH=str(jail.bin))
    assert (done.returncode, done.stderr.count("\n")) == (125, 1) and "no such program" in done.stderr


def test_arguments_that_cannot_be_passed_on_are_not_taken_for_a_missing_program(jail, tools):
    number = {"x86_64": 319, "aarch64": 279}[os.uname().machine]  # memfd_create
    command = [tools / "tests/programs/host_deny", str(number), str(errno.ENOENT), *jail.launcher.command("--jail=100G", "true")]
    done = subprocess.run(command, env=jail.launcher.environment(**jail.environment()), capture_output=True, text=True)
    if done.returncode == 77:
        pytest.skip("no seccomp here")
    assert (done.returncode, done.stderr.count("\n")) == (125, 1)
    assert "its arguments cannot be passed on: No such file or directory; nothing was started" in done.stderr


@pytest.mark.parametrize("limit", ["max", 101 * GIB])
def test_a_scope_without_the_limit_starts_nothing(jail, tmp_path, limit):
    jail.limit(limit)
    done = jail.run("--jail=100G", "touch", tmp_path / "started")
    assert (done.returncode, done.stderr.count("\n")) == (125, 1) and "without a memory limit" in done.stderr
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize("size", ["12X", "-1G", "0Q", ""])
def test_a_bad_size_is_told_with_a_good_one(jail, size):
    done = jail.run(f"--jail={size}", "true")
    assert (done.returncode, done.stderr) == (2, f"sparkguard: --jail={size}: not a size; for example 100G; the program is not started\n")
    assert not jail.notes.exists()


def test_a_real_scope(launcher):
    """Where systemd runs and lets us."""
    probe = ["systemd-run", "--system" if os.geteuid() == 0 else "--user", "--scope", "-q", "-p", "MemoryMax=1G", "true"]
    try:
        has_systemd = subprocess.run(probe, capture_output=True, timeout=60).returncode == 0
    except (FileNotFoundError, subprocess.TimeoutExpired):
        has_systemd = False
    if not has_systemd:
        pytest.skip("systemd makes no scopes here")
    done = launcher.run("-q", "--jail=1G", "sh", "-c", "cat /sys/fs/cgroup$(sed -n 's/^0:://p' /proc/self/cgroup)/memory.max")
    if done.returncode == 125 and "without a memory limit" in done.stderr:
        pytest.skip("no memory controller here")
    assert (done.returncode, done.stdout) == (0, f"{GIB}\n")
