"""docs/testing.md: each example of a test is what stands in the file that it names."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
TEXT = (ROOT / "docs/testing.md").read_text()
KINDS = ["Unit", "Preload", "Simulator", "Storm", "Tools", "Fuzz", "Model", "Budget"]
EXAMPLES = re.findall(r"^\*\*(\w+)\*\*:[^`]*(?:`[^`]+`[^`]*)*\n\n```\w+\n(?://|#) (\S+)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def test_each_kind_has_an_example():
    assert [kind for kind, _, _ in EXAMPLES] == KINDS


@pytest.mark.parametrize("kind, name, example", EXAMPLES, ids=KINDS)
def test_example_stands_in_its_file(kind, name, example):
    assert len(example.splitlines()) <= 10
    assert example in (ROOT / name).read_text()
