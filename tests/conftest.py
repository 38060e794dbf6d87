"""What all Python tests share: the build folder, a way to run programs under the guard, and a time limit.

    def test_refused_malloc_says_so(guard):
        done = guard.run(["prog"], env={"SPARKGUARD_LIMIT": "64M"})
        assert done.returncode == 0
        assert done.process()["refused_count"] == 1
"""

import faulthandler
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from lib.output import values
from lib.target import IS_LONG, patience

ROOT = Path(__file__).resolve().parent.parent
BUILD = (ROOT / os.environ.get("BUILD", "build")).resolve()
TIMEOUT_SECONDS = 240  # one test; longer by @pytest.mark.timeout_seconds(N)


def pytest_configure(config):
    sys.executable = os.environ.get("GUARDED_PYTHON", sys.executable)  # one of the library's architecture
    config.addinivalue_line("markers", "timeout_seconds(n): ends the test after n seconds")
    config.addinivalue_line("markers", "long: runs in the long form only (make qualify)")
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        if signal.getsignal(number) == signal.SIG_IGN:  # nohup and background jobs hand that on to every program
            signal.signal(number, signal.SIG_DFL)
    state = tempfile.TemporaryDirectory(prefix="sparkguard-state-")  # whoever names no history leaves none in the real home
    os.environ["XDG_STATE_HOME"] = os.environ["XDG_CONFIG_HOME"] = state.name  # nor does it have that home's defaults
    config.add_cleanup(state.cleanup)


def pytest_collection_modifyitems(config, items):
    leave_out_long_tests(config, items)
    skip_what_is_otherwise(items)


def leave_out_long_tests(config, items):
    left_out = [] if IS_LONG else [item for item in items if item.get_closest_marker("long")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def skip_what_is_otherwise(items):
    """Skips what is otherwise under an emulator (tests/emulate) or an older C library (tests/release): each line of the list says why."""
    listed = os.environ.get("SKIPPED", "tests/emulated.skip" if "GUARDED_PYTHON" in os.environ else None)
    if listed is None:
        return
    reasons = {}
    for line in (ROOT / listed).read_text().splitlines():
        if line and not line.startswith("#"):
            name, _, reasons[name] = line.partition("  ")
    for item in items:
        name = f"{Path(item.location[0]).name}::{item.name}"
        for known in (name, name.partition("[")[0]):
            if known in reasons:
                item.add_marker(pytest.mark.skip(reason=reasons[known].strip()))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item):
    """A test that hangs fails; what it waited for through `guard` is killed. Stuck inside C, the traceback is shown."""
    mark = item.get_closest_marker("timeout_seconds")
    seconds = patience(mark.args[0] if mark else TIMEOUT_SECONDS)

    def expire(_number, _frame):
        pytest.fail(f"no end after {seconds:.0f} s")

    previous = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    faulthandler.dump_traceback_later(seconds + 30, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_teardown(item):
    """In a guest (tests/guest64k) /tmp is a tmpfs: a test is to find as much memory as the one before it did."""
    yield
    if "IN_GUEST" in os.environ and "tmp_path" in item.funcargs:
        shutil.rmtree(item.funcargs["tmp_path"], ignore_errors=True)


class Completed(subprocess.CompletedProcess):
    """What `Guard.run` returns: stdout and stderr as text, and what the guard recorded."""

    pid: int
    guard: "Guard"

    def report(self, *arguments):
        return self.guard.report(*arguments)

    def process(self):
        """The report's entry for the program itself; fails if there is none."""
        return self.guard.process(self.pid)


class Guard:
    """Runs programs under the library, with records of their own in `directory` and `history`."""

    def __init__(self, build, scratch):
        self.build = build
        self.library = build / "libsparkguard.so"
        self.has_untrusted_files = False  # that the report names, with status 3
        self.directory = scratch / "live"
        self.history = scratch / "history"

    def environment(self, extra=None, preload=None):
        """This process's environment, guarded. A None in `extra` takes a variable out; `preload` replaces the list."""
        env = {k: v for k, v in os.environ.items() if not k.startswith("SPARKGUARD_")}
        libraries = [self.library] if preload is None else preload
        env["LD_PRELOAD"] = ":".join(map(str, libraries))
        env["SPARKGUARD_DIR"] = str(self.directory)
        env["SPARKGUARD_HISTORY"] = str(self.history)
        for name, value in (extra or {}).items():
            if value is None:
                env.pop(name, None)
            else:
                env[name] = str(value)
        return env

    def popen(self, command, env=None, preload=None, **options):
        options.setdefault("stdin", subprocess.DEVNULL)
        options.setdefault("stdout", subprocess.PIPE)
        options.setdefault("stderr", subprocess.PIPE)
        if not options.pop("binary", False):
            options.setdefault("text", True)
            options.setdefault("errors", "replace")
        return subprocess.Popen([str(c) for c in command], env=self.environment(env, preload), **options)

    def quiet_points(self, command, env):
        """Yields (values printed since, report entry) each time the program is quiet; asserts a good end."""
        process = self.popen(command, env, stdin=subprocess.PIPE)
        try:
            said = ""
            for line in process.stdout:
                said += line
                if line == "quiet\n":
                    yield values(said), self.process(process.pid)
                    said = ""
                    process.stdin.write("\n")
                    process.stdin.flush()
            assert process.wait(60) == 0, process.stderr.read()
        finally:
            process.kill()
            process.communicate()

    def run(self, command, env=None, timeout=120, input=None, preload=None, **options):
        """Runs `command` to its end in a session of its own; kills that whole session if it takes too long."""
        if input is not None:
            options["stdin"] = subprocess.PIPE
        process = self.popen(command, env, preload, start_new_session=True, **options)
        try:
            stdout, stderr = process.communicate(input, patience(timeout))
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
        done = Completed(process.args, process.returncode, stdout, stderr)
        done.pid, done.guard = process.pid, self
        return done

    def report_command(self, *arguments):
        """sparkguard-report as a user runs it, unguarded: a CompletedProcess, whatever its exit status."""
        env = self.environment({"LD_PRELOAD": None, "NO_COLOR": "1"})
        command = [str(self.build / "sparkguard-report"), "--dir", str(self.directory), *map(str, arguments)]
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)

    def report(self, *arguments):
        """The report as JSON; nothing recorded (exit 1) is a report without jobs."""
        done = self.report_command("--json", *(arguments or ("--all",)))
        if done.returncode == 1:
            return json.loads(done.stdout) if done.stdout.strip() else {"schema": 1, "machine": {}, "jobs": []}
        assert done.returncode == (3 if self.has_untrusted_files else 0), f"sparkguard-report: exit {done.returncode}: {done.stderr}"
        return json.loads(done.stdout)

    def processes(self, pid=None):
        """All entries of the report, or those of one pid (several after exec), oldest first."""
        entries = [p for job in self.report()["jobs"] for p in job["processes"]]
        return sorted((p for p in entries if pid in (None, p["pid"])), key=lambda p: p["started"])

    def process(self, pid):
        entries = self.processes(pid)
        assert len(entries) == 1, f"{len(entries)} entries for process {pid} in the report"
        return entries[0]


RUN_BY_OTHERS = ("libsparkguard.so", "sparkguard", "sparkguard-report", "sparkguard-doctor", "sparkguard-sweep", "tests", "sim", "demo", "fault")


def is_open(path):
    """Whether every user may read the file, and enter the folders above it."""
    return path.stat().st_mode & 0o004 and all(folder.stat().st_mode & 0o001 for folder in path.parents)


@pytest.fixture(scope="session")
def open_build():
    """The build folder, for programs of any user: root's tests start some as others. Where these cannot reach it, as in a clone
    below /root, it is a folder that they can, with copies of what they run."""
    if os.geteuid() != 0 or not (BUILD / "sparkguard").exists() or is_open(BUILD / "sparkguard"):
        yield BUILD
        return
    with tempfile.TemporaryDirectory(prefix="sparkguard-build-") as folder:
        for file in BUILD.iterdir():
            if file.name not in RUN_BY_OTHERS:
                Path(folder, file.name).symlink_to(file)
            elif file.is_dir():
                shutil.copytree(file, Path(folder, file.name))
            else:
                shutil.copy2(file, folder)
        subprocess.run(["chmod", "-R", "a+rX", folder], check=True)  # of what is in it, too: a umask of 077 may have closed it
        yield Path(folder)


@pytest.fixture(scope="session")
def build(open_build):
    """The build folder; the tests cannot mean anything without it."""
    if not (open_build / "libsparkguard.so").exists():
        pytest.exit(f"{BUILD}/libsparkguard.so is missing; run make first", returncode=3)
    return open_build


@pytest.fixture
def guard(build, tmp_path):
    return Guard(build, tmp_path)


@pytest.fixture(scope="session")
def own_mounts():
    """The command prefix for a mount namespace of one's own; skips where there is none (not root, a plain chroot)."""
    if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode != 0:
        pytest.skip("mounts of one's own need root, and a root folder that is a mount point")
    return ["unshare", "-m"]
