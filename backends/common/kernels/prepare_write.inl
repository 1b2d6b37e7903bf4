/* SPDX-License-Identifier: Apache-2.0 */
/* In prepare.inl: writes the jobs of TESS_PREPARE_THREADS units from number `chunk` on. First each
 * thread takes a unit, its unsplit jobs and its merges; then all threads share out the parts. */
const uint u = chunk + thread;
const bool unit_present = u < n_units;
TESS_FIND(at, unit_end, unit_present ? u : 0u);
const tess_unit unit =
    tess_find_unit((unit_present ? u : 0u) - (at > 0u ? unit_end[at - 1u] : 0u), q_lens[at],
                   firsts[at], kv_lens[at], first_run, n_runs, length TESS_TABLES_OF_KERNEL);
const uint partials_before = sums[TESS_SUM_PARTS_BEFORE];
const bool is_split = unit_present && unit.parts > 1u;
part_end[thread] = is_split ? unit.jobs * unit.parts : 0u;
merge_end[thread] = is_split ? unit.jobs : 0u;
if (unit_present && !is_split) {
    const uint n = TESS_ADD_SHARED(bin_most[tess_bin_of(unit.blocks)], unit.jobs);
    for (uint job = 0u; job < unit.jobs; job++)
        tess_write_job(n + job, own.end_job, first + at, job, unit, unit.keys,
                       TESS_NO_PARTIAL TESS_TABLES_OF_KERNEL TESS_STEP_OF_KERNEL);
}
TESS_SCAN(part_end, tess_sum);
TESS_SCAN(merge_end, tess_sum);
if (is_split) {
    for (uint job = 0u; job < unit.jobs; job++)
        tess_write_merge(merges_done + merge_end[thread] - unit.jobs + job, first + at, job, unit,
                         partials_before + parts_done + part_end[thread] -
                             (unit.jobs - job) *
                                 unit.parts TESS_TABLES_OF_KERNEL TESS_STEP_OF_KERNEL);
}
const uint n_parts = part_end[TESS_PREPARE_THREADS - 1u];
for (uint n = thread; n < n_parts; n += TESS_PREPARE_THREADS) {
    TESS_FIND(which, part_end, n);
    const uint own_unit = chunk + which, own_part = n - (which > 0u ? part_end[which - 1u] : 0u);
    TESS_FIND(place, unit_end, own_unit);
    const tess_unit whole = tess_find_unit(own_unit - (place > 0u ? unit_end[place - 1u] : 0u),
                                           q_lens[place], firsts[place], kv_lens[place], first_run,
                                           n_runs, length TESS_TABLES_OF_KERNEL);
    const uint job = own_part / whole.parts, part = own_part - job * whole.parts;
    const tess_keys keys =
        tess_part_of(whole.keys, tess_part_begin(whole, part), tess_part_begin(whole, part + 1u));
    tess_write_job(own.first_job + parts_done + n, own.end_job, first + place, job, whole, keys,
                   partials_before + parts_done + n TESS_TABLES_OF_KERNEL TESS_STEP_OF_KERNEL);
}
parts_done += n_parts;
merges_done += merge_end[TESS_PREPARE_THREADS - 1u];
TESS_BARRIER;
