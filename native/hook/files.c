#include "files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

char *read_whole(int fd, size_t limit, size_t *length)
{
    size_t room = 16384, used = 0;
    char *bytes = malloc(room);
    while (bytes) {
        if (used == room) {
            if (room > limit) {
                errno = EFBIG;
                break;
            }
            char *grown = realloc(bytes, room *= 2);
            if (!grown)
                break;
            bytes = grown;
        }
        ssize_t got = read(fd, bytes + used, room - used);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            break;
        if (got == 0) {
            if (used > limit) {
                errno = EFBIG;
                break;
            }
            *length = used;
            return bytes;
        }
        used += (size_t)got;
    }
    free(bytes);
    return NULL;
}

static bool write_all(int fd, const char *bytes, size_t length)
{
    while (length) {
        ssize_t written = write(fd, bytes, length);
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0)
            return false;
        bytes += written;
        length -= (size_t)written;
    }
    return true;
}

bool write_whole(const char *directory, const char *name, const char *text, size_t length)
{
    char temporary[64];
    int folder = open(directory, O_DIRECTORY | O_CLOEXEC | O_RDONLY);
    if (folder < 0 && errno == ENOENT && mkdir(directory, 0700) == 0)
        folder = open(directory, O_DIRECTORY | O_CLOEXEC | O_RDONLY);
    if (folder < 0)
        return false;
    snprintf(temporary, sizeof temporary, ".new-%ld", (long)getpid());
    unlinkat(folder, temporary, 0); /* of a process killed long ago */
    int fd = openat(folder, temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    bool done = fd >= 0 && write_all(fd, text, length);
    if (fd >= 0)
        done = close(fd) == 0 && done;
    done = done && renameat(folder, temporary, folder, name) == 0;
    int problem = errno;
    if (!done)
        unlinkat(folder, temporary, 0);
    close(folder);
    errno = problem;
    return done;
}

void text_add(struct text *text, const char *bytes, size_t length)
{
    if (text->failed)
        return;
    if (text->room - text->length < length) {
        size_t room = (text->length + length) * 2 + 256;
        char *grown = realloc(text->bytes, room);
        if (!grown) {
            text->failed = true;
            return;
        }
        text->bytes = grown;
        text->room = room;
    }
    memcpy(text->bytes + text->length, bytes, length);
    text->length += length;
}

void text_put(struct text *text, const char *string)
{
    text_add(text, string, strlen(string));
}

void text_json(struct text *text, const char *string)
{
    if (!string) {
        text_put(text, "null");
        return;
    }
    text_put(text, "\"");
    for (; *string; string++) {
        unsigned char c = (unsigned char)*string;
        char escaped[8];
        if (c == '"' || c == '\\')
            snprintf(escaped, sizeof escaped, "\\%c", c);
        else if (c < 0x20)
            snprintf(escaped, sizeof escaped, "\\u%04x", c);
        else
            snprintf(escaped, sizeof escaped, "%c", c);
        text_put(text, escaped);
    }
    text_put(text, "\"");
}
