"""glibc keeps freed memory in its arenas: before a request is refused for the reserve, the heap gives it back."""

import pytest

EVENT = "gave freed heap back before a refusal for the reserve"
QUIET = {"SPARKGUARD_RESERVE": "32M"}


def ask(guard, jail, what, **env):
    """The answers, and whether the record has the event."""
    script = f'echo $$ > {jail}/cgroup.procs && LD_PRELOAD={guard.library} exec "$@"'
    command = ["/bin/sh", "-c", script, "sh", guard.build / "tests/programs/freed_arenas", what]
    done = guard.run(command, env={**QUIET, **env}, preload=[])
    assert done.returncode == 0, done.stderr
    events = [event["what"] for event in done.process()["events"]]
    return done.stdout.split(), EVENT in events


def test_freed_arenas_are_given_back_before_a_refusal(guard, jail):
    assert ask(guard, jail, "threads") == (["granted"], True)


@pytest.mark.parametrize("what", ["little", "alone"])
def test_a_heap_that_cannot_give_enough_or_has_no_locks_is_left_alone(guard, jail, what):
    assert ask(guard, jail, what) == (["refused"], False)


def test_a_limit_asks_no_heap(guard, jail):
    assert ask(guard, jail, "threads", SPARKGUARD_LIMIT="200M") == (["refused"], False)


def test_a_handler_in_the_midst_of_malloc_waits_for_no_lock_of_the_heap(guard, jail):
    answers, _ = ask(guard, jail, "handler")
    assert len(answers) == 3 and set(answers) <= {"granted", "refused"}
