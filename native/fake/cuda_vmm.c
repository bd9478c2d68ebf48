/* Virtual memory management of the fake driver: handles with references and mappings. An export is
 * a memfd that carries the size; an import adds a reference here, the memory stays the exporter's
 * while it lives. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cuda.h"

struct object {
    unsigned references, mappings, gpu;
    int host, imported;
    size_t size;
};

struct mapping {
    CUdeviceptr address;
    size_t size;
    struct object *object;
};

enum { MAX_MAPPINGS = 4096 };
static struct mapping mappings[MAX_MAPPINGS];

static void maybe_free(struct object *object)
{
    if (object->references || object->mappings)
        return;
    if (!object->host && !object->imported)
        fake_give(fake, object->gpu, object->size);
    free(object);
}

API cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop, int option)
{
    (void)prop, (void)option;
    *granularity = BLOCK;
    return CUDA_SUCCESS;
}

API cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
                unsigned long long flags)
{
    CUresult result;
    (void)flags;
    if (!driver(&result))
        return result;
    if (!size || size % BLOCK)
        return CUDA_ERROR_INVALID_VALUE;
    int type = prop->location.type;
    int host = type >= CU_LOCATION_HOST && type <= CU_LOCATION_HOST_NUMA_CURRENT;
    unsigned gpu = host ? 0 : (unsigned)prop->location.id & 0xff;
    if (gpu >= fake->gpu_count)
        return CUDA_ERROR_INVALID_DEVICE;
    if (!host && !fake_take(fake, gpu, size))
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct object *object = calloc(1, sizeof *object);
    *object = (struct object){1, 0, gpu, host, 0, size};
    *handle = (CUmemGenericAllocationHandle)object;
    return CUDA_SUCCESS;
}

API cuMemRelease(CUmemGenericAllocationHandle handle)
{
    struct object *object = (struct object *)handle;
    pthread_mutex_lock(&process_lock);
    CUresult result = object && object->references ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) {
        object->references--;
        maybe_free(object);
    }
    pthread_mutex_unlock(&process_lock);
    return result;
}

API cuMemAddressReserve(CUdeviceptr *pointer, size_t size, size_t alignment, CUdeviceptr wanted,
                        unsigned long long flags)
{
    (void)alignment, (void)wanted, (void)flags;
    pthread_mutex_lock(&process_lock);
    *pointer = address_take(size);
    pthread_mutex_unlock(&process_lock);
    return *pointer ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

API cuMemAddressFree(CUdeviceptr pointer, size_t size)
{
    pthread_mutex_lock(&process_lock);
    address_give(pointer, size);
    pthread_mutex_unlock(&process_lock);
    return CUDA_SUCCESS;
}

API cuMemMap(CUdeviceptr pointer, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
             unsigned long long flags)
{
    (void)offset, (void)flags;
    struct object *object = (struct object *)handle;
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&process_lock);
    for (unsigned i = 0; i < MAX_MAPPINGS; i++) {
        if (mappings[i].object)
            continue;
        mappings[i] = (struct mapping){pointer, size, object};
        object->mappings++;
        result = CUDA_SUCCESS;
        break;
    }
    pthread_mutex_unlock(&process_lock);
    return result;
}

API cuMemUnmap(CUdeviceptr pointer, size_t size)
{
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&process_lock);
    for (unsigned i = 0; i < MAX_MAPPINGS; i++) {
        struct mapping *mapping = &mappings[i];
        if (!mapping->object || mapping->address < pointer || mapping->address >= pointer + size)
            continue;
        mapping->object->mappings--;
        maybe_free(mapping->object);
        mapping->object = NULL;
        result = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&process_lock);
    return result;
}

API cuMemSetAccess(CUdeviceptr pointer, size_t size, const void *descriptions, size_t count)
{
    (void)pointer, (void)size, (void)descriptions, (void)count;
    return CUDA_SUCCESS;
}

API cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address)
{
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&process_lock);
    for (unsigned i = 0; i < MAX_MAPPINGS; i++) {
        struct mapping *mapping = &mappings[i];
        if (!mapping->object || (CUdeviceptr)address < mapping->address ||
            (CUdeviceptr)address >= mapping->address + mapping->size)
            continue;
        mapping->object->references++;
        *handle = (CUmemGenericAllocationHandle)mapping->object;
        result = CUDA_SUCCESS;
        break;
    }
    pthread_mutex_unlock(&process_lock);
    return result;
}

API cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop,
                                           CUmemGenericAllocationHandle handle)
{
    struct object *object = (struct object *)handle;
    memset(prop, 0, sizeof *prop);
    prop->type = 1;
    prop->location = (CUmemLocation){object->host ? CU_LOCATION_HOST : CU_LOCATION_DEVICE,
                                     (int)object->gpu};
    return CUDA_SUCCESS;
}

API cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle, int type,
                                 unsigned long long flags)
{
    (void)type, (void)flags;
    struct object *object = (struct object *)handle;
    int fd = memfd_create("fake-export", MFD_CLOEXEC);
    struct object copy = *object;
    if (fd < 0 || write(fd, &copy, sizeof copy) != sizeof copy)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *(int *)shareable = fd;
    return CUDA_SUCCESS;
}

API cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shareable, int type)
{
    (void)type;
    struct object copy;
    CUresult result;
    if (!driver(&result))
        return result;
    if (pread((int)(intptr_t)shareable, &copy, sizeof copy, 0) != sizeof copy)
        return CUDA_ERROR_INVALID_VALUE;
    struct object *object = calloc(1, sizeof *object);
    *object = (struct object){1, 0, copy.gpu, copy.host, 1, copy.size};
    *handle = (CUmemGenericAllocationHandle)object;
    return CUDA_SUCCESS;
}
