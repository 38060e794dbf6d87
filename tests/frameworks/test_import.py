"""The import of a library (FRAMEWORK_MODULE) under the guard: as if nobody were there."""

import os

MODULE = os.environ.get("FRAMEWORK_MODULE", "sys")

IMPORT = f"""
import sys
import {MODULE}
"""
SAY_MODULES = """
print("\\n".join(sorted(sys.modules)))
"""
SAY_LIBRARIES = """
with open("/proc/self/maps") as maps:
    files = {line.split(maxsplit=5)[5].strip() for line in maps if ".so" in line}
print("\\n".join(sorted(file for file in files if "libsparkguard" not in file)))
"""


def test_it_brings_the_same_modules(client):
    modules = client.same(IMPORT + SAY_MODULES).splitlines()
    assert MODULE in modules and len(modules) > 50


def test_it_loads_the_same_libraries(client):
    assert "/libc.so.6" in client.same(IMPORT + SAY_LIBRARIES)


def test_it_says_nothing(client):
    done = client.run(IMPORT)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_nothing_is_refused_by_it(client):
    done = client.values(IMPORT + "block = bytearray(32 << 20)")
    assert (done.process["guarding"], done.process["refused_count"], done.process["unmatched_frees"]) == (True, 0, 0)
