"""DuckDB: joins, windows and sorts in a file, with threads, and once with less memory than the sort needs, so that it spills."""

import duckdb

with duckdb.connect("base.duckdb", config={"threads": 4}) as base:
    base.execute("create table t as select i as id, (i * 7919) % 9973 as key, repeat('x', (i % 37)::int) as text from range(2000000) r(i)")
    print(base.execute("select count(*), sum(key), sum(length(text)) from t").fetchall())
    print(base.execute("select key, count(*), sum(id) from t group by key order by 3 desc, 1 limit 3").fetchall())
    print(base.execute("select sum(a.id * b.key % 101) from t a join t b on a.id = b.key").fetchall())
    base.execute("copy t to 't.parquet' (format parquet)")
    print(base.execute("select sum(id), count(distinct text) from 't.parquet' where key < 500").fetchall())
    base.execute("set memory_limit = '120MB'; set preserve_insertion_order = false")
    base.execute("create table sorted as select * from t order by text desc, key, id")
    print(base.execute("select sum(id) from (select id from sorted limit 1000)").fetchall(), base.execute("select count(*) from sorted").fetchall())
