"""Growth that no call announces: whoever grows ends itself before the kernel has to kill, and the others live.

The jail has no swap, so that the wall is hard. How near to it the growth came, the kernel's own mark of the most tells.
Every test named test_watchdog_... needs the watchdog.
"""

import os
import re
import select
import signal
import threading
from datetime import datetime, timezone

import pytest
from jail import MIB
from lib.target import CHARGED_AHEAD_BYTES
from lib.waiting import wait_until

LIMIT = 512 * MIB
FLOOR = LIMIT * 8 // 100 // 4
HELD_MIB = 300
SLOW, FAST = 40, 200  # MiB a second
WAIT_SECONDS = 5  # TERM_TO_KILL_NS of preload/guard/watch/watchdog.c
CREEPING = 8  # so slow that the wall is farther than the watchdog waits for
# The event is stamped by the clock of the day, and after the time from which the watchdog counts: a busy machine may stop it between both.
STAMPED_LATE_SECONDS = 0.5


class Growth:
    """The program grow: its first process is `process`, the one that grows is `pid`."""

    def __init__(self, jail, guard, programs, mode, rate, more_mib=HELD_MIB, env=None):
        self.jail = jail
        self.said = []
        command = [programs / "grow", mode, HELD_MIB, rate, more_mib]
        self.process = jail.popen(command, guard.environment(env))
        ready = re.fullmatch(r"ready (\d+)\n", self.process.stdout.readline())
        assert ready, f"grow did not begin: {self.process.communicate()}, {self.process.returncode}"
        self.pid = int(ready[1])
        self.descriptor = os.pidfd_open(self.pid)
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        self.said.extend(line.strip() for line in self.process.stdout)

    def has_ended(self):
        return bool(select.select([self.descriptor], [], [], 0.003)[0])

    def child_status(self):
        """What the first process saw of the child; None as long as it has seen no end."""
        return next((int(line.split()[1]) for line in list(self.said) if line.startswith("ended ")), None)

    def run(self):
        """Lets it grow until it has ended or has written all; whether it has ended."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        wait_until(lambda: self.has_ended() or "done" in self.said, "the end of the growth")
        return self.has_ended()

    def stop(self):
        """Lets what is left of it end by itself."""
        self.process.stdin.close()
        self.process.wait(60)
        self.reader.join(30)

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.descriptor)


@pytest.fixture
def jail(make_jail):
    return make_jail(LIMIT)


@pytest.fixture
def start_growth(jail, guard, programs):
    started = []

    def start(mode, rate, **options):
        started.append(Growth(jail, guard, programs, mode, rate, **options))
        return started[-1]

    yield start
    for growth in started:
        growth.kill()


def assert_ended_at_the_floor(growth, has_ended, figures):
    """The watchdog may have counted what the processors have charged ahead, and as room no page cache that the jail has by now."""
    least, early = growth.jail.least_headroom_bytes(), CHARGED_AHEAD_BYTES + growth.jail.cache_bytes()
    figures(least_headroom_mib=round(least / MIB, 1), oom_kills=growth.jail.oom_kills(), said=growth.said)
    assert growth.jail.oom_kills() == 0, "the kernel had to kill"
    assert has_ended, "it went on growing"
    assert least < FLOOR + early, "ended though there was room"


def assert_guarded_small_programs_work(guard, jail):
    """As someone who comes to help would find it."""
    shell = jail.popen(["sh", "-c", "ls /proc/self | wc -l"], guard.environment())
    stdout, stderr = shell.communicate(timeout=60)
    assert (shell.returncode, stderr) == (0, "") and int(stdout) > 10


def assert_lives(bystander):
    rounds = len(bystander.rounds)
    wait_until(lambda: len(bystander.rounds) > rounds + 5, "the bystander's next rounds")
    assert bystander.is_alive()


def watchdog_events(guard, pid):
    return [event["what"] for event in guard.process(pid)["events"] if "watchdog" in event["what"]]


def assert_recorded_as_killed(guard, pid):
    assert guard.process(pid)["state"] == "killed"
    assert watchdog_events(guard, pid)


@pytest.mark.parametrize("rate", [pytest.param(SLOW, id="slow"), pytest.param(FAST, id="fast", marks=pytest.mark.long)])
@pytest.mark.parametrize("child", ["copy", "silent"])
def test_watchdog_ends_the_child_that_copies(jail, guard, start_growth, start_canary, figures, child, rate):
    """Copy-on-write after fork: both hold the same, but only the child's growth can stop, whether it ever asked or not."""
    bystander = start_canary(jail, guard.environment(), mib=16)
    growth = start_growth(child, rate)
    assert_ended_at_the_floor(growth, growth.run(), figures)
    wait_until(lambda: growth.child_status() is not None, "the parent's word on its child")
    assert os.WTERMSIG(growth.child_status()) in (signal.SIGTERM, signal.SIGKILL)
    assert growth.process.poll() is None, "the parent ended too"
    assert_lives(bystander)
    assert_guarded_small_programs_work(guard, jail)
    growth.stop()
    assert growth.process.returncode == 0
    assert_recorded_as_killed(guard, growth.pid)


@pytest.mark.parametrize("rate", [pytest.param(SLOW, id="slow"), pytest.param(FAST, id="fast", marks=pytest.mark.long)])
def test_watchdog_ends_the_process_that_fills_what_was_never_promised(
    jail, guard, start_growth, start_canary, figures, rate
):
    """Neither one that holds little nor one that holds much, but less than the one that grows, is ended."""
    bystanders = [start_canary(jail, guard.environment(), mib=16)]
    growth = start_growth("sparse", rate)
    bystanders.append(start_canary(jail, guard.environment(), mib=80))
    assert growth.pid == growth.process.pid
    assert_ended_at_the_floor(growth, growth.run(), figures)
    growth.stop()
    assert -growth.process.returncode in (signal.SIGTERM, signal.SIGKILL)
    for bystander in bystanders:
        assert_lives(bystander)
    assert_guarded_small_programs_work(guard, jail)
    assert_recorded_as_killed(guard, growth.pid)


def test_watchdog_kills_who_does_not_heed_sigterm(jail, guard, start_growth, start_canary, figures):
    """At once when it goes on growing: five seconds are not there."""
    bystander = start_canary(jail, guard.environment(), mib=16)
    growth = start_growth("deaf", SLOW)
    assert_ended_at_the_floor(growth, growth.run(), figures)
    growth.stop()
    assert -growth.process.returncode == signal.SIGKILL
    assert_lives(bystander)
    assert_recorded_as_killed(guard, growth.pid)


def room_to(jail, left_bytes):
    """MiB that grow must take, beside what it holds, to leave so much."""
    return (jail.headroom_bytes() - left_bytes) // MIB - HELD_MIB


@pytest.mark.long  # twenty seconds; tests/preload/machine/test_watched.py shows the five seconds without a jail
def test_watchdog_kills_who_stays_below_the_floor(jail, guard, start_growth, start_canary, figures):
    """It does not grow any more, and does not heed SIGTERM: it is given some seconds, but not for ever."""
    bystander = start_canary(jail, guard.environment(), mib=16)
    env = {"SPARKGUARD_RESERVE": "96M", "SPARKGUARD_FLOOR": "64M"}
    growth = start_growth("deaf", CREEPING, more_mib=room_to(jail, 60 * MIB), env=env)  # the rest below 64 MiB takes 0.5 s of the 5
    assert not growth.run()
    assert growth.jail.headroom_bytes() < 64 * MIB and growth.jail.oom_kills() == 0
    wait_until(growth.has_ended, "its end")
    ended = datetime.now(timezone.utc)
    growth.stop()
    assert -growth.process.returncode == signal.SIGKILL
    assert jail.oom_kills() == 0
    assert_lives(bystander)
    (asked,) = (event["time"] for event in guard.process(growth.pid)["events"] if event["what"].startswith("watchdog: sent SIGTERM"))
    seconds = (ended - datetime.fromisoformat(asked.replace("Z", "+00:00"))).total_seconds()
    figures(sigterm=asked, to_sigkill_s=seconds)
    assert seconds >= WAIT_SECONDS - STAMPED_LATE_SECONDS, "the wall was not near: it should have had its time"


def test_watchdog_warns_only_if_told_so(jail, guard, start_growth, start_canary):
    bystander = start_canary(jail, guard.environment(), mib=16)
    env = {"SPARKGUARD_RESERVE": "96M", "SPARKGUARD_FLOOR": "64M", "SPARKGUARD_WATCHDOG": "warn"}
    growth = start_growth("sparse", SLOW, more_mib=room_to(jail, 48 * MIB), env=env)
    growth.run()
    wait_until(lambda: watchdog_events(guard, growth.pid), "the warning")
    assert_lives(bystander)
    assert not growth.has_ended()


def test_watchdog_ends_nobody_above_the_floor(jail, guard, start_growth, start_canary):
    """The reserve is there to be used by what no call announces."""
    bystander = start_canary(jail, guard.environment(), mib=16)
    growth = start_growth("sparse", FAST, more_mib=room_to(jail, 2 * FLOOR))
    assert not growth.run()
    assert jail.least_headroom_bytes() < 3 * FLOOR
    assert_lives(bystander)
    assert not growth.has_ended()


def test_without_the_watchdog_the_kernel_kills(jail, start_growth, figures):
    """The control: nothing else in the jail keeps the child from growing into the wall."""
    growth = start_growth("copy", FAST, env={"SPARKGUARD_WATCHDOG": "off"})
    growth.run()
    wait_until(lambda: jail.oom_kills() > 0, "the OOM killer")
    figures(oom_kills=jail.oom_kills(), least_headroom_mib=round(jail.least_headroom_bytes() / MIB, 1))
    assert jail.least_headroom_bytes() < FLOOR
