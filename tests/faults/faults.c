/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Failures from below: every host allocation and every call of a backend fails once, or from then
 * on, over a whole life cycle. After each failure the objects must stay usable (or say
 * DEVICE_LOST), nothing may leak, and other devices go on.
 *
 *   faults PATH_OF_FAKE_BACKEND
 */
#include <dlfcn.h>
#ifdef __GLIBC__
#include <malloc.h>
#if __GLIBC_PREREQ(2, 33)
#define HAS_MALLINFO2 1
#endif
#endif
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/serve.h"
#include "common/stepping.h"
#include "common/testlib.h"
#include "fake_device.h"
#include "instance.h"

static const char *fake_path;
static fake_control *control;

enum { PATTERNS = 5, HEADS = 4, KV_HEADS = 2, D = 16, Q = 20, KV = 90, MOST_FAULTS = 5000 };

static const uint8_t some_mask[4 * 6 * 6] = {1, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0,
                                             1, 1, 0, 0, 0, 1, 0, 1, 1, 0, 0, 0, 1};

static tess_pattern pattern_of(int n) {
    tess_pattern p = {.struct_size = sizeof p};
    static const uint32_t kinds[PATTERNS] = {TESS_PATTERN_S2, TESS_PATTERN_S2, TESS_PATTERN_DENSE,
                                             TESS_PATTERN_WINDOW, TESS_PATTERN_BLOCKS};
    p.kind = kinds[n];
    if (n != 2) p.block = 16;
    if (n < 2) p.local = 2, p.stride = 3;
    if (n == 1) p.flags = TESS_PATTERN_BIDIRECTIONAL;
    if (n == 3) p.left = 30, p.sinks = 5;
    if (n == 4) p.mask = some_mask, p.mask_heads = 4, p.mask_query_blocks = p.mask_key_blocks = 6;
    return p;
}

/* Everything that a life cycle holds; each member is made by one step. */
typedef struct life {
    const char *id;
    tess_runtime *runtime;
    tess_device *device;
    tess_layout *layouts[PATTERNS], *copies[PATTERNS];
    tess_plan *plans[PATTERNS];
    tess_plan_info info[PATTERNS];
    tess_buffer q, k, v, o, lse, workspace;
    float *result;
    float sums[PATTERNS];
    test_heap *heap;
    const char *backend_path;
} life;

typedef tess_status (*step)(life *l, int n);

static tess_status step_runtime(life *l, int n) {
    (void)n;
    tess_runtime_desc desc = {.struct_size = sizeof desc,
                              .allocator = l->heap->allocator,
                              .log = test_log_nothing,
                              .cpu_threads = 2};
    desc.backend_path = l->backend_path;
    return tess_runtime_create(&desc, &l->runtime);
}

static tess_status step_list(life *l, int n) {
    tess_device_info info = {.struct_size = sizeof info};
    tess_backend_info backend = {.struct_size = sizeof backend};
    const tess_status status = tess_runtime_device(l->runtime, (uint32_t)n, &info);
    return status == TESS_OK ? tess_runtime_backend(l->runtime, 0, &backend) : status;
}

static tess_status step_open(life *l, int n) {
    (void)n;
    tess_device_desc desc = {.struct_size = sizeof desc, .id = l->id};
    return tess_device_open(l->runtime, &desc, &l->device);
}

static tess_status step_layout(life *l, int n) {
    const tess_pattern pattern = pattern_of(n);
    tess_layout_desc desc = {.struct_size = sizeof desc,
                             .pattern = &pattern,
                             .n_heads = HEADS,
                             .n_kv_heads = KV_HEADS,
                             .max_tokens = KV};
    return tess_layout_create(l->runtime, &desc, &l->layouts[n]);
}

static tess_status step_layout_queries(life *l, int n) {
    tess_layout_info info = {.struct_size = sizeof info};
    tess_kv_info kv = {.struct_size = sizeof kv};
    tess_storage_info storage = {.struct_size = sizeof storage};
    uint8_t row[64];
    int64_t slot, pages;
    tess_status status = tess_layout_query(l->layouts[n], &info);
    if (status == TESS_OK) status = tess_layout_kv(l->layouts[n], 1, &kv);
    if (status == TESS_OK) status = tess_layout_slot(l->layouts[n], 1, 1, &slot);
    if (status == TESS_OK) status = tess_layout_storage(l->layouts[n], 0, &storage, NULL);
    if (status == TESS_OK) status = tess_layout_pages(l->layouts[n], 0, KV, 16, &pages);
    if (status == TESS_OK) status = tess_layout_row(l->layouts[n], 3, 1, row, sizeof row);
    return status;
}

static tess_status step_serialise(life *l, int n) {
    unsigned char bytes[4096];
    size_t size = sizeof bytes;
    const tess_status status = tess_layout_serialize(l->layouts[n], bytes, &size);
    return status == TESS_OK ? tess_layout_deserialize(l->runtime, bytes, size, &l->copies[n])
                             : status;
}

static tess_status step_plan(life *l, int n) {
    static const int64_t q_lens[3] = {Q, 0, 1}, kv_lens[3] = {KV, 5, 77},
                         cu_q[4] = {0, Q, Q, Q + 1}, cu_kv[4] = {0, 10, 15, KV};
    tess_plan_desc desc = {.struct_size = sizeof desc,
                           .head_dim = D,
                           .batch = 3,
                           .kv_split = n % 2 ? 3 : 0,
                           .time_limit_us = 10};
    if (n % 2) {
        desc.q_lens = q_lens;
        desc.kv_lens = kv_lens;
        desc.q_len = Q;
        desc.kv_len = KV;
    } else {
        desc.cu_q_lens = cu_q;
        desc.cu_kv_lens = cu_kv;
    }
    return tess_plan_create(l->device, n % 2 ? l->layouts[n] : l->copies[n], &desc, &l->plans[n]);
}

static tess_status step_plan_queries(life *l, int n) {
    uint64_t first, count;
    l->info[n].struct_size = sizeof l->info[n];
    const tess_status status = tess_plan_query(l->plans[n], &l->info[n]);
    return status == TESS_OK ? tess_plan_range(l->plans[n], 0, &first, &count) : status;
}

enum { ROOM = 3 * KV * HEADS * D };
static float inputs[ROOM];

static tess_buffer *buffer_of(life *l, int n) {
    tess_buffer *const buffers[6] = {&l->q, &l->k, &l->v, &l->o, &l->lse, &l->workspace};
    return buffers[n];
}

static tess_status step_alloc(life *l, int n) {
    uint64_t bytes = sizeof inputs;
    for (int p = 0; n == 5 && p < PATTERNS; p++)
        if (l->info[p].workspace_bytes > bytes) bytes = l->info[p].workspace_bytes;
    return tess_alloc(l->device, bytes, buffer_of(l, n));
}

static tess_status step_upload(life *l, int n) {
    return tess_copy(l->device, *buffer_of(l, n), tess_host_buffer(inputs, sizeof inputs),
                     sizeof inputs);
}

static tess_status step_run(life *l, int n) {
    tess_run_desc run = {.struct_size = sizeof run};
    tess_tensor *const tensors[5] = {&run.q, &run.k, &run.v, &run.o, &run.lse};
    for (int role = 0; role < 5; role++) {
        const tess_status status = tess_plan_tensor(l->plans[n], (tess_role)role,
                                                    *buffer_of(l, role), tensors[role], NULL);
        if (status != TESS_OK) return status;
    }
    run.workspace = l->workspace;
    return tess_run(l->plans[n], &run);
}

static tess_status step_wait(life *l, int n) {
    (void)n;
    return tess_wait(l->device, 1000000000);
}

static tess_status step_result(life *l, int n) {
    const tess_status status =
        tess_copy(l->device, tess_host_buffer(l->result, sizeof inputs), l->o, sizeof inputs);
    if (status != TESS_OK) return status;
    l->sums[n] = 0;
    for (int i = 0; i < Q * HEADS * D; i++) l->sums[n] += l->result[i];
    return TESS_OK;
}

static tess_status step_free(life *l, int n) { return tess_free(l->device, buffer_of(l, n)); }

static const struct {
    const char *name;
    step run;
    int count; /* called with 0 .. count - 1 */
    int needs_device;
} steps[] = {
    {"runtime", step_runtime, 1, 0},
    {"list", step_list, 1, 0},
    {"open", step_open, 1, 0},
    {"layout", step_layout, PATTERNS, 0},
    {"layout queries", step_layout_queries, PATTERNS, 0},
    {"serialise", step_serialise, PATTERNS, 0},
    {"plan", step_plan, PATTERNS, 1},
    {"plan queries", step_plan_queries, PATTERNS, 0},
    {"alloc", step_alloc, 6, 1},
    {"upload", step_upload, 3, 1},
    {"run", step_run, PATTERNS, 1},
    {"wait", step_wait, 1, 1},
    {"result", step_result, PATTERNS, 1},
    {"free", step_free, 6, 1},
};

static void life_release(life *l) {
    for (int n = 0; n < PATTERNS; n++) {
        tess_plan_release(l->plans[n]);
        tess_layout_release(l->copies[n]);
    }
    tess_device_release(l->device);
    for (int n = 0; n < PATTERNS; n++) tess_layout_release(l->layouts[n]);
    tess_runtime_release(l->runtime);
    free(l->result);
}

static void life_begin(life *l, const char *id, const char *backend_path, test_heap *heap) {
    memset(l, 0, sizeof *l);
    l->id = id;
    l->heap = heap;
    l->backend_path = backend_path;
    l->result = calloc(1, sizeof inputs);
    assert_non_null(l->result);
}

static void check_empty(const test_heap *heap, const char *what, int64_t k) {
    if (heap->live || heap->bytes)
        fail_msg("%s %lld: %lld allocations of %lld bytes leak", what, (long long)k,
                 (long long)heap->live, (long long)heap->bytes);
    if (heap->damaged)
        fail_msg("%s %lld: the allocator got something back that it never gave", what,
                 (long long)k);
}

static void run_all_steps(life *l) {
    for (size_t s = 0; s < sizeof steps / sizeof steps[0]; s++)
        for (int n = 0; n < steps[s].count; n++) assert_ok(steps[s].run(l, n));
}

/* Checksums of a cycle without faults: a cycle with faults must still compute them. */
static void sums_without_faults(const char *id, const char *backend_path, float *sums) {
    test_heap heap;
    life l;
    test_heap_init(&heap, 0, 0);
    life_begin(&l, id, backend_path, &heap);
    run_all_steps(&l);
    memcpy(sums, l.sums, sizeof l.sums);
    life_release(&l);
    check_empty(&heap, "no fault", 0);
}

static int same(const void *a, const void *b, size_t bytes) { return memcmp(a, b, bytes) == 0; }

static void no_device_fails(void) {
    memset(control, 0, sizeof *control);
    control->only_device = -1;
}

/* ------------------------------------------------------------------ host allocations */

/* Allocation k fails once: the step says OUT_OF_MEMORY, and the same step done again succeeds. */
static int transient_fault(const char *id, const char *backend_path, int64_t k, const float *sums) {
    test_heap heap;
    life l;
    test_heap_init(&heap, k, 0);
    life_begin(&l, id, backend_path, &heap);
    for (size_t s = 0; s < sizeof steps / sizeof steps[0]; s++)
        for (int n = 0; n < steps[s].count; n++) {
            tess_status status = steps[s].run(&l, n);
            if (status == TESS_OK) continue;
            if (status != TESS_ERROR_OUT_OF_MEMORY || heap.failures != 1 || !tess_last_error()[0])
                fail_msg("allocation %lld fails in %s %d: %s: %s", (long long)k, steps[s].name, n,
                         tess_status_name(status), tess_last_error());
            status = steps[s].run(&l, n);
            if (status != TESS_OK)
                fail_msg("after failing allocation %lld, %s %d done again: %s: %s", (long long)k,
                         steps[s].name, n, tess_status_name(status), tess_last_error());
        }
    if (!same(l.sums, sums, sizeof l.sums))
        fail_msg("after failing allocation %lld the results differ", (long long)k);
    life_release(&l);
    check_empty(&heap, "allocation", k);
    return heap.failures > 0;
}

/* Allocation k and all after it fail: each step says OUT_OF_MEMORY or succeeds; with memory again,
 * it succeeds. */
static int sticky_fault(const char *id, const char *backend_path, int64_t k, const float *sums) {
    test_heap heap;
    life l;
    test_heap_init(&heap, k, 1);
    life_begin(&l, id, backend_path, &heap);
    int64_t failures = 0;
    for (size_t s = 0; s < sizeof steps / sizeof steps[0]; s++)
        for (int n = 0; n < steps[s].count; n++) {
            tess_status status = steps[s].run(&l, n);
            if (status != TESS_OK) {
                if (status != TESS_ERROR_OUT_OF_MEMORY)
                    fail_msg("allocation %lld and later fail in %s %d: %s: %s", (long long)k,
                             steps[s].name, n, tess_status_name(status), tess_last_error());
                heap.fail_at = 0;
                status = steps[s].run(&l, n);
                if (status != TESS_OK)
                    fail_msg("with memory again, %s %d: %s: %s", steps[s].name, n,
                             tess_status_name(status), tess_last_error());
                heap.fail_at = heap.calls + 1; /* and gone once more */
            }
            failures = heap.failures;
        }
    if (!same(l.sums, sums, sizeof l.sums))
        fail_msg("after failing allocations from %lld on the results differ", (long long)k);
    life_release(&l);
    check_empty(&heap, "allocations from", k);
    return failures > 0;
}

/* Builds with a sanitizer plant every third fault; which third does not matter. */
static int stride(void) { return test_sanitized() ? 3 : 1; }

static void host_faults(const char *id, const char *backend_path) {
    float sums[PATTERNS];
    int64_t k = 1;
    sums_without_faults(id, backend_path, sums);
    for (; k < MOST_FAULTS; k += stride()) {
        const int some = transient_fault(id, backend_path, k, sums),
                  more = sticky_fault(id, backend_path, k, sums);
        if (!some && !more) break;
    }
    assert_in_range(k, 20, MOST_FAULTS - 1); /* fewer would mean that the allocator is not used */
}

static void test_host_faults(void **state) {
    (void)state;
    host_faults("cpu", "");
    no_device_fails();
    host_faults("fake:0", fake_path);
    assert_true(control->devices == 0 && control->buffers == 0 && control->states == 0 &&
                control->leaked == 0);
}

/* A forward pass and the gradients of it, which are right. */
static tess_status gradients_once(tess_device *device) {
    static const char line[] = "pattern=s2 block=16 local=2 stride=3 heads=4 kv_heads=2 op=bwd "
                               "q_len=9 kv_len=40 head_dim=8";
    problem p;
    instance x;
    instance_verdict verdict = {0};
    char error[256];
    assert_int_equal(problem_parse(&p, line, error, sizeof error), 0);
    tess_status status = instance_create(&x, device, &p, NULL, INSTANCE_GUARDS | INSTANCE_POISON);
    if (status == TESS_OK) {
        status = instance_run(&x, NULL);
        if (status == TESS_OK) status = instance_fetch(&x);
        if (status == TESS_OK) {
            instance_check(&x, 0, &verdict);
            if (!verdict.pass) fail_msg("%s", verdict.what);
        }
        instance_release(&x);
    }
    problem_free(&p);
    return status;
}

/* A server's plans, what it does with them, and gradients. */
static tess_status serve_and_step(tess_runtime *runtime, tess_device *device) {
    stepping s;
    int right = 0;
    memset(&s, 0, sizeof s);
    tess_status status = serve_once(runtime, device);
    if (status == TESS_OK) status = stepping_create(runtime, device, &s);
    if (status == TESS_OK) status = stepping_run(device, &s, &right);
    const tess_status released = stepping_release(device, &s);
    assert_true(status != TESS_OK || right);
    if (status == TESS_OK) status = gradients_once(device);
    return status != TESS_OK ? status : released;
}

/* Each allocation of a server fails, once and from then on, on one device. */
static void test_server_faults(void **state) {
    (void)state;
    life l;
    test_heap heap;
    int64_t k = 1;
    test_heap_init(&heap, 0, 0);
    life_begin(&l, "cpu", "", &heap);
    assert_ok(step_runtime(&l, 0));
    assert_ok(step_open(&l, 0));
    assert_ok(serve_and_step(l.runtime, l.device)); /* and its kernels are ready */
    const int64_t live = heap.live;
    for (int64_t before = -1; before != heap.failures; k++) {
        before = heap.failures;
        for (int sticky = 0; sticky < 2; sticky++) {
            heap.sticky = sticky;
            heap.fail_at = heap.calls + k;
            const tess_status status = serve_and_step(l.runtime, l.device);
            if (status != TESS_OK && status != TESS_ERROR_OUT_OF_MEMORY)
                fail_msg("allocation %lld fails: %s: %s", (long long)k, tess_status_name(status),
                         tess_last_error());
            heap.fail_at = 0;
            assert_int_equal(heap.live, live);
        }
        assert_ok(serve_and_step(l.runtime, l.device));
    }
    assert_in_range(k, 20, MOST_FAULTS);
    life_release(&l);
    check_empty(&heap, "a server's allocation", k);
}

/* An application that gives up after a failure, instead of trying again, must not leak either. */
static void test_giving_up(void **state) {
    (void)state;
    int64_t k = 1;
    for (; k < MOST_FAULTS; k++) {
        test_heap heap;
        life l;
        test_heap_init(&heap, k, 1);
        life_begin(&l, "fake:0", fake_path, &heap);
        memset(control, 0, sizeof *control);
        control->only_device = -1;
        tess_status status = TESS_OK;
        for (size_t s = 0; s < sizeof steps / sizeof steps[0] && status == TESS_OK; s++)
            for (int n = 0; n < steps[s].count && status == TESS_OK; n++)
                status = steps[s].run(&l, n);
        control->leaked = 0;
        life_release(&l);
        check_empty(&heap, "giving up after allocation", k);
        assert_true(control->devices == 0 && control->buffers == 0 && control->states == 0);
        if (status == TESS_OK) break;
    }
    assert_in_range(k, 20, MOST_FAULTS - 1);
}

/* ------------------------------------------------------------------ calls of a backend */

static int says_injected(void) {
    return strstr(tess_last_error(), "fake_") != NULL && strchr(tess_last_error(), '\n') == NULL;
}

/* Step `s` for pattern n has given `status`, because call k of the backend failed with `wanted`. */
static void check_failure(int64_t k, size_t s, int n, tess_status status, tess_status wanted,
                          int64_t failures_before) {
    const int opening = steps[s].run == step_open || steps[s].run == step_list;
    /* A failing list is kept as the reason why there is no device, and opening one says so later.
     */
    if (control->failures == failures_before && !(opening && control->failures > 0))
        fail_msg("call %lld: %s %d fails although no call did: %s: %s", (long long)k, steps[s].name,
                 n, tess_status_name(status), tess_last_error());
    /* A device that cannot be listed or opened is not available; the reason is in the message. */
    if (status != wanted &&
        !(opening && (status == TESS_ERROR_UNAVAILABLE || status == TESS_ERROR_INVALID)))
        fail_msg("call %lld (fake_%s) in %s %d: %s is wanted, got %s: %s", (long long)k,
                 control->failed, steps[s].name, n, tess_status_name(wanted),
                 tess_status_name(status), tess_last_error());
    if (!says_injected() && steps[s].run != step_list)
        fail_msg("call %lld (fake_%s) in %s %d: the message does not name the call: %s",
                 (long long)k, control->failed, steps[s].name, n, tess_last_error());
}

/* Does the step again that call k made fail. */
static void step_again(life *l, int64_t k, size_t s, int n) {
    control->fail_at = 0;
    if (!l->device && (steps[s].run == step_open || steps[s].run == step_list)) {
        tess_runtime_release(l->runtime); /* which keeps the list of devices */
        l->runtime = NULL;
        assert_ok(step_runtime(l, 0));
        assert_ok(step_list(l, 0));
    }
    const tess_status status = steps[s].run(l, n);
    if (status != TESS_OK)
        fail_msg("after call %lld (fake_%s), %s %d done again: %s: %s", (long long)k,
                 control->failed, steps[s].name, n, tess_status_name(status), tess_last_error());
}

/* Loss is sticky: no call on the device reaches the backend any more, except the one that frees
 * memory. */
static void use_lost_device(life *l) {
    const int64_t calls = control->calls;
    for (size_t s = 0; s < sizeof steps / sizeof steps[0]; s++)
        for (int n = 0; n < steps[s].count; n++) {
            if (!steps[s].needs_device) continue;
            if (steps[s].run == step_run && !l->plans[n]) continue;
            if (steps[s].run == step_plan &&
                (l->plans[n] || !(n % 2 ? l->layouts[n] : l->copies[n])))
                continue;
            const tess_status status = steps[s].run(l, n);
            const tess_status expected =
                steps[s].run == step_free ? TESS_OK : TESS_ERROR_DEVICE_LOST;
            if (status != expected)
                fail_msg("%s %d on a lost device: %s", steps[s].name, n, tess_status_name(status));
        }
    if (control->calls != calls) fail_msg("calls reach a lost device");
    control->fail_at = 0;
}

/* The other device of the runtime, and the lost one opened anew, do their work. */
static void use_other_devices(const life *l, test_heap *heap, const float *sums) {
    for (int again = 0; again < 2; again++) {
        life other;
        life_begin(&other, again ? "fake:0" : "fake:1", fake_path, heap);
        for (size_t s = 0; s < sizeof steps / sizeof steps[0]; s++)
            for (int n = 0; n < steps[s].count; n++) {
                if (steps[s].run == step_runtime) {
                    other.runtime = l->runtime;
                    continue;
                }
                assert_ok(steps[s].run(&other, n));
            }
        assert_memory_equal(other.sums, sums, sizeof other.sums);
        other.runtime = NULL;
        life_release(&other);
    }
}

/* Call k of the backend fails with `wanted`, once or for good. Returns whether it came to that. */
static int backend_fault(int64_t k, tess_status wanted, int sticky, const float *sums) {
    test_heap heap;
    life l;
    test_heap_init(&heap, 0, 0);
    memset(control, 0, sizeof *control);
    control->only_device = 0;
    control->fail_at = k;
    control->sticky = sticky;
    control->status = wanted;
    life_begin(&l, "fake:0", fake_path, &heap);
    int lost = 0;
    for (size_t s = 0; s < sizeof steps / sizeof steps[0] && !lost; s++)
        for (int n = 0; n < steps[s].count && !lost; n++) {
            const int64_t before = control->failures;
            const tess_status status = steps[s].run(&l, n);
            if (status == TESS_OK) continue;
            check_failure(k, s, n, status, wanted, before);
            lost = l.device && wanted == TESS_ERROR_DEVICE_LOST;
            if (!lost) step_again(&l, k, s, n);
        }
    const int happened = control->failures > 0;
    if (lost) {
        use_lost_device(&l);
        use_other_devices(&l, &heap, sums);
    } else if (!same(l.sums, sums, sizeof l.sums))
        fail_msg("after call %lld (fake_%s) the results differ", (long long)k, control->failed);
    life_release(&l);
    const int freed_badly = control->failed && strcmp(control->failed, "free") == 0;
    check_empty(&heap, "call", k);
    if (control->devices || control->buffers || control->states ||
        (control->leaked && !freed_badly))
        fail_msg("after call %lld (fake_%s): %lld devices, %lld buffers and %lld kernel states "
                 "leak, %lld buffers were left to the device",
                 (long long)k, control->failed ? control->failed : "none",
                 (long long)control->devices, (long long)control->buffers,
                 (long long)control->states, (long long)control->leaked);
    return happened;
}

static void backend_faults(tess_status status, int sticky) {
    float sums[PATTERNS];
    int64_t k = 1;
    no_device_fails();
    sums_without_faults("fake:0", fake_path, sums);
    while (k < MOST_FAULTS && backend_fault(k, status, sticky, sums)) k += stride();
    assert_in_range(k, 30, MOST_FAULTS - 1);
}

static void test_backend_out_of_memory(void **state) {
    (void)state;
    backend_faults(TESS_ERROR_OUT_OF_MEMORY, 0);
    backend_faults(TESS_ERROR_OUT_OF_MEMORY, 1);
}

static void test_backend_native(void **state) {
    (void)state;
    backend_faults(TESS_ERROR_NATIVE, 0);
    backend_faults(TESS_ERROR_NATIVE, 1);
}

static void test_backend_lost(void **state) {
    (void)state;
    backend_faults(TESS_ERROR_DEVICE_LOST, 0);
    backend_faults(TESS_ERROR_DEVICE_LOST, 1);
}

/* ------------------------------------------------------------------ many cycles */

/* Bytes of the C library's heap that are in use. What is resident says less: leaks fill memory that
 * was free before. */
static int64_t heap_in_use(void) {
#ifdef HAS_MALLINFO2
    const struct mallinfo2 info = mallinfo2();
    return (int64_t)(info.uordblks + info.hblkhd);
#else
    return test_resident();
#endif
}

static void cycles(const char *id, const char *backend_path) {
    const int count = test_sanitized() ? 50 : test_full() ? 1000 : 250;
    int descriptors = 0, mappings = 0;
    int64_t used = 0;
    for (int n = 0; n < count; n++) {
        test_heap heap;
        life l;
        test_heap_init(&heap, 0, 0);
        life_begin(&l, id, backend_path, &heap);
        run_all_steps(&l);
        life_release(&l);
        check_empty(&heap, "cycle", n);
        /* by now caches, pools of the C library and thread stacks have reached their size */
        if (n + 1 == count / 5) {
            descriptors = test_open_descriptors();
            mappings = test_mappings();
            used = heap_in_use();
        }
    }
    assert_int_equal(test_open_descriptors(), descriptors);
    if (test_sanitized()) return; /* which keeps freed memory; leaks are what it looks for itself */
    assert_in_range(test_mappings(), 1, mappings + 4);
    /* Half of what 200 cycles that leak 1 KiB each take. */
    const int64_t grown = heap_in_use() - used;
    if (grown > 100 * 1024)
        fail_msg("%d cycles take %lld KiB more", count, (long long)(grown / 1024));
}

static void test_cycles(void **state) {
    (void)state;
    cycles("cpu", "");
    no_device_fails();
    cycles("fake:1", fake_path);
}

/* 10,000 runs of one plan. */
static void test_runs(void **state) {
    (void)state;
    test_heap heap;
    life l;
    test_heap_init(&heap, 0, 0);
    life_begin(&l, "cpu", "", &heap);
    for (size_t s = 0; s < sizeof steps / sizeof steps[0]; s++) {
        if (steps[s].run == step_free) break;
        for (int n = 0; n < steps[s].count; n++) assert_ok(steps[s].run(&l, n));
    }
    const int64_t calls = heap.calls;
    int64_t used = 0;
    for (int n = 0; n < 10000; n++) {
        assert_ok(step_run(&l, n % PATTERNS));
        if (n == 1000) used = heap_in_use();
    }
    const int64_t grown = heap_in_use() - used;
    if (!test_sanitized() && grown > 100 * 1024)
        fail_msg("10,000 runs take %lld KiB more", (long long)(grown / 1024));
    assert_true(heap.calls == calls); /* a run allocates nothing */
    for (int n = 0; n < 6; n++) assert_ok(step_free(&l, n));
    life_release(&l);
    check_empty(&heap, "runs", 0);
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: %s PATH_OF_FAKE_BACKEND\n", argv[0]);
        return 2;
    }
    fake_path = argv[1];
    void *library = dlopen(fake_path, RTLD_NOW | RTLD_LOCAL);
    control = library ? dlsym(library, "fake_control_symbol") : NULL;
    if (!control) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    uint64_t seed = 7;
    for (int n = 0; n < ROOM; n++) inputs[n] = (float)test_between(&seed, -1000, 1000) / 500;
    const struct CMUnitTest tests[] = {
        TEST(test_host_faults),    TEST(test_server_faults),
        TEST(test_giving_up),      TEST(test_backend_out_of_memory),
        TEST(test_backend_native), TEST(test_backend_lost),
        TEST(test_cycles),         TEST(test_runs),
    };
    return cmocka_run_group_tests_name("faults", tests, NULL, NULL);
}
