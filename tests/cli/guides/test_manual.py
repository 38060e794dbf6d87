"""The manual pages: beside the tools, each names no option that its tool does not have; by themselves, head, foot and warnings."""

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


ALL = sorted(path.name.removesuffix(".in") for path in PAGES.glob("*.[1-8]*"))


def formatted(build, page, *options):
    return subprocess.run(["groff", "-mdoc", "-ww", *options, build / "man" / page], capture_output=True, text=True, check=True)


@pytest.mark.parametrize("page", ALL)
def test_a_page_is_one_of_the_manual_of_sparkguard(build, page):
    """groff's own heading says "BSD General Commands Manual"."""
    head, *_, foot = formatted(build, page, "-Tascii", "-P-cbou").stdout.strip().splitlines()
    assert head.split() == [head.split()[0], "sparkguard", "manual", head.split()[0]]
    assert foot.startswith("sparkguard ") and "BSD" not in foot


@pytest.mark.parametrize("device", ["ps", "utf8"])
@pytest.mark.parametrize("page", ALL)
def test_groff_has_no_warning_about_a_page(build, page, device):
    assert formatted(build, page, f"-T{device}", "-z").stderr == ""
