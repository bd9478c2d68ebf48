/* What this process holds, and whether it may hold more. */
#ifndef GPUSHARE_ACCOUNT_H
#define GPUSHARE_ACCOUNT_H

#include "driver.h"
#include "limits.h"
#include "lock.h"
#include "region.h"
#include "table.h"

enum { NO_CONTEXT = -2, REFUSED = -1 };

struct pool {
    CUmemoryPool handle; /* NULL: unused */
    int gpu;             /* REFUSED: its memory is not a GPU's, or somebody else's */
    CUdevice device;
    uint64_t live;       /* given to the program */
    uint64_t charged;    /* max(live, reserved by the driver) when last read */
    uint64_t chunk;      /* what it was seen to grow by */
};

enum { MAX_POOLS = 128 };

struct primary {
    unsigned references;
    CUcontext context;
};

/* All of it starts over in a forked child, where the parent's GPU state is of no use. */
struct process {
    struct lock join_lock; /* guards joined */
    int joined;            /* 0 not tried, 1 yes, -1 no */
    struct limits limits;
    struct lock charge_lock; /* guards member */
    struct membership member;
    struct table table;
    struct lock context_lock; /* guards primaries; held over the driver's call */
    struct primary primaries[MAX_ORDINALS];
    struct lock pool_lock; /* guards pools and graphs; held over the driver's call */
    struct pool pools[MAX_POOLS];
    uint64_t graphs[MAX_ORDINALS]; /* charged for graph memory */
    struct lock vmm_lock;          /* guards handles; held over the driver's call */
};

/* This process, joined to the region; NULL if memory must be refused. */
struct process *account(void);

/* The index of a CUDA device in the limits file, REFUSED if it is not named there. */
int gpu_of_device(struct driver *d, struct process *p, CUdevice device);

/* The same of the current context, NO_CONTEXT if there is none; its owner if wanted. */
int gpu_of_current(struct driver *d, struct process *p, CUcontext *context);

bool charge(struct process *p, unsigned gpu, uint64_t bytes);
void charge_anyway(struct process *p, unsigned gpu, uint64_t bytes);
void uncharge(struct process *p, unsigned gpu, uint64_t bytes);
bool charge_context(struct process *p, unsigned gpu);
void uncharge_context(struct process *p, unsigned gpu);
bool share(struct process *p, unsigned gpu, int64_t exported, int64_t imported);

/* Charges, and before it gives up reads again what the process's pools really hold. */
bool charge_or_shrink(struct driver *d, struct process *p, unsigned gpu, uint64_t bytes);

/* Whether the container is above its limit on a GPU. */
bool above_limit(struct process *p, unsigned gpu);
uint64_t container_used(struct process *p, unsigned gpu);

/* How much physical memory an allocation takes: large ones come in pages of 2 MiB, small ones
 * share pages (inferred from public measurements). */
uint64_t rounded(uint64_t bytes);

/* Releases what a context owned. */
void release_owned(struct process *p, CUcontext owner);

/* Pools (pool.c), called with no lock held. */
void pools_shrink(struct driver *d, struct process *p, unsigned gpu);
void pool_freed(struct driver *d, struct process *p, const struct entry *entry);

#endif
