/* SPDX-License-Identifier: Apache-2.0 */
/* The runtime: its life, host memory, the log, and detection of fork(). */
#include "runtime.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "status.h"

/* ------------------------------------------------------------------ what the process shares */

/* Guards the list of runtimes that log errors, and the registration of the fork handlers. No
 * callback runs while it is held. */
static pthread_mutex_t process = PTHREAD_MUTEX_INITIALIZER;
static tess_runtime *error_loggers;
static atomic_uint n_error_loggers; /* so that a failure costs one load when nobody logs errors */
static bool fork_handlers;
static atomic_uint generation;
static _Atomic uint64_t last_id;

/* The lock is held over fork(), so that the child finds the list whole and may take the lock to
 * release a runtime. */
static void fork_prepare(void) { pthread_mutex_lock(&process); }
static void fork_parent(void) { pthread_mutex_unlock(&process); }
static void fork_child(void) {
    atomic_fetch_add_explicit(&generation, 1, memory_order_relaxed);
    pthread_mutex_unlock(&process);
}

static bool watch_forks(void) {
    pthread_mutex_lock(&process);
    bool watched = fork_handlers;
    if (!watched)
        watched = fork_handlers = pthread_atfork(fork_prepare, fork_parent, fork_child) == 0;
    pthread_mutex_unlock(&process);
    return watched;
}

bool tess_runtime_forked(const tess_runtime *runtime) {
    return runtime->generation != atomic_load_explicit(&generation, memory_order_relaxed);
}

/* ------------------------------------------------------------------ host memory */

static void *default_alloc(void *user, size_t size, size_t alignment) {
    (void)user;
    void *pointer = NULL;
    if (alignment <= _Alignof(max_align_t)) return malloc(size);
    return posix_memalign(&pointer, alignment, size) == 0 ? pointer : NULL;
}

static void default_free(void *user, void *pointer, size_t size) {
    (void)user;
    (void)size;
    free(pointer);
}

static void *memory_take(const tess_allocator *allocator, size_t size, size_t alignment) {
    if (size > PTRDIFF_MAX) return NULL;
    if (alignment < sizeof(void *)) alignment = sizeof(void *);
    return allocator->alloc(allocator->user, size != 0 ? size : 1, alignment);
}

void *tess_mem_alloc(tess_runtime *runtime, size_t size, size_t alignment) {
    return memory_take(&runtime->allocator, size, alignment);
}

void tess_mem_free(tess_runtime *runtime, void *pointer, size_t size) {
    if (pointer != NULL)
        runtime->allocator.free(runtime->allocator.user, pointer, size != 0 ? size : 1);
}

bool tess_mem_is_default(const tess_runtime *runtime) {
    return runtime->allocator.alloc == default_alloc;
}

/* ------------------------------------------------------------------ log */

bool tess_log_wanted(const tess_runtime *runtime, const char *topic) {
    return runtime->settings.topics != 0 &&
           (runtime->settings.topics & tess_topic_bit(topic, strlen(topic))) != 0;
}

static void default_log(void *user, const char *line) {
    (void)user;
    /* Write the whole line in one call, so that lines of several threads do not mix. */
    char text[TESS_ERROR_BYTES + 64];
    snprintf(text, sizeof text, "tessera: %s\n", line);
    fputs(text, stderr);
}

static void log_line(const tess_runtime *runtime, const char *topic, const char *message) {
    char line[TESS_ERROR_BYTES + 32];
    snprintf(line, sizeof line, "%s: %s", topic, message);
    runtime->log(runtime->log_user, line);
}

void tess_log(const tess_runtime *runtime, const char *topic, const char *format, ...) {
    if (!tess_log_wanted(runtime, topic)) return;
    char message[TESS_ERROR_BYTES];
    va_list arguments;
    va_start(arguments, format);
    tess_format(message, sizeof message, format, arguments);
    va_end(arguments);
    log_line(runtime, topic, message);
}

/* Hands a message to the log of a runtime that asks for "errors", if it still lives. */
static void log_failure(uint64_t runtime_id, const char *message) {
    if (atomic_load_explicit(&n_error_loggers, memory_order_relaxed) == 0 || runtime_id == 0)
        return;
    /* The thread remembers only the runtime's number, because the runtime may be gone or another
     * thread may be releasing it right now. */
    pthread_mutex_lock(&process);
    tess_runtime *runtime = error_loggers;
    while (runtime != NULL && runtime->id != runtime_id) runtime = runtime->next;
    unsigned refs = runtime != NULL ? atomic_load(&runtime->refs) : 0;
    while (refs != 0 && !atomic_compare_exchange_weak(&runtime->refs, &refs, refs + 1)) {}
    pthread_mutex_unlock(&process);
    if (refs == 0) return;
    log_line(runtime, "errors", message);
    tess_runtime_release(runtime);
}

static void error_logger_add(tess_runtime *runtime) {
    pthread_mutex_lock(&process);
    runtime->next = error_loggers;
    error_loggers = runtime;
    pthread_mutex_unlock(&process);
    atomic_fetch_add_explicit(&n_error_loggers, 1, memory_order_relaxed);
    tess_failures_observe(log_failure);
}

static void error_logger_remove(tess_runtime *runtime) {
    pthread_mutex_lock(&process);
    tess_runtime **link = &error_loggers;
    while (*link != NULL && *link != runtime) link = &(*link)->next;
    if (*link != NULL) {
        *link = runtime->next;
        atomic_fetch_sub_explicit(&n_error_loggers, 1, memory_order_relaxed);
    }
    pthread_mutex_unlock(&process);
}

/* ------------------------------------------------------------------ life */

static void runtime_destroy(tess_runtime *runtime) {
    error_logger_remove(runtime);
    tess_backends_free(runtime);
    tess_tune_free(runtime, &runtime->tune);
    tess_settings_free(runtime, &runtime->settings);
    /* After a fork() the mutex may be locked by a thread that does not exist here, and destroying a
     * locked mutex is undefined. */
    if (!tess_runtime_forked(runtime)) pthread_mutex_destroy(&runtime->probing);
    tess_spare_release(&runtime->spares, runtime, tess_runtime_forked(runtime));
    tess_allocator allocator = runtime->allocator;
    allocator.free(allocator.user, runtime, sizeof *runtime);
}

/* A file that was named but cannot be used is an error: going on silently with other kernels would
 * look like a slow machine. */
static tess_status read_tune_file(tess_runtime *runtime) {
    const char *path = tess_setting_value(&runtime->settings, TESS_SETTING_TUNE_FILE);
    if (path[0] == '\0') return TESS_OK;
    return tess_tune_read(runtime, tess_setting_label(&runtime->settings, TESS_SETTING_TUNE_FILE),
                          path, &runtime->tune);
}

/* Reads what a runtime is made from: settings, the tune file, the list of backends. */
static tess_status fill(tess_runtime *runtime, const tess_runtime_desc *desc) {
    TESS_RETURN_IF_ERROR(tess_settings_read(runtime, desc, &runtime->settings));
    TESS_RETURN_IF_ERROR(read_tune_file(runtime));
    return tess_backends_list(runtime);
}

tess_status tess_runtime_create(const tess_runtime_desc *desc, tess_runtime **out) {
    static const char function[] = "tess_runtime_create";
    tess_runtime_desc own = {.struct_size = sizeof own};
    tess_call_begin(function, 0);
    if (out == NULL) return tess_invalid("%s: runtime: must not be NULL", function);
    if (desc != NULL) {
        TESS_RETURN_IF_ERROR(tess_desc_read(function, "desc", desc, &own, TESS_RUNTIME_DESC));
    }
    if (own.flags != 0) return tess_invalid("%s: flags: must be 0, not 0x%x", function, own.flags);
    if (own.reserved != 0)
        return tess_invalid("%s: reserved: must be 0, not %u", function, own.reserved);
    if ((own.allocator.alloc == NULL) != (own.allocator.free == NULL))
        return tess_invalid("%s: allocator: give both functions or neither; %s is missing",
                            function, own.allocator.alloc == NULL ? "alloc" : "free");
    if (own.allocator.alloc == NULL)
        own.allocator = (tess_allocator){default_alloc, default_free, NULL};
    if (!watch_forks()) return tess_fail(TESS_ERROR_OUT_OF_MEMORY, "%s: pthread_atfork", function);

    tess_runtime *runtime = memory_take(&own.allocator, sizeof *runtime, _Alignof(tess_runtime));
    if (runtime == NULL)
        return tess_fail(TESS_ERROR_OUT_OF_MEMORY, "%s: %zu bytes for the runtime", function,
                         sizeof *runtime);
    memset(runtime, 0, sizeof *runtime);
    /* unlike pthread_mutex_init() this cannot fail */
    runtime->probing = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    runtime->spares = (tess_spares){.lock = PTHREAD_MUTEX_INITIALIZER};
    atomic_init(&runtime->refs, 1);
    runtime->generation = atomic_load_explicit(&generation, memory_order_relaxed);
    runtime->id = atomic_fetch_add_explicit(&last_id, 1, memory_order_relaxed) + 1;
    runtime->allocator = own.allocator;
    runtime->log = own.log != NULL ? own.log : default_log;
    runtime->log_user = own.log_user;
    runtime->elevated = tess_process_elevated();

    const tess_status status = fill(runtime, &own);
    if (status != TESS_OK) {
        runtime_destroy(runtime);
        return status;
    }
    if (tess_log_wanted(runtime, "errors")) error_logger_add(runtime);
    *out = runtime;
    return TESS_OK;
}

void tess_runtime_retain(tess_runtime *runtime) {
    atomic_fetch_add_explicit(&runtime->refs, 1, memory_order_relaxed);
}

void tess_runtime_release(tess_runtime *runtime) {
    if (runtime != NULL && atomic_fetch_sub_explicit(&runtime->refs, 1, memory_order_acq_rel) == 1)
        runtime_destroy(runtime);
}

tess_status tess_handle_missing(const char *function, const char *name) {
    tess_call_begin(function, 0);
    return tess_invalid("%s: %s: must not be NULL", function, name);
}

tess_status tess_runtime_check(const tess_runtime *runtime, const char *function) {
    if (runtime == NULL) return tess_handle_missing(function, "runtime");
    tess_call_begin(function, runtime->id);
    if (tess_runtime_forked(runtime))
        return tess_invalid(
            "%s: the handle was made before fork() and cannot be used in the child; "
            "make a new runtime there",
            function);
    return TESS_OK;
}

/* ------------------------------------------------------------------ queries */

const char *tess_setting(const tess_runtime *runtime, const char *name) {
    return tess_setting_named(&runtime->settings, name);
}

tess_status tess_runtime_setting(const tess_runtime *runtime, uint32_t index,
                                 tess_setting_info *info) {
    static const char function[] = "tess_runtime_setting";
    TESS_RETURN_IF_ERROR(tess_runtime_check(runtime, function));
    if (index >= TESS_SETTING_COUNT) return tess_past_end(function, index, "setting");
    const tess_setting_info full =
        tess_setting_describe(&runtime->settings, (tess_setting_id)index);
    return tess_info_write(function, info, &full, TESS_SETTING_INFO);
}

tess_status tess_runtime_backend(tess_runtime *runtime, uint32_t index, tess_backend_info *info) {
    static const char function[] = "tess_runtime_backend";
    TESS_RETURN_IF_ERROR(tess_runtime_check(runtime, function));
    if (index >= runtime->n_backends) return tess_past_end(function, index, "backend");
    tess_backend_entry *entry = &runtime->backends[index];
    pthread_mutex_lock(&runtime->probing);
    const tess_status status = tess_backend_probe(entry);
    tess_backend_info full = {
        .struct_size = sizeof full, .device_count = entry->n_devices, .status = entry->status};
    memcpy(full.name, entry->name, sizeof full.name);
    memcpy(full.reason, entry->reason, sizeof full.reason);
    pthread_mutex_unlock(&runtime->probing);
    TESS_RETURN_IF_ERROR(status);
    return tess_info_write(function, info, &full, TESS_BACKEND_INFO);
}

tess_status tess_runtime_device(tess_runtime *runtime, uint32_t index, tess_device_info *info) {
    static const char function[] = "tess_runtime_device";
    TESS_RETURN_IF_ERROR(tess_runtime_check(runtime, function));
    TESS_RETURN_IF_ERROR(tess_backends_probe(runtime, NULL));
    tess_device_place found;
    if (!tess_device_find(runtime, NULL, index, &found))
        return tess_past_end(function, index, "device");
    return tess_info_write(function, info, &found.entry->devices[found.index], TESS_DEVICE_INFO);
}

tess_status tess_runtime_rule(const tess_runtime *runtime, const tess_device *device,
                              uint32_t index, tess_rule_info *info) {
    static const char function[] = "tess_runtime_rule";
    TESS_RETURN_IF_ERROR(tess_runtime_check(runtime, function));
    if (device != NULL && device->runtime != runtime)
        return tess_invalid("%s: device: belongs to another runtime", function);
    tess_rule_info full = {.struct_size = sizeof full,
                           .table = tess_setting_value(&runtime->settings, TESS_SETTING_TUNE_FILE)};
    uint32_t left = index;
    bool found = tess_tune_rule_at(&runtime->tune, device, &left, &full);
    for (uint32_t n = 0; n < runtime->n_backends && !found; n++) {
        full.built_in = 1;
        full.table = runtime->backends[n].name;
        found = tess_tune_rule_at(&runtime->backends[n].tune, device, &left, &full);
    }
    return found ? tess_info_write(function, info, &full, TESS_RULE_INFO)
                 : tess_past_end(function, index, "rule");
}
