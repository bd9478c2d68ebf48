/* What the process was given: pointers, arrays, handles, by key. */
#ifndef GPUSHARE_TABLE_H
#define GPUSHARE_TABLE_H

#include <stdbool.h>
#include <stdint.h>

#include "lock.h"

enum kind { FREE_ENTRY, REMOVED, POINTER, ARRAY, EXTERNAL, CONTEXT, LIMIT, EXEC, HANDLE, MAPPING };

struct entry {
    uint64_t key;
    uint32_t kind;
    int32_t gpu;
    uint64_t bytes;  /* charged */
    const void *owner; /* the context it goes with, or NULL */
    void *extra;     /* by kind: a pool, a VMM object */
    uint64_t number; /* by kind */
};

struct table {
    struct lock lock;
    struct entry *entries;
    uint64_t room, used; /* removed ones included */
    uint64_t live;
};

/* Makes room for one more; false without memory. Call it before the driver is asked. */
bool table_reserve(struct table *table);
void table_put(struct table *table, struct entry entry);
bool table_find(struct table *table, enum kind kind, uint64_t key, struct entry *entry);
bool table_take(struct table *table, enum kind kind, uint64_t key, struct entry *entry);

/* Takes one that `wanted` accepts; false when none is left. `from` starts at 0. */
bool table_take_if(struct table *table, uint64_t *from, struct entry *entry,
                   bool (*wanted)(const struct entry *, const void *), const void *context);

#endif
