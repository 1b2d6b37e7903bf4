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
TESS_LEAVE_UNLESS_BOUND(tile.sequence, tile.row, tile.head / args.group)
const tess_key_walk walk = tess_read_key_walk(job, tile TESS_TABLES_OF_KERNEL);
const uint used = present ? tile.packed_rows : 0u; /* rows of the tile that are stored */
const uint keys = tess_count_keys(walk, tile TESS_TABLES_OF_KERNEL) * TESS_UINT(present);
const uint head_dim = TESS_HEAD_DIM;

const tess_offset q_start =
    TESS_WORD64(tile.sequence + TESS_WORD_SEQUENCE_Q_START) + TESS_OFFSET(tile.row);
const tess_origin origin = tess_find_origin(job TESS_TABLES_OF_KERNEL);
const tess_offset q_base = TESS_FIRST(q, tile, q_start, tile.head);
const tess_offset k_base = TESS_FIRST_OF(k, origin.batch, origin.start, origin.head);
const tess_offset v_base = TESS_FIRST_OF(v, origin.batch, origin.start, origin.head);

for (uint r = thread; r < TESS_ROWS; r += TESS_THREADS) {
    const tess_row row =
        tess_find_row(tess_min(r, tile.packed_rows - 1u), tile TESS_TABLES_OF_KERNEL);
    row_head_row[r] = row.head_row;
    row_causal[r] = row.causal;
    row_window_low[r] = row.window_low;
    row_window_high[r] = row.window_high;
    row_block[r] = row.block;
}
