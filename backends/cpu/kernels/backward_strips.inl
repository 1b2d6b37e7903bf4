/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Strips of rows, before and after the columns. Before: LSE in base 2 and Delta of each row and
 * head go to the workspace, and the accumulators of dQ are marked as untouched. After: the
 * accumulators become dQ. An LSE of +inf makes P exactly 0.
 */

/* Rows to prefetch ahead of a strip's work. They are often pages apart. */
enum { STRIP_ROWS_AHEAD = 8 };

/* Where LSE, or Delta, of a strip's first row lies. */
static float *strip_floats(const tess_launch *l, int of_delta, uint32_t head, uint64_t strip) {
    float *base = (float *)(uintptr_t)(l->workspace.handle + l->workspace.offset + l->strips_at);
    const uint64_t rows = (uint64_t)l->n_strips * CPU_STRIP_ROWS;
    return base + ((of_delta ? l->n_heads : 0) + (uint64_t)head) * rows + strip * CPU_STRIP_ROWS;
}

/* The accumulator of dQ of a strip's first row. */
static float *strip_accumulators(const tess_launch *l, uint32_t head, uint64_t strip) {
    const uint64_t rows = (uint64_t)l->n_strips * CPU_STRIP_ROWS;
    return strip_floats(l, 0, 2 * (uint32_t)l->n_heads, 0) +
           (head * rows + strip * CPU_STRIP_ROWS) * (uint64_t)cpu_accumulator_floats(l->head_dim);
}

/*
 * The first float of an accumulator that no column has added to yet. The first one stores there,
 * and adds to nothing: clearing all accumulators would send them through memory once more. The
 * mark is a signalling NaN, which no addition results in.
 */
#define UNTOUCHED INT32_C(0x7fa00001)

INLINE void mark_untouched(float *accumulator) {
    const int32_t mark = UNTOUCHED;
    memcpy(accumulator, &mark, sizeof mark);
}

INLINE int is_untouched(const float *accumulator) {
    int32_t bits;
    memcpy(&bits, accumulator, sizeof bits);
    return bits == UNTOUCHED;
}

static int is_wanted(const tess_launch *l, uint32_t role) {
    return l->tensor[role].buffer.kind != TESS_BUFFER_NONE;
}

/* The offset of a row in a tensor with the layout of Q, in elements. */
INLINE int64_t q_offset(const tess_launch *l, const tess_sequence *s, const tess_tensor *x,
                        int64_t row, int64_t head) {
    return (l->batch_strided ? s->batch * x->stride_batch : 0) +
           (s->q_start + row) * x->stride_token + head * x->stride_head;
}

INLINE void prefetch_bytes(const char *row, int64_t bytes, const int write) {
    for (int64_t at = 0; at < bytes; at += 64) {
        if (write)
            __builtin_prefetch(row + at, 1, 2);
        else
            __builtin_prefetch(row + at, 0, 2);
    }
}

/* Prefetches row n of a strip's `rows`, counted head after head. */
INLINE void prefetch_strip_row(const tess_launch *l, const tess_strip *strip, uint32_t role,
                               uint32_t n, uint32_t rows, int64_t size, const int write) {
    const tess_sequence *s = &l->tables->sequences[strip->sequence];
    const tess_tensor *x = &l->tensor[role];
    if (n / rows >= l->n_heads) return;
    prefetch_bytes(tensor_base(x) + q_offset(l, s, x, strip->row + n % rows, n / rows) * size,
                   l->head_dim * size, write);
}

/* The sum of all lanes, added in pairs. */
INLINE float sum_lanes(vf x) {
#if VL == 16
    x = vfold(x, x, 8);
#endif
#if VL >= 8
    x = vfold(x, x, 4);
#endif
    x = vfold(x, x, 2);
    x = vfold(x, x, 1);
    return x[0];
}

static float dot_rows(uint32_t dtype, const void *a, const void *b, int32_t n, float *room) {
    float *other = room + round_up(n, VL);
    vf sum = vset(0.0f);
    if (dtype == TESS_F32 && n % VL == 0) {
        for (int32_t i = 0; i < n; i += VL)
            sum += vload_any((const float *)a + i) * vload_any((const float *)b + i);
        return sum_lanes(sum);
    }
    if (n % VL) {
        memset(room + n - n % VL, 0, VL * sizeof(float));
        memset(other + n - n % VL, 0, VL * sizeof(float));
    }
    load_row(dtype, a, n, room);
    load_row(dtype, b, n, other);
    for (int32_t i = 0; i < n; i += VL) sum += vload(room + i) * vload(other + i);
    return sum_lanes(sum);
}

static void strip_row(backward *b, const tess_sequence *s, int64_t row, uint32_t head,
                      float *lse_out, float *delta) {
    const tess_launch *l = b->t.launch;
    const tess_tensor *lse = &l->tensor[TESS_ROLE_LSE], *d_lse = &l->tensor[TESS_ROLE_D_LSE],
                      *o = &l->tensor[TESS_ROLE_O], *d_o = &l->tensor[TESS_ROLE_D_O];
    const float x = ((const float *)tensor_base(lse))[q_offset(l, s, lse, row, head)];
    *lse_out = INFINITY;
    *delta = 0;
    if (isinf(x)) return; /* the other tensors of such a row may hold anything */
    *lse_out = x * 1.44269504088896340736f;
    *delta = dot_rows(l->dtype, tensor_base(o) + q_offset(l, s, o, row, head) * b->t.esize,
                      tensor_base(d_o) + q_offset(l, s, d_o, row, head) * b->t.esize, l->head_dim,
                      b->at.x[FIRST]);
    if (is_wanted(l, TESS_ROLE_D_LSE))
        *delta -= ((const float *)tensor_base(d_lse))[q_offset(l, s, d_lse, row, head)];
}

/* The rows of a strip. */
static uint32_t strip_rows(const tess_launch *l, const tess_strip *strip) {
    const int64_t left = (int64_t)l->tables->sequences[strip->sequence].q_len - strip->row;
    return (uint32_t)(left < CPU_STRIP_ROWS ? left : CPU_STRIP_ROWS);
}

static void strip_job(backward *b, uint64_t n) {
    const tess_launch *l = b->t.launch;
    const tess_strip *strip = &l->tables->strips[n];
    const tess_sequence *s = &l->tables->sequences[strip->sequence];
    const uint32_t rows = strip_rows(l, strip);
    const int d_q = is_wanted(l, TESS_ROLE_D_Q);
    for (uint32_t head = 0; head < l->n_heads; head++) {
        float *lse = strip_floats(l, 0, head, n), *delta = strip_floats(l, 1, head, n),
              *sums = strip_accumulators(l, head, n);
        for (uint32_t r = 0; r < rows; r++) {
            const uint32_t ahead = head * rows + r + STRIP_ROWS_AHEAD;
            prefetch_strip_row(l, strip, TESS_ROLE_O, ahead, rows, b->t.esize, 0);
            prefetch_strip_row(l, strip, TESS_ROLE_D_O, ahead, rows, b->t.esize, 0);
            if (d_q) mark_untouched(sums + r * (size_t)cpu_accumulator_floats(l->head_dim));
            strip_row(b, s, strip->row + r, head, &lse[r], &delta[r]);
        }
    }
}

/* LSE and Delta of a row of the launch. */
INLINE void row_numbers(const tess_launch *l, uint32_t sequence, uint32_t head, uint32_t row,
                        float *lse, float *delta) {
    const uint64_t strip = (uint64_t)l->tables->first_strips[sequence] + row / CPU_STRIP_ROWS;
    *lse = strip_floats(l, 0, head, strip)[row % CPU_STRIP_ROWS];
    *delta = strip_floats(l, 1, head, strip)[row % CPU_STRIP_ROWS];
}

/* ------------------------------------------------------------------ dQ from its accumulators */

static int64_t gradient_size(const tess_launch *l, uint32_t is_f32) {
    return l->dtype == TESS_F32 || l->gradients & is_f32 ? 4 : 2;
}

/*
 * Whether the rows of some gradients are stored past the caches, which saves reading them first:
 * they are large, and begin and end with a line. What a column needs stays in the caches then.
 */
static int may_stream(const tess_launch *l, uint32_t first, uint32_t last, uint32_t is_f32,
                      uint32_t adds) {
    enum { LEAST_BYTES = 16 << 20 };
    const int64_t size = gradient_size(l, is_f32), bytes = l->head_dim * size,
                  heads = first == TESS_ROLE_D_Q ? l->n_heads : l->n_heads / l->group;
    uint64_t at = (uint64_t)bytes;
    for (uint32_t role = first; role <= last; role++) {
        const tess_tensor *x = &l->tensor[role];
        if (!is_wanted(l, role)) continue;
        at |= (uint64_t)(uintptr_t)tensor_base(x) | (uint64_t)(x->stride_token * size) |
              (uint64_t)(x->stride_head * size) | (uint64_t)(x->stride_batch * size);
    }
    return STREAMS && at % 64 == 0 && !(l->gradients & adds) &&
           bytes * heads * CPU_STRIP_ROWS * (int64_t)l->n_strips >= LEAST_BYTES;
}

/* Writes a row of a gradient in the type that the caller asks for, or adds to it. */
static void store_gradient(const backward *b, uint32_t is_f32, uint32_t adds, char *out,
                           float *row) {
    const tess_launch *l = b->t.launch;
    const uint32_t dtype = l->gradients & is_f32 ? TESS_F32 : l->dtype;
    if (l->gradients & adds) {
        /* rows hold a multiple of 8 elements */
        float before[8];
        for (int32_t d = 0; d < l->head_dim; d += 8) {
            memcpy(before, out + 4 * (size_t)d, sizeof before);
            for (int32_t i = 0; i < 8; i++) row[d + i] += before[i];
        }
    }
    if (b->streams) {
        float stored[256] __attribute__((aligned(64)));
        const size_t words = (size_t)(l->head_dim * gradient_size(l, is_f32)) / sizeof *stored;
        store_row(dtype, stored, row, l->head_dim);
        for (size_t w = 0; w < words; w += VL) vstream(out + w * sizeof *stored, vload(stored + w));
    } else {
        store_row(dtype, out, row, l->head_dim);
    }
}

static void finish_job(backward *b, uint64_t n) {
    const tess_launch *l = b->t.launch;
    const tess_strip *strip = &l->tables->strips[n];
    const tess_sequence *s = &l->tables->sequences[strip->sequence];
    const tess_tensor *d_q = &l->tensor[TESS_ROLE_D_Q];
    const uint32_t rows = strip_rows(l, strip);
    const int64_t size = gradient_size(l, TESS_PLAN_DQ_F32);
    b->streams = may_stream(l, TESS_ROLE_D_Q, TESS_ROLE_D_Q, TESS_PLAN_DQ_F32, TESS_PLAN_DQ_ADD);
    for (uint32_t head = 0; head < l->n_heads; head++) {
        const float *sums = strip_accumulators(l, head, n);
        for (uint32_t r = 0; r < rows; r++, sums += cpu_accumulator_floats(l->head_dim)) {
            float *row = b->t.m.rows;
            if (!b->streams)
                prefetch_strip_row(l, strip, TESS_ROLE_D_Q, head * rows + r + STRIP_ROWS_AHEAD,
                                   rows, size, 1);
            if (is_untouched(sums))
                memset(row, 0, (size_t)l->head_dim * sizeof *row);
            else
                for (int32_t d = 0; d < l->head_dim; d += VL)
                    vstore(row + d, vload_any(sums + d) * l->scale);
            store_gradient(b, TESS_PLAN_DQ_F32, TESS_PLAN_DQ_ADD,
                           tensor_base(d_q) + q_offset(l, s, d_q, strip->row + r, head) * size,
                           row);
        }
    }
    if (b->streams) vstream_end();
}
