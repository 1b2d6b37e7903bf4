/* SPDX-License-Identifier: Apache-2.0 */
/* The table of kernels, fastest first, and which problems they take. */
#include <stdio.h>
#include <string.h>

#include "vk.h"

extern const tess_backend tess_vulkan_backend;

/* A row of the table of kernels. */
typedef struct vk_row {
    tess_row_head head;
    const tess_portable_variant *variant; /* NULL: it has no portable shapes */
    /* Of a kernel on matrix units: whether it has run on such devices with such drivers. On others
     * it checks itself first. */
    int (*proved)(const tess_vk_found *found);
} vk_row;

/* Numbers of rows. */
enum { COOPMAT, PORTABLE, PORTABLE_SMALL };

/* The variants of the forward kernel come before all others. */
static const vk_row kernels[] = {
    [COOPMAT] = {{TESS_OP_FORWARD, "coopmat", 0}, NULL, tess_vk_is_nvidia},
    [PORTABLE] = {{TESS_OP_FORWARD, "portable", 0}, &tess_portable, NULL},
    [PORTABLE_SMALL] = {{TESS_OP_FORWARD, "portable_small", 0}, &tess_portable_small, NULL},
    {{TESS_OP_BACKWARD, "portable", 0}, NULL, NULL},
    {{TESS_OP_APPEND, "append", 0}, NULL, NULL},
    {{TESS_OP_COPY_PAGES, "copy_pages", 0}, NULL, NULL},
    {{TESS_OP_MERGE, "merge_parts", 0}, NULL, NULL},
    {{TESS_OP_PREPARE, "prepare", 0}, NULL, NULL},
};
enum { ROWS = sizeof kernels / sizeof *kernels };
_Static_assert((int)ROWS <= (int)TESS_CHECK_MOST_ROWS, "each row has a place for its check");

/* MATRIX_SPEED: how many times as fast as portable the kernel on matrix units is. */
enum { MOST_IN_FLIGHT = 4096, STEP_KEYS = 64, MATRIX_SPEED = 8 };

/* Why the device cannot run a shape, or NULL. */
static const char *shape_refusal(const tess_vk_device *d, const tess_portable_shape *s,
                                 char *buffer, size_t size) {
    const vk_limits *l = &d->found.properties.limits;
    if (s->shared_bytes > l->max_shared_bytes)
        snprintf(buffer, size, "needs %u bytes of shared memory, maxComputeSharedMemorySize is %u",
                 s->shared_bytes, l->max_shared_bytes);
    else if (s->threads > l->max_group_threads)
        snprintf(buffer, size, "needs workgroups of %u, maxComputeWorkGroupInvocations is %u",
                 s->threads, l->max_group_threads);
    else if (s->threads > l->max_group_size[0])
        snprintf(buffer, size, "needs workgroups of %u, maxComputeWorkGroupSize is %u", s->threads,
                 l->max_group_size[0]);
    else
        return NULL;
    return buffer;
}

/* Whether a workgroup of backward may go through so many loops that lavapipe, which ends them all
 * after 65,535 iterations, would leave some of them out. Unknown lengths pass. */
static int loops_end(const tess_vk_device *d, const tess_kernel_key *key) {
    enum { LOOPS = 60000, CHUNK = 32, KNOWN = INT32_MAX / 2 };
    if (d->found.properties.kind != TVK_DEVICE_CPU) return 0;
    if (key->max_q_len > KNOWN || key->max_kv_len > KNOWN) return 0;
    const int64_t rows = key->max_q_len * key->group, keys = key->max_kv_len;
    return (rows > keys ? rows : keys) / CHUNK * (key->head_dim + 64) > LOOPS;
}

/* The same of a shape of backward. */
static const char *backward_refusal(const tess_vk_device *d, const tess_kernel_key *key,
                                    char *buffer, size_t size) {
    const tess_backward_shape *s = tess_backward_find(key ? key->head_dim : 1);
    if (key && loops_end(d, key)) {
        snprintf(buffer, size, "lavapipe ends loops as long as those of %lld rows and %lld keys",
                 (long long)key->max_q_len, (long long)key->max_kv_len);
        return buffer;
    }
    const tess_portable_shape as = {.threads = s->threads, .shared_bytes = s->shared_bytes};
    return shape_refusal(d, &as, buffer, size);
}

/* Why the kernel on matrix units refuses a device, or a key. */
static const char *matrix_refusal(const tess_vk_device *d, const tess_kernel_key *key, char *buffer,
                                  size_t size) {
    const tess_vk_matrices *m = &d->found.matrices;
    const int none = !m->product[TESS_F16].m && !(m->bfloat16 && m->product[TESS_BF16].m);
    tess_portable_shape shape;
    if (m->missing[0]) return m->missing;
    if (!d->found.storage_16bit) return "the device has no storageBuffer16BitAccess";
    if (none) return "no size of float16 or bfloat16 matrices with float32 results fits";
    const char *why = key ? tess_portable_refusal(key) : NULL;
    if (why || !key) return why;
    if (key->dtype == TESS_F32) return "dtype is f32, and matrices are of f16 or bf16";
    if (tess_portable_has_codes(key->kv_dtype)) return "K and V are codes of 8 bits";
    if (key->head_dim > VK_MATRIX_DIMS) return "head_dim is larger than 128";
    if (key->dtype == TESS_BF16 && !m->bfloat16)
        return "dtype is bf16, and shaderBFloat16CooperativeMatrix is missing";
    if (!m->product[key->dtype].m) return "no size of matrices of this dtype fits";
    tess_vk_matrix_shape(d, key, &shape);
    if (shape.keys * shape.head_dim / 8 % shape.threads || shape.threads % (shape.head_dim / 8))
        return "subgroups are too large, or too small";
    return shape_refusal(d, &shape, buffer, size);
}

/* The shape of a portable row. NVIDIA's compiler makes better code for tiles of 128 rows and 32
 * keys up to a head_dim of 64: 22.5 TFLOP/s on an H200 instead of 21.3. Such tiles need rows to
 * fill them. Lengths that the key does not know, as of batch-invariant plans, are no reason. */
static const tess_portable_shape *choose(const tess_vk_device *d, const vk_row *row,
                                         const tess_kernel_key *key) {
    enum { LEAST_ROWS = 512 };
    const int tall = row->variant == &tess_portable && key->max_kv_len <= INT32_MAX / 2 &&
                     key->max_q_len * key->group >= LEAST_ROWS && tess_vk_is_nvidia(&d->found);
    return tess_portable_choose(tall ? &tess_portable_tall : row->variant, key);
}

static int is_matrix(const vk_row *row) { return row->head.op == TESS_OP_FORWARD && !row->variant; }

/* Whether the kernel on matrix units is taken only when named: matrices of a software device are as
 * slow as anything else on it, and the portable kernels for few rows read K and V at the speed of
 * the memory. Batch-invariant plans, which do not tell lengths, ask about the fewest rows and mean
 * all. */
static int matrix_yields(const tess_vk_device *d, const tess_kernel_key *key) {
    if (d->found.properties.kind == TVK_DEVICE_CPU) return 1;
    return key && key->max_kv_len <= INT32_MAX / 2 &&
           tess_portable_choose(&tess_portable, key)->few;
}

static const char *refuses(const tess_vk_device *d, const vk_row *row, const tess_kernel_key *key,
                           char *buffer, size_t size) {
    static const tess_portable_shape step = {.threads = TESS_PREPARE_GROUP,
                                             .shared_bytes = TESS_PREPARE_SHARED_BYTES};
    const char *why = is_matrix(row) ? matrix_refusal(d, key, buffer, size) : NULL;
    if (why) return why;
    if (row->head.op == TESS_OP_PREPARE) return shape_refusal(d, &step, buffer, size);
    if (!key && row->head.op == TESS_OP_BACKWARD) return backward_refusal(d, NULL, buffer, size);
    if (!key) return row->variant ? shape_refusal(d, row->variant->shapes, buffer, size) : NULL;
    why = tess_is_paging(row->head.op) ? tess_paging_refusal(key) : tess_portable_refusal(key);
    if (why) return why;
    if (key->max_in_flight > MOST_IN_FLIGHT) {
        snprintf(buffer, size, "max_in_flight %u is more than %d", key->max_in_flight,
                 MOST_IN_FLIGHT);
        return buffer;
    }
    if (key->op == TESS_OP_BACKWARD) return backward_refusal(d, key, buffer, size);
    return row->variant ? shape_refusal(d, choose(d, row, key), buffer, size)
                        : NULL; /* every device has workgroups of 128 */
}

/* How launches are split into submissions: by the most that a plan of this key may hold. */
static void find_submissions(const tess_vk_device *d, const tess_kernel_key *key,
                             uint32_t tile_rows, uint64_t *jobs_per_submission,
                             uint32_t *submissions) {
    const uint64_t limit = tess_vk_range_steps(d);
    *jobs_per_submission = 0;
    *submissions = 1;
    if (limit == 0) return;
    /* Where the key does not know the lengths (batch-invariant plans), keys are split into parts of
     * 4096. */
    const uint64_t keys = key->max_kv_len > INT32_MAX / 2 ? 4096 : (uint64_t)key->max_kv_len;
    const uint64_t steps = keys / STEP_KEYS + 1;
    *jobs_per_submission = limit / steps ? limit / steps : 1;
    const double jobs =
        (double)key->batch * key->n_heads * ((double)key->max_q_len / tile_rows + 2);
    const double wanted = jobs / (double)*jobs_per_submission + 1;
    *submissions = wanted < VK_MOST_SUBMISSIONS ? (uint32_t)wanted : VK_MOST_SUBMISSIONS;
}

/* How many binding ranges a run may be cut into (bind_ranges.c): four times as many as its largest
 * tensor would need with strides four times as long as they have to be. Where the key does not know
 * the lengths, a few. */
static uint32_t most_bind_ranges(const tess_vk_device *d, const tess_kernel_key *key) {
    enum { SLACK = 4, MOST = 256, UNKNOWN = 16 };
    const double limit = d->found.properties.limits.max_storage_range;
    const double rows =
        (double)(key->max_q_len > key->max_kv_len ? key->max_q_len : key->max_kv_len);
    const double bytes = SLACK * sizeof(float) * rows * key->batch * key->n_heads * key->head_dim;
    if (rows > INT32_MAX / 2.) return limit < 0x40000000 ? UNKNOWN : 1;
    if (bytes <= limit) return 1;
    return SLACK * bytes / limit < MOST ? (uint32_t)(SLACK * bytes / limit) + 1 : MOST;
}

/* What a binding range must have of rows and keys besides its own. */
static void find_reach(const tess_kernel_key *key, tess_vk_state *state) {
    if (key->max_q_len <= INT32_MAX / 2) state->most_rows = (uint32_t)key->max_q_len;
    if (key->max_kv_len <= INT32_MAX / 2) state->most_keys = (uint32_t)key->max_kv_len;
}

/* Pipelines and resources of an accepted problem. */
static tess_status prepare_forward(tess_vk_device *d, const tess_kernel_key *key, const vk_row *row,
                                   tess_kernel *kernel) {
    vk_handle forward, merge;
    tess_vk_state *state;
    uint64_t jobs_per_submission;
    uint32_t submissions;
    tess_portable_shape own;
    const tess_portable_shape *shape = &own;
    if (row->variant) {
        shape = choose(d, row, key);
        TESS_RETURN_IF_ERROR(tess_vk_forward_pipeline(d, shape, key->dtype, &forward));
    } else {
        tess_vk_matrix_shape(d, key, &own);
        TESS_RETURN_IF_ERROR(tess_vk_matrix_prepare(d, key, &own, &forward));
    }
    TESS_RETURN_IF_ERROR(tess_vk_merge_pipeline(d, key->dtype, &merge));
    find_submissions(d, key, shape->rows, &jobs_per_submission, &submissions);
    TESS_RETURN_IF_ERROR(tess_vk_state_create(d, key->max_in_flight ? key->max_in_flight : 1,
                                              submissions, most_bind_ranges(d, key), &state));
    find_reach(key, state);
    state->forward = forward;
    state->merge = merge;
    state->jobs_per_submission = jobs_per_submission;
    tess_portable_describe(shape, key, tess_vk_parallel_jobs(d), kernel);
    if (!row->variant) kernel->costs.step_ns /= MATRIX_SPEED;
    kernel->state = state;
    return TESS_OK;
}

/* A run has a launch for each stage, and each of them resources of its own. */
static tess_status prepare_backward(tess_vk_device *d, const tess_kernel_key *key,
                                    tess_kernel *kernel) {
    const tess_backward_shape *shape = tess_backward_find(key->head_dim);
    const uint32_t in_flight = key->max_in_flight ? key->max_in_flight : 1;
    vk_handle stages[TESS_BACKWARD_STAGES];
    tess_vk_state *state;
    uint64_t jobs_per_submission;
    uint32_t submissions;
    for (uint32_t n = 0; n < TESS_BACKWARD_STAGES; n++)
        TESS_RETURN_IF_ERROR(tess_vk_backward_pipeline(d, shape, key->dtype, n, &stages[n]));
    find_submissions(d, key, shape->tile, &jobs_per_submission, &submissions);
    TESS_RETURN_IF_ERROR(tess_vk_state_create(d, TESS_BACKWARD_STAGES * in_flight, submissions,
                                              most_bind_ranges(d, key), &state));
    find_reach(key, state);
    memcpy(state->stages, stages, sizeof stages);
    state->jobs_per_submission = jobs_per_submission;
    tess_backward_describe(shape, kernel);
    kernel->state = state;
    return TESS_OK;
}

/* Of the operations that have one kernel. */
static tess_status prepare_other(tess_vk_device *d, const tess_kernel_key *key,
                                 tess_kernel *kernel) {
    vk_handle pipeline;
    tess_vk_state *state;
    TESS_RETURN_IF_ERROR(tess_vk_other_pipeline(d, key->op, key->dtype, &pipeline));
    TESS_RETURN_IF_ERROR(
        tess_vk_state_create(d, key->max_in_flight ? key->max_in_flight : 1, 1, 1, &state));
    state->forward = pipeline;
    kernel->state = state;
    return TESS_OK;
}

static tess_status prepare(tess_vk_device *d, const vk_row *row, const tess_kernel_key *key,
                           tess_kernel *kernel) {
    kernel->impl = row;
    kernel->release = tess_vk_state_release;
    if (row->head.op == TESS_OP_BACKWARD) return prepare_backward(d, key, kernel);
    return row->head.op == TESS_OP_FORWARD ? prepare_forward(d, key, row, kernel)
                                           : prepare_other(d, key, kernel);
}

/* ------------------------------------------------------------------ self-checks */

static int checks_itself(const tess_vk_device *d, const vk_row *row) {
    return is_matrix(row) && !row->proved(&d->found);
}

/* For a check, which looks for the row that takes the key. */
static tess_status prepare_for_check(void *device, uint32_t index, const tess_kernel_key *key,
                                     tess_kernel *kernel) {
    tess_vk_device *d = device;
    char why[128];
    const char *refusal = refuses(d, &kernels[index], key, why, sizeof why);
    if (refusal) return d->host->fail(d->host, TESS_ERROR_UNSUPPORTED, "%s", refusal);
    return prepare(d, &kernels[index], key, kernel);
}

/* Every device has a queue, also one that is wrapped. */
static tess_check_subject subject_of(tess_vk_device *d, uint32_t index) {
    return (tess_check_subject){.host = d->host,
                                .backend = &tess_vulkan_backend,
                                .device = d,
                                .checks = &d->checks,
                                .may_run = 1,
                                .row = index,
                                .name = kernels[index].head.name,
                                .references = {PORTABLE, PORTABLE_SMALL},
                                .prepare = prepare_for_check,
                                .code = tess_vk_matrix_code};
}

tess_status tess_vk_kernel(void *device, uint32_t index, const tess_kernel_key *key,
                           tess_kernel_info *info, tess_kernel *kernel) {
    if (index >= ROWS) return TESS_ERROR_INVALID;
    tess_vk_device *d = device;
    const vk_row *row = &kernels[index];
    const int checks = checks_itself(d, row);
    const tess_check_subject subject = subject_of(d, index);
    const char *why = refuses(d, row, key, info->reason, sizeof info->reason);
    if (!why && checks) why = tess_check_failure(&subject, info->reason, sizeof info->reason);
    const int accepts = tess_row_answer(&row->head, key, why, info);
    if (is_matrix(row) && matrix_yields(d, key)) info->flags |= TESS_KERNEL_ONLY_NAMED;
    if (!accepts || !kernel) return TESS_OK;
    if (checks) TESS_RETURN_IF_ERROR(tess_self_check(&subject, key));
    return prepare(d, row, key, kernel);
}
