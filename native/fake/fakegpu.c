/* fakegpu: makes and changes the state of fake GPUs.
 *
 *   fakegpu create FILE UUID,NAME,TOTAL_MIB,RESERVED_MIB …
 *   fakegpu set FILE FIELD=VALUE …           context_mib, pool_chunk_mib, cuda_version, driver,
 *                                            memory_limits, init_error
 *   fakegpu gpu FILE INDEX FIELD=VALUE …     lost, no_memory, addressing, mig, total_mib, ecc,
 *                                            recovery
 *   fakegpu xid FILE INDEX CODE              an Xid event
 *   fakegpu show FILE                        JSON
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../abi/nvml.h"
#include "state.h"

static int usage(void)
{
    fputs("usage: fakegpu create|set|gpu|xid|show FILE …\n", stderr);
    return 2;
}

static int create(const char *path, char **specs, int count)
{
    struct fake_state *state = fake_create(path);
    if (!state) {
        perror(path);
        return 1;
    }
    for (int i = 0; i < count && i < FAKE_MAX_GPUS; i++) {
        struct fake_gpu *gpu = &state->gpus[i];
        unsigned long long total, reserved;
        if (sscanf(specs[i], "%47[^,],%63[^,],%llu,%llu", gpu->uuid, gpu->name, &total,
                   &reserved) != 4)
            return usage();
        gpu->total = total << 20;
        gpu->reserved = reserved << 20;
        gpu->bus = 0x10u + (unsigned)i;
        gpu->minor = (uint32_t)i;
        state->gpu_count++;
    }
    return 0;
}

static int set(struct fake_state *state, const char *field, const char *value)
{
    unsigned long long number = strtoull(value, NULL, 0);
    if (!strcmp(field, "context_mib"))
        state->context_cost = number << 20;
    else if (!strcmp(field, "pool_chunk_mib"))
        state->pool_chunk = number << 20;
    else if (!strcmp(field, "cuda_version"))
        state->cuda_version = (uint32_t)number;
    else if (!strcmp(field, "memory_limits"))
        state->memory_limits = (uint32_t)number;
    else if (!strcmp(field, "init_error"))
        state->init_error = (uint32_t)number;
    else if (!strcmp(field, "driver"))
        snprintf(state->driver, sizeof state->driver, "%s", value);
    else
        return usage();
    return 0;
}

static int set_gpu(struct fake_state *state, struct fake_gpu *gpu, const char *field,
                   const char *value)
{
    unsigned long long number = strtoull(value, NULL, 0);
    if (!strcmp(field, "lost")) {
        gpu->lost = (uint32_t)number;
        if (number) {
            gpu->lost_sequence = ++state->sequence;
            state->events[state->sequence % FAKE_MAX_EVENTS].type = 0;
        }
    } else if (!strcmp(field, "no_memory")) {
        gpu->no_memory = (uint32_t)number;
    } else if (!strcmp(field, "addressing")) {
        gpu->addressing = (uint32_t)number;
    } else if (!strcmp(field, "recovery")) {
        gpu->recovery = (uint32_t)number;
    } else if (!strcmp(field, "mig")) {
        gpu->mig = (uint32_t)number;
    } else if (!strcmp(field, "total_mib")) {
        gpu->total = number << 20;
    } else if (!strcmp(field, "ecc")) {
        gpu->double_bit_ecc = number;
    } else {
        return usage();
    }
    return 0;
}

static void show(struct fake_state *state)
{
    fake_reclaim(state);
    printf("{\"gpus\":[");
    for (unsigned i = 0; i < state->gpu_count; i++) {
        const struct fake_gpu *gpu = &state->gpus[i];
        printf("%s{\"uuid\":\"%s\",\"total\":%llu,\"reserved\":%llu,\"used\":%llu,\"peak\":%llu,"
               "\"refusals\":%llu,\"lost\":%u}",
               i ? "," : "", gpu->uuid, (unsigned long long)gpu->total,
               (unsigned long long)gpu->reserved, (unsigned long long)gpu->used,
               (unsigned long long)gpu->peak, (unsigned long long)gpu->refusals, gpu->lost);
    }
    printf("],\"processes\":[");
    const char *comma = "";
    for (int slot = 0; slot < FAKE_MAX_PROCS; slot++) {
        if (!state->procs[slot].pid)
            continue;
        printf("%s{\"pid\":%d,\"used\":[", comma, state->procs[slot].pid);
        comma = ",";
        for (unsigned i = 0; i < state->gpu_count; i++)
            printf("%s%llu", i ? "," : "", (unsigned long long)state->procs[slot].used[i]);
        printf("]}");
    }
    puts("]}");
}

/* "FIELD=VALUE" into its two halves. */
static char *split(char *assignment)
{
    char *value = strchr(assignment, '=');
    if (!value)
        exit(usage());
    *value++ = 0;
    return value;
}

int main(int count, char **arguments)
{
    if (count < 3)
        return usage();
    const char *verb = arguments[1], *path = arguments[2];
    if (!strcmp(verb, "create"))
        return create(path, arguments + 3, count - 3);
    setenv(FAKE_STATE_ENV, path, 1);
    struct fake_state *state = fake_map(path);
    if (!state) {
        fprintf(stderr, "fakegpu: %s is not a fake GPU's state\n", path);
        return 1;
    }
    int result = 0;
    fake_lock(state);
    if (!strcmp(verb, "show")) {
        show(state);
    } else if (!strcmp(verb, "set")) {
        for (int i = 3; i < count && !result; i++) {
            char *value = split(arguments[i]);
            result = set(state, arguments[i], value);
        }
    } else if (count < 4 || strtoul(arguments[3], NULL, 10) >= state->gpu_count) {
        result = usage();
    } else if (!strcmp(verb, "gpu")) {
        struct fake_gpu *gpu = &state->gpus[strtoul(arguments[3], NULL, 10)];
        for (int i = 4; i < count && !result; i++) {
            char *value = split(arguments[i]);
            result = set_gpu(state, gpu, arguments[i], value);
        }
    } else if (!strcmp(verb, "xid") && count == 5) {
        struct fake_event *event = &state->events[(state->sequence + 1) % FAKE_MAX_EVENTS];
        event->gpu = (uint32_t)strtoul(arguments[3], NULL, 10);
        event->type = NVML_EVENT_XID;
        event->data = strtoull(arguments[4], NULL, 10);
        state->sequence++;
    } else {
        result = usage();
    }
    fake_unlock(state);
    return result;
}
