/* SPDX-License-Identifier: Apache-2.0 */
/* The table of kernels, fastest first, and which problems they take. */
#include "cpu.h"

#include <stdio.h>

#include "kernels/chunk.h"

enum { F32 = 1u << TESS_F32, F16 = 1u << TESS_F16, BF16 = 1u << TESS_BF16 };

#define FORWARD_OF(name, enter, leave)                                                             \
    tess_cpu_##name##_jobs, tess_cpu_##name##_scratch, tess_cpu_##name##_rows, enter, leave, NULL, \
        NULL
#define BACKWARD_OF(name, enter, leave)                                                       \
    NULL, tess_cpu_##name##_backward_scratch, tess_cpu_##name##_backward_lanes, enter, leave, \
        NULL, tess_cpu_##name##_backward_job
#define WITHOUT    NULL, NULL, NULL, NULL, NULL, NULL, NULL
#define ITEM(name) NULL, NULL, NULL, NULL, NULL, tess_cpu_##name, NULL

/* The functions of a row that this build may not have. */
#if defined(__x86_64__)
#define X86(...) __VA_ARGS__
#else
#define X86(...) WITHOUT
#endif
#if defined(__aarch64__)
#define ARM(...) __VA_ARGS__
#else
#define ARM(...) WITHOUT
#endif

enum { ANY = F32 | F16 | BF16, NAMED = TESS_KERNEL_ONLY_NAMED };

/* Each instruction set has a row for either pass; WITH gives its functions. */
#define ROWS_OF(op, WITH)                                                                   \
    {{op, "amx_bf16", 0}, CPU_ISA_AMX_BF16, BF16, 600, X86(WITH(amx_bf16, ENTER, LEAVE))},  \
        {{op, "avx512_bf16", 0},                                                            \
         CPU_ISA_AVX512_BF16,                                                               \
         BF16,                                                                              \
         120,                                                                               \
         X86(WITH(avx512_bf16, NULL, NULL))},                                               \
        {{op, "avx512", 0}, CPU_ISA_AVX512, ANY, 80, X86(WITH(avx512, NULL, NULL))},        \
        {{op, "avx2", 0}, CPU_ISA_AVX2, ANY, 50, X86(WITH(avx2, NULL, NULL))},              \
        {{op, "neon", 0}, CPU_ISA_NEON, ANY, 25, ARM(WITH(neon, NULL, NULL))},              \
        {{op, "portable", 0}, CPU_ISA_ANY, ANY, 5, WITH(portable, NULL, NULL)}, {           \
        {op, "amx_bf16_soft", NAMED}, CPU_ISA_ANY, BF16, 5, WITH(amx_bf16_soft, NULL, NULL) \
    }
#define ENTER tess_cpu_amx_bf16_enter
#define LEAVE tess_cpu_amx_bf16_leave

static const cpu_row kernels[] = {
    ROWS_OF(TESS_OP_FORWARD, FORWARD_OF),
    ROWS_OF(TESS_OP_BACKWARD, BACKWARD_OF),
    {{TESS_OP_APPEND, "append", 0}, CPU_ISA_ANY, ANY, 0, ITEM(append)},
    {{TESS_OP_COPY_PAGES, "copy_pages", 0}, CPU_ISA_ANY, ANY, 0, ITEM(copy_pages)},
    {{TESS_OP_MERGE, "merge_parts", 0}, CPU_ISA_ANY, ANY, 0, ITEM(merge_parts)},
    {{TESS_OP_PREPARE, "prepare", 0}, CPU_ISA_ANY, ANY, 0, ITEM(prepare)},
};
enum { KERNELS = sizeof kernels / sizeof *kernels };

static const char *const dtype_names[] = {"f32", "f16", "bf16"};

/* Whether products of pairs of bf16 would get codes, which they take of jobs of few rows alone. */
static int gets_codes(const cpu_row *row, const tess_kernel_key *key) {
    return row->dtypes == BF16 && key->kv_dtype != key->dtype;
}

/* Why a row cannot run here, or with a key, cannot take the problem; NULL if it can. */
static const char *refuses(const cpu_row *row, const tess_kernel_key *key, char *buffer,
                           size_t size) {
    const char *reason = "not built for this processor";
    if ((!row->jobs && !row->item && !row->job) || !tess_cpu_isa_usable(row->isa, &reason))
        return reason;
    if (!key) return NULL;
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
    if (gets_codes(row, key) && row->isa != CPU_ISA_ANY) {
        /* Tiles multiply bytes as they are; words of bf16 are looked up. */
        const int of_bytes = row->isa == CPU_ISA_AMX_BF16 && key->kv_dtype == TESS_I8;
        if (of_bytes && !tess_cpu_isa_usable(CPU_ISA_AMX_INT8, &reason))
            return "takes K and V of int8 only with AMX-INT8";
        if (!of_bytes && !tess_cpu_isa_usable(CPU_ISA_AVX512_VBMI, &reason))
            return "takes K and V of 8 bits only with AVX-512 VBMI";
    }
    return key->value_head_dim != key->head_dim ? "value_head_dim differs from head_dim" : NULL;
}

/* What a job of so many rows takes beside its steps: packing Q, storing a part of O, merging it. */
static uint32_t job_ns(const tess_kernel_key *key, uint64_t rows) {
    return 2000 + (uint32_t)(rows * (uint64_t)key->head_dim * 7 / 8);
}

/*
 * How many workers the whole work is split for: each gets about WORTH_NS, or ten times what a job
 * takes beside its steps. A machine of two cores pays for every part and gains from few. The number
 * is the closest power of two, since most machines have one of threads: of thirteen equal parts,
 * one of two threads would wait for the last. The speed that is assumed is that of a core: its
 * products, or what it reads.
 */
uint32_t tess_cpu_split_workers(const tess_kernel_key *key, uint64_t rows, uint32_t rate) {
    enum { WORTH_NS = 50000, WORTH_JOBS = 10, BYTES_PER_NS = 25 };
    if (key->kv_keys == 0) return CPU_PARALLEL_JOBS;
    const double elements = (double)key->kv_keys * key->head_dim,
                 flop = 4 * elements * (double)key->max_q_len * key->n_heads,
                 bytes = 2 * elements * (double)(key->n_heads / key->group) *
                         cpu_element_size(key->kv_dtype),
                 product_ns = flop / rate, read_ns = bytes / BYTES_PER_NS;
    double worth = (double)WORTH_JOBS * job_ns(key, rows);
    if (worth < WORTH_NS) worth = WORTH_NS;
    const double shares = (product_ns > read_ns ? product_ns : read_ns) / worth;
    const uint32_t whole = shares < CPU_PARALLEL_JOBS ? (uint32_t)shares + 1 : CPU_PARALLEL_JOBS;
    uint32_t workers = CPU_PARALLEL_JOBS;
    while (workers > 1 && workers * 3 >= whole * 4) workers /= 2;
    return workers;
}

/* Nothing here may follow from the machine or the settings, so that results have the same bits with
 * any number of threads. */
static tess_kernel_costs costs_of(const cpu_row *row, const tess_kernel_key *key, uint32_t tile) {
    enum { STEP_KEYS = 64, FEW_ROWS_RATE = 120 }; /* tiles stand idle then */
    /* A job pays for the rows that it has. */
    uint64_t rows = key->max_q_len < (int64_t)tile ? (uint64_t)key->max_q_len * key->group : tile;
    if (rows > tile) rows = tile;
    const uint64_t flop = 4 * rows * STEP_KEYS * (uint64_t)key->head_dim;
    const uint32_t rate =
        rows <= CPU_FEW_ROWS && row->rate > FEW_ROWS_RATE ? FEW_ROWS_RATE : row->rate;
    return (tess_kernel_costs){.workers = tess_cpu_split_workers(key, rows, rate),
                               .step_keys = STEP_KEYS,
                               .step_ns = (uint32_t)(flop / rate) + 1,
                               .job_ns = job_ns(key, rows),
                               .merge_ns = 3000,
                               .part_ns = 300,
                               .partial_bandwidth = 100000,
                               /* More than a machine has: parts enough for even shares of few
                                * threads. */
                               .bandwidth = 800000};
}

static void release(tess_kernel *kernel) {
    kernel->state = NULL; /* launches keep nothing between calls */
}

static tess_status prepare(const cpu_device *d, const cpu_row *row, const tess_kernel_key *key,
                           tess_kernel *kernel) {
    const char *reason = NULL;
    kernel->impl = row;
    kernel->release = release;
    if (row->item) return TESS_OK;
    if (!tess_cpu_isa_request(row->isa, &reason))
        return d->host->fail(d->host, TESS_ERROR_UNSUPPORTED, "%s", reason);
    const uint32_t tile = row->rows(key->head_dim);
    kernel->tile_rows = tile;
    kernel->tile_step = 1;
    kernel->pack_rows = tile;
    kernel->scratch_bytes = (uint64_t)d->threads * cpu_thread_bytes(row, key->head_dim);
    kernel->costs = costs_of(row, key, tile);
    if (!row->job) return TESS_OK;
    kernel->stages = TESS_STAGE_DELTA | TESS_STAGE_COLUMNS | TESS_STAGE_FINISH;
    kernel->tile_keys = tile;
    kernel->step_rows = CPU_STEP_ROWS;
    kernel->strip_rows = CPU_STRIP_ROWS;
    kernel->strip_bytes =
        CPU_STRIP_ROWS * sizeof(float) * (2 + (uint64_t)cpu_accumulator_floats(key->head_dim));
    return TESS_OK;
}

tess_status tess_cpu_kernel(void *device, uint32_t index, const tess_kernel_key *key,
                            tess_kernel_info *info, tess_kernel *kernel) {
    if (index >= KERNELS) return TESS_ERROR_INVALID;
    const cpu_row *row = &kernels[index];
    const char *why = refuses(row, key, info->reason, sizeof info->reason);
    const int few = key && gets_codes(row, key);
    if (!why && few && kernel && key->max_q_len * key->group > CPU_FEW_ROWS)
        why = "takes K and V of 8 bits for up to 4 rows of a kv head only";
    const int accepts = tess_row_answer(&row->head, key, why, info);
    if (few) info->most_rows = CPU_FEW_ROWS;
    if (!accepts || !kernel) return TESS_OK;
    return prepare(device, row, key, kernel);
}
