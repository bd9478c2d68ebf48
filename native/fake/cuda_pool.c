/* Stream-ordered memory of the fake driver: pools that grow in chunks and give memory back only at
 * a synchronisation, graphs with allocation nodes, and stream capture. */
#include <stdlib.h>
#include <string.h>

#include "cuda.h"

static struct CUmemPool_st defaults[FAKE_MAX_GPUS];
static CUmemoryPool chosen[FAKE_MAX_GPUS];

static CUmemoryPool pool_of(unsigned gpu)
{
    defaults[gpu].gpu = gpu;
    return chosen[gpu] ? chosen[gpu] : &defaults[gpu];
}

/* Gives back what is above both use and `keep`. Call with the lock. */
static void shrink(CUmemoryPool pool, uint64_t keep)
{
    uint64_t floor = pool->used > keep ? pool->used : keep;
    uint64_t rounded = (floor + fake->pool_chunk - 1) / fake->pool_chunk * fake->pool_chunk;
    if (pool->reserved > rounded) {
        if (!pool->host)
            fake_give(fake, pool->gpu, pool->reserved - rounded);
        pool->reserved = rounded;
    }
}

enum { MAX_POOLS = 256 };
static CUmemoryPool pools[MAX_POOLS];

void pools_synchronise(void)
{
    if (!fake)
        return;
    pthread_mutex_lock(&process_lock);
    for (unsigned i = 0; i < fake->gpu_count; i++)
        shrink(&defaults[i], defaults[i].threshold);
    for (unsigned i = 0; i < MAX_POOLS; i++)
        if (pools[i])
            shrink(pools[i], pools[i]->threshold);
    pthread_mutex_unlock(&process_lock);
}

API cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *props)
{
    CUresult result;
    if (!driver(&result))
        return result;
    CUmemoryPool fresh = calloc(1, sizeof *fresh);
    fresh->host = props->location.type != CU_LOCATION_DEVICE;
    fresh->gpu = fresh->host ? 0 : (unsigned)props->location.id;
    pthread_mutex_lock(&process_lock);
    for (unsigned i = 0; i < MAX_POOLS; i++) {
        if (!pools[i]) {
            pools[i] = fresh;
            break;
        }
    }
    pthread_mutex_unlock(&process_lock);
    *pool = fresh;
    return CUDA_SUCCESS;
}

API cuMemPoolDestroy(CUmemoryPool pool)
{
    pthread_mutex_lock(&process_lock);
    for (unsigned i = 0; i < MAX_POOLS; i++)
        if (pools[i] == pool)
            pools[i] = NULL;
    if (!pool->host)
        fake_give(fake, pool->gpu, pool->reserved);
    pthread_mutex_unlock(&process_lock);
    free(pool);
    return CUDA_SUCCESS;
}

API cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
    pthread_mutex_lock(&process_lock);
    shrink(pool, keep);
    pthread_mutex_unlock(&process_lock);
    return CUDA_SUCCESS;
}

API cuMemPoolGetAttribute(CUmemoryPool pool, int attribute, void *value)
{
    uint64_t *number = value;
    switch (attribute) {
    case CU_POOL_RELEASE_THRESHOLD: *number = pool->threshold; break;
    case CU_POOL_RESERVED_CURRENT: *number = pool->reserved; break;
    case CU_POOL_USED_CURRENT: *number = pool->used; break;
    default: *number = 0;
    }
    return CUDA_SUCCESS;
}

API cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void *value)
{
    if (attribute == CU_POOL_RELEASE_THRESHOLD)
        pool->threshold = *(uint64_t *)value;
    return CUDA_SUCCESS;
}

API cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device)
{
    defaults[device].gpu = (unsigned)device;
    *pool = &defaults[device];
    return CUDA_SUCCESS;
}

API cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device)
{
    *pool = pool_of((unsigned)device);
    return CUDA_SUCCESS;
}

API cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool)
{
    chosen[device] = pool;
    return CUDA_SUCCESS;
}

static CUresult pool_take(CUmemoryPool pool, CUdeviceptr *pointer, size_t size, CUcontext context)
{
    uint64_t need = pool->used + size;
    if (need > pool->reserved) {
        uint64_t grown = (need + fake->pool_chunk - 1) / fake->pool_chunk * fake->pool_chunk;
        if (!pool->host && !fake_take(fake, pool->gpu, grown - pool->reserved))
            return CUDA_ERROR_OUT_OF_MEMORY;
        pool->reserved = grown;
    }
    CUdeviceptr address = address_take(size);
    if (!address)
        return CUDA_ERROR_OUT_OF_MEMORY;
    pool->used += size;
    allocation_add((struct allocation){address, size, POOLED, pool->gpu, context, pool});
    *pointer = address;
    return CUDA_SUCCESS;
}

static CUresult allocate(CUmemoryPool pool, CUdeviceptr *pointer, size_t size, CUstream stream)
{
    CUcontext context = stream_context(stream);
    CUresult result;
    if (!driver(&result))
        return result;
    if (!context)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!size || !pointer)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&process_lock);
    if (stream > CU_STREAM_PER_THREAD && stream->capturing) {
        *pointer = address_take(size);
        graph_add_alloc(stream->capturing, *pointer, size, context->gpu);
    } else {
        result = pool_take(pool ? pool : pool_of(context->gpu), pointer, size, context);
    }
    pthread_mutex_unlock(&process_lock);
    return result;
}

API cuMemAllocAsync(CUdeviceptr *pointer, size_t size, CUstream stream)
{
    return allocate(NULL, pointer, size, stream);
}

API cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t size, CUmemoryPool pool, CUstream stream)
{
    return allocate(pool, pointer, size, stream);
}

API cuMemFreeAsync(CUdeviceptr pointer, CUstream stream)
{
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&process_lock);
    if (stream > CU_STREAM_PER_THREAD && stream->capturing) {
        if (!graph_add_free(stream->capturing, pointer))
            result = CUDA_ERROR_INVALID_VALUE;
    } else {
        struct allocation *allocation = allocation_find(pointer);
        if (!allocation) {
            result = CUDA_ERROR_INVALID_VALUE;
        } else {
            if (allocation->kind == POOLED)
                allocation->pool->used -= allocation->size;
            else if (allocation->kind != GRAPH_NODE)
                linear_give(allocation->gpu, allocation->size);
            allocation_drop(allocation);
        }
    }
    pthread_mutex_unlock(&process_lock);
    return result;
}

API cuMemAllocAsync_ptsz(CUdeviceptr *pointer, size_t size, CUstream stream)
{
    return cuMemAllocAsync(pointer, size, stream);
}

API cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *pointer, size_t size, CUmemoryPool pool,
                                 CUstream stream)
{
    return cuMemAllocFromPoolAsync(pointer, size, pool, stream);
}

API cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream)
{
    return cuMemFreeAsync(pointer, stream);
}
