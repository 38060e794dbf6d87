"""pyarrow: the same work in each of its memory pools, which are the system's, jemalloc's and mimalloc's, as far as the wheel has them."""

import pyarrow
import pyarrow.compute
import pyarrow.dataset
import pyarrow.parquet

for name in sorted({"system", *pyarrow.supported_memory_backends()}):
    pool = getattr(pyarrow, f"{name}_memory_pool")()
    pyarrow.set_memory_pool(pool)
    table = pyarrow.table({"key": pyarrow.array(range(1_000_000)), "text": pyarrow.array([f"text {i % 1009}" for i in range(1_000_000)])})
    table = table.append_column("part", pyarrow.compute.bit_wise_and(table["key"], 1023))
    groups = table.group_by("part").aggregate([("key", "sum"), ("text", "count_distinct")]).sort_by("part")
    pyarrow.parquet.write_table(table, f"{name}.parquet", row_group_size=100_000)
    back = pyarrow.dataset.dataset(f"{name}.parquet").to_table(filter=pyarrow.compute.field("part") < 10)
    print(name, groups.num_rows, pyarrow.compute.sum(groups["key_sum"]).as_py(), back.num_rows, pyarrow.compute.sum(back["key"]).as_py())
    peak = pool.max_memory()
    del table, groups, back
    pool.release_unused()
    print(name, pool.bytes_allocated() < 1 << 20, peak > 20_000_000)
