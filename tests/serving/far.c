/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Caches past the ends of numbers: pools past 2^31 elements and 2^32 bytes and pages 2^40 bytes
 * apart, in tess_append, tess_run, tess_copy_pages and tess_merge_parts, partial results past 2^32
 * bytes, and steps of more than 65,535 sequences. On the host it is address space alone, on a GPU
 * memory, and on CUDA addresses too. Software devices would take half a minute.
 */
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/elements.h"
#include "kv_cache.h"

/* ------------------------------------------------------------------ addresses of CUDA */

enum { CHUNK = 2 << 20 }; /* bytes that are mapped at a time */

typedef struct location {
    int type, id;
} location;
typedef struct allocation {
    int type, handles;
    location at;
    void *metadata;
    unsigned char flags[8];
} allocation;
typedef struct mapping {
    location at;
    int flags;
} mapping;

static struct {
    int (*init)(unsigned);
    int (*retain)(void **, int);
    int (*push)(void *);
    int (*reserve)(uint64_t *, size_t, size_t, uint64_t, unsigned long long);
    int (*unreserve)(uint64_t, size_t);
    int (*create)(unsigned long long *, size_t, const allocation *, unsigned long long);
    int (*release)(unsigned long long);
    int (*map)(uint64_t, size_t, size_t, unsigned long long, unsigned long long);
    int (*unmap)(uint64_t, size_t);
    int (*allow)(uint64_t, size_t, const mapping *, size_t);
} cu;

#define CU(call)                                                               \
    do {                                                                       \
        const int cu_code = (call);                                            \
        if (cu_code != 0) fail_msg("%s gave CUDA's error %d", #call, cu_code); \
    } while (0)

static int find_cuda(void) {
    static const struct {
        const char *name;
        void *to;
    } symbols[] = {{"cuInit", &cu.init},
                   {"cuDevicePrimaryCtxRetain", &cu.retain},
                   {"cuCtxPushCurrent_v2", &cu.push},
                   {"cuMemAddressReserve", &cu.reserve},
                   {"cuMemAddressFree", &cu.unreserve},
                   {"cuMemCreate", &cu.create},
                   {"cuMemRelease", &cu.release},
                   {"cuMemMap", &cu.map},
                   {"cuMemUnmap", &cu.unmap},
                   {"cuMemSetAccess", &cu.allow}};
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), *context = NULL;
    if (!library) return 0;
    for (size_t n = 0; n < sizeof symbols / sizeof *symbols; n++) {
        void *address = dlsym(library, symbols[n].name);
        if (!address) return 0;
        memcpy(symbols[n].to, &address, sizeof address);
    }
    CU(cu.init(0));
    CU(cu.retain(&context, 0));
    CU(cu.push(context));
    return 1;
}

/* Memory at every `step` bytes, and none between. */
static tess_buffer map_far(uint64_t step, int64_t count) {
    const allocation wanted = {.type = 1, .at = {1, 0}};
    const mapping access = {{1, 0}, 3};
    tess_buffer b = {.kind = TESS_BUFFER_POINTER, .size = step * (uint64_t)(count - 1) + CHUNK};
    CU(cu.reserve(&b.handle, b.size, 0, 0, 0));
    for (int64_t n = 0; n < count; n++) {
        unsigned long long handle = 0;
        const uint64_t at = b.handle + step * (uint64_t)n;
        CU(cu.create(&handle, CHUNK, &wanted, 0));
        CU(cu.map(at, CHUNK, 0, handle, 0));
        CU(cu.release(handle)); /* the mapping keeps it */
        CU(cu.allow(at, CHUNK, &access, 1));
    }
    return b;
}

static void unmap_far(tess_buffer *b, uint64_t step, int64_t count) {
    for (int64_t n = 0; n < count; n++) CU(cu.unmap(b->handle + step * (uint64_t)n, CHUNK));
    CU(cu.unreserve(b->handle, step * (uint64_t)(count - 1) + CHUNK));
    *b = (tess_buffer){0};
}

/* ------------------------------------------------------------------ far pools */

/* An id that no entry of the table has. */
static int32_t unused_page(const kv_cache *c) {
    for (int32_t id = 0; id < c->pages; id++) {
        int64_t n = 0;
        while (n < c->n_storage * c->batch * c->columns && c->table[n] != id) n++;
        if (n == c->n_storage * c->batch * c->columns) return id;
    }
    fail_msg("all pages are in use");
    return -1;
}

/* The first page's keys are copied to one that nobody has, which takes its place. */
static void copy_far(kv_cache *c, const int64_t *last, const kv_result *wanted) {
    const int32_t pair[2] = {c->table[0], unused_page(c)};
    const tess_tensor *k = &c->pools[0].tensor[0];
    const uint64_t row = (uint64_t)c->p->head_dim * c->kv_item;
    tess_buffer list = test_upload(c->device, pair, sizeof pair);
    kv_result got;
    tess_copy_desc d = {.struct_size = sizeof d,
                        .dtype = c->p->kv_dtype ? c->p->kv_dtype : c->p->dtype,
                        .n_pools = 2,
                        .n_heads = c->pools[0].heads,
                        .head_dim = c->p->head_dim,
                        .page = c->form.page,
                        .pages = c->pages,
                        .n_pairs = 1,
                        .pools = c->pools[0].tensor,
                        .pairs = list};
    assert_ok(tess_copy_pages(c->device, &d));
    d.dtype = TESS_F32;
    d.head_dim = 1;
    d.pools = &c->pools[0].tensor[2];
    if (c->p->kv_dtype) assert_ok(tess_copy_pages(c->device, &d));
    assert_ok(tess_wait(c->device, UINT64_MAX));
    /* What was copied from is overwritten, so that it cannot be what is read. */
    unsigned char none[256 * 4];
    memset(none, 0xff, sizeof none);
    for (int v = 0; v < 2; v++) {
        tess_buffer first = c->pools[0].tensor[v].buffer;
        first.offset += (uint64_t)(pair[0] * k->stride_batch) * c->kv_item;
        assert_ok(tess_copy(c->device, first, tess_host_buffer(none, row), row));
    }
    kv_set_page(c, 0, 0, 0, pair[1]);
    kv_attend(c, last, &got);
    kv_same("a copied page", wanted, 0, &got, 0, got.rows, c);
    kv_result_free(&got);
    assert_ok(tess_free(c->device, &list));
}

/* Pages of K as parts of a result; that of nobody counts as none. */
static void merge_far(const kv_cache *c) {
    enum { PARTS = 6 };
    const int32_t unused = unused_page(c), heads = c->pools[0].heads, dim = c->p->head_dim,
                  rows = c->form.page;
    float lse[PARTS * 16 * KV_MOST_HEADS];
    const int64_t vectors = (int64_t)rows * heads;
    assert_true(rows <= 16 && c->pages == PARTS);
    for (int64_t n = 0; n < PARTS * vectors; n++) {
        const int64_t part = n / vectors;
        lse[n] = part == unused ? -INFINITY : (float)part / 4;
    }
    const uint64_t bytes = (uint64_t)(vectors * dim) * c->item;
    tess_buffer weights = test_upload(c->device, lse, (uint64_t)(PARTS * vectors) * 4),
                o = test_upload(c->device, NULL, bytes);
    unsigned char *got = malloc(bytes);
    assert_non_null(got);
    const tess_parts_desc d = {.struct_size = sizeof d,
                               .n_parts = PARTS,
                               .n_heads = (uint32_t)heads,
                               .head_dim = (uint32_t)dim,
                               .dtype = c->p->dtype,
                               .rows = rows,
                               .o_parts = c->pools[0].tensor[0],
                               .lse_parts = {weights, vectors, heads, 1},
                               .o = {o, 0, heads * dim, dim}};
    assert_ok(tess_merge_parts(c->device, &d));
    assert_ok(tess_wait(c->device, UINT64_MAX));
    test_download(c->device, o, got, bytes);
    for (int64_t n = 0; n < vectors; n++) {
        double sum[256] = {0}, all = 0, row[256];
        for (int32_t id = 0; id < PARTS; id++) {
            if (id == unused) continue;
            int64_t column = 0;
            while (c->table[column] != id) column++;
            kv_row(c, 0, 0, column * rows + n / heads, (int32_t)(n % heads), row);
            for (int e = 0; e < dim; e++) sum[e] += exp(id / 4.0) * row[e];
            all += exp(id / 4.0);
        }
        for (int e = 0; e < dim; e++) {
            const double x = element_load(c->p->dtype, got, n * dim + e);
            if (!(fabs(x - sum[e] / all) <= (c->p->dtype == TESS_F32 ? 1e-5 : 1e-2)))
                fail_msg("%s: element %d of vector %d is %g and should be %g",
                         kv_line(c, "merged parts"), e, (int)n, x, sum[e] / all);
        }
    }
    free(got);
    assert_ok(tess_free(c->device, &weights));
    assert_ok(tess_free(c->device, &o));
}

/* A cache of which every page, or every sequence, is so far from the next one. 0: the kernel that
 * is named refuses it. */
static int use_far(const test_target *target, const kv_problem *p, const kv_form *form) {
    enum { KEYS = 80, BATCH = 3 };
    const int32_t batch = form->page ? 1 : BATCH;
    static const int64_t all[BATCH] = {KEYS, 33, 70}, chunk[BATCH] = {20, 9, 20},
                         last[BATCH] = {1, 1, 3};
    kv_cache c;
    kv_result r;
    if (!kv_open(&c, target, p, form, batch, KEYS, 3)) return 0;
    kv_append(&c, all);
    kv_attend(&c, chunk, &r);
    for (int32_t b = 0, at = 0; b < batch; at += (int32_t)chunk[b++])
        kv_check(&c, &r, b, at, chunk[b], 4, "far keys, a chunk");
    kv_result_free(&r);
    kv_attend(&c, last, &r);
    kv_check(&c, &r, 0, 0, 1, 1, "far keys, one row");
    if (form->page && !form->compact && !p->kv_dtype) merge_far(&c);
    if (form->page) copy_far(&c, last, &r);
    kv_result_free(&r);
    kv_close(&c);
    return 1;
}

/* Whether the device gives so much memory. */
static int has_memory(const test_target *target, uint64_t bytes) {
    tess_buffer b = {0};
    if (target->host_memory) return 1;
    const tess_status status = tess_alloc(target->device, bytes, &b);
    if (status != TESS_OK)
        printf("%s: left out, %.1f GiB: %s\n", target->id, (double)bytes / (1 << 30),
               tess_last_error());
    else
        assert_ok(tess_free(target->device, &b));
    return status == TESS_OK;
}

static void test_far(void **state) {
    /* from page to page: the last of six lies past 2^31 elements, past 2^33, or 2^42 bytes away */
    static const int64_t strides[] = {(INT64_C(1) << 29) + 64, (INT64_C(1) << 31) + 64,
                                      INT64_C(1) << 39};
    const test_target *target = *state;
    const int is_cuda = strcmp(target->backend, "cuda") == 0,
              has_addresses = is_cuda && find_cuda();
    int runs = 0;
    if (target->software || test_sanitized()) skip(); /* no such address space */
    for (int n = 0; n < 3; n++)
        for (int form_number = 0; form_number < 6; form_number++) {
            kv_problem p = {.dtype = form_number == 1 ? TESS_F32 : TESS_BF16, .head_dim = 64};
            p.heads = 4;
            p.kv_heads = 2;
            p.kv_dtype = form_number >= 4 ? TESS_I8 : 0;
            p.pattern = test_s2_pattern(16, 2, 3);
            if (form_number < 2 || form_number == 4) p.pattern.kind = TESS_PATTERN_DENSE;
            p.max_tokens = 128;
            p.max_chunk = 20;
            kv_form form = {.page = form_number == 3 ? 0 : 16,
                            .compact = p.pattern.kind == TESS_PATTERN_S2,
                            .steps = form_number % 2,
                            .q_len = 80,
                            .far = strides[n]};
            const uint64_t item = p.kv_dtype ? 1 : p.dtype == TESS_F32 ? 4 : 2;
            if (!target->host_memory && n == 1 && item > 1) continue; /* of the same words */
            if (n == 2 && !target->host_memory) {
                if (!has_addresses) continue;
                form.far = (INT64_C(1) << 40) / (int64_t)item;
                form.far_memory = map_far;
                form.far_free = unmap_far;
            } else if (strcmp(target->backend, "vulkan") == 0 && (n > 0 || item > 1)) {
                continue; /* a range that a shader sees ends at 2^32 bytes */
            } else if (!has_memory(target, 6 * (uint64_t)form.far * item)) {
                continue;
            }
            runs += use_far(target, &p, &form);
        }
    assert_true(runs > 0);
    if (is_cuda && !has_addresses) print_message("CUDA maps no memory by address here\n");
}

/* ------------------------------------------------------------------ many partial results */

enum { PARTS = 16, HEADS = 16, DIM = 256, VECTORS = HEADS + 2 * PARTS };

/* One row of all heads in every sequence, whose 16 keys are a part each. */
static tess_plan *plan_parts(const test_target *target, const tess_layout *layout, uint32_t dtype,
                             int64_t batch, tess_plan_info *info) {
    tess_plan *plan = NULL;
    const tess_plan_desc d = {.struct_size = sizeof d,
                              .dtype = dtype,
                              .head_dim = DIM,
                              .batch = batch,
                              .q_len = 1,
                              .kv_len = PARTS,
                              .kv_split = PARTS};
    *info = (tess_plan_info){.struct_size = sizeof *info};
    const tess_status status = tess_plan_create(target->device, layout, &d, &plan);
    if (status == TESS_ERROR_UNSUPPORTED && test_kernel_is_named()) return NULL;
    assert_ok(status);
    assert_ok(tess_plan_query(plan, info));
    return plan;
}

static tess_buffer take_far(const test_target *target, uint64_t bytes) {
    tess_buffer b = {0};
    if (!target->host_memory) {
        assert_ok(tess_alloc(target->device, bytes, &b));
        return b;
    }
    void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED)
        fail_msg("%llu bytes of address space cannot be mapped", (unsigned long long)bytes);
    return tess_host_buffer(map, bytes);
}

static void give_far(const test_target *target, tess_buffer *b, uint64_t bytes) {
    if (target->host_memory)
        munmap((void *)(uintptr_t)b->handle, bytes);
    else
        assert_ok(tess_free(target->device, b));
}

/* Sets bytes of a buffer from `at` on, or tells whether all of them are `value`. */
static void set_bytes(const test_target *target, tess_buffer b, uint64_t at, uint64_t bytes,
                      int value) {
    unsigned char *image = malloc(bytes);
    assert_non_null(image);
    memset(image, value, bytes);
    b.offset += at;
    assert_ok(tess_copy(target->device, b, tess_host_buffer(image, bytes), bytes));
    free(image);
}
static int are_bytes(const test_target *target, tess_buffer b, uint64_t at, uint64_t bytes,
                     int value) {
    unsigned char *image = malloc(bytes);
    uint64_t n = 0;
    assert_non_null(image);
    b.offset += at;
    test_download(target->device, b, image, bytes);
    while (n < bytes && image[n] == value) n++;
    free(image);
    return n == bytes;
}

/* Q of a row, K and V are `vectors` in turn: HEADS, PARTS and PARTS of them. */
static void check_parts(const test_target *target, uint32_t dtype, const void *vectors,
                        tess_buffer o, int64_t sequence) {
    unsigned char got[HEADS * DIM * 4];
    const uint64_t bytes = HEADS * DIM * (dtype == TESS_F32 ? 4 : 2);
    o.offset += (uint64_t)sequence * bytes;
    test_download(target->device, o, got, bytes);
    for (int head = 0; head < HEADS; head++) {
        double sum = 0, all[DIM] = {0};
        for (int t = 0; t < PARTS; t++) {
            double score = 0;
            for (int e = 0; e < DIM; e++)
                score += (double)element_load(dtype, vectors, head * DIM + e) *
                         element_load(dtype, vectors, (HEADS + t) * DIM + e);
            const double weight = exp(score / sqrt(DIM));
            sum += weight;
            for (int e = 0; e < DIM; e++)
                all[e] += weight * element_load(dtype, vectors, (HEADS + PARTS + t) * DIM + e);
        }
        for (int e = 0; e < DIM; e++) {
            const double x = element_load(dtype, got, head * DIM + e);
            if (!(fabs(x - all[e] / sum) <= (dtype == TESS_F32 ? 1e-5 : 1e-2)))
                fail_msg("%s: head %d, element %d of sequence %lld is %g and should be %g",
                         target->id, head, e, (long long)sequence, x, all[e] / sum);
        }
    }
}

/* The last sequence's parts lie past 2^32 bytes of the workspace. Only its jobs and its merges run.
 * Nothing is written 2^32 bytes before, where NaN is. 0: the named kernel refuses the plan. */
static int use_far_partials(const test_target *target, const tess_layout *layout, uint32_t dtype) {
    const uint64_t item = dtype == TESS_F32 ? 4 : 2, wrap = UINT64_C(1) << 32;
    tess_plan_info info;
    uint64_t bytes[2], random = 19;
    for (int n = 0; n < 2; n++) {
        tess_plan *plan = plan_parts(target, layout, dtype, 1000 * (n + 1), &info);
        if (!plan) return 0;
        bytes[n] = info.workspace_bytes;
        tess_plan_release(plan);
    }
    const uint64_t own = (bytes[1] - bytes[0]) / 1000;
    const int64_t batch = (int64_t)(wrap / own) + 100;
    const uint64_t o_bytes = (uint64_t)batch * HEADS * DIM * item;
    if (!has_memory(target, wrap + 200 * own + o_bytes)) return 1;
    tess_plan *plan = plan_parts(target, layout, dtype, batch, &info);
    unsigned char vectors[VECTORS * DIM * 4];
    for (int n = 0; n < VECTORS * DIM; n++)
        element_store(dtype, vectors, n, (float)test_between(&random, -64, 64) / 64);
    tess_buffer in = test_upload(target->device, vectors, VECTORS * DIM * item);
    tess_run_desc run = {.struct_size = sizeof run,
                         .q = {in, 0, HEADS * DIM, DIM},
                         .k = {in, 0, DIM, DIM},
                         .v = {in, 0, DIM, DIM},
                         .o = {take_far(target, o_bytes), HEADS * DIM, HEADS * DIM, DIM},
                         .workspace = take_far(target, info.workspace_bytes)};
    run.k.buffer.offset += HEADS * DIM * item;
    run.v.buffer.offset += (HEADS + PARTS) * DIM * item;
    const uint64_t last = info.workspace_bytes - own, jobs = info.n_jobs - info.n_merge_jobs,
                   merges = info.n_merge_jobs / (uint64_t)batch;
    assert_true(last > wrap && merges > 0);
    set_bytes(target, run.workspace, last, own, 0);
    set_bytes(target, run.workspace, last - wrap, own, 0xff);
    run.job_count = jobs / (uint64_t)batch;
    run.first_job = jobs - run.job_count;
    assert_ok(tess_run(plan, &run));
    assert_ok(tess_wait(target->device, UINT64_MAX));
    assert_false(are_bytes(target, run.workspace, last, own, 0));
    assert_true(are_bytes(target, run.workspace, last - wrap, own, 0xff));
    run.job_count = merges;
    run.first_job = info.n_jobs - merges;
    assert_ok(tess_run(plan, &run));
    assert_ok(tess_wait(target->device, UINT64_MAX));
    check_parts(target, dtype, vectors, run.o.buffer, batch - 1);
    give_far(target, &run.o.buffer, o_bytes);
    give_far(target, &run.workspace, info.workspace_bytes);
    assert_ok(tess_free(target->device, &in));
    tess_plan_release(plan);
    return 1;
}

static int n_partials; /* plans that a kernel took */

static void test_partials(void **state) {
    const test_target *target = *state;
    const tess_pattern pattern = {.struct_size = sizeof pattern, .block = 1};
    const tess_layout_desc d = test_layout_desc(&pattern, HEADS, 1, PARTS);
    tess_layout *layout = NULL;
    int taken = 0;
    if (target->software || test_sanitized()) skip();
    if (strcmp(target->backend, "vulkan") == 0) skip(); /* a shader sees 2^32 bytes */
    tess_runtime *runtime = test_runtime(0);
    assert_ok(tess_layout_create(runtime, &d, &layout));
    tess_runtime_release(runtime);
    for (uint32_t dtype = TESS_F32; dtype <= TESS_BF16; dtype += TESS_BF16)
        taken += use_far_partials(target, layout, dtype);
    assert_true(taken > 0);
    n_partials += taken;
    tess_layout_release(layout);
}

/* ------------------------------------------------------------------ many sequences */

/* A step of more sequences than 16 bits count, some without rows, in place and in pages by slot. */
static void test_many(void **state) {
    enum { BATCH = 65536 + 37, ROUNDS = 5 };
    const test_target *target = *state;
    kv_problem p = {.dtype = TESS_F16, .heads = 2, .kv_heads = 1, .head_dim = 8, .max_chunk = 2};
    p.pattern = test_s2_pattern(8, 1, 2);
    p.max_tokens = 24;
    if ((target->software || test_sanitized()) && !test_full()) skip();
    int64_t *rows = calloc(BATCH, sizeof *rows);
    assert_non_null(rows);
    for (int compact = 0; compact < 2; compact++) {
        const kv_form form = {.page = 16 * compact, .compact = compact, .steps = 1, .q_len = 2};
        kv_cache c;
        kv_result r;
        if (!kv_open(&c, target, &p, &form, BATCH, 2 * ROUNDS, 3)) fail_msg("the kernel refuses");
        for (int n = 0; n < ROUNDS; n++) {
            for (int32_t b = 0; b < BATCH; b++) rows[b] = b % 7 == 3 ? 0 : (b + n) % 3 == 0 ? 1 : 2;
            kv_append(&c, rows);
        }
        kv_attend(&c, rows, &r);
        int64_t at = 0;
        for (int32_t b = 0; b < BATCH; at += rows[b++])
            if (b % 997 == 0 || b >= BATCH - 40)
                kv_check(&c, &r, b, at, rows[b], 1, "one of many sequences");
        kv_result_free(&r);
        kv_close(&c);
    }
    free(rows);
}

int main(int argc, char **argv) {
    static const serving_test all[] = {{"far pools", test_far},
                                       {"far partial results", test_partials},
                                       {"many sequences", test_many}};
    const int status = serving_main(argc, argv, all, sizeof all / sizeof *all);
    return status ? status : n_partials == 0 && kv_none_opened() ? TEST_SKIPPED : 0;
}
