"""Programs of another C library: musl's loader takes the library in, and each call goes to musl."""

import shutil
import subprocess
from pathlib import Path

import pytest
from lib.target import IS_SLOW

ROOT = Path(__file__).resolve().parents[3]
MUSL_LOADER = next(iter(sorted(Path("/lib").glob("ld-musl-*.so.1"))), None)


@pytest.fixture(scope="module")
def musl_program(tmp_path_factory):
    if IS_SLOW or shutil.which("musl-gcc") is None or MUSL_LOADER is None:
        pytest.skip("there is no musl for the architecture of the library (musl-tools)")
    program = tmp_path_factory.mktemp("musl") / "musl_ways"
    subprocess.run(["musl-gcc", "-o", program, ROOT / "tests/programs/process/musl_ways.c"], check=True)
    return program


@pytest.mark.parametrize("loader", [[], [MUSL_LOADER]], ids=["by the kernel", "by its loader"])
@pytest.mark.parametrize("limit", ["1G", "1M"])
def test_musl_program_runs_as_without_the_guard(guard, musl_program, loader, limit):
    without = guard.run([*loader, musl_program], env={"LD_PRELOAD": None})
    done = guard.run([*loader, musl_program], env={"SPARKGUARD_LIMIT": limit})
    assert (done.returncode, done.stdout, done.stderr) == (without.returncode, without.stdout, without.stderr)
    assert (done.returncode, done.stdout) == (3, "done\n")
    assert guard.processes() == []


def test_the_same_program_of_glibc_is_guarded(guard):
    done = guard.run([guard.build / "tests/programs/musl_ways"], env={"SPARKGUARD_LIMIT": "1M"})
    assert done.returncode == 1 and "refused" in done.stderr
    assert done.process()["refused_count"] > 0
