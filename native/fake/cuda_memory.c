/* Linear, managed and array memory of the fake driver, copies, and external memory. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "cuda.h"

/* --- addresses: a reserved range, first the freed pieces of the same size, then the rest ------- */

#define RANGE_BYTES (1ull << 41)
enum { ALIGNMENT = 512, BINS = 64, BIN_DEPTH = 1024 };

static CUdeviceptr range_start, range_next;
static struct {
    size_t size;
    unsigned count;
    CUdeviceptr freed[BIN_DEPTH];
} bins[BINS];

static size_t address_size(size_t size)
{
    size_t unit = size > SMALL ? BLOCK : ALIGNMENT;
    return (size + unit - 1) / unit * unit;
}

CUdeviceptr address_take(size_t size)
{
    size = address_size(size);
    if (!range_start) {
        void *range = mmap(NULL, RANGE_BYTES, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (range == MAP_FAILED)
            return 0;
        madvise(range, RANGE_BYTES, MADV_DONTDUMP);
        range_start = range_next = (block_round((CUdeviceptr)range));
    }
    for (unsigned i = 0; i < BINS; i++)
        if (bins[i].size == size && bins[i].count)
            return bins[i].freed[--bins[i].count];
    if (size > SMALL)
        range_next = block_round(range_next);
    if (range_next + size > range_start + RANGE_BYTES - BLOCK)
        return 0;
    range_next += size;
    return range_next - size;
}

void address_give(CUdeviceptr address, size_t size)
{
    size = address_size(size);
    for (unsigned i = 0; i < BINS; i++) {
        if (bins[i].size && bins[i].size != size && bins[i].count)
            continue;
        if (bins[i].size == size && bins[i].count == BIN_DEPTH)
            return;
        bins[i].size = size;
        bins[i].freed[bins[i].count++] = address;
        return;
    }
}

/* --- the table of allocations ------------------------------------------------------------------ */

static struct allocation *table;
static size_t table_room, table_used;

static size_t place(CUdeviceptr address)
{
    return (size_t)((address >> 9) * 0x9e3779b97f4a7c15ull >> 20) & (table_room - 1);
}

static void table_grow(void)
{
    struct allocation *old = table;
    size_t old_room = table_room;
    table_room = old_room ? old_room * 2 : 1024;
    table = calloc(table_room, sizeof *table);
    table_used = 0;
    for (size_t i = 0; i < old_room; i++)
        if (old[i].address > 1)
            allocation_add(old[i]);
    free(old);
}

struct allocation *allocation_add(struct allocation allocation)
{
    if (table_used * 2 >= table_room)
        table_grow();
    size_t at = place(allocation.address);
    while (table[at].address > 1)
        at = (at + 1) & (table_room - 1);
    table_used += table[at].address == 0;
    table[at] = allocation;
    return &table[at];
}

struct allocation *allocation_find(CUdeviceptr address)
{
    if (!table_room || address < 2)
        return NULL;
    for (size_t at = place(address); table[at].address; at = (at + 1) & (table_room - 1))
        if (table[at].address == address)
            return &table[at];
    return NULL;
}

void allocation_drop(struct allocation *allocation)
{
    address_give(allocation->address, allocation->size);
    allocation->address = 1;
}

void allocation_each(CUcontext context, void (*drop)(struct allocation *))
{
    for (size_t i = 0; i < table_room; i++)
        if (table[i].address > 1 && table[i].context == context)
            drop(&table[i]);
}

/* --- physical memory --------------------------------------------------------------------------- */

static uint64_t small_bytes[FAKE_MAX_GPUS];

int linear_take(unsigned gpu, size_t size)
{
    uint64_t need = block_round(size);
    if (size <= SMALL) {
        uint64_t rounded = address_size(size);
        need = block_round(small_bytes[gpu] + rounded) - block_round(small_bytes[gpu]);
        if (need && !fake_take(fake, gpu, need))
            return 0;
        small_bytes[gpu] += rounded;
        return 1;
    }
    return fake_take(fake, gpu, need);
}

void linear_give(unsigned gpu, size_t size)
{
    uint64_t back = block_round(size);
    if (size <= SMALL) {
        uint64_t before = block_round(small_bytes[gpu]);
        small_bytes[gpu] -= address_size(size);
        back = before - block_round(small_bytes[gpu]);
    }
    if (back)
        fake_give(fake, gpu, back);
}

static CUresult allocate(CUdeviceptr *pointer, size_t size, enum kind kind)
{
    CUresult result = require_context();
    if (result != CUDA_SUCCESS)
        return result;
    if (!pointer || !size)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&process_lock);
    result = CUDA_ERROR_OUT_OF_MEMORY;
    if (linear_take(current->gpu, size)) {
        CUdeviceptr address = address_take(size);
        if (address) {
            allocation_add((struct allocation){address, size, kind, current->gpu, current, NULL});
            *pointer = address;
            result = CUDA_SUCCESS;
        } else {
            linear_give(current->gpu, size);
        }
    }
    pthread_mutex_unlock(&process_lock);
    return result;
}

API cuMemAlloc_v2(CUdeviceptr *pointer, size_t size)
{
    return allocate(pointer, size, LINEAR);
}

/* The first generation had 32-bit pointers. The low half is enough for a test to give back. */
static CUdeviceptr v1_pointers[4096];

API cuMemAlloc(CUdeviceptr_v1 *pointer, unsigned size)
{
    CUdeviceptr full;
    CUresult result = allocate(&full, size, LINEAR);
    if (result != CUDA_SUCCESS)
        return result;
    for (unsigned i = 1; i < 4096; i++) {
        if (!v1_pointers[i]) {
            v1_pointers[i] = full;
            *pointer = i << 9;
            break;
        }
    }
    return result;
}

API cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height,
                       unsigned element)
{
    (void)element;
    *pitch = (width + 511) / 512 * 512;
    return allocate(pointer, *pitch * height, LINEAR);
}

API cuMemAllocManaged(CUdeviceptr *pointer, size_t size, unsigned flags)
{
    (void)flags;
    return allocate(pointer, size, MANAGED);
}

static void pooled_give(struct allocation *allocation)
{
    allocation->pool->used -= allocation->size;
}

API cuMemFree_v2(CUdeviceptr pointer)
{
    CUresult result = require_context();
    if (result != CUDA_SUCCESS || !pointer)
        return result;
    pthread_mutex_lock(&process_lock);
    struct allocation *allocation = allocation_find(pointer);
    if (!allocation || allocation->kind == RANGE) {
        result = CUDA_ERROR_INVALID_VALUE;
    } else {
        if (allocation->kind == POOLED)
            pooled_give(allocation);
        else if (allocation->kind != GRAPH_NODE)
            linear_give(allocation->gpu, allocation->size);
        allocation_drop(allocation);
    }
    pthread_mutex_unlock(&process_lock);
    return result;
}

API cuMemFree(CUdeviceptr_v1 pointer)
{
    CUdeviceptr full = v1_pointers[pointer >> 9 & 4095];
    v1_pointers[pointer >> 9 & 4095] = 0;
    return cuMemFree_v2(full);
}

static void owned_drop(struct allocation *allocation)
{
    if (allocation->kind == LINEAR || allocation->kind == MANAGED) {
        linear_give(allocation->gpu, allocation->size);
        allocation_drop(allocation);
    }
}

void context_release_memory(CUcontext context)
{
    allocation_each(context, owned_drop);
}

API cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    CUresult result = require_context();
    if (result != CUDA_SUCCESS)
        return result;
    if (!free_bytes || !total)
        return CUDA_ERROR_INVALID_VALUE;
    const struct fake_gpu *gpu = &fake->gpus[current->gpu];
    *total = gpu->total - gpu->reserved;
    *free_bytes = *total - gpu->used;
    return CUDA_SUCCESS;
}

API cuMemGetInfo(unsigned *free_bytes, unsigned *total)
{
    size_t all, left;
    CUresult result = cuMemGetInfo_v2(&left, &all);
    if (result == CUDA_SUCCESS) {
        *total = all > UINT32_MAX ? UINT32_MAX : (unsigned)all;
        *free_bytes = left > UINT32_MAX ? UINT32_MAX : (unsigned)left;
    }
    return result;
}

API cuMemHostAlloc(void **pointer, size_t size, unsigned flags)
{
    (void)flags;
    *pointer = malloc(size);
    return *pointer ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

API cuMemFreeHost(void *pointer)
{
    free(pointer);
    return CUDA_SUCCESS;
}

API cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t size)
{
    memcpy((void *)to, from, size);
    return CUDA_SUCCESS;
}

API cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t size)
{
    memcpy(to, (const void *)from, size);
    return CUDA_SUCCESS;
}

API cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t size, CUstream stream)
{
    (void)stream;
    return cuMemcpyHtoD_v2(to, from, size);
}

API cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t size, CUstream stream)
{
    (void)stream;
    return cuMemcpyDtoH_v2(to, from, size);
}

API cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t size)
{
    memset((void *)to, value, size);
    return CUDA_SUCCESS;
}

API cuPointerGetAttribute(void *value, int attribute, CUdeviceptr pointer)
{
    (void)value, (void)attribute, (void)pointer;
    return CUDA_ERROR_INVALID_VALUE;
}

/* --- arrays ------------------------------------------------------------------------------------ */

struct CUarray_st {
    unsigned gpu;
    size_t size;
};

struct CUmipmappedArray_st {
    struct CUarray_st array;
};

static size_t element_size(int format)
{
    switch (format) {
    case 0x01: case 0x08: return 1;
    case 0x02: case 0x09: case 0x10: return 2;
    default: return 4;
    }
}

static size_t array_size(const CUDA_ARRAY3D_DESCRIPTOR *d)
{
    if (d->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING))
        return 0;
    return d->Width * (d->Height ? d->Height : 1) * (d->Depth ? d->Depth : 1) * d->NumChannels *
           element_size(d->Format);
}

static CUresult array_create(CUarray *array, size_t size)
{
    CUresult result = require_context();
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&process_lock);
    if (size && !linear_take(current->gpu, size)) {
        result = CUDA_ERROR_OUT_OF_MEMORY;
    } else {
        *array = calloc(1, sizeof **array);
        **array = (struct CUarray_st){current->gpu, size};
    }
    pthread_mutex_unlock(&process_lock);
    return result;
}

API cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *d)
{
    return array_create(array, array_size(d));
}

API cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *d)
{
    CUDA_ARRAY3D_DESCRIPTOR full = {d->Width, d->Height, 0, d->Format, d->NumChannels, 0};
    return array_create(array, array_size(&full));
}

API cuArrayCreate(CUarray *array, const CUDA_ARRAY_DESCRIPTOR_v1 *d)
{
    CUDA_ARRAY3D_DESCRIPTOR full = {d->Width, d->Height, 0, d->Format, d->NumChannels, 0};
    return array_create(array, array_size(&full));
}

API cuArray3DCreate(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR_v1 *d)
{
    CUDA_ARRAY3D_DESCRIPTOR full = {d->Width, d->Height, d->Depth, d->Format, d->NumChannels,
                                    d->Flags};
    return array_create(array, array_size(&full));
}

API cuArrayDestroy(CUarray array)
{
    if (!array)
        return CUDA_ERROR_INVALID_HANDLE;
    pthread_mutex_lock(&process_lock);
    if (array->size)
        linear_give(array->gpu, array->size);
    pthread_mutex_unlock(&process_lock);
    free(array);
    return CUDA_SUCCESS;
}

API cuMipmappedArrayCreate(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *d,
                           unsigned levels)
{
    size_t size = 0;
    CUDA_ARRAY3D_DESCRIPTOR level = *d;
    for (unsigned i = 0; i < levels; i++) {
        size += array_size(&level);
        level.Width = level.Width > 1 ? level.Width / 2 : 1;
        level.Height = level.Height > 1 ? level.Height / 2 : level.Height;
    }
    return array_create((CUarray *)array, size);
}

API cuMipmappedArrayDestroy(CUmipmappedArray array)
{
    return cuArrayDestroy((CUarray)array);
}

/* --- external memory: another API's, on the device of the current context ---------------------- */

API cuImportExternalMemory(CUexternalMemory *memory, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *d)
{
    return array_create((CUarray *)memory, d->size);
}

API cuDestroyExternalMemory(CUexternalMemory memory)
{
    return cuArrayDestroy((CUarray)memory);
}
