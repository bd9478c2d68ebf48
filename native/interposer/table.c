#include "table.h"

#include <stdlib.h>
#include <string.h>

static uint64_t place(const struct table *table, enum kind kind, uint64_t key)
{
    uint64_t hash = (key ^ (uint64_t)kind << 58) * 0x9e3779b97f4a7c15ull;
    return (hash >> 24) & (table->room - 1);
}

static void put(struct table *table, struct entry entry)
{
    uint64_t at = place(table, entry.kind, entry.key);
    while (table->entries[at].kind > REMOVED)
        at = (at + 1) & (table->room - 1);
    table->used += table->entries[at].kind == FREE_ENTRY;
    table->live++;
    table->entries[at] = entry;
}

static bool grow(struct table *table)
{
    uint64_t room = table->room ? table->room : 256;
    if (table->live * 4 >= room)
        room *= 2; /* else only the removed ones are swept out */
    struct entry *fresh = calloc(room, sizeof *fresh);
    if (!fresh)
        return false;
    struct table old = *table;
    table->entries = fresh;
    table->room = room;
    table->used = table->live = 0;
    for (uint64_t i = 0; i < old.room; i++)
        if (old.entries[i].kind > REMOVED)
            put(table, old.entries[i]);
    free(old.entries);
    return true;
}

/* Enough for as many threads as may be between reserve and put. */
static const uint64_t MARGIN = 128;

bool table_reserve(struct table *table)
{
    bool roomy = true;
    lock_take(&table->lock);
    if (table->used * 2 + MARGIN >= table->room)
        roomy = grow(table);
    lock_give(&table->lock);
    return roomy;
}

void table_put(struct table *table, struct entry entry)
{
    lock_take(&table->lock);
    if (table->used + 1 < table->room || grow(table))
        put(table, entry);
    lock_give(&table->lock);
}

static struct entry *find(struct table *table, enum kind kind, uint64_t key)
{
    if (!table->room)
        return NULL;
    for (uint64_t at = place(table, kind, key); table->entries[at].kind != FREE_ENTRY;
         at = (at + 1) & (table->room - 1))
        if (table->entries[at].key == key && table->entries[at].kind == (uint32_t)kind)
            return &table->entries[at];
    return NULL;
}

bool table_find(struct table *table, enum kind kind, uint64_t key, struct entry *entry)
{
    lock_take(&table->lock);
    struct entry *found = find(table, kind, key);
    if (found)
        *entry = *found;
    lock_give(&table->lock);
    return found != NULL;
}

/* Leaves a mark where a search must go on, and none where it would end anyway. */
static void drop(struct table *table, struct entry *entry)
{
    struct entry *next = &table->entries[((uint64_t)(entry - table->entries) + 1) & (table->room - 1)];
    bool end = next->kind == FREE_ENTRY;
    entry->kind = end ? FREE_ENTRY : REMOVED;
    table->used -= end;
    table->live--;
}

bool table_take(struct table *table, enum kind kind, uint64_t key, struct entry *entry)
{
    lock_take(&table->lock);
    struct entry *found = find(table, kind, key);
    if (found) {
        *entry = *found;
        drop(table, found);
    }
    lock_give(&table->lock);
    return found != NULL;
}

bool table_take_if(struct table *table, uint64_t *from, struct entry *entry,
                   bool (*wanted)(const struct entry *, const void *), const void *context)
{
    bool found = false;
    lock_take(&table->lock);
    for (; *from < table->room && !found; ++*from) {
        struct entry *at = &table->entries[*from];
        if (at->kind <= REMOVED || !wanted(at, context))
            continue;
        *entry = *at;
        drop(table, at);
        found = true;
    }
    lock_give(&table->lock);
    return found;
}
