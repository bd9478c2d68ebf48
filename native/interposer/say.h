/* The few things worth a line on standard error, each at most once per process; nothing is ever
 * written to standard output, which programs parse. */
#ifndef GPUSHARE_SAY_H
#define GPUSHARE_SAY_H

enum message {
    SAY_NO_LIMITS,
    SAY_WRITABLE_LIMITS,
    SAY_BAD_LIMITS,
    SAY_NO_REGION,
    SAY_BAD_REGION,
    SAY_NO_LOCKS,
    SAY_FULL_REGION,
    SAY_STUCK_REGION,
    SAY_UNKNOWN_GPU,
    SAY_TOO_MANY_DRIVERS,
    SAY_COUNT,
};

void say_once(enum message message);

#endif
