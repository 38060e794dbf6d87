"""sparkguard --check: says whether a program would be guarded here, in the situations that people meet. Golden files are in
golden/; write them anew with UPDATE_GOLDEN=1 and read the difference."""

import json
import os
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from lib.units import GIB, KIB
from screen import all_shown

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
PYTHON = os.path.realpath(sys.executable)


class Checker:
    """The launcher with the real library, a program of the test's own, and a machine of 128 GiB made of files."""

    def __init__(self, tools, scratch):
        self.tools, self.scratch = tools, scratch
        self.program = tools / "sparkguard"
        self.root = scratch / "root"
        self.directory = scratch / "live"
        self.history = scratch / "history"
        self.directory.mkdir(mode=0o700)
        (self.root / "proc/self").mkdir(parents=True)
        figures = {"MemTotal": 128 * GIB, "MemAvailable": 100 * GIB, "SwapTotal": 0, "SwapFree": 0}
        (self.root / "proc/meminfo").write_text("".join(f"{k}:{v // KIB:>16} kB\n" for k, v in figures.items()))
        self.job = self.compile("job", 'int main(void) { puts("the program ran"); return 7; }')

    def compile(self, name, code, *options):
        source = self.scratch / f"{name}.c"
        source.write_text(f"#include <stdio.h>\n{code}\n")
        done = subprocess.run(["cc", str(source), "-o", str(self.scratch / name), *map(str, options)], capture_output=True)
        return self.scratch / name if done.returncode == 0 else None

    def environment(self, **extra):
        env = {k: v for k, v in os.environ.items() if not k.startswith("SPARKGUARD_") and not k.startswith("LD_")}
        env = {k: v for k, v in env.items() if k not in ("XDG_STATE_HOME", "XDG_CONFIG_HOME")}
        env.update(SPARKGUARD_DIR=str(self.directory), SPARKGUARD_HISTORY=str(self.history), SPARKGUARD_SYSTEM_ROOT=str(self.root))
        env.update(LC_ALL="C.UTF-8", HOME=str(self.scratch))
        env.update(extra)
        return {k: v for k, v in env.items() if v is not None}

    def run(self, *arguments, wrapper=(), **extra):
        command = [*wrapper, str(self.program), "--check", *map(str, arguments)]
        return subprocess.run(command, env=self.environment(**extra), capture_output=True, text=True, timeout=60)

    def json(self, *arguments, status=0, **extra):
        done = self.run("--json", *arguments, **extra)
        assert (done.returncode, done.stderr) == (status, ""), done.stdout
        data = json.loads(done.stdout)
        assert data["guarded"] == (status == 0)
        return data

    def line(self, name, *arguments, status=0, **extra):
        lines = [line for line in self.json(*arguments, status=status, **extra)["lines"] if line["id"] == name]
        return lines[0]

    def golden(self, name, text):
        text = text.replace(str(self.scratch), "/TMP").replace(str(self.tools), "/BUILD")
        text = re.sub(r"/\S*/ld-linux[-\w.]*", "/LOADER", text)
        text = re.sub(r"version \d[.\d]*", "version VERSION", text)
        text = re.sub(r"[\d.]+ MiB of MAP_NORESERVE", "SIZE of MAP_NORESERVE", text)  # jemalloc maps more to align it
        if os.environ.get("UPDATE_GOLDEN"):
            (GOLDEN / f"check_{name}.txt").write_text(text)
        assert text == (GOLDEN / f"check_{name}.txt").read_text()


@pytest.fixture
def any_checker(tools, tmp_path):
    return Checker(tools, tmp_path)


@pytest.fixture
def checker(any_checker, guarded_tools):
    """The launcher tries the library on itself."""
    return any_checker


# ---- situations -----------------------------------------------------------------------------------------------------


def test_a_good_program_would_be_guarded_and_is_not_started(checker):
    done = checker.run(checker.job, "an", "argument")
    assert (done.returncode, done.stderr) == (0, "")
    assert "the program ran" not in done.stdout
    checker.golden("good", done.stdout)


def test_without_a_program_the_library_is_checked(checker):
    done = checker.run()
    assert (done.returncode, done.stderr) == (0, "")
    checker.golden("none", done.stdout)


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_no_situation_is_beyond_it(any_checker, options):
    """For the build with sanitizers, which ends at its first finding."""
    script = any_checker.scratch / "script"
    script.write_text("#!/usr/bin/env -S A=b job -x\n")
    script.chmod(0o755)
    for program in (any_checker.job, script, "sh", "/", "no-such-program", any_checker.scratch, "/dev/null"):
        done = any_checker.run(*options, program, ASAN_OPTIONS="verify_asan_link_order=0")
        assert done.returncode in (0, 1) and "Sanitizer" not in done.stderr and "runtime error" not in done.stderr, done.stderr
    for variable, value in (("SPARKGUARD_DIR", "/no/such/place"), ("SPARKGUARD_LIMIT", "x"), ("LD_PRELOAD", "/no/such.so"), ("PATH", None)):
        done = any_checker.run(*options, any_checker.job, **{"ASAN_OPTIONS": "verify_asan_link_order=0", variable: value})
        assert done.returncode in (0, 1, 2) and "Sanitizer" not in done.stderr and "runtime error" not in done.stderr, done.stderr


def test_it_leaves_no_record(checker):
    checker.run(checker.job)
    assert [path.name for path in checker.directory.iterdir()] == ["machine.ledger"]
    assert not checker.history.exists()


HISTORIES = {
    "it is no directory": lambda path: path.write_text(""),
    "it is world-writable": lambda path: (path.mkdir(), path.chmod(0o777)),
    "it is somebody else's": lambda path: (path.mkdir(), os.chown(path, 1, 1)),
    "the folder above it does not exist": lambda path: None,
}


@pytest.mark.parametrize("fault", HISTORIES)
def test_the_doctor_and_it_say_the_same_of_a_history(checker, fault):
    if "else" in fault and os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    path = checker.history / "no/such" if "above" in fault else checker.history
    HISTORIES[fault](path)
    env = {"SPARKGUARD_HISTORY": str(path), "SPARKGUARD_SYSTEM_ROOT": None}
    doctor = subprocess.run([checker.tools / "sparkguard-doctor", "--json"], env=checker.environment(**env), capture_output=True, text=True, timeout=60)
    (finding,) = [each for each in json.loads(doctor.stdout)["findings"] if each["id"] == "history"]
    line = checker.line("history", checker.job, **env)
    assert (finding["state"], line["state"]) == ("warning", "warning")
    assert finding["sentence"] == f"No history in {path}: {fault}." and line["sentence"] == f"not kept: {path}: {fault}"


def test_a_static_program_would_not_be_guarded(checker):
    program = checker.compile("static", "int main(void) { return 0; }", "-static")
    if program is None:
        pytest.skip("no static libc here")
    done = checker.run(program)
    assert done.returncode == 1
    checker.golden("static", done.stdout)


def musl(checker):
    """A program with a dynamic linker of musl's name; glibc's is behind the name, so that it can run anywhere."""
    loader = re.search(r"interpreter: (\S+)\]", subprocess.run(["readelf", "-l", checker.job], capture_output=True, text=True).stdout)
    (checker.scratch / "ld-musl-test.so.1").symlink_to(loader[1])
    code = '#include <stdlib.h>\nint main(void) { puts(getenv("LD_PRELOAD") ? "preloaded" : "alone"); return 7; }'
    return checker.compile("musl", code, f"-Wl,--dynamic-linker={checker.scratch}/ld-musl-test.so.1")


def test_a_musl_program_would_not_be_guarded(checker):
    done = checker.run(musl(checker))
    assert done.returncode == 1
    checker.golden("musl", done.stdout)


def test_a_musl_program_is_started_with_the_library_for_programs_of_glibc_that_it_starts(checker):
    command = [str(checker.program), str(musl(checker))]
    done = subprocess.run(command, env=checker.environment(), capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (7, "preloaded\n")
    assert "is linked with musl" in done.stderr and "; not guarded" in done.stderr


def test_a_32_bit_program_would_not_be_guarded(checker):
    program = checker.scratch / "narrow"
    ident = b"\x7fELF" + bytes([1, 1, 1]) + bytes(9)
    program.write_bytes(ident + struct.pack("<HHIIIIIHHHHHH", 2, 3, 1, 0x8048000, 52, 0, 0, 52, 32, 0, 0, 0, 0))
    program.chmod(0o755)
    done = checker.run(program)
    assert done.returncode == 1
    checker.golden("32bit", re.sub("library is for .*", "library is for HERE", done.stdout))


def test_a_library_that_is_not_there_is_named(checker):
    done = checker.run(f"--library={checker.scratch}/nowhere/libsparkguard.so", checker.job)
    assert done.returncode == 1
    checker.golden("wrong_path", done.stdout)


def test_a_missing_dev_shm_is_told(checker):
    if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode != 0:
        pytest.skip("no mounts of our own here")
    mount = 'mount -t tmpfs -o ro,size=4k none /dev/shm && exec "$@"'
    done = checker.run(checker.job, wrapper=["unshare", "-m", "sh", "-c", mount, "sh"], SPARKGUARD_DIR=None)
    assert done.returncode == 0, done.stderr
    checker.golden("no_dev_shm", done.stdout.replace(f"sparkguard-{os.geteuid()}", "sparkguard-UID"))


def test_a_directory_of_another_user_is_told(checker):
    try:
        os.chown(checker.directory, 65534, 65534)
    except PermissionError:
        pytest.skip("needs root")
    done = checker.run(checker.job)
    assert done.returncode == 0
    checker.golden("other_user", done.stdout)


def find_library(pattern):
    found = sorted(path for folder in ("/usr/lib", "/usr/lib64") for path in Path(folder).glob(f"*/{pattern}"))
    return found[0] if found else None


@pytest.mark.parametrize("is_ahead", [True, False])
def test_jemalloc_ahead_of_the_guard_is_told_and_one_behind_it_is_fine(checker, is_ahead):
    jemalloc = find_library("libjemalloc.so.2")
    if jemalloc is None:
        pytest.skip("no jemalloc here")
    ours = checker.tools / "libsparkguard.so"
    done = checker.run(checker.job, LD_PRELOAD=f"{jemalloc}:{ours}" if is_ahead else str(jemalloc))
    assert done.returncode == (1 if is_ahead else 0)  # the guard sees no malloc behind an allocator
    checker.golden("jemalloc_ahead" if is_ahead else "jemalloc", done.stdout)


def test_a_driver_is_seen_with_the_ways_to_it(checker):
    done = checker.run(checker.job, LD_LIBRARY_PATH=str(checker.tools / "sim"))
    assert done.returncode == 0, done.stdout
    checker.golden("driver", done.stdout)


def test_cgroups_are_shown_with_all_their_limits(checker):
    (checker.root / "proc/self/cgroup").write_text("0::/job.slice/one\n")
    for group, files in {
        "job.slice": {"memory.max": 64 * GIB, "memory.high": "max", "memory.swap.max": 0, "memory.current": GIB},
        "job.slice/one": {"memory.max": "max", "memory.high": 48 * GIB, "memory.current": GIB},
    }.items():
        folder = checker.root / "sys/fs/cgroup" / group
        folder.mkdir(parents=True, exist_ok=True)
        for file, value in files.items():
            (folder / file).write_text(f"{value}\n")
    done = checker.run(checker.job)
    assert done.returncode == 0
    checker.golden("cgroup", done.stdout)


# ---- programs -------------------------------------------------------------------------------------------------------


def script(checker, first):
    path = checker.scratch / "script"
    path.write_text(f"{first}\necho the program ran\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("first", ["#!{0}", "#! {0} -u", "#!/usr/bin/env job", "#!/usr/bin/env -S A=b job -x"])
def test_a_script_is_judged_by_its_interpreter(checker, first):
    path = script(checker, first.format(checker.job))
    line = checker.line("program", path, PATH=f"{checker.scratch}:{os.environ['PATH']}")
    assert line["state"] == "ok" and line["sentence"] == f"{path}, run by {checker.job}"


def test_a_text_without_an_interpreter_is_the_shells(checker):
    path = script(checker, "true")
    assert checker.line("program", path)["sentence"] == f"{path}, run by /bin/sh"


@pytest.mark.parametrize("mode", [0o644, 0o755])
def test_a_script_of_python_is_told_with_what_to_check_instead(checker, mode):
    """Whether it cannot be started, or the shell would run it. A name that is nowhere is no script."""
    train = checker.scratch / "train.py"
    train.write_text("print(1)\n")
    train.chmod(mode)
    line = checker.line("program", train, status=1 if mode == 0o644 else 0)
    told = [f"{train} is a script, not a program"] if mode == 0o644 else [f"{train} would be run by /bin/sh: it has no line #!/usr/bin/python3"]
    advice = f"sparkguard --check python3 checks what runs it, and sparkguard python3 {train} runs it"
    assert [line["sentence"]] == told and line["advice"] == advice and line["state"] == ("failure" if mode == 0o644 else "warning")
    train.write_text("#!/usr/bin/python3\nprint(1)\n")
    if mode == 0o755:
        assert checker.line("program", train)["state"] == "ok"
    train.unlink()
    assert checker.line("program", train, status=1)["sentence"] == f"{train} was not found"


def test_a_script_whose_interpreter_is_missing_is_told(checker):
    path = script(checker, "#!/nowhere/python3")
    assert checker.line("program", path, status=1)["sentence"] == "/nowhere/python3 was not found"


def test_a_script_that_is_its_own_interpreter_cannot_be_started(checker):
    path = script(checker, f"#!{checker.scratch}/script")
    assert "cannot be executed" in checker.line("program", path, status=1)["sentence"]


def test_a_program_that_cannot_be_started_is_told(checker):
    plain = checker.scratch / "plain"
    plain.write_text("print(1)\n")
    assert "cannot be executed" in checker.line("program", plain, status=1)["sentence"]
    assert "cannot be executed" in checker.line("program", checker.scratch, status=1)["sentence"]
    assert "was not found" in checker.line("program", "no-such-program", status=1)["sentence"]


def test_a_setuid_program_would_not_be_guarded(checker):
    program = checker.scratch / "setuid"
    shutil.copy("/bin/true", program)
    try:
        os.chown(program, 65534, 65534)
        program.chmod(0o4755)
    except PermissionError:
        pytest.skip("needs root")
    line = checker.line("program", program, status=1)
    assert "gains rights" in line["sentence"] and "sudo sparkguard" in line["advice"]


def test_a_c_library_that_is_too_old_is_told(checker):
    """A library that needs a version which this machine's C library does not have."""
    (checker.scratch / "new.map").write_text("GLIBC_2.99 { new; };\n")
    fake = checker.scratch / "fake"
    fake.mkdir()
    name = re.search(r"(libc\.so\.\d)", subprocess.run(["readelf", "-d", checker.job], capture_output=True, text=True).stdout)[1]
    options = ["-shared", "-fPIC", "-nostdlib", f"-Wl,-soname,{name}", f"-Wl,--version-script={checker.scratch}/new.map"]
    assert checker.compile(f"fake/{name}", "int new(void) { return 1; }", *options)
    library = checker.compile("libneeds.so", "int new(void); int use(void) { return new(); }", "-shared", "-fPIC", "-nostdlib", fake / name)
    line = checker.line("loader", f"--library={library}", checker.job, status=1)
    assert "its C library is too old: version `GLIBC_2.99' not found" in line["sentence"]


def test_a_library_that_a_program_lacks_is_named(checker):
    assert checker.compile("libgone.so", "int gone(void) { return 1; }", "-shared", "-fPIC", "-Wl,-soname,libgone.so")
    program = checker.compile("lacks", "int gone(void); int main(void) { return gone(); }", checker.scratch / "libgone.so")
    (checker.scratch / "libgone.so").unlink()
    line = checker.line("loader", program, status=1)
    assert "does not load the program: libgone.so: cannot open shared object file" in line["sentence"]


OWN_CODE = """#include <fcntl.h>
#include <unistd.h>
__attribute__((constructor)) static void ran(void) {{ close(open("{scratch}/ran", O_CREAT | O_WRONLY, 0600)); }}
unsigned la_version(unsigned version) {{ return version; }}
{more}"""


def own_code(checker, kind):
    """A program that names code of its own: a dynamic linker, an auditor, a library by RPATH that has a constructor."""
    code = OWN_CODE.format(scratch=checker.scratch, more="int main(void) { return 0; }" if kind == "linker" else "int own(void) { return 1; }")
    plain = "int main(void) { return 0; }"
    if kind == "linker":
        if checker.compile("ld-own.so.2", code, "-static") is None:
            pytest.skip("no static libc here")
        return checker.compile("by-linker", plain, f"-Wl,--dynamic-linker={checker.scratch}/ld-own.so.2")
    library = checker.compile("libown.so", code, "-shared", "-fPIC", "-Wl,-soname,libown.so")
    options = {"auditor": [f"-Wl,--audit={library}"], "needed auditor": [f"-Wl,--depaudit={library}"],
               "library": ["-Wl,--no-as-needed", library, f"-Wl,-rpath,{checker.scratch}"], "origin": ["-Wl,--no-as-needed", library, "-Wl,-rpath,$ORIGIN"]}[kind]
    return checker.compile("by-" + kind.replace(" ", "-"), plain, *options)


NAMED = {"linker": ("warning", "is not this system's dynamic linker"), "auditor": ("warning", "and the auditor"), "needed auditor": ("warning", "and the auditor"),
         "library": ("ok", "loads the library into it"), "origin": ("ok", "loads the library into it")}


@pytest.mark.parametrize("kind", NAMED)
def test_nothing_runs_that_the_program_names(checker, kind):
    """An administrator checks a stranger's program as root."""
    program = own_code(checker, kind)
    state, words = NAMED[kind]
    line = checker.line("loader", program)
    assert (line["state"], words in line["sentence"]) == (state, True), line
    assert not (checker.scratch / "ran").exists()


def test_libraries_are_found_where_the_linker_finds_them(checker):
    """By LD_LIBRARY_PATH, through a library that needs another, and not where a folder of that name has no such file."""
    (checker.scratch / "libs").mkdir()
    inner = checker.compile("libs/libinner.so", "int inner(void) { return 1; }", "-shared", "-fPIC", "-Wl,-soname,libinner.so")
    outer = checker.compile("libs/libouter.so", "int inner(void); int outer(void) { return inner(); }", "-shared", "-fPIC", "-Wl,-soname,libouter.so", inner)
    program = checker.compile("far", "int outer(void); int main(void) { return outer(); }", outer, f"-Wl,-rpath-link,{checker.scratch}/libs")
    assert "libouter.so: cannot open" in checker.line("loader", program, status=1)["sentence"]
    assert checker.line("loader", program, LD_LIBRARY_PATH=str(checker.scratch / "libs"))["state"] == "ok"
    inner.unlink()
    inner.write_text("no library")
    assert "libinner.so: cannot open" in checker.line("loader", program, status=1, LD_LIBRARY_PATH=str(checker.scratch / "libs"))["sentence"]


# ---- options --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "variables, status, state, sentence, advice",
    [
        ({"SPARKGUARD_LIMIT": "64G"}, 0, "ok", "LIMIT=64G; reserve", None),
        ({"SPARKGUARD_LIMIT": "much"}, 1, "failure", "SPARKGUARD_LIMIT=much: ", "64G"),
        ({"SPARKGUARD_LIMTI": "64G"}, 0, "warning", "SPARKGUARD_LIMTI is not a variable", "SPARKGUARD_LIMIT"),
        ({"SPARKGUARD_LIMIT": "64"}, 0, "warning", "SPARKGUARD_LIMIT=64 is 64 bytes", "64G"),
        ({"SPARKGUARD_DISABLE": "1"}, 1, "failure", "nothing is refused", "unset"),
        ({"SPARKGUARD_MODE": "observe"}, 0, "warning", "nothing is refused", "unset"),
        ({"SPARKGUARD_RESERVE": "100%"}, 0, "warning", "room 0 B now", "SPARKGUARD_RESERVE"),
    ],
)
def test_options_are_told(checker, variables, status, state, sentence, advice):
    line = checker.line("options", checker.job, status=status, **variables)
    assert line["state"] == state and sentence in line["sentence"]
    assert line["advice"] is None if advice is None else advice in line["advice"]


def test_a_wrong_option_on_the_command_line_is_a_usage_error(checker):
    done = checker.run("--limit=much", checker.job)
    assert done.returncode == 2 and done.stdout == "" and "for example 64G" in done.stderr
    done = subprocess.run([str(checker.program), "--json", "true"], env=checker.environment(), capture_output=True, text=True)
    assert done.returncode == 2 and "--json belongs to --check" in done.stderr


def test_an_ignored_preload_is_named(checker):
    done = checker.run(checker.job, LD_PRELOAD="/nowhere/libsparkguard.so")
    assert done.returncode == 0
    assert re.search(r"^warning  preload +LD_PRELOAD names /nowhere/libsparkguard.so, which the loader ignores$", done.stdout, re.MULTILINE)


def test_other_guarded_processes_are_counted(checker):
    code = "data = bytearray(32 << 20); print('held', flush=True); input()"
    env = checker.environment(LD_PRELOAD=str(checker.tools / "libsparkguard.so"))
    with subprocess.Popen([PYTHON, "-S", "-c", code], env=env, stdin=-1, stdout=-1, text=True) as other:
        assert other.stdout.readline() == "held\n"
        assert checker.line("shared", checker.job)["sentence"] == "with 1 other guarded process, in one ledger"
        other.communicate("\n")


# ---- how it is shown ------------------------------------------------------------------------------------------------


def test_colour_is_for_a_terminal_only(checker):
    assert "\x1b" not in checker.run(checker.job).stdout


def shown(checker, columns, **extra):
    return all_shown([str(checker.program), "--check", "sh"], checker.environment(TERM="xterm", **extra), columns)


def test_it_fits_a_narrow_terminal(checker):
    text = shown(checker, 60)
    assert "\x1b[" in text
    rows = re.sub(r"\x1b\[\d*m", "", text).replace("\r", "").splitlines()
    assert "sh would be guarded." in rows
    for row in rows:
        assert len(row) <= 60 or " " not in row[21:], row  # a path is one word


def test_no_color_is_respected(checker):
    assert "\x1b" not in shown(checker, 60, NO_COLOR="1")
