"""What PyTorch's allocator calls between a refused cudaMalloc and torch.OutOfMemoryError, each call not supported in turn.

PyTorch's CUDA runtime takes no simulated driver, so a program makes the same calls in the same order, with the same checks:
c10/cuda/CUDACachingAllocator.cpp and driver_api.cpp, as of 2026. A check that fails is a RuntimeError there.
"""

import subprocess
from pathlib import Path

import pytest
from conftest import GIB, OUT_OF_MEMORY

SIM = Path(__file__).resolve().parents[1]
SPARK = 1217 * GIB // 10 // 4096 * 4096
NOT_SUPPORTED = 801

PROGRAM = """
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "nvml_sim.h"

#define CHECK(condition) do { if (!(condition)) { puts("RuntimeError: " #condition); return 0; } } while (0)
#define FIND(name) memcpy(&name##_, (void *[]){dlsym(nvml, #name)}, sizeof(void *)); CHECK(name##_)

static __typeof__(&nvmlInit_v2) nvmlInit_v2_;
static __typeof__(&nvmlDeviceGetHandleByPciBusId_v2) nvmlDeviceGetHandleByPciBusId_v2_;
static __typeof__(&nvmlDeviceGetNvLinkRemotePciInfo_v2) nvmlDeviceGetNvLinkRemotePciInfo_v2_;
static __typeof__(&nvmlDeviceGetComputeRunningProcesses) nvmlDeviceGetComputeRunningProcesses_;

int main(void)
{
    void *pointer;
    size_t free_bytes, total_bytes;
    struct cudaDeviceProp device;
    if (getenv("FITS"))
        CHECK(cudaMalloc(&pointer, 1 << 20) == cudaSuccess);
    else
        CHECK(cudaMalloc(&pointer, (size_t)1 << 40) == cudaErrorMemoryAllocation);
    cudaGetLastError();
    CHECK(cudaMemGetInfo(&free_bytes, &total_bytes) == cudaSuccess);
    void *nvml = dlopen("libnvidia-ml.so.1", RTLD_LAZY);
    CHECK(nvml);
    FIND(nvmlInit_v2);
    FIND(nvmlDeviceGetHandleByPciBusId_v2);
    FIND(nvmlDeviceGetNvLinkRemotePciInfo_v2);
    FIND(nvmlDeviceGetComputeRunningProcesses);
    CHECK(nvmlInit_v2_() == NVML_SUCCESS);
    CHECK(cudaGetDeviceProperties(&device, 0) == cudaSuccess);
    nvmlDevice_t handle = NULL;
    CHECK(nvmlDeviceGetHandleByPciBusId_v2_("0000000F:01:00.0", &handle) == NVML_SUCCESS);
    nvmlProcessInfo_v1_t processes[8];
    unsigned int count = 8;
    CHECK(nvmlDeviceGetComputeRunningProcesses_(handle, &count, processes) == NVML_SUCCESS);
    printf("OutOfMemoryError: %zu of %zu free, %u processes\\n", free_bytes >> 30, total_bytes >> 30, count);
    return 0;
}
"""


@pytest.fixture
def allocator(sim):
    folder = sim.build / "sim"
    program = sim.compile("allocator", PROGRAM, "-I", SIM / "nvml", *cuda_flags(), folder / "libcudart.so.13", f"-Wl,-rpath,{folder}", "-ldl")

    def run(is_guarded=True, **variables):
        run_program = sim.run if is_guarded else sim.unguarded
        done = run_program([program], **sim.machine(SPARK, SPARK - 20 * GIB), **variables)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return run


def cuda_flags():
    root = SIM.parents[1]
    home = subprocess.run([root / "scripts/install-deps", "--cuda-home"], capture_output=True, text=True, check=True).stdout.strip()
    return ["-isystem", f"{home}/include"]


@pytest.mark.parametrize("unsupported", ["", "nvmlInit_v2", "nvmlDeviceGetHandleByPciBusId_v2", "nvmlDeviceGetComputeRunningProcesses"])
def test_out_of_memory_error_whatever_nvml_supports(allocator, unsupported):
    said = allocator(SGSIM_NVML_UNSUPPORTED=unsupported)
    has_list = unsupported not in ("nvmlInit_v2", "nvmlDeviceGetComputeRunningProcesses")
    assert said == f"OutOfMemoryError: 91 of 91 free, {int(has_list)} processes"


@pytest.mark.parametrize("code", [NOT_SUPPORTED, OUT_OF_MEMORY])
def test_out_of_memory_error_whatever_the_driver_says_is_free(allocator, code):
    assert allocator(SGSIM_FAIL=f"cuMemGetInfo_v2:1:{code}").startswith("OutOfMemoryError: 91 of 91 free")


@pytest.mark.parametrize("variables", [{"FITS": "1"}, {"SPARKGUARD_MEMINFO": "raw"}, {"is_guarded": False, "FITS": "1"}], ids=str)
@pytest.mark.parametrize("unsupported", ["nvmlInit_v2", "nvmlDeviceGetHandleByPciBusId_v2", "nvmlDeviceGetComputeRunningProcesses"])
def test_answers_stay_nvmls_own_where_nothing_was_refused(allocator, unsupported, variables):
    said = allocator(SGSIM_NVML_UNSUPPORTED=unsupported, **variables)
    assert said.startswith(f"RuntimeError: {unsupported}_(")
