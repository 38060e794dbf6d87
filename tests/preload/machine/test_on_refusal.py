"""sparkguard --on-refusal: a command that runs after a request of the job was refused, at most once a second."""

import os
import signal
from pathlib import Path

import pytest
from lib.machine import needs_root
from lib.units import MIB
from lib.waiting import wait_until

LIMIT = {"SPARKGUARD_LIMIT": "64M"}
TELL = 'echo "$SPARKGUARD_REFUSED_BYTES $SPARKGUARD_REFUSED_CALL $SPARKGUARD_REFUSED_REASON $SPARKGUARD_REFUSED_PID"'
ASK = """
import ctypes, sys
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
def ask(mib=200):
    return libc.malloc(mib << 20)
"""


@pytest.fixture
def run(place):
    """Runs a program with a command to its end, and that of the commands: they hold its standard error open."""

    def run(command, program, env=LIMIT):
        options = ["--quiet", "--job=told", f"--on-refusal={command} >&2"]
        words = [place.guard.build / "sparkguard", *options, "/usr/bin/python3", "-S", "-c", ASK + program]
        done = place.guard.run(words, env={**place.env, **env}, preload=())
        assert done.returncode == 0, done.stderr
        done.told = [line for line in done.stderr.splitlines() if not line.startswith(("sparkguard: ", "try: "))]
        return done

    return run


def refusals_of(place):
    (job,) = [job for job in place.guard.report("--all")["jobs"] if job["job"] == "told"]
    return [refusal for process in job["processes"] for refusal in process["refusals"]]


def test_the_command_is_told_what_was_refused(run):
    done = run(TELL, "import os; print(os.getpid()); assert not ask()")
    assert done.told == [f"{200 * MIB} malloc limit {done.stdout.strip()}"]


INSIDE = 'import subprocess, sys\nsys.exit(subprocess.run(["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable, "-S", "-c", {!r}]).returncode)'


@needs_root
def test_the_number_of_a_process_is_that_of_the_launchers_namespace(run, tmp_path):
    """The program is 1 in its own. It waits until the launcher has told of it."""
    wait = f"""
import os, time
ask()
while not os.path.exists("{tmp_path}/told"):
    time.sleep(0.01)  # poll: the launcher looks once a second
"""
    done = run(f"{{ grep -h NSpid /proc/$SPARKGUARD_REFUSED_PID/status; touch {tmp_path}/told; }}", INSIDE.format(ASK + wait))
    (line,) = done.told
    name, outer, inner = line.split()
    assert (name, inner) == ("NSpid:", "1") and int(outer) > 1, line


@needs_root
def test_the_number_of_a_process_that_has_ended_in_another_namespace_is_not_told(run):
    assert run('echo "<$SPARKGUARD_REFUSED_PID>"', INSIDE.format(ASK + "ask()")).told == ["<>"]


@needs_root
def test_the_end_says_of_a_number_that_it_is_of_another_namespace(place):
    """The largest process was 1 there, and others of the job were not. Here 1 is another one."""
    program = INSIDE.format(ASK + "held = bytearray(30 << 20); ask()")
    words = [place.guard.build / "sparkguard", "--job=told", "/usr/bin/python3", "-S", "-c", "held = bytearray(20 << 20)\n" + program]
    done = place.guard.run(words, env={**place.env, **LIMIT}, preload=())
    assert "processes, 1 of its PID namespace: " in done.stderr, done.stderr


def test_a_program_that_is_refused_nothing_runs_no_command(run):
    assert run(TELL, "assert ask(1)").told == []


def test_what_would_have_been_refused_runs_no_command(run):
    assert run(TELL, "assert ask()", {**LIMIT, "SPARKGUARD_MODE": "observe"}).told == []


def test_refusals_within_a_second_run_it_once(place, run):
    done = run("echo told", "for _ in range(20): ask()")
    times = [refusal["time"] for refusal in refusals_of(place)]
    seconds = {time[:19] for time in times}
    assert len(times) == 20 and done.told in ([["told"]] if len(seconds) == 1 else [["told"], ["told"] * 2]), (times, done.told)


def test_refusals_that_go_on_run_it_again_but_once_a_second(run, tmp_path):
    """The program goes on until it was told three times, whenever the launcher looks."""
    done = run(
        f"echo told | tee -a {tmp_path}/told",
        f"""
import time
begin = now = time.monotonic()
def lines():
    try:
        return open("{tmp_path}/told").read().count("told")
    except OSError:
        return 0
while lines() < 3 and now < begin + 60:
    ask()
    time.sleep(0.01)  # pace: of the refusals
    now = time.monotonic()
print(now - begin)
""",
    )
    assert 3 <= len(done.told) <= 2 + float(done.stdout)  # the first at once, one in each second, one at the end


def test_the_look_at_the_end_runs_it_no_sooner(run, tmp_path):
    """The program is refused again when it sees that the command has begun, and ends."""
    done = run(
        f"date +%s%N | tee {tmp_path}/told",
        f"""
import os, time
ask()
while not os.path.exists("{tmp_path}/told") or not os.path.getsize("{tmp_path}/told"):
    time.sleep(0.001)  # poll: the launcher looks once a second
ask()
""",
    )
    begun, *again = map(int, done.told)
    assert len(again) <= 1 and all(later - begun > 2e8 for later in again), done.told  # of the second, date itself may take much


def test_a_child_of_the_program_is_of_the_job_and_an_earlier_run_is_not(run):
    """The records of the first run lie there still, with a refusal of theirs."""
    assert len(run("echo told", "ask()").told) == 1
    assert run("echo told", "pass").told == []
    assert len(run("echo told", "import os; os.fork() and os.wait() or ask()").told) == 1


def test_a_command_that_hangs_holds_up_nobody(run, tmp_path):
    run(f"exec 2>/dev/null; echo $$ >{tmp_path}/pid; exec sleep 600", "ask()")
    wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip())
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


def test_the_command_runs_without_the_guard(run):
    assert run('echo "${SPARKGUARD_DISABLE}"', "ask()").told == ["1"]


def helpers():
    """Processes with the option: launchers and their helpers."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += [int(path.parent.name)] if b"--on-refusal=true of this test\0" in path.read_bytes() else []
        except OSError:  # it has ended
            pass
    return found


def test_the_helper_ends_with_the_launcher(place):
    command = [place.guard.build / "sparkguard", "--quiet", "--job=told", "--on-refusal=true of this test"]
    tenant = place.tenant([*command, place.admit_take, "malloc", "1M", "wait"], preload=())
    tenant.ready()
    wait_until(lambda: len(helpers()) == 2)
    os.kill(tenant.pid, signal.SIGKILL)
    tenant.process.wait()
    wait_until(lambda: helpers() == [])


def test_an_unguarded_program_is_said_to_be_refused_nothing(place):
    command = [place.guard.build / "sparkguard", "--quiet", "--disable", "--on-refusal=true", "true"]
    done = place.guard.run(command, env=place.env, preload=())
    assert (done.returncode, done.stderr) == (0, "sparkguard: --on-refusal has no effect: the program is not guarded\n")
