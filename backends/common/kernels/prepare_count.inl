/* SPDX-License-Identifier: Apache-2.0 */
/* In prepare.inl: counts the jobs that tile `t` of the sequences at hand makes of this thread's
 * runs. In phase LENGTHS no key is split yet. */
TESS_FIND_SEQUENCE(at, t)
TESS_TILE_AT(tile, at, t);
tess_unit unit = tess_begin_unit(tile, length TESS_PLAN_OF_KERNEL);
uint jobs = 0u; /* of runs that are alike */
for (uint run = own_run; run < end_run; run += lanes.by) {
    unit = tess_find_unit(unit, tile, run, length, grid TESS_PLAN_OF_KERNEL);
    jobs += unit.jobs;
    if (run + lanes.by < end_run && tess_are_alike(run, run + lanes.by, own TESS_PLAN_OF_KERNEL))
        continue;
    const uint bin = tess_bin_of(unit.blocks);
    if (phase == TESS_PHASE_LENGTHS) {
        TESS_ADD_SHARED(bin_count[bin], jobs);
        if (first + at < own_first) TESS_ADD_SHARED(bin_before[bin], jobs);
        /* Most tiles change nothing, and a look costs less. */
        if (bin_most[bin] < unit.blocks) TESS_MOST_SHARED(bin_most[bin], unit.blocks);
        if (bin_least[bin] > unit.blocks) TESS_LEAST_SHARED(bin_least[bin], unit.blocks);
        ticks = tess_sum(ticks,
                         tess_product(jobs, tess_job_ticks(unit.blocks, grid TESS_PLAN_OF_KERNEL)));
        blocks = tess_sum(blocks, tess_product(jobs, unit.blocks));
    } else if (unit.parts > 1u) {
        const uint made = jobs * unit.parts;
        const bool of_own = run >= own.first_run && run < own.end_run,
                   written = of_own && first + at < own_first,
                   before = run < own.first_run || written;
        parts += made;
        merges += jobs;
        parts_before += before ? made : 0u;
        merges_before += before ? jobs : 0u;
        own_parts += of_own ? made : 0u;
        own_before += written ? made : 0u;
    } else {
        whole += jobs;
        if (run >= own.first_run && run < own.end_run) {
            TESS_ADD_SHARED(bin_count[bin], jobs);
            if (first + at < own_first) TESS_ADD_SHARED(bin_before[bin], jobs);
        }
    }
    jobs = 0u;
}
