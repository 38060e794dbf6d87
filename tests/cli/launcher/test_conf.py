"""~/.config/sparkguard.conf: a user's defaults, below variables and options, in the launcher and the other tools."""

import json
import os
import subprocess

import pytest
from lib.units import GIB

WRONG = "cannot be read and has no effect; expected reserve=SIZE, limit=SIZE or history=DIR"


@pytest.fixture
def home(tmp_path):
    """home(text) is a home folder with that file, as variables for `launcher` and `report`."""

    def write(text):
        (tmp_path / "home/.config").mkdir(parents=True, exist_ok=True)
        (tmp_path / "home/.config/sparkguard.conf").write_text(text)
        return {"HOME": str(tmp_path / "home"), "XDG_CONFIG_HOME": ""}

    return write


def path(tmp_path):
    return tmp_path / "home/.config/sparkguard.conf"


def test_a_program_has_the_defaults_unless_a_variable_or_an_option_says_otherwise(launcher, home):
    env = home("reserve = 12G\nlimit = 64G\nhistory = off\n")
    names = ["SPARKGUARD_RESERVE", "SPARKGUARD_LIMIT", "SPARKGUARD_HISTORY"]

    def values(*options, **extra):
        found = launcher.variables(*options, **env, **extra)
        return [found.get(name) for name in names]

    assert values() == ["12G", "64G", "off"]
    assert values("--limit=none", SPARKGUARD_RESERVE="1G") == ["1G", "none", "off"]
    assert values(SPARKGUARD_LIMIT="") == ["12G", "64G", "off"]
    assert values("--disable") == [None, None, None]


def test_a_wrong_line_is_one_warning_and_the_program_starts(launcher, home, tmp_path):
    env = home("limit = 64G\nreserve = much\nbanana\n")
    done = launcher.run("-q", "sh", "-c", "echo $SPARKGUARD_LIMIT", **env)
    assert (done.returncode, done.stdout) == (0, "64G\n")
    assert done.stderr == f"sparkguard: {path(tmp_path)}:2: {WRONG}\n"


@pytest.mark.parametrize(
    "text, said",
    [
        ("limt=64G\n", "1: cannot be read and has no effect; did you mean limit?"),
        ("# x\nreserv = 64G\nlimt = 1G\n", "2: cannot be read and has no effect; did you mean reserve?"),
        ("limit=64\nlimt=64G\n", f"1: {WRONG}"),
        ("banana\nlimt=64G\n", f"1: {WRONG}"),
        ("job=64G\n", f"1: {WRONG}"),
    ],
)
def test_a_name_that_is_nearly_right_is_told(launcher, home, tmp_path, text, said):
    """Of the first wrong line."""
    done = launcher.run("-q", "true", **home(text))
    assert (done.returncode, done.stderr) == (0, f"sparkguard: {path(tmp_path)}:{said}\n")


def test_root_passes_over_the_file_of_the_home_that_sudo_leaves_it(launcher, home, tmp_path):
    if os.geteuid() != 0:
        pytest.skip("gives a file away: needs root")
    env = home("limit = 64G\n")
    os.chown(path(tmp_path), 65534, 65534)
    done = launcher.run("-q", "sh", "-c", "echo ${SPARKGUARD_LIMIT-none}", **env)
    assert (done.returncode, done.stdout, done.stderr) == (0, "none\n", "")
    assert lines_of(launcher, env)["defaults"] == ("inapplicable", f"{path(tmp_path)} belongs to another user and has no effect")


def lines_of(launcher, env, *options):
    done = subprocess.run([launcher.program, "--check", "--json", *options], env=launcher.environment(**env), capture_output=True, text=True)
    assert done.stderr == "", done.stderr
    return {line["id"]: (line["state"], line["sentence"]) for line in json.loads(done.stdout)["lines"]}


def test_check_says_which_apply(launcher, guarded_tools, home, tmp_path):
    env = home("reserve = 1G\nlimit = 64G\nhistory = off\n")
    lines = lines_of(launcher, env)
    assert lines["defaults"] == ("ok", f"{path(tmp_path)}: reserve=1G, limit=64G, history=off")
    assert lines["history"] == ("inapplicable", f"off ({path(tmp_path)})")
    assert lines["options"][1].startswith("all as by default; reserve 1.0 GiB")
    lines = lines_of(launcher, {**env, "SPARKGUARD_RESERVE": "2G"}, "--limit=32G")
    assert lines["defaults"][1] == f"{path(tmp_path)}: history=off; reserve gives way to SPARKGUARD_RESERVE, limit gives way to --limit"
    assert lines["options"][1].startswith("set: ") and "LIMIT=32G" in lines["options"][1] and "RESERVE=2G" in lines["options"][1]
    assert lines_of(launcher, home("banana\n"))["defaults"] == ("warning", f"{path(tmp_path)}:1: {WRONG}")
    path(tmp_path).unlink()
    assert "defaults" not in lines_of(launcher, env)


def test_the_report_reckons_with_the_defaults(report, home, tmp_path):
    env = home("reserve = 20G\nhistory = off\nbanana\n")
    done = report.run("--json", **env)
    assert json.loads(done.stdout)["machine"]["reserve_bytes"] == 20 * GIB
    assert done.stderr == f"sparkguard-report: {path(tmp_path)}:3: {WRONG}\n"


def test_the_doctor_names_the_file_that_turns_the_history_off(tools, home, tmp_path):
    env = {k: v for k, v in os.environ.items() if not k.startswith("SPARKGUARD_")} | home("history = off\n")
    done = subprocess.run([tools / "sparkguard-doctor", "--json"], env=env, capture_output=True, text=True)
    (finding,) = [finding for finding in json.loads(done.stdout)["findings"] if finding["id"] == "history"]
    assert finding["sentence"] == f"history=off in {path(tmp_path)}: no history is kept."
