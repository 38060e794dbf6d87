"""Storms of mappings: what is promised and what is refused, by the kernel's own counts of blocks (tmpfs) and of pages (a memory cgroup)."""

import contextlib
import os
import re
import tempfile

import pytest
from lib import storm
from lib.machine import LEFT, MIB, Tenant, has_cachestat
from lib.target import CHARGED_AHEAD_BYTES, PYTHON

QUIET = {"SPARKGUARD_WATCHDOG": "off", "SPARKGUARD_HISTORY": "off", "MALLOC_MMAP_THRESHOLD_": 1 << 17}  # each large block is a mapping
BESIDE = 6 * MIB  # of a program that asks: what it has mapped besides, and has never touched


# ---- memory files: blocks of tmpfs ----

PIECE = 2 * MIB
FILE_BYTES = 16 * PIECE
MOST_BLOCKS = 12 * PIECE  # what is allocated of all files


class Files:
    """Files that processes map in parts: name -> what each process has mapped of it, as (address, begin, end)."""

    def __init__(self, place, draw):
        self.place, self.draw, self.workers = place, draw, []
        folder = place.stack.enter_context
        self.names = [folder(tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="sparkguard-test-")).name for _ in range(3)]
        for name in self.names:
            os.truncate(name, FILE_BYTES)

    def start(self):
        opened = "".join(f"os.open({name!r}, os.O_RDWR), " for name in self.names)
        worker = self.place.tenant([PYTHON, "-S", "-c", f"{storm.WORKER}files = [{opened}]\nobey()"], QUIET)
        worker.ready()
        worker.parts = {name: [] for name in self.names}
        self.workers.append(worker)

    def blocks(self, name):
        return os.stat(name).st_blocks * 512

    def span(self):
        begin = self.draw.randrange(FILE_BYTES // PIECE)
        return begin * PIECE, self.draw.randrange(begin, FILE_BYTES // PIECE) * PIECE + PIECE

    def step(self):
        worker, file, choice = self.draw.choice(self.workers), self.draw.randrange(len(self.names)), self.draw.random()
        parts, (begin, end) = worker.parts[self.names[file]], self.span()
        if choice < 0.4 or not parts:
            (address,) = storm.tell(worker, f"mapped({end - begin}, 1, files[{file}], {begin})")
            parts.append((address, begin, end))
        elif choice < 0.6:
            address, begin, end = parts.pop(self.draw.randrange(len(parts)))
            storm.tell(worker, f"libc.munmap({address}, {end - begin})")
        elif choice < 0.7 and len(self.workers) > 2:
            self.workers.remove(worker)
            worker.kill()
        elif choice < 0.8 and len(self.workers) < 4:
            self.start()
        elif sum(map(self.blocks, self.names)) > MOST_BLOCKS:
            storm.tell(worker, f"os.ftruncate(files[{file}], 0); os.ftruncate(files[{file}], {FILE_BYTES})")
        elif choice < 0.9 and begin not in self.mapped(self.names[file]):  # what fallocate takes of a mapping, only touching it shows
            storm.tell(worker, f"os.posix_fallocate(files[{file}], {begin}, {PIECE})")
        else:
            address, begin, end = self.draw.choice(parts)
            storm.tell(worker, f"ctypes.memset({address}, 1, {PIECE})")

    def mapped(self, name):
        return {at for worker in self.workers for _, begin, end in worker.parts[name] for at in range(begin, end, PIECE)}

    def missing(self):
        """At least and at most so many bytes of what is mapped have no blocks: tmpfs tells of a file how many there are, and not where."""
        least = most = 0
        for name in self.names:
            mapped, blocks = len(self.mapped(name)) * PIECE, self.blocks(name)
            least += max(0, mapped - blocks)
            most += min(mapped, FILE_BYTES - blocks)
        return least, most

    def promised(self):
        """At least and at most so many bytes, by what the largest request leaves of the machine."""
        storm.look(self.workers)
        (largest,) = self.place.take("largest")
        beside = BESIDE + sum(storm.unmade_bytes(worker.pid) + MIB for worker in self.workers)  # each has a thread's credit
        return LEFT - largest - beside, LEFT - largest


@pytest.mark.parametrize("round_", storm.ROUNDS)
def test_memory_files_promise_what_tmpfs_has_no_blocks_for(place, round_):
    """Of several processes no less than that, and no more than they map together; of one exactly that, and nothing once all of it is touched."""
    files = Files(place, storm.seeded())
    for _ in range(3):
        files.start()
    for number in range(storm.STEPS):
        files.step()
        (least, _), (at_least, at_most) = files.missing(), files.promised()
        mapped = sum(len(files.mapped(name)) * PIECE for name in files.names)
        assert least <= at_most and at_least <= mapped, f"step {number}: {at_least / MIB} to {at_most / MIB} of {least / MIB} to {mapped / MIB} MiB"
    while len(files.workers) > 1:
        files.workers.pop().kill()
    (least, most), (at_least, at_most) = files.missing(), files.promised()
    assert least <= at_most and (at_least <= most or not has_cachestat()), f"{at_least / MIB} to {at_most / MIB} of {least / MIB} to {most / MIB} MiB"
    for parts in files.workers[0].parts.values():
        for address, begin, end in parts:
            storm.tell(files.workers[0], f"ctypes.memset({address}, 1, {end - begin})")
    assert files.promised()[0] <= 0


# ---- all that a request can take: pages of a memory cgroup ----

JAIL_BYTES = 512 * MIB
STEP = 16 * MIB  # touched at once
NEAR = 4 * MIB + CHARGED_AHEAD_BYTES  # memory.stat shows pages of files up to two seconds late
KEPT = JAIL_BYTES * 8 // 100
TAKES = {
    "malloc": "say(libc.malloc({0}) or 'ENOMEM')",
    "private": "mapped({0}, 0x22)",
    "shared": "mapped({0}, 0x21)",
    "file": "file = os.memfd_create('storm'); os.ftruncate(file, {0}); mapped({0}, 1, file); os.close(file)",
}


class Jail:
    """A memory cgroup, v1 or v2, and guarded programs in it."""

    def __init__(self, guard, folder, stack):
        self.guard, self.folder, self.stack, self.workers = guard, folder, stack, []

    def start(self):
        script = f'echo $$ >{self.folder}/cgroup.procs && LD_PRELOAD={self.guard.library} exec "$@"'
        command = ["/bin/sh", "-c", script, "sh", PYTHON, "-S", "-c", storm.WORKER + "obey()"]
        worker = Tenant(self.guard, command, QUIET, preload=())
        self.stack.callback(worker.kill)
        worker.ready()
        worker.blocks = {}  # address -> (size, touched, how it was taken)
        self.workers.append(worker)

    def figure(self, file, name):
        return int(re.search(rf"^{name} (\d+)", (self.folder / file).read_text(), re.MULTILINE)[1])

    def used(self):
        """Without what the kernel would take back."""
        is_v2 = (self.folder / "memory.current").exists()
        names = ("active_file", "inactive_file", "slab_reclaimable") if is_v2 else ("total_active_file", "total_inactive_file")
        used = int((self.folder / ("memory.current" if is_v2 else "memory.usage_in_bytes")).read_text())
        return used - sum(self.figure("memory.stat", name) for name in names)

    def assert_never_full(self, where):
        counts = {"memory.failcnt": r"(\d+)", "memory.events": r"max (\d+)"}
        told = [re.search(counts[name], (self.folder / name).read_text())[1] for name in counts if (self.folder / name).exists()]
        assert told == ["0"], f"{where}: the kernel had to refuse"

    def left(self):
        """At least and at most so many bytes: of private memory the kernel tells what has no page, the programs' own included."""
        untouched = [(how, size - touched) for worker in self.workers for size, touched, how in worker.blocks.values()]
        shared = sum(size for how, size in untouched if how in ("shared", "file"))
        most = JAIL_BYTES - KEPT - self.used() - sum(size for _, size in untouched)
        return min(most, JAIL_BYTES - KEPT - self.used() - shared - sum(storm.unmade_bytes(worker.pid) for worker in self.workers)), most

    def touch(self, worker, address):
        size, touched, how = worker.blocks[address]
        if touched == size:
            return
        step = min(STEP, size - touched)
        storm.tell(worker, f"ctypes.memset({address + touched}, 1, {step})")
        worker.blocks[address] = size, touched + step, how

    def take(self, worker, how, size):
        """Whether it was granted. A refusal is right where it does not fit, by the kernel's count."""
        (answer,) = storm.tell(worker, TAKES[how].format(size))
        if answer != "ENOMEM":
            worker.blocks[answer] = size, 0, how
        return answer != "ENOMEM"

    def step(self, draw, where):
        worker, choice = draw.choice(self.workers), draw.random()
        address = draw.choice(list(worker.blocks)) if worker.blocks else None
        if choice < 0.4 or address is None:
            size, how = draw.randrange(4, 100) * MIB, draw.choice(list(TAKES))
            storm.look(self.workers)
            least, most = self.left()
            is_granted = self.take(worker, how, size)
            told = f"{where}: {how} of {size >> 20} MiB, of {least / MIB:.1f} to {most / MIB:.1f} MiB"
            assert is_granted or size > least - NEAR, f"{told}: refused"
            assert not is_granted or size <= most + NEAR, f"{told}: granted"
        elif choice < 0.75:
            self.touch(worker, address)
        elif choice < 0.95:
            size, _, how = worker.blocks.pop(address)
            storm.tell(worker, f"libc.free({address})" if how == "malloc" else f"libc.munmap({address}, {size})")
        elif len(self.workers) > 1:
            self.workers.remove(worker)
            worker.kill()
            self.start()


@pytest.mark.long
@pytest.mark.parametrize("round_", storm.ROUNDS)
def test_what_is_granted_fits_a_cgroup_when_it_is_touched_and_what_fits_is_granted(guard, jail, round_):
    draw = storm.seeded()
    with contextlib.ExitStack() as stack:
        programs = Jail(guard, jail, stack)
        for _ in range(3):
            programs.start()
        for number in range(2 * storm.STEPS):
            programs.step(draw, f"step {number}")
        for worker in programs.workers:
            for address, (size, _, _) in list(worker.blocks.items()):
                for _ in range(0, size, STEP):
                    programs.touch(worker, address)
        programs.assert_never_full("the end")
