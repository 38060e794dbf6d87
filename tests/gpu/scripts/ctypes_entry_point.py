"""cuMemAlloc from Python by ctypes, whose libraries are opened RTLD_LOCAL: ctypes_entry_point.py LARGE SMALL."""

import ctypes
import sys

SENTINEL = 0x5A5A5A5A


def take(cuda, size):
    address = ctypes.c_uint64(SENTINEL)
    result = cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size))
    return result, int(address.value == SENTINEL)


def main():
    large, small = map(int, sys.argv[1:])
    cuda, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
    assert cuda.cuInit(0) == 0
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert cuda.cuCtxSetCurrent(context) == 0
    result, untouched = take(cuda, large)
    print("large", result)
    print("untouched", untouched)
    print("small", take(cuda, small)[0])


if __name__ == "__main__":
    main()
