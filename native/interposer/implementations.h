/* The implementations named in hooks.def: the hooked function's parameters after the driver and the
 * real function. */
#ifndef GPUSHARE_IMPLEMENTATIONS_H
#define GPUSHARE_IMPLEMENTATIONS_H

#include "driver.h"

#define UNPACK(...) __VA_ARGS__
#define HOOK(library, symbol, base, since, ptsz, implementation, parameters, arguments) \
    int implementation(struct driver *d, void *real, UNPACK parameters);
#include "hooks.def"
#undef HOOK

#endif
