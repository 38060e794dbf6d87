"""Pages that the driver keeps after a free (590 and later): a program that fits into them is served, and nobody pays for it.

The simulated driver keeps what is given back in a pool outside MemAvailable, serves allocations from that pool, and shrinks it
under pressure only. The machine is fake and small, because the guard makes the pressure with real memory. play_kernel.py takes
what the guard populates from the fake machine, whose books then shrink the pool.
"""

import contextlib
import mmap
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
from conftest import MIB, OUT_OF_MEMORY
from lib.kept_pages import CONTEXT, RESERVE, TOTAL, kernel, machine
from lib.ledger import Ledger
from lib.waiting import wait_until

FIRST, SECOND = 90 * MIB, 120 * MIB  # 74 MiB are left beside the first one's pages and its context's
AT_ONCE = 20  # sleeps: pressure that brings nothing is made for a second at least, and a wait sleeps for 50 ms at most (admit/wait.c)
# Pressure is made for 10 s at most, and who makes it looks every 2 ms (driver_pages.c); what is released shows after 0.5 s at most, in the
# same steps; then it may wait for others for 3 s more (65 looks, admit/wait.c). Its sleeps for steps that are populated are among AT_ONCE.
MOST = (10_000 + 500) // 2 + 65 + AT_ONCE
GONE = f"start(); ok(take('cuMemAlloc_v2', {FIRST})[0])"

TAKE = f"""
start()
quiet()
result, p = take("cuMemAlloc_v2", {SECOND})
say(result=result)
"""

COUNTED = f"""
import resource, time
def sleeps():
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
start()
quiet()
before, begin = sleeps(), time.monotonic()
result, p = take("cuMemAlloc_v2", {SECOND})
say(result=result, ms=int((time.monotonic() - begin) * 1000), sleeps=sleeps() - before)
"""


def take(sim, text=TAKE, prefix=(), refills=True, **variables):
    """The program's answers, and what it populated. With `refills`, the driver has as many pages as before the program's context took
    some, and a few more for the program's own: where fewer come than were given back, the guard makes pressure for a second more."""
    with sim.tenant(text, prefix, **variables) as program:
        program.quiet()
        if refills and sim.machine_bytes("kept") == FIRST:
            sim.machine_move("kept", CONTEXT + 4 * MIB)
        with kernel(sim, program.pid) as played:
            done = program.finish()
        done.populated = played.populated
    return done


def end_of_another(sim, variables, how="exit"):
    """Another guarded program holds FIRST and ends; its pages stay with the driver."""
    if how == "exit":
        sim.script(GONE, **variables)
    else:
        with sim.tenant(GONE + "; quiet()", **variables) as other:
            other.quiet()
            os.kill(other.pid, signal.SIGKILL)
            other.process.wait()
    sim.settle()
    assert sim.machine_bytes("kept") == FIRST + CONTEXT
    assert sim.available_bytes() == TOTAL - FIRST - CONTEXT


@pytest.mark.parametrize("how", ["exit", "kill"])
def test_server_that_is_restarted_at_once_gets_what_its_forerunner_held(sim, how):
    variables = machine(sim)
    end_of_another(sim, variables, how)
    done = take(sim, COUNTED, refills=how == "kill", **variables)
    assert (done.result, done.stderr) == (0, "")
    assert done.sleeps < MOST


def test_program_in_its_own_sandbox_gets_the_pages_and_lives(sim):
    """Its filter ends whoever makes a call that ordinary programs do not make."""
    if subprocess.run([sim.program("host_strict"), "/bin/true"]).returncode == 77:
        pytest.skip("no seccomp here")
    variables = machine(sim)
    end_of_another(sim, variables)
    done = take(sim, TAKE, [sim.program("host_strict")], **variables)
    assert (done.result, done.stderr) == (0, "")


def test_program_gets_back_what_it_freed_itself(sim):
    text = f"""
start()
blocks = [take("cuMemAlloc_v2", 20 * MIB) for i in range({FIRST // MIB} // 20 + 1)]
for result, p in blocks:
    ok(result)
    give(p)
quiet()
say(result=take("cuMemAlloc_v2", {SECOND})[0])
"""
    assert take(sim, text, **machine(sim)).result == 0


@pytest.mark.parametrize("call", ["cuMemAllocManaged", "cuMemHostAlloc", "cuMemCreate"])
def test_every_kind_of_request_finds_the_pages(sim, call):
    variables = machine(sim)
    end_of_another(sim, variables)
    more = {"cuMemAllocManaged": ", c_uint(1)", "cuMemHostAlloc": ", c_uint(0)", "cuMemCreate": ", byref(ON_DEVICE), c_uint64(0)"}
    text = TAKE.replace(f"{SECOND})", f"{SECOND}{more[call]})").replace("cuMemAlloc_v2", call)
    assert take(sim, text, **variables).result == 0


def test_host_memory_finds_the_pages_too(sim):
    """Nobody touches it, so that the machine of the test is spared."""
    variables = machine(sim)
    end_of_another(sim, variables)
    text = f"import mmap\nquiet()\nmemory = mmap.mmap(-1, {SECOND}, mmap.MAP_PRIVATE)\nsay(got=len(memory))"
    assert take(sim, text, **variables).got == SECOND


def test_first_question_for_free_memory_counts_the_pages(sim):
    """vLLM compares free with its share of the total at start, and does not try to allocate."""
    variables = machine(sim)
    end_of_another(sim, variables)
    text = "start()\nquiet()\nfree, total = info()\nsay(free=free, total=total)\nsay(result=take('cuMemAlloc_v2', free)[0])"
    done = take(sim, text, **variables)
    assert TOTAL - RESERVE - CONTEXT - 20 * MIB <= done.free <= done.total <= TOTAL - RESERVE
    assert done.result == 0


def test_pages_that_a_successor_took_are_not_asked_for_again(sim):
    """The first one's pages serve the second: what the third lacks is in use, and nothing is populated for it."""
    variables = machine(sim)
    end_of_another(sim, variables)
    with sim.tenant(f"start(); ok(take('cuMemAlloc_v2', {FIRST - 24 * MIB})[0]); quiet()", **variables) as heir:
        heir.quiet()
        assert sim.machine_bytes("kept") == 24 * MIB
        done = take(sim, **variables)
        assert done.result == OUT_OF_MEMORY and done.populated < 20 * MIB
        heir.finish()


def test_driver_that_keeps_nothing_is_not_pressed(sim):
    """Before 590 pages are back at once: what does not fit is refused at once, whoever ended before."""
    variables = machine(sim, keeps=False)
    sim.script(GONE, **variables)
    done = take(sim, COUNTED.replace(str(SECOND), str(TOTAL)), **variables)
    assert done.result == OUT_OF_MEMORY
    assert done.populated < 20 * MIB and done.sleeps < AT_ONCE


def test_what_would_not_fit_with_the_pages_either_is_refused_at_once(sim):
    variables = machine(sim)
    end_of_another(sim, variables)
    done = take(sim, COUNTED.replace(str(SECOND), str(TOTAL - RESERVE // 2)), **variables)
    assert done.result == OUT_OF_MEMORY
    assert done.populated < 20 * MIB and done.sleeps < AT_ONCE
    assert sim.machine_bytes("kept") >= FIRST


def test_pages_that_never_come_are_waited_for_once(sim):
    """They are somebody's that nobody guards: after one try there is nothing more to be had, and nothing more to try."""
    variables = machine(sim)
    end_of_another(sim, variables)
    sim.machine_move("kept", -(FIRST + CONTEXT))
    sim.machine_move("unexplained", FIRST)
    text = COUNTED + f"before = sleeps()\nsay(again=take('cuMemAlloc_v2', {SECOND})[0], sleeps_again=sleeps() - before)"
    done = take(sim, text, **variables)
    assert (done.result, done.again) == (OUT_OF_MEMORY, OUT_OF_MEMORY)
    assert done.ms >= 1000 and done.sleeps < MOST, "pressure that brings nothing is made for a second"
    assert done.sleeps_again < AT_ONCE


def test_where_no_pressure_can_be_made_the_refusal_says_where_the_pages_are(sim):
    """What is populated is charged to the cgroup, which is too small for it."""
    variables = machine(sim)
    end_of_another(sim, variables)
    sim.cgroup(100 * MIB, 20 * MIB)
    done = take(sim, **variables)
    assert done.result == OUT_OF_MEMORY and done.populated < 20 * MIB
    assert "106.0 MiB freed earlier may still be with the driver (sparkguard-doctor)" in done.stderr


ZONE = """Node 0, zone   Normal
  per-node stats
      nr_inactive_anon 200000
  pages free     {free}
        boost    0
        min      {min}
        low      {low}
        high     {high}
        spanned  200000
        present  200000
        managed  200000
        cma      0
        protection: (0, 0, {kept}, {kept})
      nr_free_pages {free}
"""


@pytest.mark.parametrize("free, low, kept", [(1000, 1500, 0), (150000, 1500, 149000)], ids=["low", "kept for others"])
def test_nothing_is_populated_below_the_watermarks_of_the_zones(sim, free, low, kept):
    """There the kernel reclaims already: more would make allocations wait, or worse. Pages that a zone keeps for others are no
    free ones."""
    variables = machine(sim)
    end_of_another(sim, variables)
    (sim.root / "proc" / "zoneinfo").write_text(ZONE.format(free=free, min=low - 100, low=low, high=low + 100, kept=kept))
    done = take(sim, **variables)
    assert done.result == OUT_OF_MEMORY and done.populated < 20 * MIB


def test_kernels_caches_are_never_dropped_by_decree(sim):
    """An administrator's program may: it takes as long as the caches are large, and they are everybody's."""
    variables = machine(sim)
    end_of_another(sim, variables)
    path = sim.root / "proc" / "sys" / "vm" / "drop_caches"
    path.parent.mkdir(parents=True)
    path.touch()
    done = take(sim, **variables)
    assert done.result == 0 and path.read_text() == ""


CALLS = """
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>
static sigjmp_buf out;
static void jump(int signal) { siglongjmp(out, signal); }
static void linger(int signal)
{
    char line[2];
    read(0, line, signal != 0);
}
int lock_what_comes(void) { return mlockall(MCL_FUTURE); }
int call(int (*take)(unsigned long long *, size_t), size_t bytes, int may_jump)
{
    unsigned long long p;
    signal(SIGUSR1, may_jump ? jump : linger);
    return sigsetjmp(out, 1) != 0 ? -1 : take(&p, bytes);
}
"""

INTERRUPTED = """
calls = ctypes.CDLL({library!r})
start()
quiet()
say(result=calls.call(cuda.cuMemAlloc_v2, c_size_t({size}), {may_jump}))
quiet()
ok(take("cuMemAlloc_v2", MIB)[0])
"""


def resident(pid):
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * mmap.PAGESIZE


def children(pid):
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def has_ended(pid):
    with contextlib.suppress(FileNotFoundError, ProcessLookupError), open(f"/proc/{pid}/stat") as stat:
        return stat.read().rsplit(")", 1)[1].split()[0] in "ZX"
    return True


@contextlib.contextmanager
def pressing(sim, how="stop"):
    """A program that populates, has done so with 30 MiB, and gets nothing: it goes on for a second."""
    variables = machine(sim)
    end_of_another(sim, variables)
    sim.machine_move("kept", -(FIRST + CONTEXT))
    sim.machine_move("unexplained", FIRST + CONTEXT)
    library = str(sim.compile("calls.so", CALLS, "-shared", "-fPIC"))
    with sim.tenant(INTERRUPTED.format(library=library, size=SECOND, may_jump=int(how == "jump")), **variables) as program:
        program.quiet()
        program.before = resident(program.pid)
        with kernel(sim, program.pid):
            program.go()
            wait_until(lambda: resident(program.pid) > program.before + 30 * MIB)
            yield program


@pytest.mark.timeout_seconds(120)
@pytest.mark.parametrize("how", ["stop", "jump", "linger"])
def test_what_is_populated_goes_when_its_process_is_kept_from_going_on(sim, how):
    """Stopped, gone from the call by a jump out of a handler, or in a handler that waits: the machine gets its memory back, others learn
    it, and may make pressure themselves."""
    with pressing(sim, how) as program:
        os.kill(program.pid, signal.SIGSTOP if how == "stop" else signal.SIGUSR1)
        wait_until(lambda: resident(program.pid) < program.before + 10 * MIB)
        wait_until(lambda: Ledger(sim.guard.directory).get("pressure_bytes") == 0)  # a moment after the memory itself
        if how == "stop":
            assert Path(f"/proc/{program.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"
            os.kill(program.pid, signal.SIGCONT)
        elif how == "linger":
            program.go()
        said = program.quiet()
        assert said.result == (-1 if how == "jump" else OUT_OF_MEMORY)
        assert how == "jump" or children(program.pid) == []
        program.finish()


def test_who_populates_ends_with_the_program(sim):
    with pressing(sim) as program:
        (child,) = children(program.pid)
        assert os.listdir(f"/proc/{child}/fd") == [], "whoever waits for the end of a pipe of the program's does not wait for it"
        program.kill()
        wait_until(lambda: has_ended(child))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root for namespaces")
def test_first_process_of_a_namespace_is_the_programs_own(sim):
    variables = machine(sim)
    end_of_another(sim, variables)
    text = "import os\nassert ctypes.CDLL(None).unshare(0x20000000) == 0  # CLONE_NEWPID\n" + TAKE
    text += "child = os.fork()\nif child == 0:\n    os._exit(os.getpid())\nsay(first=os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))"
    assert take(sim, text, **variables).first == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to lock memory without a limit")
def test_program_that_locks_all_its_memory_populates_step_by_step(sim):
    """What is reserved for it, all that is available and all that is wanted, would be filled at once."""
    variables = machine(sim)
    end_of_another(sim, variables)
    (sim.root / "proc" / "zoneinfo").write_text(ZONE.format(free=1000, min=1400, low=1500, high=1600, kept=0))
    library = str(sim.compile("calls.so", CALLS, "-shared", "-fPIC"))
    done = take(sim, f"assert ctypes.CDLL({library!r}).lock_what_comes() == 0" + TAKE, **variables)
    assert done.result == OUT_OF_MEMORY and done.populated < 20 * MIB


def test_neighbours_are_neither_refused_nor_ended_meanwhile(sim):
    """Populating takes the machine below the floor for a moment. A neighbour with a watchdog lives, and gets its memory."""
    variables = machine(sim)
    end_of_another(sim, variables)
    neighbour = """
import time
start()
ok(take("cuMemAlloc_v2", 20 * MIB)[0])
quiet()
taken = [bytearray(300 << 10) for i in range(50)]
worst = 0
for i in range(20):
    result, p = take("cuMemAlloc_v2", MIB)
    worst = max(worst, result)
    if result == 0:
        give(p)
    time.sleep(0.02)  # pace: the other makes pressure meanwhile
say(result=worst)
"""
    with sim.tenant(neighbour, **variables) as other:
        other.quiet()
        with sim.tenant(TAKE.replace(str(SECOND), str(70 * MIB)), **variables) as program:
            program.quiet()
            with kernel(sim, program.pid):
                other.go()
                done = program.finish()
                said = other.finish()
    assert (done.result, said.result, said.stderr) == (0, 0, "")


def test_two_who_need_the_pages_press_one_after_the_other(sim):
    """Both fit, once the pages are back: neither is refused because the other populates."""
    variables = machine(sim)
    end_of_another(sim, variables)
    text = TAKE.replace(str(SECOND), str(66 * MIB))
    with sim.tenant(text, **variables) as one, sim.tenant(text, **variables) as other:
        for tenant in (one, other):
            tenant.quiet()
        with kernel(sim, one.pid), kernel(sim, other.pid):
            for tenant in (one, other):
                tenant.go()
            results = [tenant.finish().result for tenant in (one, other)]
    assert results == [0, 0]


def test_observing_makes_no_pressure(sim):
    variables = machine(sim) | {"SPARKGUARD_MODE": "observe"}
    end_of_another(sim, variables)
    done = take(sim, **variables)
    assert done.result == 0 and done.populated < 20 * MIB
    assert re.search("would have refused", done.stderr)
