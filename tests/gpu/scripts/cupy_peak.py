"""Arrays that are kept: cupy_peak.py prints what CuPy's pool holds of the GPU's memory."""

import cupy

MIB = 1 << 20


def main():
    kept = [cupy.zeros(size, dtype=cupy.uint8) for size in [4096, 300_000, MIB, 5 * MIB, 30 * MIB, 70 * MIB] * 4]
    cupy.cuda.Device().synchronize()
    print("total", cupy.get_default_memory_pool().total_bytes())
    print("kept", sum(block.nbytes for block in kept))


if __name__ == "__main__":
    main()
