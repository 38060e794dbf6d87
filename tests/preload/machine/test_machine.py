"""All guarded processes of a machine decide as one: over a fake /proc that stands still, what one of them has been
promised is gone for the others, until it ends, is replaced or gives it back.

Nobody touches what he takes, so promises stay as they are. "largest" is what admit_take could get.
"""

import errno
import os
import signal
import subprocess
import sys

import pytest
from lib.ledger import SHARING, hash_of
from lib.machine import CHILDREN, GIB, LEFT, MIB, NEAR, PLAYER, take
from lib.target import CC, THREADLESS
from lib.waiting import wait_until


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


def test_what_is_freed_is_there_for_others_and_what_may_be_touched_again_is_not(place):
    tenant = place.holder("malloc 3G mmap 2G wait free 0 wait dontneed 1")
    place.assert_left(LEFT - 5 * GIB)
    tenant.go().ready()
    place.assert_left(LEFT - 2 * GIB)
    tenant.go().ready()
    place.assert_left(LEFT - 2 * GIB)


def assert_promised(place, program, promised, most):
    """Of a program that takes what it is told behind what it does: `most` is refused, what is left beside `promised` is not."""
    name, *arguments = program.split()
    command, env = place.guard.build / "tests/programs" / name, {**place.env, "SPARKGUARD_WATCHDOG": "off"}
    for more, answer in ((most, "ENOMEM"), (LEFT - promised - NEAR, "ok")):
        done = place.guard.run([command, *arguments, more], env=env)
        if done.returncode == 77:
            pytest.skip("no seccomp here")
        assert (done.returncode, done.stdout) == (0, f"{answer}\n"), done.stderr


def test_block_that_moves_while_another_thread_scans_stays_promised(place):
    """At the instant where it is at no address that the guard could look at. Of 8 GiB 64 MiB are promised besides."""
    assert_promised(place, "heap_scan realloc", (64 + 528) * MIB, LEFT - (64 + 256) * MIB)


@pytest.mark.parametrize("instant", ["unmap", "munmap"])
def test_block_that_goes_while_another_thread_scans_takes_no_small_promises_with_it(place, instant):
    """Neither what is there of it, nor its size, which the scan has found. 800 of 1000 KiB."""
    promised = 64 * MIB + 800 * (1004 << 10)
    assert_promised(place, f"heap_scan {instant}", promised, LEFT - promised + 400 * MIB)


def test_mapping_that_moves_while_another_thread_scans_stays_promised(place):
    """All of 1 GiB, at each scan; and of the heap what is small."""
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
    """What of its own stays promised until the next scan is small."""
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
    time.sleep(600)  # holds: its credit
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
        time.sleep(600)  # holds: what it was given
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
say("ready")
while os.read(0, 1) == b"\\n":
    malloc(2 * MIB)  # looks at what is there, where the last scan is long enough ago
    say("ready")
{then}
ready()
os._exit(0)
"""
    tenant = place.player(text, {"SPARKGUARD_WATCHDOG": "off"}, cwd=tmp_path)
    tenant.ready()
    number, taken = place.ledger.of(tenant.pid), []
    before = place.ledger.get("published_ns", number)
    wait_until(lambda: taken.extend(tenant.go().ready()) or place.ledger.get("published_ns", number) != before, "a scan")
    tenant.go("t").ready()
    assert place.take("largest")[0] <= LEFT - 3 * GIB - len(taken) * 2 * MIB


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


def test_entries_are_taken_over_and_nothing_of_their_last_owner_is_left(place):
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
def test_process_that_could_not_become_a_daemon_keeps_its_entry_and_its_record(place, tmp_path, size):
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


def test_unguarded_program_leaves_the_entry_of_the_one_it_replaced(place):
    tenant = place.player("malloc(3 * GIB)\nos.execve('/bin/sh', ['sh', '-c', 'echo ready; read x'], {})")
    assert tenant.ready() == ["ok"]
    place.assert_left(LEFT)
    tenant.end()


def test_child_of_a_raw_clone_leaves_its_parents_entry_alone(place):
    tenant = place.tenant([place.guard.build / "tests/programs/fork_raw_clone"])
    tenant.process.stdout.readline()
    entry = place.ledger.of(tenant.pid)
    assert 32 * MIB <= place.ledger.get("granted_bytes", entry) <= 34 * MIB
    assert 31 * MIB <= place.ledger.get("promised_bytes", entry) <= 34 * MIB
    assert len(place.ledger.taken()) == 1


def test_stats_keep_no_promises_of_the_dead(place):
    text = """
def usable():
    stats = (ctypes.c_uint64 * 64)(512)
    assert libc.sparkguard_stats(stats) == 0
    return list(stats)
before = usable()
ready()
now = usable()
say(sum(one != other for one, other in zip(before, now) if abs(one - other) > 100 * MIB))
ready()
"""
    observer = place.player(text)
    observer.ready()
    victim = place.holder("malloc 3G")
    victim.kill()
    assert observer.go().ready() == [0]
    observer.end()
