"""What all tools promise alike: help, version, usage, a reader that goes away, no colour where none is wanted, many processes."""

import os
import re
import signal
import subprocess

import pytest
from screen import all_shown

TOOLS = ["sparkguard", "sparkguard-report", "sparkguard-sweep", "sparkguard-doctor"]


@pytest.fixture(params=TOOLS)
def tool(request, tools):
    return tools / request.param


def run(report, tool, *arguments, **options):
    return subprocess.run([tool, *arguments], env=report.environment(), capture_output=True, text=True, timeout=60, **options)


def test_help_fits_80_columns(report, tool):
    done = run(report, tool, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"Usage: {tool.name} " in done.stdout and "Exit status:" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_version_is_one_line(report, tool):
    done = run(report, tool, "--version")
    assert done.returncode == 0 and re.fullmatch(rf"{tool.name} \d+\.\d+\.\d+\n", done.stdout)


@pytest.mark.parametrize("arguments", [["--no-such-option"], ["-x"]])
def test_an_unknown_option_is_one_line_and_exit_2(report, tool, arguments):
    done = run(report, tool, *arguments)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert done.stderr.startswith(f"{tool.name}: ")


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_a_closed_pipe_ends_it_quietly(report, tool, option):
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([tool, option], env=report.environment(), stdout=writer, stderr=subprocess.PIPE, timeout=60)
    os.close(writer)
    assert done.stderr == b"" and done.returncode in (0, -signal.SIGPIPE)


def on_terminal(report, command, **extra):
    return all_shown(command, report.environment(TERM="xterm", **extra), columns=80)


@pytest.mark.parametrize("name", ["sparkguard-report", "sparkguard-doctor"])
def test_colour_only_where_it_is_wanted(report, make, tools, name):
    make().refusal("cudaMalloc", "device", 12 << 30, "reserve", usable=9 << 30).write(report.directory)
    assert "\x1b[" in on_terminal(report, [tools / name])
    assert "\x1b" not in on_terminal(report, [tools / name], NO_COLOR="1")
    assert "\x1b" not in run(report, tools / name).stdout


@pytest.mark.usefixtures("in_memory")
def test_a_thousand_processes(report, make):
    for n in range(1000):
        make(pid=100000 + n, job=f"job-{n % 7}").domain("device", granted=n << 20).write(report.directory)
    jobs = report.json("--all")["jobs"]
    assert sorted(p["pid"] for job in jobs for p in job["processes"]) == list(range(100000, 101000))
    done = report.run("--all")
    assert done.returncode == 0 and done.stderr == ""
    assert len(set(re.findall(r"\b100\d\d\d\b", done.stdout))) == 1000
