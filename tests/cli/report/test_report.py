"""sparkguard-report: what it shows, what it refuses to believe, its exit status. Golden files are in golden/; write them
anew with UPDATE_GOLDEN=1 and read the difference."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from lib.target import ROOT
from lib.units import GIB, MIB
from records import compare, four_states, processes, trainer, without_user  # noqa: F401 (a fixture)
from screen import all_shown
from segment import OBSERVE, START_NS, UNKNOWN

# ---- golden ---------------------------------------------------------------------------------------------------------


def without_clock(text):
    text = re.sub(r"running for [^,\n]*", "running for TIME", text)
    return re.sub(r"\d+ [a-z]+ (\d+ [a-z]+ )?ago", "TIME ago", text)


def without_unguarded(text):
    return re.sub(r"\n( *PID UNGUARDED PROCESS|UNGUARDED CONTAINER )(.|\n)*?\n(?=\n)", "", text)


def test_json_of_all_states_is_golden(four_states):
    data = four_states.json("--all")
    data["unguarded"] = data["unguarded_containers"] = []  # of the machine that the test runs on
    data["jobs"][0]["directory"] = "DIR"
    compare("states.json", without_user(json.dumps(data, indent=2)) + "\n")


def test_overview_is_golden(four_states):
    done = four_states.run("--all")
    assert done.returncode == 0
    text = without_unguarded(done.stdout)
    compare("overview.txt", without_clock(text))


def test_overview_in_ascii_is_golden(four_states):
    done = four_states.run("--all", LC_ALL="C")
    assert done.stdout.isascii()
    text = without_unguarded(done.stdout)
    compare("overview_ascii.txt", without_clock(text))


@pytest.mark.parametrize("pid, state", [(4711, "running"), (4712, "killed"), (4713, "exited"), (4714, "replaced")])
def test_process_in_depth_is_golden(four_states, pid, state):
    done = four_states.run(pid)
    assert done.returncode == 0
    compare(f"{state}.txt", without_clock(done.stdout))


# ---- figures --------------------------------------------------------------------------------------------------------


def test_live_heap_is_what_threads_have_not_left_unused(make, report):
    segment = make(record_used=3).domain("heap", granted=10 * MIB)
    segment.record(0, credit=MIB, allocations=5, frees=1).record(1, credit=-MIB // 2, allocations=7, frees=2)
    segment.record(2, credit=2 * MIB).record(3, credit=100 * MIB)  # beyond record_used
    segment.write(report.directory)
    heap = processes(report.json())[4711]["domains"]["heap"]
    assert heap["live_bytes"] == 10 * MIB - (MIB - MIB // 2 + 2 * MIB)
    assert (heap["allocations"], heap["frees"]) == (12, 3)


def test_call_sites_that_hold_nothing_or_have_no_name(make, report):
    segment = make().site(1, 3 * MIB, 2).site(33, 2 * MIB).site(5, MIB, named=0).site(6, -MIB, -1).site(7, 0).site(0, GIB)
    segment.site(8, MIB // 2, -1, library="x" * 64, offset=0).write(report.directory)
    blocks = processes(report.json())[4711]["blocks"]
    assert [tuple(b[k] for k in ("library", "offset", "domain", "bytes", "count")) for b in blocks] == [
        (None, None, "heap", 3 * MIB, 2),
        (None, None, "mapped", 2 * MIB, 1),
        (None, None, "heap", MIB, 1),
        ("x" * 64, 0, "heap", MIB // 2, 0),
    ]
    assert "elsewhere" in report.run(4711).stdout


def test_the_ten_largest_call_sites_are_shown(make, report):
    segment = make()
    for number in range(2, 32):
        segment.site(number, number * MIB, library=f"lib\x1b{number}.so")
    segment.write(report.directory)
    lines = [line for line in report.run(4711).stdout.splitlines() if ".so+0x1234" in line]
    assert [int(line.split("1b")[1].split(".")[0]) for line in lines] == list(range(31, 21, -1))
    assert "\x1b" not in "".join(lines)


def test_live_heap_is_never_below_zero(make, report):
    make().domain("heap", granted=MIB).record(0, credit=2 * MIB).write(report.directory)
    make(pid=4712).domain("mapped", granted=-4096).write(report.directory)
    shown = processes(report.json("--all"))
    assert shown[4711]["live_bytes"] == 0
    assert shown[4712]["live_bytes"] == 0


def test_records_used_beyond_the_capacity_are_not_read(make, report):
    make(record_used=10000).domain("heap", granted=MIB).write(report.directory)
    assert processes(report.json())[4711]["live_bytes"] == MIB


def test_peak_is_never_below_live(make, report):
    make().domain("device", granted=5 * GIB, peak=GIB).peak(device=GIB).write(report.directory)
    process = processes(report.json())[4711]
    assert process["peak_bytes"] == 5 * GIB
    assert process["peak_domains"]["device"] == 5 * GIB
    assert process["domains"]["device"]["peak_bytes"] == 5 * GIB


def test_the_whole_copy_of_the_peak_counts(make, report):
    segment = make().peak(index=0, heap=9 * GIB).peak(index=1, device=10 * GIB)
    segment.write(report.directory)
    process = processes(report.json())[4711]
    assert process["peak_domains"] == {"heap": 0, "mapped": 0, "pinned": 0, "managed": 0, "device": 10 * GIB}


def test_the_present_phase_shows_what_is_live_and_its_peak_so_far(make, report):
    segment = make(state="running", phase_peak_bytes=9 * GIB).domain("heap", granted=5 * GIB, peak=12 * GIB)
    segment.phase("load", 3 * GIB, 12 * GIB).phase("train", 0, 8 * GIB)
    with segment.write_live(report.directory):
        load, train = processes(report.json())[4711]["phases"]
    assert (load["live_bytes"], load["peak_bytes"]) == (3 * GIB, 12 * GIB)
    assert (train["live_bytes"], train["peak_bytes"]) == (5 * GIB, 9 * GIB)


def test_job_sums_running_processes_and_what_forked_ones_add(make, report):
    parent = make(state="running", pid=1001).domain("heap", granted=4 * GIB).peak(heap=4 * GIB)
    fork = make(state="running", pid=1002, **{"slot.inherited_bytes": 4 * GIB}).domain("heap", granted=5 * GIB)
    ended = make(pid=1003).domain("heap", granted=9 * GIB, peak=9 * GIB).peak(heap=9 * GIB)
    ended.write(report.directory)
    with parent.write_live(report.directory), fork.write_live(report.directory):
        job = report.json()["jobs"][0]
    assert job["live_bytes"] == 5 * GIB
    assert job["peak_bytes"] == 9 * GIB


def test_job_peak_is_the_highest_that_one_of_its_processes_saw(make, report):
    make(pid=1001).domain("heap", granted=GIB, peak=4 * GIB).peak(heap=4 * GIB).write(report.directory)
    other = make(pid=1002, job_peak_bytes=7 * GIB).domain("heap", granted=GIB, peak=3 * GIB).peak(heap=3 * GIB)
    other.write(report.directory)
    (job,) = report.json("--all")["jobs"]
    assert job["peak_bytes"] == 7 * GIB


def test_job_limit_is_the_smallest_of_those_that_run(make, report):
    for pid, limit in ((1, 0), (2, 8 * GIB), (3, 4 * GIB)):
        make(pid=pid, **{"slot.limit_bytes": limit}).write(report.directory)
    assert report.json("--all")["jobs"][0]["limit_bytes"] == 4 * GIB  # nobody runs: of all
    first = make(pid=4, state="running", **{"slot.limit_bytes": 16 * GIB})
    second = make(pid=5, state="running", **{"slot.limit_bytes": 12 * GIB})
    with first.write_live(report.directory), second.write_live(report.directory):
        assert report.json("--all")["jobs"][0]["limit_bytes"] == 12 * GIB
    with make(pid=6, job="none", state="running").write_live(report.directory):
        assert report.json("--job", "none")["jobs"][0]["limit_bytes"] is None


def test_rings_show_the_last_64_oldest_first(make, report):
    segment = make()
    for number in range(100):
        segment.refusal("malloc", "heap", number + 1, "reserve", time_ns=START_NS + number)
    segment.write(report.directory)
    sizes = [r["size_bytes"] for r in processes(report.json())[4711]["refusals"]]
    assert sizes == list(range(37, 101))


def test_entry_being_written_at_death_is_left_out(make, report):
    segment = make().refusal("malloc", "heap", MIB, "reserve").refusal("calloc", "heap", MIB, "floor")
    segment.put("refusal", 1, "sg_refusal", "sequence", 0).write(report.directory)
    assert [r["call"] for r in processes(report.json())[4711]["refusals"]] == ["malloc"]


def test_unknown_is_null_and_a_dash_never_zero(make, report):
    segment = make(started_time_ns=0, ended_time_ns=0, sparse_resident_bytes=UNKNOWN)
    segment.refusal("malloc", "heap", MIB, "reserve", usable=UNKNOWN, time_ns=0).write(report.directory)
    process = processes(report.json())[4711]
    assert process["started"] is None and process["sparse_resident_bytes"] is None
    assert process["refusals"][0]["usable_bytes"] is None and process["refusals"][0]["time"] is None
    assert re.search(r"^- +malloc +heap +1.0 MiB +reserve +-$", report.run(4711).stdout, re.MULTILINE)


def test_observe_mode_and_not_guarding_are_told(make, report):
    make(**{"slot.flags": OBSERVE}).write(report.directory)
    process = processes(report.json())[4711]
    assert (process["guarding"], process["mode"]) == (False, "observe")
    assert "not guarding" in report.run().stdout
    assert "not guarding" in report.run(4711).stdout


# ---- states ---------------------------------------------------------------------------------------------------------


def test_running_without_an_owner_was_killed(make, report):
    make(state="running", pid=2**30).write(report.directory)
    process = processes(report.json())[2**30]
    assert (process["state"], process["signal"], process["ended"]) == ("killed", None, None)


def test_running_without_an_owner_but_alive_is_another_program(make, report):
    stat = Path(f"/proc/{os.getpid()}/stat").read_text()
    ticks = int(stat.rpartition(")")[2].split()[19])
    make(state="running", pid=os.getpid(), **{"slot.start_ticks": ticks}).write(report.directory)
    assert processes(report.json())[os.getpid()]["state"] == "replaced"


def test_a_zombie_was_killed(make, report):
    with subprocess.Popen(["sleep", "600"]) as child:
        ticks = int(Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[19])
        make(state="running", pid=child.pid, **{"slot.start_ticks": ticks}).write(report.directory)
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert processes(report.json())[child.pid]["state"] == "killed"


def test_a_recorded_signal_is_shown(make, report):
    make(state="killed", signal=9).write(report.directory)
    assert processes(report.json())[4711]["signal"] == 9
    assert "killed by SIGKILL" in report.run(4711).stdout


# ---- what is shown --------------------------------------------------------------------------------------------------


@pytest.fixture
def three_jobs(make, report):
    """Two jobs that have ended and one that runs; pid 10 was used twice, the second time by two programs."""
    make(pid=10, job="old", started_time_ns=START_NS).write(report.directory)
    newer = {"slot.start_ticks": 77, "started_time_ns": START_NS + 500 * 10**9, "ended_time_ns": START_NS + 510 * 10**9}
    first = make(pid=10, job="new", state="replaced", **newer)
    first.name = "10-1.segment"
    first.write(report.directory)
    second = make(pid=10, job="new", **newer)
    second.name = "10-2.segment"
    second.write(report.directory)
    with make(pid=11, job="now", state="running", started_time_ns=START_NS + 10**9).write_live(report.directory):
        yield report


def names(data):
    return [job["job"] for job in data["jobs"]]


def test_by_default_what_runs_and_what_ended_last(three_jobs):
    assert names(three_jobs.json()) == ["now", "new"]


def test_filters(three_jobs):
    assert names(three_jobs.json("--all")) == ["old", "now", "new"]
    assert names(three_jobs.json("--last")) == ["new"]
    assert names(three_jobs.json("--job", "old")) == ["old"]
    assert names(three_jobs.json("--job", "now", "--last")) == ["now"]


def test_pid_is_the_youngest_of_that_number_with_all_its_programs(three_jobs):
    (job,) = three_jobs.json("10")["jobs"]
    assert [(p["pid"], p["state"]) for p in job["processes"]] == [(10, "replaced"), (10, "exited")]
    assert names(three_jobs.json("10", "--all")) == ["old", "new"]
    assert "earlier processes had this pid" in three_jobs.run("10").stdout


@pytest.mark.parametrize("arguments", [["99"], ["--job", "none"], ["--last", "--job", "none"], ["99", "--json"]])
def test_nothing_matches(three_jobs, arguments):
    done = three_jobs.run(*arguments)
    assert done.returncode == 1
    assert done.stderr.startswith("sparkguard-report: no ") and done.stderr.count("\n") == 1
    assert "--json" not in arguments or json.loads(done.stdout)["jobs"] == []


def test_last_of_nothing_matches_nothing(report):
    assert report.run("--last").returncode == 1


@pytest.mark.parametrize("arguments", [["x", "y"], ["0"], ["-1"], ["12", "13"], ["--frobnicate"], ["--job"], ["99999999999"]])
def test_usage(report, arguments):
    done = report.run(*arguments)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


def test_help_and_version(report):
    done = report.run("--help")
    assert done.returncode == 0 and max(map(len, done.stdout.splitlines())) <= 80
    assert report.run("--version").stdout.startswith("sparkguard-report 0.")


def test_an_empty_directory_says_what_to_do(report):
    done = report.run()
    assert done.returncode == 0
    assert "sparkguard python3 train.py" in done.stdout and done.stdout.startswith("machine 128.0 GiB")


def test_a_directory_that_programs_do_not_use_is_told(report):
    report.directory.chmod(0o777)
    done = report.run()
    assert done.returncode == 0 and "nothing has run" not in done.stdout
    assert f"chmod o-w '{report.directory}'" in done.stdout


def test_a_missing_directory_is_empty_unless_named(report):
    report.directory.rmdir()
    assert report.run().returncode == 0
    assert report.json()["machine"]["sharing"] is False
    done = report.run("--dir", report.directory)
    assert done.returncode == 1 and str(report.directory) in done.stderr


def test_a_file_instead_of_a_directory_is_not_believed(report, tmp_path):
    (tmp_path / "file").touch()
    done = report.run("--dir", tmp_path / "file")
    assert done.returncode == 3 and "Not a directory" in done.stderr


def test_a_copy_shows_the_same(make, report, tmp_path):
    trainer(make).write(report.directory)
    shutil.copytree(report.directory, tmp_path / "copy")
    (copied,), (original,) = report.json("--dir", tmp_path / "copy")["jobs"], report.json()["jobs"]
    assert original.pop("directory") == str(report.directory) and copied.pop("directory") == str(tmp_path / "copy")
    assert copied == original


def test_a_loop_of_parents_ends(make, report):
    make(pid=5, parent_pid=6).write(report.directory)
    make(pid=6, parent_pid=5).write(report.directory)
    make(pid=7, parent_pid=7).write(report.directory)
    assert len(re.findall("python train.py", report.run().stdout)) == 3


def test_a_program_is_known_by_its_name_in_the_overview(make, report):
    command = "/a/very/long/way/to/the/place/where/its/home/is/bin/python3 /data/train.py a/b"
    make(command=command).write(report.directory)
    overview = report.run().stdout
    assert "python3 /data/train.py a/b" in overview and "/bin/python3" not in overview
    assert command in report.run(4711).stdout


def test_a_long_command_is_shortened_in_the_overview_only(make, report):
    make(command="python " + "é" * 100).write(report.directory)
    assert f" python {'é' * 38}... exited" in report.run().stdout
    assert "é" * 100 in report.run(4711).stdout


@pytest.mark.usefixtures("in_memory")
def test_thousands_of_ended_children_are_folded(make, report):
    for pid in range(1, 41):
        make(pid=pid).peak(heap=pid * MIB).write(report.directory)
    done = report.run()
    assert "and 24 smaller ended processes" in done.stdout
    assert done.stdout.count("python train.py") == 16
    assert report.run("--all").stdout.count("python train.py") == 40


@pytest.mark.usefixtures("in_memory")
def test_a_thousand_running_processes_are_folded_to_the_largest(make, report):
    """Children of folded ones stand in their place: here below the first of all. The sums are of all."""
    with contextlib.ExitStack() as owners:
        for number in range(1000):  # from 1000 on, a parent of four each; the first and the youngest hold most
            parent = {"parent_pid": 999 + (number + 3) // 4, "started_time_ns": START_NS + number}
            process = make(pid=1000 + number, state="running", command=f"worker {number}", **parent)
            process.domain("heap", granted=(number or 1000) * MIB)
            owners.enter_context(process.write_live(report.directory))
        done, everything = report.run(), report.run("--all")
        (job,) = report.json()["jobs"]
    assert len(job["processes"]) == 1000 and job["live_bytes"] == 500500 * MIB
    assert f"live {500500 / 1024:.1f} GiB" in done.stdout
    assert re.search(r"^1000 worker 0 ", done.stdout, re.MULTILINE)
    assert re.findall(r"^\d+ [├└]─worker (\d+)", done.stdout, re.MULTILINE) == [str(n) for n in range(953, 1000)]
    assert "and 952 smaller running processes; --all shows them\n" in done.stdout
    assert everything.stdout.count("worker ") == 1000 and "smaller" not in everything.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_unguarded_processes_are_listed(make, report):
    report.machine(MemTotal=GIB, MemAvailable=GIB)
    hold = "import sys; x = bytearray(1 << 30); print('ready', flush=True); sys.stdin.read()"
    with subprocess.Popen(["/usr/bin/python3", "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        shown = {u["pid"]: u for u in report.json()["unguarded"]}
        assert shown[child.pid]["resident_bytes"] > GIB
        assert "UNGUARDED PROCESS" in report.run().stdout
        ticks = int(Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[19])
        guarded = make(state="running", pid=child.pid, **{"slot.start_ticks": ticks})
        with guarded.write_live(report.directory):
            assert child.pid not in {u["pid"] for u in report.json()["unguarded"]}
        child.stdin.close()


def test_colour_only_on_a_terminal_and_never_with_no_color(four_states):
    assert "\x1b" not in four_states.run("4711").stdout
    for extra, has_colour in (({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)):
        env = four_states.environment(**{"TERM": "xterm", **extra})
        shown = all_shown([four_states.program, "4711"], env, columns=80)
        assert "python train.py" in shown
        assert ("\x1b[" in shown) == has_colour


def test_a_full_disk_is_noticed(make, report):
    """In the midst and at the end; nobody's status of the contract but 3."""
    for pid in range(1, 200):
        make(pid=pid, job=f"job {pid}").write(report.directory)
    for arguments in (["--all", "--json"], ["--all", "--csv"], ["1"]):
        with open("/dev/full", "w") as full:
            command = [report.program, *arguments]
            done = subprocess.run(command, env=report.environment(), stdout=full, stderr=subprocess.PIPE, text=True)
        assert done.returncode == 3
        assert done.stderr == "sparkguard-report: cannot write the report: No space left on device\n"


@pytest.mark.parametrize("form", [[], ["--json"], ["--csv"]])
@pytest.mark.parametrize("is_ignored", [False, True])
def test_a_reader_that_goes_away_ends_it_quietly(make, report, is_ignored, form):
    make().write(report.directory)
    (reader, writer) = os.pipe()
    os.close(reader)
    command = ["sh", "-c", ("trap '' PIPE; " if is_ignored else "") + 'exec "$0" "$@"', report.program, *form]
    done = subprocess.run(command, env=report.environment(), stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert (done.returncode, done.stderr) == (-signal.SIGPIPE, b"")


@pytest.mark.parametrize("typed", ["relative", "absolute", "name"])
def test_the_overview_ends_with_a_command_that_can_be_typed(make, report, tools, typed):
    """From the folder in which a relative path was typed, with the directory that was named."""
    make(pid=4711).write(report.directory)
    name = "sparkguard-report"
    command, path = {
        "relative": (f"{tools.name}/{name}", "/usr/bin:/bin"),
        "absolute": (str(tools / name), "/usr/bin:/bin"),
        "name": (str(tools / name), f"{tools}:/usr/bin:/bin"),
    }[typed]
    done = subprocess.run(
        [command, "--dir", str(report.directory)], cwd=tools.parent, env=report.environment(PATH=path),
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    told = re.search(r"^one process in depth: (.*)$", done.stdout, re.MULTILINE)[1]
    assert told.startswith((name if typed == "name" else command) + " ")
    again = subprocess.run(told, shell=True, cwd=tools.parent, env={"PATH": path}, capture_output=True, text=True)
    assert again.returncode == 0 and again.stdout.startswith("4711  "), (told, again.stderr)


def test_what_was_found_of_the_driver_is_told_by_name_and_against_assumptions_in_words(make, report):
    """Two bits for each fact; a value that no library writes is unknown."""
    make(pid=1).machine(driver_facts=0b11_01_10_00_01).write(report.directory)
    make(pid=2).machine(driver_facts=(1 << 32) - 1).write(report.directory)
    found = {pid: process["driver_facts"] for pid, process in processes(report.json("--all")).items()}
    assert list(found[1].items())[:5] == [
        ("device_memory_is_the_machines", "proved"),
        ("takes_what_is_asked", "unknown"),
        ("serves_what_fits", "disproved"),
        ("freed_is_back_at_once", "proved"),
        ("pool_keeps_freed", "unknown"),
    ]
    assert set(found[2].values()) == {"unknown"}
    assert "\nfound: the driver refuses what fits\n" in report.run(1).stdout
    assert "\nfound: " not in report.run(2).stdout


@pytest.mark.parametrize("page", ["docs/assumptions.md", "docs/man/sparkguard-report.1"])
def test_each_fact_of_the_driver_is_described(page):
    names = re.findall(r'^SG_DRIVER_FACT\(\w+, "(\w+)"', (ROOT / "include/driver_facts.def").read_text(), re.MULTILINE)
    assert len(names) == 7
    assert [name for name in names if name not in (ROOT / page).read_text()] == []
