"""Beside other allocators, preloads and tools: a program behaves as without the guard, and its numbers are right or missing for a
reason that libsparkguard(7) tells, in its table of other tools.
"""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from lib.work import python_work

ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20

# name: library (a pattern), whether it is a heap
PRELOADS = {
    "jemalloc": ("libjemalloc.so.2", True),
    "tcmalloc": ("libtcmalloc_minimal.so.4", True),
    "mimalloc": ("libmimalloc.so.[23]", True),
    "eatmydata": ("libeatmydata.so.1", False),
    "faketime": ("faketime/libfaketime.so.1", False),
}

# The short form takes what `make test` installs anyway.
NAMES = [name if name in ("jemalloc", "tcmalloc") else pytest.param(name, marks=pytest.mark.long) for name in PRELOADS]

WORK = python_work("import mmap\nblock, mapped, out = bytearray(64 << 20), mmap.mmap(-1, 32 << 20), []")

HOLDER = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
int main(void)
{
    char *block = malloc(20 << 20);
    char *mapped = mmap(0, 24 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(block, 1, 5000);
    mapped[0] = block[4999];
    printf("%d\\n", mapped[0]);
    return 3;
}
"""
WELL = (3, "1\n")  # what it answers


def needs(command, package):
    if shutil.which(command) is None:
        pytest.skip(f"{command} is not installed ({package})")


def library(name):
    found = next(Path("/usr/lib").glob(f"*-linux-gnu/{PRELOADS[name][0]}"), None)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def has_mmap(name):
    """Of its own: tcmalloc of Debian 12 has (gperftools 2.10), that of Debian 13 has not (2.16)."""
    symbols = subprocess.run(["readelf", "--dyn-syms", "--wide", library(name)], capture_output=True, text=True, check=True).stdout
    return re.search(r"^(?!.* UND ).* mmap(@|$)", symbols, re.MULTILINE) is not None


@pytest.fixture
def holder(tmp_path):
    """Compiles the program that holds 20 MiB of heap and 24 of a mapping, and ends with 3."""

    def build(*options, compiler="cc", text=HOLDER):
        (tmp_path / "holder.c").write_text(text)
        command = [compiler, "-g", "-fno-builtin", "-o", tmp_path / "holder", tmp_path / "holder.c", *options]
        subprocess.run([str(c) for c in command], check=True)
        return tmp_path / "holder"

    return build


def domains(process):
    return {name: process["domains"][name]["live_bytes"] for name in ("heap", "mapped")}


def check_seen(process, heap=True):
    """What the holder holds, and nothing that it does not."""
    held = domains(process)
    assert 24 * MIB <= held["mapped"] <= 25 * MIB
    assert (20 * MIB if heap else 0) <= held["heap"] <= (21 * MIB if heap else MIB)
    assert process["unmatched_frees"] == 0


# ---- other preloads ----


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("order", ["behind us", "before us"])
def test_program_behaves_as_without_the_guard(guard, name, order):
    command = ["/usr/bin/python3", "-S", "-c", WORK]
    plain = guard.run(command, preload=[library(name)])
    preload = [guard.library, library(name)] if order == "behind us" else [library(name), guard.library]
    done = guard.run(command, preload=preload)
    assert (done.returncode, done.stdout, done.stderr) == (plain.returncode, plain.stdout, plain.stderr) and done.returncode == 3
    if order == "before us" and has_mmap(name):  # nothing is left to see
        assert guard.processes(done.pid) == []
        return
    process = done.process()
    assert process["state"] == "exited" and process["unmatched_frees"] == 0
    is_seen = order == "behind us" or not PRELOADS[name][1]
    assert (process["domains"]["heap"]["peak_bytes"] >= 64 * MIB) == is_seen


@pytest.mark.parametrize("name", NAMES)
def test_behind_us_each_block_counts_to_the_byte(guard, name):
    for function in ("malloc", "calloc", "realloc", "aligned_alloc", "posix_memalign"):
        done = guard.run([guard.build / "tests/programs/heap_count", function], preload=[guard.library, library(name)])
        assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), function


@pytest.mark.parametrize("name", NAMES[1:])  # jemalloc has no pvalloc
def test_behind_us_stress_is_counted_to_the_byte(guard, amount, name):
    command = [guard.build / "tests/programs/stress_mixed", 8, 3, amount(short=3, long=30), 2000]
    done = guard.run(command, preload=[guard.library, library(name)])
    assert (done.returncode, done.stderr) == (0, ""), done.stdout


HEAPS = NAMES[:3]


@pytest.mark.timeout_seconds(600)
@pytest.mark.parametrize("name", HEAPS)
@pytest.mark.parametrize("order", ["behind us", "before us"])
def test_signal_handlers_may_allocate_where_they_interrupt_no_heap(guard, amount, record_property, name, order):
    command = [guard.build / "tests/programs/abuse_signals", "handlers_beside_mappings", amount(short=300, long=10000)]
    preload = [guard.library, library(name)]
    if order == "before us":
        preload, command = preload[::-1], [*command, "unseen"]
    done = guard.run(command, preload=preload, timeout=550)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert int(done.stdout) > 0
    record_property("cases", int(done.stdout))


@pytest.mark.parametrize("name", HEAPS)
@pytest.mark.parametrize("case", ["handlers_that_jump_away", "fault_handlers_that_jump_away", "handlers_on_a_small_stack"])
def test_behind_us_what_handlers_do_counts_to_the_byte(guard, amount, record_property, name, case):
    times = amount(short=50, long=5000)
    command = [guard.build / "tests/programs/abuse_signals", case, times]
    done = guard.run(command, preload=[guard.library, library(name)], timeout=100)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert all(line.startswith(("sparkguard: refused malloc of ", "try: ", "sparkguard: and ")) for line in done.stderr.splitlines()), done.stderr
    record_property("cases", times)


@pytest.mark.long
@pytest.mark.parametrize("order", ["behind us", "before us"])
def test_faked_time_is_the_programs_and_not_ours(guard, holder, order):
    libraries = [guard.library, library("faketime")]
    preload = libraries if order == "behind us" else libraries[::-1]
    done = guard.run(["date", "+%Y"], preload=preload, env={"FAKETIME": "@1999-05-05 00:00:00"})
    assert (done.returncode, done.stdout) == (0, "1999\n")
    done = guard.run([holder()], preload=preload, env={"FAKETIME": "@1999-05-05 00:00:00"})
    assert (done.returncode, done.stdout, done.stderr) == (*WELL, "")
    assert not done.process()["started"].startswith("1999")
    check_seen(done.process())


# ---- tools ----


def test_strace_follows_children(guard, tmp_path):
    trace = tmp_path / "trace"
    done = guard.run(["strace", "-f", "-o", trace, "sh", "-c", "/usr/bin/python3 -S -c 'x = bytearray(40 << 20)'; exit 3"])
    assert (done.returncode, done.stdout, done.stderr) == (3, "", "")
    assert "exit_group(3)" in trace.read_text()
    assert any(p["peak_bytes"] >= 40 * MIB for p in guard.processes())


def test_valgrind_finds_no_error_and_has_the_heap_to_itself(guard, holder):
    needs("valgrind", "valgrind")
    done = guard.run(["valgrind", "-q", "--error-exitcode=9", holder()])
    if "Fatal error at startup" in done.stderr:
        pytest.skip("memcheck needs the debug symbols of the dynamic loader (libc6-dbg)")
    assert (done.returncode, done.stdout, done.stderr) == (*WELL, "")
    check_seen(done.process(), heap=False)


@pytest.mark.long
def test_gdb_breaks_goes_back_and_calls(guard, holder, record_property):
    needs("gdb", "gdb")
    script = ["break here", "run", "bt", "print ((void *(*)(unsigned long))malloc)(3000000) != 0", "continue"]
    text = HOLDER.replace("int main", "void here(void) {}\nint main").replace("    printf", "    here();\n    printf")
    program = holder(text=text)

    def debug(*before):
        commands = [word for line in [*before, *script] for word in ("-ex", line)]
        done = guard.run(["gdb", "-q", "-nx", "-batch", *commands, program], env={"LD_PRELOAD": None})
        assert "in main ()" in done.stdout and "exited with code 03" in done.stdout, done.stdout + done.stderr
        return "$1 = 1" in done.stdout

    can_call = debug()
    if not can_call:
        record_property("note", "gdb cannot call functions on this machine, with or without the guard")
    assert debug(f"set exec-wrapper env LD_PRELOAD={guard.library}") == can_call
    (process,) = [p for p in guard.processes() if domains(p)["mapped"] >= 24 * MIB]
    assert 20 * MIB + can_call * 3000000 <= domains(process)["heap"] <= 24 * MIB


@pytest.mark.long
@pytest.mark.parametrize("debugger", ["gdb", "strace"])
def test_debugger_that_comes_later_and_goes_is_no_harm(guard, tmp_path, debugger):
    """While four threads are at work, the watchdog's beside them."""
    needs(debugger, debugger)
    trace = tmp_path / "trace"
    with guard.popen([guard.build / "tests/programs/abuse_processes", "work_until_told"], stdin=subprocess.PIPE) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            for _ in range(5):
                if debugger == "gdb":
                    command = ["gdb", "-q", "-nx", "-batch", "-p", process.pid, "-ex", "thread apply all bt", "-ex", "detach"]
                    done = guard.run(command, env={"LD_PRELOAD": None})
                    assert "Thread 5 (" in done.stdout and "detached" in done.stdout, done.stdout + done.stderr
                else:
                    command = ["timeout", "-s", "INT", "1", "strace", "-f", "-o", trace, "-p", process.pid]
                    guard.run(command, env={"LD_PRELOAD": None})
                    assert "mmap(" in trace.read_text()
            assert process.communicate("\n", timeout=100) == ("", "") and process.returncode == 0
        finally:
            process.kill()


def heaptrack_bytes(text, what):
    """Its units are of 1000."""
    number, unit = re.search(rf"^{what}: ([\d.]+)([BKMG])", text, re.MULTILINE).groups()
    return float(number) * 1000 ** "BKMG".index(unit)


@pytest.mark.long
def test_heaptrack_and_the_guard_count_the_same_bytes(guard, holder, tmp_path):
    """To 256 KiB: it writes three digits, and each has blocks of its own that the other does not see. A peak may have 1 MiB more, which
    the guard lets a thread take in advance."""
    needs("heaptrack", "heaptrack")
    program = holder()
    done = guard.run(["heaptrack", "-o", tmp_path / "track", program])
    assert done.returncode == 3 and "\n1\n" in done.stdout, done.stdout + done.stderr
    (file,) = tmp_path.glob("track*")
    shown = guard.run(["heaptrack_print", "-f", file], preload=[])
    (process,) = [p for p in guard.processes() if p["command"] == str(program)]
    check_seen(process)
    heap, slack = process["domains"]["heap"], 256 << 10
    assert abs(heap["live_bytes"] - heaptrack_bytes(shown.stdout, "total memory leaked")) <= slack
    assert -slack <= heap["peak_bytes"] - heaptrack_bytes(shown.stdout, "peak heap memory consumption") <= slack + MIB


# ---- programs built otherwise ----


def check_sanitized(done):
    assert (done.returncode, done.stdout, done.stderr) == (*WELL, "")
    (process,) = [p for p in done.guard.processes() if domains(p)["mapped"] >= 24 * MIB]
    assert domains(process)["heap"] < MIB and process["unmatched_frees"] == 0


NO_LEAKS = {"ASAN_OPTIONS": "detect_leaks=0", "LSAN_OPTIONS": "detect_leaks=0"}  # the holder leaves its block to its end


@pytest.mark.parametrize("kind", ["address", "thread", "leak"])
def test_sanitizers_of_gcc_come_first_and_keep_the_heap_to_themselves(guard, holder, kind):
    program = holder(f"-fsanitize={kind}")
    find = ["cc", f"-print-file-name=lib{kind[0]}san.so"]
    runtime = subprocess.run(find, capture_output=True, text=True, check=True).stdout.strip()
    check_sanitized(guard.run([program], preload=[runtime, guard.library], env=NO_LEAKS))


def test_leaks_are_found_as_without_the_guard(guard, holder):
    text = HOLDER.replace("    return 3", "    block = 0;\n    return 3")
    program = holder("-O1", "-fsanitize=address", text=text)
    runtime = subprocess.run(["cc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True).stdout.strip()
    done = guard.run([program], preload=[runtime, guard.library])
    if "does not work under ptrace" in done.stderr or "fatal error" in done.stderr:
        pytest.skip("LeakSanitizer may not trace here")
    assert "20971520 byte(s) leaked in 1 allocation(s)" in done.stderr, done.stderr


@pytest.mark.long
@pytest.mark.parametrize("kind", ["address", "memory", "thread"])
def test_sanitizers_of_clang_are_in_the_program_and_keep_the_heap_to_themselves(guard, holder, kind):
    needs("clang", "clang")
    check_sanitized(guard.run([holder(f"-fsanitize={kind}", compiler="clang")], env=NO_LEAKS))


def test_undefined_behaviour_sanitizer(guard, holder):
    done = guard.run([holder("-fsanitize=undefined")])
    assert (done.returncode, done.stdout, done.stderr) == (*WELL, "")
    check_seen(done.process())


@pytest.mark.long
def test_heap_linked_into_the_program_is_not_seen(guard, holder):
    archive = next(Path("/usr/lib").glob("*-linux-gnu/libjemalloc.a"), None)
    if archive is None:
        pytest.skip("libjemalloc.a is not installed (libjemalloc-dev)")
    if Path("/proc/sys/vm/overcommit_memory").read_text() == "2\n":
        pytest.skip("jemalloc takes memory without MAP_NORESERVE here, and that is counted (vm.overcommit_memory)")
    touch_and_look = "memset(block, 1, 20 << 20);\n    mmap(0, 1ul << 46, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);"
    text = HOLDER.replace("memset(block, 1, 5000);", touch_and_look)
    done = guard.run([holder(archive, "-lpthread", "-lm", "-ldl", "-lstdc++", text=text)])
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (*WELL, 2) and "refused mmap" in done.stderr, done.stderr
    process = done.process()
    check_seen(process, heap=False)  # of mappings the program's own only: those of its heap are MAP_NORESERVE
    assert 20 * MIB <= process["sparse_resident_bytes"] <= 24 * MIB, "the look at the refusal tells of them"


def test_static_program_runs_unseen(guard, holder):
    done = guard.run([holder("-static")])
    assert (done.returncode, done.stdout, done.stderr) == (*WELL, "")
    assert guard.processes() == []


FREESTANDING = """
int puts(const char *), fflush(void *);
void _exit(int);
void _start(void) { puts("1"); fflush(0); _exit(3); }
"""


@pytest.mark.long
def test_program_of_32_bits_runs_unseen_and_the_loader_says_so(guard, holder):
    libc = Path("/lib32/libc.so.6")
    if not libc.exists():
        pytest.skip("there is no libc of 32 bits (libc6-i386)")
    options = ["-m32", "-fno-pic", "-no-pie", "-fno-stack-protector", "-nostdlib", "-Wl,--dynamic-linker=/lib/ld-linux.so.2"]
    done = guard.run([holder(*options, libc, text=FREESTANDING)])
    assert (done.returncode, done.stdout) == WELL
    assert done.stderr.count("\n") == 1 and "cannot be preloaded (wrong ELF class" in done.stderr


@pytest.mark.long
def test_program_of_another_architecture_runs_unseen_and_the_loader_says_so(guard, holder):
    needs("aarch64-linux-gnu-gcc", "make cross")
    if not (ROOT / ".deps/aarch64").exists():
        pytest.skip("there is no emulator (make cross)")
    program = holder(compiler="aarch64-linux-gnu-gcc")
    done = guard.run([ROOT / "tests/emulate", "env", f"LD_PRELOAD={guard.library}", program], env={"LD_PRELOAD": None})
    if done.returncode == 77:
        pytest.skip(done.stderr.strip())
    assert (done.returncode, done.stdout) == WELL
    assert "cannot be preloaded" in done.stderr and guard.processes() == []
