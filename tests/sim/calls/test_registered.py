"""Memory that a program registers for a device: pinning makes all its pages resident. What no call has judged before is judged then."""

import os
import tempfile

import pytest
from conftest import GIB, MIB, OUT_OF_MEMORY

SIZE = GIB  # of which CUDA's context leaves no room
CALLS = ["cuMemHostRegister", "cuMemHostRegister_v2"]

# How a mapping is made: length, protection, flags, descriptor. The sizes are such that no limit judges the mapping itself.
KINDS = {
    "address space of a whole heap": (4 * GIB, 3, 0x4022, "-1"),
    "shared memory, only read": (SIZE, 1, 0x21, "-1"),
    "memory file, only read": (SIZE, 1, 1, "memory_file()"),
    "private file": (SIZE, 3, 2, "file"),
    "private memory file": (SIZE, 3, 2, "memory_file()"),
}
CACHE = {"file": (SIZE, 3, 1, "file"), "file, only read": (SIZE, 1, 1, "file"), "private file, only read": (SIZE, 1, 2, "file")}


def text(kind, path, call, then):
    length, protection, flags, descriptor = {**KINDS, **CACHE}[kind]
    return f"""
import os
libc = ctypes.CDLL(None)
libc.mmap.restype = c_void_p
libc.mmap.argtypes = [c_void_p, c_size_t, c_int, c_int, c_int, ctypes.c_long]
def memory_file():
    file = os.memfd_create("rows")
    os.ftruncate(file, {SIZE})
    return file
def register(offset, size):
    return cuda.{call}(c_void_p(address + offset), c_size_t(size), c_uint(0))
start()
file = os.open({path!r}, os.O_RDWR)
address = libc.mmap(None, {length}, {protection}, {flags}, {descriptor}, 0)
{then}
"""


@pytest.fixture
def file():
    """A sparse file on a disk."""
    with tempfile.NamedTemporaryFile(dir="/var/tmp", prefix="sparkguard-test-") as named:
        os.truncate(named.name, SIZE)
        yield named.name


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("kind", KINDS)
def test_is_refused_above_the_reserve(sim, file, kind, call):
    then = f"say(result=register(0, {SIZE}), reached=calls({call!r}), held=live('registered'), small=register(0, MIB))"
    done = sim.script(text(kind, file, call, then), SPARKGUARD_RESERVE="2G", **sim.machine(16 * GIB, 2 * GIB + 768 * MIB))
    assert (done.result, done.reached, done.held, done.small) == (OUT_OF_MEMORY, 0, 0, 0)
    [refusal] = done.process["refusals"]
    assert (refusal["call"], refusal["size_bytes"], refusal["reason"]) == ("cuMemHostRegister", SIZE, "reserve")


@pytest.mark.parametrize("kind", [*KINDS, *CACHE])
def test_counts_in_the_limit_if_it_is_no_page_cache(sim, file, kind):
    done = sim.script(text(kind, file, CALLS[1], f"say(result=register(0, {SIZE}))"), SPARKGUARD_LIMIT="64M")
    assert done.result == (0 if kind in CACHE else OUT_OF_MEMORY)


@pytest.mark.parametrize("kind", CACHE)
def test_page_cache_stays_reclaimable(sim, file, kind):
    then = f"say(result=register(0, {SIZE}))"
    done = sim.script(text(kind, file, CALLS[1], then), SPARKGUARD_RESERVE="2G", **sim.machine(16 * GIB, 2 * GIB + 768 * MIB))
    assert done.result == 0 and done.process["registered_bytes"] == SIZE


@pytest.mark.parametrize("kind", KINDS)
def test_is_granted_where_it_fits(sim, file, kind):
    then = f"say(result=register(0, {SIZE}), again=register(0, {SIZE}))"
    done = sim.script(text(kind, file, CALLS[1], then), SPARKGUARD_RESERVE="2G", **sim.machine(16 * GIB, 4 * GIB))
    assert (done.result, done.again) == (0, 712) and done.process["registered_bytes"] == SIZE


def test_what_was_pinned_and_written_counts_once(sim, file):
    """The simulated driver makes nothing resident, so the program does."""
    then = """
def fill(offset):
    result = register(offset, 40 * MIB)
    if result == 0:
        ctypes.memset(address + offset, 1, 40 * MIB)
    return result
results = [fill(0), fill(40 * MIB)]
ok(cuda.cuMemHostUnregister(c_void_p(address)))
say(results=str(results), again=register(0, 40 * MIB))
"""
    done = sim.script(text("address space of a whole heap", file, CALLS[1], then), SPARKGUARD_LIMIT="64M")
    assert (done.results, done.again) == (f"[0, {OUT_OF_MEMORY}]", 0)
    assert 40 * MIB <= done.process["sparse_resident_bytes"] < 42 * MIB


def test_what_the_driver_does_not_pin_is_not_counted(sim, file):
    then = f"say(result=register(0, {SIZE}))\nquiet()"
    [(said, entry)] = sim.script_points(text("shared memory, only read", file, CALLS[1], then), SGSIM_REGISTER="missing")
    assert said.result == 801 and (entry["registered_bytes"], entry["sparse_resident_bytes"]) == (0, 0)
