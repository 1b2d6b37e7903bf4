/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A thread moves GPU_VECTORS vectors of 16 bytes, a group apart, so that each access of a warp is
 * one stretch of memory. Sums go where nothing else looks, and are stored only if they have a value
 * that they never have: the loop must not be left out.
 */
#include "ptx.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROOM = 16384, CHAINS = 16, REPEATS = 4, PRODUCTS = 8 };

typedef struct text {
    char *data;
    size_t used;
} text;

__attribute__((format(printf, 2, 3))) static void put(text *t, const char *format, ...) {
    va_list list;
    va_start(list, format);
    const int n = vsnprintf(t->data + t->used, ROOM - t->used, format, list);
    va_end(list);
    if (n > 0 && (size_t)n < ROOM - t->used) t->used += (size_t)n;
}

static void begin(text *t, int loop) {
    const int moves = loop == GPU_COPY || loop == GPU_READ, units = loop >= GPU_F16;
    put(t, ".version %s\n.target %s\n.address_size 64\n", units ? "7.0" : "6.0",
        units ? "sm_80" : "sm_50");
    put(t, ".visible .entry %s(.param .u64 first, .param .%s second) {\n",
        ptx_kind_of(loop, 80).name, moves ? "u64" : "u32");
    put(t, ".reg .b32 %%r<32>;\n.reg .f32 %%f<64>;\n.reg .b64 %%d<10>;\n.reg .pred %%p<2>;\n"
           "ld.param.u64 %%d1, [first];\ncvta.to.global.u64 %%d1, %%d1;\nmov.u32 %%r2, %%tid.x;\n");
}

static void move(text *t, int loop) {
    put(t,
        "ld.param.u64 %%d2, [second];\ncvta.to.global.u64 %%d2, %%d2;\nmov.u32 %%r1, "
        "%%ctaid.x;\nmul.wide.u32 %%d3, %%r1, %d;\nmul.wide.u32 %%d4, %%r2, 16;\n"
        "add.u64 %%d5, %%d3, %%d4;\nadd.u64 %%d6, %%d1, %%d5;\nadd.u64 %%d7, %%d2, %%d5;\n",
        GPU_TILE);
    for (int i = 0, r = 4; i < GPU_VECTORS; i++, r += 4)
        put(t, "ld.global.nc.v4.u32 {%%r%d, %%r%d, %%r%d, %%r%d}, [%%d6+%d];\n", r, r + 1, r + 2,
            r + 3, i * GPU_GROUP * 16);
    for (int i = 0, r = 4; i < GPU_VECTORS && loop == GPU_COPY; i++, r += 4)
        put(t, "st.global.v4.u32 [%%d7+%d], {%%r%d, %%r%d, %%r%d, %%r%d};\n", i * GPU_GROUP * 16, r,
            r + 1, r + 2, r + 3);
    if (loop == GPU_COPY) return;
    for (int r = 5; r < 4 + 4 * GPU_VECTORS; r++) put(t, "xor.b32 %%r4, %%r4, %%r%d;\n", r);
    put(t, "setp.eq.u32 %%p1, %%r4, 0x9e3779b9;\n@%%p1 st.global.u32 [%%d7], %%r4;\n");
}

/* Chains of sums that wait for nothing but themselves. */
static void multiply(text *t, int loop) {
    const char *type = loop == GPU_BF16 ? "bf16" : "f16";
    const int sums = loop == GPU_F32 ? CHAINS : 4 * PRODUCTS;
    put(t, "ld.param.u32 %%r1, [second];\n");
    if (loop == GPU_F32)
        put(t, "cvt.rn.f32.u32 %%f60, %%r2;\nmov.f32 %%f61, 0f3F7FFFF0;\n");
    else
        put(t, "and.b32 %%r4, %%r2, 0x00ff00ff;\nor.b32 %%r5, %%r4, 0x3c003c00;\n");
    for (int i = 0; i < sums; i++)
        put(t, "mov.f32 %%f%d, 0f%08X;\n", i, 0x3f800000u + 65536u * (unsigned)i);
    put(t, "AGAIN:\n");
    for (int n = 0; n < REPEATS * CHAINS && loop == GPU_F32; n++)
        put(t, "fma.rn.f32 %%f%d, %%f%d, %%f61, %%f60;\n", n % CHAINS, n % CHAINS);
    for (int n = 0; n < sums && loop != GPU_F32; n += 4) {
        char c[64];
        snprintf(c, sizeof c, "{%%f%d, %%f%d, %%f%d, %%f%d}", n, n + 1, n + 2, n + 3);
        put(t,
            "mma.sync.aligned.m16n8k16.row.col.f32.%s.%s.f32 %s, {%%r4, %%r5, %%r5, %%r4}, "
            "{%%r5, %%r4}, %s;\n",
            type, type, c, c);
    }
    put(t, "sub.u32 %%r1, %%r1, 1;\nsetp.ne.u32 %%p1, %%r1, 0;\n@%%p1 bra AGAIN;\n");
    for (int i = 1; i < sums; i++) put(t, "add.f32 %%f0, %%f0, %%f%d;\n", i);
    put(t, "setp.eq.f32 %%p1, %%f0, 0f3F9E0419;\n@%%p1 st.global.f32 [%%d1], %%f0;\n");
}

loops_kind ptx_kind_of(int loop, int capability) {
    static const loops_kind kinds[GPU_LOOPS] = {
        {"copy_loop", "PTX, 16 bytes a thread at a time, read + written bytes", 0},
        {"read_loop", "PTX, 16 bytes a thread at a time", 0},
        {"fma_loop", "PTX, fma.rn.f32", REPEATS * CHAINS * 2},
        {"mma_f16", "PTX, mma.sync.m16n8k16", PRODUCTS * 128},
        {"mma_bf16", "PTX, mma.sync.m16n8k16", PRODUCTS * 128}};
    /* What has no matrix units counts as f32. */
    return loop >= GPU_F16 && capability < 80 ? (loops_kind){NULL, NULL, 0} : kinds[loop];
}

char *ptx_loop(int loop) {
    text t = {calloc(1, ROOM), 0};
    if (!t.data) return NULL;
    begin(&t, loop);
    if (loop == GPU_COPY || loop == GPU_READ)
        move(&t, loop);
    else
        multiply(&t, loop);
    put(&t, "ret;\n}\n");
    return t.data;
}
