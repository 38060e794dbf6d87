#!/usr/bin/env python3
"""Ray tasks on a node of claimed-node: each asks for a part of its claim, and waits until that part is free.

    python3 claimed_tasks.py [--tasks 4] [--gib 8] [--seconds 5]
"""

import argparse
import time

import ray


@ray.remote(num_cpus=0, max_retries=0)
def work(gib, seconds):
    """Takes its memory, works with it, and says when it began and ended."""
    begin = time.time()
    block = bytearray(int(gib * 1024) << 20)
    block[::4096] = b"x" * len(block[::4096])  # really there, not just promised
    time.sleep(seconds)
    return begin, time.time()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tasks", type=int, default=4)
    parser.add_argument("--gib", type=float, default=8)
    parser.add_argument("--seconds", type=float, default=5)
    arguments = parser.parse_args()

    ray.init(address="auto", log_to_driver=False)
    claimed = ray.cluster_resources()["claimed_mib"]
    needed = int(arguments.gib * 1024) + 160  # the interpreter of a worker and its libraries take 140 MiB
    tasks = [
        work.options(resources={"claimed_mib": needed}).remote(arguments.gib, arguments.seconds) for _ in range(arguments.tasks)
    ]
    times = ray.get(tasks)
    most = max(sum(begin <= at < end for begin, end in times) for at, _ in times)
    print(f"{len(times)} tasks of {arguments.gib:g} GiB, at most {most} at once, in {claimed / 1024:.1f} GiB claimed for tasks")


if __name__ == "__main__":
    main()
