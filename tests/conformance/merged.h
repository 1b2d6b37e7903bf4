/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESSERA_TESTS_CONFORMANCE_MERGED_H
#define TESSERA_TESTS_CONFORMANCE_MERGED_H

#include "common/testlib.h"
#include "instance.h"

enum { MERGED_MOST = 8 };

/* A part of the keys: `count` from `first` on. */
typedef struct merged_keys {
    int64_t first, count;
} merged_keys;

/* O and LSE of a problem of gradients, of one sequence in float32, from a forward run over each of
 * up to MERGED_MOST parts of its keys. Their buffers belong to the caller. */
void merged_forward(const instance *x, const merged_keys *keys, int64_t parts, tess_tensor *o,
                    tess_tensor *lse);

#endif
