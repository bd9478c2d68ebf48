#include "container.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "files.h"

/* Annotations alone may take 256 KiB in a pod; a configuration carries them too. */
enum { STATE_LIMIT = 4 << 20, CONFIG_LIMIT = 16 << 20 };

static bool parse_fd(int fd, size_t limit, char **text, struct json *json)
{
    size_t length;
    *text = read_whole(fd, limit, &length);
    if (!*text)
        return false;
    errno = EINVAL;
    return json_parse(json, *text, length);
}

/* The first of the keys that the state's annotations have, else the configuration's. containerd
 * writes io.kubernetes.cri.*, CRI-O io.kubernetes.*. */
static char *annotation(const struct container *c, const char *containerd, const char *crio)
{
    const struct json *sources[] = {&c->state, &c->config};
    for (int i = 0; i < 2; i++) {
        if (!sources[i]->count)
            continue;
        uint32_t all = json_get(sources[i], 0, "annotations");
        char *value = json_string(sources[i], json_get(sources[i], all, containerd));
        if (!value)
            value = json_string(sources[i], json_get(sources[i], all, crio));
        if (value && *value)
            return value;
        free(value);
    }
    return NULL;
}

static void read_identity(struct container *c)
{
    c->id = c->state.count ? json_string(&c->state, json_get(&c->state, 0, "id")) : NULL;
    c->pod_uid = annotation(c, "io.kubernetes.cri.sandbox-uid", "io.kubernetes.pod.uid");
    c->pod_name = annotation(c, "io.kubernetes.cri.sandbox-name", "io.kubernetes.pod.name");
    c->pod_namespace =
        annotation(c, "io.kubernetes.cri.sandbox-namespace", "io.kubernetes.pod.namespace");
    c->name = annotation(c, "io.kubernetes.cri.container-name", "io.kubernetes.container.name");
    uint32_t pid = c->state.count ? json_get(&c->state, 0, "pid") : JSON_NONE;
    if (pid != JSON_NONE && c->state.tokens[pid].type == JSON_OTHER)
        c->pid = strtol(c->state.text + c->state.tokens[pid].start, NULL, 10);
}

bool container_read(struct container *c, int state_fd, char *reason, unsigned long room)
{
    bool state = parse_fd(state_fd, STATE_LIMIT, &c->state_text, &c->state);
    if (state)
        c->bundle = json_string(&c->state, json_get(&c->state, 0, "bundle"));
    /* The runtime starts hooks in the bundle. */
    const char *bundle = c->bundle ? c->bundle : ".";
    size_t length = strlen(bundle) + sizeof "/config.json";
    char *path = malloc(length);
    int fd = -1;
    if (path) {
        snprintf(path, length, "%s/config.json", bundle);
        fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    }
    bool config = fd >= 0 && parse_fd(fd, CONFIG_LIMIT, &c->config_text, &c->config);
    if (!config)
        snprintf(reason, room, "cannot read the container's configuration %.200s/config.json: %s",
                 bundle, errno == EINVAL ? "it is not JSON" : strerror(errno));
    if (fd >= 0)
        close(fd);
    free(path);
    read_identity(c);
    return config;
}
