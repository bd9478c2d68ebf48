/* Lookups of programs: dlsym, dlvsym, cuGetProcAddress. */
#ifndef GPUSHARE_LOOKUP_H
#define GPUSHARE_LOOKUP_H

/* The definition of a name after ours in the global search order, or NULL. */
void *lookup_next(const char *name);

#endif
