"""/etc/sparkguard.conf: bounds of an administrator that a user's jobs cannot exceed."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from lib.machine import GIB, LEFT, MIB, meminfo, needs_root, take

SET, NOT_ALLOWED = 0, 3
USER = 4711
FILE = "etc/sparkguard.conf"


@pytest.fixture
def bounds(place):
    """bounds("limit=3G") are the bounds of this user on the machine of files."""

    def write(words, user=None):
        place.machine.write(FILE, f"{os.getuid() if user is None else user} {words}")

    return write


def change(place, *words, **options):
    env = place.guard.environment(place.env, preload=())
    command = [place.guard.build / "sparkguard", "--set", "job", *words]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, **options)


def job_of(place):
    command = [place.guard.build / "sparkguard-report", "--json"]
    env = place.guard.environment(place.env, preload=())
    (job,) = json.loads(subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout)["jobs"]
    return job


def assert_largest(tenant, below):
    """A little less than `below` is what it can still have."""
    (largest,) = tenant.go().ready()
    assert below - 8 * MIB < largest < below


# ---- the limit ----


@pytest.mark.parametrize("limit", [None, "5G", "0.9GB"])
def test_limit_is_at_most_the_bound(place, bounds, limit):
    bounds("limit=3G")
    expected = 900_000_000 if limit == "0.9GB" else 3 * GIB
    place.assert_left(expected, {"SPARKGUARD_LIMIT": limit} if limit else {})


@pytest.mark.parametrize("reserve", ["2G", "0", "5G"])
def test_percentage_is_of_the_machine_and_not_of_what_the_user_leaves_of_it(place, bounds, reserve):
    bounds("limit=10%")
    place.assert_left(16 * GIB // 10, {"SPARKGUARD_RESERVE": reserve})


def test_reserve_of_everything_does_not_take_the_bound_away(place, bounds):
    """With a floor of 0, small requests are still judged."""
    bounds("limit=1%")
    (small,) = place.take("small 64K 300M", {"SPARKGUARD_RESERVE": "100%", "SPARKGUARD_FLOOR": "0"})
    assert small < 16 * GIB // 100 + 64 * MIB


@needs_root
def test_file_that_the_user_may_not_read_is_told(place, of_user):
    user = of_user("limit=1G")
    (place.machine.root / FILE).chmod(0o600)
    tenant = place.holder("malloc 2M malloc 2G", **user)
    assert tenant.answers == ["ok", "ok"]
    _, stderr = tenant.process.communicate("\n", timeout=60)
    assert stderr == f"sparkguard: {place.machine.root / FILE}: cannot be read and has no effect\n"


def test_file_that_cannot_be_opened_now_is_read_later(place, bounds):
    bounds("limit=1G")
    text = """
import resource
free = os.dup(0)
resource.setrlimit(resource.RLIMIT_NOFILE, (free, free))
os.close(free)
held = []
try:
    while True:
        held.append(os.dup(0))
except OSError:
    pass
malloc(2 << 20)
for number in held:
    os.close(number)
malloc(2 * GIB)
"""
    assert place.player(text).end() == ["ok", "ENOMEM"]


def test_bound_holds_for_all_processes_of_the_job(place, bounds):
    bounds("limit=3G")
    place.holder("malloc 2G")
    assert place.take("malloc 1500M malloc 500M") == ["ENOMEM", "ok"]


def test_bound_of_another_user_is_no_bound(place, bounds):
    bounds("limit=3G", user=os.getuid() + 1)
    place.assert_left(LEFT)


def test_refusal_names_the_file(place, bounds):
    bounds("limit=3G")
    place.take("malloc 4G")
    assert "3.0 GiB this job may hold (/etc/sparkguard.conf)" in take.done.stderr


def test_python_is_told_to_ask_who_keeps_the_file(place, bounds):
    """Not for a limit of the user's own, which is smaller than the bound."""
    bounds("limit=3G")
    text = f"""
sys.path.insert(0, {str(Path(__file__).resolve().parents[3] / "tools/python")!r})
import sparkguard
malloc(4 * GIB)
print(sparkguard.explain(MemoryError()), file=sys.stderr)
"""
    for env, step in ({}, "a smaller request, or ask who keeps /etc/sparkguard.conf; "), ({"SPARKGUARD_LIMIT": "1G"}, "SPARKGUARD_LIMIT=4."):
        player = place.player(text, {"PATH": f"{place.guard.build}:/usr/bin:/bin", **env})
        _, stderr = player.process.communicate("\n", timeout=60)
        of_library, of_python = [line for line in stderr.splitlines() if line.startswith("try: ")]
        assert of_library.startswith(f"try: {step}") and of_python.startswith(f"try: {step}"), stderr


def test_refusal_for_the_reserve_names_the_file(place, bounds):
    bounds("reserve=6G")
    place.take("malloc 5G")
    assert "6.0 GiB kept in reserve (/etc/sparkguard.conf)" in take.done.stderr


def test_line_that_cannot_be_read_is_told_once(place, bounds):
    place.machine.write(FILE, "# bounds\n* limit=viel\n")
    place.take("malloc 2M fork malloc 2M")
    said = take.done.stderr
    assert said.count(f"{place.machine.root / FILE}:2: cannot be read and has no effect") == 1, said


@needs_root
@pytest.mark.parametrize("call", ["os.setreuid({user}, -1)", "os.setresuid({user}, -1, -1)"])
def test_bounds_are_those_of_the_user_that_the_process_has_become(place, bounds, call):
    """Its first decisions are root's, who has none. A child that it forks has them as well. It stays root to the machine of files."""
    bounds("limit=100M", user=41009)
    change = call.format(user=41009)
    text = f"malloc(300 * MIB)\n{change}\nmalloc(300 * MIB)\nif os.fork() == 0:\n    malloc(300 * MIB)\n    os._exit(0)\nos.wait()\nready()"
    assert place.player(text).ready() == ["ok", "ENOMEM", "ENOMEM"]


# ---- the reserve ----


@pytest.mark.parametrize(("reserve", "expected"), [("1G", 4), ("0", 4), ("7G", 3)])
def test_reserve_is_at_least_the_bound(place, bounds, reserve, expected):
    bounds("reserve=6G")
    place.assert_left(expected * GIB, {"SPARKGUARD_RESERVE": reserve})


@pytest.mark.parametrize(("reserve", "taken"), [("8G", 64 * MIB), ("4G", 300 * MIB)])
def test_small_requests_stop_at_a_quarter_of_the_bound(place, bounds, reserve, taken):
    bounds(f"reserve={reserve}")
    place.machine.write("proc/meminfo", meminfo(16 * GIB, 2 * GIB - 100 * MIB))
    (small,) = place.take("small 64K 300M", {"SPARKGUARD_RESERVE": "0", "SPARKGUARD_FLOOR": "0"})
    assert abs(small - taken) <= 2 * MIB


# ---- sparkguard --set ----


@pytest.fixture
def of_user(place, bounds, tmp_path):
    """The machine belongs to an unprivileged user with these bounds."""

    def give(words):
        bounds(words, user=USER)
        place.guard.directory.mkdir(mode=0o700)
        os.chown(place.guard.directory, USER, USER)
        for folder in (tmp_path, *tmp_path.parents):
            if folder.owner() == "root" and folder != folder.parent and str(folder).startswith("/tmp/"):
                folder.chmod(folder.stat().st_mode | 0o055)
        return {"user": USER, "group": USER, "extra_groups": []}

    return give


@needs_root
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["limit=4G"], "allows you a limit of at most 3.0 GiB"),
        (["limit=none"], "allows you a limit of at most 3.0 GiB"),
        (["reserve=3G"], "allows you a reserve of at least 4.0 GiB"),
        (["limit=1G", "reserve=1G"], "allows you a reserve of at least 4.0 GiB"),
    ],
)
def test_user_cannot_set_what_exceeds_the_bound(place, of_user, words, said):
    user = of_user("limit=3G reserve=4G")
    tenant = place.holder("malloc 1M wait largest", **user)
    done = change(place, *words, **user)
    assert (done.returncode, said in done.stderr) == (NOT_ALLOWED, True), done.stderr
    assert_largest(tenant, below=3 * GIB)


@needs_root
def test_user_can_set_what_the_bound_allows(place, of_user):
    user = of_user("limit=3G reserve=4G")
    tenant = place.holder("malloc 1M wait largest", **user)
    assert change(place, "limit=2G", "reserve=5G", **user).returncode == SET
    assert_largest(tenant, below=2 * GIB)


@needs_root
@pytest.mark.parametrize("writer", [USER, 0])
def test_words_that_a_user_writes_into_the_registry_do_not_exceed_the_bound(place, of_user, writer):
    user = of_user("limit=3G")
    tenant = place.holder("malloc 1M wait largest", **user)
    assert change(place, "limit=2G", **user).returncode == SET
    for entry in range(place.ledger.get("entry_used")):
        place.ledger.put("set_limit_bytes", 2**64 - 1, entry)
        place.ledger.put("set_reserve_bytes", 1, entry)
        place.ledger.put("set_user", writer + 1, entry)
    place.ledger.put("settings", place.ledger.get("settings") + 1)
    assert_largest(tenant, below=3 * GIB)


@needs_root
def test_root_is_told_of_the_bounds_of_the_jobs_owner(place, of_user):
    user = of_user("limit=3G reserve=4G")
    tenant = place.holder("malloc 1M wait largest", **user)
    done = change(place, "limit=20G")
    assert (done.returncode, f"allows {USER} a limit of at most 3.0 GiB" in done.stderr) == (NOT_ALLOWED, True), done.stderr
    assert_largest(tenant, below=3 * GIB)


@needs_root
def test_claim_above_the_bound_can_never_be_granted(place, of_user):
    of_user("limit=3G")
    command = [place.guard.build / "sparkguard", "--claim", "4G", "true"]
    env = place.guard.environment(place.env, preload=())
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, user=USER, group=USER, extra_groups=[])
    assert (done.returncode, "can never be claimed here, at most 3.0 GiB" in done.stderr) == (124, True), done.stderr


@needs_root
def test_only_the_user_raises_its_claim_and_within_the_bounds(place, of_user):
    user = of_user("limit=5G")
    launcher = [place.guard.build / "sparkguard", "--job=job", "--claim=2G"]
    place.holder("malloc 1G", prefix=launcher, preload=(), **user)
    done = change(place, "claim=4G")
    assert (done.returncode, "only the job's user can raise its claim" in done.stderr) == (NOT_ALLOWED, True), done.stderr
    done = change(place, "claim=4G", **user)
    assert done.returncode == 0, done.stderr
    (job,) = place.guard.report("--all")["jobs"]
    assert job["claimed_bytes"] == 4 * GIB
    assert {path.stat().st_uid for path in place.guard.directory.iterdir()} == {USER}
    done = change(place, "claim=6G", **user)
    assert (done.returncode, "allows you a limit of at most 5.0 GiB" in done.stderr) == (NOT_ALLOWED, True), done.stderr


# ---- the real file, and the report ----


@needs_root
def test_file_of_the_machine_holds_and_cannot_be_replaced(place, of_user, tmp_path):
    user = of_user("limit=9G")
    etc = tmp_path / "etc"
    shutil.copytree("/etc", etc, symlinks=True, ignore_dangling_symlinks=True)
    (etc / "sparkguard.conf").write_text("* limit=2G\n")
    script = 'mount --bind "$0" /etc && exec setpriv --reuid 4711 --regid 4711 --clear-groups "$@"'
    command = ["unshare", "-m", "sh", "-c", script, etc]
    tenant = place.tenant([*command, "env", f"LD_PRELOAD={place.guard.library}", place.admit_take, "largest", "wait"], preload=())
    (largest,) = tenant.ready()
    assert 2 * GIB - 8 * MIB < largest <= 2 * GIB
    assert user


def test_report_names_the_file(place, bounds):
    bounds("limit=3G")
    place.holder("malloc 2M")
    job = job_of(place)
    assert (job["bounded_by"], job["limit_bytes"]) == ("/etc/sparkguard.conf", 3 * GIB)
    command = [place.guard.build / "sparkguard-report"]
    env = place.guard.environment(place.env, preload=())
    text = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout
    assert "bounded by /etc/sparkguard.conf" in text


@pytest.mark.parametrize("limit", ["1G", "10%"])
def test_report_of_a_job_within_its_bounds_names_no_file(place, bounds, limit):
    bounds("limit=3G")
    place.holder("malloc 2M malloc 2M", env={"SPARKGUARD_LIMIT": limit})
    assert job_of(place)["bounded_by"] is None
