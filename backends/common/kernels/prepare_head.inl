/* SPDX-License-Identifier: Apache-2.0 */
/* In prepare.inl: the end of the storage group's jobs, and the head of the step. */
if (thread == 0u && share == 0u) {
    TESS_STORE_STEP(TESS_PLAN(ENDS_AT) + group,
                    own.first_job + tess_min(own_jobs, own.end_job - own.first_job));
}
if (thread == 0u && workgroup == 0u) {
    const uint head = TESS_PLAN(HEAD_AT);
    const uint jobs = sums[TESS_SUM_PARTS] + sums[TESS_SUM_WHOLE];
    /* Workgroups without an item of their own read the first one, which then has to be there.
     */
    if (own_jobs == 0u && head == 0u)
        tess_clear_item(false TESS_PLAN_OF_KERNEL TESS_STEP_OF_KERNEL);
    if (sums[TESS_SUM_MERGES] == 0u) tess_clear_item(true TESS_PLAN_OF_KERNEL TESS_STEP_OF_KERNEL);
    TESS_STORE_STEP(head + TESS_WORD_STEP_JOBS, tess_min(jobs, TESS_PLAN(MOST_JOBS)));
    TESS_STORE_STEP(head + TESS_WORD_STEP_MERGES,
                    TESS_PLAN(FIRST_MERGE) +
                        tess_min(sums[TESS_SUM_MERGES], TESS_PLAN(MOST_MERGES)));
    TESS_STORE_STEP(head + TESS_WORD_STEP_PARTIALS, sums[TESS_SUM_PARTS]);
    TESS_STORE_STEP(head + TESS_WORD_STEP_CLAMPED, sums[TESS_SUM_CLAMPED]);
    TESS_STORE_STEP(head + TESS_WORD_STEP_LENGTH, chosen);
    TESS_STORE_STEP(head + TESS_WORD_STEP_UNSPLIT_TICKS, sums[TESS_SUM_UNSPLIT]);
    TESS_STORE_STEP(head + TESS_WORD_STEP_TICKS, sums[TESS_SUM_TICKS]);
    TESS_STORE_STEP(head + TESS_WORD_STEP_SEQUENCES, batch);
    TESS_STORE_STEP(head + TESS_WORD_STEP_ROWS, all_rows);
    TESS_STORE_STEP(head + TESS_WORD_STEP_PLAN, TESS_PLAN(ID));
    TESS_STORE_STEP(head + TESS_WORD_STEP_PLAN_AT,
                    TESS_PLAN(COPY_TO) + plan_at - TESS_PLAN(COPY_FROM));
}
