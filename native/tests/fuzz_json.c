/* Feeds the hook's JSON reader with broken input, for the sanitizers to watch.
 *
 *   fuzz_json SEED ROUNDS < a valid document */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../hook/gpus.h"
#include "../hook/json.h"

static unsigned long long random_state;

static unsigned next_random(unsigned below)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (unsigned)(random_state % below);
}

static size_t mutate(char *text, size_t length, size_t room)
{
    static const char alphabet[] = "{}[]\",:\\u0dDbfnrt\n 1e-.\x01\xff";
    for (unsigned edits = 1 + next_random(6); edits; edits--) {
        size_t at = length ? next_random((unsigned)length) : 0;
        switch (next_random(4)) {
        case 0: /* change a byte */
            if (length)
                text[at] = alphabet[next_random(sizeof alphabet)];
            break;
        case 1: /* cut the end */
            length = at;
            break;
        case 2: /* insert a byte */
            if (length < room) {
                memmove(text + at + 1, text + at, length - at);
                text[at] = alphabet[next_random(sizeof alphabet)];
                length++;
            }
            break;
        default: /* repeat a part */
            if (length > at) {
                size_t part = 1 + next_random((unsigned)(length - at));
                if (length + part <= room) {
                    memmove(text + at + part, text + at, length - at);
                    length += part;
                }
            }
        }
    }
    return length;
}

int main(int count, char **arguments)
{
    static char seed[65536], text[262144];
    if (count != 3)
        return 2;
    random_state = strtoull(arguments[1], NULL, 10) * 2 + 1;
    long rounds = strtol(arguments[2], NULL, 10);
    size_t length = fread(seed, 1, sizeof seed, stdin);
    const char *uuid = "GPU-1", *device = "/dev/nvidia0";
    struct expected with_device = {&uuid, 1, &device, 1}, without = {&uuid, 1, NULL, 0};
    long parsed = 0;
    for (long round = 0; round < rounds; round++) {
        memcpy(text, seed, length);
        size_t size = mutate(text, length, sizeof text);
        /* A copy of exactly that size: reading past its end is seen. */
        char *exact = malloc(size + !size);
        memcpy(exact, text, size);
        struct json json;
        if (json_parse(&json, exact, size)) {
            char reason[64];
            parsed++;
            gpus_match(&json, &with_device, reason, sizeof reason);
            gpus_match(&json, &without, reason, sizeof reason);
            for (uint32_t i = 0; i < json.count; i++)
                free(json_string(&json, i));
            free(json.tokens);
        }
        free(exact);
    }
    printf("%ld of %ld documents were JSON\n", parsed, rounds);
    return 0;
}
