/* SPDX-License-Identifier: Apache-2.0 */
/* What both forward kernels begin with: finds the job, its tile and its keys, where its tensors
 * begin, and leaves the state of its rows in shared memory. */

const uint thread = TESS_THREAD;
/* Workgroups past the last item read the first one's words and then find neither rows nor keys:
 * some compilers do badly with a return before a barrier. */
const uint items = tess_present_items(args.items TESS_TABLES_OF_KERNEL);
const bool present = TESS_GROUP < items;
TESS_LEAVE_UNLESS(present);
const uint job = tess_find_item(TESS_GROUP, present, TESS_JOB_WORDS TESS_TABLES_OF_KERNEL);
const tess_tile tile = tess_read_tile(job TESS_TABLES_OF_KERNEL);
const tess_key_walk walk = tess_read_key_walk(job, tile TESS_TABLES_OF_KERNEL);
const uint used = present ? tile.packed_rows : 0u; /* rows of the tile that are stored */
const uint keys = tess_count_keys(walk, tile TESS_TABLES_OF_KERNEL) * TESS_UINT(present);
const uint head_dim = TESS_HEAD_DIM;

/* Keys are found from here on: in place, token 0 of the sequence; by slot, that of its entry in
 * the batch; in pages, that of page 0. */
const uint kv_head = tess_find_kv_head(tile TESS_TABLES_OF_KERNEL),
           kv_batch = TESS_IS_PAGED ? 0u : TESS_WORD(tile.sequence + TESS_WORD_SEQUENCE_KV_BATCH);
const tess_offset q_start = TESS_WORD64(tile.sequence + TESS_WORD_SEQUENCE_Q_START) +
                            TESS_OFFSET(tile.row),
                  kv_start = TESS_IS_CACHED
                                 ? TESS_OFFSET(0)
                                 : TESS_WORD64(tile.sequence + TESS_WORD_SEQUENCE_KV_START);
const tess_offset q_base = TESS_FIRST(q, tile, q_start, tile.head);
const tess_offset k_base = TESS_FIRST_OF(k, kv_batch, kv_start, kv_head);
const tess_offset v_base = TESS_FIRST_OF(v, kv_batch, kv_start, kv_head);

for (uint r = thread; r < TESS_ROWS; r += TESS_THREADS) {
    const tess_row row =
        tess_find_row(tess_min(r, tile.packed_rows - 1u), tile TESS_TABLES_OF_KERNEL);
    row_head_row[r] = row.head_row;
    row_causal[r] = row.causal;
    row_window_low[r] = row.window_low;
    row_window_high[r] = row.window_high;
    row_block[r] = row.block;
}
