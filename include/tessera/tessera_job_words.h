/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tessera: the tables of a plan as 32-bit words, for kernels. tessera_tables.h describes the
 * structures and includes this header; a kernel in CUDA, HIP, OpenCL C or GLSL includes it alone,
 * so it has nothing but preprocessor lines.
 *
 * TESS_WORD_JOB_ROW is the word of tess_job.row, counted from the start of the job, and so on. Two
 * fields of 16 bits share a word: the first one is TESS_LOW_HALF of it, the second TESS_HIGH_HALF.
 * A field of 64 bits is two words, the low one first.
 */
#ifndef TESSERA_TESSERA_JOB_WORDS_H
#define TESSERA_TESSERA_JOB_WORDS_H

#define TESS_LOW_HALF(word)  ((word)&0xffffu)
#define TESS_HIGH_HALF(word) ((word) >> 16)

/* ------------------------------------------------------------------ tess_job */

#define TESS_JOB_WORDS                12u
#define TESS_WORD_JOB_SEQUENCE        0u
#define TESS_WORD_JOB_HEAD            1u /* low half */
#define TESS_WORD_JOB_HEADS           1u /* high half */
#define TESS_WORD_JOB_ROW             2u
#define TESS_WORD_JOB_ROWS            3u /* low half */
#define TESS_WORD_JOB_CLS             3u /* high half */
#define TESS_WORD_JOB_LEFT_OFFSET     4u
#define TESS_WORD_JOB_LEFT_COUNT      5u
#define TESS_WORD_JOB_RIGHT_OFFSET    6u
#define TESS_WORD_JOB_RIGHT_COUNT     7u
#define TESS_WORD_JOB_INTERVAL_START  8u
#define TESS_WORD_JOB_INTERVAL_BLOCKS 9u
#define TESS_WORD_JOB_MASK_HEAD       10u /* low half */
#define TESS_WORD_JOB_MASK_TAIL       10u /* high half */
#define TESS_WORD_JOB_PARTIAL         11u

/* In TESS_WORD_JOB_PARTIAL: the job writes O and LSE, and no partial result. */
#define TESS_NO_PARTIAL 0xffffffffu

/* ------------------------------------------------------------------ tess_merge */

#define TESS_MERGE_WORDS         6u
#define TESS_WORD_MERGE_SEQUENCE 0u
#define TESS_WORD_MERGE_HEAD     1u /* low half */
#define TESS_WORD_MERGE_HEADS    1u /* high half */
#define TESS_WORD_MERGE_ROW      2u
#define TESS_WORD_MERGE_ROWS     3u /* low half */
#define TESS_WORD_MERGE_PARTIAL  4u
#define TESS_WORD_MERGE_PARTS    5u

/* ------------------------------------------------------------------ tess_column */

#define TESS_COLUMN_WORDS             8u
#define TESS_WORD_COLUMN_SEQUENCE     0u
#define TESS_WORD_COLUMN_KV_HEAD      1u /* low half */
#define TESS_WORD_COLUMN_KEYS         1u /* high half */
#define TESS_WORD_COLUMN_KEY          2u
#define TESS_WORD_COLUMN_STEP         3u
#define TESS_WORD_COLUMN_NEXT_KEY     4u
#define TESS_WORD_COLUMN_BLOCKS       5u /* low half */
#define TESS_WORD_COLUMN_FIRST_BLOCKS 5u /* high half */
#define TESS_WORD_COLUMN_SEGMENT      6u
#define TESS_WORD_COLUMN_SEGMENTS     7u

/* ------------------------------------------------------------------ tess_segment */

#define TESS_SEGMENT_WORDS          6u
#define TESS_WORD_SEGMENT_HEAD      0u /* low half */
#define TESS_WORD_SEGMENT_HEADS     0u /* high half */
#define TESS_WORD_SEGMENT_CLS       1u /* low half */
#define TESS_WORD_SEGMENT_BLOCKS    1u /* high half: `first`, and 256 times `blocks` */
#define TESS_WORD_SEGMENT_ROW       2u /* signed */
#define TESS_WORD_SEGMENT_ROWS      3u
#define TESS_WORD_SEGMENT_STEP      4u
#define TESS_WORD_SEGMENT_MASK_HEAD 5u /* low half */
#define TESS_WORD_SEGMENT_MASK_TAIL 5u /* high half */

/* In TESS_WORD_SEGMENT_STEP of plans with turns (tessera_turns.h). The kernel of a column leaves
 * the column's number and 1. */
#define TESS_TURN_WAIT   0x7fffffffu /* the word to wait for */
#define TESS_TURN_UPWARD 0x80000000u /* strips rise; else they come from the last to the first */

/* In TESS_WORD_SEGMENT_MASK_HEAD: all rows of the segment must be masked. */
#define TESS_ALL_ROWS 0xffffu

/* ------------------------------------------------------------------ tess_strip */

#define TESS_STRIP_WORDS         2u
#define TESS_WORD_STRIP_SEQUENCE 0u
#define TESS_WORD_STRIP_ROW      1u

/* ------------------------------------------------------------------ tess_sequence */

#define TESS_SEQUENCE_WORDS         10u
#define TESS_WORD_SEQUENCE_Q_START  0u /* 64 bits */
#define TESS_WORD_SEQUENCE_KV_START 2u /* 64 bits */
#define TESS_WORD_SEQUENCE_BATCH    4u
#define TESS_WORD_SEQUENCE_Q_LEN    5u
#define TESS_WORD_SEQUENCE_KV_LEN   6u
#define TESS_WORD_SEQUENCE_Q_FIRST  7u
#define TESS_WORD_SEQUENCE_KV_BATCH 8u
#define TESS_WORD_SEQUENCE_FLAGS    9u

/* tess_sequence.flags: the rows of the sequence are not appended, since a length of it was out of
 * range. */
#define TESS_SEQUENCE_NO_APPEND 1u
/* Of them too: the key block of the sequence's first key, where the plan has TESS_PLAN_APPEND. */
#define TESS_SEQUENCE_FIRST(block)       ((block) << 1)
#define TESS_SEQUENCE_FIRST_BLOCK(flags) ((flags) >> 1)

/* ------------------------------------------------------------------ tess_class */

#define TESS_CLASS_WORDS            12u
#define TESS_WORD_CLASS_FLAGS       0u
#define TESS_WORD_CLASS_LOCAL       1u
#define TESS_WORD_CLASS_STRIDE      2u
#define TESS_WORD_CLASS_SHIFT       3u
#define TESS_WORD_CLASS_LEFT        4u
#define TESS_WORD_CLASS_RIGHT       5u
#define TESS_WORD_CLASS_SINKS       6u
#define TESS_WORD_CLASS_LIST_OFFSET 7u
#define TESS_WORD_CLASS_LIST_COUNT  8u

/* tess_class.flags */
#define TESS_CLASS_CAUSAL 1u /* keep t <= p only */
#define TESS_CLASS_LOCAL  2u /* S2 rule of local and stride, causal order */
#define TESS_CLASS_WINDOW 4u /* token window with sinks */
/* bits[] tells for each left entry which query blocks of the tile keep it */
#define TESS_CLASS_BITS         8u
#define TESS_CLASS_MASK_ENTRIES 16u /* listed entries need tess_kept as well */

/* ------------------------------------------------------------------ tess_slot */

#define TESS_SLOT_WORDS     2u
#define TESS_WORD_SLOT_SLOT 0u
#define TESS_WORD_SLOT_NEXT 1u

/* In TESS_WORD_SLOT_NEXT: the block keeps its slot for good. */
#define TESS_NO_BLOCK 0xffffffffu

/* ------------------------------------------------------------------ tess_kv_head */

#define TESS_KV_HEAD_WORDS             4u
#define TESS_WORD_KV_HEAD_STORAGE      0u
#define TESS_WORD_KV_HEAD_POOL_HEAD    1u
#define TESS_WORD_KV_HEAD_SLOTS_OFFSET 2u

/* ------------------------------------------------------------------ steps */

/* What a step buffer begins with (tess_step_head). */
#define TESS_STEP_HEAD_WORDS         11u
#define TESS_WORD_STEP_JOBS          0u
#define TESS_WORD_STEP_MERGES        1u
#define TESS_WORD_STEP_PARTIALS      2u
#define TESS_WORD_STEP_CLAMPED       3u
#define TESS_WORD_STEP_LENGTH        4u
#define TESS_WORD_STEP_UNSPLIT_TICKS 5u
#define TESS_WORD_STEP_TICKS         6u
#define TESS_WORD_STEP_PLAN          7u
#define TESS_WORD_STEP_PLAN_AT       8u
#define TESS_WORD_STEP_SEQUENCES     9u
#define TESS_WORD_STEP_ROWS          10u

/* tess_step_plan */
#define TESS_STEP_PLAN_WORDS         44u
#define TESS_WORD_PLAN_BATCH         0u
#define TESS_WORD_PLAN_Q_LEN         1u
#define TESS_WORD_PLAN_KV_LEN        2u
#define TESS_WORD_PLAN_ROWS          3u
#define TESS_WORD_PLAN_BLOCK         4u
#define TESS_WORD_PLAN_CELL          5u
#define TESS_WORD_PLAN_TILE          6u
#define TESS_WORD_PLAN_FROM_END      7u
#define TESS_WORD_PLAN_PACK_ROWS     8u
#define TESS_WORD_PLAN_KV_HEADS      9u
#define TESS_WORD_PLAN_RUNS          10u
#define TESS_WORD_PLAN_MAX_PARTS     11u
#define TESS_WORD_PLAN_SHORT_LENGTH  12u
#define TESS_WORD_PLAN_LONG_LENGTH   13u
#define TESS_WORD_PLAN_CHOOSES       14u
#define TESS_WORD_PLAN_LENGTH_STEP   15u
#define TESS_WORD_PLAN_WORKERS       16u
#define TESS_WORD_PLAN_STEP_KEYS     17u
#define TESS_WORD_PLAN_STEP_TICKS    18u
#define TESS_WORD_PLAN_JOB_TICKS     19u
#define TESS_WORD_PLAN_MERGE_TICKS   20u
#define TESS_WORD_PLAN_PART_TICKS    21u
#define TESS_WORD_PLAN_PARTIAL_TICKS 22u
#define TESS_WORD_PLAN_READ_TICKS    23u
#define TESS_WORD_PLAN_MOST_JOBS     24u
#define TESS_WORD_PLAN_MOST_MERGES   25u
#define TESS_WORD_PLAN_MOST_PARTIALS 26u
#define TESS_WORD_PLAN_SEQUENCES_AT  27u
#define TESS_WORD_PLAN_JOBS_AT       28u
#define TESS_WORD_PLAN_MERGES_AT     29u
#define TESS_WORD_PLAN_COPY_FROM     30u
#define TESS_WORD_PLAN_COPY_TO       31u
#define TESS_WORD_PLAN_COPY_WORDS    32u
#define TESS_WORD_PLAN_ID            33u
#define TESS_WORD_PLAN_GROUPS        34u
#define TESS_WORD_PLAN_ENDS_AT       35u
#define TESS_WORD_PLAN_POSITIONS     36u
#define TESS_WORD_PLAN_SLOT_BLOCKS   37u
#define TESS_WORD_PLAN_PHASES        38u
#define TESS_WORD_PLAN_PHASES_WRAP   39u
#define TESS_WORD_PLAN_Q_ABOVE       40u
#define TESS_WORD_PLAN_Q_MOST        41u
#define TESS_WORD_PLAN_HEAD_AT       42u
#define TESS_WORD_PLAN_FIRST_MERGE   43u

/* tess_step_run, of which a tess_step_plan has as many as RUNS says right behind it */
#define TESS_STEP_RUN_WORDS   4u
#define TESS_WORD_RUN_HEAD    0u /* low half */
#define TESS_WORD_RUN_HEADS   0u /* high half */
#define TESS_WORD_RUN_CLS     1u
#define TESS_WORD_RUN_ENTRIES 2u

/* tess_step_group, of which there are as many as GROUPS says behind the runs */
#define TESS_STEP_GROUP_WORDS     4u
#define TESS_WORD_GROUP_FIRST_RUN 0u
#define TESS_WORD_GROUP_END_RUN   1u
#define TESS_WORD_GROUP_FIRST_JOB 2u
#define TESS_WORD_GROUP_END_JOB   3u

/* Sequences of at most TESS_SHORT_ROWS rows have parts of SHORT_LENGTH, others of LONG_LENGTH. Of
 * the former, the first TESS_SHORT_PARTS parts have that length, which suits short sequences. The
 * next as many are longer by TESS_SHORT_GROWTH(SHORT_LENGTH) key blocks, the ones behind them
 * again, and so on: parts cost time where there are many anyway, and jobs of many lengths do not
 * all begin and end at the same time. */
#define TESS_SHORT_ROWS           16u
#define TESS_SHORT_PARTS          16u
#define TESS_SHORT_GROWTH(length) ((length) < 12u ? 1u : (length) / 6u)

#endif /* TESSERA_TESSERA_JOB_WORDS_H */
