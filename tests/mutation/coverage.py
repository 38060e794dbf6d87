"""Which tests reach which lines: what tests/mutation/trace.c has noted, as lines of C.

Each basic block of an instrumented object begins with a call whose return address is its site; addr2line says which line that is. A line
without a site of its own belongs to the block that begins at the nearest line above it.
"""

import bisect
import json
import re
import subprocess
from collections import defaultdict
from pathlib import Path

CALL = re.compile(r"^\s+([0-9a-f]+):\s.*\b(?:call|bl)\b.*<__sanitizer_cov_trace_pc(?:@plt)?>")
ADDRESS = re.compile(r"^\s+([0-9a-f]+):")


def build_id(path):
    told = subprocess.run(["readelf", "-n", path], capture_output=True, text=True, check=False).stdout
    match = re.search(r"Build ID: ([0-9a-f]+)", told)
    return match and match.group(1)


def sites_of(path, root):
    """The object's sites: {address / 4, where trace.c notes it: (file, line)}."""
    addresses, is_next = [], False
    with subprocess.Popen(["objdump", "-d", "--no-show-raw-insn", path], stdout=subprocess.PIPE, text=True) as dump:
        for line in dump.stdout:
            if is_next and (match := ADDRESS.match(line)):
                addresses.append(int(match.group(1), 16))
            is_next = CALL.match(line) is not None
    told = subprocess.run(["addr2line", "-e", path], input="\n".join(f"{address - 1:x}" for address in addresses), capture_output=True, text=True, check=True).stdout.splitlines()
    sites = {}
    for address, place in zip(addresses, told):
        name, _, line = place.partition(" ")[0].rpartition(":")
        if line.isdigit() and int(line) != 0:
            sites[address // 4] = (name.removeprefix(f"{root}/"), int(line))
    return sites


class Coverage:
    """tests: [{"name", "seconds", "outcome"}]; reaching(file, line): the numbers of the tests that reach it."""

    def __init__(self):
        self.tests = []
        self.lines = defaultdict(dict)  # file -> line -> set of tests
        self.sizes = defaultdict(int)  # test -> how many sites it reaches

    def read(self, folder, objects, root):
        """Reads what the tests below that folder have left. objects: the instrumented files."""
        all_sites = {build_id(path): sites_of(path, root) for path in objects}
        for sites in all_sites.values():
            for file, line in sites.values():
                self.lines[file].setdefault(line, set())
        for told in sorted(Path(folder).glob("*/test")):
            number = len(self.tests)
            self.tests.append(json.loads(told.read_text()))
            for reached in told.parent.iterdir():
                sites = all_sites.get(reached.name, {})
                for at in re.finditer(b"\1", reached.read_bytes() if sites else b""):
                    if place := sites.get(at.start()):
                        self.lines[place[0]][place[1]].add(number)
                        self.sizes[number] += 1

    def save(self, path):
        lines = {file: {line: sorted(tests) for line, tests in of.items()} for file, of in self.lines.items()}
        Path(path).write_text(json.dumps({"tests": self.tests, "sizes": self.sizes, "lines": lines}))

    @classmethod
    def load(cls, path):
        self, told = cls(), json.loads(Path(path).read_text())
        self.tests = told["tests"]
        self.sizes = {int(number): size for number, size in told["sizes"].items()}
        self.lines = {file: {int(line): set(tests) for line, tests in of.items()} for file, of in told["lines"].items()}
        return self

    def reaching(self, file, line):
        lines = sorted(self.lines.get(file, {}))
        at = bisect.bisect_right(lines, line)
        return self.lines[file][lines[at - 1]] if at else set()
