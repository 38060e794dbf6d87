"""What makes and what runs programs of the library's architecture; another than the machine's own under tests/emulate."""

import os

CC = os.environ.get("CC", "cc")
PYTHON = os.environ.get("GUARDED_PYTHON", "/usr/bin/python3")
