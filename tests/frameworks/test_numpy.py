"""numpy under the guard: an array that would not fit is a MemoryError, and everything else is as it was."""

MIB = 1 << 20

HEAD = """
import numpy
MIB = 1 << 20
def say(**pairs):
    for key, value in pairs.items():
        print(key, value, flush=True)
def refused(function, *arguments, **options):
    '''The name of the error that it raises, "none" if it raises none.'''
    try:
        function(*arguments, **options)
    except MemoryError as error:
        return type(error).__name__
    return "none"
"""


def test_array_over_the_limit_is_a_memory_error(client):
    text = """
say(ones=refused(numpy.ones, 1024 * MIB, dtype="u1"), zeros=refused(numpy.zeros, 1024 * MIB, dtype="u1"))
small = numpy.ones(64 * MIB, dtype="u1")
say(sum=int(small.sum()))
"""
    done = client.values(HEAD + text, SPARKGUARD_LIMIT="512M")
    assert (done.ones, done.zeros, done.sum) == ("MemoryError", "MemoryError", 64 * MIB)
    assert [(r["call"], r["reason"]) for r in done.process["refusals"]] == [("malloc", "limit"), ("calloc", "limit")]
    assert all(1024 * MIB <= r["size_bytes"] <= 1025 * MIB for r in done.process["refusals"])


def test_resize_that_is_refused_keeps_the_array(client):
    text = """
array = numpy.arange(8 * MIB, dtype="u8")
say(resize=refused(array.resize, 256 * MIB, refcheck=False), size=array.size, sum=int(array.sum()))
"""
    done = client.values(HEAD + text, SPARKGUARD_LIMIT="512M")
    assert (done.resize, done.size, done.sum) == ("MemoryError", 8 * MIB, 8 * MIB * (8 * MIB - 1) // 2)


def test_arrays_are_counted(client):
    text = "small = numpy.ones(32 * MIB, dtype='u1'); large = [numpy.ones(4 * MIB, dtype='u1') for _ in range({})]"
    without, with_them = (client.values(HEAD + text.format(count)).process["peak_bytes"] for count in (0, 64))
    assert 256 * MIB <= with_them - without <= 264 * MIB


def test_computations_give_the_same_bits(client):
    said = client.same(
        HEAD
        + """
import hashlib
random = numpy.random.default_rng(7)
a, b = random.standard_normal((600, 600)), random.standard_normal((600, 600))
results = [a @ b, numpy.linalg.svd(a[:200, :200])[1], numpy.linalg.solve(a, b), numpy.fft.fft2(a), numpy.sort(b, axis=0)]
for result in results:
    print(hashlib.sha256(result.tobytes()).hexdigest())
"""
    )
    assert len(said.splitlines()) == 5
