"""A child has a record of its own that begins with its parent's figures, however it was made."""

import contextlib
import subprocess
from pathlib import Path

import pytest
from lib.target import CC, EMULATORS_THREADS, IS_LONG, PYTHON
from lib.waiting import wait_until

MIB = 1 << 20
SLACK = 2 * MIB


@pytest.fixture
def program(build):
    return lambda name: build / "tests/programs" / name


@contextlib.contextmanager
def held(guard, command, lines=1, **options):
    """Runs it until it has said `lines` lines and waits; ends it at the end."""
    with guard.popen(command, stdin=subprocess.PIPE, **options) as process:
        try:
            process.lines = [process.stdout.readline().strip() for _ in range(lines)]
            yield process
            process.communicate("", timeout=60)
            assert process.returncode == 0
        finally:
            process.kill()


def test_child_begins_with_its_parents_figures_and_the_job_counts_them_once(guard, program):
    with held(guard, [program("fork_figures")], lines=2) as parent:
        pids = {line.split()[0]: int(line.split()[1]) for line in parent.lines}
        first, child, grandchild = (guard.process(pid) for pid in (parent.pid, pids["child"], pids["grandchild"]))
        job = guard.report()["jobs"][0]
    assert (first["state"], child["state"], grandchild["state"]) == ("running", "running", "exited")
    assert first["inherited_bytes"] == 0
    assert 64 * MIB <= first["live_bytes"] <= 64 * MIB + SLACK
    assert 32 * MIB <= child["inherited_bytes"] <= 32 * MIB + SLACK, "of 64, half was given back"
    assert 80 * MIB <= child["live_bytes"] <= 80 * MIB + SLACK
    assert grandchild["inherited_bytes"] == child["live_bytes"]
    assert 96 * MIB <= grandchild["live_bytes"] <= grandchild["peak_bytes"] <= 96 * MIB + SLACK
    own = sum(p["live_bytes"] - p["inherited_bytes"] for p in (first, child))
    assert job["live_bytes"] == own and 112 * MIB <= own <= 112 * MIB + SLACK
    assert child["unmatched_frees"] == 0


def test_raw_clone_right_behind_a_fork_is_noticed(guard, program):
    """The child has a segment and an entry from the start, and asked for nothing yet."""
    with held(guard, [program("fork_raw_grandchild")], lines=2) as parent:
        pids = {line.split()[0]: int(line.split()[1]) for line in parent.lines}
        assert set(pids) == {"parent", "grandchild"}
        processes = {p["pid"]: p for p in guard.processes()}
        assert 300 * MIB <= processes[parent.pid]["live_bytes"] <= 300 * MIB + SLACK
        grandchild = processes[pids["grandchild"]]
        (child,) = [p for pid, p in processes.items() if pid not in pids.values()]
    assert 300 * MIB <= child["live_bytes"] <= 300 * MIB + SLACK
    assert 340 * MIB <= grandchild["live_bytes"] <= 340 * MIB + SLACK


def test_child_may_take_a_limit_of_its_own_but_not_more(guard):
    # What was inherited does not count against LIMIT: parent 40, child 40 + 50 of its own, then 50 more are too much.
    code = """
import os
first = bytearray(40 << 20)
if os.fork() == 0:
    second = bytearray(50 << 20)
    try:
        third = bytearray(50 << 20)
    except MemoryError:
        os._exit(3)
print(os.waitstatus_to_exitcode(os.wait()[1]))
"""
    done = guard.run([PYTHON, "-S", "-c", code], env={"SPARKGUARD_LIMIT": "96M"})
    assert done.stdout == "3\n"
    child = next(p for p in guard.processes() if p["pid"] != done.pid)
    assert child["refusals"][0]["reason"] == "limit"
    assert 90 * MIB <= child["live_bytes"] <= 95 * MIB


# A program that loads 300 MiB under LIMIT=512M, and whose children say "ok" or "refused" of 300 MiB more.
LOADER = """
import os, signal
MIB = 1 << 20
loaded = bytearray(300 * MIB)
def fork():
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)
    return pid
def take(mib):
    try:
        taken = bytearray(mib * MIB)
        os.write(1, b"ok\\n")
        return taken
    except MemoryError:
        os.write(1, b"refused\\n")
def wait_until_gone(pid):
    with open(f"/proc/{pid}/stat", "rb") as file:
        start = file.read().split()[21]
    while True:
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                fields = file.read().split()
        except OSError:
            return
        if fields[21] != start or fields[2] in (b"Z", b"X"):
            return
        os.sched_yield()
def orphan(end):
    parent = os.getpid()
    ends = os.pipe()
    if fork() != 0:
        os.read(ends[0], 1)  # the child has a figure to begin with
        end()
    os.write(ends[1], b".")
    wait_until_gone(parent)
"""


@pytest.mark.parametrize("end", ["os._exit(0)", "os.kill(os.getpid(), signal.SIGKILL)"], ids=["exits", "is killed"])
def test_limit_counts_what_a_child_has_from_a_parent_that_is_gone(guard, end):
    """Like a program that becomes a daemon after it has loaded."""
    code = LOADER + f"orphan(lambda: {end})\ntake(300)\ntake(150)"
    guard_env = {"SPARKGUARD_LIMIT": "512M"}
    with guard.popen([PYTHON, "-S", "-c", code], env=guard_env) as process:
        assert process.stdout.read() == "refused\nok\n"


def test_limit_counts_inherited_memory_that_the_parent_gave_back(guard):
    code = LOADER + """
ends = os.pipe()
if fork() == 0:
    os.read(ends[0], 1)
    take(300)
    take(150)
    os._exit(0)
del loaded
os.write(ends[1], b".")
os.wait()
"""
    assert guard.run([PYTHON, "-S", "-c", code], env={"SPARKGUARD_LIMIT": "512M"}).stdout == "refused\nok\n"


def test_children_of_a_parent_that_is_gone_count_its_memory_once(guard):
    """Four of them: 300 MiB that all have, and 40 MiB of each."""
    code = LOADER + """
ends = os.pipe()
for _ in range(3):
    if fork() == 0:
        os.close(ends[1])
        mine = take(40)
        os.read(ends[0], 1)  # until all others have ended
        os._exit(0)
orphan(lambda: os._exit(0))
mine = take(40)
take(100)
"""
    with guard.popen([PYTHON, "-S", "-c", code], env={"SPARKGUARD_LIMIT": "512M"}) as process:
        assert sorted(process.stdout.read().split()) == ["ok"] * 4 + ["refused"]


def test_memory_of_a_living_grandparent_counts_once_when_the_parent_is_gone(guard):
    """A helper by a double fork: the program itself still holds what it has loaded."""
    code = LOADER + """
ends = os.pipe()
if fork() == 0:
    orphan(lambda: os._exit(0))
    take(150)
    take(100)
    os.write(ends[1], b".")
    os._exit(0)
os.read(ends[0], 1)
os.wait()
"""
    assert guard.run([PYTHON, "-S", "-c", code], env={"SPARKGUARD_LIMIT": "512M"}).stdout == "ok\nok\n"


def test_report_counts_what_children_have_from_a_parent_that_is_gone_once(guard):
    code = LOADER + """
if fork() != 0:
    orphan(lambda: os._exit(0))
mine = take(50)
import sys; sys.stdin.read()
"""
    alone = guard.run([PYTHON, "-S", "-c", LOADER + "if fork() == 0: os._exit(0)\nos.wait()"]).process()["peak_bytes"] - 300 * MIB
    with guard.popen([PYTHON, "-S", "-c", code], stdin=subprocess.PIPE) as process:
        assert [process.stdout.readline() for _ in range(2)] == ["ok\n"] * 2
        process.wait(60)
        (job,) = (job for job in guard.report()["jobs"] if job["live_bytes"] != 0)
        # What an interpreter holds that forks alone, once as well; and small blocks of both children.
        assert 400 * MIB <= job["live_bytes"] <= 400 * MIB + alone + MIB
        process.stdin.close()
        assert process.stdout.read() == ""


def test_child_that_takes_little_leaves_nothing_whatever_it_inherited(guard):
    code = "import os; x = bytearray(64 << 20)\nif os.fork() == 0:\n    y = bytearray(3 << 20); os._exit(0)\nos.wait()"
    done = guard.run([PYTHON, "-S", "-c", code])
    assert [p["pid"] for p in guard.processes()] == [done.pid]


def test_forks_while_threads_allocate_neither_hang_nor_hurt(guard, program):
    done = guard.run([program("fork_stress")], timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    for process in guard.processes():
        assert process["state"] == "exited"
        assert process["peak_bytes"] <= 64 * MIB
        assert sum(process["peak_domains"].values()) == process["peak_bytes"]


def test_children_forked_beside_threads_that_map_know_what_their_parent_had(guard, program):
    """One whose parent was in the middle of a change forgets all of it. The fork waits for that a moment, and other changes for the fork."""
    done = guard.run([program("fork_maps"), "5", "1000", "200"], timeout=60)
    assert done.returncode == 0 and int(done.stdout) <= 1


def test_child_of_a_raw_clone_does_not_touch_its_parents_figures(guard, program):
    with held(guard, [program("fork_raw_clone")]) as parent:
        child_pid = int(parent.lines[0])
        process, child = guard.process(parent.pid), guard.process(child_pid)
    assert process["state"] == "running"
    assert 32 * MIB <= process["live_bytes"] <= process["peak_bytes"] <= 32 * MIB + SLACK
    assert process["domains"]["heap"]["allocations"] < 100
    assert 32 * MIB <= child["inherited_bytes"] <= 32 * MIB + SLACK
    assert 160 * MIB <= child["peak_bytes"] <= 160 * MIB + SLACK


@pytest.mark.parametrize("how", ["vfork", "vfork-fails", "posix_spawn", "system"])
def test_child_that_shares_memory_until_exec_leaves_its_parent_running(guard, program, how):
    with held(guard, [program("fork_spawn"), how], lines=1 if how == "vfork-fails" else 2) as parent:
        entries = guard.processes()
    assert parent.lines == (["ready"] if how == "vfork-fails" else ["spawned", "ready"])
    assert [(p["pid"], p["state"], p["ended"]) for p in entries] == [(parent.pid, "running", None)]
    assert 32 * MIB <= entries[0]["live_bytes"] <= 32 * MIB + SLACK
    assert guard.process(parent.pid)["exit_code"] == 0


def test_dead_parent_is_not_kept_alive_by_its_child(guard, program):
    with guard.popen([program("fork_survivor")], stdin=subprocess.PIPE) as parent:
        parent.wait(60)
        assert guard.process(parent.pid)["state"] == "killed"
        parent.stdin.close()  # now the child ends
        assert parent.stdout.read() == ""
    assert [p["pid"] for p in guard.processes()] == [parent.pid]


def test_daemon_and_the_parent_it_left_have_entries_of_their_own(guard, program):
    done = guard.run([program("fork_daemon")])
    daemon = guard.process(int(done.stdout))  # its standard output has been closed, so it has ended
    parent = guard.process(done.pid)
    assert (daemon["state"], daemon["exit_code"]) == ("exited", 4)
    assert (parent["state"], parent["exit_code"]) == ("exited", 0)
    assert daemon["inherited_bytes"] == parent["live_bytes"]
    assert 44 * MIB <= daemon["peak_bytes"] <= 44 * MIB + SLACK


def test_children_of_shells_and_python_are_one_job(guard):
    code = "import subprocess; subprocess.run(['/usr/bin/python3', '-S', '-c', 'x = bytearray(30 << 20)'])"
    script = "/usr/bin/python3 -S -c \"$1\"; (/usr/bin/python3 -S -c 'x = bytearray(20 << 20)'); true"
    guard.run(["bash", "-c", script, "-", code])
    jobs = guard.report()["jobs"]
    assert len(jobs) == 1 and len(jobs[0]["processes"]) == 2


def test_threads_that_fork_at_once_keep_their_own_signal_masks(guard, program):
    assert guard.run([program("fork_masks")]).stdout == "0 wrong masks\n"


HANDLERS = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/mman.h>
static void *kept;
static void allocate(void)
{
    void *map = mmap(0, 4 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    void *block = malloc(8 << 20);
    free(malloc(100));
    free(kept);
    kept = malloc(2 << 20);
    free(block);
    munmap(map, 4 << 20);
}
__attribute__((constructor)) static void begin(void)
{
    void *real = dlvsym(RTLD_NEXT, "__register_atfork", "GLIBC_2.3.2"); /* as by a program of before glibc 2.34 */
    if (real == 0)
        real = dlvsym(RTLD_NEXT, "__register_atfork", "GLIBC_2.17");
    ((int (*)(void *, void *, void *, void *))real)(allocate, allocate, allocate, 0);
}
int library(void) { return 1; }
"""

FORKER = """
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
int library(void);
int main(void)
{
    void *volatile block = malloc(32 << 20);
    for (int i = library(); i <= 3; i++) {
        pid_t child = fork();
        if (child == 0) {
            free(malloc(4 << 20));
            fprintf(stderr, "child %d\\n", i);
            _exit(block == NULL);
        }
        int status;
        waitpid(child, &status, 0);
        printf("parent %d\\n", status);
    }
    puts("ready");
    fflush(stdout);
    return getchar() == 1;
}
"""


def test_other_libraries_fork_handlers_may_allocate(guard, tmp_path):
    """A library's handlers, registered before ours, run while ours hold the locks."""
    (tmp_path / "handlers.c").write_text(HANDLERS)
    (tmp_path / "forker.c").write_text(FORKER)
    library, forker = tmp_path / "libhandlers.so", tmp_path / "forker"
    subprocess.run([CC, "-shared", "-fPIC", "-o", library, tmp_path / "handlers.c", "-pthread"], check=True)
    subprocess.run([CC, "-o", forker, tmp_path / "forker.c", library, f"-Wl,-rpath,{tmp_path}"], check=True)
    with held(guard, [forker], lines=4, env={"SPARKGUARD_LIMIT": "1G"}) as process:
        assert process.lines == ["parent 0"] * 3 + ["ready"]
        entry = guard.process(process.pid)
    assert 34 * MIB <= entry["live_bytes"] <= 34 * MIB + SLACK
    assert entry["refused_count"] == 0 and entry["unmatched_frees"] == 0


LOCKING = """
#define _GNU_SOURCE
#include <pthread.h>
#include <sys/mman.h>
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void take(void) { pthread_mutex_lock(&lock); }
static void give(void) { pthread_mutex_unlock(&lock); }
void churn(void)
{
    take();
    munmap(mmap(0, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 1 << 20);
    give();
}
__attribute__((constructor)) static void begin(void) { pthread_atfork(take, give, give); }
"""

CHURN = """
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>
void churn(void);
static volatile int is_over;
static void *run(void *unused)
{
    while (!is_over)
        churn();
    return unused;
}
int main(void)
{
    pthread_t thread;
    int status;
    pthread_create(&thread, 0, run, 0);
    for (int i = 0; i < 200; i++) {
        pid_t child = fork();
        if (child == 0) {
            churn();
            _exit(0);
        }
        if (waitpid(child, &status, 0) != child || status != 0)
            return 1;
    }
    is_over = 1;
    pthread_join(thread, 0);
    return 0;
}
"""


@pytest.mark.timeout_seconds(90)
def test_allocator_that_unmaps_under_a_lock_of_its_fork_handlers_is_not_waited_for_with_ours(guard, tmp_path):
    """Whoever forks takes the allocator's lock before ours, as whoever unmaps does."""
    (tmp_path / "locking.c").write_text(LOCKING)
    (tmp_path / "churn.c").write_text(CHURN)
    library, churn = tmp_path / "liblocking.so", tmp_path / "churn"
    subprocess.run([CC, "-shared", "-fPIC", "-o", library, tmp_path / "locking.c", "-pthread"], check=True)
    subprocess.run([CC, "-o", churn, tmp_path / "churn.c", library, f"-Wl,-rpath,{tmp_path}", "-pthread"], check=True)
    done = guard.run([churn], timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


# ---- a child that asks for nothing ----


@pytest.mark.parametrize("how", ["fork", "daemon", "twice"])
def test_child_that_inherited_much_is_watched_before_it_asks_for_anything(guard, program, how):
    with held(guard, [program("fork_silent"), how, 300]) as parent:
        pid = int(parent.lines[0])
        wait_until(lambda: guard.process(pid)["watched"])
        child = guard.process(pid)
        assert child["sharing"] and child["domains"]["heap"]["allocations"] == 0
        assert child["live_bytes"] == child["inherited_bytes"] >= 300 * MIB
    wait_until(lambda: [p["pid"] for p in guard.processes()] == [parent.pid])  # it held nothing of its own


@pytest.mark.parametrize("mib, watchdog", [(200, "term"), (300, "off")], ids=["little", "off"])
def test_child_that_needs_no_watchdog_and_asks_for_nothing_leaves_no_trace(guard, program, mib, watchdog):
    with held(guard, [program("fork_silent"), "fork", mib], env={"SPARKGUARD_WATCHDOG": watchdog}) as parent:
        assert int(parent.lines[0]) != parent.pid
        assert [p["pid"] for p in guard.processes()] == [parent.pid]
        assert len(list(Path(f"/proc/{parent.lines[0]}/task").iterdir())) == 1 + EMULATORS_THREADS


def test_child_that_held_nothing_of_its_own_leaves_nothing_when_it_is_replaced(guard, program):
    with held(guard, [program("fork_silent"), "execs", 300], lines=2) as parent:
        assert parent.lines[1] == str(parent.pid)
        assert [p["pid"] for p in guard.processes()] == [parent.pid]


def test_child_of_a_parent_without_a_record_does_not_try_for_one(guard, program, tmp_path):
    """The parent has said that there can be none; each of its children would say it again."""
    done = guard.run([program("fork_silent"), "fork", 300], env={"SPARKGUARD_DIR": tmp_path / "no/where"})
    assert done.returncode == 0 and done.stderr.count("sparkguard: cannot keep statistics") == 1


ALLOCATOR = """
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stddef.h>
void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t), __libc_free(void *);
void *__libc_memalign(size_t, size_t);
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void take(void) { pthread_mutex_lock(&lock); }
static void give(void) { pthread_mutex_unlock(&lock); }
#define LOCKED(type, call) { take(); sched_yield(); type result = call; give(); return result; }
void *malloc(size_t size) LOCKED(void *, __libc_malloc(size))
void *calloc(size_t count, size_t size) LOCKED(void *, __libc_calloc(count, size))
void *realloc(void *ptr, size_t size) LOCKED(void *, __libc_realloc(ptr, size))
void *memalign(size_t alignment, size_t size) LOCKED(void *, __libc_memalign(alignment, size))
void *aligned_alloc(size_t alignment, size_t size) LOCKED(void *, __libc_memalign(alignment, size))
void free(void *ptr) { take(); __libc_free(ptr); give(); }
int posix_memalign(void **out, size_t alignment, size_t size)
    LOCKED(int, (*out = __libc_memalign(alignment, size)) != NULL ? 0 : ENOMEM)
void allocator_take_part(void) { pthread_atfork(take, give, give); }
#ifdef BEFORE
__attribute__((constructor)) static void begin(void) { allocator_take_part(); }
#endif
"""

STRESS = """
#include <pthread.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
extern void allocator_take_part(void) __attribute__((weak));
static volatile int is_over;
static void *stress(void *unused)
{
    while (!is_over)
        free(malloc(100));
    return unused;
}
static int has_failed(void)
{
    int status = 1;
    pid_t child = fork();
    if (child == 0)
        _exit(0);
    return waitpid(child, &status, 0) != child || status != 0;
}
int main(int count, char **arguments) /* "after" or another word, and how often to fork beside threads that allocate */
{
    pthread_t thread[2];
    if (count != 3)
        return 2;
    void *volatile block = malloc(300 << 20);
    if (*arguments[1] == 'a')
        allocator_take_part();
    for (int i = 0; i < 2; i++) { /* a stack that the parent's watchdog has left would need nothing of the heap */
        is_over = 1;
        if (block == NULL || has_failed() || pthread_create(&thread[0], NULL, stress, NULL) != 0)
            return 1;
        pthread_join(thread[0], NULL);
    }
    is_over = 0;
    for (int i = 0; i < 2; i++)
        pthread_create(&thread[i], NULL, stress, NULL);
    for (int i = atoi(arguments[2]); i > 0; i--)
        if (has_failed())
            return 1;
    is_over = 1;
    for (int i = 0; i < 2; i++)
        pthread_join(thread[i], NULL);
    return 0;
}
"""


@pytest.mark.parametrize("handlers", ["before", "after", "none", "jemalloc"])
def test_child_gets_its_watchdog_whoever_holds_the_next_allocators_lock(guard, tmp_path, handlers):
    """Its handlers of fork come before ours, after ours, or there are none: then its lock is held in the child for ever."""
    (tmp_path / "allocator.c").write_text(ALLOCATOR)
    (tmp_path / "stress.c").write_text(STRESS)
    library, stress = tmp_path / "liballocator.so", tmp_path / "stress"
    flags = ["-DBEFORE"] if handlers == "before" else []
    subprocess.run(
        [CC, *flags, "-shared", "-fPIC", "-fno-builtin", "-w", "-o", library, tmp_path / "allocator.c"], check=True
    )
    subprocess.run([CC, "-fno-builtin", "-o", stress, tmp_path / "stress.c", "-pthread"], check=True)
    if handlers == "jemalloc":
        library = next(Path("/usr/lib").glob("*/libjemalloc.so.2"), None)
        if library is None:
            pytest.skip("libjemalloc.so.2 is not installed")
    env = {"GLIBC_TUNABLES": "glibc.pthread.stack_cache_size=0"}
    done = guard.run([stress, handlers, 100 if IS_LONG else 30], env, preload=[guard.library, library], timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


# ---- a child that has its parent's memory ----


@pytest.mark.parametrize("when", ["first", "later"])
def test_vfork_child_that_takes_much_gets_no_record_in_its_parents_place(guard, program, when):
    with guard.popen([program("fork_borrow"), when], stdin=subprocess.PIPE) as parent:
        assert parent.stdout.readline() == "ready\n"
        wait_until(lambda: [p["watched"] for p in guard.processes()] == [True])
        entry = guard.process(parent.pid)
        parent.communicate("\n", timeout=60)
    assert entry["state"] == "running" and 600 * MIB <= entry["live_bytes"] <= 600 * MIB + SLACK
    assert guard.process(parent.pid)["exit_code"] == 0


def test_child_that_is_first_in_a_namespace_of_its_own_is_not_its_parent(guard, program):
    """Both are process 1 there, and have the same memory."""
    command = ["unshare", "--pid", "--fork", "--mount-proc", program("fork_borrow"), "namespace"]
    if subprocess.run(command[:4] + ["true"], capture_output=True).returncode != 0:
        pytest.skip("namespaces need root")
    with guard.popen(command, stdin=subprocess.PIPE) as process:
        assert process.stdout.readline() == "ready\n"
        (entry,) = [p for p in guard.processes() if p["live_bytes"] >= 300 * MIB]
        process.communicate("\n", timeout=60)
        assert process.returncode == 0
    assert entry["pid"] == 1 and entry["state"] == "running"
