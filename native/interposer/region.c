#include "region.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>

#include "lock.h"
#include "paths.h"

#ifndef F_OFD_GETLK
#define F_OFD_GETLK 36
#define F_OFD_SETLK 37
#endif

#define WAITERS 0x80000000u
enum { WAIT_MS = 10, STUCK_MS = 5000 };

static uint64_t plus(uint64_t a, uint64_t b)
{
    return a + b < a ? UINT64_MAX : a + b;
}

static uint64_t minus(uint64_t a, uint64_t b)
{
    return a < b ? 0 : a - b;
}

/* --- who lives ---------------------------------------------------------------------------------- */

/* Locks the slot's byte for an open file, or asks whether somebody holds it. */
static bool slot_lock(int fd, unsigned slot, int command, struct flock *lock)
{
    *lock = (struct flock){
        .l_type = F_WRLCK,
        .l_whence = SEEK_SET,
        .l_start = REGION_LOCKS + (off_t)slot,
        .l_len = 1,
    };
    return fcntl(fd, command, lock) == 0;
}

static int open_region(void)
{
    return open(REGION_PATH, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
}

/* When in doubt it lives: its memory is then counted. */
static bool lives(int fd, unsigned slot)
{
    struct flock lock;
    return fd < 0 || !slot_lock(fd, slot, F_OFD_GETLK, &lock) || lock.l_type != F_UNLCK;
}

/* --- the lock between processes ------------------------------------------------------------------ */

/* The word names the holder's slot, so that it can be taken from a holder that died. Not a robust
 * pthread mutex: that keeps pointers in the shared memory, and needs libpthread in old images.
 * *stolen says that a holder died inside: the sums must be made anew. */
static bool region_lock(struct membership *member, bool *stolen)
{
    uint32_t *word = &member->region->lock, me = member->slot + 1, seen = 0;
    *stolen = false;
    if (__atomic_compare_exchange_n(word, &seen, me, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
        return true;
    for (unsigned spins = 0; spins < 200; spins++) {
        seen = 0;
        if (__atomic_compare_exchange_n(word, &seen, me, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
            return true;
    }
    for (unsigned waited = 0; waited < STUCK_MS; waited += WAIT_MS) {
        seen = __atomic_load_n(word, __ATOMIC_RELAXED);
        if (seen) {
            uint32_t marked = seen | WAITERS;
            if (seen != marked && !__atomic_compare_exchange_n(word, &seen, marked, 0,
                                                               __ATOMIC_RELAXED, __ATOMIC_RELAXED))
                continue;
            struct timespec wait = {.tv_nsec = WAIT_MS * 1000000};
            if (futex(word, FUTEX_WAIT, marked, &wait) == 0 || errno != ETIMEDOUT) {
                seen = 0;
                if (__atomic_compare_exchange_n(word, &seen, me | WAITERS, 0, __ATOMIC_ACQUIRE,
                                                __ATOMIC_RELAXED))
                    return true;
                continue;
            }
            uint32_t holder = (marked & ~WAITERS) - 1;
            int fd = open_region();
            /* Nobody of this process holds it: its threads take turns before they come here. */
            bool dead = holder >= REGION_SLOTS || holder == member->slot || !lives(fd, holder);
            if (fd >= 0)
                close(fd);
            if (!dead)
                continue;
            seen = marked;
        }
        bool taken_over = seen != 0;
        if (__atomic_compare_exchange_n(word, &seen, me | WAITERS, 0, __ATOMIC_ACQUIRE,
                                        __ATOMIC_RELAXED)) {
            *stolen = taken_over;
            return true;
        }
    }
    say_once(SAY_STUCK_REGION);
    return false;
}

static void region_unlock(struct membership *member)
{
    uint32_t *word = &member->region->lock;
    if (__atomic_exchange_n(word, 0, __ATOMIC_RELEASE) & WAITERS)
        futex(word, FUTEX_WAKE, INT32_MAX, NULL);
}

/* --- sums ---------------------------------------------------------------------------------------- */

/* Drops the slots of the dead and adds up the rest. Call with the lock. */
static void recount(struct membership *member, const struct limits *limits)
{
    struct region *region = member->region;
    uint64_t used[MAX_GPUS] = {0}, exported[MAX_GPUS] = {0}, imported[MAX_GPUS] = {0};
    int fd = open_region();
    memcpy(region->slots[member->slot].gpus, member->own, sizeof member->own);
    for (unsigned slot = 0; slot < REGION_SLOTS; slot++) {
        struct region_slot *at = &region->slots[slot];
        if (!at->pid)
            continue;
        if (slot != member->slot && !lives(fd, slot)) {
            memset(at, 0, sizeof *at);
            continue;
        }
        for (unsigned gpu = 0; gpu < limits->count; gpu++) {
            used[gpu] = plus(used[gpu], at->gpus[gpu].used);
            exported[gpu] = plus(exported[gpu], at->gpus[gpu].exported);
            if (at->gpus[gpu].imported > imported[gpu])
                imported[gpu] = at->gpus[gpu].imported;
        }
    }
    if (fd >= 0)
        close(fd);
    for (unsigned gpu = 0; gpu < limits->count; gpu++) {
        region->gpus[gpu].used = used[gpu];
        /* Every exported byte carries one imported byte; what one importer holds beyond that
         * outlived its exporter, or came from outside, and is charged to the container. Where
         * importers of different objects lose their exporters this counts the largest only. */
        region->gpus[gpu].extra = minus(imported[gpu], exported[gpu]);
    }
}

static uint64_t total(const struct membership *member, unsigned gpu)
{
    const struct region_gpu *at = &member->region->gpus[gpu];
    uint64_t used = at->used > member->own[gpu].used ? at->used : member->own[gpu].used;
    return plus(used, at->extra);
}

static void publish(struct membership *member, unsigned gpu)
{
    member->region->slots[member->slot].gpus[gpu] = member->own[gpu];
}

bool region_charge(struct membership *member, const struct limits *limits, unsigned gpu,
                   uint64_t bytes, bool context, enum charge how)
{
    bool stolen, granted;
    struct region_use *own = &member->own[gpu];
    struct region_gpu *at = &member->region->gpus[gpu];
    uint64_t limit = limits->gpus[gpu].limit;
    if (!region_lock(member, &stolen))
        return false;
    if (stolen)
        recount(member, limits);
    granted = how == ANYWAY || plus(total(member, gpu), bytes) <= limit;
    if (!granted) {
        recount(member, limits);
        granted = plus(total(member, gpu), bytes) <= limit;
    }
    if (granted) {
        own->used += bytes;
        own->contexts += context ? bytes : 0;
        own->peak = own->used > own->peak ? own->used : own->peak;
        at->used = plus(at->used, bytes);
        at->peak = total(member, gpu) > at->peak ? total(member, gpu) : at->peak;
    } else if (how == CHARGE) {
        own->refused++;
        at->refused++;
    }
    publish(member, gpu);
    region_unlock(member);
    return granted;
}

void region_uncharge(struct membership *member, unsigned gpu, uint64_t bytes, bool context)
{
    bool stolen;
    struct region_use *own = &member->own[gpu];
    bool locked = region_lock(member, &stolen);
    own->used = minus(own->used, bytes);
    own->contexts = context ? minus(own->contexts, bytes) : own->contexts;
    if (!locked)
        return; /* the next count that succeeds puts it right */
    member->region->gpus[gpu].used = minus(member->region->gpus[gpu].used, bytes);
    publish(member, gpu);
    region_unlock(member);
}

bool region_share(struct membership *member, const struct limits *limits, unsigned gpu,
                  int64_t exported, int64_t imported)
{
    bool stolen;
    struct region_use *own = &member->own[gpu];
    if (!region_lock(member, &stolen))
        return false;
    uint64_t before = member->region->gpus[gpu].extra;
    own->exported += (uint64_t)exported;
    own->imported += (uint64_t)imported;
    recount(member, limits);
    bool fits = total(member, gpu) <= limits->gpus[gpu].limit ||
                member->region->gpus[gpu].extra <= before;
    if (!fits) {
        own->exported -= (uint64_t)exported;
        own->imported -= (uint64_t)imported;
        own->refused++;
        member->region->gpus[gpu].refused++;
        recount(member, limits);
    }
    region_unlock(member);
    return fits;
}

/* --- looking ------------------------------------------------------------------------------------- */

uint64_t region_used(struct membership *member, const struct limits *limits, unsigned gpu)
{
    bool stolen;
    const struct region_gpu *at = &member->region->gpus[gpu];
    /* With others in the container some may have died meanwhile. */
    if ((at->used != member->own[gpu].used || at->extra) && region_lock(member, &stolen)) {
        recount(member, limits);
        region_unlock(member);
    }
    return total(member, gpu);
}

void region_each(struct membership *member, unsigned gpu,
                 void (*each)(void *context, uint32_t pid, uint64_t used), void *context)
{
    int fd = open_region();
    for (unsigned slot = 0; slot < REGION_SLOTS; slot++) {
        const struct region_slot *at = &member->region->slots[slot];
        if (at->pid && at->gpus[gpu].used && (slot == member->slot || lives(fd, slot)))
            each(context, at->pid, at->gpus[gpu].used);
    }
    if (fd >= 0)
        close(fd);
}

/* --- joining ------------------------------------------------------------------------------------- */

static bool sound(const struct region *region)
{
    return region->magic == REGION_MAGIC && region->version == REGION_VERSION &&
           region->size == REGION_SIZE;
}

/* The lock must outlive the file descriptor, for programs close what they do not know. Where it
 * does not (overlayfs), slots would be taken from the living. */
static bool lock_survives(unsigned slot)
{
    int fd = open_region();
    struct flock lock;
    bool held = fd >= 0 && slot_lock(fd, slot, F_OFD_GETLK, &lock) && lock.l_type != F_UNLCK;
    if (fd >= 0)
        close(fd);
    return held;
}

static bool claim(int fd, unsigned *slot)
{
    struct flock lock;
    for (*slot = 0; *slot < REGION_SLOTS; ++*slot)
        if (slot_lock(fd, *slot, F_OFD_SETLK, &lock))
            return true;
    return false;
}

bool region_join(struct membership *member, const struct limits *limits)
{
    struct stat status;
    bool stolen;
    int fd = open_region();
    if (fd < 0) {
        say_once(SAY_NO_REGION);
        return false;
    }
    enum message problem = SAY_BAD_REGION;
    struct region *region = MAP_FAILED;
    if (fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && status.st_size >= REGION_SIZE)
        region = mmap(NULL, REGION_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    bool good = region != MAP_FAILED && sound(region);
    if (good) {
        /* A child would keep the lock of this slot alive. */
        madvise(region, REGION_SIZE, MADV_DONTFORK);
        good = claim(fd, &member->slot);
        problem = SAY_FULL_REGION;
    }
    close(fd);
    if (good && !lock_survives(member->slot)) {
        good = false;
        problem = SAY_NO_LOCKS;
    }
    if (!good) {
        if (region != MAP_FAILED)
            munmap(region, REGION_SIZE);
        say_once(problem);
        return false;
    }
    member->region = region;
    if (!region_lock(member, &stolen)) {
        munmap(region, REGION_SIZE);
        member->region = NULL;
        return false;
    }
    struct timespec now = {0};
    clock_gettime(CLOCK_REALTIME, &now);
    struct region_slot *mine = &region->slots[member->slot];
    memset(mine, 0, sizeof *mine);
    mine->pid = (uint32_t)getpid();
    mine->started_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    recount(member, limits);
    region_unlock(member);
    return true;
}
