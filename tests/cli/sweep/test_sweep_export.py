"""Where sparkguard-sweep exports its table, another user's link or pipe leads nowhere. The users are real ones, made by number."""

import pytest
from members import as_member
from sweeping import GB, recorded, sweep  # noqa: F401 - a fixture

PLAN, WORDS = ("n=1,2", "true {n}"), ("-p", "n=1,2", "--", "true", "{n}")
SUFFIXES = ["csv", "md", "json"]


def export(sweep, path, status=0):
    """Writes the table of a sweep that is on record, and starts nothing."""
    sweep.record(*PLAN, [recorded(0, "ok", GB), recorded(1, "ok", 2 * GB)])
    done = sweep.run("--resume", f"--export={path}", *WORDS)
    assert done.returncode == status, done.stderr
    return done.stderr


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_another_users_link_is_replaced(sweep, shared, tmp_path, suffix):
    private, place = tmp_path / "private", shared / f"table.{suffix}"
    private.write_text("root's own\n")
    as_member("ln", "-s", private, place)
    export(sweep, place)
    assert private.read_text() == "root's own\n"
    assert not place.is_symlink() and "peak" in place.read_text()


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_another_users_pipe_keeps_nobody(sweep, shared, suffix):
    as_member("mkfifo", shared / f"table.{suffix}")
    export(sweep, shared / f"table.{suffix}")
    assert "peak" in (shared / f"table.{suffix}").read_text()


def test_a_link_of_ones_own_is_followed_where_nobody_else_makes_links(sweep, tmp_path):
    (tmp_path / "link.csv").symlink_to("table.csv")
    export(sweep, tmp_path / "link.csv")
    assert (tmp_path / "link.csv").is_symlink() and "peak" in (tmp_path / "table.csv").read_text()


def test_a_table_that_cannot_be_written_is_a_failure(sweep, tmp_path):
    """A folder that is not there, and a device that is full."""
    (tmp_path / "full.csv").symlink_to("/dev/full")
    for path in (tmp_path / "none/table.csv", tmp_path / "full.csv"):
        assert f"sparkguard-sweep: cannot write {path}: " in export(sweep, path, status=3)
    assert sorted(file.name for file in tmp_path.glob("*.csv*")) == ["full.csv"]
