/* SPDX-License-Identifier: Apache-2.0 */
#include "table_pool.h"

#include <stddef.h>
#include <string.h>

#include "common.h"
#include "status.h"

/* Older backends have no marks, and most devices need none. */
static bool has_marks(const tess_device *device) {
    const tess_backend *b = device->backend;
    return b->struct_size >= offsetof(tess_backend, unmark) + sizeof b->unmark && b->mark != NULL &&
           b->passed != NULL && b->unmark != NULL;
}

/* Lengths that change from step to step make tables of many sizes. In steps of a quarter of a power
 * of two they fit one another, and at most a fifth of each is not used. */
static uint64_t rounded(uint64_t bytes) {
    uint64_t step = 4096;
    while (step <= UINT64_MAX / 16 && step * 8 <= bytes) step *= 2;
    return bytes > UINT64_MAX - step ? bytes : (bytes + step - 1) / step * step;
}

/* A mark that has been asked, and was not passed. */
typedef struct asked_mark {
    const tess_kept_table *table;
    bool busy; /* its stream is not there yet; else nobody can tell */
} asked_mark;

/* Whether the mark is one of those, or comes after one on a stream that was not there yet. */
static bool is_asked(const tess_kept_table *t, const asked_mark *asked, int n) {
    while (n-- > 0) {
        const tess_stream *stream = &asked[n].table->stream;
        if (asked[n].table == t ||
            (asked[n].busy && stream->kind == t->stream.kind && stream->handle == t->stream.handle))
            return true;
    }
    return false;
}

/* Finds out which tables no run reads any more; the lock is held. Marks are asked in their order:
 * behind one that its stream has not passed it has passed none, and where the host is far ahead
 * there are dozens of these. A handle may be that of a later stream by now, which makes such a
 * table wait longer than it had to. */
static void ask_marks(tess_device *device) {
    asked_mark asked[TESS_POOL_TABLES];
    for (int n = 0;;) {
        tess_kept_table *first = NULL;
        for (tess_kept_table *t = device->pool.tables; t < device->pool.tables + TESS_POOL_TABLES;
             t++)
            if (t->buffer.kind != TESS_BUFFER_NONE && !t->passed &&
                (!first || t->number < first->number) && !is_asked(t, asked, n))
                first = t;
        if (!first) return;
        const tess_status status = device->backend->passed(device->native, first->mark);
        first->passed = status == TESS_OK;
        if (!first->passed) asked[n++] = (asked_mark){first, status == TESS_ERROR_BUSY};
    }
}

/* Takes a table out of the pool; the lock is held. */
static tess_buffer take_out(tess_table_pool *pool, tess_kept_table *t) {
    const tess_buffer buffer = t->buffer;
    pool->kept -= buffer.size;
    t->buffer = (tess_buffer){.kind = TESS_BUFFER_NONE};
    return buffer;
}

/* The smallest table of at least `least` bytes and at most `most` that no run reads any more; NULL:
 * there is none. */
static tess_kept_table *smallest(tess_device *device, uint64_t least, uint64_t most) {
    tess_kept_table *found = NULL;
    ask_marks(device);
    for (tess_kept_table *t = device->pool.tables; t < device->pool.tables + TESS_POOL_TABLES; t++)
        if (t->buffer.kind != TESS_BUFFER_NONE && t->passed && t->buffer.size >= least &&
            t->buffer.size <= most && (!found || t->buffer.size < found->buffer.size))
            found = t;
    return found;
}

/* A failure to free changes nothing for the caller. */
static void free_buffer(tess_device *device, tess_buffer *buffer) {
    tess_recovery recovery;
    tess_recover_begin(&recovery);
    (void)device->backend->free(device->native, buffer);
    tess_recover_end(&recovery);
}

/* Frees one table that no run reads any more. */
static bool free_one(tess_device *device, uint64_t most) {
    tess_buffer loose = {.kind = TESS_BUFFER_NONE};
    pthread_mutex_lock(&device->pool.lock);
    tess_kept_table *t = smallest(device, 0, most);
    if (t) loose = take_out(&device->pool, t);
    pthread_mutex_unlock(&device->pool.lock);
    if (loose.kind == TESS_BUFFER_NONE) return false;
    free_buffer(device, &loose);
    return true;
}

tess_status tess_table_take(tess_device *device, uint64_t bytes, tess_buffer *buffer) {
    tess_table_pool *pool = &device->pool;
    uint64_t size = bytes;
    bool used = false;
    if (has_marks(device)) {
        tess_buffer kept = {.kind = TESS_BUFFER_NONE};
        pthread_mutex_lock(&pool->lock);
        used = pool->used;
        if (used) {
            size = rounded(bytes);
            tess_kept_table *t =
                smallest(device, bytes, size <= UINT64_MAX / 2 ? 2 * size : UINT64_MAX);
            if (t) kept = take_out(pool, t);
        }
        pthread_mutex_unlock(&pool->lock);
        if (kept.kind != TESS_BUFFER_NONE) {
            *buffer = kept;
            return TESS_OK;
        }
    }
    while (used) {
        tess_recovery recovery;
        tess_recover_begin(&recovery);
        const tess_status status = device->backend->alloc(device->native, size, buffer);
        tess_recover_end(&recovery);
        if (status == TESS_OK) return status;
        if (status != TESS_ERROR_OUT_OF_MEMORY || !free_one(device, UINT64_MAX)) break;
    }
    return device->backend->alloc(device->native, size, buffer); /* if it fails, with a message */
}

/* A free place with room for so many bytes, or NULL; the lock is held. */
static tess_kept_table *place_for(tess_table_pool *pool, uint64_t bytes) {
    if (bytes > TESS_POOL_BYTES - pool->kept) return NULL;
    for (tess_kept_table *t = pool->tables; t < pool->tables + TESS_POOL_TABLES; t++)
        if (t->buffer.kind == TESS_BUFFER_NONE) return t;
    return NULL;
}

bool tess_table_keep(tess_device *device, const tess_stream *stream, tess_buffer *buffer) {
    tess_table_pool *pool = &device->pool;
    if (!has_marks(device) || buffer->size == 0 || buffer->size > TESS_POOL_BYTES) return false;
    bool kept = false;
    tess_recovery recovery;
    tess_recover_begin(&recovery);
    do {
        pthread_mutex_lock(&pool->lock);
        tess_kept_table *t = place_for(pool, buffer->size);
        const bool room = t != NULL;
        if (room && device->backend->mark(device->native, stream, &t->mark) == TESS_OK) {
            t->buffer = *buffer;
            t->passed = false;
            t->number = pool->marks++;
            t->stream = *stream;
            pool->kept += buffer->size;
            pool->used = kept = true;
        }
        pthread_mutex_unlock(&pool->lock);
        if (room) break;
    } while (free_one(device, buffer->size)); /* smaller ones give way */
    tess_recover_end(&recovery);
    if (kept) *buffer = (tess_buffer){.kind = TESS_BUFFER_NONE};
    return kept;
}

void tess_table_pool_clear(tess_device *device) {
    for (tess_kept_table *t = device->pool.tables; t < device->pool.tables + TESS_POOL_TABLES;
         t++) {
        if (t->buffer.kind != TESS_BUFFER_NONE) free_buffer(device, &t->buffer);
        if (t->mark) device->backend->unmark(device->native, t->mark);
    }
}
