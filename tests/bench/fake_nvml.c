/* SPDX-License-Identifier: Apache-2.0 */
/* NVML for tests: a GPU that has rested, and whose clock is at the top from the fourth time on that
 * somebody looks. */
#define FAKE_API __attribute__((visibility("default")))

enum { RESTED = 345, TOP = 1980, LOOKS_AT_REST = 3 };

static int looks;

FAKE_API int nvmlInit_v2(void);
FAKE_API int nvmlSystemGetNVMLVersion(char *version, unsigned size);
FAKE_API int nvmlDeviceGetHandleByUUID(const char *uuid, void **device);
FAKE_API int nvmlDeviceGetHandleByPciBusId_v2(const char *pci, void **device);
FAKE_API int nvmlDeviceGetClockInfo(void *device, int type, unsigned *value);
FAKE_API int nvmlDeviceGetMaxClockInfo(void *device, int type, unsigned *value);
FAKE_API int nvmlDeviceGetPowerUsage(void *device, unsigned *value);
FAKE_API int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *value);
FAKE_API int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *value);

int nvmlInit_v2(void) { return 0; }

int nvmlSystemGetNVMLVersion(char *version, unsigned size) {
    if (size) version[0] = 0;
    return 0;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    (void)uuid;
    *device = &looks;
    return 0;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *pci, void **device) {
    (void)pci;
    (void)device;
    return 1;
}

int nvmlDeviceGetClockInfo(void *device, int type, unsigned *value) {
    (void)device;
    *value = TOP;
    if (type == 1) *value = ++looks > LOOKS_AT_REST ? TOP : RESTED;
    return 0;
}

int nvmlDeviceGetMaxClockInfo(void *device, int type, unsigned *value) {
    (void)device;
    (void)type;
    *value = TOP;
    return 0;
}

int nvmlDeviceGetPowerUsage(void *device, unsigned *value) {
    (void)device;
    *value = 100000;
    return 0;
}

int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *value) {
    (void)device;
    (void)sensor;
    *value = 40;
    return 0;
}

/* So many millijoules go between two looks. */
int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *value) {
    static unsigned long long sum;
    (void)device;
    *value = sum += 5000;
    return 0;
}
