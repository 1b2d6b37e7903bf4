/* SPDX-License-Identifier: Apache-2.0 */
/* The backends of a runtime: those of the registry and those loaded from libraries, what probing
 * them found, and how a device is selected. */
#ifndef TESSERA_CORE_BACKENDS_H
#define TESSERA_CORE_BACKENDS_H

#include "common.h"
#include "tune.h"

typedef struct tess_backend_entry {
    tess_host host; /* what the backend sees of the core; the address leads back to the entry */
    tess_runtime *runtime;
    const tess_backend *backend; /* NULL: a library that cannot be used */
    char name[32];
    bool opens_driver; /* as the registry says; a loaded library is named by its path */
    tess_tune tune;    /* the table that the backend brings along */
    /* Guarded by the runtime's mutex. Once `probed` is true what follows never changes again. */
    bool named; /* by the descriptor of the runtime or of a device */
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

/* The entry of a backend, or NULL. */
tess_backend_entry *tess_backend_find(tess_runtime *runtime, const char *name, size_t length);
/* "a, b, c": the names that are known, cut to `size`. */
void tess_backend_names(const tess_runtime *runtime, char *text, size_t size);

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

/* Rank of a kind of device when the library chooses: 0 is best. */
uint32_t tess_device_rank(uint32_t kind);
enum { TESS_DEVICE_RANKS = 3 };

/* host.c: fills entry->host; the name and the runtime must be set. */
void tess_host_init(tess_backend_entry *entry);

/* Reads the tune table that a backend brings along, if it is not from before there were any.
 * Messages begin with `label`. */
tess_status tess_backend_table(tess_backend_entry *entry, const tess_backend *backend,
                               const char *label);

/* loading.c: loads the library at `path` into `entry`. Problems are kept in the entry as its status
 * and reason; only lack of memory, which says nothing about the library, fails. */
tess_status tess_backend_load(tess_runtime *runtime, const char *path, tess_backend_entry *entry);

#endif
