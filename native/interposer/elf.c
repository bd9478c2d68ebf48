#include "elf.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stddef.h>
#include <stdint.h>

#include "text.h"

struct tables {
    const ElfW(Sym) *symbols;
    const char *strings;
    const uint32_t *gnu_hash;
    const uint32_t *sysv_hash;
};

/* glibc relocates these pointers in place, except where the section is read-only. */
static const void *pointer(unsigned long base, ElfW(Addr) value)
{
    return (const void *)(value < base ? base + value : value);
}

static struct tables read_dynamic(unsigned long base, const ElfW(Dyn) *dynamic, const char **soname)
{
    struct tables t = {0};
    ElfW(Xword) name = 0;
    bool named = false;
    for (; dynamic && dynamic->d_tag != DT_NULL; dynamic++) {
        switch (dynamic->d_tag) {
        case DT_SYMTAB: t.symbols = pointer(base, dynamic->d_un.d_ptr); break;
        case DT_STRTAB: t.strings = pointer(base, dynamic->d_un.d_ptr); break;
        case DT_GNU_HASH: t.gnu_hash = pointer(base, dynamic->d_un.d_ptr); break;
        case DT_HASH: t.sysv_hash = pointer(base, dynamic->d_un.d_ptr); break;
        case DT_SONAME:
            name = dynamic->d_un.d_val;
            named = true;
            break;
        default: break;
        }
    }
    if (soname)
        *soname = named && t.strings ? t.strings + name : "";
    return t;
}

static const ElfW(Sym) *defined(const struct tables *t, uint32_t index, const char *name)
{
    const ElfW(Sym) *symbol = &t->symbols[index];
    unsigned type = symbol->st_info & 15;
    bool wanted = symbol->st_shndx != SHN_UNDEF && (type == STT_FUNC || type == STT_NOTYPE);
    return wanted && same(t->strings + symbol->st_name, name) ? symbol : NULL;
}

static const ElfW(Sym) *find_gnu(const struct tables *t, const char *name)
{
    uint32_t hash = 5381;
    for (const char *c = name; *c; c++)
        hash = hash * 33 + (unsigned char)*c;
    const uint32_t *header = t->gnu_hash;
    uint32_t buckets = header[0], first = header[1], bloom = header[2];
    const ElfW(Addr) *filter = (const ElfW(Addr) *)(header + 4);
    const uint32_t *bucket = (const uint32_t *)(filter + bloom), *chain = bucket + buckets;
    if (!buckets)
        return NULL;
    for (uint32_t i = bucket[hash % buckets]; i >= first && i; i++) {
        uint32_t entry = chain[i - first];
        const ElfW(Sym) *symbol;
        if ((entry | 1) == (hash | 1) && (symbol = defined(t, i, name)))
            return symbol;
        if (entry & 1)
            break;
    }
    return NULL;
}

static const ElfW(Sym) *find_sysv(const struct tables *t, const char *name)
{
    uint32_t hash = 0;
    for (const char *c = name; *c; c++) {
        hash = (hash << 4) + (unsigned char)*c;
        hash = (hash ^ (hash >> 24 & 0xf0)) & 0x0fffffff;
    }
    uint32_t buckets = t->sysv_hash[0];
    const uint32_t *bucket = t->sysv_hash + 2, *chain = bucket + buckets;
    for (uint32_t i = buckets ? bucket[hash % buckets] : 0; i; i = chain[i]) {
        const ElfW(Sym) *symbol = defined(t, i, name);
        if (symbol)
            return symbol;
    }
    return NULL;
}

static void *find(unsigned long base, const void *dynamic, const char *name)
{
    struct tables t = read_dynamic(base, dynamic, NULL);
    if (!t.symbols || !t.strings)
        return NULL;
    const ElfW(Sym) *symbol = t.gnu_hash    ? find_gnu(&t, name)
                              : t.sysv_hash ? find_sysv(&t, name) : NULL;
    return symbol ? (void *)(base + symbol->st_value) : NULL;
}

void *module_symbol(const struct module *module, const char *name)
{
    return find(module->base, module->dynamic, name);
}

/* --- walking the loaded objects ---------------------------------------------------------------- */

struct walk {
    const void *address; /* looked for, or NULL */
    const char *soname;  /* looked for, or NULL */
    const char *after;   /* a symbol looked for behind `address` */
    bool passed;
    void *symbol;
    struct module found;
};

static bool holds(const struct dl_phdr_info *info, const void *address)
{
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *header = &info->dlpi_phdr[i];
        uintptr_t start = info->dlpi_addr + header->p_vaddr;
        if (header->p_type == PT_LOAD && (uintptr_t)address - start < header->p_memsz)
            return true;
    }
    return false;
}

static const void *dynamic_of(const struct dl_phdr_info *info)
{
    for (int i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_DYNAMIC)
            return (const void *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
    return NULL;
}

static int step(struct dl_phdr_info *info, size_t size, void *context)
{
    (void)size;
    struct walk *walk = context;
    const void *dynamic = dynamic_of(info);
    const char *soname = "";
    if (walk->passed) {
        /* The kernel's own object is in the list too, and defines nothing of ours. */
        walk->symbol = dynamic ? find(info->dlpi_addr, dynamic, walk->after) : NULL;
        return walk->symbol != NULL;
    }
    if (dynamic)
        read_dynamic(info->dlpi_addr, dynamic, &soname);
    bool found = walk->address ? holds(info, walk->address)
                               : begins(soname, walk->soname);
    if (!found)
        return 0;
    walk->found = (struct module){info->dlpi_addr, dynamic, soname};
    walk->passed = walk->after != NULL;
    return !walk->passed;
}

static bool other_namespace(const void *address, struct module *module)
{
    static int (*dladdr1_real)(const void *, Dl_info *, void **, int);
    struct module library;
    if (!dladdr1_real && (module_named("libc.so.6", &library) &&
                          !(dladdr1_real = module_symbol(&library, "dladdr1"))) &&
        module_named("libdl.so.2", &library))
        dladdr1_real = module_symbol(&library, "dladdr1");
    Dl_info info;
    struct link_map *map = NULL;
    if (!dladdr1_real || !dladdr1_real(address, &info, (void **)&map, 2 /* RTLD_DL_LINKMAP */) ||
        !map)
        return false;
    module->base = map->l_addr;
    module->dynamic = map->l_ld;
    read_dynamic(map->l_addr, map->l_ld, &module->soname);
    return true;
}

bool module_of(const void *address, struct module *module)
{
    struct walk walk = {.address = address};
    if (!dl_iterate_phdr(step, &walk))
        return other_namespace(address, module);
    *module = walk.found;
    return module->dynamic != NULL;
}

bool module_named(const char *soname, struct module *module)
{
    struct walk walk = {.soname = soname};
    if (!dl_iterate_phdr(step, &walk))
        return false;
    *module = walk.found;
    return true;
}

void *symbol_after(const void *caller, const char *name)
{
    struct walk walk = {.address = caller, .after = name};
    dl_iterate_phdr(step, &walk);
    return walk.symbol;
}
