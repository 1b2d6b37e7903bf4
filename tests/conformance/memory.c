/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors with unusual strides, and memory whose contents must not matter: gaps, keys past the end,
 * blocks that no row keeps, the workspace. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "properties.h"
#include "rig.h"

static const char *const lines[] = {
    "pattern=s2 block=16 local=2 stride=3 heads=4 kv_heads=2 head_dim=24 batch=2 q_len=37 "
    "kv_len=101",
    "pattern=s2 block=16 local=1 stride=4 offset=1 dense_heads=1 heads=3 head_dim=72 q_len=3 "
    "kv_len=161 dtype=f16 kv_split=3",
    "pattern=window left=20 right=9 causal=0 sinks=3 heads=2 kv_heads=1 head_dim=40 q_len=70 "
    "kv_len=66 dtype=bf16",
    "pattern=dense heads=2 head_dim=128 q_lens=1,30,0,17 kv_lens=77,30,4,9 dtype=bf16",
    "pattern=s2 causal=0 block=16 local=2 stride=4 heads=4 head_dim=16 q_len=65 kv_len=65 "
    "dtype=f16",
};
enum { LINES = sizeof lines / sizeof lines[0] };

/* One of four ways to order the dimensions, with `gap` elements between neighbours. */
static rig_view view_of(const rig *r, tess_role role, int order, int64_t gap, int64_t offset) {
    const rig_dims *d = &r->dims[role];
    rig_view v = {0, 0, 0, offset};
    switch (order) {
    case 0: /* batch, token, head */
        v.head = d->elements + gap;
        v.token = d->heads * v.head + gap;
        v.batch = d->tokens * v.token + gap;
        break;
    case 1: /* batch, head, token */
        v.token = d->elements + gap;
        v.head = d->tokens * v.token + gap;
        v.batch = d->heads * v.head + gap;
        break;
    case 2: /* head, token, batch */
        v.batch = d->elements + gap;
        v.token = d->batch * v.batch + gap;
        v.head = d->tokens * v.token + gap;
        break;
    default: /* token, batch, head */
        v.head = d->elements + gap;
        v.batch = d->heads * v.head + gap;
        v.token = d->batch * v.batch + gap;
    }
    return v;
}

void test_strides_and_offsets(void **state) {
    for (int n = 0; n < LINES; n++) {
        rig_pair x;
        if (!rig_pair_create(&x, *state, lines[n])) continue;
        rig_check(&x.r, x.plain.o, x.plain.lse,
                  x.r.p.dtype == TESS_F32   ? 1e-5
                  : x.r.p.dtype == TESS_F16 ? 4e-3
                                            : 3e-2);
        for (int offset = 0; offset < 16; offset++) {
            rig_view views[5];
            for (int role = 0; role < 5; role++)
                views[role] = view_of(&x.r, (tess_role)role, (offset + role) % 4,
                                      (offset * 7 + role * 3) % 11, (offset + role * 5) % 16);
            const rig_options options = {.views = views};
            char what[64];
            snprintf(what, sizeof what, "layout %d of problem %d", offset, n);
            rig_run(&x.r, &options, x.got.o, x.got.lse);
            rig_pair_same(what, &x);
        }
        rig_pair_release(&x);
    }
}

/* Stride 0: one query for every head, one key and value head for every kv head, one sequence of
 * keys for the whole batch. */
void test_broadcast_inputs(void **state) {
    for (int n = 0; n < 2; n++) {
        rig r;
        rig_create(&r, *state, lines[n], NULL, NULL);
        if (r.refused) continue;
        rig_view views[5];
        for (int role = 0; role < 5; role++) views[role] = rig_contiguous(&r, (tess_role)role);
        void *copy[3];
        for (int role = 0; role < 3; role++) {
            const rig_dims *d = &r.dims[role];
            const size_t run = (size_t)d->elements * r.size[role];
            const rig_view *c = &views[role];
            copy[role] = malloc(r.bytes[role]);
            assert_non_null(copy[role]);
            for (int64_t b = 0; b < d->batch; b++)
                for (int64_t t = 0; t < d->tokens; t++)
                    for (int64_t h = 0; h < d->heads; h++)
                        memcpy((char *)copy[role] +
                                   (size_t)(b * c->batch + t * c->token + h * c->head) *
                                       r.size[role],
                               (char *)r.data[role] + (size_t)(t * c->token) * r.size[role], run);
            views[role].batch = views[role].head = 0;
        }
        rig_outputs plain = rig_outputs_of(&r), got = rig_outputs_of(&r);
        const rig_options replicated = {.data = {copy[0], copy[1], copy[2]}};
        rig_run(&r, &replicated, plain.o, plain.lse);
        const rig_options broadcast = {.views = views, .data = {copy[0], copy[1], copy[2]}};
        rig_run(&r, &broadcast, got.o, got.lse);
        rig_same_outputs("stride 0", &r, &plain, &got);
        for (int role = 0; role < 3; role++) free(copy[role]);
        rig_outputs_free(&plain);
        rig_outputs_free(&got);
        rig_release(&r);
    }
}

/* Rows of K and V that overlap: tokens are 4 to 16 elements apart, or none, and heads follow each
 * other. Kernels that read rows in place, and those that pack them, see the same elements. */
void test_overlapping_inputs(void **state) {
    static const char *const few[] = {
        "pattern=dense heads=2 kv_heads=2 head_dim=24 q_len=14 kv_len=192",
        "pattern=s2 block=32 local=2 stride=2 heads=2 kv_heads=2 head_dim=40 q_len=5 kv_len=200 "
        "dtype=bf16",
    };
    static const int64_t tokens_apart[] = {0, 4, 8, 16};
    for (size_t n = 0; n < 2 * sizeof tokens_apart / sizeof *tokens_apart; n++) {
        rig r;
        rig_create(&r, *state, few[n % 2], NULL, NULL);
        if (r.refused) continue;
        rig_view views[5];
        void *copy[3] = {NULL};
        for (int role = 0; role < 5; role++) views[role] = rig_contiguous(&r, (tess_role)role);
        for (int role = 1; role < 3; role++) {
            const rig_dims *d = &r.dims[role];
            views[role].token = tokens_apart[n / 2];
            views[role].head = d->tokens * views[role].token;
            copy[role] = malloc(r.bytes[role]);
            assert_non_null(copy[role]);
            rig_gather(&r, (tess_role)role, &views[role], copy[role], r.data[role]);
        }
        rig_outputs plain = rig_outputs_of(&r), got = rig_outputs_of(&r);
        const rig_options apart = {.data = {NULL, copy[1], copy[2]}};
        rig_run(&r, &apart, plain.o, plain.lse);
        const rig_options overlapping = {.views = views, .data = {NULL, copy[1], copy[2]}};
        rig_run(&r, &overlapping, got.o, got.lse);
        rig_same_outputs("overlapping rows", &r, &plain, &got);
        for (int role = 1; role < 3; role++) free(copy[role]);
        rig_outputs_free(&plain);
        rig_outputs_free(&got);
        rig_release(&r);
    }
}

/* The plain run's workspace holds zeros. */
void test_workspace_contents(void **state) {
    static const int bytes[] = {0xff, 0x7f};
    for (int n = 0; n < LINES; n++) {
        rig_pair x;
        if (!rig_pair_create(&x, *state, lines[n])) continue;
        for (int b = 0; b < 2; b++) {
            const rig_options options = {.workspace_byte = bytes[b]};
            rig_run(&x.r, &options, x.got.o, x.got.lse);
            rig_pair_same("contents of the workspace", &x);
        }
        rig_pair_release(&x);
    }
}

/* ------------------------------------------------------------------ poison */

static void poison(const rig *r, int role, void *data, int64_t batch, int64_t token, int64_t head) {
    const rig_view c = rig_contiguous(r, (tess_role)role);
    memset((char *)data +
               (size_t)(batch * c.batch + token * c.token + head * c.head) * r->size[role],
           0xff, (size_t)r->dims[role].elements * r->size[role]);
}

/* Key blocks that no query of any head of the group keeps hold NaN. */
void test_poisoned_blocks(void **state) {
    static const char *const sparse[] = {
        "pattern=s2 block=16 local=2 stride=5 heads=4 kv_heads=4 head_dim=32 q_len=20 kv_len=411",
        "pattern=s2 block=16 local=1 stride=7 offset=1 heads=4 kv_heads=2 head_dim=64 q_len=1 "
        "kv_len=500 dtype=bf16",
        "pattern=s2 block=16 local=1 stride=6 heads=4 kv_heads=2 head_dim=64 q_len=5 kv_len=500 "
        "dtype=f16 kv_split=4",
        "pattern=window left=40 right=0 sinks=20 block=16 heads=2 head_dim=32 q_len=33 kv_len=300",
        "pattern=s2 causal=0 block=32 local=1 stride=9 heads=2 head_dim=16 q_len=40 kv_len=700",
    };
    for (size_t n = 0; n < sizeof sparse / sizeof sparse[0]; n++) {
        rig r;
        rig_create(&r, *state, sparse[n], NULL, NULL);
        if (r.refused) continue;
        const problem *p = &r.p;
        const int64_t n_blocks = (p->kv_len + p->block - 1) / p->block;
        const int group = p->heads / p->kv_heads;
        void *k = malloc(r.bytes[TESS_ROLE_K]), *v = malloc(r.bytes[TESS_ROLE_V]);
        assert_true(k && v);
        memcpy(k, r.data[1], r.bytes[TESS_ROLE_K]);
        memcpy(v, r.data[2], r.bytes[TESS_ROLE_V]);
        int poisoned = 0;
        for (int32_t g = 0; g < p->kv_heads; g++)
            for (int64_t j = 0; j < n_blocks; j++) {
                int used = 0;
                for (int64_t t = j * p->block; t < (j + 1) * p->block && t < p->kv_len; t++)
                    for (int32_t h = g * group; h < (g + 1) * group; h++)
                        for (int64_t row = 0; row < p->q_len; row++)
                            used |= reference_kept(p, h, p->kv_len - p->q_len + row, t, p->kv_len);
                if (used) continue;
                poisoned++;
                for (int64_t t = j * p->block; t < (j + 1) * p->block && t < p->kv_len; t++) {
                    poison(&r, TESS_ROLE_K, k, 0, t, g);
                    poison(&r, TESS_ROLE_V, v, 0, t, g);
                }
            }
        if (!poisoned) fail_msg("%s leaves no block to poison", sparse[n]);
        rig_outputs plain = rig_outputs_of(&r), got = rig_outputs_of(&r);
        rig_run(&r, NULL, plain.o, plain.lse);
        const rig_options options = {.data = {NULL, k, v}, .workspace_byte = 0xff};
        rig_run(&r, &options, got.o, got.lse);
        rig_same_outputs(sparse[n], &r, &plain, &got);
        free(k);
        free(v);
        rig_outputs_free(&plain);
        rig_outputs_free(&got);
        rig_release(&r);
    }
}

/* A block that one head of the group keeps and another does not: the other head's rows must not
 * change. */
void test_poison_of_another_head(void **state) {
    rig r;
    rig_create(
        &r, *state,
        "pattern=s2 block=16 local=1 stride=4 heads=4 kv_heads=1 head_dim=32 q_len=1 kv_len=400",
        NULL, NULL);
    if (r.refused) return;
    const problem *p = &r.p;
    rig_outputs plain = rig_outputs_of(&r), got = rig_outputs_of(&r);
    rig_run(&r, NULL, plain.o, plain.lse);
    int blocks_tested = 0;
    for (int64_t j = 0; j < 24; j++) {
        void *k = malloc(r.bytes[TESS_ROLE_K]), *v = malloc(r.bytes[TESS_ROLE_V]);
        assert_true(k && v);
        memcpy(k, r.data[1], r.bytes[TESS_ROLE_K]);
        memcpy(v, r.data[2], r.bytes[TESS_ROLE_V]);
        for (int64_t t = j * 16; t < (j + 1) * 16; t++) {
            poison(&r, TESS_ROLE_K, k, 0, t, 0);
            poison(&r, TESS_ROLE_V, v, 0, t, 0);
        }
        const rig_options options = {.data = {NULL, k, v}};
        rig_run(&r, &options, got.o, got.lse);
        const size_t head = 32 * sizeof(float);
        int reached = 0;
        for (int32_t h = 0; h < 4; h++) {
            if (reference_kept(p, h, 399, j * 16, 400)) {
                reached++;
                continue;
            }
            rig_same_bits("o of a head that does not keep the block", (char *)plain.o + h * head,
                          (char *)got.o + h * head, head);
            assert_true(plain.lse[h] == got.lse[h]);
        }
        blocks_tested += reached > 0 && reached < 4;
        free(k);
        free(v);
    }
    assert_in_range(blocks_tested, 20, 24);
    rig_outputs_free(&plain);
    rig_outputs_free(&got);
    rig_release(&r);
}

typedef struct lengths {
    const int64_t *q, *kv;
    int64_t most_q, most_kv;
} lengths;

static void set_lengths(tess_plan_desc *desc, void *user) {
    const lengths *l = user;
    desc->q_lens = l->q;
    desc->kv_lens = l->kv;
    desc->q_len = l->most_q;
    desc->kv_len = l->most_kv;
}

/* A padded batch with a length for each sequence: rows past a length are neither read nor written,
 * and the rest equals the packed batch. */
void test_padded_equals_packed(void **state) {
    static const char *const packed_lines[] = {
        "pattern=s2 block=16 local=2 stride=3 heads=4 kv_heads=2 head_dim=40 q_lens=33,1,0,50,7 "
        "kv_lens=120,77,19,50,0 batch_invariant=1",
        "pattern=window left=31 right=12 causal=0 sinks=4 heads=2 head_dim=64 q_lens=33,1,0,50,7 "
        "kv_lens=120,77,19,50,0 batch_invariant=1 dtype=bf16",
    };
    static const char *const padded_lines[] = {
        "pattern=s2 block=16 local=2 stride=3 heads=4 kv_heads=2 head_dim=40 batch=5 q_len=52 "
        "kv_len=121 batch_invariant=1",
        "pattern=window left=31 right=12 causal=0 sinks=4 heads=2 head_dim=64 batch=5 q_len=52 "
        "kv_len=121 batch_invariant=1 dtype=bf16",
    };
    static const int64_t q[5] = {33, 1, 0, 50, 7}, kv[5] = {120, 77, 19, 50, 0};
    for (int n = 0; n < 2; n++) {
        rig packed, padded;
        lengths l = {q, kv, 52, 121};
        rig_create(&packed, *state, packed_lines[n], NULL, NULL);
        rig_create(&padded, *state, padded_lines[n], set_lengths, &l);
        if (packed.refused || padded.refused) continue;
        for (int role = 0; role < 3; role++) {
            const rig_view a = rig_contiguous(&packed, (tess_role)role),
                           b = rig_contiguous(&padded, (tess_role)role);
            const size_t size = packed.size[role];
            memset(padded.data[role], 0xff, padded.bytes[role]);
            for (int64_t s = 0; s < 5; s++) {
                const int64_t tokens = role ? kv[s] : q[s],
                              start = role ? problem_kv_start(&packed.p, s)
                                           : problem_q_start(&packed.p, s);
                memcpy((char *)padded.data[role] + (size_t)(s * b.batch) * size,
                       (char *)packed.data[role] + (size_t)(start * a.token) * size,
                       (size_t)(tokens * a.token) * size);
            }
        }
        rig_outputs one = rig_outputs_of(&packed), two = rig_outputs_of(&padded);
        memset(two.o, 0x11, padded.bytes[TESS_ROLE_O]);
        memset(two.lse, 0x11, padded.bytes[TESS_ROLE_LSE]);
        rig_run(&packed, NULL, one.o, one.lse);
        rig_run(&padded, NULL, two.o, two.lse);
        const rig_view a = rig_contiguous(&packed, TESS_ROLE_O),
                       b = rig_contiguous(&padded, TESS_ROLE_O);
        const rig_view c = rig_contiguous(&packed, TESS_ROLE_LSE),
                       d = rig_contiguous(&padded, TESS_ROLE_LSE);
        const size_t size = packed.size[TESS_ROLE_O];
        for (int64_t s = 0; s < 5; s++) {
            const int64_t start = problem_q_start(&packed.p, s);
            rig_same_bits(
                "o of a padded sequence", (char *)one.o + (size_t)(start * a.token) * size,
                (char *)two.o + (size_t)(s * b.batch) * size, (size_t)(q[s] * a.token) * size);
            for (int64_t row = 0; row < 52; row++)
                for (int32_t h = 0; h < packed.p.heads; h++) {
                    float untouched;
                    memset(&untouched, 0x9d, sizeof untouched);
                    const float got = two.lse[s * d.batch + row * d.token + h * d.head];
                    const float wanted =
                        row < q[s] ? one.lse[(start + row) * c.token + h * c.head] : untouched;
                    rig_same_bits("lse of a padded sequence", &wanted, &got, sizeof got);
                }
            for (int64_t byte = q[s] * a.token * (int64_t)size; byte < 52 * a.token * (int64_t)size;
                 byte++)
                if (((unsigned char *)two.o)[(size_t)(s * b.batch) * size + (size_t)byte] != 0x9d)
                    fail_msg("o of a padded row was written");
        }
        rig_outputs_free(&one);
        rig_outputs_free(&two);
        rig_release(&packed);
        rig_release(&padded);
    }
}

void test_without_lse(void **state) {
    for (int n = 0; n < LINES; n++) {
        rig_pair x;
        if (!rig_pair_create(&x, *state, lines[n])) continue;
        const rig_options options = {.without_lse = 1};
        rig_run(&x.r, &options, x.got.o, NULL);
        rig_same_bits("o without lse", x.plain.o, x.got.o, x.r.bytes[TESS_ROLE_O]);
        rig_pair_release(&x);
    }
}
