"""Images and engines for the tests of sparkguard-runtime with podman, dockerd and containerd: `make test-containers`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "ecosystem"))  # bundles, waiting
