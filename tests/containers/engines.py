"""Container engines on sockets and folders of their own, without a network, each with and without sparkguard-runtime.

    with Podman("runc", build, folder) as engine:
        engine.load("debian12", path_of_a_root_file_system_as_tar)
        status, out, err = engine.run("debian12", ["sh", "-c", "echo hi"], name="train", guarded=True)
"""

import contextlib
import json
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest
from lib.waiting import wait_until

GID = 4711
RELEASES = {"debian11": "bullseye", "debian12": "bookworm", "debian13": "trixie"}
PACKAGES = "python3-minimal,libjemalloc2"
# crun wants cgroups of version 2 or none of both; a machine that has both gets a mount namespace in which crun sees one. What the
# runtime mounts for containers is seen outside of it: their folder is a shared mount.
CRUN = """if [ "$(stat -f -c %T /sys/fs/cgroup)" != cgroup2fs ]; then
    exec unshare -m --propagation unchanged sh -c 'mount --make-rprivate /sys && umount -R /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup; exec "$@"' sh {program} --cgroup-manager=disabled "$@"
fi
"""


def debian(images, name):
    tar = images / f"{RELEASES[name]}.tar"
    if not tar.exists() or tar.stat().st_size == 0:
        part = tar.with_suffix(".part.tar")  # else one that was cut off would be taken for whole
        done = subprocess.run(["mmdebstrap", "--quiet", "--variant=minbase", f"--include={PACKAGES}", RELEASES[name], part], capture_output=True, text=True)
        if done.returncode != 0:
            pytest.skip(f"no packages of {name} here: {done.stderr[-200:]}")
        part.rename(tar)
    return tar


class Engine:
    def __init__(self, next_name, build, folder):
        if os.geteuid() != 0 or any(shutil.which(name) is None for name in (next_name, *self.programs)):
            pytest.skip(f"needs root, {next_name} and {' '.join(self.programs)}")
        self.next, self.build, self.folder = shutil.which(next_name), build, Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o755)
        self.shared, self.system, self.log = self.folder / "shared", self.folder / "system", self.folder / "log"
        self.containers = self.system / "run/sparkguard/containers"
        self.shared.mkdir()
        self.containers.mkdir(parents=True)
        for options in (["--bind", self.containers], ["--make-shared"]):
            subprocess.run(["mount", *options, self.containers], check=True)
        os.chown(self.shared, 0, GID)
        self.shared.chmod(0o2770)
        conf = {"next": self.next, "library": build / "libsparkguard.so", "shared": self.shared, "log": self.log}
        (self.folder / "runtime.conf").write_text("".join(f"{key} = {value}\n" for key, value in conf.items()))
        self.plain = self.wrapper("plain", self.next)
        self.guarding = self.wrapper("guarding", build / "sparkguard-runtime")

    def wrapper(self, name, program):
        path = self.folder / name
        prepare = CRUN.format(program=program) if self.next.endswith("crun") else ""
        path.write_text(f"#!/bin/sh\nexport SPARKGUARD_RUNTIME_CONF={self.folder}/runtime.conf SPARKGUARD_SYSTEM_ROOT={self.system}\n{prepare}exec {program} \"$@\"\n")
        path.chmod(0o755)
        return path

    def call(self, *words, timeout=600, check=False, stdin=subprocess.DEVNULL):
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("SPARKGUARD_", "LD_PRELOAD"))}
        done = subprocess.run([str(word) for word in words], env={**clean, **self.environment()}, stdin=stdin,
                              capture_output=True, text=True, timeout=timeout)
        assert not check or done.returncode == 0, done.stderr
        return done.returncode, done.stdout, done.stderr

    def environment(self):
        return {}

    def start_service(self, words, sock):
        self.service_log = open(self.folder / f"{words[0]}.log", "wb")
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("SPARKGUARD_", "LD_PRELOAD"))}
        self.service = subprocess.Popen([str(word) for word in words], env=clean, stdin=subprocess.DEVNULL,
                                        stdout=self.service_log, stderr=self.service_log)
        wait_until(lambda: sock.exists() or self.service.poll() is not None)
        if self.service.poll() is not None:
            pytest.skip(f"{words[0]} does not start here: {(self.folder / (words[0] + '.log')).read_text()[-300:]}")

    def stop_service(self):
        if self.service.poll() is None:
            self.service.send_signal(signal.SIGTERM)
            try:
                self.service.wait(60)
            except subprocess.TimeoutExpired:
                self.service.kill()
        self.service_log.close()

    def jobs(self):
        """By name, of all containers that had it: each has a directory of its own."""
        command = [self.build / "sparkguard-report", "--json", "--all", "--dir", self.shared, "--dir", f"{self.containers}/*"]
        status, out, err = self.call(*command)
        assert status in (0, 1), err
        found = {}
        for job in json.loads(out)["jobs"] if status == 0 else []:
            found.setdefault(job["job"], {**job, "processes": []})["processes"].extend(job["processes"])
        return found

    def records(self):
        return {one["name"]: one for one in (json.loads(path.read_text()) for path in self.containers.glob("*.json"))}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
        self.unmount()

    def unmount(self):
        for line in sorted(Path("/proc/self/mountinfo").read_text().splitlines(), key=lambda line: -len(line.split()[4])):
            if line.split()[4].startswith(f"{self.folder}/"):
                subprocess.run(["umount", "-l", line.split()[4]], check=False)


class Podman(Engine):
    programs = ("podman", "conmon")
    limits = ("--ulimit", "nofile=1024:1024", "--ulimit", "nproc=4096:4096")

    def base(self):
        places = [f"--root={self.folder}/root", f"--runroot={self.folder}/run", f"--tmpdir={self.folder}/tmp"]
        return ["podman", *places, "--cgroup-manager=cgroupfs", "--events-backend=none"]

    def environment(self):
        """Both runtimes write their log as JSON, as podman expects of those that it knows."""
        conf = self.folder / "containers.conf"
        both = '["plain", "guarding"]'
        conf.write_text(f'[engine]\nruntime_supports_json = {both}\nruntime_supports_nocgroup = {both}\n'
                        f'[engine.runtimes]\nplain = ["{self.plain}"]\nguarding = ["{self.guarding}"]\n')
        return {"CONTAINERS_CONF": str(conf)}

    def load(self, name, tar):
        self.call(*self.base(), "import", "-q", tar, name, check=True)

    def run(self, image, command, name, guarded, options=(), verb="run"):
        runtime = "guarding" if guarded else "plain"
        own = ["--rm"] if verb == "run" else []
        cgroups = ["--cgroups=disabled"] if self.next.endswith("crun") else []
        words = [*self.base(), "--runtime", runtime, "run", *own, *cgroups, *self.limits, "--network=none", "--name", name, *options]
        return self.call(*words, image, *command)

    def start(self, image, command, name, guarded, options=()):
        status, _, err = self.run(image, command, name, guarded, ["-d", *options], verb="start")
        assert status == 0, err

    def exec(self, name, command, guarded, options=()):
        return self.call(*self.base(), "--runtime", "guarding" if guarded else "plain", "exec", *options, name, *command)

    def remove(self, name, guarded):
        self.call(*self.base(), "--runtime", "guarding" if guarded else "plain", "rm", "-f", "-t", "0", name)

    def manage(self, verb, name, guarded):
        return self.call(*self.base(), "--runtime", "guarding" if guarded else "plain", verb, name)

    def close(self):
        self.call(*self.base(), "rm", "-a", "-f", "-t", "0")
        self.call(*self.base(), "rmi", "-a", "-f")


class RootlessPodman(Podman):
    """Podman of a user who is made for it and removed after it. Its containers are in a user namespace, and their directories
    are below the user's own folder. A folder of root's tests is closed to the user, so the tools are copied to one that is open."""

    programs = (*Podman.programs, "newuidmap", "useradd", "userdel", "setpriv")

    def __init__(self, next_name, build, folder):
        self.user, self.uid, self.storage = f"sg-rootless-{os.getpid()}", None, ["--storage-driver=overlay"]
        self.place = Path(tempfile.mkdtemp(prefix="sg-"))
        self.folder = self.place / "engine"
        try:
            self.place.chmod(0o755)
            super().__init__(next_name, self.place, self.folder)
            for name in ("sparkguard-runtime", "sparkguard-report", "libsparkguard.so"):
                shutil.copy(build / name, self.place / name)
            self.make_user()
            if self.call(*self.base(), "info")[0] != 0:  # the kernel has no overlay for users (before Linux 5.13): each container is a copy
                self.storage = []
        except BaseException:
            self.remove_all()
            raise

    def make_user(self):
        subprocess.run(["useradd", "--no-create-home", f"--home-dir={self.folder}", self.user], check=True)
        entry = pwd.getpwnam(self.user)
        self.uid = entry.pw_uid
        self.ids = [f"--reuid={entry.pw_uid}", f"--regid={entry.pw_gid}", "--clear-groups"]
        self.containers = self.folder / "xdg/sparkguard/containers"
        (self.folder / "xdg").mkdir(mode=0o700)
        for path in (self.folder, *self.folder.rglob("*")):
            os.chown(path, entry.pw_uid, entry.pw_gid)

    def base(self):
        return ["setpriv", *self.ids, "env", "-C", self.folder, *super().base(), *self.storage]

    def environment(self):
        """Nothing of root's folders, whatever runs the tests."""
        own = {name: str(self.folder / "xdg") for name in ("XDG_RUNTIME_DIR", "XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME")}
        return {**super().environment(), **own, "HOME": str(self.folder), "TMPDIR": "/tmp", "DBUS_SESSION_BUS_ADDRESS": ""}

    def load(self, name, tar):
        with open(tar, "rb") as stdin:
            self.call(*self.base(), "import", "-q", "-", name, check=True, stdin=stdin)

    def close(self):
        try:
            super().close()
        finally:
            self.remove_all()

    def processes(self):
        """Of the user, the one included that holds the user namespace."""
        return [int(pid) for pid in subprocess.run(["pgrep", "-U", str(self.uid)], capture_output=True, text=True).stdout.split()]

    def remove_all(self):
        if self.uid is not None:
            for pid in self.processes():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            wait_until(lambda: not self.processes())
            Path(f"/dev/shm/libpod_rootless_lock_{self.uid}").unlink(missing_ok=True)
            subprocess.run(["userdel", self.user], check=True, capture_output=True)
        self.unmount()
        shutil.rmtree(self.place)


class Docker(Engine):
    programs = ("dockerd", "containerd")

    def __init__(self, next_name, build, folder):
        super().__init__(next_name, build, folder)
        self.sock = self.folder / "docker.sock"
        self.client = next((path for path in ("/usr/bin/docker", shutil.which("docker")) if path and os.path.exists(path)), None)
        if self.client is None:
            pytest.skip("no docker client")
        (self.folder / "daemon.json").write_text("{}")
        self.start_service(["dockerd", f"--config-file={self.folder}/daemon.json", f"--host=unix://{self.sock}", f"--data-root={self.folder}/data",
                            f"--exec-root={self.folder}/exec", f"--pidfile={self.folder}/pid", "--iptables=false", "--ip6tables=false",
                            "--bridge=none", f"--add-runtime=plain={self.plain}", f"--add-runtime=guarding={self.guarding}"], self.sock)
        wait_until(lambda: self.service.poll() is not None or self.call(*self.base(), "info")[0] == 0)
        assert self.service.poll() is None, (self.folder / "dockerd.log").read_text()[-300:]

    def base(self):
        return [self.client, f"--host=unix://{self.sock}"]

    def load(self, name, tar):
        self.call(*self.base(), "import", tar, name, check=True)

    def run(self, image, command, name, guarded, options=(), verb="run"):
        own = ["--rm"] if verb == "run" else []
        return self.call(*self.base(), "run", *own, f"--runtime={'guarding' if guarded else 'plain'}", "--network=none", "--name", name,
                         *options, image, *command)

    def start(self, image, command, name, guarded, options=()):
        status, _, err = self.run(image, command, name, guarded, ["-d", *options], verb="start")
        assert status == 0, err

    def exec(self, name, command, guarded, options=()):
        return self.call(*self.base(), "exec", *options, name, *command)

    def remove(self, name, guarded):
        self.call(*self.base(), "rm", "-f", name)

    def manage(self, verb, name, guarded):
        return self.call(*self.base(), verb, name)

    def close(self):
        _, ids, _ = self.call(*self.base(), "ps", "-aq")
        if ids.split():
            self.call(*self.base(), "rm", "-f", *ids.split())
        self.stop_service()


class Containerd(Engine):
    programs = ("ctr", "containerd", "podman")

    def __init__(self, next_name, build, folder):
        super().__init__(next_name, build, folder)
        self.sock = self.folder / "c.sock"
        (self.folder / "config.toml").write_text(f'version = 2\nroot = "{self.folder}/root"\nstate = "{self.folder}/state"\n'
                                                 f'disabled_plugins = ["io.containerd.grpc.v1.cri"]\n[grpc]\naddress = "{self.sock}"\n')
        self.start_service(["containerd", "--config", self.folder / "config.toml"], self.sock)

    def base(self):
        return ["ctr", "-a", self.sock]

    def load(self, name, tar):
        """ctr reads archives of images, which podman makes of a root file system."""
        with tempfile.TemporaryDirectory(prefix="sg-") as short, Podman("runc", self.build, Path(short)) as podman:  # podman wants a short path
            podman.load(name, tar)
            self.call(*podman.base(), "save", "-q", "-o", self.folder / f"{name}.tar", name, check=True)
        self.call(*self.base(), "images", "import", "--snapshotter=overlayfs", self.folder / f"{name}.tar", check=True)
        (self.folder / f"{name}.tar").unlink()

    def words(self, image, command, name, guarded, options):
        binary = self.guarding if guarded else self.plain
        return [*self.base(), "run", "--snapshotter=overlayfs", "--runc-binary", binary, *options, f"localhost/{image}:latest", name, *command]

    def run(self, image, command, name, guarded, options=(), verb="run"):
        return self.call(*self.words(image, command, name, guarded, ["--rm", *options]))

    def start(self, image, command, name, guarded, options=()):
        status, _, err = self.call(*self.words(image, command, name, guarded, ["-d", *options]))
        assert status == 0, err

    def exec(self, name, command, guarded, options=()):
        return self.call(*self.base(), "tasks", "exec", "--exec-id", f"e{os.urandom(4).hex()}", *options, name, *command)

    def remove(self, name, guarded):
        self.call(*self.base(), "tasks", "kill", "-s", "SIGKILL", name)
        wait_until(lambda: self.call(*self.base(), "tasks", "delete", name)[0] == 0 or name not in self.call(*self.base(), "tasks", "ls")[1])
        self.call(*self.base(), "containers", "delete", name)

    def manage(self, verb, name, guarded):
        return self.call(*self.base(), "tasks", {"unpause": "resume"}.get(verb, verb), name)

    def close(self):
        for name in self.call(*self.base(), "containers", "ls", "-q")[1].split():
            self.remove(name, True)
        self.stop_service()


ENGINES = {"podman+runc": (Podman, "runc"), "podman+crun": (Podman, "crun"), "docker+runc": (Docker, "runc"), "ctr+runc": (Containerd, "runc"),
           "rootless+runc": (RootlessPodman, "runc"), "rootless+crun": (RootlessPodman, "crun")}
