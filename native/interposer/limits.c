#include "limits.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "paths.h"

static const char HEADER[] = "gpushare-limits 1\n";

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

bool uuid_parse(const char *text, unsigned long length, unsigned char uuid[16])
{
    if (length != 40 || (memcmp(text, "GPU-", 4) != 0 && memcmp(text, "MIG-", 4) != 0))
        return false;
    text += 4;
    for (unsigned i = 0; i < 16; i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10)
            if (*text++ != '-')
                return false;
        int high = hex_digit(text[0]), low = high < 0 ? -1 : hex_digit(text[1]);
        if (low < 0)
            return false;
        uuid[i] = (unsigned char)(high << 4 | low);
        text += 2;
    }
    return true;
}

/* Moves past `word`; false if the text does not go on with it. */
static bool skip(const char **at, const char *end, const char *word)
{
    size_t length = strlen(word);
    if ((size_t)(end - *at) < length || memcmp(*at, word, length) != 0)
        return false;
    *at += length;
    return true;
}

static bool number(const char **at, const char *end, uint64_t *value)
{
    const char *start = *at;
    *value = 0;
    for (; *at < end && **at >= '0' && **at <= '9'; ++*at) {
        if (*value > (UINT64_MAX >> 8) / 10) /* no GPU has that much */
            return false;
        *value = *value * 10 + (uint64_t)(**at - '0');
    }
    return *at > start;
}

bool limits_parse(const char *text, unsigned long length, struct limits *limits)
{
    const char *at = text, *end = text + length;
    limits->count = 0;
    if (!skip(&at, end, HEADER))
        return false;
    while (at < end) {
        if (limits->count == MAX_GPUS || end - at < 40)
            return false;
        struct limit *gpu = &limits->gpus[limits->count++];
        if (!uuid_parse(at, 40, gpu->uuid))
            return false;
        at += 40;
        if (!skip(&at, end, " limit=") || !number(&at, end, &gpu->limit) ||
            !skip(&at, end, " reserve=") || !number(&at, end, &gpu->reserve) ||
            !skip(&at, end, "\n"))
            return false;
        for (unsigned i = 0; i + 1 < limits->count; i++)
            if (!memcmp(limits->gpus[i].uuid, gpu->uuid, 16))
                return false;
    }
    return limits->count > 0;
}

bool limits_read(struct limits *limits)
{
    char text[LIMITS_MAX_BYTES + 1];
    size_t used = 0;
    struct statvfs mount;
    int fd = open(LIMITS_PATH, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) {
        say_once(SAY_NO_LIMITS);
        return false;
    }
    enum message problem = SAY_BAD_LIMITS;
    bool good = false;
    if (fstatvfs(fd, &mount) != 0 || !(mount.f_flag & ST_RDONLY)) {
        problem = SAY_WRITABLE_LIMITS;
    } else {
        for (;;) {
            ssize_t got = read(fd, text + used, sizeof text - used);
            if (got < 0 && errno == EINTR)
                continue;
            if (got <= 0)
                break;
            used += (size_t)got;
        }
        good = used <= LIMITS_MAX_BYTES && limits_parse(text, used, limits);
    }
    close(fd);
    if (!good)
        say_once(problem);
    return good;
}
