/* In place of NVIDIA's libnvidia-ml.so.1, for machines without a GPU: two GPUs whose use is in the file that
 * NVML_STAND_IN names, in percent, as "5 90". Exports the functions that isochrone/observe/metrics/gpus.py calls. */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { GPUS = 2, SUCCESS = 0, INVALID_ARGUMENT = 2, UNKNOWN = 999 };

typedef struct { unsigned int gpu, memory; } utilization_t;
typedef struct { unsigned long long total, free, used; } memory_t;

static char devices[GPUS];

static int index_of(void *device) { return (int)((char *)device - devices); }

int nvmlInitWithFlags(unsigned int flags) { (void)flags; return SUCCESS; }

int nvmlShutdown(void) { return SUCCESS; }

const char *nvmlErrorString(int result) { return result == SUCCESS ? "Success" : "Of the stand-in"; }

int nvmlDeviceGetCount_v2(unsigned int *count) { *count = GPUS; return SUCCESS; }

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **device) {
    if (index >= GPUS) return INVALID_ARGUMENT;
    *device = devices + index;
    return SUCCESS;
}

int nvmlDeviceGetUUID(void *device, char *uuid, unsigned int length) {
    snprintf(uuid, length, "GPU-stand-in-%d", index_of(device));
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(void *device, utilization_t *rates) {
    const char *path = getenv("NVML_STAND_IN");
    FILE *file = path ? fopen(path, "r") : NULL;
    unsigned int use[GPUS];
    if (!file) return UNKNOWN;
    int count = fscanf(file, "%u %u", use, use + 1);
    fclose(file);
    if (count != GPUS) return UNKNOWN;
    rates->gpu = use[index_of(device)];
    rates->memory = 0;
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(void *device, memory_t *memory) {
    (void)device;
    memory->total = 16ULL << 30;
    memory->used = 1ULL << 30;
    memory->free = memory->total - memory->used;
    return SUCCESS;
}

int nvmlDeviceGetPowerUsage(void *device, unsigned int *milliwatts) { (void)device; *milliwatts = 40000; return SUCCESS; }

int nvmlDeviceGetPowerManagementLimit(void *device, unsigned int *milliwatts) {
    (void)device;
    *milliwatts = 300000;
    return SUCCESS;
}

int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *millijoules) {
    (void)device;
    *millijoules = 1000000;
    return SUCCESS;
}
