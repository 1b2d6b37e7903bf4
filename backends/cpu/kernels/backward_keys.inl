/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The keys of a column: their rows of K and V become operands in lanes, and their sums become rows
 * of dK and dV. Rows are often pages apart, where hardware prefetchers do not follow, so the rows
 * of the next panel are prefetched one by one between steps of the current one.
 */

INLINE int64_t kv_offset(const tess_launch *l, const tess_sequence *s, const tess_tensor *x,
                         int64_t key, int64_t head) {
    return (l->batch_strided ? s->kv_batch * x->stride_batch : 0) +
           (s->kv_start + key) * x->stride_token + head * x->stride_head;
}

/* Lists the positions of the column's keys. */
static void list_keys(backward *b) {
    const uint32_t block = (uint32_t)b->t.launch->block;
    int64_t first = 0;
    for (uint32_t k = 0, at = 0; k < b->column->keys; k++, at++) {
        if (at == block) at = 0;
        if (at == 0) first = tess_column_key(b->column, block, k);
        b->key[k] = (int32_t)(first + at);
    }
}

/* The rows of a panel's keys in K, V or a gradient of these; `none` for missing keys. */
static void find_panel(const backward *b, uint32_t role, int32_t first, int64_t esize, char *none,
                       char **rows) {
    const tess_launch *l = b->t.launch;
    const tess_column *c = b->column;
    const tess_tensor *x = &l->tensor[role];
    char *base =
        tensor_base(x) + kv_offset(l, &l->tables->sequences[c->sequence], x, 0, c->kv_head) * esize;
    const int64_t stride = x->stride_token * esize;
    for (int32_t i = 0; i < PANEL; i++)
        rows[i] = first + i < c->keys ? base + b->key[first + i] * stride : none;
}

/* A row of a gradient of the column's keys. */
static char *gradient_row(const backward *b, uint32_t role, int32_t key) {
    const tess_launch *l = b->t.launch;
    const tess_tensor *x = &l->tensor[role];
    const int64_t size = gradient_size(l, TESS_PLAN_DKV_F32);
    return tensor_base(x) + kv_offset(l, &l->tables->sequences[b->column->sequence], x, b->key[key],
                                      b->column->kv_head) *
                                size;
}

/* A list of rows to prefetch, of which the first that is NULL ends it. */
typedef struct row_list {
    char *row[PANEL];
    int32_t next;
    int64_t bytes;
} row_list;

INLINE void prefetch_listed(row_list *list, int32_t count, const int write) {
    for (; count > 0 && list->next < PANEL && list->row[list->next]; count--, list->next++)
        prefetch_bytes(list->row[list->next], list->bytes, write);
}

/* ------------------------------------------------------------------ K and V */

/* Transposes rows into a panel. With `negate` and a negative scale, they are negated. */
static void pack_lanes(const backward *b, const char *const *rows, int32_t lanes, int negate,
                       row_list *ahead, float *x) {
    const job_memory *m = &b->t.m;
    const int32_t words = WORD_OF(b->t.head_dim), padded = round_up(m->words, VL);
    const int in_place = (PAIRS || b->t.launch->dtype == TESS_F32) && words == padded;
    const vi sign = viset(!negate ? 0 : PAIRS ? (int32_t)0x80008000 : INT32_MIN);
    for (int32_t lane = 0; lane < lanes; lane += VL) {
        const char *source[VL];
        for (int32_t i = 0; i < VL; i++) {
            float *row = m->rows + (size_t)i * padded;
            source[i] = in_place ? rows[lane + i] : (const char *)row;
            if (in_place) continue;
            memset(row + words, 0, (size_t)(padded - words) * sizeof(float));
            load_words(b->t.launch->dtype, rows[lane + i], b->t.head_dim, row);
            prefetch_listed(ahead, 1, 0);
        }
        for (int32_t w = 0; w < padded; w += VL) {
            vf r[VL];
            for (int32_t i = 0; i < VL; i++)
                r[i] = (vf)((vi)vload_any(source[i] + 4 * (size_t)w) ^ sign);
            vtranspose(r);
            for (int32_t i = 0; i < VL; i++) vstore(x + (size_t)(w + i) * PANEL + lane, r[i]);
            prefetch_listed(ahead, in_place ? VL * VL / padded + 1 : 0, 0);
        }
    }
}

/* Finds the keys of a panel with an element that is not finite. dQ's product gets zeros for them:
 * see spoil_rows. */
static void find_infinite(backward *b, int32_t key, int32_t count, char *zero, char **rows) {
    const job_memory *m = &b->t.m;
    const int32_t padded = round_up(b->t.head_dim, VL);
    for (int32_t i = 0; i < PANEL && i < count; i++) {
        vf sum = vset(0.0f);
        memset(m->rows + padded - VL, 0, VL * sizeof(float));
        load_row(b->t.launch->dtype, rows[i], b->t.head_dim, m->rows);
        for (int32_t d = 0; d < padded; d += VL) sum += vload(m->rows + d) * 0.0f;
        if (vany((vi)(sum != sum))) { /* NOLINT(misc-redundant-expression): true where it is NaN */
            b->infinite[b->n_infinite++] = (uint16_t)(key + i);
            rows[i] = zero;
        }
    }
}

/* Packs the operands that the column's products need. */
static void pack_keys_of_column(backward *b) {
    const tess_launch *l = b->t.launch;
    const task *t = &b->t;
    char zero[sizeof zero_row] = {0}, *k[PANEL];
    row_list v = {.bytes = b->t.head_dim * (int64_t)t->esize}, next = v;
    find_panel(b, TESS_ROLE_K, 0, t->esize, zero, k);
    for (int32_t key = 0; key < b->lanes; key += PANEL) {
        const int32_t lanes = panel_lanes(key, b->column->keys);
        find_panel(b, TESS_ROLE_V, key, t->esize, zero, v.row);
        v.next = 0;
        pack_lanes(b, (const char *const *)k, lanes, l->scale < 0, &v,
                   b->at.x[FIRST] + (size_t)key * t->m.q_words);
        if (is_wanted(l, TESS_ROLE_D_Q)) {
            find_infinite(b, key, b->column->keys - key, zero, k);
            pack_pairs_of_keys(&t->m, l->dtype, t->head_dim, (const char *const *)k, lanes,
                               b->at.keys + (size_t)WORD_OF(key) * PANEL,
                               (size_t)WORD_OF(b->lanes) * PANEL);
        }
        find_panel(b, TESS_ROLE_K, key + PANEL, t->esize, zero, next.row);
        next.next = 0;
        pack_lanes(b, (const char *const *)v.row, lanes, 0, &next,
                   b->at.x[SECOND] + (size_t)key * t->m.q_words);
        memcpy(k, next.row, sizeof k);
    }
}

/* ------------------------------------------------------------------ dK and dV */

#if PAIRS
/* Transposes VL lanes of sums back as words of two elements, and stores them as rows of bf16. */
static void store_pairs(const backward *b, const float *sums, float factor, char *const *out,
                        row_list *ahead) {
    const int32_t words = WORD_OF(b->t.head_dim);
    for (int32_t w = 0; w < words; w += VL) {
        const int32_t count = words - w < VL ? words - w : VL;
        vf r[VL];
        for (int32_t i = 0; i < VL; i++) {
            const float *pair = sums + (size_t)(w + i) * 2 * PANEL;
            r[i] = i < count ? vpair_results(vload(pair) * factor, vload(pair + PANEL) * factor)
                             : vset(0.0f);
        }
        vtranspose(r);
        prefetch_listed(ahead, VL * VL / words + 1, 1);
        for (int32_t i = 0; i < VL; i++) {
            if (!out[i]) continue;
            char *row = out[i] + (size_t)w * sizeof(float);
            if (b->streams)
                vstream(row, r[i]);
            else if (count == VL)
                vstore_any(row, r[i]);
            else
                for (int32_t x = 0; x < count; x += 4) /* rows hold a multiple of 8 elements */
                    memcpy(row + 4 * (size_t)x, (const char *)&r[i] + 4 * (size_t)x, 16);
        }
    }
}
#endif

/* Transposes the sums of a panel back, multiplies them, and stores the rows that are not NULL. */
static void store_lanes(const backward *b, const float *sums, int32_t lanes, float factor,
                        char *const *out, row_list *ahead) {
    const task *t = &b->t;
    const int32_t padded = round_up(t->head_dim, VL);
    for (int32_t lane = 0; lane < lanes; lane += VL) {
#if PAIRS
        if (!(t->launch->gradients & (TESS_PLAN_DKV_F32 | TESS_PLAN_DKV_ADD))) {
            store_pairs(b, sums + lane, factor, out + lane, ahead);
            continue;
        }
#endif
        for (int32_t d = 0; d < padded; d += VL) {
            vf r[VL];
            for (int32_t i = 0; i < VL; i++)
                r[i] = vload(sums + (size_t)(d + i) * PANEL + lane) * factor;
            vtranspose(r);
            for (int32_t i = 0; i < VL; i++) vstore(t->m.rows + (size_t)i * padded + d, r[i]);
            prefetch_listed(ahead, VL * VL / padded + 1, 1);
        }
        for (int32_t i = 0; i < VL; i++)
            if (out[lane + i])
                store_gradient(b, TESS_PLAN_DKV_F32, TESS_PLAN_DKV_ADD, out[lane + i],
                               t->m.rows + (size_t)i * padded);
    }
}

/* Writes the rows of dK and dV that are wanted. */
static void finish_keys(const backward *b) {
    static const uint32_t roles[BOTH] = {TESS_ROLE_D_K, TESS_ROLE_D_V};
    const tess_launch *l = b->t.launch;
    const int64_t size = gradient_size(l, TESS_PLAN_DKV_F32);
    const int far = !b->streams && b->ahead.n_keys < b->column->keys;
    row_list now, next = {.bytes = b->t.head_dim * size};
    for (int n = FIRST; n < BOTH; n++) {
        if (!is_wanted(l, roles[n])) continue;
        find_panel(b, roles[n], 0, size, NULL, next.row);
        next.next = far ? 0 : PANEL;
        prefetch_listed(&next, PANEL, 1);
        for (int32_t key = 0; key < b->lanes; key += PANEL) {
            now = next;
            find_panel(b, roles[n], key + PANEL, size, NULL, next.row);
            next.next = far ? 0 : PANEL;
            store_lanes(b, b->at.sums[n] + (size_t)key * b->t.m.o_elements,
                        panel_lanes(key, b->column->keys), n == FIRST ? l->scale : 1.0f, now.row,
                        &next);
        }
    }
    if (b->streams) vstream_end();
}

/* ------------------------------------------------------------------ between the products */

static void prefetch_few(backward *b) {
    const tess_launch *l = b->t.launch;
    const int64_t bytes = b->t.head_dim * (int64_t)b->t.esize;
    ahead_rows *ahead = &b->ahead;
    for (int32_t n = 0; n < ahead->at_once; n++) {
        if (ahead->n_items < ahead->items) {
            const float *sums = b->accumulators[ahead->n_items++];
            if (sums) prefetch_bytes((const char *)sums, b->t.head_dim * (int64_t)sizeof *sums, 1);
        } else if (ahead->n_rows < ahead->rows) {
            const int64_t row = ahead->n_rows++, at = row - ROWS_AHEAD;
            for (int x = FIRST; x < BOTH; x++) {
                prefetch_bytes(ahead->first[x] + row * ahead->stride[x], bytes, 0);
                if (at >= 0)
                    pack_row(&b->t.m, l->dtype, b->t.head_dim,
                             ahead->first[x] + at * ahead->stride[x],
                             b->at.y_next[x] + (size_t)at * b->t.m.k_pitch);
            }
        } else if (ahead->n_keys < ahead->keys) {
            const int64_t size = b->t.head_dim * gradient_size(l, TESS_PLAN_DKV_F32);
            const int32_t key = ahead->n_keys++;
            if (is_wanted(l, TESS_ROLE_D_K))
                prefetch_bytes(gradient_row(b, TESS_ROLE_D_K, key), size, 1);
            if (is_wanted(l, TESS_ROLE_D_V))
                prefetch_bytes(gradient_row(b, TESS_ROLE_D_V, key), size, 1);
        } else {
            return;
        }
    }
}
