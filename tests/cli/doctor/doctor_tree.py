"""A machine made of files, for sparkguard-doctor: a Spark on which nothing is to be mended.

    tree = Tree(tmp_path)
    tree.meminfo(SwapTotal=16 * GIB)
    tree.process(4711, "earlyoom", cmdline=["earlyoom"])
"""

import fcntl
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

GIB, MIB, KIB = 1 << 30, 1 << 20, 1 << 10
UNITS = "etc/systemd/system"

MEMINFO = {
    "MemTotal": 120 * GIB,
    "MemFree": 100 * GIB,
    "MemAvailable": 110 * GIB,
    "Active(file)": 4 * GIB,
    "Inactive(file)": 4 * GIB,
    "SwapTotal": 0,
    "SwapFree": 0,
    "Hugepagesize": 2 * MIB,
    "Hugetlb": 0,
}
PAGES = {"HugePages_Total": 0, "HugePages_Free": 0}


class Tree:
    def __init__(self, root):
        self.root = Path(root)
        self.figures, self.pages = dict(MEMINFO), dict(PAGES)
        self.meminfo()
        self.write("proc/sys/vm/swappiness", "60\n")
        self.write("proc/sys/vm/drop_caches", "0\n")
        self.write("proc/sys/vm/compact_memory", "0\n")
        self.write("proc/sys/vm/nr_hugepages", "0\n")
        self.write("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "0\n")
        self.write("proc/sys/kernel/arch", "aarch64\n")
        self.write("proc/self/oom_score_adj", "0\n")
        self.write("proc/self/cgroup", "0::/job\n")
        self.write("sys/fs/cgroup/job/memory.max", f"{100 * GIB}\n")
        self.write("sys/fs/cgroup/job/memory.current", f"{GIB}\n")
        self.write("sys/fs/cgroup/job/memory.stat", "anon 1\n")
        self.blocks(0, 0, 100, 100, 100, 100, 100, 100, 100, 100, 20000)
        self.write("etc/fstab", "UUID=0 / ext4 defaults 0 1\n# /swap.img none swap sw 0 0\n")
        self.write("lib/systemd/system/ssh.service", "[Unit]\nDescription=x\n[Service]\nExecStart=/usr/sbin/sshd -D\n")
        self.write(f"{UNITS}/ssh.service.d/oom.conf", "[Service]\nOOMScoreAdjust=-1000\nMemoryMin=512M\n")
        self.write(f"{UNITS}/system.slice.d/x.conf", "[Slice]\nMemoryMin = 1G\n")
        self.driver("580.95.05")
        self.write("proc/driver/nvidia/gpus/000f:01:00.0/information", "Model: \t\t NVIDIA GB10\nIRQ: 1\n")
        self.write("usr/lib/aarch64-linux-gnu/libcuda.so.1", "")
        self.write("usr/local/cuda/targets/sbsa-linux/lib/libcudart.so.13", "")
        self.process(1, "systemd", parent=0)
        self.process(900, "sshd", oom_score_adj=-1000)
        self.write("proc/self/mounts", "/dev/nvme0n1p2 / ext4 rw 0 0\ntmpfs /dev/shm tmpfs rw 0 0\n")
        (self.root / "dev/shm").mkdir(parents=True)
        (self.root / "home/me").mkdir(parents=True)

    def write(self, path, text):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(text, bytes):
            file.write_bytes(text)
        else:
            file.write_text(text)
        return file

    def remove(self, path):
        file = self.root / path
        shutil.rmtree(file) if file.is_dir() else file.unlink()

    def close(self, path):
        """Makes a file one that cannot be read, also by root."""
        self.remove(path)
        (self.root / path).mkdir()

    def meminfo(self, **figures):
        """None takes a figure out."""
        self.figures.update({k: v for k, v in figures.items() if not k.startswith("Huge") or k in MEMINFO})
        self.pages.update({k: v for k, v in figures.items() if k in PAGES})
        lines = [f"{k}:{v // KIB:>16} kB\n" for k, v in self.figures.items() if v is not None]
        lines += [f"{k}:{v:>8}\n" for k, v in self.pages.items() if v is not None]
        self.write("proc/meminfo", "".join(lines))

    def blocks(self, *counts):
        line = "Node 0, zone   Normal " + " ".join(f"{c:>6}" for c in counts)
        self.write("proc/buddyinfo", f"Node 0, zone      DMA      1      0 \n{line} \n")

    def driver(self, version):
        text = f"NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  {version}  Release Build  (x@y)  Fri Oct 3\n"
        self.write("proc/driver/nvidia/version", text + "GCC version:  gcc version 13.3.0\n")

    def process(self, pid, name, parent=1, state="S", resident=MIB, cmdline=(), uid=0, **files):
        head = f"Name:\t{name}\nUmask:\t0022\nState:\t{state} (x)\nPid:\t{pid}\nPPid:\t{parent}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n"
        folder = f"proc/{pid}"
        self.write(f"{folder}/status", head + f"VmRSS:\t{resident // KIB} kB\n")
        self.write(f"{folder}/stat", f"{pid} ({name}) {state} {parent} " + " ".join(["0"] * 17) + f" {1000 + pid} 0\n")
        self.write(f"{folder}/cmdline", "".join(f"{word}\0" for word in cmdline))
        for file, value in files.items():
            self.write(f"{folder}/{file}", f"{value}\n")


def hold_in_shm(t, bytes=2 * MIB, name="psm_1"):
    t.write(f"dev/shm/{name}", b"x" * bytes)


def make_bad(tree):
    tree.meminfo(SwapTotal=16 * GIB, SwapFree=15 * GIB, HugePages_Total=512, HugePages_Free=512, Hugetlb=GIB)
    tree.write("etc/fstab", "UUID=0 / ext4 defaults 0 1\n/swap.img\tnone\tswap\tsw\t0\t0\n")
    tree.remove(f"{UNITS}/ssh.service.d/oom.conf")
    tree.write("proc/900/oom_score_adj", "0\n")
    tree.write("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "512\n")
    tree.blocks(500000, 20000, 0)
    tree.driver("610.43.02")
    tree.write("proc/driver/nvidia/params", "EnableSystemMemoryPools: 529\n")
    tree.process(50, "earlyoom", cmdline=["earlyoom"])
    tree.process(51, "systemd-oomd")
    tree.process(70, "python3", resident=30 * GIB, cmdline=["python3", "train.py"])
    tree.process(71, "python3", parent=70, state="Z")
    tree.close("proc/sys/kernel/arch")
    tree.write("dev/shm/sparkguard-99999/machine.ledger", "")
    tree.owner = open(tree.write("dev/shm/sparkguard-99999/71-0123456789abcdef.segment", ""), "r+b")
    fcntl.flock(tree.owner, fcntl.LOCK_EX)  # as a guarded process that runs


def shellcheck(text):
    if shutil.which("shellcheck"):
        done = subprocess.run(["shellcheck", "-"], input=text, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


class Doctor:
    def __init__(self, tools, root):
        self.program = tools / "sparkguard-doctor"
        self.tree = Tree(root)
        self.root = self.tree.root
        (self.root / "usr/local/lib").mkdir(parents=True)
        (self.root / "usr/local/lib/libsparkguard.so").symlink_to(self.program)  # of the right architecture

    def environment(self, **extra):
        env = {k: v for k, v in os.environ.items() if not k.startswith("SPARKGUARD_") and k != "LD_PRELOAD"}
        env.update(SPARKGUARD_SYSTEM_ROOT=str(self.root), HOME="/home/me", TZ="UTC", LC_ALL="C.UTF-8")
        env.pop("XDG_STATE_HOME", None)
        env.update(extra)
        return env

    def run(self, *arguments, **extra):
        command = [str(self.program), *arguments]
        return subprocess.run(command, env=self.environment(**extra), capture_output=True, text=True, timeout=60)

    def json(self, **extra):
        done = self.run("--json", **extra)
        assert done.stderr == ""
        data = json.loads(done.stdout)
        assert done.returncode == data["exit_status"]
        return data

    def find(self, name, **extra):
        (finding,) = [f for f in self.json(**extra)["findings"] if f["id"] == name]
        return finding


@pytest.fixture
def doctor(tools, tmp_path):
    return Doctor(tools, tmp_path / "root")
