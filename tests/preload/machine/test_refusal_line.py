"""What the lines of a refusal say beside its figures: the next step, who holds the rest, what would have been enough, how many more."""

import mmap
import os
import re
import subprocess
import sys
import termios

import pytest
from holding import HOLD, Holder, machine
from lib import pty
from lib.units import GIB, MIB
from lib.waiting import wait_until

ASK = """
import ctypes, sys
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
for size in map(int, sys.argv[1:]):
    print('granted' if libc.malloc(size) else 'refused', flush=True)
"""


def ask(guard, *sizes, env=None, code=ASK, **options):
    done = guard.run([sys.executable, "-S", "-c", code, *sizes], env=env, **options)
    assert done.returncode == 0, done.stderr
    return done


def way_out(done):
    """The second line of the only refusal: the next step."""
    _, line = done.stderr.splitlines()
    return line


def ask_until(guard, pattern, env):
    """Asks for 1 GiB until the refusal says so. Until then it names a process that is not the test's: this machine may have a larger one."""

    def is_said():
        line = way_out(ask(guard, GIB, env=env))
        is_here = re.search(pattern, line) is not None
        assert is_here or re.search(r"; largest other: .+ \d+, [\d.]+ GiB, (unguarded|another user's); ", line), line
        return is_here

    wait_until(is_said, pattern)


def comm(pid):
    with open(f"/proc/{pid}/comm") as file:
        return file.read().strip()


def test_the_limit_that_would_have_been_enough_is_enough(guard):
    line = way_out(ask(guard, 48 * MIB, 30 * MIB, env={"SPARKGUARD_LIMIT": "64M"}))
    match = re.fullmatch(r"try: SPARKGUARD_LIMIT=(([\d.]+)M); a limit of \2 MiB would have been enough for this request", line)
    assert match, line
    done = ask(guard, 48 * MIB, 30 * MIB, env={"SPARKGUARD_LIMIT": match[1]})
    assert (done.stdout, done.stderr) == ("granted\ngranted\n", "")


def test_a_job_far_over_its_limit_is_told_a_limit_that_holds_what_it_has(guard):
    """A second process of the job brings a smaller limit."""
    env = {"SPARKGUARD_JOB": "over"}
    with Holder(guard, 200 * MIB, env, touch="m.write(bytes(200 << 20))"):
        env |= {"SPARKGUARD_LIMIT": "64M", "SPARKGUARD_LARGE": "512K"}  # so that it says of an arena of its objects already
        reported = guard.run([sys.executable, "-S", "-c", ASK, 30 * MIB], env=env).stderr
        enough = [float(size) for size in re.findall(r"; a limit of ([\d.]+) MiB would have been enough", reported)]
        assert enough and 201 <= min(enough) <= max(enough) < 260, reported


def test_what_would_have_been_enough_for_the_reserve(guard, tmp_path):
    line = ask(guard, 300 * MIB, env=machine(tmp_path, GIB, 200 * MIB)).stderr
    match = re.search(r": ([\d.]+) MiB usable, 64\.0 MiB kept in reserve .*\ntry: .*; ([\d.]+) MiB more of the machine's memory would have been enough for this request\n$", line)
    assert match, line
    assert abs(float(match[2]) - (300 + 64 - float(match[1]))) < 0.25


@pytest.mark.parametrize("size", [1 << 43, 2 * GIB])
def test_nothing_would_have_been_enough_for_more_than_there_is(guard, tmp_path, size):
    line = ask(guard, size, env=machine(tmp_path, GIB, 900 * MIB)).stderr
    why = "try: a smaller request; this one needs more than this machine has above its reserve"
    assert re.search(rf"; see sparkguard-report \d+\n{why}\n$", line), line


MAP_FILE = """
import ctypes, mmap, os, sys
file = os.memfd_create("sparse")
os.truncate(file, 2 << 30)
os.pwrite(file, bytes(12 << 20), 64 << 20)
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
refused = ctypes.c_void_p(-1).value
print('refused' if libc.mmap(None, ctypes.c_size_t(2 << 30), 3, int(sys.argv[1]), file, ctypes.c_long(0)) == refused else 'granted')
"""


@pytest.mark.parametrize("kind, answer", [(mmap.MAP_SHARED, "refused"), (mmap.MAP_PRIVATE, "granted")])
def test_a_sparse_memory_file_is_told_to_be_one(guard, kind, answer):
    """Its whole size is judged: a program that means to use a part of it is told why that is so much."""
    done = guard.run([sys.executable, "-S", "-c", MAP_FILE, kind], env={"SPARKGUARD_LIMIT": "256M"})
    assert (done.returncode, done.stdout) == (0, answer + "\n")
    told = "sparkguard: refused mmap of 2.0 GiB of a memory file, which has 12.0 MiB of its 2.0 GiB allocated: "
    assert (told in done.stderr) == (answer == "refused")


def test_the_largest_process_of_the_job_is_named_for_a_limit(guard):
    env = {"SPARKGUARD_LIMIT": "200M", "SPARKGUARD_JOB": "two"}
    with Holder(guard, 20 * MIB, env), Holder(guard, 120 * MIB, env) as pid:
        with Holder(guard, 90 * MIB, {**env, "SPARKGUARD_JOB": "other"}):
            name = comm(pid)
            line = way_out(ask(guard, 90 * MIB, env=env))
    match = re.fullmatch(rf"try: SPARKGUARD_LIMIT=[\d.]+M; largest other: {re.escape(name)} {pid}, (12\d\.\d) MiB; a limit of ([\d.]+) MiB would have been enough for this request", line)
    assert match, line


def test_the_largest_guarded_process_is_named_for_the_reserve(guard, tmp_path):
    """3 GiB that are promised and untouched: no other process of this machine shows them."""
    env = machine(tmp_path, 4 * GIB, 7 * GIB // 2)
    with Holder(guard, 3 * GIB, env) as pid:
        ask_until(guard, rf"^try: end or shrink another program; largest other: \S+ {pid}, 3\.0 GiB; [\d.]+ MiB more of the machine's memory would have been enough for this request$", env)


OTHER_NAMESPACE = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]


@pytest.mark.parametrize("job, shown", [("serve", "serve"), ("j\u00f6b", "j??b")])
def test_a_holder_of_another_container_is_named_by_its_job(guard, tmp_path, job, shown):
    """Its PID is 1 there; here that is another process."""
    if subprocess.run([*OTHER_NAMESPACE, "true"], capture_output=True).returncode != 0:
        pytest.skip("PID namespaces need root")
    env = machine(tmp_path, 4 * GIB, 7 * GIB // 2)
    command = [*OTHER_NAMESPACE, "env", f"LD_PRELOAD={guard.library}", sys.executable, "-S", "-c", HOLD.format(bytes=3 * GIB, touch="pass")]
    holder = guard.popen(command, env={**env, "SPARKGUARD_JOB": job}, preload=[], stdin=subprocess.PIPE)
    try:
        assert holder.stdout.readline() == "ready\n"
        ask_until(guard, rf"; largest other: job {re.escape(shown)}, 3\.0 GiB; [\d.]+ MiB more of the machine's memory would", env)
    finally:
        holder.communicate("", timeout=60)


def anonymous_bytes(pid):
    try:
        with open(f"/proc/{pid}/statm") as file:
            resident, shared = map(int, file.read().split()[1:3])
    except (OSError, ValueError):
        return 0
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE")


def test_the_largest_unguarded_process_is_named(guard, tmp_path):
    """Asked again and again, because programs of others grow and end, and a search in /proc takes 20 ms at most."""
    env = machine(tmp_path, GIB, 100 * MIB)
    with Holder(guard, 400 * MIB, None, is_guarded=False, touch="m.write(bytes(400 << 20))") as pid:
        assert anonymous_bytes(pid) >= 400 * MIB

        def names_the_largest():
            line = way_out(ask(guard, 200 * MIB, env=env))
            match = re.search(r"; largest other: .+? (\d+), [\d.]+ [MG]iB, (?:unguarded|another user's); [\d.]+ MiB more", line)
            others = [int(p) for p in os.listdir("/proc") if p.isdigit()]
            return match and anonymous_bytes(int(match[1])) >= 0.8 * max(map(anonymous_bytes, others))

        wait_until(names_the_largest, "a refusal names the largest process")


def test_each_refusal_is_told_once_one_by_one_or_in_a_sum(guard):
    code = """
import ctypes, time
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
begin = now = time.monotonic()
first = None
while first is None or now - first < 1.2:
    now = time.monotonic()
    assert libc.malloc(ctypes.c_size_t(200 << 20)) is None
    first = first or time.monotonic()
print(time.monotonic() - begin)
"""
    done = ask(guard, code=code, env={"SPARKGUARD_LIMIT": "64M"})
    *lines, end = [line for line in done.stderr.splitlines() if not line.startswith("try: ")]
    assert done.stderr.count("\ntry: ") == len(lines)
    assert 2 <= len(lines) <= 1 + int(float(done.stdout)), "the first at once, and one in each second that has begun since"
    assert all(line.startswith("sparkguard: refused malloc of 200.0 MiB: ") for line in lines)
    assert "more refused" not in lines[0]
    sums = [re.search(r"(?:; and|^sparkguard: and) ([\d,]+) more refused in (?:\d+ ms|\d\.\d s)", line) for line in (*lines[1:], end)]
    assert all(sums), done.stderr
    reported = sum(int(found[1].replace(",", "")) for found in sums)
    assert reported + len(lines) == done.process()["refused_count"]
    assert all(re.fullmatch(r"\d{1,3}(,\d{3})*", found[1]) for found in sums)
    assert end.endswith(f"; see sparkguard-report {done.pid}")


def test_a_single_refusal_is_told_once(guard):
    assert ask(guard, 100 * MIB, env={"SPARKGUARD_LIMIT": "64M"}).stderr.count("\n") == 2


def test_a_child_tells_its_own_refusals_only(guard):
    code = """
import ctypes, os
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
for _ in range(5):
    libc.malloc(ctypes.c_size_t(200 << 20))
child = os.fork()
if child == 0:
    os._exit(0)
os.waitpid(child, 0)
"""
    done = ask(guard, code=code, env={"SPARKGUARD_LIMIT": "64M"})
    ends = [line for line in done.stderr.splitlines() if line.startswith("sparkguard: and ")]
    assert len(ends) == 1 and ends[0].startswith("sparkguard: and 4 more refused in "), done.stderr


def on_terminal(guard, columns):
    """What a refused program with a progress bar shows on a terminal."""
    code = "import os; os.write(2, b'\\repoch 3:  41%|####'); " + ASK.strip().replace("\n", "\n")
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, columns))
    process = guard.popen([sys.executable, "-S", "-c", code, 100 * MIB], env={"SPARKGUARD_LIMIT": "64M"}, stderr=theirs)
    os.close(theirs)
    process.communicate(timeout=60)
    return pty.read_all(ours)


def test_on_a_terminal_the_line_begins_at_the_first_column(guard):
    shown = on_terminal(guard, 0)
    assert b"\repoch 3:  41%|####\r\x1b[Ksparkguard: refused malloc of 100.0 MiB" in shown and b"\r\ntry: " in shown
    assert shown.count(b"\x1b") == 1 and shown.endswith(b"\r\n")


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_on_a_terminal_words_stay_whole(guard, columns):
    wide, narrow = on_terminal(guard, 0), on_terminal(guard, columns)
    rows = narrow.partition(b"\x1b[K")[2].decode().split("\r\n")
    assert max(map(len, rows)) <= columns < max(map(len, wide.decode().split("\r\n")))
    joined, whole = " ".join(rows), " ".join(wide.partition(b"\x1b[K")[2].decode().split("\r\n"))
    figures = r"[\d.]+( \w+|M)?"
    assert re.sub(figures, "N", joined) == re.sub(figures, "N", whole) and any(row.startswith("try: ") for row in rows)


def test_a_file_gets_no_escape_sequence(guard, tmp_path):
    with open(tmp_path / "log", "wb") as log:
        guard.popen([sys.executable, "-S", "-c", ASK, 100 * MIB], env={"SPARKGUARD_LIMIT": "64M"}, stderr=log).wait(60)
    text = (tmp_path / "log").read_bytes()
    assert text.startswith(b"sparkguard: refused malloc") and b"\x1b" not in text and b"\r" not in text


def test_program_after_an_exec_is_not_its_own_largest_other(place):
    code = f"malloc(1 * GIB)\nos.execv({str(place.admit_take)!r}, ['admit_take', 'malloc', '3G', 'wait'])"
    tenant = place.player(code, {"SPARKGUARD_LIMIT": "2G"})
    assert tenant.ready() == ["ok", "ENOMEM"]
    stderr = tenant.process.communicate("\n")[1]
    assert "may hold" in stderr and "largest other" not in stderr
