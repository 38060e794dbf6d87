"""What people type first: a subcommand, a script, another tool's name of an option, a word that is nearly right."""

import json
import os
import re
import shlex
import subprocess
import termios
from pathlib import Path

import pytest
from lib import pty
from lib.machine import GIB, Machine
from launching import replaces_malloc
from screen import all_shown


def run(tools, *words, cwd=None, **extra):
    """Runs build/WORDS with an empty directory of records."""
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(cwd or "/nonexistent"), "LC_ALL": "C.UTF-8", "SPARKGUARD_HISTORY": "off", **extra}
    environment.setdefault("SPARKGUARD_DIR", "/nonexistent/live")
    return subprocess.run([str(tools / words[0]), *words[1:]], env=environment, cwd=cwd, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    "word, tool",
    [
        ("report", ["sparkguard-report"]),
        ("watch", ["sparkguard-report", "--watch"]),
        ("sweep", ["sparkguard-sweep"]),
        ("doctor", ["sparkguard-doctor"]),
        ("check", ["sparkguard", "--check"]),
    ],
)
@pytest.mark.parametrize("argument", ["--frobnicate", "--version", "--json"])
def test_a_subcommand_is_the_tool_of_that_name(tools, tmp_path, word, tool, argument):
    """With --json alone, the launcher and its options say what is missing, and a live view says that it excludes JSON."""
    (tmp_path / "live").mkdir()
    if (word, argument) in (("report", "--json"), ("doctor", "--json"), ("check", "--json")):
        return  # figures of the machine, which change
    there = {"cwd": tmp_path, "SPARKGUARD_DIR": str(tmp_path / "live")}
    short, long = run(tools, "sparkguard", word, argument, **there), run(tools, *tool, argument, **there)
    assert (short.returncode, short.stdout, short.stderr) == (long.returncode, long.stdout, long.stderr)


@pytest.mark.parametrize(
    "words, said",
    [
        (["set"], "set: which job? for example: sparkguard set train limit=60G"),
        (["set", "--force"], "set: which job? for example: sparkguard set train limit=60G"),
        (["set", "train"], "set: which value? for example: sparkguard set train limit=60G"),
        (["--set", "train"], "--set: which value? for example: sparkguard --set train limit=60G"),
        (["set", "limit=64G"], "set: which job? for example: sparkguard set train limit=60G"),
        (["set", "train", "limt=64G"], "set: limt=64G sets nothing; did you mean limit=64G? nothing is changed"),
        (["--set", "train", "reserv=64G"], "--set: reserv=64G sets nothing; did you mean reserve=64G? nothing is changed"),
        (["set", "train", "limit=much"], "set: limit=much is not limit=SIZE, reserve=SIZE or claim=SIZE; for example limit=60G or limit=none; nothing is changed"),
        (["set", "train", "limit"], "set: limit is not limit=SIZE, reserve=SIZE or claim=SIZE; for example limit=60G or limit=none; nothing is changed"),
    ],
)
def test_what_lacks_or_is_nearly_right_of_set_is_told_as_typed(tools, tmp_path, words, said):
    done = run(tools, "sparkguard", *words, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"sparkguard: {said}\n")


def test_set_takes_options_before_and_behind_the_job(tools, tmp_path):
    for words in (["-q", "train"], ["train", "-q"], ["--force", "--quiet", "train"]):
        done = run(tools, "sparkguard", "set", *words, "limit=64G", cwd=tmp_path)
        assert (done.returncode, done.stderr) == (1, "sparkguard: set: no process of job train runs and shares; nothing is changed\n")
    assert run(tools, "sparkguard", "set", "--help").stdout == run(tools, "sparkguard", "--help").stdout


def test_run_is_the_default(launcher):
    run_word = [*launcher.command()[:1], "run", *launcher.command("-q", "sh", "-c", "exit 7")[1:]]
    assert subprocess.run(run_word, env=launcher.environment()).returncode == 7
    assert launcher.run("-q", "sh", "-c", "exit 7").returncode == 7


def test_only_the_first_word_is_a_subcommand(launcher, tmp_path):
    """A program that is called as a subcommand runs after an option, after `run`, and by its path."""
    program = tmp_path / "watch"
    program.write_text("#!/bin/sh\nexit 9\n")
    program.chmod(0o755)
    path = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    assert launcher.run("-q", "watch", **path).returncode == 9
    own = [str(launcher.program), "run", f"--library={launcher.library}", "-q", "watch"]
    assert subprocess.run(own, env=launcher.environment(**path)).returncode == 9
    own = [str(launcher.program), str(program)]
    assert subprocess.run(own, env=launcher.environment(**path), capture_output=True).returncode in (9, 125)


def test_a_tool_is_found_beside_the_launcher(tools, tmp_path):
    """Not in PATH, where another version may be, and by any link to the launcher."""
    link = tmp_path / "sg"
    link.symlink_to(tools / "sparkguard")
    done = subprocess.run([str(link), "sweep", "--version"], env={"PATH": "/nonexistent"}, capture_output=True, text=True)
    assert (done.returncode, done.stdout.split()[0]) == (0, "sparkguard-sweep")


def test_messages_of_a_subcommand_name_what_can_be_typed(tools, tmp_path):
    done = run(tools, "sparkguard", "sweep", cwd=tmp_path)
    assert done.returncode == 2 and done.stderr.startswith("sparkguard-sweep: which program?")


@pytest.mark.parametrize("mode", [0o644, 0o755])
@pytest.mark.parametrize("spelling", ["train.py", "./train.py"])
def test_a_python_script_is_told_with_the_interpreter(tools, tmp_path, spelling, mode):
    script = tmp_path / "train.py"
    script.write_text("print('ran')\n")
    script.chmod(mode)
    if spelling == "./train.py" and mode == 0o755:
        return  # a text without "#!" is the shell's to run, as env(1) has it
    done = run(tools, "sparkguard", spelling, "--epochs", "3", cwd=tmp_path)
    assert done.returncode in (126, 127)
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"sparkguard: cannot run {spelling}: ") and line.endswith(f"; did you mean: sparkguard python3 {spelling}")


@pytest.mark.parametrize("spelling", ["step", "./step"])
@pytest.mark.parametrize(
    "suffix, text, starter",
    [(".sh", "echo ran\n", "sh"), (".sh", "#! /usr/bin/env bash\n", "/usr/bin/env bash"), ("", "#!/bin/sh -e\n", "/bin/sh -e"), (".js", "1\n", "node"), (".R", "1\n", "Rscript")],
)
def test_another_script_is_told_with_what_starts_it(tools, tmp_path, suffix, text, starter, spelling):
    (tmp_path / f"step{suffix}").write_text(text)
    done = run(tools, "sparkguard", f"{spelling}{suffix}", "word", cwd=tmp_path)
    (line,) = done.stderr.splitlines()
    assert done.returncode in (126, 127) and line.endswith(f"; did you mean: sparkguard {starter} {spelling}{suffix}")


@pytest.mark.parametrize("name", ["model.gguf", "step.", "notes"])
def test_nothing_is_proposed_for_a_file_that_is_no_script(tools, tmp_path, name):
    (tmp_path / name).write_text("text\n")
    assert "did you mean" not in run(tools, "sparkguard", name, cwd=tmp_path).stderr


@pytest.mark.parametrize("option", ["-m", "-m4g", "--mem=4G", "--mem-limit=4G", "--memory-limit", "--max-memory"])
def test_another_tools_limit_of_memory_is_told_with_ours(tools, tmp_path, option):
    done = run(tools, "sparkguard", option, "4G", "true", cwd=tmp_path)
    assert done.returncode == 2 and done.stderr.endswith("sparkguard: did you mean --memory?\n")
    assert "did you mean --memory" not in run(tools, "sparkguard-doctor", option, cwd=tmp_path).stderr


@pytest.mark.parametrize("words, meant", [(["--memory=4G", "--quite"], "quiet"), (["--meminfo=raw", "--lmit=1G"], "limit"), (["--memifno=raw"], "meminfo"), (["--memroy=4G"], "memory")])
def test_our_own_options_of_memory_are_no_other_tools(tools, tmp_path, words, meant):
    done = run(tools, "sparkguard", *words, "true", cwd=tmp_path)
    assert done.returncode == 2 and done.stderr.endswith(f"sparkguard: did you mean --{meant}?\n")


def test_a_program_of_this_folder_is_told_with_its_path(tools, tmp_path):
    (tmp_path / "serve").write_text("#!/bin/sh\n")
    (tmp_path / "serve").chmod(0o755)
    done = run(tools, "sparkguard", "serve", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (127, "sparkguard: cannot run serve: No such file or directory; did you mean: sparkguard ./serve\n")


@pytest.mark.parametrize("word, meant", [("reprot", "report"), ("dcotor", "doctor"), ("swep", "sweep"), ("chekc", "check")])
def test_a_misspelt_subcommand_is_told_with_the_nearest(tools, tmp_path, word, meant):
    done = run(tools, "sparkguard", word, cwd=tmp_path)
    assert done.returncode == 127 and done.stderr.endswith(f"; did you mean: sparkguard {meant}\n")


def test_a_program_that_is_nowhere_is_told_without_a_guess(tools, tmp_path):
    done = run(tools, "sparkguard", "frobnicate.py", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (127, "sparkguard: cannot run frobnicate.py: No such file or directory\n")


@pytest.mark.parametrize("form", [["--memory", "4G"], ["--memory=4G"]])
def test_memory_is_the_limit(launcher, form):
    assert launcher.variables(*form)["SPARKGUARD_LIMIT"] == "4G"


MISSPELT = [
    ("sparkguard", "--limt", "limit"),
    ("sparkguard-report", "--wach", "watch"),
    ("sparkguard-report", "--jsno", "json"),
    ("sparkguard-sweep", "--contxt", "context"),
    ("sparkguard-sweep", "--parm", "param"),
    ("sparkguard-doctor", "--jsn", "json"),
]


@pytest.mark.parametrize("tool, option, meant", MISSPELT)
@pytest.mark.parametrize("value", ["", "=32K"])
def test_every_tool_names_the_option_that_was_nearly_written(tools, tmp_path, tool, option, meant, value):
    done = run(tools, tool, option + value, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[1:] == [f"{tool}: did you mean --{meant}?"]


@pytest.mark.parametrize("tool", ["sparkguard", "sparkguard-report", "sparkguard-sweep", "sparkguard-doctor"])
def test_no_tool_guesses_at_an_option_like_no_other(tools, tmp_path, tool):
    done = run(tools, tool, "--frobnicate", cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


@pytest.mark.parametrize("word, meant", [("jsno", "json"), ("setup", "setup"), ("fixscript", "fix-script")])
def test_the_doctor_names_the_option_that_a_word_nearly_is(tools, tmp_path, word, meant):
    done = run(tools, "sparkguard-doctor", word, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, f"sparkguard-doctor: nothing to do with {word}; did you mean --{meant}?\n")


def test_dockers_word_in_a_variable_is_the_limit(launcher):
    done = launcher.run("-q", "true", SPARKGUARD_MEMORY="4G")
    assert done.stderr == "sparkguard: SPARKGUARD_MEMORY is not a variable of sparkguard; did you mean SPARKGUARD_LIMIT?\n"


@pytest.mark.parametrize("option", ["--on-pressure", "--on-refusal"])
@pytest.mark.parametrize("command", ["nosuchprogram", "nosuchprogram -x; true", "./none", ""])
def test_a_command_that_no_shell_finds_starts_nothing(launcher, option, command):
    done = launcher.run("-q", f"{option}={command}", "echo", "ran")
    assert (done.returncode, done.stdout) == (2, "")
    said = f"sparkguard: {option}={command}: the shell knows no such command; for example 'kill -USR1 4711'; the program is not started\n"
    assert done.stderr == said


@pytest.mark.parametrize("command", ["exit 3", "true", ": x", "X=1 true", '"$HOME/x" y', "(true)", "/bin/true;false", "f() { true; }; f", "if true; then true; fi"])
def test_what_a_shell_may_run_is_a_command(launcher, command):
    done = launcher.run("-q", f"--on-pressure={command}", "echo", "ran")
    assert (done.returncode, done.stdout) == (0, "ran\n"), done.stderr


def test_a_jobs_name_is_taken_where_a_process_is(report, make):
    make(pid=4711, job="train").write(report.directory)
    by_name, by_option = report.run("train"), report.run("--job=train")
    assert by_name.returncode == 0 and by_name.stdout == by_option.stdout
    missing = report.run("trian")
    assert missing.returncode == 1 and "no job trian on record" in missing.stderr
    assert report.run("train", "--job=train").returncode == 2
    assert report.run("train", "4711").stdout == report.run("--job=train", "4711").stdout


START = re.compile(r"^sparkguard: guarded; ([\d.]+ [KMG]iB) may be taken, ([\d.]+ [KMG]iB) stay free \(sparkguard-report\)$")


def on_a_terminal(launcher, *words, **extra):
    """All that comes on a terminal without a width, a line each."""
    return all_shown(launcher.command(*words), launcher.environment(**extra), columns=0).splitlines()


def test_on_a_terminal_a_job_begins_with_a_line(launcher):
    lines = on_a_terminal(launcher, "echo", "ran")
    assert sum(START.match(line) is not None for line in lines) == 1 and "ran" in lines
    (limited,) = filter(None, map(START.match, on_a_terminal(launcher, "--limit=64M", "--reserve=1G", "true")))
    assert limited.groups() == ("64.0 MiB", "1.0 GiB")


@pytest.mark.parametrize("current, kept", [(15, "4.0 GiB"), (10, "8.0 GiB")])
def test_the_line_names_the_reserve_of_what_has_the_least_room(launcher, report, tmp_path, current, kept):
    """As the report does, where machine and cgroup both have less than they keep."""
    machine = Machine(tmp_path / "root", available=7 * GIB, cgroup="0::/box").v2("", current=0).v2("/box", maximum=16 * GIB, current=current * GIB)
    env = {"SPARKGUARD_SYSTEM_ROOT": str(machine.root), "SPARKGUARD_RESERVE": "8G"}
    assert f"sparkguard: guarded; 0 B may be taken, {kept} stay free (sparkguard-report)" in on_a_terminal(launcher, "true", **env)
    assert f"{json.loads(report.run('--json', **env).stdout)['machine']['reserve_bytes'] / GIB:.1f} GiB" == kept


def test_a_launcher_in_a_job_does_not_repeat_the_line(launcher):
    inner = " ".join(launcher.command("echo", "ran"))
    lines = on_a_terminal(launcher, "sh", "-c", f"{inner}; {inner}")
    assert sum("may be taken" in line for line in lines) == 1 and lines.count("ran") == 2


@pytest.mark.parametrize("options", [["--quiet"], ["--report=off"], ["--disable"]])
def test_a_quiet_or_unguarded_job_begins_without_the_line(launcher, options):
    assert not [line for line in on_a_terminal(launcher, *options, "true") if "may be taken" in line]


def test_the_line_is_for_a_terminal_and_for_programs_that_start(launcher):
    assert "may be taken" not in launcher.run("true").stderr
    (line,) = on_a_terminal(launcher, "/no/such/program")
    assert line == "sparkguard: cannot run /no/such/program: No such file or directory"
    (line, *_) = on_a_terminal(launcher, "--mode=observe", "true")
    assert line.startswith("sparkguard: observed, nothing is refused; ")


ASK = """
import ctypes, sparkguard
malloc = ctypes.CDLL(None).malloc
malloc.argtypes, malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
malloc(300 << 20)
print(sparkguard.explain(MemoryError()))
"""


@pytest.mark.parametrize(
    "words, variable, said",
    [
        ("sparkguard --limit 64M ASK", None, "--limit "),
        ("sparkguard --memory=64M ASK", None, "--limit "),
        ("sparkguard ASK", "64M", "SPARKGUARD_LIMIT="),
        ("sparkguard --limit 64M sh -c 'SPARKGUARD_LIMIT=48M exec ASK'", None, "SPARKGUARD_LIMIT="),
        ("sparkguard --limit 64M sh -c 'sparkguard ASK'", None, "--limit "),
        ("sparkguard --limit 64M sparkguard --job inner ASK", None, "--limit "),
        ("sparkguard sparkguard --limit 64M ASK", "128M", "--limit "),
    ],
)
def test_the_next_step_after_a_refusal_is_worded_as_the_limit_was_given(tools, tmp_path, words, variable, said):
    steps = steps_after_a_refusal(tools, tmp_path, words, variable)
    assert [re.sub(r"\d+\.\dM$", "", step) for step in steps] == [said, said], steps


@pytest.mark.parametrize(
    "words, variables, said",
    [
        ("sparkguard ASK", {}, "limit=N in ~/.config/sparkguard.conf"),
        ("ASK", {"LD_PRELOAD": "LIBRARY"}, "limit=N in ~/.config/sparkguard.conf"),
        ("sparkguard sh -c 'sparkguard ASK'", {}, "limit=N in ~/.config/sparkguard.conf"),
        ("sparkguard ASK", {"XDG_CONFIG_HOME": "FOLDER/.config"}, "limit=N in $XDG_CONFIG_HOME/sparkguard.conf"),
        ("ASK", {"LD_PRELOAD": "LIBRARY", "XDG_CONFIG_HOME": "FOLDER/.config"}, "limit=N in $XDG_CONFIG_HOME/sparkguard.conf"),
        ("sparkguard --limit 48M ASK", {}, "--limit N"),
        ("sparkguard ASK", {"SPARKGUARD_LIMIT": "48M"}, "SPARKGUARD_LIMIT=N"),
        ("sparkguard sh -c 'SPARKGUARD_LIMIT=48M exec ASK'", {}, "SPARKGUARD_LIMIT=N"),
    ],
)
def test_the_next_step_names_the_users_file_where_the_limit_is_of_that(tools, tmp_path, words, variables, said):
    (tmp_path / ".config").mkdir()
    (tmp_path / ".config/sparkguard.conf").write_text("limit = 64M\n")
    there = {"LIBRARY": str(tools / "libsparkguard.so"), "FOLDER": str(tmp_path)}
    variables = {name: re.sub("LIBRARY|FOLDER", lambda found: there[found[0]], value) for name, value in variables.items()}
    steps = steps_after_a_refusal(tools, tmp_path, words, None, HOME=str(tmp_path), **variables)
    assert [re.sub(r"\d+\.\dM", "N", step) for step in steps] == [said, said], steps


def steps_after_a_refusal(tools, tmp_path, words, variable, **more):
    """What is to be tried, by the library and by the Python package."""
    if replaces_malloc(tools) and words.count("sparkguard") > 1:
        pytest.skip("a launcher of this build cannot run under the guard")
    (tmp_path / "ask.py").write_text(ASK)
    package = Path(__file__).resolve().parents[3] / "tools/python"
    there = {"SPARKGUARD_DIR": str(tmp_path / "live"), "PYTHONPATH": str(package), "PATH": f"{tools}:/usr/bin:/bin"}
    there |= {"SPARKGUARD_LIMIT": variable} if variable else {}
    done = run(tools, *shlex.split(words.replace("ASK", "/usr/bin/python3 ask.py")), cwd=tmp_path, **there, **more)
    return re.findall(r"^try: (.+?); a limit of", done.stdout + done.stderr, re.MULTILINE)


@pytest.mark.parametrize(
    "words, status, said",
    [
        (["help"], 127, "cannot run help: No such file or directory; did you mean: sparkguard --help"),
        (["sh -c true"], 127, "cannot run sh -c true: No such file or directory; did you mean: sparkguard sh -c true, without the quotes"),
        (["nothing -c true"], 127, "cannot run nothing -c true: No such file or directory"),
        (["/nothing/my models/run.sh"], 127, "cannot run /nothing/my models/run.sh: No such file or directory"),
        (["version"], 127, "cannot run version: No such file or directory; did you mean: sparkguard --version"),
        (["status"], 127, "cannot run status: No such file or directory; did you mean: sparkguard report"),
        (["limit=64G", "true"], 127, "cannot run limit=64G: No such file or directory; did you mean: sparkguard --limit=64G"),
        (["SPARKGUARD_DIR=/x", "true"], 127, "cannot run SPARKGUARD_DIR=/x: No such file or directory; did you mean: sparkguard --dir=/x"),
        (["--limit=64 GiB", "true"], 2, "--limit=64 GiB: not a size; for example 64GiB; the program is not started"),
        (["--limit=1,5G", "true"], 2, "--limit=1,5G: not a size; for example 1.5G; the program is not started"),
        (["--limit=unlimited", "true"], 2, "--limit=unlimited: not a size; for example none; the program is not started"),
        (["--limit=-1", "true"], 2, "--limit=-1: not a size; for example none; the program is not started"),
        (["--reserve=-1", "true"], 2, "--reserve=-1: not a size; for example 12G; the program is not started"),
        (["--limit=15M", "true"], 2, "--limit=15M: less than any program needs (16 MiB); for example 64G; the program is not started"),
        (["--limit=32", "true"], 2, "--limit=32 is 32 bytes, less than any program needs (16 MiB); did you mean 32G?; the program is not started"),
        (["--memory=8000", "true"], 2, "--limit=8000 is 8000 bytes, less than any program needs (16 MiB); did you mean 8000M?; the program is not started"),
        (["--limit=64GG", "true"], 2, "--limit=64GG: not a size; for example 64G; the program is not started"),
        (["--wait=5 min", "true"], 2, "--wait=5 min: not a time; for example 5min; the program is not started"),
        (["--oom-score-adj=5 0", "true"], 2, "--oom-score-adj=5 0: not a number from -1000 to 1000; for example 500; the program is not started"),
    ],
)
def test_a_first_word_that_is_nearly_right_is_told_with_the_right_one(tools, tmp_path, words, status, said):
    done = run(tools, "sparkguard", *words, cwd=tmp_path, PATH="/nonexistent:/usr/bin:/bin")
    assert (done.returncode, done.stdout, done.stderr) == (status, "", f"sparkguard: {said}\n")


@pytest.mark.parametrize(
    "words, said",
    [
        (["sparkguard", "--watch"], "sparkguard: did you mean: sparkguard watch"),
        (["sparkguard", "--report"], "sparkguard: did you mean: sparkguard report"),
        (["sparkguard", "-h"], "sparkguard: did you mean --help?"),
        (["sparkguard", "-limit", "60G", "true"], "sparkguard: did you mean --limit?"),
        (["sparkguard-report", "-watch"], "sparkguard-report: did you mean --watch?"),
        (["sparkguard", "-lx", "true"], "sparkguard: invalid option -- 'l'"),
        (["sparkguard", "-mem", "4G", "true"], "sparkguard: did you mean --memory?"),
        (["sparkguard", "-x", "python3", "-m", "train"], "sparkguard: invalid option -- 'x'"),
        (["sparkguard", "--quite", "python3", "-m", "train"], "sparkguard: did you mean --quiet?"),
        (["sparkguard", "--job", "-m", "--l=3", "python3", "-m", "train"], "sparkguard: option '--l=3' is ambiguous; possibilities: '--limit' '--large' '--library'"),
        (["sparkguard-report", "--name=mem-test"], "sparkguard-report: unrecognized option '--name=mem-test'"),
        (["sparkguard-report", "-h"], "sparkguard-report: did you mean --help?"),
        (["sparkguard-sweep"], "sparkguard-sweep: which program? for example: sparkguard-sweep -p batch=1,2,4 -- python3 train.py {batch}"),
        (["sparkguard-sweep", "-p", "n=1..4", "true"], "sparkguard-sweep: {n} does not occur in the command, so its values would make no difference; for example: python3 train.py --n {n}"),
    ],
)
def test_an_option_that_is_none_leads_to_what_there_is(tools, tmp_path, words, said):
    done = run(tools, *words, cwd=tmp_path)
    assert done.returncode == 2 and done.stderr.splitlines()[-1] == said


def test_python_without_a_number_is_told_where_there_is_none(tools, tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python3").symlink_to("/usr/bin/python3")
    done = run(tools, "sparkguard", "python", "train.py", cwd=tmp_path, PATH=f"{tmp_path}/bin")
    assert done.returncode == 127
    assert done.stderr == "sparkguard: cannot run python: No such file or directory; did you mean: sparkguard python3\n"


def on_terminal(tools, folder, columns, *words):
    """The rows that a command prints on a terminal of that width; 0: it has none."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, columns))
    env = {"PATH": f"{tools}:/usr/bin:/bin", "HOME": str(folder), "SPARKGUARD_DIR": str(folder / "live"), "SPARKGUARD_HISTORY": "off"}
    process = subprocess.Popen([str(tools / words[0]), *words[1:]], env=env, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = pty.read_all(ours)
    process.wait(60)
    return re.sub(r"\x1b\[[\d;]*[mK]", "", shown.decode()).split("\r\n")


HOLD_MUCH = "data = bytearray(90 << 20)"


@pytest.mark.parametrize("columns", [60, 80])
def test_messages_on_a_terminal_break_between_words(tools, tmp_path, columns):
    held = ["sparkguard", "--limit", "128M", "/usr/bin/python3", "-S", "-c", HOLD_MUCH]
    for words in (["sparkguard", "--limit=64", "true"], held, ["sparkguard-report", "--since=lastweek"], ["sparkguard-sweep"]):
        wide, narrow = [on_terminal(tools, tmp_path, width, *words) for width in (0, columns)]
        assert max(map(len, narrow)) <= columns < max(map(len, wide)), narrow
        figures = re.compile(r"\d[\dT.-]*( [KMG]i?B)?")
        assert figures.sub("N", " ".join(narrow)) == figures.sub("N", " ".join(wide))


def test_a_model_that_is_not_here_is_told_with_what_a_model_is(tools, tmp_path):
    done = run(tools, "sparkguard-sweep", "--fits", "Qwen/Qwen3-8B", cwd=tmp_path)
    said = "No such file or directory; MODEL is a folder with a model's files, one of them, or its shape, for example 8B"
    assert (done.returncode, done.stderr) == (3, f"sparkguard-sweep: Qwen/Qwen3-8B: {said}\n")


def test_an_option_of_the_report_without_its_dashes_is_told(tools, tmp_path):
    (tmp_path / "live").mkdir()
    done = run(tools, "sparkguard", "report", "last", cwd=tmp_path, SPARKGUARD_DIR=str(tmp_path / "live"))
    assert (done.returncode, done.stderr) == (1, f"sparkguard-report: no job last on record in {tmp_path}/live; did you mean --last?\n")
