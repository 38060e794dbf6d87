"""sparkguard-report --html: a page that holds everything, can be read by anyone and harms nobody."""

import contextlib
import json
import os
import re
import resource
import signal
import subprocess
import time
from pathlib import Path

import pytest
from lib.units import GIB, MIB
from page import Page, drawings, facts, table, words
from segment import START_NS, UNKNOWN
from records import HOSTILE, SECOND, compare, family, samples, without_user, trainer

SPELT = "</bdi></title><script>alert(1)</script>&<img src=x onerror='a' \"b\"> \\xff\\u202e\\x1b[31m --> ]]>"


def write(report, path, *arguments, status=0, is_large=False, **extra):
    done = report.run("--html", path, *arguments, **extra)
    assert (done.returncode, done.stdout) == (status, ""), done.stderr
    if status == 1 or status == 2:
        assert done.stderr.startswith("sparkguard-report: ") and done.stderr.count("\n") == 1
        return done.stderr
    return Page(path.read_text(), is_large)


def without_machine(text, report):
    """Without what belongs to the machine and the moment of the test, and without the style sheet."""
    text = text.replace(str(report.directory.parent), "/SCRATCH")
    text = re.sub(r"<style>.*?</style>", "<style/>", text, flags=re.DOTALL)
    text = re.sub(r"<section id=\"(checks|unguarded)\">.*?</section>\n", "", text, flags=re.DOTALL)
    text = re.sub(r".*#unguarded.*\n", "", text)
    text = without_user(text)
    text = re.sub(r"Written <time[^>]*>[^<]*", 'Written <time datetime="NOW">NOW', text)
    return re.sub(r"(Kernel|Architecture|C library)</th><td>[^<]*", r"\1</th><td>THIS", text)


def test_the_page_is_golden(make, report, tmp_path):
    family(make, report)
    page = write(report, tmp_path / "report.html")
    compare("report.html", without_machine(page.text, report))


def test_it_says_what_the_other_forms_say(make, report, tmp_path):
    family(make, report)
    page = write(report, tmp_path / "report.html")
    for process in report.json()["jobs"][0]["processes"]:
        section = page.process(process["pid"])
        exact = [cell.get("title") for cell in section.iter("td")]
        for figure in [process["peak_bytes"], *(r["size_bytes"] for r in process["refusals"]), *(b["bytes"] for b in process["blocks"])]:
            assert figure == 0 or f"{figure} B" in exact
        assert [row[0] for row in table(section, "Memory by domain")[1:]] == list(process["domains"])
    tree = table(page.section("job-1"), "Processes")
    assert [row[0] for row in tree] == ["PID", "4711", "4712", "4713", "4714"]
    assert [row[2] for row in tree[1:]] == ["exited", "killed, by its watchdog", "exited", "replaced, observed"]
    assert [row[1].count("└") for row in tree[1:]] == [0, 1, 1, 1]
    parent = page.process(4711)
    assert facts(parent, "Options")["Limit of the job"] == "96.0 GiB" and facts(parent, "Options")["Reserve"] == "10.0 GiB"
    assert facts(parent, "Options")["Library"] == "0.1.0" and facts(parent, "Figures")["Unaccounted (CUDA contexts and the like)"] == "2.5 GiB"
    assert ["2026-11-20 13:07:41", "cudaMalloc", "device", "12.0 GiB", "reserve", "9.0 GiB"] in table(parent, "Refused requests")
    assert table(parent, "Where large blocks")[1] == ["libtorch_cuda.so+0x1ab3f0", "device", "5.0 GiB", "3", "8.0 GiB", "6.0 GiB"]
    assert table(parent, "Phases")[1][1:] == ["epoch 1", "7.0 GiB", "12.0 GiB"]
    assert table(page.process(4712), "Events")[1][1] == "watchdog: sent SIGKILL, 1.0 GiB usable"
    assert len(drawings(parent)) == 1 and drawings(page.process(4713)) == []


def test_it_opens_with_the_verdict(make, report, tmp_path):
    family(make, report)
    make(pid=99, job="other").peak(heap=GIB).write(report.directory)
    header = write(report, tmp_path / "report.html", "--all").root.find("body/header")
    first, second = header[1], header[2]
    verdicts = {job["job"]: job["verdict"] for job in report.json("--all")["jobs"]}
    assert header[0].tag == "h1" and {words(first), words(second)} == {f"Job {name} {text}" for name, text in verdicts.items()}
    (train,) = [p for p in (first, second) if words(p).startswith("Job train")]
    assert train.get("class") == "verdict bad" and train.find("a").get("href").startswith("#job-")


@pytest.mark.parametrize("reason", [None, "limit", "reserve"])
def test_no_green_banner_stands_above_refusals(make, report, tmp_path, reason):
    segment = make(exit_code=0).peak(heap=GIB)
    if reason:
        segment.domain("heap", peak=GIB, refused=1).refusal("malloc", "heap", GIB, reason, usable=MIB)
    segment.write(report.directory)
    banner = write(report, tmp_path / "report.html", "--all").root.find("body/header")[1]
    assert (banner.get("class"), "refused once" in words(banner)) == ("verdict warn" if reason else "verdict good", bool(reason))


def test_a_hundred_jobs_have_few_verdicts_at_the_top_and_few_drawings(make, report, tmp_path):
    for i in range(100):
        for k in range(2):
            segment = make(pid=10 + 2 * i + k, job=f"job {i}", started_time_ns=START_NS + i).peak(heap=GIB)
            segment.write(report.directory)
            segment.write_timeline(report.directory, samples())
    page = write(report, tmp_path / "report.html", "--all", is_large=True)
    verdicts = [p for p in page.root.findall("body/header/p") if (p.get("class") or "").startswith("verdict")]
    assert len(verdicts) == 12 and words(verdicts[-1]).startswith("Job job 99 ")
    assert sum("of job" in words(drawing[0]) for drawing in drawings(page.root)) == 8


def test_a_job_of_several_processes_is_drawn(make, report, tmp_path):
    family(make, report)
    page = write(report, tmp_path / "report.html", "--job=train")
    (figure,) = page.section("job-1").findall("figure")
    (drawing,) = drawings(figure)
    assert words(drawing[0]) == "Memory of job train over time" and "Each process is a band" in words(drawing[1])
    assert "limit 96.0 GiB, above this scale" in [words(e) for e in drawing.iter() if e.tag.endswith("}text")]
    rows = table(page.section("job-1"), "The job over time")
    assert rows[0] == ["From", "Live, at most", "Usable, at least", "Reserve", "Recorded"] and 6 <= len(rows) <= 14
    assert rows[-1][1:] == ["9.0 GiB", "50.0 GiB", "10.0 GiB", "yes"], rows


def test_times_without_samples_are_not_recorded_in_the_table(make, report, tmp_path):
    for pid in (1, 2):
        segment = make(pid=pid).peak(time_ns=START_NS + 90 * SECOND, heap=GIB)
        segment.write(report.directory)
        segment.write_timeline(report.directory, [s for s in samples(count=90) if not 30 * SECOND < s[0] < 60 * SECOND])
    rows = table(write(report, tmp_path / "report.html", "--job=train").section("job-1"), "The job over time")
    recorded = [row[4] for row in rows[1:]]
    assert recorded[0] == "yes" == recorded[-1] and "not recorded" in recorded
    assert all(row[1] == "-" == row[2] for row in rows[1:] if row[4] == "not recorded"), "never zero"


def test_a_job_of_one_process_is_drawn_once(make, report, tmp_path):
    segment = make()
    segment.write(report.directory)
    segment.write_timeline(report.directory, samples())
    page = write(report, tmp_path / "report.html", "--job=train")
    assert len(drawings(page.root)) == 1 and page.root.findall(".//figure[@class]") == []


def test_the_runs_of_a_job_have_a_verdict_each(make, report, tmp_path):
    for i in range(3):
        begin = START_NS + i * 86400 * SECOND
        segment = make(pid=1 + i, started_time_ns=begin, ended_time_ns=begin + 60 * SECOND).peak(heap=GIB)
        if i == 1:
            segment.domain("heap", peak=GIB, refused=1).refusal("malloc", "heap", GIB, "limit", usable=MIB, time_ns=begin)
        segment.write(report.directory)
    rows = table(write(report, tmp_path / "report.html", "--job=train").section("job-1"), "Runs of the job")
    assert [row[4] for row in rows[1:]] == [run["verdict"] for run in report.json("--job=train")["jobs"][0]["runs"]]
    assert "refused" in rows[2][4]


@pytest.mark.parametrize("field", ["command", "job", "library_version"])
def test_texts_of_a_segment_break_out_of_nothing(make, report, tmp_path, field):
    make(**{field: HOSTILE}).write(report.directory)
    page = write(report, tmp_path / "report.html")
    assert SPELT[:15] in words(page.root.find("body"))
    assert field == "library_version" or words(page.root.find("body")).count(SPELT[:60]) >= 2


def test_other_hostile_texts_break_out_of_nothing(make, report, tmp_path):
    segment = make().device(0, HOSTILE[:39], GIB, GIB).phase(HOSTILE, 1, 2).event(HOSTILE).refusal(HOSTILE[:40], "heap", 1, "limit")
    segment.site(70, GIB, library=HOSTILE[:79], domain="device").write(report.directory)
    segment.write_timeline(report.directory, samples())
    (report.directory / "<img src=y>.segment").write_bytes(b"no")
    page = write(report, tmp_path / "report.html", status=3, SPARKGUARD_JOB="<b onclick=c>&amp;\x1b")
    said = words(page.root.find("body"))
    assert said.count("<script>alert(1)</script>") >= 3
    assert "<img src=y>.segment: " in words(page.section("untrusted"))
    assert facts(page.section("origin"), "Folders")["SPARKGUARD_JOB"] == "<b onclick=c>&amp;\\x1b"


def test_nothing_else_of_the_environment_is_told(make, report, tmp_path):
    family(make, report)
    page = write(report, tmp_path / "report.html", API_TOKEN="hunter2", SPARKGUARD_LIMIT="7G", LD_LIBRARY_PATH="/secret")
    assert "hunter2" not in page.text and "/secret" not in page.text
    assert facts(page.section("origin"), "Folders")["SPARKGUARD_LIMIT"] == "7G"


def test_a_running_process_shows_the_variables_it_was_started_with(make, report, tmp_path):
    env = {"SPARKGUARD_WAIT": "5", "SPARKGUARD_JOB": "<b>", "API_TOKEN": "hunter2", "PATH": os.environ["PATH"]}
    child = subprocess.Popen(["cat"], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        os.write(child.stdin.fileno(), b"\n")
        assert child.stdout.read(1) == b"\n"  # it runs: while the kernel is still in exec, a process has no variables
        ticks = int((Path("/proc") / str(child.pid) / "stat").read_text().rpartition(")")[2].split()[19])
        for start in (ticks, ticks + 1):  # then another process has the number
            segment = make(pid=child.pid, state="running", **{"slot.start_ticks": start})
            with contextlib.closing(segment.write_live(report.directory)):
                page = write(report, tmp_path / "report.html")
            options = facts(page.process(child.pid), "Options")
            assert options.get("SPARKGUARD_WAIT") == ("5" if start == ticks else None)
            assert options.get("SPARKGUARD_JOB") == ("<b>" if start == ticks else None) and "hunter2" not in page.text
    finally:
        child.communicate()


def test_what_is_not_known_is_a_dash(make, report, tmp_path):
    (report.root / "proc/meminfo").unlink()
    segment = make(state="running", unaccounted_bytes=UNKNOWN, started_time_ns=0).refusal("malloc", "heap", GIB, "limit")
    segment.write(report.directory)  # without an owner: killed, nobody knows when
    page = write(report, tmp_path / "report.html")
    memory, figures = facts(page.section("machine"), "Memory"), facts(page.process(4711), "Figures")
    for name in ("Total (MemTotal)", "Available (MemAvailable)", "Usable, before the reserve", "Swap", "Smallest cgroup limit", "Unified memory"):
        assert memory[name] == "-", name
    for name in ("Started", "Ended", "Duration", "Time of the peak", "Promised, not resident yet", "Unaccounted (CUDA contexts and the like)"):
        assert figures[name] == "-", name
    options = facts(page.process(4711), "Options")
    assert {options[name] for name in ("Library", "Parent process", "Reserve", "Usable at its last snapshot", "Unified memory")} == {"-"}
    assert table(page.process(4711), "Refused requests")[1][-1] == "-"


def test_the_findings_of_the_doctor_are_in_it(make, report, tools, tmp_path):
    family(make, report)
    page = write(report, tmp_path / "report.html")
    done = subprocess.run([tools / "sparkguard-doctor", "--json"], env=report.environment(), capture_output=True, text=True)
    found = {(f["id"], f["state"]) for f in json.loads(done.stdout)["findings"]}
    assert {tuple(row[:2]) for row in table(page.section("checks"), "What")[1:]} == found
    assert facts(page.section("machine"), "Software")["Kernel"] == f"{os.uname().sysname} {os.uname().release}"


@pytest.mark.usefixtures("in_memory")
def test_a_thousand_processes_make_a_page_that_opens(make, report, tmp_path):
    for i in range(1000):
        segment = make(pid=5000 + i, parent_pid=5000 + i // 2, command=f"cc {i}", started_time_ns=START_NS + i)
        segment.peak(heap=(i + 1) * MIB).write(report.directory)
        if i >= 960:
            segment.write_timeline(report.directory, samples(count=100))
    page = write(report, tmp_path / "report.html")
    assert len(page.root.findall(".//h3")) == 16 and "984 smaller processes are not shown" in page.text
    page = write(report, tmp_path / "report.html", "--all", is_large=True)
    assert len(page.root.findall(".//h3")) == 1000 and len(page.text) < 12 * MIB
    assert len(drawings(page.root)) == 16 + 1 and "sparkguard-report --plot run.svg 5000 draws" in page.text
    tree = table(page.section("job-1"), "Processes")
    assert sorted(int(row[0]) for row in tree[1:]) == [*range(5000, 6000)]
    place = {int(row[0]): i for i, row in enumerate(tree[1:])}
    assert all(place[5000 + i] > place[5000 + i // 2] for i in range(1, 1000))


def test_a_chain_of_children_is_no_danger(make, report, tmp_path):
    for i in range(300):
        make(pid=1000 + i, parent_pid=999 + i, started_time_ns=START_NS + i).write(report.directory)
    tree = table(write(report, tmp_path / "report.html", "--all", is_large=True).section("job-1"), "Processes")
    assert [int(row[0]) for row in tree[1:]] == [*range(1000, 1300)]


def test_children_of_a_process_that_is_left_out_stand_in_its_place(make, report, tmp_path):
    make(pid=1, command="make").peak(heap=90 * MIB).write(report.directory)
    make(pid=2, parent_pid=1, started_time_ns=START_NS + 1).write(report.directory)
    for i in range(16):
        make(pid=10 + i, parent_pid=2, started_time_ns=START_NS + 2 + i).peak(heap=(50 + i) * MIB).write(report.directory)
    tree = table(write(report, tmp_path / "report.html").section("job-1"), "Processes")
    assert [row[0] for row in tree[1:]] == ["1", *(str(i) for i in range(11, 26))]
    assert all(row[1].startswith("└") for row in tree[2:])


def test_one_process_can_be_chosen(make, report, tmp_path):
    family(make, report)
    make(pid=99, job="other").write(report.directory)
    page = write(report, tmp_path / "report.html", 4711)
    assert len(page.root.findall(".//h3")) == 1 and words(page.root.find("body//h1")) == "sparkguard report: process 4711"
    assert words(write(report, tmp_path / "report.html", "--job=other").root.find("body//h1")) == "sparkguard report: job other"


def test_what_cannot_be_trusted_is_said_in_the_page_too(make, report, tmp_path):
    segment = make()
    segment.write(report.directory)
    segment.write_timeline(report.directory, samples(), magic=7)
    page = write(report, tmp_path / "report.html", status=3)
    assert "cannot be trusted" in words(page.process(4711)) and drawings(page.root) == []
    (report.directory / segment.name).write_bytes(b"x" * 9000)
    page = write(report, tmp_path / "report.html", status=3)
    assert "not a segment" in words(page.section("untrusted")) and "No guarded program" in words(page.root.find("body"))


def test_an_empty_machine_has_a_page_and_no_match_has_none(report, tmp_path):
    page = write(report, tmp_path / "report.html")
    assert "No guarded program is on record." in words(page.root.find("body"))
    (tmp_path / "report.html").unlink()
    assert "no process 4711" in write(report, tmp_path / "report.html", 4711, status=1)
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize("path", ["", "4711", "report.svg", "html"])
def test_a_name_that_is_no_page_is_usage(report, tmp_path, path):
    done = report.run(f"--html={tmp_path / path if path else path}")
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "; for example report.html; nothing is shown" in done.stderr
    assert report.run("--html=a.html", "--json").returncode == 2 == report.run("--html=a.html", "--plot=a.svg").returncode


@pytest.mark.parametrize("path", ["-", "/dev/stdout"])
def test_stdout_takes_the_page(make, report, path):
    family(make, report)
    done = report.run("--html", path)
    assert (done.returncode, done.stderr) == (0, "") and Page(done.stdout).section("machine") is not None


def test_a_reader_that_goes_away_ends_it_quietly(make, report):
    family(make, report)
    (reader, writer) = os.pipe()
    os.close(reader)
    done = subprocess.run([report.program, "--html=-"], env=report.environment(), stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert (done.returncode, done.stderr) == (-signal.SIGPIPE, b"")


def test_a_page_takes_the_place_of_the_last_one_when_it_is_whole(make, report, tmp_path):
    family(make, report)
    path = tmp_path / "report.html"
    path.write_text("the last one")

    def limited():  # a disk that fills up: SIGXFSZ, as Python has it, is ignored
        resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))

    done = subprocess.run([report.program, "--html", path], env=report.environment(), capture_output=True, text=True,
                          preexec_fn=limited, restore_signals=False)
    assert done.returncode == 3 and "File too large" in done.stderr and done.stderr.count("\n") == 1
    assert path.read_text() == "the last one" and [f.name for f in tmp_path.glob("report*")] == ["report.html"]
    write(report, path)
    assert [f.name for f in tmp_path.glob("report*")] == ["report.html"]
    with open("/dev/full", "w") as full:
        done = subprocess.run([report.program, "--html=-"], env=report.environment(), stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 3 and "No space left" in done.stderr and done.stderr.count("\n") == 1


def test_a_running_job_is_told_of_as_it_is_now(make, report, tmp_path):
    segment = trainer(make, state="running", started_time_ns=time.time_ns() - 60 * SECOND)
    with contextlib.closing(segment.write_live(report.directory)):
        page = write(report, tmp_path / "report.html")
    figures = facts(page.process(4711), "Figures")
    assert figures["State"] == "running" and figures["Live"] == "7.0 GiB" and figures["Ended"] == "-"
    assert figures["Promised, not resident yet"] == "2.0 GiB"
    assert facts(page.section("job-1"), "Figures of the job")["Processes on record"] == "1, 1 of them running"
