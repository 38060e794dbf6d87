"""sparkguard --set: the limit, the reserve and the claim of a job that runs."""

import os
import pwd
import subprocess
import sys
import threading
import time

import pytest
from lib.ledger import DEAD, LIVE, ROOM
from lib.machine import GIB, LEFT, MIB, NEAR, PLAYER, group, needs_root, slept
from lib.waiting import wait_until

SET, NO_JOB, USAGE, NOT_ALLOWED = 0, 1, 2, 3


@pytest.fixture
def change(place):
    """change("limit=3G") sets it for the job "job" and returns what the tool did."""

    def run(*words, job="job", status=SET, **options):
        command = [place.guard.build / "sparkguard", "--set", job, *words]
        env = place.guard.environment(place.env, preload=())
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, **options)
        assert done.returncode == status, done.stderr
        return done

    return run


# ---- the limit ----


def test_lowered_limit_refuses_growth_only(place, change):
    tenant = place.holder("malloc 3G wait malloc 100M free 0 malloc 500M")
    change("limit=1G", "--force")
    assert tenant.go().ready() == ["ENOMEM", "ok", "ok"]


def test_refusal_names_who_set_the_limit(place, change):
    tenant = place.holder("malloc 1M wait malloc 3G")
    change("limit=2G")
    assert tenant.go().ready() == ["ENOMEM"]
    _, stderr = tenant.process.communicate("\n", timeout=60)
    assert "2.0 GiB this job may hold (sparkguard --set)" in stderr


def test_raised_limit_counts_at_the_next_request(place, change):
    tenant = place.holder("malloc 3G wait malloc 3G", env={"SPARKGUARD_LIMIT": "2G"})
    assert tenant.answers == ["ENOMEM"]
    change("limit=4G")
    assert tenant.go().ready() == ["ok"]


def test_limit_can_be_taken_away(place, change):
    tenant = place.holder("malloc 3G wait malloc 3G", env={"SPARKGUARD_LIMIT": "2G"})
    change("limit=none")
    assert tenant.go().ready() == ["ok"]


def test_waiting_request_is_judged_again_at_once(place, change):
    tenant = place.holder("wait malloc 3G", {"SPARKGUARD_LIMIT": "2G", "SPARKGUARD_WAIT": "600"})
    slept_begun = slept(tenant.pid)
    tenant.go()
    wait_until(lambda: slept(tenant.pid) > slept_begun + 6)  # it waits by now, with steps of 50 ms
    change("limit=4G")
    assert tenant.ready() == ["ok"]


def test_limit_is_that_of_all_processes(place, change):
    first, second = place.holder("malloc 1G wait malloc 1G"), place.holder("malloc 1G wait malloc 1G")
    change("limit=3200M")
    assert first.go().ready() == ["ok"]
    assert second.go().ready() == ["ENOMEM"]


def test_idle_process_does_not_hold_a_raised_limit_down(place, change):
    place.holder("malloc 100M", env={"SPARKGUARD_LIMIT": "1G"})
    busy = place.holder("wait malloc 2G", env={"SPARKGUARD_LIMIT": "1G"})
    change("limit=4G")
    assert busy.go().ready() == ["ok"]


@pytest.mark.parametrize("beginning", ["wait fork", "wait"])
def test_later_processes_of_the_job_have_it_too(place, change, beginning):
    first = place.holder(f"malloc 100M {beginning} malloc 3G" if "fork" in beginning else "malloc 100M")
    change("limit=2G")
    if "fork" in beginning:
        assert first.go().ready() == ["ENOMEM"]
    else:
        assert place.take("malloc 3G malloc 1G") == ["ENOMEM", "ok"]


def test_processes_that_start_meanwhile_have_it_too(place, change):
    """Six start while a limit is set, eight times: each is held to the last one. tests/model/control.pml has all interleavings."""
    place.holder("malloc 1M")
    for i in range(8):
        size = 1 + i % 2
        starting = [place.tenant([place.admit_take, "malloc", "1M", "wait", "malloc", "2500M", "malloc", "1500M", "wait"]) for _ in range(6)]
        change(f"limit={size}G")
        assert [tenant.ready() for tenant in starting] == [["ok"]] * 6
        for tenant in starting:
            assert tenant.go().ready() == ["ENOMEM", "ENOMEM" if size == 1 else "ok"]
            tenant.kill()


def test_it_survives_an_exec(place, change):
    code = f"""
keep = malloc(100 * MIB)
ready()
os.execv({str(place.admit_take)!r}, ["admit_take", "malloc", "3G", "wait"])
"""
    tenant = place.player(code)
    tenant.ready()
    change("limit=2G")
    assert tenant.go().ready() == ["ENOMEM"]


def test_next_run_of_the_job_does_not_have_it(place, change):
    tenant = place.holder("malloc 100M")
    change("limit=2G")
    entry = of_the_job(place)
    tenant.kill()
    assert place.take("malloc 3G") == ["ok"]
    assert place.ledger.get("claim", entry) & 3 != LIVE


def test_whoever_looks_for_dead_owners_ends_it(place, change):
    """Somebody of another job is refused, and marks what is dead first."""
    tenant = place.holder("malloc 100M")
    change("limit=2G")
    entry = of_the_job(place)
    tenant.kill()
    assert place.take("malloc 9G", {"SPARKGUARD_JOB": "another"}) == ["ENOMEM"]
    assert place.ledger.get("claim", entry) & 3 == DEAD


@pytest.mark.parametrize("prefix", [[], ["sparkguard", "--quiet", "--job=job"]])
def test_it_lives_from_one_program_of_a_script_to_the_next(place, change, prefix):
    """The shell takes no memory, so that the job has no process in the registry between the two."""
    words = [place.guard.build / prefix[0], *prefix[1:]] if prefix else []
    script = f"{place.admit_take} malloc 100M wait; {place.admit_take} malloc 3G malloc 1G wait; true"
    tenant = place.tenant([*words, "sh", "-c", script])
    tenant.ready()
    change("limit=2G")
    entry = of_the_job(place)
    assert tenant.go().ready() == ["ENOMEM", "ok"]
    assert of_the_job(place) == entry
    tenant.go().process.wait()
    assert place.take("malloc 3G") == ["ok"]


def test_it_lives_on_with_the_children_of_the_first_process(place, change):
    """The first process and the launcher end; a child goes on, and becomes another program."""
    code = f"""
if os.fork() == 0:
    keep = malloc(100 * MIB)
    ready()
    ready()
    os.execv({str(place.admit_take)!r}, ["admit_take", "malloc", "3G", "malloc", "1G", "wait"])
os.read(9, 1)
"""
    read, write = os.pipe()
    tenant = place.player(code, pass_fds=[read], preexec_fn=lambda: os.dup2(read, 9), close_fds=False)
    tenant.ready()
    change("limit=2G")
    os.write(write, b".")
    tenant.process.wait()
    tenant.go().ready()
    assert place.take("malloc 9G", {"SPARKGUARD_JOB": "another"}) == ["ENOMEM"]  # looks for dead owners
    assert tenant.go().ready() == ["ENOMEM", "ok"]


def test_all_who_set_at_once_succeed(place, change):
    """What is in force in the end is what one of them has set."""
    tenant = place.holder("malloc 100M wait largest")
    env = place.guard.environment(place.env, preload=())
    command = [place.guard.build / "sparkguard", "--set", "job"]
    tools = [subprocess.Popen([*command, f"limit={3 + i}G"], env=env, stdout=subprocess.PIPE) for i in range(4)]
    assert [tool.wait(60) for tool in tools] == [SET] * 4
    assert place.ledger.get("set_limit_bytes", of_the_job(place)) >> 30 in range(3, 7)
    tenant.go().ready()


def test_stopped_setter_is_told_of(place, change):
    place.holder("malloc 100M")
    with place.ledger.locked(ROOM):
        assert "another sparkguard --set is at work; nothing is changed" in change("limit=2G", status=NOT_ALLOWED).stderr
    change("limit=2G")


# ---- what is said ----


def test_what_has_changed_is_said(place, change):
    place.holder("malloc 1G", {"SPARKGUARD_LIMIT": "4G"})
    said = change("limit=3G", "reserve=3G").stdout.replace("→", "->")
    assert said.startswith("job job: limit 4.0 GiB -> 3.0 GiB, reserve 2.0 GiB -> 3.0 GiB; it holds 1.0 GiB")
    assert change("limit=none").stdout.replace("→", "->").startswith("job job: limit 3.0 GiB -> none; it holds 1.0 GiB")


def test_a_reserve_without_its_unit_is_asked_about(place, change):
    place.holder("malloc 1G")
    done = change("reserve=64")
    assert done.stderr == "sparkguard: reserve=64 is 64 bytes; did you mean 64G?\n" and "-> 64 B" in done.stdout.replace("→", "->")
    assert change("reserve=1G").stderr == ""


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("limit=64", "limit=64 is 64 B; did you mean 64G? nothing is changed (--force sets it)"),
        ("limit=15M", "a limit of 15.0 MiB is less than any program needs (16 MiB); nothing is changed (--force sets it)"),
        ("limit=500M", "job job holds 1.0 GiB, more than 500.0 MiB: its next requests would be refused; nothing is changed"),
    ],
)
def test_limit_that_the_job_cannot_live_with_takes_an_extra_word(place, change, word, why):
    tenant = place.holder("malloc 1G wait malloc 100M wait malloc 100M")
    assert why in change(word, status=NOT_ALLOWED).stderr
    assert tenant.go().ready() == ["ok"]
    change("--force", word)
    assert tenant.go().ready() == ["ENOMEM"]


def of_the_job(place):
    """The entry with what is set."""
    (number,) = [i for i in range(place.ledger.get("entry_used")) if place.ledger.get("set_user", i) and place.ledger.get("claim", i) & 3 == LIVE]
    return number


def test_no_torn_value_is_used(place, change):
    """Changes between 1 and 7 GiB all the time: what fits both is always granted, and what fits neither never."""
    is_over = threading.Event()
    flips = 0

    def flip():
        nonlocal flips
        while not is_over.is_set():
            place.ledger.put("set_limit_bytes", GIB if flips % 2 else 7 * GIB + 5, number)
            place.ledger.put("settings", place.ledger.get("settings") + 1)
            flips += 1
            time.sleep(0.0001)  # pace: of the changes

    flipping = threading.Thread(target=flip)
    code = """
keep = malloc(100 * MIB)
ready()
libc.free.argtypes = [ctypes.c_void_p]
import select
wrong = count = 0
while count < 400 or not select.select([0], [], [], 0)[0]:
    fits, beyond = libc.malloc(512 * MIB), libc.malloc(7500 * MIB)
    wrong += not fits or bool(beyond)
    count += 1
    libc.free(fits), libc.free(beyond)
os.read(0, 1)
say(wrong)
ready()
"""
    player = place.player(code)
    player.ready()
    change("limit=7G")
    number = of_the_job(place)
    flipping.start()
    wait_until(lambda: flips > 0)  # before that nothing bounds a request
    player.go()
    wait_until(lambda: flips >= 1000)
    said = player.go().ready()
    is_over.set()
    flipping.join()
    assert said == [0]


# ---- the reserve, the claim ----


def test_reserve_counts_at_the_next_request(place, change):
    tenant = place.holder("malloc 1M wait malloc 7G malloc 5G")
    change("reserve=4G")
    assert tenant.go().ready() == ["ENOMEM", "ok"]


def test_reserve_is_the_jobs_own(place, change):
    place.holder("malloc 100M")
    change("reserve=4G")
    place.assert_left(LEFT - 2 * GIB - 100 * MIB)
    place.assert_left(LEFT - 100 * MIB, env={"SPARKGUARD_JOB": "another"})


@pytest.fixture
def claimer(place):
    """The job "claimer" with a claim of 4 GiB, of which its program holds what it is told to."""
    place.env["SPARKGUARD_JOB"] = "other"

    def start(steps="malloc 1G"):
        return place.holder(steps, prefix=[place.guard.build / "sparkguard", "--job=claimer", "--claim=4G"], preload=())

    return start


def test_claim_can_be_lowered(place, change, claimer):
    claimer()
    change("claim=2G", job="claimer")
    place.assert_left(LEFT - 2 * GIB)


def test_claim_can_be_raised_to_what_is_left(place, change, claimer):
    claimer()
    change("claim=6G", job="claimer")
    place.assert_left(LEFT - 6 * GIB)
    most = (LEFT >> 30) + 1
    done = change(f"claim={most}G", job="claimer", status=NOT_ALLOWED)
    assert f"the claim cannot be raised to {most}.0 GiB now: " in done.stderr and "more can be claimed; nothing is changed" in done.stderr
    place.assert_left(LEFT - 6 * GIB)


def raise_at_once(place, sizes):
    """Runs one sparkguard --set for each size, all at once. Returns their exit codes and what they said."""
    env = place.guard.environment(place.env, preload=())
    command = [place.guard.build / "sparkguard", "--set", "claimer"]
    tools = [subprocess.Popen([*command, f"claim={size}M"], env=env, stderr=subprocess.PIPE, text=True) for size in sizes]
    said = [tool.communicate(timeout=60)[1] for tool in tools]
    return [tool.returncode for tool in tools], said


def claimed(place):
    (job,) = [job for job in place.guard.report("--all")["jobs"] if job["job"] == "claimer"]
    return job["claimed_bytes"]


def test_all_who_change_the_claim_at_once_succeed(place, claimer):
    claimer()
    sizes = [4200 + 100 * i for i in range(8)]
    for round_sizes in (sizes, sizes[::-1], [4100, *sizes]):
        codes, said = raise_at_once(place, round_sizes)
        assert codes == [SET] * len(round_sizes), said
        assert claimed(place) >> 20 in round_sizes
    place.assert_left(LEFT - claimed(place))


def test_raise_while_the_job_takes_and_frees(place, change, claimer):
    """The job holds more than its claim now and then: the raised claim counts whole as soon as it holds less."""
    job = """
import select
libc.free.argtypes = [ctypes.c_void_p]
say("ready")
while not select.select([0], [], [], 0)[0]:
    block = libc.malloc(5 * GIB)
    assert block
    libc.free(block)
os.read(0, 1)
ready()
"""
    command = [place.guard.build / "sparkguard", "--job=claimer", "--claim=4G", sys.executable, "-S", "-c", PLAYER + job]
    tenant = place.tenant(command, preload=())
    tenant.ready()
    raised = lambda: raise_at_once(place, [6 * 1024])[0] == [SET]  # noqa: E731 - not while a request waits in it for a processor
    for _ in range(10):
        wait_until(raised)
        change("claim=4G", job="claimer")
    wait_until(raised)
    tenant.go().ready()
    place.assert_left(LEFT - 6 * GIB, above=8 * MIB)  # the interpreter's own memory, which this machine does not show as used


def test_settings_of_who_calls_the_tool_do_not_judge_the_raise(place, claimer):
    claimer()
    env = place.guard.environment(place.env | {"SPARKGUARD_LIMIT": "1G", "SPARKGUARD_MODE": "observe"}, preload=())
    command = [place.guard.build / "sparkguard", "--set", "claimer", "claim=6G"]
    subprocess.run(command, env=env, check=True, timeout=60)
    assert claimed(place) == 6 * GIB


def test_claim_of_another_cgroup_cannot_be_raised_from_here(place, tmp_path, claimer):
    """The claim counts in a cgroup that the tool cannot judge by."""
    place.machine.v2("/box", maximum=8 * GIB)
    there = group(place, tmp_path, "box", "0::/box\n")
    tenant = place.holder(
        "malloc 1G", prefix=[place.guard.build / "sparkguard", "--job=claimer", "--claim=4G"], preload=(), env=there
    )
    codes, said = raise_at_once(place, [6144])
    assert codes == [NOT_ALLOWED] and "the job claims in a cgroup that this process is not in" in said[0]
    assert tenant.process.poll() is None and claimed(place) == 4 * GIB


@pytest.mark.parametrize("word", ["claim=none", "claim=0"])
def test_claim_can_be_given_up(place, change, claimer, word):
    claimer()
    change(word, job="claimer")
    assert claimed(place) == 0
    place.assert_left(LEFT - GIB)
    assert "the job has no claim" in change("claim=4G", job="claimer", status=NOT_ALLOWED).stderr


def test_claim_is_not_raised_beyond_the_jobs_limit(place, change, claimer):
    claimer()
    change("limit=5G", job="claimer")
    done = change("claim=6G", job="claimer", status=NOT_ALLOWED)
    assert "6.0 GiB can never be claimed here, at most 5.0 GiB" in done.stderr


def test_claim_that_this_machine_can_never_grant(place, change, claimer):
    claimer()
    done = change("claim=4T", job="claimer", status=NOT_ALLOWED)
    assert "4.0 TiB can never be claimed here, at most " in done.stderr
    place.assert_left(LEFT - 4 * GIB)


def test_what_the_job_holds_beyond_its_claim_is_not_claimed_twice(place, change, claimer):
    """Raising the claim to what the job holds takes nothing from others."""
    claimer(f"malloc {(LEFT - GIB) >> 20}M")
    change(f"claim={(LEFT - GIB) >> 20}M", job="claimer")
    change(f"claim={(LEFT - GIB // 2) >> 20}M", job="claimer")
    place.assert_left(GIB // 2)


def test_job_without_a_claim(place, change):
    place.holder("malloc 100M")
    assert "the job has no claim; nothing is changed" in change("claim=1G", status=NOT_ALLOWED).stderr


def test_raiser_leaves_no_record(place, change, claimer):
    claimer()
    change("claim=6G", job="claimer")
    (job,) = [job for job in place.guard.report("--all")["jobs"] if job["job"] == "claimer"]
    assert len(job["processes"]) == 1 and job["claimed_bytes"] == 6 * GIB


# ---- who, what, and what is seen ----


def limit_of(place, tenant):
    (job,) = [job for job in place.guard.report()["jobs"] if any(process["pid"] == tenant.pid for process in job["processes"])]
    return job["limit_bytes"]


def test_report_shows_what_is_in_force_and_who_set_it(place, change):
    tenant = place.holder("malloc 100M wait malloc 1G")
    change("limit=2G", "reserve=3G")
    wait_until(lambda: limit_of(place, tenant) == 2 * GIB)
    (job,) = [job for job in place.guard.report()["jobs"] if job["job"] == "job"]
    assert (job["set_limit_bytes"], job["set_reserve_bytes"]) == (2 * GIB, 3 * GIB)
    assert job["set_by"] == pwd.getpwuid(os.getuid()).pw_name
    text = place.guard.report_command("--all").stdout
    assert f"set by {job['set_by']}: limit 2.0 GiB, reserve 3.0 GiB" in text
    tenant.go().ready()
    assert f"limit set to 2.0 GiB by user {os.getuid()} (sparkguard --set)" in place.events(tenant.pid)
    assert f"reserve set to 3.0 GiB by user {os.getuid()} (sparkguard --set)" in place.events(tenant.pid)


def test_no_such_job(place, change):
    assert "no process of job nosuch runs" in change("limit=2G", job="nosuch", status=NO_JOB).stderr
    place.holder("malloc 1M")
    change("limit=2G", job="nosuch", status=NO_JOB)


@pytest.mark.parametrize("word", ["limit", "limit=", "limit=much", "floor=1G", "=1G"])
def test_bad_words_change_nothing(place, change, word):
    tenant = place.holder("malloc 1M wait malloc 3G")
    assert "nothing is changed" in change("limit=1G", word, status=USAGE).stderr
    assert tenant.go().ready() == ["ok"]


@needs_root
def test_other_users_may_not(place, change):
    place.holder("malloc 1M")
    change("limit=2G", status=NOT_ALLOWED, user=65534)
    assert place.take("malloc 3G") == ["ok"]


def test_small_overhead_of_the_job_is_no_matter(place, change):
    tenant = place.holder("malloc 1G wait largest")
    change("limit=2G")
    (largest,) = tenant.go().ready()
    assert GIB - NEAR <= largest <= GIB
