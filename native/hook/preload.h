/* Whether a container's final file system preloads the library that holds it to its memory. */
#ifndef GPUSHARE_PRELOAD_H
#define GPUSHARE_PRELOAD_H

#include <stdbool.h>

#include "container.h"

/* `library` is its path inside the container. It must be the first entry of /etc/ld.so.preload
 * there and exist; the reason says what is wrong. */
bool preload_in_place(const struct container *container, const char *library, char *reason,
                      unsigned long room);

#endif
