"""A wrong value of any option, in the environment or on a command line: one kind of sentence, which says what was given,
what is wrong, a good example and what happens now. All of them are in golden/bad_values.txt."""

import ctypes
import os
import re
import subprocess
from pathlib import Path

import pytest
from lib.machine import Machine
from records import compare

ROOT = Path(__file__).resolve().parents[3]
BAD = {"SIZE": "64Q", "TIME": "soon", "CHOICE": "maybe", "TEXT": "a/b", "PATH": "here", "NUMBER": "5000"}
OPTION = re.compile(r'SG_OPTION\((\w+), \w+, "([\w-]+)", (\w+), "([^"]*)", "([^"]*)"')
OPTIONS = OPTION.findall(re.sub(r"\n +", " ", (ROOT / "include/options.def").read_text()))
SWEEP = {"--large": "x", "--timeout": "soon", "--param": "batch", "--export": "a.txt"}


def sweep_options(tools):
    text = subprocess.run([str(tools / "sparkguard-sweep"), "--help"], capture_output=True, text=True, check=True).stdout
    return {name for name in re.findall(r"--[\w-]+(?==SIZE)", text)}


def environment(**extra):
    return {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "SPARKGUARD_DIR": "/nonexistent/live", **extra}


def run(tools, tool, *arguments, **extra):
    return subprocess.run([str(tools / tool), *arguments], env=environment(**extra), capture_output=True, text=True, timeout=60)


def of_library(tools, variable, value):
    done = subprocess.run(
        ["/bin/true"], env=environment(**{"LD_PRELOAD": str(tools / "libsparkguard.so"), variable: value}), capture_output=True, text=True
    )
    assert done.returncode == 0
    return [line for line in done.stderr.splitlines() if variable in line]


def test_the_sentence_about_each_wrong_value_is_golden(tools):
    assert len(OPTIONS) >= 17
    lines = []
    for identity, name, kind, _, example in OPTIONS:
        variable, value = f"SPARKGUARD_{identity}", BAD[kind]
        (said,) = of_library(tools, variable, value)
        lines.append(said)
        for arguments, extra in (([f"--{name}={value}", "true"], {}), (["true"], {variable: value})):
            done = run(tools, "sparkguard", *arguments, **extra)
            assert done.returncode == 2
            (line,) = done.stderr.splitlines()
            assert value in line and example in line
            lines.append(line)
    for name in ["--jail"]:
        done = run(tools, "sparkguard", f"{name}=64Q", "true")
        assert done.returncode == 2
        lines += done.stderr.splitlines()
    for name in sorted(sweep_options(tools)) + ["--timeout", "--param", "--export"]:
        done = run(tools, "sparkguard-sweep", f"{name}={SWEEP.get(name, '64Q')}", "--", "true")
        assert done.returncode == 2, name
        lines += done.stderr.splitlines()
    compare("bad_values.txt", "".join(line + "\n" for line in lines))


OTHERS = {
    "sparkguard-report": ["--watch=soon", "--watch=0.01", "--since=lately", "--plot=run.png", "--plot=", "--html=page", "--output=", "--dir=", "--job=", "4294967296", "0"],
    "sparkguard-sweep": ["--context=x", "--context=0", "--batch=1e9", "--kv-dtype=fp5", "--dtype=fp8", "--load=fast", "--param=n"],
}
SENTENCE = re.compile(r"[\w-]+: (?:--?[\w-]+|PID|SPARKGUARD_\w+)=[^:]*: [^;]+; (?:for example |use one of )[^;]+; (?:the program is not started|nothing is \w+)")


def test_the_other_tools_tell_a_wrong_value_by_the_same_sentence(tools):
    lines = []
    for tool, values in OTHERS.items():
        for words in values:
            done = run(tools, tool, *words.split(" "))
            assert (done.returncode, done.stdout) == (2, "")
            lines += done.stderr.splitlines()
    compare("bad_values_of_tools.txt", "".join(line + "\n" for line in lines))
    ours = (ROOT / "tests/cli/golden/bad_values.txt").read_text().splitlines()
    assert len(lines) == sum(map(len, OTHERS.values()))
    assert [line for line in [*lines, *(line for line in ours if "cannot be read" not in line)] if not SENTENCE.fullmatch(line)] == []


COMPUTING = ["sparkguard-report", "sparkguard-sweep --fits=/", "sparkguard-sweep --fits=1B"]


@pytest.mark.parametrize("command", COMPUTING)
def test_a_tool_that_computes_with_a_wrong_variable_says_what_it_uses_instead(tools, command):
    tool, *arguments = command.split()
    wrong = {"SPARKGUARD_RESERVE": "150%", "SPARKGUARD_LIMIT": "64Q", "SPARKGUARD_FLOOR": "low"}
    assert run(tools, tool, *arguments, **wrong).stderr.splitlines()[:3] == [
        f"{tool}: SPARKGUARD_RESERVE=150%: more than 100%; for example 12G; using 8%",
        f"{tool}: SPARKGUARD_LIMIT=64Q: not a size; for example 64G; using no limit",
        f"{tool}: SPARKGUARD_FLOOR=low: not a size; for example 2G; using the default",
    ]
    assert "SPARKGUARD_" not in run(tools, tool, *arguments, SPARKGUARD_RESERVE="", SPARKGUARD_LIMIT="64G").stderr


@pytest.mark.parametrize(
    "option, longest, fault", [("dir", "/" + 1022 * "d", "longer than 1023 bytes"), ("history", "/" + 1022 * "h", "longer than 1023 bytes"), ("job", 31 * "\u00e4" + "x", "longer than 63 bytes")]
)
def test_a_value_that_is_too_long_is_called_so(tools, option, longest, fault):
    assert run(tools, "sparkguard", "-q", f"--{option}={longest}", "true", SPARKGUARD_DISABLE="1").returncode == 0
    done = run(tools, "sparkguard", "-q", f"--{option}={longest}x", "true")
    assert done.returncode == 2 and f": {fault}; for example " in done.stderr


@pytest.mark.parametrize("tool", ["sparkguard", "sparkguard-report", "sparkguard-sweep", "sparkguard-doctor"])
@pytest.mark.parametrize("option", ["--help", "--usage", "--version"])
def test_a_help_that_cannot_be_written_is_a_failure(tools, tool, option):
    with open("/dev/full", "w") as full:
        done = subprocess.run([str(tools / tool), option], env=environment(), stdout=full, stderr=subprocess.PIPE, text=True)
    status = 125 if tool in ("sparkguard", "sparkguard-sweep") else 3  # as for other failures of the tool itself
    assert (done.returncode, done.stderr) == (status, f"{tool}: cannot write: No space left on device\n")
    assert run(tools, tool, option).returncode == 0


@pytest.mark.parametrize("command", ["sparkguard --limit=x true", "sparkguard-report --since=x", "sparkguard-sweep --margin=x", "sparkguard-doctor --frob"])
def test_bad_usage_stays_so_without_an_output(tools, command):
    tool, *arguments = command.split()
    closed = ["/bin/sh", "-c", 'exec "$@" >&-', "sh", str(tools / tool), *arguments]
    done = subprocess.run(closed, env=environment(), stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2 and "cannot write" not in done.stderr


def drop_sys_resource():
    ctypes.CDLL(None).prctl(24, 24, 0, 0, 0)  # PR_CAPBSET_DROP, CAP_SYS_RESOURCE; a user has no such right anyway


@pytest.mark.parametrize("start", [[], ["sparkguard", "-q"]])
def test_a_score_that_cannot_be_written_is_told_once_a_job(tools, tmp_path, start):
    if int(Path("/proc/self/oom_score_adj").read_text()) == -1000:
        pytest.skip("has this score already")
    preload = {} if start else {"LD_PRELOAD": str(tools / "libsparkguard.so")}
    env = environment(**preload, SPARKGUARD_OOM_SCORE_ADJ="-1000", SPARKGUARD_DIR=str(tmp_path / "live"))
    command = [*(str(tools / word) if word == "sparkguard" else word for word in start), "/bin/sh", "-c", "/bin/true; /bin/true; exec /bin/true"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, preexec_fn=drop_sys_resource)
    assert (done.returncode, done.stderr) == (0, "sparkguard: cannot write /proc/self/oom_score_adj (SPARKGUARD_OOM_SCORE_ADJ)\n")


@pytest.mark.parametrize("start", [[], ["sparkguard", "-q"]])
def test_each_program_of_a_job_has_the_score(tools, tmp_path, start):
    preload = {} if start else {"LD_PRELOAD": str(tools / "libsparkguard.so")}
    env = environment(**preload, SPARKGUARD_OOM_SCORE_ADJ="1000", SPARKGUARD_DIR=str(tmp_path / "live"))
    command = [*(str(tools / word) if word == "sparkguard" else word for word in start), "/bin/sh", "-c", "cat /proc/self/oom_score_adj; cat /proc/$$/oom_score_adj"]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("1000\n1000\n", "")


@pytest.mark.parametrize("tool, option", [("sparkguard-report", "--watch"), ("sparkguard-sweep", "--load")])
def test_a_wrong_value_steers_no_terminal(tools, tool, option):
    done = run(tools, tool, f"{option}=\x1b[31m")
    assert done.returncode == 2 and "\x1b" not in done.stderr and "[31m" in done.stderr


SYNTAX = [("none", True), ("12G", True), ("512m", True), ("64KiB", True), ("12GB", True), ("1.5G", True), ("10%", True), ("4096", True), ("4096B", True)]
SYNTAX += [("64Q", False), ("150%", False), ("-1G", False), ("1.5", False), ("12 G", False), ("G", False), ("1e9", False)]


@pytest.mark.parametrize("size, is_good", SYNTAX)
def test_every_size_option_understands_the_same_syntax(tools, size, is_good):
    """`--version` comes last, so that the sweep runs nothing; it is not reached where a value is refused."""
    sizes = [name for _, name, kind, _, _ in OPTIONS if kind == "SIZE"]
    for name in sizes:
        done = run(tools, "sparkguard", f"--{name}={size}", "true", SPARKGUARD_DISABLE="1")
        assert ("for example" in done.stderr) != is_good, (name, done.stderr)
    if not is_good:
        assert re.search(r"; for example \S+; the program is not started", run(tools, "sparkguard", f"--jail={size}", "true").stderr)
    for name in sweep_options(tools):
        done = run(tools, "sparkguard-sweep", f"{name}={size}", "--version")
        assert (done.returncode == 0) == is_good, (name, done.stderr)
        assert ("for example" in done.stderr) != is_good


def test_a_size_without_its_unit_is_asked_about_by_all(tools):
    asked = "=64 is 64 bytes; did you mean 64{}?"
    for identity, name, kind, _, example in OPTIONS:
        if kind != "SIZE":
            continue
        question = asked.format(example[-1])
        (said,) = [line for line in of_library(tools, f"SPARKGUARD_{identity}", "64") if "did you mean" in line]
        assert said.endswith(question)
        if identity != "LIMIT":  # of which the launcher says more: nothing starts within 64 bytes
            assert question in run(tools, "sparkguard", f"--{name}=64", "true", SPARKGUARD_DISABLE="1").stderr
    for name in sweep_options(tools):
        assert asked.format("G") in run(tools, "sparkguard-sweep", f"{name}=64", "--version").stderr, name


TIMES = [("30", True), ("0.5", True), ("90s", True), ("5m", True), ("2h", True), ("none", True)]
TIMES += [("2d", False), ("5 m", False), ("-1", False), ("soon", False), ("1e9", False)]


@pytest.mark.parametrize("time, is_good", TIMES)
def test_every_time_option_understands_the_same_syntax(tools, time, is_good):
    for option in (["--wait"], ["--claim=1M", "--claim-wait"], ["--claim=1M", "--claim-ttl"]):
        words = [*option[:-1], f"{option[-1]}={time}", "--check", "true"]
        done = run(tools, "sparkguard", *words, SPARKGUARD_DISABLE="1")
        assert ("not a time" not in done.stderr) == is_good and (done.returncode != 2) == is_good, (option, done.stderr)
    for option in ("--timeout", "--clean-wait"):
        assert (run(tools, "sparkguard-sweep", f"{option}={time}", "--version").returncode == 0) == is_good, option
    done = run(tools, "sparkguard-report", f"--watch={time}", "--version")
    assert (done.returncode == 0) == (is_good and time not in ("none", "2h")), done.stderr
    said = of_library(tools, "SPARKGUARD_WAIT", time)
    assert said == ([] if is_good else [f"sparkguard: SPARKGUARD_WAIT={time} cannot be read; for example 5m; using 0"])


@pytest.mark.parametrize("option", ["--limit", "--memory", "--jail", "--claim"])
def test_none_of_a_size_is_none(launcher, option):
    done = launcher.run("-q", f"{option}=none", "--claim-wait=5m", "--claim=none", "sh", "-c", "echo ran")
    assert (done.returncode, done.stdout, done.stderr) == (0, "ran\n", "")


@pytest.mark.parametrize("value", ["0", "0G", "0%"])
@pytest.mark.parametrize("option", ["--limit", "--memory", "--jail", "--claim"])
def test_0_of_a_size_is_none_with_a_warning(launcher, option, value):
    """What belongs to a claim is not asked for without one."""
    name = "--limit" if option == "--memory" else option
    done = launcher.run("-q", f"{option}={value}", *(["--claim-wait=5m"] if option == "--claim" else []), "sh", "-c", "echo ran")
    assert (done.returncode, done.stdout, done.stderr) == (0, "ran\n", f"sparkguard: {name}={value} is read as none\n")


ZEROS = ["0", "0G", "0%", "0.0"]
OWN_CONF, ALL_CONF = "home/.config/sparkguard.conf", "machine/etc/sparkguard.conf"


def lines_of(tools, folder, *words, file=None, text="", **extra):
    """What WORDS prints on stderr, where only `file` has a text, on a machine of files."""
    for path in (OWN_CONF, ALL_CONF):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).unlink(missing_ok=True)
    if file is not None:
        (folder / file).write_text(text)
    Machine(folder / "machine")
    env = environment(HOME=str(folder / "home"), SPARKGUARD_DIR=str(folder / "live"), SPARKGUARD_HISTORY="off", **extra)
    env["SPARKGUARD_SYSTEM_ROOT"] = str(folder / "machine")
    done = subprocess.run([str(word) for word in words], env=env, capture_output=True, text=True, timeout=60)
    return done.stderr.replace(str(folder), "DIR").splitlines()


def ways_of_size(tools, folder, value):
    """(what was said, what is said of 0) for each place that takes a limit, a reserve, a claim or a jail."""
    preload = {"LD_PRELOAD": str(tools / "libsparkguard.so")}
    launcher, big = [tools / "sparkguard", "-q"], ["/usr/bin/python3", "-S", "-c", "bytearray(3 << 20)"]
    for name in ("limit", "reserve", "jail", "claim"):
        yield lines_of(tools, folder, *launcher, f"--{name}={value}", "true"), f"sparkguard: --{name}={value}"
    for name in ("limit", "reserve", "claim"):
        said = lines_of(tools, folder, *launcher, "--set", "none", f"{name}={value}")
        yield [line for line in said if "no process of job" not in line], f"sparkguard: {name}={value}"
    for name in ("limit", "reserve"):
        variable, own = {f"SPARKGUARD_{name.upper()}": value}, {"file": OWN_CONF, "text": f"# mine\n{name} = {value}\n"}
        everybody = {"file": ALL_CONF, "text": f"# all\n{os.getuid()} {name}={value}\n"}
        yield lines_of(tools, folder, *launcher, "true", **variable), f"sparkguard: SPARKGUARD_{name.upper()}={value}"
        yield lines_of(tools, folder, *big, **preload, **variable), f"sparkguard: SPARKGUARD_{name.upper()}={value}"
        yield lines_of(tools, folder, *launcher, *big, **own), f"sparkguard: DIR/{OWN_CONF}:2: {name}={value}"
        yield lines_of(tools, folder, *big, **preload, **own), f"sparkguard: DIR/{OWN_CONF}:2: {name}={value}"
        yield lines_of(tools, folder, *big, **preload, **everybody), f"sparkguard: DIR/{ALL_CONF}:2: 0"


@pytest.mark.parametrize("value", ["none", *ZEROS])
def test_0_is_none_in_every_place_and_told_once(tools, tmp_path, value):
    ways = list(ways_of_size(tools, tmp_path, value))
    assert len(ways) == 17
    for said, named in ways:
        assert said == ([f"{named} is read as none"] if value in ZEROS else []), named


@pytest.mark.parametrize("value", ["none", "0"])
def test_a_limit_of_0_in_the_file_of_defaults_is_no_limit(tools, tmp_path, value):
    words = ["/usr/bin/python3", "-S", "-c", "print(len(bytearray(100 << 20)))"]
    for text, is_refused in ((f"limit = {value}\n", False), (f"limit = {value}\nlimit = 64M\n", True)):
        said = lines_of(tools, tmp_path, *words, file=OWN_CONF, text=text, LD_PRELOAD=str(tools / "libsparkguard.so"))
        assert any("refused" in line for line in said) == is_refused, said
