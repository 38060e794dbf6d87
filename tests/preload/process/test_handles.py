"""A function of the libc is the guard's, by whatever way a program finds it: foreign-function interfaces ask handles."""

import re
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest
from lib.target import CC, PYTHON

ROOT = Path(__file__).resolve().parents[3]
MIB = 1 << 20
OURS = "libsparkguard.so"
NAMES = re.findall(r"^SG_HOOK_LIBC\((\w+)\)", (ROOT / "preload/guard/hooks/hooks.def").read_text(), re.MULTILINE)
WAYS = ["link", "default", "next", "handle", "program", "version", "version_default", "version_next"]
LIBRARIES = ["libc.so.6", "libdl.so.2", "libpthread.so.0"]  # the latter two had functions of their own before glibc 2.34


def found(guard, *arguments, **options):
    """The file of each name's function, by the way."""
    done = guard.run([guard.build / "tests/programs/find_name", *arguments], **options)
    assert done.returncode == 0, done.stderr
    files = defaultdict(dict)
    for line in done.stdout.splitlines():
        name, way, file = line.split()
        files[way][name] = file
    assert {way: sorted(names) for way, names in files.items()} == {way: sorted(NAMES) for way in WAYS}
    return files


@pytest.mark.parametrize("library", LIBRARIES)
def test_every_name_is_the_guards_by_every_way_to_find_it(guard, library):
    """All that the libc's own functions are without the guard. What it does not have, it does not have."""
    plain, guarded = found(guard, library, env={"LD_PRELOAD": None}), found(guard, library)
    for way in WAYS:
        expected = {name: OURS if plain[way][name].startswith("lib") else "-" for name in NAMES}
        if way in ("default", "next", "program"):  # exports
            expected = dict.fromkeys(NAMES, OURS)
        if way == "link":  # what the libc lacks is a weak symbol, which some linkers bind at the start and some never
            expected |= {name: guarded[way][name] for name in NAMES if plain[way][name] == "-"}
        assert guarded[way] == expected, way
    assert sum(file == OURS for file in guarded["handle"].values()) > (50 if library == "libc.so.6" else -1)


def test_each_hooked_name_has_a_slot_of_its_own():
    """As dlsym.c claims of its factors: a name that is looked up is compared with one at most."""
    source = (ROOT / "preload/guard/hooks/dlsym.c").read_text()
    factors = [int(word, 16) for word in re.search(r"first \* (0x\w+) \+ last \* (0x\w+)", source).groups()]
    slots = set()
    for name in NAMES:
        first, last = int.from_bytes(name[:4].encode(), "little"), int.from_bytes(name[-3:].encode(), "little") ^ len(name) << 24
        slots.add((first * factors[0] + last * factors[1] & 0xFFFFFFFF) >> 24)
    assert len(slots) == len(NAMES)


WAY_PAST = "how a malloc of a program's own reaches the libc's heap: Chromium's"
OTHER_NAMES = {f"__libc_{name}": WAY_PAST for name in ("malloc", "calloc", "realloc", "free", "memalign", "valloc", "pvalloc")}
OTHER_NAMES["__sbrk"] = "how a sbrk of a library's own, which the guard's calls, reaches the libc's: tcmalloc's"
OTHER_NAMES["cfree"] = "no program that was linked since glibc 2.26 (2017) can have it"


def test_each_name_that_the_libc_has_for_a_hooked_function_is_hooked_or_has_a_reason(guard):
    done = guard.run([PYTHON, "-S", "-c", "print(*{line.split()[-1] for line in open('/proc/self/maps') if '/libc.so.6' in line or '/libc-2' in line})"])
    (libc,) = done.stdout.split()
    at = defaultdict(set)  # names by address; the libc's own libraries alone may use those of GLIBC_PRIVATE
    for line in subprocess.run(["nm", "-D", "--defined-only", libc], capture_output=True, text=True, check=True).stdout.splitlines():
        address, kind, name = line.split()
        if kind in "TWi" and not name.endswith("@GLIBC_PRIVATE"):
            at[address].add(name.partition("@")[0])
    others = set().union(*(names for names in at.values() if names & set(NAMES))) - set(NAMES)
    assert others <= set(OTHER_NAMES) and WAY_PAST in [OTHER_NAMES[name] for name in others]


def test_a_disabled_guard_is_found_by_no_handle(guard):
    disabled = found(guard, "libc.so.6", env={"SPARKGUARD_DISABLE": "1"})
    plain = found(guard, "libc.so.6", env={"LD_PRELOAD": None})
    for way in ("handle", "version", "version_default", "version_next"):
        assert disabled[way] == plain[way]


MISSING = """
#include <dlfcn.h>
#include <stdio.h>
int main(void)
{
    const char *names[] = {"no_such_name", "mallocs", "mm", "m", "", "cuInit"};
    void *libm = dlopen("libm.so.6", RTLD_NOW);
    for (int i = 0; i < 6000; i++) {
        void *found = i % 2 != 0 ? dlsym(libm, names[i % 6]) : dlvsym(libm, i % 4 != 0 ? "free" : names[i % 6], "GLIBC_2.999");
        const char *error = dlerror();
        if (found != NULL || error == NULL)
            return 1;
        if (i < 12)
            puts(error);
        if (dlerror() != NULL)
            return 2;
    }
    return 0;
}
"""


def test_a_name_that_is_missing_leaves_its_error(guard, tmp_path):
    path = compiled(tmp_path, "missing", MISSING)
    plain, guarded = guard.run([path], env={"LD_PRELOAD": None}), guard.run([path])
    assert (plain.returncode, plain.stdout.count("\n")) == (0, 12)
    assert (guarded.returncode, guarded.stdout) == (0, plain.stdout)


def compiled(folder, name, source, *flags):
    (folder / f"{name}.c").write_text(source)
    command = [CC, "-D_GNU_SOURCE", "-w", "-O1", "-fno-builtin", "-o", folder / name, folder / f"{name}.c", *flags, "-ldl"]
    subprocess.run(command, check=True)
    return folder / name


# ---- what is taken and given back so counts --------------------------------------------------------------------------

CALLS = """
import ctypes, sys
libc = ctypes.CDLL("libc.so.6", use_errno=True)
libc.malloc.restype = libc.calloc.restype = libc.realloc.restype = libc.mmap.restype = libc.aligned_alloc.restype = ctypes.c_void_p
size = ctypes.c_size_t
def granted(address):
    return address not in (None, ctypes.c_void_p(-1).value)
calls = {
    "malloc": lambda n: libc.malloc(size(n)),
    "calloc": lambda n: libc.calloc(size(n), size(1)),
    "realloc": lambda n: libc.realloc(ctypes.c_void_p(libc.malloc(size(1000))), size(n)),
    "aligned_alloc": lambda n: libc.aligned_alloc(size(64), size(n)),
    "mmap": lambda n: libc.mmap(None, size(n), 3, 0x22, -1, ctypes.c_long(0)),
}
take = calls[sys.argv[1]]
print(granted(take(1 << 20)), granted(take(300 << 20)), ctypes.get_errno())
"""


@pytest.mark.parametrize("call", ["malloc", "calloc", "realloc", "aligned_alloc", "mmap"])
def test_taken_by_a_handle_is_judged(guard, call):
    done = guard.run([PYTHON, "-S", "-c", CALLS, call], env={"SPARKGUARD_LIMIT": "100M"})
    assert (done.returncode, done.stdout) == (0, "True False 12\n"), done.stderr
    assert [refusal["call"] for refusal in done.process()["refusals"]] == [call]


FREES = """
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
int main(void)
{
    void *libc = dlopen("libc.so.6", RTLD_NOW);
    void (*release)(void *) = (void (*)(void *))dlsym(libc, "free");
    int (*unmap)(void *, size_t) = (int (*)(void *, size_t))dlsym(libc, "munmap");
    for (long i = 0; i < 300000; i++) {
        void *volatile block = malloc(i % 1000 != 0 ? 500 : 3 << 20);
        if (block == NULL)
            return 1;
        release(block);
    }
    for (int i = 0; i < 100; i++) {
        void *mapped = mmap(NULL, 32 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (mapped == MAP_FAILED || unmap(mapped, 32 << 20) != 0)
            return 2;
    }
    puts("quiet");
    fflush(stdout);
    return getchar() == EOF;
}
"""


def test_given_back_by_a_handle_is_given_back(guard, tmp_path):
    for _, entry in guard.quiet_points([compiled(tmp_path, "frees", FREES)], {"SPARKGUARD_LIMIT": "64M"}):
        assert entry["live_bytes"] < MIB and entry["refused_count"] == 0 and entry["unmatched_frees"] == 0


# ---- other libraries that ask a handle -------------------------------------------------------------------------------

# A wrapper that asks a handle of the libc for the real functions, so as not to find itself. It makes some functions of others: a hook
# that led back to the wrapper would never end.
WRAPPER = """
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#if defined(__x86_64__)
#define BASE "GLIBC_2.2.5"
#else
#define BASE "GLIBC_2.17"
#endif
extern void *__libc_malloc(size_t);
extern void __libc_free(void *);
int wrapper_calls;
static void *libc;
static void *(*real_realloc)(void *, size_t);
static void (*real_free)(void *);
static void *(*real_mmap64)(void *, size_t, int, int, int, off_t);
static void *(*real_sbrk)(intptr_t);
static int (*real_brk)(void *);
__attribute__((constructor)) static void begin(void)
{
    libc = dlopen("libc.so.6", RTLD_NOW);
    *(void **)&real_free = LOOK("free");
    *(void **)&real_realloc = LOOK("realloc");
    *(void **)&real_mmap64 = LOOK("mmap64");
    *(void **)&real_sbrk = LOOK("sbrk");
    *(void **)&real_brk = LOOK("brk");
}
void *malloc(size_t size)
{
    wrapper_calls++;
    return real_realloc != NULL ? real_realloc(NULL, size) : __libc_malloc(size);
}
void free(void *block)
{
    (real_free != NULL ? real_free : __libc_free)(block);
}
void *mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    wrapper_calls++;
    if (real_mmap64 == NULL)
        begin();
    return real_mmap64(address, bytes, protection, flags, fd, offset);
}
void *sbrk(intptr_t step)
{
    char *before = real_sbrk(0);
    return real_brk(before + step) == 0 ? before : (void *)-1;
}
"""

WRAPPED = """
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
int main(int count, char **words)
{
    static char *block[20];
    int *calls = dlsym(RTLD_DEFAULT, "wrapper_calls"), before = *calls;
    for (int i = 0; i < 20; i++)
        memset(block[i] = malloc(1 << 20), 1, 1 << 20);
    char *mapped = mmap(NULL, 20 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(mapped, 1, 20 << 20);
    char *end = sbrk(1 << 20);
    printf("%d %d\\n", *calls - before, (int)((char *)sbrk(0) - end));
    for (int i = 0; i < 20 && count > 1; i++)
        free(block[i]);
    return count > 1 ? munmap(mapped, 20 << 20) : 0;
}
"""


@pytest.fixture(scope="module")
def wrapped(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wrapped")
    for name, look in {"dlsym": "dlsym(libc, name)", "dlvsym": "dlvsym(libc, name, BASE)"}.items():
        compiled(folder, f"{name}.so", f"#define LOOK(name) {look}\n{WRAPPER}", "-shared", "-fPIC")
    compiled(folder, "program", WRAPPED)
    return folder


@pytest.mark.parametrize("look", ["dlsym", "dlvsym"])
@pytest.mark.parametrize("order", ["before", "after"])
def test_a_wrapper_that_asks_a_handle_ends_and_is_counted_once(guard, wrapped, order, look):
    wrapper, program = wrapped / f"{look}.so", wrapped / "program"
    preload = [wrapper, guard.library] if order == "before" else [guard.library, wrapper]
    keeps, frees = guard.run([program], preload=preload), guard.run([program, "free"], preload=preload)
    assert [(done.returncode, done.stdout) for done in (keeps, frees)] == [(0, f"21 {MIB}\n")] * 2, keeps.stderr
    assert 41 * MIB <= keeps.process()["live_bytes"] < 43 * MIB
    assert frees.process()["live_bytes"] < 3 * MIB


HEAP = """
#include <stddef.h>
extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
extern void __libc_free(void *);
void *malloc(size_t size) { return __libc_malloc(size); }
void *calloc(size_t count, size_t size) { return __libc_calloc(count, size); }
void *realloc(void *block, size_t size) { return __libc_realloc(block, size); }
void free(void *block) { __libc_free(block); }
"""

WHOSE = """
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
static void say(const char *path, const char *name)
{
    Dl_info info;
    void *address = dlsym(dlopen(path, RTLD_NOW | RTLD_LOCAL), name);
    printf("%s ", dladdr(address, &info) != 0 ? strrchr(info.dli_fname, '/') + 1 : "-");
}
int main(int count, char **words)
{
    say(words[1], "malloc");
    say(words[1], "free");
    say("libc.so.6", "malloc");
    say("libc.so.6", "mmap");
    return 0;
}
"""


@pytest.mark.parametrize(
    "order, expected",
    [
        ("not preloaded", f"heap.so heap.so {OURS} {OURS}"),
        ("before", f"heap.so heap.so {OURS} {OURS}"),
        ("after", f"{OURS} {OURS} libc.so.6 {OURS}"),
    ],
)
def test_handle_of_another_heap_gives_its_own_functions_or_the_hooks_that_call_them(guard, tmp_path, order, expected):
    heap = compiled(tmp_path, "heap.so", HEAP, "-shared", "-fPIC")
    preload = {"not preloaded": [guard.library], "before": [heap, guard.library], "after": [guard.library, heap]}[order]
    done = guard.run([compiled(tmp_path, "whose", WHOSE), heap], preload=preload)
    assert (done.returncode, done.stdout.strip()) == (0, expected), done.stderr


PLUGIN = """
#include <dlfcn.h>
#include <string.h>
const char *next(void)
{
    Dl_info info;
    void *found = dlsym(RTLD_NEXT, "mmap");
    return found != NULL && dladdr(found, &info) != 0 ? strrchr(info.dli_fname, '/') + 1 : "-";
}
"""


def test_rtld_next_of_a_library_opened_later_is_the_libcs(guard, tmp_path):
    """What asks so patches the code that it finds (UCX, Open MPI), and shall not find the guard's."""
    plugin = compiled(tmp_path, "plugin.so", PLUGIN, "-shared", "-fPIC")
    script = f"import ctypes\nnext = ctypes.CDLL({str(plugin)!r}).next\nnext.restype = ctypes.c_char_p\nprint(next().decode())"
    assert guard.run([PYTHON, "-S", "-c", script]).stdout == "libc.so.6\n"


PATCHER = """
#include <dlfcn.h>
#include <string.h>
const char *by_handle(const char *name)
{
    Dl_info info;
    void *found = dlsym(dlopen("libc.so.6", RTLD_NOW), name);
    return found != NULL && dladdr(found, &info) != 0 ? strrchr(info.dli_fname, '/') + 1 : "-";
}
"""


@pytest.mark.parametrize("file, expected", [("libucm.so.0", "libc.so.6"), ("plugin.so", OURS)])
def test_who_patches_what_it_finds_finds_the_libcs(guard, tmp_path, file, expected):
    """UCX's libucm jumps from there into code of its own, which calls the kernel: a hook that it found would judge no mapping any more."""
    library = compiled(tmp_path, file, PATCHER, "-shared", "-fPIC")
    script = f"import ctypes\nfind = ctypes.CDLL({str(library)!r}).by_handle\nfind.restype = ctypes.c_char_p\n"
    script += "print(*{find(n).decode() for n in (b'mmap', b'munmap', b'mremap', b'madvise', b'brk', b'sbrk', b'shmat', b'shmdt')}, find(b'free').decode())"
    assert guard.run([PYTHON, "-S", "-c", script]).stdout == f"{expected} {OURS}\n"
