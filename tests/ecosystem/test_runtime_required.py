"""sparkguard-runtime where the guard is required, and where parts of the machine are broken: what cannot be guarded does not start
where that was asked, and otherwise the next runtime is started whatever is missing."""

import json
import os
import subprocess

import pytest
from bundles import Bundle
from runtime_bundle import LIBRARY, bundle, image, runtime  # noqa: F401


def refused(runtime, *words, **lines):
    """The sentence of a refusal; the next runtime was not started."""
    done = runtime.run(*words, **lines)
    assert (done.returncode, done.stdout) == (1, "") and not runtime.told.exists()
    (sentence,) = done.stderr.splitlines()
    assert sentence.endswith(" (SPARKGUARD_REQUIRED)")
    return sentence


@pytest.fixture
def joining(runtime, bundle, tmp_path):
    """Words of exec by a process file, and what the file has."""

    def words(*args, **environment):
        path = tmp_path / "process.json"
        path.write_text(json.dumps({"user": {"uid": 0, "gid": 0}, "args": list(args), "cwd": "/",
                                    "env": ["PATH=/bin", *(f"{k}={v}" for k, v in environment.items())]}))
        return "exec", "--process", path, "box"

    runtime.create(bundle)
    return words


@pytest.mark.parametrize("path", ["/nowhere/libsparkguard.so", "libsparkguard.so", "/etc/libsparkguard.so"])
def test_a_guard_of_its_own_that_cannot_be_loaded_is_no_guard(image, runtime, tmp_path, path):
    """The last one is there and is a text."""
    (image.root / "etc/libsparkguard.so").write_text("text")
    bundle = Bundle(tmp_path / "bundle", image, ["take"], LD_PRELOAD=path)
    assert f"LD_PRELOAD names {path}, which is" in refused(runtime, "create", "--bundle", bundle.folder, "box", required="yes")
    runtime.create(bundle)
    assert bundle.guarded().startswith(f"no: LD_PRELOAD names {path}, which is")


@pytest.mark.parametrize("where", ["/opt/libsparkguard.so", "/usr/lib/libsparkguard.so"])
def test_a_guard_of_its_own_that_is_there_is_one(build, image, runtime, tmp_path, where):
    image.put(build / "libsparkguard.so", where)
    try:
        entry = where if where.startswith("/opt") else "libsparkguard.so"
        bundle = Bundle(tmp_path / "bundle", image, ["take"], LD_PRELOAD=entry)
        runtime.create(bundle, required="yes")
        assert bundle.guarded() == "yes" and LIBRARY not in bundle.destinations()
    finally:
        (image.root / where.lstrip("/")).unlink()


@pytest.mark.parametrize("words", [("--new-option", "value"), ("--new-option", "state"), ("--new-option",)])
def test_a_command_line_that_cannot_be_read_starts_nothing_unguarded(runtime, bundle, words):
    """The word behind an unknown option may be its value, or the command."""
    line = (*words, "create", "--bundle", bundle.folder, "box")
    if len(words) == 1:
        runtime.passes_on(*line, required="yes")
        assert bundle.guarded() == "yes"
    else:
        assert "its command line has an unknown option or command" in refused(runtime, *line, required="yes")
        runtime.passes_on(*line)
        assert bundle.guarded() in (None, "yes")
    runtime.passes_on("--new-option", "value", "delete", "box", required="yes")
    runtime.passes_on("--new-option=value", "state", "box", required="yes")


@pytest.mark.parametrize("how", ["file", "container"])
def test_exec_starts_nothing_unguarded_either(image, runtime, bundle, joining, how):
    lines = {"required": "yes"} if how == "file" else {}
    if how == "container":
        bundle.change(lambda config: config["annotations"].update({"sparkguard.required": "yes"}))
    runtime.passes_on(*joining("take"), **lines)
    assert "/bin/static is linked statically" in refused(runtime, *joining("static"), **lines)
    assert "it opts out" in refused(runtime, *joining("take", SPARKGUARD_DISABLE="1"), **lines)
    assert "/nowhere/libsparkguard.so, which is not there" in refused(runtime, *joining("take", LD_PRELOAD="/nowhere/libsparkguard.so"), **lines)
    assert "/bin/static is linked statically" in refused(runtime, "exec", "box", "/bin/static", **lines)
    assert "env clears" in refused(runtime, "exec", "--env", "A=b", "box", "env", "-i", "take", **lines)
    runtime.passes_on("exec", "box", "take", **lines)


def test_exec_into_an_unknown_or_unguarded_container_is_refused_where_the_guard_is_required(image, runtime, tmp_path, joining):
    assert "there is no record of its container" in refused(runtime, *joining("take")[:-1], "unknown", required="yes")
    runtime.create(Bundle(tmp_path / "unguarded", image, ["static"]), name="unguarded")
    assert "its container is not guarded" in refused(runtime, *joining("take")[:-1], "unguarded", required="yes")
    runtime.passes_on(*joining("take")[:-1], "unguarded")


WORDS = {"create": ("create", "--bundle", "B", "box"), "exec": ("exec", "--process", "P", "box"), "state": ("state", "box"),
         "kill": ("kill", "box", "KILL"), "delete": ("delete", "box")}


@pytest.mark.parametrize("command", WORDS)
def test_no_file_may_be_written(runtime, bundle, joining, command):
    """RLIMIT_FSIZE=0, where a write is answered by a signal."""
    process = joining("take")[2]
    told = runtime.next
    told.write_text("#!/bin/sh\nexit 23\n")
    words = [str({"B": bundle.folder, "P": process}.get(word, word)) for word in WORDS[command]]
    environment = runtime.environment()
    done = subprocess.run(["sh", "-c", 'ulimit -f 0; exec "$@"', "sh", runtime.program, *words], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (23, "")
    shown = 'grep -E "^Sig[BICP]" /proc/self/status'
    told.write_text(f"#!/bin/sh\n{shown}\n")
    asked = [subprocess.run(["sh", "-c", 'ulimit -f 0; exec "$@"', "sh", *program], env=environment, capture_output=True, text=True).stdout
             for program in ([told], [runtime.program, *words])]
    assert asked[0] == asked[1] != "", "the next runtime has the signals of its engine"


def test_only_the_c_library_is_needed(runtime, build):
    """No container starts, and none is stopped, where the runtime does not start."""
    said = subprocess.run(["readelf", "-d", build / "sparkguard-runtime"], capture_output=True, text=True, check=True).stdout
    assert [line.split("[")[1].rstrip("]") for line in said.splitlines() if "(NEEDED)" in line] == ["libc.so.6"]


@pytest.mark.parametrize("kind", ["pipe", "folder", "unreadable"])
def test_a_settings_file_of_another_kind_holds_up_nobody(runtime, bundle, kind):
    runtime.run("state", "box")
    runtime.conf.unlink()
    if kind == "pipe":
        os.mkfifo(runtime.conf)
    elif kind == "folder":
        runtime.conf.mkdir()
    environment = {**runtime.environment(), "SPARKGUARD_NEXT_RUNTIME": str(runtime.next)}
    done = subprocess.run([runtime.program, "state", "box"], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 23


def test_what_needs_no_edit_is_passed_on_before_anything_is_read(runtime):
    """But for the file that names the next runtime. The log is opened for what is not understood alone."""
    trace, plain = runtime.folder / "trace", runtime.program
    runtime.program = runtime.folder / "traced"
    runtime.program.write_text(f'#!/bin/sh\nexec strace -qq -o {trace} -e trace=openat,mkdir,execve {plain} "$@"\n')
    runtime.program.chmod(0o755)

    def opened(*words):
        runtime.passes_on(*words)
        own = trace.read_text().split("execve")[2 - 1]  # up to the next runtime
        return [line.split('"')[1] for line in own.splitlines() if line.startswith(("openat", "mkdir"))]

    for words in (("state", "box"), ("kill", "box", "9"), ("start", "box"), ("--root", "/r", "events", "box")):
        assert [path for path in opened(*words) if not path.startswith(("/etc/ld.so", "/lib", "/usr/lib"))] == [str(runtime.conf)], words
    assert str(runtime.log) in opened("nonsense")
