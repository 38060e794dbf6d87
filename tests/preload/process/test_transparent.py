"""A guarded program behaves as if nobody were there."""

import mmap
import os
import re
import resource
import subprocess
import time
import uuid
from pathlib import Path

import pytest
from lib.target import CC, PYTHON

MIB = 1 << 20
MACHINE_BYTES = os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE
NO_LIMIT = 1 << 62


@pytest.fixture
def program(build):
    return lambda name: build / "tests/programs" / name


# ---- a memory cgroup of 512 MiB --------------------------------------------------------------------------------------


def cgroup_parents():
    """(folder, name of the limit, its content when there is none) of the memory cgroup this process is in, v1 or v2."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        number, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            yield Path("/sys/fs/cgroup/memory" + path), "memory.limit_in_bytes"
        elif number == "0":
            for parent in [Path("/sys/fs/cgroup" + path), *Path("/sys/fs/cgroup" + path).parents]:
                # Only a group without processes of its own may hand controllers down; the root always may.
                if parent.is_relative_to("/sys/fs/cgroup") and (parent / "cgroup.subtree_control").exists():
                    if "memory" in (parent / "cgroup.subtree_control").read_text().split():
                        yield parent, "memory.max"


@pytest.fixture(scope="module")
def jail():
    """A function that a child calls to enter a memory cgroup of 512 MiB."""
    made, why = None, "no memory cgroup to be seen"
    for parent, limit in cgroup_parents():
        folder = parent / f"sparkguard-test-{uuid.uuid4().hex[:8]}"
        try:
            folder.mkdir()
            made = folder
            (folder / limit).write_text(str(512 * MIB))
            break
        except OSError as error:
            why = f"cannot make a memory cgroup: {error}"
    try:
        if made is None or not (made / "cgroup.procs").exists():
            pytest.skip(why)
        yield lambda: (made / "cgroup.procs").write_text("0")
    finally:
        if made is not None:
            made.rmdir()


@pytest.fixture
def enter(request):
    """What a child does before it becomes the program: nothing, or enter the jail."""
    return None if request.param == "machine" else request.getfixturevalue("jail")


# ---- other people's programs -----------------------------------------------------------------------------------------

BASH = r"""
set -u
trap 'echo "trapped exit $?"' EXIT
trap 'echo "trapped usr1"' USR1
square() { local n=$1; echo $((n * n)); }
for i in 1 2 3; do square $i | tr 0-9 a-j; done
(cd /; pwd; exit 5); echo "subshell: $?"
kill -USR1 $$
x=$(echo "a b c" | (read -r one rest; echo "$rest:$one")); echo "$x"
{ echo to-stderr >&2; } 2>&1 | cat
sh -c 'kill -9 $$'; echo "killed: $?"
mapfile -t lines < <(seq 1000); echo "${#lines[@]} ${lines[999]}"
coproc cat; echo ping >&"${COPROC[1]}"; read -r pong <&"${COPROC[0]}"; echo "$pong"
echo "to stderr" >&2
exit 3
"""

THREADS = """
import hashlib, queue, threading
results = [None] * 24
def work(i):
    block = bytes(range(256)) * (4096 + i)
    results[i] = hashlib.sha256(bytearray(block) * 2).hexdigest()
for _ in range(2):
    threads = [threading.Thread(target=work, args=(i,)) for i in range(24)]
    [t.start() for t in threads]; [t.join() for t in threads]
print(*results, sep="\\n")
"""

SUBPROCESS = """
import subprocess, sys, os
print(subprocess.run(["echo", "hello"], capture_output=True, text=True).stdout)
print(subprocess.run(["false"]).returncode, os.system("exit 4"))
try:
    subprocess.run(["/nonexistent"])
except FileNotFoundError as error:
    print(error)
block = bytearray(64 << 20)
p = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
print(len(p.communicate(bytes(5 << 20))[0]))
print(subprocess.run([sys.executable, "-c", "import sys; sys.exit('bye')"], stderr=subprocess.PIPE, text=True).stderr)
sys.stderr.write("on stderr\\n"); sys.exit(7)
"""

MULTIPROCESSING = """
import multiprocessing, os, sys
def square(x):
    block = bytearray((x % 4 + 1) << 20)
    return x * x + len(block)
if __name__ == "__main__":
    multiprocessing.set_start_method(sys.argv[1])
    with multiprocessing.Pool(3) as pool:
        print(pool.map(square, range(40)))
    q = multiprocessing.Queue()
    p = multiprocessing.Process(target=q.put, args=("x" * (3 << 20),))
    p.start(); print(len(q.get())); p.join(); print(p.exitcode)
"""

MANY_OBJECTS = "print(len({str(i): i for i in range(200000)}))\nx"

PERL = r"""
my %count; my $text = join ' ', map { ($_ * 7919) % 1000 } 1..200000;
$count{$_}++ for split / /, $text; print scalar(keys %count), " $count{7}\n";
my $pid = fork(); if (!$pid) { print "child\n"; exit 3 } waitpid $pid, 0; print $? >> 8, "\n";
print `echo from backticks`; open my $p, '-|', 'seq', '3' or die; print while <$p>; close $p;
warn "a warning\n"; die "died\n";
"""

C_PROGRAM = r"""
#include <stdio.h>
#include <stdlib.h>
int main(void) { char *s = malloc(100); snprintf(s, 100, "%d", 6 * 7); puts(s); int unused; return 0; }
"""

GIT = """
set -e; export GIT_AUTHOR_DATE='2026-01-01T00:00:00Z' GIT_COMMITTER_DATE='2026-01-01T00:00:00Z'
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b HOME=$PWD
git init -q -b main repo; cd repo
for i in $(seq 12); do seq $((i * 3000)) > file$i; git add .; git commit -q -m "commit $i"; done
git gc -q --aggressive; git fsck --full --strict; git log --oneline --stat; git rev-parse HEAD
git diff HEAD~3 HEAD~1 | sha1sum; git blame file2 | tail -2
git checkout -q HEAD~4; ls; git nosuchcommand
"""

SORT = """
seq 300000 | awk '{print ($1 * 7919) % 1000003, "a line that is long enough to weigh something", $1}' > big
wc -c < big; sort -n big | sha1sum; sort -k2,2 -k1,1n --parallel=4 big | sha1sum; sort -S 1M -u big | tail -1
cat big | sort -r | head -1; sort /nonexistent
"""

TAR = """
mkdir d; for i in $(seq 50); do seq $((i * 400)) > d/$i; done
tar cf - --sort=name --mtime=@0 --owner=0 --group=0 d | gzip -9n | tee t.tgz | sha1sum
gzip -dc t.tgz | tar tvf - | tail -3; tar xzf t.tgz -C /nonexistent; tar czf /dev/null --warning=none nothing
"""

COMMANDS = {
    "ls": ["ls", "-la", "/usr", "/usr/bin", "/nonexistent"],
    "bash": ["bash", "-c", BASH],
    "python threads": ["/usr/bin/python3", "-W", "error", "-c", THREADS],
    "python subprocess": ["/usr/bin/python3", "-c", SUBPROCESS],
    "python fork": ["/usr/bin/python3", "mp.py", "fork"],
    "python spawn": ["/usr/bin/python3", "mp.py", "spawn"],
    "python malloc": ["env", "PYTHONMALLOC=malloc", "/usr/bin/python3", "-c", MANY_OBJECTS],
    "perl": ["perl", "-e", PERL],
    "gcc": ["bash", "-c", "gcc -O2 -Wall -pipe -o p p.c; ./p; gcc -c nothing.c"],
    "git": ["bash", "-c", GIT],
    "sort": ["bash", "-c", SORT],
    "tar | gzip": ["bash", "-c", TAR],
}


def in_fresh_folder(guard, tmp_path, command, **options):
    """Runs it in an empty folder of always the same name."""
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "mp.py").write_text(MULTIPROCESSING)
    (folder / "p.c").write_text(C_PROGRAM)
    done = guard.run(command, cwd=folder, **options)
    folder.rename(tmp_path / uuid.uuid4().hex)
    # Numbers of processes and mktemp's names differ from run to run anyway.
    stderr = re.sub(r"process \d+|line \d+: +\d+ Killed|/tmp/cc\w+", "", done.stderr)
    return done.returncode, done.stdout, stderr


def without_refused_buffers(stderr):
    """sort asks for a share of the machine's memory, less with fewer processors, and takes less when told no: that may be said."""
    line = r"(?m)^sparkguard: refused malloc of ([\d.]+) (MiB|GiB): .*\ntry: .*\n"
    sizes = [float(number) * (1024 if unit == "GiB" else 1) for number, unit in re.findall(line, stderr)]
    assert all(mib > 400 for mib in sizes), stderr  # 512 of the cgroup, less 41 in reserve, and what a pipe of three sorts holds
    return re.sub(line, "", stderr)


# In a cgroup, where memory is less than the machine's: what takes much of it, and what starts many processes there.
CASES = [pytest.param("machine", name) for name in COMMANDS] + [
    pytest.param("cgroup of 512 MiB", name, marks=[] if name in ("sort", "bash", "python fork", "python subprocess") else pytest.mark.long)
    for name in COMMANDS
]


@pytest.mark.parametrize("enter, name", CASES, indirect=["enter"])
def test_same_output_exit_code_and_stderr(guard, tmp_path, enter, name):
    command = COMMANDS[name]
    plain = in_fresh_folder(guard, tmp_path, command, env={"LD_PRELOAD": None}, preexec_fn=enter)
    guarded = in_fresh_folder(guard, tmp_path, command, preexec_fn=enter)
    if name == "sort" and (enter is not None or MACHINE_BYTES < 4 << 30):
        guarded = *guarded[:2], without_refused_buffers(guarded[2])
    assert guarded == plain
    assert plain[1] != ""


@pytest.mark.parametrize("name", ["ls", "bash", "python threads", "perl"])
def test_same_with_all_symbols_bound_at_start(guard, tmp_path, name):
    plain = in_fresh_folder(guard, tmp_path, COMMANDS[name], env={"LD_PRELOAD": None})
    assert in_fresh_folder(guard, tmp_path, COMMANDS[name], env={"LD_BIND_NOW": "1"}) == plain


def test_children_see_no_environment_but_the_jobs_name(guard):
    plain = set(guard.run(["env"]).stdout.splitlines())
    added = {line.split("=")[0] for line in plain} - set(guard.environment())
    assert len(added) <= 3 and all(name.startswith(("SPARKGUARD_", "_")) for name in added - {"SHLVL", "PWD"})


# ---- descriptors -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["loop", "range"])
def test_program_that_closes_all_descriptors_goes_on_and_stays_in_the_report(guard, program, tmp_path, how):
    own = tmp_path / "own"
    with guard.popen([program("host_close_all"), how, own], stdin=subprocess.PIPE) as process:
        assert process.stdout.readline() == "ready\n"
        entry = guard.process(process.pid)
        process.communicate("")
    assert process.returncode == 0
    assert entry["state"] == "running"
    page = mmap.PAGESIZE  # what each of the blocks of 1 MiB may be larger by
    assert 64 * MIB <= entry["live_bytes"] <= 65 * MIB + 64 * page
    assert 128 * MIB <= entry["peak_bytes"] <= 130 * MIB + 128 * page
    assert own.read_text() == "mine\n" * 8
    assert guard.process(process.pid)["state"] == "exited"


def test_message_never_goes_into_a_file_opened_as_descriptor_2(guard, program, tmp_path):
    own = tmp_path / "own"
    command = [program("host_own_file_is_2"), own, "2"]
    done = guard.run(["bash", "-c", 'exec "$@" <&- >&- 2>&-', "-", *command], env={"SPARKGUARD_LIMIT": "1G"})
    assert done.returncode == 0
    assert own.read_text() == "data\n"
    assert done.process()["refused_count"] == 1


def test_message_never_goes_into_a_pipe_opened_as_descriptor_2(guard, program, tmp_path):
    own = tmp_path / "own"
    os.mkfifo(own)
    reader = os.open(own, os.O_RDONLY | os.O_NONBLOCK)
    command = [program("host_own_file_is_2"), own, "2"]
    done = guard.run(["bash", "-c", 'exec "$@" <&- >&- 2>&-', "-", *command], env={"SPARKGUARD_LIMIT": "1G"})
    assert (done.returncode, os.read(reader, 4096)) == (0, b"data\n")
    os.close(reader)


def test_message_never_goes_into_a_file_put_in_the_place_of_descriptor_2(guard, program, tmp_path):
    own = tmp_path / "own"
    done = guard.run([program("host_own_file_is_2"), own, "2", "dup"], env={"SPARKGUARD_LIMIT": "1G"})
    assert (done.returncode, own.read_text(), done.stderr) == (0, "data\n", "")
    assert done.process()["refused_count"] == 1


def test_message_never_goes_into_a_pipe_put_in_the_place_of_descriptor_2(guard, program, tmp_path):
    """Nor into a socket: whoever reads there would take it for the program's own words."""
    own = tmp_path / "own"
    os.mkfifo(own)
    reader = os.open(own, os.O_RDONLY | os.O_NONBLOCK)
    done = guard.run([program("host_own_file_is_2"), own, "2", "dup"], env={"SPARKGUARD_LIMIT": "1G"})
    assert (done.returncode, os.read(reader, 4096), done.stderr) == (0, b"data\n", "")
    assert done.process()["refused_count"] == 1
    os.close(reader)


def test_message_goes_into_the_file_that_stderr_was_from_the_start(guard, program, tmp_path):
    with open(tmp_path / "log", "w") as log:
        guard.run([program("host_refused_loop"), 1], stderr=log)
    assert (tmp_path / "log").read_text().startswith("sparkguard: refused malloc of 8.0 TiB: ")


def test_descriptors_umask_and_folder_are_untouched(guard, program):
    done = guard.run([program("host_descriptors")])
    assert done.returncode == 0
    assert len(done.process()["refusals"]) == 1
    assert guard.directory.stat().st_mode & 0o7777 == 0o700
    modes = {"".join(f.suffixes[-1:]): f.stat().st_mode & 0o7777 for f in guard.directory.iterdir()}
    assert modes == {".segment": 0o600, ".timeline": 0o600, ".ledger": 0o600}


@pytest.mark.parametrize("when", ["early", "late"])
def test_program_without_descriptors_goes_on(guard, program, when):
    done = guard.run([program("host_few_files"), when])
    expected = 32 * MIB if when == "early" else 48 * MIB
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{expected}\n", "")
    if when == "late":
        process = done.process()
        assert process["guarding"] and expected <= process["peak_bytes"] <= expected + 2 * MIB


@pytest.mark.skipif(os.geteuid() != 0, reason="chroot needs root")
@pytest.mark.parametrize("when", ["early", "late"])
def test_program_in_an_empty_chroot_goes_on(guard, program, tmp_path, when):
    (tmp_path / "empty").mkdir()
    done = guard.run([program("host_chroot"), tmp_path / "empty", when])
    assert (done.returncode, done.stdout) == (0, "held\n")
    if when == "late":
        assert (done.stderr, done.process()["state"]) == ("", "exited")
        assert done.process()["guarding"]
    else:  # its SPARKGUARD_DIR is not there: the one sentence
        assert done.stderr.count("\n") == 1 and "sparkguard: cannot keep statistics" in done.stderr


@pytest.mark.parametrize("count", [0, 400, 508, 509, 510, 511, 2000])
def test_children_learn_the_job_whatever_size_the_environment_has(guard, count):
    """Set in memory of our own up to a size, and by setenv above it; a program's own changes come on top."""
    extra = {f"NUMBER_{i}": str(i) for i in range(count)}
    script = "import os; os.environ['NUMBER_0'] = 'changed'; del os.environ['PATH']; os.execv('/usr/bin/env', ['env'])"
    done = guard.run(["/usr/bin/python3", "-S", "-c", script], env={**extra, "SPARKGUARD_JOB": "named"})
    variables = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    assert variables["SPARKGUARD_JOB"] == "named" and variables["SPARKGUARD_JOB_FIRST"] == str(done.pid)
    assert variables["NUMBER_0"] == "changed" and "PATH" not in variables
    assert all(variables[name] == value for name, value in extra.items() if name != "NUMBER_0")
    assert done.stdout.count("SPARKGUARD_JOB=") == 1


def test_empty_environment_uses_the_default_directory(guard, program, own_mounts):
    script = (
        "mount -t tmpfs -o size=16m none /dev/shm && env -i LD_PRELOAD=$0 $1 20 </dev/null && "
        "ls -ld /dev/shm/* && ls /dev/shm/sparkguard-0 && $2 --all"
    )
    names = [guard.library, program("dir_hold"), guard.build / "sparkguard-report"]
    done = guard.run([*own_mounts, "sh", "-c", script, *names], env={"LD_PRELOAD": None, "SPARKGUARD_DIR": None})
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("ready\ndrwx------ 2 root root ") and "/dev/shm/sparkguard-0\n" in done.stdout
    assert "dir_hold" in done.stdout


# ---- the linker ------------------------------------------------------------------------------------------------------

WRAPPER = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
int wrapper_calls;
void *malloc(size_t size)
{
    static void *(*next)(size_t);
    if (next == NULL)
        next = (void *(*)(size_t))dlsym(RTLD_NEXT, "malloc");
    wrapper_calls++;
    return next(size);
}
"""


@pytest.fixture(scope="module")
def wrapper(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wrapper")
    (folder / "wrapper.c").write_text(WRAPPER)
    library = folder / "wrapper.so"
    # -O0: no tail calls, so that the caller's return address is where it says it is
    command = [CC, "-O0", "-fno-builtin", "-shared", "-fPIC", "-o", library, folder / "wrapper.c", "-ldl"]
    subprocess.run(command, check=True)
    return library


@pytest.mark.parametrize("order", ["before", "after"])
def test_another_preload_that_wraps_malloc_by_rtld_next_works(guard, program, wrapper, order):
    preload = [wrapper, guard.library] if order == "before" else [guard.library, wrapper]
    done = guard.run([program("host_next")], preload=preload)
    assert (done.returncode, done.stdout, done.stderr) == (0, "2 1\n", "")
    for command in (["bash", "-c", "echo $(echo hi)"], ["/usr/bin/python3", "-c", "print('hi')"]):
        assert guard.run(command, preload=preload).stdout == "hi\n"


@pytest.mark.parametrize("order", ["before", "after"])
def test_both_count_when_another_preload_wraps_malloc(guard, program, wrapper, order):
    preload = [wrapper, guard.library] if order == "before" else [guard.library, wrapper]
    done = guard.run([program("death_by"), "return"], preload=preload)
    assert int(done.stdout.split()[0]) <= done.process()["peak_bytes"] <= int(done.stdout.split()[0]) + 2 * MIB


def test_dlsym_finds_the_programs_own_malloc(guard, program):
    assert guard.run([program("host_next")]).stdout == "0 1\n"


def test_mmap_has_one_address_under_both_of_its_names(guard):
    """As in the C library: a profiler that hooks it compares what it was linked to (mmap64) with what dlsym finds (mmap)."""
    code = "import ctypes; c = ctypes.CDLL(None); print(len({ctypes.cast(f, ctypes.c_void_p).value for f in (c.mmap, c.mmap64)}))"
    assert guard.run([PYTHON, "-c", code]).stdout == "1\n"


def test_probes_for_cuda_say_no_where_none_is_loaded(guard, program):
    plain = guard.run([program("host_probes")], env={"LD_PRELOAD": None})
    assert (plain.returncode, plain.stdout) == (0, "")
    done = guard.run([program("host_probes")])
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_dlerror_survives_allocations(guard, program):
    assert guard.run([program("host_dlerror")], env={"LD_PRELOAD": None}).returncode == 0
    assert guard.run([program("host_dlerror")]).returncode == 0


def test_errno_is_untouched_by_calls_that_succeed(guard, program):
    done = guard.run([program("host_errno")])
    assert (done.returncode, done.stdout) == (0, "")


# ---- standard error and signals --------------------------------------------------------------------------------------


BAD_PIECES = """
import ctypes, mmap, os
libc = ctypes.CDLL(None, use_errno=True)
own, size = os.pidfd_open(os.getpid()), mmap.PAGESIZE
libc.mmap.restype = ctypes.c_void_p
end = libc.mmap(None, ctypes.c_size_t(2 * size), 3, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0) + size
libc.munmap(ctypes.c_void_p(end), ctypes.c_size_t(size))
for pieces, count in ((8, 1), (end - 16, 2), (end - 8, 1), (0, 1), (0, 0)):
    print(libc.process_madvise(own, ctypes.c_void_p(pieces), ctypes.c_size_t(count), 23, 0), ctypes.get_errno())
"""


def test_list_that_cannot_be_read_is_the_kernels_to_refuse(guard):
    bare = guard.run([PYTHON, "-c", BAD_PIECES], env={"LD_PRELOAD": None})
    done = guard.run([PYTHON, "-c", BAD_PIECES])
    assert (bare.returncode, bare.stderr) == (0, "")
    assert (done.returncode, done.stdout, done.stderr) == (0, bare.stdout, "")


REFUSED_PROTECTION = """
import ctypes, mmap, resource
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
size = 256 << 20
at = ctypes.c_void_p(libc.mmap(None, ctypes.c_size_t(size), 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0))
resource.setrlimit(resource.RLIMIT_NOFILE, (0, 1024))
assert libc.mprotect(at, ctypes.c_size_t(size), 3 | 1 << 20) == -1
print("quiet", flush=True)
input()
"""


def test_protection_that_does_not_exist_commits_nothing(guard):
    """Also where no descriptor is left to look at the mappings."""
    for _, entry in guard.quiet_points([PYTHON, "-c", REFUSED_PROTECTION], {}):
        assert entry["domains"]["mapped"]["live_bytes"] < 200 << 20


def test_message_into_a_pipe_nobody_reads_ends_nothing(guard, program):
    reader, writer = os.pipe()
    os.close(reader)
    done = guard.run([program("host_refused_loop"), 5], stderr=writer, restore_signals=True)
    os.close(writer)
    assert (done.returncode, done.stdout) == (0, "5\n")


def test_message_into_a_full_pipe_does_not_wait(guard, program):
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with pytest.raises(BlockingIOError):
        while True:
            os.write(writer, bytes(4096))
    os.set_blocking(writer, True)
    done = guard.run([program("host_refused_loop"), 5], stderr=writer, timeout=60)
    os.close(writer)
    os.close(reader)
    assert (done.returncode, done.stdout) == (0, "5\n")


def test_a_line_a_second_at_most(guard, program):
    begin = time.monotonic()
    done = guard.run([program("host_refused_loop"), 20000])
    seconds = time.monotonic() - begin
    assert done.stdout == "20000\n"
    process = done.process()
    assert process["refused_count"] == 20000 and len(process["refusals"]) == 64
    times = [refusal["time"] for refusal in process["refusals"]]
    assert times == sorted(times)
    assert 1 <= done.stderr.count("sparkguard: ") <= 2 + seconds  # each with a second line at most: what to try
    assert done.stderr.count("\n") <= 2 * (2 + seconds)


def test_signal_mask_pending_signals_and_handlers_are_untouched(guard, program):
    done = guard.run([program("host_signals")], env={"SPARKGUARD_LIMIT": "1G"})
    assert done.returncode == 0, done.stderr
    assert done.process()["state"] == "exited"


def test_program_with_a_small_address_space_gets_the_kernels_answer(guard, program):
    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (256 * MIB, 256 * MIB))

    code = "try:\n    x = bytearray(1 << 30)\nexcept MemoryError:\n    print('told')\nprint(len(bytearray(10 << 20)))"
    done = guard.run([PYTHON, "-S", "-c", code], preexec_fn=limit)
    assert (done.returncode, done.stdout, done.stderr) == (0, "told\n10485760\n", "")


def test_dlerror_survives_where_the_libc_lies_before_us(guard, program):
    """What is behind us in the global scope says nothing then: everything is looked up by dlsym, at set-up."""
    assert guard.run([program("host_dlerror")], preload=["libc.so.6", guard.library]).returncode == 0
