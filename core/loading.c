/* SPDX-License-Identifier: Apache-2.0 */
/* Backends from libraries outside the tree. Only absolute paths reach this file, so no search path
 * and never the current directory decides what code runs. */
#include "backends.h"

#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* Names appear in settings, device ids and kernel names, where ':', ',' and '/' are separators. */
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

/* Only the ABI number has the same place in every version, so it is checked before anything else is
 * read. */
static tess_status check(const tess_backend *backend, char *why, size_t size) {
    if (backend->abi != TESS_BACKEND_ABI) {
        snprintf(why, size, "it has backend ABI %u, but this library needs %u", backend->abi,
                 TESS_BACKEND_ABI);
        return TESS_ERROR_VERSION;
    }
    /* The fields from `tune` on were added later and may be missing. */
    const size_t least = offsetof(tess_backend, tune);
    if (backend->struct_size < least) {
        snprintf(why, size, "struct_size is %u, but a backend has %zu bytes", backend->struct_size,
                 least);
        return TESS_ERROR_VERSION;
    }
    const char *wrong = NULL;
    if (backend->name == NULL || !name_is_legal(backend->name))
        wrong =
            "its name is not 1 to 31 lower-case letters, digits, '_' and '-' with a letter first";
    else if (!functions_are_complete(backend))
        wrong = "a function of the backend is NULL";
    if (wrong == NULL) return TESS_OK;
    snprintf(why, size, "%s", wrong);
    return TESS_ERROR_INVALID;
}

tess_status tess_backend_load(const char *path, const tess_backend **backend, char *why,
                              size_t size) {
    /* The library is never closed: a driver below the backend may have threads and exit handlers
     * whose code must stay. */
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        const char *error = dlerror();
        snprintf(why, size, "%s", error != NULL ? error : "dlopen failed");
        return TESS_ERROR_UNAVAILABLE;
    }
    union {
        void *symbol;
        const tess_backend *(*function)(void);
    } enter = {dlsym(library, TESS_BACKEND_ENTRY)};
    if (enter.symbol == NULL) {
        snprintf(why, size, "it does not export " TESS_BACKEND_ENTRY);
        return TESS_ERROR_INVALID;
    }
    *backend = enter.function();
    if (*backend != NULL) return check(*backend, why, size);
    snprintf(why, size, TESS_BACKEND_ENTRY " returned NULL");
    return TESS_ERROR_INVALID;
}
