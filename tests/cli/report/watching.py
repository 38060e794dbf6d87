"""The live screen of sparkguard-report --watch, and processes that it shows."""

import contextlib

import pytest
from lib.units import GIB
from screen import Terminal
from segment import START_NS

QUICK = "--watch=0.1"


@pytest.fixture
def live(make, layout, report):
    """live(pid=..., gib=...) is a running process, until the end of the test; its file says how much it holds."""

    class Live:
        def __init__(self, pid, gib, peak=0, refused=0, in_registry=True, **fields):
            started = {"started_time_ns": START_NS + pid}
            self.segment = make(pid=pid, state="running", **{**started, **fields})
            self.segment.domain("device", granted=gib * GIB, peak=peak * GIB, refused=refused).peak(device=(peak or gib) * GIB)
            self.file = stack.enter_context(self.segment.write_live(report.directory, in_registry))

        def hold(self, gib):
            index = layout["domain.device"][0]
            self.segment.put("domain", index, "sg_domain_counters", "granted_bytes", int(gib * GIB))
            self.file.seek(0)
            self.file.write(self.segment.data)
            self.file.flush()

    with contextlib.ExitStack() as stack:
        yield Live


@pytest.fixture
def watch(report):
    def begin(*arguments, rows=24, columns=80, program=None, **extra):
        command = [*(program or [report.program]), *arguments]
        return Terminal(command, report.environment(**{"TERM": "xterm", **extra}), rows, columns)

    return begin
