/* SPDX-License-Identifier: Apache-2.0 */
/* Structures of other versions: missing fields of shorter ones count as zero, longer ones are
 * accepted while their tail is zero, and the library never writes past struct_size. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/testlib.h"

enum { ROOM = 2048, TAIL = 64 };

typedef struct handles {
    tess_runtime *runtime;
    tess_device *device;
    tess_layout *layout;
    tess_plan *plan, *empty; /* the latter has no sequences, and can append */
    tess_run_desc run;
    float *memory;
} handles;

static handles h;

static void fill_plan(tess_plan_desc *d) {
    memset(d, 0, sizeof *d);
    d->struct_size = sizeof *d;
    d->head_dim = 8;
    d->batch = 1;
    d->q_len = 4;
    d->kv_len = 40;
    d->kernel = ""; /* a pointer at the end, of which a cut leaves a half */
}

static int setup(void **state) {
    (void)state;
    tess_pattern pattern;
    tess_layout_desc layout;
    tess_plan_desc plan;
    h.runtime = test_runtime(1);
    h.device = test_cpu(h.runtime);
    pattern = test_s2_pattern(16, 2, 3);
    layout = test_layout_desc(&pattern, 2, 1, 100);
    assert_ok(tess_layout_create(h.runtime, &layout, &h.layout));
    fill_plan(&plan);
    assert_ok(tess_plan_create(h.device, h.layout, &plan, &h.plan));
    plan.batch = 0;
    plan.flags = TESS_PLAN_APPEND;
    assert_ok(tess_plan_create(h.device, h.layout, &plan, &h.empty));
    tess_plan_info info = {.struct_size = sizeof info};
    assert_ok(tess_plan_query(h.plan, &info));
    h.memory = aligned_alloc(256, 65536 + (info.workspace_bytes + 255) / 256 * 256);
    assert_non_null(h.memory);
    for (int n = 0; n < 65536 / 4; n++) h.memory[n] = 1;
    h.run.struct_size = sizeof h.run;
    assert_ok(tess_plan_tensor(h.plan, TESS_ROLE_Q, tess_host_buffer(h.memory, 0), &h.run.q, NULL));
    assert_ok(tess_plan_tensor(h.plan, TESS_ROLE_K, tess_host_buffer(h.memory + 1024, 0), &h.run.k,
                               NULL));
    assert_ok(tess_plan_tensor(h.plan, TESS_ROLE_V, tess_host_buffer(h.memory + 2048, 0), &h.run.v,
                               NULL));
    assert_ok(tess_plan_tensor(h.plan, TESS_ROLE_O, tess_host_buffer(h.memory + 4096, 0), &h.run.o,
                               NULL));
    h.run.workspace = tess_host_buffer(h.memory + 16384, 0);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    free(h.memory);
    tess_plan_release(h.plan);
    tess_plan_release(h.empty);
    tess_layout_release(h.layout);
    tess_device_release(h.device);
    tess_runtime_release(h.runtime);
    return 0;
}

/* ------------------------------------------------------------------ descriptors */

/* Each fills the descriptor's first bytes and makes the call with whatever struct_size it has been
 * given. */
static size_t base_runtime(void *bytes) {
    tess_runtime_desc d = {.struct_size = sizeof d, .log = test_log_nothing};
    memcpy(bytes, &d, sizeof d);
    return sizeof d;
}
static tess_status call_runtime(void *bytes) {
    tess_runtime *made = NULL;
    const tess_status status = tess_runtime_create(bytes, &made);
    tess_runtime_release(made);
    return status;
}
static size_t base_device(void *bytes) {
    tess_device_desc d = {.struct_size = sizeof d};
    memcpy(bytes, &d, sizeof d);
    return sizeof d;
}
/* Appends nothing, and copies nothing. */
static size_t base_append(void *bytes) {
    static const tess_tensor pool;
    tess_append_desc d = {.struct_size = sizeof d, .k_pools = &pool, .v_pools = &pool};
    memcpy(bytes, &d, sizeof d);
    return sizeof d;
}
static tess_status call_append(void *bytes) { return tess_append(h.empty, bytes); }
static size_t base_copy(void *bytes) {
    tess_copy_desc d = {.struct_size = sizeof d, .n_heads = 1, .head_dim = 8};
    d.page = d.pages = 1;
    memcpy(bytes, &d, sizeof d);
    return sizeof d;
}
static tess_status call_copy(void *bytes) { return tess_copy_pages(h.device, bytes); }
/* Merges nothing. */
static size_t base_parts(void *bytes) {
    tess_parts_desc d = {.struct_size = sizeof d, .n_parts = 2, .n_heads = 1, .head_dim = 8};
    memcpy(bytes, &d, sizeof d);
    return sizeof d;
}
static tess_status call_parts(void *bytes) { return tess_merge_parts(h.device, bytes); }
/* Makes an object from a descriptor, and releases it. */
#define CALL(kind, create, ...)                                       \
    static tess_status call_##kind(void *bytes) {                     \
        tess_##kind *made = NULL;                                     \
        const tess_status status = create(__VA_ARGS__, bytes, &made); \
        tess_##kind##_release(made);                                  \
        return status;                                                \
    }
CALL(device, tess_device_open, h.runtime)
static tess_pattern one_pattern;
static size_t base_layout(void *bytes) {
    tess_layout_desc d;
    one_pattern = test_s2_pattern(16, 2, 3);
    d = test_layout_desc(&one_pattern, 2, 1, 100);
    memcpy(bytes, &d, sizeof d);
    return sizeof d;
}
CALL(layout, tess_layout_create, h.runtime)
static size_t base_pattern(void *bytes) {
    tess_pattern p;
    p = test_s2_pattern(16, 2, 3);
    memcpy(bytes, &p, sizeof p);
    return sizeof p;
}
static tess_status call_pattern(void *bytes) {
    tess_layout_desc d;
    tess_layout *made = NULL;
    d = test_layout_desc(bytes, 2, 1, 100);
    const tess_status status = tess_layout_create(h.runtime, &d, &made);
    tess_layout_release(made);
    return status;
}
static size_t base_plan(void *bytes) {
    tess_plan_desc d;
    fill_plan(&d);
    memcpy(bytes, &d, sizeof d);
    return sizeof d;
}
CALL(plan, tess_plan_create, h.device, h.layout)
static size_t base_run(void *bytes) {
    memcpy(bytes, &h.run, sizeof h.run);
    return sizeof h.run;
}
static tess_status call_run(void *bytes) { return tess_run(h.plan, bytes); }

static const struct {
    const char *name;
    size_t (*base)(void *bytes);
    tess_status (*call)(void *bytes);
    size_t shortest; /* up to and with the last field that has to be set */
} descriptors[] = {
    {"tess_runtime_desc", base_runtime, call_runtime, offsetof(tess_runtime_desc, log_user)},
    {"tess_device_desc", base_device, call_device, offsetof(tess_device_desc, native)},
    {"tess_layout_desc", base_layout, call_layout, offsetof(tess_layout_desc, max_chunk)},
    {"tess_pattern", base_pattern, call_pattern, offsetof(tess_pattern, mask)},
    {"tess_plan_desc", base_plan, call_plan, offsetof(tess_plan_desc, kv_split)},
    {"tess_run_desc", base_run, call_run, offsetof(tess_run_desc, sink_logits)},
    {"tess_append_desc", base_append, call_append, offsetof(tess_append_desc, step)},
    {"tess_copy_desc", base_copy, call_copy, offsetof(tess_copy_desc, n_pairs)},
    {"tess_parts_desc", base_parts, call_parts, offsetof(tess_parts_desc, rows)},
};

/* Sizes between these limits cut a field in two, although they may be multiples of the
 * alignment. */
static const struct {
    const char *structure;
    size_t at, size;
} wide_fields[] = {
#define WIDE(type, field) \
    { #type, offsetof(type, field), sizeof(((type *)0)->field) }
    WIDE(tess_runtime_desc, allocator),
    WIDE(tess_run_desc, q),
    WIDE(tess_run_desc, k),
    WIDE(tess_run_desc, v),
    WIDE(tess_run_desc, o),
    WIDE(tess_run_desc, lse),
    WIDE(tess_run_desc, workspace),
    WIDE(tess_run_desc, stream),
    WIDE(tess_run_desc, sink_logits),
    WIDE(tess_run_desc, k_scale),
    WIDE(tess_run_desc, v_scale),
    WIDE(tess_run_desc, q_lens),
    WIDE(tess_run_desc, kv_lens),
    WIDE(tess_run_desc, block_table),
    WIDE(tess_run_desc, d_o),
    WIDE(tess_run_desc, d_q),
    WIDE(tess_run_desc, d_k),
    WIDE(tess_run_desc, d_v),
    WIDE(tess_run_desc, d_lse),
    WIDE(tess_run_desc, step),
    WIDE(tess_append_desc, k),
    WIDE(tess_append_desc, v),
    WIDE(tess_append_desc, k_scale),
    WIDE(tess_append_desc, v_scale),
    WIDE(tess_append_desc, step),
    WIDE(tess_append_desc, block_table),
    WIDE(tess_append_desc, stream),
    WIDE(tess_copy_desc, pairs),
    WIDE(tess_copy_desc, stream),
    WIDE(tess_parts_desc, o_parts),
    WIDE(tess_parts_desc, lse_parts),
    WIDE(tess_parts_desc, o),
    WIDE(tess_parts_desc, lse),
    WIDE(tess_parts_desc, stream),
    WIDE(tess_backend_info, name),
    WIDE(tess_backend_info, reason),
    WIDE(tess_device_info, id),
    WIDE(tess_device_info, backend),
    WIDE(tess_device_info, name),
    WIDE(tess_device_info, arch),
    WIDE(tess_device_info, driver),
    WIDE(tess_kernel_info, name),
    WIDE(tess_kernel_info, reason),
    WIDE(tess_plan_info, kernel),
    WIDE(tess_plan_info, few_kernel),
};

/* All fields but the wide ones have 8 bytes, or 4 and come in pairs. Two structures have no
 * field of 8 bytes. */
static int size_is_legal(const char *structure, size_t size) {
    const int small =
        strcmp(structure, "tess_backend_info") == 0 || strcmp(structure, "tess_kernel_info") == 0;
    if (size < 8 || size % (small ? 4 : 8) != 0) return 0;
    for (size_t n = 0; n < sizeof wide_fields / sizeof wide_fields[0]; n++) {
        const size_t at = wide_fields[n].at, end = at + wide_fields[n].size;
        if (strcmp(wide_fields[n].structure, structure) == 0 && size > at && size < end) return 0;
    }
    return 1;
}

/* Every cut of every descriptor, in memory that ends where struct_size says. */
static void test_every_cut(void **state) {
    (void)state;
    for (size_t n = 0; n < sizeof descriptors / sizeof descriptors[0]; n++) {
        unsigned char whole[ROOM] __attribute__((aligned(64)));
        const char *name = descriptors[n].name;
        const size_t known = descriptors[n].base(memset(whole, 0, sizeof whole));
        for (uint32_t size = 4; size <= known + TAIL; size++) {
            unsigned char *bytes = malloc(size);
            assert_non_null(bytes);
            memcpy(bytes, whole, size);
            memcpy(bytes, &size, sizeof size);
            const tess_status status = descriptors[n].call(bytes);
            const int legal = size_is_legal(name, size);
            if (legal ? status == TESS_ERROR_VERSION : status != TESS_ERROR_VERSION)
                fail_msg("%s of %u bytes, of which %zu are known: %s: %s", name, size, known,
                         tess_status_name(status), tess_last_error());
            if (legal && size >= descriptors[n].shortest) assert_ok(status);
            free(bytes);
        }
    }
}

static void test_descriptor_sizes(void **state) {
    (void)state;
    for (size_t n = 0; n < sizeof descriptors / sizeof descriptors[0]; n++) {
        unsigned char *bytes = aligned_alloc(64, ROOM);
        assert_non_null(bytes);
        const size_t known = descriptors[n].base(memset(bytes, 0, ROOM));
        const struct {
            uint32_t size;
            size_t set; /* a byte of the tail that is set; 0: none */
            tess_status wanted;
        } sizes[] = {
            {(uint32_t)known, 0, TESS_OK},
            {(uint32_t)known, known, TESS_OK}, /* past the end: nobody's business */
            {(uint32_t)known + 8, 0, TESS_OK},
            {(uint32_t)known + TAIL, 0, TESS_OK},
            {(uint32_t)known + 1, known, TESS_ERROR_VERSION},
            {(uint32_t)known + 8, known + 7, TESS_ERROR_VERSION},
            {(uint32_t)known + TAIL, known + TAIL - 1, TESS_ERROR_VERSION},
            {(uint32_t)known + TAIL, known, TESS_ERROR_VERSION},
            {(uint32_t)descriptors[n].shortest, 0, TESS_OK},
            {0, 0, TESS_ERROR_VERSION},
            {4, 0, TESS_ERROR_VERSION},
            {UINT32_MAX, 0, TESS_ERROR_VERSION},
            {0x7fffffff, 0, TESS_ERROR_VERSION},
        };
        for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
            descriptors[n].base(memset(bytes, 0, ROOM));
            memcpy(bytes, &sizes[s].size, sizeof sizes[s].size);
            if (sizes[s].set) bytes[sizes[s].set] = 0x80;
            /* Bytes past struct_size belong to somebody else. */
            if (sizes[s].size == descriptors[n].shortest)
                memset(bytes + descriptors[n].shortest, 0xff, ROOM - descriptors[n].shortest);
            const tess_status status = descriptors[n].call(bytes);
            if (status != sizes[s].wanted)
                fail_msg("%s of %u bytes (%zu known), byte %zu set: %s, wanted %s: %s",
                         descriptors[n].name, sizes[s].size, known, sizes[s].set,
                         tess_status_name(status), tess_status_name(sizes[s].wanted),
                         tess_last_error());
        }
        free(bytes);
    }
}

/* ------------------------------------------------------------------ info structures */

static tess_status get_backend(void *i) { return tess_runtime_backend(h.runtime, 0, i); }
static tess_status get_device(void *i) { return tess_runtime_device(h.runtime, 0, i); }
static tess_status get_setting(void *i) { return tess_runtime_setting(h.runtime, 0, i); }
static tess_status get_rule(void *i) { return tess_runtime_rule(h.runtime, NULL, 0, i); }
static tess_status get_opened(void *i) { return tess_device_query(h.device, i); }
static tess_status get_kernel(void *i) { return tess_device_kernel(h.device, 0, i); }
static tess_status get_layout(void *i) { return tess_layout_query(h.layout, i); }
static tess_status get_kv(void *i) { return tess_layout_kv(h.layout, 0, i); }
static tess_status get_storage(void *i) { return tess_layout_storage(h.layout, 0, i, NULL); }
static tess_status get_plan(void *i) { return tess_plan_query(h.plan, i); }

static void test_infos(void **state) {
    (void)state;
    static const struct {
        const char *name;
        tess_status (*get)(void *info);
        size_t known;
    } rows[] = {
        {"tess_backend_info", get_backend, sizeof(tess_backend_info)},
        {"tess_device_info", get_device, sizeof(tess_device_info)},
        {"tess_setting_info", get_setting, sizeof(tess_setting_info)},
        {"tess_rule_info", get_rule, sizeof(tess_rule_info)},
        {"tess_device_info", get_opened, sizeof(tess_device_info)},
        {"tess_kernel_info", get_kernel, sizeof(tess_kernel_info)},
        {"tess_layout_info", get_layout, sizeof(tess_layout_info)},
        {"tess_kv_info", get_kv, sizeof(tess_kv_info)},
        {"tess_storage_info", get_storage, sizeof(tess_storage_info)},
        {"tess_plan_info", get_plan, sizeof(tess_plan_info)},
    };
    for (size_t n = 0; n < sizeof rows / sizeof rows[0]; n++) {
        const size_t known = rows[n].known, last = known + TAIL;
        unsigned char full[ROOM] __attribute__((aligned(64)));
        uint32_t size = (uint32_t)known;
        memset(full, 0, sizeof full);
        memcpy(full, &size, sizeof size);
        assert_ok(rows[n].get(full));
        for (size = 8; size <= last; size++) {
            unsigned char bytes[ROOM] __attribute__((aligned(64)));
            if (!size_is_legal(rows[n].name, size)) continue;
            memset(bytes, 0xee, sizeof bytes);
            memcpy(bytes, &size, sizeof size);
            if (rows[n].get(bytes) != TESS_OK)
                fail_msg("%s of %u bytes: %s", rows[n].name, size, tess_last_error());
            uint32_t after;
            memcpy(&after, bytes, sizeof after);
            assert_int_equal(after, size);
            for (size_t b = 4; b < ROOM; b++) {
                const unsigned char wanted = b >= size ? 0xee : b < known ? full[b] : 0;
                if (bytes[b] != wanted)
                    fail_msg("%s of %u bytes: byte %zu is %02x and should be %02x", rows[n].name,
                             size, b, bytes[b], wanted);
            }
        }
        for (size_t b = 0; b <= last + 1; b++) {
            unsigned char bytes[ROOM] __attribute__((aligned(64)));
            const uint32_t bad = b <= last ? (uint32_t)b : UINT32_MAX;
            if (b <= last && size_is_legal(rows[n].name, b)) continue;
            memset(bytes, 0xee, sizeof bytes);
            memcpy(bytes, &bad, sizeof bad);
            if (rows[n].get(bytes) != TESS_ERROR_VERSION)
                fail_msg("%s of %u bytes is accepted", rows[n].name, bad);
            for (size_t at = 4; at < ROOM; at++) assert_int_equal(bytes[at], 0xee);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {TEST(test_every_cut), TEST(test_descriptor_sizes),
                                       TEST(test_infos)};
    return cmocka_run_group_tests_name("structures of other versions", tests, setup, teardown);
}
