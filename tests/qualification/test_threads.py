"""Threads, children and ends of programs under abuse: nothing hangs, and every byte is found afterwards. Signals: test_signals.py."""

import contextlib
import os
import resource
import signal
import subprocess
import time
from pathlib import Path

import pytest
from lib.ledger import Ledger
from library import compile_library
from lib.target import CC

HERE = Path(__file__).parent
MIB = 1 << 20
ENTRIES = 1024  # SG_ENTRY_CAPACITY
# Of a request: 65 looks in the 3 s for which others may hold it up, 11 in the 0.3 s for their scans (preload/core/admit/wait.c), and what a
# program sleeps besides. A busy machine makes it no more.
SLEEPS = 65 + 11 + 20
KEPT = 30  # of the records of the dead that many are there at least, with their time lines (preload/core/shared/retention.c)


# ---- threads ----


@pytest.mark.timeout_seconds(600)
def test_lives_of_threads_with_destructors_that_allocate(abuse, amount):
    abuse("abuse_threads", "lives_of_threads_with_destructors", amount(short=1000, long=10000))


@pytest.mark.timeout_seconds(600)
def test_many_threads_at_once(abuse, amount):
    abuse("abuse_threads", "many_threads_at_once", amount(short=300, long=10000))


@pytest.mark.timeout_seconds(600)
def test_cancelled_threads_have_done_all_they_were_asked_to_before(abuse, amount):
    abuse("abuse_threads", "cancelled_threads", amount(short=30, long=1000))


@pytest.mark.timeout_seconds(600)
def test_threads_cancelled_in_any_instruction_leave_nobody_waiting(abuse, amount):
    abuse("abuse_threads", "threads_cancelled_in_any_instruction", amount(short=40, long=500))


@pytest.mark.timeout_seconds(600)
def test_cancelled_threads_lose_no_cuda_memory(guard, amount, record_property):
    env = {"LD_LIBRARY_PATH": guard.build / "sim", "SGSIM_BACKING": "none"}
    times = amount(short=20, long=1000)
    done = guard.run([guard.build / "tests/programs/cuda_cancel", times], env=env, timeout=550)
    assert done.returncode == 0, done.stdout + done.stderr
    record_property("cases", times)


# ---- children, exec, exit ----


@pytest.mark.timeout_seconds(600)
def test_children_of_all_kinds_under_stress(guard, abuse, amount):
    abuse("abuse_processes", "children_of_all_kinds_under_stress", amount(short=10, long=200))
    for process in guard.processes():
        assert process["state"] in ("exited", "replaced", "killed")  # killed: ended by a raw system call
        assert process["unmatched_frees"] == 0 and process["peak_bytes"] < 64 * MIB


@pytest.mark.timeout_seconds(600)
def test_exec_by_a_thread_under_stress(guard, abuse, amount):
    times = amount(short=10, long=300)
    done = abuse("abuse_processes", "exec_by_a_thread_under_stress", times)
    *replaced, last = guard.processes(done.pid)
    assert len(replaced) >= min(times, KEPT)
    assert {(p["state"], p["exit_code"], p["signal"]) for p in replaced} == {("replaced", None, None)}
    assert all(p["ended"] for p in replaced)
    assert (last["state"], last["exit_code"]) == ("exited", 0) and last["command"].endswith(" 0")
    assert 20 * MIB <= last["peak_bytes"] < 64 * MIB and last["inherited_bytes"] == 0
    assert {p["start_ticks"] for p in replaced} == {last["start_ticks"]}


@pytest.mark.timeout_seconds(600)
def test_exit_under_stress_with_handlers_and_destructors_that_allocate(guard, abuse, amount):
    times = amount(short=16, long=500)
    done = abuse("abuse_processes", "exit_under_stress", times)
    children = [p for p in guard.processes() if p["pid"] != done.pid]
    assert len(children) >= min(times, KEPT)
    assert {(p["state"], p["exit_code"]) for p in children} == {("exited", 9)} and all(p["ended"] for p in children)
    assert all(20 * MIB <= p["peak_bytes"] < 64 * MIB and p["unmatched_frees"] == 0 for p in children)


# ---- many processes, and stopped ones ----


@contextlib.contextmanager
def at_once(guard, count):
    """So many processes that hold 2 MiB each; they must end well when told."""
    command = [guard.build / "tests/programs/abuse_processes", "many_processes_at_once", count]
    with guard.popen(command, stdin=subprocess.PIPE) as parent:
        try:
            assert parent.stdout.readline() == f"{count}\n", parent.stderr.read()
            yield parent
            assert parent.communicate("\n", timeout=500) == ("", "") and parent.returncode == 0
        finally:
            parent.kill()


@pytest.mark.timeout_seconds(600)
def test_many_processes_at_once(guard, amount, record_property):
    count = amount(short=50, long=1000)
    record_property("cases", count)
    with at_once(guard, count):
        processes = guard.processes()
        assert len(processes) == count and all(p["state"] == "running" and p["sharing"] for p in processes)
        assert all(2 * MIB <= p["live_bytes"] <= 3 * MIB for p in processes)
    assert guard.processes() == []  # small ones leave nothing


@pytest.mark.long
@pytest.mark.timeout_seconds(600)
def test_process_for_which_the_ledger_has_no_entry_decides_alone_and_says_so(guard, record_property):
    with at_once(guard, ENTRIES + 50):
        processes = guard.processes()
        alone = [p for p in processes if not p["sharing"]]
        assert len(processes) == ENTRIES + 50 and len(alone) == 50
        assert all("no room in the machine's ledger" in p["events"][0]["what"] for p in alone)
    record_property("note", f"beyond {ENTRIES} processes the report says: {alone[0]['events'][0]['what']}")
    with at_once(guard, 3):  # the entries of those who have left are free
        assert all(p["sharing"] for p in guard.processes())


@contextlib.contextmanager
def begun(guard, *commands, env=None):
    """Programs of tests/programs that have said that they are ready."""
    with contextlib.ExitStack() as stack:
        processes = []
        for program, *arguments in commands:
            process = guard.popen([guard.build / "tests/programs" / program, *arguments], env=env, stdin=subprocess.PIPE)
            stack.callback(process.communicate)
            stack.callback(process.kill)
            processes.append(process)
        for process in processes:
            while (line := process.stdout.readline()) != "ready\n":
                assert line == "ok\n", process.stderr.read()
        yield processes


def asked(guard, command, **options):
    """A program that makes one large request, when it has ended; it was not held up for longer than 3 s."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_nvcsw
    done = guard.run(command, **options)
    sleeps = resource.getrusage(resource.RUSAGE_CHILDREN).ru_nvcsw - before
    assert sleeps <= SLEEPS, f"{sleeps} sleeps: {done.stdout}{done.stderr}"
    return done


def check_end(process):
    assert process.communicate("\n", timeout=100) == ("", "") and process.returncode == 0


WORK = ("abuse_processes", "work_until_told")


@pytest.mark.timeout_seconds(600)
def test_stopped_anywhere_processes_hold_nobody_up_and_go_on(guard, amount, record_property):
    rounds = amount(short=5, long=100)
    record_property("cases", rounds)
    with begun(guard, WORK, WORK) as workers:
        for _ in range(rounds):  # perhaps in the middle of a decision
            workers[0].send_signal(signal.SIGSTOP)
            done = asked(guard, ["/usr/bin/python3", "-S", "-c", "x = bytearray(200 << 20)"])
            assert (done.returncode, done.stderr) == (0, "")
            workers[0].send_signal(signal.SIGCONT)
        for worker in workers:
            check_end(worker)


def still_machine(folder):
    """The environment on a machine of 10 GiB that stands still, 2 of them kept."""
    (folder / "root/proc").mkdir(parents=True)
    kib = 10 << 20
    (folder / "root/proc/meminfo").write_text(f"MemTotal: {kib} kB\nMemFree: {kib} kB\nMemAvailable: {kib} kB\n")
    return {"SPARKGUARD_SYSTEM_ROOT": folder / "root", "SPARKGUARD_RESERVE": "2G"}


def stop_in_a_request(process, entry, ledger):
    """Stops it again and again, until a request of it has not ended: of so many bytes."""
    while True:
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        if (bytes_under_way := ledger.flying(entry) + ledger.asking(entry)) >= MIB:
            return bytes_under_way
        process.send_signal(signal.SIGCONT)
        time.sleep(0.001)  # pace: it is to get on


@pytest.mark.timeout_seconds(600)
def test_who_was_stopped_in_a_request_holds_nobody_up_for_longer_than_promised(guard, tmp_path, amount, record_property):
    """Others ask for what is there only if half of that request comes to nothing: they wait for its end, and not for ever."""
    rounds, env = amount(short=1, long=60), still_machine(tmp_path)
    record_property("cases", rounds)
    with begun(guard, WORK, env=env) as (worker,), Ledger(guard.directory) as ledger:
        entry = ledger.of(worker.pid)
        for _ in range(rounds):
            half = stop_in_a_request(worker, entry, ledger) // 2
            begin = time.monotonic()
            program = guard.build / "tests/programs/admit_take"
            done = asked(guard, [program, "malloc", 8 * 1024 * MIB - ledger.promised() - half], env=env)
            assert (done.returncode, done.stdout) == (0, "ENOMEM\n"), done.stderr
            assert time.monotonic() - begin > 1, "nothing was waited for"
            worker.send_signal(signal.SIGCONT)
        check_end(worker)


@pytest.mark.timeout_seconds(1200)
def test_while_some_are_stopped_for_minutes_others_work_and_are_judged_by_what_the_stopped_hold(
    guard, tmp_path, amount, record_property
):
    env = still_machine(tmp_path)
    ask = [guard.build / "tests/programs/admit_take", "malloc", "6G", "malloc", "4G", "malloc", "1030M"]  # 5 are left
    seconds, times, rounds = amount(short=0, long=200), 3, 0
    with begun(guard, ("admit_take", "malloc", "3G", "wait"), WORK, WORK, WORK, env=env) as processes:
        stopped = processes[:3]
        for process in stopped:
            process.send_signal(signal.SIGSTOP)
        until = time.monotonic() + seconds
        while rounds < times or time.monotonic() < until:
            done = guard.run(ask, env=env)  # the one that works wakes who waits, thousands of times in a second: sleeps say nothing here
            assert (done.returncode, done.stdout.split()) == (0, ["ENOMEM", "ok", "ENOMEM"]), done.stderr
            rounds += 1
        assert {guard.process(p.pid)["state"] for p in processes} == {"running"}
        for process in stopped:
            process.send_signal(signal.SIGCONT)
        for process in processes:
            check_end(process)
    record_property("cases", rounds)
    record_property("note", f"processes stopped for {seconds} s or more: {3 * rounds} requests of others judged meanwhile, each rightly")


# ---- dlclose ----

PLUGIN = """
#include <stdlib.h>
#include <sys/mman.h>
static void *own, *mapped;
void *take(size_t size) { return malloc(size); }
__attribute__((constructor)) static void begin(void)
{
    own = malloc(2 << 20);
    mapped = mmap(0, 2 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}
__attribute__((destructor)) static void end(void)
{
    void *volatile last = malloc(3 << 20);
    free(last);
    free(own);
    munmap(mapped, 2 << 20);
}
"""

HOST = """
#include "heap_case.h"
#include <dlfcn.h>
#include <malloc.h>
int main(int count, char **arguments)
{
    uint64_t heap = 0, mapped = 0, kept_bytes = 0;
    live_begin();
    for (int i = 0; i < atoi(arguments[1]); i++) {
        void *library = dlopen(arguments[2 + i % (count - 2)], RTLD_NOW | RTLD_LOCAL);
        CHECK(library != NULL);
        void *(*take)(size_t) = (void *(*)(size_t))dlsym(library, "take");
        void *kept = take(1300000), *small = take(500);
        CHECK_EQUAL(dlclose(library), 0);
        if (i < 2 * count) { /* the loader and the library's first lines have their own */
            free(kept);
            free(small);
            heap = live(SG_DOMAIN_HEAP);
            mapped = live(SG_DOMAIN_MAPPED);
        } else if (i % 50 == 0) {
            kept_bytes += malloc_usable_size(kept) + malloc_usable_size(small); /* outlive the code that took them */
        } else {
            free(kept);
            free(small);
        }
    }
    CHECK_EQUAL(live(SG_DOMAIN_HEAP) - heap, kept_bytes);
    CHECK_EQUAL(live(SG_DOMAIN_MAPPED), mapped);
    CHECK_EQUAL(segment->unmatched_frees, 0);
    CHECK_EQUAL(segment->faults, 0);
    return 0;
}
"""


@pytest.mark.timeout_seconds(600)
def test_libraries_that_allocated_may_be_unloaded(guard, tmp_path, amount, record_property):
    (tmp_path / "host.c").write_text(HOST)
    folder = HERE.parents[1]
    flags = ["-D_GNU_SOURCE", "-fno-builtin", f"-I{folder}/tests/programs", f"-I{folder}/include"]
    subprocess.run([*CC.split(), *flags, "-o", tmp_path / "host", tmp_path / "host.c", "-ldl"], check=True)
    plugins = [compile_library(tmp_path, f"plugin{i}", PLUGIN) for i in range(3)]
    times = amount(short=200, long=5000)
    done = guard.run([tmp_path / "host", times, *plugins], timeout=550)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    record_property("cases", times)
