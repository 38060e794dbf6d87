"""`make install` and `make uninstall`, into a folder of their own."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from installed import INSTALLED, SYSTEM, TOOLS

ROOT = Path(__file__).resolve().parents[2]


def files_below(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}


def test_uninstall_removes_exactly_what_install_put_there(make, tmp_path):
    places = f"DESTDIR={tmp_path}", "PREFIX=/usr"
    foreign = tmp_path / "usr/share/man/man1/other.1"
    foreign.parent.mkdir(parents=True)
    foreign.touch()
    make("install", *places)
    assert files_below(tmp_path / "usr") == INSTALLED | {"share/man/man1/other.1"}
    make("install-system", *places)
    assert files_below(tmp_path / "usr") == INSTALLED | SYSTEM | {"share/man/man1/other.1"}
    subprocess.run([sys.executable, "-c", "import sparkguard"], check=True, env={"PYTHONPATH": f"{tmp_path}/usr/share/sparkguard"})
    make("uninstall", *places)
    assert files_below(tmp_path) == {"usr/share/man/man1/other.1"}
    assert not (tmp_path / "usr/share/sparkguard").exists()


def test_a_blank_in_destdir_stays_in_it(make, tmp_path):
    folder = tmp_path / "two words"
    foreign = tmp_path / "two"
    foreign.touch()
    make("install", f"DESTDIR={folder}", "PREFIX=/usr")
    assert files_below(folder / "usr") == INSTALLED
    make("uninstall", f"DESTDIR={folder}", "PREFIX=/usr")
    assert files_below(tmp_path) == {"two"}


def test_every_place_can_be_chosen(make, tmp_path):
    places = [f"{name}={tmp_path}/{name}" for name in ("PREFIX", "LIBDIR", "MANDIR", "PYTHONDIR", "BASHDIR", "UNITDIR")]
    make("install", *places)
    assert {name.split("/")[0] for name in files_below(tmp_path)} == {"PREFIX", "LIBDIR", "MANDIR", "PYTHONDIR", "BASHDIR", "UNITDIR"}
    assert {path.name for path in (tmp_path / "PREFIX").iterdir()} == {"bin", "include"}
    page = (tmp_path / "MANDIR/man3/sparkguard.3").read_text()
    assert f"{tmp_path}/PYTHONDIR/sparkguard/" in page and "/usr/local" not in page
    make("uninstall", *places)
    assert files_below(tmp_path) == set()


def test_where_the_library_and_the_module_are_is_said(make, tmp_path, capfd, guard):
    prefix = tmp_path / "opt"
    make("install", f"PREFIX={prefix}")
    said = capfd.readouterr().out
    assert f"install: {prefix}/bin/sparkguard finds the library by itself\n" in said
    preload, path = re.search(r"LD_PRELOAD=(\S+),", said)[1], re.search(r"PYTHONPATH=(\S+)\n", said)[1]
    code = "import sparkguard; print(sparkguard.active())"
    assert guard.run(["/usr/bin/python3", "-c", code], preload=[preload], env={"PYTHONPATH": path}).stdout == "True\n"
    make("install", f"DESTDIR={tmp_path}/staged", f"PREFIX={prefix}")
    assert capfd.readouterr().out == ""


def test_pkg_config_builds_a_program_and_names_the_library(make, tmp_path, guard):
    make("install", f"PREFIX={tmp_path}")

    def pkg_config(*arguments):
        env = {**os.environ, "PKG_CONFIG_PATH": f"{tmp_path}/lib/pkgconfig"}
        return subprocess.run(["pkg-config", *arguments, "sparkguard"], env=env, check=True, capture_output=True, text=True).stdout

    version = subprocess.run([tmp_path / "bin/sparkguard", "--version"], capture_output=True, text=True).stdout.split()[1]
    assert pkg_config("--modversion").strip() == version
    program = tmp_path / "program"
    source = '#include <stdio.h>\n#include <sparkguard.h>\nint main(void) { printf("%d\\n", sparkguard_active()); }\n'
    flags = pkg_config("--cflags", "--libs").split()
    subprocess.run(["cc", "-x", "c", "-", "-o", program, *flags], input=source, check=True, text=True)
    assert guard.run([program], preload=[]).stdout == "0\n"
    assert guard.run([program], preload=[pkg_config("--variable=preload").strip()]).stdout == "1\n"


def test_the_library_s_manual_grows_from_the_options(build):
    page = build / "man/libsparkguard.7"
    shown = subprocess.run(["mandoc", "-T", "ascii", page], check=True, capture_output=True, text=True).stdout
    words = " ".join(re.sub(".\b", "", shown).split())
    for line in (
        "SPARKGUARD_RESERVE=SIZE memory that must stay usable after every admitted request (default: 8%)",
        "SPARKGUARD_WATCHDOG=off | warn | term second line of defence, for memory that no call announces (default: term)",
        "SPARKGUARD_JOB=NAME name that groups processes SPARKGUARD_REPORT=",
    ):
        assert line in words
    options = re.findall(r"^SG_OPTION\((\w+),", (ROOT / "include/options.def").read_text(), re.MULTILINE)
    assert len(options) > 15 and [name for name in options if f" SPARKGUARD_{name}=" not in words] == []


def test_the_manual_as_html_has_no_dead_link(make, build):
    make("docs")
    pages = {path.name: path.read_text() for path in (build / "docs").glob("*.html")}
    assert set(pages) == {"index.html", "sparkguard.3.html", "libsparkguard.7.html", "sparkguard-runtime.8.html", *(f"{tool}.1.html" for tool in TOOLS)}
    links = {(name, link) for name, page in pages.items() for link in re.findall(r'href="([^"#]+)', page)}
    assert [link for _, link in links if not (build / "docs" / link).exists()] == []
    assert {link for name, link in links if name == "index.html"} == {*pages, "manual.css"} - {"index.html"}
    assert ("sparkguard.1.html", "sparkguard-report.1.html") in links


def test_the_foot_of_a_page_names_the_version(make, build, tmp_path):
    make("install", f"PREFIX={tmp_path}")
    version = subprocess.run([build / "sparkguard", "--version"], capture_output=True, text=True).stdout.strip()
    pages = sorted((tmp_path / "share/man").rglob("*.[137]"))
    assert len(pages) == 6
    for page in pages:
        shown = subprocess.run(["mandoc", "-T", "ascii", page], check=True, capture_output=True, text=True).stdout
        assert re.fullmatch(rf"{version} +\w+ \d+, \d{{4}} +{version}", shown.splitlines()[-1]), shown.splitlines()[-1]


def test_units_are_what_systemd_understands(make, tmp_path):
    """And they name the tool where it is installed."""
    prefix = tmp_path / "prefix"
    make("install", f"PREFIX={prefix}")
    units = sorted((prefix / "lib/systemd/system").iterdir())
    assert [unit.name for unit in units] == ["sparkguard-metrics.service", "sparkguard-metrics.timer"]
    assert f"\nExecStart={prefix}/bin/sparkguard-report --prometheus " in units[0].read_text()
    try:
        done = subprocess.run(["systemd-analyze", "verify", "--man=no", *units], capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("no systemd-analyze here")
    assert (done.returncode, done.stderr) == (0, "")


def test_the_metrics_service_is_bounded_whatever_users_leave_for_it_to_read(make, tmp_path):
    """Root runs it, and anybody can fill /dev/shm."""
    make("install", f"PREFIX={tmp_path}")
    unit = tmp_path / "lib/systemd/system/sparkguard-metrics.service"
    keys = dict(line.split("=", 1) for line in unit.read_text().splitlines() if "=" in line and not line.startswith("#"))
    assert (keys["MemoryMax"], keys["MemorySwapMax"], keys["LimitCPU"]) == ("128M", "0", "2") and int(keys["TasksMax"]) <= 16
    if shutil.which("systemd-analyze"):
        done = subprocess.run(["systemd-analyze", "security", "--offline=true", "--threshold=25", unit], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


PROGRAMS = ("sparkguard", "sparkguard-report", "sparkguard-sweep", "sparkguard-doctor", "sparkguard-runtime")


@pytest.mark.parametrize("name", (*PROGRAMS, "libsparkguard.so"))
def test_every_build_is_hardened(build, name):
    """Not only that of dpkg, which passes flags of its own. The library has no stack protector, which each malloc would pay for."""
    said = subprocess.run(["readelf", "-Wldh", "--dyn-syms", build / name], capture_output=True, text=True, check=True).stdout
    assert re.search(r"Type: +DYN", said) and "GNU_RELRO" in said and re.search(r"GNU_STACK +\S+ \S+ \S+ \S+ \S+ RW ", said)
    assert re.search(r"FLAGS_1\).*NOW", said) and "TEXTREL" not in said and not re.search(r" RWE ", said)
    if name in PROGRAMS:
        assert re.search(r"FLAGS_1\).*PIE", said) and "__stack_chk_fail" in said and re.search(r"__\w+_chk@", said)


def test_root_s_own_directory_is_there_from_boot_on(tmp_path):
    """Else any user could make it first."""
    if shutil.which("systemd-tmpfiles") is None or os.geteuid() != 0:
        pytest.skip("needs systemd-tmpfiles and root")
    lines = [line for line in (ROOT / "tools/install/system/tmpfiles.conf").read_text().splitlines() if "sparkguard-0" in line]
    (tmp_path / "root.conf").write_text("\n".join(lines) + "\n")
    subprocess.run(["systemd-tmpfiles", f"--root={tmp_path}", "--create", tmp_path / "root.conf"], check=True)
    made = (tmp_path / "dev/shm/sparkguard-0").stat()
    assert (made.st_uid, oct(made.st_mode)) == (0, "0o40700")


PIP_ERROR = "ERROR: Could not find a version that satisfies the requirement nvidia-cuda-runtime==13.0.* (from versions: none)"


def test_what_pip_says_of_its_failure_is_told(tmp_path):
    """On a machine without the headers: a copy of the scripts has no .deps, and /usr/local/cuda is covered."""
    if os.path.isdir("/usr/local/cuda") and subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode != 0:
        pytest.skip("no mounts of our own here")
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin/python3"
    python.write_text(f'#!/bin/sh\n[ "$1" = -c ] && exit 0\necho "WARNING: Retrying" >&2\necho "{PIP_ERROR}" >&2\nexit 1\n')
    python.chmod(0o755)
    cover = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs none /usr/local/cuda && exec "$@"', "sh"] if os.path.isdir("/usr/local/cuda") else []
    env = {**os.environ, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "CUDA_HOME": "", "PAUSE": "0"}
    done = subprocess.run([*cover, tmp_path / "scripts/install-deps", "build"], env=env, capture_output=True, text=True)
    assert done.returncode != 0 and f"pip cannot fetch NVIDIA's wheels ({PIP_ERROR})" in done.stderr.splitlines()[-1], done.stderr
