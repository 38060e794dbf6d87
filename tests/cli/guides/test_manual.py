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


def test_the_page_of_the_library_says_of_each_variable_what_it_takes(build):
    """The list is made from include/options.def."""
    text = (build / "man/libsparkguard.7").read_text()
    values = dict(re.findall(r"^\.It Ev (SPARKGUARD_\w+) Ns = Ns *(.*)$", text, re.M))
    assert len(values) >= 17 and [name for name, value in values.items() if not re.fullmatch(r"(Ar|Cm) \S.*", value)] == []


@pytest.mark.parametrize("variable, default", [("DIR", "$XDG_RUNTIME_DIR/sparkguard, else /dev/shm/sparkguard-UID"), ("HISTORY", "~/.local/state/sparkguard")])
def test_a_default_place_is_the_same_in_all_lists(build, variable, default):
    """In the tables of the guides, the page of the library and the launcher's help."""
    root = PAGES.parents[1]
    for guide in ("README.md", "docs/reference.md"):
        rows = re.findall(rf"^\| `SPARKGUARD_{variable}` \| ([^|]*) \|", (root / guide).read_text(), re.M)
        assert [row.replace("`", "") for row in rows] in ([default], [] if variable == "HISTORY" else [default])
    page = (build / "man/libsparkguard.7").read_text().split(f".It Ev SPARKGUARD_{variable} ")[1].split(".It Ev")[0]
    text = subprocess.run([build / "sparkguard", "--help"], check=True, capture_output=True, text=True).stdout
    assert f"({default})" in page and f"({default})" in " ".join(text.split())


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
