"""sparkguard-sweep: over a machine of files, real programs under the real library find their largest safe values."""

import json
import math
import os
import re
import signal
import subprocess
import termios
from pathlib import Path

import pytest
from lib import pty
from sweeping import GB, GIB, MIB, PIECE, PYTHON, ROOM, alive, outcomes, reap, recorded, sweep, wait_for_death  # noqa: F401 - and fixtures

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
SFT = {2: 21.1, 4: 29.0, 8: 46.8, 16: 80.9}  # GB, of the methodology's table


# ---- a real sweep ---------------------------------------------------------------------------------------------------


def test_finds_the_maximum_and_does_not_start_what_would_not_fit(sweep):
    values = [1, 2, 4, 6, 8, 16, 24]
    report = sweep.json("-p", "batch=" + ",".join(map(str, values)), "--", PYTHON, "grow.py", "{batch}")
    right = max(v for v in values if v * v * PIECE + 10 * MIB < ROOM)
    assert report["recommended"] == {"values": {"batch": right}} and right == 8
    assert sweep.starts() == [1, 2, 4, 6, 8]
    assert outcomes(report) == {1: "ok", 2: "ok", 4: "ok", 6: "ok", 8: "ok", 16: "not started", 24: "skipped"}
    runs = {run["values"]["batch"]: run for run in report["runs"]}
    assert runs[16]["predicted_bytes"] == pytest.approx(16 * 16 * PIECE, rel=0.05)
    assert runs[8]["predicted_bytes"] == pytest.approx(runs[8]["needed_bytes"], rel=0.02)
    assert 64 * PIECE <= runs[8]["peak_bytes"] < 64 * PIECE + 20 * MIB
    assert runs[8]["headroom_bytes"] == ROOM - runs[8]["needed_bytes"]
    assert report["complete"] is True and runs[8]["duration_ms"] > 0
    assert "would need" in runs[16]["notes"] and "grows with batch^2.0" in runs[16]["notes"]


def test_a_refusal_stops_the_parameter(sweep):
    """With one point nothing is predicted: it is started and refused, and nothing that is larger is."""
    command = ("-p", "batch=4,16,24", "-p", "accum=1,2", "--", PYTHON, "grow.py", "{batch}", "{accum}")
    report = sweep.json(*command)
    assert sweep.starts() == [4, 16, 4]
    assert [run["status"] for run in report["runs"]] == ["ok", "refused", "skipped", "ok", "skipped", "skipped"]
    assert report["recommended"] == {"values": {"batch": 4, "accum": 2}}
    refused = report["runs"][1]
    assert refused["refused_count"] > 0 and refused["exit_code"] == 1
    assert re.fullmatch(r"mmap(64)? of 4\.0 MiB refused \(reserve\)", refused["notes"])
    assert report["runs"][2]["notes"] == "batch=16 accum=1 was refused"


def test_one_that_goes_on_after_a_refusal_is_no_maximum(sweep):
    code = "import mmap, sys\ntry: mmap.mmap(-1, int(sys.argv[1]) << 20)\nexcept OSError: pass"
    report = sweep.json("-p", "size=100,700", "--", PYTHON, "-c", code, "{size}")
    assert [run["status"] for run in report["runs"]] == ["ok", "refused"]
    assert report["runs"][1]["notes"].endswith("; it went on") and report["runs"][1]["exit_code"] == 0


def test_nothing_fits(sweep):
    done = sweep.grow("16,24")
    assert done.returncode == 1 and "nothing fits" in done.stdout
    assert sweep.starts() == [16]


def test_numbers_run_from_the_smallest_on_and_words_as_given(sweep):
    done = sweep.run("-p", "a=10,9,1e0", "-p", "b=yes,no", "--dry-run", "--", "x", "{a}{b}", "{c}{")
    rows = [line.split()[:2] for line in done.stdout.splitlines()[1:]]
    assert rows == [["1e0", "yes"], ["9", "yes"], ["10", "yes"], ["1e0", "no"], ["9", "no"], ["10", "no"]]
    assert "x 1e0yes {c}{" in done.stdout and "refused" not in done.stderr


def test_of_words_none_is_larger_than_another(sweep):
    code = "import sys; sys.exit(sys.argv[1] == 'a')"
    report = sweep.json("-p", "way=a,b", "-p", "n=1,2", "--", PYTHON, "-c", code, "{way}", "{n}")
    assert [(r["values"]["way"], r["values"]["n"], r["status"]) for r in report["runs"]] == [
        ("a", 1, "failed"), ("b", 1, "ok"), ("a", 2, "skipped"), ("b", 2, "ok")]  # fmt: skip


@pytest.mark.parametrize(
    "code, status, note",
    [
        ("print('one'); print('bad luck'); raise SystemExit(3)", "failed", "exit status 3: bad luck"),
        ("import os; os.kill(os.getpid(), 9)", "killed", "SIGKILL"),
        ("import sys; print('\\x1b[31m\\xff', end=''); sys.exit(1)", "failed", "exit status 1: \\x1b[31m\\u00ff"),
    ],
)
def test_how_it_ended(sweep, code, status, note):
    report = sweep.json("-p", "n=1,2", "--", PYTHON, "-c", code, "{n}", status=1)
    assert [run["status"] for run in report["runs"]] == [status, "skipped"]
    assert report["runs"][0]["notes"].replace("\\xff", "\\u00ff") == note


def test_a_run_ends_at_its_time_limit_with_its_whole_group(sweep, reap):
    code = "sleep 1000 & echo $! >child; wait"
    process = sweep.start("--json", "--timeout=1h", "-p", "n=1,2", "--", "sh", "-c", code, "{n}")
    reap(process)
    child = int(sweep.wait_for("child"))
    sweep.clock.look(3500)
    assert alive(child)
    sweep.clock.move(100)
    report = json.loads(process.communicate()[0])
    assert process.returncode == 1 and [run["status"] for run in report["runs"]] == ["timed out", "skipped"]
    wait_for_death(child)


def test_the_whole_group_is_asked_to_end(sweep, reap):
    child = "trap 'echo yes >saved; exit' TERM; echo ready >ready; while :; do sleep 0.1; done"
    process = sweep.start("--timeout=1h", "-p", "n=1", "--", "sh", "-c", f"trap : TERM; ({child}) & wait; wait", "{n}")
    reap(process)
    sweep.wait_for("ready")
    sweep.clock.look()
    sweep.clock.move(3600)
    process.communicate()
    assert (sweep.folder / "saved").exists()


def test_a_run_that_does_not_end_when_asked_is_killed_after_ten_seconds(sweep, reap):
    process = sweep.start("--json", "--timeout=1h", "-p", "n=1", "--", "sh", "-c", "trap '' TERM; echo $$ >at; while :; do sleep 0.1; done", "{n}")
    reap(process)
    pid = int(sweep.wait_for("at"))
    sweep.clock.look(3600)
    sweep.clock.move(-5)  # however slow this test is, ten seconds are not over
    sweep.clock.look()
    assert alive(pid)
    sweep.clock.move(15)
    report = json.loads(process.communicate()[0])
    assert [run["status"] for run in report["runs"]] == ["timed out"] and not alive(pid)


def test_what_a_run_leaves_behind_is_ended(sweep):
    sweep.run("-p", "n=1", "--", "sh", "-c", "sleep 1000 >&- 2>&- & echo $! >child", "{n}")
    wait_for_death(int(sweep.wait_for("child")))


def test_a_margin_is_left(sweep):
    report = json.loads(sweep.grow("2,4,6,8", "--margin=400M", "--json").stdout)
    assert report["recommended"] == {"values": {"batch": 6}}
    assert outcomes(report)[8] == "not started"


def test_the_guard_is_never_left_out(sweep, tmp_path):
    for variable in ({"SPARKGUARD_MODE": "observe"}, {"SPARKGUARD_DISABLE": "1"}):
        done = sweep.grow("1", **variable)
        assert done.returncode == 2 and "unset them" in done.stderr
    (tmp_path / "static.c").write_text("int main(void) { return 0; }\n")
    subprocess.run(["cc", "-static", "-o", tmp_path / "static", tmp_path / "static.c"], check=True)
    done = sweep.run("-p", "n=1", "--", tmp_path / "static", "{n}")
    assert done.returncode == 125 and "nothing was started" in done.stderr
    assert sweep.starts() == []


def test_programs_that_cannot_be_run(sweep):
    assert sweep.run("-p", "n=1", "--", "/no/such/program", "{n}").returncode == 127
    assert sweep.run("--fresh", "-p", "n=1", "--", "/etc/passwd", "{n}").returncode == 126


# ---- resuming -------------------------------------------------------------------------------------------------------


def kill_at(sweep, reap, batch, number=signal.SIGKILL):
    """Ends a sweep over 1, 2, 4, 6 while `batch` runs, and the run with it; its output."""
    (sweep.folder / f"gate-{batch}").touch()
    process = sweep.start("-p", "batch=1,2,4,6", "--", PYTHON, "grow.py", "{batch}")
    reap(process)
    pid = int(sweep.wait_for(f"at-{batch}"))
    process.send_signal(number)
    output = process.communicate(timeout=60)
    assert process.returncode == -number
    if number == signal.SIGKILL:
        wait_for_death(pid)  # the kernel ends the run with it
    assert not alive(pid)
    (sweep.folder / f"gate-{batch}").unlink()
    return output


def test_goes_on_after_it_was_killed(sweep, reap):
    kill_at(sweep, reap, 4)
    assert sweep.starts() == [1, 2, 4]
    done = sweep.grow("1,2,4,6", "--json")
    assert "continuing the sweep of" in done.stderr and "2 of 4 measured" in done.stderr
    assert "batch=4 was under way when the sweep ended; it is run again" in done.stderr
    assert sweep.starts() == [1, 2, 4, 4, 6]
    report = json.loads(done.stdout)
    assert [run["attempts"] for run in report["runs"]] == [1, 1, 2, 1]
    assert report["recommended"] == {"values": {"batch": 6}} and report["complete"] is True


def test_does_not_repeat_what_was_under_way_when_the_machine_went_down(sweep, reap):
    kill_at(sweep, reap, 4)
    sweep.state.write_text(sweep.state.read_text().replace(sweep.boot(), "00000000-dead-0000-0000-000000000000"))
    done = sweep.grow("1,2,4,6", "--json")
    assert "batch=4 was under way when the machine went down; it is not run again without --retry" in done.stderr
    assert sweep.starts() == [1, 2, 4]
    assert outcomes(json.loads(done.stdout)) == {1: "ok", 2: "ok", 4: "lost", 6: "skipped"}
    report = json.loads(sweep.grow("1,2,4,6", "--retry", "--json").stdout)
    assert sweep.starts() == [1, 2, 4, 4, 6]
    assert set(outcomes(report).values()) == {"ok"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_run_first_and_records(sweep, reap, number):
    table, talk = kill_at(sweep, reap, 4, number)
    assert "the same command continues" in talk and "interrupted" in table
    assert "largest so far: batch=2" in table and "recommended" not in table
    assert sweep.grow("1,2,4,6").returncode == 0
    assert sweep.starts() == [1, 2, 4, 4, 6]


def test_a_signal_that_the_caller_ignores_stays_ignored(sweep, reap):
    """Under nohup(1), and in the background of a shell without job control."""
    (sweep.folder / "gate-1").touch()
    ignore = lambda: [signal.signal(number, signal.SIG_IGN) for number in (signal.SIGHUP, signal.SIGINT)]
    process = sweep.start("-p", "batch=1,2", "--", PYTHON, "grow.py", "{batch}", preexec_fn=ignore)
    reap(process)
    sweep.wait_for("at-1")
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGINT)
    sweep.clock.look()
    (sweep.folder / "gate-1").unlink()
    process.communicate(timeout=60)
    assert process.returncode == 0 and sweep.starts() == [1, 2]


def test_a_run_that_ignores_the_signal_is_killed_by_the_second(sweep, reap):
    process = sweep.start("-p", "n=1", "--", "sh", "-c", "trap '' TERM; echo $$ >at; while :; do sleep 0.1; done", "{n}")
    reap(process)
    pid = int(sweep.wait_for("at"))
    process.send_signal(signal.SIGTERM)
    sweep.clock.look()  # two that come at once are one
    sweep.clock.move(-3600)  # the time at which it is killed anyway does not come
    assert alive(pid)
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert process.returncode == -signal.SIGTERM and not alive(pid)


def test_a_complete_sweep_is_shown_or_measured_anew(sweep):
    sweep.grow("1,2")
    shown = sweep.grow("1,2", "--resume")
    assert shown.returncode == 0 and "recommended maximum: batch=2" in shown.stdout and sweep.starts() == [1, 2]
    again = sweep.grow("1,2")
    assert "measuring again" in again.stderr and sweep.starts() == [1, 2, 1, 2]


def test_fresh_forgets(sweep, reap):
    kill_at(sweep, reap, 2)
    assert sweep.grow("1,2,4,6", "--fresh").returncode == 0
    assert sweep.starts() == [1, 2, 1, 2, 4, 6]


def test_json_has_the_numbers_and_words_that_were_given(sweep):
    """Also what is not UTF-8, and without a character that could steer a terminal."""
    done = sweep.run("--json", "-p", "x=-7e-9,0.00001,2.5,3,1e22", "--", "true", "caf\udce9", "\xe9\x9b\u202e\x7f\x1b\\", "{x}")
    report = json.loads(done.stdout)
    assert report["command"] == ["true", "caf\ufffd", "\xe9\x9b\u202e\x7f\x1b\\", "{x}"]
    assert [run["values"]["x"] for run in report["runs"]] == [-7e-9, 0.00001, 2.5, 3, 1e22]
    assert type(report["runs"][3]["values"]["x"]) is int
    assert "\xe9" in done.stdout and not set(done.stdout) & set("\x9b\u202e\x7f\x1b")


def test_nothing_to_resume(sweep):
    done = sweep.grow("1", "--resume")
    assert done.returncode == 1 and done.stderr.startswith("sparkguard-sweep: nothing to resume: ")
    assert sweep.starts() == []


def test_one_sweep_at_a_time(sweep, reap):
    (sweep.folder / "gate-1").touch()
    first = sweep.start("-p", "batch=1", "--", PYTHON, "grow.py", "{batch}")
    reap(first)
    sweep.wait_for("at-1")
    second = sweep.grow("1", "--fresh")
    assert second.returncode == 3 and "another sparkguard-sweep runs this command" in second.stderr
    (sweep.folder / "gate-1").unlink()
    first.communicate(timeout=60)
    assert first.returncode == 0 and sweep.starts() == [1]


def test_where_the_record_is(sweep, tmp_path):
    def records(**extra):
        command = [str(sweep.program), "-p", "n=1", "--", "true", "{n}"]
        done = subprocess.run(command, env=sweep.environment(**extra), cwd=sweep.folder, capture_output=True, timeout=60)
        assert done.returncode == 0
        return sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("sweep-*") if p.suffix == "")

    assert records(SPARKGUARD_HISTORY="off", HOME=str(tmp_path)) == []
    assert [re.sub("[0-9a-f]{16}", "X", p) for p in records(XDG_STATE_HOME=str(tmp_path / "x"))] == ["x/sparkguard/sweep-X"]
    assert any(p.startswith("h/sweep-") for p in records(SPARKGUARD_HISTORY=str(tmp_path / "h")))
    found = records(HOME=str(tmp_path / "home"), XDG_STATE_HOME="")
    assert any(p.startswith("home/.local/state/sparkguard/sweep-") for p in found)


PLAN = ("batch=1,2", f"{PYTHON} grow.py {{batch}}")
GOOD = [recorded(0, "ok", 20 * MIB, ROOM), recorded(1, "interrupted", None, ROOM)]


BYTES = f'"needed_bytes": {20 * MIB}'
SPOILT = {
    "empty": lambda text: "",
    "other file": lambda text: "hello\n",
    "other JSON": lambda text: "[]",
    "other version": lambda text: text.replace('"sparkguard-sweep": 2', '"sparkguard-sweep": 3'),
    "first version": lambda text: "sparkguard-sweep 1\nidentity x\n",
    "other sweep": lambda text: text.replace("batch=1,2", "batch=1,3"),
    "cut short": lambda text: text[: text.index("}") + 1],
    "torn": lambda text: text[:-1],
    "no runs": lambda text: text.replace('"runs"', '"walks"'),
    "runs of another type": lambda text: text.replace('"runs": [', '"runs": 1, "walks": ['),
    "run of another type": lambda text: text.replace('"runs": [', '"runs": [1,'),
    "a key missing": lambda text: text.replace('"refused_count": 0,', "", 1),
    "a key twice": lambda text: text.replace('"refused_count": 0,', '"refused_count": 0, "refused_count": 0,', 1),
    "a run twice": lambda text: text.replace('"run": 1', '"run": 0'),
    "no such run": lambda text: text.replace('"run": 1', '"run": 2'),
    "run -1": lambda text: text.replace('"run": 1', '"run": -1'),
    "run unknown": lambda text: text.replace('"run": 1', '"run": null'),
    "no such status": lambda text: text.replace('"interrupted"', '"over"'),
    "status unknown": lambda text: text.replace('"interrupted"', "null"),
    "status pending": lambda text: text.replace('"interrupted"', '"pending"'),
    "absurd bytes": lambda text: text.replace(BYTES, f'"needed_bytes": {1 << 57}'),
    "overflow": lambda text: text.replace(BYTES, '"needed_bytes": ' + "9" * 40),
    "negative": lambda text: text.replace(BYTES, '"needed_bytes": -5'),
    "a fraction": lambda text: text.replace(BYTES, '"needed_bytes": 1.5'),
    "a text": lambda text: text.replace(BYTES, '"needed_bytes": "5"'),
    "hexadecimal": lambda text: text.replace(BYTES, '"needed_bytes": 0x10'),
    "absurd time": lambda text: text.replace('"begun_ns": 1', '"begun_ns": 7'),
    "half complete": lambda text: text.replace('"complete": false', '"complete": 0'),
    "no machine": lambda text: text.replace("total_bytes", "total_byte"),
    "more behind": lambda text: text + "{}",
    "NUL": lambda text: text.replace('"ok"', '"ok\0"'),
    "NUL behind": lambda text: text + "\0 ",
    "deep": lambda text: "[" * (1 << 20),
    "long": lambda text: text + " " * (9 << 20),
}


@pytest.mark.parametrize("how", SPOILT)
def test_a_record_that_cannot_be_trusted_is_one_sentence(sweep, how):
    sweep.record(*PLAN, GOOD, complete=False)
    good = sweep.state.read_text()
    sweep.state.write_text(SPOILT[how](good))
    assert sweep.state.read_text() != good
    done = sweep.grow("1,2")
    assert (done.returncode, done.stdout, sweep.starts()) == (3, "", [])
    assert re.fullmatch(rf"sparkguard-sweep: {sweep.state}: .*; --fresh starts a new one\n", done.stderr)
    assert sweep.grow("1,2", "--fresh").returncode == 0 and sweep.starts() == [1, 2]


def test_the_good_record_of_those_is_gone_on_with(sweep):
    sweep.record(*PLAN, GOOD, complete=False)
    assert sweep.grow("1,2").returncode == 0 and sweep.starts() == [2]


@pytest.mark.parametrize("status", ["not started", "skipped"])
def test_what_was_not_started_is_looked_at_again(sweep, status):
    """There may be more room now."""
    sweep.record(*PLAN, [GOOD[0], recorded(1, status, None, ROOM, attempts=0)], complete=False)
    assert sweep.grow("1,2").returncode == 0 and sweep.starts() == [2]


@pytest.mark.parametrize("kind", ["folder", "fifo", "link"])
def test_a_record_that_is_no_file(sweep, kind):
    if kind == "folder":
        sweep.state.mkdir()
    elif kind == "fifo":
        os.mkfifo(sweep.state)
    else:
        sweep.record(*PLAN, GOOD)
        sweep.state.rename(sweep.folder / "elsewhere")
        sweep.state.symlink_to(sweep.folder / "elsewhere")
    done = sweep.grow("1,2")
    assert done.returncode == 3 and done.stderr.count("\n") == 1 and sweep.starts() == []


def test_a_note_of_a_record_does_not_steer_the_terminal(sweep):
    sweep.record(*PLAN, [recorded(0, "failed", None, ROOM, note="\x1b[2J\xff|`"), GOOD[1] | {"status": "skipped"}])
    done = sweep.grow("1,2", "--resume", "--export=t.md")
    assert "\x1b" not in done.stdout and "\\x1b[2J" in done.stdout
    assert "\\|\\`" in (sweep.folder / "t.md").read_text()


def test_a_record_that_cannot_be_written_starts_nothing(sweep, tmp_path):
    sweep.state = tmp_path / "nowhere" / "record"
    done = sweep.grow("1")
    assert done.returncode == 3 and "give another path with --state=FILE" in done.stderr and sweep.starts() == []


# ---- a clean machine ------------------------------------------------------------------------------------------------


@pytest.fixture
def neighbour(sweep, tools, reap):
    """A guarded process that holds 64 MiB."""
    env = sweep.environment(LD_PRELOAD=str(tools / "libsparkguard.so"))
    code = "held = bytearray(64 << 20); print('here', flush=True); input()"
    process = subprocess.Popen(
        [PYTHON, "-c", code], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )  # fmt: skip
    reap(process)
    assert process.stdout.readline() == "here\n"
    return process


def test_a_machine_that_does_not_become_clean(sweep, neighbour):
    done = sweep.grow("1", "--clean-wait=0.3")
    assert done.returncode == 4 and sweep.starts() == []
    assert re.search(rf"not clean: guarded process {neighbour.pid} \(.*\) holds \d+\.\d MiB", done.stderr)
    assert sweep.grow("1", "--unclean").returncode == 0 and sweep.starts() == [1]


def test_waits_until_the_machine_is_clean_and_says_for_what(sweep, neighbour, reap):
    process = sweep.start("-p", "batch=1", "--", PYTHON, "grow.py", "{batch}")
    reap(process)
    line = process.stderr.readline()
    assert re.match(rf"waiting up to \d+\.\d s for a clean machine: guarded process {neighbour.pid} ", line)
    neighbour.communicate("\n")
    assert process.wait(timeout=60) == 0 and sweep.starts() == [1]


def test_a_large_unguarded_process_is_in_the_way(sweep, reap):
    holder = subprocess.Popen(
        [PYTHON, "-c", "held = b'x' * (100 << 20); print('here', flush=True); input()"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    reap(holder)
    holder.stdout.readline()
    sweep.machine(ROOM, total=4 * GIB)
    done = sweep.grow("1", "--clean-wait=0", "--large=80M")
    assert done.returncode == 4 and re.search(r"not clean: unguarded process \d+ ", done.stderr)
    done = sweep.grow("1", "--clean-wait=0", "--large=100%")
    assert done.returncode == 0, done.stderr


TAKE = """
import os, sys, time
if sys.argv[1] == "1":
    os.replace("taken", sys.argv[2])
    open("taking", "w").write(str(os.getpid()))
    while not os.path.exists("end"):
        time.sleep(0.01)  # holds: until the test says so
"""


def rooms_of_a_driver_that_returns(sweep, reap, figures, values, *options):
    """What each run found of 600 MiB: the first takes half, and after its end each look at the machine sees the next figure (MiB)."""
    meminfo = sweep.root / "proc/meminfo"
    sweep.machine(300 * MIB)
    meminfo.replace(sweep.folder / "taken")
    sweep.machine(600 * MIB)
    (sweep.folder / "take.py").write_text(TAKE)
    process = sweep.start("--json", *options, "-p", f"batch={values}", "--", PYTHON, "take.py", "{batch}", meminfo)
    reap(process)
    pid = int(sweep.wait_for("taking"))
    sweep.clock.hold()
    (sweep.folder / "end").touch()
    wait_for_death(pid)
    sweep.clock.step()  # it sees the end, and what there is now
    for figure in figures:
        sweep.machine(figure * MIB)
        sweep.clock.step()
    sweep.clock.release()
    report = json.loads(process.communicate()[0])
    return [run["room_bytes"] // MIB for run in report["runs"]]


@pytest.mark.parametrize("figures", [[300] * 8 + [600], [*range(320, 600, 40), 600]], ids=["late and at once", "bit by bit"])
def test_memory_of_the_run_before_is_given_back_first(sweep, reap, figures):
    """Drivers return pages late, those that keep a pool of freed ones all at once after a while in which nothing moves."""
    assert rooms_of_a_driver_that_returns(sweep, reap, figures, "1,2") == [600, 600]


def test_memory_that_does_not_come_back_is_not_waited_for(sweep, reap):
    """Another program has it: nothing moves, and the sweep goes on long before it stops to wait for a clean machine."""
    assert rooms_of_a_driver_that_returns(sweep, reap, [], "1,2,3", "--clean-wait=1h") == [600, 300, 300]


def test_processes_that_run_together_count_together(sweep, reap):
    (sweep.folder / "hold.py").write_text(
        "import mmap, os, sys, time\n"
        "held = mmap.mmap(-1, 100 << 20, mmap.MAP_PRIVATE)\n"
        "open(sys.argv[1], 'w').write('held')\n"
        "while not os.path.exists('end'): time.sleep(0.01)  # holds: until the test says so\n"
    )
    both = f"{PYTHON} hold.py a & {PYTHON} hold.py b & wait"
    process = sweep.start("--json", "-p", "n=1", "--", "sh", "-c", both, "{n}")
    reap(process)
    for name in "ab":
        sweep.wait_for(name)
    sweep.clock.look(1)  # it measures once a second
    (sweep.folder / "end").touch()
    report = json.loads(process.communicate()[0])
    assert 200 * MIB <= report["runs"][0]["peak_bytes"] < 240 * MIB
    assert report["runs"][0]["headroom_bytes"] == ROOM - report["runs"][0]["needed_bytes"] < 400 * MIB


LOSE = """
import mmap, os, sys, time
held = mmap.mmap(-1, 100 << 20, mmap.MAP_PRIVATE)
if sys.argv[1] == "2":
    open("held", "w").write("held")
    while not os.path.exists("go on"):
        time.sleep(0.01)  # holds: until the test says so
    mmap.mmap(-1, 400 << 20, mmap.MAP_PRIVATE) if len(sys.argv) > 2 else None
"""


@pytest.mark.parametrize("refused", [False, True])
def test_what_another_program_took_meanwhile_is_not_the_jobs_need(sweep, reap, refused):
    """300 MiB of the machine's go while the job holds 100: the headroom is less, the job needs what it needed before."""
    (sweep.folder / "lose.py").write_text(LOSE)
    process = sweep.start("--json", "-p", "n=1,2", "--", PYTHON, "lose.py", "{n}", *(["more"] if refused else []))
    reap(process)
    sweep.wait_for("held")
    sweep.machine(ROOM - 300 * MIB)
    sweep.clock.look(1)  # it measures once a second
    (sweep.folder / "go on").touch()
    report = json.loads(process.communicate()[0])
    quiet, disturbed = report["runs"]
    assert disturbed["status"] == ("refused" if refused else "ok") and "lost" not in quiet["notes"]
    assert 100 * MIB <= disturbed["needed_bytes"] < 140 * MIB
    assert disturbed["headroom_bytes"] <= 300 * MIB < quiet["headroom_bytes"]
    lost = r"the machine lost \d+\.\d MiB more than the job took: another program"
    assert re.search(rf"(^|; ){lost}$", disturbed["notes"]), disturbed["notes"]


# ---- what is predicted ----------------------------------------------------------------------------------------------


def predicted(sweep, peaks, next_value, room=1000 * GB):
    """What is said of the next, after peaks in GB by value; and its entry of the JSON."""
    sweep.machine(room, total=2000 * GB)
    values = ",".join(map(str, [*peaks, next_value]))
    runs = [recorded(i, "ok", gb * GB, room) for i, gb in enumerate(peaks.values())]
    sweep.record(f"batch={values}", "true {batch}", runs, complete=False)
    done = sweep.run("--json", "-p", f"batch={values}", "--", "true", "{batch}")
    return done.stderr, json.loads(done.stdout)["runs"][-1]


def test_three_points_of_the_methodology_predict_the_fourth(sweep):
    """Steps of 7.9 and 17.8 GB while the batch doubles: the next is 17.8 * 17.8 / 7.9."""
    said, run = predicted(sweep, {k: v for k, v in SFT.items() if k < 16}, 16)
    expected = (46.8 + 17.8 * 17.8 / 7.9) * GB
    assert run["predicted_bytes"] == pytest.approx(expected, rel=1e-6)
    assert expected == pytest.approx(SFT[16] * GB, rel=0.1)
    assert f"expecting to need about {expected / GIB:.1f} GiB (3 points, grows with batch^{math.log2(17.8 / 7.9):.1f})" in said


def test_growth_beyond_the_cube_is_taken_for_the_cube(sweep):
    """The methodology's DPO figures: 23.8, 27.2, 62.2."""
    _, run = predicted(sweep, {2: 23.8, 4: 27.2, 8: 62.2}, 16)
    assert run["predicted_bytes"] == pytest.approx((62.2 + 35 * 8) * GB, rel=1e-6)


def test_it_is_the_last_three_points_that_count(sweep):
    _, run = predicted(sweep, {1: 20, 2: 20, 4: 30, 8: 50}, 16)
    assert run["predicted_bytes"] == pytest.approx(90 * GB, rel=1e-6)


def test_memory_that_shrinks_is_taken_to_stay(sweep):
    _, run = predicted(sweep, {2: 20, 4: 30, 8: 29}, 16)
    assert run["predicted_bytes"] == pytest.approx(29 * GB, rel=1e-6)


def test_two_points_give_a_range_from_the_line_to_the_square(sweep):
    said, run = predicted(sweep, {2: 21.1, 4: 29.0}, 8)
    least, most = 29.0 + 2 * 7.9, 29.0 + 7.9 * (64 - 16) / (16 - 4)
    assert f"to need {least * GB / GIB:.1f} GiB to {most * GB / GIB:.1f} GiB (two points do not say" in said
    assert run["predicted_bytes"] is None and run["status"] == "ok"


def test_one_point_is_too_few(sweep):
    said, run = predicted(sweep, {2: 21.1}, 8)
    assert f"to need at least {21.1 * GB / GIB:.1f} GiB (one point is too few to predict)" in said
    assert run["predicted_bytes"] is None


@pytest.mark.parametrize(
    "peaks, next_value, need", [({2: 20, 4: 30}, 8, 50), ({2: 20}, 4, 20), ({2: 10, 4: 20, 6: 30}, 8, 40)]
)
def test_starts_what_just_fits_and_not_what_just_does_not(sweep, peaks, next_value, need):
    _, run = predicted(sweep, peaks, next_value, room=round(need * GB * 1.001))
    assert run["status"] == "ok"
    said, run = predicted(sweep, peaks, next_value, room=round(need * GB * 0.999))
    assert run["status"] == "not started" and run["predicted_bytes"] == pytest.approx(need * GB, rel=1e-6)
    assert "would need" in said


def test_a_limit_of_the_job_is_its_room(sweep):
    report = json.loads(sweep.grow("2,4,6,8", "--json", SPARKGUARD_LIMIT="200M").stdout)
    assert outcomes(report) == {2: "ok", 4: "ok", 6: "ok", 8: "not started"}


# ---- what is printed ------------------------------------------------------------------------------------------------

MODEL = "0.6B,hidden=1024,seq=1024"
TRAIN = ("-p", "batch=2,4,8,16,32", "-p", "accum=1", "--", "python", "train.py", "--batch", "{batch}", "--accum", "{accum}")
TRAIN_PLAN = ("batch=2,4,8,16,32 accum=1", "python train.py --batch {batch} --accum {accum}")


@pytest.fixture
def seed(sweep):
    """The record of the methodology's first table, on a machine of 119 GB."""
    runs = [recorded(i, "ok", gb * GB) for i, gb in enumerate(SFT.values())]
    note = "would need 147.6 GiB, 110.8 GiB of room (4 points, grows with batch^1.0)"
    runs.append(recorded(4, "not started", None, duration_ns=None, note=note, predicted_bytes=158_472_000_000, attempts=0, exit_code=None))
    sweep.record(*TRAIN_PLAN, runs)
    return sweep


def compare(text, name):
    path = GOLDEN / name
    if "UPDATE_GOLDEN" in os.environ:
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("name", ["sweep.md", "sweep.csv", "sweep.json"])
def test_golden_exports(seed, name):
    done = seed.run("--resume", f"--export={name}", *TRAIN)
    assert (done.returncode, done.stderr) == (0, "")
    compare((seed.folder / name).read_text(), name)


def test_golden_table(seed):
    done = seed.run("--resume", *TRAIN)
    assert (done.returncode, done.stderr) == (0, "")
    compare(done.stdout, "sweep.txt")


def test_golden_plan(sweep):
    done = sweep.run("--dry-run", "-p", "batch=1,2", "-p", "way=a b,c", "--", "python", "train.py", "--x={batch}", "{way}")
    assert (done.returncode, done.stderr) == (0, "")
    compare(done.stdout, "sweep_plan.txt")
    assert not sweep.state.exists() and not sweep.live.exists()


def test_the_seeds_table_from_its_own_figures(seed):
    """| batch_size | grad_accum | peak | headroom | status | as the methodology has it, in GiB as all that is printed."""
    seed.run("--resume", "--export=t.md", *TRAIN)
    rows = [[c.strip() for c in line.split("|")[1:6]] for line in (seed.folder / "t.md").read_text().splitlines() if "✅" in line]
    assert rows == [
        [str(batch), "1", f"{gb * GB / GIB:.1f}", f"{(119 - gb) * GB / GIB:.1f}", "✅ working"] for batch, gb in SFT.items()
    ]


def test_what_left_less_than_the_margin_is_not_recommended(seed):
    for margin, best in (("38GB", 16), ("39GB", 8), ("118GB", None)):
        report = seed.json("--resume", f"--margin={margin}", *TRAIN, status=0 if best else 1)
        assert (report["recommended"] or {"values": {"batch": None}})["values"]["batch"] == best
    assert report["runs"][3]["notes"] == "leaves less than the margin"


def test_of_the_same_product_the_one_that_needs_least_is_recommended(sweep):
    """The methodology: throughput by accumulation, not by the batch."""
    grid = [(batch, accum) for accum in (1, 2, 4) for batch in (1, 2, 4)]
    runs = [recorded(i, "ok" if b * a <= 4 else "refused", 10 * b * GB) for i, (b, a) in enumerate(grid)]
    sweep.record("batch=1,2,4 accum=1,2,4", "true {batch}{accum}", runs)
    report = sweep.json("--resume", "-p", "batch=1,2,4", "-p", "accum=1,2,4", "--", "true", "{batch}{accum}")
    assert report["recommended"] == {"values": {"batch": 1, "accum": 4}}


@pytest.mark.parametrize(
    "arguments",
    [
        [], ["--no-such-option", "true"], ["-x"], ["-p"], ["-p", "batch"], ["-p", "batch=", "--", "true", "{batch}"],
        ["-p", "batch=1,1.0", "--", "true", "{batch}"], ["-p", "b c=1", "--", "true"], ["-p", "n=1", "--", "true"],
        ["-p", "n=1", "-p", "n=2", "--", "true", "{n}"], ["--", "true"], ["--timeout=5x", "true"], ["--margin=lots", "true"],
        ["--export=t.txt", "true"], ["--estimate=7B"],
        ["--fresh", "--resume", "-p", "n=1", "--", "true", "{n}"], ["-p", "n=" + ",".join(map(str, range(65))), "--", "true", "{n}"],
        [*(f"-p{c}=1,2,3,4,5,6,7,8,9" for c in "abcd"), "--", "{a}{b}{c}{d}"],
    ],
)  # fmt: skip
def test_bad_usage_is_one_line(sweep, arguments):
    done = sweep.run(*arguments)
    assert (done.returncode, done.stdout) == (2, "") and done.stderr.count("\n") == 1, done.stderr


RANGES = {"8-64": "8..64", "8:64": "8..64", "8-64-8": "8..64..8", "64-8": None, "2024-11-20": None, "8-64,9": None, "1.5-3": None, "8-64k": None, "8--3": None}


@pytest.mark.parametrize("values", RANGES)
def test_a_value_that_looks_like_a_range_is_told_how_one_is_written(sweep, values):
    done = sweep.run("-p", f"batch={values}", "--dry-run", "--", "true", "{batch}")
    told = f"sparkguard-sweep: batch={values} is one value; a range is written {RANGES[values]}\n"
    assert (done.returncode, done.stderr) == (0, told if RANGES[values] else "")


def test_help_version_and_man_page(sweep):
    done = sweep.run("--help")
    assert done.returncode == 0 and done.stderr == "" and max(map(len, done.stdout.splitlines())) <= 80
    assert sweep.run("--version").stdout == "sparkguard-sweep 0.1.0\n"
    page = (Path(__file__).resolve().parents[3] / "docs/man/sparkguard-sweep.1").read_text()
    for name in re.findall(r"--([a-z][a-z-]+)", done.stdout):
        assert name in ("usage", "batch") or f"Fl Fl {name}" in page, name


def test_an_export_that_cannot_be_written(seed):
    done = seed.run("--resume", "--export=/no/such/folder/t.md", *TRAIN)
    assert done.returncode == 3 and "cannot write /no/such/folder/t.md" in done.stderr
    with open("/dev/full", "w") as full:
        done = subprocess.run(seed.command("--resume", *TRAIN), env=seed.environment(), cwd=seed.folder, stdout=full)
    assert done.returncode == 3


def test_a_closed_pipe_ends_it_quietly(seed):
    end, other = os.pipe()
    os.close(end)
    done = subprocess.run(
        seed.command("--resume", *TRAIN), env=seed.environment(), cwd=seed.folder, stdout=other, stderr=subprocess.PIPE
    )  # fmt: skip
    os.close(other)
    assert (done.returncode, done.stderr) == (-signal.SIGPIPE, b"")


def on_terminal(sweep, *arguments, shows=None, columns=80, **extra):
    """Everything that a terminal of that width gets. Once it shows the pattern, the file "shown" is there."""
    pid, terminal = pty.fork()
    if pid == 0:
        termios.tcsetwinsize(1, (24, columns))
        os.chdir(sweep.folder)
        os.execve(sweep.program, sweep.command(*arguments), sweep.environment(TERM="xterm", **extra))
    output = b""
    try:
        while piece := os.read(terminal, 65536):
            output += piece
            if shows and re.search(shows.encode(), output):
                (sweep.folder / "shown").touch()
    except OSError:  # its other end is closed
        pass
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, output
    return output.decode()


def test_progress_on_a_terminal(sweep):
    code = "import os, time\nheld = bytearray(50 << 20)\nwhile {n} > 2 and not os.path.exists('shown'): time.sleep(0.01)  # holds: until it is shown"
    progress = r"\[3/3\] n=4: \d\.\d s, about \d+\.\d s left; 5\d\.\d MiB held of \d+\.\d MiB to \d+\.\d MiB"
    shown = on_terminal(sweep, "-p", "n=1,2,4", "--", PYTHON, "-c", code, shows=progress)
    assert re.search(progress, shown)
    assert "\r\x1b[K" in shown and "starting" not in shown
    lines = re.sub(r"\x1b\[[0-9]*m", "", shown).replace("\r\n", "\n").split("\n")
    assert all(len(piece) <= 80 for line in lines for piece in re.split("\r|\x1b\\[K", line))


def test_messages_on_a_narrow_terminal_break_between_words(sweep):
    """The colours in them take no column. What stands before a return was overwritten."""
    words = ("--fresh", "-p", "batch=4,16,24", "--", PYTHON, "grow.py", "{batch}")
    shown = [re.sub(r"\x1b\[[0-9;]*[mK]", "", on_terminal(sweep, *words, columns=columns)).split("\r\n") for columns in (200, 60)]
    wide, narrow = [[row.split("\r")[-1] for row in rows[: rows.index("")]] for rows in shown]
    assert max(map(len, narrow)) <= 60 < max(map(len, wide)), narrow
    figures = re.compile(r"\d+\.\d [KM]?i?[Bs]")
    assert figures.sub("N", " ".join(narrow)) == figures.sub("N", " ".join(wide))


def test_colour_only_on_a_terminal_and_never_with_no_color(seed):
    assert "\x1b[32m" in on_terminal(seed, "--resume", *TRAIN)
    assert "\x1b" not in on_terminal(seed, "--resume", *TRAIN, NO_COLOR="1")
    assert "\x1b" not in seed.run("--resume", *TRAIN).stdout
