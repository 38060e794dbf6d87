"""`make deb`: the package of this machine and the one cross-built for arm64, and a clean chroot in which it is installed,
refuses, reports, and is purged.

The chroot is made by mmdebstrap (22 s of processor time, debootstrap took 46 s) from the package sources of this machine.
"""

import gzip
import os
import platform
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from conftest import need
from installed import INSTALLED, SYSTEM, TOOLS

ROOT = Path(__file__).resolve().parents[2]
NATIVE = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
MACHINES = {"amd64": ("x86_64-linux-gnu", "Advanced Micro Devices X86-64"), "arm64": ("aarch64-linux-gnu", "AArch64")}
APART = ("unshare", "--mount", "--pid", "--fork")  # what is mounted there goes with the process
SETTLE = """
set -e
mount --bind /dev "$0/dev"
mount -t tmpfs tmpfs "$0/dev/shm"
mount -t tmpfs tmpfs "$0/root"
mount -t proc proc "$0/proc"
exec chroot "$0" /usr/bin/env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 sh -c "$1"
"""


def output(*command):
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


class Package:
    def __init__(self, path, architecture, folder):
        self.path, self.architecture, self.folder = path, architecture, folder
        self.triplet, self.machine = MACHINES[architecture]
        self.library = folder / "usr/lib" / self.triplet / "libsparkguard.so"
        output("dpkg-deb", "-x", path, folder)

    def field(self, name):
        return output("dpkg-deb", "-f", self.path, name).strip()


def apt_sources():
    """The lines of the distribution's own sources; others know nothing of a chroot's packages."""
    form = "deb $(REPO_URI) $(RELEASE) $(COMPONENT)"
    lines = []
    for origin in ("Debian", "Ubuntu"):
        query = "Created-By: Packages", f"Origin: {origin}", f"Architecture: {NATIVE}"
        lines += output("apt-get", "indextargets", "--format", form, *query).splitlines()
    return "\n".join(lines)


@pytest.fixture(scope="session")
def bootstrap(tmp_path_factory):
    """A chroot in the making, while the packages are built; or the reason why there is none."""
    if os.geteuid() != 0:
        yield None, "not root, who alone may make a chroot"
        return
    if subprocess.run([*APART, "mount", "-t", "proc", "proc", "/proc"], capture_output=True).returncode != 0:
        yield None, "root may not mount here"
        return
    sources = apt_sources()
    if not sources:
        subprocess.run(["apt-get", "-q", "update"], capture_output=True)
        sources = apt_sources()
    if not sources:
        yield None, "apt has no lists of Debian's or Ubuntu's packages"
        return
    folder = tmp_path_factory.mktemp("chroot")
    release = dict(line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if "=" in line)
    command = ["mmdebstrap", "--quiet", "--variant=minbase", "--include=python3,libjansson4", '--aptopt=Acquire::Retries "5"']
    # A mirror may be in the middle of an update, and lists that do not fit its files are no use then: a second try has new ones.
    twice = 'cat >"$0/sources"; "$@" <"$0/sources" || { rm -rf "$0/root"; exec "$@" <"$0/sources"; }'
    command = ["sh", "-c", twice, folder, *command, release["VERSION_CODENAME"], folder / "root", "-"]
    with open(folder / "log", "w") as log:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log, text=True, start_new_session=True)
    process.stdin.write(sources)
    process.stdin.close()
    yield process, folder
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
    process.wait()
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def chroot(bootstrap):
    process, folder = bootstrap
    if process is None:
        pytest.skip(folder)
    assert process.wait() == 0, (folder / "log").read_text()
    return folder / "root"


@pytest.fixture(scope="session")
def packages(build, bootstrap, tmp_path_factory):
    """Makes the package of an architecture, once."""
    made = {}

    def package(architecture):
        if architecture not in made:
            arguments = [f"BUILD={build}"]
            if architecture != NATIVE:
                if NATIVE == "arm64":
                    pytest.skip("cross builds are made on x86-64")
                need("cross")
                arguments = [arguments[0] + "/aarch64", "CROSS=aarch64"]
            done = subprocess.run(["make", "-s", "deb", *arguments], cwd=ROOT, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            path = Path(done.stdout.splitlines()[-1])
            made[architecture] = Package(path, architecture, tmp_path_factory.mktemp(architecture))
        return made[architecture]

    return package


@pytest.fixture(params=["amd64", "arm64"])
def package(packages, request):
    return packages(request.param)


def expected_files(triplet):
    def place(name):
        is_of_one_machine = name.startswith("lib/") and not name.startswith("lib/systemd/")
        name = name.replace("lib/", f"lib/{triplet}/", 1) if is_of_one_machine else name
        name = name.replace("share/sparkguard/sparkguard/", "lib/python3/dist-packages/sparkguard/")
        return f"usr/{name}" + (".gz" if "/man/" in name else "")

    tracked = output("git", "ls-files", "scripts/examples").split()
    documents = ("README.md.gz", "changelog.gz", "changelog.Debian.gz", "copyright", *(name.removeprefix("scripts/") for name in tracked))
    return {place(name) for name in INSTALLED | SYSTEM} | {f"usr/share/doc/sparkguard/{name}" for name in documents}


def test_a_package_holds_what_make_install_installs(package):
    files = {str(p.relative_to(package.folder)) for p in package.folder.rglob("*") if not p.is_dir()}
    files -= {"usr/share/lintian/overrides/sparkguard"}
    assert files == expected_files(package.triplet)
    for program in (package.library, *(package.folder / "usr/bin" / tool for tool in TOOLS)):
        assert re.search(rf"Machine: +{package.machine}\n", output("readelf", "-h", program))
    page = gzip.open(package.folder / "usr/share/man/man3/sparkguard.3.gz", "rt").read()
    assert "/usr/lib/python3/dist-packages/sparkguard/" in page and "/usr/local" not in page


def test_a_package_says_what_it_needs(package):
    assert package.field("Architecture") == package.architecture
    version = re.search(r'SG_VERSION_TEXT "(.*)"', (ROOT / "include/sparkguard_abi.h").read_text())[1]
    assert package.field("Version") == f"{version}-1"
    assert package.field("Homepage").startswith("https://") and package.field("Maintainer").endswith(">")
    assert {need.split()[0] for need in package.field("Depends").split(", ")} == {"libc6", "libsmartcols1", "libjansson4"}


def test_a_packaged_library_needs_no_newer_libc_than_2_34(package):
    assert output("scripts/check-structure", package.library) == ""


def test_lintian_finds_nothing(package):
    done = subprocess.run(["lintian", "--allow-root", "--fail-on=error,warning", package.path], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_a_package_for_arm64_runs(packages):
    package = packages("arm64")
    if NATIVE == "arm64":
        pytest.skip("the chroot shows it")
    emulator = [ROOT / ".deps/aarch64/bin/qemu-aarch64-static", "-L", "/usr/aarch64-linux-gnu", "-E", f"LD_LIBRARY_PATH={ROOT}/.deps/aarch64/lib"]
    command = [*emulator, "-E", f"LD_PRELOAD={package.library}", package.folder / "usr/bin/sparkguard-report", "--version"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith("sparkguard-report ")


# ---- in the chroot ----------------------------------------------------------------------------------------------------


def inside(chroot, script):
    """Runs a script in the chroot, with memory for /dev/shm and for the home of root: what users leave is not the package's."""
    command = [*APART, "sh", "-c", SETTLE, chroot, script]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)


def everything_in(folder):
    """All names with their modes, but for dpkg's log and ldconfig's cache."""
    found = {}
    for place, folders, files in os.walk(folder):
        for name in folders + files:
            path = os.path.join(place, name)
            found[os.path.relpath(path, folder)] = os.lstat(path).st_mode
    for name in ("var/log/dpkg.log", "var/cache/ldconfig/aux-cache"):
        found.pop(name, None)
    return found


@pytest.fixture(scope="module")
def installed(chroot, packages):
    """The chroot with the package in it, and what lay there before."""
    package = packages(NATIVE)
    before = everything_in(chroot)
    shutil.copy(package.path, chroot / "package.deb")
    done = inside(chroot, "dpkg -i /package.deb")
    assert done.returncode == 0, done.stdout + done.stderr
    (chroot / "package.deb").unlink()
    return chroot, before


def test_a_plain_preload_refuses_and_the_report_shows_it(installed):
    chroot, _ = installed
    done = inside(
        chroot,
        """
        export SPARKGUARD_LIMIT=256M SPARKGUARD_JOB=packaged
        LD_PRELOAD=libsparkguard.so python3 -c 'bytearray(1 << 30)'
        echo "status $?"
        sparkguard-report --job packaged
        """,
    )
    assert "MemoryError" in done.stderr and "status 1\n" in done.stdout
    assert re.search(r"^sparkguard: refused \w+ of 1\.0 GiB: .*\(SPARKGUARD_LIMIT\)", done.stderr, re.MULTILINE), done.stderr
    assert "cannot be preloaded" not in done.stderr
    assert re.search(r"^job packaged, .* 1 refused$", done.stdout.replace("\n  limit", " limit"), re.MULTILINE), done.stdout


def test_the_launcher_and_the_module_find_the_library(installed):
    chroot, _ = installed
    done = inside(chroot, "sparkguard -q python3 -c 'import os, sparkguard; print(os.environ[\"LD_PRELOAD\"], sparkguard.active())'")
    assert (done.stdout, done.stderr) == (f"/usr/lib/{MACHINES[NATIVE][0]}/libsparkguard.so True\n", "")


def test_its_manual_can_be_read(installed, tmp_path):
    chroot, _ = installed
    pages = sorted((chroot / "usr/share/man").rglob("*sparkguard*.gz"))
    assert len(pages) == 7
    for page in pages:
        (tmp_path / page.stem).write_bytes(gzip.open(page).read())
        shown = output("mandoc", "-T", "ascii", "-W", "warning,stop", tmp_path / page.stem)
        assert shown.splitlines()[0].startswith(page.stem.rsplit(".", 1)[0].upper())


def test_a_set_up_lasts_through_an_upgrade(installed, packages):
    chroot, _ = installed
    done = inside(chroot, "sparkguard-doctor --setup >/tmp/setup.sh && sh /tmp/setup.sh && rm /tmp/setup.sh")
    assert done.returncode == 0, done.stdout + done.stderr
    shutil.copy(packages(NATIVE).path, chroot / "package.deb")
    done = inside(chroot, "dpkg -i /package.deb && rm /package.deb && su -l -c 'echo $LD_PRELOAD'")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith(f"/usr/lib/{MACHINES[NATIVE][0]}/libsparkguard.so\n")


def test_purged_it_leaves_no_trace(installed):
    """Also none of the set-up that the test before has made."""
    chroot, before = installed
    inside(chroot, "python3 -c 'import sparkguard'")
    assert "/usr/share/sparkguard/system/pam_env.conf" in (chroot / "etc/pam.d/common-session").read_text()
    done = inside(chroot, "dpkg --purge sparkguard")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "removed the group sparkguard" in done.stdout
    after = everything_in(chroot)
    assert {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)} == set()
