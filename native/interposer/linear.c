/* Linear and managed memory, arrays, and memory imported from other APIs: charge, ask the driver,
 * remember what it gave or take the charge back. */
#include "account.h"
#include "implementations.h"

struct grant {
    struct process *p;
    int gpu; /* NO_CONTEXT: left to the driver, which will refuse it */
    uint64_t bytes;
    CUcontext owner;
};

/* CUDA_SUCCESS if the driver may be asked. */
static int begin(struct driver *d, struct grant *grant, uint64_t bytes)
{
    struct process *p = grant->p = account();
    grant->bytes = rounded(bytes);
    if (!p)
        return CUDA_ERROR_OUT_OF_MEMORY;
    grant->gpu = gpu_of_current(d, p, &grant->owner);
    if (grant->gpu == NO_CONTEXT)
        return CUDA_SUCCESS;
    if (grant->gpu < 0 || !table_reserve(&p->table) ||
        !charge_or_shrink(d, p, (unsigned)grant->gpu, grant->bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return CUDA_SUCCESS;
}

static int end(struct grant *grant, int result, enum kind kind, uint64_t key)
{
    if (grant->gpu == NO_CONTEXT)
        return result;
    if (result != CUDA_SUCCESS)
        uncharge(grant->p, (unsigned)grant->gpu, grant->bytes);
    else
        table_put(&grant->p->table, (struct entry){
                                        .key = key,
                                        .kind = kind,
                                        .gpu = grant->gpu,
                                        .bytes = grant->bytes,
                                        .owner = grant->owner,
                                    });
    return result;
}

/* Out of the table before the driver frees it: from then on another thread may get the same. */
static bool forget(enum kind kind, uint64_t key, struct process **p, struct entry *entry)
{
    *p = account();
    return *p && table_take(&(*p)->table, kind, key, entry);
}

static int forgotten(struct driver *d, struct process *p, bool known, struct entry *entry,
                     int result)
{
    if (!known)
        return result;
    if (result != CUDA_SUCCESS)
        table_put(&p->table, *entry);
    else if (entry->extra)
        pool_freed(d, p, entry);
    else
        uncharge(p, (unsigned)entry->gpu, entry->bytes);
    return result;
}

#define FREE(kind, key, real_call)                             \
    do {                                                       \
        struct process *p_;                                    \
        struct entry entry_;                                   \
        bool known_ = forget((kind), (key), &p_, &entry_);     \
        return forgotten(d, p_, known_, &entry_, (real_call)); \
    } while (0)

/* --- linear ------------------------------------------------------------------------------------- */

int linear_alloc(struct driver *d, void *real, CUdeviceptr *p, size_t n)
{
    struct grant grant;
    int result = begin(d, &grant, n);
    if (result == CUDA_SUCCESS) {
        result = REAL(real, (CUdeviceptr *, size_t), (p, n));
        result = end(&grant, result, POINTER, result == CUDA_SUCCESS ? *p : 0);
    }
    return result;
}

int linear_alloc_v1(struct driver *d, void *real, CUdeviceptr_v1 *p, unsigned n)
{
    struct grant grant;
    int result = begin(d, &grant, n);
    if (result == CUDA_SUCCESS) {
        result = REAL(real, (CUdeviceptr_v1 *, unsigned), (p, n));
        result = end(&grant, result, POINTER, result == CUDA_SUCCESS ? *p : 0);
    }
    return result;
}

/* The pitch is the driver's to choose; it is charged as it turns out. */
static void true_pitch(struct grant *grant, uint64_t pitch, uint64_t height)
{
    uint64_t actual = rounded(pitch * height);
    if (grant->gpu < 0 || actual <= grant->bytes)
        return;
    charge_anyway(grant->p, (unsigned)grant->gpu, actual - grant->bytes);
    grant->bytes = actual;
}

static uint64_t area(uint64_t width, uint64_t height)
{
    uint64_t bytes;
    return __builtin_mul_overflow((width + 511) & ~511ull, height, &bytes) ? UINT64_MAX : bytes;
}

int linear_pitch(struct driver *d, void *real, CUdeviceptr *p, size_t *pitch, size_t w, size_t h,
                 unsigned e)
{
    struct grant grant;
    int result = begin(d, &grant, area(w, h));
    if (result == CUDA_SUCCESS) {
        result = REAL(real, (CUdeviceptr *, size_t *, size_t, size_t, unsigned), (p, pitch, w, h, e));
        if (result == CUDA_SUCCESS)
            true_pitch(&grant, *pitch, h);
        result = end(&grant, result, POINTER, result == CUDA_SUCCESS ? *p : 0);
    }
    return result;
}

int linear_pitch_v1(struct driver *d, void *real, CUdeviceptr_v1 *p, unsigned *pitch, unsigned w,
                    unsigned h, unsigned e)
{
    struct grant grant;
    int result = begin(d, &grant, area(w, h));
    if (result == CUDA_SUCCESS) {
        result = REAL(real, (CUdeviceptr_v1 *, unsigned *, unsigned, unsigned, unsigned),
                      (p, pitch, w, h, e));
        if (result == CUDA_SUCCESS)
            true_pitch(&grant, *pitch, h);
        result = end(&grant, result, POINTER, result == CUDA_SUCCESS ? *p : 0);
    }
    return result;
}

int linear_managed(struct driver *d, void *real, CUdeviceptr *p, size_t n, unsigned flags)
{
    struct grant grant;
    int result = begin(d, &grant, n);
    if (result == CUDA_SUCCESS) {
        result = REAL(real, (CUdeviceptr *, size_t, unsigned), (p, n, flags));
        result = end(&grant, result, POINTER, result == CUDA_SUCCESS ? *p : 0);
    }
    return result;
}

int linear_free(struct driver *d, void *real, CUdeviceptr p)
{
    FREE(POINTER, p, REAL(real, (CUdeviceptr), (p)));
}

int linear_free_v1(struct driver *d, void *real, CUdeviceptr_v1 p)
{
    FREE(POINTER, p, REAL(real, (CUdeviceptr_v1), (p)));
}

/* --- arrays ------------------------------------------------------------------------------------- */

static uint64_t times(uint64_t a, uint64_t b)
{
    uint64_t product;
    return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

/* Bytes of one element of one channel. Formats newer than these are at most as large as a float
 * per channel, or compressed. */
static uint64_t element_bytes(int format)
{
    switch (format) {
    case 0x01: case 0x08: return 1; /* 8-bit integers */
    case 0x02: case 0x09: case 0x10: return 2; /* 16-bit integers, half */
    default: return 4;
    }
}

static uint64_t level_bytes(const CUDA_ARRAY3D_DESCRIPTOR *x, unsigned level)
{
    uint64_t width = x->Width >> level, height = x->Height >> level, depth = x->Depth;
    if (!(x->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)))
        depth >>= level;
    uint64_t bytes = times(width ? width : 1, height ? height : 1);
    bytes = times(bytes, depth ? depth : 1);
    return times(bytes, times(x->NumChannels ? x->NumChannels : 1, element_bytes(x->Format)));
}

/* What the driver makes of it (alignment, tiles) is not known; sparse and deferred ones get their
 * memory from cuMemCreate. */
static uint64_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR *x, unsigned levels)
{
    uint64_t bytes = 0;
    if (!x || x->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING))
        return 0;
    for (unsigned level = 0; level < levels && level < 32; level++) {
        uint64_t more = level_bytes(x, level);
        bytes = bytes + more < bytes ? UINT64_MAX : bytes + more;
    }
    return bytes;
}

#define CREATE(bytes, kind, handle, real_call)                                        \
    do {                                                                              \
        struct grant grant_;                                                          \
        int result_ = begin(d, &grant_, (bytes));                                     \
        if (result_ != CUDA_SUCCESS)                                                  \
            return result_;                                                           \
        result_ = (real_call);                                                        \
        return end(&grant_, result_, (kind),                                          \
                   result_ == CUDA_SUCCESS ? (uint64_t)(uintptr_t)*(handle) : 0);     \
    } while (0)

int array_create(struct driver *d, void *real, CUarray *a, const CUDA_ARRAY_DESCRIPTOR *x)
{
    CUDA_ARRAY3D_DESCRIPTOR full = {0};
    if (x)
        full = (CUDA_ARRAY3D_DESCRIPTOR){x->Width, x->Height, 0, x->Format, x->NumChannels, 0};
    CREATE(array_bytes(&full, 1), ARRAY, a,
           REAL(real, (CUarray *, const CUDA_ARRAY_DESCRIPTOR *), (a, x)));
}

int array_create_v1(struct driver *d, void *real, CUarray *a, const CUDA_ARRAY_DESCRIPTOR_v1 *x)
{
    CUDA_ARRAY3D_DESCRIPTOR full = {0};
    if (x)
        full = (CUDA_ARRAY3D_DESCRIPTOR){x->Width, x->Height, 0, x->Format, x->NumChannels, 0};
    CREATE(array_bytes(&full, 1), ARRAY, a,
           REAL(real, (CUarray *, const CUDA_ARRAY_DESCRIPTOR_v1 *), (a, x)));
}

int array3d_create(struct driver *d, void *real, CUarray *a, const CUDA_ARRAY3D_DESCRIPTOR *x)
{
    CREATE(array_bytes(x, 1), ARRAY, a,
           REAL(real, (CUarray *, const CUDA_ARRAY3D_DESCRIPTOR *), (a, x)));
}

int array3d_create_v1(struct driver *d, void *real, CUarray *a,
                      const CUDA_ARRAY3D_DESCRIPTOR_v1 *x)
{
    CUDA_ARRAY3D_DESCRIPTOR full = {0};
    if (x)
        full = (CUDA_ARRAY3D_DESCRIPTOR){x->Width,  x->Height,      x->Depth,
                                         x->Format, x->NumChannels, x->Flags};
    CREATE(array_bytes(&full, 1), ARRAY, a,
           REAL(real, (CUarray *, const CUDA_ARRAY3D_DESCRIPTOR_v1 *), (a, x)));
}

int array_destroy(struct driver *d, void *real, CUarray a)
{
    FREE(ARRAY, (uint64_t)(uintptr_t)a, REAL(real, (CUarray), (a)));
}

int mipmap_create(struct driver *d, void *real, CUmipmappedArray *a,
                  const CUDA_ARRAY3D_DESCRIPTOR *x, unsigned levels)
{
    CREATE(array_bytes(x, levels), ARRAY, a,
           REAL(real, (CUmipmappedArray *, const CUDA_ARRAY3D_DESCRIPTOR *, unsigned),
                (a, x, levels)));
}

int mipmap_destroy(struct driver *d, void *real, CUmipmappedArray a)
{
    FREE(ARRAY, (uint64_t)(uintptr_t)a, REAL(real, (CUmipmappedArray), (a)));
}

/* --- other APIs' memory: in no account of ours until it is imported ------------------------------ */

int external_import(struct driver *d, void *real, CUexternalMemory *m,
                    const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *x)
{
    CREATE(x ? x->size : 0, EXTERNAL, m,
           REAL(real, (CUexternalMemory *, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *), (m, x)));
}

int external_destroy(struct driver *d, void *real, CUexternalMemory m)
{
    FREE(EXTERNAL, (uint64_t)(uintptr_t)m, REAL(real, (CUexternalMemory), (m)));
}
