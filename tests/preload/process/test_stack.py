"""How much of a stack the guard takes: a handler of signals may have as little as the libc's MINSIGSTKSZ and what it needs itself."""

import pytest

MOST = 4096
MOST_OF_LOOK_UP = 5120
WAYS = ["small", "large", "refused", "free", "resize", "map", "unmap", "protect", "fork"]


@pytest.mark.parametrize("what", WAYS)
@pytest.mark.parametrize("env", [{}, {"SPARKGUARD_LIMIT": "2G"}], ids=["", "limit"])
def test_first_slow_path_takes_at_most_4_kib_of_a_handlers_stack(guard, what, env):
    done = guard.run([guard.build / "tests/programs/stack_paint", what], env)
    assert done.returncode == 0 and 0 < int(done.stdout) <= MOST


@pytest.mark.parametrize("what", ["dlsym", "dlsym_next", "dlsym_hooked", "dlsym_handle", "dlvsym"])
def test_first_look_up_takes_at_most_5_kib(guard, what):
    """The libc's own takes nearly 4 of them, as the dynamic linker saves the processor's registers."""
    done = guard.run([guard.build / "tests/programs/stack_paint", what])
    assert done.returncode == 0 and 0 < int(done.stdout) <= MOST_OF_LOOK_UP


def test_directory_full_of_dead_records_takes_no_more(guard):
    guard.directory.mkdir(mode=0o700)
    for number in range(200):
        (guard.directory / f"{number + 1}-{number:016x}.segment").touch(0o600)
    done = guard.run([guard.build / "tests/programs/stack_paint", "large"])
    assert done.returncode == 0 and 0 < int(done.stdout) <= MOST
    assert len(list(guard.directory.glob("*.segment"))) < 100
