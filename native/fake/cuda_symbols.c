/* Name -> address of everything the fake driver exports; symbols.inc is made from the sources. Not
 * by dlsym: with an interposer in front that would answer the interposer's functions. */
#include <stddef.h>
#include <string.h>

void *fake_symbol(const char *name);

#define SYMBOL(name) extern char name[];
#include "symbols.inc"
#undef SYMBOL

static const struct {
    const char *name;
    void *address;
} symbols[] = {
#define SYMBOL(name) {#name, name},
#include "symbols.inc"
#undef SYMBOL
};

void *fake_symbol(const char *name)
{
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++)
        if (!strcmp(symbols[i].name, name))
            return symbols[i].address;
    return NULL;
}
