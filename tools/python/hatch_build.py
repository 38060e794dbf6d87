"""What hatchling adds to the wheel: library, tools, the libraries that these need beside libc, manual pages, completion.

`make wheel-files` has built the files in SPARKGUARD_WHEEL_FILES. Without that variable (`pip wheel tools/python`) this hook
runs make first. The wheel's tag says the libc that the files need, as their symbols tell it.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).resolve().parents[2]
OF_LIBC = re.compile(r"(lib(c|m|dl|rt|pthread)|ld-linux[-\w]*)\.so\.\d+")
OLDEST_LIBC = (2, 28)  # what the library is made for; a wheel that needs less has this name too, which PyPI knows best


def readelf(*arguments: object) -> str:
    command = ["readelf", "-W", *map(str, arguments)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def made_files() -> Path:
    """The folder of the files to add, built if the caller has not done so."""
    if place := os.environ.get("SPARKGUARD_WHEEL_FILES"):
        return Path(place)
    subprocess.run([ROOT / "scripts/install-deps", "build"], check=True)
    subprocess.run(["make", "-s", "-C", ROOT, f"-j{os.cpu_count()}", "wheel-files"], check=True)
    return ROOT / "build/wheel-files"


def foreign_needs(path: Path) -> set[str]:
    names = re.findall(r"\(NEEDED\).*\[(.*)\]", readelf("-d", path))
    return {name for name in names if not OF_LIBC.fullmatch(name)}


def machine_of(path: Path) -> str:
    return "aarch64" if "AArch64" in readelf("-h", path) else "x86_64"


def newest_libc(paths: list[Path]) -> tuple[int, int]:
    versions = [re.findall(r"\bGLIBC_(\d+)\.(\d+)", readelf("-V", path)) for path in paths]
    return max([OLDEST_LIBC, *((int(major), int(minor)) for found in versions for major, minor in found)])


class Hook(BuildHookInterface):  # type: ignore[type-arg]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        files = made_files()
        native = sorted((files / "native").iterdir())
        programs = [path for path in native if not path.name.startswith("copyright")]
        missing = set().union(*map(foreign_needs, programs)) - {path.name for path in native}
        if missing:
            raise RuntimeError(f"the tools need {', '.join(sorted(missing))}, which `make wheel-files` has not added")
        major, minor = newest_libc(programs)
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-manylinux_{major}_{minor}_{machine_of(programs[0])}"
        added = {str(path): f"sparkguard/_native/{path.name}" for path in native}
        build_data["force_include"].update(added | {str(files / "_version.py"): "sparkguard/_version.py"})
        shared = {str(path): str(path.relative_to(files)) for path in sorted((files / "share").rglob("*")) if path.is_file()}
        build_data["shared_data"].update(shared)
