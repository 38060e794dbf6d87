"""scripts/examples/docker and kubernetes with a real container runtime: what is promised in one container is gone for the others.

The machine that they look at is a fake one of 16 GiB that stands still; nobody touches what he takes.
"""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from containers import Containers, require_containers
from lib.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
MIB, GIB = 1 << 20, 1 << 30
GID = 4711
LEFT = 8 * GIB  # of 10 when 2 are kept
ALL_MOUNTS = ("/opt/sparkguard/libsparkguard.so", "/run/sparkguard", "/var/lib/sparkguard")
NEAR = 6 * MIB  # what small programs hold and are promised besides


class Place:
    def __init__(self, guard, containers, root):
        self.guard, self.containers = guard, containers
        self.take = guard.build / "tests/programs/admit_take"
        self.env = {"SPARKGUARD_SYSTEM_ROOT": str(root), "SPARKGUARD_RESERVE": "2G", "SPARKGUARD_WAIT": "0"}

    def start_command(self, service, command, **options):
        return self.containers.start(service, command, **{**self.env, **options})

    def start(self, service, commands, **options):
        return self.start_command(service, [self.take, *commands.split()], **options)

    def hold(self, service, commands, **options):
        """Its answers, once it has done what it was told and waits."""
        process = self.start(service, f"{commands} wait", **options)
        process.answers = answers = []
        for line in process.stdout:
            if line == "ready\n":
                return process
            answers.append(line.strip())
        raise AssertionError(f"it has ended: {answers}, {process.wait()}, {process.stderr.read()}")

    def largest(self, service="serve", **options):
        stdout, stderr = self.start(service, "largest", **options).communicate(timeout=60)
        assert stdout.strip().isdigit(), stderr
        return int(stdout)

    def host(self, commands):
        done = self.guard.run([self.take, *commands.split()], env=self.env)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()


@pytest.fixture(scope="module")
def runtime(build, tmp_path_factory):
    """Skips where no container can be made."""
    require_containers()
    probe = Containers(build, tmp_path_factory.mktemp("probe"), {}, GID).start("train", ["true"], without=ALL_MOUNTS)
    _, said = probe.communicate(timeout=60)
    if probe.returncode != 0:
        pytest.skip(f"no containers here: {said.strip()}")


@pytest.fixture
def place(guard, tmp_path, runtime):
    for folder in (guard.directory, guard.history):
        folder.mkdir()
        os.chown(folder, 0, GID)
        folder.chmod(0o2770)
    for parent in (tmp_path, *list(tmp_path.parents)[:2]):
        parent.chmod(0o755)
    root = tmp_path / "machine/proc"
    root.mkdir(parents=True)
    (root / "meminfo").write_text(f"MemTotal: {16 * GIB >> 10} kB\nMemAvailable: {10 * GIB >> 10} kB\n")
    scratch = tmp_path / "containers"
    scratch.mkdir()
    library = "/usr/lib/aarch64-linux-gnu/libsparkguard.so"
    places = {library: guard.library, "/var/lib/sparkguard": guard.history}
    places |= dict.fromkeys(("/dev/shm/sparkguard", "/run/sparkguard/shared"), guard.directory)  # by hand, by --setup
    containers = Containers(guard.build, scratch, places, GID, seen=[root.parent])
    yield Place(guard, containers, root.parent)
    containers.end()


def near(expected):
    return range(expected - NEAR, expected + 1)


def test_two_containers_and_the_host_count_each_others_promises(place):
    """Of two users, neither of them the host's."""
    train = place.hold("train", "malloc 3G", uid=4712)
    assert train.answers == ["ok"]
    assert place.largest("serve", uid=4714) in near(LEFT - 3 * GIB)
    assert int(place.host("largest")[0]) in near(LEFT - 3 * GIB)
    serve = place.hold("serve", "malloc 4G malloc 2G", uid=4714)
    assert serve.answers == ["ok", "ENOMEM"]
    report = place.guard.report()
    assert report["machine"]["sharing"] is True
    running = {job["job"]: job for job in report["jobs"] if job["live_bytes"] > GIB}
    assert {name: job["live_bytes"] >> 30 for name, job in running.items()} == {"train": 3, "serve": 4}
    assert [process["pid"] for job in running.values() for process in job["processes"] if job["job"] == "train"] == [1]
    for process in (p for job in running.values() for p in job["processes"] if p["state"] == "running"):
        status = Path(f"/proc/{process['host_pid']}/status").read_text()
        assert re.search(r"^NSpid:.*\t1$", status, re.MULTILINE) and process["user"] == re.search(r"^Uid:\t(\d+)", status, re.MULTILINE)[1]
    place.containers.kill(train)
    assert place.largest("train") in near(LEFT - 4 * GIB)


@pytest.mark.parametrize("described", ["pod", "cdi"])
def test_the_pod_and_the_device_mean_the_same(place, described):
    place.hold("train", "malloc 3G", uid=4712)
    place.hold(described, "malloc 1G", uid=4714)
    assert place.largest("serve") in near(LEFT - 4 * GIB)


def test_root_in_a_container_shares_with_users_outside(place):
    place.hold("train", "malloc 3G")
    assert place.largest("serve", uid=4714) in near(LEFT - 3 * GIB)


def test_without_the_mount_a_container_counts_nobody_and_is_unguarded_to_the_host(place):
    place.hold("train", "malloc 3G")
    alone = place.hold("serve", "mmap 512M touch 0 largest", without=["/run/sparkguard"])
    assert alone.answers[0] == "ok" and int(alone.answers[2]) in near(LEFT)  # what is touched is no promise
    assert place.largest("serve") in near(LEFT - 3 * GIB)
    report = place.guard.report()
    assert [job["job"] for job in report["jobs"] if job["live_bytes"] > GIB] == ["train"]
    assert any("admit_take mmap 512M" in process["command"] for process in report["unguarded"])


def test_without_the_mount_a_user_is_told(place):
    done = place.start("serve", "malloc 64M", uid=4714, without=["/run/sparkguard"])
    assert done.communicate(timeout=60) == (
        "ok\n",
        "sparkguard: cannot keep statistics in /run/sparkguard: no such directory; "
        "sparkguard-report will not show this program (SPARKGUARD_DIR)\n",
    )


def test_a_full_shm_of_the_containers_own_ends_nobody(place):
    """64 MiB, which is what docker gives without --shm-size: refused is refused all the same."""
    code = f"head -c 70M /dev/zero >/dev/shm/full; exec {place.take} malloc 1G malloc 8G"
    own = {"SPARKGUARD_DIR": "/dev/shm/sparkguard-0", **place.env}
    stdout, stderr = place.containers.start("serve", ["sh", "-c", code], **own).communicate(timeout=60)
    assert stdout == "ok\nENOMEM\n"
    assert "cannot keep statistics in /dev/shm/sparkguard-0: no space left; " in stderr


def test_what_a_container_did_is_known_when_it_is_gone(place):
    train = place.hold("train", "malloc 9G malloc 64M", uid=4712)
    assert train.answers == ["ENOMEM", "ok"]
    wait_until(lambda: any(place.guard.history.glob("*.segment")), "copy", step=0.1)
    place.containers.kill(train)
    elsewhere = place.guard.environment({"LD_PRELOAD": None, "SPARKGUARD_DIR": place.guard.directory / "none"})
    command = [place.guard.build / "sparkguard-report", "--json", "--job", "train"]
    done = subprocess.run(command, env=elsewhere, user=4714, group=4714, extra_groups=[GID], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    (process,) = json.loads(done.stdout)["jobs"][0]["processes"]
    assert (process["state"], process["refused_count"]) == ("killed", 1)


def test_an_image_with_its_own_preload_keeps_it(place):
    """By the line of docs/recipes.md: the image's shell puts the guard in front of what the image preloads, if anything."""
    recipe = (ROOT / "docs/recipes.md").read_text()
    (line,) = re.findall(r"--entrypoint sh .* -c '(.*?)' python", recipe)
    (own,) = [str(path) for path in Path("/usr/lib").glob("*/libjemalloc.so.2")]
    shown = ["grep", "-oE", r"lib(sparkguard|jemalloc)\.so.*", "/proc/self/maps"]
    for before, libraries in ((own, {"libsparkguard.so", "libjemalloc.so.2"}), ("", {"libsparkguard.so"})):
        process = place.start_command("train", ["sh", "-c", line, *shown], LD_PRELOAD=before)
        stdout, stderr = process.communicate(timeout=60)
        assert process.returncode == 0 and set(stdout.split()) == libraries, stderr
