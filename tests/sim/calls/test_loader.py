"""The dynamic linker's lock belongs to whoever is inside dlopen, constructors included: no CUDA call waits for it."""

import re
from pathlib import Path

import pytest
from conftest import OUT_OF_MEMORY
from lib.cuda_header import header_path

ROOT = Path(__file__).resolve().parents[3]

# Opens a library whose constructor waits until another thread has made the call that is asked for. The wait has an end, so that a
# call that needs the lock is named instead of hanging the test.
HOST = r"""
#include <cuda.h>
#include <dlfcn.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

int cudaMalloc(void **, size_t), cudaMallocAsync(void **, size_t, void *), cudaFree(void *);
int nvmlInit_v2(void), nvmlDeviceGetHandleByIndex_v2(unsigned, void **);
int nvmlDeviceGetMemoryInfo(void *, unsigned long long *);

static sem_t begin, done;
static const char *wanted;
static int result = -1, was_waiting;
static CUcontext context;
static void *device;
static void *function[400];
static int functions;

static int make_call(void)
{
    CUdeviceptr p = 0;
    void *q = NULL;
    size_t a, b;
    unsigned long long memory[3];
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    if (strcmp(wanted, "cuMemAlloc") == 0)
        return cuMemAlloc(&p, 1 << 20);
    if (strcmp(wanted, "refused") == 0)
        return cuMemAlloc(&p, (size_t)128 << 20);
    if (strcmp(wanted, "cuMemAllocAsync") == 0)
        return cuMemAllocAsync(&p, 1 << 20, NULL);
    if (strcmp(wanted, "cuMemAllocManaged") == 0)
        return cuMemAllocManaged(&p, 1 << 20, CU_MEM_ATTACH_GLOBAL);
    if (strcmp(wanted, "cuMemGetInfo") == 0)
        return cuMemGetInfo(&a, &b);
    if (strcmp(wanted, "cuMemHostAlloc") == 0)
        return cuMemHostAlloc(&q, 1 << 20, 0);
    if (strcmp(wanted, "cuStreamSynchronize") == 0)
        return cuStreamSynchronize(NULL);
    if (strcmp(wanted, "cuMemCreate") == 0)
        return cuMemCreate(&p, 2 << 20, &prop, 0);
    if (strcmp(wanted, "cuGetProcAddress") == 0)
        return cuGetProcAddress("cuLaunchKernel", &q, 12000, 0, NULL);
    if (strcmp(wanted, "cudaMalloc") == 0)
        return cudaMalloc(&q, 1 << 20);
    if (strcmp(wanted, "cudaMallocAsync") == 0)
        return cudaMallocAsync(&q, 1 << 20, NULL);
    if (strcmp(wanted, "nvmlDeviceGetMemoryInfo") == 0)
        return nvmlDeviceGetMemoryInfo(device, memory);
    if (strcmp(wanted, "every") == 0)
        for (int i = 0; i < functions; i++) /* what is asked for is nonsense: the driver says so */
            (void)((int (*)(void *, size_t, size_t, size_t, void *, void *))function[i])(NULL, 0, 0, 0, NULL, NULL);
    return strcmp(wanted, "every") == 0 ? 0 : -2;
}

static void *work(void *unused)
{
    cuCtxSetCurrent(context);
    sem_wait(&begin);
    result = make_call();
    sem_post(&done);
    return unused;
}

void in_constructor(void)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 10;
    sem_post(&begin);
    was_waiting = sem_timedwait(&done, &until) != 0;
}

int main(int count, char **words)
{
    pthread_t thread;
    wanted = words[2];
    cuInit(0);
    cuDevicePrimaryCtxRetain(&context, 0);
    cuCtxSetCurrent(context);
    cudaFree(NULL);
    nvmlInit_v2();
    nvmlDeviceGetHandleByIndex_v2(0, &device);
    for (int i = 3; i < count; i++)
        function[functions++] = dlsym(RTLD_DEFAULT, words[i]);
    pthread_create(&thread, NULL, work, NULL);
    if (dlopen(words[1], RTLD_NOW) == NULL)
        return 1;
    pthread_join(thread, NULL);
    printf("waited %d\nresult %d\n", was_waiting, result);
    return 0;
}
"""

PLUGIN = """
void in_constructor(void);
__attribute__((constructor)) static void begin(void) { in_constructor(); }
"""

CALLS = ["cuMemAlloc", "cuMemAllocAsync", "cuMemAllocManaged", "cuMemGetInfo", "cuMemHostAlloc", "cuStreamSynchronize", "cuMemCreate"]
CALLS += ["cuGetProcAddress", "cudaMalloc", "cudaMallocAsync", "nvmlDeviceGetMemoryInfo"]


@pytest.fixture
def host(sim):
    parts = [sim.build / "sim" / name for name in ("libcuda.so.1", "libcudart.so.13", "libnvidia-ml.so.1")]
    return sim.compile("host", HOST, "-pthread", "-rdynamic", f"-isystem{header_path().parent}", *map(str, parts), "-ldl")


@pytest.mark.parametrize("call", CALLS)
def test_first_call_is_made_while_a_constructor_waits_for_it(sim, host, call):
    done = sim.values([host, sim.compile("plugin.so", PLUGIN, "-shared", "-fPIC"), call])
    assert (done.waited, done.result) == (0, 0)


def test_first_refusal_comes_while_a_constructor_waits_for_it(sim, host):
    done = sim.values([host, sim.compile("plugin.so", PLUGIN, "-shared", "-fPIC"), "refused"], SPARKGUARD_LIMIT="64M")
    assert (done.waited, done.result) == (0, OUT_OF_MEMORY)


def test_every_hooked_function_of_the_driver_is_called_while_a_constructor_waits(sim, host):
    names = re.findall(r"^SG_HOOK_DRIVER\((\w+),", (ROOT / "preload" / "guard" / "hooks" / "hooks.def").read_text(), re.MULTILINE)
    assert len(names) > 70
    done = sim.values([host, sim.compile("plugin.so", PLUGIN, "-shared", "-fPIC"), "every", *names])
    assert (done.waited, done.result) == (0, 0)


OPENS_TWICE = """
#include <dlfcn.h>
#include <stdio.h>
int main(int count, char **words)
{
    for (int i = 1; i < count; i++) {
        void *plugin = dlopen(words[i], RTLD_NOW | RTLD_LOCAL);
        int (*take)(void) = plugin ? (int (*)(void))dlsym(plugin, "take") : 0;
        printf("take%d %d\\n", i, take ? take() : -1);
        dlclose(plugin);
        printf("loaded%d %d\\n", i, dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD) != NULL);
    }
    return 0;
}
"""

USES_DRIVER = """
int cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *), cuMemAlloc_v2(unsigned long *, unsigned long);
int take(void)
{
    void *context;
    unsigned long out;
    return cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context) ? -2 : cuMemAlloc_v2(&out, 1 << 20);
}
"""


def test_driver_outlives_the_plugin_that_brought_it(sim):
    """The guard keeps addresses of the driver, so closing the only library that needs the driver must not unload it."""
    plugins = [sim.compile(f"uses{i}.so", USES_DRIVER, "-shared", "-fPIC", str(sim.build / "sim" / "libcuda.so.1")) for i in (1, 2)]
    done = sim.values([sim.compile("host", OPENS_TWICE, "-ldl"), *plugins])
    assert (done.take1, done.loaded1, done.take2, done.loaded2) == (0, 1, 0, 1)
