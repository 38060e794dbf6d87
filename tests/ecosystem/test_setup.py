"""sparkguard-doctor --setup, run as it is by root on a machine with Debian's Docker, Podman, containerd, systemd and PAM: each of
them takes what was written, a login and a user's services have the guard, and undo leaves nothing.

dockerd is started, for Debian 12's has no --validate: it reads its file and tells what it made of it."""

import contextlib
import json
import re
import subprocess

import pytest
from engine_machine import Machine, require_machine
from lib.waiting import wait_until

LIBRARY = "/usr/local/lib/libsparkguard.so"
WRAPPERS = "/usr/local/lib/sparkguard"
OLLAMA = "[Unit]\nDescription=x\n[Service]\nUser=tester\nExecStart=/bin/true\n"
NVIDIA = "/usr/local/bin/nvidia-container-runtime"
CLASS = """
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]
  runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]
    BinaryName = "/usr/local/bin/nvidia-container-runtime"
"""
INFO = """
import socket
link = socket.socket(socket.AF_UNIX)
link.connect("/run/docker.sock")
link.sendall(b"GET /info HTTP/1.0\\r\\n\\r\\n")
print(link.makefile().read().partition("\\n\\n")[2])
"""
RUN = "podman run --rm --network none --cgroups disabled -v /usr:/usr:ro"


@pytest.fixture(scope="module")
def machine(build, tmp_path_factory):
    require_machine()
    with Machine(build, tmp_path_factory.mktemp("machine")) as machine:
        machine.run("useradd --create-home --shell /bin/sh tester; mkdir -p /etc/containers /etc/docker /var/lib/docker")
        nvidia = '"runtimes": {"nvidia": {"args": [], "path": "nvidia-container-runtime"}}'
        (machine.root / "etc/docker/daemon.json").write_text(f'{{\n  "log-level": "warn",\n  {nvidia}\n}}\n')
        (machine.root / "etc/containers/containers.conf").write_text(f'[engine.runtimes]\nnvidia = ["{NVIDIA}"]\n')
        with open(machine.root / "etc/containerd/config.toml", "a") as file:
            file.write(CLASS)
        (machine.root / f".{NVIDIA}").write_text('#!/bin/sh\necho "$*" >>/tmp/nvidia\nexec runc "$@"\n')
        machine.run(f"chmod 755 {NVIDIA}")
        (machine.root / "etc/systemd/system/ollama.service").write_text(OLLAMA)
        machine.before = machine.state()
        machine.run("sparkguard-doctor --setup | sh && sparkguard-doctor --setup=undo >/tmp/undo.sh && sh /tmp/undo.sh")
        machine.undone = machine.state()
        printed = machine.run("sparkguard-doctor --setup >/tmp/setup.sh; echo $?")
        assert (printed.stdout, printed.stderr) == ("0\n", "")
        machine.said = machine.run("sh /tmp/setup.sh").stdout
        yield machine


@contextlib.contextmanager
def dockerd(machine):
    """What dockerd tells of itself, while it runs."""
    daemon = machine.start("rm -f /run/docker.sock /run/docker.pid; exec dockerd --iptables=false --bridge=none")
    try:
        wait_until(lambda: daemon.poll() is not None or machine.run("test -S /run/docker.sock", status=None).returncode == 0, "dockerd's socket")
        assert daemon.poll() is None, daemon.communicate()[0]
        yield json.loads(machine.run(f"python3 -c '{INFO}'").stdout)
    finally:
        machine.run("kill $(cat /run/docker.pid)", status=None)
        daemon.communicate(timeout=60)


def test_undo_leaves_the_machine_as_it_was_byte_for_byte(machine):
    is_theirs = re.compile("(run/(containers|libpod|crun|netns)|var/lib/(containers|cni)|etc/cni)(/|$)").match  # who was asked
    differs = {name for name in machine.undone.keys() | machine.before.keys() if machine.undone.get(name) != machine.before.get(name)}
    assert {name for name in differs if not is_theirs(name)} == set()


def test_it_says_what_it_did_and_what_is_left_to_do(machine):
    assert "done; new logins, services and containers are guarded" in machine.said
    assert "systemctl restart containerd\n" in machine.said and "systemctl restart ollama.service\n" in machine.said


def test_dockerd_takes_its_file_and_has_the_runtime_as_its_default(machine):
    with dockerd(machine) as info:
        assert info["DefaultRuntime"] == "sparkguard"
        assert info["Runtimes"]["sparkguard"]["path"] == f"{WRAPPERS}/docker-runtime"
    if "--validate" in machine.run("dockerd --help").stdout:
        machine.run("dockerd --validate --config-file /etc/docker/daemon.json")


def test_podman_has_the_runtime_as_its_default(machine):
    form = "{{.Host.OCIRuntime.Name}} {{.Host.OCIRuntime.Path}}"
    assert machine.run(f"podman info --format '{form}'").stdout == f"sparkguard {WRAPPERS}/podman-runtime\n"


def test_podman_runs_containers_by_it_and_without_sparkguard_runtime_as_well(machine):
    run = f"{RUN} --rootfs /image sh -c 'echo $0; exit 7' hello"
    assert machine.run(run, status=7).stdout == "hello\n"
    machine.run("mv /usr/local/bin/sparkguard-runtime /tmp/away")
    try:
        assert machine.run(run, status=7).stdout == "hello\n"
    finally:
        machine.run("mv /tmp/away /usr/local/bin/sparkguard-runtime")


def assert_guarded(machine, run):
    if not (machine.root / "build/sparkguard-runtime").exists():
        pytest.skip("sparkguard-runtime is not built here")
    assert machine.run(f"{run} sh -c 'echo $LD_PRELOAD; exit 7'", status=7).stdout == "/run/sparkguard/libsparkguard.so\n"


def test_podman_runs_containers_of_another_runtime_by_its_wrapper(machine):
    form = "{{.Host.OCIRuntime.Name}} {{.Host.OCIRuntime.Path}}"
    for name in ("nvidia", "runc", "crun"):
        assert machine.run(f"podman --runtime {name} info --format '{form}'").stdout == f"{name} {WRAPPERS}/podman-runtime-{name}\n"
    assert_guarded(machine, f"{RUN.replace('podman', 'podman --runtime crun')} --rootfs /image")


def test_containerd_reads_its_file_with_the_runtime(machine):
    shown = machine.run("containerd config dump").stdout
    section = shown.partition('[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.sparkguard]')[2]
    assert f'BinaryName = "{WRAPPERS}/containerd-runtime"' in section and 'runtime_type = "io.containerd.runc.v2"' in section
    assert 'bin_dir = "/usr/lib/cni"' in shown  # what the file had
    nvidia = shown.partition('[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]')[2]
    assert f'BinaryName = "{WRAPPERS}/containerd-runtime-nvidia"' in nvidia.partition("[plugins")[0]


def test_systemd_takes_the_drop_in_and_the_directories(machine):
    done = machine.run("systemd-analyze verify /etc/systemd/system/ollama.service 2>&1; systemctl cat ollama.service 2>/dev/null; true")
    assert "60-sparkguard.conf" not in done.stdout.partition("# /etc/systemd/system/ollama.service\n")[0], done.stdout
    drop_in = "/usr/local/share/sparkguard/system/service.conf"
    machine.run(f"echo Nonsense=1 >>{drop_in}")
    told = machine.run("systemd-analyze verify /etc/systemd/system/ollama.service 2>&1; true").stdout
    machine.run(f"sed -i '$d' {drop_in}")
    assert "60-sparkguard.conf" in told  # so it was read
    mounted = machine.run("findmnt -no FSTYPE,OPTIONS /run/sparkguard/shared").stdout
    assert mounted.startswith("tmpfs") and all(word in mounted for word in ("nosuid", "nodev", "noexec", "size=65536k", "nr_inodes=8192"))
    machine.run("systemd-analyze verify /etc/systemd/system/run-sparkguard-shared.mount")
    machine.run("umount /run/sparkguard/shared /run/sparkguard/containers/*/", status=None)  # the latter of containers that have ended
    machine.run("rm -r /run/sparkguard && systemd-tmpfiles --create sparkguard.conf")
    assert machine.run("stat -c '%a %U %G' /run/sparkguard/shared /var/lib/sparkguard").stdout == "2770 root sparkguard\n" * 2


def test_a_login_has_the_guard_and_members_of_the_group_the_directory(machine):
    ask = "su -l tester -c 'echo $LD_PRELOAD $SPARKGUARD_DIR'"
    assert machine.run(ask).stdout == f"{LIBRARY}\n"
    machine.run("usermod -aG sparkguard tester")
    try:
        assert machine.run(ask).stdout == f"{LIBRARY} /run/sparkguard/shared\n"
    finally:
        machine.run("gpasswd -d tester sparkguard")
    done = machine.run("su -l tester -c \"SPARKGUARD_LIMIT=64M python3 -c 'bytearray(1 << 30)'\"", status=1)
    assert "sparkguard: refused" in done.stderr and "MemoryError" in done.stderr


def test_where_the_library_is_missing_the_programs_of_a_login_shell_do_not_complain(machine):
    """The shell does, and what /etc/profile runs, before the profile of the set-up takes the variable away."""
    machine.run(f"mv {LIBRARY} /tmp/library")
    try:
        told = [machine.run(f"su -l tester -c '{script}'").stderr for script in ("true", "ls / >/dev/null; ls / >/dev/null; exec id")]
        assert told[0] == told[1] and "cannot be preloaded" in told[0]
    finally:
        machine.run(f"mv /tmp/library {LIBRARY}")


def test_users_services_have_the_guard(machine):
    run = "setpriv --reuid tester --regid tester --groups {} sh -c 'for each in /usr/lib/systemd/user-environment-generators/*environment-d* /etc/systemd/user-environment-generators/*; do $each; done'"
    shown = machine.run(run.format("tester")).stdout
    assert f"LD_PRELOAD={LIBRARY}\n" in shown and "SPARKGUARD_DIR" not in shown
    assert "SPARKGUARD_DIR=/run/sparkguard/shared\n" in machine.run(run.format("sparkguard")).stdout


def test_podman_takes_the_cdi_device_and_the_sweep_measures_its_container(machine):
    machine.run("mkdir -p /etc/cdi && sparkguard-doctor --print-cdi >/etc/cdi/sparkguard.json")
    try:
        code = "import sys; held = bytearray(int(sys.argv[1]) << 20)"
        device = f"{RUN} --device sparkguard/memory=guarded --rootfs /image python3 -c '{code}'"
        done = machine.run(f"sparkguard-sweep --unclean --json -p n=50,100 -- {device} {{n}}")
        report = json.loads(done.stdout)
        assert [(run["status"], run["peak_bytes"] >> 20 >= run["values"]["n"]) for run in report["runs"]] == [("ok", True)] * 2
        assert report["runs"][1]["peak_bytes"] < 120 << 20
    finally:
        machine.run("rm -r /etc/cdi /root/.local /var/lib/sparkguard/* /run/sparkguard/shared/*", status=None)


def test_after_the_set_up_the_sweep_needs_no_option_for_podman(machine, build):
    if not (build / "sparkguard-runtime").exists():
        pytest.skip("sparkguard-runtime is not built here")
    code = "import sys; held = bytearray(int(sys.argv[1]) << 20)"
    done = machine.run(f"sparkguard-sweep --unclean --json -p n=50,100 -- {RUN} --rootfs /image python3 -c '{code}' {{n}}")
    report = json.loads(done.stdout)
    assert [(run["status"], run["values"]["n"] <= run["peak_bytes"] >> 20 < 120) for run in report["runs"]] == [("ok", True)] * 2
    machine.run("rm -rf /root/.local /run/sparkguard/shared/*")


def test_a_second_set_up_changes_nothing(machine):
    once = machine.state()
    assert "wrote" not in machine.run("sparkguard-doctor --setup | sh").stdout
    assert machine.state() == once


def test_after_undo_engines_and_logins_are_as_before(machine):
    machine.run("rm -rf /var/lib/sparkguard/*")  # records of programs that were guarded
    said = machine.run("sparkguard-doctor --setup=undo >/tmp/undo.sh; sh /tmp/undo.sh").stdout
    assert "removed the group sparkguard" in said and "removed /var/lib/sparkguard\n" in said
    with dockerd(machine) as info:
        assert info["DefaultRuntime"] == "runc" and "sparkguard" not in info["Runtimes"]
    assert machine.run("podman info --format '{{.Host.OCIRuntime.Name}}'").stdout == "crun\n"
    assert machine.run("su -l tester -c 'echo $LD_PRELOAD'").stdout == "\n"


@pytest.mark.parametrize("place", ["tmpfs -o ro", "tmpfs -o size=4k"], ids=["read-only", "full"])
def test_a_disk_that_takes_nothing_is_told_and_nothing_is_half_written(machine, place):
    """Where /etc/docker is a file system of its own, and then all that undo needs is there as well."""
    own = '{"labels": ["' + "x" * 3000 + '"]}\n'
    machine.run("mkdir -p /tmp/docker-etc && mount -t tmpfs tmpfs /etc/docker")
    try:
        (machine.root / "etc/docker/daemon.json").write_text(own)
        machine.run("sparkguard-doctor --setup >/tmp/setup.sh")
        machine.run(f"mount -o remount,{place.partition('-o ')[2]} /etc/docker")
        done = machine.run("sh /tmp/setup.sh", status=1)
        assert "left: /etc/docker/daemon.json could not be written" in done.stderr
        assert [path.name for path in (machine.root / "etc/docker").iterdir()] == ["daemon.json"]
        assert (machine.root / "etc/docker/daemon.json").read_text() == own
        assert machine.run("sparkguard-doctor --setup=undo | sh", status=None).returncode == 0
        assert not (machine.root / "var/lib/sparkguard-setup").exists()
    finally:
        machine.run("umount /etc/docker")


def test_what_a_running_container_needs_stays_until_it_has_ended(machine):
    """Podman cannot end a container whose runtime it does not know any more."""
    machine.run("sparkguard-doctor --setup | sh")
    process = machine.start(f"{RUN} --name held --rootfs /image sleep 300")
    try:
        listed = "podman ps --format '{{.Names}}'"
        wait_until(lambda: process.poll() is not None or "held" in machine.run(listed).stdout, "the container is listed")
        assert process.poll() is None
        done = machine.run("sparkguard-doctor --setup=undo | sh", status=1)
        assert f"left: podman: containers run by {WRAPPERS}/podman-runtime" in done.stderr
    finally:
        killed = subprocess.run(machine.command("podman kill held"), capture_output=True, text=True)
        process.communicate(timeout=60)
    assert killed.returncode == 0, killed.stderr
    assert "/run/sparkguard/containers/" in machine.run("cat /proc/self/mounts").stdout  # kept for the report
    machine.run("sparkguard-doctor --setup=undo | sh")
    machine.run("test -e /run/sparkguard", status=1)
    assert not (machine.root / f".{WRAPPERS}").exists() and not (machine.root / "var/lib/sparkguard-setup").exists()


def test_docker_is_set_up_and_undone_without_a_restart(machine):
    """As an administrator would do it who was given root by sudo, while dockerd runs."""
    run = "docker run --rm --network none -v /usr:/usr:ro"
    guard = f"-v /run/sparkguard/shared:/run/sparkguard/shared -v {LIBRARY}:{LIBRARY}:ro -e SPARKGUARD_DIR=/run/sparkguard/shared -e LD_PRELOAD={LIBRARY}"

    def has_default(name):
        wait_until(lambda: json.loads(machine.run(f"python3 -c '{INFO}'").stdout)["DefaultRuntime"] == name, name, step=0.1)

    with dockerd(machine):
        machine.run("tar -C /image --exclude=./usr/* -c . | docker import - image")
        machine.run(f"export SUDO_USER=tester; sparkguard-doctor --setup | sh")
        assert "tester" in machine.run("getent group sparkguard").stdout
        has_default("sparkguard")
        assert machine.run(f"{run} image sh -c 'echo hello; exit 7'", status=7).stdout == "hello\n"
        code = "import sys; held = bytearray(int(sys.argv[1]) << 20)"
        machine.run("rm -f /tmp/nvidia")
        assert_guarded(machine, f"{run} --runtime=nvidia image")
        assert " create " in machine.run("cat /tmp/nvidia").stdout
        swept = machine.run(f"sparkguard-sweep --unclean --json -p n=50,100 -- {run} {guard} image python3 -c '{code}' {{n}}")
        assert [run["status"] for run in json.loads(swept.stdout)["runs"]] == ["ok", "ok"]
        machine.run(f"{run.replace('--rm', '-d --name held')} image sleep 300")
        done = machine.run("sparkguard-doctor --setup=undo | sh", status=1)
        assert f"left: docker: containers run by {WRAPPERS}/docker-runtime" in done.stderr and "1 containers of Docker" in done.stdout
        machine.run("docker rm -f held")
        machine.run(f"rm -rf /var/lib/sparkguard/* && sparkguard-doctor --setup=undo | sh")
        has_default("runc")
        assert machine.run(f"{run} image echo hello").stdout == "hello\n"
        assert machine.run(f"{run} --runtime=nvidia image sh -c 'echo $LD_PRELOAD'").stdout == "\n"
    assert machine.run("getent group sparkguard", status=2).stdout == ""
