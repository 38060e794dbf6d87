"""sparkguard-sweep of commands that start containers: the container is measured and not its client, or nothing is started.

The client is a script that does what docker does with the options it is given: what --env sets is the container's, and what the
client's own environment has is not. tests/ecosystem/test_setup.py does the same with podman itself."""

import json
import re
import subprocess

import pytest
from lib.waiting import wait_until
from sweeping import MIB, PIECE, PYTHON, Sweeper, outcomes, reap  # noqa: F401 - and a fixture

CLIENT = """#!/bin/sh
echo "$*" >>calls
env | grep -E '^(LD_PRELOAD|SPARKGUARD_JOB)=' >>leaks
while [ "$1" != run ]; do
    [ "$1" != kill ] || exec kill -KILL "$(cat "pid-$2")"
    shift
done
shift
while :; do
    case $1 in
    --env=*) container="$container ${1#--env=}" ;;
    --name=*) name=${1#--name=} ;;
    --device | --memory | --runtime) shift ;;
    -*) ;;
    *) break ;;
    esac
    shift
done
shift
# shellcheck disable=SC2086
exec setsid -w sh -c 'echo $$ >"$0"; exec env "$@"' "pid-$name" $container $GUARD "$@"
"""
DEVICE = ("--device", "sparkguard/memory=guarded")


class Containers(Sweeper):
    def __init__(self, build, scratch):
        super().__init__(build, scratch)
        self.library = build / "libsparkguard.so"
        self.scripts = scratch / "bin"
        self.scripts.mkdir()
        for name in ("docker", "podman", "nerdctl", "kubectl", "sudo"):
            (self.scripts / name).write_text(CLIENT if name != "sudo" else '#!/bin/sh\nshift\nexec "$@"\n')
            (self.scripts / name).chmod(0o755)
        self.guard = f"LD_PRELOAD={self.library}"

    def environment(self, **extra):
        env = super().environment(**extra)
        return {**env, "PATH": f"{self.scripts}:{env['PATH']}", "GUARD": self.guard, "DOCKER_HOST": "", **extra}

    def set_up(self):
        for path, text in (
            ("etc/docker/daemon.json", '{"default-runtime": "sparkguard"}'),
            ("etc/containers/containers.conf.d/60-sparkguard.conf", '[engine]\nruntime = "sparkguard"\n'),
        ):
            (self.root / path).parent.mkdir(parents=True, exist_ok=True)
            (self.root / path).write_text(text)

    def calls(self):
        path = self.folder / "calls"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def sweep(build, tmp_path):
    return Containers(build, tmp_path)


def grow(values, *client):
    return (f"--param=batch={values}", "--", *client, "image", PYTHON, "grow.py", "{batch}")


@pytest.mark.parametrize(
    "client",
    [
        ("docker", "run", "--rm", *DEVICE),
        ("podman", "run", *DEVICE, "--rm"),
        ("nerdctl", "run", *DEVICE),
        ("docker", "--log-level", "error", "container", "run", "-it", "--memory", "8g", *DEVICE),
        ("sudo", "-E", "docker", "run", *DEVICE),
        ("env", "A=b", "podman", "run", *DEVICE),
    ],
)
def test_the_container_is_measured_and_not_its_client(sweep, client):
    report = sweep.json(*grow("2,8", *client))
    assert outcomes(report) == {2: "ok", 8: "ok"}
    runs = {run["values"]["batch"]: run for run in report["runs"]}
    assert 64 * PIECE <= runs[8]["peak_bytes"] < 64 * PIECE + 20 * MIB
    assert report["recommended"] == {"values": {"batch": 8}}
    assert sweep.starts() == [2, 8]
    assert (sweep.folder / "leaks").read_text() == ""


def test_what_does_not_fit_is_refused_in_the_container_and_not_started_beyond(sweep):
    report = sweep.json(*grow("4,16,24", "docker", "run", *DEVICE))
    assert outcomes(report) == {4: "ok", 16: "refused", 24: "skipped"}


def test_each_container_has_its_job_its_name_and_the_guards_settings(sweep):
    sweep.run(*grow("2,4", "docker", "run", "--rm", *DEVICE), SPARKGUARD_LIMIT="1G", SPARKGUARD_WAIT="0")
    jobs, names = set(), set()
    for call in sweep.calls():
        match = re.fullmatch(r"run --env=SPARKGUARD_JOB=(\S+) --name=(\1-\d+-1) (.*) --rm --device .* image .*", call)
        jobs.add(match[1])
        names.add(match[2])
        assert sorted(match[3].split()) == ["--env=SPARKGUARD_LIMIT=1G", "--env=SPARKGUARD_RESERVE=1G", "--env=SPARKGUARD_WAIT=0"]
    assert (len(jobs), len(names)) == (1, 2)
    sweep.run("--fresh", *grow("2", "docker", "run", "--name=mine", *DEVICE))
    assert "--name=sweep" not in sweep.calls()[-1] and "--name=mine" in sweep.calls()[-1]


@pytest.mark.parametrize("client", [("docker", "run"), ("podman", "run"), ("podman", "--runtime=/x/sparkguard-runtime", "run"), ("nerdctl", "run", "--runtime", "/x/sparkguard-runtime")])
def test_after_the_set_up_no_option_is_needed(sweep, client):
    sweep.set_up()
    assert outcomes(sweep.json(*grow("2,4", *client))) == {2: "ok", 4: "ok"}


def test_a_docker_that_is_podmans_goes_by_podmans_file(sweep):
    sweep.set_up()
    (sweep.root / "etc/docker/daemon.json").unlink()
    assert outcomes(sweep.json(*grow("2", "docker", "run"))) == {2: "ok"}
    (sweep.root / "usr/bin").mkdir(parents=True)
    (sweep.root / "usr/bin/dockerd").touch()
    assert sweep.run("--fresh", *grow("2", "docker", "run")).returncode == 125


REFUSED = [
    (("docker", "run"), "the container would not be guarded: sparkguard-doctor --setup | sudo sh"),
    (("podman", "run"), "the container would not be guarded"),
    (("nerdctl", "run"), "the container would not be guarded"),
    (("docker", "run", "--runtime", "runc"), "its --runtime does not guard the container"),
    (("docker", "run", "-d", *DEVICE), "with --detach the client ends before the container"),
    (("docker", "run", "-itd", *DEVICE), "with --detach"),
    (("docker", "run", "-e", "SPARKGUARD_JOB=x", *DEVICE), "it sets SPARKGUARD_JOB"),
    (("docker", "run", "-eSPARKGUARD_DISABLE=1", *DEVICE), "it turns the guard off"),
    (("podman", "run", "--annotation=sparkguard=off", *DEVICE), "it turns the guard off"),
    (("docker", "-H", "ssh://other", "run", *DEVICE), "the container may run on another machine"),
    (("docker", "--context=other", "run", *DEVICE), "the container may run on another machine"),
    (("podman", "--remote", "run", *DEVICE), "the container may run on another machine"),
    (("docker", "exec", "-it"), 'only "run" is measured'),
    (("docker", "compose", "run"), 'only "run" is measured'),
    (("kubectl", "run"), "docker run, podman run and nerdctl run only"),
    (("sudo", "-n", "docker", "run"), "the container would not be guarded"),
]


@pytest.mark.parametrize("client, reason", REFUSED, ids=[" ".join(case[0]) for case in REFUSED])
def test_what_cannot_be_measured_is_not_started_and_the_reason_is_told(sweep, client, reason):
    done = sweep.run(*grow("2,4", *client))
    assert done.returncode == 125 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and reason in done.stderr, done.stderr
    assert sweep.calls() == [] and sweep.starts() == []


def test_no_image_and_a_host_elsewhere_are_told(sweep):
    done = sweep.run("--param=n=1,2", "--", "docker", "run", *DEVICE, "--cpus={n}")
    assert done.returncode == 125 and "no image is named" in done.stderr
    done = sweep.run(*grow("2", "docker", "run", *DEVICE), DOCKER_HOST="tcp://10.0.0.1:2375")
    assert done.returncode == 125 and "another machine" in done.stderr


def test_options_of_the_containers_own_program_are_not_the_clients(sweep):
    sweep.set_up()
    (sweep.folder / "grow.py").write_text("import sys; assert sys.argv[2:4] == ['-d', '--runtime=x']; held = bytearray(64 << 20)\n")
    report = sweep.json("--param=batch=2", "--", "docker", "run", "image", PYTHON, "grow.py", "{batch}", "-d", "--runtime=x")
    assert outcomes(report) == {2: "ok"}


def test_a_container_that_ran_unguarded_ends_the_sweep(sweep):
    """A larger one would take the machine down."""
    sweep.set_up()
    sweep.guard = ""
    done = sweep.run(*grow("2,4,8", "docker", "run"))
    assert done.returncode == 125 and "the container is not on record: it ran unguarded" in done.stderr
    assert sweep.starts() == [2]


def test_a_user_who_cannot_use_the_shared_directory_is_told(sweep):
    sweep.set_up()
    (sweep.root / "etc/sparkguard").mkdir()
    (sweep.root / "etc/sparkguard/runtime.conf").write_text(f"shared = {sweep.live}/none\n")
    env = sweep.environment()
    del env["SPARKGUARD_DIR"]
    done = subprocess.run(sweep.command(*grow("2", "docker", "run")), env=env, cwd=sweep.folder, capture_output=True, text=True)
    assert done.returncode == 125 and f"figures would be in {sweep.live}/none: " in done.stderr
    assert sweep.calls() == []


def test_the_shared_directory_of_the_set_up_is_read(sweep):
    sweep.set_up()
    sweep.live.mkdir(mode=0o700)
    (sweep.root / "etc/sparkguard").mkdir()
    (sweep.root / "etc/sparkguard/runtime.conf").write_text(f"shared = {sweep.live}\n")
    sweep.guard += f" SPARKGUARD_DIR={sweep.live}"
    env = sweep.environment()
    del env["SPARKGUARD_DIR"]
    done = subprocess.run(sweep.command("--json", *grow("2,4", "docker", "run")), env=env, cwd=sweep.folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert outcomes(json.loads(done.stdout)) == {2: "ok", 4: "ok"}


def test_a_container_that_outlives_its_client_is_killed(sweep, reap):
    """The script's container is in a session of its own, as one of docker is: it gets none of the client's signals."""
    hold = "import time\nheld = bytearray(64 << 20)\nopen('held', 'w').write('held')\ntime.sleep(600)  # holds: until it is killed\n"
    (sweep.folder / "grow.py").write_text(hold)
    client = (sweep.scripts / "docker").read_text().replace("exec setsid", "trap : TERM\nsetsid")
    (sweep.scripts / "docker").write_text(client)
    process = sweep.start("--json", "--timeout=1h", *grow("2", "docker", "run", *DEVICE))
    reap(process)
    sweep.wait_for("held")
    sweep.clock.look(3600)
    assert [call.split()[0] for call in sweep.calls()] == ["run"]
    sweep.clock.move(10)
    report = json.loads(process.communicate()[0])
    assert process.returncode == 1 and outcomes(report) == {2: "timed out"}
    wait_until(lambda: len(sweep.calls()) > 1)  # the sweep starts the client and does not wait for it
    assert [call.split()[0] for call in sweep.calls()] == ["run", "kill"]
    name = sweep.calls()[1].split()[1]
    assert re.search(rf"--name={name} ", sweep.calls()[0])


def test_a_dry_run_shows_the_command_as_it_was_given(sweep):
    done = sweep.run("--dry-run", *grow("2", "docker", "run", *DEVICE))
    assert done.returncode == 0 and "SPARKGUARD_JOB" not in done.stdout and sweep.calls() == []
