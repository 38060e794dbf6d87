"""PyTorch's heap for CPU tensors on aarch64, a mimalloc inside libc10.so of the wheel: what is refused of it."""

import platform
import shutil
import subprocess

import pytest
from lib.machine import GIB, MIB, Machine
from lib.target import ROOT

DEPS = ROOT / ".deps"
LIBRARY = DEPS / "judges/torch-arm64/libc10.so"
IS_NATIVE = platform.machine() == "aarch64"
GUARD = ROOT / ("build" if IS_NATIVE else "build/aarch64") / "libsparkguard.so"
EMULATOR = [] if IS_NATIVE else [DEPS / "aarch64/bin/qemu-aarch64-static", "-L", "/usr/aarch64-linux-gnu"]
COMPILER = "gcc" if IS_NATIVE else "aarch64-linux-gnu-gcc"
PIECEWISE = {"MIMALLOC_ARENA_EAGER_COMMIT": "0"}  # as the launcher sets it
LIMIT = {"SPARKGUARD_LIMIT": "500M"}
ARENA = 1024  # MiB

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    for path in (LIBRARY, GUARD, *EMULATOR[:1]):
        if not path.exists():
            pytest.skip(f"needs {path.relative_to(ROOT)} (scripts/install-deps judges cross, make CROSS=aarch64 library)")
    if shutil.which(COMPILER) is None:
        pytest.skip(f"needs {COMPILER}")
    path = tmp_path_factory.mktemp("torch") / "torch_blocks"
    subprocess.run([COMPILER, "-O1", "-o", path, ROOT / "tests/qualification/torch_blocks.c", "-ldl"], check=True)
    return path


@pytest.fixture
def blocks(program, tmp_path, record_property):
    """How many MiB the program came to have, and whether it had all that it asked for."""

    def take(mib, count, **env):
        variables = {"LD_PRELOAD": GUARD, "SPARKGUARD_HISTORY": "off", "SPARKGUARD_DIR": tmp_path / "live", "SPARKGUARD_WATCHDOG": "term", **env}
        given = [word for name, value in variables.items() for word in ("-E", f"{name}={value}")] if EMULATOR else []
        done = subprocess.run([*EMULATOR, *given, program, LIBRARY, str(mib), str(count)], capture_output=True, text=True, env=None if EMULATOR else variables)
        assert done.returncode != 2, done.stderr
        record_property("note", (LIBRARY.parent / "version").read_text().strip() + ", under qemu-user" * bool(EMULATOR))
        said = done.stdout.split()
        return int(said[-1]) if said else 0, done.returncode == 0

    return take


def test_first_arena_is_granted_below_its_size(blocks):
    assert blocks(64, 2, **LIMIT) == (128, True)


def test_blocks_are_refused_at_the_limit(blocks):
    """Piece by piece; 64 MiB of an arena are committed with each block, and some more."""
    held, is_whole = blocks(64, 21, **LIMIT, **PIECEWISE)
    assert 384 <= held <= 500 and not is_whole


def test_without_the_variable_they_are_refused_within_the_first_arena(blocks):
    """What it asks the C library for besides is refused once the limit is exceeded."""
    held, is_whole = blocks(64, 21, **LIMIT)
    assert held <= ARENA and not is_whole


@pytest.mark.parametrize("env", [{}, PIECEWISE], ids=["arenas", "piecewise"])
def test_block_above_an_arena_is_refused_where_it_exceeds_the_limit(blocks, env):
    assert blocks(1500, 1, **LIMIT, **env) == (0, False)


def test_block_above_the_limit_is_refused_piecewise(blocks):
    assert blocks(700, 2, **LIMIT, **PIECEWISE) == (0, False)


@pytest.mark.parametrize("env", [{}, PIECEWISE], ids=["arenas", "piecewise"])
@pytest.mark.parametrize("available, is_granted", [(700 * MIB, False), (4 * GIB, True)])
def test_block_is_refused_where_the_machine_has_no_room(blocks, tmp_path, env, available, is_granted):
    Machine(tmp_path / "machine", 16 * GIB, available)
    made_up = {"SPARKGUARD_SYSTEM_ROOT": tmp_path / "machine", "SPARKGUARD_RESERVE": "100M"}
    assert blocks(900, 1, **made_up, **env) == (900 * is_granted, is_granted)
