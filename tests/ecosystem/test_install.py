"""`make install` and `make uninstall`, into a folder of their own."""

import subprocess


def test_install_and_uninstall_are_each_others_opposite(make, tmp_path):
    make("install", f"DESTDIR={tmp_path}", "PREFIX=/usr")
    for name in ("include/sparkguard.h", "share/sparkguard/sparkguard.py", "share/man/man3/sparkguard.3"):
        assert (tmp_path / "usr" / name).is_file(), name
    make("uninstall", f"DESTDIR={tmp_path}", "PREFIX=/usr")
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []
