/* SPDX-License-Identifier: Apache-2.0 */
/* What the header promises about threads: handles shared by many threads, each with its own
 * workspace; plans and layouts created at the same time; one error message for each thread. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/merging.h"
#include "common/stepping.h"
#include "common/testlib.h"

enum { THREADS = 8, ROUNDS = 12, HEADS = 4, KV_HEADS = 2, D = 32, Q = 70, KV = 200 };
/* Of a cache that all threads share: tokens of a page, and pages of a sequence, with one to copy.
 */
enum { PAGE = 16, SEQUENCE_PAGES = 14, PAGE_COUNT = PAGE * KV_HEADS * D };
enum { Q_COUNT = Q * HEADS * D, KV_COUNT = KV * KV_HEADS * D, LSE_COUNT = Q * HEADS };

typedef struct shared {
    tess_runtime *runtime;
    tess_device *device;
    tess_layout *layout;
    tess_plan *plan;
    tess_plan_info info;
    float q[Q_COUNT], k[KV_COUNT], v[KV_COUNT];
    float o[Q_COUNT], lse[LSE_COUNT]; /* what everybody must get */
    /* Gradients, and what everybody must get: dQ, dK and dV. Q is dO as well. */
    tess_plan *backward;
    tess_plan_info backward_info;
    float gradients[Q_COUNT + 2 * KV_COUNT];
    tess_plan *prefill, *chunk; /* of caches: all keys but the last Q, and these */
    tess_plan_info chunk_info;
    float pools[2][THREADS * SEQUENCE_PAGES * PAGE_COUNT];
    pthread_barrier_t start;
} shared;

typedef struct worker {
    shared *s;
    int number;
    pthread_t thread;
    float *o, *lse; /* room for a result, freed once the thread is gone */
    void *work;     /* likewise */
    char complaint[512];
} worker;

static shared *all;

/* cmocka's assertions belong to the main thread: workers leave a complaint instead. */
#define WANT(condition)                                                                  \
    do {                                                                                 \
        if (!(condition)) {                                                              \
            snprintf(w->complaint, sizeof w->complaint, "thread %d: %s (%s)", w->number, \
                     #condition, tess_last_error());                                     \
            return NULL;                                                                 \
        }                                                                                \
    } while (0)

static tess_plan_desc plan_desc(void) {
    return (tess_plan_desc){.struct_size = sizeof(tess_plan_desc),
                            .head_dim = D,
                            .batch = 1,
                            .q_len = Q,
                            .kv_len = KV,
                            .kv_split = 2};
}

static tess_layout_desc layout_desc(const tess_pattern *pattern) {
    return (tess_layout_desc){.struct_size = sizeof(tess_layout_desc),
                              .pattern = pattern,
                              .n_heads = HEADS,
                              .n_kv_heads = KV_HEADS,
                              .max_tokens = 1000};
}

static const tess_pattern s2 = {.struct_size = sizeof(tess_pattern),
                                .kind = TESS_PATTERN_S2,
                                .block = 16,
                                .local = 2,
                                .stride = 3};

static tess_status run_with(const tess_plan *plan, const shared *s, float *o, float *lse,
                            void *work, uint64_t work_bytes) {
    tess_run_desc run = {.struct_size = sizeof run};
    tess_plan_tensor(plan, TESS_ROLE_Q, tess_host_buffer(s->q, sizeof s->q), &run.q, NULL);
    tess_plan_tensor(plan, TESS_ROLE_K, tess_host_buffer(s->k, sizeof s->k), &run.k, NULL);
    tess_plan_tensor(plan, TESS_ROLE_V, tess_host_buffer(s->v, sizeof s->v), &run.v, NULL);
    tess_plan_tensor(plan, TESS_ROLE_O, tess_host_buffer(o, sizeof s->o), &run.o, NULL);
    tess_plan_tensor(plan, TESS_ROLE_LSE, tess_host_buffer(lse, sizeof s->lse), &run.lse, NULL);
    run.workspace = tess_host_buffer(work, work_bytes);
    return tess_run(plan, &run);
}

/* O and LSE are those of the forward plan; the gradients lie behind each other. */
static tess_status run_backward(const shared *s, float *gradients, void *work) {
    tess_run_desc run = {.struct_size = sizeof run};
    const struct {
        tess_role role;
        tess_tensor *tensor;
        const float *data;
        uint64_t bytes;
    } all_of[] = {{TESS_ROLE_Q, &run.q, s->q, sizeof s->q},
                  {TESS_ROLE_K, &run.k, s->k, sizeof s->k},
                  {TESS_ROLE_V, &run.v, s->v, sizeof s->v},
                  {TESS_ROLE_O, &run.o, s->o, sizeof s->o},
                  {TESS_ROLE_LSE, &run.lse, s->lse, sizeof s->lse},
                  {TESS_ROLE_D_O, &run.d_o, s->q, sizeof s->q},
                  {TESS_ROLE_D_Q, &run.d_q, gradients, sizeof s->q},
                  {TESS_ROLE_D_K, &run.d_k, gradients + Q_COUNT, sizeof s->k},
                  {TESS_ROLE_D_V, &run.d_v, gradients + Q_COUNT + KV_COUNT, sizeof s->v}};
    for (size_t n = 0; n < sizeof all_of / sizeof *all_of; n++)
        tess_plan_tensor(s->backward, all_of[n].role,
                         tess_host_buffer(all_of[n].data, all_of[n].bytes), all_of[n].tensor, NULL);
    run.workspace = tess_host_buffer(work, s->backward_info.workspace_bytes);
    return tess_run(s->backward, &run);
}

static void *aligned(uint64_t bytes) { return aligned_alloc(4096, (bytes / 4096 + 1) * 4096); }

static int same(const void *a, const void *b, size_t bytes) { return memcmp(a, b, bytes) == 0; }

/* A plan of caches that appends the last `rows` of `keys` keys. */
static tess_plan *cache_plan(const tess_layout *layout, int64_t rows, int64_t keys) {
    tess_plan_desc desc = plan_desc();
    tess_plan *plan = NULL;
    desc.flags = TESS_PLAN_COMPACT | TESS_PLAN_APPEND;
    desc.page = PAGE;
    desc.q_len = rows;
    desc.kv_len = keys;
    desc.max_in_flight = THREADS;
    desc.kernel = all->info.kernel;
    assert_ok(tess_plan_create(all->device, layout, &desc, &plan));
    return plan;
}

static void setup_cache(void) {
    tess_layout_desc desc = layout_desc(&s2);
    tess_layout *layout = NULL;
    int64_t pages;
    desc.max_chunk = Q;
    assert_ok(tess_layout_create(all->runtime, &desc, &layout));
    assert_ok(tess_layout_pages(layout, 0, KV, PAGE, &pages));
    assert_in_range(pages, 1, SEQUENCE_PAGES - 1);
    all->prefill = cache_plan(layout, KV - Q, KV - Q);
    all->chunk = cache_plan(layout, Q, KV);
    all->chunk_info.struct_size = sizeof all->chunk_info;
    assert_ok(tess_plan_query(all->chunk, &all->chunk_info));
    assert_int_equal(all->chunk_info.n_storage, 1);
    assert_true(all->chunk_info.workspace_bytes <= all->info.workspace_bytes);
    tess_layout_release(layout);
}

static void setup_backward(void) {
    tess_plan_desc desc = plan_desc();
    desc.op = TESS_OP_BACKWARD;
    desc.kv_split = 0;
    desc.max_in_flight = THREADS;
    assert_ok(tess_plan_create(all->device, all->layout, &desc, &all->backward));
    all->backward_info.struct_size = sizeof all->backward_info;
    assert_ok(tess_plan_query(all->backward, &all->backward_info));
    void *work = aligned(all->backward_info.workspace_bytes);
    assert_ok(run_backward(all, all->gradients, work));
    free(work);
}

static int setup(void **state) {
    (void)state;
    uint64_t seed = 3;
    all = calloc(1, sizeof *all);
    assert_non_null(all);
    for (int n = 0; n < Q_COUNT; n++) all->q[n] = (float)test_between(&seed, -1000, 1000) / 500;
    for (int n = 0; n < KV_COUNT; n++) all->k[n] = (float)test_between(&seed, -1000, 1000) / 500;
    for (int n = 0; n < KV_COUNT; n++) all->v[n] = (float)test_between(&seed, -1000, 1000) / 500;
    test_pretend_cpus(3);
    all->runtime = test_runtime(3);
    all->device = test_cpu(all->runtime);
    const tess_layout_desc layout = layout_desc(&s2);
    const tess_plan_desc plan = plan_desc();
    assert_ok(tess_layout_create(all->runtime, &layout, &all->layout));
    assert_ok(tess_plan_create(all->device, all->layout, &plan, &all->plan));
    all->info.struct_size = sizeof all->info;
    assert_ok(tess_plan_query(all->plan, &all->info));
    void *work = aligned(all->info.workspace_bytes);
    assert_ok(run_with(all->plan, all, all->o, all->lse, work, all->info.workspace_bytes));
    free(work);
    setup_cache();
    setup_backward();
    assert_int_equal(pthread_barrier_init(&all->start, NULL, THREADS), 0);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    pthread_barrier_destroy(&all->start);
    tess_plan *const plans[] = {all->backward, all->prefill, all->chunk, all->plan};
    for (size_t n = 0; n < sizeof plans / sizeof *plans; n++) tess_plan_release(plans[n]);
    tess_layout_release(all->layout);
    tess_device_release(all->device);
    tess_runtime_release(all->runtime);
    free(all);
    return 0;
}

static void in_threads(void *(*body)(void *worker)) {
    worker workers[THREADS];
    memset(workers, 0, sizeof workers);
    for (int n = 0; n < THREADS; n++) {
        workers[n].s = all;
        workers[n].number = n;
        workers[n].o = malloc(sizeof all->o);
        workers[n].lse = malloc(sizeof all->lse);
        workers[n].work = aligned(all->info.workspace_bytes);
        assert_true(workers[n].o && workers[n].lse && workers[n].work);
        assert_int_equal(pthread_create(&workers[n].thread, NULL, body, &workers[n]), 0);
    }
    for (int n = 0; n < THREADS; n++) {
        assert_int_equal(pthread_join(workers[n].thread, NULL), 0);
        free(workers[n].o);
        free(workers[n].lse);
        free(workers[n].work);
    }
    for (int n = 0; n < THREADS; n++)
        if (workers[n].complaint[0]) fail_msg("%s", workers[n].complaint);
}

/* ------------------------------------------------------------------ bodies */

static void *run_shared_plan(void *argument) {
    worker *w = argument;
    shared *s = w->s;
    pthread_barrier_wait(&s->start);
    for (int round = 0; round < ROUNDS; round++) {
        memset(w->o, 0xff, sizeof s->o);
        memset(w->lse, 0xff, sizeof s->lse);
        WANT(run_with(s->plan, s, w->o, w->lse, w->work, s->info.workspace_bytes) == TESS_OK);
        WANT(same(w->o, s->o, sizeof s->o));
        WANT(same(w->lse, s->lse, sizeof s->lse));
        int right = 0;
        WANT(test_merge(s->device, &right) == TESS_OK && right);
    }
    return NULL;
}

/* dQ is summed by several threads of each run, in turns. */
static void *run_shared_gradients(void *argument) {
    worker *w = argument;
    shared *s = w->s;
    float *gradients = malloc(sizeof s->gradients);
    void *work = aligned(s->backward_info.workspace_bytes);
    int failed = !gradients || !work;
    pthread_barrier_wait(&s->start);
    for (int round = 0; round < ROUNDS && !failed; round++) {
        memset(gradients, 0xff, sizeof s->gradients);
        failed = run_backward(s, gradients, work) != TESS_OK ||
                 !same(gradients, s->gradients, sizeof s->gradients);
    }
    free(gradients);
    free(work);
    WANT(!failed);
    return NULL;
}

static void *make_everything(void *argument) {
    worker *w = argument;
    shared *s = w->s;
    pthread_barrier_wait(&s->start);
    for (int round = 0; round < ROUNDS; round++) {
        tess_layout *layout = NULL;
        tess_plan *plan = NULL;
        tess_device *device = NULL;
        const tess_layout_desc ld = layout_desc(&s2);
        const tess_plan_desc pd = plan_desc();
        tess_plan_info info = {.struct_size = sizeof info};
        tess_device_desc dd = {.struct_size = sizeof dd, .id = "cpu"};
        WANT(tess_layout_create(s->runtime, &ld, &layout) == TESS_OK);
        WANT(tess_device_open(s->runtime, &dd, &device) == TESS_OK);
        WANT(tess_plan_create(round % 2 ? device : s->device, round % 3 ? layout : s->layout, &pd,
                              &plan) == TESS_OK);
        tess_layout_release(layout);
        tess_device_release(device);
        WANT(tess_plan_query(plan, &info) == TESS_OK);
        WANT(info.workspace_bytes == s->info.workspace_bytes); /* the same plan once more */
        WANT(run_with(plan, s, w->o, w->lse, w->work, info.workspace_bytes) == TESS_OK);
        WANT(same(w->o, s->o, sizeof s->o));
        tess_plan_release(plan);
    }
    return NULL;
}

static void *ask_everything(void *argument) {
    worker *w = argument;
    shared *s = w->s;
    uint8_t row[64];
    unsigned char bytes[4096];
    pthread_barrier_wait(&s->start);
    for (int round = 0; round < ROUNDS * 4; round++) {
        tess_backend_info backend = {.struct_size = sizeof backend};
        tess_device_info device = {.struct_size = sizeof device};
        tess_kernel_info kernel = {.struct_size = sizeof kernel};
        tess_setting_info setting = {.struct_size = sizeof setting};
        tess_layout_info layout = {.struct_size = sizeof layout};
        tess_kv_info kv = {.struct_size = sizeof kv};
        tess_storage_info storage = {.struct_size = sizeof storage};
        tess_plan_info plan = {.struct_size = sizeof plan};
        tess_layout *copy = NULL;
        tess_buffer buffer;
        int64_t slot, pages;
        uint64_t first, count;
        size_t size = sizeof bytes;
        WANT(tess_runtime_backend(s->runtime, 0, &backend) == TESS_OK);
        WANT(tess_runtime_device(s->runtime, 0, &device) == TESS_OK);
        WANT(tess_runtime_setting(s->runtime, 0, &setting) == TESS_OK);
        WANT(tess_device_query(s->device, &device) == TESS_OK);
        WANT(tess_device_kernel(s->device, 0, &kernel) == TESS_OK);
        WANT(tess_layout_query(s->layout, &layout) == TESS_OK);
        WANT(tess_layout_kv(s->layout, 0, &kv) == TESS_OK);
        WANT(tess_layout_slot(s->layout, 0, round % 63, &slot) == TESS_OK);
        WANT(tess_layout_storage(s->layout, 0, &storage, NULL) == TESS_OK);
        WANT(tess_layout_pages(s->layout, 0, round % 63, 16, &pages) == TESS_OK);
        WANT(tess_layout_row(s->layout, round % HEADS, round % 63, row, sizeof row) == TESS_OK);
        WANT(tess_layout_serialize(s->layout, bytes, &size) == TESS_OK);
        WANT(tess_layout_deserialize(s->runtime, bytes, size, &copy) == TESS_OK);
        tess_layout_release(copy);
        WANT(tess_plan_query(s->plan, &plan) == TESS_OK && plan.kept_pairs == s->info.kept_pairs);
        WANT(tess_plan_range(s->plan, 0, &first, &count) == TESS_OK);
        WANT(tess_alloc(s->device, 1000, &buffer) == TESS_OK);
        WANT(tess_copy(s->device, buffer, tess_host_buffer(row, sizeof row), sizeof row) ==
             TESS_OK);
        WANT(tess_wait(s->device, 1000000) == TESS_OK);
        WANT(tess_free(s->device, &buffer) == TESS_OK);
    }
    return NULL;
}

/* Appends keys from `first` on, which both K and V of the test have. */
static tess_status append_with(const tess_plan *plan, shared *s, int first, const int32_t *table,
                               const tess_tensor *pools) {
    tess_append_desc d = {.struct_size = sizeof d, .k_pools = &pools[0], .v_pools = &pools[1]};
    const float *const rows[2] = {s->k + first * KV_HEADS * D, s->v + first * KV_HEADS * D};
    tess_plan_tensor(plan, TESS_ROLE_NEW_K, tess_host_buffer(rows[0], 0), &d.k, NULL);
    tess_plan_tensor(plan, TESS_ROLE_NEW_V, tess_host_buffer(rows[1], 0), &d.v, NULL);
    d.block_table = tess_host_buffer(table, SEQUENCE_PAGES * sizeof *table);
    d.table_stride = SEQUENCE_PAGES;
    d.pages = THREADS * SEQUENCE_PAGES;
    return tess_append(plan, &d);
}

/* Each thread has a sequence in the pool of all, whose pages lie among those of the others. */
static void *share_a_pool(void *argument) {
    worker *w = argument;
    shared *s = w->s;
    int32_t table[SEQUENCE_PAGES], pair[2];
    tess_tensor pools[2];
    stepping steps;
    memset(&steps, 0, sizeof steps);
    for (int n = 0; n < SEQUENCE_PAGES; n++) table[n] = n * THREADS + w->number;
    pair[0] = table[0];
    pair[1] = table[SEQUENCE_PAGES - 1]; /* which no key goes to */
    for (int v = 0; v < 2; v++)
        WANT(tess_plan_pool(s->chunk, v ? TESS_ROLE_V : TESS_ROLE_K, 0, THREADS * SEQUENCE_PAGES,
                            tess_host_buffer(s->pools[v], sizeof s->pools[v]), &pools[v],
                            NULL) == TESS_OK);
    const tess_copy_desc copy = {.struct_size = sizeof copy,
                                 .n_pools = 2,
                                 .n_heads = KV_HEADS,
                                 .head_dim = D,
                                 .page = PAGE,
                                 .pages = THREADS * SEQUENCE_PAGES,
                                 .n_pairs = 1,
                                 .pools = pools,
                                 .pairs = tess_host_buffer(pair, sizeof pair)};
    pthread_barrier_wait(&s->start);
    WANT(stepping_create(s->runtime, s->device, &steps) == TESS_OK);
    for (int round = 0; round < ROUNDS; round++) {
        tess_run_desc run = {.struct_size = sizeof run, .k = pools[0], .v = pools[1]};
        int right = 0;
        memset(w->o, 0xff, sizeof s->o);
        memset(w->lse, 0xff, sizeof s->lse);
        WANT(append_with(s->prefill, s, 0, table, pools) == TESS_OK);
        WANT(append_with(s->chunk, s, KV - Q, table, pools) == TESS_OK);
        tess_plan_tensor(s->chunk, TESS_ROLE_Q, tess_host_buffer(s->q, sizeof s->q), &run.q, NULL);
        tess_plan_tensor(s->chunk, TESS_ROLE_O, tess_host_buffer(w->o, sizeof s->o), &run.o, NULL);
        tess_plan_tensor(s->chunk, TESS_ROLE_LSE, tess_host_buffer(w->lse, sizeof s->lse), &run.lse,
                         NULL);
        run.workspace = tess_host_buffer(w->work, s->info.workspace_bytes);
        run.block_table = tess_host_buffer(table, sizeof table);
        run.table_stride = SEQUENCE_PAGES;
        run.pages = THREADS * SEQUENCE_PAGES;
        WANT(tess_run(s->chunk, &run) == TESS_OK);
        WANT(same(w->o, s->o, sizeof s->o) && same(w->lse, s->lse, sizeof s->lse));
        WANT(tess_copy_pages(s->device, &copy) == TESS_OK);
        for (int v = 0; v < 2; v++)
            WANT(same(s->pools[v] + pair[0] * PAGE_COUNT, s->pools[v] + pair[1] * PAGE_COUNT,
                      PAGE_COUNT * sizeof(float)));
        WANT(stepping_run(s->device, &steps, &right) == TESS_OK && right);
    }
    WANT(stepping_release(s->device, &steps) == TESS_OK);
    return NULL;
}

/* Each thread fails in its own way and must see its own message, whatever the others do. */
static void *fail_in_own_way(void *argument) {
    worker *w = argument;
    char wanted[32];
    pthread_barrier_wait(&w->s->start);
    for (int round = 0; round < ROUNDS * 20; round++) {
        const uint32_t index = (uint32_t)(1000 + w->number * 1000 + round);
        tess_device_info info = {.struct_size = sizeof info};
        snprintf(wanted, sizeof wanted, "%u", index);
        WANT(tess_runtime_device(w->s->runtime, index, &info) == TESS_ERROR_INVALID);
        WANT(strstr(tess_last_error(), wanted) != NULL);
    }
    return NULL;
}

/* All of it at once. */
static void *mixture(void *argument) {
    switch (((worker *)argument)->number % 6) {
    case 0: return run_shared_plan(argument);
    case 1: return make_everything(argument);
    case 2: return ask_everything(argument);
    case 3: return share_a_pool(argument);
    case 4: return run_shared_gradients(argument);
    default: return fail_in_own_way(argument);
    }
}

/* A runtime of its own in each thread, probing at the same time. */
static void *own_runtime(void *argument) {
    worker *w = argument;
    pthread_barrier_wait(&w->s->start);
    for (int round = 0; round < 4; round++) {
        tess_runtime *runtime = NULL;
        tess_device *device = NULL;
        tess_runtime_desc rd = {.struct_size = sizeof rd,
                                .log = test_log_nothing,
                                .cpu_threads = (uint32_t)(1 + w->number % 3)};
        WANT(tess_runtime_create(&rd, &runtime) == TESS_OK);
        WANT(tess_device_open(runtime, NULL, &device) == TESS_OK);
        tess_runtime_release(runtime);
        tess_device_release(device);
    }
    return NULL;
}

#define IN_THREADS(function)                    \
    static void test_##function(void **state) { \
        (void)state;                            \
        in_threads(function);                   \
    }
IN_THREADS(run_shared_plan)
IN_THREADS(run_shared_gradients)
IN_THREADS(make_everything)
IN_THREADS(ask_everything)
IN_THREADS(share_a_pool)
IN_THREADS(fail_in_own_way)
IN_THREADS(mixture)
IN_THREADS(own_runtime)

int main(void) {
    return RUN_GROUP("threads", setup, teardown, TEST(test_run_shared_plan),
                     TEST(test_run_shared_gradients), TEST(test_make_everything),
                     TEST(test_ask_everything), TEST(test_share_a_pool), TEST(test_fail_in_own_way),
                     TEST(test_mixture), TEST(test_own_runtime));
}
