"""Records and golden files that several modules of tests/cli share."""

import os
import pwd
from pathlib import Path

import pytest
from lib.units import GIB, MIB
from segment import CUDA, GUARDING, OBSERVE, SHARING, START_NS, WATCHED

GOLDEN = Path(__file__).resolve().parent / "golden"
SECOND = 10**9
HOSTILE = b"</bdi></title><script>alert(1)</script>&<img src=x onerror='a' \"b\"> \xff\xe2\x80\xae\x1b[31m --> ]]>"


def compare(name, text):
    path = GOLDEN / name
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


def without_user(text):
    """The records of a test belong to the user who runs it."""
    name = pwd.getpwuid(os.geteuid()).pw_name
    return text.replace(f'"user": "{name}"', '"user": "USER"').replace(f"User</th><td>{name}<", "User</th><td>USER<")


def trainer(make, **fields):
    """A process with a bit of everything: 7 GiB live of which 1 MiB is unused credit, a peak of 12 GiB."""
    segment = make(**{"slot.promised_bytes": 2 * GIB, "slot.limit_bytes": 96 * GIB, **fields})
    segment.set("slot.flags", GUARDING | SHARING | WATCHED | CUDA).set("unaccounted_bytes", 5 * GIB // 2)
    segment.domain("heap", granted=GIB + MIB, peak=2 * GIB, refused=1, refused_bytes=2 * GIB)
    segment.domain("device", granted=6 * GIB, peak=10 * GIB, allocations=12, frees=5, refused=1, refused_bytes=12 * GIB)
    segment.record(0, credit=MIB, allocations=1000, frees=400)
    segment.peak(device=10 * GIB, heap=2 * GIB)
    segment.refusal("cudaMalloc", "device", 12 * GIB, "reserve", usable=9 * GIB)
    segment.refusal("malloc", "heap", 2 * GIB, "limit", time_ns=START_NS + 62 * 10**9)
    segment.phase("epoch 1", 7 * GIB, 12 * GIB).event("watchdog: warned")
    segment.site(64 + 9, 5 * GIB, 3, 8 * GIB, "device", "libtorch_cuda.so", 0x1AB3F0, at_peak=8 * GIB, at_refusal=6 * GIB)
    segment.site(65, GIB, 20, 2 * GIB, at_peak=2 * GIB)
    segment.site(17, 900 * MIB, 1, GIB, "heap", "python3.11", 0x4FB51C, at_peak=GIB, at_refusal=900 * MIB).site(40, 0, 0, GIB, "mapped")
    return segment


def processes(data):
    return {p["pid"]: p for job in data["jobs"] for p in job["processes"]}


@pytest.fixture
def four_states(make, report):
    """A job of four processes, one in each state; the running one is an owner without end."""
    live = trainer(make, state="running", pid=4711)
    live.machine(time_ns=START_NS, reserve_bytes=10 * GIB, floor_bytes=2 * GIB, unified=1)
    live.device(0, "NVIDIA GB10", 119 * GIB, 6 * GIB)
    child = make(pid=4712, state="running", parent_pid=4711, command="python worker 1", started_time_ns=START_NS + 1)
    child.set("signal", 9).set("slot.state", 4).domain("heap", granted=3 * GIB, peak=3 * GIB).peak(heap=3 * GIB)
    child.write(report.directory)
    make(pid=4713, parent_pid=4712, command="gcc x.c", exit_code=3, started_time_ns=START_NS + 2).write(report.directory)
    make(pid=4714, parent_pid=4711, state="replaced", command="sh -c true", started_time_ns=START_NS + 3).write(
        report.directory
    )
    with live.write_live(report.directory):
        yield report


def samples(seconds=90, count=9):
    return [(int(seconds * SECOND * i / count), 50 * GIB, 10 * GIB, 2 * GIB, {"heap": GIB, "device": i * GIB}) for i in range(count)]


def family(make, report):
    """A job of four that have ended, with a time line; nothing in it depends on the clock."""
    parent = trainer(make, state="exited", pid=4711, library_version="0.1.0")
    parent.machine(time_ns=START_NS, reserve_bytes=10 * GIB, floor_bytes=2 * GIB, usable_bytes=40 * GIB, unified=1)
    parent.write(report.directory)
    parent.write_timeline(report.directory, samples())
    child = make(pid=4712, state="running", parent_pid=4711, command=HOSTILE, started_time_ns=START_NS + 1)
    child.set("signal", 9).set("slot.state", 4).domain("heap", granted=3 * GIB, peak=3 * GIB).peak(heap=3 * GIB)
    child.event("watchdog: sent SIGKILL, 1.0 GiB usable").write(report.directory)
    make(pid=4713, parent_pid=4712, command="gcc x.c", exit_code=3, started_time_ns=START_NS + 2).write(report.directory)
    flags = {"slot.flags": GUARDING | OBSERVE}
    make(pid=4714, parent_pid=4711, state="replaced", command="sh -c true", started_time_ns=START_NS + 3, **flags).write(report.directory)
