"""torch_time.py COUNT: nanoseconds per tensor of 1 MiB that comes and goes; with PYTORCH_NO_CUDA_MEMORY_CACHING=1 each one
is a cudaMalloc and a cudaFree."""

import sys
import time

import torch
from torch_common import MIB, say


def main():
    count = int(sys.argv[1])
    torch.empty(MIB, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    start = time.monotonic_ns()
    for _ in range(count):
        torch.empty(MIB, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    say(nanoseconds=(time.monotonic_ns() - start) // count)


if __name__ == "__main__":
    main()
