"""The heap: every function counted to the byte, refused by its own contract, and said in two lines.

The programs heap_* check the library's figures from inside, in place, against malloc_usable_size; see heap_case.h.
"""

import os
import re
import shutil
import subprocess
import time

import pytest
from lib.output import values
from lib.target import PYTHON

MIB = 1 << 20

FUNCTIONS = (
    "malloc calloc realloc reallocarray posix_memalign aligned_alloc memalign valloc pvalloc".split()
)
CASES = """
    refused_realloc_keeps_block
    refused_realloc_of_small_block_keeps_it
    overflowing_calloc_and_reallocarray_answer_enomem
    more_than_ptrdiff_max_answers_enomem
    bad_alignment_answers_einval
    failed_posix_memalign_leaves_errno_as_the_allocator_does
    what_no_machine_can_grant_is_refused_without_a_snapshot
    realloc_to_what_the_block_has_takes_nothing
    realloc_of_a_block_from_another_entry_point_is_unmatched
    free_of_a_block_from_another_entry_point_is_unmatched
    block_that_went_through_another_entry_point_is_unmatched_once_its_address_is_anothers
    alignment_is_kept
    failure_of_the_allocator_changes_nothing
    realloc_to_zero_frees
    realloc_of_null_allocates
    free_of_null_does_nothing
    errno_is_left_alone
    usable_size_is_the_allocators
    calloc_gives_zeros
    small_blocks_in_mappings_of_their_own_are_counted
    sizes_around_the_tracked_are_counted
    refused_small_block_goes_back
    blocks_freed_by_another_thread_are_counted
    records_of_dead_threads_are_adopted
    two_hundred_threads_at_once_are_counted
    pvalloc_gives_whole_pages
    blocks_of_thread_destructors_are_counted
    blocks_in_exit_handlers_are_counted
""".split()
SIZE = r"\d+(\.\d)? [KMG]?i?B"
TAIL = rf"; this process holds {SIZE}, peak {SIZE}; see sparkguard-report (\d+)"
TRY = r"try: .+; .* would have been enough for this request"


def run(guard, name, *arguments, env=None, **options):
    done = guard.run([guard.build / "tests/programs" / name, *arguments], env=env, **options)
    assert done.returncode == 0, f"{name} {' '.join(arguments)}: {done.returncode}: {done.stdout}{done.stderr}"
    return done


def shared_library(folder, name, source):
    compiler = shutil.which(os.environ.get("CC", "cc").split()[0])
    if compiler is None:
        pytest.skip("no C compiler")
    (folder / f"{name}.c").write_text(source)
    library = folder / f"{name}.so"
    flags = ["-shared", "-fPIC", "-O1", "-fno-builtin", "-w", "-D_GNU_SOURCE"]
    subprocess.run([compiler, *flags, "-o", library, folder / f"{name}.c"], check=True)
    return library


def lines(done):
    return [line for line in done.stderr.splitlines() if line.startswith("sparkguard")]


def refusal_line(done):
    """The first line of the only refusal; the second one is the next step."""
    line, way_out = done.stderr.splitlines()
    assert re.fullmatch(TRY, way_out), way_out
    return line


# ---- what counts ----


@pytest.mark.parametrize("function", FUNCTIONS)
def test_counted_to_the_byte(guard, function):
    assert run(guard, "heap_count", function).stderr == ""


@pytest.mark.parametrize("function", ["realloc", "reallocarray"])
def test_resized_block_counted_to_the_byte(guard, function):
    run(guard, "heap_resize", function)


@pytest.mark.parametrize("case", CASES)
def test_case(guard, case):
    done = run(guard, "heap_cases", case, env={"SPARKGUARD_LIMIT": "32M"})
    if "exit_handlers" in case:
        assert done.stdout == "checked\n"


def test_blocks_from_before_set_up_are_counted(guard):
    run(guard, "heap_early")


def test_constructor_of_another_library_is_limited(guard, tmp_path):
    source = """
        #include <stdlib.h>
        #include <unistd.h>
        __attribute__((constructor)) static void begin(void)
        {
            void *volatile ptr = malloc(64 << 20);
            (void)!write(1, ptr ? "granted" : "refused", 7);
        }"""
    library = shared_library(tmp_path, "early", source)
    done = run(guard, "heap_early", preload=[guard.library, library], env={"SPARKGUARD_LIMIT": "32M"})
    assert done.stdout == "refused"
    assert "refused malloc of 64.0 MiB" in done.stderr


def test_without_credit_counted_to_the_byte(guard):
    """LARGE=1: every request is judged by itself and paid directly."""
    for function in FUNCTIONS:
        run(guard, "heap_count", function, env={"SPARKGUARD_LARGE": "1B"})
    run(guard, "heap_resize", "realloc", env={"SPARKGUARD_LARGE": "1B"})
    run(guard, "heap_cases", "blocks_of_thread_destructors_are_counted", env={"SPARKGUARD_LARGE": "1B"})


def test_with_credit_only_counted_to_the_byte(guard):
    """LARGE=1G: nothing is judged by itself."""
    for function in FUNCTIONS:
        run(guard, "heap_count", function, env={"SPARKGUARD_LARGE": "1G", "SPARKGUARD_DIR": guard.directory})
    run(guard, "heap_resize", "realloc", env={"SPARKGUARD_LARGE": "1G"})


def test_report_of_a_running_program_tells_its_live_bytes(guard):
    script = "import sys\nb = bytearray(300 << 20)\nprint('ready', flush=True)\nsys.stdin.readline()"
    process = guard.popen([PYTHON, "-S", "-c", script], stdin=subprocess.PIPE)
    try:
        assert process.stdout.readline() == "ready\n"
        entry = guard.process(process.pid)
    finally:
        process.communicate("\n", timeout=60)
    assert entry["state"] == "running" and entry["guarding"]
    heap = entry["domains"]["heap"]
    assert 300 << 20 <= heap["live_bytes"] < 320 << 20
    assert heap["live_bytes"] <= heap["peak_bytes"] <= heap["live_bytes"] + (8 << 20)
    assert entry["live_bytes"] == sum(d["live_bytes"] for d in entry["domains"].values())


# ---- refusal ----


@pytest.mark.parametrize("function", FUNCTIONS)
def test_refused_by_its_own_contract(guard, function):
    done = run(guard, "heap_refused", function, env={"SPARKGUARD_LIMIT": "32M"})
    line = refusal_line(done)
    assert line.startswith(f"sparkguard: refused {function} of 16.0 MiB: ")
    entry = done.process()
    assert entry["refused_count"] == 1 and entry["refused_bytes"] == 16 << 20
    (refusal,) = entry["refusals"]
    assert refusal["call"] == function and refusal["size_bytes"] == 16 << 20
    assert refusal["domain"] == "heap" and refusal["reason"] == "limit"
    assert entry["domains"]["heap"]["refused_count"] == 1


def test_limit_message_names_sizes_variable_and_pid(guard):
    done = run(guard, "heap_cases", "refuse_twenty_mebibytes_more", env={"SPARKGUARD_LIMIT": "32M"})
    line = refusal_line(done)
    why = r"1[12]\.\d MiB of room in the 32\.0 MiB this job may hold \(SPARKGUARD_LIMIT\)"
    pattern = rf"sparkguard: refused calloc of 20\.0 MiB: {why}{TAIL}"
    match = re.fullmatch(pattern, line)
    assert match and match.groups()[-1] == str(done.pid), line


def test_reserve_message_is_the_one_of_the_interface(guard, tmp_path):
    root = tmp_path / "root/proc"
    root.mkdir(parents=True)
    (root / "meminfo").write_text("MemTotal: 16777216 kB\nMemFree: 2097152 kB\nMemAvailable: 2097152 kB\n")
    env = {"SPARKGUARD_SYSTEM_ROOT": tmp_path / "root", "SPARKGUARD_RESERVE": "2020M"}
    done = run(guard, "heap_cases", "refuse_twenty_mebibytes_more", env={**env, "SPARKGUARD_LIMIT": None})
    why = rf"{SIZE} usable, 2\.0 GiB kept in reserve \(SPARKGUARD_RESERVE\)"
    pattern = rf"sparkguard: refused calloc of 20\.0 MiB: {why}{TAIL}"
    match = re.fullmatch(pattern, refusal_line(done))
    assert match and match.groups()[-1] == str(done.pid), done.stderr


def test_a_thousand_refusals_at_once_say_one_line_a_second(guard):
    begin = time.monotonic()
    done = run(guard, "heap_cases", "refuse_a_thousand_times_at_once", env={"SPARKGUARD_LIMIT": "32M"})
    *said, end = lines(done)
    assert 1 <= len(said) <= 1 + time.monotonic() - begin
    assert re.fullmatch(rf"sparkguard: and \d+ more refused in \d+(\.\d)? m?s; see sparkguard-report {done.pid}", end), end
    entry = done.process()
    assert entry["refused_count"] == 1000 and len(entry["refusals"]) == 64


def test_limit_that_no_program_runs_within_is_told_of_and_refusals_are_counted(guard):
    done = run(guard, "heap_cases", "refuse_for_more_than_a_second", env={"SPARKGUARD_LIMIT": "15M"})
    warning, refusal, way_out, rest = done.stderr.splitlines()
    assert warning == "sparkguard: SPARKGUARD_LIMIT=15M is less than any program needs (16 MiB): nearly every request will be refused"
    assert refusal.startswith("sparkguard: refused malloc of ") and way_out.startswith("try: ") and " more refused in " in rest


def test_refusals_go_on_to_be_said_once_a_second(guard):
    """The first at once, and one in each second that has begun since."""
    done = run(guard, "heap_cases", "refuse_for_more_than_a_second", env={"SPARKGUARD_LIMIT": "32M"})
    *said, end = lines(done)
    assert 2 <= len(said) <= 1 + int(float(done.stdout)) and end.startswith("sparkguard: and ")


def test_refused_small_growth_of_a_large_block_names_block_and_growth(guard):
    """As a shell's string that grows by a few bytes and does not fit any more."""
    done = run(guard, "heap_grow", 2000, 1, 400, env={"SPARKGUARD_LIMIT": "64M"})
    line = refusal_line(done)
    why = r"\d+(\.\d)? K?i?B of room in the 64\.0 MiB this job may hold \(SPARKGUARD_LIMIT\)"
    assert re.fullmatch(rf"sparkguard: refused realloc of 6[34]\.\d MiB \((4|64)\.0 KiB more\): {why}{TAIL}", line), line
    (refusal,) = done.process()["refusals"]
    assert refusal["call"] == "realloc" and refusal["reason"] == "limit"


def test_requests_below_large_are_refused_in_silence(guard):
    env = {"SPARKGUARD_LIMIT": "32M", "SPARKGUARD_LARGE": "1G"}
    done = run(guard, "heap_cases", "refuse_small_ones_only", env=env)
    assert done.stderr == ""
    assert done.process()["refused_count"] > 0


# ---- growing by realloc: every step is asked ----

GROWTHS = [pytest.param(8, 1, marks=pytest.mark.long), pytest.param(16, 1, marks=pytest.mark.long), (24, 1), (1000, 1), (4096, 1),
           (4104, 4), (65536, 20), (8, 300), (4096, 300), (100000, 300)]


def held(done):
    said = values(done.stdout)
    return said.resident_bytes - said.resident_bytes_at_first, said.data_bytes - said.data_bytes_at_first


@pytest.mark.parametrize("step, blocks", GROWTHS)
def test_growth_by_realloc_stays_within_the_limit(guard, step, blocks):
    """What is resident is the kernel's own figure. Blocks of up to LARGE may pass the limit by 32 MiB."""
    done = run(guard, "heap_grow", step, blocks, 256, "touch", env={"SPARKGUARD_LIMIT": "64M"})
    small = 32 * MIB if blocks > 64 else 0
    assert held(done)[0] <= 64 * MIB + small + 2 * MIB
    process = done.process()
    assert process["refused_count"] > 0 and process["refusals"]
    assert process["live_bytes"] >= held(done)[0] - 2 * MIB


@pytest.mark.parametrize("step, blocks", GROWTHS)
def test_growth_by_realloc_stays_above_the_reserve(guard, tmp_path, step, blocks):
    """Nothing is touched, so all that was granted is promised, and the machine's figure says the same all the time."""
    root = tmp_path / "root/proc"
    root.mkdir(parents=True)
    (root / "meminfo").write_text("MemTotal: 16777216 kB\nMemFree: 2097152 kB\nMemAvailable: 2097152 kB\n")
    env = {"SPARKGUARD_SYSTEM_ROOT": tmp_path / "root", "SPARKGUARD_RESERVE": "1984M", "SPARKGUARD_FLOOR": "1984M"}
    done = run(guard, "heap_grow", step, blocks, 256, env=env)
    small = 32 * MIB if blocks > 64 else 0
    assert held(done)[1] <= 64 * MIB + small + 2 * MIB
    assert done.process()["refused_count"] > 0


# ---- the next allocator ----

PRELOADS = {
    "jemalloc": ["libjemalloc.so.2", [f for f in FUNCTIONS if f != "pvalloc"]],  # it has no pvalloc
    "tcmalloc": ["libtcmalloc_minimal.so.4", FUNCTIONS],
}


def next_allocator(guard, name):
    library = PRELOADS[name][0]
    listed = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True).stdout
    if library not in listed:
        pytest.skip(f"{library} is not installed")
    return [guard.library, library]


@pytest.mark.parametrize("allocator", PRELOADS)
def test_next_allocator_counted_to_the_byte(guard, allocator):
    preload = next_allocator(guard, allocator)
    for function in PRELOADS[allocator][1]:
        run(guard, "heap_count", function, preload=preload)


@pytest.mark.parametrize("allocator", PRELOADS)
def test_next_allocator_refused(guard, allocator):
    preload = next_allocator(guard, allocator)
    for function in PRELOADS[allocator][1]:
        run(guard, "heap_refused", function, preload=preload, env={"SPARKGUARD_LIMIT": "32M"})


def test_jemalloc_from_before_set_up_is_counted(guard):
    """Not with tcmalloc: its malloc_usable_size answers 0 until its constructor has run."""
    run(guard, "heap_early", preload=next_allocator(guard, "jemalloc"))


@pytest.mark.parametrize("allocator", PRELOADS)
@pytest.mark.parametrize(
    "case",
    """refused_realloc_keeps_block blocks_freed_by_another_thread_are_counted
    blocks_of_thread_destructors_are_counted blocks_in_exit_handlers_are_counted alignment_is_kept""".split(),
)
def test_next_allocator_case(guard, allocator, case):
    run(guard, "heap_cases", case, preload=next_allocator(guard, allocator), env={"SPARKGUARD_LIMIT": "32M"})


@pytest.mark.parametrize(
    "switch", ["GLIBC_TUNABLES=glibc.malloc.check=3", "MALLOC_PERTURB_=85", "MALLOC_MMAP_THRESHOLD_=1", "MALLOC_ARENA_MAX=1"]
)
@pytest.mark.parametrize("is_debug_heap", [False, True])
def test_glibcs_own_switches_change_no_figure(guard, switch, is_debug_heap):
    preload = [guard.library] + (["libc_malloc_debug.so.0"] if is_debug_heap else [])
    name, _, value = switch.partition("=")
    for function in FUNCTIONS:
        done = run(guard, "heap_count", function, preload=preload, env={name: value})
        if "cannot be preloaded" in done.stderr:
            pytest.skip("libc_malloc_debug.so.0 is not installed")


def test_headers_of_another_heap_are_not_read(guard):
    """Memcheck puts a heap of its own behind the libc's names, and reports every read outside a block."""
    if shutil.which("valgrind") is None:
        pytest.skip("valgrind is not installed")
    options = ["-q", "--error-exitcode=9", "--soname-synonyms=somalloc=nouserintercepts"]  # ours it would replace, too
    done = guard.run(["valgrind", *options, guard.build / "tests/programs/heap_count", "malloc"])
    if "Fatal error at startup" in done.stderr:
        pytest.skip("memcheck needs the debug symbols of the dynamic loader (libc6-dbg)")
    assert "Invalid" not in done.stderr and done.returncode != 9, done.stderr


# A heap that checks as hardened_malloc does, and has the name that tells it.
CHECKING = """
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
void *__libc_malloc(size_t);
static const uint64_t live = 0x6c697665626c6f63;
struct head { uint64_t mark, size; };
static struct head *checked(void *block, const char *what)
{
    struct head *head = (struct head *)block - 1;
    if (head->mark == live)
        return head;
    write(2, what, strlen(what));
    _exit(66);
}
size_t malloc_object_size(void *block) { return checked(block, "bad object size")->size; }
size_t malloc_usable_size(void *block) { return block ? checked(block, "bad size")->size : 0; }
void *malloc(size_t size)
{
    struct head *head = __libc_malloc(size + sizeof *head);
    if (!head)
        return NULL;
    *head = (struct head){live, size};
    return head + 1;
}
void free(void *block)
{
    if (block)
        checked(block, "bad free")->mark = 0;
}
void *calloc(size_t count, size_t size)
{
    void *block = malloc(count * size);
    return block ? memset(block, 0, count * size) : block;
}
void *realloc(void *old, size_t size)
{
    size_t had = old ? checked(old, "bad realloc")->size : 0;
    void *block = malloc(size);
    if (block && old)
        memcpy(block, old, had < size ? had : size);
    if (block)
        free(old);
    return block;
}
"""
MISUSES = "free_twice free_large_twice free_inside free_static realloc_static none".split()


@pytest.mark.parametrize("heap", ["libc_malloc_debug", "checking"])
@pytest.mark.parametrize("misuse", MISUSES)
def test_checking_heap_blames_the_call_that_was_wrong(guard, tmp_path, heap, misuse):
    """The size of a block is not asked of such a heap before its free has seen the block."""
    library = "libc_malloc_debug.so.0" if heap == "libc_malloc_debug" else shared_library(tmp_path, heap, CHECKING)
    command, env = [guard.build / "tests/programs/heap_bad", misuse], {"GLIBC_TUNABLES": "glibc.malloc.check=3"}
    alone = guard.run(command, env=env, preload=[library])
    if "cannot be preloaded" in alone.stderr:
        pytest.skip("libc_malloc_debug.so.0 is not installed")
    done = guard.run(command, env=env, preload=[guard.library, library])
    assert (alone.returncode == 0) == (misuse == "none")
    assert (done.returncode, done.stdout, done.stderr) == (alone.returncode, alone.stdout, alone.stderr)


@pytest.mark.parametrize("heap", ["libc_malloc_debug", "checking"])
def test_checking_heap_counted_to_the_byte(guard, tmp_path, heap):
    library = "libc_malloc_debug.so.0" if heap == "libc_malloc_debug" else shared_library(tmp_path, heap, CHECKING)
    options = {"preload": [guard.library, library], "env": {"GLIBC_TUNABLES": "glibc.malloc.check=3"}}
    for function in ("malloc", "calloc", "realloc", "reallocarray"):
        run(guard, "heap_count", function, **options)
    run(guard, "heap_resize", "realloc", **options)
    run(guard, "heap_cases", "blocks_freed_by_another_thread_are_counted", **options)
    done = run(guard, "heap_early", **options)
    assert "cannot be preloaded" not in done.stderr or pytest.skip("libc_malloc_debug.so.0 is not installed")


# An allocator that frees by the size, too, and without its own `free`. It says how many bytes were freed by size.
SIZED = """
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
void *__libc_malloc(size_t);
void __libc_free(void *);
static size_t freed_bytes;
static void say(void) { printf("%zu\\n", freed_bytes); }
__attribute__((constructor)) static void begin(void) { atexit(say); }
void *malloc(size_t size) { return __libc_malloc(size); }
void free(void *block) { __libc_free(block); }
void free_sized(void *block, size_t size) { freed_bytes += size; __libc_free(block); }
void free_aligned_sized(void *block, size_t alignment, size_t size) { freed_bytes += alignment + size; __libc_free(block); }
"""
SIZED_ALONE = """
void free(void *);
void free_sized(void *block, unsigned long size) { free(block); }
void free_aligned_sized(void *block, unsigned long alignment, unsigned long size) { free(block); }
"""


def test_frees_with_a_size_reach_the_allocator_and_are_counted(guard, tmp_path):
    """Where another allocator has them, as jemalloc 5.3.1 does, and where they end in the global `free`, as in glibc 2.43."""
    sizes = [10 * 3**i for i in range(14) if 10 * 3**i < 16 * MIB]
    freed_bytes = sum(sizes) + sum(64 + size // 64 * 64 + 64 for size in sizes)
    library = shared_library(tmp_path, "sized", SIZED)
    done = run(guard, "heap_cases", "blocks_freed_with_their_size_are_counted", preload=[guard.library, library])
    assert done.stdout == f"{freed_bytes}\n"
    library = shared_library(tmp_path, "sized_alone", SIZED_ALONE)
    run(guard, "heap_cases", "blocks_freed_with_their_size_are_counted", preload=[guard.library, library])
    run(guard, "heap_cases", "blocks_freed_with_their_size_are_counted")


@pytest.mark.parametrize("is_glibcs", [True, False])
def test_growth_is_judged_as_a_copy_unless_glibc_grows_in_place(guard, tmp_path, is_glibcs):
    """64 MiB are to be had. From 40 to 60 MiB takes 20 more in place, and 60 for a moment where another allocator copies."""
    root = tmp_path / "root/proc"
    root.mkdir(parents=True)
    (root / "meminfo").write_text("MemTotal: 16777216 kB\nMemFree: 2097152 kB\nMemAvailable: 2097152 kB\n")
    env = {"SPARKGUARD_SYSTEM_ROOT": tmp_path / "root", "SPARKGUARD_RESERVE": "1984M"}
    others = [] if is_glibcs else [shared_library(tmp_path, "sized", SIZED)]
    done = run(guard, "heap_grow", 20 * MIB, 1, 256, env=env, preload=[guard.library, *others])
    assert abs(held(done)[1] - (60 if is_glibcs else 40) * MIB) < 4 * MIB


# An allocator in which a thread may be cancelled: one that writes a log, for example.
CANCELLED = """
#include <pthread.h>
#include <stddef.h>
void *__libc_malloc(size_t);
void *malloc(size_t size)
{
    if (size >= 4 << 20)
        pthread_testcancel();
    return __libc_malloc(size);
}
"""


def test_thread_that_is_cancelled_inside_the_allocator_leaves_nothing_in_flight(guard, tmp_path):
    library = shared_library(tmp_path, "cancelled", CANCELLED)
    run(guard, "heap_cases", "cancelled_threads_leave_nothing_in_flight", preload=[guard.library, library])


def test_thread_can_be_cancelled_after_a_refusal(guard):
    run(guard, "heap_cases", "thread_is_cancelled_after_a_refusal", env={"SPARKGUARD_LIMIT": "1G"})


# An allocator that allocates to tell how large a block is.
TELLING = """
#include <stddef.h>
void *__libc_malloc(size_t);
void __libc_free(void *);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *malloc(size_t size) { return __libc_malloc(size); }
void free(void *block) { __libc_free(block); }
void *calloc(size_t count, size_t size) { return __libc_calloc(count, size); }
void *realloc(void *block, size_t size) { return __libc_realloc(block, size); }
size_t malloc_usable_size(void *block)
{
    void *(*volatile take)(size_t) = malloc;
    free(take(200000));
    return block ? (((size_t *)block)[-1] & ~(size_t)7) - (((size_t *)block)[-1] & 2 ? 16 : 8) : 0;
}
"""


def test_allocator_may_allocate_to_tell_the_size_of_a_block(guard, tmp_path):
    telling = shared_library(tmp_path, "telling", TELLING)
    work = "x = [bytearray(n * 1000) for n in range(1, 300)]\ny = bytearray()\nfor i in range(200): y += bytes(10000)\nprint(len(x), len(y))"
    done = guard.run([PYTHON, "-S", "-c", work], preload=[guard.library, telling])
    assert done.stdout == "299 2000000\n", done.stderr


# As glibc 2.43: a block with a mapping of its own loses 8 bytes to its header, no longer 16.
GLIBC_2_43 = """
size_t malloc_usable_size(void *block)
{
    return block ? (((size_t *)block)[-1] & ~(size_t)7) - 8 : 0;
}
"""


def test_usable_size_of_a_mapped_block_is_the_allocators(guard, tmp_path):
    newer = shared_library(tmp_path, "newer", "#include <stddef.h>\n" + GLIBC_2_43)
    work = (
        "import ctypes\nc = ctypes.CDLL(None)\nc.malloc.restype = c.malloc_usable_size.restype = ctypes.c_size_t\nbelow = seen = 0\n"
        "for size in range(200000, 1100000, 504):\n"  # below and above what the block table and a call site begin with
        "    block = ctypes.c_void_p(c.malloc(ctypes.c_size_t(size)))\n"
        "    usable = c.malloc_usable_size(block)\n    seen += usable % 4096 == 4088\n    below += usable < size\n    c.free(block)\n"
        "print(seen > 0, below)"
    )
    done = guard.run([PYTHON, "-S", "-c", work], env={"MALLOC_MMAP_THRESHOLD_": "131072"}, preload=[guard.library, newer])
    assert done.stdout == "True 0\n", done.stderr


# An allocator whose malloc is chosen by a resolver that allocates: heap calls arrive while dlsym looks for the heap.
RESOLVER = """
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
void *__libc_malloc(size_t);
static int is_in(const char *p) { for (int i = 0; i < 500; i++) if (p[i]) return 0; return 1; }
static void *(*pick(void))(size_t)
{
    char *zeros = calloc(5, 100);
    char *first = malloc(10);
    strcpy(first, "contents.");
    char *grown = realloc(first, 2000);
    void *aligned = NULL;
    if (!zeros || !is_in(zeros) || !grown || strcmp(grown, "contents.") || posix_memalign(&aligned, 256, 100) || (unsigned long)aligned % 256)
        _exit(99);
    memset(grown, 1, 2000);
    free(grown);
    free(aligned);
    return __libc_malloc;
}
void *malloc(size_t) __attribute__((ifunc("pick")));
"""


def test_heap_calls_during_dlsym_are_served(guard, tmp_path):
    library = shared_library(tmp_path, "resolver", RESOLVER)
    run(guard, "heap_count", "malloc", preload=[guard.library, library])
    run(guard, "heap_early", preload=[guard.library, library])
