"""What `make release` makes, as far as it is cheap: the source twice the same bytes, the list of components, and which wheel pip takes of
those in one folder. test_wheel.py looks into the wheels. `make test-dist` makes all of it twice, and installs it in fresh systems."""

import hashlib
import json
import os
import platform
import re
import shutil
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml
from installed import output

ROOT = Path(__file__).resolve().parents[2]
VERSION = re.search(r'SG_VERSION_TEXT "(.*)"', (ROOT / "include/sparkguard_abi.h").read_text())[1]
NATIVE = platform.machine()
ARCHITECTURES = {"aarch64": "arm64"} if NATIVE == "aarch64" else {"x86_64": "amd64", "aarch64": "arm64"}


def cuda_home():
    return output("scripts/install-deps", "--cuda-home", cwd=ROOT).strip()


def make_source(folder):
    """As scripts/release does it, which makes the packages and the wheels likewise."""
    env = os.environ | {"BUILD": str(folder / "build"), "DIST": str(folder / "dist"), "PARTS": "source", "CUDA_HOME": cuda_home()}
    output("scripts/release", cwd=ROOT, env=env)
    return folder / "dist"


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return make_source(tmp_path_factory.mktemp("first"))


def test_the_source_is_what_is_committed(source):
    with tarfile.open(source / f"sparkguard-{VERSION}.tar.gz") as archive:
        names = [member.name for member in archive if not member.isdir()]
        assert {member.mtime for member in archive} == {int(output("git", "log", "-1", "--format=%ct", cwd=ROOT))}
    assert names == sorted(names, key=lambda name: name.encode())
    assert set(names) == {f"sparkguard-{VERSION}/{name}" for name in output("git", "ls-files", cwd=ROOT).splitlines()}


def test_another_folder_has_the_same_bytes_and_sums(source, tmp_path):
    again = make_source(tmp_path / "another" / "folder")
    archive = f"sparkguard-{VERSION}.tar.gz"
    assert sorted(os.listdir(again)) == ["SHA256SUMS", archive]
    assert (again / "SHA256SUMS").read_text() == f"{hashlib.sha256((source / archive).read_bytes()).hexdigest()}  {archive}\n"


# ---- all of it in one folder --------------------------------------------------------------------------------------------


def control(name, architecture, version):
    return f"Package: {name}\nVersion: {version}\nArchitecture: {architecture}\nMaintainer: n <n@n.invalid>\nDescription: n\n"


@pytest.fixture(scope="module")
def dist(source, wheels, tmp_path_factory):
    """The source, the wheels, and packages that have no more than their needs."""
    folder = tmp_path_factory.mktemp("all")
    shutil.copytree(source, folder / "dist")
    needs = "Depends: libc6 (>= 2.34), libjansson4 (>= 2.14), libsmartcols1 (>= 2.31.1)\n"
    for machine, architecture in ARCHITECTURES.items():
        shutil.copy(wheels("manylinux", machine), folder / "dist")
        (folder / architecture / "DEBIAN").mkdir(parents=True)
        (folder / architecture / "DEBIAN/control").write_text(control("sparkguard", architecture, f"{VERSION}-1") + needs)
        output("dpkg-deb", "-b", folder / architecture, folder / f"dist/sparkguard_{VERSION}-1_{architecture}.deb")
    return folder / "dist"


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_pip_takes_the_wheel_of_the_machine(dist, tmp_path, machine):
    """By the options that the README names: of dist/*.whl pip refuses the wheel of another machine, and takes none."""
    assert "`pip install --no-index --find-links dist sparkguard`" in (ROOT / "README.md").read_text()
    platforms = [] if machine == NATIVE else ["--platform", f"manylinux_2_28_{machine}", "--only-binary", ":all:"]
    command = [ROOT / ".deps/wheel/bin/python", "-m", "pip", "download", "-q", "--disable-pip-version-check", *platforms]
    output(*command, "--no-index", "--find-links", "dist", "--no-deps", "-d", tmp_path, "sparkguard", cwd=dist.parent)
    assert os.listdir(tmp_path) == [f"sparkguard-{VERSION}-py3-none-manylinux_2_28_{machine}.whl"]


@pytest.fixture(scope="module")
def bill(dist):
    command = [ROOT / ".deps/sbom/bin/python", "scripts/sbom", dist, ".deps", f"{cuda_home()}/include/cuda.h"]
    env = os.environ | {"SOURCE_DATE_EPOCH": "1700000000"}
    printed = [output(*command, cwd=ROOT, env=env) for _ in range(2)]
    assert printed[0] == printed[1]
    return json.loads(printed[0])


def test_the_list_names_each_file_by_its_sum(bill, dist):
    assert (bill["spdxVersion"], bill["creationInfo"]["created"]) == ("SPDX-2.3", "2023-11-14T22:13:20Z")
    ours = {p["packageFileName"]: p for p in bill["packages"] if p["name"] == "sparkguard"}
    assert ours.keys() == {path.name for path in dist.iterdir() if path.name != "SHA256SUMS"}
    for name, package in ours.items():
        (checksum,) = package["checksums"]
        assert checksum["checksumValue"] == hashlib.sha256((dist / name).read_bytes()).hexdigest()
        assert package["versionInfo"] == VERSION


def test_the_list_has_what_wheels_hold_and_packages_link(bill, dist):
    named = {p["SPDXID"]: p for p in bill["packages"]}
    related = {}
    for one in bill["relationships"]:
        related.setdefault((one["spdxElementId"], one["relationshipType"]), set()).add(named[one["relatedSpdxElement"]]["name"])
    for path in (*dist.glob("*.whl"), *dist.glob("*.deb")):
        (identity,) = (i for i, p in named.items() if p.get("packageFileName") == path.name)
        assert related[identity, "GENERATED_FROM"] == {"sparkguard"}
        if path.suffix == ".whl":
            held = {name for name in zipfile.ZipFile(path).namelist() if re.search(r"/_native/.*\.so\.\d", name)}
            assert related[identity, "CONTAINS"] == {"libjansson4", "libsmartcols1"} and len(held) == 2
        else:
            assert related[identity, "DEPENDS_ON"] == {"libc6", "libjansson4", "libsmartcols1"}
            assert related[identity, "STATIC_LINK"] == {"libjansson4"}
    for package in bill["packages"]:
        assert package["name"] == "cuda-headers" or package["licenseDeclared"] != "NOASSERTION", package["name"]
        assert package["versionInfo"], package["name"]


# ---- whoever publishes it -----------------------------------------------------------------------------------------------


def pins():
    lines = [line for line in (ROOT / "scripts/release-pins.txt").read_text().splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[a-z][a-z.-]+==[0-9.]+", line) for line in lines), lines
    return dict(line.split("==") for line in lines)


@pytest.mark.parametrize("folder, name", [("wheel", "hatchling"), ("sbom", "spdx-tools")])
def test_what_writes_bytes_of_a_release_has_a_fixed_version(folder, name):
    pinned, python = pins()[name], ROOT / ".deps" / folder / "bin/python"
    if folder == "sbom" and not python.exists():
        pytest.skip("no .deps/sbom here: scripts/install-deps release")
    has = output(python, "-c", "import importlib.metadata, sys; print(importlib.metadata.version(sys.argv[1]))", name)
    assert has.strip() == pinned


def test_the_workflow_runs_the_targets_of_the_makefile():
    workflow = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())
    jobs = workflow["jobs"]
    commands = {name: [step.get("run") for step in job["steps"]] for name, job in jobs.items()}
    assert "make release" in commands["build"] and "make test-dist" in commands["test-dist"]
    assert all("make test" in commands[name] for name in ("test", "test-arm64"))
    assert jobs["test-arm64"]["runs-on"].endswith("-arm") and not jobs["test"]["runs-on"].endswith("-arm")
    assert set(jobs["publish"]["needs"]) == set(jobs) - {"publish"}, "nothing is published that a job has not passed"
    targets = "".join((ROOT / name).read_text() for name in ("Makefile", "scripts/package.mk", "tests/tests.mk"))
    for command in (word for words in commands.values() for word in words if word and word.startswith("make ")):
        assert re.search(rf"^{command.split()[1]}:", targets, re.MULTILINE), command
    assert all(job["timeout-minutes"] <= 180 for job in jobs.values()), "one that hangs holds a runner for six hours"
    assert "--verify-tag" in jobs["publish"]["steps"][-1]["run"], "gh would make a tag that is missing"
    assert workflow["permissions"] == {"contents": "read"} and jobs["publish"]["permissions"] == {"contents": "write"}
