"""A machine with Docker, Podman and containerd, in namespaces of its own: this one's /usr with the unpacked packages over it, a copy
of /etc, and memory for all the rest. What is installed or set up there is gone with it.

    with Machine(build) as machine:
        machine.run("sparkguard-doctor --setup | sh")
"""

import os
import stat
import subprocess
from pathlib import Path

import pytest
from lib.installed import system_files
from lib.target import ROOT

ENGINES = ROOT / ".deps/engines"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# The tools need one cgroup hierarchy; this namespace sees version 2 alone. The image has the machine's own /usr.
SETTLE = """
set -e
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs "$1"
cd "$1"
mkdir -p usr var/lib var/log var/tmp run tmp dev proc sys root build image .upper .work
for each in bin sbin lib lib64; do ln -s "usr/$each" "$each"; done
ln -s ../run var/run
cp -a /etc etc
cp -a "$2/etc/." etc
cp -a /var/lib/pam var/lib/pam
install -D /var/lib/dpkg/info/libpam-runtime.templates var/lib/dpkg/info/libpam-runtime.templates # for pam-auth-update
mount -t overlay overlay -o "lowerdir=$2/usr:/usr,upperdir=$1/.upper,workdir=$1/.work" usr
mount --rbind /dev dev
mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t cgroup2 none sys/fs/cgroup
mount -t tmpfs tmpfs run
mount -t tmpfs tmpfs tmp
mount --bind "$3" build
mkdir -p image/usr image/proc image/sys image/dev image/run image/tmp image/etc image/var/lib
for each in bin lib lib64; do ln -s "usr/$each" "image/$each"; done
rm -f etc/ld.so.preload
install -D "$3/libsparkguard.so" usr/local/lib/libsparkguard.so
cp -a "$4/." .
for each in sparkguard sparkguard-doctor sparkguard-report sparkguard-sweep; do install "$3/$each" "usr/local/bin/$each"; done
# Its contract, where it is not built: the next runtime, with the same words.
if [ -e "$3/sparkguard-runtime" ]; then
    install "$3/sparkguard-runtime" usr/local/bin/sparkguard-runtime
else
    printf '#!/bin/sh\\nexec "$SPARKGUARD_NEXT_RUNTIME" "$@"\\n' >usr/local/bin/sparkguard-runtime
    chmod 755 usr/local/bin/sparkguard-runtime
fi
chroot . ldconfig
echo ready
exec sleep infinity
"""
NOT_FILES = ("build", "dev", "proc", "sys", "tmp", ".upper", ".work", "usr/lib", "usr/bin", "usr/sbin", "usr/share", "usr/include")
SMALL = 1 << 20


class Machine:
    def __init__(self, build, scratch):
        self.folder = scratch
        command = ["unshare", "--mount", "--pid", "--ipc", "--fork", "--kill-child", "sh", "-c", SETTLE, "sh", scratch, ENGINES, build, system_files()]
        self.holder = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if self.holder.stdout.readline() != "ready\n":
            self.holder.kill()
            pytest.skip(f"no machine here: {self.holder.communicate()[1].strip()}")
        children = Path(f"/proc/{self.holder.pid}/task/{self.holder.pid}/children").read_text().split()
        self.pid = int(children[0])
        self.root = Path(f"/proc/{self.pid}/root{scratch}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.holder.kill()
        self.holder.communicate()

    def command(self, script):
        inside = ["nsenter", "-t", str(self.pid), "-m", "-p", "-i", "chroot", str(self.folder)]
        return [*inside, "env", "-i", f"PATH={PATH}", "HOME=/root", "LC_ALL=C.UTF-8", "sh", "-c", script]

    def run(self, script, status=0):
        done = subprocess.run(self.command(script), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=90)
        assert status is None or done.returncode == status, done.stdout + done.stderr
        return done

    def start(self, script):
        return subprocess.Popen(self.command(script), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def state(self):
        """Of each file its kind, mode, owner and content; of /usr what is local."""
        found = {}
        for folder, folders, files in os.walk(self.root):
            place = os.path.relpath(folder, self.root)
            folders[:] = [name for name in folders if os.path.normpath(f"{place}/{name}") not in NOT_FILES]
            for name in (*folders, *files):
                path = Path(folder, name)
                status = path.lstat()
                if path.is_symlink():
                    content = os.readlink(path)
                elif stat.S_ISREG(status.st_mode):
                    content = path.read_bytes() if status.st_size < SMALL else (status.st_size, status.st_mtime_ns)
                else:
                    content = None
                found[os.path.normpath(f"{place}/{name}")] = (oct(status.st_mode), status.st_uid, status.st_gid, content)
        return found


def require_machine():
    if os.geteuid() != 0 or not ENGINES.exists():
        pytest.skip("a machine needs root, and .deps/engines by scripts/install-deps ecosystem")
