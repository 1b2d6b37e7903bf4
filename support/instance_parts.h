/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of an instance share. */
#ifndef TESSERA_SUPPORT_INSTANCE_PARTS_H
#define TESSERA_SUPPORT_INSTANCE_PARTS_H

#include "instance.h"

enum { NAN_BYTE = 0xff /* all bits set is a NaN in every type */ };

/* Copies the library's message, or says what failed without it. */
tess_status instance_fail(instance *x, tess_status status, const char *own);

void *instance_host_alloc(uint64_t bytes);

/* A part of `bytes` with guards around it if they are wanted, filled with `fill`; `raw` is what has
 * to be freed, `part` what the run gets. */
tess_status instance_guarded(instance *x, uint64_t bytes, uint64_t alignment, int fill,
                             tess_buffer *raw, tess_buffer *part);
/* Compares the guards of one part with what instance_guarded wrote. Returns 0, or -1 with `what`
 * filled. */
int instance_guards_intact(const instance *x, const char *name, const tess_buffer *raw,
                           const tess_buffer *part, char *what, size_t size);
tess_status instance_upload(instance *x, const void *host, uint64_t bytes, tess_buffer *raw,
                            tess_tensor *tensor);

/* The n-th of `wanted` rows out of `total`. */
int64_t instance_nth_row(int64_t n, int64_t wanted, int64_t total);

static inline float instance_rounded(uint32_t dtype, float f) {
    if (dtype == TESS_F16) return half_to_float(float_to_half(f));
    return dtype == TESS_BF16 ? bf16_to_float(float_to_bf16(f)) : f;
}

/* instance_backward.c: what backward problems have besides. */
tess_status instance_place_gradients(instance *x);
tess_status instance_fetch_gradients(instance *x);
void instance_check_gradients(const instance *x, int64_t max_rows, instance_verdict *verdict);
void instance_release_gradients(instance *x);

#endif
