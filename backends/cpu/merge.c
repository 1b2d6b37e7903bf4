/* SPDX-License-Identifier: Apache-2.0 */
/* Combines results over parts of the keys: partial results of a tile, and parts that the caller
 * has. */
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

static void load(uint32_t dtype, const void *in, float *row, int32_t n) {
    if (dtype == TESS_F32) {
        memcpy(row, in, (size_t)n * sizeof(float));
        return;
    }
    for (int32_t i = 0; i < n; i += VL) {
        const uint16_t *from = (const uint16_t *)in + i;
        const vf four = dtype == TESS_F16 ? vfrom_f16(from) : vfrom_bf16(from);
        memcpy(row + i, &four, sizeof four);
    }
}

static void *element(const tess_tensor *t, size_t size, int64_t batch, int64_t row, int64_t head) {
    const int64_t at = batch * t->stride_batch + row * t->stride_token + head * t->stride_head;
    return (char *)(uintptr_t)(t->buffer.handle + t->buffer.offset) + at * (int64_t)size;
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
        const float *part_max = partials + (size_t)l->partial_rows * dim + r,
                    *part_sum = part_max + l->partial_rows;
        float row[256], row_max = -INFINITY;
        double row_sum = 0;
        memset(row, 0, sizeof row);
        for (uint32_t n = 0; n < merge->parts; n++) /* a NaN comes in through its weight */
            if (part_max[n * pitch] > row_max) row_max = part_max[n * pitch];
        for (uint32_t n = 0; n < merge->parts; n++) {
            if (part_sum[n * pitch] == 0) continue; /* saw no key: weight 0, whatever its O */
            const float weight = (float)(part_sum[n * pitch] *
                                         exp(((double)part_max[n * pitch] - row_max) * scale)),
                        *part_o = partials + n * pitch + (size_t)r * dim;
            row_sum += weight;
            for (int32_t d = 0; d < dim; d++) row[d] += weight * part_o[d];
        }
        if (row_sum != 0)
            for (int32_t d = 0; d < dim; d++) row[d] /= (float)row_sum;
        const int64_t head = merge->head + r / merge->rows,
                      q = s->q_start + merge->row + r % merge->rows,
                      batch = l->batch_strided ? s->batch : 0;
        const tess_tensor *o = &l->tensor[TESS_ROLE_O], *lse = &l->tensor[TESS_ROLE_LSE];
        store(l->dtype, element(o, esize, batch, q, head), row, dim);
        if (lse->buffer.kind != TESS_BUFFER_NONE)
            *(float *)element(lse, sizeof(float), batch, q, head) =
                row_sum == 0 ? -INFINITY : (float)(row_max * scale + log(row_sum));
    }
}

/* LSE of part n. */
static float lse_of(const tess_launch *l, int64_t n, int64_t row, int64_t head) {
    return *(const float *)element(&l->tensor[TESS_ROLE_LSE_PARTS], sizeof(float), n, row, head);
}

void tess_cpu_merge_parts(const tess_launch *l, uint64_t vector) {
    const int64_t row = (int64_t)(vector / l->n_heads), head = (int64_t)(vector % l->n_heads);
    const size_t size = l->dtype == TESS_F32 ? 4 : 2;
    const int32_t dim = l->head_dim;
    float out[256], part[256], most = -INFINITY;
    double sum = 0;
    memset(out, 0, sizeof out);
    for (uint32_t n = 0; n < l->batch; n++) { /* a NaN comes in through its weight */
        const float lse = lse_of(l, n, row, head);
        if (lse > most) most = lse;
    }
    for (uint32_t n = 0; n < l->batch; n++) {
        const float lse = lse_of(l, n, row, head);
        if (lse == -INFINITY) continue; /* saw no key: no weight, whatever its O is */
        const float weight = (float)exp((double)lse - most);
        sum += weight;
        load(l->dtype, element(&l->tensor[TESS_ROLE_O_PARTS], size, n, row, head), part, dim);
        for (int32_t d = 0; d < dim; d++) out[d] += weight * part[d];
    }
    if (sum != 0)
        for (int32_t d = 0; d < dim; d++) out[d] /= (float)sum;
    store(l->dtype, element(&l->tensor[TESS_ROLE_O], size, 0, row, head), out, dim);
    if (l->tensor[TESS_ROLE_LSE].buffer.kind != TESS_BUFFER_NONE)
        *(float *)element(&l->tensor[TESS_ROLE_LSE], sizeof(float), 0, row, head) =
            sum == 0 ? -INFINITY : (float)(most + log(sum));
}
