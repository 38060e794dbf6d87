"""The three entry points of the driver, and what must not be taken for one: whoever comes through any of them is counted once,
and everybody else gets what the C library or the driver says."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import MIB, OUT_OF_MEMORY, PRELUDE, values

ROOT = Path(__file__).resolve().parents[3]

LIMIT = {"SPARKGUARD_LIMIT": "64M"}


def refused_words(process):
    return [refusal["call"] for refusal in process["refusals"]]


# ---- linked exports and dlsym -------------------------------------------------------------------------------------


def test_library_loaded_with_local_scope_is_reached_through_dlsym(sim):
    done = sim.script(
        """
start()
say(large=take("cuMemAlloc_v2", 128 * MIB)[0], out=take("cuMemAlloc_v2", 128 * MIB)[1], small=take("cuMemAlloc_v2", MIB)[0])
""",
        **LIMIT,
    )
    assert (done.large, done.out, done.small) == (OUT_OF_MEMORY, 77, 0)
    assert refused_words(done.process) == ["cuMemAlloc", "cuMemAlloc"]
    assert done.process["domains"]["device"]["live_bytes"] == MIB


@pytest.mark.parametrize("library", ["libcudart.so.13", "runtime-copy.so"])
def test_runtime_reached_through_dlsym_gives_its_own_word(sim, library):
    shutil.copy(sim.build / "sim" / "libcudart.so.13", sim.scratch / "runtime-copy.so")
    done = sim.script(
        f"""
runtime = ctypes.CDLL({str(sim.scratch / library) if "copy" in library else library!r})
p = c_void_p(77)
say(large=runtime.cudaMalloc(byref(p), c_size_t(128 * MIB)), out=p.value, get=runtime.cudaGetLastError(), again=runtime.cudaGetLastError())
say(host=runtime.cudaMallocHost(byref(p), c_size_t(128 * MIB)), small=runtime.cudaMalloc(byref(p), c_size_t(MIB)))
""",
        **LIMIT,
    )
    assert (done.large, done.out, done.get, done.again) == (OUT_OF_MEMORY, 77, OUT_OF_MEMORY, 0)
    assert (done.host, done.small) == (OUT_OF_MEMORY, 0)
    assert refused_words(done.process) == ["cudaMalloc", "cudaMallocHost"]
    assert done.process["domains"]["device"]["live_bytes"] == MIB


def test_linked_program_bound_at_start_is_counted(sim):
    done = sim.values([sim.program("cuda_calls"), "refuse", "linked", "cudaMalloc", 128 * MIB, MIB], LD_BIND_NOW="1", **LIMIT)
    assert (done.large, done.reached, done.small) == (OUT_OF_MEMORY, 0, 0)
    assert refused_words(done.process) == ["cudaMalloc"]


def test_runtime_found_by_dlvsym_is_refused_as_by_dlsym(sim):
    done = sim.script(
        """
runtime = ctypes.CDLL("libcudart.so.13")
libc = ctypes.CDLL(None)
libc.dlvsym.restype = c_void_p
libc.dlvsym.argtypes = [c_void_p, ctypes.c_char_p, ctypes.c_char_p]
address = libc.dlvsym(runtime._handle, b"cudaMalloc", b"libcudart.so.13")
malloc = ctypes.CFUNCTYPE(c_int, c_void_p, c_size_t)(address)
p = c_void_p(77)
say(large=malloc(ctypes.addressof(p), 128 * MIB), out=p.value, get=runtime.cudaGetLastError(), small=malloc(ctypes.addressof(p), MIB))
""",
        **LIMIT,
    )
    assert (done.large, done.out, done.get, done.small) == (OUT_OF_MEMORY, 77, OUT_OF_MEMORY, 0)
    assert refused_words(done.process) == ["cudaMalloc"]


FAMILIES = {"driver": "libcuda.so.1", "runtime": "libcudart.so.13", "nvml": "libnvidia-ml.so.1"}
WAYS = {"link", "default", "next", "handle", "program"}  # and by version: the driver's and NVML's names have none, and the runtime's is its own
OTHER_WAYS = {"driver": {"proc", "entry"}, "runtime": set(), "nvml": set()}
ONLY_ASKED = {"link", "next"}  # ways that lead to the library itself where the hook is not exported
HIDDEN = re.compile(r"^SG_HOOK_NVML_HIDDEN\((\w+)\)", re.MULTILINE)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_name_is_the_guards_by_every_way_to_find_it(sim, family):
    """All that are the library's without the guard. But for those by version, each name is found."""
    source, library = ROOT / "tests/programs/process/find_name.c", sim.build / "sim" / FAMILIES[family]
    program = sim.compile("find_name", source.read_text(), f"-I{source.parent}", "-Wl,--no-as-needed", str(library), "-ldl")
    plain, guarded = (run([program, FAMILIES[family], family]) for run in (sim.unguarded, sim.run))
    assert (plain.returncode, guarded.returncode) == (0, 0), plain.stderr + guarded.stderr
    hidden = set(HIDDEN.findall((ROOT / "preload/guard/hooks/hooks.def").read_text()))
    ways = set()
    for line, without in zip(guarded.stdout.splitlines(), plain.stdout.splitlines(), strict=True):
        name, way, file = line.split()
        ways |= {way} if without.endswith(FAMILIES[family]) else set()
        is_hook = without.endswith(FAMILIES[family]) and not (name in hidden and way in ONLY_ASKED)
        assert line == (f"{name} {way} libsparkguard.so" if is_hook else without)
    assert ways == WAYS | OTHER_WAYS[family]


@pytest.mark.parametrize("family", FAMILIES)
def test_no_name_is_found_by_any_way_where_its_library_is_not_loaded(sim, family):
    """Programs probe so for CUDA. A weak reference (link) is not looked up: it is bound at the start."""
    command = [sim.program("find_name"), "libm.so.6", family]
    plain, guarded = sim.unguarded(command, LD_LIBRARY_PATH="/nowhere"), sim.run(command, LD_LIBRARY_PATH="/nowhere")
    assert (plain.returncode, guarded.returncode) == (0, 0), plain.stderr + guarded.stderr
    found = [line for line in guarded.stdout.splitlines() if not line.endswith(" -") and " link " not in line]
    assert found == [] and len(plain.stdout.splitlines()) > 30


TINY = """
#include <stddef.h>
int cudaMallocLike(void) { return 1; }
int cudnnCreate(void) { return 41; }
int curl_easy_init(void) { return 42; }
int cublasCreate_v2(void) { return 43; }
int cuMemAllocate(void) { return 44; }
int cu(void) { return 45; }
"""


ASKS_LIBC = """
#include <dlfcn.h>
#include <stdio.h>
int main(int count, char **words)
{
    void *handle = dlopen("libcuda.so.1", RTLD_NOW), *context;
    void *(*look)(void *, const char *) = (void *(*)(void *, const char *))dlsym(dlopen(words[1], RTLD_LAZY), "dlsym");
    int result = ((int (*)(int))look(handle, "cuInit"))(0);
    result |= ((int (*)(void **, int))look(handle, "cuDevicePrimaryCtxRetain"))(&context, 0);
    result |= ((int (*)(void *))look(handle, "cuCtxSetCurrent"))(context);
    unsigned long long out;
    printf("begun %d\\nlarge %d\\n", result, ((int (*)(unsigned long long *, unsigned long))look(handle, "cuMemAlloc_v2"))(&out, 128 << 20));
    printf("next %d\\n", look(RTLD_NEXT, "main") == NULL);
    return 0;
}
"""


@pytest.mark.parametrize("library", ["libc.so.6", "libdl.so.2"])
def test_dlsym_that_the_libc_gives_by_name_is_a_door_too(sim, library):
    done = sim.values([sim.compile("asks", ASKS_LIBC, "-ldl"), library], **LIMIT)
    assert (done.begun, done.large, done.next) == (0, OUT_OF_MEMORY, 1)


WRAPPER = """
#include <dlfcn.h>
int calls;
int cuMemAlloc_v2(unsigned long long *p, unsigned long n)
{
    int (*real)(unsigned long long *, unsigned long) = 0;
    if (calls++ < 9)
        real = (int (*)(unsigned long long *, unsigned long))dlsym(dlopen("libcuda.so.1", RTLD_LAZY), "cuMemAlloc_v2");
    return real ? real(p, n) : 999;
}
int calls_of(void) { return calls; }
"""


def test_function_that_wraps_the_drivers_is_called_once_and_counted_once(sim):
    """A library between the program and the driver, with the driver's names: nobody may lead it back to itself."""
    library = sim.compile("libwrapper.so", WRAPPER, "-shared", "-fPIC")
    done = sim.script(
        f"""
wrapper = ctypes.CDLL({str(library)!r})
out = c_uint64(77)
wrapper.cuMemAlloc_v2 # before the driver's own
start()
say(wrapped=wrapper.cuMemAlloc_v2(byref(out), c_size_t(MIB)), calls=wrapper.calls_of())
say(own=take("cuMemAlloc_v2", MIB)[0], still=wrapper.calls_of(), held=live())
say(refused=wrapper.cuMemAlloc_v2(byref(out), c_size_t(128 * MIB)))
""",
        **LIMIT,
    )
    assert (done.wrapped, done.calls, done.own, done.still, done.refused) == (0, 1, 0, 1, OUT_OF_MEMORY)
    assert done.held == done.process["domains"]["device"]["live_bytes"] == 2 * MIB


TWO_DRIVERS = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
static int take(void *handle)
{
    void *context;
    unsigned long long out;
    if (((int (*)(int))dlsym(handle, "cuInit"))(0) || ((int (*)(void **, int))dlsym(handle, "cuDevicePrimaryCtxRetain"))(&context, 0) ||
        ((int (*)(void *))dlsym(handle, "cuCtxSetCurrent"))(context))
        return 1;
    int result = ((int (*)(unsigned long long *, unsigned long))dlsym(handle, "cuMemAlloc_v2"))(&out, 1 << 20);
    return result ? result : ((unsigned long (*)(const char *))dlsym(handle, "sgsim_live_bytes"))("device") == 1 << 20 ? 0 : 2;
}
int main(int count, char **words)
{
    void *apart = words[1] ? dlmopen(LM_ID_NEWLM, "libcuda.so.1", RTLD_NOW) : 0, *own = dlopen("libcuda.so.1", RTLD_NOW);
    apart = apart ? apart : dlmopen(LM_ID_NEWLM, "libcuda.so.1", RTLD_NOW);
    int one = words[1] ? take(apart) : take(own), two = words[1] ? take(own) : take(apart);
    printf("one %d\\ntwo %d\\n", one, two);
    return 0;
}
"""


@pytest.mark.parametrize("first", [[], ["apart"]])
def test_driver_of_another_namespace_is_its_own(sim, first):
    """What dlmopen brought bypasses the guard; but no call of the one may reach the other."""
    done = sim.values([sim.compile("two", TWO_DRIVERS, "-ldl"), *first])
    assert (done.one, done.two) == (0, 0)
    assert done.process["domains"]["device"]["live_bytes"] == MIB


def test_names_that_only_begin_like_cuda_pass_untouched(sim):
    library = sim.compile("libtiny.so", TINY, "-shared", "-fPIC")
    done = sim.script(
        f"""
tiny = ctypes.CDLL({str(library)!r})
names = ["cudaMallocLike", "cudnnCreate", "curl_easy_init", "cublasCreate_v2", "cuMemAllocate", "cu"]
say(answers=",".join(str(getattr(tiny, name)()) for name in names))
""",
    )
    assert done.answers == "1,41,42,43,44,45"


ASKS_NEXT = """
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
void *other(void);
int main(void)
{
    void *libc = dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
    /* strlen, seen from the program itself: next is the first library that has one */
    void *next = dlsym(RTLD_NEXT, "puts"), *global = dlsym(RTLD_DEFAULT, "main_only");
    printf("next %d\\n", next == dlsym(libc, "puts"));
    printf("global %d\\n", global == NULL);
    printf("beyond %d\\n", other() == NULL);
    dlerror();
    dlsym(libc, "no_such_function");
    const char *error = dlerror();
    printf("error %d\\n", error != NULL && strstr(error, "no_such_function") != NULL);
    printf("cleared %d\\n", dlerror() == NULL);
    return 0;
}
"""
# In a library behind the program: its RTLD_NEXT must not find itself.
ASKS_BEYOND = """
#include <dlfcn.h>
int beyond_me(void) { return 0; }
void *other(void) { void *volatile found = dlsym(RTLD_NEXT, "beyond_me"); return found; } /* no tail call */
"""


@pytest.mark.parametrize("level", ["-O0", "-O1", "-O2"])
def test_rtld_next_means_after_the_caller_at_every_optimisation(sim, level):
    library = sim.compile("libbeyond.so", ASKS_BEYOND, "-shared", "-fPIC", level)
    program = sim.compile("asks", ASKS_NEXT, level, str(library), f"-Wl,-rpath,{sim.scratch}", "-ldl")
    done = sim.run([program])
    assert done.returncode == 0, done.stderr
    assert done.stdout == "next 1\nglobal 1\nbeyond 1\nerror 1\ncleared 1\n"


@pytest.mark.parametrize("level", ["-O0", "-O2"])
def test_wrapper_finds_the_next_one_and_not_itself(sim, level):
    """Another preload with a malloc of its own: RTLD_NEXT from it must lead on, or it recurses for ever."""
    wrapper = sim.compile(
        "libwrap.so",
        """
#include <dlfcn.h>
#include <stddef.h>
int count;
void *calloc(size_t n, size_t size) { static void *(*next)(size_t, size_t);
    if (!next) { next = (void *(*)(size_t, size_t))dlsym(RTLD_NEXT, "calloc"); if (next == calloc) __builtin_trap(); }
    count++; return next(n, size); }
""",
        "-shared",
        "-fPIC",
        level,
    )
    for order in ([sim.guard.library, wrapper], [wrapper, sim.guard.library]):
        done = sim.guard.run([sys.executable, "-S", "-c", "print(6 * 7)"], preload=order)
        assert (done.returncode, done.stdout, done.stderr) == (0, "42\n", "")


# ---- cuGetProcAddress ---------------------------------------------------------------------------------------------

# What the driver itself answers for each base name, version and flags, beside what comes through the guard; the names of
# the functions are told by dladdr of the driver's own pointers, asked before the guard is used.
ASK = """
start()
libdl = ctypes.CDLL(None)
class Info(ctypes.Structure):
    _fields_ = [("file", ctypes.c_char_p), ("base", c_void_p), ("symbol", ctypes.c_char_p), ("address", c_void_p)]
def name_of(address):
    info = Info()
    if not address or not libdl.dladdr(c_void_p(address), byref(info)):
        return None, None
    return info.file.decode().rsplit("/", 1)[1], info.symbol.decode()
def ask4(base, version, flags):
    p = c_void_p(77)
    result = cuda.cuGetProcAddress(base, byref(p), version, c_uint64(flags))
    return result, p.value, None
def ask5(base, version, flags):
    p, status = c_void_p(77), c_int(-1)
    result = cuda.cuGetProcAddress_v2(base, byref(p), version, c_uint64(flags), byref(status))
    return result, p.value, status.value
def ask5_without_status(base, version, flags):
    p = c_void_p(77)
    result = cuda.cuGetProcAddress_v2(base, byref(p), version, c_uint64(flags), None)
    return result, p.value, None
bases = sorted(set(sys.argv[1].split(",")))
for ask in ask4, ask5, ask5_without_status:
    for base in bases:
        for version in 1000, 2000, 3010, 3020, 11020, 11030, 12000, 13000, 99000:
            for flags in 0, 1, 2, 3:
                result, address, status = ask(base.encode(), version, flags)
                library, symbol = name_of(address) if address != 77 else ("unset", None)
                print(ask.__name__, base or "-", version, flags, result, status, library, symbol)
print(*ask5(None, 12000, 0))
print(cuda.cuGetProcAddress_v2(b"cuMemAlloc", None, 12000, c_uint64(0), None))
"""


def hooked_symbols():
    text = (ROOT / "preload" / "guard" / "hooks" / "hooks.def").read_text()
    lines = [line for line in text.splitlines() if line.startswith("SG_HOOK_DRIVER(")]
    return [[word.strip() for word in line[len("SG_HOOK_DRIVER(") :].rstrip(")").split(",")] for line in lines]


def test_proc_address_gives_the_hook_of_exactly_the_function_the_driver_chose(sim):
    hooked = {symbol for symbol, *_ in hooked_symbols()}
    bases = {base for _, base, *_ in hooked_symbols()} | {"cuInit", "cuMemGetInfo", "cuNoSuchThing", "", "cuMemAlloc_v2"}
    script = sys.executable, "-S", "-c", PRELUDE + ASK, ",".join(bases)
    guarded, plain = sim.run(script), sim.unguarded(script)
    assert (guarded.returncode, plain.returncode) == (0, 0), guarded.stderr + plain.stderr
    answers = guarded.stdout.splitlines()
    assert len(answers) == len(plain.stdout.splitlines()) > 1000
    replaced = 0
    for ours, theirs in zip(answers, plain.stdout.splitlines()):
        symbol = theirs.split()[-1]
        if symbol in hooked:
            theirs = theirs.replace("libcuda.so.1", "libsparkguard.so")
            replaced += 1
        assert ours == theirs
    assert replaced > 500


def test_every_hooked_driver_function_is_reached_by_its_version_and_flags(sim):
    """The simulated driver knows all of them, so each must come out of cuGetProcAddress as ours."""
    wanted = [tuple(entry) for entry in hooked_symbols()]
    done = sim.script(
        """
start()
ctypes.pythonapi.Py_IsInitialized()
for symbol, base, version, is_ptsz in %r:
    p, linked = c_void_p(), ctypes.cast(getattr(cuda, symbol), c_void_p).value
    ok(cuda.cuGetProcAddress_v2(base.encode(), byref(p), int(version), c_uint64(2 if is_ptsz == "1" else 0), None))
    if p.value != linked:
        print("differs", symbol)
say(checked=1)
"""
        % wanted
    )
    assert done.checked == 1 and not hasattr(done, "differs")


def test_entry_point_by_version_is_the_hook(sim):
    done = sim.script(
        """
runtime = ctypes.CDLL("libcudart.so.13")
for name, version in ("old", 2000), ("new", 13000):
    f, status = c_void_p(), c_int(-1)
    result = runtime.cudaGetDriverEntryPointByVersion(b"cuMemAlloc", byref(f), c_uint(version), c_ulonglong(0), byref(status))
    symbol = "cuMemAlloc" if version == 2000 else "cuMemAlloc_v2"
    say(**{name: f"{result} {status.value} {f.value == ctypes.cast(getattr(cuda, symbol), c_void_p).value}"})
"""
    )
    assert done.old == done.new == "0 0 True"


# A driver whose exports are not what its cuGetProcAddress hands out: only name, version and flags tell which it is.
OTHER_ADDRESSES = """
#include <stddef.h>
#include <string.h>
static int device(int *d) { *d = 0; return 0; }
static int used[4];
static int old(unsigned *p, unsigned n) { (void)n; used[0]++; *p = 0x1000; return 0; }
static int new(unsigned long long *p, size_t n) { (void)n; used[1]++; *p = 0x2000; return 0; }
static int legacy(unsigned long long *p, size_t n, void *s) { (void)n, (void)s; used[2]++; *p = 0x3000; return 0; }
static int ptsz(unsigned long long *p, size_t n, void *s) { (void)n, (void)s; used[3]++; *p = 0x4000; return 0; }
int cuCtxGetDevice(int *d) { return device(d); }
int cuMemAlloc(unsigned *p, unsigned n) { return old(p, n); }
int cuMemAlloc_v2(unsigned long long *p, size_t n) { return new(p, n); }
int cuMemAllocAsync(unsigned long long *p, size_t n, void *s) { return legacy(p, n, s); }
int cuMemAllocAsync_ptsz(unsigned long long *p, size_t n, void *s) { return ptsz(p, n, s); }
int cuGetProcAddress_v2(const char *name, void **f, int version, unsigned long long flags, int *status)
{
    (void)status;
    *f = NULL;
    if (!strcmp(name, "cuMemAlloc")) *f = version < 3020 ? (void *)old : (void *)new;
    if (!strcmp(name, "cuMemAllocAsync")) *f = flags == 2 ? (void *)ptsz : (void *)legacy;
    return 0;
}
int used_of(int i) { return used[i]; }
"""


def test_driver_that_hands_out_other_addresses_is_hooked_by_version(sim):
    sim.compile("libcuda.so.1", OTHER_ADDRESSES, "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-Wl,-Bsymbolic")
    done = sim.guard.run(
        [
            sys.executable,
            "-S",
            "-c",
            """
import ctypes
from ctypes import byref, c_void_p, c_int, c_size_t, c_uint64
cuda = ctypes.CDLL("libcuda.so.1")
def get(name, version, flags):
    f = c_void_p()
    assert cuda.cuGetProcAddress_v2(name, byref(f), version, c_uint64(flags), None) == 0
    return ctypes.CFUNCTYPE(c_int, c_void_p, c_size_t, c_void_p)(f.value)
for name, version, flags in (b"cuMemAlloc", 2000, 0), (b"cuMemAlloc", 12000, 0), (b"cuMemAllocAsync", 12000, 0), (b"cuMemAllocAsync", 12000, 2):
    out = c_uint64()
    print(get(name, version, flags)(ctypes.addressof(out), 1 << 30, None), cuda.used_of(0), cuda.used_of(1), cuda.used_of(2), cuda.used_of(3))
    print(get(name, version, flags)(ctypes.addressof(out), 1 << 20, None), hex(out.value))
""",
        ],
        env={"LD_LIBRARY_PATH": sim.scratch, "SPARKGUARD_LIMIT": "64M"},
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines == [
        "2 0 0 0 0",
        "0 0x1000",
        "2 1 0 0 0",
        "0 0x2000",
        "2 1 1 0 0",
        "0 0x3000",
        "2 1 1 1 0",
        "0 0x4000",
    ]


# A driver whose pointers are none of its exports, and one newer than this guard; V5 is what cuCtxCreate means there.
NEWER_DRIVER = """
#include <string.h>
static int v2(void **e, void *g, void **n, char *l, unsigned long s) { return 2000; }
static int with_flags(void **e, void *g, unsigned long long f) { *e = (void *)8; return (int)f; }
static int create(void **c, void *p, unsigned f, int d) { return 4000; }
static int hidden(int d, void **c) { *c = (void *)24; return 5000; }
int cuGraphInstantiate_v2(void **e, void *g, void **n, char *l, unsigned long s) { return v2(e, g, n, l, s); }
int cuGraphInstantiateWithFlags(void **e, void *g, unsigned long long f) { return with_flags(e, g, f); }
int cuCtxCreate_v4(void **c, void *p, unsigned f, int d) { return create(c, p, f, d); }
int cuCtxCreate_v5(int d, void **c) { return hidden(d, c); }
int cuGetProcAddress_v2(const char *name, void **f, int version, unsigned long long flags, int *status)
{
    *f = NULL;
    if (!strcmp(name, "cuGraphInstantiate")) *f = version < 12000 ? (void *)v2 : (void *)with_flags;
    if (!strcmp(name, "cuCtxCreate")) *f = version < 12060 ? (void *)create : (void *)V5;
    return 0;
}
"""


@pytest.mark.parametrize("v5, version", [("cuCtxCreate_v5", 12080), ("cuCtxCreate_v5", 14000), ("hidden", 14000)])
def test_no_hook_stands_for_a_function_with_other_arguments(sim, v5, version):
    source = NEWER_DRIVER.replace("V5", v5)
    sim.compile("libcuda.so.1", source, "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-Wl,-Bsymbolic")
    done = sim.guard.run(
        [
            sys.executable,
            "-S",
            "-c",
            f"""
import ctypes
from ctypes import addressof, byref, c_int, c_uint64, c_ulonglong, c_void_p
cuda = ctypes.CDLL("libcuda.so.1")
def get(name, version, *types):
    f = c_void_p()
    assert cuda.cuGetProcAddress_v2(name, byref(f), version, c_uint64(0), None) == 0
    return ctypes.CFUNCTYPE(c_int, *types)(f.value), f.value
def ours(symbol):
    return ctypes.cast(getattr(cuda, symbol), c_void_p).value
instantiate, address = get(b"cuGraphInstantiate", 12000, c_void_p, c_void_p, c_ulonglong)
out = c_void_p()
print(instantiate(addressof(out), None, 41), out.value, address == ours("cuGraphInstantiateWithFlags"))
print(get(b"cuGraphInstantiate", 11080)[1] == ours("cuGraphInstantiate_v2"), get(b"cuCtxCreate", 12050)[1] == ours("cuCtxCreate_v4"))
print(get(b"cuCtxCreate", {version}, c_int, c_void_p)[0](0, addressof(out)), out.value)
held = bytearray(40 << 20)  # or the process leaves no record
""",
        ],
        env={"LD_LIBRARY_PATH": sim.scratch},
    )
    assert (done.returncode, done.stdout.splitlines()) == (0, ["41 8 True", "True True", "5000 24"]), done.stderr
    name = "cuCtxCreate_v5" if v5 != "hidden" else "cuCtxCreate"
    events = [event["what"] for event in done.process()["events"] if "not guarded" in event["what"]]
    assert events == [f"not guarded: {name} as of CUDA {version} is newer than this guard"]


@pytest.mark.parametrize("driver_version, is_hooked", [(13000, True), (13050, True), (13060, False)])
def test_version_beyond_the_drivers_own_means_the_drivers_newest(sim, driver_version, is_hooked):
    """A program of a later toolkit asks for its own version, which says nothing of the driver's."""
    source = OTHER_ADDRESSES + "int cuDriverGetVersion(int *v) { *v = %d; return 0; }" % driver_version
    sim.compile("libcuda.so.1", source, "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-Wl,-Bsymbolic")
    text = """
import ctypes
from ctypes import byref, c_void_p, c_uint64
cuda = ctypes.CDLL("libcuda.so.1")
f, held = c_void_p(), bytearray(40 << 20)  # or the process leaves no record
cuda.cuGetProcAddress_v2(b"cuMemAlloc", byref(f), 13080, c_uint64(0), None)
print(f.value == ctypes.cast(cuda.cuMemAlloc_v2, c_void_p).value)
"""
    done = sim.guard.run([sys.executable, "-S", "-c", text], env={"LD_LIBRARY_PATH": sim.scratch})
    assert (done.returncode, done.stdout.split()) == (0, [str(is_hooked)]), done.stderr
    events = [event["what"] for event in done.process()["events"] if "not guarded" in event["what"]]
    assert events == ([] if is_hooked else ["not guarded: cuMemAlloc as of CUDA 13080 is newer than this guard"])


# ---- several runtimes ---------------------------------------------------------------------------------------------

# A library that is linked to its own runtime and calls the exported cudaMalloc: it must get to that runtime.
USER = """
#include <stddef.h>
int cudaMalloc(void **, size_t);
int cudaGetLastError(void);
int cudaPeekAtLastError(void);
int user_malloc(void **p, size_t n) { volatile int result = cudaMalloc(p, n); return result; }
int user_peek(void) { return cudaPeekAtLastError(); }
int user_get(void) { return cudaGetLastError(); }
"""


def older_runtime(sim):
    """The stand-in runtime under the name and symbol version of its predecessor."""
    here = ROOT / "tests/sim/runtime"
    exports = sim.scratch / "libcudart.so.12.map"
    exports.write_text((here / "cudart_sim.map").read_text().replace("libcudart.so.13", "libcudart.so.12"))
    home = subprocess.run([ROOT / "scripts" / "install-deps", "--cuda-home"], capture_output=True, text=True)
    include = f"{os.environ.get('CUDA_HOME') or home.stdout.strip()}/include"
    flags = "-shared", "-fPIC", "-pthread", "-isystem", include, "-Wl,-soname,libcudart.so.12"
    return sim.compile("libcudart.so.12", (here / "cudart_sim.c").read_text(), *flags, f"-Wl,--version-script={exports}")


def test_two_runtimes_in_one_process_keep_their_own_errors(sim):
    """Each last error lives in the runtime whose cudaMalloc was called; mixing them up would show in the other."""
    twelve, thirteen = older_runtime(sim), sim.build / "sim" / "libcudart.so.13"
    flags = "-shared", "-fPIC", "-O1", f"-Wl,-rpath,{sim.scratch}:{sim.build / 'sim'}"
    sim.compile("libuser12.so", USER, *flags, str(twelve))
    sim.compile("libuser13.so", USER, *flags, str(thirteen))
    done = sim.script(
        f"""
twelve, thirteen = (ctypes.CDLL({str(sim.scratch)!r} + f"/libuser{{n}}.so") for n in (12, 13))
p = c_void_p(77)
def state():
    return f"{{twelve.user_peek()}}{{thirteen.user_peek()}}"
say(first=twelve.user_malloc(byref(p), c_size_t(128 * MIB)), after_first="s" + state())
say(cleared=twelve.user_get(), after_cleared="s" + state())
say(second=thirteen.user_malloc(byref(p), c_size_t(128 * MIB)), after_second="s" + state())
say(small=twelve.user_malloc(byref(p), c_size_t(MIB)), other=thirteen.user_malloc(byref(p), c_size_t(MIB)))
direct = ctypes.CDLL({str(twelve)!r})
say(third=direct.cudaMalloc(byref(p), c_size_t(128 * MIB)), after_third="s" + state())
""",
        **LIMIT,
    )
    assert (done.first, done.after_first) == (OUT_OF_MEMORY, "s20")
    assert (done.cleared, done.after_cleared) == (OUT_OF_MEMORY, "s00")
    assert (done.second, done.after_second) == (OUT_OF_MEMORY, "s02")
    assert (done.small, done.other) == (0, 0)
    assert (done.third, done.after_third) == (OUT_OF_MEMORY, "s22")
    assert refused_words(done.process) == ["cudaMalloc"] * 3
    assert done.process["domains"]["device"]["live_bytes"] == 2 * MIB


PLUGIN_HOST = """
#include <dlfcn.h>
#include <stdio.h>
int main(int count, char **names)
{
    for (int i = 1; i < count; i++) {
        void *plugin = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
        int (*go)(void) = (int (*)(void))dlsym(plugin, "go");
        printf("%d\\n", go());
        dlclose(plugin);
    }
}
"""


def test_plugin_where_another_one_was_gets_its_own_runtime(sim):
    """Unloaded and loaded, plugins come to lie at the same addresses."""
    runtime = "int cudaMalloc(void **p, unsigned long n) { return %d; }"
    plugin = "int cudaMalloc(void **, unsigned long); int go(void) { void *p; volatile int r = cudaMalloc(&p, 1); return r; }"
    for n in 12, 13:
        sim.compile(f"libcudart.so.{n}", runtime % n, "-shared", "-fPIC", f"-Wl,-soname,libcudart.so.{n}")
        sim.compile(f"plugin{n}.so", plugin, "-shared", "-fPIC", f"-L{sim.scratch}", f"-l:libcudart.so.{n}", f"-Wl,-rpath,{sim.scratch}")
    order = 12, 13, 12, 12, 13
    host = sim.compile("host", PLUGIN_HOST, "-ldl")
    done = sim.guard.run([host, *(sim.scratch / f"plugin{n}.so" for n in order)])
    assert (done.returncode, done.stdout.split()) == (0, [str(n) for n in order]), done.stderr


TAIL_CALLER = """
int cudaMalloc(void **, unsigned long);
int user_malloc(void **p, unsigned long n) { return cudaMalloc(p, n); }
"""

TRACKER = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
int seen;
int cudaMalloc(void **p, size_t n)
{
    int (*next)(void **, size_t) = (int (*)(void **, size_t))dlsym(RTLD_NEXT, "cudaMalloc");
    return seen++ < 9 ? next(p, n) : 999;
}
int seen_of(void) { return seen; }
"""
TRACKED = """
#include <stdio.h>
#include <stddef.h>
int user_malloc(void **p, size_t n), user_peek(void), seen_of(void);
int main(void)
{
    void *p;
    int small = user_malloc(&p, 1 << 20), large = user_malloc(&p, 128 << 20);
    printf("small %d\\nlarge %d\\npeek %d\\nseen %d\\n", small, large, user_peek(), seen_of());
    return 0;
}
"""


@pytest.mark.parametrize("place", ["ahead", "behind", "behind libc"])
def test_other_library_that_wraps_cudamalloc_sees_each_call_once(sim, place):
    """Ahead of the guard it must not be led back to itself, and behind it not be passed over. A library that only a library of the
    program needs comes behind the C library."""
    folders = f"-Wl,-rpath,{sim.scratch}:{sim.build / 'sim'}"
    runtime = sim.build / "sim" / "libcudart.so.13"
    library = sim.compile("libuser.so", USER, "-shared", "-fPIC", "-O1", str(runtime))
    tracker = sim.compile("libtracker.so", TRACKER, "-shared", "-fPIC")
    if place == "behind libc":
        outer = "int seen_of(void); int outer_seen_of(void) { return seen_of(); }"
        between = sim.compile("libouter.so", outer, "-shared", "-fPIC", str(tracker), folders)
        program = sim.compile("tracked", TRACKED.replace("seen_of", "outer_seen_of"), str(between), str(library), folders)
    else:
        program = sim.compile("tracked", TRACKED, str(library), str(tracker), folders)
    order = {"ahead": [tracker, sim.guard.library], "behind": [sim.guard.library, tracker], "behind libc": [sim.guard.library]}[place]
    done = sim.guard.run([program], preload=order, env=sim.env | LIMIT)
    assert done.returncode == 0, done.stderr
    assert values(done.stdout) == values(f"small 0\nlarge {OUT_OF_MEMORY}\npeek {OUT_OF_MEMORY}\nseen 2\n")
    assert done.process()["domains"]["device"]["live_bytes"] == MIB


@pytest.mark.parametrize("level", ["-O0", "-O2"])
def test_local_library_that_ends_in_cudamalloc_reaches_its_runtime(sim, level):
    """A tail call leaves no trace of who called; the only runtime is then the right one."""
    flags = "-shared", "-fPIC", level, f"-Wl,-rpath,{sim.build / 'sim'}"
    library = sim.compile("libtail.so", TAIL_CALLER, *flags, str(sim.build / "sim" / "libcudart.so.13"))
    done = sim.script(
        f"""
user, p = ctypes.CDLL({str(library)!r}), c_void_p(77)
say(large=user.user_malloc(byref(p), c_size_t(128 * MIB)), out=p.value, small=user.user_malloc(byref(p), c_size_t(MIB)))
""",
        **LIMIT,
    )
    assert (done.large, done.out, done.small) == (OUT_OF_MEMORY, 77, 0)
    assert refused_words(done.process) == ["cudaMalloc"]


# ---- no driver ----------------------------------------------------------------------------------------------------

PROBES = """
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
int cuMemAlloc_v2(unsigned long long *, size_t) __attribute__((weak));
int cuMemFree_v2(unsigned long long) __attribute__((weak));
int cuMemCreate(unsigned long long *, size_t, const void *, unsigned long long) __attribute__((weak));
int cuMemUnmap(unsigned long long, size_t) __attribute__((weak));
int cuMemPoolDestroy(void *) __attribute__((weak));
int cuArrayDestroy(void *) __attribute__((weak));
int cuMemAllocAsync(unsigned long long *, size_t, void *) __attribute__((weak));
int cuGetProcAddress(const char *, void **, int, unsigned long long) __attribute__((weak));
int cuGetProcAddress_v2(const char *, void **, int, unsigned long long, int *) __attribute__((weak));
int cudaMalloc(void **, size_t) __attribute__((weak));
int cudaHostAlloc(void **, size_t, unsigned) __attribute__((weak));
int cuInit(unsigned) __attribute__((weak));
int main(void)
{
    unsigned long long p = 77;
    void *q = (void *)77, *self = dlopen(NULL, RTLD_LAZY);
    if (cuMemAlloc_v2) printf("alloc %d\\nfree %d\\n", cuMemAlloc_v2(&p, 1 << 20), cuMemFree_v2(4096));
    if (cuMemCreate) printf("create %d\\nunmap %d\\n", cuMemCreate(&p, 1 << 21, "                    ", 0), cuMemUnmap(4096, 4096));
    if (cuMemAllocAsync) printf("async %d\\n", cuMemAllocAsync(&p, 1 << 20, NULL));
    if (cuMemPoolDestroy) printf("pool %d\\narray %d\\n", cuMemPoolDestroy(NULL), cuArrayDestroy(NULL));
    if (cuGetProcAddress) printf("address %d\\n", cuGetProcAddress("cuInit", &q, 12000, 0));
    if (cuGetProcAddress_v2) printf("address5 %d\\n", cuGetProcAddress_v2("cuInit", &q, 12000, 0, NULL));
    if (cudaMalloc) printf("runtime %d\\nhost %d\\n", cudaMalloc(&q, 1 << 20), cudaHostAlloc(&q, 1 << 20, 0));
    printf("untouched %d\\n", p == 77 && q == (void *)77);
    printf("init %d\\n", cuInit != NULL);
    const char *names[] = {"cuMemAlloc_v2", "cuMemFree_v2", "cuGetProcAddress", "cudaMalloc", "cudaMallocAsync_ptsz", "cuInit"};
    int found = 0, silent = 0;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        dlerror();
        if (dlsym(RTLD_DEFAULT, names[i]) || dlsym(self, names[i]))
            found++;
        if (dlerror() == NULL)
            silent++;
    }
    printf("found %d\\nsilent %d\\n", found, silent);
    return 0;
}
"""

NOT_INITIALIZED, INSUFFICIENT_DRIVER = 3, 35


def test_without_a_driver_exports_answer_as_such_a_machine_and_probes_find_nothing(sim):
    program = sim.compile("probes", PROBES, "-ldl", "-w")
    done = sim.run([program], LD_LIBRARY_PATH="/nonexistent")
    assert done.returncode == 0, done.stderr
    answer = values(done.stdout)
    assert {answer.alloc, answer.free, answer.create, answer.unmap, getattr(answer, "async"), answer.pool, answer.array} == {
        NOT_INITIALIZED
    }
    assert {answer.address, answer.address5} == {NOT_INITIALIZED}
    assert {answer.runtime, answer.host} == {INSUFFICIENT_DRIVER}
    assert answer.untouched == 1
    assert (answer.init, answer.found, answer.silent) == (0, 0, 0)
    assert done.stderr == ""
    assert done.report()["jobs"] == []


def test_runtime_without_a_driver_says_so(sim):
    """libcudart is there, libcuda is not: each call gives the runtime's own answer."""
    shutil.copy(sim.build / "sim" / "libcudart.so.13", sim.scratch)
    done = sim.guard.run(
        [
            sys.executable,
            "-S",
            "-c",
            "import ctypes; r = ctypes.CDLL('libcudart.so.13'); p = ctypes.c_void_p(77);"
            "print(r.cudaMalloc(ctypes.byref(p), ctypes.c_size_t(1 << 20)), p.value, r.cudaGetLastError(), r.cudaGetLastError())",
        ],
        env={"LD_LIBRARY_PATH": sim.scratch, "SPARKGUARD_LIMIT": "64M"},
    )
    assert (done.returncode, done.stdout) == (0, f"{INSUFFICIENT_DRIVER} 77 {INSUFFICIENT_DRIVER} 0\n"), done.stderr


def test_driver_loaded_later_is_found_after_a_probe_that_found_none(sim):
    done = sim.run(
        [
            sys.executable,
            "-S",
            "-c",
            "import ctypes, sys; n = ctypes.CDLL(None)\n"
            "try: n.cuMemAlloc_v2; print('found')\n"
            "except AttributeError: print('absent')\n" + PRELUDE + "start(); print(take('cuMemAlloc_v2', 128 * MIB)[0])",
        ],
        **LIMIT,
    )
    assert (done.returncode, done.stdout) == (0, "absent\n2\n"), done.stderr
    assert refused_words(done.process()) == ["cuMemAlloc"]


def test_disabled_guard_leaves_dlsym_alone(sim):
    done = sim.run(
        [
            sys.executable,
            "-S",
            "-c",
            PRELUDE
            + "start(); say(result=take('cuMemAlloc_v2', 128 * MIB)[0], reached=calls('cuMemAlloc_v2'))",
        ],
        SPARKGUARD_DISABLE="1",
        **LIMIT,
    )
    assert (done.returncode, done.stdout) == (0, "result 0\nreached 1\n"), done.stderr


