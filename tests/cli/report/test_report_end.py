"""sparkguard-report: a process that its own watchdog ended says so, in every view; one that lived on does not."""

import re

import pytest
from lib.units import GIB
from segment import START_NS

SECOND = 10**9
LOW = "usable 1.2 GiB, floor 2.5 GiB, holding 98.0 GiB"


def shown(report, pid=4711):
    """Of one process: its JSON, the notes below the table of the overview, the second line of its own view."""
    processes = {p["pid"]: p for job in report.json("--all")["jobs"] for p in job["processes"]}
    notes = re.findall(r"^  (\d.*)$", report.run("--all").stdout, re.MULTILINE)
    return processes[pid], notes, report.run(pid).stdout.splitlines()[1]


@pytest.mark.parametrize("state, code", [("running", -1), ("exited", 137), ("killed", -1)])
def test_ended_by_its_own_watchdog(make, report, state, code):
    """Killed; in a container's first process, whom no signal reaches, the watchdog exits, and its parent sees that."""
    segment = make(state=state, exit_code=code).event("watchdog: sent SIGTERM").event(f"watchdog: ended: {LOW}")
    segment.write(report.directory)
    process, notes, line = shown(report)
    assert (process["state"], process["ended_by"]) == ("killed", "watchdog")
    assert process["exit_code"] == (code if code >= 0 else None)
    assert process["signal"] == 9, "exit_group(137) stands for SIGKILL"
    assert process["ended"] == process["last_seen"] is not None
    assert notes == [f"4711 ended by its own watchdog at 13:07:42: {LOW}"]
    assert line.startswith("  killed: ended by its own watchdog, started ")
    assert "ended by its own watchdog" not in report.run("--all").stdout.split("STATE")[0]


@pytest.mark.parametrize("name, number", [("SIGTERM", 15), ("SIGKILL", 9)])
@pytest.mark.parametrize("is_signal_known", [True, False])
def test_ended_by_a_signal_that_its_watchdog_sent(make, report, name, number, is_signal_known):
    segment = make(state="killed", signal=number if is_signal_known else -1).event(f"watchdog: sent {name}")
    segment.write(report.directory)
    process, notes, line = shown(report)
    assert (process["state"], process["ended_by"]) == ("killed", "watchdog")
    assert process["signal"] == number, "the watchdog's event names it where nobody else noted it"
    assert (process["ended"] is None) == (name == "SIGTERM"), "SIGTERM may be handled: its end has no witness"
    end = f"killed by {name} from its own watchdog"
    assert notes == [f"4711 {end} at 13:07:42"]
    assert line.startswith(f"  {end}, started ")


def test_another_signal_than_its_watchdog_sent_is_told_apart(make, report):
    make(state="killed", signal=9).event("watchdog: sent SIGTERM").write(report.directory)
    assert shown(report)[2].startswith("  killed by SIGKILL after its own watchdog sent SIGTERM, started ")


@pytest.mark.parametrize("number, words", [(-1, "killed (signal not recorded)"), (9, "killed by SIGKILL"), (11, "killed by SIGSEGV")])
def test_one_that_something_else_killed(make, report, number, words):
    """What the kernel's out-of-memory killer sends is SIGKILL, too: only the kernel's log tells."""
    make(state="killed", signal=number).write(report.directory)
    process, notes, line = shown(report)
    assert line.startswith(f"  {words}, started ") and notes == [] and process["ended_by"] is None
    assert ("journalctl -k" in report.run(4711).stdout) == (number != 11)


def test_one_that_saves_and_exits_when_told_to(make, report):
    make(exit_code=3).event("watchdog: sent SIGTERM", time_ns=START_NS + 60 * SECOND).write(report.directory)
    process, notes, line = shown(report)
    assert (process["state"], process["exit_code"], process["ended_by"]) == ("exited", 3, "watchdog")
    assert notes == ["4711 exited with status 3 after its own watchdog sent SIGTERM at 13:07:40"]


@pytest.mark.parametrize(
    "events, lived",
    [
        (["watchdog: sent SIGTERM"], 61),
        (["watchdog: sent SIGTERM", "watchdog: above the reserve again"], 1),
        (["watchdog: warned"], 1),
        (["watchdog: would have sent SIGTERM"], 1),
        (["the watchdog: ended"], 1),
        (["watchdog: end"], 1),
    ],
)
def test_one_that_lived_on_ended_otherwise(make, report, events, lived):
    segment = make(ended_time_ns=START_NS + (62 + lived) * SECOND)
    for what in events:
        segment.event(what)
    segment.write(report.directory)
    process, notes, line = shown(report)
    assert (process["state"], process["ended_by"], notes) == ("exited", None, [])
    assert line.startswith("  exited with status 0, started ")


def test_one_that_was_seen_alive_later_ended_otherwise(make, report):
    """Without an end on record: its last look at the machine counts."""
    segment = make(state="killed").event("watchdog: sent SIGTERM")
    segment.machine(time_ns=START_NS + 123 * SECOND).write(report.directory)
    assert shown(report)[0]["ended_by"] is None
    segment.machine(time_ns=START_NS + 121 * SECOND).write(report.directory)
    assert shown(report)[0]["ended_by"] == "watchdog"


def test_a_running_process_has_not_ended(make, report):
    with make(state="running").event("watchdog: ended").write_live(report.directory):
        process, notes, line = shown(report)
    assert (process["state"], process["ended_by"], notes) == ("running", None, [])


def test_one_that_became_another_program_was_not_ended(make, report):
    make(state="replaced").event("watchdog: ended").write(report.directory)
    assert shown(report)[0]["state"] == "replaced"


def test_many_are_folded(make, report):
    for pid in range(1, 13):
        make(pid=pid, state="killed").event("watchdog: ended").write(report.directory)
    text = report.run().stdout
    assert len(re.findall(r"^  \d+ ended by its own watchdog at 13:07:42$", text, re.MULTILINE)) == 8
    assert "\n  and 4 more by their own\n" in text


def test_it_is_the_process_to_look_at(make, report):
    make(pid=1, state="killed").event("watchdog: ended").write(report.directory)
    make(pid=2).domain("heap", refused=5).peak(heap=9 * GIB).write(report.directory)
    assert "one process in depth: sparkguard-report 1\n" in report.run().stdout


def test_events_are_shown_newest_last(make, report):
    segment = make()
    for number in range(40):
        segment.event(f"event {number}", time_ns=START_NS + number * SECOND)
    segment.write(report.directory)
    rows = re.findall(r"^(\d\d:\d\d:\d\d) event (\d+)$", report.run(4711).stdout, re.MULTILINE)
    assert [int(number) for _, number in rows] == list(range(8, 40))
    assert rows[-1][0] == "13:07:19"


@pytest.mark.parametrize("time_ns", [-(2**63), -1, 0, 2**63 - 1])
def test_impossible_times_decide_nothing(make, report, time_ns):
    segment = make(state="killed", started_time_ns=time_ns, ended_time_ns=2**63 - 1 - max(time_ns, 0))
    segment.event("watchdog: sent SIGKILL", time_ns=time_ns).event("watchdog: ended\x1b[2J", time_ns=time_ns)
    segment.write(report.directory)
    process, notes, line = shown(report)
    assert process["state"] == "killed" and len(notes) == 1 and "\x1b" not in notes[0] + line


@pytest.mark.parametrize("state", ["running", "exited", "replaced", "killed"])
def test_every_process_was_last_seen_at_some_time(make, report, state):
    """The machine's last snapshot is the latest evidence of life; a witnessed end is more exact."""
    segment = make(state=state).machine(time_ns=START_NS + 200 * SECOND)
    segment.write(report.directory)
    process = shown(report)[0]
    assert process["last_seen"] is not None
    if state in ("exited", "replaced"):
        assert process["last_seen"] == process["ended"]
    if state == "killed":
        assert process["ended"] is None and process["last_seen"].startswith("2026-11-20T13:10:00")
        assert "last seen" in report.run(4711).stdout.splitlines()[1]
        heading, row = [line.split(",") for line in report.run("--csv", "--all").stdout.splitlines()]
        assert row[heading.index("last_seen")] == process["last_seen"]


@pytest.mark.parametrize("state", ["running", "killed"])
def test_a_quiet_process_was_last_seen_when_its_helper_last_ran(make, report, state):
    segment = make(state=state, seen_time_ns=START_NS + 7200 * SECOND).machine(time_ns=START_NS + 200 * SECOND)
    segment.write(report.directory)
    assert shown(report)[0]["last_seen"].startswith("2026-11-20T15:06:40")


def test_a_record_without_any_time_was_last_seen_when_its_file_was_written(make, report):
    make(state="killed", started_time_ns=0).write(report.directory)
    assert shown(report)[0]["last_seen"] is not None
