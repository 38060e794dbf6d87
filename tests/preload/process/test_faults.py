"""Every system call that the library makes itself is made to fail, once each, in a program that goes all its ways.

build/fault/libsparkguard.so asks tests/preload/process/fault.c before each call. Whatever failed, the program says the same,
ends the same way and does not hang; and a process that could not see the machine says so in the report.
"""

import struct
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from lib.target import CC, IS_LONG, MACHINE, STRESS_DIVISOR

ROOT = Path(__file__).resolve().parents[3]

NAMES = ("openat", "fallocate", "flock", "mmap", "pwrite", "madvise", "sysinfo", "getdents", "renameat2")
NUMBERS = {
    "x86_64": (257, 285, 73, 9, 18, 28, 99, 217, 316),
    "aarch64": (56, 47, 32, 222, 68, 233, 179, 61, 276),
}
SYSCALL = dict(zip(NAMES, NUMBERS[MACHINE]))
SAME = "refused\nagain\nrefused\n"
MIB = 1 << 20


@pytest.fixture
def faulty(guard):
    guard.library = guard.build / "fault" / "libsparkguard.so"
    return guard


@pytest.fixture
def tour(build):
    return build / "tests/programs/fault_tour"


def read_log(path):
    """(calls, faults, numbers of the calls) of one run."""
    content = path.read_bytes()
    calls, faults = struct.unpack_from("=QQ", content)
    return calls, faults, struct.unpack_from(f"={min(calls, 4088)}H", content, 16)


def run_with(guard, tour, log, fault=None):
    environment = {"SG_FAULT_LOG": log, "SG_FAULT": fault, "SPARKGUARD_LIMIT": "1G"}
    return guard.run([tour], env=environment, timeout=60)


def broken(done):
    """What is wrong with this run of the tour; None if nothing is. Messages may come; crashes, other words may not."""
    said = [line for line in done.stderr.splitlines() if not line.startswith(("sparkguard: ", "try: "))]
    if (done.returncode, done.stdout, said) == (7, SAME, []):
        return None
    return f"status {done.returncode}, said {done.stdout!r}, {done.stderr!r}"


def test_tour_is_the_same_with_and_without_the_guard_but_for_the_refusal(guard, tour):
    plain = guard.run([tour], env={"LD_PRELOAD": None})
    assert plain.returncode == 7
    assert plain.stdout.replace("broken: 8 TiB granted", "refused") == SAME
    done = guard.run([tour], env={"SPARKGUARD_LIMIT": "1G"})
    assert broken(done) is None


def test_tour_makes_every_kind_of_call(faulty, tour, tmp_path):
    assert broken(run_with(faulty, tour, tmp_path / "log")) is None
    calls, faults, numbers = read_log(tmp_path / "log")
    assert faults == 0 and calls > 100
    assert {SYSCALL[name] for name in SYSCALL if name != "sysinfo"} <= set(numbers)


def instants(numbers):
    """Which calls are made to fail, from 1 on. In short: of each system call the first, the last and every fourth between them."""
    if IS_LONG:
        return list(range(1, len(numbers) + 1))
    places = {}
    for order, number in enumerate(numbers, 1):
        places.setdefault(number, []).append(order)
    chosen = sorted({order for orders in places.values() for order in [*orders[::4], orders[-1]]})
    return chosen[::STRESS_DIVISOR]


@pytest.mark.timeout_seconds(110)
def test_any_one_failing_call_leaves_the_program_as_it_was(faulty, tour, tmp_path):
    run_with(faulty, tour, tmp_path / "log")
    _, _, numbers = read_log(tmp_path / "log")

    def one(order):
        log = tmp_path / f"log-{order}"
        done = run_with(faulty, tour, log, order)
        return order, broken(done), read_log(log)[1]

    with ThreadPoolExecutor(3) as pool:
        results = list(pool.map(one, instants(numbers)))
    wrong = {f"call {order} (system call {numbers[order - 1]})": what for order, what, _ in results if what}
    assert wrong == {}
    # A look at the machine serves for 5 ms, so a run may need fewer calls than the first one; most must have been hit.
    assert sum(faults > 0 for _, _, faults in results) >= len(results) * 3 // 4


# The calls without which there is no segment: the program runs, and the report shows nothing of it or all of it.
@pytest.mark.parametrize("name", ["openat", "fallocate", "flock", "mmap", "pwrite"])
def test_segment_that_could_not_be_made_is_removed_and_said(faulty, build, tmp_path, name):
    number = SYSCALL[name]
    faulty.directory.mkdir(mode=0o700)
    command = [build / "tests/programs/dir_hold"]
    whole = faulty.run(command, env={"SG_FAULT_LOG": tmp_path / "log"})
    _, _, numbers = read_log(tmp_path / "log")
    assert whole.process()["state"] == "exited"
    for file in faulty.directory.iterdir():
        file.unlink()
    for nth in range(1, numbers.count(number) + 1):
        done = faulty.run(command, env={"SG_FAULT": f"{number}@{nth}:5"})
        assert (done.returncode, done.stdout) == (0, "ready\n")
        left = list(faulty.directory.iterdir())
        if left:  # the fault hit something the segment does not need
            assert done.stderr == "" and done.process()["peak_bytes"] >= 20 * MIB
        else:
            assert done.stderr.startswith("sparkguard: cannot keep statistics in "), (nth, done.stderr)
            assert done.stderr.count("\n") == 1
        for file in left:
            file.unlink()


FORKS = r"""
#include "sparkguard.h"
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
int main(void)
{
    struct sparkguard_stats before = {0}, after = {0};
    char *volatile block = malloc(300 << 20);
    sparkguard_call_stats(&before);
    if (fork() == 0) {
        free(block);
        _exit(0);
    }
    wait(NULL);
    sparkguard_call_stats(&after);
    printf("%lld\n", (long long)(before.live_bytes - after.live_bytes));
    return 0;
}
"""


def test_child_of_a_process_whose_segment_got_no_name_leaves_its_numbers_alone(faulty, tmp_path):
    (tmp_path / "forks.c").write_text(FORKS)
    subprocess.run([CC, "-I", str(ROOT / "include"), str(tmp_path / "forks.c"), "-o", str(tmp_path / "forks")], check=True)
    done = faulty.run([tmp_path / "forks"], env={"SG_FAULT": f"{SYSCALL['renameat2']}@1:2", "SG_FAULT_LOG": tmp_path / "log"})
    assert "cannot keep statistics" in done.stderr
    assert done.stdout == "0\n"


@pytest.mark.parametrize("name", ["mmap", "getdents"])
def test_directory_that_cannot_be_swept_is_left_as_it_is(faulty, build, tmp_path, name):
    faulty.directory.mkdir(mode=0o700)
    command = [build / "tests/programs/dir_hold"]
    for nth in (1, 2, 3):
        for i in range(140):
            (faulty.directory / f"{i + 100}-{i:016x}.segment").write_bytes(b"x")
        done = faulty.run(command, env={"SG_FAULT": f"{SYSCALL[name]}@{nth}", "SG_FAULT_LOG": tmp_path / "log"})
        assert (done.returncode, done.stdout) == (0, "ready\n")
        assert read_log(tmp_path / "log")[1] == nth  # one more each time: it is the same file
        assert len(list(faulty.directory.iterdir())) >= 64


def test_process_that_cannot_see_the_machine_says_not_guarding_and_grants(faulty, build, tmp_path):
    # Neither /proc/meminfo (an empty system root) nor sysinfo(2), at its only look.
    (tmp_path / "root").mkdir()
    environment = {"SPARKGUARD_SYSTEM_ROOT": tmp_path / "root", "SG_FAULT_LOG": tmp_path / "log"}
    environment["SG_FAULT"] = f"{SYSCALL['sysinfo']}@1"
    done = faulty.run([build / "tests/programs/dir_hold"], env=environment)
    assert (done.returncode, done.stdout) == (0, "ready\n")
    assert read_log(tmp_path / "log")[1] == 1
    process = done.process()
    whats = [event["what"] for event in process["events"]]
    assert whats and whats[0].startswith("not guarding")
    assert not process["guarding"]
