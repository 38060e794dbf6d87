"""A notebook in a guarded kernel, as the guide says (scripts/examples/README.md): the cell fails, the kernel lives on."""

import json

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
