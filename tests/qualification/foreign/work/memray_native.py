"""memray --native: what it counts of the work of one module, by size and by number, in a program with threads and children."""

import json
import subprocess
import sys
from pathlib import Path

WORK = '''
import mmap, threading
def take():
    return [bytearray(1_000_003) for _ in range(40)]
def use():
    kept = take()
    maps = [mmap.mmap(-1, 3 << 20) for _ in range(5)]
    return sum(len(k) for k in kept) + sum(len(m) for m in maps)
sums = []
threads = [threading.Thread(target=lambda: sums.append(use())) for _ in range(4)]
[t.start() for t in threads]; [t.join() for t in threads]
print(sums)
'''
Path("work.py").write_text(WORK)
memray = [sys.executable, "-m", "memray"]
done = subprocess.run([*memray, "run", "--native", "-q", "-f", "-o", "work.bin", "work.py"], capture_output=True, text=True)
print(done.returncode, done.stdout, done.stderr)
subprocess.run([*memray, "table", "-f", "-o", "table.html", "work.bin"], check=True, stdout=subprocess.DEVNULL)
subprocess.run([*memray, "stats", "--json", "-f", "-o", "stats.json", "-n", "30", "work.bin"], check=True, stdout=subprocess.DEVNULL)
stats = json.loads(Path("stats.json").read_text())
sizes = {e["location"]: e["size"] for e in stats["top_allocations_by_size"] if "work.py" in e["location"]}
kinds = stats["allocator_type_distribution"]
print(sorted(sizes.items(), key=lambda item: -item[1])[:2], kinds["MMAP"], kinds["MALLOC"] >= 160)
