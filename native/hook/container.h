/* What the container runtime tells a hook: the OCI state on standard input, and the container's
 * configuration in the bundle that the state names. */
#ifndef GPUSHARE_CONTAINER_H
#define GPUSHARE_CONTAINER_H

#include <stdbool.h>

#include "json.h"

struct container {
    struct json state, config;
    char *state_text, *config_text;
    char *bundle; /* the directory config.json was read from */
    char *id, *pod_uid, *pod_name, *pod_namespace, *name; /* NULL where nobody says */
    long pid;
};

/* Reads both. On failure the reason is in `reason`; what could be read stays in the container. */
bool container_read(struct container *container, int state_fd, char *reason, unsigned long room);

#endif
