/* What programs see: the share as if it were the GPU. The driver is asked first, so that its errors
 * stay its own; the free amount never exceeds what the GPU really has free. */
#include <string.h>

#include "account.h"
#include "implementations.h"

struct view {
    uint64_t total, used, free;
};

static struct view view_of(struct process *p, int gpu, uint64_t really_free)
{
    struct view view = {0};
    if (!p || gpu < 0)
        return view; /* nothing may be allocated there */
    view.total = p->limits.gpus[gpu].limit;
    view.used = container_used(p, (unsigned)gpu);
    view.used = view.used < view.total ? view.used : view.total;
    view.free = view.total - view.used;
    /* Large allocations come in pages: an odd rest cannot be had. */
    view.free -= view.free > (2u << 20) ? view.free % (2u << 20) : 0;
    view.free = view.free < really_free ? view.free : really_free;
    return view;
}

static unsigned narrow(uint64_t bytes)
{
    return bytes > UINT32_MAX ? UINT32_MAX : (unsigned)bytes;
}

int view_info(struct driver *d, void *real, size_t *f, size_t *t)
{
    size_t free_bytes = 0, total = 0;
    int result = REAL(real, (size_t *, size_t *), (&free_bytes, &total));
    if (result != CUDA_SUCCESS)
        return result;
    struct process *p = account();
    struct view view = view_of(p, p ? gpu_of_current(d, p, NULL) : REFUSED, free_bytes);
    if (f)
        *f = view.free;
    if (t)
        *t = view.total;
    return result;
}

int view_info_v1(struct driver *d, void *real, unsigned *f, unsigned *t)
{
    unsigned free_bytes = 0, total = 0;
    int result = REAL(real, (unsigned *, unsigned *), (&free_bytes, &total));
    if (result != CUDA_SUCCESS)
        return result;
    struct process *p = account();
    struct view view = view_of(p, p ? gpu_of_current(d, p, NULL) : REFUSED, free_bytes);
    if (f)
        *f = narrow(view.free);
    if (t)
        *t = narrow(view.total);
    return result;
}

static uint64_t total_of(struct driver *d, CUdevice dev)
{
    struct process *p = account();
    int gpu = p ? gpu_of_device(d, p, dev) : REFUSED;
    return gpu < 0 ? 0 : p->limits.gpus[gpu].limit;
}

int view_total(struct driver *d, void *real, size_t *n, CUdevice dev)
{
    int result = REAL(real, (size_t *, CUdevice), (n, dev));
    if (result == CUDA_SUCCESS && n)
        *n = total_of(d, dev);
    return result;
}

int view_total_v1(struct driver *d, void *real, unsigned *n, CUdevice dev)
{
    int result = REAL(real, (unsigned *, CUdevice), (n, dev));
    if (result == CUDA_SUCCESS && n)
        *n = narrow(total_of(d, dev));
    return result;
}

/* --- NVML ---------------------------------------------------------------------------------------- */

static int gpu_of_handle(struct driver *d, struct process *p, nvmlDevice_t device)
{
    char text[96];
    unsigned char uuid[16];
    if (!p || !d->nvmlDeviceGetUUID ||
        d->nvmlDeviceGetUUID(device, text, sizeof text) != NVML_SUCCESS ||
        !uuid_parse(text, strlen(text), uuid))
        return REFUSED;
    for (unsigned i = 0; i < p->limits.count; i++)
        if (!memcmp(p->limits.gpus[i].uuid, uuid, 16))
            return (int)i;
    return REFUSED;
}

int nvml_memory(struct driver *d, void *real, nvmlDevice_t h, nvmlMemory_t *m)
{
    int result = REAL(real, (nvmlDevice_t, nvmlMemory_t *), (h, m));
    if (result != NVML_SUCCESS || !m)
        return result;
    struct process *p = account();
    struct view view = view_of(p, gpu_of_handle(d, p, h), m->free);
    *m = (nvmlMemory_t){.total = view.total, .free = view.free, .used = view.used};
    return result;
}

int nvml_memory_v2(struct driver *d, void *real, nvmlDevice_t h, nvmlMemory_v2_t *m)
{
    int result = REAL(real, (nvmlDevice_t, nvmlMemory_v2_t *), (h, m));
    if (result != NVML_SUCCESS || !m)
        return result;
    struct process *p = account();
    struct view view = view_of(p, gpu_of_handle(d, p, h), m->free);
    m->total = view.total;
    m->reserved = 0; /* the limit is what can be used */
    m->free = view.free;
    m->used = view.used;
    return result;
}

/* Processes of this container, as they see their own numbers; neighbours are not shown. */
struct listing {
    char *out;
    size_t stride;
    unsigned room, found;
};

static void list_one(void *context, uint32_t pid, uint64_t used)
{
    struct listing *listing = context;
    nvmlProcessDetail_v1_t full = {
        .pid = pid,
        .usedGpuMemory = used,
        .gpuInstanceId = ~0u,
        .computeInstanceId = ~0u,
    };
    /* The shorter layouts are beginnings of this one. */
    if (listing->found < listing->room)
        memcpy(listing->out + listing->found * listing->stride, &full, listing->stride);
    listing->found++;
}

static int list(struct driver *d, nvmlDevice_t h, struct listing *listing)
{
    struct process *p = account();
    int gpu = gpu_of_handle(d, p, h);
    if (gpu >= 0) {
        lock_take(&p->charge_lock);
        region_each(&p->member, (unsigned)gpu, list_one, listing);
        lock_give(&p->charge_lock);
    }
    return listing->found > listing->room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

/* The driver is asked for its number only, to learn whether the handle is good. */
static int handle_problem(void *real, nvmlDevice_t h)
{
    unsigned count = 0;
    int result = REAL(real, (nvmlDevice_t, unsigned *, void *), (h, &count, NULL));
    return result == NVML_ERROR_INSUFFICIENT_SIZE ? NVML_SUCCESS : result;
}

static int compute(struct driver *d, void *real, nvmlDevice_t h, unsigned *n, void *out,
                   size_t stride)
{
    if (!n)
        return NVML_ERROR_INVALID_ARGUMENT;
    int result = handle_problem(real, h);
    if (result != NVML_SUCCESS)
        return result;
    struct listing listing = {out, stride, out ? *n : 0, 0};
    result = list(d, h, &listing);
    *n = listing.found;
    return result;
}

int nvml_compute_v1(struct driver *d, void *real, nvmlDevice_t h, unsigned *n,
                    nvmlProcessInfo_v1_t *out)
{
    return compute(d, real, h, n, out, sizeof *out);
}

int nvml_compute_v2(struct driver *d, void *real, nvmlDevice_t h, unsigned *n,
                    nvmlProcessInfo_v2_t *out)
{
    return compute(d, real, h, n, out, sizeof *out);
}

int nvml_no_processes(struct driver *d, void *real, nvmlDevice_t h, unsigned *n, void *out)
{
    (void)d, (void)out;
    if (!n)
        return NVML_ERROR_INVALID_ARGUMENT;
    int result = handle_problem(real, h);
    if (result == NVML_SUCCESS)
        *n = 0;
    return result;
}

int nvml_details(struct driver *d, void *real, nvmlDevice_t h, nvmlProcessDetailList_v1_t *out)
{
    if (!out)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlProcessDetailList_v1_t probe = *out;
    probe.procArray = NULL;
    probe.numProcArrayEntries = 0;
    int result = REAL(real, (nvmlDevice_t, nvmlProcessDetailList_v1_t *), (h, &probe));
    if (result != NVML_SUCCESS && result != NVML_ERROR_INSUFFICIENT_SIZE)
        return result;
    struct listing listing = {(char *)out->procArray, sizeof *out->procArray,
                              out->procArray ? out->numProcArrayEntries : 0, 0};
    result = NVML_SUCCESS;
    if (out->mode == 0 || out->mode == 3)
        result = list(d, h, &listing);
    out->numProcArrayEntries = listing.found;
    return result;
}

/* Samples of all processes on the GPU, by pids that may be anybody's. */
int nvml_utilization(struct driver *d, void *real, nvmlDevice_t h, void *samples, unsigned *n,
                     unsigned long long since)
{
    (void)d, (void)real, (void)h, (void)samples, (void)since;
    if (!n)
        return NVML_ERROR_INVALID_ARGUMENT;
    *n = 0;
    return NVML_ERROR_NOT_FOUND;
}
