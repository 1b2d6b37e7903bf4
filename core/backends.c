/* SPDX-License-Identifier: Apache-2.0 */
/* The backends of a runtime, what probing them found, and the grammar that selects among them. */
#include "backends.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "registry.h"
#include "runtime.h"
#include "status.h"

/* More devices than any machine has. It stops a backend that never ends its list. */
enum { MOST_DEVICES = 1024 };

/* ------------------------------------------------------------------ list */

static tess_backend_entry *backend_find(tess_runtime *runtime, const char *name, size_t length) {
    for (uint32_t n = 0; n < runtime->n_backends; n++) {
        tess_backend_entry *entry = &runtime->backends[n];
        if (strlen(entry->name) == length && memcmp(entry->name, name, length) == 0) return entry;
    }
    return NULL;
}

/* "a, b, c": the names that are known, cut to `size`. */
static void backend_names(const tess_runtime *runtime, char *text, size_t size) {
    size_t length = 0;
    text[0] = '\0';
    for (uint32_t n = 0; n < runtime->n_backends && length < size; n++)
        length += (size_t)snprintf(text + length, size - length, "%s%s", n != 0 ? ", " : "",
                                   runtime->backends[n].name);
}

/* Reads the tune table that a backend brings along; older backends have none. Messages begin with
 * `label`. */
static tess_status read_table(tess_backend_entry *entry, const tess_backend *backend,
                              const char *label) {
    if (backend->struct_size < offsetof(tess_backend, tune) + sizeof backend->tune ||
        backend->tune == NULL)
        return TESS_OK;
    return tess_tune_parse(entry->runtime, label, backend->name, backend->tune,
                           strlen(backend->tune), &entry->tune);
}

static void refuse(tess_backend_entry *entry, tess_status status, const char *path,
                   const char *why) {
    entry->status = status;
    entry->probed = true;
    snprintf(entry->reason, sizeof entry->reason, "%s: %s", path, why);
    tess_one_line(entry->reason);
    tess_log(entry->runtime, "device", "%s: refused: %s", entry->name, entry->reason);
}

/* Fills the entry for the library at `path`. A library that cannot be used becomes an entry that
 * says why, and the runtime goes on without it. Only lack of memory fails, because it says nothing
 * about the library. */
static tess_status load_library(tess_runtime *runtime, const char *path,
                                tess_backend_entry *entry) {
    const char *file = strrchr(path, '/') + 1;
    const tess_backend *backend;
    char why[sizeof entry->reason - 2]; /* the path and a colon stand before it */
    entry->runtime = runtime;
    snprintf(entry->name, sizeof entry->name, "%s", file[0] != '\0' ? file : path);
    tess_status status = tess_backend_load(path, &backend, why, sizeof why);
    if (status != TESS_OK) {
        refuse(entry, status, path, why);
        return TESS_OK;
    }
    if (backend_find(runtime, backend->name, strlen(backend->name)) != NULL) {
        snprintf(why, sizeof why, "its name '%s' is taken by another backend", backend->name);
        refuse(entry, TESS_ERROR_INVALID, path, why);
        return TESS_OK;
    }
    tess_recovery recovery;
    tess_recover_begin(&recovery);
    status = read_table(entry, backend, "its tune table");
    snprintf(why, sizeof why, "%.255s", status == TESS_OK ? "" : tess_last_error());
    tess_recover_end(&recovery);
    if (status == TESS_ERROR_OUT_OF_MEMORY)
        return tess_fail(status, "tess_runtime_create: %s: %s", path, why);
    if (status != TESS_OK) {
        refuse(entry, TESS_ERROR_INVALID, path, why);
        return TESS_OK;
    }
    entry->backend = backend;
    snprintf(entry->name, sizeof entry->name, "%s", backend->name);
    tess_host_init(entry, runtime->settings.cpu_threads);
    tess_log(runtime, "device", "%s: loaded from %s", entry->name, path);
    return TESS_OK;
}

static tess_status load_libraries(tess_runtime *runtime, const char *function, const char *paths) {
    size_t bytes = strlen(paths) + 1;
    char *copy = tess_mem_alloc(runtime, bytes, 1);
    if (copy == NULL)
        return tess_fail(TESS_ERROR_OUT_OF_MEMORY, "%s: %zu bytes for the backend path", function,
                         bytes);
    memcpy(copy, paths, bytes);
    tess_status status = TESS_OK;
    for (char *path = copy, *next; path != NULL && status == TESS_OK; path = next) {
        next = strchr(path, ':');
        if (next != NULL) *next++ = '\0';
        /* Count the entry after loading, so that it is not found as its own namesake. */
        status = load_library(runtime, path, &runtime->backends[runtime->n_backends]);
        runtime->n_backends++;
    }
    tess_mem_free(runtime, copy, bytes);
    return status;
}

/* Checks the names in the settings, now that every backend is known. */
static tess_status check_names(tess_runtime *runtime, const char *function) {
    const tess_settings *settings = &runtime->settings;
    const char *cursor = tess_setting_value(settings, TESS_SETTING_BACKEND);
    if (cursor[0] == '\0') cursor = NULL;
    while (cursor != NULL) {
        tess_selection item = {0};
        tess_status status = tess_selection_next(
            runtime, function, tess_setting_label(settings, TESS_SETTING_BACKEND), &cursor, &item);
        if (status != TESS_OK || item.entry == NULL) return status;
        item.entry->named = true;
    }
    const char *kernel = tess_setting_value(settings, TESS_SETTING_KERNEL);
    if (kernel[0] == '\0') return TESS_OK;
    size_t length = strcspn(kernel, "/");
    if (backend_find(runtime, kernel, length) == NULL) {
        char names[400];
        backend_names(runtime, names, sizeof names);
        return tess_invalid("%s: %s: '%s' names no backend; known are: %s", function,
                            tess_setting_label(settings, TESS_SETTING_KERNEL), kernel, names);
    }
    return TESS_OK;
}

tess_status tess_backends_list(tess_runtime *runtime) {
    static const char function[] = "tess_runtime_create";
    const char *paths = tess_setting_value(&runtime->settings, TESS_SETTING_BACKEND_PATH);
    char label[128];
    size_t capacity = 0;
    while (tess_registry[capacity].backend != NULL) capacity++;
    size_t built_in = capacity;
    if (paths[0] != '\0') capacity++;
    for (const char *c = paths; *c != '\0'; c++) capacity += *c == ':';

    runtime->backends =
        tess_mem_alloc(runtime, capacity * sizeof *runtime->backends, _Alignof(tess_backend_entry));
    if (runtime->backends == NULL)
        return tess_fail(TESS_ERROR_OUT_OF_MEMORY, "%s: %zu bytes for the list of backends",
                         function, capacity * sizeof *runtime->backends);
    memset(runtime->backends, 0, capacity * sizeof *runtime->backends);
    runtime->backends_bytes = capacity * sizeof *runtime->backends;
    for (size_t n = 0; n < built_in; n++) {
        tess_backend_entry *entry = &runtime->backends[n];
        entry->runtime = runtime;
        entry->backend = tess_registry[n].backend;
        entry->opens_driver = tess_registry[n].opens_driver;
        snprintf(entry->name, sizeof entry->name, "%s", entry->backend->name);
        tess_host_init(entry, runtime->settings.cpu_threads);
        runtime->n_backends++;
        snprintf(label, sizeof label, "%s: the tune table of %s", function, entry->name);
        TESS_RETURN_IF_ERROR(read_table(entry, entry->backend, label));
    }
    if (paths[0] != '\0') { TESS_RETURN_IF_ERROR(load_libraries(runtime, function, paths)); }
    return check_names(runtime, function);
}

void tess_backends_free(tess_runtime *runtime) {
    for (uint32_t n = 0; n < runtime->n_backends; n++) {
        tess_backend_entry *entry = &runtime->backends[n];
        tess_mem_free(runtime, entry->devices, entry->capacity * sizeof *entry->devices);
        tess_tune_free(runtime, &entry->tune);
    }
    tess_mem_free(runtime, runtime->backends, runtime->backends_bytes);
}

/* ------------------------------------------------------------------ probing */

static bool devices_grow(tess_backend_entry *entry) {
    if (entry->n_devices < entry->capacity) return true;
    uint32_t capacity = entry->capacity != 0 ? 2 * entry->capacity : 2;
    tess_device_info *devices =
        tess_mem_alloc(entry->runtime, capacity * sizeof *devices, _Alignof(tess_device_info));
    if (devices == NULL) return false;
    if (entry->n_devices != 0) memcpy(devices, entry->devices, entry->n_devices * sizeof *devices);
    tess_mem_free(entry->runtime, entry->devices, entry->capacity * sizeof *devices);
    entry->devices = devices;
    entry->capacity = capacity;
    return true;
}

/* Fills what the core decides, and makes sure that strings end. */
static void device_complete(const tess_backend_entry *entry, uint32_t index,
                            tess_device_info *info) {
    info->struct_size = sizeof *info;
    info->reserved = 0;
    snprintf(info->id, sizeof info->id, "%s:%u", entry->name, index % MOST_DEVICES);
    snprintf(info->backend, sizeof info->backend, "%s", entry->name);
    info->name[sizeof info->name - 1] = info->arch[sizeof info->arch - 1] =
        info->driver[sizeof info->driver - 1] = '\0';
    tess_one_line(info->name);
    tess_one_line(info->arch);
    tess_one_line(info->driver);
}

tess_status tess_backend_probe(tess_backend_entry *entry) {
    if (entry->probed) return TESS_OK;
    /* A driver loader obeys the environment, which cannot be trusted here. */
    if (entry->runtime->elevated && entry->opens_driver && !entry->named) {
        entry->status = TESS_ERROR_UNAVAILABLE;
        snprintf(entry->reason, sizeof entry->reason,
                 "its driver is not opened, because this process has more rights than its user and "
                 "no descriptor names the backend");
        return TESS_OK;
    }
    tess_recovery recovery;
    tess_recover_begin(&recovery);
    tess_status status = TESS_OK;
    for (entry->n_devices = 0; entry->n_devices < MOST_DEVICES; entry->n_devices++) {
        if (!devices_grow(entry)) {
            status = TESS_ERROR_OUT_OF_MEMORY;
            break;
        }
        tess_device_info *info = &entry->devices[entry->n_devices];
        memset(info, 0, sizeof *info);
        info->struct_size = sizeof *info;
        status = entry->backend->list(&entry->host, entry->n_devices, info);
        if (status != TESS_OK) break;
        device_complete(entry, entry->n_devices, info);
    }
    snprintf(entry->reason, sizeof entry->reason, "%s",
             tess_call_failed() ? tess_last_error() : tess_status_text(status));
    tess_recover_end(&recovery);
    /* Lack of memory says nothing about the machine, so nothing is kept and a later call probes
     * again. */
    if (status == TESS_ERROR_OUT_OF_MEMORY) {
        entry->n_devices = 0;
        return tess_fail_in(status, entry->name, entry->reason);
    }
    if (entry->n_devices > 0) {
        if (status != TESS_OK && status != TESS_ERROR_UNAVAILABLE)
            tess_log(entry->runtime, "device", "%s: listing stopped after %u devices: %s",
                     entry->name, entry->n_devices, entry->reason);
        status = TESS_OK;
        entry->reason[0] = '\0';
    } else
        tess_log(entry->runtime, "device", "%s: %s: %s", entry->name, tess_status_text(status),
                 entry->reason);
    for (uint32_t n = 0; n < entry->n_devices; n++)
        tess_log(entry->runtime, "device", "%s: found %s (%s, %s)", entry->devices[n].id,
                 entry->devices[n].name, entry->devices[n].arch, entry->devices[n].driver);
    entry->status = status;
    entry->probed = true;
    return TESS_OK;
}

tess_status tess_backends_probe(tess_runtime *runtime, tess_backend_entry *only) {
    tess_status status = TESS_OK;
    pthread_mutex_lock(&runtime->probing);
    if (only != NULL) only->named = true;
    for (uint32_t n = 0; n < runtime->n_backends && status == TESS_OK; n++)
        if (only == NULL || only == &runtime->backends[n])
            status = tess_backend_probe(&runtime->backends[n]);
    pthread_mutex_unlock(&runtime->probing);
    return status;
}

/* ------------------------------------------------------------------ order of preference */

enum { DEVICE_RANKS = 3 }; /* 0 is best */

static uint32_t device_rank(uint32_t kind) {
    return kind == TESS_DEVICE_GPU ? 0 : kind == TESS_DEVICE_CPU ? 1 : 2;
}

static bool find_locked(tess_runtime *runtime, const tess_backend_entry *only, uint32_t index,
                        tess_device_place *found) {
    for (uint32_t rank = 0; rank < DEVICE_RANKS; rank++)
        for (uint32_t n = 0; n < runtime->n_backends; n++) {
            tess_backend_entry *entry = &runtime->backends[n];
            if (only != NULL && only != entry) continue;
            for (uint32_t d = 0; d < entry->n_devices; d++)
                if (device_rank(entry->devices[d].kind) == rank && index-- == 0) {
                    *found = (tess_device_place){entry, d};
                    return true;
                }
        }
    return false;
}

bool tess_device_find(tess_runtime *runtime, const tess_backend_entry *only, uint32_t index,
                      tess_device_place *found) {
    pthread_mutex_lock(&runtime->probing);
    bool there = find_locked(runtime, only, index, found);
    pthread_mutex_unlock(&runtime->probing);
    return there;
}

/* ------------------------------------------------------------------ selection */

static tess_status selection_fail(const char *function, const char *label,
                                  const tess_selection *item, const char *why) {
    return tess_invalid("%s: %s: '%.*s' %s", function, label,
                        (int)(item->length < 80 ? item->length : 80), item->text, why);
}

tess_status tess_selection_next(tess_runtime *runtime, const char *function, const char *label,
                                const char **cursor, tess_selection *item) {
    item->text = *cursor;
    item->length = strcspn(item->text, ",");
    item->index = -1;
    *cursor = item->text[item->length] == ',' ? item->text + item->length + 1 : NULL;
    if (item->length == 0) return tess_invalid("%s: %s: has an empty item", function, label);
    const char *colon = memchr(item->text, ':', item->length);
    size_t name_length = colon != NULL ? (size_t)(colon - item->text) : item->length;
    if (colon != NULL) {
        size_t digits = item->length - name_length - 1;
        if (digits == 0 || digits > 9 || strspn(colon + 1, "0123456789") != digits)
            return selection_fail(function, label, item, "is not of the form name or name:index");
        item->index = strtol(colon + 1, NULL, 10);
    }
    item->entry = backend_find(runtime, item->text, name_length);
    if (item->entry == NULL) {
        char names[400], why[480];
        backend_names(runtime, names, sizeof names);
        snprintf(why, sizeof why, "names no backend; known are: %s", names);
        return selection_fail(function, label, item, why);
    }
    return TESS_OK;
}
