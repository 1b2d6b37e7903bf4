/* SPDX-License-Identifier: Apache-2.0 */
/* The epilogue of a job: divides rows of O by row_sum and writes them with LSE to the caller's
 * tensors, or as a partial. */

INLINE void store_vector(uint32_t dtype, void *out, int32_t at, vf x) {
    if (dtype == TESS_F32)
        vstore_any((float *)out + at, x);
    else if (dtype == TESS_F16)
        vto_f16((uint16_t *)out + at, x);
    else
        vto_bf16((uint16_t *)out + at, x);
}

/* Rows hold a multiple of 8 elements, so the last vector of 16 may be half full. */
INLINE void store_row(uint32_t dtype, void *out, const float *row, int32_t n) {
    const size_t esize = dtype == TESS_F32 ? 4 : 2;
    int32_t i = 0;
    for (; i + VL <= n; i += VL) store_vector(dtype, out, i, vload_any(row + i));
    if (i < n) {
        float last[16] = {0}, stored[16];
        memcpy(last, row + i, 8 * sizeof(float));
        store_vector(dtype, stored, 0, vload_any(last));
        memcpy((char *)out + (size_t)i * esize, stored, 8 * esize);
    }
}

INLINE float row_lse(const task *t, int32_t r) {
    const job_memory *m = &t->m;
    return m->row_sum[r] == 0.0f ? -INFINITY
                                 : (float)((double)m->row_max[r] * fabs((double)t->launch->scale) +
                                           log((double)m->row_sum[r]));
}

INLINE void store_lse(const task *t, int32_t r) {
    const tess_tensor *lse = &t->launch->tensor[TESS_ROLE_LSE];
    if (lse->buffer.kind != TESS_BUFFER_NONE)
        ((float *)tensor_base(lse))[row_offset(t, lse, r)] = row_lse(t, r);
}

/* Writes one row of O and its LSE to the caller's tensors, or as a partial. */
static void finish_row(const task *t, int32_t r, const float *row) {
    const tess_launch *l = t->launch;
    if (t->job->partial != TESS_NO_PARTIAL) {
        float *partial =
            (float *)(uintptr_t)(l->workspace.handle + l->workspace.offset + l->partials_at) +
            (size_t)t->job->partial * l->partial_rows * ((size_t)l->value_head_dim + 2);
        float *row_max = partial + (size_t)l->partial_rows * t->head_dim,
              *row_sum = row_max + l->partial_rows;
        memcpy(partial + (size_t)r * t->head_dim, row, (size_t)t->head_dim * sizeof(float));
        row_max[r] = t->m.row_max[r];
        row_sum[r] = t->m.row_sum[r];
        return;
    }
    store_row(l->dtype,
              tensor_base(&l->tensor[TESS_ROLE_O]) +
                  row_offset(t, &l->tensor[TESS_ROLE_O], r) * t->esize,
              row, t->head_dim);
    store_lse(t, r);
}

#if PAIRS
/* The same for VL rows of bf16, transposed as words of two elements and written straight to the
 * caller's tensor. */
static void finish_pairs(const task *t, int32_t first, int32_t lane) {
    const job_memory *m = &t->m;
    const vf sum = vload(m->row_sum + first + lane), inverse = 1.0f / sum;
    const vi empty = (vi)(sum == 0.0f);
    const float *o = m->o + (size_t)first * m->o_elements + lane;
    const int32_t words = WORD_OF(t->head_dim),
                  rows = t->rows - first - lane < VL ? t->rows - first - lane : VL;
    char *out[VL];
    for (int32_t i = 0; i < rows; i++)
        out[i] = tensor_base(&t->launch->tensor[TESS_ROLE_O]) +
                 row_offset(t, &t->launch->tensor[TESS_ROLE_O], first + lane + i) * t->esize;
    for (int32_t w = 0; w < words; w += VL) {
        vf r[VL];
        for (int32_t i = 0; i < VL; i++) {
            const float *pair = o + (size_t)(w + i) * 2 * PANEL;
            r[i] = w + i < words
                       ? vpair_results(vload(pair) * inverse, vload(pair + PANEL) * inverse)
                       : vset(0.0f);
            r[i] = vselect(empty, vset(0.0f), r[i]);
        }
        vtranspose(r);
        if (w + VL <= words && rows == VL) {
            for (int32_t i = 0; i < VL; i++) vstore_any(out[i] + 4 * (size_t)w, r[i]);
        } else {
            for (int32_t i = 0; i < rows; i++)
                memcpy(out[i] + 4 * (size_t)w, &r[i],
                       (size_t)(words - w < VL ? words - w : VL) * 4);
        }
    }
    for (int32_t i = 0; i < rows; i++) store_lse(t, first + lane + i);
}
#endif

static void finish_panel(const task *t, int32_t first) {
    const job_memory *m = &t->m;
    const int32_t padded = round_up(t->head_dim, VL);
    for (int32_t lane = 0; lane < PANEL && first + lane < t->rows; lane += VL) {
#if PAIRS
        if (t->job->partial == TESS_NO_PARTIAL) {
            finish_pairs(t, first, lane);
            continue;
        }
#endif
        const vf sum = vload(m->row_sum + first + lane);
        const vi empty = (vi)(sum == 0.0f); /* a row without keys becomes 0, whatever O holds */
        const vf inverse = 1.0f / sum;
        const float *o = m->o + (size_t)first * m->o_elements + lane;
        for (int32_t d = 0; d < padded; d += VL) {
            vf r[VL];
            for (int32_t i = 0; i < VL; i++)
                r[i] = vselect(empty, vset(0.0f), vload(o + (size_t)(d + i) * PANEL) * inverse);
            vtranspose(r);
            for (int32_t i = 0; i < VL; i++) vstore_any(m->rows + (size_t)i * padded + d, r[i]);
        }
        for (int32_t i = 0; i < VL && first + lane + i < t->rows; i++)
            finish_row(t, first + lane + i, m->rows + (size_t)i * padded);
    }
}
