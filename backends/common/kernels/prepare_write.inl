/* SPDX-License-Identifier: Apache-2.0 */
/* In prepare.inl: writes the jobs of the tiles from number `chunk` on. First each thread writes the
 * unsplit jobs of its tile and runs; then all threads share out the parts. */
const uint t = chunk + own_tile;
part_end[thread] = merge_end[thread] = places[thread] = 0u;
if (own_tile < tiles && t < end_tile) {
    TESS_FIND_SEQUENCE(at, t)
    TESS_TILE_AT(tile, at, t);
    tess_unit unit = tess_begin_unit(tile, length TESS_PLAN_OF_KERNEL);
    uint made = 0u, split = 0u;
    for (uint run = own_run; run < end_run; run += lanes.by) {
        unit = tess_find_unit(unit, tile, run, length, grid TESS_PLAN_OF_KERNEL);
        if (unit.parts > 1u) {
            made += unit.jobs * unit.parts;
            split += unit.jobs;
            continue;
        }
        const uint n = TESS_ADD_SHARED(bin_above[tess_bin_of(unit.blocks)], unit.jobs);
        for (uint job = 0u; job < unit.jobs; job++)
            tess_write_job(n + job, own.end_job, first + at, job, unit, unit.keys,
                           TESS_NO_PARTIAL TESS_PLAN_OF_KERNEL TESS_STEP_OF_KERNEL);
    }
    part_end[thread] = made;
    merge_end[thread] = split;
    places[thread] = at;
}
if (TESS_LOOP_ENTERS(true) || sums[TESS_SUM_OWN_PARTS] != 0u) {
    TESS_SCAN(part_end, tess_sum);
    TESS_SCAN(merge_end, tess_sum);
    const uint n_parts = part_end[TESS_PREPARE_THREADS - 1u];
    for (uint n = thread; n < n_parts; n += TESS_PREPARE_THREADS) {
        TESS_FIND(which, part_end, n);
        const uint place = places[which], nth = tess_divide(which, lanes);
        TESS_TILE_AT(tile, place, chunk + nth);
        tess_unit unit = tess_begin_unit(tile, length TESS_PLAN_OF_KERNEL);
        uint part = n - (which > 0u ? part_end[which - 1u] : 0u),
             merge = merges_done + (which > 0u ? merge_end[which - 1u] : 0u), made = 0u;
        /* The run that the part is of. */
        for (uint run = first_run + which - nth * lanes.by; run < end_run; run += lanes.by) {
            unit = tess_find_unit(unit, tile, run, length, grid TESS_PLAN_OF_KERNEL);
            made = unit.parts > 1u ? unit.jobs * unit.parts : 0u;
            if (part < made) break;
            part -= made;
            merge += made != 0u ? unit.jobs : 0u;
        }
        const uint job = unit.jobs == 1u ? 0u : part / unit.parts,
                   partial = sums[TESS_SUM_PARTS_BEFORE] + parts_done + n;
        part -= job * unit.parts;
        const tess_keys keys =
            tess_part_of(unit.keys, tess_part_begin(unit, part), tess_part_begin(unit, part + 1u));
        tess_write_job(own.first_job + sums[TESS_SUM_OWN_BEFORE] + parts_done + n, own.end_job,
                       first + place, job, unit, keys,
                       partial TESS_PLAN_OF_KERNEL TESS_STEP_OF_KERNEL);
        if (part == 0u)
            tess_write_merge(merge + job, first + place, job, unit,
                             partial TESS_PLAN_OF_KERNEL TESS_STEP_OF_KERNEL);
    }
    parts_done += n_parts;
    merges_done += merge_end[TESS_PREPARE_THREADS - 1u];
    TESS_BARRIER;
}
