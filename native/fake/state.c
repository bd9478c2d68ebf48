#include "state.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Private to this process. The page is wiped in a forked child, which therefore starts over. */
struct attached {
    struct fake_state *state;
    int slot; /* + 1, so that a wiped page says "none" */
    int fd;   /* + 1 */
};

static struct attached *self;
static pthread_mutex_t attach_lock = PTHREAD_MUTEX_INITIALIZER;
static int attached_pid;

static struct attached *own(void)
{
    if (!self) {
        void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (page == MAP_FAILED)
            abort();
        madvise(page, 4096, MADV_WIPEONFORK);
        self = page;
    }
    return self;
}

static int lock_byte(int fd, int command, int slot, short *type)
{
    struct flock lock = {
        .l_type = F_WRLCK,
        .l_whence = SEEK_SET,
        .l_start = (off_t)sizeof(struct fake_state) + slot,
        .l_len = 1,
    };
    int result = fcntl(fd, command, &lock);
    *type = lock.l_type;
    return result;
}

static struct fake_state *map_fd(int fd)
{
    struct stat status;
    if (fstat(fd, &status) != 0 || (size_t)status.st_size < sizeof(struct fake_state))
        return NULL;
    struct fake_state *state =
        mmap(NULL, sizeof *state, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (state == MAP_FAILED)
        return NULL;
    if (state->magic != FAKE_MAGIC || state->version != FAKE_VERSION) {
        munmap(state, sizeof *state);
        return NULL;
    }
    return state;
}

struct fake_state *fake_map(const char *path)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return NULL;
    struct fake_state *state = map_fd(fd);
    close(fd);
    return state;
}

static const char *state_path(void)
{
    const char *path = getenv(FAKE_STATE_ENV);
    return path && *path ? path : FAKE_STATE_DEFAULT;
}

struct fake_state *fake_attach(void)
{
    struct attached *mine = own();
    struct fake_state *state = __atomic_load_n(&mine->state, __ATOMIC_ACQUIRE);
    if (state)
        return state;
    pthread_mutex_lock(&attach_lock);
    if (!mine->state) {
        int fd = open(state_path(), O_RDWR | O_CLOEXEC);
        if (fd >= 0) {
            state = map_fd(fd);
            if (state) {
                /* The slot's lock belongs to this open file; a child must not keep it alive. */
                madvise(state, sizeof *state, MADV_DONTFORK);
                mine->fd = fd + 1;
                attached_pid = getpid();
                __atomic_store_n(&mine->state, state, __ATOMIC_RELEASE);
            } else {
                close(fd);
            }
        }
    }
    state = mine->state;
    pthread_mutex_unlock(&attach_lock);
    return state;
}

bool fake_forked(void)
{
    return attached_pid && !own()->state && attached_pid != getpid();
}

void fake_lock(struct fake_state *state)
{
    if (pthread_mutex_lock(&state->lock) == EOWNERDEAD)
        pthread_mutex_consistent(&state->lock);
}

void fake_unlock(struct fake_state *state)
{
    pthread_mutex_unlock(&state->lock);
}

static void clear_slot(struct fake_state *state, int slot)
{
    struct fake_proc *proc = &state->procs[slot];
    for (unsigned gpu = 0; gpu < FAKE_MAX_GPUS; gpu++)
        state->gpus[gpu].used -= proc->used[gpu];
    memset(proc, 0, sizeof *proc);
    for (int i = 0; i < FAKE_MAX_EXPORTS; i++)
        if (state->exports[i].id && state->exports[i].owner_slot == (uint32_t)slot)
            state->exports[i].id = 0;
}

int fake_slot(struct fake_state *state)
{
    struct attached *mine = own();
    if (mine->slot)
        return mine->slot - 1;
    for (int slot = 0; slot < FAKE_MAX_PROCS; slot++) {
        short type;
        if (lock_byte(mine->fd - 1, F_OFD_SETLK, slot, &type) != 0)
            continue;
        clear_slot(state, slot);
        state->procs[slot].pid = getpid();
        mine->slot = slot + 1;
        /* The mapping keeps the open file, and with it the lock; programs may close all fds. */
        close(mine->fd - 1);
        mine->fd = 0;
        return slot;
    }
    return -1;
}

void fake_reclaim(struct fake_state *state)
{
    int fd = open(state_path(), O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return;
    for (int slot = 0; slot < FAKE_MAX_PROCS; slot++) {
        short type;
        if (!state->procs[slot].pid)
            continue;
        if (lock_byte(fd, F_OFD_GETLK, slot, &type) == 0 && type == F_UNLCK)
            clear_slot(state, slot);
    }
    close(fd);
}

bool fake_take(struct fake_state *state, unsigned gpu, uint64_t bytes)
{
    bool taken = false;
    fake_lock(state);
    struct fake_gpu *device = &state->gpus[gpu];
    int slot = fake_slot(state);
    uint64_t usable = device->total - device->reserved;
    if (slot >= 0) {
        if (bytes > usable - device->used)
            fake_reclaim(state);
        if (bytes <= usable - device->used) {
            device->used += bytes;
            if (device->used > device->peak)
                device->peak = device->used;
            state->procs[slot].used[gpu] += bytes;
            taken = true;
        } else {
            device->refusals++;
        }
    }
    fake_unlock(state);
    return taken;
}

void fake_give(struct fake_state *state, unsigned gpu, uint64_t bytes)
{
    fake_lock(state);
    int slot = fake_slot(state);
    if (slot >= 0) {
        state->gpus[gpu].used -= bytes;
        state->procs[slot].used[gpu] -= bytes;
    }
    fake_unlock(state);
}

struct fake_state *fake_create(const char *path)
{
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0)
        return NULL;
    fchmod(fd, 0666);
    if (ftruncate(fd, (off_t)sizeof(struct fake_state)) != 0) {
        close(fd);
        return NULL;
    }
    struct fake_state *state =
        mmap(NULL, sizeof *state, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (state == MAP_FAILED)
        return NULL;
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&state->lock, &attributes);
    state->version = FAKE_VERSION;
    state->size = sizeof *state;
    state->cuda_version = 13000;
    state->context_cost = 300ull << 20;
    state->pool_chunk = 32ull << 20;
    snprintf(state->driver, sizeof state->driver, "580.65.06");
    state->magic = FAKE_MAGIC;
    return state;
}
