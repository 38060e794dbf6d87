"""sparkguard-report --dir over several directories: those of all users of a machine, by names or by a pattern."""

import contextlib
import os

import pytest
from lib.units import GIB


@pytest.fixture
def users(make, report, tmp_path):
    """Two users' directories in tmp_path/shm: job train runs in both, each with 2 GiB promised; job old ended in one."""
    with contextlib.ExitStack() as owners:
        for number, name in enumerate(("sparkguard-1", "sparkguard-2")):
            directory = tmp_path / "shm" / name
            directory.mkdir(parents=True)
            process = make(pid=2**22 + 10 + number, state="running", **{"slot.promised_bytes": 2 * GIB})
            process.domain("heap", granted=(3 + number) * GIB)
            owners.enter_context(process.write_live(directory))
        make(pid=2**22 + 20, job="old").write(directory)
        yield tmp_path / "shm"


def test_jobs_of_one_name_in_two_directories_are_two(report, users):
    first, second = users / "sparkguard-1", users / "sparkguard-2"
    data = report.json("--dir", first, "--dir", second, "--job", "train")
    assert [(j["job"], j["directory"], j["live_bytes"]) for j in data["jobs"]] == [
        ("train", str(first), 3 * GIB),
        ("train", str(second), 4 * GIB),
    ]
    overview = report.run("--dir", first, "--dir", second).stdout
    text = " ".join(overview.split())
    assert f"job train, in {first}, running" in text and f"job train, in {second}, running" in text
    assert "job train, running" in report.run("--dir", first).stdout


def test_the_machine_is_counted_once_with_what_all_have_been_promised(report, users):
    machine = report.json("--dir", users / "sparkguard-1", "--dir", users / "sparkguard-2")["machine"]
    assert machine["promised_bytes"] == 4 * GIB
    assert machine["available_bytes"] == 100 * GIB and machine["usable_bytes"] == 96 * GIB
    assert machine["sharing"] is False  # of the one those of the other know nothing
    assert report.json("--dir", users / "sparkguard-1")["machine"]["sharing"] is True


def test_a_pattern_names_them_all_and_follows_no_link(report, users):
    (users / "sparkguard-2").rename(users / "elsewhere")
    (users / "sparkguard-3").symlink_to(users / "elsewhere")
    (users / "sparkguard-4").write_text("")
    data = report.json("--dir", users / "sparkguard-*")
    assert [j["directory"] for j in data["jobs"]] == [str(users / "sparkguard-1")]
    assert report.json("--dir", users / "sparkguard-3", "--job", "train")["jobs"][0]["live_bytes"] == 4 * GIB  # named


def test_a_directory_is_read_once_by_whichever_names(report, users):
    (users / "link").symlink_to(users / "sparkguard-1")
    names = ["--dir", users / "sparkguard-1", "--dir", users / "link", "--dir", users / "sparkguard-[1]"]
    assert report.json(*names)["machine"]["promised_bytes"] == 2 * GIB


def test_a_pattern_that_finds_nothing_is_a_machine_on_which_nothing_has_run(report, tmp_path):
    done = report.run("--dir", tmp_path / "none-*")
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith("machine 128.0 GiB")
    narrowed = report.run("--dir", tmp_path / "none-*", "--last")
    assert narrowed.returncode == 1 and "none-*" in narrowed.stderr


def test_a_directory_with_the_name_of_a_pattern_is_itself(make, report, tmp_path):
    (tmp_path / "a*").mkdir()
    (tmp_path / "ab").mkdir()
    make(pid=1).write(tmp_path / "a*")
    make(pid=2).write(tmp_path / "ab")
    (job,) = report.json("--dir", tmp_path / "a*", "--all")["jobs"]
    assert [p["pid"] for p in job["processes"]] == [1]


def test_each_directory_that_is_missing_is_named_and_the_others_are_shown(report, users):
    missing = [argument for name in ("x", "y") for argument in ("--dir", users / name)]
    done = report.run("--dir", users / "sparkguard-1", *missing)
    assert done.returncode == 1 and "job train" in done.stdout
    assert [line.split(": ")[1] for line in done.stderr.splitlines()] == [str(users / "x"), str(users / "y")]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every directory")
def test_a_directory_of_a_pattern_that_is_closed_to_us_is_told(report, users):
    (users / "sparkguard-1").chmod(0)
    done = report.run("--dir", users / "sparkguard-*")
    assert done.returncode == 3 and "sparkguard-1: Permission denied" in done.stderr


def test_a_directory_that_cannot_be_read_is_not_an_empty_one(report, tmp_path):
    """The message says why; "nothing has run under the guard yet" would be a guess."""
    (tmp_path / "file").write_text("")
    done = report.run("--dir", tmp_path / "file")
    assert done.returncode == 3 and "Not a directory" in done.stderr
    assert "nothing has run" not in done.stdout
    assert "nothing has run" in report.run("--dir", report.directory).stdout
