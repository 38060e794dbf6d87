"""sparkguard-doctor --setup and --setup=undo in a root file system made of files: what they write, that undo leaves nothing,
and what they do with files that are damaged, edited or not ours."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from setup_root import (  # noqa: F401 - and fixtures
    CONTAINERD, DAEMON, LIBRARY, OLLAMA, PAM, PODMAN, PROGRAMS, STATE, SYSTEM, WRAPPERS, Root, ready, ready_once, shellcheck, system_files,
)  # fmt: skip

pytestmark = pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("groupadd"), reason="groupadd needs root")
EXAMPLES = Path(__file__).resolve().parents[3] / "scripts/examples"


@pytest.fixture
def root(tools, tmp_path):
    return Root(tools, tmp_path / "root")


def drop(root, *paths):
    for path in paths:
        (root.path / path).unlink()


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


def test_only_services_that_are_there_get_a_drop_in(root):
    root.write("etc/systemd/system/jupyterhub@.service", "[Service]\nExecStart=/opt/jupyter\n")
    root.write("etc/systemd/system/jupyter x.service", "[Service]\n")
    said = root.set_up()
    assert "    systemctl restart jupyterhub@*.service\n    systemctl restart ollama.service\n" in said
    drop_ins = sorted(str(path.relative_to(root.path)) for path in (root.path / "etc/systemd/system").glob("*.d/*"))
    assert drop_ins == ["etc/systemd/system/jupyterhub@.service.d/60-sparkguard.conf", OLLAMA]
    assert f"Environment=LD_PRELOAD=/{LIBRARY}\n" in root.drop_in("ollama.service")


# ---- what it leaves -------------------------------------------------------------------------------------------------

DAMAGED = {
    "comment": b'{ // a comment\n "log-driver": "local" }\n',
    "byte-order-mark": b'\xef\xbb\xbf{"log-driver": "local"}\n',
    "trailing-comma": b'{"log-driver": "local",}\n',
    "empty": b"",
    "latin-1": b'{"log-driver": "\xe9"}\n',
    "zero-byte": b'{"log-driver": "local"}\0\n',
    "two-objects": b"{}{}\n",
    "twice-the-key": b'{"a": 1, "a": 2}\n',
    "list": b"[]\n",
    "odd-runtimes": b'{"runtimes": []}\n',
    "odd-default": b'{"default-runtime": 1}\n',
    "unknown-default": b'{"default-runtime": "kata"}\n',
    "default-with-arguments": b'{"default-runtime": "x", "runtimes": {"x": {"path": "/usr/sbin/runc", "runtimeArgs": ["-v"]}}}\n',
    "default-not-installed": b'{"default-runtime": "x", "runtimes": {"x": {"path": "/nowhere/$(touch x)"}}}\n',
    "zero-in-a-key": b'{"a\\u0000b": 1}\n',
    "lone-surrogate": b'{"a": "\\ud800"}\n',
    "deep": b'{"a": ' + b"[" * 4000 + b"]" * 4000 + b"}\n",
    "escaped-key": b'{"runtim\\u0065s": {}}\n',
    "large": b'{"a": "' + b"x" * (1 << 20) + b'"}\n',
}
SAID_OF = {
    "default-not-installed": "docker: its default runtime is not installed",
    "escaped-key": f"/{DAEMON} could not be written: it spells its keys in another way than others do",
}
SHOWN = ("comment", "default-not-installed", "zero-byte", "zero-in-a-key", "lone-surrogate")
DAMAGE_TO_RUN = [pytest.param(name, marks=() if name in SHOWN else pytest.mark.long) for name in DAMAGED]


@pytest.mark.parametrize("name", DAMAGE_TO_RUN)
def test_a_damaged_daemon_json_is_left_and_said_so_and_the_rest_is_done(root, name):
    root.write(DAEMON, DAMAGED[name], 0o600)
    before = root.state()
    said = root.set_up(status=1)
    assert f"left: {SAID_OF.get(name, f'Docker, /{DAEMON}: ')}" in said
    assert (root.path / DAEMON).read_bytes() == DAMAGED[name]
    assert (root.path / PODMAN).is_symlink() and "pam_env.conf" in root.read(PAM)
    root.undo()
    assert root.state() == before


def test_symbolic_links_are_left(root):
    paths = (DAEMON, CONTAINERD, "etc/tmpfiles.d/sparkguard.conf", PODMAN)
    for path in paths:
        (root.path / path).parent.mkdir(parents=True, exist_ok=True)
        (root.path / path).unlink(missing_ok=True)
        (root.path / path).symlink_to("elsewhere")
    before = root.state()
    said = root.set_up(status=1)
    for path in paths:
        assert f"/{path}" in said and os.readlink(root.path / path) == "elsewhere"
    root.undo()
    assert root.state() == before


KEPT = '{"max": 9223372036854775808, "small": 0.1, "exact": 1.0, "large": 1e30, "deep": [[{"a": "\\u0000 \\"}{ "}]] ,\t"z":{ }}'


@pytest.mark.parametrize("text", [KEPT, KEPT.replace("{", "{\n ", 1), '{"runtimes": { } , ' + KEPT[1:], '{"default-runtime":"runc",' + KEPT[1:], "{ }\n"])
def test_what_others_have_in_daemon_json_stays_as_they_wrote_it(root, text):
    root.write(DAEMON, text)
    root.set_up()
    merged = root.read(DAEMON)
    assert json.loads(merged)["default-runtime"] == "sparkguard"
    assert KEPT[1:-1] in merged or "max" not in text
    root.write(DAEMON, merged + "\n")  # edited since: only our part goes
    root.undo()
    assert json.loads(root.read(DAEMON)) == {name: value for name, value in json.loads(text).items() if text != "x"}
    assert KEPT[1:-1] in root.read(DAEMON) or "max" not in text


@pytest.mark.parametrize("place", ["usr/lib/systemd/system/docker.service", "etc/systemd/system/docker.service.d/own.conf", "etc/default/docker"])
def test_options_of_dockerds_own_command_line_are_not_repeated(root, place):
    """dockerd does not start where a directive is in both."""
    root.write("usr/lib/systemd/system/docker.service", "[Service]\nExecStart=/usr/sbin/dockerd\n")
    root.write(place, "# --default-runtime=no\n[Service]\nExecStart=/usr/sbin/dockerd --default-runtime=crun\n")
    assert "dockerd is started with --default-runtime" in root.set_up(status=1)
    assert "sparkguard" not in root.read(DAEMON)


def test_what_others_preload_is_left(root):
    root.write("usr/lib/systemd/system/ollama.service", "[Service]\nEnvironment=LD_PRELOAD=/usr/lib/jemalloc.so\n")
    root.write("etc/environment", "LD_PRELOAD=/usr/lib/jemalloc.so\n")
    said = root.set_up(status=1)
    assert "left: ollama.service sets LD_PRELOAD already" in said and "left: logins: /etc/environment sets LD_PRELOAD" in said
    assert not (root.path / OLLAMA).exists() and "pam_env.conf" not in root.read(PAM)


def test_a_file_of_our_name_that_is_not_ours_is_left(root):
    root.write(OLLAMA, "[Service]\nEnvironment=X=1\n")
    before = root.state()
    assert f"left: /{OLLAMA}: is there already" in root.set_up(status=1)
    assert root.read(OLLAMA) == "[Service]\nEnvironment=X=1\n"
    root.undo()
    assert root.state() == before


TEXTS = ["$(touch /x) `id` 'quoted' \"double\" \\ back", "END", "é ☃ \u202e", "a\nEND\nb", "%s %d\t"]


def test_no_text_of_a_file_is_a_command(root):
    own = {"labels": TEXTS, **{text: text for text in TEXTS}}
    root.write(DAEMON, json.dumps(own, ensure_ascii=False, indent=0))
    root.write(CONTAINERD, "version = 2\n" + "".join(f"# {text}\n# END\n" for text in TEXTS[:3]))
    before = root.state()
    root.set_up()
    assert json.loads(root.read(DAEMON)).items() > own.items()
    root.undo()
    assert root.state() == before


# ---- what was edited in between -------------------------------------------------------------------------------------


def test_of_an_edited_daemon_json_only_our_part_is_taken(root):
    root.write(DAEMON, '{"default-runtime": "mine", "runtimes": {"mine": {"path": "/usr/bin/crun"}}}')
    root.set_up()
    edited = json.loads(root.read(DAEMON))
    edited["runtimes"]["another"] = {"path": "/usr/sbin/runc"}
    edited["debug"] = True
    root.write(DAEMON, json.dumps(edited), 0o600)
    assert f"took our part out of /{DAEMON}" in root.undo()
    assert json.loads(root.read(DAEMON)) == {
        "default-runtime": "mine",
        "runtimes": {"mine": {"path": "/usr/bin/crun"}, "another": {"path": "/usr/sbin/runc"}},
        "debug": True,
    }
    assert (root.path / DAEMON).stat().st_mode & 0o777 == 0o600
    assert not (root.path / STATE).exists()


def test_a_default_runtime_that_was_chosen_since_stays(ready):
    merged = json.loads(ready.read(DAEMON))
    ready.write(DAEMON, json.dumps({**merged, "default-runtime": "runc"}))
    ready.undo()
    assert json.loads(ready.read(DAEMON)) == {"log-driver": "local", "default-runtime": "runc"}


def test_a_daemon_json_that_is_damaged_since_is_for_a_person(ready):
    ready.write(DAEMON, '{"runtimes": ')
    assert f"left: /{DAEMON} was edited and is no JSON" in ready.undo(status=1)
    assert ready.read(DAEMON) == '{"runtimes": '
    ready.write(DAEMON, '{"debug": true}')
    ready.undo()
    assert json.loads(ready.read(DAEMON)) == {"debug": True}
    assert not (ready.path / STATE).exists()


def test_out_of_edited_text_only_our_lines_are_taken(ready):
    ready.write(CONTAINERD, "# above\n" + ready.read(CONTAINERD) + "# below\n")
    ready.undo()
    assert ready.read(CONTAINERD).startswith("# above\nversion = 2\n") and "sparkguard" not in ready.read(CONTAINERD)
    assert not (ready.path / STATE).exists()


def test_a_file_of_ours_that_was_edited_is_left_until_it_is_gone(ready):
    ready.write(OLLAMA, ready.drop_in("ollama.service") + "Environment=SPARKGUARD_LIMIT=40G\n")
    assert f"left: /{OLLAMA}: is there already and not from here, or was edited" in ready.set_up(status=1)
    assert f"left: /{OLLAMA} was edited since" in ready.undo(status=1)
    assert "SPARKGUARD_LIMIT" in ready.read(OLLAMA) and (ready.path / STATE / "list").exists()
    drop(ready, OLLAMA)
    ready.undo()
    assert ready.state() == ready.before


def test_what_was_edited_before_a_second_set_up_is_not_lost(ready):
    merged = json.loads(ready.read(DAEMON))
    ready.write(DAEMON, json.dumps({**merged, "default-runtime": "runc", "debug": True}))
    ready.set_up()
    assert json.loads(ready.read(DAEMON))["default-runtime"] == "sparkguard"
    ready.undo()
    assert json.loads(ready.read(DAEMON)) == {"log-driver": "local", "debug": True}


def test_folders_in_which_others_have_files_stay(root):
    drop(root, DAEMON)
    (root.path / "etc/docker").rmdir()
    root.set_up()
    root.write("etc/docker/key.json", "{}")
    root.write("var/lib/sparkguard/1.segment", "x")
    root.write("run/sparkguard/shared/machine.ledger", "x")
    said = root.undo()
    assert "kept /etc/docker, which is not empty" in said and "kept /var/lib/sparkguard" in said
    # Another group could be given its number, and with that the records.
    assert "kept the group sparkguard, which owns /var/lib/sparkguard" in said and "sparkguard:" in root.read("etc/group")
    assert root.read("etc/docker/key.json") == "{}" and not (root.path / "run/sparkguard").exists()
    assert not (root.path / STATE).exists()


def test_a_set_up_that_was_cut_off_can_be_undone_and_gone_on_with(root):
    """The list has a step before it is done: without the step undo has nothing to do for it."""
    before = root.state()
    root.set_up()
    after = root.state()
    root.write(DAEMON, before[DAEMON][3])
    drop(root, OLLAMA)
    root.set_up()
    gone_on = root.state()
    assert gone_on == after
    root.write(DAEMON, before[DAEMON][3])
    drop(root, OLLAMA)
    root.undo()
    assert root.state() == before


ODD_LINES = ("link /etc/passwd", "link /../x", "folder /etc", "folder /;touch x", "shared /etc", "member $(touch x)", "rm /x", "link", "x" * 9999, "\\")


def test_lines_that_no_set_up_has_written_do_no_harm(ready):
    ready.write("etc/passwd", "root:x:0:0::/root:/bin/sh\n")
    ready.write(f"{STATE}/list", ready.read(f"{STATE}/list") + "".join(f"{line}\n" for line in ODD_LINES))
    ready.undo(status=1)
    assert ready.read("etc/passwd") == "root:x:0:0::/root:/bin/sh\n" and (ready.path / "etc/group").exists()
    assert "pam_env.conf" not in ready.read(PAM) and "sparkguard" not in ready.read(DAEMON) and not (ready.path / PODMAN).is_symlink()


def test_an_engines_part_stays_while_containers_run_by_it(ready):
    """Podman cannot end a container whose runtime it does not know any more."""
    options = ready.write("run/containerd/io.containerd.runtime.v2.task/moby/1/options.json", f'{{"binary_name":"/{WRAPPERS}/docker-runtime"}}')
    hosts = ready.write("var/lib/docker/containers/1/hostconfig.json", '{"Runtime":"sparkguard"}')
    said = ready.undo(status=1)
    assert said.count(f"left: docker: containers run by /{WRAPPERS}/docker-runtime") == 1 and "1 containers of Docker" in said
    assert (ready.path / WRAPPERS / "docker-runtime").exists() and "sparkguard" in ready.read(DAEMON)
    assert not (ready.path / PODMAN).exists() and "sparkguard" not in ready.read(CONTAINERD)
    options.unlink()
    hosts.unlink()
    ready.undo()
    for folder in ("run/containerd", "var/lib/docker"):
        shutil.rmtree(ready.path / folder)
    assert ready.state() == ready.before


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
