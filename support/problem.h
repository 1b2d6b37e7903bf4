/* SPDX-License-Identifier: Apache-2.0 */
/* One attention problem as a line of key=value words, shared by the command, the bench suite, the
 * tests and every log. docs/problems.md lists the words. */
#ifndef TESSERA_SUPPORT_PROBLEM_H
#define TESSERA_SUPPORT_PROBLEM_H

#include <tessera/tessera.h>

/* The library computes decoding as forward attention of few rows, with K and V in a cache. */
typedef enum problem_op { PROBLEM_FORWARD, PROBLEM_BACKWARD, PROBLEM_DECODE } problem_op;

typedef struct problem {
    uint32_t op;       /* problem_op */
    uint32_t dtype;    /* tess_dtype */
    uint32_t kv_dtype; /* likewise, of K and V; that of `dtype` unless given */
    int64_t batch, q_len, kv_len;
    int64_t *q_lens, *kv_lens; /* packed batch: `batch` lengths each, owned; NULL otherwise */
    /* [NULL: bottom-right, and 0] positions of each sequence's first row and first key, `batch`
     * each once problem_finish is through, owned */
    int64_t *q_first, *kv_first;
    int64_t q_first_count, kv_first_count; /* as given: 1 or `batch` */
    int32_t heads, kv_heads, head_dim;
    int32_t causal;
    double scale; /* resolved by problem_finish */
    uint64_t seed;
    uint32_t pattern; /* tess_pattern_kind */
    int32_t block, local, local_right, stride, offset, dense_heads, per_kv_head, homo;
    int32_t head_first, heads_total, kv_heads_total;
    int32_t *head_ids; /* [NULL: from head_first on] of each head, `heads` of them, owned */
    int64_t head_ids_count;
    int64_t left, right, sinks;
    char *mask_path; /* pattern=blocks, owned */
    uint8_t *mask;   /* loaded by problem_finish, owned */
    int32_t mask_heads;
    int64_t mask_query_blocks, mask_key_blocks;
    int32_t kv_split, batch_invariant, tile_rows;
    int32_t page, compact;                                 /* of decode; 0: K and V lie in place */
    int32_t determinism, dq_f32, dkv_f32, dq_add, dkv_add; /* of backward */
    uint64_t seen;                                         /* private: which words were given */
} problem;

/* Parsing. Functions return 0, or -1 with one line in `error` that begins with the key it is about.
 * A problem is used as problem_init, problem_word for each word, problem_finish; and freed with
 * problem_free in every case. */
/* from problem_finish and problem_parse: the words are right, but the file of mask= cannot be
 * used */
enum { PROBLEM_BAD_FILE = -2 };
void problem_init(problem *p);
int problem_word(problem *p, const char *word, char *error, size_t error_size);
/* Fills defaults, checks ranges and combinations that the grammar alone can decide, loads mask=.
 * What needs the library (legal layouts) is left to it. heads, head_dim and q_len or q_lens, for
 * decode kv_len or kv_lens, are required; the command `run` adds them as words taken from the
 * arrays. */
int problem_finish(problem *p, char *error, size_t error_size);
/* Whether K and V have scales. */
static inline int problem_has_scales(const problem *p) { return p->kv_dtype >= TESS_F8E4M3; }
/* Bytes of an element of Q and O, and of K and V. */
static inline size_t problem_size(const problem *p) { return p->dtype == TESS_F32 ? 4 : 2; }
static inline size_t problem_kv_size(const problem *p) {
    return problem_has_scales(p) ? 1 : problem_size(p);
}
/* Whether the word `key` was given. */
int problem_has(const problem *p, const char *key);
/* All words of a line, blanks between, '#' starts a comment; includes problem_init and
 * problem_finish. */
int problem_parse(problem *p, const char *line, char *error, size_t error_size);
void problem_free(problem *p);

/* Writes the shortest line that gives the same problem (defaults omitted); returns its length as
 * snprintf does. */
int problem_format(const problem *p, char *buffer, size_t size);

/* The library's descriptors. The layout's max_tokens is where the last key ends, its max_chunk
 * the longest q_len of the sequences that continue a cached prefix (q_len < kv_len), else 1. The
 * plan descriptor's arrays point into caller-owned storage in *cu (freed by the caller with free(),
 * NULL for a batch that is not packed). */
tess_status problem_layout(const problem *p, tess_runtime *runtime, tess_layout **layout);
int problem_plan_desc(const problem *p, tess_plan_desc *desc, int64_t **cu);

/* Whether K and V lie in a cache by pages or slots (cache.h). */
int problem_cached(const problem *p);

/* Lengths of sequence b, and where its tokens start in a packed batch (0 otherwise). */
int64_t problem_q_len(const problem *p, int64_t b);
int64_t problem_kv_len(const problem *p, int64_t b);
int64_t problem_q_start(const problem *p, int64_t b);
int64_t problem_kv_start(const problem *p, int64_t b);
int64_t problem_q_tokens(const problem *p); /* rows of Q over the whole batch */
int64_t problem_kv_tokens(const problem *p);
int64_t problem_longest(const problem *p); /* the largest kv_len */
int64_t problem_max_kv(const problem *p);  /* the largest position at which keys end */
/* Positions of the first row and the first key of sequence b. */
int64_t problem_q_first(const problem *p, int64_t b);
int64_t problem_kv_first(const problem *p, int64_t b);

#endif
