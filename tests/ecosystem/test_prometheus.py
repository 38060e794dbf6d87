"""Two machines in one Prometheus: real guarded programs over the simulated driver, two real node_exporters with the textfile
collector, one real Prometheus, all on loopback. What it answers is compared with what the test itself asked for."""

import contextlib
import json
import os
import shlex
import re
import shutil
import signal
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import pytest
from lib.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
BIN = ROOT / ".deps/prometheus/bin"
UNIT = ROOT / "scripts/systemd/sparkguard-metrics.service"
DASHBOARD = ROOT / "scripts/examples/grafana/sparkguard.json"
GUIDE = ROOT / "scripts/examples/README.md"
GIB, MIB = 1 << 30, 1 << 20
NEAR = 256 * MIB  # of what a program needs beside what it was told to take
DEADLINE = 60

# Takes so many GiB for each line "N" and says whether it may; ends with its input.
TAKER = """
#include <dlfcn.h>
#include <stdio.h>
int main(void)
{
    void *library = dlopen("libcudart.so.13", RTLD_NOW), *out;
    int (*take)(void **, size_t) = (int (*)(void **, size_t))dlsym(library, "cudaMalloc");
    for (size_t gib; scanf("%zu", &gib) == 1; fflush(stdout))
        puts(take(&out, gib << 30) == 0 ? "granted" : "refused");
    return 0;
}
"""


@pytest.fixture(scope="module")
def taker(tmp_path_factory):
    program = tmp_path_factory.mktemp("taker") / "taker"
    subprocess.run(["cc", "-x", "c", "-", "-o", program, "-ldl"], input=TAKER, text=True, check=True)
    return program


def wait_for(what, ask):
    """The first answer of ask() that is not empty."""

    def answer():
        with contextlib.suppress(OSError, urllib.error.URLError):
            return ask()

    return wait_until(answer, what, step=0.1)


def get(url):
    with urllib.request.urlopen(url, timeout=60) as answer:
        return answer.read().decode()


@contextlib.contextmanager
def service(path, *arguments, ready="/"):
    """A program of Prometheus on a loopback port of its own; yields the port."""
    for _attempt in range(3):  # somebody else may take the port in between
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        command = [BIN / path, f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn", *arguments]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        try:
            wait_for(path, lambda: process.poll() is not None or get(f"http://127.0.0.1:{port}{ready}"))
            if process.poll() is None:
                yield port
                return
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(DEADLINE)
    pytest.fail(f"{path} does not start")


class Machine:
    """A machine of its own: memory, users' directories, the textfile that the unit's command writes."""

    def __init__(self, guard, taker, scratch, total, reserve):
        self.guard, self.taker, self.scratch, self.reserve = guard, taker, scratch, reserve
        self.root, self.textfiles = scratch / "root", scratch / "textfiles"
        self.meminfo = self.root / "proc/meminfo"
        for folder in (self.root / "proc/self", self.root / "sys/fs/cgroup", self.textfiles, scratch / "shm"):
            folder.mkdir(parents=True)
        figures = {"MemTotal": total, "MemFree": total, "MemAvailable": total, "Buffers": 0, "Cached": 0, "SwapTotal": 0, "SwapFree": 0}
        self.meminfo.write_text("".join(f"{name + ':':16}{size // 1024:>12} kB\n" for name, size in figures.items()))
        (self.root / "proc/self/cgroup").write_text("0::/\n")
        self.programs = []

    def start(self, user, job, *arguments):
        """A program of that user: `take(gib)` says what became of the request."""
        variables = {
            "SPARKGUARD_DIR": self.scratch / "shm" / f"sparkguard-{user}",
            "SPARKGUARD_SYSTEM_ROOT": self.root,
            "SPARKGUARD_RESERVE": self.reserve,
            "SPARKGUARD_JOB": job,
            "SPARKGUARD_HISTORY": "off",
            "SGSIM_MEMINFO": self.meminfo,
            "SGSIM_BACKING": "none",
            "LD_LIBRARY_PATH": self.guard.build / "sim",
        }
        process = self.guard.popen([self.taker, *arguments], env=variables, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.programs.append(process)

        def take(gib):
            process.stdin.write(f"{gib}\n")
            process.stdin.flush()
            return process.stdout.readline().strip()

        take.process = process
        return take

    def collect(self):
        """What the timer's service does, with its command line and its rights; the places are the test's."""
        command = shlex.split(next(line for line in UNIT.read_text().splitlines() if line.startswith("ExecStart="))[10:])
        places = {"/dev/shm/": f"{self.scratch}/shm/", "/var/lib/prometheus/node-exporter/": f"{self.textfiles}/"}
        for old, new in places.items():
            command = [word.replace(old, new) for word in command]
        command[0] = str(self.guard.build / command[0])
        if os.geteuid() == 0 and shutil.which("setpriv"):
            for path in (self.scratch / "shm").rglob("*"):
                os.chown(path, 65534, 65534)
            command = ["setpriv", "--inh-caps=-all", "--bounding-set=-all,+dac_read_search", "--no-new-privs", *command]
        env = self.guard.environment({"LD_PRELOAD": None, "SPARKGUARD_DIR": None, "SPARKGUARD_SYSTEM_ROOT": self.root})
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=DEADLINE)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert os.listdir(self.textfiles) == ["sparkguard.prom"]

    def available(self):
        """As the simulated driver has left it."""
        (line,) = [line for line in self.meminfo.read_text().splitlines() if line.startswith("MemAvailable:")]
        return int(line.split()[1]) * 1024

    def stop(self):
        for process in self.programs:
            process.kill()
            process.communicate()


class Cluster:
    """Prometheus over the machines; `query` prints what it asks and what is answered."""

    def __init__(self, port, capsys):
        self.url, self.capsys = f"http://127.0.0.1:{port}/api/v1/", capsys

    def api(self, path, **parameters):
        answer = json.loads(get(self.url + path + "?" + urllib.parse.urlencode(parameters)))
        assert answer["status"] == "success"
        return answer["data"]

    def ask(self, expression):
        """{labels as text: value}"""
        rows = self.api("query", query=expression)["result"]
        return {" ".join(f"{k}={v}" for k, v in sorted(row["metric"].items())): float(row["value"][1]) for row in rows}

    def query(self, expression, is_it=bool):
        """Once it is as it should be: the newest scrape may be older than the newest file."""
        answer = {}

        def ask():
            nonlocal answer
            answer = self.ask(expression)
            return answer and is_it(answer)

        try:
            wait_for(expression, ask)
        finally:
            with self.capsys.disabled():
                print(f"\n  {expression}")
                for labels, value in answer.items():
                    print(f"    {labels or 'all':50} {value:>16.0f}")
        return answer


@pytest.fixture
def machines(guard, taker, tmp_path):
    """Two; their programs end with the test."""
    both = {
        "spark-a": Machine(guard, taker, tmp_path / "a", 120 * GIB, "10G"),
        "spark-b": Machine(guard, taker, tmp_path / "b", 96 * GIB, "8G"),
    }
    yield both
    for machine in both.values():
        machine.stop()


@pytest.fixture
def prometheus(machines, tmp_path, capsys):
    with contextlib.ExitStack() as services:
        targets = []
        for name, machine in machines.items():
            collectors = ["--collector.disable-defaults", "--collector.textfile", f"--collector.textfile.directory={machine.textfiles}"]
            port = services.enter_context(service("prometheus-node-exporter", *collectors))
            targets.append({"targets": [f"127.0.0.1:{port}"], "labels": {"instance": name}})
        scrape = [{"job_name": "node", "static_configs": targets}]
        config = tmp_path / "prometheus.json"  # which is YAML, too
        config.write_text(json.dumps({"global": {"scrape_interval": "500ms", "scrape_timeout": "500ms"}, "scrape_configs": scrape}))
        arguments = [f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'tsdb'}"]
        yield Cluster(services.enter_context(service("prometheus", *arguments, ready="/-/ready")), capsys)


def near(expected):
    return lambda answer: set(answer) == set(expected) and all(abs(answer[k] - v) <= NEAR for k, v in expected.items())


@pytest.mark.timeout_seconds(300)
def test_two_machines_in_one_prometheus(machines, prometheus):
    a, b = machines["spark-a"], machines["spark-b"]
    train, evaluate, other = a.start(1, "train"), a.start(2, 'eval "x" é\\'), b.start(1, "train")
    assert [train(30), evaluate(20), other(40)] == ["granted"] * 3
    assert [train(90), evaluate(80), other(60)] == ["refused"] * 3
    for machine in machines.values():
        machine.collect()

    prometheus.query("sum(sparkguard_job_live_bytes)", near({"": 90 * GIB}))
    live = {"instance=spark-a sparkguard_job=train": 30, "instance=spark-b sparkguard_job=train": 40}
    live[r'instance=spark-a sparkguard_job=eval "x" é\x5c'] = 20
    prometheus.query("sum by (instance, sparkguard_job) (sparkguard_job_live_bytes)", near({k: v * GIB for k, v in live.items()}))
    headroom = {"instance=spark-a": a.available() - 10 * GIB, "instance=spark-b": b.available() - 8 * GIB}
    prometheus.query("sum by (instance) (sparkguard_machine_headroom_bytes)", near(headroom))
    assert headroom["instance=spark-a"] <= 60 * GIB and headroom["instance=spark-b"] <= 48 * GIB
    prometheus.query("sum(sparkguard_refusals_total)", lambda answer: answer == {"": 3})
    assert set(prometheus.ask("node_textfile_scrape_error").values()) == {0}

    # Two more are refused; then the one that was refused most ends, and its record goes: a counter that restarts.
    assert [train(85), train(85)] == ["refused"] * 2
    a.collect()
    prometheus.query("sum(sparkguard_refusals_total)", lambda answer: answer == {"": 5})
    train.process.kill()
    train.process.wait()
    for path in (a.scratch / "shm/sparkguard-1").glob(f"{train.process.pid}-*"):
        path.unlink()
    a.collect()
    prometheus.query("sum(sparkguard_job_live_bytes)", near({"": 60 * GIB}))
    prometheus.query("sum by (instance) (sparkguard_refusals_total)", lambda x: x == {"instance=spark-a": 1, "instance=spark-b": 1})
    resets = "sum by (instance) (resets(sparkguard_refusals_total[5m]))"
    prometheus.query(resets, lambda x: x == {"instance=spark-a": 1, "instance=spark-b": 0})

    check_dashboard(prometheus)
    check_guide(prometheus)


def check_guide(prometheus):
    """Each expression that the guide gives finds something."""
    section = GUIDE.read_text().partition("## Prometheus and Grafana\n")[2].partition("\n## ")[0]
    expressions = [line.partition("#")[0].strip() for line in re.findall(r"^    (sum.*)", section, re.MULTILINE)]
    (alert,) = re.findall(r"`(time\(\).*) > 60`", section)
    assert len(expressions) == 3
    for expression in (*expressions, alert):
        prometheus.query(expression)


def check_dashboard(prometheus):
    """Each expression of the dashboard finds something; its variables are filled in as Grafana does."""
    dashboard = json.loads(DASHBOARD.read_text())
    variables = {"$instance": "spark-a|spark-b", "$__rate_interval": "1m", "$__range": "1h"}
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert len(expressions) > 10
    for expression in expressions:
        assert '{instance=~"$instance"}' in expression
        for variable, value in variables.items():
            expression = expression.replace(variable, value)
        assert "$" not in expression
        if "unguarded" not in expression:  # of the machine that the test runs on
            prometheus.query(expression)
    (machine,) = [v for v in dashboard["templating"]["list"] if v["name"] == "instance"]
    name = machine["query"]["query"].removeprefix("label_values(").removesuffix(", instance)")
    assert prometheus.api("label/instance/values", **{"match[]": name}) == ["spark-a", "spark-b"]


def test_promtool_has_nothing_to_say(machines):
    machine = machines["spark-a"]
    hostile = os.fsdecode(b'\xff\x1b"\\\n{},\xe2\x80\xae')
    takes = [machine.start(1, 'a"b\\', hostile), machine.start(2, "train"), machine.start(2, "train", hostile)]
    assert [take(10) for take in takes] == ["granted"] * 3
    machine.collect()
    text = (machine.textfiles / "sparkguard.prom").read_bytes()
    done = subprocess.run([BIN / "promtool", "check", "metrics"], input=text, capture_output=True, timeout=DEADLINE)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
