"""sparkguard-runtime: what it leaves for the host's report, what exec becomes, and that a fault is none of the container's."""

import json
import os
import re
import shutil
import stat
import subprocess

import pytest
from bundles import UNLIMITED, Bundle
from runtime_bundle import LIBRARY, NEXT, OWN, SHARED, bundle, image, runtime, sharing  # noqa: F401


# ---- what the host's report reads ---------------------------------------------------------------------------------------


def test_the_record_is_there_until_delete(runtime, bundle):
    bundle.change(lambda config: config["linux"].update(cgroupsPath="/docker/box"))
    runtime.create(bundle)
    record = runtime.record()
    assert {key: record[key] for key in ("id", "name", "cgroup", "guarded", "reason", "bundle")} == {
        "id": "box", "name": "box", "cgroup": "/docker/box", "guarded": True, "reason": None, "bundle": str(bundle.folder)}
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z", record["time"])
    folder = runtime.containers.stat()
    file = (runtime.containers / "box.json").stat()
    assert (folder.st_uid, stat.S_IMODE(folder.st_mode) & 0o777, file.st_uid, stat.S_IMODE(file.st_mode)) == (0, 0o755, 0, 0o644)
    runtime.passes_on("delete", "--force", "box")
    assert runtime.record() is None


def test_systemds_form_of_a_cgroup_is_a_path(runtime, bundle):
    bundle.change(lambda config: config["linux"].update(cgroupsPath="a-b.slice:docker:box"))
    runtime.create(bundle)
    assert runtime.record()["cgroup"] == "/a.slice/a-b.slice/docker-box.scope"


def test_records_of_containers_that_are_gone_are_removed(runtime, bundle):
    """`run` ends without a delete. The next runtime's own folder says whether a container is there."""
    for name in ("gone", "there"):
        runtime.passes_on("--root", runtime.folder / "state", "run", "--bundle", bundle.folder, name)
        os.utime(runtime.containers / f"{name}.json", (0, 0))
    (runtime.folder / "state/there").mkdir(parents=True)
    runtime.create(bundle)
    assert sorted(path.name for path in runtime.containers.glob("*.json")) == ["box.json", "there.json"]


FOLDERS = {
    "crun": ("crun", {"XDG_RUNTIME_DIR": "/own"}, (), "/own/crun/box"),
    "crun without": ("crun", {"XDG_RUNTIME_DIR": ""}, (), "/run/crun/box"),
    "runc": ("runc", {"XDG_RUNTIME_DIR": "/own"}, (), "/run/runc/box"),
    "nvidia": ("nvidia-container-runtime", {"XDG_RUNTIME_DIR": "/own"}, (), "/run/runc/box"),
    "another": ("next", {"XDG_RUNTIME_DIR": "/own"}, (), None),
    "given": ("crun", {"XDG_RUNTIME_DIR": "/own"}, ("--root", "/given"), "/given/box"),
    "relative": ("crun", {"XDG_RUNTIME_DIR": "/own"}, ("--root", "given"), "{here}/given/box"),
}


@pytest.mark.parametrize("case", FOLDERS)
def test_the_record_names_the_folder_that_the_next_runtime_keeps(runtime, bundle, case):
    """test_runtime_containers.py asks real ones."""
    name, environment, words, expected = FOLDERS[case]
    runtime.next = runtime.lines["next"] = runtime.next.rename(runtime.folder / name)
    runtime.passes_on(*words, "create", "--bundle", bundle.folder, "box", env=environment.items(), cwd=runtime.folder)
    assert runtime.record()["state"] == (expected and expected.format(here=runtime.folder))


def test_containers_of_two_engines_may_have_the_same_id(runtime, bundle, tmp_path):
    """Each engine has a --root of its own. The second path of the first is the same folder."""
    process = tmp_path / "process.json"
    process.write_text(json.dumps({"args": ["sh"], "env": [], "cwd": "/"}))
    before = process.read_bytes()
    one, other = ("--root", tmp_path / "one"), ("--root", tmp_path / "other")
    (tmp_path / "one/box").mkdir(parents=True)
    (tmp_path / "same").symlink_to("one")
    runtime.passes_on(*one, "create", "--bundle", bundle.folder, "box")
    runtime.passes_on(*other, "exec", "--process", process, "box")
    assert process.read_bytes() == before
    runtime.passes_on(*other, "delete", "--force", "box")
    assert runtime.record()["state"] == str(tmp_path / "one/box")
    runtime.passes_on("--root", tmp_path / "same", "exec", "--process", process, "box")
    assert variables_of(process)["LD_PRELOAD"] == LIBRARY
    runtime.passes_on("--root", tmp_path / "same", "delete", "--force", "box")
    assert runtime.record() is None


STATES = {"runc": ("state.json", "init_process_pid"), "crun": ("status", "pid")}


@pytest.mark.parametrize("kind", STATES)
@pytest.mark.parametrize("force", [("--force", "box"), ("-f", "box"), ("box", "--force")])
def test_the_record_of_a_running_container_is_removed_by_force_only(runtime, bundle, kind, force):
    """The next runtime deletes a running container by force only. A process of the test stands for the container's."""
    file, key = STATES[kind]
    state = runtime.folder / "state"
    words = ("--root", state)
    (state / "box").mkdir(parents=True)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as first:
        (state / "box" / file).write_text(json.dumps({key: first.pid, "x": [UNLIMITED] * 5000}))
        runtime.passes_on(*words, "create", "--bundle", bundle.folder, "box")
        runtime.passes_on(*words, "delete", "box")
        assert runtime.record()["id"] == "box"
        runtime.passes_on(*words, "delete", *force)
        assert runtime.record() is None
        runtime.passes_on(*words, "create", "--bundle", bundle.folder, "box")
        first.kill()
    runtime.passes_on(*words, "delete", "box")
    assert runtime.record() is None


def test_a_folder_of_records_that_others_can_change_is_not_used(runtime, bundle):
    elsewhere = runtime.folder / "elsewhere"
    elsewhere.mkdir()
    runtime.containers.parent.mkdir()
    runtime.containers.symlink_to(elsewhere)
    runtime.create(bundle)
    assert list(elsewhere.iterdir()) == [] and bundle.guarded() == "yes"
    assert bundle.read()["mounts"][-1]["type"] == "tmpfs"
    runtime.containers.unlink()
    runtime.containers.mkdir(parents=True)
    runtime.containers.chmod(0o777)
    runtime.create(bundle)
    assert list(runtime.containers.iterdir()) == []


def test_no_container_takes_the_place_of_anothers_record(runtime, bundle):
    """Directories and records are side by side: who is called box.json had the directory where the record of box would be."""
    runtime.create(bundle, name="box.json")
    assert bundle.guarded() == "yes" and bundle.read()["mounts"][-1]["type"] == "tmpfs"
    runtime.create(bundle, name="box")
    assert runtime.record() is not None and runtime.mounted().keys() == {"box"}


@pytest.mark.parametrize("name", ["../box", ".box", "a/b"])
def test_an_id_that_is_a_path_gets_no_record(runtime, bundle, name):
    runtime.create(bundle, name=name)
    assert [path for path in runtime.folder.rglob("*.json") if path != bundle.path] == []


NAMES = {
    "pod of containerd": {"io.kubernetes.cri.sandbox-name": "pod", "io.kubernetes.cri.container-name": "web"},
    "pod of CRI-O": {"io.kubernetes.pod.name": "pod", "io.kubernetes.container.name": "web"},
}


@pytest.mark.parametrize("engine", NAMES)
def test_a_pods_container_is_named_by_both(runtime, bundle, engine):
    bundle.change(lambda config: config.update(annotations=dict(NAMES[engine])))
    runtime.create(bundle)
    assert bundle.variables()["SPARKGUARD_JOB"] == runtime.record()["name"] == "pod.web"


def test_dockers_and_podmans_names_are_in_their_files(runtime, bundle, tmp_path):
    own = tmp_path / "docker"
    own.mkdir()
    (own / "config.v2.json").write_text('{"ID": "x", "Name": "/train"}')
    mount = {"destination": "/etc/hostname", "source": str(own / "hostname"), "type": "bind", "options": ["rbind"]}
    before = bundle.path.read_text()
    bundle.change(lambda config: config["mounts"].append(mount))
    runtime.create(bundle, name="0123456789ab" + "0" * 52)
    assert bundle.variables()["SPARKGUARD_JOB"] == "train"
    userdata = tmp_path / "overlay-containers/abc/userdata"
    userdata.mkdir(parents=True)
    (tmp_path / "overlay-containers/containers.json").write_text('[{"id": "x"}, {"id": "abc", "names": ["serve"]}]')
    (userdata / "config.json").write_text(before)
    runtime.passes_on("create", "--bundle", userdata, "abc")
    assert runtime.record("abc")["name"] == "serve"


def test_an_id_of_64_digits_is_shortened_as_engines_do(runtime, bundle):
    runtime.create(bundle, name="0123456789ab" + "0" * 52)
    assert bundle.variables()["SPARKGUARD_JOB"] == "0123456789ab"


SANDBOXES = {
    "containerd": ("io.kubernetes.cri.container-type", "io.kubernetes.cri.sandbox-id"),
    "CRI-O": ("io.kubernetes.cri-o.ContainerType", "io.kubernetes.cri-o.SandboxID"),
}


@pytest.mark.parametrize("engine", SANDBOXES)
def test_a_pods_sandbox_is_left_alone_even_where_the_guard_is_required(runtime, bundle, engine):
    kind, sandbox = SANDBOXES[engine]
    bundle.change(lambda config: config.update(annotations={kind: "sandbox", sandbox: "box"}))
    runtime.create(bundle, required="yes")
    assert bundle.guarded() == "no: it is a pod's sandbox"


@pytest.mark.parametrize("sandbox", [None, "another"])
@pytest.mark.parametrize("engine", SANDBOXES)
def test_no_annotation_of_a_user_makes_a_container_a_sandbox(image, runtime, tmp_path, engine, sandbox):
    """`docker run --annotation` names what its user likes, but not the id that the container will get."""
    kind, key = SANDBOXES[engine]
    bundle = Bundle(tmp_path / "bundle", image, ["static"])
    bundle.change(lambda config: config.update(annotations={kind: "sandbox", **({key: sandbox} if sandbox else {})}))
    done = runtime.run("create", "--bundle", bundle.folder, "box", required="yes")
    assert done.returncode == 1 and "container box is not started" in done.stderr
    bundle = Bundle(tmp_path / "bundle", image, ["take"])
    bundle.change(lambda config: config.update(annotations={kind: "sandbox", **({key: sandbox} if sandbox else {})}))
    runtime.create(bundle)
    assert bundle.guarded() == "yes"


# ---- exec ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def process(runtime, bundle, tmp_path):
    path = tmp_path / "process.json"
    path.write_text(json.dumps({"user": {"uid": 0, "gid": 0}, "args": ["sh"], "env": ["A=b"], "cwd": "/", "x": UNLIMITED}))
    return path


def variables_of(process):
    return dict(entry.split("=", 1) for entry in json.loads(process.read_text())["env"])


@pytest.mark.parametrize("words", [("--process", "P"), ("-p", "P"), ("--process=P", "--detach"), ("--pid-file", "/p", "-d", "-p", "P"),
                                   ("--pidfd-socket", "/s", "-p", "P")])
def test_a_process_that_joins_a_guarded_container_is_guarded(runtime, bundle, process, words):
    bundle.change(lambda config: config.update(annotations={"sparkguard.limit": "10G"}))
    runtime.create(bundle)
    runtime.passes_on("exec", *(word.replace("P", str(process)) if word.endswith("P") else word for word in words), "box")
    assert variables_of(process) == {"A": "b", "LD_PRELOAD": LIBRARY, "SPARKGUARD_DIR": OWN, "SPARKGUARD_HISTORY": "off",
                                     "SPARKGUARD_JOB": "box", "SPARKGUARD_LIMIT": "10G", "MIMALLOC_ARENA_EAGER_COMMIT": "0"}
    assert str(UNLIMITED) in process.read_text()


def test_a_process_of_another_user_gets_the_group(runtime, bundle, process):
    os.chown(runtime.shared, 0, 4711)
    runtime.shared.chmod(0o2770)
    runtime.create(bundle.change(sharing), share="yes")
    process.write_text(process.read_text().replace('{"uid": 0, "gid": 0}', '{"uid": 1000, "gid": 1000, "additionalGids": [5]}'))
    runtime.passes_on("exec", "--process", process, "box")
    assert json.loads(process.read_text())["user"]["additionalGids"] == [5, 4711]


def test_a_process_whose_user_cannot_use_the_directory_does_without(runtime, bundle, process):
    runtime.create(bundle)
    process.write_text(process.read_text().replace('{"uid": 0, "gid": 0}', '{"uid": 1000, "gid": 1000}'))
    runtime.passes_on("exec", "--process", process, "box")
    assert variables_of(process)["LD_PRELOAD"] == LIBRARY and "SPARKGUARD_DIR" not in variables_of(process)


def test_a_process_that_joins_an_unguarded_or_unknown_container_is_left_alone(image, runtime, tmp_path, process):
    before = process.read_bytes()
    runtime.create(Bundle(tmp_path / "bundle", image, ["static"]))
    runtime.log.unlink()
    for name in ("box", "unknown"):
        runtime.passes_on("exec", "--process", process, name)
        assert process.read_bytes() == before
    (line,) = runtime.log.read_text().splitlines()
    assert line.endswith(" unknown: exec runs unguarded: there is no record of its container")


def test_arguments_of_the_program_are_none_of_exec(runtime, bundle, process):
    before = process.read_bytes()
    runtime.create(bundle)
    runtime.passes_on("exec", "--cwd", "/", "box", "sh", "--process", process)
    assert process.read_bytes() == before


@pytest.mark.parametrize("own", [None, "/own.so"])
def test_variables_on_the_command_line_of_exec_come_with_the_guards(runtime, bundle, own):
    """crun drops the configuration's variables where --env names any."""
    runtime.create(bundle)
    given = ["exec", "--env", "A=b", *(["-e", f"LD_PRELOAD={own}"] if own else []), "--cwd", "/"]
    done = runtime.run(*given, "box", "sh", "-c", "x")
    assert done.returncode == 23
    _, *words = runtime.told.read_text().splitlines()
    added = words[len(given) : words.index("box")]
    assert words[: len(given)] == given and words[words.index("box") :] == ["box", "sh", "-c", "x"]
    assert set(added[::2]) == {"--env"}
    assert dict(word.split("=", 1) for word in added[1::2]) == {
        "LD_PRELOAD": f"{LIBRARY}:{own}" if own else LIBRARY, "SPARKGUARD_DIR": OWN, "SPARKGUARD_HISTORY": "off", "SPARKGUARD_JOB": "box",
        "MIMALLOC_ARENA_EAGER_COMMIT": "0"}
    runtime.passes_on("exec", "--cwd", "/", "box", "sh", "--env", "A=b")


# ---- whatever fails -----------------------------------------------------------------------------------------------------

BROKEN = {
    "empty": "",
    "cut off": lambda text: text[: len(text) // 2],
    "no object": "[1]",
    "byte order mark": lambda text: "\ufeff" + text,
    "trailing": lambda text: text + "}",
    "number for a key": lambda text: '{1: 2, ' + text[1:],
    "key twice": lambda text: '{"root": 1, ' + text[1:],
    "bad number": lambda text: text.replace('"uid": 0', '"uid": 00'),
    "deep": "[" * 100000,
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_configuration_is_the_next_runtimes(runtime, bundle, case):
    text = BROKEN[case] if isinstance(BROKEN[case], str) else BROKEN[case](bundle.path.read_text())
    bundle.path.write_text(text)
    runtime.create(bundle)
    assert bundle.path.read_text() == text
    (line,) = runtime.log.read_text().splitlines()
    assert "config.json" in line and "unguarded" in line


STRANGE = {
    "zero in a key": '"a\\u0000b": 1',
    "zero in a value": '"a": "b\\u0000c"',
    "lone surrogate": '"a": "\\ud800"',
    "deep": '"a": ' + "[" * 1000 + "]" * 1000,
    "too deep": '"a": ' + "[" * 5000 + "]" * 5000,
    "large number": '"a": 18446744073709551616000',
}


@pytest.mark.parametrize("case", STRANGE)
def test_a_strange_configuration_leaves_the_container_guarded_or_says_why_not(runtime, bundle, case):
    text = "{" + STRANGE[case] + ", " + bundle.path.read_text().lstrip()[1:]
    bundle.path.write_text(text)
    runtime.create(bundle)
    told = runtime.log.read_text() if runtime.log.exists() else ""
    is_guarded = "libsparkguard.so" in bundle.path.read_text()
    assert is_guarded or (bundle.path.read_text() == text and "config.json" in told and "unguarded" in told)
    assert STRANGE[case].replace(" ", "").lower() in bundle.path.read_text().replace(" ", "").lower()


@pytest.mark.parametrize("key, value", [("process", 1), ("mounts", {"a": 1}), ("annotations", [])])
def test_a_value_of_the_wrong_kind_is_not_mended(runtime, bundle, key, value):
    """The next runtime rejects it, and is to have the chance."""
    bundle.change(lambda config: config.update({key: value}))
    before = bundle.path.read_bytes()
    runtime.create(bundle)
    assert bundle.path.read_bytes() == before
    assert "is no configuration of OCI" in runtime.log.read_text()


@pytest.mark.parametrize("key, value", [("env", "A=b"), ("user", []), ("user", {"additionalGids": {}})])
def test_a_process_of_the_wrong_kind_is_not_mended(runtime, bundle, process, key, value):
    whole = bundle.path.read_bytes()
    bundle.change(lambda config: config["process"].update({key: value}))
    before = bundle.path.read_bytes()
    runtime.create(bundle)
    assert bundle.path.read_bytes() == before
    bundle.path.write_bytes(whole)
    runtime.create(bundle)
    process.write_text(json.dumps({**json.loads(process.read_text()), key: value}))
    before = process.read_bytes()
    runtime.passes_on("exec", "--process", process, "box")
    assert process.read_bytes() == before


@pytest.mark.parametrize("key, value", [("root", []), ("linux", "x"), ("hooks", None), ("mounts", None), ("annotations", None)])
def test_other_values_of_a_wrong_kind_harm_nothing(runtime, bundle, key, value):
    bundle.change(lambda config: config.update({key: value}))
    runtime.create(bundle)
    assert bundle.guarded() is not None


def test_without_a_bundle_there_is_only_the_next_runtime(runtime, tmp_path):
    runtime.passes_on("create", "--bundle", tmp_path / "none", "box")
    runtime.passes_on("create")
    runtime.passes_on("exec")
    runtime.passes_on("delete")


def test_a_full_disk_leaves_the_configuration_whole(image, runtime, tmp_path):
    """The bundle is on a tmpfs that has no page left, as `--tmpfs` of containerd's state could be."""
    full = tmp_path / "full"
    full.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", full]).returncode != 0:
        pytest.skip("no tmpfs can be mounted here")
    try:
        bundle = Bundle(full / "bundle", image, ["take"])
        with open(full / "filler", "wb", buffering=0) as filler, pytest.raises(OSError):
            while True:
                filler.write(bytes(4096))
        before = bundle.path.read_bytes()
        runtime.create(bundle)
        assert bundle.path.read_bytes() == before
        assert sorted(path.name for path in bundle.folder.iterdir()) == ["config.json"]
        assert "No space left on device" in runtime.log.read_text()
        assert runtime.record()["guarded"] is False
    finally:
        subprocess.run(["umount", full], check=True)


@pytest.mark.parametrize("kind", ["missing", "closed", "no library"])
def test_a_library_that_cannot_be_loaded_is_not_mounted(build, runtime, bundle, kind):
    library = runtime.folder / "libsparkguard.so"
    if kind != "missing":
        shutil.copy(build / "libsparkguard.so", library)
    if kind == "closed":
        library.chmod(0o700)
    if kind == "no library":
        library.write_text("text")
        library.chmod(0o755)
    runtime.create(bundle, library=library)
    assert bundle.guarded().startswith(f"no: {library}")
    assert "LD_PRELOAD" not in bundle.variables()


def test_a_missing_next_runtime_is_told(runtime, bundle):
    before = bundle.path.read_bytes()
    done = runtime.run("create", "--bundle", bundle.folder, "box", next=runtime.folder / "nothing")
    assert done.returncode == 127 and done.stdout == ""
    assert done.stderr.startswith("sparkguard-runtime: there is no next runtime") and done.stderr.count("\n") == 1
    assert bundle.path.read_bytes() == before


NAMED = {"itself": None, "a script that calls it": '#!/bin/sh\nexec {program} "$@"\n', "a script that waits for it": '#!/bin/sh\n{program} "$@"\n'}


@pytest.mark.parametrize("how", ["file", "environment"])
@pytest.mark.parametrize("named", NAMED)
def test_it_is_never_its_own_next_runtime(runtime, bundle, named, how):
    """As on a machine where sparkguard-runtime is the engine's runtime already, and a wrapper is put around it."""
    folder, own = runtime.folder / "path", runtime.folder / "own"
    folder.mkdir()
    own.symlink_to(runtime.program)
    if NAMED[named] is not None:
        own.unlink()
        own.write_text(NAMED[named].format(program=runtime.program))
        own.chmod(0o755)
    runtime.next = runtime.next.rename(folder / "runc")
    environment = {"PATH": str(folder)}
    if how == "file":
        runtime.lines["next"] = own
    else:
        del runtime.lines["next"]
        environment["SPARKGUARD_NEXT_RUNTIME"] = str(own)
    runtime.create(bundle, env=environment.items())
    assert bundle.guarded() == "yes"
    assert f"the next runtime {own} is sparkguard-runtime or calls it: {runtime.next} is used" in runtime.log.read_text()


def test_the_files_next_runtime_is_used_where_the_environment_names_the_runtime_itself(runtime, bundle):
    folder = runtime.folder / "path"
    folder.mkdir()
    (folder / "runc").symlink_to("/bin/false")
    runtime.create(bundle, env={"PATH": str(folder), "SPARKGUARD_NEXT_RUNTIME": str(runtime.program)}.items())
    assert bundle.guarded() == "yes"


def test_it_ends_where_every_next_runtime_calls_it(runtime, bundle):
    folder = runtime.folder / "path"
    folder.mkdir()
    for name in ("own", "nvidia-container-runtime", "runc", "crun"):
        (folder / name).write_text(f'#!/bin/sh\nexec {runtime.program} "$@"\n')
        (folder / name).chmod(0o755)
    done = runtime.run("create", "--bundle", bundle.folder, "box", next=folder / "own", env={"PATH": str(folder)}.items())
    assert done.returncode == 127
    assert done.stderr.startswith("sparkguard-runtime: there is no next runtime") and done.stderr.count("\n") == 1


def test_the_next_runtime_is_the_first_that_is_in_the_path(runtime, bundle):
    del runtime.lines["next"]
    folder = runtime.folder / "path"
    folder.mkdir()
    (folder / "runc").symlink_to(runtime.program)  # as somebody might try to put it in front
    for name in ("crun", "nvidia-container-runtime"):
        runtime.next = folder / name
        runtime.next.write_text(NEXT.format(told=runtime.told))
        runtime.next.chmod(0o755)
        runtime.create(bundle, env={"PATH": str(folder)}.items())


def test_the_environment_names_the_next_runtime_before_the_file(runtime, bundle):
    runtime.lines["next"] = "/bin/false"
    runtime.create(bundle, env={"SPARKGUARD_NEXT_RUNTIME": str(runtime.next)}.items())


def test_a_line_that_is_not_understood_is_in_the_log(runtime, bundle):
    runtime.create(bundle, colour="blue")
    assert "this line was not understood: colour = blue" in runtime.log.read_text()
    assert bundle.guarded() == "yes"


REQUIRED = {
    "environment": ({"SPARKGUARD_REQUIRED": "1"}, {}, {}),
    "file": ({}, {"required": "yes"}, {}),
    "annotation": ({}, {}, {"sparkguard.required": "yes"}),
}


@pytest.mark.parametrize("how", REQUIRED)
def test_where_the_guard_is_required_nothing_starts_without(image, runtime, tmp_path, how):
    environment, lines, annotations = REQUIRED[how]
    bundle = Bundle(tmp_path / "bundle", image, ["static"])
    bundle.change(lambda config: config.update(annotations=annotations))
    before = bundle.path.read_bytes()
    told = tmp_path / "log.json"
    done = runtime.run("--log", told, "--log-format", "json", "create", "--bundle", bundle.folder, "box", env=environment.items(), **lines)
    sentence = "sparkguard-runtime: container box is not started: /bin/static is linked statically (SPARKGUARD_REQUIRED)"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", sentence + "\n")
    line = json.loads(told.read_text())
    assert (line["level"], line["msg"]) == ("error", sentence)
    assert bundle.path.read_bytes() == before and not runtime.told.exists()


def test_where_the_guard_is_required_what_can_be_guarded_starts(runtime, bundle):
    runtime.create(bundle, required="yes")
    assert bundle.guarded() == "yes"


def test_a_container_can_require_its_guard(image, runtime, tmp_path):
    bundle = Bundle(tmp_path / "bundle", image, ["static"], SPARKGUARD_REQUIRED="1")
    assert runtime.run("create", "--bundle", bundle.folder, "box").returncode == 1


def test_a_file_system_that_does_not_answer_holds_up_nobody(runtime, bundle):
    """A reader of a pipe that nobody writes to waits for ever: the file of another engine's names stands for it."""
    own = runtime.folder / "docker"
    own.mkdir()
    os.mkfifo(own / "config.v2.json")
    mount = {"destination": "/etc/hostname", "source": str(own / "hostname"), "type": "bind", "options": ["rbind"]}
    bundle.change(lambda config: config["mounts"].append(mount))
    runtime.create(bundle)
    assert bundle.guarded() == "yes"


@pytest.mark.parametrize("number", ["SIGSEGV", "SIGABRT", "SIGALRM"])
def test_a_fault_of_the_runtime_is_none_of_the_containers(runtime, bundle, number):
    """In the moment in which the configuration would be replaced. SIGALRM stands for a file system that does not answer."""
    program = runtime.program
    runtime.program = runtime.folder / "traced"
    runtime.program.write_text(f'#!/bin/sh\nexec strace -qq -o /dev/null -e trace=rename -e inject=rename:signal={number} {program} "$@"\n')
    runtime.program.chmod(0o755)
    runtime.create(bundle)
    assert "it left a container as it was" in runtime.log.read_text()
    refused = (1, "sparkguard-runtime: failed; the container is not started (SPARKGUARD_REQUIRED)\n")
    done = runtime.run("create", "--bundle", bundle.folder, "box", required="yes")
    assert (done.returncode, done.stderr) == refused
    bundle.change(lambda config: config.update(annotations={"sparkguard.required": "yes"}))
    done = runtime.run("create", "--bundle", bundle.folder, "box")
    assert (done.returncode, done.stderr) == refused


def test_nothing_is_left_open_or_changed_for_the_next_runtime(build, runtime, bundle):
    """Descriptors, signals and the umask are those that the engine gave."""
    shown = runtime.folder / "shown"
    runtime.next.write_text(f"#!/bin/sh\nls /proc/self/fd >{shown}; grep -E '^(Sig[BICP]|Umask)' /proc/self/status >>{shown}; exit 23\n")
    bare = subprocess.run([runtime.next], stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
    expected = shown.read_text()
    assert bare.returncode == 23
    runtime.conf.write_text("".join(f"{key} = {value}\n" for key, value in runtime.lines.items()))
    command = [runtime.program, "create", "--bundle", bundle.folder, "box"]
    environment = runtime.environment()
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
    assert done.returncode == 23 and shown.read_text() == expected
    assert bundle.guarded() == "yes"
