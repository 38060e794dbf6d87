"""sparkguard-report: who is counted by whom, and whose programs are not counted here; of the ledger only what it begins with is read."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest
from lib.ledger import LIVE
from lib.units import GIB, MIB
from segment import CUDA, GUARDING, OBSERVE, SHARING, WATCHED

LEDGER = b"SPGLEDGR"  # what one of any version begins with

REASON = "not sharing: the machine's ledger belongs to somebody else"


def sharing(report, *arguments):
    return report.json(*arguments)["machine"]["sharing"]


def test_all_share_unless_one_that_runs_and_guards_does_not(make, report):
    alone = make(pid=2, state="running", **{"slot.flags": GUARDING})
    make(pid=3, **{"slot.flags": GUARDING}).write(report.directory)  # it has ended
    assert sharing(report)
    with make(pid=1, state="running").write_live(report.directory):
        assert sharing(report)
        with alone.write_live(report.directory):
            assert not sharing(report)
            assert not sharing(report, "--job", "train")
            for flags, expected in ((0, True), (GUARDING | OBSERVE, False), (GUARDING | SHARING | 2**31, True)):
                alone.set("slot.flags", flags).write(report.directory)
                assert sharing(report) == expected


def test_a_directory_that_cannot_be_read_is_not_known_to_share(report, tmp_path):
    (tmp_path / "file").touch()
    assert report.json("--dir", tmp_path / "file", status=3)["machine"]["sharing"] is False


def test_a_running_process_that_cannot_be_believed_is_not_known_to_share(make, report):
    other = make(pid=7, state="running", **{"slot.abi_version": 3})
    with other.write_live(report.directory):
        assert report.json(status=3)["machine"]["sharing"] is False
    assert report.json(status=3)["machine"]["sharing"] is True  # it has ended


def test_who_decides_alone_is_named_with_the_reason(make, report):
    told = make(pid=11, state="running", **{"slot.flags": GUARDING}).event("guarding again").event(REASON).event("later")
    untold = make(pid=12, state="running", **{"slot.flags": GUARDING})
    shares = make(pid=13, state="running").event(REASON)  # before it could
    with told.write_live(report.directory), untold.write_live(report.directory), shares.write_live(report.directory):
        overview = report.run().stdout
        told_view, untold_view, shares_view = (report.run(pid).stdout for pid in (11, 12, 13))
        processes = {p["pid"]: p for p in report.json()["jobs"][0]["processes"]}
    assert f"\n  11 decides alone: {REASON}\n  12 decides alone: not sharing\n" in overview
    assert "13 decides alone" not in overview
    assert f"\n  guarding, enforce\n  decides alone: {REASON}\n" in told_view
    assert "\n  decides alone: not sharing\n" in untold_view
    assert "\n  guarding, enforce, sharing\n" in shares_view and "alone" not in shares_view
    assert [processes[pid]["sharing"] for pid in (11, 12, 13)] == [False, False, True]


def test_who_has_ended_decides_nothing(make, report):
    make(**{"slot.flags": GUARDING}).event(REASON).write(report.directory)
    assert "decides alone" not in report.run().stdout + report.run(4711).stdout


def test_many_that_decide_alone_are_folded(make, report):
    files = [
        make(pid=pid, state="running", **{"slot.flags": GUARDING}).write_live(report.directory) for pid in range(1, 12)
    ]
    overview = report.run().stdout
    for file in files:
        file.close()
    assert overview.count("decides alone") == 8 and "\n  and so do 3 more\n" in overview


def test_the_watchdog_is_told(make, report):
    make(pid=1, **{"slot.flags": GUARDING | SHARING | WATCHED}).write(report.directory)
    make(pid=2).write(report.directory)
    processes = {p["pid"]: p for p in report.json()["jobs"][0]["processes"]}
    assert (processes[1]["watched"], processes[2]["watched"]) == (True, False)
    assert "\n  guarding, enforce, sharing, watched\n" in report.run(1).stdout


# ---- the ledger's file ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content, why", [(b"", "not a ledger"), (b"\xff", "not a ledger"), (b"SPGLEDGR", None), (None, "not a regular file")])
def test_a_ledger_that_is_none_is_told_and_changes_no_figure(make, report, content, why):
    """Of whichever version it is, that is its users' to judge."""
    name = "machine.ledger"
    with make(state="running").write_live(report.directory, in_registry=False):
        before = report.json()
        for path in (report.directory / name, report.directory / f"{name}.0123456789abcdef", report.directory / f"{name}."):
            path.write_bytes(content * 80000) if content is not None else os.mkfifo(path)
        done = report.run()
        after = json.loads(report.run("--json").stdout)
    assert done.returncode == (3 if why else 0)
    assert done.stderr.startswith(f"sparkguard-report: {report.directory}/{name}: {why}" if why else "")
    assert done.stderr.count("\n") == bool(why)
    assert before["jobs"][0]["processes"] == after["jobs"][0]["processes"]
    assert before["machine"]["sharing"] is True and after["machine"]["sharing"] is (why is None)


@pytest.fixture(scope="module")
def hold(tmp_path_factory):
    """Takes 64 MiB, says so, waits for the end of its input."""
    program = tmp_path_factory.mktemp("hold") / "hold"
    text = """
        #include <stdlib.h>
        #include <unistd.h>
        int main(void)
        {
            char *volatile block = malloc(64 << 20), byte;
            return block == NULL || write(1, "!", 1) != 1 || read(0, &byte, 1) < 0;
        }"""
    command = ["cc", "-O1", "-fno-builtin", "-x", "c", "-", "-o", str(program)]
    subprocess.run(command, input=text, text=True, check=True)
    return program


@contextmanager
def holding(guard, hold):
    with guard.popen([hold], stdin=subprocess.PIPE, stderr=None) as process:
        assert process.stdout.read(1) == "!"
        yield process
        process.stdin.close()
        assert process.wait(60) == 0


def test_real_processes_share(guard, report, hold):
    with holding(guard, hold), holding(guard, hold):
        data = report.json("--dir", guard.directory)
    assert data["machine"]["sharing"] is True
    assert [p["sharing"] for job in data["jobs"] for p in job["processes"]] == [True, True]


def test_a_real_process_that_cannot_share_says_why(guard, layout, report, hold):
    guard.directory.mkdir(mode=0o700, exist_ok=True)
    (guard.directory / "machine.ledger").write_bytes(LEDGER.ljust(layout["ledger.bytes"][1], b"x"))
    with holding(guard, hold) as process:
        data = report.json("--dir", guard.directory)
        overview = report.run("--dir", guard.directory).stdout
    assert data["machine"]["sharing"] is False
    assert f"\n  {process.pid} decides alone: not sharing: the machine's ledger is damaged, or another version's that cannot be shared\n" in overview


def test_a_copy_shows_what_it_is_a_copy_of(guard, report, hold, tmp_path):
    copy = tmp_path / "copy"
    with holding(guard, hold) as process:
        shutil.copytree(guard.directory, copy)
        assert [(p["pid"], p["state"]) for p in processes_of(report, copy)] == [(process.pid, "running")]
    assert [(p["pid"], p["state"]) for p in processes_of(report, copy)] == [(process.pid, "killed")]


def processes_of(report, directory):
    return [p for job in report.json("--all", "--dir", directory)["jobs"] for p in job["processes"]]


# ---- other users' directories ---------------------------------------------------------------------------------------

@pytest.fixture
def shm():
    """shm(name) makes a directory /dev/shm/sparkguard-<name><something>, as another user's programs do."""
    if not os.access("/dev/shm", os.W_OK):
        pytest.skip("no /dev/shm to write to")
    made = []

    def make_directory(name):
        made.append(Path(tempfile.mkdtemp(prefix=f"sparkguard-{name}", dir="/dev/shm")))
        return made[-1]

    yield make_directory
    for directory in made:
        directory.chmod(0o700)
        shutil.rmtree(directory)


def neighbours(text):
    found = re.search(r"^guarded programs of other users are not counted here:((.|\n  )*)", text, re.MULTILINE)
    return [name.strip(",") for name in found[1].split()] if found else []


@pytest.mark.parametrize("leaves", ["machine.ledger", "12-0123456789abcdef.segment"])
def test_directories_of_other_users_are_named(report, shm, leaves):
    report.directory, other = shm("!a"), shm("!b")
    (report.directory / "machine.ledger").write_bytes(LEDGER)
    done = report.run()
    assert done.returncode == 0 and str(other) not in neighbours(done.stdout)  # it is empty
    (other / leaves).write_bytes(LEDGER)
    done, machine = report.run(), report.json()["machine"]
    assert (done.returncode, done.stderr) == (0, "")
    assert str(other) in neighbours(done.stdout) and str(report.directory) not in done.stdout
    assert str(other) in machine["not_counted"] and machine["sharing"] is False


def test_a_directory_that_is_closed_to_us_may_hold_programs(report, shm):
    report.directory, other = shm("!a"), shm("!b")
    other.chmod(0)
    if os.geteuid() != 0:
        assert str(other) in report.json()["machine"]["not_counted"]
        return
    report.directory.chmod(0o755)
    command = ["setpriv", "--reuid=65534", "--clear-groups", "--inh-caps=-all", report.program, "--json"]
    done = subprocess.run(command, env=report.environment(), capture_output=True, text=True)
    assert str(other) in json.loads(done.stdout)["machine"]["not_counted"]


def test_what_is_no_directory_of_that_kind_is_nobodys(report, shm, tmp_path):
    report.directory, other = shm("!a"), shm("!b")
    (other / "README").touch()
    (other / ".x.segment").touch()
    link = Path(f"{report.directory}-link")
    link.symlink_to(tmp_path)
    file = Path(f"{report.directory}-file")
    file.touch()
    (tmp_path / "machine.ledger").write_bytes(LEDGER)
    try:
        text = report.run().stdout
    finally:
        link.unlink()
        file.unlink()
    assert not {str(link), str(file), str(other)} & set(neighbours(text))


def test_directories_that_are_read_are_no_neighbours(report, shm):
    first, second, third = shm("!a"), shm("!b"), shm("!c")
    for directory in (first, second, third):
        (directory / "machine.ledger").write_bytes(LEDGER)
    not_counted = report.json("--dir", first, "--dir", second)["machine"]["not_counted"]
    assert str(third) in not_counted and not {str(first), str(second)} & set(not_counted)


def test_ones_own_directory_is_none_of_other_users(report, shm):
    """It is left out where --dir names another."""
    if os.geteuid() != 0:
        pytest.skip("becomes another user: needs root")
    other, user = shm("!a"), 61000 + os.getpid() % 1000
    own = Path(f"/dev/shm/sparkguard-{user}")
    own.mkdir()
    try:
        (own / "machine.ledger").write_bytes(LEDGER)
        os.chown(own, user, user)
        other.chmod(0o755)
        command = ["setpriv", f"--reuid={user}", "--clear-groups", "--inh-caps=-all", report.program, "--dir", other]
        text = subprocess.run(command, env=report.environment(), capture_output=True, text=True).stdout
        machine = json.loads(subprocess.run([*command, "--json"], env=report.environment(), capture_output=True, text=True).stdout)["machine"]
        subprocess.run([*command, "--html", own / "page.html"], env=report.environment(), capture_output=True, check=True)
        html = (own / "page.html").read_text()
    finally:
        shutil.rmtree(own)
    assert f"\nyour own guarded programs are not counted here: {own}\n" in text and str(own) not in neighbours(text)
    assert str(own) not in machine["not_counted"] and machine["sharing"] is False
    assert f"Your own guarded programs are not counted here: <bdi>{own}</bdi>" in html


def test_only_the_places_by_default_have_neighbours(make, report, shm):
    (shm("!a") / "machine.ledger").write_bytes(LEDGER)
    machine = report.json()["machine"]
    assert machine["not_counted"] == [] and machine["sharing"] is True
    assert "not counted here" not in report.run().stdout


def test_names_of_other_directories_are_hostile(report, shm):
    """Anybody makes them: many, long ones, with characters that steer a terminal."""
    report.directory = shm("!0")
    for number in range(6):
        directory = Path(tempfile.mkdtemp(dir=shm(f"!{number}\x1b[2J\n")))
        (directory.parent / "machine.ledger").write_bytes(LEDGER)
    (shm("!" * 200) / "machine.ledger").write_bytes(LEDGER)
    done, machine = report.run(), report.json()["machine"]
    assert (done.returncode, done.stderr) == (0, "") and "\x1b" not in done.stdout
    assert len(machine["not_counted"]) == 4 and machine["not_counted"] == sorted(machine["not_counted"])
    assert re.search(r", \d+ more\n", done.stdout) and max(map(len, done.stdout.splitlines())) <= 80


# ---- figures --------------------------------------------------------------------------------------------------------


def test_unaccounted_memory_is_summed_over_those_that_run(make, report):
    flags = {"slot.flags": GUARDING | SHARING | CUDA}
    first = make(pid=1, state="running", unaccounted_bytes=5 * GIB // 2, **flags)
    second = make(pid=2, state="running", unaccounted_bytes=512 * MIB, **flags)
    plain = make(pid=3, state="running", unaccounted_bytes=GIB)  # without CUDA: nothing to measure
    below = make(pid=4, state="running", unaccounted_bytes=-4096, **flags)
    unknown = make(pid=5, state="running", unaccounted_bytes=-1, **flags)
    make(pid=6, unaccounted_bytes=7 * GIB, **flags).write(report.directory)
    assert report.json()["machine"]["unaccounted_bytes"] is None
    with plain.write_live(report.directory), unknown.write_live(report.directory):
        assert report.json()["machine"]["unaccounted_bytes"] is None
        with first.write_live(report.directory), second.write_live(report.directory), below.write_live(report.directory):
            data, overview = report.json(), report.run().stdout
            views = {pid: report.run(pid).stdout for pid in range(1, 7)}
    processes = {p["pid"]: p["unaccounted_bytes"] for p in data["jobs"][0]["processes"]}
    assert processes == {1: 5 * GIB // 2, 2: 512 * MIB, 3: None, 4: 0, 5: None, 6: 7 * GIB}
    assert data["machine"]["unaccounted_bytes"] == 3 * GIB
    assert "\nunaccounted 3.0 GiB: CUDA contexts" in overview
    assert "\nunaccounted 2.5 GiB (CUDA contexts" in views[1] and "\nunaccounted -\n" in views[3]
    assert "\nunaccounted -\n" in views[5] and "\nunaccounted 7.0 GiB" in views[6]


def show_files(worker, files):
    """The ranges of shared memory that a process shows: (file, first byte, size, what is missing)."""
    for i, (number, first, size, missing) in enumerate(files):
        begin = (number << 32) + first // 4096
        for field, value in (("begin", begin), ("end", begin + size // 4096), ("missing_bytes", missing)):
            worker.put("file", i, "sg_memory_file", field, value)


def test_promise_of_a_memory_file_counts_once(make, report):
    """Three workers map 1 GiB of one file; one of them was promised a GiB more, of another file and of no file."""
    shown = [[(7, 0, GIB, GIB)], [(7, 0, GIB, GIB), (8, 0, GIB, 512 * MIB)], [(8, 0, GIB, 256 * MIB), (7, 0, GIB, GIB // 2)]]
    promised = [GIB, 2 * GIB, 768 * MIB]
    with contextlib.ExitStack() as stack:
        for pid, (files, bytes_) in enumerate(zip(shown, promised), 1):
            worker = make(pid=pid, state="running", **{"slot.promised_bytes": bytes_})
            show_files(worker, files)
            stack.enter_context(worker.domain("mapped", granted=2 * GIB).write_live(report.directory))
        machine = report.json()["machine"]
    assert machine["promised_bytes"] == GIB + GIB


def test_shared_memory_counts_once_per_job_however_its_ranges_overlap(make, report):
    """Two workers of one job and one of another, each with 100 MiB of its own."""
    shown = [[(7, 0, 600 * MIB, 0)], [(7, 400 * MIB, 600 * MIB, 0), (8, 0, 50 * MIB, 0)], [(7, 0, GIB, 0)]]
    with contextlib.ExitStack() as stack:
        for pid, files in enumerate(shown, 1):
            worker = make(pid=pid, state="running", job="other" if pid == 3 else "job")
            show_files(worker, files)
            granted = 100 * MIB + sum(size for _, _, size, _ in files)
            stack.enter_context(worker.domain("mapped", granted=granted).write_live(report.directory))
        live = {job["job"]: job["live_bytes"] for job in report.json()["jobs"]}
    assert live == {"job": 200 * MIB + 1000 * MIB + 50 * MIB, "other": 100 * MIB + GIB}


@pytest.mark.parametrize("damage", [(7 << 32, 7 << 32), (8 << 32, 7 << 32), (7 << 32, 9 << 32), (0, 1 << 63)], ids=str)
def test_ranges_that_cannot_be_are_not_believed(make, report, damage):
    worker = make(pid=1, state="running")
    for field, value in zip(("begin", "end"), damage):
        worker.put("file", 0, "sg_memory_file", field, value)
    with worker.domain("mapped", granted=GIB).write_live(report.directory):
        assert report.json()["jobs"][0]["live_bytes"] == GIB


def with_origin(child, claim, entry, pid, bytes_):
    for field, value in (("claim", claim), ("bytes", bytes_), ("entry", entry), ("pid", pid)):
        child.put("origin", 0, "sg_origin", field, value)
    return child


def test_memory_that_children_have_from_a_parent_counts_once_when_the_parent_is_gone(make, report):
    """Two children of one parent, which held 3 GiB and gave one back before it ended."""
    children = [make(pid=pid, state="running", parent_pid=1, **{"slot.inherited_bytes": 3 * GIB}) for pid in (2, 3)]
    with contextlib.ExitStack() as stack:
        for number, child in enumerate(children, 1):
            with_origin(child, 1 << 2 | LIVE, 1, 1, 3 * GIB).domain("heap", granted=3 * GIB + GIB // 2)
            stack.enter_context(child.write_live(report.directory, number=number))
        for held in (3, 2):
            with make(pid=1, state="running").domain("heap", granted=held * GIB).write_live(report.directory, number=0):
                assert report.json()["jobs"][0]["live_bytes"] == 3 * GIB + GIB
        assert report.json()["jobs"][0]["live_bytes"] == 3 * GIB + GIB


def test_promise_of_a_parent_that_is_gone_is_its_childrens(make, report):
    parent = make(pid=1, state="running", **{"slot.promised_bytes": 3 * GIB}).domain("mapped", granted=3 * GIB)
    children = [make(pid=pid, state="running", parent_pid=1, **{"slot.inherited_promise_bytes": 3 * GIB}) for pid in (2, 3)]
    of_parent = {"parent_entry": 1, "parent_claim": 1 << 2 | LIVE}
    with contextlib.ExitStack() as stack:
        for number, child in enumerate(children, 1):
            stack.enter_context(child.domain("mapped", granted=3 * GIB).write_live(report.directory, number=number, **of_parent))
        with parent.write_live(report.directory, number=0):
            assert report.json()["machine"]["promised_bytes"] == 3 * GIB
        assert report.json()["machine"]["promised_bytes"] == 3 * GIB


def test_device_memory_that_a_child_inherited_counts_once(make, report, layout):
    parent = make(pid=1, state="running").device(0, "GPU", 24 * GIB, 5 * GIB)
    child = make(pid=2, state="running", **{"slot.inherited_bytes": 5 * GIB}).device(0, "GPU", 24 * GIB, 6 * GIB)
    offset = layout["sg_segment.inherited_domain_bytes"][0] + 8 * layout["domain.device"][0]
    child.data[offset : offset + 8] = (5 * GIB).to_bytes(8, "little")
    for segment, live in ((parent, 5), (child, 6)):
        segment.domain("device", granted=live * GIB)
    with parent.write_live(report.directory), child.write_live(report.directory):
        data = report.json()
    assert data["machine"]["devices"][0]["live_bytes"] == 6 * GIB
    assert data["jobs"][0]["live_bytes"] == 6 * GIB


@pytest.mark.parametrize("unified, guarded", [(1, "12.0 GiB"), (0, "2.0 GiB"), (-1, "12.0 GiB")])
def test_memory_of_a_discrete_gpu_is_none_of_the_machine(make, report, unified, guarded):
    live = make(state="running").domain("device", granted=10 * GIB).domain("heap", granted=2 * GIB)
    with live.machine(time_ns=1, unified=unified).write_live(report.directory):
        assert f"guarded {guarded}" in report.run().stdout
