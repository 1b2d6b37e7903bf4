/* SPDX-License-Identifier: Apache-2.0 */
/* In prepare.inl: ends a walk that counts. In phase LENGTHS, bin_above becomes the number of jobs
 * in longer bins; in phase COUNT, where the unsplit jobs of a bin begin, which is behind the parts
 * and those of all longer bins. */
uint binned = 0u;
if (phase == TESS_PHASE_LENGTHS) {
    TESS_ADD_WIDE(TESS_SUM_ALL_TICKS, ticks);
    TESS_ADD_WIDE(TESS_SUM_BLOCKS, blocks);
    TESS_ADD_WIDE(TESS_SUM_SHARED, shared_blocks);
} else {
    TESS_ADD_ALL(sums[TESS_SUM_PARTS], parts);
    TESS_ADD_ALL(sums[TESS_SUM_MERGES], merges);
    TESS_ADD_ALL(sums[TESS_SUM_WHOLE], whole);
    TESS_ADD_ALL(sums[TESS_SUM_OWN_PARTS], own_parts);
    TESS_ADD_ALL(sums[TESS_SUM_PARTS_BEFORE], parts_before);
    TESS_ADD_ALL(sums[TESS_SUM_MERGES_BEFORE], merges_before);
    TESS_ADD_ALL(sums[TESS_SUM_OWN_BEFORE], own_before);
}
TESS_BARRIER;
const uint behind = phase == TESS_PHASE_COUNT ? own.first_job + sums[TESS_SUM_OWN_PARTS] : 0u;
for (uint n = 0u; TESS_LOOP_ENTERS(n == 0u) || n < TESS_STEP_BINS; n += TESS_PREPARE_THREADS) {
    const bool is_bin = n + thread < TESS_STEP_BINS;
    const uint b = is_bin ? TESS_STEP_BINS - 1u - n - thread : 0u,
               count = is_bin ? bin_count[b] : 0u;
    row_end[thread] = count;
    TESS_SCAN(row_end, tess_sum);
    if (TESS_FOUND(is_bin, n + TESS_THREAD < TESS_STEP_BINS))
        bin_above[b] = behind + binned + row_end[thread] - count +
                       (phase == TESS_PHASE_COUNT ? bin_before[b] : 0u);
    binned += row_end[TESS_PREPARE_THREADS - 1u];
    TESS_BARRIER;
}
own_jobs = sums[TESS_SUM_OWN_PARTS] + binned; /* of phase COUNT in the end */
