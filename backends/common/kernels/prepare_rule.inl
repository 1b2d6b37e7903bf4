/* SPDX-License-Identifier: Apache-2.0 */
/*
 * In prepare.inl: chooses `length`, the key blocks of a part, from the bins of all jobs; 0 leaves
 * them whole. Whatever the order in which workers take the jobs, the last one ends
 *
 *     unsplit  no sooner than   the longest job,
 *                               all work / workers,
 *                               ceil(n / workers) times the shortest of the n longest jobs, any n
 *     split    no later than    ceil(jobs / workers) parts, and
 *                               all work / workers + a part
 *
 * and neither before K and V are read. Splitting adds the merge. Parts are made where the bound of
 * the best length is below the unsplit one, so that they never take longer in the model. Lengths
 * are tried in steps of an eighth, and then around the best one. A bin counts as jobs of its
 * longest one, or of its shortest where the bound is a lower one; for jobs of equal length both are
 * exact.
 */
const uint workers = TESS_PLAN(WORKERS), length_step = TESS_PLAN(LENGTH_STEP);
part_end[thread] = ticks;
merge_end[thread] = blocks;
row_end[thread] = shared_blocks;
TESS_SCAN(part_end, tess_sum);
TESS_SCAN(merge_end, tess_sum);
TESS_SCAN(row_end, tess_sum);
const uint all_ticks = part_end[TESS_PREPARE_THREADS - 1u],
           read = tess_product(
               tess_min(merge_end[TESS_PREPARE_THREADS - 1u], row_end[TESS_PREPARE_THREADS - 1u]),
               TESS_PLAN(BLOCK_TICKS));
uint bound = 0u, longest = 0u;
for (uint b = thread; b < TESS_STEP_BINS; b += TESS_PREPARE_THREADS) {
    if (bin_count[b] == 0u) continue;
    uint as_long = 0u;
    for (uint longer = b; longer < TESS_STEP_BINS; longer++)
        as_long = tess_sum(as_long, bin_count[longer]);
    bound = tess_larger(tess_larger(bound, tess_job_ticks(bin_most[b] TESS_TABLES_OF_KERNEL)),
                        tess_product(tess_quotient_up(as_long, workers),
                                     tess_job_ticks(bin_least[b] TESS_TABLES_OF_KERNEL)));
    longest = tess_larger(longest, bin_most[b]);
}
best[thread] = bound;
unit_end[thread] = longest;
TESS_SCAN(best, tess_larger);
TESS_SCAN(unit_end, tess_larger);
longest = unit_end[TESS_PREPARE_THREADS - 1u];
const uint unsplit = tess_larger(tess_larger(best[TESS_PREPARE_THREADS - 1u], read),
                                 tess_quotient_up(all_ticks, workers));
uint least = 0xffffffffu, found = 0u; /* what the best length takes, and that length */
for (uint round = 0u; round < 2u; round++) {
    const uint bin = tess_bin_of(found / length_step),
               low = bin > 1u ? tess_bin_start(bin - 1u) + 1u : 1u,
               stride = tess_quotient_up(tess_bin_start(bin + 1u) - low, TESS_STEP_TRIALS);
    TESS_BARRIER;
    for (uint c = thread; c < TESS_STEP_TRIALS; c += TESS_PREPARE_THREADS) {
        const uint steps = round != 0u          ? low + c * stride
                           : c < TESS_STEP_BINS ? tess_bin_start(c)
                                                : 0u,
                   tried = tess_product(steps, length_step);
        if (tried == 0u || tried >= longest || (round != 0u && found == 0u)) continue;
#include "prepare_trial.inl"
        if (cost < least || (cost == least && tried > found)) {
            least = cost;
            found = tried;
        }
    }
    best[thread] = ~least;
    TESS_SCAN(best, tess_larger);
    const uint best_cost = ~best[TESS_PREPARE_THREADS - 1u];
    unit_end[thread] = least == best_cost ? found : 0u;
    TESS_SCAN(unit_end, tess_larger);
    least = best_cost;
    found = unit_end[TESS_PREPARE_THREADS - 1u];
}
length = least < unsplit ? found : 0u;
if (thread == 0u) {
    sums[TESS_SUM_UNSPLIT] = unsplit;
    sums[TESS_SUM_TICKS] = tess_min(least, unsplit);
}
TESS_BARRIER;
