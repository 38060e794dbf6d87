"""Machines that qemu emulates in software (.deps/guest), shared by the tests that need a kernel of their own.

A guest is a kernel and an initramfs that a test has packed: its `init` says what it found on the serial line, "the end" last.
"""

import os
import platform
import shutil
import subprocess
import time
from pathlib import Path

from lib.target import ROOT

DEPS = ROOT / ".deps/guest"
IS_NATIVE = {"amd64": platform.machine() == "x86_64", "arm64": platform.machine() == "aarch64"}
NATIVE = next(name for name, is_native in IS_NATIVE.items() if is_native)
MACHINE = {
    "amd64": ("qemu-system-x86_64", (), "console=ttyS0"),
    "arm64": ("qemu-system-aarch64", ("-M", "virt", "-cpu", "max,pauth-impdef=on"), "console=ttyAMA0"),
}
ERASE = "\x1b[K"  # the library's messages begin with it where they go to a terminal, as the serial line is one
LIBC = {"amd64": ("/lib64/ld-linux-x86-64.so.2", "libc.so.6"), "arm64": ("/lib/ld-linux-aarch64.so.1", "libc.so.6")}


def compiler(architecture):
    return "gcc" if IS_NATIVE[architecture] else {"amd64": "x86_64", "arm64": "aarch64"}[architecture] + "-linux-gnu-gcc"


def make_tree(tree, architecture):
    """A root folder with busybox and the C library."""
    shutil.rmtree(tree, ignore_errors=True)
    for folder in ("bin", "dev", "proc", "sys", "lib", "lib64"):
        (tree / folder).mkdir(parents=True)
    loader, libc = LIBC[architecture]
    for name, place in ((Path(loader).name, loader[1:]), (libc, f"lib/{libc}")):
        command = [compiler(architecture), f"-print-file-name={name}"]
        found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        shutil.copy(found if os.path.isabs(found) else loader, tree / place)
    shutil.copy(DEPS / architecture / "bin/busybox", tree / "bin")


def pack(tree, image):
    with image.open("wb") as out:
        command = f"find . | {DEPS}/{NATIVE}/bin/busybox cpio -o -H newc"
        subprocess.run(command, shell=True, check=True, cwd=tree, stdout=out, stderr=subprocess.DEVNULL)
    return image


def disk(path, mib, serial, **options):
    """The words that give the guest an empty disk."""
    with path.open("wb") as file:
        file.truncate(mib << 20)
    drive = ",".join([f"file={path},format=raw,if=none,id={serial}", *(f"{name}={value}" for name, value in options.items())])
    return ["-drive", drive, "-device", f"nvme,serial={serial},drive={serial}"]


def command(architecture, kernel, image, memory_mib, *options, words=""):
    """The command line of qemu; `words`: what the kernel's command line has besides."""
    program, machine, console = MACHINE[architecture]
    share = DEPS / "qemu/usr/share"
    line = ["setpriv", "--pdeathsig", "KILL", DEPS / "qemu/usr/bin" / program, *machine, "-accel", "tcg"]
    line += ["-append", f"{console} quiet panic=-1 {words}".strip()]
    line += ["-m", str(memory_mib), "-smp", "2", "-kernel", kernel, "-initrd", image, *options]
    line += ["-L", share / "qemu", "-L", share / "seabios", "-nic", "none", "-display", "none"]
    return [*line, "-serial", "stdio", "-monitor", "none", "-no-reboot"]


def live(command, most_seconds):
    """(what the guest said, whether it came to its end, seconds). A guest that does not end is ended."""
    (libraries,) = (DEPS / "qemu/usr/lib").glob("*-linux-gnu")
    env = {"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": str(libraries)}
    start = time.monotonic()
    with subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as qemu:
        try:
            said, _ = qemu.communicate(timeout=most_seconds)
        except subprocess.TimeoutExpired:
            qemu.kill()
            said, _ = qemu.communicate()
    text = said.decode(errors="replace").replace("\r", "").replace(ERASE, "")
    return text, "\nthe end" in text, time.monotonic() - start
