"""%%memory for IPython and Jupyter: `%load_ext sparkguard`, then `%%memory [NAME]` as the first line of a cell.

The cell runs as it would without that line: its last expression is its result, its exception is the cell's. After it, one
line says what the process holds, the peak while the cell ran and how many requests were refused, and a line says each
refused request. In the report the cell is a phase, called NAME or "cell N". Without the guard one line says so.
Cells that use await at their top level cannot have it.
"""

from __future__ import annotations

import ast
import datetime
from typing import Any

from ._guard import active
from ._phases import Phase
from ._refusals import refusals, size_text

_SHOWN = 5  # refusals


def load(ipython: Any) -> None:
    """Adds %%memory to an IPython shell."""

    def memory(line: str, cell: str) -> object:
        return _run(ipython, line.strip() or f"cell {ipython.execution_count}", cell)

    memory.__doc__ = __doc__
    ipython.register_magic_function(memory, magic_kind="cell", magic_name="memory")


def _run(ipython: Any, name: str, cell: str) -> object:
    """Runs a cell as a phase. Returns the value of its last expression, for IPython to show."""
    tree = ipython.transform_ast(ipython.compile.ast_parse(ipython.transform_cell(cell)))
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) and not cell.rstrip().endswith(";") else None
    file = ipython.compile.cache(cell, ipython.execution_count)
    start = datetime.datetime.now()
    with _Shown(name, start):
        exec(ipython.compile(tree, file, "exec"), ipython.user_ns)
        if last is None:
            return None
        return eval(ipython.compile(ast.Expression(last.value), file, "eval"), ipython.user_ns)


class _Shown(Phase):
    """A phase whose end prints its figures."""

    def __init__(self, name: str, start: datetime.datetime) -> None:
        super().__init__(name)
        self._start = start

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        if not active() or self.live_bytes is None or self.peak_bytes is None:
            print("memory: not under sparkguard")
            return
        live, peak = size_text(self.live_bytes), size_text(self.peak_bytes)
        print(f"memory: live {live}, peak {peak}, {self.refused_count or 'none'} refused")
        for each in refusals(self._start)[-_SHOWN:] if self.refused_count else ():
            print(f"   {each}")
