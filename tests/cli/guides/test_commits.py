"""scripts/check-commits: what it says of the subject of a commit, and of a range in a repository."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
CHECK = ROOT / "scripts/check-commits"


def check(*arguments, folder=ROOT):
    done = subprocess.run([CHECK, *arguments], cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def check_message(tmp_path, text):
    (tmp_path / "message").write_text(text)
    return check("--message", tmp_path / "message")


@pytest.mark.parametrize(
    "text",
    [
        "Refuse a claim below 16 MiB\n",
        "doctor: check who may write /etc/sparkguard.conf\n\nA reader of root's believed it: see the test.\n",
        "Judge claims, limits and reserves alike\n",
        "sparkguard --claim: wait for the first process\n# a comment of git\n",
        "Name " + "x" * 67 + "\n",
    ],
)
def test_good_message_passes(tmp_path, text):
    assert check_message(tmp_path, text) == (0, "")


@pytest.mark.parametrize(
    "text, what",
    [
        ("Name " + "x" * 68, "73 columns instead of at most 72"),
        ("Refuse small claims; name the variable", "tells two things"),
        ("launch: refuse small claims: 16 MiB", "tells two things"),
        ("Refuse small claims. Name the variable", "tells two things"),
        ("tests: count sleeps, drop bounds of the clock", "tells two things"),
        ("Refuse small claims, and name the variable", "tells two things"),
        ("Refused a claim", '"Refused" is no verb'),
        ("tests: the flood is bounded", '"the" is no verb'),
        ("Refuse a claim.", "ends with a full stop"),
        ("Refuse a claim\nbecause it is small", "no empty line"),
        ("\n# nothing was written\n", "the subject is empty"),
    ],
)
def test_bad_message_is_told_why(tmp_path, text, what):
    status, said = check_message(tmp_path, text)
    assert status == 1 and what in said and said.startswith("message: ")


def git(folder, *arguments):
    named = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "core.hooksPath=/nonexistent"]
    subprocess.run(["git", *named, *arguments], cwd=folder, check=True, capture_output=True)


def test_each_commit_of_a_range_is_looked_at_but_merges(tmp_path):
    git(tmp_path, "init", "-q", "-b", "main")
    for subject in ("Add one", "added two", "Add three; Add four"):
        git(tmp_path, "commit", "-q", "--allow-empty", "-m", subject)
    git(tmp_path, "checkout", "-q", "-b", "side", "HEAD~1")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "Add five")
    git(tmp_path, "merge", "-q", "-s", "ours", "-m", "merged; whatever", "main")
    status, said = check("HEAD~1..HEAD", folder=tmp_path)
    assert status == 1 and said.count("\n") == 1 and "tells two things: Add three" in said
    status, said = check("HEAD", folder=tmp_path)
    assert status == 1 and sorted(line.split(": ")[-1] for line in said.splitlines()) == ["Add three; Add four", "added two"]


def test_history_that_lacks_the_beginning_of_the_rules_is_told(tmp_path):
    git(tmp_path, "init", "-q")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "whatever")
    status, said = check(folder=tmp_path)
    assert status == 77 and "no message was looked at" in said


def test_range_that_is_none_is_bad_usage(tmp_path):
    git(tmp_path, "init", "-q")
    assert check("no-such-range", folder=tmp_path)[0] == 2
    assert check("--unknown")[0] == 2
