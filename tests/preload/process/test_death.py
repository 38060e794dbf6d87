"""However a process ends, its record tells what it held, what the peak was made of and how it ended."""

import random
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest
from lib.target import IS_LONG, PYTHON

MIB = 1 << 20
SLACK = MIB + 16 * 1024  # what one thread's credit may add to a peak, and the libc's own blocks


@pytest.fixture
def program(build):
    return lambda name: build / "tests/programs" / name


def check_composition(process):
    """The figures fit each other: no part of the record is from another moment than the rest."""
    assert sum(process["peak_domains"].values()) == process["peak_bytes"]
    assert sum(d["live_bytes"] for d in process["domains"].values()) == process["live_bytes"]
    assert process["live_bytes"] <= process["peak_bytes"]
    assert len(process["refusals"]) == min(64, process["refused_count"])


# how: state, exit code, signal. The raw system calls pass nobody who could note a state.
DEATHS = {
    "return": ("exited", 3, None),
    "exit": ("exited", 3, None),
    "_exit": ("exited", 3, None),
    "_Exit": ("exited", 3, None),
    "quick_exit": ("exited", 3, None),
    "sigkill": ("killed", None, signal.SIGKILL),
    "sigterm": ("killed", None, signal.SIGTERM),
    "abort": ("killed", None, signal.SIGABRT),
    "segfault": ("killed", None, signal.SIGSEGV),
    "exit_group": ("killed", None, None),
    "raw_exec": ("killed", None, None),
}


@pytest.mark.parametrize("how", DEATHS)
def test_death_with_512_mib_live_leaves_peak_and_state(guard, program, how):
    state, code, number = DEATHS[how]
    done = guard.run([program("death_by"), how], env={"SPARKGUARD_LIMIT": "1G"})
    assert done.returncode == (-number if number else 0 if how == "raw_exec" else 3)
    truth, heap, mapped = map(int, done.stdout.split())
    process = done.process()
    assert process["state"] == state
    assert process["exit_code"] == code
    assert (process["ended"] is not None) == (state == "exited")
    check_composition(process)
    assert truth <= process["peak_bytes"] <= truth + SLACK
    assert mapped == process["peak_domains"]["mapped"] == process["domains"]["mapped"]["live_bytes"]
    assert truth - mapped <= process["peak_domains"]["heap"] <= truth - mapped + SLACK
    assert heap <= process["domains"]["heap"]["live_bytes"] <= heap + 16 * 1024  # and the libc's own
    assert process["peak_domains"]["device"] == 0
    assert process["refused_count"] == 1
    refusal = process["refusals"][0]
    assert (refusal["call"], refusal["size_bytes"], refusal["reason"]) == ("malloc", 4096 * MIB, "limit")
    job = next(j for j in guard.report()["jobs"])
    assert job["live_bytes"] == 0 and job["peak_bytes"] == process["peak_bytes"]


@pytest.mark.parametrize("how, number", [("sigkill", 9), ("segfault", 11)])
def test_launcher_adds_the_signal_it_saw(guard, program, build, how, number):
    done = guard.run([build / "sparkguard", program("death_by"), how], env={"LD_PRELOAD": None})
    process = guard.processes()[0]
    assert (process["state"], process["signal"]) == ("killed", number)
    assert done.returncode in (-number, 128 + number)


def test_what_exit_handlers_take_counts_and_the_status_is_cut_to_a_byte(guard, program):
    done = guard.run([program("death_at_exit")])
    assert done.returncode == 7
    process = done.process()
    assert (process["state"], process["exit_code"]) == ("exited", 7)
    assert 64 * MIB <= process["peak_bytes"] <= 64 * MIB + SLACK
    assert process["live_bytes"] >= 64 * MIB


def test_process_that_ends_with_its_last_thread_has_exited(guard, program):
    done = guard.run([program("death_last_thread")])
    process = done.process()
    assert (done.returncode, process["state"], process["exit_code"]) == (0, "exited", 0)
    assert 64 * MIB <= process["peak_bytes"] <= 64 * MIB + 2 * SLACK


EXEC_FAMILY = ["execl", "execlp", "execle", "execv", "execvp", "execvpe", "execve", "fexecve", "execveat"]


@pytest.mark.parametrize("how", EXEC_FAMILY)
def test_exec_passes_its_arguments_and_leaves_the_old_image_replaced(guard, program, how):
    done = guard.run([program("death_exec"), how, "/bin/echo"])
    assert (done.returncode, done.stdout, done.stderr) == (0, "one two\n", "")
    process = done.process()  # echo itself leaves nothing
    assert process["state"] == "replaced" and process["exit_code"] is None and process["ended"]
    assert 32 * MIB <= process["live_bytes"] <= process["peak_bytes"] <= 32 * MIB + SLACK


def test_exec_passes_as_many_arguments_as_there_are(guard, program):
    done = guard.run([program("death_exec"), "many", "/bin/echo"])
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["one", "two"] and len(done.stdout) == len("one two") + 4096 + 1


def test_new_image_has_an_entry_of_its_own_with_the_same_pid_and_start(guard, program):
    done = guard.run([program("death_exec"), "twice"])
    assert done.returncode == 5
    old, new = guard.processes(done.pid)
    assert old["start_ticks"] == new["start_ticks"] != 0
    assert (old["state"], new["state"], new["exit_code"]) == ("replaced", "exited", 5)
    assert 32 * MIB <= old["peak_bytes"] <= 32 * MIB + SLACK
    assert 48 * MIB <= new["peak_bytes"] <= 48 * MIB + SLACK and new["inherited_bytes"] == 0
    assert new["command"].endswith("again")
    assert len(guard.report()["jobs"]) == 1


def test_exec_of_an_unguarded_image_leaves_the_old_one_replaced(guard, program):
    done = guard.run([program("death_exec"), "unguarded"])
    assert (done.stdout, done.process()["state"]) == ("one two\n", "replaced")


def test_failed_exec_leaves_the_process_running(guard, program):
    process = guard.popen([program("death_exec"), "fails"], stdin=subprocess.PIPE)
    assert "No such file" in process.stderr.readline()
    entry = guard.process(process.pid)
    assert (entry["state"], entry["ended"], entry["exit_code"]) == ("running", None, None)
    process.communicate("")
    entry = guard.process(process.pid)
    assert (entry["state"], entry["exit_code"]) == ("exited", 6)


def check_readable_after_sigkill(guard, program, seed, microseconds):
    done = guard.run([program("death_stress"), microseconds, seed])
    assert done.returncode == -signal.SIGKILL, done.stderr
    shown = guard.report_command("--all")
    assert shown.returncode in (0, 1), shown.stderr
    entries = guard.processes()
    for process in entries:
        assert process["state"] == "killed"
        check_composition(process)
        assert process["peak_bytes"] <= 64 * MIB
        for name, domain in process["domains"].items():
            assert domain["live_bytes"] <= domain["peak_bytes"] <= process["peak_bytes"], name
    return len(entries)


def test_report_is_whole_after_sigkill_at_any_instant_under_stress(guard, tmp_path, program):
    draw = random.Random(4711)
    instants = [draw.randrange(1, 1500) if n % 2 else draw.randrange(1, 12000) for n in range(200 if IS_LONG else 30)]

    def one(number):
        scratch = tmp_path / str(number)
        scratch.mkdir()
        return check_readable_after_sigkill(type(guard)(guard.build, scratch), program, number, instants[number])

    with ThreadPoolExecutor(4) as pool:
        recorded = sum(pool.map(one, range(len(instants))))
    assert recorded >= len(instants) * 3 // 4  # the rest died before they had a record


# ---- small programs --------------------------------------------------------------------------------------------------

SMALL = {
    "ls": ["ls", "-l", "/"],
    "true": ["true"],
    "subshells": ["bash", "-c", "for i in $(seq 20); do (echo $i | cat >/dev/null); done; x=$(ls | sort); exit 0"],
    "exec": ["bash", "-c", "exec bash -c 'exec true'"],
    "python": [PYTHON, "-S", "-c", "print(1)"],
    "_exit": [PYTHON, "-S", "-c", "import os; x = bytearray(4 << 20); os._exit(3)"],
}


@pytest.mark.parametrize("name", SMALL)
def test_small_program_leaves_no_trace(guard, name):
    guard.run(SMALL[name])
    left = [f.name for f in guard.directory.iterdir()] if guard.directory.exists() else []
    assert left in ([], ["machine.ledger"])  # which belongs to nobody, and stays for the next


@pytest.mark.parametrize("mebibytes, entries", [(14, 0), (17, 1)])
def test_16_mib_decide_what_is_kept_of_a_program_that_ended_by_itself(guard, program, mebibytes, entries):
    done = guard.run([program("dir_hold"), mebibytes])
    assert done.returncode == 0
    assert len(guard.processes()) == entries


def test_small_program_that_was_killed_or_refused_is_kept(guard, program):
    code = "import os; x = bytearray(4 << 20); os.kill(os.getpid(), 9)"
    killed = guard.run([PYTHON, "-S", "-c", code])
    assert killed.process()["state"] == "killed"
    refused = guard.run([program("host_refused_loop"), 1])
    assert refused.process()["refused_count"] == 1
