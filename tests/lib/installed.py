"""What the installation of a system brings, for tests that make a root of it."""

import functools
import os
import shutil
import subprocess
import tempfile

from .target import ROOT


@functools.cache
def system_files():
    """What `make install-system` installs, in a folder that goes with the tests' own."""
    folder = tempfile.mkdtemp(prefix="system-")
    os.chmod(folder, 0o755)  # a copy of it is a root
    subprocess.run(["make", "-s", "-C", ROOT, "install-system", f"DESTDIR={folder}", f"BUILD={folder}/build"], check=True)
    shutil.rmtree(f"{folder}/build")
    return folder
