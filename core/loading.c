/* SPDX-License-Identifier: Apache-2.0 */
/* Backends from libraries outside the tree. Only absolute paths reach this file, so no search path
 * and never the current directory decides what code runs. A library that cannot be used becomes an
 * entry that says why, and the runtime goes on without it. */
#include "backends.h"

#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "runtime.h"
#include "status.h"

/* Names travel in settings, device ids and kernel names, where ':', ',' and '/' have a meaning. */
static bool name_is_legal(const char *name) {
    size_t length = strnlen(name, sizeof((tess_backend_entry *)0)->name);
    if (length == 0 || length >= sizeof((tess_backend_entry *)0)->name || name[0] < 'a' ||
        name[0] > 'z')
        return false;
    return name[strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_-")] == '\0';
}

static bool functions_are_complete(const tess_backend *b) {
    return (b->list != NULL) & (b->open != NULL) & (b->close != NULL) & (b->query != NULL) &
           (b->kernel != NULL) & (b->launch != NULL) & (b->alloc != NULL) & (b->free != NULL) &
           (b->copy != NULL) & (b->wait != NULL);
}

static void refuse(tess_backend_entry *entry, tess_status status, const char *path,
                   const char *why) {
    entry->status = status;
    entry->probed = true;
    snprintf(entry->reason, sizeof entry->reason, "%s: %s", path, why);
    tess_one_line(entry->reason);
    tess_log(entry->runtime, "device", "%s: refused: %s", entry->name, entry->reason);
}

tess_status tess_backend_load(tess_runtime *runtime, const char *path, tess_backend_entry *entry) {
    const char *file = strrchr(path, '/') + 1;
    char why[256];
    entry->runtime = runtime;
    snprintf(entry->name, sizeof entry->name, "%s", file[0] != '\0' ? file : path);

    /* Never closed: a driver below the backend may keep threads and exit handlers whose code must
     * not go away. */
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        const char *error = dlerror();
        refuse(entry, TESS_ERROR_UNAVAILABLE, path, error != NULL ? error : "dlopen failed");
        return TESS_OK;
    }
    union {
        void *symbol;
        const tess_backend *(*function)(void);
    } enter = {dlsym(library, TESS_BACKEND_ENTRY)};
    if (enter.symbol == NULL) {
        refuse(entry, TESS_ERROR_INVALID, path, "it does not export " TESS_BACKEND_ENTRY);
        return TESS_OK;
    }
    const tess_backend *backend = enter.function();
    if (backend == NULL) {
        refuse(entry, TESS_ERROR_INVALID, path, TESS_BACKEND_ENTRY " returned NULL");
        return TESS_OK;
    }
    /* Only the ABI number has the same place in every version, so nothing else is read before it
     * fits. */
    if (backend->abi != TESS_BACKEND_ABI) {
        snprintf(why, sizeof why, "it has backend ABI %u, but this library needs %u", backend->abi,
                 TESS_BACKEND_ABI);
        refuse(entry, TESS_ERROR_VERSION, path, why);
        return TESS_OK;
    }
    /* The fields from `tune` on came later, and backends without them are none the worse. */
    const size_t least = offsetof(tess_backend, tune);
    if (backend->struct_size < least) {
        snprintf(why, sizeof why, "struct_size is %u, but a backend has %zu bytes",
                 backend->struct_size, least);
        refuse(entry, TESS_ERROR_VERSION, path, why);
        return TESS_OK;
    }
    if (backend->name == NULL || !name_is_legal(backend->name)) {
        refuse(
            entry, TESS_ERROR_INVALID, path,
            "its name is not 1 to 31 lower-case letters, digits, '_' and '-' with a letter first");
        return TESS_OK;
    }
    if (!functions_are_complete(backend)) {
        refuse(entry, TESS_ERROR_INVALID, path, "a function of the backend is NULL");
        return TESS_OK;
    }
    const tess_backend_entry *other =
        tess_backend_find(runtime, backend->name, strlen(backend->name));
    if (other != NULL && other != entry) {
        snprintf(why, sizeof why, "its name '%s' is taken by another backend", backend->name);
        refuse(entry, TESS_ERROR_INVALID, path, why);
        return TESS_OK;
    }
    tess_recovery recovery;
    tess_recover_begin(&recovery);
    tess_status status = tess_backend_table(entry, backend, "its tune table");
    snprintf(why, sizeof why, "%s", status == TESS_OK ? "" : tess_last_error());
    tess_recover_end(&recovery);
    if (status == TESS_ERROR_OUT_OF_MEMORY)
        return tess_fail(status, "tess_runtime_create: %s: %s", path, why);
    if (status != TESS_OK) {
        refuse(entry, TESS_ERROR_INVALID, path, why);
        return TESS_OK;
    }
    entry->backend = backend;
    snprintf(entry->name, sizeof entry->name, "%s", backend->name);
    tess_host_init(entry);
    tess_log(runtime, "device", "%s: loaded from %s", entry->name, path);
    return TESS_OK;
}
