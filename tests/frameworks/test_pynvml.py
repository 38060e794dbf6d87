"""NVIDIA's own Python client of NVML (nvidia-ml-py, imported as pynvml) under the guard, where a GB10's NVML has no memory
info. How the numbers come about is tested in tests/sim/limits/test_nvml.py; here, that the real client takes them."""

GIB = 1 << 30
SPARK = 1217 * GIB // 10 // 4096 * 4096
RESERVE = SPARK * 8 // 100
NEAR = 48 * (1 << 20)  # what a whole Python holds and is promised besides

CLIENT = """
import pynvml
def say(**pairs):
    for key, value in pairs.items():
        print(key, value, flush=True)
def ask(device, version=None):
    '''The answer, or the name of the error it raises.'''
    try:
        return pynvml.nvmlDeviceGetMemoryInfo(device, version=version)
    except pynvml.NVMLError as error:
        return type(error).__name__
pynvml.nvmlInit()
device = pynvml.nvmlDeviceGetHandleByIndex(0)
"""
SAY = """
v1, v2 = ask(device), ask(device, pynvml.nvmlMemory_v2)
say(total=v1.total, free=v1.free, used=v1.used)
say(total2=v2.total, free2=v2.free, used2=v2.used, reserved2=v2.reserved, version2=v2.version)
"""


def test_it_gets_honest_numbers_without_cuda(framework):
    text = CLIENT + SAY + "say(name=pynvml.nvmlDeviceGetName(device), driver=int('libcuda.so' in open('/proc/self/maps').read()))"
    done = framework(text, **framework.sim.machine(SPARK, SPARK - 4 * GIB, 60 * GIB))
    free = SPARK - 4 * GIB - RESERVE
    assert free - NEAR <= done.free <= done.total <= free
    assert abs(done.free2 - done.free) <= NEAR
    assert (done.total2, done.reserved2, done.version2) == (done.total, 0, 0x02000028)
    assert (done.used, done.used2) == (done.total - done.free, done.total2 - done.free2)
    assert (done.name, done.driver) == ("NVIDIA GB10 (simulated)", 0)


def test_limit_bounds_what_it_gets(framework):
    done = framework(CLIENT + SAY, SPARKGUARD_LIMIT="30G", **framework.sim.machine(SPARK))
    assert 30 * GIB - NEAR <= done.free <= done.total <= 30 * GIB


def test_raw_raises_what_a_spark_raises(framework):
    text = CLIENT + "say(one=ask(device), two=ask(device, pynvml.nvmlMemory_v2))"
    done = framework(text, SPARKGUARD_MEMINFO="raw", **framework.sim.machine(SPARK))
    assert (done.one, done.two) == ("NVMLError_NotSupported", "NVMLError_NotSupported")


def test_its_other_errors_are_raised(framework):
    text = CLIENT + "say(version=ask(device, 1)); pynvml.nvmlShutdown(); say(shut=ask(device)); pynvml.nvmlInit(); say(again=ask(device).total)"
    done = framework(text, **framework.sim.machine(SPARK))
    assert (done.version, done.shut) == ("NVMLError_ArgumentVersionMismatch", "NVMLError_Uninitialized")
    assert done.again > 100 * GIB


def test_discrete_card_keeps_its_numbers(framework):
    done = framework(CLIENT + SAY, SGSIM_KIND="discrete", **framework.sim.machine(4 * GIB))
    assert (done.total, done.free, done.total2, done.reserved2) == (24 * GIB, 24 * GIB, 24 * GIB, 300 << 20)
