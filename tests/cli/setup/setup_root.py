"""A root file system made of files, for sparkguard-doctor --setup: what a Spark with Docker, Podman, containerd and Ollama has.

    root = Root(tools, tmp_path / "root")
    root.write("etc/docker/daemon.json", "{}")
    before = root.state()
    root.set_up()
    root.undo()
    assert root.state() == before
"""

import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest
from lib.installed import system_files

LIBRARY = "usr/local/lib/libsparkguard.so"
DAEMON = "etc/docker/daemon.json"
CONTAINERD = "etc/containerd/config.toml"
OLLAMA = "etc/systemd/system/ollama.service.d/60-sparkguard.conf"
PAM = "etc/pam.d/common-session"
SYSTEM = "usr/local/share/sparkguard/system"
PODMAN = "etc/containers/containers.conf.d/60-sparkguard.conf"
STATE = "var/lib/sparkguard-setup"
WRAPPERS = "usr/local/lib/sparkguard"
PROGRAMS = ("usr/bin/sparkguard-runtime", "usr/sbin/dockerd", "usr/bin/podman", "usr/bin/containerd", "usr/bin/crun", "usr/sbin/runc")
# In the place of containerd, where that is not installed: its version 1.6, of which nothing is left out here that a set-up meets.
# A table of runtimes in the file takes the place of the one by default, and an imported file's plugins that of the file's. With NEWEST 3
# it is version 2 of containerd, which makes version 3 of every file and quotes with the other sign.
CONTAINERD_DUMP = """#!/usr/bin/python3 -IS
import glob, sys, tomllib
NEWEST = 2
quote = "'" if NEWEST == 3 else chr(34)
def emit(name, table):
    for key, value in table.items():
        if not isinstance(value, dict):
            print(f"{key} = {str(value).lower() if isinstance(value, bool) else repr(value) if isinstance(value, int) else quote + value + quote}"
                  if not isinstance(value, list) else f"{key} = {value}".replace("'", '"'))
    for key, value in table.items():
        if isinstance(value, dict):
            inner = f"{name}.{key}" if name else key
            for plugin in ("io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"):
                inner = inner.replace(plugin, quote + plugin + quote) if quote + plugin not in inner else inner
            print(f"[{inner}]")
            emit(inner, value)
with open(sys.argv[sys.argv.index("--config") + 1], "rb") as file:
    given = tomllib.load(file)
if NEWEST == 3 and given.get("version") == 2:
    given["version"] = 3
    if "io.containerd.grpc.v1.cri" in given.get("plugins", {}):
        given["plugins"]["io.containerd.cri.v1.runtime"] = given["plugins"].pop("io.containerd.grpc.v1.cri")
kind = "io.containerd.cri.v1.runtime" if given.get("version") == 3 else "io.containerd.grpc.v1.cri"
for path in [path for pattern in given.get("imports", []) for path in sorted(glob.glob(pattern))]:
    with open(path, "rb") as file:
        given.setdefault("plugins", {}).update(tomllib.load(file).get("plugins", {}))
plugins = given.get("plugins", {}) if given.get("version", 1) > 1 else {}
one = plugins.setdefault(kind, {}).setdefault("containerd", {})
one.setdefault("default_runtime_name", "runc")
for runtime in one.setdefault("runtimes", {"runc": {"runtime_type": "io.containerd.runc.v2"}}).values():
    runtime.setdefault("runtime_type", "io.containerd.runc.v2")
    options = runtime.setdefault("options", {})
    options.setdefault("BinaryName", "")
    options.setdefault("SystemdCgroup", False)
given["plugins"] = plugins
emit("", given)
"""


class Root:
    def __init__(self, tools, path, has_pam=True):
        self.program, self.path = tools / "sparkguard-doctor", Path(path)
        for folder in ("var/lib", "run", "proc", "etc/security", "etc/pam.d", "etc/systemd/system", "usr/lib/systemd/system"):
            (self.path / folder).mkdir(parents=True)
        for program in PROGRAMS:
            self.write(program, CONTAINERD_DUMP if program == "usr/bin/containerd" else "", 0o755)
        subprocess.run(["cp", "-a", f"{system_files()}/.", self.path], check=True)
        if has_pam:
            subprocess.run(["cp", "-a", "--parents", "/usr/share/pam", "/usr/share/pam-configs/unix", "/var/lib/pam", self.path], check=True)
            for each in Path("/etc/pam.d").glob("common-*"):
                shutil.copy(each, self.path / "etc/pam.d")
        (self.path / "usr/local/lib").mkdir(parents=True)
        (self.path / LIBRARY).symlink_to(self.program)  # of the right architecture
        self.write("etc/group", "root:x:0:\nadm:x:4:me\nme:x:1000:\n")
        self.write("etc/gshadow", "root:*::\nadm:*::me\nme:!::\n", 0o640)
        self.write("etc/security/pam_env.conf", "# The comment of the package.\n")
        self.write("usr/lib/systemd/system/ollama.service", "[Service]\nUser=ollama\nExecStart=/usr/local/bin/ollama serve\n")
        self.write(CONTAINERD, 'version = 2\n\n[plugins]\n  [plugins."io.containerd.internal.v1.opt"]\n    path = "/var/lib/containerd"\n')
        self.write(DAEMON, '{\n  "log-driver": "local"\n}\n')

    def write(self, path, content, mode=0o644):
        file = self.path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.is_symlink():
            file.unlink()
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        file.chmod(mode)
        return file

    def read(self, path):
        return (self.path / path).read_text()

    def drop_in(self, unit):
        """The text of a unit's drop-in: a link to where the package has it."""
        return self.read(os.readlink(self.path / f"etc/systemd/system/{unit}.d/60-sparkguard.conf")[1:])

    def environment(self):
        env = {k: v for k, v in os.environ.items() if not k.startswith("SPARKGUARD_") and k not in ("LD_PRELOAD", "SUDO_USER")}
        return {**env, "SPARKGUARD_SYSTEM_ROOT": str(self.path), "LC_ALL": "C.UTF-8"}

    def doctor(self, *arguments):
        return subprocess.run([self.program, *arguments], env=self.environment(), capture_output=True, text=True, timeout=60)

    def run(self, script, shell="sh"):
        return subprocess.run([shell], input=script, env=self.environment(), capture_output=True, text=True, timeout=60)

    def set_up(self, status=0):
        """Prints the script and runs it; what it said."""
        return self.print_and_run("--setup", status)

    def undo(self, status=0):
        return self.print_and_run("--setup=undo", status)

    def print_and_run(self, option, status):
        printed = self.doctor(option)
        assert printed.stderr == ""
        done = self.run(printed.stdout)
        assert done.returncode == status, done.stdout + done.stderr
        assert (done.stderr == "") == (status == 0), done.stderr
        return done.stdout + done.stderr

    def state(self):
        """Of each file its kind, mode, owner and content, and nothing of times."""
        found = {}
        for folder, folders, files in os.walk(self.path):
            for name in (*folders, *files):
                path = Path(folder, name)
                status = path.lstat()
                content = os.readlink(path) if path.is_symlink() else path.read_bytes() if stat.S_ISREG(status.st_mode) else None
                found[str(path.relative_to(self.path))] = (oct(status.st_mode), status.st_uid, status.st_gid, content)
        return found

    def copy(self, path):
        """The same at another place."""
        subprocess.run(["cp", "-a", self.path, path], check=True)
        other = Root.__new__(Root)
        other.program, other.path = self.program, Path(path)
        return other


def drop(root, *paths):
    for path in paths:
        (root.path / path).unlink()


@pytest.fixture(scope="session")
def ready_once(tools, tmp_path_factory):
    root = Root(tools, tmp_path_factory.mktemp("ready") / "root")
    before = root.state()
    root.set_up()
    return root, before


@pytest.fixture
def ready(ready_once, tmp_path):
    """A root in which all is set up; `before`: its state before that."""
    root = ready_once[0].copy(tmp_path / "ready")
    root.before = ready_once[1]
    return root


def shellcheck(text):
    if shutil.which("shellcheck"):
        done = subprocess.run(["shellcheck", "-"], input=text, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout
