"""sparkguard-report --plot: what it draws, what it says where there is nothing to draw, what it refuses to believe."""

import os
import re
import resource
import subprocess
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from lib.drawing import SECOND, SVG, draw, is_apart, words
from lib.units import GIB, MIB
from segment import GUARDING, OBSERVE, START_NS, UNKNOWN
from records import compare


def training(seconds=90, count=90):
    """Device memory that grows in steps and drops, host memory that swings, beside an ever fuller machine."""
    samples = []
    for i in range(count):
        at = 2 + (seconds - 2) * i / count
        device = 8 * GIB + (i // (count // 6)) * 9 * GIB if i < count * 5 // 6 else 20 * GIB
        live = {"device": device, "heap": (2 + i % 3) * GIB, "pinned": 3 * GIB, "managed": (i % 4) * GIB, "mapped": GIB}
        samples.append((int(at * SECOND), 110 * GIB - sum(live.values()), 9 * GIB + 716 * MIB, 2 * GIB + 439 * MIB, live))
    return samples


def trainer(make, **fields):
    segment = make(**{"command": "python train.py --batch 16 --name '<&\">'", **fields}).domain("device", granted=20 * GIB, peak=53 * GIB)
    segment.peak(time_ns=START_NS + 70 * SECOND, device=53 * GIB, heap=4 * GIB, pinned=3 * GIB, managed=3 * GIB, mapped=GIB)
    for number, at in enumerate((3, 20, 22, 47, 48), 1):
        segment.phase(f"epoch {number} <&>", GIB, 2 * GIB, time_ns=START_NS + at * SECOND)
    segment.refusal("cudaMalloc", "device", 40 * GIB, "reserve", usable=50 * GIB, time_ns=START_NS + 61 * SECOND)
    segment.refusal("malloc", "heap", 2 * GIB, "floor", usable=GIB, time_ns=START_NS + 88 * SECOND)
    return segment


def test_the_drawing_is_golden(make, report, tmp_path):
    segment = trainer(make)
    segment.write(report.directory)
    segment.write_timeline(report.directory, training())
    draw(report, tmp_path / "plot.svg", 4711)
    compare("plot.svg", (tmp_path / "plot.svg").read_text())


@pytest.mark.parametrize("limit, said", [(64, "limit 64.0 GiB"), (600, "limit 600.0 GiB, above this scale"), (None, None)])
def test_a_process_has_the_line_of_its_limit(make, report, tmp_path, limit, said):
    segment = trainer(make, **({"slot.limit_bytes": limit * GIB} if limit else {}))
    segment.write(report.directory)
    segment.write_timeline(report.directory, training())
    root = draw(report, tmp_path / "plot.svg", 4711)
    assert [text for text in words(root) if text.startswith("limit ")] == ([said] if said else [])
    lines = [path for path in root.iter(SVG + "path") if path.get("stroke-dasharray") == "12 3"]
    assert len(lines) == (limit == 64)


def test_it_names_what_it_draws_without_colour(make, report, tmp_path):
    segment = trainer(make)
    segment.write(report.directory)
    segment.write_timeline(report.directory, training())
    root = draw(report, tmp_path / "plot.svg")
    shown = words(root)
    for text in ("heap", "mapped", "pinned", "managed", "device", "Memory of the machine", "epoch 1 <&>", "cudaMalloc 40.0 GiB, reserve",
                 "floor", "reserve 9.7 GiB", "floor 2.4 GiB", "64 GiB", "1 min 30 s", "phase", "refused"):
        assert text in shown, text
    assert "epoch 2 <&>" not in shown, "no room for it"
    assert "<&\">" in shown[0]
    patterns = [re.sub("#[0-9a-f]+", "", ElementTree.tostring(p, "unicode").partition(">")[2]) for p in root.iter(SVG + "pattern")]
    assert len(set(patterns)) == 5
    dashes = [p.get("stroke-dasharray") for p in root.iter(SVG + "path") if p.get("fill") == "none" and "h22" not in p.get("d")]
    assert len(set(dashes)) == 3


@pytest.mark.parametrize("phases, refusals", [(0, 0), (5, 2), (64, 64), (70, 99)])
def test_texts_never_overlap_and_stay_inside(make, report, tmp_path, phases, refusals):
    segment = make(command="x" * 255, job="j" * 63)
    for i in range(phases):
        segment.phase(f"a phase of a long name {i}", GIB, 2 * GIB, time_ns=START_NS + i * i * SECOND // 50)
    for i in range(refusals):
        segment.refusal("cudaMallocFromPoolAsync", "device", GIB, "reserve", time_ns=START_NS + i * i * SECOND // 50)
    segment.peak(device=64 * GIB * 16 // 17 + 16).write(report.directory)  # the scale ends with one of its numbers
    segment.write_timeline(report.directory, training())
    texts = list(draw(report, tmp_path / "plot.svg").iter(SVG + "text"))
    for i, text in enumerate(texts):
        assert 0 <= float(text.get("x")) <= 960
        assert all(is_apart(text, other) for other in texts[:i]), text.text


def test_the_reason_alone_stands_where_the_words_have_no_room(make, report, tmp_path):
    """Refusals three seconds apart: 28 units, room for "limit" and not for what was asked."""
    segment = make()
    for i, reason in enumerate(("limit", "floor", "device", "reserve")):
        segment.refusal("cudaMalloc", "device", GIB, reason, time_ns=START_NS + (10 + 6 * i) * SECOND)
    segment.write(report.directory)
    segment.write_timeline(report.directory, training())
    shown = words(draw(report, tmp_path / "plot.svg"))
    assert {"limit", "floor", "device", "cudaMalloc 1.0 GiB, reserve"} <= set(shown)


CARD = "NVIDIA RTX PRO 6000 Blackwell"


@pytest.mark.parametrize("cards", [1, 2])
def test_a_device_of_its_own_has_a_field_of_its_own(make, report, tmp_path, cards):
    """What the process holds there, all there is, and what of it requests may reach."""
    segment = trainer(make).machine(time_ns=1, unified=0)
    for i in range(cards):
        segment.device(i, CARD, 96 * GIB, 20 * GIB, reserve_mib=1967)
    segment.write(report.directory)
    segment.write_timeline(report.directory, training())
    root = draw(report, tmp_path / "plot.svg")
    shown = words(root)
    title, total, most = (CARD, "96.0", "94.1") if cards == 1 else ("2 devices, together", "192.0", "188.2")
    for text in (title, "this process, in the end 20.0 GiB", f"total {total} GiB", f"less reserve {most} GiB"):
        assert text in shown, (text, shown)
    level = [p for p in root.iter(SVG + "path") if p.get("stroke-dasharray") in ("8 3", "12 2 2 2") and "h22" not in p.get("d")]
    assert len({p.get("d") for p in level}) == 3  # of the machine its reserve, of the device both
    texts = list(root.iter(SVG + "text"))
    assert all(is_apart(text, other) for i, text in enumerate(texts) for other in texts[:i])
    if cards == 1:
        compare("plot_device.svg", (tmp_path / "plot.svg").read_text())


def test_a_unified_device_has_none(make, report, tmp_path):
    segment = trainer(make).machine(time_ns=1, unified=1).device(0, "NVIDIA GB10", 119 * GIB, 20 * GIB)
    segment.write(report.directory)
    segment.write_timeline(report.directory, training())
    assert "NVIDIA GB10" not in words(draw(report, tmp_path / "plot.svg"))


@pytest.mark.parametrize("seconds, last", [(0.004, "4 ms"), (1.5, "1.4 s"), (50, "50 s"), (600, "10 min"), (5400, "1 h 30 min"),
                                           (86400 * 31, "28 d")])
def test_times_have_units_that_fit(make, report, tmp_path, seconds, last):
    samples = [(int(seconds * SECOND * i / 10), 9 * GIB, GIB, MIB, {"heap": GIB}) for i in range(10)]
    segment = make(ended_time_ns=START_NS + int(seconds * SECOND)).write(report.directory)
    make().write_timeline(report.directory, samples)
    shown = words(draw(report, tmp_path / "plot.svg"))
    assert last in shown and segment.exists()
    assert 4 <= len([text for text in shown if re.fullmatch(r"0|[\d.]+ (ms|s|min|h|d)( \d+ (s|min|h))?", text)]) <= 22


def test_the_largest_of_those_shown_is_drawn(make, report, tmp_path):
    for pid, size in ((1, GIB), (2, 9 * GIB), (3, 2 * GIB)):
        segment = make(pid=pid, command=f"worker {pid}").peak(heap=size)
        segment.write(report.directory)
        segment.write_timeline(report.directory, training())
    make(pid=4).peak(heap=99 * GIB).write(report.directory)  # without a time line
    done = report.run("--plot", tmp_path / "plot.svg")
    assert done.returncode == 0 and "drew process 2, which held most of 3" in done.stderr
    assert words(draw(report, tmp_path / "plot.svg", 3))[0] == "worker 3"


def test_unknown_figures_are_gaps(make, report, tmp_path):
    samples = [(i * SECOND, UNKNOWN if i == 5 else GIB, UNKNOWN, UNKNOWN, {"heap": MIB}) for i in range(10)]
    segment = make()
    segment.write(report.directory)
    segment.write_timeline(report.directory, samples)
    root = draw(report, tmp_path / "plot.svg")
    assert {"usable, in the end 1.0 GiB", "reserve"} < set(words(root))
    (usable,) = [p for p in root.iter(SVG + "path") if p.get("stroke") == "#000" and "h22" not in p.get("d")]
    assert usable.get("d").count("M") == 2


def test_a_sample_that_was_being_written_is_left_out(make, report, tmp_path):
    """Whoever is killed while writing one leaves it with the time 0."""
    samples = [(i * SECOND, 9 * GIB, GIB, MIB, {"heap": GIB}) for i in range(10)]
    segment = make()
    segment.write(report.directory)
    segment.write_timeline(report.directory, [*samples[:5], (-START_NS, GIB, GIB, GIB, {"heap": 99 * GIB}), *samples[5:]])
    draw(report, tmp_path / "plot.svg")
    whole = (tmp_path / "plot.svg").read_text()
    segment.write_timeline(report.directory, samples)
    draw(report, tmp_path / "plot.svg")
    assert (tmp_path / "plot.svg").read_text() == whole


def test_a_single_sample_is_drawn(make, report, tmp_path):
    segment = make(state="running", started_time_ns=int(time.time()) * SECOND)
    segment.write_timeline(report.directory, [(int(time.time()) * SECOND - START_NS, GIB, MIB, MIB, {})])
    with segment.write_live(report.directory):
        draw(report, tmp_path / "plot.svg", 4711)


def test_a_process_of_the_history_has_no_time_line_and_hides_none(make, report, tmp_path):
    path = tmp_path / "plot.svg"
    report.history.mkdir()
    make(pid=1, command="of the past").peak(heap=99 * GIB).write(report.history)
    assert "process 1 has no time line" in draw(report, path, 1, status=1)
    assert "no process shown has a time line" in draw(report, path, status=1)
    segment = make(pid=2, command="of today").peak(heap=GIB)
    segment.write(report.directory)
    segment.write_timeline(report.directory, training())
    assert "process 1 has no time line" in draw(report, path, 1, status=1)
    assert words(draw(report, path, "--all"))[0] == "of today"


def test_the_history_has_time_lines_of_its_own(make, report, tmp_path):
    report.history.mkdir()
    for directory, pid, command in ((report.history, 1, "of the past"), (report.directory, 2, "of today")):
        segment = make(pid=pid, command=command).peak(heap=GIB)
        segment.write(directory)
        segment.write_timeline(directory, training())
    for pid, command in ((1, "of the past"), (2, "of today")):
        assert words(draw(report, tmp_path / "plot.svg", pid))[0] == command


def test_a_copy_ends_with_its_last_sample(make, report, tmp_path):
    segment = make()
    segment.write(report.directory)
    path = segment.write_timeline(report.directory, training())
    path.write_bytes(path.read_bytes()[: 64 + 96 * 90])
    assert "device" in words(draw(report, tmp_path / "plot.svg"))


def area(root, domain):
    """(x, y) of the upper edge of a domain's area, a point for each step."""
    (path,) = [p for p in root.iter(SVG + "path") if p.get("fill") == f"url(#{domain})"]
    steps = re.findall(r"([ML])([\d.]+) ([\d.]+)H([\d.]+)", path.get("d"))
    half = len(steps) // 2
    return [(float(x), float(y)) for _, x, y, _ in steps[:half]] + [(float(steps[half - 1][3]), float(steps[half - 1][2]))]


def test_what_was_taken_after_the_last_sample_is_drawn(make, report, tmp_path):
    """A sample is taken before the grant: the last one would be missing."""
    segment = make().domain("heap", granted=2 * GIB, peak=3 * GIB).peak(time_ns=START_NS + 45 * SECOND, heap=3 * GIB)
    segment.write(report.directory)
    segment.write_timeline(report.directory, [(0, 90 * GIB, GIB, MIB, {"heap": GIB})])
    root = draw(report, tmp_path / "plot.svg")
    (circle, _) = root.iter(SVG + "circle")
    (begin, low), (middle, high), (end, _), (right, last) = area(root, "heap")
    assert (begin, end, right) == (84, 916, 916) and middle == float(circle.get("cx")) == 500
    assert high == float(circle.get("cy")) < last < low
    assert "usable, in the end 90.0 GiB" in words(root)


def test_a_peak_before_the_first_sample_is_drawn_without_figures_of_the_machine(make, report, tmp_path):
    segment = make().domain("heap", granted=GIB, peak=3 * GIB).peak(time_ns=START_NS + 9 * SECOND, heap=3 * GIB)
    segment.write(report.directory)
    segment.write_timeline(report.directory, [(45 * SECOND, 90 * GIB, GIB, MIB, {"heap": GIB})])
    root = draw(report, tmp_path / "plot.svg")
    assert [x for x, _ in area(root, "heap")] == [167.2, 500, 916, 916]
    (usable,) = [p for p in root.iter(SVG + "path") if p.get("stroke") == "#000" and "h22" not in p.get("d")]
    assert usable.get("d").startswith("M500.0 ")


def stepwise(make, directory, count, apart, **fields):
    """As many phases and refusals, so many seconds apart."""
    segment = make(**fields)
    for i in range(count):
        segment.phase(f"step {i} <&>", GIB, 2 * GIB, time_ns=START_NS + int(i * apart * SECOND))
        segment.refusal("cudaMalloc", "device", 3 * GIB, "limit", usable=9 * GIB, time_ns=START_NS + int(i * apart * SECOND))
    segment.write(directory)
    segment.write_timeline(directory, training())


def test_what_is_cut_is_said(make, report, tmp_path):
    stepwise(make, report.directory, 64, 1)
    assert not [text for text in words(draw(report, tmp_path / "plot.svg")) if "marked" in text]
    stepwise(make, report.directory, 70, 1)
    assert "70 phases, the last 64 marked; 70 refused, the last 64 marked" in words(draw(report, tmp_path / "plot.svg"))


@pytest.mark.parametrize("apart, lines", [(1, 60), (0.1, 11)])  # 9.2 px, 0.92 px
def test_lines_that_would_be_a_curtain_are_not_drawn(make, report, tmp_path, apart, lines):
    stepwise(make, report.directory, 60, apart)
    root = draw(report, tmp_path / "plot.svg")
    drawn = [p.get("d") for p in root.iter(SVG + "path") if p.get("stroke-dasharray") == "1 3"]
    at = sorted(float(d[1:].split()[0]) for d in drawn)
    assert len(at) <= lines <= len(at) + 2 and all(b - a >= 5 for a, b in zip(at, at[1:]))
    assert len([p for p in root.iter(SVG + "path") if "l-4 -9h8z" in p.get("d")]) == 60


def test_a_browser_tells_what_has_no_room(make, report, tmp_path):
    stepwise(make, report.directory, 60, 0.1)
    titles = [title.text for title in draw(report, tmp_path / "plot.svg").iter(SVG + "title")]
    assert "phase step 7 <&>, from 2026-11-20 13:06:40: 1.0 GiB live in the end, 2.0 GiB at most" in titles
    assert "cudaMalloc of 3.0 GiB device refused at 2026-11-20 13:06:40: limit; usable 9.0 GiB" in titles
    assert len(titles) == 120 + 1  # the first is of the whole


def test_observed_refusals_are_none(make, report, tmp_path):
    stepwise(make, report.directory, 70, 1, **{"slot.flags": GUARDING | OBSERVE})
    root = draw(report, tmp_path / "plot.svg")
    shown = words(root)
    assert shown[1].endswith("; observe: nothing was refused")
    assert "refused" not in shown and "observed" in shown and any(text.endswith("70 would be refused, the last 64 marked") for text in shown)
    assert any("device would be refused at" in title.text for title in root.iter(SVG + "title"))


def test_nothing_to_draw_is_said_in_one_sentence(make, report, tmp_path):
    path = tmp_path / "plot.svg"
    assert "nothing to draw" in draw(report, path, status=1)
    assert "no process 4711" in draw(report, path, 4711, status=1)
    segment = make()
    segment.write(report.directory)
    assert "process 4711 has no time line" in draw(report, path, 4711, status=1)
    segment.write_timeline(report.directory, [])
    assert "process 4711 has no time line" in draw(report, path, 4711, status=1)
    assert not path.exists()


@pytest.mark.parametrize("fields, why", [({"magic": 7}, "wrong magic"), ({"version": 2}, "another version"),
                                         ({"sample_count": 683}, "more samples")])
def test_what_is_no_time_line_is_not_drawn(make, report, tmp_path, fields, why):
    segment = make()
    segment.write(report.directory)
    segment.write_timeline(report.directory, training(), **fields)
    assert why in draw(report, tmp_path / "plot.svg", status=3)


@pytest.mark.parametrize("sample", [(-START_NS - 1, 1, 1, 1, {}), (0, 1 << 60, 1, 1, {}), (0, 1, 1, 1, {"heap": 1 << 60})])
def test_absurd_figures_are_not_drawn(make, report, tmp_path, sample):
    segment = make()
    segment.write(report.directory)
    segment.write_timeline(report.directory, [sample])
    assert "absurd" in draw(report, tmp_path / "plot.svg", status=3)


def test_files_of_another_kind_are_not_drawn(make, report, tmp_path):
    segment = make()
    path = (report.directory / segment.name).with_suffix(".timeline")
    segment.write(report.directory)
    for data, why in ((b"x" * 10, "another size"), (bytes(65537), "another size"), (segment.timeline(training())[:8000], "cut short")):
        path.write_bytes(data)
        assert why in draw(report, tmp_path / "plot.svg", status=3)
    path.unlink()
    path.symlink_to("/dev/zero")
    draw(report, tmp_path / "plot.svg", status=3)


def test_samples_in_disorder_are_drawn_in_order(make, report, tmp_path):
    segment = make()
    segment.write(report.directory)
    segment.write_timeline(report.directory, training())
    draw(report, tmp_path / "plot.svg")
    in_order = (tmp_path / "plot.svg").read_text()
    segment.write_timeline(report.directory, training()[::-1])
    draw(report, tmp_path / "plot.svg")
    assert (tmp_path / "plot.svg").read_text() == in_order


def test_a_file_that_cannot_be_written_is_said(make, report, tmp_path):
    segment = make()
    segment.write(report.directory)
    segment.write_timeline(report.directory, training())
    assert "No such file" in draw(report, tmp_path / "no/where.svg", status=3)
    if Path("/dev/full").exists():
        assert "No space left" in draw(report, "/dev/full", status=3)


def drawable(make, report):
    segment = make()
    segment.write(report.directory)
    segment.write_timeline(report.directory, training())


@pytest.mark.parametrize("path", ["", "4711", "train.log", "svg"])
def test_a_name_that_is_no_drawing_is_usage(make, report, tmp_path, path):
    drawable(make, report)
    (tmp_path / "train.log").write_text("dear")
    done = report.run(f"--plot={tmp_path / path if path else path}")
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "; for example run.svg; nothing is shown" in done.stderr
    assert (tmp_path / "train.log").read_text() == "dear" and len(list(tmp_path.glob("*svg*"))) == 0


@pytest.mark.parametrize("path", ["-", "/dev/stdout"])
def test_stdout_is_drawn_on(make, report, path):
    drawable(make, report)
    done = report.run("--plot", path)
    assert (done.returncode, done.stderr) == (0, "") and ElementTree.fromstring(done.stdout.encode()).tag == SVG + "svg"


def test_stdout_without_room_is_said(make, report):
    drawable(make, report)
    with open("/dev/full", "w") as full:
        done = subprocess.run([report.program, "--plot=-"], env=report.environment(), stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 3 and "No space left" in done.stderr and done.stderr.count("\n") == 1


def test_a_drawing_takes_the_place_of_the_last_one_when_it_is_whole(make, report, tmp_path):
    drawable(make, report)
    path = tmp_path / "plot.svg"
    path.write_text("the last one")
    def limited():  # a disk that fills up: SIGXFSZ, as Python has it, is ignored
        resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))
    done = subprocess.run(
        [report.program, "--plot", path], env=report.environment(), stderr=subprocess.PIPE, text=True, preexec_fn=limited, restore_signals=False
    )
    assert done.returncode == 3 and "File too large" in done.stderr
    assert path.read_text() == "the last one" and [f.name for f in tmp_path.glob("plot*")] == ["plot.svg"]
    before = os.umask(0o027)
    try:
        draw(report, path)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o640 and [f.name for f in tmp_path.glob("plot*")] == ["plot.svg"]


def test_a_link_stays_one(make, report, tmp_path):
    drawable(make, report)
    (tmp_path / "link.svg").symlink_to(tmp_path / "plot.svg")
    draw(report, tmp_path / "link.svg")
    assert (tmp_path / "link.svg").is_symlink() and (tmp_path / "plot.svg").exists()


def test_drawing_and_json_are_not_both(report, tmp_path):
    assert report.run("--json", "--plot", tmp_path / "plot.svg").returncode == 2
