/* SPDX-License-Identifier: Apache-2.0 */
/* `tessera info`: everything that the library knows about this machine, for people or as JSON. */
#include <cjson/cJSON.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "text.h"

static const char help[] = "usage: tessera info [--json]\n\n"
                           "Shows the backends and why one is not available, the devices with "
                           "their kernels in the order in which they are tried\n"
                           "and the rules of tune tables that change this order, the tune file,\n"
                           "and the settings: each environment variable, its value, where that "
                           "came from, and what it means.\n\n"
                           "  --json      the same as JSON\n"
                           "  --help      this text\n"
                           "  --version   the version\n";

static const char *kind_name(uint32_t kind) {
    static const char *const names[] = {"cpu", "gpu", "software"};
    return kind < sizeof names / sizeof *names ? names[kind] : "unknown";
}

/* Copies the description of backend `index`; 0 past the last. A backend that cannot be described,
 * because listing its devices failed for want of memory, gets its error as the reason: it begins
 * with the backend's name. */
static int backend_at(tess_runtime *runtime, uint32_t index, tess_backend_info *backend) {
    *backend = (tess_backend_info){.struct_size = sizeof *backend};
    const tess_status status = tess_runtime_backend(runtime, index, backend);
    if (status == TESS_OK || status == TESS_ERROR_INVALID) return status == TESS_OK;
    const char *why = cli_why();
    *backend = (tess_backend_info){.struct_size = sizeof *backend, .status = status};
    snprintf(backend->name, sizeof backend->name, "%.*s", (int)strcspn(why, ":"), why);
    snprintf(backend->reason, sizeof backend->reason, "%s", why);
    return 1;
}

static tess_device *open_device(tess_runtime *runtime, const char *id);

/* Copies the description of device `index`; 0 past the last. When one backend keeps the library
 * from listing all devices, those of the others are asked themselves, in the order of backends. */
static int device_at(tess_runtime *runtime, uint32_t index, tess_device_info *info) {
    *info = (tess_device_info){.struct_size = sizeof *info};
    const tess_status status = tess_runtime_device(runtime, index, info);
    if (status == TESS_OK || status == TESS_ERROR_INVALID) return status == TESS_OK;
    tess_backend_info backend;
    for (uint32_t b = 0; backend_at(runtime, b, &backend); b++) {
        if (index >= backend.device_count) {
            index -= backend.device_count;
            continue;
        }
        *info = (tess_device_info){.struct_size = sizeof *info};
        /* there are never so many */
        snprintf(info->id, sizeof info->id, "%s:%" PRIu32, backend.name, index % 10000);
        tess_device *device = open_device(runtime, info->id);
        if (device) (void)tess_device_query(device, info);
        tess_device_release(device);
        snprintf(info->backend, sizeof info->backend, "%s", backend.name);
        return 1;
    }
    return 0;
}

/* Copies the description of kernel `index` of the device; 0 past the last. */
static int kernel_at(const tess_device *device, uint32_t index, tess_kernel_info *kernel) {
    *kernel = (tess_kernel_info){.struct_size = sizeof *kernel};
    return tess_device_kernel(device, index, kernel) == TESS_OK;
}

/* Opens the device by its own id, so that its kernels can be listed; NULL, with the reason in
 * cli_why(), when that fails. */
static tess_device *open_device(tess_runtime *runtime, const char *id) {
    tess_device_desc desc = {.struct_size = sizeof desc, .id = id};
    tess_device *device = NULL;
    return tess_device_open(runtime, &desc, &device) == TESS_OK ? device : NULL;
}

/* Copies rule `index` of the tune tables, of those for a device unless that is NULL; 0 past the
 * last. */
static int rule_at(const tess_runtime *runtime, const tess_device *device, uint32_t index,
                   tess_rule_info *rule) {
    *rule = (tess_rule_info){.struct_size = sizeof *rule};
    return tess_runtime_rule(runtime, device, index, rule) == TESS_OK;
}

static const char *basis_name(uint32_t basis) {
    static const char *const names[] = {"", "measured", "reasoned"};
    return basis < sizeof names / sizeof *names ? names[basis] : "";
}

/* Rules of the tune file: all of them, or those for a device. */
static uint32_t count_rules(const tess_runtime *runtime, const tess_device *device) {
    tess_rule_info rule;
    uint32_t n = 0;
    while (rule_at(runtime, device, n, &rule) && !rule.built_in) n++;
    return n;
}

static const char *remark_on_tune_file(tess_runtime *runtime) {
    tess_device_info info;
    uint32_t n = 0;
    for (uint32_t i = 0; device_at(runtime, i, &info); i++) {
        tess_device *device = open_device(runtime, info.id);
        if (device) n += count_rules(runtime, device);
        tess_device_release(device);
    }
    return n ? "" : "no rule of it is for a device here, so it changes nothing";
}

/* What is wrong with a setting although its form is legal; "" for nothing. A kernel's name is
 * looked up only when a plan is made. */
static const char *remark_on(tess_runtime *runtime, const tess_setting_info *setting) {
    if (strcmp(setting->name, "TESSERA_TUNE_FILE") == 0 && *setting->value)
        return remark_on_tune_file(runtime);
    if (strcmp(setting->name, "TESSERA_KERNEL") != 0 || !*setting->value) return "";
    tess_device_info info;
    const char *remark = "no device here has this kernel, so every plan will be refused";
    for (uint32_t i = 0; device_at(runtime, i, &info); i++) {
        tess_device *device = open_device(runtime, info.id);
        tess_kernel_info kernel;
        for (uint32_t k = 0; device && kernel_at(device, k, &kernel); k++) {
            if (strcmp(kernel.name, setting->value) != 0) continue;
            remark = kernel.status == TESS_OK
                         ? ""
                         : "this kernel is not available here, so every plan will be refused";
        }
        tess_device_release(device);
    }
    return remark;
}

/* ------------------------------------------------------------------ text */

static void print_backends(tess_runtime *runtime) {
    tess_backend_info backend;
    puts("Backends, in order of preference");
    for (uint32_t i = 0; backend_at(runtime, i, &backend); i++) {
        if (backend.status == TESS_OK)
            printf("  %-8s %" PRIu32 " device%s\n", backend.name, backend.device_count,
                   backend.device_count == 1 ? "" : "s");
        else
            printf("  %-8s %s: %s\n", backend.name, tess_status_name(backend.status),
                   backend.reason);
    }
}

/* Rules of the file by their lines, since there may be many; the few that a backend brings along as
 * they stand. */
static void print_rules(tess_runtime *runtime, const tess_device *device) {
    const uint32_t n = count_rules(runtime, device);
    tess_rule_info rule;
    for (uint32_t i = 0; i < n && rule_at(runtime, device, i, &rule); i++)
        printf("%s %" PRIu32 "%s",
               i       ? ","
               : n > 1 ? "    tune file, lines"
                       : "    tune file, line",
               rule.line, i + 1 < n ? "" : "\n");
    for (uint32_t i = n; rule_at(runtime, device, i, &rule); i++)
        printf("    %s %s\n", i == n ? "own rules:" : "          ", rule.text);
}

static void print_kernels(tess_runtime *runtime, const char *id) {
    tess_device *device = open_device(runtime, id);
    if (!device) {
        printf("    cannot be opened: %s\n", cli_why());
        return;
    }
    puts("    kernels, in the order in which they are tried");
    tess_kernel_info kernel;
    for (uint32_t i = 0; kernel_at(device, i, &kernel); i++) {
        char few[64] = "";
        const char *const gradients = kernel.op == TESS_OP_BACKWARD ? ", gradients" : "";
        if (kernel.most_rows)
            snprintf(few, sizeof few, ", for at most %" PRIu32 " rows of a kv head",
                     kernel.most_rows);
        printf("      %-20s %s%s%s%s\n", kernel.name,
               kernel.status == TESS_OK ? "available" : kernel.reason, gradients, few,
               kernel.flags & TESS_KERNEL_ONLY_NAMED ? ", taken only when named" : "");
    }
    print_rules(runtime, device);
    tess_device_release(device);
}

static void print_devices(tess_runtime *runtime) {
    tess_device_info device;
    char bytes[TEXT_SIZE];
    puts("\nDevices, in order of preference");
    uint32_t i = 0;
    for (; device_at(runtime, i, &device); i++) {
        printf("  %-8s %s\n", device.id, device.name);
        printf("    %s, %" PRIu32 " %s, %s of memory\n", kind_name(device.kind),
               device.compute_units, device.kind == TESS_DEVICE_GPU ? "multiprocessors" : "threads",
               text_bytes(bytes, sizeof bytes, (double)device.memory_bytes));
        if (*device.arch) printf("    architecture: %s\n", device.arch);
        if (*device.driver) printf("    driver: %s\n", device.driver);
        print_kernels(runtime, device.id);
    }
    if (i == 0) puts("  none");
}

static void print_tune_file(tess_runtime *runtime) {
    tess_setting_info setting = {.struct_size = sizeof setting};
    for (uint32_t i = 0; tess_runtime_setting(runtime, i, &setting) == TESS_OK; i++) {
        if (strcmp(setting.name, "TESSERA_TUNE_FILE") != 0) continue;
        const uint32_t n = count_rules(runtime, NULL);
        if (*setting.value)
            printf("\nTune file\n  %s, %" PRIu32 " rule%s\n", setting.value, n, n == 1 ? "" : "s");
        else
            puts("\nTune file\n  none");
    }
}

static void print_settings(tess_runtime *runtime) {
    tess_setting_info setting = {.struct_size = sizeof setting};
    puts("\nSettings (environment variables)");
    for (uint32_t i = 0; tess_runtime_setting(runtime, i, &setting) == TESS_OK; i++) {
        printf("  %-21s %s (%s)\n", setting.name, *setting.value ? setting.value : "unset",
               setting.source);
        printf("  %-21s %s\n", "", setting.meaning);
        const char *remark = remark_on(runtime, &setting);
        if (*remark) printf("  %-21s Remark: %s.\n", "", remark);
    }
}

/* ------------------------------------------------------------------ JSON */

/* cJSON passes bytes through as they are; what is not UTF-8 would make the document invalid. */
static void add_text(cJSON *object, const char *key, const char *text) {
    char copy[1024];
    size_t n = 0;
    for (const unsigned char *c = (const unsigned char *)text; *c && n + 5 < sizeof copy;) {
        int length = *c < 0x80                 ? 1
                     : *c >= 0xc2 && *c < 0xe0 ? 2
                     : *c >= 0xe0 && *c < 0xf0 ? 3
                     : *c >= 0xf0 && *c < 0xf5 ? 4
                                               : 0;
        for (int i = 1; i < length; i++)
            if ((c[i] & 0xc0) != 0x80) length = 0;
        if (length == 0) copy[n++] = '?';
        for (int i = 0; i < length; i++) copy[n++] = (char)c[i];
        c += length ? length : 1;
    }
    copy[n] = 0;
    cJSON_AddStringToObject(object, key, copy);
}

static void json_kernels(tess_runtime *runtime, const char *id, cJSON *object) {
    cJSON *list = cJSON_AddArrayToObject(object, "kernels");
    tess_device *device = open_device(runtime, id);
    if (!device) {
        add_text(object, "error", cli_why());
        return;
    }
    tess_kernel_info kernel;
    for (uint32_t i = 0; kernel_at(device, i, &kernel); i++) {
        cJSON *entry = cJSON_CreateObject();
        add_text(entry, "name", kernel.name);
        static const char *const ops[] = {"fwd", "bwd", "append", "copy_pages", "prepare", "merge"};
        add_text(entry, "op", kernel.op < sizeof ops / sizeof *ops ? ops[kernel.op] : "");
        add_text(entry, "status", tess_status_name(kernel.status));
        add_text(entry, "reason", kernel.reason);
        cJSON_AddBoolToObject(entry, "only_named", kernel.flags & TESS_KERNEL_ONLY_NAMED);
        cJSON_AddNumberToObject(entry, "most_rows", kernel.most_rows);
        cJSON_AddItemToArray(list, entry);
    }
    list = cJSON_AddArrayToObject(object, "rules");
    tess_rule_info rule;
    for (uint32_t i = 0; rule_at(runtime, device, i, &rule); i++) {
        cJSON *entry = cJSON_CreateObject();
        add_text(entry, "table", rule.table);
        cJSON_AddNumberToObject(entry, "line", rule.line);
        cJSON_AddBoolToObject(entry, "built_in", rule.built_in);
        add_text(entry, "basis", basis_name(rule.basis));
        add_text(entry, "rule", rule.text);
        cJSON_AddItemToArray(list, entry);
    }
    tess_device_release(device);
}

static cJSON *json_info(tess_runtime *runtime) {
    char text[TEXT_SIZE];
    cJSON *root = cJSON_CreateObject();
    snprintf(text, sizeof text, "%d.%d.%d", TESS_VERSION_MAJOR, TESS_VERSION_MINOR,
             TESS_VERSION_PATCH);
    add_text(root, "version", text);

    cJSON *list = cJSON_AddArrayToObject(root, "backends");
    tess_backend_info backend;
    for (uint32_t i = 0; backend_at(runtime, i, &backend); i++) {
        cJSON *entry = cJSON_CreateObject();
        add_text(entry, "name", backend.name);
        add_text(entry, "status", tess_status_name(backend.status));
        cJSON_AddNumberToObject(entry, "devices", backend.device_count);
        add_text(entry, "reason", backend.reason);
        cJSON_AddItemToArray(list, entry);
    }

    list = cJSON_AddArrayToObject(root, "devices");
    tess_device_info device;
    for (uint32_t i = 0; device_at(runtime, i, &device); i++) {
        cJSON *entry = cJSON_CreateObject();
        add_text(entry, "id", device.id);
        add_text(entry, "backend", device.backend);
        add_text(entry, "kind", kind_name(device.kind));
        add_text(entry, "name", device.name);
        add_text(entry, "arch", device.arch);
        add_text(entry, "driver", device.driver);
        cJSON_AddNumberToObject(entry, "compute_units", device.compute_units);
        snprintf(text, sizeof text, "%" PRIu64, device.memory_bytes);
        cJSON_AddRawToObject(entry, "memory_bytes", text);
        json_kernels(runtime, device.id, entry);
        cJSON_AddItemToArray(list, entry);
    }

    cJSON_AddNumberToObject(root, "tune_file_rules", count_rules(runtime, NULL));
    list = cJSON_AddArrayToObject(root, "settings");
    tess_setting_info setting = {.struct_size = sizeof setting};
    for (uint32_t i = 0; tess_runtime_setting(runtime, i, &setting) == TESS_OK; i++) {
        cJSON *entry = cJSON_CreateObject();
        add_text(entry, "name", setting.name);
        add_text(entry, "value", setting.value);
        add_text(entry, "source", setting.source);
        add_text(entry, "meaning", setting.meaning);
        add_text(entry, "remark", remark_on(runtime, &setting));
        cJSON_AddItemToArray(list, entry);
    }
    return root;
}

int info_main(int argc, char **argv) {
    cli_option options[] = {{.name = "json"}};
    size_t n_words;
    int status = cli_options(argc, argv, help, options, 1, &n_words);
    if (status != CLI_GO_ON) return status;
    if (n_words)
        return cli_error(CLI_USAGE, argv[0], "'%.60s': this command takes no words", argv[1]);
    tess_runtime *runtime = NULL;
    status = cli_open(argv[0], NULL, &runtime, NULL);
    if (status != CLI_GO_ON) return status;
    if (options[0].given) {
        cJSON *root = json_info(runtime);
        char *text = cJSON_Print(root);
        status = text ? CLI_OK : cli_error(CLI_FAILED, argv[0], "out of memory");
        if (text) puts(text);
        free(text);
        cJSON_Delete(root);
    } else {
        printf("Tessera %d.%d.%d\n\n", TESS_VERSION_MAJOR, TESS_VERSION_MINOR, TESS_VERSION_PATCH);
        print_backends(runtime);
        print_devices(runtime);
        print_tune_file(runtime);
        print_settings(runtime);
        status = CLI_OK;
    }
    tess_runtime_release(runtime);
    return status;
}
