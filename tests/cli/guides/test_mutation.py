"""The small mistakes that `make mutate` makes: each kind, and what it leaves alone."""

import pytest

from mutation import mutants
from mutation.coverage import Coverage

EACH = [
    ("if (a < b)", {("relation", "if (a <= b)"), ("condition", "if (!(a < b))")}),
    ("x = a && b;", {("logic", "x = a || b;"), ("statement", ";")}),
    ("return a + b;", {("arithmetic", "return a - b;")}),
    ("count++;", {("step", "count--;"), ("statement", ";")}),
    ("total += size;", {("step", "total -= size;"), ("statement", ";")}),
    ("return true;", {("truth", "return false;")}),
    ("return !found;", {("negation", "return found;")}),
    ("limit = 7u;", {("number", "limit = 8u;"), ("statement", ";")}),
    ("pages = 1;", {("number", "pages = 2;"), ("number", "pages = 0;"), ("statement", ";")}),
    ("(void)close(fd);", {("statement", ";")}),
    ("break;", {("statement", ";")}),
]
NONE = [
    "/* a < b && true */",
    'return say("a < b && 1");',
    "char c;",
    "entry->next;",
    "#define MOST 1",
    "return a << b;",
]


def changes(line):
    return {(kind, after.strip()) for _, kind, after in mutants.sites(f"int f(void)\n{{\n    {line}\n}}\n")}


@pytest.mark.parametrize("line, expected", EACH)
def test_a_mistake_of_each_kind_is_made(line, expected):
    assert changes(line) == expected


@pytest.mark.parametrize("line", NONE)
def test_what_is_no_code_stays_as_it_is(line):
    assert changes(line) == set()


def test_code_outside_of_functions_stays_as_it_is():
    assert not list(mutants.sites("static int count = 1;\n#define A \\\n    (b < c)\n/* one\n   a < b\n*/\n"))


def test_a_line_belongs_to_the_block_that_begins_above_it():
    coverage = Coverage()
    coverage.lines = {"a.c": {10: {1}, 14: {2, 3}, 20: set()}}
    assert [coverage.reaching("a.c", line) for line in (9, 10, 13, 14, 19, 25)] == [set(), {1}, {1}, {2, 3}, {2, 3}, set()]
    assert coverage.reaching("b.c", 10) == set()
