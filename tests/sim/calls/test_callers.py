"""CUDA memory by call site: the program's own call, also where the runtime lies between it and the driver."""

import subprocess
import sys

import pytest
from conftest import MIB, PRELUDE

# What is written behind the call keeps it from being the function's last.
LIBRARY = """
#include <stddef.h>
int cudaMalloc(void **, size_t), cudaMallocManaged(void **, size_t, unsigned), cudaMallocHost(void **, size_t);
int cudaMallocAsync(void **, size_t, void *);
int cuMemAlloc_v2(unsigned long *, size_t), cuMemCreate(unsigned long *, size_t, const void *, unsigned long long);
volatile int calls;
int device(void **p, size_t n) { int r = cudaMalloc(p, n); calls++; return r; }
int managed(void **p, size_t n) { int r = cudaMallocManaged(p, n, 1); calls++; return r; }
int pinned(void **p, size_t n) { int r = cudaMallocHost(p, n); calls++; return r; }
int pooled(void **p, size_t n) { int r = cudaMallocAsync(p, n, NULL); calls++; return r; }
int driver(unsigned long *p, size_t n) { int r = cuMemAlloc_v2(p, n); calls++; return r; }
int physical(unsigned long *p, size_t n, const void *prop) { int r = cuMemCreate(p, n, prop, 0); calls++; return r; }
"""

LOAD = """
start()
one, two = ctypes.CDLL(sys.argv[1]), ctypes.CDLL(sys.argv[2])
def take(function, size, *more):
    out = c_uint64(0)
    ok(function(byref(out), c_size_t(size), *more))
    return out.value
"""


@pytest.fixture
def libraries(sim):
    flags = ["-O1", "-shared", "-fPIC", f"-L{sim.build}/sim", "-l:libcudart.so.13", "-l:libcuda.so.1"]
    return [sim.compile(f"lib{name}.so", LIBRARY, *flags) for name in ("one", "two")]


def run(sim, text, libraries):
    done = sim.run([sys.executable, "-S", "-c", PRELUDE + LOAD + text, *libraries])
    assert done.returncode == 0, done.stderr
    return done


def symbols(path):
    lines = subprocess.run(["nm", "-S", path], check=True, capture_output=True, text=True).stdout.splitlines()
    return {f[3]: (int(f[0], 16), int(f[1], 16)) for f in map(str.split, lines) if len(f) == 4}


def blocks_of(process, libraries):
    """(library, function, domain) to (bytes, count)."""
    found = {}
    for path in libraries:
        for block in process["blocks"]:
            if block["library"] == path.name:
                (name,) = (n for n, (at, size) in symbols(path).items() if at < block["offset"] <= at + size)
                found[path.name, name, block["domain"]] = (block["bytes"], block["count"])
    return found


def test_every_kind_of_memory_belongs_to_the_function_that_asked_for_it(sim, libraries):
    text = """
for _ in range(3):
    take(one.device, 4 * MIB)
take(one.device, 4096)
take(two.device, 5 * MIB)
take(one.managed, 6 * MIB)
take(one.pinned, 7 * MIB)
take(two.pooled, 8 * MIB)
take(two.driver, 9 * MIB)
take(two.physical, 10 * MIB, byref(ON_DEVICE))
"""
    process = run(sim, text, libraries).process()
    assert blocks_of(process, libraries) == {
        ("libone.so", "device", "device"): (12 * MIB + 4096, 4),
        ("libtwo.so", "device", "device"): (5 * MIB, 1),
        ("libone.so", "managed", "managed"): (6 * MIB, 1),
        ("libone.so", "pinned", "pinned"): (7 * MIB, 1),
        ("libtwo.so", "pooled", "device"): (8 * MIB, 1),
        ("libtwo.so", "driver", "device"): (9 * MIB, 1),
        ("libtwo.so", "physical", "device"): (10 * MIB, 1),
    }
    assert not any("cudart" in (b["library"] or "") for b in process["blocks"])


def test_what_is_freed_is_gone_and_a_failed_free_brings_it_back(sim, libraries):
    text = """
kept = [take(one.device, 4 * MIB) for _ in range(3)]
give(kept[0])
fail("cuMemFree_v2", code=999)
assert cuda.cuMemFree_v2(c_uint64(kept[1])) != 0
gone = take(two.managed, 6 * MIB)
give(gone)
handle = take(two.physical, 10 * MIB, byref(ON_DEVICE))
ok(cuda.cuMemRelease(c_uint64(handle)))
block = take(two.pooled, 8 * MIB)
ok(cuda.cuMemFreeAsync(c_uint64(block), None))
"""
    assert blocks_of(run(sim, text, libraries).process(), libraries) == {("libone.so", "device", "device"): (8 * MIB, 2)}


def test_what_a_context_takes_with_it_is_gone(sim, libraries):
    text = """
take(one.device, 4 * MIB)
ok(cuda.cuDevicePrimaryCtxReset_v2(0))
"""
    assert blocks_of(run(sim, text, libraries).process(), libraries) == {}


def test_a_runtime_inside_the_library_is_part_of_it(sim):
    static = ["-O1", "-shared", "-fPIC", f"{sim.build}/sim/libcudart_static.a", f"-L{sim.build}/sim", "-l:libcuda.so.1"]
    hidden = "-Wl,--exclude-libs,ALL"
    libraries = [sim.compile(f"lib{name}.so", LIBRARY, *static, hidden, "-Wl,-Bsymbolic") for name in ("one", "two")]
    done = run(sim, "take(one.device, 4 * MIB)\ntake(two.device, 5 * MIB)\n", libraries)
    sizes = {b["library"]: b["bytes"] for b in done.process()["blocks"] if b["domain"] == "device"}
    assert sizes == {"libone.so": 4 * MIB, "libtwo.so": 5 * MIB}
