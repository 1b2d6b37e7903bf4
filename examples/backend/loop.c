/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A backend outside of the tree, in one file: a device whose kernel is a plain loop over host
 * memory, for float32. It is built against the installed headers alone, does not link the library,
 * and is loaded by TESSERA_BACKEND_PATH=/absolute/path/libloop.so; see docs/backends.md.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <tessera/tessera_backend.h>
#include <tessera/tessera_key_walk.h>

/* ------------------------------------------------------------------ device */

static tess_status loop_list(const tess_host *host, uint32_t index, tess_device_info *info) {
    if (index > 0)
        return host->fail(host, TESS_ERROR_UNAVAILABLE, "loop_list: there is one device");
    info->kind = TESS_DEVICE_CPU;
    info->compute_units = 1;
    snprintf(info->name, sizeof info->name, "A plain loop");
    snprintf(info->arch, sizeof info->arch, "C");
    return TESS_OK;
}

static tess_status loop_open(const tess_host *host, uint32_t index, const void *native,
                             void **device) {
    (void)index;
    if (native) return host->fail(host, TESS_ERROR_INVALID, "native: there is nothing to wrap");
    /* This device has no state. Others allocate a structure here, which loop_close frees. */
    *device = (void *)(uintptr_t)host;
    return TESS_OK;
}

static void loop_close(void *device) { (void)device; }

static tess_status loop_query(void *device, tess_caps *caps) {
    (void)device;
    caps->host_memory = 1; /* tables and tensors are read where they are */
    caps->buffer_kind = TESS_BUFFER_HOST;
    caps->features = TESS_FEATURE_POSITIONS;
    caps->parallel_jobs = 1;
    caps->workspace_align = 64;
    return TESS_OK;
}

/* ----------------------------------------------------- the table of kernels, which has one row */

static void loop_release(tess_kernel *kernel) { (void)kernel; }

static tess_status loop_kernel(void *device, uint32_t index, const tess_kernel_key *key,
                               tess_kernel_info *info, tess_kernel *kernel) {
    (void)device;
    if (index > 0) return TESS_ERROR_INVALID; /* past the last row */
    info->op = TESS_OP_FORWARD;
    snprintf(info->name, sizeof info->name, "plain");
    if (key && key->dtype != TESS_F32) {
        info->status = TESS_ERROR_UNSUPPORTED;
        snprintf(info->reason, sizeof info->reason, "float32 only");
    } else if (kernel) {
        kernel->tile_rows = 32;
        kernel->tile_step = 1;
        kernel->pack_rows = 0; /* so that a job is of one head */
        kernel->release = loop_release;
    }
    return TESS_OK;
}

/* ------------------------------------------------------------------ the kernel */

static float *element(const tess_launch *l, int role, const tess_sequence *s, int64_t t, int head) {
    const tess_tensor *x = &l->tensor[role];
    float *base = (float *)(void *)((char *)(uintptr_t)x->buffer.handle + x->buffer.offset);
    return base + s->batch * x->stride_batch + t * x->stride_token + head * x->stride_head;
}

/* The softmax of a row so far: o is a sum weighted by exp(|scale| * (score - row_max)). */
typedef struct softmax {
    float row_max, row_sum, o[256];
} softmax;

/* Adds a sum o whose weights are relative to the score `max` and add up to `sum`. */
static void add(const tess_launch *l, softmax *x, float max, float sum, const float *o) {
    const float scale = fabsf(l->scale), row_max = fmaxf(x->row_max, max);
    const float rescale = x->row_max == row_max ? 1 : expf(scale * (x->row_max - row_max));
    const float weight = sum * expf(scale * (max - row_max));
    for (int e = 0; e < l->head_dim; e++) x->o[e] = x->o[e] * rescale + weight * o[e];
    x->row_sum = x->row_sum * rescale + weight;
    x->row_max = row_max;
}

static void finish(const tess_launch *l, const softmax *x, float *o) {
    for (int e = 0; e < l->head_dim; e++) o[e] = x->row_sum > 0 ? x->o[e] / x->row_sum : 0;
}

static float *partial(const tess_launch *l, uint32_t index) {
    const uint64_t address = l->workspace.handle + l->workspace.offset + l->partials_at;
    return (float *)(uintptr_t)address + (uint64_t)index * l->partial_rows * (l->head_dim + 2u);
}

/* Writes a row of the results. LSE is optional. */
static void store(const tess_launch *l, const softmax *x, const tess_sequence *s, int r, int h) {
    finish(l, x, element(l, TESS_ROLE_O, s, s->q_start + r, h));
    if (l->tensor[TESS_ROLE_LSE].buffer.kind == TESS_BUFFER_NONE) return;
    float *lse = element(l, TESS_ROLE_LSE, s, s->q_start + r, h);
    *lse = x->row_sum > 0 ? fabsf(l->scale) * x->row_max + logf(x->row_sum) : -INFINITY;
}

static void run_row(const tess_launch *l, const tess_job *job, int r) {
    const tess_sequence *s = &l->tables->sequences[job->sequence];
    const tess_class *c = &l->tables->classes[job->cls];
    const int64_t first = (int64_t)s->q_first + job->row, p = first + r, block = l->block;
    const int64_t i = p >= 0 ? p / block : -1 - (-1 - p) / block,
                  i_first = first >= 0 ? first / block : -1 - (-1 - first) / block;
    const float *q = element(l, TESS_ROLE_Q, s, s->q_start + job->row + r, job->head);
    softmax x = {.row_max = -INFINITY};
    tess_key_run run;
    for (uint64_t n = 0; n < tess_key_blocks(job); n += run.blocks) {
        run = tess_key_run_at(job, c, l->tables->entries, l->tables->bits, n);
        const int64_t end = ((int64_t)run.block + run.blocks) * block;
        for (int64_t t = run.block * block; t < end && t < s->kv_len; t++) {
            if (run.masked && !tess_kept(c, p, t, i, run.block, run.bits, i_first)) continue;
            const float *k = element(l, TESS_ROLE_K, s, s->kv_start + t, job->head / l->group);
            float score = 0;
            for (int e = 0; e < l->head_dim; e++) score += q[e] * k[e];
            add(l, &x, l->scale < 0 ? -score : score, 1,
                element(l, TESS_ROLE_V, s, s->kv_start + t, job->head / l->group));
        }
    }
    if (job->partial == TESS_NO_PARTIAL) {
        store(l, &x, s, (int)job->row + r, job->head);
        return;
    }
    float *o = partial(l, job->partial), *max = o + l->partial_rows * (uint64_t)l->head_dim;
    finish(l, &x, o + r * l->head_dim);
    max[r] = x.row_max;
    max[l->partial_rows + r] = x.row_sum;
}

static void merge_row(const tess_launch *l, const tess_merge *m, int r) {
    softmax x = {.row_max = -INFINITY};
    for (uint32_t n = 0; n < m->parts; n++) {
        const float *o = partial(l, m->partial + n),
                    *max = o + l->partial_rows * (uint64_t)l->head_dim,
                    *sum = max + l->partial_rows;
        if (sum[r] != 0) add(l, &x, max[r], sum[r], o + r * l->head_dim);
    }
    store(l, &x, &l->tables->sequences[m->sequence], (int)m->row + r, m->head);
}

static tess_status loop_launch(void *device, const tess_launch *l) {
    const tess_host *host = device;
    if (l->stream.kind != TESS_STREAM_DEFAULT || l->seconds)
        return host->fail(host, TESS_ERROR_UNSUPPORTED, "stream, device_seconds: not in this loop");
    for (uint64_t n = l->first_job; n < l->first_job + l->n_jobs; n++)
        for (int r = 0; r < l->tables->jobs[n].rows; r++) run_row(l, &l->tables->jobs[n], r);
    for (uint64_t n = l->first_merge; n < l->first_merge + l->n_merges; n++)
        for (int r = 0; r < l->tables->merges[n].rows; r++) merge_row(l, &l->tables->merges[n], r);
    return TESS_OK;
}

/* ------------------------------------------------------------------ memory */

static tess_status loop_alloc(void *device, uint64_t size, tess_buffer *buffer) {
    const tess_host *host = device;
    void *memory = size <= SIZE_MAX ? host->alloc(host, (size_t)size, 256) : NULL;
    if (!memory) return host->fail(host, TESS_ERROR_OUT_OF_MEMORY, "loop_alloc: no memory");
    *buffer = tess_host_buffer(memory, size);
    return TESS_OK;
}

static tess_status loop_free(void *device, tess_buffer *buffer) {
    const tess_host *host = device;
    host->free(host, (void *)(uintptr_t)buffer->handle, (size_t)buffer->size);
    return TESS_OK;
}

static tess_status loop_copy(void *device, tess_buffer destination, tess_buffer source,
                             uint64_t bytes) {
    (void)device;
    memcpy((char *)(uintptr_t)destination.handle + destination.offset,
           (const char *)(uintptr_t)source.handle + source.offset, (size_t)bytes);
    return TESS_OK;
}

static tess_status loop_wait(void *device, uint64_t timeout_ns) {
    (void)device, (void)timeout_ns;
    return TESS_OK; /* launches return when the work is done */
}

/* What may be absent is absent. */
static const tess_backend loop = {TESS_BACKEND_ABI, sizeof(tess_backend), "loop",     loop_list,
                                  loop_open,        loop_close,           loop_query, loop_kernel,
                                  loop_launch,      loop_alloc,           loop_free,  loop_copy,
                                  .wait = loop_wait};

TESS_API const tess_backend *tess_backend_entry(void);
const tess_backend *tess_backend_entry(void) { return &loop; }
