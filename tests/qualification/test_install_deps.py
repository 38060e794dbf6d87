"""scripts/install-deps where a mirror fails now and then, with an apt-get that fails on purpose, and of several that run at once."""

import contextlib
import fcntl
import shutil
import subprocess
from pathlib import Path

import pytest
from lib.target import ROOT
from lib.waiting import wait_until

# It fails once for each line of the plan, and then makes the program that is looked for.
APT_GET = """#!/bin/bash
echo "apt-get $*" >>"$LOG"
[[ " $* " == *" install "* ]] || exit 0
if [[ -s $PLAN ]]; then
    sed -i 1d "$PLAN"
    echo "E: Failed to fetch http://mirror/pool/x.deb  404  Not Found"
    exit 100
fi
printf '#!/bin/sh\\n' >"$BIN/chromium"
chmod 755 "$BIN/chromium"
"""
APT_CACHE = "#!/bin/sh\necho \"Package: $2\"\n"
SUDO = '#!/bin/sh\nexec "$@"\n'
NEEDED = "bash sed grep tail sort mkdir mktemp rm mv dirname id uname cat env sleep flock chmod ls cut".split()


class Clone:
    """A clone whose programs are those that the script needs, and the made-up ones."""

    def __init__(self, folder):
        self.folder, self.bin, self.log, self.plan = folder, folder / "bin", folder / "log", folder / "plan"
        self.bin.mkdir()
        (folder / "scripts").mkdir()
        for script in (ROOT / "scripts").glob("fetch-*"):
            shutil.copy(script, folder / "scripts")
        shutil.copy(ROOT / "scripts/install-deps", folder / "scripts")
        for name in NEEDED:
            (self.bin / name).symlink_to(shutil.which(name))
        for name, text in {"apt-get": APT_GET, "apt-cache": APT_CACHE, "sudo": SUDO}.items():
            (self.bin / name).write_text(text)
            (self.bin / name).chmod(0o755)
        self.log.touch()
        self.env = {"PATH": str(self.bin), "LOG": str(self.log), "PLAN": str(self.plan), "BIN": str(self.bin), "PAUSE": "0"}

    def start(self):
        command = [self.folder / "scripts/install-deps", "browser"]
        return subprocess.Popen(command, env=self.env, cwd="/", stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def run(self, failures):
        self.plan.write_text("fail\n" * failures)
        process = self.start()
        self.said = process.communicate()[1]
        return process.returncode

    def count(self, what):
        return sum(f" {what} " in f"{line} " for line in self.log.read_text().splitlines())


def waits(pid):
    """Whether a child of the process waits for a lock."""
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with contextlib.suppress(OSError):
            command = Path(f"/proc/{child}/cmdline").read_text().split("\0")
            if command[0].endswith("flock") and "--nonblock" not in command:
                return True
    return False


@pytest.fixture
def clone(tmp_path):
    if any(shutil.which(name, path="/usr/local/sbin:/usr/sbin:/sbin") for name in ("chromium", "chromium-browser", "google-chrome")):
        pytest.skip("a browser is where the script looks for root's programs, too")
    return Clone(tmp_path)


def test_mirror_that_fails_twice_is_asked_again(clone):
    assert clone.run(2) == 0, clone.said
    assert (clone.count("install"), clone.count("update")) == (3, 3), "each try knows the mirror's newest lists"
    assert clone.said.count("it failed (E: Failed to fetch http://mirror/pool/x.deb  404  Not Found); another try in 0 s\n") == 2
    assert clone.run(0) == 0 and clone.said == "" and clone.count("install") == 3, "nothing is missing any more"


def test_mirror_that_fails_always_ends_it_with_the_reason(clone):
    assert clone.run(9) == 1
    assert clone.said.splitlines()[-1] == (
        "install-deps: apt-get could not install chromium: E: Failed to fetch http://mirror/pool/x.deb  404  Not Found"
    )
    assert clone.count("install") == 3


def test_second_one_in_the_clone_waits_and_finds_what_the_first_has_brought(clone):
    (clone.folder / ".deps").mkdir()
    with open(clone.folder / ".deps/lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        process = clone.start()
        wait_until(lambda: waits(process.pid), "it waits for the lock")
        assert clone.log.read_text() == ""
        (clone.bin / "chromium").symlink_to("/bin/true")
    assert process.communicate() == ("", "") and process.returncode == 0
    assert clone.log.read_text() == ""
