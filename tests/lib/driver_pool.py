"""A guest whose kernel module stands in for the driver's page pool (tests/qualification/driver_pool), and what is played in it.

Its clock counts instructions (qemu's -icount): however busy the machine that emulates it, the same work takes the same time there.
"""

import re
import shutil
import subprocess

from lib import guest
from lib.target import ROOT

HERE = ROOT / "tests/qualification/driver_pool"
DEPS = ROOT / ".deps/driver-pool"
MIB = 1 << 20
SMALL_MIB, LARGE_MIB, FILES_MIB = 1280, 2560, 2048
MOST_SECONDS = 400
CONTEXT_MIB = 64  # of stand_in.c
PAGE_KIB = 4  # of Debian's kernels
# qemu 7.2 breaks CMPXCHG16B where it meets an interrupt, which Linux 6.12 does not survive. Its "rep stos", which later
# processors clear pages with, takes ten times as long as the loop for earlier ones.
CPU = {"amd64": ("-cpu", "Nehalem,-cx16"), "arm64": ()}
CLOCK = ("-icount", "shift=1,sleep=off")
LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")


def missing():
    """Why no such guest can run here; None: one can."""
    needed = (guest.DEPS / guest.NATIVE, DEPS, ROOT / ".deps/guest/qemu")
    absent = [str(path.relative_to(ROOT)) for path in needed if not path.exists()]
    return f"{', '.join(absent)}: not there (scripts/install-deps qualify)" if absent else None


class Case:
    """One scenario, as it was played with or without the guard."""

    def __init__(self, name, is_guarded, text):
        self.name, self.is_guarded, self.text = name, is_guarded, text
        self.steps = [(step, result, float(ms)) for step, result, ms in re.findall(r"^step (\S+) (\w+) ([\d.]+)$", text, re.MULTILINE)]
        self.before, self.after = self.figures("before"), self.figures("after")
        self.is_idle_gone = "\ngone " in text
        self.is_ended = bool(re.search(r"^status 137$", text, re.MULTILINE))

    def figures(self, when):
        found = re.search(rf"^figures {when} (.*)$", self.text, re.MULTILINE)
        words = found[1].split() if found else []
        return dict(zip(words[::2], map(int, words[1::2])))

    def grown(self, name):
        return self.after[name] - self.before[name]

    @property
    def killed(self):
        return self.grown("oom_kill")

    @property
    def swapped_mib(self):
        return self.grown("pswpout") * PAGE_KIB / 1024

    @property
    def allocated_mib(self):
        """Of the kernel's memory, by whoever, be it given back meanwhile."""
        return sum(self.grown(name) for name in self.before if name.startswith("pgalloc")) * PAGE_KIB / 1024

    @property
    def taken_mib(self):
        return -self.grown("MemAvailable") / 1024

    @property
    def result(self):
        """Of its last request, and of each where there are several."""
        results = [result for step, result, _ in self.steps if step.isdigit()]
        return "killed" if self.is_ended else ", ".join(results[-6:])

    @property
    def seconds(self):
        return sum(ms for _, _, ms in self.steps) / 1000

    def row(self):
        cells = [self.name, "yes" if self.is_guarded else "no", str(self.killed), f"{self.swapped_mib:.0f} MiB", self.result, f"{self.seconds:.2f}"]
        return f"| {' | '.join([*cells, f'{self.taken_mib:.0f} MiB', f'{self.allocated_mib:.0f} MiB'])} |"


HEAD = """| scenario | guard | killed | swapped out | result | seconds | MemAvailable fell by | pages allocated |
|---|---|---|---|---|---|---|---|"""


def scenarios():
    """All names of the file."""
    return re.findall(r"^play_(\w+)\(\)", (HERE / "scenarios").read_text(), re.MULTILINE)


def run(*command, **options):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def build_module(folder):
    """The module for the kernel of DEPS. Debian's headers want a compiler of a certain name, and pahole."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name in ("driver_pool.c", "driver_pool.h", "Kbuild"):
        shutil.copy(HERE / name, folder)
    (headers,) = (DEPS / "usr/src").glob("linux-headers-*-cloud-*")
    run("make", "-C", headers, f"M={folder}", "CC=gcc", "CONFIG_DEBUG_INFO_BTF_MODULES=", "modules")
    return folder / "driver_pool.ko"


def build_image(library, scratch):
    """The initramfs, with the library under test."""
    tree = scratch / "tree"
    guest.make_tree(tree, guest.NATIVE)
    shutil.copy(build_module(scratch / "module"), tree / "lib")
    cuda = run(ROOT / "scripts/install-deps", "--cuda-home") + "/include"
    compile_c = ["gcc", "-std=gnu11", "-O2", "-Wall", "-Werror", "-isystem", cuda]
    for name in LIBRARIES:
        run(*compile_c, "-fPIC", "-shared", f"-Wl,-soname,{name}", "-o", tree / "lib" / name, HERE / "stand_in.c")
    run(*compile_c, "-o", tree / "bin/actors", HERE / "actors.c", tree / "lib/libcuda.so.1")
    shutil.copy(library, tree / "lib/libsparkguard.so")
    shutil.copy(HERE / "init", tree / "init")
    shutil.copy(HERE / "scenarios", tree / "bin")
    (tree / "init").chmod(0o755)
    return guest.pack(tree, scratch / "initramfs")


def play(image, scratch, memory_mib, names, guards=("no", "yes")):
    """The cases of these scenarios, each with each of the guards, in one guest. One retry if the guest does not come to its end."""
    (kernel,) = (DEPS / "boot").glob("vmlinuz-*")
    disks = [*guest.disk(scratch / "swap", memory_mib, "swap"), *guest.disk(scratch / "files", FILES_MIB, "files")]
    words = f"scenarios={','.join(names)} guards={','.join(guards)}"
    command = guest.command(guest.NATIVE, kernel, image, memory_mib, *CPU[guest.NATIVE], *CLOCK, *disks, words=words)
    text, has_ended, _ = guest.live(command, MOST_SECONDS)
    if not has_ended:
        text, has_ended, _ = guest.live(command, MOST_SECONDS)
    assert has_ended, text[-4000:]
    return [Case(name, word == "yes", body) for name, word, body in re.findall(r"^= begin (\w+) (\w+)\n(.*?)^= end", text, re.MULTILINE | re.DOTALL)]
