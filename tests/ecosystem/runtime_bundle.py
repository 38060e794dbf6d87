"""Bundles for sparkguard-runtime, with a next runtime that is a script: it tells what it was given. Shared by the modules that test
the runtime without an engine."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from bundles import Bundle, Image, compile_program
from lib.target import CC

NEXT = """#!/bin/sh
printf '%s\\n' "$0" "$@" >"{told}"
echo out of the next
echo error of the next >&2
exit 23
"""
LIBRARY = "/run/sparkguard/libsparkguard.so"
OWN = "/run/sparkguard/own"
SHARED = "/run/sparkguard/shared"


def sharing(config):
    """What a container that shares has; the administrator allows it by share = yes."""
    config["annotations"] = {"sparkguard.share": "yes"}
    config["linux"]["namespaces"] = [one for one in config["linux"]["namespaces"] if one["type"] != "ipc"]

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
        self.shared, self.system = folder / "shared", folder / "system"
        self.containers, self.promises = self.system / "run/sparkguard/containers", self.system / "run/sparkguard/promises"
        self.shared.mkdir(mode=0o700)
        (self.system / "run").mkdir(parents=True)
        self.next.write_text(NEXT.format(told=self.told))
        self.next.chmod(0o755)
        self.conf = folder / "runtime.conf"
        self.lines = {"next": self.next, "library": build / "libsparkguard.so", "shared": self.shared, "log": self.log}

    def environment(self):
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("SPARKGUARD_", "LD_PRELOAD"))}
        return {**kept, "SPARKGUARD_RUNTIME_CONF": str(self.conf), "SPARKGUARD_SYSTEM_ROOT": str(self.system)}

    def run(self, *arguments, env=(), cwd=None, **lines):
        self.conf.write_text("".join(f"{key} = {value}\n" for key, value in {**self.lines, **lines}.items()))
        environment = {**self.environment(), **dict(env)}
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
        path = self.containers / f"{name}.json"
        return json.loads(path.read_text()) if path.exists() else None


    def mounted(self):
        """The containers' own directories on the host: name to type and options."""
        lines = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
        return {Path(place).name: (kind, options.split(",")) for _, place, kind, options, *_ in lines if place.startswith(f"{self.containers}/")}

    def end(self):
        for name in self.mounted():
            subprocess.run(["umount", "--lazy", self.containers / name], check=True)
        for shown in [path for path in self.promises.glob("*") if os.path.ismount(path)]:
            subprocess.run(["umount", "--lazy", shown], check=True)


@pytest.fixture
def runtime(build, tmp_path):
    one = Runtime(build, tmp_path)
    yield one
    one.end()


@pytest.fixture
def bundle(image, tmp_path):
    return Bundle(tmp_path / "bundle", image, ["/bin/sh", "-c", "exec take malloc 64M"])


def numbers_as_text(text):
    """Every number by its digits, in the order of the file."""
    return json.loads(text, parse_int=str, parse_float=str, object_pairs_hook=list)
