/* SPDX-License-Identifier: Apache-2.0 */
/* The loops that limits are measured with, on every device that can run them here, software
 * emulations included; and the process that measures. */
#include <dlfcn.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <tessera/tessera.h>

#include "common/testlib.h"

#include "ceilings.h"
#include "devices.h"
#include "gemm.h"
#include "limits/find.h"
#include "limits/gpu.h"
#include "limits/server.h"

/* Small loops: that they run and count their work, not how fast they are. */
static void try_loops(const bench_device *d, const gpu_driver *driver, int *units) {
    char why[256] = "";
    void *gpu = gpu_open(driver, d, why, sizeof why);
    if (!gpu) {
        print_message("%s: %s\n", d->id, why);
        assert_true(why[0]);
        return;
    }
    for (int loop = 0; loop < GPU_LOOPS; loop++) {
        gpu_job job = {.loop = loop, .bytes = 16 * GPU_TILE, .turns = 2};
        const double work = driver->prepare(gpu, &job);
        if (job.why[0]) fail_msg("%s: loop %d: %s", d->id, loop, job.why);
        if (work == 0 && loop > GPU_F32) continue; /* no arithmetic of that type */
        if (loop == GPU_COPY) assert_true(work == 2.0 * (double)job.bytes);
        if (loop == GPU_READ) assert_true(work == (double)job.bytes);
        assert_true(work > 0);
        assert_true(driver->run(gpu) > 0);
        assert_true(driver->run(gpu) > 0);
        assert_true(job.method[0]);
        print_message("%s: %s\n", d->id, job.method);
        *units |= strstr(job.method, "matrix units") != NULL;
    }
    gpu_close(driver, gpu);
}

/* Small products of CLBlast, which compiles for many seconds: only where somebody asks for it. */
static void try_products(const bench_device *d) {
    if (!getenv("TESSERA_TEST_CLBLAST")) return;
    static const uint32_t dtypes[] = {TESS_F32, TESS_F16, TESS_BF16};
    for (int i = 0; i < 3; i++) {
        char why[256] = "";
        bench_ceiling c = {.unit = BENCH_GEMM};
        gpu_products *p = gpu_products_open(&gpu_clblast, d, dtypes[i], 64, &c, why, sizeof why);
        if (!p) {
            print_message("%s: %s\n", d->id, why);
            assert_true(why[0]);
            continue;
        }
        assert_true(gpu_products_run(p) > 0);
        assert_true(gpu_products_check(p));
        gpu_products_close(p);
    }
}

static void test_loops(void **state) {
    (void)state;
    tess_runtime *runtime;
    bench_report r;
    int units = 0;
    memset(&r, 0, sizeof r);
    assert_int_equal(tess_runtime_create(NULL, &runtime), TESS_OK);
    assert_int_equal(devices_choose(runtime, "test", "all", &r), 0);
    for (int i = 0; i < r.n_devices; i++) {
        const gpu_driver *driver = gpu_driver_of(&r.devices[i]);
        if (driver) try_loops(&r.devices[i], driver, &units);
        if (driver == &gpu_opencl) try_products(&r.devices[i]);
    }
    if (getenv("TESSERA_TEST_UNITS")) assert_true(units);
    report_free(&r);
    tess_runtime_release(runtime);
}

/* A device that is not there, and one whose name nothing has. */
static void test_missing(void **state) {
    (void)state;
    static const char *const backends[] = {"cuda", "opencl", "vulkan"};
    for (size_t i = 0; i < sizeof backends / sizeof *backends; i++) {
        bench_device d;
        char why[256] = "";
        memset(&d, 0, sizeof d);
        snprintf(d.backend, sizeof d.backend, "%s", backends[i]);
        snprintf(d.id, sizeof d.id, "%s:77", backends[i]);
        snprintf(d.kind, sizeof d.kind, "gpu");
        snprintf(d.name, sizeof d.name, "No such device");
        const gpu_driver *driver = gpu_driver_of(&d);
        assert_non_null(driver);
        assert_null(gpu_open(driver, &d, why, sizeof why));
        assert_true(why[0]);
        ceilings_identify(&d);
        assert_true(!d.uuid[0] && !d.pci[0]);
    }
}

static void test_uuid(void **state) {
    (void)state;
    const unsigned char bytes[16] = {0x6a, 0x2f, 0x0c, 0x3e, 0x91, 0xd4, 0x4b, 0x57,
                                     0x8e, 0x20, 0x5c, 0x7d, 0x1f, 0x9a, 0xb3, 0x46};
    char text[40];
    gpu_uuid_text(bytes, text);
    assert_string_equal(text, "6a2f0c3e-91d4-4b57-8e20-5c7d1f9ab346");
}

/* ------------------------------------------------------------------ libraries */

/* A tree of folders with a library that no loader knows, as a link to one that is there. */
static void make_tree(char *root, size_t size) {
    static const char *const folders[] = {"/bin",
                                          "/lib",
                                          "/lib/python3.9",
                                          "/lib/python3.9/site-packages",
                                          "/lib/python3.9/site-packages/vendor",
                                          "/lib/python3.9/site-packages/vendor/x",
                                          "/lib/python3.9/site-packages/vendor/x/lib"};
    char path[512], program[512];
    Dl_info known;
    void *maths = dlopen("libm.so.6", RTLD_NOW);
    assert_non_null(maths);
    assert_true(dladdr(dlsym(maths, "cos"), &known) != 0);
    snprintf(root, size, "/tmp/tessera-find-XXXXXX");
    assert_non_null(mkdtemp(root));
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        snprintf(path, sizeof path, "%s%s", root, folders[i]);
        assert_int_equal(mkdir(path, 0700), 0);
    }
    snprintf(path, sizeof path, "%s%s/libtess_nowhere.so.3", root, folders[6]);
    assert_int_equal(symlink(known.dli_fname, path), 0);
    snprintf(program, sizeof program, "%s/bin/python3", root);
    assert_int_equal(symlink("/bin/sh", program), 0);
}

static void remove_tree(const char *root) {
    char command[600];
    snprintf(command, sizeof command, "rm -r '%s'", root);
    assert_int_equal(system(command), 0);
}

/* By a folder, by variables of the environment, and by the Python of the search path. */
static void test_find(void **state) {
    (void)state;
    static const char *const names[] = {"libtess_nowhere.so.3", NULL}, *const none[] = {NULL},
                             *const by_variable[] = {"$TESS_TEST_ROOT/*/*/*/vendor/*/lib", NULL};
    find_names f = {names, "libtess_nowhere.so", NULL, none, "vendor/*/lib"};
    char root[64], path[600];
    char *old = strdup(getenv("PATH") ? getenv("PATH") : "");
    double (*cosine)(double);
    make_tree(root, sizeof root);
    assert_null(find_library(&f));
    snprintf(path, sizeof path, "/nowhere:%s/bin:%s", root, old);
    setenv("PATH", path, 1);
    void *library = find_library(&f);
    assert_non_null(library);
    assert_true(find_symbol(library, "cos", &cosine) && cosine(0) == 1);
    assert_false(find_symbol(library, "tess_no_such_function", &cosine));
    setenv("PATH", old, 1);
    assert_null(find_library(&f));
    setenv("VIRTUAL_ENV", root, 1);
    assert_non_null(find_library(&f));
    unsetenv("VIRTUAL_ENV");
    f.folders = by_variable;
    assert_null(find_library(&f));
    setenv("TESS_TEST_ROOT", root, 1);
    assert_non_null(find_library(&f));
    unsetenv("TESS_TEST_ROOT");
    remove_tree(root);
    free(old);
}

/* ------------------------------------------------------------------ the process */

enum { FINDS, CRASHES, HANGS, FAILS };

static void work(const limits_job *job, int out) {
    limits_message m = {.ceiling = {.rate = 5, .size = job->provider}};
    if (job->kind == CRASHES) {
        signal(SIGSEGV, SIG_DFL);
        raise(SIGSEGV);
    }
    if (job->kind == HANGS) sleep(60);
    if (job->kind == FAILS) _exit(3);
    limits_send(out, &m);
    m.ceiling.rate = 0;
    snprintf(m.note, sizeof m.note, "a note about %s", job->device.id);
    limits_send(out, &m);
}

typedef struct seen {
    int ceilings, lasts;
    int64_t size;
    char note[256];
} seen;

static void look(void *user, const limits_message *m) {
    seen *s = user;
    if (m->ceiling.rate > 0) {
        s->ceilings++;
        s->size = m->ceiling.size;
    }
    s->lasts += m->last;
    if (m->note[0]) snprintf(s->note, sizeof s->note, "%s", m->note);
}

/* Whatever a job does, the next one is served. */
static void test_server(void **state) {
    (void)state;
    static const char *const notes[] = {"a note about cuda:3", "the job ended by signal 11",
                                        "the job took longer than 0 s",
                                        "the job could not be measured"};
    limits_server *s = limits_start(work);
    assert_non_null(s);
    for (int round = 0; round < 2; round++)
        for (int kind = FINDS; kind <= FAILS; kind++) {
            limits_job job = {.kind = kind, .provider = 40 + round, .name = "the job"};
            seen x = {.lasts = 0};
            job.limit = kind == HANGS ? 0.2 : 20;
            snprintf(job.device.id, sizeof job.device.id, "cuda:3");
            assert_int_equal(limits_run(s, &job, look, &x), 0);
            assert_string_equal(x.note, notes[kind]);
            assert_int_equal(x.lasts, 1);
            assert_int_equal(x.ceilings, kind == FINDS);
            if (kind == FINDS) assert_int_equal(x.size, 40 + round);
        }
    limits_stop(s);
    limits_stop(NULL);
}

/* Another round of a CPU's loops: the best one stays, and what they differ by is the drift. */
static void test_rounds(void **state) {
    (void)state;
    const double rates[] = {1, 1e30}; /* of the first round */
    limits_server *s = ceilings_start();
    assert_non_null(s);
    for (int k = 0; k < 4; k++) {
        bench_report r = {.n_devices = 0};
        bench_device *d = report_add_device(&r);
        snprintf(d->kind, sizeof d->kind, k < 2 ? "cpu" : k == 2 ? "software" : "gpu");
        bench_ceiling *c = device_add_ceiling(d);
        *c = (bench_ceiling){.unit = BENCH_GEMM,
                             .dtype = TESS_F32,
                             .rate = rates[k % 2],
                             .threads = 1,
                             .own_loop = 1,
                             .provider = GEMM_PROVIDERS - 1};
        assert_int_equal(ceilings_again(s, d), 0);
        if (k == 3) {
            assert_true(d->rounds == 0 && isnan(d->drift));
        } else {
            assert_true(k == 1 ? c->rate == 1e30 : c->rate > 1e6);
            assert_true(d->rounds == 2 && d->drift > 0);
        }
        report_free(&r);
    }
    ceilings_stop(s);
}

/* There is a loop of each type, which widens what the processor does not multiply. */
static void test_own_loops(void **state) {
    (void)state;
    static const uint32_t dtypes[] = {TESS_F32, TESS_F16, TESS_BF16};
    char why[256] = "";
    for (int i = 0; i < 3; i++) {
        gemm *g = gemm_open(GEMM_PROVIDERS - 1, dtypes[i], 0, 2048, 2, why, sizeof why);
#if defined(__x86_64__)
        const int wide = __builtin_cpu_supports("avx2");
#elif defined(__aarch64__)
        const int wide = 1;
#else
        const int wide = 0;
#endif
        if (!g && (i == 0 || wide)) fail_msg("%s: %s", dtype_name(dtypes[i]), why);
        if (!g) continue;
        assert_true(gemm_run(g) == 0 && gemm_flops(g) > 0);
        assert_string_equal(gemm_library(g), "own loop");
        if (i < 2) assert_int_equal(strstr(gemm_method(g), "widens to f32") != NULL, i);
        gemm_close(g);
    }
    assert_null(gemm_open(GEMM_PROVIDERS - 1, TESS_F16, 1, 2048, 2, why, sizeof why));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_server),    cmocka_unit_test(test_uuid),
        cmocka_unit_test(test_find),      cmocka_unit_test(test_missing),
        cmocka_unit_test(test_loops),     cmocka_unit_test(test_rounds),
        cmocka_unit_test(test_own_loops),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
