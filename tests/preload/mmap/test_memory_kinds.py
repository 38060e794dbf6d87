"""What each kind of memory shows, against the kernel's own figures: the table "Kinds of memory" of sparkguard(1), line by line.

What mmap makes is checked to the byte in map_cases, and who promises a tmpfs file in test_memory_files; here are the kinds that come
in other ways. A program takes SIZE of a kind, touches it, and prints what the kernel shows it.
"""

import ctypes
import os
import re
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest
from lib.machine import GIB, LEFT, MIB, needs_root, set_available
from lib.target import SLOWER

SOURCE = Path(__file__).resolve().parents[2] / "programs/mmap/shm_cases.c"
CASES = re.findall(r"^CASE\((\w+)\)", SOURCE.read_text(), re.MULTILINE)
SIZE = 64 * MIB
NEAR = 8 * MIB  # what an interpreter takes besides

# `quiet` waits; the test then looks at the report. rss("Anon") is what /proc says of the process.
HEAD = f"""
import ctypes, mmap, os, sys
SIZE = {SIZE}
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = libc.sbrk.restype = libc.mmap.restype = ctypes.c_void_p
libc.shmat.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int]
libc.shmdt.argtypes = [ctypes.c_void_p]
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.shmget.argtypes = [ctypes.c_int, ctypes.c_size_t, ctypes.c_int]
libc.sbrk.argtypes = [ctypes.c_ssize_t]
start = bytearray(2 << 20)  # the library has its segment from here on
def rss(kind):
    for line in open("/proc/self/status"):
        if line.startswith(f"Rss{{kind}}:"):
            return int(line.split()[1]) << 10
def quiet(**pairs):
    for key, value in pairs.items():
        print(key, value)
    print("quiet", flush=True)
    sys.stdin.readline()
quiet(anon=rss("Anon"), shmem=rss("Shmem"))
"""


class Before:
    """Figures of one quiet point, and of the next what was added."""

    def __init__(self, said, process):
        self.kernel = vars(said)
        self.mapped, self.heap = (process["domains"][name]["live_bytes"] for name in ("mapped", "heap"))

    def added(self, now):
        kernel = {key: now.kernel[key] - value for key, value in self.kernel.items() if key in now.kernel}
        return {"mapped": now.mapped - self.mapped, "heap": now.heap - self.heap, **kernel}


def stages(guard, text, env=None):
    """What each quiet point of the program added to its beginning."""
    points = [Before(*point) for point in guard.quiet_points([sys.executable, "-S", "-c", HEAD + text], env)]
    return [points[0].added(point) for point in points[1:]]


def is_near(value, expected):
    return abs(value - expected) <= NEAR


# ---- System V shared memory ----


@pytest.mark.parametrize("case", CASES)
def test_system_v(guard, case):
    done = guard.run([guard.build / "tests/programs/shm_cases", case], env={"SPARKGUARD_LIMIT": "32M"})
    assert done.returncode == 0, f"{case}: {done.returncode}: {done.stdout}{done.stderr}"
    if case == "refused":
        assert done.stderr.startswith("sparkguard: refused shmat of 64.0 MiB: "), done.stderr
        (refusal,) = done.process()["refusals"]
        assert (refusal["call"], refusal["domain"], refusal["reason"]) == ("shmat", "mapped", "limit")


ATTACH = """
segment = libc.shmget(0, SIZE, 0o1600)
address = libc.shmat(segment, None, 0)
libc.shmctl(segment, 0, None)
assert address != ctypes.c_void_p(-1).value
"""


def test_system_v_is_mapped_while_it_is_attached(guard):
    text = ATTACH + """
ctypes.memset(address, 1, SIZE)
quiet(anon=rss("Anon"), shmem=rss("Shmem"))
libc.shmdt(address)
quiet(anon=rss("Anon"), shmem=rss("Shmem"))
"""
    there, gone = stages(guard, text)
    assert is_near(there["mapped"], SIZE) and is_near(there["shmem"], SIZE) and is_near(there["anon"], 0), there
    assert is_near(gone["mapped"], 0) and is_near(gone["shmem"], 0), gone


def segment_of(size):
    """The number of a segment; it is there until it is removed."""
    made = subprocess.run(["ipcmk", "-M", str(size)], check=True, capture_output=True, text=True)
    return int(made.stdout.split()[-1])


@pytest.fixture
def segment():
    number = segment_of(GIB)
    yield number
    subprocess.run(["ipcrm", "-m", str(number)], check=True)


ATTACH_IT = """
libc.shmat.restype = ctypes.c_void_p
libc.shmat.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int]
address = libc.shmat({number}, None, 0)
say("ENOMEM" if address == ctypes.c_void_p(-1).value else "ok")
ready()
"""


def test_system_v_is_promised_once_however_many_attach_it(place, segment):
    text = ATTACH_IT.format(number=segment)
    place.holder("malloc 6656M")  # 1.5 GiB are left: a second GiB would not fit
    tenants = [place.player(text) for _ in range(4)]
    assert [tenant.ready() for tenant in tenants] == [["ok"]] * 4
    assert place.take("malloc 600M") == ["ENOMEM"]
    for tenant in tenants:
        tenant.kill()
    place.assert_left(LEFT - 6656 * MIB)


# Begins a segment of its own namespace in the second `when`, or says that it was late.
ATTACH_OWN = """
import time
libc.shmat.restype = ctypes.c_void_p
libc.shmat.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int]
libc.shmget.argtypes = [ctypes.c_int, ctypes.c_size_t, ctypes.c_int]
NEWIPC, STAT, CHANGED = 0x08000000, 2, 9
info = (ctypes.c_long * 32)()
assert libc.unshare(NEWIPC) == 0
time.sleep(max(0, {when} + 0.3 - time.time()))  # pace: the kernel notes the second by a clock that lags a tick
segment = libc.shmget(0, {size}, 0o1600)
libc.shmctl(segment, STAT, info)
if info[CHANGED] != {when}:
    say("late")
else:
    say("ENOMEM" if libc.shmat(segment, None, 0) == ctypes.c_void_p(-1).value else f"ok {{segment}}")
ready()
"""


@needs_root
def test_system_v_of_two_containers_is_two_promises(place):
    """Though both have a segment of one number and size, made in one second."""
    place.holder("malloc 6656M")  # 1.5 GiB are left: a second GiB would not fit
    for _ in range(20):
        text = ATTACH_OWN.format(when=int(time.time()) + 2 * SLOWER, size=GIB)
        tenants = [place.player(text) for _ in range(2)]
        said = sorted(tenant.ready()[0] for tenant in tenants)
        for tenant in tenants:
            tenant.kill()
        if "late" not in said:
            break
    assert said == ["ENOMEM", "ok 0"]


def test_system_v_that_does_not_fit_is_refused(place, segment):
    place.holder("malloc 7680M")
    assert place.player(ATTACH_IT.format(number=segment)).ready() == ["ENOMEM"]


def missing_elsewhere():
    """Whether other programs of this machine have segments that are not all there."""
    rows = [line.split() for line in Path("/proc/sysvipc/shm").read_text().splitlines()]
    size, there = rows[0].index("size"), rows[0].index("rss")
    return any(int(row[size]) > int(row[there]) for row in rows[1:])


def test_system_v_that_is_there_needs_no_room(place):
    """Root looks in an IPC namespace of its own, where nobody makes one meanwhile."""
    if os.geteuid() != 0 and missing_elsewhere():
        pytest.skip("the kernel tells what is missing of all segments together, and somebody else has one")
    attach = ATTACH_IT.format(number="number")
    player = place.player(f"""
CLONE_NEWIPC = 0x08000000
libc.unshare(CLONE_NEWIPC)
number = libc.shmget(0, ctypes.c_size_t({SIZE}), 0o1600)
{attach}
ctypes.memset(address, 1, {SIZE})
libc.shmdt(ctypes.c_void_p(address))
ready()
{attach}
libc.shmctl(number, 0, None)
""")
    assert player.ready() == ["ok"]
    player.go().ready()
    set_available(place, GIB)  # when it has started: below the floor each small request is looked at
    time.sleep(0.02)  # pace: a look at the machine serves for 5 ms
    assert player.go().ready() == ["ok"]
    player.end()


# ---- counted because mmap makes them ----


@pytest.mark.parametrize("how", ["plasma", "shm_open", "memfd"])
def test_shared_memory_of_frameworks_is_mapped(guard, how):
    """Ray's plasma store, a file in /dev/shm; PyTorch's shared tensors, by shm_open or by descriptor."""
    text = {
        "plasma": """
import tempfile
file = tempfile.TemporaryFile(dir="/dev/shm")
file.truncate(SIZE)
shared = mmap.mmap(file.fileno(), SIZE)
size = lambda: os.fstat(file.fileno()).st_blocks * 512
""",
        "shm_open": """
from multiprocessing import shared_memory
memory = shared_memory.SharedMemory(create=True, size=SIZE)
memory.unlink()
shared = memory.buf
size = lambda: os.fstat(memory._fd).st_blocks * 512
""",
        "memfd": """
fd = os.memfd_create("kinds")
os.ftruncate(fd, SIZE)
shared = mmap.mmap(fd, SIZE)
size = lambda: os.fstat(fd).st_blocks * 512
""",
    }[how]
    text += "shared[:] = bytes(1) * SIZE\nquiet(anon=rss('Anon'), shmem=rss('Shmem'), file=size())\nos._exit(0)\n"
    (there,) = stages(guard, "size = lambda: 0\n" + text)
    assert is_near(there["mapped"], SIZE) and is_near(there["shmem"], SIZE), there


@pytest.fixture
def pool_of_huge_pages():
    """Four more pages of 2 MiB in the kernel's pool, for as long as a test takes."""
    pool = Path("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages")
    try:
        before = int(pool.read_text())
        pool.write_text(str(before + 4))
    except OSError:
        pytest.skip("huge pages need root, and a kernel that has them")
    try:
        if int(pool.read_text()) != before + 4:
            pytest.skip("the kernel has no 8 MiB left in pieces of 2 MiB")
        yield
    finally:
        pool.write_text(str(before))


@pytest.mark.parametrize("how", ["MAP_HUGETLB", "memfd"])
def test_huge_pages_count_whole_and_out_of_their_pool(guard, pool_of_huge_pages, how):
    """5 MiB are three pages. They are no promise: the pool is off MemAvailable since it was made."""
    fd = "libc.memfd_create(b'kinds', 4 | 21 << 26)" if how == "memfd" else "-1"
    text = f"""
def reserved():
    return int(open("/sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages").read())
before = reserved()
address = libc.mmap(None, 5 << 20, 3, {"1" if how == "memfd" else "0x40022 | 21 << 26"}, {fd}, 0)
assert address != ctypes.c_void_p(-1).value, ctypes.get_errno()
assert reserved() - before == 3
quiet()
assert libc.munmap(ctypes.c_void_p(address), ctypes.c_size_t(6 << 20)) == 0
quiet()
"""
    there, gone = stages(guard, text, {"SPARKGUARD_RESERVE": "1G"})
    assert 6 * MIB <= there["mapped"] <= 6 * MIB + MIB, there
    assert gone["mapped"] <= MIB, gone


@pytest.fixture
def surplus_huge_pages():
    """The kernel may take 16 pages of 2 MiB from ordinary memory beyond its pool."""
    most = Path("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_overcommit_hugepages")
    try:
        before = int(most.read_text())
        most.write_text(str(before + 16))
    except OSError:
        pytest.skip("huge pages need root, and a kernel that has them")
    yield
    most.write_text(str(before))


TAKES_HUGE_PAGES = {
    "mmap": "libc.mmap(None, 24 << 20, 3, 0x40022 | 21 << 26, -1, 0)",
    "memfd": "libc.mmap(None, 24 << 20, 3, 1, libc.memfd_create(b'kinds', 4 | 21 << 26), 0)",
    "shmget": "libc.shmget(0, 24 << 20, 0o1600 | 0o4000 | 21 << 26)",
}


@pytest.mark.parametrize("call", TAKES_HUGE_PAGES)
@pytest.mark.parametrize("env", [{"SPARKGUARD_LIMIT": "20M"}, {"SPARKGUARD_RESERVE": "100%"}], ids=["limit", "reserve"])
def test_huge_pages_beyond_their_pool_are_judged_as_ordinary_ones(guard, surplus_huge_pages, call, env):
    text = f"""
import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
result = {TAKES_HUGE_PAGES[call]}
failed = result in (-1, ctypes.c_void_p(-1).value)
error = ctypes.get_errno()
if not failed and {call == "shmget"}:
    libc.shmctl(result, 0, None)
print(error if failed else "granted")
"""
    for variables, answer in ((env, "12"), ({"SPARKGUARD_LIMIT": "1G", "SPARKGUARD_RESERVE": "1M"}, "granted")):
        done = guard.run([sys.executable, "-S", "-c", text], env=variables)
        assert done.stdout == f"{answer}\n", done.stderr


def test_segment_that_is_not_there_is_not_judged(guard, surplus_huge_pages):
    """Nothing is made without IPC_CREAT: the kernel's answer is the program's."""
    text = """
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
key = 0x53470000 | os.getpid() & 0xffff
assert libc.shmget(key, 0, 0) == -1, "somebody has this key"
print(libc.shmget(key, 24 << 20, 0o600 | 0o4000 | 21 << 26), errno.errorcode[ctypes.get_errno()])
"""
    done = guard.run([sys.executable, "-S", "-c", text], env={"SPARKGUARD_LIMIT": "20M"})
    assert (done.stdout, done.stderr) == ("-1 ENOENT\n", "")


def test_huge_pages_that_the_kernel_refuses_are_no_refusal_of_ours(guard):
    text = "import ctypes\nlibc = ctypes.CDLL(None)\nlibc.mmap(None, 24 << 30, 3, 0x40022 | 21 << 26, -1, 0)"
    done = guard.run([sys.executable, "-S", "-c", text], env={"SPARKGUARD_LIMIT": "20M"})
    assert done.stderr == ""


# ---- seen when it is there ----


def test_tmpfs_file_written_by_write_is_nobodys(guard):
    text = """
import tempfile
file = tempfile.TemporaryFile(dir="/dev/shm", buffering=0)
part = bytes(1 << 20)
for _ in range(SIZE >> 20):
    file.write(part)
assert os.fstat(file.fileno()).st_blocks * 512 >= SIZE
quiet(anon=rss("Anon"), shmem=rss("Shmem"))
"""
    (there,) = stages(guard, text)
    assert all(is_near(value, 0) for value in there.values()), there


def test_sbrk_by_the_program_is_mapped_until_it_is_given_back(guard):
    text = """
address = libc.sbrk(SIZE)
ctypes.memset(address, 1, SIZE)
quiet(anon=rss("Anon"), shmem=rss("Shmem"))
libc.sbrk(-SIZE)
quiet(anon=rss("Anon"), shmem=rss("Shmem"))
"""
    there, gone = stages(guard, text)
    assert is_near(there["anon"], SIZE) and is_near(there["mapped"], SIZE) and is_near(there["heap"], 0), there
    assert is_near(gone["anon"], 0) and is_near(gone["mapped"], 0), gone


def test_heap_of_glibc_counts_once(guard):
    """It moves the same end of the data segment as sbrk does, by other names: in small blocks, and around what the program took."""
    text = """
libc.malloc.restype = ctypes.c_void_p
address = libc.sbrk(1 << 20)
blocks = [libc.malloc(60000) for _ in range(SIZE // 60000)]
for block in blocks:
    ctypes.memset(block, 1, 60000)
quiet(anon=rss("Anon"), shmem=rss("Shmem"))
"""
    (there,) = stages(guard, text)
    assert is_near(there["anon"], SIZE) and is_near(there["mapped"], 1 << 20) and is_near(there["heap"], SIZE), there


def test_stacks_of_threads_are_in_no_domain(guard):
    text = """
import threading
threading.stack_size(SIZE)
done, go = threading.Event(), threading.Event()
def fill():
    # The stack lies below this frame: what is a page and more above its end may be written to.
    low = next(int(line.split("-")[0], 16) for line in open("/proc/self/maps") if is_here(line))
    ctypes.memset(low + (1 << 20), 1, SIZE - (4 << 20))
    done.set()
    go.wait()
libc.pthread_self.restype = ctypes.c_void_p
def is_here(line):
    begin, end = (int(word, 16) for word in line.split()[0].split("-"))
    return begin <= libc.pthread_self() < end
thread = threading.Thread(target=fill)
thread.start()
done.wait()
quiet(anon=rss("Anon"), shmem=rss("Shmem"))
go.set()
thread.join()
"""
    (there,) = stages(guard, text)
    assert is_near(there["anon"], SIZE) and is_near(there["mapped"], 0) and is_near(there["heap"], 0), there


# ---- memory that the kernel itself does not see ----

SECRET = """
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
def share(file):
    address = libc.mmap(None, 512 << 20, 3, 1, file, 0)
    say("ENOMEM" if address == ctypes.c_void_p(-1).value else "ok")
    return address
file = libc.syscall(447, 0)
assert file >= 0 and os.ftruncate(file, 512 << 20) is None
address = share(file)
ready()
share(file)
ctypes.memset(address, 1, 64 << 20)
malloc(9 << 30)  # refused: it looks at its promises first
ready()
"""


@pytest.fixture
def has_secrets():
    libc, MEMFD_SECRET = ctypes.CDLL(None), 447
    file = libc.syscall(MEMFD_SECRET, 0)
    if file < 0:
        pytest.skip("no memfd_secret here")
    os.close(file)
    if resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] != resource.RLIM_INFINITY and os.geteuid() != 0:
        pytest.skip("this user may not lock a GiB (RLIMIT_MEMLOCK)")


def test_secret_memory_is_promised_once(place, has_secrets):
    player = place.player(SECRET)
    assert player.ready() == ["ok"]
    place.assert_left(LEFT - 512 * MIB)
    assert player.go().ready() == ["ok", "ENOMEM"]
    place.assert_left(LEFT - 448 * MIB)  # what it has touched, the kernel shows


def test_secret_memory_that_does_not_fit_is_refused(place, has_secrets):
    set_available(place, 2 * GIB + 256 * MIB)
    assert place.player(SECRET).ready() == ["ENOMEM"]
