"""Completion in bash: what a user who presses Tab is offered."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TAB = """
source /usr/share/bash-completion/bash_completion
source tools/install/completion.bash
COMP_LINE=$1 COMP_POINT=${#1} COMP_TYPE=9 COMP_KEY=9
# As readline does it: blanks part words, and "=" and ":" are words of their own.
read -ra COMP_WORDS < <(sed 's/[=:]/ & /g' <<<"$1")
[[ $1 != *[\\ =] || $1 == *= ]] || COMP_WORDS+=("")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
compopt() { :; }
_sparkguard "${COMP_WORDS[0]}" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def tab(build, guard):
    """What is offered behind a line."""
    env = guard.environment({"LD_PRELOAD": None, "PATH": f"{build}:{os.environ['PATH']}"})

    def offer(line):
        done = subprocess.run(["bash", "-c", TAB, "-", line], cwd=ROOT, env=env, capture_output=True, text=True, check=True)
        assert done.stderr == ""
        return done.stdout.split("\n")[:-1]

    return offer


@pytest.mark.parametrize("tool", ["sparkguard", "sparkguard-report", "sparkguard-sweep", "sparkguard-doctor"])
def test_every_option_of_help_is_offered(tab, build, tool):
    text = subprocess.run([build / tool, "--help"], capture_output=True, text=True, check=True).stdout
    options = re.findall(r"^ {2,6}(?:-\w, {1,2})?(--[a-z-]+)", text, re.MULTILINE)
    offered = {option.rstrip("=") for option in tab(f"{tool} --")}
    assert len(options) >= 4 and set(options) <= offered


def test_what_an_option_takes_is_offered(tab, tmp_path):
    assert tab("sparkguard --watchdog=") == ["off", "warn", "term"]
    assert tab("sparkguard --watchdog=w") == ["warn"]
    assert tab("sparkguard --mode ob") == ["observe"]
    (tmp_path / "here").mkdir()
    (tmp_path / "file").touch()
    assert tab(f"sparkguard --dir={tmp_path}/") == [f"{tmp_path}/here"]
    assert sorted(tab(f"sparkguard-sweep --state {tmp_path}/")) == [f"{tmp_path}/file", f"{tmp_path}/here"]


def test_jobs_and_processes_on_record_are_offered(tab, guard):
    take = "x = bytearray(64 << 20)"
    first = guard.run(["/usr/bin/python3", "-c", take], env={"SPARKGUARD_JOB": "train-7b"})
    second = guard.run(["/usr/bin/python3", "-c", take], env={"SPARKGUARD_JOB": "two words"})
    hold = [sys.executable, "-c", "b = bytearray(1 << 30); print('ready', flush=True); input()"]
    with subprocess.Popen(hold, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as unguarded:
        unguarded.stdout.readline()
        assert sorted(tab("sparkguard-report ")) == sorted([str(first.pid), str(second.pid)])
        unguarded.communicate(b"\n")
    assert tab("sparkguard-report --job=") == ["train-7b", "two\\ words"]
    assert tab("sparkguard-report --job t") == ["train-7b", "two\\ words"]
    assert tab("sparkguard-report --job=tr") == ["train-7b"]


def test_a_job_s_name_is_a_name_and_no_command(tab, guard):
    """Others who share the directory choose theirs."""
    for name in ("$(echo owned)", "`echo owned`", "M*"):
        guard.run(["/usr/bin/python3", "-c", "x = bytearray(64 << 20)"], env={"SPARKGUARD_JOB": name})
    assert sorted(tab("sparkguard-report --job=")) == sorted([r"\$\(echo\ owned\)", r"\`echo\ owned\`", r"M\*"])
    assert tab("sparkguard-report --job=M") == [r"M\*"]


def test_what_follows_the_program_is_completed_for_the_program(tab, tmp_path):
    (tmp_path / "train.py").touch()
    for line in (
        f"sparkguard ls {tmp_path}/tr",
        f"sparkguard --limit=2G ls {tmp_path}/tr",
        f"sparkguard --limit 2G -q ls {tmp_path}/tr",
        f"sparkguard-sweep -p batch=1,2 -- ls {tmp_path}/tr",
    ):
        assert tab(line) == [f"{tmp_path}/train.py"], line
    assert "python3" in tab("sparkguard -q python")
    assert "python3" in tab("sparkguard-sweep -p batch=1,2 -- python")
    assert "--reserve=" not in tab("sparkguard ls --")
