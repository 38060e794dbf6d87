"""Containers as the files of scripts/examples describe them, run by crun, which is what podman runs, and what docker can.

    with Containers(guard, scratch) as containers:
        container = containers.start("train", ["sh", "-c", "..."], uid=1000)

A container has its own PIDs, mounts and IPC, a /dev/shm of 64 MiB, and of the host /usr, the build folder and what its
service mounts. The images are left out.
"""

import json
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "scripts/examples"
SYSTEM = ("/usr", "/bin", "/lib", "/lib64", "/etc")
SPECIAL = {"/proc", "/dev", "/dev/pts", "/dev/shm"}
# crun wants cgroups of version 2 or none of both; whoever has both gives it a namespace in which it sees one.
PREPARE = """
if [ "$(stat -f -c %T /sys/fs/cgroup)" != cgroup2fs ]; then
    umount -R /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup || exit 77
fi
exec crun --cgroup-manager=disabled --root "$1" run --bundle "$2" "$3"
"""


def load_yaml(path):
    """Through the system's Python, for that has the package."""
    code = "import json, sys, yaml; json.dump(list(yaml.safe_load_all(open(sys.argv[1]))), sys.stdout)"
    return json.loads(subprocess.run(["/usr/bin/python3", "-c", code, path], capture_output=True, check=True).stdout)


def filled_in(text, variables):
    """${NAME:-default} and ${NAME:?message}, as compose does it."""
    return re.sub(r"\$\{(\w+):[-?]([^}]*)\}", lambda match: variables.get(match[1], match[2]), text)


def compose_services():
    (compose,) = load_yaml(EXAMPLES / "docker/compose.yaml")
    for service in compose["services"].values():
        for volume in service["volumes"]:
            volume.setdefault("read_only", False)
    return compose["services"]


def pod_service():
    """What the pod says, as a service: its environment, its groups and what it mounts of the node."""
    (pod,) = load_yaml(EXAMPLES / "kubernetes/pod.yaml")
    (container,) = pod["spec"]["containers"]
    paths = {volume["name"]: volume["hostPath"]["path"] for volume in pod["spec"]["volumes"] if "hostPath" in volume}
    volumes = [
        {"source": paths[mount["name"]], "target": mount["mountPath"], "read_only": mount.get("readOnly", False)}
        for mount in container["volumeMounts"]
        if mount["name"] in paths
    ]
    environment = {entry["name"]: entry.get("value", pod["metadata"]["name"]) for entry in container["env"]}
    groups = [str(group) for group in pod["spec"]["securityContext"]["supplementalGroups"]]
    return {"environment": environment, "group_add": groups, "volumes": volumes}


def cdi_service(gid):
    """What --device adds to a container that is run with --group-add."""
    cdi = json.loads((EXAMPLES / "docker/cdi.json").read_text())
    (device,) = cdi["devices"]
    edits = device["containerEdits"]
    volumes = [
        {"source": mount["hostPath"], "target": mount["containerPath"], "read_only": "ro" in mount["options"]}
        for mount in edits["mounts"]
    ]
    return {"environment": dict(e.split("=", 1) for e in edits["env"]), "group_add": [str(gid)], "volumes": volumes}


class Containers:
    """`places` says where on this host a mounted folder really lies, `gid` is the group's number, `seen` what else of the
    host is there."""

    def __init__(self, build, scratch, places, gid, seen=()):
        self.services = {**compose_services(), "pod": pod_service(), "cdi": cdi_service(gid)}
        self.build, self.scratch, self.places, self.gid = build, scratch, places, gid
        self.seen = (*filter(os.path.exists, SYSTEM), str(build), *map(str, seen))
        self.running = []
        self.template = self.make_template()

    def make_template(self):
        (self.scratch / "rootfs/run").mkdir(parents=True)
        subprocess.run(["crun", "spec", "-f", self.scratch / "spec.json"], check=True, capture_output=True)
        config = json.loads((self.scratch / "spec.json").read_text())
        config["process"]["terminal"] = False
        config["process"]["cwd"] = "/"
        config["process"].pop("rlimits", None)
        config["root"] = {"path": str(self.scratch / "rootfs"), "readonly": False}
        config["mounts"] = [mount for mount in config["mounts"] if mount["destination"] in SPECIAL]
        config["mounts"] += [bind(path, path, "ro") for path in self.seen]
        config["linux"]["namespaces"] = [{"type": kind} for kind in ("pid", "uts", "mount")]  # IPC: the host's, where the common registry is
        config["linux"].pop("resources", None)
        return json.dumps(config)

    def configuration(self, service, command, uid, without, extra):
        service = self.services[service]
        variables = {"SPARKGUARD_GID": str(self.gid), "SPARKGUARD_LIBRARY": f"{self.build}/libsparkguard.so"}
        config = json.loads(self.template)
        groups = [int(filled_in(group, variables)) for group in service["group_add"]]
        config["process"]["user"] = {"uid": uid, "gid": uid, "additionalGids": groups}
        config["process"]["args"] = list(map(str, command))
        environment = {"PATH": "/usr/bin:/bin", "HOME": "/tmp", **service["environment"], **extra}
        config["process"]["env"] = [f"{name}={value}" for name, value in environment.items()]
        for volume in service["volumes"]:
            source, target = (filled_in(volume[end], variables) for end in ("source", "target"))
            if target not in without:
                options = ["ro"] if volume["read_only"] else []
                config["mounts"].append(bind(self.places.get(source, source), target, *options))
        return config

    def start(self, service, command, uid=0, without=(), **extra):
        name = f"sparkguard-test-{os.getpid()}-{len(self.running)}"
        bundle = self.scratch / name
        bundle.mkdir()
        config = self.configuration(service, command, uid, without, extra)
        (bundle / "config.json").write_text(json.dumps(config))
        process = subprocess.Popen(
            ["unshare", "-m", "sh", "-c", PREPARE, "sh", str(self.scratch / "state"), str(bundle), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        process.name = name
        self.running.append(process)
        return process

    def kill(self, process):
        """The container's first process, and with it all of them."""
        status = self.scratch / "state" / process.name / "status"
        if process.poll() is None and status.exists():
            os.kill(json.loads(status.read_text())["pid"], signal.SIGKILL)
        process.communicate()

    def end(self):
        for process in self.running:
            self.kill(process)


def bind(source, destination, *options):
    return {"source": str(source), "destination": destination, "type": "bind", "options": ["rbind", *options]}


def require_containers():
    if os.geteuid() != 0 or shutil.which("crun") is None:
        pytest.skip("containers need root and crun")
