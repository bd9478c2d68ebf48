/* Graphs with allocation nodes. The driver reserves their memory per device when a graph is first
 * uploaded or launched, and keeps it until it is trimmed. Graphs without such nodes are not touched,
 * beyond one look into a table at launch. */
#include <stdlib.h>

#include "account.h"
#include "implementations.h"

enum { NODE_CHILD = 4, NODE_CONDITIONAL = 13 };

/* In an entry's bytes, which a graph has no other use for. */
enum { LAUNCHED = 1 };

/* --- what the driver holds for graphs; the pool lock is held ---------------------------------------- */

static uint64_t held(struct driver *d, CUdevice device, int attribute)
{
    uint64_t bytes = 0;
    if (d->cuDeviceGetGraphMemAttribute)
        d->cuDeviceGetGraphMemAttribute(device, attribute, &bytes);
    return bytes;
}

static void settle(struct driver *d, struct process *p, CUdevice device, unsigned gpu)
{
    uint64_t now = held(d, device, CU_GRAPH_MEM_RESERVED_CURRENT), *before = &p->graphs[device];
    if (now > *before)
        charge_anyway(p, gpu, now - *before);
    else
        uncharge(p, gpu, *before - now);
    *before = now;
}

/* --- what a graph will need ---------------------------------------------------------------------- */

struct need {
    bool allocates; /* or may, in a part we do not look into */
    uint64_t peak;  /* the most it holds at a time, in the order of its nodes */
    CUdevice device;
};

struct pending {
    CUdeviceptr pointer;
    uint64_t bytes;
};

/* Freed within the graph: no longer part of what it holds. */
static uint64_t freed(struct pending *pending, size_t count, CUdeviceptr pointer)
{
    for (size_t i = 0; i < count; i++) {
        if (pending[i].pointer == pointer && pending[i].bytes) {
            uint64_t bytes = pending[i].bytes;
            pending[i].bytes = 0;
            return bytes;
        }
    }
    return 0;
}

static void look_at(struct driver *d, CUgraphNode *nodes, size_t count, struct need *need)
{
    struct pending *pending = NULL;
    size_t used = 0;
    uint64_t now = 0;
    for (size_t i = 0; i < count; i++) {
        CUDA_MEM_ALLOC_NODE_PARAMS params;
        CUdeviceptr pointer;
        int type = -1;
        if (d->cuGraphNodeGetType(nodes[i], &type) != CUDA_SUCCESS)
            continue;
        need->allocates |= type == NODE_CHILD || type == NODE_CONDITIONAL;
        if (type == CU_NODE_MEM_ALLOC && d->cuGraphMemAllocNodeGetParams &&
            d->cuGraphMemAllocNodeGetParams(nodes[i], &params) == CUDA_SUCCESS) {
            need->allocates = true;
            need->device = params.poolProps.location.id;
            if (!pending && !(pending = calloc(count, sizeof *pending)))
                return;
            pending[used++] = (struct pending){params.dptr, params.bytesize};
            now += params.bytesize;
            need->peak = now > need->peak ? now : need->peak;
        } else if (type == CU_NODE_MEM_FREE && d->cuGraphMemFreeNodeGetParams &&
                   d->cuGraphMemFreeNodeGetParams(nodes[i], &pointer) == CUDA_SUCCESS) {
            now -= freed(pending, used, pointer);
        }
    }
    free(pending);
}

static struct need need_of(struct driver *d, CUgraph graph)
{
    struct need need = {0};
    size_t count = 0;
    if (!d->cuGraphGetNodes || !d->cuGraphNodeGetType ||
        d->cuGraphGetNodes(graph, NULL, &count) != CUDA_SUCCESS || !count)
        return need;
    CUgraphNode *nodes = calloc(count, sizeof(*nodes));
    if (nodes && d->cuGraphGetNodes(graph, nodes, &count) == CUDA_SUCCESS)
        look_at(d, nodes, count, &need);
    else
        need.allocates = true;
    free(nodes);
    if (!need.peak && d->cuCtxGetDevice)
        d->cuCtxGetDevice(&need.device);
    return need;
}

/* --- hooks --------------------------------------------------------------------------------------- */

static int remember(struct driver *d, CUgraph graph, CUgraphExec *exec, int result)
{
    struct process *p = account();
    if (result != CUDA_SUCCESS || !p || !exec)
        return result;
    struct need need = need_of(d, graph);
    if (!need.allocates || !table_reserve(&p->table))
        return result;
    int gpu = gpu_of_device(d, p, need.device);
    table_put(&p->table, (struct entry){
                             .key = (uint64_t)(uintptr_t)*exec,
                             .kind = EXEC,
                             .gpu = -1, /* charged by device, not by graph */
                             .number = need.peak,
                             .extra = (void *)(uintptr_t)(need.device + 1),
                         });
    if (gpu >= 0) {
        lock_take(&p->pool_lock);
        settle(d, p, need.device, (unsigned)gpu);
        lock_give(&p->pool_lock);
    }
    return result;
}

int graph_instantiate_v1(struct driver *d, void *real, CUgraphExec *e, CUgraph g, void *node,
                         char *log, size_t n)
{
    return remember(d, g, e, REAL(real, (CUgraphExec *, CUgraph, void *, char *, size_t),
                                  (e, g, node, log, n)));
}

int graph_instantiate(struct driver *d, void *real, CUgraphExec *e, CUgraph g,
                      unsigned long long flags)
{
    return remember(d, g, e, REAL(real, (CUgraphExec *, CUgraph, unsigned long long),
                                  (e, g, flags)));
}

int graph_instantiate_params(struct driver *d, void *real, CUgraphExec *e, CUgraph g, void *params)
{
    return remember(d, g, e, REAL(real, (CUgraphExec *, CUgraph, void *), (e, g, params)));
}

int graph_destroy(struct driver *d, void *real, CUgraphExec e)
{
    (void)d;
    struct process *p = account();
    struct entry entry;
    bool known = p && table_take(&p->table, EXEC, (uint64_t)(uintptr_t)e, &entry);
    int result = REAL(real, (CUgraphExec), (e));
    if (known && result != CUDA_SUCCESS)
        table_put(&p->table, entry);
    return result;
}

/* Upload and launch alike: the first of them takes the memory. */
int graph_launch(struct driver *d, void *real, CUgraphExec e, CUstream s)
{
    struct process *p = account();
    struct entry entry;
    if (!p || !table_find(&p->table, EXEC, (uint64_t)(uintptr_t)e, &entry))
        return REAL(real, (CUgraphExec, CUstream), (e, s));
    CUdevice device = (CUdevice)(uintptr_t)entry.extra - 1;
    int gpu = gpu_of_device(d, p, device), result = CUDA_ERROR_OUT_OF_MEMORY;
    if (gpu < 0)
        return result;
    lock_take(&p->pool_lock);
    settle(d, p, device, (unsigned)gpu);
    /* An estimate: parallel branches may hold more, reuse between graphs less. What was launched
     * before holds its memory still, unless somebody trimmed it. */
    uint64_t used = held(d, device, CU_GRAPH_MEM_USED_CURRENT), has = p->graphs[device];
    uint64_t peak = rounded(entry.number), need = used + peak, more;
    if (entry.bytes == LAUNCHED)
        need = used > peak ? used : peak;
    more = need > has ? need - has : 0;
    lock_give(&p->pool_lock);
    if (more && !charge_or_shrink(d, p, (unsigned)gpu, more))
        return result;
    lock_take(&p->pool_lock);
    p->graphs[device] += more;
    lock_give(&p->pool_lock);
    result = REAL(real, (CUgraphExec, CUstream), (e, s));
    lock_take(&p->pool_lock);
    settle(d, p, device, (unsigned)gpu);
    lock_give(&p->pool_lock);
    if (result == CUDA_SUCCESS && entry.bytes != LAUNCHED &&
        table_take(&p->table, EXEC, entry.key, &entry)) {
        entry.bytes = LAUNCHED;
        table_put(&p->table, entry);
    }
    return result;
}

int graph_trim(struct driver *d, void *real, CUdevice dev)
{
    struct process *p = account();
    int result = REAL(real, (CUdevice), (dev));
    int gpu = p && dev >= 0 && dev < MAX_ORDINALS ? gpu_of_device(d, p, dev) : REFUSED;
    if (result != CUDA_SUCCESS || gpu < 0)
        return result;
    lock_take(&p->pool_lock);
    settle(d, p, dev, (unsigned)gpu);
    lock_give(&p->pool_lock);
    return result;
}
