"""Page cache in a real memory cgroup: it fills the counter, and it is room."""

import os
import subprocess

import pytest
from jail import MIB

LIMIT = 512 * MIB
CACHE_MIB = 440


@pytest.fixture
def full_of_cache(make_jail, lab):
    """A jail whose counter is near its limit, nearly all of it clean page cache."""
    kind = subprocess.run(["stat", "-f", "-c", "%T", lab.scratch], check=True, capture_output=True, text=True).stdout
    if kind.strip() == "tmpfs":
        pytest.skip(f"{lab.scratch.parent} is in memory: its files are no page cache that could go")
    jail = make_jail(LIMIT)
    copy = ["dd", "if=/dev/zero", f"of={lab.scratch}/cache", "bs=1M", f"count={CACHE_MIB}", "conv=fsync"]
    done = jail.popen(copy, {"PATH": os.defpath}, stdin=subprocess.DEVNULL)
    assert done.wait(60) == 0
    done.communicate()
    yield jail
    (lab.scratch / "cache").unlink()


def test_clean_page_cache_is_room(guard, full_of_cache, figures):
    jail = full_of_cache
    used, cache = jail.used_bytes(), jail.cache_bytes()
    figures(used_mib=used // MIB, cache_mib=cache // MIB)
    assert used > (CACHE_MIB - 20) * MIB and cache > (CACHE_MIB - 20) * MIB
    program = guard.build / "tests/programs/admit_take"
    # Too large even without the cache; far larger than what the cache left; no third of what is left then.
    words = ("malloc", "480M", "malloc", "400M", "touch", "1", "malloc", "100M")
    process = jail.popen([program, *words], guard.environment())
    stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stdout.split()) == (0, ["ENOMEM", "ok", "ok", "ENOMEM"]), stderr
    assert "in a cgroup of 512.0 MiB" in stderr
    assert jail.oom_kills() == 0
    assert guard.process(process.pid)["refused_count"] == 2
