"""sparkguard-doctor --setup and --setup=undo in a root file system made of files: what they write, and that undo leaves nothing."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from lib.installed import system_files
from setup_root import (  # noqa: F401 - and fixtures
    CONTAINERD, DAEMON, LIBRARY, OLLAMA, PAM, PODMAN, PROGRAMS, STATE, SYSTEM, WRAPPERS, Root, drop, ready, ready_once, shellcheck,
)  # fmt: skip

pytestmark = pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("groupadd"), reason="groupadd needs root")
EXAMPLES = Path(__file__).resolve().parents[3] / "scripts/examples"


@pytest.fixture
def root(tools, tmp_path):
    return Root(tools, tmp_path / "root")


# ---- there and back -------------------------------------------------------------------------------------------------


def with_odd_modes(root):
    (root.path / DAEMON).chmod(0o600)
    os.chown(root.path / DAEMON, 12, 34)
    root.write(CONTAINERD, "version = 2 # no newline at its end", 0o640)
    os.chown(root.path / PAM, 12, 34)


def with_nothing(root):
    drop(root, *PROGRAMS, DAEMON, CONTAINERD, "usr/lib/systemd/system/ollama.service")
    for folder in ("etc/docker", "etc/containerd", "etc/pam.d", "usr/share/pam", "usr/share/pam-configs", "var/lib/pam", "usr/lib/systemd/system"):
        shutil.rmtree(root.path / folder)


def with_engines_and_no_files(root):
    drop(root, DAEMON, CONTAINERD)
    for folder in ("etc/docker", "etc/containerd"):
        (root.path / folder).rmdir()


def with_groups_of_before(root):
    root.write("etc/group-", "root:x:0:\n")
    root.write("etc/gshadow-", "root:*::\n", 0o640)


def with_a_group(root):
    root.write("etc/group", "root:x:0:\nsparkguard:x:77:me\n")


def with_empty_files(root):
    root.write(DAEMON, "{}")
    root.write(CONTAINERD, "")


def without_the_files(root):
    """As from a build folder, without `make install-system`."""
    shutil.rmtree(root.path / "usr/local/share")
    drop(root, "usr/share/pam-configs/sparkguard")


MACHINES = [without_the_files, lambda root: None, with_odd_modes, with_nothing, with_engines_and_no_files, with_groups_of_before, with_a_group, with_empty_files]


class Walk:
    """What a machine was before the set-up, the scripts, and the root after them."""

    def __init__(self, root, change):
        change(root)
        self.root = root
        self.before = root.state()
        self.script = root.doctor("--setup").stdout
        self.done = root.run(self.script, "dash" if shutil.which("dash") else "sh")
        self.undo = root.doctor("--setup=undo").stdout


@pytest.fixture(scope="module", params=MACHINES)
def walk(request, tools, tmp_path_factory):
    return Walk(Root(tools, tmp_path_factory.mktemp("walk") / "root"), request.param)


def test_undo_leaves_the_root_as_it_was_byte_for_byte(walk, tmp_path):
    root = walk.root.copy(tmp_path / "root")
    assert (walk.done.returncode, walk.done.stderr) == (0, "") and root.state() != walk.before
    root.undo()
    assert root.state() == walk.before


def test_twice_is_once(walk, tmp_path):
    root = walk.root.copy(tmp_path / "root")
    once = root.state()
    assert root.run(walk.script).returncode == 0
    assert root.state() == once
    assert "wrote" not in root.set_up()
    assert root.state() == once


def test_both_scripts_are_clean_and_print_nothing_that_a_plain_shell_does_not_know(walk):
    for script in (walk.script, walk.undo):
        shellcheck(script)
        assert max(len(line) for line in script.splitlines()) <= 160


def test_undo_can_be_run_again_and_where_nothing_was_set_up(root):
    before = root.state()
    assert "nothing is set up here" in root.undo()
    root.set_up()
    script = root.doctor("--setup=undo").stdout
    assert root.run(script).returncode == 0
    done = root.run(script)
    assert (done.returncode, done.stdout) == (0, "nothing is set up here\n")
    assert root.state() == before


def test_of_a_script_that_arrives_in_part_nothing_is_done(root):
    script = root.doctor("--setup").stdout
    before = root.state()
    for part in range(1, 20):
        root.run(script[: len(script) * part // 20])
        assert root.state() == before


def test_printing_changes_nothing(root):
    before = root.state()
    for option in ("--setup", "--setup=undo", "--print-cdi"):
        root.doctor(option)
    assert root.state() == before


# ---- what it writes -------------------------------------------------------------------------------------------------


def test_docker_gets_the_runtime_as_its_default_and_keeps_all_else(root):
    own = {"log-opts": {"max-size": "10m"}, "runtimes": {"nvidia": {"path": "runc", "args": []}}, "default-runtime": "nvidia", "x": [1, 2.5, None]}
    root.write(DAEMON, json.dumps(own))
    root.set_up()
    merged = json.loads(root.read(DAEMON))
    runtimes = {"nvidia": {"path": f"/{WRAPPERS}/docker-runtime-nvidia", "args": []}, "sparkguard": {"path": f"/{WRAPPERS}/docker-runtime"}}
    assert merged == {**own, "default-runtime": "sparkguard", "runtimes": runtimes}
    assert list(merged) == list(own)
    assert "\nnext = /usr/sbin/runc\n" in root.read("etc/sparkguard/runtime.conf")


def test_each_engine_keeps_the_runtime_that_it_had(root):
    root.write("usr/bin/nvidia-container-runtime", "", 0o755)
    root.write(DAEMON, '{"default-runtime": "nvidia", "runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}}')
    root.write(CONTAINERD, 'version = 2\n[plugins."io.containerd.grpc.v1.cri".containerd]\n  default_runtime_name = "mine"\n'
               '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.mine.options]\n  BinaryName = "/usr/bin/crun" # x\n')
    root.set_up()
    for engine, program in (("docker", "/usr/bin/nvidia-container-runtime"), ("podman", "/usr/bin/crun"), ("containerd", "/usr/bin/crun")):
        wrapper = root.read(f"{WRAPPERS}/{engine}-runtime")
        assert f"SPARKGUARD_NEXT_RUNTIME={program}\n" in wrapper and wrapper.endswith(f'exec {program} "$@"\n')
        assert os.access(root.path / WRAPPERS / f"{engine}-runtime", os.X_OK)
    assert root.read("etc/sparkguard/runtime.conf").splitlines()[1:] == [
        "next = /usr/bin/nvidia-container-runtime",
        f"library = /{LIBRARY}",
        "shared = /run/sparkguard/shared",
    ]


def test_a_wrapper_starts_containers_also_when_sparkguard_runtime_is_gone(ready, tmp_path):
    wrapper = ready.read(f"{WRAPPERS}/podman-runtime")
    for name in ("usr/bin/sparkguard-runtime", "usr/bin/crun"):
        ready.write(name, f'#!/bin/sh\necho {name} "${{SPARKGUARD_NEXT_RUNTIME:-}}" "$@"\nexit 7\n', 0o755)
    there = wrapper.replace(" /usr/bin", f" {ready.path}/usr/bin")
    run = lambda: subprocess.run(["sh", "-s", "run", "a b"], input=there, capture_output=True, text=True)  # noqa: E731
    assert (run().stdout, run().returncode) == ("usr/bin/sparkguard-runtime /usr/bin/crun run a b\n", 7)
    drop(ready, "usr/bin/sparkguard-runtime")
    assert (run().stdout, run().returncode) == ("usr/bin/crun  run a b\n", 7)


def test_what_is_not_installed_is_left_out(root):
    drop(root, "usr/sbin/dockerd", "usr/bin/containerd")
    root.set_up()
    assert json.loads(root.read(DAEMON)) == {"log-driver": "local"}
    assert "sparkguard" not in root.read(CONTAINERD) and (root.path / PODMAN).is_symlink()


def test_without_sparkguard_runtime_the_engines_are_left_and_logins_are_not(root):
    drop(root, "usr/bin/sparkguard-runtime")
    said = root.set_up(status=1)
    assert "left: docker: sparkguard-runtime is not installed" in said
    assert f"pam_env.so conffile=/{SYSTEM}/pam_env.conf readenv=0\n" in root.read(PAM)
    assert f"LD_PRELOAD DEFAULT=/{LIBRARY} OVERRIDE=${{LD_PRELOAD}}\n" in root.read(f"{SYSTEM}/pam_env.conf")
    assert not (root.path / PODMAN).exists()


def test_without_a_library_there_is_no_script(root):
    drop(root, LIBRARY)
    for option in ("--setup", "--print-cdi"):
        done = root.doctor(option)
        assert (done.returncode, done.stdout) == (3, "") and "is not installed" in done.stderr


def test_what_others_than_root_can_replace_is_not_for_all_logins(guarded_tools, tmp_path):
    for name in ("sparkguard-doctor", "libsparkguard.so"):
        shutil.copy(guarded_tools / name, tmp_path / name)
    shutil.copytree(f"{system_files()}/{SYSTEM}", tmp_path / "system")
    done = lambda: subprocess.run([tmp_path / "sparkguard-doctor", "--setup"], env={"PATH": os.environ["PATH"]}, capture_output=True, text=True)  # noqa: E731
    good = done()
    assert (good.returncode, good.stderr) == (0, "") and f"\nlibrary={tmp_path}/libsparkguard.so\n" in good.stdout
    for file in (tmp_path / "libsparkguard.so", tmp_path / "system/setup.sh"):
        os.chown(file, 1000, 1000)
        bad = done()
        assert (bad.returncode, bad.stdout) == (3, "") and "others than root can replace" in bad.stderr
        os.chown(file, 0, 0)
    tmp_path.chmod(0o777)
    assert (done().returncode, done().stdout) == (3, "")


def test_the_shared_directories_are_the_groups_and_nobody_elses(ready):
    (gid,) = re.findall(r"^sparkguard:x?!?:(\d+):$", ready.read("etc/group"), re.M)
    for folder in ("run/sparkguard/shared", "var/lib/sparkguard"):
        status = (ready.path / folder).stat()
        assert (oct(status.st_mode), status.st_uid, status.st_gid) == (oct(0o42770), 0, int(gid))
    unit = ready.read(f"{SYSTEM}/run-sparkguard-shared.mount")  # at each boot a file system of its own
    assert os.readlink(ready.path / "etc/systemd/system/local-fs.target.wants/run-sparkguard-shared.mount").endswith(f"/{SYSTEM}/run-sparkguard-shared.mount")
    assert re.search("^Options=size=64m,nr_inodes=8192,mode=2770,gid=sparkguard,nosuid,nodev,noexec$", unit, re.M)
    # Root acts on this list: members of the group must not be able to replace it.
    for folder in (STATE, "var/lib"):
        assert (ready.path / folder).stat().st_mode & 0o022 == 0


def test_containerd_is_given_a_runtime_class_by_its_files_version(root):
    for text, plugin in (
        ('version = 2\n[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]\nSystemdCgroup = true\n', "io.containerd.grpc.v1.cri"),
        ("version = 3\n[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]\n  SystemdCgroup = true\n", "io.containerd.cri.v1.runtime"),
    ):
        root.write(CONTAINERD, text)
        root.set_up()
        added = root.read(CONTAINERD)
        assert added.startswith(text)
        assert f'[plugins."{plugin}".containerd.runtimes.sparkguard]\n' in added and added.count("SystemdCgroup = true") == 2
        root.undo()
        assert root.read(CONTAINERD) == text


def test_containerd_of_an_old_file_is_left_and_of_docker_alone_is_passed_over(root):
    root.write(CONTAINERD, "[plugins.cri]\n")
    assert f"left: containerd, /{CONTAINERD}: containerd would not take a runtime of ours" in root.set_up(status=1)
    root.undo()
    root.write(CONTAINERD, 'disabled_plugins = ["cri"]\n')
    assert "its CRI plugin is disabled" in root.set_up()
    assert root.read(CONTAINERD) == 'disabled_plugins = ["cri"]\n'


ODD_CONTAINERD = {
    "inline": 'version = 2\n[plugins]\n"io.containerd.grpc.v1.cri" = {containerd = {default_runtime_name = "runc"}}\n',
    "whole": 'version = 2\nplugins = {"io.containerd.grpc.v1.cri" = {containerd = {default_runtime_name = "runc"}}}\n',
    "imports": 'version = 2\nimports = ["/etc/containerd/conf.d/*.toml"]\n',
    "damaged": "version = 2\n[plugins\n",
    "another-kind": 'version = 2\n[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]\nruntime_type = "io.containerd.kata.v2"\n',
    "no-such-default": 'version = 2\n[plugins."io.containerd.grpc.v1.cri".containerd]\ndefault_runtime_name = "nowhere"\n',
}


@pytest.mark.parametrize("kind", ODD_CONTAINERD)
def test_a_file_of_containerds_that_would_have_to_be_guessed_at_is_left(root, kind):
    root.write(CONTAINERD, ODD_CONTAINERD[kind])
    before = root.state()
    assert "left: containerd" in root.set_up(status=1)
    assert root.read(CONTAINERD) == ODD_CONTAINERD[kind]
    root.undo()
    assert root.state() == before


def test_a_containerd_that_cannot_be_asked_is_left(root):
    root.write("usr/bin/containerd", "#!/bin/sh\n", 0o755)
    assert f"left: containerd, /{CONTAINERD}: containerd config dump does not say" in root.set_up(status=1)


@pytest.mark.parametrize("newest", [2, 3])
@pytest.mark.parametrize("text", ["", "version = 2\n", 'version = 2\n[plugins."io.containerd.grpc.v1.cri".containerd]\nsnapshotter = "zfs"\n'])
def test_the_runtimes_that_containerd_has_by_itself_stay(root, text, newest):
    """A table of runtimes in the file takes their place."""
    root.write("usr/bin/containerd", root.read("usr/bin/containerd").replace("NEWEST = 2", f"NEWEST = {newest}"), 0o755)
    root.write(CONTAINERD, text)
    root.set_up()
    dump = subprocess.run([root.path / "usr/bin/containerd", "--config", root.path / CONTAINERD, "config", "dump"], capture_output=True, text=True).stdout
    plugin = "io.containerd.cri.v1.runtime" if newest == 3 else "io.containerd.grpc.v1.cri"
    for name, program in (("runc", ""), ("sparkguard", f"/{WRAPPERS}/containerd-runtime")):
        section = dump.replace("'", '"').partition(f'[plugins."{plugin}".containerd.runtimes.{name}.options]\n')[2]
        assert section.startswith(f'BinaryName = "{program}"\n'), dump
    assert root.read(CONTAINERD).startswith(text or f"# sparkguard-doctor --setup: begin\nversion = {newest}\n")


def test_no_service_of_roots_and_no_root_joins_the_groups_directory(root):
    """Others can write there."""
    for name, head in (("jupyter-a", ""), ("jupyter-b", "User=root\n"), ("jupyter-c", "DynamicUser=yes\n"), ("jupyter-d", "User=me\n")):
        root.write(f"etc/systemd/system/{name}.service", f"[Service]\n{head}ExecStart=/opt/jupyter\n")
    root.set_up()
    joined = [name for name in "abcd" if "SPARKGUARD_DIR" in root.drop_in(f"jupyter-{name}.service")]
    assert joined == ["c", "d"] and "LD_PRELOAD" in root.drop_in("jupyter-a.service")
    shared = root.path / "run/sparkguard/shared"
    library = root.path / LIBRARY
    root.path.chmod(0o755)
    for folder in (*root.path.parents, shared, shared.parent):
        folder.chmod(folder.stat().st_mode | 0o001)
    os.chown(shared, 1000, 1000)
    for file, say in (("profile.sh", '\necho "${SPARKGUARD_DIR:-}"'), ("user-generator.sh", "")):
        script = root.read(f"{SYSTEM}/{file}").replace("/run/sparkguard/shared", str(shared)).replace(f"/{LIBRARY}", str(library))
        for user, is_joined in ((0, False), (1000, True), (1001, False)):
            done = subprocess.run(["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "sh", "-c", script + say], capture_output=True, text=True)
            assert (str(shared) in done.stdout) == is_joined, (file, user, done)


def test_undo_takes_away_what_the_runtime_has_mounted_for_containers(root):
    """A directory that the last one left, and a file of figures of one that runs."""
    root.set_up()
    own, shown = root.path / "run/sparkguard/containers/box", root.path / "run/sparkguard/promises/box"
    for path in (own, shown.parent):
        path.mkdir(parents=True)
    shown.touch()
    subprocess.run(["mount", "-t", "tmpfs", "none", own], check=True)
    (own / "promises").touch()
    subprocess.run(["mount", "--bind", own / "promises", shown], check=True)
    try:
        assert "could not be removed" not in root.undo() and not (root.path / "run/sparkguard").exists()
    finally:
        for path in (shown, own):
            subprocess.run(["umount", "--lazy", path], stderr=subprocess.DEVNULL)


def test_only_services_that_are_there_get_a_drop_in(root):
    root.write("etc/systemd/system/jupyterhub@.service", "[Service]\nExecStart=/opt/jupyter\n")
    root.write("etc/systemd/system/jupyter x.service", "[Service]\n")
    said = root.set_up()
    assert "    systemctl restart jupyterhub@*.service\n    systemctl restart ollama.service\n" in said
    drop_ins = sorted(str(path.relative_to(root.path)) for path in (root.path / "etc/systemd/system").glob("*.d/*"))
    assert drop_ins == ["etc/systemd/system/jupyterhub@.service.d/60-sparkguard.conf", OLLAMA]
    assert f"Environment=LD_PRELOAD=/{LIBRARY}\n" in root.drop_in("ollama.service")


# ---- the command line -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [["--setup=all"], ["--setup", "--json"], ["--setup", "--print-cdi"], ["--print-cdi", "--fix-script"], ["--setup", "undo"]])
def test_bad_usage(root, words):
    done = root.doctor(*words)
    assert (done.returncode, done.stdout) == (2, "") and done.stderr.count("\n") == 1


def test_a_full_disk_is_an_exit_status_of_3(root):
    with open("/dev/full", "w") as full:
        done = subprocess.run([root.program, "--setup"], env=root.environment(), stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 3 and "cannot write" in done.stderr


def test_cdi_names_this_hosts_library_and_shared_directory(root):
    for folder in ("run/sparkguard/shared", "srv/shared"):
        (root.path / folder).mkdir(parents=True)
    edits = json.loads(root.doctor("--print-cdi").stdout)["devices"][0]["containerEdits"]
    mounts = {mount["containerPath"]: mount["hostPath"] for mount in edits["mounts"]}
    assert mounts["/run/sparkguard/libsparkguard.so"] == f"/{LIBRARY}"
    assert mounts["/run/sparkguard/shared"] == "/run/sparkguard/shared" and len(mounts) == 2
    spark = root.doctor("--print-cdi").stdout.replace(f"/{LIBRARY}", "/usr/lib/aarch64-linux-gnu/libsparkguard.so")
    assert spark == (EXAMPLES / "docker/cdi.json").read_text()
    root.write("etc/sparkguard/runtime.conf", "shared = /srv/shared\n")
    assert '"hostPath": "/srv/shared"' in root.doctor("--print-cdi").stdout


def test_cdi_names_no_directory_that_is_not_there(ready):
    """An engine makes no container with such a mount."""
    whole = ready.doctor("--print-cdi")
    assert (whole.returncode, whole.stderr) == (0, "")
    (ready.path / "run/sparkguard/shared").rmdir()
    done = ready.doctor("--print-cdi")
    assert done.returncode == 1 and "/run/sparkguard/shared is missing and left out: sparkguard-doctor --setup makes it" in done.stderr
    whole, edits = (json.loads(each.stdout)["devices"][0]["containerEdits"] for each in (whole, done))
    assert edits["mounts"] == whole["mounts"][:1] and edits["env"] == whole["env"][:2] == ["LD_PRELOAD=/run/sparkguard/libsparkguard.so", "SPARKGUARD_HISTORY=off"]
