"""~/.config/sparkguard.conf under the library alone: what a guarded program takes from its user's file of defaults."""

import subprocess

import pytest
from lib.machine import GIB, LEFT, MIB, take

WRONG = "cannot be read and has no effect; expected reserve=SIZE, limit=SIZE or history=DIR"


@pytest.fixture
def defaults(tmp_path):
    """defaults(text) writes the file, and is the environment in which programs find it."""

    def write(text, **more):
        (tmp_path / ".config").mkdir(exist_ok=True)
        (tmp_path / ".config/sparkguard.conf").write_text(text)
        return {"HOME": str(tmp_path), "XDG_CONFIG_HOME": None, **more}

    return write


def test_the_limit_of_the_file_holds(place, defaults):
    place.assert_left(3 * GIB, defaults("limit = 3G\n"))


def test_the_reserve_of_the_file_holds(place, defaults):
    place.assert_left(LEFT - GIB, defaults("reserve = 3G\n", SPARKGUARD_RESERVE=None))


@pytest.mark.parametrize("limit, left", [("2G", 2 * GIB), ("none", LEFT)])
def test_a_variable_goes_before_the_file(place, defaults, limit, left):
    place.assert_left(left, defaults("limit = 3G\n", SPARKGUARD_LIMIT=limit))


def test_the_place_by_xdg_goes_before_the_home(place, defaults, tmp_path):
    env = defaults("limit = 3G\n")
    (tmp_path / "xdg").mkdir()
    (tmp_path / "xdg/sparkguard.conf").write_text("limit = 1G\n")
    place.assert_left(GIB, env | {"XDG_CONFIG_HOME": str(tmp_path / "xdg")})


@pytest.mark.parametrize("before", [4000, 4096, 5000, 20000])
def test_the_home_is_found_behind_long_variables(place, defaults, before):
    """The environment is read 4 KiB at a time."""
    env = {"A": "x" * before, "B": "y" * before} | defaults("limit = 3G\n") | {"Z": "z" * before}
    place.assert_left(3 * GIB, env)


def test_a_wrong_line_is_one_warning_of_the_first_process_that_asks_for_much(place, defaults, tmp_path):
    env = defaults("limit = much\nreserve = 1\n")
    place.take("malloc 2M fork malloc 2M", env)
    assert take.done.stderr == f"sparkguard: {tmp_path}/.config/sparkguard.conf:1: {WRONG}\n"


def test_a_name_that_is_nearly_right_is_told(place, defaults, tmp_path):
    place.take("malloc 2M", defaults("limt = 3G\n"))
    assert take.done.stderr == f"sparkguard: {tmp_path}/.config/sparkguard.conf:1: cannot be read and has no effect; did you mean limit?\n"


def test_who_asks_for_little_never_looks_for_the_file(place, defaults, tmp_path):
    env = place.guard.environment({**place.env, **defaults("banana\n")})
    done = subprocess.run(["/bin/true"], env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_program_that_changes_its_environment_keeps_its_defaults(place, defaults):
    text = """
os.environ["HOME"] = "/nonexistent"
malloc(2 << 20)
malloc(2 * GIB)
"""
    assert place.player(text, env=defaults("limit = 1G\n")).end() == ["ok", "ENOMEM"]
