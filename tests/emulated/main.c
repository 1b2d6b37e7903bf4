/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cheap problems of the conformance list, on every kernel of the CPU backend, against the fp64
 * reference:
 *
 *   emulated_conformance SHARD SHARDS FOLDER
 *
 * For processors that are emulated: problems that would take long there are left to real ones. The
 * kernels without vector instructions, which every processor runs, take a third of the problems;
 * with TESSERA_TEST_FULL=1 they take all. FOLDER takes the block masks.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/fp_control.h"
#include "conformance/list.h"
#include "instance.h"

enum {
    KERNELS_MOST = 16,
    PROBLEMS_LEAST = 10,     /* a shard that runs fewer on some vector kernel tests too little */
    PAIRS_MOST = 400 * 1000, /* kept pairs times head_dim / 8 of a problem */
};

typedef struct tally {
    char kernel[64];
    int ran, refused, failed;
} tally;

/* Runs one problem on one kernel. */
static void try_problem(tess_device *device, const problem *p, const char *line,
                        instance_memo *memo, tally *t) {
    instance x;
    const tess_status status =
        instance_create_again(&x, device, p, t->kernel, INSTANCE_POISON | INSTANCE_GUARDS, memo);
    if (status == TESS_ERROR_UNSUPPORTED) {
        t->refused++;
        return;
    }
    if (status != TESS_OK) {
        printf("%s: %s: %s\n", t->kernel, line, x.error);
        t->failed++;
        return;
    }
    if (x.info.kept_pairs * (uint64_t)p->head_dim / 8 <= PAIRS_MOST) {
        instance_verdict verdict = {0};
        /* Any floating-point mode of the caller works, and the call leaves it as it was. */
        const uint64_t usual = fp_control_read(), odd = fp_control_odd[t->ran % FP_CONTROL_ODD];
        fp_control_write(odd);
        tess_status run = instance_run(&x, NULL);
        const uint64_t after = fp_control_read();
        fp_control_write(usual);
        if (run == TESS_OK) run = instance_fetch(&x);
        if (run == TESS_OK) instance_check(&x, 24, &verdict);
        t->ran++;
        if (after != odd) {
            printf("%s: %s: the mode of floating point was %#llx and is %#llx\n", t->kernel, line,
                   (unsigned long long)odd, (unsigned long long)after);
            t->failed++;
        }
        if (run != TESS_OK || !verdict.pass) {
            printf("%s: %s: %s\n", t->kernel, line, run != TESS_OK ? x.error : verdict.what);
            t->failed++;
        }
    }
    instance_release(&x);
}

/* Whether a kernel takes the problem number n of a shard. */
static int takes(const char *kernel, int n) {
    const char *full = getenv("TESSERA_TEST_FULL");
    return n % 3 == 0 || strcmp(kernel, "cpu/neon") == 0 || (full && *full == '1');
}

int main(int argc, char **argv) {
    const long shard = argc == 4 ? strtol(argv[1], NULL, 10) : -1,
               shards = argc == 4 ? strtol(argv[2], NULL, 10) : 0;
    if (shard < 0 || shard >= shards || shards > LIST_MOST) {
        fprintf(stderr, "usage: %s SHARD SHARDS FOLDER\n", argv[0]);
        return 2;
    }
    problem_list list = {0};
    if (list_build(&list, argv[3]) != 0) return 1;

    tess_runtime *runtime;
    tess_device *device;
    const tess_device_desc desc = {.struct_size = sizeof desc, .id = "cpu"};
    if (tess_runtime_create(NULL, &runtime) != TESS_OK ||
        tess_device_open(runtime, &desc, &device) != TESS_OK) {
        printf("%s\n", tess_last_error());
        return 1;
    }
    tally tallies[KERNELS_MOST] = {0};
    int kernels = 0;
    tess_kernel_info info = {.struct_size = sizeof info};
    for (uint32_t n = 0; kernels < KERNELS_MOST && tess_device_kernel(device, n, &info) == TESS_OK;
         n++)
        if (info.op == TESS_OP_FORWARD && info.status == TESS_OK)
            memcpy(tallies[kernels++].kernel, info.name, sizeof info.name);

    for (int n = (int)shard; n < list.count; n += (int)shards) {
        problem p;
        char error[512];
        if (problem_parse(&p, list.lines[n], error, sizeof error) != 0) {
            printf("%s: %s\n", list.lines[n], error);
            tallies[0].failed++;
            /* outputs alone would take longer than that */
        } else if ((double)problem_q_tokens(&p) * p.heads * p.head_dim <= 8.0 * PAIRS_MOST) {
            instance_memo memo = {.rows = NULL};
            for (int k = 0; k < kernels; k++)
                if (takes(tallies[k].kernel, n / (int)shards + k))
                    try_problem(device, &p, list.lines[n], &memo, &tallies[k]);
            instance_memo_clear(&memo);
        }
        problem_free(&p);
    }
    int failed = kernels == 0, neon = 0;
    for (int k = 0; k < kernels; k++) {
        const tally *t = &tallies[k];
        printf("%-24s %4d ran, %d refused, %d failed\n", t->kernel, t->ran, t->refused, t->failed);
        failed += t->failed;
        if (t->ran < PROBLEMS_LEAST && t->refused == 0) failed++;
        neon |= strcmp(t->kernel, "cpu/neon") == 0 && t->ran >= PROBLEMS_LEAST;
    }
#if defined(__aarch64__)
    if (!neon) {
        printf("cpu/neon did not run\n");
        failed++;
    }
#endif
    tess_device_release(device);
    tess_runtime_release(runtime);
    list_free(&list);
    return failed != 0;
}
