"""Whole machines, emulated in software: swap death, and the guard that prevents it, on a kernel of its own.

A guest of 384 MiB with a slow swap disk; in it a hog whose memory cannot be swapped, as CUDA's cannot, and a canary that tells how late
everybody else is (tests/lab/programs). Here MemAvailable, swap and the OOM killer are the kernel's own and the machine's, which no
cgroup of tests/lab can show; and the arm64 guest is the library on an arm64 kernel. Its pages are of 4 KiB, as Debian's kernel has them;
larger ones are those of tests/guest64k.
"""

import math
import re
import shutil
import signal
import subprocess

import pytest
from lib import guest as machine
from lib.target import ROOT

PROGRAMS = ROOT / "tests/lab/programs"
MIB = 1 << 20
MEMORY_MIB, SWAP_MIB = 384, 512
GREEDY_MIB, HOLD_SECONDS, MOST_SECONDS = 100_000, 5, 240
FELT_SECONDS = 2
FELT_PAGES = 1000  # 500 a second can be read

pytestmark = pytest.mark.long

INIT = """#!/bin/busybox sh
bb=/bin/busybox
$bb mount -t devtmpfs none /dev; $bb mount -t proc none /proc; $bb mount -t sysfs none /sys
$bb mkdir /dev/shm; $bb mount -t tmpfs none /dev/shm
$bb mkswap /dev/nvme0n1 >/dev/null && $bb swapon /dev/nvme0n1 || echo "no swap"
echo "kernel $($bb uname -rm)"; $bb grep -E 'MemTotal|SwapTotal' /proc/meminfo
/canary 20 {seconds} >/canary.txt &
$bb sleep 3
echo "hog begins $($bb cut -d' ' -f1 /proc/uptime)"
{environment} /hog 1 {most_mib} {hold_seconds} 2>&1
echo "hog ended $?"
kill $! && echo "canary lived"
$bb sed 's/^/round /' /canary.txt
$bb grep -wE 'oom_kill|pswpin' /proc/vmstat
echo "the end"
$bb poweroff -f
"""


class Run:
    """What one life of a guest came to."""

    def __init__(self, text, has_ended, seconds):
        self.text, self.has_ended, self.seconds = text, has_ended, seconds
        begin = re.search(r"^hog begins ([\d.]+)", text, re.MULTILINE)
        self.begin = float(begin[1]) if begin else None
        rounds = [(int(due) / 1e9, int(late) / 1e9) for due, late in re.findall(r"^round (\d+) (\d+)\s*$", text, re.MULTILINE)]
        self.late = sorted(late for due, late in rounds if self.begin is not None and due >= self.begin)
        self.oom_kills = self.number("oom_kill")
        self.pages_read_back = self.number("pswpin")  # of the swap disk: what somebody had to wait for
        self.hog_status = self.number("hog ended")

    def number(self, name):
        found = re.search(rf"^{name} (\d+)", self.text, re.MULTILINE)
        return int(found[1]) if found else None

    @property
    def p99(self):
        return self.late[math.ceil(len(self.late) * 0.99) - 1]

    def __str__(self):
        if not self.has_ended:
            return f"silent until it was ended after {self.seconds:.0f} s"
        kills = f"{self.oom_kills} OOM kill{'s' * (self.oom_kills != 1)}"
        if not self.late:
            return f"not a word of the canary, {kills}"
        silence = f"canary p99 {self.p99 * 1000:.0f} ms, longest silence {self.late[-1]:.2f} s"
        return f"{silence}, {self.pages_read_back} pages read back from swap, {kills}"


class Guest:
    """Of one architecture, with the library that was built for it."""

    def __init__(self, architecture, build, scratch):
        self.architecture, self.scratch = architecture, scratch
        self.library = (build if machine.IS_NATIVE[architecture] else ROOT / "build/aarch64") / "libsparkguard.so"
        for needed in (machine.DEPS / architecture, self.library):
            if not needed.exists():
                pytest.skip(f"{needed.relative_to(ROOT)} is not there")
        self.compiler = machine.compiler(architecture)
        if not shutil.which(self.compiler):
            pytest.skip(f"no {self.compiler}")

    def initramfs(self, environment):
        tree = self.scratch / "tree"
        machine.make_tree(tree, self.architecture)
        for name in ("hog", "canary"):
            subprocess.run([self.compiler, "-std=gnu11", "-O2", "-pthread", "-o", tree / name, PROGRAMS / f"{name}.c"], check=True)
        shutil.copy(self.library, tree)
        words = {"seconds": MOST_SECONDS, "most_mib": GREEDY_MIB, "hold_seconds": HOLD_SECONDS, "environment": environment}
        (tree / "init").write_text(INIT.format(**words))
        (tree / "init").chmod(0o755)
        return machine.pack(tree, self.scratch / "initramfs")

    def live(self, environment=""):
        (kernel,) = (machine.DEPS / self.architecture / "boot").glob("vmlinuz-*")
        swap = machine.disk(self.scratch / "swap", SWAP_MIB, "swap", **{"throttling.iops-read": 500})
        return Run(*machine.live(machine.command(self.architecture, kernel, self.initramfs(environment), MEMORY_MIB, *swap), MOST_SECONDS))


@pytest.fixture(params=["amd64", "arm64"])
def guest(request, build, tmp_path):
    return Guest(request.param, build, tmp_path)


def live_until(guest, environment, is_as_it_should):
    """(what the guest came to, what a reader must know of that). One retry: a busy machine may stop the guest itself for seconds."""
    first = guest.live(environment)
    if is_as_it_should(first):
        return first, ""
    return guest.live(environment), f" (the second try; the first: {first})"


@pytest.mark.timeout_seconds(2 * MOST_SECONDS + 60)
def test_guarded_guest_refuses_the_hog_and_stays_responsive(guest, record_property):
    def is_responsive(run):
        return run.has_ended and run.late and run.late[-1] < FELT_SECONDS

    run, tries = live_until(guest, "LD_PRELOAD=/libsparkguard.so", is_responsive)
    assert run.has_ended and run.hog_status == 0, run.text[-4000:]
    taken, refused = map(int, re.search(r"^taken (\d+) refused (\d+)", run.text, re.MULTILINE).groups())
    record_property("note", f"{guest.architecture} guarded: {run}, hog {taken // MIB} MiB, then ENOMEM {refused} times{tries}")
    assert refused > 0 and MEMORY_MIB // 4 < taken // MIB < MEMORY_MIB
    assert re.search(r"^sparkguard: .*refused", run.text, re.MULTILINE) and "cannot" not in run.text
    assert run.oom_kills == 0 and "canary lived" in run.text
    assert run.pages_read_back < FELT_PAGES, "a busy machine may halt a guest for seconds; but that it swaps is the guard's fault"
    assert is_responsive(run), f"{run}{tries}"


def is_felt(run):
    """By somebody else than the hog, which asked for it: a silence, to the very end perhaps, or the canary is gone."""
    is_silent = not run.has_ended or not run.late or run.late[-1] >= FELT_SECONDS
    return run.begin is not None and (is_silent or "canary lived" not in run.text)


def is_killed(run):
    return run.begin is not None and run.has_ended and run.oom_kills > 0


@pytest.mark.timeout_seconds(2 * MOST_SECONDS + 60)
def test_unguarded_guest_kills_the_hog_or_everybody_in_it_feels_it(guest, record_property):
    """The control: it is the guard that makes the difference. Where there is no silence, as the kernel found a hog to kill in time, the
    row says that this is all that was lost."""
    run, tries = live_until(guest, "", is_felt)
    what = "felt by all" if is_felt(run) else "nobody but the hog lost anything"
    record_property("note", f"{guest.architecture} unguarded: {run}; {what}{tries}")
    assert is_felt(run) or is_killed(run), run.text[-4000:]
    assert is_felt(run) or run.hog_status == 128 + signal.SIGKILL, run.text[-4000:]
