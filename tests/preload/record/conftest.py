"""A directory that gets old while the tests of this folder run."""

import os
from types import SimpleNamespace

import pytest

# What a user may have called his own, and what was being made when its maker was killed.
OF_OTHERS = """film.segment film.timeline notes.new 1-0.timeline 1-000000000000000G.timeline 1-00000000000000000.timeline
-0000000000000001.timeline 12345678901-0000000000000001.timeline 1x0000000000000001.timeline 1-0000000000000001.timeline.old
1-0000000000000001.new machine.ledger.new machine.ledger.backup.new machine-1.ledger.0000000000000001.new""".split()
LEFT_OVER = """1-0000000000000001.segment.new 4194304-fedcba9876543210.timeline.new machine.ledger.0000000000000001.new
machine.ledger.fedcba9876543210.new 1-0000000000000001.timeline""".split()


@pytest.fixture(scope="session", autouse=True)
def old_directory(tmp_path_factory):
    """Made before the first test, so that test_unfinished.py, the last module, has little to wait for. No file's st_ctime can be set."""
    directory = tmp_path_factory.mktemp("old")
    directory.chmod(0o700)
    segments = {f"{i + 100}-{i:016x}.segment" for i in range(140)}
    for name in segments:
        (directory / name).write_bytes(bytes(64))
    for name in OF_OTHERS + LEFT_OVER:
        (directory / name).write_text("mine")
        os.utime(directory / name, (0, 0))
    return SimpleNamespace(path=directory, segments=segments, of_others=set(OF_OTHERS), left_over=set(LEFT_OVER))
