/* SPDX-License-Identifier: Apache-2.0 */
/* What the stand-ins' kernels that write a cache compute: plain loops over the arguments and tables
 * of the real ones. */
#include <stdio.h>
#include <string.h>
#include <tessera/tessera_backend.h>

#include "common/quantised.h"
#include "fake.h"
#include "paging_args.h"

enum { APPEND_16, APPEND_32, COPY_PAGES_16, COPY_PAGES_32, PARAMETERS = 9 };

static const char *const names[FAKE_PAGING_KERNELS] = {[APPEND_16] = "tess_append_16",
                                                       [APPEND_32] = "tess_append_32",
                                                       [COPY_PAGES_16] = "tess_copy_pages_16",
                                                       [COPY_PAGES_32] = "tess_copy_pages_32"};

int fake_paging_find(const char *name) {
    for (int n = 0; n < FAKE_PAGING_KERNELS; n++)
        if (strcmp(name, names[n]) == 0) return n;
    return -1;
}

static int is_append(int number) { return number <= APPEND_32; }

const size_t *fake_paging_parameters(int number) {
    static const size_t append[] = {8, 8, 8, 8, 8, 8, 8, 8, sizeof(tess_paging_args), 0},
                        copy[] = {8, 8, sizeof(tess_paging_args), 0};
    return is_append(number) ? append : copy;
}

/* What a kernel is given. A copy has the pool and the list alone. */
typedef struct arguments {
    tess_paging_args a;
    const char *new_k, *new_v;
    char *k, *v;
    const int32_t *table;
    const uint32_t *tables;
    float *scales[2]; /* of K and V */
    size_t item;
} arguments;

static uint64_t pointer_of(const void *parameter) {
    uint64_t pointer;
    memcpy(&pointer, parameter, sizeof pointer);
    return pointer;
}

static arguments read_arguments(int number, void *const *p) {
    arguments x = {.item = number == APPEND_16 || number == COPY_PAGES_16 ? 2 : 4};
    memcpy(&x.a, p[is_append(number) ? PARAMETERS - 1 : 2], sizeof x.a);
    x.k = fake_host(pointer_of(p[is_append(number) ? 2 : 0]));
    x.table = fake_host(pointer_of(p[is_append(number) ? 4 : 1]));
    if (!is_append(number)) return x;
    x.new_k = fake_host(pointer_of(p[0]));
    x.new_v = fake_host(pointer_of(p[1]));
    x.v = fake_host(pointer_of(p[3]));
    x.scales[0] = fake_host(pointer_of(p[5]));
    x.scales[1] = fake_host(pointer_of(p[6]));
    x.tables = fake_host(pointer_of(p[7]));
    return x;
}

void fake_paging_describe(int number, void *const *parameters, char *text, size_t size) {
    tess_paging_args a;
    memcpy(&a, parameters[is_append(number) ? PARAMETERS - 1 : 2], sizeof a);
    snprintf(text, size, " items %u from %u heads %u head_dim %u page %u flags %u", a.items,
             a.first, a.heads, a.head_dim, a.page, a.flags);
}

/* Copies a row. Where the host promises whole groups of 16 bytes they have to be aligned. */
static void copy_row(const arguments *x, char *to, int64_t at, const char *from, int64_t place) {
    const int64_t item = (int64_t)x->item;
    char *target = to + at * item;
    const char *source = from + place * item;
    if ((x->a.flags & TESS_PAGING_WIDE) && (((uintptr_t)target | (uintptr_t)source) & 15) != 0)
        fake_misuse(716, "a row is not aligned to 16 bytes");
    memcpy(target, source, x->a.head_dim * x->item);
}

/* Makes codes of a row of K or V, whose scale has that index. */
static void quantise_row(const arguments *x, int is_v, char *to, int64_t at, const char *from,
                         int64_t place, int64_t scale_at) {
    const uint32_t flags = x->a.flags;
    uint8_t codes[256];
    if ((((uintptr_t)to + (uint64_t)at) & 7) != 0)
        fake_misuse(716, "a row of codes is not aligned to 8 bytes");
    quantised_row(x->item == 4               ? TESS_F32
                  : flags & TESS_PAGING_BF16 ? TESS_BF16
                                             : TESS_F16,
                  from, place, (int)x->a.head_dim, flags & TESS_PAGING_I8 ? TESS_I8 : TESS_F8E4M3,
                  (flags & (is_v ? TESS_PAGING_STATIC_V : TESS_PAGING_STATIC_K)) != 0,
                  &x->scales[is_v][scale_at], codes);
    memcpy(to + at, codes, x->a.head_dim);
}

/* Where key t of kv head g lies: its page or batch, token and head; 0: nowhere. */
static int find_place(const arguments *x, const tess_sequence *s, int64_t t, uint32_t g,
                      int64_t place[3]) {
    const tess_paging_args *a = &x->a;
    int64_t u = s->kv_start + t;
    place[2] = g;
    if (a->flags & TESS_PAGING_COMPACT) {
        const tess_kv_head *head =
            (const tess_kv_head *)(const void *)(x->tables + a->kv_heads_at) + g;
        const tess_slot *slot = (const tess_slot *)(const void *)(x->tables + a->slots_at) +
                                head->slots_offset + s->kv_start + t / a->block;
        const int64_t last =
            ((int64_t)s->kv_len - 1) / a->block - TESS_SEQUENCE_FIRST_BLOCK(s->flags);
        if (head->storage != a->storage || slot->next <= last) return 0;
        u = (int64_t)slot->slot * a->block + t % a->block;
        place[2] = head->pool_head;
    }
    place[0] = s->kv_batch;
    place[1] = u;
    if (a->page == 0) return 1;
    if (u < 0 || u / a->page >= a->columns) return 0;
    place[0] = x->table[a->table_at + s->kv_batch * a->table_batch + u / a->page];
    place[1] = u % a->page;
    return place[0] >= 0 && place[0] < a->pages;
}

static void append_row(const arguments *x, uint32_t item) {
    const tess_paging_args *a = &x->a;
    const tess_sequence *s = (const tess_sequence *)(const void *)(x->tables + a->sequences_at);
    const tess_step_head *step = (const tess_step_head *)(const void *)(x->tables + a->step_at);
    uint32_t n_sequences = a->n_sequences;
    int64_t r = item;
    if (a->flags & TESS_PAGING_STEP) {
        n_sequences = step->n_sequences;
        if (item >= step->n_rows) return;
    }
    if (a->sequence_rows) {
        s += item / a->sequence_rows;
        r = item % a->sequence_rows;
    } else {
        for (uint32_t n = 1; n < n_sequences && s[1].q_start <= item; n++) s++;
        r -= s->q_start;
    }
    const int64_t t = s->q_first + r, q = s->q_start + r;
    if (r < 0 || r >= s->q_len || t < 0 || t >= s->kv_len) return;
    if (s->flags & TESS_SEQUENCE_NO_APPEND) return;
    if (t / a->block < TESS_SEQUENCE_FIRST_BLOCK(s->flags)) return;
    for (uint32_t g = 0; g < a->heads; g++) {
        int64_t at[3];
        if (!find_place(x, s, t, g, at)) continue;
        const int64_t k = a->k_at + at[0] * a->k_batch + at[1] * a->k_token + at[2] * a->k_head,
                      v = a->v_at + at[0] * a->v_batch + at[1] * a->v_token + at[2] * a->v_head,
                      new_k = a->new_k_at + s->batch * a->new_k_batch + q * a->new_k_token +
                              g * a->new_k_head,
                      new_v = a->new_v_at + s->batch * a->new_v_batch + q * a->new_v_token +
                              g * a->new_v_head;
        if (a->flags & TESS_PAGING_CODES) {
            quantise_row(x, 0, x->k, k, x->new_k, new_k,
                         a->k_scale_at + at[0] * a->k_scale_batch + at[1] * a->k_scale_token +
                             at[2] * a->k_scale_head);
            quantise_row(x, 1, x->v, v, x->new_v, new_v,
                         a->v_scale_at + at[0] * a->v_scale_batch + at[1] * a->v_scale_token +
                             at[2] * a->v_scale_head);
        } else {
            copy_row(x, x->k, k, x->new_k, new_k);
            copy_row(x, x->v, v, x->new_v, new_v);
        }
    }
}

static void copy_token(const arguments *x, uint32_t item) {
    const tess_paging_args *a = &x->a;
    const int32_t *pair = x->table + a->table_at + item / a->page * 2;
    const int64_t token = a->k_at + item % a->page * a->k_token;
    for (int side = 0; side < 2; side++)
        if (pair[side] < 0 || pair[side] >= (int64_t)a->pages) return;
    for (uint32_t head = 0; head < a->heads && pair[0] != pair[1]; head++)
        copy_row(x, x->k, token + pair[1] * a->k_batch + head * a->k_head, x->k,
                 token + pair[0] * a->k_batch + head * a->k_head);
}

void fake_paging_run(int number, unsigned groups, void *const *parameters) {
    const arguments x = read_arguments(number, parameters);
    if (groups < x.a.items) fake_misuse(700, "%u rows have %u workgroups", x.a.items, groups);
    for (uint32_t n = 0; n < x.a.items; n++) {
        if (is_append(number))
            append_row(&x, x.a.first + n);
        else
            copy_token(&x, x.a.first + n);
    }
}
