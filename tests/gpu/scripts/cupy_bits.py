"""Computations with CuPy: prints a digest of each result."""

import hashlib

import cupy


def main():
    random = cupy.random.RandomState(7)
    a, b = random.standard_normal((500, 500)), random.standard_normal((500, 500))
    for result in (a + b, cupy.sort(a, axis=0), cupy.cumsum(b, axis=1), cupy.matmul(a, b)):
        print(hashlib.sha256(cupy.asnumpy(result).tobytes()).hexdigest())


if __name__ == "__main__":
    main()
