/* SPDX-License-Identifier: Apache-2.0 */
/* Bounded memory: a few bytes may ask for a layout of billions of blocks, and then the answer is
 * OUT_OF_MEMORY. */
#ifndef TESSERA_TESTS_FUZZ_BOUNDED_H
#define TESSERA_TESTS_FUZZ_BOUNDED_H

#include <stddef.h>
#include <stdlib.h>
#include <tessera/tessera.h>

#include "fuzz.h"

enum { MOST_BYTES = 1 << 26 };

static size_t taken;

static void *bounded_take(void *user, size_t size, size_t alignment) {
    (void)user;
    if (size > MOST_BYTES || taken > MOST_BYTES - size) return NULL;
    const size_t align = alignment < 16 ? 16 : alignment;
    void *memory = aligned_alloc(align, (size + align - 1) / align * align);
    if (memory) taken += size;
    return memory;
}

static void bounded_give(void *user, void *pointer, size_t size) {
    (void)user;
    taken -= size;
    free(pointer);
}

/* A runtime with bounded memory and one thread, which no variable of the environment changes. */
static tess_runtime *bounded_runtime(void) {
    tess_runtime *runtime = NULL;
    tess_runtime_desc desc = {.struct_size = sizeof desc,
                              .allocator = {bounded_take, bounded_give, NULL},
                              .log = fuzz_log_nothing,
                              .cpu_threads = 1};
    desc.backend = desc.kernel = desc.verbose = desc.cache_dir = desc.tune_file =
        desc.backend_path = "";
    FUZZ_REQUIRE(tess_runtime_create(&desc, &runtime) == TESS_OK);
    return runtime;
}

#endif
