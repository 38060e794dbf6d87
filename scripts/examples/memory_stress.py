#!/usr/bin/env python3
"""How much memory will the machine give to Python? Takes blocks of 1, 2, 4, 8, ... steps until one is
refused, catches the MemoryError, and goes on: once with bytearray, and once with numpy where there is one.

On a machine whose memory is shared with a GPU this can freeze it. Under the guard it ends with a report:

    LD_PRELOAD=libsparkguard.so python3 memory_stress.py
"""
import argparse
import sys

MIB = 1 << 20
GIB = 1 << 30


def with_bytearray(size):
    block = bytearray(size)
    block[::4096] = b"\xa5" * len(block[::4096])  # really there, not just promised
    return block


def with_numpy(numpy):
    def allocate(size):
        return numpy.full(size, 0xA5, dtype=numpy.uint8)

    return allocate


def stress(name, allocate, step, most_wanted):
    """Returns the largest number of bytes held at once."""
    print(f"{name}:")
    blocks, held, size = [], 0, step
    try:
        while held < most_wanted:
            size = min(size, most_wanted - held)
            blocks.append(allocate(size))
            held += size
            print(f"  granted  {size / GIB:8.2f} GiB   {held / GIB:8.2f} GiB held", flush=True)
            size *= 2
    except MemoryError as error:  # numpy's own error is a MemoryError too
        print(f"  refused  {size / GIB:8.2f} GiB   {type(error).__name__}", flush=True)
    blocks.clear()
    again = allocate(step)
    print(f"  and {len(again) / GIB:.2f} GiB once more: granted\n")
    return held


def positive_mib(text):
    value = int(text)
    if value <= 0:
        raise argparse.ArgumentTypeError("must be positive")
    return value * MIB


def main():
    parser = argparse.ArgumentParser(description="Take memory until it is refused, and survive that.")
    parser.add_argument("--step", type=positive_mib, default=64 * MIB, metavar="MiB",
                        help="size of the first block; each next one is twice as large (default 64)")
    parser.add_argument("--max", type=positive_mib, default=sys.maxsize, metavar="MiB",
                        help="stop, satisfied, once this much is held (default: no end)")
    arguments = parser.parse_args()

    most = stress("bytearray", with_bytearray, arguments.step, arguments.max)
    try:
        import numpy
    except ImportError:
        print("numpy: not installed, skipped\n")
    else:
        most = max(most, stress("numpy", with_numpy(numpy), arguments.step, arguments.max))
    print(f"most held at once: {most / GIB:.2f} GiB; the program lives, and so does the machine")
    return 0


if __name__ == "__main__":
    sys.exit(main())
