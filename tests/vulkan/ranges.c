/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors larger than maxStorageBufferRange, which shim.c lowers: launches bind some sequences and
 * kv heads at a time, and the bits are those of a device without the limit. What cannot be cut is
 * refused with both numbers.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/testlib.h"
#include "instance.h"
#include "shim_calls.h"

/* Strides of the tensors of a run. SPREAD: heads first, and far from each other, in float32. */
enum { AS_THEY_ARE, HEADS_FIRST, SPREAD };
enum { FAR = 3, TENSORS = 8, OF_K = 4 };

/* What a run gives: its outputs, and the dispatches that it took. */
typedef struct outcome {
    tess_status status;
    unsigned char *bits;
    uint64_t bytes;
    long dispatches;
} outcome;

static void lay_heads_first(tess_tensor *t, int64_t tokens, int64_t head_dim) {
    t->stride_token = head_dim;
    t->stride_head = tokens * head_dim;
}

/* Tensors of Q's rows, and then of keys. */
static void list_tensors(tess_run_desc *r, tess_tensor *all[TENSORS]) {
    tess_tensor *const list[TENSORS] = {&r->q, &r->o, &r->d_o, &r->d_q,
                                        &r->k, &r->v, &r->d_k, &r->d_v};
    memcpy(all, list, sizeof list);
}

/* [batch, head, token, element]: the same bytes, in another order. LSE lies so anyway. */
static void turn(instance *x) {
    tess_tensor *all[TENSORS];
    list_tensors(&x->run, all);
    for (int n = 0; n < TENSORS; n++)
        if (all[n]->buffer.kind)
            lay_heads_first(all[n], n < OF_K ? x->problem->q_len : x->problem->kv_len,
                            x->problem->head_dim);
}

/* The same with FAR times the space for each head, in memory that is the tensor's alone. */
static void spread(instance *x, tess_buffer memory[TENSORS], uint64_t bytes[TENSORS]) {
    const problem *p = x->problem;
    tess_tensor *all[TENSORS];
    list_tensors(&x->run, all);
    for (int n = 0; n < TENSORS; n++) {
        tess_tensor *t = all[n];
        if (!t->buffer.kind) continue;
        const int64_t heads = n < OF_K ? p->heads : p->kv_heads;
        lay_heads_first(t, (n < OF_K ? p->q_len : p->kv_len) * FAR, p->head_dim);
        t->stride_batch = heads * t->stride_head;
        const int64_t count = p->batch * t->stride_batch;
        bytes[n] = (uint64_t)count * sizeof(float);
        float *data = malloc(bytes[n]);
        assert_non_null(data);
        fill_normal(TESS_F32, data, count, 1, (uint32_t)n);
        memory[n] = test_upload(x->device, data, bytes[n]);
        t->buffer = memory[n];
        free(data);
    }
}

static void keep(outcome *o, const void *data, uint64_t bytes) {
    o->bits = realloc(o->bits, o->bytes + bytes + 1);
    assert_non_null(o->bits);
    if (bytes) memcpy(o->bits + o->bytes, data, bytes);
    o->bytes += bytes;
}

static void keep_spread(const instance *x, tess_buffer memory[TENSORS],
                        const uint64_t bytes[TENSORS], outcome *o) {
    for (int n = 0; n < TENSORS; n++) {
        if (!bytes[n]) continue;
        void *data = malloc(bytes[n]);
        assert_non_null(data);
        if (o->status == TESS_OK) {
            test_download(x->device, memory[n], data, bytes[n]);
            keep(o, data, bytes[n]);
        }
        free(data);
        assert_ok(tess_free(x->device, &memory[n]));
    }
}

static void run(const char *line, int strides, unsigned range, outcome *o) {
    static const tess_runtime_desc desc = {.struct_size = sizeof desc, .log = test_log_nothing};
    static const tess_device_desc open = {.struct_size = sizeof open, .id = "vulkan"};
    tess_runtime *runtime = NULL;
    tess_device *device = NULL;
    problem p;
    instance x;
    char error[256];
    tess_buffer memory[TENSORS];
    uint64_t bytes[TENSORS] = {0};
    memset(o, 0, sizeof *o);
    if (problem_parse(&p, line, error, sizeof error) != 0) fail_msg("%s", error);
    shim.pretend_range(range);
    assert_ok(tess_runtime_create(&desc, &runtime));
    assert_ok(tess_device_open(runtime, &open, &device));
    o->status = instance_create(&x, device, &p, NULL, 0);
    if (o->status == TESS_OK) {
        if (strides == HEADS_FIRST) turn(&x);
        if (strides == SPREAD) spread(&x, memory, bytes);
        const long before = shim.dispatches();
        o->status = instance_run(&x, NULL);
        o->dispatches = shim.dispatches() - before;
    }
    /* A stage that is refused comes after others, which still run. */
    if (o->status != TESS_OK) assert_ok(tess_wait(device, UINT64_C(60000000000)));
    if (strides == SPREAD) {
        keep_spread(&x, memory, bytes, o);
    } else if (o->status == TESS_OK) {
        instance_verdict verdict;
        assert_ok(instance_fetch(&x));
        keep(o, x.o, x.o_bytes);
        keep(o, x.lse, x.lse_bytes);
        for (int n = INSTANCE_D_Q; n <= INSTANCE_D_V; n++)
            keep(o, x.backward.host[n], x.backward.host[n] ? x.backward.bytes[n] : 0);
        if (strides == AS_THEY_ARE) {
            instance_check(&x, 40, &verdict);
            if (!verdict.pass) fail_msg("%s, range %u: %s", line, range, verdict.what);
        }
    }
    if (x.plan) instance_release(&x);
    tess_device_release(device);
    tess_runtime_release(runtime);
    shim.pretend_range(0);
    problem_free(&p);
}

typedef struct item {
    const char *line;
    int strides;
    unsigned range;
    const char *refused; /* NULL: it runs in several dispatches, with the same bits */
    int full;            /* left to TESSERA_TEST_FULL=1: each item compiles its kernels */
} item;

/* A sequence of Q takes 44,800 bytes, and one of K 32,000. Gradients have enough sequences for a
 * forward pass without parts. */
#define SEQUENCES \
    "heads=4 kv_heads=2 q_len=70 kv_len=100 head_dim=40 pattern=s2 block=16 local=2 stride=3 "
#define PADDED SEQUENCES "batch=5"
#define WINDOW "heads=6 kv_heads=3 q_len=70 kv_len=90 head_dim=64 pattern=window left=40 right=3"

/* 648 rows of 2 KiB, and 783 keys of half a KiB. */
#define PACKED                                                                                 \
    "heads=8 kv_heads=2 q_lens=300,1,0,257,90 kv_lens=300,58,5,300,120 head_dim=64 dtype=f32 " \
    "kv_split=1 "

static const item items[] = {
    {PADDED " kv_split=1", AS_THEY_ARE, 50000, NULL, 0},  /* sequences */
    {PADDED " kv_split=1", AS_THEY_ARE, 100000, NULL, 1}, /* two at a time */
    {PADDED " kv_split=1", AS_THEY_ARE, 31000, "q: its elements of one job span 44", 0},
    {PADDED " kv_split=1", HEADS_FIRST, 23000, NULL, 0}, /* and kv heads */
    {PADDED " kv_split=1", HEADS_FIRST, 15900, "q: its elements of one job span 22", 1},
    {PADDED " kv_split=2", HEADS_FIRST, 23000, "workspace: its elements span ", 1},
    {PADDED " kv_split=1", SPREAD, 70000, NULL, 1},
    {"heads=4 kv_heads=2 q_len=20 kv_len=600 head_dim=64 pattern=dense batch=6 kv_split=2",
     AS_THEY_ARE, 500000, NULL, 0},
    {"heads=8 kv_heads=1 q_len=300 head_dim=64 pattern=dense batch=2 kv_split=1", /* rows */
     AS_THEY_ARE, 300000, NULL, 1},
    {WINDOW " dtype=f16 batch=4 kv_split=1", HEADS_FIRST, 30000, NULL, 1},
    {PACKED "pattern=s2 block=16 local=2 stride=3", AS_THEY_ARE, 300000, NULL, 0}, /* and keys */
    {PACKED "pattern=dense", AS_THEY_ARE, 180000, "k: its elements of one job span ", 1},
    {"op=decode heads=8 kv_heads=4 q_len=1 kv_len=300 head_dim=64 pattern=s2 block=16 local=2 "
     "stride=3 batch=6 kv_split=1",
     AS_THEY_ARE, 700000, NULL, 1},
    {"op=decode heads=4 kv_heads=2 q_len=3 kv_len=300 head_dim=64 pattern=dense batch=2 page=16 "
     "kv_split=1",
     AS_THEY_ARE, 200000, "k: its elements of one job span ", 0},
    {"op=bwd " SEQUENCES "batch=9", AS_THEY_ARE, 50000, NULL, 1},
    {"op=bwd " SEQUENCES "batch=9", SPREAD, 70000, NULL, 0},
    {"op=bwd " WINDOW " dtype=bf16 batch=6", AS_THEY_ARE, 60000, NULL, 0},
    {"op=bwd heads=8 kv_heads=2 q_lens=200,1,0,257,90,0 kv_lens=200,58,5,300,120,7 head_dim=64 "
     "pattern=window left=30 right=9 dtype=bf16",
     AS_THEY_ARE, 350000, NULL, 0}, /* rows and keys of whole sequences */
};

static void test_ranges(void **state) {
    (void)state;
    for (size_t n = 0; n < sizeof items / sizeof *items; n++) {
        const item *i = &items[n];
        outcome whole, cut;
        if (i->full && !test_full()) continue;
        run(i->line, i->strides, i->range, &cut);
        printf("%s, range %u: %s, %ld dispatches\n", i->line, i->range,
               cut.status ? tess_last_error() : "runs", cut.dispatches);
        if (i->refused) {
            char limit[64];
            snprintf(limit, sizeof limit, "and maxStorageBufferRange is %u", i->range);
            assert_int_equal(cut.status, TESS_ERROR_UNSUPPORTED);
            assert_error_has(i->refused);
            assert_error_has(limit);
            continue;
        }
        assert_ok(cut.status);
        run(i->line, i->strides, 0, &whole);
        assert_ok(whole.status);
        assert_true(cut.dispatches > whole.dispatches);
        assert_int_equal(cut.bytes, whole.bytes);
        assert_memory_equal(cut.bits, whole.bits, whole.bytes);
        free(cut.bits);
        free(whole.bits);
    }
}

int main(void) {
    const int status = shim_find_device();
    if (status != 0) return status;
    return RUN_TESTS(TEST(test_ranges));
}
