/* SPDX-License-Identifier: Apache-2.0 */
#include "instance.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "instance_parts.h"
#include "tasks.h"
#include "text.h"

enum {
    GUARD_BYTES = 1024,
    /* tokens of NaN around each sequence's keys: at least what a kernel that ignores kv_len
     * would read */
    PAD_TOKENS_MIN = 64,
    PAD_TOKENS_MAX = 256,
};
#define WAIT_LIMIT_NS 600000000000u

static unsigned char guard_byte(uint64_t at) { return (unsigned char)(0xa5 ^ (at * 37 & 0xff)); }

/* Copies the library's message, or says what failed without it. */
tess_status instance_fail(instance *x, tess_status status, const char *own) {
    snprintf(x->error, sizeof x->error, "%s", own ? own : tess_last_error());
    return status;
}

/* ------------------------------------------------------------------ memory */

void *instance_host_alloc(uint64_t bytes) {
    if (bytes > SIZE_MAX - 128) return NULL;
    return aligned_alloc(64, ((size_t)bytes / 64 + 1) * 64);
}

/* A part of `bytes` with guards around it if they are wanted, filled with `fill`; `raw` is what has
 * to be freed, `part` what the run gets. */
tess_status instance_guarded(instance *x, uint64_t bytes, uint64_t alignment, int fill,
                             tess_buffer *raw, tess_buffer *part) {
    /* An empty part still gets an address. */
    uint64_t total = x->guard + alignment + bytes + x->guard + 16;
    tess_status status = tess_alloc(x->device, total, raw);
    if (status != TESS_OK) return instance_fail(x, status, NULL);
    uint64_t start = x->guard;
    uint64_t base = raw->kind == TESS_BUFFER_OBJECT ? 0 : raw->handle;
    start += (alignment - (base + raw->offset + start) % alignment) % alignment;
    *part = *raw;
    part->offset += start;
    part->size = part->offset + bytes;
    if (!(x->flags & (INSTANCE_GUARDS | INSTANCE_POISON))) return TESS_OK;

    unsigned char *image = instance_host_alloc(total);
    if (!image)
        return instance_fail(x, TESS_ERROR_OUT_OF_MEMORY, "out of memory for a guarded buffer");
    for (uint64_t i = 0; i < start; i++) image[i] = guard_byte(i);
    memset(image + start, fill, (size_t)bytes);
    for (uint64_t i = start + bytes; i < total; i++) image[i] = guard_byte(i);
    status = tess_copy(x->device, *raw, tess_host_buffer(image, total), total);
    free(image);
    return status == TESS_OK ? TESS_OK : instance_fail(x, status, NULL);
}

/* Compares the guards of one part with what instance_guarded wrote. Returns 0, or -1 with `what`
 * filled. */
int instance_guards_intact(const instance *x, const char *name, const tess_buffer *raw,
                           const tess_buffer *part, char *what, size_t size) {
    uint64_t start = part->offset - raw->offset, end = part->size - raw->offset;
    unsigned char seen[GUARD_BYTES];
    for (int side = 0; side < 2; side++) {
        uint64_t from = side ? end : start - x->guard;
        tess_buffer source = *raw;
        source.offset += from;
        if (tess_copy(x->device, tess_host_buffer(seen, x->guard), source, x->guard) != TESS_OK)
            return text_error(what, size, "%s: guard words cannot be read: %s", name,
                              tess_last_error());
        for (uint64_t i = 0; i < x->guard; i++)
            if (seen[i] != guard_byte(from + i))
                return text_error(what, size,
                                  "%s: the guard word %" PRIu64 " bytes %s it was overwritten",
                                  name, side ? i : x->guard - i, side ? "after" : "before");
    }
    return 0;
}

/* K or V, or their scales, with NaN tokens before, between and after the sequences. `vector`: bytes
 * of a token and head, whose elements have `size` bytes. */
static tess_status upload_padded(instance *x, const void *host, uint64_t vector, uint64_t size,
                                 tess_buffer *raw, tess_tensor *tensor) {
    const problem *p = x->problem;
    uint64_t row = (uint64_t)p->kv_heads * vector;
    uint64_t pad = (uint64_t)(p->block < PAD_TOKENS_MIN   ? PAD_TOKENS_MIN
                              : p->block > PAD_TOKENS_MAX ? PAD_TOKENS_MAX
                                                          : p->block);
    uint64_t pieces = p->q_lens ? 1 : (uint64_t)p->batch;
    uint64_t tokens = (uint64_t)(p->q_lens ? problem_kv_tokens(p) : p->kv_len);
    uint64_t total = (pad + pieces * (tokens + pad)) * row;
    tess_status status = tess_alloc(x->device, total, raw);
    if (status != TESS_OK) return instance_fail(x, status, NULL);
    char *image = instance_host_alloc(total);
    if (!image) return instance_fail(x, TESS_ERROR_OUT_OF_MEMORY, "out of memory for padded keys");
    memset(image, NAN_BYTE, (size_t)total);
    for (uint64_t b = 0; b < pieces; b++)
        memcpy(image + (pad + b * (tokens + pad)) * row, (const char *)host + b * tokens * row,
               (size_t)(tokens * row));
    status = tess_copy(x->device, *raw, tess_host_buffer(image, total), total);
    free(image);
    if (status != TESS_OK) return instance_fail(x, status, NULL);
    tensor->buffer = *raw;
    tensor->buffer.offset += pad * row;
    tensor->buffer.size = raw->offset + total;
    if (!p->q_lens) tensor->stride_batch = (int64_t)((tokens + pad) * row / size);
    return TESS_OK;
}

tess_status instance_upload(instance *x, const void *host, uint64_t bytes, tess_buffer *raw,
                            tess_tensor *tensor) {
    if (x->host_memory) {
        tensor->buffer = tess_host_buffer(host, bytes);
        return TESS_OK;
    }
    tess_status status = tess_alloc(x->device, bytes ? bytes : 16, raw);
    if (status != TESS_OK) return instance_fail(x, status, NULL);
    tensor->buffer = *raw;
    status = bytes ? tess_copy(x->device, *raw, tess_host_buffer(host, bytes), bytes) : TESS_OK;
    return status == TESS_OK ? TESS_OK : instance_fail(x, status, NULL);
}

/* ------------------------------------------------------------------ life */

static tess_status make_plan(instance *x, const char *kernel) {
    tess_plan_desc desc;
    int64_t *cu = NULL;
    if (problem_plan_desc(x->problem, &desc, &cu) != 0)
        return instance_fail(x, TESS_ERROR_OUT_OF_MEMORY, "out of memory for the lengths");
    desc.kernel = kernel;
    tess_status status = tess_plan_create(x->device, x->layout, &desc, &x->plan);
    free(cu);
    if (status != TESS_OK) return instance_fail(x, status, NULL);
    x->info.struct_size = sizeof x->info;
    status = tess_plan_query(x->plan, &x->info);
    return status == TESS_OK ? TESS_OK : instance_fail(x, status, NULL);
}

/* Contiguous strides of every tensor into x->run, and the sizes. Those of a cache come with it. */
static tess_status describe(instance *x) {
    const problem *p = x->problem;
    const struct {
        tess_role role;
        tess_tensor *tensor;
        uint64_t *bytes, row; /* bytes of a token and kv head, of what may lie in a cache */
    } all[] = {{TESS_ROLE_Q, &x->run.q, &x->q_bytes, 0},
               {TESS_ROLE_O, &x->run.o, &x->o_bytes, 0},
               {TESS_ROLE_LSE, &x->run.lse, &x->lse_bytes, 0},
               {TESS_ROLE_K, &x->run.k, &x->k_bytes, (uint64_t)p->head_dim * problem_kv_size(p)},
               {TESS_ROLE_V, &x->run.v, &x->v_bytes, (uint64_t)p->head_dim * problem_kv_size(p)},
               {TESS_ROLE_K_SCALE, &x->run.k_scale, &x->k_scale_bytes, sizeof(float)},
               {TESS_ROLE_V_SCALE, &x->run.v_scale, &x->v_scale_bytes, sizeof(float)}};
    for (int n = 0; n < (problem_has_scales(p) ? 7 : 5); n++) {
        if (problem_cached(p) && all[n].row) {
            *all[n].bytes = (uint64_t)problem_kv_tokens(p) * (uint64_t)p->kv_heads * all[n].row;
            continue;
        }
        tess_status status =
            tess_plan_tensor(x->plan, all[n].role, (tess_buffer){0}, all[n].tensor, all[n].bytes);
        if (status != TESS_OK) return instance_fail(x, status, NULL);
    }
    return TESS_OK;
}

/* More than this is made again each time. */
enum { MEMO_BYTES = 64 << 20 };
/* Of a memo. The scales of an input come two after it. */
enum { INPUT_Q, INPUT_K, INPUT_V, N_INPUTS = 5 };

void instance_memo_clear(instance_memo *memo) {
    for (int n = 0; n < N_INPUTS; n++) free(memo->inputs[n]);
    free(memo->rows);
    *memo = (instance_memo){.rows = NULL};
}

/* Whether the memo has input n, which is copied then. */
static int recall(const instance *x, int n, void *data, uint64_t bytes) {
    const instance_memo *memo = x->memo;
    if (!memo || !memo->inputs[n] || memo->bytes[n] != bytes) return 0;
    memcpy(data, memo->inputs[n], (size_t)bytes);
    return 1;
}

static void keep(const instance *x, int n, const void *data, uint64_t bytes) {
    instance_memo *memo = x->memo;
    if (!memo || memo->inputs[n] || bytes > MEMO_BYTES) return;
    memo->inputs[n] = instance_host_alloc(bytes);
    memo->bytes[n] = bytes;
    if (memo->inputs[n]) memcpy(memo->inputs[n], data, (size_t)bytes);
}

static void make_input(const instance *x, int n, void *data, uint64_t bytes) {
    const problem *p = x->problem;
    if (recall(x, n, data, bytes)) return;
    fill_normal(p->dtype, data, (int64_t)(bytes / problem_size(p)), p->seed, (uint32_t)n + 1);
    keep(x, n, data, bytes);
}

/* K or V; scales NULL: it has none. */
static void make_keys(const instance *x, int n, void *data, uint64_t bytes, float *scales) {
    const problem *p = x->problem;
    const uint64_t rows = bytes / (uint64_t)p->head_dim, scale_bytes = rows * sizeof *scales;
    if (!scales) {
        make_input(x, n, data, bytes);
        return;
    }
    if (recall(x, n, data, bytes) && recall(x, n + 2, scales, scale_bytes)) return;
    fill_codes(p->kv_dtype, data, scales, (int64_t)rows, p->head_dim, p->seed, (uint32_t)n + 1);
    keep(x, n, data, bytes);
    keep(x, n + 2, scales, scale_bytes);
}

static tess_status make_inputs(instance *x) {
    const int has_scales = problem_has_scales(x->problem);
    x->q = instance_host_alloc(x->q_bytes);
    x->k = instance_host_alloc(x->k_bytes);
    x->v = instance_host_alloc(x->v_bytes);
    x->o = instance_host_alloc(x->o_bytes);
    x->lse = instance_host_alloc(x->lse_bytes);
    if (has_scales) x->k_scale = instance_host_alloc(x->k_scale_bytes);
    if (has_scales) x->v_scale = instance_host_alloc(x->v_scale_bytes);
    if (!x->q || !x->k || !x->v || !x->o || !x->lse || (has_scales && (!x->k_scale || !x->v_scale)))
        return instance_fail(x, TESS_ERROR_OUT_OF_MEMORY, "out of memory for the tensors");
    make_input(x, INPUT_Q, x->q, x->q_bytes);
    make_keys(x, INPUT_K, x->k, x->k_bytes, x->k_scale);
    make_keys(x, INPUT_V, x->v, x->v_bytes, x->v_scale);
    /* A result that is never fetched must not look like one. */
    memset(x->o, NAN_BYTE, (size_t)x->o_bytes);
    memset(x->lse, NAN_BYTE, (size_t)x->lse_bytes);
    return TESS_OK;
}

/* ------------------------------------------------------------------ layers of K and V */

static uint32_t groups_of(const instance *x) { return x->cache.n_groups ? x->cache.n_groups : 1; }

/* K, V, and their scales where they have some, of each group. */
static uint32_t pools_of(const instance *x) {
    return (problem_has_scales(x->problem) ? 4 : 2) * groups_of(x);
}

static cache_part part_of(const instance *x, uint32_t pool) {
    return pool / groups_of(x) < 2 ? CACHE_ELEMENTS : CACHE_SCALES;
}

static uint64_t pool_bytes(const instance *x, uint32_t pool) {
    const cache_part part = part_of(x, pool);
    if (problem_cached(x->problem)) return cache_pool_bytes(&x->cache, pool % groups_of(x), part);
    return part == CACHE_SCALES ? x->k_scale_bytes : x->k_bytes;
}

/* Room for one layer more, without memory. */
static instance_layer *new_layer(instance *x) {
    const size_t pools = pools_of(x);
    instance_layer *larger = realloc(x->layers, ((size_t)x->n_layers + 1) * sizeof *larger);
    if (!larger) return NULL;
    x->layers = larger;
    instance_layer *layer = &larger[x->n_layers];
    layer->memory = calloc(pools, sizeof *layer->memory);
    layer->pools = calloc(pools, sizeof *layer->pools);
    if (layer->memory && layer->pools) {
        x->n_layers++;
        return layer;
    }
    free(layer->memory);
    free(layer->pools);
    return NULL;
}

static void drop_layer(instance *x) {
    instance_layer *layer = &x->layers[--x->n_layers];
    for (uint32_t n = 0; n < pools_of(x); n++)
        if (layer->memory[n].kind != TESS_BUFFER_NONE) tess_free(x->device, &layer->memory[n]);
    free(layer->memory);
    free(layer->pools);
}

/* The pools of a layer into a run. */
static void use_layer(const instance *x, int layer, tess_run_desc *run) {
    tess_tensor *const one[] = {&run->k, &run->v, &run->k_scale, &run->v_scale};
    const tess_tensor **const pools[] = {&run->k_pools, &run->v_pools, &run->k_scale_pools,
                                         &run->v_scale_pools};
    const uint32_t groups = groups_of(x);
    for (uint32_t kind = 0; kind < pools_of(x) / groups; kind++) {
        const tess_tensor *first = x->layers[layer].pools + kind * groups;
        if (groups > 1)
            *pools[kind] = first;
        else
            *one[kind] = *first;
    }
}

tess_status instance_add_layer(instance *x) {
    instance_layer *layer = new_layer(x);
    tess_status status = TESS_OK;
    if (!layer) return instance_fail(x, TESS_ERROR_OUT_OF_MEMORY, "out of memory for a layer");
    for (uint32_t n = 0; n < pools_of(x) && status == TESS_OK; n++) {
        const uint64_t bytes = pool_bytes(x, n);
        layer->pools[n] = x->layers[0].pools[n];
        if (bytes == 0) continue;
        status = tess_alloc(x->device, bytes, &layer->memory[n]);
        if (status != TESS_OK) break;
        layer->pools[n].buffer = layer->memory[n];
        status = tess_copy(x->device, layer->memory[n], x->layers[0].pools[n].buffer, bytes);
    }
    if (status == TESS_OK) return TESS_OK;
    instance_fail(x, status, NULL);
    drop_layer(x);
    return status;
}

/* A pool with the keys at their places, and NaN everywhere else: no result may depend on it. */
static tess_status place_pool(instance *x, uint32_t n, const void *plain, tess_buffer *memory,
                              tess_tensor *pool) {
    const uint32_t group = n % groups_of(x);
    const cache_part part = part_of(x, n);
    const uint64_t bytes = pool_bytes(x, n);
    *pool = cache_pool(&x->cache, group, part, (tess_buffer){0});
    if (bytes == 0) return TESS_OK;
    tess_status status = tess_alloc(x->device, bytes, memory);
    if (status != TESS_OK) return instance_fail(x, status, NULL);
    pool->buffer = *memory;
    char *image = x->host_memory ? (char *)(uintptr_t)(memory->handle + memory->offset)
                                 : instance_host_alloc(bytes);
    if (!image) return instance_fail(x, TESS_ERROR_OUT_OF_MEMORY, "out of memory for a pool");
    memset(image, NAN_BYTE, (size_t)bytes);
    status = cache_lay(&x->cache, group, part, plain, image);
    if (status == TESS_OK && !x->host_memory)
        status = tess_copy(x->device, *memory, tess_host_buffer(image, bytes), bytes);
    if (!x->host_memory) free(image);
    return status == TESS_OK ? TESS_OK : instance_fail(x, status, NULL);
}

static tess_status place_cache(instance *x) {
    tess_status status = cache_create(&x->cache, x->problem, x->layout);
    if (status != TESS_OK) return instance_fail(x, status, NULL);
    instance_layer *layer = new_layer(x);
    if (!layer) return instance_fail(x, TESS_ERROR_OUT_OF_MEMORY, "out of memory for a layer");
    const uint32_t groups = groups_of(x);
    const void *const plain[] = {x->k, x->v, x->k_scale, x->v_scale};
    for (uint32_t n = 0; n < pools_of(x) && status == TESS_OK; n++)
        status = place_pool(x, n, plain[n / groups], &layer->memory[n], &layer->pools[n]);
    if (status != TESS_OK) return status;
    use_layer(x, 0, &x->run);
    x->run.pages = x->cache.pages;
    x->run.table_stride = x->cache.table_stride;
    tess_tensor table = {0};
    if (x->cache.table_bytes)
        status = instance_upload(x, x->cache.table, x->cache.table_bytes, &x->dtable, &table);
    x->run.block_table = table.buffer;
    return status;
}

/* K and V, and their scales, in the order of the problem, as one group. */
static tess_status place_plain(instance *x) {
    const problem *p = x->problem;
    const uint64_t size = problem_kv_size(p), row = (uint64_t)p->head_dim * size;
    const struct {
        const void *host;
        uint64_t bytes, row, size;
        tess_buffer *raw;
        tess_tensor *tensor;
    } all[] = {{x->k, x->k_bytes, row, size, &x->dk, &x->run.k},
               {x->v, x->v_bytes, row, size, &x->dv, &x->run.v},
               {x->k_scale, x->k_scale_bytes, 4, 4, &x->dk_scale, &x->run.k_scale},
               {x->v_scale, x->v_scale_bytes, 4, 4, &x->dv_scale, &x->run.v_scale}};
    instance_layer *layer = new_layer(x);
    if (!layer) return instance_fail(x, TESS_ERROR_OUT_OF_MEMORY, "out of memory for a layer");
    for (uint32_t n = 0; n < pools_of(x); n++) {
        const tess_status status =
            x->flags & INSTANCE_POISON
                ? upload_padded(x, all[n].host, all[n].row, all[n].size, all[n].raw, all[n].tensor)
                : instance_upload(x, all[n].host, all[n].bytes, all[n].raw, all[n].tensor);
        if (status != TESS_OK) return status;
        layer->pools[n] = *all[n].tensor;
    }
    return TESS_OK;
}

/* ------------------------------------------------------------------ runs */

static tess_status place(instance *x) {
    tess_status status = instance_upload(x, x->q, x->q_bytes, &x->dq, &x->run.q);
    if (status == TESS_OK) status = problem_cached(x->problem) ? place_cache(x) : place_plain(x);
    int fill = x->flags & INSTANCE_POISON ? NAN_BYTE : 0;
    if (status == TESS_OK)
        status = instance_guarded(x, x->o_bytes, 16, fill, &x->d_o, &x->run.o.buffer);
    if (status == TESS_OK)
        status = instance_guarded(x, x->lse_bytes, 16, fill, &x->dlse, &x->run.lse.buffer);
    uint64_t alignment = x->info.workspace_align > 16 ? x->info.workspace_align : 16;
    if (status == TESS_OK)
        status = instance_guarded(x, x->info.workspace_bytes, alignment, fill, &x->dwork,
                                  &x->run.workspace);
    return status;
}

/* Whether the device's own buffers are host memory is what tess_alloc says. */
static tess_status find_memory(instance *x) {
    tess_buffer probe = {0};
    tess_status status = tess_alloc(x->device, 16, &probe);
    if (status != TESS_OK) return instance_fail(x, status, NULL);
    x->host_memory = probe.kind == TESS_BUFFER_HOST;
    tess_free(x->device, &probe);
    return TESS_OK;
}

/* A layout belongs to the host alone, so a runtime without any settings makes it; the layout keeps
 * that runtime alive. */
static tess_status make_layout(instance *x) {
    tess_runtime_desc desc = {.struct_size = sizeof desc,
                              .backend = "",
                              .kernel = "",
                              .verbose = "",
                              .cache_dir = "",
                              .tune_file = "",
                              .backend_path = "",
                              .cpu_threads = 1};
    tess_runtime *runtime = NULL;
    tess_status status = tess_runtime_create(&desc, &runtime);
    if (status == TESS_OK) status = problem_layout(x->problem, runtime, &x->layout);
    if (status != TESS_OK) instance_fail(x, status, NULL);
    tess_runtime_release(runtime);
    return status;
}

tess_status instance_create(instance *x, tess_device *device, const problem *p, const char *kernel,
                            unsigned flags) {
    return instance_create_again(x, device, p, kernel, flags, NULL);
}

tess_status instance_create_again(instance *x, tess_device *device, const problem *p,
                                  const char *kernel, unsigned flags, instance_memo *memo) {
    memset(x, 0, sizeof *x);
    x->memo = memo;
    x->problem = p;
    x->device = device;
    x->flags = flags;
    x->guard = flags & INSTANCE_GUARDS ? GUARD_BYTES : 0;
    x->run.struct_size = sizeof x->run;
    tess_status status = make_layout(x);
    if (status == TESS_OK) status = find_memory(x);
    if (status == TESS_OK) status = make_plan(x, kernel);
    if (status == TESS_OK) status = describe(x);
    if (status == TESS_OK) status = make_inputs(x);
    if (status == TESS_OK) status = place(x);
    if (status == TESS_OK && p->op == PROBLEM_BACKWARD) status = instance_place_gradients(x);
    if (status != TESS_OK) instance_release(x);
    return status;
}

tess_status instance_run(instance *x, double *device_seconds) {
    tess_run_desc run = x->run;
    run.device_seconds = device_seconds;
    tess_status status = tess_run(x->plan, &run);
    if (status == TESS_OK && !x->host_memory) status = tess_wait(x->device, WAIT_LIMIT_NS);
    return status == TESS_OK ? TESS_OK : instance_fail(x, status, NULL);
}

tess_status instance_launch(instance *x, int layer) {
    tess_run_desc run = x->run;
    use_layer(x, layer, &run);
    const tess_status status = tess_run(x->plan, &run);
    return status == TESS_OK ? TESS_OK : instance_fail(x, status, NULL);
}

tess_status instance_wait(instance *x) {
    /* Without a limit drivers wait. With one they are asked from time to time, so the end would be
     * noticed late, which those who take the time must not have. */
    const tess_status status = x->host_memory ? TESS_OK : tess_wait(x->device, UINT64_MAX);
    return status == TESS_OK ? TESS_OK : instance_fail(x, status, NULL);
}

tess_status instance_fetch(instance *x) {
    return x->problem->op == PROBLEM_BACKWARD ? instance_fetch_gradients(x)
                                              : instance_fetch_outputs(x);
}

tess_status instance_fetch_outputs(instance *x) {
    tess_status status = TESS_OK;
    if (x->o_bytes)
        status =
            tess_copy(x->device, tess_host_buffer(x->o, x->o_bytes), x->run.o.buffer, x->o_bytes);
    if (status == TESS_OK && x->lse_bytes)
        status = tess_copy(x->device, tess_host_buffer(x->lse, x->lse_bytes), x->run.lse.buffer,
                           x->lse_bytes);
    return status == TESS_OK ? TESS_OK : instance_fail(x, status, NULL);
}

void instance_release(instance *x) {
    enum { N_BUFFERS = 9 };
    tess_buffer *const buffers[N_BUFFERS] = {&x->dq,       &x->dk,       &x->dv,
                                             &x->d_o,      &x->dlse,     &x->dwork,
                                             &x->dk_scale, &x->dv_scale, &x->dtable};
    while (x->n_layers) drop_layer(x);
    if (x->device) instance_release_gradients(x);
    free(x->layers);
    cache_release(&x->cache);
    for (size_t i = 0; i < N_BUFFERS; i++)
        if (buffers[i]->kind != TESS_BUFFER_NONE) tess_free(x->device, buffers[i]);
    void *const arrays[] = {x->q, x->k, x->v, x->o, x->lse, x->k_scale, x->v_scale};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) free(arrays[i]);
    tess_plan_release(x->plan);
    tess_layout_release(x->layout);
    instance empty = {0};
    memcpy(empty.error, x->error, sizeof empty.error);
    *x = empty;
}

/* ------------------------------------------------------------------ the check */

/* What the comparison of rows gathers. */
typedef struct tally {
    double difference2, reference2; /* sums of squares */
    double worst, largest;          /* max |out - ref|, max |ref| */
    double same_type, rounding;     /* the two maxima of the tolerance rule for 16-bit types */
    double lse_worst;               /* of error / tolerance */
    int failed;                     /* a row broke a rule of its own; `what` is filled */
    char where[192];                /* the element of `worst` */
} tally;

static int64_t flat_row(const problem *p, int64_t b, int32_t head, int64_t row, int64_t *lse_at) {
    if (p->q_lens) {
        int64_t token = problem_q_start(p, b) + row;
        *lse_at = head * problem_q_tokens(p) + token;
        return token * p->heads + head;
    }
    *lse_at = (b * p->heads + head) * p->q_len + row;
    return (b * p->q_len + row) * p->heads + head;
}

/* A row of the reference: of each element its value and that of the loop in the problem's type,
 * then LSE. */
static size_t reference_doubles(const problem *p) { return 2 * (size_t)p->head_dim + 1; }

static void make_reference(const instance *x, int64_t b, int32_t head, int64_t row, double *ref) {
    const problem *p = x->problem;
    const reference_inputs in = {x->q, x->k, x->v, x->k_scale, x->v_scale};
    double *same = ref + p->head_dim, same_lse;
    reference_row(p, &in, b, head, row, ref, same + p->head_dim);
    if (p->dtype != TESS_F32) reference_row_same_type(p, &in, b, head, row, same, &same_lse);
}

/* Room in the memo for row n of a comparison, or NULL. */
static double *memo_row(const instance *x, int64_t n, int64_t wanted) {
    instance_memo *memo = x->memo;
    const size_t size = reference_doubles(x->problem);
    if (!memo) return NULL;
    if (!memo->rows) {
        const int64_t fit = (int64_t)(MEMO_BYTES / (size * sizeof(double)));
        memo->wanted = wanted;
        memo->most_rows = wanted < fit ? wanted : fit;
        memo->rows = malloc((size_t)memo->most_rows * size * sizeof(double));
    }
    return memo->rows && memo->wanted == wanted && n < memo->most_rows
               ? memo->rows + (size_t)n * size
               : NULL;
}

/* One row against the reference. */
static void compare_row(const instance *x, int64_t b, int32_t head, int64_t row, const double *ref,
                        tally *t, instance_verdict *verdict) {
    const problem *p = x->problem;
    const double *same = ref + p->head_dim, lse = same[p->head_dim];
    int64_t lse_at, o_at = flat_row(p, b, head, row, &lse_at) * p->head_dim;
    char where[96];
    snprintf(where, sizeof where, "sequence %" PRId64 ", head %" PRId32 ", row %" PRId64, b, head,
             row);
    int empty = isinf(lse) && lse < 0;
    for (int32_t d = 0; d < p->head_dim; d++) {
        double got = load_element(p->dtype, x->o, o_at + d), difference = fabs(got - ref[d]);
        if (!t->failed && (!isfinite(got) || (empty && got != 0))) {
            t->failed = 1;
            text_error(verdict->what, sizeof verdict->what,
                       "O: %s, element %" PRId32 ": got %g, wanted %g", where, d, got, ref[d]);
        }
        if (!(difference <= t->worst)) {
            t->worst = difference;
            snprintf(t->where, sizeof t->where, "%s, element %" PRId32 ": got %.9g, wanted %.9g",
                     where, d, got, ref[d]);
        }
        t->difference2 += difference * difference;
        t->reference2 += ref[d] * ref[d];
        if (fabs(ref[d]) > t->largest) t->largest = fabs(ref[d]);
        if (p->dtype != TESS_F32) {
            float rounded = instance_rounded(p->dtype, (float)ref[d]);
            float there = instance_rounded(p->dtype, rounded + 0.3f),
                  back = instance_rounded(p->dtype, there - 0.3f);
            if (fabs(same[d] - ref[d]) > t->same_type) t->same_type = fabs(same[d] - ref[d]);
            if (fabs((double)back - rounded) > t->rounding)
                t->rounding = fabs((double)back - rounded);
        }
    }
    double got = x->lse[lse_at], error = empty ? (got == lse ? 0 : INFINITY) : fabs(got - lse);
    if (!(error <= verdict->lse_error)) verdict->lse_error = error;
    double tolerance =
        (p->dtype == TESS_F32 ? 1e-5 : 1e-4) * (fabs(lse) > 1 && !empty ? fabs(lse) : 1);
    if (!t->failed && !(error <= tolerance)) {
        t->failed = 1;
        text_error(verdict->what, sizeof verdict->what, "LSE: %s: got %.9g, wanted %.9g", where,
                   got, lse);
    }
}

/* The n-th of `wanted` rows out of `total`: the first, the last, and one at a scattered place of
 * each equal part between them, so that no period of tiles or heads decides which rows are looked
 * at. */
int64_t instance_nth_row(int64_t n, int64_t wanted, int64_t total) {
    if (wanted >= total) return n;
    if (n == 0) return 0;
    if (n == wanted - 1) return total - 1;
    double scatter = (double)((uint64_t)n * 0x9e3779b97f4a7c15u >> 11) * 0x1p-53;
    int64_t at = (int64_t)(((double)n + scatter) * ((double)total / (double)wanted));
    return at < total ? at : total - 1;
}

/* A row to compare, and where its reference is. */
typedef struct row_task {
    const instance *x;
    int64_t b, row;
    int32_t head;
    int known; /* the reference was made for an earlier instance */
    double *ref;
} row_task;

static void *make_task(void *argument) {
    const row_task *t = argument;
    if (!t->known) make_reference(t->x, t->b, t->head, t->row, t->ref);
    return NULL;
}

static void compare_rows(const instance *x, int64_t max_rows, tally *t, instance_verdict *verdict) {
    const problem *p = x->problem;
    /* Over a long cache a row takes longer than the kernel under test needs for all of them. */
    const int64_t at_once = tasks_at_once(problem_max_kv(p) * p->head_dim);
    const size_t size = reference_doubles(p);
    row_task tasks[TASKS_MOST];
    double *own = malloc((size_t)at_once * size * sizeof *own);
    if (!own) {
        t->failed = 1;
        text_error(verdict->what, sizeof verdict->what, "out of memory for the reference");
        return;
    }
    int64_t total = problem_q_tokens(p) * p->heads;
    int64_t wanted = max_rows > 0 && max_rows < total ? max_rows : total;
    int64_t b = 0, before = 0; /* rows of the sequences ahead of b */
    for (int64_t first = 0; first < wanted; first += at_once) {
        const int64_t count = wanted - first < at_once ? wanted - first : at_once;
        for (int64_t i = 0; i < count; i++) {
            const int64_t n = first + i, at = instance_nth_row(n, wanted, total);
            while (at - before >= problem_q_len(p, b) * p->heads)
                before += problem_q_len(p, b++) * p->heads;
            const int64_t q_len = problem_q_len(p, b);
            double *kept = memo_row(x, n, wanted);
            tasks[i] = (row_task){x,
                                  b,
                                  (at - before) % q_len,
                                  (int32_t)((at - before) / q_len),
                                  kept && n < x->memo->n_rows,
                                  kept ? kept : own + (size_t)i * size};
            if (kept && n >= x->memo->n_rows) x->memo->n_rows = n + 1;
        }
        tasks_run(make_task, tasks, sizeof *tasks, count);
        for (int64_t i = 0; i < count; i++)
            compare_row(x, tasks[i].b, tasks[i].head, tasks[i].row, tasks[i].ref, t, verdict);
    }
    verdict->rows = wanted;
    free(own);
}

/* Poisoned outputs must have been written everywhere, also in rows that are not compared. */
static int all_written(const instance *x, char *what, size_t size) {
    uint64_t n_o = x->o_bytes / problem_size(x->problem), n_lse = x->lse_bytes / sizeof *x->lse;
    for (uint64_t i = 0; i < n_o; i++)
        if (isnan(load_element(x->problem->dtype, x->o, (int64_t)i)))
            return text_error(what, size, "O: element %" PRIu64 " of the whole array is NaN", i);
    for (uint64_t i = 0; i < n_lse; i++)
        if (isnan(x->lse[i]))
            return text_error(what, size, "LSE: element %" PRIu64 " of the whole array is NaN", i);
    return 0;
}

static int all_guards_intact(const instance *x, char *what, size_t size) {
    if (instance_guards_intact(x, "O", &x->d_o, &x->run.o.buffer, what, size) != 0) return -1;
    if (instance_guards_intact(x, "LSE", &x->dlse, &x->run.lse.buffer, what, size) != 0) return -1;
    return instance_guards_intact(x, "workspace", &x->dwork, &x->run.workspace, what, size);
}

void instance_check(const instance *x, int64_t max_rows, instance_verdict *verdict) {
    tally t = {0};
    memset(verdict, 0, sizeof *verdict);
    if (x->problem->op == PROBLEM_BACKWARD) {
        instance_check_gradients(x, max_rows, verdict);
        return;
    }
    if (x->flags & INSTANCE_GUARDS &&
        all_guards_intact(x, verdict->what, sizeof verdict->what) != 0)
        return;
    compare_rows(x, max_rows, &t, verdict);
    verdict->worst = t.worst;
    /* Where every row is empty the reference is 0, and so must the difference be. */
    verdict->nmse = t.difference2 == 0 ? 0 : t.difference2 / t.reference2;
    verdict->max_rel = t.worst == 0 ? 0 : t.worst / t.largest;
    if (t.failed) return;
    if (x->problem->dtype == TESS_F32) {
        verdict->allowed = 1e-5 * t.largest;
        if (!(verdict->nmse <= 1e-10) || !(verdict->max_rel <= 1e-5)) {
            text_error(
                verdict->what, sizeof verdict->what,
                "O: nmse %.3g (at most 1e-10), max relative error %.3g (at most 1e-5); worst at %s",
                verdict->nmse, verdict->max_rel, t.where);
            return;
        }
    } else {
        verdict->allowed = 2 * t.same_type + 2 * t.rounding;
        if (!(t.worst <= verdict->allowed)) {
            text_error(verdict->what, sizeof verdict->what, "O: error %.3g (at most %.3g) at %s",
                       t.worst, verdict->allowed, t.where);
            return;
        }
    }
    if (x->flags & INSTANCE_POISON && all_written(x, verdict->what, sizeof verdict->what) != 0)
        return;
    verdict->pass = 1;
}
