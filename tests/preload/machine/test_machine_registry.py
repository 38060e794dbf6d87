"""The registry that all guarded processes of a machine share: one that cannot be used, goes, is full, or says what cannot be."""

import contextlib
import ctypes
import errno
import os
import random
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from giving import ask
from lib.ledger import BEGIN, CHOOSING, EMPTY, ENTRY, ENTRY_BYTES, FILE_BYTES, FIRST, LEDGER, LIVE, ROOM, SHARING, VERSION, hash_of
from lib.machine import GIB, LEFT, MIB, NEAR, Place, needs_root, slept
from lib.target import IS_LONG, MACHINE
from lib.waiting import wait_until

WAIT_SECONDS = 3  # seconds that anybody may be held up by somebody else
# A request that waits looks after 1, 2, 4, 8, 16 and 32 ms, and then every 50 ms (preload/core/admit/wait.c): 65 times in three seconds. A busy
# machine makes that no more. A program of these tests sleeps 4 times besides.
LOOKS = 65
AT_ONCE = 20  # sleeps: less than half a second


CHECK_NS = 500_000_000  # between two looks whether the ledger is in its place (preload/core/shared/registry.c)


def wait_for_looks(ledger, numbers, looks=2):
    """Until the watchdogs of these entries, in the ledger that is open, have looked so often whether it is in its place."""
    for _ in range(looks):
        due = time.monotonic_ns() + CHECK_NS
        wait_until(lambda due=due: min(ledger.get("watched_ns", number) for number in numbers) >= due)


# ---- a ledger that cannot be used ----


def well_made(**header):
    content = bytearray(FILE_BYTES)
    words = {"magic": 0x524744454C475053, "version": VERSION, "entry_bytes": ENTRY_BYTES, "entry_capacity": ROOM, **header}
    content[:8] = words["magic"].to_bytes(8, "little")
    for offset, name in ((8, "version"), (12, "entry_bytes"), (16, "entry_capacity")):
        content[offset : offset + 4] = words[name].to_bytes(4, "little")
    return bytes(content)


UNUSABLE = {
    "empty": b"",
    "header_only": well_made()[:4096],
    "cut_by_a_byte": well_made()[:-1],
    "no_magic": well_made(magic=0),
    "larger_entries": well_made(entry_bytes=4096),
    "larger_entries_of_the_next_version": well_made(version=VERSION + 1, entry_bytes=4096),
    "odd_entries_of_the_next_version": well_made(version=VERSION + 1, entry_bytes=513),
    "no_entries": well_made(entry_capacity=0),
    "all_ones": b"\xff" * FILE_BYTES,
}


def assert_goes_on_alone(place):
    tenant = place.holder("malloc 64M largest malloc 16G small 1K 1M fork malloc 20M")
    assert tenant.answers[0] == "ok" and tenant.answers[2:] == ["ENOMEM", MIB, "ok"]
    assert LEFT - 64 * MIB - NEAR <= tenant.answers[1] <= LEFT - 64 * MIB
    place.assert_alone(tenant.pid)
    tenant.end()
    place.assert_left(LEFT)


def put(place, content):
    place.guard.directory.mkdir(mode=0o700)
    place.ledger.path.write_bytes(content)
    place.ledger.path.chmod(0o600)


@pytest.mark.parametrize("what", UNUSABLE)
def test_ledger_that_is_no_ledger_is_left_alone(place, what):
    put(place, UNUSABLE[what])
    place.guard.has_untrusted_files = what in ("empty", "no_magic", "all_ones")
    assert_goes_on_alone(place)
    assert place.ledger.path.read_bytes() == UNUSABLE[what]


def test_sparse_ledger_is_filled_before_it_is_used(place):
    put(place, b"")
    with open(place.ledger.path, "r+b") as file:
        file.truncate(FILE_BYTES)
        file.write(well_made()[:64])
    place.holder("malloc 3G")
    assert place.ledger.path.stat().st_blocks * 512 >= FILE_BYTES
    place.assert_left(LEFT - 3 * GIB)


def without_fallocate(place):
    """The beginning of a command that runs a program as on a file system that has no fallocate."""
    program = place.guard.build / "tests/programs/host_deny"
    call = {"x86_64": 285, "aarch64": 47}[MACHINE]
    if subprocess.run([program, str(call), str(errno.EOPNOTSUPP), "/bin/true"], check=False).returncode == 77:
        pytest.skip("no seccomp here")
    return program, call, errno.EOPNOTSUPP


def test_who_joins_a_sparse_ledger_without_fallocate_wipes_nothing(place):
    """Such as NFS, or a file system that compresses: only the maker of the ledger fills it with zeros."""
    deny = without_fallocate(place)
    place.holder("malloc 3G")
    file = os.open(place.ledger.path, os.O_RDWR)
    hole = ctypes.c_long(BEGIN + 64 * ENTRY_BYTES), ctypes.c_long(FILE_BYTES - BEGIN - 64 * ENTRY_BYTES)
    assert ctypes.CDLL(None).fallocate(file, 1 | 2, *hole) == 0, "KEEP_SIZE | PUNCH_HOLE"
    assert os.fstat(file).st_blocks * 512 < FILE_BYTES
    os.close(file)
    newcomer = place.holder("malloc 1G", prefix=deny)
    assert place.flags(newcomer.pid) & SHARING
    place.assert_left(LEFT - 4 * GIB)


def test_ledger_is_made_whole_without_fallocate(place):
    first = place.holder("malloc 3G", prefix=without_fallocate(place))
    assert place.flags(first.pid) & SHARING
    assert place.ledger.path.stat().st_blocks * 512 >= FILE_BYTES
    place.assert_left(LEFT - 3 * GIB)


@needs_root
def test_strangers_ledger_is_left_alone(place):
    put(place, well_made())
    os.chown(place.ledger.path, 4711, 4711)
    assert_goes_on_alone(place)
    assert place.ledger.path.read_bytes() == well_made()


@pytest.mark.parametrize("what", ["directory", "fifo", "link", "dangling_link"])
def test_what_is_no_file_in_the_place_of_the_ledger_is_left_alone(place, tmp_path, what):
    place.guard.directory.mkdir(mode=0o700)
    if what == "directory":
        place.ledger.path.mkdir()
    elif what == "fifo":
        os.mkfifo(place.ledger.path)
    else:
        place.ledger.path.symlink_to(tmp_path / "elsewhere")
        if what == "link":
            (tmp_path / "elsewhere").write_bytes(well_made())
    place.guard.has_untrusted_files = True
    assert_goes_on_alone(place)
    if what == "link":
        assert (tmp_path / "elsewhere").read_bytes() == well_made()
    assert what != "dangling_link" or not (tmp_path / "elsewhere").exists()


def test_no_room_for_the_ledger_is_survived_and_nothing_is_left_of_it(place, own_mounts):
    place.guard.directory.mkdir()
    mount = 'mount -t tmpfs -o size=256k,mode=700 none "$0"'
    show = 'ls -A "$0"; cat "$0"/*.segment | tr -c "[:print:]" "\\n"'
    script = f'{mount} && LD_PRELOAD={place.guard.library} "$@"; {show}'
    command = [*own_mounts, "sh", "-c", script, place.guard.directory, place.admit_take]
    done = place.guard.run([*command, *"malloc 64M malloc 16G".split()], env={**place.env, "LD_PRELOAD": None})
    assert done.stdout.startswith("ok\nENOMEM\n") and done.stderr.count("\n") == 2, done.stderr
    assert "machine.ledger" not in done.stdout
    assert "not sharing: no room" in done.stdout


# ---- a ledger that goes while it is used ----


def test_ledger_may_be_removed_while_processes_run(place):
    """Those who come meet in a new one; those who are there go there when they need room."""
    first = place.holder("malloc 3G wait malloc 16G")
    second = place.holder("malloc 1G wait malloc 2G")
    place.ledger.path.unlink()
    newcomer = place.holder("malloc 500M")
    assert place.ledger.path.exists()
    assert first.go().ready() == ["ENOMEM"]
    assert second.go().ready() == ["ok"]
    place.assert_left(LEFT - 3 * GIB - 500 * MIB)
    for tenant in (first, second, newcomer):
        assert place.flags(tenant.pid) & SHARING
        tenant.end()
    place.assert_left(LEFT)


def test_directory_may_be_removed_while_processes_run(place):
    tenant = place.holder("malloc 3G wait malloc 16G malloc 1G small 64K 20M")
    for file in place.guard.directory.iterdir():
        file.unlink()
    place.guard.directory.rmdir()
    assert tenant.go().ready() == ["ENOMEM", "ok", 20 * MIB]
    tenant.end()
    place.assert_left(LEFT)


def remove(directory):
    for file in directory.iterdir():
        file.unlink()
    directory.rmdir()


def has_joined(place, pid):
    place.ledger.close()  # another file has the name by now
    with contextlib.suppress(OSError, ValueError):
        return place.ledger.of(pid) is not None


def test_promises_count_for_newcomers_soon_after_the_directory_was_removed(place):
    """The processes ask for nothing: their watchdogs see that those who come meet elsewhere."""
    tenants = [place.holder("malloc 3G"), place.holder("malloc 1G")]
    remove(place.guard.directory)
    newcomer = place.holder("malloc 500M")
    wait_until(lambda: all(has_joined(place, tenant.pid) for tenant in tenants))
    place.assert_left(LEFT - 4 * GIB - 500 * MIB)
    newcomer.kill()
    place.assert_left(LEFT - 4 * GIB)


def test_process_without_a_watchdog_joins_the_new_directory_with_its_next_request(place):
    tenant = place.holder("malloc 3G wait small 64K 2M wait", {"SPARKGUARD_WATCHDOG": "off"})
    remove(place.guard.directory)
    place.holder("malloc 500M")
    time.sleep(CHECK_NS / 1e9)  # pace: a request looks at the ledger's place if the last look is CHECK_NS ago (preload/core/shared/registry.c)
    tenant.go().ready()
    place.ledger.close()
    place.assert_left(LEFT - 3 * GIB - 500 * MIB)


def shown(place, pid):
    """The report's entry of a process, {} where there is none."""
    found = place.guard.processes(pid)
    assert len(found) <= 1
    return found[0] if found else {}


def test_report_shows_processes_whose_directory_was_removed(place):
    """They go on with the figures that they had, and what comes later is added, to the end."""
    tenant = place.holder("malloc 1G touch 0 malloc 2G wait malloc 1G fork malloc 20M touch 3 wait")
    wait_until(lambda: shown(place, tenant.pid)["promised_bytes"] <= 2 * GIB + NEAR)  # what is touched is promised until the kernel is asked
    before = shown(place, tenant.pid)
    remove(place.guard.directory)
    newcomer = place.holder("malloc 500M")
    wait_until(lambda: shown(place, tenant.pid))
    report, after = place.guard.report(), shown(place, tenant.pid)
    assert report["machine"]["sharing"] and after["sharing"] and after["state"] == "running"
    assert report["jobs"][0]["live_bytes"] >= 3 * GIB + 500 * MIB
    for key in ("pid", "started", "command", "live_bytes", "peak_bytes", "blocks", "domains", "parent_pid"):
        assert after[key] == before[key], key
    # A thread may have taken credit or given it back meanwhile (SG_CREDIT_MAX in preload/core/account/ledger.h), and a later scan finds pages
    # that the kernel has not counted before (64 of a thread).
    assert abs(before["promised_bytes"] - after["promised_bytes"]) <= MIB
    tenant.go().ready()
    wait_until(lambda: shown(place, tenant.pid)["live_bytes"] >= 4 * GIB)
    children = [process for process in place.guard.processes() if process["parent_pid"] == tenant.pid]
    assert [child["live_bytes"] >= 20 * MIB for child in children] == [True], "the child has a record of its own"
    tenant.kill()
    assert shown(place, tenant.pid)["state"] == "killed" and shown(place, tenant.pid)["peak_bytes"] >= 4 * GIB
    newcomer.end()
    assert shown(place, newcomer.pid)["state"] == "exited"


def test_what_ends_after_its_directory_was_removed_is_on_record(place):
    """Every refusal at once, and the end."""
    killed, ended = (place.holder("malloc 1G wait malloc 16G small 64K 1M") for _ in range(2))
    for _ in range(2):  # it may be removed again
        remove(place.guard.directory)
        place.holder("malloc 1M").kill()
        wait_until(lambda: shown(place, killed.pid) and shown(place, ended.pid))
    assert killed.go().ready()[0] == "ENOMEM"
    killed.kill()
    ended.go().ready()
    ended.end()
    assert [refusal["size_bytes"] >> 30 for refusal in shown(place, killed.pid)["refusals"]] == [16]
    assert shown(place, killed.pid)["state"] == "killed"
    assert shown(place, ended.pid)["state"] == "exited" and shown(place, ended.pid)["exit_code"] == 0
    assert shown(place, ended.pid)["refused_count"] == 1


def test_time_line_goes_on_in_the_new_directory(place):
    tenant = place.holder("malloc 1G wait malloc 16G")
    wait_until(lambda: list(place.guard.directory.glob(f"{tenant.pid}-*.timeline")))
    remove(place.guard.directory)
    place.holder("malloc 1M").kill()
    wait_until(lambda: list(place.guard.directory.glob(f"{tenant.pid}-*.timeline")))
    tenant.go().ready()
    (line,) = place.guard.directory.glob(f"{tenant.pid}-*.timeline")
    before = line.read_bytes()
    assert before[:8] == b"SPGTIMEL" and int.from_bytes(before[12:16], "little") > 0
    wait_until(lambda: line.read_bytes() != before)


def test_process_that_leaves_nothing_leaves_nothing_in_the_new_directory(place):
    tenant = place.holder("malloc 8M free 0 wait small 64K 2M")
    remove(place.guard.directory)
    newcomer = place.holder("malloc 1G")
    tenant.go().ready()
    tenant.end()
    assert shown(place, tenant.pid) == {} and shown(place, newcomer.pid)["state"] == "running"


@needs_root
@pytest.mark.parametrize("mode", [0o2770, 0o700])
def test_nobody_joins_the_directory_that_somebody_else_made_in_place_of_a_removed_one(place, mode):
    """He may have put a ledger there that says what he likes."""
    place.guard.directory.mkdir()
    place.guard.directory.chmod(mode)
    first, second = place.holder("malloc 3G wait malloc 16G malloc 4G"), place.holder("malloc 1G")
    numbers = [place.ledger.of(tenant.pid) for tenant in (first, second)]
    remove(place.guard.directory)
    put(place, well_made())
    place.guard.directory.chmod(mode)
    os.chown(place.guard.directory, 4711, 4711)
    os.chown(place.ledger.path, 4711, 4711)
    content = place.ledger.path.read_bytes()
    wait_for_looks(place.ledger, numbers)
    assert first.go().ready() == ["ENOMEM", "ok"]
    assert place.ledger.path.read_bytes() == content


def test_who_finds_a_ledger_that_cannot_be_used_in_the_place_of_his_says_so(place):
    tenant = place.holder("malloc 3G wait malloc 16G")
    place.ledger.path.unlink()
    place.ledger.path.write_bytes(well_made(version=9, entry_bytes=8))
    assert tenant.go().ready() == ["ENOMEM"]
    place.assert_alone(tenant.pid, "another version")
    tenant.end()


def put_foreign(place, entry_bytes, parent_entry=0, is_flying=False):
    """A ledger of the next version: its second entry is somebody's who has been promised 2 GiB, and may have 1 GiB in flight
    or, with `parent_entry`, from its parent there."""
    content = bytearray(BEGIN + ROOM * entry_bytes)
    content[:BEGIN] = well_made(version=VERSION + 1, entry_bytes=entry_bytes)[:BEGIN]
    content[20:24] = (3).to_bytes(4, "little")  # entry_used
    live = {"claim": 1 << 2 | LIVE}
    child = {"parent_entry": parent_entry, "parent_claim": 1 << 2 | LIVE, "inherited_promise_bytes": GIB}
    flying = {"in_flight_bytes": GIB, "bounded_flight_bytes": GIB}
    promised = {"granted_bytes": 2 * GIB, "promised_bytes": 2 * GIB}
    for number, values in ((1, live | promised | (child if parent_entry else flying if is_flying else {})), (0, live)):
        for field, value in values.items():
            offset, size = ENTRY[field]
            at = BEGIN + number * entry_bytes + offset
            content[at : at + size] = value.to_bytes(size, "little")
    put(place, content)


@pytest.mark.parametrize("entry_bytes", [512, 1024, 4096])
def test_processes_of_another_version_count(place, entry_bytes):
    put_foreign(place, entry_bytes)
    with place.ledger.locked(1):
        tenant = place.holder("malloc 4G malloc 3G")
        assert tenant.answers == ["ok", "ENOMEM"]
        assert place.flags(tenant.pid) & SHARING
        place.assert_left(LEFT - 6 * GIB)
        tenant.kill()
        place.assert_left(LEFT - 2 * GIB)
    place.assert_left(LEFT)  # its owner is gone


@pytest.mark.parametrize("entry_bytes", [512, pytest.param(1024, marks=pytest.mark.long), pytest.param(4096, marks=pytest.mark.long)])
def test_request_in_flight_of_another_version_counts(place, entry_bytes):
    """It stands still, so each of those who ask waits three seconds for it."""
    put_foreign(place, entry_bytes, is_flying=True)
    with place.ledger.locked(1):
        place.assert_left(LEFT - 3 * GIB)
    place.assert_left(LEFT)


def test_what_a_child_of_another_version_has_from_its_parent_counts_when_that_is_gone(place):
    put_foreign(place, 512, parent_entry=1)
    with place.ledger.locked(1):
        with place.ledger.locked(0):
            place.assert_left(LEFT - 2 * GIB)
        place.assert_left(LEFT - 3 * GIB)


@pytest.mark.parametrize("parent_entry", [4, 1024, 1 << 40, (1 << 64) - 1])
def test_parent_where_no_entry_is_ends_nobody(place, parent_entry):
    put_foreign(place, 512, parent_entry)
    with place.ledger.locked(1):
        place.assert_left(LEFT - 3 * GIB)


@pytest.mark.parametrize("header", [{"entry_bytes": 8}, {"entry_bytes": 513}, {"magic": 7}], ids=str)
def test_entries_that_cannot_be_found_do_not_count(place, header):
    put_foreign(place, 512)
    content = bytearray(place.ledger.path.read_bytes())
    for field, value in header.items():
        offset, size = LEDGER[field]
        content[offset : offset + size] = value.to_bytes(size, "little")
    place.ledger.path.write_bytes(content)
    with place.ledger.locked(0, 3):
        place.assert_left(LEFT)


def test_ledger_that_is_removed_all_the_time_ends_nobody(place):
    commands = "malloc 16G small 64K 1M malloc 2M".split() * 40
    tenants = [place.tenant([place.admit_take, *commands, "wait"]) for _ in range(4)]
    deadline = time.monotonic() + 1
    while time.monotonic() < deadline:
        place.ledger.path.unlink(missing_ok=True)
    for tenant in tenants:
        assert tenant.ready() == ["ENOMEM", MIB, "ok"] * 40
        tenant.end()
    place.assert_left(LEFT)


# ---- entries that say what cannot be ----


@pytest.mark.parametrize("more", ["", pytest.param("fork malloc 1M", marks=pytest.mark.long)], ids=["process", "child"])
def test_numbers_beyond_all_bounds_refuse_and_hold_up_but_end_nobody(place, more):
    place.take("malloc 1M")
    with place.ledger.entry(500, content=b"\xff" * ENTRY_BYTES):
        assert place.take(f"malloc 64M small 64K 30M small 64K 100M {more}")[:2] == ["ENOMEM", 30 * MIB]
        assert place.guard.report_command("--json", "--all").returncode == 0
    place.assert_left(LEFT)


def test_hostile_limit_of_a_namesake_leaves_room_to_end(place):
    place.take("malloc 1M")
    with place.ledger.entry(3, job_hash=hash_of("job"), limit_bytes=1, granted_bytes=(1 << 64) - 1):
        assert place.take("malloc 64M") == ["ENOMEM"]
    with place.ledger.entry(3, job_hash=hash_of("job"), limit_bytes=1):
        assert place.take("malloc 64M small 64K 20M") == ["ENOMEM", 20 * MIB]
    assert place.take("malloc 64M") == ["ok"]


@pytest.mark.parametrize("seed", range(8 if IS_LONG else 2))
def test_random_ledger_under_running_processes_ends_nobody(place, seed):
    draw = random.Random(seed)
    commands = "malloc 2M small 64K 1M mmap 3M".split()
    place.take("malloc 1M")
    tenants = [place.tenant([place.admit_take, *commands * 3, "wait"]) for _ in range(2)]
    deadline = time.monotonic() + 0.5
    fields = ["entry_used", "epoch", "call", "asked_bytes", "waiting_until_ns", "context_bytes"]
    with place.ledger.entry(9, content=draw.randbytes(ENTRY_BYTES)):
        while time.monotonic() < deadline:
            place.ledger.put(draw.choice(fields), draw.choice([draw.getrandbits(64), (1 << 64) - 1, 0]))
    for number in range(9, ROOM):
        place.ledger.put("claim", draw.getrandbits(64), number)
    place.ledger.put("entry_used", 0xFFFFFFFF)
    for tenant in tenants:
        tenant.ready()
        tenant.end()
    place.ledger.put("asked_bytes", (1 << 64) - MIB)
    place.assert_left(LEFT)


def test_count_of_all_requests_may_wrap(place):
    place.take("malloc 1M")
    place.ledger.put("asked_bytes", (1 << 64) - 3 * MIB)
    tenant = place.holder("malloc 1M small 1K 5M malloc 3G largest")
    assert tenant.answers[:3] == ["ok", 5 * MIB, "ok"]
    assert LEFT - 3 * GIB - 2 * NEAR <= tenant.answers[3] <= LEFT - 3 * GIB
    assert place.ledger.get("asked_bytes") < 1 << 60
    place.assert_left(LEFT - 3 * GIB)


# ---- no entry left ----


def test_when_all_entries_are_taken_the_next_process_decides_alone_and_says_so(place):
    place.take("malloc 1M")
    with place.ledger.locked(0, ROOM):
        for number in range(ROOM):
            place.ledger.put("claim", 1 << 2 | LIVE, number)
        place.ledger.put("entry_used", ROOM)
        place.ledger.put("granted_bytes", 3 * GIB, 77)
        place.ledger.put("promised_bytes", 3 * GIB, 77)
        tenant = place.holder("malloc 64M malloc 16G small 1K 1M")
        assert tenant.answers == ["ok", "ENOMEM", MIB]
        place.assert_alone(tenant.pid, "no room")
        place.assert_left(LEFT)
        tenant.end()
    place.assert_left(LEFT)
    assert place.ledger.get("claim", 77) & 3 != LIVE


def test_process_that_began_without_room_joins_when_there_is_some(place):
    place.take("malloc 1M")
    text = "malloc(64 * MIB)\nready()\nwhile True:\n    libc.free(ctypes.c_void_p(malloc(4 * MIB)))\n    ready()"
    with place.ledger.locked(0, ROOM):
        for number in range(ROOM):
            place.ledger.put("claim", 1 << 2 | LIVE, number)
        place.ledger.put("entry_used", ROOM)
        tenant = place.player(text)
        tenant.ready()
        place.assert_alone(tenant.pid, "no room")

    def joins():
        tenant.go().ready()
        return place.flags(tenant.pid) & SHARING

    wait_until(joins)
    place.assert_left(LEFT - 68 * MIB, above=4 * MIB)  # the interpreter has some, too
    assert [what for what in place.events(tenant.pid) if "no room" in what or "is room" in what] == [
        "not sharing: no room in the machine's ledger or in its file system",
        "sharing: there is room in the machine's ledger by now",
    ]
    tenant.kill()


def test_entries_of_the_dead_are_free(place):
    place.take("malloc 1M")
    for number in range(ROOM):
        place.ledger.put("claim", 1 << 2 | LIVE, number)
        place.ledger.put("granted_bytes", GIB, number)
        place.ledger.put("promised_bytes", GIB, number)
    place.ledger.put("entry_used", ROOM)
    tenant = place.holder("malloc 64M")
    assert tenant.answers == ["ok"] and place.flags(tenant.pid) & SHARING
    place.assert_left(LEFT - 64 * MIB)


def test_entries_whose_owners_have_left_are_not_taken_from_under_them(place):
    """A claim is given up before the process ends: the byte says who is there."""
    place.take("malloc 1M")
    with place.ledger.locked(0, 10):
        for number in range(10):
            place.ledger.put("claim", EMPTY, number)
        tenant = place.holder("malloc 64M")
        assert place.ledger.of(tenant.pid) == 10


# ---- somebody else in the middle of a request ----


STOPPED = {
    "choosing": {"ticket": CHOOSING, "queued_bytes": 20 * GIB},
    "first": {"ticket": FIRST, "queued_bytes": 20 * GIB},
    "in_flight": {"in_flight_bytes": 20 * GIB, "bounded_flight_bytes": 20 * GIB},
}


def is_held_up(place, fields):
    """Who stands still is waited for once, and not by each request anew. If he moves at last, he is waited for again."""
    place.take("malloc 1M")
    with place.ledger.entry(500, **fields):
        begin = time.monotonic()
        tenant = place.holder("malloc 64M wait malloc 64M malloc 64M small 64K 30M wait malloc 64M")
        assert tenant.answers == ["ENOMEM"]
        assert time.monotonic() - begin >= WAIT_SECONDS
        slept_first = slept(tenant.pid)
        assert slept_first <= LOOKS + AT_ONCE
        assert tenant.go().ready() == ["ENOMEM", "ENOMEM", 30 * MIB]
        slept_again = slept(tenant.pid)
        assert slept_again - slept_first < AT_ONCE
        if fields.get("ticket") != CHOOSING:
            place.ledger.put("landed_count" if "in_flight_bytes" in fields else "ticket", FIRST + 1, 500)
            tenant.go()
            wait_until(lambda: slept(tenant.pid) >= slept_again + 5)
            for field in fields:
                place.ledger.put(field, 0, 500)
            assert tenant.ready() == ["ok"]
            tenant.kill()
    return True


def test_who_has_stopped_in_a_request_holds_up_others_for_three_seconds_once(place, tmp_path):
    """Each kind on a machine of its own, all at the same time."""
    make = type(place.guard)
    places = [Place(make(place.guard.build, tmp_path / kind), tmp_path / kind, place.stack) for kind in STOPPED]
    with ThreadPoolExecutor() as threads:
        assert list(threads.map(is_held_up, places, STOPPED.values())) == [True] * len(STOPPED)
    for there in places:
        answers, sleeps = ask(there, "malloc 64M")
        assert answers == ["ok"] and sleeps < AT_ONCE, "nobody stands there any more"


def test_who_stands_behind_holds_up_nobody(place):
    place.take("malloc 1M")
    with place.ledger.entry(500, ticket=1 << 50, queued_bytes=20 * GIB):
        answers, sleeps = ask(place, "malloc 64M malloc 16G")
        assert answers == ["ok", "ENOMEM"] and sleeps < AT_ONCE
        place.assert_left(LEFT)


def test_who_waits_is_let_in_when_the_other_dies(place):
    place.take("malloc 1M")
    with place.ledger.entry(500, in_flight_bytes=20 * GIB, bounded_flight_bytes=20 * GIB):
        tenant = place.holder("wait malloc 64M")
        slept_begun = slept(tenant.pid)
        tenant.go()
        wait_until(lambda: slept(tenant.pid) >= slept_begun + 3)
    slept_alive = slept(tenant.pid)
    assert tenant.ready() == ["ok"]
    assert slept(tenant.pid) - slept_alive < AT_ONCE, "it has waited for its deadline"


@pytest.mark.parametrize("attempt", range(10 if IS_LONG else 4))
def test_process_stopped_at_any_instant_keeps_what_it_has_and_no_more(place, attempt):
    tenant = place.tenant([place.admit_take, *"malloc 1M".split() * 100, "malloc", "3G", "wait"])
    time.sleep(random.Random(attempt).random() / 50)  # pace: to any instant of its beginning
    os.kill(tenant.pid, signal.SIGSTOP)
    other = place.holder("malloc 5100M")
    assert slept(other.pid) <= LOOKS + AT_ONCE
    os.kill(tenant.pid, signal.SIGCONT)
    held = [tenant.ready()[-1], *other.answers]
    assert sorted(held) == ["ENOMEM", "ok"], "one of them, and not both"
    other.end()
    place.assert_left(LEFT - 100 * MIB - (3 * GIB if held[0] == "ok" else 0))
