/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device memory of the tables of plans. A device keeps that of plans that were released in the
 * order of a stream, for later plans: on most drivers freeing memory waits for everything that runs
 * on the device. Each kept table has a mark on the stream, and is taken again once the stream has
 * passed it.
 */
#ifndef TESSERA_CORE_TABLE_POOL_H
#define TESSERA_CORE_TABLE_POOL_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include <tessera/tessera.h>

enum { TESS_POOL_TABLES = 64 };               /* as many plans of a step as runs are ahead */
#define TESS_POOL_BYTES (UINT64_C(256) << 20) /* that are kept at most */

typedef struct tess_kept_table {
    tess_buffer buffer; /* of kind NONE: the place is free */
    void *mark;         /* the backend's, which stays with the place; NULL until it is needed */
    bool passed;        /* no run reads the buffer any more */
    uint64_t number;    /* marks are set in this order, */
    tess_stream stream; /* on this stream */
} tess_kept_table;

typedef struct tess_table_pool {
    pthread_mutex_t lock;
    bool used; /* some plan was released into it: tables get sizes that fit others */
    uint64_t kept;
    uint64_t marks; /* that were set so far */
    tess_kept_table tables[TESS_POOL_TABLES];
} tess_table_pool;

/* Memory for `bytes` of tables: kept one, else new one. Where there is none left, kept memory is
 * freed first. Statuses are the backend's. */
tess_status tess_table_take(tess_device *device, uint64_t bytes, tess_buffer *buffer);

/* Keeps a table that runs on the stream may still read, and clears *buffer. False: it was not kept,
 * since the backend has no marks, the stream could not be marked, or there is no room. */
bool tess_table_keep(tess_device *device, const tess_stream *stream, tess_buffer *buffer);

/* Frees what is kept, when the device goes. */
void tess_table_pool_clear(tess_device *device);

#endif
