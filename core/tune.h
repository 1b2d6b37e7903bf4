/* SPDX-License-Identifier: Apache-2.0 */
/* Tune tables: which kernel is tried first for which shape, read from the file that the setting
 * names and from the text that a backend brings along. */
#ifndef TESSERA_CORE_TUNE_H
#define TESSERA_CORE_TUNE_H

#include "common.h"

enum {
    TESS_TUNE_BYTES = 256 * 1024, /* of a table; longer ones are refused */
    TESS_TUNE_RULES = 1024,
    TESS_TUNE_LINE = 512,
    TESS_TUNE_KERNELS = 8 /* of one rule */
};

/* A word of the table's text; length 0: the word was not given. */
typedef struct tess_span {
    const char *at;
    size_t length;
} tess_span;

typedef struct tess_range {
    int64_t low, high; /* both are part of it */
} tess_range;

typedef struct tess_tune_rule {
    const char *text; /* without blanks around it and without a comment */
    uint32_t line, basis;
    uint32_t ops, dtypes, patterns; /* bit n: value n of tess_op, tess_dtype, tess_pattern_kind */
    tess_range head_dim, block, q_len, kv_len;
    tess_span arch, device;     /* patterns with * and ? */
    tess_span backend, kernels; /* `backend` is the part that all names in `kernels` begin with */
} tess_tune_rule;

typedef struct tess_tune {
    char *text; /* from the runtime's allocator; lines end in 0 */
    size_t text_bytes;
    tess_tune_rule *rules;
    size_t rules_bytes;
    uint32_t n_rules;
} tess_tune;

/* Reads a table, which is not trusted. Messages begin with `label`; `only` is the one backend that
 * it may speak of, or NULL. CORRUPT names the line, VERSION is another format, OUT_OF_MEMORY. On
 * failure *tune is empty. */
tess_status tess_tune_parse(tess_runtime *runtime, const char *label, const char *only,
                            const char *bytes, size_t size, tess_tune *tune);
/* The same from a file; `label` is the setting's name. INVALID: it cannot be opened, is no regular
 * file, or is too large; NATIVE: it cannot be read. */
tess_status tess_tune_read(tess_runtime *runtime, const char *label, const char *path,
                           tess_tune *tune);
void tess_tune_free(tess_runtime *runtime, tess_tune *tune);

/* A kernel that the tables prefer. All zero: before the first. */
typedef struct tess_preference {
    char name[64]; /* without the backend's name */
    char why[256]; /* the table, the line of the rule, and what it is based on */
    uint32_t tables;
    tess_span rest;
} tess_preference;

/* Moves to the next kernel that the tables prefer for a key and for a pattern of this
 * tess_pattern_kind: those of the file's first rule that matches, in its order, then likewise those
 * of the backend's own table. False past the last. */
bool tess_tune_next(const tess_device *device, const tess_kernel_key *key, uint32_t pattern,
                    tess_preference *p);

/* Copies rule `*index` of those that may serve the device, or of all with NULL. Where the table
 * ends before it, returns false and leaves in *index how many rules of further tables are to be
 * passed. */
bool tess_tune_rule_at(const tess_tune *tune, const tess_device *device, uint32_t *index,
                       tess_rule_info *full);

#endif
