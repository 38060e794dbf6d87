"""Where the programs of these tests run: a machine of files, or a memory cgroup."""

import contextlib
import os
from pathlib import Path

import pytest
from lib.machine import MIB, Place


@pytest.fixture
def place(guard, tmp_path):
    with contextlib.ExitStack() as stack:
        yield Place(guard, tmp_path, stack)


@pytest.fixture
def jail():
    """A memory cgroup of 512 MiB, v1 or v2."""
    name = f"sparkguard-test-{os.getpid()}"
    for mount, limit in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
        folder = Path(mount) / name
        try:
            folder.mkdir()
        except OSError:
            continue
        if (folder / limit).exists() and os.access(folder / limit, os.W_OK):
            (folder / limit).write_text(str(512 * MIB))
            yield folder
            folder.rmdir()
            return
        folder.rmdir()
    pytest.skip("no memory cgroup can be made here")
