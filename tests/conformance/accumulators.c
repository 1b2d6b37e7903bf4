/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A workspace whose accumulators of dQ reach past 2^31 elements. All rows and keys are the same,
 * and a row keeps its own key alone, so each row of dQ has the bits that it has in a short
 * sequence. Inputs are one vector with strides of 0. The host computes the last rows alone, in a
 * sparse mapping, by the jobs that are theirs: the last strips and the first columns.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/testlib.h"
#include "problem.h"
#include "properties.h"
#include "reference.h"
#include "rig.h"

enum {
    HEADS = 64,
    DIM = 128,
    ROW = HEADS * DIM,
    NEAR = 64,
    CHECKED = 100,
    STRIPS = 40,
    COLUMNS = 2
};
static const int64_t far_length = (INT64_C(1) << 31) / ROW + NEAR;

typedef struct far_run {
    const test_target *target;
    tess_plan *plan;
    tess_plan_info info;
    tess_run_desc run;
    tess_buffer given, own[2]; /* dQ and the workspace */
} far_run;

static tess_buffer room(const test_target *target, uint64_t bytes) {
    tess_buffer buffer = {0};
    if (!target->host_memory) {
        assert_ok(tess_alloc(target->device, bytes, &buffer));
        return buffer;
    }
    void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED)
        fail_msg("%llu bytes of address space cannot be mapped", (unsigned long long)bytes);
    return tess_host_buffer(map, bytes);
}

/* Returns 0 if the kernel refuses; then there is nothing to release. */
static int make_plan(far_run *x, int64_t length) {
    char line[160], error[256];
    problem p;
    tess_layout *layout;
    tess_plan_desc desc;
    int64_t *cu;
    tess_runtime *runtime = test_runtime(1);
    snprintf(line, sizeof line,
             "op=bwd pattern=window left=0 right=0 heads=%d kv_heads=1 head_dim=%d q_len=%lld "
             "kv_len=%lld dtype=bf16",
             HEADS, DIM, (long long)length, (long long)length);
    assert_int_equal(problem_parse(&p, line, error, sizeof error), 0);
    assert_ok(problem_layout(&p, runtime, &layout));
    assert_int_equal(problem_plan_desc(&p, &desc, &cu), 0);
    desc.kernel = x->target->kernel[0] ? x->target->kernel : NULL;
    const tess_status status = tess_plan_create(x->target->device, layout, &desc, &x->plan);
    tess_layout_release(layout);
    tess_runtime_release(runtime);
    problem_free(&p);
    if (status == TESS_ERROR_UNSUPPORTED && x->target->kernel[0] && !x->target->portable) return 0;
    assert_ok(status);
    x->info.struct_size = sizeof x->info;
    assert_ok(tess_plan_query(x->plan, &x->info));
    return 1;
}

static int create(far_run *x, const test_target *target, int64_t length) {
    const float lse = 1.5f; /* and its gradient, which makes dS */
    uint16_t numbers[DIM + sizeof lse / sizeof(uint16_t)];
    uint64_t bytes;
    *x = (far_run){.target = target, .run = {.struct_size = sizeof x->run}};
    if (!make_plan(x, length)) return 0;
    fill_normal(TESS_BF16, numbers, DIM, 5, 1);
    memcpy(numbers + DIM, &lse, sizeof lse);
    x->given = test_upload(target->device, numbers, sizeof numbers);
    tess_tensor *const vectors[] = {&x->run.q, &x->run.k, &x->run.v, &x->run.o, &x->run.d_o},
                       *const scalars[] = {&x->run.lse, &x->run.d_lse};
    for (int n = 0; n < 5; n++) vectors[n]->buffer = x->given;
    for (int n = 0; n < 2; n++) {
        scalars[n]->buffer = x->given;
        scalars[n]->buffer.offset += DIM * sizeof *numbers;
    }
    assert_ok(tess_plan_tensor(x->plan, TESS_ROLE_D_Q, (tess_buffer){0}, &x->run.d_q, &bytes));
    x->run.d_q.buffer = x->own[0] = room(target, bytes);
    x->run.workspace = x->own[1] = room(target, x->info.workspace_bytes);
    return 1;
}

static void release(far_run *x) {
    for (int n = 0; n < 2; n++)
        if (x->target->host_memory)
            munmap((void *)(uintptr_t)x->own[n].handle, x->own[n].size);
        else
            assert_ok(tess_free(x->target->device, &x->own[n]));
    assert_ok(tess_free(x->target->device, &x->given));
    tess_plan_release(x->plan);
}

static void run_jobs(far_run *x, uint64_t first, uint64_t count) {
    x->run.first_job = first;
    x->run.job_count = count;
    assert_ok(tess_run(x->plan, &x->run));
    assert_ok(tess_wait(x->target->device, UINT64_MAX));
}

static void fetch_row(const far_run *x, int64_t row, uint16_t *to) {
    tess_buffer at = x->own[0];
    at.offset += (uint64_t)row * ROW * sizeof *to;
    assert_ok(
        tess_copy(x->target->device, tess_host_buffer(to, ROW * sizeof *to), at, ROW * sizeof *to));
}

void test_gradient_accumulators_far(void **state) {
    const test_target *target = *state;
    const char *full = getenv("TESSERA_TEST_FULL");
    tess_device_info device = {.struct_size = sizeof device};
    far_run x;
    static uint16_t wanted[ROW], got[ROW];
    assert_ok(tess_device_query(target->device, &device));
    /* Sanitizers cannot map as much, and few devices have it. */
    if (target->host_memory ? test_sanitized()
                            : !full || *full != '1' || device.memory_bytes < UINT64_C(40) << 30)
        return;
    if (!create(&x, target, NEAR)) return;
    run_jobs(&x, 0, 0);
    fetch_row(&x, 0, wanted);
    for (int n = 0; n < ROW; n++) assert_true((wanted[n] & 0x7fff) != 0);
    release(&x);
    assert_int_equal(1, create(&x, target, far_length));
    const uint64_t strips = (x.info.n_jobs - x.info.n_columns) / 2;
    if (target->host_memory) {
        assert_true(x.info.workspace_bytes > UINT64_C(1) << 33);
        run_jobs(&x, strips - STRIPS, STRIPS);
        run_jobs(&x, strips, COLUMNS);
        run_jobs(&x, strips + x.info.n_columns - COLUMNS, COLUMNS);
        run_jobs(&x, x.info.n_jobs - STRIPS, STRIPS);
    } else {
        run_jobs(&x, 0, 0);
    }
    for (int64_t row = far_length - CHECKED; row < far_length; row++) {
        fetch_row(&x, row, got);
        rig_same_bits("a row past 2^31 elements", wanted, got, sizeof got);
    }
    release(&x);
}
