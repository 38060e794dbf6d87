"""comfy-aimdo over the simulated driver: its bars of device memory that are faulted in, freed and faulted again, and host buffers."""

import ctypes

from comfy_aimdo import control

MIB = 1 << 20
cuda = ctypes.CDLL("libcuda.so.1", mode=ctypes.RTLD_GLOBAL)
runtime = ctypes.CDLL("libcudart.so.13", mode=ctypes.RTLD_GLOBAL)
print("context", runtime.cudaFree(None), control.init("cuda"), control.init_devices([0]))
from comfy_aimdo import host_buffer, model_vbar, vram_buffer  # noqa: E402

bars = [model_vbar.ModelVBAR(512 * MIB, 0) for _ in range(3)]
blocks = [[bar.alloc(64 * MIB) for _ in range(8)] for bar in bars]
for bar, mine in zip(bars, blocks):
    bar.prioritize()
    print("faulted", sum(model_vbar.vbar_fault(block) is not None for block in mine), bar.loaded_size() // MIB)
    for block in mine:
        model_vbar.vbar_unpin(block)
print("freed", bars[0].free_memory(256 * MIB) // MIB, bars[0].loaded_size() // MIB)
print("again", sum(model_vbar.vbar_fault(block) is not None for block in blocks[0]), bars[0].loaded_size() // MIB)
buffer = host_buffer.HostBuffer(64 * MIB, max_grow_size=256 * MIB)
ctypes.memset(buffer.get_raw_address(), 7, 64 * MIB)
buffer.extend(128 * MIB)
print("host", buffer.size // MIB, ctypes.string_at(buffer.get_raw_address() + 64 * MIB - 1, 1))
buffer.truncate(64 * MIB)
print("cut", buffer.size // MIB)
pointer = ctypes.c_void_p()
for size in (1, 5 * MIB, 200 * MIB):
    print("runtime", runtime.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(size)), runtime.cudaFree(pointer))
for bar in bars:
    bar.close()
del buffer
print("used", control.get_total_vram_usage() // MIB, control.deinit())
