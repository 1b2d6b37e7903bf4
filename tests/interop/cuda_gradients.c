/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients in an application's own CUDA context, in the default, deterministic mode: a graph that
 * is replayed, ranges of one job each, other work on the GPU at the same time, and a context that
 * owns a few multiprocessors. There a kernel's workgroups do not run at the same time, though they
 * wait for each other's turns. Everything gives the bits of a plain run.
 */
#include <math.h>
#include <stdlib.h>
#include <tessera/tessera_cuda.h>

#include "cuda_driver.h"
#include "instance.h"

enum { GRADIENTS = 3, REPLAYS = 20 };

/* Green contexts, since CUDA 12.4. */
#define GREEN(X)                                                                 \
    X(resource, "cuDeviceGetDevResource", (int, void *, int))                    \
    X(split, "cuDevSmResourceSplitByCount",                                      \
      (void *, unsigned *, const void *, void *, unsigned, unsigned))            \
    X(describe, "cuDevResourceGenerateDesc", (void **, void *, unsigned))        \
    X(create, "cuGreenCtxCreate", (void **, void *, int, unsigned))              \
    X(context, "cuCtxFromGreenCtx", (struct CUctx_st **, void *))                \
    X(stream_create, "cuGreenCtxStreamCreate", (void **, void *, unsigned, int)) \
    X(destroy, "cuGreenCtxDestroy", (void *))
static struct {
#define GREEN_MEMBER(name, symbol, parameters) int(*name) parameters;
    GREEN(GREEN_MEMBER)
} green;

/* CUdevResource: its type, 92 bytes of the driver's, and then the multiprocessors. */
typedef union resource {
    unsigned words[64];
    void *aligned;
} resource;
enum { RESOURCE_MULTIPROCESSORS = 1, COUNT_WORD = 24, DEFAULT_STREAM = 1, IGNORE_CLUSTERS = 1 };

/* More columns than a GPU has multiprocessors with TESSERA_TEST_FULL=1; else what stand-ins of a
 * driver compute soon. */
static const char large_shape[] = "heads=12 kv_heads=6 q_len=3000 kv_len=3100",
                  small_shape[] = "heads=4 kv_heads=2 q_len=40 kv_len=150";

/* What a test runs with; NULL: the plan's own choice. */
typedef struct variant {
    const char *kernel, *words;
} variant;

static const variant variants[] = {
    {"cuda/portable", "dtype=f32 head_dim=40 pattern=s2 block=16 local=2 stride=3"},
    {"cuda/sm80", "dtype=bf16 head_dim=72 pattern=s2 block=16 local=2 stride=3"},
    {"cuda/sm90", "dtype=bf16 head_dim=128 pattern=s2 block=64 local=2 stride=3"},
    {"cuda/sm90", "dtype=f16 head_dim=64 pattern=window left=200 right=0 sinks=70"},
    {"cuda/sm90", "dtype=bf16 head_dim=128 pattern=dense"},
    {NULL, "dtype=bf16 head_dim=128 pattern=s2 block=64 local=2 stride=3"}};

typedef struct app {
    const variant *v;
    int index, number; /* of the device: Tessera's and CUDA's */
    struct CUctx_st *context;
    void *stream;
    tess_runtime *runtime;
    tess_device *device;
    problem p;
    instance x;
    void *plain[GRADIENTS]; /* what a plain run gives */
} app;

static uint64_t bytes_of(const app *a, int n) { return a->x.backward.bytes[INSTANCE_D_Q + n]; }

static void fetch(app *a) {
    if (instance_fetch(&a->x) != TESS_OK) fail_msg("%s", a->x.error);
}

/* Gradients in device memory are NaN. */
static void poison(app *a) {
    const tess_buffer all[GRADIENTS] = {a->x.run.d_q.buffer, a->x.run.d_k.buffer,
                                        a->x.run.d_v.buffer};
    for (int n = 0; n < GRADIENTS; n++) {
        void *host = a->x.backward.host[INSTANCE_D_Q + n];
        memset(host, 0xff, bytes_of(a, n));
        assert_ok(
            tess_copy(a->device, all[n], tess_host_buffer(host, bytes_of(a, n)), bytes_of(a, n)));
    }
}

/* Waits for the application's stream, and wants the bits of the plain run. */
static void check_bits(app *a, const char *what, int number) {
    CU(cu.stream_wait(a->stream));
    fetch(a);
    for (int n = 0; n < GRADIENTS; n++)
        if (memcmp(a->plain[n], a->x.backward.host[INSTANCE_D_Q + n], bytes_of(a, n)) != 0)
            fail_msg("%s %d: gradient %d has other bits (%s)", what, number, n, a->x.info.kernel);
}

static tess_run_desc on_stream(const app *a) {
    tess_run_desc run = a->x.run;
    run.stream =
        (tess_stream){.kind = TESS_STREAM_SUBMIT, .handle = (uint64_t)(uintptr_t)a->stream};
    return run;
}

/* The device in a context that is current, and the problem on it. Returns 0 where the kernel is not
 * for this device. */
static int begin(app *a) {
    char id[32], line[256], error[256];
    const char *full = getenv("TESSERA_TEST_FULL");
    const tess_cuda_native native = {.struct_size = sizeof native, .context = a->context};
    snprintf(id, sizeof id, "cuda:%d", a->index);
    const tess_device_desc desc = {.struct_size = sizeof desc, .id = id, .native = &native};
    a->runtime = test_runtime(1);
    assert_ok(tess_device_open(a->runtime, &desc, &a->device));
    snprintf(line, sizeof line, "%s %s", a->v->words,
             full && *full == '1' ? large_shape : small_shape);
    assert_int_equal(problem_parse(&a->p, line, error, sizeof error), 0);
    a->p.op = PROBLEM_BACKWARD;
    const tess_status status =
        instance_create(&a->x, a->device, &a->p, a->v->kernel, INSTANCE_WITH_D_LSE);
    if (status == TESS_ERROR_UNSUPPORTED && a->v->kernel) return 0;
    if (status != TESS_OK) fail_msg("%s", a->x.error);
    return 1;
}

static void end(app *a) {
    instance_release(&a->x);
    memset(&a->x, 0, sizeof a->x);
    problem_free(&a->p);
    tess_device_release(a->device);
    tess_runtime_release(a->runtime);
}

static int setup(void **state) {
    app *a = *state;
    instance_verdict verdict;
    CU(cu.context_create(&a->context, 0, a->number));
    CU(cu.stream_create(&a->stream, NON_BLOCKING));
    if (!begin(a)) return 0;
    poison(a);
    assert_ok(instance_run(&a->x, NULL));
    fetch(a);
    instance_check(&a->x, 64, &verdict);
    if (!verdict.pass) fail_msg("%s: %s", a->x.info.kernel, verdict.what);
    for (int n = 0; n < GRADIENTS; n++) {
        a->plain[n] = malloc(bytes_of(a, n));
        assert_non_null(a->plain[n]);
        memcpy(a->plain[n], a->x.backward.host[INSTANCE_D_Q + n], bytes_of(a, n));
    }
    return 0;
}

static int teardown(void **state) {
    app *a = *state;
    const app bare = {.v = a->v, .index = a->index, .number = a->number};
    end(a);
    for (int n = 0; n < GRADIENTS; n++) free(a->plain[n]);
    CU(cu.stream_destroy(a->stream));
    CU(cu.context_destroy(a->context));
    *a = bare;
    return 0;
}

#define NEEDS_KERNEL(a) \
    if (!(a)->plain[0]) skip()

/* ------------------------------------------------------------------ the ways */

static void test_replays(void **state) {
    app *a = *state;
    void *graph = NULL, *ready = NULL;
    NEEDS_KERNEL(a);
    const tess_run_desc run = on_stream(a);
    CU(cu.capture_begin(a->stream, CAPTURE_GLOBAL));
    const tess_status status = tess_run(a->x.plan, &run);
    CU(cu.capture_end(a->stream, &graph));
    assert_ok(status);
    CU(cu.graph_instantiate(&ready, graph, 0));
    for (int n = 0; n < REPLAYS; n++) {
        poison(a);
        CU(cu.graph_launch(ready, a->stream));
        check_bits(a, "replay", n);
    }
    CU(cu.graph_exec_destroy(ready));
    CU(cu.graph_destroy(graph));
}

/* Without a wait in between: what one range leaves, the next one finds. */
static void test_single_jobs(void **state) {
    app *a = *state;
    NEEDS_KERNEL(a);
    tess_run_desc run = on_stream(a);
    poison(a);
    run.job_count = 1;
    for (run.first_job = 0; run.first_job < a->x.info.n_jobs; run.first_job++)
        assert_ok(tess_run(a->x.plan, &run));
    check_bits(a, "single jobs", 0);
}

/* Forward runs of another problem are enqueued on another stream before each repeat. */
static void test_beside_other_work(void **state) {
    app *a = *state;
    const char *often = getenv("TESSERA_TEST_REPEATS");
    const int repeats = often ? atoi(often) : 3;
    void *stream = NULL;
    instance other;
    problem p;
    char error[256];
    NEEDS_KERNEL(a);
    CU(cu.stream_create(&stream, NON_BLOCKING));
    assert_int_equal(problem_parse(&p,
                                   "pattern=dense heads=3 q_len=33 kv_len=300 head_dim=64 "
                                   "dtype=f16",
                                   error, sizeof error),
                     0);
    assert_ok(instance_create(&other, a->device, &p, NULL, 0));
    const tess_run_desc run = on_stream(a);
    tess_run_desc beside = other.run;
    beside.stream = run.stream;
    beside.stream.handle = (uint64_t)(uintptr_t)stream;
    for (int n = 0; n < repeats; n++) {
        poison(a);
        for (int i = 0; i < 1 + n % 5; i++) assert_ok(tess_run(other.plan, &beside));
        assert_ok(tess_run(a->x.plan, &run));
        for (int i = 0; i < n % 3; i++) assert_ok(tess_run(other.plan, &beside));
        check_bits(a, "repeat", n);
    }
    CU(cu.stream_wait(stream));
    instance_release(&other);
    problem_free(&p);
    CU(cu.stream_destroy(stream));
}

/* As few multiprocessors as the driver gives. 0: it gives none, and says so. */
static unsigned few_multiprocessors(int number, void **context) {
    resource all = {{0}}, few = {{0}}, rest = {{0}};
    void *described = NULL;
    unsigned groups = 1;
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) return 0;
#define FIND_GREEN(name, symbol, parameters) \
    if (!find_symbol(library, symbol, &green.name)) return 0;
    GREEN(FIND_GREEN)
    int code = green.resource(number, &all, RESOURCE_MULTIPROCESSORS);
    if (code == 0) code = green.split(&few, &groups, &all, &rest, IGNORE_CLUSTERS, 1);
    if (code == 0) code = green.describe(&described, &few, 1);
    if (code == 0) code = green.create(context, described, number, DEFAULT_STREAM);
    if (code != 0) printf("no part of the multiprocessors: error %d\n", code);
    return code == 0 ? few.words[COUNT_WORD] : 0;
}

/* The kernel is launched as for the whole GPU, and its workgroups begin one after the other. */
static void test_few_multiprocessors(void **state) {
    app *a = *state, part = {.v = a->v, .index = a->index, .number = a->number};
    struct CUctx_st *popped = NULL;
    void *context = NULL;
    NEEDS_KERNEL(a);
    const unsigned count = few_multiprocessors(a->number, &context);
    if (!count) skip();
    printf("%s on %u multiprocessors\n", a->x.info.kernel, count);
    CU(green.context(&part.context, context));
    CU(green.stream_create(&part.stream, context, NON_BLOCKING, 0));
    CU(cu.push(part.context));
    assert_int_equal(1, begin(&part));
    memcpy(part.plain, a->plain, sizeof part.plain);
    const tess_run_desc run = on_stream(&part);
    for (int n = 0; n < REPLAYS; n++) {
        poison(&part);
        assert_ok(tess_run(part.x.plan, &run));
        check_bits(&part, "run on few multiprocessors", n);
    }
    end(&part);
    CU(cu.stream_destroy(part.stream));
    CU(cu.pop(&popped));
    CU(green.destroy(context));
}

int main(void) {
    const int devices = find_driver();
    int failed = 0;
    if (devices == 0) return left_out();
    for (size_t n = 0; n < sizeof variants / sizeof *variants; n++) {
        static app a;
        a = (app){.v = &variants[n]};
        if (cu.get(&a.number, 0) != 0) return 1;
        const struct CMUnitTest tests[] = {
            TEST_ON(&a, test_replays),
            TEST_ON(&a, test_single_jobs),
            TEST_ON(&a, test_beside_other_work),
            TEST_ON(&a, test_few_multiprocessors),
        };
        failed += cmocka_run_group_tests_name(
            variants[n].kernel ? variants[n].kernel : "own choice", tests, NULL, NULL);
    }
    return failed != 0;
}
