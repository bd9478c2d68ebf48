/* Reads limits files from standard input, one per NUL-terminated text, and prints for each what the
 * library makes of it: "-", or the GPUs. The Python codec must agree. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../interposer/limits.h"

int main(void)
{
    static char input[1 << 26];
    size_t length = fread(input, 1, sizeof input - 1, stdin);
    for (size_t at = 0; at < length; at += strlen(input + at) + 1) {
        size_t size = strlen(input + at);
        struct limits limits;
        /* A copy of exactly that size: reading past its end is seen. */
        char *exact = malloc(size + !size);
        memcpy(exact, input + at, size);
        bool good = size <= LIMITS_MAX_BYTES && limits_parse(exact, size, &limits);
        free(exact);
        if (!good) {
            puts("-");
            continue;
        }
        for (unsigned i = 0; i < limits.count; i++) {
            for (unsigned byte = 0; byte < 16; byte++)
                printf("%02x", limits.gpus[i].uuid[byte]);
            printf(" %llu %llu;", (unsigned long long)limits.gpus[i].limit,
                   (unsigned long long)limits.gpus[i].reserve);
        }
        puts("");
    }
    return 0;
}
