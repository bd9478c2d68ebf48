#include "account.h"

#include <string.h>
#include <sys/mman.h>

/* A page that the kernel wipes in a forked child: how the child knows that it is one. */
static struct process **current_process;
static int wipes; /* the kernel does that (Linux 4.14) */
static pid_t owner_pid;

__attribute__((constructor)) static void prepare(void)
{
    if (current_process)
        return;
    void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED)
        return;
    wipes = madvise(page, 4096, 18 /* MADV_WIPEONFORK */) == 0;
    current_process = page;
}

static struct process *process(void)
{
    if (!current_process)
        prepare();
    if (!current_process)
        return NULL;
    struct process *p = __atomic_load_n(current_process, __ATOMIC_ACQUIRE);
    if (p && (wipes || owner_pid == getpid()))
        return p;
    struct process *fresh = mmap(NULL, sizeof *fresh, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (fresh == MAP_FAILED)
        return NULL;
    if (__atomic_compare_exchange_n(current_process, &p, fresh, 0, __ATOMIC_ACQ_REL,
                                    __ATOMIC_ACQUIRE)) {
        owner_pid = getpid();
        return fresh;
    }
    munmap(fresh, sizeof *fresh);
    return p;
}

struct process *account(void)
{
    struct process *p = process();
    if (!p)
        return NULL;
    int joined = __atomic_load_n(&p->joined, __ATOMIC_ACQUIRE);
    if (joined)
        return joined > 0 ? p : NULL;
    lock_take(&p->join_lock);
    if (!p->joined) {
        bool good = limits_read(&p->limits) && region_join(&p->member, &p->limits);
        __atomic_store_n(&p->joined, good ? 1 : -1, __ATOMIC_RELEASE);
    }
    lock_give(&p->join_lock);
    return p->joined > 0 ? p : NULL;
}

/* --- which GPU ---------------------------------------------------------------------------------- */

static int find_gpu(struct driver *d, struct process *p, CUdevice device)
{
    CUuuid uuid;
    int result = CUDA_ERROR_NOT_FOUND;
    if (d->cuDeviceGetUuid_v2) /* a MIG instance's own */
        result = d->cuDeviceGetUuid_v2(&uuid, device);
    else if (d->cuDeviceGetUuid)
        result = d->cuDeviceGetUuid(&uuid, device);
    if (result != CUDA_SUCCESS)
        return REFUSED;
    for (unsigned i = 0; i < p->limits.count; i++)
        if (!memcmp(p->limits.gpus[i].uuid, uuid.bytes, 16))
            return (int)i;
    say_once(SAY_UNKNOWN_GPU);
    return REFUSED;
}

int gpu_of_device(struct driver *d, struct process *p, CUdevice device)
{
    if (device < 0 || device >= MAX_ORDINALS)
        return REFUSED;
    int known = __atomic_load_n(&d->gpu_of[device], __ATOMIC_RELAXED);
    if (known > 0)
        return known - 1;
    int gpu = find_gpu(d, p, device);
    if (gpu >= 0)
        __atomic_store_n(&d->gpu_of[device], gpu + 1, __ATOMIC_RELAXED);
    return gpu;
}

int gpu_of_current(struct driver *d, struct process *p, CUcontext *context)
{
    CUdevice device;
    if (!d->cuCtxGetDevice || d->cuCtxGetDevice(&device) != CUDA_SUCCESS)
        return NO_CONTEXT;
    if (context && (!d->cuCtxGetCurrent || d->cuCtxGetCurrent(context) != CUDA_SUCCESS))
        *context = NULL;
    return gpu_of_device(d, p, device);
}

/* --- charging ----------------------------------------------------------------------------------- */

static bool locked_charge(struct process *p, unsigned gpu, uint64_t bytes, bool context,
                          enum charge how)
{
    lock_take(&p->charge_lock);
    bool granted = region_charge(&p->member, &p->limits, gpu, bytes, context, how);
    lock_give(&p->charge_lock);
    return granted;
}

static void locked_uncharge(struct process *p, unsigned gpu, uint64_t bytes, bool context)
{
    lock_take(&p->charge_lock);
    region_uncharge(&p->member, gpu, bytes, context);
    lock_give(&p->charge_lock);
}

bool charge(struct process *p, unsigned gpu, uint64_t bytes)
{
    return locked_charge(p, gpu, bytes, false, CHARGE);
}

void charge_anyway(struct process *p, unsigned gpu, uint64_t bytes)
{
    locked_charge(p, gpu, bytes, false, ANYWAY);
}

void uncharge(struct process *p, unsigned gpu, uint64_t bytes)
{
    if (bytes)
        locked_uncharge(p, gpu, bytes, false);
}

bool charge_context(struct process *p, unsigned gpu)
{
    return locked_charge(p, gpu, p->limits.gpus[gpu].reserve, true, CHARGE);
}

void uncharge_context(struct process *p, unsigned gpu)
{
    locked_uncharge(p, gpu, p->limits.gpus[gpu].reserve, true);
}

bool share(struct process *p, unsigned gpu, int64_t exported, int64_t imported)
{
    lock_take(&p->charge_lock);
    bool fits = region_share(&p->member, &p->limits, gpu, exported, imported);
    lock_give(&p->charge_lock);
    return fits;
}

bool charge_or_shrink(struct driver *d, struct process *p, unsigned gpu, uint64_t bytes)
{
    if (locked_charge(p, gpu, bytes, false, PROBE))
        return true;
    pools_shrink(d, p, gpu);
    return charge(p, gpu, bytes);
}

uint64_t container_used(struct process *p, unsigned gpu)
{
    lock_take(&p->charge_lock);
    uint64_t used = region_used(&p->member, &p->limits, gpu);
    lock_give(&p->charge_lock);
    return used;
}

bool above_limit(struct process *p, unsigned gpu)
{
    return container_used(p, gpu) > p->limits.gpus[gpu].limit;
}

uint64_t rounded(uint64_t bytes)
{
    uint64_t unit = bytes > (1u << 20) ? 2u << 20 : 512;
    uint64_t up = bytes / unit + (bytes % unit != 0);
    return up > UINT64_MAX / unit ? UINT64_MAX : up * unit;
}

static bool is_owned(const struct entry *entry, const void *owner)
{
    return entry->owner == owner;
}

void release_owned(struct process *p, CUcontext owner)
{
    struct entry entry;
    uint64_t from = 0;
    while (owner && table_take_if(&p->table, &from, &entry, is_owned, owner))
        if (entry.gpu >= 0)
            uncharge(p, (unsigned)entry.gpu, entry.bytes);
}
