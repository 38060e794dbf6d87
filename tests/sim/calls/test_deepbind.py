"""RTLD_DEEPBIND puts a library's own dependencies ahead of every preload: the guard clears it. And dlopen stays its caller's."""

import pytest
from conftest import MIB, OUT_OF_MEMORY

LIMIT = {"SPARKGUARD_LIMIT": "64M"}

# A library that needs the driver, as a static runtime does not: it binds to what comes first in its scope.
TAKER = """
#include <stdlib.h>
int cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *), cuMemAlloc_v2(unsigned long *, unsigned long);
int device(unsigned long bytes)
{
    void *context;
    unsigned long out;
    return cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context) ? -2 : cuMemAlloc_v2(&out, bytes);
}
int heap(unsigned long bytes) { volatile char *p = malloc(bytes); if (p) p[bytes / 2] = 1; return p != NULL; }
"""

OPENS = {
    "dlopen": "dlopen(words[1], RTLD_NOW | RTLD_DEEPBIND)",
    "dlmopen": "dlmopen(LM_ID_BASE, words[1], RTLD_NOW | RTLD_DEEPBIND)",
    "dlsym": '((void *(*)(const char *, int))dlsym(dlopen("libdl.so.2", RTLD_NOW), "dlopen"))(words[1], RTLD_NOW | RTLD_DEEPBIND)',
}

HOST = """
#include <dlfcn.h>
#include <stdio.h>
int main(int count, char **words)
{
    void *library = OPEN;
    if (library == NULL)
        return 1;
    int (*device)(unsigned long) = (int (*)(unsigned long))dlsym(library, "device");
    int (*heap)(unsigned long) = (int (*)(unsigned long))dlsym(library, "heap");
    printf("large %d\\nsmall %d\\nheap %d\\n", device(128 << 20), device(1 << 20), heap(128 << 20));
    return 0;
}
"""


@pytest.fixture
def taker(sim):
    return sim.compile("libtaker.so", TAKER, "-shared", "-fPIC", "-fno-builtin", str(sim.build / "sim" / "libcuda.so.1"))


@pytest.mark.parametrize("how", sorted(OPENS))
def test_library_opened_deepbind_is_judged(sim, taker, how):
    host = sim.compile("host", HOST.replace("OPEN", OPENS[how]), "-ldl")
    done = sim.values([host, taker], **LIMIT)
    assert (done.large, done.small, done.heap) == (OUT_OF_MEMORY, 0, 0)
    assert done.process["domains"]["device"]["live_bytes"] == MIB


@pytest.mark.parametrize("variables", [{"SPARKGUARD_DEEPBIND": "keep"}, {"SPARKGUARD_DISABLE": "1"}])
def test_deepbind_is_kept_where_that_is_wanted(sim, taker, variables):
    done = sim.run([sim.compile("host", HOST.replace("OPEN", OPENS["dlopen"]), "-ldl"), taker], **LIMIT, **variables)
    assert (done.returncode, done.stdout) == (0, "large 0\nsmall 0\nheap 1\n"), done.stderr


def test_option_is_read_before_the_first_library_is_opened(sim, taker):
    """A constructor that runs ahead of the guard's opens it."""
    early = 'static void *library; __attribute__((constructor)) static void begin(void) { library = dlopen(getenv("TAKER"), RTLD_NOW | RTLD_DEEPBIND); }'
    first = sim.compile("libfirst.so", f"#include <dlfcn.h>\n#include <stdlib.h>\n{early}\nvoid *first(void) {{ return library; }}", "-shared", "-fPIC")
    text = HOST.replace("OPEN", "first()").replace("int main", "void *first(void);\nint main")
    host = sim.compile("host", text, str(first), "-ldl")
    for variables, large in ({}, OUT_OF_MEMORY), ({"SPARKGUARD_DEEPBIND": "keep"}, 0):
        done = sim.run([host], TAKER=taker, **LIMIT, **variables)
        assert (done.returncode, done.stdout.split()[:2]) == (0, ["large", str(large)]), done.stderr


# ---- whose call it is ---------------------------------------------------------------------------------------------

# Opens what only its own RUNPATH finds, and says in which namespace that came to lie.
ASKER = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
static long space_of(void *handle)
{
    Lmid_t space = -1;
    return handle && dlinfo(handle, RTLD_DI_LMID, &space) == 0 ? space : -1;
}
int ask(const char *who)
{
    void *inner = dlopen("libinner.so", RTLD_NOW), *self = dlopen("libasker.so", RTLD_NOW | RTLD_NOLOAD);
    printf("%s_found %d\\n%s_same %d\\n", who, inner != NULL, who, space_of(inner) == space_of(self));
    void *apart = dlmopen(LM_ID_NEWLM, "libinner.so", RTLD_NOW);
    printf("%s_apart %d\\n", who, apart != NULL && space_of(apart) != space_of(self));
    fflush(stdout); /* each namespace has a libc of its own */
    return dlopen("libabsent.so", RTLD_NOW) == NULL && dlerror() != NULL && dlerror() == NULL;
}
"""

NAMESPACES = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
int main(int count, char **words)
{
    void *base = dlopen(words[1], RTLD_NOW), *apart = dlmopen(LM_ID_NEWLM, words[1], RTLD_NOW);
    printf("stranger %d\\n", dlopen("libinner.so", RTLD_NOW | RTLD_NOLOAD) != NULL || dlopen("libinner.so", RTLD_NOW) != NULL);
    int one = ((int (*)(const char *))dlsym(base, "ask"))("base");
    fflush(stdout);
    int two = ((int (*)(const char *))dlsym(apart, "ask"))("apart");
    printf("errors %d\\n", one + two);
    return 0;
}
"""


@pytest.mark.parametrize("level", ["-O0", "-O2"])
@pytest.mark.parametrize("path", ["$ORIGIN/inside", "absolute"])
def test_callers_search_path_and_namespace_decide(sim, level, path):
    (sim.scratch / "inside").mkdir()
    sim.compile("inside/libinner.so", "int inner;", "-shared", "-fPIC")
    runpath = f"-Wl,--enable-new-dtags,-rpath,{path if '$' in path else sim.scratch / 'inside'}"
    asker = sim.compile("libasker.so", ASKER, "-shared", "-fPIC", level, "-Wl,-soname,libasker.so", runpath)
    host = sim.compile("host", NAMESPACES, "-ldl", level)
    guarded, plain = sim.run([host, asker]), sim.unguarded([host, asker])
    assert (guarded.returncode, plain.returncode) == (0, 0), guarded.stderr + plain.stderr
    assert sorted(guarded.stdout.split("\n")) == sorted(plain.stdout.split("\n"))
    expected = ["stranger 0", "base_found 1", "base_same 1", "base_apart 1", "apart_found 1", "apart_same 1", "apart_apart 1", "errors 2"]
    assert sorted(guarded.stdout.split("\n")) == sorted(["", *expected])
