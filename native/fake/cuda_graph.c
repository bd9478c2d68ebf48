/* Graphs of the fake driver: only allocation and free nodes matter. A graph's memory is reserved at
 * its first upload or launch and stays with the device until trimmed. */
#include <stdlib.h>
#include <string.h>

#include "cuda.h"

enum { MAX_NODES = 64 };

struct CUgraphNode_st {
    int type;
    CUdeviceptr address;
    size_t size;
    unsigned gpu;
};

struct CUgraph_st {
    unsigned count;
    struct CUgraphNode_st nodes[MAX_NODES];
};

struct CUgraphExec_st {
    unsigned gpu;
    uint64_t bytes;
    int reserved;
};

static uint64_t graph_reserved[FAKE_MAX_GPUS], graph_used[FAKE_MAX_GPUS];

static struct CUgraphNode_st *add(CUgraph graph)
{
    if (graph->count == MAX_NODES)
        abort();
    return &graph->nodes[graph->count++];
}

void graph_add_alloc(CUgraph graph, CUdeviceptr address, size_t size, unsigned gpu)
{
    *add(graph) = (struct CUgraphNode_st){CU_NODE_MEM_ALLOC, address, size, gpu};
}

int graph_add_free(CUgraph graph, CUdeviceptr address)
{
    *add(graph) = (struct CUgraphNode_st){CU_NODE_MEM_FREE, address, 0, 0};
    return 1;
}

/* The most that is allocated at one time, in the order of the nodes. */
static uint64_t graph_peak(CUgraph graph, unsigned *gpu)
{
    uint64_t now = 0, peak = 0;
    for (unsigned i = 0; i < graph->count; i++) {
        const struct CUgraphNode_st *node = &graph->nodes[i];
        if (node->type == CU_NODE_MEM_ALLOC) {
            *gpu = node->gpu;
            now += node->size;
            peak = now > peak ? now : peak;
            continue;
        }
        for (unsigned k = 0; k < i; k++)
            if (graph->nodes[k].address == node->address &&
                graph->nodes[k].type == CU_NODE_MEM_ALLOC)
                now -= graph->nodes[k].size;
    }
    return peak;
}

API cuStreamBeginCapture_v2(CUstream stream, int mode)
{
    (void)mode;
    if (stream <= CU_STREAM_PER_THREAD)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    stream->capturing = calloc(1, sizeof *stream->capturing);
    return CUDA_SUCCESS;
}

API cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
    *graph = stream->capturing;
    stream->capturing = NULL;
    return *graph ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API cuGraphCreate(CUgraph *graph, unsigned flags)
{
    (void)flags;
    *graph = calloc(1, sizeof **graph);
    return CUDA_SUCCESS;
}

API cuGraphDestroy(CUgraph graph)
{
    free(graph);
    return CUDA_SUCCESS;
}

API cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
                           CUDA_MEM_ALLOC_NODE_PARAMS *params)
{
    (void)after, (void)count;
    params->dptr = address_take(params->bytesize);
    graph_add_alloc(graph, params->dptr, params->bytesize, (unsigned)params->poolProps.location.id);
    *node = &graph->nodes[graph->count - 1];
    return CUDA_SUCCESS;
}

API cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
    for (size_t i = 0; nodes && i < *count && i < graph->count; i++)
        nodes[i] = &graph->nodes[i];
    *count = graph->count;
    return CUDA_SUCCESS;
}

API cuGraphNodeGetType(CUgraphNode node, int *type)
{
    *type = node->type;
    return CUDA_SUCCESS;
}

API cuGraphMemAllocNodeGetParams(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS *params)
{
    memset(params, 0, sizeof *params);
    params->bytesize = node->size;
    params->dptr = node->address;
    params->poolProps.location = (CUmemLocation){CU_LOCATION_DEVICE, (int)node->gpu};
    return CUDA_SUCCESS;
}

API cuGraphMemFreeNodeGetParams(CUgraphNode node, CUdeviceptr *pointer)
{
    *pointer = node->address;
    return CUDA_SUCCESS;
}

API cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
    (void)flags;
    *exec = calloc(1, sizeof **exec);
    (*exec)->bytes = block_round(graph_peak(graph, &(*exec)->gpu));
    return CUDA_SUCCESS;
}

API cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph, void *params)
{
    (void)params;
    return cuGraphInstantiateWithFlags(exec, graph, 0);
}

API cuGraphExecDestroy(CUgraphExec exec)
{
    pthread_mutex_lock(&process_lock);
    if (exec->reserved)
        graph_used[exec->gpu] -= exec->bytes;
    pthread_mutex_unlock(&process_lock);
    free(exec);
    return CUDA_SUCCESS;
}

API cuGraphUpload(CUgraphExec exec, CUstream stream)
{
    (void)stream;
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&process_lock);
    if (!exec->reserved && exec->bytes) {
        uint64_t need = graph_used[exec->gpu] + exec->bytes;
        if (need > graph_reserved[exec->gpu]) {
            if (fake_take(fake, exec->gpu, need - graph_reserved[exec->gpu]))
                graph_reserved[exec->gpu] = need;
            else
                result = CUDA_ERROR_OUT_OF_MEMORY;
        }
        if (result == CUDA_SUCCESS) {
            graph_used[exec->gpu] = need;
            exec->reserved = 1;
        }
    }
    pthread_mutex_unlock(&process_lock);
    return result;
}

API cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
    return cuGraphUpload(exec, stream);
}

API cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream)
{
    return cuGraphUpload(exec, stream);
}

API cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream)
{
    return cuGraphUpload(exec, stream);
}

API cuDeviceGetGraphMemAttribute(CUdevice device, int attribute, void *value)
{
    *(uint64_t *)value = attribute == CU_GRAPH_MEM_RESERVED_CURRENT ? graph_reserved[device]
                         : attribute == CU_GRAPH_MEM_USED_CURRENT   ? graph_used[device] : 0;
    return CUDA_SUCCESS;
}

API cuDeviceGraphMemTrim(CUdevice device)
{
    pthread_mutex_lock(&process_lock);
    fake_give(fake, (unsigned)device, graph_reserved[device] - graph_used[device]);
    graph_reserved[device] = graph_used[device];
    pthread_mutex_unlock(&process_lock);
    return CUDA_SUCCESS;
}
