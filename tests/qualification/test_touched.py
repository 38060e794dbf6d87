"""tests/touched: which tests a changed file touches."""

import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def touched(monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    loader = SourceFileLoader("touched", str(ROOT / "tests/touched"))
    module = module_from_spec(spec_from_loader("touched", loader))
    loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "kind, file, targets",
    [
        ("cross", "preload/core/admit/check.c", {"all"}),
        ("cross", "preload/guard/hooks/lifecycle.c", {"all"}),
        ("cross", "tests/lib/target.py", {"all"}),
        ("cross", "preload/guard/hooks/heap/fast.c", {"tests/preload/heap", "tests/preload/process"}),
        ("cross", "tests/sim/driver/sim_pool.c", {"tests/sim"}),
        ("cross", "tests/preload/mmap/test_map.py", {"tests/preload/mmap/test_map.py"}),
        ("cross", "tests/preload/machine/giving.py", {"tests/preload/machine"}),
        ("cross", "tests/preload/machine/golden/refusal.txt", {"tests/preload/machine"}),
        ("cross", "tests/qualification/test_signals.py", {"tests/qualification/test_signals.py"}),
        ("cross", "docs/testing.md", set()),
        ("cross", "tools/doctor/main.c", set()),
        ("sanitize", "tools/doctor/main.c", {"tests/cli/doctor", "tests/cli/setup"}),
        ("sanitize", "tools/model/machine.c", {"all"}),
        ("sanitize", "tests/cli/golden/report.html", {"tests/cli"}),
        ("sanitize", "preload/guard/hooks/heap/fast.c", set()),
    ],
)
def test_file_touches_the_tests_that_it_can_break(touched, kind, file, targets):
    assert set(touched.touched_by(kind, file)) == targets


def test_program_touches_the_modules_that_run_it(touched):
    assert "tests/preload/record/test_history.py" not in touched.touched_by("cross", "tests/programs/mmap/map_cases.c")
    assert "tests/preload/mmap/test_map.py" in touched.touched_by("cross", "tests/programs/mmap/map_cases.c")


def test_module_of_the_library_of_tests_touches_those_that_import_it_through_another(touched):
    assert "tests/preload/record/test_history.py" in touched.touched_by("cross", "tests/lib/waiting.py")
    assert "tests/preload/machine/test_set.py" in touched.touched_by("cross", "tests/lib/ledger.py")


@pytest.mark.parametrize("kind", ["cross", "sanitize"])
def test_every_file_of_the_tests_of_a_kind_touches_something(touched, kind):
    for place in touched.FOLDERS[kind]:
        for path in [ROOT / place] if place.endswith(".py") else (ROOT / place).rglob("*.*"):
            if path.is_file() and "__pycache__" not in path.parts:
                assert touched.whole(kind, set(touched.touched_by(kind, str(path.relative_to(ROOT))))), path


def test_whole_folders_stand_for_their_modules(touched, monkeypatch):
    monkeypatch.delenv("ALL", raising=False)
    assert touched.whole("sanitize", {"tests/cli/doctor", "tests/cli/guides/test_readme.py"}) == ["tests/cli/doctor", "tests/cli/guides/test_readme.py"]
    monkeypatch.setenv("ALL", "tests/preload/mmap/test_map.py tests/sim/limits/test_nvml.py")
    assert touched.whole("cross", {"tests/preload", "tests/sim/calls"}) == ["tests/preload/mmap/test_map.py"]


def test_commit_counts_only_where_every_row_of_the_whole_passed(touched, monkeypatch, tmp_path):
    row = "| 5 | {} | 676 | 8 min | {} | x86_64 | 2026-11-23 | none | {} |\n"
    names = touched.ROWS["cross"]
    commits = [touched.git("rev-parse", "--short", f"HEAD~{i}").stdout.strip() for i in range(3)]
    monkeypatch.setattr(touched, "TABLE", tmp_path / "table")

    def green(results):
        (tmp_path / "table").write_text("".join(row.format(name, *result) for name, result in zip(names, results)))
        return touched.last_green("cross")

    good = "1 passed, 0 failed, 0 skipped"
    assert green([(good, commit) for commit in commits]) == commits[2]
    assert green([(good, commits[0]), (good, commits[1])]) is None
    assert green([(good, commits[0]), ("1 passed, 1 failed, 0 skipped", commits[1]), (good, commits[2])]) is None
    assert green([(good, commits[0]), (good, f"{commits[1]}+"), (good, commits[2])]) is None
    assert green([(good, commits[0]), (good, "0123456"), (good, commits[2])]) is None
