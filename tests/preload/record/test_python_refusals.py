"""sparkguard.is_refusal, explain and refusals: by count, whatever the type and the text of an exception."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[3] / "tools/python"
GIB = 1 << 30

HEAD = """
import datetime, sys, threading, time, sparkguard
def refuse():
    try:
        bytearray(8 << 30)
    except MemoryError:
        return
    raise SystemExit("not refused")
class Odd(Exception):
    pass
def caught(make, is_refused):
    '''An exception that is made right behind a refusal, or without one.'''
    try:
        if is_refused:
            refuse()
        raise make()
    except BaseException as error:
        return error
"""


@pytest.fixture
def python(guard, build):
    def run(text, **env):
        variables = {"PYTHONPATH": PACKAGE, "SPARKGUARD_LIMIT": "1G", "PATH": f"{build}:/usr/bin:/bin"} | env
        done = guard.run([sys.executable, "-c", HEAD + text], env=variables)
        assert done.returncode == 0, done.stderr
        done.said = done.stdout.splitlines()
        return done

    return run


def test_thirty_exceptions_are_told_apart_by_count(python):
    """Fifteen refusals in odd types and texts, fifteen foreign ones of the same kinds in another thread at the same time."""
    done = python(
        """
MAKERS = [
    MemoryError, lambda: MemoryError("x"), lambda: RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"),
    lambda: RuntimeError("CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"), lambda: RuntimeError("NVML_SUCCESS == r INTERNAL ASSERT"),
    lambda: RuntimeError(""), lambda: ValueError("shape"), lambda: OSError(12, "Cannot allocate memory"), lambda: OSError(2, "x"),
    lambda: Odd("\\u8d85\\u51fa"), lambda: Odd(b"\\xff"), KeyboardInterrupt, lambda: SystemError("NULL"),
    lambda: AssertionError("loss"), lambda: ImportError("libcudnn.so"),
]
both = threading.Barrier(2)
answers = {}
def work(name, is_refused):
    answers[name] = []
    for make in MAKERS:
        both.wait()
        error = caught(make, is_refused)
        both.wait()
        answers[name].append(sparkguard.is_refusal(error))
threads = [threading.Thread(target=work, args=pair) for pair in (("ours", True), ("foreign", False))]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(len(MAKERS), sum(answers["ours"]), sum(answers["foreign"]))
"""
    )
    assert done.said == ["15 15 0"]


def test_a_refusal_explains_one_exception(python):
    done = python(
        """
first = caught(MemoryError, True)
print(sparkguard.is_refusal(first), sparkguard.is_refusal(first), sparkguard.is_refusal(caught(MemoryError, False)))
"""
    )
    assert done.said == ["True True False"]


def test_a_refusal_before_a_phase_explains_none_in_it(python):
    done = python(
        """
refuse()
with sparkguard.phase("step"):
    print(sparkguard.is_refusal(caught(ValueError, False)))
    print(sparkguard.is_refusal(caught(ValueError, True)))
"""
    )
    assert done.said == ["False", "True"]


def test_a_refusal_in_a_thread_that_is_not_pythons_counts_for_the_only_python_thread(python):
    """As the autograd thread of PyTorch, whose exception rises in the thread that waits for it."""
    done = python(
        """
import ctypes
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
thread, result = ctypes.c_ulong(), ctypes.c_void_p()
start = ctypes.cast(libc.malloc, ctypes.c_void_p)
assert libc.pthread_create(ctypes.byref(thread), None, start, ctypes.c_void_p(8 << 30)) == 0
assert libc.pthread_join(thread, ctypes.byref(result)) == 0 and not result.value
print(sparkguard.is_refusal(RuntimeError("rethrown")), sparkguard.is_refusal(RuntimeError("later")))
"""
    )
    assert done.said == ["True False"]


@pytest.mark.parametrize("kind, expected", [("torch.OutOfMemoryError", "True"), ("RuntimeError", "False")])
def test_beside_other_python_threads_such_a_refusal_counts_for_torchs_own_error(python, kind, expected):
    """As with a progress bar's thread; whatever else is raised at that moment may be foreign."""
    done = python(
        f"""
import ctypes, types
torch = sys.modules["torch"] = types.ModuleType("torch")
torch.OutOfMemoryError = type("OutOfMemoryError", (RuntimeError,), {{}})
over = threading.Event()
threading.Thread(target=over.wait).start()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
thread, result = ctypes.c_ulong(), ctypes.c_void_p()
start = ctypes.cast(libc.malloc, ctypes.c_void_p)
assert libc.pthread_create(ctypes.byref(thread), None, start, ctypes.c_void_p(8 << 30)) == 0
assert libc.pthread_join(thread, ctypes.byref(result)) == 0 and not result.value
print(sparkguard.is_refusal({kind}("rethrown")))
over.set()
"""
    )
    assert done.said == [expected]


def test_refusals_are_objects_and_begin_where_asked(python):
    done = python(
        """
def next_millisecond():
    start = time.time()
    while time.time() < start + 0.002:  # pace: refusals have milliseconds
        pass
    return time.time()
refuse()
middle = next_millisecond()
refuse(); refuse()
end = datetime.datetime.fromtimestamp(next_millisecond())
print(len(sparkguard.refusals()), len(sparkguard.refusals(middle)), len(sparkguard.refusals(end)))
last = sparkguard.refusals()[-1]
print(last.call in ("malloc", "calloc"), last.domain, last.size_bytes >= 8 << 30, last.reason, 0 < last.usable_bytes <= 1 << 30, last.time.tzinfo is not None)
print(last)
"""
    )
    assert done.said[:2] == ["3 2 0", "True heap True limit True True"]
    assert "alloc of 8.0 GiB refused, " in done.said[2] and done.said[2].endswith(" of room (limit)")


def test_explain_is_two_lines_about_a_refusal_and_none_for_others(python):
    done = python("print(sparkguard.explain(caught(Odd, True)))\nprint(sparkguard.explain(caught(Odd, False)))")
    assert "of 8.0 GiB refused, " in done.said[0] and done.said[0].endswith(f"; see sparkguard-report {done.pid}")
    (of_library,) = [line for line in done.stderr.splitlines() if line.startswith("try: ")]
    assert done.said[1:] == [of_library, "None"] and "SPARKGUARD_LIMIT=8." in of_library


@pytest.mark.parametrize(
    "reason, missing, limit, step",
    [
        ("limit by bound", 100 << 20, GIB, "a smaller request, or ask who keeps /etc/sparkguard.conf; a limit of 1.1 GiB would have been enough for this request"),
        ("limit by bound", None, GIB, "a smaller request, or ask who keeps /etc/sparkguard.conf"),
        ("limit by set", 100 << 20, GIB, "sparkguard --set train limit=1.1G; a limit of 1.1 GiB would have been enough for this request"),
        ("limit", 100 << 20, GIB, "SPARKGUARD_LIMIT=1.1G; a limit of 1.1 GiB would have been enough for this request"),
        ("limit", 1, GIB, "SPARKGUARD_LIMIT=1.1G; a limit of 1.1 GiB would have been enough for this request"),
        ("limit", 1, GIB + (60 << 20), "SPARKGUARD_LIMIT=1085M; a limit of 1085 MiB would have been enough for this request"),
        ("limit", None, GIB, "a larger SPARKGUARD_LIMIT"),
        ("limit", 5, None, "a larger SPARKGUARD_LIMIT"),
        ("reserve", 1000 << 20, GIB, "a smaller batch, or end another program; 1000.0 MiB more of the machine's memory would have been enough for this request"),
        ("floor", None, None, "a smaller batch, or end another program"),
        ("device", (1 << 30) - 1, None, "a smaller batch; 1.0 GiB more of the device's memory would have been enough for this request"),
    ],
)
def test_the_next_step_has_the_size_that_would_have_been_enough(reason, missing, limit, step):
    code = f"""
import datetime
from sparkguard import Refusal
from sparkguard._refusals import _next_step
reason, _, limit_by = {reason!r}.partition(" by ")
print(_next_step(Refusal(datetime.datetime.now(), "malloc", "heap", 8 << 30, reason, 0, {missing}, {limit}, limit_by or "option")))
"""
    env = {"PYTHONPATH": str(PACKAGE), "SPARKGUARD_LIMIT": "1G", "SPARKGUARD_JOB": "train"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout == step + "\n"


def test_the_next_step_within_a_limit_set_meanwhile_is_another(python):
    text = """
import subprocess
bytearray(32 << 20)  # on record from now on
subprocess.run(["sparkguard", "--set", "train", "limit=512M"], check=True)
print(sparkguard.explain(caught(Odd, True)))
"""
    done = python(text, SPARKGUARD_JOB="train")
    (of_library,) = [line for line in done.stderr.splitlines() if line.startswith("try: ")]
    assert done.said[-1] == of_library and of_library.startswith("try: sparkguard --set train limit=8."), done


def test_a_refusal_names_the_line_of_the_program_that_asked(guard, build, tmp_path):
    """Not the line of the library in between that asked for it."""
    train = tmp_path / "train.py"
    train.write_text("""import json.decoder, sparkguard
def load():
    return json.loads("[" + "1," * 40000000 + "1]")
try:
    load()
except MemoryError as error:
    print(sparkguard.explain(error))
""")
    env = {"PYTHONPATH": PACKAGE, "SPARKGUARD_LIMIT": "200M", "PATH": f"{build}:/usr/bin:/bin"}
    done = guard.run([sys.executable, train], env=env)
    assert " (limit) at train.py:3; see sparkguard-report " in done.stdout, done.stdout + done.stderr


def test_what_would_have_been_refused_is_no_refusal(python):
    text = """
block = bytearray(100 << 20)
print(sparkguard.is_refusal(MemoryError()), sparkguard.refusals(), sparkguard.stats()["refused_count"] > 0)
"""
    assert python(text, SPARKGUARD_MODE="observe", SPARKGUARD_LIMIT="64M").said == ["False [] True"]


def test_without_the_guard_or_the_tool_nothing_is_known(python):
    text = "print(sparkguard.is_refusal(caught(MemoryError, False)), sparkguard.refusals(), sparkguard.explain(MemoryError()))"
    assert python(text, LD_PRELOAD=None).said == ["False [] None"]
    text = "print(sparkguard.is_refusal(error := caught(Odd, True)), sparkguard.refusals(), sparkguard.explain(error))"
    done = python(text, PATH="/nowhere")
    assert done.said == ["True [] the guard refused a request at <string>:16", f"try: sparkguard-report {done.pid}"]


def install_kernel(build, tmp_path, *options, path=None, **env):
    """Runs `python -m sparkguard kernel install` with the tools of `path`, build/ unless it is given."""
    variables = {"PYTHONPATH": str(PACKAGE), "PATH": f"{path or build}:/usr/bin:/bin", "HOME": str(tmp_path), **env}
    command = [sys.executable, "-m", "sparkguard", "kernel", "install", *options]
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=False)


def kernel_of(tmp_path):
    return tmp_path / ".local/share/jupyter/kernels/sparkguard/kernel.json"


@pytest.mark.parametrize("options, limit", [([], {}), (["--limit=60G"], {"SPARKGUARD_LIMIT": "60G"}), (["--limit", "5%"], {"SPARKGUARD_LIMIT": "5%"})])
def test_a_kernel_of_jupyter_has_only_the_limit_that_was_asked_for(build, tmp_path, options, limit):
    """Jupyter is the parent of its kernel: ipykernel ends where another process is. The library need not be installed."""
    done = install_kernel(build, tmp_path, *options, SPARKGUARD_LIMIT="1G")
    assert (done.returncode, done.stderr) == (0, "")
    kernel = json.loads(kernel_of(tmp_path).read_text())
    assert kernel["argv"] == [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    assert kernel["env"] == {"LD_PRELOAD": str(build / "libsparkguard.so")} | limit
    show = [sys.executable, "-c", "import sparkguard; print(sparkguard.active())"]
    env = {"PYTHONPATH": str(PACKAGE), "SPARKGUARD_DIR": str(tmp_path / "live")} | kernel["env"]
    shown = subprocess.run(show, env=env, capture_output=True, text=True, check=False)
    assert (shown.stdout, shown.stderr) == ("True\n", "")


@pytest.mark.parametrize(
    "value, said",
    [
        ("foo", "--limit=foo: not a size; for example 64G"),
        ("", "--limit=: not a size; for example 64G"),
        ("64Q", "--limit=64Q: not a size; for example 64G"),
        ("64", "--limit=64 is 64 bytes, less than any program needs (16 MiB); did you mean 64G?"),
        ("4M", "--limit=4M: less than any program needs (16 MiB); for example 64G"),
    ],
)
def test_a_kernel_is_not_installed_with_a_limit_that_is_none(build, tmp_path, value, said):
    done = install_kernel(build, tmp_path, f"--limit={value}")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"sparkguard: {said}; no kernel is installed\n")
    assert not kernel_of(tmp_path).exists()


@pytest.mark.parametrize("tools", ["without the library", "none"])
def test_a_kernel_is_not_installed_without_a_library_that_guards_it(build, tmp_path, tools):
    """The name alone is no answer: ld.so ignores what it does not find, and the kernel would run unguarded."""
    (tmp_path / "bin").mkdir()
    if tools == "without the library":
        shutil.copy(build / "sparkguard", tmp_path / "bin")
    done = install_kernel(build, tmp_path, path=tmp_path / "bin")
    if tools == "none":
        assert (done.returncode, done.stderr) == (127, "sparkguard: sparkguard is neither beside this Python package nor in PATH\n")
    else:
        said = "sparkguard: libsparkguard.so is neither in .* nor in .*; give its path with --library=FILE; no kernel is installed\n"
        assert done.returncode == 125 and re.fullmatch(said, done.stderr), done.stderr
    assert not kernel_of(tmp_path).exists()


def test_a_kernel_takes_no_other_option(build, tmp_path):
    done = install_kernel(build, tmp_path, "--jail=1G")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "sparkguard: kernel takes install, or install --limit=SIZE\n")


def test_a_kernel_that_cannot_be_written_says_where(build, tmp_path):
    (tmp_path / "file").write_text("")
    done = install_kernel(build, tmp_path, JUPYTER_DATA_DIR=str(tmp_path / "file"))
    assert (done.returncode, done.stderr) == (1, f"sparkguard: {tmp_path}/file/kernels: Not a directory\n")
