"""sparkguard-runtime: what it changes in a bundle, and that the next runtime gets the same arguments whatever happens.

The next runtime is a script that tells what it was given. test_runtime_containers.py has real ones.
"""

import os
import re
import shutil
import stat

import pytest
from bundles import UNLIMITED, Bundle, Image, compile_program
from runtime_bundle import LIBRARY, OWN, SHARED, STATIC, bundle, image, numbers_as_text, runtime, sharing  # noqa: F401


def test_a_guarded_container_has_library_directory_and_name(runtime, bundle):
    runtime.create(bundle)
    assert bundle.guarded() == "yes"
    variables = bundle.variables()
    assert variables["LD_PRELOAD"] == LIBRARY
    assert variables["SPARKGUARD_DIR"] == OWN
    assert variables["SPARKGUARD_JOB"] == "box"
    mounts = {mount["destination"]: mount for mount in bundle.read()["mounts"]}
    assert mounts[LIBRARY]["source"] == str(runtime.lines["library"])
    assert mounts[LIBRARY]["options"] == ["bind", "ro", "nosuid", "nodev"]
    assert mounts[OWN]["source"] == str(runtime.containers / "box")
    assert mounts[OWN]["options"] == ["bind", "rw", "nosuid", "nodev", "noexec"]
    assert SHARED not in mounts and str(runtime.shared) not in bundle.path.read_text()
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


AGAIN = {
    "opts out": lambda config: config["annotations"].update(sparkguard="off"),
    "another program": lambda config: config["process"].update(args=["static"]),
}


@pytest.mark.parametrize("preload", [None, "/a.so", "/a.so:/b.so", "/a.so /b.so"])
@pytest.mark.parametrize("place", ["first", "last"])
@pytest.mark.parametrize("change", AGAIN)
def test_a_bundle_that_is_used_again_loses_the_guard_that_it_had(image, runtime, tmp_path, change, place, preload):
    own = {"LD_PRELOAD": preload} if preload else {}
    bundle = Bundle(tmp_path / "bundle", image, ["take"], **own)
    before = bundle.read()["mounts"]
    runtime.create(bundle, preload=place)
    assert bundle.guarded() == "yes" and LIBRARY in bundle.variables()["LD_PRELOAD"]
    runtime.create(bundle.change(AGAIN[change]), preload=place)
    assert bundle.guarded().startswith("no: ")
    assert bundle.read()["mounts"] == before
    assert bundle.variables().get("LD_PRELOAD") == preload and "SPARKGUARD_DIR" not in bundle.variables()


def test_a_bundle_that_is_used_again_has_the_places_of_its_new_root(image, runtime, tmp_path, bundle):
    """The mounts of the first time would fail in a root file system that has no place for them."""
    root = tmp_path / "rootfs"
    shutil.copytree(image.root, root, symlinks=True)
    (root / "run").rmdir()
    (root / "run").write_text("")
    mounts = bundle.destinations()
    runtime.create(bundle)
    bundle.change(lambda config: config["root"].update(path=str(root)))
    runtime.create(bundle)
    assert "leave no place" in bundle.guarded() and bundle.destinations() == mounts


def test_a_mount_of_the_users_stays_in_a_bundle_that_is_used_again(runtime, bundle):
    own = {"destination": OWN, "source": "/tmp", "type": "bind", "options": ["rbind", "ro"]}
    bundle.change(lambda config: config["mounts"].append(own))
    runtime.create(bundle)
    runtime.create(bundle.change(AGAIN["opts out"]))
    assert bundle.guarded().startswith("no: ") and own in bundle.read()["mounts"] and LIBRARY not in bundle.destinations()


def test_a_bundle_that_is_used_again_for_another_container_gets_that_ones_directory(runtime, bundle):
    """That of the first may be gone, and then the second did not start."""
    for name in ("one", "other"):
        runtime.create(bundle, name=name)
        (own,) = [mount["source"] for mount in bundle.read()["mounts"] if mount["destination"] == OWN]
        assert own == str(runtime.containers / name)
    assert bundle.destinations().count(LIBRARY) == 1


def test_a_file_of_the_users_at_the_librarys_place_is_no_guard(runtime, bundle):
    other = {"destination": LIBRARY, "source": "/etc/hostname", "type": "bind", "options": ["rbind", "ro"]}
    runtime.create(bundle.change(lambda config: config["mounts"].append(other)))
    assert bundle.guarded() == f"no: a mount of the user's is at {LIBRARY}" and "LD_PRELOAD" not in bundle.variables()
    done = runtime.run("create", "--bundle", bundle.folder, "box", required="yes")
    assert done.returncode == 1 and "is not started: a mount of the user's is at" in done.stderr


def test_the_librarys_own_mount_by_cdi_is_the_guard(runtime, bundle):
    """sparkguard-doctor --print-cdi makes it, with options in another order."""
    device = {"destination": LIBRARY, "source": str(runtime.lines["library"]), "type": "bind", "options": ["ro", "nosuid", "nodev", "bind"]}
    bundle.change(lambda config: (config["mounts"].append(device), config["process"]["env"].append(f"LD_PRELOAD={LIBRARY}")))
    runtime.create(bundle)
    assert bundle.guarded() == "yes" and bundle.variables()["LD_PRELOAD"] == LIBRARY and bundle.destinations().count(LIBRARY) == 1
    runtime.create(bundle, name="again", required="yes")


def test_what_is_restored_keeps_the_mounts_that_it_had(runtime, bundle):
    runtime.create(bundle)
    mounts = bundle.destinations()
    bundle.change(AGAIN["opts out"])
    runtime.passes_on("restore", "--bundle", bundle.folder, "box")
    assert bundle.destinations() == mounts


ORDERS = {
    "containerd": ("--root", "/r", "--log", "/l", "--log-format", "json", "create", "--bundle", "B", "--pid-file", "/p", "box"),
    "podman": ("--log-format=json", "--systemd-cgroup", "create", "--bundle", "B", "--pid-file", "/p", "box"),
    "equals": ("--debug", "run", "--bundle=B", "--detach", "box"),
    "short": ("run", "-b", "B", "-d", "box"),
    "joined": ("run", "-bB", "box"),
    "one dash": ("-root", "/r", "create", "-bundle", "B", "box"),
    "behind the id": ("--root=/r", "create", "box", "--bundle", "B"),
    "crun": ("--cgroup-manager", "disabled", "--rootless", "true", "run", "--preserve-fds", "0", "--bundle", "B", "--", "box"),
    "pidfd": ("run", "--pidfd-socket", "/s", "--bundle", "B", "box"),
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
    assert not runtime.containers.exists()
    assert (runtime.log.read_text() if runtime.log.exists() else "").count("unknown command") == (words[:1] == ("nonsense",))


def test_a_container_that_is_missed_because_of_an_unknown_option_is_in_the_log(runtime, bundle):
    runtime.passes_on("--new-option", "value", "create", "--bundle", bundle.folder, "box")
    assert bundle.guarded() is None
    (line,) = runtime.log.read_text().splitlines()
    assert line.endswith(": value is an unknown command, or the value of an unknown option: nothing is guarded")


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


@pytest.mark.parametrize("given, inside", [({}, "0"), ({"MIMALLOC_ARENA_EAGER_COMMIT": "1"}, "1")])
def test_heaps_of_mimalloc_commit_what_they_use(image, runtime, tmp_path, given, inside):
    bundle = Bundle(tmp_path / "bundle", image, ["take"], **given)
    runtime.create(bundle)
    assert bundle.variables()["MIMALLOC_ARENA_EAGER_COMMIT"] == inside


def test_the_administrator_can_put_the_guard_last(image, runtime, tmp_path):
    bundle = Bundle(tmp_path / "bundle", image, ["take"], LD_PRELOAD="/a.so")
    runtime.create(bundle, preload="last")
    assert bundle.variables()["LD_PRELOAD"] == f"/a.so:{LIBRARY}"


def test_of_a_variable_that_is_there_twice_the_last_counts(runtime, bundle):
    bundle.change(lambda config: config["process"]["env"].extend(["LD_PRELOAD=/first.so", "LD_PRELOAD=/last.so"]))
    runtime.create(bundle)
    assert [e for e in bundle.read()["process"]["env"] if e.startswith("LD_PRELOAD")] == ["LD_PRELOAD=/first.so", f"LD_PRELOAD={LIBRARY}:/last.so"]


def test_a_guard_set_up_by_hand_is_left_alone(build, runtime, tmp_path):
    image = Image(tmp_path / "rootfs").add("/bin/sh").put(build / "libsparkguard.so", "/opt/libsparkguard.so")
    own = {"LD_PRELOAD": "/opt/libsparkguard.so", "SPARKGUARD_DIR": "/opt/shared"}
    bundle = Bundle(tmp_path / "bundle", image, ["sh"], **own)
    mounts = bundle.destinations()
    runtime.create(bundle)
    assert bundle.guarded() == "yes" and bundle.destinations() == mounts
    assert {name: bundle.variables()[name] for name in own} == own


LIMITS = {
    "vendor": ({"NVIDIA_GPU_MEMORY_LIMIT": "40960"}, {}, "40960MiB"),
    "a tebibyte of the vendor": ({"NVIDIA_GPU_MEMORY_LIMIT": "1048576"}, {}, "1048576MiB"),
    "own before vendor": ({"NVIDIA_GPU_MEMORY_LIMIT": "40960", "SPARKGUARD_LIMIT": "20G"}, {}, "20G"),
    "annotation before own": ({"SPARKGUARD_LIMIT": "20G"}, {"sparkguard.limit": "10G"}, "10G"),
    "annotation in bytes": ({}, {"sparkguard.limit": "42949672960"}, "42949672960"),
    "percent": ({}, {"sparkguard.limit": "25%"}, "25%"),
    "not a size": ({}, {"sparkguard.limit": "much"}, None),
    "unit forgotten": ({}, {"sparkguard.limit": "40"}, None),
}

# The vendor's hook reads a decimal number and nothing else.
NO_WHOLE_MEBIBYTES = ["much", "40G", "25%", "+40", "-1", " 40", "1.5", "0", "00", "99999999999999999999"]


@pytest.mark.parametrize("case", LIMITS)
def test_a_limit_comes_from_annotation_variable_or_vendor(image, runtime, tmp_path, case):
    environment, annotations, expected = LIMITS[case]
    bundle = Bundle(tmp_path / "bundle", image, ["take"], **environment)
    bundle.change(lambda config: config.update(annotations=annotations))
    runtime.create(bundle)
    assert bundle.guarded() == "yes"
    assert bundle.variables().get("SPARKGUARD_LIMIT") == expected
    assert ("is not a size" in (runtime.log.read_text() if runtime.log.exists() else "")) == (expected is None)


@pytest.mark.parametrize("value", NO_WHOLE_MEBIBYTES)
def test_the_limit_of_the_vendor_is_whole_mebibytes(image, runtime, tmp_path, value):
    bundle = Bundle(tmp_path / "bundle", image, ["take"], NVIDIA_GPU_MEMORY_LIMIT=value)
    runtime.create(bundle)
    assert bundle.guarded() == "yes"
    assert "SPARKGUARD_LIMIT" not in bundle.variables()
    (line,) = runtime.log.read_text().splitlines()
    assert line.endswith(f" box: NVIDIA_GPU_MEMORY_LIMIT={value} is not a number of MiB such as 40960: no limit is set")


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
    "owner": ((1000, 4711, 0o2770), (1000, 1000), (True, True)),  # for the ledger that the group shares
    "root, without the right to take what is others'": ((0, 4711, 0o2770), (0, 0), (True, True)),
    "closed": ((0, 4711, 0o700), (1000, 1000), (False, False)),
    "group of root": ((0, 0, 0o2770), (1000, 1000), (False, False)),
    "group of the system": ((0, 999, 0o2770), (1000, 1000), (False, False)),
    "group of the image": ((0, 4712, 0o2770), (1000, 1000), (False, False)),
    "member of the image's": ((0, 4712, 0o2770), (1000, 4712), (True, False)),
    "group of a mount": ((0, 4713, 0o2770), (1000, 1000), (False, False)),
    "group of a user": ((0, 65534, 0o2770), (1000, 1000), (False, False)),
    "another's": ((1001, 4711, 0o2770), (1000, 1000), (False, False)),
}


@pytest.mark.parametrize("case", USERS)
def test_a_user_who_shares_gets_the_directory_that_the_library_will_take(image, runtime, tmp_path, case):
    (owner, group, mode), (uid, gid), (is_usable, is_added) = USERS[case]
    os.chown(runtime.shared, owner, group)
    runtime.shared.chmod(mode)
    given, mount = tmp_path / "given", {"destination": "/given", "type": "bind", "options": ["bind"]}
    given.mkdir()
    os.chown(given, 0, 4713)
    (image.root / "etc/group").write_text("root:x:0:\nown:x:4712:\n")
    bundle = Bundle(tmp_path / "bundle", image, ["take"])
    bundle.change(lambda config: config["process"].update(user={"uid": uid, "gid": gid}) or config["mounts"].append({**mount, "source": str(given)}) or sharing(config))
    runtime.create(bundle, share="yes")
    assert bundle.guarded() == "yes"
    assert bundle.variables().get("SPARKGUARD_DIR") == (SHARED if is_usable else OWN)
    assert (SHARED in bundle.destinations(), OWN in bundle.destinations()) == (is_usable, not is_usable)
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

        sharing(config)

    runtime.create(bundle.change(change), share="yes")
    assert bundle.guarded() == "yes"
    assert bundle.variables().get("SPARKGUARD_DIR") == (SHARED if is_usable else OWN)
