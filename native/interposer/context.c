/* Contexts: the memory the driver takes for one is charged as a fixed reserve, and what a context
 * owned goes with it. Limits of a context (device heap, stack, …) take memory too. */
#include <string.h>

#include "account.h"
#include "implementations.h"

/* --- primary contexts: one per device, counted ---------------------------------------------------- */

int primary_retain(struct driver *d, void *real, CUcontext *c, CUdevice dev)
{
    struct process *p = account();
    if (!p)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (dev < 0 || dev >= MAX_ORDINALS)
        return REAL(real, (CUcontext *, CUdevice), (c, dev));
    struct primary *primary = &p->primaries[dev];
    int gpu = gpu_of_device(d, p, dev), result = CUDA_SUCCESS;
    lock_take(&p->context_lock);
    bool first = primary->references == 0;
    if (gpu < 0)
        result = d->cuDeviceGetUuid && d->cuDeviceGetUuid(&(CUuuid){{0}}, dev) != CUDA_SUCCESS
                     ? REAL(real, (CUcontext *, CUdevice), (c, dev)) /* its own error */
                     : CUDA_ERROR_OUT_OF_MEMORY;
    else if (first && !charge_context(p, (unsigned)gpu))
        result = CUDA_ERROR_OUT_OF_MEMORY;
    else {
        result = REAL(real, (CUcontext *, CUdevice), (c, dev));
        if (result == CUDA_SUCCESS) {
            primary->references++;
            primary->context = *c;
        } else if (first) {
            uncharge_context(p, (unsigned)gpu);
        }
    }
    lock_give(&p->context_lock);
    return result;
}

/* The primary context is gone. Call with the context lock. */
static void primary_gone(struct driver *d, struct process *p, CUdevice dev)
{
    struct primary *primary = &p->primaries[dev];
    int gpu = gpu_of_device(d, p, dev);
    release_owned(p, primary->context);
    if (gpu >= 0)
        uncharge_context(p, (unsigned)gpu);
    *primary = (struct primary){0};
}

int primary_release(struct driver *d, void *real, CUdevice dev)
{
    struct process *p = account();
    if (!p || dev < 0 || dev >= MAX_ORDINALS)
        return REAL(real, (CUdevice), (dev));
    lock_take(&p->context_lock);
    int result = REAL(real, (CUdevice), (dev));
    struct primary *primary = &p->primaries[dev];
    if (result == CUDA_SUCCESS && primary->references && --primary->references == 0)
        primary_gone(d, p, dev);
    lock_give(&p->context_lock);
    return result;
}

int primary_reset(struct driver *d, void *real, CUdevice dev)
{
    struct process *p = account();
    if (!p || dev < 0 || dev >= MAX_ORDINALS)
        return REAL(real, (CUdevice), (dev));
    lock_take(&p->context_lock);
    int result = REAL(real, (CUdevice), (dev));
    if (result == CUDA_SUCCESS && p->primaries[dev].references)
        primary_gone(d, p, dev);
    lock_give(&p->context_lock);
    return result;
}

/* --- other contexts ------------------------------------------------------------------------------ */

struct creation {
    struct process *p;
    int gpu; /* REFUSED: left to the driver */
};

static int begin(struct driver *d, struct creation *creation, CUdevice dev)
{
    struct process *p = creation->p = account();
    if (!p)
        return CUDA_ERROR_OUT_OF_MEMORY;
    creation->gpu = gpu_of_device(d, p, dev);
    if (creation->gpu < 0) {
        bool exists = d->cuDeviceGetUuid && d->cuDeviceGetUuid(&(CUuuid){{0}}, dev) == CUDA_SUCCESS;
        return exists ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
    }
    if (!table_reserve(&p->table) || !charge_context(p, (unsigned)creation->gpu))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return CUDA_SUCCESS;
}

static int end(struct creation *creation, int result, CUcontext *c)
{
    if (creation->gpu < 0)
        return result;
    if (result != CUDA_SUCCESS)
        uncharge_context(creation->p, (unsigned)creation->gpu);
    else
        table_put(&creation->p->table, (struct entry){
                                           .key = (uint64_t)(uintptr_t)*c,
                                           .kind = CONTEXT,
                                           .gpu = creation->gpu,
                                       });
    return result;
}

#define CREATE(real_call)                       \
    do {                                        \
        struct creation creation_;              \
        int result_ = begin(d, &creation_, dev); \
        if (result_ != CUDA_SUCCESS)            \
            return result_;                     \
        return end(&creation_, (real_call), c); \
    } while (0)

int context_create(struct driver *d, void *real, CUcontext *c, unsigned flags, CUdevice dev)
{
    CREATE(REAL(real, (CUcontext *, unsigned, CUdevice), (c, flags, dev)));
}

int context_create_v3(struct driver *d, void *real, CUcontext *c, void *affinity, int n,
                      unsigned flags, CUdevice dev)
{
    CREATE(REAL(real, (CUcontext *, void *, int, unsigned, CUdevice), (c, affinity, n, flags, dev)));
}

int context_create_v4(struct driver *d, void *real, CUcontext *c, void *params, unsigned flags,
                      CUdevice dev)
{
    CREATE(REAL(real, (CUcontext *, void *, unsigned, CUdevice), (c, params, flags, dev)));
}

int context_destroy(struct driver *d, void *real, CUcontext c)
{
    (void)d;
    struct process *p = account();
    struct entry entry;
    bool known = p && table_take(&p->table, CONTEXT, (uint64_t)(uintptr_t)c, &entry);
    int result = REAL(real, (CUcontext), (c));
    if (known && result != CUDA_SUCCESS) {
        table_put(&p->table, entry);
    } else if (known) {
        release_owned(p, c);
        uncharge_context(p, (unsigned)entry.gpu);
    }
    return result;
}

/* --- limits -------------------------------------------------------------------------------------- */

/* Device memory that a value of a limit stands for. */
static uint64_t limit_bytes(struct driver *d, CUdevice device, int limit, uint64_t value)
{
    int processors = 0, threads = 0;
    uint64_t bytes = 0;
    switch (limit) {
    case CU_LIMIT_MALLOC_HEAP_SIZE:
    case CU_LIMIT_PRINTF_FIFO_SIZE:
        return value;
    case CU_LIMIT_STACK_SIZE: /* for each thread that can be resident */
        if (!d->cuDeviceGetAttribute ||
            d->cuDeviceGetAttribute(&processors, CU_ATTRIBUTE_MULTIPROCESSOR_COUNT, device) ||
            d->cuDeviceGetAttribute(&threads, CU_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, device))
            return UINT64_MAX;
        if (__builtin_mul_overflow(value, (uint64_t)processors * (uint64_t)threads, &bytes))
            return UINT64_MAX;
        return bytes;
    case CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH: /* up to 150 MB a level, as documented */
        return __builtin_mul_overflow(value, 150ull << 20, &bytes) ? UINT64_MAX : bytes;
    case CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT: /* (inferred) */
        return __builtin_mul_overflow(value, 4096ull, &bytes) ? UINT64_MAX : bytes;
    default:
        return 0;
    }
}

/* What the limit was before the program's first change lies in the context's reserve. */
int context_set_limit(struct driver *d, void *real, int limit, size_t value)
{
    struct process *p = account();
    CUcontext context;
    CUdevice device;
    size_t before;
    if (!p)
        return CUDA_ERROR_OUT_OF_MEMORY;
    int gpu = gpu_of_current(d, p, &context);
    if (gpu == NO_CONTEXT || !d->cuCtxGetLimit || d->cuCtxGetLimit(&before, limit) ||
        d->cuCtxGetDevice(&device) || limit_bytes(d, device, limit, 1) == 0)
        return REAL(real, (int, size_t), (limit, value));
    if (gpu < 0 || !table_reserve(&p->table))
        return CUDA_ERROR_OUT_OF_MEMORY;
    uint64_t key = (uint64_t)(uintptr_t)context ^ (uint64_t)limit << 56;
    lock_take(&p->context_lock);
    struct entry entry;
    if (!table_take(&p->table, LIMIT, key, &entry))
        entry = (struct entry){.key = key, .kind = LIMIT, .gpu = gpu, .owner = context,
                               .number = limit_bytes(d, device, limit, before)};
    uint64_t now = limit_bytes(d, device, limit, value);
    uint64_t wanted = now > entry.number ? rounded(now - entry.number) : 0, had = entry.bytes;
    int result = CUDA_SUCCESS;
    if (wanted > had && !charge_or_shrink(d, p, (unsigned)gpu, wanted - had))
        result = CUDA_ERROR_OUT_OF_MEMORY;
    else {
        result = REAL(real, (int, size_t), (limit, value));
        if (result == CUDA_SUCCESS)
            entry.bytes = wanted;
        if (result == CUDA_SUCCESS ? wanted < had : wanted > had)
            uncharge(p, (unsigned)gpu, wanted < had ? had - wanted : wanted - had);
    }
    table_put(&p->table, entry);
    lock_give(&p->context_lock);
    return result;
}
