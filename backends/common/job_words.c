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
