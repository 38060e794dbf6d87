"""What the README says of the program is so: its order, its options, its links, its blocks, and the lines that it shows of a run."""

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


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def commands(tool):
    """The lines of the blocks that begin with a tool, without what explains them."""
    return [line.partition("  #")[0].strip() for block in blocks("sh") for line in block.splitlines() if re.match(rf"{tool} ", line)]


def test_it_is_read_in_this_order():
    titles = re.findall(r"^## (.*)$", TEXT, re.MULTILINE)
    assert titles == [
        "Why nothing else helps", "Install", "Containers and vLLM", "Everyday tasks", "When something is refused", "Options", "Limits",
        "Status and cost", "Read on", "Contributing and licence",
    ]  # fmt: skip


def test_first_screen_is_the_problem_one_command_and_what_it_looks_like():
    screen = TEXT[: TEXT.index("## ")]
    words, command, picture = re.match(r"# sparkguard\n\n\*\*[^\n.]*\.\*\*\n\n(.*?)\n\n```sh\n(.*?)```\n\n(!\[[^\n]+\]\(docs/reserve\.svg\))\n", screen, re.DOTALL).groups()
    assert len(words.splitlines()) <= 4 and command == "sparkguard python3 train.py\n" and picture
    assert "make demo\n" in blocks("sh")


def test_first_screen_needs_no_glossary():
    """Of the terms that the glossary explains it uses three at most, and a new word is in italics."""
    terms = re.findall(r"^\*\*([^*]+)\*", (ROOT / "docs/glossary.md").read_text(), re.MULTILINE)
    screen = TEXT[: TEXT.index("## ")].lower()
    assert len(terms) > 30 and len([term for term in terms if re.search(rf"\b{re.escape(term.lower())}s?\b", screen)]) <= 3


def test_no_address_is_left_to_be_filled_in():
    assert not re.search(r"\b(ADDRESS|URL|EXAMPLE|OWNER)\b|example\.(com|org)", TEXT)


def test_other_ways_are_compared_in_a_table_of_five():
    table = section("Why nothing else helps")
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    assert [word in row for word, row in zip(("swap off", "docker --memory", "earlyoom", "memory fractions", "sparkguard"), rows)] == [True] * 5


# ---- blocks that can be pasted ----

# What a block may not do to the machine that runs the tests. `make` says whether the target exists, `sudo` runs what it is given.
STUBS = {
    "make": f'for word; do [[ $word == *=* ]] || grep -q "^$word:" {ROOT}/Makefile {ROOT}/scripts/package.mk || exit 2; done',
    "sudo": 'exec "$@"',
    "apt": "exit 0",
    "docker": "exit 0",
    "vllm": "exit 0",
}
TRAINER_OF_BLOCKS = "held = bytearray(20 << 20)\n"
NEVER_ENDS = re.compile(r"^sparkguard-report --watch", re.MULTILINE)
WAITS_FOR_MEMORY = re.compile(r"--claim 80G --claim-wait 600")  # 80 GiB: more than the machines that run the tests have


def paste(block, tools, folder):
    """What an interactive shell says and answers to each line of a block: its status."""
    (folder / "bin").mkdir()
    for name, text in STUBS.items():
        (folder / "bin" / name).write_text(f"#!/bin/bash\n{text}\n")
        (folder / "bin" / name).chmod(0o755)
    (folder / "train.py").write_text(TRAINER_OF_BLOCKS)
    env = {"PATH": f"{folder}/bin:{tools}:/usr/bin:/bin", "HOME": str(folder), "LD_LIBRARY_PATH": str(tools)}
    env |= {"SPARKGUARD_DIR": str(folder / "live"), "SPARKGUARD_HISTORY": str(folder / "history"), "ASAN_OPTIONS": "verify_asan_link_order=0"}
    lines = WAITS_FOR_MEMORY.sub("--claim 16M --claim-wait 1", NEVER_ENDS.sub("true # \\g<0>", block))
    text = "".join(f"{line}\nprintf 'STATUS %d\\n' $?\n" for line in lines.splitlines() if not line.startswith("#")) + "echo STILL HERE\n"
    done = subprocess.run(["bash", "--norc", "--noprofile", "-i"], input=text, cwd=folder, env=env, capture_output=True, text=True, timeout=120)
    return done, [int(status) for status in re.findall(r"^STATUS (\d+)$", done.stdout, re.MULTILINE)]


@pytest.mark.parametrize("block", blocks("sh"), ids=lambda block: block.splitlines()[-1][:40])
def test_block_can_be_pasted(tools, tmp_path, block):
    assert subprocess.run(["bash", "-n"], input=block, text=True, capture_output=True).returncode == 0
    for line in block.splitlines():
        code, _, words = line.partition("#")
        assert not re.search(r"\S {2,}\S|&&|;", code), f"one command a line, and # before prose: {line}"
    done, statuses = paste(block, tools, tmp_path)
    assert done.stdout.endswith("STILL HERE\n"), done.stderr
    assert len(statuses) == len([line for line in block.splitlines() if not line.startswith("#")])
    assert not {2, 126, 127} & set(statuses), done.stderr  # bad usage; nothing that can be run; nothing of that name
    assert "command not found" not in done.stderr and "syntax error" not in done.stderr


@pytest.mark.parametrize("tool", TOOLS)
def test_each_option_that_it_shows_is_one(tools, tool):
    lines = commands(tool) + re.findall(rf"`{tool} ([^`]*)`", TEXT)
    known = set(re.findall(r"--[\w-]+", subprocess.run([tools / tool, "--help"], capture_output=True, text=True, check=True).stdout))
    shown = {option for line in lines for option in re.findall(r" (--[\w-]+)", re.split(" -- |python|vllm serve", line)[0])}
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


def normal(text):
    text = re.sub(r"[\d.]+ (?:[KMG]i)?B\b", "SIZE", text)
    text = re.sub(r"--limit [\d.]+[KMG]", "--limit SIZE", text)
    return re.sub(r"sparkguard-report \d+", "sparkguard-report PID", text)


def test_the_lines_of_a_refusal_are_those_of_the_program(tools, tmp_path):
    """A toy trainer that is refused once; figures apart, the README has the same lines, the first one in two."""
    (tmp_path / "train.py").write_text(TRAINER)
    env = {"PATH": f"{tools}:/usr/bin:/bin", "SPARKGUARD_DIR": str(tmp_path / "live"), "SPARKGUARD_HISTORY": "off", "HOME": str(tmp_path)}
    env["ASAN_OPTIONS"] = "verify_asan_link_order=0"  # of the sanitizers' build
    command = ["sparkguard", "-q", "--job", "train", "--limit", "200M", sys.executable, "-S", "train.py"]
    done = subprocess.run(command, executable=tools / "sparkguard", cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    told = re.search(r"^```text\n(sparkguard: refused .*?)^```$", section("When something is refused"), re.MULTILINE | re.DOTALL)[1]
    assert normal(done.stderr) == normal(told.replace(";\n", "; "))


def test_the_commands_that_install_a_release_are_found():
    """tests/dist types them in fresh systems."""
    function = re.search(r"^readme_line\(\).*$", (ROOT / "tests/dist").read_text(), re.MULTILINE)[0]
    script = f"{function}\nreadme_line 'apt install ./dist'\nreadme_line 'find-links dist'"
    found = subprocess.run(["bash", "-c", script], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    by_apt = "sudo apt install ./dist/*_$(dpkg --print-architecture).deb"
    assert found == f"{by_apt}\npip install --no-index --find-links dist sparkguard\n"
