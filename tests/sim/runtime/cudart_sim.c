/*
 * cudart_sim.c - a stand-in for the CUDA 13 runtime, built twice: libcudart.so.13 with versioned
 * symbols, and a static twin, as nvcc links it. The real runtime refuses a driver it does not trust;
 * this one takes any, so the simulated driver can be reached the way programs reach a real one.
 *
 * It reaches the driver as the real runtime was seen to: nothing at load; at the first call
 * dlopen("libcuda.so.1", RTLD_NOW), one dlsym for cuGetProcAddress_v2, a probe with the name "", then one
 * cuGetProcAddress_v2(base, &pfn, introduced-in version, flags 0 or 2, NULL) for each function needed. One
 * allocation is exactly one driver call. Without a usable driver: cudaErrorInsufficientDriver.
 *
 * Last errors are per thread: a failure sets it, cudaGetLastError takes it away, success leaves it alone, and
 * out of memory does not stick: the next call that fits succeeds.
 */
#define _GNU_SOURCE
#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>

#define MAX_DEVICES 16
#define LEGACY 0U
#define PER_THREAD 2U /* CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM */

/* X(field, base name, version, PFN type's end, flags): all this runtime wants of the driver. */
#define DRIVER_FUNCTIONS(X) \
    X(GetProcAddress4, cuGetProcAddress, 11030, v11030, LEGACY) \
    X(GetProcAddress5, cuGetProcAddress, 12000, v12000, LEGACY) \
    X(Init, cuInit, 2000, v2000, LEGACY) \
    X(DriverGetVersion, cuDriverGetVersion, 2020, v2020, LEGACY) \
    X(DeviceGetCount, cuDeviceGetCount, 2000, v2000, LEGACY) \
    X(DeviceGetName, cuDeviceGetName, 2000, v2000, LEGACY) \
    X(DeviceGetAttribute, cuDeviceGetAttribute, 2000, v2000, LEGACY) \
    X(DeviceTotalMem, cuDeviceTotalMem, 3020, v3020, LEGACY) \
    X(PrimaryCtxRetain, cuDevicePrimaryCtxRetain, 7000, v7000, LEGACY) \
    X(PrimaryCtxReset, cuDevicePrimaryCtxReset, 11000, v11000, LEGACY) \
    X(CtxSetCurrent, cuCtxSetCurrent, 4000, v4000, LEGACY) \
    X(CtxSynchronize, cuCtxSynchronize, 2000, v2000, LEGACY) \
    X(MemGetInfo, cuMemGetInfo, 3020, v3020, LEGACY) \
    X(MemAlloc, cuMemAlloc, 3020, v3020, LEGACY) \
    X(MemAllocPitch, cuMemAllocPitch, 3020, v3020, LEGACY) \
    X(MemAllocManaged, cuMemAllocManaged, 6000, v6000, LEGACY) \
    X(MemFree, cuMemFree, 3020, v3020, LEGACY) \
    X(MemHostAlloc, cuMemHostAlloc, 2020, v2020, LEGACY) \
    X(MemFreeHost, cuMemFreeHost, 2000, v2000, LEGACY) \
    X(MemHostRegister, cuMemHostRegister, 6050, v6050, LEGACY) \
    X(MemHostUnregister, cuMemHostUnregister, 4000, v4000, LEGACY) \
    X(Array3DCreate, cuArray3DCreate, 3020, v3020, LEGACY) \
    X(ArrayDestroy, cuArrayDestroy, 2000, v2000, LEGACY) \
    X(MipmappedArrayCreate, cuMipmappedArrayCreate, 5000, v5000, LEGACY) \
    X(MipmappedArrayDestroy, cuMipmappedArrayDestroy, 5000, v5000, LEGACY) \
    X(Memcpy, cuMemcpy, 4000, v4000, LEGACY) \
    X(MemcpyHtoD, cuMemcpyHtoD, 3020, v3020, LEGACY) \
    X(MemcpyDtoH, cuMemcpyDtoH, 3020, v3020, LEGACY) \
    X(MemcpyDtoD, cuMemcpyDtoD, 3020, v3020, LEGACY) \
    X(MemsetD8, cuMemsetD8, 3020, v3020, LEGACY) \
    X(StreamCreate, cuStreamCreate, 2000, v2000, LEGACY) \
    X(StreamDestroy, cuStreamDestroy, 4000, v4000, LEGACY) \
    X(StreamSynchronize, cuStreamSynchronize, 2000, v2000, LEGACY) \
    X(StreamSynchronize_ptsz, cuStreamSynchronize, 7000, v7000_ptsz, PER_THREAD) \
    X(MemAllocAsync, cuMemAllocAsync, 11020, v11020, LEGACY) \
    X(MemAllocAsync_ptsz, cuMemAllocAsync, 11020, v11020_ptsz, PER_THREAD) \
    X(MemAllocFromPoolAsync, cuMemAllocFromPoolAsync, 11020, v11020, LEGACY) \
    X(MemAllocFromPoolAsync_ptsz, cuMemAllocFromPoolAsync, 11020, v11020_ptsz, PER_THREAD) \
    X(MemFreeAsync, cuMemFreeAsync, 11020, v11020, LEGACY) \
    X(MemFreeAsync_ptsz, cuMemFreeAsync, 11020, v11020_ptsz, PER_THREAD) \
    X(DeviceGetDefaultMemPool, cuDeviceGetDefaultMemPool, 11020, v11020, LEGACY) \
    X(DeviceGetMemPool, cuDeviceGetMemPool, 11020, v11020, LEGACY) \
    X(DeviceSetMemPool, cuDeviceSetMemPool, 11020, v11020, LEGACY) \
    X(MemPoolCreate, cuMemPoolCreate, 11020, v11020, LEGACY) \
    X(MemPoolDestroy, cuMemPoolDestroy, 11020, v11020, LEGACY) \
    X(MemPoolTrimTo, cuMemPoolTrimTo, 11020, v11020, LEGACY) \
    X(MemPoolGetAttribute, cuMemPoolGetAttribute, 11020, v11020, LEGACY) \
    X(MemPoolSetAttribute, cuMemPoolSetAttribute, 11020, v11020, LEGACY)

static struct {
#define X(field, base, version, type, flags) PFN_##base##_##type field;
    DRIVER_FUNCTIONS(X)
#undef X
} driver;

static pthread_once_t loaded = PTHREAD_ONCE_INIT;
static pthread_mutex_t context_lock = PTHREAD_MUTEX_INITIALIZER;
static cudaError_t load_error;
static int device_count;
static CUcontext primary[MAX_DEVICES];
static unsigned int generation = 1; /* moves on with every cudaDeviceReset: contexts must be bound anew */

/* Small, and in the static block: no allocation at first use. */
static __thread struct {
    cudaError_t last_error;
    int device;
    int bound_device;
    unsigned int bound_generation;
} self __attribute__((tls_model("initial-exec")));

static cudaError_t remember(cudaError_t error)
{
    if (error != cudaSuccess)
        self.last_error = error;
    return error;
}

/* The two enums share their numbers for every code the driver returns here. */
static cudaError_t from_driver(CUresult error)
{
    return remember((cudaError_t)error);
}

/* ---- reaching the driver ---- */

/* True if every function was found; the pointers go where their fields are. */
static int fetch_functions(PFN_cuGetProcAddress_v12000 find)
{
    void *function = NULL;
    int has_all = 1;
    find("", &function, 2000, LEGACY, NULL);
#define X(field, base, version, type, flags) \
    function = NULL; \
    if (find(#base, &function, version, flags, NULL) != CUDA_SUCCESS || !function) \
        has_all = 0; \
    memcpy(&driver.field, &function, sizeof function);
    DRIVER_FUNCTIONS(X)
#undef X
    return has_all;
}

static void load_driver(void)
{
    int version = 0;
    PFN_cuGetProcAddress_v12000 find;
    load_error = cudaErrorInsufficientDriver;
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    void *symbol = library ? dlsym(library, "cuGetProcAddress_v2") : NULL;
    memcpy(&find, &symbol, sizeof find);
    if (!symbol || !fetch_functions(find))
        return;
    if (driver.DriverGetVersion(&version) != CUDA_SUCCESS || version < CUDART_VERSION)
        return;
    load_error = (cudaError_t)driver.Init(0);
    if (load_error == cudaSuccess)
        load_error = (cudaError_t)driver.DeviceGetCount(&device_count);
    if (device_count > MAX_DEVICES)
        device_count = MAX_DEVICES;
}

static cudaError_t need_driver(void)
{
    pthread_once(&loaded, load_driver);
    return remember(load_error);
}

/* Makes the primary context of this thread's device current, once per thread, device and reset. */
static cudaError_t need_context(void)
{
    CUresult error = CUDA_SUCCESS;
    if (need_driver() != cudaSuccess)
        return load_error;
    unsigned int now = __atomic_load_n(&generation, __ATOMIC_ACQUIRE);
    if (self.bound_generation == now && self.bound_device == self.device)
        return cudaSuccess;
    pthread_mutex_lock(&context_lock);
    now = generation;
    if (!primary[self.device])
        error = driver.PrimaryCtxRetain(&primary[self.device], self.device);
    if (error == CUDA_SUCCESS)
        error = driver.CtxSetCurrent(primary[self.device]);
    pthread_mutex_unlock(&context_lock);
    if (error == CUDA_SUCCESS) {
        self.bound_device = self.device;
        self.bound_generation = now;
    }
    return from_driver(error);
}

#define NEED(what) \
    do { \
        cudaError_t need_error = (what)(); \
        if (need_error != cudaSuccess) \
            return need_error; \
    } while (0)

/* ---- errors, versions ---- */

cudaError_t CUDARTAPI cudaGetLastError(void)
{
    cudaError_t error = self.last_error;
    self.last_error = cudaSuccess;
    return error;
}

cudaError_t CUDARTAPI cudaPeekAtLastError(void)
{
    return self.last_error;
}

static const struct {
    cudaError_t code;
    const char *name, *text;
} error_texts[] = {
#define ERROR(code, text) \
    { \
        code, #code, text \
    }
    ERROR(cudaSuccess, "no error"),
    ERROR(cudaErrorInvalidValue, "invalid argument"),
    ERROR(cudaErrorMemoryAllocation, "out of memory"),
    ERROR(cudaErrorInitializationError, "initialization error"),
    ERROR(cudaErrorInvalidMemcpyDirection, "invalid copy direction for memcpy"),
    ERROR(cudaErrorInsufficientDriver, "CUDA driver version is insufficient for CUDA runtime version"),
    ERROR(cudaErrorNoDevice, "no CUDA-capable device is detected"),
    ERROR(cudaErrorInvalidDevice, "invalid device ordinal"),
    ERROR(cudaErrorDeviceUninitialized, "invalid device context"),
    ERROR(cudaErrorInvalidResourceHandle, "invalid resource handle"),
    ERROR(cudaErrorSymbolNotFound, "named symbol not found"),
    ERROR(cudaErrorContextIsDestroyed, "context is destroyed"),
    ERROR(cudaErrorHostMemoryAlreadyRegistered, "part or all of the requested memory range is already mapped"),
    ERROR(cudaErrorHostMemoryNotRegistered, "pointer does not correspond to a registered memory region"),
    ERROR(cudaErrorNotSupported, "operation not supported"),
    ERROR(cudaErrorUnknown, "unknown error"),
#undef ERROR
};

static const char *find_error(cudaError_t error, int is_name)
{
    for (size_t i = 0; i < sizeof error_texts / sizeof error_texts[0]; i++) {
        if (error_texts[i].code == error)
            return is_name ? error_texts[i].name : error_texts[i].text;
    }
    return "unrecognized error code";
}

const char *CUDARTAPI cudaGetErrorName(cudaError_t error)
{
    return find_error(error, 1);
}

const char *CUDARTAPI cudaGetErrorString(cudaError_t error)
{
    return find_error(error, 0);
}

cudaError_t CUDARTAPI cudaRuntimeGetVersion(int *version)
{
    if (!version)
        return remember(cudaErrorInvalidValue);
    *version = CUDART_VERSION;
    return cudaSuccess;
}

/* 0 where there is no driver, and no error (cuda_runtime_api.h). */
cudaError_t CUDARTAPI cudaDriverGetVersion(int *version)
{
    if (!version)
        return remember(cudaErrorInvalidValue);
    *version = 0;
    pthread_once(&loaded, load_driver);
    return driver.DriverGetVersion ? from_driver(driver.DriverGetVersion(version)) : cudaSuccess;
}

static cudaError_t find_entry_point(const char *symbol, void **function, unsigned int version, unsigned long long flags,
                                    enum cudaDriverEntryPointQueryResult *status)
{
    CUdriverProcAddressQueryResult result = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    NEED(need_driver);
    CUresult error = driver.GetProcAddress5(symbol, function, (int)version, flags, &result);
    if (status)
        *status = (enum cudaDriverEntryPointQueryResult)result;
    return from_driver(error);
}

cudaError_t CUDARTAPI cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned int version,
                                                       unsigned long long flags,
                                                       enum cudaDriverEntryPointQueryResult *status)
{
    return find_entry_point(symbol, function, version, flags, status);
}

/* ---- devices ---- */

cudaError_t CUDARTAPI cudaGetDeviceCount(int *count)
{
    if (!count)
        return remember(cudaErrorInvalidValue);
    *count = 0;
    NEED(need_driver);
    *count = device_count;
    return cudaSuccess;
}

cudaError_t CUDARTAPI cudaSetDevice(int device)
{
    NEED(need_driver);
    if (device < 0 || device >= device_count)
        return remember(cudaErrorInvalidDevice);
    self.device = device;
    return need_context(); /* since CUDA 12 this initialises the device */
}

cudaError_t CUDARTAPI cudaGetDevice(int *device)
{
    if (!device)
        return remember(cudaErrorInvalidValue);
    NEED(need_driver);
    *device = self.device;
    return cudaSuccess;
}

cudaError_t CUDARTAPI cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
    NEED(need_driver);
    return from_driver(driver.DeviceGetAttribute(value, (CUdevice_attribute)attribute, device));
}

static int attribute_of(int device, CUdevice_attribute attribute)
{
    int value = 0;
    return driver.DeviceGetAttribute(&value, attribute, device) == CUDA_SUCCESS ? value : 0;
}

cudaError_t CUDARTAPI cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device)
{
    if (!properties)
        return remember(cudaErrorInvalidValue);
    NEED(need_driver);
    if (device < 0 || device >= device_count)
        return remember(cudaErrorInvalidDevice);
    memset(properties, 0, sizeof *properties);
    CUresult error = driver.DeviceGetName(properties->name, sizeof properties->name, device);
    if (error == CUDA_SUCCESS)
        error = driver.DeviceTotalMem(&properties->totalGlobalMem, device);
    properties->major = attribute_of(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
    properties->minor = attribute_of(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
    properties->integrated = attribute_of(device, CU_DEVICE_ATTRIBUTE_INTEGRATED);
    properties->warpSize = attribute_of(device, CU_DEVICE_ATTRIBUTE_WARP_SIZE);
    properties->multiProcessorCount = attribute_of(device, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
    properties->maxThreadsPerBlock = attribute_of(device, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
    properties->maxThreadsPerMultiProcessor = attribute_of(device, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR);
    properties->unifiedAddressing = attribute_of(device, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING);
    properties->managedMemory = attribute_of(device, CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY);
    properties->concurrentManagedAccess = attribute_of(device, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS);
    properties->pageableMemoryAccess = attribute_of(device, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS);
    properties->canMapHostMemory = attribute_of(device, CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY);
    properties->memoryPoolsSupported = attribute_of(device, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED);
    properties->hostRegisterSupported = attribute_of(device, CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED);
    return from_driver(error);
}

cudaError_t CUDARTAPI cudaDeviceSynchronize(void)
{
    NEED(need_context);
    return from_driver(driver.CtxSynchronize());
}

cudaError_t CUDARTAPI cudaDeviceReset(void)
{
    NEED(need_driver);
    pthread_mutex_lock(&context_lock);
    CUresult error = primary[self.device] ? driver.PrimaryCtxReset(self.device) : CUDA_SUCCESS;
    primary[self.device] = NULL;
    __atomic_add_fetch(&generation, 1, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&context_lock);
    return from_driver(error);
}

/* ---- linear memory ---- */

cudaError_t CUDARTAPI cudaMalloc(void **pointer, size_t size)
{
    CUdeviceptr address;
    NEED(need_context);
    if (!pointer)
        return remember(cudaErrorInvalidValue);
    if (size == 0) { /* the runtime grants nothing, without an error and without asking the driver */
        *pointer = NULL;
        return cudaSuccess;
    }
    CUresult error = driver.MemAlloc(&address, size);
    if (error == CUDA_SUCCESS)
        *pointer = (void *)(uintptr_t)address;
    return from_driver(error);
}

cudaError_t CUDARTAPI cudaMallocManaged(void **pointer, size_t size, unsigned int flags)
{
    CUdeviceptr address;
    NEED(need_context);
    if (!pointer || size == 0)
        return remember(cudaErrorInvalidValue);
    CUresult error = driver.MemAllocManaged(&address, size, flags);
    if (error == CUDA_SUCCESS)
        *pointer = (void *)(uintptr_t)address;
    return from_driver(error);
}

static cudaError_t allocate_pitched(void **pointer, size_t *pitch, size_t width, size_t height)
{
    CUdeviceptr address;
    if (width == 0 || height == 0) {
        *pointer = NULL;
        *pitch = 0;
        return cudaSuccess;
    }
    CUresult error = driver.MemAllocPitch(&address, pitch, width, height, 4);
    if (error == CUDA_SUCCESS)
        *pointer = (void *)(uintptr_t)address;
    return from_driver(error);
}

cudaError_t CUDARTAPI cudaMallocPitch(void **pointer, size_t *pitch, size_t width, size_t height)
{
    NEED(need_context);
    return pointer && pitch ? allocate_pitched(pointer, pitch, width, height) : remember(cudaErrorInvalidValue);
}

cudaError_t CUDARTAPI cudaMalloc3D(struct cudaPitchedPtr *out, struct cudaExtent extent)
{
    size_t rows;
    void *pointer;
    size_t pitch;
    NEED(need_context);
    if (!out)
        return remember(cudaErrorInvalidValue);
    if (__builtin_mul_overflow(extent.height, extent.depth, &rows))
        return remember(cudaErrorMemoryAllocation);
    cudaError_t error = allocate_pitched(&pointer, &pitch, extent.width, rows);
    if (error == cudaSuccess)
        *out = (struct cudaPitchedPtr){pointer, pitch, extent.width, extent.height};
    return error;
}

cudaError_t CUDARTAPI cudaFree(void *pointer)
{
    NEED(need_context); /* cudaFree(0) is a well-known way to make a context */
    return pointer ? from_driver(driver.MemFree((uintptr_t)pointer)) : cudaSuccess;
}

cudaError_t CUDARTAPI cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    NEED(need_context);
    return from_driver(driver.MemGetInfo(free_bytes, total_bytes));
}

/* ---- host memory ---- */

cudaError_t CUDARTAPI cudaHostAlloc(void **pointer, size_t size, unsigned int flags)
{
    NEED(need_context);
    if (!pointer)
        return remember(cudaErrorInvalidValue);
    if (size == 0) {
        *pointer = NULL;
        return cudaSuccess;
    }
    return from_driver(driver.MemHostAlloc(pointer, size, flags));
}

cudaError_t CUDARTAPI cudaMallocHost(void **pointer, size_t size)
{
    return cudaHostAlloc(pointer, size, cudaHostAllocDefault);
}

cudaError_t CUDARTAPI cudaFreeHost(void *pointer)
{
    NEED(need_context);
    return pointer ? from_driver(driver.MemFreeHost(pointer)) : cudaSuccess;
}

cudaError_t CUDARTAPI cudaHostRegister(void *pointer, size_t size, unsigned int flags)
{
    NEED(need_context);
    return from_driver(driver.MemHostRegister(pointer, size, flags));
}

cudaError_t CUDARTAPI cudaHostUnregister(void *pointer)
{
    NEED(need_context);
    return from_driver(driver.MemHostUnregister(pointer));
}

/* ---- arrays ---- */

static int channel_format(const struct cudaChannelFormatDesc *desc, CUarray_format *format)
{
    int is_signed = desc->f == cudaChannelFormatKindSigned, is_float = desc->f == cudaChannelFormatKindFloat;
    if (desc->x == 8 && !is_float)
        *format = is_signed ? CU_AD_FORMAT_SIGNED_INT8 : CU_AD_FORMAT_UNSIGNED_INT8;
    else if (desc->x == 16)
        *format = is_float ? CU_AD_FORMAT_HALF : is_signed ? CU_AD_FORMAT_SIGNED_INT16 : CU_AD_FORMAT_UNSIGNED_INT16;
    else if (desc->x == 32)
        *format = is_float ? CU_AD_FORMAT_FLOAT : is_signed ? CU_AD_FORMAT_SIGNED_INT32 : CU_AD_FORMAT_UNSIGNED_INT32;
    else
        return 0;
    return 1;
}

static int describe(CUDA_ARRAY3D_DESCRIPTOR *out, const struct cudaChannelFormatDesc *desc, struct cudaExtent extent,
                    unsigned int flags)
{
    memset(out, 0, sizeof *out);
    if (!desc || !channel_format(desc, &out->Format))
        return 0;
    out->Width = extent.width;
    out->Height = extent.height;
    out->Depth = extent.depth;
    out->NumChannels = 1U + (desc->y != 0) + (desc->z != 0) + (desc->w != 0);
    out->Flags = flags;
    return 1;
}

cudaError_t CUDARTAPI cudaMalloc3DArray(cudaArray_t *array, const struct cudaChannelFormatDesc *desc,
                                        struct cudaExtent extent, unsigned int flags)
{
    CUDA_ARRAY3D_DESCRIPTOR shape;
    CUarray handle;
    NEED(need_context);
    if (!array || !describe(&shape, desc, extent, flags))
        return remember(cudaErrorInvalidValue);
    CUresult error = driver.Array3DCreate(&handle, &shape);
    if (error == CUDA_SUCCESS)
        *array = (cudaArray_t)(void *)handle;
    return from_driver(error);
}

cudaError_t CUDARTAPI cudaMallocArray(cudaArray_t *array, const struct cudaChannelFormatDesc *desc, size_t width,
                                      size_t height, unsigned int flags)
{
    return cudaMalloc3DArray(array, desc, (struct cudaExtent){width, height, 0}, flags);
}

cudaError_t CUDARTAPI cudaMallocMipmappedArray(cudaMipmappedArray_t *array, const struct cudaChannelFormatDesc *desc,
                                               struct cudaExtent extent, unsigned int levels, unsigned int flags)
{
    CUDA_ARRAY3D_DESCRIPTOR shape;
    CUmipmappedArray handle;
    NEED(need_context);
    if (!array || !describe(&shape, desc, extent, flags))
        return remember(cudaErrorInvalidValue);
    CUresult error = driver.MipmappedArrayCreate(&handle, &shape, levels);
    if (error == CUDA_SUCCESS)
        *array = (cudaMipmappedArray_t)(void *)handle;
    return from_driver(error);
}

cudaError_t CUDARTAPI cudaFreeArray(cudaArray_t array)
{
    NEED(need_context);
    return array ? from_driver(driver.ArrayDestroy((CUarray)(void *)array)) : cudaSuccess;
}

cudaError_t CUDARTAPI cudaFreeMipmappedArray(cudaMipmappedArray_t array)
{
    NEED(need_context);
    return array ? from_driver(driver.MipmappedArrayDestroy((CUmipmappedArray)(void *)array)) : cudaSuccess;
}

/* ---- copies ---- */

cudaError_t CUDARTAPI cudaMemcpy(void *to, const void *from, size_t count, enum cudaMemcpyKind kind)
{
    NEED(need_context);
    switch (kind) {
    case cudaMemcpyHostToDevice:
        return from_driver(driver.MemcpyHtoD((uintptr_t)to, from, count));
    case cudaMemcpyDeviceToHost:
        return from_driver(driver.MemcpyDtoH(to, (uintptr_t)from, count));
    case cudaMemcpyDeviceToDevice:
        return from_driver(driver.MemcpyDtoD((uintptr_t)to, (uintptr_t)from, count));
    case cudaMemcpyHostToHost:
        memmove(to, from, count);
        return cudaSuccess;
    case cudaMemcpyDefault:
        return from_driver(driver.Memcpy((uintptr_t)to, (uintptr_t)from, count));
    default:
        return remember(cudaErrorInvalidMemcpyDirection);
    }
}

cudaError_t CUDARTAPI cudaMemset(void *pointer, int value, size_t count)
{
    NEED(need_context);
    return from_driver(driver.MemsetD8((uintptr_t)pointer, (unsigned char)value, count));
}

/* ---- streams: cudaStream_t and CUstream are one type ---- */

cudaError_t CUDARTAPI cudaStreamCreate(cudaStream_t *stream)
{
    NEED(need_context);
    return from_driver(driver.StreamCreate(stream, CU_STREAM_DEFAULT));
}

cudaError_t CUDARTAPI cudaStreamDestroy(cudaStream_t stream)
{
    NEED(need_context);
    return from_driver(driver.StreamDestroy(stream));
}

/* ---- pools ---- */

cudaError_t CUDARTAPI cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int device)
{
    NEED(need_driver);
    return from_driver(driver.DeviceGetDefaultMemPool(pool, device));
}

cudaError_t CUDARTAPI cudaDeviceGetMemPool(cudaMemPool_t *pool, int device)
{
    NEED(need_driver);
    return from_driver(driver.DeviceGetMemPool(pool, device));
}

cudaError_t CUDARTAPI cudaDeviceSetMemPool(int device, cudaMemPool_t pool)
{
    NEED(need_driver);
    return from_driver(driver.DeviceSetMemPool(device, pool));
}

cudaError_t CUDARTAPI cudaMemPoolCreate(cudaMemPool_t *pool, const struct cudaMemPoolProps *properties)
{
    NEED(need_context);
    if (!properties)
        return remember(cudaErrorInvalidValue);
    const CUmemPoolProps translated = {
        .allocType = (CUmemAllocationType)properties->allocType,
        .handleTypes = (CUmemAllocationHandleType)properties->handleTypes,
        .location = {.type = (CUmemLocationType)properties->location.type, .id = properties->location.id},
        .maxSize = properties->maxSize,
        .usage = properties->usage,
    };
    return from_driver(driver.MemPoolCreate(pool, &translated));
}

cudaError_t CUDARTAPI cudaMemPoolDestroy(cudaMemPool_t pool)
{
    NEED(need_driver);
    return from_driver(driver.MemPoolDestroy(pool));
}

cudaError_t CUDARTAPI cudaMemPoolTrimTo(cudaMemPool_t pool, size_t keep)
{
    NEED(need_driver);
    return from_driver(driver.MemPoolTrimTo(pool, keep));
}

cudaError_t CUDARTAPI cudaMemPoolGetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value)
{
    NEED(need_driver);
    return from_driver(driver.MemPoolGetAttribute(pool, (CUmemPool_attribute)attribute, value));
}

cudaError_t CUDARTAPI cudaMemPoolSetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value)
{
    NEED(need_driver);
    return from_driver(driver.MemPoolSetAttribute(pool, (CUmemPool_attribute)attribute, value));
}

/*
 * What exists twice, with the legacy and the per-thread default stream. The header declares the
 * second name only to programs compiled for it.
 */
#define TWIN_DECLARATIONS(suffix) \
    cudaError_t CUDARTAPI cudaMallocAsync##suffix(void **pointer, size_t size, cudaStream_t stream); \
    cudaError_t CUDARTAPI cudaMallocFromPoolAsync##suffix(void **pointer, size_t size, cudaMemPool_t pool, \
                                                          cudaStream_t stream); \
    cudaError_t CUDARTAPI cudaFreeAsync##suffix(void *pointer, cudaStream_t stream); \
    cudaError_t CUDARTAPI cudaStreamSynchronize##suffix(cudaStream_t stream);

#define TWIN_DEFINITIONS(suffix) \
    cudaError_t CUDARTAPI cudaMallocAsync##suffix(void **pointer, size_t size, cudaStream_t stream) \
    { \
        CUdeviceptr address; \
        NEED(need_context); \
        if (!pointer) \
            return remember(cudaErrorInvalidValue); \
        CUresult error = driver.MemAllocAsync##suffix(&address, size, stream); \
        if (error == CUDA_SUCCESS) \
            *pointer = (void *)(uintptr_t)address; \
        return from_driver(error); \
    } \
    cudaError_t CUDARTAPI cudaMallocFromPoolAsync##suffix(void **pointer, size_t size, cudaMemPool_t pool, \
                                                          cudaStream_t stream) \
    { \
        CUdeviceptr address; \
        NEED(need_context); \
        if (!pointer) \
            return remember(cudaErrorInvalidValue); \
        CUresult error = driver.MemAllocFromPoolAsync##suffix(&address, size, pool, stream); \
        if (error == CUDA_SUCCESS) \
            *pointer = (void *)(uintptr_t)address; \
        return from_driver(error); \
    } \
    cudaError_t CUDARTAPI cudaFreeAsync##suffix(void *pointer, cudaStream_t stream) \
    { \
        NEED(need_context); \
        return from_driver(driver.MemFreeAsync##suffix((uintptr_t)pointer, stream)); \
    } \
    cudaError_t CUDARTAPI cudaStreamSynchronize##suffix(cudaStream_t stream) \
    { \
        NEED(need_context); \
        return from_driver(driver.StreamSynchronize##suffix(stream)); \
    }

TWIN_DEFINITIONS()
TWIN_DECLARATIONS(_ptsz)
TWIN_DEFINITIONS(_ptsz)

cudaError_t CUDARTAPI cudaGetDriverEntryPointByVersion_ptsz(const char *symbol, void **function, unsigned int version,
                                                            unsigned long long flags,
                                                            enum cudaDriverEntryPointQueryResult *status);
cudaError_t CUDARTAPI cudaGetDriverEntryPointByVersion_ptsz(const char *symbol, void **function, unsigned int version,
                                                            unsigned long long flags,
                                                            enum cudaDriverEntryPointQueryResult *status)
{
    return find_entry_point(symbol, function, version, flags == cudaEnableDefault ? PER_THREAD : flags, status);
}
