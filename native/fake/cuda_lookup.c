/* cuGetProcAddress of the fake driver, both versions. A symbol's versions are given as the driver
 * gives them: the newest that is not newer than what was asked for. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda.h"

struct version {
    const char *base, *symbol;
    int since;
};

/* One line per lookup into the file that FAKE_CUDA_LOOKUPS names: name, version, flags. */
static void note(const char *symbol, int version, uint64_t flags)
{
    const char *path = getenv("FAKE_CUDA_LOOKUPS");
    FILE *file = path ? fopen(path, "a") : NULL;
    if (!file)
        return;
    fprintf(file, "%s %d %llu\n", *symbol ? symbol : "-", version, (unsigned long long)flags);
    fclose(file);
}

/* Functions whose symbol differs from the name they are asked for by. */
static const struct version versions[] = {
    {"cuMemAlloc", "cuMemAlloc_v2", 3020},
    {"cuMemAllocPitch", "cuMemAllocPitch_v2", 3020},
    {"cuMemFree", "cuMemFree_v2", 3020},
    {"cuMemGetInfo", "cuMemGetInfo_v2", 3020},
    {"cuDeviceTotalMem", "cuDeviceTotalMem_v2", 3020},
    {"cuDeviceGetUuid", "cuDeviceGetUuid_v2", 11040},
    {"cuCtxCreate", "cuCtxCreate_v2", 3020},
    {"cuCtxCreate", "cuCtxCreate_v3", 11040},
    {"cuCtxCreate", "cuCtxCreate_v4", 12050},
    {"cuCtxDestroy", "cuCtxDestroy_v2", 4000},
    {"cuCtxPushCurrent", "cuCtxPushCurrent_v2", 4000},
    {"cuCtxPopCurrent", "cuCtxPopCurrent_v2", 4000},
    {"cuCtxGetDevice", "cuCtxGetDevice_v2", 13000},
    {"cuDevicePrimaryCtxRelease", "cuDevicePrimaryCtxRelease_v2", 11000},
    {"cuDevicePrimaryCtxReset", "cuDevicePrimaryCtxReset_v2", 11000},
    {"cuDevicePrimaryCtxSetFlags", "cuDevicePrimaryCtxSetFlags_v2", 11000},
    {"cuArrayCreate", "cuArrayCreate_v2", 3020},
    {"cuArray3DCreate", "cuArray3DCreate_v2", 3020},
    {"cuStreamDestroy", "cuStreamDestroy_v2", 4000},
    {"cuStreamBeginCapture", "cuStreamBeginCapture_v2", 10010},
    {"cuMemcpyHtoD", "cuMemcpyHtoD_v2", 3020},
    {"cuMemcpyDtoH", "cuMemcpyDtoH_v2", 3020},
    {"cuMemcpyHtoDAsync", "cuMemcpyHtoDAsync_v2", 3020},
    {"cuMemcpyDtoHAsync", "cuMemcpyDtoHAsync_v2", 3020},
    {"cuMemsetD8", "cuMemsetD8_v2", 3020},
    {"cuGraphInstantiate", "cuGraphInstantiateWithFlags", 12000},
    {"cuGetProcAddress", "cuGetProcAddress_v2", 12000},
};

void *fake_symbol(const char *name);

API cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags,
                        int *status)
{
    const char *name = symbol;
    int best = 0;
    note(symbol, version, flags);
    *function = NULL;
    if (status)
        *status = 1;
    if (!*symbol)
        return CUDA_ERROR_NOT_FOUND;
    for (size_t i = 0; i < sizeof versions / sizeof *versions; i++) {
        if (!strcmp(versions[i].base, symbol) && versions[i].since <= version &&
            versions[i].since > best) {
            best = versions[i].since;
            name = versions[i].symbol;
        }
    }
    if (flags & CU_GET_PROC_ADDRESS_PER_THREAD) {
        char per_thread[128];
        snprintf(per_thread, sizeof per_thread, "%s_ptsz", name);
        *function = fake_symbol(per_thread);
    }
    if (!*function)
        *function = fake_symbol(name);
    if (!*function)
        return CUDA_ERROR_NOT_FOUND;
    if (status)
        *status = 0;
    return CUDA_SUCCESS;
}

API cuGetProcAddress(const char *symbol, void **function, int version, uint64_t flags)
{
    return cuGetProcAddress_v2(symbol, function, version, flags, NULL);
}

API cuGetExportTable(const void **table, const CUuuid *id)
{
    (void)id;
    *table = NULL;
    return CUDA_ERROR_NOT_FOUND;
}
