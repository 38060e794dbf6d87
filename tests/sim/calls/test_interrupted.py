"""Ctrl-C handlers of interactive languages leave CUDA calls by siglongjmp: what the thread asks for afterwards is judged as before."""

import pytest
from conftest import MIB, OUT_OF_MEMORY
from lib.cuda_header import header_path

# A signal arrives while a call is inside the driver, and its handler jumps out of both. The next call is made at the same
# depth of the stack, from further down, and from further up.
PROGRAM = r"""
#include <cuda.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int cudaMalloc(void **, size_t);
void sgsim_inside(const char *symbol, int nth, void (*work)(void));

static sigjmp_buf back;
static const char *left;

static void on_signal(int number)
{
    (void)number;
    siglongjmp(back, 1);
}

static void interrupt(void)
{
    raise(SIGUSR1);
}

static __attribute__((noinline)) int take(size_t bytes)
{
    CUdeviceptr p = 0;
    return cuMemAlloc(&p, bytes);
}

static __attribute__((noinline)) int take_by_runtime(size_t bytes)
{
    void *p = NULL;
    return cudaMalloc(&p, bytes);
}

static __attribute__((noinline)) int map(size_t bytes)
{
    return mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED;
}

static __attribute__((noinline)) int call(void)
{
    CUdeviceptr p = 0;
    if (strcmp(left, "cuMemAlloc_v2") == 0)
        return take(1 << 20);
    if (strcmp(left, "cuMemAllocAsync") == 0)
        return cuMemAllocAsync(&p, 1 << 20, NULL);
    if (strcmp(left, "cuMemFree_v2") == 0)
        return cuMemFree(4096);
    return cuStreamSynchronize(NULL);
}

static __attribute__((noinline)) int deeper(int (*work)(size_t), size_t bytes, int frames)
{
    volatile char room[512];
    memset((void *)room, frames, sizeof room);
    int result = frames == 0 ? work(bytes) : deeper(work, bytes, frames - 1);
    return result + (room[5] == 99);
}

static __attribute__((noinline)) void leave(int depth)
{
    volatile char room[2048];
    memset((void *)room, 1, sizeof room);
    if (depth > 0)
        leave(depth - 1);
    else if (sigsetjmp(back, 1) == 0)
        call();
    room[7] = 2;
}

/* Four levels up, four down, or where it was. */
static int ask(const char *where, int (*work)(size_t), size_t bytes)
{
    if (strcmp(where, "same") == 0)
        return work(bytes);
    return deeper(work, bytes, strcmp(where, "down") == 0 ? 60 : 0);
}

int main(int count, char **words)
{
    CUcontext context;
    const char *where = words[2];
    left = words[1];
    signal(SIGUSR1, on_signal);
    cuInit(0);
    cuDevicePrimaryCtxRetain(&context, 0);
    cuCtxSetCurrent(context);
    sgsim_inside(left, 1, interrupt);
    if (strcmp(where, "up") == 0)
        leave(4);
    else if (sigsetjmp(back, 1) == 0)
        call();
    int mapped = ask(where, map, (size_t)128 << 20), large = ask(where, take, (size_t)128 << 20);
    int word = ask(where, take_by_runtime, (size_t)128 << 20), small = ask(where, take, 1 << 20);
    printf("large %d\nmapped %d\nword %d\nsmall %d\n", large, mapped, word, small);
    printf("again %d\n", call());
    return count != 3;
}
"""

CALLS = ["cuStreamSynchronize", "cuMemAlloc_v2", "cuMemAllocAsync", "cuMemFree_v2"]


@pytest.mark.parametrize("where", ["same", "down", "up"])
@pytest.mark.parametrize("call", CALLS)
def test_thread_that_jumped_out_of_a_call_is_judged_as_before(sim, call, where):
    parts = [sim.build / "sim" / name for name in ("libcuda.so.1", "libcudart.so.13")]
    program = sim.compile("program", PROGRAM, "-O1", f"-isystem{header_path().parent}", *map(str, parts))
    done = sim.values([program, call, where], SPARKGUARD_LIMIT="100M")
    assert (done.large, done.mapped, done.word, done.small) == (OUT_OF_MEMORY, 1, OUT_OF_MEMORY, 0)
    words = [refusal["call"] for refusal in done.process["refusals"]]
    assert words == ["mmap", "cuMemAlloc", "cudaMalloc"]


# A filter that allows everything, as a container's allows almost everything.
FILTER = """
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
__attribute__((constructor)) static void begin_filter(void)
{
    struct sock_filter allow = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {.len = 1, .filter = &allow};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
        _exit(77);
}
"""


MMAP = "return mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED;"
SHMAT = ("#include <sys/shm.h>\n" + PROGRAM).replace(
    MMAP,
    "int id = shmget(IPC_PRIVATE, bytes, 0600 | IPC_CREAT); void *p = shmat(id, NULL, 0); shmctl(id, IPC_RMID, NULL);"
    " return p == (void *)-1;",
)
MREMAP = (
    ("#define _GNU_SOURCE\n" + PROGRAM)
    .replace(MMAP, "return mremap(before, 4096, bytes, MREMAP_MAYMOVE) == MAP_FAILED;")
    .replace("static const char *left;", "static const char *left; static void *before;")
    .replace("    cuInit(0);", "    before = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); cuInit(0);")
)


@pytest.mark.parametrize("text, word", [(SHMAT, "shmat"), (MREMAP, "mremap")], ids=["shmat", "mremap"])
def test_mapping_of_a_thread_that_jumped_out_of_a_call_is_judged(sim, text, word):
    assert text.count(word) == 1
    parts = [sim.build / "sim" / name for name in ("libcuda.so.1", "libcudart.so.13")]
    program = sim.compile("program", text, "-O1", f"-isystem{header_path().parent}", *map(str, parts))
    done = sim.values([program, "cuMemAlloc_v2", "same"], SPARKGUARD_LIMIT="100M")
    assert done.mapped == 1 and word in [refusal["call"] for refusal in done.process["refusals"]]


@pytest.mark.parametrize("where", ["same", "down", "up"])
def test_thread_in_a_container_that_jumped_out_of_a_call_is_judged_as_before(sim, where):
    parts = [sim.build / "sim" / name for name in ("libcuda.so.1", "libcudart.so.13")]
    program = sim.compile("program", PROGRAM + FILTER, "-O1", f"-isystem{header_path().parent}", *map(str, parts))
    if sim.run([program, "cuMemAlloc_v2", where]).returncode == 77:
        pytest.skip("no filters of system calls here")
    done = sim.values([program, "cuMemAlloc_v2", where], SPARKGUARD_LIMIT="100M")
    assert (done.large, done.mapped, done.word, done.small) == (OUT_OF_MEMORY, 1, OUT_OF_MEMORY, 0)


def test_word_of_a_runtime_call_that_was_left_names_no_later_one(sim):
    """cudaMalloc is left while it is in the driver; a later cuMemAlloc is called by its own name."""
    text = PROGRAM.replace("return cuStreamSynchronize(NULL);", "return take_by_runtime(1 << 20);").replace('left = words[1];', 'left = "cuMemAlloc";')
    text = text.replace('sgsim_inside(left, 1', 'sgsim_inside("cuMemAlloc_v2", 1')
    parts = [sim.build / "sim" / name for name in ("libcuda.so.1", "libcudart.so.13")]
    program = sim.compile("program", text, "-O1", f"-isystem{header_path().parent}", *map(str, parts))
    done = sim.values([program, "cudaMalloc", "same"], SPARKGUARD_LIMIT="64M")
    assert [refusal["call"] for refusal in done.process["refusals"]] == ["mmap", "cuMemAlloc", "cudaMalloc"]
    assert done.process["domains"]["device"]["live_bytes"] == 2 * MIB


# Each leaves the driver at all places that it comes by, and how many those are at least.
LEFT = {"linear": 4, "managed": 4, "pinned": 4, "create": 6, "piece": 10, "growth": 10, "trimmed": 14, "too_much": 10, "launch": 6, "synchronize": 4}


@pytest.mark.parametrize("call, places", LEFT.items())
def test_call_that_was_left_leaves_nothing_that_others_would_wait_for(sim, call, places):
    done = sim.values([sim.program("cuda_left"), call], SPARKGUARD_LIMIT="200M")
    assert done.left >= places


BESIDE = PROGRAM[: PROGRAM.index("int main(")].replace("#include <pthread.h>", "#include <pthread.h>\n#include <semaphore.h>") + r"""
static sem_t begun, may_end;

static void stay(void)
{
    sem_post(&begun);
    sem_wait(&may_end);
}

static void *take_slowly(void *context)
{
    cuCtxSetCurrent(context);
    return (void *)(size_t)take(40 << 20);
}

int main(void)
{
    CUcontext context;
    CUdeviceptr p;
    pthread_t thread;
    void *other;
    signal(SIGUSR1, on_signal);
    cuInit(0);
    cuDevicePrimaryCtxRetain(&context, 0);
    cuCtxSetCurrent(context);
    if (cuMemAlloc(&p, 30 << 20) != 0 || cuMemFree(p) != 0)
        return 1;
    sgsim_inside("cuMemAlloc_v2", 1, stay);
    pthread_create(&thread, NULL, take_slowly, context);
    sem_wait(&begun);
    sgsim_inside("cuStreamSynchronize", 1, interrupt);
    if (sigsetjmp(back, 1) == 0)
        cuStreamSynchronize(NULL);
    int large = take(70 << 20);
    sem_post(&may_end);
    pthread_join(thread, &other);
    printf("large %d\nother %d\n", large, (int)(size_t)other);
    return 0;
}
"""


def test_thread_that_jumped_out_of_a_call_takes_only_its_own_bytes_out_of_flight(sim):
    """Another thread's request stays in flight, whatever the thread has taken before."""
    parts = [sim.build / "sim" / name for name in ("libcuda.so.1", "libcudart.so.13")]
    program = sim.compile("program", BESIDE, "-O1", "-pthread", f"-isystem{header_path().parent}", *map(str, parts))
    done = sim.values([program], SPARKGUARD_LIMIT="100M")
    assert (done.large, done.other) == (OUT_OF_MEMORY, 0)
