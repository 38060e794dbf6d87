"""Mappings: what counts, call by call, and how a refused one looks. The programs map_* check the figures inside."""

import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent / "programs/map_cases.c"
CASES = re.findall(r"^CASE\((\w+)\)", SOURCE.read_text(), re.MULTILINE)
CALLS = ["mmap", "mmap64", "mmap_fixed", "mremap", "mremap_dontunmap", "mprotect", "pkey_mprotect"]


def run(guard, name, *arguments, env=None):
    done = guard.run([guard.build / "tests/programs" / name, *arguments], env=env)
    assert done.returncode == 0, f"{name} {' '.join(arguments)}: {done.returncode}: {done.stdout}{done.stderr}"
    return done


@pytest.mark.parametrize("case", CASES)
def test_case(guard, case):
    run(guard, "map_cases", case)


def test_judged_one_by_one_the_same_counts(guard):
    """LARGE=1: every mapping is judged by itself."""
    for case in CASES:
        run(guard, "map_cases", case, env={"SPARKGUARD_LARGE": "1"})


@pytest.mark.parametrize("call", CALLS)
def test_refused_call_changes_no_mapping(guard, call):
    done = run(guard, "map_refused", call, env={"SPARKGUARD_LIMIT": "32M"})
    name = {"mmap64": "mmap", "mmap_fixed": "mmap", "mremap_dontunmap": "mremap"}.get(call, call)
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"sparkguard: refused {name} of 16.0 MiB: 12.0 MiB left of the 32.0 MiB "), line
    (refusal,) = done.process()["refusals"]
    assert refusal["call"] == name and refusal["domain"] == "mapped" and refusal["reason"] == "limit"
    assert refusal["size_bytes"] == 16 << 20


@pytest.mark.parametrize("call", CALLS)
def test_small_call_refused_in_silence(guard, call):
    """LARGE=1G: all are small, and pass 32 MiB beyond the limit, which is then at 0."""
    done = run(guard, "map_refused", call, env={"SPARKGUARD_LIMIT": "1", "SPARKGUARD_LARGE": "1G"})
    assert done.stderr == ""
    assert done.process()["refused_count"] == 1


def test_report_shows_mapped_domain(guard):
    done = run(guard, "map_refused", "mmap", env={"SPARKGUARD_LIMIT": "32M"})
    mapped = done.process()["domains"]["mapped"]
    assert mapped["live_bytes"] == 26 << 20 and mapped["refused_count"] == 1
    assert mapped["peak_bytes"] == 26 << 20
