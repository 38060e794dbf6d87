"""sparkguard-runtime in front of runc and crun: containers behave as without it, and those that can be guarded are.

Root file systems are made of this machine's files (bundles.py).
"""

import contextlib
import json
import os
import platform
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from bundles import Bundle, Image, compile_program
from lib.target import CC

MIB, GIB = 1 << 20, 1 << 30
GID = 4711
NEAR = 6 * MIB  # what small programs hold and are promised besides
SAY = """#include <stdio.h>
#include <stdlib.h>
int main(int count, char **words) { printf("%d words\\n", count); fprintf(stderr, "said\\n"); return count > 1 ? atoi(words[1]) : 0; }
"""
# crun wants cgroups of version 2 or none of both; a machine that has both gets a mount namespace in which crun sees one.
PREPARE = """
if [ "$(stat -f -c %T /sys/fs/cgroup)" != cgroup2fs ]; then
    umount -R /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup || exit 77
fi
exec "$@"
"""
RUNTIMES = ("runc", "crun")


def require(runtime):
    if os.geteuid() != 0 or shutil.which(runtime) is None:
        pytest.skip(f"containers need root and {runtime}")


class Engine:
    """Calls a runtime as an engine does; with `guarded` by sparkguard-runtime."""

    def __init__(self, name, build, folder):
        self.name, self.folder, self.build = name, folder, build
        self.shared, self.log, self.conf = folder / "shared", folder / "log", folder / "runtime.conf"
        self.system = folder / "system"
        self.containers, self.promises = self.system / "run/sparkguard/containers", self.system / "run/sparkguard/promises"
        self.shared.mkdir()
        os.chown(self.shared, 0, GID)
        self.shared.chmod(0o2770)
        self.lines = {"next": shutil.which(name), "library": build / "libsparkguard.so", "shared": self.shared, "log": self.log}
        self.running, self.root = [], ("--root", folder / "state")

    def command(self, arguments, guarded):
        self.conf.write_text("".join(f"{key} = {value}\n" for key, value in self.lines.items()))
        program = [self.build / "sparkguard-runtime"] if guarded else [self.lines["next"]]
        if self.name == "crun":
            program = ["unshare", "-m", "sh", "-c", PREPARE, "sh", *program, "--cgroup-manager=disabled"]
        return [str(word) for word in (*program, *self.root, *arguments)]

    def popen(self, *arguments, guarded=True):
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("SPARKGUARD_", "LD_PRELOAD"))}
        environment = {**kept, "SPARKGUARD_RUNTIME_CONF": str(self.conf), "SPARKGUARD_SYSTEM_ROOT": str(self.system)}
        pipes = {name: subprocess.PIPE for name in ("stdin", "stdout", "stderr")}
        return subprocess.Popen(self.command(arguments, guarded), env=environment, text=True, **pipes)

    def call(self, *arguments, guarded=True):
        process = self.popen(*arguments, guarded=guarded)
        stdout, stderr = process.communicate(timeout=60)
        return process.returncode, stdout, stderr

    def prepare_own(self, name, uid=0):
        """In the mount namespace that crun gets here, what the runtime mounts would be gone with it: what is there already is used."""
        self.containers.mkdir(parents=True, exist_ok=True)
        (self.containers / name).mkdir(exist_ok=True)
        if self.name == "crun" and not os.path.ismount(self.containers / name):
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"mode=0700,size=32m,uid={uid}", "sparkguard", self.containers / name], check=True)

    def prepare(self, bundle, name):
        """By default runc names the cgroup after the container: those of two runs of the tests would be one, and runc warns of it."""
        uid = 0
        with contextlib.suppress(OSError, ValueError):  # of a bundle that is broken on purpose
            bundle.change(lambda config: config["linux"].setdefault("cgroupsPath", f"/sparkguard-test-{os.getpid()}-{name}"))
            config = bundle.read()
            first = config["linux"].get("uidMappings", [{"containerID": 0, "hostID": 0}])[0]
            uid = first["hostID"] + config["process"].get("user", {}).get("uid", 0) - first["containerID"]
        self.prepare_own(name, uid)

    def run(self, bundle, name="box", guarded=True):
        self.prepare(bundle, name)
        return self.call("run", "--bundle", bundle.folder, name, guarded=guarded)

    def hold(self, bundle, name="box", guarded=True):
        """Starts a container whose program says "ready"; its answers before that."""
        self.prepare(bundle, name)
        process = self.popen("run", "--bundle", bundle.folder, name, guarded=guarded)
        process.name, process.answers = name, []
        self.running.append(process)
        for line in process.stdout:
            if line == "ready\n":
                return process
            process.answers.append(line.strip())
        raise AssertionError(f"it has ended: {process.answers}, {process.wait()}, {process.stderr.read()}")

    def end(self):
        for process in self.running:
            if process.poll() is None:
                self.call("kill", process.name, "KILL", guarded=False)
            process.communicate(timeout=60)
            self.call("delete", "--force", process.name, guarded=False)
        for own in [path for folder in (self.containers, self.promises) for path in folder.glob("*") if os.path.ismount(path)]:
            subprocess.run(["umount", "--lazy", own], check=True)

    def report(self):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("SPARKGUARD_")}
        command = [self.build / "sparkguard-report", "--json", "--all", "--dir", self.shared, "--dir", f"{self.containers}/*"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode in (0, 1), done.stderr
        return json.loads(done.stdout)["jobs"] if done.returncode == 0 else []

    def jobs(self):
        return {job["job"]: job for job in self.report()}

    def record(self, name="box"):
        return json.loads((self.containers / f"{name}.json").read_text())


@pytest.fixture(scope="module")
def image(build, tmp_path_factory):
    require("runc")
    folder = tmp_path_factory.mktemp("image")
    os.chmod(folder, 0o755)
    os.chmod(folder.parent, 0o755)
    root = Image(folder / "rootfs")
    for program in ("/bin/sh", "/usr/bin/env", "/bin/cat", "/bin/sleep", "/usr/bin/id"):
        root.add(program)
    root.add(build / "tests/programs/admit_take", "/bin/take")
    root.add(compile_program(folder, "say", SAY, compiler=CC), "/bin/say")
    root.put(compile_program(folder, "say-static", SAY, "-static", compiler=CC), "/bin/say-static")
    (jemalloc,) = Path("/usr/lib").glob("*/libjemalloc.so.2")
    root.jemalloc = str(jemalloc)
    root.preload(root.jemalloc)
    if shutil.which("musl-gcc"):
        root.put(compile_program(folder, "say-musl", SAY, compiler="musl-gcc"), "/bin/say-musl")
        loader = f"/lib/ld-musl-{platform.machine()}.so.1"
        root.put(Path(loader).resolve(), loader)
    return root


@pytest.fixture(params=RUNTIMES)
def engine(request, build, tmp_path, image):
    require(request.param)
    for parent in (tmp_path, *list(tmp_path.parents)[:2]):
        parent.chmod(0o755)
    (tmp_path / "engine").mkdir()
    one = Engine(request.param, build, tmp_path / "engine")
    status, stdout, stderr = one.run(Bundle(tmp_path / "probe", image, ["say"]), "probe", guarded=False)
    if status != 0:
        pytest.skip(f"no containers by {request.param} here: {stderr.strip() or stdout.strip()}")
    yield one
    one.end()


CASES = {  # command, what the image sets, whether it is guarded or the reason
    "shell": (["sh", "-c", "echo $0 $#; exit 3"], {}, True),
    "environment": (["sh", "-c", "echo ${A-none}; cat /nothing"], {"A": "b"}, True),
    "takes": (["take", "malloc", "64M"], {}, True),
    "signal": (["sh", "-c", "kill -TERM $$; kill -KILL $$"], {}, True),
    "static": (["say-static", "7"], {}, "/bin/say-static is linked statically"),
    "musl": (["say-musl", "7"], {}, "is linked with musl"),
    "jemalloc": (["take", "malloc", "64M"], {"LD_PRELOAD": "libjemalloc.so.2"}, True),
    "env -i": (["env", "-i", "/bin/say", "5"], {}, "env clears the environment"),
    "no such program": (["nothing"], {}, "nothing was not found"),
    "opted out": (["take", "malloc", "64M"], {"SPARKGUARD_DISABLE": "1"}, "it opts out (SPARKGUARD_DISABLE)"),
}


@pytest.mark.parametrize("case", CASES)
def test_status_and_output_are_those_of_the_next_runtime_alone(engine, image, tmp_path, case):
    command, environment, outcome = CASES[case]
    if "jemalloc" in str(environment):
        environment = {"LD_PRELOAD": image.jemalloc}
    if case == "musl" and not (image.root / "bin/say-musl").exists():
        pytest.skip("no musl-gcc")
    bundle = Bundle(tmp_path / "bundle", image, command, **environment)
    alone = engine.run(bundle, guarded=False)
    # Times in log lines of runc differ.
    told = [(status, out, err.split(" level=", 1)[-1]) for status, out, err in (alone, engine.run(bundle))]
    assert told[0] == told[1]
    record = engine.record()
    assert record["guarded"] is (outcome is True)
    if outcome is not True:
        assert outcome in record["reason"]
    if command[0] == "take" and outcome is True:
        (process,) = engine.jobs()["box"]["processes"]
        assert process["peak_domains"]["heap"] >= 64 * MIB and process["pid"] == 1


WITHOUT = ("pid", "ipc", "uts")


def set_namespaces(config, kinds):
    config["linux"]["namespaces"] = [{"type": kind} for kind in kinds]


PLACES = {
    "read-only": lambda config: config["root"].update(readonly=True),
    "pid host": lambda config: set_namespaces(config, ("ipc", "uts", "mount")),
    "ipc host": lambda config: set_namespaces(config, ("pid", "uts", "mount")),
    "network none": lambda config: set_namespaces(config, ("pid", "ipc", "uts", "mount", "network")),
    "new privileges": lambda config: config["process"].update(noNewPrivileges=False),
    "no capabilities": lambda config: config["process"].update(capabilities={}),
    "user": lambda config: config["process"].update(user={"uid": 4712, "gid": 4712}),
    "tmpfs on /run": lambda config: config["mounts"].append(
        {"destination": "/run", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "nodev", "mode=755", "size=1m"]}),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_container_of_each_kind_is_guarded_and_seen(engine, image, tmp_path, place):
    bundle = Bundle(tmp_path / "bundle", image, ["take", "malloc", "64M"]).change(PLACES[place])
    assert engine.run(bundle, guarded=False) == (0, "ok\n", "")
    assert engine.run(bundle) == (0, "ok\n", "")
    assert bundle.guarded() == "yes" and bundle.variables()["SPARKGUARD_DIR"] == "/run/sparkguard/own"
    (process,) = engine.jobs()["box"]["processes"]
    assert process["guarding"] and process["state"] == "exited"


def test_a_user_namespace_without_the_hosts_root_is_guarded_alone(engine, image, tmp_path):
    """Its directory is its user's, who is another one outside."""
    root = Image(tmp_path / "rootfs")
    shutil.copytree(image.root, root.root, dirs_exist_ok=True, symlinks=True)
    tmp_path.chmod(0o755)
    for path in (root.root, *root.root.rglob("*")):
        os.chown(path, 100000, 100000, follow_symlinks=False)

    def change(config):
        set_namespaces(config, ("pid", "ipc", "uts", "mount", "user"))
        for kind in ("uidMappings", "gidMappings"):
            config["linux"][kind] = [{"containerID": 0, "hostID": 100000, "size": 65536}]

    bundle = Bundle(tmp_path / "bundle", root, ["take", "malloc", "64M", "malloc", "1G"], SPARKGUARD_LIMIT="512M").change(change)
    alone = engine.run(bundle, guarded=False)
    if alone[0] != 0:
        pytest.skip(f"no user namespaces here: {alone[2]}")
    assert alone[1] == "ok\nok\n"
    status, stdout, stderr = engine.run(bundle)
    assert (status, stdout) == (0, "ok\nENOMEM\n") and stderr.startswith("sparkguard: refused malloc of 1.0 GiB")
    (process,) = engine.jobs()["box"]["processes"]
    assert process["refused_count"] == 1 and not engine.log.exists()


ROOTLESS = 47120  # a user that no machine has


@pytest.mark.parametrize("inside", [0, 1000], ids=["root inside", "keep-id"])
def test_a_users_runtime_keeps_containers_below_the_users_own_folder(engine, guard, image, tmp_path, inside):
    """What is mounted by it is seen by nobody else; the folder that a login has is a file system with a size."""
    folder = tmp_path / "own"
    root = Image(folder / "rootfs")
    shutil.copytree(image.root, root.root, dirs_exist_ok=True, symlinks=True)

    def change(config):
        set_namespaces(config, ("pid", "ipc", "uts", "mount", "user"))
        config["process"]["user"] = {"uid": inside, "gid": inside}
        config["process"].pop("rlimits")
        for kind in ("uidMappings", "gidMappings"):
            config["linux"][kind] = [{"containerID": inside, "hostID": ROOTLESS, "size": 1}]

    bundle = Bundle(folder / "bundle", root, ["take", "malloc", "64M", "malloc", "1G"], SPARKGUARD_LIMIT="512M").change(change)
    state = folder / "state"
    state.mkdir()
    for path in (folder, *folder.rglob("*")):
        os.chown(path, ROOTLESS, ROOTLESS, follow_symlinks=False)
    as_user = ["setpriv", f"--reuid={ROOTLESS}", f"--regid={ROOTLESS}", "--clear-groups"]
    engine.command((), True)
    engine.conf.chmod(0o644)
    environment = {"PATH": os.environ["PATH"], "XDG_RUNTIME_DIR": str(state), "SPARKGUARD_RUNTIME_CONF": str(engine.conf)}
    more = ["--cgroup-manager=disabled"] if engine.name == "crun" else []
    prepare = ["unshare", "-m", "sh", "-c", PREPARE, "sh"] if engine.name == "crun" else []
    outcomes = []
    for program in (engine.lines["next"], guard.build / "sparkguard-runtime"):
        command = [*prepare, *as_user, program, *more, "--root", state, "run", "--bundle", bundle.folder, "box"]
        done = subprocess.run(list(map(str, command)), env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
        outcomes.append((done.returncode, done.stdout, done.stderr))
    if outcomes[0][0] != 0:
        pytest.skip(f"no rootless containers here: {outcomes[0][2].strip()}")
    assert outcomes[0][:2] == (0, "ok\nok\n")
    assert outcomes[1][:2] == (0, "ok\nENOMEM\n") and "sparkguard: refused malloc of 1.0 GiB" in outcomes[1][2]
    assert bundle.guarded() == "yes" and bundle.variables()["SPARKGUARD_DIR"] == "/run/sparkguard/own"
    own = state / "sparkguard/containers/box"
    assert own.stat().st_uid == ROOTLESS and own.stat().st_mode & 0o777 == 0o700
    done = subprocess.run([guard.build / "sparkguard-report", "--json", "--all", "--dir", own], capture_output=True, text=True)
    (job,) = json.loads(done.stdout)["jobs"]
    assert job["job"] == "box" and job["processes"][0]["refused_count"] == 1
    record = json.loads((own.parent / "box.json").read_text())
    assert record["guarded"] and record["name"] == "box"


def test_a_root_file_system_that_cannot_be_written_starts_as_without(engine, image, tmp_path):
    """There is no place to mount at: neither runtime could make one."""
    view = tmp_path / "view"
    view.mkdir()
    subprocess.run(["mount", "--bind", image.root, view], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", view], check=True)
        root = Image.__new__(Image)
        root.root = view
        (image.root / "run/sparkguard").exists() and shutil.rmtree(image.root / "run/sparkguard")
        bundle = Bundle(tmp_path / "bundle", root, ["take", "malloc", "64M"])
        assert engine.run(bundle, guarded=False) == engine.run(bundle) == (0, "ok\n", "")
        assert engine.record()["reason"] == "its root file system or its mounts leave no place for /run/sparkguard"
    finally:
        subprocess.run(["umount", view], check=True)


def test_the_record_names_the_folder_of_a_container_that_is_there(monkeypatch, engine, image, tmp_path):
    """By default crun keeps it in XDG_RUNTIME_DIR, also for root, and runc does not."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    engine.root, name = (), f"box-{os.getpid()}"  # the variable is undone after the engine: it comes first above
    engine.hold(Bundle(tmp_path / "bundle", image, ["/bin/sh", "-c", "echo ready; exec sleep 60"]), name)
    assert os.path.isdir(engine.record(name)["state"])


def test_the_container_can_read_no_records(engine, image, tmp_path):
    shown = ["sh", "-c", "cat /run/sparkguard/containers/box.json; cat /run/sparkguard/own/../box.json; echo >/run/sparkguard/containers/other"]
    status, stdout, stderr = engine.run(Bundle(tmp_path / "bundle", image, shown))
    assert status != 0 and stdout == "" and stderr.count("No such file") + stderr.count("nonexistent") == 3
    assert [path.name for path in engine.containers.glob("*.json")] == ["box.json"]


def test_a_program_that_joins_a_container_is_of_its_job(engine, image, tmp_path):
    """By a file, as engines do it, and by the command line."""
    process = engine.hold(Bundle(tmp_path / "bundle", image, ["take", "malloc", "32M", "wait"]))
    file = tmp_path / "process.json"
    config = {"user": {"uid": 0, "gid": 0}, "args": ["take", "malloc", "64M"], "env": ["PATH=/bin"], "cwd": "/"}
    for guarded in (False, True):
        file.write_text(json.dumps(config))
        assert engine.call("exec", "--process", file, process.name, guarded=guarded) == (0, "ok\n", "")
    assert engine.call("exec", "--env", "A=b", process.name, "/bin/take", "malloc", "48M") == (0, "ok\n", "")
    job = engine.jobs()["box"]
    peaks = sorted(one["peak_domains"]["heap"] // (16 * MIB) for one in job["processes"])
    assert peaks == [2, 3, 4], "the one that joined without the runtime is not there"
    assert engine.call("exec", process.name, "nothing")[0] == engine.call("exec", process.name, "nothing", guarded=False)[0] != 0


def test_a_container_that_is_killed_or_runs_again_under_its_name(engine, image, tmp_path):
    statuses = []
    for guarded in (False, True, True):
        process = engine.hold(Bundle(tmp_path / "bundle", image, ["take", "malloc", "32M", "wait"]), guarded=guarded)
        assert engine.call("kill", process.name, "KILL", guarded=guarded)[0] == 0
        process.wait(60)
        engine.call("delete", "--force", process.name, guarded=guarded)
        statuses.append(process.returncode)
    assert set(statuses) == {128 + signal.SIGKILL}
    assert [one["state"] for one in engine.jobs()["box"]["processes"]] == ["killed", "killed"]
    assert not (engine.containers / "box.json").exists()


def test_pause_and_state_are_the_next_runtimes(engine, image, tmp_path):
    if engine.name == "crun":
        pytest.skip("crun runs without cgroups here, and pauses by them")
    process = engine.hold(Bundle(tmp_path / "bundle", image, ["take", "malloc", "32M", "wait"]))
    status, _, error = engine.call("pause", process.name, guarded=False)
    if status != 0:
        pytest.skip(f"nothing is paused here: {error.strip()}")
    for guarded in (False, True):
        assert json.loads(engine.call("state", process.name, guarded=guarded)[1])["status"] == "paused"
    assert engine.call("resume", process.name)[0] == 0
    stdout, _ = process.communicate("\n", timeout=60)
    assert process.returncode == 0


@pytest.fixture
def machine(tmp_path):
    """A machine of 16 GiB that stands still: nobody touches what is granted."""
    proc = tmp_path / "machine/proc"
    proc.mkdir(parents=True)
    (proc / "meminfo").write_text(f"MemTotal: {16 * GIB >> 10} kB\nMemAvailable: {10 * GIB >> 10} kB\n")
    return proc.parent


def test_two_containers_that_share_and_the_host_get_exactly_what_fits(engine, guard, image, machine, tmp_path):
    """Both programs are pid 1. 8 GiB are left when 2 are kept: 3 and 2 and 3 fit, and no more."""
    own = {"SPARKGUARD_SYSTEM_ROOT": "/machine", "SPARKGUARD_RESERVE": "2G", "SPARKGUARD_WAIT": "0"}

    def bundle(name, uid, *words):
        mount = {"destination": "/machine", "source": str(machine), "type": "bind", "options": ["bind", "ro"]}
        one = Bundle(tmp_path / name, image, ["take", *words], **own)

        def change(config):
            config["mounts"].append(mount)
            config["process"]["user"] = {"uid": uid, "gid": uid}
            config["annotations"] = {"sparkguard.share": "yes"}
            set_namespaces(config, ("pid", "uts", "mount"))  # the host's for IPC

        return one.change(change)

    engine.lines["share"] = "yes"
    train = engine.hold(bundle("train", 4712, "malloc", "3G", "wait"), "train")
    serve = engine.hold(bundle("serve", 0, "malloc", "2G", "malloc", "4G", "wait"), "serve")
    assert (train.answers, serve.answers) == (["ok"], ["ok", "ENOMEM"])
    environment = {**own, "SPARKGUARD_SYSTEM_ROOT": str(machine), "SPARKGUARD_DIR": str(engine.shared), "SPARKGUARD_JOB": "host"}
    done = guard.run([guard.build / "tests/programs/admit_take", "malloc", "4G", "largest"], env=environment)
    answer, largest = done.stdout.split()
    assert int(largest) in range(3 * GIB - NEAR, 3 * GIB + 1) and answer == "ENOMEM"
    assert "; largest other: job train, 3.0 GiB; " in done.stderr.splitlines()[1]
    running = {name: job["live_bytes"] >> 30 for name, job in engine.jobs().items() if job["live_bytes"] > GIB}
    assert running == {"train": 3, "serve": 2}
    _, stderr = serve.communicate("\n", timeout=60)
    assert serve.returncode == 0 and "refused malloc of 4.0 GiB" in stderr
    assert "; largest other: job train, 3.0 GiB; " in stderr


# What a container can do to the guard.
EMPTY = 'for file in /run/sparkguard/*/* /run/sparkguard/*; do true 2>/dev/null >"$file"; done; '
HARM = EMPTY + "cat /dev/zero 2>/dev/null >/run/sparkguard/own/full; echo done"


def test_a_user_in_a_container_that_shares_ends_no_program_outside(engine, guard, image, tmp_path):
    """It empties what it can. Root could cut the records of others, with a container around it or not."""
    engine.lines["share"] = "yes"
    as_other = ["setpriv", "--reuid=4712", "--regid=4712", f"--groups={GID}"]
    command = [*as_other, guard.build / "tests/programs/admit_take", "malloc", "64M", "wait", "malloc", "32M"]
    host = guard.popen(command, env={"SPARKGUARD_DIR": str(engine.shared), "SPARKGUARD_JOB": "host"}, stdin=subprocess.PIPE)
    try:
        assert host.stdout.readline() == "ok\n"
        bundle = Bundle(tmp_path / "bundle", image, ["sh", "-c", f"{EMPTY} echo done"])

        def change(config):
            config["process"].update(user={"uid": 65534, "gid": 65534}, capabilities={})
            config["annotations"] = {"sparkguard.share": "yes"}
            set_namespaces(config, ("pid", "uts", "mount"))

        assert engine.run(bundle.change(change))[1].endswith("done\n")
        assert bundle.variables()["SPARKGUARD_DIR"] == "/run/sparkguard/shared"
    finally:
        said, errors = host.communicate("\n", timeout=60)
    assert (host.returncode, said.splitlines()[-1]) == (0, "ok"), errors


@pytest.mark.parametrize("uid", [0, 65534])
def test_a_container_harms_no_program_outside(engine, guard, image, tmp_path, uid):
    """It empties and fills what it can reach of the guard, as root with capabilities and as a user without any."""
    environment = {"SPARKGUARD_DIR": str(engine.shared), "SPARKGUARD_JOB": "host"}
    command = [guard.build / "tests/programs/admit_take", "malloc", "64M", "wait", "malloc", "32M"]
    host = guard.popen(command, env=environment, stdin=subprocess.PIPE)
    try:
        assert host.stdout.readline() == "ok\n"
        sizes = {path.name: path.stat().st_size for path in engine.shared.iterdir()}
        bundle = Bundle(tmp_path / "bundle", image, ["sh", "-c", HARM])
        bundle.change(lambda config: config["process"].update(user={"uid": uid, "gid": uid}, **({"capabilities": {}} if uid else {})))
        assert engine.run(bundle)[1].endswith("done\n")
        assert {path.name: path.stat().st_size for path in engine.shared.iterdir()} == sizes != {}
    finally:
        said, _ = host.communicate("\n", timeout=60)
    assert (host.returncode, said.splitlines()[-1]) == (0, "ok")
    assert engine.record()["guarded"] is True


def test_a_limit_by_annotation_refuses_inside(engine, image, tmp_path):
    bundle = Bundle(tmp_path / "bundle", image, ["take", "malloc", "64M", "malloc", "512M"])
    bundle.change(lambda config: config.update(annotations={"sparkguard.limit": "256M"}))
    status, stdout, stderr = engine.run(bundle)
    assert (status, stdout) == (0, "ok\nENOMEM\n") and "(SPARKGUARD_LIMIT)" in stderr
    readme = (Path(__file__).resolve().parents[2] / "README.md").read_text()
    (shown,) = re.findall(r"`train-1 +\| (try: .*?)`", readme)
    assert re.sub(r"[\d.]+", "N", stderr.splitlines()[-1]) == re.sub(r"[\d.]+", "N", shown)


def test_an_allocator_of_the_image_stays_and_its_heap_is_guarded(engine, image, tmp_path):
    environment = {"LD_PRELOAD": image.jemalloc, "SPARKGUARD_LIMIT": "256M"}
    code = "cat /proc/self/maps; exec take malloc 64M malloc 512M"
    status, stdout, _ = engine.run(Bundle(tmp_path / "bundle", image, ["sh", "-c", code], **environment))
    assert status == 0 and stdout.endswith("ok\nENOMEM\n")
    assert "libjemalloc.so.2" in stdout and "/run/sparkguard/libsparkguard.so" in stdout


def test_a_checkpoint_is_made_and_restored(engine, image, tmp_path):
    if engine.name == "crun":
        pytest.skip("Debian's crun is built without CRIU")
    if shutil.which("criu") is None or subprocess.run(["criu", "check"], capture_output=True).returncode != 0:
        pytest.skip("no CRIU here")
    outcomes = []
    for guarded in (False, True):
        folder = tmp_path / f"bundle-{guarded}"
        process = engine.hold(Bundle(folder, image, ["take", "malloc", "32M", "wait"]), guarded=guarded)
        made = engine.call("checkpoint", "--image-path", folder / "dump", process.name, guarded=guarded)
        outcomes.append((made[0], process.wait(60)))
    assert outcomes[0] == outcomes[1]


BROKEN = {
    "configuration": lambda engine, bundle: bundle.path.write_text("{"),
    "library": lambda engine, bundle: engine.lines.update(library=engine.folder / "none"),
    "no bundle": lambda engine, bundle: bundle.path.unlink(),
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_is_broken_shows_as_by_the_next_runtime(engine, image, tmp_path, what):
    bundle = Bundle(tmp_path / "bundle", image, ["say", "7"])
    BROKEN[what](engine, bundle)
    told = [(status, out, err.split(" level=", 1)[-1]) for status, out, err in (engine.run(bundle, guarded=False), engine.run(bundle))]
    assert told[0] == told[1]
    assert "unguarded" in engine.log.read_text()


def test_a_required_guard_starts_nothing_else(engine, image, tmp_path):
    engine.lines["required"] = "yes"
    status, stdout, stderr = engine.run(Bundle(tmp_path / "bundle", image, ["say-static", "7"]))
    assert (status, stdout) == (1, "")
    assert stderr == "sparkguard-runtime: container box is not started: /bin/say-static is linked statically (SPARKGUARD_REQUIRED)\n"
