/* Comparing names without the C library's functions. Lookups happen before those can be called: an
 * address sanitizer's start finds its own replacements for them by dlsym, which is ours. */
#ifndef GPUSHARE_TEXT_H
#define GPUSHARE_TEXT_H

#include <stdbool.h>

static inline bool same(const char *a, const char *b)
{
    while (*a && *a == *b) {
        a++;
        b++;
    }
    return *a == *b;
}

static inline bool begins(const char *text, const char *prefix)
{
    while (*prefix && *text == *prefix) {
        text++;
        prefix++;
    }
    return !*prefix;
}

#endif
