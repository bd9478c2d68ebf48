/* The CUDA program of native/tests/on-gpu: it calls whatever function of the driver it is told to,
 * found on one of the ways real programs find them, so that what is checked stands in one place.
 * A function that a driver lacks is an answer here, not the end.
 *
 *   ongpu direct|dlsym|default|next|dlsym-dlsym|address|address-v1|per-thread
 *
 * `direct` needs the program built with -DDIRECT, linked against libcuda. From standard input:
 *
 *   call SYMBOL ARGUMENT …         the result, and the first 8 bytes of every buffer it was given
 *   time COUNT SYMBOL ARGUMENT …   the last result, and nanoseconds per call
 *   pair COUNT BYTES               the last result, and nanoseconds for cuMemAlloc and cuMemFree
 *   set BUFFER HEX                 puts bytes into a buffer, a zero behind them
 *   get BUFFER LENGTH              as hexadecimal
 *   symbol NAME                    by dlsym: its address and the file name of its library
 *   address NAME VERSION FLAGS     the same by cuGetProcAddress
 *   open PID FD                    a descriptor of another process, as one of this one
 *
 * An argument is a number, @BUFFER for a buffer's address, or *BUFFER for the 8 bytes in it. Only
 * functions whose parameters are integers and pointers can be called. */
#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "../abi/cuda.h"

#ifdef DIRECT
#define FUNCTION(symbol, base, since, parameters) int symbol parameters;
#include "functions.def"
#undef FUNCTION
#endif

static const struct {
    const char *symbol, *base;
    int since;
} names[] = {
#define FUNCTION(symbol, base, since, parameters) {#symbol, #base, since},
#include "functions.def"
#undef FUNCTION
};
enum { NAMES = sizeof names / sizeof *names, NOT_THERE = -1, CANNOT = -2 };

static void *cuda, *nvml;
static const char *way;

/* --- finding functions --------------------------------------------------------------------------- */

typedef int (*address_v2)(const char *, void **, int, uint64_t, int *);
typedef int (*address_v1)(const char *, void **, int, uint64_t);

static void *by_address(const char *base, int version, uint64_t flags)
{
    void *found = NULL;
    int status = 0;
    if (!strcmp(way, "address-v1")) {
        address_v1 ask = (address_v1)dlsym(cuda, "cuGetProcAddress");
        return ask && ask(base, &found, version, flags) == CUDA_SUCCESS ? found : NULL;
    }
    /* As libcudart does: the lookup function is looked up through itself. */
    static address_v2 ask;
    if (!ask) {
        address_v2 first = (address_v2)dlsym(cuda, "cuGetProcAddress_v2");
        if (!first || first("cuGetProcAddress", (void **)&ask, 12000, 0, &status))
            return NULL;
    }
    return ask(base, &found, version, flags, &status) == CUDA_SUCCESS ? found : NULL;
}

static void *by_name(int i)
{
    if (!strcmp(way, "default"))
        return dlsym(RTLD_DEFAULT, names[i].symbol);
    if (!strcmp(way, "next"))
        return dlsym(RTLD_NEXT, names[i].symbol);
    if (!strcmp(way, "dlsym-dlsym")) {
        void *(*lookup)(void *, const char *) =
            (void *(*)(void *, const char *))dlsym(RTLD_DEFAULT, "dlsym");
        return lookup(cuda, names[i].symbol);
    }
    if (!strcmp(way, "dlsym"))
        return dlsym(cuda, names[i].symbol);
    int since = names[i].since;
    if (strcmp(way, "per-thread"))
        return by_address(names[i].base, since, CU_GET_PROC_ADDRESS_LEGACY);
    /* The variants for per-thread streams are not older than 7.0. The first generation of a
     * function that has a second one must not be asked for by a later version. */
    for (int k = 0; k < NAMES && since < 7000; k++)
        if (k != i && !strcmp(names[k].base, names[i].base))
            return by_address(names[i].base, since, CU_GET_PROC_ADDRESS_PER_THREAD);
    return by_address(names[i].base, since < 7000 ? 7000 : since, CU_GET_PROC_ADDRESS_PER_THREAD);
}

static void *find(const char *symbol)
{
    static void *found[NAMES];
#ifdef DIRECT
    void *linked[] = {
#define FUNCTION(symbol, base, since, parameters) (void *)symbol,
#include "functions.def"
#undef FUNCTION
    };
#endif
    for (int i = 0; i < NAMES; i++) {
        if (strcmp(names[i].symbol, symbol))
            continue;
#ifdef DIRECT
        (void)by_name;
        found[i] = linked[i];
#else
        if (!found[i])
            found[i] = by_name(i);
#endif
        return found[i];
    }
    /* What only this script calls, always by name. */
    return dlsym(strncmp(symbol, "nvml", 4) ? cuda : nvml, symbol);
}

static void say_where(void *function)
{
    Dl_info info = {0};
    const char *file = "-";
    if (function && dladdr(function, &info) && info.dli_fname)
        file = strrchr(info.dli_fname, '/') ? strrchr(info.dli_fname, '/') + 1 : info.dli_fname;
    printf("%d %" PRIuPTR " %s\n", function ? 0 : NOT_THERE, (uintptr_t)function, file);
}

/* --- calling them -------------------------------------------------------------------------------- */

enum { BUFFERS = 32, BUFFER = 8192, ARGUMENTS = 12 };
static union {
    uint64_t value;
    unsigned char bytes[BUFFER];
} buffers[BUFFERS];

typedef int (*function)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
                        uint64_t, uint64_t, uint64_t, uint64_t, uint64_t);

struct call {
    function function;
    uint64_t a[ARGUMENTS];
    int given[ARGUMENTS], count; /* the buffers among them */
};

static int place(const char *text)
{
    unsigned long i = strtoul(text, NULL, 10);
    return i < BUFFERS ? (int)i : 0;
}

/* The symbol and the arguments that strtok has not read yet. */
static struct call parse(void)
{
    struct call call = {0};
    char *word = strtok(NULL, " \n");
    call.function = word ? (function)find(word) : NULL;
    for (int i = 0; i < ARGUMENTS && (word = strtok(NULL, " \n")); i++) {
        if (*word == '@') {
            call.given[call.count++] = place(word + 1);
            call.a[i] = (uintptr_t)&buffers[place(word + 1)];
        } else {
            call.a[i] = *word == '*' ? buffers[place(word + 1)].value : strtoull(word, NULL, 0);
        }
    }
    return call;
}

static int run(const struct call *c)
{
    const uint64_t *a = c->a;
    return c->function(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11]);
}

static double nanoseconds(struct timespec from, struct timespec to, long count)
{
    return ((double)(to.tv_sec - from.tv_sec) * 1e9 + (double)(to.tv_nsec - from.tv_nsec)) /
           (double)count;
}

static void call_once(void)
{
    struct call call = parse();
    printf("%d", call.function ? run(&call) : NOT_THERE);
    for (int i = 0; i < call.count; i++)
        printf(" %" PRIu64, buffers[call.given[i]].value);
    puts("");
}

static void call_often(long count)
{
    struct call call = parse();
    struct timespec from, to;
    int result = NOT_THERE;
    clock_gettime(CLOCK_MONOTONIC, &from);
    for (long i = 0; call.function && i < count; i++)
        result = run(&call);
    clock_gettime(CLOCK_MONOTONIC, &to);
    printf("%d %.2f\n", result, nanoseconds(from, to, count));
}

static void pairs(long count, size_t bytes)
{
    int (*allocate)(CUdeviceptr *, size_t) =
        (int (*)(CUdeviceptr *, size_t))find("cuMemAlloc_v2");
    int (*release)(CUdeviceptr) = (int (*)(CUdeviceptr))find("cuMemFree_v2");
    struct timespec from, to;
    CUdeviceptr pointer = 0;
    int result = allocate && release ? CUDA_SUCCESS : NOT_THERE;
    clock_gettime(CLOCK_MONOTONIC, &from);
    for (long i = 0; !result && i < count; i++) {
        result = allocate(&pointer, bytes);
        if (!result)
            result = release(pointer);
    }
    clock_gettime(CLOCK_MONOTONIC, &to);
    printf("%d %.2f\n", result, nanoseconds(from, to, count));
}

/* --- buffers ------------------------------------------------------------------------------------- */

static void set(int buffer, const char *hex)
{
    size_t length = 0;
    unsigned byte;
    memset(&buffers[buffer], 0, sizeof *buffers);
    for (; length < BUFFER - 1 && sscanf(hex, "%2x", &byte) == 1; hex += 2)
        buffers[buffer].bytes[length++] = (unsigned char)byte;
    puts("0");
}

static void get(int buffer, unsigned long length)
{
    printf("0 ");
    for (unsigned long i = 0; i < length && i < BUFFER; i++)
        printf("%02x", buffers[buffer].bytes[i]);
    puts("");
}

/* Exported memory is a file of the driver's that cannot be opened by its path. */
static void open_of(long pid, long fd)
{
    long process = syscall(434 /* pidfd_open */, pid, 0);
    long copy = process < 0 ? -1 : syscall(438 /* pidfd_getfd */, process, fd, 0);
    printf("%d %ld\n", copy < 0 ? CANNOT : 0, copy);
}

static void command(char *line)
{
    const char *verb = strtok(line, " \n"), *a, *b, *c;
    if (!verb)
        puts("-2");
    else if (!strcmp(verb, "call"))
        call_once();
    else if (!strcmp(verb, "time") && (a = strtok(NULL, " \n")))
        call_often(atol(a));
    else if (!(a = strtok(NULL, " \n")))
        puts("-2");
    else if (!strcmp(verb, "symbol"))
        say_where(find(a));
    else if (!(b = strtok(NULL, " \n")))
        puts("-2");
    else if (!strcmp(verb, "pair"))
        pairs(atol(a), strtoull(b, NULL, 0));
    else if (!strcmp(verb, "set"))
        set(place(a), b);
    else if (!strcmp(verb, "get"))
        get(place(a), strtoul(b, NULL, 0));
    else if (!strcmp(verb, "open"))
        open_of(atol(a), atol(b));
    else if (!strcmp(verb, "address") && (c = strtok(NULL, " \n")))
        say_where(by_address(a, atoi(b), strtoull(c, NULL, 0)));
    else
        puts("-2");
}

int main(int count, char **words)
{
    static char line[4 * BUFFER];
    if (count < 2)
        return 2;
    way = words[1];
    int global = !strcmp(way, "default") || !strcmp(way, "next");
    cuda = dlopen("libcuda.so.1", RTLD_NOW | (global ? RTLD_GLOBAL : RTLD_LOCAL));
    nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!cuda || !nvml) {
        fprintf(stderr, "ongpu: %s\n", dlerror());
        return 3;
    }
    while (fgets(line, sizeof line, stdin)) {
        command(line);
        fflush(stdout);
    }
    return 0;
}
