"""The table of docs/recipes.md for vLLM: what a share of the total is worth on a Spark, by reserve, and whether it is granted."""

import re
from pathlib import Path

import pytest
from conftest import GIB

SPARK = 1217 * GIB // 10 // 4096 * 4096
HELD = 20 * GIB  # by programs of the host
RECIPES = Path(__file__).resolve().parents[3] / "docs/recipes.md"

TAKE = """
start()
free, total = info()
want = int(total * {share})
say(total=total, want=want, result=take("cuMemAlloc_v2", want)[0])
"""


def rows():
    """| settings | share | total | asked for | left | outcome |"""
    table = re.search(r"\| settings \|.*?\n\n", RECIPES.read_text(), re.DOTALL)[0].splitlines()[2:]
    return [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in table if line]


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row[0]} {row[1]}".strip())
def test_a_share_of_the_total_is_worth_what_the_recipe_says(sim, row):
    settings, share, total, asked, left, outcome = row
    variables = dict(word.split("=", 1) for word in settings.split() if "=" in word)
    done = sim.script(TAKE.format(share=share), **variables, **sim.machine(SPARK, SPARK - HELD))
    assert f"{done.total / GIB:.1f} GiB" == total
    assert f"{done.want / GIB:.1f} GiB" == asked
    assert done.result == (0 if outcome == "granted" else 2)
    if outcome == "granted":
        assert f"{(SPARK - HELD - done.want) / GIB:.1f} GiB" == left
