"""A pytest plugin that gives each test a folder for what it reaches: `-p mutation.reach`, with tests in PYTHONPATH and MUTATE_TRACE the folder of
these.

tests/mutation/trace.c writes into it. The file `test` there names the test, and has its seconds and what became of it.
"""

import json
import os
import time
from pathlib import Path

import pytest

ALL = Path(os.environ["MUTATE_TRACE"])
outcomes = {}


def pytest_runtest_logreport(report):
    if report.failed or report.skipped or report.when == "call":
        outcomes.setdefault(report.nodeid, report.outcome)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item):
    folder = ALL / f"{os.getpid()}-{len(outcomes)}-{time.monotonic_ns()}"
    folder.mkdir()
    folder.chmod(0o777)
    os.environ["MUTATE_TRACE"] = str(folder)
    begin = time.monotonic()
    yield
    told = {"name": item.nodeid, "seconds": time.monotonic() - begin, "outcome": outcomes.get(item.nodeid, "failed")}
    (folder / "test").write_text(json.dumps(told))
