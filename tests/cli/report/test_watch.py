"""sparkguard-report --watch: the live screen through a pseudo-terminal, and the lines where there is none."""

import os
import re
import signal
import subprocess
import time

import pytest
from lib.units import GIB, MIB
from segment import CUDA, GUARDING, OBSERVE, SHARING, START_NS
from records import compare
from watching import QUICK, live, watch  # noqa: F401 - fixtures


@pytest.fixture
def busy(live, report):
    """Two jobs: a trainer with two workers and a limit, a server of one process."""
    trainer = live(4711, 20, 30, refused=1, job="train", **{"slot.limit_bytes": 64 * GIB})
    trainer.segment.refusal("cudaMalloc", "device", 48 * GIB, "limit", usable=98 * GIB)
    trainer.hold(20)
    live(4712, 1, parent_pid=4711, job="train", command="/usr/bin/python3 worker.py --rank 1")
    live(4713, 2, parent_pid=4711, job="train", command="/usr/bin/python3 worker.py --rank 2")
    live(4800, 8, 16, job="serve", command="vllm serve")
    return report


def pids(text):
    guarded = text.partition("UNGUARDED")[0]
    return [int(pid) for pid in re.findall(r"^ *(\d+) (?:│ |├─|└─|  )*(?:python|vllm)", guarded, re.MULTILINE)]


def stable(text):
    """Without what depends on the machine and the moment: unguarded processes, the time."""
    text = re.sub(r"refused .* ago", "refused TIME ago", text)
    # The history of a job is as long as the watch: one second is kept of it.
    text = re.sub(r"^( +job .*?)(█+)(?= )", lambda m: m[1] + " " * (len(m[2]) - 1) + "█", text, flags=re.MULTILINE)
    lines = re.sub(r"\n\n *PID UNGUARDED(.|\n)*?(?=\nq quit)", "\n", text)
    return re.sub(r"\n+(q quit.*)\d\d:\d\d:\d\d", r"\n\1HH:MM:SS", lines)


# ---- the screen -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows, columns", [(24, 80), (50, 200)])
def test_the_screen_is_golden(busy, watch, rows, columns):
    with watch(QUICK, rows=rows, columns=columns) as terminal:
        compare(f"watch_{columns}x{rows}.txt", stable(terminal.shows(r" 0 B/s .* 0$")))


@pytest.mark.parametrize("locale, cut", [("C.UTF-8", "…122"), ("C", "...2")])
def test_jobs_are_told_apart_where_their_names_have_no_room(live, watch, locale, cut):
    for pid in (13863, 13877):
        live(pid, 1, job=f"20261122T020601-{pid}", **{"slot.limit_bytes": 50 * GIB})
    live(7, 1, job="evaluate-checkpoints", **{"slot.limit_bytes": 50 * GIB})
    live(8, 1, job="seventeen-letters", **{"slot.limit_bytes": 50 * GIB})
    with watch(QUICK, LC_ALL=locale) as terminal:
        text = terminal.shows(r" 0 B/s .* 0$")
        terminal.resize(24, 200)
        wide = terminal.shows("  job 20261122T020601-13863, limit 50.0 GiB ")
    for name in (f"{cut}T020601-13863", f"{cut}T020601-13877", "seventeen-letters", "evaluate-checkpoi"):
        assert re.search(rf"^ +{re.escape(name)} ", text, re.MULTILINE), text
    assert "limit 5" not in text and "evaluate-checkpoints, limit 50.0 GiB " in wide


def test_the_last_refusal_is_of_what_is_shown_and_ages(live, make, report, watch):
    now = time.time_ns()
    for pid, minutes, size in ((7, 25, 3), (8, 45, 4)):
        process = live(pid, 1)
        process.segment.refusal("cudaMalloc", "device", size * GIB, "limit", usable=MIB, time_ns=now - minutes * 60 * 10**9)
        process.hold(1)
    make(pid=9).refusal("malloc", "heap", GIB, "reserve", time_ns=now - 10**9).write(report.directory)
    with watch(QUICK) as terminal:
        terminal.shows(r"^refused (2[5-9]|[34]\d) min ago: cudaMalloc of 3\.0 GiB in 7, 1\.0 MiB of room \(limit\)$")


def test_nothing_is_refused_in_observe_mode(live, report, watch):
    for pid, job, flags in ((7, "tried", OBSERVE), (8, "20261122T020601-13863", OBSERVE), (9, "real", 0)):
        live(pid, 1, job=job, command="/usr/bin/python train.py", **{"slot.flags": GUARDING | SHARING | flags})
    process = live(10, 1, job="tried", **{"slot.flags": GUARDING | SHARING | OBSERVE})
    process.segment.refusal("malloc", "heap", GIB, "reserve", usable=MIB)
    process.hold(1)
    with watch(QUICK) as terminal:
        text = terminal.shows(r"^would have been refused .* ago: malloc of 1\.0 GiB in 10(, 1\.0 MiB usable \(reserve\))?$")
        assert re.search(r"^ +observe: tried ", text, re.MULTILINE) and re.search(r"^ +observe: …1-13863 ", text, re.MULTILINE)
        assert re.search(r"^ +job real ", text, re.MULTILINE)
        terminal.press("t")
        text = terminal.shows("^ +7 observe: python")
        assert re.search(r"^ +9 python train", text, re.MULTILINE)


def test_one_process_in_depth_is_golden(busy, watch):
    with watch(QUICK, 4711, rows=36) as terminal:
        text = stable(terminal.shows(r"held .* 0 B/s$"))
    compare("watch_process.txt", re.sub(r"started .* ago", "started TIME ago", text))


def test_the_screen_in_ascii_and_without_colour(busy, watch):
    with watch(QUICK, LC_ALL="C", NO_COLOR="1") as terminal:
        text = terminal.shows(r" 0 B/s .* 0$")
        terminal.press("q")
        assert terminal.end() == 0
    assert text.isascii() and "|-python3" in text and "`-python3" in text
    assert terminal.screen.colours <= {"0"}  # what might have been left behind by others


def test_there_is_colour_on_a_terminal(busy, watch):
    with watch(QUICK) as terminal:
        terminal.shows("q quit")
        assert {"31", "32", "2"} <= terminal.screen.colours


def test_nothing_runs_yet_and_then_something_does(live, report, watch):
    with watch(QUICK, columns=60) as terminal:
        terminal.shows("^nothing guarded runs now; try: sparkguard python3 train\\.py$")
        live(7, 3)
        assert pids(terminal.shows("python train")) == [7]


def test_it_grows_towards_a_wall_and_shrinks_away_from_it(live, report, watch):
    process = live(7, 1, job="train", **{"slot.limit_bytes": 100000 * GIB})
    live(8, 1, job="train", command="python still")
    held = [1.0]

    def grow():
        held[0] += 0.25
        process.hold(held[0])

    with watch(QUICK) as terminal:
        rising = terminal.until(lambda text: re.search(r"python t.* \+[\d.]+ [KMG]iB/s +\d[\w ]+ 0$", text, re.MULTILINE), grow)
        assert re.search(r"python still .* 0 B/s +- +0$", rising, re.MULTILINE)
        assert re.search(r"^usable 0 B/s$", rising, re.MULTILINE)  # the machine is made of files
        process.hold(0)
        terminal.until(lambda text: re.search(r"python t.* -[\d.]+ [KMG]iB/s +- +0$", text, re.MULTILINE), lambda: process.hold(0))


def test_a_device_of_its_own_is_a_wall(live, report, watch):
    """A card of 1000 GiB: who uses it runs into its reserve, who grows beside it does not."""
    process = live(7, 1, job="train", **{"slot.flags": GUARDING | SHARING | CUDA})
    other = live(8, 1, job="other", command="python other")
    for one in (process, other):
        one.segment.machine(time_ns=1, unified=0)
    held = [1.0]

    def grow():
        held[0] += 0.25
        process.segment.device(0, "NVIDIA RTX", 1000 * GIB, int(held[0] * GIB), reserve_mib=20 << 10)
        process.hold(held[0])
        other.hold(held[0])

    with watch(QUICK) as terminal:
        text = terminal.until(lambda text: re.search(r"python t.* \+[\d.]+ [KMG]iB/s +\d[\w ]+ 0$", text, re.MULTILINE), grow)
        assert re.search(r"python other .* \+[\d.]+ [KMG]iB/s +- +0$", text, re.MULTILINE), text


def test_one_process_in_depth_says_when_it_meets_a_wall(live, watch):
    process = live(7, 1, job="train", **{"slot.limit_bytes": 100000 * GIB})
    held = [1.0]

    def grow():
        held[0] += 0.25
        process.hold(held[0])

    with watch(QUICK, 7) as terminal:
        pattern = r"^held \[.{26}\] of 128\.0 GiB, \+[\d.]+ [KMG]iB/s, wall in \d[\w ]+$"
        terminal.until(lambda text: re.search(pattern, text, re.MULTILINE), grow)
        process.segment.set("slot.state", 2).set("exit_code", 0)
        process.hold(1)
        process.file.close()
        assert "held [" not in terminal.shows("exited with status 0")


def test_the_machine_runs_into_its_reserve(report, watch):
    left = [100 * GIB]

    def take():  # a reader may find the file empty, and begin anew
        left[0] -= MIB
        report.machine(MemTotal=128 * GIB, MemAvailable=left[0])

    with watch(QUICK) as terminal:
        pattern = r"usable -[\d.]+ \w+/s, to reserve \d+ [\w ]+,\s+to floor \d+ "
        terminal.until(lambda text: re.search(pattern, text), take)
        left[0] = 2 * GIB
        pattern = r"usable -[\d.]+ \w+/s, reserve reached,\s+floor reached,\s+to zero \d"
        terminal.until(lambda text: re.search(pattern, text), take)


def test_one_that_ends_is_seen_to_end(make, busy, live, report, watch):
    with watch(QUICK) as terminal:
        terminal.shows("q quit")
        child = live(9, 1, job="serve", command="python short")
        terminal.shows("python short")
        child.segment.set("slot.state", 4).set("signal", 9)
        child.hold(1)
        child.file.close()
        terminal.shows(r" 9 .*python short +killed .* - +- +0$")


# ---- keys -----------------------------------------------------------------------------------------------------------


def test_keys_sort_and_flatten(busy, live, watch):
    live(4714, 24, parent_pid=4711, job="train", command="python holds most")
    with watch(QUICK, columns=120) as terminal:
        assert pids(terminal.shows("└─vllm")) == [4711, 4714, 4713, 4712, 4800]  # below their parent
        terminal.press("t")
        assert pids(terminal.until(lambda text: "─" not in text)) == [4714, 4711, 4800, 4713, 4712]
        terminal.press("n")
        assert pids(terminal.shows(r"▾PID")) == [4711, 4712, 4713, 4714, 4800]
        for key, heading in (("p", "PEAK"), ("r", "RATE"), ("x", "REFUSED"), ("l", "LIVE")):
            terminal.press(key)
            first = 4711 if key in "px" else 4714
            assert pids(terminal.shows(f"▾{heading}"))[0] == first


def test_q_gives_the_terminal_back(busy, watch):
    with watch("--watch=3600") as terminal:
        terminal.shows("q quit")
        screen = terminal.screen
        assert screen.is_alternate and not screen.has_cursor and not screen.wraps
        assert terminal.is_raw()
        terminal.press("q")
        assert terminal.end() == 0
        assert (screen.is_alternate, screen.has_cursor, screen.wraps) == (False, True, True)
        assert not terminal.is_raw()


def test_a_long_list_scrolls(live, report, watch):
    for pid in range(1, 101):
        live(pid, 0, command=f"worker {pid}")
    with watch("--watch=3600", "--job", "train") as terminal:
        terminal.press("tn")
        terminal.shows("▾PID.*\n +1 worker")
        for keys, first in (("\033[B", 2), ("\033[B\033[B", 4), ("\033[A", 3), ("\033[H", 1)):
            terminal.press(keys)
            terminal.shows(rf"▾PID.*\n +{first} worker")
        terminal.press("\033[F")
        terminal.shows(r"^ +100 worker 100 .*\n(.*\n)*.*-100/100")
        terminal.press("\033[5~")
        terminal.until(lambda text: "worker 100 " not in text and "worker 1 " not in text)


def test_a_thousand_processes_fit_the_screen(live, report, watch):
    for number in range(1000):
        live(1000 + number, 0, in_registry=False, parent_pid=999 + (number + 3) // 4, command=f"python {number}")
    with watch(QUICK) as terminal:
        text = terminal.shows(r"1-\d+/1001")
        assert len(pids(text)) >= 5
        terminal.press("q")
        assert terminal.end() == 0


def test_it_follows_the_size_of_the_terminal(busy, watch):
    with watch("--watch=3600") as terminal:
        terminal.shows("q quit")
        for rows, columns in ((50, 200), (12, 60), (24, 80)):
            terminal.resize(rows, columns)
            text = terminal.until(lambda text: text.splitlines()[-1].startswith("q quit"))
            assert len(text.splitlines()) == rows
            assert ("PEAK" in re.search(r"COMMAND.*", text)[0]) == (columns == 200)


@pytest.mark.parametrize("rows, columns", [(1, 80), (3, 10), (5, 300)])
def test_an_odd_size_does_no_harm(busy, watch, rows, columns):
    with watch(QUICK, rows=rows, columns=columns) as terminal:
        terminal.until(lambda _: terminal.screen.frames > 3)
        terminal.press("q")
        assert terminal.end() == 0


def chosen(text):
    """The chosen line, without colour."""
    lines = [line for line in text.splitlines() if line.startswith(">")]
    assert len(lines) <= 1
    return " ".join(lines[0][1:].split()[:3]) if lines else None


def test_keys_choose_a_row_that_stays_chosen_when_the_order_changes(busy, live, watch):
    with watch(QUICK, NO_COLOR="1") as terminal:
        assert chosen(terminal.shows("^>")).startswith("job train")
        for key, row in (("j", "4711 └─python train.py"), ("\033[B", "4713 ├─python3 worke"), ("k", "4711 └─python train.py"), ("jj", "4712 └─python3 worke")):
            terminal.press(key)
            terminal.until(lambda text: (chosen(text) or "").startswith(row))
        terminal.press("t")
        terminal.until(lambda text: "─" not in text and chosen(text).startswith("4712 python3 worke"))
        terminal.press("n")
        terminal.until(lambda text: pids(text.replace(">", " ")) == [4711, 4712, 4713, 4800] and chosen(text).startswith("4712"))
        terminal.press("G")
        terminal.until(lambda text: chosen(text).startswith("4800"))
        terminal.press("g")
        terminal.until(lambda text: chosen(text).startswith("4711"))


@pytest.mark.parametrize("back", ["\x1b", "q", "\x7f"])
def test_enter_shows_a_process_in_depth_and_a_key_goes_back(busy, watch, back):
    with watch(QUICK, rows=40) as terminal:
        terminal.shows("q quit")
        terminal.press("jj\n")
        text = terminal.shows(r"^held \[")
        assert "worker.py --rank 2" in text and "PID COMMAND" not in text and "q back" in text.splitlines()[-1]
        terminal.press(back)
        assert pids(terminal.shows("PID COMMAND")) == [4711, 4713, 4712, 4800]
        terminal.press("q")
        assert terminal.end() == 0


def test_enter_shows_a_job_with_its_history_and_its_processes_alone(busy, watch):
    with watch(QUICK, rows=40) as terminal:
        terminal.shows("q quit")
        terminal.press("\r")
        text = terminal.shows("^live, up to 23.0 GiB, limit 64.0 GiB, over .*; blank: not recorded$")
        assert pids(text) == [4711, 4713, 4712] and "vllm" not in text
        lines = text.splitlines()
        assert len([line for line in lines if re.fullmatch(" +█+", line)]) == 2 and "╌" * 79 in lines  # 20 of 64 GiB in 8 rows


def test_a_process_in_depth_that_vanishes_is_said(busy, live, watch, report):
    process = live(9, 30, job="other", command="python short")
    with watch(QUICK) as terminal:
        terminal.shows("python short")
        terminal.press("j\n")
        terminal.shows(r"^held \[")
        (report.directory / process.segment.name).unlink()
        terminal.shows("this process is not on record any more; Esc goes back")
        terminal.press("\x1b")
        terminal.until(lambda text: pids(text) == [4711, 4713, 4712, 4800])


def test_a_filter_shows_a_part_of_the_list(busy, live, watch):
    live(4900, 1, job="eval", command="python \x1b[31m x.py")
    with watch(QUICK) as terminal:
        terminal.shows("q quit")
        terminal.press("/RANK 2x\x7f")
        assert pids(terminal.shows(r"^/RANK 2▏")) == [4713]  # every letter narrows the list
        terminal.press("\n")
        text = terminal.shows(r"^q quit  \? help  filter /RANK 2")
        assert pids(text) == [4713] and "job train" in text and "refused" not in text
        terminal.press("/\x15serve")
        assert pids(terminal.shows("^/serve▏")) == [4800]  # the name of a job has all its processes
        terminal.press("\x154711\n")
        terminal.until(lambda text: pids(text) == [4711])
        terminal.press("/\x15\x02 nowhere\n")
        terminal.shows('nothing that runs has ".*nowhere" in its name or command; Esc shows all')
        terminal.press("\x1b")
        terminal.until(lambda text: len(pids(text)) >= 4 and "/ filter" in text)


def test_a_filter_of_any_length_does_no_harm(busy, watch):
    with watch(QUICK) as terminal:
        terminal.shows("q quit")
        terminal.press("/" + "é" * 200 + "\n")
        terminal.shows("nothing that runs")
        terminal.press("q")
        assert terminal.end() == 0


@pytest.mark.parametrize("key", ["?", "h"])
def test_help_fits_a_small_terminal_and_any_key_closes_it(busy, watch, key):
    with watch(QUICK, rows=15, columns=60) as terminal:
        terminal.shows("q quit")
        terminal.press(key)
        text = terminal.shows("any key closes this")
        for word in ("Enter", "Esc q", "/", "l p r x n", "HISTORY", "WALL IN"):
            assert re.search(rf"^ +{re.escape(word)}  ", text, re.MULTILINE), word
        assert "..." not in text
        compare("watch_help.txt", re.sub(r"\d\d:\d\d:\d\d", "HH:MM:SS", text))
        terminal.press("q")
        terminal.shows("q quit")


def test_a_terminal_of_60_by_15_shows_the_jobs(busy, watch):
    with watch(QUICK, rows=15, columns=60) as terminal:
        text = terminal.shows(r"^ +4711 └─python train.py +20\.0 GiB +- +1$")
        assert len(text.splitlines()) == 15 and "job train" in text and "HELD" not in text and "RATE" not in text


@pytest.mark.parametrize(
    "columns, shown", [(74, "HELD LIVE RATE WALL REFUSED"), (60, "LIVE WALL REFUSED"), (45, "LIVE REFUSED"), (40, "LIVE")]
)
def test_walls_and_refusals_are_the_last_columns_to_go(busy, watch, columns, shown):
    with watch(QUICK, columns=columns) as terminal:
        heading = re.search("^ +PID .*", terminal.shows("^ +PID COMMAND .*"), re.MULTILINE)[0]
    assert [word for word in re.findall("[A-Z]+", heading)[2:] if word != "IN"] == shown.split()


def test_a_refusal_is_told_without_half_a_reason_on_a_narrow_screen(busy, watch):
    with watch(QUICK, columns=60) as terminal:
        terminal.shows(r"^refused .* ago: cudaMalloc of 48\.0 GiB in 4711$")
        terminal.resize(24, 80)
        terminal.shows(r"^refused .* ago: cudaMalloc of 48\.0 GiB in 4711, 98\.0 GiB of room \(limit\)$")


def test_how_a_process_ended_stands_in_the_place_of_its_wall_where_there_is_no_bar(busy, live, watch):
    with watch(QUICK, columns=60) as terminal:
        terminal.shows("q quit")
        child = live(9, 1, job="serve", command="python short")
        terminal.shows(r"python short +1\.0 GiB +- +0$")
        child.segment.set("slot.state", 4).set("signal", 9)
        child.hold(1)
        child.file.close()
        terminal.shows(r" 9 .*python short +1\.0 GiB +killed +0$")


def test_a_lone_escape_is_a_key_and_one_of_a_sequence_is_not(busy, watch):
    with watch("--watch=3600", NO_COLOR="1") as terminal:
        terminal.shows("^>")
        terminal.press("/vllm\n")
        terminal.until(lambda text: pids(text.replace(">", " ")) == [4800])
        terminal.press("\033[B")
        terminal.until(lambda text: (chosen(text) or "").startswith("4800"))
        terminal.press("\x1b")
        terminal.until(lambda text: len(pids(text.replace(">", " "))) == 4)


# ---- the history of a job -------------------------------------------------------------------------------------------


def test_what_a_job_held_before_the_watch_is_read_from_its_time_lines(live, layout, report, watch):
    """Held 4 GiB from 100 to 60 seconds ago, then 8; nothing is recorded from 60 to 30 seconds ago."""
    process = live(7, 8, job="train", started_time_ns=time.time_ns() - 100 * 10**9)
    process.segment.peak(time_ns=time.time_ns(), device=8 * GIB)
    process.hold(8)
    now = time.time_ns() - START_NS
    samples = [(now - ago * 10**9, 90 * GIB, GIB, MIB, {"device": (4 if ago > 60 else 8) * GIB}) for ago in range(99, 0, -1) if not 30 < ago < 60]
    process.segment.write_timeline(report.directory, samples)
    with watch(QUICK, rows=40, columns=121) as terminal:
        row = terminal.shows(r"job train.*[▁-█]")
        spark = re.search(r"job train +([▁-█]+ +[▁-█]+)", row)[1]
        assert re.fullmatch(r"█?▄+█? +█+", spark), spark
        terminal.press("\n")
        chart = terminal.shows("^live, up to 8.0 GiB, over 2 min 0 s; blank: not recorded")
        rows = [line for line in chart.splitlines() if "██████████" in line and "[" not in line]
        assert rows and all(" " * 20 in line.strip() for line in rows)


# ---- ends -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_gives_the_terminal_back_and_ends_it(busy, watch, number):
    with watch("--watch=3600") as terminal:
        terminal.shows("q quit")
        if number == signal.SIGINT:
            terminal.press("\x03")
        else:
            os.kill(terminal.pid, number)
        assert terminal.end() == -number
        assert (terminal.screen.is_alternate, terminal.screen.has_cursor) == (False, True)
        assert not terminal.is_raw()


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGALRM, signal.SIGPIPE, signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS])
def test_a_crash_or_a_rare_signal_gives_the_terminal_back_too(busy, watch, number):
    with watch("--watch=3600") as terminal:
        terminal.shows("q quit")
        os.kill(terminal.pid, number)
        assert terminal.end() == -number
        assert (terminal.screen.is_alternate, terminal.screen.has_cursor, terminal.screen.wraps) == (False, True, True)
        assert not terminal.is_raw()


def test_without_keys_control_c_ends_it(busy, watch):
    with watch("--watch=3600", program=["sh", "-c", 'exec "$@" </dev/null', "sh", busy.program]) as terminal:
        terminal.shows("^Ctrl-C ends this")
        terminal.press("\x03")
        assert terminal.end() == -signal.SIGINT
        assert not terminal.screen.is_alternate


def test_an_ignored_signal_stays_ignored(busy, watch):
    with watch("--watch=3600", program=["sh", "-c", 'trap "" HUP; exec "$@"', "sh", busy.program]) as terminal:
        terminal.shows("q quit")
        os.kill(terminal.pid, signal.SIGHUP)
        terminal.press("t")
        terminal.until(lambda text: "─" not in text)


def test_stopping_gives_the_terminal_back_and_going_on_takes_it(busy, watch, tmp_path):
    """Under a shell with job control: to a program that nobody could continue the kernel sends no SIGTSTP."""
    script = '"$@"; echo "stopped: $?"; stty -a | grep -o -- "-*icanon"; read -r _; fg; echo "ended: $?"'
    shell = ["bash", "--norc", "--noprofile", "-mc", script, "bash", busy.program]
    with watch("--watch=3600", program=shell) as terminal:
        terminal.shows("q quit")
        terminal.press("\x1a")
        terminal.shows("stopped: 148\n(.*\n)*^icanon")
        assert (terminal.screen.is_alternate, terminal.screen.has_cursor) == (False, True)
        terminal.screen.clear()
        terminal.press("\n")
        terminal.shows("q quit")
        assert terminal.screen.is_alternate and terminal.is_raw()
        terminal.press("q")
        terminal.shows("ended: 0")
        assert terminal.end() == 0 and not terminal.is_raw()


def test_a_terminal_that_goes_away_ends_it(busy, watch):
    command = ["sh", "-c", 'trap "" HUP; exec "$@"', "sh", busy.program]  # by its end of file alone
    with watch("--watch=3600", program=command) as terminal:
        terminal.shows("q quit")
        os.close(terminal.fd)
        terminal.fd = os.open("/dev/null", os.O_RDWR)
        terminal.end()


def test_files_that_are_not_believed_are_told_of(busy, watch):
    (busy.directory / "bad.segment").write_bytes(b"x" * 100)
    with watch(QUICK, columns=200) as terminal:
        terminal.shows("not trusted, 1 in all: .*bad.segment")
        terminal.press("q")
        assert terminal.end() == 3
        assert "sparkguard-report: " in terminal.screen.text()


# ---- lines ----------------------------------------------------------------------------------------------------------

LINE = r"\d\d:\d\d:\d\d +98\.0 GiB +(-|0 B/s) +%s +(-|0 B/s) +- +%d +%d"


def first_lines(report, *arguments, count=3, **extra):
    command = [report.program, *map(str, arguments)]
    with subprocess.Popen(command, env=report.environment(**extra), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        lines = [process.stdout.readline().decode().strip("\n") for _ in range(count)]
        process.stdout.close()
        assert (process.wait(60), process.stderr.read()) == (-signal.SIGPIPE, b"")
    return lines


def test_lines_where_there_is_no_terminal(busy):
    report = busy
    report.machine(MemTotal=128 * GIB, MemAvailable=98 * GIB)
    heading, first, second = first_lines(report, QUICK)
    assert heading.split() == ["TIME", "USABLE", "RATE", "LIVE", "RATE", "WALL", "IN", "RUN", "REFUSED"]
    assert re.fullmatch(LINE % (r"31\.0 GiB", 4, 1), first) and re.fullmatch(LINE % (r"31\.0 GiB", 4, 1), second)
    assert first.split()[3] == "-" and second.split()[3] == "0"
    assert len({len(line) for line in (heading, first, second)}) == 1 and len(first) <= 80
    assert re.fullmatch(LINE % (r"8\.0 GiB", 1, 0), first_lines(report, QUICK, "--job", "serve")[1])
    assert re.fullmatch(LINE % (r"2\.0 GiB", 1, 0), first_lines(report, QUICK, 4713)[1])
    assert re.fullmatch(LINE % (r"23\.0 GiB", 3, 1), first_lines(report, QUICK, "--job=train", "--dir", report.directory)[1])


def test_the_lines_are_golden(busy):
    lines = first_lines(busy, QUICK, count=4)
    compare("watch_lines.txt", "".join(re.sub(r"^\d\d:\d\d:\d\d", "HH:MM:SS", line) + "\n" for line in lines))


def test_a_reader_that_goes_away_ends_it_though_the_next_line_is_far(busy):
    assert len(first_lines(busy, "--watch=3600", count=2)) == 2


def test_lines_tell_once_of_files_that_are_not_believed(busy):
    (busy.directory / "bad.segment").write_bytes(b"x" * 100)
    with subprocess.Popen([busy.program, QUICK], env=busy.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as watcher:
        for _ in range(4):
            assert watcher.stdout.readline() != b""
        watcher.stdout.close()
        (line,) = watcher.stderr.read().splitlines()
    assert b"bad.segment" in line


def test_a_dumb_terminal_gets_lines(busy, watch):
    with watch(QUICK, TERM="dumb") as terminal:
        terminal.shows("TIME +USABLE")
        assert not terminal.screen.is_alternate and terminal.screen.has_cursor and not terminal.screen.colours


def test_the_lines_of_a_process_end_with_it(live, report):
    process = live(7, 1)
    command = [report.program, QUICK, "7"]
    with subprocess.Popen(command, env=report.environment(), stdout=subprocess.PIPE, text=True) as watcher:
        assert "TIME" in watcher.stdout.readline() and "GiB" in watcher.stdout.readline()
        process.segment.set("slot.state", 2).set("exit_code", 0)
        process.hold(1)
        process.file.close()
        assert watcher.wait(60) == 0


def test_a_full_disk_ends_the_lines(busy):
    with open("/dev/full", "w") as full:
        done = subprocess.run([busy.program, QUICK], env=busy.environment(), stdout=full, stderr=subprocess.PIPE, timeout=60)
    assert done.returncode == 3 and b"cannot write the report" in done.stderr


# ---- usage ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [["--watch=0"], ["--watch=x"], ["--watch=1y"], ["--watch="], ["--watch=4000"], ["--watch=nan"]])
def test_what_is_no_interval(report, arguments):
    done = report.run(*arguments)
    assert done.returncode == 2 and "; for example 2; nothing is shown" in done.stderr and done.stdout == ""


def test_json_is_for_programs_that_come_again_themselves(report):
    assert report.run("--watch", "--json").returncode == 2


@pytest.mark.parametrize("arguments", [["--watch", "4711"], ["--watch", "0.5", "4711"], ["4711", "--watch"]])
def test_a_number_behind_it_is_an_interval_or_a_process(report, arguments):
    done = report.run(*arguments)
    assert done.returncode == 1 and "no process 4711" in done.stderr


def test_a_job_or_directory_that_is_not_there(report):
    assert report.run("--watch", "--job", "none").returncode == 1
    assert report.run("--watch", "--dir", report.directory / "none").returncode == 1


# ---- containers -----------------------------------------------------------------------------------------------------


def test_the_line_of_a_job_names_its_container_where_that_is_another_name(live, watch):
    live(7, 20, job="train", container="web-0", **{"slot.limit_bytes": 64 * GIB})
    live(8, 2, job="pod-1", container="pod-1")
    with watch(QUICK, columns=200) as terminal:
        text = terminal.shows("job pod-1 ")
    assert re.search(r"job train, container web-0, limit 64\.0 GiB ", text) and "container pod-1" not in text


def test_processes_with_one_number_and_start_in_two_containers_have_rates_of_their_own(live, make, report, watch):
    """One grows; the other one, whose namespace alone is another, does not."""
    grows = live(1, 20, job="one", pid_namespace=4026530001, command="python one.py")
    stays = make(pid=1, state="running", job="two", pid_namespace=4026530002, command="python two.py", started_time_ns=START_NS + 1)
    stays.domain("device", granted=4 * GIB, peak=4 * GIB).peak(device=4 * GIB)
    stays.name = "1-0000000000000002.segment"
    sizes = iter(range(21, 10000))
    with stays.write_live(report.directory), watch(QUICK, columns=120) as terminal:
        text = terminal.until(lambda text: re.search(r"one\.py .* \+[\d.]+ .iB/s", text), lambda: grows.hold(next(sizes)))
    assert re.search(r"two\.py .* 4\.0 GiB .* 0 B/s ", text), text
