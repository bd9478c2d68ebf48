/* A fake libnvidia-ml.so.1 over the fake GPUs' state (state.h): what inventory, health checks and
 * memory views of real clients ask for, with the answers and errors that NVML documents. */
#include "../abi/nvml.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "state.h"

#define API __attribute__((visibility("default"))) nvmlReturn_t

struct nvmlDevice {
    unsigned index;
};

struct nvmlEventSet {
    uint64_t seen;                       /* events up to this number were delivered */
    uint64_t registered[FAKE_MAX_GPUS];  /* event types */
};

static struct nvmlDevice handles[FAKE_MAX_GPUS];
static unsigned visible[FAKE_MAX_GPUS]; /* NVML index -> GPU of the state, as nvmlInit found them */
static unsigned visible_count;
static unsigned users;
static uint64_t init_sequence;
static pthread_mutex_t init_lock = PTHREAD_MUTEX_INITIALIZER;

static struct fake_state *state(void)
{
    return users ? fake_attach() : NULL;
}

/* The GPU behind a handle, or the error that NVML answers for it. */
static nvmlReturn_t gpu_of(nvmlDevice_t device, struct fake_gpu **gpu)
{
    struct fake_state *fake = state();
    if (!fake)
        return NVML_ERROR_UNINITIALIZED;
    if (!device || device < handles || device >= handles + FAKE_MAX_GPUS)
        return NVML_ERROR_INVALID_ARGUMENT;
    *gpu = &fake->gpus[device - handles];
    /* A GPU that came back is seen again only after NVML was initialised anew. */
    if ((*gpu)->lost || (*gpu)->lost_sequence > init_sequence)
        return NVML_ERROR_GPU_IS_LOST;
    return NVML_SUCCESS;
}

#define GPU_OR_RETURN(device)                            \
    struct fake_gpu *gpu;                                \
    do {                                                 \
        nvmlReturn_t problem_ = gpu_of((device), &gpu);  \
        if (problem_ != NVML_SUCCESS)                    \
            return problem_;                             \
    } while (0)

static nvmlReturn_t copy_text(char *to, unsigned length, const char *text)
{
    if (!to)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (strlen(text) + 1 > length)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(to, text);
    return NVML_SUCCESS;
}

/* --- life ------------------------------------------------------------------------------------ */

API nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    struct fake_state *fake = fake_attach();
    if (!fake)
        return NVML_ERROR_DRIVER_NOT_LOADED;
    if (fake->init_error)
        return (nvmlReturn_t)fake->init_error;
    pthread_mutex_lock(&init_lock);
    if (users++ == 0) {
        init_sequence = fake->sequence;
        visible_count = 0;
        /* A GPU that fell off the bus is not enumerated any more: indexes shift. */
        for (unsigned i = 0; i < fake->gpu_count; i++)
            if (!fake->gpus[i].lost)
                visible[visible_count++] = i;
    }
    pthread_mutex_unlock(&init_lock);
    return NVML_SUCCESS;
}

API nvmlInit_v2(void)
{
    return nvmlInitWithFlags(0);
}

API nvmlInit(void)
{
    return nvmlInitWithFlags(0);
}

API nvmlShutdown(void)
{
    pthread_mutex_lock(&init_lock);
    nvmlReturn_t result = users ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
    if (users)
        users--;
    pthread_mutex_unlock(&init_lock);
    return result;
}

__attribute__((visibility("default"))) const char *nvmlErrorString(nvmlReturn_t result)
{
    switch (result) {
    case NVML_SUCCESS: return "Success";
    case NVML_ERROR_UNINITIALIZED: return "Uninitialized";
    case NVML_ERROR_INVALID_ARGUMENT: return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED: return "Not Supported";
    case NVML_ERROR_NOT_FOUND: return "Not Found";
    case NVML_ERROR_INSUFFICIENT_SIZE: return "Insufficient Size";
    case NVML_ERROR_DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case NVML_ERROR_TIMEOUT: return "Timeout";
    case NVML_ERROR_GPU_IS_LOST: return "GPU is lost";
    default: return "Unknown Error";
    }
}

/* --- the system ------------------------------------------------------------------------------- */

API nvmlSystemGetDriverVersion(char *version, unsigned length)
{
    struct fake_state *fake = state();
    return fake ? copy_text(version, length, fake->driver) : NVML_ERROR_UNINITIALIZED;
}

API nvmlSystemGetNVMLVersion(char *version, unsigned length)
{
    struct fake_state *fake = state();
    return fake ? copy_text(version, length, fake->driver) : NVML_ERROR_UNINITIALIZED;
}

API nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    struct fake_state *fake = state();
    if (!fake)
        return NVML_ERROR_UNINITIALIZED;
    *version = (int)fake->cuda_version;
    return NVML_SUCCESS;
}

API nvmlSystemGetCudaDriverVersion(int *version)
{
    return nvmlSystemGetCudaDriverVersion_v2(version);
}

/* --- devices ---------------------------------------------------------------------------------- */

API nvmlDeviceGetCount_v2(unsigned *count)
{
    if (!state())
        return NVML_ERROR_UNINITIALIZED;
    *count = visible_count;
    return NVML_SUCCESS;
}

API nvmlDeviceGetCount(unsigned *count)
{
    return nvmlDeviceGetCount_v2(count);
}

API nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device)
{
    if (!state())
        return NVML_ERROR_UNINITIALIZED;
    if (index >= visible_count)
        return NVML_ERROR_INVALID_ARGUMENT;
    struct fake_gpu *gpu;
    *device = &handles[visible[index]];
    return gpu_of(*device, &gpu);
}

API nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice_t *device)
{
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}

API nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    struct fake_state *fake = state();
    if (!fake)
        return NVML_ERROR_UNINITIALIZED;
    for (unsigned i = 0; i < visible_count; i++) {
        if (strcmp(fake->gpus[visible[i]].uuid, uuid) != 0)
            continue;
        struct fake_gpu *gpu;
        *device = &handles[visible[i]];
        return gpu_of(*device, &gpu);
    }
    return NVML_ERROR_NOT_FOUND;
}

API nvmlDeviceGetIndex(nvmlDevice_t device, unsigned *index)
{
    GPU_OR_RETURN(device);
    for (unsigned i = 0; i < visible_count; i++)
        if (&handles[visible[i]] == device)
            *index = i;
    return NVML_SUCCESS;
}

API nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned length)
{
    GPU_OR_RETURN(device);
    return copy_text(uuid, length, gpu->uuid);
}

API nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned length)
{
    GPU_OR_RETURN(device);
    return copy_text(name, length, gpu->name);
}

API nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned *minor)
{
    GPU_OR_RETURN(device);
    *minor = gpu->minor;
    return NVML_SUCCESS;
}

API nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    GPU_OR_RETURN(device);
    memset(pci, 0, sizeof *pci);
    pci->bus = gpu->bus;
    snprintf(pci->busId, sizeof pci->busId, "00000000:%02X:00.0", gpu->bus);
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "0000:%02X:00.0", gpu->bus);
    return NVML_SUCCESS;
}

API nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    return nvmlDeviceGetPciInfo_v3(device, pci);
}

API nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current, unsigned *pending)
{
    GPU_OR_RETURN(device);
    *current = *pending = gpu->mig;
    return NVML_SUCCESS;
}

API nvmlDeviceGetAddressingMode(nvmlDevice_t device, nvmlDeviceAddressingMode_v1_t *mode)
{
    GPU_OR_RETURN(device);
    if (mode->version != NVML_STRUCT_VERSION(nvmlDeviceAddressingMode_v1_t, 1))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    mode->value = gpu->addressing;
    return NVML_SUCCESS;
}

API nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates)
{
    GPU_OR_RETURN(device);
    rates->gpu = rates->memory = 0;
    return NVML_SUCCESS;
}

API nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, int type, int counter, uint64_t *count)
{
    GPU_OR_RETURN(device);
    (void)counter;
    *count = type == 1 ? gpu->double_bit_ecc : 0;
    return NVML_SUCCESS;
}

enum { FIELD_RECOVERY_ACTION = 230, VALUE_UNSIGNED = 1 };

API nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values)
{
    GPU_OR_RETURN(device);
    for (int i = 0; i < count; i++) {
        values[i].nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
        if (values[i].fieldId != FIELD_RECOVERY_ACTION || gpu->recovery == FAKE_NO_RECOVERY_FIELD)
            continue;
        values[i].nvmlReturn = NVML_SUCCESS;
        values[i].valueType = VALUE_UNSIGNED;
        values[i].value = gpu->recovery;
    }
    return NVML_SUCCESS;
}

/* --- memory ----------------------------------------------------------------------------------- */

static uint64_t used_of(struct fake_gpu *gpu)
{
    struct fake_state *fake = fake_attach();
    fake_lock(fake);
    fake_reclaim(fake);
    uint64_t used = gpu->used;
    fake_unlock(fake);
    return used;
}

API nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    GPU_OR_RETURN(device);
    if (gpu->no_memory)
        return NVML_ERROR_NOT_SUPPORTED;
    memory->total = gpu->total;
    memory->used = used_of(gpu) + gpu->reserved;
    memory->free = memory->total - memory->used;
    return NVML_SUCCESS;
}

API nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    GPU_OR_RETURN(device);
    if (memory->version != NVML_STRUCT_VERSION(nvmlMemory_v2_t, 2))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (gpu->no_memory)
        return NVML_ERROR_NOT_SUPPORTED;
    memory->total = gpu->total;
    memory->reserved = gpu->reserved;
    memory->used = used_of(gpu);
    memory->free = memory->total - memory->reserved - memory->used;
    return NVML_SUCCESS;
}

/* --- processes -------------------------------------------------------------------------------- */

/* Fills both layouts: `stride` says which. */
static nvmlReturn_t processes(nvmlDevice_t device, unsigned *count, void *infos, size_t stride)
{
    GPU_OR_RETURN(device);
    if (!count)
        return NVML_ERROR_INVALID_ARGUMENT;
    struct fake_state *fake = fake_attach();
    unsigned index = (unsigned)(device - handles), found = 0, room = infos ? *count : 0;
    fake_lock(fake);
    fake_reclaim(fake);
    for (int slot = 0; slot < FAKE_MAX_PROCS; slot++) {
        const struct fake_proc *proc = &fake->procs[slot];
        if (!proc->pid || !proc->used[index])
            continue;
        if (found < room) {
            nvmlProcessInfo_v2_t info = {
                .pid = (unsigned)proc->pid,
                .usedGpuMemory = proc->used[index],
                .gpuInstanceId = ~0u,
                .computeInstanceId = ~0u,
            };
            memcpy((char *)infos + found * stride, &info, stride);
        }
        found++;
    }
    fake_unlock(fake);
    *count = found;
    return found > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

static nvmlReturn_t no_processes(nvmlDevice_t device, unsigned *count)
{
    GPU_OR_RETURN(device);
    *count = 0;
    return NVML_SUCCESS;
}

API nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t d, unsigned *n, nvmlProcessInfo_v1_t *p)
{
    return processes(d, n, p, sizeof *p);
}

API nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t d, unsigned *n, nvmlProcessInfo_v2_t *p)
{
    return processes(d, n, p, sizeof *p);
}

API nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t d, unsigned *n, nvmlProcessInfo_v2_t *p)
{
    return processes(d, n, p, sizeof *p);
}

API nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t d, unsigned *n, nvmlProcessInfo_v2_t *p)
{
    (void)p;
    return no_processes(d, n);
}

API nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t d, unsigned *n, nvmlProcessInfo_v2_t *p)
{
    (void)p;
    return no_processes(d, n);
}

API nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_v1_t *list)
{
    GPU_OR_RETURN(device);
    if (list->version != NVML_STRUCT_VERSION(nvmlProcessDetailList_v1_t, 1))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    nvmlProcessInfo_v2_t infos[FAKE_MAX_PROCS];
    unsigned count = FAKE_MAX_PROCS, room = list->procArray ? list->numProcArrayEntries : 0;
    nvmlReturn_t result = processes(device, &count, infos, sizeof *infos);
    if (result != NVML_SUCCESS)
        return result;
    for (unsigned i = 0; i < count && i < room; i++)
        list->procArray[i] = (nvmlProcessDetail_v1_t){
            .pid = infos[i].pid,
            .usedGpuMemory = infos[i].usedGpuMemory,
            .gpuInstanceId = ~0u,
            .computeInstanceId = ~0u,
        };
    list->numProcArrayEntries = count;
    return count > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

/* --- events ----------------------------------------------------------------------------------- */

API nvmlEventSetCreate(nvmlEventSet_t *set)
{
    struct fake_state *fake = state();
    if (!fake)
        return NVML_ERROR_UNINITIALIZED;
    *set = calloc(1, sizeof **set);
    (*set)->seen = fake->sequence;
    return NVML_SUCCESS;
}

API nvmlEventSetFree(nvmlEventSet_t set)
{
    free(set);
    return NVML_SUCCESS;
}

API nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types)
{
    GPU_OR_RETURN(device);
    *types = NVML_EVENT_XID | NVML_EVENT_DOUBLE_BIT_ECC | NVML_EVENT_SINGLE_BIT_ECC;
    return NVML_SUCCESS;
}

API nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set)
{
    GPU_OR_RETURN(device);
    if (!set)
        return NVML_ERROR_INVALID_ARGUMENT;
    set->registered[device - handles] |= types;
    return NVML_SUCCESS;
}

static bool next_event(struct fake_state *fake, nvmlEventSet_t set, nvmlEventData_t *data)
{
    bool found = false;
    fake_lock(fake);
    while (!found && set->seen < fake->sequence) {
        const struct fake_event *event = &fake->events[++set->seen % FAKE_MAX_EVENTS];
        if (!(set->registered[event->gpu] & event->type))
            continue;
        *data = (nvmlEventData_t){
            .device = &handles[event->gpu],
            .eventType = event->type,
            .eventData = event->data,
            .gpuInstanceId = ~0u,
            .computeInstanceId = ~0u,
        };
        found = true;
    }
    fake_unlock(fake);
    return found;
}

API nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned timeout_ms)
{
    struct fake_state *fake = state();
    if (!fake)
        return NVML_ERROR_UNINITIALIZED;
    if (!set)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned waited = 0;; waited++) {
        if (next_event(fake, set, data))
            return NVML_SUCCESS;
        for (unsigned i = 0; i < fake->gpu_count; i++)
            if (set->registered[i] && fake->gpus[i].lost_sequence > init_sequence)
                return NVML_ERROR_GPU_IS_LOST;
        if (waited >= timeout_ms)
            return NVML_ERROR_TIMEOUT;
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}

API nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t *data, unsigned timeout_ms)
{
    return nvmlEventSetWait_v2(set, data, timeout_ms);
}
