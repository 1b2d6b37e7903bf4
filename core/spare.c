/* SPDX-License-Identifier: Apache-2.0 */
#include "spare.h"

#include <sys/mman.h>

#include "runtime.h"

enum { ALIGN = 256, HUGE_PAGE = 2 << 20 };

void tess_spare_release(tess_spares *s, tess_runtime *runtime, bool forked) {
    for (int n = 0; n < TESS_SPARE_BLOCKS; n++)
        if (!s->blocks[n].taken) tess_mem_free(runtime, s->blocks[n].memory, s->blocks[n].bytes);
    if (!forked) pthread_mutex_destroy(&s->lock);
}

/* Whole huge pages: on an H200's host columns are counted and placed in 4.2 ms on them and in 5.5
 * on others. Where memory is fragmented the system takes its time to find them, once. Allocators of
 * applications know best what their memory is. */
static void *allocate(tess_runtime *runtime, size_t bytes) {
    void *memory = tess_mem_alloc(runtime, bytes, HUGE_PAGE);
#ifdef MADV_HUGEPAGE
    if (memory && tess_mem_is_default(runtime)) (void)madvise(memory, bytes, MADV_HUGEPAGE);
#endif
    return memory;
}

/* The smallest block that is large enough, else a free place, else the smallest block, else NULL.
 */
static tess_spare_block *choose(tess_spares *s, size_t size) {
    tess_spare_block *fits = NULL, *other = NULL;
    for (tess_spare_block *b = s->blocks; b < s->blocks + TESS_SPARE_BLOCKS; b++) {
        if (b->taken) continue;
        if (b->bytes >= size && (!fits || b->bytes < fits->bytes)) fits = b;
        if (!other || b->bytes < other->bytes) other = b;
    }
    return fits ? fits : other;
}

void *tess_spare_take(tess_runtime *runtime, size_t size) {
    tess_spares *s = &runtime->spares;
    if (size < TESS_SPARE_LEAST || size > PTRDIFF_MAX - HUGE_PAGE)
        return tess_mem_alloc(runtime, size, ALIGN);
    pthread_mutex_lock(&s->lock);
    tess_spare_block *b = choose(s, size), old = {0};
    if (b) {
        b->taken = true;
        if (b->bytes < size) {
            old = *b;
            b->memory = NULL;
            b->bytes = 0;
        }
    }
    void *memory = b ? b->memory : NULL;
    pthread_mutex_unlock(&s->lock);
    tess_mem_free(runtime, old.memory, old.bytes);
    if (!b) return tess_mem_alloc(runtime, size, ALIGN);
    if (memory) return memory;
    const size_t bytes = (size + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    memory = allocate(runtime, bytes);
    pthread_mutex_lock(&s->lock);
    b->memory = memory;
    b->bytes = memory ? bytes : 0;
    b->taken = memory != NULL;
    pthread_mutex_unlock(&s->lock);
    return memory;
}

/* Takes the block with this memory out of those that are taken. Returns what is to be freed. */
static tess_spare_block put_back(tess_spares *s, void *memory, size_t size) {
    tess_spare_block loose = {.memory = memory, .bytes = size}, *found = NULL;
    size_t kept = 0;
    for (tess_spare_block *b = s->blocks; b < s->blocks + TESS_SPARE_BLOCKS; b++) {
        if (b->taken && b->memory == memory) found = b;
        if (!b->taken) kept += b->bytes;
    }
    if (!found) return loose;
    loose = (tess_spare_block){0};
    found->taken = false;
    if (kept + found->bytes <= TESS_SPARE_MOST) return loose;
    loose = *found;
    *found = (tess_spare_block){0};
    return loose;
}

void tess_spare_give(tess_runtime *runtime, void *memory, size_t size) {
    tess_spares *s = &runtime->spares;
    if (memory == NULL) return;
    tess_spare_block loose = {.memory = memory, .bytes = size};
    /* After a fork() another thread may hold the lock for ever. */
    if (size >= TESS_SPARE_LEAST && !tess_runtime_forked(runtime)) {
        pthread_mutex_lock(&s->lock);
        loose = put_back(s, memory, size);
        pthread_mutex_unlock(&s->lock);
    }
    tess_mem_free(runtime, loose.memory, loose.bytes);
}
