"""What the fast ways may cost, in instructions: counted by callgrind, so the same every time, whatever else the machine does.

A change that makes one of them dearer fails here; one that makes it cheaper lowers the budget in the same commit. Counted are
the instructions of a longer run less those of a shorter one, so that starting costs nothing.
"""

import contextlib
import os
import platform
import re
import shutil
import subprocess
import sys
from collections import Counter
from typing import NamedTuple

import pytest

# Instructions inside the library, with gcc 12 at -O2 on x86-64.
MALLOC, FREE = 18, 15
PAIR_BEHIND = 74  # of malloc and free behind another allocator than glibc's, which is asked for each block's size besides
# Added to a pair of cuMemAlloc and cuMemFree of 64 KiB, the libc's in it, without the look at the machine that is taken
# every 5 ms: how many of those there are is a matter of time. Each also makes the request that it is taken for dearer, by what
# comes to 0 to 16 a pair between an idle machine and a load of 50. Some 50 of them are for the call site.
CUDA_PAIR = 2230  # 2,130 to 2,160 were counted
# Added to a pair of malloc and free of an array, by its size in KiB, on glibc's heap and where the thread has array credit; and
# its locked operations, each on a word that another thread reads or writes at times: 7, and those of the promises that are made
# ahead of array credit, once in some 16 frees of 256 KiB and in 4 of 16 MiB.
ARRAY_PAIR = {64: 33, 256: 860, 1024: 894, 16384: 894}  # without the snapshots, which are a matter of time
ARRAY_LOCKED = {64: 0, 256: 7.6, 1024: 8.1, 16384: 10}
ARRAY_CALLS = 100  # system calls that 200,000 such pairs, some 30 ms, may add: a snapshot each 5 ms, if somebody asks for one
REFRESH = "sg_headroom_refresh"
# Of a dlsym by a handle of the libc, by what it took before such look-ups were hooked: 49 more than the libc's 700 to 880. 1.05 to 1.10
# were counted of names that are not hooked, 1.13 to 1.16 of hooked ones.
LOOK_UP_BEFORE, LOOK_UP_TIMES = 49, 1.2
LOOKED_UP = ["qsort", "printf", "setlocale", "free", "malloc", "mremap", "execle", "malloc_usable_size", "__register_atfork"]
LARGE_PAIR_CALLS = 16  # of a pair of 64 MiB and more, without the snapshots: what is free is asked for around the free; 62 if each were measured
LARGE_REFRESHES = 4000  # in them, of a pair of 64 MiB over the real /proc: some 80 to 800 as time goes by, 8,000 for each one
MACHINE = "MemTotal: 125829120 kB\nMemFree: 104857600 kB\nMemAvailable: 104857600 kB\n"  # no cgroups: each is looked through

# Added to the start of /bin/true by the library, against an empty one: 35,500 with glibc 2.36, most of it the dynamic linker's. Its
# strcmp takes up to 1,400 more as another export or import moves the table of names.
START = 37_400
START_PAGES = 3  # of the library that each start gets a copy of: with what the linker sets, and two of variables

# Page faults that a fork adds in parent and child together, where the child only ends, at addresses that are the same in each run:
# 32; 68 when each word of the modules had a page of its own. Some eight of them are for our code, which no child has mapped.
FORK_FAULTS = 34
SNAPSHOT_NS = 5_000_000  # a cached snapshot is used for so long
SNAPSHOT_CALLS = 12  # system calls of one: a file opened, read and closed with signals blocked, and a lock to lower promises

FEW, MANY = 500, 2500
NAME = re.compile(r"^\((\d+)\)(?: (.*))?$")


class Profile:
    """What callgrind wrote: instructions by (library, function), calls left out, and those of everything together."""

    def __init__(self, text):
        self.own, self.with_calls, self.total = Counter(), Counter(), 0
        names = {"ob": {}, "fn": {}}
        library = function = callee = None
        is_call = False
        for line in text.splitlines():
            key, is_assignment, value = line.partition("=")
            if key == "calls":
                is_call = True
            elif key == "summary" or line.startswith("summary:"):
                self.total = int(line.split()[1])
            elif is_assignment and key in ("ob", "fn", "cfn", "cob"):
                name = self.name(names[key[-2:]], value)
                if key == "ob":
                    library = os.path.basename(name)
                elif key == "fn":
                    function = name
                elif key == "cfn":
                    callee = name
            elif line[:1] in "+-*0123456789" and line[:1]:
                cost = int(line.split()[1]) if len(line.split()) > 1 else 0
                if is_call:
                    self.with_calls[callee] += cost
                else:
                    self.own[library, function] += cost
                is_call = False

    @staticmethod
    def name(known, value):
        number, name = NAME.match(value).groups()
        return known.setdefault(number, name) if name else known[number]


def need_callgrind():
    if platform.machine() != "x86_64":
        pytest.skip("the budget is one of x86-64 instructions")
    if shutil.which("valgrind") is None:
        pytest.skip("valgrind is not installed")


def environment(build, scratch, is_guarded, machine, behind=""):
    env = {k: v for k, v in os.environ.items() if not k.startswith("SPARKGUARD_") and k != "LD_PRELOAD"}
    env |= {"LD_LIBRARY_PATH": str(build / "sim"), "SGSIM_BACKING": "none"}
    if is_guarded:
        if machine is not None:
            (scratch / "machine/proc").mkdir(parents=True, exist_ok=True)
            (scratch / "machine/proc/meminfo").write_text(machine)
        env |= {"LD_PRELOAD": f"{build}/libsparkguard.so {behind}", "SPARKGUARD_DIR": str(scratch / "live"),
                "SPARKGUARD_HISTORY": str(scratch / "history"), "SPARKGUARD_WATCHDOG": "off"}
        env |= {"SPARKGUARD_SYSTEM_ROOT": str(scratch / "machine")} if machine is not None else {}
    return env


def callgrind(build, scratch, kind, count, is_guarded, machine=MACHINE, behind="", options=()):
    """The text that callgrind wrote."""
    need_callgrind()
    out = scratch / f"{kind}.{count}.{is_guarded}"
    env = environment(build, scratch, is_guarded, machine, behind)
    if kind.startswith("array"):
        env["SPARKGUARD_HISTORY"] = "off"  # the first block starts its thread, whose steps are a matter of time
    command = ["valgrind", "--tool=callgrind", *options, f"--callgrind-out-file={out}", build / "bench/pairs", kind, count]
    done = subprocess.run([str(c) for c in command], env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    return out.read_text()


def profile(build, scratch, kind, count, is_guarded, machine=MACHINE, behind=""):
    return Profile(callgrind(build, scratch, kind, count, is_guarded, machine, behind))


def of_each(build, scratch, kind, is_guarded, count, machine=MACHINE):
    """Instructions of one pair, by what `count` reads from a profile."""
    few, many = (count(profile(build, scratch, kind, n, is_guarded, machine)) for n in (FEW, MANY))
    return (many - few) / (MANY - FEW)


def within(measured, budget):
    assert 0 < measured <= budget, f"{measured:.1f} instructions, {budget} are the budget"


@pytest.mark.parametrize("function, budget", [("malloc", MALLOC), ("free", FREE)])
def test_usual_block_costs_no_more_than_its_budget(build, tmp_path, function, budget):
    within(of_each(build, tmp_path, "heap", True, lambda p: p.own["libsparkguard.so", function]), budget)


def test_usual_block_runs_through_nothing_else_of_ours(build, tmp_path):
    def ours(found):
        return sum(cost for (library, _function), cost in found.own.items() if library == "libsparkguard.so")

    within(of_each(build, tmp_path, "heap", True, ours), MALLOC + FREE + 0.5)  # a refill of the credit now and then


def test_block_of_another_allocator_costs_no_more_than_its_budget(build, tmp_path):
    def ours(count):
        found = profile(build, tmp_path, "heap", count, True, behind=build / "bench/passthrough.so")
        return sum(cost for (library, _function), cost in found.own.items() if library == "libsparkguard.so")

    within((ours(MANY) - ours(FEW)) / (MANY - FEW), PAIR_BEHIND + 0.5)


def test_usual_block_adds_no_more_than_its_budget(build, tmp_path):
    added = of_each(build, tmp_path, "heap", True, lambda p: p.total) - of_each(build, tmp_path, "heap", False, lambda p: p.total)
    within(added, MALLOC + FREE + 0.5)


# ---- arrays ----


def without_look(found):
    return found.total - found.with_calls[REFRESH]


@pytest.mark.parametrize("kib", ARRAY_PAIR)
def test_array_adds_no_more_than_its_budget(build, tmp_path, kib):
    guarded, plain = (of_each(build, tmp_path, f"array:{kib}", is_guarded, without_look) for is_guarded in (True, False))
    within(guarded - plain, ARRAY_PAIR[kib] + 0.5)


def executed(text):
    """How often each instruction of our library was executed, by its address."""
    counts, is_ours, is_call = Counter(), False, False
    for line in text.splitlines():
        if line.startswith("ob="):
            is_ours = line.endswith("/libsparkguard.so")
        elif line.startswith("calls="):
            is_call = True  # the next line has the cost of what is called
        elif line.startswith("0x"):
            if is_ours and not is_call:
                address, _line, cost = line.split()
                counts[int(address, 16)] += int(cost)
            is_call = False
    return counts


def locked_instructions(library):
    """Addresses of the atomic read-modify-write operations: with a lock prefix, and xchg with memory, which needs none."""
    listing = subprocess.run(["objdump", "-d", "--no-show-raw-insn", library], check=True, capture_output=True, text=True).stdout
    return [int(a, 16) for a in re.findall(r"^ *([0-9a-f]+):\s+(?:lock |xchg +[^\n]*\()", listing, re.MULTILINE)]


@pytest.mark.parametrize("kib", ARRAY_LOCKED)
def test_array_makes_few_locked_operations(build, tmp_path, kib):
    """On many processors they are what a pair costs, if their words are shared."""
    options = ["--dump-instr=yes", "--compress-pos=no", "--compress-strings=no"]
    few, many = (executed(callgrind(build, tmp_path, f"array:{kib}", n, True, options=options)) for n in (FEW, MANY))
    locked = sum(many[address] - few[address] for address in locked_instructions(build / "libsparkguard.so")) / (MANY - FEW)
    assert -0.1 < locked <= ARRAY_LOCKED[kib] + 0.1, locked


def count_calls(build, scratch, env, kind, pairs, *options):
    """The lines of strace: the system calls of the pairs and of the start."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    trace = scratch / "calls"
    env = dict(env)
    preload = f"LD_PRELOAD={env.pop('LD_PRELOAD')}"
    command = ["strace", "-f", "-qq", *options, "-o", trace, "-E", preload, build / "bench/pairs", kind, pairs]
    subprocess.run([str(c) for c in command], env=env, check=True, stdin=subprocess.DEVNULL)
    return len(trace.read_text().splitlines())


class Calls(NamedTuple):
    calls: int  # system calls of a run
    snapshots: int  # of them, reads of the machine's figures
    elapsed_ns: int


def traced_calls(build, scratch, env, kind, pairs):
    calls = count_calls(build, scratch, env, kind, pairs, "-ttt")
    lines = (scratch / "calls").read_text().splitlines()
    first, last = (float(line.split()[1]) for line in (lines[0], lines[-1]))
    return Calls(calls, sum('/proc/meminfo"' in line for line in lines), round((last - first) * 1e9))


@pytest.mark.parametrize("kib", ARRAY_PAIR)
def test_array_makes_no_system_call(build, tmp_path, kib):
    """The difference of two runs: both have the pairs before the thread gets array credit."""
    env = environment(build, tmp_path, True, MACHINE) | {"SPARKGUARD_HISTORY": "off"}
    few, many = (count_calls(build, tmp_path, env, f"array:{kib}", pairs) for pairs in (1_000, 201_000))
    assert many - few <= ARRAY_CALLS, (few, many)


@pytest.mark.parametrize("kib", [256, 1024, 16384])
@pytest.mark.parametrize("beside", ["limit", "another", "another with a limit"])
def test_array_of_a_job_makes_few_system_calls(build, tmp_path, kib, beside):
    """Under a limit, and beside another process of the job, where there is no array credit: a lock for each 256 MiB that were promised,
    and a snapshot each 5 ms, and each time that what was granted since the last one comes to what may be taken (60 GiB at least). How many
    snapshots there are is a matter of time, and strace takes it."""
    env = environment(build, tmp_path, True, MACHINE) | {"SPARKGUARD_HISTORY": "off", "SPARKGUARD_JOB": "one"}
    if "limit" in beside:
        env["SPARKGUARD_LIMIT"] = "60G"
    other = [sys.executable, "-c", "import sys; block = bytearray(3 << 20); print(flush=True); sys.stdin.read()"]
    with contextlib.ExitStack() as stack:
        if "another" in beside:
            process = stack.enter_context(subprocess.Popen(other, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
            assert process.stdout.readline() == b"\n"
            stack.callback(process.stdin.close)
        few, many = (traced_calls(build, tmp_path, env, f"array:{kib}", pairs) for pairs in (1_000, 21_000))
    assert many.snapshots <= many.elapsed_ns / SNAPSHOT_NS + 2 + 21_000 * kib / (60 << 20), many
    added = many.calls - few.calls - SNAPSHOT_CALLS * (many.snapshots - few.snapshots)
    assert added / 20_000 < 0.02 + 2 * kib / (256 << 10) * 1.2, (few, many)


@pytest.mark.parametrize("name", LOOKED_UP)
def test_look_up_by_a_handle_adds_no_more_than_a_fifth(build, tmp_path, name):
    guarded, plain = (of_each(build, tmp_path, f"name:{name}", is_guarded, lambda p: p.total) for is_guarded in (True, False))
    within(guarded, LOOK_UP_TIMES * (plain + LOOK_UP_BEFORE))


def test_admitted_cuda_block_adds_no_more_than_its_budget(build, tmp_path):
    guarded = of_each(build, tmp_path, "cuda", True, lambda p: p.total - p.with_calls[REFRESH])
    within(guarded - of_each(build, tmp_path, "cuda", False, lambda p: p.total), CUDA_PAIR)


def test_small_cuda_block_does_not_block_signals(build, tmp_path):
    """A lock of ours does, by two system calls that cost as much as all the rest: what fits by a cached snapshot takes none."""
    env = environment(build, tmp_path, True, MACHINE)
    blocked = count_calls(build, tmp_path, env, "cuda", MANY, "-e", "trace=rt_sigprocmask")
    assert 0 < blocked < MANY / 2  # some for each refresh;  time tells how many there are


def test_large_cuda_blocks_do_not_read_the_machines_figures_each_time(build, tmp_path):
    """One snapshot serves 5 ms. How much is free, before the driver is called and around a free, is asked for in another way."""
    refreshes = of_each(build, tmp_path, "device", True, lambda p: p.with_calls[REFRESH], machine=None)
    within(refreshes + 1, LARGE_REFRESHES)


@pytest.mark.parametrize("pools", [False, True], ids=["no pools", "pools"])
@pytest.mark.parametrize("mib", [64, 256])
def test_large_cuda_pair_makes_few_system_calls(build, tmp_path, mib, pools):
    """What the driver does with the machine's memory is measured until it is known, then in one call of 64."""
    added = []
    for off in ("0", "1"):
        env = environment(build, tmp_path, True, MACHINE) | {"SPARKGUARD_DISABLE": off}
        (tmp_path / "machine/proc/driver/nvidia").mkdir(parents=True, exist_ok=True)
        (tmp_path / "machine/proc/driver/nvidia/params").write_text("EnableSystemMemoryPools: 529\n" if pools else "RmMsg: \"\"\n")
        env |= {"SPARKGUARD_HISTORY": "off", "SPARKGUARD_RESERVE": "8G", "SPARKGUARD_SYSTEM_ROOT": str(tmp_path / "machine")}
        env |= {"SGSIM_KIND": "gb10", "SGSIM_MEMINFO": str(tmp_path / "machine/proc/meminfo")}
        few, many = (traced_calls(build, tmp_path, env, f"device:{mib}", pairs) for pairs in (200, 1_200))
        added.append(many.calls - few.calls)
        if off == "0":
            snapshots = (many.elapsed_ns + few.elapsed_ns) / SNAPSHOT_NS + 2  # as many as may be due in the guarded runs
    assert added[0] - added[1] <= LARGE_PAIR_CALLS * 1_000 + SNAPSHOT_CALLS * snapshots, added


def fork_faults(build, library, scratch, count):
    """Where libraries lie decides how many of their pages a fault maps, so they lie where they did in every run."""
    env = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "LD_PRELOAD": str(library), "SPARKGUARD_DIR": str(scratch / "live")}
    command = ["setarch", "--addr-no-randomize", build / "bench/pairs", "fork", str(count)]
    process = subprocess.Popen(command, env=env | {"SPARKGUARD_HISTORY": "off"})
    _pid, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_minflt


def test_fork_adds_few_page_faults(build, tmp_path):
    """They are what a fork costs: some 1.6 us each, as much as thousands of instructions."""
    if os.sysconf("SC_PAGE_SIZE") != 4096:
        pytest.skip("the budget is one of small pages")
    added = []
    for library in (build / "libsparkguard.so", build / "bench/empty.so"):
        few, many = (fork_faults(build, library, tmp_path, count) for count in (50, 250))
        added.append((many - few) / 200)
    assert 0 < round(added[0] - added[1]) <= FORK_FAULTS, added  # a fault or two of 200 forks are the process's own


def start_instructions(library, scratch):
    command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={scratch}/start", "/bin/true"]
    env = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "LD_PRELOAD": str(library)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    return Profile((scratch / "start").read_text()).total


def test_start_adds_no_more_than_its_budget(build, tmp_path):
    need_callgrind()
    within(start_instructions(build / "libsparkguard.so", tmp_path) - start_instructions(build / "bench/empty.so", tmp_path), START)


def test_start_gets_few_pages(guard):
    """A page fault costs a start as much as thousands of instructions: what it writes to lies close together, and not in .bss."""
    if os.sysconf("SC_PAGE_SIZE") != 4096:
        pytest.skip("the budget is one of small pages")
    of_file, others = guard.run([guard.build / "tests/programs/start_pages"]).stdout.split()
    assert int(of_file) <= START_PAGES and others == "0"


def test_start_makes_few_system_calls(build, tmp_path):
    """What the library asks the kernel at a start: which file its messages go to, who we are, the time. Nothing of /proc."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    trace = tmp_path / "trace"
    subprocess.run(["strace", "-qq", "-o", trace, "-E", f"LD_PRELOAD={build}/libsparkguard.so", "/bin/true"], check=True)
    calls = trace.read_text().splitlines()
    own = calls[max(i for i, call in enumerate(calls) if call.startswith("munmap(")) + 1 : -1]  # the linker's last; exit_group
    assert len(own) <= 5 and not any("/proc" in call for call in own), own
