/* The functions that programs get instead of the driver's, generated from hooks.def: for each name
 * one exported function, for programs that link the driver directly, and one per driver bank, for
 * those that look it up. Each only says which driver it belongs to. */
#include "driver.h"
#include "implementations.h"

/* Answers where the process has no driver at all. */
enum { NO_DRIVER_CUDA = CUDA_ERROR_NOT_INITIALIZED, NO_DRIVER_NVML = 12 /* library not found */ };

#define HOOK(library, symbol, base, since, ptsz, implementation, parameters, arguments)            \
    __attribute__((visibility("default"))) int symbol parameters;                                  \
    int symbol parameters                                                                          \
    {                                                                                              \
        struct driver *d = driver_of_exports(library);                                             \
        if (!d || !d->real[H_##symbol])                                                            \
            return NO_DRIVER_##library;                                                            \
        return implementation(d, d->real[H_##symbol], UNPACK arguments);                           \
    }
#include "hooks.def"
#undef HOOK

#define ENTRY(number, library, symbol, implementation, parameters, arguments)                      \
    static int bank##number##_##symbol parameters                                                  \
    {                                                                                              \
        struct driver *d = driver_in(library, number);                                             \
        return implementation(d, d->real[H_##symbol], UNPACK arguments);                           \
    }
#define HOOK(library, symbol, base, since, ptsz, implementation, parameters, arguments)            \
    ENTRY(0, library, symbol, implementation, parameters, arguments)                               \
    ENTRY(1, library, symbol, implementation, parameters, arguments)                               \
    ENTRY(2, library, symbol, implementation, parameters, arguments)
#include "hooks.def"
#undef HOOK

void *const entries[BANKS][HOOK_COUNT] = {
#define HOOK(library, symbol, ...) (void *)bank0_##symbol,
    {
#include "hooks.def"
    },
#undef HOOK
#define HOOK(library, symbol, ...) (void *)bank1_##symbol,
    {
#include "hooks.def"
    },
#undef HOOK
#define HOOK(library, symbol, ...) (void *)bank2_##symbol,
    {
#include "hooks.def"
    },
#undef HOOK
};

const struct hook hooks[HOOK_COUNT] = {
#define HOOK(library, symbol, base, since, ptsz, ...) {#symbol, #base, library, since, ptsz},
#include "hooks.def"
#undef HOOK
};
