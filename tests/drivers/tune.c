/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tune tables and the kernels of the CUDA backend: its own table, a file that comes before it,
 * kernels that refuse, and results that stay right whatever is preferred.
 *
 *   driver_tune sm_90|sm_80|sm_89|sm_86|sm_130
 *
 * On the last one, which is later than all code in the library, it looks at PTX alone.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/testlib.h"
#include "instance.h"

static const char *arch;
static const char *named = ""; /* the kernel that the runtime is told to take */
static char path[] = "/tmp/tessera-driver-tune-XXXXXX";

/* Plans and runs one problem with a tune file of these rules (NULL: without a file), checks the
 * result, and writes the kernel that was taken. Where planning is to fail nothing runs. */
static void run_or_fail(const char *rules, const char *words, char kernel[64], tess_status wanted) {
    char line[256], error[256];
    tess_runtime_desc desc = {.struct_size = sizeof desc,
                              .log = test_log_keep,
                              .verbose = "dispatch,device",
                              .tune_file = "",
                              .kernel = named};
    const tess_device_desc open = {.struct_size = sizeof open, .id = "cuda:0"};
    tess_runtime *runtime = NULL;
    tess_device *device = NULL;
    instance x;
    instance_verdict verdict;
    problem p;
    if (rules) {
        FILE *file = fopen(path, "w");
        assert_non_null(file);
        fprintf(file, "tessera-tune 1\n%s", rules);
        assert_int_equal(fclose(file), 0);
        desc.tune_file = path;
    }
    test_logged[0] = '\0';
    snprintf(line, sizeof line, "heads=4 kv_heads=2 head_dim=16 %s", words);
    assert_int_equal(problem_parse(&p, line, error, sizeof error), 0);
    assert_ok(tess_runtime_create(&desc, &runtime));
    assert_ok(tess_device_open(runtime, &open, &device));
    const tess_status status =
        instance_create(&x, device, &p, NULL, INSTANCE_GUARDS | INSTANCE_POISON);
    assert_int_equal(status, wanted);
    if (status == TESS_OK) {
        snprintf(kernel, 64, "%s", x.info.kernel);
        assert_ok(instance_run(&x, NULL));
        assert_ok(instance_fetch(&x));
        instance_check(&x, 0, &verdict);
        if (!verdict.pass) fail_msg("%s: %s", line, verdict.what);
        instance_release(&x);
    }
    problem_free(&p);
    tess_device_release(device);
    tess_runtime_release(runtime);
}

static void run(const char *rules, const char *words, char kernel[64]) {
    run_or_fail(rules, words, kernel, TESS_OK);
}

/* The same, with the kernel that it has to take. */
static void runs(const char *rules, const char *words, const char *wanted) {
    char kernel[64];
    run(rules, words, kernel);
    assert_string_equal(kernel, wanted);
}

#define DENSE_F16 "q_len=9 kv_len=90 dtype=f16 pattern=dense"
#define LONG_F16  "q_len=90 kv_len=90 dtype=f16 pattern=dense"
#define S2_F16    "q_len=90 kv_len=90 dtype=f16 block=16 local=2 stride=3"
#define MIXED_F16 "q_lens=90,2 kv_lens=90,90 dtype=f16 pattern=dense"
#define CACHE_F16 "op=decode batch=2 kv_len=190 dtype=f16 block=16 local=2 stride=3 "
#define LONG_F32  "q_len=90 kv_len=90 dtype=f32 pattern=dense"
#define DENSE_F32 "q_len=1 kv_len=90 dtype=f32 pattern=dense"

/* The backend's own table. A kernel that the build lacks is skipped, so either of the two is right
 * where the rule says sm80. */
static void test_own_table(void **state) {
    (void)state;
    char kernel[64];
    run(NULL, LONG_F16, kernel);
    if (strcmp(arch, "sm_90") == 0) {
        assert_string_equal(kernel, "cuda/sm90");
        assert_logged(
            "dispatch: cuda:0: cuda/sm90 is preferred by the table of cuda line 3 (measured)");
    } else if (strcmp(arch, "sm_86") == 0) {
        assert_null(strstr(test_logged, "prefer"));
    } else {
        assert_true(strcmp(kernel, "cuda/sm80") == 0 || strcmp(kernel, "cuda/portable") == 0);
        assert_logged("cuda:0: cuda/sm80");
        assert_logged(strcmp(arch, "sm_80") == 0 ? "the table of cuda line 5 (reasoned)"
                                                 : "the table of cuda line 7 (reasoned)");
    }
    run(NULL, DENSE_F16, kernel);
    if (strcmp(arch, "sm_90") == 0) assert_string_equal(kernel, "cuda/decode");
    /* The rule's kernel for few rows, and its next one for the other sequence. */
    run(NULL, MIXED_F16, kernel);
    if (strcmp(arch, "sm_90") == 0) {
        assert_string_equal(kernel, "cuda/sm90");
        assert_logged("cuda/decode accepts: dtype f16, head_dim 16, for q_len of at most 16\n");
        assert_logged("cuda:0: cuda/decode is preferred by the table of cuda line 3 (measured)");
        assert_logged("cuda:0: cuda/sm90 is preferred by the table of cuda line 3 (measured)");
        run("kernel=cuda/sm90\n", MIXED_F16, kernel);
        assert_string_equal(kernel, "cuda/sm90");
        assert_null(strstr(test_logged, "cuda/decode"));
    }
    /* So does a cache by slot. */
    run(NULL, CACHE_F16 "q_len=8 page=16 compact=1", kernel);
    assert_true(strcmp(kernel, "cuda/decode") == 0 || strcmp(arch, "sm_90") != 0);
    run(NULL, CACHE_F16 "q_len=40 page=16 compact=1", kernel);
    assert_true(strcmp(kernel, "cuda/sm90") == 0 || strcmp(arch, "sm_90") != 0);
    run(NULL, CACHE_F16 "q_len=40 compact=1 batch_invariant=1", kernel);
    assert_true(strcmp(kernel, "cuda/sm90") == 0 || strcmp(arch, "sm_90") != 0);
    runs(NULL, DENSE_F32, "cuda/portable"); /* of which the table says nothing */
    assert_null(strstr(test_logged, "prefer"));
}

/* A kernel that leaves few rows to a faster one takes them when it is named. */
static void test_yields(void **state) {
    (void)state;
    char kernel[64];
    run(NULL, LONG_F32, kernel);
    if (strcmp(kernel, "cuda/tf32") != 0) skip(); /* the build lacks it */
    runs(NULL, DENSE_F32, "cuda/portable");
    assert_logged("cuda/tf32 refuses: taken only when named");
    named = "cuda/tf32";
    runs(NULL, DENSE_F32, "cuda/tf32");
    named = "";
}

/* A file reverses the order of the kernels for the shapes that it names, and for no others. */
static void test_file(void **state) {
    (void)state;
    static const char rules[] =
        "arch=sm_* pattern=dense q_len=..16 kernel=cuda/portable basis=measured\n";
    char usual[64];
    run(NULL, S2_F16, usual);
    runs(rules, DENSE_F16, "cuda/portable");
    assert_logged(
        "dispatch: cuda:0: cuda/portable is preferred by tune file /tmp/tessera-driver-tune-");
    assert_logged(" line 2 (measured)");
    runs(rules, S2_F16, usual);
    assert_null(strstr(test_logged, "tune file"));
    run("device=no*such*device kernel=cuda/portable\n", DENSE_F16, usual);
    assert_null(strstr(test_logged, "tune file"));
}

/* Kernels that refuse are skipped: here a kernel for other types, or for another device. */
static void test_refusals(void **state) {
    (void)state;
    runs("kernel=cuda/sm90,cuda/none,cuda/portable\n", DENSE_F32, "cuda/portable");
    assert_logged("cuda/sm90, preferred by tune file ");
    assert_logged("is passed over: no cuda kernel accepts the problem: sm90: ");
    assert_logged("is passed over: kernel: cuda has no kernel named 'none'");
    assert_logged("cuda:0: cuda/portable is preferred by tune file ");
    runs("kernel=cuda/none\nkernel=cuda/portable\n", DENSE_F32, "cuda/portable");
    assert_null(strstr(test_logged, "is preferred by"));
}

/* The driver does not load code that is newer than it: the next row takes the problem. Who names
 * the kernel learns the driver's error. */
static void test_newer_code(void **state) {
    (void)state;
    static const char error[] =
        "cuModuleLoadData: the code for sm_90a on sm_90 (CUDA_ERROR_UNSUPPORTED_PTX_VERSION, "
        "222)";
    if (strcmp(arch, "sm_90") != 0) skip();
    assert_int_equal(setenv("FAKE_DRIVER_REFUSES", "sm_90a", 1), 0);
    runs(NULL, LONG_F16, "cuda/sm80");
    assert_logged("CUDA_ERROR_UNSUPPORTED_PTX_VERSION");
    named = "cuda/sm90";
    char kernel[64];
    run_or_fail(NULL, LONG_F16, kernel, TESS_ERROR_UNAVAILABLE);
    assert_error_has(error);
    named = "";
    assert_int_equal(unsetenv("FAKE_DRIVER_REFUSES"), 0);
}

/* PTX is for devices later than all machine code. Where the driver is older than the best one's
 * compiler, it takes the other, and without any the device's kernels are unavailable. */
static void test_newer_ptx(void **state) {
    (void)state;
    char kernel[64];
    assert_int_equal(unsetenv("FAKE_DRIVER_REFUSES"), 0);
    runs(NULL, LONG_F16, "cuda/portable");
    assert_logged("cuda: sm_130 runs code for compute_75");
    assert_logged("cuda/sm80 refuses: ");
    assert_int_equal(setenv("FAKE_DRIVER_REFUSES", "compute_75", 1), 0);
    runs(NULL, LONG_F16, "cuda/portable");
    assert_logged("cuda: sm_130 runs code for compute_70");
    assert_int_equal(setenv("FAKE_DRIVER_REFUSES", "compute_", 1), 0);
    run_or_fail(NULL, LONG_F16, kernel, TESS_ERROR_UNAVAILABLE);
    assert_error_has("on sm_130 (CUDA_ERROR_UNSUPPORTED_PTX_VERSION, 222)");
    assert_int_equal(unsetenv("FAKE_DRIVER_REFUSES"), 0);
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    arch = argv[1];
    if (strcmp(arch, "sm_130") == 0) {
        const struct CMUnitTest later[] = {TEST(test_newer_ptx)};
        return cmocka_run_group_tests_name("a device later than all code", later, NULL, NULL);
    }
    const int file = mkstemp(path);
    if (file < 0) return 1;
    close(file);
    const struct CMUnitTest tests[] = {TEST(test_own_table), TEST(test_yields), TEST(test_file),
                                       TEST(test_refusals), TEST(test_newer_code)};
    const int failed =
        cmocka_run_group_tests_name("tune tables of a driver's backend", tests, NULL, NULL);
    unlink(path);
    return failed;
}
