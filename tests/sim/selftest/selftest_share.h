/*
 * selftest_share.h - scenarios of selftest.c: memory of other processes, multicast objects. In a file of their own for its
 * length.
 */

struct offer {
    CUipcMemHandle ipc;
    CUmemFabricHandle handle, pool;
    CUmemPoolPtrExportData block;
};

static CUmemoryPool shareable_pool(void)
{
    CUmemoryPool pool;
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .handleTypes = CU_MEM_HANDLE_TYPE_FABRIC,
                            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    OK(cuMemPoolCreate(&pool, &props));
    return pool;
}

static void offer(struct offer *out)
{
    CUdeviceptr pointer;
    CUmemGenericAllocationHandle handle;
    CUmemoryPool pool = shareable_pool();
    OK(cuMemAlloc_v2(&pointer, MIB));
    OK(cuIpcGetMemHandle(&out->ipc, pointer));
    OK(cuMemCreate(&handle, 2 * MIB, &on_device, 0));
    OK(cuMemExportToShareableHandle(&out->handle, handle, CU_MEM_HANDLE_TYPE_FABRIC, 0));
    OK(cuMemAllocFromPoolAsync(&pointer, MIB, pool, NULL));
    OK(cuMemPoolExportPointer(&out->block, pointer));
    FAILS(cuMemPoolExportToShareableHandle(&out->pool, pool, CU_MEM_HANDLE_TYPE_WIN32, 0), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemPoolExportToShareableHandle(&out->pool, pool, CU_MEM_HANDLE_TYPE_FABRIC, 0));
}

/* Another process's, which is in the pipe. */
static void read_offer(struct offer *out)
{
    int pipes[2];
    CHECK(pipe(pipes) == 0);
    pid_t child = fork();
    if (child == 0) {
        start();
        offer(out);
        _exit(write(pipes[1], out, sizeof *out) != sizeof *out);
    }
    CHECK(read(pipes[0], out, sizeof *out) == sizeof *out);
    CHECK(waitpid(child, NULL, 0) == child);
}

static void test_imports(void)
{
    struct offer theirs, own;
    CUdeviceptr one, two, block;
    CUmemGenericAllocationHandle handle;
    CUmemoryPool pool;
    read_offer(&theirs);
    start();
    OK(cuIpcOpenMemHandle(&one, theirs.ipc, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    OK(cuIpcOpenMemHandle_v2(&two, theirs.ipc, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    CHECK(one == two);
    FAILS(cuMemFree_v2(one), CUDA_ERROR_INVALID_VALUE);
    OK(cuIpcCloseMemHandle(one));
    OK(cuIpcCloseMemHandle(one));
    FAILS(cuIpcCloseMemHandle(one), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemImportFromShareableHandle(&handle, &theirs.handle, CU_MEM_HANDLE_TYPE_FABRIC));
    OK(cuMemRelease(handle));
    OK(cuMemPoolImportFromShareableHandle(&pool, &theirs.pool, CU_MEM_HANDLE_TYPE_FABRIC, 0));
    FAILS(cuMemAllocFromPoolAsync(&block, MIB, pool, NULL), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemPoolImportPointer(&block, pool, &theirs.block));
    OK(cuMemFreeAsync(block, NULL));
    OK(cuMemPoolImportPointer(&block, pool, &theirs.block));
    OK(cuMemFree_v2(block));
    OK(cuMemPoolDestroy(pool));
    CHECK(sgsim_live_bytes("total") == 0);
    offer(&own);
    FAILS(cuIpcOpenMemHandle_v2(&one, own.ipc, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), CUDA_ERROR_INVALID_CONTEXT);
    FAILS(cuMemImportFromShareableHandle(&handle, &own.pool, CU_MEM_HANDLE_TYPE_FABRIC), CUDA_ERROR_INVALID_VALUE);
}

/* By a descriptor the import has a number of its own, and holds the memory. */
static void test_descriptors(void)
{
    CUmemGenericAllocationHandle handle, again;
    CUdeviceptr space;
    int file;
    start();
    OK(cuMemCreate(&handle, 2 * MIB, &on_device, 0));
    OK(cuMemExportToShareableHandle(&file, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    OK(cuMemImportFromShareableHandle(&again, (void *)(intptr_t)file, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    CHECK(again != handle && close(file) == 0);
    FAILS(cuMemImportFromShareableHandle(&again, (void *)(intptr_t)file, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
          CUDA_ERROR_INVALID_VALUE);
    OK(cuMemAddressReserve(&space, 2 * MIB, 0, 0, 0));
    OK(cuMemMap(space, 2 * MIB, 0, again, 0));
    OK(cuMemRelease(handle));
    OK(cuMemRelease(again));
    CHECK(sgsim_live_bytes("device") == 2 * MIB);
    OK(cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)space));
    CHECK(handle == again);
    OK(cuMemUnmap(space, 2 * MIB));
    OK(cuMemRelease(again));
    CHECK(sgsim_live_bytes("total") == 0);
}

static void test_multicast(void)
{
    CUmemGenericAllocationHandle team, handle;
    CUmulticastObjectProp prop = {.numDevices = 2, .size = 4 * MIB};
    CUdeviceptr space;
    size_t step;
    start();
    OK(cuMulticastGetGranularity(&step, &prop, CU_MULTICAST_GRANULARITY_MINIMUM));
    CHECK(step == 2 * MIB);
    OK(cuMulticastCreate(&team, &prop));
    OK(cuMulticastAddDevice(team, 0));
    OK(cuMemCreate(&handle, 4 * MIB, &on_device, 0));
    FAILS(cuMulticastBindMem(team, 0, handle, 0, 2 * MIB, 0), CUDA_ERROR_INVALID_VALUE);
    OK(cuMulticastAddDevice(team, 1));
    FAILS(cuMulticastAddDevice(team, 1), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMulticastAddDevice(team, 2), CUDA_ERROR_INVALID_DEVICE);
    OK(cuMulticastBindMem(team, 0, handle, 2 * MIB, 2 * MIB, 0));
    FAILS(cuMulticastBindMem(team, 4 * MIB, handle, 0, 2 * MIB, 0), CUDA_ERROR_INVALID_VALUE);
    FAILS(cuMulticastBindMem(handle, 0, handle, 0, 2 * MIB, 0), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemAddressReserve(&space, 8 * MIB, 0, 0, 0));
    OK(cuMemMap(space, 4 * MIB, 0, handle, 0));
    OK(cuMemMap(space + 4 * MIB, 4 * MIB, 0, team, 0));
    OK(cuMulticastBindAddr(team, 2 * MIB, space, 2 * MIB, 0));
    CHECK(sgsim_live_bytes("total") == 4 * MIB); /* the handle's; a multicast object takes none */
    OK(cuMulticastUnbind(team, 0, 0, 2 * MIB));
    OK(cuMulticastUnbind(team, 0, 2 * MIB, 2 * MIB));
    OK(cuMemUnmap(space, 8 * MIB));
    OK(cuMemRelease(team));
    FAILS(cuMulticastUnbind(team, 0, 0, 2 * MIB), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemRelease(handle));
    CHECK(sgsim_live_bytes("total") == 0);
}
