/* SPDX-License-Identifier: Apache-2.0 */
/* In prepare_rule.inl: what a step takes at most with parts of `tried` key blocks, of which trial
 * `c` tells. */
const uint partials = part_end[c], cut_jobs = merge_end[c], most_parts = tess_larger(places[c], 1u);
uint cost = 0xffffffffu;
if (partials <= TESS_PLAN(MOST_PARTIALS) && partials < TESS_STEP_PARTIALS) {
    /* Parts are equal, so they may end within a step. */
    const uint part_ticks = tess_job_ticks(tried, grid TESS_PLAN_OF_KERNEL),
               each = TESS_PLAN(JOB_TICKS) +
                      (TESS_PLAN(BLOCK) % TESS_PLAN(STEP_KEYS) != 0u ? TESS_PLAN(STEP_TICKS) : 0u),
               work = tess_sum(all_ticks, tess_product(partials - cut_jobs, each));
    const uint waves =
                   tess_product(tess_divide_up(partials + binned - cut_jobs, workers), part_ticks),
               spread = work == 0xffffffffu ? 0xffffffffu
                                            : tess_sum(tess_divide_up(work, workers), part_ticks);
    const uint merge = tess_sum(TESS_PLAN(MERGE_TICKS),
                                tess_sum(tess_product(most_parts, TESS_PLAN(PART_TICKS)),
                                         tess_product(partials, TESS_PLAN(PARTIAL_TICKS))));
    cost = tess_sum(tess_larger(tess_min(waves, spread), read), merge);
}
part_end[c] = merge_end[c] = places[c] = 0u;
