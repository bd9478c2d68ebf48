/* The state of a fake machine's GPUs: a file that every process maps, so that a GPU full of pods
 * can be checked, not just one process. Both fake libraries and the `fakegpu` tool share it.
 *
 * Memory that a process held comes back when it dies, as a driver does it: a process proves that it
 * lives by a lock on its slot's byte in the file, which the kernel drops with its last mapping. */
#ifndef GPUSHARE_FAKE_STATE_H
#define GPUSHARE_FAKE_STATE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#define FAKE_STATE_ENV "FAKE_GPU_STATE"
#define FAKE_STATE_DEFAULT "/etc/fake-gpu/state"

enum { FAKE_MAX_GPUS = 16, FAKE_MAX_PROCS = 512, FAKE_MAX_EVENTS = 64, FAKE_MAX_EXPORTS = 64 };
#define FAKE_NO_RECOVERY_FIELD 255u /* an older driver, which does not say */
#define FAKE_MAGIC 0x756770656b616667ull
#define FAKE_VERSION 4u

struct fake_gpu {
    char uuid[48]; /* GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx */
    char name[64];
    uint32_t bus, minor;
    uint64_t total, reserved; /* bytes; usable is their difference */
    uint64_t used;            /* sum over live processes, contexts included */
    uint64_t peak;            /* highest `used` ever */
    uint64_t refusals;        /* allocations that did not fit physically */
    uint32_t lost;            /* fell off the bus */
    uint32_t no_memory;       /* memory queries are not supported, as on some integrated GPUs */
    uint32_t addressing;      /* NVML addressing mode: 2 is "host page tables" */
    uint32_t mig;
    uint32_t recovery;        /* the driver's "recovery action"; 0 is none */
    uint64_t lost_sequence;   /* who called nvmlInit before this keeps seeing it lost */
    uint64_t double_bit_ecc;
};

struct fake_event {
    uint32_t gpu;
    uint64_t type, data;
};

struct fake_proc {
    int32_t pid;
    uint32_t contexts[FAKE_MAX_GPUS];
    uint64_t used[FAKE_MAX_GPUS];
};

/* A VMM allocation that was exported: shared memory lives as long as someone refers to it. */
struct fake_export {
    uint64_t id; /* 0: free */
    uint64_t size;
    uint32_t gpu;
    uint32_t owner_slot; /* whose `used` carries it */
};

struct fake_state {
    uint64_t magic;
    uint32_t version, size;
    uint32_t gpu_count;
    uint32_t cuda_version;     /* 13000 is 13.0 */
    uint64_t context_cost;     /* bytes per context */
    uint64_t pool_chunk;       /* pools grow by multiples of this */
    uint32_t memory_limits;    /* nvmlDeviceSetMemoryLimits_v1 exists */
    uint32_t init_error;       /* nvmlInit answers this */
    char driver[32];
    pthread_mutex_t lock;      /* robust, shared between processes */
    uint64_t sequence;         /* of events and of losses */
    struct fake_event events[FAKE_MAX_EVENTS]; /* a ring: event n is at n % FAKE_MAX_EVENTS */
    struct fake_gpu gpus[FAKE_MAX_GPUS];
    struct fake_export exports[FAKE_MAX_EXPORTS];
    struct fake_proc procs[FAKE_MAX_PROCS];
};

/* Maps the state named by FAKE_GPU_STATE; NULL if there is none. A forked child attaches anew. */
struct fake_state *fake_attach(void);
struct fake_state *fake_map(const char *path);
struct fake_state *fake_create(const char *path);

void fake_lock(struct fake_state *state);
void fake_unlock(struct fake_state *state);

/* This process's slot, claimed on first use; -1 if all are taken. Call with the lock held. */
int fake_slot(struct fake_state *state);

/* Takes `bytes` of a GPU, or answers false and counts a refusal; give takes them back. */
bool fake_take(struct fake_state *state, unsigned gpu, uint64_t bytes);
void fake_give(struct fake_state *state, unsigned gpu, uint64_t bytes);

/* Returns the memory of processes that died. Call with the lock held. */
void fake_reclaim(struct fake_state *state);

/* True in a child of a process that used the driver before it forked. */
bool fake_forked(void);

#endif
