/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tessera: what a plan hands to a kernel, as C structures: jobs and merges, columns and strips, the
 * sequences and classes that they name, slots of compact caches, and steps. tess_tables at the end
 * holds them all. Comes with tessera_backend.h; kernels that are not written in C read the same
 * tables as words (tessera_job_words.h).
 */
#ifndef TESSERA_TESSERA_TABLES_H
#define TESSERA_TESSERA_TABLES_H

#include "tessera.h"
#include "tessera_job_words.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ----------------------------------------------------------------------------- jobs and merges */

/*
 * A job is what one workgroup (or CPU thread) does: some rows of one query head, or of `heads`
 * consecutive query heads of one kv head and one class, against an ordered set of key blocks:
 *
 *     entries[left_offset .. + left_count)
 *     blocks [interval_start .. + interval_blocks)
 *     entries[right_offset .. + right_count)
 *
 * Key block j holds tokens [j * block, min((j + 1) * block, kv_len)); each listed block is
 * non-empty. Blocks come in rising order (a class with TESS_CLASS_BITS: left entries only, also
 * rising). A row sees every key of a listed block, except where it must be masked:
 *   - the first mask_head and the last mask_tail blocks of the interval, and
 *   - all entries of a class with TESS_CLASS_MASK_ENTRIES.
 * There, tess_kept() below decides. mask_head + mask_tail <= interval_blocks. All other blocks need
 * no test but the end of the keys.
 *
 * A job with neither entries nor interval writes O = 0 and LSE = -inf. Rows of the tile lie within
 * 32 consecutive query blocks. Two uint16_t share a little-endian 32-bit word in the order given,
 * so a kernel may read a job as twelve 32-bit words, whose names are in tessera_job_words.h.
 */
typedef struct tess_job {
    uint32_t sequence;    /* index into sequences */
    uint16_t head;        /* first query head */
    uint16_t heads;       /* query heads packed, at least 1 */
    uint32_t row;         /* first query row of the sequence */
    uint16_t rows;        /* at least 1 */
    uint16_t cls;         /* index into classes */
    uint32_t left_offset; /* into entries (and into bits) */
    uint32_t left_count;
    uint32_t right_offset;
    uint32_t right_count;
    uint32_t interval_start; /* key block */
    uint32_t interval_blocks;
    uint16_t mask_head, mask_tail;
    uint32_t partial; /* the partial result to write, or TESS_NO_PARTIAL: write O and LSE */
} tess_job;

/*
 * A partial result holds, of each row, O (normalised, float32), the reference m that its
 * exponentials are relative to, and their sum l:
 *
 *     l = sum over keys of exp(|scale| * (s - m))
 *     O = sum over keys of exp(|scale| * (s - m)) * V / l          s = <q, k> * sign(scale)
 *
 * Any m near the row's largest s does. It is a score that is not scaled yet, since differences of
 * scores are exact where it matters and a rounded LSE of large scores is not. A row that sees no
 * key has l = 0, O = 0 and an m of -3e38 or less.
 *
 * A merge combines partials [partial, partial + parts) of the given rows, in rising order:
 *
 *     m = max m_i     w_i = l_i * exp(|scale| * (m_i - m))
 *     O = sum w_i O_i / sum w_i     LSE = |scale| * m + ln(sum w_i)
 *
 * Where all l_i are 0, O = 0 and LSE = -inf.
 */
typedef struct tess_merge {
    uint32_t sequence;
    uint16_t head, heads;
    uint32_t row;
    uint16_t rows;
    uint16_t reserved;
    uint32_t partial;
    uint32_t parts;
} tess_merge;

/* ---------------------------------------------------------- columns and strips, of backward */

/*
 * A column is what one workgroup (or CPU thread) does for dK and dV: some keys of one kv head, and
 * all rows that read them, of all query heads of the kv head; or a part of both, where long columns
 * are cut (tess_launch.column_parts). A plan's columns have each key of each sequence once, or in
 * all parts of its column, also those that no row reads: dK and dV are written as 0 there.
 *
 * The keys are `blocks` key blocks, or a part of one where tile_keys is less than a block. They are
 * two runs of blocks, the second one often empty. Block m begins at position
 *
 *     m < first_blocks ? key + m * step : next_key + (m - first_blocks) * step
 *
 * and key k of the column, k < keys, is key k % block of block k / block. Only the last block may
 * be shorter. A part of a block is block 0, and begins at `key`.
 *
 * The rows are segments [segment, segment + segments), which a kernel adds up in their order. A
 * pair that is kept is in exactly one of them.
 */
typedef struct tess_column {
    uint32_t sequence; /* index into sequences */
    uint16_t kv_head;
    uint16_t keys; /* 1 to tile_keys of the kernel */
    uint32_t key;  /* position of the first one */
    uint32_t step; /* tokens from one block of a run to the next */
    uint32_t next_key;
    uint16_t blocks; /* at least 1 */
    uint16_t first_blocks;
    uint32_t segment; /* the first of its segments */
    uint32_t segments;
} tess_column;

/*
 * Rows of `heads` query heads, one head after the other, that read the blocks [first, first +
 * blocks) of the column; other keys of the column they do not read, or in another segment. All of
 * them keep all of these keys, except where they must be masked, and there tess_kept() decides.
 *
 *   - step 0: the rows [row, row + rows). The first mask_head and the last mask_tail must be
 * masked; with TESS_ALL_ROWS as mask_head, all of them. In plans with turns (tess_kernel.turns)
 *     all segments are such rows, and `step` holds their turn instead: see tessera_turns.h.
 *   - step > 0: `rows` runs of `block` rows, `step` rows apart, the first of them at `row`, which
 *     may be negative. Rows outside [0, q_len) do not exist. None must be masked.
 *   - A class with TESS_CLASS_BITS: the query blocks entries[row .. + rows), in rising order, and
 *     their words bits[...] >> step: bit m, m < blocks, says that the query block reads block m of
 *     the column. Query block i has the rows at positions [i * block, (i + 1) * block), of which
 *     some may not exist. The first mask_head of these query blocks must be masked as well, and
 *     tess_kept gets the shifted word, and i - m as i_first.
 */
typedef struct tess_segment {
    uint16_t head, heads; /* heads is at least 1 */
    uint16_t cls;         /* index into classes */
    uint8_t first, blocks;
    int32_t row;
    uint32_t rows;
    uint32_t step;
    uint16_t mask_head, mask_tail;
} tess_segment;

/* A strip is strip_rows rows of a sequence (the last one may have fewer), and all of their query
 * heads. */
typedef struct tess_strip {
    uint32_t sequence;
    uint32_t row;
} tess_strip;

/* ----------------------------------------------------------------------- sequences and classes */

/*
 * One sequence that has rows or, in backward plans, keys; others of the batch are not in the table.
 * The element (row r, head h) of Q, O and LSE is at
 *     batch * stride_batch + (q_start + r) * stride_token + h * stride_head;
 * key t of kv head g likewise with kv_batch and kv_start, unless K and V have pages or lie by slot
 * (tess_launch.page). The absolute position of row r is q_first + r, and that of key t is t.
 *
 * Where the keys are a part of the sequence's, kv_len is the position at which the part ends, jobs
 * list no block before it, and kv_start is as far below the first key in memory as that key is from
 * position 0: it may be negative. Rows may then lie anywhere, also past kv_len. In compact plans
 * kv_start is that of the slots: see tess_slot.
 */
typedef struct tess_sequence {
    int64_t q_start, kv_start;
    uint32_t batch;
    int32_t q_len, kv_len;
    int32_t q_first;   /* position of row 0 */
    uint32_t kv_batch; /* `batch` of K and V */
    uint32_t flags;    /* TESS_SEQUENCE_NO_APPEND, or 0, and TESS_SEQUENCE_FIRST() */
} tess_sequence;

/*
 * The part of a pattern that a kernel needs in masked blocks.
 *
 * list_offset and list_count are the class's whole list in entries, of which the slices of its jobs
 * are parts; it ends where the longest sequence does. A causal LOCAL list holds the blocks j with
 * (j + shift) mod stride == 0, a bidirectional one those of each residue, one residue after the
 * other; a WINDOW list holds the blocks of the sinks.
 */
typedef struct tess_class {
    uint32_t flags;  /* TESS_CLASS_* of tessera_job_words.h */
    uint32_t local;  /* LOCAL: i - j < local, or ... */
    uint32_t stride; /* LOCAL: ... (j + shift) mod stride == 0 */
    uint32_t shift;  /* LOCAL: below stride */
    int32_t left;    /* WINDOW: tokens; INT32_MAX is unbounded */
    int32_t right;   /* WINDOW: likewise */
    int32_t sinks;   /* WINDOW: tokens */
    uint32_t list_offset;
    uint32_t list_count;  /* 0: no list */
    uint32_t reserved[3]; /* 0 */
} tess_class;

/*
 * Whether row position p of a tile keeps key t of a listed block that must be masked. i and j are
 * the blocks of p and t (floor division). `bits` is the word of the entry, bit n standing for query
 * block i_first + n, where i_first is the query block of the tile's first row. The caller checks
 * t < kv_len.
 */
static inline int tess_kept(const tess_class *c, int64_t p, int64_t t, int64_t i, int64_t j,
                            uint32_t bits, int64_t i_first) {
    if ((c->flags & TESS_CLASS_CAUSAL) && t > p) return 0;
    if ((c->flags & TESS_CLASS_LOCAL) && i - j >= (int64_t)c->local &&
        (uint64_t)(j + c->shift) % c->stride != 0)
        return 0;
    if ((c->flags & TESS_CLASS_WINDOW) && t >= c->sinks) {
        if (c->left != INT32_MAX && t < p - c->left) return 0;
        if (c->right != INT32_MAX && t > p + c->right) return 0;
    }
    if ((c->flags & TESS_CLASS_BITS) && !((bits >> (i - i_first)) & 1u)) return 0;
    return 1;
}

/* --------------------------------------------------------------------- slots of compact caches */

/*
 * Where a compact plan's K and V lie. Key block j of kv head g is in slot
 *     slots[heads[g].slots_offset + kv_start + j].slot
 * of the pool of storage group heads[g].storage, in head heads[g].pool_head of that pool, where
 * kv_start is the sequence's: 0, or of a part of the keys what leads to the list of its phase, in
 * which blocks are counted from the part's first one. `next` is the block, counted likewise, that
 * takes the place over later, or TESS_NO_BLOCK where none does before the list ends: once block
 * `next` is written, block j is gone.
 */
typedef struct tess_slot {
    uint32_t slot;
    uint32_t next;
} tess_slot;

typedef struct tess_kv_head {
    uint32_t storage;
    uint32_t pool_head;
    uint32_t slots_offset; /* of the kv head's first tess_slot; kv heads may share a list */
    uint32_t reserved;     /* 0 */
} tess_kv_head;

/* --------------------------------------------------------------------------------------- steps */

/*
 * Plans whose lengths come from the device (TESS_PLAN_DEVICE_LENGTHS) have their sequences, jobs
 * and merges in a step buffer, where TESS_OP_PREPARE writes them. It begins with a tess_step_head.
 * Then follow, 256-byte aligned: room for the sequences of the whole batch, for the jobs and for
 * the merges, a word for each storage group, and a copy of the plan's other tables, so that a
 * kernel finds all tables in one buffer. The plan's own tables end with a tess_step_plan, its runs
 * and its storage groups.
 *
 * Where sequences have different kernels, by their rows, each kernel has a head, 256 bytes after
 * the one before, room among the jobs and merges, words for the storage groups, and a
 * tess_step_plan with what follows it, tess_tables.step_plan_bytes after the one before. A launch
 * of one of them is then given the places that are its own. TESS_OP_PREPARE writes those of all.
 *
 * Each storage group has its own room among the jobs, of which the step uses the first ones: up to
 * the number that the group's word holds. A launch has the whole room, and workgroups past that
 * number leave.
 *
 * TESS_OP_PREPARE reads the lengths of tess_launch.batch sequences, as int32: TESS_ROLE_CU_ROWS has
 * one more than TESS_ROLE_KV_LENS. It writes TESS_ROLE_STEP. Its `n_jobs` are the storage groups of
 * the first tess_step_plan, those of the second, and so on: what one of them writes depends on no
 * other. backends/common/kernels/prepare.inl says how; a backend that takes other decisions makes
 * other jobs, which are as good, as long as there is room for them.
 */
typedef struct tess_step_head {
    uint32_t n_jobs;   /* of the kernel */
    uint32_t n_merges; /* the number of the merge after its last one */
    uint32_t n_partials;
    uint32_t n_clamped;            /* lengths and positions that were out of range */
    uint32_t length;               /* key blocks of a part that the plan's rule chose; 0: none */
    uint32_t unsplit_ticks, ticks; /* what the rule expects, without parts and as chosen; or 0 */
    uint32_t plan;                 /* tess_step_plan.id of the plan that the step is of ... */
    uint32_t plan_at; /* ... and the word of the step buffer where its tess_step_plan is */
    uint32_t n_sequences, n_rows; /* of the step, those without rows included */
} tess_step_head;

/* Everything that decides which jobs a step has, besides its lengths. Words and blocks count from
 * the start of the tables, or of the step buffer; ticks are a power of two nanoseconds. The order
 * of fields is that of tessera_job_words.h. */
typedef struct tess_step_plan {
    uint32_t batch, q_len, kv_len, rows; /* capacities */
    uint32_t block;
    uint32_t cell, tile; /* rows: cells begin at multiples of `cell` and are cut into tiles */
    uint32_t from_end;   /* 1: cells are counted from a sequence's last row */
    uint32_t pack_rows;  /* heads are packed while rows * heads of a job fit */
    uint32_t n_kv_heads;
    uint32_t n_runs; /* of heads */
    /* How keys are split. The two lengths are set together, else at most one of the four is. */
    uint32_t max_parts;                 /* [0: not so] equal parts, at most this many */
    uint32_t short_length, long_length; /* [0: not so] key blocks of a first part, by q_len */
    uint32_t chooses;                   /* 1: by the rule of docs/design.md */
    uint32_t length_step;               /* a chosen length is a multiple of this many blocks */
    uint32_t workers, step_keys;        /* tess_kernel_costs, and below in ticks */
    uint32_t step_ticks, job_ticks, merge_ticks, part_ticks;
    uint32_t partial_ticks; /* writing and reading a partial result */
    uint32_t read_ticks;    /* reading K and V of 64 key blocks */
    uint32_t most_jobs, most_merges, most_partials;
    uint32_t sequences_at, jobs_at, merges_at; /* words of the step buffer */
    uint32_t copy_from, copy_to, copy_words;   /* words of the tables, and of the step buffer */
    uint32_t id;
    uint32_t n_groups;  /* storage groups */
    uint32_t ends_at;   /* word of the step buffer where those of the storage groups begin */
    uint32_t positions; /* q_first is at most this, and so is the end of a sequence's keys */
    /* Of compact plans, else 0: key blocks of a list of slots for each phase, and phases. That of a
     * first key block is it modulo `phases` where phases_wrap is 1, else at most the last one. */
    uint32_t slot_blocks, phases, phases_wrap;
    /* One of several kernels: it has the sequences with q_above < q_len <= q_most, a head of its
     * own at this word of the step buffer, and the merges from number first_merge on. */
    uint32_t q_above, q_most, head_at, first_merge;
} tess_step_plan;

/* Consecutive query heads of one kv head and one class. */
typedef struct tess_step_run {
    uint16_t head, heads;
    uint32_t cls;
    uint32_t entries;  /* where the class's list begins */
    uint32_t reserved; /* 0 */
} tess_step_run;

/* --------------------------------------------------------------------------------- all of them */

/* A storage group: its runs, which follow each other, and the room for its jobs. Without
 * TESS_PLAN_COMPACT all heads are one. */
typedef struct tess_step_group {
    uint32_t first_run, end_run;
    uint32_t first_job, end_job;
} tess_step_group;

/*
 * All tables of a plan. On a device whose caps say host_memory the pointers are the host's;
 * elsewhere `device` holds one block with the tables at the byte offsets *_at, every table 256-byte
 * aligned.
 */
typedef struct tess_tables {
    uint32_t struct_size;
    uint32_t list_step; /* blocks between neighbours in all causal LOCAL lists; 0: there are none */
    const tess_job *jobs;
    const tess_merge *merges;
    const tess_sequence *sequences;
    const tess_class *classes;
    const uint32_t *entries;
    const uint32_t *bits; /* parallel to entries; empty unless some class has TESS_CLASS_BITS */
    uint64_t jobs_at, merges_at, sequences_at, classes_at, entries_at, bits_at;
    tess_buffer device;
    /* Where K and V lie in a compact plan (tess_launch.compact); both empty in others. kv heads
     * whose blocks lie alike share a list of slots. */
    const tess_slot *slots;
    const tess_kv_head *kv_heads; /* of each kv head */
    uint64_t slots_at, kv_heads_at;
    /* Of a step: its head, which says how many merges there are; step_ends say it of the jobs.
     * Those past these counts do not exist, and a kernel leaves at once. NULL elsewhere. */
    const tess_step_head *step;
    uint64_t step_at;
    uint32_t has_step; /* 1: the tables are a step's */
    /* Of a plan whose lengths come from the device: what its steps are made from, once for each of
     * n_step_plans kernels. */
    uint32_t n_step_plans;
    const tess_step_plan *step_plan;
    uint64_t step_plan_at;
    /* Of a step: for each storage group, the number of the job after its last one. */
    const uint32_t *step_ends;
    uint64_t step_ends_at;
    /* Of backward plans; see tess_launch.stage. */
    const tess_column *columns;
    const tess_segment *segments;
    const tess_strip *strips;
    const uint32_t *first_strips; /* of each sequence; one without rows has none */
    uint64_t columns_at, segments_at, strips_at, first_strips_at;
    uint64_t step_plan_bytes; /* from one tess_step_plan to the next; a multiple of 4 */
} tess_tables;

#ifdef __cplusplus
}
#endif

#endif /* TESSERA_TESSERA_TABLES_H */
