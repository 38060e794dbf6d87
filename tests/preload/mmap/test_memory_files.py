"""What is missing of a tmpfs file is promised once on the machine, whoever maps it; by the size and blocks that the kernel
shows. The machine is fake and stands still, and the files are large and empty: nothing of them is ever touched but where
a test says so.
"""

import os
import select
import tempfile
import time

import pytest
from lib.machine import GIB, KEEP, LEFT, MIB, group, has_cachestat, set_available

needs_cachestat = pytest.mark.skipif(not has_cachestat(), reason="only cachestat (Linux 6.5) tells where a file is allocated")

# A Python program that maps parts of a file: `share(size, offset)` is an address, or says ENOMEM and is None.
SHARER = """
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]
libc.mremap.restype = ctypes.c_void_p
file = os.open(PATH, os.O_RDWR)
libc.malloc(1 << 45)  # looks: what its start has touched, which a slow machine had no time to look at, is promised no more
def share(size, offset=0, kind=1, prot=3):
    address = libc.mmap(None, size, prot, kind, file, offset)
    address = None if address == ctypes.c_void_p(-1).value else address
    say("ok" if address else "ENOMEM")
    return address
def drop(address, size):
    assert libc.munmap(address, size) == 0
def touch(address, size):
    ctypes.memset(address, 1, size)
"""


def assert_left(place, expected):
    """Less what up to eight programs have mapped and never touched, which the kernel's figure contains."""
    (largest,) = place.take("largest")
    assert expected - 8 * 6 * MIB <= largest <= expected, f"{largest / MIB:.2f} MiB, expected {expected / MIB:.2f}"


@pytest.fixture
def file(place):
    """The path of an empty file of 1 GiB."""
    with tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="sparkguard-test-") as named:
        os.truncate(named.name, GIB)
        yield named.name


def sharer(place, file, text, env=None):
    tenant = place.player(f"PATH = {file!r}\n" + SHARER + text, env)
    tenant.answers = tenant.ready()
    return tenant


MAP_IT = f"address = share({GIB})\nready()"


def test_eight_workers_on_one_file_promise_it_once(place, file):
    for worker in range(1, 9):
        sharer(place, file, MAP_IT)
        if worker in (1, 2, 8):
            assert_left(place, LEFT - GIB)


def test_workers_beyond_the_first_need_no_room(place, file):
    """1.5 GiB are left: the second and the third GiB would not fit, were they new."""
    place.holder("malloc 6656M")
    tenants = [sharer(place, file, MAP_IT) for _ in range(8)]
    assert [tenant.answers for tenant in tenants] == [["ok"]] * 8
    assert place.take("malloc 600M") == ["ENOMEM"]


def test_the_first_needs_all_of_it(place, file):
    place.holder("malloc 7680M")
    assert sharer(place, file, MAP_IT).answers == ["ENOMEM"]


@pytest.mark.parametrize("end", ["unmaps", "ends", "is killed"])
def test_promise_stays_while_anybody_maps_the_file(place, file, end):
    first = sharer(place, file, f"{MAP_IT}\ndrop(address, {GIB})\nready()")
    second = sharer(place, file, f"{MAP_IT}\ndrop(address, {GIB})\nready()")
    for tenant, left in ((first, LEFT - GIB), (second, LEFT)):
        if end == "unmaps":
            tenant.go().ready()
        elif end == "ends":
            tenant.go().ready()
            tenant.end()
        else:
            tenant.kill()
        assert_left(place, left)


def test_parts_that_differ_are_promised_each(place, file):
    sharer(place, file, f"share({512 * MIB})\nready()")
    assert_left(place, LEFT - 512 * MIB)
    sharer(place, file, f"share({512 * MIB}, {512 * MIB})\nready()")
    assert_left(place, LEFT - GIB)


def test_files_that_differ_are_promised_each(place, file):
    sharer(place, file, MAP_IT)
    with tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="sparkguard-test-") as other:
        os.truncate(other.name, GIB)
        sharer(place, other.name, MAP_IT)
        assert_left(place, LEFT - 2 * GIB)


def test_mapped_twice_by_one_process_it_is_promised_once(place, file):
    sharer(place, file, f"share({GIB})\nshare({GIB})\nready()")
    assert_left(place, LEFT - GIB)


def test_what_promises_nothing_takes_no_part_in_it(place, file):
    """Parts mapped with MAP_NORESERVE, more of them than a process has numbers for: what counts still gets one."""
    for _ in range(2):
        sharer(place, file, f"SPARSE = 0x4001\nfor i in range(300): share(65536, i * 65536, SPARSE)\n{MAP_IT}")
        assert_left(place, LEFT - GIB)


def test_private_mapping_of_it_is_granted_and_promises_nothing(place, file):
    """Like that of an ordinary file. `torch.load(mmap=True)` of a model in /dev/shm has this shape: 1 GiB, and 300 MiB are left."""
    place.holder("malloc 7892M")
    assert sharer(place, file, f"share({GIB}, kind=2)\nready()").answers == ["ok"]
    assert_left(place, 300 * MIB)


def test_pages_written_through_a_private_mapping_are_no_promise(place, file):
    size = 64 * MIB
    os.truncate(file, size)
    with open(file, "r+b") as written:
        written.write(bytes(size))
    text = f"""
address = share({size}, kind=2)
touch(address, {size // 2})
malloc(1 << 45)  # looks at what is there
ready()
"""
    assert sharer(place, file, text, {"SPARKGUARD_WATCHDOG": "off"}).answers == ["ok", "ENOMEM"]
    assert_left(place, LEFT)


def test_what_is_there_already_promises_nothing(place, file):
    size = 64 * MIB
    os.truncate(file, size)
    first = sharer(place, file, f"address = share({size})\nready()\ntouch(address, {size})\nready()")
    assert_left(place, LEFT - size)
    first.go().ready()
    second = sharer(place, file, f"share({size})\nready()")
    assert second.answers == ["ok"]
    first.kill()
    assert_left(place, LEFT)


def test_what_is_there_needs_no_room(place, file):
    size = 64 * MIB
    os.truncate(file, size)
    with open(file, "r+b") as written:
        written.write(bytes(size))
    first, second = (sharer(place, file, f"ready()\nshare({part})\nready()") for part in (size, 2 * size))
    set_available(place, GIB)  # when they have started: below the floor each small request is looked at
    time.sleep(0.02)  # pace: a look at the machine serves for 5 ms
    assert first.go().ready() == ["ok"]
    os.truncate(file, 2 * size)
    assert second.go().ready() == ["ENOMEM"]


LOOK = "libc.malloc(1 << 45)  # looks at what is there"


def allocate(place, file, text):
    """Runs a program that calls fallocate: what is allocated of the file then, by its blocks."""
    tenant = sharer(place, file, f"{text}\n{LOOK}\nready()", {"SPARKGUARD_WATCHDOG": "off"})
    assert set(tenant.answers) == {"ok"}
    return os.stat(file).st_blocks * 512


@needs_cachestat
@pytest.mark.parametrize("length", [64 * MIB, GIB], ids=["to the end", "in a larger file"])
def test_what_fallocate_took_is_no_promise(place, file, length):
    """ZGC maps piece after piece as it takes them, of a file that has the length of the whole heap."""
    size, piece = 64 * MIB, 2 * MIB
    os.truncate(file, length)
    text = f"for at in range(0, {size}, {piece}): os.posix_fallocate(file, at, {piece}); share({piece}, at)"
    assert allocate(place, file, text) == size
    assert_left(place, LEFT)


def test_what_fallocate_took_needs_no_room(place, file):
    size = 64 * MIB
    os.truncate(file, size)
    tenant = sharer(place, file, f"os.posix_fallocate(file, 0, {size})\nready()\nshare({size})\n{LOOK}\nready()")
    set_available(place, GIB)  # when it has started: below the floor each small request is looked at
    time.sleep(0.02)  # pace: a look at the machine serves for 5 ms
    assert tenant.go().ready() == ["ok"]
    entry = place.ledger.of(tenant.pid)
    assert place.ledger.get("promised_bytes", entry) < size


@needs_cachestat
@pytest.mark.parametrize("begin", [0, 192 * MIB, 100 * MIB + 64 * 1024], ids=["first", "last", "middle"])
def test_what_fallocate_took_of_a_mapping_is_no_promise(place, file, begin):
    size, part = 256 * MIB, 64 * MIB
    os.truncate(file, size)
    allocated = allocate(place, file, f"os.posix_fallocate(file, {begin}, {part})\nshare({size})")
    assert allocated == part
    assert_left(place, LEFT - (size - part))


@needs_cachestat
def test_what_fallocate_took_elsewhere_in_the_file_is_still_missing_here(place, file):
    allocate(place, file, f"os.posix_fallocate(file, 0, {64 * MIB})\nshare({512 * MIB}, {512 * MIB})")
    assert_left(place, LEFT - 512 * MIB)


def test_a_file_that_has_a_length_only_is_a_promise(place, file):
    assert allocate(place, file, f"share({GIB})") == 0
    assert_left(place, LEFT - GIB)


def test_other_promises_of_the_same_workers_count(place, file):
    """Also right after one of them has unmapped the file, when its promises are told from nobody's."""
    quiet = {"SPARKGUARD_WATCHDOG": "off"}  # who would look again
    first = sharer(place, file, f"{MAP_IT}\nmalloc({GIB})\ndrop(address, {GIB})\nready()", quiet)
    second = sharer(place, file, f"{MAP_IT}\nmalloc({2 * GIB})\nready()", quiet)
    assert_left(place, LEFT - GIB)
    first.go().ready()
    assert_left(place, LEFT - 2 * GIB)
    second.go().ready()
    assert_left(place, LEFT - 4 * GIB)


def test_a_mapping_that_grows_promises_more(place, file):
    os.truncate(file, 3 * GIB)
    grow = f"{MAP_IT}\nsay('ok' if libc.mremap(address, {GIB}, {2 * GIB}, 1) not in (None, 2**64 - 1) else 'ENOMEM')\nready()"
    tenants = [sharer(place, file, grow) for _ in range(2)]
    assert_left(place, LEFT - GIB)
    assert [tenant.go().ready() for tenant in tenants] == [["ok"], ["ok"]]
    assert_left(place, LEFT - 2 * GIB)


def test_limit_of_the_job_counts_a_file_once(place, file):
    """Eight workers map the same GiB under LIMIT=1280M; what is not of that GiB is new."""
    limit = {"SPARKGUARD_LIMIT": "1280M"}
    tenants = [sharer(place, file, MAP_IT + f"\nmalloc({512 * MIB})\nready()", limit) for _ in range(8)]
    assert [tenant.answers for tenant in tenants] == [["ok"]] * 8
    assert tenants[0].go().ready() == ["ENOMEM"]
    tenants[0].kill()
    os.truncate(file, 2 * GIB)
    assert sharer(place, file, f"share({GIB}, {512 * MIB})\nready()", limit).answers == ["ENOMEM"], "the second half is new"
    assert sharer(place, file, f"share({GIB}, {128 * MIB})\nready()", limit).answers == ["ok"]


def test_limit_counts_a_file_while_anybody_maps_it(place, file):
    limit = {"SPARKGUARD_LIMIT": "1280M"}
    text = MAP_IT + f"\ndrop(address, {GIB})\nready()\nmalloc({512 * MIB})\nready()"
    first, second = (sharer(place, file, text, limit) for _ in range(2))
    first.go().ready()
    assert first.go().ready() == ["ENOMEM"], "the other worker maps it"
    second.go().ready()
    assert second.go().ready() == ["ok"]


def test_peak_and_live_bytes_of_the_job_count_a_file_once(place, file):
    tenants = [sharer(place, file, f"{MAP_IT}\nmalloc({64 * MIB})\nready()") for _ in range(4)]
    for tenant in tenants:
        tenant.go().ready()
    (job,) = place.guard.report()["jobs"]
    for figure in ("live_bytes", "peak_bytes"):
        assert GIB + 256 * MIB <= job[figure] <= GIB + 256 * MIB + 32 * MIB, figure


def test_two_that_ask_for_one_file_at_once_are_both_granted(place, file):
    """Each asks while the other's mapping is in flight: it waits for that, and then needs nothing more."""
    text = f"ready()\nfor _ in range(20):\n    address = share({GIB})\n    address and drop(address, {GIB})\nready()"
    tenants = [sharer(place, file, text, {"SPARKGUARD_LIMIT": "1280M"}) for _ in range(4)]
    for tenant in tenants:
        tenant.go()
    assert [tenant.ready() for tenant in tenants] == [["ok"] * 20] * 4


def asker(place, file, env):
    """It maps the file each time it is told to."""
    return sharer(place, file, f"ready()\nwhile True:\n    share({GIB})\n    ready()", env)


@pytest.mark.parametrize("what", ["limit", "room"])
def test_who_is_in_the_middle_of_a_change_is_waited_for(place, file, what):
    """Interrupted there, for as long as it takes, it shows bytes and not yet which of them are the file's."""
    env = {"SPARKGUARD_WATCHDOG": "off"} | ({"SPARKGUARD_LIMIT": "1280M"} if what == "limit" else {})
    if what == "room":
        place.holder("malloc 6656M")  # 1.5 GiB are left
    first, second = sharer(place, file, MAP_IT, env), asker(place, file, env)
    entry, before = place.ledger.of(first.pid), place.ledger.get("waiting_until_ns")
    version = place.ledger.get("files_version", entry)
    place.ledger.put("files_version", version + 1, entry)
    second.go()
    while place.ledger.get("waiting_until_ns") == before and not select.select([second.process.stdout], [], [], 0.01)[0]:
        pass
    place.ledger.put("files_version", version + 2, entry)
    assert second.ready() == ["ok"]


def test_who_stays_in_the_middle_of_a_change_is_not_waited_for_again(place, file):
    """It is stopped there, say. Whoever asks is answered, and told what may be held: the file's bytes are taken for others."""
    env = {"SPARKGUARD_WATCHDOG": "off", "SPARKGUARD_LIMIT": "1280M"}
    first, second = sharer(place, file, MAP_IT, env), asker(place, file, env)
    entry = place.ledger.of(first.pid)
    place.ledger.put("files_version", place.ledger.get("files_version", entry) + 1, entry)
    assert second.go().ready() == ["ENOMEM"]
    waited_until = place.ledger.get("waiting_until_ns")
    assert second.go().ready() == ["ENOMEM"]
    assert place.ledger.get("waiting_until_ns") == waited_until, "it waited again"


def test_private_memory_and_a_file_add_up(place, file):
    """A worker that holds much of its own counts that, and the file that others map does not hide it."""
    limit = {"SPARKGUARD_LIMIT": "1600M"}
    first = sharer(place, file, f"malloc({300 * MIB})\n{MAP_IT}", limit)
    second = sharer(place, file, f"{MAP_IT}\nmalloc({300 * MIB})\nready()", limit)
    assert (first.answers, second.answers) == (["ok", "ok"], ["ok"])
    assert second.go().ready() == ["ENOMEM"]


# Folders of files, of which each program maps those that its list names.
FOLDER = """
def share_all(names, size):
    global file
    for name in names:
        file = os.open(f"{PATH}/{name}", os.O_RDWR | os.O_CREAT)
        os.ftruncate(file, size)
        share(size)
"""


@pytest.fixture
def folder():
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="sparkguard-test-") as name:
        os.mkdir(f"{name}/of")
        yield name


def folder_sharer(place, folder, text, env=None):
    first = f"PATH = {folder!r}\n" + SHARER.replace("file = os.open(PATH, os.O_RDWR)", "") + FOLDER
    tenant = place.player(first + text, env)
    tenant.answers = tenant.ready()
    return tenant


def test_forty_files_of_a_job_are_promised_once_each(place, folder):
    """Five pairs of workers, of which each pair shares eight files."""
    for pair in range(5):
        names = list(range(8 * pair, 8 * pair + 8))
        for _ in range(2):
            assert folder_sharer(place, folder, f"share_all({names}, {32 * MIB})\nready()").answers == ["ok"] * 8
    assert_left(place, LEFT - 40 * 32 * MIB)


def test_forty_files_of_each_worker_count_once_in_the_job(place, folder):
    limit = {"SPARKGUARD_LIMIT": "1500M"}
    for _ in range(3):
        assert folder_sharer(place, folder, f"share_all(range(40), {32 * MIB})\nready()", limit).answers == ["ok"] * 40
    (largest,) = place.take("largest", limit)
    assert (1500 - 1280 - 20) * MIB <= largest <= (1500 - 1280) * MIB, "what the interpreters hold, too"


def test_more_files_than_an_entry_shows(place, folder):
    """They are promised once all the same."""
    for _ in range(2):
        assert folder_sharer(place, folder, f"share_all(range(150), {20 * MIB})\nready()").answers == ["ok"] * 150
    (largest,) = place.take("largest")
    interpreters = 2 * 6 * MIB  # below 4 MiB of each, its thread's credit of 1 MiB at most, and a stack of the guard's own thread
    assert LEFT - 150 * 20 * MIB - interpreters <= largest <= LEFT - 150 * 20 * MIB


@pytest.mark.parametrize("inside", [True, False], ids=["inside", "outside"])
def test_in_a_cgroup_promises_of_those_outside_are_none(place, tmp_path, file, inside):
    """Who touches a page first pays for it: a group must have room for what only others outside it were promised."""
    place.machine.v2("/job", 2 * GIB)
    job, top = ({**group(place, tmp_path, name, f"0::{path}\n"), **KEEP} for name, path in (("job", "/job"), ("top", "/")))
    assert sharer(place, file, MAP_IT, job if inside else top).answers == ["ok"]
    assert place.holder("malloc 300M" if inside else "malloc 600M", job).answers == ["ok"]  # a quarter is kept
    assert sharer(place, file, MAP_IT, job).answers == (["ok"] if inside else ["ENOMEM"])


# ---- what a fixed mapping replaces ----

FIXED = """
def over(address, size, kind=0x22):
    got = libc.mmap(address, size, 3, kind | 0x10, -1, 0)
    say("ok" if got == address else "ENOMEM")
"""


def test_what_is_mapped_over_a_file_is_new(place, file):
    """The file's pages stay: eight times 64 MiB over what was there already is 512 MiB."""
    size = 64 * MIB
    os.truncate(file, size)
    with open(file, "r+b") as written:
        written.write(bytes(size))
    place.holder("malloc 7892M")  # 300 MiB are left
    text = FIXED + f"for _ in range(8):\n    over(share({size}), {size})\nready()"
    answers = sharer(place, file, text).answers
    assert answers[::2] == ["ok"] * 8
    assert answers[1::2] == ["ok"] * 4 + ["ENOMEM"] * 4


def test_what_is_mapped_over_inherited_memory_is_new(place, file):
    text = FIXED + f"""
address = libc.mmap(None, {3 * GIB}, 3, 0x22, -1, 0)
ready()
if os.fork() == 0:
    over(address, {3 * GIB})
    ready()
os.read(0, 1)
"""
    tenant = sharer(place, file, text)
    assert_left(place, LEFT - 3 * GIB)
    assert tenant.go().ready() == ["ok"]
    assert_left(place, LEFT - 6 * GIB)


def test_what_is_mapped_over_own_memory_is_promised_again_but_needs_no_room(place, file):
    size = 64 * MIB
    text = FIXED + f"""
address = libc.mmap(None, {size}, 3, 0x22, -1, 0)
touch(address, {size})
libc.malloc(1 << 45)  # looks at what is there
ready()
over(address, {size})
ready()
"""
    tenant = sharer(place, file, text, {"SPARKGUARD_WATCHDOG": "off"})
    assert_left(place, LEFT)
    place.holder("malloc 8150M")
    assert tenant.go().ready() == ["ok"]
    entry = place.ledger.of(tenant.pid)
    assert place.ledger.get("promised_bytes", entry) >= size
