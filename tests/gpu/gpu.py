"""The GPU that the tests of this folder run on, the programs built for it, and what they say under the guard.

tests/sim/calls/test_gpu_programs.py runs the same tests of C programs over the simulated driver: only what `Gpu` is made with
differs.
"""

import functools
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

from lib.output import values

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BUILD = (ROOT / os.environ.get("BUILD", "build")).resolve()
MIB, GIB = 1 << 20, 1 << 30
OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY and cudaErrorMemoryAllocation alike
INTEGRATED = 18  # CU_DEVICE_ATTRIBUTE_INTEGRATED

# In a process of its own: whoever runs the tests shall not hold a context.
ASK = f"""
import ctypes, json
try:
    cuda = ctypes.CDLL("libcuda.so.1")
except OSError as error:
    print(json.dumps({{"why": f"there is no NVIDIA driver ({{error}})"}}))
    raise SystemExit
count, version, integrated = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
total, name = ctypes.c_size_t(), ctypes.create_string_buffer(128)
error = cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count))
if hasattr(cuda, "sgsim_calls"):
    why = "the driver found is the simulated one of tests/sim"
elif error or count.value == 0:
    why = f"the NVIDIA driver finds no device (error {{error}})"
else:
    why = None
    cuda.cuDriverGetVersion(ctypes.byref(version))
    cuda.cuDeviceGetName(name, 128, 0)
    cuda.cuDeviceTotalMem_v2(ctypes.byref(total), 0)
    cuda.cuDeviceGetAttribute(ctypes.byref(integrated), {INTEGRATED}, 0)
print(json.dumps({{"why": why, "name": name.value.decode(), "count": count.value, "cuda": version.value,
                  "total_bytes": total.value, "is_unified": bool(integrated.value)}}))
"""


@functools.cache
def find_gpu():
    """What there is, as values; `.why` says in words why it is nothing, or is None."""
    env = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
    try:
        done = subprocess.run([sys.executable, "-c", ASK], env=env, capture_output=True, text=True, timeout=120)
        return SimpleNamespace(**json.loads(done.stdout))
    except (subprocess.TimeoutExpired, ValueError):
        return SimpleNamespace(why="the NVIDIA driver did not answer")


def keeps_pages(root):
    """Whether the driver lists pools, in which it keeps freed pages of the machine's memory."""
    parameters = root / "proc/driver/nvidia/params"
    return parameters.exists() and re.search(r"^EnableSystemMemoryPools: [1-9]", parameters.read_text(), re.M) is not None


# ---- what is built, and with what -----------------------------------------------------------------------------------


def runtime_folders():
    """Where the real runtime may lie: a toolkit, the linker's own folders, NVIDIA's wheels beside a Python."""
    yield from (Path(home) / "lib64" for home in (os.environ.get("CUDA_HOME"), "/usr/local/cuda") if home)
    ldconfig = shutil.which("ldconfig") or "/sbin/ldconfig"
    listed = subprocess.run([ldconfig, "-p"], capture_output=True, text=True).stdout.splitlines()
    yield from (Path(line.split(" => ")[1]).parent for line in listed if "libcudart.so.13 " in line)
    for python in pythons():
        ask = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
        site = subprocess.run([python, "-c", ask], capture_output=True, text=True).stdout.strip()
        yield Path(site) / "nvidia" / "cu13" / "lib"


def find_library(name):
    """The real runtime's file, or None."""
    return next((folder / name for folder in runtime_folders() if (folder / name).exists()), None)


def build_programs(out, libraries):
    """Builds programs/NAME.c into out/NAME_RUNTIME for each runtime that there is: how many."""
    cuda_home = subprocess.run([ROOT / "scripts/install-deps", "--cuda-home"], check=True, capture_output=True, text=True)
    compiler = [*os.environ.get("CC", "cc").split(), "-std=gnu11", "-D_GNU_SOURCE", "-O1", "-g", "-Wall", "-Wextra"]
    out.mkdir(parents=True, exist_ok=True)
    made = 0
    for source in sorted((HERE / "programs").glob("*.c")):
        for runtime, library in libraries.items():
            if library:
                program = out / f"{source.stem}_{runtime}"
                command = [*compiler, "-isystem", f"{cuda_home.stdout.strip()}/include", "-o", program, source, library]
                subprocess.run([*command, f"-Wl,-rpath,{library.parent}", "-ldl", "-lpthread", "-lrt"], check=True)
                made += 1
    return made


# ---- interpreters ---------------------------------------------------------------------------------------------------


@functools.cache
def pythons():
    """Interpreters that may have a framework: GPU_PYTHON, the one that runs this, the PATH's, tests/frameworks' ones."""
    found = [os.environ.get("GPU_PYTHON"), sys.executable, shutil.which("python3"), "/usr/bin/python3"]
    found += sorted((BUILD / "frameworks").glob("*/bin/python"))
    paths = []
    for python in map(str, filter(None, found)):
        ask = subprocess.run([python, "-c", "import sys; print(sys.executable)"], capture_output=True, text=True)
        path = ask.stdout.strip()  # the interpreter itself: a version manager's wrapper script would be guarded as well
        if ask.returncode == 0 and path not in paths:
            paths.append(path)
    return paths


@functools.cache
def python_with(module):
    """(interpreter that has it, version), or (None, None)."""
    ask = f"import {module}; print({module}.__version__)"
    for python in pythons():
        done = subprocess.run([python, "-c", ask], capture_output=True, text=True)
        if done.returncode == 0:
            return python, done.stdout.strip()
    return None, None


# ---- running --------------------------------------------------------------------------------------------------------


class Gpu:
    """Programs under the guard on a GPU; `programs` is the folder they were built into, `env` what they find it by."""

    def __init__(self, guard, programs, env, is_unified, root=Path("/"), timeout=300):
        self.guard, self.programs, self.env = guard, programs, env
        self.is_unified, self.timeout = is_unified, timeout
        self.has_pools = is_unified and keeps_pages(root)

    def has_program(self, name, runtime):
        return (self.programs / f"{name}_{runtime}").exists()

    def program(self, name, runtime, *arguments):
        return [self.programs / f"{name}_{runtime}", *arguments]

    def script(self, name, *arguments, module=None):
        """A script of scripts/, for an interpreter that has the module."""
        python = python_with(module)[0] if module else sys.executable
        return [python, HERE / "scripts" / name, *arguments]

    def run(self, command, **variables):
        return self.guard.run(command, env=self.env | variables, timeout=self.timeout)

    def plain(self, command, **variables):
        """The same without the guard; what the program says must be good."""
        done = self.run(command, LD_PRELOAD=None, **variables)
        assert done.returncode == 0, done.stderr
        return values(done.stdout)

    def values(self, command, **variables):
        """Of a program that must succeed: what it said; `.process` is its entry in the report, or None."""
        done = self.run(command, **variables)
        assert done.returncode == 0, done.stderr
        answer = values(done.stdout)
        answer.stderr, answer.process = done.stderr, next(iter(self.guard.processes(done.pid)), None)
        return answer

    def same(self, command, **variables):
        """With the guard and without it a program ends well and says the same: what, and its entry in the report."""
        plain = self.run(command, LD_PRELOAD=None, **variables)
        guarded = self.run(command, **variables)
        assert plain.returncode == 0, plain.stderr
        assert (guarded.returncode, guarded.stdout, guarded.stderr) == (0, plain.stdout, plain.stderr)
        return guarded.stdout, next(iter(self.guard.processes(guarded.pid)), None)

    def quiet_points(self, command, **variables):
        return self.guard.quiet_points(command, self.env | variables)
