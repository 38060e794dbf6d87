"""Containers of podman, dockerd and containerd behave with sparkguard-runtime as without, and those that can be guarded are.

Images: root file systems of Debian 11, 12 and 13 (made once, in build/images, by mmdebstrap), busybox linked statically and a program
of musl. `make test-containers` writes RESULTS.md.
"""

import os
import platform
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
from bundles import compile_program
from engines import ENGINES, RELEASES, Podman, debian
from lib.target import CC
from lib.waiting import wait_until

MIB = 1 << 20
TAKE = "b = bytearray(64 << 20); print(len(b))"
GO = 'package main\nimport ("fmt"; "os")\nfunc main() { fmt.Println(len(os.Args)); os.Exit(6) }\n'
SAY = '#include <stdio.h>\n#include <stdlib.h>\nint main(int n, char **w) { printf("%d\\n", n); return n > 1 ? atoi(w[1]) : 0; }\n'


def packed(folder, name, files):
    tar = folder / f"{name}.tar"
    with tarfile.open(tar, "w") as archive:
        for inside, path in files.items():
            archive.add(os.path.realpath(path), inside)
        for empty in ("proc", "dev", "sys", "run", "tmp", "etc"):
            entry = tarfile.TarInfo(empty)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(entry)
    return tar


@pytest.fixture(scope="session")
def images(build, tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    stored = build / "images"
    stored.mkdir(exist_ok=True)
    made = {name: debian(stored, name) for name in RELEASES}
    static = compile_program(folder, "say-static", SAY, "-static", compiler=CC)
    made["static"] = packed(folder, "static", {"bin/say": static})
    if busybox := shutil.which("busybox"):
        made["busybox"] = packed(folder, "busybox", {"bin/busybox": busybox, "bin/sh": busybox})
    if go := shutil.which("go"):
        (folder / "say.go").write_text(GO)
        environment = {**os.environ, "CGO_ENABLED": "0", "GOCACHE": str(folder / "cache"), "GO111MODULE": "off"}
        subprocess.run([go, "build", "-o", folder / "say-go", folder / "say.go"], env=environment, check=True)
        made["go"] = packed(folder, "go", {"bin/say": folder / "say-go"})
    if shutil.which("musl-gcc"):
        musl = compile_program(folder, "say-musl", SAY, compiler="musl-gcc")
        loader = f"lib/ld-musl-{platform.machine()}.so.1"
        made["musl"] = packed(folder, "musl", {"bin/say": musl, loader: f"/{loader}"})
    return made


@pytest.fixture(scope="module", params=ENGINES)
def engine(request, build, images, tmp_path_factory):
    kind, next_name = ENGINES[request.param]
    with kind(next_name, build, tmp_path_factory.mktemp(request.param)) as one:
        one.label = request.param
        for name, tar in images.items():
            one.load(name, tar)
        status, out, err = one.run("debian12", ["true"], "probe", guarded=False)
        if status != 0:
            pytest.skip(f"{request.param} starts no containers here: {(err or out).strip()[-300:]}")
        yield one


def both(engine, image, command, options=(), name="box"):
    """The outcome without and with the runtime; the engine's own name of the runtime is taken out of its messages."""
    outcomes = [engine.run(image, command, name, guarded, options) for guarded in (False, True)]
    return [(status, out, re.sub(r"plain|guarding|[0-9a-f]{64}|time=\S+", "", err)) for status, out, err in outcomes]


@pytest.mark.parametrize("release", RELEASES)
def test_debian_is_as_without_and_in_the_report_under_its_name(engine, release):
    name = f"on-{release}"
    alone, guarded = both(engine, release, ["python3", "-c", f"{TAKE}; import sys; sys.exit(5)"], name=name)
    assert alone == guarded and guarded[:2] == (5, f"{64 * MIB}\n")
    (process,) = engine.jobs()[name]["processes"]
    assert process["guarding"] and process["exit_code"] == 5 and process["peak_bytes"] >= 64 * MIB


WORDS = {
    "shell": ("debian12", ["sh", "-c", "echo out; echo err >&2; exit 3"]),
    "no such program": ("debian12", ["nothing"]),
    "killed": ("debian12", ["sh", "-c", "kill -KILL $$; sleep 9"]),
    "env -i": ("debian12", ["env", "-i", "/usr/bin/python3", "-c", TAKE]),
    "static": ("static", ["say", "7"]),
    "static Go": ("go", ["say", "7"]),
    "busybox": ("busybox", ["sh", "-c", "echo hi; exit 4"]),
    "musl": ("musl", ["say", "7"]),
}
UNGUARDED = {"env -i": "clears the environment", "static": "linked statically", "static Go": "linked statically", "busybox": "linked statically", "musl": "linked with musl"}


@pytest.mark.parametrize("case", WORDS)
def test_status_and_output_are_as_without(engine, images, case):
    image, command = WORDS[case]
    if image not in images:
        pytest.skip(f"no image of {image} here")
    alone, guarded = both(engine, image, command)
    if case == "no such program":  # engines put the runtime's times and paths into it
        alone, guarded = alone[:2], guarded[:2]
    assert alone == guarded
    if case in UNGUARDED:
        assert UNGUARDED[case] in engine.log.read_text().splitlines()[-1]


def environment(engine, **variables):
    return [word for name, value in variables.items() for word in ("--env", f"{name}={value}")]


def test_an_image_with_its_own_allocator(engine):
    options = environment(engine, LD_PRELOAD="libjemalloc.so.2", SPARKGUARD_LIMIT="256M")
    code = 'm = open("/proc/self/maps").read(); print("jemalloc" in m, "sparkguard" in m)\ntry: bytearray(512 << 20)\nexcept MemoryError: print("refused")'
    status, out, _ = engine.run("debian12", ["python3", "-c", code], "alloc", True, options)
    assert (status, out) == (0, "True True\nrefused\n")


def test_a_program_that_joins_is_of_the_job(engine):
    engine.start("debian12", ["sleep", "300"], "joined", True)
    try:
        for _ in range(2):
            status, out, err = engine.exec("joined", ["python3", "-c", TAKE], True)
            assert (status, out, err) == (0, f"{64 * MIB}\n", "")
        assert len(engine.jobs()["joined"]["processes"]) == 2
        assert engine.records()["joined"]["guarded"] is True
    finally:
        engine.remove("joined", True)
    wait_until(lambda: "joined" not in engine.records())


def test_a_container_runs_again_under_its_name(engine):
    for _ in range(2):
        assert engine.run("debian12", ["python3", "-c", TAKE], "again", True)[0] == 0
    processes = engine.jobs()["again"]["processes"]
    assert [process["state"] for process in processes] == ["exited", "exited"]


def test_pause_and_kill(engine):
    outcomes = []
    for guarded in (False, True):
        engine.start("debian12", ["sleep", "300"], "paused", guarded)
        try:
            outcomes.append([engine.manage(verb, "paused", guarded)[0] for verb in ("pause", "unpause")])
        finally:
            engine.remove("paused", guarded)
    assert outcomes[0] == outcomes[1]


OPTIONS = {
    "read-only": {"podman": ["--read-only"], "docker": ["--read-only"], "ctr": ["--read-only"]},
    "pid host": {"podman": ["--pid=host"], "docker": ["--pid=host"]},
    "ipc host": {"podman": ["--ipc=host"], "docker": ["--ipc=host"]},
    "no-new-privileges": {"podman": ["--security-opt=no-new-privileges"], "docker": ["--security-opt=no-new-privileges"]},
    "no seccomp": {"podman": ["--security-opt=seccomp=unconfined"], "docker": ["--security-opt=seccomp=unconfined"]},
    "seccomp": {"ctr": ["--seccomp"]},
    "user": {"podman": ["--user=1234:1234"], "docker": ["--user=1234:1234"]},
    "init": {"podman": ["--init"], "docker": ["--init"]},
    "no capabilities": {"podman": ["--cap-drop=all"], "docker": ["--cap-drop=all"]},
    "tmpfs on /run": {"podman": ["--tmpfs=/run"], "docker": ["--tmpfs=/run"]},
    "user namespace": {"podman": ["--uidmap=0:100000:65536", "--gidmap=0:100000:65536"], "rootless": []},
    "keep-id": {"rootless": ["--userns=keep-id"]},
}


@pytest.mark.parametrize("case", OPTIONS)
def test_a_container_of_each_kind(engine, case):
    label = engine.label.partition("+")[0]
    options = OPTIONS[case].get(label, OPTIONS[case].get("podman") if label == "rootless" else None)
    if options is None:
        pytest.skip("the engine has no such option")
    name = "kind-" + re.sub(r"\W", "-", case)
    alone, guarded = both(engine, "debian12", ["python3", "-c", TAKE], options, name=name)
    if alone[0] != 0:
        pytest.skip(f"not without the runtime either: {alone[2].strip()[-200:]}")
    assert alone == guarded and guarded[:2] == (0, f"{64 * MIB}\n")
    assert name in engine.jobs()


def test_a_guard_that_is_required_is_told_by_the_engine(engine):
    status, out, err = engine.run("static", ["say"], "required", True, environment(engine, SPARKGUARD_REQUIRED="1"))
    assert status != 0 and "container" in err and "is not started: " in err and "is linked statically" in err
