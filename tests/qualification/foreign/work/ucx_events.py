"""UCX's memory hooks, in each of its modes: what they see of the maps of a program, and that the program has them."""

import ctypes
import mmap
import subprocess
import sys

MAPPED, UNMAPPED = 1 << 16, 1 << 17  # of ucm.h
CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


def watch():
    for name in ("ucs", "ucm"):
        ucm = ctypes.CDLL(f"{sys.argv[2]}/lib{name}.so.0", mode=ctypes.RTLD_GLOBAL)
    seen = {MAPPED: 0, UNMAPPED: 0}
    counts = CALLBACK(lambda kind, _event, _argument: seen.update({kind: seen.get(kind, 0) + 1}))
    print("set", ucm.ucm_set_event_handler(MAPPED | UNMAPPED, 0, counts, None), end=" ")
    print("tested", ucm.ucm_test_events(MAPPED | UNMAPPED), end=" ")
    before = dict(seen)
    for size in (1, 5, 64):
        for _ in range(10):
            with mmap.mmap(-1, size << 20) as one:
                one[-1] = 7
    blocks = [ctypes.create_string_buffer(3 << 20) for _ in range(20)]
    total = sum(len(block) for block in blocks)
    del blocks
    print("seen", [seen[kind] - before[kind] >= 30 for kind in seen], total)
    ucm.ucm_unset_event_handler(MAPPED | UNMAPPED, counts, None)
    with mmap.mmap(-1, 8 << 20) as one:
        print("unset", one[0])


if __name__ == "__main__":
    if len(sys.argv) > 2:
        watch()
    else:
        import libucx

        folder = f"{libucx.__path__[0]}/lib"
        for mode in ("bistro", "reloc", "none"):
            done = subprocess.run(["env", f"LD_LIBRARY_PATH={folder}", f"UCX_MEM_MMAP_HOOK_MODE={mode}", sys.executable, __file__, mode, folder], capture_output=True, text=True)
            print(mode, done.returncode, done.stdout.strip(), done.stderr.strip()[-200:])
