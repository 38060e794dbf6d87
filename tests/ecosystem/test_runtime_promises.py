"""sparkguard-runtime shows the host what a container has promised: a file that the container writes and cannot replace, and root's words
about it. The host's programs count it as long as the container says it again."""

import contextlib
import json
import os
import shutil
import signal
import stat
import subprocess
import time
from pathlib import Path

import pytest
from bundles import Bundle
from lib.machine import GIB, KEEP, LEFT, NEAR, Machine, take
from lib.waiting import wait_until
from runtime_bundle import bundle, image, runtime  # noqa: F401

USER = 65534


def in_cgroup(path, uid=0, memory=None):
    def change(config):
        config["linux"]["cgroupsPath"] = path
        config["process"]["user"] = {"uid": uid, "gid": uid}
        if memory:
            config["linux"]["resources"] = {"memory": {"limit": memory}}

    return change


def test_what_a_container_tells_is_a_file_that_it_writes_and_others_read(image, runtime, tmp_path):
    for name, uid in (("one", 0), ("other", USER)):
        runtime.create(Bundle(tmp_path / name, image, ["take"]).change(in_cgroup(f"/engine/{name}", uid)), name=name)
        shown, own = runtime.promises / name, runtime.containers / name / "promises"
        status = shown.stat()
        assert (status.st_uid, stat.S_IMODE(status.st_mode), status.st_size, status.st_nlink) == (uid, 0o644, 64, 1)
        assert os.path.samefile(shown, own) and os.path.ismount(shown)
        own.write_bytes(b"x" * 64)
        assert shown.read_bytes() == b"x" * 64
        with pytest.raises(OSError, match="Read-only"):
            shown.write_bytes(b"")
        words = runtime.promises / f".{name}"
        assert (words.stat().st_uid, stat.S_IMODE(words.stat().st_mode)) == (0, 0o644)
        assert words.read_text() == f"/engine/{name}\n{name}\n"
    assert stat.S_IMODE(runtime.promises.stat().st_mode) == 0o755
    runtime.passes_on("delete", "--force", "one")
    assert sorted(path.name for path in runtime.promises.iterdir()) == [".other", "other"]


@pytest.mark.parametrize("kind", ["nothing", "a link", "two names", "a pipe"])
def test_what_a_container_puts_in_its_place_changes_nothing_outside(runtime, bundle, kind):
    runtime.create(bundle.change(in_cgroup("/engine/box")))
    shown, own = runtime.promises / "box", runtime.containers / "box/promises"
    other = runtime.containers / "box/other"
    other.write_text("x")
    if kind == "two names":
        other.unlink()
        other.hardlink_to(own)
    else:
        own.unlink()
    if kind == "a link":
        own.symlink_to("/etc/passwd")
    elif kind == "a pipe":
        os.mkfifo(own)
    assert shown.is_file() and shown.stat().st_size == 64 and shown.read_bytes() == bytes(64)
    runtime.create(bundle)
    assert os.path.samefile(shown, own) and shown.stat().st_nlink == 1 and own.is_file() and not own.is_symlink()


@pytest.mark.parametrize("path", [None, "engine/box", "/engine/a\nb"])
def test_without_a_cgroup_that_is_known_nothing_is_shown(runtime, bundle, path):
    runtime.create(bundle.change(in_cgroup("/engine/box")))
    assert sorted(one.name for one in runtime.promises.iterdir()) == [".box", "box"]
    runtime.create(bundle.change(lambda config: config["linux"].update(cgroupsPath=path)))
    assert bundle.guarded() == "yes" and not list(runtime.promises.iterdir())


def test_no_setting_moves_what_the_host_reads(runtime, bundle):
    """Moved, the promises were where no program of the host looked for them, and the records where no report did."""
    other = runtime.folder / "other/containers"
    runtime.create(bundle.change(in_cgroup("/engine/box")), containers=other)
    assert sorted(one.name for one in runtime.promises.iterdir()) == [".box", "box"] and runtime.record() is not None
    assert not other.parent.exists() and f"this line was not understood: containers = {other}" in runtime.log.read_text()


def test_a_pod_is_bounded_by_its_own_cgroup(image, runtime, tmp_path):
    for name, path, kind in (("pod", "/kubepods/pod7/pod", "sandbox"), ("one", "kubepods-pod7.slice:cri-containerd:one", "container")):
        pod = {"io.kubernetes.cri.container-type": kind, "io.kubernetes.cri.sandbox-id": "pod"}
        container = Bundle(tmp_path / name, image, ["take"]).change(in_cgroup(path))
        runtime.create(container.change(lambda config: config.update(annotations=pod)), name=name)  # noqa: B023
    assert sorted(path.name for path in runtime.promises.iterdir()) == [".pod", "pod"]
    assert (runtime.promises / ".pod").read_text() == "/kubepods.slice/kubepods-pod7.slice\none\n"
    runtime.passes_on("delete", "--force", "one")
    assert (runtime.promises / "pod").exists()


def test_containers_of_a_pod_that_begin_at_once_share_one_figure(image, runtime, tmp_path):
    """Each mounted a tmpfs over the other's, and put a file of its own over the one that was shown."""
    pods = [f"pod{i}" for i in range(10)]
    made = {}
    for pod in pods:
        for name, kind in ((pod, "sandbox"), (f"{pod}-a", "container"), (f"{pod}-b", "container"), (f"{pod}-c", "container")):
            annotations = {"io.kubernetes.cri.container-type": kind, "io.kubernetes.cri.sandbox-id": pod}
            made[name] = Bundle(tmp_path / name, image, ["take"]).change(in_cgroup(f"/kubepods/{pod}/{name}"))
            made[name].change(lambda config: config.update(annotations=annotations))  # noqa: B023
        runtime.create(made[pod], name=pod)
    for pod in pods:
        names = [f"{pod}-{letter}" for letter in "abc"]
        at_once = [subprocess.Popen([runtime.program, "create", "--bundle", made[name].folder, name], env=runtime.environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                   for name in names]  # fmt: skip
        assert [one.wait(60) for one in at_once] == [23, 23, 23]
        places = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
        own, shown = runtime.containers / pod, runtime.promises / pod
        assert (places.count(str(own)), places.count(str(shown))) == (1, 1)
        assert os.path.samefile(own / "promises", shown) and shown.stat().st_nlink == 1
        assert (runtime.promises / f".{pod}").read_text().partition("\n")[0] == f"/kubepods/{pod}"
        for name in names:
            assert str(own) in [mount.get("source") for mount in made[name].read()["mounts"]]
        figures = shown.stat().st_ino
        runtime.create(made[names[0]], name=f"{pod}-d")
        assert shown.stat().st_ino == figures, "what the pod has promised goes on counting"


def test_what_a_killed_runtime_has_left_in_the_folder_goes(runtime, bundle):
    """A figure without words, words without a figure, and words half written, of containers without a record. The clock is tomorrow's, as a
    time of a change is the kernel's."""
    if shutil.which("faketime") is None:
        pytest.skip("no faketime")
    runtime.create(bundle.change(in_cgroup("/engine/kept")), name="kept")
    for name in ("figure", ".words", "..half.7", "both", ".both"):
        (runtime.promises / name).write_text("")
    plain, runtime.program = runtime.program, runtime.folder / "tomorrow"
    runtime.program.write_text(f'#!/bin/sh\nexec faketime -f +1d {plain} "$@"\n')
    runtime.program.chmod(0o755)
    runtime.create(bundle.change(in_cgroup("/engine/last")), name="last")
    assert sorted(path.name for path in runtime.promises.iterdir()) == [".kept", ".last", "kept", "last"]


# ---- with runc ----


class Box:
    """A container of runc's, and a program of a host that has its containers."""

    def __init__(self, guard, runtime, image, tmp_path):
        self.guard, self.runtime, self.image, self.folder = guard, runtime, image, tmp_path
        self.machine = Machine(tmp_path / "machine")
        (self.machine.root / "run").symlink_to(runtime.system / "run")
        (self.machine.root / "sys").symlink_to("/sys")
        runtime.lines["next"] = shutil.which("runc")
        self.process = None

    def call(self, *words, **options):
        self.runtime.conf.write_text("".join(f"{key} = {value}\n" for key, value in self.runtime.lines.items()))
        pipes = {name: subprocess.PIPE for name in ("stdin", "stdout", "stderr")}
        command = [self.runtime.program, "--root", self.folder / "state", *words]
        return subprocess.Popen(list(map(str, command)), env=self.runtime.environment(), text=True, **pipes, **options)

    def start(self, *commands, uid=0):
        path = f"/sparkguard-test-{os.getpid()}/box"
        bundle = Bundle(self.folder / "bundle", self.image, commands, SPARKGUARD_LIMIT="1536M").change(in_cgroup(path, uid, 2 * GIB))
        self.process = self.call("run", "--bundle", bundle.folder, "box")
        said = self.process.stdout.readline()
        if not said:
            pytest.skip(f"no container with a limit can be made here: {self.process.communicate()[1]}")
        while said != "ready\n":
            said = self.process.stdout.readline()
            assert said, self.process.communicate()
        return self

    def first(self):
        """The number of its first process."""
        out, _ = self.call("ps", "--format", "json", "box").communicate(timeout=60)
        return int(out.strip("[]\n ").split(",")[0])

    def counts(self, bytes):
        (largest,) = take(self.guard, self.machine, "largest", env=KEEP)
        return abs(LEFT - bytes - largest) <= 3 * NEAR  # what its program uses is no part of what its limit leaves

    def shown(self):
        """What the host's report says of it."""
        command = [self.guard.build / "sparkguard-report", "--json", "--dir", self.guard.directory]
        env = {**self.guard.environment({"SPARKGUARD_SYSTEM_ROOT": self.machine.root}), "LD_PRELOAD": ""}
        return json.loads(subprocess.run(command, env=env, capture_output=True, text=True).stdout)["machine"]["containers"]

    def end(self):
        if self.process is not None:
            self.call("delete", "--force", "box").communicate(timeout=60)
            self.process.communicate(timeout=60)
        name, top = f"sparkguard-test-{os.getpid()}", Path("/sys/fs/cgroup")
        for folder in (top / name, *top.glob(f"*/{name}")):  # of each hierarchy of the first version
            with contextlib.suppress(OSError):
                folder.rmdir()


@pytest.fixture
def box(guard, runtime, image, tmp_path):
    if shutil.which("runc") is None:
        pytest.skip("no runc")
    one = Box(guard, runtime, image, tmp_path)
    yield one
    one.end()


@pytest.mark.parametrize("uid", [0, USER])
def test_the_host_counts_what_a_container_promises_until_that_is_killed(box, uid):
    box.start("/bin/take", "malloc", "1G", "wait", uid=uid)
    wait_until(lambda: box.counts(GIB))
    (told,) = wait_until(box.shown)
    assert (told["name"], told["limit_bytes"]) == ("box", 1536 << 20) and GIB <= told["live_bytes"] <= GIB + 3 * NEAR
    assert GIB - 3 * NEAR <= told["promised_bytes"] <= GIB + 3 * NEAR
    os.kill(box.first(), signal.SIGKILL)
    wait_until(lambda: box.counts(0))


@pytest.mark.parametrize("how", ["stopped", "paused"])
def test_the_promises_of_a_container_that_is_stopped_end(box, how):
    box.start("/bin/take", "malloc", "1G", "wait")
    wait_until(lambda: box.counts(GIB))
    first = box.first()

    def stop(is_on):
        if how == "stopped":
            os.kill(first, signal.SIGSTOP if is_on else signal.SIGCONT)
        else:
            process = box.call("pause" if is_on else "resume", "box")
            said = process.communicate(timeout=60)[1]
            if process.returncode != 0:
                pytest.skip(f"nothing is paused here: {said.strip()}")

    stop(True)
    wait_until(lambda: box.counts(0))
    stop(False)
    wait_until(lambda: box.counts(GIB))


def test_no_more_counts_than_the_limit_of_its_cgroup(box):
    box.start("/bin/take", "malloc", "1G", "wait")
    own = box.runtime.containers / "box/promises"
    wait_until(lambda: box.counts(GIB))
    os.kill(box.first(), signal.SIGSTOP)  # it would write the truth again
    content = bytearray(own.read_bytes())

    def lies():
        content[16:24] = time.clock_gettime_ns(time.CLOCK_MONOTONIC).to_bytes(8, "little")
        content[40:48] = (1 << 60).to_bytes(8, "little")
        own.write_bytes(content)
        return box.counts(2 * GIB)

    wait_until(lies)
