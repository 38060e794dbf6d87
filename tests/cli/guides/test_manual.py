"""The manual pages beside the tools: a page names no option that its tool does not have."""

import re
import subprocess
from pathlib import Path

import pytest

PAGES = Path(__file__).resolve().parents[3] / "docs/man"


@pytest.mark.parametrize("tool", ["sparkguard", "sparkguard-report", "sparkguard-sweep", "sparkguard-doctor"])
def test_each_option_of_a_page_is_in_the_tools_help(build, tool):
    listed = "\n".join(line for line in (PAGES / f"{tool}.1").read_text().splitlines() if line.startswith(".It "))
    options = set(re.findall(r"Fl Fl ([a-z][a-z-]*)", listed))
    known = set(re.findall(r"--([a-z][a-z-]*)", subprocess.run([build / tool, "--help"], check=True, capture_output=True, text=True).stdout))
    assert len(options) > 5 and options - known == set()
