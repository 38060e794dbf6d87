"""sparkguard --claim: memory set aside for a job before it starts, the queue, and what the others get meanwhile."""

import contextlib
import fcntl
import json
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import termios
import time

import pytest
from lib import pty
from lib.ledger import hash_of
from lib.machine import GIB, LEFT, MIB, needs_root, set_available
from lib.waiting import wait_until

CLAIM_FLAG = 1 << 7  # SG_SLOT_JOB
NO_CLAIM = 124


@pytest.fixture
def claims(place):
    return Claims(place)


def end_all(group):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


class Claims:
    """Runs the launcher with --claim on the machine of a place. All other programs there are of the job "other"."""

    def __init__(self, place):
        self.place = place
        place.env["SPARKGUARD_JOB"] = "other"

    def command(self, size, *options, job):
        claim = [f"--claim={size}"] if size else []
        return [self.place.guard.build / "sparkguard", f"--job={job}", *claim, *options]

    def holder(self, size, commands="", *options, job="claimer"):
        """A program that has claimed, has done what it was told, and waits."""
        return self.place.holder(commands, prefix=self.command(size, *options, job=job), preload=())

    def start(self, size, *options, job="waiter", program=("true",)):
        command = [*self.command(size, *options, job=job), *program]
        process = self.place.guard.popen(command, self.place.env, preload=(), start_new_session=True)
        self.place.stack.callback(process.communicate)
        self.place.stack.callback(end_all, process.pid)
        return process

    def run(self, *arguments, **options):
        process = self.start(*arguments, **options)
        out, err = process.communicate(timeout=60)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def jobs(self):
        command = [self.place.guard.build / "sparkguard-report", "--json", "--all"]
        done = subprocess.run(command, env=self.place.guard.environment(self.place.env, preload=()), capture_output=True)
        return {job["job"]: job for job in json.loads(done.stdout)["jobs"]}

    def queue(self):
        """The places of the waiting claims by job."""
        return {name: job["queue_position"] for name, job in self.jobs().items() if job["queue_position"]}

    def wait_in_queue(self, job, position):
        wait_until(lambda: self.queue().get(job) == position)


# ---- what others get ----


@pytest.mark.parametrize(
    "steps",
    ["", "malloc 3G", "malloc 3G free 0", "malloc 1G fork malloc 2G"],
    ids=["untouched", "own requests draw on it", "freed memory returns to it", "children draw on it"],
)
def test_claim_is_taken_off_what_others_get(place, claims, steps):
    claims.holder("4G", steps)
    place.assert_left(LEFT - 4 * GIB)


def test_what_exceeds_the_claim_is_judged_as_ever(place, claims):
    tenant = claims.holder("4G", "malloc 3G malloc 3G malloc 3G")
    assert tenant.answers == ["ok", "ok", "ENOMEM"]
    place.assert_left(LEFT - 6 * GIB)


def test_claimed_memory_can_be_had_though_others_ask(place, claims):
    tenant = claims.holder("4G", "wait malloc 3900M")
    assert place.take("malloc 5G malloc 3G malloc 2G") == ["ENOMEM", "ok", "ENOMEM"]
    assert tenant.go().ready() == ["ok"]


def test_two_claims_of_one_job_add_up(place, claims):
    claims.holder("2G", "malloc 1G", job="twice")
    claims.holder("3G", job="twice")
    place.assert_left(LEFT - 5 * GIB)


def test_claims_never_exceed_the_headroom(place, claims):
    claims.holder("5G", job="first")
    place.holder("malloc 2G")
    done = claims.run("2G")
    assert done.returncode == NO_CLAIM and "now; nothing was started" in done.stderr
    assert claims.run("900M").returncode == 0


def test_refusal_names_what_others_have_claimed(place, claims):
    claims.holder("4G", "malloc 1G")
    done = place.guard.run([place.admit_take, "malloc", "6G"], env=place.env)
    assert ", 3.0 GiB claimed by other jobs" in done.stderr


def test_claims_refuse_no_small_requests(place, claims):
    """A claim takes no memory yet: only what is really short of memory meets the floor."""
    tenant = place.holder("wait small 64K 96M")
    claims.holder("7G")
    set_available(place, 3 * GIB)
    assert tenant.go().ready() == [96 * MIB]


# ---- the end of a claim ----


def test_claim_ends_with_its_job(place, claims):
    claims.holder("4G").end()
    place.assert_left(LEFT)


def test_claim_ends_with_a_killed_job(place, claims):
    tenant = claims.holder("4G", "malloc 1G")
    tenant.kill()
    place.assert_left(LEFT)


def test_claim_ends_with_a_killed_launcher(place, claims):
    tenant = claims.holder("4G", "malloc 1G")
    os.kill(tenant.pid, signal.SIGKILL)
    tenant.process.wait()
    place.assert_left(LEFT - GIB)
    end_all(tenant.pid)


def test_claimant_ends_with_its_launcher(place, claims):
    claims.holder("6G", job="first")
    waiter = claims.start("7G", "--claim-wait=60")
    claims.wait_in_queue("waiter", 1)
    waiter.kill()
    wait_until(lambda: claims.queue() == {})


def storm(claims, count):
    """Starts claimants with a claim that waits or not, and kills each at some moment."""
    rng, live = random.Random(7), []
    for i in range(count):
        process = claims.start(f"{rng.randint(1, 6)}G", "--quiet", "--claim-wait=60", job=f"storm-{i % 40}", program=("sleep", "60"))
        live.append((process, time.monotonic() + rng.random() / 4))
        while len(live) > 8 or (i == count - 1 and live):
            process, end = live.pop(0)
            time.sleep(max(0, end - time.monotonic()))  # pace: to any instant of its life
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def test_killed_claimants_leave_nothing(place, claims):
    place.holder("malloc 1G")
    storm(claims, 60)
    place.assert_left(LEFT - GIB)
    assert claims.queue() == {}


@pytest.mark.long
@pytest.mark.timeout_seconds(600)
def test_a_thousand_killed_claimants_leave_nothing(place, claims):
    place.holder("malloc 1G")
    storm(claims, 1000)
    place.assert_left(LEFT - GIB)
    assert claims.queue() == {}


def test_unused_claim_is_given_up(place, claims):
    tenant = claims.holder("4G", "malloc 100M", "--claim-ttl=0.3")
    wait_until(lambda: claims.jobs()["claimer"]["claim_state"] == "none")
    place.assert_left(LEFT - 100 * MIB)
    tenant.end()


def test_used_claim_is_not_given_up(place, claims):
    claims.holder("4G", "malloc 300M", "--claim-ttl=0.3", job="used")
    for job in ("unused", "unused, too"):  # twice the time within which it must be used
        claims.holder("1G", "malloc 1M", "--claim-ttl=0.3", job=job)
        wait_until(lambda job=job: claims.jobs()[job]["claim_state"] == "none")
    assert claims.jobs()["used"]["claim_state"] == "held"
    place.assert_left(LEFT - 4 * GIB)


# ---- the queue ----


def test_without_a_wait_the_answer_comes_at_once(place, claims):
    claims.holder("6G", job="first")
    done = claims.run("4G", program=("touch", place.machine.root / "started"))
    assert done.returncode == NO_CLAIM and not (place.machine.root / "started").exists()
    assert done.stderr.startswith("sparkguard: no claim of 4.0 GiB: 2.0 GiB can be claimed now; nothing was started")


def test_end_of_the_wait(place, claims):
    claims.holder("6G", job="first")
    begin = time.monotonic()
    done = claims.run("4G", "--claim-wait=0.5")
    assert done.returncode == NO_CLAIM and time.monotonic() - begin >= 0.5
    assert "no claim of 4.0 GiB within 0.5 s" in done.stderr


def test_queue_is_first_come_first_served(place, claims):
    first = claims.holder("6G", job="first")
    large = claims.start("7G", "--claim-wait=60", job="large")
    claims.wait_in_queue("large", 1)
    small = claims.start("1G", "--claim-wait=60", job="small")  # it would fit, and waits all the same
    claims.wait_in_queue("small", 2)
    assert place.take("malloc 1G") == ["ok"], "the queue takes nothing from others"
    assert large.poll() is None and small.poll() is None
    first.end()
    assert large.wait(60) == 0 and small.wait(60) == 0
    assert "claims before it: 1" in small.stderr.read()


def test_higher_priority_goes_first(place, claims):
    claims.holder("6G", job="first")
    claims.start("7G", "--claim-wait=60", job="large")
    claims.wait_in_queue("large", 1)
    assert claims.run("1G", "--priority=5").returncode == 0
    done = claims.run("1G", "--priority=-5")
    assert done.returncode == NO_CLAIM and "1 claim is before it" in done.stderr


def test_killed_claimant_makes_room_in_the_queue(place, claims):
    claims.holder("6G", job="first")
    large = claims.start("7G", "--claim-wait=60", job="large")
    claims.wait_in_queue("large", 1)
    small = claims.start("1G", "--claim-wait=60", job="small")
    claims.wait_in_queue("small", 2)
    os.killpg(large.pid, signal.SIGKILL)
    assert small.wait(60) == 0


def test_stopped_claimant_is_passed_over_and_has_its_turn_later(place, claims):
    claims.holder("5G", job="first")
    stopped = claims.start("5G", "--claim-wait=600", job="stopped")
    claims.wait_in_queue("stopped", 1)
    os.killpg(stopped.pid, signal.SIGSTOP)
    assert claims.run("1G", "--claim-wait=60", job="behind").returncode == 0
    assert claims.queue() == {"stopped": 1}
    os.killpg(stopped.pid, signal.SIGCONT)
    behind = claims.start("4G", "--claim-wait=600", job="later")
    claims.wait_in_queue("later", 2)
    behind.kill()


def test_signal_ends_the_wait(place, claims):
    claims.holder("6G", job="first")
    waiter = claims.start("7G", "--claim-wait=60")
    claims.wait_in_queue("waiter", 1)
    os.kill(waiter.pid, signal.SIGTERM)
    assert waiter.wait(60) == -signal.SIGTERM
    wait_until(lambda: claims.queue() == {})


def test_none_is_refused_while_it_runs(place, claims):
    """Sixteen jobs at once that need three times what the machine has: with claims all get what they want."""
    rng = random.Random(3)
    sizes = [rng.randint(1, 6) for _ in range(16)]
    jobs = []
    for i, size in enumerate(sizes):
        words = " ".join(["malloc", "240M"] * 4 * size).split()
        jobs.append(claims.start(f"{size}G", "--quiet", "--claim-wait=100", job=f"job-{i}", program=[place.admit_take, *words]))
    for size, job in zip(sizes, jobs, strict=True):
        out, err = job.communicate(timeout=100)
        assert job.returncode == 0, err
        assert out.split() == ["ok"] * 4 * size, f"{size}: {err}"
    place.assert_left(LEFT)


# ---- what cannot be claimed ----


def test_more_than_there_is_can_never_be_claimed(claims):
    done = claims.run("15G", "--claim-wait=60")
    assert done.returncode == NO_CLAIM
    assert "15.0 GiB can never be claimed here, at most 14.0 GiB; nothing was started" in done.stderr


def test_cgroups_bound_a_claim(place, claims):
    place.machine.write("proc/self/cgroup", "0::/box\n").v2("/box", maximum=3 * GIB)
    done = claims.run("4G", "--claim-wait=60")
    assert done.returncode == NO_CLAIM and "can never be claimed here" in done.stderr
    claims.holder("2G")
    place.assert_left(GIB - 768 * MIB)  # a reserve in bytes is at most a quarter of a cgroup


def test_program_that_cannot_be_run(claims):
    assert claims.run("1G", program=("no-such-program",)).returncode == 127
    assert claims.run("1G", program=("/etc/passwd",)).returncode == 126


def test_processes_that_share_nothing_have_no_claims(place, claims):
    place.guard.directory.mkdir(mode=0o777)
    place.guard.directory.chmod(0o777)
    done = claims.run("1G")
    assert done.returncode == 125 and "no other process would see the claim" in done.stderr
    place.guard.directory.chmod(0o700)


def test_exit_status_is_the_programs(claims):
    assert claims.run("1G", program=("sh", "-c", "exit 5")).returncode == 5
    assert claims.run("1G", program=("sh", "-c", "kill -9 $$")).returncode == -9


@pytest.mark.parametrize("options", [["--claim-wait=5"], ["--claim-ttl=5"], ["--priority=5"], ["--share=5"]])
def test_details_belong_to_a_claim(claims, options):
    done = claims.run(None, *options)
    assert done.returncode == 2 and "belong to --claim" in done.stderr


@pytest.mark.parametrize("option", ["--claim=many", "--claim=-1", "--claim-wait=soon", "--claim-ttl=-1", "--priority=5000", "--share=0", "--share=5000"])
def test_bad_values(claims, option):
    done = claims.run("1G", option)
    assert done.returncode == 2 and "for example " in done.stderr and "the program is not started" in done.stderr


@pytest.mark.parametrize(("option", "why"), [("--disable", "the guard is disabled"), ("--mode=observe", "observe mode refuses nothing")])
def test_what_refuses_nothing_claims_nothing(place, claims, option, why):
    claims.holder("6G", job="first")
    done = claims.run("4G", option)
    assert done.returncode == 0 and f"--claim has no effect: {why}" in done.stderr


def test_claim_for_a_static_program_is_for_those_that_it_starts(claims, tmp_path):
    (tmp_path / "s.c").write_text("int main(void) { return 0; }\n")
    if subprocess.run(["cc", "-static", tmp_path / "s.c", "-o", tmp_path / "s"], check=False).returncode != 0:
        pytest.skip("no static libc")
    done = claims.run("4G", program=[tmp_path / "s"])
    assert done.returncode == 0 and "sparkguard: --claim: only guarded programs that it starts will draw on the claim\n" in done.stderr
    assert claims.run("9G", program=[tmp_path / "s"]).returncode == NO_CLAIM


@needs_root
def test_claim_for_a_program_that_cannot_be_guarded(claims, tmp_path):
    """Its memory would count twice: as used, and in the claim."""
    program = tmp_path / "true"
    shutil.copy("/bin/true", program)
    os.chown(program, 65534, 65534)
    program.chmod(0o4755)
    done = claims.run("9G", program=[program])
    assert done.returncode == 0 and "sparkguard: --claim has no effect: the program is not guarded\n" in done.stderr


@pytest.mark.parametrize("limit", ["2G", "25%"])
def test_claim_beyond_the_jobs_limit(claims, limit):
    done = claims.run("5G", f"--limit={limit}", "--claim-wait=60")
    assert done.returncode == NO_CLAIM and "5.0 GiB can never be claimed here, at most " in done.stderr


def test_claim_where_the_reserve_is_all_of_the_machine(claims):
    done = claims.run("1G", "--reserve=100G", "--claim-wait=60")
    assert done.returncode == NO_CLAIM and "1.0 GiB can never be claimed here, at most 0 B" in done.stderr


@pytest.mark.parametrize(
    ("size", "options", "said"),
    [
        ("5G", [], "ok       claim       5.0 GiB can be claimed now\n"),
        ("9G", [], "warning  claim       9.0 GiB cannot be claimed now, at most "),
        ("90G", [], "warning  claim       90.0 GiB can never be claimed here, at most 14.0 GiB\n"),
        ("5G", ["--limit=4G"], "warning  claim       5.0 GiB can never be claimed here, at most 4.0 GiB\n"),
    ],
)
def test_check_judges_the_claim(claims, size, options, said):
    done = claims.run(size, "--check", *options)
    assert done.returncode == 0 and said in done.stdout


def test_check_sees_the_queue(claims):
    claims.holder("6G")
    claims.start("5G", "--claim-wait=60", job="first")
    claims.wait_in_queue("first", 1)
    assert "warning  claim       1.0 GiB cannot be claimed now: claims before it: 1\n" in claims.run("1G", "--check").stdout
    assert "ok       claim       1.0 GiB can be claimed now\n" in claims.run("1G", "--check", "--priority=1").stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_end_while_it_waits_starts_nothing(claims, number):
    claims.holder("6G")
    waiter = claims.start("5G", "--claim-wait=60")
    claims.wait_in_queue("waiter", 1)
    child = int(subprocess.run(["pgrep", "-P", str(waiter.pid)], capture_output=True, text=True, check=True).stdout)
    os.kill(child if number == signal.SIGKILL else waiter.pid, number)
    _, stderr = waiter.communicate(timeout=60)
    assert waiter.returncode == -number
    said = f"sparkguard: no claim of 5.0 GiB: killed by {number.name} while it waited; nothing was started"
    assert said in stderr and " ran " not in stderr
    wait_until(lambda: "waiter" not in claims.jobs())


# ---- auto ----


def test_auto_claims_what_earlier_runs_took(place, claims):
    words = (place.admit_take, "malloc", "1G", "wait")
    first = claims.place.tenant([*claims.command(None, job="learnt"), *words], preload=())
    first.ready()
    first.end()
    second = claims.place.tenant([*claims.command("auto", job="learnt"), *words], preload=())
    second.ready()
    place.assert_left(LEFT - GIB * 11 // 10, above=2 * MIB)
    second.go()
    _, stderr = second.process.communicate(timeout=60)
    assert "claims 1.1 GiB: the highest peak of 1 recorded run, 1.0 GiB, and 10%" in stderr


def test_auto_knows_a_script_by_what_was_typed(place, claims, tmp_path):
    """The record shows the command of the program to which the script has handed over."""
    script = tmp_path / "serve"
    script.write_text(f'#!/bin/sh\nexec {place.admit_take} "$@"\n')
    script.chmod(0o755)
    first = claims.place.tenant([*claims.command(None, job="learnt"), script, "malloc", "1G", "wait"], preload=())
    first.ready()
    first.end()
    second = claims.place.tenant([*claims.command("auto", job="learnt"), script, "malloc", "1G", "wait"], preload=())
    second.ready()
    second.go()
    _, stderr = second.process.communicate(timeout=60)
    assert "claims 1.1 GiB: the highest peak of 1 recorded run, 1.0 GiB, and 10%" in stderr
    done = claims.run("auto", program=[script, "malloc", "2G"])
    assert done.returncode == 2 and "no run of this command line is on record" in done.stderr


def test_auto_knows_a_script_that_waits_for_its_program(place, claims, tmp_path):
    """The shell itself leaves no record."""
    script = tmp_path / "serve"
    script.write_text(f'#!/bin/sh\n{place.admit_take} malloc "$1"\ntrue\n')
    script.chmod(0o755)
    assert claims.run(None, program=[script, "1G"]).returncode == 0
    done = claims.run("auto", program=[script, "1G"])
    assert done.returncode == 0 and "claims 1.1 GiB: the highest peak of 1 recorded run, 1.0 GiB, and 10%" in done.stderr


def test_auto_leaves_out_runs_that_were_refused_memory(place, claims):
    words = [place.admit_take, "malloc", "1G", "malloc", "2G"]
    place.env["SPARKGUARD_LIMIT"] = "2G"
    claims.run(None, program=words)
    del place.env["SPARKGUARD_LIMIT"]
    done = claims.run("auto", program=words)
    assert done.returncode == 2 and "each run of this command line on record was refused memory, so none shows what it needs" in done.stderr
    assert claims.run(None, program=words).returncode == 0
    done = claims.run("auto", program=words)
    assert done.returncode == 0 and "the highest peak of 1 recorded run, 3.0 GiB" in done.stderr


def test_auto_counts_what_observe_mode_would_have_refused(place, claims):
    words = [place.admit_take, "malloc", "1G", "malloc", "2G"]
    claims.run(None, "--mode=observe", "--limit=2G", program=words)
    done = claims.run("auto", program=words)
    assert done.returncode == 0 and "the highest peak of 1 recorded run, 3.0 GiB" in done.stderr


def test_auto_of_a_run_with_several_launchers(place, claims):
    """The peak is that of the whole job, for the command line that began."""
    long = claims.place.tenant([*claims.command(None, job="both"), place.admit_take, "malloc", "512M", "wait"], preload=())
    long.ready()
    assert claims.run(None, job="both", program=[place.admit_take, "malloc", "2G"]).returncode == 0
    long.end()
    process = claims.start("auto", program=[place.admit_take, "malloc", "512M", "wait"])
    _, stderr = process.communicate("\n", timeout=60)
    assert "the highest peak of 1 recorded run, 2.5 GiB, and 10%" in stderr
    done = claims.run("auto", program=[place.admit_take, "malloc", "2G"])
    assert done.returncode == 2 and "no run of this command line is on record" in done.stderr


def test_auto_knows_what_a_sweep_has_measured(place, claims):
    env = place.guard.environment(place.env, preload=())
    words = [place.admit_take, "malloc"]
    sweep = [place.guard.build / "sparkguard-sweep", "-p", "size=512M,1G", *words, "{size}"]
    subprocess.run(sweep, env=env, stdin=subprocess.DEVNULL, capture_output=True, check=True, timeout=60)
    done = claims.run("auto", program=[*words, "1G"])
    assert done.returncode == 0 and "claims 1.1 GiB: the highest peak of 1 recorded run, 1.0 GiB, and 10%" in done.stderr


def test_auto_without_a_record_starts_nothing(claims):
    done = claims.run("auto")
    assert done.returncode == 2 and "no run of this command line is on record" in done.stderr


# ---- what is seen ----


def test_report_shows_claims_and_queue(place, claims):
    claims.holder("6G", "malloc 2G", job="server")
    claims.start("7G", "--claim-wait=60", job="train")
    claims.wait_in_queue("train", 1)
    keys = ("claimed_bytes", "claim_state", "queue_position")
    jobs = claims.jobs()
    assert [jobs["server"][key] for key in keys] == [6 * GIB, "held", None]
    assert 4 * GIB - MIB * 8 < jobs["server"]["claim_left_bytes"] <= 4 * GIB
    assert [jobs["train"][key] for key in keys] == [7 * GIB, "queued", 1]
    command = [place.guard.build / "sparkguard-report"]
    text = subprocess.run(command, env=place.guard.environment(place.env, preload=()), capture_output=True, text=True).stdout
    assert "claim of 6.0 GiB, 4.0 GiB of it not used" in text
    assert "waits for a claim of 7.0 GiB, number 1 in the queue" in text
    assert "claims: server 6.0 GiB; queue: train 7.0 GiB" in text
    assert "claims: server 6.0 GiB; queue: train 7.0 GiB" in watched(place)


def watched(place):
    """What the live screen shows first."""
    screen, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    env = place.guard.environment({**place.env, "TERM": "xterm", "NO_COLOR": "1"}, preload=())
    process = subprocess.Popen([place.guard.build / "sparkguard-report", "--watch=0.2"], env=env, stdin=side, stdout=side)
    os.close(side)
    text = b""
    while b"train 7.0" not in text and len(text) < 1 << 16:
        text += os.read(screen, 4096)
    process.kill()
    process.wait()
    os.close(screen)
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\(B", "", text.decode(errors="replace"))


def test_claimant_leaves_no_record_of_its_own(place, claims):
    tenant = claims.holder("1G", "malloc 100M")
    (job,) = [job for name, job in claims.jobs().items() if name == "claimer"]
    assert [os.path.basename(process["command"].split()[0]) for process in job["processes"]] == ["admit_take"]
    tenant.end()


# ---- how many there can be ----


@pytest.fixture
def crowd(place):
    """Claims of others, which end with the block."""

    @contextlib.contextmanager
    def make(count, **words):
        with contextlib.ExitStack() as held:
            for i in range(count):
                job = hash_of(f"ghost {i}")
                held.enter_context(place.ledger.entry(9 + i, flags=CLAIM_FLAG, job_hash=job, claim_place=i + 1, **words))
            place.ledger.put("claim_places", count)
            yield

    place.holder("malloc 1M")
    return make


def test_claim_of_one_job_more_than_can_count_is_refused(claims, crowd):
    """Nothing would be kept from others for it."""
    with crowd(64, claimed_bytes=MIB):
        done = claims.run("1G", "--claim-wait=60")
        assert (done.returncode, done.stdout) == (125, "")
        assert done.stderr == "sparkguard: --claim: as many other jobs have claims as can count here; nothing was started\n"
        assert claims.run("1G", job="ghost 0").returncode == 0
    assert claims.run("1G").returncode == 0


def test_claim_of_a_user_with_as_many_as_one_may_have_is_refused(claims, crowd):
    with crowd(32, claim_wanted_bytes=MIB, set_user=os.getuid() + 1):
        done = claims.run("1G", "--claim-wait=60")
        assert (done.returncode, done.stdout) == (125, "")
        assert done.stderr == "sparkguard: --claim: this user has as many claims as one may have; nothing was started\n"
    with crowd(31, claim_wanted_bytes=MIB, set_user=os.getuid() + 1):
        assert claims.run("1G").returncode == 0


# ---- the registry says what cannot be ----


def test_absurd_claim_hides_memory_but_harms_nobody(place):
    place.holder("malloc 1M")
    place.ledger.put("claim_places", 1)
    words = {"flags": CLAIM_FLAG, "job_hash": hash_of("ghost"), "claimed_bytes": (1 << 64) - 1}
    with place.ledger.entry(9, **words):
        assert place.take("malloc 1G small 1K 1M") == ["ENOMEM", MIB]
    place.assert_left(LEFT - MIB)


def test_entry_that_is_no_claim_claims_nothing(place):
    place.holder("malloc 1M")
    place.ledger.put("claim_places", 1)
    with place.ledger.entry(9, job_hash=hash_of("ghost"), claimed_bytes=4 * GIB):
        place.assert_left(LEFT - MIB)
