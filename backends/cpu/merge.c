/* SPDX-License-Identifier: Apache-2.0 */
/* Combines the partial results of a tile whose keys were split. */
#include "cpu.h"

#include <math.h>
#include <string.h>

#define VL 4
#include "kernels/vector.h"

static void store(uint32_t dtype, void *out, const float *row, int32_t n) {
    if (dtype == TESS_F32) {
        memcpy(out, row, (size_t)n * sizeof(float));
        return;
    }
    for (int32_t i = 0; i < n; i += VL) {
        if (dtype == TESS_F16)
            vto_f16((uint16_t *)out + i, vload_any(row + i));
        else
            vto_bf16((uint16_t *)out + i, vload_any(row + i));
    }
}

void tess_cpu_merge(const tess_launch *l, const tess_merge *merge) {
    const tess_sequence *s = &l->tables->sequences[merge->sequence];
    const int32_t dim = l->value_head_dim, rows = (int32_t)merge->rows * merge->heads;
    const size_t pitch = (size_t)l->partial_rows * ((size_t)dim + 2),
                 esize = l->dtype == TESS_F32 ? 4 : 2;
    const float *partials =
        (const float *)(uintptr_t)(l->workspace.handle + l->workspace.offset + l->partials_at) +
        merge->partial * pitch;
    const double scale = fabs((double)l->scale);
    for (int32_t r = 0; r < rows; r++) {
        const float *most = partials + (size_t)l->partial_rows * dim + r,
                    *sums = most + l->partial_rows;
        float row[256], top = -INFINITY;
        double sum = 0;
        memset(row, 0, sizeof row);
        for (uint32_t n = 0; n < merge->parts; n++) /* a NaN comes in through its weight */
            if (most[n * pitch] > top) top = most[n * pitch];
        for (uint32_t n = 0; n < merge->parts; n++) {
            if (sums[n * pitch] == 0) continue; /* saw no key: weight 0, whatever its O */
            const float weight =
                            (float)(sums[n * pitch] * exp(((double)most[n * pitch] - top) * scale)),
                        *o = partials + n * pitch + (size_t)r * dim;
            sum += weight;
            for (int32_t d = 0; d < dim; d++) row[d] += weight * o[d];
        }
        if (sum != 0)
            for (int32_t d = 0; d < dim; d++) row[d] /= (float)sum;
        const int64_t head = merge->head + r / merge->rows,
                      q = s->q_start + merge->row + r % merge->rows,
                      batch = l->batch_strided ? s->batch : 0;
        char *o = (char *)(uintptr_t)(l->tensor[TESS_ROLE_O].buffer.handle +
                                      l->tensor[TESS_ROLE_O].buffer.offset);
        store(l->dtype,
              o + (batch * l->tensor[TESS_ROLE_O].stride_batch +
                   q * l->tensor[TESS_ROLE_O].stride_token +
                   head * l->tensor[TESS_ROLE_O].stride_head) *
                      (int64_t)esize,
              row, dim);
        if (l->tensor[TESS_ROLE_LSE].buffer.kind != TESS_BUFFER_NONE) {
            float *out = (float *)(uintptr_t)(l->tensor[TESS_ROLE_LSE].buffer.handle +
                                              l->tensor[TESS_ROLE_LSE].buffer.offset);
            out[batch * l->tensor[TESS_ROLE_LSE].stride_batch +
                q * l->tensor[TESS_ROLE_LSE].stride_token +
                head * l->tensor[TESS_ROLE_LSE].stride_head] =
                sum == 0 ? -INFINITY : (float)(top * scale + log(sum));
        }
    }
}
