"""sparkguard-doctor --need: a gate in front of a command, on machines made of files. Their memory changes while it waits."""

import json
import os
import re
import signal
import subprocess
import time

import pytest
from doctor_tree import GIB, MIB, Doctor
from screen import Terminal

OTHER_UID = 12345


@pytest.fixture
def gate(tools, tmp_path):
    """A Spark of 120 GiB without cgroups: of its 110 GiB that are available, 9.6 GiB are the reserve."""
    doctor = Doctor(tools, tmp_path / "root")
    doctor.tree.write("proc/self/cgroup", "0::/\n")
    return doctor


def available(gate, gib):
    """Replaces the file in one step, for the gate reads it meanwhile."""
    gate.tree.figures["MemAvailable"] = gib * GIB
    lines = [f"{k}:{v // 1024:>16} kB\n" for k, v in gate.tree.figures.items()]
    new = gate.tree.write("proc/new", "".join(lines))
    os.rename(new, gate.root / "proc/meminfo")


def start(gate, *arguments, **options):
    command = [str(gate.program), *arguments]
    return subprocess.Popen(command, env=gate.environment(), stdout=-1, stderr=-1, text=True, **options)


# ---- enough, too little, never --------------------------------------------------------------------------------------


def test_enough_is_told_in_a_line(gate):
    done = gate.run("--need=100G")
    assert (done.returncode, done.stdout, done.stderr) == (0, "100.4 GiB could be had, 100.0 GiB needed\n", "")


def test_the_figure_is_the_reports(gate, tools):
    command = [str(tools / "sparkguard-report"), "--json"]
    done = subprocess.run(command, env=gate.environment(), capture_output=True, text=True)
    machine = json.loads(done.stdout)["machine"]
    free = machine["usable_bytes"] - machine["reserve_bytes"]
    assert gate.run(f"--need={free}", "--wait=0").returncode == 0
    assert gate.run(f"--need={free + 1}", "--wait=0").returncode == 124


def test_the_command_is_executed_with_its_own_options(gate):
    done = gate.run("--need", "80G", "--wait", "5", "sh", "-c", 'echo "$$ $0 $1"; exit 7', "--json", "--need")
    assert done.returncode == 7
    assert done.stderr == "sparkguard-doctor: sh runs without the guard; to guard it, put sparkguard in front of it\n"
    assert re.fullmatch(r"\d+ --json --need\n", done.stdout)
    assert gate.run("--need=80G", "--", "echo", "x").stdout == "x\n"


def test_the_launcher_beside_the_tool_is_named_where_the_path_has_none(gate, tools):
    done = gate.run("--need=80G", "sparkguard", "--version", PATH="/nowhere")
    assert done.returncode == 127
    assert done.stderr == f"sparkguard-doctor: cannot run sparkguard: No such file or directory; there is one beside this tool: {tools}/sparkguard\n"


def test_the_launcher_starts_without_a_word(gate, tools):
    assert gate.run("--need=80G", str(tools / "sparkguard"), "--version").stderr == ""


def test_a_preloaded_command_starts_without_a_word(gate, guarded_tools):
    done = gate.run("--need=80G", "echo", "x", LD_PRELOAD=str(guarded_tools / "libsparkguard.so"))
    assert (done.stdout, done.stderr) == ("x\n", "")


def test_a_command_becomes_the_gate(gate):
    with start(gate, "--need=80G", "sh", "-c", "echo $$") as process:
        assert process.stdout.read() == f"{process.pid}\n"


def test_a_command_that_cannot_be_run_is_told_as_by_env(gate, tmp_path):
    assert gate.run("--need=80G", "no-such-command").returncode == 127
    (tmp_path / "plain").write_text("x")
    assert gate.run("--need=80G", str(tmp_path / "plain")).returncode == 126


def test_too_little_ends_without_the_command(gate):
    available(gate, 50)
    done = gate.run("--need=80G", "--wait=0", "echo", "started")
    assert done.returncode == 124 and done.stdout == ""
    assert "40.4 GiB of the 80.0 GiB needed could be had" in done.stderr and "the command was not started" in done.stderr


def test_what_the_machine_cannot_have_is_not_waited_for(gate):
    done = gate.run("--need=111G", "echo", "started")
    assert done.returncode == 1 and done.stdout == ""
    assert "111.0 GiB can never be had here: all memory less the reserve is 110.4 GiB" in done.stderr


def test_what_a_cgroup_cannot_have_is_not_waited_for(gate):
    gate.tree.write("proc/self/cgroup", "0::/job\n")  # 100 GiB, of which 8 GiB are its reserve
    assert gate.run("--need=91G", "--wait=0").returncode == 0
    assert gate.run("--need=93G").returncode == 1


def test_without_figures_it_does_not_start(gate):
    gate.tree.close("proc/meminfo")
    done = gate.run("--need=1G", "echo", "started")
    assert done.returncode == 3 and done.stdout == "" and "does not say what is available" in done.stderr


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--need=much"], "--need=much: "),
        (["--need="], "a good one: 80G"),
        (["--need=1G", "--wait=-1"], "not a number of seconds"),
        (["--need=1G", "--wait=1e99"], "not a number of seconds"),
        (["--wait=5"], "--wait belongs to --need"),
        (["--need=1G", "--fix-script"], "not both"),
        (["--need=1G", "--json", "true"], "not both"),
        (["true"], "nothing to do with true"),
    ],
)
def test_usage(gate, arguments, said):
    done = gate.run(*arguments)
    assert done.returncode == 2 and done.stdout == "" and said in done.stderr


def test_sizes_are_those_of_the_options(gate):
    assert gate.run("--need=80GB", "--wait=0").stdout.endswith("74.5 GiB needed\n")
    assert gate.run("--need=50%", "--wait=0").stdout.endswith("60.0 GiB needed\n")
    assert "did you mean 80G?" in gate.run("--need=80").stderr


# ---- waiting --------------------------------------------------------------------------------------------------------


def test_it_waits_until_there_is_enough(gate):
    available(gate, 50)
    with start(gate, "--need=80G", "echo", "started") as process:
        assert "; waiting\n" in process.stderr.readline()
        available(gate, 100)
        assert process.wait(60) == 0
        assert process.stdout.read() == "started\n"
        assert "90.4 GiB could be had after" in process.stderr.read()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_wait_and_nothing_is_started(gate, number):
    available(gate, 50)
    with start(gate, "--need=80G", "echo", "started") as process:
        assert process.stderr.readline()
        process.send_signal(number)
        assert process.wait(60) == -number
        assert process.stdout.read() == ""


def test_what_is_ignored_stays_ignored(gate):
    """As under nohup: the command inherits it."""
    available(gate, 50)

    def ignore():
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    with start(gate, "--need=80G", "sh", "-c", "kill -HUP $$; echo started", preexec_fn=ignore) as process:
        assert process.stderr.readline()
        process.send_signal(signal.SIGHUP)
        available(gate, 100)
        assert process.wait(60) == 0 and process.stdout.read() == "started\n"


def test_the_command_gets_its_signals(gate):
    blocked = gate.run("--need=1G", "sh", "-c", "grep SigBlk /proc/self/status").stdout
    assert blocked == "SigBlk:\t0000000000000000\n"


def test_on_a_terminal_it_shows_its_progress_in_one_line(gate):
    available(gate, 50)
    with Terminal([gate.program, "--need=80G", "echo", "started"], gate.environment(TERM="xterm"), columns=60) as terminal:
        data = b""
        while b"40.4 GiB of 80.0 GiB, " not in data:
            data += os.read(terminal.fd, 65536)
        assert data.count(b"\r\x1b[K") == 1
        available(gate, 100)
        while b"started" not in data:
            data += os.read(terminal.fd, 65536)
        last = data.rsplit(b"\r\x1b[K", 1)[1].decode()
        assert re.match(r"sparkguard-doctor: 90\.4 GiB could be had after [\d.]+ s\r\nsparkguard-doctor: echo runs without .*\r\nstarted", last)


# ---- who holds memory -----------------------------------------------------------------------------------------------


def holders(gate, *arguments):
    available(gate, 50)
    began = time.monotonic()
    done = gate.run("--need=80G", "--wait=0", "--json", *arguments)
    data = json.loads(done.stdout)
    assert done.returncode == data["exit_status"] == 124 and data["enough"] is False
    assert data["need_bytes"] == 80 * GIB and 0 <= data["waited_seconds"] <= time.monotonic() - began
    return data["holders"]


def owner(gate, pid, uid):
    path = gate.root / f"proc/{pid}/status"
    path.write_text(path.read_text() + f"Uid:\t{uid}\t{uid}\t{uid}\t{uid}\n")


def leave_behind(gate):
    tree = gate.tree
    tree.process(70, "VLLM::EngineCor", parent=1, resident=30 * GIB, cmdline=["VLLM::EngineCore"])
    tree.process(71, "ray::IDLE", parent=60, resident=10 * MIB, cmdline=["ray::IDLE"])
    tree.process(72, "python3", parent=1, resident=2 * GIB, cmdline=["python3", "train.py"])
    tree.process(73, "postgres", parent=1, resident=4 * GIB, cmdline=["postgres: main"])
    tree.process(74, "python3", parent=60, resident=1 * GIB, cmdline=["python3", "live.py"])
    tree.process(75, "sh", parent=60, resident=1 * MIB)


def test_leftovers_come_first_with_what_ends_them(gate):
    leave_behind(gate)
    owner(gate, 70, os.geteuid())
    found = [(h["kind"], h["pid"], h["bytes"], h["name"], h["end"]) for h in holders(gate)]
    sudo = "" if os.geteuid() == 0 else "sudo "
    assert found == [
        ("leftover", 70, 30 * GIB, "VLLM::EngineCore", "kill 70"),
        ("leftover", 72, 2 * GIB, "python3 train.py", f"{sudo}kill 72"),
        ("leftover", 71, 10 * MIB, "ray::IDLE", "ray stop"),
        ("large", 73, 4 * GIB, "postgres: main", f"{sudo}kill 73"),
        ("large", 74, 1 * GIB, "python3 live.py", f"{sudo}kill 74"),
    ]


@pytest.mark.parametrize(
    "group, end",
    [
        (f"/system.slice/docker-{'ab' * 32}.scope", "docker stop abababababab"),
        (f"/docker/{'12' * 32}", "docker stop 121212121212"),
        (f"/machine.slice/libpod-{'cd' * 32}.scope", "podman stop cdcdcdcdcdcd"),
        ("/system.slice/ollama.service", "sudo systemctl stop ollama.service"),
        ("/user.slice/user-1000.slice/user@1000.service/app.slice/job.service", "systemctl --user stop job.service"),
        ("/user.slice/user-1000.slice/user@1000.service", "kill 70"),
        ("/system.slice/$(id).service", "kill 70"),
        ("/system.slice/-x.service", "kill 70"),
    ],
)
def test_what_ends_a_process_is_what_runs_it(gate, group, end):
    gate.tree.process(70, "python3", parent=1, resident=30 * GIB, cgroup=f"0::{group}")
    owner(gate, 70, os.geteuid())
    (holder,) = holders(gate)
    assert holder["end"] == end


def test_what_runs_below_a_service_is_not_ended_with_it(gate):
    gate.tree.process(60, "sshd", parent=1, resident=MIB)
    gate.tree.process(70, "python3", parent=60, resident=30 * GIB, cgroup="0::/system.slice/ssh.service")
    owner(gate, 70, os.geteuid())
    (holder,) = holders(gate)
    assert holder["end"] == "kill 70"


def test_a_file_that_nobody_uses_is_named(gate):
    with open(gate.tree.write("dev/shm/psm_1", ""), "wb") as file:
        os.posix_fallocate(file.fileno(), 0, 300 * MIB)
        taken = 512 * os.fstat(file.fileno()).st_blocks  # a file system may take a block more to find them by
    (holder,) = holders(gate)
    assert (holder["kind"], holder["pid"], holder["bytes"]) == ("file", None, taken) and taken >= 300 * MIB
    assert holder["end"] == "rm -i /dev/shm/psm_1"


def test_the_text_names_them_and_runs_nothing(gate):
    leave_behind(gate)
    owner(gate, 70, OTHER_UID)
    available(gate, 50)
    done = gate.run("--need=80G", "--wait=0")
    assert "these look left behind by an earlier job:\n    30.0 GiB  70 VLLM::EngineCore of 12345, a process of vLLM\n" in done.stderr
    assert "these hold memory:\n     4.0 GiB  73 postgres: main of -\n" in done.stderr


def test_names_steer_no_terminal(gate):
    gate.tree.process(70, "\x1b[31mx", resident=30 * GIB, cmdline=["\x1b]0;y\x07\u202e"])
    available(gate, 50)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\u202e]", gate.run("--need=80G", "--wait=0").stderr)


def test_json_of_enough_is_whole(gate):
    data = json.loads(gate.run("--need=80G", "--json").stdout)
    assert data["enough"] and data["holders"] == [] and data["free_bytes"] == data["usable_bytes"] - data["reserve_bytes"]


def test_output_that_cannot_be_written_is_told(gate):
    with open("/dev/full", "w") as full:
        done = subprocess.run([str(gate.program), "--need=1G"], env=gate.environment(), stdout=full, stderr=-1, text=True)
    assert done.returncode == 3 and "cannot write" in done.stderr
