"""The system calls by which SPARKGUARD_HISTORY is written: their order, and what becomes of a program where one fails or never answers."""

import struct
from concurrent.futures import ThreadPoolExecutor

import pytest
from lib.history import Held, kept, shown
from lib.target import MACHINE, PYTHON
from lib.waiting import wait_until


@pytest.fixture
def program(build):
    return lambda name: build / "tests/programs" / name


NAMES = ("openat", "pwrite", "mkdirat", "fdatasync", "renameat2", "fsync", "close_range", "unlinkat")
NUMBERS = {"x86_64": (257, 18, 258, 75, 316, 74, 436, 263), "aarch64": (56, 68, 34, 83, 276, 82, 436, 35)}
SYSCALL = dict(zip(NAMES, NUMBERS[MACHINE]))


@pytest.fixture
def faulty(guard):
    guard.library = guard.build / "fault" / "libsparkguard.so"
    guard.log = guard.directory.parent / "log"
    return guard


def test_copy_is_on_the_disk_before_it_has_its_name_and_then_the_name(faulty, program):
    with Held(faulty, program, env={"SG_FAULT_LOG": faulty.log}) as held:
        wait_until(lambda: held.pid in kept(faulty))
    content = faulty.log.read_bytes()
    (calls,) = struct.unpack_from("=Q", content)
    name_of = {number: name for name, number in SYSCALL.items()}
    made = [name_of.get(n) for n in struct.unpack_from(f"={min(calls, 4088)}H", content, 16)]
    made = [name for name in made[made.index("close_range") :] if name in ("pwrite", "fdatasync", "renameat2", "fsync")]
    assert made[:4] == ["pwrite", "fdatasync", "renameat2", "fsync"]


@pytest.mark.parametrize("call", ["openat", "pwrite", "mkdirat", "fdatasync", "renameat2", "close_range"])
def test_failed_system_call_hurts_nobody_and_leaves_no_half_copy(faulty, program, call):
    for count in range(1, 9):
        env = {"SG_FAULT": f"{SYSCALL[call]}@{count}", "SG_FAULT_LOG": faulty.log}
        done = faulty.run([program("dir_hold")], env=env)
        assert (done.returncode, done.stdout) == (0, "ready\n"), count
    if faulty.history.exists():
        shown(faulty, "--dir", faulty.history, "--all")
        assert not list(faulty.history.glob("*.new"))


HUNG = """
import os, sys, time
x = bytearray(20 << 20)
history = os.environ["SPARKGUARD_HISTORY"]
while not (os.path.exists(history) and os.listdir(history)): time.sleep(.01)  # poll: the copy has been begun
for _ in range(3):
    child = os.fork()
    if child == 0: os._exit(7)
    assert os.waitpid(child, 0)[1] >> 8 == 7
y = bytearray(20 << 20)
print("done", flush=True)
"""


ENDS = {"": 0, "os._exit(0)": 0, "os.execv(sys.executable, ['python', '-S', '-c', ''])": 0, "os.kill(os.getpid(), 9)": -9}


def test_file_system_that_never_answers_holds_up_neither_fork_nor_the_end(faulty, tmp_path):
    """Four programs side by side: each waits a second for its first copy."""

    def one(number, end):
        scratch = tmp_path / str(number)
        scratch.mkdir()
        guard = type(faulty)(faulty.build, scratch)
        guard.library = faulty.library
        env = {"SG_FAULT": f"{SYSCALL['fdatasync']}@1:hang", "SG_FAULT_LOG": scratch / "log"}
        # From 3.12 on, Python warns of a fork beside threads, and one of the library's hangs here.
        done = guard.run([PYTHON, "-W", "ignore::DeprecationWarning", "-S", "-c", HUNG + end], env=env)
        return done.returncode, done.stdout, done.stderr, struct.unpack_from("=QQ", (scratch / "log").read_bytes())[1]

    with ThreadPoolExecutor(len(ENDS)) as pool:
        ended = dict(zip(ENDS, pool.map(one, range(len(ENDS)), ENDS)))
    assert ended == {end: (status, "done\n", "", 1) for end, status in ENDS.items()}


def test_last_copy_that_is_never_written_does_not_hold_up_the_end(faulty, program):
    """The second: the first puts the live record in place."""
    env = {"SG_FAULT": f"{SYSCALL['renameat2']}@2:hang", "SG_FAULT_LOG": faulty.log}
    for _ in range(3):  # as others of its kind have it, also where this one was too late to begin
        done = faulty.run([program("dir_hold")], env=env)
        assert (done.returncode, done.stdout, done.stderr) == (0, "ready\n", "")
