#!/usr/bin/env python3
"""The two jobs of `make demo` (scripts/demo). Together they want more memory than there is.

    demo_job.py serving --model MIB                    holds a model until its stdin ends, as a server does
    demo_job.py training --model MIB --batches 8,16 --sample MIB
                                                       doubles its batch until one is refused, and goes on with the last
                                                       that it got, as a careful trainer does

    --memory host    memory of this machine, locked: it cannot be swapped, as the pages of a GPU cannot
    --memory cuda    cudaMalloc
    --meminfo FILE --dead MIB
                     a simulated machine, as its driver tells of it. While less than that is available, a job stands still, as
                     every program does on a GB10 that has no memory left

Each says what it does in one line per event. Exit: 0 the work is done, 1 not even the smallest batch fits.
"""

import argparse
import ctypes
import math
import sys
import time
from pathlib import Path

MIB = 1 << 20
PIECE_BYTES = 8 * MIB
STEPS, STEP_SECONDS = 3, 0.25
LAST_STEPS = 8
STANDSTILL_SECONDS = 0.05
CUDA_OUT_OF_MEMORY = 2


class Block:
    """Memory that goes back when nobody refers to it any more."""

    def __init__(self, address, give_back):
        self.address, self.give_back = address, give_back

    def __del__(self):
        self.give_back(self.address)


def available_bytes(meminfo):
    """What a file such as /proc/meminfo says."""
    for line in meminfo.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return math.inf  # it is being written


class HostMemory:
    """Memory of malloc, filled and locked. The kernel itself makes who has none wait."""

    def __init__(self):
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.libc.malloc.restype = ctypes.c_void_p
        self.libc.malloc.argtypes = [ctypes.c_size_t]
        self.libc.free.argtypes = [ctypes.c_void_p]
        self.libc.mlock.argtypes = [ctypes.c_void_p, ctypes.c_size_t]

    def take(self, size):
        address = self.libc.malloc(size)
        if address is None:
            raise MemoryError
        block = Block(address, self.libc.free)
        for offset in range(0, size, PIECE_BYTES):
            length = min(PIECE_BYTES, size - offset)
            ctypes.memset(address + offset, 0xA5, length)  # pages of zeros would not be written to swap
            if self.libc.mlock(address + offset, length) != 0:
                raise OSError(ctypes.get_errno(), "mlock")
        return block

    def stand_still(self):
        pass


class CudaMemory:
    """Blocks of cudaMalloc, which are there at once on a Spark. A simulated machine freezes nobody, so its jobs stand still by themselves."""

    def __init__(self, meminfo, dead_bytes):
        self.runtime = ctypes.CDLL("libcudart.so.13")
        self.meminfo, self.dead_bytes = meminfo, dead_bytes

    def take(self, size):
        address = ctypes.c_void_p()
        error = self.runtime.cudaMalloc(ctypes.byref(address), ctypes.c_size_t(size))
        if error == CUDA_OUT_OF_MEMORY:
            self.runtime.cudaGetLastError()
            raise MemoryError
        if error != 0:
            raise OSError(f"cudaMalloc: error {error}")
        block = Block(address, self.runtime.cudaFree)
        self.stand_still()
        return block

    def stand_still(self):
        while self.meminfo and available_bytes(self.meminfo) < self.dead_bytes:
            time.sleep(STANDSTILL_SECONDS)


def human(size):
    return f"{size / MIB:.0f} MiB" if size < 1024 * MIB else f"{size / 1024 / MIB:.1f} GiB"


def say(*words):
    print(*words, flush=True)


def mark(phase):
    """Names a phase for the report, under the guard."""
    function = getattr(ctypes.CDLL(None), "sparkguard_mark", None)
    if function:
        function(phase.encode())


def serve(memory, arguments):
    model = memory.take(arguments.model)
    say(f"holds a model of {human(arguments.model)}")
    sys.stdin.read()
    del model
    say("ends: nobody asks any more")
    return 0


def steps(memory, count):
    for _ in range(count):
        memory.stand_still()
        time.sleep(STEP_SECONDS)


def try_batch(memory, batch, size):
    """Whether a few steps with this batch were possible."""
    mark(f"batch {batch}")
    say(f"batch {batch:3}: asks for {human(size)}")
    try:
        activations = memory.take(size)
    except MemoryError:
        say(f"batch {batch:3}: refused, MemoryError")
        return False
    steps(memory, STEPS)
    del activations
    return True


def train(memory, arguments):
    model = memory.take(arguments.model)
    say(f"holds a model of {human(arguments.model)}")
    largest = None
    for batch in arguments.batches:
        if not try_batch(memory, batch, batch * arguments.sample):
            break
        largest = batch
    if largest is None:
        return 1
    mark(f"training with batch {largest}")
    activations = memory.take(largest * arguments.sample)
    say(f"goes on with batch {largest}")
    steps(memory, LAST_STEPS)
    del activations, model
    say("ends: all steps are done")
    return 0


def mib(text):
    return int(text) * MIB


def main():
    parser = argparse.ArgumentParser(description="One of the jobs of make demo.")
    parser.add_argument("job", choices=("serving", "training"))
    parser.add_argument("--memory", choices=("host", "cuda"), default="host")
    parser.add_argument("--model", type=mib, default=64 * MIB, metavar="MiB")
    parser.add_argument("--sample", type=mib, default=MIB, metavar="MiB", help="what one sample of a batch needs")
    parser.add_argument("--batches", type=lambda text: [int(word) for word in text.split(",")], default=[8, 16, 32])
    parser.add_argument("--meminfo", type=Path, metavar="FILE", help="the simulated machine's")
    parser.add_argument("--dead", type=mib, default=0, metavar="MiB", help="with less than that available it stands still")
    arguments = parser.parse_args()
    memory = HostMemory() if arguments.memory == "host" else CudaMemory(arguments.meminfo, arguments.dead)
    return (serve if arguments.job == "serving" else train)(memory, arguments)


if __name__ == "__main__":
    sys.exit(main())
