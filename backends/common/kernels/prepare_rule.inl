/* SPDX-License-Identifier: Apache-2.0 */
/*
 * In prepare.inl: chooses the key blocks of a part from the bins of all jobs; 0 leaves them whole.
 * Whatever the order in which workers take the jobs, the last one ends
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
const tess_divisor workers = tess_divisor_of(TESS_PLAN(WORKERS)),
                   length_step = tess_divisor_of(TESS_PLAN(LENGTH_STEP));
const uint all_ticks = TESS_WIDE_SUM(TESS_SUM_ALL_TICKS),
           read_blocks = tess_min(TESS_WIDE_SUM(TESS_SUM_BLOCKS), TESS_WIDE_SUM(TESS_SUM_SHARED)),
           read = tess_sum(tess_product(read_blocks >> 6, TESS_PLAN(READ_TICKS)),
                           ((read_blocks & 63u) * TESS_PLAN(READ_TICKS)) >> 6);
for (uint b = thread; b < TESS_STEP_BINS; b += TESS_PREPARE_THREADS) {
    if (bin_count[b] == 0u) continue;
    const uint as_long = bin_above[b] + bin_count[b],
               bound = tess_larger(
                   tess_job_ticks(bin_most[b], grid TESS_PLAN_OF_KERNEL),
                   tess_product(tess_divide_up(as_long, workers),
                                tess_job_ticks(bin_least[b], grid TESS_PLAN_OF_KERNEL)));
    held[TESS_ADD_SHARED(sums[TESS_SUM_HELD], 1u)] = b;
    TESS_MOST_SHARED(sums[TESS_SUM_BOUND], bound);
    TESS_MOST_SHARED(sums[TESS_SUM_LONGEST], bin_most[b]);
}
TESS_BARRIER;
const uint n_held = sums[TESS_SUM_HELD], longest = sums[TESS_SUM_LONGEST],
           unsplit = tess_larger(tess_larger(sums[TESS_SUM_BOUND], read),
                                 tess_divide_up(all_ticks, workers)),
           most_steps = longest > 1u ? tess_divide(longest - 1u, length_step) : 0u;
uint least = 0xffffffffu, found = 0u; /* what the best length takes, and that length */
for (uint round = 0u; round < 2u; round++) {
    /* Lengths that begin a bin, and then those around the best one, in steps of length_step. */
    const uint bin = tess_bin_of(tess_divide(found, length_step)),
               low = bin > 1u ? tess_bin_start(bin - 1u) + 1u : 1u,
               stride = tess_quotient_up(tess_bin_start(bin + 1u) - low, TESS_STEP_TRIALS),
               around = found == 0u || most_steps < low ? 0u : (most_steps - low) / stride + 1u,
               n_trials =
                   round == 0u ? tess_bin_of(most_steps) + 1u : tess_min(around, TESS_STEP_TRIALS);
    /* Several threads share the bins of a trial. */
    uint helpers = 0u; /* how many, as a power of two */
    while (n_trials << (helpers + 1u) <= TESS_PREPARE_THREADS && helpers < 3u) helpers++;
    uint own_least = 0xffffffffu, own_found = 0u;
    for (uint n = thread; n < n_trials << helpers; n += TESS_PREPARE_THREADS) {
        const uint c = n >> helpers,
                   tried = length_step.by * (round == 0u ? tess_bin_start(c) : low + c * stride);
#include "prepare_trial.inl"
    }
    TESS_BARRIER;
    for (uint c = thread; c < n_trials; c += TESS_PREPARE_THREADS) {
        const uint tried = length_step.by * (round == 0u ? tess_bin_start(c) : low + c * stride);
#include "prepare_cost.inl"
        if (tried != 0u && (cost < own_least || (cost == own_least && tried > own_found))) {
            own_least = cost;
            own_found = tried;
        }
    }
    if (own_found != 0u) TESS_MOST_SHARED(sums[TESS_SUM_BEST + round], ~own_least);
    TESS_BARRIER;
    const uint round_least = ~sums[TESS_SUM_BEST + round];
    if (own_found != 0u && own_least == round_least)
        TESS_MOST_SHARED(sums[TESS_SUM_FOUND + round], own_found);
    TESS_BARRIER;
    const uint round_found = sums[TESS_SUM_FOUND + round];
    if (round_least < least || (round_least == least && round_found > found)) {
        least = round_least;
        found = round_found;
    }
}
chosen = least < unsplit ? found : 0u;
length = tess_divisor_of(chosen != 0u ? chosen : TESS_WHOLE);
if (thread == 0u) {
    sums[TESS_SUM_UNSPLIT] = unsplit;
    sums[TESS_SUM_TICKS] = tess_min(least, unsplit);
}
