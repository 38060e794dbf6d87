"""docs/everyday.md: each of its commands is run in this order, and prints what it shows there, apart from figures."""

import os
import re
import subprocess
from pathlib import Path

import launching

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs/everyday.md"
OF_THIS_MACHINE = re.compile(r"^(machine |\[|█ guarded|  [╱╳·▒▓] |one process in depth:|usable )")


def environment(tools, folder):
    env = {"HOME": str(folder), "LC_ALL": "C.UTF-8", "TZ": "UTC", "PATH": f"{tools}:/usr/bin:/bin", "LD_LIBRARY_PATH": str(tools)}
    env["ASAN_OPTIONS"] = "verify_asan_link_order=0"  # tools of a sanitizer build run programs under the preload
    return {**env, "PYTHONPATH": str(ROOT / "tools/python"), "SPARKGUARD_DIR": str(folder / "live"), "SPARKGUARD_HISTORY": str(folder / "history")}


def without_others(text):
    """Without the programs of this machine that run without the guard."""
    return re.sub(r"\n *PID UNGUARDED(.|\n)*?\n(?=\n|\Z)", "", text)


def shown_of_all(text):
    """Words without figures, and without what depends on this machine: its memory, and the libraries of its Python."""
    lines = [line for line in without_others(text).splitlines() if not OF_THIS_MACHINE.match(line) and "+0x" not in line]
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d|\d\d:\d\d:\d\d", "TIME", "\n".join(lines))
    text = re.sub(r"[█▉▊▋▌▍▎▏]+", "BAR", re.sub(r"job \d{8}T\d{6}-\d+", "job NAME", text))
    text = re.sub(r"\S*/python3\S*", "python3", text)
    text = re.sub(r"[\d.]+ (?:[KMG]i)?B\b|\b[\d.]+[KMG]\b|\b\d+ %|\b[\d.]+ (?:s|ms)\b|\b\d+\b", "N", text)
    return re.sub(r"\s+", " ", text).strip()


def test_each_command_prints_what_the_page_shows(tools, tmp_path):
    lines, written, differences, pid = PAGE.read_text().splitlines(), [], [], "0"
    program = re.search(r"is refused:\n\n((?:    .*\n|\n)+)", PAGE.read_text())[1]
    (tmp_path / "train.py").write_text(re.sub("^    ", "", program, flags=re.MULTILINE))
    while lines:
        line = lines.pop(0)
        if not line.startswith("    $ "):
            written.append(line)
            continue
        expected = []
        while lines and re.match(r"    (?!\$ )|$", lines[0]):
            expected.append(lines.pop(0)[4:])
        is_last = expected[-1:] == [""]  # a blank line ends the output, and not each has one
        command = re.sub(r"^(sparkguard-report) \d+$", rf"\1 {pid}", line[6:])
        if "--claim" in command and launching.replaces_malloc(tools):  # the launcher itself runs under the library
            written += [line, *(("    " + piece).rstrip() for piece in expected)]
            continue
        done = subprocess.run(
            ["bash", "-c", command], cwd=tmp_path, env=environment(tools, tmp_path), timeout=300,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        assert done.returncode == 0, (command, done.stdout)
        pid = (re.findall(r"see sparkguard-report (\d+)$", done.stdout, re.MULTILINE) or [pid])[-1]
        if shown_of_all(done.stdout) != shown_of_all("\n".join(expected)):
            differences.append((command, shown_of_all("\n".join(expected)), shown_of_all(done.stdout)))
        written += ["    $ " + command, *(("    " + piece).rstrip() for piece in without_others(done.stdout).rstrip().splitlines()), *([""] if is_last else [])]
    if os.environ.get("UPDATE_GOLDEN"):
        PAGE.write_text("\n".join(written) + "\n")
    assert differences == []
    assert len([line for line in written if line.startswith("    $ ")]) == 10
    assert (tmp_path / "train.svg").read_text().endswith("</svg>\n") and "<html" in (tmp_path / "train.html").read_text()
