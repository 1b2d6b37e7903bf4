/* SPDX-License-Identifier: Apache-2.0 */
/* Instructions of NVIDIA's sm_80 and later as inline PTX in OpenCL C, one function each. Arithmetic
 * whose rounding matters is here as well: no option of a compiler changes it then. */
#ifndef TESS_OPENCL_NV_INSTRUCTIONS_H
#define TESS_OPENCL_NV_INSTRUCTIONS_H

/* Pointers to local memory are addresses of shared memory already. */
MATRIX_FUNCTION uint nv_shared_address(const __local void *p) { return (uint)(uintptr_t)p; }

/* The thread, as if it could change: the compiler does not keep what is computed from it. */
MATRIX_FUNCTION uint nv_thread_now(void) {
    uint thread;
    __asm__ volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}

/* Copies 16 bytes, or with `bytes` 0 makes them zeros and reads nothing. */
MATRIX_FUNCTION void nv_copy_unit(uint to, const __global ushort *from, uint bytes) {
    __asm__ volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                     "r"(bytes)
                     : "memory");
}
/* Waits for all copies of this thread. */
MATRIX_FUNCTION void nv_copies_wait(void) { __asm__ volatile("cp.async.wait_all;" ::: "memory"); }

/* 16 bytes of local memory; they are read again each time. */
MATRIX_FUNCTION void nv_store_unit(uint to, const uint *x) {
    __asm__ volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x[0]), "r"(x[1]),
                     "r"(x[2]), "r"(x[3])
                     : "memory");
}
#define NV_LOAD_FOUR(name, instruction)                                   \
    MATRIX_FUNCTION void name(uint *x, uint from) {                       \
        __asm__ volatile(instruction " {%0, %1, %2, %3}, [%4];"           \
                         : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) \
                         : "r"(from)                                      \
                         : "memory");                                     \
    }
NV_LOAD_FOUR(nv_load_unit, "ld.volatile.shared.v4.b32")
/* Four matrices of 8 x 8; lane n gives the address of row n % 8 of matrix n / 8. */
NV_LOAD_FOUR(nv_ldmatrix, "ldmatrix.sync.aligned.m8n8.x4.shared.b16")
NV_LOAD_FOUR(nv_ldmatrix_transposed, "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16")

#if TESS_DTYPE == 1
#define TESS_NV_TYPE "f16"
#else
#define TESS_NV_TYPE "bf16"
#endif

/* c += a b for 16 x 16 times 16 x 8. Rows of c: lane / 4 and that + 8; columns lane % 4 * 2 + {0,
 * 1}. */
MATRIX_FUNCTION void nv_mma(float *c, const uint *a, uint b0, uint b1) {
    __asm__("mma.sync.aligned.m16n8k16.row.col.f32." TESS_NV_TYPE "." TESS_NV_TYPE
            ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Two numbers as elements of a word, the first in its low half. */
MATRIX_FUNCTION uint nv_pack(float low, float high) {
    uint word;
    __asm__("cvt.rn." TESS_NV_TYPE "x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
}

/* The value of the lane whose number differs by exclusive or with `mask`. */
MATRIX_FUNCTION uint nv_exchange(uint x, uint mask) {
    uint y;
    __asm__ volatile("shfl.sync.bfly.b32 %0, %1, %2, 31, 0xffffffff;"
                     : "=r"(y)
                     : "r"(x), "r"(mask));
    return y;
}
MATRIX_FUNCTION float nv_exchange_float(float x, uint mask) {
    return as_float(nv_exchange(as_uint(x), mask));
}
MATRIX_FUNCTION bool nv_any(bool x) {
    uint y;
    __asm__ volatile("{\n"
                     ".reg .pred in, out;\n"
                     "setp.ne.u32 in, %1, 0;\n"
                     "vote.sync.any.pred out, in, 0xffffffff;\n"
                     "selp.u32 %0, 1, 0, out;\n"
                     "}"
                     : "=r"(y)
                     : "r"((uint)x));
    return y != 0u;
}

/* Of all lanes: the least, the most, and the bits that any has. */
#define NV_REDUCE(type, name, operation)                                                     \
    MATRIX_FUNCTION type name(type x) {                                                      \
        type y;                                                                              \
        __asm__ volatile("redux.sync." operation " %0, %1, 0xffffffff;" : "=r"(y) : "r"(x)); \
        return y;                                                                            \
    }
NV_REDUCE(int, nv_least, "min.s32")
NV_REDUCE(int, nv_most, "max.s32")
NV_REDUCE(uint, nv_union, "or.b32")

/* Arithmetic of one and of two operands. */
#define NV_FLOAT_OF(name, instruction)                      \
    MATRIX_FUNCTION float name(float x) {                   \
        float y;                                            \
        __asm__(instruction " %0, %1;" : "=f"(y) : "f"(x)); \
        return y;                                           \
    }
#define NV_FLOAT_OF_TWO(name, instruction)                              \
    MATRIX_FUNCTION float name(float a, float b) {                      \
        float y;                                                        \
        __asm__(instruction " %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b)); \
        return y;                                                       \
    }
NV_FLOAT_OF(nv_exp2, "ex2.approx.ftz.f32")
NV_FLOAT_OF(nv_log2, "lg2.approx.f32")
NV_FLOAT_OF(nv_reciprocal, "rcp.approx.ftz.f32")
NV_FLOAT_OF_TWO(nv_max, "max.f32")
NV_FLOAT_OF_TWO(nv_add, "add.rn.f32")
NV_FLOAT_OF_TWO(nv_multiply, "mul.rn.f32")
MATRIX_FUNCTION float nv_fma(float a, float b, float c) {
    float y;
    __asm__("fma.rn.f32 %0, %1, %2, %3;" : "=f"(y) : "f"(a), "f"(b), "f"(c));
    return y;
}

#endif /* TESS_OPENCL_NV_INSTRUCTIONS_H */
