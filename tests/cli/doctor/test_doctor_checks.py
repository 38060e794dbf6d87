"""A check of sparkguard-doctor is one file: linked into the program, it is found, in its place."""

import json
import subprocess
from pathlib import Path

import pytest
from doctor_tree import Doctor

ROOT = Path(__file__).resolve().parents[3]
CHECK = """
#include "doctor/doctor.h"
static void check_%(name)s(struct doctor *doctor, struct finding *finding)
{
    (void)doctor;
    finding_say(finding, FINDING_FINE, NULL, "It is %(name)s.");
}
DOCTOR_CHECK(%(place)d, check_%(name)s, "%(name)s", "x");
"""


def test_a_check_needs_no_list(tools, tmp_path):
    objects = [path for path in (tools / "obj/tools/doctor").glob("check_*.o")]
    if not objects:
        pytest.skip("the objects of the tools are not here")
    sources = [tmp_path / f"check_{name}.c" for name in ("first", "between")]
    for source, place in zip(sources, (1, 45)):
        source.write_text(CHECK % {"name": source.stem[6:], "place": place})
    doctor = Doctor(tools, tmp_path / "root")
    doctor.program = tmp_path / "sparkguard-doctor"
    sanitizer = ["-fsanitize=address,undefined"] if "address" in tools.name else []
    includes = [f"-I{ROOT / folder}" for folder in ("include", "preload/core", "tools")]
    archives = [tools / "libtools.a", tools / "libsparkguard-core.a", "-lsmartcols", "-ljansson", "-lm"]
    subprocess.run(["cc", *sanitizer, *includes, "-o", doctor.program, *sources, tools / "obj/tools/doctor/main.o", *objects, *archives], check=True)
    ids = [finding["id"] for finding in json.loads(doctor.run("--json").stdout)["findings"]]
    assert ids.index("first") == 0 and ids[ids.index("between") - 1 : ids.index("between") + 2] == ["swap", "between", "swappiness"]
    without = [name for name in ids if name not in ("first", "between")]
    assert without == [finding["id"] for finding in Doctor(tools, tmp_path / "other").json()["findings"]]
