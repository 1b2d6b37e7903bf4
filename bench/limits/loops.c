/* SPDX-License-Identifier: Apache-2.0 */
#include "loops.h"

loops_kind loops_kind_of(int loop, uint32_t unit_flop, int half) {
    static const loops_kind kinds[GPU_LOOPS] = {{"copy_loop", "uint4, read + written bytes", 0},
                                                {"read_loop", "uint4", 0},
                                                {"fma_f32", "fma of 4 x f32", 8 * 4 * 2},
                                                {"units_f16", "products on matrix units", 0},
                                                {"units_bf16", "products on matrix units", 0}};
    loops_kind kind = kinds[loop];
    if (loop != GPU_F16 && loop != GPU_BF16) return kind;
    kind.flop = unit_flop;
    if (unit_flop) return kind;
    if (loop == GPU_F16 && half) return (loops_kind){"fma_f16", "fma of 2 x f16", 8 * 2 * 2};
    return (loops_kind){NULL, NULL, 0}; /* that of f32 counts */
}
