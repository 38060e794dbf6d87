"""Where sparkguard-report writes, another user's link leads nowhere. The users are real ones, made by number."""

import os
import subprocess

import pytest
from members import as_member

OUTPUTS = {"html": ("--html", "job.html"), "text": ("--output", "job.txt"), "metrics": ("--prometheus", "--output", "job.prom"), "json": ("--json", "--output", "job.json")}


@pytest.mark.parametrize("kind", OUTPUTS)
def test_another_users_link_is_replaced(report, make, shared, tmp_path, kind):
    *options, name = OUTPUTS[kind]
    make(pid=1, job="train").write(report.directory)
    private = tmp_path / "private"
    private.write_text("root's own\n")
    private.chmod(0o600)
    as_member("ln", "-s", private, shared / name)
    done = report.run(*options, shared / name, "--all")
    assert done.returncode == 0, done.stderr
    assert private.read_text() == "root's own\n"
    assert not (shared / name).is_symlink() and "train" in (shared / name).read_text()


def test_a_link_of_ones_own_is_followed_where_nobody_else_makes_links(report, make, tmp_path):
    make(pid=1, job="train").write(report.directory)
    (tmp_path / "link.html").symlink_to("page.html")
    assert report.run("--html", tmp_path / "link.html", "--all").returncode == 0
    assert (tmp_path / "link.html").is_symlink() and "train" in (tmp_path / "page.html").read_text()
    done = report.run("--html", "/dev/stdout", "--all")
    assert done.returncode == 0 and "train" in done.stdout


def test_a_link_in_a_folder_of_several_users_is_replaced_whosever_it_is(report, make, shared, tmp_path):
    """Another member could have put it there in the moment before."""
    make(pid=1, job="train").write(report.directory)
    (shared / "job.html").symlink_to(tmp_path / "private")
    assert report.run("--html", shared / "job.html", "--all").returncode == 0
    assert not (shared / "job.html").is_symlink() and not (tmp_path / "private").exists()


def test_another_users_pipe_keeps_nobody(report, make, shared):
    make(pid=1, job="train").write(report.directory)
    as_member("mkfifo", shared / "job.txt")
    assert report.run("--output", shared / "job.txt", "--all").returncode == 0
    assert "train" in (shared / "job.txt").read_text()


def test_a_pipe_of_ones_own_is_written_to(report, make, tmp_path):
    make(pid=1, job="train").write(report.directory)
    os.mkfifo(tmp_path / "pipe")
    with subprocess.Popen(["cat", tmp_path / "pipe"], stdout=subprocess.PIPE, text=True) as reader:
        assert report.run("--output", tmp_path / "pipe", "--all").returncode == 0
        assert "train" in reader.communicate(timeout=60)[0]
