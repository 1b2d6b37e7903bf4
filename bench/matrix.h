/* SPDX-License-Identifier: Apache-2.0 */
/* Result files side by side: a row for each problem, a column for each device of each file. The
 * page, `tessera compare` and all of its forms show this one model. */
#ifndef TESSERA_BENCH_MATRIX_H
#define TESSERA_BENCH_MATRIX_H

#include <stddef.h>

#include "results.h"

enum { MATRIX_FILES = 16, MATRIX_COLUMNS = 64, MATRIX_ROWS = 4096 };

/* Two runs of one machine differ by about this much, so smaller differences are told as none. */
#define MATRIX_SAME 0.02

/* In the order in which rows are shown. Numbers of different kinds have different limits and are
 * never drawn on one axis. */
typedef enum matrix_kind {
    MATRIX_PREFILL,  /* as many queries as keys: the limit is that of matrix products */
    MATRIX_CHUNK,    /* fewer queries than keys, but more than one */
    MATRIX_BACKWARD, /* gradients */
    MATRIX_DECODE,   /* one new token: the limit is that of memory */
    MATRIX_KINDS,
} matrix_kind;

typedef enum matrix_state {
    MATRIX_ABSENT,   /* the file does not have the problem */
    MATRIX_MEASURED, /* the only state with numbers */
    MATRIX_EMPTY,    /* the file says why it has no time for it */
} matrix_state;

/* A time against another: above 1 is faster than that. */
typedef struct matrix_ratio {
    double value, low, high; /* from the medians, and from the quartiles of both */
    int same;                /* the quartile ranges overlap, or the medians hardly differ */
} matrix_ratio;

typedef enum matrix_place {
    MATRIX_BEHIND,
    MATRIX_BEST,
    MATRIX_LEVEL, /* no difference from the best */
} matrix_place;

typedef struct matrix_cell {
    int state;                  /* matrix_state */
    const bench_result *of;     /* NULL when absent */
    int place;                  /* matrix_place, where two columns or more measured the row */
    double behind;              /* its median over the best one's; NaN likewise */
    matrix_ratio ratio;         /* to the column's base; NaN without one */
    double rate;                /* FLOP/s or B/s, as its kind has it */
    const bench_ceiling *limit; /* what limit_share of the result is of; NULL: none was measured */
} matrix_cell;

typedef struct matrix_row {
    const bench_result *shape; /* the result that was seen first */
    int kind, group;           /* rows of a group differ in length alone */
    int place;                 /* in the suite, where it is of one */
    int best;                  /* column, or -1 */
    int n_measured;
    char name[96];    /* "S2 16k" */
    char detail[160]; /* "f16, 32/8 heads, D 128, B=64 L=8 V=16" */
} matrix_row;

/* Geometric mean of a column's ratios over the rows that it and its base have in common. */
typedef struct matrix_mean {
    int count, clear; /* rows in common, and how many of them differ by more than the spread */
    matrix_ratio ratio;
} matrix_mean;

/* Shares of the limit over the rows of a column: the middle one and the worst. */
typedef struct matrix_shares {
    int count;
    double median, worst;
} matrix_shares;

typedef struct matrix_column {
    int file, device;
    const char *kernel; /* NULL: whichever ran the problem */
    char peer[48];      /* the tool that computed it; "": Tessera */
    const bench_report *report;
    const bench_device *about;
    char id[96];       /* "cuda:0", "B cuda:0", "cuda:0 cuda/mma" */
    char name[192];    /* "NVIDIA H200 (cuda)", with the file's letter where there are several */
    char head[64];     /* the same in few characters: "NVIDIA H200 cuda" */
    char kernels[256]; /* those that ran its rows */
    int base;          /* the column that its ratios refer to; -1: none */
    int software;      /* a GPU interface emulated on a CPU */
    int measured, best, level; /* rows: with a time, won, no difference from the winner */
    int contested;             /* rows with a time that another column has too */
    matrix_mean mean, means[MATRIX_KINDS];
    matrix_shares compute, memory; /* of products, and of memory with one new token */
    double worst_spread;
} matrix_column;

typedef struct matrix {
    const bench_report *reports[MATRIX_FILES];
    const char *paths[MATRIX_FILES]; /* NULL for a run that was not read from a file */
    int n_files;
    matrix_column *columns;
    int n_columns;
    matrix_row *rows;
    int n_rows, n_groups;
    matrix_cell *cells; /* row by row */
    int by_base;        /* 1: ratios to a base were asked for, or there are several files */
    /* Problems that one file alone has, where there are several; they have no row. */
    int alone[MATRIX_FILES];
} matrix;

/* Fills `m`, which borrows the reports and paths. `base` is the name of a device, a column's id,
 * the path of a file or its letter; NULL takes the first file, or in a file alone the column that
 * won most rows. Returns 0, or -1 with one line in `error`. matrix_free may be called after both.
 */
int matrix_build(matrix *m, const bench_report *const *reports, const char *const *paths,
                 int n_files, const char *base, char *error, size_t error_size);
void matrix_free(matrix *m);

const matrix_cell *matrix_at(const matrix *m, int row, int column);
/* Whether a time differs from that of `than`: the ratio of the two. `beside`: one is of a peer that
 * ran right beside the other, so that what drifted moved both. */
matrix_ratio matrix_compare(const bench_result *x, const bench_result *than, int beside);
const char *matrix_kind_name(int kind); /* "Prefill" */
const char *matrix_kind_word(int kind); /* "prefill" */
const char *matrix_kind_unit(int kind); /* "FLOP/s" or "B/s" */
/* What stands in a cell without a time: "needs 93 s", "no memory", "failed"; "-" where the file
 * does not have the problem. */
const char *matrix_why(const matrix_cell *c, char *buffer, size_t size);
/* What the ratios of a column refer to, for people; NULL without a base. */
const char *matrix_base_name(const matrix *m, int column);

#endif
