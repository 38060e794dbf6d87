"""SPARKGUARD_DIR: what may lie there, what the library makes of it, and when it must do without."""

import json
import mmap
import os
import stat
import subprocess
import time

import pytest

MIB = 1 << 20
CLOSED = "it must belong to you or root and be closed to others"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture
def program(build):
    return lambda name: build / "tests/programs" / name


def mode_of(path):
    return stat.S_IMODE(path.lstat().st_mode)


def segments(directory):
    return sorted(directory.glob("*.segment"), key=lambda f: f.stat().st_mtime_ns)


def run_as_user(guard, command, folder, **options):
    """As an ordinary user, to whom the folder belongs: modes mean nothing to root."""
    os.chown(folder, 4712, 4712)
    for parent in [folder.parent, *folder.parents][:4]:
        parent.chmod(0o755)
    done = guard.run(command, user=4712, group=4712, extra_groups=[], **options)
    if done.returncode == 126 or "cannot be preloaded" in done.stderr:
        pytest.skip("the build folder is closed to other users")
    return done


def check_sentence(done, reason, directory):
    """The program ran, and one line said why nothing is recorded."""
    expected = f"sparkguard: cannot keep statistics in {directory}: {reason}; sparkguard-report will not show this"
    assert (done.returncode, done.stdout) == (0, "ready\n")
    assert done.stderr.count("\n") == 1 and done.stderr.startswith(expected), done.stderr


# ---- modes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077, 0o777])
def test_directory_is_0700_and_files_are_0600_whatever_the_umask(guard, program, umask):
    done = guard.run([program("dir_hold")], umask=umask)
    assert (done.returncode, done.stderr) == (0, "")
    assert mode_of(guard.directory) == 0o700
    assert [mode_of(f) for f in segments(guard.directory)] == [0o600]


@needs_root
@pytest.mark.parametrize("umask", [0o000, 0o400, 0o777])
def test_directory_can_be_used_by_who_made_it_whatever_the_umask(guard, program, tmp_path, umask):
    (tmp_path / "own").mkdir()
    directory = tmp_path / "own" / "live"
    for number in (1, 2):
        done = run_as_user(guard, [program("dir_hold")], tmp_path / "own", umask=umask, env={"SPARKGUARD_DIR": directory})
        assert (done.returncode, done.stderr) == (0, "")
        assert mode_of(directory) == 0o700
        assert [mode_of(f) for f in segments(directory)] == number * [0o600]


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_files_in_a_group_shared_directory_are_0660(guard, program, umask):
    guard.directory.mkdir()
    guard.directory.chmod(0o2770)
    guard.run([program("dir_hold")], umask=umask)
    assert mode_of(guard.directory) == 0o2770
    assert [mode_of(f) for f in segments(guard.directory)] == [0o660]


@needs_root
def test_files_in_a_group_shared_directory_of_root_belong_to_its_group(guard, program, tmp_path):
    guard.directory.mkdir()
    os.chown(guard.directory, 0, 4711)
    guard.directory.chmod(0o2770)
    for parent in [tmp_path, *tmp_path.parents][:3]:
        parent.chmod(0o755)
    done = guard.run([program("dir_hold")], user=4712, group=4711, extra_groups=[])
    if done.returncode == 126 or "cannot be preloaded" in done.stderr:
        pytest.skip("the build folder is closed to other users")
    (file,) = segments(guard.directory)
    assert (done.stderr, file.stat().st_uid, file.stat().st_gid, mode_of(file)) == ("", 4712, 4711, 0o660)


# ---- what cannot be used ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o702])
def test_world_writable_directory_is_not_used(guard, program, mode):
    guard.directory.mkdir()
    guard.directory.chmod(mode)
    check_sentence(guard.run([program("dir_hold")]), CLOSED, guard.directory)
    assert segments(guard.directory) == [] and mode_of(guard.directory) == mode


@needs_root
def test_directory_of_somebody_else_is_not_used(guard, program):
    guard.directory.mkdir(mode=0o700)
    os.chown(guard.directory, 4711, 4711)
    check_sentence(guard.run([program("dir_hold")]), CLOSED, guard.directory)


@pytest.mark.parametrize("end", ["", "/", "//", "/.", "/./", "/.//."])
def test_symbolic_link_is_not_followed(guard, program, tmp_path, end):
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    guard.directory.symlink_to(tmp_path / "elsewhere")
    directory = f"{guard.directory}{end}"
    check_sentence(guard.run([program("dir_hold")], env={"SPARKGUARD_DIR": directory}), "not a directory", directory)
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize("end", ["/", "//", "/.", "/./"])
def test_directory_is_made_and_used_however_it_is_spelt(guard, program, end):
    done = guard.run([program("dir_hold")], env={"SPARKGUARD_DIR": f"{guard.directory}{end}"})
    assert (done.returncode, done.stderr) == (0, "")
    assert mode_of(guard.directory) == 0o700 and len(segments(guard.directory)) == 1


def test_file_in_the_place_of_the_directory_is_left_alone(guard, program):
    guard.directory.write_text("precious")
    check_sentence(guard.run([program("dir_hold")]), "not a directory", guard.directory)
    assert guard.directory.read_text() == "precious"


def test_missing_parent_is_not_made(guard, program, tmp_path):
    directory = tmp_path / "missing" / "live"
    done = guard.run([program("dir_hold")], env={"SPARKGUARD_DIR": directory})
    check_sentence(done, "no such directory", directory)
    assert not directory.parent.exists()


def test_only_the_process_itself_is_told_once(guard, program):
    guard.directory.write_text("")
    done = guard.run([program("dir_hold"), 64, 20])
    check_sentence(done, "not a directory", guard.directory)


@pytest.fixture
def in_own_mounts(guard, own_mounts):
    """Runs a command in a mount namespace of its own after the shell line `mount` ($0: SPARKGUARD_DIR)."""

    def run(mount, command):
        guard.directory.mkdir()
        script = f'{mount} && LD_PRELOAD={guard.library} exec "$@"'
        return guard.run([*own_mounts, "sh", "-c", script, guard.directory, *command], env={"LD_PRELOAD": None})

    return run


# A page, which is less than a segment takes, or all of it: then it is taken.
SCANT = 'mount -t tmpfs -o size=4k,mode=700 none "$0"' + (' && printf x >"$0/filler"' if mmap.PAGESIZE >= 64 << 10 else "")
FULL = 'mount -t tmpfs -o size=64k,mode=700 none "$0" && ! cat /dev/zero 2>/dev/null >"$0/filler"'


@pytest.mark.parametrize(
    "mount, reason",
    [
        (FULL, "no space left"),
        (SCANT, "no space left"),
        ('mount -t tmpfs -o size=64k,mode=700,nr_inodes=1 none "$0"', "no space left"),
        ('mount -t tmpfs -o ro,mode=700 none "$0"', "read-only file system"),
    ],
)
def test_full_or_read_only_file_system_is_survived_with_one_sentence(guard, in_own_mounts, program, mount, reason):
    done = in_own_mounts(mount, [program("dir_hold"), 64, 300])
    check_sentence(done, reason, guard.directory)


def test_nothing_is_left_of_a_file_that_found_no_room(guard, in_own_mounts):
    script = '/usr/bin/python3 -S -c "x = bytearray(20 << 20)" 2>/dev/null; ls -A -I filler "$1"'
    done = in_own_mounts(SCANT, ["sh", "-c", script, "-", guard.directory])
    assert done.stdout == ""


def test_file_system_that_fills_up_while_threads_come_ends_nothing(guard, in_own_mounts, program):
    # Room for the first 64 records, not for more: the other threads share one, and are counted all the same.
    mount = 'mount -t tmpfs -o size=44k,mode=700 none "$0"'
    show = f'"$1" 64 300 && exec env -u LD_PRELOAD {guard.build}/sparkguard-report --dir "$2" --all --json'
    done = in_own_mounts(mount, ["bash", "-c", show, "-", program("dir_hold"), guard.directory])
    assert (done.returncode, done.stderr) == (0, "")
    ready, report = done.stdout.split("\n", 1)
    process = json.loads(report)["jobs"][0]["processes"][0]
    assert ready == "ready" and 64 * MIB // 300 * 300 <= process["peak_bytes"] <= (64 + 300) * MIB


# ---- what lies there -------------------------------------------------------------------------------------------------


def put_garbage(directory):
    directory.mkdir(mode=0o700)
    (directory / "1-0000000000000001.segment").write_bytes(b"")
    (directory / "2-0000000000000002.segment").write_bytes(os.urandom(100000))
    (directory / "3-0000000000000003.segment").mkdir()
    (directory / "4-0000000000000004.segment").symlink_to("/dev/zero")
    os.mkfifo(directory / "5-0000000000000005.segment")
    (directory / (200 * "x" + ".segment")).write_bytes(b"x")
    (directory / "notes.txt").write_text("mine")
    (directory / "\n\x1b[31m.segment").write_bytes(b"\xff" * 4096)


@pytest.mark.parametrize("crowd", [0, 200])
def test_garbage_in_the_directory_disturbs_nobody(guard, program, crowd):
    put_garbage(guard.directory)
    for i in range(crowd):
        (guard.directory / f"{i + 100}-{i:016x}.segment").write_bytes(os.urandom(64))
    done = guard.run([program("dir_hold")], timeout=20)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ready\n", "")
    assert (guard.directory / "notes.txt").read_text() == "mine"
    shown = guard.report_command(done.pid)
    assert f"{done.pid}" in shown.stdout


def test_more_than_128_dead_are_swept_to_the_newest(guard, program):
    guard.directory.mkdir(mode=0o700)
    guard.run([program("dir_hold")])
    (template,) = segments(guard.directory)
    content = template.read_bytes()
    for i in range(140):
        file = guard.directory / f"{i + 100}-{i:016x}.segment"
        file.write_bytes(content)
        os.utime(file, ns=(i * 10**9, i * 10**9))
    (guard.directory / "keep.txt").write_text("mine")
    os.utime(template, ns=(10**15, 10**15))
    with guard.popen([program("dir_hold")], stdin=subprocess.PIPE) as process:
        assert process.stdout.readline() == "ready\n"
        left = {f.name for f in segments(guard.directory)}
        process.communicate("")
    (newcomer,) = [name for name in left if name.startswith(f"{process.pid}-")]
    newest = {f"{i + 100}-{i:016x}.segment" for i in range(140 - 63, 140)} | {template.name}
    assert left == newest | {newcomer}
    assert (guard.directory / "keep.txt").exists()


# What a user may have called his own, and what was being made when its maker was killed.
OF_OTHERS = """film.segment film.timeline notes.new 1-0.timeline 1-000000000000000G.timeline 1-00000000000000000.timeline
-0000000000000001.timeline 12345678901-0000000000000001.timeline 1x0000000000000001.timeline 1-0000000000000001.timeline.old
1-0000000000000001.new machine.ledger.new machine.ledger.backup.new machine-2.ledger.0000000000000001.new""".split()
LEFT_OVER = """1-0000000000000001.segment.new 4194304-fedcba9876543210.timeline.new machine.ledger.0000000000000001.new
machine-1.ledger.fedcba9876543210.new 1-0000000000000001.timeline""".split()


def test_nothing_is_swept_that_has_another_name_than_ours(guard, program):
    guard.directory.mkdir(mode=0o700)
    for i in range(140):
        (guard.directory / f"{i + 100}-{i:016x}.segment").write_bytes(bytes(64))
    for name in OF_OTHERS + LEFT_OVER:
        (guard.directory / name).write_text("mine")
        os.utime(guard.directory / name, (0, 0))
    time.sleep(11)  # nobody makes a file for longer than 10 s
    guard.run([program("dir_hold")])
    names = {file.name for file in guard.directory.iterdir()}
    assert set(OF_OTHERS) - names == set() and names & set(LEFT_OVER) == set()
    assert len(names & {f"{i + 100}-{i:016x}.segment" for i in range(140)}) < 70


def test_up_to_128_dead_stay(guard, program):
    guard.directory.mkdir(mode=0o700)
    for i in range(128):
        (guard.directory / f"{i + 100}-{i:016x}.segment").write_bytes(bytes(64))
    guard.run([program("dir_hold")])
    assert len(segments(guard.directory)) == 129


def test_living_are_never_swept(guard, program):
    with guard.popen([program("dir_hold")], stdin=subprocess.PIPE) as process:
        assert process.stdout.readline() == "ready\n"
        (living,) = segments(guard.directory)
        os.utime(living, ns=(1, 1))
        for i in range(140):
            (guard.directory / f"{i + 10}-{i:016x}.segment").write_bytes(bytes(64))
        guard.run([program("dir_hold")])
        assert living.exists() and len(segments(guard.directory)) < 80
        process.communicate("")


# ---- another file in its place -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [os.symlink, os.link], ids=["symbolic", "hard"])
def test_file_of_another_in_its_place_is_not_written_to(guard, program, tmp_path, make):
    """In a group-shared directory any tenant may do that. More threads than there are records let it open its file again."""
    private = tmp_path / "private"
    private.write_bytes(b"precious")
    with guard.popen([program("dir_hold"), 128, 300, "later"], stdin=subprocess.PIPE) as process:
        assert process.stdout.readline() == "waiting\n"
        (file,) = segments(guard.directory)
        file.rename(tmp_path / "aside")
        make(private, file)
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "ready\n"
        process.communicate("")
    assert process.returncode == 0
    assert private.read_bytes() == b"precious"


# ---- threads ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [70, 300, 2000])
def test_records_grow_with_the_threads_and_count_them_all(guard, program, threads):
    with guard.popen([program("dir_hold"), 128, threads], stdin=subprocess.PIPE) as process:
        assert process.stdout.readline() == "ready\n"
        live = guard.process(process.pid)
        (file,) = segments(guard.directory)
        process.communicate("")
    assert process.returncode == 0
    assert file.stat().st_size > threads * 64  # a record of its own for everyone
    asked = 128 * MIB // threads * threads
    assert asked <= live["domains"]["heap"]["live_bytes"] <= asked + threads * mmap.PAGESIZE + MIB
    # Freed by the threads that took it, whose records are given back when they end.
    ended = guard.process(process.pid)
    assert ended["state"] == "exited" and asked <= ended["peak_bytes"] <= asked + (threads + 1) * MIB
