/* SPDX-License-Identifier: Apache-2.0 */
/* K and V in pages and by slot: whatever the page, the order of a pool's dimensions, the ids and
 * what lies around the keys, results have the bits of a plain run. Ids that are none read as absent
 * keys. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "npy.h"
#include "properties.h"
#include "rig.h"

static const int32_t page_sizes[] = {16, 32, 64, 128, 256};
enum { PAGE_SIZES = sizeof page_sizes / sizeof page_sizes[0], MOST_GROUPS = 8 };

typedef struct options {
    int32_t page; /* 0: contiguous */
    int compact;
    int head_major;    /* [page, head, token, element] */
    int64_t pad;       /* elements between pages */
    int64_t more;      /* columns of the table beyond the longest sequence's pages */
    uint64_t absent;   /* one id in so many is replaced by one that is none; 0: none is */
    int64_t stretched; /* elements from page to page of a pool in a sparse mapping; 0: dense */
} options;

/* A storage group's K and V, as they lie in memory. */
typedef struct group {
    int32_t heads;
    int32_t *kv_heads;         /* their ids */
    int64_t tokens;            /* that the longest sequence takes */
    int64_t page, token, head; /* strides in elements */
    uint64_t bytes;            /* of each pool */
    char *image[2];            /* K and V */
    float *scales[2];          /* one for each head_dim elements of these, where they have some */
} group;

typedef struct cache {
    const rig *r; /* the plain problem */
    options opt;
    tess_plan *plan;
    tess_plan_info info;
    uint32_t groups;
    group group[MOST_GROUPS];
    int64_t pages; /* of each pool */
    int64_t table_stride;
    int32_t *table; /* [groups][batch][table_stride] */
    uint64_t random;
} cache;

/* ------------------------------------------------------------------ the plan */

/* 0: the kernel does not take it. */
static int create_plan(cache *c) {
    const rig *r = c->r;
    tess_plan_desc desc;
    int64_t *cu = NULL;
    memset(&desc, 0, sizeof desc);
    assert_int_equal(problem_plan_desc(&r->p, &desc, &cu), 0);
    desc.kernel = r->target->kernel[0] ? r->target->kernel : NULL;
    desc.page = c->opt.page;
    if (c->opt.compact) desc.flags |= TESS_PLAN_COMPACT;
    const tess_status status = tess_plan_create(r->target->device, r->layout, &desc, &c->plan);
    free(cu);
    if (status == TESS_ERROR_UNSUPPORTED && r->target->kernel[0] && !r->target->portable) return 0;
    assert_ok(status);
    c->info.struct_size = sizeof c->info;
    assert_ok(tess_plan_query(c->plan, &c->info));
    return 1;
}

/* ------------------------------------------------------------------ memory */

/* Token places that a sequence takes. */
static int64_t tokens_of(const cache *c, uint32_t storage, int64_t s) {
    int64_t tokens = problem_kv_len(&c->r->p, s);
    if (c->opt.compact)
        assert_ok(tess_layout_part_pages(c->r->layout, storage, problem_kv_first(&c->r->p, s),
                                         tokens, 0, &tokens));
    return tokens;
}

static void shape_group(cache *c, uint32_t storage) {
    const problem *p = &c->r->p;
    group *g = &c->group[storage];
    int64_t longest = 0;
    for (int64_t s = 0; s < p->batch; s++)
        if (problem_kv_len(p, s) > longest) longest = problem_kv_len(p, s);
    g->kv_heads = rig_room((uint64_t)p->kv_heads * sizeof *g->kv_heads);
    g->heads = p->kv_heads;
    g->tokens = longest;
    if (c->opt.compact) {
        tess_storage_info info = {.struct_size = sizeof info};
        assert_ok(tess_layout_storage(c->r->layout, storage, &info, g->kv_heads));
        g->tokens = 0;
        for (int64_t s = 0; s < p->batch; s++) {
            const int64_t tokens = tokens_of(c, storage, s);
            if (tokens > g->tokens) g->tokens = tokens;
        }
        g->heads = (int32_t)info.n_kv_heads;
    } else {
        for (int32_t h = 0; h < g->heads; h++) g->kv_heads[h] = h;
    }
    const int64_t tokens = c->opt.page ? c->opt.page : g->tokens;
    g->head = c->opt.head_major ? tokens * p->head_dim : p->head_dim;
    g->token = c->opt.head_major ? p->head_dim : g->heads * p->head_dim;
    g->page = tokens * g->heads * p->head_dim + c->opt.pad;
    if (c->opt.stretched) g->page = c->opt.stretched;
    /* Scales lie as rows of K and V do. */
    if (problem_has_scales(p)) g->page = (g->page + p->head_dim - 1) / p->head_dim * p->head_dim;
}

static int64_t pages_of(const cache *c, const group *g, int64_t s) {
    return (tokens_of(c, (uint32_t)(g - c->group), s) + c->opt.page - 1) / c->opt.page;
}

/* Ids of pages in random order, no page twice; what is not needed is no id. */
static void make_table(cache *c) {
    static const int32_t none[] = {-1, INT32_MIN, INT32_MAX, -2};
    const problem *p = &c->r->p;
    int64_t most = 0;
    c->pages = 3;
    for (uint32_t n = 0; n < c->groups; n++) {
        int64_t sum = 0;
        for (int64_t s = 0; s < p->batch; s++) {
            const int64_t own = pages_of(c, &c->group[n], s);
            sum += own;
            if (own > most) most = own;
        }
        if (sum + 3 > c->pages) c->pages = sum + 3;
    }
    c->table_stride = most + c->opt.more;
    c->table = rig_room((uint64_t)c->groups * (uint64_t)p->batch * (uint64_t)c->table_stride *
                        sizeof *c->table);
    int32_t *ids = rig_room((uint64_t)c->pages * sizeof *ids);
    for (uint32_t n = 0; n < c->groups; n++) {
        for (int64_t i = 0; i < c->pages; i++) {
            const int64_t at = test_between(&c->random, 0, i);
            ids[i] = ids[at];
            ids[at] = (int32_t)i;
        }
        int64_t next = 0;
        for (int64_t s = 0; s < p->batch; s++) {
            int32_t *row = c->table + ((int64_t)n * p->batch + s) * c->table_stride;
            for (int64_t i = 0; i < c->table_stride; i++) {
                row[i] = i < pages_of(c, &c->group[n], s) ? ids[next++] : none[(i + s) % 4];
                if (row[i] >= 0 && c->opt.absent && test_random(&c->random) % c->opt.absent == 0)
                    row[i] = i % 3 ? none[i % 4] : (int32_t)c->pages;
            }
        }
    }
    free(ids);
}

/* Where token t of kv head number h of a group lies, in elements; -1: its page is absent. */
static int64_t place_of(const cache *c, const group *g, int64_t s, int32_t h, int64_t t) {
    int64_t at = t, page = s;
    if (c->opt.compact) {
        const int64_t block = c->r->p.block;
        const int64_t first = problem_kv_first(&c->r->p, s);
        assert_ok(
            tess_layout_part_slot(c->r->layout, g->kv_heads[h], first, (first + t) / block, &at));
        at = at * block + t % block;
    }
    if (c->opt.page) {
        if (at / c->opt.page >= c->table_stride) return -1; /* the end of the last slot */
        page = c->table[((g - c->group) * c->r->p.batch + s) * c->table_stride + at / c->opt.page];
        at %= c->opt.page;
        if (page < 0 || page >= c->pages) return -1;
    }
    return page * g->page + at * g->token + h * g->head;
}

/* Writes the keys of a sequence in the order of their positions. A block takes its whole slot, so
 * nothing is left of the block that had it before. */
static void write_head(cache *c, const group *g, int role, int64_t s, int32_t h) {
    const rig *r = c->r;
    const problem *p = &r->p;
    const rig_view from = rig_contiguous(r, role ? TESS_ROLE_V : TESS_ROLE_K);
    const size_t size = r->size[TESS_ROLE_K], row = (size_t)p->head_dim * size;
    const int64_t block = p->block, length = problem_kv_len(p, s),
                  start = p->q_lens ? problem_kv_start(p, s) : 0, batch = p->q_lens ? 0 : s;
    for (int64_t t = 0; t < length; t++) {
        if (c->opt.compact && t % block == 0)
            for (int64_t n = t; n < t + block; n++) {
                const int64_t at = n / c->r->p.block == t / block ? place_of(c, g, s, h, n) : -1;
                if (at < 0 || (!c->opt.page && n >= length)) continue;
                memset(g->image[role] + (size_t)at * size, 0xff, row);
                if (g->scales[role]) g->scales[role][at / p->head_dim] = NAN;
            }
        const int64_t at = place_of(c, g, s, h, t);
        if (at < 0) continue;
        const int64_t row_at =
            batch * from.batch + (start + t) * from.token + g->kv_heads[h] * from.head;
        if (g->scales[role])
            g->scales[role][at / p->head_dim] = r->scales[role][row_at / p->head_dim];
        memcpy(g->image[role] + (size_t)at * size,
               (const char *)r->data[role ? TESS_ROLE_V : TESS_ROLE_K] + (size_t)row_at * size,
               row);
    }
}

/* Of the scales of K, or of V. */
static uint64_t scale_bytes(const cache *c, const group *g) {
    const uint64_t row = (uint64_t)c->r->p.head_dim;
    return (g->bytes + row - 1) / row * sizeof(float);
}

static void fill_group(cache *c, group *g) {
    const problem *p = &c->r->p;
    const size_t size = c->r->size[TESS_ROLE_K];
    const int64_t entries = c->opt.page ? c->pages : p->batch,
                  tokens = c->opt.page ? c->opt.page : g->tokens;
    g->bytes = tokens == 0 || entries == 0
                   ? 0
                   : (uint64_t)((entries - 1) * g->page + (tokens - 1) * g->token +
                                (g->heads - 1) * g->head + p->head_dim) *
                         size;
    for (int role = 0; role < 2; role++) {
        if (c->opt.stretched) {
            g->image[role] = mmap(NULL, g->bytes, PROT_READ | PROT_WRITE,
                                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            if (g->image[role] == MAP_FAILED)
                fail_msg("%llu bytes of address space cannot be mapped",
                         (unsigned long long)g->bytes);
        } else {
            g->image[role] = rig_room(g->bytes);
            memset(g->image[role], 0xff, g->bytes); /* NaN in every type but TESS_I8 */
        }
        if (problem_has_scales(p)) {
            g->scales[role] = rig_room(scale_bytes(c, g));
            memset(g->scales[role], 0xff, scale_bytes(c, g));
        }
        for (int64_t s = 0; s < p->batch; s++)
            for (int32_t h = 0; h < g->heads; h++) write_head(c, g, role, s, h);
    }
}

/* 0: the kernel does not take the plan, and there is nothing to release. */
static int cache_create(cache *c, const rig *r, const options *opt, uint64_t seed) {
    *c = (cache){.r = r, .opt = *opt, .random = seed};
    if (!create_plan(c)) return 0;
    c->groups = c->info.n_storage;
    assert_true(c->groups >= 1 && c->groups <= MOST_GROUPS);
    for (uint32_t n = 0; n < c->groups; n++) shape_group(c, n);
    if (opt->page) make_table(c);
    for (uint32_t n = 0; n < c->groups; n++) fill_group(c, &c->group[n]);
    return 1;
}

static void cache_release(cache *c) {
    for (uint32_t n = 0; n < c->groups; n++) {
        group *g = &c->group[n];
        for (int role = 0; role < 2; role++) {
            if (c->opt.stretched)
                munmap(g->image[role], g->bytes);
            else
                free(g->image[role]);
            free(g->scales[role]);
        }
        free(g->kv_heads);
    }
    free(c->table);
    tess_plan_release(c->plan);
}

/* ------------------------------------------------------------------ a run */

/* `step`: jobs of a call; 0: all at once. */
static void cache_run(const cache *c, uint64_t step, const rig_outputs *out) {
    const rig *r = c->r;
    tess_device *device = r->target->device;
    tess_run_desc run = {.struct_size = sizeof run};
    tess_tensor pools[4][MOST_GROUPS] = {0};
    tess_buffer all[3 + 4 * MOST_GROUPS + 2];
    int n_all = 0;
    tess_tensor *const tensors[5] = {&run.q, NULL, NULL, &run.o, &run.lse};
    const void *const host[5] = {r->data[0], NULL, NULL, out->o, out->lse};
    for (int role = 0; role < 5; role++) {
        if (!tensors[role]) continue;
        const rig_view v = rig_contiguous(r, (tess_role)role);
        tensors[role]->buffer = all[n_all++] = test_upload(device, host[role], r->bytes[role]);
        tensors[role]->stride_batch = v.batch;
        tensors[role]->stride_token = v.token;
        tensors[role]->stride_head = v.head;
    }
    for (uint32_t n = 0; n < c->groups; n++)
        for (int role = 0; role < 2; role++) {
            const group *g = &c->group[n];
            tess_tensor *t = &pools[role][n];
            *t = (tess_tensor){tess_host_buffer(g->image[role], g->bytes), g->page, g->token,
                               g->head};
            if (g->bytes == 0) t->buffer.kind = TESS_BUFFER_NONE;
            if (g->bytes > 0 && !r->target->host_memory)
                t->buffer = all[n_all++] = test_upload(device, g->image[role], g->bytes);
            if (!g->scales[role] || g->bytes == 0) continue;
            const int64_t row = r->p.head_dim;
            pools[2 + role][n] = (tess_tensor){
                all[n_all++] = test_upload(device, g->scales[role], scale_bytes(c, g)),
                g->page / row, g->token / row, g->head / row};
        }
    if (c->groups > 1) {
        run.k_pools = pools[0];
        run.v_pools = pools[1];
        if (problem_has_scales(&r->p)) {
            run.k_scale_pools = pools[2];
            run.v_scale_pools = pools[3];
        }
    } else {
        run.k = pools[0][0];
        run.v = pools[1][0];
        run.k_scale = pools[2][0];
        run.v_scale = pools[3][0];
    }
    const uint64_t entries = (uint64_t)c->groups * (uint64_t)r->p.batch * (uint64_t)c->table_stride;
    if (c->opt.page) {
        run.pages = c->pages;
        run.table_stride = c->table_stride;
        if (entries > 0)
            run.block_table = all[n_all++] =
                test_upload(device, c->table, entries * sizeof *c->table);
    }
    tess_buffer work = {0};
    if (c->info.workspace_bytes) assert_ok(tess_alloc(device, c->info.workspace_bytes, &work));
    run.workspace = work;
    if (step == 0) assert_ok(tess_run(c->plan, &run));
    for (; step && run.first_job < c->info.n_jobs; run.first_job += step) {
        run.job_count =
            step < c->info.n_jobs - run.first_job ? step : c->info.n_jobs - run.first_job;
        assert_ok(tess_run(c->plan, &run));
        assert_ok(tess_wait(device, UINT64_MAX));
    }
    assert_ok(tess_wait(device, UINT64_MAX));
    test_download(device, run.o.buffer, out->o, r->bytes[TESS_ROLE_O]);
    test_download(device, run.lse.buffer, out->lse, r->bytes[TESS_ROLE_LSE]);
    for (int n = 0; n < n_all; n++) assert_ok(tess_free(device, &all[n]));
    assert_ok(tess_free(device, &work));
}

static double tolerance_of(const rig *r) {
    return r->p.dtype == TESS_F32 ? 1e-5 : r->p.dtype == TESS_F16 ? 4e-3 : 3e-2;
}

/* The bits of the plain run, or where the plan has got another kernel, its values. */
static void compare(const rig_pair *x, const cache *c, const char *what) {
    if (strcmp(c->info.kernel, x->r.info.kernel) == 0)
        rig_pair_same(what, x);
    else
        rig_check(&x->r, x->got.o, x->got.lse, tolerance_of(&x->r));
}

static void run_one(const rig_pair *x, const char *line, const options *opt, uint64_t seed,
                    uint64_t step) {
    cache c;
    char what[512];
    if (!cache_create(&c, &x->r, opt, seed)) return;
    memset(x->got.o, 0x9d, x->r.bytes[TESS_ROLE_O]);
    cache_run(&c, step, &x->got);
    snprintf(what, sizeof what, "%s page=%d compact=%d head_major=%d groups=%u", line,
             (int)opt->page, opt->compact, opt->head_major, (unsigned)c.groups);
    compare(x, &c, what);
    cache_release(&c);
}

/* ------------------------------------------------------------------ properties */

/* Pages smaller and larger than the block, blocks that are no power of two, every dtype, groups of
 * heads, packed rows, lengths of 0, splits. `compact` where the layout can be. */
static const struct {
    const char *line;
    int compact;
} problems[] = {
    {"pattern=dense heads=2 kv_heads=1 head_dim=64 q_len=37 kv_len=300", 0},
    {"pattern=dense causal=0 heads=2 head_dim=40 batch=3 q_len=5 kv_len=75 dtype=f16", 0},
    {"pattern=s2 block=16 local=2 stride=5 heads=6 kv_heads=3 head_dim=32 q_len=21 kv_len=600", 1},
    {("pattern=s2 block=7 local=3 stride=4 offset=1 heads=8 kv_heads=2 per_kv_head=1 head_dim=72 "
      "batch=2 q_len=9 kv_len=333 dtype=bf16"),
     1},
    {("pattern=s2 block=64 local=2 stride=6 heads=4 kv_heads=4 dense_heads=1 head_dim=128 q_len=1 "
      "kv_len=1500 kv_split=3 dtype=f16"),
     1},
    {("pattern=s2 block=24 local=1 stride=4 heads=4 kv_heads=2 dense_heads=1 head_dim=16 "
      "q_lens=3,0,40,1 kv_lens=200,90,0,517"),
     1},
    {"pattern=window left=50 sinks=5 block=16 heads=4 kv_heads=2 head_dim=24 q_len=70 kv_len=400",
     1},
    {"pattern=s2 block=16 local=1 stride=8 heads=8 kv_heads=1 head_dim=256 q_len=2 kv_len=700", 1},
    {("pattern=s2 block=16 local=2 stride=5 heads=8 kv_heads=4 dense_heads=1 head_dim=40 batch=2 "
      "q_len=3 kv_len=500 dtype=f16 kv_dtype=e4m3"),
     1},
    {"pattern=dense heads=4 kv_heads=2 head_dim=24 q_lens=30,2 kv_lens=30,290 kv_dtype=i8", 0},
    /* Parts of the keys, in every phase of their fixed blocks. */
    {("pattern=s2 block=16 local=2 stride=5 heads=6 kv_heads=3 dense_heads=1 head_dim=40 batch=3 "
      "q_len=2 kv_len=210 kv_first=16,112,704 dtype=f16"),
     1},
    {("pattern=s2 block=24 local=3 stride=4 heads=4 kv_heads=2 head_dim=128 q_lens=1,3,1,1 "
      "kv_lens=200,90,217,0 kv_first=48,24,72,240 q_first=2000 dtype=bf16"),
     1},
    {("pattern=window left=90 sinks=70 block=16 heads=2 head_dim=40 batch=3 q_len=1 kv_len=170 "
      "kv_first=16,64,400"),
     1},
    /* As many jobs as fill a device of 3 or of 132 multiprocessors. */
    {"pattern=dense heads=12 kv_heads=3 head_dim=128 q_len=1 kv_len=500 dtype=bf16", 1},
    {"pattern=dense heads=3 head_dim=128 q_len=1 kv_len=500 dtype=f16 kv_dtype=i8", 1},
    {("pattern=s2 block=64 local=2 stride=3 per_kv_head=1 heads=6 kv_heads=3 head_dim=128 q_len=1 "
      "kv_len=700 dtype=f16"),
     1},
    {"pattern=dense heads=16 kv_heads=8 head_dim=128 batch=13 q_len=1 kv_len=100 dtype=f16", 1},
    {("pattern=s2 block=16 local=2 stride=3 per_kv_head=1 heads=8 kv_heads=8 head_dim=128 "
      "batch=13 q_len=1 kv_len=200 dtype=bf16"),
     1},
};
enum { PROBLEMS = sizeof problems / sizeof problems[0] };

void test_pages(void **state) {
    const test_target *target = *state;
    for (int n = 0; n < PROBLEMS; n++) {
        rig_pair x;
        if (!rig_pair_create(&x, target, problems[n].line)) continue;
        for (int i = 0; i < PAGE_SIZES; i++) {
            if (target->software && i != n % PAGE_SIZES) continue;
            const options opt = {.page = page_sizes[i],
                                 .head_major = (n + i) % 2,
                                 .pad = i % 3 ? 0 : 8,
                                 .more = i % 2 * 3};
            run_one(&x, problems[n].line, &opt, (uint64_t)(n * 8 + i), 0);
        }
        rig_pair_release(&x);
    }
}

void test_slots(void **state) {
    const test_target *target = *state;
    for (int n = 0; n < PROBLEMS; n++) {
        rig_pair x;
        if (!problems[n].compact) continue;
        if (!rig_pair_create(&x, target, problems[n].line)) continue;
        for (int i = -1; i < PAGE_SIZES; i++) {
            if (target->software && i != (n + 2) % (PAGE_SIZES + 1) - 1) continue;
            const options opt = {.page = i < 0 ? 0 : page_sizes[i],
                                 .compact = 1,
                                 .head_major = (n + i) % 2 != 0,
                                 .more = i == 2};
            run_one(&x, problems[n].line, &opt, (uint64_t)(n * 8 + i + 100), i == 1 ? 3 : 0);
        }
        rig_pair_release(&x);
    }
}

/* A mask whose heads take different numbers of slots in turn, so that storage groups have no heads
 * in a row. */
void test_mask_slots(void **state) {
    enum { HEADS = 4, BLOCKS = 20 };
    static uint8_t mask[HEADS][BLOCKS][BLOCKS];
    const int64_t shape[3] = {HEADS, BLOCKS, BLOCKS};
    char path[128], line[256], error[256];
    for (int h = 0; h < HEADS; h++)
        for (int i = 0; i < BLOCKS; i++)
            for (int j = 0; j <= i; j++) mask[h][i][j] = i - j < 2 || (h % 2 && j % 3 == 0);
    snprintf(path, sizeof path, "/tmp/tessera-test-%ld-slots.npy", (long)getpid());
    if (npy_write(path, NPY_BOOL, 3, shape, mask, error, sizeof error) != 0) fail_msg("%s", error);
    /* all keys, and parts of them */
    for (int parts = 0; parts < 2; parts++) {
        rig_pair x;
        snprintf(line, sizeof line,
                 "pattern=blocks block=16 mask=%s heads=4 head_dim=32 batch=2 q_len=9 kv_len=%s "
                 "kv_split=2",
                 path, parts ? "150 kv_first=32,160" : "310");
        if (!rig_pair_create(&x, *state, line)) break;
        for (int page = 0; page <= 64; page += 32) {
            cache c;
            const options opt = {.page = page, .compact = 1, .head_major = page == 32};
            if (!cache_create(&c, &x.r, &opt, (uint64_t)page)) break;
            assert_int_equal(c.groups, 2);
            assert_int_equal(c.group[0].kv_heads[1], 2);
            cache_run(&c, page == 64 ? 5 : 0, &x.got);
            compare(&x, &c, "slots of a mask");
            cache_release(&c);
        }
        rig_pair_release(&x);
    }
    remove(path);
}

/* ------------------------------------------------------------------ absent pages */

/* The row as the reference would have it without the keys whose pages are absent. */
static void row_of(const cache *c, int64_t s, int32_t head, int64_t n, double *o, double *lse) {
    const rig *r = c->r;
    const problem *p = &r->p;
    const int64_t length = problem_kv_len(p, s), position = length - problem_q_len(p, s) + n,
                  entry = p->q_lens ? 0 : s, start = p->q_lens ? problem_kv_start(p, s) : 0;
    const rig_view vq = rig_contiguous(r, TESS_ROLE_Q), vk = rig_contiguous(r, TESS_ROLE_K);
    const int64_t q = entry * vq.batch + (problem_q_start(p, s) + n) * vq.token + head * vq.head;
    const int32_t kv_head = head / (p->heads / p->kv_heads);
    const double scale = p->scale != 0 ? p->scale : 1 / sqrt((double)p->head_dim);
    double most = -INFINITY, sum = 0;
    memset(o, 0, (size_t)p->head_dim * sizeof *o);
    for (int64_t t = 0; t < length; t++) {
        if (!reference_kept(p, head, position, t, length) ||
            place_of(c, &c->group[0], s, kv_head, t) < 0)
            continue;
        const int64_t k = entry * vk.batch + (start + t) * vk.token + kv_head * vk.head;
        double score = 0;
        for (int e = 0; e < p->head_dim; e++)
            score += load_element(p->dtype, r->data[0], q + e) *
                     load_element(p->kv_dtype, r->data[1], k + e);
        score *= scale * (r->scales[0] ? (double)r->scales[0][k / p->head_dim] : 1);
        const double next = score > most ? score : most, keep = exp(most - next),
                     weight = exp(score - next),
                     v_scale = r->scales[1] ? (double)r->scales[1][k / p->head_dim] : 1;
        for (int e = 0; e < p->head_dim; e++)
            o[e] = o[e] * keep + weight * v_scale * load_element(p->kv_dtype, r->data[2], k + e);
        sum = sum * keep + weight;
        most = next;
    }
    for (int e = 0; e < p->head_dim; e++) o[e] = sum > 0 ? o[e] / sum : 0;
    *lse = sum > 0 ? most + log(sum) : -INFINITY;
}

static void check_rows(const cache *c, const rig_outputs *got, const char *what) {
    const rig *r = c->r;
    const problem *p = &r->p;
    const rig_view vo = rig_contiguous(r, TESS_ROLE_O), vl = rig_contiguous(r, TESS_ROLE_LSE);
    const double tolerance = tolerance_of(r);
    double o[256], lse;
    for (int64_t s = 0; s < p->batch; s++)
        for (int32_t head = 0; head < p->heads; head++)
            for (int64_t n = 0; n < problem_q_len(p, s); n++) {
                const int64_t token = problem_q_start(p, s) + n, entry = p->q_lens ? 0 : s;
                row_of(c, s, head, n, o, &lse);
                const double value = got->lse[entry * vl.batch + token * vl.token + head * vl.head];
                if (isinf(lse) ? value != lse : !(fabs(value - lse) <= tolerance * (1 + fabs(lse))))
                    fail_msg("%s: sequence %d head %d row %d: LSE is %.9g and should be %.9g", what,
                             (int)s, (int)head, (int)n, value, lse);
                for (int e = 0; e < p->head_dim; e++) {
                    const double x = load_element(
                        p->dtype, got->o, entry * vo.batch + token * vo.token + head * vo.head + e);
                    if (!(fabs(x - o[e]) <= tolerance * (1 + fabs(o[e]))))
                        fail_msg("%s: sequence %d head %d row %d element %d: %.9g and should be "
                                 "%.9g",
                                 what, (int)s, (int)head, (int)n, e, x, o[e]);
                }
            }
}

/* Ids that are none, among them INT32_MIN and the number of pages, count as absent: neither wild
 * reads nor NaN. Every page of a sequence may be. */
void test_absent(void **state) {
    static const struct {
        const char *line;
        int32_t page;
        int compact;
        uint64_t absent;
    } cases[] = {
        {"pattern=dense heads=2 kv_heads=1 head_dim=64 q_len=33 kv_len=300", 16, 0, 3},
        {"pattern=dense heads=2 head_dim=32 batch=3 q_len=1 kv_len=200 dtype=f16", 32, 0, 2},
        {"pattern=dense heads=1 head_dim=24 batch=2 q_len=70 kv_len=90 kv_split=2", 16, 0, 1},
        {"pattern=dense heads=2 head_dim=32 batch=2 q_len=3 kv_len=200 kv_dtype=e4m3", 16, 0, 2},
        {"pattern=dense block=16 heads=2 head_dim=48 kv_len=600 q_len=1 dtype=f16 kv_dtype=i8", 16,
         0, 3},
        {("pattern=s2 block=16 local=2 stride=4 heads=4 kv_heads=2 head_dim=40 q_len=18 "
          "kv_len=500 dtype=bf16"),
         64, 0, 3},
        {"pattern=s2 block=24 local=2 stride=4 heads=4 kv_heads=2 head_dim=16 q_len=40 kv_len=600",
         16, 1, 4},
        {"pattern=window left=90 sinks=5 block=16 heads=2 head_dim=128 q_len=3 kv_len=400", 16, 1,
         2},
        {("pattern=dense heads=2 kv_heads=1 head_dim=128 batch=2 q_len=40 kv_len=1100 "
          "kv_split=1 dtype=bf16"),
         64, 0, 6},
        {("pattern=s2 block=32 local=8 stride=4 heads=2 head_dim=64 q_len=70 kv_len=900 "
          "dtype=f16"),
         16, 1, 9},
    };
    const test_target *target = *state;
    for (int n = 0; n < (int)(sizeof cases / sizeof cases[0]); n++) {
        rig_pair x;
        cache c;
        if (!rig_pair_create(&x, target, cases[n].line)) continue;
        const options opt = {
            .page = cases[n].page, .compact = cases[n].compact, .absent = cases[n].absent};
        if (cache_create(&c, &x.r, &opt, (uint64_t)n + 7)) {
            assert_int_equal(c.groups, 1);
            cache_run(&c, 0, &x.got);
            check_rows(&c, &x.got, cases[n].line);
            cache_release(&c);
        }
        rig_pair_release(&x);
    }
}

/* ------------------------------------------------------------------ places past 2^31 */

/* Pages whose elements lie on both sides of 2^31 of them, by a sparse mapping. */
void test_far_pages(void **state) {
    const char *line = "pattern=dense heads=2 kv_heads=1 head_dim=16 q_len=3 kv_len=70 dtype=f16";
    const test_target *target = *state;
    rig_pair x;
    if (!target->host_memory || test_sanitized()) return;
    if (!rig_pair_create(&x, target, line)) return;
    const options opt = {.page = 16, .stretched = (1LL << 29) + 48};
    run_one(&x, line, &opt, 3, 0);
    rig_pair_release(&x);
}

/* ------------------------------------------------------------------ refusals */

/* A run with a wrong `field` is refused, and names it. */
static void assert_refused(const cache *c, const tess_run_desc *run, const char *field) {
    assert_error(tess_run(c->plan, run), TESS_ERROR_INVALID, "tess_run", field);
}

/* Pools, where there are several storage groups, and K and V where there is one. */
static void refuse_pools(const cache *c, tess_run_desc *run, const tess_tensor *pools) {
    if (c->groups > 1) {
        assert_refused(c, run, "k");
        run->k.buffer.kind = TESS_BUFFER_NONE;
        assert_refused(c, run, "k_pools");
        run->k_pools = pools;
        assert_refused(c, run, "v");
        run->v.buffer.kind = TESS_BUFFER_NONE;
        assert_refused(c, run, "v_pools");
        run->v_pools = pools;
        return;
    }
    run->k_pools = pools;
    assert_refused(c, run, "k_pools");
    run->k_pools = NULL;
    run->v_pools = pools;
    assert_refused(c, run, "v_pools");
    run->v_pools = NULL;
}

/* Pages, the table of them, and outputs that lie in the table or in the pools, which begin where
 * `out` does. */
static void refuse_tables(const cache *c, tess_run_desc *run, const tess_buffer *out) {
    assert_refused(c, run, "pages");
    run->pages = -1;
    assert_refused(c, run, "pages");
    run->pages = 1;
    assert_refused(c, run, "table_stride");
    run->table_stride = c->table_stride - 1;
    assert_refused(c, run, "table_stride");
    run->table_stride = c->table_stride;
    assert_refused(c, run, "block_table");
    run->block_table = run->o.buffer;
    assert_refused(c, run, "o");
    assert_error_has("block_table");
    run->block_table.offset += 1 << 18;
    run->block_table.size = run->block_table.offset + 4;
    assert_refused(c, run, "block_table");
    run->block_table.size = out->size;
    run->o.buffer.offset = out->offset;
    run->q.buffer.offset += 1 << 19;
    assert_refused(c, run, "o");
    assert_error_has(c->groups > 1 ? "k_pools[0]" : " k,");
    run->o.buffer.offset += 3 << 18;
    run->block_table.offset = out->offset + (1 << 18);
}

/* What a run of a plan with pages or pools refuses, by the name of the field. */
void test_refusals(void **state) {
    const test_target *target = *state;
    rig r;
    rig_create(&r, target,
               "pattern=s2 block=16 local=2 stride=4 heads=4 kv_heads=4 dense_heads=1 head_dim=16 "
               "batch=2 q_len=2 kv_len=300",
               NULL, NULL);
    if (r.refused) return;
    for (int compact = 0; compact < 2; compact++) {
        cache c;
        const options opt = {.page = 32, .compact = compact};
        if (!cache_create(&c, &r, &opt, 5)) break;
        assert_int_equal(c.groups, 1 + compact);
        tess_run_desc run = {.struct_size = sizeof run};
        tess_tensor pools[2] = {{{0}, 0, 0, 0}};
        tess_buffer out = test_upload(target->device, NULL, 1 << 20);
        if (c.info.workspace_bytes)
            run.workspace = test_upload(target->device, NULL, c.info.workspace_bytes);
        assert_ok(tess_plan_tensor(c.plan, TESS_ROLE_Q, out, &run.q, NULL));
        assert_ok(tess_plan_tensor(c.plan, TESS_ROLE_O, out, &run.o, NULL));
        run.o.buffer.offset += 1 << 19;
        uint64_t bytes;
        for (uint32_t s = 0; s < c.groups; s++)
            assert_ok(tess_plan_pool(c.plan, TESS_ROLE_K, s, 1, out, &pools[s], &bytes));
        run.k = run.v = pools[0];
        assert_error(tess_plan_tensor(c.plan, TESS_ROLE_K, out, &run.k, NULL), TESS_ERROR_INVALID,
                     "tess_plan_tensor", "role");
        refuse_pools(&c, &run, pools);
        refuse_tables(&c, &run, &out);
        run.pages = (1 << 18) / (int64_t)bytes;
        double seconds = -1;
        run.device_seconds = &seconds;
        if (compact) {
            run.stream.extra = &run;
            assert_error(tess_run(c.plan, &run), TESS_ERROR_UNSUPPORTED, "tess_run", "stream");
            run.stream.extra = NULL;
        }
        assert_true(seconds == -1);
        assert_ok(tess_run(c.plan, &run));
        assert_true(seconds >= 0);
        assert_ok(tess_wait(target->device, UINT64_MAX));
        assert_ok(tess_free(target->device, &out));
        assert_ok(tess_free(target->device, &run.workspace));
        cache_release(&c);
    }
    rig_release(&r);
}

/* A layout that drops nothing cannot be compact. */
void test_compact_refused(void **state) {
    const test_target *target = *state;
    rig r;
    rig_create(&r, target,
               "pattern=s2 causal=0 block=16 local=1 stride=3 heads=2 head_dim=16 "
               "q_len=4 kv_len=50",
               NULL, NULL);
    if (r.refused) return;
    tess_plan_desc desc;
    int64_t *cu = NULL;
    tess_plan *plan = NULL;
    memset(&desc, 0, sizeof desc);
    assert_int_equal(problem_plan_desc(&r.p, &desc, &cu), 0);
    desc.flags |= TESS_PLAN_COMPACT;
    assert_error(tess_plan_create(target->device, r.layout, &desc, &plan), TESS_ERROR_INVALID,
                 "tess_plan_create", "flags");
    rig_release(&r);
}
