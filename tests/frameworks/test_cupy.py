"""CuPy under the guard where there is no GPU. On a GPU it is tested in tests/gpu: its runtime takes no simulated driver."""

HEAD = """
import cupy
def error(function, *arguments):
    try:
        function(*arguments)
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return str(error)
    return "none"
"""


def test_it_finds_no_gpu_and_does_not_complain(client):
    assert client.same(HEAD + "print(cupy.cuda.is_available())") == "False\n"


def test_array_raises_as_without_the_guard(client):
    said = client.same(HEAD + "print(error(cupy.cuda.runtime.getDeviceCount)); print(error(cupy.ones, 4))").splitlines()
    assert len(said) == 2 and all(line.startswith("cudaErrorInsufficientDriver") for line in said)
