/* Where the plugin mounts what this library reads, inside every container. Not from the
 * environment, which is the tenant's. */
#ifndef GPUSHARE_PATHS_H
#define GPUSHARE_PATHS_H

#define LIMITS_PATH "/etc/gpushare/limits"
#define REGION_PATH "/etc/gpushare/region"

#endif
