"""scripts/examples/slurm on a real Slurm: two nodes, which are this machine."""

import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from lib.waiting import wait_until
from slurm_cluster import ROOT, SLURM, Cluster

EXAMPLES = ROOT / "scripts/examples/slurm"
TAKE = "import sys; block = bytearray(int(sys.argv[1]) << 20); block[::4096] = b'x' * len(block[::4096])"
PYTHON = f'/usr/bin/python3 -c "{TAKE}"'
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="Slurm runs a prolog as root")
UNIT = {"MiB": 1, "GiB": 1024}


@pytest.fixture(scope="module")
def scripts(build):
    """The example as an administrator would set it up: the library's place is filled in."""
    with tempfile.TemporaryDirectory(prefix="sparkguard-slurm-") as name:
        folder = Path(name)
        shutil.copy(EXAMPLES / "task-epilog", folder)
        text = (EXAMPLES / "task-prolog").read_text()
        assert text.count("library=libsparkguard.so") == 1
        (folder / "task-prolog").write_text(text.replace("library=libsparkguard.so", f"library={build}/libsparkguard.so"))
        (folder / "task-prolog").chmod(0o755)
        yield folder


@pytest.fixture(scope="module")
def cluster(build, scripts):
    with tempfile.TemporaryDirectory(prefix="sparkguard-slurm-") as scratch:  # short: sockets lie there
        with Cluster(build, scripts, Path(scratch)) as cluster:
            yield cluster
        assert cluster.remaining() == []


def peak_mib(text):
    number, unit = re.search(r"peak ([\d.]+) (MiB|GiB)", text).groups()
    return float(number) * UNIT[unit]


def test_of_a_job_array_only_the_task_over_its_limit_fails(cluster):
    code = f"set -- 64 700 96; shift $SLURM_ARRAY_TASK_ID; exec {PYTHON} $1"
    number = cluster.submit("--array=0-2", "--mem=300", code=code)
    jobs = cluster.wait(number)
    for name, job in sorted(jobs.items()):
        print(name, job["JobState"], job["Comment"])
    assert [jobs[f"{number}_{task}"]["JobState"] for task in range(3)] == ["COMPLETED", "FAILED", "COMPLETED"]
    assert "MemoryError" in cluster.file(f"slurm-{number}_1.out")
    failed = jobs[f"{number}_1"]["Comment"]
    assert "; refused malloc of 700.0 MiB (limit), /usr/bin/python3 -c" in failed and peak_mib(failed) < 300
    assert failed.startswith("sparkguard n")
    for task, size in ((0, 64), (2, 96)):
        comment = jobs[f"{number}_{task}"]["Comment"]
        assert "refused" not in comment and size <= peak_mib(comment) < 300
        line = cluster.file(f"slurm-{number}_{task}.sparkguard")
        assert re.fullmatch(r"n[12] step batch task 0: peak \d+\.\d MiB\n", line)


def test_a_step_on_two_nodes_tells_its_tasks_apart(cluster):
    """Also where a shell stands above the program; each node has a part of the comment, beside what the user wrote."""
    script = "#!/bin/sh\nexec srun -N2 -n3 sh -c '/usr/bin/python3 take.py $((32 << SLURM_PROCID)); true'\n"
    (cluster.work / "step.sh").write_text(script)
    (cluster.work / "take.py").write_text(TAKE + "\n")
    number = cluster.submit("-N2", "-n3", "--mem=600", "--comment=mine", code="sh step.sh")
    job = cluster.wait(number)[number]
    assert job["JobState"] == "COMPLETED", cluster.file(f"slurm-{number}.out")
    lines = sorted(cluster.file(f"slurm-{number}.sparkguard").splitlines(), key=lambda line: line.partition(" task ")[2])
    assert [re.match(r"n[12] step 0 task (\d): ", line)[1] for line in lines] == ["0", "1", "2"]
    assert [peak_mib(line) // 32 for line in lines] == [1, 2, 4]
    parts = {part.partition(": ")[0] for part in job["Comment"].split(" | ")}
    assert {"mine"} < parts <= {"mine", "sparkguard n1", "sparkguard n2"}  # Slurm has no change that cannot be lost


def test_a_cancelled_task_leaves_its_line(cluster):
    """Slurm changes no comment of a job that has ended."""
    (cluster.work / "wait.py").write_text(f"{TAKE}\nprint('ready', flush=True)\nimport time\ntime.sleep(600)\n")  # holds: until the job is cancelled
    number = cluster.submit(code="exec /usr/bin/python3 wait.py 64")
    output, file = (cluster.work / f"slurm-{number}.{end}" for end in ("out", "sparkguard"))
    wait_until(lambda: output.exists() and "ready" in output.read_text(), "output", step=0.1)
    cluster.run("scancel", number)
    assert cluster.wait(number)[number]["JobState"] == "CANCELLED"
    wait_until(file.exists, "line", step=0.1)
    assert re.fullmatch(r"n[12] step batch task 0: peak \d+\.\d MiB\n", file.read_text())


def test_what_is_small_or_not_recorded_leaves_nothing_and_ends_well(cluster):
    small = cluster.submit(code="true")
    closed = cluster.submit(code=f"{PYTHON} 64", SPARKGUARD_DISABLE="1")
    for number in (small, closed):
        job = cluster.wait(number)[number]
        assert (job["JobState"], job.get("Comment")) == ("COMPLETED", None)
    assert list(cluster.work.glob(f"slurm-{small}.sparkguard")) + list(cluster.work.glob(f"slurm-{closed}.sparkguard")) == []


# ---- the prolog that claims ----


@pytest.fixture
def claiming(build, scripts):
    """A cluster whose two nodes claim what --mem says. For the claims both are one machine of files, with 3 GiB to claim now
    and never more than 3.5."""
    with tempfile.TemporaryDirectory(prefix="sparkguard-slurm-") as scratch:
        (plugins,) = SLURM.glob("usr/lib/*/slurm-wlm")
        ours = {
            "SLURM_CONF": f"{scratch}/slurm.conf",
            "LD_LIBRARY_PATH": f"{plugins}:{plugins.parent}",
            "SPARKGUARD_SYSTEM_ROOT": f"{scratch}/machine",
            "SPARKGUARD_RESERVE": "2560M",
            "PATH": f"{build}:{SLURM}/usr/bin:/usr/bin:/bin",
        }
        meminfo = Path(scratch) / "machine/proc/meminfo"
        meminfo.parent.mkdir(parents=True)
        meminfo.write_text(f"MemTotal: {6 << 20} kB\nMemAvailable: {5632 << 10} kB\nMemFree: {5632 << 10} kB\n")
        for name in ("prolog", "epilog"):
            text = (EXAMPLES / name).read_text().replace("shared=/run/sparkguard/shared", f"shared={scratch}/live")
            text = text.replace("claims=/run/sparkguard-slurm", f"claims={scratch}/claims")
            text = re.sub("(?m)^export PATH=.*$", "\n".join(f"export {key}={value}" for key, value in ours.items()), text)
            assert "/run/sparkguard" not in text and text.count(scratch) > 1
            (Path(scratch) / name).write_text(text)
            (Path(scratch) / name).chmod(0o755)
        more = f"Prolog={scratch}/prolog\nEpilog={scratch}/epilog\nPrologFlags=Alloc"
        with Cluster(build, scripts, Path(scratch), more) as cluster:
            yield cluster
        assert cluster.remaining() == []


@needs_root
def test_two_jobs_cannot_start_into_each_other(claiming, build):
    """Slurm would start both, one on each node. The second waits for its claim until the first has ended."""
    (claiming.work / "hold.py").write_text(
        "import os, time\nprint(time.time(), flush=True)\nblock = b'x' * (64 << 20)\n"
        "while not os.path.exists('go'):\n    time.sleep(0.1)\nprint(time.time())\n"  # poll: a file that the test makes
    )
    code = "exec /usr/bin/python3 hold.py"
    first = claiming.submit("--mem=2000", code=code)
    wait_until(lambda: (claiming.work / f"slurm-{first}.out").exists(), "start of the first", step=0.1)
    second = claiming.submit("--mem=2000", code=code)

    def claims():
        report = json.loads(claiming.run(build / "sparkguard-report", "--json"))
        return {job["job"]: (job["claim_state"], job["claimed_bytes"]) for job in report["jobs"]}

    expected = {f"slurm-{first}": ("held", 2000 << 20), f"slurm-{second}": ("queued", 2000 << 20)}
    wait_until(lambda: claims() == expected, "claim of the second", step=0.1)
    assert not (claiming.work / f"slurm-{second}.out").exists()
    (claiming.work / "go").touch()
    assert [claiming.wait(number)[number]["JobState"] for number in (first, second)] == ["COMPLETED"] * 2
    (begin, end), (later, _) = (map(float, claiming.file(f"slurm-{number}.out").split()) for number in (first, second))
    assert begin < end <= later
    wait_until(lambda: claims() == {} or all(state == "none" for state, _ in claims().values()), "end of the claims", step=0.1)


@needs_root
def test_job_whose_claim_can_never_be_granted_is_held(claiming):
    """Its --mem is less than the node has, and more than the reserve leaves."""
    number = claiming.submit("--mem=3900", code="touch started")
    wait_until(lambda: "held" in claiming.jobs(number)[number].get("Reason", "").lower(), "hold", step=0.1)
    assert not (claiming.work / "started").exists()
    claiming.run("scancel", number)


# ---- the prolog by itself ----

TASK = {"PATH": "/usr/bin:/bin", "SLURM_JOB_ID": "7", "SLURM_PROCID": "0"}
ARRAY = {"SLURM_ARRAY_JOB_ID": "5", "SLURM_ARRAY_TASK_ID": "2"}
NOTE = Path(f"/dev/shm/slurm-sparkguard-{os.getuid()}/7.batch.0")
NO_LIMIT, NINE = "unset SPARKGUARD_LIMIT", "export SPARKGUARD_LIMIT=9M"


@pytest.fixture
def noted():
    yield NOTE
    NOTE.unlink(missing_ok=True)


@pytest.mark.parametrize(
    "extra, job, limit",
    [
        ({}, "slurm-7", NO_LIMIT),
        (ARRAY, "slurm-5_2", NO_LIMIT),
        ({"SLURM_MEM_PER_NODE": "0"}, "slurm-7", NO_LIMIT),
        ({"SLURM_MEM_PER_NODE": "300"}, "slurm-7", "export SPARKGUARD_LIMIT=300M"),
        ({"SLURM_MEM_PER_NODE": "300", "SPARKGUARD_LIMIT": "1G"}, "slurm-7", "export SPARKGUARD_LIMIT=1G"),
        ({"SPARKGUARD_JOB": "slurm-7", "SPARKGUARD_LIMIT": "1G"}, "slurm-7", "export SPARKGUARD_LIMIT=1G"),
        ({"SPARKGUARD_JOB": "slurm-6", "SPARKGUARD_LIMIT": "1G"}, "slurm-7", NO_LIMIT),
        ({"SPARKGUARD_JOB": "slurm-6", "SPARKGUARD_LIMIT": "1G", "SLURM_MEM_PER_NODE": "9"}, "slurm-7", NINE),
    ],
)
def test_prolog_names_the_job_and_its_limit(noted, extra, job, limit):
    done = subprocess.run(["sh", EXAMPLES / "task-prolog"], env={**TASK, **extra}, capture_output=True, text=True)
    expected = ["export LD_PRELOAD=libsparkguard.so", f"export SPARKGUARD_JOB={job}", limit]
    assert (done.returncode, done.stderr, done.stdout.splitlines()) == (0, "", expected)
    assert int(noted.read_text()) == os.getpid()


@pytest.mark.parametrize(
    "before, line",
    [("libother.so", ["export LD_PRELOAD=libsparkguard.so:libother.so"]), ("/opt/libsparkguard.so:libother.so", [])],
)
def test_prolog_keeps_other_preloads(noted, before, line):
    script = f"LD_PRELOAD={before}; . {EXAMPLES}/task-prolog"
    done = subprocess.run(["sh", "-c", script], env=TASK, capture_output=True, text=True)
    assert [text for text in done.stdout.splitlines() if "LD_PRELOAD" in text] == line


def test_epilog_without_slurm_or_report_fails_nothing(tmp_path):
    done = subprocess.run([EXAMPLES / "task-epilog"], env={"PATH": "/usr/bin:/bin"}, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr.startswith("task-epilog: ") and done.stderr.count("\n") == 1


# Slurm and the report as task-epilog sees them: a job whose comment is a file, and one process that was refused.
FAKES = {
    "scontrol": """#!/bin/sh
case $1 in
show) echo "   Comment=$(cat comment)" ;;
update) echo "${3#Comment=}" >comment ;;
esac
""",
    "sparkguard-report": """#!/bin/sh
echo '{"jobs": [{"processes": [{"pid": 4711, "parent_pid": 1, "started": "2026", "peak_bytes": 1048576, "ended_by": null,
 "command": "sh -c make all | tee log", "refused_count": 1,
 "refusals": [{"time": "2026", "call": "malloc", "size_bytes": 1024, "reason": "limit"}]}]}]}'
""",
}


def test_epilog_keeps_one_part_for_a_node_whatever_its_command_is(noted, tmp_path):
    for name, script in FAKES.items():
        (tmp_path / name).write_text(script)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "comment").write_text("mine")
    env = {**TASK, "PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_SUBMIT_DIR": str(tmp_path), "SLURMD_NODENAME": "n1"}
    for _ in range(2):
        noted.parent.mkdir(mode=0o700, exist_ok=True)
        noted.write_text("4711")
        done = subprocess.run([EXAMPLES / "task-epilog"], env=env, cwd=tmp_path, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
    said = "peak 1.0 MiB; refused malloc of 1.0 KiB (limit), sh -c make all | tee log"
    assert (tmp_path / "slurm-7.sparkguard").read_text() == f"n1 step batch task 0: {said}\n" * 2
    assert (tmp_path / "comment").read_text() == f"mine | sparkguard n1: {said.replace(' | ', '|')}\n"
