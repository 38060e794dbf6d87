"""A place to run out of memory in: a memory cgroup with a limit, and a slow swap file of its own, on the real kernel.

    with Lab() as lab, lab.jail(512 * MIB, swap_bytes=GIB) as jail:
        hog = jail.popen(["hog", ...], env)

What the machine has besides is left as it is: no sysctl is written, and only processes in the jail are ever killed.
A jail holds the lock that keeps two from being there at once, and takes away what a run that was killed left.
`Unfit` says in one sentence why this machine cannot do it.
"""

import contextlib
import fcntl
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

MIB = 1 << 20
GIB = 1 << 30
SPARE_BYTES = 8 * GIB  # what the machine must have beside the jail
READS_PER_SECOND = 500  # a busy NVMe; throttled writes would slow the hog, which is not what happens on one
LOCK = Path("/run/sparkguard-lab.lock")
LOCK_SECONDS = 600  # longer than any test has a jail, also on a busy machine
DISK = Path("/var/tmp")

# Where a memory cgroup can be made, and how its limit is written: v1, then v2.
MEMORY = (
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"),
    ("/sys/fs/cgroup", "memory.max", "memory.swap.max"),
)
# Where a disk's reads can be throttled: the file, and how a number of them a second, or none, is said.
READS = (
    ("/sys/fs/cgroup/blkio", "blkio.throttle.read_iops_device", "{disk} {reads}", "0"),
    ("/sys/fs/cgroup", "io.max", "{disk} riops={reads}", "max"),
)


class Unfit(Exception):
    pass


def start_ticks(pid):
    """With the pid it names a process for as long as the machine runs. None if there is no such process."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, IndexError):
        return None


def own_name():
    return f"sparkguard-lab-{os.getpid()}-{start_ticks(os.getpid())}"


def is_left_over(name):
    match = re.fullmatch(r"sparkguard-lab-(\d+)-(\d+)", name)
    return match is not None and start_ticks(int(match[1])) != int(match[2])


def available_bytes():
    return int(re.search(r"^MemAvailable: +(\d+)", Path("/proc/meminfo").read_text(), re.MULTILINE)[1]) * 1024


# ---- cgroups ----


def group_processes(folder):
    try:
        return [int(pid) for pid in (folder / "cgroup.procs").read_text().split()]
    except OSError:
        return []


def remove_group(folder):
    """Ends what runs in it. Unthrottled first: who waits for a page from the disk does not die before it is there."""
    for _, name, _, none in READS:
        with contextlib.suppress(OSError):
            for line in (folder / name).read_text().splitlines():
                disk = line.split()[0]
                (folder / name).write_text(f"{disk} {'riops=' if none == 'max' else ''}{none}")
    end = time.monotonic() + 60
    while folder.exists():
        for pid in group_processes(folder):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            folder.rmdir()
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.01)  # poll: the group's processes have ended


def make_group(places):
    """A new cgroup at the first of the places whose file it has; that place. None if there is nowhere."""
    for mount, name, *rest in places:
        folder = Path(mount) / own_name()
        is_new = not folder.exists()  # on v2 the same group does both
        try:
            folder.mkdir(exist_ok=True)
        except OSError:
            continue
        if os.access(folder / name, os.W_OK):
            return folder, name, *rest
        if is_new:
            folder.rmdir()
    return None


# ---- the disk ----


def swap_areas():
    return [line.split()[0] for line in Path("/proc/swaps").read_text().splitlines()[1:]]


def keep_out_of_swap(file, limit_bytes):
    """v1 bounds memory and swap together."""
    try:
        file.write_text("0" if file.name == "memory.swap.max" else str(limit_bytes))
    except OSError as error:
        if swap_areas():
            raise Unfit(f"swap cannot be kept out of a cgroup here: {error.strerror}") from None


def tool(name):
    path = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if path is None:
        raise Unfit(f"{name} is not installed")
    return path


def run_tool(name, *arguments):
    command = [tool(name), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=100, check=False)
    if done.returncode != 0:
        raise Unfit(f"{name} does not work here: {done.stderr.strip()}")


def whole_disk(path):
    """MAJOR:MINOR of the disk under a file; partitions cannot be throttled. None if the file system has none."""
    device = path.stat().st_dev
    block = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}")
    if not block.exists():
        return None
    block = block.resolve()
    return ((block.parent if (block / "partition").exists() else block) / "dev").read_text().strip()


def remove_swap(path):
    if str(path) in swap_areas():
        run_tool("swapoff", path)
    path.unlink(missing_ok=True)


@contextlib.contextmanager
def swap_file(path, size_bytes):
    if shutil.disk_usage(path.parent).free < size_bytes + 2 * GIB:
        raise Unfit(f"{path.parent} has no room for a swap file")
    try:
        with open(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            try:
                os.posix_fallocate(file.fileno(), 0, size_bytes)
            except OSError as error:
                raise Unfit(f"no swap file can be made in {path.parent}: {error.strerror}") from None
        run_tool("mkswap", path)
        # The highest priority: where the machine has swap of its own, the jail must use this one.
        run_tool("swapon", "-p", 32767, path)
        yield path
    finally:
        remove_swap(path)


# ---- the jail ----


class Jail:
    """A memory cgroup: what runs in it, and what its kernel counters say."""

    def __init__(self, folder, limit_bytes, groups, is_throttled):
        self.folder = folder
        self.limit_bytes = limit_bytes
        self.groups = groups
        self.is_throttled = is_throttled
        self.is_v2 = (folder / "memory.current").exists()

    def popen(self, command, env, **options):
        """Starts a program inside. The shell goes in first, unguarded, and becomes the program: the pid is the same."""
        env = dict(env)
        library = env.pop("LD_PRELOAD", "")
        script = "".join(f"echo $$ > '{group}/cgroup.procs' && " for group in self.groups)
        script += f"""exec env {f"LD_PRELOAD='{library}'" if library else ""} "$@" """
        for stream in ("stdin", "stdout", "stderr"):
            options.setdefault(stream, subprocess.PIPE)
        command = ["/bin/sh", "-c", script, "sh", *map(str, command)]
        return subprocess.Popen(command, env=env, text=True, errors="replace", bufsize=1, **options)

    def counter(self, v1, v2):
        return int((self.folder / (v2 if self.is_v2 else v1)).read_text())

    def used_bytes(self):
        return self.counter("memory.usage_in_bytes", "memory.current")

    def reclaim(self):
        """What can be: page cache goes, the rest is swapped out."""
        with contextlib.suppress(OSError):  # not all of it could
            (self.folder / ("memory.reclaim" if self.is_v2 else "memory.force_empty")).write_text(str(self.limit_bytes))

    def cache_bytes(self):
        names = ("active_file", "inactive_file", "slab_reclaimable")
        names = names if self.is_v2 else ("total_active_file", "total_inactive_file")
        fields = dict(line.split() for line in (self.folder / "memory.stat").read_text().splitlines())
        return sum(int(fields.get(name, 0)) for name in names)

    def headroom_bytes(self):
        """As the guard counts it: clean page cache is room."""
        return self.limit_bytes - max(0, self.used_bytes() - self.cache_bytes())

    def least_headroom_bytes(self):
        """The least that there ever was, by the kernel's own mark of the most. Of page cache, what is there now counts as it did then."""
        return self.limit_bytes - self.counter("memory.max_usage_in_bytes", "memory.peak") + self.cache_bytes()

    def event(self, file, name):
        return int(re.search(rf"^{name} (\d+)", (self.folder / file).read_text(), re.MULTILINE)[1])

    def oom_kills(self):
        return self.event("memory.events" if self.is_v2 else "memory.oom_control", "oom_kill")

    def limit_hits(self):
        """How often a charge met the limit."""
        return self.event("memory.events", "max") if self.is_v2 else self.counter("memory.failcnt", "")


class Lab:
    """A context manager. `scratch` is a folder on a disk, for the files of the tests."""

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            if os.geteuid() != 0:
                raise Unfit("a cgroup and swap of one's own need root")
            self.scratch = DISK / own_name()
            try:
                self.scratch.mkdir(mode=0o700)
            except OSError as error:
                raise Unfit(f"{DISK} cannot be written to: {error.strerror}") from None
            stack.callback(shutil.rmtree, self.scratch)
            self.stack = stack.pop_all()
        return self

    def __exit__(self, *what):
        self.stack.close()

    @contextlib.contextmanager
    def jail(self, limit_bytes, swap_bytes=0):
        """One at a time on a machine. Without swap_bytes nothing in it is swapped, also where the machine has swap of its own."""
        if available_bytes() < limit_bytes + SPARE_BYTES:
            raise Unfit(f"a jail needs {SPARE_BYTES // GIB} GiB of available memory beside its own")
        with contextlib.ExitStack() as stack:
            stack.enter_context(locked(LOCK))
            clean_up()
            if swap_bytes:
                swap = stack.enter_context(swap_file(self.scratch / "swap", swap_bytes))
            made = make_group(MEMORY)
            if made is None:
                raise Unfit("no memory cgroup can be made here")
            folder, limit, swap_limit = made
            stack.callback(remove_group, folder)
            (folder / limit).write_text(str(limit_bytes))
            if not swap_bytes:
                keep_out_of_swap(folder / swap_limit, limit_bytes)
            groups, disk = [folder], whole_disk(swap) if swap_bytes else None
            throttle = make_group(READS) if disk else None
            if throttle is not None:
                slow, name, line, _ = throttle
                if slow != folder:
                    stack.callback(remove_group, slow)
                    groups.append(slow)
                (slow / name).write_text(line.format(disk=disk, reads=READS_PER_SECOND))
            yield Jail(folder, limit_bytes, groups, throttle is not None)


@contextlib.contextmanager
def locked(path):
    """The kernel lets go of it when its owner dies."""
    flags = os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o600)
    except OSError as error:
        raise Unfit(f"{path} cannot be locked: {error.strerror}") from None
    try:
        end = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    raise Unfit(f"another run has held {path} for {LOCK_SECONDS} s") from None
                time.sleep(0.2)  # poll: the lock
        yield
    finally:
        os.close(descriptor)


def clean_up():
    """Takes away the cgroups, swap and files of runs that are dead. Under the lock."""
    for mount in dict.fromkeys(mount for mount, *_ in MEMORY + READS):
        for folder in Path(mount).glob("sparkguard-lab-*"):
            if is_left_over(folder.name):
                remove_group(folder)
    for folder in DISK.glob("sparkguard-lab-*"):
        if is_left_over(folder.name) and not folder.is_symlink() and folder.stat().st_uid == os.geteuid():
            remove_swap(folder / "swap")
            shutil.rmtree(folder)
