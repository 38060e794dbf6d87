"""cuda.h of the installed toolkit, or of the one that scripts/install-deps fetched."""

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def header_path():
    home = subprocess.run(["scripts/install-deps", "--cuda-home"], cwd=ROOT, capture_output=True, text=True, check=True)
    return Path(os.environ.get("CUDA_HOME", home.stdout.strip())) / "include" / "cuda.h"


def header():
    return header_path().read_text(errors="replace")
