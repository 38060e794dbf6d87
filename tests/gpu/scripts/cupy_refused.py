"""Too large an array, then small ones until there is no more: cupy_refused.py KIND LARGE STEP.

KIND is the allocator: pool (CuPy's own), async (the driver's pools) or plain (cudaMalloc each time).
"""

import sys

import cupy
from cupy.cuda.memory import OutOfMemoryError


def say(**pairs):
    for key, value in pairs.items():
        print(key, value, flush=True)


def array(size):
    return cupy.full(size, 7, dtype=cupy.uint8)


def is_right(block):
    return bool((block[:: 1 << 20] == 7).all())


def main():
    kind, (large, step) = sys.argv[1], map(int, sys.argv[2:])
    pool = cupy.cuda.MemoryAsyncPool() if kind == "async" else cupy.get_default_memory_pool()
    cupy.cuda.set_allocator(None if kind == "plain" else pool.malloc)
    try:
        array(large)
    except OutOfMemoryError as error:
        say(large=type(error).__name__)
    pool.free_all_blocks()
    say(smaller=is_right(array(step)))
    blocks = []
    try:
        while len(blocks) * step < large:
            blocks.append(array(step))
    except OutOfMemoryError as error:
        say(many=type(error).__name__)
    say(blocks=len(blocks), all_right=all(map(is_right, blocks)))
    del blocks
    pool.free_all_blocks()
    say(again=is_right(array(step)))


if __name__ == "__main__":
    main()
