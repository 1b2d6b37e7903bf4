/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients beside other work: NaN in another tile of the same sequence, the same sequences in
 * another order, and the bytes that a plan asks for. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gradients.h"
#include "instance.h"
#include "properties.h"
#include "rig.h"

enum { GRADIENTS = 3 };

/* Q, dO and O of rows, K and V of keys, then the gradients. */
enum { IN_Q, IN_D_O, IN_O, IN_K, IN_V, INPUTS };
static const int of_keys[INPUTS + GRADIENTS] = {0, 0, 0, 1, 1, 0, 1, 1};

static void *host_of(const instance *x, int n) {
    void *const *b = x->backward.host;
    void *const all[INPUTS + GRADIENTS] = {
        x->q, b[INSTANCE_D_O], x->o, x->k, x->v, b[INSTANCE_D_Q], b[INSTANCE_D_K], b[INSTANCE_D_V]};
    return all[n];
}

static tess_tensor *tensor_of(instance *x, int n) {
    tess_tensor *const all[INPUTS] = {&x->run.q, &x->run.d_o, &x->run.o, &x->run.k, &x->run.v};
    return all[n];
}

/* Bytes of an element. */
static size_t size_of(const problem *p, int n) {
    const int is_f32 = n == INPUTS ? p->dq_f32 : n > INPUTS && p->dkv_f32;
    return is_f32 ? sizeof(float) : problem_size(p);
}

static uint64_t bytes_of(const instance *x, int n) {
    const problem *p = x->problem;
    const int64_t vectors =
        of_keys[n] ? problem_kv_tokens(p) * p->kv_heads : problem_q_tokens(p) * p->heads;
    return (uint64_t)(vectors * p->head_dim) * size_of(p, n);
}

static char *vector_of(const instance *x, int n, int64_t sequence, int32_t head, int64_t token) {
    const problem *p = x->problem;
    const int64_t at = of_keys[n] ? gradient_key(p, sequence, head, token)
                                  : gradient_row(p, sequence, head, token);
    return (char *)host_of(x, n) + (uint64_t)(at * p->head_dim) * size_of(p, n);
}

/* Returns 0 if the kernel refuses, or if it is another one's turn; then there is nothing to
 * release. */
static int create(instance *x, problem *p, const test_target *target, const char *line) {
    char error[256];
    if (problem_parse(p, line, error, sizeof error) != 0) fail_msg("%s: %s", line, error);
    tess_status status = TESS_ERROR_UNSUPPORTED;
    const int leaves = !rig_has_gradients(target, p);
    if (!leaves)
        status =
            instance_create(x, target->device, p, target->kernel[0] ? target->kernel : NULL, 0);
    if (leaves || (status == TESS_ERROR_UNSUPPORTED && target->kernel[0] && !target->portable)) {
        problem_free(p);
        return 0;
    }
    if (status != TESS_OK) fail_msg("%s: %s", line, x->error);
    return 1;
}

static void release(instance *x, problem *p) {
    instance_release(x);
    problem_free(p);
}

static void run(instance *x) {
    assert_ok(instance_run(x, NULL));
    assert_ok(instance_fetch(x));
}

/* ------------------------------------------------------------------ NaN */

/* Runs with NaN in one vector of one input, of head 0 at `token`. Rows and keys that lie further
 * than `reach` from it have the bits that they have without. */
static void poison(instance *x, const test_target *target, char *const *plain, int input,
                   int64_t token, int64_t reach) {
    const problem *p = x->problem;
    const size_t row = (size_t)p->head_dim * problem_size(p);
    const tess_tensor before = *tensor_of(x, input);
    char *image = rig_room(bytes_of(x, input));
    memcpy(image, host_of(x, input), bytes_of(x, input));
    memset(image + (vector_of(x, input, 0, 0, token) - (char *)host_of(x, input)), 0xff, row);
    tensor_of(x, input)->buffer = test_upload(target->device, image, bytes_of(x, input));
    run(x);
    int reached = 0;
    for (int g = 0; g < GRADIENTS; g++) {
        const int n = INPUTS + g;
        const int32_t heads = of_keys[n] ? p->kv_heads : p->heads;
        for (int64_t t = 0; t < p->q_len; t++)
            for (int32_t h = 0; h < heads; h++) {
                const char *got = vector_of(x, n, 0, h, t),
                           *wanted = plain[g] + (got - (char *)host_of(x, n));
                reached |= isnan(load_element(p->dtype, got, 0));
                if (llabs(t - token) > reach)
                    rig_same_bits("NaN of another tile", wanted, got, row);
            }
    }
    assert_true(reached);
    assert_ok(tess_free(target->device, &tensor_of(x, input)->buffer));
    *tensor_of(x, input) = before;
    free(image);
}

void test_gradients_of_distant_nan(void **state) {
    enum { LEFT = 30, STEP = 128 };
    static const struct {
        int head_dim;
        const char *dtype;
    } kinds[] = {{24, "f32"}, {64, "bf16"}};
    const test_target *target = *state;
    const int at = target->software ? 400 : 1500; /* their tiles are small */
    for (int n = 0; n < 2; n++) {
        char line[160];
        problem p;
        instance x;
        char *plain[GRADIENTS];
        snprintf(line, sizeof line,
                 "op=bwd pattern=window left=%d right=0 heads=2 kv_heads=1 head_dim=%d q_len=%d "
                 "kv_len=%d dtype=%s",
                 LEFT, kinds[n].head_dim, 2 * at, 2 * at, kinds[n].dtype);
        if (!create(&x, &p, target, line)) continue;
        /* A row reaches the keys that it keeps, and what is worked on with these. */
        const int64_t reach = LEFT + x.info.tile_rows + x.info.tile_keys + STEP;
        assert_true(reach + 100 < at);
        run(&x);
        for (int g = 0; g < GRADIENTS; g++) {
            plain[g] = rig_room(bytes_of(&x, INPUTS + g));
            memcpy(plain[g], host_of(&x, INPUTS + g), bytes_of(&x, INPUTS + g));
        }
        static const int inputs[] = {IN_Q, IN_D_O, IN_K, IN_V};
        for (int i = 0; i < 4; i++) poison(&x, target, plain, inputs[i], at, reach);
        for (int g = 0; g < GRADIENTS; g++) free(plain[g]);
        release(&x, &p);
    }
}

/* ------------------------------------------------------------------ order of a batch */

/* Gives `to` the sequences of `from` in the opposite order. */
static void reverse(const instance *from, const instance *to, const test_target *target,
                    tess_buffer memory[INPUTS + 1]) {
    const problem *p = from->problem, *q = to->problem;
    const size_t row = (size_t)p->head_dim * problem_size(p);
    for (int n = 0; n < INPUTS; n++) {
        for (int64_t s = 0; s < p->batch; s++) {
            const int64_t tokens = of_keys[n] ? problem_kv_len(p, s) : problem_q_len(p, s);
            for (int32_t h = 0; h < (of_keys[n] ? p->kv_heads : p->heads); h++)
                for (int64_t t = 0; t < tokens; t++)
                    memcpy(vector_of(to, n, p->batch - 1 - s, h, t), vector_of(from, n, s, h, t),
                           row);
        }
        memory[n] = test_upload(target->device, host_of(to, n), bytes_of(to, n));
    }
    for (int64_t s = 0; s < p->batch; s++)
        for (int32_t h = 0; h < p->heads; h++)
            for (int64_t t = 0; t < problem_q_len(p, s); t++)
                to->lse[gradient_lse_element(q, p->batch - 1 - s, h, t)] =
                    from->lse[gradient_lse_element(p, s, h, t)];
    memory[INPUTS] = test_upload(target->device, to->lse, to->lse_bytes);
}

/* Long sequences have several columns, on whose order sums of dQ depend. */
static void check_order(const test_target *target, const char *pattern, int invariant) {
    static const char words[] = "op=bwd heads=4 kv_heads=2 head_dim=32 dtype=bf16 dq_f32=1 "
                                "dkv_f32=1 %s batch_invariant=%d q_lens=%s kv_lens=%s";
    char lines[2][200];
    problem p, q;
    instance x, y;
    const int few = target->software;
    snprintf(lines[0], sizeof lines[0], words, pattern, invariant, "70,1,33,90",
             few ? "300,40,33,390" : "2300,40,33,2900");
    snprintf(lines[1], sizeof lines[1], words, pattern, invariant, "90,33,1,70",
             few ? "390,33,40,300" : "2900,33,40,2300");
    if (!create(&x, &p, target, lines[0])) return;
    if (!create(&y, &q, target, lines[1])) {
        fail_msg("%s: refused", lines[1]);
        return;
    }
    const size_t row = (size_t)p.head_dim * sizeof(float);
    tess_buffer memory[INPUTS + 1];
    run(&x);
    reverse(&x, &y, target, memory);
    for (int n = 0; n < INPUTS; n++) tensor_of(&y, n)->buffer = memory[n];
    y.run.lse.buffer = memory[INPUTS];
    run(&y);
    for (int n = INPUTS; n < INPUTS + GRADIENTS; n++)
        for (int64_t s = 0; s < p.batch; s++)
            for (int32_t h = 0; h < (of_keys[n] ? p.kv_heads : p.heads); h++) {
                const int64_t tokens = of_keys[n] ? problem_kv_len(&p, s) : problem_q_len(&p, s);
                for (int64_t t = 0; t < tokens; t++)
                    rig_same_bits("another order of the batch", vector_of(&x, n, s, h, t),
                                  vector_of(&y, n, p.batch - 1 - s, h, t), row);
            }
    for (int n = 0; n <= INPUTS; n++) assert_ok(tess_free(target->device, &memory[n]));
    release(&x, &p);
    release(&y, &q);
}

/* A sequence has the same bits wherever it stands in the batch: on the CPU always, elsewhere in
 * batch-invariant plans. */
void test_gradients_in_another_order(void **state) {
    static const char *const patterns[] = {"pattern=dense", "pattern=s2 block=16 local=2 stride=3"};
    const test_target *target = *state;
    for (int n = 0; n < 2; n++) {
        check_order(target, patterns[n], 1);
        if (strcmp(target->backend, "cpu") == 0) check_order(target, patterns[n], 0);
    }
}

/* ------------------------------------------------------------------ workspace */

/* What a kernel may take for head_dim: the next size that it is made for. */
static int32_t bucket(const test_target *target, int32_t head_dim) {
    if (strcmp(target->backend, "cpu") == 0) return (head_dim + 15) / 16 * 16;
    return head_dim <= 64 ? 64 : head_dim <= 128 ? 128 : 256;
}

static void check_workspace(const test_target *target, tess_device *device, const char *line,
                            uint32_t determinism) {
    enum { SLACK = 8 << 20, THREADS = 2, STRIP = 128 };
    char error[256];
    problem p;
    tess_layout *layout;
    tess_plan *plan;
    tess_plan_desc desc;
    tess_plan_info info = {.struct_size = sizeof info};
    int64_t *cu, rows = 0;
    if (problem_parse(&p, line, error, sizeof error) != 0) fail_msg("%s: %s", line, error);
    if (test_other_turn(target, p.dtype, p.head_dim)) {
        problem_free(&p);
        return;
    }
    tess_runtime *runtime = test_runtime(1);
    assert_ok(problem_layout(&p, runtime, &layout));
    assert_int_equal(problem_plan_desc(&p, &desc, &cu), 0);
    desc.kernel = target->kernel[0] ? target->kernel : NULL;
    desc.determinism = determinism;
    const tess_status status = tess_plan_create(device, layout, &desc, &plan);
    /* lavapipe's loops are too short for some */
    const int may_refuse = target->software || (target->kernel[0] && !target->portable);
    if (status != TESS_ERROR_UNSUPPORTED || !may_refuse) {
        assert_ok(status);
        assert_ok(tess_plan_query(plan, &info));
        /* The last rows of a sequence take a strip of their own. */
        for (int64_t s = 0; s < p.batch; s++)
            rows += p.batch == 1 ? p.q_len : (problem_q_len(&p, s) + STRIP - 1) / STRIP * STRIP;
        const int64_t most = rows * p.heads * (4 * bucket(target, p.head_dim) + 8) +
                             SLACK * (int64_t)(strcmp(target->backend, "cpu") == 0 ? THREADS : 1);
        if (info.workspace_bytes > (uint64_t)most)
            fail_msg("%s: %llu bytes of workspace, at most %lld", line,
                     (unsigned long long)info.workspace_bytes, (long long)most);
        tess_plan_release(plan);
    }
    tess_layout_release(layout);
    tess_runtime_release(runtime);
    problem_free(&p);
    free(cu);
}

/* Accumulators of dQ and two floats for each row and head, and what a thread takes: nothing grows
 * with the square of the tokens. */
void test_gradient_workspace(void **state) {
    static const char *const lines[] = {
        "op=bwd pattern=dense heads=16 head_dim=128 q_len=65536 dtype=bf16",
        "op=bwd pattern=s2 block=64 local=8 stride=16 heads=16 kv_heads=4 head_dim=72 q_len=65537 "
        "dtype=bf16",
        "op=bwd pattern=window left=1023 right=0 heads=8 head_dim=256 q_len=32768 kv_len=40000",
        "op=bwd pattern=dense heads=16 head_dim=64 q_lens=3,1,2000,70 kv_lens=3,90,2000,70 "
        "dtype=f16"};
    const test_target *target = *state;
    const int of_cpu = strcmp(target->backend, "cpu") == 0;
    tess_runtime *runtime = NULL;
    tess_device *device = target->device;
    if (of_cpu) {
        test_pretend_cpus(2);
        runtime = test_runtime(2);
        device = test_cpu(runtime);
    }
    for (size_t n = 0; n < sizeof lines / sizeof lines[0]; n++)
        for (uint32_t determinism = 0; determinism < 2; determinism++)
            check_workspace(target, device, lines[n], determinism);
    if (!of_cpu) return;
    tess_device_release(device);
    tess_runtime_release(runtime);
    test_pretend_cpus(0);
}
