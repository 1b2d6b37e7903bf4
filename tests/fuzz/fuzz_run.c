/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans and runs on the CPU, forward and of gradients. The first byte chooses: either a small
 * problem made from the bytes, on any kernel, whose result has to be the reference's; or
 * descriptors of plan and run filled with hostile numbers over one block of memory, which have to
 * be refused or to touch nothing outside of it.
 */
#include <limits.h>
#include <math.h>
#include <string.h>

#include "bounded.h"
#include "fuzz.h"
#include "instance.h"

enum { ARENA = 1 << 15, LINE = 512 };

/* What is left of the input; past its end there are zeros. */
typedef struct bytes {
    const uint8_t *at, *end;
} bytes;

static uint8_t byte(bytes *b) { return b->at < b->end ? *b->at++ : 0; }
static int below(bytes *b, int count) { return byte(b) % count; }
static int between(bytes *b, int low, int high) { return low + below(b, high - low + 1); }

/* ------------------------------------------------------------------ problems with an answer */

#if defined(__has_feature)
#if __has_feature(memory_sanitizer)
#define MEMORY_SANITIZER 1
#endif
#endif
#if MEMORY_SANITIZER
/* MemorySanitizer does not see what AMX instructions write, and takes words of the emulated tiles
 * for uninitialised. Nothing of a job lies on the stack unset, and each problem begins with a
 * workspace full of NaN, which would show in the result. */
static const char *const kernels[] = {"cpu/portable", "cpu/avx2", "cpu/avx512", "cpu/avx512_bf16"};
#else
static const char *const kernels[] = {
    NULL,           "cpu/portable",      "cpu/avx2", "cpu/avx512", "cpu/avx512_bf16",
    "cpu/amx_bf16", "cpu/amx_bf16_soft", "cpu/neon"};
#endif

static void add(char *line, const char *word, int value) {
    const size_t used = strlen(line);
    snprintf(line + used, LINE - used, " %s=%d", word, value);
}

/* The words of a problem, less the block mask that none can hold. */
static void words(bytes *b, char *line, int *block, int *blocks_pattern) {
    static const char *const patterns[] = {"s2", "s2", "dense", "window", "dense"};
    static const char *const dtypes[] = {"f32", "f16", "bf16"};
    const int pattern = below(b, 5), causal = below(b, 3) != 0, kv_heads = between(b, 1, 2),
              group = between(b, 1, 3), packed = below(b, 3) == 0;
    *block = below(b, 2) ? between(b, 1, 8) : between(b, 1, 48);
    *blocks_pattern = pattern == 4;
    snprintf(line, LINE, "pattern=%s dtype=%s", patterns[pattern], dtypes[below(b, 3)]);
    add(line, "block", *block);
    add(line, "causal", causal);
    add(line, "heads", kv_heads * group);
    add(line, "kv_heads", kv_heads);
    add(line, "head_dim", 8 * (below(b, 8) ? between(b, 1, 5) : between(b, 1, 32)));
    if (pattern < 2) {
        add(line, "local", between(b, 1, 6));
        add(line, "stride", between(b, 1, 7));
        if (below(b, 3) == 0) add(line, "dense_heads", between(b, 0, kv_heads * group));
        if (causal && below(b, 2)) add(line, "offset", below(b, 9));
        if (causal && below(b, 3) == 0) add(line, "per_kv_head", 1);
        if (causal && below(b, 3) == 0) add(line, "homo", 1);
        if (!causal && below(b, 2)) add(line, "local_right", between(b, 1, 5));
    } else if (pattern == 3) {
        add(line, "left", between(b, -1, 60));
        add(line, "right", causal ? 0 : between(b, -1, 60));
        add(line, "sinks", below(b, 2) ? below(b, 50) : 0);
    }
    if (packed) {
        int q[3], kv[3], n = between(b, 1, 3);
        for (int s = 0; s < 3; s++) q[s] = below(b, 24), kv[s] = below(b, 70);
        for (int side = 0; side < 2; side++) {
            const int *list = side ? kv : q;
            for (int s = 0; s < n; s++) {
                const size_t used = strlen(line);
                snprintf(line + used, LINE - used, "%s%d",
                         s      ? ","
                         : side ? " kv_lens="
                                : " q_lens=",
                         list[s]);
            }
        }
    } else {
        add(line, "batch", between(b, 1, 2));
        add(line, "q_len", below(b, 48));
        add(line, "kv_len", below(b, 90));
    }
    if (below(b, 2)) add(line, "kv_split", between(b, 1, 5));
    if (below(b, 4) == 0) add(line, "batch_invariant", 1);
    if (below(b, 2)) add(line, "tile_rows", between(b, 1, 100));
    const int op = below(b, 3);
    if (op == 2) {
        strncat(line, " op=bwd", LINE - strlen(line) - 1);
        add(line, "dq_f32", below(b, 2));
        add(line, "dkv_f32", below(b, 2));
    }
    if (op != 1) return;
    strncat(line, " op=decode", LINE - strlen(line) - 1);
    add(line, "page", below(b, 2) ? 16 << below(b, 5) : 0);
    if (causal) add(line, "compact", below(b, 2));
}

static void make_mask(bytes *b, problem *p, int block) {
    p->pattern = TESS_PATTERN_BLOCKS;
    p->block = block;
    p->mask_heads = below(b, 2) ? p->heads : 1;
    p->mask_query_blocks = between(b, 1, 50);
    p->mask_key_blocks = between(b, 1, 50);
    const size_t size =
        (size_t)p->mask_heads * (size_t)p->mask_query_blocks * (size_t)p->mask_key_blocks;
    p->mask = malloc(size);
    FUZZ_REQUIRE(p->mask != NULL);
    uint32_t state = (uint32_t)byte(b) << 8 | byte(b);
    const unsigned share = byte(b);
    for (size_t n = 0; n < size; n++) {
        state = state * 1664525u + 1013904223u;
        p->mask[n] = (state >> 24) <= share;
    }
}

static void run_problem(tess_device *device, bytes *b) {
    char line[LINE], error[256];
    problem p;
    instance x;
    int block, masked;
    const char *kernel = kernels[below(b, (int)(sizeof kernels / sizeof *kernels))];
    words(b, line, &block, &masked);
    if (problem_parse(&p, line, error, sizeof error) != 0) {
        problem_free(&p);
        return;
    }
    if (masked) make_mask(b, &p, block);
    const unsigned d_lse = p.op == PROBLEM_BACKWARD && below(b, 2) ? INSTANCE_WITH_D_LSE : 0;
    const tess_status status =
        instance_create(&x, device, &p, kernel, INSTANCE_POISON | INSTANCE_GUARDS | d_lse);
    FUZZ_REQUIRE(status == TESS_OK || status == TESS_ERROR_UNSUPPORTED ||
                 status == TESS_ERROR_INVALID);
    if (status == TESS_OK) {
        instance_verdict verdict = {0};
        /* In one go, or cut in two at any job. */
        const uint64_t jobs = x.info.n_jobs;
        if (jobs > 1 && below(b, 2)) {
            tess_run_desc part = x.run;
            const uint64_t cut = 1 + byte(b) % (jobs - 1);
            part.job_count = cut;
            FUZZ_REQUIRE(tess_run(x.plan, &part) == TESS_OK);
            part.first_job = cut;
            part.job_count = jobs - cut;
            FUZZ_REQUIRE(tess_run(x.plan, &part) == TESS_OK);
        } else
            FUZZ_REQUIRE(instance_run(&x, NULL) == TESS_OK);
        FUZZ_REQUIRE(instance_fetch(&x) == TESS_OK);
        instance_check(&x, 0, &verdict);
        if (!verdict.pass) fprintf(stderr, "%s: %s\n", line, verdict.what);
        FUZZ_REQUIRE(verdict.pass);
        instance_release(&x);
    }
    problem_free(&p);
}

/* ------------------------------------------------------------------ hostile descriptors */

/* Mostly small, else at the edges of what a field can hold. */
static int64_t number(bytes *b) {
    static const int64_t edges[] = {
        -1,        INT32_MAX,        INT32_MIN,        INT64_MAX,
        INT64_MIN, (int64_t)1 << 31, (int64_t)1 << 32, (int64_t)1 << 62};
    const uint8_t kind = byte(b);
    if (kind < 200) return kind % 40;
    if (kind < 230) return (int64_t)byte(b) * 16;
    return (int64_t)((uint64_t)edges[kind % 8] + (uint64_t)(int8_t)byte(b));
}
static int32_t number32(bytes *b) { return (int32_t)number(b); }
static int64_t stride(bytes *b, int64_t unit) {
    return (int64_t)((uint64_t)number(b) * (uint64_t)(byte(b) < 200 ? unit : 1));
}

static tess_tensor tensor(bytes *b, char *arena) {
    tess_tensor t;
    memset(&t, 0, sizeof t);
    t.buffer = tess_host_buffer(arena, ARENA);
    if (byte(b) < 8) t.buffer.kind = byte(b);
    t.buffer.offset = byte(b) < 240 ? (uint64_t)byte(b) * 64 : (uint64_t)number(b);
    t.stride_batch = stride(b, 64);
    t.stride_token = stride(b, 8);
    t.stride_head = stride(b, 8);
    return t;
}

/* Mostly with the strides that the plan proposes, since few others keep outputs apart. */
static tess_tensor gradient(bytes *b, char *arena, const tess_plan *plan, tess_role role) {
    const tess_tensor t = tensor(b, arena);
    tess_tensor own;
    if (byte(b) < 200 && tess_plan_tensor(plan, role, t.buffer, &own, NULL) == TESS_OK) return own;
    return t;
}

/* The tensors of gradients, of which some are not given. */
static void fill_gradients(bytes *b, char *arena, const tess_plan *plan, tess_run_desc *run) {
    const int given = byte(b);
    run->d_o = gradient(b, arena, plan, TESS_ROLE_D_O);
    if (given & 1) run->d_lse = gradient(b, arena, plan, TESS_ROLE_D_LSE);
    if (given & 2) run->d_q = gradient(b, arena, plan, TESS_ROLE_D_Q);
    if (given & 4) run->d_k = gradient(b, arena, plan, TESS_ROLE_D_K);
    if (given & 8) run->d_v = gradient(b, arena, plan, TESS_ROLE_D_V);
}

static void run_hostile(tess_runtime *runtime, tess_device *device, bytes *b) {
    tess_pattern pattern = {.struct_size = sizeof pattern,
                            .kind = below(b, 2) ? TESS_PATTERN_S2 : TESS_PATTERN_DENSE,
                            .block = between(b, 1, 40)};
    if (pattern.kind == TESS_PATTERN_S2)
        pattern.local = between(b, 1, 5), pattern.stride = between(b, 1, 5);
    const int32_t kv_heads = between(b, 1, 2);
    const tess_layout_desc ld = {.struct_size = sizeof ld,
                                 .pattern = &pattern,
                                 .n_heads = kv_heads * between(b, 1, 2),
                                 .n_kv_heads = kv_heads,
                                 .max_tokens = 120};
    tess_layout *layout = NULL;
    tess_plan *plan = NULL;
    FUZZ_REQUIRE(tess_layout_create(runtime, &ld, &layout) == TESS_OK);
    tess_plan_desc pd;
    memset(&pd, 0, sizeof pd);
    int64_t q_lens[3], kv_lens[3], cu_q[4], cu_kv[4];
    for (int n = 0; n < 3; n++) q_lens[n] = number(b), kv_lens[n] = number(b);
    for (int n = 0; n < 4; n++)
        cu_q[n] = (n ? cu_q[n - 1] : 0) + below(b, 30), cu_kv[n] = number(b);
    pd.struct_size = sizeof pd;
    pd.head_dim = byte(b) < 200 ? 8 * between(b, 1, 4) : number32(b);
    pd.batch = byte(b) < 230 ? between(b, 0, 3) : number(b);
    pd.q_len = number(b);
    pd.kv_len = number(b);
    pd.kernel = kernels[0];
    pd.flags = byte(b) < 200 ? 0 : byte(b);
    const uint8_t op = byte(b);
    pd.op = op < 150 ? TESS_OP_FORWARD : op < 230 ? TESS_OP_BACKWARD : byte(b);
    pd.dtype = (uint32_t)below(b, 4);
    pd.kv_split = byte(b) < 128 ? 0 : number32(b);
    pd.tile_rows = byte(b) < 128 ? 0 : number32(b);
    pd.max_in_flight = byte(b) < 200 ? 0 : (uint32_t)number32(b);
    pd.time_limit_us = byte(b) < 200 ? 0 : (uint32_t)number32(b);
    pd.scale = byte(b) < 200 ? 0 : ldexpf(1, number32(b) % 160);
    /* Arrays are as long as the batch says, or are not given. */
    const int arrays = pd.batch <= 3 ? below(b, 4) : 0;
    if (arrays & 1) pd.q_lens = q_lens;
    if (arrays & 2) pd.kv_lens = kv_lens;
    if (pd.batch <= 3 && byte(b) < 60)
        pd.cu_q_lens = cu_q, pd.cu_kv_lens = cu_kv, pd.q_lens = pd.kv_lens = NULL;
    tess_status status = tess_plan_create(device, layout, &pd, &plan);
    FUZZ_REQUIRE(status == TESS_OK || (plan == NULL && tess_last_error()[0]));
    if (status == TESS_OK) {
        char *arena = malloc(ARENA);
        tess_plan_info info = {.struct_size = sizeof info};
        FUZZ_REQUIRE(arena != NULL);
        FUZZ_REQUIRE(tess_plan_query(plan, &info) == TESS_OK);
        for (int n = 0; n < ARENA; n++) arena[n] = (char)(n * 37);
        const size_t work_bytes = (size_t)(info.workspace_bytes + 4096) / 4096 * 4096;
        char *work = aligned_alloc(4096, work_bytes);
        /* merges may run without the jobs whose results they merge */
        if (work) memset(work, 0, work_bytes);
        tess_run_desc run = {.struct_size = sizeof run};
        run.q = tensor(b, arena);
        run.k = tensor(b, arena);
        run.v = tensor(b, arena);
        run.o = tensor(b, arena);
        if (below(b, 2) || pd.op == TESS_OP_BACKWARD) run.lse = tensor(b, arena);
        if (pd.op == TESS_OP_BACKWARD) fill_gradients(b, arena, plan, &run);
        if (work) run.workspace = tess_host_buffer(work, info.workspace_bytes);
        if (byte(b) > 200) run.first_job = (uint64_t)number(b), run.job_count = (uint64_t)number(b);
        status = tess_run(plan, &run);
        FUZZ_REQUIRE(status == TESS_OK || tess_last_error()[0]);
        free(work);
        free(arena);
        tess_plan_release(plan);
    }
    tess_layout_release(layout);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static tess_runtime *runtime;
    static tess_device *device;
    if (!runtime) {
        runtime = bounded_runtime();
        const tess_device_desc cpu = {.struct_size = sizeof cpu, .id = "cpu"};
        FUZZ_REQUIRE(tess_device_open(runtime, &cpu, &device) == TESS_OK);
    }
    const size_t before = taken;
    bytes b = {data, data + size};
    if (byte(&b) & 1)
        run_hostile(runtime, device, &b);
    else
        run_problem(device, &b);
    FUZZ_REQUIRE(taken == before);
    return 0;
}
