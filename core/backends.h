/* SPDX-License-Identifier: Apache-2.0 */
/* The backends of a runtime: those of the registry and those loaded from libraries, what probing
 * them found, and how a device is selected. */
#ifndef TESSERA_CORE_BACKENDS_H
#define TESSERA_CORE_BACKENDS_H

#include "common.h"
#include "tune.h"

typedef struct tess_backend_entry {
    tess_host host; /* what the backend sees of the core; its address leads back to the entry */
    tess_runtime *runtime;
    const tess_backend *backend; /* NULL: a library that cannot be used */
    char name[32];
    bool opens_driver; /* from the registry; false for a library, since its path was named */
    tess_tune tune;    /* from the backend's own table */
    /* Guarded by the runtime's mutex. Once `probed` is true what follows never changes again. */
    bool named; /* in the descriptor of the runtime or of a device */
    bool probed;
    tess_status status;
    char reason[512];
    tess_device_info *devices;
    uint32_t n_devices;
    uint32_t capacity;
} tess_backend_entry;

/* Lists the registry, loads the libraries of TESSERA_BACKEND_PATH, and checks the names in the
 * settings. Opens no driver. */
tess_status tess_backends_list(tess_runtime *runtime);
void tess_backends_free(tess_runtime *runtime);

/* Probes a backend unless that was done. In a process with more rights than its user a backend
 * that nobody named and that opens a driver is not probed, and its reason says so. Fails only
 * for lack of memory, and may then be tried again. The caller holds runtime->probing. */
tess_status tess_backend_probe(tess_backend_entry *entry);

/* Probes one backend, which a descriptor names, or all with NULL. */
tess_status tess_backends_probe(tess_runtime *runtime, tess_backend_entry *only);

/* A device that was found, as a place in the lists of the backends. */
typedef struct tess_device_place {
    tess_backend_entry *entry;
    uint32_t index;
} tess_device_place;

/* The device number `index` in order of preference, of one backend or of all (NULL): by kind, then
 * by backend, then by number. What a place leads to may be read without the lock, since devices
 * that were found never change. */
bool tess_device_find(tess_runtime *runtime, const tess_backend_entry *only, uint32_t index,
                      tess_device_place *found);

/* One item of the grammar of TESSERA_BACKEND. */
typedef struct tess_selection {
    tess_backend_entry *entry;
    const char *text;
    size_t length;
    int64_t index; /* -1: not given */
} tess_selection;

/* Takes the next item of a comma list from *cursor, which becomes NULL after the last. INVALID,
 * with a message about `label`, when the item is malformed or names no backend. */
tess_status tess_selection_next(tess_runtime *runtime, const char *function, const char *label,
                                const char **cursor, tess_selection *item);

/* host.c: fills entry->host; the name and the runtime must be set. */
void tess_host_init(tess_backend_entry *entry, uint32_t cpu_threads);

/* loading.c: loads the library at `path` and looks at the backend in it. A failure leaves no
 * message but the reason in `why`, of `size` bytes. */
tess_status tess_backend_load(const char *path, const tess_backend **backend, char *why,
                              size_t size);

#endif
