/* Stream-ordered memory. The driver takes memory for a pool in chunks and keeps what is freed until
 * a synchronisation, so a pool is charged with what it holds: max(live, reserved). */
#include "account.h"
#include "implementations.h"

/* Legal while a stream captures; an allocation is then only a node of a graph. */
static bool capturing(struct driver *d, CUstream stream)
{
    int status = CU_STREAM_NOT_CAPTURING;
    if (!d->cuStreamIsCapturing || d->cuStreamIsCapturing(stream, &status) != CUDA_SUCCESS)
        return false;
    return status != CU_STREAM_NOT_CAPTURING;
}

/* The device of a stream; false if it has none, and the driver will say so. */
static bool stream_device(struct driver *d, CUstream stream, CUdevice *device)
{
    CUcontext own = NULL, current = NULL;
    if (stream <= CU_STREAM_PER_THREAD || !d->cuStreamGetCtx)
        return d->cuCtxGetDevice && d->cuCtxGetDevice(device) == CUDA_SUCCESS;
    if (d->cuStreamGetCtx(stream, &own) != CUDA_SUCCESS)
        return false;
    if (d->cuCtxGetCurrent(&current) == CUDA_SUCCESS && current == own)
        return d->cuCtxGetDevice(device) == CUDA_SUCCESS;
    if (d->cuCtxPushCurrent_v2(own) != CUDA_SUCCESS)
        return false;
    bool found = d->cuCtxGetDevice(device) == CUDA_SUCCESS;
    d->cuCtxPopCurrent_v2(&own);
    return found;
}

/* --- one pool; the pool lock is held --------------------------------------------------------------- */

static struct pool *find(struct process *p, CUmemoryPool handle)
{
    for (unsigned i = 0; i < MAX_POOLS; i++)
        if (p->pools[i].handle == handle)
            return &p->pools[i];
    return NULL;
}

static struct pool *add(struct process *p, CUmemoryPool handle, int gpu, CUdevice device)
{
    struct pool *pool = find(p, NULL);
    if (pool)
        *pool = (struct pool){handle, gpu, device, 0, 0, 2u << 20};
    return pool;
}

static uint64_t reserved(struct driver *d, const struct pool *pool)
{
    uint64_t bytes = 0;
    if (!d->cuMemPoolGetAttribute ||
        d->cuMemPoolGetAttribute(pool->handle, CU_POOL_RESERVED_CURRENT, &bytes) != CUDA_SUCCESS)
        return pool->charged;
    return bytes;
}

/* Charges what the pool holds now, be it more or less than before. */
static void settle(struct driver *d, struct process *p, struct pool *pool)
{
    uint64_t holds = reserved(d, pool);
    holds = holds > pool->live ? holds : pool->live;
    if (holds > pool->charged)
        charge_anyway(p, (unsigned)pool->gpu, holds - pool->charged);
    else
        uncharge(p, (unsigned)pool->gpu, pool->charged - holds);
    pool->charged = holds;
}

static void *hook_real(struct driver *d, int index)
{
    return d->real[index];
}

static void shrink_locked(struct driver *d, struct process *p, unsigned gpu)
{
    for (int trim = 0; trim < 2; trim++) {
        for (unsigned i = 0; i < MAX_POOLS; i++) {
            struct pool *pool = &p->pools[i];
            if (!pool->handle || pool->gpu != (int)gpu)
                continue;
            /* As the driver itself does before it is out of memory. */
            if (trim && pool->charged > pool->live && hook_real(d, H_cuMemPoolTrimTo))
                REAL(hook_real(d, H_cuMemPoolTrimTo), (CUmemoryPool, size_t), (pool->handle, 0));
            settle(d, p, pool);
        }
    }
}

void pools_shrink(struct driver *d, struct process *p, unsigned gpu)
{
    lock_take(&p->pool_lock);
    shrink_locked(d, p, gpu);
    lock_give(&p->pool_lock);
}

/* The growth that `bytes` more will need, by the chunks the pool was seen to grow by. */
static uint64_t growth(const struct pool *pool, uint64_t bytes)
{
    uint64_t need = pool->live + bytes;
    if (need <= pool->charged)
        return 0;
    need -= pool->charged;
    return (need + pool->chunk - 1) / pool->chunk * pool->chunk;
}

static bool charge_growth(struct driver *d, struct process *p, struct pool *pool, uint64_t bytes)
{
    uint64_t more = growth(pool, bytes);
    if (!more)
        return true;
    if (charge(p, (unsigned)pool->gpu, more)) {
        pool->charged += more;
        return true;
    }
    shrink_locked(d, p, (unsigned)pool->gpu);
    more = growth(pool, bytes);
    if (more && !charge(p, (unsigned)pool->gpu, more))
        return false;
    pool->charged += more;
    return true;
}

/* The driver gave more than there was room for: the pool grew by more than was known. */
static void give_back(struct driver *d, struct process *p, struct pool *pool, CUdeviceptr pointer,
                      CUstream stream)
{
    if (hook_real(d, H_cuMemFreeAsync))
        REAL(hook_real(d, H_cuMemFreeAsync), (CUdeviceptr, CUstream), (pointer, stream));
    shrink_locked(d, p, (unsigned)pool->gpu);
}

static int allocate_locked(struct driver *d, struct process *p, struct pool *pool, void *real,
                           CUmemoryPool from, CUdeviceptr *pointer, size_t n, CUstream stream)
{
    uint64_t bytes = rounded(n), before = reserved(d, pool);
    if (bytes < n || bytes > UINT64_MAX / 4 || !table_reserve(&p->table) ||
        !charge_growth(d, p, pool, bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    int result = from ? REAL(real, (CUdeviceptr *, size_t, CUmemoryPool, CUstream),
                             (pointer, n, from, stream))
                      : REAL(real, (CUdeviceptr *, size_t, CUstream), (pointer, n, stream));
    if (result == CUDA_SUCCESS)
        pool->live += bytes;
    settle(d, p, pool);
    uint64_t grown = reserved(d, pool) - before;
    if (grown < 1ull << 40 && grown > bytes && grown > pool->chunk)
        pool->chunk = grown;
    if (result != CUDA_SUCCESS)
        return result;
    if (grown && above_limit(p, (unsigned)pool->gpu)) {
        pool->live -= bytes;
        give_back(d, p, pool, *pointer, stream);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    table_put(&p->table, (struct entry){
                             .key = *pointer,
                             .kind = POINTER,
                             .gpu = pool->gpu,
                             .bytes = bytes,
                             .extra = pool,
                             .number = (uint64_t)(uintptr_t)pool->handle,
                         });
    return result;
}

static int allocate(struct driver *d, void *real, CUmemoryPool from, CUdeviceptr *pointer, size_t n,
                    CUstream stream)
{
    struct process *p = account();
    CUdevice device = 0;
    CUmemoryPool handle = from;
    int result = CUDA_ERROR_OUT_OF_MEMORY;
    if (!p)
        return result;
    if (capturing(d, stream) || !stream_device(d, stream, &device) || !pointer ||
        (!handle && (!d->cuDeviceGetMemPool || d->cuDeviceGetMemPool(&handle, device))))
        return from ? REAL(real, (CUdeviceptr *, size_t, CUmemoryPool, CUstream),
                           (pointer, n, from, stream))
                    : REAL(real, (CUdeviceptr *, size_t, CUstream), (pointer, n, stream));
    int gpu = gpu_of_device(d, p, device);
    lock_take(&p->pool_lock);
    struct pool *pool = find(p, handle);
    if (!pool) /* a default pool, which nobody created */
        pool = add(p, handle, gpu, device);
    if (pool && pool->gpu == REFUSED && gpu != REFUSED)
        result = REAL(real, (CUdeviceptr *, size_t, CUmemoryPool, CUstream),
                      (pointer, n, handle, stream)); /* host memory, or the exporter's */
    else if (pool && pool->gpu != REFUSED)
        result = allocate_locked(d, p, pool, real, from, pointer, n, stream);
    lock_give(&p->pool_lock);
    return result;
}

int pool_alloc(struct driver *d, void *real, CUdeviceptr *p, size_t n, CUstream s)
{
    return allocate(d, real, NULL, p, n, s);
}

int pool_alloc_from(struct driver *d, void *real, CUdeviceptr *p, size_t n, CUmemoryPool pool,
                    CUstream s)
{
    return allocate(d, real, pool, p, n, s);
}

/* --- freeing ------------------------------------------------------------------------------------- */

void pool_freed(struct driver *d, struct process *p, const struct entry *entry)
{
    struct pool *pool = entry->extra;
    lock_take(&p->pool_lock);
    if ((uint64_t)(uintptr_t)pool->handle != entry->number) {
        uncharge(p, (unsigned)entry->gpu, entry->bytes); /* its pool was destroyed before it */
    } else {
        pool->live -= entry->bytes < pool->live ? entry->bytes : pool->live;
        settle(d, p, pool);
    }
    lock_give(&p->pool_lock);
}

int pool_free(struct driver *d, void *real, CUdeviceptr ptr, CUstream s)
{
    struct process *p = account();
    struct entry entry;
    if (!p || capturing(d, s) || !table_take(&p->table, POINTER, ptr, &entry))
        return REAL(real, (CUdeviceptr, CUstream), (ptr, s));
    int result = REAL(real, (CUdeviceptr, CUstream), (ptr, s));
    if (result != CUDA_SUCCESS)
        table_put(&p->table, entry);
    else if (entry.extra)
        pool_freed(d, p, &entry);
    else
        uncharge(p, (unsigned)entry.gpu, entry.bytes);
    return result;
}

/* --- pools of the program's own -------------------------------------------------------------------- */

int pool_create(struct driver *d, void *real, CUmemoryPool *handle, const CUmemPoolProps *props)
{
    struct process *p = account();
    if (!p)
        return CUDA_ERROR_OUT_OF_MEMORY;
    lock_take(&p->pool_lock);
    int result = CUDA_ERROR_OUT_OF_MEMORY;
    if (find(p, NULL)) {
        result = REAL(real, (CUmemoryPool *, const CUmemPoolProps *), (handle, props));
        if (result == CUDA_SUCCESS) {
            int type = props->location.type, gpu = REFUSED;
            CUdevice device = props->location.id;
            if (type == CU_LOCATION_DEVICE_LOCALITY_DOMAIN)
                device &= 0xff;
            if (type < CU_LOCATION_HOST || type > CU_LOCATION_HOST_NUMA_CURRENT)
                gpu = gpu_of_device(d, p, device);
            add(p, *handle, gpu, device);
        }
    }
    lock_give(&p->pool_lock);
    return result;
}

int pool_import(struct driver *d, void *real, CUmemoryPool *handle, void *os_handle, int type,
                unsigned long long flags)
{
    (void)d;
    struct process *p = account();
    int result = REAL(real, (CUmemoryPool *, void *, int, unsigned long long),
                      (handle, os_handle, type, flags));
    if (!p || result != CUDA_SUCCESS)
        return result;
    lock_take(&p->pool_lock);
    add(p, *handle, REFUSED, 0); /* the exporter's memory */
    lock_give(&p->pool_lock);
    return result;
}

int pool_destroy(struct driver *d, void *real, CUmemoryPool handle)
{
    (void)d;
    struct process *p = account();
    if (!p)
        return REAL(real, (CUmemoryPool), (handle));
    lock_take(&p->pool_lock);
    struct pool *pool = handle ? find(p, handle) : NULL;
    int result = REAL(real, (CUmemoryPool), (handle));
    if (pool && result == CUDA_SUCCESS) {
        /* What is still allocated stays until it is freed. */
        if (pool->gpu >= 0)
            uncharge(p, (unsigned)pool->gpu, pool->charged - pool->live);
        *pool = (struct pool){0};
    }
    lock_give(&p->pool_lock);
    return result;
}

int pool_trim(struct driver *d, void *real, CUmemoryPool handle, size_t keep)
{
    struct process *p = account();
    int result = REAL(real, (CUmemoryPool, size_t), (handle, keep));
    if (!p || result != CUDA_SUCCESS)
        return result;
    lock_take(&p->pool_lock);
    struct pool *pool = handle ? find(p, handle) : NULL;
    if (pool && pool->gpu >= 0)
        settle(d, p, pool);
    lock_give(&p->pool_lock);
    return result;
}
