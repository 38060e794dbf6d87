"""All guarded processes of a machine decide as one: over a fake /proc that stands still, what one of them has been
promised is gone for the others, until it ends, is replaced or gives it back.

Nobody touches what he takes, so promises stay as they are. "largest" is what admit_take could get.
"""

import contextlib
import ctypes
import errno
import os
import random
import signal
import subprocess
import sys
import time

import pytest
from lib.ledger import BEGIN, CHOOSING, EMPTY, ENTRY, ENTRY_BYTES, FILE_BYTES, FIRST, LEDGER, LIVE, ROOM, SHARING, VERSION, hash_of
from lib.machine import GIB, LEFT, MIB, NEAR, PLAYER, group, in_jail, needs_root, take
from lib.target import CC, CHARGED_AHEAD_BYTES, IS_SLOW, MACHINE, PYTHON, THREADLESS

PATIENCE = 3  # seconds that anybody may be held up by somebody else
AT_ONCE = 2.5 if IS_SLOW else 1  # seconds


# What comes before a text whose children tell their parent that they have said what they had to say.
CHILDREN = """
told = os.pipe()
def tell():
    os.write(told[1], b".")
def wait_for(children):
    os.close(told[1])  # nothing is read when all have ended
    for _ in range(children):
        os.read(told[0], 1)
"""


# ---- promises ----


def test_promises_of_all_add_up(place):
    place.holder("malloc 3G")
    place.assert_left(LEFT - 3 * GIB)
    place.holder("mmap 2G malloc 500M")
    place.assert_left(LEFT - 5 * GIB - 500 * MIB)
    assert place.take("malloc 3G") == ["ENOMEM"]


def test_those_who_share_say_so(place):
    tenant = place.holder("malloc 64M")
    assert place.flags(tenant.pid) & SHARING
    assert place.events(tenant.pid) == []
    entry = place.ledger.of(tenant.pid)
    assert 64 * MIB <= place.ledger.get("promised_bytes", entry) <= 64 * MIB + NEAR
    assert place.ledger.get("job_hash", entry) == hash_of("job")


@pytest.mark.parametrize("end", ["returns", "killed", "stopped"])
def test_what_a_process_was_promised_comes_back_when_it_is_gone(place, end):
    place.holder("malloc 1G")
    tenant = place.holder("malloc 3G")
    if end == "returns":
        tenant.end()
    elif end == "killed":
        tenant.kill()
    else:
        os.kill(tenant.pid, signal.SIGSTOP)
    place.assert_left(LEFT - GIB - (3 * GIB if end == "stopped" else 0))


def test_what_is_given_back_is_there_for_others(place):
    tenant = place.holder("malloc 3G mmap 2G wait free 0 wait dontneed 1")
    place.assert_left(LEFT - 5 * GIB)
    tenant.go().ready()
    place.assert_left(LEFT - 2 * GIB)
    tenant.go().ready()
    place.assert_left(LEFT)


def assert_promised(place, program, promised, most):
    """Of a program that takes what it is told behind what it does: `most` is refused, what is left beside `promised` is not."""
    name, *arguments = program.split()
    command, env = place.guard.build / "tests/programs" / name, {**place.env, "SPARKGUARD_WATCHDOG": "off"}
    for more, answer in ((most, "ENOMEM"), (LEFT - promised - NEAR, "ok")):
        done = place.guard.run([command, *arguments, more], env=env)
        if done.returncode == 77:
            pytest.skip("no seccomp here")
        assert (done.returncode, done.stdout) == (0, f"{answer}\n"), done.stderr


def test_block_that_goes_while_another_thread_looks_takes_no_other_promise_with_it(place):
    """At the instant where free looks how much of it is there. Of 8 GiB 64 MiB are promised besides."""
    assert_promised(place, "heap_look free", 64 * MIB, LEFT - 32 * MIB)


def test_block_that_moves_while_another_thread_looks_stays_promised(place):
    """At the instant where it is at no address that the guard could look at. Of 8 GiB 64 MiB are promised besides."""
    assert_promised(place, "heap_look realloc", (64 + 528) * MIB, LEFT - (64 + 256) * MIB)


@pytest.mark.parametrize("instant", ["unmap", "beside", "munmap"])
def test_block_that_goes_while_another_thread_looks_takes_no_small_promises_with_it(place, instant):
    """Neither what is there of it, nor its size, which the look has found. 800 of 1000 KiB."""
    promised = 64 * MIB + 800 * (1004 << 10)
    assert_promised(place, f"heap_look {instant}", promised, LEFT - promised + 400 * MIB)


def test_mapping_that_moves_while_another_thread_looks_stays_promised(place):
    """All of 1 GiB, at each look; and of the heap what is small."""
    command, env = place.guard.build / "tests/programs/map_moves", {**place.env, "SPARKGUARD_WATCHDOG": "off"}
    done = place.guard.run([command, 2], env=env)
    assert done.returncode == 0, done.stderr
    assert GIB <= int(done.stdout) * MIB <= GIB + NEAR


def test_mapping_that_munmap_does_not_take_stays_promised(place):
    """As at the end of the mappings that a process may have, where one is split."""
    assert_promised(place, "map_stays", 512 * MIB, LEFT - 300 * MIB)


GONE = {
    "partly given back": """
block = malloc(256 * MIB)
ctypes.memset(block, 1, 240 * MIB)
malloc(1 << 45)  # looks at what is there
libc.madvise(block + 4096 & -4096, 128 * MIB, 4)
libc.free(block)
""",
    "given back and resized": """
block = malloc(256 * MIB)
ctypes.memset(block, 1, 256 * MIB)
malloc(1 << 45)
libc.madvise(block + 4096 & -4096, (256 << 20) - 8192, 4)
libc.free(libc.realloc(block, 260 * MIB))
""",
    "inherited block": """
malloc(1 << 45)
libc.free(inherited)
""",
    "inherited mapping": """
malloc(1 << 45)
libc.munmap(inherited_mapping, 256 * MIB)
""",
    "inherited block, resized": """
malloc(1 << 45)
libc.free(libc.realloc(inherited, 260 * MIB))
""",
    "inherited mapping that grew": """
libc.munmap(libc.mremap(inherited_mapping, 256 * MIB, 300 * MIB, 1), 300 * MIB)
""",
}


@pytest.mark.parametrize("what", GONE)
def test_what_goes_takes_no_more_than_its_own_promise_with_it(place, what):
    """What of its own stays promised until the next look is small."""
    text = f"""
libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.munmap.argtypes = libc.realloc.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]
libc.free.argtypes, libc.realloc.restype, libc.mremap.restype = [ctypes.c_void_p], ctypes.c_void_p, ctypes.c_void_p
inherited = malloc(256 * MIB)
inherited_mapping = libc.mmap(None, 256 * MIB, 3, 0x22, -1, 0)
if os.fork() == 0:
    malloc(GIB)
    {GONE[what].strip().replace(chr(10), chr(10) + "    ")}
    ready()
    os._exit(0)
os.wait()
"""
    tenant = place.player(text, THREADLESS)
    tenant.ready()
    (largest,) = place.take("largest")
    assert LEFT - GIB - 512 * MIB - 32 * MIB <= largest <= LEFT - GIB - 512 * MIB


def test_memory_that_was_only_read_stays_promised(place):
    """Of untouched memory reading brings the kernel's one page of zeros, everywhere."""
    text = """
import errno, fcntl
try:
    fcntl.ioctl(os.open("/proc/self/pagemap", os.O_RDONLY), 0xC0606610, bytes(96))  # PAGEMAP_SCAN
except OSError as error:
    say(errno.errorcode[error.errno])
for address in malloc(256 * MIB) + 4096 & -4096, libc.mmap(None, 256 * MIB, 3, 0x22, -1, 0):
    assert not any((ctypes.c_char * (255 * MIB)).from_address(address)[::4096].strip(bytes(1)))
malloc(1 << 45)  # looks at what is there
ready()
"""
    tenant = place.player(text, {"SPARKGUARD_WATCHDOG": "off"})
    scan, *answers = tenant.ready()
    if scan != "EINVAL":
        pytest.skip("needs PAGEMAP_SCAN (Linux 6.7)")
    assert answers == ["ok", "ENOMEM"]
    place.assert_left(LEFT - 512 * MIB)


def test_what_an_inherited_mapping_gains_is_its_owners_promise(place):
    text = """
libc.mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]
libc.mremap.restype = ctypes.c_void_p
address = libc.mmap(None, 256 * MIB, 3, 0x22, -1, 0)
if os.fork() == 0:
    say("ok" if libc.mremap(address, 256 * MIB, 256 * MIB + GIB, 1) != ctypes.c_void_p(-1).value else "ENOMEM")
    malloc(1 << 45)  # looks at what is there
    ready()
    os._exit(0)
os.wait()
"""
    tenant = place.player(text, THREADLESS)
    assert tenant.ready() == ["ok", "ENOMEM"]
    place.assert_left(LEFT - GIB - 256 * MIB)


def test_others_are_told_of_a_promise_by_the_kernel_if_its_owner_is_quiet(place):
    """Touched, and not looked at again by its owner: once counted, not twice."""
    tenant = place.holder("malloc 256M wait touch 0")
    place.assert_left(LEFT - 256 * MIB)
    tenant.go().ready()
    place.assert_left(LEFT)


def test_memory_that_was_never_promised_takes_nothing_from_a_promise(place):
    """A quiet owner's pages come from where nobody was asked: none of its promise is there."""
    tenant = place.holder("malloc 256M sparse 256M wait touch 1")
    place.assert_left(LEFT - 256 * MIB)
    tenant.go().ready()
    place.assert_left(LEFT - 256 * MIB)


def test_small_blocks_paid_from_credit_take_nothing_from_a_promise(place):
    tenant = place.holder("malloc 256M wait small 4K 600K")
    tenant.go().ready()
    place.assert_left(LEFT - 256 * MIB)


def test_nor_do_those_of_many_threads(place):
    """Each has its own credit."""
    text = """
import threading
steps = [threading.Barrier(65) for _ in range(3)]
def work():
    ctypes.memset(libc.malloc(64), 1, 64)
    steps[0].wait()
    steps[1].wait()
    for _ in range(50):
        ctypes.memset(libc.malloc(4096), 1, 4096)
    steps[2].wait()
    time.sleep(60)
for _ in range(64):
    threading.Thread(target=work, daemon=True).start()
steps[0].wait()
malloc(256 * MIB)
malloc(1 << 45)  # looks at what is there, and at the credit of all
ready()
steps[1].wait()
steps[2].wait()
ready()
os._exit(0)
"""
    tenant = place.player(text, {"SPARKGUARD_WATCHDOG": "off"})
    tenant.ready()
    tenant.go().ready()
    (largest,) = place.take("largest")
    assert largest <= LEFT - 256 * MIB


def test_nor_do_the_stacks_of_many_threads(place):
    """As they grow: 48 MiB, which nobody promised."""
    tenant = place.tenant([place.guard.build / "tests/programs/thread_stacks"])
    tenant.ready()
    tenant.go().ready()
    place.assert_left(LEFT - 200 * MIB)


HEIR = """
import mmap
address = {take}
ready()
for _ in range({children}):
    if os.fork() == 0:
        malloc(2 * MIB)
        ready()
        os._exit(0)
os.read(0, 1)
os._exit(0)
"""
TAKES = {
    "malloc": "malloc(3 * GIB)",
    "mapped": "libc.mmap(None, 3 * GIB, 3, 0x22, -1, 0)",
    "shared": "mmap.mmap(-1, 3 * GIB)",
}


def test_child_that_gives_back_what_it_inherited_takes_no_more_than_the_limit(place):
    """Of 140 MiB the parent has 60; six children give their 60 back and ask for 60 new ones each: one gets them."""
    text = """
address = libc.mmap(None, 60 * MIB, 3, 0x22, -1, 0)
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
for _ in range(6):
    if os.fork() == 0:
        libc.munmap(address, 60 * MIB)
        malloc(60 * MIB)
        tell()
        time.sleep(60)
wait_for(6)
ready()
"""
    tenant = place.player(CHILDREN + text, {"SPARKGUARD_LIMIT": "140M"})
    assert sorted(tenant.ready()) == ["ENOMEM"] * 5 + ["ok"]
    tenant.kill()


GROWN = {
    "given back and touched again": ("""
block = libc.mmap(None, 256 * MIB, 3, 0x22, -1, 0)
ctypes.memset(block, 1, 256 * MIB)
libc.madvise(block, 256 * MIB, 4)
""", "ctypes.memset(block, 1, 256 * MIB)"),
    "freed and still there": ("""
libc.mallopt(-3, 1 << 30)  # nothing is mapped by itself,
libc.mallopt(-1, 0x7fffffff)  # and nothing goes back to the kernel
blocks = [libc.malloc(16 * MIB) for _ in range(16)]
""", """
for block in blocks:
    ctypes.memset(block, 1, 16 * MIB)
for block in blocks:
    libc.free(block)
"""),
    "copies of a file's pages": ("""
with open("big", "wb") as file:
    file.truncate(256 * MIB)
block = libc.mmap(None, 256 * MIB, 3, 2, os.open("big", os.O_RDONLY), 0)
""", "ctypes.memset(block, 1, 256 * MIB)"),
}


@pytest.mark.parametrize("what", GROWN)
def test_growth_that_nobody_promised_takes_nothing_from_a_promise(place, tmp_path, what):
    first, then = GROWN[what]
    text = f"""
libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.free.argtypes = [ctypes.c_void_p]
{first}
malloc(3 * GIB)
time.sleep(0.2)
malloc(2 * MIB)  # looks at what is there
ready()
{then}
ready()
os._exit(0)
"""
    tenant = place.player(text, {"SPARKGUARD_WATCHDOG": "off"}, cwd=tmp_path)
    tenant.ready()
    tenant.go().ready()
    assert place.take("largest")[0] <= LEFT - 3 * GIB - 2 * MIB


@pytest.mark.parametrize("take", TAKES)
def test_promise_stays_with_the_children_when_the_parent_is_gone(place, take):
    """As daemon() leaves it; once, however many children there are, and not beside the parent's."""
    tenant = place.player(HEIR.format(take=TAKES[take], children=3))
    tenant.ready()
    place.assert_left(LEFT - 3 * GIB, above=MIB)
    tenant.go()
    for _ in range(3):
        while tenant.process.stdout.readline() != "ready\n":
            pass
    (largest,) = place.take("largest")
    assert LEFT - 3 * GIB - 6 * MIB - 4 * NEAR <= largest <= LEFT - 3 * GIB
    os.kill(tenant.pid, signal.SIGKILL)
    tenant.process.wait()
    (largest,) = place.take("largest")
    assert LEFT - 3 * GIB - 6 * MIB - 4 * NEAR <= largest <= LEFT - 3 * GIB
    tenant.kill()  # all of them
    place.assert_left(LEFT)


def test_child_has_no_promise_of_what_was_not_forked_when_the_parent_is_gone(place):
    text = """
libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
if libc.madvise(libc.mmap(None, 3 * GIB, 3, 0x22, -1, 0), 3 * GIB, 10) == 0 and os.fork() == 0:
    malloc(2 * MIB)
    ready()
    os._exit(0)
os._exit(0)
"""
    tenant = place.player(text, {"SPARKGUARD_WATCHDOG": "off"})
    assert tenant.ready() == ["ok"]
    tenant.process.wait()
    place.assert_left(LEFT - 2 * MIB)


def test_seats_are_taken_over_and_nothing_of_their_last_owner_is_left(place):
    for _ in range(20):
        place.holder("malloc 1G").kill()
    tenant = place.holder("malloc 1M")
    assert place.ledger.get("entry_used") <= 21
    place.assert_left(LEFT - MIB)
    tenant.end()
    assert place.ledger.taken() == [] and place.ledger.gone() == 0


def test_chroot_takes_nobody_out_of_the_machine(place, tmp_path):
    if os.geteuid() != 0:
        pytest.skip("needs root")
    (tmp_path / "empty").mkdir()
    text = f"malloc(3 * GIB)\nos.chroot({str(tmp_path / 'empty')!r})\nmalloc(GIB << 8)\nready()"
    tenant = place.player(text)
    assert tenant.ready() == ["ok", "ENOMEM"]
    place.assert_left(LEFT - 3 * GIB, above=MIB)
    tenant.end()


# ---- exec and its like ----


def test_program_that_was_replaced_is_promised_nothing(place):
    text = "malloc(3 * GIB)\nready()\nos.execv(sys.argv[1], [sys.argv[1], 'malloc', '1G', 'wait'])"
    tenant = place.tenant([sys.executable, "-S", "-c", PLAYER + text, place.admit_take])
    assert tenant.ready() == ["ok"]
    place.assert_left(LEFT - 3 * GIB, above=MIB)
    assert tenant.go().ready() == ["ok"]
    place.assert_left(LEFT - GIB)
    assert len(place.ledger.taken()) == 1
    tenant.end()


def test_program_that_could_not_be_replaced_keeps_what_it_was_promised(place):
    text = """
malloc(3 * GIB)
for _ in range(100):
    try:
        os.execv("/nonexistent", ["nonexistent"])
    except OSError:
        pass
ready()
malloc(GIB)
ready()
"""
    tenant = place.player(text)
    assert tenant.ready() == ["ok"]
    place.assert_left(LEFT - 3 * GIB, above=MIB)
    assert tenant.go().ready() == ["ok"]
    place.assert_left(LEFT - 4 * GIB, above=MIB)
    tenant.end()


@pytest.mark.parametrize("size", ["3 * GIB", "2 * MIB"], ids=["large", "small"])
def test_process_that_could_not_become_a_daemon_keeps_its_seat_and_its_record(place, tmp_path, size):
    """It had left both. The small one's record was gone: what ends by itself and held little leaves nothing."""
    library, source = tmp_path / "libdaemon.so", tmp_path / "daemon.c"
    source.write_text("#include <errno.h>\nint daemon(int a, int b) { errno = EAGAIN; return a + b > 9 ? 0 : -1; }\n")
    subprocess.run([CC, "-shared", "-fPIC", "-o", library, source], check=True)
    text = f"malloc({size})\nsay(libc.daemon(1, 1) == -1 and ctypes.get_errno() == {errno.EAGAIN})\nready()"
    tenant = place.player(text + "\nmalloc(GIB)\nready()", {"LD_PRELOAD": f"{place.guard.library}:{library}"})
    assert tenant.ready() == ["ok", "True"]
    held = 3 * GIB if "3" in size else 2 * MIB
    place.assert_left(LEFT - held, above=MIB)
    entry = place.ledger.of(tenant.pid)
    assert tenant.go().ready() == ["ok"]
    assert place.ledger.of(tenant.pid) == entry
    place.assert_left(LEFT - held - GIB, above=MIB)
    assert place.guard.process(tenant.pid)["state"] == "running"
    tenant.end()
    place.assert_left(LEFT)


def test_unguarded_program_leaves_the_seat_of_the_one_it_replaced(place):
    tenant = place.player("malloc(3 * GIB)\nos.execve('/bin/sh', ['sh', '-c', 'echo ready; read x'], {})")
    assert tenant.ready() == ["ok"]
    place.assert_left(LEFT)
    tenant.end()


def test_child_of_a_raw_clone_leaves_its_parents_seat_alone(place):
    tenant = place.tenant([place.guard.build / "tests/programs/fork_raw_clone"])
    tenant.process.stdout.readline()
    entry = place.ledger.of(tenant.pid)
    assert 32 * MIB <= place.ledger.get("granted_bytes", entry) <= 34 * MIB
    assert 31 * MIB <= place.ledger.get("promised_bytes", entry) <= 34 * MIB
    assert len(place.ledger.taken()) == 1


# ---- LIMIT ----

# How a parent that holds 50 MiB starts a child that waits with 50 more.
STARTS = {
    "fork": """
if os.fork() == 0:
    malloc(50 * MIB)
    ready()
    os._exit(0)
""",
    "fork_exec": "if os.fork() == 0:\n    os.execv(sys.argv[1], CHILD)",
    "posix_spawn": "os.posix_spawn(sys.argv[1], CHILD, os.environ)",
    "subprocess": "subprocess.Popen(CHILD)",  # by vfork
    "shell": "subprocess.Popen(['/bin/sh', '-c', ' '.join(CHILD) + '; exit $?'])",
    "raw_clone": """
if libc.syscall(56 if os.uname().machine == "x86_64" else 220, 17, 0, 0, 0, 0) == 0:
    malloc(50 * MIB)
    ready()
    os._exit(0)
""",
}


def peak_of(place, job="job"):
    (peak,) = [entry["peak_bytes"] for entry in place.guard.report()["jobs"] if entry["job"] == job]
    return peak


def test_peak_of_a_job_is_what_its_processes_held_together(place):
    first = place.holder("malloc 100M")
    place.holder("malloc 900M", {"SPARKGUARD_JOB": "other"})
    second = place.holder("malloc 200M free 0 mmap 250M free 1")
    assert first.end() == [] and second.end() == []
    assert place.take("malloc 120M") == ["ok"]
    assert 350 * MIB <= peak_of(place) <= 350 * MIB + 2 * NEAR


def test_peak_of_a_job_is_not_of_a_program_and_the_one_it_becomes(guard, build):
    """By exec: they never were there together."""
    script = 'import os; block = bytearray(100 << 20); os.execv(os.environ["HOLD"], ["dir_hold", "30"])'
    hold = build / "tests/programs/dir_hold"
    done = guard.run([PYTHON, "-S", "-c", script], env={"HOLD": hold, "SPARKGUARD_JOB": "job"})
    assert done.returncode == 0, done.stderr
    (job,) = guard.report()["jobs"]
    assert {process["state"] for process in job["processes"]} == {"replaced", "exited"}
    assert 100 * MIB <= job["peak_bytes"] <= 100 * MIB + 20 * MIB


def test_peak_of_a_job_is_of_what_came_in_small_pieces_too(place):
    first, second = place.holder("small 50000 60M"), place.holder("small 50000 80M")
    assert first.end() == [] and second.end() == []
    assert 140 * MIB <= peak_of(place) <= 140 * MIB + 2 * NEAR


def test_what_ran_one_after_the_other_was_not_held_together(place):
    for commands in ("malloc 100M", "malloc 80M", "small 50000 90M"):
        place.take(commands)
    assert 100 * MIB <= peak_of(place) <= 100 * MIB + NEAR


@pytest.mark.parametrize("processes", [2, 4, 8])
def test_peak_of_a_job_is_of_processes_that_grow_at_one_moment(place, processes):
    """As the program itself counts. Credit that each thread holds in advance may count, too."""
    command = [place.guard.build / "tests/programs/job_rounds", processes, 40, 256 // processes]
    done = place.guard.run(command, env={**place.env, "SPARKGUARD_RESERVE": "1G"})
    assert done.returncode == 0, done.stderr
    most = int(done.stdout)
    assert most <= peak_of(place) <= most + (processes + 1) * MIB + NEAR


@pytest.mark.parametrize("successor", ["begins then", "is there already"])
@pytest.mark.parametrize("attempt", range(3))
def test_peak_of_a_job_is_not_of_a_killed_process_and_its_successor(place, successor, attempt):
    text = f"""
import signal
def begin(is_first=False):
    come = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(come[0], 1)
        malloc(100 * MIB)
        say("ready")
        time.sleep(1000 if is_first else 0)
        os._exit(0)
    return child, come[1]
first = begin(True)
second = begin() if {successor == "is there already"} else None
os.write(first[1], b".")
os.read(0, 1)
os.kill(first[0], signal.SIGKILL)
os.waitpid(first[0], 0)
second = second or begin()
os.write(second[1], b".")
os.waitpid(second[0], 0)
"""
    tenant = place.player(text)
    assert tenant.ready() == ["ok"]
    assert tenant.end() == ["ok"]
    assert 100 * MIB <= peak_of(place) <= 100 * MIB + 3 * NEAR


def test_peak_of_a_job_is_not_lost_with_small_processes_that_leave_no_record(place):
    first = place.holder("malloc 60M")
    assert place.take("malloc 12M") == ["ok"]
    first.end()
    assert [p["pid"] for p in place.guard.processes()] == [first.pid]
    assert 72 * MIB <= peak_of(place) <= 72 * MIB + 2 * NEAR


@pytest.mark.parametrize("how", STARTS)
def test_limit_is_the_jobs_however_its_children_begin(place, how):
    text = f"""
CHILD = [sys.argv[1], "malloc", "50M", "wait"]
malloc(50 * MIB)
{STARTS[how]}
os.wait()
ready()
malloc(40 * MIB)
ready()
"""
    command = [sys.executable, "-S", "-c", PLAYER + text, place.admit_take]
    tenant = place.tenant(command, {"SPARKGUARD_LIMIT": "120M"})
    assert tenant.ready() == ["ok", "ok"]  # the child
    assert place.take("malloc 40M", {"SPARKGUARD_LIMIT": "120M"}) == ["ENOMEM"]
    assert place.take("malloc 10M", {"SPARKGUARD_LIMIT": "120M"}) == ["ok"]
    assert place.take("malloc 40M", {"SPARKGUARD_LIMIT": "120M", "SPARKGUARD_JOB": "other"}) == ["ok"]
    assert tenant.go().ready() == []  # the parent: its child has ended
    assert tenant.go().ready() == ["ok"]
    tenant.end()


def test_children_cannot_have_more_than_the_limit_together(place):
    text = """
for _ in range(8):
    if os.fork() == 0:
        malloc(20 * MIB)
        tell()
        os.read(0, 1)
        os._exit(0)
wait_for(8)
ready()
"""
    tenant = place.player(CHILDREN + text, {"SPARKGUARD_LIMIT": "90M"})
    assert sorted(tenant.ready()) == ["ENOMEM"] * 4 + ["ok"] * 4


def test_what_was_inherited_counts_once_and_what_came_on_top_counts(place):
    """A parent with 60 MiB and four children that take 10 each: 100, not 340."""
    text = """
malloc(60 * MIB)
for _ in range(4):
    if os.fork() == 0:
        malloc(10 * MIB)
        tell()
        os.read(0, 1)
        os._exit(0)
wait_for(4)
ready()
"""
    tenant = place.player(CHILDREN + text, {"SPARKGUARD_LIMIT": "120M"})
    assert tenant.ready() == ["ok"] * 5
    assert place.take("malloc 25M", {"SPARKGUARD_LIMIT": "120M"}) == ["ENOMEM"]
    assert place.take("malloc 8M", {"SPARKGUARD_LIMIT": "120M"}) == ["ok"]


@pytest.mark.parametrize("mine", ["1G", None])
def test_smallest_of_differing_limits_is_everybodys(place, mine):
    tenant = place.holder("malloc 60M", {"SPARKGUARD_LIMIT": "100M"})
    assert place.take("malloc 60M", {"SPARKGUARD_LIMIT": mine}) == ["ENOMEM"]
    assert place.take("malloc 30M", {"SPARKGUARD_LIMIT": mine}) == ["ok"]
    tenant.end()
    assert place.take("malloc 60M", {"SPARKGUARD_LIMIT": mine}) == ["ok"]


@pytest.mark.parametrize("mine", ["1G", None])
def test_small_requests_keep_to_the_smallest_limit_too(place, mine):
    """At most 32 MiB beyond it."""
    place.holder("malloc 60M", {"SPARKGUARD_LIMIT": "100M"})
    text = """
taken = 0
while taken < 1000 and libc.mmap(None, 1000 << 10, 3, 0x22, -1, 0) != ctypes.c_void_p(-1).value:
    taken += 1
say(taken)
"""
    (taken,) = place.player(text, {"SPARKGUARD_LIMIT": mine}).end()
    assert 30 <= taken <= 78


# ---- namespaces and users ----


@needs_root
def test_process_in_a_pid_namespace_of_its_own_takes_part(place):
    prefix = ["unshare", "--pid", "--fork", "--kill-child"]
    if subprocess.run([*prefix, "true"], capture_output=True).returncode != 0:
        pytest.skip("no PID namespaces here")
    place.holder("malloc 1G")
    inside = place.holder("malloc 3G largest", prefix=prefix)
    assert inside.answers[0] == "ok" and LEFT - 4 * GIB - NEAR <= inside.answers[1] <= LEFT - 4 * GIB
    place.assert_left(LEFT - 4 * GIB)
    inside.kill()
    place.assert_left(LEFT - GIB)


@needs_root
@pytest.mark.parametrize("owner", ["root", "user"])
def test_users_with_a_group_shared_directory_take_part(place, tmp_path, owner):
    place.guard.directory.mkdir()
    os.chown(place.guard.directory, 0 if owner == "root" else 4712, 4711)
    place.guard.directory.chmod(0o2770)
    for parent in [tmp_path, *tmp_path.parents][:3]:
        parent.chmod(0o755)
    ids = {"user": 4712, "group": 4713, "extra_groups": [4711]}
    done = place.guard.run([place.admit_take], **ids)
    if done.returncode == 126 or "cannot be preloaded" in done.stderr:
        pytest.skip("the build folder is closed to other users")
    other = place.holder("malloc 3G", **ids)
    assert place.flags(other.pid) & SHARING
    info = place.ledger.path.stat()
    assert (info.st_uid, info.st_gid, info.st_mode & 0o7777) == (4712, 4711, 0o660)
    if owner == "root":
        third = place.holder("malloc 1G largest", user=4714, group=4713, extra_groups=[4711])
        assert third.answers[1] <= LEFT - 4 * GIB and place.flags(third.pid) & SHARING
        mine = place.holder("malloc 64M largest")
        assert mine.answers[1] <= LEFT - 4 * GIB and place.flags(mine.pid) & SHARING
        third.kill()
    other.kill()
    assert place.ledger.gone() <= 64 * MIB + NEAR


# ---- a ledger that cannot be used ----


def well_made(**header):
    content = bytearray(FILE_BYTES)
    words = {"magic": 0x524744454C475053, "version": VERSION, "entry_bytes": ENTRY_BYTES, "entry_capacity": ROOM, **header}
    content[:8] = words["magic"].to_bytes(8, "little")
    for offset, name in ((8, "version"), (12, "entry_bytes"), (16, "entry_capacity")):
        content[offset : offset + 4] = words[name].to_bytes(4, "little")
    return bytes(content)


UNUSABLE = {
    "empty": b"",
    "header_only": well_made()[:4096],
    "cut_by_a_byte": well_made()[:-1],
    "no_magic": well_made(magic=0),
    "larger_seats": well_made(entry_bytes=4096),
    "larger_seats_of_the_next_version": well_made(version=VERSION + 1, entry_bytes=4096),
    "odd_seats_of_the_next_version": well_made(version=VERSION + 1, entry_bytes=513),
    "no_seats": well_made(entry_capacity=0),
    "all_ones": b"\xff" * FILE_BYTES,
}


def assert_goes_on_alone(place):
    tenant = place.holder("malloc 64M largest malloc 16G small 1K 1M fork malloc 20M")
    assert tenant.answers[0] == "ok" and tenant.answers[2:] == ["ENOMEM", MIB, "ok"]
    assert LEFT - 64 * MIB - NEAR <= tenant.answers[1] <= LEFT - 64 * MIB
    place.assert_alone(tenant.pid)
    tenant.end()
    place.assert_left(LEFT)


def put(place, content):
    place.guard.directory.mkdir(mode=0o700)
    place.ledger.path.write_bytes(content)
    place.ledger.path.chmod(0o600)


@pytest.mark.parametrize("what", UNUSABLE)
def test_ledger_that_is_no_ledger_is_left_alone(place, what):
    put(place, UNUSABLE[what])
    place.guard.has_untrusted_files = what in ("empty", "no_magic", "all_ones")
    assert_goes_on_alone(place)
    assert place.ledger.path.read_bytes() == UNUSABLE[what]


def test_sparse_ledger_is_filled_before_it_is_used(place):
    put(place, b"")
    with open(place.ledger.path, "r+b") as file:
        file.truncate(FILE_BYTES)
        file.write(well_made()[:64])
    place.holder("malloc 3G")
    assert place.ledger.path.stat().st_blocks * 512 >= FILE_BYTES
    place.assert_left(LEFT - 3 * GIB)


def without_fallocate(place):
    """The beginning of a command that runs a program as on a file system that has no fallocate."""
    program = place.guard.build / "tests/programs/host_deny"
    call = {"x86_64": 285, "aarch64": 47}[MACHINE]
    if subprocess.run([program, str(call), str(errno.EOPNOTSUPP), "/bin/true"], check=False).returncode == 77:
        pytest.skip("no seccomp here")
    return program, call, errno.EOPNOTSUPP


def test_who_joins_a_sparse_ledger_without_fallocate_wipes_nothing(place):
    """Such as NFS, or a file system that compresses: only the maker of the ledger fills it with zeros."""
    deny = without_fallocate(place)
    place.holder("malloc 3G")
    file = os.open(place.ledger.path, os.O_RDWR)
    hole = ctypes.c_long(BEGIN + 64 * ENTRY_BYTES), ctypes.c_long(FILE_BYTES - BEGIN - 64 * ENTRY_BYTES)
    assert ctypes.CDLL(None).fallocate(file, 1 | 2, *hole) == 0, "KEEP_SIZE | PUNCH_HOLE"
    assert os.fstat(file).st_blocks * 512 < FILE_BYTES
    os.close(file)
    newcomer = place.holder("malloc 1G", prefix=deny)
    assert place.flags(newcomer.pid) & SHARING
    place.assert_left(LEFT - 4 * GIB)


def test_ledger_is_made_whole_without_fallocate(place):
    first = place.holder("malloc 3G", prefix=without_fallocate(place))
    assert place.flags(first.pid) & SHARING
    assert place.ledger.path.stat().st_blocks * 512 >= FILE_BYTES
    place.assert_left(LEFT - 3 * GIB)


@needs_root
def test_strangers_ledger_is_left_alone(place):
    put(place, well_made())
    os.chown(place.ledger.path, 4711, 4711)
    assert_goes_on_alone(place)
    assert place.ledger.path.read_bytes() == well_made()


@pytest.mark.parametrize("what", ["directory", "fifo", "link", "dangling_link"])
def test_what_is_no_file_in_the_place_of_the_ledger_is_left_alone(place, tmp_path, what):
    place.guard.directory.mkdir(mode=0o700)
    if what == "directory":
        place.ledger.path.mkdir()
    elif what == "fifo":
        os.mkfifo(place.ledger.path)
    else:
        place.ledger.path.symlink_to(tmp_path / "elsewhere")
        if what == "link":
            (tmp_path / "elsewhere").write_bytes(well_made())
    place.guard.has_untrusted_files = True
    assert_goes_on_alone(place)
    if what == "link":
        assert (tmp_path / "elsewhere").read_bytes() == well_made()
    assert what != "dangling_link" or not (tmp_path / "elsewhere").exists()


def test_no_room_for_the_ledger_is_survived_and_nothing_is_left_of_it(place, own_mounts):
    place.guard.directory.mkdir()
    mount = 'mount -t tmpfs -o size=256k,mode=700 none "$0"'
    show = 'ls -A "$0"; cat "$0"/*.segment | tr -c "[:print:]" "\\n"'
    script = f'{mount} && LD_PRELOAD={place.guard.library} "$@"; {show}'
    command = [*own_mounts, "sh", "-c", script, place.guard.directory, place.admit_take]
    done = place.guard.run([*command, *"malloc 64M malloc 16G".split()], env={**place.env, "LD_PRELOAD": None})
    assert done.stdout.startswith("ok\nENOMEM\n") and done.stderr.count("\n") == 1, done.stderr
    assert "machine.ledger" not in done.stdout
    assert "not sharing: no room" in done.stdout


# ---- a ledger that goes while it is used ----


def test_ledger_may_be_removed_while_processes_run(place):
    """Those who come meet in a new one; those who are there go there when they need room."""
    first = place.holder("malloc 3G wait malloc 16G")
    second = place.holder("malloc 1G wait malloc 2G")
    place.ledger.path.unlink()
    newcomer = place.holder("malloc 500M")
    assert place.ledger.path.exists()
    assert first.go().ready() == ["ENOMEM"]
    assert second.go().ready() == ["ok"]
    place.assert_left(LEFT - 3 * GIB - 500 * MIB)
    for tenant in (first, second, newcomer):
        assert place.flags(tenant.pid) & SHARING
        tenant.end()
    place.assert_left(LEFT)


def test_directory_may_be_removed_while_processes_run(place):
    tenant = place.holder("malloc 3G wait malloc 16G malloc 1G small 64K 20M")
    for file in place.guard.directory.iterdir():
        file.unlink()
    place.guard.directory.rmdir()
    assert tenant.go().ready() == ["ENOMEM", "ok", 20 * MIB]
    tenant.end()
    place.assert_left(LEFT)


def remove(directory):
    for file in directory.iterdir():
        file.unlink()
    directory.rmdir()


def has_joined(place, pid):
    place.ledger.close()  # another file has the name by now
    with contextlib.suppress(OSError, ValueError):
        return place.ledger.of(pid) is not None


def test_promises_count_for_newcomers_a_second_after_the_directory_was_removed(place):
    """The processes ask for nothing: their watchdogs see that those who come meet elsewhere."""
    tenants = [place.holder("malloc 3G"), place.holder("malloc 1G")]
    remove(place.guard.directory)
    newcomer = place.holder("malloc 500M")
    end = time.monotonic() + AT_ONCE
    while not all(has_joined(place, tenant.pid) for tenant in tenants):
        assert time.monotonic() < end, "a second has gone"
        time.sleep(0.01)
    place.assert_left(LEFT - 4 * GIB - 500 * MIB)
    newcomer.kill()
    place.assert_left(LEFT - 4 * GIB)


def test_process_without_a_watchdog_joins_the_new_directory_with_its_next_request(place):
    tenant = place.holder("malloc 3G wait small 64K 2M wait", {"SPARKGUARD_WATCHDOG": "off"})
    remove(place.guard.directory)
    place.holder("malloc 500M")
    time.sleep(0.6)  # it looks every half second
    tenant.go().ready()
    place.ledger.close()
    place.assert_left(LEFT - 3 * GIB - 500 * MIB)


def wait_for(condition):
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def shown(place, pid):
    """The report's entry of a process, {} where there is none."""
    found = place.guard.processes(pid)
    assert len(found) <= 1
    return found[0] if found else {}


def test_report_shows_processes_whose_directory_was_removed(place):
    """They go on with the figures that they had, and what comes later is added, to the end."""
    tenant = place.holder("malloc 1G touch 0 malloc 2G wait malloc 1G fork malloc 20M touch 3 wait")
    wait_for(lambda: shown(place, tenant.pid)["promised_bytes"] <= 2 * GIB)  # what is touched is promised until a scan finds it
    before = shown(place, tenant.pid)
    remove(place.guard.directory)
    newcomer = place.holder("malloc 500M")
    wait_for(lambda: shown(place, tenant.pid))
    report, after = place.guard.report(), shown(place, tenant.pid)
    assert report["machine"]["sharing"] and after["sharing"] and after["state"] == "running"
    assert report["jobs"][0]["live_bytes"] >= 3 * GIB + 500 * MIB
    for key in ("pid", "started", "command", "live_bytes", "peak_bytes", "blocks", "domains", "parent_pid"):
        assert after[key] == before[key], key
    # The kernel counts the last touched pages some time later (TASK_RSS_EVENTS_THRESH), and the next scan finds them.
    assert 0 <= before["promised_bytes"] - after["promised_bytes"] <= MIB
    tenant.go().ready()
    wait_for(lambda: shown(place, tenant.pid)["live_bytes"] >= 4 * GIB)
    children = [process for process in place.guard.processes() if process["parent_pid"] == tenant.pid]
    assert [child["live_bytes"] >= 20 * MIB for child in children] == [True], "the child has a record of its own"
    tenant.kill()
    assert shown(place, tenant.pid)["state"] == "killed" and shown(place, tenant.pid)["peak_bytes"] >= 4 * GIB
    newcomer.end()
    assert shown(place, newcomer.pid)["state"] == "exited"


def test_what_ends_after_its_directory_was_removed_is_on_record(place):
    """Every refusal at once, and the end."""
    killed, ended = (place.holder("malloc 1G wait malloc 16G small 64K 1M") for _ in range(2))
    for _ in range(2):  # it may be removed again
        remove(place.guard.directory)
        place.holder("malloc 1M").kill()
        wait_for(lambda: shown(place, killed.pid) and shown(place, ended.pid))
    assert killed.go().ready()[0] == "ENOMEM"
    killed.kill()
    ended.go().ready()
    ended.end()
    assert [refusal["size_bytes"] >> 30 for refusal in shown(place, killed.pid)["refusals"]] == [16]
    assert shown(place, killed.pid)["state"] == "killed"
    assert shown(place, ended.pid)["state"] == "exited" and shown(place, ended.pid)["exit_code"] == 0
    assert shown(place, ended.pid)["refused_count"] == 1


def test_time_line_goes_on_in_the_new_directory(place):
    tenant = place.holder("malloc 1G wait malloc 16G")
    wait_for(lambda: list(place.guard.directory.glob(f"{tenant.pid}-*.timeline")))
    remove(place.guard.directory)
    place.holder("malloc 1M").kill()
    wait_for(lambda: list(place.guard.directory.glob(f"{tenant.pid}-*.timeline")))
    tenant.go().ready()
    (line,) = place.guard.directory.glob(f"{tenant.pid}-*.timeline")
    before = line.read_bytes()
    assert before[:8] == b"SPGTIMEL" and int.from_bytes(before[12:16], "little") > 0
    wait_for(lambda: line.read_bytes() != before)


def test_process_that_leaves_nothing_leaves_nothing_in_the_new_directory(place):
    tenant = place.holder("malloc 8M free 0 wait small 64K 2M")
    remove(place.guard.directory)
    newcomer = place.holder("malloc 1G")
    tenant.go().ready()
    tenant.end()
    assert shown(place, tenant.pid) == {} and shown(place, newcomer.pid)["state"] == "running"


@needs_root
@pytest.mark.parametrize("mode", [0o2770, 0o700])
def test_nobody_joins_the_directory_that_somebody_else_made_in_place_of_a_removed_one(place, mode):
    """He may have put a ledger there that says what he likes."""
    place.guard.directory.mkdir()
    place.guard.directory.chmod(mode)
    first, _ = place.holder("malloc 3G wait malloc 16G malloc 4G"), place.holder("malloc 1G")
    remove(place.guard.directory)
    put(place, well_made())
    place.guard.directory.chmod(mode)
    os.chown(place.guard.directory, 4711, 4711)
    os.chown(place.ledger.path, 4711, 4711)
    content = place.ledger.path.read_bytes()
    time.sleep(1.2)  # every one of them has looked twice
    assert first.go().ready() == ["ENOMEM", "ok"]
    assert place.ledger.path.read_bytes() == content


def test_who_finds_a_ledger_that_cannot_be_used_in_the_place_of_his_says_so(place):
    tenant = place.holder("malloc 3G wait malloc 16G")
    place.ledger.path.unlink()
    place.ledger.path.write_bytes(well_made(version=9, entry_bytes=8))
    assert tenant.go().ready() == ["ENOMEM"]
    place.assert_alone(tenant.pid, "another version")
    tenant.end()


def put_foreign(place, entry_bytes, parent_entry=0, **header):
    """A ledger of the next version: its second entry is somebody's who has been promised 2 GiB, and has 1 GiB in flight
    or, with `parent_entry`, from its parent there."""
    content = bytearray(BEGIN + ROOM * entry_bytes)
    content[:BEGIN] = well_made(version=VERSION + 1, entry_bytes=entry_bytes, **header)[:BEGIN]
    content[20:24] = (3).to_bytes(4, "little")  # entry_used
    live = {"claim": 1 << 2 | LIVE}
    child = {"parent_entry": parent_entry, "parent_claim": 1 << 2 | LIVE, "inherited_promise_bytes": GIB}
    flying = {"in_flight_bytes": GIB, "bounded_flight_bytes": GIB}
    promised = {"granted_bytes": 2 * GIB, "promised_bytes": 2 * GIB}
    for number, values in ((1, live | promised | (child if parent_entry else flying)), (0, live)):
        for field, value in values.items():
            offset, size = ENTRY[field]
            at = BEGIN + number * entry_bytes + offset
            content[at : at + size] = value.to_bytes(size, "little")
    put(place, content)


@pytest.mark.parametrize("entry_bytes", [512, 1024, 4096])
def test_processes_of_another_version_count(place, entry_bytes):
    put_foreign(place, entry_bytes)
    with place.ledger.locked(1):
        tenant = place.holder("malloc 4G malloc 2G")
        assert tenant.answers == ["ok", "ENOMEM"]
        assert place.flags(tenant.pid) & SHARING
        place.assert_left(LEFT - 7 * GIB)
        tenant.kill()
        place.assert_left(LEFT - 3 * GIB)
    place.assert_left(LEFT)  # its owner is gone


def test_what_a_child_of_another_version_has_from_its_parent_counts_when_that_is_gone(place):
    put_foreign(place, 512, parent_entry=1)
    with place.ledger.locked(1):
        with place.ledger.locked(0):
            place.assert_left(LEFT - 2 * GIB)
        place.assert_left(LEFT - 3 * GIB)


@pytest.mark.parametrize("parent_entry", [4, 1024, 1 << 40, (1 << 64) - 1])
def test_parent_where_no_seat_is_ends_nobody(place, parent_entry):
    put_foreign(place, 512, parent_entry)
    with place.ledger.locked(1):
        place.assert_left(LEFT - 3 * GIB)


@pytest.mark.parametrize("header", [{"entry_bytes": 8}, {"entry_bytes": 513}, {"magic": 7}], ids=str)
def test_seats_that_cannot_be_found_do_not_count(place, header):
    put_foreign(place, 512)
    content = bytearray(place.ledger.path.read_bytes())
    for field, value in header.items():
        offset, size = LEDGER[field]
        content[offset : offset + size] = value.to_bytes(size, "little")
    place.ledger.path.write_bytes(content)
    with place.ledger.locked(0, 3):
        place.assert_left(LEFT)


def test_ledger_that_is_removed_all_the_time_ends_nobody(place):
    commands = "malloc 16G small 64K 1M malloc 2M".split() * 40
    tenants = [place.tenant([place.admit_take, *commands, "wait"]) for _ in range(4)]
    deadline = time.monotonic() + 1
    while time.monotonic() < deadline:
        place.ledger.path.unlink(missing_ok=True)
    for tenant in tenants:
        assert tenant.ready() == ["ENOMEM", MIB, "ok"] * 40
        tenant.end()
    place.assert_left(LEFT)


# ---- entries that say what cannot be ----


def test_numbers_beyond_all_bounds_refuse_and_hold_up_but_end_nobody(place):
    place.take("malloc 1M")
    with place.ledger.entry(500, content=b"\xff" * ENTRY_BYTES):
        begin = time.monotonic()
        assert place.take("malloc 64M small 64K 30M small 64K 100M fork malloc 1M")[:2] == ["ENOMEM", 30 * MIB]
        assert time.monotonic() - begin < 6 * PATIENCE
        assert place.guard.report_command("--json", "--all").returncode == 0
    place.assert_left(LEFT)


def test_hostile_limit_of_a_namesake_leaves_room_to_end(place):
    place.take("malloc 1M")
    with place.ledger.entry(3, job_hash=hash_of("job"), limit_bytes=1, granted_bytes=(1 << 64) - 1):
        assert place.take("malloc 64M") == ["ENOMEM"]
    with place.ledger.entry(3, job_hash=hash_of("job"), limit_bytes=1):
        assert place.take("malloc 64M small 64K 20M") == ["ENOMEM", 20 * MIB]
    assert place.take("malloc 64M") == ["ok"]


@pytest.mark.parametrize("seed", range(8))
def test_random_ledger_under_running_processes_ends_nobody(place, seed):
    draw = random.Random(seed)
    commands = "malloc 2M small 64K 1M mmap 3M".split()
    place.take("malloc 1M")
    tenants = [place.tenant([place.admit_take, *commands * 3, "wait"]) for _ in range(2)]
    deadline = time.monotonic() + 0.5
    fields = ["entry_used", "epoch", "call", "asked_bytes", "waiting_until_ns", "context_bytes"]
    with place.ledger.entry(9, content=draw.randbytes(ENTRY_BYTES)):
        while time.monotonic() < deadline:
            place.ledger.put(draw.choice(fields), draw.choice([draw.getrandbits(64), (1 << 64) - 1, 0]))
    for number in range(9, ROOM):
        place.ledger.put("claim", draw.getrandbits(64), number)
    place.ledger.put("entry_used", 0xFFFFFFFF)
    for tenant in tenants:
        tenant.ready()
        tenant.end()
    place.ledger.put("asked_bytes", (1 << 64) - MIB)
    place.assert_left(LEFT)


def test_count_of_all_requests_may_wrap(place):
    place.take("malloc 1M")
    place.ledger.put("asked_bytes", (1 << 64) - 3 * MIB)
    tenant = place.holder("malloc 1M small 1K 5M malloc 3G largest")
    assert tenant.answers[:3] == ["ok", 5 * MIB, "ok"]
    assert LEFT - 3 * GIB - 2 * NEAR <= tenant.answers[3] <= LEFT - 3 * GIB
    assert place.ledger.get("asked_bytes") < 1 << 60
    place.assert_left(LEFT - 3 * GIB)


# ---- no entry left ----


def test_when_all_seats_are_taken_the_next_process_decides_alone_and_says_so(place):
    place.take("malloc 1M")
    with place.ledger.locked(0, ROOM):
        for number in range(ROOM):
            place.ledger.put("claim", 1 << 2 | LIVE, number)
        place.ledger.put("entry_used", ROOM)
        place.ledger.put("granted_bytes", 3 * GIB, 77)
        place.ledger.put("promised_bytes", 3 * GIB, 77)
        tenant = place.holder("malloc 64M malloc 16G small 1K 1M")
        assert tenant.answers == ["ok", "ENOMEM", MIB]
        place.assert_alone(tenant.pid, "no room")
        place.assert_left(LEFT)
        tenant.end()
    place.assert_left(LEFT)
    assert place.ledger.get("claim", 77) & 3 != LIVE


def test_seats_of_the_dead_are_free(place):
    place.take("malloc 1M")
    for number in range(ROOM):
        place.ledger.put("claim", 1 << 2 | LIVE, number)
        place.ledger.put("granted_bytes", GIB, number)
        place.ledger.put("promised_bytes", GIB, number)
    place.ledger.put("entry_used", ROOM)
    tenant = place.holder("malloc 64M")
    assert tenant.answers == ["ok"] and place.flags(tenant.pid) & SHARING
    place.assert_left(LEFT - 64 * MIB)


def test_seats_whose_owners_have_left_are_not_taken_from_under_them(place):
    """A claim is given up before the process ends: the byte says who is there."""
    place.take("malloc 1M")
    with place.ledger.locked(0, 10):
        for number in range(10):
            place.ledger.put("claim", EMPTY, number)
        tenant = place.holder("malloc 64M")
        assert place.ledger.of(tenant.pid) == 10


# ---- somebody else in the middle of a request ----


@pytest.mark.parametrize(
    "fields",
    [
        {"ticket": CHOOSING, "queued_bytes": 20 * GIB},
        {"ticket": FIRST, "queued_bytes": 20 * GIB},
        {"in_flight_bytes": 20 * GIB, "bounded_flight_bytes": 20 * GIB},
    ],
    ids=["choosing", "first", "in_flight"],
)
def test_who_has_stopped_in_a_request_holds_up_others_for_three_seconds(place, fields):
    place.take("malloc 1M")
    with place.ledger.entry(500, **fields):
        begin = time.monotonic()
        assert place.take("malloc 64M") == ["ENOMEM"]
        assert PATIENCE - 0.1 <= time.monotonic() - begin < PATIENCE + AT_ONCE
        assert place.take("small 64K 30M") == [30 * MIB]
    begin = time.monotonic()
    place.assert_left(LEFT)
    assert time.monotonic() - begin < AT_ONCE


@pytest.mark.parametrize(
    "fields",
    [{"ticket": FIRST, "queued_bytes": 20 * GIB}, {"in_flight_bytes": 20 * GIB, "bounded_flight_bytes": 20 * GIB}],
    ids=["asking", "in_flight"],
)
def test_who_stands_still_is_waited_for_once(place, fields):
    """Not by each request anew; and if he moves at last, he is waited for again."""
    place.take("malloc 1M")
    with place.ledger.entry(500, **fields):
        tenant = place.holder("malloc 64M wait malloc 64M malloc 64M wait malloc 64M")
        assert tenant.answers == ["ENOMEM"]
        begin = time.monotonic()
        assert tenant.go().ready() == ["ENOMEM", "ENOMEM"]
        assert time.monotonic() - begin < AT_ONCE
        place.ledger.put("landed_count" if "in_flight_bytes" in fields else "ticket", FIRST + 1, 500)
        tenant.go()
        time.sleep(0.2)
        for field in fields:
            place.ledger.put(field, 0, 500)
    assert tenant.ready() == ["ok"]


def test_who_stands_behind_holds_up_nobody(place):
    place.take("malloc 1M")
    with place.ledger.entry(500, ticket=1 << 50, queued_bytes=20 * GIB):
        begin = time.monotonic()
        place.assert_left(LEFT)
        assert time.monotonic() - begin < AT_ONCE


def test_who_waits_is_let_in_when_the_other_dies(place):
    place.take("malloc 1M")
    with place.ledger.entry(500, in_flight_bytes=20 * GIB, bounded_flight_bytes=20 * GIB):
        tenant = place.tenant([place.admit_take, "malloc", "64M", "wait"])
        time.sleep(0.5)
    begin = time.monotonic()
    assert tenant.ready() == ["ok"]
    assert time.monotonic() - begin < AT_ONCE


@pytest.mark.parametrize("attempt", range(10))
def test_process_stopped_at_any_instant_keeps_what_it_has_and_no_more(place, attempt):
    tenant = place.tenant([place.admit_take, *"malloc 1M".split() * 100, "malloc", "3G", "wait"])
    time.sleep(random.Random(attempt).random() / 50)
    os.kill(tenant.pid, signal.SIGSTOP)
    begin = time.monotonic()
    other = place.holder("malloc 5100M")
    assert time.monotonic() - begin < PATIENCE + AT_ONCE
    os.kill(tenant.pid, signal.SIGCONT)
    held = [tenant.ready()[-1], *other.answers]
    assert sorted(held) == ["ENOMEM", "ok"], "one of them, and not both"
    other.end()
    place.assert_left(LEFT - 100 * MIB - (3 * GIB if held[0] == "ok" else 0))


# ---- cgroups ----


@pytest.mark.parametrize("blind", ["descriptors", "chroot"])
def test_a_cgroup_binds_also_who_cannot_read_it_any_more(place, tmp_path, blind):
    """It sees no /proc of a fake machine either: sysinfo(2) tells what this one has free, of which it asks for little."""
    place.machine.write("proc/self/cgroup", "0::/job").v2("/job", 512 * MIB)
    (tmp_path / "empty").mkdir()
    lose = {
        "descriptors": "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))",
        "chroot": f"os.chroot({str(tmp_path / 'empty')!r})",
    }
    if blind == "chroot" and os.geteuid() != 0:
        pytest.skip("needs root")
    text = f"malloc(50 * MIB)\n{lose[blind]}\ntime.sleep(1.2)\nmalloc(256 * MIB)\nmalloc(256 * MIB)\nready()"
    tenant = place.player(text, {"SPARKGUARD_RESERVE": "64M"})
    assert tenant.ready() == ["ok", "ok", "ENOMEM"]
    assert "in a cgroup of 512.0 MiB" in tenant.process.communicate("\n")[1]


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_promises_count_against_the_cgroups_they_are_made_in(place, tmp_path, version):
    add = getattr(place.machine, version)
    line = "4:memory:{}\n" if version == "v1" else "0::{}\n"
    for path, limit in (("/a", 4), ("/b", 3), ("/top", 5), ("/top/x", 4), ("/top/y", 4)):
        add(path, limit * GIB)
    a, b, x, y, out = (
        group(place, tmp_path, name, line.format(path))
        for name, path in (("a", "/a"), ("b", "/b"), ("x", "/top/x"), ("y", "/top/y"), ("out", "/"))
    )
    outside = place.holder("malloc 1G", out)
    place.assert_left(4 * GIB, a)  # outside: the machine's only, which has 9 GiB
    inside = place.holder("malloc 2G", a)
    place.assert_left(2 * GIB, a)
    place.assert_left(3 * GIB, b)
    place.assert_left(7 * GIB, out)
    nested = place.holder("malloc 3G", x)
    place.assert_left(1 * GIB, x)
    place.assert_left(2 * GIB, y)  # of what is above both
    place.assert_left(3 * GIB, b)
    place.assert_left(4 * GIB, out)
    for tenant in (outside, inside, nested):
        tenant.kill()
    place.assert_left(4 * GIB, y)


def test_reader_sees_the_same_levels_in_processes_of_one_group(place, tmp_path):
    place.machine.v2("/top", 5 * GIB).v2("/top/x", 4 * GIB).v2("/top/y", 4 * GIB)
    seen = [group(place, tmp_path, name, f"0::/top/{name}\n") for name in "xy"]
    entries = [place.ledger.of(place.holder("malloc 2M", env).pid) for env in seen]
    levels = [[place.ledger.level(entry, i) for i in range(8)] for entry in entries]
    assert levels[0][0] != levels[1][0] and levels[0][1] == levels[1][1] != 0
    assert [row[2:] for row in levels] == [[0] * 6] * 2


def test_promises_in_a_real_cgroup(guard, jail):
    environment = guard.environment()
    library = environment.pop("LD_PRELOAD")
    program = guard.build / "tests/programs/admit_take"
    script = f'echo $$ > {jail}/cgroup.procs && LD_PRELOAD={library} exec "$@"'
    command = ["/bin/sh", "-c", script, "sh", program, "malloc", "200M", "wait"]
    with subprocess.Popen(
        [str(c) for c in command], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as inside:
        try:
            assert [inside.stdout.readline() for _ in range(2)] == ["ok\n", "ready\n"]
            left, small_change = 512 * MIB - 512 * MIB * 8 // 100 - 200 * MIB, 8 * MIB + CHARGED_AHEAD_BYTES
            outside = guard.popen([program, "malloc", "100M", "wait"], stdin=subprocess.PIPE)
            assert outside.stdout.readline() == "ok\n"
            largest = int(in_jail(guard, jail, "largest").stdout)
            assert left - small_change <= largest <= left
        finally:
            for process in (outside, inside):
                process.communicate("\n")
        largest = int(in_jail(guard, jail, "largest").stdout)
        assert left + 200 * MIB - small_change <= largest <= left + 200 * MIB
