"""Rights that a program gains, files that it never asked for, and what its umask is: the guard changes none of it."""

import os
import re
import struct
import subprocess
import tempfile
from pathlib import Path

import pytest

OWNER, USER = 4711, 4712
VFS_CAP_REVISION_2, EFFECTIVE, CAP_NET_BIND_SERVICE = 0x02000000, 1, 10
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a program rights")

# Linked to the library, since the loader drops LD_PRELOAD of a program that gains rights: as /etc/ld.so.preload would have it.
PROGRAM = """
#include <stdio.h>
#include <stdlib.h>
#include <sys/auxv.h>
int main(void)
{
    void *volatile block = malloc(64 << 20);
    printf("%lu %s\\n", getauxval(AT_SECURE), block != NULL ? "granted" : "refused");
}
"""


@pytest.fixture
def linked(build):
    """A program that has the library in its own right, in a folder that any user may enter."""
    with tempfile.TemporaryDirectory(prefix="sparkguard-test-") as scratch:
        folder = Path(scratch)
        folder.chmod(0o755)
        library = folder / "libsparkguard.so"
        library.write_bytes((build / library.name).read_bytes())
        library.chmod(0o755)
        source = folder / "program.c"
        source.write_text(PROGRAM)
        command = ["cc", "-fno-builtin", "-o", folder / "program", source, f"-Wl,--no-as-needed,-rpath,{folder}", library]
        subprocess.run(command, check=True)
        live = folder / "live"
        live.mkdir()
        os.chown(live, OWNER, OWNER)
        live.chmod(0o700)
        yield folder


def run_as_user(folder):
    """Limited to 1 MiB, with files where only the program's owner may write them."""
    env = {"SPARKGUARD_DIR": str(folder / "live"), "SPARKGUARD_LIMIT": "1M", "SPARKGUARD_HISTORY": str(folder / "live/history")}
    return subprocess.run(
        [folder / "program"], env=env, capture_output=True, text=True, cwd="/", user=USER, group=USER, extra_groups=[]
    )


def check_left_alone(folder):
    done = run_as_user(folder)
    if done.stdout.startswith("0 "):
        pytest.skip("programs gain no rights on this file system")
    assert (done.returncode, done.stdout, done.stderr) == (0, "1 granted\n", "")
    assert list((folder / "live").iterdir()) == []


@needs_root
def test_program_without_more_rights_than_its_user_is_guarded(linked):
    os.chown(linked / "live", USER, USER)
    done = run_as_user(linked)
    assert done.stdout == "0 refused\n" and "SPARKGUARD_LIMIT" in done.stderr
    assert [file.stat().st_uid for file in (linked / "live").glob("*.segment")] == [USER]


@needs_root
@pytest.mark.parametrize("mode", [0o4755, 0o2755])
def test_setuid_and_setgid_programs_ignore_the_environment_and_write_nothing(linked, mode):
    os.chown(linked / "program", OWNER, OWNER)
    (linked / "program").chmod(mode)
    check_left_alone(linked)


@needs_root
def test_program_with_file_capabilities_ignores_the_environment_and_writes_nothing(linked):
    value = struct.pack("<IIIII", VFS_CAP_REVISION_2 | EFFECTIVE, 1 << CAP_NET_BIND_SERVICE, 0, 0, 0)
    try:
        os.setxattr(linked / "program", "security.capability", value)
    except OSError as error:
        pytest.skip(f"no file capabilities here: {error.strerror}")
    check_left_alone(linked)


# ---- files -------------------------------------------------------------------------------------------------------------------

CHANGING = "open,openat,openat2,creat,mkdir,mkdirat,mknod,mknodat,rename,renameat,renameat2,link,linkat,symlink,symlinkat"
CHANGING += ",unlink,unlinkat,rmdir,chmod,fchmodat,chown,fchownat,truncate,umask"
# What it was told to write to, and what it gives a name to below one of its directories.
ALLOWED = re.compile(r"/proc/self/oom_score_adj|/proc/(thread-)?self/fd/\d+|/dev/null")
WRITES = re.compile(r"O_WRONLY|O_RDWR|O_CREAT|O_TRUNC")
NAME = re.compile(r'"([^"]*)"')


def call_of(line):
    """(its name, its arguments) if it may have changed something: it succeeded, or its thread ended meanwhile."""
    if line.startswith(("+++", "---", "???(")):  # an end, a signal, a thread that ended before strace knew its call
        return None
    call = re.fullmatch(r"(\w+)\((.*?)(?:\)\s+= (-?\d+|\?)[^\n]*| <unfinished \.\.\.>)", line)
    assert call, f"strace says something else: {line}"
    has_failed = (call[3] or "?").startswith("-")
    is_reading = call[1].startswith("open") and not WRITES.search(call[2])
    return None if has_failed or is_reading else (call[1], call[2])


def changed(trace, below):
    """The names that calls write to, make, move or remove; those relative to a directory's descriptor by that."""
    names = set()
    for name_of_call, arguments in filter(None, map(call_of, trace.splitlines())):
        assert name_of_call != "umask", arguments
        for number, name in enumerate(NAME.findall(arguments)):
            descriptor = re.findall(r"\d+<([^>]*)>", arguments)
            names.add(name if name.startswith("/") else f"{descriptor[min(number, len(descriptor) - 1)]}/{name}")
    return {name for name in names if not any(name == str(b) or name.startswith(f"{b}/") for b in below)}


def traced(guard, tmp_path, command, **env):
    """The calls of all threads and children, a line each: in one file, those that overlap would be in halves."""
    traces = tmp_path / "traces"
    traces.mkdir()
    strace = ["strace", "-ff", "-y", "-qq", "-o", traces / "of", "-e", f"trace={CHANGING}", "-E", f"LD_PRELOAD={guard.library}"]
    done = guard.run([*strace, *command], env={"LD_PRELOAD": None, **env})
    files = list(traces.iterdir())
    if not files or "ptrace" in done.stderr:
        pytest.skip("strace may not trace here")
    assert done.returncode == 0, done.stderr
    return "".join(file.read_text() for file in files), len(files)


PROGRAMS = {
    "heap": ("admit_take", "malloc", "64M", "malloc", "1000000G", "mmap", "64M", "fork", "malloc", "32M"),
    "phases": ("api_phases",),
    "cuda": ("cuda_calls", "refuse", "linked", "cudaMalloc", str(1 << 50), str(64 << 20)),
    "threads": ("dir_hold", "128", "100"),
}


@pytest.mark.parametrize("what", PROGRAMS)
def test_no_file_outside_of_our_directories_is_written(guard, build, tmp_path, what):
    program, *arguments = PROGRAMS[what]
    home = tmp_path / "home"
    home.mkdir()
    env = {"HOME": home, "XDG_STATE_HOME": None, "SPARKGUARD_HISTORY": None, "SPARKGUARD_OOM_SCORE_ADJ": "100"}
    env["LD_LIBRARY_PATH"] = build / "sim"
    text, threads = traced(guard, tmp_path, [build / "tests/programs" / program, *arguments], **env)
    own = [guard.directory, home / ".local"]
    assert {name for name in changed(text, own) if not ALLOWED.fullmatch(name)} == set()
    assert f'"{guard.directory}' in text and f'"{home}/.local' in text and threads > 1, "the history's helper was traced, too"


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
def test_umask_of_a_program_stays(guard, umask):
    script = "import os; block = bytearray(40 << 20); print(oct(os.umask(0)))"
    done = guard.run(["/usr/bin/python3", "-S", "-c", script], umask=umask)
    assert done.stdout == f"{oct(umask)}\n" and done.process()["peak_bytes"] >= 40 << 20


@pytest.mark.parametrize("umask", [0o000, 0o022])
def test_default_history_and_all_folders_made_for_it_are_closed_to_others(guard, build, tmp_path, umask):
    home = tmp_path / "home"
    home.mkdir()
    env = {"HOME": home, "XDG_STATE_HOME": None, "SPARKGUARD_HISTORY": None, "SPARKGUARD_LIMIT": "1M"}
    guard.run([build / "tests/programs/admit_take", "malloc", "64M", "malloc", "16M"], env=env, umask=umask)
    history = home / ".local/state/sparkguard"
    assert {oct(made.stat().st_mode & 0o777) for made in (history, *history.parents[:2])} == {"0o700"}
    assert {oct(file.stat().st_mode & 0o777) for file in history.iterdir()} == {"0o600"}
