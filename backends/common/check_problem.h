/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The problem on which a kernel checks itself (self_check.h): one sequence of 100 rows and 150 keys
 * in blocks of 16, with four heads. Heads 0 and 1 read a local and a strided part, S2 of local 2
 * and stride 3; heads 2 and 3, packed where the kernel packs, read everything, and their last tile
 * is split into two parts that are merged. Keys past the end hold NaN. Two kernels solve it, each
 * with tiles of its own, in one buffer: tables first, then inputs, both results, and a workspace.
 */
#ifndef TESS_COMMON_CHECK_PROBLEM_H
#define TESS_COMMON_CHECK_PROBLEM_H

#include <tessera/tessera_backend.h>

enum {
    TESS_CHECK_HEADS = 4,
    TESS_CHECK_KV_HEADS = 2,
    TESS_CHECK_BLOCK = 16,
    TESS_CHECK_LOCAL = 2,
    TESS_CHECK_STRIDE = 3,
    TESS_CHECK_ROWS = 100,
    TESS_CHECK_KEYS = 150,
    TESS_CHECK_TOKENS = 160 /* of K and V: those past the keys hold NaN */
};

/* Which of both kernels. */
enum { TESS_CHECK_SUBJECT, TESS_CHECK_REFERENCE, TESS_CHECK_KERNELS };

/* Places of the tables and of what is in the buffer are bytes from its start. */
typedef struct tess_check_problem {
    uint32_t dtype; /* TESS_F16 or TESS_BF16 */
    int32_t dims;   /* head_dim */
    struct {
        const tess_kernel *kernel;
        uint64_t first_job, n_jobs, first_merge, n_merges, partials_at, o_at, lse_at;
        uint32_t partial_rows;
    } runs[TESS_CHECK_KERNELS];
    uint64_t jobs_at, merges_at, sequences_at, classes_at, entries_at, tables_bytes;
    uint64_t q_at, k_at, v_at, workspace_at, workspace_bytes;
    uint64_t bytes; /* of the buffer */
} tess_check_problem;

/* The key that both kernels are asked with. */
void tess_check_key(uint32_t dtype, int32_t dims, tess_kernel_key *key);
/* Lays the problem out for two kernels, by TESS_CHECK_... */
void tess_check_lay_out(uint32_t dtype, int32_t dims, const tess_kernel *const *kernels,
                        tess_check_problem *problem);
/* Writes the contents of the buffer: tables, inputs, and NaN where results go. */
void tess_check_fill(const tess_check_problem *problem, void *image);
/* The run of one kernel on a buffer with these contents; `tables` has to live as long. */
void tess_check_launch(const tess_check_problem *problem, int which, const tess_buffer *buffer,
                       tess_tables *tables, tess_launch *launch);
/* Largest difference of an element of O that the tolerance rule (docs/testing.md) allows: a
 * constant, since the problem is. */
double tess_check_allowed(uint32_t dtype, int32_t dims);
/* Whether both results in the buffer's contents agree. If not, `why` says where they do not. */
int tess_check_compare(const tess_check_problem *problem, const void *image, char *why,
                       size_t size);

#endif /* TESS_COMMON_CHECK_PROBLEM_H */
