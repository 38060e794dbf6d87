"""tests/qualification/run: several of them write one table, which has a row for each of its parts."""

import re
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import pytest

PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
from test_run import load, Path
run = load()
run.RESULTS, number = Path(sys.argv[2]), int(sys.argv[3])
sys.stdin.readline()
for i in range(20):
    outcome = run.Outcome()
    outcome.cases = i
    run.write(run.PARTS[number], run.row(run.PARTS[number], outcome, number, "c0ffee"))
"""

LONG_FORM = re.compile(r"import .*\bIS_LONG\b|pytest\.mark\.long\b|def test_\w+\(.*\bamount\b")


def load():
    loader = SourceFileLoader("run", str(Path(__file__).with_name("run")))
    run = module_from_spec(spec_from_loader("run", loader))
    loader.exec_module(run)
    return run


@pytest.fixture
def run(monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return load()


def test_runs_at_once_keep_each_others_rows(tmp_path):
    table, count = tmp_path / "table", 6
    command = [sys.executable, "-B", "-c", PROGRAM, Path(__file__).parent, table]
    runs = [subprocess.Popen([*map(str, command), str(i)], stdin=subprocess.PIPE) for i in range(count)]
    for run in runs:
        run.stdin.close()
    assert [run.wait() for run in runs] == [0] * count
    rows = [line.split(" | ") for line in table.read_text().splitlines() if line[2:3].isdigit()]
    assert sorted(cells[3] for cells in rows if cells[2] == "19") == [f"{i} s" for i in range(count)]
    assert sum(cells[4] == "not run" for cells in rows) == len(rows) - count > 0


def test_emulated_parts_get_the_variables_and_the_emulator_a_command(run, monkeypatch):
    monkeypatch.setattr(run, "EMULATE", ["KIND=some", "nice"])
    part = next(part for part in run.PARTS if part.is_for_aarch64)
    command = [*run.pytest_of(part, "/tmp")[:-2], "-c", "import os; print(os.environ['QUALIFY'], os.environ['KIND'], os.nice(0) > 0)"]
    done = subprocess.run(["nice", "-n", "0", *command], capture_output=True, text=True)
    assert done.stdout == "long some True\n", done.stderr


def test_each_file_of_an_emulated_folder_runs_once_whatever_emulates(run, monkeypatch):
    part = next(part for part in run.PARTS if part.is_for_aarch64 and part.files == ("tests/sim",))
    assert run.works_of(part) == [["tests/sim"]]
    monkeypatch.setattr(run, "EMULATE", ["KIND=some", "nice"])
    files = [str(path.relative_to(run.ROOT)) for path in sorted((run.ROOT / "tests/sim").rglob("test_*.py"))]
    assert run.works_of(part) == [[file] for file in files] and len(files) > 10
    one = next(part for part in run.PARTS if part.is_for_aarch64 and part.files == ("tests/qualification/test_signals.py",))
    assert run.works_of(one) == [["tests/qualification/test_signals.py"]]


def test_each_part_has_a_row_and_each_row_a_part(run):
    """Also in the same order: as the next run writes the table."""
    table, mark, remarks = run.RESULTS.read_text().partition(run.REMARKS)
    assert run.table_of(run.rows_of(table)) == table, "PARTS of tests/qualification/run were changed: make qualify writes their rows"
    whats = [line.split(" | ")[1] for line in table.splitlines() if line.startswith("| ") and line[2].isdigit()]
    assert sorted(whats) == sorted({part.what for part in run.PARTS})
    assert remarks.strip() or not mark


def test_what_has_a_long_form_is_in_a_part_for_this_machine(run):
    """Parts for aarch64 and for the guest run fewer rounds; test_guest64k.py is for nothing but the guest."""
    files = [file.partition("::")[0] for part in run.PARTS if not (part.is_for_aarch64 or part.is_for_guest64k) for file in part.files]
    modules = [path for suite in "preload sim cli stress lab qualification".split() for path in (run.ROOT / "tests" / suite).rglob("test_*.py")]
    long = [path for path in modules if LONG_FORM.search(path.read_text())]
    left_out = [path.name for path in long if not any(path.is_relative_to(run.ROOT / file) for file in files)]
    assert len(long) > 20 and left_out == ["test_guest64k.py"]


def test_what_people_wrote_below_the_table_stays(run, tmp_path, monkeypatch):
    monkeypatch.setattr(run, "RESULTS", tmp_path / "table")
    remarks = run.REMARKS + "\n- by hand | 1 |\n"
    run.RESULTS.write_text(run.table_of({}) + remarks)
    run.write(run.PARTS[3], run.row(run.PARTS[3], run.Outcome(), 5, "c0ffee"))
    text = run.RESULTS.read_text()
    assert text.endswith(remarks) and text.count(run.REMARKS) == 1 and "| c0ffee |\n" in text


def test_some_rows_of_a_point_are_chosen_by_words(run):
    of_six = run.chosen("6")
    assert {part.point for part in of_six} == {6} and len(of_six) > 1
    assert [part.files for part in run.chosen("6:whose driver")] == [("tests/qualification/test_driver_pool_guest.py",)]
    assert run.chosen("6:unknown values") == run.chosen("60") == run.chosen("six") == []


def git(folder, *words):
    command = ["git", "-C", folder, "-c", "user.name=a", "-c", "user.email=a@b", *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_row_names_the_commit_and_whether_files_are_others(run, tmp_path, monkeypatch):
    monkeypatch.setattr(run, "ROOT", tmp_path)
    monkeypatch.setattr(run, "RESULTS", tmp_path / "table")
    assert run.commit() == ""  # no repository
    (tmp_path / "code").write_text("1")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "one")
    name = git(tmp_path, "rev-parse", "--short", "HEAD")
    run.RESULTS.write_text("what the rows before it wrote")
    assert run.commit() == name
    (tmp_path / "code").write_text("2")
    assert run.commit() == name + "+"


def test_row_says_what_emulated_the_machine(run, monkeypatch):
    monkeypatch.setattr(run, "EMULATE", ["emulator"])
    emulated = next(part for part in run.PARTS if part.is_for_aarch64)
    guest, native = next(part for part in run.PARTS if part.is_for_guest64k), run.PARTS[0]
    machines = [run.row(part, run.Outcome(), 1, "c0ffee").split(" | ")[5] for part in (native, emulated, guest)]
    assert machines == [machines[0], f"{machines[0]}, qemu-user of aarch64", f"{machines[0]}, qemu of an arm64 machine"]
