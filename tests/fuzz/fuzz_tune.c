/* SPDX-License-Identifier: Apache-2.0 */
/* Tune files: what is read can be listed, written again and read as the same, and plans with it are
 * made or refused. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <tessera/tessera.h>

#include "fuzz.h"

static void quiet(void *user, const char *line) {
    (void)user;
    FUZZ_REQUIRE(!strchr(line, '\n'));
}

/* A runtime with a tune file of these bytes, or NULL. */
static tess_runtime *read_back(const void *data, size_t size) {
    static int file = -1;
    char path[64];
    if (file < 0) file = memfd_create("tune", 0);
    FUZZ_REQUIRE(file >= 0 && ftruncate(file, 0) == 0 &&
                 pwrite(file, data, size, 0) == (ssize_t)size);
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    tess_runtime_desc desc = {.struct_size = sizeof desc,
                              .log = quiet,
                              .verbose = "dispatch",
                              .tune_file = path,
                              .cpu_threads = 1};
    desc.backend = desc.kernel = desc.cache_dir = desc.backend_path = "";
    tess_runtime *runtime = NULL;
    const tess_status status = tess_runtime_create(&desc, &runtime);
    FUZZ_REQUIRE(status == TESS_OK || status == TESS_ERROR_CORRUPT ||
                 status == TESS_ERROR_VERSION || status == TESS_ERROR_INVALID);
    FUZZ_REQUIRE((status == TESS_OK) == (runtime != NULL));
    FUZZ_REQUIRE(runtime || (strstr(tess_last_error(), "tess_runtime_create: tune_file: ") &&
                             !strchr(tess_last_error(), '\n')));
    return runtime;
}

/* Rules of the file, written as a file of its own. */
static size_t write_again(tess_runtime *runtime, char **text) {
    size_t size = 0;
    FILE *out = open_memstream(text, &size);
    FUZZ_REQUIRE(out);
    fputs("tessera-tune 1\n", out);
    tess_rule_info rule = {.struct_size = sizeof rule};
    for (uint32_t n = 0; tess_runtime_rule(runtime, NULL, n, &rule) == TESS_OK && !rule.built_in;
         n++) {
        FUZZ_REQUIRE(rule.text[0] && rule.text[0] != ' ' && strstr(rule.text, "kernel=") &&
                     rule.line > 1 && rule.basis <= TESS_BASIS_REASONED);
        fprintf(out, "%s\n", rule.text);
    }
    FUZZ_REQUIRE(fclose(out) == 0);
    return size;
}

/* Whatever the file prefers, a plan that is legal is made. */
static void plan(tess_runtime *runtime) {
    const tess_pattern pattern = {.struct_size = sizeof pattern,
                                  .kind = TESS_PATTERN_S2,
                                  .block = 16,
                                  .local = 1,
                                  .stride = 2};
    const tess_layout_desc layout_desc = {.struct_size = sizeof layout_desc,
                                          .pattern = &pattern,
                                          .n_heads = 2,
                                          .n_kv_heads = 2,
                                          .max_tokens = 64};
    const tess_plan_desc plan_desc = {.struct_size = sizeof plan_desc,
                                      .dtype = TESS_BF16,
                                      .head_dim = 64,
                                      .batch = 1,
                                      .q_len = 8,
                                      .kv_len = 64};
    const tess_device_desc device_desc = {.struct_size = sizeof device_desc, .id = "cpu"};
    tess_device *device = NULL;
    tess_layout *layout = NULL;
    tess_plan *made = NULL;
    FUZZ_REQUIRE(tess_device_open(runtime, &device_desc, &device) == TESS_OK);
    FUZZ_REQUIRE(tess_layout_create(runtime, &layout_desc, &layout) == TESS_OK);
    FUZZ_REQUIRE(tess_plan_create(device, layout, &plan_desc, &made) == TESS_OK);
    tess_plan_release(made);
    tess_layout_release(layout);
    tess_device_release(device);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    tess_runtime *runtime = read_back(data, size);
    if (!runtime) return 0;
    char *text = NULL, *again = NULL;
    const size_t length = write_again(runtime, &text);
    plan(runtime);
    tess_runtime_release(runtime);
    runtime = read_back(text, length);
    FUZZ_REQUIRE(runtime != NULL);
    FUZZ_REQUIRE(write_again(runtime, &again) == length && memcmp(text, again, length) == 0);
    tess_runtime_release(runtime);
    free(text);
    free(again);
    return 0;
}
