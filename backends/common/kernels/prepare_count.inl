/* SPDX-License-Identifier: Apache-2.0 */
/* In prepare.inl: counts the jobs of unit `u` of the sequences at hand. In phase LENGTHS no key is
 * split yet. */
TESS_FIND(at, unit_end, u);
const tess_unit unit =
    tess_find_unit(u - (at > 0u ? unit_end[at - 1u] : 0u), q_lens[at], firsts[at], kv_lens[at],
                   first_run, n_runs, length TESS_TABLES_OF_KERNEL);
const uint bin = tess_bin_of(unit.blocks), parts = unit.jobs * unit.parts;
const bool of_own = unit.run >= own.first_run && unit.run < own.end_run;
if (phase == TESS_PHASE_COUNT && unit.parts > 1u) {
    TESS_ADD_SHARED(sums[TESS_SUM_PARTS], parts);
    TESS_ADD_SHARED(sums[TESS_SUM_MERGES], unit.jobs);
    if (of_own) TESS_ADD_SHARED(sums[TESS_SUM_OWN_PARTS], parts);
    if (unit.run < own.first_run) {
        TESS_ADD_SHARED(sums[TESS_SUM_PARTS_BEFORE], parts);
        TESS_ADD_SHARED(sums[TESS_SUM_MERGES_BEFORE], unit.jobs);
    }
} else if (phase == TESS_PHASE_COUNT) {
    TESS_ADD_SHARED(sums[TESS_SUM_WHOLE], unit.jobs);
    if (of_own) TESS_ADD_SHARED(bin_count[bin], unit.jobs);
} else {
    TESS_ADD_SHARED(bin_count[bin], unit.jobs);
}
if (phase == TESS_PHASE_LENGTHS) {
    TESS_MOST_SHARED(bin_most[bin], unit.blocks);
    TESS_LEAST_SHARED(bin_least[bin], unit.blocks);
    ticks =
        tess_sum(ticks, tess_product(unit.jobs, tess_job_ticks(unit.blocks TESS_TABLES_OF_KERNEL)));
    blocks = tess_sum(blocks, tess_product(unit.jobs, unit.blocks));
}
