"""sparkguard-report --watch changes what it shows: SIGTERM to the chosen process or job, a new limit, each after a question."""

import contextlib
import ctypes
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from lib.machine import needs_root
from lib.units import MIB
from screen import Terminal
from watching import QUICK, live  # noqa: F401 - a fixture

HOLD = "import os, sys; block = b'a' * {bytes}; {then}; print(os.getpid(), flush=True); sys.stdin.read()"
NOBODY = 65534
F9 = "\033[20~"
REFUSES, LEAVES = "no signal is sent", "any other key does not"


class Held:
    """A guarded program that holds memory until its input ends."""

    def __init__(self, guard, mib, job="train", prefix=(), then="pass", limit=None, **options):
        command = [*prefix, sys.executable, "-S", "-c", HOLD.format(bytes=mib * MIB, then=then)]
        self.process = guard.popen(command, {"SPARKGUARD_JOB": job, "SPARKGUARD_LIMIT": limit}, stdin=subprocess.PIPE, **options)
        self.number = int(self.process.stdout.readline())  # in its own PID namespace

    def lives(self):
        return self.process.poll() is None

    def was_sent(self, number):
        """Whether a signal that it blocks is pending."""
        (pending,) = re.findall(r"ShdPnd:\t(\w+)", Path(f"/proc/{self.number}/status").read_text())
        return int(pending, 16) >> number - 1 & 1 == 1

    def end(self):
        return self.process.wait(60)


@pytest.fixture
def held(guard):
    with contextlib.ExitStack() as stack:

        def begin(*arguments, **options):
            program = Held(guard, *arguments, **options)
            stack.callback(program.process.communicate)
            stack.callback(program.process.kill)
            return program

        yield begin


@pytest.fixture
def watch(guard):
    def begin(*arguments, before=(), rows=24, columns=80):
        command = [*before, guard.build / "sparkguard-report", QUICK, *arguments]
        env = guard.environment({"LD_PRELOAD": None, "TERM": "xterm", "NO_COLOR": "1", "LC_ALL": "C.UTF-8"})
        return Terminal(command, env, rows, columns)

    return begin


def rows_of(text, number):
    """The row with the mark, its first word, and the row of that process; None for what is not there."""
    lines = text.splitlines()
    words = [line[1:].split()[:1] for line in lines]
    marked = next((row for row, line in enumerate(lines) if line.startswith(">")), None)
    return marked, words[marked] if marked is not None else None, words.index([str(number)]) if [str(number)] in words else None


def choose(terminal, number):
    """Moves the mark to the row of that process, a key at a time: the next one is pressed when the last has been obeyed."""
    while True:
        marked, word, wanted = rows_of(terminal.until(lambda text: None not in rows_of(text, number)), number)
        if marked == wanted:
            return
        terminal.press("j" if marked < wanted else "k")
        terminal.until(lambda text, word=word: rows_of(text, number)[1] not in (word, None))


# ---- SIGTERM ----


@pytest.mark.parametrize("key", [F9, "e"])
def test_chosen_process_gets_sigterm_after_the_question(held, watch, key):
    chosen, other = held(40), held(30)
    with watch() as terminal:
        choose(terminal, chosen.number)
        terminal.press(key)
        text = terminal.shows(rf"^Send SIGTERM to {chosen.number} \(python3\S* ")
        assert "job train)?" in " ".join(text.split()) and "y sends it" in text.splitlines()[-1] and chosen.lives()
        terminal.press("y")
        terminal.shows(rf"^SIGTERM is sent to {chosen.number}$")
        assert chosen.end() == -signal.SIGTERM and other.lives()
        terminal.press("t")  # any key takes the words away
        terminal.until(lambda text: "SIGTERM" not in text)


@pytest.mark.parametrize("key", ["n", "\x1b", "\n", "q", " ", "j", F9])
def test_any_other_key_sends_nothing(held, watch, key):
    chosen = held(40)
    with watch() as terminal:
        choose(terminal, chosen.number)
        terminal.press("e")
        terminal.shows(LEAVES)
        terminal.press(key)
        terminal.until(lambda text: LEAVES not in text and "SIGTERM" not in text)
        terminal.press("y")  # there is no question any more
        terminal.press("?")
        terminal.shows("any key closes this")
        assert chosen.lives()


@pytest.mark.parametrize("pasted", ["keys", "money\n", "e" + "y" * 300], ids=["keys", "money", "long"])
def test_what_was_typed_before_the_question_is_no_answer(held, watch, pasted):
    chosen = held(40, then="import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])")
    with watch(chosen.number) as terminal:
        terminal.shows("F9 end")
        terminal.press(pasted)
        terminal.until(lambda text: LEAVES in text or chosen.was_sent(signal.SIGTERM))
        terminal.press("n")
        terminal.until(lambda text: LEAVES not in text)
        assert not chosen.was_sent(signal.SIGTERM)
        terminal.press("e")
        terminal.shows(LEAVES)
        terminal.press("y")
        terminal.shows("^SIGTERM is sent")
        assert chosen.was_sent(signal.SIGTERM)


def test_pasted_text_is_no_key_and_no_answer(held, watch):
    """As xterm brackets it. Only the filter, which is text, takes it; the brackets are off again at the end."""
    chosen = held(4711, 20)
    with watch(QUICK) as terminal:
        terminal.shows("F9 end")
        assert terminal.screen.brackets_pastes
        terminal.press("\x1b[200~qk?/y\x1b[20~y\n\x1b[201~")
        terminal.press(F9)
        terminal.shows("y sends it")
        terminal.press("\x1b[200~y\ny\x1b[201~")
        terminal.press("n")
        terminal.shows("F9 end")
        terminal.press("/\x1b[200~no\nwhere\x1b[201~\n")
        terminal.shows('nothing that runs has "nowhere" in its name or command')
        assert chosen.lives()
        terminal.press("q")
        assert terminal.end() == 0 and not terminal.screen.brackets_pastes


def test_answer_with_more_behind_it_is_none(held, watch):
    """The second part of a paste that came in two."""
    chosen = held(40)
    with watch(chosen.number) as terminal:
        terminal.shows("F9 end")
        terminal.press("e")
        terminal.shows(LEAVES)
        terminal.press("yes, e.g. y\n")
        text = terminal.until(lambda text: LEAVES not in text)
        assert "is sent to" not in text and "F9 end" in text and chosen.lives()


def test_question_stays_while_the_figures_change(held, watch):
    chosen = held(40)
    with watch() as terminal:
        choose(terminal, chosen.number)
        terminal.press("e")
        terminal.shows(LEAVES)
        held(30, job="later")
        assert LEAVES in terminal.shows("job later")


def test_row_of_a_job_means_all_its_processes_and_no_others(held, watch):
    workers, other = [held(30) for _ in range(3)], held(20, job="other")
    with watch() as terminal:
        terminal.shows("^> +job train")
        terminal.press(F9)
        terminal.shows(r"^Send SIGTERM to all 3 processes of job train\?$")
        terminal.press("y")
        terminal.shows(r"^SIGTERM is sent to 3 processes of job train$")
        assert [worker.end() for worker in workers] == [-signal.SIGTERM] * 3 and other.lives()


def test_process_in_depth_is_the_one_that_is_meant(held, watch):
    chosen, other = held(30), held(40)
    with watch(chosen.number) as terminal:
        terminal.shows("F9 end")
        terminal.press("e")
        terminal.shows(rf"^Send SIGTERM to {chosen.number} ")
        terminal.press("y")
        terminal.shows("^SIGTERM is sent")
        assert chosen.end() == -signal.SIGTERM and other.lives()


class Newcomer:
    """Another process with a number that has become free, as one may get it some time later."""

    CLONE3 = 435

    def __init__(self, number):
        wanted = ctypes.c_int32(number)
        arguments = (ctypes.c_uint64 * 11)(0, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, ctypes.addressof(wanted), 1, 0)
        self.number = ctypes.CDLL(None, use_errno=True).syscall(self.CLONE3, arguments, ctypes.sizeof(arguments))
        if self.number == 0:
            os.execvp("sleep", ["sleep", "600"])  # holds: until end()
        if self.number != number:
            pytest.skip(f"no process can be given the number here: {os.strerror(ctypes.get_errno())}")

    def lives(self):
        return os.waitpid(self.number, os.WNOHANG) == (0, 0)

    def end(self):
        os.kill(self.number, signal.SIGKILL)
        os.waitpid(self.number, 0)


@needs_root
def test_number_that_another_process_has_got_since_the_question_is_not_hit(held, watch):
    chosen = held(40)
    with watch() as terminal:
        choose(terminal, chosen.number)
        terminal.press("e")
        terminal.shows(LEAVES)
        chosen.process.kill()
        chosen.process.wait()
        newcomer = Newcomer(chosen.number)
        try:
            terminal.press("y")
            text = terminal.shows(f"{REFUSES}|SIGTERM is sent")
            assert f"{REFUSES}: it has ended meanwhile" in text and newcomer.lives()
        finally:
            newcomer.end()


@needs_root
def test_process_that_kill_does_not_allow_is_refused_without_a_question(held, watch):
    chosen = held(40, then=f"os.setresuid({NOBODY}, {NOBODY}, {NOBODY})")
    with watch(before=["setpriv", "--bounding-set=-kill"]) as terminal:
        choose(terminal, chosen.number)
        terminal.press("e")
        text = terminal.shows(f"{REFUSES}|{LEAVES}")
        assert f"{chosen.number} belongs to another user: {REFUSES}\n" in text and chosen.lives()


def test_process_that_did_not_write_its_record_is_refused(live, report):  # noqa: F811
    """Else a user or a container that writes into a record what it likes would have root end what it likes."""
    bystander = subprocess.Popen(["sleep", "600"])  # ends with the test
    ticks = int(Path(f"/proc/{bystander.pid}/stat").read_text().rpartition(")")[2].split()[19])
    try:
        live(bystander.pid, 1, **{"slot.start_ticks": ticks})
        with Terminal([report.program, QUICK], report.environment(TERM="xterm", NO_COLOR="1")) as terminal:
            choose(terminal, bystander.pid)
            terminal.press("e")
            text = terminal.shows(f"{REFUSES}|{LEAVES}")
            assert f"{bystander.pid} is not the process that wrote this record: {REFUSES}\n" in text and bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


@needs_root
def test_process_of_another_pid_namespace_is_hit_by_its_number_here(guard, held, watch):
    unshare = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if subprocess.run([*unshare, "true"], capture_output=True).returncode != 0:
        pytest.skip("no PID namespace can be made here")
    inside = [*unshare, "sh", "-c", '"$@"; exit $?', "sh", "env", f"LD_PRELOAD={guard.library}"]
    chosen = held(40, prefix=inside, preload=[])
    (process,) = [p for job in guard.report("--all")["jobs"] for p in job["processes"] if p["state"] == "running"]
    assert process["pid"] == chosen.number != process["host_pid"]
    with watch() as terminal:
        choose(terminal, process["host_pid"])
        terminal.press("e")
        terminal.shows(rf"^Send SIGTERM to {process['host_pid']} ")
        terminal.press("y")
        terminal.shows("^SIGTERM is sent")
        assert chosen.end() == 128 + signal.SIGTERM


# ---- a new limit ----


def limit_of(guard, job="train"):
    (found,) = [each for each in guard.report("--all")["jobs"] if each["job"] == job]
    return found["limit_bytes"]


@pytest.mark.parametrize("in_depth", [False, True])
def test_limit_of_the_chosen_job_is_asked_for_and_set(guard, held, watch, in_depth):
    chosen = held(40, limit="1G")
    with watch() as terminal:
        choose(terminal, chosen.number)
        if in_depth:
            terminal.press("\n")
            terminal.shows(r"^held \[")
        terminal.press("L")
        text = terminal.shows(r"^New limit of job train\? Now 1\.0 GiB; for example 64G, or none\.$")
        assert "Enter sets it, Esc does not" in text.splitlines()[-1]
        terminal.press("3X\x7fG")
        terminal.shows("^limit: 3G")
        assert limit_of(guard) == 1024 * MIB
        terminal.press("\n")
        terminal.shows(r"^job train: limit 1\.0 GiB → 3\.0 GiB; it holds 4\d\.\d MiB$")
        assert limit_of(guard) == 3072 * MIB


@contextlib.contextmanager
def job_keeps_its_limit(guard, held, watch, **size):
    held(40, limit="1G")
    with watch(**size) as terminal:
        terminal.shows("^> +job train")
        yield terminal
    assert limit_of(guard) == 1024 * MIB


@pytest.mark.parametrize("keys", ["2G\x1b", "\n"])
def test_limit_that_is_not_entered_is_not_set(guard, held, watch, keys):
    with job_keeps_its_limit(guard, held, watch) as terminal:
        terminal.press("L")
        terminal.shows("^New limit")
        terminal.press(keys)
        terminal.until(lambda text: "New limit" not in text and "q quit" in text)


@pytest.mark.parametrize("typed, answer", [("L2G\n", "\x1b"), ("L", "2G\nL3G")])
def test_pasted_text_sets_no_limit(guard, held, watch, typed, answer):
    with job_keeps_its_limit(guard, held, watch) as terminal:
        terminal.press(typed)
        terminal.until(lambda text: "New limit" in text or "GiB →" in text)
        terminal.press(answer)
        terminal.until(lambda text: "New limit" not in text or "limit: 3G" in text)


@pytest.mark.parametrize("typed, said", [("17M", "more than 17.0 MiB: its next requests would be refused; nothing is changed"), ("many", "limit=many is not limit=SIZE")])
def test_limit_that_cannot_be_is_refused_with_the_reason(guard, held, watch, typed, said):
    with job_keeps_its_limit(guard, held, watch, columns=60) as terminal:
        terminal.press("L")
        terminal.shows("^New limit")
        terminal.press(f"{typed}\n")
        terminal.until(lambda text: said in " ".join(text.split()))
