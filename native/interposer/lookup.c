/* dlsym and dlvsym are forwarded by a jump that keeps the caller's return address: the real ones
 * find by it what RTLD_NEXT means. Only a name of the table is looked at more closely. */
#include "lookup.h"

#include <dlfcn.h>

#include "driver.h"
#include "elf.h"
#include "implementations.h"
#include "text.h"

typedef void *(*dlsym_t)(void *, const char *);
typedef void *(*dlvsym_t)(void *, const char *, const char *);

/* In two registers: either a value to return, or a function to continue in. */
struct answer {
    void *value;
    void *forward;
};

#define EXPORT __attribute__((visibility("default")))
EXPORT void *dlsym(void *handle, const char *name);
EXPORT void *dlvsym(void *handle, const char *name, const char *version);

static void *from_libc(const char *name)
{
    struct module library;
    void *found = NULL;
    if (module_named("libc.so.6", &library))
        found = module_symbol(&library, name);
    if (!found && module_named("libdl.so.2", &library)) /* before glibc 2.34 */
        found = module_symbol(&library, name);
    return found;
}

static dlsym_t real_dlsym(void)
{
    static dlsym_t real;
    if (!real)
        __atomic_store_n(&real, (dlsym_t)from_libc("dlsym"), __ATOMIC_RELAXED);
    return real;
}

static dlvsym_t real_dlvsym(void)
{
    static dlvsym_t real;
    if (!real)
        __atomic_store_n(&real, (dlvsym_t)from_libc("dlvsym"), __ATOMIC_RELAXED);
    return real;
}

void *lookup_next(const char *name)
{
    dlsym_t real = real_dlsym();
    return real ? real(RTLD_NEXT, name) : NULL;
}

/* A found dlsym of the C library becomes ours, or it would be a way around us. */
static void *swap_lookup(void *found, const char *name)
{
    struct module module;
    if (!found || !module_of(found, &module))
        return found;
    if (!begins(module.soname, "libc.so.") && !begins(module.soname, "libdl.so."))
        return found;
    return same(name, "dlsym") ? (void *)dlsym : (void *)dlvsym;
}

static struct answer decide(void *handle, const char *name, const char *version, void *caller,
                            void *forward)
{
    bool lookup = name && name[0] == 'd' && name[1] == 'l' &&
                  (same(name, "dlsym") || same(name, "dlvsym"));
    int index = name && !lookup ? hook_named(name) : -1;
    if (!lookup && index < 0)
        return (struct answer){NULL, forward};
    void *found;
    if (handle == RTLD_NEXT) {
        found = symbol_after(caller, name);
        if (!found)
            return (struct answer){NULL, forward};
    } else {
        found = version ? ((dlvsym_t)forward)(handle, name, version)
                        : ((dlsym_t)forward)(handle, name);
    }
    if (!found)
        return (struct answer){NULL, NULL};
    if (lookup)
        return (struct answer){swap_lookup(found, name), NULL};
    if (handle == RTLD_DEFAULT) {
        /* That found our own export. It counts only where the driver has the function. */
        struct driver *driver = driver_of_exports(hooks[index].library);
        if (!driver || !driver->real[index])
            return (struct answer){NULL, NULL};
    }
    return (struct answer){driver_swap(found, index), NULL};
}

__attribute__((used)) struct answer gpushare_dlsym(void *handle, const char *name, void *caller)
{
    return decide(handle, name, NULL, caller, (void *)real_dlsym());
}

__attribute__((used)) struct answer gpushare_dlvsym(void *handle, const char *name,
                                                    const char *version, void *caller)
{
    return decide(handle, name, version, caller, (void *)real_dlvsym());
}

#if defined(__x86_64__)
__asm__(".text\n"
        ".globl dlsym\n.type dlsym, @function\n"
        "dlsym:\n"
        "  endbr64\n"
        "  push %rdi\n  push %rsi\n  sub $8, %rsp\n"
        "  mov 24(%rsp), %rdx\n"
        "  call gpushare_dlsym\n"
        "  add $8, %rsp\n  pop %rsi\n  pop %rdi\n"
        "  test %rdx, %rdx\n  jz 1f\n"
        "  jmp *%rdx\n"
        "1: ret\n"
        ".size dlsym, .-dlsym\n"
        ".globl dlvsym\n.type dlvsym, @function\n"
        "dlvsym:\n"
        "  endbr64\n"
        "  push %rdi\n  push %rsi\n  push %rdx\n"
        "  mov 24(%rsp), %rcx\n"
        "  call gpushare_dlvsym\n"
        "  mov %rdx, %r11\n"
        "  pop %rdx\n  pop %rsi\n  pop %rdi\n"
        "  test %r11, %r11\n  jz 1f\n"
        "  jmp *%r11\n"
        "1: ret\n"
        ".size dlvsym, .-dlvsym\n");
#elif defined(__aarch64__)
__asm__(".text\n"
        ".globl dlsym\n.type dlsym, %function\n"
        "dlsym:\n"
        "  stp x29, x30, [sp, #-48]!\n  mov x29, sp\n"
        "  stp x0, x1, [sp, #16]\n"
        "  mov x2, x30\n"
        "  bl gpushare_dlsym\n"
        "  mov x16, x1\n  mov x17, x0\n"
        "  ldp x0, x1, [sp, #16]\n"
        "  ldp x29, x30, [sp], #48\n"
        "  cbz x16, 1f\n"
        "  br x16\n"
        "1: mov x0, x17\n  ret\n"
        ".size dlsym, .-dlsym\n"
        ".globl dlvsym\n.type dlvsym, %function\n"
        "dlvsym:\n"
        "  stp x29, x30, [sp, #-48]!\n  mov x29, sp\n"
        "  stp x0, x1, [sp, #16]\n  str x2, [sp, #32]\n"
        "  mov x3, x30\n"
        "  bl gpushare_dlvsym\n"
        "  mov x16, x1\n  mov x17, x0\n"
        "  ldp x0, x1, [sp, #16]\n  ldr x2, [sp, #32]\n"
        "  ldp x29, x30, [sp], #48\n"
        "  cbz x16, 1f\n"
        "  br x16\n"
        "1: mov x0, x17\n  ret\n"
        ".size dlvsym, .-dlvsym\n");
#else
#error "no dlsym for this architecture"
#endif

/* --- cuGetProcAddress --------------------------------------------------------------------------- */

/* The driver is asked first and its answer stands, except that a hooked function becomes ours. */
static int swap_address(int result, const char *name, void **function, int version, uint64_t flags)
{
    if (result != CUDA_SUCCESS || !name || !function || !*function)
        return result;
    int index = hook_versioned(name, version, flags & CU_GET_PROC_ADDRESS_PER_THREAD);
    if (index < 0)
        return result;
    *function = driver_swap(*function, index);
    return *function ? result : CUDA_ERROR_NOT_FOUND;
}

int proc_address_v1(struct driver *d, void *real, const char *name, void **function, int version,
                    uint64_t flags)
{
    (void)d;
    int result = REAL(real, (const char *, void **, int, uint64_t),
                      (name, function, version, flags));
    return swap_address(result, name, function, version, flags);
}

int proc_address_v2(struct driver *d, void *real, const char *name, void **function, int version,
                    uint64_t flags, int *status)
{
    (void)d;
    int result = REAL(real, (const char *, void **, int, uint64_t, int *),
                      (name, function, version, flags, status));
    return swap_address(result, name, function, version, flags);
}
