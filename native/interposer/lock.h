/* A small lock for the threads of one process: no libpthread, which old programs may not load. */
#ifndef GPUSHARE_LOCK_H
#define GPUSHARE_LOCK_H

#include <linux/futex.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

struct lock {
    uint32_t word; /* 0 free, 1 taken, 2 taken and somebody waits */
};

static inline long futex(uint32_t *word, int operation, uint32_t value, const struct timespec *wait)
{
    return syscall(SYS_futex, word, operation, value, wait, NULL, 0);
}

static inline void lock_take(struct lock *lock)
{
    uint32_t seen = 0;
    if (__atomic_compare_exchange_n(&lock->word, &seen, 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
        return;
    while (__atomic_exchange_n(&lock->word, 2, __ATOMIC_ACQUIRE))
        futex(&lock->word, FUTEX_WAIT_PRIVATE, 2, NULL);
}

static inline void lock_give(struct lock *lock)
{
    if (__atomic_exchange_n(&lock->word, 0, __ATOMIC_RELEASE) == 2)
        futex(&lock->word, FUTEX_WAKE_PRIVATE, 1, NULL);
}

#endif
