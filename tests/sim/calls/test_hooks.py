"""No function of the driver is forgotten: headers of CUDA 13 and the exports of real drivers against hooks.def and unhooked.def.

Read are the installed toolkit's header and those of later toolkits and drivers in .deps, where scripts/install-deps drivers
(make test-drivers) has put them.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import PRELUDE, REFUSED_CALLS
from contexts import CONTEXT_CALLS
from lib.cuda_header import header, header_path

ROOT = Path(__file__).resolve().parents[3]
LATER = ["13.1", "13.2", "13.3", "13.4", "13.5"]
DRIVERS = {"535": 12020, "550": 12040, "555": 12050}  # and the CUDA version of each


@pytest.fixture(params=["installed", *LATER])
def folder(request):
    """Of a toolkit's headers."""
    if request.param == "installed":
        return header_path().parent
    if not (ROOT / ".deps/headers" / request.param / "cuda.h").exists():
        pytest.skip(f"the headers of CUDA {request.param} are not at hand (make test-drivers)")
    return ROOT / ".deps/headers" / request.param


def text_of(folder):
    return (folder / "cuda.h").read_text(errors="replace")


def version_of(folder):
    return int(re.search(r"^#define CUDA_VERSION (\d+)", text_of(folder), re.MULTILINE)[1])


@pytest.fixture(params=sorted(DRIVERS))
def driver(request):
    """A real driver's library, which finds no GPU here."""
    library = ROOT / ".deps/drivers" / request.param / "libcuda.so.1"
    if not library.exists():
        pytest.skip(f"the library of driver {request.param} is not at hand (make test-drivers)")
    return library


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


def rows(kind, pattern):
    text = (ROOT / "preload" / "guard" / "hooks" / "hooks.def").read_text() + (ROOT / "preload" / "guard" / "hooks" / "unhooked.def").read_text()
    found = re.findall(rf"^{kind}\({pattern}\)$", text, re.MULTILINE)
    assert len(found) == len(re.findall(rf"^{kind}\(", text, re.MULTILINE)), "a line that this test cannot read"
    return found


def beside():
    return rows("SG_UNHOOKED_BESIDE", r"(\w+), ([A-Z]+)")


def table(version=99000):
    """Hooked symbols, and (base, why) of what is not, as a header of that version knows them."""
    hooked = [symbol for symbol, *_ in rows("SG_HOOK_DRIVER", r"(\w+), (\w+), (\d+), (\d)")]
    since = rows("SG_UNHOOKED_SINCE", r"(\d+), (\w+), ([A-Z]+)")
    return hooked, rows("SG_UNHOOKED", r"(\w+), ([A-Z]+)") + [(base, why) for least, base, why in since if int(least) <= version]


def is_of_cuda_h(symbol):
    return base_of(symbol) not in ("cuGLCtxCreate", "cuVDPAUCtxCreate")


def forgotten(known_symbols, hooked, listed):
    """What is in no list; a hooked function must be hooked in all its variants."""
    hooked_bases, listed_bases = {base_of(symbol) for symbol in hooked}, {base for base, _ in listed}
    missing = {s for s in known_symbols if base_of(s) in hooked_bases and s not in hooked}
    missing |= {s for s in known_symbols if base_of(s) not in hooked_bases | listed_bases}
    return missing


def test_every_function_is_hooked_or_listed(folder):
    assert forgotten(symbols(text_of(folder)), *table(version_of(folder))) == set()


def test_nothing_is_listed_twice_or_for_a_name_that_does_not_exist(folder):
    known = symbols(text_of(folder))
    hooked, listed = table(version_of(folder))
    bases = [base for base, _ in listed + beside()]
    assert len(set(bases)) == len(bases) and not set(bases) & {base_of(symbol) for symbol in hooked}
    assert {s for s in hooked if s not in known and is_of_cuda_h(s)} == set()
    assert {base for base, _ in listed} - {base_of(symbol) for symbol in known} == set()


def exports_of(library):
    lines = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout.splitlines()
    return {name for name in (line.split()[-1].split("@")[0] for line in lines) if name.startswith("cu") and not name.startswith("cudbg")}


def test_every_export_of_a_real_driver_is_hooked_or_listed(driver):
    hooked, listed = table()
    exports = exports_of(driver)
    assert len(exports) > 500 and forgotten(exports, hooked, listed + beside()) == set()


def test_every_hooked_function_that_a_real_driver_is_old_enough_for_is_exported(driver):
    of_its_time = {symbol for symbol, _, version, _ in hook_rows() if int(version) <= DRIVERS[driver.parent.name]}
    assert of_its_time - exports_of(driver) == set()


def hook_rows():
    return rows("SG_HOOK_DRIVER", r"(\w+), (\w+), (\d+), (\d)")


ASKS_REAL_DRIVER = """
cuda.cuInit(0)
def ask(base, version, flags):
    p, status = c_void_p(), c_int(-1)
    result = cuda.cuGetProcAddress_v2(base.encode(), byref(p), version, c_uint64(flags), byref(status))
    return result, p.value
for symbol, base, version, is_ptsz in %r:
    try:
        exported = ctypes.cast(getattr(cuda, symbol), c_void_p).value
    except AttributeError:
        continue
    result, address = ask(base, int(version), 2 * int(is_ptsz))
    print(symbol, result, "same" if address == exported else "other")
print("calls", *(cuda.cuMemAlloc_v2(byref(c_uint64()), c_size_t(MIB)), cuda.cuMemGetInfo_v2(byref(c_size_t()), byref(c_size_t()))))
"""


def test_real_drivers_entry_points_lead_to_the_hooks(sim, driver):
    """The driver hands out its exports by name and version: through the guard, both are the hook."""
    prelude = PRELUDE.replace('"libcuda.so.1"', repr(str(driver)))
    prelude = "\n".join(line for line in prelude.splitlines() if not line.startswith("cuda.sgsim"))
    command = [sys.executable, "-S", "-c", prelude + ASKS_REAL_DRIVER % (hook_rows(),)]
    guarded, plain = sim.run(command), sim.unguarded(command)
    assert (guarded.returncode, plain.returncode) == (0, 0), guarded.stderr + plain.stderr
    assert guarded.stdout == plain.stdout and plain.stdout.count("same") > 70


def test_reasons_are_those_that_are_explained():
    text = (ROOT / "preload" / "guard" / "hooks" / "hooks.def").read_text()
    explained = set(re.findall(r"^ \*     ([A-Z]{4,})  ", text, re.MULTILINE))
    assert {why for _, why in table()[1] + beside()} <= explained


def test_no_function_is_known_to_take_memory_uncounted():
    assert [base for base, why in table()[1] + beside() if why == "HOLE"] == []


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
    for source in (ROOT / "preload" / "guard" / "hooks").rglob("*.c"):
        for name, body in re.findall(r"^SG_EXPORT CUresult CUDAAPI (\w+)\([^{]*\{\n(.*?)^\}", source.read_text(), re.MULTILINE | re.DOTALL):
            if re.search(r"\b(ALLOC\w*|CREATE|UPLOAD|REGISTER|begin|sg_cuda_begin\w*)\(", body):
                found.add(name)
    return found


def test_every_taker_has_a_test_in_which_it_is_refused():
    refused = {call for call in REFUSED_CALLS if call != "cuMemCreate_host"} | set(CONTEXT_CALLS)
    refused |= {"cuMipmappedArrayCreate", "cuMemHostRegister", "cuMemHostRegister_v2"} | {f"cuGraph{what}{kind}" for what in ("Upload", "Launch") for kind in ("", "_ptsz")}
    assert takers() - refused == {"cuCtxSetLimit"}  # what that takes is known behind it
    assert refused <= takers()


# Names of what may make memory, or map or pin it.
MAY_TAKE = re.compile(r"Alloc|Create|Register|Import|Retain|OpenMem|Load|Link|Prefetch|Map|Instantiate|Launch|SetLimit|Add\w*Node|MemPool|Reserve|Bind|Clone|Restore|Attach|Enable|Capture")
# Why a function with such a name is not judged, by the word in hooks.def, with a program that makes such calls.
PROGRAMS = {
    "UNANNOUNCED": "PyTorch loads each kernel at its first launch, and no argument says what its code takes",
    "SHARED": "vLLM's all-reduce and PyTorch's CUDA tensors in queues open memory that another process holds, and that counts there",
    "MOVED": "cuda-checkpoint moves memory that counts already",
    "MANAGED": "RAPIDS prefetches managed memory, all of which its allocation was judged for",
    "ADDRESSES": "PyTorch's expandable segments reserve address space of several times the device",
    "PLAN": "torch.cuda.graph records allocations, which the launch takes",
    "HANDLE": "PyTorch's events: the driver's bookkeeping comes from malloc",
}
TAKES_NOTHING = {"REPORT", "COPY", "ORDER"}
HOOKED_AND_NOT_JUDGED = {
    "cuMemPoolCreate": "torch.cuda.MemPool: the first block of the pool is judged",
    "cuMemGetDefaultMemPool": "as all that answer with a pool",
    "cuMemGetMemPool": "as all that answer with a pool",
    "cuMemPoolSetAttribute": "vLLM sets a release threshold, which gives back or keeps",
    "cuMemPoolTrimTo": "gives back",
    "cuMemPoolDestroy": "gives back",
    "cuMemMap": "PyTorch's expandable segments: cuMemCreate was judged",
    "cuMemUnmap": "gives back",
    "cuMemRetainAllocationHandle": "NCCL: the memory is there",
    "cuMemImportFromShareableHandle": "NCCL between processes: the memory is there",
    "cuMemHostUnregister": "gives back",
    "cuGraphInstantiate": "torch.cuda.graph: upload and launch are judged",
    "cuGraphInstantiateWithFlags": "torch.cuda.graph: upload and launch are judged",
    "cuGraphInstantiateWithParams": "torch.cuda.graph: upload and launch are judged",
    "cuCtxAttach": "programs of CUDA 3: the context is there",
}


def test_each_function_that_may_take_memory_is_judged_or_has_a_reason_that_names_a_program(folder):
    _, listed = table(version_of(folder))
    judged, reasons = {base_of(symbol) for symbol in takers()}, dict(listed)
    may_take = {base for base in map(base_of, symbols(text_of(folder))) if MAY_TAKE.search(base)}
    assert len(may_take) > 100 and len(may_take & judged) > 15
    not_judged = {base for base in may_take - judged if reasons.get(base) not in TAKES_NOTHING | set(PROGRAMS)}
    assert not_judged <= set(HOOKED_AND_NOT_JUDGED)


def test_each_allocating_function_of_the_runtime_gives_its_own_name_to_reports():
    """The driver's calls below are judged, whoever makes them."""
    declared = re.findall(r"\b(cuda(?:Malloc|HostAlloc)\w*)\s*\(", (header_path().parent / "cuda_runtime_api.h").read_text(errors="replace"))
    named = rows("SG_HOOK_RUNTIME", r"(\w+)")
    assert len(set(declared)) > 10 and set(declared) <= set(named)


def test_proc_address_knows_every_version_that_the_toolkit_names(folder):
    """hooks.def must have them all, or a pointer could get the hook of an older variant with other arguments."""
    names = "".join((folder / name).read_text(errors="replace") for name in ("cudaTypedefs.h", "cudaGLTypedefs.h", "cudaVDPAUTypedefs.h"))
    variants = set(re.findall(r"\*PFN_(cu\w+?)_v(\d+)(_ptsz|_ptds)?\)", names))
    known = {(base, version, "_ptsz" if is_ptsz == "1" else "") for _, base, version, is_ptsz in hook_rows()}
    assert {v for v in variants if v[0] in {base for base, *_ in known}} == known
    source = (ROOT / "preload" / "guard" / "hooks" / "proc_address.c").read_text()
    assert int(re.search(r"KNOWN_VERSION = (\d+)", source)[1]) >= version_of(folder), "read the new header, then raise it"
