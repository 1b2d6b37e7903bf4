/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compiled kernels kept on disk between processes: one file per key in a private folder
 * (TESSERA_CACHE_DIR, else tessera/ in the user's cache folder). Whatever is wrong with folder or
 * file, loading is a miss and storing does nothing: a cache never makes a call fail.
 */
#ifndef TESS_COMMON_CACHE_H
#define TESS_COMMON_CACHE_H

#include <tessera/tessera_backend.h>

/* The files of the folder together. The oldest go when a store exceeds it. */
#define TESS_CACHE_MOST_BYTES (256 * 1024 * 1024)

typedef struct tess_cache_key {
    const char *backend; /* "opencl" */
    const char *device;  /* name and UUID, or what comes nearest */
    const char *driver;  /* name and version */
    const void *source;  /* what was compiled ... */
    size_t source_size;
    const char *options; /* ... and how */
} tess_cache_key;

/* The bytes stored under the key, from host->alloc (free with *size), or NULL. */
void *tess_cache_load(const tess_host *host, const tess_cache_key *key, size_t *size);

/* Stores bytes under the key: written to a temporary name and renamed. */
void tess_cache_store(const tess_host *host, const tess_cache_key *key, const void *data,
                      size_t size);

#endif /* TESS_COMMON_CACHE_H */
