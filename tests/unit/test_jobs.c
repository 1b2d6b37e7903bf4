/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Jobs against the formulas of tessera.h: thousands of random layouts, batches, tiles and splits.
 * What a kernel would see of each job, pair by pair, must be what the pattern keeps, each pair in
 * exactly one part, and nothing may be listed that no row of the tile reads.
 */
#include "fixtures/batches.h"

/* ------------------------------------------------------------------ one case */

typedef struct instance {
    batch b;
    uint32_t tile_rows, pack_rows;
    tess_split split;
    uint64_t section_blocks;
    bool from_end;
    tess_job *out;
    tess_merge *merges;
} instance;

static void instance_random(instance *c, uint64_t *seed) {
    memset(c, 0, sizeof *c);
    batch_random(&c->b, seed, test_between(seed, 0, 3) ? 70 : 160, 2);
    c->tile_rows = (uint32_t)test_between(seed, 1, test_between(seed, 0, 1) ? 12 : 90);
    c->pack_rows = (uint32_t)test_between(seed, 0, 20);
    c->section_blocks = test_between(seed, 0, 1) ? (uint64_t)test_between(seed, 1, 30) : 0;
    c->from_end = test_between(seed, 0, 1);
    switch (test_between(seed, 0, 4)) {
    case 0: c->split.max_parts = (uint32_t)test_between(seed, 1, 5); break;
    case 1: c->split.length = (uint32_t)test_between(seed, 1, 6); break;
    case 2:
        c->split.length = (uint32_t)test_between(seed, 1, 6);
        c->split.fixed = true;
        break;
    case 3:
        c->split.length = (uint32_t)test_between(seed, 1, 2);
        c->split.fixed = c->split.grows = true;
        break;
    default: break;
    }
}

static void instance_plan(instance *c) {
    tess_jobs *jobs = &c->b.jobs;
    snprintf(c->b.tiles, sizeof c->b.tiles, "tile_rows=%u pack_rows=%u split=%u,%u,%d",
             c->tile_rows, c->pack_rows, c->split.max_parts, c->split.length, c->split.fixed);
    tess_status status = batch_jobs(&c->b, c->tile_rows, c->pack_rows);
    jobs->split = c->split;
    if (status == TESS_OK && c->from_end)
        tess_grid_count_from_end(&jobs->grid, c->b.layout, c->tile_rows);
    if (status == TESS_OK) status = tess_jobs_count(jobs);
    if (status != TESS_OK) FAIL(&c->b, "%s", tess_last_error());
    batch_tables(&c->b, jobs->tiler->n_entries);
    c->out = exact(jobs->n_jobs, sizeof *c->out);
    c->merges = exact(jobs->n_merges, sizeof *c->merges);
    tess_tiler_entries(jobs->tiler, c->b.entries, c->b.bits);
    jobs->section_blocks = c->section_blocks;
    tess_jobs_place(jobs, c->out, c->merges);
}

static void instance_free(instance *c) {
    free(c->out);
    free(c->merges);
    batch_free(&c->b);
}

/* ------------------------------------------------------------------ what a kernel would see */

typedef struct seen {
    uint8_t *pairs; /* [head][row][key] of one sequence: in how many parts a pair was kept */
    uint8_t *rows;  /* [head][row]: how many results are written */
} seen;

static int64_t floor_block(int64_t p, int64_t block) { return floor_divide(p, block); }

/* One listed key block of a job. */
static void see_block(const instance *c, const tess_job *job, int64_t j, bool masked, uint32_t bits,
                      int64_t *last, seen *s) {
    const tess_sequence *q = &c->b.sequences[job->sequence];
    int64_t block = block_size(&c->b.x), p0 = q->q_first,
            i_first = floor_block(p0 + job->row, block);
    bool any = false;
    if (j <= *last || j * block >= q->kv_len)
        FAIL(&c->b, "block %lld is listed after %lld of %d keys", (long long)j, (long long)*last,
             q->kv_len);
    *last = j;
    for (int64_t r = job->row; r < (int64_t)job->row + job->rows; r++) {
        int64_t p = p0 + r, i = floor_block(p, block);
        for (int64_t t = j * block; t < (j + 1) * block && t < q->kv_len; t++) {
            bool kept = !masked || tess_kept(&c->b.classes[job->cls], p, t, i, j, bits, i_first);
            any = any || kept;
            for (int32_t h = job->head; h < job->head + job->heads; h++)
                s->pairs[((int64_t)h * q->q_len + r) * q->kv_len + t] += kept;
        }
    }
    if (!any)
        FAIL(&c->b, "block %lld is listed, but no row from %u on reads it", (long long)j, job->row);
}

static void see_job(const instance *c, const tess_job *job, seen *s) {
    const tess_class *cls = &c->b.classes[job->cls];
    bool masked = cls->flags & TESS_CLASS_MASK_ENTRIES, bits = cls->flags & TESS_CLASS_BITS;
    int64_t last = -1;
    assert_true((uint64_t)job->left_offset + job->left_count <= c->b.jobs.tiler->n_entries);
    assert_true((uint64_t)job->right_offset + job->right_count <= c->b.jobs.tiler->n_entries);
    assert_true((uint32_t)job->mask_head + job->mask_tail <= job->interval_blocks);
    if (bits) assert_true(masked && job->interval_blocks == 0 && job->right_count == 0);
    for (uint32_t n = job->left_offset; n < job->left_offset + job->left_count; n++)
        see_block(c, job, c->b.entries[n], masked, bits ? c->b.bits[n] : 0, &last, s);
    for (uint32_t n = 0; n < job->interval_blocks; n++)
        see_block(c, job, (int64_t)job->interval_start + n,
                  n < job->mask_head || n >= job->interval_blocks - job->mask_tail, 0, &last, s);
    for (uint32_t n = job->right_offset; n < job->right_offset + job->right_count; n++)
        see_block(c, job, c->b.entries[n], masked, 0, &last, s);
}

/* Heads and rows of a job: in range, of one kv head and class, within the tile, within 32 query
 * blocks, and cut where all sequences are cut. */
static void check_shape(const instance *c, const tess_job *job) {
    int32_t group = c->b.x.layout.n_heads / c->b.x.layout.n_kv_heads;
    assert_in_range(job->sequence, 0, c->b.n_sequences - 1);
    const tess_sequence *q = &c->b.sequences[job->sequence];
    assert_true(job->heads >= 1 && job->rows >= 1);
    assert_true((int64_t)job->row + job->rows <= q->q_len);
    assert_true(job->head + job->heads <= c->b.x.layout.n_heads);
    for (int32_t h = job->head; h < job->head + job->heads; h++) {
        assert_int_equal(job->head / group, h / group);
        assert_int_equal(job->cls, c->b.layout->head_class[h]);
    }
    assert_true((uint32_t)job->rows * job->heads <= c->tile_rows);
    if (job->heads > 1) assert_true((uint32_t)job->rows * job->heads <= c->pack_rows);
    int64_t block = block_size(&c->b.x), p = (int64_t)q->q_first + job->row, end = p + job->rows;
    int64_t blocks = floor_block(end - 1, block) - floor_block(p, block) + 1;
    assert_true(blocks <= 32);
    const tess_grid *grid = &c->b.jobs.grid;
    const int64_t p0 = q->q_first;
    int64_t origin = grid->from_end && p0 >= 0 ? (p0 + q->q_len) % grid->unit : 0;
    int64_t begin_in_cell = p - origin - floor_block(p - origin, grid->unit) * grid->unit;
    int64_t end_in_cell = end - origin - floor_block(end - origin, grid->unit) * grid->unit;
    if (job->row != 0) assert_int_equal(0, begin_in_cell % grid->step);
    if ((int64_t)job->row + job->rows != q->q_len) assert_int_equal(0, end_in_cell % grid->step);
}

static uint64_t cost(const tess_job *job) {
    return (uint64_t)job->left_count + job->interval_blocks + job->right_count;
}

/* Longest first; equal ones by sequence, kv head and row. Where sections are asked for, the order
 * may begin anew with a kv head that comes after all before; none of those then comes again. */
static void check_order(const instance *c) {
    uint64_t group = (uint64_t)(c->b.x.layout.n_heads / c->b.x.layout.n_kv_heads), most = 0,
             least = 0;
    for (uint64_t n = 0; n < c->b.jobs.n_jobs; n++) {
        const tess_job *b = &c->out[n], *a = n ? b - 1 : b;
        uint64_t kv_a = (uint64_t)a->sequence << 16 | (uint64_t)a->head / group,
                 kv_b = (uint64_t)b->sequence << 16 | (uint64_t)b->head / group;
        uint64_t place_a = kv_a << 32 | a->row, place_b = kv_b << 32 | b->row;
        if (cost(a) < cost(b) || (cost(a) == cost(b) && place_a > place_b)) {
            if (c->section_blocks == 0 || kv_b <= most)
                FAIL(&c->b, "jobs %llu and %llu are out of order", (unsigned long long)n - 1,
                     (unsigned long long)n);
            least = most + 1;
        }
        if (kv_b < least)
            FAIL(&c->b, "job %llu is of a section that had ended", (unsigned long long)n);
        if (kv_b > most) most = kv_b;
    }
}

/* Every partial belongs to one part of one merge, and the parts of a merge are of its rows. */
static void check_merges(const instance *c, seen *s, uint32_t sequence) {
    for (uint64_t n = 0; n < c->b.jobs.n_merges; n++) {
        const tess_merge *m = &c->merges[n];
        assert_int_equal(0, m->reserved);
        assert_true(m->parts > 1);
        assert_true((uint64_t)m->partial + m->parts <= c->b.jobs.n_partials);
        assert_true((uint32_t)m->rows * m->heads <= c->b.jobs.partial_rows);
        if (m->sequence != sequence) continue;
        for (int32_t h = m->head; h < m->head + m->heads; h++) {
            for (uint32_t r = m->row; r < m->row + m->rows; r++)
                s->rows[(int64_t)h * c->b.sequences[sequence].q_len + r]++;
        }
    }
}

static void check_partials(const instance *c) {
    uint32_t *owner = exact(c->b.jobs.n_partials, sizeof *owner);
    uint32_t widest = 0;
    for (uint64_t n = 0; n < c->b.jobs.n_partials; n++) owner[n] = UINT32_MAX;
    for (uint64_t n = 0; n < c->b.jobs.n_jobs; n++) {
        if (c->out[n].partial == TESS_NO_PARTIAL) continue;
        assert_true(c->out[n].partial < c->b.jobs.n_partials);
        assert_int_equal(UINT32_MAX, owner[c->out[n].partial]);
        owner[c->out[n].partial] = (uint32_t)n;
    }
    uint64_t used = 0;
    for (uint64_t n = 0; n < c->b.jobs.n_merges; n++) {
        const tess_merge *m = &c->merges[n];
        uint64_t least = UINT64_MAX, most = 0;
        int64_t end = -1;
        for (uint32_t part = 0; part < m->parts; part++, used++) {
            assert_true(owner[m->partial + part] != UINT32_MAX);
            const tess_job *job = &c->out[owner[m->partial + part]];
            assert_true(job->sequence == m->sequence && job->head == m->head &&
                        job->heads == m->heads && job->row == m->row && job->rows == m->rows);
            /* Parts follow each other in rising blocks. */
            int64_t first = job->left_count        ? (int64_t)c->b.entries[job->left_offset]
                            : job->interval_blocks ? (int64_t)job->interval_start
                            : job->right_count     ? (int64_t)c->b.entries[job->right_offset]
                                                   : -1;
            assert_true(first > end);
            end = first;
            if (cost(job) < least) least = cost(job);
            if (cost(job) > most) most = cost(job);
        }
        if (c->split.max_parts) assert_true(m->parts <= c->split.max_parts);
        if (c->split.length) assert_true(most <= c->split.length * (c->split.grows ? 4 : 1));
        if (!c->split.fixed) assert_true(most - least <= 1);
        if (m->rows * (uint32_t)m->heads > widest) widest = m->rows * (uint32_t)m->heads;
    }
    assert_int_equal(c->b.jobs.n_partials, used);
    assert_int_equal(c->b.jobs.partial_rows, widest);
    free(owner);
}

static void check_sequence(const instance *c, uint32_t sequence) {
    const tess_sequence *q = &c->b.sequences[sequence];
    const int32_t heads = c->b.x.layout.n_heads;
    seen s = {batch_pairs(&c->b, sequence), calloc((size_t)heads * (size_t)q->q_len + 1, 1)};
    assert_non_null(s.rows);
    for (uint64_t n = 0; n < c->b.jobs.n_jobs; n++) {
        const tess_job *job = &c->out[n];
        if (job->sequence != sequence) continue;
        see_job(c, job, &s);
        if (job->partial != TESS_NO_PARTIAL) continue;
        for (int32_t h = job->head; h < job->head + job->heads; h++) {
            for (uint32_t r = job->row; r < job->row + job->rows; r++)
                s.rows[(int64_t)h * q->q_len + r]++;
        }
    }
    check_merges(c, &s, sequence);
    for (int32_t h = 0; h < heads; h++)
        for (int64_t r = 0; r < q->q_len; r++)
            if (s.rows[h * q->q_len + r] != 1)
                FAIL(&c->b, "sequence %u, head %d, row %lld is written %d times", sequence, h,
                     (long long)r, s.rows[h * q->q_len + r]);
    batch_check_pairs(&c->b, sequence, s.pairs);
    free(s.pairs);
    free(s.rows);
}

static void instance_check(const instance *c) {
    for (uint64_t n = 0; n < c->b.jobs.n_jobs; n++) check_shape(c, &c->out[n]);
    check_order(c);
    check_partials(c);
    for (uint32_t s = 0; s < c->b.n_sequences; s++) check_sequence(c, s);
}

/* One of which nothing but that is of interest. */
static void instance_try(instance *c) {
    instance_plan(c);
    instance_check(c);
    instance_free(c);
}

static tess_pattern dense_pattern(int32_t block) {
    return (tess_pattern){
        .struct_size = sizeof(tess_pattern), .kind = TESS_PATTERN_DENSE, .block = block};
}

/* An instance of one sequence. */
static void instance_of(instance *c, tess_pattern pattern, int32_t heads, int32_t kv_heads,
                        int64_t tokens, int32_t q_len, int32_t kv_len) {
    memset(c, 0, sizeof *c);
    batch_of(&c->b, pattern, heads, kv_heads, tokens, q_len, kv_len);
}

/* As many queries as keys, in tiles of so many rows. */
static void square_of(instance *c, tess_pattern pattern, int32_t heads, int32_t kv_heads,
                      int32_t tokens, int32_t tile_rows) {
    instance_of(c, pattern, heads, kv_heads, tokens, tokens, tokens);
    c->tile_rows = tile_rows;
}

static void test_against_formulas(void **state) {
    (void)state;
    uint64_t seed = 31, split = 0, packed = 0;
    for (int n = 0; n < 3000; n++) {
        instance c;
        instance_random(&c, &seed);
        instance_plan(&c);
        instance_check(&c);
        split += c.b.jobs.n_merges;
        for (uint64_t j = 0; j < c.b.jobs.n_jobs; j++) packed += c.out[j].heads > 1;
        instance_free(&c);
    }
    assert_true(split > 1000 && packed > 1000);
}

/* Many query blocks in a tile, and more rows than a job may have. A mask reaches past the 32 blocks
 * of a tile. */
static void test_tall_tiles(void **state) {
    (void)state;
    uint64_t seed = 32;
    for (int n = 0; n < 300; n++) {
        instance c;
        instance_random(&c, &seed);
        batch_resize(&c.b, &seed, (int32_t)test_between(&seed, 1, 4), 80);
        c.tile_rows = (uint32_t)test_between(&seed, 60, 100000);
        instance_try(&c);
    }
}

/* Block sizes that are no powers of two, or smaller than any kernel's step, under tiles of 1 to 32
 * query blocks. */
static void test_block_sizes(void **state) {
    (void)state;
    static const int32_t blocks[] = {1, 2, 3, 5, 7, 8, 17, 48, 100};
    uint64_t seed = 34, wide = 0;
    for (size_t b = 0; b < sizeof blocks / sizeof *blocks; b++)
        for (int n = 0; n < 180; n++) {
            instance c;
            instance_random(&c, &seed);
            batch_of_blocks(&c.b, &seed, blocks[b]);
            c.tile_rows =
                (uint32_t)(blocks[b] * test_between(&seed, 1, 40) + test_between(&seed, 0, 3));
            instance_plan(&c);
            for (uint64_t e = 0;
                 c.b.x.pattern.kind == TESS_PATTERN_BLOCKS && e < c.b.jobs.tiler->n_entries; e++)
                wide += c.b.bits[e] >> 16 != 0;
            instance_check(&c);
            instance_free(&c);
        }
    assert_true(wide > 100); /* keys that only rows past the sixteenth query block of a tile keep */
}

/* ------------------------------------------------------------------ known jobs */

/* Two query blocks of 64 in a tile of 128: the diagonal pair is masked, and of the local blocks the
 * one that the second row of blocks has left. */
static void test_known_jobs(void **state) {
    (void)state;
    instance c;
    square_of(&c, s2_pattern(64, 8, 64, 0), 64, 64, 131072, 128);
    c.pack_rows = 16;
    instance_plan(&c);
    assert_int_equal(65536, c.b.jobs.n_jobs);
    assert_int_equal(0, c.b.jobs.n_merges);
    assert_int_equal(64 * 32, c.b.jobs.tiler->n_entries);
    for (uint64_t n = 0; n < c.b.jobs.n_jobs; n++) {
        const tess_job *job = &c.out[n];
        int64_t i = job->row / 64, start = i >= 7 ? i - 7 : 0, first = (64 - job->head) % 64;
        assert_int_equal(128, job->rows);
        assert_int_equal(start, job->interval_start);
        assert_int_equal(i + 2 - start, job->interval_blocks);
        assert_int_equal(2, job->mask_tail);
        assert_int_equal(i >= 7, job->mask_head);
        assert_int_equal(start > first ? (start - first - 1) / 64 + 1 : 0, job->left_count);
    }
    check_order(&c);
    instance_free(&c);
}

/* A part of the keys under a tile of two blocks of rows that lies past it: dense rows need no mask,
 * and of an S2 class the part holds a piece of the vertical list. */
static void test_known_parts(void **state) {
    (void)state;
    instance c;
    for (int strided = 0; strided < 2; strided++) {
        instance_of(&c, strided ? s2_pattern(64, 2, 4, 0) : dense_pattern(64), 1, 1, 4096, 128,
                    1600);
        c.b.sequences[0].q_first = 2048;
        c.b.first_block[0] = 10;
        c.tile_rows = 128;
        instance_plan(&c);
        assert_int_equal(1, c.b.jobs.n_jobs);
        assert_int_equal(strided ? 0 : 15, c.out[0].interval_blocks);
        assert_int_equal(strided ? 0 : 10, c.out[0].interval_start);
        assert_int_equal(0, c.out[0].mask_head + c.out[0].mask_tail);
        assert_int_equal(strided ? 4 : 0, c.out[0].left_count); /* blocks 12, 16, 20, 24 */
        if (strided) assert_int_equal(12, c.b.entries[c.out[0].left_offset]);
        instance_check(&c);
        instance_free(&c);
    }
}

/* One new token: nothing is masked, and the heads of a group that share a class share a job. */
static void test_decode(void **state) {
    (void)state;
    instance c;
    tess_pattern p = s2_pattern(64, 16, 8, 0);
    p.flags = TESS_PATTERN_PER_KV_HEAD;
    instance_of(&c, p, 32, 8, 8192, 1, 5000);
    c.tile_rows = 128;
    c.pack_rows = 16;
    instance_plan(&c);
    assert_int_equal(8, c.b.jobs.n_jobs);
    for (uint64_t n = 0; n < c.b.jobs.n_jobs; n++) {
        assert_int_equal(4, c.out[n].heads);
        assert_int_equal(1, c.out[n].rows);
        assert_int_equal(0, c.out[n].mask_head);
        assert_int_equal(0, c.out[n].mask_tail);
    }
    free(c.out), free(c.merges);
    batch_free_tables(&c.b);
    /* A tile that begins with the last row of a block sees that block whole: of its two blocks only
     * the second is masked. */
    c.b.sequences[0] = (tess_sequence){.q_len = 65, .kv_len = 640, .q_first = 640 - 65};
    instance_plan(&c);
    assert_int_equal(32, c.b.jobs.n_jobs);
    for (uint64_t n = 0; n < c.b.jobs.n_jobs; n++) {
        assert_int_equal(65, c.out[n].rows);
        assert_int_equal(1, c.out[n].mask_tail);
    }
    instance_free(&c);
}

/* The last tile of a dense sequence reads the most keys: counted from the end it is full. */
static void test_dense_from_end(void **state) {
    (void)state;
    instance c;
    square_of(&c, dense_pattern(64), 1, 1, 1000, 192);
    c.from_end = true;
    instance_plan(&c);
    static const uint32_t row[] = {808, 616, 424, 232, 40, 0}, blocks[] = {16, 13, 10, 7, 4, 1};
    assert_int_equal(6, c.b.jobs.n_jobs);
    for (uint64_t n = 0; n < c.b.jobs.n_jobs; n++) {
        assert_int_equal(row[n], c.out[n].row);
        assert_int_equal(n < 5 ? 192 : 40, c.out[n].rows);
        assert_int_equal(blocks[n], cost(&c.out[n]));
    }
    instance_check(&c);
    instance_free(&c);
}

/* Tiles shorter than a block are counted from the end, too: drafts that lie on both sides of a
 * multiple of the tile's rows, or of the block, are one tile and read the keys once. */
static void test_drafts_from_end(void **state) {
    (void)state;
    for (int32_t keys = 8192; keys < 8192 + 64; keys++) {
        instance c;
        instance_of(&c, dense_pattern(64), 8, 2, keys, 4, keys);
        c.tile_rows = c.pack_rows = 16;
        c.from_end = true;
        instance_plan(&c);
        assert_int_equal(2, c.b.jobs.n_jobs);
        for (uint64_t n = 0; n < c.b.jobs.n_jobs; n++) {
            assert_int_equal(4, c.out[n].rows);
            assert_int_equal(4, c.out[n].heads);
        }
        instance_check(&c);
        instance_free(&c);
    }
}

/* Whole blocks of 48 would leave a quarter of 128 rows unused, so tiles are cut inside blocks. */
static void test_cut_blocks(void **state) {
    (void)state;
    instance c;
    square_of(&c, s2_pattern(48, 2, 4, 0), 4, 4, 640, 128);
    instance_plan(&c);
    assert_int_equal(4 * 5, c.b.jobs.n_jobs);
    for (uint64_t n = 0; n < c.b.jobs.n_jobs; n++) {
        assert_int_equal(128, c.out[n].rows);
        assert_int_equal(0, c.out[n].row % 128);
    }
    instance_check(&c);
    instance_free(&c);
}

/* Past 16384 key blocks jobs are sorted in coarser steps, and no job is lost. */
static void test_many_blocks(void **state) {
    (void)state;
    instance c;
    square_of(&c, dense_pattern(1), 2, 1, 100000, 32);
    instance_plan(&c);
    assert_int_equal(2 * 3125, c.b.jobs.n_jobs);
    assert_int_equal(3, c.b.jobs.order.shift);
    uint64_t rows = 0;
    for (uint64_t n = 0; n < c.b.jobs.n_jobs; n++) {
        rows += c.out[n].rows;
        if (n) assert_true(cost(&c.out[n - 1]) >> 3 >= cost(&c.out[n]) >> 3);
    }
    assert_int_equal(200000, rows);
    instance_free(&c);
}

/* ------------------------------------------------------------------ refusals */

static void test_too_many_jobs(void **state) {
    (void)state;
    instance c;
    instance_of(&c, dense_pattern(1), 65535, 1, INT32_MAX, 70000, 70000);
    assert_int_equal(TESS_OK,
                     tess_jobs_create(&c.b.jobs, runtime, c.b.layout, c.b.sequences, 1, 1, 1));
    assert_error(tess_jobs_count(&c.b.jobs), TESS_ERROR_UNSUPPORTED, "tess_plan_create", "batch");
    tess_jobs_release(&c.b.jobs);
    /* Parts that do not fit although the jobs do. */
    tess_layout_release(c.b.layout);
    c.b.x.layout.n_heads = 40;
    c.b.layout = spec_layout(&c.b.x, runtime);
    c.b.sequences[0] = (tess_sequence){.q_len = 4, .kv_len = 2000000000, .q_first = 1999999996};
    assert_int_equal(TESS_OK,
                     tess_jobs_create(&c.b.jobs, runtime, c.b.layout, c.b.sequences, 1, 1, 1));
    c.b.jobs.split.length = 64;
    assert_error(tess_jobs_count(&c.b.jobs), TESS_ERROR_UNSUPPORTED, "tess_plan_create",
                 "kv_split");
    tess_jobs_release(&c.b.jobs);
    tess_layout_release(c.b.layout);
    /* Lists that do not fit: three residues of 2^31 - 1 blocks are at once, not so as many classes
     * of one block each. */
    c.b.x.pattern = (tess_pattern){.struct_size = sizeof(tess_pattern),
                                   .kind = TESS_PATTERN_S2,
                                   .block = 1,
                                   .local = 1,
                                   .stride = 3};
    c.b.x.pattern.dense_heads = 1;
    c.b.x.layout.n_heads = 3;
    c.b.layout = spec_layout(&c.b.x, runtime);
    tess_tiler tiler;
    assert_int_equal(TESS_OK, tess_tiler_create(&tiler, runtime, c.b.layout, INT32_MAX));
    assert_int_equal(2u * (INT32_MAX / 3) + 1, tiler.n_entries);
    tess_tiler_release(&tiler);
    tess_tiler_release(&tiler);
    tess_layout_release(c.b.layout);
    c.b.x.pattern = (tess_pattern){.struct_size = sizeof(tess_pattern),
                                   .kind = TESS_PATTERN_WINDOW,
                                   .flags = TESS_PATTERN_BIDIRECTIONAL,
                                   .block = 1};
    c.b.x.pattern.sinks = INT32_MAX;
    c.b.layout = spec_layout(&c.b.x, runtime);
    assert_int_equal(1, c.b.layout->n_classes);
    assert_int_equal(TESS_OK, tess_tiler_create(&tiler, runtime, c.b.layout, INT32_MAX));
    assert_int_equal(INT32_MAX, tiler.n_entries);
    tess_tiler_release(&tiler);
    tess_layout_release(c.b.layout);
}

/* A list that does not fit needs a layout of several classes with nearly every block in each. */
static void test_too_many_entries(void **state) {
    (void)state;
    tess_head_pattern patterns[3];
    tess_layout layout;
    tess_tiler tiler;
    memset(&layout, 0, sizeof layout);
    memset(patterns, 0, sizeof patterns);
    for (int n = 0; n < 3; n++)
        patterns[n] = (tess_head_pattern){
            .kind = TESS_HEAD_STRIDED, .causal = true, .block = 1, .local = 1, .stride = 1};
    layout.pattern.block = 1;
    layout.patterns = patterns;
    layout.n_classes = 3;
    assert_int_equal(TESS_ERROR_UNSUPPORTED,
                     tess_tiler_create(&tiler, runtime, &layout, INT32_MAX));
    tess_tiler_release(&tiler);
    /* Merged rows of a mask that are one too many. */
    const uint64_t start[] = {0, 2};
    const uint32_t columns[] = {0, 1};
    patterns[0] =
        (tess_head_pattern){.kind = TESS_HEAD_BLOCKS, .block = 1, .rows = {1, start, columns}};
    layout.n_classes = 1;
    tess_tile tile = {.first = 0, .last = 0, .i_first = 0, .i_last = 0};
    assert_int_equal(TESS_OK, tess_tiler_create(&tiler, runtime, &layout, 2));
    tiler.n_entries = UINT32_MAX - 1;
    assert_int_equal(TESS_ERROR_UNSUPPORTED, tess_tiler_join(&tiler, 0, &tile));
    tiler.n_entries = UINT32_MAX - 2;
    assert_int_equal(TESS_OK, tess_tiler_join(&tiler, 0, &tile));
    tess_tiler_release(&tiler);
}

static void test_failing_memory(void **state) {
    (void)state;
    uint64_t seed = 33;
    instance c;
    for (int n = 0; n < 60; n++) {
        instance_random(&c, &seed);
        bool done = false;
        for (uint64_t k = 1; !done; k++) {
            uint64_t live = heap.live;
            heap.calls = 0;
            heap.fail_at = k;
            tess_status status = batch_jobs(&c.b, c.tile_rows, c.pack_rows);
            if (status == TESS_OK) status = tess_jobs_count(&c.b.jobs);
            heap.fail_at = 0;
            done = status == TESS_OK;
            if (!done) assert_int_equal(TESS_ERROR_OUT_OF_MEMORY, status);
            tess_jobs_release(&c.b.jobs);
            assert_int_equal(live, heap.live);
        }
        instance_free(&c);
    }
}

int main(void) {
    return RUN_TESTS_BETWEEN(runtime_setup, runtime_teardown, TEST(test_against_formulas),
                             TEST(test_tall_tiles), TEST(test_block_sizes), TEST(test_known_jobs),
                             TEST(test_known_parts), TEST(test_decode), TEST(test_dense_from_end),
                             TEST(test_drafts_from_end), TEST(test_cut_blocks),
                             TEST(test_many_blocks), TEST(test_too_many_jobs),
                             TEST(test_too_many_entries), TEST(test_failing_memory));
}
