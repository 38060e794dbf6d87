"""sparkguard-report: what is kept of ended processes is shown beside what is live, and --since and --last choose from both."""

import os
import re
import time
from pathlib import Path

import pytest
from lib.units import GIB
from segment import START_NS
from records import compare, processes, trainer

SECOND = 10**9
BOOT = bytes.fromhex(Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", ""))
THIS_BOOT = BOOT[7::-1] + BOOT[:7:-1]  # two numbers
OTHER_BOOT = bytes(range(16))


@pytest.fixture
def past(make, report):
    """past(pid=..., ...) keeps a copy of a process, of another boot unless told otherwise."""
    report.history.mkdir()

    def put(saved_ns=START_NS + 100 * SECOND, boot=OTHER_BOOT, like=make, **fields):
        segment = like(**{"saved_time_ns": saved_ns, "boot_id": boot, **fields})
        segment.write(report.history)
        return segment

    return put


@pytest.fixture
def three_jobs(make, past, report):
    """One that was cut off by a reboot, one that ended 900 s after its start, and one in the live directory, kept as well."""
    past(pid=4711, state="running", like=lambda **fields: trainer(make, **fields))
    past(pid=4712, job="later", started_time_ns=START_NS + 200 * SECOND, ended_time_ns=START_NS + 900 * SECOND)
    past(pid=4713, job="last", state="running", boot=THIS_BOOT, started_time_ns=START_NS + 1000 * SECOND)
    make(pid=4713, job="last", started_time_ns=START_NS + 1000 * SECOND, ended_time_ns=START_NS + 1001 * SECOND).write(
        report.directory
    )
    return report


def shown(report, *arguments, status=0):
    return sorted(processes(report.json(*arguments, status=status)))


def overview(text):
    """Without the unguarded processes of the machine that the test runs on."""
    return re.sub(r"\n *PID UNGUARDED PROCESS(.|\n)*?\n\n", "\n", text)


def own_start_ticks():
    return int(Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19])


# ---- both -----------------------------------------------------------------------------------------------------------


def test_power_cut_leaves_a_killed_process_with_peak_and_refusals(three_jobs):
    process = processes(three_jobs.json("--all"))[4711]
    assert (process["state"], process["signal"], process["ended"]) == ("killed", None, None)
    assert process["peak_bytes"] == 12 * GIB and len(process["refusals"]) == 2


def test_process_of_another_boot_is_killed_though_its_number_and_start_are_taken_again(past, report):
    past(pid=os.getpid(), state="running", **{"slot.start_ticks": own_start_ticks()})
    assert processes(report.json("--all"))[os.getpid()]["state"] == "killed"


def test_process_that_goes_on_is_no_history(past, report):
    past(pid=os.getpid(), state="running", boot=THIS_BOOT, **{"slot.start_ticks": own_start_ticks()})
    assert shown(report, "--all") == []


def test_process_that_is_gone_since_this_boot_is_killed(past, report):
    past(pid=os.getpid(), state="running", boot=THIS_BOOT, **{"slot.start_ticks": own_start_ticks() - 1})
    assert processes(report.json("--all"))[os.getpid()]["state"] == "killed"


def test_live_record_wins_over_its_copy(three_jobs):
    data = three_jobs.json("--all")
    assert [len(job["processes"]) for job in data["jobs"]] == [1, 1, 1]
    assert processes(data)[4713]["state"] == "exited"


def test_copy_stands_in_for_a_live_record_that_cannot_be_believed(three_jobs):
    for file in three_jobs.directory.iterdir():
        file.write_bytes(b"torn")
    assert shown(three_jobs, "--all", status=3) == [4711, 4712, 4713]


def test_what_ran_last_is_shown_after_a_reboot(three_jobs):
    for file in three_jobs.directory.iterdir():
        file.unlink()
    three_jobs.directory.rmdir()
    assert shown(three_jobs) == [4713]
    assert shown(three_jobs, 4711) == [4711]


def test_other_directory_is_read_alone(three_jobs):
    assert shown(three_jobs, "--dir", three_jobs.directory, "--all") == [4713]
    assert shown(three_jobs, "--dir", three_jobs.history, "--all") == [4711, 4712, 4713]


def test_history_off_or_not_there_is_none(three_jobs):
    for history in ("off", str(three_jobs.history / "no")):
        done = three_jobs.run("--all", SPARKGUARD_HISTORY=history)
        assert (done.returncode, done.stderr) == (0, "") and "4711" not in done.stdout


def test_torn_and_hostile_copies_are_named_and_the_others_shown(three_jobs):
    history = three_jobs.history
    whole = next(history.glob("4711-*")).read_bytes()
    (history / "1-0000000000000001.segment").write_bytes(whole[:5000])
    (history / "2-0000000000000002.segment").write_bytes(b"")
    (history / "3-0000000000000003.segment").symlink_to("/dev/zero")
    (history / "4-0000000000000004.segment.new").write_bytes(b"unfinished")
    (history / "sweep-0123456789abcdef").write_bytes(b"not ours")
    done = three_jobs.run("--all")
    assert done.returncode == 3 and "4711" in done.stdout
    lines = done.stderr.splitlines()
    assert [line.split(": ")[1] for line in lines] == [f"{history}/{n}-{n:016x}.segment" for n in (1, 2, 3)]
    assert "cut short" in lines[0] and "too short" in lines[1] and "not a regular file" in lines[2]


def test_history_that_cannot_be_read_is_said(three_jobs):
    done = three_jobs.run("--all", SPARKGUARD_HISTORY="/dev/null")
    assert (done.returncode, done.stderr) == (3, "sparkguard-report: /dev/null: Not a directory\n")


# ---- which ----------------------------------------------------------------------------------------------------------


def test_last_is_golden(three_jobs):
    done = three_jobs.run("--last", SPARKGUARD_DIR=str(three_jobs.root / "none"))
    assert done.returncode == 0
    compare("history_last.txt", overview(done.stdout))


def test_since_is_golden(three_jobs):
    done = three_jobs.run("--since", f"@{START_NS // SECOND + 90}")
    assert done.returncode == 0
    compare("history_since.txt", overview(done.stdout))


def test_since_in_depth_is_golden(three_jobs):
    done = three_jobs.run("--since", f"@{START_NS // SECOND + 90}", 4711)
    assert done.returncode == 0
    compare("history_killed.txt", done.stdout)


# START_NS is 2026-11-20T13:06:40Z; what is known of the jobs ends 100, 900 and 1001 s later.
WHEN = {
    "@1795180100": [4711, 4712, 4713],
    "@1795180101": [4712, 4713],
    "2026-11-20T13:21:40Z": [4712, 4713],
    "2026-11-20T13:21:40.5Z": [4712, 4713],
    "2026-11-20T13:21:41Z": [4713],
    "2026-11-20T14:21:40+01:00": [4712, 4713],
    "2026-11-20t07:51:41-05:30": [4713],
    "2026-11-20T13:21:41": [4713],  # here, which is UTC
    "2026-11-20 13:21": [4712, 4713],
    "2026-11-20": [4711, 4712, 4713],
    "1969-12-31": [4711, 4712, 4713],
    "2000 weeks": [4711, 4712, 4713],
}


@pytest.mark.parametrize("when", WHEN)
def test_since_takes_a_time_in_many_spellings(three_jobs, when):
    assert shown(three_jobs, "--since", when) == WHEN[when]


def test_date_is_of_the_readers_time_zone(three_jobs):
    done = three_jobs.run("--since", "2026-11-20T14:21:41", TZ="CET-1")
    assert "job last" in done.stdout and "job later" not in done.stdout


@pytest.mark.parametrize(
    "when, is_shown", [("2h", True), ("1h 30min", True), ("3600s", False), ("60 minutes ago", False), ("yesterday", True)]
)
def test_since_takes_how_long_ago(past, report, when, is_shown):
    begun_ns = time.time_ns() - 5000 * SECOND
    past(started_time_ns=begun_ns, ended_time_ns=begun_ns + SECOND, saved_ns=begun_ns + SECOND)
    assert shown(report, "--since", when, status=0 if is_shown else 1) == ([4711] if is_shown else [])


NO_TIMES = ["", "5", "2x", "h", "soon", "2h later", "2026-13-01", "2026-11-20T", "2026-11-20T13:06X", "@", "@x", "@1 2"]


@pytest.mark.parametrize("when", NO_TIMES)
def test_what_is_no_time_is_bad_usage(report, when):
    done = report.run("--since", when)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"sparkguard-report: --since={when}: not a time; for example 2h, or ")


def test_since_and_the_other_choices_go_together(three_jobs):
    assert shown(three_jobs, "--since", "@1795180101", "--last") == [4713]
    assert shown(three_jobs, "--since", "@1795180101", "--job", "later") == [4712]
    assert shown(three_jobs, "--since", "@1795180101", 4711, status=1) == []


def test_nothing_since_then_says_where_it_looked(three_jobs):
    done = three_jobs.run("--since", "@1795190000")
    assert done.returncode == 1 and done.stdout == ""
    assert f"no job since then on record in {three_jobs.directory} or {three_jobs.history};" in done.stderr


@pytest.mark.usefixtures("in_memory")
def test_three_thousand_copies_are_read(past, report):
    content = past().data
    for number in range(2999):
        (report.history / f"1-{number:016x}.segment").write_bytes(content)
    (job,) = report.json("--all")["jobs"]
    assert len(job["processes"]) == 3000
