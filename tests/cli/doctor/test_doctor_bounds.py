"""sparkguard-doctor where an administrator has set bounds in /etc/sparkguard.conf."""

import os

import pytest
from doctor_tree import doctor  # noqa: F401

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="a file of root's needs root")


def write(doctor, text, mode=0o644):  # noqa: F811
    doctor.tree.write("etc/passwd", "root:x:0:0::/root:/bin/sh\nalice:x:1001:1001::/:/bin/sh\n")
    doctor.tree.write("etc/group", "students:x:1002:alice\n")
    doctor.tree.write("etc/sparkguard.conf", text).chmod(mode)


def test_without_a_file_nothing_is_said(doctor):  # noqa: F811
    assert "bounds" not in [finding["id"] for finding in doctor.json()["findings"]]


@needs_root
def test_good_file_is_fine(doctor):  # noqa: F811
    write(doctor, "# who bounds\nalice limit=80G reserve=12G\n@students limit=24G\n4711 limit=50%\n* limit=60G\n")
    finding = doctor.find("bounds")
    assert (finding["state"], finding["sentence"]) == ("fine", "/etc/sparkguard.conf can be read; it does not bound you.")


@needs_root
@pytest.mark.parametrize(
    "line, said",
    [
        ("root limit=80G reserve=12G", "bounds you to a limit of at most 80.0 GiB and a reserve of at least 12.0 GiB."),
        ("@0 limit=50%", "bounds you to a limit of at most 60.0 GiB."),
        ("0 reserve=12G", "bounds you to a reserve of at least 12.0 GiB."),
    ],
)
def test_own_bounds_are_said(doctor, line, said):  # noqa: F811
    write(doctor, line + "\n")
    assert doctor.find("bounds")["sentence"] == f"/etc/sparkguard.conf {said}"


@needs_root
@pytest.mark.parametrize(
    "text, said",
    [
        ("* limit=60G\nalice limt=80G\n", "Line 2 of /etc/sparkguard.conf cannot be read and bounds nobody."),
        ("alice\n", "Line 1 of /etc/sparkguard.conf cannot be read and bounds nobody."),
        ("# x\n\nbob limit=8G\n", "Line 3 of /etc/sparkguard.conf bounds nobody: /etc/passwd does not have bob."),
        ("@staff limit=8G\n", "Line 1 of /etc/sparkguard.conf bounds nobody: /etc/group does not have @staff."),
        ("alice limit=8G\n\x1b[31mx limit=8G", "Line 2 of /etc/sparkguard.conf bounds nobody: /etc/passwd does not have \x1b[31mx."),
    ],
)
def test_lines_that_bound_nobody(doctor, text, said):  # noqa: F811
    write(doctor, text)
    finding = doctor.find("bounds")
    assert (finding["state"], finding["sentence"]) == ("warning", said)
    assert finding["mend"].startswith("sudoedit /etc/sparkguard.conf")
    assert "\x1b" not in doctor.run().stdout


@needs_root
@pytest.mark.parametrize("mode, said", [(0o600, "cannot be read by all users: it does not bound them"), (0o664, "can be changed by others than root")])
def test_file_that_users_cannot_read_or_can_change(doctor, mode, said):  # noqa: F811
    write(doctor, "* limit=60G\n", mode)
    finding = doctor.find("bounds")
    assert finding["state"] == "warning" and said in finding["sentence"] and "chmod 644" in finding["mend"]
