"""A directory that users of a group share: what one member, or a user who is none, can do to the others' programs and records."""

import json
import os
import subprocess

import pytest
from lib.target import PYTHON

MIB = 1 << 20
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture
def program(build):
    return lambda name: build / "tests/programs" / name


def segments(directory):
    return sorted(directory.glob("*.segment"), key=lambda f: f.stat().st_mtime_ns)


GROUP, ALICE, BOB = 51000, 51001, 51002


@pytest.fixture
def shared(guard, tmp_path):
    """A directory of root's and the group's, as an administrator makes it."""
    guard.directory.mkdir()
    os.chown(guard.directory, 0, GROUP)
    guard.directory.chmod(0o2770)
    for parent in [tmp_path, *tmp_path.parents][:3]:
        parent.chmod(0o755)

    def run(user, *command, **env):
        return guard.run(command, user=user, group=user, extra_groups=[GROUP], env={"SPARKGUARD_HISTORY": "off", **env})

    return run


@needs_root
def test_one_users_many_short_programs_push_out_nobody_elses_records(guard, program, shared):
    shared(ALICE, PYTHON, "-c", "import os; a = bytearray(40 << 20); os.kill(os.getpid(), 9)", SPARKGUARD_JOB="crashed")
    (hers,) = segments(guard.directory)
    for number in range(130):
        shared(BOB, program("dir_hold"))
    owners = [file.stat().st_uid for file in segments(guard.directory)]
    assert hers in segments(guard.directory) and owners.count(ALICE) == 1 and owners.count(BOB) in range(64, 130)


@needs_root
def test_no_other_member_reads_the_arguments_or_cuts_the_record(guard, program, shared):
    secret = "token-5f3a"
    assert shared(ALICE, PYTHON, "-c", "a = bytearray(40 << 20)", secret, SPARKGUARD_JOB="job").returncode == 0
    (record,) = segments(guard.directory)
    before = record.stat().st_size
    script = f"cat {record}; (: >>{record}) || echo closed; truncate -s 0 {record} || echo closed"
    done = shared(BOB, "sh", "-c", f"unset LD_PRELOAD; {script}")
    assert "closed" in done.stdout and secret not in done.stdout and record.stat().st_size == before
    data = record.read_bytes()
    assert os.path.realpath(PYTHON).encode() in data or str(PYTHON).encode() in data
    assert secret.encode() not in data


HARM = {  # what a member does to the registry's file
    "cut": "true >{ledger}", "replace": "true >{ledger}.new && mv {ledger}.new {ledger}", "remove": "rm -f {ledger}",
    "fill": "head -c 2000000 /dev/urandom >{ledger}", "link": "ln -sf /etc/passwd {ledger}",
    "close": "rm -f {ledger} && umask 077 && true >{ledger}", "pipe": "rm -f {ledger} && mkfifo {ledger}",
}


@needs_root
@pytest.mark.parametrize("how", HARM)
def test_what_a_member_does_to_the_ledger_ends_nobodys_program_and_the_next_ones_share(guard, build, shared, how):
    """The registry is no file: it has no size that anybody could change."""
    take, ledger = build / "tests/programs/admit_take", guard.directory / "machine.ledger"
    options = {"extra_groups": [GROUP], "stdin": subprocess.PIPE}
    env = {"SPARKGUARD_HISTORY": "off", "SPARKGUARD_JOB": "@job", "SPARKGUARD_LIMIT": "100M"}
    with guard.popen([take, "malloc", "60M", "wait", "malloc", "16M"], user=ALICE, group=ALICE, env=env, **options) as hers:
        assert [hers.stdout.readline() for _ in range(2)] == ["ok\n", "ready\n"]
        assert ledger.stat().st_size < 4096, "only a name of the registry"
        assert shared(BOB, take, "malloc", "60M", SPARKGUARD_JOB="@job", SPARKGUARD_LIMIT="100M").stdout == "ENOMEM\n"
        done = subprocess.run(["setpriv", f"--reuid={BOB}", f"--regid={BOB}", f"--groups={GROUP}", "sh", "-c", HARM[how].format(ledger=ledger)])
        assert done.returncode == 0
        with guard.popen([take, "malloc", "60M", "wait"], user=BOB, group=BOB, env=env, **options) as his:
            assert [his.stdout.readline() for _ in range(2)] == ["ok\n", "ready\n"] or how == "cut"
            third = shared(BOB, take, "malloc", "60M", SPARKGUARD_JOB="@job", SPARKGUARD_LIMIT="100M")
            assert third.stdout == "ENOMEM\n", "the next ones share again"
            his.communicate("\n", timeout=60)
        said, errors = hers.communicate("\n", timeout=60)
        assert (hers.returncode, said) == (0, "ok\n"), errors


@needs_root
def test_the_segment_is_gone_with_its_last_process(guard, program, shared):
    before = subprocess.run(["ipcs", "-m"], capture_output=True, text=True).stdout
    assert shared(ALICE, program("dir_hold")).returncode == 0
    assert (guard.directory / "machine.ledger").exists()
    assert subprocess.run(["ipcs", "-m"], capture_output=True, text=True).stdout == before
    assert shared(BOB, program("dir_hold")).returncode == 0
    report = subprocess.run([guard.build / "sparkguard-report", "--json", "--all", "--dir", guard.directory], capture_output=True, text=True)
    assert report.returncode == 0 and all(p["sharing"] for job in json.loads(report.stdout)["jobs"] for p in job["processes"])


@needs_root
def test_a_process_of_another_ipc_namespace_decides_alone(guard, build, shared):
    """It can have no segment of this one, and the report says so."""
    take = build / "tests/programs/admit_take"
    with guard.popen([take, "malloc", "60M", "wait"], env={"SPARKGUARD_HISTORY": "off", "SPARKGUARD_JOB": "one"}, stdin=subprocess.PIPE) as one:
        assert [one.stdout.readline() for _ in range(2)] == ["ok\n", "ready\n"]
        done = guard.run(["unshare", "--ipc", take, "malloc", "60M"], env={"SPARKGUARD_HISTORY": "off", "SPARKGUARD_JOB": "other"})
        assert done.stdout == "ok\n", done.stderr
        one.communicate("\n", timeout=60)
    said = subprocess.run([guard.build / "sparkguard-report", "--json", "--all", "--dir", guard.directory], capture_output=True, text=True).stdout
    jobs = {job["job"]: job for job in json.loads(said)["jobs"]}
    assert any("in another IPC namespace" in event["what"] for p in jobs["other"]["processes"] for event in p["events"])


@needs_root
def test_who_takes_all_shared_memory_of_the_machine_has_members_decide_alone_and_the_report_says_so(guard, build, shared):
    """Any user may: the kernel counts the segments of all together (kernel.shmmni). Here a namespace has one."""
    as_user = "setpriv --regid={0} --clear-groups --reuid={0}"
    take = f"setpriv --reuid={ALICE} --regid={ALICE} --groups={GROUP} {build}/tests/programs/admit_take malloc 60M"
    script = f"unset LD_PRELOAD; echo 1 >/proc/sys/kernel/shmmni; {as_user.format(BOB)} ipcmk -M 4096 >/dev/null; LD_PRELOAD=$0 exec {take}"
    done = guard.run(["unshare", "--ipc", "sh", "-c", script, build / "libsparkguard.so"], env={"SPARKGUARD_HISTORY": "off"})
    assert done.stdout == "ok\n", done.stderr
    said = subprocess.run([guard.build / "sparkguard-report", "--json", "--all", "--dir", guard.directory], capture_output=True, text=True).stdout
    (process,) = [p for job in json.loads(said)["jobs"] for p in job["processes"] if p["peak_bytes"] >= 60 * MIB]
    assert not process["sharing"] and any("not sharing: no room" in event["what"] for event in process["events"])
