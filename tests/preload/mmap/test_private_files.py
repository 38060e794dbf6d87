"""Private mappings of files: what was written to is copied, and counts where the kernel shows it, as anonymous memory."""

import os
import tempfile
import time

import pytest
from lib.machine import MIB

SIZE = 128 * MIB
NEAR = 8 * MIB

HEAD = """
def rss_anon():
    return next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith("RssAnon"))
def copy(size):
    ctypes.memset(address, 1, size)
def look():
    libc.malloc(1 << 45)
address = libc.mmap(None, SIZE, 3, 2, os.open(PATH, os.O_RDONLY), 0)
start = rss_anon()
"""


@pytest.fixture
def file():
    """A sparse file on a disk."""
    with tempfile.NamedTemporaryFile(dir="/var/tmp", prefix="sparkguard-test-") as named:
        os.truncate(named.name, SIZE)
        yield named.name


def copier(place, file, text, env=None):
    """numpy.memmap with mode "c" maps like that."""
    head = f"SIZE, PATH = {SIZE}, {file!r}\n{HEAD}"
    player = place.player(f"{head}\n{text}\nready()", {"SPARKGUARD_WATCHDOG": "off"} | (env or {}))
    return player, player.ready()


def test_copies_are_counted_as_the_kernel_shows_them(place, file):
    text = f"copy({48 * MIB})\nlook()\nsay(rss_anon() - start)\nready()\nlibc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]\n"
    player, (copied,) = copier(place, file, text + "libc.munmap(address, SIZE)\nlook()")
    entry = place.ledger.of(player.pid)
    assert 48 * MIB <= copied <= 48 * MIB + NEAR
    assert abs(place.ledger.get("sparse_bytes", entry) - copied) <= NEAR
    time.sleep(0.02)  # pace: a refusal holds for 5 ms
    player.go().ready()
    assert place.ledger.get("sparse_bytes", entry) == 0


def test_copies_count_in_the_limit(place, file):
    limit = {"SPARKGUARD_LIMIT": "192M"}
    player, said = copier(place, file, f"malloc({96 * MIB})", limit)
    assert said == ["ok"]
    player.kill()
    assert copier(place, file, f"copy(SIZE)\nmalloc({96 * MIB})", limit)[1] == ["ENOMEM"]


def test_what_is_only_read_counts_nothing(place, file):
    player, _ = copier(place, file, "ctypes.string_at(address, SIZE)\nlook()")
    assert place.ledger.get("sparse_bytes", place.ledger.of(player.pid)) == 0


def test_a_child_does_not_count_what_it_inherits(place, file):
    text = f"""
copy({48 * MIB})
if os.fork() == 0:
    malloc({64 * MIB})
    look()
    say(os.getpid())
    ready()
os.wait()
"""
    _, (_, child) = copier(place, file, text)
    assert place.ledger.get("sparse_bytes", place.ledger.of(child)) == 0


def test_a_copy_hides_no_promise_of_the_heap(place, file):
    """Resident bytes that belong to a file are not taken for those of small blocks."""
    player, _ = copier(place, file, f"blocks = [libc.malloc(65536) for _ in range({48 * MIB} // 65536)]\ncopy({48 * MIB})\nlook()")
    assert place.ledger.get("promised_bytes", place.ledger.of(player.pid)) >= 44 * MIB
