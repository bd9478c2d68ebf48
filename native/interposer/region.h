/* The region: what the processes of one container use, in a file they all map.
 *
 * This layout is an interface between versions: a running container keeps the library it started
 * with, and later plugins read its region. It never changes within a version; a new version may
 * only be written by a plugin whose library knows it.
 *
 * The file is the tenant's to write. Nothing read from it is trusted: a process never exceeds the
 * limit by its own count, whatever the region says, and no value in it is an offset or an index. */
#ifndef GPUSHARE_REGION_H
#define GPUSHARE_REGION_H

#include <stdbool.h>
#include <stdint.h>

#include "limits.h"

#define REGION_MAGIC 0x4552414853555047ull /* "GPUSHARE" */

enum {
    REGION_VERSION = 1,
    REGION_HEADER = 4096,
    REGION_SLOT = 1024,
    REGION_SLOTS = 256,
    REGION_SIZE = REGION_HEADER + REGION_SLOTS * REGION_SLOT,
    /* Byte `REGION_LOCKS + slot` of the file is locked while the slot's process lives. Locks may
     * lie behind the end of a file. */
    REGION_LOCKS = 1 << 30,
};

struct region_gpu { /* 64 bytes */
    unsigned char uuid[16];
    uint64_t limit;
    uint64_t used;    /* by all processes; a cache of the slots' sum */
    uint64_t peak;
    uint64_t refused; /* allocations, since the container's first process */
    uint64_t extra;   /* imported memory whose exporter is gone */
    uint64_t spare;
};

struct region_use { /* 48 bytes */
    uint64_t used, peak, refused;
    uint64_t contexts; /* of `used`, for contexts */
    uint64_t exported; /* of `used`, shared with other processes */
    uint64_t imported; /* not in `used`: the exporter's */
};

struct region_slot {
    uint32_t pid; /* as the process sees itself; 0: free */
    uint32_t spare;
    uint64_t started_ns; /* Unix time */
    uint64_t spare_too[6];
    struct region_use gpus[MAX_GPUS];
    unsigned char unused[REGION_SLOT - 64 - MAX_GPUS * sizeof(struct region_use)];
};

struct region {
    uint64_t magic;
    uint32_t version, size;
    uint32_t header_size, slot_size, slot_count, gpu_count;
    uint32_t lock; /* 0, or 1 + the slot of its holder, with the highest bit if somebody waits */
    uint32_t spare[7];
    struct region_gpu gpus[MAX_GPUS];
    unsigned char unused[REGION_HEADER - 64 - MAX_GPUS * sizeof(struct region_gpu)];
    struct region_slot slots[REGION_SLOTS];
};

_Static_assert(sizeof(struct region) == REGION_SIZE, "the region's layout is fixed");
_Static_assert(sizeof(struct region_slot) == REGION_SLOT, "the region's layout is fixed");

/* One process's place in the region. Its own counts are here, out of the tenant's easy reach. */
struct membership {
    struct region *region;
    unsigned slot;
    struct region_use own[MAX_GPUS];
};

/* Maps the region and claims a slot. False, said on stderr, if there is none to be trusted. */
bool region_join(struct membership *member, const struct limits *limits);

/* The following are called by one thread of the process at a time. */

enum charge {
    CHARGE,  /* if it fits; else it counts as refused */
    PROBE,   /* if it fits; the caller has another way to try first */
    ANYWAY,  /* what the driver has taken already */
};

bool region_charge(struct membership *member, const struct limits *limits, unsigned gpu,
                   uint64_t bytes, bool context, enum charge how);
void region_uncharge(struct membership *member, unsigned gpu, uint64_t bytes, bool context);

/* Changes what this process exports or imports. An import that nobody in the container exports is
 * charged: false if it does not fit. */
bool region_share(struct membership *member, const struct limits *limits, unsigned gpu,
                  int64_t exported, int64_t imported);

/* What the container uses of a GPU, dead processes not counted. */
uint64_t region_used(struct membership *member, const struct limits *limits, unsigned gpu);

/* Calls back for each process that uses the GPU. */
void region_each(struct membership *member, unsigned gpu,
                 void (*each)(void *context, uint32_t pid, uint64_t used), void *context);

#endif
