/* SPDX-License-Identifier: Apache-2.0 */
#include "planning.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "options.h"
#include "stats.h"
#include "text.h"

enum { RUNS = 15, LEAST_RUNS = 5, PACKED = 1000, LONG = 131072, LONGEST = 1048576 };

/* Plans that take long are made fewer times. */
static const double ENOUGH_SECONDS = 0.2;

typedef struct plan_case {
    const char *name;
    int heads, kv_heads;
    int64_t batch, tokens; /* tokens 0: packed sequences of mixed lengths */
    int32_t tile_rows;
    int local, stride, offset; /* stride 0: dense */
    int decode;                /* packed: every second sequence has one new token */
    uint32_t op;
} plan_case;

static const plan_case cases[] = {
    {"S2, V=64, 64 heads, 131,072 tokens", 64, 64, 1, LONG, 128, 8, 64, 0, 0},
    {"S2, V=16, 16 heads, 1,048,576 tokens", 16, 16, 1, LONGEST, 128, 8, 16, 0, 0},
    {"Dense, 64 heads, 131,072 tokens", 64, 64, 1, LONG, 128, 0, 0, 0, 0},
    {"Phi-3-small 128k, 131,072 tokens", 32, 8, 1, LONG, 128, 16, 8, 1, 0},
    {"Phi-3-small, 1,000 packed prompts", 32, 8, PACKED, 0, 128, 16, 8, 1, 0},
    {"Dense, 1,000 packed prompts", 32, 8, PACKED, 0, 128, 0, 0, 0, 0},
    {"Phi-3-small, 1,000 packed, half decode", 32, 8, PACKED, 0, 0, 16, 8, 1, 1},
    {"S2, V=64, 64 heads, 131,072, gradients", 64, 64, 1, LONG, 0, 8, 64, 0, 0, TESS_OP_BACKWARD},
    {"Dense, 1,000 packed prompts, gradients", 32, 8, PACKED, 0, 0, 0, 0, 0, 0, TESS_OP_BACKWARD},
};

/* Mixed lengths, the same on every machine: 16 to 2,063 new tokens, up to 2,047 more keys where a
 * sequence continues. */
static void packed_lengths(const plan_case *c, int64_t *cu_q, int64_t *cu_kv, int64_t *longest) {
    uint64_t s = 88172645463325252u;
    *longest = 0;
    cu_q[0] = cu_kv[0] = 0;
    for (int64_t b = 0; b < c->batch; b++) {
        s ^= s << 13;
        s ^= s >> 7;
        s ^= s << 17;
        int64_t q = 16 + (int64_t)((s >> 20) % 2048), kv = q + (int64_t)((s >> 40) % 2048);
        if (c->decode && b % 2) q = 1;
        cu_q[b + 1] = cu_q[b] + q;
        cu_kv[b + 1] = cu_kv[b] + kv;
        if (kv > *longest) *longest = kv;
    }
}

static tess_status measure_case(const plan_case *c, tess_runtime *runtime, tess_device *device,
                                const char *kernel, int64_t *cu, bench_planning *out) {
    int64_t max_tokens = c->tokens;
    tess_plan_desc plan_desc = {.struct_size = sizeof plan_desc,
                                .op = c->op,
                                .dtype = PLANNING_DTYPE,
                                .head_dim = PLANNING_HEAD_DIM,
                                .batch = c->batch,
                                .tile_rows = c->tile_rows,
                                .kernel = kernel};
    if (c->tokens) {
        plan_desc.q_len = plan_desc.kv_len = c->tokens;
    } else {
        packed_lengths(c, cu, cu + PACKED + 1, &max_tokens);
        plan_desc.cu_q_lens = cu;
        plan_desc.cu_kv_lens = cu + PACKED + 1;
    }
    tess_pattern pattern = {.struct_size = sizeof pattern,
                            .kind = c->stride ? TESS_PATTERN_S2 : TESS_PATTERN_DENSE,
                            .block = 64};
    pattern.local = c->local;
    pattern.stride = c->stride;
    pattern.offset = c->offset;
    tess_layout_desc layout_desc = {.struct_size = sizeof layout_desc,
                                    .pattern = &pattern,
                                    .n_heads = c->heads,
                                    .n_kv_heads = c->kv_heads,
                                    .max_tokens = max_tokens};
    tess_layout *layout = NULL;
    double start = clock_now(), samples[RUNS], sum = 0;
    int n = -1; /* the first one warms up */
    tess_status status = tess_layout_create(runtime, &layout_desc, &layout);
    out->layout_seconds = clock_now() - start;
    for (int last = 0; !last && status == TESS_OK; n++) {
        tess_plan *plan = NULL;
        tess_plan_info info = {.struct_size = sizeof info};
        start = clock_now();
        status = tess_plan_create(device, layout, &plan_desc, &plan);
        double seconds = clock_now() - start;
        if (n >= 0) {
            samples[n] = seconds;
            sum += seconds;
        }
        last = n + 1 == RUNS || (n + 1 >= LEAST_RUNS && sum > ENOUGH_SECONDS);
        if (status == TESS_OK && last) {
            status = tess_plan_query(plan, &info);
            out->jobs = info.n_jobs;
            out->host_bytes = info.host_bytes;
            out->device_bytes = info.device_bytes;
        }
        tess_plan_release(plan);
    }
    tess_layout_release(layout);
    if (status != TESS_OK) return status;
    stats_summary s;
    if (stats_summarize(samples, (size_t)n, &s) != 0) return TESS_ERROR_OUT_OF_MEMORY;
    out->seconds = s.median;
    out->seconds_min = s.min;
    out->seconds_max = s.max;
    out->runs = n;
    out->sequences = c->batch;
    out->bar = c->tokens == LONG && c->op == TESS_OP_FORWARD;
    snprintf(out->name, sizeof out->name, "%s", c->name);
    return TESS_OK;
}

void planning_leave_out(bench_device *d, uint32_t op, double compiling) {
    const size_t used = strlen(d->planning_note);
    char would[TEXT_SIZE];
    snprintf(d->planning_note + used, sizeof d->planning_note - used,
             "%s%s left out, about %s to compile", used ? "; " : "",
             op == TESS_OP_BACKWARD ? "gradients" : "forward",
             text_seconds(would, sizeof would, compiling));
}

int planning_measure(bench_report *report, tess_runtime *runtime, tess_device *device,
                     int device_index, const char *kernel, unsigned ops, char *error,
                     size_t error_size) {
    int64_t *cu = calloc(2 * (PACKED + 1), sizeof *cu);
    int result = cu ? 0 : -1;
    for (size_t i = 0; i < sizeof cases / sizeof *cases && result == 0 && !clock_interrupted();
         i++) {
        if (!(ops & 1u << cases[i].op)) continue;
        bench_planning p = {.device = device_index};
        tess_status status = measure_case(&cases[i], runtime, device, kernel, cu, &p);
        /* the kernel that was asked for does not take this type or pattern */
        if (status == TESS_ERROR_UNSUPPORTED) continue;
        if (status != TESS_OK) {
            snprintf(error, error_size, "planning: %s: %s", cases[i].name, cli_why());
            result = -2;
            break;
        }
        bench_planning *to = report_add_planning(report);
        if (to)
            *to = p;
        else
            result = -1;
    }
    free(cu);
    return result;
}
