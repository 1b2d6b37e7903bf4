/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of tensors of any layout: dimensions in any order, gaps between rows, and rows that
 * begin at any element. They have the bits that contiguous tensors have. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gradients.h"
#include "instance.h"
#include "properties.h"
#include "rig.h"

enum { INPUTS = 7, TENSORS = 10, SENTINEL = 0x5a, LAYOUTS = 12 };

/* A tensor, contiguous on the host, and its image with other strides. */
typedef struct strided {
    tess_tensor *tensor, before;
    char *packed;
    int of_keys, of_lse;
    size_t size; /* of an element */
    int64_t tokens, heads, elements;
    char *image;
    uint64_t bytes;
} strided;

static void list_tensors(instance *x, strided t[TENSORS]) {
    const problem *p = x->problem;
    tess_run_desc *run = &x->run;
    void *const *host = x->backward.host;
    const strided all[TENSORS] = {
        {.tensor = &run->q, .packed = x->q},
        {.tensor = &run->k, .packed = x->k, .of_keys = 1},
        {.tensor = &run->v, .packed = x->v, .of_keys = 1},
        {.tensor = &run->o, .packed = x->o},
        {.tensor = &run->d_o, .packed = host[INSTANCE_D_O]},
        {.tensor = &run->lse, .packed = (char *)x->lse, .of_lse = 1},
        {.tensor = &run->d_lse, .packed = host[INSTANCE_D_LSE], .of_lse = 1},
        {.tensor = &run->d_q, .packed = host[INSTANCE_D_Q]},
        {.tensor = &run->d_k, .packed = host[INSTANCE_D_K], .of_keys = 1},
        {.tensor = &run->d_v, .packed = host[INSTANCE_D_V], .of_keys = 1}};
    for (int n = 0; n < TENSORS; n++) {
        t[n] = all[n];
        t[n].before = *t[n].tensor;
        t[n].size = t[n].of_lse ? sizeof(float) : problem_size(p);
        t[n].tokens = t[n].of_keys ? p->kv_len : p->q_len;
        t[n].heads = t[n].of_keys ? p->kv_heads : p->heads;
        t[n].elements = t[n].of_lse ? 1 : p->head_dim;
    }
}

/* One of four ways to order the dimensions, with `gap` elements between neighbours. */
static void place(strided *t, int64_t batch, int order, int64_t gap) {
    static const int orders[4][3] = {{2, 1, 0}, {1, 2, 0}, {0, 1, 2}, {2, 0, 1}};
    const int64_t counts[3] = {batch, t->tokens, t->heads};
    int64_t extent = t->elements, stride[3];
    for (int n = 0; n < 3; n++) {
        const int d = orders[order][n];
        stride[d] = extent + gap;
        extent = stride[d] * counts[d];
    }
    t->tensor->stride_batch = stride[0];
    t->tensor->stride_token = stride[1];
    t->tensor->stride_head = stride[2];
    t->bytes = (uint64_t)extent * t->size;
}

/* Copies all rows into the image, or compares them and leaves the sentinel in their place. */
static void each_row(const instance *x, const strided *t, int compare) {
    const problem *p = x->problem;
    const size_t row = (size_t)t->elements * t->size;
    for (int64_t b = 0; b < p->batch; b++)
        for (int64_t n = 0; n < t->tokens; n++)
            for (int32_t h = 0; h < t->heads; h++) {
                const int64_t from = t->of_lse    ? gradient_lse_element(p, b, h, n)
                                     : t->of_keys ? gradient_key(p, b, h, n)
                                                  : gradient_row(p, b, h, n),
                              to = b * t->tensor->stride_batch + n * t->tensor->stride_token +
                                   h * t->tensor->stride_head;
                char *own = t->packed + (uint64_t)from * row,
                     *image = t->image + (uint64_t)to * t->size;
                if (!compare) {
                    memcpy(image, own, row);
                    continue;
                }
                rig_same_bits("a tensor of another layout", own, image, row);
                memset(image, SENTINEL, row);
            }
}

/* Runs with layout number `n` of each tensor. NaN lies between the rows of inputs. */
static void check_layout(instance *x, strided t[TENSORS], int n) {
    tess_buffer memory[TENSORS];
    for (int i = 0; i < TENSORS; i++) {
        const int out = i >= INPUTS;
        place(&t[i], x->problem->batch, (n + i) % 4, (n * 7 + i * 3) % 11);
        const uint64_t before = (uint64_t)((n + i * 5) % 16) * t[i].size,
                       bytes = before + t[i].bytes;
        char *whole = rig_room(bytes);
        memset(whole, out ? SENTINEL : 0xff, bytes);
        t[i].image = whole + before;
        if (!out) each_row(x, &t[i], 0);
        memory[i] = test_upload(x->device, whole, bytes);
        t[i].tensor->buffer = memory[i];
        t[i].tensor->buffer.offset += before;
        free(whole);
    }
    assert_ok(instance_run(x, NULL));
    for (int i = 0; i < TENSORS; i++) {
        const uint64_t before = t[i].tensor->buffer.offset - memory[i].offset,
                       bytes = before + t[i].bytes;
        if (i >= INPUTS) {
            char *whole = rig_room(bytes);
            test_download(x->device, memory[i], whole, bytes);
            t[i].image = whole + before;
            each_row(x, &t[i], 1);
            for (uint64_t at = 0; at < bytes; at++)
                assert_int_equal((unsigned char)whole[at], SENTINEL);
            free(whole);
        }
        assert_ok(tess_free(x->device, &memory[i]));
        *t[i].tensor = t[i].before;
    }
}

void test_gradients_strided(void **state) {
    static const char *const lines[] = {
        "op=bwd pattern=s2 block=16 local=2 stride=3 heads=4 kv_heads=2 head_dim=40 batch=2 "
        "q_len=70 kv_len=90",
        "op=bwd pattern=dense heads=2 head_dim=64 batch=2 q_len=130 kv_len=130 dtype=bf16",
        "op=bwd pattern=window left=50 right=0 sinks=3 heads=4 kv_heads=1 head_dim=128 q_len=150 "
        "kv_len=200 dtype=bf16",
        "op=bwd pattern=s2 block=32 local=1 stride=2 heads=2 head_dim=24 q_len=100 kv_len=100 "
        "dtype=f16"};
    const test_target *target = *state;
    const int n_lines = target->software ? 1 : 4, layouts = target->software ? 4 : LAYOUTS;
    for (int l = 0; l < n_lines; l++) {
        char error[256];
        problem p;
        instance x;
        strided t[TENSORS];
        assert_int_equal(problem_parse(&p, lines[l], error, sizeof error), 0);
        tess_status status = TESS_ERROR_UNSUPPORTED;
        const int leaves = test_other_turn(target, p.dtype, p.head_dim);
        if (!leaves)
            status =
                instance_create(&x, target->device, &p, target->kernel[0] ? target->kernel : NULL,
                                INSTANCE_WITH_D_LSE);
        if (leaves ||
            (status == TESS_ERROR_UNSUPPORTED && target->kernel[0] && !target->portable)) {
            problem_free(&p);
            continue;
        }
        assert_ok(status);
        assert_ok(instance_run(&x, NULL));
        assert_ok(instance_fetch(&x));
        list_tensors(&x, t);
        for (int n = 0; n < layouts; n++) check_layout(&x, t, n);
        instance_release(&x);
        problem_free(&p);
    }
}
