#include "driver.h"


#include "elf.h"
#include "lock.h"
#include "lookup.h"
#include "say.h"
#include "text.h"

static struct driver drivers[2][BANKS + 1]; /* library, bank */
static struct lock binding;
static unsigned long own_base;

static const char *const sonames[] = {"libcuda.so", "libnvidia-ml.so"};

/* --- the table, for finding a hook by name ------------------------------------------------------ */

enum { BUCKETS = 512 };
static short bucket[BUCKETS]; /* 1 + hook; the next one follows on a collision */
static int table_ready;

static unsigned hash_of(const char *name)
{
    unsigned hash = 2166136261u;
    for (; *name; name++)
        hash = (hash ^ (unsigned char)*name) * 16777619u;
    return (hash ^ hash >> 15) % BUCKETS;
}

__attribute__((constructor)) static void build_table(void)
{
    for (short i = 0; i < HOOK_COUNT; i++) {
        unsigned at = hash_of(hooks[i].symbol);
        while (bucket[at])
            at = (at + 1) % BUCKETS;
        bucket[at] = (short)(i + 1);
    }
    __atomic_store_n(&table_ready, 1, __ATOMIC_RELEASE);
}

int hook_named(const char *symbol)
{
    if (!__atomic_load_n(&table_ready, __ATOMIC_ACQUIRE)) {
        /* Another library's constructor ran before ours. */
        for (int i = 0; i < HOOK_COUNT; i++)
            if (same(hooks[i].symbol, symbol))
                return i;
        return -1;
    }
    if (!begins(symbol, "cu") && !begins(symbol, "nvml"))
        return -1; /* only to be quick: no such name is in the table */
    for (unsigned at = hash_of(symbol); bucket[at]; at = (at + 1) % BUCKETS)
        if (same(hooks[bucket[at] - 1].symbol, symbol))
            return bucket[at] - 1;
    return -1;
}

int hook_versioned(const char *base, int version, bool per_thread)
{
    int best = -1;
    /* Since 12.0 the plain name means another function, with other parameters (cuda.h). */
    if (version >= 12000 && same(base, "cuGraphInstantiate"))
        base = "cuGraphInstantiateWithFlags";
    for (int i = 0; i < HOOK_COUNT; i++) {
        const struct hook *hook = &hooks[i];
        if (hook->library != CUDA || hook->since > version || !same(hook->base, base) ||
            (hook->ptsz && !per_thread))
            continue;
        if (best < 0 || hook->since > hooks[best].since ||
            (hook->since == hooks[best].since && hook->ptsz > hooks[best].ptsz))
            best = i;
    }
    return best;
}

/* --- drivers ------------------------------------------------------------------------------------ */

static void fill(struct driver *driver, const struct module *module, enum library library)
{
    for (int i = 0; i < HOOK_COUNT; i++)
        if (hooks[i].library == library)
            driver->real[i] = module_symbol(module, hooks[i].symbol);
#define HELPER(symbol, parameters) driver->symbol = module_symbol(module, #symbol);
#include "helpers.def"
#undef HELPER
}

static struct driver *bind(const struct module *module, enum library library)
{
    struct driver *found = NULL;
    for (unsigned bank = 0; bank < BANKS && !found; bank++)
        if (__atomic_load_n(&drivers[library][bank].base, __ATOMIC_ACQUIRE) == module->base)
            return &drivers[library][bank];
    lock_take(&binding);
    for (unsigned bank = 0; bank < BANKS && !found; bank++) {
        struct driver *driver = &drivers[library][bank];
        if (driver->base && driver->base != module->base)
            continue;
        if (!driver->base) {
            fill(driver, module, library);
            driver->bank = bank;
            __atomic_store_n(&driver->base, module->base, __ATOMIC_RELEASE);
        }
        found = driver;
    }
    lock_give(&binding);
    return found;
}

struct driver *driver_in(enum library library, unsigned bank)
{
    return &drivers[library][bank];
}

void *driver_swap(void *found, int index)
{
    struct module module;
    enum library library = hooks[index].library;
    if (!own_base && module_of((const void *)driver_swap, &module))
        own_base = module.base;
    if (!module_of(found, &module) || module.base == own_base ||
        !begins(module.soname, sonames[library]))
        return found;
    struct driver *driver = bind(&module, library);
    if (!driver) {
        say_once(SAY_TOO_MANY_DRIVERS);
        return NULL;
    }
    if (!driver->real[index]) /* found, but not under its own name */
        __atomic_store_n(&driver->real[index], found, __ATOMIC_RELEASE);
    return entries[driver->bank][index];
}

struct driver *driver_of_exports(enum library library)
{
    struct driver *driver = &drivers[library][EXPORTS];
    if (__atomic_load_n(&driver->base, __ATOMIC_ACQUIRE))
        return driver;
    struct module module;
    if (!module_named(sonames[library], &module))
        return NULL;
    lock_take(&binding);
    if (!driver->base) {
        fill(driver, &module, library);
        driver->bank = EXPORTS;
        /* Who comes after us in the search order is who the call was meant for. */
        for (int i = 0; i < HOOK_COUNT; i++) {
            void *next = hooks[i].library == library
                             ? lookup_next(hooks[i].symbol) : NULL;
            if (next)
                driver->real[i] = next;
        }
        __atomic_store_n(&driver->base, module.base, __ATOMIC_RELEASE);
    }
    lock_give(&binding);
    return driver;
}
