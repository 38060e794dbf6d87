"""The lists of tests that are skipped elsewhere (tests/emulate, tests/release) name tests that are there: tests/conftest.py passes over
what it does not find, so a test that got another name would run where it cannot pass."""

import re

import pytest
from lib.target import ROOT


def entries(skipped):
    """File and function of each line; its parameters are not looked at."""
    lines = (ROOT / "tests" / skipped).read_text().splitlines()
    return [re.match(r"(test_\w+\.py)::(test_\w+)(\[.*\])?  \S", line) or line for line in lines if line and line[0] != "#"]


@pytest.mark.parametrize("skipped", sorted(path.name for path in (ROOT / "tests").glob("*.skip")))
def test_each_line_of_the_list_names_a_test_and_says_why(skipped):
    found = entries(skipped)
    assert found and not [entry for entry in found if isinstance(entry, str)]
    texts = {}
    for path in (ROOT / "tests").rglob("test_*.py"):
        texts[path.name] = texts.get(path.name, "") + path.read_text()
    missing = [f"{entry[1]}::{entry[2]}" for entry in found if not re.search(rf"^def {entry[2]}\(", texts.get(entry[1], ""), re.MULTILINE)]
    assert missing == []
