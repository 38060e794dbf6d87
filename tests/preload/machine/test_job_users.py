"""Whose job it is: one name of two users means two jobs, "@name" one job of all, and a job that root began stays root's."""

import ctypes
import os
import platform
import struct
import subprocess
import time

import pytest
from giving import GIVES, HOLD, entry_flags
from lib.ledger import BEGIN, ENTRY, ENTRY_BYTES, Segment
from lib.machine import needs_root
from lib.waiting import wait_until

pytestmark = needs_root
GROUP, ALICE, BOB = 51000, 51001, 51002
SET, NO_JOB, NOT_ALLOWED = 0, 1, 3
ASKED = 18928  # sg_segment.asked_time_ns, before asked_bytes


@pytest.fixture
def who(place, tmp_path):
    """who(ALICE) are the options of a program that a member of the group starts in the shared directory."""
    place.guard.directory.mkdir(mode=0o770)
    os.chown(place.guard.directory, 0, GROUP)
    place.guard.directory.chmod(0o2770)
    for folder in (tmp_path, *tmp_path.parents):
        if folder.owner() == "root" and folder != folder.parent and str(folder).startswith("/tmp/"):
            folder.chmod(folder.stat().st_mode | 0o055)
    return lambda user: {"user": user, "group": user, "extra_groups": [GROUP]}


def change(place, *words, job="job", status=SET, **options):
    env = place.guard.environment(place.env, preload=())
    command = [place.guard.build / "sparkguard", "--set", job, *words]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, **options)
    assert done.returncode == status, done.stderr
    return done


def test_limit_of_one_users_job_is_not_anothers(place, who):
    place.holder("malloc 1G", {"SPARKGUARD_LIMIT": "2G"}, **who(BOB))
    assert place.holder("malloc 3G", **who(ALICE)).answers == ["ok"]
    assert place.holder("malloc 1500M", **who(BOB)).answers == ["ENOMEM"]


def test_each_user_sets_the_own_job(place, who):
    alice, bob = (place.holder("malloc 1M wait malloc 1G malloc 2G", **who(user)) for user in (ALICE, BOB))
    change(place, "limit=1500M", **who(ALICE))
    change(place, "limit=3500M", **who(BOB))
    assert alice.go().ready() == ["ok", "ENOMEM"]
    assert bob.go().ready() == ["ok", "ok"]


def test_report_shows_two_jobs_and_whose_they_are(place, who):
    for user in (ALICE, BOB):
        place.holder("malloc 100M", **who(user))
    jobs = place.guard.report()["jobs"]
    assert [(job["job"], len(job["processes"])) for job in jobs] == [("job", 1)] * 2
    text = place.guard.report_command().stdout
    assert text.count(f"job job, user {ALICE}") == text.count(f"job job, user {BOB}") == 1, text


def test_root_is_asked_which_of_two_it_means(place, who):
    place.holder("malloc 1M", **who(ALICE))
    change(place, "limit=1G")
    place.holder("malloc 1M", **who(BOB))
    assert "several users run a job job" in change(place, "limit=2G", status=NOT_ALLOWED).stderr


def test_name_that_begins_with_at_is_one_job_of_all(place, who):
    env = {"SPARKGUARD_JOB": "@job"}
    place.holder("malloc 1G", {**env, "SPARKGUARD_LIMIT": "2G"}, **who(BOB))
    alice = place.holder("malloc 1500M wait malloc 1500M", env, **who(ALICE))
    assert alice.answers == ["ENOMEM"]
    change(place, "limit=3G", job="@job", **who(ALICE))
    assert alice.go().ready() == ["ok"]
    assert len(place.guard.report()["jobs"]) == 1


@pytest.mark.parametrize("becomes", ["by exec", "by itself"])
def test_job_that_root_began_is_roots_whatever_user_its_processes_become(place, who, becomes):
    who(ALICE)
    if becomes == "by exec":
        script = f"setpriv --reuid={ALICE} --regid={ALICE} --groups={GROUP} {place.admit_take} malloc 1M wait malloc 3G wait; true"
        tenant = place.tenant(["sh", "-c", script])
        tenant.ready()
    else:
        tenant = place.player(f"malloc(1 * MIB)\nos.setgroups([{GROUP}])\nos.setuid({ALICE})\nready()\nif os.fork() == 0:\n    malloc(3 * GIB)\n    ready()\nos.wait()\n")
        tenant.ready()
    change(place, "limit=2G")
    assert tenant.go().ready() == ["ENOMEM"]
    assert change(place, "limit=4G", status=NOT_ALLOWED, **who(ALICE))


def test_user_has_no_job_of_anothers_name(place, who):
    place.holder("malloc 1M", **who(BOB))
    assert "runs for another user" in change(place, "limit=1G", status=NOT_ALLOWED, **who(ALICE)).stderr
    assert place.holder("malloc 3G", **who(BOB)).answers == ["ok"]


def test_no_command_runs_for_a_refusal_of_another_user(place, who):
    """Alice's command, and a job of Bob's that has the same name in the same directory."""
    prefix = [place.guard.build / "sparkguard", "--quiet", "--on-refusal=echo told >&2"]
    alice = place.holder("malloc 1M wait malloc 1M", prefix=prefix, preload=(), **who(ALICE))
    assert place.holder("malloc 200M", {"SPARKGUARD_LIMIT": "64M"}, **who(BOB)).answers == ["ENOMEM"]
    alice.go().ready()
    assert "told" not in alice.process.communicate("\n", timeout=60)[1]


def test_the_command_runs_for_a_refusal_of_the_same_user_in_a_shared_directory(place, who):
    prefix = [place.guard.build / "sparkguard", "--quiet", "--on-refusal=echo told >&2"]
    alice = place.holder("malloc 200M", {"SPARKGUARD_LIMIT": "64M"}, prefix=prefix, preload=(), **who(ALICE))
    assert alice.answers == ["ENOMEM"]
    assert "told\n" in alice.process.communicate("\n", timeout=60)[1]


@pytest.mark.parametrize("asker", [ALICE, 0], ids=["the same user", "root"])
def test_a_command_runs_for_requests_of_its_user_and_of_root_alone(place, who, tmp_path, asker):
    said, pid = tmp_path / "said", tmp_path / "pid"
    for path in (said, pid):
        path.touch()
        os.chown(path, ALICE, ALICE)
    command = f"echo asked >>{said}; kill -USR1 $(cat {pid})"
    launcher = [place.guard.build / "sparkguard", "--job=server", f"--on-pressure={command}"]
    server = place.tenant([*launcher, "/usr/bin/python3", "-S", "-c", HOLD], {"PID_FILE": pid}, preload=(), **who(ALICE))
    assert server.ready() == []
    wait_until(lambda: any(flags & GIVES for flags in entry_flags(place)))
    assert place.holder("malloc 6G", **who(BOB)).answers == ["ENOMEM"] and said.read_text() == ""
    assert place.holder("malloc 6G", **(who(asker) if asker else {})).answers == ["ok"]
    assert said.read_text() == "asked\n"


def test_a_command_runs_for_no_question_that_a_member_has_forged(place, who, tmp_path):
    """Whoever writes into the registry of a group asks in anybody's name; what counts is in the record of who asks, which nobody else writes."""
    said = tmp_path / "said"
    said.touch()
    os.chown(said, ALICE, ALICE)
    server = place.holder("malloc 1M", prefix=[place.guard.build / "sparkguard", "--quiet", "--job=server", f"--on-pressure=echo asked >>{said}"], preload=(), **who(ALICE))
    wait_until(lambda: any(flags & GIVES for flags in entry_flags(place)))
    (helper,) = [number for number in place.ledger.taken() if place.ledger.get("flags", number) & GIVES]
    own = place.holder("malloc 1M wait", {"SPARKGUARD_JOB": "other"}, **who(ALICE))  # a process of the same user's that asks for nothing
    (record,) = place.guard.directory.glob(f"{own.process.pid}-*.segment")
    planted = bytearray(record.read_bytes())  # a question in a record of the member's, now and later
    planted[ASKED + 8 : ASKED + 16] = struct.pack("<Q", 1 << 30)
    for number, time_ns in enumerate((time.time_ns(), time.time_ns() + 10**9)):
        planted[ASKED : ASKED + 8] = struct.pack("<Q", time_ns)
        path = place.guard.directory / f"{own.process.pid}-{number:016x}.segment"
        path.write_bytes(planted)
        os.chown(path, BOB, GROUP)
    (place.guard.directory / f"{own.process.pid}-000000000000000f.segment").symlink_to(record)
    for bytes in (1 << 30, 2 << 30):
        place.ledger.put("pressure_bytes", bytes, helper)
        place.ledger.put("pressure_asked", place.ledger.get("pressure_asked", helper) + 1, helper)
        wait_until(lambda: place.ledger.get("pressure_answered", helper) == place.ledger.get("pressure_asked", helper))
    assert said.read_text() == ""
    for tenant in (server, own):
        assert tenant.process.poll() is None


def test_questions_that_a_member_forges_again_and_again_make_a_helper_look_ten_times_a_second(place, who):
    """The helper rests after each, however soon the next one comes: a busy machine makes that no shorter."""
    place.holder("malloc 1M", prefix=[place.guard.build / "sparkguard", "--quiet", "--job=server", "--on-pressure=true"], preload=(), **who(ALICE))
    wait_until(lambda: any(flags & GIVES for flags in entry_flags(place)))
    (helper,) = [number for number in place.ledger.taken() if place.ledger.get("flags", number) & GIVES]
    word = ctypes.c_void_p(place.ledger.map.address + BEGIN + helper * ENTRY_BYTES + ENTRY["pressure_asked"][0])
    futex = {"x86_64": 202, "aarch64": 98}[platform.machine()]
    answers = {}  # with a time at which it was the last one

    def ask_again():
        place.ledger.put("pressure_asked", place.ledger.get("pressure_asked", helper) + 1, helper)
        Segment.LIBC.syscall(futex, word, 1, 1 << 30)  # FUTEX_WAKE
        now = time.monotonic()
        answers.setdefault(place.ledger.get("pressure_answered", helper), now)
        return len(answers) == 13

    wait_until(ask_again, step=0)
    assert time.monotonic() - sorted(answers.values())[2] >= 0.9  # ten answers came since then: nine rests lie between them
