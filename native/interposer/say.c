#include "say.h"

#include <string.h>
#include <unistd.h>

#include "paths.h"

static const char *const texts[SAY_COUNT] = {
    [SAY_NO_LIMITS] = "cannot read " LIMITS_PATH,
    [SAY_WRITABLE_LIMITS] = LIMITS_PATH " is not mounted read-only, so it is not trusted",
    [SAY_BAD_LIMITS] = LIMITS_PATH " is not a limits file",
    [SAY_NO_REGION] = "cannot open " REGION_PATH,
    [SAY_BAD_REGION] = REGION_PATH " is not a region of this version",
    [SAY_NO_LOCKS] = REGION_PATH " lies on a file system that loses locks (overlayfs?)",
    [SAY_FULL_REGION] = "more processes use the GPU than " REGION_PATH " has room for",
    [SAY_STUCK_REGION] = REGION_PATH " stays locked",
    [SAY_UNKNOWN_GPU] = "a GPU is visible that " LIMITS_PATH " does not name",
    [SAY_TOO_MANY_DRIVERS] = "more copies of the driver library than can be followed",
};

void say_once(enum message message)
{
    static unsigned said;
    unsigned bit = 1u << message;
    if (__atomic_fetch_or(&said, bit, __ATOMIC_RELAXED) & bit)
        return;
    char line[256] = "gpushare: GPU memory is refused: ";
    strncat(line, texts[message], sizeof line - strlen(line) - 2);
    strcat(line, "\n");
    ssize_t ignored = write(STDERR_FILENO, line, strlen(line));
    (void)ignored;
}
