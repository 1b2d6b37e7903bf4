/* SPDX-License-Identifier: Apache-2.0 */
/* The ordered table of implementations, fastest first, and the choice among them. */
#include "cpu.h"

#include <stdio.h>
#include <string.h>

enum { F32 = 1u << TESS_F32, F16 = 1u << TESS_F16, BF16 = 1u << TESS_BF16 };

#define WITH(name) \
    tess_cpu_##name##_job, tess_cpu_##name##_scratch, tess_cpu_##name##_rows, NULL, NULL
#define WITH_TILES(name, at) \
    tess_cpu_##name##_job, tess_cpu_##name##_scratch, tess_cpu_##name##_rows, at##_enter, at##_leave
#define WITHOUT NULL, NULL, NULL, NULL, NULL

static const cpu_row rows[] = {
#if defined(__x86_64__)
    {"amx_bf16", CPU_ISA_AMX_BF16, BF16, 0, 600, WITH_TILES(amx_bf16, tess_cpu_amx_bf16)},
    {"avx512_bf16", CPU_ISA_AVX512_BF16, BF16, 0, 120, WITH(avx512_bf16)},
    {"avx512", CPU_ISA_AVX512, F32 | F16 | BF16, 0, 80, WITH(avx512)},
    {"avx2", CPU_ISA_AVX2, F32 | F16 | BF16, 0, 50, WITH(avx2)},
#else
    {"amx_bf16", CPU_ISA_AMX_BF16, BF16, 0, 600, WITHOUT},
    {"avx512_bf16", CPU_ISA_AVX512_BF16, BF16, 0, 120, WITHOUT},
    {"avx512", CPU_ISA_AVX512, F32 | F16 | BF16, 0, 80, WITHOUT},
    {"avx2", CPU_ISA_AVX2, F32 | F16 | BF16, 0, 50, WITHOUT},
#endif
#if defined(__aarch64__)
    {"neon", CPU_ISA_NEON, F32 | F16 | BF16, 0, 25, WITH(neon)},
#else
    {"neon", CPU_ISA_NEON, F32 | F16 | BF16, 0, 25, WITHOUT},
#endif
    {"portable", CPU_ISA_ANY, F32 | F16 | BF16, 0, 5, WITH(portable)},
    {"amx_bf16_soft", CPU_ISA_ANY, BF16, 1, 5, WITH(amx_bf16_soft)},
};
enum { ROWS = sizeof rows / sizeof *rows };

static const char *const dtype_names[] = {"f32", "f16", "bf16"};

/* Why a row cannot take the problem, or NULL if it can. */
static const char *refusal(const cpu_row *row, const tess_kernel_key *key, char *buffer,
                           size_t size) {
    const char *reason = "not built for this processor";
    if (!row->job || !tess_cpu_isa_usable(row->isa, &reason)) return reason;
    if (key->op != TESS_OP_FORWARD) return "forward only";
    if (key->dtype > TESS_BF16 || !(row->dtypes & (1u << key->dtype))) {
        snprintf(buffer, size, "does not take dtype %s",
                 key->dtype <= TESS_BF16 ? dtype_names[key->dtype] : "?");
        return buffer;
    }
    if (key->head_dim < 8 || key->head_dim > 256 || key->head_dim % 8 != 0) {
        snprintf(buffer, size, "head_dim %d is not a multiple of 8 from 8 to 256",
                 (int)key->head_dim);
        return buffer;
    }
    if (key->value_head_dim != key->head_dim) return "value_head_dim differs from head_dim";
    if (row->only_forced && (!key->name || key->preferred)) return "taken only when named";
    return tess_cpu_isa_request(row->isa, &reason) ? NULL : reason;
}

/* Nothing here may follow from the machine or the settings, so that results have the same bits with
 * any number of threads. */
static tess_kernel_costs costs_of(const cpu_row *row, const tess_kernel_key *key, uint32_t tile) {
    enum { STEP_KEYS = 64 };
    /* A job pays for the rows that it has. */
    const uint64_t few =
        key->max_q_len < (int64_t)tile ? (uint64_t)key->max_q_len * key->group : tile;
    const uint64_t flop = 4 * (few < tile ? few : tile) * STEP_KEYS * (uint64_t)key->head_dim;
    return (tess_kernel_costs){.workers = CPU_PARALLEL_JOBS,
                               .step_keys = STEP_KEYS,
                               .step_ns = (uint32_t)(flop / row->rate) + 1,
                               .job_ns = 500,
                               .merge_ns = 3000,
                               .partial_bandwidth = 100000,
                               .bandwidth = 200000};
}

static void release(tess_kernel *kernel) {
    kernel->state = NULL; /* launches keep nothing between calls */
}

static tess_status describe(const tess_host *host, uint32_t index, tess_kernel_info *info) {
    if (index >= ROWS)
        return host->fail(host, TESS_ERROR_INVALID, "index: %u is past the last kernel", index);
    const char *reason = "not built for this processor";
    const int usable = rows[index].job && tess_cpu_isa_usable(rows[index].isa, &reason);
    info->op = TESS_OP_FORWARD;
    info->status = usable ? TESS_OK : TESS_ERROR_UNAVAILABLE;
    info->flags = rows[index].only_forced ? TESS_KERNEL_ONLY_NAMED : 0;
    snprintf(info->name, sizeof info->name, "cpu/%s", rows[index].name);
    snprintf(info->reason, sizeof info->reason, "%s", usable ? "" : reason);
    return TESS_OK;
}

tess_status tess_cpu_kernel(void *device, const tess_kernel_key *key, tess_kernel *kernel,
                            uint32_t index, tess_kernel_info *info) {
    const cpu_device *d = device;
    if (!key) return describe(d->host, index, info);
    char all[768] = "";
    for (size_t i = 0; i < ROWS; i++) {
        char buffer[96];
        if (key->name && strcmp(key->name, rows[i].name) != 0) continue;
        const char *why = refusal(&rows[i], key, buffer, sizeof buffer);
        if (why) {
            const size_t used = strlen(all);
            snprintf(all + used, sizeof all - used, "%s%s: %s", used ? "; " : "", rows[i].name,
                     why);
            d->host->log(d->host, "dispatch", "cpu/%s refuses: %s", rows[i].name, why);
            continue;
        }
        const uint32_t tile = rows[i].rows(key->head_dim);
        kernel->tile_rows = tile;
        kernel->tile_step = 1;
        kernel->pack_rows = tile;
        kernel->scratch_bytes = (uint64_t)d->threads * cpu_thread_bytes(&rows[i], key->head_dim);
        snprintf(kernel->name, sizeof kernel->name, "%s", rows[i].name);
        kernel->costs = costs_of(&rows[i], key, tile);
        kernel->impl = &rows[i];
        kernel->state = NULL;
        kernel->release = release;
        d->host->log(d->host, "dispatch", "cpu/%s accepts: dtype %s, head_dim %d", rows[i].name,
                     dtype_names[key->dtype], (int)key->head_dim);
        return TESS_OK;
    }
    if (!all[0])
        return d->host->fail(d->host, TESS_ERROR_UNSUPPORTED,
                             "kernel: cpu has no kernel named '%s'", key->name ? key->name : "");
    return d->host->fail(d->host, TESS_ERROR_UNSUPPORTED, "no cpu kernel accepts the problem: %s",
                         all);
}
