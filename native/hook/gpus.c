#include "gpus.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VARIABLE "NVIDIA_VISIBLE_DEVICES"

/* The variable's value, or NULL; the caller frees it. */
static char *visible_devices(const struct json *config)
{
    char *last = NULL;
    uint32_t env = json_get(config, json_get(config, 0, "process"), "env");
    for (uint32_t i = json_first(config, env); i < json_end(config, env);
         i = config->tokens[i].next) {
        char *entry = json_string(config, i);
        if (!entry || strncmp(entry, VARIABLE "=", sizeof VARIABLE) != 0) {
            free(entry);
            continue;
        }
        memmove(entry, entry + sizeof VARIABLE, strlen(entry + sizeof VARIABLE) + 1);
        free(last);
        last = entry;
    }
    return last;
}

static bool among(const char *text, size_t length, const char *const *list, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        if (strlen(list[i]) == length && !memcmp(list[i], text, length))
            return true;
    return false;
}

/* Whether the comma-separated list holds `wanted`. */
static bool lists(const char *value, const char *wanted)
{
    size_t length = strlen(wanted);
    for (const char *at = value;;) {
        size_t item = strcspn(at, ",");
        if (item == length && !memcmp(at, wanted, length))
            return true;
        if (!at[item])
            return false;
        at += item + 1;
    }
}

static bool environment_matches(const char *value, const struct expected *e, char *reason,
                                unsigned long room)
{
    if (!value) {
        snprintf(reason, room, "the container has no " VARIABLE);
        return false;
    }
    for (unsigned i = 0; i < e->uuid_count; i++) {
        if (!lists(value, e->uuids[i])) {
            snprintf(reason, room, "its GPU %s is missing in " VARIABLE "=%.200s", e->uuids[i],
                     value);
            return false;
        }
    }
    for (const char *at = value;;) {
        size_t item = strcspn(at, ",");
        if (!among(at, item, e->uuids, e->uuid_count)) {
            snprintf(reason, room, VARIABLE "=%.200s gives it another GPU than %s", value,
                     e->uuids[0]);
            return false;
        }
        if (!at[item])
            return true;
        at += item + 1;
    }
}

/* /dev/nvidia0, not /dev/nvidiactl. */
static bool is_gpu(const char *path)
{
    static const char prefix[] = "/dev/nvidia";
    if (strncmp(path, prefix, sizeof prefix - 1) != 0)
        return false;
    path += sizeof prefix - 1;
    return *path && strspn(path, "0123456789") == strlen(path);
}

static bool devices_match(const struct json *config, const struct expected *e, char *reason,
                          unsigned long room)
{
    unsigned found = 0;
    bool *seen = calloc(e->device_count, sizeof *seen);
    uint32_t devices = json_get(config, json_get(config, 0, "linux"), "devices");
    for (uint32_t i = json_first(config, devices); seen && i < json_end(config, devices);
         i = config->tokens[i].next) {
        char *path = json_string(config, json_get(config, i, "path"));
        for (unsigned k = 0; path && k < e->device_count; k++) {
            if (strcmp(path, e->devices[k]) == 0 && !seen[k]) {
                seen[k] = true;
                found++;
            }
        }
        if (path && is_gpu(path) && !among(path, strlen(path), e->devices, e->device_count)) {
            snprintf(reason, room, "it holds another GPU, %.100s (a privileged container does)",
                     path);
            free(path);
            free(seen);
            return false;
        }
        free(path);
    }
    free(seen);
    if (found == e->device_count)
        return true;
    snprintf(reason, room, "the device file of its GPU %s is missing", e->uuids[0]);
    return false;
}

bool gpus_match(const struct json *config, const struct expected *e, char *reason,
                unsigned long room)
{
    char *value = visible_devices(config);
    bool good;
    if (!e->device_count) {
        good = environment_matches(value, e, reason, room);
    } else {
        good = devices_match(config, e, reason, room);
        bool none = !value || !*value || !strcmp(value, "void") || !strcmp(value, "none");
        if (good && !none)
            good = environment_matches(value, e, reason, room);
    }
    free(value);
    return good;
}
