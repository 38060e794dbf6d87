"""sparkguard-doctor: text, JSON and script; the script run on a tree; files that mean harm; a tool like the others.
Golden files are in golden/; write them anew with UPDATE_GOLDEN=1 and read the difference."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from doctor_tree import GIB, UNITS, doctor, hold_in_shm, make_bad, shellcheck  # noqa: F401
from screen import all_shown

GOLDEN = Path(__file__).resolve().parents[1] / "golden"

# ---- what it prints -------------------------------------------------------------------------------------------------


def golden(name, text):
    if os.environ.get("UPDATE_GOLDEN"):
        (GOLDEN / name).write_text(text)
    assert text == (GOLDEN / name).read_text()


def neutral(doctor, text):
    text = re.sub(r'"disk_free_bytes": \d+', '"disk_free_bytes": 0', text)  # of the disk that the tests are on
    return text.replace(str(doctor.root), "/ROOT").replace(f"sparkguard-{os.geteuid()}", "sparkguard-UID")


def test_text_is_golden(doctor):
    make_bad(doctor.tree)
    done = doctor.run()
    assert (done.returncode, done.stderr) == (4, "")
    golden("doctor.txt", neutral(doctor, done.stdout))


def test_json_is_golden(doctor):
    make_bad(doctor.tree)
    golden("doctor.json", neutral(doctor, doctor.run("--json").stdout))


def test_script_is_golden(doctor):
    make_bad(doctor.tree)
    golden("doctor.sh", neutral(doctor, doctor.run("--fix-script").stdout))


def test_script_mends_what_it_says_and_can_be_run_twice(doctor):
    make_bad(doctor.tree)
    script = doctor.run("--fix-script").stdout
    shellcheck(script)
    for _ in range(2):
        done = subprocess.run(["sh"], input=script, env=doctor.environment(), capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")
    assert "not run below" in done.stdout and "swapoff -a" in done.stdout
    fstab = (doctor.root / "etc/fstab").read_text()
    assert fstab == "UUID=0 / ext4 defaults 0 1\n#/swap.img\tnone\tswap\tsw\t0\t0\n"
    assert "\n/swap.img" in (doctor.root / "etc/fstab.sparkguard").read_text()
    assert (doctor.root / "proc/sys/vm/compact_memory").read_text() == "1\n"
    assert (doctor.root / "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages").read_text() == "0\n"
    assert doctor.find("swap-at-boot")["state"] == "fine"
    assert doctor.find("ssh-memory")["state"] == "fine"
    assert doctor.find("swappiness")["state"] == "fine"
    doctor.tree.remove("proc/900")
    assert doctor.find("ssh-oom")["state"] == "fine"


def test_script_goes_on_where_a_step_fails_and_says_so(doctor):
    make_bad(doctor.tree)
    script = doctor.run("--fix-script").stdout
    doctor.tree.remove("proc/sys/vm/compact_memory")
    done = subprocess.run(["sh"], input=script, env=doctor.environment(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and done.stderr == "not done: /proc/sys/vm/compact_memory is not there to write to; \n"
    assert (doctor.root / "etc/tmpfiles.d/sparkguard.conf").exists()


def test_script_of_a_machine_that_is_fine_does_nothing(doctor):
    script = doctor.run("--fix-script").stdout
    shellcheck(script)
    assert "----" not in script


def snapshot(root):
    return {p: (p.lstat().st_mtime_ns, p.read_bytes() if p.is_file() else None) for p in root.rglob("*") if not p.is_symlink()}


def test_it_changes_nothing(doctor):
    make_bad(doctor.tree)
    before = snapshot(doctor.root)
    for option in ([], ["--json"], ["--fix-script"]):
        doctor.run(*option)
    assert snapshot(doctor.root) == before


# ---- files that mean harm -------------------------------------------------------------------------------------------

EVIL = "\x1b[31mx\x1b]0;y\x07 $(touch /tmp/pwned) `id` \u202e'; rm -rf /"


def test_names_steer_no_terminal_and_leave_no_comment(doctor):
    doctor.tree.process(70, EVIL, state="Z", parent=60)
    doctor.tree.process(71, "y", resident=30 * GIB, cmdline=[EVIL + "\necho pwned", "b"])
    doctor.tree.write("proc/driver/nvidia/gpus/000f:01:00.0/information", f"Model: GB10 {EVIL}\n")
    doctor.tree.write("proc/sys/kernel/arch", EVIL)
    hold_in_shm(doctor.tree, name="a\necho pwned; $(id)")
    text, script = doctor.run().stdout, doctor.run("--fix-script").stdout
    for output in (text, script):
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\u202e]", output)
        assert not re.search(r"^\s*echo pwned", output, re.MULTILINE)
    shellcheck(script)
    for line in script.splitlines():
        assert "pwned" not in line or line.startswith("# ")
    assert doctor.find("leftovers")["mend"] == "ls -l /dev/shm"
    assert EVIL.split("\u202e")[0] in doctor.find("architecture")["sentence"]


FILES = [
    "proc/meminfo", "proc/buddyinfo", "proc/sys/vm/swappiness", "etc/fstab", "proc/self/cgroup", "proc/self/oom_score_adj",
    "proc/900/oom_score_adj", "proc/900/status", "proc/900/stat", "proc/driver/nvidia/version", "proc/driver/nvidia/params", "proc/sys/kernel/arch",
    "proc/driver/nvidia/gpus/000f:01:00.0/information", f"{UNITS}/ssh.service.d/oom.conf", "lib/systemd/system/ssh.service",
    "sys/fs/cgroup/job/memory.max",
]
CONTENTS = [
    b"", b"\0" * 100, b"\xff" * 200000, b"9" * 100000, b"-" * 10, b"%n%s%s" * 100, b"Node 0, zone " * 1000,
    b"Node 0, zone x " + b"99999999999999999999 " * 50, b"MemTotal: 99999999999999999999 kB\n", b"a b swap" * 9000, b"[" * 70000,
    b"MemTotal: -1 kB\nMemAvailable: 18446744073709551615 kB\nSwapTotal: 1 kB\n", b"Model:", b"1.2.3 580.", b" 7.", b"\n" * 70000,
]


@pytest.mark.parametrize("path", FILES)
def test_no_content_of_a_file_breaks_it(doctor, path):
    for content in CONTENTS:
        doctor.tree.write(path, content)
        assert doctor.json()["exit_status"] in (0, 1, 4)
    file = doctor.root / path
    file.unlink()
    os.mkfifo(file)
    assert doctor.json()["exit_status"] in (0, 1, 4)
    file.unlink()
    file.symlink_to(file)
    assert doctor.json()["exit_status"] in (0, 1, 4)


def test_an_empty_tree_is_unknown(doctor, tmp_path):
    (tmp_path / "empty").mkdir()
    done = doctor.run("--json", SPARKGUARD_SYSTEM_ROOT=str(tmp_path / "empty"))
    states = [f["state"] for f in json.loads(done.stdout)["findings"]]
    assert done.returncode == 4 and states.count("unknown") > 10


def test_a_thousand_processes(doctor):
    for pid in range(1000, 2000):
        doctor.tree.process(pid, "worker", state="Z", parent=999)
    finding = doctor.find("zombies")
    assert finding["figures"]["zombie_count"] == 1000 and len(finding["sentence"]) < 200


MOMENT = """
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int nanosleep(const struct timespec *time, struct timespec *left) /* pace: of the doctor alone */
{
    if (time->tv_sec == 0 && time->tv_nsec < 100000000) /* not the moment that zombies get */
        return (int)syscall(SYS_nanosleep, time, left); /* poll: what the doctor itself waits for */
    close(open(getenv("MOMENT_BEGINS"), O_WRONLY));
    char end;
    return read(open(getenv("MOMENT_ENDS"), O_RDONLY), &end, 1) != 0;
}
"""
PARENT = """
import os
if os.fork() == 0:
    os._exit(0)
os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
print(flush=True)
input()
os.wait()
print(flush=True)
input()
"""


def test_children_that_are_collected_a_little_late_are_no_zombies(doctor, tmp_path):
    """On this machine: one parent collects its child in the moment that the doctor gives it, another one does not."""
    moment, begins, ends = tmp_path / "moment.so", tmp_path / "begins", tmp_path / "ends"
    subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", moment], input=MOMENT, text=True, check=True)
    variables = {"LD_PRELOAD": moment, "MOMENT_BEGINS": begins, "MOMENT_ENDS": ends, "ASAN_OPTIONS": "verify_asan_link_order=0"}
    env = doctor.environment(SPARKGUARD_SYSTEM_ROOT="/", **{name: str(value) for name, value in variables.items()})
    for fifo in (begins, ends):
        os.mkfifo(fifo)
    with contextlib.ExitStack() as stack:
        late, never = (stack.enter_context(subprocess.Popen([sys.executable, "-c", PARENT], stdin=-1, stdout=-1)) for _ in range(2))
        for parent in (late, never):
            stack.callback(parent.kill)
            parent.stdout.readline()
        process = stack.enter_context(subprocess.Popen([doctor.program, "--json"], env=env, stdout=-1))
        stack.callback(process.kill)
        begins.read_bytes()
        late.stdin.write(b"\n")
        late.stdin.flush()
        late.stdout.readline()
        ends.write_bytes(b"")
        (finding,) = [f for f in json.loads(process.stdout.read())["findings"] if f["id"] == "zombies"]
    assert finding["figures"]["zombie_count"] >= 1 and f" of {late.pid}" not in finding["sentence"]


# ---- a tool like the others -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [["--nope"], ["-x"], ["x"], ["--json", "--fix-script"], ["--json=1"], ["\x1b[31m"]])
def test_bad_usage_is_one_line_and_exit_2(doctor, arguments):
    done = doctor.run(*arguments)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "\x1b" not in done.stderr


def test_help_and_version(doctor):
    done = doctor.run("--help")
    assert done.returncode == 0 and max(map(len, done.stdout.splitlines())) < 80
    assert "--fix-script" in done.stdout and "--json" in done.stdout
    assert re.fullmatch(r"sparkguard-doctor \d+\.\d+\.\d+\n", doctor.run("--version").stdout)


@pytest.mark.parametrize("option", [[], ["--json"], ["--fix-script"]])
def test_a_closed_pipe_ends_it_quietly(doctor, option):
    make_bad(doctor.tree)
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([doctor.program, *option], env=doctor.environment(), stdout=writer, stderr=subprocess.PIPE, timeout=60)
    os.close(writer)
    assert (done.returncode, done.stderr) == (-signal.SIGPIPE, b"")


def test_a_full_disk_is_told(doctor):
    with open("/dev/full", "w") as full:
        done = subprocess.run([doctor.program], env=doctor.environment(), stdout=full, stderr=subprocess.PIPE, timeout=60)
    assert done.returncode == 3 and b"No space left" in done.stderr


def on_terminal(doctor, columns, **extra):
    return all_shown([doctor.program], doctor.environment(TERM="xterm", **extra), columns)


def test_a_terminal_gets_colour_unless_it_says_no(doctor):
    make_bad(doctor.tree)
    assert "\x1b[31mdanger" in on_terminal(doctor, 80)
    assert "\x1b" not in on_terminal(doctor, 80, NO_COLOR="1")
    assert "\x1b" not in doctor.run().stdout


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_a_terminal_is_not_overrun(doctor, columns):
    make_bad(doctor.tree)
    lines = on_terminal(doctor, columns, NO_COLOR="1").replace("\r", "").splitlines()
    too_long = [line for line in lines if len(line) > columns and not re.match(r" {9}(\$| {4})", line)]
    assert [line for line in too_long if len(max(line.split(), key=len)) + 24 < columns] == []


def test_a_command_that_is_copied_from_a_terminal_is_the_command(doctor):
    make_bad(doctor.tree)
    screen = on_terminal(doctor, 60, NO_COLOR="1").replace("\r", "")
    shown = re.findall(r"^ {9}\$ (.*(?:\n {13}.*)*)$", screen, re.MULTILINE)
    assert any(re.search(r"&& *\n", command) for command in shown)
    assert all(re.search(r" (&&|\|) *$", line) for command in shown for line in command.split("\n")[:-1])
    joined = [re.sub(r" *\n *", " ", command) for command in shown]
    assert sorted(joined) == sorted(f["mend"] for f in doctor.json()["findings"] if f["mend"])
