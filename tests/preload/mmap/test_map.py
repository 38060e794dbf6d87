"""Mappings: what counts, call by call, and how a refused one looks. The programs map_* check the figures inside."""

import re
import subprocess
from pathlib import Path

import pytest
from lib.target import CC


def cases_of(program):
    source = (Path(__file__).resolve().parents[2] / f"programs/mmap/{program}.c").read_text()
    return re.findall(r"^CASE\((\w+)\)", source, re.MULTILINE)


CASES = cases_of("map_cases")
CALLS = ["mmap", "mmap64", "mmap_fixed", "mremap", "mremap_dontunmap", "mprotect", "pkey_mprotect"]


def run(guard, name, *arguments, env=None):
    done = guard.run([guard.build / "tests/programs" / name, *arguments], env=env)
    assert done.returncode == 0, f"{name} {' '.join(arguments)}: {done.returncode}: {done.stdout}{done.stderr}"
    return done


@pytest.mark.parametrize("case", CASES)
def test_case(guard, case):
    run(guard, "map_cases", case)


def test_judged_one_by_one_the_same_counts(guard):
    """LARGE=1: every mapping is judged by itself."""
    for case in CASES:
        run(guard, "map_cases", case, env={"SPARKGUARD_LARGE": "1B"})


@pytest.mark.parametrize("call", CALLS)
def test_refused_call_changes_no_mapping(guard, call):
    done = run(guard, "map_refused", call, env={"SPARKGUARD_LIMIT": "32M"})
    name = {"mmap64": "mmap", "mmap_fixed": "mmap", "mremap_dontunmap": "mremap"}.get(call, call)
    line, way_out = done.stderr.splitlines()
    assert way_out.startswith("try: SPARKGUARD_LIMIT="), way_out
    assert line.startswith(f"sparkguard: refused {name} of 16.0 MiB: 12.0 MiB of room in the 32.0 MiB "), line
    (refusal,) = done.process()["refusals"]
    assert refusal["call"] == name and refusal["domain"] == "mapped" and refusal["reason"] == "limit"
    assert refusal["size_bytes"] == 16 << 20


@pytest.mark.parametrize("call", CALLS)
def test_small_call_refused_in_silence(guard, call):
    """LARGE=1G: all are small, and pass 32 MiB beyond the limit, which is then at 0."""
    done = run(guard, "map_refused", call, env={"SPARKGUARD_LIMIT": "1B", "SPARKGUARD_LARGE": "1G"})
    assert "less than any program needs" in done.stderr and done.stderr.count("\n") == 1, "the limit is told, and no refusal"
    assert done.process()["refused_count"] == 1


def test_report_shows_mapped_domain(guard):
    done = run(guard, "map_refused", "mmap", env={"SPARKGUARD_LIMIT": "32M"})
    mapped = done.process()["domains"]["mapped"]
    assert mapped["live_bytes"] == 26 << 20 and mapped["refused_count"] == 1
    assert mapped["peak_bytes"] == 26 << 20


NEXT = """
#define _GNU_SOURCE
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
static void nothing(int when, const char *call) { (void)when; (void)call; }
void (*next_inside)(int, const char *) = nothing;
void *mremap(void *from, size_t old_bytes, size_t new_bytes, int flags, ...)
{
    va_list list;
    va_start(list, flags);
    void *to = (flags & MREMAP_FIXED) != 0 ? va_arg(list, void *) : 0;
    va_end(list);
    next_inside(0, "mremap");
    long moved = syscall(SYS_mremap, from, old_bytes, new_bytes, flags, to);
    next_inside(1, "mremap");
    return (void *)moved;
}
void *mmap(void *address, size_t bytes, int prot, int flags, int fd, off_t offset)
{
    next_inside(0, "mmap");
    long mapped = syscall(SYS_mmap, address, bytes, prot, flags, fd, offset);
    next_inside(1, "mmap");
    return (void *)mapped;
}
int mprotect(void *address, size_t bytes, int prot)
{
    next_inside(0, "mprotect");
    long result = syscall(SYS_mprotect, address, bytes, prot);
    next_inside(1, "mprotect");
    return (int)result;
}
int munmap(void *from, size_t bytes)
{
    next_inside(0, "munmap");
    long result = syscall(SYS_munmap, from, bytes);
    next_inside(1, "munmap");
    return (int)result;
}
"""


@pytest.fixture(scope="module")
def next_library(tmp_path_factory):
    """Behind the guard, it calls the program back inside each real call."""
    folder = tmp_path_factory.mktemp("next")
    (folder / "next.c").write_text(NEXT)
    subprocess.run([CC, "-shared", "-fPIC", "-o", folder / "next.so", folder / "next.c"], check=True)
    return folder / "next.so"


@pytest.mark.parametrize("case", cases_of("map_inside"))
def test_inside_a_real_call(guard, next_library, case):
    preload, env = [guard.library, next_library], {"SPARKGUARD_WATCHDOG": "off"}
    if "observed" in case:
        env |= {"SPARKGUARD_MODE": "observe", "SPARKGUARD_LIMIT": "32M"}
    done = guard.run([guard.build / "tests/programs/map_inside", case], env=env, preload=preload)
    if done.returncode == 77:
        pytest.skip(done.stdout or "no seccomp here")
    assert done.returncode == 0, f"{case}: {done.returncode}: {done.stdout}{done.stderr}"
