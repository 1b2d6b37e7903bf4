/* SPDX-License-Identifier: Apache-2.0 */
/* Rows, keys and threads of each instance of the forward kernel by its largest head_dim, for host
 * code and for compilers that make all instances at once. */
#ifndef TESS_COMMON_SHAPES_H
#define TESS_COMMON_SHAPES_H

#define TESS_ROWS_64     64
#define TESS_KEYS_64     64
#define TESS_THREADS_64  128
#define TESS_ROWS_128    64
#define TESS_KEYS_128    64
#define TESS_THREADS_128 128
#define TESS_ROWS_256    32
#define TESS_KEYS_256    64
#define TESS_THREADS_256 128

/* Those that fit 16 KiB of workgroup memory. */
#define TESS_SMALL_ROWS_64     32
#define TESS_SMALL_KEYS_64     32
#define TESS_SMALL_THREADS_64  64
#define TESS_SMALL_ROWS_128    32
#define TESS_SMALL_KEYS_128    32
#define TESS_SMALL_THREADS_128 64
#define TESS_SMALL_ROWS_256    16
#define TESS_SMALL_KEYS_256    64
#define TESS_SMALL_THREADS_256 64

/* Those of the kernel for few rows. Keys are the most of a chunk, and 64 * threads / head_dim. */
#define TESS_FEW_ROWS_64     16
#define TESS_FEW_KEYS_64     64
#define TESS_FEW_THREADS_64  64
#define TESS_FEW_ROWS_128    16
#define TESS_FEW_KEYS_128    32
#define TESS_FEW_THREADS_128 64
#define TESS_FEW_ROWS_256    8
#define TESS_FEW_KEYS_256    16
#define TESS_FEW_THREADS_256 64
/* Workgroups of a multiprocessor for which there are registers; more would spill. */
#define TESS_FEW_GROUPS 4

/* Those of the backward kernel's passes, by the same largest head_dim: rows or keys of a
 * tile. They fit 16 KiB too. */
#define TESS_BACKWARD_TILE_64     32
#define TESS_BACKWARD_THREADS_64  64
#define TESS_BACKWARD_TILE_128    32
#define TESS_BACKWARD_THREADS_128 128
#define TESS_BACKWARD_TILE_256    16
#define TESS_BACKWARD_THREADS_256 128
/* Rows of a strip, and threads of a workgroup that takes one. */
#define TESS_STRIP_ROWS    16
#define TESS_STRIP_THREADS 64

#endif /* TESS_COMMON_SHAPES_H */
