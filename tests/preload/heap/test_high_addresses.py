"""Addresses above 48 bits: processors and kernels that have them give them to a program that asks for them. The other tests never do.

On aarch64 they are of 52 bits, with pages of 64 KiB: `make qualify` runs this in such a machine (tests/guest64k).
"""

import re
import subprocess
from pathlib import Path

import pytest
from lib.target import CC

CASES = re.findall(r"^CASE\((\w+)\)", (Path(__file__).resolve().parents[2] / "programs/mmap/map_high.c").read_text(), re.MULTILINE)
FUNCTIONS = "malloc calloc realloc posix_memalign aligned_alloc memalign".split()
NONE_HERE = 77

# An allocator all of whose blocks are there: each in front of the one before it, the size in the word before the block.
HIGH_HEAP = """
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
enum { HEADER = 64 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char *at, *end;
size_t malloc_usable_size(void *ptr) { return ptr ? ((size_t *)ptr)[-1] : 0; }
void *memalign(size_t alignment, size_t size)
{
    if (size > (size_t)1 << 33) { errno = ENOMEM; return 0; }
    if (alignment < HEADER) alignment = HEADER;
    pthread_mutex_lock(&lock);
    if (!at) {
        at = mmap((void *)0x5a5a000000000, (size_t)1 << 36, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (at == MAP_FAILED || (uintptr_t)at >> 48 == 0) _exit(77);
        end = at + ((size_t)1 << 36);
    }
    size = (size + 15) & ~(size_t)15;
    char *ptr = (char *)(((uintptr_t)at + HEADER + alignment - 1) & -alignment);
    if (ptr + size > end) _exit(76);
    at = ptr + size;
    pthread_mutex_unlock(&lock);
    ((size_t *)ptr)[-1] = size;
    return ptr;
}
void *malloc(size_t size) { return memalign(16, size); }
void *aligned_alloc(size_t alignment, size_t size) { return memalign(alignment, size); }
int posix_memalign(void **out, size_t alignment, size_t size) { void *ptr = memalign(alignment, size); if (!ptr) return ENOMEM; *out = ptr; return 0; }
void *calloc(size_t n, size_t size) { size_t all; if (__builtin_mul_overflow(n, size, &all)) { errno = ENOMEM; return 0; } return malloc(all); }
void free(void *ptr) { (void)ptr; }
void *realloc(void *old, size_t size)
{
    void *ptr = malloc(size);
    size_t had = malloc_usable_size(old);
    if (ptr && old) memcpy(ptr, old, had < size ? had : size);
    return ptr;
}
"""


@pytest.fixture(scope="module")
def high_heap(tmp_path_factory):
    folder = tmp_path_factory.mktemp("high")
    (folder / "high.c").write_text(HIGH_HEAP)
    flags = ["-shared", "-fPIC", "-O1", "-fno-builtin", "-w", "-D_GNU_SOURCE"]
    subprocess.run([*CC.split(), *flags, "-o", folder / "high.so", folder / "high.c"], check=True)
    return folder / "high.so"


def run(guard, name, *arguments, **options):
    done = guard.run([guard.build / "tests/programs" / name, *arguments], **options)
    if done.returncode == NONE_HERE:
        pytest.skip("this machine has no addresses above 48 bits")
    return done


@pytest.mark.parametrize("large", ["64M", "1"])
@pytest.mark.parametrize("case", CASES)
def test_mapping_counts_to_the_byte(guard, case, large):
    done = run(guard, "map_high", case, env={"SPARKGUARD_LARGE": large})
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("function", FUNCTIONS)
def test_block_counts_to_the_byte(guard, high_heap, function):
    done = run(guard, "heap_count", function, preload=[guard.library, high_heap])
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("function", FUNCTIONS)
def test_block_is_refused_by_its_own_contract(guard, high_heap, function):
    done = run(guard, "heap_refused", function, preload=[guard.library, high_heap], env={"SPARKGUARD_LIMIT": "32M"})
    assert done.returncode == 0, done.stdout + done.stderr
    (refusal,) = done.process()["refusals"]
    assert (refusal["call"], refusal["size_bytes"]) == (function, 16 << 20)
