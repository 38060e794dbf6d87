"""A Python program that answers alike whatever heap it has: threads that allocate, a large block, a child."""

THREADS_AND_CHILD = """
def work():
    out.append(len({str(i): bytes(i % 3000) for i in range(3000)}))
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(sum(out), hashlib.sha256(block).hexdigest(), subprocess.run(["sh", "-c", "echo hi; exit 4"], capture_output=True))
raise SystemExit(3)
"""


def python_work(begin):
    """`begin`: statements that import more and set `block` and `out`, a list."""
    return "import hashlib, subprocess, threading\n" + begin + THREADS_AND_CHILD
