"""sparkguard-report --plot --job: a job as a stack of its processes, on one axis, and never zero where nothing is known."""

import re
import xml.etree.ElementTree as ElementTree

import pytest
from lib.drawing import SECOND, SVG, draw, is_apart, words
from lib.units import GIB, MIB
from records import compare
from segment import GUARDING, OBSERVE, START_NS

HOSTILE = b"</text><script>alert(1)</script>&\"' \xff\xe2\x80\xae\x1b[31m"
LEFT, RIGHT = 84, 916


def line(seconds, *levels, first=0.0, usable=60, domain="heap"):
    """Samples at an equal distance, a level in GiB for each."""
    return [(int((first + seconds * i / len(levels)) * SECOND), int((usable - level) * GIB), 10 * GIB, 2 * GIB, {domain: int(level * GIB)})
            for i, level in enumerate(levels)]


def put(make, directory, samples=None, begin=0, end=90, peak=0.0, **fields):
    """A process of job "train" that lived from `begin` to `end`, seconds after START_NS."""
    times = {"started_time_ns": START_NS + int(begin * SECOND), "ended_time_ns": START_NS + int(end * SECOND)}
    segment = make(**{**times, **fields})
    highest = max([sample[4].get("heap", 0) for sample in samples or []] + [int(peak * GIB)])
    segment.domain("heap", peak=highest).peak(time_ns=START_NS + int(end * SECOND), heap=highest)
    segment.write(directory)
    if samples is not None:
        segment.write_timeline(directory, samples)
    return segment


def family(make, directory):
    """A trainer with a limit and two workers: one begins later and ends earlier, one has no time line."""
    limit = {"slot.limit_bytes": 12 * GIB}
    trainer = put(make, directory, line(90, *[1 + i // 15 for i in range(90)]), pid=4711, command="python train.py <&>", **limit)
    for number, at in enumerate((3, 30, 60), 1):
        trainer.phase(f"epoch {number} <&>", GIB, 2 * GIB, time_ns=START_NS + at * SECOND)
    trainer.refusal("malloc", "heap", 9 * GIB, "limit", usable=GIB, time_ns=START_NS + 61 * SECOND)
    trainer.domain("heap", peak=6 * GIB, refused=1).write(directory)
    put(make, directory, line(30, *[2, 3] * 15, first=30), begin=30, end=60, pid=4712, parent_pid=4711, command="worker")
    put(make, directory, None, begin=40, end=45, peak=0.25, pid=4713, parent_pid=4711, command="cc x.c")


def fills(root, kind):
    """The areas of a fill in the stack, each as its d."""
    return [p.get("d") for p in root.iter(SVG + "path") if p.get("fill") == f"url(#{kind})"]


def across(area):
    """The left and the right end of an area."""
    xs = [float(x) for x in re.findall(r"[MH]([\d.]+)", area)]
    return min(xs), max(xs)


def at(second, seconds=90):
    return LEFT + (RIGHT - LEFT) * second / seconds


def test_the_drawing_is_golden(make, report, tmp_path):
    family(make, report.directory)
    draw(report, tmp_path / "plot.svg", "--job", "train")
    compare("plot_job.svg", (tmp_path / "plot.svg").read_text())


def test_each_process_is_a_band_with_its_name_and_its_life(make, report, tmp_path):
    family(make, report.directory)
    root = draw(report, tmp_path / "plot.svg", "--job=train")
    shown = words(root)
    assert shown[0] == "Job train"
    assert shown[1] == "3 processes, 1 min 30 s; peak 6.0 GiB of the 12.0 GiB limit; 1 request refused"
    assert "4711 python train.py <&>, peak 6.0 GiB, exited with status 0" in shown
    assert "4712 worker, peak 3.0 GiB, exited with status 0" in shown
    assert "4713 cc x.c, peak 256.0 MiB, exited with status 0; no time line" in shown
    (first,), (second,) = fills(root, "band-0"), fills(root, "band-1")
    assert across(first) == (LEFT, RIGHT)
    begin, end = across(second)
    assert abs(begin - at(30)) <= 2 and abs(end - at(60)) <= 4  # a column is 2 px wide


def test_a_band_stands_upon_the_one_below(make, report, tmp_path):
    put(make, report.directory, line(90, *[4] * 90), pid=1)
    put(make, report.directory, line(90, *[2] * 90), pid=2)
    root = draw(report, tmp_path / "plot.svg", "--job", "train")
    (low,), (high,) = fills(root, "band-0"), fills(root, "band-1")
    ys = [sorted({float(y) for y in re.findall(r"V([\d.]+)", area)} | {float(re.match(r"M[\d.]+ ([\d.]+)", area)[1])}) for area in (low, high)]
    assert len(ys[0]) == len(ys[1]) == 2
    assert ys[1][1] == ys[0][0]  # the foot of the second is the head of the first
    assert abs((ys[0][1] - ys[0][0]) - 2 * (ys[1][1] - ys[1][0])) < 0.2


def test_the_limit_the_reserve_refusals_and_phases_are_in_it(make, report, tmp_path):
    family(make, report.directory)
    root = draw(report, tmp_path / "plot.svg", "--job", "train")
    shown = words(root)
    for text in ("limit 12.0 GiB", "reserve 10.0 GiB", "floor 2.0 GiB", "Memory of the machine", "malloc 9.0 GiB, limit", "epoch 1 <&>", "epoch 3 <&>"):
        assert text in shown, text
    (level,) = [p for p in root.iter(SVG + "path") if p.get("stroke-dasharray") == "12 3"]
    assert across(level.get("d")) == (LEFT, RIGHT)
    marks = [p for p in root.iter(SVG + "path") if p.get("fill") == "#b00"]
    assert len(marks) == 2  # above the stack, and on the row of the process
    assert all(abs(float(m.get("d")[1:].split()[0]) - at(61)) < 0.1 for m in marks)
    titles = [title.text for title in root.iter(SVG + "title")]
    assert "malloc of 9.0 GiB refused at 2026-11-20 13:07:41: limit" in titles


def test_a_limit_far_above_is_named_and_does_not_flatten_the_bands(make, report, tmp_path):
    put(make, report.directory, line(90, *[1] * 90), **{"slot.limit_bytes": 100 * GIB})
    root = draw(report, tmp_path / "plot.svg", "--job", "train")
    assert "limit 100.0 GiB, above this scale" in words(root) and "512 MiB" in words(root)
    assert not [p for p in root.iter(SVG + "path") if p.get("stroke-dasharray") == "12 3"]


def test_a_gap_is_not_recorded_and_never_zero(make, report, tmp_path):
    """Nothing is known from the 30th to the 60th second: the band goes on, hatched, with the last known height."""
    samples = [s for s in line(90, *[4] * 90) if not 30 * SECOND < s[0] < 60 * SECOND]
    put(make, report.directory, samples)
    root = draw(report, tmp_path / "plot.svg", "--job", "train")
    (gap,) = fills(root, "gap")
    begin, end = across(gap)
    assert abs(begin - at(30)) <= 4 and abs(end - at(60)) <= 4
    solid = fills(root, "band-0")
    assert len(solid) == 2
    heights = {float(re.match(r"M[\d.]+ ([\d.]+)", area)[1]) for area in [gap, *solid]}
    assert len(heights) == 1, "neither zero nor another figure"
    assert "not recorded" in words(root)
    (machine,) = [p.get("d") for p in root.iter(SVG + "path") if p.get("stroke") == "#000" and "h22" not in p.get("d")]
    assert machine.count("M") == 2, "the machine's line has the gap too"


def test_the_time_before_the_first_sample_is_not_recorded(make, report, tmp_path):
    put(make, report.directory, line(45, *[2] * 45, first=45))
    root = draw(report, tmp_path / "plot.svg", "--job", "train")
    (gap,) = fills(root, "gap")
    assert across(gap)[0] == LEFT and abs(across(gap)[1] - at(45)) <= 4


def test_a_slow_pace_is_no_gap(make, report, tmp_path):
    put(make, report.directory, line(90, 1, 2, 3, 4, 5, 4, 3, 2, 1))
    root = draw(report, tmp_path / "plot.svg", "--job", "train")
    # The peak that the record adds does not make the pace faster.
    assert len(fills(root, "band-0")) == 1 and fills(root, "gap") == []


def test_many_processes_are_few_bands(make, report, tmp_path):
    for i in range(40):
        put(make, report.directory, line(90, *[(40 - i) / 10] * 30), pid=100 + i, command=f"worker {i}")
    for i in range(7):
        put(make, report.directory, None, peak=0.01, pid=200 + i)
    shown = words(draw(report, tmp_path / "plot.svg", "--job", "train"))
    assert [text.split()[0] for text in shown if "worker" in text] == [str(100 + i) for i in range(8)]
    assert "32 other processes, peaks up to 3.2 GiB" in shown
    assert "7 without a time line, by their peaks, up to 10.2 MiB" in shown


@pytest.mark.usefixtures("in_memory")
def test_ten_thousand_processes_are_bounded(make, report, tmp_path):
    segment = make(command="cc").peak(heap=MIB)
    for i in range(10000):
        segment.set("slot.pid", 10 + i).set("slot.start_ticks", i).set("started_time_ns", START_NS + i * 9 * SECOND // 1000)
        segment.name = f"{10 + i}-{i:016x}.segment"
        segment.write(report.directory)
    put(make, report.directory, line(90, *[1] * 90), pid=4, command="make")
    shown = words(draw(report, tmp_path / "plot.svg", "--job", "train"))
    assert "10000 without a time line, by their peaks, up to 1.0 MiB" in shown
    assert (tmp_path / "plot.svg").stat().st_size < 256 << 10


def test_what_a_child_inherited_counts_once(make, report, tmp_path):
    """While the parent lives, the band of its forked child is what the child added; after its end the child has it all."""
    put(make, report.directory, line(45, *[4] * 45), end=45, pid=1, command="parent")
    put(make, report.directory, line(90, *[5] * 90), pid=2, parent_pid=1, command="child", **{"slot.inherited_bytes": 4 * GIB})
    root = draw(report, tmp_path / "plot.svg", "--job", "train")
    (child,) = fills(root, "band-1")
    tops = [float(re.match(r"M[\d.]+ ([\d.]+)", child)[1]), *map(float, re.findall(r"V([\d.]+)", child))]
    (parent,) = fills(root, "band-0")
    bottom, top = max(map(float, re.findall(r"V([\d.]+)", parent))), float(re.match(r"M[\d.]+ ([\d.]+)", parent)[1])
    gib = (bottom - top) / 4
    assert abs(min(tops) - (bottom - 5 * gib)) < 0.2, "never more than 5 GiB together"


DAY = 86400


def test_runs_of_several_boots_share_an_axis_that_is_cut(make, report, tmp_path):
    """Copies in the history, of a boot of which this machine knows nothing any more."""
    report.history.mkdir()
    boot = {"boot_id": 7, "saved_time_ns": START_NS - 2 * DAY * SECOND}
    before = line(60, *[3] * 60, first=-3 * DAY)
    put(make, report.history, before, begin=-3 * DAY, end=-3 * DAY + 60, pid=1, command="before", state="exited", **boot)
    put(make, report.directory, line(30, *[2] * 30), end=30, pid=2, command="today")
    root = draw(report, tmp_path / "plot.svg", "--job", "train")
    shown = words(root)
    assert "nothing ran for 2 d 23 h" in shown and "time since 2026-11-17 13:06:40" in shown
    assert "2 processes in 2 runs, 3 d 0 h; peak 3.0 GiB; 0 requests refused" in shown
    (first,), (second,) = fills(root, "band-0"), fills(root, "band-1")
    assert across(first)[0] == LEFT and across(second)[1] == RIGHT
    assert across(second)[0] - across(first)[1] == 24  # the cut
    long, short = across(first)[1] - LEFT, RIGHT - across(second)[0]
    assert 1.4 < long / short < 2.1


@pytest.mark.usefixtures("in_memory")
def test_of_very_many_runs_the_last_are_drawn(make, report, tmp_path):
    for i in range(40):
        put(make, report.directory, line(30, *[1] * 30, first=i * DAY), begin=i * DAY, end=i * DAY + 30, pid=1 + i)
    root = draw(report, tmp_path / "plot.svg", "--job", "train")
    assert "34 earlier runs are not drawn" in words(root)
    assert len([text for text in words(root) if text == "nothing ran for 23 h 59 min"]) == 5


def test_a_clock_set_back_does_no_harm(make, report, tmp_path):
    put(make, report.directory, line(30, *[1] * 30), begin=3600, end=-3600)
    draw(report, tmp_path / "plot.svg", "--job", "train")


def test_one_sample_is_drawn(make, report, tmp_path):
    put(make, report.directory, line(1, 1, first=5), begin=5, end=5)
    root = draw(report, tmp_path / "plot.svg", "--job", "train")
    assert fills(root, "band-0")


@pytest.mark.parametrize("field", ["command", "job"])
def test_hostile_names_break_out_of_nothing(make, report, tmp_path, field):
    segment = put(make, report.directory, line(90, *[1] * 90), **{field: HOSTILE})
    segment.phase(HOSTILE, 1, 2).refusal(HOSTILE[:40], "heap", GIB, "limit").write(report.directory)
    root = draw(report, tmp_path / "plot.svg", "--last")
    assert "\x1b" not in (tmp_path / "plot.svg").read_text() and not list(root.iter(SVG + "script"))
    assert any("<script>" in text for text in words(root))


@pytest.mark.parametrize("processes, refusals", [(1, 0), (3, 2), (12, 64)])
def test_texts_never_overlap_and_stay_inside(make, report, tmp_path, processes, refusals):
    for p in range(processes):
        segment = put(make, report.directory, line(90, *[1 + p] * 90), pid=1 + p, command="x" * 255, job="j" * 63, **{"slot.limit_bytes": 64 * GIB})
        for i in range(refusals):
            segment.refusal("cudaMallocFromPoolAsync", "device", GIB, "reserve", time_ns=START_NS + (i * i + p) * SECOND // 50)
            segment.phase(f"a phase of a long name {i}", GIB, GIB, time_ns=START_NS + i * i * SECOND // 50)
        segment.write(report.directory)
    texts = list(draw(report, tmp_path / "plot.svg", "--last").iter(SVG + "text"))
    for i, text in enumerate(texts):
        assert 0 <= float(text.get("x")) <= 960
        assert all(is_apart(text, other) for other in texts[:i]), text.text


def test_observed_refusals_are_none(make, report, tmp_path):
    segment = put(make, report.directory, line(90, *[1] * 90), **{"slot.flags": GUARDING | OBSERVE})
    segment.refusal("malloc", "heap", GIB, "limit").domain("heap", peak=GIB, refused=1).write(report.directory)
    shown = words(draw(report, tmp_path / "plot.svg", "--job", "train"))
    assert shown[1].endswith("1 request would be refused") and "observed" in shown


def test_a_picture_for_who_cannot_see_it(make, report, tmp_path):
    family(make, report.directory)
    root = draw(report, tmp_path / "plot.svg", "--job", "train")
    assert root.get("role") == "img" and root[0].tag == SVG + "title" and root[1].tag == SVG + "desc"
    assert root[0].text == "Memory of job train over time" and "12.0 GiB limit" in root[1].text


def test_a_job_without_time_lines_is_said_in_one_sentence(make, report, tmp_path):
    put(make, report.directory, None, peak=1)
    assert "no process shown has a time line" in draw(report, tmp_path / "plot.svg", "--job", "train", status=1)
    assert "no job none" in draw(report, tmp_path / "plot.svg", "--job", "none", status=1)


def test_an_untrusted_time_line_is_told_and_the_others_are_drawn(make, report, tmp_path):
    family(make, report.directory)
    make(pid=4713, parent_pid=4711, command="cc x.c").write_timeline(report.directory, line(9, 1), magic=7)
    done = report.run("--plot", tmp_path / "plot.svg", "--job", "train")
    assert done.returncode == 3 and "wrong magic" in done.stderr
    assert "4711 python train.py <&>, peak 6.0 GiB, exited with status 0" in words(ElementTree.parse(tmp_path / "plot.svg").getroot())


def test_a_pid_beside_the_job_draws_that_process(make, report, tmp_path):
    family(make, report.directory)
    assert words(draw(report, tmp_path / "plot.svg", "--job=train", 4712))[0] == "worker"
