"""`make wheel`: the wheel of this machine and the one cross-built for aarch64, as they come and with a release's older C library, what
PyPI's own checks say of them, and environments into which the wheel is installed without a network."""

import json
import os
import platform
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from installed import TOOLS, output

ROOT = Path(__file__).resolve().parents[2]
WHEEL_BIN = ROOT / ".deps/wheel/bin"  # hatchling, auditwheel, twine, mypy, uv
NATIVE = platform.machine()
MACHINES = {"x86_64": "Advanced Micro Devices X86-64", "aarch64": "AArch64"}
NEWEST_LIBC = {"wheel": (2, 34), "manylinux": (2, 28)}  # the latest that one may need

TRAIN = """\
import sparkguard, sys
sparkguard.mark("load")
data = bytearray(64 << 20)
try:
    bytearray(8 << 40)
except MemoryError:
    print("refused", sparkguard.active(), *sys.argv[1:])
"""


@pytest.fixture(params=[(kind, machine) for kind in NEWEST_LIBC for machine in MACHINES], ids="-".join)
def kind_and_machine(request):
    return request.param


@pytest.fixture
def wheel(wheels, kind_and_machine):
    return wheels(*kind_and_machine)


def machine_of(wheel):
    return wheel.stem.split("_", 3)[-1]


def newest_libc(wheel):
    return tuple(int(word) for word in re.search(r"-manylinux_(\d+)_(\d+)_\w+$", wheel.stem).groups())


# ---- the file ---------------------------------------------------------------------------------------------------------


def test_a_wheel_holds_library_tools_module_and_manual(wheel, tmp_path):
    version = re.search(r'SG_VERSION_TEXT "(.*)"', (ROOT / "include/sparkguard_abi.h").read_text())[1]
    names = set(zipfile.ZipFile(wheel).namelist())
    assert wheel.name.startswith(f"sparkguard-{version}-py3-none-")
    pages = {*(f"man1/{tool}.1" for tool in TOOLS), "man3/sparkguard.3", "man7/libsparkguard.7"}
    expected = {f"sparkguard/{path.name}" for path in (ROOT / "tools/python/sparkguard").glob("*[!_]*") if path.is_file()}
    expected |= {f"sparkguard/_native/{name}" for name in (*TOOLS, "libsparkguard.so")}
    expected |= {f"sparkguard-{version}.data/data/share/man/{page}" for page in pages}
    expected |= {f"sparkguard-{version}.dist-info/{name}" for name in ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE")}
    assert expected <= names
    others = {name for name in names - expected if "/bash-completion/" not in name}
    assert all(re.fullmatch(r"sparkguard/_native/(lib\w+\.so\.\d+|copyright\.lib\w+)", name) for name in others), others
    zipfile.ZipFile(wheel).extractall(tmp_path)
    for name in names:
        if name.startswith("sparkguard/_native/") and "copyright" not in name:
            assert re.search(rf"Machine: +{MACHINES[machine_of(wheel)]}\n", output("readelf", "-h", tmp_path / name)), name
    assert f'"{version}"' in (tmp_path / "sparkguard/_version.py").read_text()
    assert "/usr/local" not in (tmp_path / f"sparkguard-{version}.data/data/share/man/man3/sparkguard.3").read_text()
    assert output("scripts/check-structure", tmp_path / "sparkguard/_native/libsparkguard.so", cwd=ROOT) == ""


def test_twine_and_auditwheel_accept_a_wheel(wheel):
    assert "PASSED" in output(WHEEL_BIN / "twine", "check", "--strict", wheel)
    said = " ".join(output(WHEEL_BIN / "auditwheel", "show", wheel).split())
    allowed = re.search(rf'consistent with the following platform tag: "manylinux_(\d+)_(\d+)_{machine_of(wheel)}"', said)
    needed = int(allowed[1]), int(allowed[2])
    assert newest_libc(wheel) == max(needed, (2, 28)), said


def test_no_file_of_a_wheel_needs_a_newer_libc_than_its_name_says(wheel, kind_and_machine, tmp_path):
    assert newest_libc(wheel) <= NEWEST_LIBC[kind_and_machine[0]]
    zipfile.ZipFile(wheel).extractall(tmp_path)
    programs = [path for path in (tmp_path / "sparkguard/_native").iterdir() if not path.name.startswith("copyright")]
    assert len(programs) >= len(TOOLS) + 1
    for path in programs:
        versions = re.findall(r"\bGLIBC_(\d+)\.(\d+)", output("readelf", "-WV", path))
        assert versions and max((int(major), int(minor)) for major, minor in versions) <= newest_libc(wheel), path.name


@pytest.mark.parametrize("kind", NEWEST_LIBC)
def test_the_same_sources_make_the_same_wheel(wheels, make_wheel, build, kind):
    path = wheels(kind, NATIVE)
    first = path.read_bytes()
    for part in ("native/libsparkguard.so", "native/sparkguard", "share", "_version.py"):  # other times, other modes
        place = build / f"{kind}-files" / part
        os.utime(place, (1, 1))
    os.chmod(build / f"{kind}-files/_version.py", 0o600)
    assert make_wheel(kind, NATIVE).read_bytes() == first
    dated = make_wheel(kind, NATIVE, SOURCE_DATE_EPOCH="1700000000")
    assert zipfile.ZipFile(dated).infolist()[0].date_time[0] == 2023
    path.write_bytes(first)


def test_the_package_is_typed_to_the_strictest_rules(tmp_path):
    output(WHEEL_BIN / "mypy", f"--cache-dir={tmp_path}", cwd=ROOT / "tools/python")


# ---- installed --------------------------------------------------------------------------------------------------------


class Environment:
    def __init__(self, folder, python, home, **variables):
        self.folder, self.bin, self.python = folder, folder / "bin", python
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(("SPARKGUARD_", "PYTHON", "LD_"))} | variables
        self.env |= {"HOME": str(home), "PATH": f"{self.bin}:{os.environ['PATH']}", "COLUMNS": "200"}
        self.env |= {"SPARKGUARD_DIR": str(home / "live"), "SPARKGUARD_HISTORY": "off"}
        self.home = home
        (home / "train.py").write_text(TRAIN)

    def shell(self, line):
        return subprocess.run(["bash", "-c", line], cwd=self.home, env=self.env, stdin=subprocess.DEVNULL, capture_output=True, text=True)

    def module(self, *words):
        command = [self.python, "-m", "sparkguard", *words]
        return subprocess.run(command, cwd=self.home, env=self.env, stdin=subprocess.DEVNULL, capture_output=True, text=True)


def install_by_pip(python, wheel, *options):
    output(python, "-m", "pip", "install", "-q", "--no-index", "--disable-pip-version-check", *options, wheel)


def make_venv(folder, wheel):
    output(sys.executable, "-m", "venv", folder)
    install_by_pip(folder / "bin/python", wheel)
    return folder / "bin/python", {}


def make_uv(folder, wheel):
    uv = WHEEL_BIN / "uv"
    env = os.environ | {"UV_CACHE_DIR": f"{folder}.cache"}
    output(uv, "venv", "-q", "--offline", "--python", sys.executable, folder, env=env)
    output(uv, "pip", "install", "-q", "--offline", "--no-index", "--python", folder / "bin/python", wheel, env=env)
    return folder / "bin/python", {}


def make_prefix(folder, wheel):
    """A prefix as conda makes them: bin/ and lib/pythonX.Y/site-packages of a Python that is no venv."""
    install_by_pip(WHEEL_BIN / "python", wheel, "--prefix", folder)
    (packages,) = folder.glob("lib/python3*/site-packages")
    return str(WHEEL_BIN / "python"), {"PYTHONPATH": str(packages)}


MAKERS = {"venv": (make_venv, "wheel"), "uv": (make_uv, "manylinux"), "prefix": (make_prefix, "wheel")}


@pytest.fixture(scope="module", params=MAKERS)
def environment(request, wheels, tmp_path_factory):
    folder, home = tmp_path_factory.mktemp(request.param) / "env", tmp_path_factory.mktemp("home")
    make, kind = MAKERS[request.param]
    python, variables = make(folder, wheels(kind, NATIVE))
    return Environment(folder, python, home, **variables)


@pytest.fixture(scope="module")
def venv(wheels, tmp_path_factory):
    folder, home = tmp_path_factory.mktemp("venv") / "env", tmp_path_factory.mktemp("home")
    python, variables = make_venv(folder, wheels("wheel", NATIVE))
    return Environment(folder, python, home, **variables)


def test_a_script_is_guarded_wherever_the_wheel_is_installed(environment):
    done = environment.module("run", "--limit", "1G", "--job=wheel", "train.py", "--limit", "x")
    assert (done.returncode, done.stdout) == (0, "refused True --limit x\n"), done.stderr
    assert "(SPARKGUARD_LIMIT)" in done.stderr and "sparkguard: job wheel ran" in done.stderr
    (job,) = json.loads(environment.shell("sparkguard-report --job wheel --json").stdout)["jobs"]
    (process,) = job["processes"]
    assert process["refused_count"] == 1 and [phase["name"] for phase in process["phases"]] == ["load"]
    assert "1 refused" in environment.module("report", "--job", "wheel").stdout
    assert environment.module("doctor", "--json").returncode in (0, 1, 4)
    for tool in TOOLS:
        assert environment.shell(f"{tool} --version").stdout.startswith(f"{tool} "), tool
    assert (environment.folder / "share/man/man1/sparkguard.1").exists()


WITHOUT = """
import importlib, sparkguard
print(sparkguard.active(), sparkguard.stats(), sparkguard.get_memory_stats(), sparkguard.is_unified_memory_system())
print(sparkguard.mark("x"), sparkguard.reset_peak(), sparkguard.refusals(), sparkguard.is_refusal(MemoryError()), sparkguard.explain(MemoryError()))
print(sparkguard.log_memory_usage(), sparkguard.reset_peak_memory_stats(), sparkguard.clear_memory(), sparkguard.setup_unified_memory_env())
with sparkguard.phase("x") as phase:
    print(phase.peak_bytes, phase.live_bytes, phase.refused_count)
for name in ("transformers", "trl", "accelerate", "lightning"):
    importlib.import_module(f"sparkguard.{name}").retry
print(sparkguard.get_memory_config()["memory_pool"], sparkguard.configure_accelerator_for_unified_memory({}))
"""


def test_without_the_library_every_function_answers_wherever_the_wheel_is_installed(environment):
    command = [environment.python, "-c", WITHOUT]
    done = subprocess.run(command, cwd=environment.home, env=environment.env, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "False None None None",
        "False False [] False None",
        "None None None None",
        "None None None",
        "standard {'device_placement': True}",
    ]


def commands_of_the_readme():
    block = re.search(r"## Use\n\n```\n(.*?)```", (ROOT / "tools/python/README.md").read_text(), re.DOTALL)[1]
    return block.splitlines()


@pytest.mark.parametrize("line", commands_of_the_readme())
def test_each_line_of_the_readme_works(venv, line):
    if line.endswith("sparkguard check") and "--check" not in venv.shell("sparkguard --help").stdout:
        pytest.skip("this launcher has no --check")
    (venv.home / "trainer.py").write_text(TRAIN)
    done = venv.shell(line)
    assert done.returncode in ((0, 1, 4) if "doctor" in line else (0,)), done.stderr
    if "train" in line:
        assert done.stdout == "refused True\n"


def test_options_and_program_are_told_apart(venv):
    show = "import sys, os; print(sys.argv, os.environ.get('SPARKGUARD_JOB', '')[:3])"
    assert venv.module("run", "-q", "--job", "one", "-c", show, "-q").stdout == "['-c', '-q'] one\n"
    assert venv.module("run", "--qui", "--jo", "two", "--", "-c", show).stdout == "['-c'] two\n"
    assert venv.module("run", "-q", "echo", "-m", "x").stdout == "-m x\n"
    (venv.home / "plain").write_text("print('plain')")
    assert venv.module("run", "-q", "./plain").stdout == "plain\n"
    folder = venv.home / "folder"
    folder.mkdir()
    (folder / "__main__.py").write_text("print('folder')")
    assert venv.module("run", "-q", "folder").stdout == "folder\n"


def test_wrong_usage_and_failures_have_their_statuses(venv):
    for words in ((), ("fly",), ("library", "x"), ("run",), ("run", "--limit"), ("run", "--nonsense", "train.py")):
        done = venv.module(*words)
        assert done.returncode == 2 and done.stderr and not done.stdout, words
    assert venv.module("--help").stdout.startswith("usage: python -m sparkguard run")
    assert venv.module("run", "-q", "no-such-program").returncode == 127
    assert venv.module("run", "-q", "-c", "raise SystemExit(7)").returncode == 7
    assert venv.module("run", "-q", "-c", "import os; os.kill(os.getpid(), 9)").returncode == -9


def test_without_tools_the_package_says_so(venv, tmp_path):
    """As the source tree has it: the module works, and the console scripts do not call themselves."""
    env = venv.env | {"PYTHONPATH": str(ROOT / "tools/python"), "PATH": str(tmp_path)}
    code = "import sparkguard; print(sparkguard.active(), sparkguard.stats(), sparkguard.mark('x'), sparkguard.__version__)"
    assert output(sys.executable, "-c", code, env=env) == "False None False 0+source\n"
    done = subprocess.run([sys.executable, "-m", "sparkguard", "report"], env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (127, "sparkguard: sparkguard-report is neither beside this Python package nor in PATH\n")
    done = subprocess.run([venv.bin / "sparkguard", "true"], env=env, capture_output=True, text=True)
    assert done.returncode == 127 and "make wheel" in done.stderr


def test_uninstalled_it_leaves_nothing(wheels, tmp_path):
    python, _ = make_venv(tmp_path / "env", wheels("wheel", NATIVE))
    output(python, "-m", "sparkguard", "--help")
    output(python, "-m", "pip", "uninstall", "-q", "-y", "--disable-pip-version-check", "sparkguard")
    assert [str(path) for path in (tmp_path / "env").rglob("*sparkguard*")] == []
