"""sparkguard-sweep: ranges, what is between the last value that fitted and the first that did not, false starts."""

import json
import math
import re
import subprocess

import pytest
from sweeping import GIB, MIB, PIECE, PYTHON, ROOM, Sweeper, outcomes, reap, recorded, sweep, wait_for_death  # noqa: F401 - and fixtures


# ---- ranges ----


@pytest.mark.parametrize(
    "values, meant",
    [
        ("1..4", [1, 2, 3, 4]), ("8..32..8", [8, 16, 24, 32]), ("1..64..30", [1, 31, 61]), ("-2..0", [-2, -1, 0]), ("5..5", [5]),
        ("1..3,8,16..18", [1, 2, 3, 8, 16, 17, 18]), ("1..64", list(range(1, 65))),
    ],
)  # fmt: skip
def test_ranges_are_whole_numbers(sweep, values, meant):
    done = sweep.run("-p", f"n={values}", "--dry-run", "--", "x", "{n}")
    assert done.returncode == 0, done.stderr
    assert [int(line.split()[0]) for line in done.stdout.splitlines()[1:]] == meant


@pytest.mark.parametrize("value", ["..", "../a", "a..b", "1..b"])
def test_words_with_dots_are_words(sweep, value):
    done = sweep.run("-p", f"n={value}", "--dry-run", "--", "x", "{n}")
    assert done.returncode == 0 and f"x {value}" in done.stdout


@pytest.mark.parametrize("values", ["8..1", "1..", "..8", "1..8..0", "1..8..-1", "1...8", "0.1..0.5", "1..2..3..4", "1..9999999999999999"])
def test_bad_range_is_told_with_a_good_one(sweep, values):
    done = sweep.run("-p", f"n={values}", "--", "true", "{n}")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"sparkguard-sweep: --param=n={values}: {values}: a range is two whole numbers, the smaller first, and a step: 1..64 or 8..64..8; "
        "for example batch=1,2,4,8; nothing is run\n"
    )


@pytest.mark.parametrize(
    "values, told",
    [("1,2,8..4", "8..4: a range is"), ("1,2,3,2", "2 is given twice"), ("4,1,,2", "the value after 1 is empty"), (",1", "the first value is empty")],
)
def test_the_item_of_a_list_that_is_wrong_is_named(sweep, values, told):
    done = sweep.run("-p", f"n={values}", "--", "true", "{n}")
    assert done.returncode == 2 and f"--param=n={values}: {told}" in done.stderr


def test_range_of_too_many_values_is_told(sweep):
    done = sweep.run("-p", "n=1..65", "--", "true", "{n}")
    assert done.returncode == 2 and "there may be 64 values; a larger step makes fewer: 8..512..8" in done.stderr


# ---- between what fitted and what did not ----


def largest():
    """The largest batch of grow.py that fits beside what Python itself takes."""
    return math.isqrt((ROOM - 10 * MIB) // PIECE)


def test_refine_finds_the_exact_boundary(sweep):
    done = sweep.grow("2,4,8,16", "--refine")
    assert largest() == 12 and sweep.starts() == [2, 4, 8, 12, 14, 13]
    assert done.returncode == 0
    assert "refining between batch=8, which fits, and batch=16, which does not: at most 3 more runs\n" in done.stderr
    assert "recommended maximum: batch=12\n" in done.stdout
    assert "\nexactly: the next, batch=13, was refused\n" in done.stdout
    rows = re.findall(r"^ +(\d+) .*(ok|refused|not started)", done.stdout, re.MULTILINE)
    assert rows == [("2", "ok"), ("4", "ok"), ("8", "ok"), ("12", "ok"), ("13", "refused"), ("14", "refused"), ("16", "not started")]


def test_refine_goes_on_with_a_complete_sweep(sweep):
    sweep.grow("2,4,8,16")
    report = json.loads(sweep.grow("2,4,8,16", "--refine", "--json").stdout)
    assert sweep.starts() == [2, 4, 8, 12, 14, 13] and report["recommended"] == {"values": {"batch": 12}}
    again = json.loads(sweep.grow("2,4,8,16", "--refine", "--json").stdout)
    assert sweep.starts() == [2, 4, 8, 12, 14, 13] and again["runs"] == report["runs"]
    shown = json.loads(sweep.grow("2,4,8,16", "--resume", "--json").stdout)
    assert shown["runs"] == report["runs"]


def test_measurements_under_another_limit_are_another_sweeps(sweep):
    sweep.grow("2,4,8,16")
    done = sweep.grow("2,4,8,16", "--refine")
    assert "going on with the measurements of 20" in done.stderr and "; --fresh measures all again\n" in done.stderr
    for variable in ({"SPARKGUARD_LIMIT": "1G"}, {"SPARKGUARD_RESERVE": "2G"}):
        done = subprocess.run(
            sweep.command("--refine", "--param=batch=2,4,8,16", "--", PYTHON, "grow.py", "{batch}"), env={**sweep.environment(), **variable},
            cwd=sweep.folder, capture_output=True, text=True, timeout=100,
        )  # fmt: skip
        assert done.returncode == 3 and "is the record of another sweep; --fresh starts a new one" in done.stderr


def test_interrupted_refinement_is_run_again(sweep, reap):
    (sweep.folder / "gate-12").touch()
    process = sweep.start("--refine", "-p", "batch=2,4,8,16", "--", PYTHON, "grow.py", "{batch}")
    reap(process)
    pid = int(sweep.wait_for("at-12"))
    process.kill()
    process.communicate()
    wait_for_death(pid)
    (sweep.folder / "gate-12").unlink()
    done = sweep.grow("2,4,8,16", "--refine", "--json")
    assert "batch=12 was under way when the sweep ended; it is run again" in done.stderr
    assert sweep.starts() == [2, 4, 8, 12, 12, 14, 13]
    assert json.loads(done.stdout)["recommended"] == {"values": {"batch": 12}}


def test_measuring_again_forgets_what_was_refined(sweep):
    sweep.grow("2,4,8,16", "--refine")
    report = json.loads(sweep.grow("2,4,8,16", "--json").stdout)
    assert list(outcomes(report)) == [2, 4, 8, 16]
    assert "refinements" not in json.loads(sweep.state.read_text())


def test_refine_of_fractions_ends_at_a_thirty_second(sweep):
    code = "import mmap, sys; held = mmap.mmap(-1, int(float(sys.argv[1]) * (1 << 30)), mmap.MAP_PRIVATE)"
    report = sweep.json("--refine", "-p", "size=0.25,1", "--", PYTHON, "-c", code, "{size}")
    best = report["recommended"]["values"]["size"]
    worse = min(run["values"]["size"] for run in report["runs"] if run["status"] != "ok")
    right = (ROOM - 10 * MIB) / GIB
    assert best <= right + 0.01 and worse >= right - 0.02 and worse - best <= worse / 32  # Python takes some, too
    assert len(report["runs"]) == 2 + 6


def test_refine_of_two_parameters(sweep):
    report = sweep.json("--refine", "-p", "batch=4,16", "-p", "accum=1,2", "--", PYTHON, "grow.py", "{batch}", "{accum}")
    assert report["recommended"] == {"values": {"batch": 12, "accum": 2}}


def test_refine_without_a_gap_adds_nothing(sweep):
    done = sweep.grow("1,2,4", "--refine")
    assert done.returncode == 0 and "refining" not in done.stderr and sweep.starts() == [1, 2, 4]


def test_refine_knows_no_between_of_words(sweep):
    done = sweep.run("--refine", "-p", "way=a,b", "--", PYTHON, "-c", "import sys; sys.exit(sys.argv[1] == 'b')", "{way}")
    assert done.returncode == 0 and "refining" not in done.stderr


def test_refine_keeps_away_from_what_took_the_machine_down(sweep):
    runs = [recorded(0, "ok", GIB, room=4 * GIB), recorded(1, "lost", duration_ns=None, exit_code=None)]
    sweep.record("batch=2,64", f"{PYTHON} grow.py {{batch}}", runs)
    done = sweep.grow("2,64", "--refine")
    assert sweep.starts() == [] and "refining" not in done.stderr


def test_refine_of_a_wide_gap_is_bounded(sweep):
    report = json.loads(sweep.grow("1,4000000", "--refine", "--json").stdout)
    assert len(report["runs"]) <= 2 + 20
    assert max(value for value, status in outcomes(report).items() if status == "ok") <= largest()


@pytest.fixture(scope="module")
def refined(tools, tmp_path_factory):
    """A sweep with a refinement, and its record."""
    sweep = Sweeper(tools, tmp_path_factory.mktemp("refined"))
    sweep.grow("2,4,8,16", "--refine")
    return sweep, sweep.state.read_text()


@pytest.mark.parametrize(
    "change",
    [
        {"parameter": 1}, {"parameter": -1}, {"parameter": None}, {"behind": 9}, {"behind": "0"}, {"value": "4"}, {"value": "99"},
        {"value": "x"}, {"value": 12},
    ],
)  # fmt: skip
def test_refinement_of_a_record_that_cannot_be_is_one_sentence(refined, change):
    sweep, good = refined
    record = json.loads(good)
    record["refinements"][0] |= change
    sweep.state.write_text(json.dumps(record))
    done = sweep.grow("2,4,8,16", "--resume")
    assert done.returncode == 3 and done.stdout == ""
    assert "refinement 0 of the record is none of this sweep; --fresh starts a new one" in done.stderr


def test_largest_that_is_predicted_to_fit_is_named(sweep):
    done = sweep.grow("2,4,8,16")
    assert "\nabout batch=12 fits, by how the 3 measured ones grew; --refine finds the largest\n" in done.stdout
    report = json.loads(sweep.grow("2,4,8,16", "--resume", "--json").stdout)
    assert report["predicted"] == {"values": {"batch": 12}}


def test_largest_that_is_predicted_beyond_what_was_tried_is_named(sweep):
    assert "\nabout batch=12 fits, by how the 3 measured ones grew; not measured yet\n" in sweep.grow("2,4,8").stdout


def test_nothing_is_predicted_from_one_point(sweep):
    assert "about" not in sweep.grow("8,16").stdout


# ---- programs that cannot start ----


@pytest.fixture
def app(sweep):
    """A program that cannot start. It leaves a letter in "begun" for each try."""
    (sweep.folder / "app.py").write_text("open('begun', 'a').write('x')\nimport no_such_module\n")
    return [PYTHON, "app.py"]


MISSING = "ModuleNotFoundError: No module named 'no_such_module'"


def test_program_that_cannot_start_is_told_with_its_log(sweep, app):
    done = sweep.run("-p", "n=1..6", "--", *app, "{n}")
    assert done.returncode == 1 and (sweep.folder / "begun").read_text() == "x"
    assert f"sparkguard-sweep: the program cannot start: exit status 1: {MISSING}, before it took any memory\n" in done.stderr
    assert f"  the end of its output, in {sweep.state}.log:\n    Traceback (most recent call last):\n" in done.stderr
    assert f"    {MISSING}\n" in done.stderr
    assert re.findall(r"^ *\d+ .*(failed|skipped)", done.stdout, re.MULTILINE) == ["failed", *["skipped"] * 5]
    assert done.stdout.endswith("\nthe program cannot start: see NOTES\n")


def test_a_script_that_is_not_there_is_told_and_not_that_nothing_fits(sweep):
    done = sweep.run("-p", "n=1,2", "--", PYTHON, "trian.py", "{n}")
    assert done.returncode == 1 and "nothing fits" not in done.stdout
    assert re.search("the program cannot start: exit status 2: .*trian.py.*No such file", done.stderr, re.DOTALL)


def test_words_end_once_two_fail_in_the_same_way(sweep, app):
    """One may be a wrong word."""
    done = sweep.run("-p", "way=a,b,c,d", "-p", "n=1..6", "--", *app, "{way}", "{n}")
    assert done.returncode == 1 and (sweep.folder / "begun").read_text() == "xx"
    assert done.stderr.count("sparkguard-sweep: the program cannot start") == 1


def test_output_of_a_program_that_cannot_start_does_not_steer_the_terminal(sweep):
    code = "import sys; sys.stdout.buffer.write(b'\\x1b[31m\\xff' + b'y' * 9000 + b'\\nlast\\x07'); sys.exit(1)"
    done = sweep.run("-p", "n=1", "--", PYTHON, "-c", code, "{n}")
    assert "    last\\x07\n" in done.stderr and "\x1b" not in done.stderr


def test_program_that_says_nothing_and_cannot_start(sweep):
    done = sweep.run("-p", "n=1", "--", "false", "{n}")
    assert "the program cannot start: exit status 1, before it took any memory\n" in done.stderr
    assert f"  it said nothing; its log is {sweep.state}.log\n" in done.stderr


def test_without_a_record_there_is_no_log_to_name(sweep):
    command = [str(sweep.program), "-p", "n=1", "--", PYTHON, "-c", "import no_such_module", "{n}"]
    env = sweep.environment(SPARKGUARD_HISTORY="off")
    done = subprocess.run(command, env=env, cwd=sweep.folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and f"cannot start: exit status 1: {MISSING}" in done.stderr and ".log" not in done.stderr


def test_the_same_command_begins_anew_once_the_program_can_start(sweep):
    (sweep.folder / "app.py").write_text("import sys, os\nsys.exit(not os.path.exists('mended'))\n")
    command = ("-p", "way=a,b,c", "-p", "n=1,2", "--", PYTHON, "app.py", "{way}", "{n}")
    assert sweep.json(*command, status=1)["complete"] is True
    (sweep.folder / "mended").touch()
    assert {run["status"] for run in sweep.json(*command)["runs"]} == {"ok"}


def test_program_that_fails_later_can_start(sweep):
    done = sweep.run("-p", "n=1,2", "--", PYTHON, "-c", "import sys; held = bytearray(32 << 20); sys.exit(3)", "{n}")
    assert done.returncode == 1 and "cannot start" not in done.stderr
    assert done.stdout.endswith("\nnothing ended well: see STATUS\n")


def test_script_without_its_interpreter_is_told(sweep):
    (sweep.folder / "app").write_text("#!/no/such/python\n")
    (sweep.folder / "app").chmod(0o755)
    done = sweep.run("-p", "n=1..6", "--", "./app", "{n}")
    assert done.returncode == 127
    assert done.stderr == "sparkguard-sweep: cannot run ./app: its interpreter /no/such/python does not exist\n"
