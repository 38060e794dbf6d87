"""sparkguard-runtime: what it changes in a bundle, and that the next runtime gets the same arguments whatever happens.

The next runtime is a script that tells what it was given. test_runtime_containers.py has real ones.
"""

import json
import os
import re
import shutil
import stat
import subprocess
from pathlib import Path

import pytest
from bundles import UNLIMITED, Bundle, Image, compile_program
from lib.target import CC

NEXT = """#!/bin/sh
printf '%s\\n' "$0" "$@" >"{told}"
echo out of the next
echo error of the next >&2
exit 23
"""
LIBRARY = "/run/sparkguard/libsparkguard.so"
SHARED = "/run/sparkguard/shared"
STATIC = "int main(void) { return 0; }\n"


@pytest.fixture(scope="module")
def image(build, tmp_path_factory):
    if os.geteuid() != 0:
        pytest.skip("owners and modes of a bundle are an engine's: needs root")
    folder = tmp_path_factory.mktemp("image")
    root = Image(folder / "rootfs").add("/bin/sh").add("/usr/bin/env").add(build / "tests/programs/admit_take", "/bin/take")
    root.put(compile_program(folder, "static", STATIC, "-static", compiler=CC), "/bin/static")
    root.put(root.root / "bin/static", "/sbin/docker-init")
    return root


class Runtime:
    def __init__(self, build, folder):
        self.program, self.folder = build / "sparkguard-runtime", folder
        self.told, self.next, self.log = folder / "told", folder / "next", folder / "log"
        self.shared = folder / "shared"
        self.shared.mkdir(mode=0o700)
        self.next.write_text(NEXT.format(told=self.told))
        self.next.chmod(0o755)
        self.conf = folder / "runtime.conf"
        self.lines = {"next": self.next, "library": build / "libsparkguard.so", "shared": self.shared, "log": self.log}

    def run(self, *arguments, env=(), cwd=None, **lines):
        self.conf.write_text("".join(f"{key} = {value}\n" for key, value in {**self.lines, **lines}.items()))
        kept = {k: v for k, v in os.environ.items() if not k.startswith("SPARKGUARD_")}
        environment = {**kept, "SPARKGUARD_RUNTIME_CONF": str(self.conf), **dict(env)}
        self.told.unlink(missing_ok=True)
        command = [self.program, *map(str, arguments)]
        return subprocess.run(command, env=environment, cwd=cwd, capture_output=True, text=True, timeout=60)

    def passes_on(self, *arguments, **options):
        """The next runtime's status and output, and its arguments byte for byte."""
        done = self.run(*arguments, **options)
        assert (done.returncode, done.stdout, done.stderr) == (23, "out of the next\n", "error of the next\n")
        assert self.told.read_text().splitlines() == [str(self.next), *map(str, arguments)]

    def create(self, bundle, *more, name="box", **options):
        self.passes_on("create", "--bundle", bundle.folder, *more, name, **options)

    def record(self, name="box"):
        path = self.shared / "containers" / f"{name}.json"
        return json.loads(path.read_text()) if path.exists() else None


@pytest.fixture
def runtime(build, tmp_path):
    return Runtime(build, tmp_path)


@pytest.fixture
def bundle(image, tmp_path):
    return Bundle(tmp_path / "bundle", image, ["/bin/sh", "-c", "exec take malloc 64M"])


def numbers_as_text(text):
    """Every number by its digits, in the order of the file."""
    return json.loads(text, parse_int=str, parse_float=str, object_pairs_hook=list)


def test_a_guarded_container_has_library_directory_and_name(runtime, bundle):
    runtime.create(bundle)
    assert bundle.guarded() == "yes"
    variables = bundle.variables()
    assert variables["LD_PRELOAD"] == LIBRARY
    assert variables["SPARKGUARD_DIR"] == SHARED
    assert variables["SPARKGUARD_JOB"] == "box"
    mounts = {mount["destination"]: mount for mount in bundle.read()["mounts"]}
    assert mounts[LIBRARY]["source"] == str(runtime.lines["library"])
    assert mounts[LIBRARY]["options"] == ["bind", "ro", "nosuid", "nodev"]
    assert mounts[SHARED]["source"] == str(runtime.shared)
    assert mounts[SHARED]["options"] == ["bind", "rw", "nosuid", "nodev", "noexec"]
    assert not runtime.log.exists()


def test_all_else_in_the_configuration_stays_as_it_was(runtime, bundle):
    """Unknown keys, numbers that have no 64 bits or a fraction, the order of keys, mode and owner of the file."""
    text = bundle.path.read_text().replace('"ociVersion"', '"z": [1.50, 1e400, -0, 18446744073709551615], "a": {"y": 1, "b": null}, "ociVersion"', 1)
    bundle.path.write_text(text)
    os.chown(bundle.path, 12, 34)
    before = numbers_as_text(text)
    runtime.create(bundle)
    after = numbers_as_text(bundle.path.read_text())
    status = bundle.path.stat()
    assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (12, 34, 0o640)
    assert [key for key, _ in after] == [key for key, _ in before] + ["annotations"]
    old, new = dict(before), dict(after)
    for key in set(old) - {"process", "mounts"}:
        assert new[key] == old[key], key
    assert new["mounts"][: len(old["mounts"])] == old["mounts"]
    without = [(key, value) for key, value in new["process"] if key != "env"]
    assert without == [(key, value) for key, value in old["process"] if key != "env"]
    assert str(UNLIMITED) in str(new["process"])
    assert [path.name for path in bundle.folder.iterdir()] == ["config.json"]


def test_a_second_time_changes_nothing(runtime, bundle):
    runtime.create(bundle)
    once = bundle.path.read_text()
    runtime.create(bundle)
    assert bundle.path.read_text() == once


ORDERS = {
    "containerd": ("--root", "/r", "--log", "/l", "--log-format", "json", "create", "--bundle", "B", "--pid-file", "/p", "box"),
    "podman": ("--log-format=json", "--systemd-cgroup", "create", "--bundle", "B", "--pid-file", "/p", "box"),
    "equals": ("--debug", "run", "--bundle=B", "--detach", "box"),
    "short": ("run", "-b", "B", "-d", "box"),
    "joined": ("run", "-bB", "box"),
    "one dash": ("-root", "/r", "create", "-bundle", "B", "box"),
    "behind the id": ("--root=/r", "create", "box", "--bundle", "B"),
    "crun": ("--cgroup-manager", "disabled", "--rootless", "true", "run", "--preserve-fds", "0", "--bundle", "B", "--", "box"),
    "restore": ("restore", "--image-path", "/i", "--work-path", "/w", "--bundle", "B", "box"),
}


@pytest.mark.parametrize("order", ORDERS)
def test_the_bundle_is_found_in_every_order_of_arguments(runtime, bundle, order):
    runtime.passes_on(*(word.replace("B", str(bundle.folder)) for word in ORDERS[order]))
    assert bundle.guarded() == "yes"
    assert runtime.record()["id"] == "box"


def test_without_a_bundle_the_working_directory_is_one(runtime, bundle):
    runtime.passes_on("create", "box", cwd=bundle.folder)
    assert bundle.guarded() == "yes"
    assert runtime.record()["bundle"] == str(bundle.folder)


@pytest.mark.parametrize("words", [("state", "box"), ("kill", "box", "9"), ("--version",), (), ("features",), ("nonsense", "--bundle", "B"), ("list", "-f", "json")])
def test_other_commands_are_passed_on(runtime, bundle, words):
    before = bundle.path.read_bytes()
    runtime.passes_on(*(word.replace("B", str(bundle.folder)) for word in words))
    assert bundle.path.read_bytes() == before
    assert not (runtime.shared / "containers").exists()


PRELOADS = {
    "jemalloc": "/usr/lib/libjemalloc.so.2",
    "with blanks": "/a.so /b.so",
    "with colons": "/a.so:/b.so",
}


@pytest.mark.parametrize("preload", PRELOADS)
def test_the_images_own_preload_is_kept(image, runtime, tmp_path, preload):
    bundle = Bundle(tmp_path / "bundle", image, ["take"], LD_PRELOAD=PRELOADS[preload])
    runtime.create(bundle)
    assert re.split("[ :]", bundle.variables()["LD_PRELOAD"]) == [LIBRARY, *re.split("[ :]", PRELOADS[preload])]


def test_the_administrator_can_put_the_guard_last(image, runtime, tmp_path):
    bundle = Bundle(tmp_path / "bundle", image, ["take"], LD_PRELOAD="/a.so")
    runtime.create(bundle, preload="last")
    assert bundle.variables()["LD_PRELOAD"] == f"/a.so:{LIBRARY}"


def test_of_a_variable_that_is_there_twice_the_last_counts(runtime, bundle):
    bundle.change(lambda config: config["process"]["env"].extend(["LD_PRELOAD=/first.so", "LD_PRELOAD=/last.so"]))
    runtime.create(bundle)
    assert [e for e in bundle.read()["process"]["env"] if e.startswith("LD_PRELOAD")] == ["LD_PRELOAD=/first.so", f"LD_PRELOAD={LIBRARY}:/last.so"]


def test_a_guard_set_up_by_hand_is_left_alone(image, runtime, tmp_path):
    own = {"LD_PRELOAD": "/opt/libsparkguard.so", "SPARKGUARD_DIR": "/opt/shared"}
    bundle = Bundle(tmp_path / "bundle", image, ["take"], **own)
    mounts = bundle.destinations()
    runtime.create(bundle)
    assert bundle.guarded() == "yes" and bundle.destinations() == mounts
    assert {name: bundle.variables()[name] for name in own} == own


LIMITS = {
    "vendor": ({"NVIDIA_GPU_MEMORY_LIMIT": "40G"}, {}, "40G"),
    "own before vendor": ({"NVIDIA_GPU_MEMORY_LIMIT": "40G", "SPARKGUARD_LIMIT": "20G"}, {}, "20G"),
    "annotation before own": ({"SPARKGUARD_LIMIT": "20G"}, {"sparkguard.limit": "10G"}, "10G"),
    "bytes": ({"NVIDIA_GPU_MEMORY_LIMIT": "42949672960"}, {}, "42949672960"),
    "percent": ({}, {"sparkguard.limit": "25%"}, "25%"),
    "not a size": ({"NVIDIA_GPU_MEMORY_LIMIT": "much"}, {}, None),
    "unit forgotten": ({"NVIDIA_GPU_MEMORY_LIMIT": "40"}, {}, None),
}


@pytest.mark.parametrize("case", LIMITS)
def test_a_limit_comes_from_annotation_variable_or_vendor(image, runtime, tmp_path, case):
    environment, annotations, expected = LIMITS[case]
    bundle = Bundle(tmp_path / "bundle", image, ["take"], **environment)
    bundle.change(lambda config: config.update(annotations=annotations))
    runtime.create(bundle)
    assert bundle.guarded() == "yes"
    assert bundle.variables().get("SPARKGUARD_LIMIT") == expected
    assert ("is not a size" in (runtime.log.read_text() if runtime.log.exists() else "")) == (expected is None)


def obstacle(runtime, bundle):
    """The reason, which annotation, record and log have; the rest of the configuration is as before."""
    before = bundle.read()
    runtime.create(bundle)
    after = bundle.read()
    note = after["annotations"].pop("sparkguard.guarded")
    before.setdefault("annotations", {})
    assert after == before
    assert note.startswith("no: ")
    reason = note.removeprefix("no: ")
    record = runtime.record()
    assert (record["guarded"], record["reason"], record["name"]) == (False, reason, "box")
    (line,) = runtime.log.read_text().splitlines()
    assert line.endswith(f" box: unguarded: {reason}")
    return reason


@pytest.mark.parametrize("how", ["annotation", "environment"])
def test_a_container_may_opt_out(image, runtime, tmp_path, how):
    environment = {"SPARKGUARD_DISABLE": "1"} if how == "environment" else {}
    bundle = Bundle(tmp_path / "bundle", image, ["take"], **environment)
    if how == "annotation":
        bundle.change(lambda config: config.update(annotations={"sparkguard": "off"}))
    assert obstacle(runtime, bundle).startswith("it opts out")


def test_a_container_in_a_virtual_machine_is_left_alone(runtime, bundle):
    bundle.change(lambda config: config.update(annotations={"run.oci.handler": "krun"}))
    assert obstacle(runtime, bundle).startswith("another kernel or interpreter")


COMMANDS = {
    "static": (["static"], "/bin/static is linked statically"),
    "static by path": (["/bin/static", "x"], "/bin/static is linked statically"),
    "missing": (["/bin/nothing"], "/bin/nothing was not found"),
    "env -i": (["env", "-i", "take"], "env clears the environment"),
    "env --unset": (["/usr/bin/env", "A=b", "-u", "LD_PRELOAD", "take"], "env clears the environment"),
    "static init": (["/sbin/docker-init", "--", "static"], "/bin/static is linked statically"),
    "nothing": ([], "it names no program"),
}


@pytest.mark.parametrize("case", COMMANDS)
def test_what_cannot_be_guarded_starts_as_it_would(image, runtime, tmp_path, case):
    command, expected = COMMANDS[case]
    assert expected in obstacle(runtime, Bundle(tmp_path / "bundle", image, command))


GUARDED = {
    "by PATH": ["take"],
    "init": ["/sbin/docker-init", "--", "take"],
    "init with options": ["/sbin/docker-init", "-s", "take"],
    "env": ["env", "A=b", "take"],
    "script": ["/script"],
    "script of env": ["/env-script"],
    "relative": ["bin/take"],
    "by link": ["/link"],
}


@pytest.mark.parametrize("case", GUARDED)
def test_what_can_be_guarded_is(image, runtime, tmp_path, case):
    for name, line in {"script": "#!/bin/sh -e", "env-script": "#!/usr/bin/env -S sh -e"}.items():
        (image.root / name).write_text(f"{line}\n")
        (image.root / name).chmod(0o755)
    link = image.root / "link"
    link.unlink(missing_ok=True)
    link.symlink_to("/tmp/../bin/take")
    bundle = Bundle(tmp_path / "bundle", image, GUARDED[case])
    runtime.create(bundle)
    assert bundle.guarded() == "yes"


def other_image(tmp_path, program):
    return Bundle(tmp_path / "bundle", Image(tmp_path / "rootfs").put(program, "/bin/program"), ["/bin/program"])


def test_an_image_of_musl_is_left_alone(runtime, tmp_path):
    if shutil.which("musl-gcc") is None:
        pytest.skip("no musl-gcc")
    program = compile_program(tmp_path, "program", STATIC, compiler="musl-gcc")
    assert "is linked with musl" in obstacle(runtime, other_image(tmp_path, program))


def test_an_image_of_another_architecture_is_left_alone(image, runtime, tmp_path):
    program = bytearray((image.root / "bin/take").read_bytes())
    program[18:20] = (243).to_bytes(2, "little")  # e_machine: RISC-V
    (tmp_path / "program").write_bytes(program)
    (tmp_path / "program").chmod(0o755)
    assert "is for another architecture" in obstacle(runtime, other_image(tmp_path, tmp_path / "program"))


@pytest.mark.parametrize("version", [b"GLIBC_2.17\0", b"GLIBC_2.28\0"])
def test_an_image_with_an_old_c_library_is_left_alone(image, runtime, tmp_path, version):
    """Only the name of the version is another one: what is read is the table of versions."""
    root = Image(tmp_path / "rootfs")
    shutil.copytree(image.root, root.root, dirs_exist_ok=True, symlinks=True)
    (libc,) = root.root.glob("**/libc.so.6")
    libc.write_bytes(libc.read_bytes().replace(b"GLIBC_2.28\0", version))
    bundle = Bundle(tmp_path / "bundle", root, ["take"])
    if version == b"GLIBC_2.17\0":
        assert obstacle(runtime, bundle) == "the image's C library is older than glibc 2.28"
    else:
        runtime.create(bundle)
        assert bundle.guarded() == "yes"


def test_no_link_of_an_image_leads_to_a_file_of_the_host(image, runtime, tmp_path):
    """The host's program is there and could be guarded; in the image there is none."""
    root = Image(tmp_path / "rootfs")
    for name, target in {"absolute": "/usr/bin/python3", "relative": "../../../../../../../../usr/bin/python3", "loop": "loop"}.items():
        (root.root / "bin" / name).symlink_to(target)
        bundle = Bundle(tmp_path / "bundle", root, [f"/bin/{name}"])
        runtime.log.unlink(missing_ok=True)
        assert obstacle(runtime, bundle) == f"/bin/{name} was not found"


def test_a_program_that_is_mounted_is_found(image, runtime, tmp_path):
    root = Image(tmp_path / "rootfs").add("/bin/sh")
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools/sh").symlink_to("/bin/sh")
    bundle = Bundle(tmp_path / "bundle", root, ["/opt/tools/sh"])
    mount = {"destination": "/opt/tools", "source": str(tmp_path / "tools"), "type": "bind", "options": ["rbind"]}
    bundle.change(lambda config: config["mounts"].append(mount))
    runtime.create(bundle)
    assert bundle.guarded() == "yes"


def test_a_program_that_is_mounted_below_a_link_is_found(image, runtime, tmp_path):
    """docker --init mounts its init on /sbin/docker-init, and /sbin is a link in images of today."""
    root = Image(tmp_path / "rootfs").add("/bin/sh")
    (root.root / "usr/sbin").mkdir(parents=True)
    (root.root / "sbin").symlink_to("usr/sbin")
    bundle = Bundle(tmp_path / "bundle", root, ["/sbin/init", "--", "sh"])
    mount = {"destination": "/sbin/init", "source": str(image.root / "bin/static"), "type": "bind", "options": ["rbind"]}
    bundle.change(lambda config: config["mounts"].append(mount))
    runtime.create(bundle)
    assert bundle.guarded() == "yes"


@pytest.mark.parametrize("options", [["ro"], ["rw"]])
def test_nothing_is_made_in_a_folder_that_the_user_mounts_on_run(image, runtime, tmp_path, options):
    own = tmp_path / "own"
    own.mkdir()
    bundle = Bundle(tmp_path / "bundle", image, ["take"])
    mount = {"destination": "/run", "source": str(own), "type": "bind", "options": ["rbind", *options]}
    bundle.change(lambda config: config["mounts"].append(mount))
    assert obstacle(runtime, bundle) == "its root file system or its mounts leave no place for /run/sparkguard"


def test_an_image_whose_run_is_no_folder_is_left_alone(image, runtime, tmp_path):
    root = Image(tmp_path / "rootfs")
    shutil.copytree(image.root, root.root, dirs_exist_ok=True, symlinks=True)
    (root.root / "run").rmdir()
    (root.root / "run").write_text("")
    assert "leave no place" in obstacle(runtime, Bundle(tmp_path / "bundle", root, ["take"]))


USERS = {  # owner, group and mode of the directory; the process's user; usable, group added
    "root": ((0, 0, 0o700), (0, 0), (True, False)),
    "group": ((0, 4711, 0o2770), (1000, 1000), (True, True)),
    "member": ((0, 4711, 0o2770), (1000, 4711), (True, False)),
    "owner": ((1000, 4711, 0o2770), (1000, 1000), (True, False)),
    "closed": ((0, 4711, 0o700), (1000, 1000), (False, False)),
    "group of root": ((0, 0, 0o2770), (1000, 1000), (False, False)),
    "another's": ((1001, 4711, 0o2770), (1000, 1000), (False, False)),
}


@pytest.mark.parametrize("case", USERS)
def test_a_user_gets_the_directory_that_the_library_will_take(image, runtime, tmp_path, case):
    (owner, group, mode), (uid, gid), (is_usable, is_added) = USERS[case]
    os.chown(runtime.shared, owner, group)
    runtime.shared.chmod(mode)
    bundle = Bundle(tmp_path / "bundle", image, ["take"])
    bundle.change(lambda config: config["process"].update(user={"uid": uid, "gid": gid}))
    runtime.create(bundle)
    assert bundle.guarded() == "yes"
    assert (bundle.variables().get("SPARKGUARD_DIR") == SHARED) == is_usable
    assert (SHARED in bundle.destinations()) == is_usable
    assert bundle.read()["process"]["user"].get("additionalGids", []) == ([group] if is_added else [])


MAPPINGS = {"root is nobody": (0, 100000, False), "root is root": (0, 0, True), "keep-id": (1000, 0, True)}


@pytest.mark.parametrize("case", MAPPINGS)
def test_a_user_namespace_decides_whose_the_directory_is(image, runtime, tmp_path, case):
    first, host, is_usable = MAPPINGS[case]
    root = Image(tmp_path / "rootfs")
    shutil.copytree(image.root, root.root, dirs_exist_ok=True, symlinks=True)
    for path in (root.root, root.root / "run"):
        os.chown(path, host, host)
    bundle = Bundle(tmp_path / "bundle", root, ["take"])

    def change(config):
        config["process"]["user"] = {"uid": first, "gid": first}
        config["linux"]["namespaces"].append({"type": "user"})
        for kind in ("uidMappings", "gidMappings"):
            config["linux"][kind] = [{"containerID": first, "hostID": host, "size": 10}]

    runtime.create(bundle.change(change))
    assert bundle.guarded() == "yes"
    assert (bundle.variables().get("SPARKGUARD_DIR") == SHARED) == is_usable


# ---- what the host's report reads ---------------------------------------------------------------------------------------


def test_the_record_is_there_until_delete(runtime, bundle):
    bundle.change(lambda config: config["linux"].update(cgroupsPath="/docker/box"))
    runtime.create(bundle)
    record = runtime.record()
    assert {key: record[key] for key in ("id", "name", "cgroup", "guarded", "reason", "bundle")} == {
        "id": "box", "name": "box", "cgroup": "/docker/box", "guarded": True, "reason": None, "bundle": str(bundle.folder)}
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z", record["time"])
    folder = (runtime.shared / "containers").stat()
    file = (runtime.shared / "containers/box.json").stat()
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
        os.utime(runtime.shared / f"containers/{name}.json", (0, 0))
    (runtime.folder / "state/there").mkdir(parents=True)
    runtime.create(bundle)
    assert sorted(path.name for path in (runtime.shared / "containers").iterdir()) == ["box.json", "there.json"]


def test_a_folder_of_records_that_others_can_change_is_not_used(runtime, bundle):
    elsewhere = runtime.folder / "elsewhere"
    elsewhere.mkdir()
    (runtime.shared / "containers").symlink_to(elsewhere)
    runtime.create(bundle)
    assert list(elsewhere.iterdir()) == [] and bundle.guarded() == "yes"
    (runtime.shared / "containers").unlink()
    (runtime.shared / "containers").mkdir()
    (runtime.shared / "containers").chmod(0o777)
    runtime.create(bundle)
    assert list((runtime.shared / "containers").iterdir()) == []


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


def test_a_pods_sandbox_is_left_alone_even_where_the_guard_is_required(runtime, bundle):
    bundle.change(lambda config: config.update(annotations={"io.kubernetes.cri.container-type": "sandbox"}))
    runtime.create(bundle, required="yes")
    assert bundle.guarded() == "no: it is a pod's sandbox"


# ---- exec ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def process(runtime, bundle, tmp_path):
    path = tmp_path / "process.json"
    path.write_text(json.dumps({"user": {"uid": 0, "gid": 0}, "args": ["sh"], "env": ["A=b"], "cwd": "/", "x": UNLIMITED}))
    return path


def variables_of(process):
    return dict(entry.split("=", 1) for entry in json.loads(process.read_text())["env"])


@pytest.mark.parametrize("words", [("--process", "P"), ("-p", "P"), ("--process=P", "--detach"), ("--pid-file", "/p", "-d", "-p", "P")])
def test_a_process_that_joins_a_guarded_container_is_guarded(runtime, bundle, process, words):
    bundle.change(lambda config: config.update(annotations={"sparkguard.limit": "10G"}))
    runtime.create(bundle)
    runtime.passes_on("exec", *(word.replace("P", str(process)) if word.endswith("P") else word for word in words), "box")
    assert variables_of(process) == {"A": "b", "LD_PRELOAD": LIBRARY, "SPARKGUARD_DIR": SHARED, "SPARKGUARD_HISTORY": "off",
                                     "SPARKGUARD_JOB": "box", "SPARKGUARD_LIMIT": "10G"}
    assert str(UNLIMITED) in process.read_text()


def test_a_process_of_another_user_gets_the_group(runtime, bundle, process):
    os.chown(runtime.shared, 0, 4711)
    runtime.shared.chmod(0o2770)
    runtime.create(bundle)
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
    for name in ("box", "unknown"):
        runtime.passes_on("exec", "--process", process, name)
        assert process.read_bytes() == before


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
        "LD_PRELOAD": f"{LIBRARY}:{own}" if own else LIBRARY, "SPARKGUARD_DIR": SHARED, "SPARKGUARD_HISTORY": "off", "SPARKGUARD_JOB": "box"}
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


def test_it_is_never_its_own_next_runtime(runtime, bundle):
    done = runtime.run("create", "--bundle", bundle.folder, "box", next=runtime.program)
    assert done.returncode == 127


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
    done = runtime.run("create", "--bundle", bundle.folder, "box", required="yes")
    assert (done.returncode, done.stderr) == (1, "sparkguard-runtime: failed; the container is not started (SPARKGUARD_REQUIRED)\n")


def test_nothing_is_left_open_or_changed_for_the_next_runtime(build, runtime, bundle):
    """Descriptors, signals and the umask are those that the engine gave."""
    shown = runtime.folder / "shown"
    runtime.next.write_text(f"#!/bin/sh\nls /proc/self/fd >{shown}; grep -E '^(Sig[BICP]|Umask)' /proc/self/status >>{shown}; exit 23\n")
    bare = subprocess.run([runtime.next], stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
    expected = shown.read_text()
    assert bare.returncode == 23
    runtime.conf.write_text("".join(f"{key} = {value}\n" for key, value in runtime.lines.items()))
    command = [runtime.program, "create", "--bundle", bundle.folder, "box"]
    environment = {**os.environ, "SPARKGUARD_RUNTIME_CONF": str(runtime.conf)}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
    assert done.returncode == 23 and shown.read_text() == expected
    assert bundle.guarded() == "yes"
