/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients of a padded batch: sequences of different lengths in tensors with room for the longest,
 * where the conformance list packs them. They have the bits that they have packed. NaN in rows and
 * keys past a length is not read, and nothing is written there.
 */
#include <stdlib.h>
#include <string.h>

#include "gradients.h"
#include "instance.h"
#include "properties.h"
#include "rig.h"

enum { INPUTS = 5, GRADIENTS = 3, SPARE = 3, SENTINEL = 0x5a };

/* A tensor of rows or of keys, packed and padded. */
typedef struct padded {
    tess_tensor *tensor;
    void *packed; /* on the host */
    char *image;
    uint64_t bytes; /* of the image */
    tess_buffer memory;
    int of_keys, is_gradient;
} padded;

typedef struct batch {
    const test_target *target;
    problem p;
    instance x;
    int64_t rows, keys; /* room of each sequence */
    padded t[INPUTS + GRADIENTS];
    tess_buffer lse[2]; /* and dLSE */
    float *lse_image[2];
} batch;

static int64_t room_of(const batch *b, int of_keys) { return of_keys ? b->keys : b->rows; }

static int32_t heads_of(const batch *b, int of_keys) {
    return of_keys ? b->p.kv_heads : b->p.heads;
}

/* Copies the rows that exist into the image, or compares them. */
static void each_row(const batch *b, const padded *t, int compare) {
    const size_t row = (size_t)b->p.head_dim * problem_size(&b->p);
    const int32_t heads = heads_of(b, t->of_keys);
    for (int64_t s = 0; s < b->p.batch; s++) {
        const int64_t length = t->of_keys ? problem_kv_len(&b->p, s) : problem_q_len(&b->p, s);
        for (int64_t n = 0; n < length; n++)
            for (int32_t h = 0; h < heads; h++) {
                const int64_t from = t->of_keys ? gradient_key(&b->p, s, h, n)
                                                : gradient_row(&b->p, s, h, n),
                              to = (s * room_of(b, t->of_keys) + n) * heads + h;
                char *own = (char *)t->packed + (uint64_t)from * row,
                     *image = t->image + (uint64_t)to * row;
                if (!compare) {
                    memcpy(image, own, row);
                    continue;
                }
                rig_same_bits("a padded batch", own, image, row);
                memset(image, SENTINEL, row);
            }
    }
}

static void pad(batch *b, padded *t) {
    const uint64_t row = (uint64_t)b->p.head_dim * problem_size(&b->p);
    const int64_t rows = b->p.batch * room_of(b, t->of_keys) * heads_of(b, t->of_keys);
    t->bytes = (uint64_t)rows * row;
    t->image = rig_room(t->bytes);
    memset(t->image, t->is_gradient ? SENTINEL : 0xff, t->bytes);
    if (!t->is_gradient) each_row(b, t, 0);
    t->memory = test_upload(b->target->device, t->image, t->bytes);
}

/* LSE or its gradient, by sequence and head. */
static void pad_lse(batch *b, int n, const float *packed) {
    const uint64_t bytes = (uint64_t)(b->p.batch * b->p.heads * b->rows) * sizeof(float);
    float *image = b->lse_image[n] = rig_room(bytes);
    memset(image, 0xff, bytes);
    for (int64_t s = 0; s < b->p.batch; s++)
        for (int32_t h = 0; h < b->p.heads; h++)
            for (int64_t r = 0; r < problem_q_len(&b->p, s); r++)
                image[(s * b->p.heads + h) * b->rows + r] =
                    packed[gradient_lse_element(&b->p, s, h, r)];
    b->lse[n] = test_upload(b->target->device, image, bytes);
}

static void list_tensors(batch *b) {
    tess_run_desc *run = &b->x.run;
    void *const *host = b->x.backward.host;
    const padded all[INPUTS + GRADIENTS] = {
        {.tensor = &run->q, .packed = b->x.q},
        {.tensor = &run->o, .packed = b->x.o},
        {.tensor = &run->d_o, .packed = host[INSTANCE_D_O]},
        {.tensor = &run->k, .packed = b->x.k, .of_keys = 1},
        {.tensor = &run->v, .packed = b->x.v, .of_keys = 1},
        {.tensor = &run->d_q, .packed = host[INSTANCE_D_Q], .is_gradient = 1},
        {.tensor = &run->d_k, .packed = host[INSTANCE_D_K], .of_keys = 1, .is_gradient = 1},
        {.tensor = &run->d_v, .packed = host[INSTANCE_D_V], .of_keys = 1, .is_gradient = 1}};
    memcpy(b->t, all, sizeof all);
}

/* The same sequences by a plan for padded lengths. */
static void run_padded(batch *b) {
    tess_run_desc run = b->x.run;
    tess_plan_desc desc;
    tess_plan *plan;
    tess_plan_info info = {.struct_size = sizeof info};
    tess_buffer work = {0};
    int64_t *cu;
    assert_int_equal(problem_plan_desc(&b->p, &desc, &cu), 0);
    desc.cu_q_lens = desc.cu_kv_lens = NULL;
    desc.q_lens = b->p.q_lens;
    desc.kv_lens = b->p.kv_lens;
    desc.q_len = b->rows;
    desc.kv_len = b->keys;
    desc.kernel = b->x.info.kernel;
    assert_ok(tess_plan_create(b->x.device, b->x.layout, &desc, &plan));
    assert_ok(tess_plan_query(plan, &info));
    if (info.workspace_bytes) assert_ok(tess_alloc(b->x.device, info.workspace_bytes, &work));
    for (int n = 0; n < INPUTS + GRADIENTS; n++) {
        tess_tensor *to =
            (tess_tensor *)(void *)((char *)&run + ((char *)b->t[n].tensor - (char *)&b->x.run));
        const int64_t token = (int64_t)heads_of(b, b->t[n].of_keys) * b->p.head_dim;
        *to = (tess_tensor){b->t[n].memory, room_of(b, b->t[n].of_keys) * token, token,
                            b->p.head_dim};
    }
    run.lse = (tess_tensor){b->lse[0], b->p.heads * b->rows, 1, b->rows};
    run.d_lse = (tess_tensor){b->lse[1], b->p.heads * b->rows, 1, b->rows};
    run.workspace = work;
    assert_ok(tess_run(plan, &run));
    assert_ok(tess_wait(b->x.device, UINT64_MAX));
    tess_plan_release(plan);
    if (work.kind != TESS_BUFFER_NONE) assert_ok(tess_free(b->x.device, &work));
    free(cu);
}

/* What is not of a sequence's rows holds what it held. */
static void check_gradient(const batch *b, padded *t) {
    test_download(b->target->device, t->memory, t->image, t->bytes);
    each_row(b, t, 1);
    for (uint64_t n = 0; n < t->bytes; n++) assert_int_equal((unsigned char)t->image[n], SENTINEL);
}

void test_gradients_padded(void **state) {
    static const char *const lines[] = {
        "op=bwd pattern=s2 block=16 local=2 stride=3 heads=4 kv_heads=2 head_dim=40 "
        "q_lens=70,1,0,33 kv_lens=90,40,7,33",
        "op=bwd pattern=window left=20 right=0 sinks=3 heads=2 head_dim=64 q_lens=1,45,20 "
        "kv_lens=60,45,0 dtype=bf16"};
    const test_target *target = *state;
    for (int l = 0; l < 2; l++) {
        batch b = {.target = target};
        char error[256];
        assert_int_equal(problem_parse(&b.p, lines[l], error, sizeof error), 0);
        if (!rig_has_gradients(target, &b.p)) {
            problem_free(&b.p);
            continue;
        }
        const tess_status status =
            instance_create(&b.x, target->device, &b.p, target->kernel[0] ? target->kernel : NULL,
                            INSTANCE_GUARDS | INSTANCE_WITH_D_LSE);
        if (status == TESS_ERROR_UNSUPPORTED && target->kernel[0] && !target->portable) {
            problem_free(&b.p);
            continue;
        }
        assert_ok(status);
        assert_ok(instance_run(&b.x, NULL));
        assert_ok(instance_fetch(&b.x));
        b.rows = b.keys = SPARE;
        for (int64_t s = 0; s < b.p.batch; s++) {
            if (problem_q_len(&b.p, s) + SPARE > b.rows) b.rows = problem_q_len(&b.p, s) + SPARE;
            if (problem_kv_len(&b.p, s) + SPARE > b.keys) b.keys = problem_kv_len(&b.p, s) + SPARE;
        }
        list_tensors(&b);
        for (int n = 0; n < INPUTS + GRADIENTS; n++) pad(&b, &b.t[n]);
        pad_lse(&b, 0, b.x.lse);
        pad_lse(&b, 1, b.x.backward.host[INSTANCE_D_LSE]);
        run_padded(&b);
        for (int n = 0; n < INPUTS + GRADIENTS; n++) {
            if (b.t[n].is_gradient) check_gradient(&b, &b.t[n]);
            assert_ok(tess_free(target->device, &b.t[n].memory));
            free(b.t[n].image);
        }
        for (int n = 0; n < 2; n++) {
            assert_ok(tess_free(target->device, &b.lse[n]));
            free(b.lse_image[n]);
        }
        instance_release(&b.x);
        problem_free(&b.p);
    }
}
