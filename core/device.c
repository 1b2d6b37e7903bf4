/* SPDX-License-Identifier: Apache-2.0 */
/* Devices: opening in order of preference, wrapping, and what a device says of itself. */
#include "backends.h"

#include <stdio.h>
#include <string.h>

#include "runtime.h"
#include "status.h"

/* ------------------------------------------------------------------ opening */

static const char function_open[] = "tess_device_open";

/* Text that is appended to until it is full. */
typedef struct text_list {
    size_t length;
    char text[TESS_ERROR_BYTES];
} text_list;

static void append(text_list *list, const char *format, ...) TESS_PRINTF(2, 3);
static void append(text_list *list, const char *format, ...) {
    size_t room = sizeof list->text - list->length;
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(list->text + list->length, room, format, arguments);
    va_end(arguments);
    if (length > 0) list->length += (size_t)length < room ? (size_t)length : room - 1;
}

static const char *separator(const text_list *list) { return list->length != 0 ? "; " : ""; }

/* Plans divide and align by these values, so check those of backends from outside the tree. */
static tess_status caps_check(const tess_backend_entry *entry, const tess_caps *caps) {
    const char *field = NULL;
    if (caps->buffer_kind < TESS_BUFFER_HOST || caps->buffer_kind > TESS_BUFFER_OBJECT)
        field = "buffer_kind";
    if (caps->workspace_align == 0 || (caps->workspace_align & (caps->workspace_align - 1)) != 0)
        field = "workspace_align";
    if (caps->parallel_jobs == 0) field = "parallel_jobs";
    if (field == NULL) return TESS_OK;
    char text[64];
    snprintf(text, sizeof text, "query: %s has no legal value", field);
    return tess_fail_in(TESS_ERROR_NATIVE, entry->name, text);
}

static tess_status open_place(tess_runtime *runtime, tess_device_place at, const void *native,
                              tess_device **out) {
    const tess_backend *backend = at.entry->backend;
    tess_device *device = tess_mem_alloc(runtime, sizeof *device, _Alignof(tess_device));
    if (device == NULL)
        return tess_fail_in(TESS_ERROR_OUT_OF_MEMORY, at.entry->devices[at.index].id,
                            "no host memory for the device");
    memset(device, 0, sizeof *device);
    atomic_init(&device->refs, 1);
    atomic_init(&device->lost, false);
    pthread_mutex_init(&device->preparing, NULL);
    pthread_mutex_init(&device->pool.lock, NULL);
    device->runtime = runtime;
    device->backend = backend;
    device->info = at.entry->devices[at.index];
    tess_status status = backend->open(&at.entry->host, at.index, native, &device->native);
    if (status == TESS_OK) {
        device->caps.struct_size = sizeof device->caps;
        status = backend->query(device->native, &device->caps);
        if (status == TESS_OK) status = caps_check(at.entry, &device->caps);
        if (status != TESS_OK) backend->close(device->native);
    }
    if (status != TESS_OK) {
        pthread_mutex_destroy(&device->pool.lock);
        pthread_mutex_destroy(&device->preparing);
        tess_mem_free(runtime, device, sizeof *device);
        if (!tess_call_failed())
            tess_fail_in(status, at.entry->devices[at.index].id, tess_status_text(status));
        return status;
    }
    tess_runtime_retain(runtime);
    *out = device;
    return TESS_OK;
}

/* Opens one device of several candidates. A failure is noted in `tried` and the search goes on,
 * except for lack of memory, which says nothing about which device works. */
static tess_status try_place(tess_runtime *runtime, tess_device_place at, text_list *tried,
                             tess_device **out) {
    const char *id = at.entry->devices[at.index].id;
    tess_recovery recovery;
    char why[TESS_ERROR_BYTES];
    tess_recover_begin(&recovery);
    tess_status status = open_place(runtime, at, NULL, out);
    snprintf(why, sizeof why, "%s", tess_last_error());
    tess_recover_end(&recovery);
    if (status == TESS_OK) return status;
    if (status == TESS_ERROR_OUT_OF_MEMORY)
        return tess_fail(status, "%s: %s: %s", function_open, id, why);
    append(tried, "%s%s: %s", separator(tried), id, why);
    tess_log(runtime, "device", "%s skipped: %s", id, why);
    return TESS_ERROR_UNAVAILABLE;
}

/* Tries the devices of one backend, or of all with NULL, in order of preference. */
static tess_status try_all(tess_runtime *runtime, tess_backend_entry *only, text_list *tried,
                           tess_device **out) {
    TESS_RETURN_IF_ERROR(tess_backends_probe(runtime, only));
    pthread_mutex_lock(&runtime->probing);
    for (uint32_t n = 0; n < runtime->n_backends; n++) {
        const tess_backend_entry *entry = &runtime->backends[n];
        if ((only != NULL && only != entry) || entry->status == TESS_OK) continue;
        append(tried, "%s%s: %s", separator(tried), entry->name, entry->reason);
        tess_log(runtime, "device", "%s skipped: %s", entry->name, entry->reason);
    }
    pthread_mutex_unlock(&runtime->probing);
    tess_device_place at;
    tess_status status = TESS_ERROR_UNAVAILABLE;
    for (uint32_t n = 0;
         status == TESS_ERROR_UNAVAILABLE && tess_device_find(runtime, only, n, &at); n++)
        status = try_place(runtime, at, tried, out);
    return status;
}

static tess_status try_selection(tess_runtime *runtime, const tess_selection *item,
                                 text_list *tried, tess_device **out) {
    if (item->index < 0) return try_all(runtime, item->entry, tried, out);
    TESS_RETURN_IF_ERROR(tess_backends_probe(runtime, item->entry));
    if (item->index < item->entry->n_devices)
        return try_place(runtime, (tess_device_place){item->entry, (uint32_t)item->index}, tried,
                         out);
    char why[600];
    if (item->entry->status != TESS_OK)
        snprintf(why, sizeof why, "%s", item->entry->reason);
    else
        snprintf(why, sizeof why, "%s has only %u device%s", item->entry->name,
                 item->entry->n_devices, item->entry->n_devices == 1 ? "" : "s");
    append(tried, "%s%.*s: %s", separator(tried), (int)item->length, item->text, why);
    tess_log(runtime, "device", "%.*s skipped: %s", (int)item->length, item->text, why);
    return TESS_ERROR_UNAVAILABLE;
}

/* The final error: what was tried and why it failed, and what there is instead. */
static tess_status nothing_works(tess_runtime *runtime, const char *label, const text_list *tried) {
    text_list exists = {0};
    tess_recovery recovery;
    tess_recover_begin(&recovery);
    tess_backends_probe(runtime, NULL);
    tess_recover_end(&recovery);
    tess_device_place at;
    for (uint32_t n = 0; tess_device_find(runtime, NULL, n, &at); n++)
        append(&exists, "%s%s", exists.length != 0 ? ", " : "", at.entry->devices[at.index].id);
    return tess_fail(TESS_ERROR_UNAVAILABLE,
                     "%s: %s: no device can be opened; devices here: %.200s; tried: %s",
                     function_open, label, exists.length != 0 ? exists.text : "none", tried->text);
}

/* Wraps a context of the application. It belongs to the device that `id` names, or, if that names a
 * backend alone, to the first device that takes it. */
static tess_status wrap(tess_runtime *runtime, const char *id, const void *native,
                        tess_device **out) {
    if (id == NULL)
        return tess_invalid("%s: id: must name the backend that `native` belongs to",
                            function_open);
    const char *cursor = id;
    tess_selection item;
    TESS_RETURN_IF_ERROR(tess_selection_next(runtime, function_open, "id", &cursor, &item));
    if (cursor != NULL)
        return tess_invalid("%s: id: '%.80s' must name one backend when `native` is given",
                            function_open, id);
    TESS_RETURN_IF_ERROR(tess_backends_probe(runtime, item.entry));
    uint32_t index = item.index < 0 ? 0 : (uint32_t)item.index,
             last = item.index < 0 ? item.entry->n_devices - 1 : index;
    if (item.entry->status != TESS_OK)
        return tess_fail(TESS_ERROR_UNAVAILABLE, "%s: id: %s: %s", function_open, item.entry->name,
                         item.entry->reason);
    if (index >= item.entry->n_devices)
        return tess_fail(TESS_ERROR_UNAVAILABLE, "%s: id: %s has only %u devices", function_open,
                         item.entry->name, item.entry->n_devices);
    tess_status status;
    do status = open_place(runtime, (tess_device_place){item.entry, index}, native, out);
    while (status == TESS_ERROR_UNAVAILABLE && index++ < last);
    return status;
}

/* Opens the device that `id` prefers, or without an id the setting, or else the best that works. */
static tess_status open_preferred(tess_runtime *runtime, const char *id, const char **why,
                                  tess_device **out) {
    const tess_settings *settings = &runtime->settings;
    const char *label = id != NULL ? "id" : tess_setting_label(settings, TESS_SETTING_BACKEND),
               *text = id != NULL ? id : tess_setting_value(settings, TESS_SETTING_BACKEND);
    text_list tried = {0};
    tess_selection item;
    tess_status status = TESS_ERROR_UNAVAILABLE;
    if (text[0] == '\0') {
        *why = "it is the best that works";
        status = try_all(runtime, NULL, &tried, out);
        return status == TESS_ERROR_UNAVAILABLE ? nothing_works(runtime, "id", &tried) : status;
    }
    *why = "it was named";
    /* Check every item before trying the first: a misspelt name is an error even behind one that
     * works. */
    for (const char *cursor = text; cursor != NULL;)
        TESS_RETURN_IF_ERROR(tess_selection_next(runtime, function_open, label, &cursor, &item));
    for (const char *cursor = text; cursor != NULL && status == TESS_ERROR_UNAVAILABLE;) {
        TESS_RETURN_IF_ERROR(tess_selection_next(runtime, function_open, label, &cursor, &item));
        status = try_selection(runtime, &item, &tried, out);
    }
    return status == TESS_ERROR_UNAVAILABLE ? nothing_works(runtime, label, &tried) : status;
}

tess_status tess_device_open(tess_runtime *runtime, const tess_device_desc *desc,
                             tess_device **out) {
    tess_device_desc own = {.struct_size = sizeof own};
    TESS_RETURN_IF_ERROR(tess_runtime_check(runtime, function_open));
    if (out == NULL) return tess_invalid("%s: device: must not be NULL", function_open);
    if (desc != NULL)
        TESS_RETURN_IF_ERROR(tess_desc_read(function_open, "desc", desc, &own, TESS_DEVICE_DESC));
    if (own.flags != 0)
        return tess_invalid("%s: flags: must be 0, not 0x%x", function_open, own.flags);
    if (own.id != NULL && own.id[0] == '\0')
        return tess_invalid(
            "%s: id: must not be empty; NULL takes the setting, or else the best device",
            function_open);
    tess_device *device = NULL;
    const char *why = "it was named";
    if (own.native != NULL)
        TESS_RETURN_IF_ERROR(wrap(runtime, own.id, own.native, &device));
    else
        TESS_RETURN_IF_ERROR(open_preferred(runtime, own.id, &why, &device));
    tess_log(runtime, "device", "%s taken: %s", device->info.id, why);
    *out = device;
    return TESS_OK;
}

/* ------------------------------------------------------------------ life and faults */

void tess_device_retain(tess_device *device) {
    atomic_fetch_add_explicit(&device->refs, 1, memory_order_relaxed);
}

static void release_kernel(tess_kernel *kernel) {
    if (kernel->release) kernel->release(kernel);
}

void tess_device_release(tess_device *device) {
    if (device == NULL || atomic_fetch_sub_explicit(&device->refs, 1, memory_order_acq_rel) != 1)
        return;
    tess_runtime *runtime = device->runtime;
    /* Threads and driver state do not survive a fork, so the child frees only the core's own
     * memory. */
    if (!tess_runtime_forked(runtime)) {
        for (uint32_t n = 0; n <= TESS_BF16; n++) {
            release_kernel(&device->copy_pages[n]);
            release_kernel(&device->merge[n]);
        }
        tess_table_pool_clear(device);
        device->backend->close(device->native);
        pthread_mutex_destroy(&device->pool.lock);
        pthread_mutex_destroy(&device->preparing);
    }
    tess_mem_free(runtime, device, sizeof *device);
    tess_runtime_release(runtime);
}

tess_status tess_device_handle(const tess_device *device, const char *function) {
    return device == NULL ? tess_handle_missing(function, "device")
                          : tess_runtime_check(device->runtime, function);
}

tess_status tess_device_check(const tess_device *device, const char *function) {
    tess_status status = tess_device_handle(device, function);
    if (status == TESS_OK && atomic_load_explicit(&device->lost, memory_order_relaxed))
        return tess_fail(TESS_ERROR_DEVICE_LOST,
                         "%s: device: %s was lost in an earlier call; open a new one", function,
                         device->info.id);
    return status;
}

tess_status tess_device_result(tess_device *device, tess_status status) {
    if (status == TESS_OK) return status;
    if (status == TESS_ERROR_DEVICE_LOST &&
        !atomic_exchange_explicit(&device->lost, true, memory_order_relaxed))
        tess_log(device->runtime, "device", "%s: lost", device->info.id);
    /* A backend that gave no message must not leave an older one as the explanation. */
    if (!tess_call_failed()) tess_fail_in(status, device->info.id, tess_status_text(status));
    return status;
}

/* ------------------------------------------------------------------ queries */

tess_status tess_device_query(const tess_device *device, tess_device_info *info) {
    static const char function[] = "tess_device_query";
    TESS_RETURN_IF_ERROR(tess_device_check(device, function));
    return tess_info_write(function, info, &device->info, TESS_DEVICE_INFO);
}

tess_status tess_device_kernel(const tess_device *device, uint32_t index, tess_kernel_info *info) {
    static const char function[] = "tess_device_kernel";
    TESS_RETURN_IF_ERROR(tess_device_check(device, function));
    tess_kernel_info full = {.struct_size = sizeof full};
    tess_log_errors(false); /* INVALID means the end of the enumeration */
    const tess_status status = device->backend->kernel(device->native, index, NULL, &full, NULL);
    if (status == TESS_ERROR_INVALID)
        tess_fail(status, "%s: %s: index: %u is past the last kernel", function,
                  device->backend->name, (unsigned)index);
    tess_log_errors(true);
    if (status == TESS_ERROR_INVALID) return status;
    if (status != TESS_OK && tess_call_failed()) tess_fail(status, "%s", tess_last_error());
    /* Devices are shared between threads, and their state behind `lost` is atomic, so a query may
     * note a loss. */
    if (status != TESS_OK) return tess_device_result((tess_device *)device, status);
    char name[sizeof full.name];
    memcpy(name, full.name, sizeof name);
    name[sizeof name - 1] = full.reason[sizeof full.reason - 1] = '\0';
    snprintf(full.name, sizeof full.name, "%s/%.31s", device->backend->name, name);
    return tess_info_write(function, info, &full, TESS_KERNEL_INFO);
}
