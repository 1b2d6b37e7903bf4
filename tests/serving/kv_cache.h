/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sequences over a KV cache in any form: in place, in pages or by slot, of 8 bits or not, planned
 * for lengths that the host knows or by steps, beside any other sequences. Elements follow from a
 * sequence's seed, so equal sequences can be had in several caches, and attention in double is
 * known without reading a cache. Every buffer lies between guard bytes, and has not a byte too
 * many.
 */
#ifndef TESSERA_TESTS_SERVING_KV_CACHE_H
#define TESSERA_TESTS_SERVING_KV_CACHE_H

#include "cache.h"

enum { KV_STORAGES = 4, KV_MOST_HEADS = 16 };

/* What is computed. */
typedef struct kv_problem {
    tess_pattern pattern;
    int32_t heads, kv_heads, head_dim;
    int32_t head_first, heads_total; /* of a rank; 0: it has all heads */
    uint32_t dtype, kv_dtype;        /* kv_dtype 0: dtype */
    uint32_t flags;                  /* of plans, beside those that the form needs */
    int32_t kv_split;
    int64_t max_tokens, max_chunk;
    int64_t rise; /* not 0: scores rise by 80 and fall again every so many tokens */
} kv_problem;

/* Where K and V lie, and who plans. What is 0 is no more than needed. */
typedef struct kv_form {
    int32_t page; /* 0: contiguous */
    int compact, steps, head_major;
    int is_static;    /* one scale for each kv head */
    int64_t q_len;    /* most rows of a sequence, of steps */
    int64_t max_rows; /* of steps */
    int64_t far;      /* elements from page to page, or from sequence to sequence */
    int64_t spare;    /* columns of the table that no sequence needs, and as many pages */
    /* Memory of a device for pools that are far apart, `count` stretches of it `step` bytes apart,
     * and back. NULL: all that lies between is allocated, or on the host address space. */
    tess_buffer (*far_memory)(uint64_t step, int64_t count);
    void (*far_free)(tess_buffer *buffer, uint64_t step, int64_t count);
} kv_form;

/* A buffer with guard bytes before its offset and behind its end. */
typedef struct kv_memory {
    tess_buffer buffer;
    uint64_t bytes, step; /* step: of what form.far_memory gave */
    void *map;            /* of pools that are far apart in host memory */
} kv_memory;

typedef struct kv_pool {
    kv_memory memory[4]; /* K, V and their scales */
    tess_tensor tensor[4];
    int32_t heads, ids[KV_MOST_HEADS];
    int64_t tokens, units; /* of a page or a sequence, and how many of these there are */
    int32_t *free_pages;
    int64_t n_free;
} kv_pool;

typedef struct kv_cache {
    tess_device *device;
    const kv_problem *p;
    kv_form form;
    int host_memory;
    uint32_t item, kv_item; /* bytes of an element */
    tess_layout *layout;
    uint32_t n_storage;
    kv_pool pools[KV_STORAGES];
    int32_t batch;   /* sequences that there is room for */
    int64_t keys;    /* of each */
    int64_t *lens;   /* of each, so far */
    uint32_t *seeds; /* of each: its number and one more, unless a test changes it */
    uint32_t *names; /* [batch][keys]: what makes a token's K and V what they are */
    int32_t *table;  /* [n_storage][batch][columns] */
    int32_t *given;  /* kv_lens that a step gets instead; 0: the true ones */
    int32_t *starts; /* of a step: the first row of each sequence; NULL: behind those before */
    int by_host;     /* a plan of known lengths does the work of steps too */
    int64_t columns, pages;
    tess_buffer block_table, cu_rows, kv_lens, q_first;
    const int32_t *q_firsts; /* given to steps, unless NULL */
    kv_memory step;
    tess_plan *plan;     /* of steps */
    tess_plan_info info; /* of the last plan that ran */
    uint32_t head[4];    /* what the last step began with */
    uint32_t rounds;     /* counts calls that change lengths, which makes names differ */
    uint64_t random;
} kv_cache;

/* Rows of O and LSE, those of the first sequence first: [row][head][element], [row][head]. */
typedef struct kv_result {
    int64_t rows;
    uint64_t o_bytes;
    unsigned char *o;
    float *lse;
} kv_result;

/* 0: the device's kernels refuse the problem in that form, and there is nothing to release. */
int kv_open(kv_cache *c, const test_target *target, const kv_problem *p, const kv_form *form,
            int32_t batch, int64_t keys, uint64_t seed);
void kv_close(kv_cache *c);

/* Appends so many tokens to each sequence, by a plan of known lengths where no step has room for
 * them. What a step is told to be wrong appends nothing. */
void kv_append(kv_cache *c, const int64_t *rows);
/* Takes back all tokens behind the first `tokens`, whose rows become NaN. If none is left, pages
 * are given back as they are. */
void kv_fall(kv_cache *c, int32_t sequence, int64_t tokens);
/* Puts an id, or one that is none, into the table; the page is not given to others. */
void kv_punch(kv_cache *c, uint32_t storage, int32_t sequence, int64_t column);
void kv_set_page(kv_cache *c, uint32_t storage, int32_t sequence, int64_t column, int32_t id);

/* Attention of the last rows of each sequence. The first one prepares a step too. */
void kv_attend(kv_cache *c, const int64_t *rows, kv_result *out);
void kv_result_free(kv_result *r);

/* A step of the first `batch` sequences, and a run with whatever step was prepared last. */
void kv_prepare(kv_cache *c, int32_t batch, const int32_t *cu_rows, const int32_t *kv_lens);
void kv_run_step(kv_cache *c, const int64_t *rows, kv_result *out);
/* Appends what `seeds` and lens say are the rows of the step that was prepared last. */
void kv_append_step(kv_cache *c, const int64_t *rows);

/* A row of K or V as attention reads it. */
void kv_row(const kv_cache *c, int v, int32_t sequence, int64_t token, int32_t head, double *row);

/* Fails unless each `stride`-th of the sequence's `rows` rows, which are the result's from `at` on,
 * is that of attention in double. */
void kv_check(const kv_cache *c, const kv_result *r, int32_t sequence, int64_t at, int64_t rows,
              int64_t stride, const char *what);

/* Fails unless both have the same bits in so many rows. */
void kv_same(const char *what, const kv_result *a, int64_t a_row, const kv_result *b, int64_t b_row,
             int64_t rows, const kv_cache *c);

/* Fails unless both caches hold the same bytes. */
void kv_same_pools(const char *what, const kv_cache *a, const kv_cache *b);

/* Guards of all buffers of the cache that stay from call to call. */
void kv_check_guards(const kv_cache *c, const char *what);

/* 1, said on stderr, if kernels refused all problems so far. */
int kv_none_opened(void);

/* TESSERA_TEST_REPEATS, or the given number without it. */
int kv_repeats(int otherwise);

/* The problem and the form, as a line that names all that they are. */
const char *kv_line(const kv_cache *c, const char *more);

#endif
