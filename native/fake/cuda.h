/* Inside the fake libcuda.so.1: one process's view of the fake GPUs (state.h).
 *
 * Memory is charged as a driver would: small allocations share blocks of 2 MiB, large ones take
 * whole blocks. Addresses come from one reserved range that is touched only by copies. */
#ifndef GPUSHARE_FAKE_CUDA_H
#define GPUSHARE_FAKE_CUDA_H

#include "../abi/cuda.h"
#include "state.h"

#define API __attribute__((visibility("default"))) CUresult

enum { BLOCK = 2 << 20, SMALL = 1 << 20 };

enum kind { LINEAR, POOLED, MANAGED, RANGE /* reserved addresses of VMM */, GRAPH_NODE };

struct CUctx_st {
    unsigned gpu;
    int primary;
    unsigned references;
    size_t limits[CU_LIMIT_COUNT];
    uint64_t limit_bytes; /* taken for the limits above their defaults */
    struct CUctx_st *next;
};

struct CUstream_st {
    CUcontext context;
    CUgraph capturing;
};

struct CUmemPool_st {
    unsigned gpu;
    int host;
    uint64_t used, reserved, threshold;
    uint64_t freed; /* freed by the program, in the pool until a synchronisation */
};

struct allocation {
    CUdeviceptr address; /* 0: free, 1: removed */
    size_t size;
    enum kind kind;
    unsigned gpu;
    CUcontext context;
    CUmemoryPool pool;
};

extern pthread_mutex_t process_lock; /* everything below, per process */
extern struct fake_state *fake;
extern __thread CUcontext current;

/* The state, or NULL with the error in *result: not initialised, or forked. */
struct fake_state *driver(CUresult *result);
CUresult require_context(void);

CUdeviceptr address_take(size_t size);
void address_give(CUdeviceptr address, size_t size);
struct allocation *allocation_add(struct allocation allocation);
struct allocation *allocation_find(CUdeviceptr address);
void allocation_drop(struct allocation *allocation);
void allocation_each(CUcontext context, void (*drop)(struct allocation *));

/* Physical memory for `size` bytes of linear memory. */
int linear_take(unsigned gpu, size_t size);
void linear_give(unsigned gpu, size_t size);

CUcontext stream_context(CUstream stream);
void pools_synchronise(void);
void graph_add_alloc(CUgraph graph, CUdeviceptr address, size_t size, unsigned gpu);
int graph_add_free(CUgraph graph, CUdeviceptr address);
void context_release_memory(CUcontext context);

uint64_t block_round(uint64_t size);

#endif
