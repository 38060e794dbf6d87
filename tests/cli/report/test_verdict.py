"""The sentence that says how a run of a job went: in the report, in JSON. The golden file holds one line per case."""

import re
import signal
import time

import pytest
from lib.units import GIB, MIB
from records import compare
from segment import GUARDING, OBSERVE, SHARING, START_NS

SECOND = 10**9


def roomy(segment, usable=50 * GIB, reserve=10 * GIB):
    return segment.machine(time_ns=START_NS, usable_bytes=usable, reserve_bytes=reserve, floor_bytes=reserve // 4)


def holding(make, held, **fields):
    return roomy(make(**fields).domain("device", granted=held, peak=held).peak(device=held))


def refused(segment, count, reason, size=2 * GIB, left=GIB):
    segment.domain("heap", refused=count, refused_bytes=count * size)
    for i in range(min(count, 64)):
        segment.refusal("malloc", "heap", size - i * MIB, reason, usable=left, time_ns=START_NS + (30 + i) * SECOND)
    return segment


def killed(segment, number=-1):
    return segment.set("slot.state", 4).set("signal", number).set("exit_code", -1).set("ended_time_ns", START_NS + 90 * SECOND)


def ran(make):
    return [holding(make, 40 * GIB)]


def ran_in_its_limit(make):
    return [holding(make, 10 * GIB, **{"slot.limit_bytes": 12 * GIB})]


def ran_with_little_room_for_a_moment(make, report):
    segment = holding(make, 40 * GIB)
    samples = [(SECOND, 70 * GIB, 10 * GIB, GIB, {"device": GIB}), (2 * SECOND, 15 * GIB, 10 * GIB, GIB, {"device": 40 * GIB})]
    segment.write_timeline(report.directory, samples)
    return [segment]


def ran_before_any_figure(make):
    return [make().domain("heap", granted=3 * MIB, peak=20 * MIB).peak(heap=20 * MIB)]


def failed(make):
    return [holding(make, 40 * GIB, exit_code=3)]


def refused_for_its_limit(make):
    return [refused(holding(make, 11 * GIB, **{"slot.limit_bytes": 12 * GIB}), 3, "limit", size=3 * GIB)]


def refused_for_a_limit_and_failed(make):
    return [refused(holding(make, 11 * GIB, exit_code=1, **{"slot.limit_bytes": 12 * GIB}), 1, "limit", size=3 * GIB - 1)]


def refused_for_the_reserve(make):
    segment = refused(holding(make, 60 * GIB), 2, "reserve", size=8 * GIB, left=15 * GIB)
    return [segment.put("refusal", 0, "sg_refusal", "kept_mib", 9 << 10)]


def refused_by_a_card(make):
    segment = refused(holding(make, 20 * GIB), 1, "device", size=2 * GIB, left=GIB)
    return [segment.put("refusal", 0, "sg_refusal", "kept_mib", 512)]


def refused_by_a_card_long_ago(make):
    return [refused(holding(make, 20 * GIB), 1, "device", size=2 * GIB, left=GIB)]


def refused_for_several_reasons(make):
    segment = refused(holding(make, 11 * GIB, **{"slot.limit_bytes": 12 * GIB}), 36838, "limit")
    return [segment.refusal("cudaMalloc", "device", 30 * GIB, "reserve", usable=35 * GIB, time_ns=START_NS + 200 * SECOND)]


def refused_small_requests_only(make):
    return [holding(make, 60 * GIB).domain("heap", refused=7, refused_bytes=700)]


def would_have_been_refused(make):
    segment = refused(holding(make, 11 * GIB, **{"slot.limit_bytes": 12 * GIB}), 1, "limit")
    return [segment.set("slot.flags", GUARDING | SHARING | OBSERVE)]


def observed_beyond_its_limit(make):
    """The run has shown what it needs."""
    segment = refused(holding(make, 15 * GIB, **{"slot.limit_bytes": 12 * GIB}), 2, "limit", left=0)
    return [segment.set("slot.flags", GUARDING | SHARING | OBSERVE)]


def refused_more_often_than_is_kept(make):
    return [refused(holding(make, 11 * GIB, **{"slot.limit_bytes": 12 * GIB}), 500, "limit", size=3 * GIB)]


def not_guarding(make):
    return [holding(make, 11 * GIB).set("slot.flags", 0)]


def killed_by_its_user(make):
    return [killed(holding(make, 3 * GIB), signal.SIGINT)]


def crashed(make):
    return [killed(refused(holding(make, 3 * GIB), 1, "limit"), signal.SIGSEGV)]


def killed_unrecorded(make):
    return [killed(holding(make, 3 * GIB)).set("ended_time_ns", 0)]


def ended_by_its_watchdog(make):
    segment = killed(holding(make, 88 * GIB), signal.SIGKILL)
    return [segment.event("watchdog: sent SIGKILL: 1.0 GiB usable", time_ns=START_NS + 89 * SECOND)]


def a_worker_killed(make):
    worker = killed(holding(make, 30 * GIB, pid=4712, parent_pid=4711, command="worker"))
    return [holding(make, 100 * MIB, exit_code=1), worker]


def helpers_ended(make):
    usual = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE)
    helpers = [killed(holding(make, 100 * MIB, pid=4720 + n, parent_pid=4711, command="helper"), n) for n in usual]
    return [holding(make, 30 * GIB), *helpers]


def marked_by_the_launcher(make):
    return [killed(holding(make, 88 * GIB), signal.SIGKILL).set("oom", 1)]


def probably_marked_by_the_launcher(make):
    return [killed(holding(make, 88 * GIB), signal.SIGKILL).set("oom", 2)]


ENDS = [
    (ran, "ok"),
    (ran_in_its_limit, "ok"),
    (ran_with_little_room_for_a_moment, "ok"),
    (ran_before_any_figure, "ok"),
    (failed, "ok"),
    (refused_for_its_limit, "refused_limit"),
    (refused_for_a_limit_and_failed, "refused_limit"),
    (refused_for_the_reserve, "refused_reserve"),
    (refused_by_a_card, "refused_device"),
    (refused_by_a_card_long_ago, "refused_device"),
    (refused_for_several_reasons, "refused_reserve"),
    (refused_small_requests_only, "refused_reserve"),
    (would_have_been_refused, "refused_limit"),
    (observed_beyond_its_limit, "refused_limit"),
    (refused_more_often_than_is_kept, "refused_limit"),
    (not_guarding, "ok"),
    (killed_by_its_user, "killed"),
    (crashed, "killed"),
    (killed_unrecorded, "killed"),
    (ended_by_its_watchdog, "watchdog"),
    (a_worker_killed, "killed"),
    (helpers_ended, "ok"),
    (marked_by_the_launcher, "killed"),
    (probably_marked_by_the_launcher, "killed"),
]


def segments_of(case, make, report):
    return case(make, report) if case is ran_with_little_room_for_a_moment else case(make)


def verdict_of(report, *arguments):
    job = report.json(*arguments)["jobs"][0]
    assert job["runs"][-1]["verdict"] == job["verdict"]
    assert job["runs"][-1]["verdict_code"] == job["verdict_code"]
    return job["verdict"], job["verdict_code"]


def test_the_verdict_on_each_end_is_golden(make, report):
    lines = []
    for case, code in ENDS:
        for segment in segments_of(case, make, report):
            segment.write(report.directory)
        words, shown_code = verdict_of(report)
        assert shown_code == code, case.__name__
        shown = report.run().stdout
        assert "\n  " + words + "\n" in shown, shown
        lines.append(f"{case.__name__:<34}{shown_code:<16}{words}\n")
        for path in report.directory.iterdir():
            path.unlink()
    compare("verdicts.txt", "".join(lines))


RUNNING = [
    ({}, "ok", "still running, at its tightest 40.0 GiB of room were left so far"),
    ({"slot.limit_bytes": 41 * GIB}, "ok", "still running, at its tightest 1.0 GiB of room in its limit were left so far"),
]


@pytest.mark.parametrize("fields, code, words", RUNNING)
def test_the_verdict_on_a_running_job(make, report, fields, code, words):
    with holding(make, 40 * GIB, state="running", **fields).write_live(report.directory):
        assert verdict_of(report) == (words, code)


def test_a_running_job_that_was_refused_something(make, report):
    segment = refused(holding(make, 11 * GIB, state="running", **{"slot.limit_bytes": 12 * GIB}), 3, "limit", size=3 * GIB)
    with segment.write_live(report.directory):
        assert verdict_of(report) == ("still running, refused 3 times for its limit; a limit of 14.0 GiB would have been enough for each of these requests", "refused_limit")


def kernel_log(report, *lines, ago_s=0.0):
    (report.root / "dev").mkdir(exist_ok=True)
    at = int((time.clock_gettime(time.CLOCK_MONOTONIC) - ago_s) * 10**6)
    (report.root / "dev/kmsg").write_text("".join(f"3,{100 + i},{at},-;{line}\n" for i, line in enumerate(lines)))


OOM_LINE = "{0}ut of memory: Killed process {1} (python) total-vm:95000000kB, anon-rss:92000000kB, file-rss:0kB, UID:0"


def recently(segment, ago_s=0.0):
    now_ns = time.time_ns() - int(ago_s * SECOND)
    return segment.set("started_time_ns", now_ns - 60 * SECOND).set("ended_time_ns", now_ns)


@pytest.mark.parametrize("start", ["O", "Memory cgroup o"])
@pytest.mark.parametrize("number", [-1, signal.SIGKILL])
def test_the_kernels_log_tells_the_oom_killers_victim(make, report, start, number):
    recently(killed(holding(make, 88 * GIB), number)).write(report.directory)
    kernel_log(report, "a line", OOM_LINE.format(start, 47110), OOM_LINE.format(start, 4711), "oom_reaper: reaped process 4711")
    assert verdict_of(report) == ("killed by the kernel's OOM killer, held 88.0 GiB", "killed")


def test_the_kernels_log_of_another_time_or_process_does_not_count(make, report):
    for pid, ago_s, number in ((4712, 0, 9), (4711, 3600, 9), (4711, 0, signal.SIGSEGV)):
        recently(killed(holding(make, 88 * GIB), number)).write(report.directory)
        kernel_log(report, OOM_LINE.format("O", pid), ago_s=ago_s)
        assert "OOM" not in verdict_of(report)[0]


@pytest.mark.parametrize("content", [b"", b"\xff\x00" * 9000, b"3,1,99999999999999999999,-;Out of memory: Killed process 4711 (x)\n", b"Out of memory: Killed process \n"])
def test_a_kernel_log_of_nonsense_tells_nothing(make, report, content):
    recently(killed(holding(make, GIB), 9)).write(report.directory)
    kernel_log(report)
    (report.root / "dev/kmsg").write_bytes(content)
    assert verdict_of(report) == ("killed by SIGKILL, held 1.0 GiB", "killed")


def test_the_verdict_is_about_the_whole_job_where_one_process_is_shown(make, report):
    for segment in a_worker_killed(make):
        segment.write(report.directory)
    words = "process 4712 killed (signal not recorded), held 30.0 GiB"
    assert verdict_of(report) == verdict_of(report, 4711) == (words, "killed")


def test_each_run_has_its_verdict(make, report):
    holding(make, 40 * GIB, pid=4711).write(report.directory)
    later = {"started_time_ns": START_NS + 200 * SECOND, "ended_time_ns": START_NS + 300 * SECOND}
    refused(holding(make, 11 * GIB, pid=4712, **{"slot.limit_bytes": 12 * GIB}, **later), 2, "limit").write(report.directory)
    job = report.json()["jobs"][0]
    assert [run["verdict_code"] for run in job["runs"]] == ["ok", "refused_limit"]
    shown = report.run("--job", "train").stdout
    assert shown.count("\n  at its tightest 40.0 GiB of room were left\n") == shown.count("\n  refused 2 times for its limit;") == 1




def test_what_was_observed_is_nowhere_said_to_be_refused(make, report):
    for segment in observed_beyond_its_limit(make):
        segment.write(report.directory)
    shown = report.run("--job", "train").stdout
    (pid,) = {process["pid"] for process in report.json()["jobs"][0]["processes"]}
    of_process = report.run(str(pid)).stdout
    assert ", 2 would have been refused (observe)\n" in shown.replace(",\n  ", ", ")
    assert "2 requests would have been refused, " in of_process
    assert re.search(r"\d refused|requests? refused", shown + of_process) is None
