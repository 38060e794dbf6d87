"""What `make install` puts where, below its prefix, and how to look at it."""

import subprocess
from pathlib import Path

TOOLS = ("sparkguard", "sparkguard-report", "sparkguard-sweep", "sparkguard-doctor")
MODULES = (
    "__init__", "__main__", "_batches", "_guard", "_magic", "_memory", "_phases", "_pressure", "_ranks", "_refusals", "_retry", "_state", "_tools",
    "_version",
)  # fmt: skip
PACKAGE = (*(f"{name}.py" for name in (*MODULES, "accelerate", "lightning", "transformers", "trl")), "py.typed")
INSTALLED = {
    "lib/libsparkguard.so",
    "lib/pkgconfig/sparkguard.pc",
    "include/sparkguard.h",
    *(f"share/sparkguard/sparkguard/{file}" for file in PACKAGE),
    "share/man/man3/sparkguard.3",
    "share/man/man7/libsparkguard.7",
    *(f"bin/{tool}" for tool in TOOLS),
    *(f"share/man/man1/{tool}.1" for tool in TOOLS),
    "bin/sparkguard-runtime",
    "share/man/man8/sparkguard-runtime.8",
    "lib/systemd/system/sparkguard-metrics.service",
    "lib/systemd/system/sparkguard-metrics.timer",
    *(f"share/bash-completion/completions/{tool}" for tool in TOOLS),
}
# What `make install-system` puts where besides; the package has both.
SYSTEM = {
    *(f"share/sparkguard/system/{path.name}" for path in (Path(__file__).resolve().parents[2] / "tools/install/system").iterdir()),
    "share/pam-configs/sparkguard",
}


def output(*command, **options):
    return subprocess.run(command, check=True, capture_output=True, text=True, **options).stdout
