/* SPDX-License-Identifier: Apache-2.0 */
/* Structures of applications that backends read: every size but the known one and longer ones
 * with a tail of zeros is refused, and nothing behind struct_size is read. */
#include <stdlib.h>
#include <string.h>

#include "common/testlib.h"
#include "extra.h"
#include "fixtures/host_message.h"

static const tess_host host = {
    .abi = TESS_BACKEND_ABI, .struct_size = sizeof host, .fail = host_fail};

typedef struct extra {
    uint32_t struct_size, reserved;
    void *pointer;
    uint64_t number;
} extra;

enum { KNOWN = sizeof(extra), TAIL = 64 };

/* A structure of `size` bytes in memory that ends there. */
static unsigned char *make(uint32_t size, const extra *from) {
    unsigned char *bytes = calloc(1, size);
    assert_non_null(bytes);
    memcpy(bytes, from, size < KNOWN ? size : KNOWN);
    memcpy(bytes, &size, sizeof size);
    return bytes;
}

static void test_every_size(void **state) {
    (void)state;
    const extra from = {.reserved = 1, .pointer = host_message, .number = 2};
    for (uint32_t size = 4; size <= KNOWN + TAIL; size++) {
        unsigned char *bytes = make(size, &from);
        extra copy = {0};
        const int legal = size >= KNOWN && size % sizeof(void *) == 0;
        const tess_status status = tess_extra_read(&host, "stream.extra", bytes, &copy, KNOWN);
        if (status != (legal ? TESS_OK : TESS_ERROR_VERSION))
            fail_msg("%u bytes of %d: %s", size, (int)KNOWN, tess_status_name(status));
        assert_true(copy.pointer == (legal ? host_message : NULL));
        if (!legal) assert_memory_equal(host_message, "stream.extra.struct_size: ", 26);
        /* each byte that this version does not know */
        for (uint32_t at = KNOWN; legal && at < size; at++) {
            bytes[at] = 1;
            assert_int_equal(tess_extra_read(&host, "native", bytes, &copy, KNOWN),
                             TESS_ERROR_VERSION);
            assert_memory_equal(host_message, "native.struct_size: ", 20);
            bytes[at] = 0;
        }
        free(bytes);
    }
}

/* A size that was never set: reading that far would leave the caller's memory. */
static void test_sizes_of_no_version(void **state) {
    (void)state;
    static const uint32_t sizes[] = {
        0, 1, KNOWN + 4096 + sizeof(void *), 1u << 20, UINT32_MAX - 7, UINT32_MAX};
    for (size_t n = 0; n < sizeof sizes / sizeof *sizes; n++) {
        extra from = {.struct_size = sizes[n]}, copy;
        assert_int_equal(tess_extra_read(&host, "native", &from, &copy, KNOWN), TESS_ERROR_VERSION);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {TEST(test_every_size), TEST(test_sizes_of_no_version)};
    return cmocka_run_group_tests_name("structures for backends", tests, NULL, NULL);
}
