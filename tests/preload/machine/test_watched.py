"""The watchdog where no memory has to be thrashed: whether it is there, whom it chooses, and what it takes for held.

Over a fake /proc that says what it likes; what processes hold is real, but little.
"""

import contextlib
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from lib.machine import GIB, MIB, needs_root, set_available, slept
from lib.target import CC, UNCOUNTED_BYTES
from lib.waiting import wait_until

TLS = """
#include <stdlib.h>
#include <unistd.h>
__thread volatile char big[TLS_KIB << 10];
int main(void)
{
    char byte;
    void *volatile block = malloc(300 << 20);
    big[0] = 1;
    return block == NULL || write(1, "ready\\n", 6) != 6 || read(0, &byte, 1) != 1;
}
"""


@pytest.mark.parametrize("kib", [16, 240, 244, 248, 252, 1024])
def test_process_with_much_static_tls_is_watched(place, tmp_path, kib):
    """glibc lays it out on each thread's stack."""
    (tmp_path / "tls.c").write_text(TLS)
    subprocess.run([CC, f"-DTLS_KIB={kib}", "-fno-builtin", "-o", tmp_path / "tls", tmp_path / "tls.c"], check=True)
    tenant = place.tenant([tmp_path / "tls"])
    assert tenant.ready() == []
    wait_until(lambda: place.guard.process(tenant.pid)["watched"])
    entry = place.ledger.of(tenant.pid)
    looked = place.ledger.get("watched_ns", entry)
    wait_until(lambda: place.ledger.get("watched_ns", entry) > looked)
    tenant.end()


NAMESPACES = {
    "user": "libc.unshare(0x10000000)",
    "mount": "libc.setns(os.open('/proc/self/ns/mnt', 0), 0x20000)",
}


@needs_root
@pytest.mark.parametrize("kind", NAMESPACES)
@pytest.mark.parametrize("who", ["process", "child"])
def test_watchdog_makes_way_for_a_namespace_of_single_threaded_processes(place, kind, who):
    control = f"import ctypes, os\nlibc = ctypes.CDLL(None)\nos._exit({NAMESPACES[kind]} != 0)"
    if subprocess.run([sys.executable, "-S", "-c", control], check=False).returncode != 0:
        pytest.skip(f"a process without threads may not enter a {kind} namespace here either")
    begin = "malloc(300 * MIB)" + ("\nif os.fork(): os._exit(os.wait()[1] >> 8)" if who == "child" else "")
    text = f"\nsay(os.getpid())\nready()\nsay({NAMESPACES[kind]} or ctypes.get_errno())\nready()"
    tenant = place.player(begin + text)
    said = tenant.ready()
    wait_until(lambda: place.guard.process(said[-1])["watched"])
    assert tenant.go().ready() == [0]
    tenant.end()


# ---- what a forked child holds ----

INHERITED = 64 * MIB
NEAR = 12 * MIB  # an interpreter's own copies

# What a child, or its parent after the fork, does with what both have; and what either would give back.
LIVES = {
    "child_copies": ("ctypes.memset(block, 2, 32 * MIB)", "", 32 * MIB, 32 * MIB),
    "child_maps_and_unmaps": (
        """
for _ in range(40):
    new = libc.mmap(0, 4 * MIB, 3, 0x22, -1, 0)
    libc.madvise(ctypes.c_void_p(new), ctypes.c_size_t(4 * MIB), 15)  # no huge pages: many faults
    ctypes.memset(new, 1, 4 * MIB)
    libc.munmap(ctypes.c_void_p(new), ctypes.c_size_t(4 * MIB))
""",
        "",
        0,
        0,
    ),
    "parent_copies": ("", "ctypes.memset(block, 2, 64 * MIB)", 64 * MIB, 64 * MIB),
}


def held(place, entry):
    return place.ledger.get("holds_bounded_bytes", entry)


@pytest.mark.parametrize("life", LIVES)
def test_below_the_floor_what_a_child_holds_is_known_whoever_copied(place, life):
    of_child, of_parent, expected, parents = LIVES[life]
    text = f"""
block = malloc(300 * MIB)
ctypes.memset(block, 1, {INHERITED})
child = os.fork()
if child == 0:
    exec({of_child!r})
    ready()
    os._exit(0)
exec({of_parent!r})
say(child)
ready()
"""
    tenant = place.player(text, {"SPARKGUARD_WATCHDOG": "warn"})
    said = ["ok", *tenant.ready()][1:] + tenant.ready()  # both say it, in any order
    (child,) = [word for word in said if word != "ok"]
    entry = place.ledger.of(child)
    set_available(place, 400 * MIB)
    wait_until(lambda: expected <= held(place, entry) <= expected + NEAR)
    shared = place.ledger.get("shared_bytes", entry)
    assert abs(INHERITED - parents - shared) <= NEAR
    tenant.end()


# ---- who acts ----

STEADY_NS = 1_200_000_000  # twice as long as a rate is measured


@pytest.mark.parametrize("sizes", [(32, 48), (48, 32)], ids=["second", "first"])
def test_of_two_large_processes_the_larger_one_acts_and_nobody_else(place, sizes):
    """Deaf ones: who is ended would leave the other as the largest."""
    place.env |= {"SPARKGUARD_RESERVE": "1G", "SPARKGUARD_FLOOR": "1020M", "SPARKGUARD_WATCHDOG": "term"}
    tenants = []
    for mib in sizes:
        commands = f"malloc 300M malloc {mib}M touch 1"
        tenants.append(place.holder(commands, preexec_fn=lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN)))
    entries = [place.ledger.of(tenant.pid) for tenant in tenants]

    def looked():
        return [place.ledger.get("watched_ns", entry) for entry in entries]

    def events():
        return [[what.split(":")[1] for what in place.events(t.pid) if "watchdog" in what] for t in tenants]

    wait_until(lambda: min(looked()) != 0)
    wait_until(lambda: all(held(place, entry) >= mib * MIB - UNCOUNTED_BYTES for entry, mib in zip(entries, sizes)))
    set_available(place, 1030 * MIB)
    begin = max(looked())
    wait_until(lambda: min(looked()) > begin + STEADY_NS)  # a fall by gigabytes is reason to kill at once
    set_available(place, 1000 * MIB)  # 24 MiB are missing: either could give them back
    larger = sizes.index(max(sizes))
    wait_until(lambda: events()[larger])
    for _ in range(5):
        before = looked()
        wait_until(lambda: all(now > then for now, then in zip(looked(), before)))
    set_available(place, 10 * GIB)
    wait_until(lambda: len(events()[larger]) == 2)
    assert events()[larger] == [" sent SIGTERM", " let live"] and events()[1 - larger] == []
    for tenant in tenants:
        tenant.end()


# ---- when it ends its process ----

RESERVE_BYTES, FLOOR_BYTES = 96 * MIB, 64 * MIB
TOUCHED = 128 * MIB  # more than is ever missing
AMPLE = 512 * MIB
ENDS = {"SPARKGUARD_RESERVE": "96M", "SPARKGUARD_FLOOR": "64M"}

HEEDS = f"""
import signal
block = malloc(300 * MIB)
ctypes.memset(block, 1, {TOUCHED})
def heed(*_):
    say("told")
    if {{seconds}}:
        time.sleep({{seconds}})  # pace: it saves for so long
        say("saved")
        os._exit(0)
signal.signal(signal.SIGTERM, heed)
say("ready")
while True:
    signal.pause()
"""


def heeding(place, seconds):
    """A process that saves for so many seconds when it is told to end, then ends; 0: it goes on."""
    tenant = place.player(HEEDS.format(seconds=seconds), ENDS)
    assert tenant.ready() == ["ok"]
    entry = place.ledger.of(tenant.pid)
    wait_until(lambda: place.ledger.get("watched_ns", entry) != 0 and held(place, entry) >= TOUCHED)
    return tenant


def wait_for_looks(place, tenant, seconds):
    """Until its watchdog has looked again and again for so long, or the process has ended."""
    entry = place.ledger.of(tenant.pid)
    begin = place.ledger.get("watched_ns", entry)
    wait_until(
        lambda: tenant.process.poll() is not None
        or place.ledger.get("watched_ns", entry) > begin + seconds * 1_000_000_000
    )


def said_that_it_was_told(tenant):
    return tenant.process.stdout.readline() == "told\n"


HALT_SECONDS = 0.075  # a fall that never halts for longer is a steady one: no tenth of a second loses too little (watch/fall.c)
LOOK_SECONDS = 0.005  # between two looks below the floor (SHORTEST_NS in preload/guard/watch/watchdog.c)


def killed_after(place, tenant, available):
    """Usable memory falls to `available`, and the process is killed. Returns the seconds until then, which are more on a busy machine, and
    how often its threads slept, which is not."""
    slept_before = 0
    for task in Path(f"/proc/{tenant.pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # one has ended meanwhile
            slept_before += slept(int(task.name))
    reaped_before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_nvcsw
    begin = time.monotonic()
    set_available(place, available)
    assert tenant.process.wait(60) == -signal.SIGKILL
    return time.monotonic() - begin, resource.getrusage(resource.RUSAGE_CHILDREN).ru_nvcsw - reaped_before - slept_before


def fall(place, tenant, first, last, bytes_per_second):
    """Usable memory falls until it is at `last`, or the process ends. Returns what it was then."""
    begin, now = time.monotonic(), first
    while now > last and tenant.process.poll() is None:
        set_available(place, now)
        time.sleep(0.004)  # pace: of the fall
        now = max(last, first - int((time.monotonic() - begin) * bytes_per_second))
    return now


def fall_steadily(place, tenant, first, last, bytes_per_second):
    """The same; None as soon as there was no step of it, or no look of the watchdog at it, for HALT_SECONDS: a busy machine may let
    neither this process nor the watchdog run. It begins when the watchdog has looked at `first`: it had paused for up to 0.1 s before."""
    entry = place.ledger.of(tenant.pid)
    set_available(place, first)
    for _ in range(2):
        before = place.ledger.get("watched_ns", entry)
        wait_until(lambda: place.ledger.get("watched_ns", entry) != before)
    begin = at = looked = time.monotonic()
    now, look = first, 0
    while now > last and tenant.process.poll() is None:
        set_available(place, now)
        time.sleep(0.004)  # pace: of the fall
        moved, at = at, time.monotonic()
        last_look, look = look, place.ledger.get("watched_ns", entry)
        if max(at - moved, at - looked) > HALT_SECONDS:
            return None
        looked = at if look != last_look else looked
        now = max(last, first - int((at - begin) * bytes_per_second))
    return now


def acts(place, tenant):
    """Of its watchdog. The process itself may be killed before a busy machine lets it say that it was told."""
    return [what.split(":")[1] for what in place.events(tenant.pid) if "watchdog" in what]


def assert_saved(tenant):
    assert said_that_it_was_told(tenant)
    assert tenant.process.stdout.readline() == "saved\n", f"it ended with status {tenant.process.wait(60)}"
    assert tenant.process.wait(60) == 0


def test_process_has_time_to_save_when_memory_went_in_one_step(place):
    """A step of 10 GiB is no fall that goes on."""
    tenant = heeding(place, 0.5)
    set_available(place, 48 * MIB)
    assert_saved(tenant)


@pytest.mark.parametrize("mib_per_second", [pytest.param(16, marks=pytest.mark.long), 32])
def test_process_has_time_to_save_while_memory_falls_slowly(place, mib_per_second):
    """Four or two seconds are left when it is told; then the fall ends."""
    tenant = heeding(place, 1)
    fall(place, tenant, FLOOR_BYTES + 16 * MIB, FLOOR_BYTES - 20 * MIB, mib_per_second * MIB)
    assert_saved(tenant)


def test_process_that_goes_on_is_killed_after_five_seconds(place):
    tenant = heeding(place, 0)
    seconds, sleeps = killed_after(place, tenant, 48 * MIB)
    assert said_that_it_was_told(tenant)
    assert seconds >= 5 and sleeps < 6.5 / LOOK_SECONDS
    assert acts(place, tenant) == [" sent SIGTERM", " ended"]


def test_process_is_killed_when_a_fall_leaves_less_than_a_quarter_of_a_second(place):
    rate = 160 * MIB

    def steady():
        set_available(place, 10 * GIB)
        tenant = heeding(place, 0)
        left = fall_steadily(place, tenant, FLOOR_BYTES + 88 * MIB, FLOOR_BYTES // 8 + 1, rate)
        if left is None:
            tenant.kill()
            return None
        return tenant, left

    tenant, left = wait_until(steady, f"a fall that nothing halts for {HALT_SECONDS} s")
    assert tenant.process.wait(60) == -signal.SIGKILL
    # Of the 0.5 s over which a rate is measured, HALT_SECONDS may be missing or too many: it is killed at 34 to 46 MiB.
    assert left <= rate * 0.25 * (0.5 + HALT_SECONDS) / 0.5 < FLOOR_BYTES, "it was told at 64 MiB"  # pace: a fall that was halted longer begins again
    # It may have fallen on for twice so long: up to the watchdog's look, and until this process saw the end.
    assert left >= rate * (0.25 * (0.5 - HALT_SECONDS) / 0.5 - 2 * HALT_SECONDS) > FLOOR_BYTES // 8 + MIB
    assert acts(place, tenant) == [" sent SIGTERM", " ended"]


def test_process_is_killed_a_tenth_of_a_second_after_it_was_told_below_an_eighth_of_the_floor(place):
    tenant = heeding(place, 0)
    seconds, sleeps = killed_after(place, tenant, FLOOR_BYTES // 8 - MIB)
    assert acts(place, tenant) == [" sent SIGTERM", " ended"]
    assert seconds >= 0.1 and sleeps < 0.6 / LOOK_SECONDS


def test_process_that_was_told_is_not_killed_above_an_eighth_of_the_floor(place):
    tenant = heeding(place, 0)
    set_available(place, FLOOR_BYTES // 8 + MIB)
    assert said_that_it_was_told(tenant)
    wait_for_looks(place, tenant, 0.5)  # five times as long as below an eighth
    assert tenant.process.poll() is None
    tenant.kill()


# ---- what it looks at ----


def set_current(place, path, bytes):
    file = os.open(place.machine.root / f"sys/fs/cgroup{path}/memory.current", os.O_WRONLY)
    os.pwrite(file, f"{bytes:20d}\n".encode(), 0)
    os.close(file)


@pytest.mark.parametrize("maximum", [2 * GIB, "max"])
def test_nobody_is_ended_because_of_memory_high(place, maximum):
    """It slows a group down, and bounds admission. Only memory.max ends processes."""
    place.machine.write("proc/self/cgroup", "0::/job").v2("/job", maximum, high=400 * MIB, current=f"{0:20d}")
    place.env["SPARKGUARD_RESERVE"] = "10%"
    tenant = place.holder("mmap 300M touch 0")
    entry = place.ledger.of(tenant.pid)
    wait_until(lambda: place.ledger.get("watched_ns", entry) != 0 and held(place, entry) >= 300 * MIB)
    set_current(place, "/job", 400 * MIB - MIB)
    wait_for_looks(place, tenant, 0.3)  # it acts at the next look, and looks ten times a second
    assert [what for what in place.events(tenant.pid) if "watchdog" in what] == []
    assert place.take("mmap 3M") == ["ENOMEM"], "it bounds what is admitted"
    if maximum != "max":
        set_current(place, "/job", maximum - MIB)
        assert tenant.process.wait(60) == -signal.SIGTERM
