/* SPDX-License-Identifier: Apache-2.0 */
#include "devices.h"

#include <stdio.h>
#include <string.h>

#include "options.h"

/* How many devices of a backend with the name of this one come before it. */
static int ordinal_of(tess_runtime *runtime, const tess_device_info *info) {
    tess_device_info other = {.struct_size = sizeof other};
    int n = 0;
    for (uint32_t i = 0; tess_runtime_device(runtime, i, &other) == TESS_OK; i++) {
        if (strcmp(other.id, info->id) == 0) break;
        n += strcmp(other.backend, info->backend) == 0 && strcmp(other.name, info->name) == 0 &&
             other.kind == info->kind;
    }
    return n;
}

static int add_device(tess_runtime *runtime, bench_report *report, const tess_device_info *info) {
    static const char *const kinds[] = {"cpu", "gpu", "software"};
    bench_device *d = report_add_device(report);
    if (!d) return -1;
    snprintf(d->id, sizeof d->id, "%s", info->id);
    snprintf(d->backend, sizeof d->backend, "%s", info->backend);
    snprintf(d->kind, sizeof d->kind, "%s", info->kind < 3 ? kinds[info->kind] : "gpu");
    snprintf(d->name, sizeof d->name, "%s", info->name);
    snprintf(d->arch, sizeof d->arch, "%s", info->arch);
    snprintf(d->driver, sizeof d->driver, "%s", info->driver);
    d->ordinal = ordinal_of(runtime, info);
    d->compute_units = info->compute_units;
    d->memory_bytes = info->memory_bytes;
    return 0;
}

static int known_device(const bench_report *report, const char *id) {
    for (int i = 0; i < report->n_devices; i++)
        if (strcmp(report->devices[i].id, id) == 0) return 1;
    return 0;
}

/* The next name of a comma list into `name`, 0 after the last, -1 for one that is too long. *list
 * is NULL when the last one was taken. */
static int next_name(const char **list, char name[64]) {
    if (!*list) return 0;
    size_t length = strcspn(*list, ",");
    if (length >= 64) return -1;
    memcpy(name, *list, length);
    name[length] = 0;
    *list = (*list)[length] ? *list + length + 1 : NULL;
    return 1;
}

/* Names of more than one device: all, and those that are no software emulation. */
static int is_group(const char *name) {
    return strcmp(name, "all") == 0 || strcmp(name, "hardware") == 0;
}

/* Whether `name` is a group, a backend, or a backend with an index, written as tess_device_open
 * wants it. CLI_GO_ON or CLI_USAGE. */
static int check_name(tess_runtime *runtime, const char *command, const char *name) {
    size_t length = strcspn(name, ":");
    char names[256] = "";
    if (is_group(name)) return CLI_GO_ON;
    if (!length) return cli_error(CLI_USAGE, command, "--backends: a name is empty");
    if (name[length] &&
        (!name[length + 1] || strspn(name + length + 1, "0123456789") != strlen(name + length + 1)))
        return cli_error(CLI_USAGE, command, "--backends: %s: what follows the colon is no index",
                         name);
    for (uint32_t i = 0;; i++) {
        tess_backend_info b = {.struct_size = sizeof b};
        if (tess_runtime_backend(runtime, i, &b) != TESS_OK) break;
        if (strlen(b.name) == length && strncmp(b.name, name, length) == 0) return CLI_GO_ON;
        size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s%s", i ? ", " : "", b.name);
    }
    return cli_error(CLI_USAGE, command, "--backends: %s: no such backend; there are: %s", name,
                     names);
}

/* Why a backend that is known gives no device for `name`. */
static int explain_missing(tess_runtime *runtime, const char *command, const char *name) {
    size_t length = strcspn(name, ":");
    for (uint32_t i = 0;; i++) {
        tess_backend_info b = {.struct_size = sizeof b};
        if (tess_runtime_backend(runtime, i, &b) != TESS_OK) break;
        if (strlen(b.name) != length || strncmp(b.name, name, length) != 0) continue;
        if (b.status != TESS_OK)
            return cli_error(CLI_FAILED, command, "--backends: %s is not available: %s", b.name,
                             b.reason);
        return cli_error(CLI_FAILED, command, "--backends: %s: %s has %u device%s", name, b.name,
                         b.device_count, b.device_count == 1 ? "" : "s");
    }
    return cli_error(CLI_FAILED, command, "--backends: %s: no such device", name);
}

static int choose_by_list(tess_runtime *runtime, const char *command, const char *list,
                          bench_report *report) {
    const char *rest = list;
    char name[64];
    int more, status = CLI_GO_ON;
    while ((more = next_name(&rest, name)) > 0 && status == CLI_GO_ON)
        status = check_name(runtime, command, name);
    if (more < 0)
        return cli_error(CLI_USAGE, command, "--backends: a name is longer than 63 characters");
    if (status != CLI_GO_ON) return status;
    for (rest = list; next_name(&rest, name) > 0;) {
        int found = is_group(name);
        tess_device_info info = {.struct_size = sizeof info};
        for (uint32_t i = 0; tess_runtime_device(runtime, i, &info) == TESS_OK; i++) {
            int in_group = strcmp(name, "all") == 0 ||
                           (strcmp(name, "hardware") == 0 && info.kind != TESS_DEVICE_SOFTWARE);
            if (!in_group && strcmp(name, info.id) != 0 && strcmp(name, info.backend) != 0)
                continue;
            found = 1;
            if (!known_device(report, info.id) && add_device(runtime, report, &info) != 0)
                return cli_error(CLI_FAILED, command, "out of memory");
        }
        if (!found) return explain_missing(runtime, command, name);
    }
    return report->n_devices ? CLI_OK
                             : cli_error(CLI_FAILED, command, "--backends: no device is available");
}

int devices_choose(tess_runtime *runtime, const char *command, const char *list,
                   bench_report *report) {
    if (list) return choose_by_list(runtime, command, list, report);
    tess_setting_info setting = {.struct_size = sizeof setting};
    for (uint32_t i = 0; tess_runtime_setting(runtime, i, &setting) == TESS_OK; i++) {
        if (strcmp(setting.name, "TESSERA_BACKEND") != 0 || !setting.value[0]) continue;
        tess_device *device = NULL;
        tess_device_info info = {.struct_size = sizeof info};
        if (tess_device_open(runtime, NULL, &device) != TESS_OK ||
            tess_device_query(device, &info) != TESS_OK) {
            cli_error(CLI_FAILED, command, "%s", cli_why());
            tess_device_release(device);
            return CLI_FAILED;
        }
        tess_device_release(device);
        return add_device(runtime, report, &info) == 0
                   ? CLI_OK
                   : cli_error(CLI_FAILED, command, "out of memory");
    }
    return choose_by_list(runtime, command, "hardware", report);
}

int devices_kernels(const tess_device *device, unsigned which, char names[DEVICES_KERNELS][64]) {
    int n = 0;
    tess_kernel_info info = {.struct_size = sizeof info};
    for (uint32_t i = 0; n < DEVICES_KERNELS && tess_device_kernel(device, i, &info) == TESS_OK;
         i++) {
        if (info.status != TESS_OK || info.op != TESS_OP_FORWARD ||
            (info.flags & TESS_KERNEL_ONLY_NAMED && which != DEVICES_ALL_KERNELS))
            continue;
        snprintf(names[n++], 64, "%s", info.name);
    }
    return n;
}
