/* The limits file: which GPUs this container has, and how much of each.
 *
 *   gpushare-limits 1
 *   GPU-00000000-0000-0000-0000-000000000000 limit=4509715660 reserve=314572800
 *
 * One line per GPU, in bytes; `reserve` is charged for every context. Mounted by the plugin, and
 * trusted because the mount is read-only. Anything unexpected makes it no limits file at all. */
#ifndef GPUSHARE_LIMITS_H
#define GPUSHARE_LIMITS_H

#include <stdbool.h>
#include <stdint.h>

#include "say.h"

enum { MAX_GPUS = 16, LIMITS_MAX_BYTES = 4096 };

struct limit {
    unsigned char uuid[16];
    uint64_t limit, reserve;
};

struct limits {
    unsigned count;
    struct limit gpus[MAX_GPUS];
};

bool limits_parse(const char *text, unsigned long length, struct limits *limits);

/* Reads the mounted file; says why not. */
bool limits_read(struct limits *limits);

/* "GPU-…" or "MIG-…" to bytes. */
bool uuid_parse(const char *text, unsigned long length, unsigned char uuid[16]);

#endif
