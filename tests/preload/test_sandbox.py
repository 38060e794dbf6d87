"""Programs in a sandbox, whose filter of system calls ends whoever makes one that it does not know: the guard makes none of those."""

import pytest

MIB = 1 << 20


def sandboxed(guard, env=None):
    """The report's entry of a program that has taken all it wants, when it has ended well."""
    process = guard.popen([guard.build / "tests/programs/host_sandbox"], env=env, stdin=-1)
    try:
        if process.stdout.readline() != "quiet\n":
            if process.wait(60) == 77:
                pytest.skip("no seccomp here")
            pytest.fail(f"ended by {process.returncode}: {process.stderr.read()}")
        entry = guard.process(process.pid)
        _, stderr = process.communicate("\n", timeout=60)
        assert process.returncode == 0, stderr
        assert stderr.startswith("sparkguard: refused malloc of 32.0 TiB") and stderr.count("\n") == 1
        return entry
    finally:
        process.kill()
        process.communicate()


def test_a_sandboxed_program_lives_and_is_counted(guard):
    entry = sandboxed(guard)
    assert entry["domains"]["mapped"]["live_bytes"] >= 32 * MIB
    assert 192 * MIB <= entry["domains"]["heap"]["live_bytes"] < 200 * MIB
    assert entry["refused_count"] == 1


def test_what_is_there_is_seen_without_mincore(guard):
    """Promised are half of the block that was touched by half, and the one that was not; not the file in memory."""
    assert 150 * MIB < sandboxed(guard)["promised_bytes"] < 170 * MIB


def test_a_program_that_may_not_open_files_any_more_lives(guard):
    """Its filter came before its first request: nobody has read then what the kernel says of filters, nor can."""
    done = guard.run([guard.build / "tests/programs/host_sandbox", "blind"], input="\n")
    if done.returncode == 77:
        pytest.skip("no seccomp here")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "quiet\n"
