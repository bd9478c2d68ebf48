/* Whether a container's configuration gives it exactly its allocation's GPUs. */
#ifndef GPUSHARE_GPUS_H
#define GPUSHARE_GPUS_H

#include <stdbool.h>

#include "json.h"

struct expected {
    const char *const *uuids;
    unsigned uuid_count;
    const char *const *devices; /* their device files; none where the environment carries the GPU */
    unsigned device_count;
};

/* False with the reason if a GPU is missing or there is another.
 *
 * With device files: each must be among linux.devices and no other /dev/nvidia<number>; the
 * variable NVIDIA_VISIBLE_DEVICES may then name the same GPUs or none ("void", as NVIDIA's own
 * specifications set it). Without: the variable must name exactly the GPUs. Where it is given
 * twice the last one counts, as it does for the runtime. */
bool gpus_match(const struct json *config, const struct expected *expected, char *reason,
                unsigned long room);

#endif
