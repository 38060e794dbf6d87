"""The tools and the library say the same bytes: they compute each figure once, in preload/core.

A guarded program asks cuMemGetInfo and then finds by trying what one request is granted. Meanwhile sparkguard-report, sparkguard-doctor and
sparkguard --check look from outside, without an entry of their own.
"""

import contextlib
import json
import re
import subprocess
from types import SimpleNamespace

import pytest
from conftest import MIB
from lib.ledger import BEGIN, ENTRY, LEDGER, LIVE, ROOM, VERSION, Ledger, hash_of

TOTAL, RESERVE, CONTEXT = 800 * MIB, 200 * MIB, 16 * MIB  # a quarter of so small a machine is kept
STEP = 2 * MIB  # cuMemGetInfo answers in these steps
CLAIM = 1 << 7  # sg_slot.flags
UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
# An idle Python process: what a peer counts of its promises, and what it counts itself after a scan.
NEAR = 2 * MIB

ASKER = """
start()
def bisect(allocate, release):
    low, high = 0, 1 << 30
    while high - low > 1 << 18:
        middle = (low + high) // 2
        p = allocate(middle)
        if p is None:
            high = middle
        else:
            release(p)
            low = middle
    return low
def device(size):
    result, p = take("cuMemAlloc_v2", size)
    return p if result == 0 else None
import mmap
def host(size):
    try:
        return mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError:
        return None
info()
quiet()
say(free=info()[0])
quiet()
say(host=bisect(host, lambda p: p.close()), device=bisect(device, give))
"""

MANAGED = """
start()
result, p = take("cuMemAllocManaged", {size}, c_uint(1))
ok(result)
{touch}
quiet()
"""

SHARED = """
import mmap, os
fd = os.memfd_create("x")
os.ftruncate(fd, {size})
one, other = mmap.mmap(fd, {size}), mmap.mmap(fd, {size})
ready, is_ready = os.pipe()
if os.fork() == 0:
    again = mmap.mmap(fd, {size})
    other = bytearray(2 << 20)
    os.write(is_ready, b".")
    os.read(0, 1)
    os._exit(0)
os.read(ready, 1)  # the child's record is there
quiet()
"""


def machine(sim, **more):
    variables = sim.machine(TOTAL) | {"SGSIM_CONTEXT": CONTEXT, "SGSIM_LEDGER": None, "SGSIM_BACKING": None}
    sim.script("start()", **variables)  # measures a context
    sim.settle()
    return variables | more


def look(sim, variables, job="asker"):
    """What the tools say can be had."""
    extra = {key: value for key, value in variables.items() if key.startswith("SPARKGUARD_")}
    env = sim.guard.environment({"LD_PRELOAD": None, "NO_COLOR": "1"} | extra)

    def run(tool, *arguments):
        done = subprocess.run([str(sim.build / tool), *arguments], env=env, capture_output=True, text=True, timeout=60)
        assert done.stderr == ""
        return done.stdout

    before = sorted(path.name for path in sim.guard.directory.iterdir())
    report = json.loads(run("sparkguard-report", "--json"))["machine"]
    findings = json.loads(run("sparkguard-doctor", "--json"))["findings"]
    memory = next(finding for finding in findings if finding["id"] == "memory")["figures"]
    assert sorted(path.name for path in sim.guard.directory.iterdir()) == before
    check = run("sparkguard", f"--job={job}", "--check", "true")
    number, unit = re.search(r"room ([\d.]+) (\w+) now", check).groups()
    return SimpleNamespace(
        report=max(0, report["usable_bytes"] - report["reserve_bytes"]),
        device=report["device_room_bytes"],
        doctor=max(0, memory["usable_bytes"] - memory["reserve_bytes"]),
        check=float(number) * UNITS[unit],
        machine=report,
    )


def compare(sim, variables, setting=None, is_limited=False, is_in_cgroup=False, doubt=0):
    """Tools and library, in one situation."""
    with sim.tenant(ASKER, **variables | {"SPARKGUARD_JOB": "asker"}) as asker:
        asker.quiet()
        if setting:
            setting()
        asker.go()
        free = asker.quiet().free
        seen = look(sim, variables)
        granted = asker.finish()
    assert abs(seen.report - seen.doctor) <= NEAR, "report and doctor"
    if not is_limited:
        assert abs(seen.report - seen.check) <= NEAR + MIB, "report and --check"
    room = seen.check if is_limited else seen.report
    assert abs(granted.host - room) <= NEAR, f"tools say {room / MIB:.1f} MiB, {granted.host / MIB:.1f} MiB of host memory are granted"
    device = min(room, seen.device) if is_limited else seen.device
    assert -NEAR <= granted.device - device <= NEAR + doubt, f"tools say {device / MIB:.1f} MiB, {granted.device / MIB:.1f} MiB of device memory are granted"
    told = min(room, device) if is_in_cgroup else device  # it may be meant for managed memory
    assert -STEP - NEAR <= free - told <= NEAR, f"tools say {told / MIB:.1f} MiB, cuMemGetInfo {free / MIB:.1f} MiB"
    return SimpleNamespace(room=room, device=device, machine=seen.machine)


def test_plain_machine(sim):
    same = compare(sim, machine(sim))
    assert same.room > TOTAL - RESERVE - CONTEXT - 16 * MIB


def test_machine_of_which_unguarded_neighbours_hold_a_part(sim):
    variables = machine(sim)
    sim.machine_move("other", 300 * MIB)
    same = compare(sim, variables)
    assert same.room < TOTAL - RESERVE - CONTEXT - 299 * MIB


@pytest.mark.parametrize("way", ["mapped", "unmapped"])
@pytest.mark.parametrize("touched", [0, 150, 300])
def test_managed_memory_of_another(sim, way, touched):
    """300 MiB, of which the GPU has touched a part: promised or there, and never both."""
    variables = machine(sim, SGSIM_MANAGED=way)
    touch = f"ok(cuda.sgsim_touch(p, {touched * MIB}))" if touched else ""
    with sim.tenant(MANAGED.format(size=300 * MIB, touch=touch), **variables) as other:
        other.quiet()
        same = compare(sim, variables)
    assert abs(same.room - (TOTAL - RESERVE - 2 * CONTEXT - 300 * MIB)) <= 16 * MIB
    assert abs(same.machine["promised_bytes"] - (300 - touched) * MIB) <= 16 * MIB


def test_cgroup(sim):
    """It bounds host memory and no device memory."""
    variables = machine(sim)
    sim.cgroup(256 * MIB, 16 * MIB)
    same = compare(sim, variables, is_in_cgroup=True)
    assert same.room < 256 * MIB and same.device > same.room + 100 * MIB


def test_reserve_that_was_set(sim):
    """sparkguard --set reserve= of the job that asks."""
    variables = machine(sim)
    command = [sim.build / "sparkguard", "--set", "asker", "reserve=400M"]
    env = sim.guard.environment({"LD_PRELOAD": None, "SPARKGUARD_SYSTEM_ROOT": variables["SPARKGUARD_SYSTEM_ROOT"]})
    same = compare(sim, variables, setting=lambda: subprocess.run(command, env=env, check=True, capture_output=True))
    assert same.machine["reserve_bytes"] == 400 * MIB


def test_limit_that_was_set(sim):
    """sparkguard --set limit= of the job that asks: --check knows what the job holds of it."""
    variables = machine(sim)
    command = [sim.build / "sparkguard", "--set", "asker", "limit=150M"]
    env = sim.guard.environment({"LD_PRELOAD": None, "SPARKGUARD_SYSTEM_ROOT": variables["SPARKGUARD_SYSTEM_ROOT"]})
    same = compare(sim, variables, setting=lambda: subprocess.run(command, env=env, check=True, capture_output=True), is_limited=True)
    assert 130 * MIB < same.room <= 150 * MIB


def test_claim_of_another_job(sim):
    variables = machine(sim)
    with Ledger.made(sim.guard.directory) as ledger:
        ledger.put("claim_places", 1)
        with ledger.entry(9, flags=CLAIM, job_hash=hash_of("claimer"), claimed_bytes=200 * MIB):
            same = compare(sim, variables)
    assert same.room < TOTAL - RESERVE - CONTEXT - 199 * MIB
    assert same.machine["claimed_bytes"] == 200 * MIB


def test_shared_memory_counts_once(sim):
    """A file that a process maps twice and its child once more, and has not touched."""
    variables = machine(sim)
    with sim.tenant(SHARED.format(size=100 * MIB), **variables) as other:
        other.quiet()
        same = compare(sim, variables)
    assert abs(same.room - (TOTAL - RESERVE - CONTEXT - 100 * MIB)) <= 16 * MIB


def foreign(directory, entry_bytes):
    """A registry that the next version made: somebody in it has been promised 100 MiB."""
    content = bytearray(BEGIN + ROOM * entry_bytes)
    content[:24] = Ledger.header(version=VERSION + 1, entry_bytes=entry_bytes, entry_used=4)
    at = LEDGER["context_bytes"][0]
    content[at : at + 8] = CONTEXT.to_bytes(8, "little")
    values = {"claim": 1 << 2 | LIVE, "granted_bytes": 100 * MIB, "promised_bytes": 100 * MIB}
    for field, value in values.items():
        offset, size = ENTRY[field]
        at = BEGIN + 3 * entry_bytes + offset
        content[at : at + size] = value.to_bytes(size, "little")
    (directory / "machine.ledger").write_bytes(content)


@pytest.mark.parametrize("entry_bytes", [512, 4096])
def test_registry_of_another_version(sim, entry_bytes):
    variables = machine(sim)
    foreign(sim.guard.directory, entry_bytes)
    with contextlib.closing(Ledger(sim.guard.directory)) as ledger, ledger.locked(3):
        same = compare(sim, variables)
    assert abs(same.room - (TOTAL - RESERVE - CONTEXT - 100 * MIB)) <= 16 * MIB


@pytest.mark.parametrize("is_alive", [True, False])
def test_pages_that_the_driver_keeps(sim, is_alive):
    """Drivers from 590 on serve device memory from what was freed. It is no room for host memory."""
    variables = machine(sim) | sim.keeps_freed_pages()
    text = f"start()\nresult, p = take('cuMemAlloc_v2', {200 * MIB})\nok(result)\ngive(p)\nquiet()"
    with sim.tenant(text, **variables) as other:
        other.quiet()
        if not is_alive:
            other.finish()
        # What the program that tries has taken and given back itself is in the pool for certain: that is a little more.
        same = compare(sim, variables, doubt=TOTAL // 64)
    assert same.device > same.room + 150 * MIB


def test_what_a_killed_process_was_promised_is_free(sim):
    """Nobody has found it dead yet."""
    variables = machine(sim)
    with sim.tenant(MANAGED.format(size=300 * MIB, touch=""), **variables) as other:
        other.quiet()
        other.kill()
        sim.settle()
        before = look(sim, variables)
    assert abs(before.report - (TOTAL - RESERVE)) <= 16 * MIB
    compare(sim, variables)


def test_nobody_has_run_here(sim):
    variables = sim.machine(TOTAL)
    sim.guard.directory.mkdir()
    seen = look(sim, variables)
    assert seen.report == seen.doctor == TOTAL - RESERVE and abs(seen.check - seen.report) < MIB
