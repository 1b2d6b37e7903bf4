/* SPDX-License-Identifier: Apache-2.0 */
/* Properties of backward: which gradients are wanted, repeats, threads, ranges, layouts in memory,
 * the rest of the batch, gradients in float32, adding, and parts of the keys. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/elements.h"
#include "gradients.h"
#include "instance.h"
#include "merged.h"
#include "properties.h"
#include "rig.h"

enum { GRADIENTS = 3 }; /* d_q, d_k, d_v, in this order */

static const char *const lines[] = {
    "pattern=s2 block=16 local=2 stride=3 heads=6 kv_heads=3 head_dim=64 q_len=150 kv_len=400",
    "pattern=s2 block=32 local=1 stride=4 heads=4 kv_heads=1 head_dim=80 q_len=70 kv_len=500 "
    "dtype=bf16",
    "pattern=dense causal=0 heads=2 head_dim=128 q_len=90 kv_len=333 dtype=f16",
    "pattern=window left=30 right=0 sinks=5 heads=3 head_dim=48 q_lens=40,1,70 kv_lens=300,211,70 "
    "dtype=bf16",
    /* steps of whole, of half and of masked columns, one behind the other */
    "pattern=s2 block=64 local=2 stride=3 heads=2 kv_heads=1 head_dim=128 q_len=400 kv_len=450 "
    "dtype=bf16",
};
enum { LINES = sizeof lines / sizeof lines[0] };

typedef struct result {
    void *d[GRADIENTS];
} result;

typedef struct fixture {
    problem p;
    instance x;
    uint64_t bytes[GRADIENTS];
    result plain, got;
} fixture;

static tess_tensor *output(tess_run_desc *run, int n) {
    tess_tensor *const all[GRADIENTS] = {&run->d_q, &run->d_k, &run->d_v};
    return all[n];
}

/* NaN into all gradients, a run, and what it gives. */
static void run(fixture *f, result *r) {
    for (int n = 0; n < GRADIENTS; n++) {
        memset(r->d[n], 0xff, f->bytes[n]);
        const tess_tensor *t = output(&f->x.run, n);
        if (t->buffer.kind != TESS_BUFFER_NONE)
            assert_ok(tess_copy(f->x.device, t->buffer, tess_host_buffer(r->d[n], f->bytes[n]),
                                f->bytes[n]));
    }
    assert_ok(instance_run(&f->x, NULL));
    for (int n = 0; n < GRADIENTS; n++) {
        const tess_tensor *t = output(&f->x.run, n);
        if (t->buffer.kind != TESS_BUFFER_NONE)
            assert_ok(tess_copy(f->x.device, tess_host_buffer(r->d[n], f->bytes[n]), t->buffer,
                                f->bytes[n]));
    }
}

/* Returns 0 if the kernel refuses, or if it is another one's turn; then there is nothing to
 * release. */
static int create(fixture *f, const test_target *target, tess_device *device, const char *line) {
    char error[256];
    memset(f, 0, sizeof *f);
    if (problem_parse(&f->p, line, error, sizeof error) != 0) fail_msg("%s: %s", line, error);
    if (!rig_has_gradients(target, &f->p)) {
        problem_free(&f->p);
        return 0;
    }
    f->p.op = PROBLEM_BACKWARD;
    const tess_status status =
        instance_create(&f->x, device, &f->p, target->kernel[0] ? target->kernel : NULL,
                        INSTANCE_GUARDS | INSTANCE_WITH_D_LSE);
    if (status == TESS_ERROR_UNSUPPORTED && target->kernel[0] && !target->portable) {
        problem_free(&f->p);
        return 0;
    }
    if (status != TESS_OK) fail_msg("%s: %s", line, f->x.error);
    for (int n = 0; n < GRADIENTS; n++) {
        f->bytes[n] = f->x.backward.bytes[INSTANCE_D_Q + n];
        f->plain.d[n] = rig_room(f->bytes[n]);
        f->got.d[n] = rig_room(f->bytes[n]);
    }
    run(f, &f->plain);
    return 1;
}

static void release(fixture *f) {
    for (int n = 0; n < GRADIENTS; n++) {
        free(f->plain.d[n]);
        free(f->got.d[n]);
    }
    instance_release(&f->x);
    problem_free(&f->p);
}

static void same(const char *what, const fixture *f, int n) {
    rig_same_bits(what, f->plain.d[n], f->got.d[n], f->bytes[n]);
}

/* ------------------------------------------------------------------ equal bits */

void test_gradient_subsets(void **state) {
    const test_target *target = *state;
    for (int n = 0; n < LINES; n++) {
        fixture f;
        if (!create(&f, target, target->device, lines[n])) continue;
        const tess_run_desc all = f.x.run;
        for (unsigned wanted = 1; wanted < 8; wanted++) {
            for (int g = 0; g < GRADIENTS; g++)
                if (!(wanted >> g & 1)) output(&f.x.run, g)->buffer = (tess_buffer){0};
            run(&f, &f.got);
            for (int g = 0; g < GRADIENTS; g++)
                if (wanted >> g & 1) same("a gradient without others", &f, g);
            f.x.run = all;
        }
        release(&f);
    }
}

void test_gradient_repeats(void **state) {
    const test_target *target = *state;
    const int repeats = rig_repeats(target, 25, 3);
    for (int n = 0; n < LINES; n++) {
        fixture f;
        if (!create(&f, target, target->device, lines[n])) continue;
        for (int repeat = 0; repeat < repeats; repeat++) {
            run(&f, &f.got);
            for (int g = 0; g < GRADIENTS; g++) same("a repeat", &f, g);
        }
        release(&f);
    }
}

/* Many columns of few kv heads: threads that compute dQ of the same rows. */
static const char *const shared_rows[] = {
    "pattern=dense heads=1 head_dim=16 q_len=700 kv_len=2300",
    "pattern=s2 block=16 local=3 stride=4 heads=4 kv_heads=2 head_dim=8 q_len=900 kv_len=900 "
    "dtype=bf16",
    "pattern=window left=200 right=100 sinks=40 causal=0 heads=2 kv_heads=1 head_dim=24 q_len=800 "
    "kv_len=1500 dtype=f16",
};
enum { SHARED_ROWS = sizeof shared_rows / sizeof shared_rows[0] };

void test_gradient_threads(void **state) {
    static const uint32_t threads[] = {1, 2, 5};
    const test_target *target = *state;
    if (strcmp(target->backend, "cpu") != 0) return;
    /* What threads share is the same in all kernels; a release build runs each. */
    if (test_sanitized() && target->kernel[0] && !test_full()) return;
    test_pretend_cpus(5);
    for (int n = 0; n < LINES + SHARED_ROWS; n++) {
        const char *line = n < LINES ? lines[n] : shared_rows[n - LINES];
        fixture f, g;
        if (!create(&f, target, target->device, line)) continue;
        for (size_t t = 0; t < sizeof threads / sizeof threads[0]; t++) {
            tess_runtime *runtime = test_runtime(threads[t]);
            tess_device *device = test_cpu(runtime);
            tess_runtime_release(runtime);
            assert_int_equal(1, create(&g, target, device, line));
            for (int m = 0; m < GRADIENTS; m++)
                rig_same_bits("with other threads", f.plain.d[m], g.plain.d[m], f.bytes[m]);
            release(&g);
            tess_device_release(device);
        }
        release(&f);
    }
    test_pretend_cpus(0);
}

void test_gradient_ranges(void **state) {
    const test_target *target = *state;
    for (int n = 0; n < LINES; n++) {
        fixture f;
        if (!create(&f, target, target->device, lines[n])) continue;
        const uint64_t jobs = f.x.info.n_jobs, steps[] = {1, 7, jobs - 1};
        for (size_t s = 0; s < sizeof steps / sizeof steps[0]; s++) {
            for (int g = 0; g < GRADIENTS; g++) {
                memset(f.got.d[g], 0xff, f.bytes[g]);
                assert_ok(tess_copy(f.x.device, output(&f.x.run, g)->buffer,
                                    tess_host_buffer(f.got.d[g], f.bytes[g]), f.bytes[g]));
            }
            for (uint64_t first = 0; first < jobs; first += steps[s]) {
                f.x.run.first_job = first;
                f.x.run.job_count = steps[s] < jobs - first ? steps[s] : jobs - first;
                assert_ok(instance_run(&f.x, NULL));
            }
            for (int g = 0; g < GRADIENTS; g++) {
                assert_ok(tess_copy(f.x.device, tess_host_buffer(f.got.d[g], f.bytes[g]),
                                    output(&f.x.run, g)->buffer, f.bytes[g]));
                same("ranges of jobs", &f, g);
            }
        }
        release(&f);
    }
}

/* In batch-invariant plans a sequence has the bits that it has alone. */
void test_gradient_batches(void **state) {
    static const char together[] = "pattern=s2 block=16 local=2 stride=3 heads=4 kv_heads=2 "
                                   "head_dim=32 q_lens=90,1,33 kv_lens=90,40,33 dtype=bf16 "
                                   "batch_invariant=1",
                      alone[] = "pattern=s2 block=16 local=2 stride=3 heads=4 kv_heads=2 "
                                "head_dim=32 q_lens=90 kv_lens=90 dtype=bf16 batch_invariant=1";
    const test_target *target = *state;
    fixture f, g;
    if (!create(&f, target, target->device, together)) return;
    assert_int_equal(1, create(&g, target, target->device, alone));
    /* The first sequence has the same Q, K, V and dO in both, but dLSE lies by head. */
    f.x.run.d_lse.buffer = g.x.run.d_lse.buffer = (tess_buffer){0};
    run(&f, &f.got);
    run(&g, &g.got);
    for (int n = 0; n < GRADIENTS; n++)
        rig_same_bits("another batch", f.got.d[n], g.got.d[n], g.bytes[n]);
    release(&f);
    release(&g);
}

/* ------------------------------------------------------------------ layouts */

/* The gradients of a packed QKV: all three in one buffer, token by token. */
void test_gradients_interleaved(void **state) {
    static const char line[] = "pattern=s2 block=16 local=2 stride=3 heads=6 kv_heads=3 "
                               "head_dim=40 q_len=150 kv_len=150 dtype=bf16";
    const test_target *target = *state;
    enum { HEADS = 6, KV_HEADS = 3, DIM = 40, TOKENS = 150, GAP = 3 };
    static const int first[GRADIENTS] = {0, HEADS * DIM, (HEADS + KV_HEADS) * DIM},
                     heads[GRADIENTS] = {HEADS, KV_HEADS, KV_HEADS};
    const int64_t row = (HEADS + 2 * KV_HEADS) * DIM + GAP;
    fixture f;
    if (!create(&f, target, target->device, line)) return;
    const uint64_t size = problem_size(&f.p), row_bytes = (uint64_t)row * size,
                   bytes = row_bytes * TOKENS;
    unsigned char *image = rig_room(bytes);
    memset(image, 0x5a, bytes);
    tess_buffer both = test_upload(target->device, image, bytes);
    for (int n = 0; n < GRADIENTS; n++) {
        tess_tensor *t = output(&f.x.run, n);
        *t = (tess_tensor){both, row * TOKENS, row, DIM};
        t->buffer.offset += (uint64_t)first[n] * size;
    }
    assert_ok(instance_run(&f.x, NULL));
    test_download(target->device, both, image, bytes);
    for (int64_t token = 0; token < TOKENS; token++) {
        const unsigned char *at = image + (uint64_t)token * row_bytes;
        for (int n = 0; n < GRADIENTS; n++) {
            const uint64_t row_of_one = (uint64_t)(heads[n] * DIM) * size;
            rig_same_bits("interleaved gradients",
                          (const unsigned char *)f.plain.d[n] + (uint64_t)token * row_of_one,
                          at + (uint64_t)first[n] * size, row_of_one);
        }
        for (uint64_t n = 1; n <= GAP * size; n++) assert_int_equal(at[row_bytes - n], 0x5a);
    }
    free(image);
    assert_ok(tess_free(target->device, &both));
    release(&f);
}

/* Large gradients, which may be stored past the caches where their rows begin with a line. */
void test_gradients_large(void **state) {
    static const char *const large[] = {
        "pattern=window left=9 right=0 heads=16 head_dim=256 q_len=1030 kv_len=1030",
        "pattern=window left=9 right=0 heads=16 head_dim=256 q_len=2060 kv_len=2060 dtype=bf16"};
    enum { PAGE = 4096, BEHIND = 16 };
    const test_target *target = *state;
    if (strcmp(target->backend, "cpu") != 0 || target->kernel[0]) return;
    const size_t lines_run = test_sanitized() && !test_full() ? 1 : sizeof large / sizeof large[0];
    for (size_t n = 0; n < lines_run; n++) {
        fixture f;
        if (!create(&f, target, target->device, large[n])) continue;
        for (size_t offset = 0; offset <= BEHIND; offset += BEHIND) {
            char *rooms[GRADIENTS];
            for (int g = 0; g < GRADIENTS; g++) {
                const size_t bytes = (size_t)f.bytes[g] + BEHIND;
                rooms[g] = aligned_alloc(PAGE, (bytes + PAGE - 1) / PAGE * PAGE);
                assert_non_null(rooms[g]);
                memset(rooms[g], 0xff, bytes);
                output(&f.x.run, g)->buffer = tess_host_buffer(rooms[g] + offset, f.bytes[g]);
            }
            assert_ok(instance_run(&f.x, NULL));
            for (int g = 0; g < GRADIENTS; g++) {
                rig_same_bits("at another address", f.plain.d[g], rooms[g] + offset, f.bytes[g]);
                free(rooms[g]);
            }
        }
        release(&f);
    }
}

/* A tensor whose elements lie far apart in a sparse mapping. */
typedef struct far_tensor {
    char *map;
    uint64_t bytes;
    tess_tensor near, far;
    int64_t tokens, heads; /* of each of two sequences */
    size_t row;            /* bytes of a vector */
    size_t size;           /* of an element */
} far_tensor;

static void copy_far(const far_tensor *t, char *contiguous, int out) {
    for (int64_t b = 0; b < 2; b++)
        for (int64_t token = 0; token < t->tokens; token++)
            for (int64_t head = 0; head < t->heads; head++, contiguous += t->row) {
                char *far =
                    t->map + (uint64_t)(b * t->far.stride_batch + token * t->far.stride_token +
                                        head * t->far.stride_head) *
                                 t->size;
                memcpy(out ? contiguous : far, out ? far : contiguous, t->row);
            }
}

/* Runs with tensor `n` (three gradients, then inputs) stretched along a dimension. */
static void check_far(fixture *f, int n, int dimension, int64_t stride) {
    tess_run_desc *run_desc = &f->x.run;
    tess_tensor *const all[] = {&run_desc->d_q, &run_desc->d_k, &run_desc->d_v, &run_desc->q,
                                &run_desc->k,   &run_desc->v,   &run_desc->o,   &run_desc->d_o};
    void *const inputs[] = {f->x.q, f->x.k, f->x.v, f->x.o, f->x.backward.host[INSTANCE_D_O]};
    const int of_keys = n == 1 || n == 2 || n == 4 || n == 5;
    far_tensor t = {.near = *all[n],
                    .far = *all[n],
                    .tokens = of_keys ? f->p.kv_len : f->p.q_len,
                    .heads = of_keys ? f->p.kv_heads : f->p.heads,
                    .size = problem_size(&f->p)};
    t.row = (size_t)f->p.head_dim * t.size;
    if (dimension == 0) t.far.stride_batch = stride;
    if (dimension == 1) t.far.stride_token = stride / (t.tokens - 1) / 16 * 16 + 64;
    if (dimension == 2) t.far.stride_head = stride;
    if (dimension == 1) t.far.stride_batch = t.heads * f->p.head_dim;
    if (dimension == 2) {
        t.far.stride_token = f->p.head_dim;
        t.far.stride_batch = t.tokens * f->p.head_dim;
    }
    t.bytes = (uint64_t)(t.far.stride_batch + (t.tokens - 1) * t.far.stride_token +
                         (t.heads - 1) * t.far.stride_head) *
                  t.size +
              t.row;
    t.map = mmap(NULL, t.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                 -1, 0);
    if (t.map == MAP_FAILED)
        fail_msg("%llu bytes of address space cannot be mapped", (unsigned long long)t.bytes);
    t.far.buffer = tess_host_buffer(t.map, t.bytes);
    if (n >= GRADIENTS) copy_far(&t, inputs[n - GRADIENTS], 0);
    *all[n] = t.far;
    assert_ok(instance_run(&f->x, NULL));
    *all[n] = t.near;
    for (int g = 0; g < GRADIENTS; g++) {
        if (g == n)
            copy_far(&t, f->got.d[g], 1);
        else
            assert_ok(tess_copy(f->x.device, tess_host_buffer(f->got.d[g], f->bytes[g]),
                                all[g]->buffer, f->bytes[g]));
        same("a tensor whose elements lie far apart", f, g);
    }
    munmap(t.map, t.bytes);
}

void test_gradients_far(void **state) {
    static const char *const dtypes[] = {"f32", "f16"};
    static const int64_t strides[] = {(1LL << 30) + 16, (1LL << 31) - 16, (1LL << 31) + 16,
                                      (1LL << 32) + 16};
    const test_target *target = *state;
    /* Sanitizers cannot map this much address space beside their own. */
    if (!target->host_memory || test_sanitized()) return;
    for (int d = 0; d < 2; d++) {
        char line[160];
        snprintf(line, sizeof line,
                 "pattern=s2 block=16 local=1 stride=2 heads=4 kv_heads=2 head_dim=16 batch=2 "
                 "q_len=3 kv_len=70 dtype=%s",
                 dtypes[d]);
        fixture f;
        if (!create(&f, target, target->device, line)) continue;
        for (int n = 0; n < 8; n++)
            for (int dimension = 0; dimension < 3; dimension++)
                for (size_t s = 0; s < sizeof strides / sizeof strides[0]; s++)
                    check_far(&f, n, dimension, strides[s]);
        release(&f);
    }
}

/* A dO that repeats itself over sequences, tokens, heads or all of them, with strides of 0. */
void test_gradient_of_broadcast(void **state) {
    static const char line[] = "pattern=s2 block=16 local=2 stride=3 heads=6 kv_heads=3 "
                               "head_dim=40 batch=2 q_len=50 kv_len=90 dtype=%s";
    static const char *const dtypes[] = {"f32", "bf16"};
    const test_target *target = *state;
    for (int n = 0; n < 2; n++) {
        char words[sizeof line + 8];
        fixture f;
        snprintf(words, sizeof words, line, dtypes[n]);
        if (!create(&f, target, target->device, words)) continue;
        const size_t row = (size_t)f.p.head_dim * problem_size(&f.p);
        const uint64_t bytes = f.x.backward.bytes[INSTANCE_D_O];
        const char *own = f.x.backward.host[INSTANCE_D_O];
        char *repeated = rig_room(bytes);
        for (int which = 0; which < 4; which++) {
            const int of_batch = which == 0 || which == 3, of_tokens = which == 1 || which == 3,
                      of_heads = which == 2 || which == 3;
            const tess_tensor whole = f.x.run.d_o;
            for (int64_t b = 0; b < f.p.batch; b++)
                for (int64_t t = 0; t < f.p.q_len; t++)
                    for (int32_t h = 0; h < f.p.heads; h++) {
                        const int64_t from = gradient_row(&f.p, of_batch ? 0 : b, of_heads ? 0 : h,
                                                          of_tokens ? 0 : t);
                        memcpy(repeated + (uint64_t)gradient_row(&f.p, b, h, t) * row,
                               own + (uint64_t)from * row, row);
                    }
            f.x.run.d_o.buffer = test_upload(target->device, repeated, bytes);
            run(&f, &f.plain);
            if (of_batch) f.x.run.d_o.stride_batch = 0;
            if (of_tokens) f.x.run.d_o.stride_token = 0;
            if (of_heads) f.x.run.d_o.stride_head = 0;
            run(&f, &f.got);
            for (int g = 0; g < GRADIENTS; g++) same("strides of 0", &f, g);
            assert_ok(tess_free(target->device, &f.x.run.d_o.buffer));
            f.x.run.d_o = whole;
        }
        free(repeated);
        release(&f);
    }
}

/* ------------------------------------------------------------------ other plans */

/* Another plan for the fixture's problem, with a workspace of its own. */
static void replan(const fixture *f, const tess_plan_desc *desc, tess_plan **plan,
                   tess_buffer *work) {
    tess_plan_info info = {.struct_size = sizeof info};
    assert_ok(tess_plan_create(f->x.device, f->x.layout, desc, plan));
    assert_ok(tess_plan_query(*plan, &info));
    *work = (tess_buffer){0};
    if (info.workspace_bytes) assert_ok(tess_alloc(f->x.device, info.workspace_bytes, work));
}

static void run_plan(const fixture *f, tess_plan *plan, tess_buffer work, tess_run_desc desc) {
    desc.workspace = work;
    assert_ok(tess_run(plan, &desc));
    assert_ok(tess_wait(f->x.device, UINT64_MAX));
}

static void describe(const fixture *f, const test_target *target, uint32_t flags,
                     tess_plan_desc *desc, int64_t **cu) {
    assert_int_equal(problem_plan_desc(&f->p, desc, cu), 0);
    desc->kernel = target->kernel[0] ? target->kernel : NULL;
    desc->flags |= flags;
}

/* Gradients in float32 are those that the other types round; added ones are sums with what was
 * there. */
void test_gradients_in_float32(void **state) {
    const test_target *target = *state;
    for (int n = 0; n < LINES; n++) {
        fixture f;
        tess_plan_desc desc;
        int64_t *cu = NULL;
        if (!create(&f, target, target->device, lines[n])) continue;
        const size_t size = problem_size(&f.p);
        for (int adds = 0; adds < 2; adds++) {
            tess_plan *plan;
            tess_buffer work, out[GRADIENTS];
            float *before[GRADIENTS];
            describe(&f, target,
                     TESS_PLAN_DQ_F32 | TESS_PLAN_DKV_F32 |
                         (adds ? TESS_PLAN_DQ_ADD | TESS_PLAN_DKV_ADD : 0u),
                     &desc, &cu);
            replan(&f, &desc, &plan, &work);
            free(cu);
            cu = NULL;
            tess_run_desc go = f.x.run;
            for (int g = 0; g < GRADIENTS; g++) {
                const int64_t count = (int64_t)(f.bytes[g] / size);
                before[g] = rig_room((uint64_t)count * 4);
                fill_normal(TESS_F32, before[g], count, 99, (uint32_t)g);
                out[g] = test_upload(target->device, before[g], (uint64_t)count * 4);
                output(&go, g)->buffer = out[g];
            }
            run_plan(&f, plan, work, go);
            for (int g = 0; g < GRADIENTS; g++) {
                const int64_t count = (int64_t)(f.bytes[g] / size);
                float *got = rig_room((uint64_t)count * 4);
                test_download(target->device, out[g], got, (uint64_t)count * 4);
                for (int64_t i = 0; i < count; i++) {
                    const double wanted = load_element(f.p.dtype, f.plain.d[g], i),
                                 x = adds ? (double)got[i] - before[g][i] : got[i],
                                 half_step = f.p.dtype == TESS_F32   ? 0
                                             : f.p.dtype == TESS_F16 ? 0x1p-11
                                                                     : 0x1p-8;
                    if (!(fabs(x - wanted) <=
                          fabs(wanted) * half_step + adds * (1e-6 * (1 + fabs(x))) + 0x1p-25))
                        fail_msg("%s, gradient %d, element %lld: %.9g, and %.9g in float32",
                                 lines[n], g, (long long)i, wanted, x);
                }
                free(got);
                free(before[g]);
                assert_ok(tess_free(target->device, &out[g]));
            }
            tess_plan_release(plan);
            if (work.kind != TESS_BUFFER_NONE) assert_ok(tess_free(target->device, &work));
        }
        release(&f);
    }
}

/* Rows or keys. */
typedef merged_keys chunk;

/* Adds what a chunk of queries and a chunk of keys have in common, by a plan of its own. */
static void add_chunks(const fixture *f, const test_target *target, const tess_run_desc *whole,
                       chunk queries, chunk keys) {
    tess_run_desc now = *whole;
    tess_tensor *const of_rows[] = {&now.q, &now.o, &now.d_o, &now.d_q},
                       *const of_keys[] = {&now.k, &now.v, &now.d_k, &now.d_v},
                       *const by_head[] = {&now.lse, &now.d_lse};
    const int64_t q_first = f->p.kv_len - f->p.q_len + queries.first;
    tess_plan *plan;
    tess_plan_desc desc;
    tess_buffer work;
    int64_t *cu = NULL;
    describe(f, target, TESS_PLAN_DQ_ADD | TESS_PLAN_DKV_ADD, &desc, &cu);
    desc.q_len = queries.count;
    desc.kv_len = keys.count;
    desc.q_first = &q_first;
    desc.kv_first = &keys.first;
    replan(f, &desc, &plan, &work);
    for (int n = 0; n < 4; n++) {
        of_rows[n]->buffer.offset +=
            (uint64_t)(queries.first * of_rows[n]->stride_token) * sizeof(float);
        of_keys[n]->buffer.offset +=
            (uint64_t)(keys.first * of_keys[n]->stride_token) * sizeof(float);
    }
    for (int n = 0; n < 2; n++)
        by_head[n]->buffer.offset +=
            (uint64_t)(queries.first * by_head[n]->stride_token) * sizeof(float);
    run_plan(f, plan, work, now);
    tess_plan_release(plan);
    if (work.kind != TESS_BUFFER_NONE) assert_ok(tess_free(target->device, &work));
    free(cu);
}

/* Chunk `n` of `count` rows or keys in `parts` of whole blocks. */
static chunk nth_chunk(const problem *p, int64_t count, int64_t parts, int64_t n) {
    const int64_t step = count / parts / p->block * p->block;
    assert_true(step > 0);
    return (chunk){n * step, n + 1 < parts ? step : count - n * step};
}

/* The keys in parts, and the rows too where a rank of a ring has chunks `rank` and the one as far
 * from the end (zig-zag): all gradients are added in float32. O and LSE are merged from those of
 * the parts. */
static void check_parts(const test_target *target, const char *line, int64_t parts, int zig_zag) {
    fixture f;
    if (!create(&f, target, target->device, line)) return;
    tess_run_desc go = f.x.run;
    tess_buffer out[GRADIENTS];
    chunk all_keys[MERGED_MOST];
    for (int64_t n = 0; n < parts; n++) all_keys[n] = nth_chunk(&f.p, f.p.kv_len, parts, n);
    merged_forward(&f.x, all_keys, parts, &go.o, &go.lse);
    for (int g = 0; g < GRADIENTS; g++) {
        memset(f.got.d[g], 0, f.bytes[g]);
        out[g] = test_upload(target->device, f.got.d[g], f.bytes[g]);
        output(&go, g)->buffer = out[g];
    }
    assert_true(f.p.batch == 1 && f.p.dtype == TESS_F32);
    for (int64_t rank = 0; rank < (zig_zag ? parts / 2 : 1); rank++)
        for (int64_t part = 0; part < parts; part++) {
            const chunk keys = all_keys[part];
            if (!zig_zag) {
                add_chunks(&f, target, &go, (chunk){0, f.p.q_len}, keys);
                continue;
            }
            add_chunks(&f, target, &go, nth_chunk(&f.p, f.p.q_len, parts, rank), keys);
            add_chunks(&f, target, &go, nth_chunk(&f.p, f.p.q_len, parts, parts - 1 - rank), keys);
        }
    for (int g = 0; g < GRADIENTS; g++) {
        double difference = 0, all = 0;
        test_download(target->device, out[g], f.got.d[g], f.bytes[g]);
        for (uint64_t i = 0; i < f.bytes[g] / sizeof(float); i++) {
            const double a = ((const float *)f.plain.d[g])[i], b = ((const float *)f.got.d[g])[i];
            difference += (a - b) * (a - b);
            all += a * a;
        }
        if (!(difference <= 1e-10 * all))
            fail_msg("%s in %d parts, gradient %d: nmse %.3g", line, (int)parts, g,
                     difference / all);
        assert_ok(tess_free(target->device, &out[g]));
    }
    assert_ok(tess_free(target->device, &go.o.buffer));
    assert_ok(tess_free(target->device, &go.lse.buffer));
    release(&f);
}

void test_gradients_of_parts(void **state) {
    static const char s2[] = "pattern=s2 block=16 local=2 stride=3 heads=6 kv_heads=3 head_dim=32 "
                             "q_len=384 kv_len=384";
    for (int64_t parts = 2; parts <= 8; parts *= 2) {
        check_parts(*state,
                    "pattern=dense block=16 heads=2 kv_heads=1 head_dim=64 q_len=100 kv_len=400",
                    parts, 0);
        check_parts(*state, s2, parts, 0);
    }
    check_parts(*state, s2, 4, 1);
}

/* ------------------------------------------------------------------ what is not read */

/* Whether some row of the problem keeps a key of the block. */
static int block_is_kept(const problem *p, int64_t block) {
    for (int64_t t = block * p->block; t < (block + 1) * p->block; t++)
        for (int64_t row = p->kv_len - p->q_len; row < p->kv_len; row++)
            if (reference_kept(p, 0, row, t, p->kv_len)) return 1;
    return 0;
}

/* NaN in K and V of blocks that no row of the problem keeps changes no bit, and their gradients are
 * 0. All heads keep the same. */
static void check_unread(const test_target *target, const char *line) {
    fixture f;
    if (!create(&f, target, target->device, line)) return;
    const uint64_t bytes = (uint64_t)(f.p.block * f.p.head_dim) * sizeof(float);
    char *k = rig_room(f.x.k_bytes), *v = rig_room(f.x.v_bytes);
    memcpy(k, f.x.k, f.x.k_bytes);
    memcpy(v, f.x.v, f.x.v_bytes);
    int64_t poisoned = 0;
    for (int64_t n = 0; n < f.p.kv_len / f.p.block; n++) {
        if (block_is_kept(&f.p, n)) continue;
        memset(k + (uint64_t)n * bytes, 0xff, bytes);
        memset(v + (uint64_t)n * bytes, 0xff, bytes);
        for (int g = 1; g < GRADIENTS; g++)
            for (uint64_t e = 0; e < bytes / sizeof(float); e++)
                assert_true(((const float *)f.plain.d[g])[(uint64_t)n * bytes / 4 + e] == 0);
        poisoned++;
    }
    assert_in_range(poisoned, 10, f.p.kv_len / f.p.block - 2);
    f.x.run.k.buffer = test_upload(target->device, k, f.x.k_bytes);
    f.x.run.v.buffer = test_upload(target->device, v, f.x.v_bytes);
    run(&f, &f.got);
    for (int g = 0; g < GRADIENTS; g++) same("NaN in keys that nobody keeps", &f, g);
    free(k);
    free(v);
    assert_ok(tess_free(target->device, &f.x.run.k.buffer));
    assert_ok(tess_free(target->device, &f.x.run.v.buffer));
    release(&f);
}

void test_gradients_of_unread_keys(void **state) {
    check_unread(*state, "pattern=s2 block=16 local=2 stride=3 heads=2 kv_heads=1 homo=1 "
                         "head_dim=64 q_len=40 kv_len=608");
    /* Here keys that are read and others lie side by side, however they are joined. */
    for (int block = 4; block <= 32; block *= 2) {
        char line[160];
        snprintf(line, sizeof line,
                 "pattern=window block=%d left=30 right=0 heads=2 kv_heads=1 head_dim=64 q_len=41 "
                 "kv_len=608",
                 block);
        check_unread(*state, line);
    }
}

/* NaN in one row's Q, and in one key's V, of the second sequence and the first kv head: no other
 * sequence and no other kv head has another bit, and the NaN does arrive. */
void test_gradients_of_nan(void **state) {
    static const char line[] = "pattern=s2 block=16 local=2 stride=3 heads=4 kv_heads=2 "
                               "head_dim=%d batch=3 q_len=70 kv_len=90 dtype=%s";
    static const struct {
        int head_dim;
        const char *dtype;
    } kinds[] = {{24, "f32"}, {64, "bf16"}};
    const test_target *target = *state;
    for (int n = 0; n < 2; n++) {
        char words[sizeof line + 8];
        fixture f;
        snprintf(words, sizeof words, line, kinds[n].head_dim, kinds[n].dtype);
        if (!create(&f, target, target->device, words)) continue;
        const problem *p = &f.p;
        const uint64_t row = (uint64_t)p->head_dim * problem_size(p);
        memset((char *)f.x.q + (uint64_t)gradient_row(p, 1, 1, 33) * row, 0xff, row);
        memset((char *)f.x.v + (uint64_t)gradient_key(p, 1, 0, 16) * row, 0xff, row);
        f.x.run.q.buffer = test_upload(target->device, f.x.q, f.x.q_bytes);
        f.x.run.v.buffer = test_upload(target->device, f.x.v, f.x.v_bytes);
        run(&f, &f.got);
        for (int g = 0; g < GRADIENTS; g++) {
            const int32_t heads = g == 0 ? p->heads : p->kv_heads;
            int reached = 0;
            for (int64_t at = 0; at < (int64_t)(f.bytes[g] / row); at++) {
                const int64_t tokens = g == 0 ? p->q_len : p->kv_len;
                const int is_near = at / (tokens * heads) == 1 && at % heads < heads / 2;
                const char *const a = (const char *)f.plain.d[g] + (uint64_t)at * row,
                                  *const b = (const char *)f.got.d[g] + (uint64_t)at * row;
                if (is_near)
                    reached |= isnan(load_element(p->dtype, b, 0));
                else
                    rig_same_bits("NaN of another sequence or kv head", a, b, row);
            }
            assert_true(reached);
        }
        assert_ok(tess_free(target->device, &f.x.run.q.buffer));
        assert_ok(tess_free(target->device, &f.x.run.v.buffer));
        release(&f);
    }
}

/* ------------------------------------------------------------------ scores */

/* What is compared: the sums over all elements of squares of differences, of the values, and of the
 * terms that make them. */
typedef struct error {
    double difference2, value2, terms2;
} error;

static void add_error(error *e, const problem *p, const void *got, int64_t vector,
                      const gradient *g) {
    for (int32_t d = 0; d < p->head_dim; d++) {
        const double x = load_element(p->dtype, got, vector * p->head_dim + d),
                     difference = x - g->exact[d];
        e->difference2 += difference * difference;
        e->value2 += g->exact[d] * g->exact[d];
        e->terms2 += g->terms[d];
    }
}

/* Vectors of which the first element is large, and the others are whole numbers of 1/32, so that
 * float32 sums up their products without rounding. */
static void large_vectors(const problem *p, void *data, int64_t count, float first) {
    for (int64_t n = 0; n < count * p->head_dim; n++) {
        const double x = rint(load_element(p->dtype, data, n) * 32) / 32;
        element_store(p->dtype, data, n, n % p->head_dim == 0 ? first : (float)x);
    }
}

/* Scores of 2^10 and a normal number: 64 * 128 / 8 comes from the first elements. O and LSE are
 * the exact ones, rounded to their types. */
static void large_scores(fixture *f, double *lse) {
    const problem *p = &f->p;
    const int64_t rows = problem_q_tokens(p) * p->heads, keys = problem_kv_tokens(p) * p->kv_heads;
    const reference_inputs in = {f->x.q, f->x.k, f->x.v};
    large_vectors(p, f->x.q, rows, 64);
    large_vectors(p, f->x.k, keys, 128);
    for (int32_t head = 0; head < p->heads; head++)
        for (int64_t row = 0; row < p->q_len; row++) {
            const int64_t at = gradient_row(p, 0, head, row);
            double o[GRADIENT_MOST];
            reference_row(p, &in, 0, head, row, o, &lse[at]);
            for (int32_t d = 0; d < p->head_dim; d++)
                element_store(p->dtype, f->x.o, at * p->head_dim + d, (float)o[d]);
            f->x.lse[gradient_lse_element(p, 0, head, row)] = (float)lse[at];
        }
}

static void compare_large(const fixture *f, const double *lse, double *delta, error of[GRADIENTS]) {
    const problem *p = &f->p;
    const int64_t rows = problem_q_tokens(p) * p->heads;
    const gradient_inputs in = {f->x.q, f->x.k, f->x.v, f->x.backward.host[INSTANCE_D_O],
                                lse,    delta};
    gradient g, d_v;
    double *rounded = rig_room((uint64_t)rows * sizeof *rounded);
    gradient_rows(p, f->x.o, f->x.lse, in.d_o, NULL, rounded, delta);
    free(rounded);
    for (int32_t head = 0; head < p->heads; head++)
        for (int64_t row = 0; row < p->q_len; row++) {
            reference_d_q(p, &in, 0, head, row, &g);
            add_error(&of[0], p, f->got.d[0], gradient_row(p, 0, head, row), &g);
        }
    for (int32_t head = 0; head < p->kv_heads; head++)
        for (int64_t key = 0; key < p->kv_len; key++) {
            reference_d_kv(p, &in, 0, head, key, &g, &d_v);
            add_error(&of[1], p, f->got.d[1], gradient_key(p, 0, head, key), &g);
            add_error(&of[2], p, f->got.d[2], gradient_key(p, 0, head, key), &d_v);
        }
}

/* The bound that tessera_backward.h states for P is kept by all of a gradient's terms, beside the
 * rounding of 16-bit types, twice of P or dS and once of the result. */
void test_gradients_of_large_scores(void **state) {
    static const char *const dtypes[] = {"f32", "f16", "bf16"};
    static const double steps[] = {0, 0x1p-11, 0x1p-8};
    const test_target *target = *state;
    for (int n = 0; n < 3; n++) {
        char line[160];
        snprintf(line, sizeof line,
                 "pattern=s2 block=16 local=2 stride=3 heads=4 kv_heads=2 head_dim=64 q_len=70 "
                 "kv_len=120 scale=0.125 dtype=%s",
                 dtypes[n]);
        fixture f;
        if (!create(&f, target, target->device, line)) continue;
        const int64_t rows = problem_q_tokens(&f.p) * f.p.heads;
        double *lse = rig_room((uint64_t)rows * 2 * sizeof *lse);
        error of[GRADIENTS] = {{0}};
        large_scores(&f, lse);
        tess_tensor *const inputs[] = {&f.x.run.q, &f.x.run.k, &f.x.run.o, &f.x.run.lse};
        const void *const host[] = {f.x.q, f.x.k, f.x.o, f.x.lse};
        const uint64_t bytes[] = {f.x.q_bytes, f.x.k_bytes, f.x.o_bytes, f.x.lse_bytes};
        for (int i = 0; i < 4; i++)
            inputs[i]->buffer = test_upload(target->device, host[i], bytes[i]);
        f.x.run.d_lse.buffer = (tess_buffer){0};
        run(&f, &f.got);
        compare_large(&f, lse, lse + rows, of);
        const double bound = 2 * 1030 * 0x1p-24 + 3 * steps[n];
        for (int g = 0; g < GRADIENTS; g++)
            if (!(of[g].difference2 <= bound * bound * (of[g].value2 + of[g].terms2)))
                fail_msg("%s, gradient %d: %.3g of what is added up, at most %.3g", line, g,
                         sqrt(of[g].difference2 / (of[g].value2 + of[g].terms2)), bound);
        for (int i = 0; i < 4; i++) assert_ok(tess_free(target->device, &inputs[i]->buffer));
        free(lse);
        release(&f);
    }
}

/* Rows with an LSE of inf or -inf contribute nothing: they have d_q = 0, and whatever their Q, O,
 * dO and dLSE hold reaches no key. */
void test_gradients_of_infinite_rows(void **state) {
    const test_target *target = *state;
    for (int n = 0; n < LINES; n++) {
        fixture f;
        if (!create(&f, target, target->device, lines[n])) continue;
        const problem *p = &f.p;
        const uint64_t row = (uint64_t)p->head_dim * problem_size(p);
        tess_tensor *const inputs[] = {&f.x.run.o, &f.x.run.d_o, &f.x.run.lse, &f.x.run.d_lse};
        char *const host[] = {f.x.o, f.x.backward.host[INSTANCE_D_O], (char *)f.x.lse,
                              f.x.backward.host[INSTANCE_D_LSE]};
        const uint64_t bytes[] = {f.x.o_bytes, f.x.backward.bytes[INSTANCE_D_O], f.x.lse_bytes,
                                  f.x.lse_bytes};
        tess_buffer memory[4];
        for (int poison = 0; poison < 2; poison++) {
            for (int32_t head = 0; head < p->heads; head++)
                for (int64_t r = 0; r < problem_q_len(p, 0); r += 3) {
                    const uint64_t vector = (uint64_t)gradient_row(p, 0, head, r) * row,
                                   at = 4 * (uint64_t)gradient_lse_element(p, 0, head, r);
                    const float lse = r % 2 ? INFINITY : -INFINITY;
                    memcpy(host[2] + at, &lse, sizeof lse);
                    if (!poison) continue;
                    memset(host[0] + vector, 0xff, row);
                    memset(host[1] + vector, 0xff, row);
                    memset(host[3] + at, 0xff, sizeof lse);
                }
            for (int i = 0; i < 4; i++)
                inputs[i]->buffer = memory[i] = test_upload(target->device, host[i], bytes[i]);
            run(&f, poison ? &f.got : &f.plain);
            for (int i = 0; i < 4; i++) assert_ok(tess_free(target->device, &memory[i]));
        }
        for (int g = 0; g < GRADIENTS; g++) same("rows with an infinite LSE", &f, g);
        for (int32_t head = 0; head < p->heads; head++)
            for (int64_t r = 0; r < problem_q_len(p, 0); r += 3)
                for (int64_t d = 0; d < p->head_dim; d++)
                    assert_true(load_element(p->dtype, f.got.d[0],
                                             gradient_row(p, 0, head, r) * p->head_dim + d) == 0);
        release(&f);
    }
}

/* Sequences with keys and no rows, and the reverse: everything is written. */
void test_gradients_of_nothing(void **state) {
    static const char *const empty[] = {
        "pattern=dense heads=2 kv_heads=1 head_dim=16 q_lens=0,0 kv_lens=5,70",
        "pattern=dense heads=2 kv_heads=1 head_dim=16 q_lens=5,70 kv_lens=0,0",
        ("pattern=s2 block=16 local=1 stride=2 heads=2 head_dim=16 q_lens=0,9,3 kv_lens=5,0,3 "
         "dtype=bf16")};
    const test_target *target = *state;
    for (size_t n = 0; n < sizeof empty / sizeof empty[0]; n++) {
        fixture f;
        if (!create(&f, target, target->device, empty[n])) continue;
        for (int g = 0; g < GRADIENTS; g++)
            for (uint64_t i = 0; i < f.bytes[g] / problem_size(&f.p); i++) {
                const double x = load_element(f.p.dtype, f.plain.d[g], (int64_t)i);
                if (isnan(x) || (n < 2 && x != 0))
                    fail_msg("%s, gradient %d, element %llu: %g", empty[n], g,
                             (unsigned long long)i, x);
            }
        release(&f);
    }
}
