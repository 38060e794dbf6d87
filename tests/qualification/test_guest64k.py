"""The library where pages are of 64 KiB and addresses of 52 bits: in the guest of tests/guest64k, which runs this file.

What tests/preload and tests/sim find in such pages are rows of their own (tests/qualification/run).
"""

import os
import platform
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE_BYTES = int(subprocess.run(["getconf", "PAGESIZE"], capture_output=True, text=True, check=True).stdout)

pytestmark = [pytest.mark.long, pytest.mark.skipif(PAGE_BYTES != 64 << 10, reason="asks for pages of 64 KiB (tests/guest64k)")]


def test_kernel_has_such_pages(record_property):
    memory_mib = os.sysconf("SC_PHYS_PAGES") * PAGE_BYTES >> 20
    record_property("note", f"Linux {platform.release()} {platform.machine()}, getconf PAGESIZE {PAGE_BYTES}, {memory_mib} MiB, 2 processors")
    assert platform.machine() == "aarch64" and os.sysconf("SC_PAGESIZE") == PAGE_BYTES


@pytest.mark.timeout_seconds(3600)
def test_unit_tests_pass(record_property):
    done = subprocess.run(["tests/run", "--unit"], cwd=ROOT, capture_output=True, text=True)
    passed, failed, skipped = re.findall(r"^(\d+) passed, (\d+) failed, (\d+) skipped$", done.stdout, re.MULTILINE)[-1]
    record_property("cases", passed)
    whys = re.findall(r"^ +(\w+: skipped: .*)", done.stdout, re.MULTILINE)
    record_property("note", "; ".join([f"unit tests: {passed} passed, {failed} failed, {skipped} skipped", *whys]))
    assert done.returncode == 0, done.stdout[-4000:]
