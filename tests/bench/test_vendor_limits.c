/* SPDX-License-Identifier: Apache-2.0 */
/* Limits of an NVIDIA GPU through a driver and a cuBLAS that are fake: which of them are found,
 * what the rates are, and what stands in where something is missing; and a clock that rises. */
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <tessera/tessera.h>

#include "common/testlib.h"

#include "ceilings.h"
#include "fake_cuda.h"
#include "limits/find.h"
#include "limits/gpu.h"
#include "measure.h"
#include "sensors.h"

#define UUID "00102030-4050-6070-8090-a0b0c0d0e0f0"
#define PCI  "0000:1a:00.0"

static void say_nothing(void *user, const char *text) { (void)user, (void)text; }

static bench_device *add(bench_report *r, const char *id, const char *uuid) {
    bench_device *d = report_add_device(r);
    assert_non_null(d);
    snprintf(d->id, sizeof d->id, "%s", id);
    snprintf(d->backend, sizeof d->backend, "%.*s", (int)strcspn(id, ":"), id);
    snprintf(d->kind, sizeof d->kind, "gpu");
    snprintf(d->name, sizeof d->name, "Fake GPU");
    snprintf(d->arch, sizeof d->arch, "sm_90");
    d->compute_units = 10;
    snprintf(d->uuid, sizeof d->uuid, "%s", uuid);
    d->memory_bytes = 1u << 28;
    return d;
}

static void measure(bench_report *r) {
    limits_server *s = ceilings_start();
    assert_non_null(s);
    assert_int_equal(ceilings_measure(s, r, 0.01, say_nothing, NULL), 0);
    ceilings_stop(s);
}

static const bench_ceiling *find(const bench_device *d, int unit, uint32_t dtype) {
    for (int i = 0; i < d->n_ceilings; i++)
        if (d->ceilings[i].unit == unit && d->ceilings[i].dtype == dtype) return &d->ceilings[i];
    return NULL;
}

static void assert_rate(const bench_device *d, int unit, uint32_t dtype, double rate, int own) {
    const bench_ceiling *c = find(d, unit, dtype);
    if (!c)
        fail_msg("%s: no ceiling %d of %s: %s", d->id, unit, dtype_name(dtype), d->ceiling_note);
    if (!(fabs(c->rate / rate - 1) < 1e-3)) fail_msg("%s: %g, not %g", d->id, c->rate, rate);
    assert_int_equal(c->own_loop, own);
    assert_true(c->n_samples >= 5);
}

/* What copies, reads and multiplies. A rate of 0: there is no such ceiling. */
static void assert_rates(const bench_device *d, double f32, double bf16, double f16, int own) {
    const double rates[] = {[TESS_F32] = f32, [TESS_BF16] = bf16, [TESS_F16] = f16};
    assert_rate(d, BENCH_COPY, 0, FAKE_COPY, 1);
    assert_rate(d, BENCH_READ, 0, FAKE_READ, 1);
    for (uint32_t t = TESS_F32; t <= TESS_BF16; t++)
        if (rates[t] > 0)
            assert_rate(d, BENCH_GEMM, t, rates[t], own);
        else
            assert_null(find(d, BENCH_GEMM, t));
    /* a loop runs beside the library, and the better of both counts */
    int loops = 0;
    for (int i = 0; i < d->n_ceilings; i++)
        loops += d->ceilings[i].unit == BENCH_GEMM && d->ceilings[i].own_loop;
    assert_true(loops > 0);
    for (uint32_t t = TESS_F32; t <= TESS_BF16; t++) {
        const int best = device_ceiling(d, BENCH_GEMM, t);
        assert_true(best >= 0 && d->ceilings[best].rate > 0.999 * fmax(rates[t], FAKE_F32));
    }
}

static void test_identity(void **state) {
    (void)state;
    bench_report r = {.n_devices = 0};
    bench_device *d = add(&r, "cuda:0", "");
    ceilings_identify(d);
    assert_string_equal(d->uuid, UUID);
    assert_string_equal(d->pci, PCI);
    d = add(&r, "hip:0", "");
    ceilings_identify(d);
    assert_string_equal(d->uuid, "11111111-1111-1111-1111-111111111111");
    assert_true(d->pci[0]);
    report_free(&r);
}

/* cuBLAS counts for every interface of the GPU, and for no other device. */
static void test_library(void **state) {
    (void)state;
    bench_report r = {.n_devices = 0};
    unsetenv("FAKE_GPU");
    add(&r, "opencl:0", UUID);
    add(&r, "cuda:0", UUID);
    add(&r, "vulkan:0", UUID);
    add(&r, "opencl:7", "11102030-4050-6070-8090-a0b0c0d0e0f0");
    measure(&r);
    for (int i = 0; i < 3; i++) {
        const bench_device *d = &r.devices[i];
        assert_rates(d, FAKE_F32, FAKE_BF16, FAKE_F16, 0);
        const bench_ceiling *c = find(d, BENCH_GEMM, TESS_F16);
        assert_string_equal(c->library, "cuBLAS 13.1.2");
        assert_string_equal(c->via, i == 1 ? "" : "cuda:0");
        assert_int_equal(c->size, 8192);
        assert_int_equal(c[1].size, 4096);
        assert_string_equal(c[1].library, c->library);
        /* the loop on matrix units beats a library that is slow in this type */
        const int best = device_ceiling(d, BENCH_GEMM, TESS_BF16);
        assert_true(d->ceilings[best].own_loop);
        assert_true(fabs(d->ceilings[best].rate / FAKE_UNITS - 1) < 1e-3);
        assert_int_equal(find(d, BENCH_GEMM, TESS_BF16)->size, 2048);
    }
    assert_int_equal(r.devices[3].n_ceilings, 0);
    assert_true(r.devices[3].ceiling_note[0]);
    report_free(&r);
}

/* One device alone, in a GPU with some properties. */
static bench_report measured(const char *id, const char *arch, const char *words) {
    bench_report r = {.n_devices = 0};
    setenv("FAKE_GPU", words, 1);
    bench_device *d = add(&r, id, UUID);
    snprintf(d->arch, sizeof d->arch, "%s", arch);
    measure(&r);
    unsetenv("FAKE_GPU");
    return r;
}

/* Without a library loops drive the matrix units, or the multiply-adds where there are none. */
static void test_loops(void **state) {
    static const struct {
        const char *id, *arch, *words, *why;
        double bf16, f16;
    } cases[] = {
        {"cuda:0", "sm_90", "broken", "cuBLAS gives no handle: status 1", FAKE_UNITS, FAKE_UNITS},
        {"cuda:0", "sm_90", "wrong", "wrong", FAKE_UNITS, FAKE_UNITS},
        {"cuda:0", "sm_70", "broken", "cuBLAS gives no handle", 0, 0},
        {"hip:0", "gfx942", "broken", "hipBLASLt gives no handle", FAKE_UNITS, FAKE_UNITS},
        {"hip:0", "gfx1030", "broken plain", "rocBLAS gives no handle", 0, 2 * FAKE_F32}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bench_report r = measured(cases[i].id, cases[i].arch, cases[i].words);
        assert_rates(&r.devices[0], FAKE_F32, cases[i].bf16, cases[i].f16, 1);
        if (!strstr(r.devices[0].ceiling_note, cases[i].why))
            fail_msg("%s: %s", cases[i].why, r.devices[0].ceiling_note);
        report_free(&r);
    }
}

/* Both of ROCm's libraries multiply; one whose search finds nothing is left out. */
static void test_hip(void **state) {
    static const char *const names[] = {"rocBLAS 4.2.0", "hipBLASLt 1.2.3"};
    (void)state;
    bench_report r = {.n_devices = 0};
    add(&r, "vulkan:0", UUID);
    add(&r, "hip:0", UUID);
    measure(&r);
    for (int i = 0; i < 2; i++) {
        const bench_device *d = &r.devices[i];
        int products[2] = {0};
        assert_rates(d, FAKE_F32, FAKE_BF16, FAKE_F16, 0);
        for (int k = 0; k < d->n_ceilings; k++)
            for (int n = 0; n < 2; n++)
                products[n] += strcmp(d->ceilings[k].library, names[n]) == 0;
        assert_true(products[0] == 4 && products[1] == 4); /* f16 in two sizes */
        assert_string_equal(find(d, BENCH_GEMM, TESS_F32)->via, i ? "" : "hip:0");
    }
    report_free(&r);
    r = measured("hip:0", "gfx942", "unsearched");
    assert_string_equal(find(&r.devices[0], BENCH_GEMM, TESS_F16)->library, names[0]);
    assert_non_null(strstr(r.devices[0].ceiling_note, "an unknown version of hipBLASLt"));
    report_free(&r);
}

/* The result of a small problem. The CPU stands in for the GPU `d`. */
static bench_result small_contest(const bench_device *d, double energy_seconds) {
    tess_runtime *runtime;
    tess_device *device;
    const tess_device_desc desc = {.struct_size = sizeof desc, .id = "cpu"};
    const measure_limits limits = {
        .host_bytes = 1u << 30, .device_bytes = 1u << 30, .energy_seconds = energy_seconds};
    contestant *c = calloc(1, sizeof *c);
    assert_non_null(c);
    assert_int_equal(tess_runtime_create(NULL, &runtime), TESS_OK);
    assert_int_equal(tess_device_open(runtime, &desc, &device), TESS_OK);
    assert_int_equal(contestant_open(c, runtime, device, NULL,
                                     "heads=1 q_len=64 head_dim=32 pattern=dense", &limits),
                     0);
    contest(&c, 1, d, &limits);
    const bench_result result = c->result;
    contestant_close(c);
    free(c);
    tess_device_release(device);
    tess_runtime_release(runtime);
    return result;
}

/* What a counter of millijoules rose by is that of all runs together. */
static void test_energy(void **state) {
    (void)state;
    bench_report r = {.n_devices = 0};
    bench_device *d = add(&r, "vulkan:0", UUID);
    sensors_find(d);
    assert_string_equal(d->energy, d->sensors);
    const double runs = 5 / small_contest(d, 0.01).joules;
    assert_true(runs >= 2 && fabs(runs - round(runs)) < 1e-6);
    report_free(&r);
}

/* Where NVML does not know a GPU, AMD SMI may, by its place on the bus. */
static void test_amd_energy(void **state) {
    (void)state;
    bench_report r = {.n_devices = 0};
    bench_device *d = add(&r, "vulkan:0", "");
    snprintf(d->pci, sizeof d->pci, "0001:1b:02.3");
    sensors_find(d);
    assert_string_equal(d->energy, "AMD SMI");
    const double before = sensors_joules(d), spent = sensors_joules(d) - before;
    assert_true(fabs(spent - 3) < 1e-6);
    snprintf(d->pci, sizeof d->pci, "0001:1c:02.3");
    sensors_find(d);
    assert_string_equal(d->energy, "");
    assert_true(isnan(sensors_joules(d)));
    report_free(&r);
}

static void put(const char *folder, const char *name, const char *text) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    for (char *slash = path + 1; (slash = strchr(slash, '/')); *slash++ = '/') {
        *slash = 0;
        mkdir(path, 0700);
    }
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

/* What Linux shows beside the packages is no further energy. */
static void test_packages(void **state) {
    (void)state;
    static const char *const files[][2] = {
        {"intel-rapl:0/name", "package-0\n"},   {"intel-rapl:0/energy_uj", "1500000\n"},
        {"intel-rapl:1/name", "psys\n"},        {"intel-rapl:1/energy_uj", "9000000\n"},
        {"intel-rapl:12/name", "package-1\n"},  {"intel-rapl:12/energy_uj", "250000\n"},
        {"intel-rapl:0:0/name", "package-7\n"}, {"intel-rapl:0:0/energy_uj", "40000000\n"}};
    char folder[] = "/tmp/tessera-rapl-XXXXXX", command[64];
    assert_non_null(mkdtemp(folder));
    assert_true(isnan(sensors_packages(folder)));
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) put(folder, files[i][0], files[i][1]);
    const double joules = sensors_packages(folder);
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
    assert_true(fabs(joules - 1.75) < 1e-9);
}

/* Libraries of Python's packages are found, and only where there is a package to look into. */
static void test_python_packages(void **state) {
    (void)state;
    static const char *const names[] = {"libtessera_absent.so.1", NULL}, *const folders[] = {NULL};
    static const char *const packages[] = {"_rocm_sdk_core", "(null)"};
    char folder[] = "/tmp/tessera-venv-XXXXXX", command[64], path[160];
    Dl_info fake;
    void *smi = dlopen("libamd_smi.so.26", RTLD_NOW | RTLD_LOCAL),
         *init = smi ? dlsym(smi, "amdsmi_init") : NULL;
    assert_non_null(init);
    assert_true(dladdr(init, &fake) != 0);
    assert_non_null(mkdtemp(folder));
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "lib/python3.0/site-packages/%s/%sx", packages[i],
                 i ? "" : "lib/");
        put(folder, path, "");
        snprintf(path, sizeof path, "%s/lib/python3.0/site-packages/%s/%slibtessera_absent.so.7",
                 folder, packages[i], i ? "" : "lib/");
        assert_int_equal(symlink(fake.dli_fname, path), 0);
    }
    find_names where = {names, "libtessera_absent.so", NULL, folders, "_rocm_sdk_*/lib"};
    setenv("VIRTUAL_ENV", folder, 1);
    void *found = find_library(&where);
    where.package = NULL;
    void *other = find_library(&where);
    unsetenv("VIRTUAL_ENV");
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
    assert_non_null(found);
    assert_null(other);
    dlclose(found);
    dlclose(smi);
}

/* A problem is timed when the clock, which fake_nvml.c lets rise after some looks at it, is up. */
static void test_warm_up(void **state) {
    (void)state;
    bench_report r = {.n_devices = 0};
    const bench_result x = small_contest(add(&r, "vulkan:0", UUID), 0);
    assert_int_equal(x.status, BENCH_OK);
    assert_true(x.before.clock_hz == 1980e6);
    assert_true(x.after.clock_hz == 1980e6);
    report_free(&r);
}

/* Where it was timed with a clock that rose, the result says so; a falling one is the limit of
 * power. */
static void test_warming(void **state) {
    static const double clocks[][2] = {{345e6, 600e6}, {1980e6, 1980e6}, {1980e6, 1590e6}};
    (void)state;
    bench_report r = {.n_devices = 0};
    add(&r, "vulkan:0", UUID);
    for (int i = 0; i < 3; i++) {
        bench_result *x = report_add_result(&r);
        assert_non_null(x);
        x->median = x->q1 = x->q3 = 1e-3;
        x->before.clock_hz = clocks[i][0];
        x->after.clock_hz = clocks[i][1];
    }
    results_derive(&r);
    for (int i = 0; i < 3; i++) assert_int_equal(r.results[i].noisy, i == 0);
    report_free(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_identity), cmocka_unit_test(test_library),
        cmocka_unit_test(test_loops),    cmocka_unit_test(test_hip),
        cmocka_unit_test(test_warm_up),  cmocka_unit_test(test_warming),
        cmocka_unit_test(test_energy),   cmocka_unit_test(test_amd_energy),
        cmocka_unit_test(test_packages), cmocka_unit_test(test_python_packages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
