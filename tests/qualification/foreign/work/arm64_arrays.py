"""The wheels of numpy and pyarrow that aarch64 gets, whose heaps are others than x86-64's."""

import numpy
import pyarrow
import pyarrow.compute

random = numpy.random.default_rng(7)
a = random.standard_normal((120, 120))
print(numpy.__version__, round(float(numpy.linalg.svd(a, compute_uv=False).sum()), 6), round(float((a @ a.T).trace()), 6))
print([int(numpy.sort(random.integers(0, 1 << 40, n))[n // 2]) for n in (10, 100_000)], round(abs(numpy.fft.fft(a[0])).sum(), 6))
blocks = [numpy.full(size << 17, 1.0) for size in (1, 3, 8, 24)]
print([block.nbytes >> 20 for block in blocks], sum(float(block.sum()) for block in blocks))
kept = numpy.memmap("kept", dtype=numpy.int32, mode="w+", shape=(1 << 20,))
kept[::4096] = 7
copied = numpy.memmap("kept", dtype=numpy.int32, mode="c", shape=(1 << 20,))
copied[0] = 9
print(int(kept.sum()), int(copied.sum()))
for name in sorted({"system", *pyarrow.supported_memory_backends()}):
    pool = getattr(pyarrow, f"{name}_memory_pool")()
    pyarrow.set_memory_pool(pool)
    table = pyarrow.table({"key": numpy.arange(100_000), "part": numpy.arange(100_000) % 97})
    groups = table.group_by("part").aggregate([("key", "sum")]).sort_by("part")
    large = pyarrow.allocate_buffer(40 << 20, memory_pool=pool)
    print(pyarrow.__version__, name, groups["key_sum"][5].as_py(), large.size, pool.bytes_allocated() >= 40 << 20)
    del table, groups, large
