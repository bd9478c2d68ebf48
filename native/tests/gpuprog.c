/* A CUDA driver program for tests. It finds the driver's functions on one of the ways real programs
 * do, then obeys commands from standard input, one per line, and answers each with one line: the
 * result code, and what there is to say.
 *
 *   gpuprog direct|dlsym|dlvsym|default|next|address|address-v1|per-thread
 *
 * `direct` needs the program built with -DDIRECT, linked against libcuda. */
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../abi/cuda.h"

#ifdef DIRECT
#define FUNCTION(symbol, base, since, parameters) int symbol parameters;
#include "functions.def"
#undef FUNCTION
#endif

static struct {
#define FUNCTION(symbol, base, since, parameters) int (*symbol) parameters;
#include "functions.def"
#undef FUNCTION
} cu;

static const struct {
    const char *symbol, *base;
    int since;
} names[] = {
#define FUNCTION(symbol, base, since, parameters) {#symbol, #base, since},
#include "functions.def"
#undef FUNCTION
};
enum { FUNCTIONS = sizeof names / sizeof *names };

/* --- finding the driver -------------------------------------------------------------------------- */

typedef int (*address_v2)(const char *, void **, int, uint64_t, int *);
typedef int (*address_v1)(const char *, void **, int, uint64_t);

static void *by_address(void *library, const char *way, int i)
{
    void *found = NULL;
    uint64_t flags = strcmp(way, "per-thread") ? CU_GET_PROC_ADDRESS_LEGACY
                                               : CU_GET_PROC_ADDRESS_PER_THREAD;
    if (!strcmp(way, "address-v1")) {
        address_v1 ask = (address_v1)dlsym(library, "cuGetProcAddress");
        ask(names[i].base, &found, names[i].since, flags);
        return found;
    }
    /* As libcudart does: the lookup function is looked up through itself. */
    static address_v2 ask;
    int status;
    if (!ask) {
        address_v2 first = (address_v2)dlsym(library, "cuGetProcAddress_v2");
        first("", &found, 12000, 0, &status);
        first("cuGetProcAddress", (void **)&ask, 12000, 0, &status);
    }
    ask(names[i].base, &found, names[i].since, flags, &status);
    return found;
}

static void find_all(const char *way)
{
    void **functions = (void **)&cu;
#ifdef DIRECT
    (void)way, (void)by_address;
    int filled = 0;
#define FUNCTION(symbol, base, since, parameters) functions[filled++] = (void *)symbol;
#include "functions.def"
#undef FUNCTION
#else
    int global = !strcmp(way, "default") || !strcmp(way, "next") || !strcmp(way, "dlsym-dlsym");
    void *library = dlopen("libcuda.so.1", RTLD_NOW | (global ? RTLD_GLOBAL : RTLD_LOCAL));
    if (!library) {
        fprintf(stderr, "gpuprog: %s\n", dlerror());
        exit(3);
    }
    void *(*lookup)(void *, const char *) = dlsym;
    if (!strcmp(way, "dlsym-dlsym"))
        lookup = (void *(*)(void *, const char *))dlsym(RTLD_DEFAULT, "dlsym");
    for (int i = 0; i < FUNCTIONS; i++) {
        if (!strcmp(way, "dlsym") || !strcmp(way, "dlsym-dlsym"))
            functions[i] = lookup(library, names[i].symbol);
        else if (!strcmp(way, "default"))
            functions[i] = dlsym(RTLD_DEFAULT, names[i].symbol);
        else if (!strcmp(way, "next"))
            functions[i] = dlsym(RTLD_NEXT, names[i].symbol);
        else
            functions[i] = by_address(library, way, i);
    }
#endif
    for (int i = 0; i < FUNCTIONS; i++)
        if (!functions[i]) {
            fprintf(stderr, "gpuprog: %s not found by %s\n", names[i].symbol, way);
            exit(3);
        }
}

/* --- commands ------------------------------------------------------------------------------------ */

enum { MAX = 65536 };
static CUdeviceptr pointers[MAX];
static unsigned long long handles[MAX]; /* contexts, arrays, pools, graphs, … */
static CUstream stream;

static unsigned keep(unsigned long long value)
{
    static unsigned used = 1;
    handles[used] = value;
    return used++;
}

static void answer_kept(int result, unsigned long long value)
{
    if (result)
        printf("%d\n", result);
    else
        printf("0 %u\n", keep(value));
}

static int allocate(unsigned long long bytes, CUdeviceptr *pointer, const char *how)
{
    size_t pitch;
    if (!strcmp(how, "alloc"))
        return cu.cuMemAlloc_v2(pointer, bytes);
    if (!strcmp(how, "managed"))
        return cu.cuMemAllocManaged(pointer, bytes, 1);
    if (!strcmp(how, "pitch"))
        return cu.cuMemAllocPitch_v2(pointer, &pitch, 1024, bytes / 1024, 4);
    if (!strcmp(how, "async"))
        return cu.cuMemAllocAsync(pointer, bytes, stream);
    if (!strcmp(how, "first")) {
        CUdeviceptr_v1 short_pointer = 0;
        int result = cu.cuMemAlloc(&short_pointer, (unsigned)bytes);
        *pointer = short_pointer;
        return result;
    }
    return -1;
}

struct job {
    int pairs;
    unsigned long long bytes;
    int failures;
    CUcontext context;
};

static void *run_job(void *argument)
{
    struct job *job = argument;
    CUdeviceptr pointer;
    cu.cuCtxSetCurrent(job->context);
    for (int i = 0; i < job->pairs; i++) {
        if (cu.cuMemAlloc_v2(&pointer, job->bytes + (unsigned)(i % 7) * 4096) != 0)
            job->failures++;
        else if (cu.cuMemFree_v2(pointer) != 0)
            job->failures += 1000000;
    }
    return NULL;
}

static void threads(int count, int pairs, unsigned long long bytes)
{
    pthread_t ids[64];
    struct job jobs[64];
    int failures = 0;
    for (int i = 0; i < count; i++) {
        jobs[i] = (struct job){pairs, bytes, 0, NULL};
        cu.cuCtxGetCurrent(&jobs[i].context);
        pthread_create(&ids[i], NULL, run_job, &jobs[i]);
    }
    for (int i = 0; i < count; i++) {
        pthread_join(ids[i], NULL);
        failures += jobs[i].failures;
    }
    printf("0 %d\n", failures);
}

static double nanoseconds(struct timespec from, struct timespec to, long count)
{
    return ((double)(to.tv_sec - from.tv_sec) * 1e9 + (double)(to.tv_nsec - from.tv_nsec)) /
           (double)count;
}

static void measure(long count)
{
    struct timespec a, b, c, d;
    CUdeviceptr pointer;
    size_t free_bytes, total;
    clock_gettime(CLOCK_MONOTONIC, &a);
    for (long i = 0; i < count; i++) {
        cu.cuMemAlloc_v2(&pointer, 4096);
        cu.cuMemFree_v2(pointer);
    }
    clock_gettime(CLOCK_MONOTONIC, &b);
    for (long i = 0; i < count; i++)
        cu.cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
    clock_gettime(CLOCK_MONOTONIC, &c);
    for (long i = 0; i < count; i++)
        cu.cuMemGetInfo_v2(&free_bytes, &total);
    clock_gettime(CLOCK_MONOTONIC, &d);
    printf("0 %.2f %.2f %.2f\n", nanoseconds(a, b, count), nanoseconds(b, c, count),
           nanoseconds(c, d, count));
}

static void fork_and(int use_exec, char **words)
{
    pid_t child = fork();
    if (child == 0) {
        CUdeviceptr pointer;
        if (use_exec) {
            freopen("/dev/null", "r", stdin); /* the commands are the parent's */
            execl(words[0], words[0], words[1], (char *)NULL);
            _exit(99);
        }
        /* Real drivers answer "not initialised" in a child of a process that used them. */
        _exit(cu.cuMemAlloc_v2(&pointer, 4096) == CUDA_SUCCESS ? 98 : 0);
    }
    int status;
    waitpid(child, &status, 0);
    printf("0 %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
}

static void command(char **words, const char *verb, unsigned long long a, unsigned long long b)
{
    CUdeviceptr pointer = 0;
    CUcontext context = NULL;
    size_t free_bytes = 0, total = 0;
    unsigned short_free = 0, short_total = 0;
    int result;
    if (!strcmp(verb, "init")) {
        result = cu.cuInit(0);
        if (!result)
            result = cu.cuDevicePrimaryCtxRetain(&context, (int)a);
        if (!result)
            result = cu.cuCtxSetCurrent(context);
        if (!result && !stream)
            result = cu.cuStreamCreate(&stream, 0);
        printf("%d\n", result);
    } else if (!strcmp(verb, "release")) {
        printf("%d\n", cu.cuDevicePrimaryCtxRelease_v2((int)a));
    } else if (!strcmp(verb, "reset")) {
        printf("%d\n", cu.cuDevicePrimaryCtxReset_v2((int)a));
    } else if (!strcmp(verb, "context")) {
        result = cu.cuCtxCreate_v2(&context, 0, (int)a);
        answer_kept(result, (unsigned long long)context);
    } else if (!strcmp(verb, "destroy")) {
        printf("%d\n", cu.cuCtxDestroy_v2((CUcontext)handles[a]));
    } else if (!strcmp(verb, "limit")) {
        printf("%d\n", cu.cuCtxSetLimit((int)a, b));
    } else if (!strcmp(verb, "free")) {
        printf("%d\n", cu.cuMemFree_v2(handles[a]));
    } else if (!strcmp(verb, "free-first")) {
        printf("%d\n", cu.cuMemFree((CUdeviceptr_v1)handles[a]));
    } else if (!strcmp(verb, "free-async")) {
        printf("%d\n", cu.cuMemFreeAsync(handles[a], stream));
    } else if (!strcmp(verb, "sync")) {
        printf("%d\n", cu.cuCtxSynchronize());
    } else if (!strcmp(verb, "info")) {
        result = cu.cuMemGetInfo_v2(&free_bytes, &total);
        printf("%d %zu %zu\n", result, free_bytes, total);
    } else if (!strcmp(verb, "info-null")) {
        result = cu.cuMemGetInfo_v2(NULL, &total);
        printf("%d %zu\n", result, total);
    } else if (!strcmp(verb, "total")) {
        result = cu.cuDeviceTotalMem_v2(&total, (int)a);
        printf("%d %zu\n", result, total);
    } else if (!strcmp(verb, "info-first")) {
        result = cu.cuMemGetInfo(&short_free, &short_total);
        printf("%d %u %u\n", result, short_free, short_total);
    } else if (!strcmp(verb, "total-first")) {
        result = cu.cuDeviceTotalMem(&short_total, (int)a);
        printf("%d %u\n", result, short_total);
    } else if (!strcmp(verb, "fill")) {
        unsigned granted = 0;
        while ((result = cu.cuMemAlloc_v2(&pointer, a)) == 0 && granted < MAX)
            pointers[granted++] = pointer;
        printf("%d %u\n", result, granted);
    } else if (!strcmp(verb, "array")) {
        CUDA_ARRAY3D_DESCRIPTOR x = {1024, a / 4096, 0, 0x20, 1, (unsigned)b};
        CUarray array = NULL;
        result = cu.cuArray3DCreate_v2(&array, &x);
        answer_kept(result, (unsigned long long)array);
    } else if (!strcmp(verb, "free-array")) {
        printf("%d\n", cu.cuArrayDestroy((CUarray)handles[a]));
    } else if (!strcmp(verb, "external")) {
        CUDA_EXTERNAL_MEMORY_HANDLE_DESC x = {.size = a};
        CUexternalMemory memory = NULL;
        result = cu.cuImportExternalMemory(&memory, &x);
        answer_kept(result, (unsigned long long)memory);
    } else if (!strcmp(verb, "free-external")) {
        printf("%d\n", cu.cuDestroyExternalMemory((CUexternalMemory)handles[a]));
    } else if (!strcmp(verb, "pool")) {
        CUmemPoolProps props = {.allocType = 1, .location = {(int)a, (int)b}};
        CUmemoryPool pool = NULL;
        result = cu.cuMemPoolCreate(&pool, &props);
        answer_kept(result, (unsigned long long)pool);
    } else if (!strcmp(verb, "from-pool")) {
        result = cu.cuMemAllocFromPoolAsync(&pointer, a, (CUmemoryPool)handles[b], stream);
        answer_kept(result, pointer);
    } else if (!strcmp(verb, "destroy-pool")) {
        printf("%d\n", cu.cuMemPoolDestroy((CUmemoryPool)handles[a]));
    } else if (!strcmp(verb, "threshold")) {
        CUmemoryPool pool;
        uint64_t keep_bytes = a;
        cu.cuDeviceGetDefaultMemPool(&pool, 0);
        printf("%d\n", cu.cuMemPoolSetAttribute(pool, CU_POOL_RELEASE_THRESHOLD, &keep_bytes));
    } else if (!strcmp(verb, "capture")) {
        printf("%d\n", cu.cuStreamBeginCapture_v2(stream, 0));
    } else if (!strcmp(verb, "end-capture")) {
        CUgraph graph = NULL;
        CUgraphExec exec = NULL;
        result = cu.cuStreamEndCapture(stream, &graph);
        if (!result)
            result = cu.cuGraphInstantiateWithFlags(&exec, graph, 0);
        answer_kept(result, (unsigned long long)exec);
    } else if (!strcmp(verb, "launch")) {
        printf("%d\n", cu.cuGraphLaunch((CUgraphExec)handles[a], stream));
    } else if (!strcmp(verb, "destroy-graph")) {
        printf("%d\n", cu.cuGraphExecDestroy((CUgraphExec)handles[a]));
    } else if (!strcmp(verb, "trim-graphs")) {
        printf("%d\n", cu.cuDeviceGraphMemTrim((int)a));
    } else if (!strcmp(verb, "create")) {
        CUmemAllocationProp prop = {.type = 1, .location = {(int)b, 0}};
        CUmemGenericAllocationHandle handle = 0;
        result = cu.cuMemCreate(&handle, a, &prop, 0);
        answer_kept(result, handle);
    } else if (!strcmp(verb, "map")) {
        result = cu.cuMemAddressReserve(&pointer, b, 0, 0, 0);
        if (!result)
            result = cu.cuMemMap(pointer, b, 0, handles[a], 0);
        answer_kept(result, pointer);
    } else if (!strcmp(verb, "unmap")) {
        printf("%d\n", cu.cuMemUnmap(handles[a], b));
    } else if (!strcmp(verb, "retain")) {
        CUmemGenericAllocationHandle handle = 0;
        result = cu.cuMemRetainAllocationHandle(&handle, (void *)handles[a]);
        answer_kept(result, handle);
    } else if (!strcmp(verb, "drop")) {
        printf("%d\n", cu.cuMemRelease(handles[a]));
    } else if (!strcmp(verb, "export")) {
        int fd = -1;
        result = cu.cuMemExportToShareableHandle(&fd, handles[a], 1, 0);
        printf("%d %d\n", result, fd);
    } else if (!strcmp(verb, "import")) { /* pid, fd */
        char path[64];
        CUmemGenericAllocationHandle handle = 0;
        snprintf(path, sizeof path, "/proc/%llu/fd/%llu", a, b);
        FILE *file = fopen(path, "r");
        result = file ? cu.cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fileno(file), 1)
                      : -1;
        answer_kept(result, handle);
    } else if (!strcmp(verb, "threads")) {
        threads((int)a, (int)b, 4096);
    } else if (!strcmp(verb, "measure")) {
        measure((long)a);
    } else if (!strcmp(verb, "churn")) { /* until killed */
        puts("0");
        fflush(stdout);
        for (unsigned i = 0;; i = (i + 1) % 64) {
            if (pointers[i])
                cu.cuMemFree_v2(pointers[i]);
            pointers[i] = 0;
            cu.cuMemAlloc_v2(&pointers[i], 1u << 20);
        }
    } else if (!strcmp(verb, "fork")) {
        fork_and(0, words);
    } else if (!strcmp(verb, "fork-exec")) {
        fork_and(1, words);
    } else if (!strcmp(verb, "close-all")) {
        for (int fd = 3; fd < 1024; fd++)
            close(fd);
        puts("0");
    } else {
        result = allocate(a, &pointer, verb);
        answer_kept(result, pointer);
    }
}

int main(int count, char **words)
{
    char line[256], verb[64];
    if (count < 2)
        return 2;
    find_all(words[1]);
    while (fgets(line, sizeof line, stdin)) {
        unsigned long long a = 0, b = 0;
        if (sscanf(line, "%63s %llu %llu", verb, &a, &b) < 1)
            continue;
        command(words, verb, a, b);
        fflush(stdout);
    }
    return 0;
}
