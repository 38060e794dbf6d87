"""sparkguard-report --csv: the rows are what --json says, whatever the texts of a process hold."""

import csv
import io
import os
import pwd
import re

import pytest
from lib.units import GIB
from segment import UNKNOWN
from records import compare, four_states  # noqa: F401 (a fixture)


def rows(report, *arguments, status=0):
    done = report.run("--csv", *arguments)
    assert done.returncode == status, done.stderr
    return list(csv.DictReader(io.StringIO(done.stdout, newline=""), strict=True))


def flat(value, prefix=""):
    """The plain fields of JSON as cells."""
    for key, inner in value.items():
        if isinstance(inner, dict):
            yield from flat(inner, f"{prefix}{key}.")
        elif not isinstance(inner, list):
            text = "" if inner is None else str(inner).lower() if isinstance(inner, bool) else str(inner)
            yield prefix + key, text


def test_csv_of_all_states_is_golden(four_states):  # noqa: F811
    done = four_states.run("--csv", "--all")
    assert done.returncode == 0
    name = pwd.getpwuid(os.geteuid()).pw_name
    compare("states.csv", done.stdout.replace(str(four_states.directory), "DIR").replace(f",{name},", ",USER,"))


def test_cells_are_what_json_says_under_its_keys(four_states, make):  # noqa: F811
    make(pid=1, job="other", started_time_ns=0, sparse_resident_bytes=UNKNOWN).write(four_states.directory)
    for arguments in (["--all"], [], ["--last"], ["--job", "other"], ["4712"], ["--since", "@1795180010"]):
        expected = [
            {"job": job["job"], "directory": job["directory"], **dict(flat(process))}
            for job in four_states.json(*arguments)["jobs"]
            for process in job["processes"]
        ]
        assert rows(four_states, *arguments) == expected and expected
    (row,) = rows(four_states, "--job", "other")
    assert row["started"] == "" and row["sparse_resident_bytes"] == "" and row["signal"] == ""


def test_what_matches_nothing_is_a_heading(report):
    assert rows(report, "--job", "none", status=1) == []
    assert report.run("--csv").stdout.startswith("job,directory,pid,")


def test_texts_of_any_bytes_stay_in_their_cells(make, report):
    command = b'python -c \'print("a,b")\'\nx\r\x1b[2J;\xff\xe2\x80\xae"'
    make(command=command, job=b'a,"b"').write(report.directory)
    (row,) = rows(report)
    assert row["job"] == 'a,"b"'
    assert row["command"] == r"""python -c 'print("a,b")'\x0ax\x0d\x1b[2J;\xff\u202e\"""".replace(r"\"", '"')
    assert report.run("--csv").stdout.count("\n") == 2


@pytest.mark.parametrize("text", ["=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "=a,b"])
def test_a_spreadsheet_takes_no_text_for_a_formula(make, report, text):
    make(job=text.replace("\t", " ").encode(), command=text.encode()).write(report.directory)
    (row,) = rows(report)
    assert row["command"] == ("'" + text if text[0] != "\t" else r"\x09=1")
    if text[0] != "\t":
        assert row["job"] == "'" + text


@pytest.mark.usefixtures("in_memory")
def test_a_thousand_processes_are_a_thousand_rows(make, report):
    for number in range(1000):
        make(pid=1000 + number, job=f"job {number % 7}").domain("heap", granted=number * GIB).write(report.directory)
    found = rows(report, "--all")
    assert {int(row["pid"]): int(row["live_bytes"]) for row in found} == {1000 + n: n * GIB for n in range(1000)}
    assert len({len(row) for row in found}) == 1


def test_forms_exclude_each_other(report):
    for arguments in (["--csv", "--json"], ["--csv", "--watch"], ["--csv", "--plot=x.svg"]):
        done = report.run(*arguments)
        assert (done.returncode, done.stdout) == (2, "") and re.search("exclude each other$", done.stderr)
