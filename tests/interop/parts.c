/* SPDX-License-Identifier: Apache-2.0 */
#include "parts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "reference.h"

tess_plan *parts_plan(const problem *p, const tess_layout *layout, tess_device *device,
                      const char *kernel, uint32_t max_in_flight) {
    tess_plan_desc desc;
    tess_plan *plan = NULL;
    int64_t *lengths = NULL;
    assert_int_equal(problem_plan_desc(p, &desc, &lengths), 0);
    desc.kernel = kernel;
    desc.max_in_flight = max_in_flight;
    const tess_status status = tess_plan_create(device, layout, &desc, &plan);
    free(lengths);
    assert_ok(status);
    return plan;
}

void parts_place(parts *x, const tess_plan *plan, uint64_t element, int odd) {
    const tess_buffer none = {0};
    tess_plan_info info = {.struct_size = sizeof info};
    uint64_t end = odd ? 7 * element : 0;
    assert_ok(tess_plan_query(plan, &info));
    for (int n = 0; n < PARTS; n++) {
        tess_tensor tensor;
        if (n < 5)
            assert_ok(tess_plan_tensor(plan, (tess_role)n, none, &tensor, &x->bytes[n]));
        else
            x->bytes[n] = info.workspace_bytes;
        const uint64_t align = n == 5 ? info.workspace_align : !odd ? 256 : n == 4 ? 4 : element;
        end += PARTS_GUARD;
        end += (align - end % align) % align;
        x->offset[n] = end;
        end += x->bytes[n];
    }
    x->size = end + PARTS_GUARD;
}

void parts_prepare(tessera_side *t, const char *line, const char *kernel, uint32_t max_in_flight,
                   int odd) {
    char error[256];
    assert_int_equal(problem_parse(&t->p, line, error, sizeof error), 0);
    assert_ok(problem_layout(&t->p, t->runtime, &t->layout));
    t->plan = parts_plan(&t->p, t->layout, t->device, kernel, max_in_flight);
    t->info.struct_size = sizeof t->info;
    assert_ok(tess_plan_query(t->plan, &t->info));
    assert_true(t->info.n_merge_jobs > 0);
    parts_place(&t->parts, t->plan, t->p.dtype == TESS_F32 ? 4 : 2, odd);
}

void parts_release(tessera_side *t) {
    if (t->plan) problem_free(&t->p);
    tess_plan_release(t->plan);
    tess_layout_release(t->layout);
    tess_device_release(t->device);
    tess_runtime_release(t->runtime);
}

void parts_fill(const parts *x, unsigned char *image) {
    for (uint64_t n = 0; n < x->size; n++) image[n] = (unsigned char)(n * 41 + 3);
    for (int n = 3; n < PARTS; n++) memset(image + x->offset[n], 0xff, x->bytes[n]);
}

tess_run_desc parts_run(const parts *x, const tess_plan *plan, tess_buffer whole) {
    tess_run_desc run = {.struct_size = sizeof run};
    tess_tensor *const tensors[5] = {&run.q, &run.k, &run.v, &run.o, &run.lse};
    for (int n = 0; n < 5; n++) {
        whole.offset = x->offset[n];
        assert_ok(tess_plan_tensor(plan, (tess_role)n, whole, tensors[n], NULL));
    }
    whole.offset = x->offset[5];
    run.workspace = whole;
    return run;
}

void parts_run_elsewhere(const parts *x, const problem *p, const tess_layout *layout,
                         tess_device *device, const char *kernel, const void *const inputs[3],
                         void *o, void *lse) {
    tess_plan *plan = parts_plan(p, layout, device, kernel, 0);
    tess_plan_info info = {.struct_size = sizeof info};
    tess_run_desc run = {.struct_size = sizeof run};
    tess_tensor *const tensors[5] = {&run.q, &run.k, &run.v, &run.o, &run.lse};
    tess_buffer buffers[PARTS];
    assert_ok(tess_plan_query(plan, &info));
    for (int n = 0; n < PARTS; n++) {
        buffers[n] = test_upload(device, n < 3 ? inputs[n] : NULL,
                                 n < 5 ? x->bytes[n] : info.workspace_bytes);
        if (n < 5) assert_ok(tess_plan_tensor(plan, (tess_role)n, buffers[n], tensors[n], NULL));
    }
    run.workspace = buffers[5];
    assert_ok(tess_run(plan, &run));
    assert_ok(tess_wait(device, UINT64_MAX));
    test_download(device, buffers[3], o, x->bytes[3]);
    test_download(device, buffers[4], lse, x->bytes[4]);
    for (int n = 0; n < PARTS; n++) assert_ok(tess_free(device, &buffers[n]));
    tess_plan_release(plan);
}

void parts_check_rest(const parts *x, const unsigned char *got, const unsigned char *image) {
    uint64_t end = 0;
    for (int n = 0; n < PARTS; n++) {
        if (memcmp(got + end, image + end, x->offset[n] - end) != 0)
            fail_msg("memory before part %d was written", n);
        /* inputs are compared with what is in front of the next part */
        end = n < 3 ? x->offset[n] : x->offset[n] + x->bytes[n];
    }
    if (memcmp(got + end, image + end, x->size - end) != 0)
        fail_msg("memory behind the workspace was written");
}

void parts_check_rows(const problem *p, void *const inputs[3], const unsigned char *o,
                      const unsigned char *lse) {
    const reference_inputs in = {inputs[0], inputs[1], inputs[2]};
    const uint64_t element = p->dtype == TESS_F32 ? 4 : 2;
    const double tolerance = p->dtype == TESS_F32 ? 1e-5 : 2e-3;
    double row[256], wanted;
    for (int64_t b = 0; b < p->batch; b++)
        for (int32_t h = 0; h < p->heads; h++)
            for (int64_t r = 0; r < p->q_len; r += 3) {
                float got;
                reference_row(p, &in, b, h, r, row, &wanted);
                memcpy(&got, lse + 4 * (uint64_t)((b * p->heads + h) * p->q_len + r), sizeof got);
                if (!(fabs(got - wanted) < 1e-4))
                    fail_msg("batch %d head %d row %d: LSE %g, not %g", (int)b, (int)h, (int)r,
                             (double)got, wanted);
                for (int e = 0; e < p->head_dim; e++) {
                    uint32_t bits[1] = {0};
                    memcpy(
                        bits,
                        o + element *
                                (uint64_t)(((b * p->q_len + r) * p->heads + h) * p->head_dim + e),
                        element);
                    const double x = load_element(p->dtype, bits, 0);
                    if (!(fabs(x - row[e]) <= tolerance * (1 + fabs(row[e]))))
                        fail_msg("batch %d head %d row %d: %g, not %g", (int)b, (int)h, (int)r, x,
                                 row[e]);
                }
            }
}
