"""Options from the environment: what cannot be read is said once, by the job's first process, and the default holds."""

import resource

import pytest
from lib.target import PYTHON

MIB = 1 << 20
GIB = 1 << 30

# variable: a bad value, a good example
BAD = {
    "RESERVE": ("banana", "12G"),
    "LIMIT": ("12Q", "64G"),
    "WAIT": ("soon", "5m"),
    "DEVICE_RESERVE": ("110%", "1G"),
    "LARGE": ("ten", "2M"),
    "FLOOR": ("-1G", "2G"),
    "WATCHDOG": ("maybe", "off|warn|term"),
    "MODE": ("Observe", "enforce|observe"),
    "UNIFIED": ("yes", "auto|on|off"),
    "MEMINFO": ("cooked", "honest|raw"),
    "JOB": ("a/b", "train-7b"),
    "REPORT": ("always", "off|exit"),
    "OOM_SCORE_ADJ": ("5000", "500"),
    "HISTORY": ("relative/path", "/var/lib/sparkguard"),
    "SYSTEM_ROOT": ("relative", "/run/fake"),
    "DISABLE": ("true", "0|1"),
}


def run_each(guard, *commands, env=None):
    """One process that runs each of them, as a shell does. They do what admit_take does."""
    programs = guard.build / "tests/programs"
    line = [word for command in commands for word in (programs / "admit_take", *command.split(), ";")]
    done = guard.run([programs / "host_run", *line], env=env)
    assert done.returncode == 0, done.stderr
    return done


def run_with(guard, *commands, **variables):
    return run_each(guard, *commands, env={f"SPARKGUARD_{k}": v for k, v in variables.items()})


@pytest.fixture
def root(tmp_path):
    """16 GiB, of which 10 are there."""
    proc = tmp_path / "root/proc"
    proc.mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal: 16777216 kB\nMemFree: 10485760 kB\nMemAvailable: 10485760 kB\n")
    return tmp_path / "root"


def largest(guard, root, **variables):
    program = guard.build / "tests/programs/admit_take"
    env = {"SPARKGUARD_SYSTEM_ROOT": root, **{f"SPARKGUARD_{k}": v for k, v in variables.items()}}
    done = guard.run([program, "largest"], env=env)
    assert done.returncode == 0, done.stderr
    return int(done.stdout), done


@pytest.mark.parametrize("name", BAD)
def test_bad_value_is_said_in_one_line_by_the_first_process_only(guard, name):
    value, example = BAD[name]
    done = run_with(guard, "", "small 1K 1M", "fork malloc 1M", **{name: value})
    (line,) = done.stderr.splitlines()
    word = "use one of" if "|" in example else "for example"
    assert line.startswith(f"sparkguard: SPARKGUARD_{name}={value} cannot be read; {word} {example}; using ")


def test_bad_directory_is_said_once(guard):
    done = run_with(guard, "", "", DIR="relative")
    (line,) = done.stderr.splitlines()
    assert line.startswith("sparkguard: SPARKGUARD_DIR=relative cannot be read; for example /dev/shm/")


@pytest.mark.parametrize(
    "name, value, meant",
    [("LIMIT", "64", "64G"), ("LIMIT", "1023", "1023G"), ("LIMIT", "4096", "4096M"), ("RESERVE", "12", "12G"),
     ("FLOOR", "2", "2G"), ("DEVICE_RESERVE", "1", "1G"), ("LARGE", "4", "4M")],
)
def test_size_that_lacks_its_unit_is_told(guard, name, value, meant):
    done = run_with(guard, "", "", **{name: value})
    assert done.stderr == f"sparkguard: SPARKGUARD_{name}={value} is {value} bytes; did you mean {meant}?\n"


@pytest.mark.parametrize("name, value", [("LIMIT", "16777216"), ("RESERVE", "none"), ("LARGE", "4096"), ("RESERVE", "64B")])
def test_size_that_may_be_meant_is_not_told(guard, name, value):
    assert run_with(guard, "", **{name: value}).stderr == ""


@pytest.mark.parametrize("limit", ["64", "1M"])
def test_program_over_its_limit_is_refused_quickly(guard, limit):
    """An interpreter asks again for each of its objects: 20,000 times."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_nvcsw
    done = guard.run([PYTHON, "-c", "print('hello')"], env={"SPARKGUARD_LIMIT": limit, "SPARKGUARD_LARGE": "512K"})
    assert (done.returncode, done.stdout) == (0, "hello\n")
    sleeps = resource.getrusage(resource.RUSAGE_CHILDREN).ru_nvcsw - before
    assert done.process()["refused_count"] > 1000
    assert sleeps < 100, "it waits for nobody: one sleep in each of its refusals would be more than 1000"


@pytest.mark.parametrize("limit, said", [("none", ""), ("0", "sparkguard: SPARKGUARD_LIMIT=0 is read as none\n")])
def test_limit_of_none_is_no_limit(guard, limit, said):
    done = run_with(guard, "malloc 32M", LIMIT=limit)
    assert (done.stdout, done.stderr) == ("ok\n", said)
    (limit,) = {job["limit_bytes"] for job in guard.report()["jobs"]}
    assert limit is None


@pytest.mark.parametrize("reserve, kept", [("16G", "16.0 GiB"), ("200G", "200.0 GiB"), ("100%", "16.0 GiB")])
def test_reserve_of_all_memory_is_told(guard, root, reserve, kept):
    done = run_with(guard, "", "", RESERVE=reserve, SYSTEM_ROOT=root)
    expected = f"sparkguard: SPARKGUARD_RESERVE keeps {kept} of the 16.0 GiB that this machine has: every large request will be refused\n"
    assert done.stderr == expected


def test_reserve_below_all_memory_is_silent(guard, root):
    assert run_with(guard, "", RESERVE="15.9G", SYSTEM_ROOT=root).stderr == ""


def test_nothing_is_told_where_the_guard_is_disabled(guard, root):
    bad = {name: value for name, (value, _) in BAD.items() if name not in ("DISABLE", "SYSTEM_ROOT")}
    env = {f"SPARKGUARD_{name}": value for name, value in bad.items()} | {"SPARKGUARD_RESREVE": "1", "SPARKGUARD_DISABLE": "1"}
    assert run_each(guard, "", env=env).stderr == ""
    assert run_with(guard, "", DISABLE="1", RESERVE="200G", LIMIT="64").stderr == ""


@pytest.mark.parametrize("name", ["RESERVE", "LIMIT", "LARGE", "FLOOR", "MODE", "DISABLE"])
def test_bad_value_leaves_the_default(guard, root, name):
    expected, _ = largest(guard, root)
    got, done = largest(guard, root, **{name: BAD[name][0]})
    assert abs(got - expected) < MIB
    assert 10 * GIB - 16 * GIB * 8 // 100 - 2 * MIB <= got <= 10 * GIB - 16 * GIB * 8 // 100
    assert len([line for line in done.stderr.splitlines() if "cannot be read" in line]) == 1


@pytest.mark.parametrize("name", ["SPARKGUARD_REQUIRED", "SPARKGUARD_NEXT_RUNTIME", "SPARKGUARD_RUNTIME_CONF"])
def test_variables_of_the_container_runtime_are_known(guard, name):
    assert run_each(guard, "", env={name: "1"}).stderr == ""


@pytest.mark.parametrize("name", [n for n in BAD] + ["DIR"])
def test_empty_value_is_as_good_as_unset(guard, root, name):
    if name in ("DIR", "SYSTEM_ROOT"):
        assert run_with(guard, "", **{name: ""}).stderr == ""
        return
    expected, _ = largest(guard, root)
    got, done = largest(guard, root, **{name: ""})
    assert abs(got - expected) < MIB
    assert "cannot be read" not in done.stderr and "unknown" not in done.stderr


def test_several_bad_ones_are_one_line_each(guard):
    done = run_with(guard, "", RESERVE="x", LIMIT="y", RESERV="z")
    assert len(done.stderr.splitlines()) == 3


def test_value_with_a_line_break_is_one_line(guard):
    (line,) = run_with(guard, "", LIMIT="1\n2\x1b[2J").stderr.splitlines()
    assert line.startswith("sparkguard: SPARKGUARD_LIMIT=1?2?[2J cannot be read; ")


def test_very_long_value_does_no_harm(guard):
    done = run_with(guard, "", LIMIT="9" * 5000, JOB="j" * 5000, MODE="m" * 100000)
    assert len(done.stderr.splitlines()) == 3
    assert all(len(line) < 600 for line in done.stderr.splitlines())


def test_job_name_is_inherited_by_children(guard):
    run_each(guard, "malloc 20M", "malloc 20M", env={"SPARKGUARD_JOB": "my job"})
    (job,) = guard.report()["jobs"]
    assert job["job"] == "my job" and len(job["processes"]) == 2
    assert job["limit_bytes"] is None


def test_job_name_is_made_up_once_for_all_children(guard):
    run_each(guard, "malloc 20M", "malloc 20M")
    (job,) = guard.report()["jobs"]
    assert len(job["processes"]) == 2


def test_limit_is_in_the_report(guard):
    guard.run([PYTHON, "-S", "-c", "b = bytearray(20 << 20)"], env={"SPARKGUARD_LIMIT": "1G"})
    (job,) = guard.report()["jobs"]
    assert job["limit_bytes"] == GIB


def test_summary_at_exit_by_the_first_process_only(guard):
    script = "b = bytearray(40 << 20)"
    env = {"SPARKGUARD_REPORT": "exit", "SPARKGUARD_JOB": "sum"}
    done = guard.run([PYTHON, "-S", "-c", script], env=env)
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"sparkguard: job sum, process {done.pid}: peak ") and line.endswith("0 requests refused")
    done = run_each(guard, "malloc 40M", "", env=env)
    assert len(done.stderr.splitlines()) == 1


def test_summary_at_exit_is_the_jobs(guard):
    """Two workers hold memory one after the other; a third is refused. The first process itself holds next to nothing."""
    worker = "import sys; sys.exit(0 if bytearray(int(sys.argv[1]) << 20) else 1)"
    script = f"import subprocess, sys\nfor size in ('100', '60', '300'):\n    subprocess.run([sys.executable, '-S', '-c', {worker!r}, size], stderr=-3)"
    env = {"SPARKGUARD_REPORT": "exit", "SPARKGUARD_JOB": "sum", "SPARKGUARD_LIMIT": "200M"}
    for _ in range(2):  # the same name again: another run, with figures of its own
        done = guard.run([PYTHON, "-S", "-c", script], env=env)
        (line,) = done.stderr.splitlines()
        assert line.startswith("sparkguard: job sum, 4 processes: peak 10"), line
        assert " of the 200.0 MiB limit; the largest, process " in line and line.endswith(", 1 request refused")


def test_oom_score_is_set(guard):
    script = "print(open('/proc/self/oom_score_adj').read(), end='')"
    done = guard.run([PYTHON, "-S", "-c", script], env={"SPARKGUARD_OOM_SCORE_ADJ": "500"})
    assert done.stdout == "500\n" and done.stderr == ""
