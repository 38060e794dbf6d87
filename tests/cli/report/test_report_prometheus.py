"""sparkguard-report --prometheus and --output: series that Prometheus can keep for years, files that are whole. tests/ecosystem/test_prometheus.py shows the same to the real one."""

import contextlib
import os
import re
import stat
import subprocess
import time
from types import SimpleNamespace

import pytest
from lib.units import GIB, MIB
from records import compare, four_states  # noqa: F401 (a fixture)

SAMPLE = re.compile(r'([a-z_]+)(?:\{((?:[a-z_]+="(?:[^"\\\n]|\\["\\n])*",?)+)\})? (-?\d+)')
LONG_AGO = {"started_time_ns": 10**18, "ended_time_ns": 10**18 + 10**9}
LABEL = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"')
UNESCAPED = {r"\\": "\\", r"\"": '"', r"\n": "\n"}


def parse(text):
    """{(name, labels): value}, strictly: each series once, each family in one piece with its HELP and TYPE before it."""
    series, types, family = {}, {}, None
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            family, kind = line.split()[2:]
            assert family not in types and (kind == "counter") == family.endswith("_total")
            types[family] = kind
        elif not line.startswith("#"):
            name, labels, value = SAMPLE.fullmatch(line).groups()
            pairs = [(k, re.sub(r"\\.", lambda m: UNESCAPED[m[0]], v)) for k, v in LABEL.findall(labels or "")]
            key = (name, tuple(sorted(pairs)))
            assert name == family and key not in series, line
            series[key] = int(value)
    return series


def values(series, metric, /, **labels):
    """Of the series of this name that have these labels."""
    return [v for (n, pairs), v in series.items() if n == "sparkguard_" + metric and labels.items() <= dict(pairs).items()]


def metrics(report, *arguments, status=0):
    done = report.run("--prometheus", *arguments)
    assert done.returncode == status, done.stderr
    return parse(done.stdout)


def without_unguarded(text):
    return "".join(line for line in text.splitlines(True) if "sparkguard_unguarded_" not in line)


def test_metrics_of_all_states_are_golden(four_states):  # noqa: F811
    done = four_states.run("--prometheus")
    assert done.returncode == 0
    parse(done.stdout)
    compare("states.prom", without_unguarded(done.stdout.replace(str(four_states.directory), "DIR")))


def test_figures_are_those_of_json(four_states):  # noqa: F811
    series, machine = metrics(four_states), four_states.json()["machine"]
    for name in ("total", "available", "usable", "reserve", "floor", "promised", "unaccounted", "swap_total", "swap_used"):
        assert values(series, f"machine_{name}_bytes") == [machine[f"{name}_bytes"]]
    assert values(series, "machine_headroom_bytes") == [machine["usable_bytes"] - machine["reserve_bytes"]]
    assert values(series, "machine_sharing") == [1] and values(series, "machine_unified") == [1]
    assert values(series, "job_live_bytes", sparkguard_job="train") == [7 * GIB]
    assert values(series, "device_live_bytes", device="0", name="NVIDIA GB10") == [6 * GIB]
    assert values(series, "refusals_total", domain="device") == [1] and values(series, "refused_bytes_total") == [14 * GIB]


def test_what_is_unknown_has_no_series(make, report):
    report.machine(MemTotal=128 * GIB)
    with make(state="running").write_live(report.directory):
        series = metrics(report)
    names = {name for name, _ in series}
    for unknown in ("available", "usable", "headroom", "unaccounted", "swap_used", "cgroup_limit"):
        assert f"sparkguard_machine_{unknown}_bytes" not in names
    assert not names & {"sparkguard_machine_unified", "sparkguard_job_limit_bytes", "sparkguard_device_live_bytes"}


def test_headroom_may_be_below_zero(report):
    report.machine(MemTotal=128 * GIB, MemAvailable=GIB)
    assert values(metrics(report), "machine_headroom_bytes")[0] < 0


# ---- which series ---------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("in_memory")
def test_a_thousand_processes_are_few_series(make, report):
    for pid in range(1, 1000):
        make(pid=pid, job=f"old {pid}", **LONG_AGO).write(report.directory)
    held = [make(pid=2000 + n, state="running").domain("heap", granted=n * 100 * MIB).write_live(report.directory) for n in range(30)]
    series = metrics(report)
    for file in held:
        file.close()
    assert values(series, "machine_guarded_processes") == [30]
    assert len(values(series, "job_live_bytes")) == 1  # the old ones are long gone
    assert sorted(values(series, "process_live_bytes")) == [n * 100 * MIB for n in range(14, 30)]  # 1 % of the machine
    assert len(values(metrics(report, "--all"), "job_live_bytes")) == 1000


def test_a_job_that_has_just_ended_is_shown_with_nothing_live(make, report):
    now = int(time.time() * 1e9)
    make(pid=1, job="new", started_time_ns=now - 10**10, ended_time_ns=now - 10**9).domain("heap", granted=GIB).peak(
        time_ns=now - 2 * 10**9, heap=3 * GIB
    ).write(report.directory)
    make(pid=2, job="old", **LONG_AGO).write(report.directory)
    series = metrics(report)
    assert values(series, "job_live_bytes") == [0] and values(series, "job_peak_bytes", sparkguard_job="new") == [3 * GIB]
    assert values(metrics(report, "--job", "old"), "job_peak_bytes", sparkguard_job="old") == [0]


def test_labels_of_any_bytes_are_utf8_and_no_two_the_same(make, report):
    names = [b'a"b', b"a\\b", b"a\nb", b"a\\x0ab", b"\x9b", b"\xc2\x9b", b"\\x9b", b"\xe2\x80\xae", b"{},=", b""]
    files = []
    for number, name in enumerate(names):
        segment = make(pid=2000 + number, job=name, state="running", command=b'python\n-c "' + name)
        files.append(segment.domain("heap", granted=2 * GIB).write_live(report.directory))
    series = metrics(report)  # text: UTF-8, or the decoding fails
    for file in files:
        file.close()
    jobs = {dict(pairs)["sparkguard_job"] for name, pairs in series if name == "sparkguard_job_live_bytes"}
    assert jobs == {'a"b', r"a\x5cb", r"a\x0ab", r"a\x5cx0ab", r"\x9b", r"\xc2\x9b", r"\x5cx9b", r"\xe2\x80\xae", "{},=", ""}
    assert len(values(series, "process_live_bytes")) == len(names)


def test_processes_of_one_number_in_two_containers_are_two(make, report):
    first = make(pid=7, state="running").domain("heap", granted=2 * GIB)
    second = make(pid=7, state="running").domain("heap", granted=3 * GIB)
    second.name = "7-1.segment"
    with first.write_live(report.directory), second.write_live(report.directory):
        assert sorted(values(metrics(report), "process_live_bytes", pid="7")) == [2 * GIB, 3 * GIB]


def test_long_commands_are_cut(make, report):
    with make(state="running", command="python " + "é" * 100 + " --token=x").domain("heap", granted=2 * GIB).write_live(report.directory):
        done = report.run("--prometheus")
    assert f'command="python {"é" * 38}..."' in done.stdout and "token" not in done.stdout


def test_directories_of_several_users_are_told_apart(make, report, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    with make(state="running").domain("heap", granted=GIB).write_live(report.directory):
        with make(state="running").domain("heap", granted=2 * GIB).write_live(other):
            series = metrics(report, "--dir", report.directory, "--dir", other)
    assert values(series, "job_live_bytes", directory=str(other)) == [2 * GIB]
    assert values(series, "job_live_bytes", directory=str(report.directory)) == [GIB]
    assert values(series, "machine_guarded_bytes") == [3 * GIB] and len(values(series, "machine_total_bytes")) == 1


# ---- what strangers may do ------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("in_memory")
def test_of_very_many_jobs_the_largest_are_series_and_the_others_one(make, report):
    held = [make(pid=2000 + n, job=f"job {n}", state="running").domain("heap", granted=(n + 1) * MIB) for n in range(150)]
    with contextlib.ExitStack() as files:
        for segment in held:
            files.enter_context(segment.write_live(report.directory))
        series, whole = metrics(report), metrics(report, "--all")
    live = {job: values(series, "job_live_bytes", sparkguard_job=job) for job in ("job 49", "job 50", "job 149", "other jobs")}
    assert live == {"job 49": [], "job 50": [51 * MIB], "job 149": [150 * MIB], "other jobs": [sum(range(51)) * MIB]}
    assert values(series, "job_live_bytes", directory="") == live["other jobs"]  # no job has such a directory
    assert values(series, "job_running_processes", sparkguard_job="other jobs") == [50]
    assert sum(values(series, "job_live_bytes")) == values(series, "machine_guarded_bytes")[0]
    assert values(series, "machine_other_jobs") == [50]
    for name in ("live_bytes", "peak_bytes", "refusals_total"):
        assert len(values(series, f"job_{name}")) == 100 + (name == "live_bytes")
    assert len(values(whole, "job_live_bytes")) == 150 and values(whole, "machine_other_jobs") == [0]


@pytest.mark.usefixtures("in_memory")
def test_of_very_many_processes_the_largest_are_series(make, report):
    with contextlib.ExitStack() as files:
        for n in range(150):
            files.enter_context(make(pid=2000 + n, state="running").domain("heap", granted=(200 + n) * GIB).write_live(report.directory))
        series = metrics(report)
    assert sorted(values(series, "process_live_bytes")) == [(250 + n) * GIB for n in range(100)]


@pytest.fixture
def shm(report, make, tmp_path):
    """Two users' directories, which a pattern finds; the second is a stranger's. With one job of 2 GiB in the first."""
    mine, other = tmp_path / "shm/sparkguard-1000", tmp_path / "shm/sparkguard-x"
    for directory in mine, other:
        directory.mkdir(parents=True)
    with make(state="running").domain("heap", granted=2 * GIB).write_live(mine):
        yield SimpleNamespace(mine=mine, other=other, pattern=f"{tmp_path}/shm/sparkguard*")


def test_broken_files_of_a_stranger_are_one_line_and_no_failure(report, shm, tmp_path):
    for number in range(20):
        (shm.other / f"{number}-1.segment").write_bytes(b"x" * number)
    (shm.other / "7-0.segment").mkdir()
    done = report.run("--prometheus", f"--dir={shm.pattern}", "--output", tmp_path / "x.prom")
    assert done.returncode == 0 and done.stdout == ""
    assert re.fullmatch(rf"sparkguard-report: \d+ files are not trusted, the first: {shm.other}/\S+\.segment: .+\n", done.stderr)
    series = parse((tmp_path / "x.prom").read_text())
    assert values(series, "job_live_bytes") == [2 * GIB]
    assert values(series, "machine_untrusted_files") == [int(done.stderr.split()[1])] != [0]
    for arguments in ["--json", f"--dir={shm.pattern}"], ["--prometheus", f"--dir={shm.other}"]:  # who looks himself wants to know
        named = report.run(*arguments)
        assert named.returncode == 3 and named.stderr.count("\n") > 10


def test_a_broken_file_beside_a_directory_that_was_named_is_a_failure(report, shm):
    (shm.mine / "1-1.segment").write_bytes(b"x")
    done = report.run("--prometheus", f"--dir={shm.pattern}", f"--dir={report.directory}")
    assert done.returncode == 0
    report.directory.joinpath("1-1.segment").write_bytes(b"x")
    done = report.run("--prometheus", f"--dir={shm.pattern}", f"--dir={report.directory}")
    assert done.returncode == 3 and done.stderr.count("\n") == 2


def test_directory_of_a_stranger_with_very_many_files_is_not_read_to_its_end(report, shm):
    """Nor is each of them waited for, though each might be one that its owner is just making."""
    for number in range(4100):
        (shm.other / f"{number}-1.segment").touch()
    done = report.run("--prometheus", f"--dir={shm.pattern}")
    assert done.returncode == 0 and done.stderr.count("\n") == 1
    series = parse(done.stdout)
    assert values(series, "job_live_bytes") == [2 * GIB]
    assert values(series, "machine_untrusted_files") == [4097]  # and one sentence for the others


def test_a_stranger_with_very_many_directories_has_a_few(make, report, shm, tmp_path):
    owner = os.geteuid() or 1234  # root's are all read
    for number in range(40):
        directory = tmp_path / f"shm/sparkguard-0{number:02}"  # before the other by name
        directory.mkdir()
        (directory / "1-1.segment").write_bytes(b"x" * 5000)
        os.chown(directory, owner, -1)
    series = metrics(report, f"--dir={shm.pattern}")
    assert values(series, "machine_untrusted_files") == [16]
    if owner == 1234:
        assert values(series, "job_live_bytes") == [2 * GIB]


# ---- counters -------------------------------------------------------------------------------------------------------


def refused(make, pid, count, **fields):
    return make(pid=pid, **fields).domain("device", refused=count, refused_bytes=count * GIB)


def test_counters_are_sums_of_what_is_on_record(make, report):
    """Of a job that is not shown, too: the machine's sums are of all jobs."""
    gone = refused(make, 1, 3, job="gone", **LONG_AGO).write(report.directory)
    with refused(make, 2, 4, job="train", state="running").write_live(report.directory):
        series = metrics(report)
        assert values(series, "refusals_total", domain="device") == [7] and values(series, "refused_bytes_total") == [7 * GIB]
        assert values(series, "job_refusals_total") == [4]
        gone.unlink()
        assert values(metrics(report), "refusals_total", domain="device") == [4]


# ---- files ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [[], ["--json"], ["--csv"], ["--prometheus"]])
def test_output_is_a_whole_file_that_others_may_read(make, report, tmp_path, form):
    make().write(report.directory)
    path = tmp_path / "new" / "file"
    path.parent.mkdir()
    mask = os.umask(0o022)
    try:
        done = report.run("--output", path, "--all", *form)
    finally:
        os.umask(mask)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert stat.S_IMODE(path.stat().st_mode) == 0o644 and os.listdir(path.parent) == ["file"]
    without_time = re.compile(r"^.*(ago|_bytes \d+|resident_bytes).*$", re.MULTILINE)
    assert without_time.sub("", path.read_text()).split()[:9] == without_time.sub("", report.run("--all", *form).stdout).split()[:9]


def test_a_file_that_is_not_whole_does_not_take_the_name(report, tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    command = f'ulimit -f 1; trap "" XFSZ; exec "{report.program}" --prometheus --output "{path}"'
    done = subprocess.run(["bash", "-c", command], env=report.environment(), capture_output=True, text=True)
    assert done.returncode == 3 and "File too large" in done.stderr
    assert path.read_text() == "old" and not [name for name in os.listdir(tmp_path) if name.startswith("file.")]


def test_output_without_a_place_is_told(report, tmp_path):
    done = report.run("--output", tmp_path / "none/file")
    assert done.returncode == 3 and done.stderr.endswith("none/file: No such file or directory\n")


@pytest.mark.parametrize("arguments", [["--watch"], ["--plot=x.svg"], ["--prometheus", "--json"]])
def test_usage(report, arguments):
    done = report.run("--output=x", *arguments)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert report.run("--output=").returncode == 2
