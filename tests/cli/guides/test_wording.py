"""The words that people read: one word for one thing. "Room" is what may still be taken; keys of JSON and CSV keep their names."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
OLD = {
    "iB left (": "of room (limit)",
    "iB left of the ": "of room in the ... this job may hold",
    "could be had": "the room is",
    "may be taken now": "room ... now",
    "a good one": "for example",
    "no such word": "unknown value; use one of",
    "made up": "generated",
    "not a name of": "what a name consists of",
    "nobody can ask this job": "this job has no give-back callback",
    "in the place of": "instead of",
    "there can never be": "more than this machine has",
    "of what was usable": "at its tightest ... of room were left",
}


def texts():
    """Names and texts: documents whole, of the sources what stands in quotes."""
    for path in sorted({ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("docs/man/*.[1-8]*")}):
        yield path, re.sub(r"\s+", " ", path.read_text())
    for path in sorted({*ROOT.glob("tools/**/*.c"), *ROOT.glob("preload/**/*.c"), *ROOT.glob("include/*.def")}):
        yield path, " ".join(re.findall(r'"((?:[^"\\\n]|\\.)*)"', path.read_text()))


@pytest.mark.parametrize("old", OLD)
def test_no_message_and_no_manual_has_a_word_that_readers_stumbled_over(old):
    found = [str(path.relative_to(ROOT)) for path, text in texts() if old in text]
    assert not found, f'say "{OLD[old]}"'


def test_the_manual_and_the_tables_say_room():
    assert [str(path.relative_to(ROOT)) for path, text in texts() if re.search(r"\bHEADROOM\b|\.It Em headroom", text)] == []
