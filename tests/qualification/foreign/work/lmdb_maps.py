"""LMDB: files on disk and in memory, read-only maps and writable ones, with readers in other processes. map_size is far above the contents."""

import hashlib
import multiprocessing
import os
import tempfile

import lmdb


def digest(folder, writemap):
    with lmdb.open(folder, map_size=1 << 30, readonly=True, lock=True) as base, base.begin() as reading:
        total = hashlib.sha256()
        for key, value in reading.cursor():
            total.update(key + value)
        return total.hexdigest()[:16], reading.stat()["entries"]


def work(folder, writemap):
    with lmdb.open(folder, map_size=1 << 30, writemap=writemap, sync=False) as base:
        for start in range(0, 30_000, 5_000):
            with base.begin(write=True) as writing:
                for number in range(start, start + 5_000):
                    writing.put(b"%08d" % (number * 7919 % 100_003), b"%d " % number * (1 + number % 60))
        with base.begin(write=True) as writing:
            for number in range(0, 30_000, 3):
                writing.delete(b"%08d" % (number * 7919 % 100_003))


def main():
    context = multiprocessing.get_context("spawn")
    for parent in (os.getcwd(), "/dev/shm"):
        for writemap in (False, True):
            with tempfile.TemporaryDirectory(dir=parent) as folder:
                work(folder, writemap)
                with context.Pool(2) as pool:
                    print(parent == "/dev/shm", writemap, pool.starmap(digest, [(folder, writemap)] * 2))


if __name__ == "__main__":
    main()
