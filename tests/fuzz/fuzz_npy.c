/* SPDX-License-Identifier: Apache-2.0 */
/* The reader of .npy files: what it accepts has exactly the bytes that its shape says. */
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "npy.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    npy_array array;
    char error[256] = "";
    if (npy_parse(&array, data, size, error, sizeof error) != 0) {
        FUZZ_REQUIRE(error[0] && !strchr(error, '\n') && strlen(error) < sizeof error);
        return 0;
    }
    size_t bytes = npy_type_size(array.type);
    FUZZ_REQUIRE(array.n_dims >= 0 && array.n_dims <= NPY_MAX_DIMS && bytes >= 1 && bytes <= 4 &&
                 npy_type_name(array.type));
    for (int d = 0; d < array.n_dims; d++) {
        FUZZ_REQUIRE(array.shape[d] >= 0);
        FUZZ_REQUIRE(!__builtin_mul_overflow(bytes, (size_t)array.shape[d], &bytes));
    }
    FUZZ_REQUIRE(bytes == array.bytes && bytes <= size);
    /* Every byte can be read, and is the file's. */
    FUZZ_REQUIRE(bytes == 0 || memcmp(array.data, data + size - bytes, bytes) == 0);
    npy_free(&array);
    return 0;
}
