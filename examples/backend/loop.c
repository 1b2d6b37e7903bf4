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
    snprintf(info->driver, sizeof info->driver, "none");
    return TESS_OK;
}

static tess_status loop_open(const tess_host *host, uint32_t index, const void *native,
                             void **device) {
    (void)index;
    if (native) return host->fail(host, TESS_ERROR_INVALID, "native: there is nothing to wrap");
    /* The device has nothing of its own; others allocate a structure here, which loop_close frees.
     */
    *device = (void *)(uintptr_t)host;
    return TESS_OK;
}

static void loop_close(void *device) { (void)device; }

static tess_status loop_query(void *device, tess_caps *caps) {
    (void)device;
    caps->host_memory = 1; /* tables and tensors are read where they are */
    caps->buffer_kind = TESS_BUFFER_HOST;
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

static float *element(const tess_tensor *t, uint32_t batch, int64_t token, uint32_t head) {
    float *base = (float *)(void *)((char *)(uintptr_t)t->buffer.handle + t->buffer.offset);
    return base + batch * t->stride_batch + token * t->stride_token + head * t->stride_head;
}

/* What a row has gathered so far: the outputs are weighted by exp(|scale| * (score - most)). */
typedef struct gathered {
    float most, sum, o[256];
} gathered;

/* Adds outputs whose weights are relative to the score `most` and add up to `sum`. */
static void add(const tess_launch *l, gathered *g, float score, float sum, const float *o) {
    const float scale = fabsf(l->scale), most = fmaxf(g->most, score);
    const float old = g->most == most ? 1 : expf(scale * (g->most - most)),
                new = sum *expf(scale * (score - most));
    for (int e = 0; e < l->head_dim; e++) g->o[e] = g->o[e] * old + new *o[e];
    g->sum = g->sum * old + new;
    g->most = most;
}

static void gather(const tess_launch *l, gathered *g, const float *q, const float *k,
                   const float *v) {
    float score = 0;
    for (int e = 0; e < l->head_dim; e++) score += q[e] * k[e];
    add(l, g, l->scale < 0 ? -score : score, 1, v);
}

static void finish(const tess_launch *l, const gathered *g, float *o) {
    for (int e = 0; e < l->head_dim; e++) o[e] = g->sum > 0 ? g->o[e] / g->sum : 0;
}

static float *partial(const tess_launch *l, uint32_t index) {
    float *base = (float *)(void *)((char *)(uintptr_t)l->workspace.handle + l->workspace.offset +
                                    l->partials_at);
    return base + (uint64_t)index * l->partial_rows * (uint64_t)(l->head_dim + 2);
}

/* Where row r of an item goes in the end. LSE is optional. */
static void store(const tess_launch *l, const gathered *g, const tess_sequence *s, uint32_t row,
                  uint32_t head) {
    finish(l, g, element(&l->tensor[TESS_ROLE_O], s->batch, s->q_start + row, head));
    if (l->tensor[TESS_ROLE_LSE].buffer.kind != TESS_BUFFER_NONE)
        *element(&l->tensor[TESS_ROLE_LSE], s->batch, s->q_start + row, head) =
            g->sum > 0 ? fabsf(l->scale) * g->most + logf(g->sum) : -INFINITY;
}

static void run_row(const tess_launch *l, const tess_job *job, uint32_t r) {
    const tess_sequence *s = &l->tables->sequences[job->sequence];
    const tess_class *c = &l->tables->classes[job->cls];
    const int64_t first = (int64_t)s->kv_len - s->q_len + job->row, p = first + r, block = l->block;
    const int64_t i = p >= 0 ? p / block : -1 - (-1 - p) / block,
                  i_first = first >= 0 ? first / block : -1 - (-1 - first) / block;
    const float *q =
        element(&l->tensor[TESS_ROLE_Q], s->batch, s->q_start + job->row + r, job->head);
    gathered g = {.most = -INFINITY};
    tess_key_run run;
    for (uint64_t n = 0; n < tess_key_blocks(job); n += run.blocks) {
        run = tess_key_run_at(job, c, l->tables->entries, l->tables->bits, n);
        const int64_t end = ((int64_t)run.block + run.blocks) * block;
        for (int64_t t = run.block * block; t < end && t < s->kv_len; t++) {
            if (run.masked && !tess_kept(c, p, t, i, run.block, run.bits, i_first)) continue;
            const int64_t token = s->kv_start + t;
            gather(l, &g, q,
                   element(&l->tensor[TESS_ROLE_K], s->batch, token, job->head / l->group),
                   element(&l->tensor[TESS_ROLE_V], s->batch, token, job->head / l->group));
        }
    }
    if (job->partial == TESS_NO_PARTIAL)
        store(l, &g, s, job->row + r, job->head);
    else {
        float *to = partial(l, job->partial),
              *reference = to + (uint64_t)l->partial_rows * (uint64_t)l->head_dim;
        finish(l, &g, to + (uint64_t)r * (uint64_t)l->head_dim);
        reference[r] = g.most;
        reference[l->partial_rows + r] = g.sum;
    }
}

static void merge_row(const tess_launch *l, const tess_merge *m, uint32_t r) {
    gathered g = {.most = -INFINITY};
    for (uint32_t n = 0; n < m->parts; n++) {
        const float *from = partial(l, m->partial + n),
                    *reference = from + (uint64_t)l->partial_rows * (uint64_t)l->head_dim;
        if (reference[l->partial_rows + r] == 0) continue;
        add(l, &g, reference[r], reference[l->partial_rows + r],
            from + (uint64_t)r * (uint64_t)l->head_dim);
    }
    store(l, &g, &l->tables->sequences[m->sequence], m->row + r, m->head);
}

static tess_status loop_launch(void *device, const tess_launch *l) {
    const tess_host *host = device;
    if (l->stream.kind != TESS_STREAM_DEFAULT)
        return host->fail(host, TESS_ERROR_UNSUPPORTED, "stream.kind: there are no streams");
    if (l->seconds)
        return host->fail(host, TESS_ERROR_UNSUPPORTED, "device_seconds: the loop takes no times");
    for (uint64_t n = 0; n < l->n_jobs; n++)
        for (uint32_t r = 0; r < l->tables->jobs[l->first_job + n].rows; r++)
            run_row(l, &l->tables->jobs[l->first_job + n], r);
    for (uint64_t n = 0; n < l->n_merges; n++)
        for (uint32_t r = 0; r < l->tables->merges[l->first_merge + n].rows; r++)
            merge_row(l, &l->tables->merges[l->first_merge + n], r);
    return TESS_OK;
}

/* ------------------------------------------------------------------ memory */

static tess_status loop_alloc(void *device, uint64_t size, tess_buffer *buffer) {
    const tess_host *host = device;
    void *memory = size <= SIZE_MAX ? host->alloc(host, (size_t)size, 256) : NULL;
    if (!memory)
        return host->fail(host, TESS_ERROR_OUT_OF_MEMORY, "loop_alloc: %llu bytes",
                          (unsigned long long)size);
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

static const tess_backend loop = {TESS_BACKEND_ABI, sizeof(tess_backend),
                                  "loop",           loop_list,
                                  loop_open,        loop_close,
                                  loop_query,       loop_kernel,
                                  loop_launch,      loop_alloc,
                                  loop_free,        loop_copy,
                                  loop_wait,        NULL};

TESS_API const tess_backend *tess_backend_entry(void);
const tess_backend *tess_backend_entry(void) { return &loop; }
