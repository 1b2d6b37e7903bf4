/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Text generation from a paged KV cache: a transformer of four layers with random weights, dense
 * and sparse (S2) attention in turn. Two prompts are read in chunks of 96 and of 512 tokens while a
 * sequence that is through with its own generates already; then a sequence is forked, another one
 * is rolled back, and a new one gets the pages of one that has ended.
 *
 * Everything but attention runs on the host, in the simplest code there is. What to take from here:
 *
 *     create_cache   one plan for all layers of a kind and the whole generation
 *     prepare_step   which pages a step needs, and which it must not share (pages.h); tess_prepare
 *     attend         tess_append, then tess_run: K and V go into the cache, and are read from there
 *     check_text     the same model without a cache, to compare with
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tessera/tessera.h>

#include "pages.h"

enum {
    LAYERS = 4,
    KINDS = 2, /* layers 0 and 2 are dense, 1 and 3 are S2 */
    HEADS = 4,
    KV_HEADS = 2,
    DIM = 16,
    WIDTH = HEADS * DIM,
    KV_WIDTH = KV_HEADS * DIM,
    VOCABULARY = 64,
    MAX_TOKENS = 1024, /* of a sequence */
    MAX_CHUNK = 512, /* tokens a sequence may take in a step, and most that it may be rolled back */
    SEQUENCES = 3,   /* at a time */
    MAX_ROWS = 640,  /* tokens of a step, of all sequences together */
    PAGE = 32,       /* tokens */
    PAGES = 72,      /* of each kind's pools */
    COLUMNS = MAX_TOKENS / PAGE,
};
static const float TOLERANCE = 1e-4f; /* of logits */

typedef struct kind {
    const char *name;
    tess_layout *layout;
    pages pages;       /* one table serves all layers of a kind */
    tess_buffer table; /* the same on the device */
} kind;

typedef struct layer {
    kind *kind;
    float *wq, *wk, *wv, *wo;
    tess_tensor k_pool, v_pool; /* [PAGES, PAGE, kv heads, DIM] */
} layer;

typedef struct sequence {
    int length; /* tokens of the text */
    int cached; /* of these, tokens whose K and V are in the cache */
    int chunk;  /* most tokens of a step */
    int32_t tokens[MAX_TOKENS + 1];
    float logits[MAX_TOKENS][VOCABULARY]; /* of all cached tokens */
} sequence;

/* Plans of the cache, or of the model without one. */
typedef struct pass {
    int cached;
    tess_plan *plans[KINDS];
    tess_buffer workspaces[KINDS], steps[KINDS];
} pass;

/* Rows of a forward pass: their tokens, and where in their text these are. */
typedef struct rows {
    int count;
    int32_t tokens[MAX_TOKENS], positions[MAX_TOKENS];
} rows;

typedef struct engine {
    tess_runtime *runtime;
    tess_device *device;
    kind kinds[KINDS];
    layer layers[LAYERS];
    float *token_embedding, *position_embedding; /* [VOCABULARY, WIDTH], [MAX_TOKENS, WIDTH] */
    pass cache;
    tess_buffer q, k, v, o, pairs, cu_rows, kv_lens; /* on the device */
    rows rows;
    float x[MAX_TOKENS][WIDTH], normed[MAX_TOKENS][WIDTH], wide[MAX_TOKENS][WIDTH];
    float logits[MAX_TOKENS][VOCABULARY];
    sequence sequences[SEQUENCES];
    int differs; /* from the model without a cache */
} engine;

static void check(tess_status status) {
    if (status == TESS_OK) return;
    fprintf(stderr, "generate: %s: %s\n", tess_status_name(status), tess_last_error());
    exit(1);
}

static void *room(size_t bytes) {
    void *memory = calloc(1, bytes);
    if (memory) return memory;
    fprintf(stderr, "generate: out of memory\n");
    exit(1);
}

static void upload(engine *e, tess_buffer to, const void *from, size_t bytes) {
    check(tess_copy(e->device, to, tess_host_buffer(from, bytes), bytes));
}

/* ------------------------------------------------------------------ attention */

/* The rows' Q, K and V are on the device, packed: [row, head, DIM]. O goes there too. */
static void attend(engine *e, const pass *p, int n_layer) {
    const layer *l = &e->layers[n_layer];
    const int n_kind = (int)(l->kind - e->kinds);
    const tess_plan *plan = p->plans[n_kind];
    tess_run_desc run = {.struct_size = sizeof run, .workspace = p->workspaces[n_kind]};
    check(tess_plan_tensor(plan, TESS_ROLE_Q, e->q, &run.q, NULL));
    check(tess_plan_tensor(plan, TESS_ROLE_O, e->o, &run.o, NULL));
    if (p->cached) {
        tess_append_desc append = {.struct_size = sizeof append};
        check(tess_plan_tensor(plan, TESS_ROLE_NEW_K, e->k, &append.k, NULL));
        check(tess_plan_tensor(plan, TESS_ROLE_NEW_V, e->v, &append.v, NULL));
        append.k_pools = &l->k_pool, append.v_pools = &l->v_pool;
        append.block_table = l->kind->table, append.table_stride = COLUMNS, append.pages = PAGES;
        append.step = run.step = p->steps[n_kind];
        check(tess_append(plan, &append));
        run.k = l->k_pool, run.v = l->v_pool;
        run.block_table = l->kind->table, run.table_stride = COLUMNS, run.pages = PAGES;
    } else {
        check(tess_plan_tensor(plan, TESS_ROLE_K, e->k, &run.k, NULL));
        check(tess_plan_tensor(plan, TESS_ROLE_V, e->v, &run.v, NULL));
    }
    check(tess_run(plan, &run));
    check(tess_wait(e->device, UINT64_MAX));
}

/* A plan of each kind of layer. */
static void pass_create(engine *e, pass *p, const tess_plan_desc *desc) {
    *p = (pass){.cached = desc->page != 0};
    for (int n = 0; n < KINDS; n++) {
        tess_plan_info info = {.struct_size = sizeof info};
        check(tess_plan_create(e->device, e->kinds[n].layout, desc, &p->plans[n]));
        check(tess_plan_query(p->plans[n], &info));
        check(tess_alloc(e->device, info.workspace_bytes, &p->workspaces[n]));
        check(tess_alloc(e->device, info.step_bytes, &p->steps[n]));
    }
}

static void pass_release(engine *e, pass *p) {
    for (int n = 0; n < KINDS; n++) {
        tess_plan_release(p->plans[n]);
        check(tess_free(e->device, &p->workspaces[n]));
        check(tess_free(e->device, &p->steps[n]));
    }
}

/* ------------------------------------------------------------------ the rest of the model */

static uint32_t random_bits(void) {
    static uint64_t state = 1;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 40);
}

/* Uniform numbers of that standard deviation. */
static float *random_floats(int count, float deviation) {
    float *x = room((size_t)count * sizeof *x);
    for (int n = 0; n < count; n++)
        x[n] = ((float)random_bits() / 8388608 - 1) * 1.7320508f * deviation;
    return x;
}

/* out[n] = x[n] * weights, for each row n. */
static void multiply(int count, const float *x, int inputs, const float *weights, int outputs,
                     float *out) {
    for (int n = 0; n < count; n++, x += inputs, out += outputs) {
        memset(out, 0, (size_t)outputs * sizeof *out);
        for (int i = 0; i < inputs; i++)
            for (int j = 0; j < outputs; j++) out[j] += x[i] * weights[i * outputs + j];
    }
}

static void normalize(int count, const float *x, float *out) {
    for (int n = 0; n < count; n++, x += WIDTH, out += WIDTH) {
        float sum = 0;
        for (int i = 0; i < WIDTH; i++) sum += x[i] * x[i];
        const float scale = 1 / sqrtf(sum / WIDTH + 1e-6f);
        for (int i = 0; i < WIDTH; i++) out[i] = x[i] * scale;
    }
}

/* Takes e->rows through the model, and leaves the logits of each row in e->logits. */
static void forward(engine *e, const pass *p) {
    const int count = e->rows.count;
    float *x = e->x[0], *normed = e->normed[0], *wide = e->wide[0];
    for (int n = 0; n < count; n++)
        for (int i = 0; i < WIDTH; i++)
            e->x[n][i] = e->token_embedding[e->rows.tokens[n] * WIDTH + i] +
                         e->position_embedding[e->rows.positions[n] * WIDTH + i];
    for (int n = 0; n < LAYERS; n++) {
        const layer *l = &e->layers[n];
        normalize(count, x, normed);
        multiply(count, normed, WIDTH, l->wq, WIDTH, wide);
        upload(e, e->q, wide, (size_t)count * WIDTH * sizeof(float));
        multiply(count, normed, WIDTH, l->wk, KV_WIDTH, wide);
        upload(e, e->k, wide, (size_t)count * KV_WIDTH * sizeof(float));
        multiply(count, normed, WIDTH, l->wv, KV_WIDTH, wide);
        upload(e, e->v, wide, (size_t)count * KV_WIDTH * sizeof(float));
        attend(e, p, n);
        const size_t bytes = (size_t)count * WIDTH * sizeof(float);
        check(tess_copy(e->device, tess_host_buffer(wide, bytes), e->o, bytes));
        multiply(count, wide, WIDTH, l->wo, WIDTH, normed);
        for (int i = 0; i < count * WIDTH; i++) x[i] += normed[i];
    }
    normalize(count, x, normed);
    for (int n = 0; n < count; n++)
        for (int t = 0; t < VOCABULARY; t++) {
            float sum = 0;
            for (int i = 0; i < WIDTH; i++)
                sum += e->normed[n][i] * e->token_embedding[t * WIDTH + i];
            e->logits[n][t] = sum;
        }
}

/* ------------------------------------------------------------------ a step */

static void pool_is_full(const kind *k) {
    fprintf(stderr, "generate: all %d pages of the %s layers are taken\n", PAGES, k->name);
    exit(1);
}

/* Gives a sequence the pages that `tokens` take, and pages of its own where keys from `first` on
 * will be written. Returns the number of pages to copy first. */
static int make_room(kind *k, int s, int first, int tokens, int32_t (*pairs)[2]) {
    int64_t wanted;
    int count = 0;
    check(tess_layout_pages(k->layout, 0, tokens, PAGE, &wanted));
    if (!pages_resize(&k->pages, s, (int32_t)wanted)) pool_is_full(k);
    tess_layout_info info = {.struct_size = sizeof info};
    check(tess_layout_query(k->layout, &info));
    for (int t = first; t < tokens; t++)
        for (int h = 0; h < KV_HEADS; h++) {
            int64_t slot;
            check(tess_layout_slot(k->layout, h, t / info.block, &slot));
            const int64_t place = slot * info.block + t % info.block;
            const int copies = pages_own(&k->pages, s, (int32_t)(place / PAGE), pairs[count]);
            if (copies < 0) pool_is_full(k);
            count += copies;
        }
    return count;
}

/* Pages that several sequences have are copied before one of them writes to them. */
static void copy_pages(engine *e, const kind *k, int32_t (*pairs)[2], int count) {
    tess_tensor pools[2 * LAYERS];
    tess_copy_desc copy = {.struct_size = sizeof copy, .dtype = TESS_F32, .pools = pools};
    for (int n = 0; n < LAYERS; n++) {
        if (e->layers[n].kind != k) continue;
        pools[copy.n_pools++] = e->layers[n].k_pool;
        pools[copy.n_pools++] = e->layers[n].v_pool;
    }
    copy.n_heads = KV_HEADS, copy.head_dim = DIM, copy.page = PAGE, copy.pages = PAGES;
    copy.n_pairs = count, copy.pairs = e->pairs;
    upload(e, e->pairs, pairs, (size_t)count * sizeof *pairs);
    check(tess_copy_pages(e->device, &copy));
    check(tess_wait(e->device, UINT64_MAX)); /* before the list of pairs is overwritten */
}

/* The next chunk of each sequence, as far as there is room in the step: counts[s] rows. */
static void choose_rows(engine *e, int counts[SEQUENCES]) {
    e->rows.count = 0;
    for (int s = 0; s < SEQUENCES; s++) {
        const sequence *q = &e->sequences[s];
        counts[s] = q->length - q->cached;
        if (counts[s] > q->chunk) counts[s] = q->chunk;
        if (counts[s] > MAX_ROWS - e->rows.count) counts[s] = MAX_ROWS - e->rows.count;
        for (int n = 0; n < counts[s]; n++, e->rows.count++) {
            e->rows.tokens[e->rows.count] = q->tokens[q->cached + n];
            e->rows.positions[e->rows.count] = q->cached + n;
        }
    }
}

/* Pages for the new keys, and the lengths of all sequences: what the device needs to know. */
static void prepare_step(engine *e, const int counts[SEQUENCES]) {
    static int32_t pairs[PAGES][2];
    int32_t cu_rows[SEQUENCES + 1] = {0}, kv_lens[SEQUENCES];
    for (int s = 0; s < SEQUENCES; s++) {
        cu_rows[s + 1] = cu_rows[s] + counts[s];
        kv_lens[s] = e->sequences[s].cached + counts[s]; /* new tokens too */
    }
    upload(e, e->cu_rows, cu_rows, sizeof cu_rows);
    upload(e, e->kv_lens, kv_lens, sizeof kv_lens);
    for (int n = 0; n < KINDS; n++) {
        kind *k = &e->kinds[n];
        int count = 0;
        for (int s = 0; s < SEQUENCES; s++)
            count += make_room(k, s, e->sequences[s].cached, kv_lens[s], pairs + count);
        if (count > 0) copy_pages(e, k, pairs, count);
        upload(e, k->table, k->pages.table, sizeof(int32_t) * SEQUENCES * COLUMNS);
        const tess_prepare_desc desc = {.struct_size = sizeof desc,
                                        .batch = SEQUENCES,
                                        .cu_rows = e->cu_rows,
                                        .kv_lens = e->kv_lens,
                                        .step = e->cache.steps[n]};
        check(tess_prepare(e->cache.plans[n], &desc));
    }
}

static int best_token(const float *logits, int except) {
    int best = except == 0;
    for (int t = 0; t < VOCABULARY; t++)
        if (t != except && logits[t] > logits[best]) best = t;
    return best;
}

/* A step of all sequences. One whose text is read as far as it goes gets its next token. From
 * tess_prepare on, attention asks nothing of the host: with the rest of the model on the device as
 * well, a server would capture this once and replay it. */
static void step(engine *e) {
    int counts[SEQUENCES], first = 0;
    choose_rows(e, counts);
    prepare_step(e, counts);
    forward(e, &e->cache);
    for (int s = 0; s < SEQUENCES; first += counts[s++]) {
        sequence *q = &e->sequences[s];
        memcpy(q->logits[q->cached], e->logits[first], (size_t)counts[s] * sizeof *e->logits);
        q->cached += counts[s];
        if (counts[s] > 0 && q->cached == q->length && q->length < MAX_TOKENS)
            q->tokens[q->length++] = best_token(q->logits[q->cached - 1], -1);
    }
}

/* ------------------------------------------------------------------ the check */

/* Computes the whole text of a sequence at once, without a cache, and compares the logits of each
 * of its tokens. In causal order those are the logits of every step there was: a token's row does
 * not depend on what follows. */
static void check_text(engine *e, int s) {
    const sequence *q = &e->sequences[s];
    tess_plan_desc desc = {.struct_size = sizeof desc, .dtype = TESS_F32, .head_dim = DIM};
    pass p;
    e->rows.count = q->cached;
    for (int n = 0; n < q->cached; n++) {
        e->rows.tokens[n] = q->tokens[n];
        e->rows.positions[n] = n;
    }
    desc.batch = 1, desc.q_len = desc.kv_len = q->cached;
    pass_create(e, &p, &desc);
    forward(e, &p);
    pass_release(e, &p);
    float largest = 0;
    for (int n = 0; n < q->cached; n++)
        for (int t = 0; t < VOCABULARY; t++) {
            const float difference = fabsf(q->logits[n][t] - e->logits[n][t]);
            if (difference > largest) largest = difference;
            if (!(difference <= TOLERANCE)) e->differs = 1; /* NaN does too */
        }
    printf("  sequence %d without a cache: logits of %d tokens differ by %.1e at most\n", s,
           q->cached, (double)largest);
}

static void report(const engine *e, const char *what) {
    printf("%s\n", what);
    for (int s = 0; s < SEQUENCES; s++) {
        if (e->sequences[s].cached == 0) continue;
        printf("  sequence %d: %3d tokens", s, e->sequences[s].cached);
        for (int n = 0; n < KINDS; n++)
            printf(", %2d pages of each %s layer", (int)e->kinds[n].pages.used[s],
                   e->kinds[n].name);
        printf("\n");
    }
    fflush(stdout);
}

/* ------------------------------------------------------------------ what happens to sequences */

static void begin(engine *e, int s, int length, int chunk) {
    sequence *q = &e->sequences[s];
    q->length = length, q->cached = 0, q->chunk = chunk;
    for (int n = 0; n < length; n++) q->tokens[n] = (int32_t)(random_bits() % VOCABULARY);
}

/* The copy shares all pages, and goes on with another token than its origin. */
static void fork_sequence(engine *e, int from, int to) {
    sequence *q = &e->sequences[to];
    *q = e->sequences[from];
    q->length = q->cached;
    q->tokens[q->length++] =
        best_token(q->logits[q->cached - 1], e->sequences[from].tokens[q->cached]);
    for (int n = 0; n < KINDS; n++) pages_share(&e->kinds[n].pages, from, to);
}

/* Takes back the last `count` cached tokens, at most MAX_CHUNK, and puts others in their place. */
static void roll_back(engine *e, int s, int count, int others) {
    sequence *q = &e->sequences[s];
    check_text(e, s);
    q->cached -= count;
    q->length = q->cached;
    for (int n = 0; n < others; n++) q->tokens[q->length++] = (int32_t)(random_bits() % VOCABULARY);
    for (int n = 0; n < KINDS; n++) {
        int64_t wanted;
        check(tess_layout_pages(e->kinds[n].layout, 0, q->cached, PAGE, &wanted));
        pages_resize(&e->kinds[n].pages, s, (int32_t)wanted);
    }
}

static void end(engine *e, int s) {
    check_text(e, s);
    e->sequences[s].length = e->sequences[s].cached = 0;
    for (int n = 0; n < KINDS; n++) pages_resize(&e->kinds[n].pages, s, 0);
}

/* ------------------------------------------------------------------ life */

static void create_kinds(engine *e) {
    const tess_pattern patterns[KINDS] = {
        {.struct_size = sizeof *patterns, .kind = TESS_PATTERN_DENSE},
        /* Each head sees its last 4 blocks of 16 tokens, and every 8th block before them. */
        {.struct_size = sizeof *patterns,
         .kind = TESS_PATTERN_S2,
         .block = 16,
         .local = 4,
         .stride = 8}};
    for (int n = 0; n < KINDS; n++) {
        kind *k = &e->kinds[n];
        k->name = n ? "S2" : "dense";
        tess_layout_desc desc = {.struct_size = sizeof desc, .pattern = &patterns[n]};
        desc.n_heads = HEADS, desc.n_kv_heads = KV_HEADS;
        desc.max_tokens = MAX_TOKENS, desc.max_chunk = MAX_CHUNK;
        check(tess_layout_create(e->runtime, &desc, &k->layout));
        tess_layout_info info = {.struct_size = sizeof info};
        check(tess_layout_query(k->layout, &info));
        if (info.n_storage != 1) {
            /* Heads that keep different numbers of blocks: as many pools, tables and block managers
             * as there are groups of heads. See tess_layout_storage. */
            fprintf(stderr, "generate: %s: %u storage groups, and 1 is wanted\n", k->name,
                    info.n_storage);
            exit(1);
        }
        if (!pages_create(&k->pages, PAGES, SEQUENCES, COLUMNS)) {
            fprintf(stderr, "generate: out of memory\n");
            exit(1);
        }
        check(tess_alloc(e->device, sizeof(int32_t) * SEQUENCES * COLUMNS, &k->table));
    }
}

/* The plans of the cache tell only the most that a step may have, and so serve every step. */
static void create_cache(engine *e, int32_t kv_split) {
    tess_plan_desc desc = {.struct_size = sizeof desc, .dtype = TESS_F32, .head_dim = DIM};
    desc.flags = TESS_PLAN_DEVICE_LENGTHS | TESS_PLAN_COMPACT | TESS_PLAN_APPEND;
    desc.batch = SEQUENCES, desc.q_len = MAX_CHUNK, desc.kv_len = MAX_TOKENS;
    desc.max_rows = MAX_ROWS, desc.page = PAGE, desc.kv_split = kv_split;
    pass_create(e, &e->cache, &desc);
    for (int n = 0; n < LAYERS; n++)
        for (int v = 0; v < 2; v++) {
            uint64_t bytes;
            tess_buffer memory;
            tess_tensor *pool = v ? &e->layers[n].v_pool : &e->layers[n].k_pool;
            check(tess_plan_pool(e->cache.plans[n % KINDS], v ? TESS_ROLE_V : TESS_ROLE_K, 0, PAGES,
                                 (tess_buffer){0}, pool, &bytes));
            check(tess_alloc(e->device, bytes, &memory));
            pool->buffer = memory;
        }
}

static void create_layers(engine *e) {
    const float deviation = 1 / sqrtf(WIDTH);
    for (int n = 0; n < LAYERS; n++) {
        layer *l = &e->layers[n];
        l->kind = &e->kinds[n % KINDS];
        l->wq = random_floats(WIDTH * WIDTH, 2 * deviation);
        l->wk = random_floats(WIDTH * KV_WIDTH, deviation);
        l->wv = random_floats(WIDTH * KV_WIDTH, deviation);
        l->wo = random_floats(WIDTH * WIDTH, deviation);
    }
    e->token_embedding = random_floats(VOCABULARY * WIDTH, 0.25f);
    e->position_embedding = random_floats(MAX_TOKENS * WIDTH, 0.125f);
}

static void engine_create(engine *e, int32_t kv_split) {
    tess_device_info info = {.struct_size = sizeof info};
    check(tess_runtime_create(NULL, &e->runtime));
    check(tess_device_open(e->runtime, NULL, &e->device));
    check(tess_device_query(e->device, &info));
    printf("%s, %s\n", info.id, info.name);
    create_kinds(e);
    create_layers(e);
    create_cache(e, kv_split);
    check(tess_alloc(e->device, sizeof(float) * MAX_TOKENS * WIDTH, &e->q));
    check(tess_alloc(e->device, sizeof(float) * MAX_TOKENS * WIDTH, &e->o));
    check(tess_alloc(e->device, sizeof(float) * MAX_TOKENS * KV_WIDTH, &e->k));
    check(tess_alloc(e->device, sizeof(float) * MAX_TOKENS * KV_WIDTH, &e->v));
    check(tess_alloc(e->device, sizeof(int32_t) * 2 * PAGES, &e->pairs));
    check(tess_alloc(e->device, sizeof(int32_t) * (SEQUENCES + 1), &e->cu_rows));
    check(tess_alloc(e->device, sizeof(int32_t) * SEQUENCES, &e->kv_lens));
}

static void engine_release(engine *e) {
    tess_buffer *const buffers[] = {&e->q,     &e->k,       &e->v,      &e->o,
                                    &e->pairs, &e->cu_rows, &e->kv_lens};
    for (int n = 0; n < 7; n++) check(tess_free(e->device, buffers[n]));
    pass_release(e, &e->cache);
    for (int n = 0; n < LAYERS; n++) {
        layer *l = &e->layers[n];
        check(tess_free(e->device, &l->k_pool.buffer));
        check(tess_free(e->device, &l->v_pool.buffer));
        free(l->wq);
        free(l->wk);
        free(l->wv);
        free(l->wo);
    }
    for (int n = 0; n < KINDS; n++) {
        check(tess_free(e->device, &e->kinds[n].table));
        pages_release(&e->kinds[n].pages);
        tess_layout_release(e->kinds[n].layout);
    }
    free(e->token_embedding);
    free(e->position_embedding);
    tess_device_release(e->device);
    tess_runtime_release(e->runtime);
    free(e);
}

static const char help[] =
    "usage: generate [--kv-split N]\n"
    "\n"
    "Generates text with a model of random weights from a paged KV cache, and compares the logits\n"
    "of each token with those of the same model without a cache. Exit status 1: they differ by\n"
    "more than 1e-4, or something failed; 2: wrong arguments.\n"
    "\n"
    "--kv-split N     most parts of a row's keys, 0 to 4096. 0, the default: each step decides.\n"
    "                 1 is faster on a GPU that is emulated, where idle workgroups take long.\n"
    "TESSERA_BACKEND  the device: cpu, cuda, hip, opencl, vulkan. By default the best there is.\n";

/* Returns the exit status where there is nothing to generate, or -1. */
static int read_arguments(int argc, char **argv, int32_t *kv_split) {
    for (int n = 1; n < argc; n++) {
        if (strcmp(argv[n], "--help") == 0) {
            fputs(help, stdout);
            return 0;
        }
        char *end = NULL;
        const char *number = n + 1 < argc ? argv[n + 1] : "";
        const long parts = strtol(number, &end, 10);
        if (strcmp(argv[n], "--kv-split") != 0)
            fprintf(stderr, "generate: %s: no such option\n\n%s", argv[n], help);
        else if (end == number || *end || parts < 0 || parts > 4096)
            fprintf(stderr, "generate: --kv-split: 0 to 4096 is wanted, got '%s'\n", number);
        else {
            *kv_split = (int32_t)parts;
            n++;
            continue;
        }
        return 2;
    }
    return -1;
}

int main(int argc, char **argv) {
    int32_t kv_split = 0;
    const int status = read_arguments(argc, argv, &kv_split);
    if (status >= 0) return status;
    engine *e = room(sizeof *e);
    engine_create(e, kv_split);

    begin(e, 0, 800, 96);
    begin(e, 1, 900, MAX_CHUNK);
    for (int n = 0; n < 12; n++) step(e);
    report(e, "two prompts were read, in chunks of 96 and of 512 tokens");

    fork_sequence(e, 0, 2);
    for (int n = 0; n < 8; n++) step(e);
    report(e, "sequence 2 is a fork of sequence 0");

    roll_back(e, 1, MAX_CHUNK, 40);
    for (int n = 0; n < 4; n++) step(e);
    report(e, "sequence 1 was rolled back by 512 tokens");

    end(e, 0);
    begin(e, 0, 700, MAX_CHUNK);
    for (int n = 0; n < 4; n++) step(e);
    report(e, "sequence 0 has ended, and another one has its place and its pages");

    for (int s = 0; s < SEQUENCES; s++) end(e, s);
    const int differs = e->differs;
    if (differs) fprintf(stderr, "generate: logits differ by more than %g\n", (double)TOLERANCE);
    engine_release(e);
    return differs;
}
