/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the CUDA and HIP backends ask of their drivers, on the stand-ins of tests/drivers: which
 * calls, in which order, in whose context; which image for which device; what is listed.
 *
 *   driver_calls BACKEND FOLDER [--write]   FOLDER holds the expected logs; --write writes them
 * anew driver_calls BACKEND FOLDER --plain     the same logs, but that each launch is a plain one,
 * as drivers before CUDA 12.3 want it driver_calls --reason BACKEND TEXT      there is no device,
 * and the reason holds TEXT
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/tessera_cuda.h>

#include "common/serve.h"
#include "common/testlib.h"
#include "fake_find.h"
#include "problem.h"

static const char *backend, *folder;
static int is_cuda, writes, plain;
static const fake_exports *driver;
static fake_control *control;
static void *library;

/* PARTS: Q, K, V, O, LSE, of backward dO, dQ, dK and dV, and the workspace */
enum { PARTS = 10, NO_DEVICE = -1 };

/* A function of the driver's own, for what an application does by itself. */
static void *symbol(const char *cuda, const char *hip) {
    void *found = dlsym(library, is_cuda ? cuda : hip);
    assert_non_null(found);
    return found;
}

static const char *id_of(int index) {
    static char id[32];
    snprintf(id, sizeof id, "%s:%d", backend, index);
    return id;
}

static void set_arch(int device, const char *arch) {
    snprintf(control->arch[device], sizeof control->arch[device], "%s", arch);
}

/* Leaves the thread without a current context. HIP has no such state. */
static void leave_current(void) {
    int (*set)(void *);
    if (!is_cuda) {
        driver->make_current(0);
        return;
    }
    *(void **)&set = symbol("cuCtxSetCurrent", NULL);
    assert_int_equal(set(NULL), 0);
}

static void start_log(void) {
    control->used = 0;
    control->log[0] = '\0';
    control->logging = 1;
    control->calls = 0;
}

/* What an application holds. */
typedef struct scene {
    test_heap heap;
    tess_runtime *runtime;
    tess_device *device;
    tess_layout *layout;
    tess_plan *plan;
    tess_plan_info info;
    problem p;
    tess_buffer buffers[PARTS];
    tess_run_desc run;
    char logged[2000];
} scene;

static void keep_line(void *user, const char *line) {
    char *text = user;
    const size_t used = strlen(text);
    snprintf(text + used, 2000 - used, "%s\n", line);
}

static tess_status make_plan(scene *s, const char *kernel, tess_plan **plan) {
    tess_plan_desc desc;
    int64_t *lengths = NULL;
    assert_int_equal(problem_plan_desc(&s->p, &desc, &lengths), 0);
    desc.kernel = kernel;
    const tess_status status = tess_plan_create(s->device, s->layout, &desc, plan);
    free(lengths);
    return status;
}

/* Everything up to the plan, of which the status comes back. */
static tess_status open_scene(scene *s, const char *line, int device, const void *native,
                              const char *kernel) {
    char error[256];
    memset(s, 0, sizeof *s);
    test_heap_init(&s->heap, 0, 0);
    const tess_runtime_desc desc = {.struct_size = sizeof desc,
                                    .allocator = s->heap.allocator,
                                    .log = keep_line,
                                    .log_user = s->logged,
                                    .verbose = "device"};
    const tess_device_desc open = {
        .struct_size = sizeof open, .id = id_of(device), .native = native};
    assert_ok(tess_runtime_create(&desc, &s->runtime));
    assert_ok(tess_device_open(s->runtime, &open, &s->device));
    assert_int_equal(problem_parse(&s->p, line, error, sizeof error), 0);
    assert_ok(problem_layout(&s->p, s->runtime, &s->layout));
    const tess_status status = make_plan(s, kernel, &s->plan);
    s->info.struct_size = sizeof s->info;
    if (status == TESS_OK) assert_ok(tess_plan_query(s->plan, &s->info));
    return status;
}

static void add_buffers(scene *s, uint64_t shift) {
    enum { ATTENTION = 5, WORKSPACE = PARTS - 1 };
    static const tess_role roles[WORKSPACE] = {TESS_ROLE_Q,   TESS_ROLE_K,   TESS_ROLE_V,
                                               TESS_ROLE_O,   TESS_ROLE_LSE, TESS_ROLE_D_O,
                                               TESS_ROLE_D_Q, TESS_ROLE_D_K, TESS_ROLE_D_V};
    const tess_buffer none = {0};
    s->run = (tess_run_desc){.struct_size = sizeof s->run};
    tess_tensor *const tensors[WORKSPACE] = {&s->run.q,   &s->run.k,   &s->run.v,
                                             &s->run.o,   &s->run.lse, &s->run.d_o,
                                             &s->run.d_q, &s->run.d_k, &s->run.d_v};
    for (int n = 0; n < (s->p.op == PROBLEM_BACKWARD ? WORKSPACE : ATTENTION); n++) {
        uint64_t bytes;
        assert_ok(tess_plan_tensor(s->plan, roles[n], none, tensors[n], &bytes));
        const uint64_t place = n < 4 ? shift : 0;
        s->buffers[n] = test_upload(s->device, NULL, bytes + place);
        tensors[n]->buffer = s->buffers[n];
        if (tensors[n]->buffer.kind) tensors[n]->buffer.offset = place;
    }
    s->run.workspace = s->buffers[WORKSPACE] =
        test_upload(s->device, NULL, s->info.workspace_bytes);
}

static void close_scene(scene *s) {
    for (int n = 0; n < PARTS; n++) assert_ok(tess_free(s->device, &s->buffers[n]));
    tess_plan_release(s->plan);
    tess_layout_release(s->layout);
    tess_device_release(s->device);
    tess_runtime_release(s->runtime);
    problem_free(&s->p);
    assert_int_equal(s->heap.live, 0);
    assert_int_equal(s->heap.damaged, 0);
    if (control->wrong) fail_msg("the driver was misused: %s", control->what);
}

static const char split_line[] = "pattern=s2 block=16 local=2 stride=3 heads=4 kv_heads=2 q_len=5 "
                                 "kv_len=333 head_dim=72 dtype=bf16 kv_split=3 batch=2";
static const char many_line[] =
    "pattern=dense heads=20 q_len=3 kv_len=40 head_dim=64 dtype=f16 batch=2";

static const char mixed_line[] = "pattern=dense heads=4 kv_heads=1 q_lens=70,2,1 "
                                 "kv_lens=333,90,200 head_dim=72 dtype=bf16 kv_split=3";

/* ------------------------------------------------------------------ the order of calls */

/* The log since the last note, under a heading. */
static void note(FILE *out, const char *heading) {
    fprintf(out, "== %s\n%s", heading, control->log);
    start_log();
}

static void compare(const char *name, const char *got) {
    char path[600];
    snprintf(path, sizeof path, "%s/%s.txt", folder, name);
    FILE *file = fopen(path, writes ? "wb" : "rb");
    if (!file) fail_msg("%s cannot be opened", path);
    if (writes) {
        fputs(got, file);
        assert_int_equal(fclose(file), 0);
        return;
    }
    static char wanted[1 << 17];
    wanted[fread(wanted, 1, sizeof wanted - 1, file)] = '\0';
    fclose(file);
    for (char *at = wanted; plain && (at = strstr(at, "cuLaunchKernelEx ")) != NULL;) {
        at += strlen("cuLaunchKernel");
        memmove(at, at + 2, strlen(at + 2) + 1);
    }
    size_t n = 0, line = 1, start = 0;
    for (; wanted[n] && wanted[n] == got[n]; n++)
        if (wanted[n] == '\n') {
            line++;
            start = n + 1;
        }
    if (wanted[n] != got[n])
        fail_msg("%s, line %zu:\n  expected: %.*s\n  got:      %.*s", path, line,
                 (int)strcspn(wanted + start, "\n"), wanted + start,
                 (int)strcspn(got + start, "\n"), got + start);
}

/* Waits, ends a scene and its log, and compares that with the golden one of the name. */
static void finish(scene *s, FILE *out, const char *name, char **text) {
    assert_ok(tess_wait(s->device, UINT64_MAX));
    note(out, "a wait");
    close_scene(s);
    note(out, "the end");
    assert_int_equal(fclose(out), 0);
    control->logging = 0;
    compare(name, *text);
    free(*text);
}

/* A life cycle from opening to closing: plans load their code once, and runs only launch. */
static void life(const char *name, const char *arch, const char *line, const char *kernel,
                 uint64_t shift) {
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    scene s;
    double seconds = -1;
    tess_plan *second = NULL;
    void *stream = NULL;
    int (*make)(void **, unsigned), (*drop)(void *);
    assert_non_null(out);
    *(void **)&make = symbol("cuStreamCreate", "hipStreamCreateWithFlags");
    *(void **)&drop = symbol("cuStreamDestroy_v2", "hipStreamDestroy");
    set_arch(0, arch);
    start_log();
    assert_ok(open_scene(&s, line, 0, NULL, kernel));
    note(out, "listing, opening, planning");
    assert_ok(make_plan(&s, kernel, &second));
    note(out, "a second plan");
    tess_plan_release(second);
    start_log();
    add_buffers(&s, shift);
    note(out, "memory");
    assert_ok(tess_run(s.plan, &s.run));
    note(out, "a run");
    const uint64_t jobs = s.info.n_jobs;
    s.run.job_count = jobs / 2;
    assert_ok(tess_run(s.plan, &s.run));
    note(out, "half of the jobs");
    s.run.first_job = jobs / 2;
    s.run.job_count = 0;
    assert_ok(tess_run(s.plan, &s.run));
    note(out, "the other half");
    s.run.first_job = jobs - 1;
    assert_ok(tess_run(s.plan, &s.run));
    note(out, "the last of the jobs");
    s.run.first_job = 0;
    driver->make_current(0);
    assert_int_equal(make(&stream, 0), 0);
    start_log();
    s.run.stream = (tess_stream){.kind = TESS_STREAM_SUBMIT, .handle = (uint64_t)(uintptr_t)stream};
    assert_ok(tess_run(s.plan, &s.run));
    note(out, "on the application's stream");
    s.run.stream.handle = 0;
    assert_ok(tess_run(s.plan, &s.run));
    note(out, "on the null stream");
    assert_int_equal(drop(stream), 0);
    leave_current();
    start_log();
    s.run.stream = (tess_stream){0};
    s.run.device_seconds = &seconds;
    assert_ok(tess_run(s.plan, &s.run));
    note(out, "with its time");
    assert_true(seconds >= 0);
    finish(&s, out, name, &text);
}

static void test_portable(void **state) {
    (void)state;
    life(is_cuda ? "cuda_portable" : "hip_portable", is_cuda ? "sm_86" : "gfx1100", split_line,
         is_cuda ? "cuda/portable" : NULL, 0);
}

static void test_sm80(void **state) {
    (void)state;
    if (!is_cuda) skip();
    life("cuda_sm80", "sm_86", split_line, NULL, 0);
}

static void test_decode(void **state) {
    (void)state;
    if (!is_cuda) skip();
    life("cuda_decode", "sm_90", split_line, "cuda/decode", 0);
}

static void test_sm90(void **state) {
    (void)state;
    if (!is_cuda) skip();
    life("cuda_sm90", "sm_90", split_line, "cuda/sm90", 0);
    /* rows that tensor maps cannot take */
    life("cuda_sm90_odd", "sm_90", split_line, "cuda/sm90", 6);
    /* jobs are counted on the device */
    life("cuda_sm90_many", "sm_90", many_line, "cuda/sm90", 0);
    /* a kernel for few rows beside it */
    life("cuda_sm90_mixed", "sm_90", mixed_line, NULL, 0);
}

/* A step of a server: the kernels that write a cache are loaded once, and then only launched. */
static void test_serving(void **state) {
    (void)state;
    tess_runtime *runtime = test_runtime(1);
    tess_device *device = NULL;
    const tess_device_desc desc = {.struct_size = sizeof desc, .id = id_of(0)};
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    assert_non_null(out);
    set_arch(0, is_cuda ? "sm_90" : "gfx1100");
    assert_ok(tess_device_open(runtime, &desc, &device));
    start_log();
    assert_ok(serve_once(runtime, device));
    note(out, "a step");
    assert_ok(serve_once(runtime, device));
    note(out, "another step");
    tess_device_release(device);
    tess_runtime_release(runtime);
    note(out, "the end");
    assert_int_equal(fclose(out), 0);
    control->logging = 0;
    compare(is_cuda ? "cuda_serving" : "hip_serving", text);
    free(text);
    if (control->wrong) fail_msg("the driver was misused: %s", control->what);
}

/* Backward has a launch for each stage that the wanted gradients need. */
static void gradients_life(const char *name, const char *kernel) {
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    scene s;
    assert_non_null(out);
    set_arch(0, is_cuda ? "sm_90" : "gfx1100");
    start_log();
    assert_ok(open_scene(&s,
                         "op=bwd pattern=s2 block=16 local=2 stride=3 heads=4 kv_heads=2 q_len=70 "
                         "kv_len=333 head_dim=72 dtype=bf16 batch=2",
                         0, NULL, kernel));
    note(out, "listing, opening, planning");
    add_buffers(&s, 0);
    note(out, "memory");
    assert_ok(tess_run(s.plan, &s.run));
    note(out, "a run");
    tess_run_desc some = s.run;
    some.d_q.buffer = (tess_buffer){0};
    assert_ok(tess_run(s.plan, &some));
    note(out, "without dQ");
    some = s.run;
    some.d_k.buffer = some.d_v.buffer = (tess_buffer){0};
    assert_ok(tess_run(s.plan, &some));
    note(out, "without dK and dV");
    finish(&s, out, name, &text);
}

static void test_gradients(void **state) {
    (void)state;
    gradients_life(is_cuda ? "cuda_gradients" : "hip_gradients", is_cuda ? "cuda/portable" : NULL);
    if (is_cuda) gradients_life("cuda_sm90_gradients", NULL);
}

/* Plans of one step are released in the order of a stream: their tables are marked, not freed, and
 * a later plan asks for the mark alone. */
static void test_turnover(void **state) {
    (void)state;
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    scene s;
    void *made = NULL;
    int (*make)(void **, unsigned), (*wait)(void *), (*drop)(void *);
    assert_non_null(out);
    *(void **)&make = symbol("cuStreamCreate", "hipStreamCreateWithFlags");
    *(void **)&wait = symbol("cuStreamSynchronize", "hipStreamSynchronize");
    *(void **)&drop = symbol("cuStreamDestroy_v2", "hipStreamDestroy");
    set_arch(0, is_cuda ? "sm_86" : "gfx1100");
    assert_ok(open_scene(&s, many_line, 0, NULL, is_cuda ? "cuda/portable" : NULL));
    add_buffers(&s, 0);
    driver->make_current(0);
    assert_int_equal(make(&made, 1), 0);
    s.run.stream = (tess_stream){.kind = TESS_STREAM_SUBMIT, .handle = (uint64_t)(uintptr_t)made};
    start_log();
    for (int step = 0; step < 3; step++) {
        assert_ok(tess_run(s.plan, &s.run));
        note(out, "a run");
        assert_ok(tess_plan_release_after(s.plan, &s.run.stream));
        note(out, "its plan is released");
        if (step == 1) assert_int_equal(wait(made), 0);
        start_log();
        assert_ok(make_plan(&s, is_cuda ? "cuda/portable" : NULL, &s.plan));
        note(out, step == 1 ? "the next plan, after both runs" : "the next plan");
    }
    assert_int_equal(wait(made), 0);
    assert_int_equal(drop(made), 0);
    leave_current();
    start_log();
    finish(&s, out, is_cuda ? "cuda_turnover" : "hip_turnover", &text);
}

/* The only calls that tess_run may make: stream capture allows no others. And it does not
 * allocate. */
static void test_run_calls(void **state) {
    (void)state;
    static const char *const allowed[] = {
        "cuCtxPushCurrent", "cuCtxPopCurrent",  "cuLaunchKernel",
        "cuLaunchKernelEx", "cuMemsetD32Async", "cuTensorMapEncodeTiled",
        "hipSetDevice",     "hipGetDevice",     "hipModuleLaunchKernel"};
    static const char *const archs[2][3] = {{"gfx1100", "gfx90a", "gfx906"},
                                            {"sm_90", "sm_75", "sm_130"}};
    for (int n = 0; n < 12; n++) {
        scene s;
        set_arch(0, archs[is_cuda][n % 3]);
        assert_ok(open_scene(&s, n / 3 & 1 ? split_line : many_line, 0, NULL, NULL));
        add_buffers(&s, n / 6 ? 2 : 0);
        const int64_t allocations = s.heap.calls;
        int launches = 0;
        start_log();
        assert_ok(tess_run(s.plan, &s.run));
        control->logging = 0;
        assert_int_equal(s.heap.calls, allocations);
        for (const char *line = control->log; *line;
             line += strcspn(line, "\n"), line += *line == '\n') {
            const size_t length = strcspn(line, " \n");
            int found = 0;
            for (size_t i = 0; i < sizeof allowed / sizeof *allowed; i++)
                found |= strlen(allowed[i]) == length && !strncmp(line, allowed[i], length);
            if (!found) fail_msg("tess_run called %.*s", (int)length, line);
            launches += !strncmp(line, "cuLaunch", 8) || !strncmp(line, "hipModuleLaunch", 15);
        }
        assert_int_equal(launches, s.info.n_merge_jobs ? 2 : 1);
        assert_ok(tess_wait(s.device, UINT64_MAX));
        close_scene(&s);
    }
}

/* ------------------------------------------------------------------ which image */

typedef struct choice {
    const char *arch, *image;
} choice;

static void test_images(void **state) {
    (void)state;
    static const choice cuda[] = {
        {"sm_61", NULL},      {"sm_70", "compute_70"}, {"sm_72", "compute_70"},
        {"sm_75", "sm_75"},   {"sm_80", "sm_80"},      {"sm_86", "sm_86"},
        {"sm_87", "sm_86"},   {"sm_89", "sm_89"},      {"sm_90", "sm_90"},
        {"sm_100", "sm_100"}, {"sm_103", "sm_100"},    {"sm_110", "compute_75"},
        {"sm_120", "sm_120"}, {"sm_121", "sm_120"},    {"sm_130", "compute_75"}};
    static const choice hip[] = {{"gfx906", "gfx906"}, {"gfx90a", "gfx90a"}, {"gfx1100", "gfx1100"},
                                 {"gfx1103", NULL},    {"gfx9", NULL},       {"gfx90", NULL}};
    const choice *all = is_cuda ? cuda : hip;
    const size_t count = is_cuda ? sizeof cuda / sizeof *cuda : sizeof hip / sizeof *hip;
    for (size_t n = 0; n < count; n++) {
        scene s;
        char said[96];
        set_arch(0, all[n].arch);
        const tess_status status =
            open_scene(&s, many_line, 0, NULL, is_cuda ? "cuda/portable" : NULL);
        if (all[n].image) {
            assert_ok(status);
            snprintf(said, sizeof said, "%s runs code for %s\n", all[n].arch, all[n].image);
            if (!strstr(s.logged, said)) fail_msg("'%s' was not logged in: %s", said, s.logged);
        } else {
            tess_kernel_info info = {.struct_size = sizeof info};
            assert_int_equal(status, TESS_ERROR_UNSUPPORTED);
            if (!strstr(tess_last_error(), "; there is some for "))
                fail_msg("%s", tess_last_error());
            for (uint32_t k = 0; tess_device_kernel(s.device, k, &info) == TESS_OK; k++)
                assert_int_equal(info.status, TESS_ERROR_UNAVAILABLE);
        }
        close_scene(&s);
    }
}

/* Which image a kernel that has one for each major version takes on which device, and at most how
 * many bytes of shared memory: `small` where a multiprocessor has 100 KiB, `medium` with 164,
 * `large` with 228. */
static void check_images(const char *kernel, int small, int medium, int large) {
    const struct {
        choice image;
        int bytes;
    } all[] = {
        {{"sm_75", NULL}, 0},          {{"sm_80", "sm_80"}, medium},  {{"sm_86", "sm_80"}, small},
        {{"sm_87", "sm_80"}, medium},  {{"sm_89", "sm_80"}, small},   {{"sm_90", "sm_90"}, large},
        {{"sm_100", "sm_100"}, large}, {{"sm_103", "sm_100"}, large}, {{"sm_110", NULL}, 0},
        {{"sm_120", "sm_120"}, small}, {{"sm_121", "sm_120"}, small}};
    if (!is_cuda) skip();
    for (size_t n = 0; n < sizeof all / sizeof *all; n++) {
        scene s;
        char said[128];
        set_arch(0, all[n].image.arch);
        start_log();
        const tess_status status = open_scene(&s, many_line, 0, NULL, kernel);
        control->logging = 0;
        if (all[n].image.image) {
            assert_ok(status);
            snprintf(said, sizeof said, "%s runs code for %s\n", all[n].image.arch,
                     all[n].image.image);
            if (!strstr(s.logged, said)) fail_msg("'%s' was not logged in: %s", said, s.logged);
            snprintf(said, sizeof said, "cuFuncSetAttribute 8 %d\n", all[n].bytes);
            if (!strstr(control->log, said))
                fail_msg("%s: no '%s' in: %s", all[n].image.arch, said, control->log);
        } else {
            assert_int_equal(status, TESS_ERROR_UNSUPPORTED);
            snprintf(
                said, sizeof said,
                "needs sm_80 or later, and has no device code for %s; there is some for sm_80 ",
                all[n].image.arch);
            if (!strstr(tess_last_error(), said)) fail_msg("%s", tess_last_error());
        }
        close_scene(&s);
    }
}

/* The kernel for Ampere and later has an image for each major version. It uses two pipeline stages
 * of shared memory where a multiprocessor still has room for two thread blocks. */
static void test_images_sm80(void **state) {
    (void)state;
    enum { ONE = 35840, TWO = 52224 }; /* bytes with head_dim 64 */
    check_images("cuda/sm80", ONE, TWO, TWO);
}

/* So has the kernel for few rows. Its thread blocks have the warps of up to four of least size, two
 * where a multiprocessor has little memory, and two stages, or more where there is room. */
static void test_images_decode(void **state) {
    (void)state;
    enum { EIGHT_TWO = 72704, SIXTEEN_TWO = 140288, SIXTEEN_THREE = 207872 };
    check_images("cuda/decode", EIGHT_TWO, SIXTEEN_TWO, SIXTEEN_THREE);
}

/* ------------------------------------------------------------------ devices */

/* Asks for one backend alone: drivers of other backends may be installed, and this test must not
 * open them. */
static int find_backend(tess_runtime *runtime, const char *name, tess_backend_info *info) {
    info->struct_size = sizeof *info;
    for (uint32_t n = 0; tess_runtime_backend(runtime, n, info) == TESS_OK; n++)
        if (strcmp(info->name, name) == 0) return 1;
    return 0;
}

static void test_listing(void **state) {
    (void)state;
    tess_runtime *runtime = test_runtime(1);
    tess_device *device = NULL;
    tess_backend_info listed;
    set_arch(0, is_cuda ? "sm_90" : "gfx1100");
    set_arch(1, is_cuda ? "sm_86" : "gfx90a");
    assert_true(find_backend(runtime, backend, &listed));
    assert_int_equal(listed.status, TESS_OK);
    assert_int_equal(listed.device_count, FAKE_DEVICES);
    for (int n = 0; n < FAKE_DEVICES; n++) {
        tess_device_info info = {.struct_size = sizeof info};
        const tess_device_desc desc = {.struct_size = sizeof desc, .id = id_of(n)};
        assert_ok(tess_device_open(runtime, &desc, &device));
        assert_ok(tess_device_query(device, &info));
        assert_string_equal(info.id, id_of(n));
        assert_string_equal(info.backend, backend);
        assert_int_equal(info.kind, TESS_DEVICE_GPU);
        assert_int_equal(info.compute_units, FAKE_UNITS);
        assert_true(info.memory_bytes > 0);
        assert_true(strlen(info.name) > 0 && strlen(info.driver) > 0);
        assert_string_equal(info.arch, control->arch[n]);
        tess_device_release(device);
    }
    tess_runtime_release(runtime);
}

/* Two devices of a backend at once, and one of them twice, whatever is current in the calling
 * thread, which stays current. */
static void test_two_devices(void **state) {
    (void)state;
    scene s[3];
    for (int current = NO_DEVICE; current < FAKE_DEVICES; current++) {
        if (current == NO_DEVICE && !is_cuda) continue;
        if (current != NO_DEVICE) driver->make_current(current);
        const int depth = control->depth;
        for (int n = 0; n < 3; n++) {
            assert_ok(open_scene(&s[n], split_line, n % 2, NULL, NULL));
            assert_int_equal(driver->current_device(), current);
            add_buffers(&s[n], 0);
            assert_int_equal(driver->current_device(), current);
        }
        for (int n = 0; n < 3; n++) {
            assert_ok(tess_run(s[n].plan, &s[n].run));
            assert_int_equal(driver->current_device(), current);
        }
        for (int n = 2; n >= 0; n--) {
            tess_kernel_info info = {.struct_size = sizeof info};
            assert_ok(tess_wait(s[n].device, 1000000000));
            assert_ok(tess_device_kernel(s[n].device, 0, &info));
            close_scene(&s[n]);
            assert_int_equal(driver->current_device(), current);
            assert_int_equal(control->depth, depth);
        }
    }
    leave_current();
}

/* A context of the application's: used, checked, and left alone. HIP has none. */
static void test_wrapping(void **state) {
    (void)state;
    tess_runtime *runtime = test_runtime(1);
    tess_device *device = NULL;
    tess_cuda_native native = {.struct_size = sizeof native};
    tess_device_desc desc = {.struct_size = sizeof desc, .id = "hip:0", .native = &native};
    if (!is_cuda) {
        assert_int_equal(tess_device_open(runtime, &desc, &device), TESS_ERROR_INVALID);
        assert_error_has("native");
        tess_runtime_release(runtime);
        return;
    }
    int (*create)(struct CUctx_st **, unsigned, int), (*destroy)(struct CUctx_st *);
    *(void **)&create = symbol("cuCtxCreate_v2", NULL);
    *(void **)&destroy = symbol("cuCtxDestroy_v2", NULL);
    assert_int_equal(create(&native.context, 0, 1), 0); /* of the second device, and current */
    const int depth = control->depth;
    scene s;
    assert_ok(open_scene(&s, split_line, 1, &native, NULL));
    add_buffers(&s, 0);
    assert_ok(tess_run(s.plan, &s.run));
    assert_ok(tess_wait(s.device, UINT64_MAX));
    close_scene(&s);
    assert_int_equal(control->depth, depth);
    desc.id = "cuda:0";
    assert_int_equal(tess_device_open(runtime, &desc, &device), TESS_ERROR_UNAVAILABLE);
    assert_error_has("another device");
    desc.id = "cuda";
    assert_ok(tess_device_open(runtime, &desc, &device));
    tess_device_info info = {.struct_size = sizeof info};
    assert_ok(tess_device_query(device, &info));
    assert_string_equal(info.id, "cuda:1");
    tess_device_release(device);
    assert_int_equal(control->depth, depth);
    assert_int_equal(driver->current_device(), 1);
    assert_int_equal(destroy(native.context), 0);
    tess_runtime_release(runtime);
}

/* ------------------------------------------------------------------ */

static int check_reason(const char *name, const char *text) {
    tess_runtime *runtime = test_runtime(1);
    tess_backend_info info = {.struct_size = sizeof info};
    const int found = find_backend(runtime, name, &info);
    const int failed = !found || info.status != TESS_ERROR_UNAVAILABLE || info.device_count != 0 ||
                       !strstr(info.reason, text);
    printf("%s: %s: %s\n", info.name, tess_status_name(info.status), info.reason);
    tess_runtime_release(runtime);
    return failed;
}

int main(int argc, char **argv) {
    if (argc == 4 && strcmp(argv[1], "--reason") == 0) return check_reason(argv[2], argv[3]);
    if (argc < 3) return 2;
    backend = argv[1];
    folder = argv[2];
    writes = argc > 3 && strcmp(argv[3], "--write") == 0;
    plain = argc > 3 && strcmp(argv[3], "--plain") == 0;
    is_cuda = strcmp(backend, "cuda") == 0;
    driver = fake_find(backend, &library);
    if (!driver) return 1;
    control = driver->control;
    /* The driver is initialised once for a process; what follows is the same every time. */
    tess_runtime *runtime = test_runtime(1);
    tess_backend_info info;
    find_backend(runtime, backend, &info);
    tess_runtime_release(runtime);
    const struct CMUnitTest tests[] = {
        TEST(test_listing),     TEST(test_two_devices),   TEST(test_wrapping), TEST(test_images),
        TEST(test_images_sm80), TEST(test_images_decode), TEST(test_portable), TEST(test_sm80),
        TEST(test_decode),      TEST(test_sm90),          TEST(test_serving),  TEST(test_gradients),
        TEST(test_turnover),    TEST(test_run_calls)};
    return cmocka_run_group_tests_name("calls of a driver", tests, NULL, NULL);
}
