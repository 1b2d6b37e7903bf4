/* SPDX-License-Identifier: Apache-2.0 */
/* Compares the words that kernels read (tessera_job_words.h) with the structures that the core
 * fills, field by field. Nothing of it is left in the library. */
#include <stddef.h>

#include <tessera/tessera_backend.h>

/* The second field of a shared word begins 2 bytes into it. */
#define AT_WORD(type, field, word) \
    _Static_assert(offsetof(type, field) == (word)*4u, #type "." #field " has another word")
#define AT_HIGH_HALF(type, field, word) \
    _Static_assert(offsetof(type, field) == (word)*4u + 2u, #type "." #field " has another word")
#define HAS_WORDS(type, words) \
    _Static_assert(sizeof(type) == (words)*4u, #type " has another number of words")

AT_WORD(tess_job, sequence, TESS_WORD_JOB_SEQUENCE);
AT_WORD(tess_job, head, TESS_WORD_JOB_HEAD);
AT_HIGH_HALF(tess_job, heads, TESS_WORD_JOB_HEADS);
AT_WORD(tess_job, row, TESS_WORD_JOB_ROW);
AT_WORD(tess_job, rows, TESS_WORD_JOB_ROWS);
AT_HIGH_HALF(tess_job, cls, TESS_WORD_JOB_CLS);
AT_WORD(tess_job, left_offset, TESS_WORD_JOB_LEFT_OFFSET);
AT_WORD(tess_job, left_count, TESS_WORD_JOB_LEFT_COUNT);
AT_WORD(tess_job, right_offset, TESS_WORD_JOB_RIGHT_OFFSET);
AT_WORD(tess_job, right_count, TESS_WORD_JOB_RIGHT_COUNT);
AT_WORD(tess_job, interval_start, TESS_WORD_JOB_INTERVAL_START);
AT_WORD(tess_job, interval_blocks, TESS_WORD_JOB_INTERVAL_BLOCKS);
AT_WORD(tess_job, mask_head, TESS_WORD_JOB_MASK_HEAD);
AT_HIGH_HALF(tess_job, mask_tail, TESS_WORD_JOB_MASK_TAIL);
AT_WORD(tess_job, partial, TESS_WORD_JOB_PARTIAL);
HAS_WORDS(tess_job, TESS_JOB_WORDS);

AT_WORD(tess_merge, sequence, TESS_WORD_MERGE_SEQUENCE);
AT_WORD(tess_merge, head, TESS_WORD_MERGE_HEAD);
AT_HIGH_HALF(tess_merge, heads, TESS_WORD_MERGE_HEADS);
AT_WORD(tess_merge, row, TESS_WORD_MERGE_ROW);
AT_WORD(tess_merge, rows, TESS_WORD_MERGE_ROWS);
AT_WORD(tess_merge, partial, TESS_WORD_MERGE_PARTIAL);
AT_WORD(tess_merge, parts, TESS_WORD_MERGE_PARTS);
HAS_WORDS(tess_merge, TESS_MERGE_WORDS);

AT_WORD(tess_sequence, q_start, TESS_WORD_SEQUENCE_Q_START);
AT_WORD(tess_sequence, kv_start, TESS_WORD_SEQUENCE_KV_START);
AT_WORD(tess_sequence, batch, TESS_WORD_SEQUENCE_BATCH);
AT_WORD(tess_sequence, q_len, TESS_WORD_SEQUENCE_Q_LEN);
AT_WORD(tess_sequence, kv_len, TESS_WORD_SEQUENCE_KV_LEN);
AT_WORD(tess_sequence, q_first, TESS_WORD_SEQUENCE_Q_FIRST);
AT_WORD(tess_sequence, kv_batch, TESS_WORD_SEQUENCE_KV_BATCH);
HAS_WORDS(tess_sequence, TESS_SEQUENCE_WORDS);

AT_WORD(tess_class, flags, TESS_WORD_CLASS_FLAGS);
AT_WORD(tess_class, local, TESS_WORD_CLASS_LOCAL);
AT_WORD(tess_class, stride, TESS_WORD_CLASS_STRIDE);
AT_WORD(tess_class, shift, TESS_WORD_CLASS_SHIFT);
AT_WORD(tess_class, left, TESS_WORD_CLASS_LEFT);
AT_WORD(tess_class, right, TESS_WORD_CLASS_RIGHT);
AT_WORD(tess_class, sinks, TESS_WORD_CLASS_SINKS);
AT_WORD(tess_class, list_offset, TESS_WORD_CLASS_LIST_OFFSET);
AT_WORD(tess_class, list_count, TESS_WORD_CLASS_LIST_COUNT);
HAS_WORDS(tess_class, TESS_CLASS_WORDS);

AT_WORD(tess_slot, slot, TESS_WORD_SLOT_SLOT);
AT_WORD(tess_slot, next, TESS_WORD_SLOT_NEXT);
HAS_WORDS(tess_slot, TESS_SLOT_WORDS);

AT_WORD(tess_kv_head, storage, TESS_WORD_KV_HEAD_STORAGE);
AT_WORD(tess_kv_head, pool_head, TESS_WORD_KV_HEAD_POOL_HEAD);
AT_WORD(tess_kv_head, slots_offset, TESS_WORD_KV_HEAD_SLOTS_OFFSET);
HAS_WORDS(tess_kv_head, TESS_KV_HEAD_WORDS);

AT_WORD(tess_step_head, n_jobs, TESS_WORD_STEP_JOBS);
AT_WORD(tess_step_head, n_merges, TESS_WORD_STEP_MERGES);
AT_WORD(tess_step_head, n_partials, TESS_WORD_STEP_PARTIALS);
AT_WORD(tess_step_head, n_clamped, TESS_WORD_STEP_CLAMPED);
AT_WORD(tess_step_head, length, TESS_WORD_STEP_LENGTH);
AT_WORD(tess_step_head, unsplit_ticks, TESS_WORD_STEP_UNSPLIT_TICKS);
AT_WORD(tess_step_head, ticks, TESS_WORD_STEP_TICKS);
AT_WORD(tess_step_head, plan, TESS_WORD_STEP_PLAN);
AT_WORD(tess_step_head, plan_at, TESS_WORD_STEP_PLAN_AT);
AT_WORD(tess_step_head, n_sequences, TESS_WORD_STEP_SEQUENCES);
AT_WORD(tess_step_head, n_rows, TESS_WORD_STEP_ROWS);
HAS_WORDS(tess_step_head, TESS_STEP_HEAD_WORDS);

AT_WORD(tess_step_plan, batch, TESS_WORD_PLAN_BATCH);
AT_WORD(tess_step_plan, q_len, TESS_WORD_PLAN_Q_LEN);
AT_WORD(tess_step_plan, kv_len, TESS_WORD_PLAN_KV_LEN);
AT_WORD(tess_step_plan, rows, TESS_WORD_PLAN_ROWS);
AT_WORD(tess_step_plan, block, TESS_WORD_PLAN_BLOCK);
AT_WORD(tess_step_plan, cell, TESS_WORD_PLAN_CELL);
AT_WORD(tess_step_plan, tile, TESS_WORD_PLAN_TILE);
AT_WORD(tess_step_plan, from_end, TESS_WORD_PLAN_FROM_END);
AT_WORD(tess_step_plan, pack_rows, TESS_WORD_PLAN_PACK_ROWS);
AT_WORD(tess_step_plan, n_kv_heads, TESS_WORD_PLAN_KV_HEADS);
AT_WORD(tess_step_plan, n_runs, TESS_WORD_PLAN_RUNS);
AT_WORD(tess_step_plan, max_parts, TESS_WORD_PLAN_MAX_PARTS);
AT_WORD(tess_step_plan, short_length, TESS_WORD_PLAN_SHORT_LENGTH);
AT_WORD(tess_step_plan, long_length, TESS_WORD_PLAN_LONG_LENGTH);
AT_WORD(tess_step_plan, chooses, TESS_WORD_PLAN_CHOOSES);
AT_WORD(tess_step_plan, length_step, TESS_WORD_PLAN_LENGTH_STEP);
AT_WORD(tess_step_plan, workers, TESS_WORD_PLAN_WORKERS);
AT_WORD(tess_step_plan, step_keys, TESS_WORD_PLAN_STEP_KEYS);
AT_WORD(tess_step_plan, step_ticks, TESS_WORD_PLAN_STEP_TICKS);
AT_WORD(tess_step_plan, job_ticks, TESS_WORD_PLAN_JOB_TICKS);
AT_WORD(tess_step_plan, merge_ticks, TESS_WORD_PLAN_MERGE_TICKS);
AT_WORD(tess_step_plan, part_ticks, TESS_WORD_PLAN_PART_TICKS);
AT_WORD(tess_step_plan, partial_ticks, TESS_WORD_PLAN_PARTIAL_TICKS);
AT_WORD(tess_step_plan, read_ticks, TESS_WORD_PLAN_READ_TICKS);
AT_WORD(tess_step_plan, most_jobs, TESS_WORD_PLAN_MOST_JOBS);
AT_WORD(tess_step_plan, most_merges, TESS_WORD_PLAN_MOST_MERGES);
AT_WORD(tess_step_plan, most_partials, TESS_WORD_PLAN_MOST_PARTIALS);
AT_WORD(tess_step_plan, sequences_at, TESS_WORD_PLAN_SEQUENCES_AT);
AT_WORD(tess_step_plan, jobs_at, TESS_WORD_PLAN_JOBS_AT);
AT_WORD(tess_step_plan, merges_at, TESS_WORD_PLAN_MERGES_AT);
AT_WORD(tess_step_plan, copy_from, TESS_WORD_PLAN_COPY_FROM);
AT_WORD(tess_step_plan, copy_to, TESS_WORD_PLAN_COPY_TO);
AT_WORD(tess_step_plan, copy_words, TESS_WORD_PLAN_COPY_WORDS);
AT_WORD(tess_step_plan, id, TESS_WORD_PLAN_ID);
AT_WORD(tess_step_plan, n_groups, TESS_WORD_PLAN_GROUPS);
AT_WORD(tess_step_plan, ends_at, TESS_WORD_PLAN_ENDS_AT);
AT_WORD(tess_step_plan, positions, TESS_WORD_PLAN_POSITIONS);
AT_WORD(tess_step_plan, slot_blocks, TESS_WORD_PLAN_SLOT_BLOCKS);
AT_WORD(tess_step_plan, phases, TESS_WORD_PLAN_PHASES);
AT_WORD(tess_step_plan, phases_wrap, TESS_WORD_PLAN_PHASES_WRAP);
AT_WORD(tess_step_plan, q_above, TESS_WORD_PLAN_Q_ABOVE);
AT_WORD(tess_step_plan, q_most, TESS_WORD_PLAN_Q_MOST);
AT_WORD(tess_step_plan, head_at, TESS_WORD_PLAN_HEAD_AT);
AT_WORD(tess_step_plan, first_merge, TESS_WORD_PLAN_FIRST_MERGE);
HAS_WORDS(tess_step_plan, TESS_STEP_PLAN_WORDS);

AT_WORD(tess_step_run, head, TESS_WORD_RUN_HEAD);
AT_WORD(tess_step_run, cls, TESS_WORD_RUN_CLS);
AT_WORD(tess_step_run, entries, TESS_WORD_RUN_ENTRIES);
AT_HIGH_HALF(tess_step_run, heads, TESS_WORD_RUN_HEADS);
HAS_WORDS(tess_step_run, TESS_STEP_RUN_WORDS);

AT_WORD(tess_step_group, first_run, TESS_WORD_GROUP_FIRST_RUN);
AT_WORD(tess_step_group, end_run, TESS_WORD_GROUP_END_RUN);
AT_WORD(tess_step_group, first_job, TESS_WORD_GROUP_FIRST_JOB);
AT_WORD(tess_step_group, end_job, TESS_WORD_GROUP_END_JOB);
HAS_WORDS(tess_step_group, TESS_STEP_GROUP_WORDS);
