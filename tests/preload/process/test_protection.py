"""A process keeps the processor's protections only if every library in it is marked for them. So this one must be marked."""

import os
import re
import subprocess
from pathlib import Path

import pytest
from lib.target import MACHINE

ROOT = Path(__file__).resolve().parents[3]


def features(library):
    notes = subprocess.run(["readelf", "-n", library], capture_output=True, text=True, check=True).stdout
    found = re.search(r"(?:x86|AArch64) feature: (.*)", notes)
    return set(found[1].split(", ")) if found else set()


def test_library_is_marked_for_shadow_stacks_and_signed_returns(build):
    machine = subprocess.run(["readelf", "-h", build / "libsparkguard.so"], capture_output=True, text=True, check=True).stdout
    assert features(build / "libsparkguard.so") >= ({"BTI", "PAC"} if "AArch64" in machine else {"SHSTK"})


@pytest.mark.skipif(MACHINE != "x86_64", reason="the flag is one of x86-64; on aarch64 every build has its own")
def test_library_built_for_branch_targets_is_marked_for_them(tmp_path):
    """As distributions build: one object without the mark would take it from all."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("SPARKGUARD_", "MAKE", "MFLAGS")) and k != "LD_PRELOAD"}
    command = ["make", "-s", "-j2", f"BUILD={tmp_path}", "CFLAGS=-O0 -fcf-protection", "library"]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert features(tmp_path / "libsparkguard.so") == {"IBT", "SHSTK"}
    objects = list((tmp_path / "obj" / "preload").rglob("*.o"))
    assert len(objects) > 60 and [path.name for path in objects if features(path) != {"IBT", "SHSTK"}] == []
