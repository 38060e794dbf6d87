"""A program that hands on the environment that it was begun with, as Go's do: the job is not in it."""

import sys

LIMIT = {"SPARKGUARD_JOB": None, "SPARKGUARD_LIMIT": "300M"}
PARENT = """
first = {{k: v for k, v in os.environ.items() if k not in ("SPARKGUARD_JOB", "SPARKGUARD_JOB_FIRST")}}
{before}
said = subprocess.run([{program!r}, *{commands!r}], env=first, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL).stdout.decode()
for word in said.split():
    say(word)
ready()
"""


def child_of(place, before, *commands):
    text = PARENT.format(before=before, program=str(place.admit_take), commands=list(commands))
    return place.player(text, LIMIT)


def test_child_is_in_the_job_of_its_parent(place):
    parent = child_of(place, "malloc(200 * MIB)", "malloc", "200M")
    assert parent.ready() == ["ok", "ENOMEM"]
    (job,) = place.guard.report()["jobs"]
    assert len(job["processes"]) == 2


def test_grandchild_is_in_it_too(place):
    parent = child_of(place, "malloc(100 * MIB)", "malloc", "100M", "fork", "malloc", "50M", "malloc", "100M")
    assert parent.ready() == ["ok", "ok", "ok", "ENOMEM"]


def test_children_of_an_unguarded_program_are_jobs_of_their_own(place):
    one = place.holder("malloc 200M", LIMIT)
    assert place.take("malloc 200M", LIMIT) == ["ok"] and one.answers == ["ok"]


def test_job_that_is_named_stays(place):
    text = PARENT.format(before="malloc(200 * MIB)\nfirst['SPARKGUARD_JOB'] = 'other'", program=str(place.admit_take), commands=["malloc", "200M"])
    assert place.player(text, LIMIT).ready() == ["ok", "ok"]


def test_what_the_child_begins_by_its_own_environment_is_in_it_too(place):
    """There the job has got by then; Python's own copy of the environment is older."""
    child = "import ctypes, os, sys\nctypes.CDLL(None).malloc(ctypes.c_size_t(50 << 20))\nos.execv(sys.argv[1], sys.argv[1:])"
    words = ["-S", "-c", child, str(place.admit_take), "malloc", "200M"]
    text = PARENT.format(before="malloc(100 * MIB)", program=sys.executable, commands=words)
    assert place.player(text, LIMIT).ready() == ["ok", "ENOMEM"]
