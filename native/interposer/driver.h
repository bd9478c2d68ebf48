/* The driver libraries as this process has them: the real functions, and which hook stands for
 * which. A process may hold more than one libcuda (dlmopen, a compatibility folder): each is a
 * driver of its own, with its own set of entries, so that every call reaches the library that its
 * caller looked it up in. */
#ifndef GPUSHARE_DRIVER_H
#define GPUSHARE_DRIVER_H

#include <stdbool.h>

#include "../abi/cuda.h"
#include "../abi/nvml.h"

enum library { CUDA, NVML, LIBC };

enum hook_index {
#define HOOK(library, symbol, base, since, ptsz, implementation, parameters, arguments) H_##symbol,
#include "hooks.def"
#undef HOOK
    HOOK_COUNT
};

/* Drivers found by lookups, and one more for calls to our exported names. */
enum { BANKS = 3, EXPORTS = BANKS, MAX_ORDINALS = 64 };

struct driver {
    unsigned long base; /* where the library is loaded; 0 while unused */
    unsigned bank;
    void *real[HOOK_COUNT];
#define HELPER(symbol, parameters) int (*symbol) parameters;
#include "helpers.def"
#undef HELPER
    int gpu_of[MAX_ORDINALS]; /* CUdevice -> 1 + index in the limits file, -1 not named there */
};

struct hook {
    const char *symbol, *base;
    enum library library;
    int since, ptsz;
};

extern const struct hook hooks[HOOK_COUNT];
extern void *const entries[BANKS][HOOK_COUNT];

/* The hook with exactly this name, or -1. */
int hook_named(const char *symbol);

/* The hook that stands for what cuGetProcAddress found, or -1. */
int hook_versioned(const char *base, int version, bool per_thread);

/* What to answer for `found`, which a lookup of hook `index` gave: our entry if it lives in the
 * hook's library, else `found` itself. NULL where there are more drivers than we can hold. */
void *driver_swap(void *found, int index);

/* The driver behind our exported names; `real` is NULL where the process has none. */
struct driver *driver_of_exports(enum library library);

struct driver *driver_in(enum library library, unsigned bank);

/* Typed call of a real function. */
#define REAL(real, parameters, arguments) (((int (*) parameters)(real)) arguments)

#endif
