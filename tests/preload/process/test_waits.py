"""Nothing of ours is held where the C library, the loader or another library waits: a thread that forks keeps nobody waiting."""

import subprocess

import pytest
from lib.target import CC, IS_EMULATED, THREADLESS

HANDLERS = """
#define _GNU_SOURCE
#include <dlfcn.h>
void (*waits_handlers[3])(void);
#define CALL(n) static void call_##n(void) { if (waits_handlers[n] != 0) waits_handlers[n](); }
CALL(0) CALL(1) CALL(2)
__attribute__((constructor)) static void begin(void)
{
    void *real = dlvsym(RTLD_NEXT, "__register_atfork", "GLIBC_2.3.2"); /* as by a program of before glibc 2.34 */
    if (real == 0)
        real = dlvsym(RTLD_NEXT, "__register_atfork", "GLIBC_2.17");
    ((int (*)(void *, void *, void *, void *))real)(call_0, call_1, call_2, 0);
}
"""

CONSTRUCTOR = """
#include <stdlib.h>
__attribute__((constructor)) static void begin(void) { ((void (*)(void))strtoull(getenv("WAITS_FUNCTION"), 0, 16))(); }
"""


@pytest.mark.parametrize("wait", ["none", "stdio", "arena", "loader", "prepare", "parent"])
def test_threads_allocate_and_map_while_one_that_forks_has_to_wait(guard, tmp_path, wait):
    """stdio's list of streams, a heap, a library's constructor, and handlers of fork that were registered before ours."""
    handlers, library = tmp_path / "libhandlers.so", tmp_path / "libconstructor.so"
    for path, text in ((handlers, HANDLERS), (library, CONSTRUCTOR)):
        path.with_suffix(".c").write_text(text)
        subprocess.run([CC, "-shared", "-fPIC", "-o", path, path.with_suffix(".c")], check=True)
    env = {"WAITS_LIBRARY": library} | ({**THREADLESS, "WAITS_CHILD": "no"} if IS_EMULATED else {})
    done = guard.run([guard.build / "tests/programs/waits", wait], env, preload=[guard.library, handlers], timeout=60)
    assert (done.returncode, done.stdout) == (0, "worked\nforked\n")


@pytest.mark.parametrize("what", ["fork", "stop", "exec"])
def test_processes_of_many_threads_end_as_they_do_alone(guard, what):
    """Two threads that fork at once; a collector that stops all others by signals while others fork; exec beside threads."""
    done = guard.run([guard.build / "tests/programs/waits_stress", what], THREADLESS if IS_EMULATED else None, timeout=60)
    assert (done.returncode, done.stdout) == (0, "done\n")
