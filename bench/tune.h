/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of `tessera tune`: the shapes that stand for classes of shapes, what measuring one of them
 * gives, and the rules that follow. */
#ifndef TESSERA_BENCH_TUNE_H
#define TESSERA_BENCH_TUNE_H

#include <stdio.h>

#include <tessera/tessera.h>

#include "progress.h"
#include "results.h"

enum { TUNE_KERNELS = 8, TUNE_SAMPLES = 256 };

/* A class of shapes, and the problem that stands for it. */
typedef struct tune_shape {
    uint32_t dtype;
    int head_dim, least_head_dim; /* the class goes from the latter to the former */
    int sparse;                   /* 1: pattern s2, 0: dense */
    /* 1: one query row, for classes of few rows; 0: as many as keys */
    int few;
    int backward; /* 1: gradients, of any number of rows */
    char line[256];
} tune_shape;

enum { TUNE_FEW_ROWS = 16 }; /* the largest q_len of a class of few rows */

typedef struct tune_kernel {
    char name[64];
    double median, spread; /* seconds: the median, and the distance of the quartiles */
    int n_samples;
    int only_named; /* measured to be looked at: no rule can bring it in */
} tune_kernel;

/* One class on one device, measured. */
typedef struct tune_result {
    int device; /* index into the report's devices */
    tune_shape shape;
    char usual[64];                    /* the kernel that plans take without a tune file */
    tune_kernel kernels[TUNE_KERNELS]; /* in the order in which a rule names them */
    int n_kernels;
    int displaced;  /* 1: the first of them beats `usual` by more than both spreads */
    char note[256]; /* why there is nothing to choose; "" where there is */
} tune_result;

/* Shapes for a kind of device ("cpu", "gpu", "software"); returns how many, at most TUNE_SHAPES. */
enum { TUNE_SHAPES = 96 };
int tune_shapes(const char *kind, int quick, tune_shape shapes[TUNE_SHAPES]);

typedef struct tune_limits {
    /* for all kernels together, setting up and checking included; every kernel has some runs
     * whatever they take */
    double seconds;
    unsigned which;      /* DEVICES_USUAL_KERNELS or DEVICES_ALL_KERNELS */
    uint64_t host_bytes; /* that the tensors of all kernels may take together */
} tune_limits;

/* Measures every kernel of the device that takes the shape, each checked against the reference
 * first, in turns. Kernels that fail are left out, told through `bar` and counted in *failures.
 * Returns 0, or -1 when interrupted. */
int tune_measure(tess_runtime *runtime, tess_device *device, const char *id,
                 const tune_limits *limits, progress *bar, tune_result *result, int *failures);

/* The order of a rule: by median, but the usual kernel first unless another wins by more than both
 * spreads and 2 %. */
void tune_order(tune_result *result);

/* Writes the tune file and the table for people. Both return 0, or -1 when out of memory. */
int tune_write(const bench_report *report, const tune_result *results, int n_results, FILE *f);
int tune_table(const bench_report *report, const tune_result *results, int n_results, FILE *f);

#endif
