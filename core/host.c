/* SPDX-License-Identifier: Apache-2.0 */
/* The services that the core offers to backends. */
#include "backends.h"

#include <stddef.h>

#include "status.h"

static const tess_backend_entry *entry_of(const tess_host *host) {
    return (const tess_backend_entry *)(const void *)((const char *)host -
                                                      offsetof(tess_backend_entry, host));
}

static void *host_alloc(const tess_host *host, size_t size, size_t alignment) {
    return tess_mem_alloc(entry_of(host)->runtime, size, alignment);
}
static void host_free(const tess_host *host, void *pointer, size_t size) {
    tess_mem_free(entry_of(host)->runtime, pointer, size);
}

static tess_status host_fail(const tess_host *host, tess_status status, const char *format, ...) {
    char message[TESS_ERROR_BYTES];
    va_list arguments;
    va_start(arguments, format);
    tess_format(message, sizeof message, format, arguments);
    va_end(arguments);
    return tess_fail_in(status, entry_of(host)->name, message);
}

static void host_log(const tess_host *host, const char *topic, const char *format, ...) {
    const tess_backend_entry *entry = entry_of(host);
    if (!tess_log_wanted(entry->runtime, topic)) return;
    char message[TESS_ERROR_BYTES];
    va_list arguments;
    va_start(arguments, format);
    tess_format(message, sizeof message, format, arguments);
    va_end(arguments);
    tess_log(entry->runtime, topic, "%s: %s", entry->name, message);
}

static const char *host_setting(const tess_host *host, const char *name) {
    return tess_setting(entry_of(host)->runtime, name);
}

void tess_host_init(tess_backend_entry *entry, uint32_t cpu_threads) {
    entry->host = (tess_host){.abi = TESS_BACKEND_ABI,
                              .struct_size = sizeof(tess_host),
                              .alloc = host_alloc,
                              .free = host_free,
                              .fail = host_fail,
                              .log = host_log,
                              .setting = host_setting,
                              .cpu_threads = cpu_threads};
}
