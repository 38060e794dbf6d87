"""OCI bundles for sparkguard-runtime: root file systems of this machine's own files, so that nothing is loaded.

    image = Image(folder / "rootfs").add("/bin/sh").add(program)
    bundle = Bundle(folder, image, ["/bin/sh", "-c", "echo hi"])
"""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
UNLIMITED = 2**64 - 1  # RLIM_INFINITY, as engines write it


class Image:
    """A root file system: programs with the libraries that they load, at the paths of this machine."""

    def __init__(self, root):
        self.root = Path(root)
        for name in ("bin", "run", "tmp", "proc", "dev", "etc", "sys"):
            (self.root / name).mkdir(parents=True, exist_ok=True)

    def put(self, source, inside):
        target = self.root / str(inside).lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)
        return self

    def add(self, program, inside=None):
        """Once its copy is there, it is not copied again."""
        target = inside or program
        if not (self.root / str(target).lstrip("/")).exists():
            self.put(program, target)
            said = subprocess.run(["ldd", program], capture_output=True, text=True).stdout
            for library in re.findall(r"(?:=> |^\s*)(/\S+)", said, re.MULTILINE):
                if not (self.root / library.lstrip("/")).exists():
                    self.put(library, library)
        return self

    def preload(self, library):
        """With what the library itself loads."""
        return self.add(library)


def compile_program(folder, name, source, *options, compiler="gcc"):
    path = Path(folder) / name
    code = path.with_suffix(".c")
    code.write_text(source)
    subprocess.run([compiler, "-O1", "-o", str(path), str(code), *options], check=True)
    return path


class Bundle:
    """A folder with a configuration as an engine writes it."""

    def __init__(self, folder, image, args, **environment):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.path = self.folder / "config.json"
        self.path.write_text(json.dumps(configuration(image.root, args, environment)))
        self.path.chmod(0o640)

    def read(self):
        return json.loads(self.path.read_text())

    def change(self, change):
        config = self.read()
        change(config)
        self.path.write_text(json.dumps(config))
        return self

    def variables(self):
        return dict(entry.split("=", 1) for entry in self.read()["process"]["env"])

    def guarded(self):
        return self.read().get("annotations", {}).get("sparkguard.guarded")

    def destinations(self):
        return [mount["destination"] for mount in self.read()["mounts"]]


def configuration(root, args, environment):
    variables = {"PATH": PATH, **environment}
    capabilities = ["CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_KILL", "CAP_SETGID", "CAP_SETUID", "CAP_NET_BIND_SERVICE"]
    kinds = ("bounding", "effective", "permitted")
    return {
        "ociVersion": "1.0.2",
        "process": {
            "terminal": False,
            "user": {"uid": 0, "gid": 0},
            "args": list(map(str, args)),
            "env": [f"{name}={value}" for name, value in variables.items()],
            "cwd": "/",
            "capabilities": {kind: capabilities for kind in kinds},
            "rlimits": [{"type": "RLIMIT_CPU", "hard": UNLIMITED, "soft": UNLIMITED}],
            "noNewPrivileges": True,
        },
        "root": {"path": os.fspath(root), "readonly": False},
        "hostname": "box",
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755", "size=65536k"]},
            {"destination": "/dev/shm", "type": "tmpfs", "source": "shm", "options": ["nosuid", "nodev", "mode=1777", "size=65536k"]},
        ],
        "linux": {"namespaces": [{"type": kind} for kind in ("pid", "ipc", "uts", "mount")]},
    }
