"""`make demo`: its simulated form, the commands it ends with, and the one line of its build. Its cgroup: tests/lab."""

import os
import re
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).resolve().parents[3]
NOBODY = 65534
PROGRAMS = ("libsparkguard.so", "sparkguard", "sparkguard-report", "sim", "demo/canary", "demo/memory_stress")


def make_build(build):
    """A build folder of its own, which everybody can reach."""
    if not (build / "demo/canary").exists() or not (build / "sim/libcuda.so.1").exists():
        pytest.skip("not built: make demo-programs")  # the sanitizers' build has none
    folder = Path(tempfile.mkdtemp(prefix="sparkguard-demo-"))
    (folder / "demo").mkdir()
    for name in PROGRAMS:
        (folder / name).symlink_to(build / name)
    folder.chmod(0o755)
    return folder


class Demo:
    """A demo that runs, in a build folder of its own."""

    def __init__(self, folder, *arguments, before=(), env=None, root=ROOT):
        env = {"PATH": os.environ["PATH"], "HOME": str(folder / "demo"), "BUILD": str(folder)} | (env or {})
        self.folder = folder
        command = [*before, root / "scripts/demo", *arguments]
        self.process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def end(self):
        """Its exit status and what it said."""
        said, _ = self.process.communicate()
        return self.process.returncode, said

    def remove(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()
        shutil.rmtree(self.folder)


def demo_of_ordinary_user(build):
    """Whatever the variables of that user say. In the place of root another user, with a copy of the demo that he can read."""
    folder, root, before = make_build(build), ROOT, []
    if os.geteuid() == 0:
        root = folder / "copy"
        for part in ("scripts", "tests/lab", "tests/lib"):
            shutil.copytree(ROOT / part, root / part)
        subprocess.run(["chmod", "-R", "a+rX", root], check=True)
        for each in (folder, folder / "demo"):
            os.chown(each, NOBODY, NOBODY)
        before = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    mine = {"SPARKGUARD_DISABLE": "1", "SPARKGUARD_LIMIT": "1M", "SGSIM_KIND": "discrete", "CUDA_VISIBLE_DEVICES": ""}
    return Demo(folder, before=before, env=mine, root=root)


def demo_that_guards_nothing(build):
    folder = make_build(build)
    (folder / "libsparkguard.so").unlink()
    (folder / "libsparkguard.so").symlink_to((folder / "sim/libnvidia-ml.so.1").resolve())
    return Demo(folder, "--simulated")


@pytest.fixture(scope="module")
def demos(build):
    """The demos that run to their end. Each mostly waits for its jobs, and so they run side by side."""
    running = {
        "whole": Demo(make_build(build), "--simulated"),
        "ordinary user": demo_of_ordinary_user(build),
        "unguarded": demo_that_guards_nothing(build),
    }
    yield running
    for demo in running.values():
        demo.remove()


@pytest.fixture(scope="module")
def shown(demos):
    """A demo that has ended: its build folder and what it said."""
    status, said = demos["whole"].end()
    assert status == 0, said
    return demos["whole"].folder, said


def pasted(said):
    """The commands below the last heading."""
    return re.findall(r"^    (\S.*)$", said.rpartition("\n== ")[2], re.MULTILINE)


def assert_machine_freezes_unguarded(said):
    """Nobody gets anywhere on a machine without memory, and nothing is killed: as on a GB10."""
    without, _, guarded = said.partition("== With the guard")
    assert re.search(r"batch  64: asks for 30\.0 GiB\n.* canary    does not answer any more", without)
    assert "answers again" not in without and "batch 128" not in without
    assert "canary    does not answer" not in guarded
    assert re.search(r"^serving +got nowhere in 25 s +ended well$", said, re.MULTILINE)
    assert re.search(r"^training +got nowhere in 25 s +ended well, refused batch 64$", said, re.MULTILINE)
    assert re.search(r"^killed by the kernel +0 +0$", said, re.MULTILINE)


def test_machine_freezes_without_the_guard_and_one_job_is_told_with_it(shown):
    folder, said = shown
    guarded = said.partition("== With the guard")[2]
    assert_machine_freezes_unguarded(said)
    assert re.search(r"training  sparkguard: refused cudaMalloc of 30\.0 GiB: .* kept in reserve", guarded)
    assert "on the simulated CUDA driver of tests/sim" in said or "on this machine's GPU" in said
    for name in ("report.txt", "training.svg"):
        assert (folder / "demo" / name).stat().st_size > 1000


def test_readme_shows_its_table(shown):
    """The rows that it shows, apart from how long the canary was silent."""
    rows = [re.sub(r"\d+\.\d (s|ms)", r"N \1", line) for line in shown[1].splitlines()]
    table = re.search(r"^```text\n( +without the guard(?:.*\n)+?)```", (ROOT / "README.md").read_text(), re.MULTILINE)[1]
    lines = [re.sub(r"\d+\.\d (s|ms)", r"N \1", line) for line in table.splitlines()]
    assert len(lines) == 4 and [line for line in lines if line not in rows] == []


def words_of(picture):
    """What a picture says, apart from times and what grows with them."""
    texts = ["".join(text.itertext()) for text in ElementTree.parse(picture).getroot().iter("{http://www.w3.org/2000/svg}text")]
    said = [text for text in texts if re.search(r"Job |process|batch|cudaMalloc|reserve|floor", text)]
    return [re.sub(r"^\d+ python3 \S*scripts/|(?<=process, )[\d.]+ s|(?<=peak )[\d.]+", "", text) for text in said]


def test_readmes_picture_is_what_the_report_draws_of_it(shown):
    """`make picture` makes it so again. The README says of it what it shows."""
    drawn = words_of(ROOT / "docs/reserve.svg")
    assert drawn == words_of(shown[0] / "demo/training.svg")
    assert {"batch 8", "batch 16", "batch 32", "training with batch 32", "cudaMalloc 30.0 GiB, reserve", "reserve 9.6 GiB"} <= set(drawn)
    told = re.search(r"^!\[(.*?)\]\(docs/reserve\.svg\)$", (ROOT / "README.md").read_text(), re.MULTILINE)[1]
    assert "At batch 64 a cudaMalloc of 30 GiB is refused, and the job goes on with batch 32." in told
    assert "docs/reserve.svg" in re.search(r"^picture:.*\n(?:\t.*\n)*", (ROOT / "Makefile").read_text(), re.MULTILINE)[0]


def test_program_of_cuda_is_guarded_without_a_doubt(shown):
    """A driver whose memory does not come out of the machine's would be passed through, and a line would say so."""
    _, said = shown
    cuda = said.partition("== A CUDA program reaches its limit")[2].partition("\n== ")[0]
    assert "not guarded" not in cuda and len(re.findall("^sparkguard: ", cuda, re.MULTILINE)) == 1


def test_commands_it_ends_with_work_in_a_fresh_shell(shown):
    folder, said = shown
    commands = pasted(said)
    assert len(commands) >= 3, said
    for command in commands:
        env = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}
        done = subprocess.run(["bash", "-c", command], cwd="/", env=env, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, (command, done.stderr)
    assert (folder / "demo/training.html").stat().st_size > 1000


def test_report_that_is_left_tells_of_the_refusal(shown):
    folder, said = shown
    report = (folder / "demo/report.txt").read_text()
    assert "job serving" in report and "job training" in report and "job cuda" in report
    assert re.search(r"cudaMalloc +device +30\.0 GiB reserve", report)


def test_ordinary_user_gets_the_simulated_machine(demos):
    status, said = demos["ordinary user"].end()
    assert status == 0, said
    assert "== Two jobs want more memory than there is, on a simulated Spark of 120 GiB ==" in said
    assert "== Side by side, on a simulated Spark of 120 GiB ==" in said and "a cgroup and swap of one's own need root" in said
    assert_machine_freezes_unguarded(said)


def test_claim_that_is_not_seen_is_told(demos):
    """Behind a library that guards nothing."""
    status, said = demos["unguarded"].end()
    assert status == 1
    assert said.splitlines()[-1] == "demo: not seen: with the guard the canary feels nothing"


def test_files_of_another_user_are_named(build):
    folder = make_build(build)
    (folder / "demo/records").symlink_to("/")  # as little ours to remove
    demo = Demo(folder, "--simulated")
    status, said = demo.end()
    demo.remove()
    assert status == 1
    assert "demo: " in said and str(folder / "demo/records") in said and "Traceback" not in said


# ---- the first lines ----


@pytest.mark.parametrize("machine", ["", "aarch64-linux-gnu"])
def test_makefile_says_nothing_of_a_compiler_that_is_not_there_yet(tmp_path, machine):
    """`make demo` installs it first."""
    variables = [f"BUILD={tmp_path}", "CC=/nonexistent/cc", f"MACHINE={machine}"]
    done = subprocess.run(["make", "-s", "-n", "demo", *variables], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == ""
    assert done.stdout.splitlines()[0] == "scripts/install-deps build demo"


def test_makefile_looks_for_the_headers_once(tmp_path):
    """Each file is compiled with them: a search for each would cost more than the dry run."""
    starts = tmp_path / "starts"
    (tmp_path / "bash").write_text(f'echo "$*" >>{starts}\n')  # what each bash runs first
    env = {k: v for k, v in os.environ.items() if k != "CUDA_HOME"} | {"BASH_ENV": str(tmp_path / "bash")}
    done = subprocess.run(["make", "-n", "library", f"BUILD={tmp_path}"], cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.count(" -isystem ") > 50
    assert starts.read_text().splitlines().count("--cuda-home") == 1


# ---- the one line of the build ----


def fake_make(tmp_path, files, status):
    """Says what make says of so many files, then ends."""
    script = tmp_path / "make"
    script.write_text(
        "#!/bin/bash\n"
        f"for i in $(seq {files}); do\n"
        "    if [[ \" $* \" == *' -n '* ]]; then echo \"printf '  %-7s %s\\n' CC $i.o\"; else echo \"  CC      $i.o\"; fi\n"
        "done\n"
        f"[[ \" $* \" == *' -n '* ]] || {{ echo \"arguments: $*\"; exit {status}; }}\n"
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return script


def quiet_build(make, **env):
    env = {"PATH": os.environ["PATH"], "MAKE": str(make)} | env
    return subprocess.run([ROOT / "scripts/build-quietly", "all"], env=env, capture_output=True, text=True)


def test_build_says_one_line(tmp_path):
    done = quiet_build(fake_make(tmp_path, 164, 0))
    assert done.returncode == 0
    assert re.fullmatch(r"built 164 files in \d+ s\n", done.stdout)


def test_build_that_fails_shows_its_end_and_status(tmp_path):
    done = quiet_build(fake_make(tmp_path, 164, 2))
    assert done.returncode == 2
    assert "  CC      164.o\n" in done.stdout and "built" not in done.stdout and len(done.stdout.splitlines()) <= 12


def test_build_shows_all_with_v_1(tmp_path):
    done = quiet_build(fake_make(tmp_path, 164, 0), V="1")
    assert len(done.stdout.splitlines()) == 165


@pytest.mark.parametrize("flags, chosen", [("", True), (" -j7 --jobserver-auth=3,4", False), (" -- V=0", True)])
def test_build_uses_all_processors_unless_told_otherwise(tmp_path, flags, chosen):
    done = quiet_build(fake_make(tmp_path, 1, 0), V="1", MAKEFLAGS=flags)
    assert (f"-j{os.cpu_count()}" in done.stdout or f"-j{len(os.sched_getaffinity(0))}" in done.stdout) == chosen
