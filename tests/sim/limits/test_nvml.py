"""NVML's memory info says what cuMemGetInfo says, to programs that have not begun with CUDA and to those that never do.

A real GB10 answers NOT_SUPPORTED, so that is the simulated default; SGSIM_NVML_MEMORY=yes is a driver that knows better.
"""

import shutil
import sys
from pathlib import Path

import pytest
from conftest import GIB, MIB, OUT_OF_MEMORY, lists, values

SIM = Path(__file__).resolve().parents[1]

SPARK = 1217 * GIB // 10 // 4096 * 4096
RESERVE = SPARK * 8 // 100
NEAR = 16 * MIB  # what small programs hold and are promised besides

UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, GPU_IS_LOST, VERSION_MISMATCH = 1, 2, 3, 4, 15, 25
V2 = 0x02000028

# As pynvml does it: ctypes, so dlopen with local scope and dlsym on that handle; no driver.
NVML = """
import ctypes, sys
from ctypes import byref, c_size_t, c_uint, c_ulonglong, c_void_p
class Memory(ctypes.Structure):
    _fields_ = [("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong)]
class Memory2(ctypes.Structure):
    _fields_ = [("version", c_uint), ("total", c_ulonglong), ("reserved", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong)]
nvml = ctypes.CDLL("libnvidia-ml.so.1")
def begin(index=0):
    device = c_void_p()
    assert nvml.nvmlInitWithFlags(0) == 0
    assert nvml.nvmlDeviceGetHandleByIndex_v2(index, byref(device)) == 0
    return device
def ask(device):
    memory = Memory(11, 22, 33)
    return nvml.nvmlDeviceGetMemoryInfo(device, byref(memory)), memory
def ask2(device, version=0x02000028):
    memory = Memory2(version, 11, 44, 22, 33)
    return nvml.nvmlDeviceGetMemoryInfo_v2(device, byref(memory)), memory
def say(**pairs):
    for key, value in pairs.items():
        print(key, value, flush=True)
def say_nvml(device, name=""):
    result, memory = ask(device)
    say(**{name + "result": result, name + "total": memory.total, name + "free": memory.free, name + "used": memory.used})
def say_nvml2(device):
    result, memory = ask2(device)
    say(result2=result, total2=memory.total, reserved2=memory.reserved, free2=memory.free, used2=memory.used, version2=memory.version)
def has_driver():
    return int("libcuda.so" in open("/proc/self/maps").read())
"""

# With the driver as well: `sim.script` defines it first. A machine never stands quite still, so both are asked until two
# answers of the one agree around one of the other.
BOTH = (
    NVML
    + """
def ask_both(device):
    for _ in range(100):
        (result, before), cuda_says, (_, after), (result2, v2) = ask(device), info(), ask(device), ask2(device)
        if before.free == after.free == v2.free:
            break
    say(result=result, free=before.free, total=before.total, used=before.used, cuda_free=cuda_says[0], cuda_total=cuda_says[1])
    say(result2=result2, free2=v2.free, total2=v2.total, used2=v2.used, reserved2=v2.reserved)
"""
)


def alone(sim, text, **variables):
    """A script that knows NVML only."""
    return sim.values([sys.executable, "-S", "-c", NVML + text], **variables)


def is_honest(done, free):
    assert (done.result, done.used) == (0, done.total - done.free)
    free = free * 160 // 161  # the driver's lists of its pages come on top of device memory
    assert free - NEAR <= done.free <= free
    assert done.free <= done.total <= SPARK - RESERVE


# ---- unified memory -----------------------------------------------------------------------------------------------


def test_program_without_cuda_gets_numbers_where_nvml_has_none(sim):
    """And is not made to load the driver; what only asks leaves nothing behind."""
    text = "device = begin(); say_nvml(device); say_nvml2(device); say(driver=has_driver())"
    done = alone(sim, text, **sim.machine(SPARK, SPARK - 4 * GIB, 60 * GIB))
    is_honest(done, SPARK - 4 * GIB - RESERVE)
    assert (done.result2, done.version2, done.reserved2, done.used2) == (0, V2, 0, done.total2 - done.free2)
    assert done.total2 == done.total
    assert abs(done.free2 - done.free) <= NEAR
    assert done.driver == 0
    assert done.process is None


def test_unguarded_it_is_not_supported(sim):
    """The simulated library behaves as a GB10's; without this the tests above and below mean nothing."""
    done = sim.unguarded([sys.executable, "-S", "-c", NVML + "say_nvml(begin())"], **sim.machine(SPARK))
    assert values(done.stdout).result == NOT_SUPPORTED


@pytest.mark.parametrize("supported", ["no", "yes"])
def test_nvml_and_cuda_say_the_same_to_the_byte(sim, supported):
    text = BOTH + "start(); device = begin(); ok(take('cuMemAlloc_v2', 10 * GIB)[0]); ask_both(device)"
    done = sim.script(text, SGSIM_NVML_MEMORY=supported, **sim.machine(SPARK, SPARK - 4 * GIB, 60 * GIB))
    is_honest(done, SPARK - 14 * GIB - lists(10 * GIB) - RESERVE)
    assert (done.free, done.total) == (done.cuda_free, done.cuda_total)
    assert (done.result2, done.free2, done.total2, done.used2) == (0, done.free, done.total, done.used)
    assert done.reserved2 == 0


@pytest.mark.parametrize("first, supported", [("nvml", "no"), ("cuda", "no"), ("cuda", "yes")])
def test_total_is_fixed_by_the_first_question_to_either(sim, first, supported):
    order = "say_nvml(device)\nstart()\n" if first == "nvml" else "start()\ninfo()\n"
    text = BOTH + "device = begin()\n" + order + "quiet()\nask_both(device)"
    with sim.tenant(text, SGSIM_NVML_MEMORY=supported, **sim.machine(SPARK)) as program:
        before = program.quiet()
        sim.machine_move("other", 30 * GIB)
        after = program.finish()
    assert after.total == after.cuda_total == after.total2
    assert SPARK - RESERVE - NEAR <= after.total <= SPARK - RESERVE
    assert first == "cuda" or before.total == after.total
    is_honest(after, SPARK - 30 * GIB - RESERVE)


def test_total_is_what_the_driver_has_where_that_is_less(sim):
    """CUDA has begun, so its total is known though NVML has none."""
    done = sim.script(BOTH + "start(); ask_both(begin())", SGSIM_MEMORY="20G", **sim.machine(SPARK))
    assert 20 * GIB - RESERVE - NEAR <= done.total <= 20 * GIB - RESERVE
    assert done.total == done.cuda_total


def test_numbers_of_a_driver_that_has_some_stay_until_cuda_tells(sim):
    """A device that answers for itself may be a discrete card; only CUDA knows, and is not begun for that."""
    text = BOTH + "device = begin(); say_nvml(device, 'first_'); start(); ask_both(device)"
    done = sim.script(text, SGSIM_NVML_MEMORY="yes", **sim.machine(SPARK, SPARK - 5 * GIB, 60 * GIB))
    assert (done.first_result, done.first_total, done.first_free) == (0, SPARK, SPARK - 65 * GIB)
    is_honest(done, SPARK - 5 * GIB - RESERVE)


def test_what_is_said_to_be_free_is_granted_and_no_more(sim):
    text = BOTH + "start(); device = begin(); free = ask(device)[1].free; first = take('cuMemAlloc_v2', free)[0]\nsay(exact=first, more=take('cuMemAlloc_v2', 80 * MIB)[0])"
    done = sim.script(text, SGSIM_LISTS=24, **sim.machine(SPARK))
    assert (done.exact, done.more) == (0, OUT_OF_MEMORY)


def test_limit_bounds_what_is_said(sim):
    """The limit is the job's: another process of it holds 10 of the 30 GiB."""
    machine = sim.machine(SPARK) | {"SPARKGUARD_LIMIT": "30G", "SPARKGUARD_JOB": "pair"}
    with sim.tenant("start(); ok(take('cuMemAlloc_v2', 10 * GIB)[0]); quiet()", **machine) as other:
        other.quiet()
        done = alone(sim, "say_nvml(begin())", **machine)
        other.finish()
    assert done.result == 0
    assert 20 * GIB - NEAR <= done.free <= 20 * GIB
    assert 30 * GIB - NEAR <= done.total <= 30 * GIB


def test_near_the_wall_a_known_device_is_not_asked(sim):
    """Where its driver can hang. At the first question it is not known yet and must be asked."""
    text = "device = begin(); say_nvml(device); ask2(device); quiet()\nsay_nvml(device, 'late_'); result, memory = ask2(device)\nsay(late2=result, late_total2=memory.total, late_reserved2=memory.reserved, asked=nvml.sgsim_nvml_asked(), wrong=ask2(device, 1)[0])"
    with sim.tenant(NVML + text, **sim.machine(SPARK)) as program:
        first = program.quiet()
        sim.machine_move("other", SPARK - GIB)
        done = program.finish()
    assert first.result == 0
    assert (done.late_result, done.late_free, done.late_total) == (0, 0, first.total)
    assert (done.late2, done.late_total2, done.late_reserved2) == (0, first.total, 0)
    assert (done.asked, done.wrong) == (2, VERSION_MISMATCH)


@pytest.mark.parametrize("entry", ["linked", "local"])
def test_linked_client_gets_the_same(sim, entry):
    """Bound to our export: in the program itself, and in a plugin that brings NVML along in a scope of its own."""
    flags = "-I", str(SIM / "nvml"), f"-Wl,-rpath,{sim.build / 'sim'}", str(sim.build / "sim" / "libnvidia-ml.so.1")
    if entry == "linked":
        program = sim.compile("client", CLIENT + "int main(void) { return client(); }\n", *flags)
    else:
        plugin = sim.compile("plugin.so", CLIENT, "-shared", "-fPIC", *flags)
        program = sim.compile("host", HOST, "-ldl", f'-DPLUGIN="{plugin}"')
    done = sim.values([program], **sim.machine(SPARK, SPARK - 4 * GIB))
    is_honest(done, SPARK - 4 * GIB - RESERVE)
    assert (done.result2, done.total2, done.reserved2) == (0, done.total, 0)


CLIENT = """
#include <stdio.h>
#include "nvml_sim.h"
int client(void)
{
    nvmlDevice_t device;
    nvmlMemory_t memory;
    nvmlMemory_v2_t memory2 = {.version = nvmlMemory_v2, .reserved = 44};
    if (nvmlInit_v2() || nvmlDeviceGetHandleByIndex_v2(0, &device)) return 1;
    printf("result %d\\n", nvmlDeviceGetMemoryInfo(device, &memory));
    printf("total %llu\\nfree %llu\\nused %llu\\n", memory.total, memory.free, memory.used);
    printf("result2 %d\\n", nvmlDeviceGetMemoryInfo_v2(device, &memory2));
    printf("total2 %llu\\nreserved2 %llu\\n", memory2.total, memory2.reserved);
    return nvmlShutdown();
}
"""
HOST = """
#include <dlfcn.h>
#include <string.h>
int main(void)
{
    void *plugin = dlopen(PLUGIN, RTLD_NOW | RTLD_LOCAL), *found = plugin ? dlsym(plugin, "client") : 0;
    int (*client)(void);
    memcpy(&client, &found, sizeof client);
    return found ? client() : 1;
}
"""


def test_library_closed_and_opened_again_answers_as_before(sim):
    """Where it was, something else is by then."""
    text = """
first = begin(); say_nvml(first)
libc = ctypes.CDLL(None)
libc.dlclose.argtypes = [c_void_p]
assert nvml.nvmlShutdown() == 0 and libc.dlclose(nvml._handle) == 0
for _ in range(256):
    libc.mmap(None, c_size_t(1 << 14), 0, 0x22, -1, 0) # PROT_NONE, private, anonymous: fills the gap
nvml = ctypes.CDLL("libnvidia-ml.so.1")
result, memory = ask(begin())
say(again=result, again_total=memory.total)
"""
    done = alone(sim, text, **sim.machine(SPARK))
    assert (done.again, done.again_total) == (0, done.total)


def test_second_library_of_that_kind_is_not_taken_for_the_first(sim):
    """One that wraps another: were both forwarded to the wrapper, it would call itself for ever."""
    shutil.copy(sim.build / "sim" / "libnvidia-ml.so.1", sim.scratch / "real-nvml.so")
    wrapper = sim.compile("wrapper.so", WRAPPER, "-shared", "-fPIC", "-ldl", f'-DREAL="{sim.scratch / "real-nvml.so"}"')
    text = f"""
wrapper, memory = ctypes.CDLL({str(wrapper)!r}), Memory()
say(result=wrapper.nvmlDeviceGetMemoryInfo(c_void_p(), byref(memory)), calls=wrapper.calls())
"""
    done = sim.values([sys.executable, "-S", "-c", NVML.replace('nvml = ctypes.CDLL("libnvidia-ml.so.1")', "") + text])
    assert (done.result, done.calls) == (UNINITIALIZED, 1)


def test_library_preloaded_behind_us_answers_linked_clients(sim):
    """Shims that give a Spark's NVML numbers of their own: what the program would have bound to without us."""
    shim = sim.compile("shim.so", SHIM, "-shared", "-fPIC")
    flags = "-I", str(SIM / "nvml"), f"-Wl,-rpath,{sim.build / 'sim'}", str(sim.build / "sim" / "libnvidia-ml.so.1")
    program = sim.compile("client", CLIENT + "int main(void) { return client(); }\n", *flags)
    environment = sim.env | sim.machine(SPARK) | {"SPARKGUARD_MEMINFO": "raw"}
    done = sim.guard.run([program], env=environment, preload=[sim.guard.library, shim])
    answer = values(done.stdout)
    assert (answer.result, answer.total, answer.free, answer.used) == (0, 5, 6, 7), done.stderr
    assert answer.result2 == NOT_SUPPORTED


SHIM = """
int nvmlDeviceGetMemoryInfo(void *device, unsigned long long *memory)
{
    (void)device;
    memory[0] = 5, memory[1] = 6, memory[2] = 7;
    return 0;
}
"""

WRAPPER = """
#include <dlfcn.h>
#include <string.h>
static int count;
int calls(void) { return count; }
int nvmlDeviceGetMemoryInfo(void *device, void *memory)
{
    int (*next)(void *, void *);
    void *found = dlsym(dlopen(REAL, RTLD_NOW | RTLD_LOCAL), "nvmlDeviceGetMemoryInfo");
    memcpy(&next, &found, sizeof next);
    return count++ < 5 ? next(device, memory) : -1;
}
"""


# ---- what stays as it is ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("begins", ["", "start(); "])
@pytest.mark.parametrize("supported", ["no", "yes"])
@pytest.mark.parametrize(
    "variables", [{"SPARKGUARD_MEMINFO": "raw"}, {"SPARKGUARD_MODE": "observe"}, {"SPARKGUARD_DISABLE": "1"}, {"SPARKGUARD_UNIFIED": "off"}]
)
def test_answers_stay_nvmls_own(sim, variables, supported, begins):
    """With CUDA, which tells what the device is, and without."""
    text = NVML + "device = begin(); ask(device); " + begins + "say_nvml(device); say_nvml2(device)"
    machine = sim.machine(SPARK, SPARK - 5 * GIB, 60 * GIB)
    done = sim.script(text, SGSIM_NVML_MEMORY=supported, **variables, **machine)
    if supported == "no":
        assert (done.result, done.total, done.free, done.used) == (NOT_SUPPORTED, 11, 22, 33)
        assert (done.result2, done.total2, done.reserved2, done.free2, done.used2) == (NOT_SUPPORTED, 11, 44, 22, 33)
    else:
        assert (done.result, done.total, done.free) == (0, SPARK, SPARK - 65 * GIB)
        assert (done.result2, done.total2, done.reserved2) == (0, SPARK, 300 * MIB)


@pytest.mark.parametrize("begins", ["", "start()"])
def test_every_other_error_stays_and_outputs_with_it(sim, begins):
    text = NVML + begins + """
device = c_void_p()
say(uninitialised=ask(device)[0], uninitialised2=ask2(device)[0])
device = begin()
say(nobody=ask(c_void_p(4096))[0], nobody2=ask2(None)[0])
say(nowhere=nvml.nvmlDeviceGetMemoryInfo(device, None), nowhere2=nvml.nvmlDeviceGetMemoryInfo_v2(device, None))
result, memory = ask2(device, 0x01000028)
say(version=result, v_total=memory.total, v_reserved=memory.reserved, v_free=memory.free, v_used=memory.used)
for name, error in ("permission", 4), ("lost", 15), ("memory", 20), ("unknown", 999):
    nvml.sgsim_nvml_fail(error)
    result, memory = ask(device)
    result2, memory2 = ask2(device)
    say(**{name: result, name + "2": result2})
    assert (memory.total, memory.free, memory.used, memory2.total, memory2.reserved) == (11, 22, 33, 11, 44)
nvml.sgsim_nvml_fail(0)
say(after=ask(device)[0], after2=ask2(device)[0])
nvml.nvmlShutdown()
say(shut=ask(device)[0], shut2=ask2(device)[0])
"""
    done = sim.script(text, **sim.machine(SPARK))
    assert (done.uninitialised, done.uninitialised2) == (UNINITIALIZED, UNINITIALIZED)
    assert (done.nobody, done.nobody2, done.nowhere, done.nowhere2) == (INVALID_ARGUMENT,) * 4
    assert (done.version, done.v_total, done.v_reserved, done.v_free, done.v_used) == (VERSION_MISMATCH, 11, 44, 22, 33)
    assert (done.permission, done.permission2, done.lost, done.lost2) == (NO_PERMISSION, NO_PERMISSION, GPU_IS_LOST, GPU_IS_LOST)
    assert (done.memory, done.memory2, done.unknown, done.unknown2) == (20, 20, 999, 999)
    assert (done.after, done.after2, done.shut, done.shut2) == (0, 0, UNINITIALIZED, UNINITIALIZED)


def test_discrete_card_says_its_own(sim):
    text = NVML + "device = begin(); say_nvml(device, 'first_'); start(); ok(take('cuMemAlloc_v2', GIB)[0]); say_nvml(device); say_nvml2(device)"
    done = sim.script(text, SGSIM_KIND="discrete", **sim.machine(4 * GIB))
    assert (done.first_total, done.first_free) == (24 * GIB, 24 * GIB)
    assert (done.total, done.free, done.used) == (24 * GIB, 23 * GIB, GIB)
    assert (done.reserved2, done.free2) == (300 * MIB, 23 * GIB - 300 * MIB)


def test_discrete_card_without_memory_info_stays_without(sim):
    """What CUDA says of the device outweighs what NVML does not say."""
    text = NVML + "device = begin(); start(); say_nvml(device)"
    done = sim.script(text, SGSIM_KIND="discrete", SGSIM_NVML_MEMORY="no", **sim.machine(4 * GIB))
    assert (done.result, done.total, done.free, done.used) == (NOT_SUPPORTED, 11, 22, 33)


def test_unified_on_makes_a_discrete_card_the_machines(sim):
    text = BOTH + "device = begin(); say_nvml(device, 'first_'); start(); ask_both(device)"
    done = sim.script(text, SGSIM_KIND="discrete", SPARKGUARD_UNIFIED="on", **sim.machine(16 * GIB))
    free = (16 * GIB - 16 * GIB * 8 // 100) * 160 // 161  # with the driver's lists
    assert done.first_result == 0
    assert free - NEAR <= done.first_free <= free
    assert (done.free, done.total) == (done.cuda_free, done.cuda_total)
    assert done.total == done.first_total


def test_second_device_is_told_by_its_own_uuid(sim):
    """CUDA is shown the second one only, NVML shows both: the other stays what NVML says of it."""
    text = BOTH + "one, two = begin(0), begin(1); start(); say_nvml(one); say_nvml(two, 'second_')"
    variables = {"SGSIM_DEVICES": 2, "CUDA_VISIBLE_DEVICES": "1", "SGSIM_NVML_MEMORY": "yes"}
    done = sim.script(text, **variables, **sim.machine(SPARK, SPARK - 4 * GIB, 60 * GIB))
    assert (done.result, done.total) == (0, SPARK)
    free = (SPARK - 4 * GIB - RESERVE) * 160 // 161  # with the driver's lists
    assert free - NEAR <= done.second_free <= free


# ---- no NVML ------------------------------------------------------------------------------------------------------

PROBES = """
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
int nvmlInit_v2(void) __attribute__((weak));
int nvmlDeviceGetMemoryInfo(void *, void *) __attribute__((weak));
int nvmlDeviceGetMemoryInfo_v2(void *, void *) __attribute__((weak));
static int found(void *handle, const char *name)
{
    dlerror();
    void *function = dlsym(handle, name);
    const char *error = dlerror();
    if (!function && (!error || !strstr(error, name))) printf("silent %s\\n", name);
    return function != NULL;
}
int main(int argc, char **argv)
{
    char memory[64] = "untouched";
    (void)argv;
    void *nvml = argc > 1 ? dlopen("libnvidia-ml.so.1", RTLD_NOW | (argc > 2 ? RTLD_GLOBAL : RTLD_LOCAL)) : NULL;
    printf("opened %d\\n", nvml != NULL);
    printf("init %d\\n", nvmlInit_v2 != NULL);
    if (!nvml && nvmlDeviceGetMemoryInfo) printf("v1 %d\\n", nvmlDeviceGetMemoryInfo(memory, memory));
    if (!nvml && nvmlDeviceGetMemoryInfo_v2) printf("v2 %d\\n", nvmlDeviceGetMemoryInfo_v2(memory, memory));
    printf("memory %s\\nloaded %d\\n", memory, dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_NOLOAD) != NULL);
    printf("global %d\\n", found(RTLD_DEFAULT, "nvmlDeviceGetMemoryInfo") + found(RTLD_DEFAULT, "nvmlDeviceGetMemoryInfo_v2"));
    printf("self %d\\n", found(dlopen(NULL, RTLD_LAZY), "nvmlDeviceGetMemoryInfo"));
    if (nvml) printf("handle %d\\n", found(nvml, "nvmlDeviceGetMemoryInfo"));
    if (nvml) printf("none %d\\n", found(nvml, "nvmlDeviceGetMemoryInfoX"));
    return 0;
}
"""


def probe(sim, *arguments, **variables):
    """What the probes find, which but for weak symbols must be what they find without the guard."""
    program = sim.compile("probes", PROBES, "-ldl", "-w")
    done, plain = sim.run([program, *arguments], **variables), sim.unguarded([program, *arguments], **variables)
    assert (done.returncode, done.stderr) == (0, "")
    ours, theirs = values(done.stdout), values(plain.stdout)
    weak = [vars(ours).pop(name, None) for name in ("v1", "v2")]
    assert ours == theirs
    assert done.report()["jobs"] == []
    return ours, weak


@pytest.mark.parametrize("variables", [{"LD_LIBRARY_PATH": "/nonexistent"}, {}])
def test_without_nvml_probes_find_nothing_and_calls_answer_as_uninitialised(sim, variables):
    """Not there at all, or there and not loaded: asking does not load it."""
    answer, weak = probe(sim, **variables)
    assert (answer.opened, answer.init, getattr(answer, "global"), answer.self, answer.memory) == (0, 0, 0, 0, "untouched")
    assert answer.loaded == 0
    assert weak == [UNINITIALIZED, UNINITIALIZED], "a weak reference binds to our export: no dlsym decides that"


@pytest.mark.parametrize("scope", ["local", "global"])
def test_probes_find_nvml_in_the_scope_it_was_opened_in(sim, scope):
    answer, _ = probe(sim, *(["local"] if scope == "local" else ["global", "global"]))
    assert (answer.opened, answer.handle, answer.none) == (1, 1, 0)
    assert (getattr(answer, "global"), answer.self) == ((0, 0) if scope == "local" else (2, 1))


def test_names_that_only_begin_like_nvml_pass_untouched(sim):
    library = sim.compile("libtiny.so", "int nvmlDeviceGetMemoryInf(void) { return 1; } int nv(void) { return 2; } int nvtx(void) { return 3; }", "-shared", "-fPIC")
    done = sim.script(f"tiny = ctypes.CDLL({str(library)!r})\nsay(answers=tiny.nvmlDeviceGetMemoryInf() * 100 + tiny.nv() * 10 + tiny.nvtx())")
    assert done.answers == 123
