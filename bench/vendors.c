/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Heads, types and lengths are those of models that people run, and small enough that an integrated
 * GPU finishes most of them. Every sparse line has its dense twin in the suite. Lines are in the
 * form that line_format writes, so that a problem given by words meets its line in other files.
 */
#include "vendors.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "line.h"
#include "report.h"
#include "suite.h"

#define GROUPED "heads=32 kv_heads=8 head_dim=128 "
#define MHA     "heads=32 head_dim=128 "
#define NARROW  "heads=32 head_dim=64 "
#define DENSE   " pattern=dense"
#define S2      " local=8 stride=16"
/* A line and its sparse one. */
#define BOTH(family, words) \
    {family, words DENSE}, { family, words S2 }
#define WINDOW " pattern=window left=1023"
#define PAGES  " op=decode page=64"
#define SLOTS  " op=decode page=64 compact=1"
#define CHUNK  "q_len=512 kv_len=32768"

static const struct {
    const char *family, *line;
} suite[] = {
    BOTH("prefill", GROUPED "q_len=4096 dtype=bf16"),
    {"decode", GROUPED "kv_len=32768 op=decode dtype=bf16" DENSE},
    {"decode", GROUPED "kv_len=32768" PAGES " dtype=bf16" DENSE},
    {"decode", GROUPED "kv_len=32768" SLOTS " dtype=bf16" S2},
    {"prefill", GROUPED "q_len=1024 dtype=bf16" DENSE},
    {"decode", GROUPED "kv_len=4096 op=decode dtype=bf16" DENSE},
    {"prefill", GROUPED "q_len=1024" DENSE},
    BOTH("chunk", GROUPED CHUNK " dtype=bf16"),
    BOTH("gradients", GROUPED "q_len=4096 op=bwd dtype=bf16"),
    BOTH("prefill", GROUPED "q_len=4096 dtype=f16"),
    {"decode", GROUPED "kv_len=32768 op=decode dtype=f16" DENSE},
    {"decode", GROUPED "kv_len=32768" PAGES " dtype=f16" DENSE},
    {"decode", GROUPED "kv_len=4096" PAGES " dtype=bf16" DENSE},
    {"decode", GROUPED "kv_len=131072 op=decode dtype=bf16" DENSE},
    {"decode", GROUPED "kv_len=131072" PAGES " dtype=bf16" DENSE},
    {"decode", GROUPED "kv_len=131072" SLOTS " dtype=bf16" S2},
    {"decode", GROUPED "batch=32 kv_len=4096" PAGES " dtype=bf16" DENSE},
    BOTH("prefill", GROUPED "q_len=4096"),
    {"decode", GROUPED "kv_len=32768 op=decode" DENSE},
    BOTH("prefill", MHA "q_len=4096 dtype=bf16"),
    {"decode", MHA "kv_len=32768 op=decode dtype=bf16" DENSE},
    BOTH("prefill", NARROW "q_len=4096 dtype=bf16"),
    {"prefill", NARROW "q_len=4096 dtype=f16" DENSE},
    {"decode", NARROW "kv_len=32768 op=decode dtype=bf16" DENSE},
    {"prefill", GROUPED "q_len=4096 dtype=bf16" WINDOW},
    {"prefill", GROUPED "q_len=16384 dtype=bf16" S2},
    {"prefill", GROUPED "q_len=16384 dtype=bf16" WINDOW},
    {"prefill", GROUPED "q_len=16384 dtype=bf16" DENSE},
    {"prefill", GROUPED "q_len=8192 dtype=bf16" S2},
    {"prefill", GROUPED "q_len=8192 dtype=bf16" DENSE},
    {"chunk", GROUPED CHUNK " dtype=f16" DENSE},
    {"gradients", GROUPED "q_len=4096 op=bwd dtype=f16" DENSE},
    {"gradients", NARROW "q_len=4096 op=bwd dtype=bf16" DENSE},
    {"gradients", GROUPED "q_len=4096 op=bwd" DENSE},
};

enum { N_LINES = sizeof suite / sizeof *suite };

int vendors_title(const char *line, char *title, size_t size) {
    static const char *const patterns[] = {"dense", "S2", "window", "blocks"};
    problem p;
    char error[256], tokens[24], queries[32] = "", more[64] = "";
    if (line_parse(&p, line, error, sizeof error) != 0) {
        problem_free(&p);
        return -1;
    }
    const int64_t keys = problem_longest(&p), rows = p.q_lens ? 0 : p.q_len;
    const int decode = p.op == PROBLEM_DECODE, chunk = !decode && rows && rows < keys;
    if (chunk) snprintf(queries, sizeof queries, "%" PRId64 " on ", rows);
    if (p.batch > 1) snprintf(more, sizeof more, ", %" PRId64 " sequences", p.batch);
    if (decode && (p.page || p.compact))
        snprintf(more + strlen(more), sizeof more - strlen(more), ", %s",
                 p.compact ? "slots" : "pages");
    snprintf(title, size, "%s %s%s, %s, %s, %d/%d x %d%s",
             decode                     ? "Decode"
             : p.op == PROBLEM_BACKWARD ? "Gradients"
             : chunk                    ? "Chunk"
                                        : "Prefill",
             queries, short_tokens(tokens, sizeof tokens, keys),
             p.pattern < 4 ? patterns[p.pattern] : "?", dtype_name(p.dtype), p.heads, p.kv_heads,
             p.head_dim, more);
    problem_free(&p);
    return 0;
}

/* Whether the line has one of the types. */
static int is_wanted(const char *line, const uint32_t *types, int n_types) {
    char word[24];
    for (int i = 0; i < n_types; i++) {
        snprintf(word, sizeof word, " dtype=%s ", dtype_name(types[i]));
        if (types[i] == TESS_F32 ? !strstr(line, " dtype=") : strstr(line, word) != NULL) return 1;
    }
    return 0;
}

int vendors_lines(const char *dtypes, bench_line **lines, int *n_lines) {
    uint32_t types[3];
    const int n_types = suite_dtypes(dtypes ? dtypes : "f32,f16,bf16", types);
    if (n_types < 0) return n_types;
    bench_line *larger = realloc(*lines, (size_t)(*n_lines + N_LINES) * sizeof *larger);
    if (!larger) return -1;
    *lines = larger;
    for (int i = 0; i < N_LINES; i++) {
        if (!is_wanted(suite[i].line, types, n_types)) continue;
        bench_line *l = &larger[(*n_lines)++];
        memset(l, 0, sizeof *l);
        snprintf(l->family, sizeof l->family, "%s", suite[i].family);
        snprintf(l->line, sizeof l->line, "%s", suite[i].line);
        if (vendors_title(l->line, l->title, sizeof l->title) != 0) l->title[0] = 0;
    }
    return 0;
}
