"""scripts/examples: what they name exists, and systemd can read what is meant for it."""

import os
import re
import shutil
import subprocess

import pytest
from containers import EXAMPLES, ROOT, load_yaml

FILES = sorted(file for file in EXAMPLES.rglob("*") if file.is_file() and "__pycache__" not in file.parts)
OPTIONS = (ROOT / "include/options.def").read_text()
VARIABLES = {f"SPARKGUARD_{name}" for name in re.findall(r"^SG_OPTION\((\w+),", OPTIONS, re.MULTILINE)}
OWN = {"SPARKGUARD_GID", "SPARKGUARD_LIBRARY"}  # of the compose file, which gives none of them to a container
with_systemd = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("systemd-analyze") is None, reason="needs root and the tools of systemd"
)


def name_of(file):
    return str(file.relative_to(EXAMPLES))


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_variables_exist(file):
    named = set(re.findall(r"SPARKGUARD_[A-Z][A-Z_]*[A-Z]", file.read_text()))
    assert named <= VARIABLES | (OWN if "docker" in file.parts or file.name == "README.md" else set())


@pytest.mark.parametrize("file", [f for f in FILES if f.suffix in (".md", ".sh", "") or f.suffix == ".yaml"], ids=name_of)
def test_options_of_the_tools_exist(build, file):
    for tool, rest in re.findall(r"\b(sparkguard(?:-report|-sweep|-doctor)?) ((?:--?[\w-]+(?:=\S+)? ?)+)", file.read_text()):
        said = subprocess.run([build / tool, "--help"], capture_output=True, text=True).stdout
        for option in re.findall(r"--[\w-]+", rest):
            assert re.search(rf"(?<![\w-]){option}\b", said), f"{tool} {option}"


@pytest.mark.parametrize("file", [f for f in FILES if f.suffix == ".yaml"], ids=name_of)
def test_yaml_can_be_read(file):
    assert load_yaml(file)


def test_links_of_the_guide_lead_somewhere():
    links = re.findall(r"\]\(([^)#]+)\)", (EXAMPLES / "README.md").read_text())
    assert links and [link for link in links if "://" not in link and not (EXAMPLES / link).exists()] == []


def test_commands_of_the_guide_name_files_from_its_folder_on():
    commands = re.findall(r"^    (?:\S.* )?(?:python3|install|kubectl|jupyter) .*", (EXAMPLES / "README.md").read_text(), re.MULTILINE)
    folders = "|".join(["scripts", *(entry.name for entry in EXAMPLES.iterdir() if entry.is_dir())])
    named = re.findall(rf" ((?:{folders})/\S+)", "\n".join(commands))
    assert len(named) > 6 and [name for name in named if not (EXAMPLES / name).exists()] == []


def verify(folder, unit):
    environment = {"PATH": "/usr/bin:/bin", "SYSTEMD_UNIT_PATH": f"{folder}:"}
    return subprocess.run(["systemd-analyze", "verify", folder / unit], env=environment, capture_output=True, text=True)


@with_systemd
def test_drop_in_is_read_by_systemd(tmp_path):
    (tmp_path / "app.service").write_text("[Service]\nExecStart=/bin/true\n")
    (tmp_path / "app.service.d").mkdir()
    shutil.copy(EXAMPLES / "systemd/sparkguard.conf", tmp_path / "app.service.d")
    done = verify(tmp_path, "app.service")
    assert "sparkguard.conf" not in done.stderr and done.returncode == 0, done.stderr
    with (tmp_path / "app.service.d/sparkguard.conf").open("a") as file:
        file.write("NoSuchSetting=1\n")
    assert "sparkguard.conf" in verify(tmp_path, "app.service").stderr  # so it was read


@with_systemd
def test_ollamas_drop_in_is_read_by_systemd(tmp_path):
    """With a unit as Ollama's installer writes it."""
    unit = "[Unit]\nAfter=network-online.target\n[Service]\nExecStart=/bin/true serve\nUser=root\nRestart=always\n"
    (tmp_path / "ollama.service").write_text(unit)
    (tmp_path / "ollama.service.d").mkdir()
    shutil.copy(EXAMPLES / "ollama/sparkguard.conf", tmp_path / "ollama.service.d")
    done = verify(tmp_path, "ollama.service")
    assert "sparkguard.conf" not in done.stderr and done.returncode == 0, done.stderr
    with (tmp_path / "ollama.service.d/sparkguard.conf").open("a") as file:
        file.write("NoSuchSetting=1\n")
    assert "sparkguard.conf" in verify(tmp_path, "ollama.service").stderr  # so it was read


@with_systemd
def test_shared_directories_are_made_as_the_library_wants_them(tmp_path):
    for folder in ("dev/shm", "var/lib", "etc"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "etc/group").write_text("root:x:0:\nsparkguard:x:4711:\n")
    (tmp_path / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\n")
    file = EXAMPLES / "systemd/sparkguard-tmpfiles.conf"
    done = subprocess.run(["systemd-tmpfiles", f"--root={tmp_path}", "--create", file], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for folder in ("dev/shm/sparkguard", "var/lib/sparkguard"):
        status = (tmp_path / folder).stat()
        assert (status.st_mode & 0o7777, status.st_uid, status.st_gid) == (0o2770, 0, 4711)
