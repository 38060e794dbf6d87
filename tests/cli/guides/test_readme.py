"""What the README says of the program is so: its order, its options, its links, and the lines that it shows of a run."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
TEXT = (ROOT / "README.md").read_text()
TOOLS = ("sparkguard", "sparkguard-report", "sparkguard-sweep", "sparkguard-doctor")
TRAINER = """
held = bytearray(100 << 20)
try:
    bytearray(300 << 20)
except MemoryError:
    pass
"""


def section(title):
    return re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL)[1]


def commands(tool):
    """The indented lines that begin with a tool, without what explains them."""
    return [re.split(r" {3,}", line.strip().removeprefix("$ "))[0] for line in re.findall(rf"^    (?:\$ )?{tool} .*$", TEXT, re.MULTILINE)]


def test_it_is_read_in_this_order():
    titles = re.findall(r"^## (.*)$", TEXT, re.MULTILINE)
    assert titles == [
        "The problem", "Status and cost", "Install", "Quick start", "Everyday tasks", "When something is refused", "Options", "Limits",
        "Read on", "Contributing and licence",
    ]  # fmt: skip
    before = TEXT[: TEXT.index("## ")]
    assert re.match(r"# sparkguard\n\n\*\*[^\n.]*\.\*\*\n\n!\[[^\n]+\]\(docs/plot\.svg\)", before)


def test_the_problem_is_told_in_four_lines_with_a_table_of_five_ways():
    problem, _, table = section("The problem").strip().partition("\n\n")
    assert len(problem.splitlines()) == 4
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    assert [word in row for word, row in zip(("swap off", "docker --memory", "earlyoom", "memory fractions", "sparkguard"), rows)] == [True] * 5


@pytest.mark.parametrize("tool", TOOLS)
def test_each_option_that_it_shows_is_one(tools, tool):
    lines = commands(tool) + re.findall(rf"`{tool} ([^`]*)`", TEXT)
    known = set(re.findall(r"--[\w-]+", subprocess.run([tools / tool, "--help"], capture_output=True, text=True, check=True).stdout))
    shown = {option for line in lines for option in re.findall(r" (--[\w-]+)", line.split(" -- ")[0].split("python")[0])}
    assert lines and shown - known == set()


def test_each_link_leads_to_a_file():
    links = [link for link in re.findall(r"\]\(([^)#]+)", TEXT) if "://" not in link]
    assert len(links) > 15 and [link for link in links if not (ROOT / link).exists()] == []


def test_each_variable_is_an_option():
    options = set(re.findall(r"SG_OPTION\((\w+),", (ROOT / "include/options.def").read_text()))
    shown = set(re.findall(r"SPARKGUARD_([A-Z_]+)", TEXT))
    assert shown and shown <= options
    assert len(re.findall(r"^\| `SPARKGUARD_", section("Options"), re.MULTILINE)) == 6


def test_the_seven_usual_questions_are_answered():
    answers = section("When something is refused")
    items = re.findall(r"^- .*", answers, re.MULTILINE)
    words = ("cannot be preloaded ...: ignored", "`env -i`", "conda, uv", "Go, Rust", "vLLM sees less", "`SPARKGUARD_LIMIT=64`", "jemalloc")
    assert [word for word in words if not any(word in item for item in items)] == []


def test_it_says_how_to_guard_a_whole_machine_and_how_to_uninstall():
    install = section("Install")
    assert "sparkguard-doctor --setup | sudo sh" in install and "--setup=undo" in install and "sparkguard --check" in install
    assert "apt remove sparkguard" in install and "make uninstall" in install and "pip uninstall sparkguard" in install


def test_contributing_says_how_long_the_tests_take_and_the_licence():
    last = section("Contributing and licence")
    minutes = re.search(r"`make test` takes (\d+ minutes) on two cores", last)
    assert minutes and "[MIT](LICENSE)" in last
    assert "git clone" in section("Quick start") and "make demo" in section("Quick start")


def normal(text):
    text = re.sub(r"[\d.]+ (?:[KMG]i)?B\b", "SIZE", text)
    text = re.sub(r"\bran [\d.]+ s\b", "ran TIME", re.sub(r"LIMIT=[\d.]+[KMG]", "LIMIT=SIZE", text))
    return re.sub(r"sparkguard-report \d+", "sparkguard-report PID", text)


def test_the_lines_of_a_run_and_of_a_refusal_are_those_of_the_program(tools, tmp_path):
    """A toy trainer that is refused once; figures apart, the README has the same lines."""
    shown = re.search(r"\$ sparkguard --job train .*\n((?:    sparkguard: .*\n)+)", TEXT)[1]
    (tmp_path / "train.py").write_text(TRAINER)
    env = {"PATH": f"{tools}:/usr/bin:/bin", "SPARKGUARD_DIR": str(tmp_path / "live"), "SPARKGUARD_HISTORY": "off", "HOME": str(tmp_path)}
    env["ASAN_OPTIONS"] = "verify_asan_link_order=0"  # of the sanitizers' build
    command = ["sparkguard", "--job", "train", "--limit", "200M", sys.executable, "-S", "train.py"]
    done = subprocess.run(command, executable=tools / "sparkguard", cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    refused, way_out, *summary = done.stderr.splitlines()
    assert normal("\n".join(summary)) == normal(re.sub("^    ", "", shown.rstrip("\n"), flags=re.MULTILINE))
    told = re.search(r"^    (sparkguard: refused .*)\n    (.*)\n    (try: .*)$", section("When something is refused"), re.MULTILINE)
    assert (normal(refused), normal(way_out)) == (normal(f"{told[1]} {told[2]}"), normal(told[3]))
