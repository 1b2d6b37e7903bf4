/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CUDA C++ on the host, for tests of kernels where there is no GPU: the language's words, and the
 * instructions of mma.cuh as PTX defines them. A thread of the block is a fiber. Instructions of a
 * warp wait until all 32 lanes are there, and the last one does the work.
 *
 * A file that is to be tested is included after this header, which takes the place of mma.cuh.
 */
#ifndef TESSERA_TESTS_CUDA_LOCKSTEP_H
#define TESSERA_TESTS_CUDA_LOCKSTEP_H

#include <math.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include <algorithm>
#include <functional>
#include <vector>

#define __device__
#define __global__
#define __shared__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))
#define TESS_CUDA_MMA_CUH
#define MINUS_INFINITY (-INFINITY)
#define LN_2           0.69314718055994531f
#define LOG2_E         1.44269504088896341f

struct uint4 {
    uint32_t x, y, z, w;
};
struct float4 {
    float x, y, z, w;
};
struct float2 {
    float x, y;
};
struct uint2 {
    uint32_t x, y;
};
static inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) {
    return {x, y, z, w};
}
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static inline float2 make_float2(float x, float y) { return {x, y}; }
using std::max;
using std::min;

namespace lockstep {

enum { WARP = 32, MOST_THREADS = 512, STACK = 256 << 10 };

struct copy {
    uint32_t to;
    const void *from;
    int bytes, size; /* of it, the first `bytes` are read; zeros behind them */
};
struct fiber {
    unsigned index;
    bool started, done;
    jmp_buf at;
    std::vector<std::vector<copy>> groups; /* committed, oldest first */
    std::vector<copy> open;
};
struct meeting {
    unsigned arrived, generation;
    const char *what;
    void *of[MOST_THREADS];
};

extern fiber *current;
extern unsigned block_index, blocks, threads, shared_bytes;
extern fiber fibers[MOST_THREADS];
extern meeting warps[MOST_THREADS / WARP], block, parts[16];
extern bool converts; /* the device turns codes of E4M3 into f16 */
extern bool early;    /* copies happen at once, and not when they are waited for */
void yield();
void fail(const char *what);
uint8_t *shared(uint32_t at, unsigned bytes);

/* Waits for all `count` threads of a meeting; the last one runs `work` on what all have brought. */
template <typename Work>
inline void meet(meeting *m, unsigned count, unsigned place, const char *what, void *own,
                 Work work) {
    if (m->arrived && strcmp(m->what, what) != 0) fail(what);
    m->what = what;
    m->of[place] = own;
    const unsigned generation = m->generation;
    if (++m->arrived == count) {
        work(m->of);
        m->arrived = 0;
        m->generation++;
    }
    while (m->generation == generation) yield();
}
template <typename Work> inline void in_warp(const char *what, void *own, Work work) {
    meet(&warps[current->index / WARP], WARP, current->index % WARP, what, own, work);
}

template <typename T> inline T shuffle(T value, unsigned from) {
    struct {
        T in, out;
        unsigned from;
    } x = {value, value, from};
    typedef decltype(x) item;
    in_warp("shfl", &x, [](void **of) {
        for (int n = 0; n < WARP; n++) {
            item *i = (item *)of[n];
            i->out = ((item *)of[i->from % WARP])->in;
        }
    });
    return x.out;
}
inline unsigned ballot(bool value) {
    struct {
        unsigned in, out;
    } x = {value, 0};
    typedef decltype(x) item;
    in_warp("vote", &x, [](void **of) {
        unsigned all = 0;
        for (int n = 0; n < WARP; n++) all |= ((item *)of[n])->in << n;
        for (int n = 0; n < WARP; n++) ((item *)of[n])->out = all;
    });
    return x.out;
}
inline void apply(const copy &c) {
    uint8_t *to = shared(c.to, (unsigned)c.size);
    memset(to, 0, (size_t)c.size);
    memcpy(to, c.from, (size_t)c.bytes);
}
/* 8 rows of a matrix are read at once, so each has to lie in banks of its own. */
inline void check_banks(const uint32_t (&at)[8]) {
    unsigned seen = 0;
    for (const uint32_t row : at) seen |= 1u << row / 16 % 8;
    if (seen != 0xff) fail("ldmatrix: rows in the same banks");
}

void run(unsigned groups, unsigned block_threads, unsigned shared_bytes, unsigned seed,
         const std::function<void()> &body);

} // namespace lockstep

struct lockstep_thread {
    struct {
        operator unsigned() const { return lockstep::current->index; }
    } x;
};
struct lockstep_block {
    struct {
        operator unsigned() const { return lockstep::block_index; }
    } x;
};
struct lockstep_grid {
    struct {
        operator unsigned() const { return lockstep::blocks; }
    } x;
};
struct lockstep_threads {
    struct {
        operator unsigned() const { return lockstep::threads; }
    } x;
};
static const lockstep_thread threadIdx;
static const lockstep_threads blockDim;
static const lockstep_block blockIdx;
static const lockstep_grid gridDim;

template <typename T> inline T __shfl_sync(unsigned, T v, int from) {
    return lockstep::shuffle(v, from);
}
template <typename T> inline T __shfl_xor_sync(unsigned, T v, int x) {
    return lockstep::shuffle(v, lockstep::current->index % 32 ^ x);
}
inline int __any_sync(unsigned, bool v) { return lockstep::ballot(v) != 0; }
inline unsigned __ballot_sync(unsigned, bool v) { return lockstep::ballot(v); }
inline void __syncwarp() {
    lockstep::in_warp("syncwarp", nullptr, [](void **) {});
}
inline void __syncthreads() {
    lockstep::meet(&lockstep::block, lockstep::threads, lockstep::current->index, "syncthreads",
                   nullptr, [](void **) {});
}
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline uint32_t __float_as_uint(float x) {
    uint32_t y;
    memcpy(&y, &x, 4);
    return y;
}
inline int __float2int_rn(float x) { return x == x ? (int)rintf(x) : 0; }
inline float __uint_as_float(uint32_t x) {
    float y;
    memcpy(&y, &x, 4);
    return y;
}
inline int __float_as_int(float x) { return (int)__float_as_uint(x); }
inline float __int_as_float(int x) { return __uint_as_float((uint32_t)x); }
inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }

/* ------------------------------------------------------------------ mma.cuh */

#include "kernels/types.cuh"

namespace tess {

extern uint8_t raw[];

inline uint32_t shared_address(const void *p) { return (uint32_t)((const uint8_t *)p - raw); }
inline uint32_t lane_volatile() { return lockstep::current->index % 32; }
inline void cp_async(uint32_t to, const void *from, int bytes, int size) {
    const lockstep::copy c = {to, from, bytes, size};
    if (to % size || (bytes && (uintptr_t)from % size)) lockstep::fail("cp.async: not aligned");
    if (lockstep::early)
        lockstep::apply(c);
    else
        lockstep::current->open.push_back(c);
}
inline void cp_async_unit(uint32_t to, const void *from, int bytes, uint64_t = 0) {
    cp_async(to, from, bytes, 16);
}
inline void cp_async_word(uint32_t to, const void *from, int bytes) {
    cp_async(to, from, bytes, 4);
}
inline uint64_t cache_evict_first() { return 1; }
inline uint64_t cache_usual() { return 2; }
inline void cp_async_commit() {
    lockstep::current->groups.push_back(lockstep::current->open);
    lockstep::current->open.clear();
}
inline void wait_groups(size_t left) {
    auto &g = lockstep::current->groups;
    while (g.size() > left) {
        for (const auto &c : g.front()) lockstep::apply(c);
        g.erase(g.begin());
    }
}
template <int N> inline void cp_async_wait_but() { wait_groups(N); }
inline void cp_async_wait_all() {
    cp_async_commit();
    wait_groups(0);
}
inline void store_unit(uint32_t to, uint4 x) { memcpy(lockstep::shared(to, 16), &x, 16); }
inline void store_word(uint32_t to, uint32_t x) { memcpy(lockstep::shared(to, 4), &x, 4); }
inline uint4 load_shared_unit(uint32_t from) {
    uint4 x;
    memcpy(&x, lockstep::shared(from, 16), 16);
    return x;
}
/* The warp's words at once, each in a bank of its own. */
inline uint32_t load_shared_word(uint32_t from) {
    uint32_t x;
    lockstep::in_warp("a load of words", &from, [](void **of) {
        unsigned seen = 0;
        for (int n = 0; n < 32; n++) seen |= 1u << *(uint32_t *)of[n] / 4 % 32;
        if (seen != ~0u) lockstep::fail("words in the same banks");
    });
    memcpy(&x, lockstep::shared(from, 4), 4);
    return x;
}
inline uint2 load_shared_pair(uint32_t from) {
    uint2 x;
    if (from % 8) lockstep::fail("a load of two words is not aligned");
    memcpy(&x, lockstep::shared(from, 8), 8);
    return x;
}
inline void store_pair(uint32_t to, float x, float y) {
    const float both[2] = {x, y};
    if (to % 8) lockstep::fail("a store of two words is not aligned");
    memcpy(lockstep::shared(to, 8), both, 8);
}
inline bool adds_vectors() { return lockstep::converts; } /* what sm_9x and later do */
inline void add_float(float *to, float x) { *to += x; }
inline void add_four(float *to, float x, float y, float z, float w) {
    if (!lockstep::converts || (uintptr_t)to % 16) lockstep::fail("red: four floats");
    const float all[4] = {x, y, z, w};
    for (int n = 0; n < 4; n++) to[n] += all[n];
}
/* Barriers of parts of the block: those of 128 threads. */
inline void barrier_of(int number, int threads) {
    lockstep::meet(&lockstep::parts[number], threads, lockstep::current->index % threads, "bar",
                   nullptr, [](void **) {});
}
inline uint4 load_shared_volatile(uint32_t from) { return load_shared_unit(from); }

struct ldmatrix_item {
    uint32_t *m, at;
};
inline void ldmatrix_any(uint32_t (&m)[4], uint32_t at, bool transposed) {
    ldmatrix_item own = {m, at};
    lockstep::in_warp(transposed ? "ldmatrix.trans" : "ldmatrix", &own, [=](void **of) {
        for (int x = 0; x < 4; x++) {
            uint16_t e[8][8];
            uint32_t rows[8];
            for (int r = 0; r < 8; r++) {
                rows[r] = ((ldmatrix_item *)of[x * 8 + r])->at;
                if (rows[r] % 16) lockstep::fail("ldmatrix: not aligned");
                memcpy(e[r], lockstep::shared(rows[r], 16), 16);
            }
            lockstep::check_banks(rows);
            for (int lane = 0; lane < 32; lane++) {
                const int g = lane / 4, c = lane % 4 * 2;
                ((ldmatrix_item *)of[lane])->m[x] = transposed
                                                        ? e[c][g] | (uint32_t)e[c + 1][g] << 16
                                                        : e[g][c] | (uint32_t)e[g][c + 1] << 16;
            }
        }
    });
}
inline void ldmatrix(uint32_t (&m)[4], uint32_t at) { ldmatrix_any(m, at, false); }
inline void ldmatrix_transposed(uint32_t (&m)[4], uint32_t at) { ldmatrix_any(m, at, true); }

template <typename T> float element(uint16_t bits);
template <> inline float element<bf16_t>(uint16_t bits) {
    return __uint_as_float((uint32_t)bits << 16);
}
template <> inline float element<f16_t>(uint16_t bits) {
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    const float size = exponent == 31  ? fraction ? NAN : INFINITY
                       : exponent == 0 ? ldexpf((float)fraction, -24)
                                       : ldexpf((float)(1024 + fraction), exponent - 25);
    return bits >> 15 ? -size : size;
}

struct mma_item {
    float *c;
    const uint32_t *a;
    uint32_t b[2];
};
/* Row and column of the elements of a lane, as PTX defines them for m16n8k16. */
template <typename T>
inline void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    mma_item own = {c, a, {b0, b1}};
    lockstep::in_warp("mma", &own, [](void **of) {
        float x[16][16], y[16][8];
        for (int lane = 0; lane < 32; lane++) {
            const mma_item *i = (mma_item *)of[lane];
            const int g = lane / 4, t = lane % 4;
            for (int n = 0; n < 8; n++) {
                const uint16_t bits = (uint16_t)(i->a[n / 2] >> n % 2 * 16);
                x[(n / 2) % 2 ? g + 8 : g][t * 2 + n % 2 + (n >= 4 ? 8 : 0)] = element<T>(bits);
            }
            for (int n = 0; n < 4; n++)
                y[t * 2 + n % 2 + (n >= 2 ? 8 : 0)][g] =
                    element<T>((uint16_t)(i->b[n / 2] >> n % 2 * 16));
        }
        for (int lane = 0; lane < 32; lane++)
            for (int n = 0; n < 4; n++) {
                const int row = lane / 4 + n / 2 * 8, column = lane % 4 * 2 + n % 2;
                double sum = ((mma_item *)of[lane])->c[n];
                for (int k = 0; k < 16; k++) sum += (double)x[row][k] * y[k][column];
                ((mma_item *)of[lane])->c[n] = (float)sum;
            }
    });
}

/* The sum of an accumulator and products as tensor cores add them: all are cut off, towards zero,
 * at the last bit that a float of the largest one's size has. */
inline float cut_sum(float c, const double *products, int count) {
    double largest = fabs((double)c), sum = 0;
    for (int n = 0; n < count; n++) largest = fmax(largest, fabs(products[n]));
    if (!(largest > 0) || !isfinite(largest)) {
        for (int n = 0; n < count; n++) sum += products[n];
        return (float)(c + sum);
    }
    const double unit = ldexp(1, ilogb(largest) - 23);
    sum = trunc(c / unit);
    for (int n = 0; n < count; n++) sum += trunc(products[n] / unit);
    sum *= unit;
    const float near = (float)sum;
    return fabs((double)near) > fabs(sum) ? nextafterf(near, 0) : near;
}

/* Likewise for m16n8k8 of TF32, which leaves the low bits of its operands out. */
inline void mma_tf32(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    mma_item own = {c, a, {b0, b1}};
    lockstep::in_warp("mma.tf32", &own, [](void **of) {
        float x[16][8], y[8][8];
        for (int lane = 0; lane < 32; lane++) {
            const mma_item *i = (mma_item *)of[lane];
            const int g = lane / 4, t = lane % 4;
            for (int n = 0; n < 4; n++)
                x[n % 2 ? g + 8 : g][n < 2 ? t : t + 4] = __uint_as_float(i->a[n] & 0xffffe000);
            for (int n = 0; n < 2; n++) y[n ? t + 4 : t][g] = __uint_as_float(i->b[n] & 0xffffe000);
        }
        for (int lane = 0; lane < 32; lane++)
            for (int n = 0; n < 4; n++) {
                const int row = lane / 4 + n / 2 * 8, column = lane % 4 * 2 + n % 2;
                double products[8];
                for (int k = 0; k < 8; k++) products[k] = (double)x[row][k] * y[k][column];
                float *c = &((mma_item *)of[lane])->c[n];
                *c = cut_sum(*c, products, 8);
            }
    });
}

/* Likewise for m16n8k32, whose elements are bytes. */
template <bool SIGNED>
inline void mma_bytes(int32_t (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    struct item {
        int32_t *c;
        const uint32_t *a;
        uint32_t b[2];
    } own = {c, a, {b0, b1}};
    lockstep::in_warp(SIGNED ? "mma.s8" : "mma.u8", &own, [](void **of) {
        int x[16][32], y[32][8];
        for (int lane = 0; lane < 32; lane++) {
            const item *i = (item *)of[lane];
            const int g = lane / 4, t = lane % 4;
            for (int n = 0; n < 16; n++) {
                const uint8_t byte = (uint8_t)(i->a[n / 4] >> n % 4 * 8);
                x[n / 4 % 2 ? g + 8 : g][t * 4 + n % 4 + (n >= 8 ? 16 : 0)] =
                    SIGNED ? (int8_t)byte : byte;
            }
            for (int n = 0; n < 8; n++)
                y[t * 4 + n % 4 + (n >= 4 ? 16 : 0)][g] = (int8_t)(i->b[n / 4] >> n % 4 * 8);
        }
        for (int lane = 0; lane < 32; lane++)
            for (int n = 0; n < 4; n++) {
                const int row = lane / 4 + n / 2 * 8, column = lane % 4 * 2 + n % 2;
                for (int k = 0; k < 32; k++) ((item *)of[lane])->c[n] += x[row][k] * y[k][column];
            }
    });
}

inline uint4 read_unit(const uint16_t *p, bool wide) {
    uint4 x;
    if (wide && (uintptr_t)p % 16) lockstep::fail("a wide load is not aligned");
    memcpy(&x, p, 16);
    return x;
}
inline void write_unit(uint16_t *p, uint4 x, bool wide) {
    if (wide && (uintptr_t)p % 16) lockstep::fail("a wide store is not aligned");
    memcpy(p, &x, 16);
}

template <typename T> inline uint16_t bits_of(float x);
template <> inline uint16_t bits_of<bf16_t>(float x) {
    const uint32_t b = __float_as_uint(x);
    if (x != x) return 0x7fff;
    return (uint16_t)((b + 0x7fff + (b >> 16 & 1)) >> 16);
}
template <> inline uint16_t bits_of<f16_t>(float x) {
    const uint16_t sign = signbit(x) ? 0x8000 : 0;
    if (x != x) return 0x7fff;
    const float size = fabsf(x);
    if (size >= 65520) return sign | 0x7c00;
    if (size < 0x1p-14f) return sign | (uint16_t)nearbyintf(ldexpf(size, 24));
    const int exponent = ilogbf(size); /* rounding up carries into the exponent */
    return sign |
           (uint16_t)(((exponent + 14) << 10) + (int)nearbyintf(ldexpf(size, 10 - exponent)));
}
template <typename T> inline uint32_t pack(float low, float high) {
    return bits_of<T>(low) | (uint32_t)bits_of<T>(high) << 16;
}
template <typename T> inline float unpack(uint32_t word, int half) {
    return element<T>((uint16_t)(word >> half * 16));
}
inline uint32_t pick_bytes(uint32_t a, uint32_t b, uint32_t which) {
    const uint64_t both = a | (uint64_t)b << 32;
    uint32_t r = 0;
    for (int n = 0; n < 4; n++) r |= (uint32_t)(both >> (which >> n * 4 & 7) * 8 & 0xff) << n * 8;
    return r;
}
inline uint32_t add_f16_pairs(uint32_t a, uint32_t b) {
    uint32_t r = 0;
    for (int n = 0; n < 32; n += 16)
        r |= (uint32_t)bits_of<f16_t>(element<f16_t>((uint16_t)(a >> n)) +
                                      element<f16_t>((uint16_t)(b >> n)))
             << n;
    return r;
}
inline bool converts_e4m3() { return lockstep::converts; }
inline uint16_t convert_e4m3_code(uint32_t code) {
    const int e = code >> 3 & 15, m = code & 7;
    if ((code & 0x7f) == 0x7f) return 0x7fff;
    const float size = ldexpf((float)(e ? 8 + m : m), (e ? e : 1) - 10);
    return bits_of<f16_t>(code >> 7 & 1 ? -size : size);
}
template <int HALF> inline uint32_t convert_e4m3(uint32_t word) {
    if (!lockstep::converts) lockstep::fail("cvt: not on this device");
    word >>= HALF * 16;
    return convert_e4m3_code(word) | (uint32_t)convert_e4m3_code(word >> 8) << 16;
}
inline float flush(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x; }
inline float exp2_fast(float x) { return flush(exp2f(flush(x))); }
inline float reciprocal(float x) { return flush(1.0f / flush(x)); }
inline float log2_fast(float x) { return log2f(x); }
inline void grid_dependency_wait() {}
inline void grid_dependents_launch() {}

} // namespace tess

#endif
