"""SPARKGUARD_DIR: what may lie there, what the library makes of it, and when it must do without."""

import json
import mmap
import os
import stat
import subprocess
from pathlib import Path

import pytest
from lib.target import PYTHON

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
    return guard.run(command, user=4712, group=4712, extra_groups=[], **options)


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
def test_records_in_a_group_shared_directory_are_0640(guard, program, umask):
    guard.directory.mkdir()
    guard.directory.chmod(0o2770)
    guard.run([program("dir_hold")], umask=umask)
    assert mode_of(guard.directory) == 0o2770
    assert [mode_of(f) for f in segments(guard.directory)] == [0o640]
    assert mode_of(guard.directory / "machine.ledger") == 0o660


@needs_root
def test_files_in_a_group_shared_directory_of_root_belong_to_its_group(guard, program, tmp_path):
    guard.directory.mkdir()
    os.chown(guard.directory, 0, 4711)
    guard.directory.chmod(0o2770)
    for parent in [tmp_path, *tmp_path.parents][:3]:
        parent.chmod(0o755)
    done = guard.run([program("dir_hold")], user=4712, group=4711, extra_groups=[])
    (file,) = segments(guard.directory)
    assert (done.stderr, file.stat().st_uid, file.stat().st_gid, mode_of(file)) == ("", 4712, 4711, 0o640)


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


def test_only_the_first_process_of_a_job_that_cannot_share_is_told(guard, program):
    """They begin one after the other and at one moment, and have no parent that could tell them."""
    guard.directory.write_text("")
    line = [word for _ in range(3) for word in (program("dir_hold"), ";")]
    env = {"SPARKGUARD_JOB": "name"}
    for _ in range(2):  # two jobs of one name
        done = guard.run([program("host_run"), *line], env=env)
        assert (done.returncode, done.stdout) == (0, 3 * "ready\n")
        assert done.stderr.count("\n") == done.stderr.count("cannot keep statistics") == 1, done.stderr
    together = guard.run(["sh", "-c", 'for i in 1 2 3 4 5 6; do "$0" & done; wait', program("dir_hold")])
    assert together.stdout == 6 * "ready\n"
    assert together.stderr.count("\n") == together.stderr.count("cannot keep statistics") == 1, together.stderr


@needs_root
def test_only_one_of_the_children_in_a_sandbox_is_told(guard, tmp_path):
    """Their parent shares; they cannot open anything, as a browser's renderers."""
    (tmp_path / "empty").mkdir()
    script = f"""
import os
blocks = [bytearray(20 << 20)]
for _ in range(4):
    if os.fork() == 0:
        os.chroot({str(tmp_path / "empty")!r})
        blocks.append(bytearray(20 << 20))
        os._exit(0)
for _ in range(4):
    assert os.wait()[1] == 0
"""
    done = guard.run([PYTHON, "-S", "-c", script])
    assert done.returncode == 0
    assert done.stderr.count("\n") == done.stderr.count("cannot keep statistics") == 1, done.stderr


@pytest.mark.parametrize("history", ["off", "{}/file/history"])
def test_one_process_of_a_job_is_told_without_a_history_too(guard, program, tmp_path, history):
    guard.directory.write_text("")
    (tmp_path / "file").write_text("")
    line = [word for _ in range(3) for word in (program("dir_hold"), ";")]
    for _ in range(2):  # two jobs
        done = guard.run([program("host_run"), *line], env={"SPARKGUARD_HISTORY": history.format(tmp_path)})
        assert (done.returncode, done.stdout) == (0, 3 * "ready\n")
        assert done.stderr.count("\n") == done.stderr.count("cannot keep statistics") == 1, done.stderr


@pytest.fixture
def in_own_mounts(guard, own_mounts):
    """Runs a command in a mount namespace of its own after the shell line `mount` ($0: SPARKGUARD_DIR)."""

    def run(mount, command):
        guard.directory.mkdir()
        script = f'{mount} && LD_PRELOAD={guard.library} exec "$@"'
        return guard.run([*own_mounts, "sh", "-c", script, guard.directory, *command], env={"LD_PRELOAD": None})

    return run


READ_ONLY = "mount --rbind {0} {0} && mount -o remount,bind,ro {0}"
OWN_SHM = "mount -t tmpfs -o mode=1777 none /dev/shm"
NOTE = f"/dev/shm/.sparkguard-{os.geteuid()}.jobs"


@pytest.mark.parametrize(
    "lines, count",
    [
        (READ_ONLY.format("/dev/shm"), 1),
        (f"{OWN_SHM} && {READ_ONLY.format('/tmp')}", 1),
        (f"{READ_ONLY.format('/dev/shm')} && {READ_ONLY.format('/tmp')}", 2),
    ],
    ids=["/tmp", "/dev/shm", "neither"],
)
def test_place_for_the_note_is_shared_memory_or_else_tmp(guard, in_own_mounts, program, lines, count):
    line = [word for _ in range(2) for word in (program("dir_hold"), ";")]
    done = in_own_mounts(f"rmdir $0 && touch $0 && {lines}", [program("host_run"), *line])
    assert (done.returncode, done.stdout) == (0, 2 * "ready\n")
    assert done.stderr.count("\n") == done.stderr.count("cannot keep statistics") == count, done.stderr


@pytest.mark.parametrize(
    "plant",
    [
        f"head -c 504 /dev/zero >{NOTE} && chown 4711 {NOTE} && chmod 0666 {NOTE}",
        f"head -c 504 /dev/zero >/dev/shm/other && ln -s other {NOTE}",
        f"head -c 504 /dev/zero >/dev/shm/other && ln /dev/shm/other {NOTE}",
        f"mkfifo {NOTE}",
        f"mkdir {NOTE}",
    ],
    ids=["another user's", "symbolic link", "hard link", "fifo", "directory"],
)
def test_note_that_somebody_else_planted_is_neither_read_nor_written(guard, in_own_mounts, program, plant):
    line = [word for _ in range(2) for word in (program("dir_hold"), ";")]
    lines = f"rmdir $0 && touch $0 && {OWN_SHM} && {READ_ONLY.format('/tmp')} && {plant}"
    show = '"$@" && find /dev/shm -type f -exec cksum {} +'
    done = in_own_mounts(lines, ["sh", "-c", show, "-", program("host_run"), *line])
    assert done.returncode == 0 and done.stderr.count("cannot keep statistics") == 2, done.stderr
    zeros = [line.split()[:2] for line in done.stdout.splitlines()[2:]]
    assert all(entry == ["2186197243", "504"] for entry in zeros), done.stdout


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
    done = guard.run([program("dir_hold")], timeout=60)
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
        opened = [os.readlink(fd) for fd in Path(f"/proc/{process.pid}/fd").iterdir()]
        process.communicate("")
    assert not [path for path in opened if path.startswith(str(guard.directory))], "what it looked at is closed"
    (newcomer,) = [name for name in left if name.startswith(f"{process.pid}-")]
    newest = {f"{i + 100}-{i:016x}.segment" for i in range(140 - 63, 140)} | {template.name}
    assert left == newest | {newcomer}
    assert (guard.directory / "keep.txt").exists()


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
    with guard.popen([program("dir_hold"), 128, 300, 20], stdin=subprocess.PIPE) as process:
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


# ---- somebody else was there first -----------------------------------------------------------------------------------------

USER, SQUATTER = 4712, 4711
DEFAULT, OTHER = Path(f"/dev/shm/sparkguard-{USER}"), Path(f"/tmp/sparkguard-{USER}")


def as_user(user, script, *arguments):
    command = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "sh", "-c", script, *map(str, arguments)]
    return subprocess.run(command, check=True)


@pytest.fixture
def squat():
    """Anybody may make the default directory of another user, whose own it is from then on. Done by a process of that user."""
    if DEFAULT.is_symlink() or DEFAULT.exists() or OTHER.exists() or Path(f"/run/user/{USER}").exists():
        pytest.skip(f"{DEFAULT} or another place of that user is there")
    made = [OTHER]

    def make(how):
        made.append(DEFAULT)
        if how == "link":
            made.append(Path(f"/dev/shm/squatted-{os.getpid()}"))
            as_user(SQUATTER, 'mkdir -m 0777 "$0" && ln -s "$0" "$1"', made[-1], DEFAULT)
        else:
            as_user(SQUATTER, 'umask 0; mkdir -m "$0" "$1" && head -c 1000000 /dev/zero >"$1/machine.ledger"', how, DEFAULT)
        return made[-1]

    yield make
    for path in reversed(made):
        if path.is_symlink():
            path.unlink()
        else:
            subprocess.run(["rm", "-rf", path], check=True)


def content_of(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@needs_root
@pytest.mark.parametrize("how", ["0700", "0755", "0777", "1777", "2770", "link"])
def test_default_directory_that_somebody_else_made_is_not_used_and_told_once(guard, program, squat, tmp_path, how):
    """Nothing goes there and nothing there is believed. Records and sharing go on in another place."""
    folder = squat(how)
    before = content_of(folder)
    (tmp_path / "state").mkdir()
    env = {"SPARKGUARD_DIR": None, "SPARKGUARD_HISTORY": None, "XDG_STATE_HOME": tmp_path / "state", "SPARKGUARD_LIMIT": "64M"}
    line = [word for _ in range(2) for word in (guard.build / "tests/programs/admit_take", "malloc", "60M", "malloc", "16M", ";")]
    done = run_as_user(guard, [program("host_run"), *line], tmp_path / "state", env=env)
    assert (done.returncode, done.stdout) == (0, 2 * "ok\nENOMEM\n"), done.stderr
    reported = [text for text in done.stderr.splitlines() if "refused malloc of 16.0 MiB" not in text and not text.startswith("try: ")]
    assert reported == [f"sparkguard: {DEFAULT} is another user's and is not used; records and ledger are in {OTHER}"], done.stderr
    assert content_of(folder) == before and len(segments(OTHER)) == 2 and (OTHER / "machine.ledger").exists()


@needs_root
@pytest.mark.parametrize("how", ["0755", "0777"])
def test_report_believes_nothing_in_a_default_directory_that_somebody_else_made(guard, program, squat, tmp_path, how):
    """Not even a good record: whoever owns the directory may have written it. He made the other place, too."""
    folder = squat(how)
    as_user(SQUATTER, 'umask 0; mkdir -m "$0" "$1"', how, OTHER)
    folder = OTHER
    assert guard.run([program("dir_hold")]).returncode == 0
    (record,) = segments(guard.directory)
    (folder / record.name).write_bytes(record.read_bytes())
    os.chown(folder / record.name, SQUATTER, SQUATTER)
    (folder / record.name).chmod(0o644)
    env = {k: v for k, v in os.environ.items() if not k.startswith("SPARKGUARD_")} | {"XDG_STATE_HOME": str(tmp_path / "none")}
    command = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", guard.build / "sparkguard-report", "--all", "--json"]
    done = subprocess.run([str(c) for c in command], env=env, capture_output=True, text=True)
    assert done.returncode == 3, done.stdout
    assert [job["directory"] for job in json.loads(done.stdout)["jobs"]] == []
    assert f"{OTHER}/: it belongs to another user, so it is not trusted" in done.stderr


PLACES = {  # what is there beforehand, whether the login's folder is named in the environment; where the record is
    "a login": ("login", True, "login"),
    "a login whose environment is lost": ("login", False, "login"),
    "no login": ("", False, "default"),
    "a login after the first program": ("login default", True, "default"),
    "another user first": ("login squatted", True, "login"),
    "a folder that is open": ("open login", True, "default"),
    "another user's folder": ("foreign login", True, "default"),
}


@needs_root
@pytest.mark.parametrize("case", PLACES)
def test_the_place_that_only_the_user_can_have_made_comes_first(build, case):
    """With /run/user and /dev/shm of the test's own. All programs of a user find the same place, whatever their environment."""
    there, is_named, expected = PLACES[case]
    login = f"/run/user/{USER}"
    chown = {"open": f"chmod 755 {login}", "foreign": f"chown {SQUATTER} {login}"}
    steps = ["mount -t tmpfs -o mode=1777 shm /dev/shm", "mkdir -p /run/user && mount -t tmpfs run /run/user"]
    steps += [f"mkdir -m 700 {login} && chown {USER} {login}"] if "login" in there else []
    steps += [step for word, step in chown.items() if word in there]
    steps += [f"setpriv --reuid={USER} --clear-groups mkdir -m 700 {DEFAULT}"] if "default" in there else []
    steps += [f"setpriv --reuid={SQUATTER} --clear-groups mkdir -m 700 {DEFAULT}"] if "squatted" in there else []
    run = f"setpriv --reuid={USER} --regid={USER} --clear-groups env {f'XDG_RUNTIME_DIR={login}' if is_named else '-u XDG_RUNTIME_DIR'}"
    library = f"SPARKGUARD_HISTORY=off SPARKGUARD_JOB=mine LD_PRELOAD={build}/libsparkguard.so"
    steps += [f"{run} {library} {build}/tests/programs/dir_hold", f"{run} {build}/sparkguard-report --json --all"]
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SPARKGUARD_", "XDG_"))} | {"SPARKGUARD_HISTORY": "off"}
    done = subprocess.run(["unshare", "-m", "--propagation", "private", "sh", "-ec", "\n".join(steps)], env=kept, capture_output=True, text=True, cwd="/")
    if "unshare" in done.stderr:
        pytest.skip("no mounts of our own here")
    assert done.returncode == 0, done.stderr
    (job,) = json.loads(done.stdout.split("ready\n", 1)[1])["jobs"]
    assert (job["job"], job["directory"]) == ("mine", {"login": f"{login}/sparkguard", "default": str(DEFAULT)}[expected])
