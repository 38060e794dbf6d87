"""A folder of several users, and another user of it. Both are real ones, made by number."""

import os
import subprocess

MEMBER, GROUP = 51004, 51000


def make_shared(scratch):
    folder = scratch / "shared"
    folder.mkdir()
    for parent in (scratch, *list(scratch.parents)[:2]):
        parent.chmod(0o755)
    os.chown(folder, 0, GROUP)
    folder.chmod(0o2770)
    return folder


def as_member(*command):
    subprocess.run(["setpriv", f"--reuid={MEMBER}", f"--regid={MEMBER}", f"--groups={GROUP}", *map(str, command)], check=True)
