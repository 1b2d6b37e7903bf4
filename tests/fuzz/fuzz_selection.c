/* SPDX-License-Identifier: Apache-2.0 */
/* The grammar that chooses a device, as TESSERA_BACKEND, --backend and tess_device_desc.id take it,
 * and that of the other settings. */
#include <stdlib.h>
#include <string.h>

#include <tessera/tessera.h>

#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static tess_runtime *runtime;
    if (size < 1) return 0;
    if (!runtime) {
        tess_runtime_desc desc = {
            .struct_size = sizeof desc, .log = fuzz_log_nothing, .cpu_threads = 1};
        desc.backend = desc.kernel = desc.verbose = desc.cache_dir = desc.tune_file =
            desc.backend_path = "";
        FUZZ_REQUIRE(tess_runtime_create(&desc, &runtime) == TESS_OK);
    }
    char *text = malloc(size);
    FUZZ_REQUIRE(text != NULL);
    memcpy(text, data + 1, size - 1);
    text[size - 1] = 0;
    tess_status status;
    if (data[0] % 4 == 0) {
        tess_device_desc desc = {.struct_size = sizeof desc, .id = text};
        tess_device *device = NULL;
        status = tess_device_open(runtime, &desc, &device);
        FUZZ_REQUIRE(status == TESS_OK || status == TESS_ERROR_INVALID ||
                     status == TESS_ERROR_UNAVAILABLE);
        FUZZ_REQUIRE((status == TESS_OK) == (device != NULL));
        tess_device_release(device);
    } else {
        tess_runtime_desc desc = {
            .struct_size = sizeof desc, .log = fuzz_log_nothing, .cpu_threads = 1};
        tess_runtime *made = NULL;
        desc.backend = desc.kernel = desc.verbose = desc.cache_dir = desc.tune_file =
            desc.backend_path = "";
        if (data[0] % 4 == 1)
            desc.backend = text;
        else if (data[0] % 4 == 2)
            desc.verbose = text;
        else
            desc.kernel = text;
        status = tess_runtime_create(&desc, &made);
        FUZZ_REQUIRE(status == TESS_OK || status == TESS_ERROR_INVALID);
        tess_runtime_release(made);
    }
    FUZZ_REQUIRE(status == TESS_OK || (tess_last_error()[0] && !strchr(tess_last_error(), '\n')));
    free(text);
    return 0;
}
