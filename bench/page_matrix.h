/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of the page that are made of the matrix: devices, the table, bars. */
#ifndef TESSERA_BENCH_PAGE_MATRIX_H
#define TESSERA_BENCH_PAGE_MATRIX_H

#include <stdio.h>

#include "matrix.h"

enum { PAGE_COLOURS = 8, PAGE_SHAPES = 8 };

/* The shapes of marks, which everything that tells devices apart refers to. */
void page_shapes(FILE *f);
/* A device's colour and shape, to stand before its name. */
void page_key(int column, FILE *f);
/* Which of the shapes a column has. Two columns of one colour differ in it. */
int page_shape(int column);
void page_devices(const matrix *m, FILE *f);
void page_matrix(const matrix *m, FILE *f);
/* Bars of all rows with one unit on one axis. Returns 0 and writes nothing without any. */
int page_bars(const matrix *m, int decode, FILE *f);
/* First run, compilation, planning and memory of each cell. */
void page_costs(const matrix *m, FILE *f);

#endif
