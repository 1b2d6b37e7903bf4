/* SPDX-License-Identifier: Apache-2.0 */
/* Objects of a backend in the host's memory. */
#ifndef TESS_COMMON_OBJECT_H
#define TESS_COMMON_OBJECT_H

#include <string.h>

#include <tessera/tessera_backend.h>

/* Zeros. Where there is no memory NULL, and the message says what it was for. */
static inline void *tess_object(const tess_host *host, size_t size, const char *what) {
    void *object = host->alloc(host, size, 64);
    if (object)
        memset(object, 0, size);
    else
        host->fail(host, TESS_ERROR_OUT_OF_MEMORY, "%zu bytes for %s", size, what);
    return object;
}

#endif /* TESS_COMMON_OBJECT_H */
