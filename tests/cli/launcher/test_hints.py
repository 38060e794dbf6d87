"""sparkguard --hints: a runtime that sizes its heap by itself sees the limit of its job."""

import re
import shutil

import pytest

SHOWS = 'echo "${GOMEMLIMIT-none} ${JAVA_TOOL_OPTIONS-none}"'


@pytest.mark.parametrize(
    "variables, shown",
    [
        ({}, f"{1800 << 20}B -XX:MaxRAM={2000 << 20}"),
        ({"GOMEMLIMIT": "1GiB"}, f"1GiB -XX:MaxRAM={2000 << 20}"),
        ({"JAVA_TOOL_OPTIONS": "-Xss1m"}, f"{1800 << 20}B -Xss1m -XX:MaxRAM={2000 << 20}"),
        ({"JAVA_TOOL_OPTIONS": "-XX:MaxRAM=1g"}, f"{1800 << 20}B -XX:MaxRAM=1g"),
    ],
)
@pytest.mark.parametrize("limit", ["option", "variable"])
def test_hints_tell_the_limit_and_change_nothing_that_is_set(launcher, limit, variables, shown):
    options, more = (["--limit=2000M"], {}) if limit == "option" else ([], {"SPARKGUARD_LIMIT": "2000M"})
    done = launcher.run("-q", "--hints", *options, "sh", "-c", SHOWS, **variables, **more)
    assert (done.returncode, done.stdout, done.stderr) == (0, shown + "\n", "")


def test_nothing_is_told_unasked_or_without_a_limit(launcher):
    assert launcher.run("-q", "--limit=2000M", "sh", "-c", SHOWS).stdout == "none none\n"
    done = launcher.run("-q", "--hints", "sh", "-c", SHOWS)
    assert (done.returncode, done.stdout) == (0, "none none\n")
    assert done.stderr == "sparkguard: --hints has no effect: the job has no limit (--limit)\n"


def test_a_jvm_sizes_its_heap_by_the_hint(launcher):
    if shutil.which("java") is None:
        pytest.skip("no JVM here")
    done = launcher.run("-q", "--hints", "--limit=2000M", "java", "-XX:+PrintFlagsFinal", "-version")
    assert done.returncode == 0 and re.search(r" MaxHeapSize += 5242880\d\d ", done.stdout), done.stdout[-500:]
