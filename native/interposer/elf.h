/* Finding symbols in loaded objects without dlsym, which is ours. */
#ifndef GPUSHARE_ELF_H
#define GPUSHARE_ELF_H

#include <stdbool.h>

struct module {
    unsigned long base;
    const void *dynamic;
    const char *soname; /* "" if it has none */
};

/* The loaded object that holds an address, in any link namespace. */
bool module_of(const void *address, struct module *module);

/* The first loaded object whose soname begins so. */
bool module_named(const char *soname, struct module *module);

void *module_symbol(const struct module *module, const char *name);

/* The first definition of `name` in the objects loaded after the one that holds `caller`. */
void *symbol_after(const void *caller, const char *name);

#endif
