"""A Slurm cluster on this machine alone: slurmctld and two slurmds out of .deps/slurm, on the loopback, without munge.

    with Cluster(build, scripts, scratch) as cluster:
        job = cluster.submit("--array=0-2", "--mem=200", code="python3 task.py")
        cluster.wait(job)                       # {"1_0": {"JobState": "COMPLETED", "Comment": ...}, ...}

Nothing is installed and nothing remains: the daemons end with this process, and whatever else carries the name of the
configuration in its environment is ended with the cluster.
"""

import os
import re
import signal
import socket
import subprocess
from contextlib import ExitStack, closing, suppress
from pathlib import Path

from lib.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
SLURM = ROOT / ".deps/slurm"
NODES = ("n1", "n2")
ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY"}

CONFIGURATION = """
ClusterName=guarded
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
SlurmctldPort={ports[0]}
StateSaveLocation={scratch}/state
SlurmdSpoolDir={scratch}/%n
SlurmctldPidFile={scratch}/slurmctld.pid
SlurmdPidFile={scratch}/%n.pid
PluginDir={plugins}
PlugStackConfig=/dev/null
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SchedulerType=sched/builtin
SchedulerParameters=sched_interval=1,batch_sched_delay=0
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=5
TaskProlog={scripts}/task-prolog
TaskEpilog={scripts}/task-epilog
{more}
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=4 RealMemory=4000
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=4 RealMemory=4000
PartitionName=all Nodes=ALL Default=YES State=UP
"""


def free_ports(count):
    with ExitStack() as stack:
        sockets = [stack.enter_context(closing(socket.socket())) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


class Cluster:
    def __init__(self, build, scripts, scratch, more=""):
        assert SLURM.is_dir(), "no .deps/slurm: run scripts/install-deps ecosystem"
        (plugins,) = SLURM.glob("usr/lib/*/slurm-wlm")
        self.scratch, self.work = scratch, scratch / "work"
        self.configuration = scratch / "slurm.conf"
        for name in ("state", "work", "home", *NODES):
            (scratch / name).mkdir()
        self.configuration.write_text(
            CONFIGURATION.format(
                host=socket.gethostname().split(".")[0],
                user=subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip(),
                ports=free_ports(3),
                scratch=scratch,
                plugins=plugins,
                scripts=scripts,
                more=more,
            )
        )
        self.environment = {
            "PATH": f"{build}:{SLURM}/usr/bin:/usr/bin:/bin",
            "LD_LIBRARY_PATH": f"{plugins}:{plugins.parent}",
            "SLURM_CONF": str(self.configuration),
            "HOME": str(scratch / "home"),
            "SPARKGUARD_DIR": str(scratch / "live"),
        }
        self.daemons = []

    def __enter__(self):
        try:
            self.start("slurmctld", "-i")
            for node in NODES:
                self.start("slurmd", "-N", node, "-d", SLURM / "usr/sbin/slurmstepd-wlm")
            wait_until(lambda: set(self.run("sinfo", "-h", "-o", "%T", check=False).split()) == {"idle"}, "nodes", step=0.1)
        except BaseException:
            self.end()
            raise
        return self

    def start(self, daemon, *arguments):
        log = self.scratch / f"{daemon}{len(self.daemons)}.log"
        command = ["setpriv", "--pdeathsig", "TERM", SLURM / f"usr/sbin/{daemon}-wlm", "-D", *arguments]
        with open(log, "wb") as output:
            self.daemons.append(
                subprocess.Popen(
                    list(map(str, command)), env=self.environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
                )
            )

    def __exit__(self, *_):
        self.end()

    def end(self):
        for daemon in reversed(self.daemons):  # the slurmds before the slurmctld that they report to
            daemon.terminate()
        for daemon in self.daemons:
            with suppress(subprocess.TimeoutExpired):
                daemon.wait(20)  # limit: the time to end by SIGTERM, then it is killed
            daemon.kill()
            daemon.wait()
        for pid in self.remaining():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not self.remaining(), "end of what the cluster started", step=0.1)

    def remaining(self):
        """Processes with our configuration in their environment: the cluster's, whatever their parents are now."""
        mark = b"\0SLURM_CONF=" + os.fsencode(self.configuration) + b"\0"
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if mark in b"\0" + (folder / "environ").read_bytes() + b"\0":
                    found.append(int(folder.name))
        return found

    def run(self, *command, check=True, **environment):
        done = subprocess.run(
            command, env={**self.environment, **environment}, cwd=self.work, capture_output=True, text=True, timeout=120
        )
        assert not check or done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    def submit(self, *options, code, **environment):
        """The number of a new job that runs the shell code in the folder `work`, beside its output."""
        return self.run("sbatch", "--parsable", *options, "--wrap", code, **environment).strip()

    def jobs(self, number):
        """{"7_0": {field: value}} of an array, {"7": ...} of a job."""
        jobs = {}
        for text in self.run("scontrol", "show", "job", number).strip().split("\n\n"):
            fields = dict(re.findall(r"(JobId|JobState|ArrayTaskId|ArrayJobId|NumNodes|Reason)=(\S*)", text))
            fields |= dict(re.findall(r"^ *(Comment)=(.*?) *$", text, re.MULTILINE))
            jobs[f"{number}_{fields['ArrayTaskId']}" if "ArrayTaskId" in fields else number] = fields
        return jobs

    def wait(self, number):
        def ended():
            jobs = self.jobs(number)
            return jobs if all(job["JobState"] in ENDED for job in jobs.values()) else None

        return wait_until(ended, f"end of job {number}", step=0.1)

    def file(self, name):
        return (self.work / name).read_text()
