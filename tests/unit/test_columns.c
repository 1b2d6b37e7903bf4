/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Columns against the formulas of tessera.h: thousands of random layouts, batches and tiles. Every
 * key of every sequence is in exactly one column of its kv head, or in all parts of one that is
 * cut, and what a kernel would see of the segments, pair by pair, is what the pattern keeps, each
 * pair in exactly one segment.
 */
#include <tessera/tessera_column_walk.h>
#include <tessera/tessera_turns.h>

#include "fixtures/column_cases.h"

/* ------------------------------------------------------------------ what a kernel would see */

/* A run of rows against the segment's keys, of one head. Returns whether a pair is kept. */
static bool see_run(const instance *c, const tess_column *column, const tess_segment *segment,
                    const tess_row_run *run, int32_t head, uint8_t *pairs) {
    const tess_sequence *q = &c->b.sequences[column->sequence];
    const uint32_t block = (uint32_t)block_size(&c->b.x);
    const uint32_t end = (uint32_t)(segment->first + segment->blocks) * block;
    bool any = false;
    if (run->rows > 0) assert_true(run->row >= 0 && run->row + (int64_t)run->rows <= q->q_len);
    for (int64_t r = run->row; r < run->row + (int64_t)run->rows; r++) {
        const int64_t p = q->q_first + r, i = floor_divide(p, block);
        for (uint32_t k = segment->first * block; k < end && k < column->keys; k++) {
            const int64_t t = tess_column_key(column, block, k), j = t / block;
            const uint32_t m = k / block;
            if (m < 32 && !(run->bits >> m & 1)) continue;
            if (run->masked &&
                !tess_kept(&c->b.classes[segment->cls], p, t, i, j, run->bits, i - m))
                continue;
            any = true;
            pairs[(head * (int64_t)q->q_len + r) * q->kv_len + t]++;
        }
    }
    return any;
}

/* What there is from row `n` of a segment with turns to the end of a strip. */
static tess_row_run turn_run(const instance *c, const tess_segment *s, uint32_t n) {
    const uint32_t row = (uint32_t)s->row + n;
    const tess_turn turn = tess_turn_of(s, c->step_rows);
    for (uint32_t m = 0; m < turn.strips; m++) {
        const tess_turn_rows at = tess_turn_rows_at(s, c->step_rows, m);
        assert_true(at.row / c->step_rows == at.strip && at.rows >= 1);
        assert_true((at.row + at.rows - 1) / c->step_rows == at.strip);
        if (at.row == row)
            return (tess_row_run){(int32_t)row, at.rows, at.masked, UINT32_MAX, at.rows};
    }
    fail_msg("row %u is of no strip", row);
    return (tess_row_run){0};
}

static void see_column(const instance *c, const tess_column *column, uint8_t *pairs) {
    const int32_t group = c->b.x.layout.n_heads / c->b.x.layout.n_kv_heads;
    const tess_sequence *q = &c->b.sequences[column->sequence];
    for (uint32_t n = 0; n < column->segments; n++) {
        assert_true((uint64_t)column->segment + n < c->n_segments);
        const tess_segment *s = &c->segments[column->segment + n];
        const tess_class *cls = &c->b.classes[s->cls];
        bool any = false;
        assert_true(s->heads >= 1 && s->rows >= 1 && s->blocks >= 1);
        assert_true(s->first + s->blocks <= column->blocks);
        assert_true(s->head + s->heads <= c->b.x.layout.n_heads);
        if (s->mask_head != TESS_ALL_ROWS)
            assert_true((uint32_t)s->mask_head + s->mask_tail <= s->rows);
        for (int32_t h = s->head; h < s->head + s->heads; h++) {
            assert_int_equal(column->kv_head, h / group);
            assert_int_equal(s->cls, c->b.layout->head_class[h]);
            for (uint32_t at = 0; at < s->rows;) {
                const tess_row_run run =
                    c->turns ? turn_run(c, s, at)
                             : tess_row_run_at(s, cls, q, (uint32_t)block_size(&c->b.x),
                                               c->b.entries, c->b.bits, at);
                assert_true(run.taken >= 1);
                at += run.taken;
                any = see_run(c, column, s, &run, h, pairs) || any;
            }
        }
        /* Rows between blocks that lie apart may be all there are. */
        const bool together =
            column->first_blocks == column->blocks &&
            (column->blocks == 1 || column->step == (uint32_t)block_size(&c->b.x));
        if (!any && together && !c->turns && !(cls->flags & TESS_CLASS_BITS))
            FAIL(&c->b, "segment %u of the column of key %u reads nothing", n, column->key);
    }
}

/* How many columns of the table are cut ones. */
static uint64_t cut_columns(const instance *c) { return c->columns.n_cut * c->columns.parts; }

/* Every key once, for each kv head, or in all columns of the same keys. */
static void see_keys(const instance *c, const tess_column *column, uint8_t *keys) {
    const tess_sequence *q = &c->b.sequences[column->sequence];
    const uint32_t block = (uint32_t)block_size(&c->b.x);
    assert_true(column->keys >= 1 && column->keys <= c->tile_keys);
    assert_true(column->blocks >= 1 && column->first_blocks <= column->blocks);
    assert_true((column->keys - 1) / block + 1 == column->blocks);
    for (uint32_t k = 0; k < column->keys; k++) {
        const int64_t t = tess_column_key(column, block, k);
        assert_true(t >= 0 && t < q->kv_len);
        keys[(int64_t)column->kv_head * q->kv_len + t]++;
    }
}

static void check_sequence(const instance *c, uint32_t sequence) {
    const tess_sequence *q = &c->b.sequences[sequence];
    const int32_t kv_heads = c->b.x.layout.n_kv_heads;
    const int64_t key = c->b.first_block[sequence] * block_size(&c->b.x);
    uint8_t *pairs = batch_pairs(&c->b, sequence),
            *keys = calloc((size_t)kv_heads * (size_t)q->kv_len + 1, 1);
    assert_non_null(keys);
    for (uint64_t n = 0; n < c->n_columns; n++) {
        if (c->out[n].sequence != sequence) continue;
        if (n >= cut_columns(c) || n % c->columns.parts == 0) see_keys(c, &c->out[n], keys);
        see_column(c, &c->out[n], pairs);
    }
    for (int32_t g = 0; g < kv_heads; g++)
        for (int64_t t = 0; t < q->kv_len; t++)
            if (keys[g * (int64_t)q->kv_len + t] != (t >= key))
                FAIL(&c->b, "sequence %u (keys %lld to %d), kv head %d: key %lld is in %d columns",
                     sequence, (long long)key, q->kv_len, g, (long long)t,
                     keys[g * (int64_t)q->kv_len + t]);
    batch_check_pairs(&c->b, sequence, pairs);
    free(pairs);
    free(keys);
}

static uint64_t cost(const instance *c, const tess_column *column) {
    uint64_t rows = 0;
    for (uint32_t n = 0; n < column->segments; n++) {
        const tess_segment *s = &c->segments[column->segment + n];
        const bool listed =
            (s->step && !c->turns) || (c->b.classes[s->cls].flags & TESS_CLASS_BITS);
        rows += (uint64_t)s->rows * s->heads * (listed ? (uint64_t)block_size(&c->b.x) : 1);
    }
    return rows;
}

/* Columns with the same keys come one after the other, and have query heads and rows of their own:
 * a kernel adds up what they have. Those that are cut are longer than others may be. */
static void check_parts(const instance *c) {
    const uint32_t heads = (uint32_t)(c->b.x.layout.n_heads / c->b.x.layout.n_kv_heads),
                   parts = c->columns.parts, each = heads / c->parts;
    uint64_t rows = 0;
    for (uint64_t n = 0; n < cut_columns(c); n++) {
        const uint32_t part = (uint32_t)(n % parts), of_rows = part / c->parts,
                       strips =
                           ((uint32_t)c->b.sequences[c->out[n].sequence].q_len - 1) / c->step_rows +
                           1,
                       begin = strips * of_rows / c->row_parts * c->step_rows,
                       end = strips * (of_rows + 1) / c->row_parts * c->step_rows;
        const tess_column *own = &c->out[n], *first = own - part;
        tess_column same = *own;
        same.segment = first->segment;
        same.segments = first->segments;
        assert_memory_equal(first, &same, sizeof same);
        rows = cost(c, own) + (part == 0 ? 0 : rows);
        if (part + 1 == parts && rows <= c->least_rows)
            FAIL(&c->b, "column %llu is cut, and has few rows", (unsigned long long)n);
        for (uint32_t m = 0; m < own->segments; m++) {
            const tess_segment *s = &c->segments[own->segment + m];
            const uint32_t at = own->kv_head * heads + part % c->parts * each;
            assert_true(s->head >= at && s->head + s->heads <= at + each);
            if (c->row_parts == 1) continue;
            assert_true(s->row >= (int32_t)begin && (uint32_t)s->row + s->rows <= end);
        }
    }
}

/* Longest first. Where sections are asked for, the order may begin anew with a kv head that comes
 * after all before. Columns that are cut come first. */
static void check_order(const instance *c) {
    const uint64_t most = c->columns.most;
    uint64_t last = 0, least = 0;
    for (uint64_t first = cut_columns(c), n = first; n < c->n_columns; n++) {
        const tess_column *b = &c->out[n], *a = n > first ? b - 1 : b;
        const uint64_t kv = (uint64_t)b->sequence << 16 | b->kv_head;
        if (smaller(cost(c, a), most) < smaller(cost(c, b), most)) {
            if (c->section_rows == 0 || kv <= last)
                FAIL(&c->b, "column %llu is out of order", (unsigned long long)n);
            least = last + 1;
        }
        if (kv < least)
            FAIL(&c->b, "column %llu is of a section that had ended", (unsigned long long)n);
        if (kv > last) last = kv;
    }
}

static void instance_check(const instance *c) {
    if (!c->turns) check_order(c);
    check_parts(c);
    for (uint32_t s = 0; s < c->b.n_sequences; s++) check_sequence(c, s);
}

/* One of which nothing but that is of interest. */
static void instance_try(instance *c) {
    instance_plan(c);
    instance_check(c);
    instance_free(c);
}

static void test_against_formulas(void **state) {
    (void)state;
    uint64_t seed = 131, segments = 0, joined = 0, apart = 0, cut = 0;
    for (int n = 0; n < 3000; n++) {
        instance c;
        instance_random(&c, &seed, test_between(&seed, 0, 3) ? 70 : 160);
        instance_plan(&c);
        instance_check(&c);
        segments += c.n_segments;
        cut += c.columns.n_cut;
        for (uint64_t m = 0; m < c.n_columns; m++) {
            joined += c.out[m].first_blocks < c.out[m].blocks;
            apart += c.out[m].step > (uint32_t)block_size(&c.b.x);
        }
        instance_free(&c);
    }
    assert_true(segments > 10000 && joined > 500 && apart > 1000 && cut > 100);
}

/* Columns that repeat the one before. */
static void test_repeated_columns(void **state) {
    (void)state;
    uint64_t seed = 132, columns = 0;
    for (int n = 0; n < 500; n++) {
        instance c;
        instance_repeating(&c, &seed, 300);
        instance_plan(&c);
        instance_check(&c);
        columns += c.n_columns;
        instance_free(&c);
    }
    assert_true(columns > 5000);
}

/* Heads of a kv head with patterns of their own, whose near rows are cut into pieces where columns
 * take turns: also amid rows that are masked at the end of a segment. */
static void test_pieces(void **state) {
    (void)state;
    uint64_t seed = 133, columns = 0, segments = 0;
    for (int n = 0; n < 300; n++) {
        instance c = {.turns = true};
        const int32_t block = 1 << test_between(&seed, 0, 3), stride = test_between(&seed, 2, 8),
                      group = test_between(&seed, 2, stride < 4 ? stride : 4),
                      tokens = (int32_t)test_between(&seed, 50, 200);
        batch_of(&c.b, s2_pattern(block, (int32_t)test_between(&seed, 1, 30), stride, 0), group, 1,
                 tokens, (int32_t)test_between(&seed, 1, tokens), tokens);
        c.tile_keys = (uint32_t)(block * test_between(&seed, 1, 5));
        c.step_rows = (uint32_t)test_between(&seed, 1, 3);
        instance_plan(&c);
        instance_check(&c);
        columns += c.n_columns;
        segments += c.n_segments;
        instance_free(&c);
    }
    assert_true(columns > 3000 && segments > 5 * columns);
}

/* Blocks of a token, of which a column has more than a mask has bits, and blocks that are larger
 * than a column. */
static void test_block_sizes(void **state) {
    (void)state;
    static const int32_t blocks[] = {1, 2, 3, 5, 8, 17, 48, 100};
    uint64_t seed = 134;
    for (size_t b = 0; b < sizeof blocks / sizeof *blocks; b++)
        for (int n = 0; n < 120; n++) {
            instance c;
            instance_random(&c, &seed, 160);
            batch_of_blocks(&c.b, &seed, blocks[b]);
            c.tile_keys = (uint32_t)test_between(&seed, 1, 200);
            instance_try(&c);
        }
}

/* ------------------------------------------------------------------ known columns */

/* How many columns follow one of the same kv head with as many rows, `most` or fewer. Each of them
 * has lower keys than the one before it. */
static uint64_t downward(const instance *c, uint64_t most) {
    uint64_t found = 0;
    for (uint64_t n = 1; n < c->n_columns; n++) {
        const tess_column *b = &c->out[n], *a = b - 1;
        if (a->kv_head != b->kv_head || cost(c, a) != cost(c, b) || cost(c, b) > most) continue;
        if (a->key <= b->key) FAIL(&c->b, "column %llu goes up", (unsigned long long)n);
        found++;
    }
    return found;
}

/* Where a kernel adds in the order of columns, those of near rows must not wait for each other. */
static void test_near_columns_go_downward(void **state) {
    (void)state;
    instance c;
    known(&c, s2_pattern(64, 8, 16, 0), 2, 2, 16384, false, 0);
    assert_true(downward(&c, 10 * 64) > 2 * 100);
    instance_free(&c);
    known(&c,
          (tess_pattern){.struct_size = sizeof(tess_pattern),
                         .kind = TESS_PATTERN_WINDOW,
                         .block = 64,
                         .left = 500,
                         .right = 0},
          2, 2, 16384, false, 0);
    assert_true(downward(&c, 128 + 500) > 2 * 100);
    instance_free(&c);
}

/* Blocks of 64 in columns of 128 keys: two strided blocks a stride apart, whose rows before the
 * second one read the first alone, and two neighbours, of which the rows in between are masked. */
static void test_known_columns(void **state) {
    (void)state;
    instance c;
    uint64_t strided = 0, local = 0;
    known(&c, s2_pattern(64, 8, 16, 0), 16, 16, 16384, false, 0);
    for (uint64_t n = 0; n < c.n_columns; n++) {
        const tess_column *column = &c.out[n];
        const tess_segment *s = &c.segments[column->segment];
        const uint32_t j = column->key / 64;
        if ((j + column->kv_head) % 16 == 0 && column->blocks == 2) {
            strided++;
            assert_int_equal(1024, column->step);
            assert_int_equal(2, column->segments);
            assert_true(s[0].row == (int32_t)column->key && s[0].rows == 1024);
            assert_true(s[0].first == 0 && s[0].blocks == 1 && s[0].mask_head == 63);
            assert_true(s[1].row == s[0].row + 1024 && s[1].rows == 16384 - (uint32_t)s[1].row);
            assert_true(s[1].first == 0 && s[1].blocks == 2 && s[1].mask_head == 63);
            assert_int_equal(0, s[0].mask_tail + s[1].mask_tail);
        } else if (column->blocks == 2 && j < 240) {
            const uint32_t last = (uint32_t)tess_column_key(column, 64, 127) / 64;
            local++;
            assert_in_range(last - j, 1, 2);
            assert_int_equal(1, column->segments);
            assert_int_equal((last + 8 - j) * 64, s->rows);
            assert_int_equal((last - j) * 64 + 63, s->mask_head);
            assert_int_equal((last - j) * 64, s->mask_tail);
        }
    }
    /* of 256 blocks, 16 are strided in each head; only the rest may be alone, at the end */
    assert_int_equal(16 * 8, strided);
    assert_in_range(c.n_columns, 16 * 128, 16 * 129);
    assert_true(local > 16 * 110);
    check_order(&c);
    instance_free(&c);
}

/* Query heads of one kv head with patterns of their own: a segment for each. Dense heads of one
 * class share one. */
static void test_known_groups(void **state) {
    (void)state;
    instance c;
    known(&c, s2_pattern(64, 16, 8, 1), 32, 8, 8192, false, 0);
    for (uint64_t n = 0; n < c.n_columns; n++) {
        uint32_t heads = 0;
        for (uint32_t s = 0; s < c.out[n].segments; s++)
            heads |= UINT32_C(1) << c.segments[c.out[n].segment + s].head;
        assert_int_equal(UINT32_C(15) << 4 * c.out[n].kv_head, heads);
    }
    instance_free(&c);
    known(&c, (tess_pattern){.struct_size = sizeof(tess_pattern), .block = 64}, 32, 8, 8192, false,
          0);
    assert_int_equal(8 * 64, c.n_columns);
    assert_int_equal(8 * 64, c.n_segments);
    assert_int_equal(4, c.segments[0].heads);
    instance_free(&c);
}

/* One kv head in four parts: as many columns of each that is long. In S2 these are the columns of
 * strided keys, which come first. */
static void test_known_parts(void **state) {
    (void)state;
    instance c = {.tile_keys = 16, .step_rows = 8, .most_parts = 4, .least_rows = 800};
    for (int turns = 0; turns < 2; turns++) {
        c.turns = turns;
        batch_of(&c.b, (tess_pattern){.struct_size = sizeof(tess_pattern), .block = 64}, 8, 1, 200,
                 200, 200);
        instance_plan(&c);
        assert_int_equal(4, c.parts);
        assert_int_equal(7, c.columns.n_cut); /* of 200 to 104 rows for 8 heads; the next has 88 */
        assert_int_equal(4 * 7 + 6, c.n_columns);
        assert_int_equal(2, c.segments[0].heads);
        instance_check(&c);
        instance_free(&c);
    }
    tess_pattern s2 = s2_pattern(8, 8, 16, 0);
    s2.flags = TESS_PATTERN_PER_KV_HEAD;
    for (int turns = 0; turns < 2; turns++) {
        memset(&c, 0, sizeof c);
        batch_of(&c.b, s2, 8, 2, 2048, 2048, 2048);
        c = (instance){.b = c.b,
                       .tile_keys = 16,
                       .step_rows = 8,
                       .turns = turns,
                       .most_parts = 4,
                       .least_rows = (uint64_t)4 * 8 * 10,
                       .section_rows = 2048 * 4,
                       .near_rows = 2048 * 4,
                       .parallel = 132};
        instance_plan(&c);
        assert_int_equal(2 * 8, c.columns.n_cut);
        for (uint64_t n = 0; n < c.n_columns; n++)
            assert_int_equal(n < cut_columns(&c), c.out[n].step == 128);
        instance_check(&c);
        instance_free(&c);
    }
}

/* In batch-invariant plans a sequence's columns have the order that they have alone, also where a
 * longer one makes the buckets of the sort coarse. */
static void test_order_in_batches(void **state) {
    (void)state;
    const int32_t lengths[] = {20000, 1 << 21};
    instance alone = {.tile_keys = 32, .step_rows = 64, .invariant = true}, both;
    uint64_t found = 0;
    alone.b.layout = make_layout(runtime,
                                 &(tess_pattern){.struct_size = sizeof(tess_pattern),
                                                 .kind = TESS_PATTERN_S2,
                                                 .block = 16,
                                                 .local = 8,
                                                 .stride = 16},
                                 4, 1, 1 << 21);
    for (uint32_t s = 0; s < 2; s++)
        alone.b.sequences[s] = (tess_sequence){.q_len = lengths[s], .kv_len = lengths[s]};
    both = alone;
    alone.b.n_sequences = 1;
    both.b.n_sequences = 2;
    instance_plan(&alone);
    instance_plan(&both);
    for (uint64_t n = 0; n < both.n_columns; n++) {
        if (both.out[n].sequence != 0) continue;
        assert_true(found < alone.n_columns);
        assert_int_equal(alone.out[found].key, both.out[n].key);
        assert_int_equal(alone.out[found].step, both.out[n].step);
        found++;
    }
    assert_int_equal(alone.n_columns, found);
    both.b.layout = NULL;
    instance_free(&both);
    instance_free(&alone);
}

/* Columns are numbered with 32 bits; more are refused before they are counted. */
static void test_too_many_columns(void **state) {
    (void)state;
    const tess_pattern p = s2_pattern(64, 1, 2, 0);
    tess_layout *all = make_layout(runtime, &p, 4096, 4096, INT64_C(1) << 30);
    const tess_sequence s = {.q_len = 1, .kv_len = 1 << 30, .q_first = (1 << 30) - 1};
    tess_jobs jobs;
    tess_columns columns;
    assert_int_equal(TESS_OK, tess_jobs_create(&jobs, runtime, all, &s, 1, 16, 0));
    assert_int_equal(TESS_OK, tess_columns_create(&columns, &jobs, 64, 64, 0));
    assert_int_equal(TESS_ERROR_UNSUPPORTED, tess_columns_count(&columns));
    tess_columns_release(&columns);
    tess_jobs_release(&jobs);
    tess_layout_release(all);
}

/* Memory that fails at any time leaves nothing behind. */
static void test_failing_memory(void **state) {
    (void)state;
    uint64_t seed = 140, failed = 0;
    for (int n = 0; n < 40; n++) {
        instance c;
        instance_random(&c, &seed, 70);
        assert_int_equal(TESS_OK, batch_jobs(&c.b, 16, 0));
        const uint64_t live = heap.live;
        for (uint64_t at = 1;; at++) {
            heap.calls = 0;
            heap.fail_at = at;
            tess_status status =
                tess_columns_create(&c.columns, &c.b.jobs, 16, 8, columns_flags(&c));
            if (status == TESS_OK) status = tess_columns_count(&c.columns);
            if (status == TESS_OK && parts_of(&c) > 1)
                status = tess_columns_cut(&c.columns, parts_of(&c), 1, 0);
            heap.fail_at = 0;
            tess_columns_release(&c.columns);
            assert_int_equal(live, heap.live);
            if (status == TESS_OK) break;
            assert_int_equal(TESS_ERROR_OUT_OF_MEMORY, status);
            failed++;
        }
        batch_free(&c.b);
    }
    assert_true(failed >= 40 * 3);
}

int main(void) {
    return RUN_TESTS_BETWEEN(
        runtime_setup, runtime_teardown, TEST(test_against_formulas), TEST(test_repeated_columns),
        TEST(test_pieces), TEST(test_block_sizes), TEST(test_known_columns),
        TEST(test_near_columns_go_downward), TEST(test_known_groups), TEST(test_known_parts),
        TEST(test_order_in_batches), TEST(test_too_many_columns), TEST(test_failing_memory));
}
