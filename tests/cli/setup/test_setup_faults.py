"""sparkguard-doctor --setup and --setup=undo where something fails, is damaged or was there before: no engine names what is not
there, no line of others is lost, and what is left is said. In a root file system made of files."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from setup_root import CONTAINERD, DAEMON, OLLAMA, PAM, PODMAN, STATE, WRAPPERS, Root, ready, ready_once, shellcheck  # noqa: F401 - and fixtures

SCRIPTS = Path(__file__).resolve().parents[3] / "scripts"
pytestmark = pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("groupadd"), reason="groupadd needs root")


@pytest.fixture
def root(tools, tmp_path):
    return Root(tools, tmp_path / "root")


# ---- what an engine names is there ----------------------------------------------------------------------------------


def test_an_engine_whose_wrapper_cannot_be_written_does_not_name_it(root):
    root.write(WRAPPERS, "no folder")
    before = {name: value for name, value in root.state().items() if name in (DAEMON, CONTAINERD)}
    said = root.set_up(status=1)
    for engine in ("docker", "podman", "containerd"):
        assert f"left: {engine}: /{WRAPPERS}/{engine}-runtime cannot be executed" in said
    assert {name: root.state()[name] for name in before} == before and not (root.path / PODMAN).exists()
    assert "pam_env.conf" in root.read(PAM)


@pytest.mark.parametrize("rewritten", [False, True])
def test_a_wrapper_stays_while_its_engines_file_names_it(ready, rewritten):
    if rewritten:  # a second set-up writes the wrapper anew
        ready.write("usr/local/bin/sparkguard-runtime", "", 0o755)
        assert f"wrote /{WRAPPERS}/docker-runtime" in ready.set_up()
        (ready.path / "usr/local/bin/sparkguard-runtime").unlink()
    merged = ready.read(DAEMON)
    ready.write(DAEMON, merged + "# no JSON")
    assert f"left: /{WRAPPERS}/docker-runtime: /{DAEMON} still names it" in ready.undo(status=1)
    assert (ready.path / WRAPPERS / "docker-runtime").exists() and not (ready.path / WRAPPERS / "podman-runtime").exists()
    ready.write(DAEMON, merged)
    ready.undo()
    for folder in ("usr/local/bin",) if rewritten else ():
        (ready.path / folder).rmdir()
    assert ready.state() == ready.before


def by_name(root):
    return "/usr/bin/sparkguard-runtime"


def by_script(root):
    root.write("usr/bin/mine", "#!/bin/sh\nexec sparkguard-runtime \"$@\"\n", 0o755)
    return "/usr/bin/mine"


def by_link(root):
    (root.path / "usr/bin/linked").symlink_to("sparkguard-runtime")
    return "/usr/bin/linked"


def by_wrapper(root):
    root.write(f"{WRAPPERS}/old-runtime", "", 0o755)
    return f"/{WRAPPERS}/old-runtime"


@pytest.mark.parametrize("kind", [by_name, by_script, by_link, by_wrapper])
def test_an_engine_that_has_sparkguard_runtime_by_hand_is_left(root, kind):
    """Behind a wrapper it would be its own next runtime, and no container would start."""
    path = kind(root)
    root.write(DAEMON, json.dumps({"default-runtime": "guarded", "runtimes": {"guarded": {"path": path}}}))
    root.write("etc/containers/containers.conf", f'[engine]\nruntime = "{path}"\n')
    root.write(CONTAINERD, f'version = 2\n[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]\n  BinaryName = "{path}"\n')
    before = root.state()
    said = root.set_up(status=1)
    assert said.count("is sparkguard-runtime already; that stays") == 3
    for name in (DAEMON, CONTAINERD):
        assert root.state()[name] == before[name]
    assert not (root.path / PODMAN).exists() and not list((root.path / WRAPPERS).glob("[dpc]*-runtime"))
    assert not (root.path / "etc/sparkguard/runtime.conf").exists()
    root.undo()
    assert root.state() == before


# ---- a block of lines that is damaged -------------------------------------------------------------------------------

END = "# sparkguard-doctor --setup: end\n"
DAMAGE = {
    "no-end": lambda text: text.replace(END, ""),
    "carriage-returns": lambda text: text.replace("\n", "\r\n"),
    "no-begin": lambda text: text.replace(END.replace("end", "begin"), ""),
    "two-begins": lambda text: text.replace(END.replace("end", "begin"), END.replace("end", "begin") * 2),
    "end-first": lambda text: END + text.replace(END, ""),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_no_line_of_others_is_lost_where_our_block_is_damaged(ready, damage):
    own = DAMAGE[damage](ready.read(CONTAINERD) + "# of others\n").encode()
    ready.write(CONTAINERD, own)
    ready.run(ready.doctor("--setup").stdout)
    assert (ready.path / CONTAINERD).read_bytes() == own
    assert f"left: /{CONTAINERD}: our block in it is damaged" in ready.undo(status=1)
    assert (ready.path / CONTAINERD).read_bytes() == own
    assert (ready.path / STATE / "list").exists() and (ready.path / STATE / "before" / CONTAINERD).exists()
    ready.write(CONTAINERD, "# of others\n")
    ready.undo()
    assert ready.read(CONTAINERD) == "# of others\n" and not (ready.path / STATE).exists()


# ---- names and lists that undo cannot take back ---------------------------------------------------------------------


def test_a_user_of_any_name_is_put_into_the_group_and_taken_out(root):
    root.write("etc/group", "root:x:0:\nsparkguard:x:77:\n")
    before = root.state()
    script = root.doctor("--setup").stdout
    for name in ("CORP\\alice", "a b", "-x", "alice+x@corp.example"):
        done = subprocess.run(["sh"], input=script, env={**root.environment(), "SUDO_USER": name}, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "") and f": usermod -aG sparkguard -- {name}\n" in done.stdout
        assert f"member {name}\n" in root.read(f"{STATE}/list")
        assert f": gpasswd -d -- {name} sparkguard\n" in root.undo()
    assert root.state() == before


TOLD = "sparkguard: containers that were made with it as their runtime start no more; make them anew"


@pytest.mark.parametrize("doctor, script, status", [(0, "true", 0), (0, "false", 0), (3, "touch done", 1), (139, "touch done", 1)])
def test_the_package_stays_where_its_set_up_cannot_be_undone(tmp_path, doctor, script, status):
    """A pipe into a shell would hide that the doctor has printed no script."""
    (tmp_path / "list").touch()
    (tmp_path / "sparkguard-doctor").write_text(f"#!/bin/sh\necho 'echo ran; {script}'\nexit {doctor}\n")
    (tmp_path / "sparkguard-doctor").chmod(0o755)
    text = (SCRIPTS / "debian/prerm").read_text().replace("/var/lib/sparkguard-setup", str(tmp_path))
    shellcheck(text)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "TMPDIR": str(tmp_path)}
    run = lambda word: subprocess.run(["sh", "-s", word], input=text, env=env, cwd=tmp_path, capture_output=True, text=True)  # noqa: E731
    assert (run("upgrade").returncode, run("upgrade").stdout) == (0, "")
    done = run("remove")
    assert (done.returncode, done.stdout) == (status, "" if status else f"{TOLD}\nran\n")
    assert ("is not wholly undone" in done.stderr, "cannot be undone" in done.stderr) == (script == "false", status == 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["list", "sparkguard-doctor"]


def test_the_shared_directory_stays_while_containers_run(ready):
    options = ready.write("run/containerd/io.containerd.runtime.v2.task/moby/1/options.json", f'{{"binary_name":"/{WRAPPERS}/docker-runtime"}}')
    ready.write("run/sparkguard/shared/machine.ledger", "x")
    ready.undo(status=1)
    assert ready.read("run/sparkguard/shared/machine.ledger") == "x"
    options.unlink()
    ready.undo()
    assert not (ready.path / "run/sparkguard").exists()


# ---- the group and its directories ----------------------------------------------------------------------------------


def test_a_machine_without_systemd_has_the_group_and_the_directories_as_well(root, tmp_path):
    before = root.state()
    (tmp_path / "systemd-sysusers").symlink_to("/bin/false")
    done = root.run(f"PATH={tmp_path}:$PATH\n" + root.doctor("--setup").stdout)
    assert (done.returncode, done.stderr) == (0, "")
    assert "sparkguard:x:" in root.read("etc/group") and (root.path / "run/sparkguard/shared").stat().st_mode & 0o7777 == 0o2770
    root.undo()
    assert root.state() == before


def test_no_service_names_a_group_that_could_not_be_made(root, tmp_path):
    """systemd would start it no more: 216/GROUP."""
    before = root.state()
    for name in ("systemd-sysusers", "groupadd"):
        (tmp_path / name).symlink_to("/bin/false")
    done = root.run(f"PATH={tmp_path}:$PATH\n" + root.doctor("--setup").stdout)
    assert done.returncode == 1 and "left: the group sparkguard could not be made" in done.stderr
    assert "left: ollama.service: there is no group sparkguard" in done.stderr and "restart ollama" not in done.stdout
    assert not (root.path / OLLAMA).is_symlink()
    taken = root.run(root.doctor("--setup=undo").stdout)
    assert taken.returncode == 0 and root.state() == before
    root.set_up()
    assert "SupplementaryGroups=sparkguard" in root.drop_in("ollama.service")


@pytest.mark.parametrize("line", ["SupplementaryGroups=adm sparkguard", "Group=sparkguard"])
def test_the_group_stays_while_a_service_names_it(ready, line):
    ready.write("etc/systemd/system/mine.service.d/own.conf", f"[Service]\n{line}\n")
    said = ready.undo()
    assert "kept the group sparkguard, which /etc/systemd/system/mine.service.d/own.conf names" in said
    assert "sparkguard:" in ready.read("etc/group") and not (ready.path / STATE).exists()


@pytest.mark.parametrize("mode, owner, after", [(0o700, 0, 0o42770), (0o755, 0, 0o40755), (0o700, 1000, 0o40700)])
def test_a_directory_that_the_runtime_made_for_root_alone_is_given_to_the_group(root, mode, owner, after):
    folder = root.path / "run/sparkguard/shared"
    folder.mkdir(parents=True)
    folder.chmod(mode)
    os.chown(folder, owner, owner)
    root.set_up()
    (gid,) = re.findall(r"^sparkguard:x?!?:(\d+):$", root.read("etc/group"), re.M)
    status = folder.stat()
    assert (oct(status.st_mode), status.st_uid, status.st_gid) == (oct(after), owner, int(gid) if after == 0o42770 else owner)
    root.undo()
    assert folder.exists() == (after != 0o42770)


# ---- what is left by engines and the package ------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["var/lib/containers/storage/db.sql", "home/me/.local/share/containers/storage/libpod/bolt_state.db"])
def test_undo_names_podmans_containers_that_start_no_more(ready, tmp_path, place):
    root, other = ready, ready.copy(tmp_path / "other")
    other.write(place, b'\0\xff{"id":"1","runtime":"crun"}\0')
    assert "make anew" not in other.undo()
    root.write(place, b'\0\xff{"id":"1","runtime":"sparkguard"}\0')
    shellcheck(root.doctor("--setup=undo").stdout)
    storage = root.path / place.partition("storage/")[0] / "storage"
    assert f"make anew, for they no longer start: containers of Podman in {storage} (podman ps --all)\n" in root.undo()


def test_a_purge_of_the_package_takes_the_runtimes_log(tmp_path):
    text = (SCRIPTS / "debian/postrm").read_text()
    shellcheck(text)
    for name in ("sparkguard-runtime.log", "sparkguard-runtime.log.1", "sparkguard-runtime.log.mine"):
        (tmp_path / name).touch()
    for word, left in (("remove", 3), ("upgrade", 3), ("purge", 1)):
        subprocess.run(["sh", "-s", word], input=text.replace("/var/log", str(tmp_path)), check=True, text=True)
        assert len(list(tmp_path.iterdir())) == left
