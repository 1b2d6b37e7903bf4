/* SPDX-License-Identifier: Apache-2.0 */
/* Writing a cache: one new row of one sequence, or one token of a pair of pages. */
#include "cpu.h"

#include <string.h>

#include "kernels/dialect_c.h"
#include "kernels/quantise.h"
#undef args
#undef uint

static size_t size_of(uint32_t dtype) {
    return dtype == TESS_F32 ? 4 : dtype >= TESS_F8E4M3 ? 1 : 2;
}

static size_t element_size(const tess_launch *l, uint32_t role) {
    if (role == TESS_ROLE_K_SCALE || role == TESS_ROLE_V_SCALE) return sizeof(float);
    return size_of(role == TESS_ROLE_K || role == TESS_ROLE_V ? l->kv_dtype : l->dtype);
}

/* Where an element lies, its batch or page first. */
static char *place(const tess_launch *l, uint32_t role, int64_t unit, int64_t token, int64_t head) {
    const tess_tensor *t = &l->tensor[role];
    const int64_t at = unit * t->stride_batch + token * t->stride_token + head * t->stride_head;
    return (char *)(uintptr_t)(t->buffer.handle + t->buffer.offset) +
           at * (int64_t)element_size(l, role);
}

static const int32_t *table_of(const tess_launch *l) {
    const tess_buffer *b = &l->tensor[TESS_ROLE_BLOCK_TABLE].buffer;
    return (const int32_t *)(uintptr_t)(b->handle + b->offset);
}

/* The sequence of row `n` of a launch, and which of its rows it is. A row of no sequence counts as
 * one before the first one's. */
static const tess_sequence *find_sequence(const tess_launch *l, uint64_t n, int64_t *row) {
    const tess_sequence *all = l->tables->sequences;
    if (l->batch_strided) {
        *row = (int64_t)(n % (uint64_t)l->q_tokens);
        return &all[n / (uint64_t)l->q_tokens];
    }
    uint32_t low = 0;
    for (uint32_t high = l->tables->step ? l->tables->step->n_sequences : l->n_sequences;
         high - low > 1;) {
        const uint32_t middle = low + (high - low) / 2;
        if (all[middle].q_start <= (int64_t)n)
            low = middle;
        else
            high = middle;
    }
    *row = (int64_t)n - all[low].q_start;
    return &all[low];
}

/* Where a key lies: its page or batch, the token in it, and the head. */
typedef struct spot {
    int64_t unit, token, head;
} spot;

/* Finds the place of key t of kv head g; 0: it has none, or a later block of the sequence has it.
 */
static int find_spot(const tess_launch *l, const tess_sequence *s, int64_t t, uint32_t g, spot *p) {
    int64_t u = s->kv_start + t;
    *p = (spot){s->kv_batch, u, g};
    if (l->compact) {
        const tess_kv_head *head = &l->tables->kv_heads[g];
        const tess_slot *slot =
            &l->tables->slots[(int64_t)head->slots_offset + s->kv_start + t / l->block];
        const int64_t last = (s->kv_len - 1) / l->block - TESS_SEQUENCE_FIRST_BLOCK(s->flags);
        if (head->storage != l->storage || slot->next <= last) return 0;
        u = (int64_t)slot->slot * l->block + t % l->block;
        p->head = head->pool_head;
        p->token = u;
    }
    if (l->page == 0) return 1;
    const int64_t stride = l->tensor[TESS_ROLE_BLOCK_TABLE].stride_batch, column = u / l->page;
    if (!l->trusted && (u < 0 || column >= stride)) return 0;
    const int32_t id = table_of(l)[s->kv_batch * stride + column];
    p->unit = id;
    p->token = u % l->page;
    return l->trusted || (id >= 0 && id < l->pages);
}

/* Element d of a new row as the bits of a float. */
static uint32_t bits_of(const tess_launch *l, const char *row, int32_t d, uint32_t flags) {
    uint32_t word;
    uint16_t half;
    if (l->dtype == TESS_F32) {
        memcpy(&word, row + 4 * (size_t)d, sizeof word);
        return word;
    }
    memcpy(&half, row + 2 * (size_t)d, sizeof half);
    return tess_widen_bits(half, flags);
}

static void quantise_row(const tess_launch *l, const char *row, char *scale, int is_static,
                         char *codes) {
    const uint32_t flags = (l->kv_dtype == TESS_I8 ? TESS_PAGING_I8 : 0) |
                           (l->dtype == TESS_BF16 ? TESS_PAGING_BF16 : 0) |
                           (l->dtype == TESS_F16 ? TESS_PAGING_F16 : 0);
    uint32_t amax = 0, given;
    for (int32_t d = 0; d < l->head_dim && !is_static; d++) {
        const uint32_t size = bits_of(l, row, d, flags) & 0x7fffffff;
        if (size > amax) amax = size;
    }
    memcpy(&given, scale, sizeof given);
    const tess_scaling x = is_static ? tess_static_scaling(given) : tess_scaling_of(amax, flags);
    memcpy(scale, &x.scale, is_static ? 0 : sizeof x.scale);
    for (int32_t d = 0; d < l->head_dim; d++)
        codes[d] =
            x.inverse == 0
                ? 0
                : (char)tess_code_of(tess_from_bits(bits_of(l, row, d, flags)) * x.inverse, flags);
}

/* Writes a new row to its place in K or V. */
static void write_row(const tess_launch *l, const spot *p, uint32_t role, uint32_t scale_role,
                      const char *row) {
    char *to = place(l, role, p->unit, p->token, p->head);
    if (l->kv_dtype < TESS_F8E4M3)
        memcpy(to, row, (size_t)l->head_dim * size_of(l->dtype));
    else
        quantise_row(l, row, place(l, scale_role, p->unit, p->token, p->head),
                     l->tensor[scale_role].stride_token == 0, to);
}

void tess_cpu_append(const tess_launch *l, uint64_t n) {
    const uint32_t heads = l->n_heads / l->group;
    int64_t r;
    if (l->tables->step && n >= l->tables->step->n_rows) return;
    const tess_sequence *s = find_sequence(l, n, &r);
    const int64_t t = s->q_first + r;
    if (r < 0 || r >= s->q_len || t < 0 || t >= s->kv_len) return;
    if (t / l->block < TESS_SEQUENCE_FIRST_BLOCK(s->flags)) return;
    if (s->flags & TESS_SEQUENCE_NO_APPEND) return;
    for (uint32_t g = 0; g < heads; g++) {
        spot p;
        if (!find_spot(l, s, t, g, &p)) continue;
        write_row(l, &p, TESS_ROLE_K, TESS_ROLE_K_SCALE,
                  place(l, TESS_ROLE_NEW_K, s->batch, s->q_start + r, g));
        write_row(l, &p, TESS_ROLE_V, TESS_ROLE_V_SCALE,
                  place(l, TESS_ROLE_NEW_V, s->batch, s->q_start + r, g));
    }
}

void tess_cpu_copy_pages(const tess_launch *l, uint64_t n) {
    const int32_t *pair = table_of(l) + n / (uint64_t)l->page * 2;
    const int64_t token = (int64_t)(n % (uint64_t)l->page);
    const size_t bytes = (size_t)l->head_dim * size_of(l->dtype);
    for (int side = 0; side < 2; side++)
        if (pair[side] < 0 || pair[side] >= l->pages) return;
    if (pair[0] == pair[1]) return;
    for (uint32_t head = 0; head < l->n_heads; head++)
        memcpy(place(l, TESS_ROLE_K, pair[1], token, head),
               place(l, TESS_ROLE_K, pair[0], token, head), bytes);
}
