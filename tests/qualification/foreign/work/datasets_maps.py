"""HF datasets: a data set that is mapped by several processes, kept on disk as Arrow files, memory-mapped again, shuffled and filtered."""

import hashlib
import os

os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", HF_HOME=os.path.abspath("home"))

import datasets  # noqa: E402

datasets.disable_progress_bars()


def longer(row):
    return {"text": row["text"] * 3, "length": len(row["text"])}


def main():
    rows = 40_000
    whole = datasets.Dataset.from_dict({"id": list(range(rows)), "text": [f"text {i * 7919 % 9973} " * (1 + i % 20) for i in range(rows)]})
    mapped = whole.map(longer, num_proc=3, desc="longer")
    mapped.save_to_disk("kept", num_shards=4)
    kept = datasets.load_from_disk("kept")
    some = kept.filter(lambda row: row["length"] > 150, num_proc=2).shuffle(seed=7).flatten_indices()
    total = hashlib.sha256("".join(some["text"][:500]).encode()).hexdigest()[:16]
    print(len(mapped), len(some), sum(some["length"]), total, kept.data.nbytes > 10_000_000)
    some.to_parquet("some.parquet")
    print(datasets.Dataset.from_parquet("some.parquet")[:3]["id"])


if __name__ == "__main__":
    main()
