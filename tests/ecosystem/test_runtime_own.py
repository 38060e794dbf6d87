"""sparkguard-runtime: a container is not trusted. It has a directory of its own, on a tmpfs with a size; the host's it shares only where
its annotation and the administrator both want that. Records are root's."""

import fcntl
import json
import os
import stat
import subprocess
from pathlib import Path

import pytest
from bundles import Bundle
from runtime_bundle import OWN, SHARED, bundle, image, runtime, sharing  # noqa: F401

MEMBER, GROUP = 51002, 51000


def mount_of(bundle, place):
    (found,) = [mount for mount in bundle.read()["mounts"] if mount["destination"] == place]
    return found


def test_each_container_has_a_directory_of_its_own_with_a_size(image, runtime, tmp_path):
    for name, uid in (("one", 0), ("other", 65534)):
        bundle = Bundle(tmp_path / name, image, ["take"])
        runtime.create(bundle.change(lambda config: config["process"].update(user={"uid": uid, "gid": uid})), name=name)  # noqa: B023
        assert bundle.variables()["SPARKGUARD_DIR"] == OWN
        assert mount_of(bundle, OWN) == {"destination": OWN, "type": "bind", "source": str(runtime.containers / name),
                                         "options": ["bind", "rw", "nosuid", "nodev", "noexec"]}
        folder = (runtime.containers / name).stat()
        assert (folder.st_uid, stat.S_IMODE(folder.st_mode)) == (uid, 0o700)
    for kind, options in runtime.mounted().values():
        assert kind == "tmpfs" and {"rw", "nosuid", "nodev", "noexec", "size=32768k", "nr_inodes=4096"} <= set(options)
    assert set(runtime.mounted()) == {"one", "other"}


LOCK = """
import fcntl, os, struct, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_RDLCK, 0, 0, 1024, 0))
"""


def test_a_user_of_the_host_reads_locks_and_changes_nothing_of_a_container(build, runtime, bundle):
    """Who may read a registry may lock it, and then the container's programs decide alone."""
    runtime.create(bundle)
    own = runtime.containers / "box"
    for folder in (runtime.containers, *runtime.containers.parents):
        if str(folder).startswith("/tmp/"):
            folder.chmod(folder.stat().st_mode | 0o055)
    env = {**os.environ, "LD_PRELOAD": str(build / "libsparkguard.so"), "SPARKGUARD_DIR": str(own)}
    subprocess.run([build / "tests/programs/admit_take", "malloc", "64M"], env=env, check=True, capture_output=True)
    (segment,) = own.glob("*.segment")
    for words in (["ls", own], ["cat", own / "machine.ledger"], ["cat", segment], ["python3", "-c", LOCK, own / "machine.ledger"], ["cat", runtime.containers / ".lock"], ["touch", own / "x"], ["rm", own / "x"]):
        user = ["setpriv", f"--reuid={MEMBER}", f"--regid={MEMBER}", "--clear-groups"]
        assert subprocess.run([*user, *words], capture_output=True).returncode != 0, words
        assert subprocess.run(words, capture_output=True).returncode == 0, words


ASKED = {"neither": (False, None), "the container alone": (True, None), "the container, and it is not allowed": (True, "no"), "the administrator alone": (False, "yes")}


@pytest.mark.parametrize("who", ASKED)
def test_one_alone_cannot_decide_to_share(runtime, bundle, who):
    asks, allowed = ASKED[who]
    if asks:
        bundle.change(sharing)
    runtime.create(bundle, **({"share": allowed} if allowed else {}))
    assert SHARED not in bundle.destinations() and str(runtime.shared) not in bundle.path.read_text()
    assert bundle.guarded() == "yes" and bundle.variables()["SPARKGUARD_DIR"] == OWN
    told = "runtime.conf has no share = yes" in (runtime.log.read_text() if runtime.log.exists() else "")
    assert told == asks


def test_both_together_share_the_hosts_directory(runtime, bundle):
    runtime.create(bundle.change(sharing), share="yes")
    assert bundle.variables()["SPARKGUARD_DIR"] == SHARED and mount_of(bundle, SHARED)["source"] == str(runtime.shared)
    assert mount_of(bundle, SHARED)["options"] == ["bind", "rw", "nosuid", "nodev", "noexec"] and OWN not in bundle.destinations()


def test_a_shared_directory_that_is_missing_is_made_as_a_file_system_of_its_own(runtime, bundle):
    """What members write there takes no memory but its own, and nobody starts a set-user-ID program from there."""
    runtime.shared.rmdir()
    try:
        runtime.create(bundle.change(sharing), share="yes")
        lines = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
        ((kind, options),) = [(kind, options.split(",")) for _, place, kind, options, *_ in lines if place == str(runtime.shared)]
        assert kind == "tmpfs" and {"rw", "nosuid", "nodev", "noexec", "size=65536k", "nr_inodes=8192"} <= set(options)
        assert stat.S_IMODE(runtime.shared.stat().st_mode) in (0o700, 0o2770)
    finally:
        subprocess.run(["umount", runtime.shared], check=False)


def test_an_ipc_namespace_of_its_own_has_no_part_in_the_ledger(runtime, bundle):
    runtime.create(bundle.change(lambda config: config.update(annotations={"sparkguard.share": "yes"})), share="yes")
    assert SHARED not in bundle.destinations() and "--ipc=host" in runtime.log.read_text()


def test_where_nothing_can_be_mounted_the_container_gets_a_tmpfs_inside(image, runtime, tmp_path):
    """As in a user namespace that is joined, or where the folder of records is another user's."""
    runtime.containers.mkdir(parents=True)
    runtime.containers.chmod(0o777)
    bundle = Bundle(tmp_path / "bundle", image, ["take"])
    runtime.create(bundle.change(lambda config: config["process"].update(user={"uid": 7, "gid": 8})))
    assert bundle.guarded() == "yes" and mount_of(bundle, OWN) == {
        "destination": OWN, "type": "tmpfs", "source": "tmpfs",
        "options": ["rw", "nosuid", "nodev", "noexec", "size=32m", "nr_inodes=4096", "mode=0700", "uid=7", "gid=8"]}
    before = bundle.path.read_text()
    runtime.create(bundle)
    assert bundle.path.read_text() == before
    runtime.create(bundle.change(lambda config: config["annotations"].update(sparkguard="off")))
    assert OWN not in bundle.destinations() and "SPARKGUARD_DIR" not in bundle.variables()


def test_a_user_namespace_owns_its_directory(image, runtime, tmp_path):
    bundle = Bundle(tmp_path / "bundle", image, ["take"])

    def change(config):
        config["process"]["user"] = {"uid": 3, "gid": 4}
        for kind in ("uidMappings", "gidMappings"):
            config["linux"][kind] = [{"containerID": 0, "hostID": 100000, "size": 65536}]

    for path in (image.root, image.root / "run"):
        os.chown(path, 100000, 100000)
    try:
        runtime.create(bundle.change(change))
    finally:
        for path in (image.root, image.root / "run"):
            os.chown(path, 0, 0)
    folder = (runtime.containers / "box").stat()
    assert (folder.st_uid, folder.st_gid) == (100003, 100004) and mount_of(bundle, OWN)["type"] == "bind"


PODS = {"containerd": ("io.kubernetes.cri.container-type", "io.kubernetes.cri.sandbox-id"),
        "CRI-O": ("io.kubernetes.cri-o.ContainerType", "io.kubernetes.cri-o.SandboxID")}


def of_pod(image, folder, engine, kind, pod, uid=0):
    def change(config):
        config["annotations"] = dict(zip(PODS[engine], (kind, pod), strict=True))
        config["process"]["user"] = {"uid": uid, "gid": uid}

    return Bundle(folder, image, ["take"]).change(change)


@pytest.mark.parametrize("engine", PODS)
def test_the_containers_of_a_pod_share_one_directory(image, runtime, tmp_path, engine):
    def source(name, pod, uid=0):
        container = of_pod(image, tmp_path / name, engine, "container", pod, uid)
        runtime.create(container, name=name)
        return mount_of(container, OWN)["source"]

    runtime.create(of_pod(image, tmp_path / "pod", engine, "sandbox", "pod"), name="pod")
    assert {source(name, "pod") for name in ("one", "two")} == {str(runtime.containers / "pod")}
    assert source("users", "pod", 65534) == str(runtime.containers / "users"), "of another user"
    assert (runtime.containers / "pod").stat().st_uid == 0
    assert source("stray", "unknown") == str(runtime.containers / "stray"), "no sandbox that this runtime has started"
    runtime.create(of_pod(image, tmp_path / "plain", engine, "container", "plain"), name="plain")
    assert source("guest", "../pod") == str(runtime.containers / "guest")


def test_of_a_container_that_ran_as_another_user_nothing_is_left_under_its_id(runtime, bundle):
    """Its files would keep the programs of the next one from sharing with each other."""
    left = runtime.containers / "box/machine.ledger"
    for uid, is_there in ((MEMBER, False), (MEMBER, True), (0, False)):
        runtime.create(bundle.change(lambda config: config["process"].update(user={"uid": uid, "gid": uid})))  # noqa: B023
        assert left.exists() == is_there and left.parent.stat().st_uid == uid and mount_of(bundle, OWN)["type"] == "bind"
        left.write_text("x")
        os.chown(left, uid, uid)
    assert list(runtime.mounted()) == ["box"]


def test_a_container_that_runs_keeps_its_directory_from_another_with_its_id(runtime, bundle, tmp_path):
    """The next runtime refuses the second; the guard's edit comes before that."""
    root = tmp_path / "root"
    for uid in (MEMBER, 0):
        bundle.change(lambda config: config["process"].update(user={"uid": uid, "gid": uid}))  # noqa: B023
        runtime.passes_on("--root", root, "create", "--bundle", bundle.folder, "box")
        (root / "box").mkdir(parents=True, exist_ok=True)
        (root / "box/state.json").write_text(json.dumps({"init_process_pid": os.getpid()}))
        assert (runtime.containers / "box").stat().st_uid == MEMBER


def test_a_runtime_that_is_stopped_with_the_lock_holds_up_no_other(runtime, bundle):
    runtime.containers.mkdir(parents=True)
    with open(runtime.containers / ".lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        runtime.create(bundle)
    assert bundle.guarded() == "yes" and mount_of(bundle, OWN)["source"] == str(runtime.containers / "box")


def test_the_same_id_of_another_engine_shares_nothing(image, runtime, tmp_path):
    one, other = Bundle(tmp_path / "one", image, ["take"]), Bundle(tmp_path / "other", image, ["take"])
    runtime.passes_on("--root", tmp_path / "a", "create", "--bundle", one.folder, "box")
    runtime.passes_on("--root", tmp_path / "b", "create", "--bundle", other.folder, "box")
    assert mount_of(one, OWN)["type"] == "bind" and mount_of(other, OWN)["type"] == "tmpfs"


def test_of_ended_containers_the_last_directories_are_kept(runtime, bundle):
    """For the report. The test cannot make them older: the time of a change is the kernel's, so a clock of tomorrow is used."""
    for number in range(20):
        runtime.create(bundle, name=f"box{number}")
        (runtime.containers / f"box{number}/left").write_text("x")
        if number < 19:
            runtime.passes_on("delete", "--force", f"box{number}")
    runtime.create(bundle, name="young")
    assert len(runtime.mounted()) == 21, "the young ones stay"
    plain, runtime.program = runtime.program, runtime.folder / "tomorrow"
    runtime.program.write_text(f'#!/bin/sh\nexec faketime -f +1d {plain} "$@"\n')
    runtime.program.chmod(0o755)
    if subprocess.run(["which", "faketime"], capture_output=True).returncode != 0:
        pytest.skip("no faketime")
    runtime.create(bundle, name="last")
    kept = set(runtime.mounted())
    assert {"box19", "young", "last"} <= kept and len(kept) == 16 + 3 and "box0" not in kept and not (runtime.containers / "box0").exists()


def test_the_history_of_a_container_is_the_hosts_where_the_administrator_says_so(runtime, bundle):
    """Of what the container left only records are copied, and no more than a bound; links lead nowhere."""
    history, own = runtime.folder / "history", runtime.containers / "box"
    private = runtime.folder / "private.segment"
    private.write_text("root's own")
    for lines in ({}, {"history": history}):
        runtime.create(bundle, **lines)
        (own / "1-0000000000000001.segment").write_bytes(b"record")
        (own / "1-0000000000000001.timeline").write_bytes(b"times")
        (own / "2-0000000000000002.segment").unlink(missing_ok=True)
        (own / "2-0000000000000002.segment").symlink_to(private)
        (own / "3-0000000000000003.segment").write_bytes(bytes((1 << 20) + 1))
        (own / "program").write_bytes(b"x")
        os.chmod(own / "program", 0o4755)
        for number in range(300):
            (own / f"4-{number:016x}.segment").write_bytes(b"r")
        if not (own / "5-0000000000000005.segment").exists():
            os.mkfifo(own / "5-0000000000000005.segment")
        runtime.passes_on("delete", "--force", "box", **lines)
        assert history.exists() == bool(lines)
    kept = {path.name: path for path in (history / "box").iterdir()}
    assert 0 < len(kept) <= 256 and "program" not in kept and not any(path.is_symlink() or path.is_fifo() for path in kept.values())
    assert not {"2-0000000000000002.segment", "3-0000000000000003.segment", "5-0000000000000005.segment"} & set(kept)
    assert stat.S_IMODE((history / "box").stat().st_mode) == 0o700 and {stat.S_IMODE(path.stat().st_mode) for path in kept.values()} == {0o600}


def test_a_member_of_the_shared_group_cannot_take_records_away(runtime, bundle):
    """Records lay in the directory that the group writes, and exec ran unguarded without."""
    os.chown(runtime.shared, 0, GROUP)
    runtime.shared.chmod(0o2770)
    for parent in (runtime.system / "run", runtime.system, runtime.folder, *list(runtime.folder.parents)[:2]):
        parent.chmod(0o755)
    runtime.create(bundle, required="yes")
    script = f"cd {runtime.containers.parent}; rm -rf containers/* 2>/dev/null; mv containers old 2>/dev/null; rm -rf {runtime.shared}/* 2>/dev/null; ls containers"
    done = subprocess.run(["setpriv", f"--reuid={MEMBER}", f"--regid={MEMBER}", f"--groups={GROUP}", "sh", "-c", script], capture_output=True, text=True)
    assert "box.json" in done.stdout.split()
    process = runtime.folder / "process.json"
    process.write_text('{"user": {"uid": 0, "gid": 0}, "args": ["take"], "env": ["PATH=/bin"], "cwd": "/"}')
    runtime.passes_on("exec", "--process", process, "box", required="yes")
    assert "libsparkguard" in process.read_text()


@pytest.mark.parametrize("uid, is_usable", [(0, True), (1000, False)])
def test_who_joins_uses_the_directory_if_it_is_his(runtime, bundle, uid, is_usable):
    runtime.create(bundle)
    process = runtime.folder / "process.json"
    process.write_text('{"user": {"uid": %d, "gid": 0}, "args": ["take"], "env": ["PATH=/bin"], "cwd": "/"}' % uid)
    runtime.passes_on("exec", "--process", process, "box")
    assert (OWN in process.read_text()) == is_usable and "libsparkguard" in process.read_text()
