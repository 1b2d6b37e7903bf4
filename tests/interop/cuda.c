/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An application that owns its CUDA context: Tessera runs in it, on its streams and its memory, and
 * is captured into its graphs. The driver is opened here as Tessera opens it, so that the program
 * builds without CUDA's headers; where there is no driver it is skipped. Every test runs with every
 * kernel.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/tessera_cuda.h>

#include "common/testlib.h"
#include "cuda_driver.h"
#include "instance.h"
#include "parts.h"

/* What a test runs with. */
typedef struct variant {
    const char *kernel; /* NULL: the plan's own choice */
    const char *dtype;
    int odd; /* no part of the memory is aligned to more than its elements */
} variant;

static const variant variants[] = {{"cuda/portable", "f32", 1},
                                   {"cuda/portable", "f32", 0},
                                   {"cuda/portable", "bf16", 1},
                                   {"cuda/portable", "f16", 0},
                                   {"cuda/sm90", "bf16", 0},
                                   {"cuda/sm90", "bf16", 1},
                                   {"cuda/sm90", "f16", 1},
                                   {"cuda/sm80", "bf16", 0},
                                   {"cuda/sm80", "f16", 1},
                                   {"cuda/decode", "bf16", 0},
                                   {NULL, "bf16", 0}};

/* What such an application holds. */
typedef struct app {
    const variant *v;
    int index, number; /* of the device: Tessera's and CUDA's */
    struct CUctx_st *context;
    void *stream;
    tessera_side t;
    uint64_t item; /* bytes of an element */
} app;

static const char *id_of(const app *a) {
    static char id[32];
    snprintf(id, sizeof id, "cuda:%d", a->index);
    return id;
}

static tess_status wrap(const app *a, struct CUctx_st *context, tess_device **device) {
    const tess_cuda_native native = {.struct_size = sizeof native, .context = context};
    const tess_device_desc desc = {.struct_size = sizeof desc, .id = id_of(a), .native = &native};
    return tess_device_open(a->t.runtime, &desc, device);
}

/* Whether the device has the kernel of the variant. */
static int has_kernel(const app *a) {
    tess_kernel_info info = {.struct_size = sizeof info};
    if (!a->v->kernel) return 1;
    for (uint32_t n = 0; tess_device_kernel(a->t.device, n, &info) == TESS_OK; n++)
        if (strcmp(info.name, a->v->kernel) == 0) return info.status == TESS_OK;
    return 0;
}

/* The context is current in the thread, as in most applications. */
static int setup(void **state) {
    app *a = *state;
    char line[256];
    CU(cu.context_create(&a->context, 0, a->number));
    CU(cu.stream_create(&a->stream, NON_BLOCKING));
    a->t.runtime = test_runtime(2);
    assert_ok(wrap(a, a->context, &a->t.device));
    if (!has_kernel(a)) return 0;
    snprintf(line, sizeof line,
             "pattern=s2 block=16 local=2 stride=3 heads=4 kv_heads=2 q_len=70 kv_len=333 "
             "head_dim=72 dtype=%s kv_split=3 batch=2",
             a->v->dtype);
    parts_prepare(&a->t, line, a->v->kernel, 0, a->v->odd);
    if (a->v->kernel) assert_string_equal(a->t.info.kernel, a->v->kernel);
    a->item = a->t.p.dtype == TESS_F32 ? 4 : 2;
    return 0;
}

static int teardown(void **state) {
    app *a = *state;
    const app bare = {.v = a->v, .index = a->index, .number = a->number};
    struct CUctx_st *current = NULL;
    parts_release(&a->t);
    CU(cu.context_current(&current));
    assert_ptr_equal(current, a->context); /* nothing that Tessera did has changed it */
    CU(cu.stream_destroy(a->stream));
    CU(cu.context_destroy(a->context));
    *a = bare;
    return 0;
}

#define NEEDS_KERNEL(a) \
    if (!(a)->t.plan) skip()

/* ------------------------------------------------------------------ one run */

/* The application's memory, all in one allocation, and what it holds on the host. */
typedef struct job {
    unsigned char *image;
    uint64_t memory;
    tess_run_desc run;
    uint64_t seed;
} job;

static void fill_inputs(const app *a, job *j, uint64_t seed) {
    j->seed = seed;
    for (int n = 0; n < 3; n++) {
        /* The address may not be aligned for elements by C's rules. */
        void *values = malloc(a->t.parts.bytes[n]);
        assert_non_null(values);
        fill_normal(a->t.p.dtype, values, (int64_t)(a->t.parts.bytes[n] / a->item), seed,
                    (uint32_t)n);
        memcpy(j->image + a->t.parts.offset[n], values, a->t.parts.bytes[n]);
        free(values);
    }
}

static tess_stream submit_to(void *stream) {
    return (tess_stream){.kind = TESS_STREAM_SUBMIT, .handle = (uint64_t)(uintptr_t)stream};
}

static void job_begin(const app *a, job *j, uint64_t seed) {
    memset(j, 0, sizeof *j);
    j->image = malloc(a->t.parts.size);
    assert_non_null(j->image);
    parts_fill(&a->t.parts, j->image);
    fill_inputs(a, j, seed);
    CU(cu.alloc(&j->memory, a->t.parts.size));
    CU(cu.to_device(j->memory, j->image, a->t.parts.size, a->stream));
    CU(cu.stream_wait(a->stream));
    j->run = parts_run(
        &a->t.parts, a->t.plan,
        (tess_buffer){.kind = TESS_BUFFER_POINTER, .handle = j->memory, .size = a->t.parts.size});
    j->run.stream = submit_to(a->stream);
}

/* Copies part `n` out, to memory aligned for its elements. */
static void *part(const app *a, const unsigned char *image, int n) {
    void *copy = malloc(a->t.parts.bytes[n]);
    assert_non_null(copy);
    memcpy(copy, image + a->t.parts.offset[n], a->t.parts.bytes[n]);
    return copy;
}

/* Compares O and LSE with the reference, by the rules for every test (docs/testing.md). */
static void check_values(const app *a, const unsigned char *inputs, const unsigned char *got) {
    instance x;
    instance_verdict verdict;
    memset(&x, 0, sizeof x);
    x.problem = &a->t.p;
    x.q = part(a, inputs, 0);
    x.k = part(a, inputs, 1);
    x.v = part(a, inputs, 2);
    x.o = part(a, got, 3);
    x.lse = part(a, got, 4);
    instance_check(&x, 64, &verdict);
    free(x.q);
    free(x.k);
    free(x.v);
    free(x.o);
    free(x.lse);
    if (!verdict.pass) fail_msg("%s %s: %s", a->t.info.kernel, a->v->dtype, verdict.what);
}

/* Reads everything back on one of the application's streams, checks the results, and checks that
 * nothing else changed. */
static void job_check(const app *a, const job *j, void *stream) {
    unsigned char *got = malloc(a->t.parts.size);
    assert_non_null(got);
    CU(cu.to_host(got, j->memory, a->t.parts.size, stream));
    CU(cu.stream_wait(stream));
    parts_check_rest(&a->t.parts, got, j->image);
    check_values(a, j->image, got);
    free(got);
}

static void job_end(job *j) {
    CU(cu.free(j->memory));
    free(j->image);
}

/* ------------------------------------------------------------------ the ways */

/* Runs once, on `stream`, waits if it is the device's own, and reads the results on `reader`. */
static void check_run(app *a, uint64_t seed, tess_stream stream, void *reader, double *seconds) {
    job j;
    NEEDS_KERNEL(a);
    job_begin(a, &j, seed);
    j.run.stream = stream;
    j.run.device_seconds = seconds;
    assert_ok(tess_run(a->t.plan, &j.run));
    if (stream.kind == TESS_STREAM_DEFAULT)
        assert_ok(tess_wait(a->t.device, UINT64_C(60000000000)));
    job_check(a, &j, reader);
    job_end(&j);
}

/* On the application's stream: its later commands see the result without any wait in between. */
static void test_stream(void **state) {
    app *a = *state;
    check_run(a, 1, submit_to(a->stream), a->stream, NULL);
}

static void test_own_stream(void **state) {
    app *a = *state;
    check_run(a, 2, (tess_stream){0}, a->stream, NULL);
}

/* On the legacy default stream. */
static void test_null_stream(void **state) { check_run(*state, 3, submit_to(NULL), NULL, NULL); }

static void test_times(void **state) {
    app *a = *state;
    double seconds = -1;
    check_run(a, 5, submit_to(a->stream), a->stream, &seconds);
    assert_true(isfinite(seconds) && seconds >= 0);
}

/* Ranges of jobs on two streams in turn, each waited for. */
static void test_ranges(void **state) {
    app *a = *state;
    void *streams[2] = {a->stream, NULL}, *event = NULL;
    job j;
    int n = 0;
    NEEDS_KERNEL(a);
    CU(cu.stream_create(&streams[1], NON_BLOCKING));
    CU(cu.event_create(&event, 0));
    job_begin(a, &j, 4);
    for (uint64_t first = 0; first < a->t.info.n_jobs; first += 5, n++) {
        j.run.first_job = first;
        j.run.job_count = a->t.info.n_jobs - first < 5 ? a->t.info.n_jobs - first : 5;
        j.run.stream.handle = (uint64_t)(uintptr_t)streams[n % 2];
        if (n > 0) CU(cu.event_wait(event));
        assert_ok(tess_run(a->t.plan, &j.run));
        CU(cu.event_record(event, streams[n % 2]));
    }
    CU(cu.event_wait(event));
    job_check(a, &j, a->stream);
    job_end(&j);
    CU(cu.event_destroy(event));
    CU(cu.stream_destroy(streams[1]));
}

/* Captures a plan's first run in the strictest mode. The graph reads whatever the buffers hold when
 * it is launched. */
static void test_graph(void **state) {
    app *a = *state;
    void *graph = NULL, *ready = NULL;
    job j;
    NEEDS_KERNEL(a);
    job_begin(a, &j, 6);
    CU(cu.capture_begin(a->stream, CAPTURE_GLOBAL));
    const tess_status status = tess_run(a->t.plan, &j.run);
    CU(cu.capture_end(a->stream, &graph));
    assert_ok(status);
    CU(cu.graph_instantiate(&ready, graph, 0));
    for (uint64_t seed = 7; seed < 9; seed++) {
        fill_inputs(a, &j, seed);
        /* fills outputs and workspace with NaN again, too */
        CU(cu.to_device(j.memory, j.image, a->t.parts.size, a->stream));
        CU(cu.graph_launch(ready, a->stream));
        job_check(a, &j, a->stream);
    }
    /* With unchanged inputs the graph gives the same result again, on the workspace that the last
     * launch left. */
    CU(cu.graph_launch(ready, a->stream));
    job_check(a, &j, a->stream);
    CU(cu.graph_exec_destroy(ready));
    CU(cu.graph_destroy(graph));
    job_end(&j);
}

/* ------------------------------------------------------------------ steps */

enum { STEP_BATCH = 2, STEP_ROWS = 9, STEP_PAGE = 16, STEP_DIM = 64, STEP_HEADS = 4, STEP_KV = 2 };

/* A captured step of one layer, and what it reads and writes: lengths, rows, the cache, O. */
typedef struct generation {
    tess_layout *layout;
    tess_plan *plan;
    tess_plan_info info;
    tess_prepare_desc prepare;
    tess_append_desc append;
    tess_run_desc run;
    tess_tensor pools[2];
    uint64_t o_bytes;
    int32_t keys, lengths[2 * STEP_BATCH + 1]; /* capacity; cu_rows, kv_lens */
    tess_buffer lengths_at, table;
} generation;

/* Pages of all sequences at their longest. */
static int64_t step_pages(const generation *g) { return STEP_BATCH * (g->keys / STEP_PAGE); }

/* Room for a tensor of the plan, or for a pool of pages, full of numbers. */
static tess_tensor step_tensor(const app *a, const generation *g, tess_role role, uint64_t *bytes) {
    const tess_buffer none = {0};
    tess_tensor t;
    uint64_t size, seed = 5 + (uint64_t)role;
    if (role == TESS_ROLE_K || role == TESS_ROLE_V)
        assert_ok(tess_plan_pool(g->plan, role, 0, step_pages(g), none, &t, &size));
    else
        assert_ok(tess_plan_tensor(g->plan, role, none, &t, &size));
    uint16_t *x = malloc(size);
    assert_non_null(x);
    for (uint64_t n = 0; n < size / 2; n++)
        x[n] = (uint16_t)(test_random(&seed) & 0xb3ff); /* of small size in every type */
    t.buffer = test_upload(a->t.device, x, size);
    free(x);
    if (bytes) *bytes = size;
    return t;
}

/* A table that names every page once, in no order. */
static tess_buffer step_table(const app *a, const generation *g) {
    const size_t pages = (size_t)step_pages(g);
    uint64_t seed = 3;
    int32_t *ids = malloc(pages * sizeof *ids);
    assert_non_null(ids);
    for (size_t n = 0; n < pages; n++) {
        const size_t other = (size_t)test_between(&seed, 0, (int64_t)n);
        ids[n] = ids[other];
        ids[other] = (int32_t)n;
    }
    const tess_buffer table = test_upload(a->t.device, ids, pages * sizeof *ids);
    free(ids);
    return table;
}

/* What a stream needs of its own to run the plan's steps. */
static void generation_memory(const app *a, generation *g, void *on) {
    const int32_t keys = g->keys;
    const tess_stream stream = {.kind = TESS_STREAM_SUBMIT, .handle = (uint64_t)(uintptr_t)on};
    g->lengths_at = test_upload(a->t.device, g->lengths, sizeof g->lengths);
    g->prepare = (tess_prepare_desc){.struct_size = sizeof g->prepare,
                                     .batch = STEP_BATCH,
                                     .cu_rows = g->lengths_at,
                                     .kv_lens = g->lengths_at,
                                     .step = test_upload(a->t.device, NULL, g->info.step_bytes),
                                     .stream = stream};
    g->prepare.kv_lens.offset += (STEP_BATCH + 1) * sizeof(int32_t);
    g->pools[0] = step_tensor(a, g, TESS_ROLE_K, NULL);
    g->pools[1] = step_tensor(a, g, TESS_ROLE_V, NULL);
    g->table = step_table(a, g);
    g->append = (tess_append_desc){.struct_size = sizeof g->append,
                                   .k = step_tensor(a, g, TESS_ROLE_NEW_K, NULL),
                                   .v = step_tensor(a, g, TESS_ROLE_NEW_V, NULL),
                                   .k_pools = &g->pools[0],
                                   .v_pools = &g->pools[1],
                                   .step = g->prepare.step,
                                   .block_table = g->table,
                                   .table_stride = keys / STEP_PAGE,
                                   .pages = step_pages(g),
                                   .stream = stream};
    g->run = (tess_run_desc){.struct_size = sizeof g->run,
                             .q = step_tensor(a, g, TESS_ROLE_Q, NULL),
                             .k = g->pools[0],
                             .v = g->pools[1],
                             .o = step_tensor(a, g, TESS_ROLE_O, &g->o_bytes),
                             .step = g->prepare.step,
                             .block_table = g->table,
                             .table_stride = keys / STEP_PAGE,
                             .pages = step_pages(g),
                             .stream = stream};
    if (g->info.workspace_bytes)
        g->run.workspace = test_upload(a->t.device, NULL, g->info.workspace_bytes);
}

/* False: the kernel has no steps, or not in these elements. */
static int generation_begin(const app *a, generation *g) {
    const tess_pattern pattern = test_s2_pattern(16, 2, 3);
    const int32_t keys = test_full() ? 131072 : 400;
    const tess_layout_desc ld = test_layout_desc(&pattern, STEP_HEADS, STEP_KV, keys);
    const tess_plan_desc pd = {.struct_size = sizeof pd,
                               .flags = TESS_PLAN_DEVICE_LENGTHS | TESS_PLAN_APPEND,
                               .dtype = a->t.p.dtype,
                               .head_dim = STEP_DIM,
                               .batch = STEP_BATCH,
                               .q_len = STEP_ROWS - 1,
                               .kv_len = keys,
                               .max_rows = STEP_ROWS,
                               .page = STEP_PAGE,
                               .kernel = a->v->kernel};
    memset(g, 0, sizeof *g);
    g->keys = keys;
    g->info.struct_size = sizeof g->info;
    assert_ok(tess_layout_create(a->t.runtime, &ld, &g->layout));
    const tess_status status = tess_plan_create(a->t.device, g->layout, &pd, &g->plan);
    if (status == TESS_ERROR_UNSUPPORTED) {
        tess_layout_release(g->layout);
        return 0;
    }
    assert_ok(status);
    assert_ok(tess_plan_query(g->plan, &g->info));
    generation_memory(a, g, a->stream);
    return 1;
}

/* The same plan on another stream. */
static void generation_beside(const app *a, const generation *g, generation *other, void *on) {
    *other = (generation){.plan = g->plan, .info = g->info, .keys = g->keys};
    generation_memory(a, other, on);
}

static void generation_free(const app *a, generation *g) {
    tess_buffer *const all[] = {&g->lengths_at,      &g->prepare.step,
                                &g->pools[0].buffer, &g->pools[1].buffer,
                                &g->append.k.buffer, &g->append.v.buffer,
                                &g->run.q.buffer,    &g->run.o.buffer,
                                &g->run.workspace,   &g->table};
    for (size_t n = 0; n < sizeof all / sizeof *all; n++) assert_ok(tess_free(a->t.device, all[n]));
}

static void generation_end(const app *a, generation *g) {
    generation_free(a, g);
    tess_plan_release(g->plan);
    tess_layout_release(g->layout);
}

static void enqueue_step(const generation *g) {
    assert_ok(tess_prepare(g->plan, &g->prepare));
    assert_ok(tess_append(g->plan, &g->append));
    assert_ok(tess_run(g->plan, &g->run));
}

/* One graph, captured before any step has run, serves every length: sequences grow past borders of
 * pages and of parts, one ends and another takes its place, and a chunk comes now and then. Each
 * launch gives what the same calls give without a graph. Sequences reach 128k keys with
 * TESSERA_TEST_FULL=1. */
static void test_generation(void **state) {
    static const int32_t jumps[] = {16, 383, 391, 1023, 4095, 32767, 65530, 131060};
    enum { JUMPS = sizeof jumps / sizeof *jumps };
    app *a = *state;
    void *graph = NULL, *ready = NULL;
    generation g;
    NEEDS_KERNEL(a);
    if (!generation_begin(a, &g)) skip();
    unsigned char *got = malloc(g.o_bytes), *wanted = malloc(g.o_bytes);
    assert_true(got && wanted);
    CU(cu.capture_begin(a->stream, CAPTURE_GLOBAL));
    enqueue_step(&g);
    CU(cu.capture_end(a->stream, &graph));
    CU(cu.graph_instantiate(&ready, graph, 0));
    const int32_t steps = test_sanitized() ? 27 : 60; /* kernels of stand-ins take their time */
    for (int32_t n = 1; n <= steps; n++) {
        const int32_t rows[STEP_BATCH] = {n % 13 == 0 ? 0 : 1, n % 7 == 3 ? STEP_ROWS - 1 : 1};
        int32_t *kv_lens = g.lengths + STEP_BATCH + 1;
        for (int b = 0; b < STEP_BATCH; b++) {
            g.lengths[b + 1] = g.lengths[b] + rows[b];
            kv_lens[b] += (b ? 11 : 1) * rows[b];
            if (b == 0 && n % 7 == 0) kv_lens[b] = jumps[n / 7 % JUMPS];
            if (kv_lens[b] > g.keys) kv_lens[b] = rows[b];
        }
        assert_ok(tess_copy(a->t.device, g.lengths_at,
                            tess_host_buffer(g.lengths, sizeof g.lengths), sizeof g.lengths));
        for (int by_graph = 0; by_graph < 2; by_graph++) {
            memset(got, 0xff, g.o_bytes);
            assert_ok(tess_copy(a->t.device, g.run.o.buffer, tess_host_buffer(got, g.o_bytes),
                                g.o_bytes));
            if (by_graph)
                CU(cu.graph_launch(ready, a->stream));
            else
                enqueue_step(&g);
            CU(cu.stream_wait(a->stream));
            test_download(a->t.device, g.run.o.buffer, by_graph ? got : wanted, g.o_bytes);
        }
        assert_memory_equal(got, wanted, g.o_bytes);
    }
    CU(cu.graph_exec_destroy(ready));
    CU(cu.graph_destroy(graph));
    free(got);
    free(wanted);
    generation_end(a, &g);
}

/* Two streams run one plan at the same time, each with a step, lengths, a cache and memory of its
 * own, and give what each gives alone. */
static void test_two_streams(void **state) {
    enum { STREAMS = 2, TURNS = 6 };
    static const int32_t lengths[STREAMS][2 * STEP_BATCH + 1] = {{0, 1, 2, 391, 77},
                                                                 {0, 1, 9, 12, 390}};
    app *a = *state;
    generation g[STREAMS];
    unsigned char *got[2];
    void *second = NULL;
    NEEDS_KERNEL(a);
    if (!generation_begin(a, &g[0])) skip();
    CU(cu.stream_create(&second, NON_BLOCKING));
    generation_beside(a, &g[0], &g[1], second);
    for (int n = 0; n < STREAMS; n++)
        assert_ok(tess_copy(a->t.device, g[n].lengths_at,
                            tess_host_buffer(lengths[n], sizeof lengths[n]), sizeof lengths[n]));
    for (int n = 0; n < 2; n++) {
        got[n] = malloc(g[0].o_bytes * STREAMS);
        assert_non_null(got[n]);
    }
    for (int at_once = 0; at_once < 2; at_once++) {
        for (int turn = 0; turn < TURNS; turn++)
            for (int n = 0; n < STREAMS; n++) {
                enqueue_step(&g[n]);
                if (!at_once) CU(cu.stream_wait(n ? second : a->stream));
            }
        CU(cu.stream_wait(a->stream));
        CU(cu.stream_wait(second));
        for (int n = 0; n < STREAMS; n++)
            test_download(a->t.device, g[n].run.o.buffer, got[at_once] + n * g[0].o_bytes,
                          g[0].o_bytes);
    }
    assert_memory_equal(got[0], got[1], g[0].o_bytes * STREAMS);
    CU(cu.stream_destroy(second));
    for (int n = 0; n < 2; n++) free(got[n]);
    generation_free(a, &g[1]);
    generation_end(a, &g[0]);
}

/* A thread without a context can run a plan, and has no context afterwards. */
static void test_no_context(void **state) {
    app *a = *state;
    struct CUctx_st *popped = NULL, *current = NULL;
    job j;
    NEEDS_KERNEL(a);
    job_begin(a, &j, 10);
    CU(cu.pop(&popped));
    assert_ptr_equal(popped, a->context);
    assert_ok(tess_run(a->t.plan, &j.run));
    assert_ok(tess_wait(a->t.device, UINT64_MAX));
    CU(cu.context_current(&current));
    assert_null(current);
    CU(cu.push(a->context));
    job_check(a, &j, a->stream);
    job_end(&j);
}

/* ------------------------------------------------------------------ several at once */

/* The wrapped context, the same one wrapped again, the GPU's primary context, and the CPU, in one
 * process and at the same time. */
static void test_beside_other_devices(void **state) {
    app *a = *state;
    tess_device *devices[3] = {NULL};
    const tess_device_desc desc = {.struct_size = sizeof desc, .id = id_of(a)};
    job j;
    NEEDS_KERNEL(a);
    devices[2] = test_cpu(a->t.runtime);
    assert_ok(wrap(a, a->context, &devices[0]));
    assert_ok(tess_device_open(a->t.runtime, &desc, &devices[1]));
    job_begin(a, &j, 11);
    assert_ok(tess_run(a->t.plan, &j.run)); /* under way while the others run */
    unsigned char *got = malloc(a->t.parts.size);
    assert_non_null(got);
    const void *const inputs[3] = {j.image + a->t.parts.offset[0], j.image + a->t.parts.offset[1],
                                   j.image + a->t.parts.offset[2]};
    for (int d = 0; d < 3; d++) {
        memcpy(got, j.image, a->t.parts.size);
        parts_run_elsewhere(&a->t.parts, &a->t.p, a->t.layout, devices[d],
                            d < 2 ? a->v->kernel : NULL, inputs, got + a->t.parts.offset[3],
                            got + a->t.parts.offset[4]);
        check_values(a, j.image, got);
    }
    job_check(a, &j, a->stream);
    free(got);
    job_end(&j);
    for (int d = 0; d < 3; d++) tess_device_release(devices[d]);
}

/* ------------------------------------------------------------------ refusals */

static void test_bad_natives(void **state) {
    app *a = *state;
    enum { SIZE = sizeof(tess_cuda_native) };
    const struct {
        tess_cuda_native native;
        tess_status status;
        const char *what;
    } bad[] = {{{4, 0, a->context}, TESS_ERROR_VERSION, "native.struct_size"},
               {{SIZE, 1, a->context}, TESS_ERROR_INVALID, "native.reserved"},
               {{SIZE, 0, NULL}, TESS_ERROR_INVALID, "native.context"}};
    for (size_t n = 0; n < sizeof bad / sizeof *bad; n++) {
        const tess_device_desc desc = {
            .struct_size = sizeof desc, .id = id_of(a), .native = &bad[n].native};
        tess_device *device = NULL;
        assert_int_equal(tess_device_open(a->t.runtime, &desc, &device), bad[n].status);
        assert_error_has(bad[n].what);
        assert_null(device);
    }
}

/* The context of another GPU, where there is one. By the backend's name alone its GPU is found. */
static void test_other_device(void **state) {
    app *a = *state;
    struct CUctx_st *other = NULL, *popped = NULL;
    int count = 0, number = 0;
    tess_device *device = NULL;
    CU(cu.count(&count));
    if (count < 2) skip();
    CU(cu.get(&number, a->index ? 0 : 1));
    CU(cu.context_create(&other, 0, number));
    CU(cu.pop(&popped));
    assert_int_equal(wrap(a, other, &device), TESS_ERROR_UNAVAILABLE);
    assert_error_has("another device");
    const tess_cuda_native native = {.struct_size = sizeof native, .context = other};
    const tess_device_desc desc = {.struct_size = sizeof desc, .id = "cuda", .native = &native};
    assert_ok(tess_device_open(a->t.runtime, &desc, &device));
    tess_device_info info = {.struct_size = sizeof info};
    assert_ok(tess_device_query(device, &info));
    assert_string_equal(info.id, a->index ? "cuda:0" : "cuda:1");
    tess_device_release(device);
    CU(cu.context_destroy(other));
}

static void test_bad_runs(void **state) {
    app *a = *state;
    job j;
    NEEDS_KERNEL(a);
    job_begin(a, &j, 12);
    const tess_run_desc good = j.run;
    j.run.stream.kind = TESS_STREAM_RECORD;
    assert_error(tess_run(a->t.plan, &j.run), TESS_ERROR_UNSUPPORTED, "tess_run", NULL);
    assert_error_has("stream.kind");
    j.run = good;
    j.run.stream.extra = &j;
    assert_error(tess_run(a->t.plan, &j.run), TESS_ERROR_INVALID, "tess_run", NULL);
    assert_error_has("stream.extra");
    /* Host memory is never copied in silence. */
    j.run = good;
    j.run.q.buffer = tess_host_buffer(j.image, a->t.parts.size);
    assert_error(tess_run(a->t.plan, &j.run), TESS_ERROR_INVALID, "tess_run", "q.buffer");
    j.run = good;
    j.run.q.buffer.offset++; /* a part of an element */
    assert_error(tess_run(a->t.plan, &j.run), TESS_ERROR_INVALID, "tess_run", "q.buffer");
    /* After all that the plan is as good as before. */
    j.run = good;
    assert_ok(tess_run(a->t.plan, &j.run));
    job_check(a, &j, a->stream);
    job_end(&j);
}

/* ------------------------------------------------------------------ */

int main(void) {
    const int devices = find_driver();
    int failed = 0;
    if (devices == 0) return left_out();
    for (int d = 0; d < devices && d < 2; d++) {
        /* A second device is there for what two of them could mix up. Under a sanitizer stand-ins
         * take most of the time. */
        for (size_t n = 0; n < sizeof variants / sizeof *variants;
             n += (d == 0 && !test_sanitized()) || test_full() ? 1 : 3) {
            static app a;
            char name[64];
            a = (app){.v = &variants[n], .index = d};
            if (cu.get(&a.number, d) != 0) return 1;
            snprintf(name, sizeof name, "cuda:%d %s %s%s", d,
                     a.v->kernel ? a.v->kernel : "own choice", a.v->dtype, a.v->odd ? " odd" : "");
            const struct CMUnitTest tests[] = {
                TEST_ON(&a, test_graph),
                TEST_ON(&a, test_stream),
                TEST_ON(&a, test_own_stream),
                TEST_ON(&a, test_null_stream),
                TEST_ON(&a, test_ranges),
                TEST_ON(&a, test_times),
                TEST_ON(&a, test_no_context),
                TEST_ON(&a, test_bad_natives),
                TEST_ON(&a, test_beside_other_devices),
                TEST_ON(&a, test_bad_runs),
                TEST_ON(&a, test_other_device),
                TEST_ON(&a, test_generation),
                TEST_ON(&a, test_two_streams),
            };
            failed += cmocka_run_group_tests_name(name, tests, NULL, NULL);
        }
    }
    return failed != 0;
}
