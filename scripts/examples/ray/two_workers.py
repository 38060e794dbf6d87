#!/usr/bin/env python3
"""Two Ray workers under one limit: the one whose request no longer fits gets a MemoryError, the other goes on.

    python3 two_workers.py [--library libsparkguard.so] [--limit 1536M] [--mib 600]

Only the workers are guarded: their runtime_env preloads the library and names the job that they share.
"""

import argparse

import ray


@ray.remote
class Worker:
    def __init__(self):
        self.blocks = []

    def take(self, mib):
        """Holds so much more, and says how much it holds."""
        block = bytearray(mib << 20)
        block[::4096] = b"x" * len(block[::4096])  # really there, not just promised
        self.blocks.append(block)
        return sum(map(len, self.blocks)) >> 20

    def length(self, text):
        """Of an object that lies in Ray's object store."""
        return len(text)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--library", default="libsparkguard.so")
    parser.add_argument("--limit", default="1536M")
    parser.add_argument("--mib", type=int, default=600)
    arguments = parser.parse_args()

    guard = {"LD_PRELOAD": arguments.library, "SPARKGUARD_JOB": "two-workers", "SPARKGUARD_LIMIT": arguments.limit}
    ray.init(num_cpus=2, object_store_memory=80 << 20, include_dashboard=False, log_to_driver=False)
    try:
        first, second = (Worker.options(runtime_env={"env_vars": guard}).remote() for _ in range(2))
        print("first holds", ray.get(first.take.remote(arguments.mib)), "MiB")
        try:
            print("second holds", ray.get(second.take.remote(2 * arguments.mib)), "MiB")
        except MemoryError as error:  # Ray raises its RayTaskError as the error of the task, too
            print("second refused:", type(error).__name__)
        print("second holds", ray.get(second.take.remote(arguments.mib // 10)), "MiB")
        shared = ray.put(bytes(32 << 20))
        print("both see", ray.get([worker.length.remote(shared) for worker in (first, second)]), "bytes")
        print("first holds", ray.get(first.take.remote(arguments.mib // 10)), "MiB")
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main()
