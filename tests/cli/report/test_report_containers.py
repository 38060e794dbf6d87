"""sparkguard-report on the host: containers, their processes and users, and unguarded processes with the reason."""

import contextlib
import json
import os
import re
import secrets
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from lib.units import GIB, MIB
from lib.waiting import wait_until
from records import processes
from segment import START_NS

ID = "0123456789abcdef" * 4
OTHER = "fedcba9876543210" * 4
NOBODY = 65534
LARGE = 1200 * MIB  # among the largest of a machine that does other things too
OTHER_NAMESPACE = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
HOLD = "import mmap, os, sys; m = mmap.mmap(-1, {bytes}, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE); print(os.getpid(), flush=True); sys.stdin.read()"

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture
def namespaces():
    if subprocess.run([*OTHER_NAMESPACE, "true"], capture_output=True).returncode != 0:
        pytest.skip("PID namespaces need root")


@contextlib.contextmanager
def started(command, **options):
    """A program that says its PID, as it sees it, and ends when its input does."""
    process = subprocess.Popen([str(c) for c in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options)
    try:
        yield process, int(process.stdout.readline())
    finally:
        process.communicate("", timeout=60)


def hold(size):
    return [sys.executable, "-S", "-c", HOLD.format(bytes=size)]


@contextlib.contextmanager
def cgroup(name):
    """A cgroup of that name in any hierarchy of this machine, as a folder."""
    places = [Path("/sys/fs/cgroup"), *(Path("/sys/fs/cgroup") / child for child in ("unified", "systemd", "pids"))]
    place = next((p for p in places if (p / "cgroup.procs").exists() and os.access(p, os.W_OK)), None)
    if place is None:
        pytest.skip("no cgroup may be made here")
    folder = place / f"sparkguard-test-{secrets.token_hex(4)}" / name
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        wait_until(lambda: not (folder / "cgroup.procs").read_text())  # children of the program end after it
        folder.rmdir()
        folder.parent.rmdir()


def enter(folder):
    """For preexec_fn: the child moves itself before exec."""
    return lambda: (folder / "cgroup.procs").write_text(str(os.getpid()))


def record(directory, container=ID, **keys):
    """What sparkguard-runtime writes for a container."""
    folder = directory / "containers"
    folder.mkdir(exist_ok=True, mode=0o755)
    content = {"id": container, "name": "serve", "cgroup": None, "guarded": True, "reason": None, "time": "", "bundle": "/b", **keys}
    path = folder / f"{container}.json"
    path.write_text(json.dumps(content))
    path.chmod(0o644)
    return path


# ---- names ----------------------------------------------------------------------------------------------------------


def test_a_record_names_its_container_after_the_end(make, report):
    """By the beginning of the ID that the record has; the job has another name."""
    record(report.directory)
    make(pid=7, container=ID[:12], pid_namespace=4026539999).write(report.directory)
    assert processes(report.json())[7]["container"] == "serve"
    assert re.search(r"^job train, container serve, last seen", report.run().stdout, re.MULTILINE)
    assert ", job train, container serve\n" in report.run(7).stdout


def test_a_job_of_the_containers_name_says_it_once(make, report):
    record(report.directory)
    make(pid=7, job="serve", container=ID[:12]).write(report.directory)
    assert "container" not in report.run().stdout


@pytest.mark.parametrize("note, shown", [(ID[:12], ID[:12]), ("pod-0", "pod-0"), ("sixteen-letters1", "sixteen-letters1")])
def test_without_a_record_it_is_the_short_id_or_the_host_name(make, report, note, shown):
    make(pid=7, container=note).write(report.directory)
    assert processes(report.json())[7]["container"] == shown


def test_this_machines_own_name_is_no_container(make, report):
    make(pid=7, container=os.uname().nodename[:16]).write(report.directory)
    assert processes(report.json())[7]["container"] is None


def test_a_container_restarted_under_its_name_has_two_records(make, report):
    """And the same PID: both are shown, each with its own figures."""
    record(report.directory), record(report.directory, OTHER)
    make(pid=1, job="serve", container=ID[:12]).domain("heap", peak=GIB).peak(heap=GIB).write(report.directory)
    second = make(pid=1, job="serve", container=OTHER[:12], **{"slot.start_ticks": 99})
    second.name = second.name.replace(".segment", "2.segment")
    second.set("started_time_ns", START_NS + 200 * 10**9).set("ended_time_ns", START_NS + 300 * 10**9)
    second.domain("heap", peak=2 * GIB).peak(heap=2 * GIB).write(report.directory)
    (job,) = report.json("--all")["jobs"]
    shown = [(p["container"], p["peak_bytes"], p["run"]) for p in job["processes"]]
    assert shown == [("serve", GIB, 1), ("serve", 2 * GIB, 2)]


@needs_root
def test_users_of_others_are_named(make, report):
    os.chown(make(pid=7).write(report.directory), NOBODY, NOBODY)
    assert processes(report.json())[7]["user"] == "nobody"
    assert re.search(r"^job train, user nobody, ", report.run().stdout, re.MULTILINE)


# ---- hostile records ------------------------------------------------------------------------------------------------


def spoil_owner(path):
    os.chown(path, NOBODY, NOBODY)


def spoil_folder(path):
    os.chown(path.parent, NOBODY, NOBODY)


def spoil_link(path):
    path.rename(path.parent / "elsewhere")
    path.symlink_to("elsewhere")


def spoil_fifo(path):
    path.unlink()
    os.mkfifo(path)


HOSTILE = {
    "another user's": spoil_owner,
    "another user's folder": spoil_folder,
    "writable by the group": lambda path: path.chmod(0o664),
    "a folder writable by all": lambda path: path.parent.chmod(0o777),
    "a link": spoil_link,
    "a fifo": spoil_fifo,
    "a folder in its place": lambda path: (path.unlink(), path.mkdir()),
    "of another container": lambda path: path.write_text(json.dumps({"id": OTHER, "name": "serve"})),
    "deep": lambda path: path.write_text("[" * 60000),
    "deep and whole": lambda path: path.write_text('{"id": "%s", "name": ' % ID + "[" * 30000 + "]" * 30000 + "}"),
    "huge": lambda path: path.write_text(json.dumps({"id": ID, "name": "serve", "more": "x" * 70000})),
    "a number for a name": lambda path: path.write_text(json.dumps({"id": ID, "name": 7})),
    "a name of 5000 letters": lambda path: path.write_text(json.dumps({"id": ID, "name": "x" * 5000})),
    "no JSON": lambda path: path.write_bytes(b"\xff\0" * 100),
    "empty": lambda path: path.write_text(""),
}


@needs_root
@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_record_names_nothing(make, report, kind):
    HOSTILE[kind](record(report.directory))
    make(pid=7, container=ID[:12]).write(report.directory)
    done = report.run("--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert processes(json.loads(done.stdout))[7]["container"] == ID[:12]


def test_unknown_keys_are_ignored(make, report):
    record(report.directory, more={"deeper": [1, 2]}, guarded="perhaps")
    make(pid=7, container=ID[:12]).write(report.directory)
    assert processes(report.json())[7]["container"] == "serve"


def test_a_hostile_name_controls_no_terminal_and_no_page(make, report, tmp_path):
    name = "a\x1b[2Jb\u202e<script>\"'&"
    record(report.directory, name=name)
    make(pid=7, container=ID[:12]).write(report.directory)
    assert processes(report.json())[7]["container"] == name
    for arguments in ([], [7], ["--csv"], ["--watch=0.1", 7]):
        shown = report.run(*arguments).stdout
        assert "\x1b" not in shown and "\u202e" not in shown
    assert "container a\\x1b[2Jb\\u202e<script>\"'&," in report.run().stdout
    assert report.run(f"--html={tmp_path / 'p.html'}").returncode == 0
    page = (tmp_path / "p.html").read_text()
    assert "\x1b" not in page and "<script" not in page and page.count("&#60;script") >= 2


# ---- running processes of containers --------------------------------------------------------------------------------


def test_two_containers_with_the_same_pid_are_two_running_processes(guard, namespaces):
    """Each is process 1 in a namespace of its own. The report shows them by their numbers here, which the kernel tells."""
    sizes = [40 * MIB, 60 * MIB]
    with contextlib.ExitStack() as stack:
        for size in sizes:
            command = [*OTHER_NAMESPACE, "env", f"LD_PRELOAD={guard.library}", *hold(size)]
            env = guard.environment({"SPARKGUARD_JOB": f"holds-{size >> 20}"}, preload=[])
            assert stack.enter_context(started(command, env=env))[1] == 1
        jobs = {job["job"]: job for job in guard.report("--all")["jobs"]}
        text = guard.report_command().stdout
        for size in sizes:
            job = jobs[f"holds-{size >> 20}"]
            (process,) = [p for p in job["processes"] if p["pid"] == 1]
            assert process["state"] == "running" and size <= job["live_bytes"] < size + 8 * MIB
            assert hold(size)[-1] in Path(f"/proc/{process['host_pid']}/cmdline").read_text()
            assert re.search(r"^NSpid:.*\t1$", Path(f"/proc/{process['host_pid']}/status").read_text(), re.MULTILINE)
            assert re.search(rf"^ *{process['host_pid']} .* running ", text, re.MULTILINE)
            one = guard.report_command(process["host_pid"]).stdout
            assert one.startswith(f"{process['host_pid']} ") and "process 1 there" in one
        assert not {p["host_pid"] for job in jobs.values() for p in job["processes"]} & {u["pid"] for u in guard.report("--all")["unguarded"]}
        both = json.loads(guard.report_command("--json", 1).stdout)["jobs"]
        assert both == [] or all(p["pid"] == 1 for job in both for p in job["processes"])


def test_a_namespaced_process_that_is_killed_is_killed(guard, namespaces):
    """And its number, which others have, is not taken for it."""
    command = [*OTHER_NAMESPACE, "env", f"LD_PRELOAD={guard.library}", *hold(40 * MIB)]
    with started(command, env=guard.environment({"SPARKGUARD_JOB": "gone"}, preload=[])) as (outer, _):
        (process,) = [p for p in guard.report("--all")["jobs"][0]["processes"] if p["pid"] == 1]
        os.kill(process["host_pid"], signal.SIGKILL)
        outer.wait(60)
    (after,) = [p for p in guard.report("--all")["jobs"][0]["processes"] if p["pid"] == 1]
    assert (after["state"], after["host_pid"]) == ("killed", None)


IN_CONTAINER = ["unshare", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c"]


@pytest.mark.parametrize("host, cgroup_text, shown", [("web-0", None, "web-0"), (ID[:12], None, "serve"), ("web-0", f"0::/docker/{ID}\n", "serve"), ("sixteen-letters-and-more", None, "sixteen-letters-")])
def test_a_process_notes_its_container_itself(guard, namespaces, tmp_path, host, cgroup_text, shown):
    """What is left after its end: the ID of its cgroup where it sees that, else its host name."""
    root = tmp_path / "root"
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(Path("/proc/meminfo").read_text())
    (root / "proc/self/cgroup").write_text(cgroup_text or "0::/\n")
    script = 'hostname "$0" && exec env LD_PRELOAD="$1" "$2" -S -c "$3"'
    command = [*IN_CONTAINER, script, host, guard.library, sys.executable, hold(40 * MIB)[-1]]
    with started(command, env=guard.environment({"SPARKGUARD_SYSTEM_ROOT": root}, preload=[])):
        pass
    record(guard.directory)
    (process,) = guard.processes(1)
    assert (process["state"], process["container"], process["host_pid"]) == ("exited", shown, None)


def test_a_process_of_the_host_notes_no_container(guard):
    """Nothing that would name it where another machine's report reads it, from a copy."""
    process = guard.popen(hold(40 * MIB), stdin=subprocess.PIPE)
    process.communicate("", timeout=60)
    (segment,) = guard.directory.glob(f"{process.pid}-*.segment")
    first = (os.stat("/proc/self/ns/uts").st_ino, os.stat("/proc/self/ns/pid").st_ino) == (0xEFFFFFFE, 0xEFFFFFFC)
    if not first:
        pytest.skip("this machine is a container itself")
    assert segment.read_bytes()[18988:19008] == (0xEFFFFFFC).to_bytes(4, "little") + bytes(16)


SHAPES = ["docker-{}.scope", "libpod-{}.scope", "cri-containerd-{}.scope", "crio-{}.scope", "{}"]


@needs_root
@pytest.mark.parametrize("shape", SHAPES)
def test_the_cgroup_names_the_container_of_a_running_process(guard, shape):
    with cgroup(shape.format(ID)) as folder:
        env = guard.environment({"SPARKGUARD_JOB": "train"})
        with started(hold(40 * MIB), env=env, preexec_fn=enter(folder)) as (process, _):
            assert guard.process(process.pid)["container"] == ID[:12]
            record(guard.directory)
            assert guard.process(process.pid)["container"] == "serve"


@needs_root
def test_the_records_cgroup_is_found(guard):
    """Of containers whose cgroup has no ID in its name, such as those of ctr and of runc alone."""
    with cgroup("mine") as folder:
        path = "/" + str(folder.relative_to("/sys/fs/cgroup"))
        for mount in ("/unified", "/systemd", "/pids"):
            path = path.removeprefix(mount)
        with started(hold(40 * MIB), env=guard.environment(), preexec_fn=enter(folder)) as (process, _):
            record(guard.directory, "web", name="web", cgroup=path)
            record(guard.directory, "we", name="we", cgroup=path[:-1])
            assert guard.process(process.pid)["container"] == "web"


@needs_root
@pytest.mark.parametrize(
    "name, shown",
    [("machine-deb\\x2d12.scope", "deb-12"), ("systemd-nspawn@deb.service", "deb"), ("lxc.payload.web", "web"), (f"libpod-conmon-{ID}.scope", None)],
)
def test_machines_have_names_and_monitors_are_in_none(guard, name, shown):
    with cgroup(name) as folder, started(hold(40 * MIB), env=guard.environment(), preexec_fn=enter(folder)) as (process, _):
        assert guard.process(process.pid)["container"] == shown


@needs_root
@pytest.mark.parametrize("engine", ["docker", "podman"])
def test_the_engines_own_files_name_a_container(make, report, own_mounts, engine):
    """In a mount namespace of the test's own, in which the engine's folder is another one."""
    files = {
        "docker": (f"/var/lib/docker/containers/{ID}/config.v2.json", {"ID": ID, "Name": "/serve", "State": {}}),
        "podman": ("/var/lib/containers/storage/overlay-containers/containers.json", [{"id": OTHER, "names": ["no"]}, {"id": ID, "names": ["serve"]}]),
    }
    path, content = files[engine]
    make(pid=8, container=ID[:12]).write(report.directory)  # ended, and still known to the engine
    with cgroup(f"{engine}-{ID}.scope") as folder:
        live = make(pid=7, state="running", container=ID[:12])
        with live.write_live(report.directory), started(hold(MIB), preexec_fn=enter(folder)) as (process, pid):
            live = make(pid=pid, state="running")
            ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
            with live.set("slot.start_ticks", ticks).write_live(report.directory):
                script = 'mount -t tmpfs none /var/lib && mkdir -p "$(dirname "$0")" && printf %s "$1" >"$0" && shift && exec "$@"'
                command = [*own_mounts, "sh", "-c", script, path, json.dumps(content), str(report.program), "--json"]
                done = subprocess.run(command, env=report.environment(), capture_output=True, text=True)
                assert done.returncode == 0, done.stderr
                shown = processes(json.loads(done.stdout))
                assert [shown[number]["container"] for number in (pid, 8)] == ["serve", "serve"]


# ---- unguarded processes --------------------------------------------------------------------------------------------


@contextlib.contextmanager
def unguarded(report, command, **options):
    """The report's entry for an unguarded program, on a machine of which it is a large part."""
    report.machine(MemTotal=4 * GIB, MemAvailable=3 * GIB)
    with started(command, **options) as (process, pid):
        yield next((u for u in report.json()["unguarded"] if u["pid"] == pid), None)


def plain(**extra):
    return {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"} | extra


def test_a_cleared_environment_is_the_reason(report):
    with unguarded(report, hold(LARGE), env=plain()) as entry:
        assert entry["reason"] == "no LD_PRELOAD" and entry["container"] is None and entry["device_bytes"] in (None, 0)
        assert re.search(r"^ *PID UNGUARDED PROCESS +.*RESIDENT.* WHY", report.run().stdout, re.MULTILINE)
        assert re.search(rf"^ *{entry['pid']} .*no LD_PRELOAD$", report.run().stdout, re.MULTILINE)


def test_a_library_that_is_not_there_is_the_reason(report):
    with unguarded(report, hold(LARGE), env=plain(LD_PRELOAD="/nowhere/libsparkguard.so"), stderr=subprocess.DEVNULL) as entry:
        assert entry["reason"] == "did not find the library"


def test_a_disabled_guard_is_the_reason(report, guard):
    with unguarded(report, hold(LARGE), env=guard.environment({"SPARKGUARD_DISABLE": "1"})) as entry:
        assert entry["reason"] == "SPARKGUARD_DISABLE=1"


def test_records_in_another_directory_are_the_reason(report, guard, tmp_path):
    with unguarded(report, hold(LARGE), env=guard.environment({"SPARKGUARD_DIR": tmp_path / "else"})) as entry:
        assert entry["reason"] == "guarded in another directory"


def test_a_static_program_is_the_reason(report, tmp_path):
    source = tmp_path / "hold.c"
    source.write_text(
        "#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n#include <unistd.h>\n"
        "int main(void) { char *m = malloc(1200u << 20); memset(m, 1, 1200u << 20); printf(\"%d\\n\", getpid()); fflush(stdout);"
        " return getchar() == m[7]; }\n"
    )
    if subprocess.run(["cc", "-O0", "-static", str(source), "-o", str(tmp_path / "hold")], capture_output=True).returncode != 0:
        pytest.skip("no static C library")
    with unguarded(report, [tmp_path / "hold"]) as entry:
        assert entry["reason"] == "static program"


@needs_root
def test_the_runtimes_reason_is_the_containers(report):
    record(report.directory, name="alpine", guarded=False, reason="musl \x1b[2Jin the image")
    with cgroup(f"docker-{ID}.scope") as folder, unguarded(report, hold(LARGE), env=plain(), preexec_fn=enter(folder)) as entry:
        assert entry["container"] == "alpine" and entry["user"] == "root"
        assert entry["reason"] == "its runtime kept out: musl \x1b[2Jin the image"
        text = report.run().stdout
        assert re.search(rf"^ *{entry['pid']} .* alpine +\S+ GiB its runtime kept out: musl \\x1b\[2Jin the image$", text, re.MULTILINE), text
        (series,) = [line for line in report.run("--prometheus").stdout.splitlines() if f'pid="{entry["pid"]}"' in line]
        assert series.startswith('sparkguard_unguarded_resident_bytes{container="alpine",')


@needs_root
def test_the_user_of_an_unguarded_process_is_named(report):
    with unguarded(report, hold(LARGE), env=plain(), user=NOBODY) as entry:
        assert entry["user"] == "nobody"
        assert re.search(rf"^ *{entry['pid']} .* nobody ", report.run().stdout, re.MULTILINE)


@needs_root
def test_a_container_of_many_small_processes_is_listed_as_one(report):
    """Each is below what the list of processes shows. Of the memory that they share one counts."""
    report.machine(MemTotal=16 * GIB, MemAvailable=12 * GIB)
    record(report.directory, name="alpine", guarded=False, reason="musl")
    code = "import mmap, os, sys; shared = mmap.mmap(-1, 64 << 20); shared.write(bytes(64 << 20)); pids = [os.fork() for _ in '12']; own = bytearray(b'x') * (90 << 20);"
    code += "print(os.getpid(), flush=True) if all(pids) else 0; sys.stdin.read() if all(pids) else os.read(0, 1)"
    with cgroup(f"docker-{ID}.scope") as folder, started([sys.executable, "-S", "-c", code], env=plain(), preexec_fn=enter(folder)) as (_, pid):
        (sum_,) = wait_for_sum(report, 4 * 90 * MIB)
        assert pid not in [entry["pid"] for entry in report.json()["unguarded"]]
        assert (sum_["container"], sum_["id"], sum_["user"], sum_["process_count"]) == ("alpine", ID, "root", 4)
        assert sum_["reason"] == "its runtime kept out: musl"
        assert sum_["resident_bytes"] < 4 * 90 * MIB + 3 * 64 * MIB
        report.run(f"--html={report.directory / 'p.html'}")
        assert "Unguarded processes by container" in (report.directory / "p.html").read_text()
        assert re.search(r"^alpine +4 +4\d\d\.\d MiB +(-|0 B) its runtime kept out: musl$", report.run().stdout, re.MULTILINE)


def wait_for_sum(report, least):
    """The children may be slower than the parent's word."""
    for _ in range(100):
        found = report.json()["unguarded_containers"]
        if found and found[0]["resident_bytes"] >= least:
            break
    return found
