"""glibc keeps freed memory in its arenas: before a request is refused for the reserve, the heap gives it back."""

import contextlib
import os
import subprocess

import pytest
from lib.ledger import SHARING, Ledger
from lib.waiting import wait_until

EVENT = "gave freed heap back before a refusal for the reserve"
QUIET = {"SPARKGUARD_RESERVE": "32M"}


def in_jail(guard, jail, program, *words):
    """The command: the shell goes in first, unguarded, and becomes the program."""
    script = f'echo $$ > {jail}/cgroup.procs && LD_PRELOAD={guard.library} exec "$@"'
    return ["/bin/sh", "-c", script, "sh", guard.build / "tests/programs" / program, *words]


def ask(guard, jail, what, **env):
    """The answers, and whether the record has the event."""
    done = guard.run(in_jail(guard, jail, "freed_arenas", what), env={**QUIET, **env}, preload=[])
    assert done.returncode == 0, done.stderr
    events = [event["what"] for event in done.process()["events"]]
    return done.stdout.split(), EVENT in events


@pytest.mark.parametrize("what", ["threads", "alone"])
def test_freed_heap_is_given_back_before_a_refusal(guard, jail, what):
    assert ask(guard, jail, what) == (["granted"], True)


@pytest.mark.parametrize("what", ["little", "alone_little"])
def test_a_heap_that_cannot_give_enough_is_left_alone(guard, jail, what):
    assert ask(guard, jail, what) == (["refused"], False)


@pytest.mark.parametrize("what", ["threads", "alone"])
def test_a_limit_asks_no_heap(guard, jail, what):
    assert ask(guard, jail, what, SPARKGUARD_LIMIT="280M") == (["refused"], False)


def test_a_handler_in_the_midst_of_malloc_waits_for_no_lock_of_the_heap(guard, jail):
    answers, _ = ask(guard, jail, "handler")
    assert len(answers) == 3 and set(answers) <= {"granted", "refused"}


@pytest.mark.parametrize("what", ["alone_handler", "alone_stack"])
def test_the_heap_of_one_thread_is_left_alone_in_a_handler(guard, jail, what):
    """It has no locks, and the handler may have interrupted it. A later request of the thread is granted."""
    assert ask(guard, jail, what) == (["refused"] * 3 + ["granted"], True)


TRIMS = 1 << 14  # SG_SLOT_TRIMS


@contextlib.contextmanager
def holding(guard, jail, what):
    """A process that keeps 280 MiB of freed heap."""
    process = guard.popen(in_jail(guard, jail, "freed_arenas", what), env=QUIET, preload=[], stdin=subprocess.PIPE)
    assert process.stdout.readline() == "ready\n"
    yield Ledger(guard.directory)
    process.communicate("\n", timeout=60)


@pytest.fixture
def holder(guard, jail):
    """A process that keeps 280 MiB of freed heap, and says so in its entry."""
    with holding(guard, jail, "hold") as ledger:
        wait_until(lambda: any(ledger.get("flags", number) & TRIMS for number in ledger.taken()), "it offers its freed heap")
        yield ledger


def take(guard, jail, *commands, **env):
    done = guard.run(in_jail(guard, jail, "admit_take", *commands), env={**QUIET, **env}, preload=[])
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_what_another_process_has_freed_is_given_back_before_a_refusal(guard, jail, holder):
    assert take(guard, jail, "malloc", "300M") == ["ok"]
    ledger = holder
    asked = ledger.taken()[0]
    assert ledger.get("pressure_asked", asked) == 1
    wait_until(lambda: ledger.get("pressure_answered", asked) == 1, "it answers")  # granted while the heap still gives back
    assert ledger.get("flags", asked) & TRIMS == 0  # not asked again for a while


def test_nobody_asks_the_heap_of_one_thread(guard, jail):
    """It has no locks, so no other thread may touch it; and the thread itself, which waits here, would never see a question."""
    with holding(guard, jail, "alone_hold") as ledger:
        (number,) = ledger.taken()
        wait_until(lambda: ledger.get("watched_ns", number) != 0, "its watchdog has begun")
        first = ledger.get("watched_ns", number)
        wait_until(lambda: ledger.get("watched_ns", number) > first + 2 * 10**9, "it has looked at the heap, which it does once a second")
        assert ledger.get("flags", number) & TRIMS == 0
        assert take(guard, jail, "malloc", "300M") == ["ENOMEM"] and ledger.get("pressure_asked", number) == 0


@pytest.mark.parametrize("user, questions", [(None, 1), (65534, 0)], ids=["own", "another's"])
def test_only_processes_of_the_same_user_are_asked(place, user, questions):
    if os.geteuid() != 0:
        pytest.skip("needs root")
    place.take("malloc 1M")  # makes the ledger
    with subprocess.Popen(["sleep", "1000"], user=user) as other:
        with place.ledger.entry(40, pid=other.pid, flags=SHARING | TRIMS, pid_namespace=os.stat("/proc/self/ns/pid").st_ino):
            assert place.take("malloc 9G") == ["ENOMEM"]
            assert place.ledger.get("pressure_asked", 40) == questions
        other.kill()
