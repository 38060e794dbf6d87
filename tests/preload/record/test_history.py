"""SPARKGUARD_HISTORY: what a process did survives it and its live record, and costs nobody anything where it cannot be kept."""

import os
import re
import resource
import shutil
import signal
import stat
import struct
import subprocess
import time

import pytest
from lib.history import Held, events, kept, lost, run_until, run_until_kept, run_until_kept_at_its_end, shown
from lib.ledger import HEADER, Ledger, fields_of
from lib.target import EMULATORS_THREADS, PYTHON
from lib.waiting import wait_until

MIB = 1 << 20
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture
def program(build):
    return lambda name: build / "tests/programs" / name


# ---- what survives ---------------------------------------------------------------------------------------------------

REFUSED = """
import ctypes, os, time
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
block = libc.malloc(ctypes.c_size_t(100 << 20))
assert libc.malloc(ctypes.c_size_t(1 << 40)) is None
print("ready", flush=True)
time.sleep(600)  # holds: the test kills it
"""


def test_sigkill_of_everything_and_a_lost_live_directory_leave_peak_refusals_and_state(guard):
    command = [PYTHON, "-S", "-c", REFUSED]
    processes = [guard.popen(command, env={"SPARKGUARD_LIMIT": "4G"}, start_new_session=True) for _ in range(3)]
    pids = sorted(p.pid for p in processes)
    assert [p.stdout.readline() for p in processes] == ["ready\n"] * 3
    wait_until(lambda: sorted(kept(guard)) == pids)
    for process in processes:
        os.killpg(process.pid, signal.SIGKILL)
    for process in processes:
        process.communicate()
    shutil.rmtree(guard.directory)  # as a reboot does
    entries = shown(guard)
    assert sorted(p["pid"] for p in entries) == pids
    for process in entries:
        assert (process["state"], process["exit_code"], process["ended"]) == ("killed", None, None)
        assert 100 * MIB <= process["peak_bytes"] <= 116 * MIB
        assert sum(process["peak_domains"].values()) == process["peak_bytes"]
        assert [r["size_bytes"] for r in process["refusals"]] == [1 << 40]


LAST_SNAPSHOT = """
import ctypes, sys, time
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
block = libc.malloc(ctypes.c_size_t(64 << 20))
open(sys.argv[1], "w").write("MemTotal: 8388608 kB\\nMemFree: 100000 kB\\nMemAvailable: 100000 kB\\n")
time.sleep(0.02)  # pace: a look at the machine serves for 5 ms
assert libc.malloc(ctypes.c_size_t(1 << 30)) is None
print("ready", flush=True)
time.sleep(600)  # holds: the test kills it
"""


def make_older(segment, figures, seconds):
    """Moves the look at the machine that found these figures (struct sg_machine: the time lies before them) back in time."""
    at = segment.read_bytes().index(figures) - 8
    with segment.open("r+b") as file:
        file.seek(at)
        (when,) = struct.unpack("=q", file.read(8))
        file.seek(at)
        file.write(struct.pack("=q", when - seconds * 10**9))


def test_memory_that_was_short_at_the_last_snapshot_stops_no_copies(guard, tmp_path):
    """A process without a watchdog, and without requests, looks at the machine no more."""
    meminfo = tmp_path / "root/proc/meminfo"
    meminfo.parent.mkdir(parents=True)
    meminfo.write_text("MemTotal: 8388608 kB\nMemFree: 8000000 kB\nMemAvailable: 8000000 kB\n")
    with guard.popen([PYTHON, "-S", "-c", LAST_SNAPSHOT, meminfo], env={"SPARKGUARD_SYSTEM_ROOT": tmp_path / "root"}) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            (live,) = guard.directory.glob("*.segment")
            make_older(live, struct.pack("=QQ", 8 << 30, 100000 << 10), 4)  # figures of 4 s and more say nothing
            wait_until(lambda: process.pid in kept(guard))
        finally:
            process.kill()
    (entry,) = shown(guard, live=lost(guard))
    assert [r["size_bytes"] for r in entry["refusals"]] == [1 << 30]


def test_what_a_process_does_later_is_saved_again_and_who_does_nothing_writes_nothing(guard, program):
    """A look at the machine every 100 ms, as the idle one's watchdog takes it, is no news of a process."""
    script = """
x = bytearray(20 << 20)
print("ready", flush=True)
input()
y = bytearray(200 << 20)
print("more", flush=True)
input()
"""
    with Held(guard, program, mib=300) as idle:
        wait_until(lambda: idle.pid in kept(guard))
        first = kept(guard)[idle.pid].stat()
        with guard.popen([PYTHON, "-S", "-c", script], stdin=subprocess.PIPE) as process:
            assert process.stdout.readline() == "ready\n"
            wait_until(lambda: process.pid in kept(guard))
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.stdout.readline() == "more\n"
            peak = lambda: max(p["peak_bytes"] for p in shown(guard, "--dir", guard.history) if p["pid"] == process.pid)  # noqa: E731
            wait_until(lambda: peak() >= 220 * MIB)
            assert shown(guard, live=lost(guard)) == []  # they go on: that is no history
            process.communicate("\n")
        seen = guard.process(idle.pid)["last_seen"]
        wait_until(lambda: guard.process(idle.pid)["last_seen"] > seen)  # its next copy was due before that of the other one
        last = kept(guard)[idle.pid].stat()
        assert (first.st_ino, first.st_mtime_ns) == (last.st_ino, last.st_mtime_ns)
    entry = next(p for p in shown(guard, live=lost(guard)) if p["pid"] == process.pid)
    assert entry["state"] in ("exited", "killed") and 220 * MIB <= entry["peak_bytes"] <= 240 * MIB


@pytest.mark.parametrize("how", ["return", "exit", "_exit", "quick_exit"])
def test_program_that_ends_by_itself_leaves_its_last_state_though_it_was_short(guard, program, how):
    done = run_until_kept_at_its_end(guard, [program("death_by"), how], env={"SPARKGUARD_LIMIT": "1G"})
    assert done.returncode == 3
    (entry,) = shown(guard, live=lost(guard))
    live = done.process()
    assert (entry["state"], entry["exit_code"]) == ("exited", 3)
    for key in live.keys() - {"watched"}:  # its watchdog may just be coming or going
        assert entry[key] == live[key], key


def test_program_that_became_another_is_replaced_and_both_are_kept(guard, program):
    done = run_until_kept_at_its_end(guard, [program("death_exec"), "twice"], 2)
    assert done.returncode == 5
    old, new = sorted(shown(guard, live=lost(guard)), key=lambda p: p["started"])
    assert (old["pid"], old["state"], new["state"], new["exit_code"]) == (new["pid"], "replaced", "exited", 5)


RUNNING = int(re.search(r"SG_STATE_RUNNING = (\d)", HEADER)[1])


def state_of(copy):
    """The report shows no copy of a living process."""
    return struct.unpack_from("=I", copy.read_bytes(), fields_of("sg_slot")["state"][0])[0]


def test_program_that_could_not_become_another_is_kept_as_running(guard, program, tmp_path):
    """While memory is short there is no regular copy that would say so later. The watchdog goes on looking."""
    meminfo = tmp_path / "root/proc/meminfo"
    meminfo.parent.mkdir(parents=True)
    meminfo.write_text("MemTotal: 8388608 kB\nMemFree: 8000000 kB\nMemAvailable: 8000000 kB\n")
    with Held(guard, program, mib=300, env={"SPARKGUARD_SYSTEM_ROOT": tmp_path / "root", "SPARKGUARD_RESERVE": "1G"}) as held:
        meminfo.with_name("new").write_text("MemTotal: 8388608 kB\nMemFree: 500000 kB\nMemAvailable: 500000 kB\n")
        meminfo.with_name("new").rename(meminfo)
        with Ledger(guard.directory) as ledger:
            seen, entry = set(), ledger.of(held.pid)
            wait_until(lambda: seen.add(ledger.get("watched_ns", entry)) or len(seen) > 2, "its watchdog has seen that")
        held.save()
        wait_until(lambda: held.pid in kept(guard) and state_of(kept(guard)[held.pid]) == RUNNING)


def test_forked_child_keeps_its_own(guard):
    script = """
import os
x = bytearray(20 << 20)
child = os.fork()
if child == 0:
    y = bytearray(40 << 20)
    os._exit(7)
os.waitpid(child, 0)
"""
    done = run_until_kept_at_its_end(guard, [PYTHON, "-S", "-c", script], 2)
    assert done.returncode == 0
    entries = {p["pid"]: p for p in shown(guard, live=lost(guard))}
    (child,) = [p for pid, p in entries.items() if pid != done.pid]
    assert (child["state"], child["exit_code"]) == ("exited", 7) and child["peak_bytes"] >= 60 * MIB
    assert entries[done.pid]["state"] == "exited" and entries[done.pid]["peak_bytes"] < 60 * MIB


def test_the_live_record_wins(guard, program):
    run_until_kept(guard, program)
    (live,) = guard.directory.glob("*.segment")
    (copy,) = guard.history.glob("*.segment")
    assert live.name == copy.name
    assert len(shown(guard)) == 1
    live.write_bytes(b"no segment")
    assert len(shown(guard, status=3)) == 1  # of the history


def test_small_program_leaves_nothing(guard, program):
    with Held(guard, program, 8) as held:
        assert len(os.listdir(f"/proc/{held.pid}/task")) == 1 + EMULATORS_THREADS
    assert not guard.history.exists()


def test_off_keeps_nothing_and_makes_no_thread(guard, program):
    with Held(guard, program, env={"SPARKGUARD_HISTORY": "off"}) as held:
        assert len(os.listdir(f"/proc/{held.pid}/task")) == 1 + EMULATORS_THREADS
    assert not guard.history.exists()
    assert events(guard, held.pid) == []


# ---- where ----


def mode_of(path):
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.mark.parametrize("umask", [0o000, 0o777])
def test_folder_is_0700_and_files_are_0600_whatever_the_umask(guard, program, umask):
    run_until_kept(guard, program, umask=umask)
    assert mode_of(guard.history) == 0o700
    assert [mode_of(f) for f in kept(guard).values()] == [0o600]


@needs_root
@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_files_in_a_group_shared_folder_are_the_groups(guard, program, tmp_path, umask):
    """Who shares the folder sees them all, as in the live directory."""
    for folder in (guard.directory, guard.history):
        folder.mkdir()
        os.chown(folder, 0, 4711)
        folder.chmod(0o2770)
    for parent in [tmp_path, *tmp_path.parents][:3]:
        parent.chmod(0o755)
    user = {"user": 4712, "group": 4713, "extra_groups": [4711]}
    run_until_kept(guard, program, umask=umask, **user)
    file = max(kept(guard).values(), key=lambda f: f.stat().st_mtime_ns)
    assert (file.stat().st_uid, file.stat().st_gid, mode_of(file)) == (4712, 4711, 0o640)
    assert {mode_of(f) for f in guard.history.iterdir()} == {0o640}


@pytest.mark.parametrize(
    "variables, place",
    [
        ({"HOME": "home", "XDG_STATE_HOME": None}, "home/.local/state/sparkguard"),
        ({"HOME": "home", "XDG_STATE_HOME": ""}, "home/.local/state/sparkguard"),
        ({"HOME": "home", "XDG_STATE_HOME": "state"}, "state/sparkguard"),
    ],
)
def test_default_is_the_state_folder_of_the_home(guard, program, tmp_path, variables, place):
    (tmp_path / "home").mkdir()
    env = {name: str(tmp_path / value) if value else value for name, value in variables.items()}
    found = lambda _: len(list((tmp_path / place).glob("*.segment"))) == 1  # noqa: E731
    run_until(guard, program, found, env={**env, "SPARKGUARD_HISTORY": None})
    assert mode_of(tmp_path / place) == 0o700
    report = guard.environment({**env, "SPARKGUARD_HISTORY": None, "LD_PRELOAD": None, "SPARKGUARD_DIR": tmp_path / "no"})
    done = subprocess.run([guard.build / "sparkguard-report", "--last"], env=report, capture_output=True, text=True)
    assert done.returncode == 0 and "dir_hold" in done.stdout


def test_home_that_is_not_there_is_not_made(guard, program, tmp_path):
    env = {"HOME": tmp_path / "no", "XDG_STATE_HOME": None, "SPARKGUARD_HISTORY": None}
    pid = run_until(guard, program, lambda pid: events(guard, pid), env=env)
    assert not (tmp_path / "no").exists()
    assert events(guard, pid) == ["history: not kept: no such directory"]


@needs_root
def test_home_of_another_user_is_left_alone(guard, program, tmp_path):
    """A process of root with HOME as it was: the user would find .local closed to him, or has a link there that leads elsewhere."""
    home, precious = tmp_path / "home", tmp_path / "precious"
    home.mkdir()
    precious.mkdir()
    os.chown(home, 4712, 4712)
    env = {"HOME": home, "XDG_STATE_HOME": None, "SPARKGUARD_HISTORY": None}
    why = ["history: not kept: a folder above it is another user's"]
    assert events(guard, run_until(guard, program, lambda pid: events(guard, pid), env=env)) == why
    assert list(home.iterdir()) == []
    (home / ".local").symlink_to(precious)
    os.lchown(home / ".local", 4712, 4712)
    os.chown(home, 0, 0)
    assert events(guard, run_until(guard, program, lambda pid: events(guard, pid), env=env)) == why
    assert list(precious.iterdir()) == []


def test_own_link_on_the_way_is_followed(guard, program, tmp_path):
    """Who keeps ~/.local on another disk has made that link."""
    (tmp_path / "home").mkdir()
    (tmp_path / "disk").mkdir()
    (tmp_path / "home/.local").symlink_to(tmp_path / "disk")
    env = {"HOME": tmp_path / "home", "XDG_STATE_HOME": None, "SPARKGUARD_HISTORY": None}
    place = tmp_path / "disk/state/sparkguard"
    run_until(guard, program, lambda _: len(list(place.glob("*.segment"))) == 1, env=env)


@needs_root
@pytest.mark.parametrize("umask", [0o000, 0o777])
def test_folders_made_in_a_home_are_closed_to_others_and_open_to_their_owner(guard, program, tmp_path, umask):
    """As an ordinary user: modes mean nothing to root."""
    home = tmp_path / "home"
    home.mkdir()
    os.chown(home, 4712, 4712)
    guard.directory.mkdir()
    os.chown(guard.directory, 4712, 4712)
    for parent in [tmp_path, *tmp_path.parents][:3]:
        parent.chmod(0o755)
    env = {"HOME": home, "XDG_STATE_HOME": None, "SPARKGUARD_HISTORY": None}
    user = {"user": 4712, "group": 4712, "extra_groups": []}
    found = lambda _: len(list((home / ".local/state/sparkguard").glob("*.segment"))) == 1  # noqa: E731
    run_until(guard, program, found, env=env, umask=umask, **user)
    assert {str(f.relative_to(home)): mode_of(f) for f in home.rglob("*") if f.is_dir()} == {
        ".local": 0o700,
        ".local/state": 0o700,
        ".local/state/sparkguard": 0o700,
    }


def test_without_a_home_the_record_says_so(guard, program):
    done = guard.run([program("dir_hold")], env={"HOME": None, "XDG_STATE_HOME": None, "SPARKGUARD_HISTORY": None})
    assert events(guard, done.pid) == ["history: not kept: HOME is not set"]


# ---- what stands in the way ------------------------------------------------------------------------------------------


def link(guard, target):
    target.mkdir()
    guard.history.symlink_to(target)


def foreign(guard, target):
    guard.history.mkdir()
    os.chown(guard.history, 4711, 4711)


def open_to_all(guard, target):
    guard.history.mkdir()
    guard.history.chmod(0o777)


OWNED = "it must belong to you or root and be closed to others"
OBSTACLES = {
    "link": (link, "not a directory"),
    "file": (lambda guard, _: guard.history.write_text("mine"), "not a directory"),
    "foreign": (foreign, OWNED),
    "open": (open_to_all, OWNED),
    "below nothing": (lambda guard, _: setattr(guard, "history", guard.history / "a" / "b"), "no such directory"),
}


@pytest.mark.parametrize("kind", OBSTACLES)
def test_what_is_in_the_way_is_not_touched_and_one_event_says_so(guard, program, tmp_path, kind):
    if kind == "foreign" and os.geteuid() != 0:
        pytest.skip("needs root")
    put, reason = OBSTACLES[kind]
    put(guard, tmp_path / "elsewhere")
    pid = run_until(guard, program, lambda pid: events(guard, pid))
    assert events(guard, pid) == [f"history: not kept: {reason}"]
    left = [f for f in tmp_path.rglob("*") if f.suffix in (".segment", ".new") and guard.directory not in f.parents]
    assert left == []


def test_links_where_a_file_belongs_are_not_followed(guard, program, tmp_path):
    """At the name that the library is about to use. A process of 8 MiB saves nothing: the links come before its first copy."""
    victim = tmp_path / "victim"
    victim.write_text("mine")
    guard.history.mkdir(mode=0o700)
    with Held(guard, program, threads=1, first_mib=8) as held:
        (live,) = guard.directory.glob("*.segment")
        for name in (live.name, live.name + ".new"):
            (guard.history / name).symlink_to(victim)
        held.grow()
        held.save()
        wait_until(lambda: (guard.history / live.name).is_file() and not (guard.history / live.name).is_symlink())
    assert victim.read_text() == "mine"
    assert sorted(f.name for f in guard.history.iterdir()) == [live.name]
    assert shown(guard, "--dir", guard.history)[0]["pid"] == held.pid


MOUNTS = {
    "full": ('mount -t tmpfs -o size=64k,mode=700 none "$0" && ! cat /dev/zero 2>/dev/null >"$0/filler"', "no space left"),
    "no inodes": ('mount -t tmpfs -o size=64k,mode=700,nr_inodes=1 none "$0"', "no space left"),
    "read-only": ('mount -t tmpfs -o ro,mode=700 none "$0"', "read-only file system"),
}


@pytest.mark.parametrize("kind", MOUNTS)
def test_full_or_read_only_disk_costs_one_event_and_nothing_is_left(guard, own_mounts, program, kind):
    mount, reason = MOUNTS[kind]
    guard.history.mkdir(mode=0o700)
    script = f'{mount} && LD_PRELOAD={guard.library} "$@"; status=$?; ls -A "$0" | grep -v filler; exit $status'
    before = [*own_mounts, "sh", "-c", script, guard.history]

    def noted():
        return [e["what"] for process in guard.processes() for e in process["events"]]

    run_until(guard, program, lambda _: noted(), before=before, env={"LD_PRELOAD": None})
    assert noted() == [f"history: not kept: {reason}"]


def test_disk_that_fills_up_keeps_the_last_copy(guard, own_mounts):
    guard.history.mkdir(mode=0o700)
    script = """
import os, sys, time
x = bytearray(20 << 20)
def copies(): return [f for f in os.listdir(sys.argv[1]) if f.endswith(".segment")]
def have_a_copy_made():  # as before any exec
    try: os.execv("/nowhere/nothing", ["nothing"])
    except OSError: pass
while not copies(): time.sleep(.02)  # poll: the first copy
try:
    with open(sys.argv[1] + "/filler", "wb", 0) as filler:
        while True: filler.write(bytes(4096))
except OSError: pass
y = bytearray(100 << 20)
while not open(sys.argv[2], "rb").read().count(b"history: not kept: no space left"): have_a_copy_made()
while len(there := sorted(os.listdir(sys.argv[1]))) != 2: time.sleep(.02)  # poll: the end of a copy that is being made
print(*there, flush=True)
os.kill(os.getpid(), 9)
"""
    shell = (
        f'mount -t tmpfs -o size=128k,mode=700 none "$0"; {{ LD_PRELOAD={guard.library} '
        f'{PYTHON} -S -c "$1" "$0" "$2"; }} 2>/dev/null; cp "$0"/*.segment "$3"'
    )
    (guard.directory.parent / "copy").mkdir()
    live = guard.directory.parent / "live.segment"
    script = script.replace("sys.argv[2]", "live()").replace(
        "def copies", f"def live(): return '{guard.directory}/' + copies()[0]\ndef copies"
    )
    done = guard.run(
        [*own_mounts, "sh", "-c", shell, guard.history, script, live, guard.directory.parent / "copy"],
        env={"LD_PRELOAD": None},
    )
    assert done.stdout.split()[1:] == ["filler"] and done.stdout.split()[0].endswith(".segment"), done.stdout
    (entry,) = shown(guard, "--dir", guard.directory.parent / "copy")
    assert entry["state"] == "killed" and 20 * MIB <= entry["peak_bytes"] < 100 * MIB


def test_limit_on_file_sizes_ends_nobody(guard, program):
    def limit():  # the live segment has grown by then
        resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))

    run_until_kept(guard, program, preexec_fn=limit)  # as a control
    shutil.rmtree(guard.history)
    script = """
import glob, os, resource
x = bytearray(20 << 20)
resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))
(live,) = glob.glob(f"{os.environ['SPARKGUARD_DIR']}/{os.getpid()}-*.segment")
while b"history: not" + b" kept" not in open(live, "rb").read():  # not the words of this command
    try: os.execv("/nowhere/nothing", ["nothing"])  # before any exec a copy is made
    except OSError: pass
"""
    done = guard.run([PYTHON, "-S", "-c", script])
    assert (done.returncode, done.stderr, kept(guard)) == (0, "", {})
    assert len(events(guard, done.pid)) == 1


# ---- 64 MiB ----------------------------------------------------------------------------------------------------------


def fill(guard):
    """80 MiB of other processes, half of them time lines, the first the youngest, and what is none of ours."""
    guard.history.mkdir(mode=0o700)
    (guard.history / "sweep-0123456789abcdef").write_bytes(bytes(100))
    old = [guard.history / f"{n}-{n:016x}.segment" for n in range(1, 41)]
    for age, file in enumerate(old):
        for half in (file, file.with_suffix(".timeline")):
            half.write_bytes(os.urandom(MIB))
            os.utime(half, (time.time() - 1000 - age,) * 2)
    return old


def left(guard):
    return sorted(f.name for f in guard.history.glob("*.segment"))


def test_the_oldest_goes_before_there_are_64_mib_and_nothing_else_does(guard, program):
    old = fill(guard)
    pid = run_until(guard, program, lambda pid: len(left(guard)) <= 30)
    assert sorted(f.name for f in [*old[:29], kept(guard)[pid]]) == left(guard)
    assert sorted(f.with_suffix(".timeline") for f in old[:29]) == sorted(guard.history.glob("*.timeline"))
    assert (guard.history / "sweep-0123456789abcdef").exists()


def test_short_processes_alone_tidy_up_too(guard, program):
    old = fill(guard)
    for _ in range(400):  # one in eight does
        guard.run([program("dir_hold")])
        if not old[-1].exists():
            break
    assert [f.exists() for f in old] == [True] * 29 + [False] * 11


# ---- nobody waits ----------------------------------------------------------------------------------------------------


def test_program_sees_its_own_descriptors_and_threads_only(guard):
    """The helper has none of them: what the program closes is closed, and the numbers it gets are the lowest."""
    script = """
import os, time
task = "/proc/self/task"
own = os.listdir(task)
x = bytearray(20 << 20)
first, second = os.pipe()
while len(os.listdir(task)) < len(own) + 1: time.sleep(.01)  # poll: the helper
(helper,) = set(os.listdir(task)) - set(own)
while os.listdir(f"{task}/{helper}/fd"): time.sleep(.01)  # poll: it has closed them
print(len(os.listdir(f"{task}/{helper}/fd")))
os.close(second)
print(os.read(first, 1), os.open("/", 0) == second)
"""
    done = guard.run([PYTHON, "-S", "-c", script])
    assert (done.stdout, done.stderr) == ("0\nb'' True\n", "")


def test_child_of_a_fork_has_one_thread_and_its_parent_is_kept_on(guard):
    script = """
import os, sys, time
own = len(os.listdir("/proc/self/task"))
x = bytearray(20 << 20)
def await_helper():
    while len(os.listdir("/proc/self/task")) < own + 1: time.sleep(.01)  # poll: the helper
def copies():
    return [f for f in os.listdir(sys.argv[1]) if f.startswith(f"{os.getpid()}-") and f.endswith(".segment")]
await_helper()
child = os.fork()
if child == 0: os._exit(len(os.listdir("/proc/self/task")))
status = os.waitpid(child, 0)[1] >> 8
await_helper()
for file in copies(): os.unlink(f"{sys.argv[1]}/{file}")  # of before the fork
while not copies():
    try: os.execv("/nowhere/nothing", ["nothing"])  # before any exec a copy is made
    except OSError: pass
print(status)
"""
    guard.history.mkdir(mode=0o700)
    done = guard.run([PYTHON, "-S", "-c", script, guard.history])
    assert (done.returncode, done.stdout) == (0, f"{1 + EMULATORS_THREADS}\n")
    assert done.pid in kept(guard)


def test_process_ends_with_its_last_thread(guard, program):
    assert run_until_kept_at_its_end(guard, [program("death_last_thread")], timeout=60).returncode == 0


def test_quiet_process_is_seen_each_second(guard, program):
    """Without a watchdog, whose snapshots would show it too; and when it was killed, the report says when it was last seen."""
    with Held(guard, program, env={"SPARKGUARD_WATCHDOG": "off"}) as held:
        seen = [guard.process(held.pid)["last_seen"]]
        for _ in range(2):
            wait_until(lambda: guard.process(held.pid)["last_seen"] > seen[-1])
            seen.append(guard.process(held.pid)["last_seen"])
        held.process.kill()
        held.process.wait()
    process = guard.process(held.pid)
    assert process["state"] == "killed" and process["ended"] is None and process["last_seen"] >= seen[-1]
