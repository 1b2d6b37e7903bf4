/* SPDX-License-Identifier: Apache-2.0 */
#include "fake_device.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/backend_table.h"
#include "common/elements.h"
#include "common/key_blocks.h"
#include "common/partials.h"

enum { DEVICES = 2, MOST_BUFFERS = 256 };

/* Added to every address that leaves the backend: whoever reads through a handle of this device
 * crashes. */
static const uint64_t far_away = 1ULL << 60;

__attribute__((visibility("default"))) fake_control fake_control_symbol = {.only_device = -1};

typedef struct fake_device {
    const tess_host *host;
    int index, lost;
    void *buffers[MOST_BUFFERS];
    uint64_t sizes[MOST_BUFFERS];
} fake_device;

static fake_control *const control = &fake_control_symbol;

/* Counts a fallible call; true if it has to fail. */
static int fails(int device, const char *function) {
    if (control->only_device >= 0 && control->only_device != device) return 0;
    control->calls++;
    if (!control->fail_at || (control->calls != control->fail_at &&
                              !(control->sticky && control->calls > control->fail_at)))
        return 0;
    control->failures++;
    control->failed = function;
    return 1;
}

static tess_status refuse(const tess_host *host, const char *function) {
    return host->fail(host, control->status, "fake_%s: error %d was asked for", function,
                      (int)control->status);
}

static tess_status on_device(fake_device *device, const char *function) {
    if (!fails(device->index, function)) return TESS_OK;
    if (control->status == TESS_ERROR_DEVICE_LOST) device->lost = 1;
    return refuse(device->host, function);
}

static tess_status fake_list(const tess_host *host, uint32_t index, tess_device_info *info) {
    if (index >= DEVICES)
        return host->fail(host, TESS_ERROR_UNAVAILABLE, "fake_list: there are %d devices", DEVICES);
    if (fails((int)index, "list")) return refuse(host, "list");
    info->kind = TESS_DEVICE_GPU;
    info->compute_units = 3;
    info->memory_bytes = 1 << 30;
    snprintf(info->name, sizeof info->name, "fake device %u", index);
    snprintf(info->arch, sizeof info->arch, "loop");
    snprintf(info->driver, sizeof info->driver, "1");
    return TESS_OK;
}

static tess_status fake_open(const tess_host *host, uint32_t index, const void *native,
                             void **out) {
    if (native)
        return host->fail(host, TESS_ERROR_UNSUPPORTED,
                          "fake_open: native: there is nothing to wrap");
    if (fails((int)index, "open")) return refuse(host, "open");
    fake_device *device = host->alloc(host, sizeof *device, 64);
    if (!device) return host->fail(host, TESS_ERROR_OUT_OF_MEMORY, "fake_open: no host memory");
    memset(device, 0, sizeof *device);
    device->host = host;
    device->index = (int)index;
    control->devices++;
    *out = device;
    return TESS_OK;
}

static void fake_close(void *opaque) {
    fake_device *device = opaque;
    for (int n = 0; n < MOST_BUFFERS; n++) {
        if (!device->buffers[n]) continue;
        free(device->buffers[n]);
        control->buffers--;
        if (!device->lost) control->leaked++;
    }
    control->devices--;
    device->host->free(device->host, device, sizeof *device);
}

static tess_status fake_query(void *opaque, tess_caps *caps) {
    const tess_status status = on_device(opaque, "query");
    if (status != TESS_OK) return status;
    caps->host_memory = 0;
    caps->buffer_kind = TESS_BUFFER_POINTER;
    caps->features =
        TESS_FEATURE_POSITIONS | TESS_FEATURE_PAGES | TESS_FEATURE_KV_8BIT | TESS_FEATURE_PARTS;
    caps->parallel_jobs = 6;
    caps->workspace_align = 512;
    caps->range_blocks = control->range_blocks;
    caps->steps_per_second = 1000000;
    return TESS_OK;
}

/* ------------------------------------------------------------------ memory */

static tess_status fake_alloc(void *opaque, uint64_t size, tess_buffer *buffer) {
    fake_device *device = opaque;
    const tess_status status = on_device(device, "alloc");
    if (status != TESS_OK) return status;
    for (int n = 0; n < MOST_BUFFERS; n++) {
        if (device->buffers[n]) continue;
        void *memory =
            size < 1ULL << 34 ? aligned_alloc(512, (size_t)(size + 511) / 512 * 512) : NULL;
        if (!memory) break;
        device->buffers[n] = memory;
        device->sizes[n] = size;
        control->buffers++;
        *buffer = (tess_buffer){.kind = TESS_BUFFER_POINTER,
                                .handle = (uint64_t)(uintptr_t)memory + far_away,
                                .size = size};
        return TESS_OK;
    }
    return device->host->fail(device->host, TESS_ERROR_OUT_OF_MEMORY,
                              "fake_alloc: no memory for %llu bytes", (unsigned long long)size);
}

static tess_status fake_free(void *opaque, tess_buffer *buffer) {
    fake_device *device = opaque;
    const tess_status status = device->lost ? TESS_OK : on_device(device, "free");
    if (status != TESS_OK) return status;
    for (int n = 0; n < MOST_BUFFERS; n++)
        if (device->buffers[n] &&
            (uint64_t)(uintptr_t)device->buffers[n] + far_away == buffer->handle) {
            free(device->buffers[n]);
            device->buffers[n] = NULL;
            control->buffers--;
            return TESS_OK;
        }
    return device->host->fail(device->host, TESS_ERROR_NATIVE,
                              "fake_free: not a buffer of this device");
}

static char *address(const tess_buffer *buffer) {
    return (char *)(uintptr_t)(buffer->handle -
                               (buffer->kind == TESS_BUFFER_POINTER ? far_away : 0) +
                               buffer->offset);
}

/* Whether the range lies within one buffer of the device, as a driver would check. */
static int is_inside(const fake_device *device, const tess_buffer *buffer, uint64_t bytes) {
    const char *from = address(buffer);
    for (int n = 0; n < MOST_BUFFERS; n++) {
        const char *start = device->buffers[n];
        if (start && from >= start && from + bytes <= start + device->sizes[n]) return 1;
    }
    return 0;
}

static tess_status fake_copy(void *opaque, tess_buffer destination, tess_buffer source,
                             uint64_t bytes) {
    fake_device *device = opaque;
    const tess_status status = on_device(device, "copy");
    if (status != TESS_OK) return status;
    if ((destination.kind == TESS_BUFFER_POINTER && !is_inside(device, &destination, bytes)) ||
        (source.kind == TESS_BUFFER_POINTER && !is_inside(device, &source, bytes)))
        return device->host->fail(device->host, TESS_ERROR_NATIVE,
                                  "fake_copy: memory of no buffer");
    memcpy(address(&destination), address(&source), (size_t)bytes);
    return TESS_OK;
}

static tess_status fake_wait(void *opaque, uint64_t timeout_ns) {
    (void)timeout_ns;
    return on_device(opaque, "wait");
}

/* ------------------------------------------------------------------ kernel */

typedef struct fake_state {
    const tess_host *host;
} fake_state;

static void release_kernel(tess_kernel *kernel) {
    fake_state *state = kernel->state;
    if (!state) return;
    control->states--;
    state->host->free(state->host, state, sizeof *state);
    kernel->state = NULL;
}

static tess_status fake_kernel(void *opaque, uint32_t index, const tess_kernel_key *key,
                               tess_kernel_info *info, tess_kernel *kernel) {
    fake_device *device = opaque;
    const tess_host *host = device->host;
    (void)key;
    if (index > 0) return TESS_ERROR_INVALID;
    info->op = TESS_OP_FORWARD;
    snprintf(info->name, sizeof info->name, "loop");
    if (!kernel) return TESS_OK;
    const tess_status status = on_device(device, "kernel");
    if (status != TESS_OK) return status;
    fake_state *state = host->alloc(host, sizeof *state, 16);
    if (!state) return host->fail(host, TESS_ERROR_OUT_OF_MEMORY, "fake_kernel: no host memory");
    state->host = host;
    control->states++;
    kernel->tile_rows = 48;
    kernel->tile_step = 1;
    kernel->pack_rows = 8;
    kernel->scratch_bytes = 777; /* partials must be placed after it, wherever it ends */
    kernel->state = state;
    kernel->release = release_kernel;
    return TESS_OK;
}

/* The row that is being computed. */
typedef struct row_state {
    const tess_launch *launch;
    const tess_sequence *sequence;
    const tess_class *cls;
    int64_t head, position, first_block;
    const char *tables;
    float q[256];
    row_softmax softmax;
} row_state;

static int64_t floor_block(int64_t token, int64_t block) {
    return token >= 0 ? token / block : -((-token + block - 1) / block);
}

static int64_t at(const tess_tensor *t, int64_t batch, int64_t token, int64_t head) {
    return batch * t->stride_batch + token * t->stride_token + head * t->stride_head;
}

/* Where the row of a key lies in K and V, and what its elements are multiplied by. */
typedef struct key_row {
    int64_t k, v;
    double k_scale, v_scale;
} key_row;

static double scale_at(const tess_launch *l, uint32_t role, int64_t entry, int64_t token,
                       int64_t head) {
    const tess_tensor *t = &l->tensor[role];
    if (l->kv_dtype == l->dtype) return 1;
    return (double)((const float *)(const void *)address(&t->buffer))[at(t, entry, token, head)];
}

/* Finds key t of block j; false where its page is absent. */
static int find_key(const row_state *r, int64_t j, int64_t t, key_row *found) {
    const tess_launch *l = r->launch;
    const tess_sequence *s = r->sequence;
    int64_t head = r->head / l->group, token = s->kv_start + t, entry = s->kv_batch;
    if (l->compact) {
        const tess_kv_head *own =
            (const tess_kv_head *)(const void *)(r->tables + l->tables->kv_heads_at) + head;
        const tess_slot *slots =
            (const tess_slot *)(const void *)(r->tables + l->tables->slots_at) + own->slots_offset;
        token = (int64_t)slots[s->kv_start + j].slot * l->block + t - j * l->block;
        head = own->pool_head;
    }
    if (l->page) {
        const tess_tensor *table = &l->tensor[TESS_ROLE_BLOCK_TABLE];
        entry = ((const int32_t *)(const void *)address(
            &table->buffer))[entry * table->stride_batch + token / l->page];
        token %= l->page;
        if (entry < 0 || entry >= l->pages) return 0;
    }
    *found = (key_row){at(&l->tensor[TESS_ROLE_K], entry, token, head),
                       at(&l->tensor[TESS_ROLE_V], entry, token, head),
                       scale_at(l, TESS_ROLE_K_SCALE, entry, token, head),
                       scale_at(l, TESS_ROLE_V_SCALE, entry, token, head)};
    return 1;
}

static void add_block(void *state, int64_t j, uint32_t bits, int masked) {
    row_state *r = state;
    const tess_launch *l = r->launch;
    const tess_sequence *s = r->sequence;
    for (int64_t t = j * l->block; t < (j + 1) * l->block && t < s->kv_len; t++) {
        if (masked && !tess_kept(r->cls, r->position, t, floor_block(r->position, l->block), j,
                                 bits, r->first_block))
            continue;
        double score = 0;
        key_row key;
        if (!find_key(r, j, t, &key)) continue;
        for (int e = 0; e < l->head_dim; e++)
            score += (double)r->q[e] *
                     element_load(l->kv_dtype, address(&l->tensor[TESS_ROLE_K].buffer), key.k + e);
        score *= key.k_scale;
        if (l->scale < 0) score = -score;
        const double weight =
            softmax_weigh(&r->softmax, score, fabs((double)l->scale), l->head_dim);
        for (int e = 0; e < l->head_dim; e++)
            r->softmax.o[e] +=
                weight * key.v_scale *
                element_load(l->kv_dtype, address(&l->tensor[TESS_ROLE_V].buffer), key.v + e);
    }
}

static float *partial_at(const tess_launch *l, uint32_t partial) {
    return partial_of((float *)(void *)(address(&l->workspace) + l->partials_at), partial,
                      l->partial_rows, l->value_head_dim);
}

static void write_row(const tess_launch *l, const tess_sequence *s, int64_t row, int64_t head,
                      const double *o, double lse) {
    const int64_t to = at(&l->tensor[TESS_ROLE_O], s->batch, s->q_start + row, head);
    for (int e = 0; e < l->head_dim; e++)
        element_store(l->dtype, address(&l->tensor[TESS_ROLE_O].buffer), to + e, (float)o[e]);
    if (l->tensor[TESS_ROLE_LSE].buffer.kind != TESS_BUFFER_NONE)
        element_store(TESS_F32, address(&l->tensor[TESS_ROLE_LSE].buffer),
                      at(&l->tensor[TESS_ROLE_LSE], s->batch, s->q_start + row, head), (float)lse);
}

static void run_row(const tess_launch *l, const char *tables, const tess_job *job,
                    int64_t head_in_pack, int64_t row) {
    const tess_tables *t = l->tables;
    const uint32_t *entries = (const void *)(tables + t->entries_at),
                   *bits = (const void *)(tables + t->bits_at);
    row_state r = {.launch = l};
    r.sequence = (const tess_sequence *)(const void *)(tables + t->sequences_at) + job->sequence;
    r.cls = (const tess_class *)(const void *)(tables + t->classes_at) + job->cls;
    r.head = job->head + head_in_pack;
    r.tables = tables;
    r.position = (int64_t)r.sequence->q_first + job->row + row;
    r.first_block = floor_block((int64_t)r.sequence->q_first + job->row, l->block);
    r.softmax.most = -INFINITY;
    const int64_t q = at(&l->tensor[TESS_ROLE_Q], r.sequence->batch,
                         r.sequence->q_start + job->row + row, r.head);
    for (int e = 0; e < l->head_dim; e++)
        r.q[e] = element_load(l->dtype, address(&l->tensor[TESS_ROLE_Q].buffer), q + e);
    key_blocks(job, r.cls, entries, bits, add_block, &r);
    const double lse = softmax_end(&r.softmax, fabs((double)l->scale), l->head_dim);
    if (job->partial == TESS_NO_PARTIAL)
        write_row(l, r.sequence, job->row + row, r.head, r.softmax.o, lse);
    else
        partial_write(partial_at(l, job->partial), l->partial_rows, l->value_head_dim,
                      head_in_pack * job->rows + row, &r.softmax);
}

static void merge_row(const tess_launch *l, const char *tables, const tess_merge *merge,
                      int64_t head_in_pack, int64_t row) {
    const tess_sequence *s =
        (const tess_sequence *)(const void *)(tables + l->tables->sequences_at) + merge->sequence;
    double o[256];
    const double lse = partials_merge(partial_at(l, merge->partial), merge->parts, l->partial_rows,
                                      l->value_head_dim, head_in_pack * merge->rows + row,
                                      fabs((double)l->scale), o);
    write_row(l, s, merge->row + row, merge->head + head_in_pack, o, lse);
}

static tess_status fake_launch(void *opaque, const tess_launch *l) {
    const tess_status status = on_device(opaque, "launch");
    if (status != TESS_OK) return status;
    const char *tables = address(&l->tables->device);
    const tess_job *jobs = (const void *)(tables + l->tables->jobs_at);
    const tess_merge *merges = (const void *)(tables + l->tables->merges_at);
    control->launches++;
    for (uint64_t n = l->first_job; n < l->first_job + l->n_jobs; n++)
        for (int64_t h = 0; h < jobs[n].heads; h++)
            for (int64_t row = 0; row < jobs[n].rows; row++) run_row(l, tables, &jobs[n], h, row);
    for (uint64_t n = l->first_merge; n < l->first_merge + l->n_merges; n++)
        for (int64_t h = 0; h < merges[n].heads; h++)
            for (int64_t row = 0; row < merges[n].rows; row++)
                merge_row(l, tables, &merges[n], h, row);
    if (l->seconds) *l->seconds = 1e-3;
    return TESS_OK;
}

TEST_BACKEND(fake, "fake")
