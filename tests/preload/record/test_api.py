"""The C API and the package tools/python/sparkguard: what programs may tell and ask the guard, and that they run without it."""

import errno
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from lib.target import CC

MIB = 1 << 20
SLACK = 2 * MIB  # the credit of a thread, and what the libc takes for itself
ROOT = Path(__file__).resolve().parents[3]
TOOLS = ROOT / "tools/python"


@pytest.fixture
def phases(guard, build):
    def run(*arguments, **options):
        done = guard.run([build / "tests/programs/api_phases", *arguments], **options)
        assert done.returncode == 0, done.stderr
        words = [line.split() for line in done.stdout.splitlines()]
        done.said = {line[0]: [int(word) for word in line[1:]] for line in words}
        return done

    return run


def is_about(value, mebibytes):
    return mebibytes * MIB <= value <= mebibytes * MIB + SLACK


def test_phases_show_what_each_held_and_its_peak(phases):
    done = phases()
    load, train, last = done.process()["phases"]
    assert [p["name"][:5] for p in (load, train, last)] == ["load", "train", "a pha"]
    assert is_about(load["live_bytes"], 20) and is_about(load["peak_bytes"], 84)
    assert is_about(train["live_bytes"], 0), "given back before the next began"
    assert is_about(train["peak_bytes"], 20), "the peak was reset in its middle"
    assert is_about(last["live_bytes"], 3) and is_about(last["peak_bytes"], 3)
    assert load["time"] <= train["time"] <= last["time"]
    text = done.guard.report_command(done.pid).stdout
    assert "PHASE" in text and "train" in text


def test_a_long_name_is_cut_between_characters(guard, phases):
    name = phases().process()["phases"][-1]["name"]
    assert len(name.encode()) == 63 and "a phase of a name".startswith(name[:17])
    code = "import sparkguard; b = bytearray(20 << 20); sparkguard.mark('x' * 62 + '\N{EURO SIGN}')"
    done = guard.run([sys.executable, "-c", code], env={"PYTHONPATH": TOOLS})
    assert done.process()["phases"][-1]["name"] == "x" * 62


def test_statistics_follow_the_program(phases):
    done = phases()
    live, peak, heap, heap_peak, usable = done.said["load"][1:]
    assert is_about(live, 20) and is_about(heap, 20)
    assert is_about(peak, 84) and is_about(heap_peak, 84)
    assert 0 < usable < 1 << 60
    assert is_about(done.said["train"][2], 84), "a phase resets no peak"
    assert done.said["active"] == [1] and done.said["mark"] == [0, -errno.EINVAL, -errno.EINVAL]
    assert done.said["errno"] == [1]


def test_a_reset_peak_becomes_live_and_the_evidence_stays(phases):
    done = phases()
    result, live, peak, heap, heap_peak, _ = done.said["reset"]
    assert (result, done.said["reset"][0]) == (0, 0)
    assert live <= peak <= live + MIB and heap <= heap_peak <= heap + MIB
    assert is_about(done.process()["peak_bytes"], 84)


def test_a_forked_child_has_figures_of_its_parent_and_phases_of_its_own(phases):
    done = phases()
    assert done.said["ended"] == [1, 0], f"no child, or one that a signal ended: {done.stdout} {done.stderr}"
    result, live, peak, *_ = done.said["child"]
    assert result == 0 and is_about(live, 20) and is_about(peak, 20)
    assert "child's" not in [p["name"] for p in done.process()["phases"]]


def test_marks_of_many_threads_and_handlers_are_all_counted(phases):
    process = phases("stress").process()
    assert len(process["phases"]) == 64
    assert {p["name"] for p in process["phases"][:-1]} <= {"stress", "handler"}
    assert all(p["live_bytes"] <= p["peak_bytes"] <= 20 * MIB + 4 * 3 * MIB + SLACK for p in process["phases"])


def test_a_disabled_guard_is_none(phases):
    done = phases(env={"SPARKGUARD_DISABLE": "1"})
    assert done.said["active"] == [0] and done.said["mark"] == [-errno.ENOSYS] * 3


def test_a_program_runs_without_the_guard(phases):
    done = phases(env={"LD_PRELOAD": None})
    assert done.said["active"] == [0] and done.said["mark"] == [-errno.ENOSYS] * 3
    assert done.said["load"] == [-errno.ENOSYS, 0, 0, 0, 0, 2**64 - 1] and done.said["reset"][0] == -errno.ENOSYS


@pytest.mark.parametrize("compiler, standard", [("cc", "c99"), ("c++", "c++11")])
def test_the_header_needs_nothing_else(tmp_path, compiler, standard):
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler}")
    source = tmp_path / ("program.c" if compiler == "cc" else "program.cc")
    source.write_text('#include "sparkguard.h"\nint main(void) { return sparkguard_mark("x") == 0; }\n')
    flags = ["-std=" + standard, "-Wall", "-Wextra", "-Werror", "-pedantic", "-I", str(ROOT / "include")]
    subprocess.run([compiler, *flags, str(source), "-o", str(tmp_path / "program")], check=True)
    subprocess.run([tmp_path / "program"], check=True)


@pytest.mark.parametrize("position", ["-fPIE -pie", "-fno-pie -no-pie"])
@pytest.mark.parametrize("level", ["-O0", "-O2"])
def test_the_guard_is_found_wherever_the_code_lies(guard, tmp_path, position, level):
    (tmp_path / "a.c").write_text('#include "sparkguard.h"\nint main(void) { return 10 + sparkguard_active(); }\n')
    flags = [level, *position.split(), "-I", str(ROOT / "include")]
    subprocess.run([CC, *flags, str(tmp_path / "a.c"), "-o", str(tmp_path / "a")], check=True)
    assert guard.run([tmp_path / "a"]).returncode == 11
    assert guard.run([tmp_path / "a"], env={"LD_PRELOAD": None}).returncode == 10


# ---- Python -----------------------------------------------------------------------------------------------------------

PROGRAM = """
import logging, sparkguard
logging.basicConfig(level=logging.INFO, format="%(message)s")
print("active", sparkguard.active())
data = bytearray(50 << 20)
print("marked", sparkguard.mark("load"))
more = bytearray(30 << 20)
del more
stats = sparkguard.stats()
print("stats", stats and (stats["live_bytes"] >> 20, stats["peak_bytes"] >> 20, sorted(stats["domains"]), stats["unified"]))
sparkguard.log_memory_usage("here")
gb = sparkguard.get_memory_stats()
print("gb", gb and all(isinstance(v, (float, int)) for v in gb.values()), *gb or ())
sparkguard.reset_peak_memory_stats()
print("reset", sparkguard.reset_peak(), stats and sparkguard.stats()["peak_bytes"] >> 20)
print("unified", sparkguard.is_unified_memory_system())
"""
GB = "gb True allocated_gb reserved_gb max_allocated_gb max_reserved_gb total_gb free_gb num_alloc_retries"


def python(guard, **env):
    done = guard.run([sys.executable, "-c", PROGRAM], env={"PYTHONPATH": TOOLS, "SPARKGUARD_UNIFIED": None} | env)
    assert done.returncode == 0, done.stderr
    done.said = {line.partition(" ")[0]: line for line in done.stdout.splitlines()}
    return done


def test_python_tells_and_asks(guard):
    done = python(guard, SPARKGUARD_UNIFIED="on")
    assert done.said["active"] == "active True" and done.said["marked"] == "marked True"
    live, peak, domains, unified = eval(done.said["stats"].partition(" ")[2])
    assert 50 <= live < 70 and peak >= live + 29 and unified is True
    assert domains == ["device", "heap", "managed", "mapped", "pinned"]
    assert done.said["gb"] == GB and done.said["unified"] == "unified True"
    _, is_reset, peak_now = done.said["reset"].split()
    assert is_reset == "True" and int(peak_now) < 75
    assert "[here] memory: live 0.0" in done.stderr
    assert [p["name"] for p in done.process()["phases"]] == ["load"]


def test_python_runs_without_the_guard(guard):
    done = python(guard, LD_PRELOAD=None)
    assert done.said["active"] == "active False" and done.said["marked"] == "marked False"
    assert done.said["stats"] == "stats None" and done.said["gb"] == "gb None" and done.said["unified"] == "unified None"
    assert done.said["reset"] == "reset False None"
    assert "[here] not under sparkguard" in done.stderr


def test_the_package_beside_the_module_runs_as_a_program(guard):
    """`python -m sparkguard` with the folder of the one-file module in the path: it must not end at once, as if all had been well."""
    env = {"PYTHONPATH": TOOLS.parent, "PATH": f"{Path(guard.library).parent}:/usr/bin:/bin"}
    done = guard.run([sys.executable, "-m", "sparkguard", "run", "-c", "print('ran')"], env=env, preload=[])
    assert (done.returncode, done.stdout) == (0, "ran\n"), done.stderr
    done = guard.run([sys.executable, "-m", "sparkguard"], env=env, preload=[])
    assert done.returncode == 2 and "run" in done.stderr


@pytest.mark.parametrize(
    "words, told",
    [
        (["rnu"], "'rnu' is no command; did you mean run?"), (["docter"], "'docter' is no command; did you mean doctor?"),
        (["x\x1b["], "'x\\x1b[' is no command; python -m sparkguard --help names them all"), (["library", "x"], "library takes no argument, and here is 'x'"),
    ],
)  # fmt: skip
def test_a_word_that_is_no_command_is_named(words, told):
    env = {"PYTHONPATH": TOOLS.parent, "PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, "-m", "sparkguard", *words], env=env, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"sparkguard: {told}\n")


@pytest.mark.parametrize("words", [["set", "train"], ["set", "train", "limit=64"], ["watch", "--json"], ["report", "nosuchjob"], ["watch", "--frobnicate"]])
def test_the_launchers_commands_are_the_packages_too(build, tmp_path, words):
    env = {"PYTHONPATH": str(TOOLS), "PATH": f"{build}:/usr/bin:/bin", "SPARKGUARD_DIR": str(tmp_path), "SPARKGUARD_HISTORY": "off"}
    ours = subprocess.run([sys.executable, "-m", "sparkguard", *words], env=env, capture_output=True, text=True)
    launchers = subprocess.run(["sparkguard", *words], env=env, capture_output=True, text=True)
    assert ours.returncode in (1, 2) and (ours.returncode, ours.stdout, ours.stderr) == (launchers.returncode, launchers.stdout, launchers.stderr)
