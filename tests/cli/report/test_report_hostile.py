"""sparkguard-report never believes what it reads: one sentence names the file and why, exit 3, and good files are shown
all the same."""

import json
import os
import random
import subprocess
from pathlib import Path

import pytest
from lib.units import GIB
from segment import UNKNOWN


def expect_untrusted(report, name, why):
    done = report.run("--json", "--all")
    assert done.returncode == 3, done.stderr
    assert done.stderr.count("\n") == 1 and f"/{name}: " in done.stderr
    assert why in done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    "size, why",
    [
        (0, "too short"),
        (64, "too short"),
        (127, "too short"),
        (128, "cut short"),
        (5000, "cut short"),
        (32000, "says it has"),
    ],
)
def test_cut_short(make, report, size, why):
    good, bad = make(pid=1), make(pid=2)
    good.write(report.directory)
    del bad.data[size:]
    bad.write(report.directory)
    data = expect_untrusted(report, bad.name, why)
    assert [p["pid"] for job in data["jobs"] for p in job["processes"]] == [1]


@pytest.mark.parametrize(
    "field, value, why",
    [
        ("slot.magic", 0x1234, "wrong magic"),
        ("slot.magic", 0, "incomplete"),
        ("slot.abi_version", 3, "ABI version 3"),
        ("slot.abi_version", 0, "ABI version 0"),
        ("slot.pid", 0, "pid 0"),
        ("slot.pid", 2**32 - 1, "pid 4294967295"),
        ("slot.state", 0, "state 0"),
        ("slot.state", 5, "state 5"),
        ("slot.promised_bytes", 2**60, "absurd"),
        ("slot.in_flight_bytes", 2**62, "absurd"),
        ("segment_bytes", 100, "says it has"),
        ("segment_bytes", UNKNOWN, "says it has"),
        ("record_capacity", 2**32 - 1, "room for"),
        ("record_capacity", 65, "room for"),
        ("record_used", 2**32 - 1, "records are used"),
        ("peak_index", 2, "peak number 2"),
        ("peak_seen_bytes", 2**60, "absurd"),
        ("unaccounted_bytes", 2**60, "unaccounted"),
    ],
)
def test_fields_that_cannot_be(make, report, field, value, why):
    make(pid=1).write(report.directory)
    bad = make(pid=2, **{field: value})
    bad.write(report.directory)
    data = expect_untrusted(report, bad.name, why)
    assert len(data["jobs"][0]["processes"]) == 1


@pytest.mark.parametrize(
    "array, struct, index, member, value, why",
    [
        ("refusal", "sg_refusal", 0, "domain", 5, "domain 5"),
        ("refusal", "sg_refusal", 0, "domain", 255, "domain 255"),
        ("refusal", "sg_refusal", 0, "reason", 0, "reason 0"),
        ("refusal", "sg_refusal", 0, "reason", 5, "reason 5"),
        ("refusal", "sg_refusal", 0, "sequence", 2, "at place 0"),
        ("phase", "sg_phase", 3, "sequence", 1, "at place 3"),
        ("event", "sg_event", 31, "sequence", UNKNOWN - 1, "at place 31"),
        ("domain", "sg_domain_counters", 4, "granted_bytes", 2**60, "domain 4"),
        ("peak", "sg_peak", 0, "total_bytes", 2**60, "absurd peak"),
        ("site", "sg_callsite", 95, "live_bytes", 2**60, "absurd call site 95"),
        ("site", "sg_callsite", 3, "key", 5, "domain 5"),
    ],
)
def test_entries_that_cannot_be(make, report, array, struct, index, member, value, why):
    bad = make().refusal("malloc", "heap", GIB, "reserve")
    bad.put(array, index, struct, member, value).write(report.directory)
    expect_untrusted(report, bad.name, why)


def test_absurd_credit(make, report):
    bad = make().record(0, credit=1 << 60)
    bad.write(report.directory)
    expect_untrusted(report, bad.name, "absurd credit")


def test_longer_than_any_segment(make, report):
    bad = make()
    path = bad.write(report.directory)
    os.truncate(path, 1 << 30)
    expect_untrusted(report, bad.name, "longer than any segment")


def test_not_a_regular_file(make, report, tmp_path):
    make(pid=1).write(tmp_path)
    os.mkfifo(report.directory / "1-a.segment")
    os.symlink(tmp_path / "1-0000000000000001.segment", report.directory / "2-b.segment")
    (report.directory / "3-c.segment").mkdir()
    os.symlink(report.directory / "none", report.directory / "4-d.segment")
    done = report.run("--json")
    assert done.returncode == 3
    assert done.stderr.count("not a regular file") == 4 and done.stderr.count("\n") == 4
    assert json.loads(done.stdout)["jobs"] == []


def test_other_files_are_none_of_ours(report):
    for name in ("README", "segment", ".segment", ".x.segment", "1-a.segment.bak"):
        (report.directory / name).write_bytes(b"garbage" * 100)
    os.mkfifo(report.directory / "fifo")
    done = report.run()
    assert (done.returncode, done.stderr) == (0, "")


def test_a_segment_being_set_up_is_passed_over(make, report):
    with make(state="running", **{"slot.magic": 0}).write_live(report.directory):
        done = report.run()
    assert (done.returncode, done.stderr) == (0, "")


def test_control_characters_do_not_reach_the_terminal(make, report):
    evil = "a\x1b]0;title\x07\nb\r\x7f\u202ec\u009b31md\\x"
    segment = make(command=evil, job=evil).refusal(evil, "heap", GIB, "reserve").phase(evil, 1, 1).event(evil)
    segment.device(0, evil, GIB, 0)
    with segment.set("slot.state", 1).write_live(report.directory):
        for locale in ("C", "C.UTF-8"):
            for arguments in ((), ("4711",)):
                shown = report.run(*arguments, LC_ALL=locale).stdout
                assert not set(shown) & set("\x1b\x07\r\x7f\u202e\u009b")
                assert "a\\x1b]0;title\\x07\\x0ab\\x0d\\x7f\\u202ec\\x9b31md\\x" in shown  # the name of the job
        raw = report.run("--json").stdout
    assert not set(raw) & set("\x1b\x07\r\x7f\u202e\u009b")
    assert json.loads(raw)["jobs"][0]["processes"][0]["command"] == evil


def test_bytes_that_are_no_text_are_still_json(make, report):
    make(command=b"\xff\xfe caf\xe9 \xc3\xa9 \xe2\x82 \xed\xa0\x80 \xf4\x90\x80\x80").write(report.directory)
    process = report.json()["jobs"][0]["processes"][0]
    assert process["command"].startswith("\ufffd\ufffd caf\ufffd \u00e9 ")
    assert "\\xff\\xfe caf\\xe9 \u00e9" in report.run().stdout


def test_texts_without_an_end(make, report):
    segment = make(job="j" * 64, command="c" * 256).refusal("f" * 40, "heap", GIB, "reserve")
    segment.phase("p" * 64, 1, 1).event("e" * 112).write(report.directory)
    job = report.json()["jobs"][0]
    process = job["processes"][0]
    assert (job["job"], process["command"]) == ("j" * 64, "c" * 256)
    assert process["refusals"][0]["call"] == "f" * 40
    assert process["phases"][0]["name"] == "p" * 64
    assert process["events"][0]["what"] == "e" * 112
    assert report.run(4711).returncode == 0


def test_a_hostile_name_of_a_file_is_escaped(report):
    (report.directory / "1\x1b[2J\n.segment").touch()
    done = report.run()
    assert done.returncode == 3
    assert "\x1b" not in done.stderr and done.stderr.count("\n") == 1


def test_random_bytes_are_refused_or_shown_but_never_crash(make, report):
    generator = random.Random(20261120)
    for number in range(60):
        segment = make(pid=number + 1, record_used=64).refusal("malloc", "heap", GIB, "reserve").phase("p", 1, 1)
        for _ in range(generator.choice((1, 10, 1000))):
            segment.data[generator.randrange(128, len(segment.data))] = generator.randrange(256)
        segment.write(report.directory)
    for arguments in (["--json", "--all"], ["--all"], ["7"]):
        done = report.run(*arguments)
        assert done.returncode in (0, 1, 3)
        assert arguments[0] != "--json" or json.loads(done.stdout)["schema"] == 1


def found(report, folder):
    """What is shown of the directories that a pattern matches, and what was said."""
    done = report.run("--json", "--all", "--dir", f"{folder}/found*")
    return [p["pid"] for job in json.loads(done.stdout)["jobs"] for p in job["processes"]], done.stderr.splitlines()


def test_a_record_of_several_names_is_nobodys(make, report):
    """Hard links cost their maker nothing; a record is read once for each name."""
    make(pid=1).write(report.directory)
    bad = make(pid=2)
    bad.write(report.directory)
    os.link(report.directory / bad.name, report.directory / "3-0000000000000003.segment")
    done = report.run("--json", "--all")
    assert done.returncode == 3 and done.stderr.count("it has several names") == 2
    assert [p["pid"] for job in json.loads(done.stdout)["jobs"] for p in job["processes"]] == [1]


def test_of_each_owner_a_bounded_number_of_found_records_is_read(make, report, tmp_path):
    """Others' are shown all the same, also from the same directory."""
    if os.geteuid() != 0:
        pytest.skip("makes files of other users: needs root")
    for number, folder in enumerate(("found1", "found2")):
        (tmp_path / folder).mkdir()
        for at in range(400):
            one = make(pid=1000 + number * 1000 + at)
            one.write(tmp_path / folder)
            os.chown(tmp_path / folder / one.name, 51002, 51002)
    for pid, owner in ((5000, 51003), (5001, 0)):
        one = make(pid=pid)
        one.write(tmp_path / "found2")
        os.chown(tmp_path / "found2" / one.name, owner, owner)
    pids, said = found(report, tmp_path)
    assert {5000, 5001} <= set(pids) and len(pids) == 512 + 2
    assert len(said) == 1 and "nor are others of its owner: there are too many" in said[0]


def test_of_a_found_directory_a_bounded_number_of_complaints_is_kept(report, tmp_path, make):
    (tmp_path / "found").mkdir()
    for at in range(600):
        os.mkfifo(tmp_path / f"found/{1000 + at}-{at:016x}.segment")
    make(pid=7).write(tmp_path / "found")
    pids, said = found(report, tmp_path)
    assert pids == [7] and len(said) <= 17


SERVICE = Path(__file__).resolve().parents[3] / "scripts/systemd/sparkguard-metrics.service"


@pytest.fixture
def memory_group():
    """memory_group(bytes) is a file: who writes itself into it has no more memory, nor swap."""
    made = []

    def make(limit):
        for root, file in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
            folder = Path(root, f"sparkguard-test-{os.getpid()}")
            try:
                folder.mkdir()
            except OSError:
                continue
            made.append(folder)
            if (folder / file).exists():
                (folder / file).write_text(str(limit))
                for swap, most in (("memory.memsw.limit_in_bytes", str(limit)), ("memory.swap.max", "0")):
                    if (folder / swap).exists():
                        (folder / swap).write_text(most)
                return folder / "cgroup.procs"
        pytest.skip("no memory cgroup can be made here: needs root")

    yield make
    for folder in made:
        folder.rmdir()


@pytest.mark.usefixtures("in_memory")
def test_the_metrics_service_does_its_work_within_the_limits_of_its_unit(make, report, tmp_path, memory_group):
    """On what users can leave in /dev/shm: more records than are read, files without an end, FIFOs, hard links."""
    keys = dict(line.split("=", 1) for line in SERVICE.read_text().splitlines() if "=" in line and not line.startswith("#"))
    procs = memory_group(int(keys["MemoryMax"].removesuffix("M")) << 20)
    folder = report.directory.parent / "found"
    folder.mkdir()
    one = make(pid=7)
    for at in range(1000):
        (folder / f"{1000 + at}-{at:016x}.segment").write_bytes(one.data)
    for at in range(300):
        os.mkfifo(folder / f"{5000 + at}-{at:016x}.segment")
        os.link(folder / f"1000-{0:016x}.segment", folder / f"{6000 + at}-{at:016x}.segment")
        (folder / f"{7000 + at}-{at:016x}.segment").touch()
        os.truncate(folder / f"{7000 + at}-{at:016x}.segment", 1 << 40)
    limits = [f"--cpu={keys['LimitCPU']}", f"--nofile={keys['LimitNOFILE']}"]
    words = [report.program, "--prometheus", f"--dir={folder.parent}/foun[d]", f"--output={tmp_path}/metrics"]
    done = subprocess.run(["sh", "-c", f'echo $$ >{procs} && exec prlimit {" ".join(limits)} "$@"', "sh", *words], env=report.environment(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
    assert "sparkguard_" in (tmp_path / "metrics").read_text()
