"""Services of Docker Compose, each guarded by itself: what a terminal shows of one that is refused something, as the README has it."""

import re
import shutil
from pathlib import Path

import pytest
from engines import Docker, debian

ROOT = Path(__file__).resolve().parents[2]
SERVICES = """
services:
  train:
    image: debian12
    network_mode: none
    runtime: guarding
    command: [python3, -c, "model = bytearray(300 << 20); batch = bytearray(300 << 20)"]
    environment: {SPARKGUARD_LIMIT: 512M}
  serve:
    image: debian12
    network_mode: none
    runtime: guarding
    command: [python3, -c, "model = bytearray(300 << 20); print('served')"]
"""


@pytest.mark.timeout_seconds(900)  # it makes an image and begins an engine
def test_a_service_that_is_refused_something_says_so_and_the_other_goes_on(build, tmp_path_factory):
    """The names that Compose makes have an underscore in version 1, and a hyphen since version 2."""
    if shutil.which("docker-compose") is None:
        pytest.skip("no docker-compose")
    folder = tmp_path_factory.mktemp("compose")  # short: dockerd's sockets are in it
    (folder / "compose.yaml").write_text(SERVICES)
    (build / "images").mkdir(exist_ok=True)
    with Docker("runc", build, folder / "docker") as engine:
        engine.load("debian12", debian(build / "images", "debian12"))
        compose = ["docker-compose", "--ansi", "never", f"--host=unix://{engine.sock}", "--project-name", "box", "--file", folder / "compose.yaml"]
        status, said, err = engine.call(*compose, "up", timeout=300)
        assert status == 0, err
        assert re.search(r"serve[-_]1 +\| served", said), said
        jobs = {re.split("[-_]", name)[1]: job for name, job in engine.jobs().items()}
        assert {name: [process["refused_count"] for process in job["processes"]] for name, job in jobs.items()} == {"serve": [0], "train": [1]}
        assert jobs["train"]["limit_bytes"] == 512 << 20 and jobs["serve"]["limit_bytes"] is None
        engine.call(*compose, "down", check=True)
    (shown,) = re.findall(r"`train-1 +\| (try: .*?)`", (ROOT / "README.md").read_text())
    (step,) = re.findall(r"train[-_]1 +\| (try: .*)", said)
    assert re.sub(r"[\d.]+", "N", step) == re.sub(r"[\d.]+", "N", shown)
