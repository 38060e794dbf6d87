"""What sparkguard-report says of the machine: what is usable, kept and promised, with cgroups and without."""

import json
import shutil
import struct
import subprocess
from contextlib import contextmanager

import pytest
from lib.units import GIB, MIB


def test_usable_is_available_less_promises_of_the_living(make, report):
    make(pid=1, **{"slot.promised_bytes": 50 * GIB}).write(report.directory)
    live = make(pid=2, state="running", **{"slot.promised_bytes": 3 * GIB, "slot.in_flight_bytes": GIB})
    with live.write_live(report.directory):
        machine = report.json()["machine"]
    assert machine["available_bytes"] == 100 * GIB
    assert machine["promised_bytes"] == 3 * GIB
    assert machine["usable_bytes"] == 96 * GIB
    assert machine["swap_used_bytes"] == GIB


def test_without_a_running_process_the_defaults_are_assumed(report):
    machine = report.json()["machine"]
    assert machine["reserve_bytes"] == 128 * GIB * 8 // 100
    assert machine["floor_bytes"] == machine["reserve_bytes"] // 4
    assert machine["unified"] is None and machine["devices"] == []
    report.machine(MemTotal=GIB, MemAvailable=GIB)
    assert report.json()["machine"]["reserve_bytes"] == GIB // 4


def test_running_processes_know_better(make, report):
    live = make(state="running").machine(time_ns=1, reserve_bytes=7 * GIB, floor_bytes=GIB, unified=0)
    with live.device(1, "GPU", 24 * GIB, 5 * GIB, reserve_mib=492).write_live(report.directory):
        machine = report.json()["machine"]
    assert (machine["reserve_bytes"], machine["floor_bytes"], machine["unified"]) == (7 * GIB, GIB, False)
    assert machine["devices"] == [
        {"index": 1, "name": "GPU", "total_bytes": 24 * GIB, "live_bytes": 5 * GIB, "reserve_bytes": 492 << 20}
    ]


def write_group(folder, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / f"memory.{name}").write_text(f"{text}\n")


def test_a_machine_that_cannot_be_read_is_unknown(report):
    shutil.rmtree(report.root)
    machine = report.json()["machine"]
    assert machine["total_bytes"] is None and machine["usable_bytes"] is None and machine["reserve_bytes"] is None
    assert report.run().stdout.startswith("machine -")


@pytest.mark.parametrize("path, is_ours", [("/a..b", True), ("/..a", True), ("/../x", False), ("/x/..", False)])
def test_only_a_component_of_two_dots_leads_outside(report, path, is_ours):
    (report.root / "proc/self/cgroup").write_text(f"0::{path}\n")
    tree = report.root / "sys/fs/cgroup"
    write_group(tree, max=16 * GIB, current=GIB)
    write_group(tree / path.lstrip("/"), max=4 * GIB, current=GIB)
    if not is_ours:
        (report.root / "sys/fs/cgroup/memory.max").write_text(str(16 * GIB))
        write_group(tree / "x", max=4 * GIB, current=GIB)
    assert report.json()["machine"]["cgroup_limit_bytes"] == (4 if is_ours else 16) * GIB


# ---- each constraint keeps its own reserve --------------------------------------------------------------------------


def box(report, version, limit=512 * MIB, used=2 * MIB):
    """A cgroup around us. What is page cache in it can be had."""
    cache = 30 * MIB
    if version == 2:
        (report.root / "proc/self/cgroup").write_text("0::/a..b/box\n")
        folder = report.root / "sys/fs/cgroup/a..b/box"
        stat = f"inactive_file {cache // 2}\nactive_file {cache // 4}\nslab_reclaimable {cache - cache // 2 - cache // 4}"
        write_group(folder, max=limit, high="max", current=used + cache, stat=stat)
    else:
        (report.root / "proc/self/cgroup").write_text("4:memory:/box\n")
        folder = report.root / "sys/fs/cgroup/memory/box"
        stat = f"inactive_file {GIB}\ntotal_inactive_file {cache // 2}\ntotal_active_file {cache - cache // 2}"
        write_group(folder, limit_in_bytes=limit, usage_in_bytes=used + cache, stat=stat)


def room(machine):
    return machine["usable_bytes"] - machine["reserve_bytes"]


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    "extra, reserve, floor",
    [
        ({}, 512 * MIB // 100 * 8, None),
        ({"SPARKGUARD_RESERVE": "12G"}, 128 * MIB, 32 * MIB),
        ({"SPARKGUARD_RESERVE": "25%", "SPARKGUARD_FLOOR": "10%"}, 128 * MIB, 512 * MIB // 10),
        ({"SPARKGUARD_RESERVE": "100M", "SPARKGUARD_FLOOR": "1G"}, 100 * MIB, 100 * MIB),
    ],
)
def test_a_cgroup_keeps_its_own_reserve(report, version, extra, reserve, floor):
    box(report, version)
    machine = json.loads(report.run("--json", **extra).stdout)["machine"]
    assert (machine["usable_bytes"], machine["cgroup_limit_bytes"]) == (510 * MIB, 512 * MIB)
    assert machine["reserve_bytes"] == pytest.approx(reserve, abs=100)
    assert machine["floor_bytes"] == pytest.approx(reserve // 4 if floor is None else floor, abs=100)
    assert 0 < room(machine) and machine["reserve_bytes"] <= 512 * MIB // 4
    assert "room 0 B" not in report.run(**extra).stdout


def test_the_tightest_constraint_is_the_one_with_the_least_room(report):
    box(report, 2, limit=64 * GIB, used=54 * GIB)  # 10 GiB less 5.1 GiB
    report.machine(MemTotal=128 * GIB, MemAvailable=12 * GIB)  # 12 GiB less 10.2 GiB
    machine = report.json()["machine"]
    assert machine["usable_bytes"] == 12 * GIB
    assert machine["reserve_bytes"] == pytest.approx(128 * GIB * 0.08, abs=100)
    report.machine(MemTotal=128 * GIB, MemAvailable=20 * GIB)
    machine = report.json()["machine"]
    assert machine["usable_bytes"] == 10 * GIB
    assert machine["reserve_bytes"] == pytest.approx(64 * GIB * 0.08, abs=100)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    "seen_limit, seen_reserve, is_taken",
    [
        (512 * MIB, 100 * MIB, True),  # other options
        (512 * MIB, 5 * GIB, False),  # noted when the machine was tighter
        (GIB, 100 * MIB, False),  # in another cgroup
        (-1, 10 * GIB, False),  # in none
    ],
)
def test_processes_bounded_as_we_are_know_better(make, report, version, seen_limit, seen_reserve, is_taken):
    box(report, version)
    live = make(state="running").machine(time_ns=1, reserve_bytes=seen_reserve, floor_bytes=MIB)
    with live.machine(cgroup_limit_bytes=seen_limit).write_live(report.directory):
        machine = report.json()["machine"]
    expected = (seen_reserve, MIB) if is_taken else (pytest.approx(512 * MIB * 0.08, abs=100), pytest.approx(MIB * 10.24))
    assert (machine["reserve_bytes"], machine["floor_bytes"]) == expected
    assert machine["usable_bytes"] == 510 * MIB


def identity(folder):
    """A cgroup's number in the registry, where each process lists those above it (preload/core/admit/cgroup.c)."""
    info = folder.stat()
    return (info.st_dev << 32 ^ info.st_ino) | 1 << 63


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("place", ["here", "elsewhere"])
def test_a_cgroup_is_charged_with_the_processes_in_it(make, report, version, place):
    box(report, version)
    ours = report.root / ("sys/fs/cgroup/a..b/box" if version == 2 else "sys/fs/cgroup/memory/box")
    is_within = place == "here"
    level = identity(ours if is_within else report.root)
    live = make(state="running", **{"slot.promised_bytes": 200 * MIB, "slot.in_flight_bytes": 100 * MIB})
    with live.write_live(report.directory, level=level):
        machine = report.json()["machine"]
    assert machine["usable_bytes"] == (210 if is_within else 510) * MIB
    assert machine["promised_bytes"] == 200 * MIB


def test_the_machine_is_charged_with_all(make, report):
    """A process outside our cgroup may leave the machine less room than the cgroup has."""
    box(report, 2)
    live = make(state="running", **{"slot.promised_bytes": 95 * GIB}).machine(time_ns=1, cgroup_limit_bytes=-1)
    with live.write_live(report.directory):
        machine = report.json()["machine"]
    assert machine["usable_bytes"] == 5 * GIB
    assert machine["reserve_bytes"] == pytest.approx(128 * GIB * 0.08, abs=100)


# ---- real processes -------------------------------------------------------------------------------------------------

HOLD = """
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int main(int argc, char **argv)
{
    char *volatile block = malloc((size_t)atol(argv[1]) << 20), byte;
    if (block == NULL)
        return 1;
    if (argc > 2)
        memset(block, 1, (size_t)atol(argv[1]) << 20);
    return write(1, "!", 1) != 1 || read(0, &byte, 1) < 0;
}
"""


@pytest.fixture(scope="module")
def hold(tmp_path_factory):
    """hold MIB [touch]: takes them in one piece, says so, waits for the end of its input."""
    program = tmp_path_factory.mktemp("hold") / "hold"
    source = ["-x", "c", "-", "-o", str(program)]
    subprocess.run(["cc", "-O1", "-fno-builtin", *source], input=HOLD, text=True, check=True)
    return program


@contextmanager
def running(guard, *command, **env):
    with guard.popen(command, env=env, stdin=subprocess.PIPE, stderr=None) as process:
        assert process.stdout.read(1) == "!"
        yield process
        process.stdin.close()
        assert process.wait(60) == 0


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("extra, reserve", [({}, 512 * MIB * 0.08), ({"SPARKGUARD_RESERVE": "12G"}, 128 * MIB)])
def test_the_report_agrees_with_a_process_in_the_same_cgroup(guard, report, hold, version, extra, reserve):
    box(report, version)
    with running(guard, hold, 100, SPARKGUARD_SYSTEM_ROOT=report.root, **extra):
        machine = report.json("--dir", guard.directory)["machine"]
    assert machine["reserve_bytes"] == pytest.approx(reserve, abs=100)
    assert room(machine) == pytest.approx(510 * MIB - 100 * MIB - reserve, abs=2 * MIB)


@pytest.mark.parametrize("touch, expected", [((), 300 * MIB), (("touch",), 0)])
def test_what_has_arrived_is_no_promise(guard, report, hold, touch, expected):
    with running(guard, hold, 300, *touch, SPARKGUARD_WATCHDOG="off") as process:  # it would look again
        (path,) = guard.directory.glob(f"{process.pid}-*.segment")
        (published,) = struct.unpack_from("Q", path.read_bytes(), 32)
        assert published >= 300 * MIB, "the process has looked again; it does not say what it should"
        data = report.json("--dir", guard.directory)
    (job,) = data["jobs"]
    for promised in (job["processes"][0]["promised_bytes"], data["machine"]["promised_bytes"]):
        assert promised == pytest.approx(expected, abs=4 * MIB)  # each thread may grow by 1 MiB that was not promised
    assert data["machine"]["usable_bytes"] == data["machine"]["available_bytes"] - data["machine"]["promised_bytes"]


@pytest.mark.parametrize("version", [None, 1, 2])
def test_the_report_agrees_with_what_the_library_publishes(guard, layout, report, hold, version):
    """A process notes what the machine has left before it takes its own: all that the others have been promised is gone."""
    if version is not None:
        box(report, version, limit=4 * GIB, used=GIB)
    roots = {"SPARKGUARD_SYSTEM_ROOT": report.root}
    with running(guard, hold, 300, **roots), running(guard, hold, 200, **roots):
        with running(guard, hold, 100, **roots) as last:
            (path,) = guard.directory.glob(f"{last.pid}-*.segment")
            offset = layout["sg_segment.machine"][0] + layout["sg_machine.usable_bytes"][0]
            (published,) = struct.unpack_from("Q", path.read_bytes(), offset)
            machine = report.json("--dir", guard.directory)["machine"]
    assert machine["promised_bytes"] == pytest.approx(600 * MIB, abs=2 * MIB)
    assert machine["usable_bytes"] + 100 * MIB == pytest.approx(published, abs=2 * MIB)


FORK = """
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
int main(void)
{
    char *volatile block = malloc((size_t)300 << 20), byte;
    pid_t child = fork();
    char *volatile other = child == 0 ? malloc((size_t)100 << 20) : block;
    if (block == NULL || other == NULL)
        return 1;
    if (child == 0)
        return write(1, "!", 1) != 1 || read(0, &byte, 1) < 0;
    return waitpid(child, NULL, 0) != child;
}
"""


def test_what_a_child_inherited_is_promised_once(guard, report, tmp_path):
    program = tmp_path / "forks"
    source = ["-x", "c", "-", "-o", str(program)]
    subprocess.run(["cc", "-O1", "-fno-builtin", *source], input=FORK, text=True, check=True)
    with running(guard, program, SPARKGUARD_SYSTEM_ROOT=report.root):
        data = report.json("--dir", guard.directory)
    (job,) = data["jobs"]
    parent, child = job["processes"]
    assert child["inherited_bytes"] == pytest.approx(300 * MIB, abs=MIB)
    assert parent["promised_bytes"] == pytest.approx(300 * MIB, abs=2 * MIB)
    assert child["promised_bytes"] == pytest.approx(100 * MIB, abs=2 * MIB)
    assert job["live_bytes"] == pytest.approx(400 * MIB, abs=2 * MIB)
    machine = data["machine"]
    assert machine["usable_bytes"] == machine["available_bytes"] - machine["promised_bytes"]
