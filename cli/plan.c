/* SPDX-License-Identifier: Apache-2.0 */
/* `tessera plan`: what a problem costs on a device, without running it. */
#include <cjson/cJSON.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "cache.h"
#include "cli.h"
#include "text.h"

static const char help[] =
    "usage: tessera plan WORDS [--backend B] [--json]\n\n"
    "Plans a problem on a device and tells what running it takes: jobs, (query, key) pairs, FLOPs, "
    "bytes moved, workspace,\n"
    "the KV blocks that each kv head keeps, and how long the planning took. With op=decode also "
    "the KV cache:\n"
    "ring and fixed slots, pages and bytes of each storage group.\n\n"
    "  --backend B   the device, as TESSERA_BACKEND: a name, name:index, or a list in order of "
    "preference\n"
    "  --json        the same as JSON with stable keys\n"
    "  --help        this text\n"
    "  --version     the version\n\n";

typedef struct planned {
    problem p;
    tess_runtime *runtime;
    tess_device *device;
    tess_layout *layout;
    tess_plan *plan;
    tess_device_info device_info;
    tess_layout_info layout_info;
    tess_plan_info info;
    cache cache; /* of op=decode */
    double layout_seconds;
} planned;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static tess_status make(planned *x) {
    x->device_info.struct_size = sizeof x->device_info;
    x->layout_info.struct_size = sizeof x->layout_info;
    x->info.struct_size = sizeof x->info;
    double start = now();
    tess_status status = problem_layout(&x->p, x->runtime, &x->layout);
    x->layout_seconds = now() - start;
    if (status != TESS_OK) return status;
    tess_plan_desc desc;
    int64_t *cu = NULL;
    if (problem_plan_desc(&x->p, &desc, &cu) != 0) return TESS_ERROR_OUT_OF_MEMORY;
    status = tess_plan_create(x->device, x->layout, &desc, &x->plan);
    free(cu);
    if (status == TESS_OK) status = tess_plan_query(x->plan, &x->info);
    if (status == TESS_OK) status = tess_layout_query(x->layout, &x->layout_info);
    if (status == TESS_OK) status = tess_device_query(x->device, &x->device_info);
    if (status == TESS_OK && x->p.op == PROBLEM_DECODE)
        status = cache_create(&x->cache, &x->p, x->layout);
    return status;
}

static uint64_t block_bytes(const problem *p) {
    /* K and V */
    return 2 * (uint64_t)p->block *
           ((uint64_t)p->head_dim * problem_kv_size(p) + (problem_has_scales(p) ? 4 : 0));
}

static tess_kv_info kv_at(const planned *x, int32_t kv_head) {
    tess_kv_info kv = {.struct_size = sizeof kv};
    tess_layout_kv(x->layout, kv_head, &kv); /* cannot fail for a head of the layout */
    return kv;
}

static int same_kv(const tess_kv_info *a, const tess_kv_info *b) {
    return a->blocks_kept == b->blocks_kept && a->blocks_allocated == b->blocks_allocated;
}

/* ------------------------------------------------------------------ text */

static void print_kv(const planned *x) {
    char a[TEXT_SIZE], b[TEXT_SIZE], c[TEXT_SIZE], d[TEXT_SIZE], range[32];
    uint64_t bytes = block_bytes(&x->p);
    printf("\nKV blocks of %" PRId32 " tokens a sequence of %" PRId64
           " tokens keeps, per kv head\n",
           x->p.block, x->layout_info.max_tokens);
    printf("  %-10s %10s %20s %20s %12s %12s\n", "kv head", "all", "kept", "allocated", "bytes all",
           "allocated");
    for (int32_t first = 0, next; first < x->p.kv_heads; first = next) {
        tess_kv_info kv = kv_at(x, first);
        for (next = first + 1; next < x->p.kv_heads; next++) {
            tess_kv_info other = kv_at(x, next);
            if (!same_kv(&kv, &other)) break;
        }
        double all = kv.blocks ? (double)kv.blocks : 1;
        snprintf(range, sizeof range, next - first > 1 ? "%" PRId32 "-%" PRId32 : "%" PRId32, first,
                 next - 1);
        snprintf(a, sizeof a, "%" PRId64 " (%.1f %%)", kv.blocks_kept,
                 (double)kv.blocks_kept / all * 100);
        snprintf(b, sizeof b, "%" PRId64 " (%.1f %%)", kv.blocks_allocated,
                 (double)kv.blocks_allocated / all * 100);
        printf("  %-10s %10" PRId64 " %20s %20s %12s %12s\n", range, kv.blocks, a, b,
               text_bytes(c, sizeof c, (double)bytes * (double)kv.blocks),
               text_bytes(d, sizeof d, (double)bytes * (double)kv.blocks_allocated));
    }
}

static tess_storage_info storage_at(const planned *x, uint32_t storage, int32_t *kv_heads) {
    tess_storage_info info = {.struct_size = sizeof info};
    tess_layout_storage(x->layout, storage, &info, kv_heads); /* cannot fail below n_storage */
    return info;
}

static int64_t tokens_at(const planned *x, uint32_t storage) {
    int64_t tokens = 0;
    tess_layout_pages(x->layout, storage, x->layout_info.max_tokens, 0, &tokens);
    return tokens;
}

static void fixed_slots(const tess_storage_info *info, char *text, size_t size) {
    if (info->ring_slots == 0)
        snprintf(text, size, "all blocks");
    else if (info->stride == 0)
        snprintf(text, size, "%" PRId64, info->slots_per_stride);
    else
        snprintf(text, size, "%" PRId64 " of %" PRId64 " blocks", info->slots_per_stride,
                 info->stride);
}

static void print_storage(const planned *x) {
    char fixed[64], bytes[TEXT_SIZE];
    const uint64_t token_bytes = block_bytes(&x->p) / (uint64_t)x->p.block;
    printf("\nStorage groups of a compact KV cache, for the same sequence\n");
    printf("  %-10s %10s %10s %24s %14s %12s\n", "group", "kv heads", "ring", "fixed slots",
           "token places", "bytes");
    for (uint32_t s = 0; s < x->layout_info.n_storage; s++) {
        const tess_storage_info info = storage_at(x, s, NULL);
        const int64_t tokens = tokens_at(x, s);
        fixed_slots(&info, fixed, sizeof fixed);
        printf("  %-10" PRIu32 " %10" PRIu32 " %10" PRId64 " %24s %14" PRId64 " %12s\n", s,
               info.n_kv_heads, info.ring_slots, fixed, tokens,
               text_bytes(bytes, sizeof bytes,
                          (double)token_bytes * (double)tokens * info.n_kv_heads));
    }
}

/* K and V of the whole batch, each key at a place of its own. */
static uint64_t in_place_bytes(const planned *x) {
    return (uint64_t)problem_kv_tokens(&x->p) * (uint64_t)x->p.kv_heads * block_bytes(&x->p) /
           (uint64_t)x->p.block;
}

/* Pages that the longest sequence takes; 0 without pages. */
static int64_t longest_pages(const planned *x, const cache_group *g) {
    return x->p.page ? (g->tokens + x->p.page - 1) / x->p.page : 0;
}

/* Slots that the longest sequence takes: its blocks where K and V are not compact. */
static int64_t slots_of(const planned *x, const cache_group *g) {
    return (g->tokens + x->p.block - 1) / x->p.block;
}

static void print_cache(const planned *x) {
    const cache *c = &x->cache;
    char ring[24], fixed[64], a[TEXT_SIZE], b[TEXT_SIZE], page[48] = "no pages";
    const uint64_t bytes = cache_bytes(c), all = in_place_bytes(x);
    if (x->p.page) snprintf(page, sizeof page, "pages of %" PRId32 " tokens", x->p.page);
    printf("\nKV cache of %" PRId64 " sequence%s, %s, %s: %s, %s of all keys in place\n",
           x->p.batch, x->p.batch == 1 ? "" : "s", x->p.compact ? "compact" : "not compact", page,
           text_bytes(a, sizeof a, (double)bytes),
           text_percent(b, sizeof b, all ? (double)bytes / (double)all : 1));
    printf("  %-6s %9s %6s %20s %7s %13s %12s %10s %10s\n", "group", "kv heads", "ring",
           "fixed slots", "slots", "token places", "pages of one", "pages", "bytes");
    for (uint32_t s = 0; s < c->n_groups; s++) {
        const cache_group *g = &c->groups[s];
        snprintf(ring, sizeof ring, "-");
        snprintf(fixed, sizeof fixed, "-");
        if (x->p.compact) {
            const tess_storage_info info = storage_at(x, s, NULL);
            snprintf(ring, sizeof ring, "%" PRId64, info.ring_slots);
            fixed_slots(&info, fixed, sizeof fixed);
        }
        printf("  %-6" PRIu32 " %9" PRId32 " %6s %20s %7" PRId64 " %13" PRId64 " %12" PRId64
               " %10" PRId64 " %10s\n",
               s, g->heads, ring, fixed, slots_of(x, g), g->tokens, longest_pages(x, g), g->pages,
               text_bytes(a, sizeof a, 2 * (double)g->bytes));
    }
}

static void print_text(const planned *x) {
    char a[TEXT_SIZE], b[TEXT_SIZE];
    const tess_plan_info *i = &x->info;
    double share = i->dense_pairs ? (double)i->kept_pairs / (double)i->dense_pairs : 1;
    printf("device             %s (%s)\n", x->device_info.id, x->device_info.name);
    printf("kernel             %s\n", i->kernel);
    if (i->few_kernel[0]) printf("kernel, few rows   %s\n", i->few_kernel);
    printf("jobs               %s, %s of them merges\n", text_count(a, sizeof a, i->n_jobs),
           text_count(b, sizeof b, i->n_merge_jobs));
    if (i->n_columns)
        printf("columns            %s of the jobs, of %" PRIu32 " keys\n",
               text_count(a, sizeof a, i->n_columns), i->tile_keys);
    printf("tile rows          %" PRIu32 "\n", i->tile_rows);
    if (i->few_kernel[0]) printf("tile rows, few     %" PRIu32 "\n", i->few_tile_rows);
    printf("kept pairs         %s (%s of dense)\n", text_count(a, sizeof a, i->kept_pairs),
           text_percent(b, sizeof b, share));
    printf("dense pairs        %s\n", text_count(a, sizeof a, i->dense_pairs));
    if (i->kept_pairs)
        printf("ideal saving       %.2f x\n", (double)i->dense_pairs / (double)i->kept_pairs);
    printf("FLOPs              %s\n", text_rate(a, sizeof a, i->flops, "FLOP"));
    printf("bytes moved        %s at least\n", text_bytes(a, sizeof a, (double)i->bytes_min));
    printf("workspace          %s\n", text_bytes(a, sizeof a, (double)i->workspace_bytes));
    printf("tables             %s on the host, %s on the device\n",
           text_bytes(a, sizeof a, (double)i->host_bytes),
           text_bytes(b, sizeof b, (double)i->device_bytes));
    printf("planning time      %s, and %s for the layout\n",
           text_seconds(a, sizeof a, i->create_seconds),
           text_seconds(b, sizeof b, x->layout_seconds));
    printf("classes of heads   %" PRIu32 "\n", x->layout_info.n_classes);
    printf("coverage           %s\n", text_percent(a, sizeof a, x->layout_info.coverage));
    printf("KV-efficient       %s\n", x->layout_info.kv_efficient ? "yes" : "no");
    print_kv(x);
    if (x->p.op == PROBLEM_DECODE)
        print_cache(x);
    else
        print_storage(x);
}

/* ------------------------------------------------------------------ JSON */

/* Integers are written as such: a double would round them above 2^53. */
static void add_u64(cJSON *object, const char *key, uint64_t value) {
    char text[24];
    snprintf(text, sizeof text, "%" PRIu64, value);
    cJSON_AddRawToObject(object, key, text);
}

static void add_storages(cJSON *root, const planned *x) {
    cJSON *groups = cJSON_AddArrayToObject(root, "kv_storage");
    int32_t *ids = malloc((size_t)x->p.kv_heads * sizeof *ids);
    for (uint32_t s = 0; ids && s < x->layout_info.n_storage; s++) {
        const tess_storage_info info = storage_at(x, s, ids);
        cJSON *group = cJSON_CreateObject();
        cJSON_AddItemToObject(group, "kv_heads", cJSON_CreateIntArray(ids, (int)info.n_kv_heads));
        add_u64(group, "ring_slots", (uint64_t)info.ring_slots);
        add_u64(group, "stride", (uint64_t)info.stride);
        add_u64(group, "slots_per_stride", (uint64_t)info.slots_per_stride);
        add_u64(group, "tokens", (uint64_t)tokens_at(x, s));
        cJSON_AddItemToArray(groups, group);
    }
    free(ids);
}

static void add_cache(cJSON *root, const planned *x) {
    const cache *c = &x->cache;
    cJSON *object = cJSON_AddObjectToObject(root, "cache");
    add_u64(object, "page", (uint64_t)x->p.page);
    cJSON_AddBoolToObject(object, "compact", x->p.compact);
    add_u64(object, "bytes", cache_bytes(c));
    add_u64(object, "bytes_in_place", in_place_bytes(x));
    add_u64(object, "block_table_bytes", c->table_bytes);
    cJSON *groups = cJSON_AddArrayToObject(object, "groups");
    for (uint32_t s = 0; s < c->n_groups; s++) {
        const cache_group *g = &c->groups[s];
        cJSON *group = cJSON_CreateObject();
        cJSON_AddItemToObject(group, "kv_heads", cJSON_CreateIntArray(g->kv_heads, g->heads));
        if (x->p.compact) {
            const tess_storage_info info = storage_at(x, s, NULL);
            add_u64(group, "ring_slots", (uint64_t)info.ring_slots);
            add_u64(group, "stride", (uint64_t)info.stride);
            add_u64(group, "slots_per_stride", (uint64_t)info.slots_per_stride);
        }
        add_u64(group, "slots", (uint64_t)slots_of(x, g));
        add_u64(group, "tokens", (uint64_t)g->tokens);
        add_u64(group, "pages_longest", (uint64_t)longest_pages(x, g));
        add_u64(group, "pages", (uint64_t)g->pages);
        add_u64(group, "bytes", 2 * g->bytes);
        cJSON_AddItemToArray(groups, group);
    }
}

static int print_json(const planned *x) {
    const tess_plan_info *i = &x->info;
    cJSON *root = cJSON_CreateObject();
    int length = problem_format(&x->p, NULL, 0);
    char *line = malloc((size_t)length + 1);
    if (line) problem_format(&x->p, line, (size_t)length + 1);
    cJSON_AddStringToObject(root, "problem", line ? line : "");
    free(line);
    cJSON_AddStringToObject(root, "device", x->device_info.id);
    cJSON_AddStringToObject(root, "kernel", i->kernel);
    cJSON_AddStringToObject(root, "few_kernel", i->few_kernel);
    add_u64(root, "jobs", i->n_jobs);
    add_u64(root, "merge_jobs", i->n_merge_jobs);
    add_u64(root, "ranges", i->n_ranges);
    add_u64(root, "tile_rows", i->tile_rows);
    add_u64(root, "few_tile_rows", i->few_tile_rows);
    add_u64(root, "columns", i->n_columns);
    add_u64(root, "tile_keys", i->tile_keys);
    add_u64(root, "kept_pairs", i->kept_pairs);
    add_u64(root, "dense_pairs", i->dense_pairs);
    cJSON_AddNumberToObject(root, "flops", i->flops);
    add_u64(root, "bytes_min", i->bytes_min);
    add_u64(root, "workspace_bytes", i->workspace_bytes);
    add_u64(root, "workspace_align", i->workspace_align);
    add_u64(root, "host_bytes", i->host_bytes);
    add_u64(root, "device_bytes", i->device_bytes);
    cJSON_AddNumberToObject(root, "plan_seconds", i->create_seconds);
    cJSON_AddNumberToObject(root, "layout_seconds", x->layout_seconds);
    cJSON_AddNumberToObject(root, "coverage", x->layout_info.coverage);
    cJSON_AddNumberToObject(root, "kept_share", x->layout_info.kept_share);
    cJSON_AddBoolToObject(root, "kv_efficient", x->layout_info.kv_efficient != 0);
    add_u64(root, "classes", x->layout_info.n_classes);
    add_u64(root, "kv_blocks", (uint64_t)x->layout_info.n_blocks);
    add_u64(root, "kv_block_bytes", block_bytes(&x->p));
    cJSON *kept = cJSON_AddArrayToObject(root, "kv_blocks_kept"),
          *allocated = cJSON_AddArrayToObject(root, "kv_blocks_allocated");
    for (int32_t h = 0; h < x->p.kv_heads; h++) {
        tess_kv_info kv = kv_at(x, h);
        /* below 2^31 blocks */
        cJSON_AddItemToArray(kept, cJSON_CreateNumber((double)kv.blocks_kept));
        cJSON_AddItemToArray(allocated, cJSON_CreateNumber((double)kv.blocks_allocated));
    }
    add_storages(root, x);
    if (x->p.op == PROBLEM_DECODE) add_cache(root, x);
    char *text = cJSON_Print(root);
    if (text) puts(text);
    free(text);
    cJSON_Delete(root);
    return text != NULL;
}

int plan_main(int argc, char **argv) {
    enum { BACKEND, JSON, N_OPTIONS };
    cli_option options[N_OPTIONS] = {
        [BACKEND] = {.name = "backend", .takes_value = 1}, [JSON] = {.name = "json"}};
    const char *command = argv[0];
    size_t n_words;
    int status = cli_problem_options(argc, argv, help, options, N_OPTIONS, &n_words);
    if (status != CLI_GO_ON) return status;

    planned x = {0};
    problem_init(&x.p);
    status = cli_words(command, argv + 1, n_words, &x.p);
    if (status == CLI_GO_ON) status = cli_finish(command, &x.p);
    if (status == CLI_GO_ON)
        status = cli_open(command, options[BACKEND].value, &x.runtime, &x.device);
    if (status == CLI_GO_ON) {
        tess_status made = make(&x);
        if (made != TESS_OK)
            status = made == TESS_ERROR_OUT_OF_MEMORY
                         ? cli_error(CLI_FAILED, command, "out of memory")
                         : cli_refused(command, &x.p);
        else if (options[JSON].given)
            status = print_json(&x) ? CLI_OK : cli_error(CLI_FAILED, command, "out of memory");
        else {
            print_text(&x);
            status = CLI_OK;
        }
    }
    cache_release(&x.cache);
    tess_plan_release(x.plan);
    tess_layout_release(x.layout);
    tess_device_release(x.device);
    tess_runtime_release(x.runtime);
    problem_free(&x.p);
    return status;
}
