"""mlockall costs a guarded program little more than an unguarded one, and passes within the limit that the program itself keeps."""

import os
import resource

import pytest
from lib.machine import needs_root

USER = 41009
KIB_MORE = 3 << 10  # what the library itself takes: code, data, tables, and a thread's stack
LIMIT = 8 << 20  # as Debian sets it


def lock(guard, *arguments, env=None, **options):
    """What failed, or "ok", and the KiB that were locked at the end."""
    done = guard.run([guard.build / "tests/programs/map_locked", *arguments], env=env, **options)
    assert done.returncode == 0, done.stderr
    what, kib = done.stdout.splitlines()
    return what, int(kib)


def both(guard, *arguments, **options):
    """The same unguarded and guarded: what a guarded program has locked beyond the unguarded one."""
    plain = lock(guard, *arguments, env={"LD_PRELOAD": None}, **options)
    guarded = lock(guard, *arguments, **options)
    assert (plain[0], guarded[0]) == ("ok", "ok")
    return guarded[1] - plain[1]


@needs_root
@pytest.mark.parametrize("before, after, maps", [(0, 300, 0), (300, 0, 0), (1, 1, 4000)])
def test_mlockall_of_root_pins_a_few_mib_more(guard, before, after, maps):
    """The table of the ranges that `maps` mappings make grows with them."""
    assert both(guard, before, after, maps) <= KIB_MORE


@pytest.fixture
def as_user(guard, tmp_path):
    """Options of a run as a user without privileges who may lock 8 MiB."""
    for folder in (guard.directory, guard.history):
        folder.mkdir(parents=True)
        os.chown(folder, USER, USER)
        folder.chmod(0o700)
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(folder.stat().st_mode | 0o111)

    def become():
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (LIMIT, LIMIT))
        os.setgroups([])
        os.setgid(USER)
        os.setuid(USER)

    return {"preexec_fn": become}


@needs_root
@pytest.mark.parametrize("before, after", [(0, 0), (2, 0), (0, 2), (1, 1)])
def test_mlockall_of_a_user_within_the_limit_passes(guard, as_user, before, after):
    assert both(guard, before, after, 0, **as_user) <= KIB_MORE


@needs_root
def test_mlockall_of_a_user_beyond_the_limit_fails(guard, as_user):
    assert lock(guard, 7, 0, 0, **as_user) == ("not locked", 0)
