"""What sparkguard-doctor --setup leaves as it is, and what is edited between it and --setup=undo, in a root file system made of files."""

import json
import os
import shutil

import pytest
from setup_root import CONTAINERD, DAEMON, OLLAMA, PAM, PODMAN, STATE, WRAPPERS, Root, drop, ready, ready_once  # noqa: F401 - and fixtures

pytestmark = pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("groupadd"), reason="groupadd needs root")


@pytest.fixture
def root(tools, tmp_path):
    return Root(tools, tmp_path / "root")


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
