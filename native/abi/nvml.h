/* The part of NVML's binary interface that we speak, declared by hand from its public
 * documentation: no header of NVIDIA's is needed to build or is shipped. */
#ifndef GPUSHARE_NVML_H
#define GPUSHARE_NVML_H

#include <stdint.h>

typedef int nvmlReturn_t;
typedef struct nvmlDevice *nvmlDevice_t;
typedef struct nvmlEventSet *nvmlEventSet_t;

enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_UNINITIALIZED = 1,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_NO_PERMISSION = 4,
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_INSUFFICIENT_SIZE = 7,
    NVML_ERROR_DRIVER_NOT_LOADED = 9,
    NVML_ERROR_TIMEOUT = 10,
    NVML_ERROR_GPU_IS_LOST = 15,
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
    NVML_ERROR_UNKNOWN = 999,
};

enum {
    NVML_EVENT_SINGLE_BIT_ECC = 0x1,
    NVML_EVENT_DOUBLE_BIT_ECC = 0x2,
    NVML_EVENT_XID = 0x8,
};

enum { NVML_ADDRESSING_NONE = 0, NVML_ADDRESSING_HMM = 1, NVML_ADDRESSING_ATS = 2 };

/* A struct whose first field says its own version and size. */
#define NVML_STRUCT_VERSION(type, version) ((unsigned)(sizeof(type) | ((unsigned)(version) << 24)))

typedef struct {
    unsigned long long total, free, used; /* `used` includes what the driver keeps for itself */
} nvmlMemory_t;

typedef struct {
    unsigned version;
    unsigned long long total, reserved, free, used; /* total = reserved + free + used */
} nvmlMemory_v2_t;

typedef struct {
    char busIdLegacy[16];
    unsigned domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} nvmlPciInfo_t;

typedef struct {
    nvmlDevice_t device;
    unsigned long long eventType, eventData;
    unsigned gpuInstanceId, computeInstanceId;
} nvmlEventData_t;

typedef struct {
    unsigned pid;
    unsigned long long usedGpuMemory;
} nvmlProcessInfo_v1_t;

typedef struct {
    unsigned pid;
    unsigned long long usedGpuMemory;
    unsigned gpuInstanceId, computeInstanceId;
} nvmlProcessInfo_v2_t; /* _v3 has the same shape */

typedef struct {
    unsigned pid;
    unsigned long long usedGpuMemory;
    unsigned gpuInstanceId, computeInstanceId;
    unsigned long long usedGpuCcProtectedMemory;
} nvmlProcessDetail_v1_t;

typedef struct {
    unsigned version;
    unsigned mode; /* 0 compute, 1 graphics, 2 MPS, 3 all */
    unsigned numProcArrayEntries;
    nvmlProcessDetail_v1_t *procArray;
} nvmlProcessDetailList_v1_t;

typedef struct {
    unsigned version, value;
} nvmlDeviceAddressingMode_v1_t;

typedef struct {
    unsigned gpu, memory;
} nvmlUtilization_t;

typedef struct {
    unsigned fieldId, scopeId;
    long long timestamp, latencyUsec;
    unsigned valueType;
    nvmlReturn_t nvmlReturn;
    unsigned long long value; /* a union, by valueType */
} nvmlFieldValue_t;

#endif
