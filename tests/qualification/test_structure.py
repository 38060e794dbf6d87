"""scripts/check-structure finds an assertion that something came soon, whatever the clock and the time are called, and shell in C."""

import importlib.machinery
import importlib.util
import sys

import pytest
from lib.target import ROOT

SOON = {
    "a difference": "import time\ndef test():\n    begin = time.monotonic()\n    assert time.monotonic() - begin < 2",
    "the other way round": "import time\ndef test():\n    begin = time.time()\n    assert 2 >= time.time() - begin and begin",
    "a chain": "import time\ndef test():\n    begin = time.time_ns()\n    took = time.time_ns() - begin\n    assert 0 < took <= 10**9",
    "a module's other name": "import time as clock\ndef test():\n    begin = clock.perf_counter()\n    assert clock.perf_counter() - begin < 2",
    "a function's other name": "from time import monotonic as now\ndef test():\n    begin = now()\n    assert now() < begin + 2",
    "what a function tells": "import time\ndef took(work):\n    begin = time.monotonic()\n    work()\n    return time.monotonic() - begin\n"
    "def test():\n    assert took(print) < 2",
    "one of what a function tells": "import time\ndef ask():\n    begin = time.monotonic()\n    return print(), time.monotonic() - begin\n"
    "def test():\n    answer, seconds = ask()\n    assert seconds < 2",
    "an attribute": "import time\nclass Job:\n    def __init__(self):\n        self.begin = time.monotonic()\n"
    "def test(job):\n    assert time.monotonic() - job.begin < 2",
    "the best of several": "import time\ndef test():\n    best = min(time.monotonic() - 1, 5)\n    assert best < 2",
}
NOT_SOON = {
    "so long at least": "import time\ndef test():\n    begin = time.monotonic()\n    assert time.monotonic() - begin >= 2",
    "a count": "import time\ndef ask():\n    return 3, time.monotonic()\ndef test():\n    sleeps, end = ask()\n    assert sleeps < 20 and end",
    "another function's name": "import time\ndef one():\n    left = time.monotonic()\n    return None if left else 1\ndef test(left):\n    assert left < 3",
}
SOON_IN_C = "static void test(void)\n{\n    uint64_t begin = clock_ns();\n    uint64_t took = clock_ns() - begin;\n    CHECK(took < 100);\n}\n"


@pytest.fixture
def check(monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    loader = importlib.machinery.SourceFileLoader("check_structure", str(ROOT / "scripts/check-structure"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("check_structure", loader))
    loader.exec_module(module)
    return module


@pytest.mark.parametrize("what", SOON)
def test_assertion_that_a_time_is_small_is_found(check, tmp_path, what):
    path = tmp_path / "test_it.py"
    path.write_text(SOON[what] + "\n")
    assert len(check.asserted_soon(str(path))) == 1


@pytest.mark.parametrize("what", NOT_SOON)
def test_other_assertions_beside_a_clock_are_not(check, tmp_path, what):
    path = tmp_path / "test_it.py"
    path.write_text(NOT_SOON[what] + "\n")
    assert check.asserted_soon(str(path)) == []


@pytest.mark.parametrize("text, lines", [(SOON_IN_C, [(5, 5)]), (SOON_IN_C.replace("took < 100", "took >= 100"), [])])
def test_assertion_of_a_program_is_found(check, tmp_path, text, lines):
    path = tmp_path / "test_it.c"
    path.write_text(text)
    assert check.asserted_soon(str(path)) == lines


def test_shell_in_a_string_is_found(check, tmp_path):
    path = tmp_path / "it.c"
    path.write_text('    "if [ -n \\"$x\\" ]; then\\n"\n    "    exit 1\\n"\n    "fi\\n"\n    "and then; done"\n')
    assert check.shell_lines(path) == [1, 3]
