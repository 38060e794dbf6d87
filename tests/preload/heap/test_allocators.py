"""Other allocators in every position: ahead of the guard, behind it, linked into the program, exported by the program.

Each program answers as it does with the same allocators and without the guard: same output, same exit status, and an end.
"""

import functools
import os
import shutil
import subprocess

import pytest
from lib.target import CC, IS_EMULATED, PYTHON
from lib.work import python_work

LIBRARIES = {"jemalloc": ["libjemalloc.so.2"], "tcmalloc": ["libtcmalloc_minimal.so.4"], "mimalloc": ["libmimalloc.so.2", "libmimalloc.so.3"]}
PRELOADS = ["none", *(f"{name} {order}" for name in LIBRARIES for order in ("ahead", "behind"))]
COMMANDS = ["ls", "sort", "python3", "compiler"]

PYTHON_WORK = python_work("block, out = bytearray(24 << 20), []")

WORK = """
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <malloc.h>
#include <map>
#include <stdexcept>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>
static unsigned long work(unsigned long seed)
{
    std::map<unsigned long, std::string> names;
    std::vector<std::vector<unsigned long>> rows;
    unsigned long sum = 0;
    for (unsigned long i = 0; i < 1500; i++) {
        seed = seed * 6364136223846793005ul + 1442695040888963407ul;
        names[seed >> 40] = std::string(seed >> 52, 'a' + seed % 26);
        rows.emplace_back(seed >> 54, seed);
        if (i % 3 == 0)
            rows.erase(rows.begin() + (long)(seed >> 33) % (long)rows.size());
    }
    for (auto &row : rows)
        sum += row.size();
    for (auto &name : names)
        sum += name.second.size();
    try {
        throw std::runtime_error(std::string(2000, 'x'));
    } catch (const std::exception &error) {
        sum += strlen(error.what());
    }
    return sum;
}
int main()
{
    unsigned long sum[4], total = 0, *grown = nullptr;
    std::vector<std::thread> threads;
    for (unsigned long i = 0; i < 4; i++)
        threads.emplace_back([&sum, i] { sum[i] = work(i); });
    for (auto &thread : threads)
        thread.join();
    for (size_t i = 1; i < 3000000; i = i * 3 / 2 + 1) {
        grown = (unsigned long *)reallocarray(grown, i, sizeof *grown);
        grown[i - 1] = i;
        total += grown[i - 1];
    }
    free(grown);
    char *zeros = (char *)calloc(5, 1 << 20), *large = (char *)malloc(30 << 20);
    large = (char *)realloc(large, 40 << 20);
    memset(large, 1, 40 << 20);
    total += std::count(zeros, zeros + (5 << 20), 0);
    free(zeros);
    int child = fork(), status = 0;
    if (child == 0)
        _exit(large[39 << 20] == 1 && work(9) != 0 ? 7 : 1);
    waitpid(child, &status, 0);
    free(large);
    printf("%lu %lu %lu %lu %lu %x\\n", sum[0], sum[1], sum[2], sum[3], total, (unsigned)status);
    return 3;
}
"""

# A program's own operators, on malloc. An allocator that is written in C++ calls them, too.
OWN_OPERATORS = """
#include <cstdlib>
#include <new>
void *operator new(std::size_t size) { void *block = std::malloc(size ? size : 1); if (!block) throw std::bad_alloc(); return block; }
void operator delete(void *block) noexcept { std::free(block); }
void operator delete(void *block, std::size_t) noexcept { std::free(block); }
"""

# A heap inside the program, exported, with the four functions that everybody thinks of. TAKE fetches memory with its mutex held.
OWN_HEAP = """
#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static char *next, *end;
static struct head { size_t size; struct head *next; } *spare[64];
static char *fetch(size_t size)
{
TAKE
}
static int class_of(size_t size) { return size <= 32 ? 5 : 64 - __builtin_clzl(size - 1); }
extern "C" void *malloc(size_t size)
{
    int number = class_of(size);
    size_t whole = (1ul << number) + sizeof(struct head);
    pthread_mutex_lock(&mutex);
    struct head *head = spare[number];
    if (head)
        spare[number] = head->next;
    else if (whole > (size_t)(end - next)) {
        size_t chunk = whole > 1 << 20 ? (whole + 4095) & ~4095ul : 1 << 20;
        next = fetch(chunk);
        end = next ? next + chunk : next;
    }
    if (!head && next) {
        head = (struct head *)next;
        next += whole;
        head->size = size_t(1) << number;
    }
    pthread_mutex_unlock(&mutex);
    if (!head)
        errno = ENOMEM;
    return head ? head + 1 : nullptr;
}
extern "C" void free(void *block)
{
    if (!block)
        return;
    struct head *head = (struct head *)block - 1;
    int number = class_of(head->size);
    pthread_mutex_lock(&mutex);
    head->next = spare[number];
    spare[number] = head;
    pthread_mutex_unlock(&mutex);
}
extern "C" void *calloc(size_t count, size_t size)
{
    void *block = malloc(count * size);
    return block ? memset(block, 0, count * size) : block;
}
extern "C" void *realloc(void *old, size_t size)
{
    size_t had = old ? ((struct head *)old - 1)->size : 0;
    if (old && size <= had)
        return old;
    void *block = malloc(size);
    if (block && old) {
        memcpy(block, old, had);
        free(old);
    }
    return block;
}
"""
BY_MAPPING = """
    void *chunk = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return chunk == MAP_FAILED ? nullptr : (char *)chunk;
"""
BY_PROTECTION = """
    static char *reserved;
    static size_t used;
    if (!reserved) {
        void *all = mmap(nullptr, 8ul << 30, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (all == MAP_FAILED)
            return nullptr;
        reserved = (char *)all;
    }
    char *chunk = reserved + used;
    used += size;
    return mprotect(chunk, size, PROT_READ | PROT_WRITE) == 0 ? chunk : nullptr;
"""

SOURCES = {
    "C++ program": [WORK],
    "program with its own operator new": [WORK, OWN_OPERATORS],
    "program that exports a heap of mappings": [WORK, OWN_HEAP.replace("TAKE", BY_MAPPING)],
    "program that exports a heap of protected space": [WORK, OWN_HEAP.replace("TAKE", BY_PROTECTION)],
    **{f"program linked with {name}": [WORK] for name in LIBRARIES},
    "own operator new, linked with tcmalloc": [WORK, OWN_OPERATORS],
}


# On one processor jemalloc 5.3 has one arena. A program that exports a heap then crashes in a third of its runs, without the guard, too.
ARENAS = {"MALLOC_CONF": "narenas:4"}


@functools.cache
def library(name):
    listed = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True).stdout
    found = [line.split()[-1] for line in listed.splitlines() if line.split()[0] in LIBRARIES[name]]
    return found[0] if found else pytest.skip(f"{' or '.join(LIBRARIES[name])} is not installed")


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """Compiles each of SOURCES when it is first asked for."""
    folder = tmp_path_factory.mktemp("programs")
    compiler = shutil.which(os.environ.get("CXX", "c++"))

    @functools.cache
    def compiled(name):
        if compiler is None:
            pytest.skip("no C++ compiler")
        program = folder / name.replace(" ", "_")
        program.with_suffix(".cc").write_text("\n".join(SOURCES[name]))
        linked = [library(known) for known in LIBRARIES if f"linked with {known}" in name]
        command = [compiler, "-O1", "-w", "-pthread", "-rdynamic", "-fno-builtin", "-o", program, program.with_suffix(".cc"), *linked]
        subprocess.run(command, check=True)
        return program

    return compiled


@pytest.fixture(scope="module")
def lines(tmp_path_factory):
    file = tmp_path_factory.mktemp("lines") / "lines"
    file.write_text("".join(f"{i * 7919 % 100003:06} {'x' * (i % 300)}\n" for i in range(100003)))
    return file


def command_of(name, programs, lines):
    if name in SOURCES:
        return [programs(name)], None
    if name == "compiler":
        compiler = shutil.which(CC.split()[0]) or pytest.skip("no C compiler")
        return [compiler, "-x", "c", "-O2", "-S", "-o", "-", "-"], "int add(int a, int b) { return a + b; }\n"
    return {
        "ls": ["ls", "-la", "/usr/lib", "/usr/bin"],
        "sort": ["sort", "--parallel=2", "-S", "4M", lines],
        "python3": [PYTHON, "-S", "-c", PYTHON_WORK],
    }[name], None


@pytest.fixture(scope="module")
def answers():
    """What a program answered without the guard, by its name and the allocators preloaded."""
    return {}


@pytest.mark.parametrize("name, preload", [(name, preload) for name in [*COMMANDS, *SOURCES] for preload in PRELOADS
                                           if "linked" not in name or preload == "none"])
def test_program_answers_as_without_the_guard(guard, programs, lines, answers, name, preload):
    command, given = command_of(name, programs, lines)
    allocator, _, order = preload.partition(" ")
    others = [] if allocator == "none" else [library(allocator)]
    both = [*others, guard.library] if order == "ahead" else [guard.library, *others]
    if (name, allocator) not in answers:
        answers[name, allocator] = guard.run(command, ARENAS, preload=others, input=given, timeout=60)
    alone, done = answers[name, allocator], guard.run(command, ARENAS, preload=both, input=given, timeout=60)
    assert alone.returncode in (0, 3), "the program works without the guard"
    assert (done.returncode, done.stdout, done.stderr) == (alone.returncode, alone.stdout, alone.stderr)


@pytest.mark.parametrize("name", ["sort", *(name for name in SOURCES if "exports" in name)])
@pytest.mark.parametrize("preload", ["none", "jemalloc ahead", "tcmalloc behind"])
def test_program_started_by_the_loader_answers_as_without_the_guard(guard, programs, lines, name, preload):
    """Where no list of the program's libraries is to be had, dlsym tells whose function comes first."""
    loader = next((path for path in ("/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1") if os.path.exists(path)), None)
    if loader is None or IS_EMULATED:
        pytest.skip("the loader is not where it is looked for")
    command, _ = command_of(name, programs, lines)
    command = [loader, shutil.which(command[0]), *command[1:]]
    allocator, _, order = preload.partition(" ")
    others = [] if allocator == "none" else [library(allocator)]
    both = [*others, guard.library] if order == "ahead" else [guard.library, *others]
    alone, done = guard.run(command, ARENAS, preload=others), guard.run(command, ARENAS, preload=both)
    assert alone.returncode in (0, 3), "the program works without the guard"
    assert (done.returncode, done.stdout, done.stderr) == (alone.returncode, alone.stdout, alone.stderr)
