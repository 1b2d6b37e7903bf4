/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Self-checks of kernels (backends/common/self_check.h) on the CPU backend, one of whose kernels
 * plays a kernel that nobody has run: its problem against the fp64 reference, verdicts and their
 * place on disk, wrong results, and failures of each call.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dirent.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check_problem.h"
#include "common/testlib.h"
#include "fixtures/host_message.h"
#include "instance_parts.h"
#include "reference.h"
#include "self_check.h"

extern const tess_backend tess_cpu_backend;

/* ------------------------------------------------------------------ a host */

static char folder[64], last_log[512];
static int live;

/* Calls of the host and of the backend: the one that fails, counted from 1, and how. */
static int calls, fail_at, fail_always;
static tess_status fail_with;

static int fails(void) {
    calls++;
    return fail_at && (calls == fail_at || (fail_always && calls > fail_at));
}

static void *host_alloc(const tess_host *host, size_t size, size_t alignment) {
    (void)host;
    if (fails()) return NULL;
    __atomic_add_fetch(&live, 1, __ATOMIC_RELAXED);
    return aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
}

static void host_free(const tess_host *host, void *pointer, size_t size) {
    (void)host, (void)size;
    if (pointer) __atomic_sub_fetch(&live, 1, __ATOMIC_RELAXED);
    free(pointer);
}

static void host_log(const tess_host *host, const char *topic, const char *format, ...) {
    va_list list;
    (void)host;
    if (strcmp(topic, "dispatch") != 0) return;
    va_start(list, format);
    vsnprintf(last_log, sizeof last_log, format, list);
    va_end(list);
}

static const char *host_setting(const tess_host *host, const char *name) {
    (void)host;
    return strcmp(name, "TESSERA_CACHE_DIR") == 0 ? folder : "";
}

static const tess_host host = {.abi = TESS_BACKEND_ABI,
                               .struct_size = sizeof host,
                               .alloc = host_alloc,
                               .free = host_free,
                               .fail = host_fail,
                               .log = host_log,
                               .setting = host_setting,
                               .cpu_threads = 1};

/* ------------------------------------------------------------------ a backend */

/* What the kernel under check does to its results. */
enum { RIGHT, SLIGHTLY_OFF, TOO_FAR_OFF, LSE_OFF, IS_NAN, NOTHING };
static int fault, launches, lost_in_launch;
static void *device;
static tess_backend backend;
static char image_seen; /* whether buffers are the CPU's */

static uint16_t shifted(uint16_t bits, uint32_t dtype, float by) {
    return dtype == TESS_F16 ? float_to_half(half_to_float(bits) + by)
                             : float_to_bf16(bf16_to_float(bits) + by);
}

static tess_status launch(void *d, const tess_launch *l) {
    const int is_subject = __atomic_add_fetch(&launches, 1, __ATOMIC_RELAXED) % 2;
    if (fails()) return host_fail(&host, fail_with, "launch");
    if (is_subject && fault == NOTHING) return TESS_OK;
    const tess_status status = tess_cpu_backend.launch(d, l);
    const tess_buffer *o = &l->tensor[TESS_ROLE_O].buffer, *lse = &l->tensor[TESS_ROLE_LSE].buffer;
    uint16_t *at = (uint16_t *)((char *)(uintptr_t)o->handle + o->offset);
    float *lse_at = (float *)(void *)((char *)(uintptr_t)lse->handle + lse->offset);
    if (!is_subject || status != TESS_OK) return status;
    const float allowed = (float)tess_check_allowed(l->dtype, l->head_dim);
    at += 17 * l->head_dim + 5;
    if (fault == SLIGHTLY_OFF) *at = shifted(*at, l->dtype, 0.7f * allowed);
    if (fault == TOO_FAR_OFF) *at = shifted(*at, l->dtype, 1.8f * allowed);
    if (fault == IS_NAN) *at = 0x7fff;
    if (fault == LSE_OFF) lse_at[31] *= 1.0003f;
    return status;
}

static tess_status wait_for(void *d, uint64_t limit) {
    if (lost_in_launch && launches == lost_in_launch)
        return host_fail(&host, TESS_ERROR_DEVICE_LOST, "wait");
    return fails() ? host_fail(&host, fail_with, "wait") : tess_cpu_backend.wait(d, limit);
}

static tess_status take(void *d, uint64_t size, tess_buffer *buffer) {
    if (fails()) return host_fail(&host, TESS_ERROR_OUT_OF_MEMORY, "alloc");
    const tess_status status = tess_cpu_backend.alloc(d, size, buffer);
    image_seen = status == TESS_OK && buffer->kind == TESS_BUFFER_HOST;
    return status;
}

static tess_status copy(void *d, tess_buffer to, tess_buffer from, uint64_t bytes) {
    if (fails()) return host_fail(&host, fail_with, "copy");
    return tess_cpu_backend.copy(d, to, from, bytes);
}

static tess_status prepare(void *d, uint32_t row, const tess_kernel_key *key, tess_kernel *kernel) {
    tess_kernel_info info = {.struct_size = sizeof info};
    if (fails()) return host_fail(&host, fail_with, "kernel");
    const tess_status status = tess_cpu_backend.kernel(d, row, key, &info, kernel);
    return status == TESS_OK && info.status != TESS_OK ? TESS_ERROR_UNSUPPORTED : status;
}

static char code_text[] = "the kernel's code";
static void code(void *d, uint32_t row, uint32_t dtype, tess_cache_key *key, char *text,
                 size_t size) {
    (void)d, (void)row, (void)dtype;
    snprintf(text, size, "a device");
    *key = (tess_cache_key){.backend = "test",
                            .device = text,
                            .driver = "a driver 1.0",
                            .source = code_text,
                            .source_size = sizeof code_text};
}

static uint32_t portable_row(void) {
    for (uint32_t n = 0;; n++) {
        tess_kernel_info info = {.struct_size = sizeof info};
        assert_ok(tess_cpu_backend.kernel(device, n, NULL, &info, NULL));
        if (strcmp(info.name, "portable") == 0) return n;
    }
}

/* Portable plays both kernels, so that no processor decides what is tested. */
static tess_check_subject subject_on(tess_checks *checks) {
    const uint32_t row = portable_row();
    return (tess_check_subject){.host = &host,
                                .backend = &backend,
                                .device = device,
                                .checks = checks,
                                .may_run = 1,
                                .row = row,
                                .name = "fast",
                                .references = {row, row},
                                .prepare = prepare,
                                .code = code};
}

static int setup(void **state) {
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/tessera-check-XXXXXX");
    assert_non_null(mkdtemp(folder));
    fault = launches = calls = fail_at = fail_always = lost_in_launch = live = 0;
    fail_with = TESS_ERROR_NATIVE;
    last_log[0] = host_message[0] = '\0';
    assert_ok(tess_cpu_backend.open(&host, 0, NULL, &device));
    backend = tess_cpu_backend;
    backend.launch = launch;
    backend.wait = wait_for;
    backend.alloc = take;
    backend.copy = copy;
    return 0;
}

static int teardown(void **state) {
    (void)state;
    char command[128];
    tess_cpu_backend.close(device);
    snprintf(command, sizeof command, "rm -rf %s", folder);
    assert_int_equal(live, 0);
    return system(command);
}

static tess_kernel_key key_of(uint32_t dtype, int32_t dims) {
    tess_kernel_key key;
    tess_check_key(dtype, dims, &key);
    return key;
}

/* A new process asks for a row. */
static tess_status ask(uint32_t dtype, int32_t dims, int may_run) {
    tess_checks checks;
    tess_checks_init(&checks);
    tess_check_subject s = subject_on(&checks);
    s.may_run = may_run;
    const tess_kernel_key key = key_of(dtype, dims);
    const tess_status status = tess_self_check(&s, &key);
    tess_checks_destroy(&checks);
    return status;
}

static int files(void) {
    int count = 0;
    DIR *directory = opendir(folder);
    assert_non_null(directory);
    for (const struct dirent *e; (e = readdir(directory)) != NULL;) count += e->d_name[0] != '.';
    closedir(directory);
    return count;
}

/* ------------------------------------------------------------------ the problem */

/* What the problem is for the planner and the reference. */
static void parse(problem *p, uint32_t dtype, int32_t dims) {
    char line[256], error[256];
    snprintf(line, sizeof line,
             "pattern=s2 heads=%d kv_heads=%d dense_heads=2 per_kv_head=1 block=%d local=%d "
             "stride=%d q_len=%d kv_len=%d head_dim=%d dtype=%s",
             TESS_CHECK_HEADS, TESS_CHECK_KV_HEADS, TESS_CHECK_BLOCK, TESS_CHECK_LOCAL,
             TESS_CHECK_STRIDE, TESS_CHECK_ROWS, TESS_CHECK_KEYS, (int)dims,
             dtype == TESS_F16 ? "f16" : "bf16");
    if (problem_parse(p, line, error, sizeof error) != 0) fail_msg("%s", error);
}

typedef struct figures {
    double worst, same_type, rounding, lse;
} figures;

static double larger(double a, double b) { return a > b ? a : b; }

static void compare_row(const problem *p, const tess_check_problem *c, const char *image, int which,
                        int32_t head, int64_t row, figures *f) {
    double o[256], same[256], lse, ignored;
    const reference_inputs in = {image + c->q_at, image + c->k_at, image + c->v_at, NULL, NULL};
    const int64_t at = row * TESS_CHECK_HEADS + head;
    reference_row(p, &in, 0, head, row, o, &lse);
    reference_row_same_type(p, &in, 0, head, row, same, &ignored);
    for (int32_t d = 0; d < p->head_dim; d++) {
        const float r = instance_rounded(p->dtype, (float)o[d]),
                    up = instance_rounded(p->dtype, r + 0.3f),
                    back = instance_rounded(p->dtype, up - 0.3f);
        const double got =
            load_element(p->dtype, image + c->runs[which].o_at, at * p->head_dim + d);
        f->worst = larger(f->worst, isnan(got) ? INFINITY : fabs(got - o[d]));
        f->same_type = larger(f->same_type, fabs(same[d] - o[d]));
        f->rounding = larger(f->rounding, fabs((double)back - (double)r));
    }
    const float *lse_at = (const float *)(const void *)(image + c->runs[which].lse_at);
    f->lse = larger(f->lse, fabs((double)lse_at[at] - lse) / larger(1, fabs(lse)));
}

/* Both runs of the problem as its tables say are what the reference says, and the constants of the
 * tolerance are those of the rule. */
static void test_problem(void **state) {
    (void)state;
    static const uint32_t dtypes[] = {TESS_F16, TESS_BF16};
    for (int n = 0; n < 2; n++)
        for (int32_t dims = 64; dims <= 256; dims *= 2) {
            problem p;
            tess_kernel kernels[2];
            tess_check_problem c;
            figures f = {0};
            const uint32_t dtype = dtypes[n];
            const tess_kernel_key key = key_of(dtype, dims);
            parse(&p, dtype, dims);
            memset(kernels, 0, sizeof kernels);
            for (int k = 0; k < 2; k++)
                assert_ok(prepare(device, portable_row(), &key, &kernels[k]));
            kernels[1].tile_rows = kernels[1].pack_rows = 16;
            kernels[1].tile_step = 1;
            tess_check_lay_out(dtype, dims, (const tess_kernel *[]){&kernels[0], &kernels[1]}, &c);
            char *image = aligned_alloc(256, c.bytes);
            assert_non_null(image);
            tess_check_fill(&c, image);
            const tess_buffer buffer = {
                .kind = TESS_BUFFER_HOST, .handle = (uint64_t)(uintptr_t)image, .size = c.bytes};
            for (int k = 0; k < 2; k++) {
                tess_tables tables;
                tess_launch l;
                tess_check_launch(&c, k, &buffer, &tables, &l);
                assert_ok(tess_cpu_backend.launch(device, &l));
                for (int32_t head = 0; head < TESS_CHECK_HEADS; head++)
                    for (int64_t row = 0; row < TESS_CHECK_ROWS; row += k ? 1 : 9)
                        compare_row(&p, &c, image, k, head, row, &f);
                kernels[k].release(&kernels[k]);
            }
            const double allowed = 2 * f.same_type + 2 * f.rounding,
                         kept = tess_check_allowed(dtype, dims);
            printf("%s, head_dim %d: %.5g allowed, %.3g found, lse %.3g\n",
                   dtype == TESS_F16 ? "f16" : "bf16", (int)dims, allowed, f.worst, f.lse);
            assert_true(f.worst <= allowed && f.lse <= 1e-4);
            assert_true(kept <= allowed && kept > 0.99 * allowed);
            free(image);
            problem_free(&p);
        }
}

/* ------------------------------------------------------------------ verdicts */

/* A kernel that is right is checked once, and then found in the cache: also by a device that does
 * not run a check, which has nothing to go by before. */
static void test_passes(void **state) {
    (void)state;
    assert_int_equal(ask(TESS_F16, 128, 0), TESS_ERROR_UNSUPPORTED);
    assert_non_null(strstr(host_message, "a wrapped one without a queue does not check it"));
    assert_int_equal(launches, 0);
    fault = SLIGHTLY_OFF;
    assert_ok(ask(TESS_F16, 128, 1));
    assert_int_equal(launches, 2);
    assert_non_null(strstr(last_log, "cpu/fast checked itself in "));
    assert_true(image_seen);
    assert_ok(ask(TESS_F16, 100, 1)); /* the same instance */
    assert_ok(ask(TESS_F16, 128, 0));
    assert_int_equal(launches, 2);
    assert_ok(ask(TESS_F16, 64, 1));
    assert_ok(ask(TESS_BF16, 128, 1));
    assert_ok(ask(TESS_BF16, 256, 1));
    assert_int_equal(launches, 8);
    assert_int_equal(files(), 4);
    code_text[0]++; /* another kernel */
    assert_ok(ask(TESS_F16, 128, 1));
    code_text[0]--;
    assert_int_equal(launches, 10);
}

/* One that is wrong in any way is out, all of its instances, here and in later processes. */
static void test_wrong(void **state) {
    (void)state;
    static const struct {
        int fault;
        const char *why;
    } cases[] = {{TOO_FAR_OFF, "O is off by 0."},
                 {IS_NAN, "O is off by inf"},
                 {NOTHING, "O is off by inf"},
                 {LSE_OFF, "LSE is off by 0.0003, not 0.0001"}};
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) {
        char why[128];
        tess_checks checks;
        tess_checks_init(&checks);
        const tess_check_subject s = subject_on(&checks);
        tess_kernel_key key = key_of(TESS_BF16, 64);
        fault = RIGHT;
        launches = 0;
        assert_ok(tess_self_check(&s, &key));
        assert_null(tess_check_failure(&s, why, sizeof why));
        fault = cases[n].fault;
        key = key_of(TESS_F16, 128);
        assert_int_equal(tess_self_check(&s, &key), TESS_ERROR_UNSUPPORTED);
        if (!strstr(host_message, cases[n].why)) fail_msg("%s", host_message);
        assert_non_null(strstr(host_message, "self-check (f16, head_dim 128): "));
        assert_non_null(strstr(host_message, "please report"));
        assert_non_null(strstr(last_log, "Please report this with what `tessera info` prints"));
        assert_non_null(tess_check_failure(&s, why, sizeof why));
        assert_string_equal(why, host_message);
        tess_checks_destroy(&checks);
        fault = RIGHT;
        assert_int_equal(launches, 4);
        assert_int_equal(ask(TESS_F16, 128, 1), TESS_ERROR_UNSUPPORTED);
        assert_string_equal(why, host_message);
        assert_int_equal(ask(TESS_BF16, 64, 1), TESS_ERROR_UNSUPPORTED);
        assert_int_equal(launches, 4);
        code_text[0]++; /* a later version, with files of its own */
    }
}

/* Verdicts that are damaged, or are none, are not there. */
static void test_damaged(void **state) {
    (void)state;
    static const struct {
        uint32_t words[34];
        size_t bytes;
    } others[] = {{{1}, 4}, {{2}, 132}, {{0}, 132}, {{1}, 136}};
    char path[512] = "";
    assert_ok(ask(TESS_F16, 64, 1));
    DIR *directory = opendir(folder);
    for (const struct dirent *e; (e = readdir(directory)) != NULL;)
        if (e->d_name[0] != '.') snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
    closedir(directory);
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, -132, SEEK_END), 0);
    fputc(0, file); /* "no", where there was "yes" */
    fclose(file);
    assert_ok(ask(TESS_F16, 64, 1));
    assert_int_equal(launches, 4);
    for (size_t n = 0; n < sizeof others / sizeof *others; n++) {
        tess_cache_key key;
        char text[64];
        code(device, 0, TESS_F16, &key, text, sizeof text);
        key.options = "self-check of fast: f16, head_dim 64";
        tess_cache_store(&host, &key, others[n].words, others[n].bytes);
        assert_ok(ask(TESS_F16, 64, 1));
        assert_int_equal(launches, 6 + 2 * (int)n);
    }
}

/* ------------------------------------------------------------------ failures */

/* Each call fails, once or from then on: the status comes back, nothing is left, no verdict is
 * kept, and the next attempt works. */
static void test_failures(void **state) {
    (void)state;
    static const tess_status statuses[] = {TESS_ERROR_OUT_OF_MEMORY, TESS_ERROR_NATIVE};
    for (int always = 0; always < 2; always++)
        for (int n = 1;; n++) {
            char why[128];
            tess_checks checks;
            tess_checks_init(&checks);
            const tess_check_subject s = subject_on(&checks);
            const tess_kernel_key key = key_of(TESS_BF16, 64);
            const int before = live;
            calls = 0;
            fail_at = n;
            fail_always = always;
            fail_with = statuses[n % 2];
            const tess_status status = tess_self_check(&s, &key);
            const int reached = calls >= n;
            fail_at = fail_always = 0;
            assert_int_equal(live, before);
            if (!reached) {
                assert_ok(status);
                assert_in_range(n, 8, 20);
                tess_checks_destroy(&checks);
                code_text[1]++;
                break;
            }
            assert_true(status == TESS_ERROR_OUT_OF_MEMORY || status == TESS_ERROR_NATIVE);
            assert_null(tess_check_failure(&s, why, sizeof why));
            assert_ok(tess_self_check(&s, &key));
            tess_checks_destroy(&checks);
            code_text[1]++; /* without a verdict again */
        }
}

/* A device that is lost while the kernel runs, or does not answer, is a verdict; one that is lost
 * while the other kernel runs is none. */
static void test_lost(void **state) {
    (void)state;
    lost_in_launch = 2;
    assert_int_equal(ask(TESS_F16, 64, 1), TESS_ERROR_DEVICE_LOST);
    lost_in_launch = 3;
    assert_int_equal(ask(TESS_F16, 64, 1), TESS_ERROR_DEVICE_LOST);
    lost_in_launch = 0;
    assert_int_equal(ask(TESS_F16, 64, 1), TESS_ERROR_UNSUPPORTED);
    assert_non_null(strstr(host_message, "the device was lost"));
    assert_int_equal(launches, 3);
    code_text[2]++;
    host_message[0] = '\0';
    for (int n = 1; !strstr(host_message, "wait"); n++) { /* until that is the call that fails */
        code_text[2]++;
        calls = 0;
        fail_at = n;
        fail_with = TESS_ERROR_TIMEOUT;
        assert_true(ask(TESS_F16, 64, 1) != TESS_OK);
        fail_at = 0;
    }
    assert_int_equal(ask(TESS_F16, 64, 1), TESS_ERROR_UNSUPPORTED);
    assert_non_null(strstr(host_message, "the kernel did not end in 600 s"));
}

/* ------------------------------------------------------------------ threads */

static void *ask_in_thread(void *argument) {
    const tess_check_subject *s = argument;
    const tess_kernel_key key = key_of(TESS_F16, 64);
    static char whys[16][128];
    static int next;
    char *why = whys[__atomic_fetch_add(&next, 1, __ATOMIC_RELAXED) % 16];
    for (int n = 0; n < 20; n++)
        if (tess_check_failure(s, why, 128) || tess_self_check(s, &key) != TESS_OK) return why;
    return NULL;
}

/* Whoever comes first checks, and the others wait for the verdict. */
static void test_threads(void **state) {
    (void)state;
    tess_checks checks;
    tess_checks_init(&checks);
    tess_check_subject s = subject_on(&checks);
    test_in_threads(ask_in_thread, &s);
    assert_int_equal(launches, 2);
    tess_checks_destroy(&checks);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {CASE(test_problem), CASE(test_passes),   CASE(test_wrong),
                                       CASE(test_damaged), CASE(test_failures), CASE(test_lost),
                                       CASE(test_threads)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
