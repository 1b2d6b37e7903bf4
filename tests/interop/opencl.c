/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An application that owns its OpenCL objects: Tessera runs on its context, its queues and its
 * buffers, waits for its events and gives one back. Every test runs on every device that the
 * application finds.
 */
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tessera/tessera_opencl.h>

#include "common/testlib.h"
#include "parts.h"
#include "reference.h"

enum { MOST_DEVICES = 4 };

/* What such an application holds. */
typedef struct app {
    cl_device_id device_id;
    cl_context context;
    cl_command_queue queue;
    tessera_side t;
    void *inputs[3];
} app;

#define CL(call) assert_int_equal((call), CL_SUCCESS)

static const char line[] = "pattern=s2 block=16 local=2 stride=3 heads=4 kv_heads=2 q_len=70 "
                           "kv_len=333 head_dim=72 dtype=f16 kv_split=3 batch=2";

static cl_command_queue new_queue(const app *a, cl_command_queue_properties properties) {
    cl_int code;
    cl_command_queue queue = clCreateCommandQueue(a->context, a->device_id, properties, &code);
    CL(code);
    return queue;
}

static tess_device *wrap(const app *a, const char *id, cl_command_queue queue) {
    tess_opencl_native native = {.struct_size = sizeof native,
                                 .context = a->context,
                                 .device = a->device_id,
                                 .queue = queue};
    tess_device_desc desc = {.struct_size = sizeof desc, .id = id, .native = &native};
    tess_device *device = NULL;
    assert_ok(tess_device_open(a->t.runtime, &desc, &device));
    return device;
}

static int setup(void **state) {
    app *a = *state;
    cl_int code;
    a->context = clCreateContext(NULL, 1, &a->device_id, NULL, NULL, &code);
    CL(code);
    a->queue = new_queue(a, 0);
    a->t.runtime = test_runtime(2);
    a->t.device = wrap(a, "opencl", a->queue);
    parts_prepare(&a->t, line, NULL, 0, 1);
    for (int n = 0; n < 3; n++) {
        a->inputs[n] = malloc(a->t.parts.bytes[n]);
        assert_non_null(a->inputs[n]);
        fill_normal(a->t.p.dtype, a->inputs[n], (int64_t)a->t.parts.bytes[n] / 2, 5, (uint32_t)n);
    }
    return 0;
}

static int teardown(void **state) {
    app *a = *state;
    const cl_device_id device_id = a->device_id;
    parts_release(&a->t);
    for (int n = 0; n < 3; n++) free(a->inputs[n]);
    CL(clReleaseCommandQueue(a->queue));
    CL(clReleaseContext(a->context));
    memset(a, 0, sizeof *a);
    a->device_id = device_id;
    return 0;
}

/* ------------------------------------------------------------------ one run */

typedef struct job {
    unsigned char *image;
    uint64_t size;
    cl_mem mem;
    tess_run_desc run;
} job;

/* One buffer of the application's with everything in it. */
static void job_begin(const app *a, job *j) {
    cl_int code;
    j->size = a->t.parts.size;
    j->image = malloc(j->size);
    assert_non_null(j->image);
    parts_fill(&a->t.parts, j->image);
    for (int n = 0; n < 3; n++)
        memcpy(j->image + a->t.parts.offset[n], a->inputs[n], a->t.parts.bytes[n]);
    j->mem = clCreateBuffer(a->context, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, j->size, j->image,
                            &code);
    CL(code);
    j->run = parts_run(&a->t.parts, a->t.plan,
                       (tess_buffer){.kind = TESS_BUFFER_OBJECT,
                                     .handle = (uint64_t)(uintptr_t)j->mem,
                                     .size = j->size});
}

/* Checks what came back against the reference, and that nothing else changed. */
static void job_check(const app *a, const job *j, const unsigned char *got) {
    parts_check_rest(&a->t.parts, got, j->image);
    parts_check_rows(&a->t.p, a->inputs, got + a->t.parts.offset[3], got + a->t.parts.offset[4]);
}

/* Reads the buffer on a queue of the application's, behind `event` if that is not NULL, and checks
 * it. */
static void job_end(const app *a, job *j, cl_command_queue queue, cl_event event) {
    unsigned char *got = malloc(j->size);
    assert_non_null(got);
    CL(clEnqueueReadBuffer(queue, j->mem, CL_TRUE, 0, j->size, got, event ? 1 : 0,
                           event ? &event : NULL, NULL));
    job_check(a, j, got);
    free(got);
    free(j->image);
    CL(clReleaseMemObject(j->mem));
}

static void job_drop(job *j) {
    free(j->image);
    CL(clReleaseMemObject(j->mem));
}

static tess_stream submit_to(cl_command_queue queue, const tess_opencl_submit *extra) {
    return (tess_stream){
        .kind = TESS_STREAM_SUBMIT, .handle = (uint64_t)(uintptr_t)queue, .extra = extra};
}

/* ------------------------------------------------------------------ the ways */

/* The application's queue is the device's own: its later commands see the result without any
 * wait. */
static void test_own_queue(void **state) {
    app *a = *state;
    job j;
    job_begin(a, &j);
    assert_ok(tess_run(a->t.plan, &j.run));
    job_end(a, &j, a->queue, NULL);
    job_begin(a, &j);
    assert_ok(tess_run(a->t.plan, &j.run));
    assert_ok(tess_wait(a->t.device, 60000000000u));
    job_end(a, &j, a->queue, NULL);
}

/* No work starts before the wait list is complete, and the returned event marks the end of the
 * work. */
static void test_events(void **state) {
    app *a = *state;
    cl_int code, done = CL_QUEUED;
    cl_event gate = clCreateUserEvent(a->context, &code), end = NULL;
    CL(code);
    cl_command_queue queue = new_queue(a, 0), other = new_queue(a, 0);
    struct _cl_event *waits[2] = {gate, gate};
    const tess_opencl_submit extra = {
        .struct_size = sizeof extra, .n_waits = 2, .waits = waits, .event = &end};
    job j;
    job_begin(a, &j);
    j.run.stream = submit_to(queue, &extra);
    assert_ok(tess_run(a->t.plan, &j.run));
    assert_non_null(end);
    CL(clFlush(queue));
    for (int n = 0; n < 20; n++) {
        CL(clGetEventInfo(end, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof done, &done, NULL));
        assert_true(done > CL_COMPLETE);
    }
    CL(clSetUserEventStatus(gate, CL_COMPLETE));
    job_end(a, &j, other, end);
    CL(clGetEventInfo(end, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof done, &done, NULL));
    assert_int_equal(done, CL_COMPLETE);
    CL(clReleaseEvent(end));
    CL(clReleaseEvent(gate));
    CL(clReleaseCommandQueue(queue));
    CL(clReleaseCommandQueue(other));
}

/* On a queue that keeps no order the merges still come after their parts. */
static void test_out_of_order(void **state) {
    app *a = *state;
    cl_int code;
    cl_command_queue queue = clCreateCommandQueue(a->context, a->device_id,
                                                  CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE, &code);
    if (code == CL_INVALID_QUEUE_PROPERTIES) skip();
    CL(code);
    for (int n = 0; n < 10; n++) {
        cl_event end = NULL;
        const tess_opencl_submit extra = {.struct_size = sizeof extra, .event = &end};
        job j;
        job_begin(a, &j);
        j.run.stream = submit_to(queue, n % 2 ? &extra : NULL);
        assert_ok(tess_run(a->t.plan, &j.run));
        if (n % 2)
            assert_non_null(end);
        else
            CL(clFinish(queue));
        job_end(a, &j, queue, end);
        if (end) CL(clReleaseEvent(end));
    }
    CL(clReleaseCommandQueue(queue));
}

/* Ranges of jobs, each on another queue, chained by events. */
static void test_ranges_over_queues(void **state) {
    app *a = *state;
    cl_command_queue queues[2] = {new_queue(a, 0), new_queue(a, 0)};
    cl_event last = NULL;
    job j;
    job_begin(a, &j);
    for (uint64_t first = 0, n = 0; first < a->t.info.n_jobs; first += 5, n++) {
        struct _cl_event *waits[1] = {last};
        cl_event end = NULL;
        const tess_opencl_submit extra = {
            .struct_size = sizeof extra, .n_waits = last ? 1 : 0, .waits = waits, .event = &end};
        j.run.first_job = first;
        j.run.job_count = a->t.info.n_jobs - first < 5 ? a->t.info.n_jobs - first : 5;
        j.run.stream = submit_to(queues[n % 2], &extra);
        assert_ok(tess_run(a->t.plan, &j.run));
        assert_non_null(end);
        CL(clFlush(queues[n % 2]));
        if (last) CL(clReleaseEvent(last));
        last = end;
    }
    job_end(a, &j, queues[0], last);
    CL(clReleaseEvent(last));
    for (int n = 0; n < 2; n++) CL(clReleaseCommandQueue(queues[n]));
}

static void test_times(void **state) {
    app *a = *state;
    double seconds = -1;
    job j;
    job_begin(a, &j);
    j.run.device_seconds = &seconds;
    /* the application's queue takes no times */
    assert_error(tess_run(a->t.plan, &j.run), TESS_ERROR_UNSUPPORTED, "tess_run", NULL);
    cl_command_queue queue = new_queue(a, CL_QUEUE_PROFILING_ENABLE);
    j.run.stream = submit_to(queue, NULL);
    assert_ok(tess_run(a->t.plan, &j.run));
    assert_true(seconds > 0 && seconds < 600);
    job_end(a, &j, queue, NULL);
    CL(clReleaseCommandQueue(queue));
}

/* ------------------------------------------------------------------ life */

static cl_uint context_references(cl_context context) {
    cl_uint count = 0;
    CL(clGetContextInfo(context, CL_CONTEXT_REFERENCE_COUNT, sizeof count, &count, NULL));
    return count;
}

static cl_uint queue_references(cl_command_queue queue) {
    cl_uint count = 0;
    CL(clGetCommandQueueInfo(queue, CL_QUEUE_REFERENCE_COUNT, sizeof count, &count, NULL));
    return count;
}

/* A wrapped device holds what it wraps, and gives it back. */
static void test_references(void **state) {
    app *a = *state;
    const cl_uint context = context_references(a->context), queue = queue_references(a->queue);
    for (int n = 0; n < 20; n++) {
        tess_device *device = wrap(a, "opencl", n % 2 ? a->queue : NULL);
        tess_buffer buffer;
        if (n % 2) assert_true(queue_references(a->queue) > queue);
        assert_true(context_references(a->context) > context);
        tess_plan *plan = parts_plan(&a->t.p, a->t.layout, device, NULL, 3);
        assert_ok(tess_alloc(device, 1000, &buffer));
        assert_ok(tess_free(device, &buffer));
        tess_device_release(device);
        tess_plan_release(plan);
    }
    assert_int_equal(context_references(a->context), context);
    assert_int_equal(queue_references(a->queue), queue);
}

/* The application's own references may go first. */
static void test_release_order(void **state) {
    app *a = *state;
    cl_int code;
    cl_context context = a->context;
    a->context = clCreateContext(NULL, 1, &a->device_id, NULL, NULL, &code);
    CL(code);
    tess_device *device = wrap(a, "opencl", NULL);
    CL(clReleaseContext(a->context));
    float data[64] = {0}, back[64] = {1};
    for (int n = 0; n < 64; n++) data[n] = (float)n;
    tess_buffer buffer = test_upload(device, data, sizeof data);
    test_download(device, buffer, back, sizeof back);
    assert_memory_equal(data, back, sizeof data);
    assert_ok(tess_free(device, &buffer));
    tess_device_release(device);
    a->context = context;
}

/* ------------------------------------------------------------------ several at once */

/* The library's own device, the wrapped one and the CPU, in one process. */
static void test_beside_other_devices(void **state) {
    app *a = *state;
    tess_device_info info = {.struct_size = sizeof info};
    assert_ok(tess_device_query(a->t.device, &info));
    tess_device *devices[2] = {NULL, test_cpu(a->t.runtime)};
    tess_device_desc desc = {.struct_size = sizeof desc, .id = info.id};
    assert_ok(tess_device_open(a->t.runtime, &desc, &devices[0]));
    job j;
    job_begin(a, &j);
    assert_ok(tess_run(a->t.plan, &j.run));
    for (int d = 0; d < 2; d++) {
        const void *const inputs[3] = {a->inputs[0], a->inputs[1], a->inputs[2]};
        unsigned char *got = malloc(j.size);
        assert_non_null(got);
        memcpy(got, j.image, j.size);
        parts_run_elsewhere(&a->t.parts, &a->t.p, a->t.layout, devices[d], NULL, inputs,
                            got + a->t.parts.offset[3], got + a->t.parts.offset[4]);
        job_check(a, &j, got);
        free(got);
        tess_device_release(devices[d]);
    }
    job_end(a, &j, a->queue, NULL);
}

enum { THREADS = 6, ROUNDS = 5 };

typedef struct worker {
    app *a;
    tess_plan *plan;
    job j;
    cl_command_queue queue;
    pthread_t thread;
    int busy, failed;
} worker;

static void *run_often(void *argument) {
    worker *w = argument;
    for (int n = 0; n < ROUNDS; n++) {
        const tess_status status = tess_run(w->plan, &w->j.run);
        if (status == TESS_ERROR_BUSY)
            w->busy++, n--;
        else if (status != TESS_OK)
            w->failed = 1;
    }
    return NULL;
}

/* One plan and many threads, each with its own buffer and some with their own queue. With one run
 * in flight, some get BUSY and try again. */
static void test_threads(void **state) {
    app *a = *state;
    for (uint32_t in_flight = 1; in_flight <= THREADS; in_flight += THREADS - 1) {
        worker workers[THREADS];
        tess_plan *plan = parts_plan(&a->t.p, a->t.layout, a->t.device, NULL, in_flight);
        memset(workers, 0, sizeof workers);
        for (int n = 0; n < THREADS; n++) {
            workers[n].a = a;
            workers[n].plan = plan;
            job_begin(a, &workers[n].j);
            workers[n].queue = n % 2 ? new_queue(a, 0) : NULL;
            if (n % 2) workers[n].j.run.stream = submit_to(workers[n].queue, NULL);
            assert_int_equal(pthread_create(&workers[n].thread, NULL, run_often, &workers[n]), 0);
        }
        for (int n = 0; n < THREADS; n++)
            assert_int_equal(pthread_join(workers[n].thread, NULL), 0);
        for (int n = 0; n < THREADS; n++) {
            assert_false(workers[n].failed);
            if (in_flight == THREADS) assert_int_equal(workers[n].busy, 0);
            job_end(a, &workers[n].j, workers[n].queue ? workers[n].queue : a->queue, NULL);
            if (workers[n].queue) CL(clReleaseCommandQueue(workers[n].queue));
        }
        tess_plan_release(plan);
    }
}

/* ------------------------------------------------------------------ refusals */

static tess_status try_wrap(const app *a, const tess_opencl_native *native) {
    tess_device_desc desc = {.struct_size = sizeof desc, .id = "opencl", .native = native};
    tess_device *device = (tess_device *)(uintptr_t)1;
    const tess_status status = tess_device_open(a->t.runtime, &desc, &device);
    assert_true(status != TESS_OK && device == (tess_device *)(uintptr_t)1);
    return status;
}

static void test_bad_natives(void **state) {
    app *a = *state;
    const tess_opencl_native good = {
        .struct_size = sizeof good, .context = a->context, .device = a->device_id};
    tess_opencl_native native = good;
    native.struct_size = 8;
    assert_int_equal(try_wrap(a, &native), TESS_ERROR_VERSION);
    assert_error_has("native.struct_size");
    native = good;
    native.reserved = 1;
    assert_int_equal(try_wrap(a, &native), TESS_ERROR_INVALID);
    assert_error_has("native.reserved");
    native = good;
    native.context = NULL;
    assert_int_equal(try_wrap(a, &native), TESS_ERROR_INVALID);
    assert_error_has("native.context");
    native = good;
    native.device = NULL;
    assert_int_equal(try_wrap(a, &native), TESS_ERROR_INVALID);
    assert_error_has("native.device");
    cl_int code;
    native = good;
    native.queue = clCreateCommandQueue(a->context, a->device_id,
                                        CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE, &code);
    if (code == CL_SUCCESS) {
        assert_int_equal(try_wrap(a, &native), TESS_ERROR_INVALID);
        assert_error_has("in order");
        CL(clReleaseCommandQueue(native.queue));
    }
    app other = *a;
    other.context = clCreateContext(NULL, 1, &a->device_id, NULL, NULL, &code);
    CL(code);
    native.queue = new_queue(&other, 0);
    assert_int_equal(try_wrap(a, &native), TESS_ERROR_INVALID);
    assert_error_has("native.queue");
    CL(clReleaseCommandQueue(native.queue));
    CL(clReleaseContext(other.context));
}

static void test_bad_streams(void **state) {
    app *a = *state;
    cl_int code;
    job j;
    job_begin(a, &j);
    j.run.stream = (tess_stream){.kind = TESS_STREAM_RECORD, .handle = 1};
    assert_error(tess_run(a->t.plan, &j.run), TESS_ERROR_UNSUPPORTED, "tess_run", NULL);
    assert_error_has("stream.kind");
    j.run.stream = submit_to(NULL, NULL);
    assert_error(tess_run(a->t.plan, &j.run), TESS_ERROR_INVALID, "tess_run", NULL);
    assert_error_has("stream.handle");
    app other = *a;
    other.context = clCreateContext(NULL, 1, &a->device_id, NULL, NULL, &code);
    CL(code);
    cl_command_queue foreign = new_queue(&other, 0);
    j.run.stream = submit_to(foreign, NULL);
    assert_error(tess_run(a->t.plan, &j.run), TESS_ERROR_INVALID, "tess_run", NULL);
    assert_error_has("stream.handle");
    tess_opencl_submit extra = {.struct_size = 4};
    j.run.stream = submit_to(a->queue, &extra);
    assert_error(tess_run(a->t.plan, &j.run), TESS_ERROR_VERSION, "tess_run", NULL);
    extra = (tess_opencl_submit){.struct_size = sizeof extra, .n_waits = 1};
    assert_error(tess_run(a->t.plan, &j.run), TESS_ERROR_INVALID, "tess_run", NULL);
    assert_error_has("waits");
    /* Host memory is never copied in silence. */
    j.run.stream = (tess_stream){0};
    const tess_run_desc good = j.run;
    j.run.q.buffer = tess_host_buffer(a->inputs[0], a->t.parts.bytes[0]);
    assert_error(tess_run(a->t.plan, &j.run), TESS_ERROR_INVALID, "tess_run", "q.buffer");
    j.run = good;
    j.run.q.buffer.offset++; /* half an element */
    assert_error(tess_run(a->t.plan, &j.run), TESS_ERROR_INVALID, "tess_run", "q.buffer");
    /* After all that the plan is as good as before. */
    j.run = good;
    assert_ok(tess_run(a->t.plan, &j.run));
    job_end(a, &j, a->queue, NULL);
    CL(clReleaseCommandQueue(foreign));
    CL(clReleaseContext(other.context));
}

/* The largest buffer is the device's limit, which the message names. */
static void test_too_much_memory(void **state) {
    app *a = *state;
    cl_ulong most = 0;
    char text[32];
    tess_buffer buffer;
    CL(clGetDeviceInfo(a->device_id, CL_DEVICE_MAX_MEM_ALLOC_SIZE, sizeof most, &most, NULL));
    snprintf(text, sizeof text, "%llu", (unsigned long long)most);
    assert_error(tess_alloc(a->t.device, most + 1, &buffer), TESS_ERROR_OUT_OF_MEMORY, "tess_alloc",
                 NULL);
    assert_error_has(text);
    assert_error(tess_alloc(a->t.device, UINT64_MAX, &buffer), TESS_ERROR_OUT_OF_MEMORY,
                 "tess_alloc", NULL);
    job j;
    job_begin(a, &j);
    assert_ok(tess_run(a->t.plan, &j.run));
    job_drop(&j);
}

int main(void) {
    static app apps[MOST_DEVICES];
    cl_platform_id platforms[8];
    cl_uint n_platforms = 0;
    int n_apps = 0, failed = 0;
    if (clGetPlatformIDs(8, platforms, &n_platforms) != CL_SUCCESS) n_platforms = 0;
    for (cl_uint n = 0; n < n_platforms && n < 8; n++) {
        cl_device_id devices[MOST_DEVICES];
        cl_uint n_devices = 0;
        if (clGetDeviceIDs(platforms[n], CL_DEVICE_TYPE_ALL, MOST_DEVICES, devices, &n_devices) !=
            CL_SUCCESS)
            continue;
        for (cl_uint d = 0; d < n_devices && d < MOST_DEVICES && n_apps < MOST_DEVICES; d++)
            apps[n_apps++].device_id = devices[d];
    }
    if (n_apps == 0) {
        const char *require = getenv("TESSERA_REQUIRE");
        printf("skipped: there is no OpenCL device\n");
        return require && strstr(require, "opencl") ? 1 : 77;
    }
    for (int n = 0; n < n_apps; n++) {
        char name[256] = "";
        CL(clGetDeviceInfo(apps[n].device_id, CL_DEVICE_NAME, sizeof name - 1, name, NULL));
        const struct CMUnitTest tests[] = {
            TEST_ON(&apps[n], test_own_queue),     TEST_ON(&apps[n], test_events),
            TEST_ON(&apps[n], test_out_of_order),  TEST_ON(&apps[n], test_ranges_over_queues),
            TEST_ON(&apps[n], test_times),         TEST_ON(&apps[n], test_references),
            TEST_ON(&apps[n], test_release_order), TEST_ON(&apps[n], test_beside_other_devices),
            TEST_ON(&apps[n], test_threads),       TEST_ON(&apps[n], test_bad_natives),
            TEST_ON(&apps[n], test_bad_streams),   TEST_ON(&apps[n], test_too_much_memory),
        };
        failed += cmocka_run_group_tests_name(name, tests, NULL, NULL);
    }
    return failed != 0;
}
