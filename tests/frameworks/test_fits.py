"""sparkguard-sweep --fits against models of many families that are really loaded and used: see fits_models.py, fits_load.py."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import fits_models
import pytest

ROOT = Path(__file__).resolve().parents[2]
HERE = ROOT / "tests/frameworks"
TOKENS = 64
MIB = 1 << 20
OFF = 0.1


def predict(build, name, folder, env):
    _, _, _, _, dtype, how, _ = fits_models.MODELS[name]
    options = ([f"--dtype={dtype}"] if dtype else []) + [f"--load={how}"] * (how != "map")
    command = [build / "sparkguard-sweep", "--json", f"--fits={folder}", f"--context={TOKENS}", *options]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr
    return json.loads(done.stdout), " ".join(options)


def write_row(row):
    """Where tests/frameworks/run wants rows of its table."""
    if path := os.environ.get("FITS_ROWS"):
        with open(path, "a") as file:
            file.write(row + "\n")


@pytest.fixture(scope="module")
def scene(build, tmp_path_factory):
    """The folder of all models, the environment of a tool, and by name what loading each took: (resident, private) bytes."""
    folder, python = tmp_path_factory.mktemp("models"), os.environ["FRAMEWORK_PYTHON"]
    env = {k: v for k, v in os.environ.items() if not k.startswith("SPARKGUARD_") and k != "LD_PRELOAD"}
    env |= {"SPARKGUARD_DIR": str(folder / "live"), "SPARKGUARD_HISTORY": "off", "OMP_NUM_THREADS": "1"}
    subprocess.run([python, HERE / "fits_models.py", folder], env=env, check=True, stdout=subprocess.DEVNULL)
    guarded = env | {"LD_PRELOAD": str(build / "libsparkguard.so"), "PYTHONPATH": str(ROOT / "tools/python")}
    done = subprocess.run([python, HERE / "fits_load.py", folder, str(TOKENS)], env=guarded, stdout=subprocess.PIPE, text=True)
    lines = [line.split() for line in done.stdout.splitlines()]
    yield folder, env, {words[0]: (int(words[1]), int(words[2])) for words in lines if len(words) == 3}
    shutil.rmtree(folder)


@pytest.mark.timeout_seconds(1200)
@pytest.mark.parametrize("name", fits_models.MODELS)
def test_predicted_peak_is_within_a_tenth_of_the_measured_one(build, scene, name):
    """Of the process above its state before the load: its resident memory by the kernel, and its live bytes by the guard.

    Both differences are to the resident peak: of a mapped model the guard counts next to nothing.
    """
    folder, env, measured = scene
    predicted, options = predict(build, name, folder / name, env)
    resident, private = measured[name]
    peak, own = predicted["peak_resident_bytes"], predicted["peak_private_bytes"]
    off, own_off = (peak - resident) / resident, (own - private) / resident
    sizes = [f"{number / MIB:.1f}" for number in (predicted["weight_bytes"], peak, resident, own, private)]
    write_row(f"| {' | '.join([name, options or '-', *sizes[:3], f'{off:+.1%}', *sizes[3:], f'{own_off:+.1%}'])} |")
    assert predicted["weight_bytes"] > 50 * MIB
    assert abs(off) <= OFF and abs(own_off) <= OFF, (off, own_off)
