#include "preload.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "files.h"

/* Opens a path as the container will see it: links are resolved within its root, never ours. */
static int open_in(int root, const char *path)
{
    struct open_how how = {
        .flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK,
        .resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS,
    };
    return (int)syscall(SYS_openat2, root, path, &how, sizeof how);
}

static int open_root(const struct container *c)
{
    char *path = json_string(&c->config, json_get(&c->config, json_get(&c->config, 0, "root"),
                                                  "path"));
    if (!path)
        return -1;
    int bundle = open(c->bundle ? c->bundle : ".", O_PATH | O_DIRECTORY | O_CLOEXEC);
    int root = openat(bundle, path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (bundle >= 0)
        close(bundle);
    free(path);
    return root;
}

/* Whether the list's first entry is the library; ld.so takes spaces, colons and lines alike. */
static bool first_entry_is(const char *list, size_t length, const char *library)
{
    size_t at = 0, wanted = strlen(library);
    while (at < length && memchr(" \t\n:", list[at], 4))
        at++;
    return length - at >= wanted && !memcmp(list + at, library, wanted) &&
           (length - at == wanted || memchr(" \t\n:", list[at + wanted], 4));
}

bool preload_in_place(const struct container *c, const char *library, char *reason,
                      unsigned long room)
{
    struct stat status;
    char *list = NULL;
    size_t length = 0;
    int root = open_root(c), file = -1, object = -1;
    bool good = false;
    if (root < 0) {
        snprintf(reason, room, "cannot open its root file system: %s", strerror(errno));
    } else if ((file = open_in(root, "/etc/ld.so.preload")) < 0 ||
               !(list = read_whole(file, 65536, &length))) {
        snprintf(reason, room, "its /etc/ld.so.preload cannot be read: %s", strerror(errno));
    } else if (!first_entry_is(list, length, library)) {
        snprintf(reason, room, "its /etc/ld.so.preload does not begin with %.200s", library);
    } else if ((object = open_in(root, library)) < 0 || fstat(object, &status) != 0 ||
               !S_ISREG(status.st_mode) || !status.st_size) {
        snprintf(reason, room, "%.200s is not there", library);
    } else {
        good = true;
    }
    free(list);
    if (file >= 0)
        close(file);
    if (object >= 0)
        close(object);
    if (root >= 0)
        close(root);
    return good;
}
