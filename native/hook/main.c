/* gpushare-hook: runs beside a container's start, by its CDI device's specification.
 *
 *   gpushare-hook attest --mailbox DIR --gpu UUID … [--device PATH …]
 *       Tells the device plugin which pod and container this allocation went to, by a file in the
 *       mailbox, and refuses the container (exit 1) if its configuration lacks the allocation's
 *       GPU or holds another. A mailbox that cannot be written refuses nobody: the plugin has
 *       other ways to learn it. (createRuntime)
 *
 *   gpushare-hook check-preload --library PATH
 *       Refuses the container unless its final file system preloads the library that holds it to
 *       its memory. (createContainer)
 *
 * Static, no configuration, no network: it works while the plugin and the API server are down. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "container.h"
#include "files.h"
#include "gpus.h"
#include "preload.h"

enum { MAX_GPUS = 64, REASON = 512 };

struct arguments {
    const char *mailbox, *library;
    const char *gpus[MAX_GPUS], *devices[MAX_GPUS];
    unsigned gpu_count, device_count;
};

static int usage(void)
{
    fputs("usage: gpushare-hook attest --mailbox DIR --gpu UUID ... [--device PATH ...]\n"
          "       gpushare-hook check-preload --library PATH\n",
          stderr);
    return 2;
}

static bool parse(struct arguments *a, int count, char **words)
{
    for (int i = 0; i + 1 < count; i += 2) {
        const char *value = words[i + 1];
        if (!strcmp(words[i], "--mailbox"))
            a->mailbox = value;
        else if (!strcmp(words[i], "--library"))
            a->library = value;
        else if (!strcmp(words[i], "--gpu") && a->gpu_count < MAX_GPUS)
            a->gpus[a->gpu_count++] = value;
        else if (!strcmp(words[i], "--device") && a->device_count < MAX_GPUS)
            a->devices[a->device_count++] = value;
        else
            return false;
    }
    return count % 2 == 0;
}

/* What may stand in a file's name; everything else becomes "_". */
static void add_name(char *name, size_t room, const char *part)
{
    size_t used = strlen(name);
    for (; part && *part && used + 1 < room; part++) {
        char c = *part;
        bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                     c == '-' || (c == '.' && used);
        name[used++] = plain ? c : '_';
    }
    name[used] = 0;
}

/* One file per pod and container: a restart overwrites it, so a crash loop cannot fill the disk. */
static void report(const struct arguments *a, const struct container *c, const char *refused)
{
    struct text text = {0};
    char name[160] = "";
    text_put(&text, "{\"version\":1,\"podUid\":");
    text_json(&text, c->pod_uid);
    text_put(&text, ",\"namespace\":");
    text_json(&text, c->pod_namespace);
    text_put(&text, ",\"pod\":");
    text_json(&text, c->pod_name);
    text_put(&text, ",\"container\":");
    text_json(&text, c->name);
    text_put(&text, ",\"id\":");
    text_json(&text, c->id);
    text_put(&text, ",\"gpus\":[");
    for (unsigned i = 0; i < a->gpu_count; i++) {
        text_put(&text, i ? "," : "");
        text_json(&text, a->gpus[i]);
    }
    text_put(&text, "],\"refused\":");
    text_json(&text, refused);
    text_put(&text, "}\n");
    add_name(name, 64, c->pod_uid ? c->pod_uid : "unknown");
    add_name(name, 65, "_");
    add_name(name, 140, c->name ? c->name : c->id);
    strcat(name, ".json");
    if (text.failed || !write_whole(a->mailbox, name, text.bytes, text.length))
        fprintf(stderr, "gpushare-hook: cannot write %s/%s: %s\n", a->mailbox, name,
                strerror(text.failed ? ENOMEM : errno));
    free(text.bytes);
}

static int refuse(const char *reason)
{
    fprintf(stderr, "gpushare-hook: container refused: %s\n", reason);
    return 1;
}

static int attest(const struct arguments *a)
{
    struct container c = {0};
    char reason[REASON] = "";
    struct expected expected = {a->gpus, a->gpu_count, a->devices, a->device_count};
    bool good = container_read(&c, STDIN_FILENO, reason, sizeof reason) &&
                gpus_match(&c.config, &expected, reason, sizeof reason);
    report(a, &c, good ? NULL : reason);
    return good ? 0 : refuse(reason);
}

static int check_preload(const struct arguments *a)
{
    struct container c = {0};
    char reason[REASON] = "";
    bool good = container_read(&c, STDIN_FILENO, reason, sizeof reason) &&
                preload_in_place(&c, a->library, reason, sizeof reason);
    return good ? 0 : refuse(reason);
}

int main(int count, char **words)
{
    struct arguments a = {0};
    if (count < 2 || !parse(&a, count - 2, words + 2))
        return usage();
    if (!strcmp(words[1], "attest") && a.mailbox && a.gpu_count)
        return attest(&a);
    if (!strcmp(words[1], "check-preload") && a.library)
        return check_preload(&a);
    return usage();
}
