"""Where the library and the tools of this installation are."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Optional

NATIVE = Path(__file__).resolve().parent / "_native"  # of the wheel
LIBRARY = "libsparkguard.so"


def find(tool: str) -> Optional[str]:
    """Returns the path of a tool: the wheel's own, else the one in PATH; None if there is none."""
    own = NATIVE / tool
    return str(own) if own.exists() else shutil.which(tool)
