/* SPDX-License-Identifier: Apache-2.0 */
#include "sensors.h"
#include "limits/find.h"

#include <dlfcn.h>
#include <glob.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------ NVML */

enum { NVML_SM = 1, NVML_MEMORY = 2, NVML_CORE_TEMPERATURE = 0 };

static struct nvml {
    int tried, works;
    char version[64];
    int (*init)(void);
    int (*version_of)(char *, unsigned);
    int (*by_uuid)(const char *, void **);
    int (*by_pci)(const char *, void **);
    int (*clock)(void *, int, unsigned *);
    int (*top_clock)(void *, int, unsigned *);
    int (*power)(void *, unsigned *);
    int (*temperature)(void *, int, unsigned *);
    int (*energy)(void *, unsigned long long *);
} nvml;

static int nvml_works(void) {
    struct nvml *n = &nvml;
    if (n->tried) return n->works;
    n->tried = 1;
    void *l = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    n->works = l &&
               find_symbols(
                   l, "nvmlInit_v2", &n->init, "nvmlSystemGetNVMLVersion", &n->version_of,
                   "nvmlDeviceGetHandleByUUID", &n->by_uuid, "nvmlDeviceGetHandleByPciBusId_v2",
                   &n->by_pci, "nvmlDeviceGetClockInfo", &n->clock, "nvmlDeviceGetMaxClockInfo",
                   &n->top_clock, "nvmlDeviceGetPowerUsage", &n->power, "nvmlDeviceGetTemperature",
                   &n->temperature, "nvmlDeviceGetTotalEnergyConsumption", &n->energy, NULL) &&
               n->init() == 0 && n->version_of(n->version, sizeof n->version) == 0;
    return n->works;
}

/* NVML's own handle of a GPU, or NULL. */
static void *nvml_device(const bench_device *d) {
    char name[64];
    void *handle = NULL;
    if ((!d->uuid[0] && !d->pci[0]) || !nvml_works()) return NULL;
    snprintf(name, sizeof name, "GPU-%s", d->uuid);
    if (d->uuid[0] && nvml.by_uuid(name, &handle) == 0) return handle;
    return d->pci[0] && nvml.by_pci(d->pci, &handle) == 0 ? handle : NULL;
}

static bench_sensors nvml_read(void *handle) {
    bench_sensors s = {NAN, NAN, NAN, NAN};
    unsigned value;
    if (nvml.clock(handle, NVML_SM, &value) == 0) s.clock_hz = 1e6 * value;
    if (nvml.clock(handle, NVML_MEMORY, &value) == 0) s.memory_clock_hz = 1e6 * value;
    if (nvml.power(handle, &value) == 0) s.power_watts = 1e-3 * value;
    if (nvml.temperature(handle, NVML_CORE_TEMPERATURE, &value) == 0) s.temperature_celsius = value;
    return s;
}

static double nvml_joules(void *handle) {
    unsigned long long value;
    return nvml.energy(handle, &value) == 0 ? 1e-3 * (double)value : NAN;
}

/* ------------------------------------------------------------------ AMD SMI */

static struct amdsmi {
    int tried, works;
    int (*init)(uint64_t);
    int (*by_bdf)(uint64_t, void **);
    int (*energy)(void *, uint64_t *, float *, uint64_t *);
} amdsmi;

static int amdsmi_works(void) {
    enum { GPUS = 1 << 1 };
    static const char *const names[] = {"libamd_smi.so.26", "libamd_smi.so.25", "libamd_smi.so",
                                        NULL};
    static const find_names smi = {names, "libamd_smi.so", NULL, find_rocm_folders,
                                   "_rocm_sdk_*/lib"};
    struct amdsmi *a = &amdsmi;
    if (a->tried) return a->works;
    a->tried = 1;
    void *l = find_library(&smi);
    a->works = l &&
               find_symbols(l, "amdsmi_init", &a->init, "amdsmi_get_processor_handle_from_bdf",
                            &a->by_bdf, "amdsmi_get_energy_count", &a->energy, NULL) &&
               a->init(GPUS) == 0;
    return a->works;
}

/* Its counter counts in units of its own; NaN where there is none, as in a virtual machine. */
static double amdsmi_joules(const bench_device *d) {
    unsigned domain, bus, device, function;
    uint64_t count, nanoseconds;
    float microjoules;
    void *gpu = NULL;
    if (sscanf(d->pci, "%x:%x:%x.%x", &domain, &bus, &device, &function) != 4 || !amdsmi_works())
        return NAN;
    const uint64_t bdf =
        (uint64_t)domain << 16 | (bus & 0xff) << 8 | (device & 31) << 3 | (function & 7);
    if (amdsmi.by_bdf(bdf, &gpu) != 0 ||
        amdsmi.energy(gpu, &count, &microjoules, &nanoseconds) != 0)
        return NAN;
    return 1e-6 * (double)microjoules * (double)count;
}

/* ------------------------------------------------------------------ files of Linux */

/* The mean or the sum of the numbers in all files that a pattern names, times `unit`; NaN without
 * any. */
static double files_number(const char *pattern, double unit, int mean) {
    glob_t found;
    double sum = 0;
    int n = 0;
    if (glob(pattern, 0, NULL, &found) != 0) return NAN;
    for (size_t i = 0; i < found.gl_pathc; i++) {
        FILE *f = fopen(found.gl_pathv[i], "r");
        double value;
        if (!f) continue;
        if (fscanf(f, "%lf", &value) == 1) {
            sum += value;
            n++;
        }
        fclose(f);
    }
    globfree(&found);
    return n ? unit * sum / (mean ? n : 1) : NAN;
}

static double pci_number(const bench_device *d, const char *file, double unit) {
    char pattern[160];
    if (!d->pci[0] || strspn(d->pci, "0123456789abcdefABCDEF:.") != strlen(d->pci)) return NAN;
    snprintf(pattern, sizeof pattern, "/sys/bus/pci/devices/%s/hwmon/hwmon*/%s", d->pci, file);
    return files_number(pattern, unit, 1);
}

static bench_sensors pci_read(const bench_device *d) {
    bench_sensors s = {pci_number(d, "freq1_input", 1), pci_number(d, "freq2_input", 1),
                       pci_number(d, "power1_average", 1e-6), pci_number(d, "temp1_input", 1e-3)};
    if (isnan(s.power_watts)) s.power_watts = pci_number(d, "power1_input", 1e-6);
    return s;
}

static double cpu_temperature(void) {
    static const char *const names[] = {"coretemp", "k10temp", "zenpower", "cpu_thermal"};
    for (int i = 0; i < 32; i++) {
        char path[64], name[32] = "";
        snprintf(path, sizeof path, "/sys/class/hwmon/hwmon%d/name", i);
        FILE *f = fopen(path, "r");
        if (!f) continue;
        int got = fscanf(f, "%31s", name);
        fclose(f);
        for (size_t k = 0; got == 1 && k < sizeof names / sizeof *names; k++)
            if (strcmp(name, names[k]) == 0) {
                snprintf(path, sizeof path, "/sys/class/hwmon/hwmon%d/temp1_input", i);
                return files_number(path, 1e-3, 1);
            }
    }
    return NAN;
}

static double cpuinfo_clock(void) {
    FILE *f = fopen("/proc/cpuinfo", "r");
    char line[256];
    double sum = 0;
    int n = 0;
    if (!f) return NAN;
    while (fgets(line, sizeof line, f))
        if (strncmp(line, "cpu MHz", 7) == 0 && strchr(line, ':')) {
            sum += strtod(strchr(line, ':') + 1, NULL);
            n++;
        }
    fclose(f);
    return n ? 1e6 * sum / n : NAN;
}

static bench_sensors cpu_read(void) {
    bench_sensors s = {
        files_number("/sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_cur_freq", 1e3, 1), NAN,
        NAN, cpu_temperature()};
    if (isnan(s.clock_hz)) s.clock_hz = cpuinfo_clock();
    return s;
}

/* Packages alone: their parts stand one level below, and beside them may stand the whole platform,
 * which holds them. */
double sensors_packages(const char *folder) {
    double sum = NAN;
    for (int i = 0; i < 64; i++) {
        char path[256], name[16] = "";
        snprintf(path, sizeof path, "%.200s/intel-rapl:%d/name", folder, i);
        FILE *f = fopen(path, "r");
        if (!f) continue;
        const int got = fscanf(f, "%15s", name);
        fclose(f);
        if (got != 1 || strncmp(name, "package", strlen("package")) != 0) continue;
        snprintf(path, sizeof path, "%.200s/intel-rapl:%d/energy_uj", folder, i);
        const double joules = files_number(path, 1e-6, 0);
        sum = isnan(sum) ? joules : sum + joules;
    }
    return sum;
}

/* ------------------------------------------------------------------ all */

static int is_gpu(const bench_device *d) { return strcmp(d->kind, "gpu") == 0; }

bench_sensors sensors_read(const bench_device *d) {
    const bench_sensors none = {NAN, NAN, NAN, NAN};
    if (!d) return none;
    if (!is_gpu(d)) return cpu_read();
    void *handle = nvml_device(d);
    return handle ? nvml_read(handle) : pci_read(d);
}

double sensors_top_clock(const bench_device *d) {
    void *handle = d && is_gpu(d) ? nvml_device(d) : NULL;
    unsigned value;
    return handle && nvml.top_clock(handle, NVML_SM, &value) == 0 ? 1e6 * value : NAN;
}

double sensors_joules(const bench_device *d) {
    if (!d) return NAN;
    if (!is_gpu(d)) return sensors_packages("/sys/class/powercap");
    void *handle = nvml_device(d);
    if (handle) return nvml_joules(handle);
    const double joules = amdsmi_joules(d);
    return isnan(joules) ? pci_number(d, "energy1_input", 1e-6) : joules;
}

void sensors_find(bench_device *d) {
    const bench_sensors s = sensors_read(d);
    const int any = !isnan(s.clock_hz) || !isnan(s.power_watts) || !isnan(s.temperature_celsius);
    char name[sizeof d->sensors];
    if (is_gpu(d) && nvml_device(d))
        snprintf(name, sizeof name, "NVML %s", nvml.version);
    else
        snprintf(name, sizeof name, "%s", is_gpu(d) ? "hwmon" : "Linux");
    d->sensors[0] = d->energy[0] = 0;
    if (any) snprintf(d->sensors, sizeof d->sensors, "%s", name);
    if (isnan(sensors_joules(d))) return;
    const char *from = !is_gpu(d)                                    ? "RAPL, packages"
                       : !nvml_device(d) && !isnan(amdsmi_joules(d)) ? "AMD SMI"
                                                                     : name;
    snprintf(d->energy, sizeof d->energy, "%s", from);
}
