/* SPDX-License-Identifier: Apache-2.0 */
#include "suite.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "line.h"

#define S2_PAPER(V) "block=64 local=8 stride=" #V
#define K(n)        ((int64_t)(n)*1024)

/* A decode problem takes little time, so every shape is seen. */
#define DECODE(name, title, heads, kv_heads, head_dim, words, pattern, quick)          \
    {                                                                                  \
        name, title, heads, kv_heads, head_dim, words, pattern, 1, 1, "bf16", {quick}, \
            {K(4), K(32)}, {                                                           \
            K(4), K(8), K(16), K(32), K(64), K(128)                                    \
        }                                                                              \
    }
/* Heads attend as in the paper, with a stride of as many blocks as there are heads. */
#define S2_FAMILY(name, title, heads)                                                             \
    {                                                                                             \
        name, title, heads, heads, 128, "", S2_PAPER(heads), 0, 1, "bf16", {K(4)}, {K(8), K(32)}, \
        {                                                                                         \
            K(2), K(4), K(8), K(16), K(32), K(64), K(128)                                         \
        }                                                                                         \
    }
#define S2_CACHE "compact=1 block=64 local=8 "
/* Gradients take time, so only the full suite has long contexts. */
#define BACKWARD(name, title, heads, kv_heads, words, pattern, standard)                           \
    {                                                                                              \
        name, title, heads, kv_heads, 128, "op=bwd" words, pattern, 0, 1, "bf16", {0}, {standard}, \
        {                                                                                          \
            K(2), K(8), K(16), K(32), K(128)                                                       \
        }                                                                                          \
    }

/* Cheap families first: what they leave of the time goes to the long contexts after them. */
static const suite_family families[] = {
    {"dense-8h",
     "Dense, 8 heads, D=128",
     8,
     8,
     128,
     "",
     "pattern=dense",
     0,
     0,
     "f32,bf16",
     {K(2)},
     {K(4)},
     {K(1), K(2), K(4), K(8), K(16)}},
    DECODE("decode-llama3-8b", "Llama-3-8B, one new token", 32, 8, 128, "", "pattern=dense", K(4)),
    DECODE("decode-64-16", "64 heads in groups of 4, one new token", 64, 16, 128, "",
           "pattern=dense", 0),
    DECODE("decode-mha", "32 heads with K and V of their own", 32, 32, 128, "", "pattern=dense", 0),
    DECODE("decode-mqa", "16 heads that share K and V", 16, 1, 128, "", "pattern=dense", 0),
    DECODE("decode-d64", "Llama-like, D=64, one new token", 32, 8, 64, "", "pattern=dense", 0),
    DECODE("decode-d256", "Llama-like, D=256, one new token", 32, 8, 256, "", "pattern=dense", 0),
    DECODE("decode-phi3-small", "Phi-3-small, one new token", 32, 8, 128, "page=64 scale=0.0078125",
           "compact=1 block=64 local=16 stride=8 offset=1", 0),
    DECODE("decode-s2-16", "S2, V=16, one new token", 64, 16, 128, "page=64",
           S2_CACHE "stride=16 per_kv_head=1", K(4)),
    DECODE("decode-s2-32", "S2, V=32, one new token", 64, 16, 128, "page=64", S2_CACHE "stride=32",
           0),
    DECODE("decode-s2-64", "S2, V=64, one new token", 64, 16, 128, "page=64", S2_CACHE "stride=64",
           0),
    {"decode-batch",
     "Llama-3-8B, one new token of 16 sequences",
     32,
     8,
     128,
     "batch=16",
     "pattern=dense",
     1,
     0,
     "bf16",
     {0},
     {0},
     {K(2), K(8), K(32)}},
    {"llama3-8b",
     "Llama-3-8B, dense",
     32,
     8,
     128,
     "",
     "pattern=dense",
     0,
     1,
     "bf16",
     {K(2)},
     {K(2), K(8)},
     {K(2), K(4), K(8), K(16), K(32), K(128)}},
    {"neox-64",
     "GPT-NeoX-like, D=64",
     32,
     32,
     64,
     "",
     S2_PAPER(16),
     0,
     1,
     "bf16",
     {K(2)},
     {K(2), K(8)},
     {K(2), K(4), K(8), K(16), K(32)}},
    {"phi3-small-8k",
     "Phi-3-small 8k",
     32,
     8,
     128,
     "scale=0.0078125",
     "block=64 local=16 stride=8 offset=1",
     0,
     1,
     "bf16",
     {K(2)},
     {K(2), K(4), K(8)},
     {K(1), K(2), K(4), K(8)}},
    {"phi3-small-128k",
     "Phi-3-small 128k",
     32,
     8,
     128,
     "scale=0.0078125",
     "block=64 local=16 stride=8 offset=1",
     0,
     1,
     "bf16",
     {K(16)},
     {K(16), K(32)},
     {K(16), K(32), K(64), K(128)}},
    {"s2-16",
     "S2, H=V=16 (1.3B)",
     16,
     16,
     128,
     "",
     S2_PAPER(16),
     0,
     1,
     "f32,bf16",
     {K(2), K(8)},
     {K(2), K(8), K(32)},
     {K(2), K(4), K(8), K(16), K(32), K(64), K(128)}},
    S2_FAMILY("s2-32", "S2, H=V=32 (7B)", 32),
    S2_FAMILY("s2-64", "S2, H=V=64 (70B)", 64),
    BACKWARD("bwd-dense", "Gradients, dense, 16 heads", 16, 16, "", "pattern=dense", K(4)),
    BACKWARD("bwd-phi3-small", "Gradients, Phi-3-small", 32, 8, " scale=0.0078125",
             "block=64 local=16 stride=8 offset=1", 0),
    BACKWARD("bwd-s2-16", "Gradients, S2, H=V=16", 16, 16, "", S2_PAPER(16), K(4)),
    BACKWARD("bwd-s2-32", "Gradients, S2, H=V=32", 32, 32, "", S2_PAPER(32), 0),
    BACKWARD("bwd-s2-64", "Gradients, S2, H=V=64", 64, 64, "", S2_PAPER(64), 0),
};

enum { N_FAMILIES = sizeof families / sizeof *families };

const suite_family *suite_family_at(int index) {
    return index >= 0 && index < N_FAMILIES ? &families[index] : NULL;
}

const suite_family *suite_find(const char *name) {
    for (int i = 0; i < N_FAMILIES; i++)
        if (strcmp(name, families[i].name) == 0) return &families[i];
    return NULL;
}

int suite_dtypes(const char *list, uint32_t dtypes[3]) {
    int n = 0;
    for (;; list++) {
        char word[8];
        size_t length = strcspn(list, ",");
        if (length >= sizeof word) return -3;
        memcpy(word, list, length);
        word[length] = 0;
        int dtype = dtype_from_name(word);
        if (dtype < 0) return -3;
        for (int i = 0; i < n; i++)
            if (dtypes[i] == (uint32_t)dtype) return -3;
        dtypes[n++] = (uint32_t)dtype;
        list += length;
        if (!*list) return n;
    }
}

static int add_family(const suite_family *f, suite_kind kind, const char *dtypes,
                      suite_series **series, int *n_series) {
    uint32_t list[3];
    /* The full suite and a family asked for by name run the whole model; only suites with little
     * time may cut it to some heads. */
    int n = suite_dtypes(dtypes                                       ? dtypes
                         : kind == SUITE_FULL || kind == SUITE_FAMILY ? "f32,bf16"
                                                                      : f->dtypes,
                         list);
    if (n < 0) return n;
    suite_series *larger = realloc(*series, (size_t)(*n_series + n) * sizeof **series);
    if (!larger) return -1;
    *series = larger;
    for (int i = 0; i < n; i++) {
        suite_series *s = &larger[(*n_series)++];
        *s = (suite_series){.family = f,
                            .dtype = list[i],
                            .may_slice =
                                f->sliceable && (kind == SUITE_QUICK || kind == SUITE_MODELS)};
        const int64_t *lengths = kind == SUITE_QUICK    ? f->quick
                                 : kind == SUITE_MODELS ? f->standard
                                                        : f->full;
        while (s->n_lengths < SUITE_MAX_LENGTHS && lengths[s->n_lengths]) {
            s->lengths[s->n_lengths] = lengths[s->n_lengths];
            s->n_lengths++;
        }
    }
    return 0;
}

static int named_suite(const char *name) {
    return strcmp(name, "quick") == 0    ? SUITE_QUICK
           : strcmp(name, "models") == 0 ? SUITE_MODELS
           : strcmp(name, "full") == 0   ? SUITE_FULL
                                         : -1;
}

int suite_expand(const char *name, const char *dtypes, suite_series **series, int *n_series) {
    int kind = named_suite(name);
    if (kind < 0) {
        const suite_family *f = suite_find(name);
        return f ? add_family(f, SUITE_FAMILY, dtypes, series, n_series) : -2;
    }
    for (int i = 0; i < N_FAMILIES; i++) {
        int status = add_family(&families[i], (suite_kind)kind, dtypes, series, n_series);
        if (status != 0) return status;
    }
    return 0;
}

double suite_budget(const char *name) {
    int kind = named_suite(name);
    return strcmp(name, "vendors") == 0 ? 120
           : kind == SUITE_QUICK        ? 28
           : kind == SUITE_MODELS       ? 190
           : kind == SUITE_FULL         ? 3600
                                        : 600;
}

int suite_heads(const suite_family *f, int k) {
    int heads = f->heads, group = f->heads / f->kv_heads;
    for (; k > 0; k--) {
        heads /= 2;
        if (heads < 2 || heads < group || heads % group != 0) return 0;
    }
    return heads;
}

int suite_line(const suite_series *s, int64_t tokens, int heads, char *line, size_t size) {
    const suite_family *f = s->family;
    char slice[64] = "", kv[48] = "";
    int group = f->heads / f->kv_heads;
    if (heads < f->heads) snprintf(slice, sizeof slice, " heads_total=%d", f->heads);
    if (group > 1) snprintf(kv, sizeof kv, " kv_heads=%d", heads / group);
    int n = snprintf(line, size, "%sdtype=%s heads=%d%s%s head_dim=%d %s=%" PRId64,
                     f->decode ? "op=decode " : "", dtype_name(s->dtype), heads, kv, slice,
                     f->head_dim, f->decode ? "kv_len" : "q_len", tokens);
    if (n > 0 && (size_t)n < size)
        n += snprintf(line + n, size - (size_t)n, "%s%s %s", f->words[0] ? " " : "", f->words,
                      f->pattern);
    return n > 0 && (size_t)n < size ? 0 : -1;
}

static int belongs_to_pattern(const char *word) {
    static const char *const keys[] = {
        "pattern",     "block",       "local",       "local_right",    "stride",   "offset",
        "dense_heads", "per_kv_head", "homo",        "left",           "right",    "sinks",
        "mask",        "head_first",  "heads_total", "kv_heads_total", "head_ids", "compact"};
    size_t length = strcspn(word, "=");
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (strlen(keys[i]) == length && strncmp(word, keys[i], length) == 0) return 1;
    return 0;
}

int suite_twin(const char *line, char *twin, size_t size) {
    static const char dense[] = "pattern=dense";
    size_t used = 0;
    twin[0] = 0;
    for (size_t length; (length = line_word(&line)) > 0; line += length) {
        if (length == sizeof dense - 1 && strncmp(line, dense, length) == 0) {
            twin[0] = 0;
            return 0;
        }
        if (belongs_to_pattern(line)) continue;
        int n = snprintf(twin + used, size - used, "%.*s ", (int)length, line);
        if (n < 0 || (size_t)n >= size - used) return -1;
        used += (size_t)n;
    }
    int n = snprintf(twin + used, size - used, "%s", dense);
    return n >= 0 && (size_t)n < size - used ? 0 : -1;
}
