"""sparkguard-report --watch: a job in depth, as a stack of its processes with the limit, refusals and phases."""

import contextlib
import re
import time

import pytest
from lib.units import GIB, MIB
from segment import START_NS
from watching import QUICK, live, watch  # noqa: F401 - fixtures

SECOND = 10**9
LIMIT = 12 * GIB


@pytest.fixture
def trained(live, report):  # noqa: F811
    """A trainer that held 4 GiB, and 8 from 60 seconds ago on, and a worker of 2 GiB; nothing is recorded between 60 and 30."""
    now = time.time_ns()

    def put(pid, levels, **fields):
        process = live(pid, levels[-1], job="train", started_time_ns=now - 100 * SECOND, **{"slot.limit_bytes": LIMIT, **fields})
        process.segment.peak(time_ns=now, device=max(levels) * GIB)
        if pid == 1:
            process.segment.phase("epoch 1", GIB, 4 * GIB, time_ns=now - 90 * SECOND)
            process.segment.phase("epoch 2", GIB, 8 * GIB, time_ns=now - 25 * SECOND)
            process.segment.refusal("malloc", "heap", 9 * GIB, "limit", usable=GIB, time_ns=now - 20 * SECOND)
        process.hold(levels[-1])
        began = now - START_NS
        samples = [
            (began - ago * SECOND, 90 * GIB, GIB, MIB, {"device": levels[ago <= 60] * GIB}) for ago in range(99, 0, -1) if not 30 < ago < 60
        ]
        process.segment.write_timeline(report.directory, samples)

    put(1, (4, 8), command="python3 train.py")
    put(2, (2, 2), command="python3 worker.py", parent_pid=1)
    return report


def chart(terminal, heading):
    """The heading, the rows of the chart from the top, and the lines below it up to the list."""
    terminal.press("\n")
    lines = terminal.shows(heading).splitlines()
    begin = next(i for i, line in enumerate(lines) if line.startswith("live, up to"))
    end = next(i for i, line in enumerate(lines) if "PID COMMAND" in line)
    return lines[begin], lines[begin + 1 : begin + 9], [line for line in lines[begin + 9 : end] if line]


def test_a_job_in_depth_is_a_stack_of_its_processes(trained, watch):  # noqa: F811
    with watch(QUICK, rows=45, columns=121, NO_COLOR="1") as terminal:
        heading, rows, below = chart(terminal, "^live, up to 10.0 GiB")
    assert re.fullmatch(r"live, up to 10\.0 GiB, limit 12\.0 GiB, over 2 min 0 s; blank: not recorded", heading)
    assert below[-1] == "█ 1 python3 train.py  ▓ 2 python3 worker.py"
    now = [[row[column] if column < len(row) else " " for row in rows] for column in (30, 100, 115)]
    # 12 GiB in 8 rows. 4 and 2 GiB; then 8 and 2 GiB: the trainer is the lower one.
    assert "".join(now[0]) in ("╌   ▓███", "╌   ▅███", "╌   ▓▓██")
    assert "".join(now[1]) == "╌▅▓█████"


def test_an_earlier_run_of_the_name_is_not_its_past(trained, make, watch):  # noqa: F811
    """It held 30 GiB until 150 seconds ago."""
    now = time.time_ns()
    earlier = make(pid=3, job="train", started_time_ns=now - 200 * SECOND, ended_time_ns=now - 150 * SECOND)
    earlier.domain("device", granted=0, peak=30 * GIB).peak(time_ns=now - 160 * SECOND, device=30 * GIB)
    earlier.write(trained.directory)
    samples = [(now - START_NS - ago * SECOND, 60 * GIB, GIB, MIB, {"device": 30 * GIB}) for ago in range(199, 150, -1)]
    earlier.write_timeline(trained.directory, samples)
    with watch(QUICK, rows=45, columns=121, NO_COLOR="1") as terminal:
        heading, rows, _below = chart(terminal, "^live, up to")
    assert heading.startswith("live, up to 10.0 GiB, limit 12.0 GiB, over 2 min 0 s")


def test_refusal_of_an_earlier_run_has_no_mark(live, make, report, watch):  # noqa: F811
    """The chart is longer than this run, so that it has the time of that refusal."""
    now = time.time_ns()
    earlier = make(pid=6, started_time_ns=now - 20 * SECOND, ended_time_ns=now - 10 * SECOND)
    earlier.refusal("malloc", "heap", 9 * GIB, "reserve", usable=GIB, time_ns=now - 15 * SECOND).write(report.directory)
    process = live(7, 4, started_time_ns=now - 5 * SECOND)
    process.segment.refusal("malloc", "heap", 9 * GIB, "limit", usable=GIB, time_ns=now - 2 * SECOND)
    process.hold(4)
    with watch(QUICK, rows=45, columns=121, NO_COLOR="1") as terminal:
        _, _, below = chart(terminal, "^live, up to")
    assert "".join(below).count("▲") == 1


def test_a_run_that_begins_meanwhile_has_no_past(make, live, report, watch):  # noqa: F811
    first = make(pid=1, state="running", job="train", started_time_ns=time.time_ns() - 20 * SECOND)
    first.domain("device", granted=8 * GIB, peak=8 * GIB).peak(device=8 * GIB)
    with contextlib.ExitStack() as life, watch(QUICK, rows=45, columns=121, NO_COLOR="1") as terminal:
        life.enter_context(first.write_live(report.directory))
        terminal.shows("job train")
        terminal.press("\n")
        terminal.shows(r"^live, up to 8\.0 GiB")
        life.close()
        live(2, 2, job="train", started_time_ns=time.time_ns())
        terminal.shows(r"^live, up to 2\.0 GiB")


def test_the_limit_is_a_line_unless_it_is_far(trained, live, watch):  # noqa: F811
    with watch(QUICK, rows=45, columns=121) as terminal:
        _, rows, _ = chart(terminal, "^live, up to 10.0 GiB")
    assert rows[0].count("╌") > 100 and not any("╌" in row for row in rows[1:])


def test_what_a_job_was_refused_and_its_phases_stand_below_their_times(trained, watch):  # noqa: F811
    with watch(QUICK, rows=45, columns=121) as terminal:
        _, rows, below = chart(terminal, "^live, up to 10.0 GiB")
    refused, phases, _ = below
    assert refused.strip() == "▲limit" and phases.split("▏")[1:] == [phases.split("▏")[1], "epoch 2"]
    assert phases.strip().startswith("▏epoch 1")
    last = len(rows[-1])
    assert abs((last - refused.index("▲")) - 20) <= 2 and abs((last - phases.index("▏epoch 2")) - 25) <= 2


def test_what_is_not_recorded_is_blank_and_not_zero(trained, watch):  # noqa: F811
    with watch(QUICK, rows=45, columns=121) as terminal:
        _, rows, _ = chart(terminal, "^live, up to 10.0 GiB")
    assert " " * 20 in rows[-1].strip() and " " * 20 in rows[-2].strip()


def test_a_job_in_depth_in_ascii(trained, watch):  # noqa: F811
    with watch(QUICK, rows=45, columns=121, LC_ALL="C") as terminal:
        _, rows, below = chart(terminal, "^live, up to 10.0 GiB")
    assert all(line.isascii() for line in [*rows, *below])
    assert below[-1] == "# 1 python3 train.py  % 2 python3 worker.py" and below[0].strip() == "^limit"
    assert "#" in rows[-1] and "%" in rows[2] and "---" in rows[0]


@pytest.mark.parametrize("rows, columns", [(24, 80), (12, 40)])
def test_a_job_in_depth_fits_a_small_terminal(trained, watch, rows, columns):  # noqa: F811
    with watch(QUICK, rows=rows, columns=columns) as terminal:
        terminal.shows("job train")
        terminal.press("\n")
        text = terminal.shows("train.py")
    assert all(len(line) <= columns for line in text.splitlines())
