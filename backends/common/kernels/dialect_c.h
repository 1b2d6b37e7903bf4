/* SPDX-License-Identifier: Apache-2.0 */
/* The dialect of the portable kernels in C, for the kernel that prepares a step: workgroups of one
 * thread, which run on the host. */
#ifndef TESS_DIALECT_C_H
#define TESS_DIALECT_C_H

#include <stdbool.h>
#include <stdint.h>

#include "args.h"
#include "words.h"

typedef uint32_t tess_c_uint;
#define uint tess_c_uint

#define TESS_FUNCTION static inline
#define TESS_STRUCT(name)     \
    typedef struct name name; \
    struct name

/* What a function is handed behind its other arguments to read the tables, needed or not. */
#define TESS_TABLES , const uint *tables, const tess_args *arguments __attribute__((unused))

#define TESS_TABLES_OF_KERNEL   , tables, arguments
#define args                    (*arguments)
#define TESS_INT(x)             ((int)(x))
#define TESS_UINT(x)            ((uint)(x))
#define TESS_FLOAT(x)           ((float)(x))
#define TESS_THREAD             0u
#define TESS_GROUP              number
#define TESS_BARRIER            (void)0
#define TESS_SHARED(t, n, c)    t n[c] = {0}; /* compilers ask for a value */
#define TESS_WORD(at)           (tables[at])
#define TESS_LOOP_ENTERS(first) false
#define TESS_DEPENDENCIES_WAIT

typedef union tess_float_bits {
    uint bits;
    float x;
} tess_float_bits;
TESS_FUNCTION float tess_from_bits(uint bits) { return (tess_float_bits){.bits = bits}.x; }
TESS_FUNCTION uint tess_to_bits(float x) { return (tess_float_bits){.x = x}.bits; }
TESS_FUNCTION uint tess_min(uint a, uint b) { return a < b ? a : b; }

/* ------------------------------------------------------------------ preparing a step */

#define TESS_PREPARE_THREADS 1u
#ifndef TESS_PREPARE_SHARES /* a test has more */
#define TESS_PREPARE_SHARES 1u
#endif
TESS_FUNCTION uint tess_add_shared(uint *to, uint x) {
    const uint before = *to;
    *to = before + x;
    return before;
}
#define TESS_ADD_SHARED(to, x)   tess_add_shared(&(to), (x))
#define TESS_MOST_SHARED(to, x)  ((to) = (to) > (x) ? (to) : (x))
#define TESS_LEAST_SHARED(to, x) ((to) = (to) < (x) ? (to) : (x))
#define TESS_CU_ROWS(n)          (cu_rows[n])
#define TESS_KV_LENS(n)          (kv_lens_in[n])
#define TESS_Q_FIRST(n)          (q_first_in[n])
#define TESS_KV_FIRST(n)         (kv_first_in[n])
#define TESS_STEP                , uint *step
#define TESS_STEP_OF_KERNEL      , step
#define TESS_STORE_STEP(at, x)   (step[at] = (x))
#define TESS_HIGH_PRODUCT(a, b)  ((uint)((uint64_t)(a) * (b) >> 32))
#define TESS_PREPARE_KERNEL                                                                   \
    void tess_prepare_group(const tess_args *arguments, uint number, const uint *tables,      \
                            const int *cu_rows, const int *kv_lens_in, const int *q_first_in, \
                            const int *kv_first_in, uint *step)

#endif /* TESS_DIALECT_C_H */
