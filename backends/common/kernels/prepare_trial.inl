/* SPDX-License-Identifier: Apache-2.0 */
/* In prepare_rule.inl: adds up what parts of `tried` key blocks make of some of the bins, for trial
 * `c`: partial results, the jobs that they are of, and the most parts of one. */
const tess_divisor by = tess_divisor_of(tess_larger(tried, 1u));
uint partials = 0u, cut_jobs = 0u, most_parts = 1u;
for (uint i = n & ((1u << helpers) - 1u); tried != 0u && i < n_held; i += 1u << helpers) {
    const uint b = held[i], count = bin_count[b], made = tess_parts_of(bin_most[b], by);
    if (made == 1u) continue;
    partials = tess_sum(partials, tess_product(count, made));
    cut_jobs += count;
    most_parts = tess_larger(most_parts, made);
}
if (partials != 0u) {
    TESS_ADD_SHARED(part_end[c], tess_min(partials, TESS_STEP_PARTIALS));
    TESS_ADD_SHARED(merge_end[c], cut_jobs);
    TESS_MOST_SHARED(places[c], most_parts);
}
