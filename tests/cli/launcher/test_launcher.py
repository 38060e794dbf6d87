"""sparkguard, the launcher: exit status and signals as the program's own, options to environment, the summary."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from lib import pty
from lib.waiting import wait_until

PYTHON = "/usr/bin/python3"


# ---- exit status ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [0, 1, 2, 125, 126, 127, 255])
def test_exit_status_is_the_programs(launcher, status):
    assert launcher.run("sh", "-c", f"exit {status}").returncode == status


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGINT, signal.SIGUSR1])
def test_dies_of_the_same_signal(launcher, number):
    done = launcher.run("sh", "-c", f"kill -{int(number)} $$")
    assert done.returncode == -number
    assert f"killed by {number.name}" in done.stderr


def test_leaves_no_core_of_its_own(launcher, tmp_path):
    code = f"ulimit -c unlimited; cd {tmp_path}; ulimit -c; exec {' '.join(launcher.command('sh', '-c'))} 'ulimit -c 0; kill -SEGV $$'"
    subprocess.run(["bash", "-c", code], env=launcher.environment(), capture_output=True)
    assert not list(tmp_path.glob("core*"))


def test_not_found_not_executable_and_own_failures(launcher, tmp_path):
    done = launcher.run("/no/such/program")
    assert (done.returncode, done.stderr) == (127, "sparkguard: cannot run /no/such/program: No such file or directory\n")
    assert launcher.run("no-such-program-in-path").returncode == 127
    (tmp_path / "data").write_text("x")
    done = launcher.run(tmp_path / "data")
    assert done.returncode == 126 and "Permission denied" in done.stderr
    done = launcher.run("--library=/none.so", "true")
    assert done.returncode == 125 and done.stderr.count("\n") == 1
    (tmp_path / "a b.so").write_bytes(launcher.library.read_bytes())
    assert launcher.run(f"--library={tmp_path}/a b.so", "true").returncode == 125
    done = launcher.run(f"--library={tmp_path}/data", "true")
    assert done.returncode == 125 and "not a shared library" in done.stderr


def test_a_launcher_without_a_library_says_where_it_looked(launcher, tmp_path):
    lonely = tmp_path / "lonely" / "sparkguard"
    lonely.parent.mkdir()
    shutil.copy(launcher.program, lonely)
    done = subprocess.run([lonely, "true"], env=launcher.environment(), capture_output=True, text=True)
    if done.returncode != 0:  # none is installed on this machine either
        assert done.returncode == 125
        assert str(lonely.parent) in done.stderr and "--library" in done.stderr


def test_the_library_beside_the_launcher_is_taken(launcher, tmp_path):
    beside = tmp_path / "beside" / "sparkguard"
    beside.parent.mkdir()
    shutil.copy(launcher.program, beside)
    shutil.copy(launcher.library, beside.parent / "libsparkguard.so")
    done = subprocess.run([beside, "-q", "env"], env=launcher.environment(), capture_output=True, text=True)
    assert f"LD_PRELOAD={beside.parent}/libsparkguard.so\n" in done.stdout


@pytest.mark.parametrize("arguments", [[], ["--no-such-option", "true"], ["--reserve"], ["-x"]])
def test_usage(launcher, arguments):
    done = launcher.run(*arguments)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


def test_help_fits_80_columns_and_names_every_option(launcher):
    done = launcher.run("--help")
    assert done.returncode == 0 and done.stderr == ""
    assert max(map(len, done.stdout.splitlines())) <= 80
    for name in ("reserve", "limit", "watchdog", "oom-score-adj", "disable", "library", "quiet"):
        assert f"--{name}" in done.stdout


def test_help_begins_with_what_most_people_need(launcher):
    first, advanced = launcher.run("--help").stdout.split("\n Advanced:\n")
    needed = first.split("\n What most people need:\n")[1]
    assert {"check", "claim", "claim-wait", "jail", "job", "limit", "memory", "quiet", "reserve", "set"} == set(re.findall(r"^ +(?:-q, )?--([\w-]+)", needed, re.MULTILINE))
    assert "sparkguard watch" in first and not re.search(r"--(limit|quiet)\b", advanced.split("\n\n")[0])
    assert all(f"--{name}" in advanced for name in ("deepbind", "floor", "library", "priority", "system-root"))


def test_man_page_names_every_option(launcher):
    root = Path(__file__).resolve().parents[3]
    page = (root / "docs/man/sparkguard.1").read_text()
    options = re.findall(r'^SG_OPTION\(\w+, \w+, "([\w-]+)"', (root / "include/options.def").read_text(), re.MULTILINE)
    assert len(options) > 15
    assert [name for name in options if f"Fl Fl {name}" not in page] == []


# ---- options --------------------------------------------------------------------------------------------------------


def test_what_follows_the_program_is_its_own(launcher):
    done = launcher.run("-q", "echo", "--reserve=x", "-q", "--help")
    assert (done.returncode, done.stdout) == (0, "--reserve=x -q --help\n")
    assert launcher.run("-q", "--", "echo", "--", "-x").stdout == "-- -x\n"


def test_options_become_variables(launcher):
    seen = launcher.variables("--reserve=12G", "--limit", "50%", "--wait=0.5", "--mode=observe", "--job=a b", "--disable")
    assert seen["SPARKGUARD_RESERVE"] == "12G"
    assert seen["SPARKGUARD_LIMIT"] == "50%"
    assert seen["SPARKGUARD_WAIT"] == "0.5"
    assert seen["SPARKGUARD_MODE"] == "observe"
    assert seen["SPARKGUARD_JOB"] == "a b"
    assert seen["SPARKGUARD_DISABLE"] == "1"
    assert seen["SPARKGUARD_REPORT"] == "off"
    assert "SPARKGUARD_FLOOR" not in seen


@pytest.mark.parametrize("given, inside", [({}, "0"), ({"MIMALLOC_ARENA_EAGER_COMMIT": "1"}, "1")])
def test_heaps_of_mimalloc_commit_what_they_use(launcher, given, inside):
    said = launcher.run("-q", "env", **given).stdout.splitlines()
    assert [line for line in said if line.startswith("MIMALLOC_")] == [f"MIMALLOC_ARENA_EAGER_COMMIT={inside}"]


def test_options_win_over_the_environment(launcher):
    seen = launcher.variables("--reserve=12G", SPARKGUARD_RESERVE="nonsense", SPARKGUARD_FLOOR="1G")
    assert (seen["SPARKGUARD_RESERVE"], seen["SPARKGUARD_FLOOR"]) == ("12G", "1G")


@pytest.mark.parametrize(
    "name, variable, value, good",
    [
        ("reserve", "RESERVE", "12X", "12G"),
        ("limit", "LIMIT", "101%", "64G"),
        ("wait", "WAIT", "-1", "5m"),
        ("mode", "MODE", "enforced", "enforce|observe"),
        ("job", "JOB", "a/b", "train-7b"),
        ("dir", "DIR", "relative", "/dev/shm/sparkguard-1000"),
        ("oom-score-adj", "OOM_SCORE_ADJ", "1.5", "500"),
        ("large", "LARGE", "1Q", "2M"),
    ],
)
def test_a_bad_value_is_told_with_a_good_one(launcher, name, variable, value, good):
    done = launcher.run(f"--{name}={value}", "true")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert f"--{name}={value}: " in done.stderr and good in done.stderr
    done = launcher.run("true", **{"SPARKGUARD_" + variable: value})
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert f"SPARKGUARD_{variable}={value}: " in done.stderr and good in done.stderr


def test_an_unknown_variable_is_told_and_passed_on(launcher):
    done = launcher.run("-q", "env", SPARKGUARD_RESREVE="1G")
    assert done.returncode == 0
    assert "SPARKGUARD_RESREVE" in done.stderr and "did you mean SPARKGUARD_RESERVE?" in done.stderr
    assert "SPARKGUARD_RESREVE=1G" in done.stdout


def test_limit_that_no_program_runs_within_starts_nothing(launcher):
    for done in (launcher.run("--limit=64", "true"), launcher.run("true", SPARKGUARD_LIMIT="15M")):
        assert done.returncode == 2
        assert "less than any program needs (16 MiB); " in done.stderr and "; the program is not started" in done.stderr
    forced = launcher.run("-q", "--force", "--limit=1M", "true")
    assert forced.returncode == 0 and forced.stderr.count("sparkguard: --limit=1M is less than any program needs (16 MiB)") == 1
    assert launcher.run("-q", "--limit=16M", "true").returncode == launcher.run("-q", "--limit=0", "true").returncode == 0


def test_a_reserve_of_nothing_is_told(launcher):
    for value in ("0", "0%"):
        done = launcher.run("-q", f"--reserve={value}", "true")
        assert done.returncode == 0 and done.stderr == f"sparkguard: --reserve={value} is read as none\n"
    assert launcher.run("-q", "--reserve=none", "true").stderr == ""


def test_an_empty_variable_is_unset(launcher):
    assert launcher.run("-q", "true", SPARKGUARD_RESERVE="").returncode == 0


def test_preloads_of_others_are_kept(launcher):
    assert launcher.variables()["LD_PRELOAD"] == str(launcher.library)
    other = launcher.scratch / "libother.so"
    shutil.copy(launcher.library, other)
    seen = launcher.variables(LD_PRELOAD=str(other))
    assert seen["LD_PRELOAD"] == f"{launcher.library}:{other}"
    seen = launcher.variables(LD_PRELOAD=f"{other} {launcher.library}")
    assert seen["LD_PRELOAD"] == f"{other} {launcher.library}"


def test_a_job_is_named_after_its_first_process(launcher):
    done = launcher.run("-q", "sh", "-c", "echo $$ $SPARKGUARD_JOB_FIRST $SPARKGUARD_JOB")
    pid, first, job = done.stdout.split()
    assert pid == first
    assert job[8] == "T" and job[15] == "-" and job[16:] == pid and job[:8].isdigit() and job[9:15].isdigit()


def test_a_launcher_in_a_job_adds_to_it(launcher):
    inner = " ".join(launcher.command("-q", "sh", "-c", "'echo $SPARKGUARD_JOB $SPARKGUARD_JOB_FIRST'"))
    done = launcher.run("--job=outer", "-q", "sh", "-c", f"echo $$; {inner}; true")
    first, job = done.stdout.splitlines()
    assert job == f"outer {first}"
    renamed = inner.replace(" -q ", " -q --job=other ", 1)
    first, job = launcher.run("--job=outer", "-q", "sh", "-c", f"echo $$; {renamed}; true").stdout.splitlines()
    assert job.startswith("other ") and job != f"other {first}"


# ---- programs that cannot be guarded ---------------------------------------------------------------------------------


def test_a_static_program_runs_with_a_warning(launcher, tmp_path):
    (tmp_path / "s.c").write_text("int main(void) { return 7; }\n")
    if subprocess.run(["cc", "-static", str(tmp_path / "s.c"), "-o", str(tmp_path / "s")]).returncode != 0:
        pytest.skip("no static libc here")
    done = launcher.run(tmp_path / "s")
    assert done.returncode == 7
    assert "linked statically" in done.stderr and "not guarded" in done.stderr
    (tmp_path / "script").write_text(f"#!{tmp_path}/s\n")
    (tmp_path / "script").chmod(0o755)
    assert "linked statically" in launcher.run(tmp_path / "script").stderr


def test_a_setuid_program_runs_with_a_warning(launcher, tmp_path):
    program = tmp_path / "setuid"
    shutil.copy("/bin/true", program)
    try:
        os.chown(program, 65534, 65534)
        program.chmod(0o4755)
    except PermissionError:
        pytest.skip("needs root")
    done = launcher.run(program)
    assert done.returncode == 0 and "gains rights" in done.stderr


# ---- signals --------------------------------------------------------------------------------------------------------

# Says which signals come, one line each as they come; ends after a line on stdin.
COUNTER = """
import os, signal, sys
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2,
               signal.SIGWINCH):
    signal.signal(number, lambda n, f: os.write(1, f"{signal.Signals(n).name}\\n".encode()))
os.write(1, b"ready\\n")
sys.stdin.readline()
os.write(1, b"end\\n")
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGWINCH"])
def test_signals_are_passed_on_once(launcher, name):
    with launcher.start("-q", PYTHON, "-c", COUNTER, stdin=subprocess.PIPE) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(getattr(signal, name))
        assert process.stdout.readline() == f"{name}\n"
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.read() == "end\n"
        assert process.wait(60) == 0


def status_of(pid):
    with open(f"/proc/{pid}/status") as file:
        return file.read()


def test_a_signal_ends_a_program_that_does_not_catch_it(launcher):
    with launcher.start("-q", "sh", "-c", "echo ready; exec sleep 60") as process:
        assert process.stdout.readline() == "ready\n"
        process.terminate()
        assert process.wait(60) == -signal.SIGTERM


def test_what_the_program_sends_to_its_group_is_not_sent_back(launcher):
    """The launcher, too, gets it. It takes the next signal behind it, which has a higher number, and hands that on."""
    code = "trap 'echo caught' USR1; trap 'echo next; exit' USR2; kill -USR1 0; while :; do sleep 0.05; done"
    with launcher.start("-q", "sh", "-c", code, start_new_session=True) as process:
        assert process.stdout.readline() == "caught\n"
        process.send_signal(signal.SIGUSR2)
        assert process.stdout.read() == "next\n"
        assert process.wait(60) == 0


def test_interrupt_from_the_terminal_reaches_the_program_once(launcher):
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(str(launcher.program), launcher.command("-q", PYTHON, "-c", COUNTER), launcher.environment())
    read_until(terminal, b"ready")
    os.write(terminal, b"\x03")
    text = read_until(terminal, b"SIGINT")
    os.write(terminal, b"\n")
    text += read_until(terminal, b"end")
    assert text.count(b"SIGINT") == 1
    os.close(terminal)
    os.waitpid(pid, 0)


LEAVER = """
import os, signal
os.setpgid(0, 0)
signal.signal(signal.SIGINT, lambda n, f: os.write(1, b"SIGINT "))
signal.signal(signal.SIGUSR1, lambda n, f: (os.write(1, b"SIGUSR1 "), os._exit(0)))
os.write(1, b"ready")
while True:
    signal.pause()
"""


def test_interrupt_from_the_terminal_is_not_sent_after_a_program_that_left_the_group(launcher):
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(str(launcher.program), launcher.command("-q", PYTHON, "-c", LEAVER), launcher.environment())
    read_until(terminal, b"ready")
    os.write(terminal, b"\x03")
    read_until(terminal, b"^C")
    os.kill(pid, signal.SIGUSR1)  # taken after SIGINT, which has the lower number
    assert b"SIGINT" not in read_until(terminal, b"SIGUSR1 ")
    os.close(terminal)
    os.waitpid(pid, 0)


def read_until(terminal, word):
    text = b""
    while word not in text:
        text += os.read(terminal, 1)
    return text


def test_stops_and_continues_with_its_program(launcher):
    code = "echo ready; kill -STOP $$; echo again"
    with launcher.start("-q", "sh", "-c", code, preexec_fn=lambda: os.setpgid(0, 0)) as process:
        assert process.stdout.readline() == "ready\n"
        wait_for_state(process.pid, "T")
        os.killpg(process.pid, signal.SIGCONT)
        assert process.stdout.readline() == "again\n"
        assert process.wait(60) == 0


def wait_for_state(pid, state):
    wait_until(lambda: f"State:\t{state}" in status_of(pid))


def test_works_where_children_are_ignored(launcher):
    def ignore():
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)

    with launcher.start("-q", "sh", "-c", "trap; exit 5", preexec_fn=ignore) as process:
        assert process.wait(60) == 5


# ---- the record and the summary --------------------------------------------------------------------------------------

WRITER = """
import os, pathlib, signal, sys
sys.path[:0] = [sys.argv[1], os.path.dirname(sys.argv[1])]
import json, segment
layout = json.loads(pathlib.Path(sys.argv[2]).read_text())
stat = pathlib.Path("/proc/self/stat").read_text()
s = segment.Segment(layout, pid=os.getpid(), state="running", job=os.environ["SPARKGUARD_JOB"],
                    **{"slot.start_ticks": int(stat.rpartition(")")[2].split()[19])})
s.domain("device", granted=3 << 30, peak=4 << 30, refused=2, refused_bytes=5 << 30).peak(device=4 << 30, heap=1 << 29)
s.refusal("cudaMalloc", "device", 12 << 30, "reserve", usable=9 << 30)
owner = s.write_live(os.environ["SPARKGUARD_DIR"])
exec(sys.argv[3])
"""


@pytest.fixture
def recorded(launcher, layout, report):
    """Runs a program that leaves a segment and then does what `code` says; its end as launcher and report see it."""
    path = launcher.scratch / "layout.json"
    path.write_text(json.dumps(layout))
    here = str(Path(__file__).resolve().parents[1])

    def run(code, *options, **extra):
        done = launcher.run(*options, PYTHON, "-c", WRITER, here, path, code, **extra)
        return done, report.json("--all")["jobs"][0]["processes"][0]

    assert report.directory == launcher.directory
    return run


def test_a_signal_is_recorded_in_the_segment(recorded):
    done, process = recorded("os.kill(os.getpid(), signal.SIGKILL)")
    assert done.returncode == -signal.SIGKILL
    assert (process["state"], process["signal"], process["exit_code"]) == ("killed", 9, None)
    assert process["ended"] is not None


def test_an_exit_that_nobody_saw_is_recorded(recorded):
    done, process = recorded("os._exit(3)")
    assert done.returncode == 3
    assert (process["state"], process["signal"], process["exit_code"]) == ("exited", None, 3)


@pytest.mark.parametrize(
    "code, status, end",
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", -9, ("killed", 9, None)),
        ("os._exit(3)", 3, ("exited", None, 3)),
    ],
)
def test_what_is_kept_knows_the_end_too(recorded, launcher, report, tmp_path, code, status, end):
    """After a power cut the history alone is there; its last copy was made a moment before the end."""
    history = tmp_path / "history"
    history.mkdir(mode=0o700)
    save = "copy = pathlib.Path(os.environ['SPARKGUARD_HISTORY']) / s.name; s.set('saved_time_ns', segment.START_NS)"
    done, _ = recorded(f"{save}; copy.write_bytes(s.data); {code}", f"--history={history}")
    assert done.returncode == status
    assert len(list(history.iterdir())) == 1
    for file in launcher.directory.iterdir():
        file.unlink()
    shown = json.loads(report.run("--json", "--last", SPARKGUARD_HISTORY=str(history)).stdout)
    (process,) = shown["jobs"][0]["processes"]
    assert (process["state"], process["signal"], process["exit_code"]) == end and process["ended"] is not None


def test_a_segment_with_an_owner_is_left_alone(launcher, recorded):
    code = f"keep = os.fork()\nif keep == 0:\n    os.close(1); os.close(2); open('{launcher.scratch}/end').read()\nos._exit(0)"
    os.mkfifo(launcher.scratch / "end")
    _, process = recorded(code)
    (launcher.scratch / "end").write_text("")  # and so the owner ends
    assert process["state"] == "running"


def test_summary(recorded):
    done, process = recorded("os.kill(os.getpid(), signal.SIGKILL)", "--job=train")
    lines = done.stderr.splitlines()
    assert lines[0].startswith("sparkguard: job train ran ") and lines[0].endswith(", killed by SIGKILL")
    assert lines[1] == "sparkguard: killed by SIGKILL, held 3.0 GiB; refused 2 times for the reserve"
    assert lines[2] == "sparkguard: peak 4.5 GiB: device 4.0 GiB, heap 512.0 MiB"
    assert lines[3] == "sparkguard: 2 requests refused; the last: cudaMalloc of 12.0 GiB, 9.0 GiB usable (reserve)"
    assert lines[4] == f"sparkguard: see sparkguard-report {process['pid']}"
    assert len(lines) == 5


@pytest.mark.parametrize(
    "log, before, after, words",
    [
        (True, 3, 3, "killed by the kernel's OOM killer, held 3.0 GiB"),
        (False, 3, 4, "killed by SIGKILL, probably from the kernel's OOM killer, held 3.0 GiB"),
        (False, 3, 3, "killed by SIGKILL, held 3.0 GiB"),
    ],
)
def test_summary_and_report_tell_the_oom_killers_victim(recorded, report, tmp_path, log, before, after, words):
    """The report tells it also when the kernel's log holds it no more."""
    (tmp_path / "root/proc").mkdir(parents=True, exist_ok=True)
    (tmp_path / "root/dev").mkdir()
    counter, kmsg = tmp_path / "root/proc/vmstat", tmp_path / "root/dev/kmsg"
    counter.write_text(f"oom_kill {before}\n")
    line = "3,1,{at},-;Out of memory: Killed process {pid} (python3) total-vm:1kB\\n"
    code = f"import time; open({str(counter)!r}, 'w').write('oom_kill {after}\\n')"
    if log:
        at = "int(time.clock_gettime(time.CLOCK_MONOTONIC) * 10**6)"
        code += f"; open({str(kmsg)!r}, 'w').write('{line}'.format(at={at}, pid=os.getpid()))"
    code += "; os.kill(os.getpid(), signal.SIGKILL)"
    done, _ = recorded(code, "--job=train", SPARKGUARD_SYSTEM_ROOT=str(tmp_path / "root"))
    assert done.stderr.splitlines()[1].startswith(f"sparkguard: {words}"), done.stderr
    kmsg.unlink(missing_ok=True)
    assert report.json("--last")["jobs"][0]["verdict"].startswith(words)


def test_summary_of_a_limit_speaks_of_what_was_left_of_it(recorded):
    code = "s.refusal('malloc', 'heap', 2**31, 'limit', usable=2**20); owner.seek(0); owner.write(s.data); owner.flush()"
    done, _ = recorded(code)
    assert "; the last: malloc of 2.0 GiB, 1.0 MiB of room (limit)\n" in done.stderr


@pytest.mark.parametrize("how", ["os.kill(os.getpid(), signal.SIGKILL)", "os._exit(137)", "os._exit(1)"])
@pytest.mark.parametrize("before, after", [(3, 4), (3, 5), (3, 3)])
def test_summary_of_a_killed_program_names_the_out_of_memory_killer_if_it_was_at_work(launcher, tmp_path, how, before, after):
    counter = tmp_path / "root/proc/vmstat"
    counter.parent.mkdir(parents=True)
    counter.write_text(f"nr_free_pages 7\noom_kill {before}\noom_kill_extra 9\n")
    code = f"import os, signal; open({str(counter)!r}, 'w').write('oom_kill {after}\\n'); {how}"
    done = launcher.run(sys.executable, "-c", code, SPARKGUARD_SYSTEM_ROOT=str(tmp_path / "root"))
    lines = [line for line in done.stderr.splitlines() if "out-of-memory" in line]
    count = {4: "1 process", 5: "2 processes"}.get(after)
    names = {4: "it", 5: "them"}.get(after)
    said = f"sparkguard: meanwhile the kernel's out-of-memory killer ended {count} of this machine; journalctl -k names {names}"
    assert lines == ([said] if count and how != "os._exit(1)" else [])


def test_summary_says_that_a_watchdog_ended_it(recorded):
    code = "s.event('watchdog: ended: no\x1b room'); owner.seek(0); owner.write(s.data); owner.flush(); os._exit(137)"
    done, process = recorded(code)
    assert (process["state"], process["exit_code"], process["ended_by"]) == ("killed", 137, "watchdog")
    lines = done.stderr.splitlines()
    end = rf"sparkguard: process {process['pid']} ended by its own watchdog at \d\d:\d\d:\d\d: no\\x1b room"
    assert done.returncode == 137 and re.fullmatch(end, lines[4])
    assert lines[5] == f"sparkguard: see sparkguard-report {process['pid']}"
    assert len(lines) == 6


@pytest.mark.parametrize("options, variables", [(["-q"], {}), (["--report=off"], {}), ([], {"SPARKGUARD_REPORT": "off"})])
def test_no_summary(launcher, options, variables):
    assert launcher.run(*options, "true", **variables).stderr == ""


def test_the_summary_of_a_disabled_guard_says_so(launcher):
    done = launcher.run("--disable", "true")
    assert done.stderr.count("\n") == 1 and done.stderr.endswith("exit status 0; not guarded\n")


def test_a_small_program_leaves_one_line(launcher):
    done = launcher.run("true")
    assert done.stderr.count("\n") == 1 and "exit status 0; nothing on record" in done.stderr


FAILING = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>
extern void *__libc_calloc(size_t, size_t);
static void *(*next)(size_t, size_t); /* that of the heap whose free will be called: a sanitizer has its own */
__attribute__((constructor)) static void find_next(void)
{
    next = (void *(*)(size_t, size_t))dlsym(RTLD_NEXT, "calloc");
}
static int has_ended(const char *path) /* the process whose number is in the file, which the launcher has waited for */
{
    char number[16] = "";
    int file = open(path, O_RDONLY), pid;
    if (file >= 0) {
        (void)!read(file, number, sizeof number - 1);
        close(file);
    }
    pid = atoi(number);
    return pid != 0 && kill(pid, 0) != 0;
}
void *calloc(size_t count, size_t bytes)
{
    const char *file = getenv("FAIL_ONCE_ENDED"), *name = program_invocation_short_name;
    bool is_first_thread = syscall(SYS_gettid) == getpid(); /* not the launcher's scan, which may run a moment longer */
    if (file != NULL && name[0] == 's' && name[1] == 'p' && is_first_thread && has_ended(file)) {
        FAILURE;
    }
    return next != NULL ? next(count, bytes) : __libc_calloc(count, bytes);
}
"""


@pytest.mark.parametrize("failure", ["errno = ENOMEM; return NULL", "abort()"])
@pytest.mark.parametrize("code, status", [("exit 7", 7), ("kill -TERM $$", -15)])
def test_the_programs_status_survives_a_summary_that_fails(launcher, tmp_path, failure, code, status):
    """The launcher itself may be guarded, and no memory be left when the program has ended."""
    (tmp_path / "failing.c").write_text(FAILING.replace("FAILURE", failure))
    subprocess.run(["cc", "-shared", "-fPIC", tmp_path / "failing.c", "-o", tmp_path / "failing.so"], check=True)
    number = tmp_path / "pid"
    env = {"LD_PRELOAD": str(tmp_path / "failing.so"), "FAIL_ONCE_ENDED": str(number)}
    done = launcher.run("sh", "-c", f"echo $$ >{number}; {code}", **env)
    assert number.exists() and "ran " not in done.stderr, done.stderr
    assert done.returncode == status


HOLD = "import sys; data = bytearray(int(sys.argv[1]) << 20)"


@pytest.fixture
def guarding(launcher, tools):
    """The launcher with the real library."""
    launcher.library = tools / "libsparkguard.so"
    return launcher


def hold(mib):
    return [PYTHON, "-S", "-c", HOLD, str(mib)]


@pytest.mark.parametrize("is_option", [True, False])
def test_the_summary_ends_with_a_command_that_can_be_typed(guarding, tools, is_option):
    """By the path of the launcher where PATH has no report, with the directory where an option named it."""
    env = guarding.environment(PATH="/usr/bin:/bin")
    options = [f"--dir={env.pop('SPARKGUARD_DIR')}"] if is_option else []
    command = [str(tools / "sparkguard"), *options, *hold(90)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    told = re.search(r"^sparkguard: see (.*)$", done.stderr, re.MULTILINE)[1]
    assert told.startswith(f"{tools}/sparkguard-report ")
    shown = subprocess.run(told, shell=True, env=env, capture_output=True, text=True)
    assert shown.returncode == 0 and shown.stdout.startswith(told.split()[-1]), shown.stderr


def test_the_summary_of_a_name_used_again_covers_this_run_only(guarding, report):
    """The first run was refused under a smaller limit; neither its refusal, nor its limit, nor its pid is the second run's."""
    first = guarding.run("--job=again", "--limit=100M", *hold(300))
    assert first.returncode == 1 and "1 request refused" in first.stderr
    second = guarding.run("--job=again", "--limit=200M", *hold(90))
    assert second.returncode == 0
    assert "refused" not in second.stderr and "of the 200.0 MiB limit" in second.stderr
    first_pid, second_pid = (re.search(r"see sparkguard-report (\d+)$", run.stderr, re.MULTILINE)[1] for run in (first, second))
    assert first_pid != second_pid
    (job,) = report.json("--job=again")["jobs"]
    assert [run["limit_bytes"] for run in job["runs"]] == [100 << 20, 200 << 20]
    assert [run["refused_count"] for run in job["runs"]] == [1, 0]
    assert [process["run"] for process in job["processes"]] == [1, 2] and job["limit_bytes"] == 200 << 20
    text = report.run("--job=again").stdout
    assert re.search(rf"^run 1 of 2, .*process {first_pid}\b", text, re.MULTILINE | re.DOTALL)
    assert re.search(rf"^run 2 of 2, .*process {second_pid}\b", text, re.MULTILINE | re.DOTALL)
    overview = report.run().stdout
    assert "and 1 earlier run of this job: sparkguard-report --job 'again'" in overview and first_pid not in overview


def test_the_summary_shows_the_peak_of_all_processes_beside_the_limit(guarding):
    code = """
import subprocess, sys
workers = [subprocess.Popen([sys.executable, '-S', '-c', "data = bytearray(60 << 20); print('held', flush=True); input()"],
                            stdin=-1, stdout=-1, text=True) for _ in range(3)]
for worker in workers:
    assert worker.stdout.readline() == 'held\\n'
for worker in workers:
    worker.communicate('\\n')
"""
    done = guarding.run("--limit=400M", PYTHON, "-S", "-c", code)
    line = next(line for line in done.stderr.splitlines() if "peak" in line)
    peak, limit, count, largest = re.match(
        r"sparkguard: peak ([\d.]+) MiB of the ([\d.]+) MiB limit; the largest of (\d+) processes, \d+: ([\d.]+) MiB", line
    ).groups()
    assert 180 <= float(peak) < 200 and float(limit) == 400 and int(count) >= 3 and 60 <= float(largest) < 70


SPARSE = """
import ctypes
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
before = bytearray(100 << 20)
del before
sparse = libc.mmap(None, 200 << 20, 3, 0x4022, -1, 0)  # MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE
ctypes.memset(sparse, 1, 200 << 20)
data = bytearray(60 << 20)
"""


@pytest.mark.parametrize("has_launcher", [True, False])
def test_the_peak_beside_a_limit_has_what_the_limit_counts(guarding, has_launcher):
    """Resident bytes of MAP_NORESERVE mappings count in the limit, and are no live bytes."""
    command = [PYTHON, "-S", "-c", SPARSE]
    if has_launcher:
        done = guarding.run("--limit=400M", *command)
    else:
        env = {"LD_PRELOAD": str(guarding.library), "SPARKGUARD_LIMIT": "400M", "SPARKGUARD_REPORT": "exit"}
        done = subprocess.run(command, env=guarding.environment(**env), capture_output=True, text=True, timeout=60)
    peak, without = re.search(
        r"peak ([\d.]+) MiB of the 400.0 MiB limit, MAP_NORESERVE mappings included; without them ([\d.]+) MiB", done.stderr
    ).groups()
    assert 260 <= float(peak) < 280 and 100 <= float(without) < 120
    unlimited = guarding.run(PYTHON, "-S", "-c", SPARSE)
    assert 100 <= float(re.search(r"peak ([\d.]+) MiB: ", unlimited.stderr)[1]) < 120


@pytest.mark.parametrize(
    "command", [["env", "-i", *hold(300)], [PYTHON, "-S", "-c", f"import subprocess; subprocess.run({hold(300)}, env={{}})"]]
)
def test_an_unguarded_child_is_reported(guarding, command):
    """It held 300 MiB under a limit of 200 MiB: the kernel's figure for the children says so, no record does."""
    done = guarding.run("--limit=200M", *command)
    assert done.returncode == 0
    assert 300 <= max(unguarded_mib(done.stderr)) < 340
    assert "small programs leave none" not in done.stderr


def unguarded_mib(text):
    """What processes held that ran unguarded, and what a child held that may have; each line names the reasons."""
    cause = r"because LD_PRELOAD did not reach it \(env -i, sudo, su, a static program\)\n"
    seen = re.findall(rf"process \d+ \(.*\) held ([\d.]+) MiB resident and ran unguarded, {cause}", text)
    either = "either it mapped files, or it ran unguarded"
    unseen = re.findall(rf"a child held ([\d.]+) MiB resident and left no record: {either}, {cause}", text)
    return [float(mib) for mib in seen + unseen]


TAKE = "data = bytearray({} << 20)\nprint('ready', flush=True)\ninput()"
MAP = """
import mmap, os, sys
file = os.open(sys.argv[1], os.O_RDONLY)
view = mmap.mmap(file, 0, access=mmap.ACCESS_READ)
total = sum(view[::4096])
print('ready', flush=True)
input()
"""


@pytest.fixture
def watched(guarding, tmp_path):
    """Runs a shell script in a summary's run. Each time a program says that it is ready, the launcher looks at its children, and
    then the program goes on. Returns what came to stderr."""
    for name, code in [("take_100", TAKE.format(100)), ("take_300", TAKE.format(300)), ("map", MAP)]:
        (tmp_path / name).write_text(code)
    with open(tmp_path / "mapped", "wb") as file:
        file.truncate(200 << 20)

    def looks(pid):
        threads = [task / "status" for task in Path(f"/proc/{pid}/task").iterdir()]
        return sum(int(re.search(r"^voluntary_ctxt_switches:\t(\d+)", thread.read_text(), re.MULTILINE)[1]) for thread in threads)

    def run(script, programs, *options):
        script = script.replace("python", f"{PYTHON} -S {tmp_path}/").replace("/ ", "/").replace("FILE", f"{tmp_path}/mapped")
        with guarding.start(*options, "sh", "-c", script, stdin=-1, stderr=-1, start_new_session=True) as process:
            for _ in range(programs):
                assert process.stdout.readline() == "ready\n"
                before = looks(process.pid)
                wait_until(lambda before=before: looks(process.pid) >= before + 2)
                process.stdin.write("\n")
                process.stdin.flush()
            assert process.wait(60) == 0
            return process.stderr.read()

    return run


ORPHAN = "exec 3<&0; (env -i sh -c 'python take_100; : >FILE.end' <&3 &); until [ -e FILE.end ]; do sleep 0.1; done"


@pytest.mark.parametrize(
    "script, programs, held",
    [
        ("python take_300; env -i python take_100", 2, [100]),  # smaller than a guarded one
        ("env -i python take_100; python take_300", 2, [100]),
        ("env -i python take_100; sh -c 'kill -9 $$'; true", 1, [100]),  # a guarded process notes no size of its own
        (ORPHAN, 1, [100]),
        ("python map FILE; env -i python take_100", 2, [100]),
        ("python map FILE", 1, []),
        ("python take_300; python take_100", 2, []),
        ("exec env -i python take_100", 1, [100]),
    ],
)
def test_unguarded_children_are_seen_beside_guarded_ones(watched, script, programs, held):
    said = unguarded_mib(watched(script, programs))
    assert len(said) == len(held) and all(mib <= seen < mib + 30 for mib, seen in zip(held, said, strict=True)), said


def test_an_unguarded_child_is_told_why_and_what_to_do(watched):
    said = watched("env -i python take_100", 1)
    assert re.search(r"^sparkguard: python\S* has lost LD_PRELOAD from its environment: put sparkguard behind", said, re.MULTILINE)


@pytest.mark.parametrize("own", [0, 300])
def test_earlier_children_of_the_shell_are_not_taken_for_the_programs(guarding, own):
    """A shell that becomes the launcher hands on what its children used before: only what the program's own used counts."""
    command = f"{PYTHON} -S -c 'held = bytearray(300 << 20)'; exec {guarding.program} --library={guarding.library} --job=j "
    program = f"sh -c \"env -i {PYTHON} -S -c 'held = bytearray({own} << 20)'; true\""
    done = subprocess.run(["bash", "-c", command + program], env=guarding.environment(), capture_output=True, text=True, timeout=60)
    assert bool(unguarded_mib(done.stderr)) == (own > 0), done.stderr  # one that grows may be seen before and found after


def test_child_whose_library_was_replaced_meanwhile_is_not_accused(build, watched, tmp_path):
    copy = tmp_path / "libsparkguard.so"
    shutil.copy(build / "libsparkguard.so", copy)
    (tmp_path / "update").write_text(f"import os\nos.remove('{copy}')\n" + TAKE.format(100))
    assert unguarded_mib(watched("python update", 1, f"--library={copy}")) == []


def test_child_that_mapped_a_file_for_a_moment_is_not_accused(guarding, tmp_path):
    with open(tmp_path / "mapped", "wb") as file:
        file.truncate(200 << 20)
    code = "import mmap, sys; file = open(sys.argv[1]); sum(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)[::4096])"
    done = guarding.run("sh", "-c", f'{PYTHON} -S -c "$0" "$1"; true', code, tmp_path / "mapped")
    assert "ran unguarded, because" not in done.stderr.replace("either it mapped files, or it ran unguarded, because", "")


STUCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>
static void wait_at(const char *path)
{
    while (strncmp(path, "/proc/", 6) == 0 && strstr(path, "/maps") != NULL) {
        write(1, "stuck\\n", 6);
        sleep(1000); /* holds: until it is killed */
    }
}
int open(const char *path, int flags, ...)
{
    int (*real)(const char *, int, ...) = dlsym(RTLD_NEXT, "open");
    va_list rest;
    va_start(rest, flags);
    int mode = va_arg(rest, int);
    va_end(rest);
    wait_at(path);
    return real(path, flags, mode);
}
FILE *fopen(const char *path, const char *mode)
{
    FILE *(*real)(const char *, const char *) = dlsym(RTLD_NEXT, "fopen");
    wait_at(path);
    return real(path, mode);
}
__attribute__((alias("open"))) int open64(const char *path, int flags, ...);
__attribute__((alias("fopen"))) FILE *fopen64(const char *path, const char *mode);
"""


def test_descendant_that_is_stuck_in_the_kernel_holds_nothing_up(guarding, tmp_path):
    """Its mappings cannot be read until the kernel has done with it. The launcher goes on: signals, and the end."""
    stuck = tmp_path / "stuck.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", stuck], input=STUCK, text=True, check=True)
    (tmp_path / "hold").write_text("import time\ndata = bytearray(100 << 20)\ntime.sleep(600)  # holds: until it is killed")
    script = f"{PYTHON} -S {tmp_path}/hold & trap 'echo heard; exit 7' TERM; echo ready; while :; do sleep 0.05; done"
    env = guarding.environment(LD_PRELOAD=str(stuck))
    command = ["env", "-u", "LD_PRELOAD", "sh", "-c", script]
    with guarding.start(*command, env=env, stderr=-1, start_new_session=True) as process:
        try:
            assert {process.stdout.readline() for _ in range(2)} == {"ready\n", "stuck\n"}
            process.send_signal(signal.SIGTERM)
            assert process.stdout.readline() == "heard\n"
            assert process.wait(60) == 7
        finally:
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.parametrize(
    "make, fault",
    [
        (lambda path: path.write_text(""), "not a directory"),
        (lambda path: path.symlink_to("/"), "not a directory"),
        (lambda path: (path.mkdir(), path.chmod(0o777)), "it must belong to you or root and be closed to others"),
        pytest.param(lambda path: (path.mkdir(), os.chown(path, 4711, 4711)), "it must belong to you or root and be closed to others",
                     marks=pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")),
        (lambda path: None, None),
    ],
)
def test_summary_says_that_nothing_is_recorded_in_a_directory_that_cannot_be_used(guarding, tmp_path, make, fault):
    path = tmp_path / "place"
    make(path)
    done = guarding.run("true", SPARKGUARD_DIR=str(path))
    cause = f": {path}: {fault} (SPARKGUARD_DIR)" if fault else " (small programs leave none)"
    assert done.stderr.endswith(f"exit status 0; nothing on record{cause}\n")
    lost = guarding.run("true", SPARKGUARD_DIR=str(path / "missing" / "live"))
    assert "(small programs leave none)" not in lost.stderr


@pytest.mark.parametrize("command", [hold(300), ["sh", "-c", f"{PYTHON} -S -c 'data = bytearray(200 << 20)'; true"], ["true"]])
def test_guarded_children_are_not_taken_for_unguarded_ones(guarding, command):
    assert "unguarded" not in guarding.run(*command).stderr


def test_a_percentage_of_more_than_all_is_told_as_such(launcher):
    done = launcher.run("--limit=150%", "true")
    assert (done.returncode, done.stderr) == (2, "sparkguard: --limit=150%: more than 100%; for example 64G; the program is not started\n")
    done = launcher.run("true", SPARKGUARD_LIMIT="150%")
    assert (done.returncode, done.stderr) == (2, "sparkguard: SPARKGUARD_LIMIT=150%: more than 100%; for example 64G; the program is not started\n")


@pytest.mark.parametrize(
    "option, meant", [("--limt", "limit"), ("--limt=64G", "limit"), ("--reserv-e=1", "reserve"), ("--quite", "quiet")]
)
def test_a_misspelt_option_is_told_with_the_nearest(launcher, option, meant):
    done = launcher.run("--job=x", option, "true")
    assert done.returncode == 2
    assert done.stderr.splitlines()[1:] == [f"sparkguard: did you mean --{meant}?"]


def test_an_option_like_no_other_is_told_without_a_guess(launcher):
    done = launcher.run("--frobnicate", "true")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


@pytest.mark.parametrize("name, value, meant", [("floor", "3", "3G"), ("reserve", "12", "12G")])
def test_a_size_that_lacks_its_unit_is_told_once(launcher, name, value, meant):
    done = launcher.run("-q", f"--{name}={value}", "true")
    assert (done.returncode, done.stderr) == (0, f"sparkguard: --{name}={value} is {value} bytes; did you mean {meant}?\n")
    variable = f"SPARKGUARD_{name.upper()}"
    done = launcher.run("-q", "true", **{variable: value})
    assert (done.returncode, done.stderr) == (0, f"sparkguard: {variable}={value} is {value} bytes; did you mean {meant}?\n")


def test_a_reserve_of_all_memory_is_told_once(launcher):
    done = launcher.run("-q", "--reserve=999999G", "true")
    assert done.returncode == 0 and done.stderr.count("\n") == 1
    assert "--reserve=999999G keeps 976.6 TiB of the " in done.stderr and "every large request" in done.stderr


def test_nothing_is_told_of_variables_where_the_guard_is_disabled(launcher):
    bad = {"SPARKGUARD_LIMIT": "12Q", "SPARKGUARD_RESREVE": "1", "SPARKGUARD_RESERVE": "64", "SPARKGUARD_DISABLE": "1"}
    done = launcher.run("-q", "true", **bad)
    assert (done.returncode, done.stderr) == (0, "")
