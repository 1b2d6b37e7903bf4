/* SPDX-License-Identifier: Apache-2.0 */
#include "list.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "masks.h"

/* ------------------------------------------------------------------ factors */

enum kind {
    K_S2,
    K_S2_BOTH,
    K_DENSE,
    K_DENSE_BOTH,
    K_WINDOW,
    K_WINDOW_BOTH,
    K_BLOCKS_EFFICIENT,
    K_BLOCKS_ANY
};
enum kv { KV_EQUAL, KV_NEAR, KV_FAR, KV_SHORT };
enum form { FORM_PLAIN, FORM_HOMO, FORM_PER_KV, FORM_SLICE };
enum batch { BATCH_ONE, BATCH_THREE, BATCH_PACKED };
enum factor {
    KIND,
    LV,
    FORM,
    DIM,
    QLEN,
    GROUP,
    BLOCK,
    KV,
    DTYPE,
    BATCH,
    OFFSET,
    DENSE_HEADS,
    SPLIT,
    INVARIANT,
    SCALE,
    TILE,
    FACTORS
};

enum { UNSET = -1, MOST_VALUES = 32, SEEDS = 24, USUAL_BLOCKS = 4, MASK_BLOCKS = 800 };

static const int n_values[FACTORS] = {8, 5, 4, 32, 10, 5, 13, 4, 3, 3, 2, 2, 3, 2, 2, 3};
static const int64_t q_lens[] = {1, 2, 15, 63, 64, 65, 127, 1028, 5175, 8192};
/* The usual sizes first. Small ones put up to 32 query blocks into a tile, whose bits in a block
 * mask are then all in use; the others are no powers of two. */
static const int blocks[] = {16, 32, 64, 128, 1, 2, 3, 5, 7, 8, 17, 48, 100};
static const int locals[] = {1, 4, 10, 8, 16};
static const int strides[] = {8, 4, 3, 1, 8};
/* the last one is MQA: five query heads and one kv head */
static const int groups[] = {1, 2, 4, 8, 5};
static const char *const dtypes[] = {"f32", "f16", "bf16"};
static const int splits[] = {0, 1, 3};
static const int tiles[] = {0, 16, 48};

/* LV, FORM, OFFSET and DENSE_HEADS mean something for some kinds only; a pair counts where both of
 * its factors do. */
static int active(int factor, int kind) {
    switch (factor) {
    case LV:
    case DENSE_HEADS: return kind == K_S2 || kind == K_S2_BOTH;
    case FORM:
    case OFFSET: return kind == K_S2;
    default: return 1;
    }
}

/* A problem for each head_dim with each block size would alone be most of the list, and no kernel's
 * code meets the two: unusual block sizes take the head_dim that closes most other pairs. */
static int wanted(int a, int b, int y) { return a != DIM || b != BLOCK || y < USUAL_BLOCKS; }

/* ------------------------------------------------------------------ from values to a problem */

typedef struct shape {
    int64_t q, kv; /* of the first sequence */
    int heads, kv_heads;
    int dense_heads;
} shape;

static const int64_t window_left = 93, window_right = 21, window_sinks = 5;

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/* Kept pairs of one head, at most. */
static double pairs_of(const int *v, int64_t q, int64_t kv, int dense_head) {
    const double all = (double)q * (double)kv;
    const double causal =
        kv >= q ? all - (double)q * (double)(q - 1) / 2 : (double)kv * (double)(kv + 1) / 2;
    const int64_t block = blocks[v[BLOCK]];
    double row;
    switch (v[KIND]) {
    case K_S2:
        row = (double)((locals[v[LV]] + 1) * block) + (double)kv / strides[v[LV]];
        return dense_head || row * (double)q > causal ? causal : row * (double)q;
    case K_S2_BOTH:
        row = (double)((2 * locals[v[LV]] + 2) * block) + (double)kv / strides[v[LV]];
        return dense_head || row * (double)q > all ? all : row * (double)q;
    case K_DENSE: return causal;
    case K_DENSE_BOTH: return all;
    case K_WINDOW:
    case K_WINDOW_BOTH: return (double)q * (double)(window_left + window_right + window_sinks + 1);
    default: return (double)q * (double)(9 * block);
    }
}

static int64_t kv_of(const int *v, int64_t q) {
    switch (v[KV]) {
    case KV_NEAR: return q + 37;
    case KV_FAR:
        return q + 37 + (active(LV, v[KIND]) ? 2 * locals[v[LV]] * blocks[v[BLOCK]] : 1000);
    case KV_SHORT: return q * 2 / 3;
    default: return q;
    }
}

static double cost(const int *v, int kv_heads) {
    const int64_t q = q_lens[v[QLEN]], kv = kv_of(v, q);
    const int heads = kv_heads * groups[v[GROUP]],
              dense = active(DENSE_HEADS, v[KIND]) && v[DENSE_HEADS] ? 1 : 0;
    double pairs = dense * pairs_of(v, q, kv, 1) + (heads - dense) * pairs_of(v, q, kv, 0);
    if (v[BATCH] == BATCH_THREE) pairs *= 3;
    if (v[BATCH] == BATCH_PACKED) pairs += heads * 40.0 * (40 + 4 * blocks[v[BLOCK]]);
    /* a short block takes a kernel about as long as 16 keys */
    if (blocks[v[BLOCK]] < 16) pairs *= 16.0 / blocks[v[BLOCK]];
    return 4.0 * (8 * (v[DIM] + 1)) * pairs;
}

static int fewest_kv_heads(const int *v) {
    return v[KIND] == K_S2 && v[FORM] == FORM_PER_KV && v[GROUP] != 4 ? 2 : 1;
}

/* Fills unset factors with their cheapest value. Returns 0 if the values do not go together. */
static int complete(const int *partial, int *v) {
    memcpy(v, partial, FACTORS * sizeof *v);
    if (v[KIND] == UNSET) {
        v[KIND] = K_WINDOW;
        if (v[LV] != UNSET || v[DENSE_HEADS] != UNSET || v[FORM] != UNSET || v[OFFSET] != UNSET)
            v[KIND] = K_S2;
    }
    for (int f = 0; f < FACTORS; f++) {
        if (v[f] != UNSET && !active(f, v[KIND])) return 0;
        if (v[f] == UNSET) v[f] = 0;
    }
    return 1;
}

static int feasible(const int *partial) {
    int v[FACTORS];
    if (!complete(partial, v)) return 0;
    /* The file of a mask has a byte for each pair of blocks. */
    const int masked = v[KIND] == K_BLOCKS_EFFICIENT || v[KIND] == K_BLOCKS_ANY;
    if (masked && kv_of(v, q_lens[v[QLEN]]) / blocks[v[BLOCK]] > MASK_BLOCKS) return 0;
    return cost(v, fewest_kv_heads(v)) <= LIST_FLOPS;
}

/* ------------------------------------------------------------------ covering every pair */

typedef struct cover {
    /* [a < b]: 1 while nothing covers the pair */
    unsigned char open[FACTORS][FACTORS][MOST_VALUES][MOST_VALUES];
    int64_t pairs, infeasible, left;
} cover;

static void cover_init(cover *c) {
    memset(c, 0, sizeof *c);
    for (int a = 0; a < FACTORS; a++)
        for (int b = a + 1; b < FACTORS; b++)
            for (int x = 0; x < n_values[a]; x++)
                for (int y = 0; y < n_values[b]; y++) {
                    if (!wanted(a, b, y)) continue;
                    int partial[FACTORS], v[FACTORS];
                    for (int f = 0; f < FACTORS; f++) partial[f] = UNSET;
                    partial[a] = x;
                    partial[b] = y;
                    /* means nothing: say, a window with a stride */
                    if (!complete(partial, v)) continue;
                    c->pairs++;
                    if (!feasible(partial)) {
                        c->infeasible++;
                        continue;
                    }
                    c->open[a][b][x][y] = 1;
                    c->left++;
                }
}

static unsigned char *pair_at(cover *c, int a, int b, int x, int y) {
    return a < b ? &c->open[a][b][x][y] : &c->open[b][a][y][x];
}

/* How many open pairs the values set so far have. */
static int gain(cover *c, const int *v) {
    int count = 0;
    for (int a = 0; a < FACTORS; a++)
        for (int b = a + 1; b < FACTORS; b++)
            if (v[a] != UNSET && v[b] != UNSET) count += c->open[a][b][v[a]][v[b]];
    return count;
}

static int gain_of(cover *c, const int *v, int factor, int value) {
    int count = 0;
    for (int f = 0; f < FACTORS; f++)
        if (f != factor && v[f] != UNSET) count += *pair_at(c, factor, f, value, v[f]);
    return count;
}

/* How many open pairs the value has with factors that are not set yet. */
static int promise_of(cover *c, const int *v, int factor, int value) {
    int count = 0;
    for (int f = 0; f < FACTORS; f++) {
        if (f == factor || v[f] != UNSET) continue;
        for (int y = 0; y < n_values[f]; y++) count += *pair_at(c, factor, f, value, y);
    }
    return count;
}

/* Sets every factor that is not set, each to the feasible value that closes most pairs. */
static void extend(cover *c, int *v, unsigned turn) {
    for (int f = 0; f < FACTORS; f++) {
        if (v[f] != UNSET || (v[KIND] != UNSET && !active(f, v[KIND]))) continue;
        int best = UNSET, best_gain = -1;
        for (int n = 0; n < n_values[f]; n++) {
            const int value = (int)(((unsigned)n + turn * 7u) % (unsigned)n_values[f]);
            v[f] = value;
            if (!feasible(v)) continue;
            const int g = gain_of(c, v, f, value) * 1000 + promise_of(c, v, f, value);
            if (g > best_gain) {
                best_gain = g;
                best = value;
            }
        }
        v[f] = best;
    }
}

static void close_pairs(cover *c, const int *v) {
    for (int a = 0; a < FACTORS; a++)
        for (int b = a + 1; b < FACTORS; b++)
            if (v[a] != UNSET && v[b] != UNSET && c->open[a][b][v[a]][v[b]]) {
                c->open[a][b][v[a]][v[b]] = 0;
                c->left--;
            }
}

/* The problem that closes most open pairs, tried from several open pairs. */
static void next_values(cover *c, unsigned turn, int *chosen) {
    int best = -1, tried = 0;
    for (unsigned n = 0; n < FACTORS * FACTORS && tried < SEEDS; n++) {
        const int a = (int)((n + turn) / FACTORS % FACTORS), b = (int)((n + turn) % FACTORS);
        if (a >= b) continue;
        int found = 0;
        for (int x = 0; x < n_values[a] && !found; x++)
            for (int y = 0; y < n_values[b] && !found; y++) {
                if (!c->open[a][b][x][y]) continue;
                int v[FACTORS];
                for (int f = 0; f < FACTORS; f++) v[f] = UNSET;
                v[a] = x;
                v[b] = y;
                extend(c, v, turn + (unsigned)tried);
                const int g = gain(c, v);
                if (g > best) {
                    best = g;
                    memcpy(chosen, v, FACTORS * sizeof *chosen);
                }
                found = 1;
                tried++;
            }
    }
}

/* ------------------------------------------------------------------ lines */

typedef struct writer {
    char *line;
    size_t length;
} writer;

static void add(writer *w, const char *format, ...) {
    va_list list;
    va_start(list, format);
    const int n = vsnprintf(w->line + w->length, LIST_LINE - w->length, format, list);
    va_end(list);
    if (n > 0) w->length += (size_t)n;
    if (w->length >= LIST_LINE) w->length = LIST_LINE - 1;
}

/* Writes the mask that a problem needs and its words. */
static int add_mask(writer *w, const char *folder, const char *name, int efficient, int heads,
                    int64_t n_blocks, int block, uint64_t seed) {
    char path[1024];
    snprintf(path, sizeof path, "%s/%s.npy", folder, name);
    if (mask_write(path, efficient, heads, n_blocks > 0 ? n_blocks : 1, seed) != 0) return -1;
    add(w, "pattern=blocks block=%d mask=%s", block, path);
    return 0;
}

static void add_heads(writer *w, int heads, int kv_heads) {
    add(w, " heads=%d", heads);
    if (kv_heads != heads) add(w, " kv_heads=%d", kv_heads);
}

/* As many as keep the problem small, up to three. */
static int kv_heads_of(const int *v) {
    int kv_heads = v[GROUP] == 4 ? 1 : 3;
    while (kv_heads > fewest_kv_heads(v) && cost(v, kv_heads) > LIST_FLOPS / 32) kv_heads--;
    return kv_heads;
}

static int write_line(const int *v, int index, const char *folder, char *line) {
    writer w = {line, 0};
    const int64_t q = q_lens[v[QLEN]], kv = kv_of(v, q);
    const int64_t block = blocks[v[BLOCK]];
    const int kv_heads = kv_heads_of(v), heads = kv_heads * groups[v[GROUP]];
    int64_t longest = kv;
    if (v[BATCH] == BATCH_PACKED && longest < 33 + 2 * block + 1) longest = 33 + 2 * block + 1;
    if (v[BATCH] == BATCH_PACKED && longest < 3 * block + 7) longest = 3 * block + 7;
    char name[32];
    snprintf(name, sizeof name, "list-%03d", index);
    switch (v[KIND]) {
    case K_S2:
        add(&w, "pattern=s2 block=%d local=%d stride=%d", (int)block, locals[v[LV]],
            strides[v[LV]]);
        if (v[OFFSET]) add(&w, " offset=1");
        if (v[DENSE_HEADS]) add(&w, " dense_heads=1");
        if (v[FORM] == FORM_HOMO) add(&w, " homo=1");
        if (v[FORM] == FORM_PER_KV) add(&w, " per_kv_head=1");
        if (v[FORM] == FORM_SLICE)
            add(&w, " head_first=%d heads_total=%d", v[DENSE_HEADS] ? 2 * heads : heads, 3 * heads);
        break;
    case K_S2_BOTH:
        add(&w, "pattern=s2 causal=0 block=%d local=%d stride=%d", (int)block, locals[v[LV]],
            strides[v[LV]]);
        if (index % 2) add(&w, " local_right=2");
        if (v[DENSE_HEADS]) add(&w, " dense_heads=1");
        break;
    case K_DENSE: add(&w, "pattern=dense block=%d", (int)block); break;
    case K_DENSE_BOTH: add(&w, "pattern=dense causal=0 block=%d", (int)block); break;
    case K_WINDOW:
        add(&w, "pattern=window left=%d right=0 block=%d", (int)window_left, (int)block);
        if (index % 2) add(&w, " sinks=%d", (int)window_sinks);
        break;
    case K_WINDOW_BOTH:
        add(&w, "pattern=window causal=0 left=%d right=%d block=%d", (int)window_left,
            (int)window_right, (int)block);
        if (index % 2) add(&w, " sinks=%d", (int)window_sinks);
        break;
    default:
        if (add_mask(&w, folder, name, v[KIND] == K_BLOCKS_EFFICIENT,
                     v[KIND] == K_BLOCKS_EFFICIENT ? 1 : heads, (longest + block - 1) / block,
                     (int)block, (uint64_t)index) != 0)
            return -1;
        if (v[KIND] == K_BLOCKS_ANY && index % 2) add(&w, " causal=0");
    }
    add_heads(&w, heads, kv_heads);
    add(&w, " head_dim=%d", 8 * (v[DIM] + 1));
    if (v[BATCH] == BATCH_PACKED) {
        const int64_t some = smaller(q, 33);
        const int64_t decode = 3 * block + 7, chunk = some + 2 * block + 1;
        add(&w,
            " q_lens=%" PRId64 ",1,0,%" PRId64 ",3 kv_lens=%" PRId64 ",%" PRId64 ",5,%" PRId64 ",0",
            q, some, kv, decode, chunk);
    } else {
        if (v[BATCH] == BATCH_THREE) add(&w, " batch=3");
        add(&w, " q_len=%" PRId64, q);
        if (kv != q) add(&w, " kv_len=%" PRId64, kv);
    }
    if (v[DTYPE]) add(&w, " dtype=%s", dtypes[v[DTYPE]]);
    if (v[SPLIT]) add(&w, " kv_split=%d", splits[v[SPLIT]]);
    if (v[INVARIANT]) add(&w, " batch_invariant=1");
    if (v[SCALE]) add(&w, " scale=0.0078125");
    if (v[TILE]) add(&w, " tile_rows=%d", tiles[v[TILE]]);
    add(&w, " seed=%d", index);
    return 0;
}

/* ---------------------------------------------------------------- problems beside the covering */

/* One packed batch whose sequences have every kv_len mod block: decode with q_len 1, or a chunk of
 * a prefill. */
static void every_remainder(char *line, int block, int q_len, const char *rest) {
    writer w = {line, 0};
    const char *separator = "";
    add(&w, "pattern=s2 block=%d local=1 stride=3 heads=3 head_dim=16 %s q_lens=", block, rest);
    for (int n = 0; n < block; n++, separator = ",") add(&w, "%s%d", separator, q_len);
    add(&w, " kv_lens=");
    separator = "";
    for (int n = 0; n < block; n++, separator = ",") add(&w, "%s%d", separator, 4 * block + n + 1);
}

static const char *const further[] = {
    /* The settings of Phi-3-small: 32 heads in 8 groups, one head in the last slice of two
     * tensor-parallel ranks. */
    "pattern=s2 block=64 local=16 stride=8 offset=1 heads=32 kv_heads=8 head_dim=128 q_len=3 "
    "kv_len=3001 scale=0.0078125 dtype=bf16",
    "local=16 stride=8 offset=1 heads=16 kv_heads=4 head_first=16 heads_total=32 head_dim=128 "
    "q_len=1 kv_len=2049 scale=0.0078125 dtype=f16",
    /* Heads of a larger model by their numbers: dense ones first, kv heads and the heads of each in
     * no order, fewer heads than the model has for a kv head; prefill, decoding, a cache. */
    "pattern=s2 block=16 local=2 stride=16 dense_heads=2 heads=6 kv_heads=3 head_dim=64 q_len=200 "
    "kv_len=330 head_ids=15,14,3,2,8,9 heads_total=16 dtype=bf16",
    "pattern=s2 block=16 local=1 stride=12 offset=1 per_kv_head=1 heads=4 kv_heads=2 head_dim=128 "
    "q_lens=1,70,1 kv_lens=900,333,64 head_ids=9,11,5,3 heads_total=12 kv_heads_total=4 dtype=f16",
    "op=decode pattern=s2 block=16 local=2 stride=8 dense_heads=1 heads=6 kv_heads=3 head_dim=40 "
    "q_lens=1,0,70,3 kv_lens=700,90,333,3 page=32 compact=1 head_ids=11,10,0,1,7,6 heads_total=12",
    /* More strides than heads, more local blocks than blocks, a local window of every key. */
    "pattern=s2 block=16 local=2 stride=37 heads=5 head_dim=40 q_len=700",
    "pattern=s2 block=16 local=1000 stride=7 offset=3 heads=2 head_dim=24 q_len=200 kv_len=310",
    "pattern=s2 block=1 local=3 stride=5 offset=2 heads=4 head_dim=16 q_len=130 kv_len=171",
    "pattern=s2 block=7 local=2 stride=3 offset=9 heads=4 kv_heads=2 per_kv_head=1 dense_heads=1 "
    "head_dim=16 q_len=130 kv_len=171",
    "pattern=s2 causal=0 block=7 local=2 local_right=1 stride=3 heads=4 dense_heads=2 head_dim=16 "
    "q_len=130 kv_len=171",
    "pattern=s2 causal=0 block=16 local=1 stride=4 heads=2 head_dim=32 q_len=200 kv_len=97",
    /* Unbounded sides of a window, no window at all but the query itself, more sinks than keys, a
     * window in front of the first key. */
    "pattern=window left=-1 right=-1 causal=0 heads=2 head_dim=16 q_len=150",
    "pattern=window left=-1 right=0 heads=2 head_dim=16 q_len=150 kv_len=333",
    "pattern=window left=0 right=0 sinks=0 heads=2 head_dim=16 q_len=150",
    "pattern=window left=0 right=-1 causal=0 sinks=3 heads=2 head_dim=16 q_len=150 kv_len=151",
    "pattern=window left=10 right=0 sinks=1000 heads=2 head_dim=16 q_len=150",
    "pattern=window left=10 right=30 causal=0 sinks=70 heads=2 head_dim=16 q_len=150 kv_len=90",
    "pattern=window left=200 right=0 sinks=64 block=16 heads=8 kv_heads=2 head_dim=64 q_len=1 "
    "kv_len=4097 kv_split=5",
    /* more parts than a merge weighs at a time (TESS_MERGE_PARTS), each of one block */
    "pattern=dense heads=2 head_dim=64 q_len=3 kv_len=2560 kv_split=40",
    "pattern=window left=17 right=0 sinks=4 block=128 heads=2 head_dim=64 q_len=600 kv_len=601 "
    "dtype=f16",
    /* Tiles of two query blocks of 64 rows, of which each keeps keys that the other does not: at
     * one end of its local window only one of them, at the other end the other. Blocks of every
     * size that divides 64, vertical blocks that meet the window's beginning, windows that begin
     * within a block, sinks, rows that begin at a block and do not, splits. */
    "pattern=s2 block=64 local=3 stride=5 heads=5 head_dim=128 q_len=700 dtype=bf16",
    "pattern=s2 block=64 local=4 stride=3 heads=6 kv_heads=2 head_dim=72 q_len=640 kv_len=1728 "
    "dtype=f16 offset=2",
    "pattern=s2 block=32 local=5 stride=7 heads=7 head_dim=96 q_len=900 dtype=f16",
    "pattern=s2 block=32 local=6 stride=9 heads=3 head_dim=128 q_len=512 kv_len=768 dtype=bf16 "
    "kv_split=3",
    "pattern=s2 block=16 local=9 stride=4 heads=4 head_dim=128 q_len=333 kv_len=1357 dtype=bf16",
    "pattern=s2 block=16 local=12 stride=31 heads=2 head_dim=104 q_len=521 kv_len=1161 dtype=f16 "
    "scale=-0.1",
    "pattern=s2 block=8 local=20 stride=17 heads=3 head_dim=128 q_len=512 dtype=bf16 batch=2",
    "pattern=s2 block=64 local=2147483647 stride=8 heads=2 head_dim=128 q_len=150 dtype=bf16",
    /* entries of a list would be 2^40 bytes apart */
    "pattern=s2 block=64 local=2 stride=2097152 heads=32 head_dim=128 q_len=200 dtype=f16",
    "pattern=s2 block=64 local=3 stride=50 heads=2 head_dim=128 q_len=400 kv_len=1000 dtype=bf16",
    "pattern=window left=191 right=0 heads=2 head_dim=128 q_len=600 dtype=bf16",
    "pattern=window left=255 right=0 sinks=5 block=32 heads=2 head_dim=120 q_len=512 kv_len=1024 "
    "dtype=f16",
    "pattern=window left=300 right=0 sinks=200 block=16 heads=2 kv_heads=1 head_dim=128 q_len=448 "
    "dtype=bf16",
    "pattern=window left=1023 right=0 heads=1 head_dim=128 q_len=2048 dtype=bf16 batch_invariant=1",
    "pattern=window left=127 right=0 heads=1 head_dim=128 q_lens=512,1,300 kv_lens=512,700,364 "
    "dtype=bf16",
    /* Parts of the keys: of every pattern, before, at and after the diagonal; with an odd tail; one
     * sequence for each part, so that some rows see nothing of theirs. */
    "pattern=dense heads=4 kv_heads=2 head_dim=64 batch=4 q_len=100 kv_len=192 q_first=450 "
    "kv_first=0,192,384,576",
    "pattern=dense heads=2 head_dim=128 q_lens=300,300,300 kv_lens=256,256,88 q_first=300 "
    "kv_first=0,256,512 dtype=bf16",
    "pattern=dense causal=0 heads=2 head_dim=72 batch=3 q_len=70 kv_len=131 q_first=900,0,150 "
    "kv_first=128,0,384 dtype=f16",
    "pattern=s2 block=64 local=3 stride=5 heads=5 head_dim=128 batch=4 q_len=640 kv_len=320 "
    "q_first=600 kv_first=0,320,640,960 dtype=bf16",
    "pattern=s2 block=16 local=4 stride=3 heads=6 kv_heads=2 head_dim=72 q_lens=130,130,130,1 "
    "kv_lens=400,80,37,500 q_first=387,387,387,4000 kv_first=0,400,480,2048 dtype=f16 offset=1",
    "pattern=s2 block=7 local=2 stride=3 heads=4 kv_heads=2 per_kv_head=1 dense_heads=1 "
    "head_dim=16 batch=3 q_len=90 kv_len=40 q_first=33 kv_first=0,42,84",
    "pattern=s2 block=32 local=6 stride=9 heads=3 head_dim=128 batch=2 q_len=512 kv_len=333 "
    "q_first=256 kv_first=0,352 dtype=bf16 kv_split=3",
    "pattern=s2 causal=0 block=16 local=3 local_right=2 stride=4 heads=2 head_dim=32 batch=3 "
    "q_len=200 kv_len=97 q_first=150 kv_first=0,160,1600",
    "pattern=window left=100 right=0 sinks=40 block=32 heads=2 head_dim=64 batch=4 q_len=150 "
    "kv_len=96 q_first=120 kv_first=0,96,192,288",
    "pattern=window left=191 right=0 sinks=70 block=64 heads=2 head_dim=128 batch=3 q_len=400 "
    "kv_len=300 q_first=200 kv_first=0,64,320 dtype=bf16",
    "pattern=window left=40 right=90 causal=0 sinks=300 block=16 heads=3 head_dim=48 batch=4 "
    "q_len=60 kv_len=111 q_first=0,50,700,130 kv_first=112,0,112,224 dtype=f16",
    "pattern=dense heads=8 kv_heads=1 head_dim=128 batch=3 q_len=1 kv_len=1000 q_first=3000 "
    "kv_first=0,1024,2048 batch_invariant=1 dtype=bf16",
    "pattern=dense heads=2 head_dim=64 batch=2 q_len=40 kv_len=0 q_first=0 kv_first=64",
    /* Codes of 8 bits: few rows and many, every type of Q, parts of keys. */
    "pattern=dense heads=8 kv_heads=2 head_dim=128 q_len=1 kv_len=701 dtype=bf16 kv_dtype=e4m3",
    "pattern=dense heads=4 kv_heads=4 head_dim=64 batch=2 q_len=2 kv_len=333 kv_dtype=i8",
    "pattern=s2 block=16 local=2 stride=4 heads=8 kv_heads=2 head_dim=72 q_len=3 kv_len=901 "
    "dtype=f16 kv_dtype=e4m3 kv_split=3",
    "pattern=s2 block=32 local=3 stride=5 heads=5 kv_heads=1 head_dim=256 q_len=130 kv_len=517 "
    "dtype=f16 kv_dtype=i8",
    "pattern=s2 block=5 local=4 stride=3 heads=4 kv_heads=2 head_dim=24 q_lens=1,90,7 "
    "kv_lens=400,190,7 dtype=bf16 kv_dtype=i8",
    "pattern=window left=90 right=0 sinks=9 heads=2 kv_heads=1 head_dim=104 q_len=260 kv_len=300 "
    "kv_dtype=e4m3",
    "pattern=dense causal=0 heads=3 head_dim=8 q_len=33 kv_len=70 batch=2 kv_dtype=e4m3",
    "pattern=dense heads=4 kv_heads=2 head_dim=40 q_len=20 kv_len=96 batch=3 q_first=100 "
    "kv_first=0,64,128 dtype=bf16 kv_dtype=e4m3",
    /* Few rows, each in a block of its own with another local window. */
    "pattern=s2 block=1 local=2 stride=5 heads=2 head_dim=16 q_len=3 kv_len=40",
    /* Caches in pages and slots: drafts, a chunk, sequences of mixed lengths, two storage groups,
     * parts of the keys. */
    "op=decode heads=8 kv_heads=2 head_dim=64 kv_len=1100 pattern=dense page=16 dtype=bf16",
    "op=decode heads=8 kv_heads=4 head_dim=128 batch=3 q_len=5 kv_len=999 block=64 local=2 "
    "stride=4 per_kv_head=1 page=64 compact=1 dtype=f16",
    "op=decode heads=6 kv_heads=3 head_dim=40 q_lens=1,0,70,3 kv_lens=700,90,333,3 block=16 "
    "local=3 stride=8 dense_heads=1 per_kv_head=1 page=128 compact=1",
    "op=decode heads=4 kv_heads=1 head_dim=256 kv_lens=5,1300,64 block=32 local=1 stride=6 "
    "compact=1 dtype=bf16",
    "op=decode heads=2 head_dim=72 batch=2 q_len=40 kv_len=131 q_first=900,150 kv_first=128,0 "
    "pattern=dense page=32",
    "op=decode heads=8 kv_heads=2 head_dim=128 batch=3 q_len=5 kv_len=640 block=32 local=3 "
    "stride=5 "
    "per_kv_head=1 page=32 compact=1 q_first=1915 kv_first=0,640,1280 dtype=bf16",
    "op=decode heads=6 kv_heads=3 head_dim=40 q_lens=1,70,3,1 kv_lens=700,90,333,0 block=16 "
    "local=3 stride=8 dense_heads=1 per_kv_head=1 compact=1 kv_first=112,320,16,64 dtype=f16",
    "op=decode heads=2 head_dim=64 batch=4 q_len=3 kv_len=400 pattern=window left=90 right=0 "
    "sinks=40 block=16 page=16 compact=1 kv_first=0,16,32,400",
    "op=decode heads=2 kv_heads=1 head_dim=96 q_lens=64,1,32 kv_lens=1064,64,564 block=16 local=8 "
    "stride=8 per_kv_head=1 compact=1 dtype=f16 kv_split=3",
    "op=decode heads=4 kv_heads=2 head_dim=128 batch=2 q_len=100 kv_len=717 pattern=dense "
    "page=64 dtype=bf16",
    /* a whole prompt, and rows before its first key, in a compact cache */
    "op=decode pattern=s2 block=4 local=2 stride=3 heads=4 kv_heads=2 head_dim=8 q_len=50 "
    "kv_len=50 compact=1",
    "op=decode pattern=s2 block=1 local=1 stride=3 homo=1 heads=2 head_dim=8 q_len=29 kv_len=19 "
    "compact=1 dtype=bf16 kv_split=4",
    /* Strides of layers with many heads: a column is read by few rows, far apart. */
    "pattern=s2 block=16 local=2 stride=64 heads=4 kv_heads=2 head_dim=64 q_len=200 kv_len=2300 "
    "dtype=bf16",
    "pattern=s2 block=16 local=1 stride=64 heads=2 head_dim=40 q_len=1200",
    "pattern=s2 block=64 local=2 stride=64 heads=2 head_dim=128 q_len=150 kv_len=4300 dtype=bf16",
    "pattern=s2 block=8 local=3 stride=128 heads=3 head_dim=72 q_len=1100 dtype=f16",
};

int list_build(problem_list *list, const char *folder) {
    memset(list, 0, sizeof *list);
    cover *c = malloc(sizeof *c);
    list->lines = calloc(2 * LIST_MOST, sizeof *list->lines);
    list->flops = calloc(2 * LIST_MOST, sizeof *list->flops);
    if (!c || !list->lines || !list->flops) {
        fprintf(stderr, "out of memory\n");
        free(c);
        return -1;
    }
    cover_init(c);
    list->pairs = c->pairs;
    list->infeasible = c->infeasible;
    for (unsigned turn = 0; c->left > 0 && list->count < 2 * LIST_MOST - 64; turn++) {
        int v[FACTORS];
        next_values(c, turn, v);
        close_pairs(c, v);
        for (int f = 0; f < FACTORS; f++)
            if (v[f] == UNSET) v[f] = 0; /* means nothing for this kind */
        list->flops[list->count] = cost(v, kv_heads_of(v));
        if (write_line(v, list->count, folder, list->lines[list->count]) != 0) {
            free(c);
            return -1;
        }
        list->count++;
    }
    list->covered = c->pairs - c->infeasible - c->left;
    free(c);
    for (int n = 0; n < USUAL_BLOCKS; n++) {
        every_remainder(list->lines[list->count++], blocks[n], 1,
                        n % 2 ? "dtype=bf16" : "offset=1");
        every_remainder(list->lines[list->count++], blocks[n], 1,
                        "kv_split=4 kv_heads=1 per_kv_head=1");
        every_remainder(list->lines[list->count++], blocks[n], 7, n % 2 ? "offset=1" : "dtype=f16");
    }
    for (size_t n = 0; n < sizeof further / sizeof further[0]; n++)
        snprintf(list->lines[list->count++], LIST_LINE, "%s", further[n]);
    return 0;
}

void list_free(problem_list *list) {
    free(list->lines);
    free(list->flops);
    memset(list, 0, sizeof *list);
}

/* ------------------------------------------------------------------ random problems */

static uint64_t next(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static int64_t between(uint64_t *state, int64_t low, int64_t high) {
    return low + (int64_t)(next(state) % (uint64_t)(high - low + 1));
}

/* Short lengths are as likely as long ones. */
static int64_t length(uint64_t *state, int64_t most) {
    return between(state, 0, between(state, 0, 1) ? most : 40);
}

/* Rows before, among and after keys that are a part of a sequence's. */
static void add_positions(writer *w, uint64_t *state, int sequences, const int64_t *kv, int block) {
    const int keys = (int)between(state, 0, 2) != 0;
    int64_t first[8];
    add(w, " kv_first=");
    for (int n = 0; n < sequences; n++) {
        first[n] = keys ? block * between(state, 0, 1000 / block + 1) : 0;
        add(w, "%s%lld", n ? "," : "", (long long)first[n]);
    }
    if (keys && between(state, 0, 2) == 0) return;
    add(w, " q_first=");
    for (int n = 0; n < sequences; n++)
        add(w, "%s%lld", n ? "," : "", (long long)between(state, 0, first[n] + kv[n] + 200));
}

/* Heads of the model by their numbers: for each kv head another one of the model, with its query
 * heads from any one on, in turn. */
static void add_ids(writer *w, uint64_t *state, int kv_heads, int group, int total) {
    int model[64];
    for (int g = 0; g < total / group; g++) model[g] = g;
    for (int g = 0; g < kv_heads; g++) {
        const int other = (int)between(state, g, total / group - 1), chosen = model[other],
                  from = (int)between(state, 0, group - 1);
        model[other] = model[g];
        for (int m = 0; m < group; m++)
            add(w, "%s%d", g || m ? "," : " head_ids=", chosen * group + (from + m) % group);
    }
}

int list_random(uint64_t seed, uint64_t index, const char *folder, char line[LIST_LINE]) {
    writer w = {line, 0};
    uint64_t s = seed * 0x2545f4914f6cdd1du + index;
    const int kv_heads = (int)between(&s, 1, 4), group = (int)between(&s, 1, 5),
              heads = kv_heads * group;
    const int block = (int)between(&s, 0, 2) ? 16 << between(&s, 0, 3) : (int)between(&s, 1, 100);
    const int packed = between(&s, 0, 2) == 0, sequences = (int)between(&s, 1, packed ? 6 : 3);
    const int causal = between(&s, 0, 2) != 0;
    int64_t q[8] = {0}, kv[8] = {0}, longest = 0;
    for (int n = 0; n < sequences; n++) {
        q[n] = !packed && n ? q[0] : length(&s, 400);
        kv[n] = !packed && n ? kv[0] : between(&s, 0, 2) ? q[n] + length(&s, 900) : length(&s, 500);
        if (kv[n] > longest) longest = kv[n];
    }
    char name[64];
    snprintf(name, sizeof name, "random-%llu-%llu", (unsigned long long)seed,
             (unsigned long long)index);
    switch (between(&s, 0, 5)) {
    case 0:
    case 1:
    case 2: {
        add(&w, "pattern=s2 block=%d local=%d stride=%d", block, (int)between(&s, 1, 12),
            (int)between(&s, 1, 20));
        const int total = heads * (int)between(&s, 1, 3);
        if (total != heads) {
            const int first = (int)between(&s, 0, total / heads - 1) * heads;
            uint64_t own = s; /* so that what follows stays as it was without lists */
            if (between(&own, 0, 1))
                add_ids(&w, &own, kv_heads, group, total);
            else
                add(&w, " head_first=%d", first);
            add(&w, " heads_total=%d", total);
        }
        if (between(&s, 0, 2) == 0) add(&w, " dense_heads=%d", (int)between(&s, 0, total));
        if (causal) {
            add(&w, " offset=%d", (int)between(&s, 0, 9));
            if (between(&s, 0, 3) == 0) add(&w, " per_kv_head=1");
            if (between(&s, 0, 3) == 0) add(&w, " homo=1");
        } else if (between(&s, 0, 1))
            add(&w, " local_right=%d", (int)between(&s, 1, 12));
        break;
    }
    case 3: add(&w, "pattern=dense"); break;
    case 4:
        add(&w, "pattern=window left=%d right=%d sinks=%d", (int)between(&s, -1, 300),
            causal ? 0 : (int)between(&s, -1, 300), (int)(between(&s, 0, 1) * between(&s, 0, 150)));
        break;
    default:
        if (add_mask(&w, folder, name, (int)between(&s, 0, 1), between(&s, 0, 1) ? heads : 1,
                     (longest + block - 1) / block, block, next(&s)) != 0)
            return -1;
    }
    if (!causal) add(&w, " causal=0");
    add_heads(&w, heads, kv_heads);
    add(&w, " head_dim=%d", 8 * (int)between(&s, 1, 32));
    if (packed) {
        for (int side = 0; side < 2; side++) {
            add(&w, side ? " kv_lens=" : " q_lens=");
            for (int n = 0; n < sequences; n++)
                add(&w, "%s%lld", n ? "," : "", (long long)(side ? kv[n] : q[n]));
        }
    } else
        add(&w, " batch=%d q_len=%lld kv_len=%lld", sequences, (long long)q[0], (long long)kv[0]);
    add(&w, " dtype=%s", dtypes[between(&s, 0, 2)]);
    if (between(&s, 0, 3) == 0) add(&w, " kv_split=%d", (int)between(&s, 1, 9));
    if (between(&s, 0, 3) == 0) add(&w, " batch_invariant=1");
    if (between(&s, 0, 3) == 0) add(&w, " scale=0.0078125");
    if (between(&s, 0, 3) == 0) add(&w, " tile_rows=%d", (int)between(&s, 1, 200));
    /* Where the line names no block, it is the default. */
    if (between(&s, 0, 3) == 0)
        add_positions(&w, &s, sequences, kv, strstr(line, "block=") ? block : 64);
    add(&w, " seed=%llu", (unsigned long long)index);
    return 0;
}
