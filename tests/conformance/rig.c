/* SPDX-License-Identifier: Apache-2.0 */
#include "rig.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GUARD = 256, GUARD_BYTE = 0x9d };

static void *take(uint64_t bytes) {
    void *pointer = malloc(bytes ? bytes : 1);
    if (!pointer) fail_msg("out of memory");
    return pointer;
}

static uint64_t elements_of(const rig_dims *d) {
    return (uint64_t)d->batch * (uint64_t)d->tokens * (uint64_t)d->heads * (uint64_t)d->elements;
}

/* fill_normal, which takes longer than many a kernel. An input is the beginning of any longer one
 * of its seed, so each is made once and copied, up to a size. */
static void fill_input(uint32_t dtype, void *data, int64_t count, uint64_t size, uint64_t seed,
                       int role) {
    enum { MOST_BYTES = 64 << 20 };
    static struct {
        void *data;
        int64_t count;
        uint64_t seed;
    } made[3][3]; /* by role and type */
    const uint64_t bytes = (uint64_t)count * size;
    if (dtype > TESS_BF16 || bytes > MOST_BYTES) {
        fill_normal(dtype, data, count, seed, (uint32_t)role);
        return;
    }
    void *kept = made[role][dtype].data;
    if (!kept || made[role][dtype].count < count || made[role][dtype].seed != seed) {
        free(kept);
        kept = take(bytes);
        fill_normal(dtype, kept, count, seed, (uint32_t)role);
        made[role][dtype].data = kept;
        made[role][dtype].count = count;
        made[role][dtype].seed = seed;
    }
    memcpy(data, kept, bytes);
}

int rig_has_instance(const test_target *target, const char *line) {
    char error[512];
    problem p;
    if (problem_parse(&p, line, error, sizeof error) != 0) fail_msg("%s: %s", line, error);
    const int has = test_has_instance(target, p.dtype, p.head_dim);
    problem_free(&p);
    return has;
}

int rig_has_gradients(const test_target *target, problem *p) {
    if (test_other_turn(target, p->dtype, p->head_dim)) return 0;
    if (!target->software || target->kernel[0] || test_full()) return 1;
    p->dtype = p->kv_dtype = TESS_F32;
    return p->head_dim <= 64;
}

void rig_create(rig *r, const test_target *target, const char *line,
                void (*edit)(tess_plan_desc *desc, void *user), void *user) {
    char error[512];
    memset(r, 0, sizeof *r);
    r->target = target;
    if (problem_parse(&r->p, line, error, sizeof error) != 0) fail_msg("%s: %s", line, error);
    if (test_other_turn(target, r->p.dtype, r->p.head_dim)) {
        problem_free(&r->p);
        r->refused = 1;
        return;
    }
    tess_runtime *runtime = test_runtime(0);
    assert_ok(problem_layout(&r->p, runtime, &r->layout));
    tess_runtime_release(runtime);
    tess_plan_desc desc;
    int64_t *cu = NULL;
    memset(&desc, 0, sizeof desc);
    assert_int_equal(problem_plan_desc(&r->p, &desc, &cu), 0);
    desc.kernel = target->kernel[0] ? target->kernel : NULL;
    if (edit) edit(&desc, user);
    const tess_status status = tess_plan_create(target->device, r->layout, &desc, &r->plan);
    free(cu);
    if (status == TESS_ERROR_UNSUPPORTED && target->kernel[0] && !target->portable) {
        tess_layout_release(r->layout);
        problem_free(&r->p);
        r->refused = 1;
        return;
    }
    if (status != TESS_OK) print_error("problem: %s\n", line);
    assert_ok(status);
    r->info.struct_size = sizeof r->info;
    assert_ok(tess_plan_query(r->plan, &r->info));
    const problem *p = &r->p;
    const int packed = p->q_lens != NULL;
    const int64_t batch = packed ? 1 : p->batch, q = packed ? problem_q_tokens(p) : p->q_len,
                  kv = packed ? problem_kv_tokens(p) : p->kv_len;
    r->dims[TESS_ROLE_Q] = r->dims[TESS_ROLE_O] = (rig_dims){batch, q, p->heads, p->head_dim};
    r->dims[TESS_ROLE_K] = r->dims[TESS_ROLE_V] = (rig_dims){batch, kv, p->kv_heads, p->head_dim};
    r->dims[TESS_ROLE_LSE] = (rig_dims){batch, q, p->heads, 1};
    for (int role = 0; role < 5; role++) {
        const int keys = role == TESS_ROLE_K || role == TESS_ROLE_V;
        r->size[role] = role == TESS_ROLE_LSE ? 4 : keys ? problem_kv_size(p) : problem_size(p);
        r->bytes[role] = elements_of(&r->dims[role]) * r->size[role];
    }
    for (int role = 0; role < 3; role++) {
        const int64_t rows = (int64_t)elements_of(&r->dims[role]) / p->head_dim;
        r->data[role] = take(r->bytes[role]);
        if (role > 0 && problem_has_scales(p)) {
            r->scales[role - 1] = take((uint64_t)rows * sizeof(float));
            fill_codes(p->kv_dtype, r->data[role], r->scales[role - 1], rows, p->head_dim, p->seed,
                       (uint32_t)role);
            continue;
        }
        fill_input(p->dtype, r->data[role], (int64_t)elements_of(&r->dims[role]), r->size[role],
                   p->seed, role);
    }
}

void rig_release(rig *r) {
    if (r->refused) return;
    for (int role = 0; role < 3; role++) free(r->data[role]);
    for (int v = 0; v < 2; v++) free(r->scales[v]);
    tess_plan_release(r->plan);
    tess_layout_release(r->layout);
    problem_free(&r->p);
}

rig_view rig_contiguous(const rig *r, tess_role role) {
    const rig_dims *d = &r->dims[role];
    if (role == TESS_ROLE_LSE) return (rig_view){d->heads * d->tokens, 1, d->tokens, 0};
    return (rig_view){d->tokens * d->heads * d->elements, d->heads * d->elements, d->elements, 0};
}

/* Copies between the contiguous array and the image. */
static void move_elements(const rig *r, tess_role role, const rig_view *v, void *contiguous,
                          char *image, int scatter) {
    const rig_dims *d = &r->dims[role];
    const rig_view c = rig_contiguous(r, role);
    const size_t size = r->size[role], run = (size_t)d->elements * size;
    for (int64_t b = 0; b < d->batch; b++)
        for (int64_t t = 0; t < d->tokens; t++)
            for (int64_t h = 0; h < d->heads; h++) {
                char *at =
                    (char *)contiguous + (size_t)(b * c.batch + t * c.token + h * c.head) * size;
                char *to =
                    image + (size_t)(v->offset + b * v->batch + t * v->token + h * v->head) * size;
                if (scatter)
                    memcpy(to, at, run);
                else
                    memcpy(at, to, run);
            }
}

void rig_scatter(const rig *r, tess_role role, const rig_view *view, const void *contiguous,
                 void *image) {
    move_elements(r, role, view, (void *)(uintptr_t)contiguous, image, 1);
}

void rig_gather(const rig *r, tess_role role, const rig_view *view, void *contiguous,
                const void *image) {
    move_elements(r, role, view, contiguous, (void *)(uintptr_t)image, 0);
}

uint64_t rig_extent(const rig *r, tess_role role, const rig_view *v) {
    const rig_dims *d = &r->dims[role];
    if (elements_of(d) == 0) return 0;
    return (uint64_t)(v->offset + (d->batch - 1) * v->batch + (d->tokens - 1) * v->token +
                      (d->heads - 1) * v->head + d->elements) *
           r->size[role];
}

/* A device may have so many runs under way already that the plan has no room for another. */
static void run_when_free(tess_device *device, const tess_plan *plan, const tess_run_desc *run) {
    tess_status status = tess_run(plan, run);
    if (status == TESS_ERROR_BUSY) {
        assert_ok(tess_wait(device, UINT64_MAX));
        status = tess_run(plan, run);
    }
    assert_ok(status);
}

/* Uploads the scales, which lie as the rows of a contiguous K do. */
static void give_scales(const rig *r, tess_buffer buffers[2], tess_run_desc *run) {
    tess_tensor *const tensors[2] = {&run->k_scale, &run->v_scale};
    const rig_dims *d = &r->dims[TESS_ROLE_K];
    for (int v = 0; v < 2 && problem_has_scales(&r->p); v++) {
        buffers[v] = test_upload(r->target->device, r->scales[v],
                                 elements_of(d) / (uint64_t)d->elements * sizeof(float));
        *tensors[v] = (tess_tensor){buffers[v], d->tokens * d->heads, d->heads, 1};
    }
}

/* Runs all jobs, or ranges of opt->step of them, and waits. The workspace begins `front` bytes into
 * its buffer. */
static void run_ranges(const rig *r, const rig_options *opt, const tess_tensor *tensor,
                       tess_buffer workspace, uint64_t front) {
    tess_device *device = r->target->device;
    tess_run_desc run = {.struct_size = sizeof run};
    run.q = tensor[TESS_ROLE_Q];
    run.k = tensor[TESS_ROLE_K];
    run.v = tensor[TESS_ROLE_V];
    run.o = tensor[TESS_ROLE_O];
    if (!opt->without_lse) run.lse = tensor[TESS_ROLE_LSE];
    run.workspace = workspace;
    run.workspace.offset += front;
    tess_buffer scales[2] = {0};
    give_scales(r, scales, &run);
    if (opt->step) {
        run.job_count = opt->step;
        for (; run.first_job < r->info.n_jobs; run.first_job += opt->step) {
            if (run.job_count > r->info.n_jobs - run.first_job)
                run.job_count = r->info.n_jobs - run.first_job;
            run_when_free(device, r->plan, &run);
        }
    } else
        assert_ok(tess_run(r->plan, &run));
    assert_ok(tess_wait(device, UINT64_MAX));
    for (int v = 0; v < 2; v++) assert_ok(tess_free(device, &scales[v]));
}

void rig_run(const rig *r, const rig_options *options, void *o, float *lse) {
    static const rig_options plain;
    const rig_options *opt = options ? options : &plain;
    tess_device *device = r->target->device;
    char *image[5];
    uint64_t bytes[5];
    tess_buffer buffer[5];
    tess_tensor tensor[5];
    rig_view view[5];
    for (int role = 0; role < 5; role++) {
        view[role] = opt->views ? opt->views[role] : rig_contiguous(r, (tess_role)role);
        const int output = role >= TESS_ROLE_O, guard = output ? GUARD : 0;
        bytes[role] = rig_extent(r, (tess_role)role, &view[role]) + 2 * (uint64_t)guard;
        image[role] = take(bytes[role]);
        /* 0xff.. is NaN in every type: what lies between elements of an input */
        memset(image[role], output ? GUARD_BYTE : 0xff, bytes[role]);
        if (!output)
            move_elements(r, (tess_role)role, &view[role],
                          opt->data[role] ? (void *)(uintptr_t)opt->data[role] : r->data[role],
                          image[role], 1);
        buffer[role] = test_upload(device, image[role], bytes[role]);
        memset(&tensor[role], 0, sizeof tensor[role]);
        tensor[role].buffer = buffer[role];
        tensor[role].buffer.offset += (uint64_t)guard + (uint64_t)view[role].offset * r->size[role];
        tensor[role].stride_batch = view[role].batch;
        tensor[role].stride_token = view[role].token;
        tensor[role].stride_head = view[role].head;
    }
    const uint64_t space = r->info.workspace_bytes,
                   align = r->info.workspace_align ? r->info.workspace_align : 1;
    const uint64_t front = (GUARD + align - 1) / align * align, all = front + space + GUARD;
    char *work = take(all);
    memset(work, opt->workspace_byte, all);
    memset(work, GUARD_BYTE, front);
    memset(work + front + space, GUARD_BYTE, GUARD);
    tess_buffer scratch = test_upload(device, work, all);

    run_ranges(r, opt, tensor, scratch, front);
    void *const results[2] = {o, lse};
    for (int role = TESS_ROLE_O; role <= TESS_ROLE_LSE; role++) {
        char *got = take(bytes[role]);
        test_download(device, buffer[role], got, bytes[role]);
        if (role == TESS_ROLE_O || !opt->without_lse) {
            move_elements(r, (tess_role)role, &view[role], results[role - TESS_ROLE_O], got + GUARD,
                          0);
            move_elements(r, (tess_role)role, &view[role], results[role - TESS_ROLE_O],
                          image[role] + GUARD, 1);
        }
        if (memcmp(got, image[role], bytes[role]) != 0)
            fail_msg("%s was written outside of its elements", role == TESS_ROLE_O ? "o" : "lse");
        free(got);
    }
    char *after = take(all);
    test_download(device, scratch, after, all);
    if (memcmp(after, work, front) != 0 ||
        memcmp(after + front + space, work + front + space, GUARD) != 0)
        fail_msg("memory around the workspace was written");
    free(after);
    free(work);
    assert_ok(tess_free(device, &scratch));
    for (int role = 0; role < 5; role++) {
        free(image[role]);
        assert_ok(tess_free(device, &buffer[role]));
    }
}

void *rig_room(uint64_t bytes) {
    void *pointer = calloc(1, bytes + 1);
    if (!pointer) {
        fail_msg("out of memory");
        exit(1); /* where fail_msg() is not known to end the function */
    }
    return pointer;
}

void rig_same_bits(const char *what, const void *a, const void *b, uint64_t bytes) {
    const unsigned char *x = a, *y = b;
    for (uint64_t n = 0; n < bytes; n++)
        if (x[n] != y[n])
            fail_msg("%s: byte %llu of %llu differs", what, (unsigned long long)n,
                     (unsigned long long)bytes);
}

rig_outputs rig_outputs_of(const rig *r) {
    return (rig_outputs){rig_room(r->bytes[TESS_ROLE_O]), rig_room(r->bytes[TESS_ROLE_LSE])};
}

void rig_outputs_free(rig_outputs *out) {
    free(out->o);
    free(out->lse);
}

void rig_same_outputs(const char *what, const rig *r, const rig_outputs *a, const rig_outputs *b) {
    char text[128];
    snprintf(text, sizeof text, "%s: o", what);
    rig_same_bits(text, a->o, b->o, r->bytes[TESS_ROLE_O]);
    snprintf(text, sizeof text, "%s: lse", what);
    rig_same_bits(text, a->lse, b->lse, r->bytes[TESS_ROLE_LSE]);
}

int rig_pair_create(rig_pair *x, const test_target *target, const char *line) {
    rig_create(&x->r, target, line, NULL, NULL);
    if (x->r.refused) return 0;
    x->plain = rig_outputs_of(&x->r);
    x->got = rig_outputs_of(&x->r);
    rig_run(&x->r, NULL, x->plain.o, x->plain.lse);
    return 1;
}

void rig_pair_release(rig_pair *x) {
    rig_outputs_free(&x->plain);
    rig_outputs_free(&x->got);
    rig_release(&x->r);
}

void rig_pair_same(const char *what, const rig_pair *x) {
    rig_same_outputs(what, &x->r, &x->plain, &x->got);
}

void rig_check_head(const rig *r, int32_t head, const void *o, const float *lse, double tolerance) {
    const problem *p = &r->p;
    const reference_inputs in = {r->data[0], r->data[1], r->data[2], r->scales[0], r->scales[1]};
    const rig_view vo = rig_contiguous(r, TESS_ROLE_O), vl = rig_contiguous(r, TESS_ROLE_LSE);
    double row[256], value;
    for (int64_t s = 0; s < p->batch; s++)
        for (int64_t n = 0; n < problem_q_len(p, s); n++) {
            reference_row(p, &in, s, head, n, row, &value);
            const int64_t token = problem_q_start(p, s) + n, batch = p->q_lens ? 0 : s;
            const double got = lse[batch * vl.batch + token * vl.token + head * vl.head];
            if (isinf(value) ? got != value : !(fabs(got - value) <= tolerance * (1 + fabs(value))))
                fail_msg("sequence %d head %d row %d: LSE is %.9g and should be %.9g", (int)s,
                         (int)head, (int)n, got, value);
            for (int e = 0; e < p->head_dim; e++) {
                const double x = load_element(
                    p->dtype, o, batch * vo.batch + token * vo.token + head * vo.head + e);
                if (!(fabs(x - row[e]) <= tolerance * (1 + fabs(row[e]))))
                    fail_msg("sequence %d head %d row %d element %d: %.9g and should be %.9g",
                             (int)s, (int)head, (int)n, e, x, row[e]);
            }
        }
}

void rig_check(const rig *r, const void *o, const float *lse, double tolerance) {
    for (int32_t h = 0; h < r->p.heads; h++) rig_check_head(r, h, o, lse, tolerance);
}

int rig_repeats(const test_target *target, int of_host, int elsewhere) {
    const char *wanted = getenv("TESSERA_TEST_REPEATS");
    if (wanted) return (int)strtol(wanted, NULL, 10);
    return target->host_memory && !test_sanitized() ? of_host : elsewhere;
}
