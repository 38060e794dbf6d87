"""sparkguard_on_pressure: programs that give memory back before the request of another one is refused."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from giving import AT_ONCE, DEADLINE, GIVER, GIVES, HOLD, ask, entry_flags, given, given_and_turns, giver
from lib.machine import GIB, LEFT, MIB, PLAYER, meminfo
from lib.target import IS_LONG
from lib.waiting import wait_until


def test_memory_is_given_back_before_a_refusal(place):
    server = giver(place, 4 * GIB)
    assert given(place, "malloc 6G") == ["ok"]
    assert server.go().ready() == [1]


def test_question_that_comes_before_the_thread_begins_is_answered(place):
    """The main thread keeps the processor of both for 0.4 s after the callback is known."""
    code = """
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
try:
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
except OSError:
    say("unable")
held += [malloc(GIB) for _ in range(4)]
assert register(give) == 0
say("ready")
end = time.monotonic() + 0.4
while time.monotonic() < end:
    pass
ready()
say(len(asked))
ready()
"""
    server = place.player(GIVER + code, env={"SPARKGUARD_JOB": "server"})
    if "unable" in server.ready():
        pytest.skip("needs the right to SCHED_FIFO")
    assert given(place, "malloc 6G") == ["ok"]
    server.ready()
    assert server.go().ready() == [1]


def test_what_fits_asks_nobody(place):
    server = giver(place, 4 * GIB)
    assert place.take("malloc 3G") == ["ok"]
    assert server.go().ready() == [0]


def test_it_is_said_how_much_is_missing(place):
    server = giver(place, 4 * GIB, rest="say(asked[0] >> 20)")
    assert given(place, "malloc 6G") == ["ok"]
    missing, count = server.go().ready()
    assert count == 1 and 2048 - 8 <= missing <= 2048 + 8


def test_many_races_are_won(place):
    races = 100 if IS_LONG else 25
    rest = f"for _ in range({races}):\n    held.append(malloc(4 * GIB))\n    ready()"
    server = giver(place, 4 * GIB, rest=rest)
    for _ in range(races):
        assert given(place, "malloc 6G") == ["ok"]
        server.go().ready()
    server.go()


def test_without_a_callback_the_answer_comes_at_once(place):
    giver(place, 4 * GIB, callback="None")
    answers, sleeps = ask(place, "malloc 6G")
    assert answers == ["ENOMEM"] and sleeps < AT_ONCE


def test_limit_asks_nobody(place):
    server = giver(place, 4 * GIB)
    answers, sleeps = ask(place, "malloc 3G", env={"SPARKGUARD_LIMIT": "2G"})
    assert answers == ["ENOMEM"] and sleeps < AT_ONCE
    assert server.go().ready() == [0]


def test_more_than_the_machine_has_asks_nobody(place):
    server = giver(place, 4 * GIB)
    answers, sleeps = ask(place, "malloc 20G")
    assert answers == ["ENOMEM"] and sleeps < AT_ONCE
    assert server.go().ready() == [0]


def test_largest_is_asked_first(place):
    large, small = giver(place, 4 * GIB), giver(place, GIB, job="notebook")
    answers, turns = given_and_turns(place, "malloc 5G")
    assert answers == ["ok"] and large.go().ready() == [1] and small.go().ready()[0] <= turns


def test_next_one_is_asked_if_the_first_gives_nothing(place):
    mute, small = giver(place, 4 * GIB, callback="lambda wanted, data: asked.append(wanted)"), giver(place, GIB, job="notebook")
    assert given(place, "malloc 3500M") == ["ok"]
    assert mute.go().ready() == [1] and small.go().ready() == [1]


def sharer(place, job, size, *options):
    """A giver of that job that the launcher has started with a claim."""
    code = f"held += [malloc({size // 4}) for _ in range(4)]\nassert register(give) == 0\nready()\nsay(len(asked))\nready()\n"
    prefix = [place.guard.build / "sparkguard", "--quiet", f"--job={job}", *options]
    tenant = place.tenant([*prefix, sys.executable, "-S", "-c", PLAYER + GIVER + code], preload=())
    assert tenant.ready() == ["ok"] * 4
    return tenant


def test_what_exceeds_the_claim_counts_for_its_share(place):
    """3 GiB beyond the claim with share 4 are less than 1 GiB with share 1."""
    server, notebook = sharer(place, "server", 4 * GIB, "--claim=1G", "--share=4"), giver(place, GIB, job="notebook")
    answers, turns = given_and_turns(place, "malloc 3500M")
    assert answers == ["ok"] and server.go().ready()[0] <= turns and notebook.go().ready() == [1]


def test_share_is_one_without_the_option(place):
    server, notebook = sharer(place, "server", 4 * GIB, "--claim=1G"), giver(place, GIB, job="notebook")
    answers, turns = given_and_turns(place, "malloc 3500M")
    assert answers == ["ok"] and server.go().ready() == [1] and notebook.go().ready()[0] <= turns


def test_job_within_its_claim_is_not_asked(place):
    """What it gave back would be its own again, so the request is refused without waiting for it."""
    server = sharer(place, "server", 3 * GIB, "--claim=4G")
    answers, sleeps = ask(place, "malloc 5G")
    assert answers == ["ENOMEM"] and sleeps < AT_ONCE
    assert server.go().ready() == [0]


def test_minimum_stays_when_the_rest_is_given_back(place):
    server = sharer(place, "server", 4 * GIB, "--claim=2G")
    assert given(place, "malloc 5500M") == ["ok"]
    place.assert_left(LEFT - 2 * GIB, above=16 * MIB)
    (job,) = [job for job in place.guard.report("--all")["jobs"] if job["job"] == "server"]
    assert (job["share"], job["claimed_bytes"]) == (1, 2 * GIB)
    assert server.go().ready() == [1]


def test_report_shows_the_share(place):
    sharer(place, "server", GIB, "--claim=2G", "--share=3")
    (job,) = [job for job in place.guard.report("--all")["jobs"] if job["job"] == "server"]
    assert job["share"] == 3
    assert "not used; share 3" in place.guard.report_command("--all").stdout


def test_next_one_is_asked_although_the_first_holds_less_by_then(place):
    """The first job has given all back, so the second one holds the most now."""
    first, second = giver(place, 3 * GIB, job="server"), giver(place, 2 * GIB, job="notebook")
    assert given(place, "malloc 6500M") == ["ok"]
    assert first.go().ready() == [1] and second.go().ready() == [1]


def test_next_one_is_asked_if_the_first_gives_a_part(place):
    part = "lambda wanted, data: (asked.append(wanted), [libc.free(held.pop()) for _ in range(3)])"
    first, second = giver(place, 3 * GIB, callback=part, job="server"), giver(place, 2 * GIB, job="notebook")
    assert given(place, "malloc 6G") == ["ok"]
    assert first.go().ready() == [1] and second.go().ready() == [1]


def test_each_process_of_a_job_is_asked_once(place):
    processes = [giver(place, GIB) for _ in range(4)]
    assert given(place, "malloc 7500M") == ["ok"]
    assert [process.go().ready() for process in processes] == [[1]] * 4


def test_process_that_holds_the_most_is_asked_first(place):
    """20 other processes of the job have a callback; one request asks 16 of them at most."""
    others = [giver(place, 64 * 1024) for _ in range(10)]
    server = giver(place, 4 * GIB)
    others += [giver(place, 64 * 1024) for _ in range(10)]
    answers, turns = given_and_turns(place, "malloc 6G")
    assert answers == ["ok"] and server.go().ready() == [1] and sum(other.go().ready()[0] for other in others) <= turns


def test_memory_that_processes_of_a_job_share_is_held_once(place):
    """Four processes map the same 2 GiB, which is less than the claim: nobody is asked."""
    code = """
import mmap
assert register(give) == 0
ready_pipe = os.pipe()
file = os.memfd_create("shared")
os.truncate(file, 2 * GIB)
for _ in range(3):
    if os.fork() == 0:
        mine = mmap.mmap(file, 2 * GIB)
        os.write(ready_pipe[1], b".")
        time.sleep(600)  # holds: the mapping, until the test kills it
mine = mmap.mmap(file, 2 * GIB)
for _ in range(3):
    os.read(ready_pipe[0], 1)
ready()
say(len(asked))
ready()
"""
    command = [place.guard.build / "sparkguard", "--quiet", "--job=server", "--claim=4G", sys.executable, "-S", "-c", PLAYER + GIVER + code]
    server = place.tenant(command, preload=())
    server.ready()
    (job,) = [job for job in place.guard.report("--all")["jobs"] if job["job"] == "server"]
    assert [process["live_bytes"] >= 2 * GIB for process in job["processes"]] == [True] * 4
    answers, sleeps = ask(place, "malloc 7G")
    assert answers == ["ENOMEM"] and sleeps < AT_ONCE
    assert server.go().ready() == [0]


BAD = {
    "hangs": "lambda wanted, data: time.sleep(600)",  # holds: until the test kills it
    "allocates": "lambda wanted, data: [malloc(GIB) for _ in range(8)]",
    "throws": "lambda wanted, data: 1 / 0",
    "forks": "lambda wanted, data: os.waitpid(os.fork() or os._exit(0), 0)",
    "gives_nothing": "lambda wanted, data: None",
}


@pytest.mark.parametrize("bad", BAD)
def test_bad_callbacks_harm_nobody(place, bad):
    giver(place, 4 * GIB, callback=BAD[bad])
    answers, sleeps = ask(place, "malloc 6G malloc 1G")
    assert answers == ["ENOMEM", "ok" if bad != "allocates" else answers[1]]
    assert sleeps < 2 * DEADLINE, "one deadline, and not one for each request"


def test_answer_is_waited_for_although_a_scan_would_end_earlier(place):
    """When 500 MiB are still missing, they may be promises that another program has touched. It is stopped: no scan tells."""
    idle = place.holder("malloc 1G", env={"SPARKGUARD_JOB": "idle"})
    place.machine.write("proc/meminfo", meminfo(16 * GIB, 4 * GIB))
    steps = [meminfo(16 * GIB, 6 * GIB - 500 * MIB), meminfo(16 * GIB, 10 * GIB)]
    path = place.machine.root / "proc/meminfo"
    give = f"""
def slowly(wanted, data):
    for text in {steps!r}:
        time.sleep(0.4)  # pace: memory that comes back in two steps
        open({str(path)!r} + ".new", "w").write(text)
        os.rename({str(path)!r} + ".new", {str(path)!r})
"""
    code = GIVER + give + "held.append(malloc(64 * MIB))\nassert register(slowly) == 0\nready()\n"
    place.player(code, env={"SPARKGUARD_JOB": "server"}).ready()
    os.kill(idle.pid, signal.SIGSTOP)
    assert given(place, "malloc 3G") == ["ok"]
    os.kill(idle.pid, signal.SIGCONT)


def test_sparkguard_wait_is_the_deadline(place):
    giver(place, 4 * GIB, callback=BAD["hangs"])
    begin = time.monotonic()
    answers, sleeps = ask(place, "malloc 6G", env={"SPARKGUARD_WAIT": "0.3"})
    assert answers == ["ENOMEM"] and time.monotonic() - begin >= 0.3 and sleeps < AT_ONCE


def test_hanging_one_does_not_keep_others_from_giving(place):
    giver(place, 3 * GIB, callback=BAD["hangs"])
    giver(place, 2 * GIB, job="notebook")
    begin = time.monotonic()
    assert given(place, "malloc 4G") == ["ok"]
    assert time.monotonic() - begin >= 0.5, "a process has so long to answer before the next one is asked, too"


def stop(place, server):
    """Until others see by its watchdog that it is stopped, and do not wait for its scan."""
    entry = place.ledger.of(server.pid)
    os.kill(server.pid, signal.SIGSTOP)
    wait_until(lambda: time.monotonic_ns() - place.ledger.get("watched_ns", entry) > 1_100_000_000)


def test_stopped_one_is_waited_for_once_and_asked_when_it_goes_on(place):
    server = giver(place, 4 * GIB)
    stop(place, server)
    begin = time.monotonic()
    assert ask(place, "malloc 6G")[0] == ["ENOMEM"] and time.monotonic() - begin >= 2
    answers, sleeps = ask(place, "malloc 6G malloc 6G malloc 6G")
    assert answers == ["ENOMEM"] * 3 and sleeps < AT_ONCE
    entry = place.ledger.of(server.pid)
    os.kill(server.pid, signal.SIGCONT)
    wait_until(lambda: place.ledger.get("pressure_answered", entry) == place.ledger.get("pressure_asked", entry))
    assert server.go().ready() == [1]
    place.assert_left(LEFT)


def test_one_that_has_answered_is_waited_for_again(place):
    server = giver(place, 4 * GIB, rest="held.append(malloc(4 * GIB))\nready()")
    stop(place, server)
    ask(place, "malloc 6G")
    entry = place.ledger.of(server.pid)
    os.kill(server.pid, signal.SIGCONT)
    wait_until(lambda: place.ledger.get("pressure_answered", entry) == place.ledger.get("pressure_asked", entry))
    assert server.go().ready() == ["ok"]
    assert given(place, "malloc 6G") == ["ok"]


def test_callback_can_be_taken_back(place):
    server = giver(place, 4 * GIB, rest="say(register(None))\nready()")
    assert server.go().ready() == [0]
    answers, sleeps = ask(place, "malloc 6G")
    assert answers == ["ENOMEM"] and sleeps < AT_ONCE


def test_child_has_no_callback(place):
    """It holds what its parent freed, and is not asked for that."""
    rest = "child = os.fork()\nif child == 0:\n    os.read(0, 1)\n    os._exit(len(asked))\nready()\nsay(os.waitpid(child, 0)[1])"
    server = giver(place, 4 * GIB, rest=rest)
    server.go().ready()
    place.take("malloc 6G")
    server.process.stdin.write("\n\n")
    server.process.stdin.flush()
    assert server.ready() == [0, 1]


def test_program_ends_although_its_callback_hangs(place):
    server = giver(place, 4 * GIB, callback=BAD["hangs"])
    place.take("malloc 6G", env={"SPARKGUARD_WAIT": "0.3"})
    server.go().ready()
    server.end()
    place.assert_left(LEFT, above=MIB)


def test_own_job_is_not_asked(place):
    server = giver(place, 4 * GIB, job="job")
    answers, sleeps = ask(place, "malloc 6G")
    assert answers == ["ENOMEM"] and sleeps < AT_ONCE
    assert server.go().ready() == [0]


# ---- a command ----


def commanded(place, command, program, env=None):
    """A program under the launcher with --on-pressure, which ends on SIGTERM."""
    prefix = [place.guard.build / "sparkguard", "--job=server", f"--on-pressure={command}"]
    tenant = place.tenant([*prefix, "/usr/bin/python3", "-c", program], env, preload=())
    assert tenant.ready() == []
    return tenant


def test_command_is_run_and_told_how_much(place, tmp_path):
    said, pid = tmp_path / "said", tmp_path / "pid"
    commanded(place, f"echo $SPARKGUARD_WANTED_BYTES >>{said}; kill -USR1 $(cat {pid})", HOLD, {"PID_FILE": pid})
    wait_until(lambda: any(flags & GIVES for flags in entry_flags(place)))
    assert given(place, "malloc 6G") == ["ok"]
    (wanted,) = said.read_text().split()
    assert 2 * GIB - 8 * MIB <= int(wanted) <= 2 * GIB + 8 * MIB


def test_command_that_hangs_harms_nobody(place, tmp_path):
    server = commanded(place, f"echo >{tmp_path}/began; sleep 600", HOLD)
    wait_until(lambda: any(flags & GIVES for flags in entry_flags(place)))
    answers, sleeps = ask(place, "malloc 6G", env={"SPARKGUARD_WAIT": "0.3"})
    assert answers == ["ENOMEM"] and sleeps < AT_ONCE
    assert (tmp_path / "began").exists()
    os.kill(server.pid, signal.SIGTERM)
    assert server.process.wait(60) == -signal.SIGTERM, "long before the command ends"


def test_helper_is_no_process_of_the_job(place, tmp_path):
    server = commanded(place, "true", HOLD)
    wait_until(lambda: any(flags & GIVES for flags in entry_flags(place)))
    (job,) = [job for job in place.guard.report()["jobs"] if job["job"] == "server"]
    assert len(job["processes"]) == 1
    os.kill(server.pid, signal.SIGKILL)
    server.process.wait()
    wait_until(lambda: not any(flags & GIVES for flags in entry_flags(place)))


# ---- the Python package ----

PACKAGE = """
sys.path.insert(0, {tools!r})
import sparkguard
held = [bytearray(64 << 20) for _ in range(4)]
libc.free.argtypes = [ctypes.c_void_p]
more = [malloc(GIB) for _ in range(4)]
def give(wanted_bytes):
    assert wanted_bytes > 0
    while more:
        libc.free(more.pop())
    {end}
assert sparkguard.on_pressure(give)
ready()
"""


@pytest.mark.parametrize("end", ["pass", "raise ValueError('no more')", "sparkguard.empty_torch_cache()"])
def test_python_gives_memory_back(place, end):
    tools = str(Path(__file__).resolve().parents[3] / "tools/python")
    server = place.player(PACKAGE.format(tools=tools, end=end), env={"SPARKGUARD_JOB": "server"})
    server.ready()
    assert given(place, "malloc 6G") == ["ok"]
    _, stderr = server.process.communicate("\n", timeout=60)
    assert ("ValueError: no more" in stderr) == ("raise" in end) and server.process.returncode == 0


@pytest.mark.parametrize(("seconds", "last"), [(0.3, ["begins", "ends"]), (600, ["begins"])])
def test_end_of_python_waits_for_the_function_but_not_for_ever(place, seconds, last):
    tools = str(Path(__file__).resolve().parents[3] / "tools/python")
    text = f"""
sys.path.insert(0, {tools!r})
import sparkguard
more = [malloc(GIB) for _ in range(4)]
def give(wanted_bytes):
    say("begins")
    os.write(begun[1], b".")
    time.sleep({seconds})  # pace: the function takes so long
    say("ends")
begun = os.pipe()
assert sparkguard.on_pressure(give)
if os.fork() == 0:
    os._exit(0)
ready()
os.read(begun[0], 1)
if os.fork() == 0:
    sys.exit(0)  # at once: the function runs in the parent only
os.wait()
"""
    server = place.player(text, env={"SPARKGUARD_JOB": "server"})
    server.ready()
    server.process.stdin.write("\n")
    server.process.stdin.flush()
    assert place.take("malloc 6G", env={"SPARKGUARD_WAIT": "0.3"}) == ["ENOMEM"]
    stdout, stderr = server.process.communicate(timeout=60)
    assert (server.process.returncode, stdout.splitlines()) == (0, last), stderr


def test_command_that_fails_is_told_once(place):
    command = [place.guard.build / "sparkguard", "--quiet", "--job=speaker", "--on-pressure=exit 3"]
    server = place.tenant([*command, place.admit_take, "malloc", "4G", "wait"], preload=())
    server.ready()
    wait_until(lambda: any(flags & GIVES for flags in entry_flags(place)))
    for _ in range(2):
        assert place.take("malloc 6G") == ["ENOMEM"]
    _, stderr = server.process.communicate("\n", timeout=60)
    assert stderr == "sparkguard: the command of --on-pressure ended with exit status 3\n"


def test_python_takes_nothing_but_functions(place):
    tools = str(Path(__file__).resolve().parents[3] / "tools/python")
    code = f"sys.path.insert(0, {tools!r})\nimport sparkguard\ntry:\n    sparkguard.on_pressure(5)\nexcept TypeError as error:\n    say(error)\nready()\n"
    assert place.player(code).ready() == ["on_pressure() takes a function, not int"]


def test_without_the_guard_it_is_said_that_nobody_can_be_asked(place):
    done = place.guard.run([place.guard.build / "sparkguard", "--disable", "--on-pressure=true", "true"], env=place.env, preload=())
    assert "sparkguard: --on-pressure has no effect: the program is not guarded\n" in done.stderr
    assert done.returncode == 0


def test_launcher_ends_although_the_program_ends_before_its_helper_begins(place):
    """On one processor the program is often faster."""
    env = place.guard.environment(place.env, preload=())
    command = ["taskset", "-c", str(min(os.sched_getaffinity(0))), place.guard.build / "sparkguard", "--quiet", "--on-pressure=true", "true"]
    for _ in range(40):
        assert subprocess.run(command, env=env, timeout=60, check=False).returncode == 0
