"""sparkguard-doctor --setup: what an engine has beside its default runtime is wrapped under its own name, and undone to the byte. In a
root file system made of files."""

import json
import os
import shutil
import subprocess

import pytest
from setup_root import CONTAINERD, DAEMON, PODMAN, STATE, WRAPPERS, Root, shellcheck

NVIDIA = "usr/bin/nvidia-container-runtime"
PODMAN_OTHERS = "etc/containers/containers.conf.d/61-sparkguard-runtimes.conf"
DOCKERS = """{
    "runtimes": {
        "nvidia": {"args": [], "path": "nvidia-container-runtime", "runtimeArgs": ["--debug"]},
        "typed" : { "runtimeType": "io.containerd.runc.v2", "options": {"BinaryName": "\\/usr\\/bin\\/crun", "SystemdCgroup": true} }
    }
}"""
PLUGINS = {2: "io.containerd.grpc.v1.cri", 3: "io.containerd.cri.v1.runtime"}
CLASSES = """version = {version}
[plugins."{plugin}".containerd]
  default_runtime_name = "runc"
  [plugins."{plugin}".containerd.runtimes]
    [plugins."{plugin}".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."{plugin}".containerd.runtimes.runc.options]
        BinaryName = "/usr/sbin/runc"
    [plugins."{plugin}".containerd.runtimes.nvidia]
      runtime_type = 'io.containerd.runc.v2'
      [plugins."{plugin}".containerd.runtimes.nvidia.options]
        BinaryName = '/usr/bin/nvidia-container-runtime' # of the toolkit
    [plugins."{plugin}".containerd.runtimes.nvidia-cdi.options]
      BinaryName = "/usr/sbin/runc"
"""
pytestmark = pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("groupadd"), reason="groupadd needs root")


@pytest.fixture
def root(tools, tmp_path):
    root = Root(tools, tmp_path / "root", has_pam=False)  # pam-auth-update would take a quarter of the time
    root.write(NVIDIA, "", 0o755)
    return root


def started_by(root, wrapper, has_runtime):
    """What a wrapper executes, and as whose next runtime; its programs are put below the root."""
    script = root.read(f"{WRAPPERS}/{wrapper}")
    shellcheck(script)
    for place in ("/usr/bin/", "/usr/sbin/"):
        script = script.replace(place, f"{root.path}{place}")
    for name in ("usr/bin/sparkguard-runtime", NVIDIA, "usr/sbin/runc", "usr/bin/crun"):
        root.write(name, '#!/bin/sh\necho "${0##*/} ${SPARKGUARD_NEXT_RUNTIME##*/} $*"\n', 0o755 if has_runtime or "sparkguard" not in name else 0o644)
    done = subprocess.run(["sh", "-c", script, "sh", "--debug", "create", "a b"], env={"PATH": os.environ["PATH"]}, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_each_runtime_of_docker_is_wrapped_under_its_own_name(root):
    root.write(DAEMON, DOCKERS)
    assert "are not guarded" not in root.set_up()
    runtimes = json.loads(root.read(DAEMON))["runtimes"]
    assert runtimes["nvidia"] == {"args": [], "path": f"/{WRAPPERS}/docker-runtime-nvidia", "runtimeArgs": ["--debug"]}
    assert runtimes["typed"]["options"] == {"BinaryName": f"/{WRAPPERS}/docker-runtime-typed", "SystemdCgroup": True}
    for name, program in (("nvidia", "nvidia-container-runtime"), ("typed", "crun")):
        assert started_by(root, f"docker-runtime-{name}", True) == f"sparkguard-runtime {program} --debug create a b"
        assert started_by(root, f"docker-runtime-{name}", False) == f"{program}  --debug create a b"


@pytest.mark.parametrize("engine", ["docker", "podman", "containerd"])
def test_a_second_set_up_changes_nothing_and_undo_leaves_the_bytes(root, engine):
    if engine == "docker":
        root.write(DAEMON, DOCKERS)
    elif engine == "podman":
        root.write("etc/containers/containers.conf", '[engine.runtimes]\nnvidia-container-runtime = [\n  "/usr/bin/nvidia-container-runtime",\n]\n')
    else:
        root.write(CONTAINERD, CLASSES.format(version=2, plugin=PLUGINS[2]))
    before = root.state()
    root.set_up()
    once = root.state()
    wrapped = {name for name in once if name.startswith(f"{WRAPPERS}/{engine}-runtime-")}
    assert len(wrapped) >= 2
    assert "wrote" not in root.set_up() and root.state() == once
    root.undo()
    assert root.state() == before


def test_of_an_edited_file_of_dockers_each_runtime_gets_its_program_back(root):
    root.write(DAEMON, DOCKERS)
    root.set_up()
    edited = json.loads(root.read(DAEMON))
    edited["runtimes"]["late"] = {"path": "/usr/sbin/runc"}
    root.write(DAEMON, json.dumps(edited))
    root.set_up()
    edited = json.loads(root.read(DAEMON))
    assert edited["runtimes"]["late"] == {"path": f"/{WRAPPERS}/docker-runtime-late"}
    edited["runtimes"]["nvidia"]["path"] = "/opt/other"
    root.write(DAEMON, json.dumps(edited))
    assert f"took our part out of /{DAEMON}" in root.undo()
    expected = json.loads(DOCKERS)["runtimes"] | {"late": {"path": "/usr/sbin/runc"}}
    expected["nvidia"]["path"] = "/opt/other"
    assert json.loads(root.read(DAEMON)) == {"runtimes": expected}
    assert not (root.path / WRAPPERS).exists() and not (root.path / STATE).exists()


def test_a_default_runtime_that_is_wrapped_already_is_found_behind_its_wrapper(root):
    root.write(DAEMON, DOCKERS)
    root.set_up()
    edited = json.loads(root.read(DAEMON)) | {"default-runtime": "nvidia"}
    del edited["runtimes"]["nvidia"]["runtimeArgs"]
    root.write(DAEMON, json.dumps(edited))
    root.set_up()
    assert started_by(root, "docker-runtime", True) == "sparkguard-runtime nvidia-container-runtime --debug create a b"


def test_what_cannot_be_wrapped_is_named_and_left(root):
    odd = "a'$(touch x)\n"
    for program in ("runsc", "crun-vm", "sandboxed"):
        root.write(f"usr/bin/{program}", "", 0o755)
    (root.path / "usr/bin/krun").symlink_to("crun")
    (root.path / "opt/renamed").mkdir(parents=True)
    (root.path / "opt/renamed/runc").symlink_to("../../usr/bin/runsc")
    runtimes = {
        "crun-vm": {"path": "/usr/bin/crun-vm"},
        "krun": {"path": "/usr/bin/krun"},
        "renamed": {"path": "/opt/renamed/runc"},
        "unknown": {"path": "/usr/bin/sandboxed"},
        odd: {"path": "runc"},
        "../x": {"path": "runc"},
        "absent": {"path": "/opt/absent"},
        "blank": {"path": "/opt/a b"},
        "gvisor": {"path": "/usr/bin/runsc"},
        "shim": {"runtimeType": "io.containerd.kata.v2"},
        "empty": {},
        "none": {"path": ""},
    }
    root.write(DAEMON, json.dumps({"runtimes": runtimes | {"guarded": {"path": "/usr/bin/sparkguard-runtime"}}}))
    for said in (root.set_up(), root.set_up()):
        named = {line.partition("--runtime=")[2].partition(" are not")[0] for line in said.splitlines() if "Docker: containers with" in line}
        assert {name.partition("'")[0] for name in named} == {name.partition("'")[0] for name in runtimes}
        assert "Docker: containers with --runtime=gvisor are not guarded; leave the option out\n" in said
    assert json.loads(root.read(DAEMON))["runtimes"].items() >= runtimes.items()
    assert [path.name for path in (root.path / WRAPPERS).glob("docker-*")] == ["docker-runtime"]


def test_a_default_runtime_that_is_not_known_is_named_and_stays(root):
    root.write("usr/bin/runsc", "", 0o755)
    own = json.dumps({"default-runtime": "gvisor", "runtimes": {"gvisor": {"path": "/usr/bin/runsc"}}})
    root.write(DAEMON, own)
    assert "left: docker: its default runtime, /usr/bin/runsc, is not runc, crun, youki or nvidia-container-runtime; that stays" in root.set_up(status=1)
    assert root.read(DAEMON) == own


def test_a_runtime_of_dockers_that_is_called_as_ours_is_kept(root):
    """Also where it is the default one, and where it was put into the file after a set-up."""
    for default in ({}, {"default-runtime": "sparkguard"}):
        own = json.dumps({"runtimes": {"sparkguard": {"path": "/usr/sbin/runc"}}} | default)
        root.write(DAEMON, own)
        assert f'left: Docker, /{DAEMON}: it has a runtime "sparkguard" that is not from here; give it another name' in root.set_up(status=1)
        assert root.read(DAEMON) == own
        root.undo()
        assert root.read(DAEMON) == own
    root.write(DAEMON, DOCKERS)
    root.set_up()
    root.write(DAEMON, own)
    assert root.undo()
    assert json.loads(root.read(DAEMON)) == json.loads(own)


def test_a_key_that_is_spelled_in_another_way_is_left(root):
    root.write(DAEMON, r'{"runtimes": {"nvidi\u0061": {"path": "runc"}, "mine": {"p\u0061th": "runc"}}}')
    said = root.set_up()
    assert "--runtime=nvidia are not" in said and "--runtime=mine are not" in said


def test_what_podman_is_told_of_its_default_runtime_rests_on_that_alone(root):
    """crun can do without cgroups, and is not the last one that is wrapped."""
    root.set_up()
    assert os.readlink(root.path / PODMAN) == "/usr/local/share/sparkguard/system/podman-crun.conf"


def test_podmans_runtimes_are_wrapped_by_a_file_of_their_own(root):
    root.write("usr/share/containers/containers.conf", '[engine]\n#crun = 1\n[engine.runtimes]\n#runsc = ["/usr/bin/runsc"]\nabsent = ["/opt/absent"]\n[x]\ny = 1\n')
    root.set_up()
    lines = root.read(PODMAN_OTHERS).splitlines()
    assert lines[1:] == ["[engine.runtimes]", f'crun = ["/{WRAPPERS}/podman-runtime-crun"]', f'runc = ["/{WRAPPERS}/podman-runtime-runc"]']
    assert started_by(root, "podman-runtime-runc", True) == "sparkguard-runtime runc --debug create a b"


@pytest.mark.parametrize("newest, version", [(2, 2), (3, 2), (3, 3)])
def test_runtimes_that_pods_name_are_wrapped_but_the_default_one(root, newest, version):
    root.write("usr/bin/containerd", root.read("usr/bin/containerd").replace("NEWEST = 2", f"NEWEST = {newest}"), 0o755)
    text = CLASSES.format(version=version, plugin=PLUGINS[version])
    root.write(CONTAINERD, text)
    root.set_up()
    expected = text.replace("'/usr/bin/nvidia-container-runtime'", f"'/{WRAPPERS}/containerd-runtime-nvidia'")
    head, _, tail = expected.rpartition('"/usr/sbin/runc"')
    assert root.read(CONTAINERD).startswith(f'{head}"/{WRAPPERS}/containerd-runtime-nvidia-cdi"{tail}')
    assert started_by(root, "containerd-runtime-nvidia", True) == "sparkguard-runtime nvidia-container-runtime --debug create a b"
    root.write(CONTAINERD, root.read(CONTAINERD) + "# edited\n")
    root.undo()
    assert root.read(CONTAINERD) == text + "# edited\n"


def test_runtimes_in_a_table_within_braces_are_named_and_left(root):
    plugin, kind = f'[plugins."{PLUGINS[2]}".containerd.runtimes.', 'runtime_type = "io.containerd.runc.v2"'
    text = f'version = 2\n{plugin}runc]\n  {kind}\n{plugin}nvidia]\n  {kind}\n  options = {{BinaryName = "/{NVIDIA}"}}\n'
    root.write(CONTAINERD, text)
    assert "containerd: pods of the runtime nvidia are not guarded\n" in root.set_up()
    assert root.read(CONTAINERD).startswith(text)


def test_undo_waits_for_a_container_of_a_runtime_with_arguments(root):
    """dockerd starts it by a script of its own."""
    root.write(DAEMON, DOCKERS)
    root.set_up()
    script = root.write("var/run/docker/runtimes/nvidia", f"#!/bin/sh\nexec /{WRAPPERS}/docker-runtime-nvidia --debug \"$@\"\n", 0o755)
    options = root.write("run/docker/containerd/daemon/io.containerd.runtime.v2.task/moby/1/options.json", '{"binary_name":"/var/run/docker/runtimes/nvidia"}')
    assert "left: docker: containers run by" in root.undo(status=1)
    assert (root.path / WRAPPERS / "docker-runtime-nvidia").exists()
    options.unlink()
    script.unlink()
    root.undo()
    assert not (root.path / WRAPPERS).exists()
