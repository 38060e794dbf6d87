"""Parses the output of test programs."""

from types import SimpleNamespace


def values(text):
    """The "key value" lines of a program; numbers as numbers."""
    pairs = (line.split(maxsplit=1) for line in text.splitlines() if " " in line)
    return SimpleNamespace(**{key: int(value) if value.lstrip("-").isdigit() else value for key, value in pairs})
