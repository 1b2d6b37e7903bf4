/* SPDX-License-Identifier: Apache-2.0 */
/* The picture of a pattern. */
#ifndef TESSERA_CLI_PATTERN_H
#define TESSERA_CLI_PATTERN_H

#include <stdio.h>

#include "cli.h"
#include "problem.h"

/* heads that a picture shows at most, the first ones: more would be neither legible nor small */
enum { PATTERN_PANELS = 512 };

/* Draws the heads as small multiples into `stream`. Returns 0, or -1 with one line in `error`;
 * write errors show when the stream is closed. */
int pattern_svg(FILE *stream, const problem *p, const tess_layout *layout,
                const tess_layout_info *info, char *error, size_t error_size);

/* Why a head keeps a key block; blocks that it does not keep have no kind. */
typedef enum block_kind {
    KIND_NONE,
    KIND_LOCAL,
    KIND_STRIDED,
    KIND_DENSE,
    KIND_WINDOW,
    KIND_SINK,
    KIND_MASK,
    N_KINDS
} block_kind;

/* The kind of a kept block (query block i, key block j). */
block_kind pattern_kind_of(const problem *p, int32_t head, int64_t i, int64_t j);

/* One head as outlines: SVG path data for every kind at every level of fill, at most `budget` bytes
 * in all. `cell` is how many blocks a cell of the picture has on a side; a cell's level says which
 * share of its blocks is kept. Only the first `shown` of the layout's `blocks` are traced.
 * `progress` moves by `share` from `done` on. */
enum { TRACE_LEVELS = 8 };
typedef struct trace {
    /* owned; NULL where empty; level TRACE_LEVELS - 1 is full */
    char *paths[N_KINDS][TRACE_LEVELS];
    int64_t cell, cells;
    size_t bytes;
} trace;
/* Returns 0; 1 when the budget is too small for this `cell`; -1 when out of memory. The trace is
 * freed with trace_free in every case. */
int trace_head(trace *t, const problem *p, const tess_layout *layout, int32_t head, int64_t blocks,
               int64_t shown, int64_t cell, size_t budget, cli_progress *progress, double done,
               double share);
int trace_equal(const trace *a, const trace *b);
void trace_free(trace *t);

#endif
