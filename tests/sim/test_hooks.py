"""No function of the driver is forgotten: the installed toolkit's cuda.h against hooks.def and unhooked.def."""

import os
import re
import subprocess
from pathlib import Path

import pytest
import test_context
import test_refusal

ROOT = Path(__file__).resolve().parents[2]


def header_path():
    home = subprocess.run(["scripts/install-deps", "--cuda-home"], cwd=ROOT, capture_output=True, text=True, check=True)
    return Path(os.environ.get("CUDA_HOME", home.stdout.strip())) / "include" / "cuda.h"


def header():
    return header_path().read_text(errors="replace")


def base_of(symbol):
    return re.sub(r"(_v\d+)?(_ptsz|_ptds)?$", "", symbol)


def symbols(text):
    """Every function the header declares, and the variants its macros can put in a name's place."""
    declared = set(re.findall(r"\bCUDAAPI\s+(cu\w+)\s*\(", text))
    variants = re.findall(r"^\s*#\s*define\s+(cu\w+)\s+(?:__CUDA_API_(PTSZ|PTDS)\((cu\w+)\)|(cu\w+))\s*$", text, re.MULTILINE)
    for name, kind, wrapped, plain in variants:
        if name in declared:
            declared |= {plain} if plain else {wrapped, f"{wrapped}_{kind.lower()}"}
    return declared - set(re.findall(r"\bstatic inline CUresult (cu\w+)\(", text))


def table():
    text = (ROOT / "preload" / "hooks.def").read_text()
    hooked = re.findall(r"^SG_HOOK_DRIVER\((\w+),", text, re.MULTILINE)
    text += (ROOT / "preload" / "unhooked.def").read_text()
    listed = re.findall(r"^SG_UNHOOKED\((\w+), ([A-Z]+)\)$", text, re.MULTILINE)
    assert len(listed) == len(re.findall(r"^SG_UNHOOKED\(", text, re.MULTILINE)), "a line that this test cannot read"
    return hooked, listed


def forgotten(known_symbols, hooked, listed):
    """What is in no list; a hooked function must be hooked in all its variants."""
    hooked_bases, listed_bases = {base_of(symbol) for symbol in hooked}, {base for base, _ in listed}
    missing = {s for s in known_symbols if base_of(s) in hooked_bases and s not in hooked}
    missing |= {s for s in known_symbols if base_of(s) not in hooked_bases | listed_bases}
    return missing


def test_every_function_is_hooked_or_listed():
    assert forgotten(symbols(header()), *table()) == set()


def test_nothing_is_listed_twice_or_for_a_name_that_does_not_exist():
    known = symbols(header())
    hooked, listed = table()
    bases = [base for base, _ in listed]
    assert len(set(bases)) == len(bases) and not set(bases) & {base_of(symbol) for symbol in hooked}
    assert {s for s in hooked if s not in known} == set()
    assert set(bases) - {base_of(symbol) for symbol in known} == set()


def test_reasons_are_those_that_are_explained():
    text = (ROOT / "preload" / "hooks.def").read_text()
    explained = set(re.findall(r"^ \*     ([A-Z]{4,})  ", text, re.MULTILINE))
    assert {why for _, why in table()[1]} <= explained


def test_no_function_is_known_to_take_memory_uncounted():
    assert [base for base, why in table()[1] if why == "HOLE"] == []


@pytest.mark.parametrize("gone", ["cuMemAllocAsync_ptsz", "cuMemAllocManaged", "cuMemPrefetchBatchAsync", "cuModuleLoadData", "cuFuncLoad"])
def test_a_removed_line_is_noticed(gone):
    hooked, listed = table()
    missing = forgotten(symbols(header()), [s for s in hooked if s != gone], [line for line in listed if line[0] != gone])
    assert gone in missing


@pytest.mark.parametrize(
    "lines, missing",
    [
        ("CUresult CUDAAPI cuThingOfWhichNothingIsKnown(int *thing);", {"cuThingOfWhichNothingIsKnown"}),
        ("#define cuMemAlloc cuMemAlloc_v3\n", {"cuMemAlloc_v3"}),
        ("CUresult CUDAAPI cuMemAlloc_v3(CUdeviceptr *dptr, size_t bytesize);", {"cuMemAlloc_v3"}),
        ("#define cuMemCreate __CUDA_API_PTSZ(cuMemCreate)\n", {"cuMemCreate_ptsz"}),
    ],
)
def test_a_new_function_is_noticed(lines, missing):
    """And a new variant of a hooked one, declared or put in its place by a macro."""
    assert forgotten(symbols(f"{header()}\n{lines}\n"), *table()) == missing


def takers():
    """Hooked functions that judge a request, by the wrapper that each is written with."""
    found = set()
    for source in (ROOT / "preload").glob("hook_*.c"):
        for name, body in re.findall(r"^SG_EXPORT CUresult CUDAAPI (\w+)\([^{]*\{\n(.*?)^\}", source.read_text(), re.MULTILINE | re.DOTALL):
            if re.search(r"\b(TAKE\w*|MAKE|UPLOAD|begin|sg_cuda_begin\w*)\(", body):
                found.add(name)
    return found


def test_every_taker_has_a_test_in_which_it_is_refused():
    refused = {call for call in test_refusal.DRIVER if call != "cuMemCreate_host"} | set(test_context.CALLS)
    refused |= {"cuMipmappedArrayCreate"} | {f"cuGraph{what}{kind}" for what in ("Upload", "Launch") for kind in ("", "_ptsz")}
    assert takers() - refused == {"cuCtxSetLimit"}  # what that takes is known behind it
    assert refused <= takers()


def test_proc_address_knows_every_version_that_the_toolkit_names():
    """hooks.def must have them all, or a pointer could get the hook of an older variant with other arguments."""
    names = (header_path().parent / "cudaTypedefs.h").read_text(errors="replace")
    variants = set(re.findall(r"\*PFN_(cu\w+?)_v(\d+)(_ptsz|_ptds)?\)", names))
    rows = re.findall(r"^SG_HOOK_DRIVER\(\w+, (\w+), (\d+), (\d)\)", (ROOT / "preload" / "hooks.def").read_text(), re.MULTILINE)
    known = {(base, version, "_ptsz" if is_ptsz == "1" else "") for base, version, is_ptsz in rows}
    assert {v for v in variants if v[0] in {base for base, *_ in known}} == known
    door = (ROOT / "preload" / "hook_proc_address.c").read_text()
    api = re.search(r"^#define CUDA_VERSION (\d+)", header(), re.MULTILINE)[1]
    assert int(re.search(r"KNOWN_VERSION = (\d+)", door)[1]) >= int(api), "read the new header, then raise it"
