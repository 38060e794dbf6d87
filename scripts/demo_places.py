"""Where the two jobs of `make demo` run out of memory: a memory cgroup of this machine, or a simulated machine.

    with Places(build, scratch, is_simulated=False) as places, places.open() as place:
        canary = place.start_canary()
        job = place.popen("training", place.environment())

Both are small, and what the machine has besides is left as it is.
"""

import contextlib
import os
import re
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests/lab")]
import jail  # noqa: E402
from canary import PERIOD_SECONDS, Canary, Lateness  # noqa: E402
from demo_job import available_bytes  # noqa: E402
from lib.waiting import wait_until  # noqa: E402

MIB, GIB = 1 << 20, 1 << 30
JOB = [sys.executable, ROOT / "scripts/demo_job.py"]
# In MiB of the cgroup: the model of serving and of training, what a sample of a batch takes. With a batch of 64 they
# leave too little for everybody else, a batch of 128 is more than there is.
LIMIT_MIB, SERVING_MIB, TRAINING_MIB, SAMPLE_MIB = 512, 300, 56, 2
BATCHES = "8,16,32,64,128"
# The simulated machine has a Spark's size: each of those is so many times as large. A batch of 64 takes all but 128 MiB.
SCALE = 240
SIMULATED_TOTAL = 120 * GIB
LISTS = 24 / 4096  # that the driver takes beside its pages
SIMULATED_TAKEN = (SERVING_MIB + TRAINING_MIB + 64 * SAMPLE_MIB) * SCALE * MIB
SIMULATED_AVAILABLE = SIMULATED_TAKEN + round(SIMULATED_TAKEN * LISTS) + 128 * MIB
SIMULATED_DEAD = 256 * MIB  # with less than that nothing stays in memory but what cannot be swapped: all programs stand still
LOCK_SECONDS = 20  # for another demo or test that has a jail


def plain_environment():
    """This process's, without what would guard or simulate."""
    foreign = ("SPARKGUARD_", "SGSIM_", "LD_PRELOAD", "CUDA_VISIBLE_DEVICES")
    return {name: value for name, value in os.environ.items() if not name.startswith(foreign)}


def job_command(job, kind, scale):
    sizes = {"--model": SERVING_MIB if job == "serving" else TRAINING_MIB, "--sample": SAMPLE_MIB}
    options = [word for name, mib in sizes.items() for word in (name, mib * scale)]
    return [str(word) for word in (*JOB, job, "--memory", kind, *options, "--batches", BATCHES)]


class CgroupPlace:
    """A memory cgroup. Its swap is slow, as a busy disk is, where it has any."""

    FELT_PAGES = jail.READS_PER_SECOND // 2  # for as many the disk needs half a second

    def __init__(self, build, place):
        self.build, self.jail = build, place

    def environment(self):
        return plain_environment()

    def popen(self, job, env):
        return self.jail.popen(job_command(job, "host", 1), env, stderr=subprocess.STDOUT)

    def start_canary(self):
        return Canary(self.build / "demo/canary", self.jail, plain_environment())

    def oom_kills(self):
        return self.jail.oom_kills()


class SimulatedCanary(Lateness):
    """Stands still while the simulated machine has next to nothing left. Late is only who waits for memory, not who waits for a processor."""

    def __init__(self, meminfo):
        super().__init__()
        self.meminfo = meminfo
        self.is_waiting = False
        self.is_over = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()
        wait_until(lambda: self.rounds, "the canary's first round")

    def run(self):
        """Rounds missed while it waits for memory are late, too."""
        due = free_since = time.monotonic()
        while not self.is_over.is_set():
            due += PERIOD_SECONDS
            time.sleep(max(0, due - time.monotonic()))
            while available_bytes(self.meminfo) < SIMULATED_DEAD and not self.is_over.wait(0.005):
                self.is_waiting = True
                free_since = time.monotonic()
            self.is_waiting = False
            self.rounds.append((due, max(0.0, free_since - due)))

    def late_since(self, begin):
        return super().late_since(begin) if self.is_waiting else [late for due, late in list(self.rounds) if due >= begin]

    def silent_seconds(self):
        return super().silent_seconds() if self.is_waiting else 0.0

    def pages_read(self):
        """It has no pages: rounds that waited for memory, or still do."""
        return sum(late > 0 for late in self.late_since(0))

    def is_alive(self):
        return True

    def stop(self):
        self.is_over.set()
        self.thread.join()


class SimulatedPlace:
    """The simulated driver's machine: its figures are those of a Spark, and only they are taken."""

    FELT_PAGES = round(0.5 / PERIOD_SECONDS)  # rounds of half a second

    def __init__(self, build, folder):
        self.build, self.folder = build, folder
        self.meminfo = folder / "proc/meminfo"
        (folder / "proc/self").mkdir(parents=True)
        (folder / "sys/fs/cgroup").mkdir(parents=True)
        lines = {"MemTotal": SIMULATED_TOTAL, "MemFree": SIMULATED_AVAILABLE, "MemAvailable": SIMULATED_AVAILABLE}
        lines |= {"Buffers": 0, "Cached": 0, "SwapTotal": 0, "SwapFree": 0}
        self.meminfo.write_text("".join(f"{name + ':':16}{size // 1024:>12} kB\n" for name, size in lines.items()))
        (folder / "proc/self/cgroup").write_text("0::/\n")

    def environment(self):
        return plain_environment() | {
            "LD_LIBRARY_PATH": str(self.build / "sim"),
            "SGSIM_BACKING": "none",
            "SGSIM_MEMINFO": str(self.meminfo),
            "SPARKGUARD_SYSTEM_ROOT": str(self.folder),
        }

    def popen(self, job, env):
        options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "bufsize": 1}
        command = [*job_command(job, "cuda", SCALE), "--meminfo", self.meminfo, "--dead", str(SIMULATED_DEAD // MIB)]
        return subprocess.Popen(command, env=env, text=True, errors="replace", **options)

    def start_canary(self):
        return SimulatedCanary(self.meminfo)

    def oom_kills(self):
        return 0


CAP_IPC_LOCK = 14


def may_lock_memory():
    """Whether the jobs can lock all memory of a cgroup. They inherit the limit, which is raised as far as possible."""
    _, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (hard, hard))
    capabilities = int(re.search(r"^CapEff:\s*(\w+)", Path("/proc/self/status").read_text(), re.MULTILINE)[1], 16)
    return capabilities >> CAP_IPC_LOCK & 1 == 1 or hard == resource.RLIM_INFINITY or hard >= LIMIT_MIB * MIB


class Places:
    """Makes one place after the other, all of one kind; a context manager. `what` says which, `why` why it is a simulated one."""

    def __init__(self, build, scratch, is_simulated):
        self.build, self.scratch, self.is_simulated = build, scratch, is_simulated
        self.stack = contextlib.ExitStack()
        self.lab, self.swap_bytes, self.why, self.count = None, GIB, None, 0

    def __enter__(self):
        jail.LOCK_SECONDS = LOCK_SECONDS
        try:
            if self.is_simulated:
                raise jail.Unfit("as --simulated asks")
            self.lab = self.stack.enter_context(jail.Lab())
            if not may_lock_memory():
                raise jail.Unfit("memory cannot be locked here")
            self.try_swap()
        except jail.Unfit as why:
            self.lab, self.why = None, str(why)
            self.stack.close()
        return self

    def __exit__(self, *what):
        self.stack.close()

    def try_swap(self):
        """Without a swap file of its own the cgroup has none, and the kernel kills at once."""
        try:
            with self.lab.jail(LIMIT_MIB * MIB, self.swap_bytes):
                return
        except jail.Unfit:
            self.swap_bytes = 0
        with self.lab.jail(LIMIT_MIB * MIB):
            return

    @property
    def what(self):
        if self.lab is None:
            return f"on a simulated Spark of {SIMULATED_TOTAL // GIB} GiB"
        swap = "a slow swap file" if self.swap_bytes else "no swap"
        return f"in a memory cgroup of {LIMIT_MIB} MiB with {swap}"

    @contextlib.contextmanager
    def open(self):
        self.count += 1
        if self.lab is None:
            yield SimulatedPlace(self.build, self.scratch / f"machine-{self.count}")
        else:
            with self.lab.jail(LIMIT_MIB * MIB, self.swap_bytes) as place:
                yield CgroupPlace(self.build, place)
