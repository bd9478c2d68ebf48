/* Runs a program with the files the plugin mounts into a container, in a mount namespace of its
 * own: the shipped library is tested as it is, with no path of its own for tests.
 *
 *   incontainer [--limits FILE] [--writable] [--region FILE] [--preload LIBRARY] -- PROGRAM …
 *
 * Needs root, or user namespaces. Exits 77 where neither is to be had. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

static void fail(const char *what, int status)
{
    fprintf(stderr, "incontainer: %s: %s\n", what, strerror(errno));
    exit(status);
}

static void write_file(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0 || write(fd, text, strlen(text)) < 0)
        fail(path, 77);
    close(fd);
}

static void enter_namespaces(void)
{
    char map[64];
    unsigned user = geteuid(), group = getegid();
    if (user == 0) {
        if (unshare(CLONE_NEWNS) != 0)
            fail("unshare", 77);
    } else {
        if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0)
            fail("unshare", 77);
        write_file("/proc/self/setgroups", "deny");
        snprintf(map, sizeof map, "0 %u 1", user);
        write_file("/proc/self/uid_map", map);
        snprintf(map, sizeof map, "0 %u 1", group);
        write_file("/proc/self/gid_map", map);
    }
    if (mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0)
        fail("mount /", 77);
}

static void mount_file(const char *source, const char *target, int read_only)
{
    if (!source)
        return;
    write_file(target, "");
    if (mount(source, target, NULL, MS_BIND, NULL) != 0)
        fail(source, 1);
    if (read_only && mount(NULL, target, NULL, MS_BIND | MS_REMOUNT | MS_RDONLY, NULL) != 0)
        fail(target, 1);
}

int main(int count, char **words)
{
    const char *limits = NULL, *region = NULL, *preload = NULL;
    int read_only = 1, i = 1;
    for (; i < count && strcmp(words[i], "--") != 0; i++) {
        if (!strcmp(words[i], "--writable"))
            read_only = 0;
        else if (!strcmp(words[i], "--limits") && i + 1 < count)
            limits = words[++i];
        else if (!strcmp(words[i], "--region") && i + 1 < count)
            region = words[++i];
        else if (!strcmp(words[i], "--preload") && i + 1 < count)
            preload = words[++i];
        else
            return 2;
    }
    if (i + 1 >= count)
        return 2;
    enter_namespaces();
    /* An /etc of our own, over the machine's. */
    if (mount("tmpfs", "/mnt", "tmpfs", 0, NULL) != 0 || mkdir("/mnt/upper", 0755) != 0 ||
        mkdir("/mnt/work", 0755) != 0 ||
        mount("overlay", "/etc", "overlay", 0,
              "lowerdir=/etc,upperdir=/mnt/upper,workdir=/mnt/work") != 0)
        fail("an overlay on /etc", 77);
    if (mkdir("/etc/gpushare", 0755) != 0)
        fail("/etc/gpushare", 1);
    mount_file(limits, "/etc/gpushare/limits", read_only);
    mount_file(region, "/etc/gpushare/region", 0);
    if (preload)
        write_file("/etc/ld.so.preload", preload);
    execvp(words[i + 1], words + i + 1);
    fail(words[i + 1], 126);
    return 126;
}
