"""tests/trust/run: several of them write one table."""

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
loader = SourceFileLoader("run", sys.argv[1])
run = module_from_spec(spec_from_loader("run", loader))
loader.exec_module(run)
run.RESULTS, number = Path(sys.argv[2]), int(sys.argv[3])
sys.stdin.readline()
for i in range(20):
    outcome = run.Outcome()
    outcome.cases = i
    run.write(run.PARTS[number], run.row(run.PARTS[number], outcome, number))
"""


def test_runs_at_once_keep_each_others_rows(tmp_path):
    table, count = tmp_path / "table", 6
    command = [sys.executable, "-B", "-c", PROGRAM, Path(__file__).with_name("run"), table]
    runs = [subprocess.Popen([*map(str, command), str(i)], stdin=subprocess.PIPE) for i in range(count)]
    for run in runs:
        run.stdin.close()
    assert [run.wait() for run in runs] == [0] * count
    rows = [line.split(" | ") for line in table.read_text().splitlines() if line[2:3].isdigit()]
    assert sorted(cells[3] for cells in rows if cells[2] == "19") == [f"{i} s" for i in range(count)]
    assert sum(cells[4] == "not run" for cells in rows) == len(rows) - count > 0
