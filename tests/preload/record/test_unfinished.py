"""What lies in SPARKGUARD_DIR half made, since before any living process could still be making it."""

import time

from lib.waiting import wait_until

UNFINISHED_SECONDS = 10  # of preload/core/shared/retention.c: nobody makes a file for longer


def test_nothing_is_swept_that_has_another_name_than_ours(guard, old_directory):
    last = max(file.stat().st_ctime for file in old_directory.path.iterdir())
    wait_until(lambda: time.time() >= last + UNFINISHED_SECONDS + 1)  # whole seconds are compared
    guard.directory = old_directory.path
    guard.run([guard.build / "tests/programs/dir_hold"])
    names = {file.name for file in old_directory.path.iterdir()}
    assert old_directory.of_others - names == set() and names & old_directory.left_over == set()
    assert len(names & old_directory.segments) < 70
