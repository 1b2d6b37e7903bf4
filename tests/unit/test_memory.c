/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of devices and copies, on backends made for the test. */
#include "fixtures/fake_backend.h"

static void test_memory(void **state) {
    (void)state;
    tess_runtime *runtime = make_runtime();
    tess_device *device = open_device(runtime, "alpha");
    char out[32] = "", in[32] = "thirty-one characters and a zero";
    tess_buffer buffer = {.kind = 77, .handle = 5}, host_in = tess_host_buffer(in, sizeof in),
                host_out = tess_host_buffer(out, sizeof out);

    assert_status(TESS_ERROR_INVALID, tess_alloc(device, 1, NULL));
    assert_status(TESS_ERROR_OUT_OF_MEMORY, tess_alloc(device, UINT64_MAX, &buffer));
    assert_error_has("tess_alloc: size: 18446744073709551615");
    assert_status(TESS_ERROR_OUT_OF_MEMORY, tess_alloc(device, INT64_MAX, &buffer));
    assert_error_has("tess_alloc: alpha: fakeAlloc");
    assert_int_equal(77, buffer.kind);
    assert_status(TESS_OK, tess_alloc(device, 0, &buffer));
    assert_int_equal(TESS_BUFFER_NONE, buffer.kind);
    assert_int_equal(0, buffer.handle);
    assert_status(TESS_OK, tess_copy(device, buffer, buffer, 0));
    assert_status(TESS_OK, tess_free(device, &buffer));
    assert_int_equal(0, fake.live_buffers);

    assert_status(TESS_OK, tess_alloc(device, 32, &buffer));
    assert_status(TESS_OK, tess_copy(device, buffer, host_in, 32));
    assert_status(TESS_OK, tess_copy(device, host_out, buffer, 32));
    assert_memory_equal(in, out, 32);
    assert_status(TESS_OK, tess_wait(device, UINT64_MAX));
    assert_status(TESS_ERROR_TIMEOUT, tess_wait(device, 0));

    tess_buffer bad = buffer;
    bad.kind = TESS_BUFFER_OBJECT;
    assert_status(TESS_ERROR_INVALID, tess_free(device, &bad));
    assert_error_has("tess_free: buffer.kind: 3");
    bad = buffer;
    bad.reserved = 1;
    assert_status(TESS_ERROR_INVALID, tess_free(device, &bad));
    bad = buffer;
    bad.handle = 0;
    assert_status(TESS_ERROR_INVALID, tess_free(device, &bad));
    assert_status(TESS_ERROR_INVALID, tess_free(device, NULL));
    assert_status(TESS_OK, tess_free(device, &buffer));
    assert_int_equal(TESS_BUFFER_NONE, buffer.kind);
    assert_int_equal(0, fake.live_buffers);
    tess_device_release(device);
    tess_runtime_release(runtime);
}

static void test_copy_arguments(void **state) {
    (void)state;
    char data[64] = "";
    tess_buffer host = tess_host_buffer(data, sizeof data), memory;
    tess_runtime *runtime = make_runtime();
    tess_device *device = open_device(runtime, "alpha");
    assert_status(TESS_OK, tess_alloc(device, 64, &memory));
    fake.device_calls = 0;
#define COPY_FAILS(change, text)                                                          \
    do {                                                                                  \
        tess_buffer destination = memory, source = host;                                  \
        uint64_t bytes = 16;                                                              \
        change;                                                                           \
        assert_status(TESS_ERROR_INVALID, tess_copy(device, destination, source, bytes)); \
        assert_error_has("tess_copy: " text);                                             \
    } while (0)
    COPY_FAILS(destination.kind = TESS_BUFFER_NONE, "destination.kind: 0");
    COPY_FAILS(source.kind = TESS_BUFFER_OBJECT, "source.kind: 3");
    COPY_FAILS(source.kind = 99, "source.kind: 99");
    COPY_FAILS(source.reserved = 1, "source.reserved");
    COPY_FAILS(source.handle = 0, "source.handle");
    COPY_FAILS(bytes = 65, "destination.size: the copy ends at byte 65 of 64");
    COPY_FAILS(source.offset = 49, "source.size");
    COPY_FAILS(destination.offset = UINT64_MAX - 15, "destination.offset");
    COPY_FAILS((destination.offset = UINT64_MAX - 100, destination.size = 0), "destination.offset");
    COPY_FAILS((source.offset = UINT64_MAX - 100, source.size = 0), "source.offset");
    COPY_FAILS((destination = host, destination.offset = 32),
               "source.kind: both buffers are host memory");
    COPY_FAILS((source = memory, source.offset = 15), "source: overlaps the destination");
    COPY_FAILS((source = memory, destination.offset = 15), "source: overlaps the destination");
    COPY_FAILS((source = memory, source.size = 0, source.handle += 8),
               "source: overlaps the destination");
    assert_int_equal(0, fake.device_calls);
    tess_buffer upper = memory;
    upper.offset = 16;
    assert_status(TESS_OK, tess_copy(device, memory, upper, 16));
    assert_status(TESS_OK, tess_free(device, &memory));
    tess_device_release(device);

    /* On a device of the host kind both sides are host memory; on one with objects equal offsets in
     * two objects do not overlap. */
    device = open_device(runtime, "beta");
    tess_buffer half = host;
    half.offset = 32;
    assert_status(TESS_OK, tess_copy(device, half, host, 32));
    tess_device_release(device);
    device = open_device(runtime, "gamma");
    tess_buffer one, two;
    assert_status(TESS_OK, tess_alloc(device, 64, &one));
    assert_status(TESS_OK, tess_alloc(device, 64, &two));
    assert_status(TESS_OK, tess_copy(device, one, host, 64));
    assert_status(TESS_OK, tess_copy(device, one, two, 64));
    assert_status(TESS_ERROR_INVALID, tess_copy(device, one, one, 64));
    assert_status(TESS_OK, tess_free(device, &one));
    assert_status(TESS_OK, tess_free(device, &two));
    tess_device_release(device);
    tess_runtime_release(runtime);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_memory, fake_setup),
        cmocka_unit_test_setup(test_copy_arguments, fake_setup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
