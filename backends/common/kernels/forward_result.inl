/* SPDX-License-Identifier: Apache-2.0 */
/* Where both forward kernels store the result of a job, which is found only at its end, to hold
 * fewer values throughout. */

const uint partial = TESS_PARTIAL_OF_JOB;
const tess_offset o_base = TESS_FIRST(o, tile, q_start, tile.head);
const tess_offset lse_base = TESS_FIRST(lse, tile, q_start, tile.head);
const tess_offset partial_base = args.partials_at + TESS_OFFSET(partial) *
                                                        TESS_OFFSET(args.partial_rows) *
                                                        TESS_OFFSET(head_dim + 2u);
const tess_offset max_base = partial_base + TESS_OFFSET(args.partial_rows) * TESS_OFFSET(head_dim);
