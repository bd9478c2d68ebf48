#include "json.h"

#include <stdlib.h>
#include <string.h>

struct reader {
    const char *text;
    size_t at, length;
    struct json_token *tokens;
    uint32_t count, room;
    uint32_t open[JSON_MAX_DEPTH]; /* the tokens we are inside of */
    unsigned depth;
};

static uint32_t add(struct reader *r, enum json_type type, size_t start)
{
    if (r->count == r->room) {
        uint32_t room = r->room ? r->room * 2 : 1024;
        struct json_token *grown = realloc(r->tokens, room * sizeof *grown);
        if (!grown)
            return JSON_NONE;
        r->tokens = grown;
        r->room = room;
    }
    r->tokens[r->count] = (struct json_token){type, (uint32_t)start, 0, r->count + 1};
    return r->count++;
}

static void skip_space(struct reader *r)
{
    while (r->at < r->length && strchr(" \t\n\r", r->text[r->at]) && r->text[r->at])
        r->at++;
}

static bool next_is(struct reader *r, char wanted)
{
    skip_space(r);
    if (r->at >= r->length || r->text[r->at] != wanted)
        return false;
    r->at++;
    return true;
}

static int hex(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

/* The opening quote has been read. */
static bool read_string(struct reader *r)
{
    uint32_t token = add(r, JSON_STRING, r->at);
    if (token == JSON_NONE)
        return false;
    while (r->at < r->length) {
        unsigned char c = (unsigned char)r->text[r->at++];
        if (c == '"') {
            r->tokens[token].end = (uint32_t)(r->at - 1);
            return true;
        }
        if (c < 0x20)
            return false;
        if (c != '\\')
            continue;
        if (r->at >= r->length)
            return false;
        c = (unsigned char)r->text[r->at++];
        if (c == 'u') {
            for (int i = 0; i < 4; i++)
                if (r->at >= r->length || hex(r->text[r->at++]) < 0)
                    return false;
        } else if (!c || !strchr("\"\\/bfnrt", c)) {
            return false;
        }
    }
    return false;
}

/* Numbers are not interpreted, so their grammar is checked only as far as their letters. */
static bool read_other(struct reader *r)
{
    static const char *const words[] = {"true", "false", "null"};
    size_t start = r->at;
    uint32_t token = add(r, JSON_OTHER, start);
    if (token == JSON_NONE)
        return false;
    for (size_t i = 0; i < 3; i++) {
        size_t length = strlen(words[i]);
        if (r->length - r->at >= length && !memcmp(r->text + r->at, words[i], length)) {
            r->at += length;
            r->tokens[token].end = (uint32_t)r->at;
            return true;
        }
    }
    while (r->at < r->length && r->text[r->at] && strchr("+-.0123456789eE", r->text[r->at]))
        r->at++;
    r->tokens[token].end = (uint32_t)r->at;
    return r->at > start;
}

/* One value, or the beginning of a container. */
static bool read_value(struct reader *r)
{
    skip_space(r);
    if (r->at >= r->length)
        return false;
    char c = r->text[r->at];
    if (c == '"') {
        r->at++;
        return read_string(r);
    }
    if (c != '{' && c != '[')
        return read_other(r);
    if (r->depth == JSON_MAX_DEPTH)
        return false;
    uint32_t token = add(r, c == '{' ? JSON_OBJECT : JSON_ARRAY, r->at++);
    if (token == JSON_NONE)
        return false;
    r->open[r->depth++] = token;
    return true;
}

static void close_container(struct reader *r)
{
    uint32_t token = r->open[--r->depth];
    r->tokens[token].end = (uint32_t)r->at;
    r->tokens[token].next = r->count;
}

static bool read_key(struct reader *r)
{
    return next_is(r, '"') && read_string(r) && next_is(r, ':');
}

static bool read_all(struct reader *r)
{
    bool fresh = true; /* the container we are in has no entry yet */
    if (!read_value(r))
        return false;
    while (r->depth) {
        uint32_t container = r->open[r->depth - 1];
        bool object = r->tokens[container].type == JSON_OBJECT;
        fresh = r->count == container + 1;
        if (next_is(r, object ? '}' : ']')) {
            close_container(r);
            continue;
        }
        if (!fresh && !next_is(r, ','))
            return false;
        if (object && !read_key(r))
            return false;
        if (!read_value(r))
            return false;
    }
    skip_space(r);
    return r->at == r->length;
}

bool json_parse(struct json *json, const char *text, size_t length)
{
    struct reader r = {.text = text, .length = length};
    if (length >= UINT32_MAX || !read_all(&r)) {
        free(r.tokens);
        return false;
    }
    *json = (struct json){text, r.tokens, r.count};
    return true;
}

uint32_t json_first(const struct json *json, uint32_t array)
{
    (void)json;
    return array == JSON_NONE ? JSON_NONE : array + 1;
}

uint32_t json_end(const struct json *json, uint32_t array)
{
    if (array == JSON_NONE || json->tokens[array].type == JSON_STRING)
        return 0;
    return json->tokens[array].next;
}

static void append_utf8(char **out, uint32_t code)
{
    char *p = *out;
    if (code < 0x80) {
        *p++ = (char)code;
    } else if (code < 0x800) {
        *p++ = (char)(0xc0 | code >> 6);
        *p++ = (char)(0x80 | (code & 0x3f));
    } else if (code < 0x10000) {
        *p++ = (char)(0xe0 | code >> 12);
        *p++ = (char)(0x80 | (code >> 6 & 0x3f));
        *p++ = (char)(0x80 | (code & 0x3f));
    } else {
        *p++ = (char)(0xf0 | code >> 18);
        *p++ = (char)(0x80 | (code >> 12 & 0x3f));
        *p++ = (char)(0x80 | (code >> 6 & 0x3f));
        *p++ = (char)(0x80 | (code & 0x3f));
    }
    *out = p;
}

static uint32_t read_hex4(const char *text)
{
    uint32_t code = 0;
    for (int i = 0; i < 4; i++)
        code = code << 4 | (uint32_t)hex(text[i]);
    return code;
}

char *json_string(const struct json *json, uint32_t token)
{
    if (token == JSON_NONE || json->tokens[token].type != JSON_STRING)
        return NULL;
    const char *from = json->text + json->tokens[token].start;
    const char *end = json->text + json->tokens[token].end;
    char *result = malloc((size_t)(end - from) + 1), *to = result;
    if (!result)
        return NULL;
    while (from < end) {
        char c = *from++;
        if (c != '\\') {
            *to++ = c;
            continue;
        }
        c = *from++;
        const char *plain = strchr("\"\\/b\bf\fn\nr\rt\t", c);
        if (c != 'u') {
            /* The quote, backslash and slash stand for themselves; letters for what follows. */
            *to++ = strchr("bfnrt", c) ? plain[1] : c;
            continue;
        }
        uint32_t code = read_hex4(from);
        from += 4;
        if (code >= 0xd800 && code < 0xdc00 && end - from >= 6 && from[0] == '\\' &&
            from[1] == 'u') {
            uint32_t low = read_hex4(from + 2);
            if (low >= 0xdc00 && low < 0xe000) {
                code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
                from += 6;
            }
        }
        if (!code) {
            free(result);
            return NULL;
        }
        append_utf8(&to, code >= 0xd800 && code < 0xe000 ? 0xfffd : code);
    }
    *to = 0;
    if (strlen(result) != (size_t)(to - result)) { /* a raw 0 byte */
        free(result);
        return NULL;
    }
    return result;
}

uint32_t json_get(const struct json *json, uint32_t object, const char *key)
{
    uint32_t found = JSON_NONE;
    if (object == JSON_NONE || json->tokens[object].type != JSON_OBJECT)
        return found;
    for (uint32_t i = object + 1; i < json->tokens[object].next;) {
        uint32_t value = i + 1;
        char *name = json_string(json, i);
        if (name && !strcmp(name, key))
            found = value;
        free(name);
        i = json->tokens[value].next;
    }
    return found;
}
