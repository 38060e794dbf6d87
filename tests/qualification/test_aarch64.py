"""The library built for aarch64, as a file: what a DGX Spark's linker, kernel and processor find in it.

It is built by `make cross`, or by plain make on such a machine. In the long form its unit tests run, too, emulated elsewhere.
"""

import itertools
import os
import platform
import re
import shlex
import subprocess
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / (os.environ.get("BUILD", "build") if platform.machine() == "aarch64" else "build/aarch64")
LIBRARY = FOLDER / "libsparkguard.so"
CROSS = "" if platform.machine() == "aarch64" else "aarch64-linux-gnu-"
PAGE_MOST = 64 << 10  # the largest pages of Linux on aarch64
EMULATED_DEPS = ROOT / ".deps/aarch64"
QEMU = EMULATED_DEPS / "bin/qemu-aarch64-static"

pytestmark = pytest.mark.skipif(not LIBRARY.exists(), reason="not built for aarch64 (make CROSS=aarch64 library)")


def read(option, *more):
    done = subprocess.run(["readelf", "-W", option, LIBRARY, *more], capture_output=True, text=True, check=True)
    return done.stdout


def disassembly(function):
    """Its instructions, one a line: name, blank, operands."""
    command = [f"{CROSS}objdump", "-d", "--no-show-raw-insn", f"--disassemble={function}", LIBRARY]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return [" ".join(line.split()[1:]) for line in lines if re.match(r" +[0-9a-f]+:\t", line)]


def test_thread_locals_are_reached_without_a_call_that_could_allocate():
    assert "TPREL" in read("-r")
    assert not re.search("TLSDESC|DTPMOD|DTPREL|tls_get_addr", read("-r") + read("-s"))


def test_atomics_choose_by_the_processor_at_run_time():
    outlined = set(re.findall(r"\b__aarch64_(cas|ldadd|swp)\d", read("-s")))
    assert {"cas", "ldadd"} <= outlined
    assert not re.search(r"UND.*__aarch64_", read("-s")), "they come out of the library itself, not out of another's"


def test_branches_and_returns_are_marked_as_protected_in_every_object():
    """The linker marks the library if every object is: ours are. Debian 12's libgcc is not, Ubuntu's is. A marked copy is linked there."""
    objects = sorted((FOLDER / "obj/preload").rglob("*.o"))
    notes = {path.name: subprocess.run(["readelf", "-n", path], capture_output=True, text=True).stdout for path in objects}
    assert [name for name, text in notes.items() if "AArch64 feature: BTI, PAC" not in text] == [] and len(objects) > 50


def test_whatever_is_called_by_its_address_begins_with_a_place_to_branch_to():
    """Else the processor ends the program there: the library is marked. What others give us is in it, too: libgcc, parts of the libc."""
    exported = re.findall(r"([0-9a-f]{16}) +\d+ FUNC +GLOBAL +DEFAULT +\d+ ", read("--dyn-syms"))
    pointed_at = re.findall(r"R_AARCH64_RELATIVE +([0-9a-f]+)", read("-r"))
    command = [f"{CROSS}objdump", "-d", "--no-show-raw-insn", LIBRARY]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    begins = re.findall(r"^([0-9a-f]{16}) <(\w+)>:\n +[0-9a-f]+:\t(.*)", listing, re.MULTILINE)
    called = {int(address, 16) for address in (*exported, *pointed_at)}
    assert len(called & {int(address, 16) for address, _, _ in begins}) > 100
    bad = [name for address, name, first in begins if int(address, 16) in called and not re.match(r"bti\s+j?c|paciasp", first)]
    assert bad == []


def test_segments_are_apart_by_the_largest_page():
    rows = re.findall(r"LOAD +0x\S+ +(0x\S+) +0x\S+ +0x\S+ +(0x\S+) [RWE ]{3} (0x\S+)$", read("-l"), re.MULTILINE)
    loads = [tuple(int(cell, 16) for cell in row) for row in rows]
    assert len(loads) >= 2 and all(alignment >= PAGE_MOST for *_, alignment in loads), loads
    for (begin, size, _), (following, *_) in itertools.pairwise(loads):
        assert (begin + size - 1) // PAGE_MOST < following // PAGE_MOST, "they share a page"


def test_what_is_wiped_at_fork_has_the_largest_page_for_itself():
    addresses = sorted(int(line.split()[1], 16) for line in read("-s").splitlines() if re.search(r" OBJECT .* \d+ ", line))
    (wiped,) = re.findall(r"([0-9a-f]{16}) +(\S+) OBJECT .* sg_wipe$", read("-s"), re.MULTILINE)
    begin, size = int(wiped[0], 16), int(wiped[1], 0)
    assert begin % PAGE_MOST == 0 and size % PAGE_MOST == 0 and size > 0
    assert not [address for address in addresses if begin < address < begin + size]


def test_dlsym_jumps_to_the_libc_with_the_callers_return_address():
    """By a jump, from its last instruction, after both saved registers came back: RTLD_NEXT means what the caller meant."""
    code = disassembly("dlsym")
    calls = [i for i, instruction in enumerate(code) if re.match(r"blr? ", instruction)]
    assert len(calls) == 1 and "sg_dlsym_filter" in code[calls[0]]
    (restored,) = [i for i, instruction in enumerate(code) if instruction.startswith("ldp x29, x30")]
    assert calls[0] < restored and code[-1] == "br x16"
    assert not [i for i in code[restored + 1 :] if re.search(r"\b[xw]30\b|^bl", i)]


@pytest.mark.skipif(platform.machine() == "aarch64" or not QEMU.exists(), reason="asks for qemu-user (scripts/install-deps cross)")
@pytest.mark.parametrize("name", ["segment", "registry", "timeline"])
def test_files_and_mappings_are_whole_pages_of_64_kib(name):
    """Their unit tests in such pages, which qemu 7.2 makes up: its mmap and munmap round to them. What asks for resident pages or
    blocks signals cannot be run so: qemu's mincore goes on telling of 4 KiB each, past the end of the array that it fills in, and
    its rt_sigprocmask refuses pointers into the stack (EFAULT). Later versions have no such pages. All run on a kernel with such pages
    in the long form (test_guest64k.py)."""
    program = FOLDER / "tests/unit" / f"test_{name}"
    assert list((ROOT / "tests/unit").glob(f"*/test_{name}.c")), "the test has another name"
    if not program.exists():
        pytest.skip("not built (make CROSS=aarch64 unit)")
    env = {"QEMU_PAGESIZE": str(PAGE_MOST), "QEMU_LD_PREFIX": "/usr/aarch64-linux-gnu"}
    env["QEMU_SET_ENV"] = f"LD_LIBRARY_PATH={EMULATED_DEPS}/lib"
    done = subprocess.run([QEMU, program], env=os.environ | env, capture_output=True, text=True)
    assert done.returncode == 0 and "[       OK ]" in done.stdout, done.stdout[-4000:]


@pytest.mark.long
@pytest.mark.timeout_seconds(3600)
def test_unit_tests_pass(record_property):
    """With pages of 4 KiB."""
    command = ["env", *shlex.split(os.environ.get("EMULATE", "")), "tests/run", "--unit"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    passed, failed, skipped = re.findall(r"^(\d+) passed, (\d+) failed, (\d+) skipped$", done.stdout, re.MULTILINE)[-1]
    reasons = Counter(re.findall(r"^ +\w+: skipped: (.*)", done.stdout, re.MULTILINE))
    record_property("cases", passed)
    whys = [f"{count}: {why}" for why, count in reasons.most_common()]
    record_property("note", "; ".join([f"unit tests: {passed} passed, {failed} failed, {skipped} skipped", *whys]))
    assert done.returncode == 0, done.stdout[-4000:]
    assert reasons.total() == int(skipped), "one was skipped and does not say why"
