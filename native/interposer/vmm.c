/* Virtual memory management. One object per allocation, with references (create, import, retain)
 * and mappings; its memory is given back when both are gone. NCCL frees by retain, release, unmap,
 * release. An imported object is its exporter's; see region.h for what happens when that dies. */
#include <stdlib.h>

#include "account.h"
#include "implementations.h"

enum { MAX_NAMES = 4 };

struct object {
    uint64_t bytes;
    int gpu; /* REFUSED: host memory */
    bool imported, exported;
    unsigned references, mappings, names;
    CUmemGenericAllocationHandle name[MAX_NAMES]; /* handles that the driver gave for it */
};

static struct object *object_of(struct process *p, CUmemGenericAllocationHandle handle)
{
    struct entry entry;
    return table_find(&p->table, HANDLE, handle, &entry) ? entry.extra : NULL;
}

static void add_name(struct process *p, struct object *object, CUmemGenericAllocationHandle handle)
{
    if (object->names == MAX_NAMES || object_of(p, handle) == object)
        return;
    object->name[object->names++] = handle;
    table_put(&p->table, (struct entry){.key = handle, .kind = HANDLE, .gpu = -1, .extra = object});
}

static void maybe_gone(struct process *p, struct object *object)
{
    struct entry ignored;
    if (object->references || object->mappings)
        return;
    for (unsigned i = 0; i < object->names; i++)
        table_take(&p->table, HANDLE, object->name[i], &ignored);
    int64_t bytes = (int64_t)object->bytes;
    if (object->gpu >= 0 && object->imported)
        share(p, (unsigned)object->gpu, 0, -bytes);
    else if (object->gpu >= 0) {
        if (object->exported)
            share(p, (unsigned)object->gpu, -bytes, 0);
        uncharge(p, (unsigned)object->gpu, object->bytes);
    }
    free(object);
}

static int location_gpu(struct driver *d, struct process *p, const CUmemLocation *location)
{
    if (location->type >= CU_LOCATION_HOST && location->type <= CU_LOCATION_HOST_NUMA_CURRENT)
        return NO_CONTEXT;
    /* Any kind we do not know is charged too, to the device that it most likely names. */
    return gpu_of_device(d, p, location->type == CU_LOCATION_DEVICE ? location->id
                                                                    : location->id & 0xff);
}

int vmm_create(struct driver *d, void *real, CUmemGenericAllocationHandle *h, size_t n,
               const CUmemAllocationProp *prop, unsigned long long flags)
{
    struct process *p = account();
    if (!p)
        return CUDA_ERROR_OUT_OF_MEMORY;
    int gpu = prop ? location_gpu(d, p, &prop->location) : NO_CONTEXT;
    if (gpu == NO_CONTEXT)
        return REAL(real, (CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *,
                           unsigned long long), (h, n, prop, flags));
    struct object *object = calloc(1, sizeof *object);
    if (gpu == REFUSED || !object || !table_reserve(&p->table) ||
        !charge_or_shrink(d, p, (unsigned)gpu, n)) {
        free(object);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    lock_take(&p->vmm_lock);
    int result = REAL(real, (CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *,
                             unsigned long long), (h, n, prop, flags));
    if (result == CUDA_SUCCESS) {
        *object = (struct object){.bytes = n, .gpu = gpu, .references = 1};
        add_name(p, object, *h);
    } else {
        uncharge(p, (unsigned)gpu, n);
        free(object);
    }
    lock_give(&p->vmm_lock);
    return result;
}

int vmm_release(struct driver *d, void *real, CUmemGenericAllocationHandle h)
{
    (void)d;
    struct process *p = account();
    if (!p)
        return REAL(real, (CUmemGenericAllocationHandle), (h));
    lock_take(&p->vmm_lock);
    struct object *object = object_of(p, h);
    int result = REAL(real, (CUmemGenericAllocationHandle), (h));
    if (object && result == CUDA_SUCCESS && object->references) {
        object->references--;
        maybe_gone(p, object);
    }
    lock_give(&p->vmm_lock);
    return result;
}

/* Only now is an imported object's size known. */
static bool charge_import(struct process *p, struct object *object, size_t n, size_t offset)
{
    uint64_t bytes = (uint64_t)n + offset;
    if (!object->imported || object->gpu < 0 || bytes <= object->bytes)
        return true;
    if (!share(p, (unsigned)object->gpu, 0, (int64_t)(bytes - object->bytes)))
        return false;
    object->bytes = bytes;
    return true;
}

int vmm_map(struct driver *d, void *real, CUdeviceptr ptr, size_t n, size_t offset,
            CUmemGenericAllocationHandle h, unsigned long long flags)
{
    (void)d;
    struct process *p = account();
    if (!p)
        return CUDA_ERROR_OUT_OF_MEMORY;
    lock_take(&p->vmm_lock);
    struct object *object = object_of(p, h);
    int result = CUDA_ERROR_OUT_OF_MEMORY;
    if (!object || (table_reserve(&p->table) && charge_import(p, object, n, offset)))
        result = REAL(real, (CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle,
                             unsigned long long), (ptr, n, offset, h, flags));
    if (object && result == CUDA_SUCCESS) {
        object->mappings++;
        table_put(&p->table, (struct entry){.key = ptr, .kind = MAPPING, .gpu = -1,
                                            .extra = object, .number = n});
    }
    lock_give(&p->vmm_lock);
    return result;
}

struct range {
    CUdeviceptr start;
    size_t size;
};

static bool in_range(const struct entry *entry, const void *context)
{
    const struct range *range = context;
    return entry->kind == MAPPING && entry->key - range->start < range->size;
}

int vmm_unmap(struct driver *d, void *real, CUdeviceptr ptr, size_t n)
{
    (void)d;
    struct process *p = account();
    if (!p)
        return REAL(real, (CUdeviceptr, size_t), (ptr, n));
    lock_take(&p->vmm_lock);
    int result = REAL(real, (CUdeviceptr, size_t), (ptr, n));
    struct range range = {ptr, n};
    struct entry entry;
    uint64_t from = 0;
    while (result == CUDA_SUCCESS && n) {
        /* One mapping as a rule; several at once may be unmapped too. */
        if (table_take(&p->table, MAPPING, range.start, &entry)) {
            n -= entry.number < n ? entry.number : n;
            range.start += entry.number;
            range.size = n;
        } else if (!table_take_if(&p->table, &from, &entry, in_range, &range)) {
            break;
        }
        struct object *object = entry.extra;
        object->mappings--;
        maybe_gone(p, object);
    }
    lock_give(&p->vmm_lock);
    return result;
}

static bool maps_address(const struct entry *entry, const void *context)
{
    return entry->kind == MAPPING && (CUdeviceptr)(uintptr_t)context - entry->key < entry->number;
}

static struct object *object_at(struct process *p, void *address)
{
    struct entry entry;
    uint64_t from = 0;
    if (table_find(&p->table, MAPPING, (CUdeviceptr)(uintptr_t)address, &entry))
        return entry.extra;
    if (!table_take_if(&p->table, &from, &entry, maps_address, address))
        return NULL;
    table_put(&p->table, entry);
    return entry.extra;
}

int vmm_retain(struct driver *d, void *real, CUmemGenericAllocationHandle *h, void *address)
{
    (void)d;
    struct process *p = account();
    if (!p)
        return REAL(real, (CUmemGenericAllocationHandle *, void *), (h, address));
    lock_take(&p->vmm_lock);
    int result = REAL(real, (CUmemGenericAllocationHandle *, void *), (h, address));
    struct object *object = result == CUDA_SUCCESS ? object_at(p, address) : NULL;
    if (object) {
        object->references++;
        add_name(p, object, *h);
    }
    lock_give(&p->vmm_lock);
    return result;
}

int vmm_export(struct driver *d, void *real, void *out, CUmemGenericAllocationHandle h, int type,
               unsigned long long flags)
{
    (void)d;
    struct process *p = account();
    int result = REAL(real, (void *, CUmemGenericAllocationHandle, int, unsigned long long),
                      (out, h, type, flags));
    if (!p || result != CUDA_SUCCESS)
        return result;
    lock_take(&p->vmm_lock);
    struct object *object = object_of(p, h);
    if (object && object->gpu >= 0 && !object->imported && !object->exported) {
        object->exported = true;
        share(p, (unsigned)object->gpu, (int64_t)object->bytes, 0);
    }
    lock_give(&p->vmm_lock);
    return result;
}

int vmm_import(struct driver *d, void *real, CUmemGenericAllocationHandle *h, void *os_handle,
               int type)
{
    struct process *p = account();
    if (!p)
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct object *object = calloc(1, sizeof *object);
    if (!object || !table_reserve(&p->table)) {
        free(object);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    lock_take(&p->vmm_lock);
    int result = REAL(real, (CUmemGenericAllocationHandle *, void *, int), (h, os_handle, type));
    struct object *known = result == CUDA_SUCCESS ? object_of(p, *h) : NULL;
    if (known) {
        known->references++;
        free(object);
    } else if (result == CUDA_SUCCESS) {
        /* Its location is asked for by a helper below; without it, the current device's. */
        CUmemAllocationProp prop = {.location = {CU_LOCATION_DEVICE, 0}};
        if (d->cuMemGetAllocationPropertiesFromHandle)
            d->cuMemGetAllocationPropertiesFromHandle(&prop, *h);
        int gpu = location_gpu(d, p, &prop.location);
        *object = (struct object){.gpu = gpu, .imported = true, .references = 1};
        add_name(p, object, *h);
    } else {
        free(object);
    }
    lock_give(&p->vmm_lock);
    return result;
}
