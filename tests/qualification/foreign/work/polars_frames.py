"""Polars: groups, joins and sorts by threads, files of Parquet and back, and a frame that is larger than its first arena."""

import polars

rows = 2_000_000
frame = polars.DataFrame({"key": [i * 7919 % 997 for i in range(rows)], "value": range(rows)})
frame = frame.with_columns((polars.col("value") % 1013).cast(polars.Float64).alias("part"), polars.col("key").cast(polars.String).alias("name"))
groups = frame.group_by("key").agg(polars.col("value").sum(), polars.col("part").mean().round(6), polars.len()).sort("key")
print(groups.shape, groups["value"].sum(), round(groups["part"].sum(), 3), groups["len"].max())
joined = frame.join(groups, on="key", how="inner", suffix="_group").sort(["part", "value"], descending=[True, False])
print(joined.shape, joined["value"].head(3).to_list(), joined["value_group"].sum())
frame.write_parquet("frame.parquet")
lazy = polars.scan_parquet("frame.parquet").filter(polars.col("key") < 100).group_by("name").agg(polars.col("value").max()).sort("name")
print(lazy.collect()["value"].sum(), lazy.collect(engine="streaming")["value"].sum())
