"""LIMIT is a job's, whoever asks for it: over all its processes, in namespaces of their own, of other users, in cgroups."""

import os
import subprocess
import sys

import pytest
from lib.ledger import SHARING
from lib.machine import CHILDREN, GIB, LEFT, MIB, NEAR, PLAYER, group, in_jail, meminfo, needs_root
from lib.target import CHARGED_AHEAD_BYTES, PYTHON


# ---- LIMIT ----

# How a parent that holds 50 MiB starts a child that waits with 50 more.
STARTS = {
    "fork": """
if os.fork() == 0:
    malloc(50 * MIB)
    ready()
    os._exit(0)
""",
    "fork_exec": "if os.fork() == 0:\n    os.execv(sys.argv[1], CHILD)",
    "posix_spawn": "os.posix_spawn(sys.argv[1], CHILD, os.environ)",
    "subprocess": "subprocess.Popen(CHILD)",  # by vfork
    "shell": "subprocess.Popen(['/bin/sh', '-c', ' '.join(CHILD) + '; exit $?'])",
    "raw_clone": """
if libc.syscall(56 if os.uname().machine == "x86_64" else 220, 17, 0, 0, 0, 0) == 0:
    malloc(50 * MIB)
    ready()
    os._exit(0)
""",
}


def peak_of(place, job="job"):
    (peak,) = [entry["peak_bytes"] for entry in place.guard.report()["jobs"] if entry["job"] == job]
    return peak


def test_peak_of_a_job_is_what_its_processes_held_together(place):
    first = place.holder("malloc 100M")
    place.holder("malloc 900M", {"SPARKGUARD_JOB": "other"})
    second = place.holder("malloc 200M free 0 mmap 250M free 1")
    assert first.end() == [] and second.end() == []
    assert place.take("malloc 120M") == ["ok"]
    assert 350 * MIB <= peak_of(place) <= 350 * MIB + 2 * NEAR


def test_peak_of_a_job_is_not_of_a_program_and_the_one_it_becomes(guard, build):
    """By exec: they never were there together."""
    script = 'import os; block = bytearray(100 << 20); os.execv(os.environ["HOLD"], ["dir_hold", "30"])'
    hold = build / "tests/programs/dir_hold"
    done = guard.run([PYTHON, "-S", "-c", script], env={"HOLD": hold, "SPARKGUARD_JOB": "job"})
    assert done.returncode == 0, done.stderr
    (job,) = guard.report()["jobs"]
    assert {process["state"] for process in job["processes"]} == {"replaced", "exited"}
    assert 100 * MIB <= job["peak_bytes"] <= 100 * MIB + 20 * MIB


def test_peak_of_a_job_is_of_what_came_in_small_pieces_too(place):
    first, second = place.holder("small 50000 60M"), place.holder("small 50000 80M")
    assert first.end() == [] and second.end() == []
    assert 140 * MIB <= peak_of(place) <= 140 * MIB + 2 * NEAR


def test_what_ran_one_after_the_other_was_not_held_together(place):
    for commands in ("malloc 100M", "malloc 80M", "small 50000 90M"):
        place.take(commands)
    assert 100 * MIB <= peak_of(place) <= 100 * MIB + NEAR


@pytest.mark.parametrize("processes", [2, 4, 8])
def test_peak_of_a_job_is_of_processes_that_grow_at_one_moment(place, processes):
    """As the program itself counts. Credit that each thread holds in advance may count, too."""
    command = [place.guard.build / "tests/programs/job_rounds", processes, 40, 256 // processes]
    done = place.guard.run(command, env={**place.env, "SPARKGUARD_RESERVE": "1G"})
    assert done.returncode == 0, done.stderr
    most = int(done.stdout)
    assert most <= peak_of(place) <= most + (processes + 1) * MIB + NEAR


@pytest.mark.parametrize("successor", ["begins then", "is there already"])
@pytest.mark.parametrize("attempt", range(3))
def test_peak_of_a_job_is_not_of_a_killed_process_and_its_successor(place, successor, attempt):
    text = f"""
import signal
def begin(is_first=False):
    come = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(come[0], 1)
        malloc(100 * MIB)
        say("ready")
        time.sleep(1000 if is_first else 0)  # holds: what it has taken, until it is killed
        os._exit(0)
    return child, come[1]
first = begin(True)
second = begin() if {successor == "is there already"} else None
os.write(first[1], b".")
os.read(0, 1)
os.kill(first[0], signal.SIGKILL)
os.waitpid(first[0], 0)
second = second or begin()
os.write(second[1], b".")
os.waitpid(second[0], 0)
"""
    tenant = place.player(text)
    assert tenant.ready() == ["ok"]
    assert tenant.end() == ["ok"]
    assert 100 * MIB <= peak_of(place) <= 100 * MIB + 3 * NEAR


def test_peak_of_a_job_is_not_lost_with_small_processes_that_leave_no_record(place):
    first = place.holder("malloc 60M")
    assert place.take("malloc 12M") == ["ok"]
    first.end()
    assert [p["pid"] for p in place.guard.processes()] == [first.pid]
    assert 72 * MIB <= peak_of(place) <= 72 * MIB + 2 * NEAR


@pytest.mark.parametrize("how", STARTS)
def test_limit_is_the_jobs_however_its_children_begin(place, how):
    text = f"""
CHILD = [sys.argv[1], "malloc", "50M", "wait"]
malloc(50 * MIB)
{STARTS[how]}
os.wait()
ready()
malloc(40 * MIB)
ready()
"""
    command = [sys.executable, "-S", "-c", PLAYER + text, place.admit_take]
    tenant = place.tenant(command, {"SPARKGUARD_LIMIT": "120M"})
    assert tenant.ready() == ["ok", "ok"]  # the child
    assert place.take("malloc 40M", {"SPARKGUARD_LIMIT": "120M"}) == ["ENOMEM"]
    assert place.take("malloc 10M", {"SPARKGUARD_LIMIT": "120M"}) == ["ok"]
    assert place.take("malloc 40M", {"SPARKGUARD_LIMIT": "120M", "SPARKGUARD_JOB": "other"}) == ["ok"]
    assert tenant.go().ready() == []  # the parent: its child has ended
    assert tenant.go().ready() == ["ok"]
    tenant.end()


def test_children_cannot_have_more_than_the_limit_together(place):
    """Four times 20 MiB fit also where all eight have begun, each with up to 1 MiB of credit; five times never."""
    text = """
for _ in range(8):
    if os.fork() == 0:
        malloc(20 * MIB)
        tell()
        os.read(0, 1)
        os._exit(0)
wait_for(8)
ready()
"""
    tenant = place.player(CHILDREN + text, {"SPARKGUARD_LIMIT": "96M"})
    assert sorted(tenant.ready()) == ["ENOMEM"] * 4 + ["ok"] * 4


def test_what_was_inherited_counts_once_and_what_came_on_top_counts(place):
    """A parent with 60 MiB and four children that take 10 each: 100, not 340."""
    text = """
malloc(60 * MIB)
for _ in range(4):
    if os.fork() == 0:
        malloc(10 * MIB)
        tell()
        os.read(0, 1)
        os._exit(0)
wait_for(4)
ready()
"""
    tenant = place.player(CHILDREN + text, {"SPARKGUARD_LIMIT": "120M"})
    assert tenant.ready() == ["ok"] * 5
    assert place.take("malloc 25M", {"SPARKGUARD_LIMIT": "120M"}) == ["ENOMEM"]
    assert place.take("malloc 8M", {"SPARKGUARD_LIMIT": "120M"}) == ["ok"]


@pytest.mark.parametrize("mine", ["1G", None])
def test_smallest_of_differing_limits_is_everybodys(place, mine):
    tenant = place.holder("malloc 60M", {"SPARKGUARD_LIMIT": "100M"})
    assert place.take("malloc 60M", {"SPARKGUARD_LIMIT": mine}) == ["ENOMEM"]
    assert place.take("malloc 30M", {"SPARKGUARD_LIMIT": mine}) == ["ok"]
    tenant.end()
    assert place.take("malloc 60M", {"SPARKGUARD_LIMIT": mine}) == ["ok"]


@pytest.mark.parametrize("mine", ["1G", None])
def test_small_requests_keep_to_the_smallest_limit_too(place, mine):
    """At most 32 MiB beyond it."""
    place.holder("malloc 60M", {"SPARKGUARD_LIMIT": "100M"})
    text = """
taken = 0
while taken < 1000 and libc.mmap(None, 1000 << 10, 3, 0x22, -1, 0) != ctypes.c_void_p(-1).value:
    taken += 1
say(taken)
"""
    (taken,) = place.player(text, {"SPARKGUARD_LIMIT": mine}).end()
    assert 30 <= taken <= 78


# ---- namespaces and users ----


@needs_root
def test_process_in_a_pid_namespace_of_its_own_takes_part(place):
    prefix = ["unshare", "--pid", "--fork", "--kill-child"]
    if subprocess.run([*prefix, "true"], capture_output=True).returncode != 0:
        pytest.skip("no PID namespaces here")
    place.holder("malloc 1G")
    inside = place.holder("malloc 3G largest", prefix=prefix)
    assert inside.answers[0] == "ok" and LEFT - 4 * GIB - NEAR <= inside.answers[1] <= LEFT - 4 * GIB
    place.assert_left(LEFT - 4 * GIB)
    inside.kill()
    place.assert_left(LEFT - GIB)


@needs_root
@pytest.mark.parametrize("owner", ["root", "user"])
def test_users_with_a_group_shared_directory_take_part(place, tmp_path, owner):
    place.guard.directory.mkdir()
    os.chown(place.guard.directory, 0 if owner == "root" else 4712, 4711)
    place.guard.directory.chmod(0o2770)
    for parent in [tmp_path, *tmp_path.parents][:3]:
        parent.chmod(0o755)
    ids = {"user": 4712, "group": 4713, "extra_groups": [4711]}
    other = place.holder("malloc 3G", **ids)
    assert place.flags(other.pid) & SHARING
    info = place.ledger.path.stat()
    assert (info.st_uid, info.st_gid, info.st_mode & 0o7777) == (4712, 4711, 0o660)
    if owner == "root":
        third = place.holder("malloc 1G largest", user=4714, group=4713, extra_groups=[4711])
        assert third.answers[1] <= LEFT - 4 * GIB and place.flags(third.pid) & SHARING
        mine = place.holder("malloc 64M largest")
        assert mine.answers[1] <= LEFT - 4 * GIB and place.flags(mine.pid) & SHARING
        third.kill()
    other.kill()
    assert place.ledger.gone() <= 64 * MIB + NEAR


# ---- cgroups ----


WHEN_LIMITS_ARE_READ = "time.sleep(1.05)"  # pace: sg_cgroup_find of preload/core/admit/cgroup.c looks anew after 1 s


@pytest.mark.parametrize("blind", ["descriptors", "chroot"])
def test_a_cgroup_binds_also_who_cannot_read_it_any_more(place, tmp_path, blind):
    """It sees no /proc of a fake machine either: sysinfo(2) tells what this one has free, of which it asks for little."""
    place.machine.write("proc/self/cgroup", "0::/job").v2("/job", 512 * MIB)
    (tmp_path / "empty").mkdir()
    lose = {
        "descriptors": "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))",
        "chroot": f"os.chroot({str(tmp_path / 'empty')!r})",
    }
    if blind == "chroot" and os.geteuid() != 0:
        pytest.skip("needs root")
    text = f"malloc(50 * MIB)\n{lose[blind]}\n{WHEN_LIMITS_ARE_READ}\nmalloc(256 * MIB)\nmalloc(256 * MIB)\nready()"
    tenant = place.player(text, {"SPARKGUARD_RESERVE": "64M"})
    assert tenant.ready() == ["ok", "ok", "ENOMEM"]
    assert "in a cgroup of 512.0 MiB" in tenant.process.communicate("\n")[1]


@pytest.mark.parametrize("when", ["before", "after"])
def test_page_cache_is_room_for_who_has_no_free_descriptor(place, when):
    """Of the machine of files 1 GiB is free and 9 GiB are clean page cache; sysinfo(2) would tell neither."""
    lose = "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))"
    first = "malloc(50 * MIB)" if when == "after" else ""
    place.machine.write("proc/meminfo", meminfo(64 * GIB, 10 * GIB).replace(f"{10 * GIB >> 10:15d}", f"{GIB >> 10:15d}", 1))
    tenant = place.player(f"{first}\n{lose}\nmalloc(7 * GIB)\nmalloc(2 * GIB)\nready()", {"SPARKGUARD_RESERVE": "2G"})
    assert tenant.ready() == ["ok"] * (when == "after") + ["ok", "ENOMEM"]


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_promises_count_against_the_cgroups_they_are_made_in(place, tmp_path, version):
    add = getattr(place.machine, version)
    line = "4:memory:{}\n" if version == "v1" else "0::{}\n"
    for path, limit in (("/a", 4), ("/b", 3), ("/top", 5), ("/top/x", 4), ("/top/y", 4)):
        add(path, limit * GIB)
    a, b, x, y, out = (
        group(place, tmp_path, name, line.format(path))
        for name, path in (("a", "/a"), ("b", "/b"), ("x", "/top/x"), ("y", "/top/y"), ("out", "/"))
    )
    outside = place.holder("malloc 1G", out)
    place.assert_left(4 * GIB, a)  # outside: the machine's only, which has 9 GiB
    inside = place.holder("malloc 2G", a)
    place.assert_left(2 * GIB, a)
    place.assert_left(3 * GIB, b)
    place.assert_left(7 * GIB, out)
    nested = place.holder("malloc 3G", x)
    place.assert_left(1 * GIB, x)
    place.assert_left(2 * GIB, y)  # of what is above both
    place.assert_left(3 * GIB, b)
    place.assert_left(4 * GIB, out)
    for tenant in (outside, inside, nested):
        tenant.kill()
    place.assert_left(4 * GIB, y)


def test_reader_sees_the_same_levels_in_processes_of_one_group(place, tmp_path):
    place.machine.v2("/top", 5 * GIB).v2("/top/x", 4 * GIB).v2("/top/y", 4 * GIB)
    seen = [group(place, tmp_path, name, f"0::/top/{name}\n") for name in "xy"]
    entries = [place.ledger.of(place.holder("malloc 2M", env).pid) for env in seen]
    levels = [[place.ledger.level(entry, i) for i in range(8)] for entry in entries]
    assert levels[0][0] != levels[1][0] and levels[0][1] == levels[1][1] != 0
    assert [row[2:] for row in levels] == [[0] * 6] * 2


def test_promises_in_a_real_cgroup(guard, jail):
    environment = guard.environment()
    library = environment.pop("LD_PRELOAD")
    program = guard.build / "tests/programs/admit_take"
    script = f'echo $$ > {jail}/cgroup.procs && LD_PRELOAD={library} exec "$@"'
    command = ["/bin/sh", "-c", script, "sh", program, "malloc", "200M", "wait"]
    with subprocess.Popen(
        [str(c) for c in command], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as inside:
        try:
            assert [inside.stdout.readline() for _ in range(2)] == ["ok\n", "ready\n"]
            left, small_change = 512 * MIB - 512 * MIB * 8 // 100 - 200 * MIB, 8 * MIB + CHARGED_AHEAD_BYTES
            outside = guard.popen([program, "malloc", "100M", "wait"], stdin=subprocess.PIPE)
            assert outside.stdout.readline() == "ok\n"
            largest = int(in_jail(guard, jail, "largest").stdout)
            assert left - small_change <= largest <= left
        finally:
            for process in (outside, inside):
                process.communicate("\n")
        largest = int(in_jail(guard, jail, "largest").stdout)
        assert left + 200 * MIB - small_change <= largest <= left + 200 * MIB
