/* SPDX-License-Identifier: Apache-2.0 */
#include "loops.h"

#include <stdio.h>

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

const loops_launch loops_unit_flop = {.kind = {.name = "unit_flop"}, .groups = 1, .bytes = 4096};

loops_launch loops_launch_of(const gpu_job *job, loops_kind kind, uint32_t compute_units) {
    const int moves = job->loop == GPU_COPY || job->loop == GPU_READ;
    return (loops_launch){.kind = kind,
                          .moves = moves,
                          .turns = job->turns,
                          .groups = moves ? job->bytes / GPU_TILE
                                          : (size_t)compute_units * GPU_GROUPS_A_UNIT,
                          .bytes = moves ? job->bytes : 4096};
}

double loops_ready(gpu_job *job, const loops_launch *l, const char *language, const char *interface,
                   int code) {
    snprintf(job->method, sizeof job->method, "%s%s", language, l->kind.method);
    if (code == 0) return gpu_work(job, l->bytes, l->groups, l->kind.flop);
    snprintf(job->why, sizeof job->why, "%s: %s error %d", l->kind.name, interface, code);
    return 0;
}
