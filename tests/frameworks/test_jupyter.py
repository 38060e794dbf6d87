"""A notebook in a guarded kernel, as the guide says (scripts/examples/README.md): the cell fails, the kernel lives on."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20

EXECUTE = """
import json, nbclient, nbformat, sys
notebook = nbformat.read(sys.stdin, as_version=4)
nbclient.NotebookClient(notebook, timeout=60).execute()
print(json.dumps([cell.outputs for cell in notebook.cells if cell.cell_type == "code"]))
"""


def install(kernel, folder, library):
    """The kernel of the example, with the library that is built."""
    spec = json.loads(kernel.read_text())
    spec["env"]["LD_PRELOAD"] = str(library)
    place = folder / "kernels/guarded"
    place.mkdir(parents=True)
    (place / "kernel.json").write_text(json.dumps(spec))


def test_refused_cell_fails_and_the_kernel_lives_on(client, examples, tmp_path):
    install(examples / "jupyter/kernel/kernel.json", tmp_path, client.guard.library)
    notebook = (examples / "jupyter/limit.ipynb").read_text()
    done = client.plain(EXECUTE, input=notebook, JUPYTER_PATH=tmp_path)
    assert done.returncode == 0, done.stderr
    small, refused, alive = json.loads(done.stdout)
    results = [output["data"]["text/plain"] for output in small + alive if output["output_type"] == "execute_result"]
    assert results == ["100", "(100, False)"]
    assert [output["ename"] for output in refused if output["output_type"] == "error"] == ["MemoryError"]
    assert "sparkguard: refused malloc of 2.0 GiB: " in done.stdout + done.stderr  # ipykernel shows it in the cell, as a rule
    (kernel,) = client.guard.processes()
    assert "ipykernel" in kernel["command"] and (kernel["state"], kernel["refused_count"]) == ("exited", 1)
    assert 100 * MIB <= kernel["peak_bytes"] <= 1024 * MIB


LAB = """
import base64, json, nbclient, nbformat, pathlib, sys
notebook = nbformat.read(sys.stdin, as_version=4)
nbclient.NotebookClient(notebook, timeout=100).execute()
outputs = {cell.id: cell.outputs for cell in notebook.cells if cell.cell_type == "code"}
for name, found in outputs.items():
    for output in found:
        if "image/png" in output.get("data", {}):
            pathlib.Path(sys.argv[1], f"lab-{name}.png").write_bytes(base64.b64decode(output["data"].pop("image/png")))
print(json.dumps(outputs))
"""


def colours_of(client, picture):
    """How many colours a picture has: a plot without lines has few."""
    text = f"import matplotlib.image as image; p = image.imread({str(picture)!r}); print(len({{tuple(c) for r in p for c in r.tolist()}}), *p.shape[:2])"
    done = client.plain(text)
    assert done.returncode == 0, done.stderr
    return [int(word) for word in done.stdout.split()]


@pytest.fixture
def lab(client, sim, examples, tmp_path):
    """The lab of a simulated Spark of full size, as its kernel has run it: outputs by cell, and where its plots are."""
    spec = json.loads((examples / "jupyter/kernel/kernel.json").read_text())
    variables = sim.env | sim.machine(cached_bytes=20 << 30) | {"LD_PRELOAD": client.guard.library, "SPARKGUARD_LIMIT": None}
    spec["env"] = {name: str(value) for name, value in variables.items() if value is not None}
    spec["env"]["PYTHONPATH"] = str(ROOT / "tools/python")
    spec["env"]["PATH"] = f"{client.guard.build}:/usr/bin:/bin"
    (tmp_path / "kernels/guarded").mkdir(parents=True)
    (tmp_path / "kernels/guarded/kernel.json").write_text(json.dumps(spec))
    plots = client.guard.build / "frameworks"
    for old in plots.glob("lab-*.png"):
        old.unlink()
    done = client.plain(LAB.replace("sys.argv[1]", repr(str(plots))), (examples / "jupyter/memory_lab.ipynb").read_text(), JUPYTER_PATH=tmp_path)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), plots


def text_of(outputs):
    return "".join(output.get("text", "") for output in outputs if output["output_type"] == "stream" and output["name"] == "stdout")


def test_the_lab_runs_from_top_to_bottom_on_a_spark(client, lab):
    outputs, plots = lab
    assert "guarded: True" in text_of(outputs["start"]) and "unified memory: True" in text_of(outputs["allocate"])
    assert "memory: live " in text_of(outputs["sizes"]) and "peak 7" in text_of(outputs["sizes"]) and "none refused" in text_of(outputs["sizes"])
    stress = text_of(outputs["stress"])
    assert re.search(r"^\d+ blocks of 5\.\d GiB; then: cuMemAlloc of 5\.\d GiB refused, .* \(reserve\)", stress, re.MULTILINE), stress
    assert re.search(r"[1-9]\d* refused", stress)
    cached = float(re.fullmatch(r"page cache: ([\d.]+) GiB\n", text_of(outputs["cache"]))[1])
    assert 0 <= cached < 20, "some of it was reclaimed before the wall"
    assert [output["ename"] for output in outputs["refused"] if output["output_type"] == "error"] == ["MemoryError"]
    assert "cuMemAlloc of 1.0 PiB refused" in text_of(outputs["refused"]) and "Final memory:" in text_of(outputs["end"])
    for name in ("sizes-plot", "model-plot", "stress-plot"):
        colours, height, width = colours_of(client, plots / f"lab-{name}.png")
        assert colours > 50 and height > 100 and width > 600, name
    phases = [phase["name"] for process in client.guard.processes() for phase in process["phases"]]
    assert {"sizes", "model", "stress", "too much"} <= set(phases)
