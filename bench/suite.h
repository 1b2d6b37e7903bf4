/* SPDX-License-Identifier: Apache-2.0 */
/* The one table of what the bench suite runs: families of problems with the shapes of real models,
 * and the suites made of them. */
#ifndef TESSERA_BENCH_SUITE_H
#define TESSERA_BENCH_SUITE_H

#include "results.h"

enum { SUITE_MAX_LENGTHS = 8 };

typedef struct suite_family {
    const char *name, *title;
    int heads, kv_heads, head_dim;
    const char *words;   /* further words of the shape: scale=, page= */
    const char *pattern; /* words of the pattern; the dense twin replaces them with pattern=dense */
    int decode;          /* 1: op=decode, and the lengths are of the keys */
    /* 1: where the whole does not fit the time, fewer heads of the same model may be run, as on
     * a rank of a tensor-parallel group */
    int sliceable;
    /* of the suite of models */
    const char *dtypes;
    /* tokens, each list ended by 0 */
    int64_t quick[SUITE_MAX_LENGTHS], standard[SUITE_MAX_LENGTHS], full[SUITE_MAX_LENGTHS];
} suite_family;

typedef enum suite_kind { SUITE_QUICK, SUITE_MODELS, SUITE_FULL, SUITE_FAMILY } suite_kind;

/* One series: a family in one dtype over rising lengths. */
typedef struct suite_series {
    const suite_family *family;
    uint32_t dtype;
    int64_t lengths[SUITE_MAX_LENGTHS];
    int n_lengths;
    int may_slice;
} suite_series;

const suite_family *suite_family_at(int index); /* NULL past the last */
const suite_family *suite_find(const char *name);

/* The types of a comma list, each once: how many, or -3. */
int suite_dtypes(const char *list, uint32_t dtypes[3]);

/* "quick", "models", "full" or the name of a family: appends its series. `dtypes` is a comma list
 * that replaces the suite's own, or NULL. Returns -1 when out of memory, -2 for an unknown name, -3
 * for a list that holds an unknown dtype, none, or one twice. The series are freed with free(). */
int suite_expand(const char *name, const char *dtypes, suite_series **series, int *n_series);
/* Seconds that a suite takes unless told otherwise. */
double suite_budget(const char *name);

/* Heads of the k-th choice for a family: all of them, then halves down to one kv head (at least two
 * query heads); 0 past the last. */
int suite_heads(const suite_family *family, int k);
/* Writes the problem line; returns -1 if it does not fit. */
int suite_line(const suite_series *s, int64_t tokens, int heads, char *line, size_t size);

/* The dense problem of the same shape: every word that belongs to a pattern or to a slice of heads
 * goes, pattern=dense comes. `twin` is "" if the line is dense already. */
int suite_twin(const char *line, char *twin, size_t size);

#endif
