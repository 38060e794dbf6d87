"""Programs that hold memory while a test asks for more, and a machine of files that has so much."""

import subprocess
import sys

from lib.units import KIB

HOLD = "import mmap, sys; m = mmap.mmap(-1, {bytes}, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS); {touch}; print('ready', flush=True); sys.stdin.read()"


def machine(tmp_path, total, available):
    (tmp_path / "root/proc").mkdir(parents=True)
    figures = {"MemTotal": total, "MemFree": available, "MemAvailable": available}
    (tmp_path / "root/proc/meminfo").write_text("".join(f"{k}: {v // KIB} kB\n" for k, v in figures.items()))
    return {"SPARKGUARD_SYSTEM_ROOT": str(tmp_path / "root"), "SPARKGUARD_RESERVE": "64M"}


class Holder:
    """A program that holds `size` bytes until the end of the block."""

    def __init__(self, guard, size, env, is_guarded=True, touch="pass"):
        command = [sys.executable, "-S", "-c", HOLD.format(bytes=size, touch=touch)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = guard.popen(command, env=env, **pipes) if is_guarded else subprocess.Popen(command, **pipes)

    def __enter__(self):
        assert self.process.stdout.readline() == "ready\n"
        return self.process.pid

    def __exit__(self, *_):
        self.process.communicate("", timeout=60)
