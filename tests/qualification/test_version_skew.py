"""Two versions of the library on one machine share one ledger, whichever made it. The other version is built here: the same sources
with larger entries and another segment behind what is frozen."""

import contextlib
import gzip
import json
import os
import shutil
import signal
import struct
import subprocess
import time
from pathlib import Path

import pytest
from lib.ledger import BEGIN, ENTRY, FILE_BYTES, LEDGER, SHARING, VERSION, Ledger
from lib.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
GIB, MIB = 1 << 30, 1 << 20
NEAR = 4 * MIB
LEFT = 8 * GIB  # of 10 GiB when 2 are kept

CHANGES = {
    '#define SG_VERSION_TEXT "0.1.0"': '#define SG_VERSION_TEXT "0.9.0"',
    f"#define SG_ABI_VERSION {VERSION}u": f"#define SG_ABI_VERSION {VERSION + 1}u",
    f"#define SG_REGISTRY_VERSION {VERSION}u": f"#define SG_REGISTRY_VERSION {VERSION + 1}u",
    "    struct sg_memory_file file[SG_FILE_CAPACITY];\n    uint64_t file_bytes;": "    uint64_t news[64];\n"
    "    struct sg_memory_file file[SG_FILE_CAPACITY];\n    uint64_t file_bytes;",
    "    struct sg_slot slot;\n\n    uint64_t segment_bytes;": "    struct sg_slot slot;\n    uint64_t news[8];\n    uint64_t segment_bytes;",
}


def build(sources):
    """libsparkguard.so of other sources."""
    cuda = subprocess.run(["scripts/install-deps", "--cuda-home"], cwd=ROOT, check=True, capture_output=True, text=True)
    env = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "BUILD", "SAN", "CROSS")}
    make = ["make", "-s", f"-j{os.cpu_count()}", "library", "BUILD=build", "CFLAGS=-O0", f"CUDA_HOME={cuda.stdout.strip()}"]
    done = subprocess.run(make, cwd=sources, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return sources / "build/libsparkguard.so"


@pytest.fixture(scope="session")
def other_library(tmp_path_factory):
    """libsparkguard.so of the next version."""
    sources = tmp_path_factory.mktemp("next")
    for name in ("Makefile", "include", "preload", "tools", "tests", "scripts"):
        (sources / name).symlink_to(ROOT / name)
    (sources / "include").unlink()
    shutil.copytree(ROOT / "include", sources / "include")
    header = sources / "include/sparkguard_abi.h"
    text = header.read_text()
    for before, after in CHANGES.items():
        assert text.count(before) == 1, before
        text = text.replace(before, after)
    header.write_text(text)
    return build(sources)


class Place:
    """A machine of 10 GiB that stands still, where programs run under the one library or the other."""

    def __init__(self, guard, other_library, folder, stack):
        self.guard, self.stack = guard, stack
        self.library = {"ours": guard.library, "theirs": other_library}
        (folder / "root/proc").mkdir(parents=True)
        kib = 10 * GIB // 1024
        (folder / "root/proc/meminfo").write_text(f"MemTotal: {kib} kB\nMemFree: {kib} kB\nMemAvailable: {kib} kB\n")
        self.env = {"SPARKGUARD_SYSTEM_ROOT": folder / "root", "SPARKGUARD_RESERVE": "2G", "SPARKGUARD_JOB": "job"}

    def start(self, which, commands, **extra):
        """A program under one of the libraries; it goes on from "wait" at a line."""
        command = [self.guard.build / "tests/programs/admit_take", *commands.split(), "wait"]
        env = {**self.env, **extra}
        process = self.guard.popen(command, env=env, preload=[self.library[which]], stdin=subprocess.PIPE)
        self.stack.callback(process.communicate)
        self.stack.callback(process.kill)
        return process

    def answers(self, process):
        """What it has said until it is ready."""
        said = []
        for line in iter(process.stdout.readline, "ready\n"):
            assert line, f"{process.wait()}: {process.stderr.read()}"
            said.append(line.strip())
        return said

    def run(self, which, commands, **extra):
        process = self.start(which, commands, **extra)
        process.answers = self.answers(process)
        return process

    def left(self, which):
        process = self.run(which, "largest")
        process.kill()
        return int(process.answers[0])


@pytest.fixture
def place(guard, other_library, tmp_path):
    with contextlib.ExitStack() as stack:
        yield Place(guard, other_library, tmp_path, stack)


@pytest.mark.parametrize("first, second", [("ours", "theirs"), ("theirs", "ours")])
def test_each_counts_what_the_other_was_promised(place, first, second):
    place.run(first, "malloc 1M")  # it came first
    holders = [place.run(second, "malloc 2G"), place.run(first, "malloc 1G")]
    for which in (first, second):
        assert LEFT - 3 * GIB - 2 * NEAR <= place.left(which) <= LEFT - 3 * GIB, which
    assert place.run(first, "malloc 6G").answers == place.run(second, "malloc 6G").answers == ["ENOMEM"]
    for holder in holders:
        holder.kill()
        holder.wait()
    for which in (first, second):
        assert place.left(which) >= LEFT - 3 * NEAR, f"{which}: the dead count no more"


@pytest.mark.parametrize("first, second", [("ours", "theirs"), ("theirs", "ours")])
def test_of_two_that_ask_at_once_not_both_get_what_is_there_once(place, amount, first, second):
    place.run(first, "malloc 1M")
    place.run(second, "malloc 1M")
    for _ in range(amount(short=5, long=200)):
        asking = [place.start(which, "wait malloc 5G") for which in (first, second)]
        for process in asking:
            place.answers(process)
        for process in asking:
            process.stdin.write("\n")
            process.stdin.flush()
        said = [place.answers(process)[0] for process in asking]
        for process in asking:
            process.kill()
            process.wait()
        assert said.count("ok") == 1, said


@contextlib.contextmanager
def stopped_at_looks(place, process, tmp_path):
    """It stops whenever it has read how much is available: what others have, it has seen before."""
    meminfo = place.env["SPARKGUARD_SYSTEM_ROOT"] / "proc/meminfo"
    stop = ["-e", "inject=read,pread64:signal=SIGSTOP"]
    command = ["strace", "-o", tmp_path / "trace", "-P", meminfo, *stop, "-p", str(process.pid)]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as strace:
        try:
            if b"attached" not in strace.stderr.readline():
                pytest.skip("strace may not trace here")
            yield
        finally:
            strace.terminate()


def state_of(process):
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]


def is_judged(directory, process):
    """Whether a request of the process has a place in the order."""
    content = (directory / "machine.ledger").read_bytes()
    size = int.from_bytes(content[LEDGER["entry_bytes"][0] :][:4], "little")
    for at in range(BEGIN, len(content), size):
        pid, ticket = (int.from_bytes(content[at + ENTRY[f][0] :][: ENTRY[f][1]], "little") for f in ("pid", "ticket"))
        if pid == process.pid and ticket != 0:
            return True
    return False


@pytest.mark.parametrize("first, second", [("ours", "theirs"), pytest.param("theirs", "ours", marks=pytest.mark.long)])
@pytest.mark.parametrize("slow_is_second", [False, True])
def test_who_is_slow_between_snapshot_and_grant_gets_nothing_that_the_other_has_by_then(
    place, guard, tmp_path, first, second, slow_is_second
):
    place.run(first, "malloc 1M")
    place.run(second, "malloc 1M")
    slow, quick = [place.start(which, "wait malloc 5G wait") for which in (first, second)[:: -1 if slow_is_second else 1]]
    place.answers(slow)
    place.answers(quick)
    with stopped_at_looks(place, slow, tmp_path):
        slow.stdin.write("\n")
        slow.stdin.flush()
        while state_of(slow) not in "tT" or not is_judged(guard.directory, slow):
            slow.send_signal(signal.SIGCONT)
            time.sleep(0.02)  # poll: it stopped with a place in the order
        quick.stdin.write("\n")
        quick.stdin.flush()
        said = place.answers(quick)
    slow.send_signal(signal.SIGCONT)
    assert sorted(said + place.answers(slow)) == ["ENOMEM", "ok"]


def test_limit_is_the_jobs_whichever_version_its_processes_have(place):
    limit = {"SPARKGUARD_LIMIT": "3G"}
    place.run("ours", "malloc 1M", **limit)
    place.run("theirs", "malloc 2G", **limit)
    assert place.run("ours", "malloc 2G", **limit).answers == ["ENOMEM"]
    assert place.run("theirs", "malloc 2G", **limit).answers == ["ENOMEM"]


def test_report_says_in_a_sentence_what_it_cannot_read_and_shows_the_rest(place, guard):
    ours, theirs = place.run("ours", "malloc 1G"), place.run("theirs", "malloc 1G")
    shown = guard.report_command("--all")
    assert shown.returncode == 3 and f"{ours.pid}" in shown.stdout
    assert shown.stderr.count("\n") == 1 and f"/{theirs.pid}-" in shown.stderr
    assert f"written by ABI version {VERSION + 1}, this tool reads version {VERSION}; use the report of that version" in shown.stderr


@pytest.mark.parametrize("first", ["ours", "theirs"])
@pytest.mark.parametrize("which, other", [("ours", "theirs"), ("theirs", "ours")])
def test_promises_beside_shared_memory_count_for_the_other_version(place, first, which, other):
    """Each version shows memory files in its own form: none may take for its own what the other shows."""
    place.run(first, "malloc 1M")
    place.run(which, "shared 1G fork malloc 3G")
    assert LEFT - 5 * GIB - 3 * NEAR <= place.left(other) <= LEFT - 4 * GIB


@pytest.mark.parametrize("first", ["ours", "theirs"])
def test_both_share_one_ledger(place, guard, first):
    place.run(first, "malloc 1M")
    ours, theirs = place.run("ours", "malloc 1M"), place.run("theirs", "malloc 1M")
    assert [file.name for file in guard.directory.glob("*.ledger*")] == ["machine.ledger"]
    for process in (ours, theirs):
        (segment,) = [file.read_bytes() for file in guard.directory.glob(f"{process.pid}-*.segment")]
        assert segment[84] & SHARING, "slot.flags"
    shown = guard.report_command("--json", "--all")  # and which files it could not read
    (mine,) = [p for job in json.loads(shown.stdout)["jobs"] for p in job["processes"] if p["pid"] == ours.pid]
    assert mine["sharing"] and mine["events"] == []


def has_entry(ledger, pid):
    """In a ledger of either version. What all versions have is at the same place in each entry."""
    content, (at, size) = ledger.read_bytes(), ENTRY["pid"]
    (step,) = struct.unpack_from("=I", content, LEDGER["entry_bytes"][0])
    return any(content[begin + at : begin + at + size] == pid.to_bytes(size, "little") for begin in range(BEGIN, len(content), step))


@pytest.mark.parametrize("which, other", [("ours", "theirs"), ("theirs", "ours")])
def test_who_loses_the_ledger_joins_the_one_that_the_other_version_makes(place, guard, which, other):
    """Its entries have another size from then on."""
    holder = place.start(which, "malloc 1G wait malloc 1M shared 64M")
    place.answers(holder)
    (guard.directory / "machine.ledger").unlink()
    place.run(other, "malloc 2G")
    wait_until(lambda: has_entry(guard.directory / "machine.ledger", holder.pid), "its watchdog looks whether the ledger is in its place")
    holder.stdin.write("\n")
    holder.stdin.flush()
    assert place.answers(holder)[0] == "ok"
    for one in (which, other):
        assert LEFT - 3 * GIB - 64 * MIB - 3 * NEAR <= place.left(one) <= LEFT - 3 * GIB, one


# ---- stored bytes of each version: of a process that had been granted 3 GiB, refused 6, and was killed -----------------------


def stored(version, name):
    return gzip.decompress((Path(__file__).parent / f"version-{version}" / name).read_bytes())


@pytest.mark.parametrize("version", range(2, VERSION + 1))
def test_stored_segment_reads_as_it_did(guard, version):
    content = stored(version, "segment.gz")
    assert int.from_bytes(content[8:12], "little") == version
    guard.directory.mkdir(mode=0o700)
    (guard.directory / "4711-0000000000000001.segment").write_bytes(content)
    (process,) = guard.processes()
    assert (process["state"], process["guarding"], process["mode"]) == ("killed", True, "enforce")
    assert process["domains"]["heap"]["live_bytes"] == process["live_bytes"]
    assert (process["live_bytes"], process["peak_bytes"]) == (3221237760, 3222278128)
    assert process["promised_bytes"] == 0 and process["refused_count"] == 1
    (refusal,) = process["refusals"]
    assert (refusal["call"], refusal["domain"], refusal["reason"], refusal["size_bytes"] >> 30) == ("malloc", "heap", "reserve", 6)
    assert [phase["name"] for phase in process["phases"]] == [] and process["command"].endswith("malloc 3G malloc 6G wait")
    assert [(site["library"], site["bytes"] >> 30) for site in process["blocks"]] == [("admit_take", 3)]


def test_layout_is_that_of_the_stored_bytes_of_its_version(guard):
    """Whoever changes the layout raises the version and stores bytes of the new one beside the old ones, which stay as they are."""
    done = guard.run([guard.build / "tests/programs/admit_take", "malloc", "64M"])
    assert done.returncode == 0, done.stderr
    (segment,) = [file.read_bytes() for file in guard.directory.glob("*.segment")]
    for name, made, end in (("segment.gz", segment, 140), ("ledger.gz", (guard.directory / "machine.ledger").read_bytes(), 20)):
        kept = stored(VERSION, name)
        begin = 8 if end == 20 else 128  # version, bytes of an entry, entries; or bytes of the segment, records
        assert made[8:12] == kept[8:12] and made[begin:end] == kept[begin:end], name


@pytest.mark.parametrize("version, stated", [*((v, v) for v in range(2, VERSION + 1)), (VERSION, 7)])
def test_entry_of_the_stored_ledger_counts(place, guard, version, stated):
    """Also when this library calls itself another version: then by what is frozen."""
    content = bytearray(stored(version, "ledger.gz").ljust(FILE_BYTES, b"\0"))
    offset, size = LEDGER["version"]
    content[offset : offset + size] = stated.to_bytes(size, "little")
    guard.directory.mkdir(mode=0o700)
    ledger = Ledger(guard.directory)
    ledger.path.write_bytes(content)
    with ledger, ledger.locked(0):
        assert LEFT - 3 * GIB - 2 * NEAR <= place.left("ours") <= LEFT - 3 * GIB
    assert place.left("ours") >= LEFT - NEAR
