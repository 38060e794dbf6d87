"""What is missing of a tmpfs file is promised once on the machine, whoever maps it; by the size and blocks that the kernel
shows. The machine is fake and stands still, and the files are large and empty: nothing of them is ever touched but where
a test says so.
"""

import os
import tempfile

import pytest
from test_machine import GIB, KEEP, LEFT, MIB, group, place  # noqa: F401

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


def assert_left(place, expected):  # noqa: F811
    """Less the small change of up to eight programs."""
    (largest,) = place.take("largest")
    assert expected - 8 * MIB <= largest <= expected, f"{largest / MIB:.2f} MiB, expected {expected / MIB:.2f}"


@pytest.fixture
def file(place):  # noqa: F811
    """The path of an empty file of 1 GiB."""
    with tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="sparkguard-test-") as named:
        os.truncate(named.name, GIB)
        yield named.name


def sharer(place, file, text, env=None):  # noqa: F811
    tenant = place.player(f"PATH = {file!r}\n" + SHARER + text, env)
    tenant.answers = tenant.ready()
    return tenant


MAP_IT = f"address = share({GIB})\nready()"


def test_eight_workers_on_one_file_promise_it_once(place, file):  # noqa: F811
    for _ in range(8):
        sharer(place, file, MAP_IT)
        assert_left(place, LEFT - GIB)


def test_workers_beyond_the_first_need_no_room(place, file):  # noqa: F811
    """1.5 GiB are left: the second and the third GiB would not fit, were they new."""
    place.holder("malloc 6656M")
    tenants = [sharer(place, file, MAP_IT) for _ in range(8)]
    assert [tenant.answers for tenant in tenants] == [["ok"]] * 8
    assert place.take("malloc 600M") == ["ENOMEM"]


def test_the_first_needs_all_of_it(place, file):  # noqa: F811
    place.holder("malloc 7680M")
    assert sharer(place, file, MAP_IT).answers == ["ENOMEM"]


@pytest.mark.parametrize("end", ["unmaps", "ends", "is killed"])
def test_promise_stays_while_anybody_maps_the_file(place, file, end):  # noqa: F811
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


def test_parts_that_differ_are_promised_each(place, file):  # noqa: F811
    sharer(place, file, f"share({512 * MIB})\nready()")
    assert_left(place, LEFT - 512 * MIB)
    sharer(place, file, f"share({512 * MIB}, {512 * MIB})\nready()")
    assert_left(place, LEFT - GIB)


def test_files_that_differ_are_promised_each(place, file):  # noqa: F811
    sharer(place, file, MAP_IT)
    with tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="sparkguard-test-") as other:
        os.truncate(other.name, GIB)
        sharer(place, other.name, MAP_IT)
        assert_left(place, LEFT - 2 * GIB)


def test_mapped_twice_by_one_process_it_is_promised_once(place, file):  # noqa: F811
    sharer(place, file, f"share({GIB})\nshare({GIB})\ntime.sleep(0.2)\nmalloc(1 << 20)\nready()")
    assert_left(place, LEFT - GIB - MIB)


def test_what_promises_nothing_takes_no_part_in_it(place, file):  # noqa: F811
    """Parts mapped with MAP_NORESERVE, more of them than a process has numbers for: what counts still gets one."""
    for _ in range(2):
        sharer(place, file, f"SPARSE = 0x4001\nfor i in range(300): share(65536, i * 65536, SPARSE)\n{MAP_IT}")
        assert_left(place, LEFT - GIB)


def test_private_mappings_of_it_are_copies(place, file):  # noqa: F811
    sharer(place, file, f"share({GIB}, kind=2)\nready()")
    sharer(place, file, f"share({GIB}, kind=2)\nready()")
    assert_left(place, LEFT - 2 * GIB)


def test_copies_are_not_there_because_the_file_is(place, file):  # noqa: F811
    size = 64 * MIB
    os.truncate(file, size)
    with open(file, "r+b") as written:
        written.write(bytes(size))
    text = f"""
address = share({size}, kind=2)
ready()
assert not any((ctypes.c_char * {size}).from_address(address)[::4096].strip(bytes(1)))  # what was read is still the file's
touch(address, {size // 2})
malloc(1 << 45)  # looks at what is there
ready()
"""
    tenant = sharer(place, file, text)
    assert tenant.answers == ["ok"]
    for missing in (size, size // 2):
        place.take("malloc 16G")  # whoever can look does
        assert_left(place, LEFT - missing)
        if missing == size:
            tenant.go().ready()


def test_what_is_there_already_promises_nothing(place, file):  # noqa: F811
    size = 64 * MIB
    os.truncate(file, size)
    first = sharer(place, file, f"address = share({size})\nready()\ntouch(address, {size})\nready()")
    assert_left(place, LEFT - size)
    first.go().ready()
    second = sharer(place, file, f"share({size})\nready()")
    assert second.answers == ["ok"]
    first.kill()
    assert_left(place, LEFT)


def test_what_is_there_needs_no_room(place, file):  # noqa: F811
    size = 64 * MIB
    os.truncate(file, size)
    with open(file, "r+b") as written:
        written.write(bytes(size))
    place.machine.write("proc/meminfo", "MemTotal: 16777216 kB\nMemFree: 1048576 kB\nMemAvailable: 1048576 kB\n")
    assert sharer(place, file, f"share({size})\nready()").answers == ["ok"]
    os.truncate(file, 2 * size)
    assert sharer(place, file, f"share({2 * size})\nready()").answers == ["ENOMEM"]


def test_other_promises_of_the_same_workers_count(place, file):  # noqa: F811
    """Also right after one of them has unmapped the file, when its promises are told from nobody's."""
    quiet = {"SPARKGUARD_WATCHDOG": "off"}  # who would look again
    first = sharer(place, file, f"{MAP_IT}\nmalloc({GIB})\ndrop(address, {GIB})\nready()", quiet)
    second = sharer(place, file, f"{MAP_IT}\nmalloc({2 * GIB})\nready()", quiet)
    assert_left(place, LEFT - GIB)
    first.go().ready()
    assert_left(place, LEFT - 2 * GIB)
    second.go().ready()
    assert_left(place, LEFT - 4 * GIB)


def test_a_mapping_that_grows_promises_more(place, file):  # noqa: F811
    os.truncate(file, 3 * GIB)
    grow = f"{MAP_IT}\nsay('ok' if libc.mremap(address, {GIB}, {2 * GIB}, 1) not in (None, 2**64 - 1) else 'ENOMEM')\nready()"
    tenants = [sharer(place, file, grow) for _ in range(2)]
    assert_left(place, LEFT - GIB)
    assert [tenant.go().ready() for tenant in tenants] == [["ok"], ["ok"]]
    (largest,) = place.take("largest")
    assert LEFT - 3 * GIB - 8 * MIB <= largest <= LEFT - 2 * GIB, "the gain is known to be the same by nobody"


def test_limit_of_the_job_counts_each_mapping(place, file):  # noqa: F811
    limit = {"SPARKGUARD_LIMIT": "2560M"}
    answers = [sharer(place, file, MAP_IT, limit).answers for _ in range(3)]
    assert answers == [["ok"], ["ok"], ["ENOMEM"]]


def test_more_files_than_a_seat_shows(place):  # noqa: F811
    """Those for which there is no place are promised by each."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="sparkguard-test-") as folder:
        text = f"""
for i in range(12):
    file = os.open(f"{folder}/{{i}}", os.O_RDWR | os.O_CREAT)
    os.ftruncate(file, 100 * MIB)
    share(100 * MIB)
ready()
"""
        open(f"{folder}/any", "w").close()
        for _ in range(2):
            assert sharer(place, f"{folder}/any", text).answers == ["ok"] * 12
        (largest,) = place.take("largest")
        assert LEFT - 1400 * MIB - 8 * MIB <= largest <= LEFT - 1400 * MIB


@pytest.mark.parametrize("inside", [True, False], ids=["inside", "outside"])
def test_in_a_cgroup_promises_of_those_outside_are_none(place, tmp_path, file, inside):  # noqa: F811
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


def test_what_is_mapped_over_a_file_is_new(place, file):  # noqa: F811
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


def test_what_is_mapped_over_inherited_memory_is_new(place, file):  # noqa: F811
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


def test_what_is_mapped_over_own_memory_is_promised_again_but_needs_no_room(place, file):  # noqa: F811
    size = 64 * MIB
    text = FIXED + f"""
address = libc.mmap(None, {size}, 3, 0x22, -1, 0)
touch(address, {size})
time.sleep(0.2)
malloc(1 << 20)
ready()
over(address, {size})
ready()
"""
    tenant = sharer(place, file, text, {"SPARKGUARD_WATCHDOG": "off"})
    assert_left(place, LEFT)
    place.holder("malloc 8150M")
    assert tenant.go().ready() == ["ok"]
    seat = place.ledger.of(tenant.pid)
    assert place.ledger.get("promised_bytes", seat) >= size
