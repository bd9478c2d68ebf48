/* Reading with a bound, writing at once or not at all. */
#ifndef GPUSHARE_FILES_H
#define GPUSHARE_FILES_H

#include <stdbool.h>
#include <stddef.h>

/* All of a file, at most `limit` bytes; NULL with errno set (EFBIG if there is more). */
char *read_whole(int fd, size_t limit, size_t *length);

/* Replaces `directory/name` by a rename: a reader sees the old text or the new, never a part. */
bool write_whole(const char *directory, const char *name, const char *text, size_t length);

/* A growing text; `failed` once there is no memory. */
struct text {
    char *bytes;
    size_t length, room;
    bool failed;
};

void text_add(struct text *text, const char *bytes, size_t length);
void text_put(struct text *text, const char *string);
void text_json(struct text *text, const char *string); /* quoted and escaped; NULL is null */

#endif
