"""sparkguard-report --watch: what a sample took from the arena is given back with the next one."""

import subprocess
from pathlib import Path

from lib.units import GIB
from watching import QUICK, live, watch  # noqa: F401 - fixtures


def anonymous_kib(pid):
    (line,) = (line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1])


def test_a_sample_leaves_no_memory_behind(live, report):
    live(4711, 20, job="train", command="python3 train.py " + "x" * 200)
    for worker in range(60):
        live(4712 + worker, 1, job="train", command="python3 worker.py " + "x" * 200)
    report.machine(MemTotal=128 * GIB, MemAvailable=98 * GIB)
    kept = {"ASAN_OPTIONS": "quarantine_size_mb=0"}  # where it is built so: what is freed goes back at once
    with subprocess.Popen([report.program, QUICK], env=report.environment(**kept), stdout=subprocess.PIPE) as watcher:
        for _ in range(6):
            watcher.stdout.readline()
        before = anonymous_kib(watcher.pid)
        for _ in range(20):
            watcher.stdout.readline()
        assert anonymous_kib(watcher.pid) - before < 256
        watcher.stdout.close()
