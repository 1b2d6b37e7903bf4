/* SPDX-License-Identifier: Apache-2.0 */
/* In prepare_rule.inl: what a step takes at most with parts of `tried` key blocks. */
uint jobs = 0u, partials = 0u, whole = 0u, most_parts = 1u;
for (uint b = 0u; b < TESS_STEP_BINS; b++) {
    const uint count = bin_count[b];
    if (count == 0u) continue;
    const uint parts = tess_parts_of(bin_most[b], tried), made = tess_product(count, parts);
    jobs = tess_sum(jobs, made);
    if (parts == 1u) continue;
    partials = tess_sum(partials, made);
    whole = tess_sum(whole, count);
    most_parts = tess_larger(most_parts, parts);
}
uint cost = 0xffffffffu;
if (partials <= TESS_PLAN(MOST_PARTIALS)) {
    const uint part_ticks = tess_job_ticks(tried TESS_TABLES_OF_KERNEL),
               work = tess_sum(all_ticks, tess_product(partials - whole, TESS_PLAN(JOB_TICKS)));
    const uint waves = tess_product(tess_quotient_up(jobs, workers), part_ticks),
               spread = work == 0xffffffffu ? 0xffffffffu
                                            : tess_sum(tess_quotient_up(work, workers), part_ticks);
    const uint merge = tess_sum(TESS_PLAN(MERGE_TICKS),
                                tess_sum(tess_product(most_parts, TESS_PLAN(PART_TICKS)),
                                         tess_product(partials, TESS_PLAN(PARTIAL_TICKS))));
    cost = tess_sum(tess_larger(tess_min(waves, spread), read), merge);
}
