/* SPDX-License-Identifier: Apache-2.0 */
/*
 * In prepare.inl: reads the lengths of TESS_PREPARE_THREADS sequences from number `first` on, one
 * for each thread, cuts their rows into tiles, and counts these in tile_end. Whatever the lengths
 * are, rows of sequences do not overlap, and all stay within the plan's capacities: a bound that
 * falls counts as the largest one before it. Trusted lengths are taken as they are.
 */
const uint s = first + thread;
const bool present = s < batch, trusted = (args.flags & TESS_ARGS_TRUST) != 0u;
const int rows = TESS_INT(TESS_PLAN(ROWS)), most_q = TESS_INT(TESS_PLAN(Q_LEN)),
          most_kv = TESS_INT(TESS_PLAN(KV_LEN)), most_position = TESS_INT(TESS_PLAN(POSITIONS));
const int raw_begin = !present      ? 0
                      : first == 0u ? early_begin
                                    : TESS_CU_ROWS(s),
          raw_end = !present      ? 0
                    : first == 0u ? early_end
                                  : TESS_CU_ROWS(s + 1u),
          raw_kv = !present      ? 0
                   : first == 0u ? early_kv
                                 : TESS_KV_LENS(s);
const int keys = trusted ? raw_kv : tess_clamp(raw_kv, 0, most_kv),
          first_key = present ? TESS_FIRST_KEY(s, keys) : 0, kv_len = first_key + keys;
uint row_first = 0u;
int q_len = 0;
if (trusted) {
    row_first = TESS_UINT(raw_begin);
    q_len = raw_end - raw_begin;
} else {
    /* Bounds that rise within their limits are their own largest ones. */
    row_end[thread] = TESS_UINT(tess_clamp(raw_end, 0, rows));
    if (!TESS_HOLDS_FOR_ALL(raw_begin >= 0 && raw_begin <= raw_end && raw_end <= rows)) {
        TESS_SCAN(row_end, tess_larger);
    }
    row_first = tess_larger(rows_before, thread > 0u ? row_end[thread - 1u] : 0u);
    const uint row_stop = tess_larger(rows_before, row_end[thread]);
    q_len = present ? tess_clamp(TESS_INT(row_stop - row_first), 0, most_q) : 0;
}
q_lens[thread] = q_len;
kv_lens[thread] = keys;
const bool has_first = present && (args.flags & TESS_ARGS_FIRST) != 0u;
const int raw_first = has_first ? TESS_Q_FIRST(s) : 0,
          q_first = !has_first ? kv_len - q_len
                    : trusted  ? raw_first
                               : tess_clamp(raw_first, 0, most_position);
firsts[thread] = q_first;
tile_end[thread] = 0u;
/* Sequences of other numbers of rows are another kernel's. */
const int above = TESS_INT(TESS_PLAN(Q_ABOVE)), most = TESS_INT(TESS_PLAN(Q_MOST));
if (q_len > above && q_len <= most) {
    const tess_cut cut = tess_cut_rows(q_len, q_first, grid TESS_PLAN_OF_KERNEL);
    numbers[thread] = cut.first;
    packs[thread] = cut.heads;
    tile_end[thread] = cut.tiles;
    const uint all = tess_divide_up(TESS_UINT(keys), grid.block);
    if (phase == TESS_PHASE_LENGTHS)
        shared_blocks = tess_sum(shared_blocks, tess_product(all, TESS_PLAN(KV_HEADS)));
}
if (TESS_FOUND(present, first + TESS_THREAD < batch) && phase == first_phase && group == 0u) {
    bool right = true;
    if (!trusted) {
        const int before = s == 0u ? TESS_CU_ROWS(0u) : 0;
        const bool moved = has_first && raw_first != q_first,
                   moved_keys =
                       (args.flags & TESS_ARGS_PARTS) != 0u && TESS_KV_FIRST(s) != first_key;
        const uint clamped = (raw_kv != keys ? 1u : 0u) + (moved ? 1u : 0u) +
                             (moved_keys ? 1u : 0u) +
                             (raw_end != TESS_INT(row_first) + q_len ? 1u : 0u) +
                             (before < 0 || before > rows ? 1u : 0u);
        if (clamped != 0u) TESS_ADD_SHARED(sums[TESS_SUM_CLAMPED], clamped);
        /* Rows of other numbers than were meant have no places to go to. */
        right = raw_kv == keys && raw_end == TESS_INT(row_first) + q_len &&
                raw_begin == TESS_INT(row_first) && !moved && !moved_keys;
    }
    if (s >= own_first && s < own_end && TESS_PLAN(HEAD_AT) == 0u) {
        const uint first_block =
            first_key == 0 ? 0u : TESS_UINT(tess_divide_int(first_key, grid.block));
        tess_write_sequence(
            s, row_first, q_len, q_first,
            first_key == 0 ? 0 : tess_kv_start(first_key, first_block TESS_PLAN_OF_KERNEL), kv_len,
            TESS_SEQUENCE_FIRST(first_block) |
                (right ? 0u : TESS_SEQUENCE_NO_APPEND)TESS_PLAN_OF_KERNEL TESS_STEP_OF_KERNEL);
    }
}
TESS_SCAN(tile_end, tess_sum);
const uint ends = tess_min(batch, first + TESS_PREPARE_THREADS);
if (batch != 0u)
    rows_before = trusted ? TESS_UINT(TESS_CU_ROWS(ends))
                          : tess_larger(rows_before, row_end[ends - first - 1u]);
if (phase == first_phase) all_rows = rows_before;
