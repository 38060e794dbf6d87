/*
 * device.c - see device.h.
 */
#include "hooks/cuda/device.h"

#include "hooks/cuda/driver.h"
#include "admit/check.h"
#include "base/options.h"
#include "admit/headroom.h"
#include "admit/refusal.h"
#include "shared/segment.h"
#include "base/text.h"

uint32_t sg_cuda_device_kind[SG_DEVICE_CAPACITY];
static uint64_t device_identity[SG_DEVICE_CAPACITY];

/* Prefers cuDeviceGetUuid_v2: only that variant gives each MIG instance of a card its own UUID (cuda.h), and each
 * instance has memory of its own. */
static bool get_uuid(CUuuid *uuid, uint32_t device)
{
    SG_DRIVER(get, cuDeviceGetUuid);
    SG_DRIVER(get_own, cuDeviceGetUuid_v2);
    if (get_own != NULL && get_own(uuid, (CUdevice)device) == CUDA_SUCCESS)
        return true;
    return get != NULL && get(uuid, (CUdevice)device) == CUDA_SUCCESS;
}

/* Computes sg_cuda_device_identity. */
static uint64_t identify_device(uint32_t device)
{
    CUuuid uuid = {{0}};
    char text[2 * sizeof uuid.bytes + 1] = "";
    if (!get_uuid(&uuid, device))
        return SG_SOURCE_UNBOUNDED + 1 + device;
    for (size_t i = 0; i < sizeof uuid.bytes; i++) {
        text[2 * i] = (char)('a' + ((unsigned char)uuid.bytes[i] >> 4));
        text[2 * i + 1] = (char)('a' + ((unsigned char)uuid.bytes[i] & 15));
    }
    return sg_hash_text(text) | UINT64_C(1) << 63;
}

/* Queries the driver once per device, outside decisions. */
static void learn_device(uint32_t device)
{
    SG_DRIVER(get_attribute, cuDeviceGetAttribute);
    SG_DRIVER(get_name, cuDeviceGetName);
    int is_integrated = 0;
    size_t total = 0;
    char name[40] = "";
    if (get_attribute == NULL ||
        get_attribute(&is_integrated, CU_DEVICE_ATTRIBUTE_INTEGRATED, (CUdevice)device) != CUDA_SUCCESS)
        return;
    struct sg_device *known = &sg_own->device[device];
    if (get_name != NULL && get_name(name, sizeof name, (CUdevice)device) == CUDA_SUCCESS) {
        struct sg_text text = sg_text_begin(known->name, sizeof known->name);
        sg_text_add(&text, name);
    }
    SG_DRIVER_INSIDE(cuDeviceTotalMem_v2, &total, (CUdevice)device);
    if (result == CUDA_SUCCESS)
        known->total_bytes = total;
    sg_store_release(&known->is_known, 1u);
    bool is_unified = is_integrated != 0 || sg_headroom_unified() == 1; /* one integrated device is enough */
    sg_headroom_set_unified(is_unified, is_integrated == 0 && sg_options.unified == SG_UNIFIED_ON);
    device_identity[device] = identify_device(device);
    sg_store_release(&sg_cuda_device_kind[device],
                     (uint32_t)(is_integrated != 0 ? SG_DEVICE_INTEGRATED : SG_DEVICE_DISCRETE));
    if (sg_cuda_has_own_pool(device))
        known->reserve_mib = (uint32_t)((sg_check_device_reserve(total) + (1u << 20) - 1) >> 20);
}

void sg_cuda_note_trust(uint32_t device)
{
    bool is_alone = sg_load_relaxed(&sg_refusal_trust) == SG_DRIVER_ALONE;
    if (SG_LIKELY(is_alone == sg_cuda_is_apart(device)))
        return;
    sg_store_release(&sg_cuda_device_kind[device], (uint32_t)(is_alone ? SG_DEVICE_APART : SG_DEVICE_INTEGRATED));
    sg_headroom_set_unified(!is_alone, false);
}

/* True if NVML's text names this UUID. The text is "GPU-", or "MIG-" for an instance of a card, and the bytes in groups
 * of 4, 2, 2, 2 and 6 (NVML's documentation of nvmlDeviceGetUUID; nvidia-smi -L). */
static bool matches_uuid(const char *nvml_uuid, const CUuuid *uuid)
{
    static const char digits[] = "0123456789abcdef";
    char text[4 + 2 * sizeof uuid->bytes + 4 + 1] = "GPU-", *at = text + 4;
    for (size_t i = 0; i < sizeof uuid->bytes; i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10)
            *at++ = '-';
        *at++ = digits[(unsigned char)uuid->bytes[i] >> 4];
        *at++ = digits[(unsigned char)uuid->bytes[i] & 15];
    }
    *at = '\0';
    if (strncmp(nvml_uuid, "MIG-", 4) == 0)
        memcpy(text, "MIG-", 4);
    return strcmp(text, nvml_uuid) == 0;
}

int sg_cuda_find_device(const char *nvml_uuid)
{
    CUuuid uuid;
    for (int device = 0; device < SG_DEVICE_CAPACITY; device++) {
        if (!get_uuid(&uuid, (uint32_t)device)) /* no more devices, or no cuInit */
            return -1;
        if (matches_uuid(nvml_uuid, &uuid))
            return sg_cuda_knows_device((uint32_t)device) ? device : -1;
    }
    return -1;
}

bool sg_cuda_knows_device(uint32_t device)
{
    if (device >= SG_DEVICE_CAPACITY)
        return false;
    if (SG_UNLIKELY(sg_load_acquire(&sg_cuda_device_kind[device]) == SG_DEVICE_UNKNOWN))
        learn_device(device);
    return sg_load_acquire(&sg_cuda_device_kind[device]) != SG_DEVICE_UNKNOWN;
}

uint64_t sg_cuda_device_identity(uint32_t device)
{
    return device_identity[device];
}
