/* A strict JSON reader for input nobody vouches for: one flat array of tokens, no recursion, bounds
 * on size and depth, duplicate keys resolved to the last one as the container runtimes do. */
#ifndef GPUSHARE_JSON_H
#define GPUSHARE_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum json_type { JSON_OBJECT, JSON_ARRAY, JSON_STRING, JSON_OTHER /* number, true, false, null */ };

struct json_token {
    uint32_t type;
    uint32_t start, end; /* bytes of the text; a string's lie between its quotes */
    uint32_t next;       /* index of the first token after this one and all it holds */
};

struct json {
    const char *text;
    struct json_token *tokens;
    uint32_t count;
};

enum { JSON_MAX_DEPTH = 128 };
#define JSON_NONE UINT32_MAX

/* Reads `length` bytes, which must be one whole value. False if they are not JSON, too deep, or
 * there is no memory. On success the caller frees `tokens`. */
bool json_parse(struct json *json, const char *text, size_t length);

/* The value of a key, or JSON_NONE; `object` may be JSON_NONE or no object. */
uint32_t json_get(const struct json *json, uint32_t object, const char *key);

/* A string's text, unescaped, ends with 0; NULL if it is none or holds a 0. The caller frees it. */
char *json_string(const struct json *json, uint32_t token);

/* for (i = json_first(json, array); i < json_end(json, array); i = json->tokens[i].next) */
uint32_t json_first(const struct json *json, uint32_t array);
uint32_t json_end(const struct json *json, uint32_t array);

#endif
