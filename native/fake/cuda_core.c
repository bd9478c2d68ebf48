/* Life, devices, contexts, streams and limits of the fake driver. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cuda.h"

pthread_mutex_t process_lock = PTHREAD_MUTEX_INITIALIZER;
struct fake_state *fake;
__thread CUcontext current;
static struct CUctx_st primaries[FAKE_MAX_GPUS];
static CUcontext created;
static __thread CUcontext stack[32];
static __thread unsigned depth;

enum { MULTIPROCESSORS = 40, THREADS = 1024, DEFAULT_STACK = 1024 };

uint64_t block_round(uint64_t size)
{
    return (size + BLOCK - 1) / BLOCK * BLOCK;
}

struct fake_state *driver(CUresult *result)
{
    *result = fake && !fake_forked() ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
    return *result == CUDA_SUCCESS ? fake : NULL;
}

CUresult require_context(void)
{
    CUresult result;
    if (!driver(&result))
        return result;
    return current ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

#define DRIVER()                    \
    do {                            \
        CUresult problem_;          \
        if (!driver(&problem_))     \
            return problem_;        \
    } while (0)
#define DEVICE(d)                                       \
    do {                                                \
        DRIVER();                                       \
        if ((d) < 0 || (unsigned)(d) >= fake->gpu_count) \
            return CUDA_ERROR_INVALID_DEVICE;           \
    } while (0)

API cuInit(unsigned flags)
{
    if (flags)
        return CUDA_ERROR_INVALID_VALUE;
    if (fake_forked())
        return CUDA_ERROR_NOT_INITIALIZED;
    fake = fake_attach();
    return fake && fake->gpu_count ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

API cuDriverGetVersion(int *version)
{
    struct fake_state *state = fake_attach();
    *version = state ? (int)state->cuda_version : 0;
    return CUDA_SUCCESS;
}

API cuDeviceGetCount(int *count)
{
    DRIVER();
    *count = (int)fake->gpu_count;
    return CUDA_SUCCESS;
}

API cuDeviceGet(CUdevice *device, int ordinal)
{
    DEVICE(ordinal);
    *device = ordinal;
    return CUDA_SUCCESS;
}

API cuDeviceGetName(char *name, int length, CUdevice device)
{
    DEVICE(device);
    strncpy(name, fake->gpus[device].name, (size_t)length);
    return CUDA_SUCCESS;
}

API cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
    DEVICE(device);
    const char *text = fake->gpus[device].uuid + 4;
    for (int i = 0; i < 16; i++) {
        while (*text == '-')
            text++;
        char byte[3] = {text[0], text[1], 0};
        uuid->bytes[i] = (unsigned char)strtoul(byte, NULL, 16);
        text += 2;
    }
    return CUDA_SUCCESS;
}

API cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
    return cuDeviceGetUuid(uuid, device);
}

API cuDeviceGetAttribute(int *value, int attribute, CUdevice device)
{
    DEVICE(device);
    switch (attribute) {
    case 1: *value = 1024; break;              /* threads per block */
    case 10: *value = 32; break;               /* warp size */
    case 12: *value = 65536; break;            /* registers per block */
    case CU_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = MULTIPROCESSORS; break;
    case CU_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR: *value = THREADS; break;
    case 41: *value = 1; break;                /* unified addressing */
    case 75: *value = 7; break;                /* compute capability */
    case 76: *value = 5; break;
    case 83: *value = 1; break;                /* managed memory */
    case 102: *value = 1; break;               /* virtual memory management */
    case 115: *value = 1; break;               /* memory pools */
    default: *value = 0;
    }
    return CUDA_SUCCESS;
}

API cuDeviceComputeCapability(int *major, int *minor, CUdevice device)
{
    DEVICE(device);
    *major = 7;
    *minor = 5;
    return CUDA_SUCCESS;
}

API cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    DEVICE(device);
    *bytes = fake->gpus[device].total - fake->gpus[device].reserved;
    return CUDA_SUCCESS;
}

API cuDeviceTotalMem(unsigned *bytes, CUdevice device)
{
    size_t all;
    CUresult result = cuDeviceTotalMem_v2(&all, device);
    if (result == CUDA_SUCCESS)
        *bytes = all > UINT32_MAX ? UINT32_MAX : (unsigned)all;
    return result;
}

/* --- contexts --------------------------------------------------------------------------------- */

static uint64_t limits_cost(const size_t *limits)
{
    uint64_t stack_bytes = limits[CU_LIMIT_STACK_SIZE] > DEFAULT_STACK
                               ? limits[CU_LIMIT_STACK_SIZE] - DEFAULT_STACK : 0;
    uint64_t heap = limits[CU_LIMIT_MALLOC_HEAP_SIZE];
    uint64_t printf_bytes = limits[CU_LIMIT_PRINTF_FIFO_SIZE];
    return block_round(stack_bytes * MULTIPROCESSORS * THREADS) +
           block_round(heap > (8u << 20) ? heap - (8u << 20) : 0) +
           block_round(printf_bytes > (1u << 20) ? printf_bytes - (1u << 20) : 0);
}

static CUresult context_start(CUcontext context, unsigned gpu)
{
    if (!fake_take(fake, gpu, fake->context_cost))
        return CUDA_ERROR_OUT_OF_MEMORY;
    context->gpu = gpu;
    memset(context->limits, 0, sizeof context->limits);
    context->limits[CU_LIMIT_STACK_SIZE] = DEFAULT_STACK;
    context->limits[CU_LIMIT_PRINTF_FIFO_SIZE] = 1 << 20;
    context->limits[CU_LIMIT_MALLOC_HEAP_SIZE] = 8 << 20;
    context->limit_bytes = 0;
    return CUDA_SUCCESS;
}

static void context_end(CUcontext context)
{
    context_release_memory(context);
    fake_give(fake, context->gpu, context->limit_bytes + fake->context_cost);
    context->limit_bytes = 0;
}

API cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    DEVICE(device);
    pthread_mutex_lock(&process_lock);
    CUcontext primary = &primaries[device];
    CUresult result = CUDA_SUCCESS;
    if (!primary->references) {
        primary->primary = 1;
        result = context_start(primary, (unsigned)device);
    }
    if (result == CUDA_SUCCESS) {
        primary->references++;
        *context = primary;
    }
    pthread_mutex_unlock(&process_lock);
    return result;
}

API cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    DEVICE(device);
    pthread_mutex_lock(&process_lock);
    CUresult result = primaries[device].references ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
    if (result == CUDA_SUCCESS && --primaries[device].references == 0)
        context_end(&primaries[device]);
    pthread_mutex_unlock(&process_lock);
    return result;
}

API cuDevicePrimaryCtxRelease(CUdevice device)
{
    return cuDevicePrimaryCtxRelease_v2(device);
}

API cuDevicePrimaryCtxReset_v2(CUdevice device)
{
    DEVICE(device);
    pthread_mutex_lock(&process_lock);
    if (primaries[device].references) {
        primaries[device].references = 0;
        context_end(&primaries[device]);
    }
    pthread_mutex_unlock(&process_lock);
    return CUDA_SUCCESS;
}

API cuDevicePrimaryCtxReset(CUdevice device)
{
    return cuDevicePrimaryCtxReset_v2(device);
}

API cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active)
{
    DEVICE(device);
    *flags = 0;
    *active = primaries[device].references != 0;
    return CUDA_SUCCESS;
}

API cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags)
{
    (void)flags;
    DEVICE(device);
    return CUDA_SUCCESS;
}

API cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device)
{
    (void)flags;
    DEVICE(device);
    CUcontext fresh = calloc(1, sizeof *fresh);
    pthread_mutex_lock(&process_lock);
    CUresult result = context_start(fresh, (unsigned)device);
    if (result == CUDA_SUCCESS) {
        fresh->next = created;
        created = fresh;
    }
    pthread_mutex_unlock(&process_lock);
    if (result != CUDA_SUCCESS) {
        free(fresh);
        return result;
    }
    if (depth < 32)
        stack[depth++] = current;
    *context = current = fresh;
    return CUDA_SUCCESS;
}

API cuCtxCreate(CUcontext *context, unsigned flags, CUdevice device)
{
    return cuCtxCreate_v2(context, flags, device);
}

API cuCtxCreate_v3(CUcontext *context, void *affinity, int count, unsigned flags, CUdevice device)
{
    (void)affinity, (void)count;
    return cuCtxCreate_v2(context, flags, device);
}

API cuCtxCreate_v4(CUcontext *context, void *parameters, unsigned flags, CUdevice device)
{
    (void)parameters;
    return cuCtxCreate_v2(context, flags, device);
}

API cuCtxDestroy_v2(CUcontext context)
{
    DRIVER();
    if (!context || context->primary)
        return CUDA_ERROR_INVALID_CONTEXT;
    pthread_mutex_lock(&process_lock);
    context_end(context);
    for (CUcontext *at = &created; *at; at = &(*at)->next) {
        if (*at == context) {
            *at = context->next;
            break;
        }
    }
    pthread_mutex_unlock(&process_lock);
    if (current == context)
        current = depth ? stack[--depth] : NULL;
    free(context);
    return CUDA_SUCCESS;
}

API cuCtxDestroy(CUcontext context)
{
    return cuCtxDestroy_v2(context);
}

API cuCtxSetCurrent(CUcontext context)
{
    DRIVER();
    current = context;
    return CUDA_SUCCESS;
}

API cuCtxGetCurrent(CUcontext *context)
{
    DRIVER();
    *context = current;
    return CUDA_SUCCESS;
}

API cuCtxPushCurrent_v2(CUcontext context)
{
    DRIVER();
    if (depth < 32)
        stack[depth++] = current;
    current = context;
    return CUDA_SUCCESS;
}

API cuCtxPopCurrent_v2(CUcontext *context)
{
    DRIVER();
    if (context)
        *context = current;
    current = depth ? stack[--depth] : NULL;
    return CUDA_SUCCESS;
}

API cuCtxGetDevice(CUdevice *device)
{
    CUresult result = require_context();
    if (result == CUDA_SUCCESS)
        *device = (CUdevice)current->gpu;
    return result;
}

API cuCtxGetDevice_v2(CUdevice *device, CUcontext context)
{
    DRIVER();
    if (!context)
        return cuCtxGetDevice(device);
    *device = (CUdevice)context->gpu;
    return CUDA_SUCCESS;
}

API cuCtxGetApiVersion(CUcontext context, unsigned *version)
{
    (void)context;
    *version = 3020;
    return CUDA_SUCCESS;
}

API cuCtxSynchronize(void)
{
    CUresult result = require_context();
    if (result == CUDA_SUCCESS)
        pools_synchronise();
    return result;
}

API cuCtxGetLimit(size_t *value, int limit)
{
    CUresult result = require_context();
    if (result != CUDA_SUCCESS)
        return result;
    if (limit < 0 || limit >= CU_LIMIT_COUNT)
        return CUDA_ERROR_INVALID_VALUE;
    *value = current->limits[limit];
    return CUDA_SUCCESS;
}

API cuCtxSetLimit(int limit, size_t value)
{
    CUresult result = require_context();
    if (result != CUDA_SUCCESS)
        return result;
    if (limit < 0 || limit >= CU_LIMIT_COUNT)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&process_lock);
    size_t wanted[CU_LIMIT_COUNT];
    memcpy(wanted, current->limits, sizeof wanted);
    wanted[limit] = value;
    uint64_t cost = limits_cost(wanted);
    if (cost > current->limit_bytes &&
        !fake_take(fake, current->gpu, cost - current->limit_bytes)) {
        result = CUDA_ERROR_OUT_OF_MEMORY;
    } else {
        if (cost < current->limit_bytes)
            fake_give(fake, current->gpu, current->limit_bytes - cost);
        current->limit_bytes = cost;
        current->limits[limit] = value;
    }
    pthread_mutex_unlock(&process_lock);
    return result;
}

/* --- streams ---------------------------------------------------------------------------------- */

CUcontext stream_context(CUstream stream)
{
    return stream > CU_STREAM_PER_THREAD ? stream->context : current;
}

API cuStreamCreate(CUstream *stream, unsigned flags)
{
    (void)flags;
    CUresult result = require_context();
    if (result != CUDA_SUCCESS)
        return result;
    *stream = calloc(1, sizeof **stream);
    (*stream)->context = current;
    return CUDA_SUCCESS;
}

API cuStreamDestroy_v2(CUstream stream)
{
    free(stream);
    return CUDA_SUCCESS;
}

API cuStreamSynchronize(CUstream stream)
{
    if (stream > CU_STREAM_PER_THREAD && stream->capturing)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    pools_synchronise();
    return CUDA_SUCCESS;
}

API cuStreamGetCtx(CUstream stream, CUcontext *context)
{
    *context = stream_context(stream);
    return *context ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

API cuStreamIsCapturing(CUstream stream, int *status)
{
    *status = stream > CU_STREAM_PER_THREAD && stream->capturing ? CU_STREAM_CAPTURING
                                                                : CU_STREAM_NOT_CAPTURING;
    return CUDA_SUCCESS;
}

API cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                   unsigned bz, unsigned shared, CUstream stream, void **parameters, void **extra)
{
    (void)f, (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz;
    (void)shared, (void)stream, (void)parameters, (void)extra;
    return CUDA_SUCCESS;
}

API cuGetErrorString(CUresult error, const char **text)
{
    *text = error == CUDA_SUCCESS ? "no error" : error == CUDA_ERROR_OUT_OF_MEMORY
                                                     ? "out of memory" : "error";
    return CUDA_SUCCESS;
}

API cuGetErrorName(CUresult error, const char **text)
{
    *text = error == CUDA_SUCCESS ? "CUDA_SUCCESS" : error == CUDA_ERROR_OUT_OF_MEMORY
                                                         ? "CUDA_ERROR_OUT_OF_MEMORY"
                                                         : "CUDA_ERROR_UNKNOWN";
    return CUDA_SUCCESS;
}
