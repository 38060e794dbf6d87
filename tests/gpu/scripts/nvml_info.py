"""NVML's memory info of device 0, versions 1 and 2, by ctypes: needs no package."""

import ctypes
from ctypes import byref, c_uint, c_ulonglong


class Memory(ctypes.Structure):
    _fields_ = [("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong)]


class Memory2(ctypes.Structure):
    _fields_ = [("version", c_uint), ("total", c_ulonglong), ("reserved", c_ulonglong), *Memory._fields_[1:]]


def main():
    nvml, device = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p()
    assert nvml.nvmlInit_v2() == 0
    assert nvml.nvmlDeviceGetHandleByIndex_v2(0, byref(device)) == 0
    one, two = Memory(), Memory2(version=ctypes.sizeof(Memory2) | 2 << 24)
    result = nvml.nvmlDeviceGetMemoryInfo(device, byref(one)) or nvml.nvmlDeviceGetMemoryInfo_v2(device, byref(two))
    print("result", result)
    for name, value in (("total", one.total), ("used", one.used), ("total2", two.total), ("used2", two.used)):
        print(name, value)


if __name__ == "__main__":
    main()
