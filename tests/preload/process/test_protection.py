"""A process keeps the processor's protections only if every library in it is marked for them. So this one must be marked."""

import re
import subprocess

import pytest
from lib.target import MACHINE


def features(library):
    notes = subprocess.run(["readelf", "-n", library], capture_output=True, text=True, check=True).stdout
    found = re.search(r"(?:x86|AArch64) feature: (.*)", notes)
    return set(found[1].split(", ")) if found else set()


def test_library_is_marked_for_shadow_stacks_and_signed_returns(build):
    machine = subprocess.run(["readelf", "-h", build / "libsparkguard.so"], capture_output=True, text=True, check=True).stdout
    assert features(build / "libsparkguard.so") >= ({"BTI", "PAC"} if "AArch64" in machine else {"SHSTK"})


@pytest.mark.skipif(MACHINE != "x86_64", reason="the flag is one of x86-64; on aarch64 every build has its own")
def test_library_built_for_branch_targets_is_marked_for_them(build):
    """As distributions build, and so the library of test_faults.py is: one object without the mark would take it from all."""
    assert features(build / "fault/libsparkguard.so") == {"IBT", "SHSTK"}
    objects = list((build / "fault/obj/preload").rglob("*.o"))
    assert len(objects) > 60 and [path.name for path in objects if features(path) != {"IBT", "SHSTK"}] == []
